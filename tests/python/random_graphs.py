#!/usr/bin/env python3
"""Random ONNX graphs, and ONNX Runtime's results for them.

random_graphs.py make OUT FIRST COUNT     writes OUT/<seed>/model.onnx and OUT/<seed>/<binding>/case.json, for seeds FIRST to FIRST+COUNT-1
random_graphs.py cut FOLDER OUT           writes smaller variants of FOLDER/model.onnx in the same layout, each with the values that its inputs had in the whole: OUT/000, OUT/001, ...

A seed makes the same graph on every machine. Half of the graphs have symbolic dimensions and run with two bindings. Inputs hold multiples of 1/8, so that sums and products are exact; operators that jump (comparisons,
rounding, order) get only values that are exact. A quarter of the graphs have NaN and infinities among their inputs, a tenth have empty tensors. A graph that ONNX Runtime refuses is left out.
"""

import json
import os
import pathlib
import shutil
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from oracle import write

OPSET = 20
FLOAT, DOUBLE, INT64, INT32, BOOL, UINT8 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL, TensorProto.UINT8
# Most elements of a value.
ELEMENTS_MAX = 4096


class Value:
    """A tensor of the graph as it is with the first binding; `exact` says that its elements are the same on every machine."""

    def __init__(self, name, array, exact):
        self.name, self.array, self.exact = name, array, exact

    @property
    def shape(self):
        return self.array.shape

    @property
    def rank(self):
        return self.array.ndim

    def is_float(self):
        return self.array.dtype == np.float32


class Graph:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.nodes, self.initializers, self.inputs, self.values, self.feeds = [], [], [], [], [{}, {}]
        self.special, self.empty, self.symbolic = self.rng.random() < 0.25, self.rng.random() < 0.1, self.rng.random() < 0.5
        # Sizes of the two bindings by symbol.
        self.symbols = {name: [int(self.rng.integers(1, 6)), int(self.rng.integers(1, 9))] for name in "nst"}

    # ---- choices ----

    def chance(self, share):
        return self.rng.random() < share

    def pick(self, items):
        return items[int(self.rng.integers(len(items)))]

    def number(self, low, high):
        return int(self.rng.integers(low, high + 1))

    def fresh(self, stem="v"):
        return f"{stem}{len(self.nodes)}_{len(self.initializers)}_{len(self.inputs)}"

    # ---- values ----

    def numbers(self, shape, dtype, special):
        if dtype == np.bool_:
            return self.rng.integers(0, 2, shape).astype(bool)
        if dtype != np.float32:
            low = 0 if dtype == np.uint8 else -4
            return self.rng.integers(low, 9, shape).astype(dtype)
        array = np.asarray(self.rng.integers(-24, 25, shape) / 8, np.float32)
        if special and array.size:
            flat = array.reshape(-1)
            for value in (np.nan, np.inf, -np.inf, -0.0):
                flat[self.number(0, flat.size - 1)] = value
        return array

    def input(self, shape=None, dtype=np.float32):
        """A new input; each dimension may be a symbol."""
        if shape is None:
            shape = [0 if self.empty and self.chance(0.3) else self.number(1, 6) for _ in range(self.number(1, 4))]
        dims, bindings = [], ([], [])
        for size in shape:
            symbol = self.pick("nst") if self.symbolic and size > 0 and self.chance(0.6) else None
            dims.append(symbol or size)
            for binding in (0, 1):
                bindings[binding].append(self.symbols[symbol][binding] if symbol else size)
        name = f"x{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), dims))
        for binding in (0, 1):
            self.feeds[binding][name] = self.numbers(bindings[binding], dtype, self.special)
        value = Value(name, self.feeds[0][name], True)
        self.values.append(value)
        return value

    def constant(self, array):
        name = self.fresh("c")
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return Value(name, array, True)

    def ints(self, *numbers):
        return self.constant(np.array(numbers, np.int64))

    def any(self, test=lambda value: True, make=None):
        """A value that passes a test, newer ones more often; a new input where there is none."""
        fitting = [value for value in self.values if test(value)]
        if not fitting or self.chance(0.1):
            return make() if make else self.input()
        return fitting[-1 - min(int(self.rng.exponential(2)), len(fitting) - 1)]

    def float(self, rank=None, exact=False, least=1):
        fits = lambda v: v.is_float() and (v.exact or not exact) and (v.rank == rank if rank else v.rank >= least)
        shape = [self.number(1, 5) for _ in range(rank or self.number(least, 4))]
        return self.any(fits, lambda: self.input(shape))

    def of(self, dtype, rank=None):
        shape = [self.number(1, 5) for _ in range(rank or self.number(1, 3))]
        return self.any(lambda v: v.array.dtype == dtype and (rank is None or v.rank == rank), lambda: self.input(shape, dtype))

    def node(self, operator, inputs, exact=False, outputs=1, **attributes):
        names = [self.fresh(f"v{i}_") for i in range(outputs)]
        node = helper.make_node(operator, [value.name if value else "" for value in inputs], names, **attributes)
        arrays = self.evaluate(node, inputs)
        if arrays is None or any(array.size > ELEMENTS_MAX or array.ndim > 6 for array in arrays):
            return
        self.nodes.append(node)
        exact = exact and all(value.exact for value in inputs if value)
        self.values += [Value(name, array, exact) for name, array in zip(names, arrays)]

    def evaluate(self, node, inputs):
        """What a node gives with the first binding; nothing where ONNX Runtime refuses it."""
        feeds = {value.name: value.array for value in inputs if value}
        specs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()]
        outputs = [helper.make_empty_tensor_value_info(name) for name in node.output]
        try:
            return session(model_of([node], specs, outputs, [])).run(list(node.output), feeds)
        except Exception:
            return None


