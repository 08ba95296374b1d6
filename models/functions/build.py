#!/usr/bin/env python3
"""Builds ptx/ from src/: build.py [--cuda DIR]

DIR is the folder that contains bin/nvcc (from PyPI: nvidia-cuda-nvcc, nvidia-nvvm, nvidia-cuda-crt,
nvidia-cuda-runtime).
"""

import argparse
import os
import pathlib
import shutil
import subprocess

HERE = pathlib.Path(__file__).parent
ARCHITECTURE = "sm_75"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuda", default="/usr/local/cuda")
    cuda = parser.parse_args().cuda
    path = f"{cuda}/bin:{cuda}/nvvm/bin:{os.environ['PATH']}"
    nvcc = shutil.which("nvcc", path=path) or "nvcc"
    for source in sorted((HERE / "src").glob("*.cu")):
        target = HERE / "ptx" / f"{source.stem}.ptx"
        subprocess.run([nvcc, "-ptx", f"-arch={ARCHITECTURE}", "-O3", source, "-o", target], env=os.environ | {"PATH": path}, check=True)
        print(target.relative_to(HERE), target.stat().st_size)


main()
