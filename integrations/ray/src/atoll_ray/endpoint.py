"""The address of a replica of a deployment."""

from __future__ import annotations

from dataclasses import dataclass

#: Maximum age of a client's list of replicas, in seconds; then the client asks the controller again.
LIST_AGE_S = 5.0


class NoReplica(Exception):
    """No replica of a deployment takes requests."""


@dataclass(frozen=True)
class Endpoint:
    """A replica that takes requests."""

    #: URL of the inference port of its daemon.
    url: str
    #: The function.
    function: str
    #: The instance that requests must name to run under the replica's share.
    instance: str
    #: The number of its lease.
    lease: int
    #: The epoch of its lease: higher than those of all earlier leases of the same daemon.
    epoch: int
    #: The process of its actor.
    pid: int
    #: The machine, as Ray names it.
    node: str
