"""Expected outputs of the folders in tests/imports: imports.py FOLDER OUT

Writes random inputs to OUT/inputs/NAME.npy and expected outputs to OUT/expected/NAME.npy. ONNX Runtime computes them if the folder has its original model
(model.onnx), and NumPy otherwise.
"""

import json
import pathlib
import struct
import sys

import numpy as np


def constants(folder):
    """The tensors of constants.safetensors."""
    path = folder / "constants.safetensors"
    if not path.exists():
        return {}
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    types = {"F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32}
    elements = data[8 + length :]
    return {n: np.frombuffer(elements[slice(*t["data_offsets"])], types[t["dtype"]]).reshape(t["shape"]) for n, t in header.items()}


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def triton_add(x, y):
    return {"out": x + y}


def triton_softmax(x):
    return {"out": softmax(x)}


def triton_matmul(a, b, bias):
    return {"out": a.astype(np.float64) @ b.astype(np.float64) + bias}


def triton_mlp(x, **constant):
    for layer in range(3):
        d = x - x.mean(-1, keepdims=True)
        x = d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * constant[f"gain{layer}"] + constant[f"shift{layer}"]
        x = x @ constant[f"w{layer}"] + constant[f"b{layer}"]
        x = x if layer == 2 else np.maximum(x, 0)
    return {"y": softmax(x)}


def reef_small(data, p0, p1):
    return {"output": softmax(np.maximum(p0.reshape(10, 128) @ data + p1, 0))}


def of_model(path, inputs):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return dict(zip((output.name for output in session.get_outputs()), session.run(None, inputs)))


def main():
    folder, out = map(pathlib.Path, sys.argv[1:])
    manifest = json.loads((folder / "manifest.json").read_text())
    random, inputs = np.random.default_rng(3), {}
    for name, buffer in manifest["buffers"].items():
        if buffer["kind"] == "input":
            dtype = {"f32": np.float32, "f16": np.float16, "i64": np.int64}[buffer["dtype"]]
            # Integers are masks.
            drawn = random.integers(0, 2, buffer["shape"]) if dtype == np.int64 else random.standard_normal(buffer["shape"])
            inputs[name] = drawn.astype(dtype)
    model = folder / "model.onnx"
    if model.exists():
        expected = of_model(model, inputs)
    else:
        wide = {name: array.astype(np.float64) for name, array in (inputs | constants(folder)).items()}
        expected = globals()[manifest["name"]](**wide)
    for kind, arrays in (("inputs", inputs), ("expected", expected)):
        (out / kind).mkdir(parents=True)
        for name, array in arrays.items():
            dtype = np.float32 if kind == "expected" else array.dtype
            np.save(out / kind / f"{name}.npy", array.astype(dtype))


main()
