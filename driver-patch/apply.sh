#!/usr/bin/env bash
# Adds Atoll's ioctls to the source of the amdgpu driver: apply.sh VERSION TREE. VERSION is that of a patch beside this
# file, such as 6.12. TREE is the source of a kernel, or any folder that has its drivers/gpu/drm/amd.
set -euo pipefail
if [ $# != 2 ]; then
    echo "usage: apply.sh VERSION TREE" >&2
    exit 2
fi
version=$1 tree=$2
here=$(dirname "$(realpath "$0")")
patch=$here/linux-$version.patch
kfd=$tree/drivers/gpu/drm/amd/amdkfd

fail() {
    echo "apply.sh: $*" >&2
    exit 1
}
if [ ! -f "$patch" ]; then
    fail "no patch for Linux $version; there are: $(cd "$here" && ls linux-*.patch | sed 's/linux-\(.*\)\.patch/\1/' | xargs)"
fi
[ -f "$kfd/kfd_chardev.c" ] || fail "$tree has no drivers/gpu/drm/amd/amdkfd/kfd_chardev.c"
[ ! -e "$kfd/kfd_atoll.c" ] || fail "$tree has the patch already"

# All or nothing: first without writing. A hunk whose surroundings differ may not be moved to a similar place.
patch --directory="$tree" --strip=1 --fuzz=0 --forward --batch --dry-run --silent <"$patch" ||
    fail "the patch does not apply; is this the source of Linux $version?"
patch --directory="$tree" --strip=1 --fuzz=0 --forward --batch --no-backup-if-mismatch --silent <"$patch"
cp "$here"/abi/atoll_kfd.h "$here"/src/kfd_atoll{.c,.h,_checks.h} "$kfd/"
