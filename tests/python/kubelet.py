#!/usr/bin/env python3
"""The device plugin and `atoll lease hold` with the protocol of the kubelet: real sockets, a real daemon, and gRPC of
another implementation than the plugin's.

kubelet.py ATOLL PLUGIN BUNDLE FOLDER

ATOLL and PLUGIN are the programs, BUNDLE that of `tests/functions/affine.toml`, FOLDER an empty folder with a short
path. Prints what it checks, and ends with 0 if all of it holds; all cases with ATOLL_TEST_FULL=1. Ends the processes
that it started, by their numbers.
"""

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent import futures
from pathlib import Path

import grpc
from wire import BOOL, INT32, STRING, TEXTS, messages

TIMEOUT_S = 120.0
UNIT = 64 << 20

# Messages of the protocol v1beta1: field names, numbers and types, as Kubernetes publishes them.
MESSAGES = {
    "Empty": [],
    "DevicePluginOptions": [("pre_start_required", 1, BOOL), ("get_preferred_allocation_available", 2, BOOL)],
    "RegisterRequest": [
        ("version", 1, STRING),
        ("endpoint", 2, STRING),
        ("resource_name", 3, STRING),
        ("options", 4, "DevicePluginOptions"),
    ],
    "Device": [("ID", 1, STRING), ("health", 2, STRING)],
    "ListAndWatchResponse": [("devices", 1, ["Device"])],
    "ContainerPreferredAllocationRequest": [
        ("available_deviceIDs", 1, TEXTS),
        ("must_include_deviceIDs", 2, TEXTS),
        ("allocation_size", 3, INT32),
    ],
    "PreferredAllocationRequest": [("container_requests", 1, ["ContainerPreferredAllocationRequest"])],
    "ContainerPreferredAllocationResponse": [("deviceIDs", 1, TEXTS)],
    "PreferredAllocationResponse": [("container_responses", 1, ["ContainerPreferredAllocationResponse"])],
    "ContainerAllocateRequest": [("devices_ids", 1, TEXTS)],
    "AllocateRequest": [("container_requests", 1, ["ContainerAllocateRequest"])],
    # What a map is on the wire.
    "Variable": [("key", 1, STRING), ("value", 2, STRING)],
    "Mount": [("container_path", 1, STRING), ("host_path", 2, STRING), ("read_only", 3, BOOL)],
    "ContainerAllocateResponse": [("envs", 1, ["Variable"]), ("mounts", 2, ["Mount"])],
    "AllocateResponse": [("container_responses", 1, ["ContainerAllocateResponse"])],
    "PreStartContainerRequest": [("devices_ids", 1, TEXTS)],
    "PreStartContainerResponse": [],
}


MESSAGE = messages("v1beta1", MESSAGES)


def until(what, is_so, process=None):
    """Waits until something is so, and returns it."""
    start = time.monotonic()
    while not (found := is_so()):
        if process is not None and process.poll() is not None:
            raise AssertionError(f"{what}: the process has ended with {process.returncode}")
        if time.monotonic() - start > TIMEOUT_S:
            raise TimeoutError(f"timed out waiting: {what}")
        time.sleep(0.05)
    return found


def check(is_so, found):
    """Like `assert`, also with -O."""
    if not is_so:
        raise AssertionError(found)


