#!/usr/bin/env python3
"""The example programs of Triton's Python client, unmodified, against daemons that serve their models.

triton_examples.py make SEVEN EIGHT                writes two repositories with seven and eight models
triton_examples.py check FOLDER ALL SEVEN EIGHT    runs the examples of FOLDER and prints a table of their results in Markdown

ALL, SEVEN and EIGHT are ports of daemons on this machine, `HTTP,GRPC`. The first one serves all models of a repository. The
examples of model control load models themselves and expect a certain number of models in the repository, so they have daemons
of their own, with `--model-control-mode explicit`.
"""

import pathlib
import subprocess
import sys

from onnx import TensorProto, helper

from triton_sequences import ALL, DYNA, OLDEST, SIMPLE, STATE, config, control, node

INT, TEXT = TensorProto.INT32, TensorProto.STRING
ML = "ai.onnx.ml"
TIMEOUT_S = 60
# The numbers that the examples send as texts, and their sums.
NUMBERS = range(-64, 2048)
TEXT_ID = '{ name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } ] }'

# Examples that are not run, and why.
NEEDS_GPU = "needs an NVIDIA GPU in the client"
NEEDS_MODEL = "needs a trained image model and pictures of the user"
LEFT_OUT = {
    "ensemble_image_client.py": "has models that are in Caffe2's format and DALI's",
    "grpc_client.py": NEEDS_MODEL,
    "grpc_image_client.py": NEEDS_MODEL,
    "image_client.py": NEEDS_MODEL,
    "memory_growth_test.py": "measures the memory of its own process over hours",
    "simple_grpc_cudashm_client.py": NEEDS_GPU,
    "simple_http_cudashm_client.py": NEEDS_GPU,
    "simple_grpc_custom_repeat.py": "asks the backend `repeat`, which is a library and no model; models that generate send several answers",
}
# Examples that end with these words, and why.
OTHERWISE = {
    name: ("FAILED : get_server_metadata", "expects a server with the name `triton`, which is not Atoll's")
    for name in ("simple_grpc_health_metadata.py", "simple_http_health_metadata.py")
}
# Examples with models of a second kind, which an option selects.
WITH_DYNA = {
    "simple_grpc_aio_sequence_stream_infer_client.py",
    "simple_grpc_sequence_stream_infer_client.py",
    "simple_grpc_sequence_sync_infer_client.py",
    "simple_http_sequence_sync_infer_client.py",
}
# Examples without a protocol in their names that use HTTP.
OVER_HTTP = {"reuse_infer_objects_client.py"}


def number_of(text, output):
    """The number that a text names, as INT64."""
    texts = [str(number) for number in NUMBERS]
    return node("LabelEncoder", text, output, domain=ML, keys_strings=texts, values_int64s=list(NUMBERS))


def text_of(number, output):
    texts = [str(number) for number in NUMBERS]
    return node("LabelEncoder", number, output, domain=ML, keys_int64s=list(NUMBERS), values_strings=texts)


def serialized(nodes, inputs, outputs, constants=()):
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 2)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def tensor(name, kind, columns):
    return helper.make_tensor_value_info(name, kind, ["batch", columns])


def sums(kind):
    """OUTPUT0 = INPUT0 + INPUT1 and OUTPUT1 = INPUT0 - INPUT1. Texts are numbers in decimal."""
    if kind == TEXT:
        nodes = [
            number_of("INPUT0", "a"),
            number_of("INPUT1", "b"),
            node("Add", "a b", "sum"),
            node("Sub", "a b", "difference"),
            text_of("sum", "OUTPUT0"),
            text_of("difference", "OUTPUT1"),
        ]
    else:
        nodes = [node("Add", "INPUT0 INPUT1", "OUTPUT0"), node("Sub", "INPUT0 INPUT1", "OUTPUT1")]
    tensors = lambda *names: [tensor(name, kind, 16) for name in names]
    return serialized(nodes, tensors("INPUT0", "INPUT1"), tensors("OUTPUT0", "OUTPUT1"))


