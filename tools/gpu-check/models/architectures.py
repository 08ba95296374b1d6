#!/usr/bin/env python3
"""Runs small exported architectures on a device and compares them with ONNX Runtime on this machine.

architectures.py --output FILE.json [--models FOLDER] [--device cuda:0] [--filter REGEX]

The folder has the files and the table of tests/fixtures/architectures. Each architecture is compiled with open sizes and run with the two bindings of the table and with a
batch of 8, and compiled for batches of 1 and 8 alone. Exit status 1 if one is wrong or fails.
"""

import json
import pathlib
import re
import sys
import time

import numpy as np

import farm
from daemon import compile_model
from oracle import random_input, session

# Largest difference of an element, relative to the largest element of its output.
TOLERANCE = 1e-3

TABLE = {}


def bindings(name):
    """The forms in which an architecture runs: sizes that are fixed when it is compiled, and those it runs with."""
    kind, shapes = name.rsplit("/", 1)[1], TABLE[name.rsplit("/", 1)[0]]
    if kind == "open":
        return None, shapes + ([{**shapes[0], "batch": 8}] if "batch" in shapes[0] else [])
    sizes = {**shapes[0], "batch": int(kind)}
    return sizes, [sizes]


def check(daemon, name, options):
    fixed, shapes = bindings(name)
    onnx = pathlib.Path(options.models) / (name.split("/")[0] + ".onnx")
    plain = name.replace("/", "-")
    flags = [flag for size in (fixed or {}).items() for flag in ("--fix", "%s=%d" % size)]
    bundle = daemon.repository / f"{plain}.kg"
    compile_model(options.atoll, onnx, bundle, options.target, flags, cache=daemon.folder)
    metadata = daemon.load(plain)
    oracle = session(str(onnx))
    largest = 0.0
    for seed, sizes in enumerate(shapes):
        generator = np.random.default_rng(seed)
        feed = {spec.name: random_input(generator, spec, sizes) for spec in oracle.get_inputs()}
        expected = oracle.run([spec["name"] for spec in metadata["outputs"]], feed)
        found = daemon.infer(plain, metadata, [feed[spec["name"]] for spec in metadata["inputs"]])
        for spec, one, other in zip(metadata["outputs"], found, expected):
            place = f"output {spec['name']} with {sizes}"
            if one.shape != other.shape:
                return {"outcome": "wrong", "reason": f"{place}: {list(one.shape)} instead of {list(other.shape)}"}
            if one.size == 0:
                continue
            scale = max(float(np.abs(other.astype(np.float64)).max()), 1e-6)
            apart = float(np.abs(one.astype(np.float64) - other.astype(np.float64)).max()) / scale
            # A comparison with NaN is false.
            if not apart <= TOLERANCE:
                reason = f"{place}: a relative difference of {apart:.2e}"
                return {"outcome": "wrong", "reason": reason, "difference": apart}
            largest = max(largest, apart)
    daemon.unload(plain)
    bundle.unlink()
    return {"outcome": "passed", "difference": largest}


def main():
    parser = farm.arguments(__doc__)
    parser.add_argument("--models", default=str(pathlib.Path(__file__).resolve().parent / "architectures"))
    options = parser.parse_args()
    began = time.monotonic()
    table = json.loads((pathlib.Path(options.models) / "architectures.json").read_text())
    TABLE.update((row["name"], row["shapes"]) for row in table)
    names = [f"{name}/open" for name in TABLE]
    names += [f"{name}/{batch}" for name, shapes in TABLE.items() if "batch" in shapes[0] for batch in (1, 8)]
    pattern = re.compile(options.filter)
    rows = farm.run(check, [name for name in names if pattern.search(name)], options)
    sys.exit(0 if farm.summarise("exported architectures", rows, began) else 1)


if __name__ == "__main__":
    main()
