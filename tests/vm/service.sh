#!/usr/bin/env bash
# Makes the initramfs of the test of the installed service: service.sh OUTPUT PACKAGE.deb FILE... The machine is a bare
# Debian 12 with systemd and what the package depends on; the package, the files and the scenario lie in its /guest.
# Needs root, debootstrap, busybox and cpio. The bare system is kept in $ATOLL_CACHE and not changed.
set -euo pipefail

output=$(realpath -m "$1") package=$(realpath "$2")
here=$(dirname "$(realpath "$0")")
base=${ATOLL_CACHE:-$HOME/.cache/atoll}/debian-12-systemd
say() { printf 'service.sh: %s\n' "$*" >&2; }

source "$here/../../packaging/deb/bare.sh"
bare_system "$base" ca-certificates,curl,dbus,systemd,systemd-sysv

# A writable view of it, in a mount namespace of this script.
if [ "${ATOLL_VIEW_INSIDE:-}" != 1 ]; then exec env ATOLL_VIEW_INSIDE=1 unshare --mount --pid --fork --kill-child "$0" "$@"; fi
bare_view "$base"

# What the package depends on; the machine itself has no network.
apt update
apt satisfy --no-install-recommends "$(dpkg-deb -f "$package" Depends)"
inside apt-get clean
rm -rf "$root"/var/lib/apt/lists/*

mkdir "$root/guest"
cp "$package" "$root/guest/atoll.deb"
shift 2
cp "$@" "$here/service-scenario.sh" "$root/guest/"
cat >"$root/etc/systemd/system/scenario.service" <<'UNIT'
[Unit]
Description=The scenario
After=multi-user.target

[Service]
Type=oneshot
ExecStart=/bin/bash /guest/service-scenario.sh
StandardOutput=file:/dev/ttyS0
StandardError=file:/dev/ttyS0
# In any case the machine ends.
ExecStopPost=/bin/systemctl poweroff --force --force
TimeoutStartSec=infinity
UNIT
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -s ../scenario.service "$root/etc/systemd/system/multi-user.target.wants/scenario.service"
ln -sf /lib/systemd/system/multi-user.target "$root/etc/systemd/system/default.target"
# A login prompt would take the port that the scenario prints to.
ln -s /dev/null "$root/etc/systemd/system/serial-getty@ttyS0.service"
umount "$root/dev" "$root/proc"

# The first program unpacks the system into memory and becomes its systemd. (An initramfs itself cannot be the root of
# services with file systems of their own.)
machine=$work/machine
mkdir -p "$machine"/{bin,dev,proc,root}
cp "$(command -v busybox)" "$machine/bin/busybox"
ldd "$machine/bin/busybox" 2>/dev/null | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$machine/$(dirname "$library")"
    cp -Lu "$library" "$machine/$library"
done || true
tar -C "$root" -cf "$machine/system.tar" .
cat >"$machine/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t proc proc /proc
echo 1 >/proc/sys/kernel/printk
/bin/busybox mount -t tmpfs -o mode=755,size=80% root /root
/bin/busybox tar -xf /system.tar -C /root
/bin/busybox rm /system.tar
/bin/busybox umount /proc
/bin/busybox umount /dev
exec /bin/busybox switch_root /root /lib/systemd/systemd
INIT
chmod 755 "$machine/init"
(cd "$machine" && find . | cpio --quiet -o -H newc) >"$output"