class Plugin:
    """A device plugin as the kubelet sees it, after it has registered."""

    def __init__(self, folder, request):
        self.request = request
        # The authority that Go's gRPC sends over a Unix socket. Python's sends the path.
        options = [("grpc.default_authority", "localhost")]
        self.channel = grpc.insecure_channel(f"unix:{folder / request.endpoint}", options)
        self.lists = queue.Queue()
        self.last = None
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self):
        method = self._method("ListAndWatch", "Empty", "ListAndWatchResponse", self.channel.unary_stream)
        with contextlib.suppress(grpc.RpcError):
            for answer in method(MESSAGE["Empty"](), wait_for_ready=True):
                self.lists.put({device.ID: device.health for device in answer.devices})

    def _method(self, name, sent, received, kind):
        return kind(
            f"/v1beta1.DevicePlugin/{name}",
            request_serializer=MESSAGE[sent].SerializeToString,
            response_deserializer=MESSAGE[received].FromString,
        )

    def call(self, name, sent, received, request):
        return self._method(name, sent, received, self.channel.unary_unary)(request, timeout=TIMEOUT_S)

    def options(self):
        return self.call("GetDevicePluginOptions", "Empty", "DevicePluginOptions", MESSAGE["Empty"]())

    def until_list(self, what, is_so):
        """Waits for a list of units that fulfils something."""
        while self.last is None or not is_so(self.last):
            try:
                self.last = self.lists.get(timeout=TIMEOUT_S)
            except queue.Empty:
                raise TimeoutError(f"timed out waiting: {what}; the last list is {str(self.last)[:200]}") from None
        return self.last

    def allocate(self, *containers):
        """The variables and mounts of each container."""
        requests = [MESSAGE["ContainerAllocateRequest"](devices_ids=ids) for ids in containers]
        request = MESSAGE["AllocateRequest"](container_requests=requests)
        answer = self.call("Allocate", "AllocateRequest", "AllocateResponse", request)
        variables = [{one.key: one.value for one in given.envs} for given in answer.container_responses]
        return list(zip(variables, [list(given.mounts) for given in answer.container_responses], strict=True))

    def prefer(self, available, required, count):
        one = MESSAGE["ContainerPreferredAllocationRequest"](
            available_deviceIDs=available, must_include_deviceIDs=required, allocation_size=count
        )
        request = MESSAGE["PreferredAllocationRequest"](container_requests=[one])
        sent, received = "PreferredAllocationRequest", "PreferredAllocationResponse"
        return list(self.call("GetPreferredAllocation", sent, received, request).container_responses[0].deviceIDs)


class Kubelet:
    """The kubelet's side of registration."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.registered = queue.Queue()
        self.server = None

    def start(self):
        """Removes all that is in the folder, as the kubelet does, and takes registrations."""
        for file in self.folder.iterdir():
            file.unlink(missing_ok=True)
        self.registered = queue.Queue()
        handler = grpc.unary_unary_rpc_method_handler(
            self._register,
            request_deserializer=MESSAGE["RegisterRequest"].FromString,
            response_serializer=MESSAGE["Empty"].SerializeToString,
        )
        self.server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
        handlers = grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": handler})
        self.server.add_generic_rpc_handlers((handlers,))
        self.server.add_insecure_port(f"unix:{self.folder / 'kubelet.sock'}")
        self.server.start()

    def stop(self):
        self.server.stop(0).wait()
        with contextlib.suppress(FileNotFoundError):
            (self.folder / "kubelet.sock").unlink()

    def _register(self, request, _context):
        self.registered.put(request)
        return MESSAGE["Empty"]()

    def plugins(self, count):
        """Waits for so many registrations, and connects to the plugins. By the name of the resource."""
        found = {}
        while len(found) < count:
            request = self.registered.get(timeout=TIMEOUT_S)
            check(request.version == "v1beta1" and "/" not in request.endpoint, request)
            options = request.options
            check(options.get_preferred_allocation_available and not options.pre_start_required, request)
            check((self.folder / request.endpoint).is_socket(), request)
            found[request.resource_name] = Plugin(self.folder, request)
        return found


class Daemon:
    """A daemon with its own port, socket and state."""

    def __init__(self, atoll, folder, compute_units=2):
        self.atoll, self.folder, self.compute_units = atoll, folder, compute_units
        (folder / "repository").mkdir(parents=True)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.socket = folder / "atoll.sock"
        self.process = None

    def start(self):
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        names = ("XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME")
        environment = os.environ | {name: str(self.folder) for name in names}
        environment.pop("ATOLL_CONTROL_SOCKET", None)
        arguments = ["serve", "--http-port", str(self.port), "--no-grpc", "--metrics-port", "0"]
        arguments += ["--compute-units", str(self.compute_units)]
        arguments += ["--memory-limit", "256M", "--model-repository", str(self.folder / "repository")]
        with open(self.folder / "daemon.log", "a") as log:
            command = [self.atoll, *arguments, "--ready-file", str(ready)]
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        until("the daemon is ready", ready.exists, self.process)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def ask(self, method, path, body=None):
        """The status and the answer of the inference port."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return answer.status, json.loads(answer.read() or "null")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def leases(self):
        status, leases = self.ask("GET", "/v2/leases")
        check(status == 200, leases)
        return leases


