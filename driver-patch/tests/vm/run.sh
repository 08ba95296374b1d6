#!/usr/bin/env bash
# Calls the ioctls in a virtual machine: run.sh FOLDER. Builds kfd_atoll.c as it is into a module without a driver, for
# Debian's kernel, and boots that kernel with it. Kernel and headers are kept in FOLDER. Exits with 77 if a tool, a
# package or QEMU is missing here.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
mkdir -p "$1"
folder=$(realpath "$1")

missing() {
    echo "run.sh: $*" >&2
    exit 77
}
for tool in qemu-system-x86_64 cpio apt-get make cc; do
    command -v "$tool" >/dev/null || missing "no $tool here"
done

# The package that a metapackage depends on has the version of the kernel in its name.
depends() { apt-cache depends "$1" 2>/dev/null | sed -n 's/^ *Depends: \(linux-[^ ]*\)$/\1/p'; }
image=$(depends linux-image-cloud-amd64 | head -1)
headers=$(depends linux-headers-cloud-amd64 | head -1)
[ -n "$image" ] && [ -n "$headers" ] || missing "no packages of Debian's kernel here"
release=${image#linux-image-}
root=$folder/$release
if [ ! -e "$root/.done" ]; then
    rm -rf "$root" && mkdir -p "$root"
    # The packages of headers depend on the common ones and on the programs of the build.
    mapfile -t packages < <(depends "$headers" | grep -E -- '-common$|kbuild')
    (
        cd "$root"
        apt-get download -q "$image" "$headers" "${packages[@]}" && for package in *.deb; do dpkg -x "$package" .; done
    ) >"$folder/apt.log" 2>&1 || missing "the packages of $release cannot be downloaded"
    rm "$root"/*.deb
    # The headers name their folder.
    sed -i "s|/usr/src|$root/usr/src|" "$root/usr/src/$headers/Makefile"
    touch "$root/.done"
fi

build=$folder/build
rm -rf "$build" && mkdir -p "$build/module" "$build/initramfs"
cp "$here"/main.c "$here"/shim/kfd_priv.h "$here"/../../src/kfd_atoll* "$here"/../../abi/atoll_kfd.h "$build/module/"
printf 'obj-m := kfd_atoll_test.o\nkfd_atoll_test-y := main.o kfd_atoll.o\nccflags-y := -I$(src) -Werror\n' \
    >"$build/module/Kbuild"
make -C "$root/usr/src/$headers" -j1 M="$build/module" modules >"$folder/build.log" 2>&1 ||
    { tail -20 "$folder/build.log" >&2; exit 1; }
cc -std=gnu11 -Wall -Wextra -Werror -O1 -static -I"$here/../../abi" -o "$build/initramfs/init" "$here/init.c"
cp "$build/module/kfd_atoll_test.ko" "$build/initramfs/"
(cd "$build/initramfs" && find . | cpio --quiet -o -H newc) >"$build/initramfs.cpio"

timeout "${ATOLL_VM_SECONDS:-900}" qemu-system-x86_64 -machine accel=tcg -cpu max -m 256M -nographic -no-reboot -net none \
    -kernel "$root/boot/vmlinuz-$release" -initrd "$build/initramfs.cpio" \
    -append "console=ttyS0 quiet panic=-1" </dev/null >"$folder/console.log" 2>&1 || true
grep -a "^driver-patch vm:" "$folder/console.log" | tr -d '\r' || true
grep -aq "^driver-patch vm: [0-9]* checks, 0 failed" "$folder/console.log" || { tail -30 "$folder/console.log" >&2; exit 1; }
