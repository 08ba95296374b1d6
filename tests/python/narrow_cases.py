#!/usr/bin/env python3
"""Cases of narrow types (integers of 2 and 4 bits, floats of 4 and 8 bits) with the results of ONNX's reference implementation.

narrow_cases.py OUT     writes OUT/<case>/model.onnx and OUT/<case>/test_data_set_0/{input,output}_<i>.pb

Casts take every float16, random float32 and small int32. Where ONNX Runtime has the kernel, its results must be the same.
"""

import pathlib
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto as T
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

OPSET = 25
INTEGERS = {"UINT2": (0, 3), "INT2": (-2, 1), "UINT4": (0, 15), "INT4": (-8, 7)}
FLOATS8 = ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"]
FLOATS = [*FLOATS8, "FLOAT4E2M1"]


def numpy_type(name):
    return helper.tensor_dtype_to_np_dtype(getattr(T, name))


def info(name, array):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), list(array.shape))


def write(out, name, nodes, inputs):
    """Writes the case of `nodes`; every result that no node reads is an output."""
    read = {operand for node in nodes for operand in node.input}
    outputs = [result for node in nodes for result in node.output if result not in read]
    # The reference needs no types of results, and the importer finds them by itself.
    results = [helper.make_tensor_value_info(result, T.UNDEFINED, None) for result in outputs]
    graph = helper.make_graph(nodes, name, [info(key, array) for key, array in inputs.items()], results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=11)
    expected = ReferenceEvaluator(model).run(None, inputs)
    folder = out / name / "test_data_set_0"
    folder.mkdir(parents=True)
    for result, array in zip(graph.output, expected):
        result.CopyFrom(info(result.name, array))
    onnx.save(model, out / name / "model.onnx")
    for kind, arrays in (("input", inputs.values()), ("output", expected)):
        for index, array in enumerate(arrays):
            (folder / f"{kind}_{index}.pb").write_bytes(numpy_helper.from_array(np.asarray(array)).SerializeToString())


def sources(name):
    """Numbers to cast. Floats that are cast to integers fit the type, because the result of others is undefined."""
    random = np.random.default_rng(1)
    if name in INTEGERS:
        low, high = INTEGERS[name]
        halves = np.arange(2 * low, 2 * high + 1) / 2
        return {"half": halves.astype(np.float16), "single": halves.astype(np.float32), "whole": np.arange(-300, 300, dtype=np.int32)}
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    singles = random.integers(0, 1 << 32, 4096, dtype=np.uint32).view(np.float32)
    if name == "FLOAT8E8M0":
        # The reference gives NaN for infinity; ONNX's text says that it saturates.
        halves, singles = halves[~np.isinf(halves)], singles[~np.isinf(singles)]
    near = (random.standard_normal(4096) * 4.0 ** random.integers(-10, 10, 4096)).astype(np.float32)
    return {"half": halves, "single": np.concatenate([singles, near]), "whole": np.arange(-300, 300, dtype=np.int32)}


def check_with_onnx_runtime(name, arrays, saturate):
    """The results of ONNX Runtime's casts, widened again, must be those of the reference."""
    for key in ("half", "single"):
        array = arrays[key]
        nodes = [helper.make_node("Cast", [key], ["narrow"], to=getattr(T, name), saturate=saturate), helper.make_node("Cast", ["narrow"], ["wide"], to=T.FLOAT)]
        graph = helper.make_graph(nodes, "cast", [info(key, array)], [helper.make_tensor_value_info("wide", T.FLOAT, None)])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
        found = ort.InferenceSession(model.SerializeToString()).run(None, {key: array})[0]
        np.testing.assert_array_equal(found, ReferenceEvaluator(model).run(None, {key: array})[0])


