"""Checks of how a request goes through a graph, with replicas and a Ray that are played by this file."""

from __future__ import annotations

import functools
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from machines import check, raises
from ray.exceptions import RayActorError, RayError

from atoll_ray import run
from atoll_ray.endpoint import Endpoint, NoReplica
from atoll_ray.known import Known
from atoll_ray.run import Replicas, Run, StageFailed
from atoll_ray.stage import Call, Plan, Report, Stage, Transit
from atoll_ray.tensor import Tensor

Answer = Callable[[Call, tuple[Any, ...]], Any]

#: How replicas may answer a call, besides with a report and outputs.
NOT_BEGUN = Report(0.0, "busy", 503, True)
UNSENT = Report(0.0, "no connection", None, False)
NO_ANSWER = Report(0.0, "no answer", None, True)
LEASE_ENDED = Report(0.0, "the lease ended", 410, True)
LATE = Report(0.0, "the deadline passed", 504, True)
WRONG = Report(0.0, "bad input", 400, True)


class Ref:
    """A reference: to a value, to an error, or to nothing yet."""

    def __init__(self, value: Any = None, is_ready: bool = True) -> None:
        self.value, self.is_ready = value, is_ready


class Ray:
    """Stands for the module of Ray."""

    def __init__(self) -> None:
        self.cancelled: list[Ref] = []

    def put(self, value: Any) -> Ref:
        return Ref(value)

    def get(self, refs: Any, timeout: float | None = None) -> Any:
        if isinstance(refs, list):
            return [self.get(ref) for ref in refs]
        value = refs.value if isinstance(refs, Ref) else refs
        if isinstance(value, Exception):
            raise value
        return value

    def wait(self, refs: Sequence[Ref], timeout: float) -> tuple[list[Ref], list[Ref]]:
        ready = [ref for ref in refs if ref.is_ready][:1]
        if not ready:
            time.sleep(timeout)
        return ready, [ref for ref in refs if ref not in ready]

    def cancel(self, ref: Ref) -> None:
        self.cancelled.append(ref)


class Actor:
    """Stands for the actor of a replica. ``answers`` are those of its calls; the last one repeats."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.calls: list[Call] = []

    @property
    def run(self) -> Actor:
        return self

    def options(self, num_returns: int) -> Actor:
        self._returns = num_returns
        return self

    def remote(self, call: Call, *inputs: Any) -> list[Ref]:
        check(self._returns == 1 + len(call.outputs) and len(inputs) == len(call.inputs), call)
        self.calls.append(call)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer == "hangs":
            return [Ref(is_ready=False)] * self._returns
        if isinstance(answer, (Report, Exception)):
            return [Ref(answer)] + [Ref(answer)] * len(call.outputs)
        given = [one.value if isinstance(one, Ref) else one for one in inputs]
        return [Ref(Report(0.001)), *[Ref(answer(given)) for _ in call.outputs]]


def number(value: float) -> Tensor:
    return Tensor.from_bytes("FP32", (1,), struct.pack("<f", value))


def value(tensor: Tensor) -> float:
    found: float = struct.unpack("<f", tensor.data)[0]
    return found


def double(given: list[Tensor]) -> Tensor:
    return number(2 * value(given[0]))


def add(given: list[Tensor]) -> Tensor:
    return number(value(given[0]) + value(given[1]))


def diamond() -> Plan:
    """x doubled twice on two ways, then added."""
    left, right = Stage("left", "f", {"x": "x"}, 1), Stage("right", "f", {"x": "left.y"}, 1)
    return Plan.of([left, right, Stage("sum", "f", {"a": "left.y", "b": "right.y"}, 1)], {"y": "sum.y"})


def replicas(**actors: list[Any]) -> Replicas:
    return {
        name: [(copy, Endpoint("u", "f", f"{name}-{copy}", 1, 1, 1, "node"), one) for copy, one in enumerate(some)]
        for name, some in actors.items()
    }


def play(
    known: Replicas, idempotent: bool = False, deadline_s: float = 60.0, turn: int = 0, later: Replicas | None = None
) -> tuple[float, Ray]:
    """Runs the diamond on 1. ``later`` is what the controller answers when it is asked again."""
    ray = Ray()
    lists = Known(lambda _: later or known, known)
    # The list is fresh.
    lists._asked_at = time.monotonic()
    with mock.patch.object(run, "ray", ray):
        one = Run("g", diamond(), lists, Transit(), time.monotonic() + deadline_s, {"priority": 1}, idempotent, turn)
        try:
            return value(one.outputs({"x": number(1)})["y"]), ray
        finally:
            play.ray = ray  # type: ignore[attr-defined]


def test_runs() -> None:
    good = replicas(left=[Actor(double)], right=[Actor(double)], sum=[Actor(add)])
    check(play(good)[0] == 6.0, "2 + 4")
    budgets = [some[0][2].calls[0].budget_s for some in good.values()]
    # The order of the calls is not fixed.
    check(60.0 >= max(budgets) and min(budgets) > 0, budgets)
    check(good["sum"][0][2].calls[0].parameters == {"priority": 1}, "parameters")

    # A request prefers one copy for all stages.
    pairs = {name: [Actor(add if name == "sum" else double) for _ in "ab"] for name in good}
    play(replicas(**pairs), turn=1)
    check([[len(actor.calls) for actor in some] for some in pairs.values()] == [[0, 1]] * 3, "copy 1")

    for failed, repeated_always, kind in [
        (NOT_BEGUN, True, StageFailed),
        (UNSENT, True, StageFailed),
        (NO_ANSWER, False, StageFailed),
        (LEASE_ENDED, False, StageFailed),
        (RayActorError(), False, StageFailed),
        (LATE, None, TimeoutError),
        (WRONG, None, StageFailed),
    ]:
        for idempotent in (False, True):
            second = Actor(double)
            known = replicas(left=[Actor(double)], right=[Actor(failed), second], sum=[Actor(add)])
            if repeated_always or (idempotent and repeated_always is False):
                check(play(known, idempotent)[0] == 6.0 and len(second.calls) == 1, failed)
            else:
                fails = functools.partial(play, known, idempotent)
                raises(kind, "stage `right`", fails)
                check(second.calls == [] and known["sum"][0][2].calls == [], failed)

    # No replica gets a stage twice, and the controller is asked once more.
    busy = Actor(NOT_BEGUN)
    known = replicas(left=[Actor(double)], right=[busy], sum=[Actor(add)])
    raises(NoReplica, "stage `right`", lambda: play(known, True))
    check(len(busy.calls) == 1, busy.calls)
    new = replicas(left=[], right=[busy, Actor(double)], sum=[Actor(add)])
    check(play(known, later=new)[0] == 6.0, "a replica that is new")

    # At the deadline, what hangs is cancelled and nothing else is begun.
    known = replicas(left=[Actor(double)], right=[Actor("hangs")], sum=[Actor(add)])
    raises(TimeoutError, "passed while `right` ran", lambda: play(known, deadline_s=0.05))
    check(len(play.ray.cancelled) == 1 and known["sum"][0][2].calls == [], "cancelled")  # type: ignore[attr-defined]

    # A tensor that is lost with its machine is for the caller, who may begin again.
    known = replicas(left=[Actor(double)], right=[Actor(RayError("lost"))], sum=[Actor(add)])
    raises(RayError, "lost", lambda: play(known, True))
