"""Compares the simulation of a cluster with a run on three Ray nodes on loopback.

    prediction.py ATOLL BUNDLE FOLDER

ATOLL is the program, BUNDLE the packed `tests/functions/grind.toml`, and FOLDER an empty folder. Each node has a
replica with its whole device. Requests arrive at random. What a request takes at each replica alone is measured before;
from that and from the arrivals the simulation (`atoll bench cluster --replay`) predicts the latencies of the run.
Prints both means and 99th percentiles.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cluster
from machines import TIMEOUT_S, adopt_orphans, check, until

import atoll_ray
from atoll_ray.daemon import Daemon

NODES = 3

#: What a request takes, in seconds, roughly: much more than what passes between client and device.
TAKES_S = 0.02

#: Most steps of a request, a number of 32 bits.
STEPS_MAX = 1 << 31

#: The part of the time in which a replica is busy. Nodes share the processors of this machine.
BUSY = 0.2

#: Requests of the run, and of each measurement before it.
REQUESTS, ALONE = 900, 60

#: Clients of the run. There are more than requests wait.
CLIENTS = 24


class Replica:
    """A replica, and requests to it that take `times` steps."""

    def __init__(self, endpoint: atoll_ray.Endpoint, times: int) -> None:
        self.node = endpoint.node
        self._endpoint, self._times = endpoint, times

    def ask(self) -> float:
        """Sends a request. Returns how long it took, in seconds."""
        inputs = [
            {"name": "x", "datatype": "UINT32", "shape": [4], "data": [1, 2, 3, 4]},
            {"name": "times", "datatype": "UINT32", "shape": [1], "data": [self._times]},
        ]
        body = {"parameters": {"instance": self._endpoint.instance}, "inputs": inputs}
        began = time.perf_counter()
        answer = Daemon(self._endpoint.url).infer(self._endpoint.function, body, TIMEOUT_S)
        check(answer["outputs"][0]["shape"] == [4], answer)
        return time.perf_counter() - began

    def alone(self) -> tuple[float, float]:
        """What a request takes if it meets no other, and from one to the next if they always wait."""
        latency = statistics.mean(self.ask() for _ in range(ALONE))
        began = time.perf_counter()
        threads = [threading.Thread(target=lambda: [self.ask() for _ in range(ALONE)]) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return latency, (time.perf_counter() - began) / (2 * ALONE)


def steps(endpoint: atoll_ray.Endpoint) -> int:
    """How many steps a request has so that it takes about `TAKES_S` on the device."""

    def least(times: int) -> float:
        return min(Replica(endpoint, times).ask() for _ in range(5))

    beside, times = least(1), 1 << 20
    while (took := least(times) - beside) < TAKES_S / 2 and times < STEPS_MAX:
        times *= 2
    return min(int(times * TAKES_S / max(took, 1e-3)), STEPS_MAX)


def record(replicas: list[Replica]) -> dict[str, Any]:
    """Measures the replicas alone and then together."""
    leases, services = [], []
    for replica in replicas:
        latency, service = replica.alone()
        service = min(service, latency)
        services.append(service)
        beside = latency - service
        leases.append({"node": replica.node, "service_ns": int(service * 1e9), "beside_ns": int(beside * 1e9)})
    rate = BUSY * len(replicas) / statistics.mean(services)
    choose = random.Random(1)
    times = list(itertools.accumulate(choose.expovariate(rate) for _ in range(REQUESTS)))
    chosen = [choose.randrange(len(replicas)) for _ in times]
    requests: list[dict[str, int]] = []
    began = time.perf_counter()

    def one(at: float, lease: int) -> dict[str, int]:
        replicas[lease].ask()
        # From when it should have been sent, so a client that is late counts.
        latency = time.perf_counter() - began - at
        return {"at_ns": int(at * 1e9), "lease": lease, "latency_ns": int(latency * 1e9)}

    with ThreadPoolExecutor(CLIENTS) as clients:
        pending = []
        for at, lease in zip(times, chosen, strict=True):
            time.sleep(max(0.0, at - (time.perf_counter() - began)))
            pending.append(clients.submit(one, at, lease))
        requests = [call.result() for call in pending]
    return {"leases": leases, "requests": requests}


def predict(atoll: str, path: Path) -> str:
    """The prediction beside the measurement, in words."""
    command = [atoll, "bench", "cluster", "--replay", str(path), "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    check(found["nodes"] == NODES and found["requests"] == REQUESTS, found)

    def words(name: str) -> str:
        predicted, measured = (found[f"{kind}_{name}_ns"] / 1e6 for kind in ("predicted", "measured"))
        return f"{name} {predicted:.2f} ms, measured {measured:.2f} ms ({found[f'{name}_difference_percent']:+.0f} %)"

    return f"the simulation predicts of {REQUESTS} requests on {NODES} nodes: {words('mean')}; {words('p99')}"


def main() -> None:
    atoll, bundle, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    token = folder / cluster.TOKEN_FILE
    if os.environ.get("RAY_AUTH_TOKEN_PATH") != str(token):
        # Ray reads these once, when it is imported.
        os.environ.pop("RAY_AUTH_TOKEN", None)
        os.environ.update({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)})
        os.execv(sys.executable, [sys.executable, *sys.argv])
    adopt_orphans()
    with cluster.cluster(atoll, folder, NODES) as machines:
        share: dict[str, Any] = {"sm": 100, "quota": (0.9, 1.0), "mem": "8M"}
        handle = atoll_ray.deploy(bundle, name="predicted", replicas=NODES, ttl_s=30, **share)
        endpoints = handle.wait(NODES, TIMEOUT_S)
        check({one.url for one in endpoints} == {machine.url for machine in machines}, endpoints)
        times = steps(endpoints[0])
        run = record([Replica(endpoint, times) for endpoint in endpoints])
        path = folder / "run.json"
        path.write_text(json.dumps(run))
        print(f"MEASURED: {predict(atoll, path)}")
        handle.delete()
        until("the leases are released", lambda: all(machine.daemon.leases() == [] for machine in machines))
    print("all of it holds")


if __name__ == "__main__":
    main()
