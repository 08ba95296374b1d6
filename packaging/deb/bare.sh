# For scripts that work in a bare Debian 12 (check.sh, ../check-archive.sh, ../container/check.sh, tests/vm/service.sh), which source it. Needs root and debootstrap.

# bare_system FOLDER PACKAGES: makes the system in the folder, once.
bare_system() {
    [ ! -f "$1/etc/debian_version" ] || return 0
    say "making a bare Debian 12 (once)"
    rm -rf "$1.new"
    mkdir -p "$(dirname "$1")"
    debootstrap --variant=minbase --include="$2" bookworm "$1.new" >"$1.log" 2>&1 || { tail -5 "$1.log" >&2; exit 1; }
    mv "$1.new" "$1"
}

# bare_view FOLDER: makes a writable view of the system, $root, in the folder $work. Both vanish with this script, which
# has to run in a mount namespace of its own.
bare_view() {
    work=$(mktemp -d)
    trap 'umount -R "$work" 2>/dev/null || true; rmdir "$work" 2>/dev/null || true' EXIT
    mount -t tmpfs -o mode=755 tmpfs "$work"
    mkdir "$work"/{upper,work,root}
    mount -t overlay -o "lowerdir=$1,upperdir=$work/upper,workdir=$work/work" overlay "$work/root"
    root=$work/root
    mount -t proc proc "$root/proc"
    mount --bind /dev "$root/dev"
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    # The same mirrors as this machine, with security updates, which have LLVM.
    rm -rf "$root/etc/apt/sources.list.d" && mkdir "$root/etc/apt/sources.list.d"
    cp -r /etc/apt/sources.list /etc/apt/sources.list.d /etc/apt/apt.conf.d "$root/etc/apt/" 2>/dev/null || true
}

# enter_bare_view FOLDER ARGUMENTS: starts this script again, with the arguments, in a mount namespace of its own, and
# makes a writable view of the system in the folder there.
enter_bare_view() {
    local system=$1
    shift
    bare_system "$system" ca-certificates
    if [ "${ATOLL_CHECK_INSIDE:-}" != 1 ]; then exec env ATOLL_CHECK_INSIDE=1 unshare --mount --pid --fork --kill-child "$0" "$@"; fi
    bare_view "$system"
}

# Runs a command in the view.
inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }

# Runs apt-get in the view. Prints its output if it fails.
apt() { inside apt-get -y -q "$@" >"$work/log" 2>&1 || { tail -20 "$work/log" >&2; exit 1; }; }

# wait_for_model NAME PORT PROCESS: waits until the daemon on this port is ready. Ends the script if the process ends, or
# if the model is not ready then.
wait_for_model() {
    local model=$1 port=$2 daemon=$3
    ask() { exec 3<>"/dev/tcp/127.0.0.1/$port" && printf 'GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' "$1" >&3 && cat <&3; }
    for _ in $(seq 300); do
        if ask /v2/health/ready 2>/dev/null | grep -q '^HTTP/1.1 200'; then break; fi
        kill -0 "$daemon" 2>/dev/null || { say "the daemon has ended"; exit 1; }
        sleep 0.2
    done
    ask "/v2/models/$model/ready" | head -1 | grep -q 200 || { say "the model is not ready"; exit 1; }
}
