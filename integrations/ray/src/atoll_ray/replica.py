"""The actor of a replica, which holds a lease at the daemon of its machine."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from typing import Any

import ray

from .daemon import Daemon, DaemonError
from .endpoint import Endpoint
from .holder import RENEWALS, Holder
from .node import ADVERTISE_VARIABLE
from .spec import Spec
from .stage import Call, Report
from .tensor import Tensor

#: Time limit for deploying a bundle, in seconds; the daemon may compile it.
DEPLOY_TIMEOUT_S = 600

#: Stages of graphs that a replica runs at one time. Further calls wait in Ray.
STAGES_MAX = 16

#: The group of these calls, so they do not delay the controller's.
STAGES = "stages"

#: Time in seconds, beyond that of a call, in which a daemon that does answer has told that the time is over.
ANSWER_S = 1.0


class Replica:
    """Holds a lease from its start until :meth:`stop`. If its process dies, the lease expires."""

    def __init__(self, spec: Spec, bundle: bytes | None) -> None:
        daemon = self._daemon = Daemon()
        if bundle is not None:
            provide(daemon, spec.request.function, bundle)
        self._url = os.environ.get(ADVERTISE_VARIABLE) or daemon.url
        self._node = ray.get_runtime_context().get_node_id()
        # Short enough that after a renewal that hangs, there is time for another one.
        renewing = Daemon(timeout_s=min(daemon.timeout_s, spec.request.ttl_s / RENEWALS))
        self._holder = Holder(renewing, spec.request, f"{spec.name}-{uuid.uuid4().hex[:12]}")
        self._holder.start()

    def report(self) -> dict[str, Any]:
        """The replica's endpoint, or the reason why it takes no requests."""
        lease, problem = self._holder.current(), self._holder.problem
        endpoint = None
        if lease is not None:
            endpoint = Endpoint(
                self._url, lease.function, lease.instance, lease.lease, lease.epoch, os.getpid(), self._node
            )
        return {"endpoint": endpoint, "problem": problem, "pid": os.getpid(), "node": self._node}

    def stop(self) -> None:
        """Releases the lease."""
        self._holder.stop()

    @ray.method(concurrency_group=STAGES)
    def run(self, call: Call, *inputs: Tensor) -> tuple[Any, ...]:
        """Runs a stage of a graph under the lease. Returns a report and the outputs, each as an object of its own.

        Ray has brought ``inputs`` to this machine and mapped them read-only.
        """
        began = time.monotonic()
        try:
            outputs = self.infer(dict(zip(call.inputs, inputs, strict=True)), call.parameters, call.budget_s)
            found = [outputs[name] for name in call.outputs]
        except DaemonError as error:
            failed = Report(time.monotonic() - began, str(error), error.status, error.was_sent)
            return (failed, *[None] * len(call.outputs))
        except (KeyError, ValueError) as error:
            # Without one of the outputs, for example. It has run, and would fail again.
            failed = Report(time.monotonic() - began, f"the function does not fit the stage: {error!r}", 400, True)
            return (failed, *[None] * len(call.outputs))
        return (Report(time.monotonic() - began), *found)

    def infer(self, inputs: Mapping[str, Tensor], parameters: Mapping[str, Any], budget_s: float) -> dict[str, Tensor]:
        """Runs the function under the lease, for at most ``budget_s`` seconds. Raises ``DaemonError``."""
        lease = self._holder.current()
        if lease is None:
            raise DaemonError(f"the replica has no lease: {self._holder.problem}", 409, was_sent=False)
        # The daemon gets a duration and counts it with its own clock.
        limits = {"instance": lease.instance, "timeout": max(int(budget_s * 1e6), 1)}
        return self._daemon.infer_tensors(lease.function, inputs, {**parameters, **limits}, budget_s + ANSWER_S)


def provide(daemon: Daemon, function: str, bundle: bytes) -> None:
    """Deploys a bundle to the daemon of this machine, unless the daemon has it. The function's name has its digest.

    The daemon accepts bundles only over its control socket, which ``ATOLL_CONTROL_SOCKET`` names. The program ``atoll``
    must be on the path or in ``ATOLL_PROGRAM``.
    """
    program = os.environ.get("ATOLL_PROGRAM") or shutil.which("atoll")
    if program is None:
        raise RuntimeError("`atoll` is not on the path of this machine; set ATOLL_PROGRAM when Ray is started")
    # Of all replicas on this machine, only the first one deploys it.
    lock = os.path.join(tempfile.gettempdir(), f"atoll-ray-{os.getuid()}.lock")
    with open(os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if daemon.is_ready(function):
            return
        with tempfile.NamedTemporaryFile(suffix=".kg") as content:
            content.write(bundle)
            content.flush()
            command = [program, "fn", "deploy", content.name, "--name", function]
            done = subprocess.run(command, capture_output=True, text=True, timeout=DEPLOY_TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"the daemon of this machine refused the bundle: {done.stderr.strip()[-2000:]}")
