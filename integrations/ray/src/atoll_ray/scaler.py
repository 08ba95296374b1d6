"""Scales the replicas of a deployment across machines. Pure: time, loads and capacity are passed in.

:class:`Scaler` gives the rule (``rule.py``) the load that daemons report, and keeps the replicas that there should be,
each with its size and its machine. The controller starts and ends replicas accordingly.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any, Protocol

from .packing import Load, Machine, Need, place, reserve
from .rule import Decision, Measured, RuleError
from .scaling import Size
from .spec import Spec

#: How long a replica takes to start, in seconds, until that is measured.
START_S = 5.0

#: After a daemon has refused a lease, replicas of that size or larger go to other machines for this time, in seconds.
REFUSED_S = 30.0

#: Sizes below the wanted one that are tried if no machine has room for it.
SMALLER_MAX = 8

#: An instance, by the URL of its daemon and its name there.
Instance = tuple[str, str]


class Decides(Protocol):
    """The rule, or what stands for it in tests."""

    def decide(self, measured: Measured) -> Decision:
        """Decides after an interval. Raises ``RuleError``."""

    def close(self) -> None:
        """Ends it."""


@dataclass(frozen=True)
class Slot:
    """A replica that there should be."""

    size: Size
    #: Its machine, as Ray names it; ``None`` if Ray chooses.
    node: str | None = None
    #: The number of the smaller or larger replica that it replaces, which ends when this one takes requests.
    replaces: int | None = None


class Meter:
    """Counts requests since the last look, from the totals of daemons."""

    def __init__(self, latency_ns: int) -> None:
        self._latency_ns = latency_ns
        self._known: dict[Instance, tuple[int, int, int]] = {}

    def take(self, loads: dict[Instance, Load], instances: set[Instance]) -> tuple[int, int, int]:
        """The arrived, ended and late requests of these instances. Those whose daemon does not answer count later."""
        self._known = {key: counts for key, counts in self._known.items() if key in instances}
        arrivals = ended = late = 0
        for key in instances & loads.keys():
            load = loads[key]
            now = (load.begun, sum(requests for _, requests in load.ended), load.late(self._latency_ns))
            before = self._known.get(key, (0, 0, 0))
            # After a restart, a daemon counts from 0.
            if any(new < old for new, old in zip(now, before, strict=True)):
                before = (0, 0, 0)
            self._known[key] = now
            arrivals, ended, late = arrivals + now[0] - before[0], ended + now[1] - before[1], late + now[2] - before[2]
        return arrivals, ended, late


class Scaler:
    """The replicas that a deployment should have, by number, and how they come about."""

    def __init__(self, spec: Spec, rule: Decides, kept: str | None = None) -> None:
        """``kept`` is the value of :meth:`text` of a predecessor."""
        assert spec.scaling is not None, "only deployments with settings have a scaler"
        self._spec, self._scaling, self._rule = spec, spec.scaling, rule
        self._meter = Meter(spec.scaling.latency_ms * 1_000_000)
        self._last: Decision | None = None
        self._problem: str | None = None
        # When each replica that takes no requests yet was first seen, and how long replicas take to start.
        self._starting: dict[int, int] = {}
        self._start_ns = int(START_S * 1e9)
        # Requests that wait for the first replica, and how many of those that waited no daemon has got yet.
        self._waiting: set[str] = set()
        self._had_waited = 0
        # The machines that refused a lease, each with the size and when that is forgotten.
        self._full: dict[str, tuple[Size, int]] = {}
        self._now_ns = 0
        if kept is None:
            first = Size(spec.request.sm_partition, spec.request.quota_request)
            self.slots = {number: Slot(first) for number in range(spec.replicas)}
        else:
            entries = json.loads(kept)
            self.slots = {int(at): Slot(**{**one, "size": Size(**one["size"])}) for at, one in entries.items()}
        self._next = max(self.slots, default=-1) + 1

    def text(self) -> str:
        """The replicas, for a successor."""
        return json.dumps({at: asdict(slot) for at, slot in self.slots.items()})

    def status(self) -> dict[str, Any]:
        """The last decision: its reason, rates in requests per second, and why the load is not covered."""
        last = self._last
        names = ("why", "rate", "predicted", "load", "capacity")
        return {"problem": self._problem} | {name: None if last is None else getattr(last, name) for name in names}

    def refused(self, number: int) -> None:
        """The daemon of its machine refuses a replica, which ends. The next decision finds another place if need be."""
        slot = self.slots.pop(number, None)
        if slot is None:
            return
        if slot.node is not None:
            self._full[slot.node] = (slot.size, self._now_ns + int(REFUSED_S * 1e9))
        for other, successor in list(self.slots.items()):
            if successor.replaces == number:
                self.slots[other] = replace(successor, replaces=slot.replaces)

    def lost(self, number: int) -> None:
        """A replica died before it had a lease. Ray chooses the machine of its successor."""
        if number in self.slots:
            self.slots[number] = replace(self.slots[number], node=None)

    def step(
        self,
        now_ns: int,
        machines: list[Machine],
        leased: dict[int, Instance],
        ending: set[Instance],
        waiting: set[str],
    ) -> None:
        """Decides after an interval.

        ``leased`` are the replicas that take requests, ``ending`` the instances that still finish theirs, and
        ``waiting`` the requests that found no replica, by their ids.
        """
        loads = {(machine.url, name): load for machine in machines for name, load in machine.loads.items()}
        own = [loads[key] for key in leased.values() if key in loads]
        begun, ended, late = self._meter.take(loads, set(leased.values()) | ending)
        self._now_ns = now_ns
        self._watch_starts(now_ns, leased)
        times = [load.service_ns for load in own if load.service_ns is not None]
        points = next((machine.points for machine in machines if machine.points), [])
        measured = Measured(
            now_ns=now_ns,
            arrivals=self._arrivals(begun, waiting),
            queued=self._left(len(waiting) + sum(max(load.in_flight - 1, 0) for load in own)),
            ended=ended,
            # While replicas start, late requests do not show that the profile promises too much.
            late=0 if self._starting else late,
            running={number: self.slots[number].size for number in self._current()},
            points=points,
            service_ns=sum(times) // len(times) if times else None,
        )
        try:
            decision = self._rule.decide(measured)
        except RuleError as error:
            self._problem = str(error)
            return
        self._last, self._problem = decision, decision.problem
        silent = sum(key not in loads for key in leased.values())
        if silent > 0 and (decision.remove or decision.resize):
            # Load that is not seen is no reason to have less.
            self._problem = f"the daemons of {silent} replicas do not report their load"
            decision = replace(decision, remove=[], resize={})
        self._apply(decision, machines, leased, points)

    def close(self) -> None:
        """Ends the rule. There should be no replicas any more."""
        self.slots = {}
        self._rule.close()

    def _watch_starts(self, now_ns: int, leased: dict[int, Instance]) -> None:
        """Measures how long replicas take to start."""
        for number in [number for number in self._starting if number not in self.slots or number in leased]:
            began = self._starting.pop(number)
            slot = self.slots.get(number)
            # One without a machine may have waited for it.
            if slot is not None and slot.node is not None:
                self._start_ns += (now_ns - began - self._start_ns) // 4
        for number in self.slots.keys() - leased.keys() - self._starting.keys():
            self._starting[number] = now_ns

    def _arrivals(self, begun: int, waiting: set[str]) -> int:
        """The requests that arrived: those that begin to wait, and those that daemons got and that have not waited."""
        new = len(waiting - self._waiting)
        self._waiting = waiting
        had_waited = min(self._had_waited, begun)
        # Those of them that daemons have not got until all is quiet have given up.
        self._had_waited = self._had_waited + new - had_waited if waiting or begun else 0
        return new + begun - had_waited

    def _left(self, queued: int) -> int:
        """The waiting requests that another replica could serve: those that are left when it has started."""
        if self._last is None or not self.slots:
            return queued
        surplus = max(self._last.capacity - self._last.rate, 0.0)
        return max(queued - int(surplus * self._start_ns / 1e9), 0)

    def _current(self) -> list[int]:
        """The replicas without those that are being replaced."""
        replaced = {slot.replaces for slot in self.slots.values()}
        return [number for number in self.slots if number not in replaced]

    def _need(self, size: Size) -> Need:
        request = self._spec.request
        return Need(size, request.gpu_mem, request.real_time_slots or 0)

    def _apply(
        self, decision: Decision, machines: list[Machine], leased: dict[int, Instance], points: list[dict[str, Any]]
    ) -> None:
        # Their sizes first, since another one of the same size may be removed in place of each.
        for size in [self.slots[number].size for number in decision.remove if number in self.slots]:
            self._remove(size, leased)
        for number in list(self.slots):
            slot = self.slots.get(number)
            if slot is not None and number in leased and slot.replaces is not None:
                self._pop(slot.replaces)
                self.slots[number] = replace(slot, replaces=None)
        for number, slot in self.slots.items():
            if number not in leased:
                reserve(machines, slot.node, self._need(slot.size))
        for size in sorted(decision.add, key=lambda size: -size.area):
            found = self._place(machines, size, points)
            if found is None:
                self._problem = f"no machine has room for {size.sm:.0f} % of the compute units × {size.quota:.2f}"
                # One replica waits for room, which Ray's autoscaler sees. More would only have to be ended again.
                if any(slot.node is None and number not in leased for number, slot in self.slots.items()):
                    break
            self._add(found or Slot(size))
        for number, size in decision.resize.items():
            # A lease has one size, so another replica takes the place of this one.
            node = self._machine(machines, size) if number in self.slots else None
            if node is not None:
                self._add(Slot(size, node, replaces=number))

    def _remove(self, size: Size, leased: dict[int, Instance]) -> None:
        """Removes a replica of this size: one without a lease, or on the machine with the fewest."""
        nodes = Counter(slot.node for slot in self.slots.values())
        alike = [other for other in self._current() if self.slots[other].size == size]
        if alike:
            self._pop(min(alike, key=lambda other: (other in leased, nodes[self.slots[other].node], -other)))

    def _pop(self, number: int) -> None:
        """Removes a replica with the one that it replaces, and that with the one that it replaces, and so on."""
        found: int | None = number
        while found is not None:
            slot = self.slots.pop(found, None)
            found = None if slot is None else slot.replaces

    def _machine(self, machines: list[Machine], size: Size) -> str | None:
        """Takes room for a new replica, and returns its machine."""
        self._full = {node: full for node, full in self._full.items() if full[1] > self._now_ns}
        areas = {node: full[0].area for node, full in self._full.items()}
        return place([one for one in machines if size.area < areas.get(one.node, inf)], self._need(size))

    def _add(self, slot: Slot) -> None:
        self.slots[self._next] = slot
        self._next += 1

    def _place(self, machines: list[Machine], size: Size, points: list[dict[str, Any]]) -> Slot | None:
        """The machine of a new replica; if none has room, a smaller replica, the one with the highest throughput."""
        smaller = [(one["per_1000_s"], Size(one["sm_partition"], one["quota"])) for one in points]
        smaller = [one for one in smaller if one[1].area < size.area]
        smaller.sort(key=lambda one: (-one[0], one[1].area))
        for wanted in [size, *[one for _, one in smaller[:SMALLER_MAX]]]:
            node = self._machine(machines, wanted)
            if node is not None:
                return Slot(wanted, node)
        return None
