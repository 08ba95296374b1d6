"""Small decoders as exporters write them, with past keys and values as inputs and outputs, and random weights.

    decoders.py FOLDER

Writes gpt2.onnx, llama.onnx and t5.onnx, of some hundred KiB each, with the operators, names and axes of exported models.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, WIDTH, HEADS, LAYERS, POSITIONS = 96, 32, 4, 2, 64


class Graph:
    """Nodes and weights of a model that is being written."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.nodes, self.weights, self.count = [], [], 0

    def op(self, kind, *inputs, outputs=1, **attributes):
        self.count += 1
        names = [f"{kind.lower()}_{self.count}" + (f"_{i}" if outputs > 1 else "") for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=f"/{kind}_{self.count}", **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value, dtype=np.int64):
        self.count += 1
        name = f"constant_{self.count}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype=dtype), name))
        return name

    def weight(self, *shape, scale=None):
        scale = scale or 1.0 / np.sqrt(shape[0])
        return self.constant(self.random.standard_normal(shape) * scale, np.float32)

    def linear(self, x, rows, columns, bias=True):
        product = self.op("MatMul", x, self.weight(rows, columns))
        return self.op("Add", product, self.weight(columns, scale=0.1)) if bias else product

    def dimension(self, x, axis):
        return self.op("Gather", self.op("Shape", x), self.constant(axis), axis=0)

    def heads(self, x, heads, size):
        """[batch, new, heads * size] to [batch, heads, new, size]."""
        return self.op("Transpose", self.op("Reshape", x, self.constant([0, 0, heads, size])), perm=[0, 2, 1, 3])

    def merged(self, x):
        return self.op("Reshape", self.op("Transpose", x, perm=[0, 2, 1, 3]), self.constant([0, 0, -1]))

    def attention(self, q, k, v, scale, bias):
        scores = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 1, 3, 2]))
        scores = self.op("Mul", scores, self.constant(scale, np.float32))
        return self.op("MatMul", self.op("Softmax", self.op("Add", scores, bias), axis=-1), v)

    def layer_norm(self, x):
        scale, bias = self.constant(1 + 0.1 * self.random.standard_normal(WIDTH), np.float32), self.weight(WIDTH, scale=0.1)
        return self.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)

    def rms_norm(self, x):
        mean = self.op("ReduceMean", self.op("Mul", x, x), axes=[-1], keepdims=1)
        root = self.op("Sqrt", self.op("Add", mean, self.constant(1e-6, np.float32)))
        return self.op("Mul", self.op("Div", x, root), self.constant(1 + 0.1 * self.random.standard_normal(WIDTH), np.float32))

    def places(self, mask, past):
        """Places of the keys, counted by the mask, and those of the queries, which are the last of them."""
        keys = self.op("Sub", self.op("CumSum", mask, self.constant(1)), self.constant(1))
        first, axis = self.op("Unsqueeze", past, self.constant([0])), self.constant([1])
        queries = self.op("Slice", keys, first, self.constant([np.iinfo(np.int64).max]), axis)
        return self.op("Unsqueeze", keys, self.constant([1])), self.op("Unsqueeze", queries, self.constant([2]))

    def causal(self, mask, past):
        """Zero where a query may look, -1e9 elsewhere: behind itself, and where the mask is 1."""
        keys, queries = self.places(mask, past)
        padding = self.op("Cast", self.op("Unsqueeze", mask, self.constant([1, 2])), to=TensorProto.BOOL)
        seen = self.op("Unsqueeze", self.op("LessOrEqual", keys, queries), self.constant([1]))
        allowed = self.op("And", seen, padding)
        return self.op("Where", allowed, self.constant(0.0, np.float32), self.constant(-1e9, np.float32))

    def grown(self, past, new, output):
        self.nodes.append(helper.make_node("Concat", [past, new], [output], name=f"/Concat_{output}", axis=2))
        return output

    def write(self, path, inputs, outputs, opset=17):
        graph = helper.make_graph(self.nodes, path.stem, inputs, outputs, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        onnx.checker.check_model(model)
        path.write_bytes(model.SerializeToString())


def integers(name, *shape):
    return helper.make_tensor_value_info(name, TensorProto.INT64, list(shape))


def floats(name, *shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))


PAST, NEW = "past_sequence_length", "sequence_length"
TOTAL = f"{PAST} + {NEW}"