# ---- operators: each adds one node or a few ----


def unary(g):
    name = g.pick("Abs Neg Exp Log Sqrt Sigmoid Tanh Relu Erf Sin Cos Softplus Softsign Reciprocal Elu Selu LeakyRelu HardSigmoid HardSwish Gelu Mish Atan Asinh Sinh Celu ThresholdedRelu Identity Cosh Tan".split())
    g.node(name, [g.float()], exact=name in ("Abs", "Neg", "Relu", "Identity"))


def jump(g):
    name = g.pick("Floor Ceil Round Sign IsNaN IsInf".split())
    g.node(name, [g.float(exact=True)], exact=True)


def partner(g, value):
    """A value that broadcasts with another: the same shape with some dimensions 1, or left out."""
    if g.chance(0.3):
        return g.any(lambda v: v.array.dtype == value.array.dtype and (v.exact or not value.exact))
    shape = [1 if g.chance(0.3) else size for size in value.shape][g.number(0, value.rank) if g.chance(0.4) else 0 :]
    if g.symbolic:
        shape = [1 if g.chance(0.5) else size for size in shape]
        if any(size != 1 for size in shape):
            return value if g.chance(0.5) else g.constant(g.numbers([1] * len(shape), value.array.dtype, False))
    return g.constant(g.numbers(shape, value.array.dtype, False))


def arithmetic(g):
    value = g.float()
    # A power of an infinity below zero is left out: it is NaN here where C has an infinity.
    name = g.pick("Add Sub Mul Div Min Max Pow PRelu".split() if np.isfinite(value.array).all() else "Add Sub Mul Div Min Max PRelu".split())
    operands = [value, partner(g, value)]
    if g.chance(0.3) and name not in ("Pow", "PRelu"):
        operands.reverse()
    g.node(name, operands, exact=name in ("Add", "Sub", "Mul", "Min", "Max"))


def integer(g):
    value = g.of(g.pick([np.int64, np.int32]))
    g.node(g.pick("Add Sub Mul Min Max".split()), [value, partner(g, value)], exact=True)


def compare(g):
    value = g.float(exact=True)
    g.node(g.pick("Equal Less Greater LessOrEqual GreaterOrEqual".split()), [value, partner(g, value)], exact=True)


def logic(g):
    value = g.of(np.bool_)
    if g.chance(0.2):
        return g.node("Not", [value], exact=True)
    g.node(g.pick("And Or Xor".split()), [value, partner(g, value)], exact=True)


def where(g):
    condition, value = g.of(np.bool_), g.float()
    g.node("Where", [condition, value, g.constant(g.numbers([1], np.float32, False))], exact=True)


def cast(g):
    value = g.any(lambda v: v.exact and v.array.dtype != np.float32)
    g.node("Cast", [value], exact=True, to=g.pick([FLOAT, INT64, INT32, BOOL]))


