"""Checks of a cluster under load: replicas that follow it, and the latency of requests through a deployment."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from machines import TIMEOUT_S, Machine, check, raises, until
from ray.exceptions import RayError

import atoll_ray
from atoll_ray.daemon import Daemon

#: What the stored profile says that a replica serves, in requests per second. It serves more, which the machine that
#: runs the test could not ask for.
SERVES = 5

#: The share of a replica.
SHARE: dict[str, Any] = {"sm": 50, "quota": (0.1, 0.1), "mem": "1M", "ttl_s": 6}

#: Pairs of requests whose latencies are compared, after those that do not count.
PAIRS, WARM_UP = 400, 40


class Rate:
    """Sends requests at a rate that changes, each in its time, and counts the answers."""

    def __init__(self, handle: atoll_ray.Handle) -> None:
        self.per_second = 0.0
        self.wrong: list[str] = []
        self.right = 0
        self._handle = handle
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=[client], daemon=True) for client in range(4)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=TIMEOUT_S)

    def _run(self, client: int) -> None:
        while not self._stop.is_set():
            rate = self.per_second / len(self._threads)
            if rate == 0 or self._stop.wait(1 / rate):
                self._stop.wait(0.1)
                continue
            try:
                answer = self._handle.infer(request(client), timeout_s=TIMEOUT_S)
                is_right = answer["outputs"][0]["data"] == [3 * client + 1]
            except Exception as error:
                with self._lock:
                    self.wrong.append(repr(error))
                continue
            with self._lock:
                self.right += is_right
                if not is_right:
                    self.wrong.append(str(answer))


def request(number: float) -> dict[str, Any]:
    one = {"datatype": "FP32", "shape": [1]}
    return {"x": one | {"data": [number]}, "b": one | {"data": [1.0]}}


def store_profile(machine: Machine, bundle: Path) -> None:
    """Stores a profile for the daemon of a machine: one point, that of `SHARE`."""
    folder = {"XDG_CACHE_HOME": str(machine.folder)}
    grid = ["--grid", "--partitions", "50", "--quotas", "10", "--seconds", "0.05", "--runs", "1"]
    command = [machine.atoll, "profile", str(bundle), *grid, "--compute-units", "2"]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | folder)
    (path,) = machine.folder.glob("atoll/profiles/*/host-2.json")
    profile = json.loads(path.read_text())
    check(len(profile["points"]) == 1, profile)
    profile["points"][0] |= {"per_1000_s": SERVES * 1000, "latency_ns_p50": 1_000_000, "latency_ns_p99": 20_000_000}
    path.write_text(json.dumps(profile))


def test_scaling(machines: list[Machine], bundle: Path) -> None:
    print("replicas follow the load, from none to several and back, where the daemons have room")
    for machine in machines:
        store_profile(machine, bundle)
    settings = {"latency_ms": 2000, "min_replicas": 0, "max_replicas": 6, "interval_ms": 500}
    settings |= {"cool_down_ms": 4000, "idle_ms": 6000}
    handle = atoll_ray.deploy("affine", name="scaled", replicas=0, scaling=settings, **SHARE)
    load = Rate(handle)

    def replicas(least: int, most: int) -> None:
        def is_so() -> bool:
            try:
                count = len(handle.endpoints())
                return least <= count <= most and bool(handle.status()["target"] == count)
            except RayError:
                # The controller is being started.
                return False

        try:
            until(f"{least} to {most} replicas", is_so)
        except TimeoutError as error:
            raise AssertionError(f"{handle.status()} {load.wrong[:3]}") from error

    replicas(0, 0)
    raises(ValueError, "is scaled by its load", lambda: handle.scale(2))
    load.per_second = 3
    replicas(1, 1)
    check(daemons(handle)[0].profile("affine")[0]["per_1000_s"] == SERVES * 1000, handle.status())
    # 20 requests/s and 30 % more are 26 requests/s.
    load.per_second = 20
    replicas(5, 6)
    check(len({one.url for one in handle.endpoints()}) == 1, "one machine has room for all")
    counted = sum(one["begun"] for daemon in daemons(handle) for one in daemon.loads())
    check(counted > 0, "the daemons count the requests")
    load.per_second = 3
    replicas(1, 2)
    load.per_second = 0
    replicas(0, 0)
    until("the leases are released", lambda: all(machine.daemon.leases() == [] for machine in machines))
    began = time.monotonic()
    answer = handle.infer(request(2), timeout_s=TIMEOUT_S)
    check(answer["outputs"][0]["data"] == [7], answer)
    print(f"MEASURED: the first request of a deployment without replicas took {time.monotonic() - began:.1f} s")
    load.stop()
    check(not load.wrong and load.right > 0, load.wrong[:5])
    handle.delete()
    check(all(machine.daemon.leases() == [] for machine in machines), "all leases have ended")


def daemons(handle: atoll_ray.Handle) -> list[Daemon]:
    """The daemons of a deployment's replicas."""
    return [Daemon(url) for url in sorted({one.url for one in handle.endpoints()})]


