#!/bin/bash
# Installs the package in a machine with systemd, uses the service through its sockets, restarts it under load, hangs and
# kills it, changes its keys, stops it during a request, and purges it. Runs as root. Prints sections that begin with `==`.
cd /tmp
units="atoll.service atoll-control.socket atoll-grpc.socket atoll-http.socket atoll-metrics.socket"
ask() { curl -s -S --max-time 300 -d @/guest/request.json http://127.0.0.1:8000/v2/models/affine/infer 2>&1; }
answers() { cat answers-* 2>/dev/null | wc -l; }
more() {
    local before
    before=$(answers)
    until [ "$(answers)" -gt $((before + 5)) ] || compgen -G 'failures-*' >/dev/null; do sleep 0.2; done
}

property() { systemctl show -p "$1" --value atoll.service; }
# Waits until a command succeeds.
await() {
    for _ in $(seq 600); do
        if "$@"; then return 0; fi
        sleep 0.2
    done
    echo "waited in vain: $*"
    return 1
}
restarted() { [ "$(property NRestarts)" -gt "$1" ] && [ "$(property ActiveState)" = active ]; }

echo "== install"
dpkg -i /guest/atoll.deb
install -o atoll -g atoll -m 644 /guest/affine.kg /guest/grind.kg /var/lib/atoll/models/
systemctl restart atoll.service
echo "== units"
systemctl is-active $units
systemctl is-enabled $units
systemctl show -p StatusText -p Type -p Delegate -p User atoll.service
echo "== request"
ask
echo
atoll ps
curl -s http://127.0.0.1:8002/v2/health/ready
echo
echo "== load"
for client in 1 2 3; do
    while [ ! -e over ]; do
        answer=$(ask)
        case $answer in
            *'[4.0,7.0]'*) echo yes >>answers-$client ;;
            *) echo "$answer" >>failures-$client ;;
        esac
    done &
done
more
for _ in 1 2 3; do
    systemctl restart atoll.service
    more
done
touch over
wait
echo "answers: $(answers)"
cat failures-* 2>/dev/null
echo "== started by a connection"
systemctl stop atoll.service
systemctl is-active atoll.service
ask
echo
systemctl is-active atoll.service
echo "== own ports"
# Without the socket unit the daemon binds the port itself.
systemctl stop atoll-http.socket atoll.service
systemctl start atoll.service
systemctl is-active atoll-http.socket
ask
echo
echo "== log"
journalctl -u atoll.service -o cat --no-pager
echo "== watchdog"
# A sign of life twice in ten seconds. A daemon that hangs is killed and started again.
mkdir -p /etc/systemd/system/atoll.service.d
printf '[Service]\nWatchdogSec=10\nTimeoutAbortSec=5\n' >/etc/systemd/system/atoll.service.d/watchdog.conf
systemctl daemon-reload
systemctl restart atoll.service
first=$(property WatchdogTimestampMonotonic)
later() { [ "$(property WatchdogTimestampMonotonic)" -gt "$first" ]; }
if await later; then echo "there are signs of life"; fi
systemctl show -p NRestarts -p WatchdogUSec atoll.service
kill -STOP "$(property MainPID)"
if await restarted 0; then echo "started again"; fi
journalctl -u atoll.service -o cat --no-pager | grep -m 1 -o 'Watchdog timeout'
ask
echo
echo "== killed"
before=$(property NRestarts)
kill -KILL "$(property MainPID)"
if await restarted "$before"; then echo "started again"; fi
ask
echo
echo "== drained"
# A request that takes some seconds: how much work that is depends on the machine.
grind() {
    curl -s --max-time 300 http://127.0.0.1:8000/v2/models/grind/infer -d '{"inputs":[
        {"name":"x","datatype":"UINT32","shape":[1],"data":[1]},
        {"name":"times","datatype":"UINT32","shape":[1],"data":['"$1"']}]}'
}
times=1000
while :; do
    began=$(date +%s%N)
    grind $times >/dev/null
    if [ $(($(date +%s%N) - began)) -ge 2000000000 ] || [ $times -gt 1000000000 ]; then break; fi
    times=$((times * 3))
done
grind $times >slow &
slow=$!
sleep 0.5
systemctl stop --no-block atoll.service
for _ in $(seq 600); do
    systemctl show -p SubState -p StatusText atoll.service
    if [ "$(property ActiveState)" = inactive ]; then break; fi
    sleep 0.05
done | sort -u
wait $slow
cat slow
echo
echo "== keys"
# The daemon reads keys at a reload, and requests need one of them.
echo 'auth_keys = "/etc/atoll/keys.json"' >>/etc/atoll/atoll.toml
key() {
    atoll auth create --config /etc/atoll/atoll.toml --tenant local >"$1"
    chown atoll:atoll /etc/atoll/keys.json
}
status() {
    curl -s -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $(cat "$1")" -d @/guest/request.json \
        http://127.0.0.1:8000/v2/models/affine/infer
}
accepts() { [ "$(status "$1")" = 200 ]; }
refuses() { [ "$(status "$1")" = 401 ]; }
key one
systemctl restart atoll.service
pid=$(property MainPID)
key two
echo "before the reload: $(status one) $(status two)"
systemctl reload atoll.service
if await accepts two; then echo "after the reload: $(status one) $(status two)"; fi
atoll auth revoke --config /etc/atoll/atoll.toml "$(cut -d_ -f2 one)"
chown atoll:atoll /etc/atoll/keys.json
systemctl reload atoll.service
if await refuses one; then echo "after the revocation: $(status one) $(status two)"; fi
if [ "$(property MainPID)" = "$pid" ]; then echo "the same process"; fi
rm -r /etc/systemd/system/atoll.service.d
systemctl daemon-reload
echo "== purge"
dpkg --purge atoll 2>&1
echo "== left"
systemctl list-units --all --no-legend --plain 'atoll*'
find / -xdev -name '*atoll*' -not -path '/proc/*' -not -path '/guest/*'
for path in /run/atoll /run/atoll.sock /etc/atoll /var/lib/atoll /var/cache/atoll; do [ ! -e $path ] || echo $path; done
getent passwd atoll
getent group atoll
curl -s http://127.0.0.1:8000/ && echo "the port is still served"
echo "== end"
# The serial port sends what is left.
sleep 2
