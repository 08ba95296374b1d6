#!/usr/bin/env bash
# `make mutants`: changes a crate in small ways, one at a time, and asks whether its tests notice
# (cargo-mutants, https://mutants.rs). It takes hours. CRATE is the crate's name without `atoll-`,
# `core` (the scheduler) unless given; ARGS go to cargo mutants:
#   make mutants ARGS="--file '**/task.rs'"
#   make mutants CRATE=kgraph ARGS="--shard 0/10 --sharding round-robin"
set -euo pipefail

crate=${CRATE:-core}
command -v cargo-mutants >/dev/null || cargo install cargo-mutants --locked
# What a mutant breaks is broken for most seeds.
export ATOLL_SEEDS=${ATOLL_SEEDS:-10}
# In a target folder that is shared, mutants would be taken for what they were made of.
unset CARGO_TARGET_DIR
excluded=()
if [ "$crate" = core ]; then
    # A generator of random numbers has no wrong ones, and perturbation is itself a tool of tests.
    excluded=(--exclude '**/rng.rs' --exclude '**/perturb.rs' --exclude-re '::perturb$')
fi
output=${ATOLL_CACHE:-target}/mutants
mkdir -p "$output"
exec cargo mutants --package "atoll-$crate" --test-package "atoll-$crate" --output "$output/$crate" "${excluded[@]}" "$@"
