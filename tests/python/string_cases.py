#!/usr/bin/env python3
"""Cases of models with strings, with the results of ONNX Runtime: labels of classifiers, tables with strings, strings that are moved
and compared, and operators that make new strings.

string_cases.py OUT     writes OUT/<case>/model.onnx and OUT/<case>/test_data_set_0/{input,output}_<i>.pb

The result of ZipMap, a list of maps, is written as the tensor of its scores.
"""

import pathlib
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto as T
from onnx import helper, numpy_helper

ML = "ai.onnx.ml"
CONTRIB = "com.microsoft"
# Every machine has this locale; Atoll ignores it.
LOCALE = "C"
COLORS = ["red", "green", "blue"]


def node(operator, inputs, outputs, domain="", **attributes):
    return helper.make_node(operator, inputs, outputs, domain=domain, **attributes)


def texts(*values):
    return np.array(values, dtype=object)


def element_type(array):
    return T.STRING if array.dtype.kind in "OU" else helper.np_dtype_to_tensor_dtype(array.dtype)


def proto(array):
    """A tensor in the form of ONNX's files."""
    array = np.asarray(array)
    if array.dtype.kind in "OU":
        return helper.make_tensor("t", T.STRING, array.shape, [str(text).encode() for text in array.ravel()])
    return numpy_helper.from_array(array)


