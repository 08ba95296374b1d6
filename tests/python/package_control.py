#!/usr/bin/env python3
"""The Python package over the control socket: calls of several functions, objects, futures, graphs, instances, leases;
and sessions of a model with state.

package_control.py FOLDER   exits with 1 and prints the difference; FOLDER has the bundles affine.kg and faulty.kg
"""

import contextlib
import json
import math
import signal
import sys
import threading
import time
from pathlib import Path

import atoll
import numpy as np
import onnx
from atoll import _errors, _leases
from onnx import TensorProto, helper
from package import refused, same, vectors

ENDLESS = {"mode": np.array([5], np.uint32)}

TWICE = """
name = "twice"
[inputs]
x = { datatype = "FP32", shape = [-1] }
b = { datatype = "FP32", shape = [-1] }
[[stage]]
name = "first"
function = "affine"
inputs = { x = "x", b = "b" }
[[stage]]
name = "second"
function = "affine"
inputs = { x = "first.y", b = "b" }
[outputs]
y = "second.y"
"""


def errors():
    """Exceptions have the kind of the refusal, and survive a copy."""
    kinds = ["bad-request", "not-found", "denied", "quota", "busy", "deadline", "function", "daemon"]
    for kind in kinds:
        error = _errors.of_kind(kind, "a text")
        assert error.code == kind and str(error) == "a text" and isinstance(error, atoll.AtollError), error
    assert type(_errors.of_kind("from the future", "")) is atoll.InternalError
    denied = _errors.of_status(401, "a text", "no_credentials")
    assert (type(denied), denied.status, denied.reason) == (atoll.Denied, 401, "no_credentials")
    late = _errors.of_status(504, "late")
    assert isinstance(late, TimeoutError) and str(late) == "late" and late.status == 504 and not late.retryable
    assert _errors.of_status(503, "full", "invocations").code == "quota" and _errors.of_status(503, "").retryable
    assert atoll.InvalidInput("x").status is None and atoll.AtollError().code == ""


def chains(client):
    x, b = vectors(100)
    call = atoll.Call("affine", {"x": x, "b": b}).then("affine", {"x": atoll.Output("y"), "b": b})
    assert call.functions == ["affine", "affine"] and repr(call) == "<atoll.Call affine > affine>"
    answer = client.run(call, priority=1, deadline=60)
    same(answer["y"], 3 * x + b, b)
    assert list(answer.tensors) == ["y"] and not answer.objects and isinstance(answer.preemptions, int)
    assert answer.timing.compute > 0 and answer.timing.queue >= 0
    # Another function after the first one, whose output is kept. The call before is as it was.
    inputs = {"x": atoll.Output("y", 0), "b": b}
    refused(atoll.InvalidInput, "at once", lambda: call.then("affine", inputs, ["y"], keep=["y"]))
    kept = client.run(call.then("affine", inputs, keep=["y"]))
    assert len(call.functions) == 2 and not kept.tensors
    same(client.get(kept.objects["y"]), 3 * x + b, b)
    refused(atoll.InvalidInput, "no function before", lambda: atoll.Call("affine", {"x": atoll.Output("y"), "b": b}))
    refused(atoll.InvalidInput, "no function before", lambda: call.then("affine", {"x": atoll.Output("y", 2), "b": b}))
    refused(atoll.NotFound, "missing", lambda: client.run(atoll.Call("missing", {"x": x})))


def objects(client):
    x, b = vectors(1000)
    stored = client.put(b)
    assert (stored.datatype, stored.shape, stored.nbytes) == ("FP32", (1000,), 4000) and len(stored.digest) == 64
    assert client.put(b, real_time=True) == stored, "equal bytes are one object"
    for given in (stored, stored.digest):
        assert np.array_equal(client.get(given), b)
    same(client.infer("affine", {"x": x, "b": stored})["y"], x, b)
    answer = client.run(atoll.Call("affine", {"x": x, "b": stored}, keep=["y"]))
    y = answer.objects["y"]
    same(client.get(y), x, b)
    listed = {each.digest: each for each in client.objects()}
    assert listed[stored.digest].shape == (1000,) and listed[y.digest].nbytes == 4000
    assert listed[y.digest].datatype == "FP32" and listed[y.digest].in_memory is not None
    client.remove_object(y)
    refused(atoll.NotFound, "", lambda: client.get(y))
    refused(atoll.InvalidInput, "digest", lambda: client.get("no digest"))
    refused(atoll.NotFound, "", lambda: client.infer("affine", {"x": atoll.Object("0" * 64), "b": b}))
    integers = client.put(np.arange(6).reshape(2, 3))
    assert client.get(integers).shape == (2, 3) and client.get(integers).dtype == np.int64


