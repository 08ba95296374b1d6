#!/usr/bin/env bash
# Builds the last stage of a Containerfile with a package that is there already, without a registry, and serves a model in the
# image:
#   packaging/container/check.sh Containerfile PACKAGE.deb MODEL.onnx
# A bare Debian 12 from debootstrap takes the place of the image of Debian. Needs root, debootstrap and buildah, and leaves
# no image behind. The bare system is kept in $ATOLL_CACHE and not changed.
set -euo pipefail

containerfile=$(realpath "$1") package=$(realpath "$2") model=$(realpath "$3")
base=${ATOLL_CACHE:-$HOME/.cache/atoll}/debian-12
say() { printf 'check: %s\n' "$*"; }

source "$(dirname "$(realpath "$0")")/../deb/bare.sh"
bare_system "$base" ca-certificates

# A writable view of it, in a mount namespace of this script, which also holds the images.
if [ "${ATOLL_CHECK_INSIDE:-}" != 1 ]; then exec env ATOLL_CHECK_INSIDE=1 unshare --mount --pid --fork --kill-child --mount-proc "$0" "$@"; fi
bare_view "$base"
umount "$root/dev" "$root/proc"
images() { buildah --root "$work/images" --runroot "$work/run" --storage-driver vfs "$@"; }
# Runs in the working container $container, on this machine's network.
in_image() { images run --isolation chroot --volume "$work/models:/var/lib/atoll/models:ro" "$container" -- "$@"; }

stage=$(awk '/^FROM /{ text = "" } { text = text $0 "\n" } END { printf "%s", text }' "$containerfile")
system=$(sed -n 's/^FROM //p' <<<"$stage")
say "making $system of a bare Debian 12"
container=$(images from scratch)
images add --quiet "$container" "$root" / >/dev/null
images commit --quiet --rm "$container" "$system" >/dev/null

say "building the image"
mkdir -p "$work/builder/src/target/release"
cp "$package" "$work/builder/src/target/release/atoll_0_checked.deb"
images build --quiet --pull-never --isolation chroot --format docker --build-context "builder=$work/builder" \
    --iidfile "$work/id" -f - "$work/builder" <<<"$stage" >"$work/log" 2>&1 || { tail -20 "$work/log" >&2; exit 1; }
container=$(images from --pull-never "$(cat "$work/id")")

say "serving in the image"
chmod 755 "$work"
install -D -m 644 "$model" "$work/models/null.onnx"
in_image atoll --version
mapfile -t command < <(images inspect --type container --format '{{range .OCIv1.Config.Entrypoint}}{{println .}}{{end}}' "$container" | sed '/^$/d')
in_image "${command[@]}" --device host --http-port 18010 --no-grpc --metrics-port 18012 &
daemon=$!
wait_for_model null 18010 "$daemon"
in_image atoll ps
say "the model is served"
