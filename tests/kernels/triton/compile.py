"""Compiles kernels.py without a GPU: compile.py FOLDER"""

import pathlib
import sys

import triton
from kernels import KERNELS
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

folder = pathlib.Path(sys.argv[1])
for function, types, constants in KERNELS:
    names = function.arg_names
    signature = dict(zip(names, types)) | {name: "constexpr" for name in constants}
    source = ASTSource(function, signature, constexprs={(names.index(name),): value for name, value in constants.items()})
    compiled = triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"num_warps": 4})
    name = function.fn.__name__
    path = folder / f"{name}.triton.ptx"
    path.write_text(compiled.asm["ptx"])
    print(path.name, path.stat().st_size, "bytes,", compiled.metadata.shared, "bytes of shared memory")
