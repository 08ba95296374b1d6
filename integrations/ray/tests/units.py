"""The parts of the package, and the checks of the chaos run, without a cluster.

    units.py FOLDER

FOLDER is an empty folder. ATOLL_PROGRAM names the program, whose rule scales. Exits with 0 if all hold.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import struct
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import controller_checks
import daemon_checks
import driver
import run_checks
import scaled_checks
import scaling_checks
from audit import History, lanes_granted_twice, promised_twice
from machines import check, raises

from atoll_ray import Stage, Tensor, auth, controller, node, places
from atoll_ray.controller import pause_after
from atoll_ray.graphs import check_deadline
from atoll_ray.hints import FORGET_S, Hint, Sum
from atoll_ray.stage import Plan, Report, Transit
from atoll_ray.tensor import decode, encode


def floats(*values: float) -> Tensor:
    return Tensor.from_bytes("FP32", (len(values),), struct.pack(f"<{len(values)}f", *values))


def test_tensors() -> None:
    tensor = floats(1.0, 2.0)
    buffers: list[pickle.PickleBuffer] = []
    text = pickle.dumps(tensor, protocol=5, buffer_callback=buffers.append)
    # The data lie beside the pickled object, and are read where they lie.
    check(len(buffers) == 1 and b"\x00\x00\x80\x3f" not in text, text)
    shared = memoryview(bytes(buffers[0].raw()))
    copy = pickle.loads(text, buffers=[shared])
    check((copy.datatype, copy.shape, bytes(copy.data)) == ("FP32", (2,), bytes(tensor.data)), copy)
    check(copy.data.readonly and copy.data.obj is shared.obj, "mapped read-only")
    check(bytes(pickle.loads(pickle.dumps(tensor, protocol=4)).data) == bytes(tensor.data), "in band, too")
    raises(ValueError, "FP32[3] has 12 bytes, but 8 are given", lambda: Tensor.from_bytes("FP32", (3,), bytes(8)))
    raises(ValueError, "datatype 'BYTES'", lambda: Tensor.from_bytes("BYTES", (1,), b"x"))
    raises(ValueError, "negative", lambda: Tensor.from_bytes("FP32", (-1, -2), bytes(8)))
    raises(TypeError, "list is no tensor", lambda: Tensor.of([1.0]))

    head, parts = encode({"x": tensor}, {"timeout": 5})
    check(b'"timeout": 5' in head and [bytes(part) for part in parts] == [bytes(tensor.data)], head)
    answer = b'{"outputs":[{"name":"y","datatype":"FP32","shape":[2],"parameters":{"binary_data_size":8}}]}'
    found = decode(answer + bytes(tensor.data), len(answer))
    check(bytes(found["y"].data) == bytes(tensor.data) and found["y"].shape == (2,), found)
    for body, says in [
        (answer + bytes(4), "8 bytes, but 4"),
        (answer + bytes(12), "4 more bytes"),
        (b'{"outputs":[{"name":"y","datatype":"FP32","shape":[1],"data":[1]}]}', "no binary outputs"),
        (b"[]", "no binary outputs"),
    ]:
        size = len(answer) if body.startswith(answer) else len(body)
        raises(ValueError, says, lambda body=body, size=size: decode(body, size))  # type: ignore[misc]


def test_arrays() -> None:
    if importlib.util.find_spec("numpy") is None:
        print("SKIPPED: tensors of NumPy arrays: NumPy is not in Ray's environment")
        return
    import numpy

    array = numpy.arange(6, dtype="float32").reshape(2, 3)
    tensor = Tensor.of(array)
    check((tensor.datatype, tensor.shape, bytes(tensor.data)) == ("FP32", (2, 3), array.tobytes()), tensor)
    check(numpy.shares_memory(tensor.numpy(), array) and (tensor.numpy() == array).all(), "it is not copied")
    # Other layouts and byte orders become row-major and little-endian.
    for other in (array.T, array.astype(">f4"), array[:, ::2]):
        check((Tensor.of(other).numpy() == other).all() and Tensor.of(other).shape == other.shape, other)
    scalar = Tensor.of(numpy.array(True))
    check((scalar.datatype, scalar.shape, bytes(scalar.data)) == ("BOOL", (), b"\x01"), scalar)
    check(Tensor.of(numpy.zeros((0, 2), "int64")).shape == (0, 2), "no elements")
    raises(TypeError, "is no tensor", lambda: Tensor.of(numpy.array(["a"])))
    raises(TypeError, "NumPy has no BF16", Tensor.from_bytes("BF16", (1,), bytes(2)).numpy)


def stage(name: str, **inputs: str) -> Stage:
    return Stage(name, "affine", inputs, "1M")


def test_plans() -> None:
    first, second = stage("first", x="x", b="b"), stage("second", x="first.y", b="b")
    plan = Plan.of([first, second], {"y": "second.y", "half": "first.y"})
    check(plan.inputs == {"x", "b"} and plan.steps[0].outputs == ("y",), plan)
    check(plan.steps[1].after == {"first"} and plan.steps[0].after == set(), plan)
    for stages, outputs, says in [
        ([], {"y": "a.y"}, "0 stages"),
        ([first], {}, "no outputs"),
        ([first, first], {"y": "first.y"}, "names are unique"),
        ([stage("a.b", x="x")], {"y": "a.b.y"}, "stage 'a.b'"),
        ([stage("a")], {"y": "a.y"}, "has no inputs"),
        ([second], {"y": "second.y"}, "input `x` of stage `second` is `first.y`, but `first` is no earlier stage"),
        ([stage("a", x="a.y")], {"y": "a.y"}, "`a` is no earlier stage"),
        ([first], {"y": "x"}, "output `y` is an input of the graph"),
        ([first], {"y": "third.y"}, "output `y` is `third.y`"),
        ([first, stage("idle", x="x")], {"y": "first.y"}, "uses stage `idle`"),
    ]:
        raises(ValueError, says, lambda stages=stages, outputs=outputs: Plan.of(stages, outputs))  # type: ignore[misc]
    check([Report(0.0, "p", status, sent).may_be_repeated for status, sent in STATUSES] == REPEATED, STATUSES)
    for deadline in (0, -1, float("nan"), float("inf"), True, "1"):
        raises(ValueError, "deadline_s", lambda deadline=deadline: check_deadline(deadline))  # type: ignore[misc]


#: Statuses of failed stages, whether the request was sent, and whether another replica may run the stage in any case.
STATUSES = [(None, False), (None, True), (404, True), (409, True), (503, True), (410, True), (504, True), (400, False)]
REPEATED = [True, False, True, True, True, False, False, False]


def test_time_on_the_way() -> None:
    transit = Transit()
    check(transit.least("a") == 0.0 and transit.budget("a", 1.0) == 1.0, "nothing is known of a machine")
    transit.note("a", whole_s=0.5, inside_s=0.2)
    transit.note("a", whole_s=0.3, inside_s=0.2)
    check(abs(transit.least("a") - 0.1) < 1e-9 and abs(transit.budget("a", 1.0) - 0.9) < 1e-9, transit)
    check(transit.least("b") == 0.0, "machines are apart")
    # A slow first call does not make all others late.
    transit.note("c", whole_s=5.0, inside_s=0.0)
    check(transit.budget("c", 1.0) == 0.5, transit)
    # The clock of the other machine stepped, stands still or is broken: nothing is subtracted, and nothing added.
    for inside in (7.0, -1.0, float("nan"), float("inf")):
        transit.note("d", whole_s=1.0, inside_s=inside)
        check(transit.least("d") == 0.0 and transit.budget("d", 1.0) == 1.0, inside)


def test_hints() -> None:
    now = [100.0]
    hints = Sum(lambda: now[0])
    hints.tell("a", Hint.of([{"x": 1.0}], 2))
    hints.tell("b", Hint.of([{"y": 2.0}, {"z": 3.0}], 1))
    check(hints.bundles() == [{"x": 1.0}, {"x": 1.0}, {"y": 2.0}, {"z": 3.0}], hints.bundles())
    now[0] += FORGET_S - 1
    hints.tell("a", Hint.of([{"x": 1.0}], 1))
    now[0] += 2
    # The controller of `b` has told nothing for too long.
    check(hints.bundles() == [{"x": 1.0}], hints.bundles())
    hints.tell("a", None)
    check(hints.bundles() == [], hints.bundles())


def test_tokens(folder: Path) -> None:
    path = folder / "ray" / "auth_token"
    files = {auth.PATH_VARIABLE: str(path)}
    raises(ValueError, "there is no token of the cluster", lambda: auth.prepare(files, is_head=False))
    variables, message = auth.prepare(files, is_head=True)
    token = path.read_text()
    check(variables == {auth.MODE_VARIABLE: "token"} and message is not None and str(path) in message, message)
    check(len(token) == 2 * auth.TOKEN_BYTES and path.stat().st_mode & 0o777 == 0o600, oct(path.stat().st_mode))
    # The same token the next time, and for nodes that have it.
    check(auth.prepare(files, is_head=True) == ({auth.MODE_VARIABLE: "token"}, None), "it stays")
    check(auth.prepare(files, is_head=False)[1] is None and path.read_text() == token, "it stays")
    path.chmod(0o640)
    raises(ValueError, "chmod 600", lambda: auth.prepare(files, is_head=True))
    path.chmod(0o600)
    path.write_text("\n")
    raises(ValueError, "is empty", lambda: auth.prepare(files, is_head=True))
    check(auth.prepare({auth.TOKEN_VARIABLE: "t"}, is_head=False)[0] == {auth.MODE_VARIABLE: "token"}, "given")
    # Only the user turns it off.
    check(auth.prepare({auth.MODE_VARIABLE: "disabled"}, is_head=True) == ({auth.MODE_VARIABLE: "disabled"}, None), "")


def lease(number: int, **changes: Any) -> dict[str, Any]:
    found = {"lease": number, "epoch": number, "holder": f"h{number}", "instance": f"lease-{number}", "device": "d"}
    found |= {"sm_partition": 50.0, "quota_request": 1.0, "gpu_mem": 10, "real_time_slots": 1, "expires_in_ms": 1000}
    return found | changes


def test_audit() -> None:
    """The checks of the chaos run see what is wrong."""
    lanes = [{"device": "d", "lane": 0, "units": [0, 1]}, {"device": "d", "lane": 1, "units": [0]}]
    share = {"device": "d", "lane": 1, "instance": "a", "quota_request": 0.6}
    other = share | {"instance": "b", "quota_request": 0.4}
    check(lanes_granted_twice({"lanes": lanes, "shares": [share, other]}) == [], "it fits")
    for shares in [[share, other | {"lane": 0, "quota_request": 0.5}], [share, share | {"lane": 0}]]:
        check(bool(lanes_granted_twice({"lanes": lanes, "shares": shares})), shares)
    device = {"device": "d", "memory_bytes": 30, "real_time_slots": 2}
    check(promised_twice([lease(1), lease(2)], [device]) == [], "it fits")
    check(len(promised_twice([lease(1), lease(2), lease(3)], [device])) == 2, "units and slots")
    check(len(promised_twice([lease(1, gpu_mem=31)], [device])) == 1, "memory")

    history = History(ttl_s=6.0)
    check(history.look([lease(1), lease(2)], 0.0) == [] and history.look([lease(2)], 1.0) == [], history)
    for wrong, says in [
        (lease(1), "lease 1 had ended"),
        (lease(3, epoch=2), "epoch 2"),
        (lease(4, instance="lease-2"), "lease-2 is of"),
        (lease(5, expires_in_ms=7000), "lease 5 ends in"),
    ]:
        found = history.look([lease(2), wrong], 2.0)
        check(any(says in one for one in found), (says, found))
    history.died("lease-2", 10.0)
    check(history.look([lease(2)], 17.0) == [], "its time is not over")
    check("outlived" in str(history.look([lease(2)], 18.5)), "its time is over")
    history.restarted(18.0)
    check(history.look([lease(2)], 25.0) == [] and "outlived" in str(history.look([lease(2)], 26.5)), "once more")
    # A restart may undo an end that was not written yet, but no older one.
    history = History(ttl_s=6.0)
    history.look([lease(1), lease(2)], 0.0)
    history.look([lease(2)], 1.0)
    history.look([], 10.0)
    history.restarted(10.5)
    check(history.look([lease(2)], 11.0) == [], "undone")
    check(history.look([lease(1), lease(2)], 11.0) == ["lease 1 had ended and is there again"], "too old")


#: Stands for the program of a driver. It answers a slow question with the next one, and after it.
PROGRAM = """
import json, sys

