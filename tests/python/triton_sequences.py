#!/usr/bin/env python3
"""Triton's examples of sequence models, in ONNX, and an unmodified tritonclient against a daemon that serves them.

triton_sequences.py make REPOSITORY             writes the repository
triton_sequences.py check HTTP GRPC             exits with 1 and says what differed
"""

import asyncio
import pathlib
import queue
import sys
import threading

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
import tritonclient.http.aio as over_http_aio
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

# The values that the examples of tritonclient send.
VALUES = [11, 7, 5, 3, 2, 0, 1]
TIMEOUT_S = 60


def model(nodes, controls, state=()):
    """A model of INT32 [batch, 1] tensors: INPUT, controls and state become OUTPUT and state."""
    tensor = lambda name, kind=TensorProto.INT32: helper.make_tensor_value_info(name, kind, ["batch", 1])
    inputs = [tensor("INPUT"), *(tensor(name, kind) for name, kind in controls), *(tensor(name) for name in state[:1])]
    outputs = [tensor("OUTPUT"), *(tensor(name) for name in state[1:])]
    one = helper.make_tensor("one", TensorProto.INT32, [1], [1])
    graph = helper.make_graph(nodes, "g", inputs, outputs, [one])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return made.SerializeToString()


def node(operator, inputs, output, **attributes):
    return helper.make_node(operator, inputs.split(), [output], **attributes)


INT, ID = TensorProto.INT32, TensorProto.UINT64
ADD_START = [node("Mul", "START READY", "started"), node("Add", "INPUT started", "sum")]
ADD_ID = [node("Cast", "CORRID", "id", to=INT), node("Mul", "END id", "ended")]

# OUTPUT = INPUT + START, as Triton's example.
SIMPLE = model([*ADD_START, node("Identity", "sum", "OUTPUT")], [("START", INT), ("READY", INT)])
# OUTPUT = INPUT + START + END * CORRID, as Triton's example.
DYNA = model(
    [*ADD_START, *ADD_ID, node("Add", "sum ended", "OUTPUT")], [("START", INT), ("END", INT), ("READY", INT), ("CORRID", ID)]
)
# The same with the sum of all inputs, which is a state. START begins a new sum.
TOTAL = model(
    [
        node("Sub", "one START", "goes_on"),
        node("Mul", "total goes_on", "before"),
        node("Add", "INPUT before", "new_total"),
        *ADD_ID,
        node("Add", "new_total ended", "OUTPUT"),
    ],
    [("START", INT), ("END", INT), ("CORRID", ID)],
    ("total", "new_total"),
)

TENSORS = """
input [ { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""


def control(kind):
    return f'{{ name: "{kind}" control [ {{ kind: CONTROL_SEQUENCE_{kind} int32_false_true: [ 0, 1 ] }} ] }}'


CORRID = '{ name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }'


def config(name, controls, more=""):
    listed = ", ".join(controls)
    batching = f"sequence_batching {{ max_sequence_idle_microseconds: 10000000 {more} control_input [ {listed} ] }}"
    return f'name: "{name}" platform: "onnxruntime_onnx" max_batch_size: 8 {batching} {TENSORS}'.encode()


OLDEST = "oldest { max_candidate_sequences: 1024 max_queue_delay_microseconds: 10000 }"
# Steps wait for a second one for so long that they always find it.
PAIRS = f"oldest {{ preferred_batch_size: [ 2 ] max_queue_delay_microseconds: {TIMEOUT_S * 1000000 // 6} }}"
STATE = (
    'state [ { input_name: "total" output_name: "new_total" data_type: TYPE_INT32 dims: [ 1 ]'
    ' initial_state { name: "zero" data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } } ]'
)
ALL = [control("START"), control("END"), control("READY"), CORRID]

MODELS = {
    "simple_sequence": (SIMPLE, [control("START"), control("READY")], ""),
    "simple_dyna_sequence": (DYNA, ALL, OLDEST),
    "pairs": (DYNA, ALL, PAIRS),
    "total": (TOTAL, [control("START"), control("END"), CORRID], STATE),
}


def make(repository):
    for name, (content, controls, more) in MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1/model.onnx").write_bytes(content)
        (repository / name / "config.pbtxt").write_bytes(config(name, controls, more))


def expected(name, values, number):
    """What a model answers to a sequence."""
    answers, total = [], 0
    for step, value in enumerate(values):
        total += value
        answer = total if name == "total" else value + (step == 0)
        answers.append(answer + (number if step == len(values) - 1 and name != "simple_sequence" else 0))
    return answers


def given(triton, value):
    tensor = triton.InferInput("INPUT", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.full([1, 1], value, np.int32))
    return tensor


def step(triton, client, name, value, **place):
    outputs = [triton.InferRequestedOutput("OUTPUT")]
    answer = client.infer(name, [given(triton, value)], outputs=outputs, **place).as_numpy("OUTPUT")
    assert answer.shape == (1, 1), answer
    return int(answer[0, 0])


def in_turn(triton, client, name):
    """Two sequences in turn, as the examples with single requests."""
    sequences = {1001: [0, *VALUES], 1002: [100, *(-value for value in VALUES)]}
    answers = {number: [] for number in sequences}
    last = len(VALUES)
    for at in range(last + 1):
        for number, values in sequences.items():
            place = dict(sequence_id=number, sequence_start=at == 0, sequence_end=at == last)
            answers[number].append(step(triton, client, name, values[at], **place))
    for number, values in sequences.items():
        assert answers[number] == expected(name, values, number), (name, number, answers[number])


def refused(words, call):
    try:
        call()
    except InferenceServerException as error:
        assert words in str(error), f"{error} does not say {words!r}"
        return
    raise AssertionError(f"{words!r} was not refused")


def mistakes(triton, client, name):
    ask = lambda **place: step(triton, client, name, 1, **place)
    refused("sequence_start", lambda: ask(sequence_id=77))
    refused("must specify a non-zero or non-empty correlation ID", ask)
    rows = triton.InferInput("INPUT", [2, 1], "INT32")
    rows.set_data_from_numpy(np.ones([2, 1], np.int32))
    refused("must specify batch-size 1", lambda: client.infer(name, [rows], sequence_id=7, sequence_start=True))


def texts_as_ids(triton, client):
    """A text is an id, but no value of a control input that has a number."""
    place = dict(sequence_id="one", sequence_start=True, sequence_end=True)
    assert step(triton, client, "simple_sequence", 20, **place) == 21
    refused("no value of the control input `CORRID`", lambda: step(triton, client, "simple_dyna_sequence", 20, **place))


def streamed(client, name):
    """The calls of tritonclient's example with a stream."""
    results = queue.Queue()
    client.start_stream(callback=lambda result, error: results.put((result, error)))
    sequences = {1000: [0, *VALUES], 1001: [100, *(-value for value in VALUES)]}
    for number, values in sequences.items():
        for count, value in enumerate(values, 1):
            client.async_stream_infer(
                model_name=name,
                inputs=[given(over_grpc, value)],
                outputs=[over_grpc.InferRequestedOutput("OUTPUT")],
                request_id=f"{number}_{count}",
                sequence_id=number,
                sequence_start=count == 1,
                sequence_end=count == len(values),
            )
    answers = {number: [] for number in sequences}
    for _ in range(sum(map(len, sequences.values()))):
        result, error = results.get(timeout=TIMEOUT_S)
        assert error is None, error
        number = int(result.get_response().id.split("_")[0])
        answers[number].append(int(result.as_numpy("OUTPUT")[0, 0]))
    client.stop_stream()
    for number, values in sequences.items():
        assert answers[number] == expected(name, values, number), (name, number, answers[number])


