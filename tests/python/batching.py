"""Unmodified tritonclient against a daemon that gathers requests into batches.

    batching.py ADDRESS METRICS MODEL.onnx

The daemon serves MODEL.onnx as `mlp`, with batching, and as `alone`, without.
"""

import sys
import threading
import urllib.request

import numpy as np
import onnxruntime
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

CLIENTS, REQUESTS, WIDTH, TOLERANCE = 16, 30, 64, 1e-5


def ask(client, model, rows):
    tensor = triton.InferInput("input", rows.shape, "FP32")
    tensor.set_data_from_numpy(rows)
    return client.infer(model, [tensor]).as_numpy("output")


def worker(address, session, number, failures):
    try:
        random = np.random.default_rng(number)
        client = triton.InferenceServerClient(address)
        for _ in range(REQUESTS):
            rows = random.standard_normal((int(random.integers(1, 4)), WIDTH)).astype(np.float32)
            expected = session.run(None, {"input": rows})[0]
            for model in ["mlp", "alone"]:
                got = ask(client, model, rows)
                error = np.linalg.norm(got - expected) / np.linalg.norm(expected)
                assert got.shape == expected.shape and error <= TOLERANCE, f"{model}: {error}"
    except Exception as error:  # Shown by the main thread.
        failures.append(f"client {number}: {error!r}")


def main():
    address, metrics, path = sys.argv[1:4]
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    client = triton.InferenceServerClient(address)

    config = client.get_model_config("mlp")
    assert config["max_batch_size"] == 8 and config["input"][0]["dims"] == [WIDTH], config
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 2000, config
    assert client.get_model_metadata("mlp")["inputs"][0]["shape"] == [-1, WIDTH]
    config = client.get_model_config("alone")
    assert config["max_batch_size"] == 0 and config["input"][0]["dims"] == [-1, WIDTH], config
    assert "dynamic_batching" not in config

    failures = []
    threads = [threading.Thread(target=worker, args=(address, session, i, failures)) for i in range(CLIENTS)]
    for thread in threads:
        thread.start()
    # Invalid requests fail without affecting valid ones.
    for shape, says in [((9, WIDTH), "inference request batch-size must be <= 8"), ((1, WIDTH + 1), "input")]:
        try:
            ask(client, "mlp", np.zeros(shape, np.float32))
            raise AssertionError(f"{shape} was accepted")
        except InferenceServerException as error:
            assert says in str(error), error
    for thread in threads:
        thread.join()
    assert not failures, failures

    [statistics] = client.get_inference_statistics("mlp")["model_stats"]
    batches = {batch["batch_size"]: batch["compute_infer"]["count"] for batch in statistics["batch_stats"]}
    assert statistics["inference_stats"]["success"]["count"] == CLIENTS * REQUESTS, statistics
    assert statistics["execution_count"] == sum(batches.values()) < CLIENTS * REQUESTS, statistics
    assert statistics["inference_count"] == sum(rows * count for rows, count in batches.items()), statistics
    assert max(batches) > 3, "some run has the rows of several requests"
    assert max(batches) <= 8
    text = urllib.request.urlopen(f"http://{metrics}/metrics").read().decode()
    count = f'atoll_batch_rows_count{{model="mlp",version="1",device="host:0"}} {statistics["execution_count"]}'
    assert count in text, [line for line in text.splitlines() if "batch" in line]
    [alone] = client.get_inference_statistics("alone")["model_stats"]
    assert alone["batch_stats"] == [] and alone["execution_count"] == CLIENTS * REQUESTS, alone
    print(f"{CLIENTS * REQUESTS} requests in {statistics['execution_count']} runs: {dict(sorted(batches.items()))}")


main()
