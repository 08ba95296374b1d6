#!/bin/sh
# Runs all fuzz targets for so many seconds each, one after the other: tools/fuzz.sh [SECONDS]
# A crash prints its input; 4 GiB of memory is the limit.
set -eu
seconds=${1:-1200}
ulimit -v 4194304
export BOLERO_RANDOM_TEST_TIME_MS=$((seconds * 1000)) BOLERO_RANDOM_ITERATIONS=18446744073709551615
cargo test --release --quiet -p atoll-fuzz --no-run
for file in tests/fuzz/tests/*.rs; do
    test=$(basename "$file" .rs)
    for target in $(cargo test --release --quiet -p atoll-fuzz --test "$test" -- --list | sed -n 's/: test$//p'); do
        echo "$test $target for $seconds s"
        cargo test --release --quiet -p atoll-fuzz --test "$test" -- --exact "$target" --nocapture
    done
done
