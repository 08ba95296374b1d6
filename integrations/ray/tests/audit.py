"""Checks of leases and lanes, which must hold at every moment of a run with faults."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from machines import Machine

from atoll_ray.daemon import DaemonError

#: Pause between two looks at a daemon, in seconds.
LOOK_S = 0.3

#: A daemon looks for ended leases several times a second. This is the time until all can see the end, in seconds.
SLACK_S = 2.0


def lanes_granted_twice(snapshot: dict[str, Any]) -> list[str]:
    """Units of a device of which more than the whole time is promised, and instances on several lanes.

    ``snapshot`` is that of the daemon's dashboard. A share has a lane, and a lane has units.
    """
    units = {(lane["device"], lane["lane"]): lane["units"] for lane in snapshot["lanes"]}
    promised: dict[tuple[str, int], float] = {}
    lanes: dict[tuple[str, str], set[int]] = {}
    for share in snapshot["shares"]:
        if share["lane"] is None:
            continue
        for unit in units.get((share["device"], share["lane"]), []):
            key = (share["device"], unit)
            promised[key] = promised.get(key, 0.0) + share["quota_request"]
        if share["instance"]:
            lanes.setdefault((share["device"], share["instance"]), set()).add(share["lane"])
    over = [f"unit {unit} of {device}: {total:.2f}" for (device, unit), total in promised.items() if total > 1 + 1e-6]
    return over + [f"{instance} is on lanes {sorted(on)}" for (_, instance), on in lanes.items() if len(on) > 1]


def promised_twice(leases: list[dict[str, Any]], devices: list[dict[str, Any]]) -> list[str]:
    """Devices whose leases take more than the device has."""
    found = []
    for device in devices:
        mine = [lease for lease in leases if lease["device"] == device["device"]]
        sums = {
            "compute units times time": (sum(one["sm_partition"] * one["quota_request"] for one in mine), 100.0),
            "memory": (sum(one["gpu_mem"] for one in mine), device["memory_bytes"]),
            "real-time slots": (sum(one["real_time_slots"] for one in mine), device["real_time_slots"]),
        }
        found += [f"{device['device']}: {name} {got} of {has}" for name, (got, has) in sums.items() if got > has + 1e-6]
    return found


@dataclass
class History:
    """All leases of one daemon, from its answers."""

    ttl_s: float
    slack_s: float = SLACK_S
    #: The lease and holder of each epoch, and the lease of each instance.
    epochs: dict[int, tuple[int, str]] = field(default_factory=dict)
    instances: dict[str, int] = field(default_factory=dict)
    live: set[int] = field(default_factory=set)
    #: When each lease that has ended was missing for the first time.
    ended: dict[int, float] = field(default_factory=dict)
    #: By when the leases of dead holders must have ended.
    dead: dict[str, float] = field(default_factory=dict)

    def died(self, instance: str, now: float) -> None:
        """The holder of an instance has ended or stands still."""
        self.dead[instance] = now + self.ttl_s + self.slack_s

    def restarted(self, now: float) -> None:
        """The daemon has restarted: each lease has its whole time to live again, and the last ends may be undone.

        It writes ends several times a second, so those that are older are not.
        """
        self.ended = {number: at for number, at in self.ended.items() if now - at > self.slack_s}
        self.dead = {instance: max(end, now + self.ttl_s + self.slack_s) for instance, end in self.dead.items()}

    def look(self, leases: list[dict[str, Any]], now: float) -> list[str]:
        """What is wrong with a list of leases that the daemon gave before ``now``."""
        wrong = []
        for lease in leases:
            number, epoch, instance = lease["lease"], lease["epoch"], lease["instance"]
            owner = (number, lease["holder"])
            if self.epochs.setdefault(epoch, owner) != owner:
                wrong.append(f"epoch {epoch} is of {owner} and of {self.epochs[epoch]}")
            if self.instances.setdefault(instance, number) != number:
                wrong.append(f"{instance} is of the leases {number} and {self.instances[instance]}")
            if number in self.ended:
                wrong.append(f"lease {number} had ended and is there again")
            if lease["expires_in_ms"] > 1000 * self.ttl_s:
                wrong.append(f"lease {number} ends in {lease['expires_in_ms']} ms")
            if now > self.dead.get(instance, now):
                wrong.append(f"{instance} has outlived its holder by {now - self.dead[instance]:.1f} s")
        numbers = {lease["lease"] for lease in leases}
        self.ended |= {number: now for number in self.live - numbers}
        self.live = numbers
        return wrong


class Audit:
    """Looks at all daemons again and again, in a thread, and keeps everything that is wrong."""

    def __init__(self, machines: list[Machine], ttl_s: float, slowness: float) -> None:
        self._machines = machines
        self._histories = {machine.url: History(ttl_s, SLACK_S * slowness) for machine in machines}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.wrong: list[str] = []
        #: How often each daemon was seen as a whole.
        self.looks = {machine.url: 0 for machine in machines}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def died(self, url: str, instance: str) -> None:
        with self._lock:
            self._histories[url].died(instance, time.monotonic())

    def restarted(self, url: str) -> None:
        with self._lock:
            self._histories[url].restarted(time.monotonic())

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            for machine in self._machines:
                self._look(machine)

    def _look(self, machine: Machine) -> None:
        daemon = machine.quick
        try:
            with self._lock:
                # Before the answer, so a slow answer is not taken for a lease that lives too long.
                now = time.monotonic()
                leases = daemon.leases()
                self._say(machine, self._histories[machine.url].look(leases, now))
            self._say(machine, promised_twice(leases, daemon.capacity()["devices"]))
            self._say(machine, lanes_granted_twice(daemon.ask("GET", "/ui/snapshot")))
        except DaemonError:
            # It is down, stands still or restarts, and is seen again later.
            return
        self.looks[machine.url] += 1

    def _say(self, machine: Machine, wrong: list[str]) -> None:
        # What was seen counts, even if the daemon does not answer the next question.
        self.wrong += [f"{machine.url}: {one}" for one in wrong if f"{machine.url}: {one}" not in self.wrong]
