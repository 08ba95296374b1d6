"""Checks of the controller of a scaled deployment, of its view of the machines, and of requests that wait for it."""

from __future__ import annotations

from typing import Any
from unittest import mock

from controller_checks import Call, Ray, played
from machines import check, raises
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from atoll_ray import controller, deployment, fleet
from atoll_ray.daemon import DaemonError
from atoll_ray.endpoint import Endpoint
from atoll_ray.fleet import Fleet
from atoll_ray.packing import Device, Machine
from atoll_ray.rule import Decision, Measured
from atoll_ray.scaling import Size

SIZE = Size(20.0, 0.5)

#: Ids of machines, in Ray's form.
SMALL, LARGE = "5" * 56, "1" * 56


def decision(**change: Any) -> Decision:
    nothing: dict[str, Any] = {"add": [], "resize": {}, "remove": []}
    rates = {"rate": 1.0, "predicted": 1.0, "load": 1.0, "capacity": 1.0}
    return Decision(**(nothing | change), **rates, why="because", problem=None)


class Told:
    """A rule that decides what it was told."""

    def __init__(self, _: Any) -> None:
        self.next: list[Decision] = []
        self.seen: list[Measured] = []
        self.is_closed = False

    def decide(self, measured: Measured) -> Decision:
        self.seen.append(measured)
        return self.next.pop(0) if self.next else decision()

    def close(self) -> None:
        self.is_closed = True


def machines() -> list[Machine]:
    device = {"state": "ready", "promised_sm_pct": 90.0, "memory_bytes": 9 << 20, "promised_memory_bytes": 0}
    device |= {"real_time_slots": 0, "promised_real_time_slots": 0, "free": [{"sm_partition": 20.0, "quota": 0.5}]}
    large = Device.of(device | {"promised_sm_pct": 0.0})
    return [Machine(SMALL, "u", [Device.of(device)]), Machine(LARGE, "v", [large])]


def test_replicas_follow_decisions() -> None:
    seen = mock.Mock(look=machines, problem="one is silent")
    with (
        mock.patch.object(controller, "Rule", Told),
        mock.patch.object(controller, "Fleet", lambda _: seen),
        played(1, scaling={"latency_ms": 100}) as (one, ray, clock, kept),
    ):
        scaler: Any = one._scaler
        rule: Told = scaler._rule

        def decide(*decisions: Decision) -> None:
            rule.next += decisions
            one._decide(scaler)
            one._look()
            one._look()
            clock.now += 0.5

        decide()
        check(len(ray.actors) == 1 and ray.actors[0].strategy == "SPREAD", "the first one goes where Ray places it")
        check(ray.actors[0].spec.request.sm_partition == 10 and len(one.endpoints()) == 1, one.status())
        check(one.status()["scaling"]["daemons"] == "one is silent", one.status())
        # New ones go where the daemons have room: beside others first.
        decide(decision(add=[SIZE, SIZE]))
        check([where(actor) for actor in ray.actors[1:]] == [SMALL, LARGE], "the small machine is full then")
        request = ray.actors[1].spec.request
        check((request.sm_partition, request.quota_request, request.quota_limit) == (20, 0.5, 0.5), request)
        check(ray.actors[1].spec.resources["atoll_sm_pct"] == 10, ray.actors[1].spec)
        check(rule.seen[-1].running == {0: Size(10, 0.1)} and one.status()["target"] == 3, rule.seen)
        check(f'"node": "{SMALL}"' in kept["value"], kept)

        # The autoscaler is told of all of them, and of two more of the newest size.
        with mock.patch.object(one, "_teller") as teller:
            one._hint()
        hint = teller.tell.call_args.args[0]
        check(len(hint.bundles) == 5 and hint.count == 1, hint)
        check(dict(hint.bundles[-1])["atoll_sm_pct"] == 10 and dict(hint.bundles[0])["atoll_sm_pct"] == 1, hint)

        # The successor of one that has worked has its place.
        rule.next = [decision(add=[SIZE])]
        one._decide(scaler)
        one._look()
        new = ray.actors[3]
        check(where(new) == SMALL, "it seems to have room")
        new.says = {"endpoint": None, "problem": "no room now"}
        ray.actors[2].says = RayActorError()
        one._look()
        clock.now += 1.5
        decide()
        check(len(ray.actors) == 5 and where(ray.actors[4]) == LARGE, "it has worked, and its place is as before")
        # One that is refused is placed anew, if it is still needed.
        clock.now += controller.REFUSED_S
        decide()
        decide()
        check(new.is_stopped and 3 not in one._slots and one.status()["last_failure"] is not None, one.status())
        check(scaler._full.keys() == {SMALL}, scaler._full)
        decide(decision(add=[SIZE]))
        check(where(ray.actors[5]) == LARGE, "not on the machine that refuses")
        ray.actors[5].says = RayActorError()

        # It ends with all of its replicas.
        raises(ValueError, "is scaled by its load", lambda: one.scale(2))
        one.end()
        check(not one.awaited("late"), "nothing is started for it")
        one._follow_load()
        check(rule.is_closed and one._slots == {} and one.status()["target"] == 0, one.status())
        one._look()
        check(one.endpoints() == [], one.status())


