"""Checks of graphs on a cluster: their places, their tensors and their deadlines."""

from __future__ import annotations

import os
import signal
import struct
import time
from pathlib import Path
from typing import Any

import ray
from machines import TIMEOUT_S, Machine, check, raises, until
from ray.util import placement_group_table

import atoll_ray
from atoll_ray import places
from atoll_ray.endpoint import Endpoint
from atoll_ray.known import Known
from atoll_ray.run import Replicas, Run, StageFailed
from atoll_ray.stage import Call, Plan, Report, Stage, Transit
from atoll_ray.tensor import Tensor

#: Elements of a tensor that Ray keeps in its object store, and does not send with the call.
MANY = 1 << 18


def floats(values: list[float]) -> Tensor:
    return Tensor.from_bytes("FP32", (len(values),), struct.pack(f"<{len(values)}f", *values))


def numbers(tensor: Tensor) -> list[float]:
    return list(struct.unpack(f"<{tensor.shape[0]}f", tensor.data))


def stages(source: str) -> list[Stage]:
    """Twice 3 x + b."""
    share: dict[str, Any] = {"mem": "16M", "sm": 20, "quota": (0.2, 0.5), "class_": "rt"}
    first = Stage("first", source, {"x": "x", "b": "b"}, **share)
    return [first, Stage("second", source, {"x": "first.y", "b": "b"}, **share)]


@ray.remote(num_cpus=0)
class Slow:
    """Stands for a replica: takes some time, says that it took another one, and remembers what it was given."""

    def __init__(self, takes_s: float, says_s: float) -> None:
        self._takes_s, self._says_s = takes_s, says_s
        self.budgets: list[float] = []
        self.is_read_only: list[bool] = []

    def run(self, call: Call, *inputs: Tensor) -> tuple[Any, ...]:
        self.budgets.append(call.budget_s)
        self.is_read_only += [tensor.data.readonly for tensor in inputs]
        time.sleep(self._takes_s)
        return (Report(self._says_s), *[inputs[0]] * len(call.outputs))

    def seen(self) -> tuple[list[float], list[bool]]:
        return self.budgets, self.is_read_only


def test_deadlines() -> None:
    print("each stage gets the time that is left, by the clock of the client")
    plan = Plan.of([Stage("a", "f", {"x": "x"}, 1), Stage("b", "f", {"x": "a.y"}, 1)], {"y": "b.y"})
    # The clock of the first machine steps by an hour during the call.
    actors = [Slow.remote(0.3, 3600.0), Slow.remote(0.0, 0.0)]
    ray.get([actor.seen.remote() for actor in actors])
    replicas: Replicas = {
        name: [(0, Endpoint("http://none", "f", f"lease-{name}", 1, 1, 1, name), actor)]
        for name, actor in zip("ab", actors, strict=True)
    }
    transit = Transit()

    def run(deadline_s: float, tensor: Tensor) -> dict[str, Tensor]:
        known = Known(lambda _: replicas, replicas)
        return Run("g", plan, known, transit, time.monotonic() + deadline_s, {}, False, 0).outputs({"x": tensor})

    tensor = floats([1.0] * MANY)
    check(bytes(run(100.0, tensor)["y"].data) == bytes(tensor.data), "it goes through unchanged")
    budgets = [ray.get(actor.seen.remote()) for actor in actors]
    (first,), (second,) = budgets[0][0], budgets[1][0]
    check(first <= 100.0 and second <= first - 0.3 and second > 0, (first, second))
    check(transit.least("a") == 0.0, "a duration that is not possible is not used")
    check(all(budgets[0][1] + budgets[1][1]), "mapped read-only")
    raises(TimeoutError, "passed while `a` ran", lambda: run(0.1, floats([1.0])))
    # It answers after the call.
    ray.get(actors[0].seen.remote())
    check(len(ray.get(actors[1].seen.remote())[0]) == 1, "the second stage is not begun")
    for actor in actors:
        ray.kill(actor)