def test_latency(machines: list[Machine]) -> None:
    print("a request takes as long through a deployment as at the daemon itself")
    share: dict[str, Any] = {"sm": 50, "quota": (0.4, 0.8), "mem": "1M", "class_": "rt"}
    handle = atoll_ray.deploy("affine", name="timed", replicas=1, ttl_s=15, **share)
    (endpoint,) = handle.wait(1, TIMEOUT_S)
    machine = next(machine for machine in machines if machine.url == endpoint.url)
    # An instance of the same size that an operator creates.
    size = ["--sm-partition", "50", "--quota-request", "0.4", "--quota-limit", "0.8", "--class", "real-time"]
    socket = ["--control-socket", str(machine.folder / "atoll.sock")]
    command = [machine.atoll, "instance", "create", "direct", "--function", "affine", *size, *socket]
    subprocess.run(command, check=True, capture_output=True)
    daemon, inputs = Daemon(endpoint.url), request(2)
    body = {"parameters": {"priority": 1, "instance": "direct"}}
    body["inputs"] = [{"name": name, **value} for name, value in inputs.items()]  # type: ignore[assignment]

    def through_ray() -> dict[str, Any]:
        return handle.infer(inputs, class_="rt")

    def at_the_daemon() -> dict[str, Any]:
        return daemon.infer("affine", body)

    took: dict[str, list[float]] = {"through Ray": [], "at the daemon": []}
    calls = {"through Ray": through_ray, "at the daemon": at_the_daemon}
    for pair in range(WARM_UP + PAIRS):
        # Each first in every other pair, so that what disturbs one disturbs the other as often.
        for name in sorted(calls, reverse=pair % 2 == 1):
            began = time.perf_counter()
            answer = calls[name]()
            seconds = time.perf_counter() - began
            check(answer["outputs"][0]["data"] == [7], answer)
            if pair >= WARM_UP:
                took[name].append(seconds)
    figures = [f"{name} {summary(times)}" for name, times in took.items()]
    more = statistics.median(one - other for one, other in zip(*took.values(), strict=True))
    part = 100 * more / statistics.median(took["at the daemon"])
    print(f"MEASURED: {PAIRS} pairs of requests: {'; '.join(figures)}; through Ray {part:+.1f} % in the median pair")
    subprocess.run([machine.atoll, "instance", "rm", "direct", *socket], check=True, capture_output=True)
    handle.delete()


def summary(seconds: list[float]) -> str:
    """Mean, median and 99th percentile, in milliseconds."""
    quantiles = statistics.quantiles(seconds, n=100)
    mean, median, p99 = (1e3 * value for value in (statistics.mean(seconds), quantiles[49], quantiles[98]))
    return f"mean {mean:.2f} p50 {median:.2f} p99 {p99:.2f} ms"
