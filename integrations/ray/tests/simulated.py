"""A cluster without Ray and without daemons, with time of its own, for checks of scaling.

Each machine has a device whose compute units are two halves. A replica has one half or both, for a part of the time.
Replicas take a while to start, and serve one request at a time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from atoll_ray.packing import Device, Load, Machine
from atoll_ray.scaler import Scaler
from atoll_ray.scaling import Size

#: Time from the start of a replica until it asks for its lease, and from its end until it releases it, in seconds.
START_S, DRAIN_S = 3.0, 5.0

#: A replica whose machine refused it for this time, in seconds, is started elsewhere.
REFUSED_S = 3.0

#: Throughput in thousandths of a request per second, and latency in milliseconds, by size.
TABLE = {
    Size(50, 0.2): (10_000, 60),
    Size(50, 0.4): (19_000, 50),
    Size(50, 0.6): (27_000, 40),
    Size(100, 0.2): (12_000, 50),
    Size(100, 0.4): (23_000, 40),
    Size(100, 0.6): (33_000, 30),
}
POINTS = [
    {"sm_partition": int(size.sm), "quota": size.quota, "per_1000_s": rate, "latency_ns_p99": ms * 1_000_000}
    for size, (rate, ms) in TABLE.items()
]

MEMORY_BYTES = 64 << 20


@dataclass(eq=False)
class Replica:
    """A replica, from its start to its end."""

    number: int
    size: Size
    node: str | None
    asks_at: float
    instance: str = ""
    free_at: float = 0.0
    ends_at: float | None = None
    refused_since: float | None = None
    #: When each request ends, and how long it took, in nanoseconds.
    requests: list[tuple[float, int]] = field(default_factory=list)


@dataclass
class Host:
    """A machine."""

    halves: list[float] = field(default_factory=lambda: [0.0, 0.0])
    slots: int = 32
    is_alive: bool = True
    #: Whether its daemon has the function, and so the profile: since its first replica.
    has_function: bool = False
    #: Requests that its daemon has forgotten, by instance.
    forgotten: Counter[str] = field(default_factory=Counter)


class World:
    """Machines, replicas, requests and their time."""

    def __init__(self, hosts: int, scaler: Scaler, latency_ms: int, has_profile: bool = True) -> None:
        self.now = 1000.0
        self.hosts = {f"node-{at}": Host() for at in range(hosts)}
        self.scaler = scaler
        self.replicas: list[Replica] = []
        self.waiting: list[float] = []
        self.latency_ns = latency_ms * 1_000_000
        self.has_profile = has_profile
        #: The latencies of all requests, in nanoseconds, with when they arrived.
        self.latencies: list[tuple[float, int]] = []
        self._instances = 0

    def run(self, seconds: float, rate: float, interval_s: float = 1.0) -> None:
        """Passes time, with so many requests per second at equal distances."""
        until, arrives, decides = self.now + seconds, self.now, self.now
        while self.now < until:
            self._follow()
            while rate > 0 and arrives <= self.now:
                self.waiting.append(arrives)
                arrives += 1 / rate
            self._serve()
            if decides <= self.now:
                self.decide()
                decides += interval_s
            self.now = round(self.now + 0.05, 3)

    def decide(self) -> None:
        """One decision of the scaler."""
        ready = [one for one in self.replicas if one.instance and one.ends_at is None]
        ending = {(one.node, one.instance) for one in self.replicas if one.instance and one.ends_at is not None}
        leased = {one.number: (one.node, one.instance) for one in ready}
        waiting = {str(arrived) for arrived in self.waiting}
        self.scaler.step(int(self.now * 1e9), self.machines(), leased, ending, waiting)  # type: ignore[arg-type]

    def machines(self) -> list[Machine]:
        """What the daemons report."""
        found = []
        for name, host in self.hosts.items():
            if host.is_alive:
                own = [one for one in self.replicas if one.node == name and one.instance]
                host.has_function |= bool(own)
                points = POINTS if host.has_function and self.has_profile else []
                loads = {one.instance: Load.of(self._load(one, host)) for one in own}
                found.append(Machine(name, name, [Device.of(self._report(host, own))], loads, points))
        return found

    def ready(self) -> list[Replica]:
        """The replicas that take requests."""
        alive = [one for one in self.replicas if one.node is not None and self.hosts[one.node].is_alive]
        return [one for one in alive if one.instance and one.ends_at is None]

    def late(self, since: float) -> float:
        """The part of the requests that arrived since then and took longer than the target."""
        found = [latency for arrived, latency in self.latencies if arrived >= since]
        return sum(latency > self.latency_ns for latency in found) / max(len(found), 1)

    def restart(self, name: str) -> None:
        """The daemon of a machine restarts, and counts from 0."""
        for one in self.replicas:
            if one.node == name:
                self.hosts[name].forgotten[one.instance] = len(one.requests)

    def _report(self, host: Host, own: list[Replica]) -> dict[str, Any]:
        left = [round(1 - used, 6) for used in host.halves]
        free = [{"sm_partition": 50.0, "quota": quota} for quota in left]
        free.append({"sm_partition": 100.0, "quota": min(left)})
        return {
            "state": "ready",
            "promised_sm_pct": sum(host.halves) * 50,
            "free": [one for one in free if one["quota"] > 0],
            "memory_bytes": MEMORY_BYTES,
            "promised_memory_bytes": len(own) << 20,
            "real_time_slots": host.slots,
            "promised_real_time_slots": len(own),
        }

    def _load(self, one: Replica, host: Host) -> dict[str, Any]:
        known = one.requests[host.forgotten[one.instance] :]
        ended = [latency for end, latency in known if end <= self.now]
        late = sum(latency > self.latency_ns for latency in ended)
        counts = [(0, len(ended) - late), (self.latency_ns, late)]
        return {
            "begun": len(known),
            "in_flight": len(known) - len(ended),
            "service_ns": int(1e12 * one.size.quota / TABLE[one.size][0]),
            "ended": [{"over_ns": over_ns, "requests": count} for over_ns, count in counts if count > 0],
        }

    def _follow(self) -> None:
        """Starts and ends replicas, as a controller does."""
        slots = self.scaler.slots
        for one in list(self.replicas):
            if one.ends_at is None and one.number not in slots:
                one.ends_at = self.now + (DRAIN_S if one.instance else 0)
            if one.ends_at is not None and one.ends_at <= self.now:
                self.replicas.remove(one)
                self._give(one, -1)
        known = {one.number for one in self.replicas}
        for number, slot in slots.items():
            if number not in known:
                self.replicas.append(Replica(number, slot.size, slot.node, self.now + START_S))
        for one in self.replicas:
            if not one.instance and one.asks_at <= self.now:
                self._ask(one)

    def _ask(self, one: Replica) -> None:
        # Without a machine, Ray finds one that has room, or lets it wait.
        names = [one.node] if one.node is not None else list(self.hosts)
        for name in names:
            if self.hosts[name].is_alive and self._has_room(self.hosts[name], one.size):
                self._instances += 1
                one.node, one.instance, one.free_at = name, f"lease-{self._instances}", self.now
                return self._give(one, 1)
        one.asks_at = self.now + 1
        one.refused_since = one.refused_since or self.now
        if one.node is not None and self.now - one.refused_since > REFUSED_S:
            self.scaler.refused(one.number)

    def _has_room(self, host: Host, size: Size) -> bool:
        left = [1 - used + 1e-6 for used in host.halves]
        return (min(left) if size.sm > 50 else max(left)) >= size.quota

    def _give(self, one: Replica, sign: int) -> None:
        if not one.instance or one.node is None:
            return
        halves = self.hosts[one.node].halves
        if one.size.sm > 50:
            chosen = [0, 1]
        elif sign > 0:
            # The fuller half that has room.
            fits = [at for at in (0, 1) if halves[at] + one.size.quota <= 1 + 1e-6]
            chosen = [max(fits, key=lambda at: halves[at])]
            one.refused_since = float(chosen[0])
        else:
            chosen = [int(one.refused_since or 0)]
        for at in chosen:
            halves[at] = round(halves[at] + sign * one.size.quota, 6)

    def _serve(self) -> None:
        ready = self.ready()
        while ready and self.waiting:
            arrived = self.waiting.pop(0)
            # Clients wait for their answers, so a replica that is slow gets fewer requests.
            one = min(ready, key=lambda one: one.free_at)
            rate, latency_ms = TABLE[one.size]
            begins = max(self.now, arrived, one.free_at)
            one.free_at = begins + 1000 / rate
            end = begins + latency_ms / 1000
            # A daemon does not know how long its client had waited for a replica.
            one.requests.append((end, int((end - max(self.now, arrived)) * 1e9)))
            self.latencies.append((arrived, int((end - arrived) * 1e9)))
