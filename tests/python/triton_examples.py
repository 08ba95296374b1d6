#!/usr/bin/env python3
"""The example programs of Triton's Python client, unmodified, against a daemon that serves their models.

triton_examples.py make REPOSITORY              writes the models that the examples ask
triton_examples.py check FOLDER HTTP GRPC       runs the examples of FOLDER and prints a table of their results in Markdown
"""

import pathlib
import subprocess
import sys

from onnx import TensorProto, helper

from triton_sequences import ALL, DYNA, OLDEST, SIMPLE, STATE, config, control

INT, TEXT = TensorProto.INT32, TensorProto.STRING
TIMEOUT_S = 60
ML = "ai.onnx.ml"
# The numbers that the examples send as texts, and their sums.
NUMBERS = range(-64, 2048)
DYNA_OPTION = ["--dyna"]

# Examples that cannot run on a daemon without a GPU, or ask for what Atoll does not serve, and why.
LEFT_OUT = {
    "ensemble_image_client.py": "its model is in Caffe2's and DALI's formats",
    "grpc_client.py": "its weights (`densenet_onnx`) are not published as a package",
    "grpc_image_client.py": "needs a trained image model of the user and pictures",
    "image_client.py": "needs a trained image model of the user and pictures",
    "memory_growth_test.py": "measures its own process over hours",
    "simple_grpc_cudashm_client.py": "needs an NVIDIA GPU in the client",
    "simple_http_cudashm_client.py": "needs an NVIDIA GPU in the client",
    "simple_grpc_custom_repeat.py": "its backend sends several answers to one request",
}
# Options of an example beyond its URL, one run each.
OPTIONS = {
    name: [[], DYNA_OPTION]
    for name in (
        "simple_grpc_aio_sequence_stream_infer_client.py",
        "simple_grpc_sequence_stream_infer_client.py",
        "simple_grpc_sequence_sync_infer_client.py",
        "simple_http_sequence_sync_infer_client.py",
    )
}
# The example talks to both ports unless it is told which one.
OPTIONS["reuse_infer_objects_client.py"] = [[]]


def node(operator, inputs, output, **attributes):
    return helper.make_node(operator, inputs.split(), [output], **attributes)


def number_of(text, output):
    """The number that a text names, as INT64."""
    texts = [str(number) for number in NUMBERS]
    return node("LabelEncoder", text, output, domain=ML, keys_strings=texts, values_int64s=list(NUMBERS))


def text_of(number, output):
    texts = [str(number) for number in NUMBERS]
    return node("LabelEncoder", number, output, domain=ML, keys_int64s=list(NUMBERS), values_strings=texts)


def finished(graph):
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 2)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def model(kind, nodes, inputs, outputs, columns=16):
    tensor = lambda name: helper.make_tensor_value_info(name, kind, ["batch", columns])
    graph = helper.make_graph(nodes, "g", [tensor(name) for name in inputs], [tensor(name) for name in outputs])
    return finished(graph)


def sums(kind):
    """OUTPUT0 = INPUT0 + INPUT1 and OUTPUT1 = INPUT0 - INPUT1; texts are numbers in decimal."""
    plain = ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")
    if kind != TEXT:
        nodes = [node("Add", "INPUT0 INPUT1", "OUTPUT0"), node("Sub", "INPUT0 INPUT1", "OUTPUT1")]
    else:
        nodes = [
            *(number_of(name, f"{name}_number") for name in plain[:2]),
            node("Add", "INPUT0_number INPUT1_number", "sum"),
            node("Sub", "INPUT0_number INPUT1_number", "difference"),
            text_of("sum", "OUTPUT0"),
            text_of("difference", "OUTPUT1"),
        ]
    return model(kind, nodes, plain[:2], plain[2:])


def make(repository):
    identity = model(TEXT, [node("Identity", "INPUT0", "OUTPUT0")], ["INPUT0"], ["OUTPUT0"], "columns")
    plain = {
        "simple": sums(INT),
        "simple_int8": sums(TensorProto.INT8),
        "simple_string": sums(TEXT),
        "simple_identity": identity,
    }
    controls = [control("START"), control("READY")]
    texts = [control("START"), control("END"), '{ name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } ] }']
    sequences = {
        "simple_sequence": (SIMPLE, controls, ""),
        "simple_dyna_sequence": (DYNA, ALL, OLDEST),
        "simple_string_dyna_sequence": (DYNA_OF_TEXTS, texts, STATE),
    }
    files = {name: (content, f'name: "{name}" platform: "onnxruntime_onnx" max_batch_size: 8') for name, content in plain.items()}
    files |= {name: (content, config(name, controls, more).decode()) for name, (content, controls, more) in sequences.items()}
    # The example of model control expects eight models.
    files["identity"] = (identity, f'name: "identity" platform: "onnxruntime_onnx" max_batch_size: 8')
    for name, (content, text) in files.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1/model.onnx").write_bytes(content)
        (repository / name / "config.pbtxt").write_text(text)


def dyna_of_texts():
    """The sum of a sequence, with a text as its id: the last step adds the id."""
    tensor = lambda name, kind=INT: helper.make_tensor_value_info(name, kind, ["batch", 1])
    nodes = [
        node("Sub", "one START", "goes_on"),
        node("Mul", "total goes_on", "before"),
        node("Add", "INPUT before", "new_total"),
        number_of("CORRID", "number"),
        node("Cast", "number", "id", to=INT),
        node("Mul", "END id", "ended"),
        node("Add", "new_total ended", "OUTPUT"),
    ]
    inputs = [*map(tensor, ("INPUT", "START", "END")), tensor("CORRID", TEXT), tensor("total")]
    one = helper.make_tensor("one", INT, [1], [1])
    return finished(helper.make_graph(nodes, "g", inputs, [tensor("OUTPUT"), tensor("new_total")], [one]))


DYNA_OF_TEXTS = dyna_of_texts()


def run(program, url, options):
    """Whether an example ends well, and what it printed."""
    command = [sys.executable, str(program), "-u", url, *options]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return False, f"it did not end within {TIMEOUT_S} seconds"
    return ended.returncode == 0, ended.stdout + ended.stderr


def check(folder, http, grpc):
    print("| example | result |\n|---|---|")
    failed = []
    programs = sorted(file for file in folder.glob("*.py"))
    assert len(programs) > 20, f"{folder} has {len(programs)} examples"
    for program in programs:
        if reason := LEFT_OUT.get(program.name):
            print(f"| `{program.name}` | left out: {reason} |")
            continue
        for options in OPTIONS.get(program.name, [[]]):
            is_http = "_http_" in program.name or program.name == "reuse_infer_objects_client.py"
            passed, printed = run(program, http if is_http else grpc, options)
            named = " ".join([program.name, *options])
            print(f"| `{named}` | {'passes' if passed else 'fails'} |")
            if not passed:
                failed.append(f"{named}:\n{printed}")
    print("\n".join(failed), file=sys.stderr)
    return not failed


def main():
    task, *arguments = sys.argv[1:]
    if task == "make":
        make(pathlib.Path(arguments[0]))
    elif not check(pathlib.Path(arguments[0]), *arguments[1:]):
        sys.exit(1)


if __name__ == "__main__":
    main()
