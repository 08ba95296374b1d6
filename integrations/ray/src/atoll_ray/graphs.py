"""Graphs of functions whose stages run on several machines: deploy, find, scale and delete them.

The actor of a graph has a controller for each stage, and a placement group for each copy of the graph. ``run.py``
sends requests through the stages.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from . import actors, places
from .controller import Controller, InGraph
from .deployment import load
from .endpoint import NoReplica
from .hints import Hint, Teller
from .kept import Kept
from .known import ANSWER_S, Known
from .run import Replicas, Run, StageFailed
from .spec import Spec, check_replicas, priority
from .stage import Plan, Stage, Transit
from .tensor import Tensor

log = logging.getLogger(__name__)

#: Pause between two looks for copies that have ended, in seconds.
LOOK_S = 0.5

#: Times that an idempotent request is sent through the graph, at most.
ATTEMPTS = 3


@dataclass(frozen=True)
class GraphSpec:
    """A graph: each copy has one replica of each stage."""

    name: str
    plan: Plan
    #: In the order of the plan.
    stages: tuple[Spec, ...]
    copies: int
    strategy: str
    deadline_s: float
    #: Further copies for which Ray's autoscaler should have room.
    headroom: int


class GraphController:
    """Keeps a number of copies of a graph running."""

    def __init__(self, spec: GraphSpec, *bundles: bytes | None) -> None:
        self._spec = spec
        self._lock = threading.Lock()
        # One change of the number at a time, so that the kept number is also that of the stages.
        self._scaling = threading.Lock()
        # If Ray has restarted this actor, the number that was asked for last.
        self._kept = Kept(f"copies-{spec.name}")
        self._target = int(self._kept.value(str(spec.copies)))
        is_restarted = bool(ray.get_runtime_context().was_current_actor_reconstructed)
        resources = [stage.resources for stage in spec.stages]
        self._places = places.Places(spec.name, resources, spec.strategy, is_restarted)
        self._controllers = {
            step.name: Controller(stage, bundle, InGraph(self._places, at, self._target))
            for at, (step, stage, bundle) in enumerate(zip(spec.plan.steps, spec.stages, bundles, strict=True))
        }
        self._teller = Teller(f"graph/{spec.name}")
        threading.Thread(target=self._run, name="atoll-graph", daemon=True).start()

    def about(self) -> tuple[Plan, float]:
        """The plan of the graph, and the deadline of requests that state none, in seconds."""
        return self._spec.plan, self._spec.deadline_s

    def replicas(self) -> Replicas:
        """For each stage the replicas that take requests: the copy of each, its endpoint and its actor."""
        return {name: controller.replicas() for name, controller in self._controllers.items()}

    def scale(self, copies: int) -> None:
        """Changes the number of copies. The replicas of surplus ones release their leases."""
        check_replicas(copies, "copies")
        with self._scaling:
            self._kept.set(str(copies))
            with self._lock:
                self._target = copies
            for controller in self._controllers.values():
                controller.scale(copies)

    def status(self) -> dict[str, Any]:
        """The target number of copies, the state of each copy's placement group, and the status of each stage."""
        with self._lock:
            target = self._target
        stages = {name: controller.status() for name, controller in self._controllers.items()}
        return {"target": target, "places": self._places.states(), "stages": stages}

    def _run(self) -> None:
        while True:
            try:
                self._look()
            except Exception:
                log.exception("a check of the copies of %s failed", self._spec.name)
            time.sleep(LOOK_S)

    def _look(self) -> None:
        with self._scaling:
            target = self._target
            # A controller starts no replica in a copy from the target on, so its place does not come into use again.
            in_use = {copy for controller in self._controllers.values() for copy in controller.copies()}
            self._places.trim(target, in_use)
        resources = [stage.resources for stage in self._spec.stages]
        is_hinted = self._spec.headroom > 0 and target > 0
        self._teller.tell(Hint.of(resources, target + self._spec.headroom) if is_hinted else None)


