#!/usr/bin/env python3
"""The second half of `make demo`: an unmodified tritonclient asks a running daemon.

demo.py HTTP_URL METRICS_URL MODELS_DIR FILE...
"""

import json
import pathlib
import re
import sys
import threading
import time
import urllib.request

import numpy as np
import onnxruntime as ort
import tritonclient.http as triton

RESNET = "resnet50"
SECONDS = 10.0
REALTIME_PERIOD = 0.1


def features(content, config):
    """Magika's input: the stripped first and last bytes of a file, padded."""
    block, pad = config["block_size"], config["padding_token"]
    begin = list(content[:block].lstrip()[: config["beg_size"]])
    end = list(content[-block:].rstrip()[-config["end_size"] :])
    begin += [pad] * (config["beg_size"] - len(begin))
    return begin + [pad] * (config["end_size"] - len(end)) + end


def infer(client, model, name, array, datatype, priority):
    tensor = triton.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return client.infer(model, [tensor], priority=priority)


def classify(client, models, files):
    config = json.loads((models / "magika_config.json").read_text())
    labels = config["target_labels_space"]
    batch = np.array([features(f.read_bytes(), config) for f in files], dtype=np.int32)
    answer = infer(client, "magika", "bytes", batch, "INT32", 1).as_numpy("target_label")
    oracle = ort.InferenceSession(models / "magika.onnx", providers=["CPUExecutionProvider"])
    (expected,) = oracle.run(None, {"bytes": batch})
    print("What each file is, by Magika's trained model:\n")
    for file, scores in zip(files, answer):
        name = str(file).replace(str(pathlib.Path.home()), "~")
        print(f"  {name:<44} {labels[scores.argmax()]:<12} {scores.max():7.2%}")
    error = np.linalg.norm(answer - expected) / np.linalg.norm(expected)
    print(f"\nrelative difference from ONNX Runtime: {error:.1e}")
    if error > 1e-3 or (answer.argmax(1) != expected.argmax(1)).any():
        sys.exit("the answers differ from ONNX Runtime's")
    return batch[:1]


def preemptions(metrics_url):
    text = urllib.request.urlopen(metrics_url).read().decode()
    return sum(float(v) for v in re.findall(r"^atoll_preemptions_total(?:\{[^}]*\})? ([0-9.e+]+)", text, re.M))


def best_effort(url, stop, latencies):
    with triton.InferenceServerClient(url) as client:
        image = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
        while not stop.is_set():
            start = time.perf_counter()
            infer(client, RESNET, "input", image, "FP32", 2)
            latencies.append(time.perf_counter() - start)


def real_time(client, row, seconds):
    """Open loop: a request is due every period, and its latency counts from when it was due."""
    latencies = []
    begin = time.perf_counter()
    for index in range(int(seconds / REALTIME_PERIOD)):
        due = begin + index * REALTIME_PERIOD
        time.sleep(max(0.0, due - time.perf_counter()))
        infer(client, "magika", "bytes", row, "INT32", 1)
        latencies.append(time.perf_counter() - due)
    return latencies


def show(name, latencies):
    p50, p90, p99 = (1e3 * np.percentile(latencies, p) for p in (50, 90, 99))
    print(f"  {name:<44} {len(latencies):5d} {p50:9.1f} {p90:9.1f} {p99:9.1f} {1e3 * max(latencies):9.1f}")


def main():
    url, metrics_url, models = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    files = [pathlib.Path(f) for f in sys.argv[4:]]
    with triton.InferenceServerClient(url) as client:
        row = classify(client, models, files)
        alone = real_time(client, row, SECONDS / 2)
        before = preemptions(metrics_url)
        stop, background = threading.Event(), []
        worker = threading.Thread(target=best_effort, args=(url, stop, background))
        worker.start()
        beside = real_time(client, row, SECONDS)
        stop.set()
        worker.join()
    print("\nLatency in milliseconds, over HTTP:\n")
    print(f"  {'':<44} {'count':>5} {'p50':>9} {'p90':>9} {'p99':>9} {'max':>9}")
    show("real-time Magika alone", alone)
    show("real-time Magika beside best-effort ResNet-50", beside)
    show("best-effort ResNet-50, closed loop", background)
    print(f"\npreemptions of best-effort work: {preemptions(metrics_url) - before:.0f}")


if __name__ == "__main__":
    main()