def casts(out, name):
    arrays, nodes = sources(name), []
    number = getattr(T, name)
    for key in arrays:
        for saturate in (0, 1) if name in FLOATS8 else (1,):
            nodes.append(helper.make_node("Cast", [key], [f"{key}_{saturate}"], to=number, saturate=saturate))
    write(out, f"casts_to_{name}", nodes, arrays)
    # Without saturation, ONNX Runtime does not follow ONNX just beyond the largest number of two types: 480 becomes 448 in
    # FLOAT8E4M3FN instead of NaN, 61440 becomes NaN in FLOAT8E5M2 instead of infinity.
    for saturate in [] if name not in FLOATS8 else [0, 1] if name.endswith("FNUZ") else [1]:
        check_with_onnx_runtime(name, arrays, saturate)
    if name in INTEGERS:
        all_numbers = np.arange(INTEGERS[name][0], INTEGERS[name][1] + 1).astype(numpy_type(name))
    else:
        all_numbers = np.arange(16 if name == "FLOAT4E2M1" else 256, dtype=np.uint8).view(numpy_type(name))
    backs = [helper.make_node("Cast", ["x"], [f"to_{to}"], to=getattr(T, to)) for to in ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE")]
    if name not in INTEGERS:
        backs.append(helper.make_node("IsNaN", ["x"], ["is_nan"]))
    write(out, f"casts_from_{name}", backs, {"x": all_numbers})


def moves(out, name):
    random = np.random.default_rng(2)
    x = random.integers(-2 if name in INTEGERS and INTEGERS[name][0] < 0 else 0, 2, (4, 6, 5)).astype(np.float32).astype(numpy_type(name))
    y = random.integers(0, 2, (4, 3, 5)).astype(np.float32).astype(numpy_type(name))
    n = helper.make_node
    constant = lambda key, values: n("Constant", [], [key], value_ints=values)
    nodes = [
        n("Transpose", ["x"], ["transposed"], perm=[2, 0, 1]),
        n("Concat", ["x", "y"], ["joined"], axis=1),
        constant("shape", [8, -1]),
        n("Reshape", ["x", "shape"], ["reshaped"]),
        constant("starts", [3, -1]),
        constant("ends", [0, 0]),
        constant("axes", [0, 2]),
        constant("steps", [-1, -2]),
        n("Slice", ["x", "starts", "ends", "axes", "steps"], ["cut"]),
        constant("indices", [2, 0, 2]),
        n("Gather", ["x", "indices"], ["gathered"], axis=1),
        n("Identity", ["x"], ["same"]),
        constant("wide", [2, 4, 6, 5]),
        n("Expand", ["x", "wide"], ["expanded"]),
        n("Split", ["x"], ["first", "second"], axis=0, num_outputs=2),
        n("Flatten", ["x"], ["flat"], axis=2),
        n("Where", ["choice", "x", "same_again"], ["chosen"]),
        n("Transpose", ["x"], ["turned"], perm=[0, 1, 2]),
        n("Identity", ["turned"], ["same_again"]),
        constant("twice", [1, 2, 1]),
        n("Tile", ["x", "twice"], ["tiled"]),
        constant("front", [0]),
        n("Unsqueeze", ["x", "front"], ["raised"]),
        n("TensorScatter", ["cache", "update", "places"], ["written"]),
    ]
    if name != "FLOAT8E8M0":
        # The type has no 0.
        nodes += [constant("pads", [0, 1, 2, 1, 0, 1]), n("Pad", ["x", "pads"], ["padded"])]
    # Nodes in the order of their operands.
    nodes.sort(key=lambda node: node.op_type == "Where")
    cache, update = np.stack([x[:2], x[2:]]), np.stack([y[:2, :2], y[2:, :2]])
    inputs = {"x": x, "y": y, "choice": random.integers(0, 2, (6, 1)).astype(bool), "cache": cache, "update": update, "places": np.array([1, 3])}
    write(out, f"moves_{name}", nodes, inputs)


def quantisation(out, name):
    random = np.random.default_rng(3)
    x = (random.standard_normal((6, 8)) * 8).astype(np.float32)
    n, number = helper.make_node, getattr(T, name)
    scales = {"tensor": np.float32(0.5), "axis": np.array([0.25, 0.5, 1, 2, 4, 8], np.float32), "block": random.choice([0.25, 0.5, 2.0], (6, 2)).astype(np.float32)}
    inputs, nodes = {"x": x}, []
    for kind, scale in scales.items():
        inputs[f"{kind}_scale"] = np.asarray(scale)
        how = {"tensor": {}, "axis": {"axis": 0}, "block": {"axis": 1, "block_size": 4}}[kind]
        operands = [f"{kind}_scale"]
        if name in INTEGERS:
            zero = np.ones(np.shape(scale), np.float32).astype(numpy_type(name))
            inputs[f"{kind}_zero"] = zero
            operands.append(f"{kind}_zero")
        nodes.append(n("QuantizeLinear", ["x", *operands], [f"{kind}_q"], output_dtype=number, **how))
        nodes.append(n("Identity", [f"{kind}_q"], [f"{kind}_narrow"]))
        nodes.append(n("DequantizeLinear", [f"{kind}_q", *operands], [f"{kind}_wide"], **how))
    write(out, f"quantised_to_{name}", nodes, inputs)


def main():
    out = pathlib.Path(sys.argv[1])
    for name in [*INTEGERS, *FLOATS, "FLOAT8E8M0"]:
        casts(out, name)
        moves(out, name)
        if name != "FLOAT8E8M0":
            quantisation(out, name)


main()
