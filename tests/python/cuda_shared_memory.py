#!/usr/bin/env python3
"""CUDA shared memory with an unmodified tritonclient, over HTTP and gRPC: the flow of Triton's examples simple_http_cudashm_client and simple_grpc_cudashm_client, invalid requests, clients that end, and an executor that is replaced.

cuda_shared_memory.py run HTTP_ADDRESS GRPC_ADDRESS DAEMON_PID  exits with 1 and prints the differences; the model is that of shared_memory.py
cuda_shared_memory.py hold BYTES                                exports zeroed device memory, prints its handle, and waits for the end of its input

tritonclient imports NVIDIA's package cuda-python. Its runtime needs more of the driver than the stand-in has, so this script provides the functions in use, over libcuda.so.1.
"""

import base64
import ctypes
import enum
import os
import signal
import subprocess
import sys
import time
import types

import numpy as np

MODEL = "simple"
HANDLE_BYTES = 64
PATIENCE = 60.0


class Status(enum.IntEnum):
    cudaSuccess = 0
    failed = 999


class Driver:
    """The functions of cuda-python that tritonclient calls: each returns a status and its results."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.device = 0
        assert self.library.cuInit(0) == 0

    def call(self, name, *arguments):
        return Status.cudaSuccess if getattr(self.library, name)(*arguments) == 0 else Status.failed

    def made(self, name, of, *arguments):
        """Calls a function whose first parameter is where it writes its result."""
        result = of()
        return self.call(name, ctypes.byref(result), *arguments), result.value

    def error_string(self, status):
        return Status.cudaSuccess, f"the driver failed with {status}"

    def get_device(self):
        return Status.cudaSuccess, self.device

    def set_device(self, device):
        self.device = device
        status, context = self.made("cuDevicePrimaryCtxRetain", ctypes.c_void_p, device)
        return (self.call("cuCtxSetCurrent", ctypes.c_void_p(context)) if status == 0 else status,)

    def get_attribute(self, attribute, device):
        return self.made("cuDeviceGetAttribute", ctypes.c_int, int(attribute), device)

    def malloc(self, count):
        return self.made("cuMemAlloc_v2", ctypes.c_uint64, ctypes.c_size_t(count))

    def free(self, at):
        return (self.call("cuMemFree_v2", ctypes.c_uint64(at)),)

    def get_handle(self, at):
        handle = Handle()
        return self.call("cuIpcGetMemHandle", ctypes.byref(handle.bytes), ctypes.c_uint64(at)), handle

    def copy(self, to, source, count, _kind, stream):
        to, source = (ctypes.c_uint64(address(end)) for end in (to, source))
        return (self.call("cuMemcpyAsync", to, source, ctypes.c_size_t(count), ctypes.c_void_p(stream)),)

    def stream(self):
        return self.made("cuStreamCreate", ctypes.c_void_p, 0)

    def synchronize(self, stream):
        return (self.call("cuStreamSynchronize", ctypes.c_void_p(stream)),)

    def destroy(self, stream):
        return (self.call("cuStreamDestroy_v2", ctypes.c_void_p(stream)),)

    def state(self, device):
        flags, active = ctypes.c_uint(), ctypes.c_int()
        status = self.call("cuDevicePrimaryCtxGetState", device, ctypes.byref(flags), ctypes.byref(active))
        return status, flags.value, active.value


class Handle:
    def __init__(self):
        self.bytes = (ctypes.c_char * HANDLE_BYTES)()

    def getPtr(self):
        return ctypes.addressof(self.bytes)


def address(end):
    if isinstance(end, int):
        return end
    return ctypes.addressof(end) if isinstance(end, ctypes.Array) else ctypes.cast(end, ctypes.c_void_p).value


def provide_cuda():
    driver = Driver()
    runtime = types.ModuleType("cuda.bindings.runtime")
    runtime.CUDA_IPC_HANDLE_SIZE = HANDLE_BYTES
    runtime.cudaError_t = Status
    runtime.cudaIpcMemHandle_t = Handle
    runtime.cudaDeviceAttr = enum.IntEnum("cudaDeviceAttr", {"cudaDevAttrUnifiedAddressing": 41})
    runtime.cudaMemcpyKind = enum.IntEnum("cudaMemcpyKind", {"cudaMemcpyDefault": 4})
    runtime.cudaGetErrorString = driver.error_string
    runtime.cudaGetDevice = driver.get_device
    runtime.cudaSetDevice = driver.set_device
    runtime.cudaDeviceGetAttribute = driver.get_attribute
    runtime.cudaMalloc = driver.malloc
    runtime.cudaFree = driver.free
    runtime.cudaIpcGetMemHandle = driver.get_handle
    runtime.cudaMemcpyAsync = driver.copy
    runtime.cudaStreamCreate = driver.stream
    runtime.cudaStreamSynchronize = driver.synchronize
    runtime.cudaStreamDestroy = driver.destroy
    lower = types.ModuleType("cuda.bindings.driver")
    lower.CUresult = enum.IntEnum("CUresult", {"CUDA_SUCCESS": 0})
    lower.cuGetErrorString = driver.error_string
    lower.cuDeviceGet = lambda ordinal: (Status.cudaSuccess, ordinal)
    lower.cuDevicePrimaryCtxGetState = driver.state
    bindings, cuda = types.ModuleType("cuda.bindings"), types.ModuleType("cuda")
    bindings.runtime, bindings.driver, cuda.bindings = runtime, lower, bindings
    for module in (cuda, bindings, runtime, lower):
        sys.modules[module.__name__] = module


provide_cuda()
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
import tritonclient.utils.cuda_shared_memory as cudashm
from triton_regions import count, refused
from tritonclient.utils import InferenceServerException


def shared(triton, region, size, offsets=(0, 0)):
    """The inputs of the model in one region."""
    inputs = [triton.InferInput(f"INPUT{at}", [1, 16], "INT32") for at in (0, 1)]
    for given, offset in zip(inputs, offsets):
        given.set_shared_memory(region, size, offset=offset)
    return inputs


def example(triton, client):
    """The steps of Triton's examples."""
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory()
    assert "cuda_shared_memory" in extensions(client.get_server_metadata())
    input0 = np.arange(start=0, stop=16, dtype=np.int32)
    input1 = np.ones(shape=16, dtype=np.int32)
    size = input0.nbytes
    taken = [cudashm.create_shared_memory_region(f"output{at}_data", size, 0) for at in (0, 1)]
    for at in (0, 1):
        client.register_cuda_shared_memory(f"output{at}_data", cudashm.get_raw_handle(taken[at]), 0, size)
    given = cudashm.create_shared_memory_region("input_data", size * 2, 0)
    handle = cudashm.get_raw_handle(given)
    cudashm.set_shared_memory_region(given, [input0, input1])
    client.register_cuda_shared_memory("input_data", handle, 0, size * 2)
    inputs = shared(triton, "input_data", size, (0, size))
    binary = {"binary_data": True} if triton is http_client else {}
    outputs = [triton.InferRequestedOutput(f"OUTPUT{at}", **binary) for at in (0, 1)]
    for at in (0, 1):
        outputs[at].set_shared_memory(f"output{at}_data", size)
    results = client.infer(model_name=MODEL, inputs=inputs, outputs=outputs)
    for at, expected in ((0, input0 + input1), (1, input0 - input1)):
        assert results.get_output(f"OUTPUT{at}") is not None
        got = cudashm.get_contents_as_numpy(taken[at], np.int32, [1, 16])
        assert (got == expected).all(), (at, got)
    assert count(client.get_cuda_shared_memory_status()) == 3
    assert count(client.get_cuda_shared_memory_status("input_data")) == 1
    assert count(client.get_system_shared_memory_status()) == 0
    # The next request sees what was written since.
    cudashm.set_shared_memory_region(given, [input0 * 5, input1])
    client.infer(MODEL, inputs, outputs=outputs)
    assert (cudashm.get_contents_as_numpy(taken[0], np.int32, [16]) == input0 * 5 + input1).all()
    mistakes(triton, client, inputs, outputs, handle, size)
    client.unregister_cuda_shared_memory("input_data")
    refused(["input_data"], lambda: client.infer(MODEL, inputs, outputs=outputs))
    client.unregister_cuda_shared_memory()
    assert count(client.get_cuda_shared_memory_status()) == 0
    # The memory is still the client's.
    assert (cudashm.get_contents_as_numpy(given, np.int32, [16]) == input0 * 5).all()
    cudashm.destroy_shared_memory_region(given)
    del given
    refused(["cannot be opened", "cuIpcOpenMemHandle", "400"], lambda: client.register_cuda_shared_memory("stale", handle, 0, size))
    while taken:
        cudashm.destroy_shared_memory_region(taken.pop())


