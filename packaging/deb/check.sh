#!/usr/bin/env bash
# Installs a package in a bare Debian 12, serves a model as the package's unit does, and purges it:
#   packaging/deb/check.sh PACKAGE.deb MODEL.onnx
# Needs root and debootstrap. The bare system is kept in $ATOLL_CACHE and not changed.
set -euo pipefail

package=$(realpath "$1") model=$(realpath "$2")
base=${ATOLL_CACHE:-$HOME/.cache/atoll}/debian-12
say() { printf 'check: %s\n' "$*"; }

source "$(dirname "$(realpath "$0")")/bare.sh"
enter_bare_view "$base" "$package" "$model"
mkdir "$root/package" && cp "$package" "$root/package/atoll.deb" && cp "$model" "$root/package/model.onnx"
files() { (cd "$root" && find . -xdev -name '*atoll*' -not -path './proc/*' -not -path './dev/*' | sort); }

say "installing"
apt update
apt install --no-install-recommends /package/atoll.deb
inside atoll --version
inside getent passwd atoll >/dev/null || { say "no user atoll"; exit 1; }
inside test -e /usr/share/man/man1/atoll-serve.1.gz || inside test -e /etc/dpkg/dpkg.cfg.d/docker

say "serving as the unit does"
command=$(sed -n 's/^ExecStart=//p' "$root/lib/systemd/system/atoll.service" | sed 's/ \$ATOLL_OPTIONS$//')
for folder in /var/lib/atoll/models /var/lib/atoll/state /var/cache/atoll /run/atoll; do
    inside install -d -o atoll -g atoll "$folder"
done
inside install -o atoll -g atoll -m 644 /package/model.onnx /var/lib/atoll/models/null.onnx
(exec chroot "$root" env -i PATH=/usr/bin setpriv --reuid atoll --regid atoll --clear-groups $command --http-port 18000 --no-grpc --metrics-port 18002) &
daemon=$!
wait_for_model null 18000 "$daemon"
inside env ATOLL_CONTROL_SOCKET=/run/atoll/control.sock atoll ps
kill "$daemon"
wait "$daemon"
say "stopped, with status 0"

say "purging"
apt purge atoll
left=$(files | grep -v '^./package' || true)
[ -z "$left" ] || { say "left behind:"; echo "$left"; exit 1; }
! inside getent passwd atoll >/dev/null || { say "the user is left"; exit 1; }
say "nothing is left"
