#!/usr/bin/env python3
"""Makes ptx/ from src/ and triton/ again, with whatever compilers are installed: build.py [--cuda DIR] [FILE...]

nvcc and its headers come from PyPI (nvidia-cuda-nvcc, nvidia-nvvm, nvidia-cuda-crt, nvidia-cuda-runtime, nvidia-cuda-cccl), clang from Debian (clang-22), Triton from PyPI.
DIR is the folder that holds bin/nvcc.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
ARCHITECTURE = "sm_80"


def nvcc(cuda, source, target):
    path = f"{cuda}/bin:{cuda}/nvvm/bin:{os.environ['PATH']}"
    command = ["nvcc", "-ptx", f"-arch={ARCHITECTURE}", "-O3", source.name, "-o", target]
    subprocess.run([shutil.which("nvcc", path=path) or "nvcc", *command[1:]], cwd=source.parent, env=os.environ | {"PATH": path}, check=True)


def clang(cuda, source, target):
    with tempfile.TemporaryDirectory() as stub:
        # clang's wrapper asks for a header that only a package of random numbers has.
        pathlib.Path(stub, "curand_mtgp32_kernel.h").touch()
        options = ["-x", "cuda", f"--cuda-path={cuda}", f"-I{stub}", f"-I{cuda}/include/cccl", f"--cuda-gpu-arch={ARCHITECTURE}"]
        command = ["clang++-22", "-Wno-unknown-cuda-version", *options, "--cuda-device-only", "-S", "-O3", source.name, "-o", target]
        subprocess.run(command, cwd=source.parent, check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuda", default="/usr/local/cuda")
    parser.add_argument("files", nargs="*", help="names without ending; all otherwise")
    arguments = parser.parse_args()
    for source in sorted((HERE / "src").glob("*.cu")):
        if arguments.files and source.stem not in arguments.files:
            continue
        for compiler in (nvcc, clang):
            target = HERE / "ptx" / f"{source.stem}.{compiler.__name__}.ptx"
            compiler(arguments.cuda, source, target)
            print(target.relative_to(HERE), target.stat().st_size)
    if not arguments.files or "triton" in arguments.files:
        subprocess.run([sys.executable, HERE / "triton" / "compile.py", HERE / "ptx"], check=True)


main()
