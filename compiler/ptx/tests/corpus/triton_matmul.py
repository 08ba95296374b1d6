"""Compiles a product through tensor maps for sm_90 (wgmma) and sm_100 (tcgen05): triton_matmul.py FOLDER. Needs Triton, no GPU."""

import pathlib
import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def matmul(a, b, c, n, k, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    row = tl.program_id(0) * ROWS
    column = tl.program_id(1) * COLUMNS
    sum = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for step in tl.range(0, k, DEPTH, num_stages=2):
        sum = tl.dot(a.load([row, step]), b.load([step, column]), sum)
    places = (row + tl.arange(0, ROWS))[:, None] * n + (column + tl.arange(0, COLUMNS))[None, :]
    tl.store(c + places, sum)


folder = pathlib.Path(sys.argv[1])
signature = {"a": "tensordesc<fp16[64, 16]>", "b": "tensordesc<fp16[16, 16]>", "c": "*fp32", "n": "i32", "k": "i32"}
signature |= {"ROWS": "constexpr", "COLUMNS": "constexpr", "DEPTH": "constexpr"}
for architecture, unit in ((90, "wgmma"), (100, "tcgen05")):
    source = ASTSource(matmul, signature, constexprs={(5,): 64, (6,): 16, (7,): 16})
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options={"num_warps": 4})
    (folder / f"triton_{unit}.ptx").write_text(compiled.asm["ptx"])