class Programs:
    """Processes that are ended at the end."""

    def __init__(self, folder):
        self.folder, self.running = folder, []

    def start(self, name, command, environment=None):
        clean = {key: value for key, value in os.environ.items() if not key.startswith("ATOLL_")}
        with open(self.folder / f"{name}.log", "a") as log:
            process = subprocess.Popen(command, env=clean | (environment or {}), stdout=log, stderr=log)
        self.running.append(process)
        return process

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def end(self):
        for process in self.running:
            if process.poll() is None:
                process.kill()
                process.wait()


def healthy(units):
    return bool(units) and set(units.values()) == {"Healthy"}


def unhealthy(units):
    return bool(units) and set(units.values()) == {"Unhealthy"}


def check_units(plugins):
    print("each resource has its units, and they are healthy")
    check(set(plugins) == {"atoll.dev/sm-pct", "atoll.dev/gpu-mem-64mib", "atoll.dev/rt-slots"}, set(plugins))
    counts = {name: len(plugin.until_list(name, healthy)) for name, plugin in plugins.items()}
    expected = {"atoll.dev/sm-pct": 100, "atoll.dev/gpu-mem-64mib": 4, "atoll.dev/rt-slots": 4}
    check(counts == expected, counts)
    for plugin in plugins.values():
        check(plugin.options() == plugin.request.options, plugin.options())
        sent, received = "PreStartContainerRequest", "PreStartContainerResponse"
        plugin.call("PreStartContainer", sent, received, MESSAGE[sent](devices_ids=[]))
    shares = plugins["atoll.dev/sm-pct"]
    units = sorted(shares.last)
    chosen = shares.prefer(units, units[40:42], 30)
    check(len(set(chosen)) == 30 and set(units[40:42]) <= set(chosen) <= set(units), chosen)


def allocation(plugins):
    """What a container gets with 15 % of a device, 64 MiB and a real-time slot."""
    print("a container gets the size of its lease, and what the plugin does not have is refused")
    envs = {}
    for name, count in [("atoll.dev/sm-pct", 15), ("atoll.dev/gpu-mem-64mib", 1), ("atoll.dev/rt-slots", 1)]:
        plugin = plugins[name]
        units = plugin.prefer(sorted(plugin.last), [], count)
        ((given, mounts),) = plugin.allocate(units)
        check(not mounts and not {key for key in envs if key in given and envs[key] != given[key]}, given)
        envs |= given
    shares = plugins["atoll.dev/sm-pct"]
    (first, _), (second, _) = shares.allocate(["host:0-1"], ["host:0-2", "host:0-3"])
    check((first["ATOLL_SM_PCT"], second["ATOLL_SM_PCT"]) == ("1", "2"), (first, second))
    ids = {one["ATOLL_LEASE_REQUEST_ID"] for one in (first, second, envs)}
    check(len(ids) == 3 and all(len(one) == 32 for one in ids), ids)
    for wrong in ["host:0-100", "host:1-0", "nonsense", ""]:
        try:
            found = shares.allocate(["host:0-1", wrong])
        except grpc.RpcError as error:
            check(error.code() == grpc.StatusCode.INVALID_ARGUMENT and "is not a unit of" in error.details(), error)
        else:
            raise AssertionError(f"{wrong!r} was allocated: {found}")
    return envs


class Holder:
    """A process of `atoll lease hold`."""

    def __init__(self, programs, daemon, envs, folder, arguments):
        self.file = folder / "lease.json"
        self.file.unlink(missing_ok=True)
        command = [daemon.atoll, "lease", "hold", "--function", "affine", "--lease-file", str(self.file), *arguments]
        self.process = programs.start("holder", command, envs)

    def lease(self):
        until("the holder has a lease", self.file.exists, self.process)
        return json.loads(self.file.read_text())

    def end(self):
        self.process.terminate()
        check(self.process.wait(TIMEOUT_S) == 0, self.process.returncode)
        check(not self.file.exists(), "the file is gone")