def reduce(g):
    name = g.pick("Sum Mean Max Min Prod L1 L2 SumSquare LogSumExp LogSum".split())
    value = plain(g) if name in ("Max", "Min", "LogSumExp") else g.float()
    if value is None:
        return
    axes = sorted({g.number(-value.rank, value.rank - 1) % value.rank for _ in range(g.number(1, 2))})
    operands = [value] if g.chance(0.2) else [value, g.ints(*axes)]
    g.node("Reduce" + name, operands, exact=name in ("Max", "Min"), keepdims=g.number(0, 1))


def plain(g, **of):
    """A value of finite numbers. What ONNX Runtime makes of a NaN or an infinity in maxima, order, interpolation and running sums depends on its vector code."""
    value = g.float(**of)
    return value if value.array.size and np.isfinite(value.array).all() else None


def arg(g):
    value = plain(g, exact=True)
    if value is None:
        return
    g.node(g.pick(["ArgMax", "ArgMin"]), [value], exact=True, axis=g.number(-value.rank, value.rank - 1), keepdims=g.number(0, 1), select_last_index=g.number(0, 1))


def softmax(g):
    value = g.float()
    g.node(g.pick(["Softmax", "LogSoftmax"]), [value], axis=g.number(-value.rank, value.rank - 1))


def matmul(g):
    value = g.float(least=1)
    width = g.number(1, 6)
    shape = [value.shape[-1], width] if g.chance(0.7) else [value.shape[-1]]
    g.node("MatMul", [value, g.constant(g.numbers(shape, np.float32, False))])


def attend(g):
    value = g.float(least=2)
    order = list(range(value.rank))
    order[-2:] = order[:-3:-1]
    g.node("Transpose", [value], exact=True, perm=order)
    g.node("MatMul", [value, g.values[-1]])


def gemm(g):
    value = g.float(rank=2)
    ta, tb, width = g.number(0, 1), g.number(0, 1), g.number(1, 5)
    inner = value.shape[0 if ta else 1]
    b = g.constant(g.numbers([width, inner] if tb else [inner, width], np.float32, False))
    c = g.constant(g.numbers(g.pick([[width], [1, width], [1]]), np.float32, False)) if g.chance(0.6) else None
    alpha, beta = g.pick([1.0, 0.5]), g.pick([1.0, 2.0])
    # ONNX Runtime leaves beta out where the products have no terms.
    beta = 1.0 if inner == 0 else beta
    g.node("Gemm", [value, b] + ([c] if c else []), transA=ta, transB=tb, alpha=alpha, beta=beta)


def window(g, spatial):
    kernel = [g.number(1, 3) for _ in range(spatial)]
    attributes = {"kernel_shape": kernel, "strides": [g.number(1, 2) for _ in kernel]}
    if g.chance(0.3):
        attributes["auto_pad"] = g.pick(["SAME_UPPER", "SAME_LOWER", "VALID"])
    else:
        attributes["pads"] = [g.number(0, min(1, k - 1)) for k in kernel * 2]
    return attributes


def image(g):
    spatial = g.number(1, 2)
    return g.float(rank=spatial + 2), spatial


def fits(value, attributes, stride=False):
    """Whether every window lies in its axis: ONNX Runtime rounds the size of the result towards zero where none does. For a transposed window, whether it covers its stride."""
    windows = zip(value.shape[2:], attributes["kernel_shape"], attributes["strides"])
    return all(kernel >= step if stride else kernel <= size for size, kernel, step in windows)


