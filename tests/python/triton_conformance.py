#!/usr/bin/env python3
"""An unmodified tritonclient against a running daemon that serves `magika`: the calls that users of Triton make first, and invalid requests.

triton_conformance.py HTTP_ADDRESS MODELS_DIR          exits with 1 and prints the differences
"""

import json
import pathlib
import socket
import sys
import threading
import urllib.error
import urllib.request

import numpy as np
import onnxruntime as ort
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def rows(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 2048)).astype(np.int32)


def ask(client, array, model="magika", name="bytes", datatype="INT32", binary=True, **options):
    tensor = triton.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    outputs = [triton.InferRequestedOutput("target_label", binary_data=binary)]
    return client.infer(model, [tensor], outputs=outputs, **options)


def refused(status, words, call):
    """The call fails with an HTTP status and a message that holds every word."""
    try:
        call()
    except InferenceServerException as error:
        message = error.message()
        assert str(status) in str(error.status() or ""), f"status {error.status()}, expected {status}: {message}"
        for word in words:
            assert word.lower() in message.lower(), f"{message!r} does not say {word!r}"
        return
    raise AssertionError(f"nothing was refused, expected {status}")


def post(address, path, body, headers=None):
    request = urllib.request.Request(f"http://{address}{path}", data=body, headers=headers or {}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@check
def health_and_metadata(client, address, oracle):
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("magika")
    assert not client.is_model_ready("unknown")
    metadata = client.get_model_metadata("magika")
    assert metadata["inputs"][0]["name"] == "bytes" and metadata["inputs"][0]["datatype"] == "INT32", metadata
    assert metadata["inputs"][0]["shape"] == [-1, 2048], metadata
    assert "statistics" in client.get_server_metadata()["extensions"]
    config = client.get_model_config("magika")
    assert config["name"] == "magika" and config["input"][0]["data_type"] == "TYPE_INT32", config
    assert json.loads(urllib.request.urlopen(f"http://{address}/v2/health/live").read()) == {"live": True}
    assert json.loads(urllib.request.urlopen(f"http://{address}/v2/health/ready").read()) == {"ready": True}


@check
def answers_equal_the_oracle(client, address, oracle):
    for count in (1, 3, 17):
        array = rows(count, seed=count)
        (expected,) = oracle.run(None, {"bytes": array})
        for binary in (True, False):
            for priority in (0, 1, 2):
                answer = ask(client, array, binary=binary, priority=priority, request_id="r1")
                assert answer.get_response()["id"] == "r1"
                got = answer.as_numpy("target_label")
                error = np.linalg.norm(got - expected) / np.linalg.norm(expected)
                assert got.shape == expected.shape and error < 1e-3, (count, binary, error)


@check
def concurrent_requests(client, address, oracle):
    array = rows(2)
    (expected,) = oracle.run(None, {"bytes": array})
    failures = []

    def work(priority):
        with triton.InferenceServerClient(address) as own:
            for _ in range(10):
                got = ask(own, array, priority=priority).as_numpy("target_label")
                if not np.allclose(got, expected, rtol=1e-3, atol=1e-6):
                    failures.append(priority)

    threads = [threading.Thread(target=work, args=(1 + i % 2,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failures, failures


@check
def generate(client, address, oracle):
    array = rows(1, seed=5)
    (expected,) = oracle.run(None, {"bytes": array})
    body = json.dumps({"bytes": array[0].tolist(), "id": "g", "parameters": {"priority": 1}}).encode()
    status, answer = post(address, "/v2/models/magika/generate", body)
    assert status == 200 and (answer["model_name"], answer["model_version"], answer["id"]) == ("magika", "1", "g"), answer
    error = np.linalg.norm(np.array(answer["target_label"]) - expected[0]) / np.linalg.norm(expected)
    assert error < 1e-3, error
    url = f"http://{address}/v2/models/magika/versions/1/generate_stream"
    with urllib.request.urlopen(urllib.request.Request(url, data=body, method="POST"), timeout=20) as stream:
        assert stream.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        lines = stream.read().decode().split("\n")
    assert lines[1:] == ["", ""] and lines[0].startswith("data: ")
    assert json.loads(lines[0].removeprefix("data: "))["id"] == "g"
    assert post(address, "/v2/models/magika/generate", b'{"bites": [1]}')[0] == 400


@check
def the_log_changes(client, address, oracle):
    before = client.get_log_settings()
    changed = client.update_log_settings({"log_verbose_level": 1})
    assert changed["log_verbose_level"] == 1 and changed == client.get_log_settings(), changed
    quiet = client.update_log_settings({"log_info": False})
    assert quiet["log_verbose_level"] == 0 and quiet["log_warning"] is True, quiet
    refused(400, ["contradicts"], lambda: client.update_log_settings({"log_error": False, "log_info": True}))
    refused(400, ["log_format"], lambda: client.update_log_settings({"log_format": "ISO8601"}))
    assert client.update_log_settings(before) == before


@check
def statistics_and_index(client, address, oracle):
    before = client.get_inference_statistics("magika")["model_stats"][0]
    ask(client, rows(1))
    after = client.get_inference_statistics("magika")["model_stats"][0]
    assert after["inference_stats"]["success"]["count"] == before["inference_stats"]["success"]["count"] + 1
    assert after["inference_stats"]["compute_infer"]["ns"] > before["inference_stats"]["compute_infer"]["ns"]
    index = {m["name"]: m["state"] for m in client.get_model_repository_index()}
    assert index["magika"] == "READY", index


@check
def load_and_unload(client, address, oracle):
    client.unload_model("magika")
    assert not client.is_model_ready("magika")
    client.load_model("magika")
    assert client.is_model_ready("magika")
    ask(client, rows(1))
    refused(400, ["unknown"], lambda: client.load_model("unknown"))


@check
def mistakes_are_named(client, address, oracle):
    array = rows(1)
    refused(404, ["unknown"], lambda: ask(client, array, model="unknown"))
    refused(400, ["f32 [1, 2048]", "takes i32"], lambda: ask(client, array.astype(np.float32), datatype="FP32"))
    refused(400, ["2048", "100"], lambda: ask(client, array[:, :100].copy()))
    refused(400, ["letters", "bytes"], lambda: ask(client, array, name="letters"))
    for body in (b"", b"{", b"[]", b'{"inputs": 5}', b'{"inputs": []}', b"\xff" * 100):
        status, answer = post(address, "/v2/models/magika/infer", body)
        assert status == 400 and answer["error"], (body, status, answer)
    short = json.dumps(
        {"inputs": [{"name": "bytes", "datatype": "INT32", "shape": [1, 2048], "parameters": {"binary_data_size": 8192}}]}
    ).encode()
    status, answer = post(address, "/v2/models/magika/infer", short + b"\0" * 100, {"Inference-Header-Content-Length": str(len(short))})
    assert status == 400 and "8192" in answer["error"], answer
    status, answer = post(address, "/v2/models/magika/infer", b"{}", {"Inference-Header-Content-Length": "1000"})
    assert status == 400 and answer["error"], answer
    huge = json.dumps({"inputs": [{"name": "bytes", "datatype": "INT32", "shape": [1 << 40, 2048], "data": [1]}]}).encode()
    status, answer = post(address, "/v2/models/magika/infer", huge)
    assert status == 400 and answer["error"], answer


@check
def a_client_that_goes_away(client, address, oracle):
    host, port = address.split(":")
    array = rows(64)
    header = json.dumps(
        {"inputs": [{"name": "bytes", "datatype": "INT32", "shape": [64, 2048], "parameters": {"binary_data_size": array.nbytes}}]}
    ).encode()
    for sent in (10, len(header), len(header) + array.nbytes):
        with socket.create_connection((host, int(port))) as connection:
            body = header + array.tobytes()
            head = f"POST /v2/models/magika/infer HTTP/1.1\r\nHost: localhost\r\nInference-Header-Content-Length: {len(header)}\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body[:sent])
    ask(client, rows(1))


def main():
    address, models = sys.argv[1], pathlib.Path(sys.argv[2])
    oracle = ort.InferenceSession(models / "magika.onnx", providers=["CPUExecutionProvider"])
    failed = 0
    for function in CHECKS:
        try:
            with triton.InferenceServerClient(address, concurrency=4) as client:
                function(client, address, oracle)
            print(f"ok      {function.__name__}")
        except Exception as error:  # every check reports, whatever went wrong in another
            failed += 1
            print(f"FAILED  {function.__name__}: {type(error).__name__}: {error}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
