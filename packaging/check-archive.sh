#!/usr/bin/env bash
# Unpacks an archive of release.sh in a bare Debian 12, and serves a model there, as a user without rights:
#   packaging/check-archive.sh ARCHIVE.tar.xz MODEL
# The model is an ONNX file, or a bundle for an archive without LLVM. Needs root and debootstrap. The bare system is kept in
# $ATOLL_CACHE and not changed.
set -euo pipefail

archive=$(realpath "$1") model=$(realpath "$2")
base=${ATOLL_CACHE:-$HOME/.cache/atoll}/debian-12
say() { printf 'check: %s\n' "$*"; }

source "$(dirname "$(realpath "$0")")/deb/bare.sh"
enter_bare_view "$base" "$archive" "$model"
mkdir "$root/opt/atoll"
tar --extract --xz --file "$archive" --directory "$root/opt/atoll" --strip-components=1
! inside dpkg --list 'libllvm*' 2>/dev/null | grep -q '^ii' || { say "the system has LLVM"; exit 1; }

say "serving"
inside install -d -o 65534 /srv/atoll /srv/atoll/models
install -m 644 "$model" "$root/srv/atoll/models/null.${model##*.}"
as_user() { exec chroot "$root" env -i PATH=/opt/atoll/bin:/usr/bin HOME=/srv/atoll setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
(as_user atoll --version)
(as_user atoll serve --model-repository /srv/atoll/models --http-port 18000 --no-grpc --no-control --metrics-port 18002) &
daemon=$!
wait_for_model null 18000 "$daemon"
kill "$daemon"
wait "$daemon"
say "the model is served"