def conv(g):
    value, spatial = image(g)
    channels = value.shape[1]
    if not channels:
        return
    groups = g.pick([1, 1, channels])
    outputs = groups * g.number(1, 3)
    attributes = window(g, spatial)
    if g.chance(0.3):
        attributes["dilations"] = [g.number(1, 2) for _ in range(spatial)]
    w = g.constant(g.numbers([outputs, channels // groups] + attributes["kernel_shape"], np.float32, False))
    b = g.constant(g.numbers([outputs], np.float32, False)) if g.chance(0.5) else None
    g.node("Conv", [value, w] + ([b] if b else []), group=groups, **attributes)


def conv_transpose(g):
    value, spatial = image(g)
    attributes = window(g, spatial)
    if not fits(value, attributes, stride=True):
        return
    w = g.constant(g.numbers([value.shape[1], g.number(1, 3)] + attributes["kernel_shape"], np.float32, False))
    g.node("ConvTranspose", [value, w], **attributes)


def pool(g):
    value, spatial = image(g)
    name = g.pick(["MaxPool", "AveragePool", "LpPool"])
    attributes = window(g, spatial)
    if not fits(value, attributes) or (name == "MaxPool" and not np.isfinite(value.array).all()) or g.symbolic and max(attributes["kernel_shape"]) > 1:
        return
    if "pads" in attributes and name != "LpPool" and g.chance(0.4):
        attributes["ceil_mode"] = 1
    if name == "AveragePool":
        attributes["count_include_pad"] = g.number(0, 1)
    g.node(name, [value], exact=name == "MaxPool", **attributes)


def global_pool(g):
    value = image(g)[0]
    g.node(g.pick(["GlobalAveragePool", "GlobalMaxPool"]) if np.isfinite(value.array).all() else "GlobalAveragePool", [value])


def norm(g):
    name = g.pick(["LayerNormalization", "InstanceNormalization", "BatchNormalization", "LpNormalization", "LRN"])
    row = lambda size, low=-8: g.constant(np.asarray(g.rng.integers(low, 17, size) / 8, np.float32))
    if name == "LayerNormalization":
        value = g.float()
        axis = g.number(-value.rank, -1)
        return g.node(name, [value, row(value.shape[axis:]), row(value.shape[axis:])], axis=axis)
    if name == "LpNormalization":
        value = g.float()
        return g.node(name, [value], axis=g.number(-value.rank, value.rank - 1), p=g.number(1, 2))
    value = g.float(least=3)
    channels = value.shape[1]
    if name == "LRN":
        return g.node(name, [value], size=g.pick([1, 3, 5]), alpha=0.1, beta=0.5, bias=1.5) if value.rank == 4 and np.isfinite(value.array).all() else None
    operands = [value, row(channels), row(channels)]
    g.node(name, operands + ([row(channels), row(channels, 1)] if name == "BatchNormalization" else []))


def transpose(g):
    value = g.float()
    g.node("Transpose", [value], exact=True, perm=[int(i) for i in g.rng.permutation(value.rank)])


def reshape(g):
    value = g.float()
    kind = g.number(0, 3)
    if kind == 0:
        return g.node("Flatten", [value], exact=True, axis=g.number(0, value.rank))
    if kind == 1:
        return g.node("Reshape", [value, g.ints(-1)], exact=True)
    if kind == 2 and value.rank >= 2:
        return g.node("Reshape", [value, g.ints(0, -1)], exact=True)
    # As exporters write it: dimensions of the operand, put together anew.
    g.node("Shape", [value], exact=True)
    shape = g.values[-1]
    g.node("Gather", [shape, g.ints(0)], exact=True)
    g.node("Concat", [g.values[-1], g.ints(-1)], exact=True, axis=0)
    g.node("Reshape", [value, g.values[-1]], exact=True)


def squeeze(g):
    value = g.float()
    if 1 in value.shape and not g.symbolic and g.chance(0.5):
        return g.node("Squeeze", [value, g.ints(value.shape.index(1))], exact=True)
    if value.rank < 5:
        g.node("Unsqueeze", [value, g.ints(g.number(-value.rank - 1, value.rank))], exact=True)


def concat(g):
    value = g.float()
    axis = g.number(0, value.rank - 1)
    others = [v for v in g.values if v.is_float() and v.rank == value.rank and all(a == b for i, (a, b) in enumerate(zip(v.shape, value.shape)) if i != axis)]
    g.node("Concat", [value, g.pick(others)], exact=True, axis=axis)


def split(g):
    value = g.float()
    axis = g.number(0, value.rank - 1)
    size = value.shape[axis]
    if size < 2:
        return
    first = g.number(1, size - 1)
    g.node("Split", [value, g.ints(first, size - first)], exact=True, outputs=2, axis=axis)


def slice_(g):
    value = g.float()
    axes = [int(i) for i in g.rng.permutation(value.rank)[: g.number(1, 2)]]
    far = lambda: g.number(-7, 7) if g.chance(0.8) else g.pick([-(1 << 62), 1 << 62, -100, 100])
    starts, ends = [far() for _ in axes], [far() for _ in axes]
    g.node("Slice", [value, g.ints(*starts), g.ints(*ends), g.ints(*axes), g.ints(*[g.pick([1, 1, 2, -1, -2]) for _ in axes])], exact=True)


def pad(g):
    value = g.float()
    mode = g.pick(["constant", "reflect", "edge", "wrap"]) if value.array.size else "constant"
    most = [0 if mode == "reflect" and size < 2 else 1 for size in value.shape] * 2
    g.node("Pad", [value, g.ints(*[g.number(-1 if mode == "constant" and g.chance(0.2) else 0, m) for m in most])], exact=True, mode=mode)


def gather(g):
    value = g.float()
    axis = g.number(0, value.rank - 1)
    size = value.shape[axis]
    if not size:
        return
    kind = g.number(0, 2)
    if kind == 0 or g.symbolic:
        indices = g.rng.integers(-1, 1, g.pick([[], [3], [2, 2]]))
        return g.node("Gather", [value, g.constant(np.asarray(indices, np.int64))], exact=True, axis=axis)
    if kind == 1:
        shape = [g.number(1, max(s, 1)) for s in value.shape]
        return g.node("GatherElements", [value, g.constant(g.rng.integers(-size, size, shape))], exact=True, axis=axis)
    depth = g.number(1, value.rank)
    if 0 in value.shape[:depth]:
        return
    rows = np.stack([g.rng.integers(-s, s, 3) for s in value.shape[:depth]], 1)
    g.node("GatherND", [value, g.constant(rows)], exact=True)


def scatter(g):
    value = g.float()
    axis = g.number(0, value.rank - 1)
    size = value.shape[axis]
    if not size or g.symbolic:
        return
    if g.chance(0.5):
        shape = [g.number(1, max(s, 1)) for s in value.shape]
        shape[axis] = 1
        indices, updates = g.constant(g.rng.integers(-size, size, shape)), g.constant(g.numbers(shape, np.float32, False))
        return g.node("ScatterElements", [value, indices, updates], axis=axis, reduction=g.pick(["none", "add", "mul", "max", "min"]))
    rows = g.rng.permutation(value.shape[0])[: g.number(1, value.shape[0] or 1)].reshape(-1, 1).astype(np.int64)
    g.node("ScatterND", [value, g.constant(rows), g.constant(g.numbers([len(rows), *value.shape[1:]], np.float32, False))], exact=True)


def expand(g):
    value = g.float()
    if g.chance(0.5) and value.rank < 5:
        return g.node("Expand", [value, g.ints(g.number(1, 3), *[1] * value.rank)], exact=True)
    g.node("Tile", [value, g.ints(*[g.number(1, 2) for _ in value.shape])], exact=True)


def order(g):
    value = plain(g, exact=True)
    if value is None:
        return
    axis = g.number(0, value.rank - 1)
    kind = g.number(0, 2)
    if kind == 0:
        k = 1 if g.symbolic else g.number(0, value.shape[axis])
        return g.node("TopK", [value, g.ints(k)], exact=True, outputs=2, axis=axis, largest=g.number(0, 1))
    if kind == 1:
        return g.node("CumSum", [value, g.constant(np.array(axis, np.int64))], exact=True, exclusive=g.number(0, 1), reverse=g.number(0, 1))
    if value.rank >= 2:
        g.node("Trilu", [value, g.constant(np.array(g.number(-2, 2), np.int64))], exact=True, upper=g.number(0, 1))


def clip(g):
    low, high = sorted([g.number(-4, 4) / 2, g.number(-4, 4) / 2])
    g.node("Clip", [g.float(), g.constant(np.float32(low)), g.constant(np.float32(high)) if g.chance(0.7) else None], exact=True)


def resize(g):
    value = plain(g, rank=4)
    if value is None:
        return
    scales = [1.0, 1.0, g.pick([0.5, 1.0, 1.5, 2.0, 3.0]), g.pick([0.5, 1.0, 2.0, 2.5])]
    attributes = {"mode": g.pick(["nearest", "linear", "cubic"]), "coordinate_transformation_mode": g.pick(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])}
    if attributes["mode"] == "nearest":
        attributes["nearest_mode"] = g.pick(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
    sizes = None
    if g.chance(0.4) and not g.symbolic:
        sizes = g.ints(*value.shape[:2], g.number(1, 7), g.number(1, 7))
    g.node("Resize", [value, None, None, sizes] if sizes else [value, None, g.constant(np.array(scales, np.float32))], **attributes)


def blocks(g):
    value = g.float(rank=4)
    if value.shape[1] % 4 == 0 and not g.symbolic:
        return g.node("DepthToSpace", [value], exact=True, blocksize=2, mode=g.pick(["DCR", "CRD"]))
    if value.shape[2] % 2 == 0 and value.shape[3] % 2 == 0 and not g.symbolic:
        g.node("SpaceToDepth", [value], exact=True, blocksize=2)


def one_hot(g):
    value = g.of(np.int64)
    if value.rank < 4:
        g.node("OneHot", [value, g.constant(np.array(g.number(1, 6), np.int64)), g.constant(np.array([0, 1], np.float32))], exact=True, axis=g.number(-value.rank - 1, value.rank))


def select(g):
    if g.chance(0.5):
        return g.node("NonZero", [g.float(exact=True)], exact=True)
    value = g.float()
    axis = g.number(0, value.rank - 1)
    size = min(value.shape[axis], 1 if g.symbolic else 9)
    g.node("Compress", [value, g.constant(g.rng.integers(0, 2, size).astype(bool))], exact=True, axis=axis)


def einsum(g):
    # ONNX Runtime broadcasts a dimension of 1, which is not in the standard.
    value = g.float(rank=2)
    if g.symbolic:
        return
    equation, shape = g.pick([("ij,jk->ik", [value.shape[1], 3]), ("ij,kj->ki", [3, value.shape[1]]), ("ij,jk->j", [value.shape[1], 2])])
    g.node("Einsum", [value, g.constant(g.numbers(shape, np.float32, False))], equation=equation)


def recurrent(g):
    value = g.float(rank=3)
    kind = g.pick(["LSTM", "GRU", "RNN"])
    gates, hidden = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind], g.number(1, 4)
    direction = g.pick(["forward", "reverse", "bidirectional"])
    ways = 2 if direction == "bidirectional" else 1
    w = g.constant(g.numbers([ways, gates * hidden, value.shape[2]], np.float32, False) / 4)
    r = g.constant(g.numbers([ways, gates * hidden, hidden], np.float32, False) / 4)
    more = {"linear_before_reset": g.number(0, 1)} if kind == "GRU" else {}
    g.node(kind, [value, w, r], outputs=2, hidden_size=hidden, direction=direction, **more)


def quantise(g):
    value = g.float(exact=True)
    scale, zero = g.constant(np.float32(0.25)), g.constant(np.uint8(128))
    g.node("QuantizeLinear", [value, scale, zero], exact=True)
    g.node("DequantizeLinear", [g.values[-1], scale, zero], exact=True) if g.values[-1].array.dtype == np.uint8 else None


def counted(g):
    """Numbers up to a dimension, as position embeddings are made."""
    value = g.float()
    g.node("Shape", [value], exact=True)
    g.node("Gather", [g.values[-1], g.constant(np.array(g.number(0, value.rank - 1), np.int64))], exact=True)
    g.node("Range", [g.constant(np.int64(0)), g.values[-1], g.constant(np.int64(g.pick([1, 1, 2])))], exact=True)
    g.node("Cast", [g.values[-1]], exact=True, to=FLOAT)


OPERATORS = [
    unary, unary, arithmetic, arithmetic, arithmetic, jump, integer, compare, logic, where, cast, reduce, reduce, arg, softmax, matmul, attend, gemm, conv, conv_transpose, pool, global_pool, norm, norm, transpose,
    reshape, reshape, squeeze, concat, split, slice_, slice_, pad, gather, scatter, expand, order, clip, resize, blocks, one_hot, select, einsum, recurrent, quantise, counted,
]


# ---- models ----


def model_of(nodes, inputs, outputs, initializers):
    graph = helper.make_graph(nodes, "random", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def session(model):
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    # What is compared are operators as they are written, not what an optimiser makes of them.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def save(folder, model, feeds):
    """The model, and for each binding inputs and answers. Nothing where ONNX Runtime refuses one."""
    runner = session(model)
    names = [output.name for output in model.graph.output]
    answers = [runner.run(names, feed) for feed in feeds]
    folder.mkdir(parents=True, exist_ok=True)
    for index, (feed, answer) in enumerate(zip(feeds, answers)):
        place = folder / str(index)
        place.mkdir(exist_ok=True)
        case = {"inputs": [write(place, "in", n, a) for n, a in feed.items()], "outputs": [write(place, "out", n, a) for n, a in zip(names, answer)]}
        (place / "case.json").write_text(json.dumps(case))
    onnx.save(model, str(folder / "model.onnx"))


def typed(graph_nodes, inputs, initializers, names, feed):
    """Outputs of these names with their element types, but no shapes: those are for the compiler to find."""
    probe = model_of(graph_nodes, inputs, [helper.make_empty_tensor_value_info(name) for name in names], initializers)
    return dict(zip(names, session(probe).run(names, feed)))


def value_info(name, array):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), None)


def make(seed, folder):
    g = Graph(seed)
    g.input()
    size = 1 if g.chance(0.4) else g.number(2, 8)
    for _ in range(40):
        if len(g.nodes) >= size:
            break
        g.pick(OPERATORS)(g)
    read = {name for node in g.nodes for name in node.input}
    outputs = [name for node in g.nodes for name in node.output if name not in read]
    used = [value for value in g.inputs if value.name in read]
    if not outputs:
        return
    feeds = [{value.name: feed[value.name] for value in used} for feed in g.feeds][: 2 if g.symbolic else 1]
    arrays = typed(g.nodes, used, g.initializers, outputs, feeds[0])
    save(folder, model_of(g.nodes, used, [value_info(n, a) for n, a in arrays.items()], g.initializers), feeds)


def cut(folder, out):
    """Every node alone, then the graph without its first and without its last node."""
    model = onnx.load(str(folder / "model.onnx"))
    nodes, constants = list(model.graph.node), {tensor.name: tensor for tensor in model.graph.initializer}
    if len(nodes) < 2:
        return
    bindings = sorted(path for path in folder.iterdir() if path.is_dir())
    produced = [name for node in nodes for name in node.output if name]
    everything = []
    for binding in bindings:
        case = json.loads((binding / "case.json").read_text())
        feed = {t["name"]: np.fromfile(binding / t["file"], t["dtype"]).reshape(t["shape"]) for t in case["inputs"]}
        everything.append(feed | typed(nodes, list(model.graph.input), list(constants.values()), produced, feed))
    kept = {value.name: value for value in model.graph.input}
    ranges = [(i, i + 1) for i in range(len(nodes))] + ([(1, len(nodes)), (0, len(nodes) - 1)] if len(nodes) > 2 else [])
    for index, (first, last) in enumerate(ranges):
        part = nodes[first:last]
        made, read = {n for node in part for n in node.output}, {n for node in part for n in node.input if n}
        outputs = [n for node in part for n in node.output if n and n not in read]
        inputs = [name for name in sorted(read - made) if name not in constants]
        known = lambda name: kept.get(name) or symbolic_info(name, [values[name] for values in everything])
        arrays = [value_info(n, everything[0][n]) for n in outputs]
        variant = model_of(part, [known(n) for n in inputs], arrays, [constants[n] for n in sorted(read) if n in constants])
        try:
            save(out / f"{index:03}", variant, [{n: values[n] for n in inputs} for values in everything])
        except Exception as error:
            print(f"variant {index}: {error}", file=sys.stderr)


def symbolic_info(name, arrays):
    """An input for a value in the middle: dimensions that differ between the bindings are symbols."""
    dims = [sizes[0] if len(set(sizes)) == 1 else f"{name}_{axis}" for axis, sizes in enumerate(zip(*(a.shape for a in arrays)))]
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(arrays[0].dtype), dims)


def main():
    if sys.argv[1] == "cut":
        return cut(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
    out, first, count = pathlib.Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    for seed in range(first, first + count):
        # ONNX Runtime divides by the sizes of empty tensors, and dies; only a child dies with it.
        child = os.fork()
        if child == 0:
            os._exit(attempt(seed, out / str(seed)))
        if os.waitpid(child, 0)[1]:
            shutil.rmtree(out / str(seed), ignore_errors=True)


def attempt(seed, folder):
    """0 where a graph was made, or left out for a reason of its own; 1 where ONNX Runtime refuses it: another seed makes another graph."""
    try:
        make(seed, folder)
        return 0
    except Exception:
        return 1


if __name__ == "__main__":
    main()
