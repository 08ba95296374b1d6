#!/usr/bin/env python3
"""KServe's SDK and grpc_requests, unmodified, against a running daemon that serves `mlp` and `alone`.

kserve_conformance.py HTTP_ADDRESS GRPC_ADDRESS CASE.npz      exits with 1 and prints the differences

CASE.npz has the arrays `input` and `output` of the model.
"""

import asyncio
import sys

import grpc
import httpx
import numpy as np
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_requests import Client as Reflected
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig
from kserve.protocol.infer_type import RequestedOutput

CHECKS = []
TOLERANCE = 1e-4


def check(function):
    CHECKS.append(function)
    return function


def same(got, expected):
    got = np.asarray(got, np.float32)
    error = np.linalg.norm(got - expected) / np.linalg.norm(expected)
    assert got.shape == expected.shape and error < TOLERANCE, (got.shape, expected.shape, error)


def request(array, binary, model="mlp", **options):
    tensor = InferInput("input", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array, binary_data=binary)
    return InferRequest(model, [tensor], **options)


@check
async def first_version(http, address, given, expected):
    async with InferenceRESTClient(RESTConfig(protocol="v1", retries=0)) as client:
        assert await client.is_server_live(http) is True
        assert await client.is_model_ready(http, "mlp") is True
        answer = await client.infer(http, {"instances": given.tolist()}, model_name="mlp")
        same(answer["predictions"], expected)
        answer = await client.infer(http, {"inputs": {"input": given.tolist()}}, model_name="alone")
        same(answer["outputs"], expected)
        for name, data, status, word in [
            ("unknown", {"instances": [[1]]}, 404, "unknown"),
            ("mlp", {"instances": [[1]]}, 400, "input"),
        ]:
            try:
                await client.infer(http, data, model_name=name)
            except httpx.HTTPStatusError as error:
                assert error.response.status_code == status and word in str(error), error
            else:
                raise AssertionError("nothing was refused")


@check
async def second_version(http, address, given, expected):
    async with InferenceRESTClient(RESTConfig(protocol="v2", retries=0)) as client:
        assert await client.is_server_live(http) is True and await client.is_server_ready(http) is True
        assert await client.is_model_ready(http, "mlp") is True and not await client.is_model_ready(http, "unknown")
        for binary in (False, True):
            for parameters in (None, {"binary_data_output": True}, {"priority": 1}):
                asked = request(given, binary, request_id="an id", parameters=parameters)
                answer = await client.infer(http, asked, model_name="mlp")
                assert answer.id == "an id" and answer.model_name == "mlp", answer
                same(answer.outputs[0].as_numpy(), expected)
            wanted = [RequestedOutput("output", {"binary_data": binary})]
            answer = await client.infer(http, request(given, binary, request_outputs=wanted), model_name="mlp")
            same(answer.get_output_by_name("output").as_numpy(), expected)
        # A dictionary is sent as it is.
        body = {"inputs": [{"name": "input", "datatype": "FP32", "shape": list(given.shape), "data": given.tolist()}]}
        same((await client.infer(http, body, model_name="alone")).outputs[0].as_numpy(), expected)
        answers = await asyncio.gather(
            *(client.infer(http, request(given, True), model_name="mlp") for _ in range(16))
        )
        for answer in answers:
            same(answer.outputs[0].as_numpy(), expected)
        try:
            await client.infer(http, request(given[:, 1:].copy(), True), model_name="mlp")
        except httpx.HTTPStatusError as error:
            assert error.response.status_code == 400 and "input" in str(error), error
        else:
            raise AssertionError("nothing was refused")


@check
async def over_grpc(http, address, given, expected):
    async with InferenceGRPCClient(address, retries=0) as client:
        assert await client.is_server_live() and await client.is_server_ready() and await client.is_model_ready("mlp")
        for binary in (False, True):
            asked = request(given, binary, request_id="an id", parameters={"priority": 1})
            answer = await client.infer(asked)
            assert answer.id == "an id" and answer.model_name == "mlp", answer
            same(answer.outputs[0].as_numpy(), expected)
        for asked, code in [
            (request(given, True, model="unknown"), grpc.StatusCode.NOT_FOUND),
            (request(given[:, 1:].copy(), True), grpc.StatusCode.INVALID_ARGUMENT),
        ]:
            try:
                await client.infer(asked)
            except grpc.RpcError as error:
                assert error.code() == code, error
            else:
                raise AssertionError("nothing was refused")


@check
async def by_reflection(http, address, given, expected):
    """A client that knows nothing but what reflection tells."""

    def work():
        # With a pool of its own, since KServe's SDK has other files with the same messages.
        client = Reflected.get_by_endpoint(address, descriptor_pool=DescriptorPool())
        name = "inference.GRPCInferenceService"
        assert name in client.service_names and "grpc.health.v1.Health" in client.service_names
        service = client.service(name)
        assert service.ServerReady({})["ready"] is True
        assert service.ModelMetadata({"name": "mlp"})["inputs"][0]["name"] == "input"
        tensor = {
            "name": "input",
            "datatype": "FP32",
            "shape": list(given.shape),
            "contents": {"fp32_contents": given.ravel().tolist()},
        }
        answer = service.ModelInfer({"model_name": "mlp", "inputs": [tensor]}, raw_output=True)
        got = np.frombuffer(answer.raw_output_contents[0], np.float32) if answer.raw_output_contents else None
        if got is None:
            got = np.array(answer.outputs[0].contents.fp32_contents, np.float32)
        same(got.reshape(expected.shape), expected)
        streamed = service.ModelStreamInfer([{"model_name": "mlp", "inputs": [tensor]}] * 3)
        assert len([each for each in streamed if not each.get("error_message")]) == 3

    await asyncio.to_thread(work)


def main():
    http, address, case = f"http://{sys.argv[1]}", sys.argv[2], np.load(sys.argv[3])
    failed = 0
    for function in CHECKS:
        try:
            asyncio.run(function(http, address, case["input"], case["output"]))
            print(f"ok      {function.__name__}")
        except Exception as error:  # every check reports, whatever went wrong in another
            failed += 1
            print(f"FAILED  {function.__name__}: {type(error).__name__}: {error}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
