"""Instances of Atoll's functions on the machines of a Ray cluster.

Ray decides on which machine an instance runs, and the controller replaces it after failures. The daemon of the machine
grants or refuses the instance as a lease, which the replica's actor renews. Requests go directly from clients to
daemons: Ray is not on their path.

Start reading at :func:`deploy` and :class:`Handle`. ``holder.py`` (pure Python, without Ray) and ``replica.py`` run on
each machine.
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
