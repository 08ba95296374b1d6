#!/usr/bin/env python3
"""The numeric oracle: run an ONNX model in ONNX Runtime on seeded random inputs and write inputs and outputs.

oracle.py MODEL.onnx OUT --seeds 0,1,2 [--symbol batch=3]      writes OUT/<seed>/case.json and the raw tensors it names
"""

import argparse
import json
import pathlib

import numpy as np
import onnxruntime as ort

DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}


def session(path):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.inter_op_num_threads = 1
    # A spinning pool takes the cores away from the tests beside it.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def random_input(rng, spec, symbols):
    """Floats are normal, masks 0 or 1, other integers bytes (every vocabulary here is larger)."""
    shape = [d if isinstance(d, int) else symbols.get(d, 2) for d in spec.shape]
    dtype = np.dtype(DTYPES[spec.type])
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 2 if "mask" in spec.name or dtype.kind == "b" else 256, shape).astype(dtype)


def write(folder, kind, name, array):
    # NumPy makes a contiguous scalar one-dimensional.
    shape = list(np.shape(array))
    array = np.ascontiguousarray(array)
    file = f"{kind}_{name}.bin".replace("/", "_")
    array.tofile(folder / file)
    return {"name": name, "dtype": array.dtype.name, "shape": shape, "file": file}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--symbol", action="append", default=[], metavar="NAME=VALUE")
    arguments = parser.parse_args()
    symbols = {name: int(value) for name, value in (s.split("=") for s in arguments.symbol)}
    model = session(arguments.model)
    names = [o.name for o in model.get_outputs()]
    for seed in map(int, arguments.seeds.split(",")):
        rng = np.random.default_rng(seed)
        feed = {spec.name: random_input(rng, spec, symbols) for spec in model.get_inputs()}
        outputs = model.run(names, feed)
        folder = pathlib.Path(arguments.out) / str(seed)
        folder.mkdir(parents=True, exist_ok=True)
        case = {
            "inputs": [write(folder, "in", name, array) for name, array in feed.items()],
            "outputs": [write(folder, "out", name, array) for name, array in zip(names, outputs)],
        }
        (folder / "case.json").write_text(json.dumps(case))


if __name__ == "__main__":
    main()