def deploy_graph(
    name: str,
    stages: Sequence[Stage],
    outputs: Mapping[str, str],
    *,
    copies: int = 1,
    strategy: str = "PACK",
    deadline_s: float = 60.0,
    ttl_s: int = 15,
    headroom: int = 0,
) -> GraphHandle:
    """Starts copies of a graph on the machines of the cluster, and returns at once; see :meth:`GraphHandle.wait`.

    ``stages`` are in the order of their dependencies, and ``outputs`` names the source of each output as
    ``STAGE.OUTPUT``. Each copy has one replica of each stage, which holds a lease. Ray reserves their resources
    together, in a placement group: with ``PACK`` on one machine if there is room, with ``SPREAD`` on several, and with
    ``STRICT_PACK`` and ``STRICT_SPREAD`` only so. ``deadline_s`` is the deadline of requests that state none.

    Raises ``ValueError`` if an argument is invalid or the name is in use.
    """
    plan = Plan.of(stages, outputs)
    if strategy not in places.STRATEGIES:
        raise ValueError(f"strategy {strategy!r}: it is one of {', '.join(places.STRATEGIES)}")
    check_replicas(copies, "copies")
    check_replicas(headroom, "headroom")
    check_deadline(deadline_s)
    loaded = [load(stage.source) for stage in stages]
    # The name of the graph and those of its stages are checked, and then joined.
    specs = [
        dataclasses.replace(
            Spec.of(name, function, stage.sm, stage.quota, stage.mem, stage.class_, copies, ttl_s),
            name=f"{name}.{stage.name}",
        )
        for stage, (_, function) in zip(stages, loaded, strict=True)
    ]
    spec = GraphSpec(name, plan, tuple(specs), copies, strategy, deadline_s, headroom)
    try:
        controller = actors.start(GraphController, _actor(name), spec, *(bundle for bundle, _ in loaded))
    except ValueError as error:
        message = f"there is a graph `{name}` already; use atoll_ray.get_graph({name!r}), or delete it"
        raise ValueError(message) from error
    return GraphHandle(name, controller)


def get_graph(name: str) -> GraphHandle:
    """The graph with this name.

    Raises ``ValueError`` if there is none.
    """
    try:
        return GraphHandle(name, actors.find(_actor(name)))
    except ValueError as error:
        raise ValueError(f"there is no graph `{name}`; atoll_ray.deploy_graph creates one") from error


