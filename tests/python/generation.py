"""Compares generated tokens with a loop over ONNX Runtime, by the generate extension and by an unmodified tritonclient.

    generation.py HTTP GRPC FOLDER

Asks a daemon that serves gpt2 of FOLDER as a model that generates.
"""

import json
import queue
import sys
import urllib.request
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton

from sequences import decoder_inputs, decoder_reference

PROMPTS, NEW = ([3, 1, 4], [1, 5, 9, 2, 6]), 8


def expected(path, prompt):
    """The tokens with the largest logits, one after the other."""
    reference = decoder_reference(path)
    step, past, tokens = list(prompt), 0, []
    for _ in range(NEW):
        logits = reference.step(decoder_inputs(reference, step, past))["logits"]
        past += len(step)
        step = [int(logits[0, -1].argmax())]
        tokens += step
    return tokens


def post(address, route, prompt):
    body = json.dumps({"input_ids": prompt, "max_tokens": NEW}).encode()
    with urllib.request.urlopen(f"http://{address}/v2/models/gpt2/{route}", body) as answer:
        return answer.read().decode()


def over_http(address, prompt):
    answer = json.loads(post(address, "generate", prompt))
    events = [json.loads(line[6:]) for line in post(address, "generate_stream", prompt).split("\n\n") if line]
    return answer["output_ids"], [event["output_ids"] for event in events]


def over_grpc(address, prompts):
    """The tokens of several requests on one stream, by the id of the request."""
    answers = queue.Queue()
    tokens, open_requests = {str(number): [] for number in range(len(prompts))}, len(prompts)
    with triton.InferenceServerClient(address) as client:
        assert client.get_model_config("gpt2").config.model_transaction_policy.decoupled
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number, prompt in enumerate(prompts):
            tensor = triton.InferInput("input_ids", [1, len(prompt)], "INT64")
            tensor.set_data_from_numpy(np.array([prompt], np.int64))
            client.async_stream_infer(
                "gpt2", [tensor], request_id=str(number), parameters={"max_tokens": NEW}, enable_empty_final_response=number == 0
            )
        while open_requests:
            result, error = answers.get(timeout=60)
            assert error is None, error
            response = result.get_response()
            if response.outputs:
                tokens[response.id].append(int(result.as_numpy("output_ids").item()))
            is_last = response.parameters["triton_final_response"].bool_param
            assert response.outputs or is_last
            open_requests -= is_last
        client.stop_stream()
    return list(tokens.values())


if __name__ == "__main__":
    http, grpc, folder = sys.argv[1:]
    wanted = [expected(Path(folder) / "gpt2.onnx", prompt) for prompt in PROMPTS]
    for prompt, tokens in zip(PROMPTS, wanted):
        assert over_http(http, prompt) == (tokens, tokens), (prompt, tokens)
    got = over_grpc(grpc, PROMPTS)
    assert got == wanted, (got, wanted)
    print(f"gpt2: as ONNX Runtime, {len(PROMPTS)} prompts, {NEW} tokens each")
