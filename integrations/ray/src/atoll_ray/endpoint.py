"""Where a replica of a deployment takes requests."""

from __future__ import annotations

from dataclasses import dataclass

#: How old a client's list of replicas may get before it asks the controller again, in seconds.
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
    #: The instance that requests name, so that they run under the replica's share.
    instance: str
    #: The number of its lease.
    lease: int
    #: The epoch of its lease: higher than those of all leases before at the same daemon.
    epoch: int
    #: The process of its actor.
    pid: int
    #: The machine, as Ray names it.
    node: str