def caches(heads, size, infix=""):
    parts = [(layer, part) for layer in range(LAYERS) for part in ("key", "value")]
    pasts = [floats(f"past_key_values.{layer}{infix}.{part}", "batch_size", heads, PAST, size) for layer, part in parts]
    presents = [floats(f"present.{layer}{infix}.{part}", "batch_size", heads, TOTAL, size) for layer, part in parts]
    return pasts, presents


def gpt2(path):
    g, size = Graph(1), WIDTH // HEADS
    past = g.dimension("past_key_values.0.key", 2)
    words = g.weight(VOCABULARY, WIDTH, scale=1.0)
    x = g.op("Add", g.op("Gather", words, "input_ids"), g.op("Gather", g.weight(POSITIONS, WIDTH, scale=0.5), "position_ids"))
    bias = g.causal("attention_mask", past)
    for layer in range(LAYERS):
        qkv = g.linear(g.layer_norm(x), WIDTH, 3 * WIDTH)
        q, k, v = (g.heads(part, HEADS, size) for part in g.op("Split", qkv, g.constant([WIDTH] * 3), outputs=3, axis=-1))
        k = g.grown(f"past_key_values.{layer}.key", k, f"present.{layer}.key")
        v = g.grown(f"past_key_values.{layer}.value", v, f"present.{layer}.value")
        x = g.op("Add", x, g.linear(g.merged(g.attention(q, k, v, size**-0.5, bias)), WIDTH, WIDTH))
        hidden = g.linear(g.layer_norm(x), WIDTH, 4 * WIDTH)
        half = g.op("Mul", hidden, g.constant(0.5, np.float32))
        error = g.op("Erf", g.op("Div", hidden, g.constant(np.sqrt(2.0), np.float32)))
        hidden = g.op("Mul", half, g.op("Add", error, g.constant(1.0, np.float32)))
        x = g.op("Add", x, g.linear(hidden, 4 * WIDTH, WIDTH))
    logits = g.op("MatMul", g.layer_norm(x), g.op("Transpose", words, perm=[1, 0]))
    g.nodes.append(helper.make_node("Identity", [logits], ["logits"]))
    pasts, presents = caches(HEADS, size)
    inputs = [integers("input_ids", "batch_size", NEW), integers("attention_mask", "batch_size", TOTAL), integers("position_ids", "batch_size", NEW)]
    g.write(path, inputs + pasts, [floats("logits", "batch_size", NEW, VOCABULARY)] + presents)


