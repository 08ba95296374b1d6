#!/usr/bin/env python3
"""Compares what devices computed with NumPy: check.py FOLDER. Prints a line for each result that differs, and how many there were.

FOLDER/manifest.json lists runs; FOLDER/memory.bin holds the memory of each before and after.
"""

import inspect
import json
import pathlib
import sys

import numpy as np
import reference

TYPES = {"f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64}
TYPES |= {f"{sign}{bits}": np.dtype(f"{sign}{bits // 8}") for sign in "iu" for bits in (8, 16, 32, 64)}


def main():
    folder = pathlib.Path(sys.argv[1])
    memory = (folder / "memory.bin").read_bytes()
    runs = json.loads((folder / "manifest.json").read_text())
    failures = sum(not check(run, memory) for run in runs)
    print(f"{len(runs)} runs compared, {failures} differ")
    sys.exit(failures > 0)


def array(memory, argument, at):
    dtype = np.dtype(TYPES[argument["type"]])
    count = int(np.prod(argument["shape"]))
    return np.frombuffer(memory, dtype, count, argument[at]).reshape(argument["shape"]).copy()


def check(run, memory):
    function = getattr(reference, run["case"])
    arguments = [array(memory, a, "before") if "shape" in a else a["value"] for a in run["args"]]
    shapes = {"grid": run["grid"], "block": run["block"]} if "grid" in inspect.signature(function).parameters else {}
    with np.errstate(all="ignore"):
        function(*arguments, **shapes)
    for index, (argument, expected) in enumerate(zip(run["args"], arguments)):
        if "shape" not in argument:
            continue
        found = array(memory, argument, "after")
        if run.get("compare"):
            expected, found = (getattr(reference, run["compare"])(a) if argument["use"] == "inout" else a for a in (expected, found))
        message = difference(found, expected, run["tolerance"])
        if message:
            print(f"{run['case']} ({run['ptx']}, grid {run['grid']}, block {run['block']}), argument {index}: {message}")
            return False
    return True


def difference(found, expected, tolerance):
    if tolerance == "exact":
        wrong = found.view(f"u{found.itemsize}") != expected.view(f"u{found.itemsize}")
    else:
        a, b = found.astype(np.float64), expected.astype(np.float64)
        wrong = ~(np.abs(a - b) <= tolerance * np.maximum(1, np.abs(b)))
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{wrong.sum()} of {wrong.size} elements, the first at {at}: {found[at]}, expected {expected[at]}"


main()