def futures(client, another):
    x, b = vectors(50)
    first = client.submit("affine", {"x": x, "b": b}, name="first")
    second = client.submit(atoll.Call("affine", {"x": first.output("y"), "b": b}))
    assert first.name == "first" and repr(first) == "<atoll.Future first>" and len(second.name) == 32
    same(second.result(60)["y"], 3 * x + b, b)
    # Another client of the tenant knows it.
    same(another.future("first").result()["y"], x, b)
    same(another.infer("affine", {"x": second.output("y"), "b": b})["y"], 9 * x + 4 * b, b)
    status = first.status()
    assert (status.name, status.functions, status.graph, status.state) == ("first", ("affine",), None, "done")
    assert status.outputs[0].shape == (50,) and status.nbytes == 200 and status.failure is None and first.done()
    assert status.age >= 0 and 0 < status.expires_in <= 60
    assert {each.name for each in client.futures()} == {"first", second.name}
    refused(atoll.InvalidInput, "first", lambda: client.submit("affine", {"x": x, "b": b}, name="first"))
    refused(atoll.InvalidInput, "has its inputs", lambda: client.submit(atoll.Call("affine", {}), {"x": x}))
    first.forget()
    refused(atoll.NotFound, "first", first.result)

    running = client.submit("faulty", ENDLESS)
    assert not running.done()
    refused(atoll.InvalidInput, "`timeout` must be finite", lambda: running.result(math.inf))
    refused(atoll.DeadlineExceeded, "", lambda: running.result(0.05))
    follows = client.submit("affine", {"x": running.output("out"), "b": b})
    another.future(running.name).cancel()
    assert running.status().state == "failed" and isinstance(running.status().failure, atoll.AtollError)
    for each in (running, follows):
        try:
            each.result(60)
        except atoll.AtollError as error:
            assert error.code and str(error), error
        else:
            raise AssertionError("a cancelled call has an answer")
    for each in client.futures():
        client.future(each.name).forget()


def graphs(client, folder):
    x, b = vectors(10)
    path = folder / "twice.toml"
    path.write_text(TWICE)
    graph = client.deploy_graph(path)
    assert (graph.name, graph.model, graph.failure, repr(graph)) == ("twice", "twice", None, "<atoll.Graph twice>")
    assert {each.name for each in graph.metadata.inputs} == {"b", "x"}
    same(graph(x=x, b=b), 3 * x + b, b)
    same(graph.infer({"x": client.put(x), "b": b}, priority=2, deadline=60, id="an id")["y"], 3 * x + b, b)
    begun = graph.submit({"x": x, "b": b}, name="of-graph")
    same(begun.result()["y"], 3 * x + b, b)
    assert begun.status().graph == "twice" and begun.status().functions == ()
    begun.forget()
    same(client.graph("twice")(x=x, b=b), 3 * x + b, b)
    explained = graph.explain(deadline=10, price_max=1)
    assert [stage["function"] for stage in explained["stages"]] == ["affine", "affine"], explained
    for limit, word in [("deadline", "`deadline` must be finite"), ("price_max", "`price_max` must be finite")]:
        for value in (math.inf, math.nan):
            for call in (graph.infer, graph.submit):
                refused(atoll.InvalidInput, word, lambda: call({"x": x, "b": b}, **{limit: value}))
            refused(atoll.InvalidInput, word, lambda: graph.explain(**{limit: value}))
    # The text, or a mapping, and another name.
    assert client.deploy_graph(TWICE, "again").name == "again"
    mapping = {
        "name": "once",
        "inputs": {name: {"datatype": "FP32", "shape": [-1]} for name in "xb"},
        "stage": [{"name": "only", "function": "affine", "inputs": {"x": "x", "b": "b"}}],
        "outputs": {"y": "only.y"},
    }
    same(client.deploy_graph(mapping)(x=x, b=b), x, b)
    assert [each.name for each in client.graphs()] == ["again", "once", "twice"]
    for each in client.graphs():
        each.remove()
    assert client.graphs() == []
    refused(atoll.NotFound, "twice", lambda: client.graph("twice"))
    refused(atoll.NotFound, "missing.toml", lambda: client.deploy_graph(folder / "missing.toml"))
    refused(atoll.InvalidInput, "", lambda: client.deploy_graph("not\na manifest"))
    refused(atoll.InvalidInput, "", lambda: client.deploy_graph({**mapping, "outputs": {"y": "nothing.y"}}))
    refused(atoll.InvalidInput, "the manifest", lambda: client.deploy_graph({"name": object()}))
    # Files that stages name are sent: the daemon refuses this one, which is no module.
    module = {**mapping, "stage": [{"name": "only", "wasm": "some.wasm", "inputs": {"x": "x"}, "outputs": {}}]}
    refused(atoll.NotFound, "some.wasm", lambda: client.deploy_graph(module))
    (folder / "some.wasm").write_bytes(b"nothing")
    with contextlib.chdir(folder):
        refused(atoll.InvalidInput, "", lambda: client.deploy_graph(module))