def check_lease(programs, daemon, envs, folder):
    print("with these variables a container holds its lease, also after it was killed")
    arguments = ["--quota-request", "0.5", "--ttl", "600", "--class", "real-time"]
    environment = envs | {"ATOLL_LEASE_HOLDER": "pod-1"}
    holder = Holder(programs, daemon, environment, folder, arguments)
    lease = holder.lease()
    check(lease["url"] == daemon.url and lease["device"] == "host:0" and lease["holder"] == "pod-1", lease)
    figures = [lease[name] for name in ("sm_partition", "quota_request", "gpu_mem", "real_time_slots", "class")]
    check(figures == [30.0, 0.5, UNIT, 1, "real-time"], lease)
    vector = {"datatype": "FP32", "shape": [2], "data": [1, 2]}
    body = {"parameters": {"instance": lease["instance"]}, "inputs": [{"name": name, **vector} for name in "xb"]}
    status, answer = daemon.ask("POST", "/v2/models/affine/infer", body)
    check(status == 200 and answer["outputs"][0]["data"] == [4, 8], answer)
    holder.process.kill()
    holder.process.wait()
    holder = Holder(programs, daemon, environment, folder, arguments)
    check(holder.lease() | {"expires_in_ms": 0} == lease | {"expires_in_ms": 0}, (holder.lease(), lease))
    check([one["lease"] for one in daemon.leases()] == [lease["lease"]], daemon.leases())

    print("a container whose lease has ended gets another one, which is released at its end")
    hold = {"epoch": lease["epoch"], "holder": "pod-1"}
    status, answer = daemon.ask("POST", f"/v2/leases/{lease['lease']}/release", hold)
    check(status == 200, answer)
    holder.process.kill()
    holder.process.wait()
    holder = Holder(programs, daemon, environment, folder, arguments)
    other = holder.lease()
    check(other["lease"] != lease["lease"] and other["epoch"] > lease["epoch"], (other, lease))
    holder.end()
    check(daemon.leases() == [], daemon.leases())


def check_annotations(programs, daemon, envs, folder):
    print("annotations of FaST-GShare say how large a lease is, within what the container has")
    annotations = folder / "annotations"
    lines = {"gpu_quota_request": "0.3", "gpu_quota_limit": "0.6", "gpu_sm_partition": "50", "gpu_mem": str(1 << 20)}
    annotations.write_text("".join(f'fastgshare/{name}="{value}"\n' for name, value in lines.items()))
    holder = Holder(programs, daemon, envs, folder, ["--annotations", str(annotations)])
    lease = holder.lease()
    figures = [lease[name] for name in ("quota_request", "quota_limit", "sm_partition", "gpu_mem")]
    check(figures == [0.3, 0.6, 50.0, 1 << 20], lease)
    holder.end()
    check(daemon.leases() == [], daemon.leases())
    for name, value, says in [
        ("gpu_sm_partition", "80", "80 % of the compute units"),
        ("gpu_sm_partition", "130", "gpu_sm_partition is `130`"),
        ("gpu_mem", str(1 << 40), "exceed the"),
        ("gpu_mem", "-5", "gpu_mem is `-5`"),
    ]:
        annotations.write_text("".join(f'fastgshare/{key}="{one}"\n' for key, one in (lines | {name: value}).items()))
        command = [daemon.atoll, "lease", "hold", "--function", "affine", "--annotations", str(annotations)]
        done = subprocess.run(command, env=os.environ | envs, capture_output=True, text=True, timeout=TIMEOUT_S)
        check(done.returncode == 2 and says in done.stderr, (name, value, done.returncode, done.stderr))


def check_health(daemon, plugins):
    print("units are not healthy while the daemon is dead, and healthy when it is back")
    daemon.kill()
    for name, plugin in plugins.items():
        plugin.until_list(f"{name} is unhealthy", unhealthy)
    daemon.start()
    for name, plugin in plugins.items():
        plugin.until_list(f"{name} is healthy", healthy)


