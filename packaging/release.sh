#!/usr/bin/env bash
# Builds archives with the program, for systems without a package of it, in the folder $ATOLL_ARCHIVES (default:
# target/archives), and prints their paths:
#
#   packaging/release.sh [full|runtime]...     both if none is named
#
# `full` has LLVM inside. `runtime` has no LLVM: it serves bundles, and compiles for NVIDIA GPUs alone. The programs need
# only the C and C++ libraries of the system. `make release` runs this script after tools/setup.sh; `full` needs LLVM 22
# with its static libraries (Debian's packages llvm-22-dev, zlib1g-dev, libzstd-dev and libffi-dev).
set -euo pipefail
cd "$(dirname "$0")/.."

archives=${ATOLL_ARCHIVES:-target/archives}
built=$archives/release
llvm=${LLVM_SYS_221_PREFIX:-/usr/lib/llvm-22}
# The libraries of the system that a program or library of an archive may need.
system_libraries='^(libc|libm|libgcc_s|libstdc\+\+|ld-linux-x86-64)\.so\.[0-9]+$'
# What is built. `full` also has the driver that runs kernels on the CPU, which needs LLVM.
packages="atoll atoll-interpose atoll-cudart atoll-cublas atoll-cudnn atoll-ring-c"
runtime_features=atoll/compiler,atoll/cuda,atoll/hip

source packaging/files.sh
say() { printf 'release: %s\n' "$*" >&2; }

# static_llvm FOLDER: an LLVM without its shared library, and with static ones of the libraries that it uses. The crate
# llvm-sys asks `llvm-config` for the shared library first, and links the static ones if there is none. Polly is in another
# package, and not needed.
static_llvm() {
    mkdir -p "$1/bin" "$1/lib"
    ln -sf "$llvm"/lib/*.a $(for name in z zstd ffi; do cc -print-file-name=lib$name.a; done) "$1/lib/"
    cat >"$1/bin/llvm-config" <<SCRIPT
#!/bin/sh
case " \$* " in
*' --link-shared '*) echo 'no shared library' >&2; exit 1 ;;
*' --libdir '*) echo '$1/lib' ;;
*' --system-libs '*) echo '-lz -lzstd -lffi -lm' ;;
*' --libnames '*) '$llvm/bin/llvm-config' "\$@" | sed 's/libPolly[^ ]*//g' ;;
*) exec '$llvm/bin/llvm-config' "\$@" ;;
esac
SCRIPT
    chmod 755 "$1/bin/llvm-config"
}

# build PACKAGES OPTION...
build() { cargo build --quiet --release --locked --target-dir "$archives" $(printf -- '-p %s ' $1) "${@:2}"; }

# version PACKAGE: the version of a library of the system.
version() { dpkg-query --show --showformat '${Version}' "$1"; }

# bill OPTION...: the bill of materials.
bill() { packaging/sbom.py "$@" >"$root/$name/share/doc/atoll/atoll.spdx.json"; }

install_full() {
    local all="$packages atoll-stand-in-cuda" package
    [ -f "$llvm/lib/libLLVMCore.a" ] || { say "$llvm has no static LLVM 22 (llvm-22-dev)"; exit 1; }
    static_llvm "$(realpath "$archives")/llvm"
    LLVM_SYS_221_PREFIX=$(realpath "$archives")/llvm build "$all"
    install_program "$built" "$name"
    # The libraries of the system that are inside.
    bill --packages "$all" --library "LLVM=$("$llvm/bin/llvm-config" --version)=Apache-2.0 WITH LLVM-exception" \
        --library "zlib=$(version zlib1g-dev)=Zlib" --library "zstd=$(version libzstd-dev)=BSD-3-Clause" \
        --library "libffi=$(version libffi-dev)=MIT"
    for package in llvm-22-dev zlib1g-dev libzstd-dev libffi-dev; do
        install_as 644 "/usr/share/doc/$package/copyright" "$name/share/doc/atoll/copyright.$package"
    done
}

install_runtime() {
    # Of another run.
    rm -f "$built/libatoll_stand_in_cuda.so"
    build "$packages" --no-default-features --features "$runtime_features"
    install_program "$built" "$name"
    bill --packages "$packages" --features "$runtime_features"
}

# Ends the script if a file of the archive needs another library than those of the system.
check_libraries() {
    local file needed
    for file in "$root/$name/lib/atoll/atoll" $(find "$root/$name" -name '*.so'); do
        needed=$(readelf --dynamic --wide "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]$/\1/p' | grep -Ev "$system_libraries" || true)
        [ -z "$needed" ] || { say "$(basename "$file") needs" $needed; exit 1; }
    done
}

# pack ARCHIVE: the order, owners and times of its files are the same wherever it is made.
pack() {
    tar --create --sort=name --owner=0 --group=0 --numeric-owner --mode=u+w,go=rX --directory "$root" \
        --mtime "@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}" "$name" | xz --threads=2 >"$1"
    echo "$1"
}

mkdir -p "$archives"
for kind in ${*:-full runtime}; do
    case $kind in
    full) archive=atoll-x86_64-linux ;;
    runtime) archive=atoll-runtime-x86_64-linux ;;
    *) say "unknown archive '$kind'; it is full or runtime"; exit 2 ;;
    esac
    name=atoll-$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -1)
    root=$(mktemp -d)
    trap 'rm -rf "$root"' EXIT
    say "building $archive"
    "install_$kind"
    check_libraries
    pack "$archives/$archive.tar.xz"
    rm -rf "$root"
done
