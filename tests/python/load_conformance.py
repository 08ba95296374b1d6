#!/usr/bin/env python3
"""Load as perf_analyzer makes it, by an unmodified tritonclient: ranges of concurrency over HTTP, gRPC and streams, in batches
of 1 and 4. Each answer is compared, and the daemon's statistics are compared with what was sent. If there is a perf_analyzer
on PATH, it runs, too.

load_conformance.py HTTP_ADDRESS GRPC_ADDRESS MODEL.onnx CASE.npz      exits with 1 and prints the difference

Writes the inputs and outputs of a request to CASE.npz, for other clients.
"""

import queue
import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import onnxruntime
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http

CONCURRENCY = (1, 2, 4, 8)
BATCHES = (1, 4)
REQUESTS = 40
TOLERANCE = 1e-4


def tensor(module, array):
    given = module.InferInput("input", list(array.shape), "FP32")
    given.set_data_from_numpy(array)
    return given


def check(answer, expected):
    got = answer.as_numpy("output")
    error = np.linalg.norm(got - expected) / np.linalg.norm(expected)
    assert got.shape == expected.shape and error < TOLERANCE, error


def unary(module):
    def worker(address, array, expected, count, times):
        with module.InferenceServerClient(address) as client:
            for _ in range(count):
                began = time.perf_counter()
                answer = client.infer("mlp", [tensor(module, array)])
                times.append(time.perf_counter() - began)
                check(answer, expected)

    return worker


def stream(address, array, expected, count, times):
    answers = queue.Queue()
    with over_grpc.InferenceServerClient(address) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(count):
            began = time.perf_counter()
            client.async_stream_infer("mlp", [tensor(over_grpc, array)], request_id=str(number))
            result, error = answers.get(timeout=60)
            times.append(time.perf_counter() - began)
            assert error is None and result.get_response().id == str(number), error
            check(result, expected)
        client.stop_stream()


def level(worker, address, array, expected, concurrency):
    """The times of all requests of a number of clients, in milliseconds."""
    times, failures = [], []

    def run():
        try:
            worker(address, array, expected, REQUESTS // concurrency, times)
        except Exception as error:  # The main thread tells it.
            failures.append(repr(error))

    threads = [threading.Thread(target=run) for _ in range(concurrency)]
    began = time.perf_counter()
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failures, failures
    return np.array(times) * 1e3, len(times) / (time.perf_counter() - began)


def counts(client):
    """What perf_analyzer reads before and after each level."""
    statistics = client.get_inference_statistics("mlp")["model_stats"][0]
    inference = statistics["inference_stats"]
    return {
        "inferences": statistics["inference_count"],
        "executions": statistics["execution_count"],
        "success": inference["success"]["count"],
        "fail": inference["fail"]["count"],
        "queue": inference["queue"]["count"],
        "compute": inference["compute_infer"]["count"],
        "batches": sum(each["compute_infer"]["count"] for each in statistics["batch_stats"]),
    }


def sweep(http, grpc, session):
    client = over_http.InferenceServerClient(http)
    random = np.random.default_rng(1)
    for name, address, worker in [
        ("HTTP", http, unary(over_http)),
        ("gRPC", grpc, unary(over_grpc)),
        ("gRPC stream", grpc, stream),
    ]:
        for batch in BATCHES:
            array = random.standard_normal((batch, 64)).astype(np.float32)
            (expected,) = session.run(None, {"input": array})
            for concurrency in CONCURRENCY:
                before = counts(client)
                times, per_s = level(worker, address, array, expected, concurrency)
                after = counts(client)
                told = {key: after[key] - before[key] for key in after}
                assert len(times) == REQUESTS, len(times)
                assert told["inferences"] == REQUESTS * batch, told
                assert told["success"] == told["queue"] == told["compute"] == REQUESTS and told["fail"] == 0, told
                assert 1 <= told["executions"] <= REQUESTS and told["batches"] == told["executions"], told
                p50, p99 = np.percentile(times, [50, 99])
                print(f"{name}, batch {batch}, concurrency {concurrency}: {per_s:.0f}/s, p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    return array, expected


def perf_analyzer(http, grpc):
    program = shutil.which("perf_analyzer")
    if program is None:
        print("SKIPPED: perf_analyzer: it is not on PATH; NVIDIA's package needs a newer glibc than Debian 12 has")
        return
    short = ["--measurement-mode", "count_windows", "--measurement-request-count", "20", "--max-trials", "3", "-s", "90"]
    for options in [
        ["-u", http, "--concurrency-range", "1:4:3"],
        ["-u", http, "-b", "4"],
        ["-u", grpc, "-i", "grpc", "--concurrency-range", "1:4:3"],
        ["-u", grpc, "-i", "grpc", "--streaming"],
        ["-u", http, "--shared-memory", "system"],
    ]:
        done = subprocess.run([program, "-m", "mlp", *options, *short], capture_output=True, text=True, timeout=300)
        # 2 means that the figures were not stable enough, which is not of interest here.
        assert done.returncode in (0, 2) and "Throughput:" in done.stdout, (options, done.stdout, done.stderr)
        print("perf_analyzer", " ".join(options), "ran")


def main(http, grpc, model, case):
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    array, expected = sweep(http, grpc, session)
    np.savez(case, input=array, output=expected)
    perf_analyzer(http, grpc)
    print("all of it holds")


if __name__ == "__main__":
    main(*sys.argv[1:])
