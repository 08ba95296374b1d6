#!/usr/bin/env python3
"""Runs ONNX's own node cases on a device: compiled on this machine, run by a daemon, compared with their outputs.

onnx_nodes.py --output FILE.json [--device cuda:0] [--filter REGEX]

Needs the package `onnx`, and its cases: in a folder `node` beside this script, or else in the package. The rules are those of tests/integration/onnx_nodes.rs: a case that is refused with all inputs open runs with all but the first as
constants, as exporters write axes and sizes. Exit status 1 if a case is wrong or fails.
"""

import pathlib
import re
import sys
import time

import numpy as np
import onnx
from onnx import numpy_helper

import farm
from daemon import Refused, compile_model

# Cases whose answers are another matter than this device's.
OTHER_ANSWERS = (
    "test_bernoulli", "test_training_dropout_default", "test_training_dropout_mask",
    "test_resize_downsample_scales_linear_align_corners", "test_resize_downsample_scales_cubic_align_corners",
)
ABSOLUTE = 1e-5
RELATIVE = {"bfloat16": 1e-2, "float16": 2e-3}


def folder_of_cases():
    beside = pathlib.Path(__file__).resolve().parent / "node"
    return beside if beside.is_dir() else pathlib.Path(onnx.__file__).parent / "backend/test/data/node"


def read(data, value):
    """The tensors of one input or output of a case."""
    kind = value.type.WhichOneof("value")
    if kind == "sequence_type":
        return list(onnx.SequenceProto.FromString(data).tensor_values)
    if kind == "optional_type":
        optional = onnx.OptionalProto.FromString(data)
        return ([optional.tensor_value] if optional.HasField("tensor_value") else []) + list(
            optional.sequence_value.tensor_values
        )
    return [onnx.TensorProto.FromString(data)]


def tensors(data_set, kind, values):
    """All tensors of a data set, as files have them, and the lengths of lists by name."""
    protos, lengths = [], {}
    for index, value in enumerate(values):
        path = data_set / f"{kind}_{index}.pb"
        if not path.exists():
            break
        found = read(path.read_bytes(), value)
        if value.type.WhichOneof("value") in ("sequence_type", "optional_type"):
            lengths[f"{value.name}.length"] = len(found)
        protos += found
    return protos, lengths


def with_constants(model, protos):
    """The model with all inputs but the first as initializers."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for value, proto in list(zip(model.graph.input, protos))[1:]:
        constant = changed.graph.initializer.add()
        constant.CopyFrom(proto)
        constant.name = value.name
    return changed


def compiled(daemon, name, model, lengths, options):
    """Compiles the case into the repository of the daemon."""
    path = daemon.folder / "case.onnx"
    path.write_bytes(model.SerializeToString())
    flags = [flag for size in lengths.items() for flag in ("--fix", "%s=%d" % size)]
    bundle = daemon.repository / f"{name}.kg"
    compile_model(options.atoll, path, bundle, options.target, flags, cache=daemon.folder)
    return bundle


def difference(found, expected):
    """What differs; `None` if nothing does."""
    if found.shape != expected.shape:
        return {"reason": f"shape {list(found.shape)} instead of {list(expected.shape)}"}
    if expected.dtype.kind in "OSU":
        texts = [text if isinstance(text, bytes) else str(text).encode() for text in expected.reshape(-1)]
        same = list(found.reshape(-1)) == texts
        return None if same else {"reason": f"{found.reshape(-1)[:4]} instead of {texts[:4]}"}
    if found.dtype != expected.dtype:
        return {"reason": f"{found.dtype} instead of {expected.dtype}"}
    if expected.dtype.kind in "iub":
        differs = found != expected
    else:
        a, b = found.astype(np.float64), expected.astype(np.float64)
        relative = RELATIVE.get(expected.dtype.name, 1e-3)
        with np.errstate(invalid="ignore", over="ignore"):
            near = np.abs(a - b) <= ABSOLUTE + relative * np.abs(b)
        differs = ~((a == b) | (np.isnan(a) & np.isnan(b)) | near)
    differs = np.asarray(differs)
    if not differs.any():
        return None
    a, b = found.reshape(-1).astype(np.float64), expected.reshape(-1).astype(np.float64)
    at = int(np.flatnonzero(differs.reshape(-1))[0])
    with np.errstate(invalid="ignore", over="ignore"):
        largest = float(np.nanmax(np.abs(a - b)[differs.reshape(-1)]))
    reason = f"element {at}: {a[at]} instead of {b[at]}, {int(differs.sum())} of {differs.size} differ"
    return {"reason": reason, "difference": largest}


def answer(daemon, name, bundle, inputs, expected):
    """Runs a compiled case. Returns what is wrong; `None` if nothing is."""
    try:
        metadata = daemon.load(name)
        likes = [array.dtype for array in expected]
        found = daemon.infer(name, metadata, inputs, likes)
        daemon.unload(name)
    finally:
        bundle.unlink(missing_ok=True)
    if len(found) != len(expected):
        return {"reason": f"{len(found)} outputs instead of {len(expected)}"}
    for spec, one, other in zip(metadata["outputs"], found, expected):
        wrong = difference(one, other)
        if wrong:
            return wrong | {"reason": f"output {spec['name']}: {wrong['reason']}"}
    return None


def one_set(daemon, name, model, data_set, options):
    protos, lengths = tensors(data_set, "input", model.graph.input)
    expected = [numpy_helper.to_array(proto) for proto in tensors(data_set, "output", model.graph.output)[0]]
    inputs = [numpy_helper.to_array(proto) for proto in protos]
    outcome = "passed"
    try:
        bundle = compiled(daemon, name, model, lengths, options)
    except Refused:
        if len(inputs) < 2 or lengths:
            raise
        bundle = compiled(daemon, name, with_constants(model, protos), lengths, options)
        inputs, outcome = inputs[:1], "passed with constants"
    wrong = answer(daemon, name, bundle, inputs, expected)
    return {"outcome": "wrong", **wrong} if wrong else {"outcome": outcome}


def check(daemon, name, options):
    if name.startswith(OTHER_ANSWERS) or name == "test_training_dropout":
        return {"outcome": "left out", "reason": "its answers are those of another generator or rounding"}
    folder = folder_of_cases() / name
    model = onnx.load(folder / "model.onnx")
    row = {"outcome": "passed"}
    for data_set in sorted(path for path in folder.iterdir() if path.is_dir()):
        row = one_set(daemon, name, model, data_set, options)
        if not row["outcome"].startswith("passed"):
            break
    return row


def main():
    options = farm.arguments(__doc__).parse_args()
    began = time.monotonic()
    pattern = re.compile(options.filter)
    folders = sorted(path.parent.name for path in folder_of_cases().glob("*/model.onnx"))
    if not folders:
        sys.exit(f"{folder_of_cases()} has no cases")
    rows = farm.run(check, [name for name in folders if pattern.search(name)], options)
    sys.exit(0 if farm.summarise("ONNX node cases", rows, began) else 1)


if __name__ == "__main__":
    main()
