#!/usr/bin/env python3
"""The controller with an API server of its protocol and two real daemons.

kubernetes_controller.py ATOLL CONTROLLER BUNDLE FOLDER

ATOLL and CONTROLLER are the programs, BUNDLE that of `tests/functions/affine.toml`, FOLDER an empty folder with a short
path. Prints what it checks, and ends with 0 if all of it holds; all cases with ATOLL_TEST_FULL=1. Ends the processes
that it started, by their numbers.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
from pathlib import Path

import yaml
from apiserver import ApiServer, Refused
from kubelet import TIMEOUT_S, Daemon, Programs, check, until

RIGHTS = Path(__file__).resolve().parents[2] / "integrations/kubernetes/controller/manifests/rbac.yaml"
FUNCTIONS, INSTANCES = "atollfunctions", "atollinstances"
SHARE = {"class": "best-effort", "smPartition": 24, "quota": {"request": 1}, "gpuMem": "16Mi", "ttlSeconds": 60}


def ready(one):
    """Status, reason and message of the condition Ready."""
    found = [c for c in one.get("status", {}).get("conditions", []) if c["type"] == "Ready"]
    return (found[0]["status"], found[0]["reason"], found[0]["message"]) if found else (None, None, None)


class Cluster:
    """Two nodes with a daemon each, and controllers."""

    def __init__(self, atoll, controller, folder):
        self.atoll, self.controller = atoll, controller
        self.api, self.programs = ApiServer(), Programs(folder)
        self.daemons = [Daemon(atoll, folder / f"d{at}", compute_units=4) for at in range(2)]
        self.controllers = []

    def start(self, bundle):
        for at, daemon in enumerate(self.daemons):
            daemon.start()
            deploy = [self.atoll, "fn", "deploy", bundle, "--control-socket", str(daemon.socket)]
            subprocess.run(deploy, check=True, capture_output=True, timeout=TIMEOUT_S)
            labels = {"atoll.dev/controller": "true"}
            self.api.create("nodes", None, {"metadata": {"name": f"gpu-{at}", "labels": labels}, "spec": {}})
            ports = [{"name": "http", "containerPort": daemon.port}]
            labels = {"app.kubernetes.io/component": "daemon"}
            status = {"podIP": "127.0.0.1", "phase": "Running"}
            pod = {"metadata": {"name": f"atoll-{at}", "labels": labels}, "status": status}
            pod["spec"] = {"nodeName": f"gpu-{at}", "containers": [{"name": "daemon", "ports": ports}]}
            self.api.create("pods", "atoll-system", pod)

    def start_controller(self):
        name = f"controller-{len(self.controllers)}"
        arguments = ["--api-server", self.api.url, "--identity", name, "--drain-seconds", "3"]
        self.controllers.append(self.programs.start(name, [self.controller, *arguments]))

    def leader(self):
        """The process of the leader."""

        def found():
            for one in self.api.all("leases"):
                name = one["spec"]["holderIdentity"].rpartition("_")[0]
                if name:
                    return self.controllers[int(name.rpartition("-")[2])]
            return None

        return until("there is a leader", found)

    def make(self, name, replicas, share=None):
        spec = {"function": "affine", "replicas": replicas, "share": share or SHARE}
        body = {"apiVersion": "atoll.dev/v1alpha1", "kind": "AtollFunction", "metadata": {"name": name}, "spec": spec}
        return self.api.create(FUNCTIONS, "apps", body)

    def function(self, name):
        (found,) = [one for one in self.api.all(FUNCTIONS) if one["metadata"]["name"] == name]
        return found

    def until_function(self, what, name, is_so):
        return until(f"{what}: {self.api.all(FUNCTIONS)}"[:600], lambda: is_so(self.function(name)))

    def scale(self, name, replicas):
        self.api.patch(FUNCTIONS, "apps", name, {"spec": {"replicas": replicas}})
        self.until_ready(name, replicas)

    def until_ready(self, name, replicas):
        def is_so(one):
            return ready(one)[0] == "True" and one["status"].get("readyReplicas") == replicas

        self.until_function(f"{replicas} instances of {name} are ready", name, is_so)
        until("others are gone", lambda: len(self.api.all(INSTANCES)) == replicas)

    def leases(self):
        """Numbers of the leases of each daemon."""
        return [sorted(one["lease"] for one in daemon.leases()) for daemon in self.daemons]

    def counts(self):
        return [len(one) for one in self.leases()]

    def ready(self):
        return [one for one in self.api.all(INSTANCES) if ready(one)[0] == "True"]

    def end(self):
        self.programs.end()
        for daemon in self.daemons:
            if daemon.process is not None and daemon.process.poll() is None:
                daemon.kill()
        self.api.stop()


def infer(cluster, instance):
    """Sends a request as a client of the cluster does: by the status of an instance."""
    status = instance["status"]
    (daemon,) = [one for one in cluster.daemons if one.url == status["url"]]
    vector = {"datatype": "FP32", "shape": [2], "data": [1, 2]}
    inputs = [{"name": name, **vector} for name in "xb"]
    body = {"parameters": {"instance": status["lease"]["instance"]}, "inputs": inputs}
    status, answer = daemon.ask("POST", "/v2/models/affine/infer", body)
    check(status == 200 and answer["outputs"][0]["data"] == [4, 8], (status, answer))


def check_packing(cluster):
    print("four times 24 % fit a device; one too many is pending with the reason, and goes on when there is room")
    cluster.make("f", 9)
    cluster.until_function("8 of 9 are ready", "f", lambda one: one.get("status", {}).get("readyReplicas") == 8)
    found = cluster.until_function("it is pending", "f", lambda one: ready(one)[1] == "NoRoom" and one)
    check("8 of 9 instances are ready" in ready(found)[2] and "24 %" in ready(found)[2], found)
    check(cluster.counts() == [4, 4], cluster.leases())
    for one in cluster.ready():
        infer(cluster, one)
        owner = one["metadata"]["ownerReferences"][0]
        check(owner["uid"] == found["metadata"]["uid"] and owner["controller"] is True, owner)
    of_functions = lambda: [one for one in cluster.api.all("events") if one["involvedObject"]["kind"] == "AtollFunction"]
    until("an event tells it", lambda: "NoRoom" in [one["reason"] for one in of_functions()])
    cluster.scale("f", 4)
    check(cluster.counts() == [2, 2], cluster.leases())
    check(cluster.function("f")["status"]["selector"] == "atoll.dev/function=f", cluster.function("f"))


def check_drain(cluster):
    print("a node is drained, and no request of a client is lost")
    stop, failed, served = threading.Event(), [], []

    def client():
        while not stop.is_set():
            found = cluster.ready()
            try:
                infer(cluster, found[len(served) % len(found)])
                served.append(1)
            except (AssertionError, OSError, ZeroDivisionError, urllib.error.URLError) as error:
                failed.append(error)
            time.sleep(0.01)

    thread = threading.Thread(target=client)
    thread.start()
    try:
        cluster.api.patch("nodes", None, "gpu-1", {"spec": {"unschedulable": True}})
        until("all instances are on the other node", lambda: cluster.counts() == [4, 0])
        cluster.until_ready("f", 4)
    finally:
        stop.set()
        thread.join()
    check(not failed and len(served) > 10, (failed[:3], len(served)))
    cluster.api.patch("nodes", None, "gpu-1", {"spec": {"unschedulable": None}})


def check_leaders(cluster):
    print("another controller goes on with the same leases, when the leader dies and when it ends")
    before = cluster.leases()
    cluster.start_controller()
    first = cluster.leader()
    first.kill()
    first.wait()
    until("there is a new leader", lambda: cluster.leader() is not first)
    cluster.scale("f", 5)
    check(all(set(old) <= set(new) for old, new in zip(before, cluster.leases(), strict=True)), cluster.leases())
    cluster.start_controller()
    second = cluster.leader()
    second.terminate()
    check(second.wait(TIMEOUT_S) == 0, second.returncode)
    until("there is a new leader", lambda: cluster.leader() is not second)
    cluster.scale("f", 4)


def check_watches(cluster):
    print("changes are seen after the API server has forgotten versions, and each kind is listed once more")
    with cluster.api.changed:
        cluster.api.requests.clear()
    cluster.api.forget()
    cluster.scale("f", 3)
    until("nodes are listed", lambda: ("GET", "nodes", False) in list(cluster.api.requests))


def check_wrong(cluster):
    print("impossible resources are refused, and those that were stored before get no lease")
    for field, value in [("smPartition", 130), ("gpuMem", "-2Gi"), ("gpuMem", -2048)]:
        share = SHARE | {field: value}
        try:
            cluster.make("wrong", 1, share)
        except Refused as error:
            check(error.status == 422 and field in str(error), error)
        else:
            raise AssertionError(f"{field} {value} was taken")
        before = cluster.leases()
        cluster.api.checks = False
        try:
            cluster.make("wrong", 1, share)
            found = cluster.until_function("it is invalid", "wrong", lambda one: ready(one)[1] == "Invalid" and one)
            check(field in ready(found)[2], found)
            cluster.api.delete(FUNCTIONS, "apps", "wrong")
            until("it is gone", lambda: len(cluster.api.all(FUNCTIONS)) == 1)
        finally:
            cluster.api.checks = True
        check(cluster.leases() == before, cluster.leases())


def check_end(cluster):
    print("a deleted function releases its leases, and is gone after its instances")
    cluster.api.delete(FUNCTIONS, "apps", "f")
    until("no lease is left", lambda: cluster.counts() == [0, 0])
    until("no resource is left", lambda: not cluster.api.all(INSTANCES) + cluster.api.all(FUNCTIONS))


def check_rights(cluster):
    print("the controller has the rights that it used, and no other ones")
    rules = [rule for one in yaml.safe_load_all(RIGHTS.read_text()) for rule in one.get("rules", [])]
    allowed = {(verb, resource) for rule in rules for verb in rule["verbs"] for resource in rule["resources"]}
    # For API servers that check who may set an owner that blocks deletion.
    allowed.remove(("update", "atollfunctions/finalizers"))
    check(cluster.api.used == allowed, sorted(cluster.api.used ^ allowed))


def main():
    atoll, controller, bundle, folder = sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])
    folder.mkdir(exist_ok=True)
    # A proxy of this machine has no business with loopback.
    os.environ["no_proxy"] = "*"
    cluster = Cluster(atoll, controller, folder)
    try:
        cluster.start(bundle)
        cluster.start_controller()
        check_packing(cluster)
        check_drain(cluster)
        if os.environ.get("ATOLL_TEST_FULL") == "1":
            check_leaders(cluster)
            check_watches(cluster)
            check_wrong(cluster)
        check_end(cluster)
        check_rights(cluster)
        last = cluster.leader()
        last.terminate()
        check(last.wait(TIMEOUT_S) == 0, last.returncode)
    except BaseException:
        for at in range(len(cluster.controllers)):
            with contextlib.suppress(OSError):
                print(f"controller-{at}:\n{cluster.programs.log(f'controller-{at}')[-8000:]}", file=sys.stderr)
        raise
    finally:
        cluster.end()
    print("all of it holds")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main()
