"""Arrays as the elements of tensors, and back. Elements are copied only where it is said."""

import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy

from ._errors import InvalidInput

Array: TypeAlias = numpy.ndarray[Any, numpy.dtype[Any]]

# Name, type, shape, and the elements as a vector of bytes.
Encoded: TypeAlias = tuple[str, str, list[int], memoryview]

# Name of an input, kind of a reference, and the two texts that the kind needs.
Referred: TypeAlias = tuple[str, str, str, str]


class Reference(ABC):
    """An input whose elements are in the daemon already."""

    @abstractmethod
    def _refer(self, name: str, stage: int) -> Referred:
        """The reference as the input `name` of the function with this index in its call."""


_DTYPES = {
    "BOOL": "?",
    "UINT8": "u1",
    "UINT16": "u2",
    "UINT32": "u4",
    "UINT64": "u8",
    "INT8": "i1",
    "INT16": "i2",
    "INT32": "i4",
    "INT64": "i8",
    "FP16": "f2",
    "FP32": "f4",
    "FP64": "f8",
}
_NAMES = {numpy.dtype(code): name for name, code in _DTYPES.items()}


def dtype_of(datatype: str) -> numpy.dtype[Any]:
    """The type of arrays for a type of tensors.

    BF16 is `bfloat16` of the package ml_dtypes if it is installed, and else `uint16`. Texts are
    objects.
    """
    if datatype == "BF16":
        try:
            ml_dtypes = importlib.import_module("ml_dtypes")
        except ImportError:
            return numpy.dtype(numpy.uint16)
        bfloat16: numpy.dtype[Any] = numpy.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return numpy.dtype(object if datatype == "BYTES" else _DTYPES[datatype])


def encode_all(inputs: Mapping[str, Any]) -> list[Encoded]:
    """The inputs of a request."""
    return [encode(name, value) for name, value in inputs.items()]


def divided(inputs: Mapping[str, Any], stage: int) -> tuple[list[Encoded], list[Referred]]:
    """The inputs of a function of a call: those that are sent, and references."""
    sent = {name: value for name, value in inputs.items() if not isinstance(value, Reference)}
    others = [value._refer(name, stage) for name, value in inputs.items() if isinstance(value, Reference)]
    return encode_all(sent), others


def encode(name: str, value: Any) -> Encoded:
    """An input. An array that is not contiguous or not little-endian is copied, and so are texts."""
    if isinstance(value, Reference):
        raise InvalidInput(f"input `{name}`: objects and outputs of other calls are inputs over a control socket only")
    array = _array(name, value)
    shape = list(array.shape)
    if array.dtype.kind in "OSU":
        return name, "BYTES", shape, memoryview(_packed(name, array))
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big"):
        array = array.astype(array.dtype.newbyteorder("<"))
    datatype = "BF16" if array.dtype.name == "bfloat16" else _NAMES.get(array.dtype)
    if datatype is None:
        raise InvalidInput(f"input `{name}`: elements of type {array.dtype} are not supported")
    return name, datatype, shape, numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8).data


def _array(name: str, value: Any) -> Array:
    if isinstance(value, numpy.ndarray):
        return value
    if hasattr(value, "__dlpack__"):
        try:
            shared: Array = numpy.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise InvalidInput(f"input `{name}`: no array in the memory of the CPU: {error}") from error
        return shared
    try:
        return numpy.asarray(value)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"input `{name}`: {error}") from error


def decode(datatype: str, shape: list[int], elements: Any) -> Array:
    """The array of an output over its elements, which it shares. Texts are copied."""
    if datatype == "BYTES":
        return _unpacked(bytes(elements), shape)
    return numpy.frombuffer(elements, dtype_of(datatype)).reshape(shape)


def _packed(name: str, array: Array) -> bytes:
    """The elements of a tensor of texts: the length of each, and its bytes."""
    parts = []
    for item in array.ravel().tolist():
        if not isinstance(item, str | bytes):
            raise InvalidInput(f"input `{name}`: {type(item).__name__} is neither a text nor bytes")
        item = item.encode() if isinstance(item, str) else item
        parts.append(len(item).to_bytes(4, "little") + item)
    return b"".join(parts)


def _unpacked(raw: bytes, shape: list[int]) -> Array:
    """The array of a tensor of texts."""
    items, at = [], 0
    while at < len(raw):
        end = at + 4 + int.from_bytes(raw[at : at + 4], "little")
        items.append(raw[at + 4 : end])
        at = end
    array = numpy.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)
