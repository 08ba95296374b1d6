#!/usr/bin/env bash
# Builds the Debian package from a folder of build outputs (default: target/release); `make deb` builds both. Prints the
# package's path. Needs python3, dpkg-deb and dpkg-shlibdeps, which finds the packages of the libraries that the program
# needs. With `--tree FOLDER` in front it leaves the package's files in that folder, which must not exist, and packs nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."

tree=
if [ "${1:-}" = --tree ]; then
    tree=$2
    shift 2
fi
built=${1:-target/release}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -1)
architecture=$(dpkg --print-architecture)
root=$(mktemp -d)
chmod 755 "$root"
trap 'rm -rf "$root"' EXIT
source packaging/files.sh

install_program "$built" usr

# The Python package. Its program is the one of this package.
if [ -f "$built/libatoll_python.so" ]; then
    packages=usr/lib/python3/dist-packages/atoll
    for file in integrations/python/python/atoll/{*.py,*.pyi,py.typed}; do
        install_as 644 "$file" "$packages/$(basename "$file")"
    done
    install_stripped 644 "$built/libatoll_python.so" "$packages/_native.abi3.so"
fi

deb=packaging/deb
for unit in atoll.service atoll-http.socket atoll-grpc.socket atoll-metrics.socket atoll-control.socket; do
    install_as 644 "$deb/$unit" "lib/systemd/system/$unit"
done
install_as 644 "$deb/atoll.tmpfiles" usr/lib/tmpfiles.d/atoll.conf
install_as 644 "$deb/atoll.sysusers" usr/lib/sysusers.d/atoll.conf
install_as 644 "$deb/atoll.default" etc/default/atoll
install_as 644 "$deb/atoll.toml" etc/atoll/atoll.toml
# The bill of materials: the crates that the programs and libraries of the package are built from.
packaging/sbom.py >"$root/usr/share/doc/atoll/atoll.spdx.json"
chmod 644 "$root/usr/share/doc/atoll/atoll.spdx.json"

# The packages of the libraries that the programs need.
mkdir -p "$root/debian"
printf 'Source: atoll\n\nPackage: atoll\nArchitecture: any\n' >"$root/debian/control"
programs=("$root/usr/lib/atoll/atoll" $(find "$root/usr/lib" -name '*.so'))
depends=$(cd "$root" && dpkg-shlibdeps -O --ignore-missing-info "${programs[@]}" 2>/dev/null | sed 's/^shlibs:Depends=//')
rm -r "$root/debian"

mkdir "$root/DEBIAN"
printf '/etc/atoll/atoll.toml\n/etc/default/atoll\n' >"$root/DEBIAN/conffiles"
for script in postinst prerm postrm; do install_as 755 "$deb/$script" "DEBIAN/$script"; done
cat >"$root/DEBIAN/control" <<CONTROL
Package: atoll
Version: $version
Architecture: $architecture
Maintainer: The Atoll project <atoll@localhost>
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Depends: $depends
Suggests: lld-22, python3-numpy
Section: science
Priority: optional
Description: deep-learning models as preemptible functions on shared GPUs
 Atoll compiles models (ONNX, PTX) into preemptible kernel graphs and serves them
 over HTTP and gRPC (KServe v2): a real-time request gets the device within
 microseconds, best-effort work fills what is left. Runs on NVIDIA GPUs and on the
 CPU.
CONTROL

if [ -n "$tree" ]; then
    mv "$root" "$tree"
    exit
fi
package="${built}/atoll_${version}_${architecture}.deb"
dpkg-deb --root-owner-group -Zxz --build "$root" "$package" >/dev/null
echo "$package"
