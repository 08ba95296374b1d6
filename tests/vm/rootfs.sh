#!/usr/bin/env bash
# Makes the initramfs of the test of control groups: rootfs.sh OUTPUT PROGRAM FILE... The program is the daemon and its
# clients; the files (bundles) lie in /guest of the machine. Needs busybox, cpio and strip.
set -euo pipefail
output=$(realpath -m "$1") program=$2
shift 2
here=$(dirname "$(realpath "$0")")

root=$(mktemp -d)
chmod 755 "$root"
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{bin,sbin,dev,proc,sys,tmp,etc,guest,usr/bin}
cp "$(command -v busybox)" "$root/bin/busybox"
for name in sh mount cat echo sleep ip su wget chown mkdir ls grep tail wc kill dmesg poweroff tr sed rm touch date head; do
    ln -s busybox "$root/bin/$name"
done
strip -o "$root/bin/atoll" "$program"
# The libraries that the programs need, where they look for them.
for file in "$root/bin/atoll" "$root/bin/busybox"; do
    { ldd "$file" 2>/dev/null | grep -o '/[^ ]*' || true; } | while read -r library; do
        mkdir -p "$root/$(dirname "$library")"
        cp -Lu "$library" "$root/$library"
    done
done
cp "$here/init.sh" "$root/init"
cp "$here"/{daemon.sh,scenario.sh,atoll.toml} "$@" "$root/guest/"
chmod 755 "$root/init"
printf 'root:x:0:0::/:/bin/sh\natoll:x:1000:1000::/tmp:/bin/sh\n' >"$root/etc/passwd"
printf 'root:x:0:\natoll:x:1000:\n' >"$root/etc/group"
(cd "$root" && find . | cpio --quiet -o -H newc) >"$output"
