#!/usr/bin/env bash
# Builds the wheel with maturin, with the programs of a folder of build outputs (default: target/release) inside. Prints
# the wheel's path. `make wheel` builds the programs first. Arguments after the folder go to maturin.
set -euo pipefail
cd "$(dirname "$0")/../.."

built=$(realpath "${1:-target/release}")
shift || true
package=integrations/python
to=$package/python/atoll/bin
mkdir -p "$to"
rm -f "$to"/*
# The program, and the libraries that `atoll run` gives to CUDA programs.
for name in atoll libatoll_interpose.so libatoll_cudart.so libatoll_cublas.so libatoll_cudnn.so; do
    [ ! -f "$built/$name" ] || strip --strip-debug -o "$to/$name" "$built/$name"
done
maturin=${ATOLL_VENV:-$HOME/.cache/atoll/venv}/bin/maturin
[ "$#" -gt 0 ] || set -- --release
out=target/wheels
rm -f "$out"/atoll-*.whl
# The program needs libraries of this system, so the wheel is for it (`linux`) and claims no portability.
"$maturin" build --quiet --manifest-path "$package/Cargo.toml" --compatibility linux --out "$out" "$@" >&2
ls "$out"/atoll-*.whl
