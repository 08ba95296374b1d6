"""Inference requests to an Atoll daemon on this machine through shared memory.

    from atoll_ring import Ring

    with Ring() as ring:
        answer = ring.infer("classifier", {"x": numpy.ones((1, 4), numpy.float32)}, priority=1)
        print(answer["scores"])

A ring may be used by one thread at a time. While it waits, other Python threads can run.

The module loads `libatoll_ring_c.so`: the file that the argument `library` or the environment
variable `ATOLL_RING_LIBRARY` names, or else from the folder of this module or a system folder.
"""

import ctypes
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy

__all__ = ["Ring", "RingError", "Ticket"]

NAME = "libatoll_ring_c.so"

# In the order of `enum atoll_datatype`. NumPy has no BF16: its elements are passed as uint16.
_TYPES = ["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", None, "f4", "f8"]
_BF16, _BYTES = 10, 13
_CODES = {numpy.dtype(name): code for code, name in enumerate(_TYPES) if name}

_STATUS = ["ok", "bad_request", "not_found", "denied", "quota", "busy", "deadline", "function", "daemon", "connection", "full", "argument", "internal"]


class RingError(Exception):
    """A request or a ring failed. `status` is the name of the status in lower case, as in `not_found`."""

    def __init__(self, status: str, message: str):
        super().__init__(message)
        self.status = status


class _Options(ctypes.Structure):
    _fields_ = [
        ("socket", ctypes.c_char_p),
        ("tenant", ctypes.c_char_p),
        ("slots", ctypes.c_uint32),
        ("spin_us", ctypes.c_uint32),
        ("daemon_spin_us", ctypes.c_uint32),
        ("arena_bytes", ctypes.c_uint64),
    ]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("datatype", ctypes.c_int32),
        ("rank", ctypes.c_uint32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
    ]


class _Call(ctypes.Structure):
    _fields_ = [
        ("model", ctypes.c_char_p),
        ("version", ctypes.c_char_p),
        ("id", ctypes.c_char_p),
        ("parameters", ctypes.c_char_p),
        ("inputs", ctypes.POINTER(_Tensor)),
        ("input_count", ctypes.c_uint32),
        ("output_count", ctypes.c_uint32),
        ("outputs", ctypes.POINTER(ctypes.c_char_p)),
    ]


def _load(path) -> ctypes.CDLL:
    beside = Path(__file__).with_name(NAME)
    library = ctypes.CDLL(os.fspath(path or os.environ.get("ATOLL_RING_LIBRARY") or (beside if beside.exists() else NAME)))
    pointer, out = ctypes.c_void_p, ctypes.POINTER
    for name, result, arguments in [
        ("atoll_ring_open", ctypes.c_int, [out(_Options), out(pointer)]),
        ("atoll_ring_close", None, [pointer]),
        ("atoll_ring_ping", ctypes.c_int, [pointer]),
        ("atoll_ring_send", ctypes.c_int, [pointer, out(_Call), out(ctypes.c_uint32)]),
        ("atoll_ring_receive", ctypes.c_int, [pointer, ctypes.c_uint32, out(pointer)]),
        ("atoll_answer_count", ctypes.c_size_t, [pointer]),
        ("atoll_answer_output", ctypes.c_int, [pointer, ctypes.c_size_t, out(_Tensor)]),
        ("atoll_answer_free", None, [pointer]),
        ("atoll_ring_error", ctypes.c_char_p, []),
    ]:
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _encoded(text) -> bytes | None:
    return None if text is None else os.fsencode(text)


def _strings(array: numpy.ndarray) -> bytes:
    """The bytes of a tensor of strings: the length of each, and its bytes."""
    items = [item.encode() if isinstance(item, str) else bytes(item) for item in array.ravel()]
    return b"".join(len(item).to_bytes(4, "little") + item for item in items)


def _unpacked(raw: bytes, shape) -> numpy.ndarray:
    """The array of a tensor of strings."""
    items, at = [], 0
    while at < len(raw):
        end = at + 4 + int.from_bytes(raw[at : at + 4], "little")
        items.append(raw[at + 4 : end])
        at = end
    array = numpy.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)


class Ticket:
    """A request that was sent, to be passed to `Ring.receive`."""

    def __init__(self, slot: int):
        self._slot = slot


