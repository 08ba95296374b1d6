"""One request to a graph: calls its stages in order, on the replicas of one copy where it can.

The caller's machine has the only clock that counts for the deadline. It tells each stage how many seconds are left.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError

from .daemon import DaemonError
from .endpoint import Endpoint, NoReplica
from .known import Known
from .stage import Call, Plan, Report, Step, Transit
from .tensor import Tensor

#: For each stage, the replicas that take requests: the copy of each, its endpoint and its actor.
Replicas = dict[str, list[tuple[int, Endpoint, Any]]]

#: Inputs of up to this size travel with the call. Larger ones are put into Ray's object store once.
INLINE_BYTES = 64 << 10

#: Status of a request whose deadline passed, and of one whose lease ended.
LATE = 504
ENDED = 410


class StageFailed(DaemonError):
    """A stage of a graph failed. ``status`` and ``was_sent`` are those of its request to the daemon."""


@dataclass
class _Going:
    """A call of a stage."""

    step: Step
    endpoint: Endpoint
    outputs: list[Any]
    began: float
    budget_s: float
    #: The replicas that got the stage.
    tried: set[tuple[str, str]]


class Run:
    """One attempt to run a graph."""

    def __init__(
        self,
        graph: str,
        plan: Plan,
        known: Known[Replicas],
        transit: Transit,
        until: float,
        parameters: dict[str, Any],
        idempotent: bool,
        turn: int,
    ) -> None:
        self._graph = graph
        self._plan = plan
        self._known = known
        self._transit = transit
        self._until = until
        self._parameters = parameters
        self._idempotent = idempotent
        self._turn = turn
        #: Each tensor by its stage ("" for inputs of the graph) and name: an object reference, or a small tensor.
        self._values: dict[tuple[str, str], Any] = {}
        self._going: dict[Any, _Going] = {}

    def outputs(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Runs the graph. Raises ``RayError`` if a tensor is lost, and otherwise as ``GraphHandle.infer``."""
        for name, tensor in inputs.items():
            self._values["", name] = ray.put(tensor) if tensor.data.nbytes > INLINE_BYTES else tensor
        try:
            self._run_all()
            names, sources = zip(*self._plan.outputs, strict=True)
            try:
                found = ray.get([self._values[source] for source in sources], timeout=self._left("its outputs come"))
            except GetTimeoutError as error:
                raise TimeoutError(f"the deadline of graph `{self._graph}` passed while its outputs came") from error
            return dict(zip(names, found, strict=True))
        finally:
            # Those that a replica has not begun. The others end at the daemon, since they have a time limit.
            for ref in self._going:
                with contextlib.suppress(Exception):
                    ray.cancel(ref)

    def _run_all(self) -> None:
        waiting = list(self._plan.steps)
        done: set[str] = set()
        while waiting or self._going:
            for step in [step for step in waiting if step.after <= done]:
                waiting.remove(step)
                self._start(step, set())
            names = ", ".join(f"`{going.step.name}`" for going in self._going.values())
            ready, _ = ray.wait(list(self._going), timeout=self._left(f"{names} ran"))
            for ref in ready:
                going = self._going.pop(ref)
                report = self._report(ref, going)
                if report.problem is None:
                    self._transit.note(going.endpoint.node, time.monotonic() - going.began, report.took_s)
                    self._values |= {
                        (going.step.name, name): output
                        for name, output in zip(going.step.outputs, going.outputs, strict=True)
                    }
                    done.add(going.step.name)
                elif report.may_be_repeated or (self._idempotent and report.status in (None, ENDED)):
                    self._start(going.step, going.tried, report.problem)
                elif report.status == LATE:
                    raise TimeoutError(
                        f"stage `{going.step.name}` of graph `{self._graph}` had {going.budget_s:.3f} s left, which "
                        f"passed: {report.problem}"
                    )
                else:
                    message = f"stage `{going.step.name}` of graph `{self._graph}` failed: {report.problem}"
                    raise StageFailed(message, report.status, report.was_sent)

    def _report(self, ref: Any, going: _Going) -> Report:
        try:
            report: Report = ray.get(ref)
        except (RayActorError, ActorUnavailableError) as error:
            # It may have begun the stage.
            return Report(0.0, f"its replica at {going.endpoint.url} has ended: {error}", None, True)
        return report

    def _left(self, what: str) -> float:
        """The seconds that are left. Raises ``TimeoutError`` if there are none."""
        if (left := self._until - time.monotonic()) <= 0:
            raise TimeoutError(f"the deadline of graph `{self._graph}` passed while {what}")
        return left

    def _start(self, step: Step, tried: set[tuple[str, str]], problem: str | None = None) -> None:
        """Calls a stage on a replica that did not get it yet. `problem` is why the last one did not run it."""
        endpoint, actor = self._replica(step, tried, problem)
        tried.add((endpoint.url, endpoint.instance))
        budget = self._transit.budget(endpoint.node, self._left(f"stage `{step.name}` waited"))
        call = Call(tuple(name for name, _ in step.inputs), step.outputs, self._parameters, budget)
        tensors = [self._values[source] for _, source in step.inputs]
        began = time.monotonic()
        refs = actor.run.options(num_returns=1 + len(step.outputs)).remote(call, *tensors)
        self._going[refs[0]] = _Going(step, endpoint, list(refs[1:]), began, budget, tried)

    def _replica(self, step: Step, tried: set[tuple[str, str]], problem: str | None) -> tuple[Endpoint, Any]:
        """The replica of the request's copy, or of the next copy that has one."""
        for refresh in (False, True):
            left = self._left(f"stage `{step.name}` waited")
            found = [
                (copy, endpoint, actor)
                for copy, endpoint, actor in self._known.get(refresh, left).get(step.name, [])
                if (endpoint.url, endpoint.instance) not in tried
            ]
            if found:
                copies = 1 + max(copy for copy, _, _ in found)
                _, endpoint, actor = min(found, key=lambda one: (one[0] - self._turn) % copies)
                return endpoint, actor
        said = f"; the last one: {problem}" if problem else ""
        raise NoReplica(f"no replica of stage `{step.name}` of graph `{self._graph}` takes requests{said}")
