#!/bin/sh
# A tenant overdraws memory while another one's requests are answered. Prints sections that begin with `==`.
export HOME=/tmp/home XDG_RUNTIME_DIR=/tmp/home XDG_CACHE_HOME=/tmp/home XDG_STATE_HOME=/tmp/home
cd /tmp/home
until [ -s ready ]; do
    if [ -s pid ] && [ ! -d "/proc/$(cat pid)" ]; then cat daemon.log; exit 1; fi
    sleep 0.1
done
daemon=$(cat pid)
echo "== deploy"
atoll fn deploy /guest/affine.kg --tenant victim
atoll fn deploy /guest/hoard.kg --tenant intruder --private

ask() {
    wget -q -O - --post-data '{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[1,2]},
        {"name":"b","datatype":"FP32","shape":[2],"data":[1,1]}]}' http://127.0.0.1:8000/v2/models/victim:affine/infer
}
echo "== victim"
ask
echo
echo "== stages"
atoll graph deploy /guest/graph.toml --tenant victim
atoll graph invoke scale x=21 --shape x=2 --tenant victim
for process in /proc/[0-9]*; do
    tr '\0' ' ' <$process/cmdline 2>/dev/null | grep -q '^atoll stages' || continue
    echo "score $(cat $process/oom_score_adj)"
    group=$(grep '^0::' $process/cgroup)
    group=/sys/fs/cgroup${group#0::}
    for file in memory.high memory.max pids.max cpu.weight; do
        [ -f $group/$file ] && echo "$file $(cat $group/$file)"
    done
done
while [ ! -e over ]; do ask | grep -q '\[4.0,7.0\]' && echo yes >>answers || echo no >>failures; sleep 0.05; done &
victim=$!
echo "== intruder"
atoll fn invoke hoard --tenant intruder 2>&1
before=$(wc -l <answers)
until [ "$(wc -l <answers)" -gt $((before + 3)) ] || [ ! -d /proc/$daemon ]; do sleep 0.1; done
touch over
wait $victim
echo "== answers"
wc -l <answers
[ ! -e failures ] || echo "failures: $(wc -l <failures)"
echo "== ps"
atoll ps
echo "== usage"
atoll usage --json
echo "== vanished"
# The group of a running executor is removed; only root can move its process out.
for group in /sys/fs/cgroup/atoll/executor-*; do
    [ -w /sys/fs/cgroup/cgroup.procs ] && [ -d "$group" ] || continue
    for process in $(cat "$group/cgroup.procs"); do echo "$process" >/sys/fs/cgroup/cgroup.procs; done
    rmdir "$group" && echo "removed"
done
sleep 1
ask
echo
atoll ps
echo "== refused"
# From here on the kernel refuses further groups.
limit=/sys/fs/cgroup/atoll/cgroup.max.descendants
if [ -w $limit ]; then
    echo 0 >$limit
    atoll fn deploy /guest/affine.kg --tenant late
    atoll fn invoke affine x=1 b=1 --shape x=2 --tenant late
    atoll ps | grep late
fi
echo "== scores"
echo "daemon $(cat /proc/$daemon/oom_score_adj)"
# An executor that has just begun has the daemon's.
for process in /proc/[0-9]*; do
    tr '\0' ' ' <$process/cmdline 2>/dev/null | grep -q '^atoll executor' && echo "executor $(cat $process/oom_score_adj)"
done
echo "== stop"
if [ -d /proc/$daemon ]; then kill $daemon; else echo "the daemon is gone"; fi
# It may vanish between the two checks.
while [ -d /proc/$daemon ] && ! grep -q '^State:.*Z' /proc/$daemon/status 2>/dev/null; do sleep 0.1; done
echo "== log"
cat daemon.log
