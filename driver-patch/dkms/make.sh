#!/usr/bin/env bash
# Makes the source of a DKMS package of the patched driver: make.sh VERSION SOURCE [FOLDER].
#
# VERSION is that of a patch, such as 6.12. SOURCE is the distribution's source of the kernel that runs: the archive
# /usr/src/linux-source-VERSION.tar.xz of Debian's package, or an unpacked tree. The package is made in FOLDER, /usr/src
# by default, as atoll-amdgpu-RELEASE, where RELEASE is the release of the source, such as 6.12.117.
set -euo pipefail
if [ $# -lt 2 ] || [ $# -gt 3 ]; then
    echo "usage: make.sh VERSION SOURCE [FOLDER]" >&2
    exit 2
fi
version=$1 source=$(realpath "$2") folder=${3:-/usr/src}
here=$(dirname "$(realpath "$0")")

fail() {
    echo "make.sh: $*" >&2
    exit 1
}
mkdir -p "$folder"
made=$(mktemp -d "$folder/.atoll-amdgpu.XXXXXX")
trap 'rm -rf "$made"' EXIT
chmod 755 "$made"

# Only the driver and the kernel's Makefile, which has the release.
if [ -d "$source" ]; then
    [ -d "$source/drivers/gpu/drm/amd" ] || fail "$source has no drivers/gpu/drm/amd"
    mkdir -p "$made/drivers/gpu/drm"
    cp -a "$source/drivers/gpu/drm/amd" "$made/drivers/gpu/drm/"
    find "$made" \( -name '*.o' -o -name '*.cmd' -o -name '*.ko' \) -delete
    cp "$source/Makefile" "$made/Makefile.kernel"
else
    # The archive has one folder, and the driver lies at the same depth in all of them.
    tar -xf "$source" -C "$made" --strip-components=1 --wildcards --no-wildcards-match-slash \
        '*/drivers/gpu/drm/amd' '*/Makefile' || fail "$source has no drivers/gpu/drm/amd"
    mv "$made/Makefile" "$made/Makefile.kernel"
fi
number() { sed -n "s/^$1 = *\([0-9]*\)$/\1/p" "$made/Makefile.kernel"; }
release=$(number VERSION).$(number PATCHLEVEL).$(number SUBLEVEL)
rm "$made/Makefile.kernel"
case $release in
"$version".*) ;;
*) fail "$source is Linux $release, not $version" ;;
esac

"$here/../apply.sh" "$version" "$made"
sed -e "s/@RELEASE@/$release/" -e "s/@VERSION@/${version//./\\\\.}/" "$here/dkms.conf" >"$made/dkms.conf"
package=$folder/atoll-amdgpu-$release
[ ! -e "$package" ] || fail "$package exists; remove it first (dkms remove atoll-amdgpu/$release --all)"
mv "$made" "$package"
trap - EXIT
echo "$package"
