"""The actor of a deployment: it starts replicas, replaces those that died, and tells clients where they are."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from .endpoint import Endpoint
from .replica import Replica
from .spec import Spec, check_replicas

log = logging.getLogger(__name__)

#: Pause between two looks at the replicas, in seconds.
LOOK_S = 0.25

#: A replica that has answered before and does not answer for this long is replaced, in seconds.
SILENT_S = 10.0

#: A replica that runs and gets no lease for this long is started anew, elsewhere if Ray finds another machine.
UNLEASED_S = 60.0

#: Time for a replica to end its lease, in seconds. Then it is killed, and the lease ends by its time to live.
STOP_S = 10.0

#: Longest pause before replicas are started after those before have died at once, in seconds.
BACKOFF_S_MAX = 30.0


@dataclass
class _Member:
    """A replica as the controller sees it."""

    actor: Any
    call: Any = None
    called_at: float = 0.0
    has_answered: bool = False
    endpoint: Endpoint | None = None
    problem: str | None = "its machine is not found yet"
    unleased_since: float = field(default_factory=time.monotonic)


class Controller:
    """Keeps a number of replicas running."""

    def __init__(self, spec: Spec, bundle: bytes | None) -> None:
        self._spec = spec
        # Replicas get the bundle from Ray's object store.
        self._bundle = None if bundle is None else ray.put(bundle)
        self._lock = threading.Lock()
        self._target = spec.replicas
        self._members: list[_Member] = []
        # Replicas that end their leases.
        self._ending: list[_Member] = []
        self._last_failure: str | None = None
        self._failures = 0
        self._not_before = 0.0
        threading.Thread(target=self._run, name="atoll-controller", daemon=True).start()

    def endpoints(self) -> list[Endpoint]:
        """The replicas that take requests."""
        with self._lock:
            return [member.endpoint for member in self._members if member.endpoint is not None]

    def scale(self, replicas: int) -> None:
        """Changes the number of replicas. What is too many ends its leases."""
        check_replicas(replicas)
        with self._lock:
            self._target = replicas

    def status(self) -> dict[str, Any]:
        """The replicas, why those that have no lease have none, and how many more are ending theirs."""
        with self._lock:
            replicas = [{"endpoint": member.endpoint, "problem": member.problem} for member in self._members]
            ending = len(self._ending)
            return {"target": self._target, "replicas": replicas, "ending": ending, "last_failure": self._last_failure}

    def _run(self) -> None:
        while True:
            try:
                self._look()
            except Exception:
                log.exception("a look at the replicas of %s failed", self._spec.name)
            time.sleep(LOOK_S)

    def _look(self) -> None:
        for member in list(self._members):
            self._ask(member)
        with self._lock:
            surplus = len(self._members) - self._target
            # Those without a lease first, then the newest.
            order = sorted(enumerate(self._members), key=lambda pair: (pair[1].endpoint is not None, -pair[0]))
            self._ending = [member for _, member in order[: max(surplus, 0)]]
            # No client is sent to them from now on.
            self._members = [member for member in self._members if member not in self._ending]
            missing = self._target - len(self._members)
        for member in list(self._ending):
            self._end(member)
        with self._lock:
            self._ending = []
        if missing > 0 and time.monotonic() >= self._not_before:
            started = [_Member(self._start()) for _ in range(missing)]
            with self._lock:
                self._members.extend(started)

    def _start(self) -> Any:
        # An actor that dies is not started again by Ray: a new one gets a new lease, on any machine.
        options: dict[str, Any] = {
            "num_cpus": 0,
            "resources": self._spec.resources,
            "max_restarts": 0,
            "max_concurrency": 4,
            "scheduling_strategy": self._spec.strategy,
        }
        return ray.remote(Replica).options(**options).remote(self._spec, self._bundle)

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
            self._failures, member.unleased_since = 0, now
        elif now - member.unleased_since > UNLEASED_S:
            self._drop(member, f"a replica got no lease for {UNLEASED_S:.0f} s: {member.problem}")

    def _drop(self, member: _Member, why: str) -> None:
        log.warning("a replica of %s is replaced: %s", self._spec.name, why)
        with self._lock:
            self._members = [other for other in self._members if other is not member]
            self._last_failure = why
        if member.endpoint is None:
            # It never worked: do not start others in a tight loop.
            self._not_before = time.monotonic() + min(2.0**self._failures, BACKOFF_S_MAX)
            self._failures += 1
        ray.kill(member.actor)

    def _end(self, member: _Member) -> None:
        if member.has_answered:
            try:
                ray.get(member.actor.stop.remote(), timeout=STOP_S)
            except (GetTimeoutError, RayError) as error:
                log.warning("a replica of %s did not end its lease: %s", self._spec.name, error)
        ray.kill(member.actor)
