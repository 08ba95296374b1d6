#!/usr/bin/env python3
"""The driver of dynamic resource allocation with the protocols of the kubelet and of the API server, and a real daemon.
gRPC is that of another implementation than the driver's; the test is the kubelet and the scheduler.

kubernetes_dra.py ATOLL DRIVER BUNDLE FOLDER

ATOLL and DRIVER are the programs, BUNDLE that of `tests/functions/affine.toml`, FOLDER an empty folder with a short
path. Prints what it checks, and ends with 0 if all of it holds; all cases with ATOLL_TEST_FULL=1. Ends the processes
that it started, by their numbers.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import grpc
import yaml
from apiserver import ApiServer
from kubelet import TIMEOUT_S, Daemon, Programs, check, until
from resource_slices import CAPACITY, COUNTERS, IN_SLICE
from wire import BOOL, STRING, TEXTS, messages

ROOT = Path(__file__).resolve().parents[2] / "integrations/kubernetes"
RIGHTS, EXAMPLE = ROOT / "dra-driver/manifests/rbac.yaml", ROOT / "examples/dra.yaml"
DRIVER, NODE, POOL = "gpu.atoll.dev", "gpu-1", "gpu-1/host-0"
DRA, BETA = "k8s.io.kubelet.pkg.apis.dra.v1", "k8s.io.kubelet.pkg.apis.dra.v1beta1"
SLICES, CLAIMS = "resourceslices", "resourceclaims"

# Field names, numbers and types, as Kubernetes publishes them. A map is a list of pairs on the wire.
REGISTRATION = messages(
    "pluginregistration",
    {
        "InfoRequest": [],
        "PluginInfo": [
            ("type", 1, STRING),
            ("name", 2, STRING),
            ("endpoint", 3, STRING),
            ("supported_versions", 4, TEXTS),
        ],
        "RegistrationStatus": [("plugin_registered", 1, BOOL), ("error", 2, STRING)],
        "RegistrationStatusResponse": [],
    },
)
MESSAGE = messages(
    "dra",
    {
        "Claim": [("namespace", 1, STRING), ("uid", 2, STRING), ("name", 3, STRING)],
        "Request": [("claims", 1, ["Claim"])],
        "Device": [
            ("request_names", 1, TEXTS),
            ("pool_name", 2, STRING),
            ("device_name", 3, STRING),
            ("cdi_device_ids", 4, TEXTS),
            ("share_id", 5, STRING),
        ],
        "Prepared": [("devices", 1, ["Device"]), ("error", 2, STRING)],
        "PreparedPair": [("key", 1, STRING), ("value", 2, "Prepared")],
        "PreparedAnswer": [("claims", 1, ["PreparedPair"])],
        "Unprepared": [("error", 1, STRING)],
        "UnpreparedPair": [("key", 1, STRING), ("value", 2, "Unprepared")],
        "UnpreparedAnswer": [("claims", 1, ["UnpreparedPair"])],
    },
)


def call(channel, path, request, answer):
    method = channel.unary_unary(
        path, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
    )
    return method(request, timeout=TIMEOUT_S, wait_for_ready=True)


def connected(path):
    # The authority that Go's gRPC sends over a Unix socket. Python's sends the path.
    return grpc.insecure_channel(f"unix:{path}", [("grpc.default_authority", "localhost")])


class Node:
    """The kubelet and the container runtime of a node."""

    def __init__(self, folder):
        self.plugins, self.registry, self.cdi = folder / "p", folder / "r", folder / "cdi"
        for path in (self.plugins, self.registry):
            path.mkdir(parents=True)
        self.channel = None

    def register(self, process):
        """Finds the driver in the folder of sockets, as the kubelet does."""
        path = self.registry / f"{DRIVER}-reg.sock"
        until("the driver has a socket", path.is_socket, process)
        with connected(path) as channel:
            service = "/pluginregistration.Registration"
            info = call(channel, f"{service}/GetInfo", REGISTRATION["InfoRequest"](), REGISTRATION["PluginInfo"])
            check((info.type, info.name) == ("DRAPlugin", DRIVER), info)
            check(list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin"], info)
            check(info.endpoint == str(self.plugins / DRIVER / "dra.sock"), info)
            status = REGISTRATION["RegistrationStatus"](plugin_registered=True)
            answer = REGISTRATION["RegistrationStatusResponse"]
            call(channel, f"{service}/NotifyRegistrationStatus", status, answer)
        self.channel = connected(info.endpoint)

    def ask(self, method, claims, answer, version):
        sent = [
            MESSAGE["Claim"](namespace=one["metadata"]["namespace"], uid=one["metadata"]["uid"], name=name(one))
            for one in claims
        ]
        path = f"/{version}.DRAPlugin/{method}"
        found = call(self.channel, path, MESSAGE["Request"](claims=sent), MESSAGE[answer])
        found = {one.key: one.value for one in found.claims}
        check(found.keys() == {one.uid for one in sent}, found)
        return [found[one.uid] for one in sent]

    def prepare(self, *claims, version=DRA):
        return self.ask("NodePrepareResources", claims, "PreparedAnswer", version)

    def prepared(self, claim, version=DRA):
        """The devices of a claim, as soon as the driver has them: the kubelet, too, asks again."""

        def found():
            (one,) = self.prepare(claim, version=version)
            return None if one.error else one

        return until(f"the claim {name(claim)} is prepared", found).devices

    def unprepare(self, *claims, version=DRA):
        for one in self.ask("NodeUnprepareResources", claims, "UnpreparedAnswer", version):
            check(not one.error, one)

    def container(self, devices):
        """The variables and mounts that the container runtime adds, by the specifications of CDI."""
        variables, mounts = {}, {}
        for wanted in (one for device in devices for one in device.cdi_device_ids):
            kind, _, wanted = wanted.partition("=")
            specs = [json.loads(path.read_text()) for path in self.cdi.glob("*.json")]
            (edits,) = [
                one["containerEdits"]
                for spec in specs
                if spec["kind"] == kind
                for one in spec["devices"]
                if one["name"] == wanted
            ]
            variables |= dict(one.split("=", 1) for one in edits["env"])
            for mount in edits["mounts"]:
                check("ro" in mount["options"], mount)
                mounts[mount["containerPath"]] = mount["hostPath"]
        return variables, mounts

    def lease_file(self, devices):
        """The file of the lease as the container finds it, on the node."""
        variables, mounts = self.container(devices)
        path = Path(variables["ATOLL_LEASE_FILE"])
        return Path(mounts[str(path.parent)]) / path.name


def name(one):
    return one["metadata"]["name"]


class Cluster:
    """A node with a daemon and a driver."""

    def __init__(self, atoll, driver, folder):
        self.driver = driver
        self.api, self.programs, self.node = ApiServer(), Programs(folder), Node(folder)
        self.daemon = Daemon(atoll, folder / "d", compute_units=2)
        self.process, self.count = None, 0
        self.api.create("nodes", None, {"metadata": {"name": NODE}})

    def start_driver(self, *more):
        arguments = ["--node-name", NODE, "--url", self.daemon.url, "--api-server", self.api.url]
        arguments += ["--plugins-folder", str(self.node.plugins), "--registry-folder", str(self.node.registry)]
        arguments += ["--cdi-folder", str(self.node.cdi), "--env", "A=b=c", "--mount", "/run/atoll:/run/a", *more]
        self.process = self.programs.start("driver", [self.driver, *arguments])
        return self.process

    def stop_driver(self):
        self.process.terminate()
        check(self.process.wait(TIMEOUT_S) == 0, self.process.returncode)
        left = [*self.node.registry.iterdir(), *self.node.plugins.glob("*/*.sock")]
        check(not left, f"the driver leaves {left}")

    def allocated(self, *results, config=(), namespace="apps"):
        """A claim that the scheduler has allocated. A result is the device and what the claim consumes of it. The first
        one is an alternative of its request."""
        self.count += 1
        made = [
            {"request": f"r{at}" if at else "r0/a", "driver": DRIVER, "pool": POOL, "device": device}
            | ({"shareID": f"s{at}", "consumedCapacity": consumed} if consumed else {})
            for at, (device, consumed) in enumerate(results)
        ]
        configs = [{"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": one}} for one in config]
        status = {"allocation": {"devices": {"results": made, "config": configs}}}
        return self.api.create(CLAIMS, namespace, {"metadata": {"name": f"c{self.count}"}, "status": status})

    def leased(self, consumed, **fields):
        """A claim whose lease the driver takes."""
        return self.allocated(("host-0", consumed), config=[parameters(**fields)])

    def slices(self):
        return self.api.all(SLICES)

    def until_slices(self, what, is_so):
        return until(what, lambda: is_so(self.slices()) and (self.slices() or True), self.process)

    def devices(self):
        return {name: device for one in self.slices() for name, device in named(one["spec"].get("devices", []))}

    def end(self):
        self.programs.end()
        if self.daemon.process is not None and self.daemon.process.poll() is None:
            self.daemon.kill()
        self.api.stop()


def named(devices):
    return [(one["name"], one) for one in devices]


def parameters(**fields):
    kind = {"apiVersion": f"{DRIVER}/v1alpha1", "kind": "AtollLeaseConfig"}
    return kind | {"function": "affine", "ttlSeconds": 600} | fields


def part(sm, memory="16Mi", slots="0"):
    return {"sm": str(sm), "memory": memory, "realTimeSlots": slots}


def infer(daemon, lease):
    vector = {"datatype": "FP32", "shape": [2], "data": [1, 2]}
    body = {"parameters": {"instance": lease["instance"]}, "inputs": [{"name": one, **vector} for one in "xb"]}
    status, answer = daemon.ask("POST", "/v2/models/affine/infer", body)
    check(status == 200 and answer["outputs"][0]["data"] == [4, 8], answer)


def check_slices(cluster):
    print("the devices of the daemon are published for claims that share them")
    cluster.until_slices("there is a slice", lambda slices: len(slices) == 1)
    (one,) = cluster.slices()
    (node,) = cluster.api.all("nodes")
    (owner,) = one["metadata"]["ownerReferences"]
    check((owner["kind"], owner["uid"]) == ("Node", node["metadata"]["uid"]), owner)
    spec = one["spec"]
    check((spec["driver"], spec["nodeName"], spec["pool"]["name"]) == (DRIVER, NODE, POOL), spec)
    (device,) = spec["devices"]
    values = {key: one["value"] for key, one in device["capacity"].items()}
    check(values == {"sm": "100", "memory": "256Mi", "realTimeSlots": "4"}, device)
    check(device["allowMultipleAllocations"] and device["attributes"]["kind"] == {"string": "host"}, device)
    cluster.api.patch(SLICES, None, name(one), {"spec": {"devices": []}})
    cluster.until_slices("a slice that was changed is as it was", lambda slices: slices[0]["spec"].get("devices"))
    again = cluster.slices()[0]["spec"]
    check(again["pool"]["generation"] > spec["pool"]["generation"] and again["devices"] == spec["devices"], again)


def check_lease(cluster):
    print("a prepared claim has its lease, and its containers find it; again, it is the same one")
    node, daemon = cluster.node, cluster.daemon
    # The parameters of the example, with our function.
    (example,) = [one for one in yaml.safe_load_all(EXAMPLE.read_text()) if one["kind"] == "ResourceClaimTemplate"]
    (config,) = example["spec"]["spec"]["devices"]["config"]
    claim = cluster.leased(part(15, "64Mi", "1"), **config["opaque"]["parameters"] | {"function": "affine"})
    devices = node.prepared(claim)
    (device,) = devices
    check((list(device.request_names), device.pool_name, device.device_name) == (["r0"], POOL, "host-0"), device)
    check(device.share_id == "s0", device)
    variables, mounts = node.container(devices)
    check(variables["ATOLL_URL"] == daemon.url and variables["A"] == "b=c", variables)
    check(mounts["/run/a"] == "/run/atoll", mounts)
    lease = json.loads(node.lease_file(devices).read_text())
    figures = [lease[key] for key in ("sm_partition", "quota_request", "gpu_mem", "real_time_slots", "class")]
    check(figures == [30.0, 0.5, 64 << 20, 1, "real-time"] and lease["url"] == daemon.url, lease)
    infer(daemon, lease)
    for version in (DRA, BETA):
        check(list(node.prepared(claim, version)) == list(devices), version)
    check([one["lease"] for one in daemon.leases()] == [lease["lease"]], daemon.leases())
    return claim, devices, lease


def same(cluster, devices, lease):
    """Waits until containers see the lease, which is the only one."""
    path = cluster.node.lease_file(devices)
    until("the lease is visible", path.exists, cluster.process)
    found = json.loads(path.read_text())
    check(found["lease"] == lease["lease"] and found["epoch"] == lease["epoch"], (found, lease))
    infer(cluster.daemon, found)
    check([one["lease"] for one in cluster.daemon.leases()] == [lease["lease"]], cluster.daemon.leases())


def check_restarts(cluster, claim, devices, lease):
    print("the lease survives the driver and the daemon")
    cluster.process.kill()
    cluster.process.wait()
    # Its sockets are still there, with no process behind.
    for path in [*cluster.node.registry.iterdir(), *cluster.node.plugins.glob("*/*.sock")]:
        path.unlink()
    cluster.start_driver()
    cluster.node.register(cluster.process)
    check(list(cluster.node.prepared(claim)) == list(devices), "the same devices")
    same(cluster, devices, lease)
    cluster.daemon.kill()
    cluster.until_slices("no device of a dead daemon is published", lambda slices: not slices)
    cluster.daemon.start()
    cluster.until_slices("its devices are published again", bool)
    check(list(cluster.node.prepared(claim)) == list(devices), "the same devices")
    same(cluster, devices, lease)


def check_end(cluster, claim, devices, lease):
    print("a lease that has ended is replaced; a claim that is not used any more leaves nothing behind")
    node, daemon = cluster.node, cluster.daemon
    path = node.lease_file(devices)
    body = {"epoch": lease["epoch"], "holder": lease["holder"]}
    status, answer = daemon.ask("POST", f"/v2/leases/{lease['lease']}/release", body)
    check(status == 200, answer)
    # Nothing is asked for before the next renewal, which another process of the driver sends at once.
    cluster.stop_driver()
    cluster.start_driver()
    node.register(cluster.process)
    other = until("there is another lease", lambda: [one for one in daemon.leases() if one["lease"] != lease["lease"]])
    until("containers see it", lambda: path.exists() and json.loads(path.read_text())["lease"] == other[0]["lease"])
    node.unprepare(claim)
    until("it is released", lambda: daemon.leases() == [])
    until("nothing is left", lambda: not [*node.cdi.iterdir(), *node.plugins.glob("*/*/*")])
    # It is unknown now, and what is left of its record cannot be read.
    (node.plugins / DRIVER / "claims" / f"{claim['metadata']['uid']}.json").write_text("{")
    node.unprepare(claim, version=BETA)
    check(not [*node.plugins.glob("*/*/*")], "nothing is left")
    devices = node.prepared(claim)
    check(len(daemon.leases()) == 1, "a claim may be used again")
    infer(daemon, json.loads(node.lease_file(devices).read_text()))
    node.unprepare(claim)
    until("it is released", lambda: daemon.leases() == [])


def check_renewal(cluster):
    print("leases are renewed")
    claim = cluster.leased(part(10), ttlSeconds=5)
    cluster.node.prepared(claim)
    (lease,) = cluster.daemon.leases()
    left, renewals = lease["expires_in_ms"], 0
    while renewals < 3:
        time.sleep(0.1)
        (found,) = cluster.daemon.leases()
        check(found["lease"] == lease["lease"], found)
        renewals += found["expires_in_ms"] > left
        left = found["expires_in_ms"]
    cluster.node.unprepare(claim)
    until("it is released", lambda: cluster.daemon.leases() == [])


def check_container(cluster):
    print("without parameters, the container takes the lease of its claim itself")
    node, daemon = cluster.node, cluster.daemon
    claim = cluster.allocated(("host-0", part(30, "32Mi")), ("host-0", part(10)))
    devices = node.prepared(claim)
    check(daemon.leases() == [] and [list(one.request_names) for one in devices] == [["r0"], ["r1"]], devices)
    variables, mounts = node.container(devices[:1])
    check(mounts == {"/run/a": "/run/atoll"}, mounts)
    command = [daemon.atoll, "lease", "hold", "--function", "affine", "--ttl", "600"]
    holder = cluster.programs.start("holder", command, variables)
    (lease,) = until("it has a lease", daemon.leases, holder)
    figures = [lease[key] for key in ("sm_partition", "gpu_mem", "holder")]
    check(figures == [30.0, 32 << 20, f"kubernetes-{claim['metadata']['uid']}-0"], lease)
    holder.terminate()
    check(holder.wait(TIMEOUT_S) == 0, holder.returncode)
    node.unprepare(claim)
    check(daemon.leases() == [] and not list(node.cdi.iterdir()), "nothing is left")


def check_refusals(cluster):
    print("a claim that cannot have its lease is not prepared, with the reason; one without room waits")
    node = cluster.node
    for consumed, fields, says in [
        (part(50), {"smPartition": 130}, "smPartition is 130"),
        (part(50), {"gpuMem": "1Gi"}, "exceed the 16777216"),
        (part(50), {"gpuMem": "-2Gi"}, "gpuMem is"),
        (part(50), {"class": "real-time"}, "needs a real-time slot"),
        (part(50), {"kind": "GpuConfig"}, "AtollLeaseConfig of gpu.atoll.dev/v1alpha1 is read"),
        (part(50), {"sharing": "MPS"}, "unknown field `sharing`"),
        (part(50), {"function": "none"}, "none"),
        (part("half"), {}, "is not a quantity"),
    ]:
        claim = cluster.leased(consumed, **fields)
        (found,) = node.prepare(claim)
        check(says in found.error and not found.devices, (fields, found.error))
        node.unprepare(claim)
    unknown = cluster.allocated(("host-1", None), config=[parameters()])
    check("has no device host-1" in node.prepare(unknown)[0].error, "a device that is not there")
    pending = cluster.api.create(CLAIMS, "apps", {"metadata": {"name": "pending"}})
    check("has no allocation" in node.prepare(pending)[0].error, "not allocated")
    other = json.loads(json.dumps(pending))
    other["metadata"]["uid"] = "00000000-0000-0000-0000-00000000ffff"
    check("has the UID" in node.prepare(other)[0].error, "a claim of the same name")
    other["metadata"]["uid"] = "../../etc"
    check("is not the UID of a claim" in node.prepare(other)[0].error, "a path")
    claims = [cluster.leased(part(80), smPartition=80) for _ in range(2)]
    first, second = node.prepare(*claims)
    check([bool(one.error) for one in (first, second)].count(True) == 1, (first, second))
    waiting, ready = (claims if first.error else claims[::-1])
    check("does not grant the lease" in (first.error or second.error), (first, second))
    node.unprepare(ready)
    node.prepared(waiting)
    node.unprepare(waiting)
    until("all is released", lambda: cluster.daemon.leases() == [])


def check_layouts(cluster):
    print("an API server without a feature gets parts of fixed sizes, or whole devices")
    for features, versions, count in [
        ({COUNTERS}, ["v1beta2"], 2),
        ({IN_SLICE}, ["v1"], 1),
        (set(), ["v1"], 1),
        ({CAPACITY}, ["v1alpha3", "v1beta2", "v1"], 1),
    ]:
        cluster.stop_driver()
        before = [one["metadata"]["resourceVersion"] for one in cluster.slices()]
        cluster.api.features, cluster.api.versions = features, versions
        cluster.start_driver()
        cluster.node.register(cluster.process)

        def is_new(slices, before=before, count=count):
            return len(slices) == count and not {one["metadata"]["resourceVersion"] for one in slices} & set(before)

        cluster.until_slices("the slices have another layout", is_new)
        check(len({one["spec"]["pool"]["generation"] for one in cluster.slices()}) == 1, cluster.slices())
        devices = cluster.devices()
        has_parts = bool(features & {COUNTERS, IN_SLICE})
        check(len(devices) == (36 if has_parts else 1), devices.keys())
        wanted = ("host-0-25-1-rt" if has_parts else "host-0", None)
        claim = cluster.allocated(wanted, config=[parameters(gpuMem="64Mi")])
        (device,) = cluster.node.prepared(claim)
        check(not device.share_id, device)
        (lease,) = cluster.daemon.leases()
        expected = [25.0, 64 << 20, 1] if has_parts else [100.0, 64 << 20, 4]
        check([lease[key] for key in ("sm_partition", "gpu_mem", "real_time_slots")] == expected, lease)
        cluster.node.unprepare(claim)
        until("it is released", lambda: cluster.daemon.leases() == [])


def check_rights(cluster):
    print("the driver has the rights of its requests, and no others")
    given = set()
    for one in yaml.safe_load_all(RIGHTS.read_text()):
        for rule in one.get("rules", []) if one["kind"] == "ClusterRole" else []:
            given |= {(verb, resource) for verb in rule["verbs"] for resource in rule["resources"]}
    used = set(cluster.api.used)
    check(used <= given, f"without a right: {used - given}")
    check(given == used, f"rights that are not used: {given - used}")


def main():
    atoll, driver, bundle, folder = sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])
    folder.mkdir(exist_ok=True)
    # A proxy of this machine has no business with loopback.
    os.environ["no_proxy"] = "*"
    cluster = Cluster(atoll, driver, folder)
    try:
        # The driver is there first: it waits for the daemon.
        cluster.start_driver()
        cluster.node.register(cluster.process)
        cluster.daemon.start()
        deploy = [atoll, "fn", "deploy", bundle, "--control-socket", str(cluster.daemon.socket)]
        subprocess.run(deploy, check=True, capture_output=True, timeout=TIMEOUT_S)
        check_slices(cluster)
        claim, devices, lease = check_lease(cluster)
        check_restarts(cluster, claim, devices, lease)
        check_end(cluster, claim, devices, lease)
        check_container(cluster)
        check_refusals(cluster)
        if os.environ.get("ATOLL_TEST_FULL") == "1":
            check_renewal(cluster)
            check_layouts(cluster)
        check_rights(cluster)
        cluster.stop_driver()
    except BaseException:
        for one in ("driver", "holder"):
            with contextlib.suppress(OSError):
                print(f"{one}:\n{cluster.programs.log(one)}", file=sys.stderr)
        raise
    finally:
        cluster.end()
    print("all of it holds")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main()
