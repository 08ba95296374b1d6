"""Checks of scaling by load, with the rule of the program `atoll` and a cluster that is simulated."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

from machines import check, raises
from simulated import POINTS, START_S, TABLE, World

from atoll_ray import rule
from atoll_ray.packing import Device, Load, Machine, Need, place, reserve
from atoll_ray.rule import Decision, Measured, Rule, RuleError
from atoll_ray.scaler import Meter, Scaler, Slot
from atoll_ray.scaling import Scaling, Size
from atoll_ray.spec import Spec

SMALL = Size(50, 0.2)
LATENCY_MS = 500
#: Times are short, so that runs are.
SETTINGS: dict[str, Any] = {"latency_ms": LATENCY_MS, "cool_down_ms": 5000, "idle_ms": 8000}


def scaled(replicas: int = 1, **settings: Any) -> tuple[Scaler, Rule]:
    """A scaler, and its rule, which the caller ends."""
    spec = Spec.of("d", "f", 50, (0.2, 0.2), "1M", "rt", replicas, 15, scaling=SETTINGS | settings)
    assert spec.scaling is not None
    one = Rule(spec.scaling.settings(SMALL))
    return Scaler(spec, one), one


def test_settings() -> None:
    check(Scaling.of({"latency_ms": 5}) == Scaling(5), "from a mapping")
    for settings, says in [
        ({}, "latency_ms is missing"),
        ({"latency_ms": 5, "min_instances": 1}, "there is no 'min_instances'"),
        ({"latency_ms": 0}, "latency_ms is 0"),
        ({"latency_ms": 1.5}, "latency_ms is 1.5"),
        ({"latency_ms": True}, "latency_ms is True"),
        ({"latency_ms": 5, "min_replicas": -1}, "min_replicas is -1"),
        ({"latency_ms": 5, "min_replicas": 9}, "min_replicas 9 exceeds max_replicas 8"),
        ({"latency_ms": 5, "max_replicas": 0}, "max_replicas is 0"),
        ({"latency_ms": 5, "interval_ms": 50}, "interval_ms is 50"),
        ({"latency_ms": 5, "headroom_percent": 901}, "headroom_percent is 901"),
    ]:
        raises(ValueError, says, lambda settings=settings: Scaling.of(settings))  # type: ignore[misc]
    raises(ValueError, "9 replicas: scaling has", lambda: scaled(9))
    spec = Spec.of("d", "f", 50, (0.2, 0.3), "1M", "rt", 1, 15, scaling={"latency_ms": 5})
    large = spec.sized(Size(100, 0.6))
    check((large.request.quota_request, large.request.quota_limit) == (0.6, 0.6), large.request)
    check(large.resources["atoll_sm_pct"] == 60 and spec.resources["atoll_sm_pct"] == 10, large.resources)
    # A fraction that the rule does not have is rounded.
    check(Scaling(5).settings(Size(33.4, 0.123))["sm_partition"] == 33, "whole percent")
    check(Scaling(5).settings(Size(0.2, 0.001))["quota_request"] == 0.01, "at least one percent")


def device(*free: tuple[float, float]) -> Device:
    return Device([Size(*one) for one in free], 100.0, 10 << 20, 2)


def test_places() -> None:
    need = Need(SMALL, 1 << 20, 1)
    empty = Machine("a", "u", [device((100, 1.0))])
    used = Machine("b", "u", [device((50, 0.7), (100, 0.3))])
    full = Machine("c", "u", [device()])
    check(place([empty, used, full], need) == "b", "where the smallest free rectangle holds it")
    check(place([full], need) is None, "no room")
    check(place([empty], Need(SMALL, 11 << 20, 1)) is None, "no memory")
    check(place([empty], Need(SMALL, 1, 3)) is None, "no real-time slot")
    # What is starting there counts, and what was placed since the report.
    one = Machine("d", "u", [Device([Size(50, 0.4), Size(100, 0.2)], 30.0, 10 << 20, 9)])
    reserve([one], "d", need)
    reserve([one], "elsewhere", need)
    check(place([one], need) == "d" and place([one], need) == "d" and place([one], need) is None, one.devices)
    one = Machine("d", "u", [device((100, 1.0))])
    check([place([one], need) for _ in range(3)] == ["d", "d", None], "two slots")
    lost = {"state": "lost", "promised_sm_pct": 25.0, "free": [{"sm_partition": 100.0, "quota": 1.0}]}
    rest = {"memory_bytes": 9, "promised_memory_bytes": 4, "real_time_slots": 3, "promised_real_time_slots": 1}
    found = Device.of(lost | rest)
    check((found.free, found.area, found.memory_bytes, found.slots) == ([], 75.0, 5, 2), found)


def test_meter() -> None:
    meter = Meter(100)
    load = Load(10, 2, None, ((0, 5), (99, 1), (100, 2)))
    both = {("u", "a"), ("u", "b")}
    check(meter.take({("u", "a"): load, ("u", "other"): load}, both) == (10, 8, 2), "since the grant")
    check(meter.take({("u", "a"): load}, both) == (0, 0, 0), "nothing new")
    # A daemon that does not answer for a while forgets nothing, and one that restarts begins anew.
    check(meter.take({}, both) == (0, 0, 0), "no answer")
    check(meter.take({("u", "a"): Load(13, 2, None, ((0, 9), (100, 2)))}, both) == (3, 3, 0), "what is new")
    check(meter.take({("u", "a"): Load(1, 0, None, ((0, 1),))}, both) == (1, 1, 0), "after a restart")
    check(meter.take({("u", "a"): load}, set()) == (0, 0, 0) and not meter._known, "its lease has ended")


class Decided:
    """A rule with decisions of its own."""

    def __init__(self, *decisions: dict[str, Any]) -> None:
        self.decisions = list(decisions)

    def decide(self, _: Measured) -> Decision:
        change: dict[str, Any] = {"add": [], "resize": {}, "remove": []} | self.decisions.pop(0)
        return Decision(**change, why="", rate=0.0, predicted=0.0, load=0.0, capacity=0.0, problem=None)

    def close(self) -> None:
        pass


def test_decisions_are_followed() -> None:
    def steps(replicas: int, *decisions: dict[str, Any]) -> Callable[[set[int]], Scaler]:
        spec = Spec.of("d", "f", 50, (0.2, 0.2), "1M", "be", replicas, 15, scaling=SETTINGS)
        one, times = Scaler(spec, Decided(*decisions)), itertools.count()

        def step(leased: set[int]) -> Scaler:
            machine = Machine("a", "u", [device((100, 1.0))], {f"lease-{at}": Load(0, 0, None, ()) for at in leased})
            one.step(next(times), [machine], {at: ("u", f"lease-{at}") for at in leased}, set(), set())
            return one

        return step

    # Another one of the same size may end in place of each, and as many end as was decided.
    step = steps(4, {"remove": [0, 1, 2]})
    check(len(step({0, 1, 2, 3}).slots) == 1, "three end")
    # One that replaces another is replaced before it has a lease: both end when the last one has its own.
    large, largest = Size(50, 0.4), Size(50, 0.6)
    step = steps(1, {"resize": {0: large}}, {"resize": {1: largest}}, {}, {})
    check(step({0}).slots[1].replaces == 0 and step({0}).slots[2].replaces == 1, "one after the other")
    check(step({0, 2}).slots == {2: Slot(largest, "a")}, "no other one is left")
    # If the middle one is refused, the last one still takes the place of the first one.
    step = steps(1, {"resize": {0: large}}, {"resize": {1: largest}}, {})
    step({0})
    step({0}).refused(1)
    check(step({0, 2}).slots == {2: Slot(largest, "a")}, "no other one is left")


def test_rule() -> None:
    quiet = Measured(1, 0, 0, 0, 0, {}, [], None)
    with mock.patch.dict(os.environ, {"PATH": "", "ATOLL_PROGRAM": ""}):
        del os.environ["ATOLL_PROGRAM"]
        raises(RuleError, "set ATOLL_PROGRAM", lambda: Rule({}).decide(quiet))
    raises(RuleError, "latency_ms", lambda: Rule({}).decide(quiet))
    raises(RuleError, "does not answer", lambda: Rule({}, ["false"]).decide(quiet))
    raises(RuleError, "No such file", lambda: Rule({}, ["/none/atoll"]).decide(quiet))
    one = Rule(Scaling(100).settings(SMALL))
    first = one.decide(quiet)
    check(first.add == [SMALL] and first.why == "there were fewer instances than min_instances", first)
    raises(RuleError, "the clock went from", lambda: one.decide(quiet))
    # It begins anew after its process has ended.
    assert one._process is not None
    one._process.kill()
    one._process.wait()
    raises(RuleError, "does not answer", lambda: one.decide(quiet))
    check(one.decide(quiet).add == [SMALL], "a new process")
    one.close()
    one.close()
    check(rule.command()[1:] == ["lease", "scale"], rule.command())


def never_twice(world: World) -> None:
    for host in world.hosts.values():
        check(all(-1e-6 <= used <= 1 + 1e-6 for used in host.halves), host)


def test_load_rises_and_falls() -> None:
    scaler, one = scaled(max_replicas=24)
    world = World(3, scaler, LATENCY_MS)
    world.run(40, 8)
    check(len(world.ready()) in (1, 2), scaler.slots)
    world.run(15, 60)
    begun = world.now
    world.run(20, 60)
    capacity = sum(TABLE[replica.size][0] for replica in world.ready()) / 1000
    check(capacity >= 60 * 1.3 and world.late(begun) < 0.01, (capacity, world.late(begun)))
    # They are packed: one machine has room for all of them.
    check({replica.node for replica in world.ready()} == {world.ready()[0].node}, scaler.slots)
    world.run(15, 120)
    begun = world.now
    world.run(40, 120)
    check(world.late(begun) < 0.01 and len(world.ready()) <= 24, (world.late(begun), scaler.status()))
    # What was added for a queue ends where few are.
    nodes = Counter(replica.node for replica in world.ready())
    check(len(nodes) == 2, (nodes, scaler.status()))
    never_twice(world)
    most = len(world.ready())
    # Nothing is removed before the cool-down is over, and it ends.
    world.run(4, 8)
    check(len(scaler.slots) == most, scaler.slots)
    world.run(60, 8)
    check(len(scaler.slots) <= 2 and len(world.replicas) == len(scaler.slots), scaler.slots)
    check(world.late(begun) < 0.01, world.late(begun))
    never_twice(world)
    one.close()


def test_to_and_from_zero() -> None:
    scaler, one = scaled(min_replicas=0)
    world = World(1, scaler, LATENCY_MS)
    world.run(5, 5)
    world.run(25, 0)
    check(scaler.slots == {} and scaler.status()["problem"] is None, scaler.status())
    begun = world.now
    world.run(1, 1)
    check(len(scaler.slots) == 1, "one starts for the request that waits")
    world.run(START_S + 2, 1)
    check(len(world.ready()) == 1 and not world.waiting, scaler.slots)
    # A request that wakes the scaling up right after a decision is no high load.
    world.run(25, 0)
    world.decide()
    check(scaler.slots == {}, scaler.slots)
    world.now += 0.01
    world.waiting.append(world.now)
    world.decide()
    check(len(scaler.slots) == 1, scaler.slots)
    check(all(latency < (START_S + 1.5) * 1e9 for arrived, latency in world.latencies if arrived >= begun), "served")
    one.close()
    scaler, one = scaled(min_replicas=1)
    world = World(1, scaler, LATENCY_MS)
    world.run(40, 0)
    check(len(world.ready()) == 1, "the minimum stays")
    one.close()


def test_at_the_maximum() -> None:
    scaler, one = scaled(max_replicas=2)
    world = World(2, scaler, LATENCY_MS)
    world.run(60, 35)
    sizes = sorted(replica.size.quota for replica in world.ready())
    check(len(world.ready()) == 2 and sizes[1] > 0.2, "at the maximum, a larger one takes the place of another")
    check(len(world.replicas) <= 3, "both are there for a while")
    check(all(slot.replaces is None for slot in scaler.slots.values()), scaler.slots)
    never_twice(world)
    one.close()


def test_no_room() -> None:
    scaler, one = scaled(max_replicas=16)
    world = World(1, scaler, LATENCY_MS)
    world.run(30, 200)
    check("no machine has room" in str(scaler.status()["problem"]), scaler.status())
    check(len(world.ready()) == 10 and len(world.replicas) == 11, "one waits, for Ray's autoscaler")
    never_twice(world)
    # A new machine takes it, and the others that are missing.
    world.hosts["node-new"] = type(world.hosts["node-0"])()
    world.run(20, 200)
    check(any(replica.node == "node-new" for replica in world.ready()), scaler.slots)
    check(len(world.ready()) == 16, scaler.status())
    never_twice(world)
    one.close()


def test_faults() -> None:
    scaler, one = scaled(max_replicas=8)
    world = World(2, scaler, LATENCY_MS)
    world.run(20, 30)
    before = dict(scaler.slots)
    # A daemon that is silent for a while, or counts from 0 again, is no load.
    node = world.ready()[0].node
    assert node is not None
    world.hosts[node].is_alive = False
    for _ in range(3):
        world.now += 1
        world.decide()
    world.hosts[node].is_alive = True
    world.restart(node)
    world.run(5, 30)
    check(len(scaler.slots) <= len(before) + 1, (before, scaler.slots))
    # However long it lasts, silence is no reason to have less.
    slots = dict(scaler.slots)
    for host in world.hosts.values():
        host.is_alive = False
    problems = []
    for _ in range(30):
        world.now += 1
        world.decide()
        problems.append(str(scaler.status()["problem"]))
    check(scaler.slots == slots and any("do not report" in one for one in problems), (slots, scaler.slots, problems))
    for host in world.hosts.values():
        host.is_alive = True
    world.run(3, 30)
    # Neither is a clock that stands still.
    world.decide()
    slots = dict(scaler.slots)
    world.decide()
    check(scaler.slots == slots and "the clock went from" in str(scaler.status()["problem"]), scaler.status())
    # A successor has the same replicas.
    text = scaler.text()
    check(Scaler(scaler._spec, one, text).slots == scaler.slots, text)
    last = max(scaler.slots)
    scaler.lost(last)
    check(scaler.slots[last].node is None, "Ray chooses")
    scaler.slots[last] = Slot(SMALL, node)
    scaler.refused(last)
    check(last not in scaler.slots and node in scaler._full, "others go elsewhere")
    scaler.refused(12345)
    scaler.lost(12345)
    scaler.close()
    check(scaler.slots == {}, "it has ended")


def test_without_a_profile() -> None:
    scaler, one = scaled(max_replicas=8)
    world = World(1, scaler, LATENCY_MS, has_profile=False)
    world.run(15, 4)
    check(len(world.ready()) == 1, scaler.slots)
    # The device time of requests says what a replica serves.
    world.run(30, 30)
    check(len(world.ready()) >= 3 and all(slot.size.sm == 50 for slot in scaler.slots.values()), scaler.slots)
    never_twice(world)
    one.close()


def test_all() -> None:
    check(len(POINTS) == len(TABLE) and Slot(SMALL).node is None, "the table")
    test_settings()
    test_places()
    test_meter()
    test_decisions_are_followed()
    if "ATOLL_PROGRAM" not in os.environ:
        print("SKIPPED: the rule of scaling: ATOLL_PROGRAM does not name the program")
        return
    test_rule()
    test_load_rises_and_falls()
    test_to_and_from_zero()
    test_at_the_maximum()
    test_no_room()
    test_faults()
    test_without_a_profile()
