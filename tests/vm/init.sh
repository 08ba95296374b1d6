#!/bin/sh
# The first process of the machine. `atoll.mode` on the kernel's command line: `root` (the daemon is root, in a group
# of cgroup v2), `delegated` (it is a plain user, who was given a group), or `none` (a plain user, and no groups). The
# daemon has 1 GiB in each.
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs -o mode=1777 tmp /tmp
ip link set lo up
# The kernel's messages would stand between the lines of the scenario; they are printed at the end.
echo 1 >/proc/sys/kernel/printk

mode=$(tr ' ' '\n' </proc/cmdline | sed -n 's/^atoll.mode=//p')
group=/sys/fs/cgroup/atoll
if [ "$mode" != none ]; then
    mount -t cgroup2 cgroup /sys/fs/cgroup
    echo '+memory +pids +cpu' >/sys/fs/cgroup/cgroup.subtree_control
    mkdir $group
    echo 1G >$group/memory.max
    if [ "$mode" = delegated ]; then
        # What systemd hands over with Delegate=yes.
        chown atoll:atoll $group $group/cgroup.procs $group/cgroup.subtree_control $group/cgroup.threads
    fi
fi
user=atoll
[ "$mode" != root ] || user=root
mkdir -p /tmp/home/models
chown -R $user:$user /tmp/home
# The daemon is alone in its group, as a service is: a group that hands on controllers has no processes of its own.
procs=/dev/null
[ "$mode" = none ] || procs=$group/cgroup.procs
sh -c 'echo $$ >'$procs'; exec su '$user' -c "exec sh /guest/daemon.sh"' &
su $user -c 'sh /guest/scenario.sh'
echo "== kernel"
dmesg | grep -iE 'killed process|out of memory|oom-kill' || echo "no process was killed"
[ "$mode" = none ] || { echo "== groups"; ls $group; }
echo "== end"
poweroff -f
