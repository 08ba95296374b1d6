"""Deployments: create, find, call, scale and delete them."""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from . import actors
from .controller import Controller
from .daemon import Daemon, DaemonError
from .endpoint import Endpoint, NoReplica
from .known import ANSWER_S, Known
from .scaling import Scaling
from .spec import Spec, check_replicas, priority
from .tensor import DATATYPES

log = logging.getLogger(__name__)

#: Pause between two questions of a request that waits for the first replica, in seconds.
WAIT_S = 0.25

#: Status of a request whose lease ended while it waited or ran.
ENDED = 410


def deploy(
    source: str | os.PathLike[str],
    *,
    name: str | None = None,
    sm: float = 100.0,
    quota: tuple[float, float] = (1.0, 1.0),
    mem: int | str,
    class_: str = "be",
    replicas: int = 1,
    ttl_s: int = 15,
    strategy: str = "SPREAD",
    headroom: int = 0,
    scaling: Scaling | Mapping[str, Any] | None = None,
) -> Handle:
    """Starts replicas of a function on the machines of the cluster, and returns at once; see :meth:`Handle.wait`.

    ``source`` is a bundle (a file ``NAME.kg``), which is copied to each machine, or the name of a function that the
    daemons have. Each replica gets ``sm`` percent of a device's compute units, ``quota`` of its time (request and
    limit, as fractions), ``mem`` bytes of device memory (or ``"2G"``) and, with ``class_="rt"``, a real-time slot. The
    lease of a dead replica ends after ``ttl_s`` seconds. ``strategy`` is Ray's ``SPREAD`` or ``DEFAULT`` (which packs).
    With ``headroom``, Ray's autoscaler is asked for machines with room for so many further replicas.

    With ``scaling``, the number and the sizes of replicas follow the load; see :class:`atoll_ray.Scaling`. Then
    ``replicas``, ``sm`` and the request of ``quota`` are those at first, and new replicas go where daemons have room.

    Raises ``ValueError`` if an argument is invalid or the name is in use.
    """
    bundle, function = load(source)
    name = name or (function if bundle is None else Path(source).stem)
    spec = Spec.of(name, function, sm, quota, mem, class_, replicas, ttl_s, strategy, headroom, scaling)
    try:
        controller = actors.start(Controller, _actor(name), spec, bundle)
    except ValueError as error:
        message = f"there is a deployment `{name}` already; use atoll_ray.get({name!r}), or delete it"
        raise ValueError(message) from error
    return Handle(name, controller)


def get(name: str) -> Handle:
    """The deployment with this name.

    Raises ``ValueError`` if there is none.
    """
    try:
        return Handle(name, actors.find(_actor(name)))
    except ValueError as error:
        raise ValueError(f"there is no deployment `{name}`; atoll_ray.deploy creates one") from error


