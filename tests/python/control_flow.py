#!/usr/bin/env python3
"""Models with control flow, and ONNX Runtime's results for them.

    control_flow.py OUT

Writes OUT/MODEL.onnx and, for each run of a model, OUT/MODEL/RUN/case.json and the raw tensors that it names.
"""

import json
import pathlib
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_graph, make_node, make_tensor_value_info
from oracle import session, write

F, I, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
RNG = np.random.default_rng(5)
W = (RNG.standard_normal((8, 8)) / 3).astype(np.float32)


def body(nodes, inputs, outputs):
    return make_graph(nodes, "body", [make_tensor_value_info(*i) for i in inputs], [make_tensor_value_info(*o) for o in outputs])


def model(nodes, inputs, outputs, constants=()):
    constants = {"W": W, "one": np.int64(1), "two": np.int64(2), "first": np.array([0], np.int64), "limit": np.float32(300), **dict(constants)}
    graph = make_graph(
        nodes,
        "flow",
        [make_tensor_value_info(*i) for i in inputs],
        [make_tensor_value_info(*o) for o in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    return made


def choice():
    """An If on an input: a product in one branch, and as much pointwise work as a convolution in the other."""
    then = body([make_node("MatMul", ["x", "W"], ["a"])], [], [("a", F, ["n", 8])])
    other = body([make_node("Softmax", ["x"], ["s"]), make_node("MatMul", ["s", "W"], ["t"]), make_node("Add", ["t", "x"], ["b"])], [], [("b", F, ["n", 8])])
    nodes = [make_node("If", ["c"], ["y"], then_branch=then, else_branch=other), make_node("Relu", ["y"], ["z"])]
    runs = [{"x": RNG.standard_normal((n, 8)).astype(np.float32), "c": np.bool_(c)} for n in (1, 5) for c in (0, 1)]
    return model(nodes, [("x", F, ["n", 8]), ("c", B, [])], [("y", F, ["n", 8]), ("z", F, ["n", 8])]), runs


def counted():
    """A loop whose trip count is an input."""
    inner = body(
        [make_node("Identity", ["go"], ["next"]), make_node("MatMul", ["v", "W"], ["p"]), make_node("Add", ["p", "x"], ["u"])],
        [("i", I, []), ("go", B, []), ("v", F, ["n", 8])],
        [("next", B, []), ("u", F, ["n", 8])],
    )
    nodes = [make_node("Loop", ["trips", "", "x"], ["y"], body=inner)]
    runs = [{"x": RNG.standard_normal((3, 8)).astype(np.float32), "trips": np.int64(n)} for n in (0, 1, 2, 13)]
    return model(nodes, [("x", F, ["n", 8]), ("trips", I, [])], [("y", F, ["n", 8])]), runs


def stopped():
    """A loop that stacks results. Its condition ends it early, or its computed trip count does."""
    inner = body(
        [
            make_node("Add", ["v", "v"], ["u"]),
            make_node("Cast", ["i"], ["number"], to=F),
            make_node("Add", ["u", "number"], ["row"]),
            make_node("ReduceMax", ["u"], ["most"], keepdims=0),
            make_node("Less", ["most", "limit"], ["next"]),
        ],
        [("i", I, []), ("go", B, []), ("v", F, [4])],
        [("next", B, []), ("u", F, [4]), ("row", F, [4])],
    )
    nodes = [
        make_node("Add", ["trips", "one"], ["more"]),
        make_node("Loop", ["more", "", "x"], ["y", "rows"], body=inner),
        make_node("ReduceSum", ["rows", "first"], ["sum"], keepdims=0),
    ]
    runs = [{"x": np.abs(RNG.standard_normal(4)).astype(np.float32) + np.float32(x), "trips": np.int64(n)} for n, x in ((0, 1), (2, 1), (60, 1), (60, 400))]
    return model(nodes, [("x", F, [4]), ("trips", I, [])], [("y", F, [4]), ("rows", F, ["rows", 4]), ("sum", F, [4])]), runs


def nested():
    """A loop that ends by a condition. Its body has a branch, one side of which has another loop."""
    innermost = body(
        [make_node("Identity", ["on"], ["still"]), make_node("Add", ["s", "x"], ["t"])],
        [("j", I, []), ("on", B, []), ("s", F, [2, 8])],
        [("still", B, []), ("t", F, [2, 8])],
    )
    then = body([make_node("MatMul", ["v", "W"], ["a"])], [], [("a", F, [2, 8])])
    other = body([make_node("Loop", ["i", "", "v"], ["b"], body=innermost)], [], [("b", F, [2, 8])])
    outer = body(
        [
            make_node("Mod", ["i", "two"], ["rest"]),
            make_node("Equal", ["rest", "one"], ["odd"]),
            make_node("If", ["odd"], ["u"], then_branch=then, else_branch=other),
            make_node("ReduceSumSquare", ["u"], ["size"], keepdims=0),
            make_node("Less", ["size", "limit"], ["next"]),
        ],
        [("i", I, []), ("go", B, []), ("v", F, [2, 8])],
        [("next", B, []), ("u", F, [2, 8])],
    )
    nodes = [make_node("Loop", ["most", "go", "x"], ["y"], body=outer)]
    inputs = [("x", F, [2, 8]), ("most", I, []), ("go", B, [])]
    runs = [{"x": RNG.standard_normal((2, 8)).astype(np.float32), "most": np.int64(n), "go": np.bool_(g)} for n, g in ((9, 1), (2, 1), (0, 1), (5, 0), (1000, 1))]
    return model(nodes, inputs, [("y", F, [2, 8])]), runs


def scanned():
    """A scan over a named number of steps, backwards over one of its operands."""
    inner = body(
        [make_node("Add", ["s", "p"], ["s2"]), make_node("Mul", ["s2", "q"], ["o"])],
        [("s", F, [8]), ("p", F, [8]), ("q", F, [8])],
        [("s2", F, [8]), ("o", F, [8])],
    )
    nodes = [make_node("Scan", ["x", "a", "b"], ["t", "y"], num_scan_inputs=2, scan_input_directions=[0, 1], scan_output_directions=[1], body=inner)]
    inputs = [("x", F, [8]), ("a", F, ["steps", 8]), ("b", F, ["steps", 8])]
    runs = [{name: RNG.standard_normal(shape).astype(np.float32) for name, shape in (("x", 8), ("a", (n, 8)), ("b", (n, 8)))} for n in (1, 3, 40)]
    return model(nodes, inputs, [("t", F, [8]), ("y", F, ["steps", 8])]), runs


def main():
    out = pathlib.Path(sys.argv[1])
    for make in (choice, counted, stopped, nested, scanned):
        made, runs = make()
        path = out / f"{make.__name__}.onnx"
        onnx.save(made, path)
        runtime = session(str(path))
        for number, inputs in enumerate(runs):
            folder = out / make.__name__ / str(number)
            folder.mkdir(parents=True)
            inputs = {name: np.asarray(value) for name, value in inputs.items()}
            outputs = runtime.run(None, inputs)
            names = [output.name for output in runtime.get_outputs()]
            case = {
                "inputs": [write(folder, "in", name, value) for name, value in inputs.items()],
                "outputs": [write(folder, "out", name, value) for name, value in zip(names, outputs)],
            }
            (folder / "case.json").write_text(json.dumps(case))


if __name__ == "__main__":
    main()
