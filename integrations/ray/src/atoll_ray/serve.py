"""A deployment class for Ray Serve: its replicas hold leases, and serve a function of the daemon on their machine.

    app = atoll_ray.serve.app("resnet50", sm=30, quota=(0.4, 0.8), mem="2G", class_="rt", replicas=2)
    handle = ray.serve.run(app, name="resnet50", route_prefix="/resnet50")

Serve starts, scales and replaces the replicas, and its proxies and routers are on the path of each request. For the
least latency use :func:`atoll_ray.deploy`, whose clients send requests to the daemons themselves. Needs ``ray[serve]``.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .daemon import Daemon, DaemonError
from .deployment import load
from .replica import Replica
from .spec import Spec, priority
from .tensor import Tensor

#: Largest body of an HTTP request, in bytes.
BODY_BYTES_MAX = 64 << 20

#: A replica without a lease for this time, in seconds, is unhealthy, and Serve replaces it.
UNLEASED_S = 60.0

#: A new replica waits this long for its first lease, in seconds.
FIRST_LEASE_S = 60.0

#: Limit of an HTTP request at the daemon, in seconds.
REQUEST_S = 60.0

#: Requests that a replica runs at one time. Serve routes further ones to others, or lets them wait.
REQUESTS_MAX = 16


class Function:
    """A replica of Serve: a function of the daemon on its machine, under a lease."""

    def __init__(self, spec: Spec, bundle: bytes | None) -> None:
        self._replica = Replica(spec, bundle)
        # The event loop's own threads are fewer on machines with few processors.
        self._threads = ThreadPoolExecutor(REQUESTS_MAX, "atoll-request")
        self._function = spec.request.function
        self._leased_at = time.monotonic()
        until = self._leased_at + FIRST_LEASE_S
        while self._endpoint() is None:
            if time.monotonic() > until:
                self._replica.stop()
                raise RuntimeError(f"the replica got no lease in {FIRST_LEASE_S:.0f} s: {self._problem()}")
            time.sleep(0.1)

    def check_health(self) -> None:
        """Serve calls this again and again, and replaces the replica after an error."""
        if self._endpoint() is not None:
            self._leased_at = time.monotonic()
        elif time.monotonic() - self._leased_at > UNLEASED_S:
            raise RuntimeError(f"the replica has no lease since {UNLEASED_S:.0f} s: {self._problem()}")

    async def infer(
        self, inputs: Mapping[str, Any], class_: str | None = None, timeout_s: float = 60.0
    ) -> dict[str, Tensor]:
        """Runs the function for other deployments of Serve: ``await handle.infer.remote(...)``.

        An input is a NumPy array or a ``Tensor``; so is the result. Raises ``DaemonError``.
        """
        tensors = {name: Tensor.of(value) for name, value in inputs.items()}
        parameters = priority(class_)
        found: dict[str, Tensor] = await self._run(lambda: self._replica.infer(tensors, parameters, timeout_s))
        return found

    async def __call__(self, request: Request) -> Response:
        """Runs the function on an HTTP request, whose body is JSON of the KServe v2 protocol."""
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > BODY_BYTES_MAX:
                return _error(413, f"the body has over {BODY_BYTES_MAX} bytes")
        try:
            found = json.loads(body)
            asked = {**found, "inputs": found["inputs"], "parameters": dict(found.get("parameters", {}))}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return _error(400, f"the body is not a request of the KServe v2 protocol: {error!r}")
        if (endpoint := self._endpoint()) is None:
            return _error(503, f"the replica has no lease: {self._problem()}")
        # The instance is that of this replica, whatever a client names.
        asked["parameters"]["instance"] = endpoint.instance
        try:
            answer = await self._run(lambda: Daemon().infer(self._function, asked, REQUEST_S))
        except DaemonError as error:
            return _error(error.status or 502, str(error))
        return JSONResponse(answer)

    def __del__(self) -> None:
        # Serve calls this when it ends the replica, after its requests.
        if hasattr(self, "_threads"):
            self._threads.shutdown(wait=False)
        if hasattr(self, "_replica"):
            self._replica.stop()

    async def _run(self, call: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _endpoint(self) -> Any:
        return self._replica.report()["endpoint"]

    def _problem(self) -> Any:
        return self._replica.report()["problem"]


def app(
    source: str | os.PathLike[str],
    *,
    name: str | None = None,
    sm: float = 100.0,
    quota: tuple[float, float] = (1.0, 1.0),
    mem: int | str,
    class_: str = "be",
    replicas: int | None = None,
    autoscaling: Mapping[str, Any] | None = None,
    ttl_s: int = 15,
) -> serve.Application:
    """An application of Serve, for ``ray.serve.run`` and for other deployments' ``bind``.

    The arguments are those of :func:`atoll_ray.deploy`. ``autoscaling`` is Serve's ``autoscaling_config``, instead of a
    number of replicas. Raises ``ValueError`` if an argument is invalid.
    """
    if (replicas is not None) and (autoscaling is not None):
        raise ValueError("replicas or autoscaling: only one of them is possible")
    bundle, function = load(source)
    name = name or (function if bundle is None else Path(source).stem)
    if replicas == 0:
        raise ValueError("0 replicas: Serve has at least 1")
    spec = Spec.of(name, function, sm, quota, mem, class_, 1 if replicas is None else replicas, ttl_s)
    options: dict[str, Any] = {
        "name": name,
        "max_ongoing_requests": REQUESTS_MAX,
        "ray_actor_options": {"num_cpus": 0, "resources": spec.resources},
    }
    if autoscaling is None:
        options["num_replicas"] = spec.replicas
    else:
        options["autoscaling_config"] = dict(autoscaling)
    bound: serve.Application = serve.deployment(**options)(Function).bind(spec, bundle)
    return bound


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": message}, status_code=status)
