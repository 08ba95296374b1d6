"""Machines on loopback for the tests: each has a daemon, and a node of Ray if it joins a cluster."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from atoll_ray.daemon import Daemon

TIMEOUT_S = 120.0
SOURCES = Path(__file__).parent.parent / "src"
PR_SET_CHILD_SUBREAPER = 36

#: The variables of Ray that select its authentication, and the token.
AUTH_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def until(what: str, is_so: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> Any:
    """Waits until something is so, and returns it."""
    start = time.monotonic()
    while not (found := is_so()):
        if time.monotonic() - start > timeout_s:
            raise TimeoutError(f"timed out waiting: {what}")
        time.sleep(0.1)
    return found


def check(is_so: bool, found: object) -> None:
    """Like `assert`, also with -O."""
    if not is_so:
        raise AssertionError(found)


def raises(kind: type[Exception], says: str, call: Callable[[], object]) -> None:
    """Checks that a call raises an error with a text in it."""
    try:
        found = call()
    except kind as error:
        check(says in str(error), error)
    else:
        raise AssertionError(f"it was done: {found}")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def adopt_orphans() -> None:
    """From now on, processes whose parents die come to this one."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """The processes below one, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name of the program may have spaces and parentheses.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def program(pid: int) -> str:
    """The name of the program that a process runs; empty if it has ended."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return Path(command.partition(b"\0")[0].decode(errors="replace")).name


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def send(pids: Iterable[int], number: int) -> None:
    """Sends a signal to processes that were started here."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def reap() -> None:
    """Removes the zombies among orphans."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def end_all() -> None:
    """Ends everything that was started here. Orphans come to this process, so none escapes."""
    while pids := [pid for pid in descendants(os.getpid())]:
        send(pids, signal.SIGKILL)
        reap()
        time.sleep(0.05)


class Machine:
    """A daemon with its own port, socket and state, as on a machine of its own."""

    def __init__(self, atoll: str, folder: Path, address: str) -> None:
        self.atoll, self.folder, self.address = atoll, folder, address
        (folder / "repository").mkdir(parents=True)
        self.url = ""
        self.head_port = 0
        self.start(free_port())

    def start(self, port: int) -> None:
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        folders = ("XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME")
        environment = os.environ | {name: str(self.folder) for name in folders}
        environment.pop("ATOLL_CONTROL_SOCKET", None)
        arguments = ["serve", "--http-port", str(port), "--no-grpc", "--metrics-port", "0", "--compute-units", "2"]
        arguments += ["--memory-limit", "256M", "--model-repository", str(self.folder / "repository")]
        with open(self.folder / "daemon.log", "a") as log:
            command = [self.atoll, *arguments, "--ready-file", str(ready)]
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        until("the daemon is ready", lambda: ready.exists() or self.process.poll() is not None)
        check(self.process.poll() is None, (self.folder / "daemon.log").read_text())
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.daemon = Daemon(self.url, timeout_s=30.0)
        #: For questions whose answer may be missed.
        self.quick = Daemon(self.url, timeout_s=3.0)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def deploy(self, bundle: Path) -> None:
        """Deploys a bundle to the daemon, over its control socket."""
        command = [self.atoll, "fn", "deploy", str(bundle), "--control-socket", str(self.folder / "atoll.sock")]
        subprocess.run(command, check=True, capture_output=True)

    def join(self, head: str | None, temporary: Path, variables: dict[str, str] | None = None) -> None:
        """Starts Ray's node of this machine with `atoll-ray start`. A head starts again on the same port."""
        where = [f"--address={head}"]
        if head is None:
            self.head_port = self.head_port or free_port()
            self.head = f"{self.address}:{self.head_port}"
            where = ["--head", f"--port={self.head_port}", "--include-dashboard=false", f"--temp-dir={temporary}"]
        where += [f"--node-ip-address={self.address}", "--num-cpus=2", "--object-store-memory=100000000", "--block"]
        where += ["--disable-usage-stats", f"--dashboard-agent-listen-port={free_port()}"]
        environment = {name: value for name, value in os.environ.items() if name not in AUTH_VARIABLES}
        environment |= {
            "PYTHONPATH": str(SOURCES),
            "ATOLL_CONTROL_SOCKET": str(self.folder / "atoll.sock"),
            "ATOLL_PROGRAM": self.atoll,
        }
        environment |= variables or {}
        command = [sys.executable, "-m", "atoll_ray", "start", "--url", self.url, "--", *where]
        with open(self.folder / "ray.log", "w") as log:
            self.ray = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def ray_says(self, text: str) -> bool:
        """Whether Ray's node printed a text. Raises `AssertionError` if the node has ended."""
        said = (self.folder / "ray.log").read_text()
        check(self.ray.poll() is None, said)
        return text in said

    def ray_processes(self) -> list[int]:
        """The processes of Ray's node, without those that the node has lost."""
        return [self.ray.pid, *descendants(self.ray.pid)]