def instances(client):
    x, b = vectors(4)
    created = client.create_instance("half", "affine", sm_partition=50, quota_request=0.25, quota_limit=0.5)
    assert created["instance"] == "half" and created["quota_limit"] == 0.5, created
    same(client.infer("affine", {"x": x, "b": b}, instance="half")["y"], x, b)
    same(client.run(atoll.Call("affine", {"x": x, "b": b}), instance="half")["y"], x, b)
    assert client.resize_instance("half", quota_limit=0.75)["quota_limit"] == 0.75
    assert [each["instance"] for each in client.instances()] == ["half"]
    client.remove_instance("half")
    assert client.instances() == []
    refused(atoll.InvalidInput, "", lambda: client.infer("affine", {"x": x, "b": b}, instance="half"))
    refused(atoll.NotFound, "", lambda: client.remove_instance("half"))
    refused(atoll.InvalidInput, "", lambda: client.create_instance("bad", "affine", quota_request=7))


def leases(client, request_id):
    """Over the socket and over HTTP."""
    x, b = vectors(4)
    terms = {"quota_request": 0.2, "quota_limit": 0.4, "gpu_mem": 1 << 20, "sm_partition": 50}
    assert client.capacity()["devices"][0]["device"] == "host:0" and client.leases() == []
    with client.lease("affine", holder="a-test", ttl=5, **terms) as lease:
        assert lease.holder == "a-test" and lease.device == "host:0" and lease.ttl == 5
        assert lease.instance == f"lease-{lease.number}" and lease.report["gpu_mem"] == 1 << 20
        same(lease.infer({"x": x, "b": b}, ["y"], deadline=60)["y"], x, b)
        assert [each["lease"] for each in client.leases()] == [lease.number]
        # The thread renews it.
        before, tries = lease._valid_until, 0
        while lease._valid_until == before:
            tries += 1
            assert tries < 600, lease.problem
            time.sleep(0.1)
        same(lease.infer({"x": x, "b": b})["y"], x, b)
    assert not lease.is_valid() and client.leases() == []

    take = lambda: client.lease("affine", holder="first", request_id=request_id, ttl=600, **terms)
    lease, other = take(), take()
    assert lease.is_valid() and (lease.number, lease.epoch) == (other.number, other.epoch)
    epoch = lease.epoch
    other.take_over("second")
    assert other.holder == "second" and other.epoch > epoch
    refused_by_epoch(lease.renew)
    other.renew()
    other.release()
    refused_by_epoch(other.renew)
    refused(atoll.InvalidInput, "quota request", lambda: client.lease("affine", quota_request=2, gpu_mem=1))
    refused(atoll.NotFound, "missing", lambda: client.lease("missing", quota_request=0.1, gpu_mem=1 << 20))


class Leases:
    """A transport of one lease. It answers a takeover late, and the first renewals with `answers`."""

    def __init__(self, answers=()):
        self.answers = list(answers)
        self.report = {"lease": 1, "epoch": 1, "holder": "first", "ttl_s": 600}
        self.renewals = 0

    def lease_action(self, action, hold):
        if action == "release":
            return {}
        if hold["epoch"] != self.report["epoch"]:
            raise atoll.Cancelled("the epoch has passed")
        if action == "takeover":
            self.report = {**self.report, "epoch": self.report["epoch"] + 1, "holder": hold["holder"]}
            time.sleep(0.1)
        elif self.answers:
            answer = self.answers.pop(0)
            return json.loads(answer) if isinstance(answer, str) else answer
        else:
            self.renewals += 1
        return self.report

    def close(self):
        pass

    def lease(self):
        return _leases.Lease(self, lambda: self, None, "affine", self.report, time.monotonic())


def until(holds):
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def renewals():
    """The thread of a lease continues after a takeover, and after an answer that it cannot read."""
    before = _leases._RENEWALS, _leases._PAUSE_SECONDS
    _leases._RENEWALS, _leases._PAUSE_SECONDS = 600_000, 0.001
    try:
        leases = Leases()
        with leases.lease() as lease:
            for holder in ("second", "third"):
                until(lambda seen=leases.renewals: leases.renewals > seen)
                lease.take_over(holder)
                assert (lease.holder, lease.epoch) == (holder, leases.report["epoch"])
            until(lambda seen=leases.renewals: leases.renewals > seen)
            assert lease.is_valid() and lease.problem is None, lease.problem
            # Another client takes it over: the thread ends.
            leases.report = {**leases.report, "epoch": 9}
            until(lambda: not lease.is_valid())
            assert isinstance(lease.problem, atoll.Cancelled)
        assert not [each for each in threading.enumerate() if each.name == "atoll-lease"]
        for answer in ("no JSON", {}, ["a list"], {"ttl_s": 600}):
            leases = Leases([answer] * 20)
            with leases.lease() as lease:
                until(lambda: lease.problem is not None or leases.renewals)
                assert type(lease.problem) is atoll.InternalError and "renewal" in str(lease.problem), lease.problem
                until(lambda: leases.renewals > 1)
                assert lease.is_valid() and lease.epoch == 1 and lease.problem is None
    finally:
        _leases._RENEWALS, _leases._PAUSE_SECONDS = before


