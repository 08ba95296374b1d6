#!/usr/bin/env bash
# `make test` and, with ATOLL_TEST_FULL=1, `make test-full`. ATOLL_TEST_PART selects a part:
# `lints`, `crates` (each crate's own tests) or `integration` (tests of the whole programs).
set -euo pipefail

part=${ATOLL_TEST_PART:-all}
case $part in
all | lints | crates | integration) ;;
*) echo "ATOLL_TEST_PART: unknown part '$part'; it is one of lints, crates, integration" >&2; exit 2 ;;
esac
is_full() { [ "${ATOLL_TEST_FULL:-0}" = 1 ]; }
has() { [ "$part" = all ] || [ "$part" = "$1" ]; }
step() { printf '\n== %s\n' "$*"; }

# Clippy compiles the crates of the workspace for the tests, so that it need not check all of them in a run of its own.
# `tools/rustdoc.sh` does the same for the documentation.
lint_while_building() {
    RUSTC_WORKSPACE_WRAPPER=clippy-driver
    RUSTDOC=$PWD/tools/rustdoc.sh
    # As `cargo clippy -- -D warnings` passes them on: each ends with this word.
    CLIPPY_ARGS=$(printf '%s__CLIPPY_HACKERY__' -D warnings)
    export RUSTC_WORKSPACE_WRAPPER RUSTDOC CLIPPY_ARGS
}

lint() {
    step "format, licences"
    cargo fmt --all --check
    tools/licences.sh
    if [ "$part" = all ] && ! is_full; then
        lint_while_building
        return
    fi

    step "lints"
    cargo clippy --quiet --workspace --all-targets $ATOLL_FEATURES -- -D warnings
    # Programs without LLVM, and without the compiler.
    if is_full; then
        for features in cuda,compiler cuda; do
            cargo clippy --quiet -p atoll --no-default-features --features "$features" -- -D warnings
        done
    fi

    step "documentation"
    RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps $ATOLL_FEATURES
}

# Runs `cargo test` for the targets "$@" of the workspace.
# The whole workspace in one call, because cargo unifies the features of shared crates for each set of packages.
run_tests() {
    cargo test --workspace --no-fail-fast --quiet $ATOLL_FEATURES "$@" -- --nocapture --test-threads=2 2>&1 |
        tee -a "$ATOLL_CACHE/test.log"
}

# The integration tests run the real programs; tests of GPUs run on the stand-in driver.
test_all() {
    step "tests"
    # Snapshots are compared, never written; each test names those that it reads.
    export INSTA_UPDATE=no INSTA_SNAPSHOT_REFERENCES_FILE="$ATOLL_CACHE/snapshots"
    rm -f "$INSTA_SNAPSHOT_REFERENCES_FILE"
    # Fuzz targets take the same inputs in each run; with `make test-full` and `tools/fuzz.sh` the inputs differ.
    is_full || export BOLERO_RANDOM_SEED=1
    # The tests of one run share the native code of kernels (`tests/src/kernels.rs`). The folder is new for each run: no run depends on another one.
    export ATOLL_TEST_KERNELS="$ATOLL_CACHE/test-kernels"
    rm -rf "$ATOLL_TEST_KERNELS"
    # With the targets of `cargo test`: dependencies of tests add features, and without them all would be compiled twice.
    cargo build --quiet --workspace --all-targets $ATOLL_FEATURES
    case $part in
    all) run_tests ;;
    # All targets except `integration`: cargo takes patterns of names.
    crates)
        run_tests --lib --bins --test '[!i]*' --test 'i[!n]*' --test 'in[!t]*'
        run_tests --doc
        ;;
    integration) run_tests --test integration ;;
    esac
}

check_driver_patch() {
    step "driver patch"
    # With `make test-full` the patch is applied to Debian's kernels, and the driver's files are compiled.
    local quick=--quick
    ! is_full || quick=
    driver-patch/check.sh $quick 2>&1 | tee -a "$ATOLL_CACHE/test.log"
}

check_snapshots() {
    step "snapshots that belong to no test"
    if ! comm -23 <(git ls-files --full-name '*.snap' | sort) <(sed "s|^$PWD/||" "$INSTA_SNAPSHOT_REFERENCES_FILE" | sort -u) | { ! grep .; }; then
        echo "remove them, or add the test that reads them" >&2
        exit 1
    fi
}

report() {
    step "what was skipped, and why"
    grep -a "^SKIPPED" "$ATOLL_CACHE/test.log" | sort | uniq -c || echo "nothing"
    if ! is_full; then
        grep -a "^SAMPLE" "$ATOLL_CACHE/test.log" || true
        echo "small variants of the built models, one seed and samples; \`make test-full\` runs the published sizes, three seeds and all cases"
    fi
    if [ "$before" != "$(git status --porcelain; git diff | cksum)" ]; then
        echo "the tests changed files of the repository:" >&2
        git status --short >&2
        exit 1
    fi
    step "in all"
    grep -a "^test result" "$ATOLL_CACHE/test.log" | awk '{ passed += $4; failed += $6; skipped += $8 } END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped }'
}

before=$(git status --porcelain; git diff | cksum)
: >"$ATOLL_CACHE/test.log"
if has lints; then lint; fi
if has crates || has integration; then test_all; fi
if has integration; then check_driver_patch; fi
if [ "$part" = all ]; then check_snapshots; fi
report
