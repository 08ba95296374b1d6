"""Deep-learning models as preemptible functions on shared GPUs.

    import atoll, numpy

    bundle = atoll.compile("model.onnx", targets=["host"])
    with atoll.serve(bundle) as server, server.client() as client:
        outputs = client.infer("model", {"x": numpy.ones((1, 4), numpy.float32)})

`compile`, `serve` and `infer` run the program `atoll`, which is part of the package. `Client` and
`Ring` connect to a daemon that runs already. Tensors are NumPy arrays; everything with `__dlpack__`
in the memory of the CPU is taken as well. All failures are subclasses of `AtollError`.
"""

from ._client import Client, Function, Metadata, Model, TensorSpec
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
from ._program import compile, program
from ._ring import Ring, Ticket
from ._server import Server, infer, serve

__version__ = "0.1.0"

__all__ = [
    "AtollError",
    "Cancelled",
    "Client",
    "CompileFailed",
    "ConnectionFailed",
    "DeadlineExceeded",
    "Denied",
    "Function",
    "FunctionFailed",
    "InternalError",
    "InvalidInput",
    "Metadata",
    "Model",
    "NotFound",
    "QuotaExceeded",
    "Ring",
    "RingFull",
    "Server",
    "TensorSpec",
    "Ticket",
    "Unavailable",
    "compile",
    "infer",
    "program",
    "serve",
]