def refused_by_epoch(call):
    try:
        call()
    except (atoll.Cancelled, atoll.NotFound, atoll.InvalidInput) as error:
        assert str(error), error
        return
    raise AssertionError("a lease that has ended or another holder was renewed")


def summing(path):
    """A model that adds its inputs up: y = h + 2 x, and the next h = h + x."""
    shape = [1, 4]
    graph = helper.make_graph(
        [helper.make_node("Add", ["h", "x"], ["hn"]), helper.make_node("Add", ["hn", "x"], ["y"])],
        "summing",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "h")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("y", "hn")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))


def signals(client):
    """A handler that raises an exception, as that of Ctrl-C does, ends a request that waits."""

    class Ended(Exception):
        pass

    def end(*_):
        raise Ended

    before = signal.signal(signal.SIGALRM, end)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        client.infer("faulty", ENDLESS)
    except Ended:
        return
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    raise AssertionError("an endless request has an answer")


def closes(client):
    """A handler that uses the client of the request that waits gets an exception; `close` ends the request."""

    def handler(*_):
        refused(atoll.InvalidInput, "in use by this thread", client.models)
        client.close()

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        refused(atoll.ConnectionFailed, "closed or interrupted", lambda: client.infer("faulty", ENDLESS))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def sessions(folder):
    repository = folder / "stateful"
    repository.mkdir()
    summing(repository / "summing.onnx")
    (repository / "summing.toml").write_text('state = "h=hn"\n')
    one = np.ones((1, 4), np.float32)
    with atoll.serve(repository, options=["--memory-limit", "256M"]) as server:
        with server.client() as client, server.ring() as ring:
            for each in (client, ring):
                session = each.session("summing")
                assert not session.is_open and len(session.id) == 32
                for step in range(3):
                    answer = session.infer({"x": one})
                    assert list(answer) == ["y"] and np.all(answer["y"] == step + 2), answer
                assert session.is_open
                assert np.all(session.infer({"x": one}, ["y"], last=True, priority=1)["y"] == 5)
                assert not session.is_open, "the next request begins anew"
                assert np.all(session.infer({"x": one}, last=True)["y"] == 2)
                answers = each.session("summing", "by name").run({"x": count * one} for count in (1, 2, 3))
                assert [float(answer["y"][0, 0]) for answer in answers] == [2, 5, 9]
                assert list(each.session("summing").run([])) == []
                session = each.session("summing")
                refused(atoll.InvalidInput, "", lambda: session.infer({"x": np.ones((1, 5), np.float32)}))
                assert not session.is_open and np.all(session.infer({"x": one}, last=True)["y"] == 2)
        with server.control() as client:
            refused(atoll.InvalidInput, "sessions", lambda: client.session("summing"))


def servers(folder):
    options = ["--memory-limit", "256M", "--compute-units", "2"]
    with atoll.serve(options=options) as server, server.control() as client, server.control() as another:
        for name in ("affine", "faulty"):
            client.load(folder / f"{name}.kg")
        chains(client)
        objects(client)
        futures(client, another)
        graphs(client, folder)
        instances(client)
        leases(client, "over-the-socket")
        with server.client() as web:
            leases(web, "over-http")
            x, b = vectors(3)
            for call in (
                lambda: web.put(x),
                lambda: web.submit("affine", {"x": x, "b": b}),
                lambda: web.deploy_graph(TWICE),
                lambda: web.run(atoll.Call("affine", {"x": x, "b": b})),
                lambda: web.instances(),
            ):
                refused(atoll.InvalidInput, "control socket", call)
            refused(atoll.InvalidInput, "control socket", lambda: web.infer("affine", {"x": client.put(x), "b": b}))
            signals(web)
            closes(web)
            assert web.live() and same(web.infer("affine", {"x": x, "b": b})["y"], x, b) is None
        signals(another)
        with server.control() as closed:
            closes(closed)
            refused(atoll.ConnectionFailed, "is closed", closed.functions)
        with server.control() as interrupted:
            threading.Timer(0.3, interrupted.interrupt).start()
            refused(atoll.ConnectionFailed, "closed or interrupted", lambda: interrupted.infer("faulty", ENDLESS))
            refused(atoll.ConnectionFailed, "is closed", interrupted.functions)


def main(folder):
    errors()
    renewals()
    servers(folder)
    sessions(folder)
    print("all of it holds")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
