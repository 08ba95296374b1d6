"""Compares sequences of requests by an unmodified tritonclient with ONNX Runtime, which gets its own states back.

    sequences.py ADDRESS FOLDER [SILERO.onnx]

Sends requests to a daemon that serves the decoders of FOLDER, and silero_vad, with state.
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

STEPS, PROMPT, TOLERANCE = 20, 5, 1e-4


class Reference:
    """A model in ONNX Runtime, with its states."""

    def __init__(self, path, pairs, zero):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.pairs, self.zero = pairs, zero
        self.begin()

    def begin(self):
        shapes = {i.name: i.shape for i in self.session.get_inputs()}
        self.states = {name: self.zero(shapes[name]) for name in self.pairs}

    def step(self, inputs):
        names = [output.name for output in self.session.get_outputs()]
        answers = dict(zip(names, self.session.run(None, {**inputs, **self.states})))
        self.states = {name: answers.pop(output) for name, output in self.pairs.items()}
        return answers


class Sequence:
    """A sequence of a served model and its reference."""

    def __init__(self, client, model, number, reference):
        self.client, self.model, self.number, self.reference = client, model, number, reference
        self.steps = 0

    def step(self, inputs, end=False):
        given = []
        for name, value in inputs.items():
            tensor = triton.InferInput(name, value.shape, {"int64": "INT64", "float32": "FP32"}[str(value.dtype)])
            tensor.set_data_from_numpy(value)
            given.append(tensor)
        answer = self.client.infer(self.model, given, sequence_id=self.number, sequence_start=self.steps == 0, sequence_end=end)
        self.steps += 1
        expected = self.reference.step(inputs)
        for name, value in expected.items():
            got = answer.as_numpy(name)
            error = np.linalg.norm(got - value) / max(np.linalg.norm(value), 1e-12)
            assert got.shape == value.shape and error <= TOLERANCE, f"{self.model} {self.number} step {self.steps}: {name} differs by {error}"
        return expected


def refused(part, call):
    try:
        call()
    except InferenceServerException as error:
        assert part in str(error), f"{error} does not say {part!r}"
        return
    raise AssertionError(f"what should be refused with {part!r} was answered")


def decoder_reference(path):
    probe = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    pairs = {i.name: i.name.replace("past_key_values", "present") for i in probe.get_inputs() if i.name.startswith("past")}
    return Reference(path, pairs, lambda shape: np.zeros([1, shape[1], 0, shape[3]], np.float32))


def decoder_inputs(reference, tokens, past):
    names = [i.name for i in reference.session.get_inputs()]
    encoder = np.random.default_rng(7).standard_normal((1, 6, 32)).astype(np.float32)
    new = len(tokens)
    all_inputs = {
        "input_ids": np.array([tokens], np.int64),
        "attention_mask": np.ones((1, past + new), np.int64),
        "position_ids": np.arange(past, past + new, dtype=np.int64)[None],
        "encoder_attention_mask": np.array([[1, 1, 1, 1, 1, 0]], np.int64),
        "encoder_hidden_states": encoder,
    }
    return {name: all_inputs[name] for name in all_inputs if name in names}


def decoders(client, folder):
    for model in ("gpt2", "llama", "t5"):
        path = folder / f"{model}.onnx"
        config = client.get_model_config(model)
        states = config["sequence_batching"]["state"]
        assert len(states) == 4 and states[0]["dims"][2] == -1, config
        assert not any(i["name"].startswith("past") for i in client.get_model_metadata(model)["inputs"])
        # Two sequences in turn, of other tokens: they do not mix.
        sequences = [Sequence(client, model, number, decoder_reference(path)) for number in (1, "two")]
        tokens = [[(7 * i + 11 * at) % 96 for i in range(PROMPT + at)] for at in range(2)]
        past = [0, 0]
        for step in range(STEPS):
            for at, sequence in enumerate(sequences):
                inputs = decoder_inputs(sequence.reference, tokens[at], past[at])
                logits = sequence.step(inputs, end=step == STEPS - 1)["logits"]
                past[at] += len(tokens[at])
                tokens[at] = [int(logits[0, -1].argmax())]
        # One that ended begins anew only with a start.
        ended = sequences[0]
        inputs = decoder_inputs(ended.reference, [1, 2], 0)
        refused("sequence_start", lambda: ended.step(inputs))
        ended.steps = 0
        ended.reference.begin()
        ended.step(inputs)
        # A request that is refused leaves the sequence as it was.
        refused("attention_mask", lambda: ended.step({**inputs, "attention_mask": np.ones((1, 9), np.int64)}))
        ended.step(decoder_inputs(ended.reference, [3], 2))
        # There is room for as many tokens as the model was compiled for.
        refused("48", lambda: ended.step(decoder_inputs(ended.reference, [1] * 60, 3)))
        ended.step(decoder_inputs(ended.reference, [4], 3), end=True)
        print(f"{model}: as ONNX Runtime, {2 * STEPS} steps of two sequences")


def silero(client, path):
    random = np.random.default_rng(3)
    zero = lambda shape: np.zeros(shape, np.float32)
    sequences = [Sequence(client, "silero_vad", number, Reference(path, {"h": "hn", "c": "cn"}, zero)) for number in (5, 6)]
    for step in range(STEPS):
        for at, sequence in enumerate(sequences):
            audio = (0.1 * (at + 1) * random.standard_normal((1 + step % 3, 576))).astype(np.float32)
            sequence.step({"input": audio}, end=step == STEPS - 1)
    audio = given("input", np.zeros((1, 576), np.float32))
    refused("sequence", lambda: client.infer("silero_vad", [audio]))
    refused("sequence_start", lambda: client.infer("silero_vad", [audio], sequence_id=99))
    print(f"silero_vad: as ONNX Runtime, {2 * STEPS} steps of two sequences")


def given(name, value):
    tensor = triton.InferInput(name, value.shape, {"int64": "INT64", "float32": "FP32"}[str(value.dtype)])
    tensor.set_data_from_numpy(value)
    return tensor


if __name__ == "__main__":
    client = triton.InferenceServerClient(sys.argv[1])
    decoders(client, Path(sys.argv[2]))
    if len(sys.argv) > 3:
        silero(client, Path(sys.argv[3]))
