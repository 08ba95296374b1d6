"""Sessions of models with state."""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ._tensors import Array


class Steps:
    """The parameters of the requests of a session."""

    def __init__(self, id: str | None):
        self.id = id or uuid.uuid4().hex
        self.is_open = False

    def parameters(self, is_last: bool) -> dict[str, Any]:
        """The parameters of the next request."""
        parameters: dict[str, Any] = {"sequence_id": self.id}
        if not self.is_open:
            parameters["sequence_start"] = True
        if is_last:
            parameters["sequence_end"] = True
        return parameters

    def note(self, was_last: bool) -> None:
        """A request has succeeded."""
        self.is_open = not was_last


class Session:
    """The requests that share a state, which the daemon keeps between them.

    `Client.session` (over HTTP) and `Ring.session` return sessions. The first request begins the
    state. The last one ends it; a state without requests also ends after the time that the settings
    of the model say (`session_idle_ms`).
    """

    def __init__(self, infer: Callable[..., dict[str, Array]], model: str, id: str | None):
        self._infer = infer
        self._steps = Steps(id)
        self.model = model
        """Name of the model."""

    @property
    def id(self) -> str:
        """Its id."""
        return self._steps.id

    @property
    def is_open(self) -> bool:
        """Whether the daemon has a state for it, unless it has been idle for too long."""
        return self._steps.is_open

    def infer(
        self,
        inputs: Mapping[str, Any],
        outputs: Sequence[str] = (),
        *,
        last: bool = False,
        **options: Any,
    ) -> dict[str, Array]:
        """The next request. A request that fails leaves the state as it was.

        last: ends the state with this request; a later request begins a new one
        options: as for `Client.infer` or `Ring.infer`
        """
        answer = self._infer(self.model, inputs, outputs, **options, **self._steps.parameters(last))
        self._steps.note(last)
        return answer

    def run(
        self, requests: Iterable[Mapping[str, Any]], outputs: Sequence[str] = (), **options: Any
    ) -> Iterator[dict[str, Array]]:
        """The answers to all requests of the session. The last of them ends it."""
        rest = iter(requests)
        inputs = next(rest, None)
        while inputs is not None:
            following = next(rest, None)
            yield self.infer(inputs, outputs, last=following is None, **options)
            inputs = following

    def __repr__(self) -> str:
        return f"<atoll.Session {self.id} of {self.model}>"
