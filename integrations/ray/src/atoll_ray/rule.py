"""The rule that decides about replicas: ``atoll lease scale``, the autoscaler of the daemon as a process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .scaling import Size


class RuleError(Exception):
    """The rule cannot decide."""


@dataclass(frozen=True)
class Measured:
    """The load since the last decision, and the replicas that serve it or are starting, by number."""

    now_ns: int
    arrivals: int
    queued: int
    ended: int
    late: int
    running: dict[int, Size]
    #: The points of the function's profile, as a daemon reports them.
    points: list[dict[str, Any]]
    #: Mean device time of a request, for a function without a profile; ``None`` if nothing is measured.
    service_ns: int | None

    def line(self) -> str:
        """The line for the rule."""
        running = [{"id": number, "sm_partition": one.sm, "quota": one.quota} for number, one in self.running.items()]
        counts = {name: getattr(self, name) for name in ("now_ns", "arrivals", "queued", "ended", "late")}
        return json.dumps(counts | {"running": running, "points": self.points, "service_ns": self.service_ns})


@dataclass(frozen=True)
class Decision:
    """Replicas to add, to resize and to remove. Rates are in requests per second."""

    add: list[Size]
    resize: dict[int, Size]
    remove: list[int]
    why: str
    rate: float
    predicted: float
    load: float
    capacity: float
    problem: str | None

    @classmethod
    def of(cls, answer: dict[str, Any]) -> Decision:
        """A decision from the line of the rule."""
        add = [Size(one["sm_partition"], one["quota"]) for one in answer["add"]]
        resize = {one["id"]: Size(one["sm_partition"], one["quota"]) for one in answer["resize"]}
        rest = {name: answer[name] for name in ("remove", "why", "rate", "predicted", "load", "capacity", "problem")}
        return cls(add=add, resize=resize, **rest)


class Rule:
    """A process of the rule, which keeps the state of one deployment. It is started with the first decision."""

    def __init__(self, settings: dict[str, Any], command: Sequence[str] | None = None) -> None:
        self._settings = settings
        self._command = command
        self._process: subprocess.Popen[str] | None = None

    def decide(self, measured: Measured) -> Decision:
        """Decides after an interval. Raises ``RuleError``; the rule begins anew after its process has ended."""
        try:
            answer = json.loads(self._ask(measured.line()))
        except (OSError, ValueError) as error:
            raise RuleError(f"`atoll lease scale` does not answer: {error}. {self._end()}".strip()) from error
        if "error" in answer:
            raise RuleError(answer["error"])
        return Decision.of(answer)

    def close(self) -> None:
        """Ends the process."""
        self._end()

    def _ask(self, line: str) -> str:
        if self._process is None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()
        return process.stdout.readline()

    def _start(self) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(self._command or command(), stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        assert process.stdin is not None
        process.stdin.write(json.dumps(self._settings) + "\n")
        return process

    def _end(self) -> str:
        """Ends the process, and returns what it wrote to its standard error."""
        process, self._process = self._process, None
        if process is None:
            return ""
        process.kill()
        _, errors = process.communicate()
        return errors.strip()[-2000:]


def command() -> list[str]:
    """The command of the rule. Raises ``RuleError`` if there is no program."""
    program = os.environ.get("ATOLL_PROGRAM") or shutil.which("atoll")
    if program is None:
        message = "`atoll`, whose rule scales, is not on the path of the controller's machine; set ATOLL_PROGRAM there"
        raise RuleError(message)
    return [program, "lease", "scale"]
