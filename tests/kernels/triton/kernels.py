"""Kernels in Triton. Each has the signature and constants that it is compiled with."""

import triton
import triton.language as tl


@triton.jit
def triton_add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)


@triton.jit
def triton_softmax(x, out, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * n + at, mask=at < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * n + at, e / tl.sum(e, axis=0), mask=at < n)


@triton.jit
def triton_layer_norm(x, gain, bias, out, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    mask = at < n
    v = tl.load(x + row * n + at, mask=mask, other=0.0)
    mean = tl.sum(v, axis=0) / n
    d = tl.where(mask, v - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(d * d, axis=0) / n + 1e-5)
    tl.store(out + row * n + at, d * scale * tl.load(gain + at, mask=mask) + tl.load(bias + at, mask=mask), mask=mask)


@triton.jit
def triton_matmul(a, b, c, n, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows, columns, k = tl.program_id(0) * M + tl.arange(0, M), tl.program_id(1) * N + tl.arange(0, N), tl.arange(0, K)
    left, right = a + rows[:, None] * n + k[None, :], b + k[:, None] * n + columns[None, :]
    total = tl.zeros((M, N), dtype=tl.float32)
    for _ in range(0, n, K):
        total += tl.dot(tl.load(left), tl.load(right))
        left += K
        right += K * n
    tl.store(c + rows[:, None] * n + columns[None, :], total)


@triton.jit
def triton_attention(q, k, v, out, n, M: tl.constexpr, D: tl.constexpr):
    rows, depth = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, D)
    query = tl.load(q + rows[:, None] * D + depth[None, :])
    high = tl.full((M,), -float("inf"), tl.float32)
    weight = tl.zeros((M,), tl.float32)
    total = tl.zeros((M, D), tl.float32)
    for base in range(0, n, M):
        keys = base + tl.arange(0, M)
        score = tl.dot(query, tl.load(k + keys[None, :] * D + depth[:, None])) * 0.17677669
        top = tl.maximum(high, tl.max(score, 1))
        share, old = tl.exp(score - top[:, None]), tl.exp(high - top)
        total = total * old[:, None] + tl.dot(share.to(tl.float16), tl.load(v + keys[:, None] * D + depth[None, :]))
        weight = weight * old + tl.sum(share, 1)
        high = top
    tl.store(out + rows[:, None] * D + depth[None, :], total / weight[:, None])


@triton.jit
def triton_dropout(x, out, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = tl.rand(seed, at) > p
    v = tl.load(x + at, mask=at < n)
    tl.store(out + at, tl.where(keep, v / (1 - p), 0.0), mask=at < n)


@triton.jit
def triton_sum(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out, tl.sum(tl.load(x + at, mask=at < n, other=0), axis=0))


@triton.jit
def triton_cumsum(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.cumsum(tl.load(x + at), axis=0))


@triton.jit
def triton_sort(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.sort(tl.load(x + at)))


@triton.jit
def triton_histogram(x, bins, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(bins + tl.load(x + at, mask=at < n, other=0).to(tl.int32), 1, mask=at < n)


F32, F16, I32, U8 = "*fp32", "*fp16", "*i32", "*u8"

# Function, types of its arguments, constants.
KERNELS = [
    (triton_add, [F32, F32, F32, "i32"], {"BLOCK": 256}),
    (triton_softmax, [F32, F32, "i32"], {"BLOCK": 256}),
    (triton_layer_norm, [F32, F32, F32, F32, "i32"], {"BLOCK": 256}),
    (triton_matmul, [F16, F16, F32, "i32"], {"M": 32, "N": 32, "K": 32}),
    (triton_attention, [F16, F16, F16, F32, "i32"], {"M": 32, "D": 32}),
    (triton_dropout, [F32, F32, "i32", "fp32", "i32"], {"BLOCK": 256}),
    (triton_sum, [I32, I32, "i32"], {"BLOCK": 256}),
    (triton_cumsum, [I32, I32], {"BLOCK": 256}),
    (triton_sort, [I32, I32], {"BLOCK": 128}),
    (triton_histogram, [U8, I32, "i32"], {"BLOCK": 256}),
]
