"""The actor of a deployment: starts replicas, replaces dead ones, and gives clients the list of replicas.

The controller of a graph (``graphs.py``) has a controller of this kind for each stage. If a deployment is scaled by its
load, a :class:`~atoll_ray.scaler.Scaler` decides which replicas there should be, and where.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .endpoint import LIST_AGE_S, Endpoint
from .fleet import Fleet
from .hints import Hint, Teller
from .kept import Kept
from .places import Places
from .replica import STAGES, STAGES_MAX, Replica
from .rule import Rule
from .scaler import Scaler, Slot
from .scaling import Size
from .spec import Spec, check_replicas

log = logging.getLogger(__name__)

#: Pause between two checks of the replicas, in seconds.
LOOK_S = 0.25

#: A replica that has answered before is replaced if it does not answer for this time, in seconds.
SILENT_S = 10.0

#: A running replica without a lease for this time, in seconds, is replaced, on another machine if Ray finds one.
UNLEASED_S = 60.0

#: A replica that was placed by its machine's free capacity and is refused for this time, in seconds, is placed anew.
REFUSED_S = 3.0

#: A surplus replica keeps its lease for this time, in seconds: until no client has it in its list, and for the requests
#: that are then still running.
DRAIN_S = LIST_AGE_S + 5.0

#: Time for a replica to release its lease, in seconds. After it the replica is killed, and the lease expires.
STOP_S = 10.0

#: A request that waits for the first replica asks again within this time, in seconds. Otherwise it has ended.
WAITING_S = 2.0

#: Longest pause, in seconds, before a replica is started whose predecessors died without a lease.
BACKOFF_S_MAX = 30.0


@dataclass(eq=False)
class _Member:
    """A replica as the controller sees it."""

    actor: Any
    #: The copy of the graph that it belongs to, or the number of a replica that is scaled by its load; otherwise -1.
    copy: int
    #: How many of its predecessors in a row have died without ever having had a lease.
    failures: int = 0
    has_worked: bool = False
    call: Any = None
    called_at: float = 0.0
    has_answered: bool = False
    endpoint: Endpoint | None = None
    problem: str | None = "its machine is not found yet"
    unleased_since: float = field(default_factory=time.monotonic)
    #: Since when its daemon has refused its first lease; 0 if it has not.
    refused_since: float = 0.0
    #: When it releases its lease, and the call that does so.
    end_at: float = 0.0
    end_call: Any = None


@dataclass(frozen=True)
class Vacancy:
    """The place of a replica that died without ever having had a lease. Its successor waits until ``not_before``."""

    #: The copy of the graph that it belongs to; -1 without a graph.
    copy: int
    failures: int
    not_before: float


@dataclass(frozen=True)
class InGraph:
    """Replicas that are a stage of a graph: the replica of each copy runs in the place of that copy."""

    places: Places
    #: The number of the stage in the graph.
    stage: int
    #: Copies of the graph at first. The graph's controller keeps the number.
    copies: int


class Controller:
    """Keeps a number of replicas running."""

    def __init__(self, spec: Spec, bundle: bytes | None, graph: InGraph | None = None) -> None:
        self._spec = spec
        self._graph = graph
        # Replicas get the bundle from Ray's object store.
        self._bundle = None if bundle is None else ray.put(bundle)
        self._lock = threading.Lock()
        self._scaling = threading.Lock()
        # If Ray has restarted this actor, the number that was asked for last.
        self._kept = None if graph is not None else Kept(f"replicas-{spec.name}")
        first = spec.replicas if graph is None else graph.copies
        is_counted = self._kept is not None and spec.scaling is None
        self._target = int(self._kept.value(str(first))) if self._kept is not None and is_counted else first
        self._teller = None if graph is not None else Teller(spec.name)
        self._is_ended = False
        # Requests that wait for the first replica, each with when it asked last.
        self._waiting: dict[str, float] = {}
        self._scaler: Scaler | None = None
        self._slots: dict[int, Slot] = {}
        self._lost: set[int] = set()
        self._refused: set[int] = set()
        self._wake = threading.Event()
        self._members: list[_Member] = []
        # Surplus replicas, which release their leases.
        self._ending: list[_Member] = []
        self._vacancies: list[Vacancy] = []
        #: The copies whose replicas are being started.
        self._starting: list[int] = []
        self._last_failure: str | None = None
        # Made once, since Ray writes each class into its tables when an actor of it is started for the first time.
        # Ray's types do not have these groups.
        self._class = ray.remote(concurrency_groups={STAGES: STAGES_MAX})(Replica)  # type: ignore[call-overload]
        if spec.scaling is not None:
            self._begin_scaling(spec)
        threading.Thread(target=self._run, name="atoll-controller", daemon=True).start()

    def _begin_scaling(self, spec: Spec) -> None:
        assert spec.scaling is not None and self._kept is not None, "stages of graphs have no settings"
        size = Size(spec.request.sm_partition, spec.request.quota_request)
        rule = Rule(spec.scaling.settings(size))
        first = Scaler(spec, rule)
        self._scaler = Scaler(spec, rule, self._kept.value(first.text()))
        self._fleet = Fleet(spec.request.function)
        self._kept_text = self._scaler.text()
        self._slots = dict(self._scaler.slots)
        threading.Thread(target=self._follow_load, name="atoll-scaler", daemon=True).start()

    def endpoints(self) -> list[Endpoint]:
        """The replicas that take requests."""
        with self._lock:
            return [member.endpoint for member in self._members if member.endpoint is not None]

    def replicas(self) -> list[tuple[int, Endpoint, Any]]:
        """The replicas of a graph's stage that take requests: the copy of each, its endpoint and its actor."""
        with self._lock:
            return [(one.copy, one.endpoint, one.actor) for one in self._members if one.endpoint is not None]

    def copies(self) -> set[int]:
        """The copies of a graph that have a replica of this stage, or had one that is still ending."""
        with self._lock:
            return {member.copy for member in self._members + self._ending} | set(self._starting)

    def awaited(self, request: str) -> bool:
        """Notes that a request waits for the first replica. Returns whether one will be started for it."""
        with self._lock:
            if self._scaler is None or self._is_ended:
                return False
            # Its further questions wake nothing: the decision may have been that no machine has room.
            is_new = request not in self._waiting
            self._waiting[request] = time.monotonic()
            if is_new and not self._slots:
                self._wake.set()
            return True

    def end(self) -> None:
        """Ends all replicas, which release their leases."""
        if self._scaler is None:
            return self.scale(0)
        with self._lock:
            self._is_ended = True
            self._slots = {}
        self._wake.set()

    def scale(self, replicas: int) -> None:
        """Changes the number of replicas. Surplus replicas release their leases."""
        check_replicas(replicas)
        if self._scaler is not None:
            raise ValueError(f"deployment `{self._spec.name}` is scaled by its load")
        # One change at a time, so that the kept number is also the target.
        with self._scaling:
            if self._kept is not None:
                self._kept.set(str(replicas))
            with self._lock:
                self._target = replicas

    def status(self) -> dict[str, Any]:
        """The replicas, each with its endpoint or its problem, and the number of surplus replicas that are ending."""
        with self._lock:
            replicas = [{"endpoint": member.endpoint, "problem": member.problem} for member in self._members]
            replicas += [{"endpoint": None, "problem": "it is being started"} for _ in self._starting]
            status = {"target": self._target, "replicas": replicas, "ending": len(self._ending)}
            if self._scaler is not None:
                scaling = self._scaler.status() | {"daemons": self._fleet.problem}
                status |= {"target": len(self._slots), "scaling": scaling}
            return status | {"last_failure": self._last_failure}

    def _run(self) -> None:
        while True:
            try:
                self._look()
                self._hint()
            except Exception:
                log.exception("a check of the replicas of %s failed", self._spec.name)
            time.sleep(LOOK_S)

    def _follow_load(self) -> None:
        """Decides about the replicas, again and again."""
        scaler = self._scaler
        assert scaler is not None and self._spec.scaling is not None, "it is scaled"
        while not self._is_ended:
            try:
                self._decide(scaler)
            except Exception:
                log.exception("the replicas of %s were not scaled", self._spec.name)
            self._wake.wait(self._spec.scaling.interval_ms / 1000)
            self._wake.clear()
        scaler.close()
        self._fleet.close()

    def _decide(self, scaler: Scaler) -> None:
        """Decides once: asks the daemons for load and room, and sets which replicas there should be."""
        machines = self._fleet.look()
        now = time.monotonic()
        with self._lock:
            self._waiting = {request: at for request, at in self._waiting.items() if now - at <= WAITING_S}
            waiting, lost, refused = set(self._waiting), self._lost, self._refused
            self._lost, self._refused = set(), set()
            members = [(one.copy, one.endpoint) for one in self._members if one.endpoint is not None]
            leased = {copy: (endpoint.url, endpoint.instance) for copy, endpoint in members}
            ending = {(one.endpoint.url, one.endpoint.instance) for one in self._ending if one.endpoint is not None}
            # They have a replica now, and go there.
            waiting = set() if leased else waiting
        for number in refused:
            scaler.refused(number)
        for number in lost:
            scaler.lost(number)
        scaler.step(int(now * 1e9), machines, leased, ending, waiting)
        if self._kept is not None and scaler.text() != self._kept_text:
            self._kept.set(scaler.text())
            self._kept_text = scaler.text()
        with self._lock:
            if not self._is_ended:
                # The scaler learns with the next decision which replicas were refused or lost during this one.
                slots = {number: slot for number, slot in scaler.slots.items() if number not in self._refused}
                self._slots = slots | {at: replace(slots[at], node=None) for at in self._lost & slots.keys()}

    def _look(self) -> None:
        for member in list(self._members):
            self._ask(member)
        now = time.monotonic()
        # Under one lock, so a replica is always in one of the two lists.
        with self._lock:
            ending = self._surplus()
            for member in ending:
                member.end_at = now + DRAIN_S if member.endpoint is not None else now
            # From now on, clients do not get them in the list.
            self._members = [member for member in self._members if member not in ending]
            self._ending += ending
            due = self._due(now)
            self._starting = [copy for copy, _ in due]
        try:
            for copy, failures in due:
                # Without the lock, since Ray's tables may be out of reach for a while. Clients get the list meanwhile.
                member = _Member(self._start(copy), copy, failures)
                with self._lock:
                    self._starting.remove(copy)
                    self._members.append(member)
        finally:
            with self._lock:
                self._starting = []
        for member in list(self._ending):
            if self._has_ended(member, now):
                ray.kill(member.actor)
                with self._lock:
                    self._ending.remove(member)

    def _surplus(self) -> list[_Member]:
        """The replicas that are too many. The caller holds the lock."""
        if self._scaler is not None:
            return [member for member in self._members if member.copy not in self._slots]
        if self._graph is not None:
            # The same copies of each stage, even if another stage of a lower copy is missing.
            return [member for member in self._members if member.copy >= self._target]
        # Replicas without a lease first, then the newest.
        order = sorted(enumerate(self._members), key=lambda pair: (pair[1].endpoint is not None, -pair[0]))
        return [member for _, member in order[: max(len(order) - self._target, 0)]]

    def _due(self, now: float) -> list[tuple[int, int]]:
        """The replicas to start now, each with its copy and failures before. The caller holds the lock."""
        if self._scaler is not None:
            missing = sorted(self._slots.keys() - {member.copy for member in self._members})
        elif self._graph is None:
            missing = [-1] * max(self._target - len(self._members), 0)
        else:
            # A successor waits until its predecessor has left the place.
            taken = {member.copy for member in self._members + self._ending}
            missing = [copy for copy in range(self._target) if copy not in taken]
        due, self._vacancies = starts(missing, self._vacancies, now)
        return due

    def _start(self, copy: int) -> Any:
        # Ray does not restart a dead actor: its successor gets a new lease, on any machine.
        options: dict[str, Any] = {
            "num_cpus": 0,
            "resources": self._spec.resources,
            "max_restarts": 0,
            "max_concurrency": 4,
            "scheduling_strategy": self._spec.strategy,
        }
        spec = self._spec
        if self._graph is not None:
            options["scheduling_strategy"] = self._graph.places.strategy(copy, self._graph.stage)
        if self._scaler is not None:
            with self._lock:
                slot = self._slots.get(copy)
            # One that is no longer wanted is started, too, and then ended as any other.
            if slot is not None:
                spec = spec.sized(slot.size)
                options["resources"] = spec.resources
                if slot.node is not None:
                    # Another machine, if this one is gone.
                    options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(slot.node, soft=True)
        return self._class.options(**options).remote(spec, self._bundle)

    def _hint(self) -> None:
        """Tells the autoscaler for how many replicas there should be room."""
        if self._teller is None:
            return
        with self._lock:
            target, slots = self._target, list(self._slots.values())
        if self._scaler is not None:
            # Further replicas are as large as the newest one.
            bundles = [self._spec.sized(slot.size).resources for slot in slots]
            bundles += bundles[-1:] * self._spec.headroom
            return self._teller.tell(Hint.of(bundles, 1) if self._spec.headroom > 0 and slots else None)
        # All replicas, since the autoscaler counts whole machines and not what is free.
        is_hinted = self._spec.headroom > 0 and target > 0
        hint = Hint.of([self._spec.resources], target + self._spec.headroom) if is_hinted else None
        self._teller.tell(hint)

    def _ask(self, member: _Member) -> None:
        now = time.monotonic()
        if member.call is None:
            member.call, member.called_at = member.actor.report.remote(), now
        ready, _ = ray.wait([member.call], timeout=0)
        if not ready:
            if member.has_answered and now - member.called_at > SILENT_S:
                self._drop(member, f"a replica did not answer for {SILENT_S:.0f} s")
            return
        call, member.call = member.call, None
        try:
            report = ray.get(call)
        except RayActorError as error:
            return self._drop(member, str(error))
        except RayError as error:
            return self._drop(member, repr(error))
        endpoint = report["endpoint"]
        with self._lock:
            member.has_answered = True
            member.endpoint, member.problem = endpoint, report["problem"]
        if endpoint is not None:
            member.has_worked, member.unleased_since = True, now
        elif now - member.unleased_since > UNLEASED_S:
            self._drop(member, f"a replica got no lease for {UNLEASED_S:.0f} s: {member.problem}")
        elif report["problem"] is not None:
            self._place_anew(member, now)

    def _place_anew(self, member: _Member, now: float) -> None:
        """Gives up the place of a replica whose machine has no room for it, contrary to what it seemed."""
        with self._lock:
            slot = self._slots.get(member.copy)
            if slot is None or slot.node is None or member.has_worked:
                return
            member.refused_since = member.refused_since or now
            if now - member.refused_since > REFUSED_S:
                log.info("a replica of %s is placed anew: %s", self._spec.name, member.problem)
                # With its slot gone, it is a surplus replica.
                del self._slots[member.copy]
                self._refused.add(member.copy)

    def _drop(self, member: _Member, why: str) -> None:
        log.warning("a replica of %s is replaced: %s", self._spec.name, why)
        with self._lock:
            self._members = [other for other in self._members if other is not member]
            self._last_failure = why
            if not member.has_worked and member.copy in self._slots:
                # Its successor is not bound to the machine, which may have no room.
                self._slots[member.copy] = replace(self._slots[member.copy], node=None)
                self._lost.add(member.copy)
            if not member.has_worked:
                not_before = time.monotonic() + pause_after(member.failures)
                self._vacancies.append(Vacancy(member.copy, member.failures + 1, not_before))
        ray.kill(member.actor)

    def _has_ended(self, member: _Member, now: float) -> bool:
        """Whether a replica has released its lease, or cannot. Asks it to do so without waiting."""
        if not member.has_answered:
            return True
        if member.end_call is None:
            if now >= member.end_at:
                member.end_call = member.actor.stop.remote()
            return False
        ready, _ = ray.wait([member.end_call], timeout=0)
        if not ready and now - member.end_at <= STOP_S:
            return False
        try:
            ray.get(member.end_call, timeout=0)
        except (GetTimeoutError, RayError) as error:
            log.warning("a replica of %s did not end its lease: %s", self._spec.name, error)
        return True


def starts(missing: list[int], vacancies: list[Vacancy], now: float) -> tuple[list[tuple[int, int]], list[Vacancy]]:
    """The replicas to start now, each with its copy and failures before, and the vacancies that still wait.

    ``missing`` has the copy of each missing replica. A vacancy that is no longer missing is forgotten.
    """
    due: list[tuple[int, int]] = []
    waiting: list[Vacancy] = []
    others = list(vacancies)
    for copy in missing:
        vacancy = next((one for one in others if one.copy == copy), None)
        if vacancy is None:
            due.append((copy, 0))
            continue
        others.remove(vacancy)
        if vacancy.not_before <= now:
            due.append((copy, vacancy.failures))
        else:
            waiting.append(vacancy)
    return due, waiting


def pause_after(failures: int) -> float:
    """Pause in seconds before the successor of a replica without a lease is started, after so many failures."""
    return min(2.0 ** min(failures, 16), BACKOFF_S_MAX)
