#!/usr/bin/env bash
# `make mutants`: changes the scheduler in small ways, one at a time, and asks whether its tests notice (cargo-mutants, https://mutants.rs). It takes hours; arguments go to cargo mutants, as in
#   make mutants ARGS="--file '**/task.rs'"
set -euo pipefail

command -v cargo-mutants >/dev/null || cargo install cargo-mutants --locked
# What a mutant breaks is broken for most seeds.
export ATOLL_SEEDS=${ATOLL_SEEDS:-10}
# In a target folder that is shared, mutants would be taken for what they were made of.
unset CARGO_TARGET_DIR
# What is kept on the device is no scheduling, a generator of random numbers has no wrong ones, and perturbation is itself a tool of tests.
exec cargo mutants --package atoll-core --test-package atoll-core --output "${ATOLL_CACHE:-target}/mutants" \
    --exclude '**/src/residency/**' --exclude '**/rng.rs' --exclude '**/tenant.rs' --exclude '**/perturb.rs' --exclude-re '::perturb$' "$@"
