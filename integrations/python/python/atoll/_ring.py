"""Requests through shared memory."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from . import _native
from ._scope import Scope
from ._sessions import Session
from ._tensors import Array, decode, encode_all


class Ticket:
    """A request that was sent, to be passed to `Ring.receive`."""

    def __init__(self, slot: int):
        self._slot = slot


class Ring(Scope):
    """A ring to a daemon on this machine. One thread may use it at a time.

    socket: the daemon's control socket; by default `$XDG_RUNTIME_DIR/atoll.sock`, or `/run/atoll.sock`
    tenant: the tenant to act for; by default that of the user
    slots: most requests without an answer at one time (default 4)
    arena_bytes: bytes for the tensors of all slots (default 4 MiB)
    spin_us, daemon_spin_us: how long this side, and the daemon, spin before they sleep
    """

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        tenant: str | None = None,
        *,
        slots: int = 0,
        arena_bytes: int = 0,
        spin_us: int = 50,
        daemon_spin_us: int = 50,
    ):
        self._ring = _native.Ring(socket, tenant, slots, arena_bytes, spin_us, daemon_spin_us)

    @property
    def tenant(self) -> str:
        """The tenant that the ring acts for."""
        return self._ring.tenant()

    @property
    def request_bytes(self) -> int:
        """Bytes for the inputs and outputs of one request."""
        return self._ring.request_bytes()

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] = (),
        *,
        version: str = "",
        id: str = "",
        **parameters: Any,
    ) -> dict[str, Array]:
        """Sends a request and waits for its answer: the outputs by name.

        The elements of an input are copied once, into the shared memory, and those of an output
        once out of it. Parameters are those of requests over HTTP, as `priority=1`.
        """
        return self.receive(self.send(model, inputs, outputs, version=version, id=id, **parameters))

    def send(
        self,
        model: str,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] = (),
        *,
        version: str = "",
        id: str = "",
        **parameters: Any,
    ) -> Ticket:
        """Sends a request. Its slot is in use until `receive` was called with the ticket."""
        text = json.dumps(parameters) if parameters else None
        return Ticket(self._ring.send(model, encode_all(inputs), list(outputs), version, id, text))

    def receive(self, ticket: Ticket) -> dict[str, Array]:
        """Waits for the answer to a request. Answers may be received in any order."""
        answer = self._ring.receive(ticket._slot)
        return {name: decode(datatype, shape, elements) for name, datatype, shape, elements in answer}

    def session(self, model: str, id: str | None = None) -> Session:
        """A session of a model with state. `id` is by default a random one."""
        return Session(self.infer, model, id)

    def ping(self) -> None:
        """Waits for an answer of the daemon that no model takes part in."""
        self._ring.ping()

    def close(self) -> None:
        """Closes the ring, and cancels its requests."""
        self._ring.close()

    def _leave(self) -> None:
        self.close()
