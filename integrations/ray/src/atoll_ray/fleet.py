"""The machines of the cluster that have a daemon, as the controller of a scaled deployment sees them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .daemon import Daemon, DaemonError
from .node import ADVERTISE_VARIABLE, SM_PCT
from .packing import Device, Load, Machine

#: How long a daemon may take to answer, in seconds. One that takes longer counts as absent until the next look.
ANSWER_S = 2.0

#: Daemons that are asked at one time.
ASKED_MAX = 16

#: A profile is read again after this time, in seconds.
PROFILE_S = 30.0


def daemon_url() -> str:
    """The URL of this machine's daemon, as clients have it."""
    return os.environ.get(ADVERTISE_VARIABLE) or Daemon().url


@dataclass
class _Known:
    """A machine. Its URL is asked for once, by a task that runs there."""

    call: Any
    url: str | None = None
    points: list[dict[str, Any]] = field(default_factory=list)
    points_at: float = float("-inf")


class Fleet:
    """Asks the daemons of all machines for their capacity, the loads of leases, and the profile of a function."""

    def __init__(self, function: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._function = function
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._ask = ray.remote(num_cpus=0, max_retries=0)(daemon_url)
        self._threads = ThreadPoolExecutor(ASKED_MAX, "atoll-fleet")
        #: Why a daemon did not answer; empty if all did.
        self.problem = ""

    def look(self) -> list[Machine]:
        """The machines whose daemons answer now, in a fixed order."""
        # Ray's types do not have this.
        all_nodes = ray.nodes()  # type: ignore[no-untyped-call]
        nodes = {node["NodeID"] for node in all_nodes if node["Alive"] and node["Resources"].get(SM_PCT, 0) > 0}
        self._known = {node: known for node, known in self._known.items() if node in nodes}
        for node in nodes - self._known.keys():
            self._known[node] = _Known(self._start(node))
        self.problem = ""
        # `map` keeps the order.
        found = self._threads.map(self._machine, sorted(self._known))
        return [machine for machine in found if machine is not None]

    def close(self) -> None:
        """Ends the threads."""
        self._threads.shutdown(wait=False)

    def _start(self, node: str) -> Any:
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        return self._ask.options(scheduling_strategy=there).remote()

    def _url(self, node: str) -> str | None:
        known = self._known[node]
        if known.url is None:
            ready, _ = ray.wait([known.call], timeout=0)
            if not ready:
                return None
            try:
                known.url = ray.get(known.call)
            except RayError as error:
                known.call = self._start(node)
                self.problem = f"machine {node} does not say where its daemon is: {error!r}"
        return known.url

    def _machine(self, node: str) -> Machine | None:
        url = self._url(node)
        if url is None:
            return None
        daemon = Daemon(url, timeout_s=ANSWER_S)
        try:
            devices = [Device.of(report) for report in daemon.capacity()["devices"]]
            loads = {report["instance"]: Load.of(report) for report in daemon.loads()}
            return Machine(node, url, devices, loads, self._points(node, daemon))
        except (DaemonError, KeyError, TypeError) as error:
            self.problem = f"the daemon of machine {node} is not used: {error!r}"
            return None

    def _points(self, node: str, daemon: Daemon) -> list[dict[str, Any]]:
        known, now = self._known[node], self._clock()
        if now - known.points_at >= PROFILE_S:
            try:
                known.points = daemon.profile(self._function)
                known.points_at = now
            except DaemonError as error:
                # It does not have the function, as long as it has no replica.
                if error.status not in (404, 503):
                    raise
        return known.points
