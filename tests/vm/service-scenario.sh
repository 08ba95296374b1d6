#!/bin/bash
# Installs the package in a machine with systemd, uses the service through its sockets, restarts it under load, and
# purges it. Runs as root. Prints sections that begin with `==`.
cd /tmp
units="atoll.service atoll-control.socket atoll-grpc.socket atoll-http.socket atoll-metrics.socket"
ask() { curl -s -S --max-time 300 -d @/guest/request.json http://127.0.0.1:8000/v2/models/affine/infer 2>&1; }
answers() { cat answers-* 2>/dev/null | wc -l; }
more() {
    local before
    before=$(answers)
    until [ "$(answers)" -gt $((before + 5)) ] || compgen -G 'failures-*' >/dev/null; do sleep 0.2; done
}

echo "== install"
dpkg -i /guest/atoll.deb
install -o atoll -g atoll -m 644 /guest/affine.kg /var/lib/atoll/models/affine.kg
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