def check_restart(kubelet):
    print("plugins register again after the kubelet has restarted")
    kubelet.stop()
    kubelet.start()
    plugins = kubelet.plugins(3)
    for name, plugin in plugins.items():
        plugin.until_list(name, healthy)
    shares = plugins["atoll.dev/sm-pct"]
    check(shares.allocate(["host:0-0"])[0][0]["ATOLL_SM_PCT"] == "1", "it allocates")
    # The kubelet's socket may be there, and the plugin's not.
    (kubelet.folder / shares.request.endpoint).unlink()
    kubelet.plugins(3)


def end(process, kubelet):
    process.terminate()
    check(process.wait(TIMEOUT_S) == 0, process.returncode)
    left = sorted(file.name for file in kubelet.folder.iterdir())
    check(left == ["kubelet.sock"], f"the plugin leaves {left}")


def check_hami(programs, plugin, daemon, kubelet):
    print("the names of HAMi, further variables and mounts")
    extra = ["--names", "hami", "--env", "A=b=c", "--mount", "/run/atoll:/run/a"]
    arguments = ["--control-socket", str(daemon.socket), "--kubelet-folder", str(kubelet.folder), "--url", daemon.url]
    process = programs.start("hami", [plugin, *arguments, *extra])
    plugins = kubelet.plugins(4)
    counts = {name: len(one.until_list(name, healthy)) for name, one in plugins.items()}
    expected = {"gpu": 10, "gpucores": 100, "gpumem": 256, "gpumem-percentage": 100}
    check(counts == {f"nvidia.com/{name}": count for name, count in expected.items()}, counts)
    for name, count, variable, value in [
        ("gpucores", 30, "ATOLL_SM_PCT", "30"),
        ("gpumem", 64, "ATOLL_GPU_MEM", str(UNIT)),
        ("gpumem-percentage", 25, "ATOLL_GPU_MEM", str(UNIT)),
    ]:
        one = plugins[f"nvidia.com/{name}"]
        ((envs, mounts),) = one.allocate(sorted(one.last)[:count])
        check(envs[variable] == value and envs["A"] == "b=c" and envs["ATOLL_URL"] == daemon.url, envs)
        (mount,) = mounts
        check((mount.host_path, mount.container_path, mount.read_only) == ("/run/atoll", "/run/a", True), mount)
    end(process, kubelet)


def main():
    atoll, plugin, bundle, folder = sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])
    folder.mkdir(exist_ok=True)
    # A proxy of this machine has no business with loopback.
    os.environ["no_proxy"] = "*"
    programs, daemon, kubelet = Programs(folder), Daemon(atoll, folder / "d"), Kubelet(folder / "k")
    arguments = ["--control-socket", str(daemon.socket), "--kubelet-folder", str(kubelet.folder), "--url", daemon.url]
    try:
        # The plugin is there first: it waits for the daemon and the kubelet.
        process = programs.start("plugin", [plugin, *arguments])
        daemon.start()
        deploy = [atoll, "fn", "deploy", bundle, "--control-socket", str(daemon.socket)]
        subprocess.run(deploy, check=True, capture_output=True, timeout=TIMEOUT_S)
        kubelet.start()
        plugins = kubelet.plugins(3)
        check_units(plugins)
        envs = allocation(plugins)
        check(envs["ATOLL_URL"] == daemon.url and envs["ATOLL_GPU_MEM"] == str(UNIT), envs)
        check_lease(programs, daemon, envs, folder)
        is_full = os.environ.get("ATOLL_TEST_FULL") == "1"
        if is_full:
            check_annotations(programs, daemon, envs, folder)
        check_health(daemon, plugins)
        check_restart(kubelet)
        end(process, kubelet)
        if is_full:
            check_hami(programs, plugin, daemon, kubelet)
    except BaseException:
        for name in ("plugin", "holder", "hami"):
            with contextlib.suppress(OSError):
                print(f"{name}:\n{programs.log(name)}", file=sys.stderr)
        raise
    finally:
        programs.end()
        if daemon.process is not None and daemon.process.poll() is None:
            daemon.kill()
        if kubelet.server is not None:
            kubelet.server.stop(0)
    print("all of it holds")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main()
