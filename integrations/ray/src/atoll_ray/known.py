"""What a client knows of a controller's replicas, without asking with each request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from ray.exceptions import RayError

from .endpoint import LIST_AGE_S

#: How long a controller may take to answer, in seconds.
ANSWER_S = 10.0

#: How long a client that has a list waits for another one, in seconds.
REFRESH_S = 1.0

T = TypeVar("T")


class Known(Generic[T]):
    """The last answer of a controller. Threads may share it."""

    def __init__(self, ask: Callable[[float], T], empty: T) -> None:
        """``ask`` gets the seconds in which the controller must answer, and raises ``RayError`` if it does not."""
        self._ask = ask
        self._lock = threading.Lock()
        self._value = empty
        self._asked_at = float("-inf")

    def ask(self, timeout_s: float) -> T:
        """A new answer. Raises ``RayError``."""
        found = self._ask(timeout_s)
        with self._lock:
            self._value, self._asked_at = found, time.monotonic()
        return found

    def get(self, refresh: bool, timeout_s: float) -> T:
        """The current answer, or the last one if the controller does not answer, because it may be restarting."""
        with self._lock:
            known, is_fresh = self._value, time.monotonic() - self._asked_at < LIST_AGE_S
        if is_fresh and not refresh:
            return known
        try:
            return self.ask(max(0.0, min(timeout_s, REFRESH_S if known else ANSWER_S)))
        except RayError:
            with self._lock:
                # Do not ask again with the next request.
                self._asked_at = time.monotonic() if known else self._asked_at
            return known
