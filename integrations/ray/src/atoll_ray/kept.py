"""A value that survives its actor: Ray keeps it in its global tables, and a restarted actor finds it there."""

from __future__ import annotations

import ray
from ray.experimental import internal_kv

#: Namespace of the values in Ray's tables.
NAMESPACE = b"atoll"


class Kept:
    """A value of the actor that runs this code."""

    def __init__(self, name: str) -> None:
        self._key = name.encode()
        self._is_restarted = ray.get_runtime_context().was_current_actor_reconstructed

    def value(self, first: str) -> str:
        """The last value, if Ray has restarted the actor. A new actor begins with ``first``."""
        if self._is_restarted:
            found = internal_kv._internal_kv_get(self._key, namespace=NAMESPACE)
            if found is not None:
                return bytes(found).decode()
        self.set(first)
        return first

    def set(self, value: str) -> None:
        """Changes the value. Raises an error if Ray's tables cannot be reached."""
        internal_kv._internal_kv_put(self._key, value.encode(), overwrite=True, namespace=NAMESPACE)
