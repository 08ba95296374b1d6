"""Writes the cases of functions, subgraphs and sequences in `cases`: small models in ONNX's text format, seeded inputs,
and the outputs of ONNX Runtime.

    python make_graph_cases.py OUT_FOLDER [NAME ...]
"""

import pathlib
import sys

import numpy as np
import onnx
import onnx.parser
import onnxruntime
from onnx import numpy_helper

MODELS = {
    # A function of a function; attributes by reference, by default and through; an operand that is left out.
    "function_nested": """<ir_version: 8, opset_import: ["": 17, "local": 1]>
        main (float[2, 3] x) => (float[2, 3] y, float[2, 3] z) {
            y = local.outer <slope = 0.25, shift = 2.0> (x)
            z = local.outer <slope = 0.5> (x)
        }
        <domain: "local", opset_import: ["": 17, "local": 1]> outer <slope, shift: float = 1.0> (x) => (y) {
            a = local.inner <alpha: float = @slope> (x)
            b = Constant <value_float: float = @shift> ()
            c = Add(a, b)
            y = Clip(c, , b)
        }
        <domain: "local", opset_import: ["": 15]> inner <alpha> (t) => (u) {
            u = LeakyRelu <alpha: float = @alpha> (t)
        }""",
    # The condition follows from the shape: one branch only is legal.
    "if_known": """<ir_version: 8, opset_import: ["": 17]>
        main (float[2, 3] x) => (float[2] y) {
            shape = Shape(x)
            rank = Size(shape)
            two = Constant <value_int = 2> ()
            is_matrix = Equal(rank, two)
            y = If(is_matrix) <
                then_branch = then () => (float[2] a) { a = ReduceSum <keepdims = 0> (x, axis) },
                else_branch = other () => (float[2] b) { b = Squeeze(x) }
            >
            axis = Constant <value_ints = [1]> ()
        }""",
    # The condition is computed: both branches are.
    "if_computed": """<ir_version: 8, opset_import: ["": 18]>
        main (float[2, 3] x, bool c) => (float[2, 3] y, float[3] z) {
            y, z = If(c) <
                then_branch = then () => (float[2, 3] a, float[3] v) { a = Exp(x) v = Constant <value_floats = [1.0, 2.0, 3.0]> () },
                else_branch = other () => (float[2, 3] b, float[3] w) { b = Neg(x) axis = Constant <value_ints = [0]> () w = ReduceMax <keepdims = 0> (b, axis) }
            >
        }""",
    # Carried values, a scan result, the iteration's number and a name from outside, in a loop inside of a branch inside of a loop.
    "loop_nested": """<ir_version: 8, opset_import: ["": 17]>
        main (float[3] x, bool c) => (float[3] y, float[2, 3] rows) {
            trips = Constant <value_int = 2> ()
            y, rows = Loop(trips, , x) <
                body = body (int64 i, bool go, float[3] v) => (bool next, float[3] w, float[3] row) {
                    next = Identity(go)
                    number = Cast <to = 1> (i)
                    row = Add(v, number)
                    w = If(c) <
                        then_branch = then () => (float[3] a) {
                            three = Constant <value_int = 3> ()
                            a = Loop(three, , v) <
                                body = inner (int64 j, bool on, float[3] s) => (bool still, float[3] t) { still = Identity(on) t = Add(s, x) }
                            >
                        },
                        else_branch = other () => (float[3] b) { b = Mul(v, x) }
                    >
                }
            >
        }""",
    # A condition that depends on the data ends the loop before its last trip.
    "loop_ends_early": """<ir_version: 8, opset_import: ["": 17]>
        main (float[1] x) => (float[1] y) {
            trips = Constant <value_int = 6> ()
            limit = Constant <value_float = 4.0> ()
            first = Less(x, limit)
            scalar = Constant <value_ints = [0]> ()
            start = Squeeze(first, scalar)
            y = Loop(trips, start, x) <
                body = body (int64 i, bool go, float[1] v) => (bool next, float[1] w) {
                    w = Add(v, v)
                    less = Less(w, limit)
                    next = Squeeze(less, scalar)
                }
            >
        }""",
    # Two scanned tensors along different axes and ways, two results stacked differently.
    "scan_axes": """<ir_version: 8, opset_import: ["": 17]>
        main (float[2] s, float[3, 2] a, float[2, 3] b) => (float[2] t, float[3, 2] y, float[2, 3] z) {
            t, y, z = Scan <num_scan_inputs = 2, scan_input_axes = [0, 1], scan_input_directions = [0, 1],
                scan_output_axes = [0, -1], scan_output_directions = [1, 0],
                body = body (float[2] s0, float[2] u, float[2] v) => (float[2] s1, float[2] p, float[2] q) {
                    s1 = Add(s0, u)
                    p = Mul(s1, v)
                    q = Sub(s1, v)
                }
            > (s, a, b)
        }""",
    "sequence": """<ir_version: 8, opset_import: ["": 17]>
        main (float[5, 2] x, float[1, 2] e) => (float[6, 2] y, int64 n, float[3, 2] last, bool has) {
            sizes = Constant <value_int = 2> ()
            parts = SplitToSequence(x, sizes)
            minus = Constant <value_int = -1> ()
            one = Constant <value_int = 1> ()
            longer = SequenceInsert(parts, e, one)
            n = SequenceLength(longer)
            y = ConcatFromSequence <axis = 0> (longer)
            tail = SequenceAt(longer, minus)
            fewer = SequenceErase(longer, one)
            head = SequenceAt(fewer, one)
            pair = SequenceConstruct(tail, head)
            maybe = Optional(pair)
            has = OptionalHasElement(maybe)
            again = OptionalGetElement(maybe)
            last = ConcatFromSequence <axis = 0> (again)
        }""",
    "sequence_map": """<ir_version: 8, opset_import: ["": 17]>
        main (float[3, 2] x, float[2] e) => (float[3, 2] y) {
            parts = SplitToSequence <keepdims = 0> (x)
            sums = SequenceMap(parts, e) <body = body (float[2] a, float[2] b) => (float[2] c) { c = Add(a, b) }>
            y = ConcatFromSequence <axis = 0, new_axis = 1> (sums)
        }""",
}

random = np.random.default_rng(20240229)


def seeded(value):
    tensor = value.type.tensor_type
    shape = [dim.dim_value for dim in tensor.shape.dim]
    if tensor.elem_type == onnx.TensorProto.BOOL:
        return np.array(random.integers(0, 2, shape) != 0)
    return np.asarray(random.standard_normal(shape), dtype=np.float32)


out, wanted = pathlib.Path(sys.argv[1]), sys.argv[2:]
for name, text in MODELS.items():
    model = onnx.parser.parse_model(text)
    inputs = {value.name: seeded(value) for value in model.graph.input}
    if wanted and name not in wanted:
        continue
    data = out / name / "test_data_set_0"
    data.mkdir(parents=True, exist_ok=True)
    (out / name / "model.onnx").write_bytes(model.SerializeToString())
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs = session.run(None, inputs)
    names = [output.name for output in session.get_outputs()]
    for kind, tensors in (("input", inputs.items()), ("output", zip(names, outputs))):
        for index, (tensor_name, tensor) in enumerate(tensors):
            (data / f"{kind}_{index}.pb").write_bytes(numpy_helper.from_array(np.asarray(tensor), tensor_name).SerializeToString())
    print(name)