def extensions(metadata):
    return metadata["extensions"] if isinstance(metadata, dict) else metadata.extensions


def mistakes(triton, client, inputs, outputs, handle, size):
    register = client.register_cuda_shared_memory
    refused(["already"], lambda: register("input_data", handle, 0, size))
    refused(["device_id is 1", "GPUs are: 0"], lambda: register("other", handle, 1, size))
    refused(["byte_size is 129", "128 bytes"], lambda: register("big", handle, 0, 2 * size + 1))
    refused(["byte_size is 0"], lambda: register("empty", handle, 0, 0))
    refused(["has 1 bytes"], lambda: register("short", b"AA==", 0, size))
    refused(["cannot be opened"], lambda: register("wrong", base64.b64encode(b"x" * HANDLE_BYTES), 0, size))
    refused(["CUDA", "none"], lambda: client.get_cuda_shared_memory_status("none"))
    wrong = triton.InferInput("INPUT0", [1, 16], "INT32")
    wrong.set_shared_memory("input_data", size, offset=size + 1)
    refused(["exceed", "input_data"], lambda: client.infer(MODEL, [wrong, inputs[1]], outputs=outputs))
    small = triton.InferRequestedOutput("OUTPUT0")
    small.set_shared_memory("output0_data", size - 4)
    refused(["output0_data", "60 bytes"], lambda: client.infer(MODEL, inputs, outputs=[small]))