class Ring:
    """A ring to a daemon.

    socket: the daemon's control socket; by default `$XDG_RUNTIME_DIR/atoll.sock`, or `/run/atoll.sock`
    tenant: the tenant to act for; by default that of the user
    slots: most requests in flight, rounded up to a power of two (default 4)
    arena_bytes: bytes for the tensors of all slots (default 4 MiB)
    spin_us: how long this side spins for an answer before it sleeps
    daemon_spin_us: how long the daemon spins for a request before it sleeps (at most 1000)
    """

    def __init__(self, socket=None, tenant: str | None = None, slots: int = 0, arena_bytes: int = 0, spin_us: int = 50, daemon_spin_us: int = 50, library=None):
        self._ring = None
        self._library = _load(library)
        options = _Options(_encoded(socket), _encoded(tenant), slots, spin_us, daemon_spin_us, arena_bytes)
        ring = ctypes.c_void_p()
        self._check(self._library.atoll_ring_open(ctypes.byref(options), ctypes.byref(ring)))
        self._ring = ring

    def infer(self, model: str, inputs: Mapping[str, numpy.ndarray], outputs: Iterable[str] = (), version: str | None = None, id: str | None = None, **parameters) -> dict[str, numpy.ndarray]:
        """Sends a request and waits for its answer: the outputs by name. Parameters are those of requests over HTTP, as `priority=1`."""
        return self.receive(self.send(model, inputs, outputs, version, id, **parameters))

    def send(self, model: str, inputs: Mapping[str, numpy.ndarray], outputs: Iterable[str] = (), version: str | None = None, id: str | None = None, **parameters) -> Ticket:
        """Sends a request. Its slot is in use until `receive` is called with the ticket."""
        tensors, kept = (_Tensor * len(inputs))(), []
        for tensor, (name, array) in zip(tensors, inputs.items()):
            array = numpy.ascontiguousarray(array).reshape(numpy.shape(array))
            shape = (ctypes.c_int64 * array.ndim)(*array.shape)
            if array.dtype.kind in "OSU":
                code, data = _BYTES, numpy.frombuffer(_strings(array), numpy.uint8)
            elif array.dtype in _CODES:
                code, data = _CODES[array.dtype], array
            else:
                raise RingError("argument", f"input `{name}`: elements of type {array.dtype} are not supported")
            name = name.encode()
            tensor.name, tensor.datatype, tensor.rank = name, code, array.ndim
            tensor.shape, tensor.data, tensor.bytes = shape, data.ctypes.data, data.nbytes
            kept.append((name, shape, data))
        names = [name.encode() for name in outputs]
        wanted = (ctypes.c_char_p * len(names))(*names)
        text = json.dumps(parameters).encode() if parameters else None
        call = _Call(model.encode(), _encoded(version), _encoded(id), text, tensors, len(tensors), len(names), wanted)
        slot = ctypes.c_uint32()
        self._check(self._library.atoll_ring_send(self._open(), ctypes.byref(call), ctypes.byref(slot)))
        return Ticket(slot.value)

    def receive(self, ticket: Ticket) -> dict[str, numpy.ndarray]:
        """Waits for the answer to a request. Answers may be received in any order."""
        answer = ctypes.c_void_p()
        self._check(self._library.atoll_ring_receive(self._open(), ticket._slot, ctypes.byref(answer)))
        try:
            return dict(self._output(answer, index) for index in range(self._library.atoll_answer_count(answer)))
        finally:
            self._library.atoll_answer_free(answer)

    def ping(self) -> None:
        """Sends a request that calls no model to the daemon, and waits for its answer."""
        self._check(self._library.atoll_ring_ping(self._open()))

    def close(self) -> None:
        """Closes the ring, and cancels its requests."""
        if self._ring is not None:
            self._library.atoll_ring_close(self._ring)
            self._ring = None

    def __enter__(self) -> "Ring":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __del__(self):
        self.close()

    def _output(self, answer, index: int) -> tuple[str, numpy.ndarray]:
        tensor = _Tensor()
        self._check(self._library.atoll_answer_output(answer, index, ctypes.byref(tensor)))
        raw = ctypes.string_at(tensor.data, tensor.bytes) if tensor.bytes else b""
        shape = tensor.shape[: tensor.rank]
        if tensor.datatype == _BYTES:
            return tensor.name.decode(), _unpacked(raw, shape)
        dtype = "u2" if tensor.datatype == _BF16 else _TYPES[tensor.datatype]
        return tensor.name.decode(), numpy.frombuffer(bytearray(raw), dtype).reshape(shape)

    def _open(self):
        if self._ring is None:
            raise RingError("argument", "the ring is closed")
        return self._ring

    def _check(self, status: int) -> None:
        if status != 0:
            message = self._library.atoll_ring_error()
            raise RingError(_STATUS[status], message.decode(errors="replace"))
