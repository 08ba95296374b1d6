"""Deployments on a real Ray cluster of two nodes on loopback, each with a real daemon.

    cluster.py ATOLL BUNDLE FOLDER [short]

ATOLL is the program, BUNDLE the packed `tests/functions/affine.toml`, and FOLDER an empty folder. Prints each check,
and exits with 0 if all succeed. With `short`, it has one node, and one replica serves. Ends every process that it
started, by its id.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import graph_checks
import load_checks
import ray
from machines import AUTH_VARIABLES, TIMEOUT_S, Machine, adopt_orphans, check, descendants, end_all, until

import atoll_ray
from atoll_ray import hints, node
from atoll_ray.daemon import Daemon, DaemonError, LeaseRequest
from atoll_ray.holder import Holder

#: The file of the cluster's token, which the head makes.
TOKEN_FILE = "auth_token"


def refused(call: Callable[[], object], status: int, says: str) -> None:
    try:
        found = call()
    except DaemonError as error:
        check(error.status == status and says in str(error), f"{error.status} {error}")
    else:
        raise AssertionError(f"it was done: {found}")


@contextlib.contextmanager
def cluster(atoll: str, folder: Path, count: int) -> Iterator[list[Machine]]:
    # The paths of Ray's sockets must be short.
    temporary = Path(tempfile.mkdtemp(prefix="ar", dir="/tmp"))
    try:
        machines = [Machine(atoll, folder / str(at), f"127.0.0.{at + 1}") for at in range(1, count + 1)]
        # The head makes the token, and the other nodes and this program have it.
        token = {"RAY_AUTH_TOKEN_PATH": str(folder / TOKEN_FILE)}
        machines[0].join(None, temporary, token)
        head = machines[0].head
        until("Ray's head is there", lambda: machines[0].ray_says("Ray runtime started"))
        ray.init(address=head, _node_ip_address="127.0.0.2", log_to_driver=False, logging_level="ERROR")
        for machine in machines[1:]:
            machine.join(head, temporary, token)
        until("all nodes are there", lambda: sum(one["Alive"] for one in ray.nodes()) == count)
        yield machines
    except BaseException:
        # Before Ray is gone, which ends programs that are connected to it.
        traceback.print_exc()
        raise
    finally:
        ray.shutdown()
        end_all()
        shutil.rmtree(temporary, ignore_errors=True)


def vector(values: list[float]) -> dict[str, Any]:
    return {"datatype": "FP32", "shape": [len(values)], "data": values}


def serve(handle: atoll_ray.Handle) -> None:
    """The function computes 3 x + b."""
    answer = handle.infer({"x": vector([1, 2]), "b": vector([10, 20])}, class_="rt")
    check(answer["outputs"][0]["data"] == [13, 26], answer)


def live(machines: list[Machine]) -> list[dict[str, Any]]:
    return [lease for machine in machines for lease in machine.daemon.leases()]


def test_holder(machine: Machine, function: str) -> None:
    print("a holder repeats, renews and replaces its lease")
    request = LeaseRequest(function, 10.0, 0.1, 0.2, 1 << 20, ttl_s=5)
    holder = Holder(machine.daemon, request, "alone")
    pause = holder.step()
    first = holder.current()
    check(first is not None and pause < 5 / 2 and holder.problem is None, (pause, holder.problem))
    check(machine.daemon.grant(request, holder._request_id, "alone") == first, "a repetition gets the same lease")
    holder.step()
    check(holder.current() == first, "renewed")
    # The daemon is killed and restarted, and restores the lease.
    machine.kill()
    check(holder.step() > 0 and "cannot be reached" in str(holder._problem), holder._problem)
    machine.start(machine.port)
    holder.step()
    check(holder.current() == first, (holder.current(), first))
    # The lease ends; the next one has a higher epoch.
    machine.daemon.release(first)
    check(holder.step() == 0 and holder.current() is None, holder.problem)
    holder.step()
    second = holder.current()
    check(second is not None and second.epoch > first.epoch, second)
    refused(lambda: machine.daemon.renew(first), 404, "there is no lease")
    holder.stop()
    check(machine.daemon.leases() == [], machine.daemon.leases())
    # By the monotonic clock, a lease is valid for its time to live from when it was requested.
    now = [1000.0]
    holder = Holder(machine.daemon, request, "clock", clock=lambda: now[0])
    holder.step()
    now[0] += 4.9
    check(holder.current() is not None, "before its end")
    now[0] += 0.2
    check(holder.current() is None and "in time" in str(holder.problem), holder.problem)
    holder.stop()


def test_bad_input(machine: Machine, function: str) -> None:
    print("what is not possible is refused before or by the daemon")
    for arguments, says in [
        ({"sm": 130}, "sm 130"),
        ({"sm": -1}, "sm -1"),
        ({"mem": "-2G"}, "mem '-2G'"),
        ({"mem": 0}, "mem 0"),
        ({"quota": (0.9, 0.4)}, "quota (0.9, 0.4)"),
        ({"class_": "fast"}, "class_ 'fast'"),
        ({"replicas": -1}, "-1 replicas"),
        ({"replicas": 1.5}, "1.5 replicas"),
        ({"strategy": "PACK"}, "strategy 'PACK'"),
        ({"ttl_s": 1}, "ttl_s 1"),
        ({"name": "a/b"}, "name 'a/b'"),
    ]:
        try:
            atoll_ray.deploy(function, **({"mem": "1M"} | arguments))
        except ValueError as error:
            check(says in str(error), error)
        else:
            raise AssertionError(f"{arguments} was taken")
    for change, status, says in [
        ({"sm_partition": 130.0}, 400, "130 %"),
        ({"gpu_mem": -5}, 400, "gpu_mem is -5"),
        ({"function": "none"}, 404, "no function `none`"),
    ]:
        fields = {"function": function, "sm_partition": 10.0, "quota_request": 0.1, "quota_limit": 0.1, "gpu_mem": 1}
        request = LeaseRequest(**(fields | change))
        refused(lambda request=request: machine.daemon.grant(request, "id", "h"), status, says)
    refused(lambda: Daemon("ftp://x").capacity(), None, "is not the URL of a daemon")  # type: ignore[arg-type]


def test_token(folder: Path, head: str) -> None:
    print("a program without the token of the cluster is refused, and the same program with it is not")
    check((folder / TOKEN_FILE).stat().st_mode & 0o777 == 0o600, "only this user may read the token")
    code = f"import ray; ray.init(address={head!r}, _node_ip_address='127.0.0.2'); print('connected')"
    plain = {name: value for name, value in os.environ.items() if name not in AUTH_VARIABLES}
    for variables, is_right in [
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}, False),
        ({"RAY_AUTH_MODE": "disabled"}, False),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / TOKEN_FILE)}, True),
    ]:
        # Without a token, Ray repeats its requests until a limit, which this shortens.
        limits = {"RAY_gcs_server_request_timeout_seconds": "5", "RAY_gcs_rpc_server_reconnect_timeout_s": "5"}
        limits = {} if is_right else limits
        command = [sys.executable, "-c", code]
        try:
            done = subprocess.run(
                command, env=plain | limits | variables, capture_output=True, text=True, timeout=60.0, check=False
            )
        except subprocess.TimeoutExpired as error:
            check(not is_right and b"connected" not in (error.stdout or b""), error.stdout)
            continue
        check((done.returncode == 0) == is_right and ("connected" in done.stdout) == is_right, done)


def test_hints() -> None:
    print("the autoscaler is told of replicas that may come")
    spec = {"sm": 10, "quota": (0.1, 0.1), "mem": "1M", "ttl_s": 6}
    handle = atoll_ray.deploy("affine", name="hinted", replicas=1, headroom=2, **spec)  # type: ignore[arg-type]
    bundle = {node.SM_PCT: 1.0, node.MEM_MIB: 1.0}
    actor = hints.actor()
    until("the hint", lambda: ray.get(actor.sent.remote()) == [bundle] * 3)
    handle.scale(2)
    until("the hint follows", lambda: ray.get(actor.sent.remote()) == [bundle] * 4)
    handle.wait(2, TIMEOUT_S)
    handle.delete()
    until("the hint is taken back", lambda: ray.get(actor.sent.remote()) == [])


def test_serves(machine: Machine, bundle: Path) -> None:
    print("a bundle is deployed to a replica, and serves")
    handle = atoll_ray.deploy(bundle, sm=30, quota=(0.4, 0.8), mem="2M", class_="rt", ttl_s=6)
    handle.wait(1, TIMEOUT_S)
    serve(handle)
    handle.delete()
    check(machine.daemon.leases() == [], machine.daemon.leases())


def test_deployment(machines: list[Machine], bundle: Path) -> None:
    print("nodes register what their daemons can promise")
    total = ray.cluster_resources()
    check(total[node.SM_PCT] == 200 and total[node.MEM_MIB] == 512 and total[node.RT_SLOTS] == 8, total)

    print("a bundle is deployed to 4 replicas on both machines, and serves")
    handle = atoll_ray.deploy(bundle, sm=30, quota=(0.4, 0.8), mem="2M", class_="rt", replicas=1, ttl_s=6)
    handle.wait(1, TIMEOUT_S)
    serve(handle)
    handle.scale(4)
    endpoints = handle.wait(4, TIMEOUT_S)
    check({one.url for one in endpoints} == {machine.url for machine in machines}, endpoints)
    check(len(live(machines)) == 4 and all(lease["class"] == "real-time" for lease in live(machines)), live(machines))
    for _ in range(20):
        serve(handle)
    # Ray is not on the path of a request: the handle is looked up again, and no actor is called.
    check(atoll_ray.get(handle.name).endpoints() == handle.endpoints(), "another client finds the same")
    try:
        atoll_ray.deploy(bundle, mem="2M")
    except ValueError as error:
        check("there is a deployment" in str(error), error)
    else:
        raise AssertionError("a second deployment of one name was taken")

    print("a replica that is killed is replaced, and its lease ends by its time to live")
    victim = endpoints[0]
    check(victim.pid in descendants(os.getpid()), "it is ours")
    os.kill(victim.pid, signal.SIGKILL)
    daemon = next(machine.daemon for machine in machines if machine.url == victim.url)

    def replaced() -> list[atoll_ray.Endpoint]:
        found = handle.endpoints()
        return found if victim not in found and len(found) == 4 else []

    seen = until("a new replica", replaced)
    new = [one for one in seen if one not in endpoints]
    check(len(new) == 1, (seen, endpoints))
    if new[0].url == victim.url:
        check(new[0].epoch > victim.epoch, (new, victim))
    until("its lease ends", lambda: all(lease["instance"] != victim.instance for lease in daemon.leases()))
    check(len(live(machines)) == 4, live(machines))
    inputs = [{"name": "x", **vector([1])}, {"name": "b", **vector([1])}]
    late = {"parameters": {"instance": victim.instance}, "inputs": inputs}
    refused(lambda: daemon.infer(victim.function, late), 409, "lease that has ended")
    for _ in range(8):
        serve(handle)

    print("a daemon that is killed comes back with its leases")
    before = {(lease["lease"], lease["epoch"]) for lease in machines[1].daemon.leases()}
    machines[1].kill()
    serve(handle)
    machines[1].start(machines[1].port)
    after = {(lease["lease"], lease["epoch"]) for lease in machines[1].daemon.leases()}
    check(bool(before) and before == after, (before, after))
    until("all replicas are there", lambda: len(handle.endpoints()) == 4 and len(live(machines)) == 4)

    print("what does not fit waits, with the reason, and is not promised")
    handle.scale(9)
    until("there are as many as fit", lambda: len(handle.endpoints()) == 8)
    waiting = [one for one in handle.status()["replicas"] if one["problem"]]
    check(len(waiting) == 1 and "machine is not found" in waiting[0]["problem"], waiting)
    for machine in machines:
        device = machine.daemon.capacity()["devices"][0]
        check(device["promised_sm_pct"] <= 100 and device["promised_real_time_slots"] <= 4, device)

    print("1 is left, and then none")
    handle.scale(1)
    handle.wait(1, TIMEOUT_S)
    until("one lease is left", lambda: len(live(machines)) == 1)
    serve(handle)
    handle.delete()
    check(live(machines) == [], live(machines))
    try:
        atoll_ray.get(handle.name)
    except ValueError as error:
        check("there is no deployment" in str(error), error)


def main() -> None:
    atoll, bundle, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    is_short = sys.argv[4:] == ["short"]
    token = folder / TOKEN_FILE
    if os.environ.get("RAY_AUTH_TOKEN_PATH") != str(token):
        # Ray reads these once, when it is imported.
        os.environ.pop("RAY_AUTH_TOKEN", None)
        os.environ.update({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)})
        os.execv(sys.executable, [sys.executable, *sys.argv])
    adopt_orphans()
    with cluster(atoll, folder, 1 if is_short else 2) as machines:
        machines[0].deploy(bundle)
        test_holder(machines[0], "affine")
        test_bad_input(machines[0], "affine")
        if is_short:
            test_serves(machines[0], bundle)
        else:
            machines[1].deploy(bundle)
            test_token(folder, machines[0].head)
            test_deployment(machines, bundle)
            test_hints()
            load_checks.test_latency(machines)
            load_checks.test_scaling(machines, bundle)
            graph_checks.test_deadlines()
            graph_checks.test_graph(machines, bundle)
            if importlib.util.find_spec("starlette") is None:
                print("SKIPPED: the deployment class for Ray Serve: `ray[serve]` is not installed")
            else:
                import serve_checks

                serve_checks.test_serve(machines, bundle)
    print("all of it holds")


if __name__ == "__main__":
    main()
