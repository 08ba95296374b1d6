"""The actor of a replica, which holds a lease at the daemon of its machine."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import uuid
from typing import Any

import ray

from .daemon import Daemon
from .endpoint import Endpoint
from .holder import RENEWALS, Holder
from .node import ADVERTISE_VARIABLE
from .spec import Spec

#: Time limit for deploying a bundle, in seconds; the daemon may compile it.
DEPLOY_TIMEOUT_S = 600


class Replica:
    """Holds a lease from its start until :meth:`stop`. If its process dies, the lease expires."""

    def __init__(self, spec: Spec, bundle: bytes | None) -> None:
        daemon = Daemon()
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
