#!/usr/bin/env bash
# Checks the driver patch without a GPU: check.sh [VERSION...], all versions by default; check.sh --quick does only 1.
#
# 1. The checks of the ioctls' arguments, compiled for user space.
# 2. For each version: apply.sh on the source of Debian's package linux-source-VERSION, without fuzz; then the objects
#    that the patch touches are compiled with W=1. A warning in one of their files is a failure.
# 3. The ioctls in a virtual machine, in a module without the driver (tests/vm).
#
# Sources and build outputs stay in $ATOLL_CACHE/driver-patch (2 GB). Nothing is installed. What cannot
# be had is skipped with a line that begins with SKIPPED. All of it runs at idle priority, one process at a time.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
cache=${ATOLL_CACHE:-$HOME/.cache/atoll}/driver-patch
mkdir -p "$cache"
cache=$(realpath "$cache")
passed=0 failed=0 skipped=0

say() { printf 'driver-patch: %s\n' "$*"; }
pass() { say "ok: $*"; passed=$((passed + 1)); }
fail() { say "FAILED: $*" >&2; failed=$((failed + 1)); }
skip() { echo "SKIPPED driver-patch: $*"; skipped=$((skipped + 1)); }
if [ -z "${ATOLL_CHECK_IDLE:-}" ] && chrt -i 0 true 2>/dev/null; then
    export ATOLL_CHECK_IDLE=1
    exec chrt -i 0 nice -n 19 "$0" "$@"
fi

kfd=drivers/gpu/drm/amd/amdkfd
objects=(kfd_atoll.o kfd_chardev.o kfd_device_queue_manager.o)
touched='kfd_atoll[a-z_]*\.[ch]|atoll_kfd\.h|kfd_chardev\.c|kfd_device_queue_manager\.c'

check_arguments() {
    local program=$cache/checks
    if ! command -v cc >/dev/null; then
        skip "no C compiler here"
    elif cc -std=gnu11 -Wall -Wextra -Werror -fsanitize=undefined -fno-sanitize-recover -I"$here/abi" -I"$here/src" \
        -o "$program" "$here/tests/checks.c" && "$program"; then
        pass "checks of the arguments"
    else
        fail "checks of the arguments"
    fi
}

