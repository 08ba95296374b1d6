#!/usr/bin/env python3
"""Makes a wheel of programs that cargo has built. Prints its path. maturin (build.sh) makes those for users.

assemble.py BUILT OUT   BUILT is a folder such as target/debug, OUT the folder of the wheel
"""

import base64
import hashlib
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
PROGRAM, MODULE = "atoll", "libatoll_python.so"


def stripped(path: Path) -> bytes:
    """A program without the information for debuggers, which is most of a debug build."""
    with tempfile.NamedTemporaryFile() as file:
        subprocess.run(["strip", "--strip-debug", "-o", file.name, path], check=True)
        return Path(file.name).read_bytes()


def contents(built: Path, project: dict) -> dict[str, tuple[bytes, bool]]:
    """The files of the wheel, and whether they are programs."""
    files = {}
    for path in sorted((HERE / "python/atoll").iterdir()):
        if path.suffix in (".py", ".pyi") or path.name == "py.typed":
            files[f"atoll/{path.name}"] = path.read_bytes(), False
    files["atoll/_native.abi3.so"] = stripped(built / MODULE), True
    files[f"atoll/bin/{PROGRAM}"] = stripped(built / PROGRAM), True
    metadata = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        f"Summary: {project['description']}",
        f"License-Expression: {project['license']}",
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {name}" for name in project["dependencies"]),
        *(f"Classifier: {name}" for name in project["classifiers"]),
        "Description-Content-Type: text/markdown",
        "",
        *(HERE / project["readme"]).read_text().splitlines(),
    ]
    wheel = ["Wheel-Version: 1.0", "Generator: assemble", "Root-Is-Purelib: false", f"Tag: {tag()}"]
    scripts = ["[console_scripts]", *(f"{name}={place}" for name, place in project["scripts"].items())]
    folder = f"{project['name']}-{project['version']}.dist-info"
    for name, lines in [("METADATA", metadata), ("WHEEL", wheel), ("entry_points.txt", scripts)]:
        files[f"{folder}/{name}"] = "".join(f"{line}\n" for line in lines).encode(), False
    digest = lambda text: base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=").decode()
    record = [f"{name},sha256={digest(text)},{len(text)}" for name, (text, _) in files.items()]
    record.append(f"{folder}/RECORD,,")
    files[f"{folder}/RECORD"] = "".join(f"{line}\n" for line in record).encode(), False
    return files


def tag() -> str:
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"cp311-abi3-{platform}"


def main(built: str, out: str) -> None:
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    files = contents(Path(built), project)
    path = Path(out) / f"{project['name']}-{project['version']}-{tag()}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, (text, is_program) in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o100755 if is_program else 0o100644) << 16
            wheel.writestr(entry, text)
    print(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