def write(out, name, nodes, inputs, outputs, constants=(), symbols=None, ml_opset=4):
    """Writes a case. `symbols` has names of dimensions of inputs."""
    symbols = symbols or {}
    info = [helper.make_tensor_value_info(key, element_type(array), symbols.get(key, list(array.shape))) for key, array in inputs.items()]
    # ONNX Runtime finds the types of results by itself.
    results = [onnx.ValueInfoProto(name=key) for key in outputs]
    initializers = []
    for key, array in dict(constants).items():
        tensor = proto(array)
        tensor.name = key
        initializers.append(tensor)
    graph = helper.make_graph(nodes, name, info, results, initializer=initializers)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(ML, ml_opset), helper.make_opsetid(CONTRIB, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    found = ort.InferenceSession(model.SerializeToString()).run(None, inputs)
    found = [np.array([[row[label] for label in COLORS] for row in result], np.float32) if isinstance(result, list) else result for result in found]
    folder = out / name / "test_data_set_0"
    folder.mkdir(parents=True)
    onnx.save(model, out / name / "model.onnx")
    for kind, arrays in (("input", inputs.values()), ("output", found)):
        for index, array in enumerate(arrays):
            (folder / f"{kind}_{index}.pb").write_bytes(proto(array).SerializeToString())


def rows(count, features):
    return np.random.default_rng(3).standard_normal((count, features)).astype(np.float32)


def linear(labels, outputs, transform):
    random = np.random.default_rng(5)
    return node(
        "LinearClassifier", ["x"], ["label", "scores"], ML, classlabels_strings=labels, post_transform=transform, multi_class=1,
        coefficients=random.standard_normal(4 * outputs).tolist(), intercepts=random.standard_normal(outputs).tolist(),
    )


def stumps(labels, classes):
    """A tree of depth 1 for each of `classes`, each with its own feature."""
    count = len(classes)
    return node(
        "TreeEnsembleClassifier", ["x"], ["label", "scores"], ML, classlabels_strings=labels, post_transform="NONE",
        nodes_treeids=[tree for tree in range(count) for _ in range(3)], nodes_nodeids=[0, 1, 2] * count,
        nodes_featureids=[feature for tree in range(count) for feature in (tree, 0, 0)], nodes_values=[0.1, 0.0, 0.0] * count,
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"] * count, nodes_truenodeids=[1, 0, 0] * count, nodes_falsenodeids=[2, 0, 0] * count,
        class_treeids=[tree for tree in range(count) for _ in range(2)], class_nodeids=[1, 2] * count,
        class_ids=[number for number in classes for _ in range(2)], class_weights=[0.25 * (1 + i) for i in range(2 * count)],
    )


def classifiers(out):
    x = {"x": rows(6, 4)}
    open_rows = {"x": ["N", 4]}
    both = ["label", "scores"]
    write(out, "linear", [linear(COLORS, 3, "SOFTMAX")], x, both, symbols=open_rows)
    write(out, "linear_of_two", [linear(["no", "yes"], 1, "LOGISTIC")], x, both)
    write(out, "trees", [stumps(COLORS, [0, 1, 2])], x, both, symbols=open_rows)
    write(out, "trees_of_two", [stumps(["no", "yes"], [1, 1, 1])], x, both)
    maps = node("ZipMap", ["scores"], ["maps"], ML, classlabels_strings=COLORS)
    write(out, "zip_map", [linear(COLORS, 3, "SOFTMAX"), maps], x, ["label", "maps"])
    nearest = [
        node("ArgMax", ["x"], ["best"], axis=1, keepdims=0),
        node("ArrayFeatureExtractor", ["classes", "best"], ["chosen"], ML),
        node("Reshape", ["chosen", "all"], ["label"]),
    ]
    write(out, "chosen_label", nearest, x, ["label"], {"classes": texts("a", "b", "c", "d"), "all": np.array([-1])}, open_rows)


def tables(out):
    words, unknown = texts("red", "blue", "pink", "", "green"), [7, 8, 9]
    encoder = lambda **attributes: [node("LabelEncoder", ["x"], ["y"], ML, **attributes)]
    numbers = np.array([7, 9, 1], np.int64)
    write(out, "names_to_names", encoder(keys_strings=COLORS, values_strings=["r", "g", "b"], default_string="?"), {"x": words}, ["y"])
    write(out, "names_to_numbers", encoder(keys_strings=COLORS, values_int64s=unknown), {"x": words}, ["y"], symbols={"x": ["N"]})
    write(out, "numbers_to_names", encoder(keys_int64s=unknown, values_strings=COLORS), {"x": numbers}, ["y"])
    random = np.random.default_rng(7)
    many = [f"word {number}" for number in random.permutation(37)]
    known_and_not = texts(*(f"word {number}" for number in range(-2, 40)))
    write(out, "many_names", encoder(keys_strings=many, values_int64s=list(range(37))), {"x": known_and_not}, ["y"], symbols={"x": ["N"]})
    keys = random.choice(np.arange(-60, 60), 50, False).astype(np.int64)
    write(out, "many_numbers", encoder(keys_int64s=keys.tolist(), values_floats=random.random(50).tolist()), {"x": np.arange(-62, 62)}, ["y"])
    floats = np.array([0.5, np.nan, 2.0], np.float32)
    write(out, "floats_to_names", encoder(keys_floats=[0.5, float("nan")], values_strings=["half", "none"]), {"x": floats}, ["y"])
    write(out, "one_hot", [node("OneHotEncoder", ["x"], ["y"], ML, cats_strings=COLORS)], {"x": words}, ["y"])
    mapper = [node("CategoryMapper", ["x"], ["y"], ML, cats_strings=COLORS, cats_int64s=unknown, default_string="?", default_int64=-5)]
    write(out, "categories_to_numbers", mapper, {"x": words}, ["y"])
    write(out, "categories_to_names", mapper, {"x": numbers}, ["y"])


def moves(out):
    x, y = texts("a", "bb", "", "a", "c", "bb").reshape(2, 3), texts("a", "x", "").reshape(1, 3)
    inputs = {"x": x, "y": y}
    ints = lambda *values: np.array(values, np.int64)
    constants = {
        "shape": ints(3, 2), "starts": ints(0), "ends": ints(2), "axis": ints(1), "at": ints(1, 0, 1), "expanded": ints(2, 2, 3),
        "repeats": ints(1, 2), "elements": ints(2, 0).reshape(2, 1), "kept": np.array([True, False, True]), "more": texts("d", "a", "\u00fc").reshape(1, 3),
    }
    nodes = [
        node("Identity", ["x"], ["same"]),
        node("Reshape", ["x", "shape"], ["reshaped"]),
        node("Transpose", ["x"], ["transposed"]),
        node("Slice", ["x", "starts", "ends", "axis"], ["sliced"]),
        node("Gather", ["x", "at"], ["gathered"], axis=1),
        node("GatherElements", ["x", "elements"], ["picked"], axis=1),
        node("Concat", ["x", "more", "y"], ["joined"], axis=0),
        node("Expand", ["x", "expanded"], ["spread"]),
        node("Tile", ["x", "repeats"], ["tiled"]),
        node("Unsqueeze", ["x", "axis"], ["raised"]),
        node("Split", ["x"], ["first", "second"], axis=0, num_outputs=2),
        node("Compress", ["x", "kept"], ["compressed"], axis=1),
        node("Equal", ["x", "y"], ["equal"]),
        node("Where", ["equal", "x", "more"], ["chosen"]),
        node("Shape", ["x"], ["extents"]),
    ]
    outputs = [result for each in nodes for result in each.output]
    write(out, "moved", nodes, inputs, outputs, constants)
    open_rows = {"x": ["N", 3], "y": [1, 3]}
    equal = [node("Equal", ["x", "y"], ["equal"]), node("Concat", ["x", "y"], ["joined"], axis=0)]
    write(out, "moved_symbolic", equal, inputs, ["equal", "joined"], symbols=open_rows)


def counts(operand):
    return node(
        "TfIdfVectorizer", [operand], ["counts"], mode="TF", min_gram_length=1, max_gram_length=2, max_skip_count=0,
        ngram_counts=[0, 3], ngram_indexes=[0, 1, 2, 3], pool_strings=["red", "green", "blue", "red", "green"],
    )


def new_strings(out):
    words = texts("Red", "green", "RED", "Green", "the", "blue")
    write(out, "counted", [counts("x")], {"x": texts("red", "green", "pink", "red", "green")}, ["counts"])
    for name, attributes in {
        "lower": {"case_change_action": "LOWER"},
        "upper_without": {"case_change_action": "UPPER", "stopwords": ["the", "red"]},
        "without": {"stopwords": ["the", "red"], "is_case_sensitive": 1},
        "nothing_left": {"stopwords": ["the", "red", "green", "blue"]},
    }.items():
        write(out, name, [node("StringNormalizer", ["x"], ["y"], locale=LOCALE, **attributes)], {"x": words}, ["y"], symbols={"x": ["N"]})
    row = {"x": words.reshape(1, 6)}
    write(out, "row_without", [node("StringNormalizer", ["x"], ["y"], locale=LOCALE, stopwords=["the"])], row, ["y"])
    join = [node("StringConcat", ["x", "end"], ["ended"]), node("StringConcat", ["ended", "y"], ["y2"])]
    two = {"x": texts("a", "", "\u00e9").reshape(3, 1), "y": texts("1", "2").reshape(1, 2)}
    write(out, "joined", join, two, ["ended", "y2"], {"end": texts("-").reshape(1, 1)}, {"x": ["N", 1]})
    lines = {"x": texts("a,b,,c", "", ",", "x").reshape(2, 2)}
    write(out, "split", [node("StringSplit", ["x"], ["y", "n"], delimiter=",")], lines, ["y", "n"])
    write(out, "split_once", [node("StringSplit", ["x"], ["y", "n"], delimiter=",", maxsplit=1)], lines, ["y", "n"], symbols={"x": ["N", 2]})
    spaces = {"x": texts(" a  b c ", "", "one")}
    write(out, "split_at_spaces", [node("StringSplit", ["x"], ["y", "n"])], spaces, ["y", "n"])
    dates = {"x": texts("2024-01-02", "x2024-01-02", "2024-1-02", "")}
    write(out, "matched", [node("RegexFullMatch", ["x"], ["y"], pattern=r"\d{4}-\d\d-\d\d")], dates, ["y"], symbols={"x": ["N"]})
    lines = {"text": texts("The red, green", "", "no blue? red", "a ab abc").reshape(4, 1)}
    flat = node("Reshape", ["text", "all"], ["flat"])
    constants = {"all": np.array([-1])}
    for name, attributes in {
        "tokens": {"tokenexp": "[a-zA-Z0-9_]+", "mincharnum": 1},
        "long_tokens": {"tokenexp": "[a-zA-Z0-9_]+", "mincharnum": 2},
        "marked_tokens": {"separators": [",", " +"], "mincharnum": 1, "mark": 1},
        "characters": {"separators": [""], "mincharnum": 1},
    }.items():
        cut = node("Tokenizer", ["flat"], ["y"], CONTRIB, **{"pad_value": "#", "mark": 0, **attributes})
        write(out, name, [flat, cut], lines, ["y"], constants, {"text": ["N", 1]})
    bag = [
        flat,
        node("StringNormalizer", ["flat"], ["low"], locale=LOCALE, case_change_action="LOWER"),
        node("Tokenizer", ["low"], ["tokens"], CONTRIB, tokenexp="[a-zA-Z0-9_]+", mincharnum=2, mark=0, pad_value="#"),
        counts("tokens"),
        node("Identity", ["counts"], ["x"]),
        linear(COLORS, 3, "SOFTMAX"),
    ]
    write(out, "texts_to_labels", bag, lines, ["label", "scores"], constants, {"text": ["N", 1]})
    pipeline = [
        node("StringNormalizer", ["text"], ["words"], locale=LOCALE, case_change_action="LOWER", stopwords=["the"]),
        counts("words"),
        node("Reshape", ["counts", "row"], ["x"]),
        linear(COLORS, 3, "SOFTMAX"),
    ]
    write(out, "text_to_label", pipeline, {"text": words}, ["label", "scores"], {"row": np.array([1, 4])}, {"text": ["N"]})


def casts(out):
    """Numbers that strings name, and strings of numbers, with random values."""
    random = np.random.default_rng(11)
    to = lambda kind: [node("Cast", ["x"], ["y"], to=kind)]
    reals = np.concatenate([random.standard_normal(20) * 10.0 ** random.integers(-12, 13, 20), [0.0, -0.0, 1e8, 99999999.5, np.inf, -np.inf, np.nan]])
    notations = [f"{reals[0]:.3f}", f" {reals[1]:e}", "+5", ".5", "5.", "-INF", "inf", "NaN", *map(repr, reals.astype(np.float32).tolist())]
    for name, kind in {"read_floats": T.FLOAT, "read_doubles": T.DOUBLE, "read_halves": T.FLOAT16}.items():
        write(out, name, to(kind), {"x": texts(*notations)}, ["y"], symbols={"x": ["N"]})
    whole = texts(*map(str, random.integers(-100, 101, 9)), " 7", "+8", "100.7", "-3.").reshape(1, 13)
    for name, kind in {"read_bytes": T.INT8, "read_int32s": T.INT32, "read_int64s": T.INT64}.items():
        write(out, name, to(kind), {"x": whole}, ["y"], symbols={"x": [1, "N"]})
    write(out, "read_flags", to(T.BOOL), {"x": texts("0", "1", "7", "-1")}, ["y"])
    write(out, "written_floats", to(T.STRING), {"x": reals.astype(np.float32)}, ["y"], symbols={"x": ["N"]})
    write(out, "written_doubles", to(T.STRING), {"x": reals}, ["y"])
    for name, kind in {"written_bytes": np.int8, "written_uint64s": np.uint64}.items():
        limits = np.iinfo(kind)
        numbers = np.array([*random.integers(limits.min, limits.max, 6, kind, True).tolist(), limits.min, limits.max], kind)
        write(out, name, to(T.STRING), {"x": numbers.reshape(2, 4)}, ["y"], symbols={"x": ["N", 4]})
    write(out, "written_flags", to(T.STRING), {"x": np.array([True, False])}, ["y"])
    # As exporters encode a column of numbers among columns of strings.
    encoded = [
        node("Cast", ["x"], ["text"], to=T.STRING),
        node("LabelEncoder", ["text"], ["y"], ML, keys_strings=["3", "5"], values_int64s=[1, 2], default_int64=-1),
    ]
    write(out, "encoded_numbers", encoded, {"x": np.array([5, 3, 4], np.int64)}, ["y"], symbols={"x": ["N"]})


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1])
    for group in (classifiers, tables, moves, new_strings, casts):
        group(target)
