#!/usr/bin/env python3
"""Compiles kernels of Triton ahead of time and writes a folder for `atoll import`. Needs no GPU.

    from_triton.py add|softmax|matmul|mlp -o FOLDER [--arch 80] [--seed 7]

To export your own kernels, make a `Function`, compile kernels with `kernel`, launch them, and call `write`; see `examples` below.
"""

import argparse
import os

# The compiler warns without this option. Products may be fused with sums.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import numpy as np
import triton
from manifest import Manifest, raw
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

# Formats of `struct` for scalars, by Triton's name of their type.
SCALARS = {"i1": "?", "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q", "u64": "Q", "fp16": "e", "fp32": "f", "fp64": "d"}


class Function:
    """A function of Triton kernels."""

    def __init__(self, name, arch=80):
        self.manifest = Manifest(name, f"triton {triton.__version__}")
        self.target, self.compiled = GPUTarget("cuda", arch, 32), {}

    def kernel(self, function, types, constants, num_warps=4, aligned=True):
        """Compiles `function` for parameters of these types ("*fp32", "i32") and constants; `aligned`: pointers are multiples of 16, as buffers are."""
        names = function.arg_names
        key = (function.fn.__name__, tuple(types), tuple(sorted(constants.items())), num_warps, aligned)
        if key not in self.compiled:
            signature = dict(zip(names, types)) | {name: "constexpr" for name in constants}
            attributes = {(i,): [["tt.divisibility", 16]] for i, ty in enumerate(types) if aligned and ty.startswith("*")}
            source = ASTSource(function, signature, constexprs={(names.index(name),): value for name, value in constants.items()}, attrs=attributes)
            made = triton.compile(source, target=self.target, options={"num_warps": num_warps})
            name = f"{made.metadata.name}_{len(self.compiled)}"
            file = f"kernels/{name}.ptx"
            self.manifest.ptx(file, without_debug_information(made.asm["ptx"]))
            self.manifest.kernel(name, file, made.metadata.name)
            # Kernels with descriptors, and profiling, use scratch in global memory, to which the two hidden parameters point.
            if getattr(made.metadata, "global_scratch_size", 0) or getattr(made.metadata, "profile_scratch_size", 0):
                raise SystemExit(f"{name} needs scratch memory of its launcher, which is not exported")
            self.compiled[key] = (name, num_warps * 32, made.metadata.shared, hidden_parameters(made.asm["ptx"], types))
        return (*self.compiled[key], types)

    def launch(self, kernel, grid, args):
        """Launches a kernel that `kernel` returned; a scalar gets the type of its parameter."""
        name, threads, shared, hidden, types = kernel
        args = [argument if isinstance(argument, (str, dict)) else raw(SCALARS[ty], argument) for argument, ty in zip(args, types, strict=True)]
        self.manifest.launch(name, grid, [threads], args + [raw("Q", 0)] * hidden, shared)


def hidden_parameters(ptx, types):
    """The number of parameters that the compiler appended to the user's."""
    signature = ptx[ptx.index(".entry") :]
    return signature[: signature.index(")")].count(".param") - len(types)


def without_debug_information(ptx):
    """The PTX without line numbers and DWARF sections, which contain folders of this machine."""
    lines = [line for line in ptx.splitlines() if not line.lstrip().startswith((".loc", ".file"))]
    if any(line.lstrip().startswith(".section") for line in lines):
        lines = lines[: next(i for i, line in enumerate(lines) if line.lstrip().startswith(".section"))]
    return "\n".join(lines).replace(", debug", "") + "\n"