def where(actor: Any) -> str:
    check(isinstance(actor.strategy, NodeAffinitySchedulingStrategy), actor.strategy)
    return str(actor.strategy.node_id)


def test_lost_before_it_worked() -> None:
    with (
        mock.patch.object(controller, "Rule", Told),
        mock.patch.object(controller, "Fleet", lambda _: mock.Mock(look=machines)),
        played(0, scaling={"latency_ms": 100, "min_replicas": 0}) as (one, ray, clock, kept),
    ):
        scaler: Any = one._scaler
        # A request that waits wakes the scaling up.
        check(not one._wake.is_set() and one.awaited("a") and one.awaited("a") and one._wake.is_set(), "woken")
        scaler._rule.next = [decision(add=[SIZE])]
        one._decide(scaler)
        seen = scaler._rule.seen[0]
        check((seen.queued, seen.arrivals) == (1, 1), seen)
        one._wake.clear()
        one._slots, slots = {}, one._slots
        check(one.awaited("a") and not one._wake.is_set(), "it has woken the scaling up before")
        one._slots = slots
        check(one.awaited("b") and not one._wake.is_set(), "one is on its way")
        one._look()
        ray.actors[0].says = RayActorError()
        one._look()
        check(one._slots[0].node is None, one._slots)
        clock.now += 1.5
        one._decide(scaler)
        check(scaler.slots[0].node is None and '"node": null' in kept["value"], kept)
        one._look()
        check(ray.actors[1].strategy == "SPREAD", "Ray chooses")
        # Requests that asked no more have ended.
        clock.now += controller.WAITING_S + 0.1
        one._decide(scaler)
        check(scaler._rule.seen[-1].queued == 0, scaler._rule.seen[-1])


def test_news_during_a_decision() -> None:
    seen = mock.Mock(look=machines, problem="")
    with (
        mock.patch.object(controller, "Rule", Told),
        mock.patch.object(controller, "Fleet", lambda _: seen),
        played(0, scaling={"latency_ms": 100, "min_replicas": 0}) as (one, ray, clock, _kept),
    ):
        scaler: Any = one._scaler
        scaler._rule.next = [decision(add=[SIZE, SIZE])]
        one._decide(scaler)
        one._look()
        ray.actors[0].says = {"endpoint": None, "problem": "no room now"}
        ray.actors[1].says = {"endpoint": None, "problem": None}
        one._look()

        # While the scaler decides, one is found to have no room, and the other one dies.
        def look() -> list[Machine]:
            clock.now += controller.REFUSED_S + 0.1
            ray.actors[1].says = RayActorError()
            return machines()

        def decide(measured: Measured) -> Decision:
            one._look()
            return Told.decide(scaler._rule, measured)

        seen.look = look
        with mock.patch.object(scaler._rule, "decide", decide):
            one._decide(scaler)
        check(one._slots.keys() == {1} and one._slots[1].node is None, one._slots)
        clock.now += 1.5
        one._look()
        check(len(ray.actors) == 3 and ray.actors[2].strategy == "SPREAD", "only the lost one has a successor")


