#!/bin/sh
# Makes kernels.ptx; needs nvcc (PyPI: nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-runtime) on the PATH.
set -eu
cd "$(dirname "$0")"
nvcc -x cu -ptx -arch=sm_80 -O3 kernels.c -o kernels.ptx