def llama(path):
    g, size, kept = Graph(2), WIDTH // HEADS, HEADS // 2
    past = g.dimension("past_key_values.0.key", 2)
    batch, total = g.dimension("input_ids", 0), g.dimension("attention_mask", 1)
    x = g.op("Gather", g.weight(VOCABULARY, WIDTH, scale=1.0), "input_ids")
    bias = g.causal("attention_mask", past)
    frequencies = g.constant(1.0 / 10000 ** (np.arange(0, size, 2) / size), np.float32)
    places = g.op("Unsqueeze", g.op("Cast", "position_ids", to=TensorProto.FLOAT), g.constant([2]))
    angles = g.op("Mul", places, frequencies)
    angles = g.op("Unsqueeze", g.op("Concat", angles, angles, axis=-1), g.constant([1]))
    cos, sin = g.op("Cos", angles), g.op("Sin", angles)

    def rotated(t):
        axes = g.constant([3])
        first = g.op("Slice", t, g.constant([0]), g.constant([size // 2]), axes)
        second = g.op("Slice", t, g.constant([size // 2]), g.constant([size]), axes)
        turned = g.op("Concat", g.op("Neg", second), first, axis=-1)
        return g.op("Add", g.op("Mul", t, cos), g.op("Mul", turned, sin))

    for layer in range(LAYERS):
        h = g.rms_norm(x)
        q = rotated(g.heads(g.linear(h, WIDTH, WIDTH, bias=False), HEADS, size))
        k = rotated(g.heads(g.linear(h, WIDTH, kept * size, bias=False), kept, size))
        v = g.heads(g.linear(h, WIDTH, kept * size, bias=False), kept, size)
        k = g.grown(f"past_key_values.{layer}.key", k, f"present.{layer}.key")
        v = g.grown(f"past_key_values.{layer}.value", v, f"present.{layer}.value")
        k, v = (repeated(g, t, kept, size, batch, total) for t in (k, v))
        attended = g.attention(q, k, v, size**-0.5, bias)
        x = g.op("Add", x, g.linear(g.merged(attended), WIDTH, WIDTH, bias=False))
        h = g.rms_norm(x)
        gate = g.linear(h, WIDTH, 2 * WIDTH, bias=False)
        gate = g.op("Mul", gate, g.op("Sigmoid", gate))
        x = g.op("Add", x, g.linear(g.op("Mul", gate, g.linear(h, WIDTH, 2 * WIDTH, bias=False)), 2 * WIDTH, WIDTH, bias=False))
    g.nodes.append(helper.make_node("Identity", [g.linear(g.rms_norm(x), WIDTH, VOCABULARY, bias=False)], ["logits"]))
    pasts, presents = caches(kept, size)
    inputs = [integers("input_ids", "batch_size", NEW), integers("attention_mask", "batch_size", TOTAL), integers("position_ids", "batch_size", NEW)]
    g.write(path, inputs + pasts, [floats("logits", "batch_size", NEW, VOCABULARY)] + presents)


def repeated(g, t, kept, size, batch, total):
    """Keys or values of `kept` heads for all heads: unsqueezed, expanded, reshaped."""
    axis = g.constant([0])
    many = [g.op("Unsqueeze", batch, axis), g.constant([kept]), g.constant([HEADS // kept]), g.op("Unsqueeze", total, axis), g.constant([size])]
    wide = g.op("Expand", g.op("Unsqueeze", t, g.constant([2])), g.op("Concat", *many, axis=0))
    merged = [g.op("Unsqueeze", batch, axis), g.constant([HEADS]), g.op("Unsqueeze", total, axis), g.constant([size])]
    return g.op("Reshape", wide, g.op("Concat", *merged, axis=0))


def t5(path):
    g, size = Graph(3), WIDTH // HEADS
    past = g.dimension("past_key_values.0.decoder.key", 2)
    x = g.op("Gather", g.weight(VOCABULARY, WIDTH, scale=1.0), "input_ids")
    keys, queries = g.places("attention_mask", past)
    behind = g.op("Sub", queries, keys)
    bucket = g.op("Min", g.op("Max", behind, g.constant(0)), g.constant(15))
    position = g.op("Transpose", g.op("Gather", g.weight(16, HEADS, scale=0.5), bucket), perm=[0, 3, 1, 2])
    ahead = g.op("Where", g.op("Less", behind, g.constant(0)), g.constant(-1e9, np.float32), g.constant(0.0, np.float32))
    bias = g.op("Add", position, g.op("Unsqueeze", ahead, g.constant([1])))
    mask = g.op("Cast", g.op("Unsqueeze", "encoder_attention_mask", g.constant([1, 2])), to=TensorProto.FLOAT)
    cross = g.op("Mul", g.op("Sub", mask, g.constant(1.0, np.float32)), g.constant(1e9, np.float32))
    for layer in range(LAYERS):
        h = g.rms_norm(x)
        q, k, v = (g.heads(g.linear(h, WIDTH, WIDTH, bias=False), HEADS, size) for _ in range(3))
        k = g.grown(f"past_key_values.{layer}.decoder.key", k, f"present.{layer}.decoder.key")
        v = g.grown(f"past_key_values.{layer}.decoder.value", v, f"present.{layer}.decoder.value")
        x = g.op("Add", x, g.linear(g.merged(g.attention(q, k, v, 1.0, bias)), WIDTH, WIDTH, bias=False))
        q = g.heads(g.linear(g.rms_norm(x), WIDTH, WIDTH, bias=False), HEADS, size)
        k, v = (g.heads(g.linear("encoder_hidden_states", WIDTH, WIDTH, bias=False), HEADS, size) for _ in range(2))
        x = g.op("Add", x, g.linear(g.merged(g.attention(q, k, v, 1.0, cross)), WIDTH, WIDTH, bias=False))
        x = g.op("Add", x, g.linear(g.op("Relu", g.linear(g.rms_norm(x), WIDTH, 2 * WIDTH, bias=False)), 2 * WIDTH, WIDTH, bias=False))
    g.nodes.append(helper.make_node("Identity", [g.linear(g.rms_norm(x), WIDTH, VOCABULARY, bias=False)], ["logits"]))
    pasts, presents = caches(HEADS, size, ".decoder")
    inputs = [integers("input_ids", "batch_size", NEW), integers("attention_mask", "batch_size", TOTAL)]
    inputs += [integers("encoder_attention_mask", "batch_size", "encoder_sequence_length")]
    inputs.append(floats("encoder_hidden_states", "batch_size", "encoder_sequence_length", WIDTH))
    g.write(path, inputs + pasts, [floats("logits", "batch_size", NEW, VOCABULARY)] + presents)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for make in (gpt2, llama, t5):
        make(folder / f"{make.__name__}.onnx")
