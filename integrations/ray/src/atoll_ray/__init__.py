"""Instances of Atoll's functions on the machines of a Ray cluster.

Ray decides on which machine an instance is and starts it again after failures. The daemon of the machine decides
whether it gets what it asks for, and grants it as a lease, which the replica's actor renews. Requests go from clients
to daemons directly: Ray is not on their path.

Start reading at :func:`deploy` and :class:`Handle`; what happens on a machine is in ``holder.py`` (pure Python, without
Ray) and ``replica.py``.
"""

from .daemon import Daemon, DaemonError, Lease, LeaseRequest
from .deployment import Handle, deploy, get
from .endpoint import Endpoint, NoReplica
from .node import resources

__all__ = [
    "Daemon",
    "DaemonError",
    "Endpoint",
    "Handle",
    "Lease",
    "LeaseRequest",
    "NoReplica",
    "deploy",
    "get",
    "resources",
]