def tell(**answer):
    print(json.dumps(answer), flush=True)

tell(number=0)
slow = []
for line in sys.stdin:
    ask = json.loads(line)
    if ask["do"] == "end":
        sys.exit(1)
    if ask["do"] == "slow":
        slow.append(ask)
    elif ask["do"] == "wrong":
        tell(number=ask["number"], error="it is wrong")
    else:
        for one in [*slow, ask]:
            tell(number=one["number"], ok=one["value"])
        slow = []
"""


def test_driver(folder: Path) -> None:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    one = driver.Driver("head", "address", folder / "log")
    raises(driver.DriverLost, "there is no driver", lambda: one.ask("quick", value=1))
    one._command = [sys.executable, str(program)]
    one.connect(60.0)
    raises(driver.DriverLost, "does not answer", lambda: one.ask("slow", timeout_s=0.01, value=2))
    # The late answer is not taken for this one, and the driver is still there.
    check(one.ask("quick", value=3) == 3 and one.ask("quick", value=None) is None, "each gets its own answer")
    raises(RuntimeError, "it is wrong", lambda: one.ask("wrong"))
    raises(driver.DriverLost, "has ended", lambda: one.ask("end", timeout_s=60.0))
    one.connect(60.0)
    check(one.ask("quick", value=4) == 4, "another program")
    one.close()
    raises(driver.DriverLost, "there is no driver", lambda: one.ask("quick", value=5))
    one._command = [sys.executable, "-c", "exit(1)"]
    raises(driver.DriverLost, "cannot connect", lambda: one.connect(60.0))


class FakePlaces:
    """Stands for Ray's table of placement groups."""

    def __init__(self) -> None:
        self.states: dict[int, str] = {}

    def new(self, *_: object, **__: object) -> int:
        self.states[len(self.states)] = "CREATED"
        return len(self.states) - 1

    def table(self, group: int) -> dict[str, str]:
        return {"state": self.states[group]} if group in self.states else {}


