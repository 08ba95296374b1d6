#!/usr/bin/env python3
"""The Python package: results, types, exceptions, and servers that come and go.

package.py FOLDER   exits with 1 and prints the difference; FOLDER has the bundles affine.kg and faulty.kg
"""

import ast
import inspect
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import atoll
import numpy as np
from atoll import _native, _tensors

RANDOM = np.random.default_rng(1)


def refused(kind, word, call):
    try:
        call()
    except atoll.AtollError as error:
        assert type(error) is kind and word in str(error), f"{error!r}"
        return
    raise AssertionError(f"{kind.__name__} was expected")


def stubs():
    """The native module has what its stub says, with the same parameters."""
    tree = ast.parse(Path(atoll.__file__).with_name("_native.pyi").read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    found = {name for name in vars(_native) if not name.startswith("_")}
    assert {each.name for each in classes} == found, found
    for stub in classes:
        native = getattr(_native, stub.name)
        methods = {each.name: [arg.arg for arg in each.args.args][1:] for each in stub.body if isinstance(each, ast.FunctionDef)}
        public = {name for name in vars(native) if not name.startswith("_")}
        assert public == {name for name in methods if not name.startswith("_")}, (stub.name, public)
        for name, parameters in methods.items():
            of = native if name == "__init__" else getattr(native, name)
            if name != "__len__":
                known = [each for each in inspect.signature(of).parameters if each != "self"]
                assert known == parameters, (stub.name, name, known)


def elements():
    """Arrays are encoded and decoded without a change."""
    for datatype in ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"]:
        dtype = _tensors.dtype_of(datatype)
        for array in [np.zeros((), dtype), np.ones((2, 0), dtype), (RANDOM.random((3, 4)) * 9).astype(dtype).T]:
            name, found, shape, raw = _tensors.encode("x", array)
            back = _tensors.decode(found, shape, bytearray(raw))
            assert (name, found) == ("x", datatype) and back.dtype == dtype and np.array_equal(back, array)
    name, datatype, _, raw = _tensors.encode("x", np.arange(4, dtype=">i4"))
    assert datatype == "INT32" and bytes(raw) == np.arange(4, dtype="<i4").tobytes()
    name, datatype, shape, raw = _tensors.encode("x", np.array([["a", "bc"]]))
    assert datatype == "BYTES" and _tensors.decode(datatype, shape, raw).tolist() == [[b"a", b"bc"]]
    contiguous = np.ones(5, np.float32)
    assert np.shares_memory(np.frombuffer(_tensors.encode("x", contiguous)[3], np.uint8), contiguous), "a copy was made"
    refused(atoll.InvalidInput, "complex", lambda: _tensors.encode("x", np.ones(2, complex)))
    refused(atoll.InvalidInput, "neither a text", lambda: _tensors.encode("x", np.array([1, "a"], object)))

    class Shared:
        """An object that only offers DLPack."""

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    assert np.shares_memory(np.frombuffer(_tensors.encode("x", Shared(contiguous))[3], np.uint8), contiguous)

    class Elsewhere(Shared):
        def __dlpack__(self, **options):
            raise BufferError("on another device")

    refused(atoll.InvalidInput, "another device", lambda: _tensors.encode("x", Elsewhere(contiguous)))


def vectors(count):
    return RANDOM.random(count, np.float32), RANDOM.random(count, np.float32)


def same(y, x, b):
    assert y.dtype == np.float32 and np.allclose(y, 3 * x + b, rtol=1e-6), y
    y[:1] = 0  # it can be written


def calls(client, unknown):
    """What clients over HTTP and over the socket have in common, with the functions `affine` and `faulty`.

    unknown: what happens if an unknown model is unloaded
    """
    assert client.live() and client.ready() and client.ready("affine") and not client.ready("missing")
    assert client.functions() == ["affine", "faulty"], client.functions()
    assert all(isinstance(each, atoll.Model) and each.state == "READY" for each in client.models())
    for count in (0, 1, 1000, 100_000):
        x, b = vectors(count)
        answer = client.infer("affine", {"x": x, "b": b}, ["y"], priority=1, deadline=600)
        assert list(answer) == ["y"]
        same(answer["y"], x, b)
    x, b = vectors(12)
    same(client.infer("affine", {"x": x[::-1], "b": b})["y"], x[::-1], b)
    affine = client.fn("affine")
    assert [each.name for each in affine.metadata.inputs] == ["b", "x"]
    spec = affine.metadata.inputs[0]
    assert isinstance(spec, atoll.TensorSpec) and spec.dtype == np.float32 and spec.shape == (-1,), spec
    same(affine(x=x, b=b), x, b)
    same(affine(b, x), x, b)
    assert "affine" in repr(affine)
    refused(atoll.InvalidInput, "given twice", lambda: affine(b, b=b))
    refused(atoll.InvalidInput, "2 inputs", lambda: affine(b, x, x))

    infer = lambda name, **inputs: lambda: client.infer(name, inputs)
    refused(atoll.InvalidInput, "64", infer("affine", x=x.astype(float), b=b))
    refused(atoll.InvalidInput, "", infer("affine", x=x.reshape(3, 4), b=b))
    refused(atoll.InvalidInput, "", infer("affine", x=x))
    refused(atoll.InvalidInput, "z", infer("affine", x=x, b=b, z=b))
    refused(atoll.NotFound, "missing", infer("missing", x=x))
    refused(atoll.InvalidInput, "nothing", lambda: client.infer("affine", {"x": x, "b": b}, ["nothing"]))
    refused(atoll.NotFound, "missing", lambda: client.fn("missing"))
    refused(unknown, "missing", lambda: client.unload("missing"))
    endless = {"mode": np.array([5], np.uint32)}
    refused(atoll.DeadlineExceeded, "", lambda: client.infer("faulty", endless, deadline=0.02))
    for deadline in (math.inf, -math.inf, math.nan, 1e20):
        late = lambda: client.infer("affine", {"x": x, "b": b}, deadline=deadline)
        refused(atoll.InvalidInput, "`deadline` must be finite", late)
    try:
        client.infer("missing", {})
    except LookupError as error:
        assert str(error)

    # Threads share a client.
    failures = []

    def work():
        for _ in range(20):
            x, b = np.random.random(50).astype(np.float32), np.ones(50, np.float32)
            if not np.allclose(client.infer("affine", {"x": x, "b": b})["y"], 3 * x + b):
                failures.append(x)

    threads = [threading.Thread(target=work) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failures


def servers(folder):
    affine, faulty = folder / "affine.kg", folder / "faulty.kg"
    with atoll.serve(affine, faulty, options=["--memory-limit", "256M"]) as server:
        assert server.is_running() and server.grpc and server.metrics.startswith("http://127.0.0.1:")
        with server.client() as client:
            calls(client, atoll.InvalidInput)
            x, b = vectors(4)
            same(client.infer("affine", {"x": x, "b": b}, version="1", id="an id", real_time_priority=1)["y"], x, b)
            refused(atoll.NotFound, "7", lambda: client.infer("affine", {"x": x, "b": b}, version="7"))
            refused(atoll.InvalidInput, "settings", lambda: client.load("affine", "other"))
            assert client.load("affine") == "affine"
            client.unload("affine")
            assert not client.ready("affine")
            refused(atoll.InvalidInput, "missing", lambda: client.load("missing"))
        with server.control() as client:
            refused(atoll.NotFound, "no.kg", lambda: client.load(folder / "no.kg"))
            refused(atoll.InvalidInput, "", lambda: client.load(__file__))
            refused(atoll.InvalidInput, "over HTTP", lambda: client.infer("affine", {}, version="1"))
            assert client.load(affine, "deployed", real_time=True) == "deployed"
            x, b = vectors(4)
            with server.ring() as ring:
                assert ring.tenant == "local" and ring.request_bytes == 1 << 20
                same(ring.infer("deployed", {"x": x, "b": b})["y"], x, b)
            client.unload("deployed")
        refused(atoll.ConnectionFailed, "closed", client.functions)
        assert not client.live()
        where = server.folder
    assert not server.is_running() and not where.exists()
    refused(atoll.ConnectionFailed, "127.0.0.1", lambda: atoll.Client(server.url).functions())
    refused(atoll.ConnectionFailed, "", lambda: atoll.Client(server.socket))

    # A daemon over the socket alone, with a folder that stays.
    kept = folder / "kept"
    with atoll.serve(folder=kept, options=["--memory-limit", "256M"]) as server, server.control() as client:
        assert client.functions() == []
        for bundle in (affine, faulty):
            client.load(bundle)
        calls(client, atoll.NotFound)
        # The daemon goes away.
        server.process.kill()
        server.process.wait()
        refused(atoll.ConnectionFailed, "", client.functions)
    assert kept.exists() and server.log.exists()
    with atoll.serve(folder=kept) as server, server.control() as client:
        assert client.functions() == ["affine", "faulty"], "its functions are kept"

    refused(atoll.NotFound, "missing", lambda: atoll.serve("missing.kg"))
    refused(atoll.InvalidInput, "neither", lambda: atoll.serve(__file__))
    refused(atoll.Unavailable, "--no-such-flag", lambda: atoll.serve(options=["--no-such-flag"]))
    broken = folder / "broken.kg"
    broken.write_bytes(b"nothing")
    refused(atoll.Unavailable, "broken", lambda: atoll.serve(broken))


def files(folder):
    x, b = vectors(100)
    for _ in range(2):
        same(atoll.infer(folder / "affine.kg", {"x": x, "b": b})["y"], x, b)
    refused(atoll.NotFound, "missing", lambda: atoll.infer("missing.kg", {}))
    refused(atoll.CompileFailed, "broken", lambda: atoll.compile(folder / "broken.onnx"))
    (folder / "broken.onnx").write_bytes(b"nothing")
    refused(atoll.CompileFailed, "broken", lambda: atoll.compile(folder / "broken.onnx", fix={"batch": 1}, symbols={"n": (1, 2)}))
    (folder / "affine.kg").touch()
    same(atoll.infer(folder / "affine.kg", {"x": x, "b": b})["y"], x, b)


def program():
    """The program is found, and a script of the same name is not taken for it."""
    says = subprocess.run([sys.executable, "-m", "atoll", "--version"], capture_output=True, text=True, check=True).stdout
    assert says.startswith("atoll "), says
    os.environ["ATOLL_PROGRAM"] = "/nowhere/atoll"
    done = subprocess.run([sys.executable, "-m", "atoll", "--version"], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("error: "), done
    del os.environ["ATOLL_PROGRAM"]


def main(folder):
    stubs()
    elements()
    program()
    servers(folder)
    files(folder)
    print("all of it holds")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
