"""Chooses the machine of a new replica by what its daemon has free.

A daemon reports the largest free combinations of compute units and time, which overlap, and what is promised in all. A
machine has room if one of the combinations holds the replica, and if there is enough beside the replicas that are
starting there. That may be wrong, since several replicas may not lie beside each other. Then the daemon refuses the
lease, and the scaler chooses another machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .scaling import Size

#: Reports have whole percents, and sums of fractions are not exact.
ROUNDING = 1e-6

#: Compute units times time of a device, in percent.
WHOLE = 100.0


@dataclass
class Device:
    """What a device has free: combinations of compute units and time, their part in all, memory and slots."""

    free: list[Size]
    #: Compute units times time, in percent.
    area: float
    memory_bytes: int
    slots: int

    @classmethod
    def of(cls, report: dict[str, Any]) -> Device:
        """A device in the capacity report of a daemon."""
        is_open = report["state"] in ("ready", "unready")
        return cls(
            free=[Size(one["sm_partition"], one["quota"]) for one in report["free"]] if is_open else [],
            area=WHOLE - report["promised_sm_pct"],
            memory_bytes=report["memory_bytes"] - report["promised_memory_bytes"],
            slots=report["real_time_slots"] - report["promised_real_time_slots"],
        )

    def room(self, need: Need) -> float | None:
        """The smallest free part that holds a replica, in percent of the device; ``None`` if there is none."""
        size = need.size
        if need.memory_bytes > self.memory_bytes or need.slots > self.slots or size.area > self.area + ROUNDING:
            return None
        holds = [one for one in self.free if one.sm + ROUNDING >= size.sm and one.quota + ROUNDING >= size.quota]
        return min((min(one.area, self.area) for one in holds), default=None)

    def take(self, need: Need) -> None:
        """Takes what a replica needs."""
        self.area -= need.size.area
        self.memory_bytes -= need.memory_bytes
        self.slots -= need.slots


@dataclass(frozen=True)
class Need:
    """What a replica needs of a device."""

    size: Size
    memory_bytes: int
    slots: int


@dataclass(frozen=True)
class Load:
    """The requests of an instance since its lease was granted, or since the daemon's last start."""

    begun: int
    in_flight: int
    service_ns: int | None
    #: For requests that have ended: the time that they exceeded, in nanoseconds, and their number.
    ended: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, report: dict[str, Any]) -> Load:
        """A load in the report of a daemon."""
        ended = tuple((one["over_ns"], one["requests"]) for one in report["ended"])
        return cls(report["begun"], report["in_flight"], report["service_ns"], ended)

    def late(self, latency_ns: int) -> int:
        """The requests that certainly took longer than this. A daemon counts in steps of at most a quarter."""
        return sum(requests for over_ns, requests in self.ended if over_ns >= latency_ns)


@dataclass
class Machine:
    """A machine whose daemon has answered."""

    #: The machine, as Ray names it.
    node: str
    #: The URL of its daemon, as clients have it.
    url: str
    devices: list[Device]
    #: The load of each instance of a lease.
    loads: dict[str, Load] = field(default_factory=dict)
    #: The points of the function's profile; empty without one.
    points: list[dict[str, Any]] = field(default_factory=list)


def place(machines: Iterable[Machine], need: Need) -> str | None:
    """Takes room for a replica, and returns its machine: where the least is left beside it. ``None`` without room."""
    fits = [
        (room, device.area, machine.node, at, device)
        for machine in machines
        for at, device in enumerate(machine.devices)
        if (room := device.room(need)) is not None
    ]
    if not fits:
        return None
    found = min(fits, key=lambda one: one[:4])
    found[4].take(need)
    return found[2]


def reserve(machines: Iterable[Machine], node: str | None, need: Need) -> None:
    """Takes room for a replica that is starting on a machine, whose daemon does not know it yet."""
    for machine in machines:
        device = next((one for one in machine.devices if one.room(need) is not None), None)
        if machine.node == node and device is not None:
            device.take(need)