def up(n, d):
    return -(-n // d)


def power(n):
    return 1 << max(n - 1, 1).bit_length()


def add(arch, _):
    import triton_kernels as k

    f, n = Function("triton_add", arch), 1000
    for name, kind in (("x", "input"), ("y", "input"), ("out", "output")):
        f.manifest.buffer(name, kind, "f32", [n])
    f.launch(f.kernel(k.add, ["*fp32"] * 3 + ["i32"], {"BLOCK": 256}), [up(n, 256)], ["x", "y", "out", n])
    return f


def softmax(arch, _):
    import triton_kernels as k

    f, rows, n = Function("triton_softmax", arch), 17, 781
    f.manifest.buffer("x", "input", "f32", [rows, n])
    f.manifest.buffer("out", "output", "f32", [rows, n])
    f.launch(f.kernel(k.softmax, ["*fp32"] * 2 + ["i32"], {"BLOCK": power(n)}), [rows], ["x", "out", n])
    return f


def linear(f, x, w, bias, out, m, n, inner, activation="", precision="fp16", out_precision="fp32"):
    import triton_kernels as k

    tile = {"M": 16, "N": 16, "K": 16}
    types = [f"*{precision}", f"*{precision}", "*fp32", f"*{out_precision}"] + ["i32"] * 3
    kernel = f.kernel(k.linear, types, {"ACTIVATION": activation} | tile)
    f.launch(kernel, [up(m, tile["M"]), up(n, tile["N"])], [x, w, bias, out, m, n, inner])


def matmul(arch, rng):
    f, m, n, inner = Function("triton_matmul", arch), 35, 45, 50
    f.manifest.buffer("a", "input", "f16", [m, inner])
    f.manifest.buffer("b", "input", "f16", [inner, n])
    f.manifest.buffer("out", "output", "f32", [m, n])
    f.manifest.constant("bias", rng.standard_normal(n).astype(np.float32))
    linear(f, "a", "b", "bias", "out", m, n, inner)
    return f


def mlp(arch, rng):
    """Normalised rows through three layers and a softmax: seven launches of four kernels, weights as constants."""
    import triton_kernels as k

    f, rows, sizes = Function("triton_mlp", arch), 8, [24, 40, 16, 10]
    f.manifest.buffer("x", "input", "f32", [rows, sizes[0]])
    f.manifest.buffer("y", "output", "f32", [rows, sizes[-1]])
    norm = f.kernel(k.layer_norm, ["*fp32"] * 4 + ["i32", "fp32"], {"BLOCK": 64})
    at = "x"
    for layer, (inner, n) in enumerate(zip(sizes, sizes[1:])):
        f.manifest.constant(f"gain{layer}", rng.uniform(0.5, 1.5, inner).astype(np.float32))
        f.manifest.constant(f"shift{layer}", rng.standard_normal(inner).astype(np.float32))
        f.manifest.constant(f"w{layer}", (rng.standard_normal((inner, n)) / inner**0.5).astype(np.float32))
        f.manifest.constant(f"b{layer}", rng.standard_normal(n).astype(np.float32))
        f.manifest.buffer(f"n{layer}", "temp", "f32", [rows, inner])
        f.manifest.buffer(f"h{layer}", "temp", "f32", [rows, n])
        f.launch(norm, [rows], [at, f"gain{layer}", f"shift{layer}", f"n{layer}", inner, 1e-5])
        last = layer == len(sizes) - 2
        linear(f, f"n{layer}", f"w{layer}", f"b{layer}", f"h{layer}", rows, n, inner, "" if last else "relu", "fp32")
        at = f"h{layer}"
    f.launch(f.kernel(k.softmax, ["*fp32"] * 2 + ["i32"], {"BLOCK": 16}), [rows], [at, "y", sizes[-1]])
    return f


def main():
    examples = {"add": add, "softmax": softmax, "matmul": matmul, "mlp": mlp}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("example", choices=examples)
    parser.add_argument("-o", "--output", required=True, help="the folder to write")
    parser.add_argument("--arch", type=int, default=80, help="compute capability: 80 is 8.0 [80]")
    parser.add_argument("--seed", type=int, default=7, help="of the constants [7]")
    args = parser.parse_args()
    examples[args.example](args.arch, np.random.default_rng(args.seed)).manifest.write(args.output)


if __name__ == "__main__":
    main()
