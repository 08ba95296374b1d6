#!/usr/bin/env python3
"""Unmodified gRPC clients against a running daemon that serves `magika` and `silero_vad`: tritonclient, with and without asyncio and streams, gRPC's clients for health and reflection, and requests that none of these send.

grpc_conformance.py GRPC_ADDRESS MODELS_DIR          exits with 1 and prints the differences
"""

import asyncio
import pathlib
import queue
import sys

import grpc
import numpy as np
import onnxruntime as ort
import tritonclient.grpc as triton
import tritonclient.grpc.aio as aio
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

CHECKS = []
TIMEOUT = 60


def check(function):
    CHECKS.append(function)
    return function


def rows(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 2048)).astype(np.int32)


def given(array, name="bytes", datatype="INT32"):
    tensor = triton.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def ask(client, array, model="magika", outputs=("target_label",), **options):
    wanted = [triton.InferRequestedOutput(name) for name in outputs]
    return client.infer(model, [given(array)], outputs=wanted, **options)


def same(got, expected):
    error = np.linalg.norm(got - expected) / max(np.linalg.norm(expected), 1e-12)
    assert got.shape == expected.shape and error < 1e-3, error


def refused(code, words, call):
    """Expects that the call fails with the code and a message that contains every word."""
    try:
        call()
    except InferenceServerException as error:
        assert code in str(error.status() or ""), f"{error.status()}, expected {code}: {error.message()}"
        for word in words:
            assert word.lower() in error.message().lower(), f"{error.message()!r} does not say {word!r}"
        return
    raise AssertionError(f"nothing was refused, expected {code}")


@check
def health_and_metadata(client, address, oracle):
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("magika")
    assert not client.is_model_ready("unknown") and not client.is_model_ready("magika", "7")
    metadata = client.get_model_metadata("magika")
    assert (metadata.inputs[0].name, metadata.inputs[0].datatype) == ("bytes", "INT32"), metadata
    assert list(metadata.inputs[0].shape) == [-1, 2048], metadata
    assert "statistics" in client.get_server_metadata().extensions
    config = client.get_model_config("magika", as_json=True)["config"]
    assert config["name"] == "magika" and config["input"][0]["data_type"] == "TYPE_INT32", config
    assert client.get_model_config("silero_vad").config.sequence_batching.state[0].input_name == "h"


@check
def answers_equal_the_oracle(client, address, oracle):
    for count in (1, 3, 17):
        array = rows(count, seed=count)
        (expected,) = oracle.run(None, {"bytes": array})
        for compression in (None, "gzip", "deflate"):
            for priority in (0, 1, 2):
                answer = ask(client, array, priority=priority, request_id="r1", compression_algorithm=compression)
                assert answer.get_response().id == "r1"
                same(answer.as_numpy("target_label"), expected)


@check
def classes_are_strings(client, address, oracle):
    array = rows(2)
    (expected,) = oracle.run(None, {"bytes": array})
    wanted = [triton.InferRequestedOutput("target_label", class_count=3)]
    got = client.infer("magika", [given(array)], outputs=wanted).as_numpy("target_label")
    assert got.shape == (2, 3) and got.dtype == np.object_
    for row, scores in zip(got, expected):
        assert int(row[0].decode().split(":")[1]) == int(scores.argmax())


@check
def strings_are_refused_by_a_model_of_numbers(client, address, oracle):
    text = np.array([[b"a", "\u00fc".encode()]], dtype=np.object_)
    refused("INVALID_ARGUMENT", ["bytes"], lambda: client.infer("magika", [given(text, datatype="BYTES")]))


@check
def mistakes_are_named(client, address, oracle):
    array = rows(1)
    refused("NOT_FOUND", ["unknown"], lambda: ask(client, array, model="unknown"))
    floats = given(array.astype(np.float32), datatype="FP32")
    refused("INVALID_ARGUMENT", ["f32 [1, 2048]", "takes i32"], lambda: client.infer("magika", [floats]))
    refused("INVALID_ARGUMENT", ["2048", "100"], lambda: ask(client, array[:, :100].copy()))
    refused("INVALID_ARGUMENT", ["letters"], lambda: client.infer("magika", [given(array, name="letters")]))
    refused("INVALID_ARGUMENT", ["nothing"], lambda: ask(client, array, outputs=["nothing"]))
    ask(client, array)


