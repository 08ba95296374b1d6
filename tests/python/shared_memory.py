#!/usr/bin/env python3
"""System shared memory with an unmodified tritonclient, over HTTP and gRPC: the flow of Triton's examples simple_http_shm_client and simple_grpc_shm_client, strings in shared memory, and invalid requests.

shared_memory.py model FILE                    writes the examples' model: sum and difference of two inputs
shared_memory.py run HTTP_ADDRESS GRPC_ADDRESS exits with 1 and prints the differences
"""

import os
import sys

import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
import tritonclient.utils.shared_memory as shm
from triton_regions import count, refused

MODEL = "simple"
PREFIX = f"/atoll_{os.getpid()}"


def write_model(path):
    import onnx
    from onnx import TensorProto, helper

    tensor = lambda name: helper.make_tensor_value_info(name, TensorProto.INT32, [1, 16])
    nodes = [helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]), helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"])]
    graph = helper.make_graph(nodes, MODEL, [tensor("INPUT0"), tensor("INPUT1")], [tensor("OUTPUT0"), tensor("OUTPUT1")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def example(triton, client):
    """The steps of Triton's examples."""
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory()
    input0 = np.arange(start=0, stop=16, dtype=np.int32)
    input1 = np.ones(shape=16, dtype=np.int32)
    size = input0.nbytes
    out = shm.create_shared_memory_region("output_data", f"{PREFIX}_output_simple", size * 2)
    client.register_system_shared_memory("output_data", f"{PREFIX}_output_simple", size * 2)
    given = shm.create_shared_memory_region("input_data", f"{PREFIX}_input_simple", size * 2)
    try:
        shm.set_shared_memory_region(given, [input0])
        shm.set_shared_memory_region(given, [input1], offset=size)
        client.register_system_shared_memory("input_data", f"{PREFIX}_input_simple", size * 2)
        inputs = [triton.InferInput(f"INPUT{at}", [1, 16], "INT32") for at in (0, 1)]
        inputs[0].set_shared_memory("input_data", size)
        inputs[1].set_shared_memory("input_data", size, offset=size)
        binary = {"binary_data": True} if triton is http_client else {}
        outputs = [triton.InferRequestedOutput(f"OUTPUT{at}", **binary) for at in (0, 1)]
        outputs[0].set_shared_memory("output_data", size)
        outputs[1].set_shared_memory("output_data", size, offset=size)
        results = client.infer(model_name=MODEL, inputs=inputs, outputs=outputs)
        found = results.get_output("OUTPUT0")
        assert found is not None and results.get_output("OUTPUT1") is not None
        for at, expected in ((0, input0 + input1), (1, input0 - input1)):
            got = shm.get_contents_as_numpy(out, np.int32, [1, 16], offset=at * size)
            assert (got == expected).all(), (at, got)
        assert count(client.get_system_shared_memory_status()) == 2
        assert count(client.get_system_shared_memory_status("input_data")) == 1
        mixed(triton, client, inputs, outputs, input0, input1, out)
        mistakes(triton, client, inputs, outputs, size)
        client.unregister_system_shared_memory("input_data")
        refused(["input_data"], lambda: client.infer(MODEL, inputs, outputs=outputs))
        client.unregister_system_shared_memory()
        assert count(client.get_system_shared_memory_status()) == 0
        assert count(client.get_cuda_shared_memory_status()) == 0
    finally:
        shm.destroy_shared_memory_region(given)
        shm.destroy_shared_memory_region(out)


def mixed(triton, client, inputs, outputs, input0, input1, out):
    """One input and one output in shared memory, the others in the messages."""
    sent = triton.InferInput("INPUT0", [1, 16], "INT32")
    sent.set_data_from_numpy((input0 * 3).reshape(1, 16))
    read = triton.InferRequestedOutput("OUTPUT0")
    for order in ((sent, inputs[1]), (inputs[1], sent)):
        for wanted in ((read, outputs[1]), (outputs[1], read)):
            results = client.infer(MODEL, list(order), outputs=list(wanted))
            assert (results.as_numpy("OUTPUT0") == input0 * 3 + input1).all()
            got = shm.get_contents_as_numpy(out, np.int32, [1, 16], offset=input0.nbytes)
            assert (got == input0 * 3 - input1).all(), got


def mistakes(triton, client, inputs, outputs, size):
    refused(["already"], lambda: client.register_system_shared_memory("input_data", f"{PREFIX}_input_simple", size))
    refused(["does not exist"], lambda: client.register_system_shared_memory("none", f"{PREFIX}_none", size))
    refused(["exceed"], lambda: client.register_system_shared_memory("big", f"{PREFIX}_input_simple", 1 << 20))
    refused(["/etc/passwd"], lambda: client.register_system_shared_memory("file", "/../../etc/passwd", size))
    refused(["none"], lambda: client.get_system_shared_memory_status("none"))
    refused(["cuda"], lambda: client.register_cuda_shared_memory("c", b"AA==", 0, size))
    wrong = triton.InferInput("INPUT0", [1, 16], "INT32")
    wrong.set_shared_memory("input_data", size, offset=size + 1)
    refused(["exceed", "input_data"], lambda: client.infer(MODEL, [wrong, inputs[1]], outputs=outputs))
    wrong.set_shared_memory("input_data", size - 4)
    refused(["INPUT0", "needs 64"], lambda: client.infer(MODEL, [wrong, inputs[1]], outputs=outputs))
    small = triton.InferRequestedOutput("OUTPUT0")
    small.set_shared_memory("output_data", size - 4)
    refused(["output_data", "60 bytes"], lambda: client.infer(MODEL, inputs, outputs=[small]))


def main():
    if sys.argv[1] == "model":
        return write_model(sys.argv[2])
    failed = 0
    for triton, address in ((http_client, sys.argv[2]), (grpc_client, sys.argv[3])):
        try:
            with triton.InferenceServerClient(address) as client:
                example(triton, client)
            print(f"ok      {triton.__name__}")
        except Exception as error:  # both protocols report, whatever went wrong in the other
            failed += 1
            print(f"FAILED  {triton.__name__}: {type(error).__name__}: {error}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
