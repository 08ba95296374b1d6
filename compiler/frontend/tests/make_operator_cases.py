"""Writes cases of recurrent layers and of operators of domain com.microsoft: one node, seeded operands, and the outputs
of ONNX Runtime.

    python make_operator_cases.py OUT_FOLDER [NAME ...]

Without names, all cases are written; a selection of them is in `cases`.
"""

import pathlib
import sys

import numpy as np
import onnxruntime
from onnx import helper, numpy_helper

random = np.random.default_rng(20240229)
out, wanted = pathlib.Path(sys.argv[1]), sys.argv[2:]


def floats(*shape, spread=1.0):
    return (spread * random.standard_normal(shape)).astype(np.float32)


def ints(values, dtype=np.int32):
    return np.array(values, dtype)


def case(name, operator, operands, results, constants=(), domain="com.microsoft", **attributes):
    """Operands are (name, array or None), in order; those named in `constants` are initialisers."""
    given = {key: array for key, array in operands if array is not None}
    if wanted and name not in wanted:
        return
    node = helper.make_node(
        operator, [key if array is not None else "" for key, array in operands], results, name="node", domain=domain, **attributes
    )
    inputs = {key: array for key, array in given.items() if key not in constants}
    types = [helper.make_tensor_value_info(key, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for key, a in inputs.items()]
    weights = [numpy_helper.from_array(given[key], key) for key in given if key in constants]
    named = [result for result in results if result]
    graph = helper.make_graph([node], name, types, [helper.make_empty_tensor_value_info(result) for result in named], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    outputs = session.run(None, inputs)
    data = out / name / "test_data_set_0"
    data.mkdir(parents=True, exist_ok=True)
    (out / name / "model.onnx").write_bytes(model.SerializeToString())
    for kind, tensors in (("input", inputs.items()), ("output", zip(named, outputs))):
        for index, (key, tensor) in enumerate(tensors):
            (data / f"{kind}_{index}.pb").write_bytes(numpy_helper.from_array(tensor, key).SerializeToString())
    print(name)


def layer(name, operator, lengths=None, peepholes=False, states=True, steps=4, batch=3, width=3, hidden=5, **attributes):
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    rows = {"RNN": 1, "GRU": 3, "LSTM": 4}[operator] * hidden
    state = lambda: floats(directions, batch, hidden) if states else None
    operands = [
        ("x", floats(steps, batch, width)),
        ("w", floats(directions, rows, width, spread=0.7)),
        ("r", floats(directions, rows, hidden, spread=0.7)),
        ("b", floats(directions, 2 * rows, spread=0.5)),
        ("lengths", None if lengths is None else ints(lengths)),
        ("h", state()),
    ]
    if operator == "LSTM":
        operands += [("c", state()), ("p", floats(directions, 3 * hidden) if peepholes else None)]
    results = ["y", "y_h", "y_c"][: 3 if operator == "LSTM" else 2]
    case(name, operator, operands, results, constants=("w", "r", "b", "p"), domain="", hidden_size=hidden, **attributes)


layer("gru", "GRU", linear_before_reset=1)
layer("gru_both", "GRU", linear_before_reset=1, direction="bidirectional")
layer("gru_reset_before", "GRU", direction="bidirectional", lengths=[4, 2, 1])
layer("gru_clip", "GRU", clip=0.4)
layer("gru_activations", "GRU", activations=["HardSigmoid", "ScaledTanh"], activation_alpha=[0.3, 1.2], activation_beta=[0.5, 0.6], linear_before_reset=1)
layer("rnn_reverse", "RNN", direction="reverse")
layer("rnn_clip", "RNN", clip=0.4)
layer("rnn_thresholded", "RNN", activations=["ThresholdedRelu"], activation_alpha=[0.3])
layer("rnn_softplus", "RNN", activations=["Softplus"])
layer("lstm_lengths_reverse", "LSTM", direction="reverse", lengths=[3, 4, 1])
layer("lstm_lengths_both", "LSTM", direction="bidirectional", lengths=[3, 4, 1])
layer("lstm_peepholes_clip", "LSTM", peepholes=True, clip=0.7)
layer("lstm_input_forget", "LSTM", peepholes=True, input_forget=1)
layer("lstm_activations", "LSTM", activations=["HardSigmoid", "Softsign", "LeakyRelu"], activation_alpha=[0.3, 0.05], activation_beta=[0.4])
layer(
    "lstm_activations_both",
    "LSTM",
    direction="bidirectional",
    activations=["Sigmoid", "Relu", "Tanh", "Elu", "Affine", "ScaledTanh"],
    activation_alpha=[0.8, 0.9, 1.1],
    activation_beta=[0.1, 0.7],
)
layer("lstm_without_states", "LSTM", states=False)

case("bias_gelu", "BiasGelu", [("x", floats(2, 5)), ("b", floats(5))], ["y"])
case("fast_gelu", "FastGelu", [("x", floats(2, 5)), ("b", floats(5))], ["y"])
case("contrib_gelu", "Gelu", [("x", floats(2, 5))], ["y"])
case("quick_gelu", "QuickGelu", [("x", floats(2, 5))], ["y"], alpha=1.5)
case("fused_matmul", "FusedMatMul", [("a", floats(2, 5, 3)), ("b", floats(2, 4, 5))], ["y"], transA=1, transB=1, alpha=0.5)

B, S, N, D = 2, 3, 2, 4
H = N * D
rows = lambda length=S: floats(B, length, H)
norm = [("x", rows()), ("skip", rows()), ("gamma", floats(H))]
affine = [("beta", floats(H)), ("bias", floats(H))]
case("skip_layer_norm", "SkipLayerNormalization", norm + affine, ["y", "", "", "sum"], epsilon=1e-5)
case("skip_layer_norm_broadcast", "SkipLayerNormalization", [norm[0], ("skip", floats(1, S, H)), norm[2]], ["y"], epsilon=1e-5)
case("skip_rms_norm", "SkipSimplifiedLayerNormalization", norm + affine[1:], ["y", "", "", "sum"], epsilon=1e-5)
case("rms_norm", "SimplifiedLayerNormalization", [norm[0], norm[2]], ["y"], domain="", epsilon=1e-5, axis=-1)
words = [("ids", ints(random.integers(0, 9, (B, S)))), ("segments", ints(random.integers(0, 2, (B, S)))), ("words", floats(9, H))]
tables = [("positions", floats(6, H)), ("kinds", floats(2, H)), ("gamma", floats(H)), ("beta", floats(H))]
mask = ints([[1, 1, 0], [1, 1, 1]])
case("embed_layer_norm", "EmbedLayerNormalization", words + tables + [("mask", mask)], ["y", "counts"], epsilon=1e-5)
plain = [words[0], ("segments", None), words[2], tables[0], ("kinds", None), *tables[2:]]
case("embed_layer_norm_plain", "EmbedLayerNormalization", plain, ["y", "counts"], epsilon=1e-5)


def attention(name, *others, results=("y",), **attributes):
    projected = [("x", rows()), ("w", floats(H, 3 * H)), ("b", floats(3 * H))]
    case(name, "Attention", projected + list(others), list(results), num_heads=N, **attributes)


between = ints(random.integers(0, 2, (B, S, S)))
attention("attention")
attention("attention_mask", ("mask", mask))
attention("attention_lengths", ("lengths", ints([2, 3])))
attention("attention_mask_of_rows", ("mask", between))
attention("attention_causal_mask", ("mask", mask), unidirectional=1)
attention("attention_causal_past", ("mask", None), ("past", floats(2, B, N, 5, D)), results=("y", "present"), unidirectional=1)
attention("attention_bias", ("mask", None), ("past", None), ("bias", floats(1, N, S, S)), scale=0.3)


def heads(name, *others, keys=None, results=("y",), **attributes):
    keys = keys or [("k", rows()), ("v", rows())]
    case(name, "MultiHeadAttention", [("q", rows()), *keys, *others], list(results), num_heads=N, **attributes)


bias = ("b", floats(3 * H))
heads("heads", bias, keys=[("k", rows(5)), ("v", rows(5))])
heads("heads_mask", ("b", None), ("mask", mask))
heads("heads_lengths", ("b", None), ("lengths", ints([1, 3])))
heads("heads_mask_of_rows", ("b", None), ("mask", between))
past = [("past_k", floats(B, N, 2, D)), ("past_v", floats(B, N, 2, D))]
heads("heads_bias_past", bias, ("mask", None), ("added", floats(B, 1, S, S + 2)), *past, results=("y", "all_k", "all_v"))
heads("heads_causal", unidirectional=1, scale=0.7)
heads("heads_of_keys", keys=[("k", floats(B, N, 5, D)), ("v", floats(B, N, 5, D))])


def rotary(name, x, positions, half=D // 2, **attributes):
    angles = floats(10, half)
    case(name, "RotaryEmbedding", [("x", x), ("p", positions), ("cos", np.cos(angles)), ("sin", np.sin(angles))], ["y"], **attributes)


places = ints([[0, 1, 2], [4, 5, 6]], np.int64)
rotary("rotary", rows(), places)
rotary("rotary_offset", rows(), ints([3], np.int64), interleaved=1)
rotary("rotary_heads", floats(B, N, S, D), places)
rotary("rotary_partial", floats(B, S, 16), places, half=2, num_heads=2, rotary_embedding_dim=4)


def grouped(name, length, past, lengths, total, packed=False, **attributes):
    queries, keys, size = 4, 2, 16
    angles = floats(16, size // 2)
    separate = lambda key: (key, None if packed else floats(B, length, keys * size))
    kept = lambda key: (key, None if past is None else floats(B, keys, past, size))
    operands = [("q", floats(B, length, (queries + (2 * keys if packed else 0)) * size)), separate("k"), separate("v"), kept("past_k"), kept("past_v")]
    operands += [("lengths", ints(lengths)), ("total", ints(total))]
    if attributes.get("do_rotary"):
        operands += [("cos", np.cos(angles)), ("sin", np.sin(angles))]
    constants = ("total", "cos", "sin")
    case(name, "GroupQueryAttention", operands, ["y", "all_k", "all_v"], constants, num_heads=queries, kv_num_heads=keys, **attributes)


grouped("grouped_prompt", 4, None, [3, 3], 4)
grouped("grouped_prompt_rotary", 4, None, [3, 3], 4, do_rotary=1, rotary_interleaved=1)
grouped("grouped_step", 1, 5, [5, 5], 6, do_rotary=1)
grouped("grouped_step_lengths", 1, 5, [5, 3], 6, do_rotary=1)
grouped("grouped_step_buffer", 1, 8, [5, 3], 6, do_rotary=1)
grouped("grouped_packed_window", 1, 5, [5, 4], 6, packed=True, do_rotary=1, local_window_size=2)
grouped("grouped_softcap", 3, None, [2, 2], 3, softcap=2.0, scale=0.6)


def few_bits(name, bits, k, zeros=None, bias=False, n=6, block=16):
    blocks = -(-k // block)
    bytes_of = lambda *shape: random.integers(0, 256, shape).astype(np.uint8)
    zeros = {None: None, "packed": bytes_of(n * (-(-blocks * bits // 8))), "floats": (8 * random.random(n * blocks)).astype(np.float32)}[zeros]
    operands = [("a", floats(2, k)), ("b", bytes_of(n, blocks, block * bits // 8)), ("scales", floats(n * blocks, spread=0.1)), ("zeros", zeros)]
    operands += [("order", None), ("bias", floats(n))] if bias else []
    case(name, "MatMulNBits", operands, ["y"], ("b", "scales", "zeros", "bias"), K=k, N=n, bits=bits, block_size=block)


few_bits("four_bits", 4, 32)
few_bits("four_bits_tail", 4, 40, zeros="packed")
few_bits("four_bits_floats", 4, 32, zeros="floats")
few_bits("eight_bits", 8, 32, zeros="packed", bias=True)
