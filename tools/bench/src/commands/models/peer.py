"""ONNX Runtime for `atoll bench models`.

peer.py MODEL THREADS: reads requests from standard input, one JSON object a line, and answers each with one.
{"inputs": [{"name", "datatype", "shape", "file"}], "outputs": [{"name", "file"}]}   loads raw tensors and says how far the given outputs are from its own: {"difference"}
{"runs": N}                                                                          runs once, then so often: {"turn": {"milliseconds": […], "cpu": those of all threads for a run}}
"""

import json
import sys
import time

import numpy as np
import onnxruntime as ort

DTYPES = {"BOOL": "bool", "FP16": "float16", "FP32": "float32", "FP64": "float64"}


def dtype(datatype):
    return np.dtype(DTYPES.get(datatype, datatype.lower()))


def session(path, threads):
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # A spinning thread pool would take cores away from the other side of the comparison.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def difference(theirs, ours):
    if ours.size != theirs.size:
        return float("inf")
    if theirs.size == 0:
        return 0.0
    ours, theirs = ours.astype("float64").ravel(), theirs.astype("float64").ravel()
    return float(np.max(np.abs(ours - theirs)) / max(1.0, np.max(np.abs(theirs))))


def load(model, request):
    feed = {i["name"]: np.fromfile(i["file"], dtype(i["datatype"])).reshape(i["shape"]) for i in request["inputs"]}
    names = [output["name"] for output in request["outputs"]]
    answers = model.run(names, feed)
    differences = [difference(a, np.fromfile(o["file"], a.dtype)) for a, o in zip(answers, request["outputs"])]
    return names, feed, max(differences, default=0.0)


def main():
    model, names, feed = session(sys.argv[1], int(sys.argv[2])), [], {}
    for line in sys.stdin:
        request = json.loads(line)
        if "inputs" in request:
            names, feed, far = load(model, request)
            print(json.dumps({"difference": far}), flush=True)
            continue
        model.run(names, feed)
        times, cpu = [], time.process_time()
        for _ in range(request["runs"]):
            start = time.perf_counter()
            model.run(names, feed)
            times.append((time.perf_counter() - start) * 1e3)
        cpu = (time.process_time() - cpu) * 1e3 / request["runs"]
        print(json.dumps({"turn": {"milliseconds": times, "cpu": cpu}}), flush=True)


main()
