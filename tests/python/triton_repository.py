#!/usr/bin/env python3
"""A Triton repository, and tritonclient against a daemon that serves it: versions, reshape, warm-up, an ensemble, loads that bring a configuration and files, and loads beside requests.

triton_repository.py make REPOSITORY             writes the repository
triton_repository.py check HTTP GRPC             exits with 1 and says what differed
"""

import json
import pathlib
import sys
import threading

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def model(operator, number):
    """y = x operator number, for rows of 4."""
    value = helper.make_tensor("number", TensorProto.FLOAT, [1], [number])
    return of_rows(helper.make_node(operator, ["x", "number"], ["y"]), [value])


def of_rows(node, values=()):
    """A model with one node, from rows of 4 in x to rows of 4 in y."""
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy"]
    graph = helper.make_graph([node], "g", tensors[:1], tensors[1:], values)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return made.SerializeToString()


SCALE = """
name: "scale"
platform: "onnxruntime_onnx"
max_batch_size: 8
version_policy { all { } }
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape { shape: [ 4 ] } } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
model_warmup { name: "zeros" batch_size: 2 inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 2, 2 ] zero_data: true } } }
"""

ENSEMBLE = """
platform: "ensemble"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]
ensemble_scheduling { step [
  { model_name: "offset" model_version: -1 input_map { key: "x" value: "scaled" } output_map { key: "y" value: "Y" } },
  { model_name: "scale" model_version: 1 input_map { key: "x" value: "X" } output_map { key: "y" value: "scaled" } }
] }
"""


def make(repository):
    for path, content in {
        "scale/1/model.onnx": model("Mul", 2.0),
        "scale/2/model.onnx": model("Mul", 3.0),
        "scale/config.pbtxt": SCALE.encode(),
        "offset/1/model.onnx": model("Add", 1.0),
        "chain/config.pbtxt": ENSEMBLE.encode(),
    }.items():
        (repository / path).parent.mkdir(parents=True, exist_ok=True)
        (repository / path).write_bytes(content)
    (repository / "chain/1").mkdir()


def ask(triton, client, name, array, version="", given="x", wanted="y"):
    tensor = triton.InferInput(given, list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    answer = client.infer(name, [tensor], model_version=version)
    return answer.as_numpy(wanted)


def refused(words, call):
    try:
        call()
    except InferenceServerException as error:
        assert all(word in str(error) for word in words), f"{error} does not say {words}"
        return
    raise AssertionError(f"{words} was not refused")


def reloaded(triton, address, reload):
    """Loads a model several times, while requests ask for it. Each gets an answer."""
    stop, answers, wrong = threading.Event(), [], []

    def asks():
        client = triton.InferenceServerClient(address)
        while not stop.is_set():
            try:
                answers.append(np.array_equal(ask(triton, client, "offset", X), X + 1))
            except InferenceServerException as error:
                wrong.append(str(error))

    threads = [threading.Thread(target=asks) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for rows in (4, 5, 6, 7):
            reload(json.dumps({"max_batch_size": rows}))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert answers and all(answers) and not wrong, (len(answers), wrong[:3])


def check(triton, address, is_grpc):
    client = triton.InferenceServerClient(address)
    images = X.reshape(2, 2, 2)
    for version, factor in [("1", 2), ("2", 3), ("", 3)]:
        got = ask(triton, client, "scale", images, version)
        assert np.array_equal(got, X * factor), (version, got)
    refused(["'scale' version 7 is not found"], lambda: ask(triton, client, "scale", images, "7"))
    refused(["Request for unknown model", "'none' is not found"], lambda: ask(triton, client, "none", X))
    assert np.array_equal(ask(triton, client, "chain", X, given="X", wanted="Y"), X * 2 + 1)
    metadata = client.get_model_metadata("scale", **({"as_json": True} if is_grpc else {}))
    assert metadata["versions"] == ["1", "2"], metadata
    assert client.is_model_ready("scale", "1") and client.is_model_ready("chain")
    index = client.get_model_repository_index(**({"as_json": True} if is_grpc else {}))
    entries = index["models"] if is_grpc else index
    assert sorted((entry["name"], entry["version"]) for entry in entries) == [
        ("chain", "1"), ("offset", "1"), ("scale", "1"), ("scale", "2"),
    ], entries
    # A load that is refused changes nothing.
    sample = {"batch_size": 1, "inputs": {"none": {"data_type": "TYPE_FP32", "dims": [4], "zero_data": True}}}
    for config in ({"model_warmup": [sample]}, {"max_batch_size": 4, "dynamic_batching": {"preferred_batch_size": [8]}}):
        config = json.dumps(config | {"version_policy": {"all": {}}})
        refused([""], lambda: client.load_model("scale", config=config))
        for version, factor in [("1", 2), ("2", 3), ("", 3)]:
            got = ask(triton, client, "scale", images, version)
            assert np.array_equal(got, X * factor), (version, got)
    reloaded(triton, address, lambda config: client.load_model("offset", config=config))
    # A configuration, then files, then what the repository has.
    client.load_model("scale", config=json.dumps({"max_batch_size": 4}))
    refused(["not found"], lambda: ask(triton, client, "scale", X, "1"))
    assert np.array_equal(ask(triton, client, "scale", X), X * 3)
    client.load_model("scale", config="{}", files={"file:9/model.onnx": model("Mul", 5.0)})
    assert np.array_equal(ask(triton, client, "scale", X, "9"), X * 5)
    # Each row depends on all others.
    mixed = {"file:1/model.onnx": of_rows(helper.make_node("Softmax", ["x"], ["y"], axis=0))}
    words = ["max_batch_size is 4, but the rows of", "are not independent"]
    refused(words, lambda: client.load_model("scale", config=json.dumps({"max_batch_size": 4}), files=mixed))
    assert np.array_equal(ask(triton, client, "scale", X, "9"), X * 5)
    refused(["'config' must be specified"], lambda: client.load_model("scale", files={"file:1/model.onnx": b"x"}))
    refused(["must stay within model directory"], lambda: client.load_model("scale", config="{}", files={"file:../x": b"x"}))
    refused(["failed to load 'none', failed to poll"], lambda: client.load_model("none"))
    client.unload_model("scale")
    refused(["'scale' has no available versions"], lambda: ask(triton, client, "scale", images))
    client.load_model("scale")
    assert np.array_equal(ask(triton, client, "scale", images, "1"), X * 2)


if sys.argv[1] == "make":
    make(pathlib.Path(sys.argv[2]))
else:
    check(over_http, sys.argv[2], False)
    check(over_grpc, sys.argv[3], True)
    print("all checks passed")
