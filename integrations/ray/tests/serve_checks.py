"""Checks of the deployment class for Ray Serve on a cluster."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from graph_checks import floats, numbers
from machines import TIMEOUT_S, Machine, check, descendants, free_port, program, raises, until
from ray import serve

import atoll_ray.serve
from atoll_ray.daemon import Daemon, DaemonError

SHARE: dict[str, Any] = {"sm": 20, "quota": (0.2, 0.5), "mem": "1M", "class_": "rt"}


def test_serve(machines: list[Machine], bundle: Path) -> None:
    print("replicas of Ray Serve hold leases")
    both: dict[str, Any] = {"replicas": 1, "autoscaling": {"min_replicas": 1}}
    raises(ValueError, "only one of them", lambda: atoll_ray.serve.app(bundle, mem="1M", **both))
    raises(ValueError, "0 replicas", lambda: atoll_ray.serve.app(bundle, mem="1M", replicas=0))
    raises(ValueError, "sm 130", lambda: atoll_ray.serve.app(bundle, mem="1M", sm=130))
    port = free_port()
    serve.start(proxy_location="HeadOnly", http_options={"host": machines[0].address, "port": port})
    app = atoll_ray.serve.app(bundle, name="served", replicas=2, ttl_s=6, **SHARE)
    handle = serve.run(app, name="served", route_prefix="/served")

    def live() -> list[dict[str, Any]]:
        return [lease for machine in machines for lease in machine.daemon.leases()]

    until("each replica has a lease", lambda: len(live()) == 2)
    check(all(lease["class"] == "real-time" for lease in live()), live())
    asked = handle.infer.remote({"x": floats([1, 2]), "b": floats([10, 20])}, class_="rt")
    found = asked.result(timeout_s=TIMEOUT_S)
    check(numbers(found["y"]) == [13, 26], found)

    proxy = Daemon(f"http://{machines[0].address}:{port}", timeout_s=TIMEOUT_S)
    inputs = [
        {"name": "x", "datatype": "FP32", "shape": [1], "data": [2]},
        {"name": "b", "datatype": "FP32", "shape": [1], "data": [1]},
    ]
    # A client cannot use the share of another replica.
    named = {"inputs": inputs, "parameters": {"instance": "lease-0"}}
    answer = until("the proxy has the route", lambda: asked_or_none(proxy, named))
    check(answer["outputs"][0]["data"] == [7], answer)
    raises(DaemonError, "not a request of the KServe v2 protocol", lambda: proxy.ask("POST", "/served", [1]))
    wrong = {"inputs": inputs[:1]}
    try:
        proxy.ask("POST", "/served", wrong)
    except DaemonError as error:
        check(error.status == 400, error)
    else:
        raise AssertionError("a request without an input was answered")

    before = {lease["lease"] for lease in live()}
    replicas = [pid for pid in descendants(os.getpid()) if program(pid).startswith("ray::ServeReplica:served")]
    check(len(replicas) == 2, replicas)
    os.kill(replicas[0], signal.SIGKILL)

    def is_replaced() -> bool:
        now = {lease["lease"] for lease in live()}
        return len(now) == 2 and now != before

    until("Serve replaces a replica that is killed, and its lease ends", is_replaced)
    answer = until("the proxy knows the replicas", lambda: asked_or_none(proxy, named))
    check(answer["outputs"][0]["data"] == [7], answer)

    serve.delete("served")
    until("the leases are released", lambda: live() == [])
    limits = {"min_replicas": 1, "max_replicas": 2}
    serve.run(atoll_ray.serve.app(bundle, name="grows", autoscaling=limits, ttl_s=6, **SHARE), name="grows")
    until("a deployment that Serve scales has a lease", lambda: len(live()) == 1)
    serve.delete("grows")
    until("its lease is released", lambda: live() == [])
    serve.shutdown()


def asked_or_none(proxy: Daemon, body: dict[str, Any]) -> Any:
    """The answer, or `None` while the proxy has no route."""
    try:
        return proxy.ask("POST", "/served", body)
    except DaemonError as error:
        # A replica that has just died may have been asked.
        check(error.status in (404, 500, 503, None), error)
        return None
