"""What each kernel of the corpus should compute, in NumPy.

A function has the name of its case and the kernel's arguments: arrays for memory, which it fills or changes in place, and numbers.
"""

import functools
import operator

import numpy as np

F32, F64 = np.float32, np.float64
ERF = np.vectorize(__import__("math").erf, otypes=[F64])


def bfloat(bits):
    return (bits.astype(np.uint32) << 16).view(F32)


def to_bfloat(values):
    bits = values.astype(F32).view(np.uint32).astype(np.uint64)
    return bfloat(((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16))


def directed(exact, towards):
    """Rounds float64 or long double values to float32 towards one side: -1 down, 1 up, 0 to zero."""
    near = exact.astype(F32)
    wide = near.astype(exact.dtype)
    down = np.where(wide > exact, np.nextafter(near, F32(-np.inf)), near)
    up = np.where(wide < exact, np.nextafter(near, F32(np.inf)), near)
    return {-1: down, 1: up, 0: np.where(exact < 0, up, down)}[towards].astype(F32)


# elementwise


def saxpy(x, y, a, n):
    y[:n] = F32(a) * x[:n] + y[:n]


def grid_stride(x, y, n):
    y[:] = np.sqrt(np.abs(x)) + 1 / (1 + x * x)


def activations(x, y, n):
    v = x.astype(F64)
    y[0] = np.maximum(v, 0)
    y[1] = 1 / (1 + np.exp(-v))
    y[2] = 0.5 * v * (1 + np.tanh(0.7978845608 * (v + 0.044715 * v**3)))
    y[3] = np.log1p(np.exp(v))
    y[4] = np.sin(v) * np.cos(2 * v)


def clamp_bytes(x, y, z, n):
    y[:] = np.clip(x, 0, 255)
    z[:] = (x >> 3).astype(np.int16)


def wide_integers(a, b, out, n):
    x, y = [int(v) & (2**64 - 1) for v in a], [int(v) & (2**64 - 1) for v in b]
    mask = 2**64 - 1
    out[0] = [(p * q + (p ^ q >> 7)) & mask for p, q in zip(x, y)]
    out[1] = [p * q >> 64 for p, q in zip(x, y)]
    out[2] = [p // q if q else 0 for p, q in zip(x, y)]
    out[3] = [p % q if q else p for p, q in zip(x, y)]
    out[4] = [(int(abs(int(p)) // abs(int(q)) * (1 if (p < 0) == (q < 0) else -1)) if q else 0) & mask for p, q in zip(a, b)]


def bit_tricks(a, b, out, n):
    mask = 0xFFFFFFFF

    def signed(v, bits=32):
        return (v & (1 << bits) - 1) - (1 << bits if v >> (bits - 1) & 1 else 0)

    for i, (x, y) in enumerate(zip(a.tolist(), b.tolist())):
        out[0, i] = bin(x).count("1") + 32 * (32 - x.bit_length())
        pool = x | y << 32
        chosen = sum((pool >> 8 * (0x5140 >> 4 * k & 7) & 0xFF) << 8 * k for k in range(4))
        out[1, i] = int(f"{x:032b}"[::-1], 2) ^ chosen
        pair = y << 32 | x
        left = pair << (y & 31) >> 32 & mask
        right = pair >> min(y & 63, 32) & mask
        out[2, i] = (left + right) & mask
        first = (x & -x).bit_length()
        dot = sum(signed(x >> 8 * k, 8) * signed(y >> 8 * k, 8) for k in range(4)) + 7
        out[3, i] = (first + dot) & mask
        sad = abs(signed(x) - signed(y)) + 5
        product = signed(x, 24) * signed(y, 24)
        out[4, i] = (sad + (x * y >> 32) + product) & mask
        out[5, i] = (y % 97 + x // (y | 1)) & mask


def rounding(a, b, out, n):
    x, y = a.astype(np.longdouble), b.astype(np.longdouble)
    out[0] = directed(x + y, 0)
    out[1] = directed(x + y, 1)
    out[2] = directed(x * y, -1)
    out[3] = directed(x * y + x, 0)
    out[4] = directed(x / y, 1)
    out[5] = directed(np.sqrt(np.abs(x)), -1)
    whole = np.rint((a * F32(1000)).astype(F64))
    terms = [directed(whole, 0), np.rint(b), np.floor(a), np.ceil(b), np.trunc(a)]
    total = terms[0]
    for term in terms[1:]:
        total = (total + term).astype(F32)
    out[6] = total
    out[7] = np.clip(a * b, 0, 1)


def doubles(a, b, out, n):
    product = (a.astype(np.longdouble) * b + 1).astype(F64)
    out[0] = product / (1 + np.abs(a))
    out[1] = np.sqrt(np.abs(b)) - a.astype(F32).astype(F64)
    out[2] = np.trunc(a * 1e6) + np.trunc(b)


def halves(a, b, out, n):
    x, y = a.astype(F64), b.astype(F64)
    out[0] = (x + y).astype(np.float16)
    out[1] = (x * y).astype(np.float16)
    out[2] = (x * y + x).astype(np.float16)
    out[3] = (a.astype(F32) / F32(3)).astype(np.float16)
    out[4] = np.where(a > b, a, -b)


def half_pairs(a, b, out, n):
    out[:] = (a.astype(F64) * b + np.minimum(a, b)).astype(np.float16)


def bfloats(a, b, out, n):
    out[:] = bfloat(a) * F32(2) + to_bfloat(bfloat(b) * F32(1.7))


def interleave(a, out, n):
    out[0::2] = a[:, [0, 2]]
    out[1::2] = a[:, [1, 3]]


def black_scholes(price, strike, years, call, put, n):
    s, x, t = (v.astype(F64) for v in (price, strike, years))
    d1 = (np.log(s / x) + (0.02 + 0.045) * t) / (0.3 * np.sqrt(t))
    n1, n2 = (0.5 * (1 + ERF(d / np.sqrt(2))) for d in (d1, d1 - 0.3 * np.sqrt(t)))
    discount = np.exp(-0.02 * t)
    call[:] = s * n1 - x * discount * n2
    put[:] = x * discount * (1 - n2) - s * (1 - n1)


def philox(out, key, n):
    c = [np.arange(n, dtype=np.uint64), *(np.full(n, v, np.uint64) for v in (0, 7, 11))]
    k, mask = [key, key ^ 0x12345678], np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [p1 >> np.uint64(32) ^ c[1] ^ np.uint64(k[0]), p1 & mask, p0 >> np.uint64(32) ^ c[3] ^ np.uint64(k[1]), p0 & mask]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    out[:] = c[0] ^ c[1] ^ c[2] ^ c[3]


# blocks


def block_sum(x, out, n):
    padded = np.zeros(len(out) * 256)
    padded[:n] = x
    out[:] = padded.reshape(-1, 256).sum(1)


def dynamic_sum(x, out, n):
    out[:] = x.sum(1)


def argmax(x, out, n):
    out[:] = x.argmax(1)


def scan_inclusive(x, out):
    out[:] = x.reshape(-1, 256).cumsum(1).reshape(-1)


def scan_exclusive(x, out):
    rows = x.reshape(-1, 256)
    out[:] = (rows.cumsum(1) - rows).reshape(-1)


def bitonic_sort(x):
    x[:] = np.sort(x.reshape(-1, 512)).reshape(-1)


def odd_even_sort(x, n):
    x[:] = np.sort(x.reshape(-1, n)).reshape(-1)


def transpose_naive(x, y, rows, columns):
    y[:] = x.T


transpose_tiled = transpose_naive


def permute_axes(x, y, a, b, c):
    y[:] = x.transpose(2, 0, 1)


def stencil_2d(x, y, n):
    p = np.pad(x, 1)
    y[:] = F32(0.5) * x + F32(0.125) * (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:])


def stencil_3d(x, y, n):
    inner = x[:-2, 1:-1, 1:-1] + x[2:, 1:-1, 1:-1] + x[1:-1, :-2, 1:-1] + x[1:-1, 2:, 1:-1] + x[1:-1, 1:-1, :-2] + x[1:-1, 1:-1, 2:]
    y[1:-1, 1:-1, 1:-1] = inner - 6 * x[1:-1, 1:-1, 1:-1]


def softmax_rows(x, y, n):
    e = np.exp(x.astype(F64) - x.max(1, keepdims=True))
    y[:] = e / e.sum(1, keepdims=True)


def layer_norm(x, gain, y, n):
    v = x.astype(F64)
    y[:] = (v - v.mean(1, keepdims=True)) / np.sqrt(v.var(1, keepdims=True) + 1e-5) * gain


def max_pool(x, y, n):
    y[:] = x.reshape(-1, n // 2, 2, n // 2, 2).max((2, 4))


def conv_direct(x, w, y, channels, n):
    p = np.pad(x.astype(F64), ((0, 0), (1, 1), (1, 1)))
    y[:] = sum(np.einsum("kc,chw->khw", w[:, :, i, j], p[:, i : i + n, j : j + n]) for i in range(3) for j in range(3))


def conv_depthwise(x, w, y, n):
    p = np.pad(x.astype(F64), ((0, 0), (1, 1), (1, 1)))
    y[:] = sum(w[:, 3 * i + j, None, None] * p[:, i : i + n, j : j + n] for i in range(3) for j in range(3))


def odd_blocks(x, y, *, grid, block):
    size = int(np.prod(block))
    count = grid[0] * size
    rows = x[:count].reshape(-1, size)
    y[:count] = (rows[:, ::-1] + np.arange(size)).reshape(-1)


def game_of_life(x, y, n):
    around = sum(np.roll(x.astype(int), (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j)
    y[:] = (around == 3) | ((around == 2) & (x > 0))


# matrices


def gemm_naive(a, b, c, m, n, k):
    c[:] = a.astype(F64) @ b


def gemm_tiled(a, b, c, n):
    c[:] = a.astype(F64) @ b


gemm_registers = gemm_double = gemm_wmma = gemm_mma = gemm_tiled


def gemm_bytes(a, b, c, n, words):
    c[:] = a.astype(int) @ b.astype(int).T


def gemv(a, x, y, n):
    y[:] = a.astype(F64) @ x


def attention(q, k, v, out, n):
    score = q.astype(F64) @ k.T / np.sqrt(32)
    e = np.exp(score - score.max(1, keepdims=True))
    out[:] = e / e.sum(1, keepdims=True) @ v


def lu_panel(a, n):
    v = a.astype(F64)
    for k in range(n - 1):
        v[k + 1 :, k] /= v[k, k]
        v[k + 1 :, k + 1 :] -= np.outer(v[k + 1 :, k], v[k, k + 1 :])
    a[:] = v


def floyd_warshall(d, n):
    for k in range(n):
        d[:] = np.minimum(d, d[:, k, None] + d[None, k])


# warps


def warp_sums(x, out):
    rows = x.reshape(-1, 32)
    out[:, 0] = np.repeat(rows.sum(1), 32)
    out[:, 1] = np.repeat(rows.max(1), 32)
    out[:, 2] = rows.cumsum(1).reshape(-1)


def votes(x, out):
    for base in range(0, len(x), 32):
        v = [int(e) for e in x[base : base + 32]]
        mask = 0xFFFFFFFF
        odd = sum((e & 1) << i for i, e in enumerate(v))
        same = len({e >> 8 for e in v}) == 1
        bits = all(e > -1000 for e in v) | any(e > 90 for e in v) << 1 | same << 2
        unsigned = [e & mask for e in v]
        either = 0
        for e in unsigned:
            either |= e
        for i, e in enumerate(v):
            like = sum(((f & 3) == (e & 3)) << j for j, f in enumerate(v))
            reduced = (sum(unsigned) & mask) ^ max(unsigned) ^ either
            out[base + i] = [odd, (bits | (mask if same else 0) << 3) & mask, like, reduced]


def compact(x, out, counts):
    for warp, row in enumerate(x.reshape(-1, 32)):
        kept = row[row > 0]
        out[warp * 32 : warp * 32 + len(kept)] = kept
        counts[warp] = len(kept)


def divergent_groups(x, out):
    for base in range(0, len(x), 32):
        v = x[base : base + 32]
        odd, two = (v & 1) == 1, ((v & 1) == 0) & ((v & 2) == 2)
        result = v.copy()
        if odd.any():
            result[odd] = v[odd][0] + odd.sum()
        if two.any():
            result[two] = -two.sum() - v[two].min()
        out[base : base + 32] = result


def tiled_groups(x, out):
    out[:] = np.repeat(x.reshape(-1, 8).astype(F64).sum(1), 8)


def histogram_global(x, bins, n):
    bins[:] = np.bincount(x, minlength=256)


histogram_shared = histogram_global


def atomics(x, out, wide, total, n):
    v = x.astype(np.int64)
    out[0] += v.sum()
    out[1] = max(out[1], v.max())
    out[2] = min(out[2], v.min())
    for e in x:
        out[3] &= e | 0xFF
        out[4] |= e
        out[5] ^= e
    out[6] = (out[6] + n) % 100
    out[7] -= 2 * v.sum()
    wide[0] = int(sum(int(e) * 1000003 for e in v)) & (2**64 - 1)
    total[0] = np.fmod(v, 64).sum()


def atomic_float_max(x, out, n):
    out[0] = x.max().view(np.uint32)


def aggregated_count(x, counter, n):
    counter[0] = (x % 3 == 0).sum()


def edges(begin):
    return np.repeat(np.arange(len(begin) - 1), np.diff(begin))


def bfs_level(begin, to, level, changed, depth, nodes):
    reached = to[level[edges(begin)] == depth]
    new = reached[level[reached] == -1]
    level[new] = depth + 1
    changed[0] = len(new) > 0


def sssp_relax(begin, to, weight, source, distance, nodes):
    np.minimum.at(distance, to, source[edges(begin)] + weight)


def spmv_scalar(begin, to, value, x, y, rows):
    sums = np.zeros(rows)
    np.add.at(sums, edges(begin), value.astype(F64) * x[to])
    y[:] = sums


spmv_vector = spmv_scalar


def embedding(index, table, out, width):
    out[:] = table[index]


def roots(parent):
    found = np.arange(len(parent))
    for i in found:
        at = i
        while parent[at] != at:
            at = parent[at]
        found[i] = at
    return found


def connect(a, b, parent, edges):
    for p, q in zip(a, b):
        r = roots(parent)
        parent[max(r[p], r[q])] = min(r[p], r[q])


def spin_lock(lock, total, x):
    total[0] = x.sum()


def scan_lookback(x, out, state, prefix):
    out[:] = x.cumsum()
    state[:] = 1
    prefix[:] = out[127::128]


# control


def exit_before_barrier(x, out, n):
    v = np.where(np.arange(len(x)) < n, x, 0)
    pairs = v.reshape(-1, 2).sum(1).repeat(2)
    out[:n] = pairs[:n]


def exit_before_barriers(x, out):
    rows = x.reshape(-1, 96)
    left = np.roll(rows, 1, 1)
    keep = (rows % 7 != 0) & (left % 5 != 0)
    out.reshape(-1, 96)[keep] = ((left + rows) * 3 + left)[keep]


def exit_in_barrier_loop(rounds, out):
    ran = np.minimum(rounds, 40)
    out[ran > 0] = ran[ran > 0]


def collatz(x, steps, n):
    for i, v in enumerate(x.tolist()):
        count = 0
        while v != 1 and count < 500:
            v = (3 * v + 1) & 0xFFFFFFFF if v & 1 else v >> 1
            count += 1
        steps[i] = count


def mandelbrot(out, width, height, limit):
    cx = (F32(-2) + F32(3) * np.arange(width, dtype=F32) / F32(width))[None].repeat(height, 0)
    cy = (F32(-1) + F32(2) * np.arange(height, dtype=F32) / F32(height))[:, None].repeat(width, 1)
    x, y = np.zeros_like(cx), np.zeros_like(cx)
    alive = np.ones_like(cx, bool)
    for _ in range(limit):
        alive &= x * x + y * y < 4
        out[alive] += 1
        x, y = np.where(alive, x * x - y * y + cx, x), np.where(alive, F32(2) * x * y + cy, y)


def interpreter(program, length, x, out):
    def wrap(v):
        return (v + 2**31) % 2**32 - 2**31

    for i, value in enumerate(x.tolist()):
        other = i
        for op in program.tolist():
            match (op + value) & 7:
                case 0:
                    value = wrap(value + other)
                case 1:
                    value ^= 0x55
                case 2:
                    value = wrap(value * 3 + 1)
                case 3:
                    other = value >> 2
                case 4:
                    value = wrap(value - (other << 1))
                case 5:
                    value = ~value
                case 6:
                    other = wrap(other + 7)
                case _:
                    value = wrap(bin(value & 0xFFFFFFFF).count("1") + other)
        out[i] = value


def structs(x, out, n):
    i = np.arange(n) % 5
    second = np.stack([i, i * i, -i])
    out[:] = 2 * x + sum(x[k].astype(F64) * second[k % 3] for k in range(4))


def function_table(x, out, n):
    i = np.arange(n)
    which = x.astype(np.int64) % 2**32 % 3
    out[:] = np.choose(which, [x + i, x - i, x * i])


def barrier_in_function(x, out):
    rows = x.reshape(-1, 4, 32)
    out[:] = rows[:, :, ::-1].reshape(-1)


def constant_table(x, out, n):
    primes = np.array([2, 3, 5, 7, 11, 13, 17, 19])
    out[:] = x % primes[np.arange(n) & 7] + primes[x & 7]


def local_array(x, out, n):
    for i, v in enumerate(x.tolist()):
        digits = [0] * 10
        v = abs(v)
        while v:
            digits[v % 10] += 1
            v //= 10
        code = 0
        for d in digits:
            code = code * 3 + d % 3
        out[i] = code


def static_and_dynamic(x, out):
    rows = x.reshape(-1, 64)
    out[:] = (2 * rows[:, ::-1] + np.roll(rows, -1, 1)).reshape(-1)


def producer_consumer(x, out, rounds):
    out[:] = 2 * x.sum(1)[:, ::-1].reshape(-1)


def barrier_votes(x, out, *, grid, block):
    for row, result in zip(x.reshape(grid[0], -1), out.reshape(grid[0], -1)):
        result[:] = (row > 0).sum() * 4 + 2 * (row > -90).all() + (row > 90).any()


def prints(x):
    pass


def nbody(bodies, out, n):
    p, w = bodies[:, :3].astype(F64), bodies[:, 3].astype(F64)
    delta = p[None] - p[:, None]
    inverse = ((delta**2).sum(2) + 0.01) ** -1.5
    out[:, :3] = (delta * (w * inverse)[:, :, None]).sum(1)
    out[:, 3] = 0


def crc32(x, out, size, n):
    import zlib

    out[:] = [zlib.crc32(row.tobytes()) for row in x]


def kmeans_assign(points, centres, out, n, k):
    out[:] = ((points[:, None].astype(F64) - centres[None]) ** 2).sum(2).argmin(1)


def find_text(text, pattern, found, n, length):
    found[0] = sum((text[i : i + length] == pattern).all() for i in range(n - length + 1))


def knapsack(weight, value, best, items, capacity):
    row = np.zeros(capacity + 1, int)
    for w, v in zip(weight, value):
        row[w:] = np.maximum(row[w:], row[: len(row) - w] + v)
    best[0] = row[-1]


# networks


def rms_norm(x, gain, y, rows, n):
    v = x.astype(F64)
    y[:] = v / np.sqrt((v**2).mean(1, keepdims=True) + 1e-6) * gain


def batch_norm(x, y, mean, variance, images, plane):
    v = x.astype(F64)
    mean[:], variance[:] = v.mean((0, 2)), v.var((0, 2))
    y[:] = (v - v.mean((0, 2), keepdims=True)) / np.sqrt(v.var((0, 2), keepdims=True) + 1e-5)


def rope(x, y, heads, depth):
    half = depth // 2
    angle = (np.arange(len(x))[:, None] * 10000.0 ** (-2 * np.arange(half) / depth))[:, None]
    a, b = x[..., :half].astype(F64), x[..., half:].astype(F64)
    y[..., :half] = a * np.cos(angle) - b * np.sin(angle)
    y[..., half:] = b * np.cos(angle) + a * np.sin(angle)


def cross_entropy(logits, label, loss, classes):
    v = logits.astype(F64)
    loss[:] = np.log(np.exp(v).sum(1)) - v[np.arange(len(label)), label]


def average_pool(x, y, n, half):
    for r in range(half):
        for c in range(half):
            y[:, r, c] = x[:, max(2 * r - 1, 0) : 2 * r + 2, max(2 * c - 1, 0) : 2 * c + 2].astype(F64).mean((1, 2))


def im2col(x, columns, channels, n):
    p = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    for tap in range(9):
        columns[:, tap] = p[:, tap // 3 : tap // 3 + n, tap % 3 : tap % 3 + n]


def winograd(x, w, y, n):
    y[:] = sum(w[i, j] * x[i : i + n, j : j + n].astype(F64) for i in range(3) for j in range(3))


def conv_pointwise(x, w, residual, y, channels, pixels):
    y[:] = np.maximum(w.astype(F64) @ x + residual, 0)


def quantize_rows(x, y, scale, n):
    scale[:] = np.abs(x).max(1) / F32(127)
    y[:] = np.rint(x / scale[:, None])


def gelu_half(x, y, pairs):
    v = x.astype(F64)
    y[:] = 0.5 * v * (1 + ERF(v / np.sqrt(2)))


def gemm_batched(a, b, c, m, n, k):
    c[:] = a.astype(F64) @ b


def gemm_bfloat(a, b, c, n, k):
    c[:] = bfloat(a).astype(F64) @ bfloat(b).T


def gemm_tensor_float(a, b, c, n, k):
    a, b = (((v.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(F32).astype(F64) for v in (a, b))
    c[:] = a @ b.T


def gemm_int8(a, b, c, n, k):
    c[:] = a.astype(int) @ b.astype(int).T


def gemm_pipelined(a, b, c, n, k):
    c[:] = a.astype(F64) @ b


# algorithms


def radix_sort(keys, bits):
    keys[:] = np.sort(keys.reshape(-1, 128)).reshape(-1)


def merge_path(a, b, out, na, nb, share, *, grid, block):
    covered = min(grid[0] * block[0] * share, na + nb)
    out[:covered] = np.sort(np.concatenate([a, b]))[:covered]


def run_lengths(x, value, begin, count, n):
    at = np.flatnonzero(np.concatenate([[True], x[1:] != x[:-1]]))
    value[: len(at)], begin[: len(at)], count[0] = x[at], at, len(at)


def pagerank(begin, source, degree, rank, following, nodes):
    shares = rank.astype(F64)[source] / degree[source]
    following[:] = 0.15 / nodes + 0.85 * np.bincount(edges(begin), shares, nodes)


def fft(x, y):
    turned = np.fft.fft(x[..., 0] + 1j * x[..., 1].astype(F64))
    y[..., 0], y[..., 1] = turned.real, turned.imag


def monte_carlo(inside, seed, points, *, grid, block):
    mask = 2**64 - 1
    for thread in range(grid[0] * block[0]):
        state = (seed + thread + 1) * 0x9E3779B97F4A7C15 & mask
        for _ in range(points):
            state ^= state << 13 & mask
            state ^= state >> 7
            state ^= state << 17 & mask
            inside[0] += (state >> 44) ** 2 + (state >> 20 & 0xFFFFF) ** 2 < 1 << 40


def bilateral(x, y, n, near, alike):
    v = x.astype(F64)
    total, weights = np.zeros_like(v), np.zeros_like(v)
    for i in range(-2, 3):
        for j in range(-2, 3):
            there = np.full((n + 4, n + 4), np.nan)
            there[2:-2, 2:-2] = v
            there = there[2 + i : n + 2 + i, 2 + j : n + 2 + j]
            weight = np.nan_to_num(np.exp(-(i * i + j * j) * near - (there - v) ** 2 * alike))
            weights += weight
            total += weight * np.nan_to_num(there)
    y[:] = total / weights


def sha256(message, digest, n):
    import hashlib

    digest[:] = [np.frombuffer(hashlib.sha256(row.tobytes()).digest(), ">u4") for row in message]


def edit_distance(a, b, distance, n):
    for k, (p, q) in enumerate(zip(a, b)):
        row = list(range(n + 1))
        for i in range(1, n + 1):
            before, row[0] = row[0], i
            for j in range(1, n + 1):
                before, row[j] = row[j], min(before + (p[i - 1] != q[j - 1]), row[j] + 1, row[j - 1] + 1)
        distance[k] = row[n]


def segmented_scan(x, flag, out):
    total = 0
    for i, v in enumerate(x.tolist()):
        total = v if flag[i] or i % 32 == 0 else total + v
        out[i] = total


def last_block_sum(x, partial, finished, out, n, *, grid, block):
    owner = np.arange(n) // block[0] % grid[0]
    partial[: grid[0]] = np.bincount(owner, x, grid[0])
    out[0] = x.sum()


def wide_products(a, b, out, n):
    mask = 2**128 - 1
    for i, (p, q) in enumerate(zip(a.tolist(), b.tolist())):
        x, y = p << 64 | q, q << 64 | ~p & (2**64 - 1)
        for at, v in ((0, x + y & mask), (2, x * y - (x + y & mask) & mask)):
            out[i, at], out[i, at + 1] = v & (2**64 - 1), v >> 64


def bit_product(a, b, c, n):
    left, right = (np.unpackbits(v.view(np.uint8), axis=1, bitorder="little").astype(int) for v in (a, b))
    c[:] = np.packbits(left @ right.T & 1, axis=1, bitorder="little").view(np.uint32)


def relax_until_still(x, rounds, n):
    for k, row in enumerate(x):
        while True:
            p = np.pad(row, 1, mode="edge")
            after = np.maximum(row, np.maximum(p[:-2], p[2:]) - 3)
            if (after == row).all():
                break
            row[:] = after
            rounds[k] += 1


def lower_bound(ordered, wanted, at, n, count):
    at[:] = np.searchsorted(ordered, wanted)


def invert_4x4(x, y, n):
    y[:] = np.linalg.inv(x.reshape(-1, 4, 4)).reshape(-1, 16)


def yuv(rgb, out, n):
    r, g, b = (rgb[:, i].astype(int) for i in range(3))
    out[:, 0] = ((16843 * r + 33030 * g + 6423 * b + 32768 >> 16) + 16) & 255
    out[:, 1] = ((-9699 * r - 19071 * g + 28770 * b + 32768 >> 16) + 128) & 255
    out[:, 2] = ((28770 * r - 24117 * g - 4653 * b + 32768 >> 16) + 128) & 255
    out[:, 3] = rgb[:, 3]


def reinterpret(x, quarters, halved, n):
    words = x.view(np.uint16).reshape(-1, 4)
    quarters[:] = words[np.arange(n)[:, None], (np.arange(4) + np.arange(n)[:, None]) & 3]
    halved[:] = x / 2


def atomic_halves(x, sums, n, bins):
    for i, v in enumerate(x.tolist()):
        sums[i % bins] += np.float16([v, 1])


def sorted_entries(table):
    return np.sort(table)


def hash_insert(keys, table, collisions, n, places):
    for i, key in enumerate(keys.tolist()):
        at = (key * 2654435761 & 0xFFFFFFFF) % places
        while table[at]:
            at = (at + 1) % places
            collisions[0] += 1
        table[at] = key << 32 | i + 1


def labeled_groups(x, out):
    for base in range(0, len(x), 32):
        label = x[base : base + 32] % 3
        for i in range(32):
            peers = np.flatnonzero(label == label[i])
            out[base + i] = (x[base + peers[0]] * 64 + (peers < i).sum()) * 64 + 32


def march(height, steps, n, limit):
    for r in range(n):
        for c in range(n):
            for direction in range(4):
                dr, dc = 1 if direction & 1 else -1, 1 if direction & 2 else -1
                p, q, z = r, c, height[r, c]
                for _ in range(limit):
                    p, q = p + dr, q + dc
                    if not (0 <= p < n and 0 <= q < n):
                        break
                    z = z + F32(0.25)
                    if height[p, q] > z:
                        break
                    steps[r, c] += (p ^ q) & 7 != 3


# Triton; `_` are the two addresses of unused memory


def triton_add(x, y, out, n, *_):
    out[:] = x + y


def triton_softmax(x, out, n, *_):
    softmax_rows(x, out, n)


def triton_layer_norm(x, gain, bias, out, n, *_):
    layer_norm(x, gain, out, n)
    out += bias


def triton_matmul(a, b, c, n, *_):
    gemm_tiled(a, b, c, n)


def triton_attention(q, k, v, out, n, *_):
    attention(q, k, v, out, n)


def triton_dropout(x, out, n, p, seed, *_):
    mask = np.uint64(0xFFFFFFFF)
    c, k = [np.arange(n, dtype=np.uint64), *(np.zeros(n, np.uint64) for _ in range(3))], [seed, 0]
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [p1 >> np.uint64(32) ^ c[1] ^ np.uint64(k[0]), p1 & mask, p0 >> np.uint64(32) ^ c[3] ^ np.uint64(k[1]), p0 & mask]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    bits = c[0].astype(np.uint32).view(np.int32)
    uniform = np.where(bits < 0, -bits - 1, bits).astype(F32) * F32(4.6566127342e-10)
    out[:] = np.where(uniform > F32(p), x / F32(1 - p), 0)


def triton_sum(x, out, n, *_):
    out[0] = x.sum()


def triton_cumsum(x, out, *_):
    scan_inclusive(x, out)


def triton_sort(x, out, *_):
    out[:] = np.sort(x.reshape(-1, 128)).reshape(-1)


def triton_histogram(x, bins, n, *_):
    bins[:] = np.bincount(x, minlength=256)


# assembly, written by hand


def mixed_carries(a, b, out, n):
    ones = 0xFFFFFFFF
    for i, (x, y) in enumerate(zip(a.tolist(), b.tolist())):
        # A subtraction adds the complement and 1: its carry is 1 where it does not borrow, and a 0 takes 1 more away.
        kept, over = int(x >= y), int(x + y > ones)
        out[0, i] = x + kept & ones
        out[1, i] = x - 1 + over & ones
        out[2, i] = y - x - 1 + kept & ones
        out[3, i] = 3 * x + y + kept & ones
        out[4, i] = y - 1 - 1 + ((x * y & ones) + x >> 32) & ones
        out[5, i] = -1 + ((x - y & ones) + y + kept >> 32) & ones


def video_parts(a, b, out, n):
    ones = 0xFFFFFFFF

    def part(value, at, bits, signed=False):
        value = value >> at & (1 << bits) - 1
        return value - (1 << bits) if signed and value >> bits - 1 else value

    def word(value):
        return part(value, 0, 32, signed=True)

    for i, (x, y) in enumerate(zip(a.tolist(), b.tolist())):
        total = min(max(part(x, 0, 8, signed=True) + part(y, 16, 16), -(1 << 15)), (1 << 15) - 1)
        out[0, i] = (total & 0xFFFF) << 16 | x & 0xFFFF
        out[1, i] = abs(part(x, 8, 8) - part(y, 16, 8)) + y & ones
        out[2, i] = (x >> min(part(y, 0, 8), 32)) + y & ones
        # 34 bits are left of what is moved.
        moved = part(part(x, 0, 16, signed=True) << (part(y, 24, 8) & 31), 0, 34, signed=True)
        out[3, i] = min(max(moved, -(1 << 31)), (1 << 31) - 1) & ones
        out[4, i] = x & 0xFF00FFFF | int(part(x, 24, 8, signed=True) < part(y, 24, 8)) << 16
        out[5, i] = part(x, 16, 16, signed=True) * part(y, 0, 16, signed=True) + word(x) + 1 >> 7 & ones
        out[6, i] = part(x, 0, 16) * part(y, 16, 16) - y & ones
        both = [part(v, at, 8) for v in (x, y) for at in (0, 8, 16, 24)]
        first, second = [both[k] for k in (1, 4, 0, 7)], [both[k] for k in (3, 2, 1, 0)]
        mean = [p + q + 1 >> 1 for p, q in zip(first, second)]
        mean[2] = both[2]
        out[7, i] = sum(v << 8 * k for k, v in enumerate(mean))
        low, high = part(x, 0, 16, signed=True), part(x, 16, 16, signed=True)
        out[8, i] = int(low >= high) + int(high >= low) + y & ones


def vector_registers(a, out):
    x, y, z, w = (a[:, k].astype(np.int64) for k in range(4))
    out[:, 0] = (y - x) & 0xFFFFFFFF
    out[:, 1] = x + w
    out[:, 2] = np.where(z > 50, 32, z)
    out[:, 3] = w + 10 * (x % 4 + 1) + 200


def tiles(x, out, n):
    for first in range(0, n, 32):
        for begin, end in ((0, 16), (16, 24), (24, 28), (28, 32)):
            lanes = range(begin, end)
            values = {lane: int(x[first + lane]) for lane in lanes}

            def where(holds):
                return sum(1 << lane for lane in lanes if holds(values[lane]))

            everyone = where(lambda value: True)
            odd, sixteenths = where(lambda value: value & 1), where(lambda value: value % 16 == 0)
            agree = odd in (0, everyone)
            inside = [lane for lane in lanes if lane % 3]
            signed = [value - (value >> 31 << 32) for value in values.values()]
            for lane in lanes:
                at = first + lane
                out[0, at] = odd
                out[1, at] = (sixteenths != 0) + 2 * (sixteenths == 0) + 12 * agree
                out[2, at] = everyone if agree else 0
                out[3, at] = where(lambda value: value % 4 == values[lane] % 4)
                out[4, at] = sum(values.values()) & 0xFFFFFFFF
                out[5, at] = min(signed) & 0xFFFFFFFF
                out[6, at] = max(values.values())
                out[7, at] = values[lane ^ 2]
                of_some = functools.reduce(operator.xor, (values[member] for member in inside))
                out[8, at] = of_some if lane % 3 else values[lane]


def shadowed_variable(out):
    out[:] = 3