@check
def asynchronous_calls_and_their_end(client, address, oracle):
    answers = queue.Queue()
    array = rows(2)
    (expected,) = oracle.run(None, {"bytes": array})
    for _ in range(8):
        client.async_infer("magika", [given(array)], lambda result, error: answers.put((result, error)))
    for _ in range(8):
        result, error = answers.get(timeout=TIMEOUT)
        assert error is None, error
        same(result.as_numpy("target_label"), expected)
    client.async_infer("magika", [given(rows(64))], lambda result, error: answers.put((result, error))).cancel()
    result, error = answers.get(timeout=TIMEOUT)
    assert result is not None or "cancelled" in str(error).lower(), error
    ask(client, array)


@check
def calls_with_asyncio(client, address, oracle):
    async def work():
        async with aio.InferenceServerClient(address) as own:
            assert await own.is_server_ready()
            results = await asyncio.gather(*(own.infer("magika", [given(rows(1))]) for _ in range(4)))
            assert all(result.as_numpy("target_label").shape[0] == 1 for result in results)

    asyncio.run(work())


@check
def a_stream_has_answers_in_order_and_errors_between(client, address, oracle):
    answers = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    array = rows(1)
    for number in range(6):
        model = "unknown" if number == 3 else "magika"
        client.async_stream_infer(model, [given(array)], request_id=str(number), enable_empty_final_response=True)
    (expected,) = oracle.run(None, {"bytes": array})
    for number in range(6):
        result, error = answers.get(timeout=TIMEOUT)
        if number == 3:
            assert "unknown" in str(error), error
            continue
        assert error is None, error
        response = result.get_response()
        assert response.id == str(number) and response.parameters["triton_final_response"].bool_param
        same(result.as_numpy("target_label"), expected)
    client.stop_stream()


@check
def sequences_on_a_stream(client, address, oracle):
    models = pathlib.Path(sys.argv[2])
    session = ort.InferenceSession(models / "silero_vad.onnx", providers=["CPUExecutionProvider"])
    shapes = {i.name: [1 if isinstance(size, str) else size for size in i.shape] for i in session.get_inputs()}
    names = [output.name for output in session.get_outputs()]
    random = np.random.default_rng(3)
    answers = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for _ in range(2):
        expected = []
        states = {number: {"h": np.zeros(shapes["h"], np.float32), "c": np.zeros(shapes["c"], np.float32)} for number in (7, "eight")}
        for step in range(10):
            for number, state in states.items():
                audio = (0.1 * random.standard_normal((1, 576))).astype(np.float32)
                client.async_stream_infer("silero_vad", [given(audio, "input", "FP32")], sequence_id=number, sequence_start=step == 0, sequence_end=step == 9)
                outputs = dict(zip(names, session.run(None, {"input": audio, **state})))
                states[number] = {"h": outputs.pop("hn"), "c": outputs.pop("cn")}
                expected.append(outputs)
        for outputs in expected:
            result, error = answers.get(timeout=TIMEOUT)
            assert error is None, error
            for name, value in outputs.items():
                same(result.as_numpy(name), value)
    client.async_stream_infer("silero_vad", [given(np.zeros((1, 576), np.float32), "input", "FP32")], sequence_id=7)
    result, error = answers.get(timeout=TIMEOUT)
    assert "sequence_start" in str(error), error
    client.stop_stream()


@check
def statistics_and_index(client, address, oracle):
    before = client.get_inference_statistics("magika").model_stats[0]
    ask(client, rows(1))
    after = client.get_inference_statistics("magika").model_stats[0]
    assert after.inference_stats.success.count == before.inference_stats.success.count + 1
    assert after.inference_stats.compute_infer.ns > before.inference_stats.compute_infer.ns
    index = {model.name: model.state for model in client.get_model_repository_index().models}
    assert index["magika"] == "READY", index


@check
def load_and_unload(client, address, oracle):
    client.unload_model("magika")
    assert not client.is_model_ready("magika")
    client.load_model("magika")
    assert client.is_model_ready("magika")
    ask(client, rows(1))
    refused("INVALID_ARGUMENT", ["unknown"], lambda: client.load_model("unknown"))
    refused("INVALID_ARGUMENT", ["config"], lambda: client.load_model("magika", config="{"))


