"""The actors of deployments and graphs: they outlive the program that starts them, and Ray restarts them."""

from __future__ import annotations

import time
from typing import Any

import ray

#: Namespace of the actors in Ray.
NAMESPACE = "atoll"

#: Calls that an actor answers side by side.
CALLS = 64


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
    return ray.remote(kind).options(**options).remote(*arguments)


def find(name: str) -> Any:
    """The actor of this name.

    Raises ``ValueError`` if there is none.
    """
    return ray.get_actor(name, NAMESPACE)


def wait_for_end(name: str, until: float) -> None:
    """Waits until the name of an actor is free, at most until this time of the monotonic clock."""
    while time.monotonic() < until:
        try:
            find(name)
        except ValueError:
            return
        time.sleep(0.1)