def test_graph(machines: list[Machine], bundle: Path) -> None:
    print("a graph has a place for each copy, and its tensors cross machines")
    graph = atoll_ray.deploy_graph("twice", stages(str(bundle)), {"y": "second.y"}, strategy="STRICT_SPREAD", ttl_s=6)
    graph.wait(1, TIMEOUT_S)
    (first,), (second,) = (graph.replicas()[name] for name in ("first", "second"))
    check({first[1].url, second[1].url} == {machine.url for machine in machines}, (first, second))
    check(places.nodes_of(0, "twice") == [first[1].node, second[1].node], "each in its place")
    found = graph.infer({"x": floats([1, 2]), "b": floats([10, 20])}, class_="rt")
    check(numbers(found["y"]) == [49, 98], numbers(found["y"]))
    large = graph.infer({"x": floats([2.0] * MANY), "b": floats([1.0] * MANY)}, deadline_s=60.0)["y"]
    check(numbers(large) == [22.0] * MANY and large.data.readonly, large.shape)
    raises(ValueError, "the inputs are ['x']", lambda: graph.infer({"x": floats([1])}))
    raises(ValueError, "deadline_s 0", lambda: graph.infer({"x": floats([1]), "b": floats([1])}, deadline_s=0))
    raises(TimeoutError, "graph `twice`", lambda: graph.infer({"x": floats([1]), "b": floats([1])}, deadline_s=1e-6))
    # The daemon refuses inputs of different lengths.
    raises(StageFailed, "stage `first`", lambda: graph.infer({"x": floats([1, 2]), "b": floats([1, 2, 3])}))
    raises(ValueError, "there is a graph", lambda: atoll_ray.deploy_graph("twice", stages("f"), {"y": "second.y"}))
    near: dict[str, Any] = {"strategy": "NEAR"}
    raises(ValueError, "'NEAR'", lambda: atoll_ray.deploy_graph("n", stages("f"), {"y": "second.y"}, **near))
    check(atoll_ray.get_graph("twice").infer({"x": floats([0]), "b": floats([1])})["y"].shape == (1,), "found by name")

    print("copies are added and removed, and a dead replica is replaced in its place")
    graph.scale(2)
    graph.wait(2, TIMEOUT_S)
    victim = graph.replicas()["second"][0][1]
    os.kill(victim.pid, signal.SIGKILL)
    again = graph.infer({"x": floats([1]), "b": floats([10])}, idempotent=True, deadline_s=TIMEOUT_S)
    check(numbers(again["y"]) == [49], numbers(again["y"]))

    def replaced() -> bool:
        known = graph.replicas()["second"]
        return len(known) == 2 and victim not in [endpoint for _, endpoint, _ in known]

    until("a new replica", replaced)
    check(sorted(copy for copy, _, _ in graph.replicas()["second"]) == [0, 1], graph.replicas())
    graph.scale(1)
    until("one copy is left", lambda: list(graph.status()["places"]) == [0])

    print("a graph whose controller dies keeps its copies and places")
    before = places.nodes_of(0, "twice")
    old = {endpoint.pid for one in graph.replicas().values() for _, endpoint, _ in one}
    ray.kill(ray.get_actor("atoll/graph/twice", "atoll"), no_restart=False)

    def restarted() -> bool:
        try:
            known = graph.replicas()
        except ray.exceptions.RayError:
            return False
        return all(len(one) == 1 and one[0][1].pid not in old for one in known.values())

    until("new replicas", restarted)
    check(graph.status()["target"] == 1 and places.nodes_of(0, "twice") == before, graph.status())
    check(numbers(graph.infer({"x": floats([1]), "b": floats([10])})["y"]) == [49], "it serves")
    graph.delete()
    until("all leases have ended", lambda: not any(machine.daemon.leases() for machine in machines))
    groups = [one for one in placement_group_table().values() if one["state"] != "REMOVED"]
    check(groups == [], groups)
    raises(ValueError, "there is no graph", lambda: atoll_ray.get_graph("twice"))