@check
def settings_and_shared_memory(client, address, oracle):
    trace = client.get_trace_settings(as_json=True)["settings"]
    assert trace["trace_level"]["value"] == ["OFF"], trace
    refused("INVALID_ARGUMENT", ["trace_level"], lambda: client.update_trace_settings("magika", {"trace_level": ["TIMESTAMPS"]}))
    log = client.get_log_settings(as_json=True)["settings"]
    assert log["log_format"]["string_param"] == "default", log
    refused("INVALID_ARGUMENT", ["log_format"], lambda: client.update_log_settings({"log_format": "ISO8601"}))
    assert not client.get_system_shared_memory_status().regions
    assert not client.get_cuda_shared_memory_status().regions
    refused("INVALID_ARGUMENT", ["does not exist"], lambda: client.register_system_shared_memory("region", "/key", 64))
    refused("UNIMPLEMENTED", ["CUDA shared memory"], lambda: client.register_cuda_shared_memory("region", b"AA==", 0, 64))
    client.unregister_system_shared_memory()


@check
def health_and_reflection(client, address, oracle):
    with grpc.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        serving = health_pb2.HealthCheckResponse.SERVING
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT).status == serving
        watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT)
        assert next(watch).status == serving
        watch.cancel()
        database = ProtoReflectionDescriptorDatabase(channel)
        assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= set(database.get_services())
        service = DescriptorPool(database).FindServiceByName("inference.GRPCInferenceService")
        known = {method.name for method in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods}
        assert {method.name for method in service.methods} == known
        method = service.FindMethodByName("ServerMetadata")
        request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        call = channel.unary_unary(f"/{service.full_name}/{method.name}", request.SerializeToString, response.FromString)
        assert call(request(), timeout=TIMEOUT).name == "atoll"


@check
def every_field_has_the_number_of_the_public_protocol(client, address, oracle):
    with grpc.insecure_channel(address) as channel:
        pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        service = pool.FindServiceByName("inference.GRPCInferenceService")
        public = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
        pairs = [(getattr(method, side), getattr(public.methods_by_name[method.name], side)) for method in service.methods for side in ("input_type", "output_type")]
        seen = set()
        while pairs:
            ours, theirs = pairs.pop()
            if ours.full_name in seen:
                continue
            seen.add(ours.full_name)
            assert ours.full_name == theirs.full_name
            for field in ours.fields:
                other = theirs.fields_by_name[field.name]
                same_form = (field.number, field.type, field.is_repeated) == (other.number, other.type, other.is_repeated)
                assert same_form, f"{ours.full_name}.{field.name}"
                if field.message_type:
                    pairs.append((field.message_type, other.message_type))
                if field.enum_type:
                    numbers = {value.name: value.number for value in other.enum_type.values}
                    assert all(numbers[value.name] == value.number for value in field.enum_type.values)
        assert len(seen) > 60, len(seen)


@check
def what_no_client_sends_is_refused(client, address, oracle):
    def code(method, message, channel):
        try:
            channel.unary_unary(method)(message, timeout=TIMEOUT)
        except grpc.RpcError as error:
            return error.code()
        return None

    infer = "/inference.GRPCInferenceService/ModelInfer"
    with grpc.insecure_channel(address, options=[("grpc.max_send_message_length", -1)]) as channel:
        assert code("/inference.Other/Infer", b"", channel) == grpc.StatusCode.UNIMPLEMENTED
        assert code("/inference.GRPCInferenceService/Other", b"", channel) == grpc.StatusCode.UNIMPLEMENTED
        assert code(infer, b"\xff" * 100, channel) == grpc.StatusCode.INVALID_ARGUMENT
        assert code(infer, b"\x0a\x02\xff\xfe", channel) == grpc.StatusCode.INVALID_ARGUMENT
        assert code(infer, b"\x2a\x00" * 100_000, channel) == grpc.StatusCode.INVALID_ARGUMENT
        assert code(infer, b"\0" * (130 << 20), channel) == grpc.StatusCode.RESOURCE_EXHAUSTED
    ask(client, rows(1))


def main():
    address, models = sys.argv[1], pathlib.Path(sys.argv[2])
    oracle = ort.InferenceSession(models / "magika.onnx", providers=["CPUExecutionProvider"])
    failed = 0
    for function in CHECKS:
        try:
            with triton.InferenceServerClient(address) as client:
                function(client, address, oracle)
            print(f"ok      {function.__name__}")
        except Exception as error:  # every check reports, whatever went wrong in another
            failed += 1
            print(f"FAILED  {function.__name__}: {type(error).__name__}: {error}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
