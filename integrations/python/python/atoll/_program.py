"""The program `atoll`: where it is, and the compiler in it."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ._errors import CompileFailed, NotFound

# The first bytes of a native program. The script `atoll` that pip installs has others.
_NATIVE = b"\x7fELF"


def program() -> str:
    """Path of the program: `$ATOLL_PROGRAM`, the one in this package, or one on `$PATH`."""
    if chosen := os.environ.get("ATOLL_PROGRAM"):
        return chosen
    folders = [str(Path(__file__).with_name("bin")), *os.environ.get("PATH", "").split(os.pathsep)]
    for path in (os.path.join(folder, "atoll") for folder in folders if folder):
        if os.access(path, os.X_OK) and _is_native(path):
            return path
    raise NotFound("this build of the package has no program `atoll`, and none is on PATH; set ATOLL_PROGRAM to its path")


def _is_native(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(_NATIVE)) == _NATIVE
    except OSError:
        return False


def compile(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    targets: Sequence[str] = (),
    symbols: Mapping[str, tuple[int, int]] | None = None,
    fix: Mapping[str, int] | None = None,
    state: str | Mapping[str, str] | None = None,
    assemble: bool = False,
    cache: bool = True,
) -> Path:
    """Compiles an ONNX model into a bundle, and returns the bundle's path.

    out: the bundle; by default beside the model, as .kg
    targets: as in `["host", "nvidia:sm_90"]`; by default this machine and NVIDIA GPUs since sm_75
    symbols: the least and the greatest value of a size that the model leaves open
    fix: the only value of such a size
    state: inputs and the outputs that are their next values, or "auto"
    assemble: assemble NVIDIA kernels with ptxas
    cache: use kernels that were compiled before

    Raises `CompileFailed` with the compiler's reason.
    """
    bundle = Path(out) if out is not None else Path(model).with_suffix(".kg")
    arguments = [program(), "compile", os.fspath(model), "--output", str(bundle), "--json"]
    for target in targets:
        arguments += ["--target", target]
    for name, (least, greatest) in (symbols or {}).items():
        arguments += ["--symbol", f"{name}={least}..{greatest}"]
    for name, value in (fix or {}).items():
        arguments += ["--fix", f"{name}={value}"]
    if isinstance(state, str):
        arguments += ["--state", state]
    elif state:
        arguments += ["--state", ",".join(f"{read}={written}" for read, written in state.items())]
    if assemble:
        arguments.append("--assemble")
    if not cache:
        arguments.append("--no-cache")
    done = subprocess.run(arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise CompileFailed(reason(done.stderr) or f"the compiler ended with status {done.returncode}")
    return bundle


def reason(output: str) -> str:
    """The error that the program printed last, with its details."""
    lines = output.rstrip().splitlines()
    last = max((index for index, line in enumerate(lines) if line.startswith("error")), default=0)
    return "\n".join(lines[last:]).removeprefix("error: ")
