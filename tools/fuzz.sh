#!/bin/sh
# Runs the fuzz targets of the PTX language and of the ONNX importer for so many seconds each, one after the other: tools/fuzz.sh [SECONDS]
# A crash prints its input; 4 GiB of memory is the limit.
set -eu
seconds=${1:-1200}
ulimit -v 4194304
export BOLERO_RANDOM_TEST_TIME_MS=$((seconds * 1000)) BOLERO_RANDOM_ITERATIONS=18446744073709551615
for target in any_bytes mutated_texts constant_expressions; do
    echo "$target for $seconds s"
    cargo test --release --quiet -p atoll-fuzz --test ptx "$target" -- --nocapture
done
for target in any_bytes changed_bytes changed_models; do
    echo "onnx $target for $seconds s"
    cargo test --release --quiet -p atoll-fuzz --test onnx "$target" -- --nocapture
done
