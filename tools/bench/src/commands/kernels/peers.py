"""Times the kernels of `atoll bench kernel` where peers run them: OpenBLAS through NumPy, pocl through pyopencl.

peers.py SOURCE THREADS: prints {"openblas": {NAME: seconds, …} or null, "pocl": …, "notes": […]}; seconds are the best of several runs.
"""

import json
import os
import sys
import time

SOURCE, THREADS = sys.argv[1], int(sys.argv[2])
# All of these are read when the libraries start.
os.environ.update(OPENBLAS_NUM_THREADS=str(THREADS), OMP_NUM_THREADS=str(THREADS), POCL_MAX_PTHREAD_COUNT=str(THREADS))
os.environ.setdefault("OCL_ICD_VENDORS", "/etc/OpenCL/vendors")
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])

SECONDS = 0.4
PLANE = 1 << 20


def best(run):
    run()
    times = []
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def openblas(np):
    a, b = (np.random.randn(512, 512).astype(np.float32) for _ in range(2))
    c = np.empty_like(a)
    return {"gemm_f32_512": best(lambda: np.matmul(a, b, out=c))}


def pocl(np):
    import pyopencl as cl

    platform = next(p for p in cl.get_platforms() if "Portable" in p.name)
    context = cl.Context([platform.get_devices()[0]])
    queue = cl.CommandQueue(context)
    program = cl.Program(context, open(SOURCE).read()).build()

    def memory(array):
        return cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=array)

    def floats(count):
        return memory(np.random.randn(count).astype(np.float32))

    x, y, z = (floats(PLANE) for _ in range(3))
    row = [floats(1024) for _ in range(2)]
    data, bins = memory(np.random.randint(0, 256, 4 * PLANE).astype(np.uint8)), memory(np.zeros(256, np.uint32))
    launches = {
        "gemm_f32_512": ("gemm", (512, 64), (32, 8), (floats(512 * 512), floats(512 * 512), floats(512 * 512), 512)),
        "vector_add_f32_1m": ("vector_add", (PLANE,), (256,), (x, y, z, PLANE)),
        "softmax_f32_1024x1024": ("softmax", (PLANE // 4,), (256,), (x, y, 1024)),
        "layernorm_f32_1024x1024": ("layernorm", (PLANE // 4,), (256,), (x, *row, y, 1024)),
        "conv3x3_f32_1024": ("conv3x3", (1024, 1024), (32, 8), (x, floats(9), y, 1024)),
        "transpose_f32_1024": ("transpose", (1024, 256), (32, 8), (x, y, 1024)),
        "histogram_u8_4m": ("histogram", (64 * 256,), (256,), (data, bins, 4 * PLANE)),
    }
    seconds = {}
    for name, (kernel, whole, block, arguments) in launches.items():
        function = getattr(program, kernel)
        arguments = [np.int32(a) if isinstance(a, int) else a for a in arguments]
        seconds[name] = best(lambda: function(queue, whole, block, *arguments).wait())
    return seconds


def main():
    result = {"openblas": None, "pocl": None, "notes": []}
    try:
        import numpy as np
    except ImportError as error:
        result["notes"].append(f"no OpenBLAS and no pocl: {error}")
        return print(json.dumps(result))
    result["openblas"] = openblas(np)
    try:
        result["pocl"] = pocl(np)
    except Exception as error:
        first = str(error).splitlines() or [type(error).__name__]
        result["notes"].append(f"no pocl: {first[0]} (apt install pocl-opencl-icd, pip install pyopencl)")
    print(json.dumps(result))


main()
