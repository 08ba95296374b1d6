"""Writes a folder for `atoll import`: manifest.json, kernels in PTX, constants.safetensors. docs/guide/import.md describes it.

Needs nothing but Python and NumPy.
"""

import json
import pathlib
import struct

import numpy as np

FORMAT = 1

# The names of a NumPy type in the manifest and in safetensors files.
TYPES = {
    "bool": ("bool", "BOOL"), "uint8": ("u8", "U8"), "int8": ("i8", "I8"), "uint16": ("u16", "U16"), "int16": ("i16", "I16"),
    "uint32": ("u32", "U32"), "int32": ("i32", "I32"), "uint64": ("u64", "U64"), "int64": ("i64", "I64"),
    "float16": ("f16", "F16"), "bfloat16": ("bf16", "BF16"), "float32": ("f32", "F32"), "float64": ("f64", "F64"),
}  # fmt: skip


def dtype_of(name):
    """The manifest's name of the NumPy type `name`."""
    if str(name) not in TYPES:
        raise SystemExit(f"elements of type {name} have no equal in a kernel graph")
    return TYPES[str(name)][0]


def raw(format, *values):
    """A parameter's bytes, by a format of `struct`."""
    return {"bytes": struct.pack("<" + format, *values).hex()}


class Manifest:
    """Builds a function: add its parts in any order, and steps in the order in which they run; then call `write`."""

    def __init__(self, name, producer):
        self.name, self.producer = name, producer
        self.files, self.kernels, self.buffers, self.steps, self.constants = {}, {}, {}, [], {}

    def ptx(self, file, text):
        """Adds a file of kernels; its path in the folder is `file`."""
        if self.files.setdefault(file, text) != text:
            raise ValueError(f"{file} is written twice with different texts")

    def kernel(self, name, file, entry):
        """Names the kernel `entry` of a file `name`, for several files with the same kernel name."""
        self.kernels[name] = {"ptx": file, "entry": entry}

    def buffer(self, name, kind, dtype, shape):
        """Adds an input, output or temp."""
        if name in self.buffers:
            raise ValueError(f"there are two buffers `{name}`")
        self.buffers[name] = {"kind": kind, "dtype": dtype, "shape": [d if isinstance(d, str) else int(d) for d in shape]}

    def constant(self, name, array):
        """Adds a constant with its content."""
        array = np.asarray(array)
        self.buffer(name, "const", dtype_of(array.dtype), array.shape)
        self.buffers[name]["file"] = "constants.safetensors"
        self.constants[name] = array

    def launch(self, kernel, grid, block, args, shared=0, reads=None, writes=None):
        """Adds a launch. An argument is a buffer's name, {"buffer", "offset"}, a number, or a result of `raw`."""
        step = {"kernel": kernel, "grid": list(grid), "block": list(block), "args": list(args)}
        if shared:
            step["shared"] = shared
        for key, names in (("reads", reads), ("writes", writes)):
            if names is not None:
                step[key] = sorted(set(names))
        self.steps.append(step)

    def copy(self, source, destination):
        """Adds a copy of a whole buffer to another of the same size."""
        self.steps.append({"copy": {"from": source, "to": destination}})

    def write(self, folder):
        """Writes the folder without unused parts."""
        folder = pathlib.Path(folder)
        used = self._used()
        buffers = {name: buffer for name, buffer in self.buffers.items() if buffer["kind"] in ("input", "output") or name in used}
        for file, text in self.files.items():
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        constants = {name: array for name, array in self.constants.items() if name in used}
        if constants:
            save_safetensors(folder / "constants.safetensors", constants)
        document = {"format": FORMAT, "producer": self.producer, "name": self.name, "ptx": list(self.files)}
        if self.kernels:
            document["kernels"] = self.kernels
        document |= {"buffers": buffers, "steps": self.steps}
        (folder / "manifest.json").write_text(as_text(document))
        size = sum(array.nbytes for array in constants.values())
        print(f"{folder}: {len(self.steps)} steps, {len(buffers)} buffers, {size} bytes of constants")

    def _used(self):
        used = set()
        for step in self.steps:
            for argument in step.get("args", []):
                used.add(argument.get("buffer") if isinstance(argument, dict) else argument)
            used.update(value for key, value in step.get("copy", {}).items() if key in ("from", "to"))
            used.update([step["fill"]["to"]] if "fill" in step else [])
            used.update(step.get("reads", []), step.get("writes", []))
        return used


def as_text(document):
    """JSON with one buffer, kernel or step on a line."""
    parts = []
    for key, value in document.items():
        if isinstance(value, dict):
            lines = [f"  {json.dumps(name)}: {json.dumps(item)}" for name, item in value.items()]
            value = "{\n" + ",\n".join(lines) + "\n}"
        elif key == "steps":
            value = "[\n" + ",\n".join(f"  {json.dumps(item)}" for item in value) + "\n]"
        else:
            value = json.dumps(value)
        parts.append(f"{json.dumps(key)}: {value}")
    return "{" + ",\n".join(parts) + "}\n"


def save_safetensors(path, tensors):
    """A safetensors file: eight bytes with the length of a JSON header, the header, the elements."""
    header, at = {}, 0
    for name, array in tensors.items():
        header[name] = {"dtype": TYPES[str(array.dtype)][1], "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())
