"""Writes test cases for real models: random inputs and the outputs of ONNX Runtime, in the layout of ONNX's backend
tests.

    python make_cases.py OUT_FOLDER MODEL.onnx [MODEL.onnx ...] [--size NAME=VALUE ...]

Run `cargo test -p atoll-frontend --test suite conformance` with ATOLL_ONNX_CASES=OUT_FOLDER afterwards.
"""

import argparse
import pathlib
import shutil

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

parser = argparse.ArgumentParser()
parser.add_argument("out", type=pathlib.Path)
parser.add_argument("models", nargs="+", type=pathlib.Path)
parser.add_argument("--size", action="append", default=[], help="value of a named dimension; 2 where not given")
parser.add_argument("--int-max", type=int, default=256, help="integers are drawn from 0 up to this")
arguments = parser.parse_args()
sizes = {name: int(value) for name, value in (pair.split("=") for pair in arguments.size)}
random = np.random.default_rng(20240229)


def random_input(value):
    tensor = value.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    shape = [dim.dim_value or sizes.get(dim.dim_param, 2) for dim in tensor.shape.dim]
    if np.issubdtype(dtype, np.floating):
        return random.standard_normal(shape).astype(dtype)
    if dtype == np.bool_:
        return random.integers(0, 2, shape).astype(dtype)
    return random.integers(0, arguments.int_max, shape).astype(dtype)


for path in arguments.models:
    model = onnx.load(path)
    case = arguments.out / f"{path.parent.name}_{path.stem}"
    data = case / "test_data_set_0"
    data.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, case / "model.onnx")
    initializers = {tensor.name for tensor in model.graph.initializer}
    inputs = {value.name: random_input(value) for value in model.graph.input if value.name not in initializers}
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    outputs = session.run(None, inputs)
    for kind, tensors in (("input", inputs.items()), ("output", zip([o.name for o in session.get_outputs()], outputs))):
        for index, (name, tensor) in enumerate(tensors):
            (data / f"{kind}_{index}.pb").write_bytes(numpy_helper.from_array(tensor, name).SerializeToString())
    print(case)
