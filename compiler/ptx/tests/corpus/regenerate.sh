#!/bin/sh
# Generates the .ptx files here from the .cu files beside them, with clang 22.1.8. Another version
# gives other text, which is fine, but then the expected counts in the tests change too. Needs no CUDA
# package. `reduce_O0.ptx` is `reduce.cu` without optimization. `forms.ptx`, `blackwell.ptx`,
# `old_style.ptx` and `nested.ptx` are written by hand. `nvrtc.ptx` was made from `nvrtc.cu` by NVRTC
# 12.9 with `--gpu-architecture=sm_80 -lineinfo`.
# Files that need more tools are generated only if the tools exist: `nvcc_*.ptx` with the nvcc of $CUDA
# (13.5, in a folder `/src`, because paths are in the text), `triton_*.ptx` with $PYTHON that has Triton
# (3.9.0).
set -eu
cd "$(dirname "$0")"
compile() { # source output options…
    source=$1 output=$2
    shift 2
    "${CLANG:-clang++-22}" -x cuda -nocudainc -nocudalib --cuda-device-only -S "$@" "$source" -o "$output"
}
for name in gemm reduce calls branches vectors; do
    compile $name.cu $name.ptx -O2 --cuda-gpu-arch=sm_80 --cuda-feature=+ptx78
done
compile debug.cu debug.ptx -g -O0 -fdebug-compilation-dir=. -no-canonical-prefixes -fdebug-prefix-map="$PWD"=. --cuda-gpu-arch=sm_75 --cuda-feature=+ptx78
compile reduce.cu reduce_O0.ptx -O0 --cuda-gpu-arch=sm_75 --cuda-feature=+ptx78
llc() { # source options…
    source=$1
    shift
    "${LLC:-llc-22}" -O2 "$@" "$source.ll" -o "$source.ptx"
}
llc llvm -mcpu=sm_100a -mattr=+ptx90
llc textures -mcpu=sm_80 -mattr=+ptx78
if [ -n "${CUDA:-}" ]; then
    "$CUDA/bin/nvcc" -ptx -arch=sm_90a -lineinfo -I"$CUDA/include/cccl" nvcc_cluster.cu -o nvcc_cluster.ptx
    sed -i "s#$CUDA/bin/../targets/x86_64-linux/##; s#$CUDA/##" nvcc_cluster.ptx
    "$CUDA/bin/nvcc" -ptx -arch=sm_75 -G nvcc_debug.cu -o nvcc_debug.ptx
fi
if [ -n "${PYTHON:-}" ]; then
    "$PYTHON" triton_matmul.py .
fi
