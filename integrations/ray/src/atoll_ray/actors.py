"""The actors of deployments and graphs: they outlive the program that starts them, and Ray restarts them."""

from __future__ import annotations

import time
from typing import Any

import ray

#: Namespace of the actors in Ray.
NAMESPACE = "atoll"

#: Calls that an actor answers side by side.
CALLS = 64

#: The arguments of the actors that this program has started, by name. Ray restarts an actor only while its arguments
#: exist, and large ones exist only while the program that made them has references.
_arguments: dict[str, list[Any]] = {}


def start(kind: type, name: str, *arguments: Any) -> Any:
    """Starts an actor.

    Raises ``ValueError`` if there is one of this name.
    """
    options: dict[str, Any] = {
        "name": name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "num_cpus": 0,
        "max_restarts": -1,
        "max_concurrency": CALLS,
    }
    kept = [ray.put(argument) for argument in arguments]
    actor = ray.remote(kind).options(**options).remote(*kept)
    _arguments[name] = kept
    return actor


def find(name: str) -> Any:
    """The actor of this name.

    Raises ``ValueError`` if there is none.
    """
    return ray.get_actor(name, NAMESPACE)


def wait_for_end(name: str, until: float) -> None:
    """Waits until the name of a killed actor is free, at most until this time of the monotonic clock."""
    _arguments.pop(name, None)
    while time.monotonic() < until:
        try:
            find(name)
        except ValueError:
            return
        time.sleep(0.1)
