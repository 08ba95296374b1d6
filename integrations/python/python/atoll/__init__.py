"""Deep-learning models as preemptible functions on shared GPUs.

    import atoll, numpy

    bundle = atoll.compile("model.onnx", targets=["host"])
    with atoll.serve(bundle) as server, server.client() as client:
        outputs = client.infer("model", {"x": numpy.ones((1, 4), numpy.float32)})

`compile`, `serve` and `infer` run the program `atoll`, which is part of the package. `Client`,
`AsyncClient` and `Ring` connect to a daemon that runs already. Tensors are NumPy arrays; everything
with `__dlpack__` in the memory of the CPU is taken as well. All failures are subclasses of
`AtollError`.
"""

from ._asyncio import AsyncClient, AsyncFuture, AsyncSession
from ._calls import Answer, Call, FutureOutput, Object, Output, Timing
from ._client import Client, Function
from ._errors import (
    AtollError,
    Cancelled,
    CompileFailed,
    ConnectionFailed,
    DeadlineExceeded,
    Denied,
    FunctionFailed,
    InternalError,
    InvalidInput,
    NotFound,
    QuotaExceeded,
    RingFull,
    Unavailable,
)
from ._futures import Future, FutureStatus
from ._graphs import Graph
from ._leases import Lease
from ._program import compile, program
from ._ring import Ring, Ticket
from ._server import Server, infer, serve
from ._sessions import Session
from ._specs import Metadata, Model, TensorSpec

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "AsyncClient",
    "AsyncFuture",
    "AsyncSession",
    "AtollError",
    "Call",
    "Cancelled",
    "Client",
    "CompileFailed",
    "ConnectionFailed",
    "DeadlineExceeded",
    "Denied",
    "Function",
    "FunctionFailed",
    "Future",
    "FutureOutput",
    "FutureStatus",
    "Graph",
    "InternalError",
    "InvalidInput",
    "Lease",
    "Metadata",
    "Model",
    "NotFound",
    "Object",
    "Output",
    "QuotaExceeded",
    "Ring",
    "RingFull",
    "Server",
    "Session",
    "TensorSpec",
    "Ticket",
    "Timing",
    "Unavailable",
    "compile",
    "infer",
    "program",
    "serve",
]
