#!/usr/bin/env bash
# rustdoc for `make test`. Cargo calls it to run the doc tests of a crate. It checks the crate's documentation first, with
# the dependencies that are compiled for the tests: `cargo doc` would check all of them again.
set -euo pipefail

crate=()
is_test=
words=("$@")
for ((at = 0; at < ${#words[@]}; at++)); do
    case ${words[at]} in
    --test) is_test=1 ;;
    --test-args | --test-run-directory) at=$((at + 1)) ;;
    *) crate+=("${words[at]}") ;;
    esac
done

if [ -n "$is_test" ]; then
    pages=$(mktemp -d)
    trap 'rm -rf "$pages"' EXIT
    rustdoc "${crate[@]}" -D warnings --out-dir "$pages"
fi
rustdoc "$@"
