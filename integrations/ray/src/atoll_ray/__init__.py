"""Instances of Atoll's functions on the machines of a Ray cluster.

Ray decides on which machine an instance runs, and the controller replaces it after failures. The daemon of the machine
grants or refuses the instance as a lease, which the replica's actor renews. Requests go directly from clients to
daemons: Ray is not on their path.

Start reading at :func:`deploy` and :class:`Handle`. ``holder.py`` (pure Python, without Ray) and ``replica.py`` run on
each machine. ``scaler.py`` (pure, too) decides which replicas a load needs, and where. Graphs of functions on several
machines begin at :func:`deploy_graph`. ``serve.py``, which is imported on its own since it needs ``ray[serve]``, is for
applications of Ray Serve.
"""

from .daemon import Daemon, DaemonError, Lease, LeaseRequest
from .deployment import Handle, deploy, get
from .endpoint import Endpoint, NoReplica
from .graphs import GraphHandle, deploy_graph, get_graph
from .node import resources
from .run import StageFailed
from .scaling import Scaling
from .stage import Stage
from .tensor import Tensor

__all__ = [
    "Daemon",
    "DaemonError",
    "Endpoint",
    "GraphHandle",
    "Handle",
    "Lease",
    "LeaseRequest",
    "NoReplica",
    "Scaling",
    "Stage",
    "StageFailed",
    "Tensor",
    "deploy",
    "deploy_graph",
    "get",
    "get_graph",
    "resources",
]