async def with_asyncio(address, name):
    """A sequence, whose requests are sent when the one before is answered."""
    number, values, answers = 1003, [0, *VALUES], []
    async with over_http_aio.InferenceServerClient(address) as client:
        assert await client.is_model_ready(name)
        for at, value in enumerate(values):
            place = dict(sequence_id=number, sequence_start=at == 0, sequence_end=at == len(values) - 1)
            answer = await client.infer(name, [given(over_http_aio, value)], **place)
            answers.append(int(answer.as_numpy("OUTPUT")[0, 0]))
    assert answers == expected(name, values, number), (name, answers)


def steps_share_a_launch(address):
    answers = {}

    def ask(number):
        client = over_http.InferenceServerClient(address, network_timeout=TIMEOUT_S)
        place = dict(sequence_id=number, sequence_start=True, sequence_end=True)
        answers[number] = step(over_http, client, "pairs", 5, **place)

    threads = [threading.Thread(target=ask, args=[number]) for number in (31, 32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {31: 5 + 1 + 31, 32: 5 + 1 + 32}, answers
    statistics = over_http.InferenceServerClient(address).get_inference_statistics("pairs")["model_stats"][0]
    sizes = [batch["batch_size"] for batch in statistics["batch_stats"]]
    assert (statistics["execution_count"], sizes) == (1, [2]), statistics


def descriptions(client):
    for name in MODELS:
        metadata, config = client.get_model_metadata(name), client.get_model_config(name)
        assert [tensor["name"] for tensor in metadata["inputs"]] == ["INPUT"], metadata
        assert [tensor["name"] for tensor in metadata["outputs"]] == ["OUTPUT"], metadata
        assert (config["max_batch_size"], config["input"][0]["dims"]) == (8, [1]), config
        states = [(state["input_name"], state["dims"]) for state in config["sequence_batching"]["state"]]
        assert states == ([("total", [1])] if name == "total" else []), config


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(pathlib.Path(sys.argv[2]))
        sys.exit()
    http = over_http.InferenceServerClient(sys.argv[2])
    grpc = over_grpc.InferenceServerClient(sys.argv[3])
    descriptions(http)
    for triton, client in [(over_http, http), (over_grpc, grpc)]:
        for name in ("simple_sequence", "simple_dyna_sequence", "total"):
            in_turn(triton, client, name)
            mistakes(triton, client, name)
        texts_as_ids(triton, client)
    for name in ("simple_sequence", "simple_dyna_sequence", "total"):
        streamed(grpc, name)
        asyncio.run(with_asyncio(sys.argv[2], name))
    steps_share_a_launch(sys.argv[2])
    print("all sequences as expected")
