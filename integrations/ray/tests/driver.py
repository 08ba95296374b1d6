"""A program of Ray in a process of its own, since Ray ends the programs of a node whose raylet dies.

    driver.py HEAD ADDRESS

Connects to the cluster, says `{"number": 0}`, and answers each line of JSON, `{"number": N, "do": NAME, ...}`, with
`{"number": N, "ok": VALUE}` or `{"number": N, "error": TEXT}`, in any order.
"""

from __future__ import annotations

import itertools
import json
import os
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
    """Starts the program and asks it. Threads may share it: the program answers several questions at one time."""

    def __init__(self, head: str, address: str, log: Path) -> None:
        self._command = [sys.executable, __file__, head, address]
        self._log = log
        #: For starting and ending the program.
        self._starting = threading.Lock()
        self._changed = threading.Condition()
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        #: Answers by the numbers of their questions. A late answer, for which no thread waits, is dropped.
        self._answers: dict[int, dict[str, Any] | None] = {}
        self._is_connected = False

    def connect(self, timeout_s: float) -> None:
        """Starts the program, unless it runs, and waits until it is connected to the cluster."""
        until = time.monotonic() + timeout_s
        with self._starting:
            if self._process is None or self._process.poll() is not None:
                self._end()
                self._start()
            with self._changed:
                if self._changed.wait_for(self._is_decided, max(0.0, until - time.monotonic())) and self._is_connected:
                    return
            self._end()
        raise DriverLost("the driver cannot connect to the cluster")

    def ask(self, do: str, timeout_s: float = 15.0, **arguments: Any) -> Any:
        """The answer of the program. Raises `DriverLost` if there is none, and `RuntimeError` for an error."""
        process = self._process
        if process is None or process.stdin is None or not self._is_connected:
            raise DriverLost("there is no driver")
        number = next(self._numbers)
        question = json.dumps({"number": number, "do": do, **arguments}).encode() + b"\n"
        with self._changed:
            self._answers[number] = None
            try:
                # Shorter than what a pipe takes at once, so it does not wait for a program that stands still.
                process.stdin.write(question)
                process.stdin.flush()
                self._changed.wait_for(lambda: self._answers[number] or self._process is not process, timeout_s)
            except OSError as error:
                raise DriverLost(f"the driver has ended: {error}") from error
            finally:
                answer = self._answers.pop(number)
        if answer is None:
            raise DriverLost("the driver does not answer, or has ended")
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["ok"]

    def close(self) -> None:
        """Ends the program."""
        with self._starting:
            self._end()

    def _is_decided(self) -> bool:
        return self._is_connected or self._process is None

    def _start(self) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SOURCES), str(Path(__file__).parent)])}
        with open(self._log, "a") as log:
            process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment
            )
        with self._changed:
            self._process = process
        threading.Thread(target=self._read, args=[process], daemon=True).start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        """Takes the answers of a program until it ends."""
        assert process.stdout is not None
        for line in process.stdout:
            answer: dict[str, Any] = json.loads(line)
            with self._changed:
                if answer["number"] == 0:
                    self._is_connected = self._process is process
                elif answer["number"] in self._answers:
                    self._answers[answer["number"]] = answer
                self._changed.notify_all()
        with self._changed:
            if self._process is process:
                self._process, self._is_connected = None, False
                self._changed.notify_all()
        # It has closed its output, and ends or has ended.
        process.kill()
        process.wait()

    def _end(self) -> None:
        with self._changed:
            process, self._process, self._is_connected = self._process, None, False
            self._changed.notify_all()
        if process is not None:
            process.kill()
            process.wait()


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
    writing = threading.Lock()

    def tell(answer: dict[str, Any]) -> None:
        with writing:
            print(json.dumps(answer), file=out, flush=True)

    def answer(number: int, ask: dict[str, Any]) -> None:
        try:
            tell({"number": number, "ok": _do(ask)})
        except Exception as error:
            tell({"number": number, "error": repr(error)})

    head, address = sys.argv[1:]
    ray.init(address=head, _node_ip_address=address, log_to_driver=False, logging_level="ERROR")
    tell({"number": 0})
    for line in sys.stdin:
        ask = json.loads(line)
        # A question about a controller that restarts does not delay the others.
        threading.Thread(target=answer, args=[ask.pop("number"), ask], daemon=True).start()


if __name__ == "__main__":
    main()
