#!/usr/bin/env bash
# Licences and sources of all dependencies, by cargo-deny (`deny.toml`). `deny.checked` holds the digest of the versions
# and rules that passed. If it is up to date, cargo-deny is neither built nor run. `--write` runs the check and renews it.
set -euo pipefail

digest=$(cat Cargo.lock deny.toml | sha256sum | cut -d' ' -f1)
is_known() { [ "$(cat deny.checked 2>/dev/null)" = "$digest" ]; }
if [ "${1:-}" != --write ] && [ "${ATOLL_TEST_FULL:-0}" != 1 ] && is_known; then exit 0; fi

if ! command -v cargo-deny >/dev/null; then
    echo "setup: building cargo-deny (two minutes, once)"
    cargo install --quiet --debug --locked --root "$ATOLL_CACHE/tools" cargo-deny
fi
cargo deny --log-level error check bans licenses sources
if [ "${1:-}" = --write ]; then
    echo "$digest" >deny.checked
elif ! is_known; then
    echo "deny.checked is out of date; the dependencies pass, so write it anew: tools/licences.sh --write" >&2
    exit 1
fi