class Holder:
    """Another process that has exported memory."""

    def __init__(self, size):
        self.process = subprocess.Popen([sys.executable, __file__, "hold", str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.handle = self.process.stdout.readline().strip()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def hold(size):
    region = cudashm.create_shared_memory_region("held", size, 0)
    cudashm.set_shared_memory_region(region, [np.zeros(size, dtype=np.uint8)])
    print(cudashm.get_raw_handle(region).decode(), flush=True)
    sys.stdin.read()


def clients_end(client):
    """Memory of a process that has ended cannot be opened; memory that is open breaks at most the requests that use it."""
    size = 128
    first, second = Holder(size), Holder(size)
    try:
        client.register_cuda_shared_memory("held", first.handle, 0, size)
        inputs = shared(http_client, "held", size // 2)
        assert (client.infer(MODEL, inputs).as_numpy("OUTPUT0") == 0).all()
    finally:
        first.kill()
        second.kill()
    refused(["cannot be opened"], lambda: client.register_cuda_shared_memory("late", second.handle, 0, size))
    try:
        client.infer(MODEL, inputs)
    except InferenceServerException:
        pass
    client.unregister_cuda_shared_memory()
    refused(["cannot be opened"], lambda: client.register_cuda_shared_memory("again", first.handle, 0, size))


def executor(daemon):
    """The process of the GPU's executor; None if there is none at the moment."""
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/stat") as stat, open(f"/proc/{entry}/cmdline", "rb") as line:
                parent = int(stat.read().rsplit(")", 1)[1].split()[1])
                if parent == daemon and b"executor" in line.read().split(b"\0"):
                    return int(entry)
        except (OSError, IndexError):
            continue
    return None


def executor_is_replaced(client, daemon):
    """The new executor opens the memory again."""
    input0, size = np.arange(32, dtype=np.int32), 64
    given = cudashm.create_shared_memory_region("input_data", 2 * size, 0)
    cudashm.set_shared_memory_region(given, [input0])
    client.register_cuda_shared_memory("input_data", cudashm.get_raw_handle(given), 0, 2 * size)
    inputs = shared(http_client, "input_data", size, (0, size))
    expected = input0[:16] + input0[16:]
    assert (client.infer(MODEL, inputs).as_numpy("OUTPUT0") == expected).all()
    before = executor(daemon)
    os.kill(before, signal.SIGKILL)
    until = time.monotonic() + PATIENCE
    while True:
        try:
            got = client.infer(MODEL, inputs).as_numpy("OUTPUT0")
            if executor(daemon) not in (None, before):
                break
            reason = "it was not replaced"
        except InferenceServerException as error:
            reason = error.message()
        assert time.monotonic() < until, reason
        time.sleep(0.05)
    assert (got == expected).all(), got
    client.unregister_cuda_shared_memory()
    cudashm.destroy_shared_memory_region(given)


def main():
    if sys.argv[1] == "hold":
        return hold(int(sys.argv[2]))
    failed = 0
    with http_client.InferenceServerClient(sys.argv[2]) as http, grpc_client.InferenceServerClient(sys.argv[3]) as grpc:
        steps = [
            ("HTTP", lambda: example(http_client, http)),
            ("gRPC", lambda: example(grpc_client, grpc)),
            ("clients that end", lambda: clients_end(http)),
            ("an executor that is replaced", lambda: executor_is_replaced(http, int(sys.argv[4]))),
        ]
        for name, step in steps:
            try:
                step()
                print(f"ok      {name}")
            except Exception as error:  # the other steps report, whatever went wrong in this one
                failed += 1
                print(f"FAILED  {name}: {type(error).__name__}: {error}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
