"""The kernels of from_triton.py: what a user of Triton writes."""

import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)


@triton.jit
def softmax(x, out, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * n + at, mask=at < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * n + at, e / tl.sum(e, axis=0), mask=at < n)


@triton.jit
def layer_norm(x, gain, bias, out, n, epsilon, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    mask = at < n
    v = tl.load(x + row * n + at, mask=mask, other=0.0)
    mean = tl.sum(v, axis=0) / n
    d = tl.where(mask, v - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(d * d, axis=0) / n + epsilon)
    tl.store(out + row * n + at, d * scale * tl.load(gain + at, mask=mask) + tl.load(bias + at, mask=mask), mask=mask)


@triton.jit
def linear(x, w, bias, out, m, n, k, ACTIVATION: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """out[m, n] = activation(x[m, k] w[k, n] + bias[n]); products in half precision are summed in single."""
    rows, columns, inner = tl.program_id(0) * M + tl.arange(0, M), tl.program_id(1) * N + tl.arange(0, N), tl.arange(0, K)
    total = tl.zeros((M, N), dtype=tl.float32)
    for base in range(0, k, K):
        left = tl.load(x + rows[:, None] * k + (base + inner)[None, :], mask=(rows[:, None] < m) & ((base + inner)[None, :] < k), other=0.0)
        right = tl.load(w + (base + inner)[:, None] * n + columns[None, :], mask=((base + inner)[:, None] < k) & (columns[None, :] < n), other=0.0)
        total += tl.dot(left, right, input_precision="ieee")
    total += tl.load(bias + columns, mask=columns < n, other=0.0)[None, :]
    if ACTIVATION == "relu":
        total = tl.maximum(total, 0.0)
    tl.store(out + rows[:, None] * n + columns[None, :], total.to(out.dtype.element_ty), mask=(rows[:, None] < m) & (columns[None, :] < n))
