"""Tensors as they travel between replicas: a type, a shape, and bytes that are not copied."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Datatypes of the KServe v2 protocol by NumPy's names.
DATATYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}

_NAMES = {datatype: name for name, datatype in DATATYPES.items()}

#: Bytes of an element of each datatype.
SIZES = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
}


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor: ``data`` has its elements in row-major order, little-endian.

    In Ray's object store the data lie beside the pickled object, so a reader on the same machine maps them read-only
    and copies nothing.
    """

    datatype: str
    shape: tuple[int, ...]
    data: memoryview

    def __post_init__(self) -> None:
        size = SIZES.get(self.datatype)
        if size is None:
            raise ValueError(f"datatype {self.datatype!r}: it is one of {', '.join(SIZES)}")
        if any(length < 0 for length in self.shape):
            raise ValueError(f"shape {list(self.shape)} has a negative length")
        if (expected := size * math.prod(self.shape)) != (given := self.data.nbytes):
            raise ValueError(f"{self.datatype}{list(self.shape)} has {expected} bytes, but {given} are given")

    @classmethod
    def of(cls, value: Any) -> Tensor:
        """The tensor of a NumPy array, or ``value`` if it is one. Raises ``TypeError`` for other values."""
        if isinstance(value, Tensor):
            return value
        # The name has no byte order.
        datatype = DATATYPES.get(getattr(getattr(value, "dtype", None), "name", ""))
        if datatype is None:
            raise TypeError(f"{type(value).__name__} is no tensor; give a NumPy array or an atoll_ray.Tensor")
        # Arrays of other layouts and byte orders are copied.
        array = value.astype(value.dtype.newbyteorder("<"), order="C", copy=False)
        return cls(datatype, tuple(value.shape), memoryview(array.reshape(-1).view("uint8")))

    @classmethod
    def from_bytes(cls, datatype: str, shape: tuple[int, ...], data: bytes | memoryview) -> Tensor:
        """A tensor of bytes. Raises ``ValueError`` if they do not fit the type and shape."""
        return cls(datatype, shape, memoryview(data).cast("B"))

    def numpy(self) -> Any:
        """A NumPy array over the same memory. Raises ``TypeError`` for BF16, which NumPy does not have."""
        import numpy

        if self.datatype not in _NAMES:
            raise TypeError(f"NumPy has no {self.datatype}")
        return numpy.frombuffer(self.data, dtype=_NAMES[self.datatype]).reshape(self.shape)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        data: Any = pickle.PickleBuffer(self.data) if protocol >= 5 else bytes(self.data)
        return _restored, (self.datatype, self.shape, data)


def _restored(datatype: str, shape: tuple[int, ...], data: Any) -> Tensor:
    return Tensor.from_bytes(datatype, shape, data)


def encode(tensors: Mapping[str, Tensor], parameters: Mapping[str, Any]) -> tuple[bytes, list[memoryview]]:
    """The JSON part and the binary parts of a request of the KServe v2 protocol with binary tensors."""
    inputs = [
        {
            "name": name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
            "parameters": {"binary_data_size": tensor.data.nbytes},
        }
        for name, tensor in tensors.items()
    ]
    head = {"parameters": {**parameters, "binary_data_output": True}, "inputs": inputs}
    return json.dumps(head).encode(), [tensor.data for tensor in tensors.values()]


def decode(body: bytes, head_bytes: int) -> dict[str, Tensor]:
    """The outputs of an answer whose first ``head_bytes`` are JSON. Raises ``ValueError`` if it is malformed."""
    try:
        outputs = json.loads(body[:head_bytes])["outputs"]
        rest = memoryview(body)[head_bytes:]
        found = {}
        for output in outputs:
            size = output["parameters"]["binary_data_size"]
            found[output["name"]] = Tensor.from_bytes(output["datatype"], tuple(output["shape"]), rest[:size])
            rest = rest[size:]
    except (KeyError, TypeError) as error:
        raise ValueError(f"the answer has no binary outputs: {error!r}") from error
    if rest:
        raise ValueError(f"the answer has {len(rest)} more bytes than its outputs")
    return found