def identity():
    return serialized([node("Identity", "INPUT0", "OUTPUT0")], [tensor("INPUT0", TEXT, "n")], [tensor("OUTPUT0", TEXT, "n")])


def total_with_text_id():
    """The sum of a sequence, whose id is a number as a text. The last step adds the id."""
    nodes = [
        node("Sub", "one START", "goes_on"),
        node("Mul", "total goes_on", "before"),
        node("Add", "INPUT before", "new_total"),
        number_of("CORRID", "number"),
        node("Cast", "number", "id", to=INT),
        node("Mul", "END id", "ended"),
        node("Add", "new_total ended", "OUTPUT"),
    ]
    numbers = lambda *names: [tensor(name, INT, 1) for name in names]
    inputs = [*numbers("INPUT", "START", "END", "total"), tensor("CORRID", TEXT, 1)]
    return serialized(nodes, inputs, numbers("OUTPUT", "new_total"), [helper.make_tensor("one", INT, [1], [1])])


def models():
    """The content and the configuration of each model."""
    plain = {
        "simple": sums(INT),
        "simple_int8": sums(TensorProto.INT8),
        "simple_string": sums(TEXT),
        "simple_identity": identity(),
    }
    start, end = control("START"), control("END")
    sequences = {
        "simple_sequence": (SIMPLE, [start, control("READY")], ""),
        "simple_dyna_sequence": (DYNA, ALL, OLDEST),
        "simple_string_dyna_sequence": (total_with_text_id(), [start, end, TEXT_ID], STATE),
    }
    batched = 'platform: "onnxruntime_onnx" max_batch_size: 8'
    made = {name: (content, batched) for name, content in plain.items()}
    made |= {name: (content, config(name, *rest).decode()) for name, (content, *rest) in sequences.items()}
    return made


def make(seven, eight):
    made = models()
    for repository, files in [(seven, made), (eight, made | {"another": made["simple"]})]:
        for name, (content, text) in files.items():
            (repository / name / "1").mkdir(parents=True)
            (repository / name / "1/model.onnx").write_bytes(content)
            (repository / name / "config.pbtxt").write_text(text)


def run(program, port, options):
    """Whether an example ends well, and what it printed."""
    command = [sys.executable, str(program), "-u", f"localhost:{port}", *options]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return False, f"it did not end within {TIMEOUT_S} seconds"
    return ended.returncode == 0, ended.stdout + ended.stderr


def check(folder, every, seven, eight):
    daemons = {"simple_http_model_control.py": seven, "simple_grpc_model_control.py": eight}
    programs = sorted(folder.glob("*.py"))
    assert len(programs) > 20, f"{folder} has {len(programs)} examples"
    print("| example | result |\n|---|---|")
    failed = []
    for program in programs:
        name = program.name
        if reason := LEFT_OUT.get(name):
            print(f"| `{name}` | not run: it {reason} |")
            continue
        http, grpc = daemons.get(name, every).split(",")
        for options in [[], ["--dyna"]] if name in WITH_DYNA else [[]]:
            passed, printed = run(program, http if "_http_" in name or name in OVER_HTTP else grpc, options)
            named = " ".join([name, *options])
            words, reason = OTHERWISE.get(name, (None, ""))
            if words and words in printed:
                print(f"| `{named}` | ends early: it {reason} |")
                continue
            print(f"| `{named}` | {'passes' if passed else 'fails'} |")
            if not passed:
                failed.append(f"{named}:\n{printed}")
    print("\n".join(failed), file=sys.stderr)
    return not failed


def main():
    task, folder, *rest = sys.argv[1:]
    if task == "make":
        make(pathlib.Path(folder), pathlib.Path(*rest))
    elif not check(pathlib.Path(folder), *rest):
        sys.exit(1)


if __name__ == "__main__":
    main()