def test_machines() -> None:
    capacity = {"devices": [{"state": "ready", "promised_sm_pct": 0.0, "free": [], "memory_bytes": 2}]}
    capacity["devices"][0] |= {"promised_memory_bytes": 1, "real_time_slots": 4, "promised_real_time_slots": 0}
    load = {"lease": 1, "instance": "lease-1", "begun": 3, "in_flight": 1, "service_ns": None}
    load["ended"] = [{"over_ns": 5, "up_to_ns": None, "requests": 2}]
    profiles: list[str] = []

    class Daemon:
        def __init__(self, url: str, timeout_s: float) -> None:
            self.url = url

        def capacity(self) -> Any:
            if self.url == "silent":
                raise DaemonError("no answer")
            return capacity if self.url != "odd" else {}

        def loads(self) -> Any:
            return [load]

        def profile(self, _: str) -> Any:
            profiles.append(self.url)
            if self.url == "new":
                raise DaemonError("no such function", 404)
            return [{"sm_partition": 50}]

    ray: Any = Ray()
    a, b, e, f = "a" * 56, "b" * 56, "e" * 56, "e" * 55 + "f"
    nodes = {a: "daemon", b: "new", "c" * 56: "silent", "d" * 56: "odd", e: "late", f: "broken"}
    alive = {"Alive": True, "Resources": {"atoll_sm_pct": 100.0}}
    ray.nodes = lambda: [{"NodeID": node, **alive} for node in nodes] + [
        {"NodeID": "dead", **alive, "Alive": False},
        {"NodeID": "none", "Alive": True, "Resources": {}},
    ]
    answers: dict[str, Any] = nodes | {e: "hangs", f: RayActorError()}

    def ask(scheduling_strategy: NodeAffinitySchedulingStrategy) -> Any:
        return mock.Mock(remote=lambda: Call(answers[scheduling_strategy.node_id]))

    now = [0.0]
    with (
        mock.patch.object(fleet, "ray", ray),
        mock.patch.object(fleet, "Daemon", Daemon),
        mock.patch.object(ray, "remote", lambda **_: lambda _: mock.Mock(options=ask)),
    ):
        one = Fleet("f", clock=lambda: now[0])
        found = one.look()
        check([machine.node for machine in found] == [a, b], found)
        check(found[0].points == [{"sm_partition": 50}] and found[1].points == [], found)
        check(found[0].loads["lease-1"].late(5) == 2 and found[0].devices[0].memory_bytes == 1, found)
        check(one.problem != "", one.problem)
        one.look()
        check(profiles == ["daemon", "new", "new"], "a profile is read now and then")
        now[0] = fleet.PROFILE_S
        one.look()
        check(profiles.count("daemon") == 2, profiles)
        # A machine that answers later, and one that has left.
        nodes.pop(a)
        answers |= {e: "daemon", f: "daemon"}
        one._known[e].call = Call("daemon")
        one.look()
        check([machine.node for machine in one.look()] == [b, e, f], one.problem)
        one.close()


def test_waiting_request() -> None:
    endpoint = Endpoint("u", "f", "lease-1", 1, 1, 1, "node")
    for answers, lists, expected in [
        ([True, True], [[], [endpoint]], [endpoint]),
        ([False], [[]], []),
        ([RayActorError()], [], []),
    ]:
        handle = deployment.Handle("d", mock.Mock())
        known = mock.Mock(get=mock.Mock(side_effect=lists))
        get = mock.Mock(side_effect=answers)
        with (
            mock.patch.object(handle, "_known", known),
            mock.patch.object(deployment.ray, "get", get),
            mock.patch.object(deployment.time, "sleep"),
        ):
            check(handle._awaited(deployment.time.monotonic() + 60) == expected, expected)
            check(get.call_count == len(answers), get.mock_calls)
    handle = deployment.Handle("d", mock.Mock())
    check(handle._awaited(deployment.time.monotonic() - 1) == [], "its time is over")


def test_all() -> None:
    test_replicas_follow_decisions()
    test_lost_before_it_worked()
    test_news_during_a_decision()
    test_machines()
    test_waiting_request()
