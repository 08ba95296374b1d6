"""Calls over the control socket: functions one after the other, objects, and answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

from ._errors import InvalidInput
from ._native import Elements
from ._tensors import Array, Encoded, Reference, Referred, decode, divided

Stage: TypeAlias = tuple[str, list[Encoded], list[Referred], list[tuple[str, bool]] | None]
Answered: TypeAlias = tuple[
    list[tuple[int, str, str, list[int], Elements]],
    list[tuple[int, str, str]],
    tuple[int, int, int, int],
    int,
]


# Upper bound of times in the protocols, which are unsigned numbers of 64 bits.
_MICROSECONDS = 1 << 64


def microseconds(name: str, seconds: float) -> int:
    """A time in microseconds. `name` is that of the option, for the error."""
    try:
        count = round(seconds * 1e6)
    except (OverflowError, ValueError):
        # It is infinite, or no number.
        count = _MICROSECONDS
    if count >= _MICROSECONDS:
        raise InvalidInput(f"`{name}` must be finite and less than {_MICROSECONDS // 10**6} seconds, and is {seconds}")
    return count


@dataclass(frozen=True)
class Object(Reference):
    """A tensor that the daemon keeps for its tenant. Requests over a control socket take it as an input."""

    digest: str
    """SHA-256 of its elements, which is its name."""
    datatype: str | None = field(default=None, compare=False)
    """Type of its elements as in KServe; `None` if it is not known."""
    shape: tuple[int, ...] | None = field(default=None, compare=False)
    nbytes: int | None = field(default=None, compare=False)
    """Its size."""
    real_time: bool = field(default=False, compare=False)
    """Whether it is kept for real-time requests."""
    in_memory: bool | None = field(default=None, compare=False)
    """Whether it is in memory as well as on disk."""

    def _refer(self, name: str, stage: int) -> Referred:
        return name, "object", self.digest, ""

    @classmethod
    def _of(cls, report: Mapping[str, Any]) -> Self:
        form = report["form"] or {}
        shape = tuple(form["shape"]) if form else None
        is_real_time = report["class"] == "real-time"
        return cls(
            report["digest"], form.get("datatype"), shape, report["bytes"], is_real_time, report["in_memory"]
        )


@dataclass(frozen=True)
class Output(Reference):
    """An output of an earlier function of the same call. It stays on the device."""

    name: str
    function: int | None = None
    """Index of the function in the call; by default the function before."""

    def _refer(self, name: str, stage: int) -> Referred:
        of = stage - 1 if self.function is None else self.function
        if not 0 <= of < stage:
            raise InvalidInput(f"input `{name}`: there is no function before that has the output `{self.name}`")
        return name, "output", str(of), self.name


@dataclass(frozen=True)
class FutureOutput(Reference):
    """An output of a call in the background. A request with it waits until that call ends."""

    future: str
    name: str

    def _refer(self, name: str, stage: int) -> Referred:
        return name, "future", self.future, self.name


class Call:
    """A call of one function, or of several one after the other.

        Call("affine", {"x": x, "b": b}).then("affine", {"x": Output("y"), "b": b})

    function: name of the function
    inputs: for each input an array, an `Object`, an `Output` of an earlier function, or a `FutureOutput`
    outputs: names of the outputs to send. By default those of the last function are sent.
    keep: names of the outputs to store as objects. If some are, others are sent only if `outputs`
        names them.
    """

    def __init__(
        self,
        function: str,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] | None = None,
        *,
        keep: Sequence[str] = (),
    ):
        self._stages: list[Stage] = []
        self._add(function, inputs, outputs, keep)

    @property
    def functions(self) -> list[str]:
        """Names of its functions, in order."""
        return [stage[0] for stage in self._stages]

    def then(
        self,
        function: str,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] | None = None,
        *,
        keep: Sequence[str] = (),
    ) -> "Call":
        """A call that continues with another function."""
        longer = Call.__new__(Call)
        longer._stages = list(self._stages)
        longer._add(function, inputs, outputs, keep)
        return longer

    def _add(
        self, function: str, inputs: Mapping[str, Any], outputs: Sequence[str] | None, keep: Sequence[str]
    ) -> None:
        for name in set(outputs or ()) & set(keep):
            raise InvalidInput(f"output `{name}` cannot be sent and stored at once")
        sent, references = divided(inputs, len(self._stages))
        wanted = [(name, False) for name in outputs or ()] + [(name, True) for name in keep]
        self._stages.append((function, sent, references, wanted or None))

    def __repr__(self) -> str:
        return f"<atoll.Call {' > '.join(self.functions)}>"


@dataclass(frozen=True)
class Timing:
    """How long the parts of a call took, in seconds."""

    queue: float
    """Time in queues."""
    input: float
    """Copies of inputs."""
    compute: float
    """Time on the device."""
    output: float
    """Copies of outputs."""


@dataclass(frozen=True)
class Answer:
    """The outputs of a call by name; of several functions with equal names, those of the last one."""

    tensors: dict[str, Array]
    """The outputs that were sent."""
    objects: dict[str, Object]
    """The outputs that were stored."""
    timing: Timing
    preemptions: int
    """How often the call was preempted."""

    def __getitem__(self, output: str) -> Array:
        return self.tensors[output]

    @classmethod
    def _of(cls, answered: Answered) -> Self:
        tensors, objects, times, preemptions = answered
        return cls(
            {name: decode(datatype, shape, elements) for _, name, datatype, shape, elements in tensors},
            {name: Object(digest) for _, name, digest in objects},
            Timing(*(ns / 1e9 for ns in times)),
            preemptions,
        )