# Packages of programs that the kernel's build needs, in a folder of the cache.
tools() {
    local missing=()
    command -v flex >/dev/null || missing+=(flex)
    command -v bison >/dev/null || missing+=(bison)
    command -v m4 >/dev/null || missing+=(m4 libsigsegv2)
    [ -e /usr/include/gelf.h ] || missing+=(libelf-dev libelf1)
    command -v make >/dev/null && command -v bc >/dev/null && command -v patch >/dev/null || return 1
    [ ${#missing[@]} != 0 ] || return 0
    local root=$cache/tools
    if [ ! -e "$root/.done" ]; then
        rm -rf "$root" && mkdir -p "$root"
        (cd "$root" && apt-get download -q "${missing[@]}" && for package in *.deb; do dpkg -x "$package" .; done) \
            >"$cache/tools.log" 2>&1 || return 1
        rm "$root"/*.deb
        touch "$root/.done"
    fi
    export PATH="$root/usr/bin:$PATH" BISON_PKGDATADIR="$root/usr/share/bison"
    local libraries=$root/usr/lib/$(uname -m)-linux-gnu
    export LD_LIBRARY_PATH="$libraries" LIBRARY_PATH="$libraries" C_INCLUDE_PATH="$root/usr/include"
    [ -x "$root/usr/bin/m4" ] && export M4="$root/usr/bin/m4"
    return 0
}

# Unpacks the source of a version into $cache/VERSION/linux: what the build of the driver reads, without other drivers.
source_of() {
    local version=$1 folder=$cache/$1 package=linux-source-$1 candidate
    candidate=$(apt-cache policy "$package" 2>/dev/null | sed -n 's/^ *Candidate: //p')
    if [ -e "$folder/package" ] && { [ -z "$candidate" ] || [ "$candidate" = "$(cat "$folder/package")" ]; }; then
        return 0
    fi
    [ -n "$candidate" ] && [ "$candidate" != "(none)" ] || return 1
    say "unpacking $package $candidate (150 MB)"
    rm -rf "$folder" && mkdir -p "$folder/linux"
    (
        cd "$folder"
        apt-get download -q "$package" >apt.log 2>&1
        dpkg -x "$package"_*.deb .
        tar -xJf "usr/src/$package.tar.xz" -C linux --strip-components=1 --wildcards \
            --exclude='*/arch/[!x]*.[chS]' --exclude='*.dts*' --exclude='*/Documentation/*.rst' \
            --exclude='*/drivers/[!g]*.c' --exclude='*/drivers/gpu/drm/[!a]*.c' --exclude='*/sound/*.c' \
            --exclude='*/net/*.c' --exclude='*/fs/*.c' --exclude='*/tools/testing/*' --exclude='*/tools/perf/*'
        rm -rf ./*.deb usr
        cp -a "linux/$kfd" amdkfd.orig
    ) || return 1
    echo "$candidate" >"$folder/package"
}

check_patch() {
    local version=$1 folder=$cache/$1 linux=$cache/$1/linux other copy
    rm -rf "${linux:?}/$kfd" && cp -a "$folder/amdkfd.orig" "$linux/$kfd"
    copy=$folder/copy
    for other in "$here"/linux-*.patch; do
        other=${other##*/linux-} other=${other%.patch}
        [ "$other" != "$version" ] || continue
        rm -rf "$copy" && mkdir -p "$copy/$(dirname $kfd)" && cp -a "$folder/amdkfd.orig" "$copy/$kfd"
        if "$here/apply.sh" "$other" "$copy" >/dev/null 2>&1; then
            fail "the patch for $other applies to $version"
        elif diff -r "$folder/amdkfd.orig" "$copy/$kfd" >/dev/null; then
            pass "$version: the patch for $other is refused and leaves the source as it was"
        else
            fail "$version: the patch for $other is refused but changed the source"
        fi
    done
    rm -rf "$copy"
    if "$here/apply.sh" "$version" "$linux"; then
        pass "$version: applies to $(cat "$folder/package") without fuzz"
    else
        fail "$version: does not apply to $(cat "$folder/package")"
        return 1
    fi
    if "$here/apply.sh" "$version" "$linux" >/dev/null 2>&1; then
        fail "$version: applies twice"
    else
        pass "$version: is refused where it is applied already"
    fi
}

# Configures the kernel and makes what objects of modules need. Done once for a source and a configuration.
prepare() {
    local folder=$cache/$1 linux=$cache/$1/linux stamp option
    stamp="$(cat "$folder/package") $(cksum <"$here/check.config")"
    [ "$(cat "$folder/prepared" 2>/dev/null)" != "$stamp" ] || return 0
    say "$1: preparing the kernel's build"
    make -C "$linux" -j1 ARCH=x86_64 KCONFIG_ALLCONFIG="$here/check.config" allnoconfig >"$folder/prepare.log" 2>&1 &&
        make -C "$linux" -j1 ARCH=x86_64 prepare >>"$folder/prepare.log" 2>&1 ||
        { tail -15 "$folder/prepare.log" >&2; return 1; }
    for option in $(sed -n 's/^\(CONFIG_[A-Z0-9_]*=.*\)/\1/p' "$here/check.config"); do
        grep -qx "$option" "$linux/.config" || { say "$1: the kernel has no $option" >&2; return 1; }
    done
    echo "$stamp" >"$folder/prepared"
}

check_objects() {
    local version=$1 folder=$cache/$1 linux=$cache/$1/linux log=$cache/$1/build.log targets
    targets=("${objects[@]/#/drivers/gpu/drm/amd/amdgpu/../amdkfd/}")
    if ! make -C "$linux" -j1 ARCH=x86_64 W=1 "${targets[@]}" >"$log" 2>&1; then
        grep -E 'error|\*\*\*' "$log" | head -20 >&2
        fail "$version: the driver does not compile ($log)"
    elif grep -E "($touched):[0-9]+.*warning:" "$log" >&2; then
        fail "$version: warnings in files that the patch touches ($log)"
    else
        for object in "${objects[@]}"; do
            [ -e "$linux/$kfd/$object" ] || { fail "$version: $object was not built"; return; }
        done
        pass "$version: ${objects[*]} compile without a warning"
    fi
}

check_arguments
versions=("$@")
if [ "${1:-}" = --quick ]; then
    say "$passed passed, $failed failed, $skipped skipped"
    exit $((failed != 0))
fi
[ $# != 0 ] || mapfile -t versions < <(cd "$here" && ls linux-*.patch | sed 's/linux-\(.*\)\.patch/\1/' | sort -V)
if [ "$(uname -m)" != x86_64 ] || ! tools; then
    skip "no tools to build a kernel for x86_64 here; the patch was not applied"
    versions=()
fi
for version in "${versions[@]}"; do
    if ! source_of "$version"; then
        skip "no source of Linux $version here (package linux-source-$version); its patch was not applied"
    elif check_patch "$version"; then
        if prepare "$version"; then check_objects "$version"; else fail "$version: cannot prepare the kernel's build"; fi
    fi
done
status=0
if [ $# = 0 ]; then "$here/tests/vm/run.sh" "$cache/vm" || status=$?; else status=none; fi
case $status in
0) pass "the ioctls in a virtual machine" ;;
77) skip "the ioctls were not called in a virtual machine" ;;
none) ;;
*) fail "the ioctls in a virtual machine" ;;
esac
say "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