class Handle:
    """A deployment. Requests go directly to the daemons of its replicas. Threads may share a handle."""

    def __init__(self, name: str, controller: Any) -> None:
        self.name = name
        self._controller = controller
        none: list[Endpoint] = []
        self._known = Known(lambda timeout_s: self._ask_endpoints(timeout_s), none)
        self._turn = itertools.count()

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return get, (self.name,)

    def endpoints(self, refresh: bool = True) -> list[Endpoint]:
        """The replicas that take requests, for clients that do not use :meth:`infer`.

        With ``refresh``, raises ``ray.exceptions.RayError`` if the controller does not answer.
        """
        return list(self._known.ask(ANSWER_S) if refresh else self._known.get(False, ANSWER_S))

    def _ask_endpoints(self, timeout_s: float) -> list[Endpoint]:
        found: list[Endpoint] = ray.get(self._controller.endpoints.remote(), timeout=timeout_s)
        return found

    def status(self) -> dict[str, Any]:
        """The target number of replicas, each replica with its endpoint or its problem, and the last failure.

        ``ending`` is the number of surplus replicas that are releasing their leases.
        """
        found: dict[str, Any] = ray.get(self._controller.status.remote(), timeout=ANSWER_S)
        return found

    def wait(self, replicas: int, timeout_s: float = 60.0) -> list[Endpoint]:
        """Waits until exactly ``replicas`` replicas take requests, and returns their endpoints.

        Raises ``TimeoutError``, whose message says why the others do not.
        """
        until = time.monotonic() + timeout_s
        while len(found := self._known.get(True, ANSWER_S)) != replicas:
            if time.monotonic() > until:
                raise TimeoutError(f"{len(found)} of {replicas} replicas take requests: {self._why()}")
            time.sleep(0.1)
        return list(found)

    def scale(self, replicas: int) -> None:
        """Changes the number of replicas, until the next :meth:`scale`.

        Raises ``ValueError`` if the deployment is scaled by its load.
        """
        check_replicas(replicas)
        ray.get(self._controller.scale.remote(replicas), timeout=ANSWER_S)

    def delete(self, timeout_s: float = 60.0) -> None:
        """Releases all leases and ends the deployment. Its name is free afterwards.

        Replicas first get some seconds to finish their requests. A lease that its replica cannot release in time
        expires after its time to live; so do all leases if the controller does not answer.
        """
        until = time.monotonic() + timeout_s
        try:
            ray.get(self._controller.end.remote(), timeout=ANSWER_S)
            while ((status := self.status())["replicas"] or status["ending"]) and time.monotonic() < until:
                time.sleep(0.1)
        except RayError as error:
            log.warning("the controller of %s does not answer: %s", self.name, error)
        ray.kill(self._controller)
        actors.wait_for_end(_actor(self.name), until)

    def infer(
        self,
        inputs: Mapping[str, Any],
        *,
        class_: str | None = None,
        idempotent: bool = False,
        timeout_s: float = 60.0,
    ) -> dict[str, Any]:
        """Runs the function on a replica; returns the answer in the form of the KServe v2 protocol.

        An input is a NumPy array, or a dictionary with ``datatype``, ``shape`` and ``data``. If a replica has not begun
        a request, the request goes to another replica. If a replica may have begun it, because its answer is lost or
        the replica's lease ended, it is repeated only if it is ``idempotent``. Without a replica, a request waits for
        the first one if the deployment's ``scaling`` starts it. If a daemon stops,
        requests that it ends after its drain time get status 503, like those that a busy daemon refuses; they are
        repeated too. ``timeout_s`` is the
        limit for all attempts together, in seconds.

        Raises ``NoReplica``, ``TimeoutError`` or ``DaemonError``.
        """
        until = time.monotonic() + timeout_s
        parameters = priority(class_)
        tensors = [_tensor(name, value) for name, value in inputs.items()]
        failed: DaemonError | None = None
        tried: set[tuple[str, str]] = set()
        for attempt in range(3):
            endpoints = self._known.get(attempt > 0, until - time.monotonic()) or self._awaited(until)
            fresh = [one for one in endpoints if (one.url, one.instance) not in tried]
            first = next(self._turn)
            for at in range(len(fresh)):
                endpoint = fresh[(first + at) % len(fresh)]
                if (left := until - time.monotonic()) <= 0:
                    raise TimeoutError(f"no replica of `{self.name}` took the request in {timeout_s} s") from failed
                tried.add((endpoint.url, endpoint.instance))
                body = {"parameters": parameters | {"instance": endpoint.instance}, "inputs": tensors}
                try:
                    return Daemon(endpoint.url).infer(endpoint.function, body, left)
                except DaemonError as error:
                    if not may_repeat(error, idempotent):
                        raise
                    failed = error
        raise NoReplica(f"no replica of `{self.name}` takes requests: {self._why()}") from failed

    def _awaited(self, until: float) -> list[Endpoint]:
        """Waits for the first replica of a deployment that has none, if its scaling starts one for this request."""
        waiting = uuid.uuid4().hex
        while (left := until - time.monotonic()) > 0:
            try:
                is_coming = ray.get(self._controller.awaited.remote(waiting), timeout=min(left, ANSWER_S))
            except RayError:
                return []
            found = self._known.get(True, left)
            if found or not is_coming:
                return found
            time.sleep(min(WAIT_S, left))
        return []

    def _why(self) -> str:
        try:
            return str(self.status())
        except RayError as error:
            return f"its controller does not answer: {error!r}"


def may_repeat(error: DaemonError, idempotent: bool) -> bool:
    """Whether another replica may run a request: it was not begun, or it is idempotent."""
    if error.status is None:
        return idempotent or not error.was_sent
    if error.status == ENDED:
        return idempotent
    # The daemon has restarted and not loaded the function yet (404), the lease has ended (409), or it is busy (503).
    return error.status in (404, 409, 503)


def _tensor(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {"name": name, **value}
    datatype = DATATYPES.get(str(getattr(value, "dtype", "")))
    if datatype is None:
        raise TypeError(f"input {name!r} is {type(value).__name__}; give a NumPy array, or datatype, shape and data")
    return {"name": name, "datatype": datatype, "shape": list(value.shape), "data": value.ravel().tolist()}


def load(source: str | os.PathLike[str]) -> tuple[bytes | None, str]:
    """The bytes of a bundle and the name of its function, or ``None`` and the name of a function."""
    path = Path(source)
    if path.suffix != ".kg":
        return None, str(source)
    bundle = path.read_bytes()
    # Bundles with the same name and different contents are different functions.
    return bundle, f"{path.stem}-{hashlib.sha256(bundle).hexdigest()[:12]}"


def _actor(name: str) -> str:
    return f"atoll-{name}"