def test_places() -> None:
    table = FakePlaces()
    with (
        mock.patch.object(places, "placement_group", table.new),
        mock.patch.object(places, "placement_group_table", table.table),
        mock.patch.object(places, "remove", lambda _: None),
        mock.patch.object(places, "PlacementGroupSchedulingStrategy", dict),
    ):
        some = places.Places("g", [{"x": 1.0}], "PACK", is_restarted=False)
        found = [some.strategy(copy, 0)["placement_group"] for copy in (0, 0, 1)]  # type: ignore[index]
        check(found == [0, 0, 1], "a group for each copy")
        table.states[0] = "REMOVED"
        del table.states[1]
        table.states[7] = "CREATED"
        check(some.strategy(0, 0)["placement_group"] == 2, "another one for a removed group")  # type: ignore[index]
        check(some.states() == {0: "CREATED", 1: "UNKNOWN"}, some.states())


def test_vacancies() -> None:
    free = controller.Vacancy
    check(controller.starts([-1, -1], [], 0.0) == ([(-1, 0), (-1, 0)], []), "at once")
    waits, due = free(-1, 3, 9.0), free(-1, 2, 1.0)
    check(controller.starts([-1, -1, -1], [waits, due], 5.0) == ([(-1, 2), (-1, 0)], [waits]), "one waits")
    check(controller.starts([-1], [waits, due], 5.0) == ([], [waits]), "what is no longer missing is forgotten")
    # A copy that fails does not delay another one, nor does that one start it too soon.
    broken = free(0, 5, 9.0)
    check(controller.starts([0, 1], [broken], 5.0) == ([(1, 0)], [broken]), "copy 1")
    later = free(1, 5, 9.0)
    check(controller.starts([0, 1], [later], 5.0) == ([(0, 0)], [later]), "copy 0")
    check(controller.starts([0, 1], [broken], 9.0) == ([(0, 5), (1, 0)], []), "both")


def main() -> None:
    folder = Path(sys.argv[1])
    os.environ["HOME"] = str(folder)
    joined = node._take_resources(["--x", '--resources={"a": 1}', "--y"])
    check(joined == ({"a": 1}, ["--x", "--y"]), joined)
    check([pause_after(count) for count in (0, 1, 5, 5000)] == [1, 2, 30, 30], "pauses have a limit")
    test_tensors()
    test_arrays()
    test_plans()
    test_time_on_the_way()
    run_checks.test_runs()
    controller_checks.test_all()
    scaling_checks.test_all()
    scaled_checks.test_all()
    daemon_checks.test_tensors_over_http()
    test_hints()
    test_tokens(folder)
    test_audit()
    test_driver(folder)
    test_places()
    test_vacancies()
    print("all of it holds")


if __name__ == "__main__":
    main()
