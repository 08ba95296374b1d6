#!/usr/bin/env python3
"""Writes a folder for `atoll import` from a model of REEF: its schedule, kernels and parameters. Needs no GPU.

    from_reef.py resnet18 -o FOLDER [--arch 80] [--random SEED]

`resnet18` is a folder of REEF's repository, with resnet18.json, resnet18.cu or resnet18.ptx, and resnet18.param. REEF's kernels are HIP source that TVM
wrote for AMD GPUs; except for a few names it is CUDA C, so NVRTC compiles it. Code objects for AMD GPUs (.co, .hsaco) are not supported. The repository has
parameters for few models; --random generates them.
"""

import argparse
import json
import pathlib
import re
import struct

import numpy as np
import nvrtc
from manifest import Manifest, dtype_of

# REEF's names of element types.
TYPES = {"float32": np.float32, "int64": np.int64, "int32": np.int32, "byte": np.uint8, "uint1": np.bool_}
INPUT, OUTPUT = re.compile(r"(data|input)\d*"), "output"
MAGIC = b"TVM_MODEL_PARAMS\0"

# Functions of HIP's header and device library, by their CUDA equivalents.
HIP = """
#define __ocml_fma_f32(a, b, c) __fmaf_rn(a, b, c)
#define __ocml_exp_f32(a) expf(a)
#define __ocml_sqrt_f32(a) sqrtf(a)
#define __ocml_erf_f32(a) erff(a)
#define __ocml_tanh_f32(a) tanhf(a)
#define __ocml_log_f32(a) logf(a)
#define __ocml_pow_f32(a, b) powf(a, b)
"""


def parameters(path):
    """The arrays of a .param file: names that end in NUL, counts and elements of 32 bits."""
    data = path.read_bytes()
    if not data.startswith(MAGIC):
        raise SystemExit(f"{path}: does not begin with TVM_MODEL_PARAMS")
    at, arrays = len(MAGIC), {}
    try:
        (count,) = struct.unpack_from("<Q", data, at)
        at += 8
        for _ in range(count):
            end = data.index(b"\0", at)
            (size,) = struct.unpack_from("<Q", data, end + 1)
            name, start = data[at:end].decode(), end + 9
            at = start + 4 * size
            if at > len(data):
                raise ValueError
            arrays[name] = np.frombuffer(data[start:at], np.float32)
    except (ValueError, struct.error):
        raise SystemExit(f"{path}: ends within its parameters") from None
    return arrays


def kernels(folder, name, arch):
    """The PTX of the kernels: the file of the model, or compiled from its source."""
    ptx, source = folder / f"{name}.ptx", folder / f"{name}.cu"
    if ptx.exists():
        return ptx.read_text(), "PTX"
    if source.exists():
        text = source.read_text()
        waves = [kernel for kernel in re.split(r"(?=extern \"C\" __global__)", text) if "__hip_ds_bpermute" in kernel]
        if waves:
            names = ", ".join(re.search(r"void (\w+)\(", kernel)[1] for kernel in waves[:3]) + ("…" if len(waves) > 3 else "")
            raise SystemExit(
                f"{source}: {len(waves)} kernels ({names}) exchange values between the 64 lanes of an AMD wave (__hip_ds_bpermute), which a warp of 32 lanes "
                f"cannot; have TVM write the model for CUDA, and put its PTX here as {name}.ptx"
            )
        # Some sources define a name themselves; their definition takes precedence.
        own = set(re.findall(r"^#define (\w+)", text, re.M))
        header = "\n".join(line for line in HIP.splitlines() if not (found := re.match(r"#define (\w+)", line)) or found[1] not in own)
        return nvrtc.ptx(text, arch, headers=[("hip/hip_runtime.h", header)]), nvrtc.version()
    objects = [path.name for path in folder.glob("*.co")] + [path.name for path in folder.glob("*.hsaco")]
    if objects:
        raise SystemExit(f"{folder} has only code objects for AMD GPUs ({', '.join(objects)}); put the source {name}.cu beside them, of which PTX can be made")
    raise SystemExit(f"{folder} has neither {name}.cu nor {name}.ptx")


class Exporter:
    def __init__(self, schedule, manifest, given, seed):
        self.schedule, self.manifest, self.given = schedule, manifest, given
        self.random = None if seed is None else np.random.default_rng(seed)
        self.names = {}

    def export(self):
        for index in range(len(self.schedule["storage"])):
            self.names[index] = self.storage(index)
        for kernel in self.schedule["kernels"]:
            launch, args = kernel["launch_params"], [self.names[index] for index in kernel["args"]]
            # The source declares the bytes of shared memory.
            self.manifest.launch(kernel["name"], launch[:3], launch[3:], args)

    def storage(self, index):
        """A storage as a buffer: an input, an output, a parameter or a temporary."""
        storage = self.schedule["storage"][index]
        name, size, dtype = storage["name"], storage["size"], TYPES.get(storage["stype"])
        if dtype is None:
            raise SystemExit(f"storage {index} (`{name}`) has elements of type {storage['stype']}; known are {', '.join(TYPES)}")
        kind = "input" if INPUT.fullmatch(name) else "output" if name == OUTPUT else "temp"
        if kind == "temp" and index in self.schedule["args"]:
            self.manifest.constant(name, self.parameter(name, size, dtype))
            return name
        name = name if kind != "temp" else f"{name}_{index}"
        self.manifest.buffer(name, kind, dtype_of(np.dtype(dtype)), [size])
        return name

    def parameter(self, name, size, dtype):
        if name in self.given:
            if self.given[name].size != size:
                raise SystemExit(f"parameter `{name}` has {self.given[name].size} elements, its storage {size}")
            return self.given[name].astype(dtype)
        if self.random is None:
            raise SystemExit(f"there is no parameter `{name}` in the .param file; --random SEED makes up what is missing")
        return (self.random.standard_normal(size) / max(size, 1) ** 0.5).astype(dtype)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, help="the model's folder")
    parser.add_argument("-o", "--output", required=True, help="the folder to write")
    parser.add_argument("--arch", type=int, default=80, help="compute capability: 80 is 8.0 [80]")
    parser.add_argument("--random", type=int, metavar="SEED", help="make up parameters that are missing")
    args = parser.parse_args()
    name = args.model.name
    schedule = json.loads((args.model / f"{name}.json").read_text())
    missing = [key for key in ("storage", "kernels", "args") if key not in schedule]
    if missing:
        raise SystemExit(f"{name}.json is no schedule of REEF: there is no `{missing[0]}`")
    text, compiler = kernels(args.model, name, args.arch)
    manifest = Manifest(name, f"REEF, {compiler}")
    manifest.ptx("kernels/0.ptx", text)
    file = args.model / f"{name}.param"
    Exporter(schedule, manifest, parameters(file) if file.exists() else {}, args.random).export()
    manifest.write(args.output)


if __name__ == "__main__":
    main()
