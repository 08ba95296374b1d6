"""Stages of graphs whose functions run on several machines: the plan, its calls, and the time that they have.

Pure Python, without Ray.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: Stages of a graph, at most.
STAGES_MAX = 64

#: Samples of which the smallest is the least time on the way.
SAMPLES = 32

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")


@dataclass(frozen=True)
class Stage:
    """A stage of a graph: a function, and the share of a device for each copy of the graph.

    ``inputs`` names the source of each input of the function: an input of the graph, or ``STAGE.OUTPUT`` of an earlier
    stage. The other values are those of :func:`atoll_ray.deploy`.
    """

    name: str
    source: str
    inputs: Mapping[str, str]
    mem: int | str
    sm: float = 100.0
    quota: tuple[float, float] = (1.0, 1.0)
    class_: str = "be"


@dataclass(frozen=True)
class Step:
    """A stage in a plan."""

    name: str
    #: The inputs of its function with their sources: (stage or "", name of the tensor).
    inputs: tuple[tuple[str, tuple[str, str]], ...]
    #: Its outputs that others need.
    outputs: tuple[str, ...]

    @property
    def after(self) -> set[str]:
        """The stages that it needs."""
        return {stage for _, (stage, _) in self.inputs if stage}


@dataclass(frozen=True)
class Plan:
    """A graph in the order of its stages, with the tensors that go from one to the other."""

    steps: tuple[Step, ...]
    #: The outputs of the graph with their sources.
    outputs: tuple[tuple[str, tuple[str, str]], ...]
    #: The inputs of the graph.
    inputs: frozenset[str]

    @classmethod
    def of(cls, stages: Sequence[Stage], outputs: Mapping[str, str]) -> Plan:
        """Checks a graph. Raises ``ValueError`` with the stage and the name that are wrong."""
        if not 1 <= len(stages) <= STAGES_MAX:
            raise ValueError(f"{len(stages)} stages: 1 to {STAGES_MAX} are possible")
        if not outputs:
            raise ValueError("the graph has no outputs")
        earlier: list[str] = []
        sources: dict[str, dict[str, tuple[str, str]]] = {}
        for stage in stages:
            if not _NAME.fullmatch(stage.name) or stage.name in earlier:
                raise ValueError(f"stage {stage.name!r}: names are unique, of up to 32 letters, digits, `-` and `_`")
            if not stage.inputs:
                raise ValueError(f"stage `{stage.name}` has no inputs")
            sources[stage.name] = {
                name: _source(source, earlier, f"input `{name}` of stage `{stage.name}`")
                for name, source in stage.inputs.items()
            }
            earlier.append(stage.name)
        ends = {name: _source(source, earlier, f"output `{name}`") for name, source in outputs.items()}
        if unproduced := [name for name, (stage, _) in ends.items() if not stage]:
            raise ValueError(f"output `{unproduced[0]}` is an input of the graph, and not `STAGE.OUTPUT`")
        needed = [source for inputs in sources.values() for source in inputs.values()] + list(ends.values())
        steps = []
        for stage in stages:
            # Each once, in a fixed order.
            used = tuple(dict.fromkeys(name for owner, name in needed if owner == stage.name))
            if not used:
                raise ValueError(f"no stage and no output uses stage `{stage.name}`")
            steps.append(Step(stage.name, tuple(sources[stage.name].items()), used))
        inputs = frozenset(name for owner, name in needed if not owner)
        return cls(tuple(steps), tuple(ends.items()), inputs)


def _source(source: str, earlier: Sequence[str], what: str) -> tuple[str, str]:
    stage, dot, name = source.rpartition(".")
    if not dot:
        return "", source
    if stage not in earlier:
        raise ValueError(f"{what} is `{source}`, but `{stage}` is no earlier stage")
    return stage, name


@dataclass(frozen=True)
class Call:
    """A call of a stage, without its tensors. It goes to a replica."""

    #: The names of the inputs, in the order of the tensors.
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    #: Parameters of the request to the daemon.
    parameters: dict[str, Any]
    #: The time that the replica has, in seconds. A duration: clocks of machines are never compared.
    budget_s: float


@dataclass(frozen=True)
class Report:
    """How a call of a stage ended."""

    #: The time between the start and the end of the call, in seconds, by the clock of the replica's machine.
    took_s: float
    problem: str | None = None
    #: The daemon's status; ``None`` without a problem or without an answer.
    status: int | None = None
    #: Whether the daemon may have begun the function although there is a problem.
    was_sent: bool = False

    @property
    def may_be_repeated(self) -> bool:
        """Whether another replica may run the stage although its function is not idempotent: none has begun it."""
        return not self.was_sent if self.status is None else self.status in (404, 409, 503)


@dataclass
class Transit:
    """The least time that a call is on its way to a replica and back, for each machine, with its inputs and outputs.

    It is the difference of two durations: of the whole call by this machine's clock, and of its part in the replica by
    that of the other machine. Both clocks run equally fast, but need not show the same time.
    """

    _samples: dict[str, deque[float]] = field(default_factory=dict)

    def note(self, node: str, whole_s: float, inside_s: float) -> None:
        """Adds a call. A duration of the replica that is not possible counts as if nothing were on the way."""
        away = whole_s - inside_s if 0.0 <= inside_s <= whole_s and math.isfinite(whole_s) else 0.0
        self._samples.setdefault(node, deque(maxlen=SAMPLES)).append(away)

    def least(self, node: str) -> float:
        """The least time on the way, in seconds; 0 for a machine that was not called."""
        return min(self._samples.get(node, ()), default=0.0)

    def budget(self, node: str, left_s: float) -> float:
        """The time that a replica may take if the answer is needed in ``left_s`` seconds.

        At least half of it, since all calls until now may have been slow, and the machine is near by now.
        """
        return max(left_s - self.least(node), left_s / 2)
