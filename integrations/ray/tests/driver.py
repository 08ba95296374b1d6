"""A program of Ray in a process of its own, since Ray ends the programs of a node whose raylet dies.

    driver.py HEAD ADDRESS

Connects to the cluster, and answers each line of JSON, `{"do": NAME, ...}`, with `{"ok": VALUE}` or `{"error": TEXT}`.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray
from machines import SOURCES
from ray.exceptions import RayError

import atoll_ray


class DriverLost(RayError):
    """The driver has ended or does not answer."""


class Driver:
    """Starts the program and asks it. Threads may share it."""

    def __init__(self, head: str, address: str, log: Path) -> None:
        self._command = [sys.executable, __file__, head, address]
        self._log = log
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def connect(self, timeout_s: float) -> None:
        """Starts the program, unless it runs."""
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return
            environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SOURCES), str(Path(__file__).parent)])}
            with open(self._log, "a") as log:
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment
                )
            self._rest = b""
            self._answer(time.monotonic() + timeout_s)

    def ask(self, do: str, timeout_s: float = 15.0, **arguments: Any) -> Any:
        """The answer of the program. Raises `DriverLost` if there is none, and `RuntimeError` for an error."""
        until = time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=timeout_s):
            raise DriverLost("the driver is busy")
        try:
            if self._process is None or self._process.stdin is None:
                raise DriverLost("there is no driver")
            try:
                self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
                self._process.stdin.flush()
            except OSError as error:
                self._end()
                raise DriverLost(f"the driver has ended: {error}") from error
            # An answer that is late must not be taken for the next one, so a slow driver is ended.
            answer = self._answer(until)
        finally:
            self._lock.release()
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["ok"]

    def close(self) -> None:
        """Ends the program."""
        with self._lock:
            self._end()

    def _answer(self, until: float) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        stdout = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            ready, _, _ = select.select([stdout], [], [], max(0.0, until - time.monotonic()))
            more = os.read(stdout, 1 << 16) if ready else b""
            if not more:
                self._end()
                raise DriverLost("the driver has ended" if ready else "the driver does not answer")
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None


def _do(ask: dict[str, Any]) -> Any:
    do = ask.pop("do")
    if do == "nodes":
        return sum(one["Alive"] for one in ray.nodes())
    if do == "deploy":
        return atoll_ray.deploy(**ask).name
    handle = atoll_ray.get(ask.pop("name"))
    if do == "endpoints":
        return [asdict(one) for one in handle.endpoints()]
    if do == "status":
        status = handle.status()
        for one in status["replicas"]:
            one["endpoint"] = one["endpoint"] and asdict(one["endpoint"])
        return status
    if do == "scale":
        return handle.scale(**ask)
    if do == "delete":
        return handle.delete()
    raise ValueError(f"there is no command {do!r}")


def main() -> None:
    # Only answers are written to standard output.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    head, address = sys.argv[1:]
    ray.init(address=head, _node_ip_address=address, log_to_driver=False, logging_level="ERROR")
    print(json.dumps({"ok": None}), file=out, flush=True)
    for line in sys.stdin:
        try:
            answer = {"ok": _do(json.loads(line))}
        except Exception as error:
            answer = {"error": repr(error)}
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