class GraphHandle:
    """A graph. Threads may share a handle."""

    def __init__(self, name: str, controller: Any) -> None:
        self.name = name
        self._controller = controller
        none: Replicas = {}
        self._known = Known(self._ask_replicas, none)
        self._about: tuple[Plan, float] | None = None
        self._transit = Transit()
        self._turn = itertools.count()

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return get_graph, (self.name,)

    def infer(
        self,
        inputs: Mapping[str, Any],
        *,
        deadline_s: float | None = None,
        class_: str | None = None,
        idempotent: bool = False,
    ) -> dict[str, Tensor]:
        """Runs the graph. An input is a NumPy array or a ``Tensor``; ``Tensor.numpy`` gives an output as array.

        Tensors between stages go from machine to machine through Ray's object store, and stages on one machine share
        them. Each stage gets the time that is left, as a duration. It ends when it is over, and stages that have not
        begun then are not run. If a replica has not begun a stage, another one runs it; if it may have begun it, only
        with ``idempotent``.

        Raises ``TimeoutError`` after ``deadline_s`` seconds, ``NoReplica``, ``StageFailed``, ``ValueError`` or
        ``TypeError``.
        """
        began = time.monotonic()
        given = None if deadline_s is None else check_deadline(deadline_s)
        try:
            # Only the first request asks the controller.
            plan, usual = self._plan(ANSWER_S if given is None else min(given, ANSWER_S))
        except GetTimeoutError as error:
            raise TimeoutError(f"the controller of graph `{self.name}` did not answer in time") from error
        except RayError as error:
            raise NoReplica(f"the controller of graph `{self.name}` does not answer: {error!r}") from error
        until = began + (usual if given is None else given)
        if inputs.keys() != plan.inputs:
            raise ValueError(f"the inputs are {sorted(inputs)}, but the graph has {sorted(plan.inputs)}")
        parameters = priority(class_)
        tensors = {name: Tensor.of(value) for name, value in inputs.items()}
        failed: RayError | None = None
        for _ in range(ATTEMPTS if idempotent else 1):
            run = Run(self.name, plan, self._known, self._transit, until, parameters, idempotent, next(self._turn))
            try:
                return run.outputs(tensors)
            except RayError as error:
                # A tensor was lost with its machine. The stages before it must run again.
                failed = error
        raise StageFailed(f"a call of graph `{self.name}` or a tensor was lost: {failed!r}") from failed

    def status(self) -> dict[str, Any]:
        """The target number of copies, the state of each copy's placement group, and the status of each stage."""
        found: dict[str, Any] = ray.get(self._controller.status.remote(), timeout=ANSWER_S)
        return found

    def replicas(self) -> Replicas:
        """For each stage the replicas that take requests: the copy of each, its endpoint and its actor.

        Raises ``ray.exceptions.RayError`` if the controller does not answer.
        """
        return self._known.ask(ANSWER_S)

    def wait(self, copies: int, timeout_s: float = 60.0) -> None:
        """Waits until each stage has exactly so many replicas that take requests.

        Raises ``TimeoutError``, whose message says why the others do not.
        """
        until = time.monotonic() + timeout_s
        plan, _ = self._plan(ANSWER_S)
        while any(len(self._known.get(True, ANSWER_S).get(step.name, [])) != copies for step in plan.steps):
            if time.monotonic() > until:
                raise TimeoutError(f"not all of {copies} copies take requests: {self.status()}")
            time.sleep(0.1)

    def scale(self, copies: int) -> None:
        """Changes the number of copies, until the next :meth:`scale`."""
        check_replicas(copies, "copies")
        ray.get(self._controller.scale.remote(copies), timeout=ANSWER_S)

    def delete(self, timeout_s: float = 60.0) -> None:
        """Releases all leases, removes the placement groups and ends the graph. Its name is free afterwards."""
        until = time.monotonic() + timeout_s
        try:
            self.scale(0)
            while _is_there(self.status()) and time.monotonic() < until:
                time.sleep(0.1)
        except RayError as error:
            log.warning("the controller of graph %s does not answer: %s", self.name, error)
        ray.kill(self._controller)
        places.remove(self.name)
        actors.wait_for_end(_actor(self.name), until)

    def _ask_replicas(self, timeout_s: float) -> Replicas:
        found: Replicas = ray.get(self._controller.replicas.remote(), timeout=timeout_s)
        return found

    def _plan(self, timeout_s: float) -> tuple[Plan, float]:
        if self._about is None:
            self._about = ray.get(self._controller.about.remote(), timeout=timeout_s)
        return self._about


def check_deadline(deadline_s: float) -> float:
    """Raises ``ValueError`` if a deadline is invalid: it is a duration, not a time of day."""
    if isinstance(deadline_s, bool) or not isinstance(deadline_s, (int, float)) or not 0 < deadline_s <= 86_400:
        raise ValueError(f"deadline_s {deadline_s!r}: seconds above 0 and up to a day are possible")
    return float(deadline_s)


def _is_there(status: dict[str, Any]) -> bool:
    """Whether a graph still has replicas or placement groups."""
    return bool(status["places"]) or any(one["replicas"] or one["ending"] for one in status["stages"].values())


def _actor(name: str) -> str:
    # Deployments have names without `/`.
    return f"atoll/graph/{name}"
