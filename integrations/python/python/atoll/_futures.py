"""Calls that continue in the background."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from ._calls import Answer, FutureOutput, microseconds
from ._errors import AtollError, of_kind
from ._specs import TensorSpec

if TYPE_CHECKING:
    from ._transports import Socket


@dataclass(frozen=True)
class FutureStatus:
    """The state of a call in the background."""

    name: str
    functions: tuple[str, ...]
    """The functions that it calls; none for a graph."""
    graph: str | None
    """The graph that it calls."""
    state: str
    """`running`, `done` or `failed`."""
    failure: AtollError | None
    """Why it failed."""
    outputs: tuple[TensorSpec, ...]
    """Its outputs, when it is done."""
    nbytes: int
    """Bytes of outputs that the daemon keeps for it."""
    age: float
    """Seconds since it began."""
    expires_in: float | None
    """Seconds until the daemon forgets it; `None` while it runs."""

    @classmethod
    def _of(cls, report: dict[str, Any]) -> Self:
        failure, expires = report["failure"], report["expires_in_ms"]
        outputs = (
            TensorSpec(each["name"], each["form"]["datatype"], tuple(each["form"]["shape"]))
            for each in report["outputs"]
        )
        return cls(
            report["future"],
            tuple(report["functions"]),
            report["graph"],
            report["state"],
            None if failure is None else of_kind(failure["kind"], failure["message"]),
            tuple(outputs),
            report["bytes"],
            report["age_ms"] / 1e3,
            None if expires is None else expires / 1e3,
        )


class Future:
    """A call that continues in the background, also when its client is closed.

    It belongs to the tenant: `Client.future` finds it by its name. Its outputs are kept for a minute
    after its end.
    """

    def __init__(self, socket: "Socket", name: str):
        self._socket = socket
        self.name = name
        """Its name, which no other future of the tenant has."""

    def output(self, name: str) -> FutureOutput:
        """One of its outputs, as an input of another call. It need not have ended."""
        return FutureOutput(self.name, name)

    def result(self, timeout: float | None = None) -> Answer:
        """Waits until it ends, and returns its outputs. Raises its exception if it failed.

        timeout: how many seconds to wait. Then `DeadlineExceeded` is raised, and the call continues.

        Other threads cannot use the client meanwhile.
        """
        timeout_us = None if timeout is None else max(0, microseconds("timeout", timeout))
        return Answer._of(self._socket.native.await_future(self.name, timeout_us))

    def status(self) -> FutureStatus:
        """Its state. Raises `NotFound` if the daemon has forgotten it."""
        return FutureStatus._of(json.loads(self._socket.native.future(self.name)))

    def done(self) -> bool:
        """Whether it has ended, also by a failure."""
        return self.status().state != "running"

    def cancel(self) -> None:
        """Cancels it, and waits until it has ended. Calls that need its outputs fail."""
        self._socket.native.cancel_future(self.name)

    def forget(self) -> None:
        """Drops its outputs. If it has not ended, it continues."""
        self._socket.native.forget_future(self.name)

    def __repr__(self) -> str:
        return f"<atoll.Future {self.name}>"
