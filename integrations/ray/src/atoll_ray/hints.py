"""Hints for Ray's autoscaler: how much room deployments will need soon.

Replicas that wait for a machine are a demand of their own, which the autoscaler sees. A hint is for replicas that do
not exist yet, so that a machine is there before they are started. Ray has one such request for the whole cluster, and
each call replaces it. So one actor collects the hints of all deployments and sends their sum.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.autoscaler.sdk import request_resources
from ray.exceptions import RayError

from .actors import NAMESPACE

log = logging.getLogger(__name__)

#: Name of the actor.
ACTOR = "atoll-hints"

#: A deployment repeats its hint after this time, in seconds.
REPEAT_S = 10.0

#: A hint counts for this time, in seconds: the controller of its deployment may have ended.
FORGET_S = 6 * REPEAT_S

#: Pause between two sums, in seconds.
LOOK_S = 1.0


@dataclass(frozen=True)
class Hint:
    """Room for ``count`` times all of ``bundles``, which are resources of Ray."""

    bundles: tuple[tuple[tuple[str, float], ...], ...]
    count: int

    @classmethod
    def of(cls, bundles: list[dict[str, float]], count: int) -> Hint:
        """A hint, in a form that can be compared."""
        return cls(tuple(tuple(sorted(bundle.items())) for bundle in bundles), count)


class Sum:
    """The hints of all deployments, each until it is too old."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._hints: dict[str, tuple[Hint, float]] = {}

    def tell(self, name: str, hint: Hint | None) -> None:
        """Replaces the hint of a deployment."""
        self._hints.pop(name, None)
        if hint is not None and hint.count > 0:
            self._hints[name] = (hint, self._clock())

    def bundles(self) -> list[dict[str, float]]:
        """The sum, as bundles for Ray."""
        now = self._clock()
        self._hints = {name: pair for name, pair in self._hints.items() if now - pair[1] <= FORGET_S}
        hints = [self._hints[name][0] for name in sorted(self._hints)]
        return [dict(bundle) for hint in hints for _ in range(hint.count) for bundle in hint.bundles]


class Hints:
    """The actor that tells Ray's autoscaler the sum of all hints."""

    def __init__(self) -> None:
        self._sum = Sum()
        self._lock = threading.Lock()
        # Ray keeps what the predecessor of a restarted actor sent. Deployments repeat their hints first.
        is_restarted = bool(ray.get_runtime_context().was_current_actor_reconstructed)
        self._sent: list[dict[str, float]] | None = None if is_restarted else []
        self._not_before = time.monotonic() + (2 * REPEAT_S if is_restarted else 0.0)
        threading.Thread(target=self._run, name="atoll-hints", daemon=True).start()

    def tell(self, name: str, hint: Hint | None) -> None:
        """Replaces the hint of a deployment; ``None`` removes it."""
        with self._lock:
            self._sum.tell(name, hint)

    def sent(self) -> list[dict[str, float]] | None:
        """What the autoscaler was told last; ``None`` if a predecessor of this actor told it."""
        with self._lock:
            return self._sent

    def _run(self) -> None:
        while True:
            try:
                self._send()
            except Exception:
                log.exception("the hints for the autoscaler could not be sent")
            time.sleep(LOOK_S)

    def _send(self) -> None:
        if time.monotonic() < self._not_before:
            return
        with self._lock:
            bundles, sent = self._sum.bundles(), self._sent
        if bundles == sent:
            return
        request_resources(bundles=bundles)
        with self._lock:
            self._sent = bundles


class Teller:
    """Tells the hint of one deployment when it changes, and again before it is too old. Never waits for the actor."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._told: Hint | None = None
        self._told_at = 0.0

    def tell(self, hint: Hint | None) -> None:
        """Tells a hint, or that there is none any more."""
        now = time.monotonic()
        if hint == self._told and (hint is None or now - self._told_at < REPEAT_S):
            return
        try:
            actor().tell.remote(self._name, hint)
        except RayError as error:
            log.warning("the hint of %s was not told: %s", self._name, error)
            return
        self._told, self._told_at = hint, now


def actor() -> Any:
    """The actor of the hints; starts it if there is none."""
    options: dict[str, Any] = {
        "name": ACTOR,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "max_restarts": -1,
        "max_concurrency": 8,
    }
    return ray.remote(Hints).options(**options).remote()
