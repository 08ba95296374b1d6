"""A model in the format of REEF's artifacts, small: reef_small.py FOLDER

Written by hand in the style of the sources in REEF's repository, since its own models are large: a schedule, kernels in HIP, parameters.
"""

import json
import pathlib
import struct
import sys

import numpy as np

SOURCE = """#include <hip/hip_runtime.h>
extern "C" __global__ void fused_nn_dense_add_nn_relu_kernel0(float* __restrict__ placeholder, float* __restrict__ placeholder1, float* __restrict__ T_relu, float* __restrict__ placeholder2) {
  __shared__ float red_buf0[64];
  float T_dense_rf[1];
  T_dense_rf[(0)] = 0.000000e+00f;
  for (int k_outer = 0; k_outer < 2; ++k_outer) {
    T_dense_rf[(0)] = __ocml_fma_f32(placeholder[(((k_outer * 64) + ((int)threadIdx.x)))], placeholder1[((((((int)blockIdx.x) * 128) + (k_outer * 64)) + ((int)threadIdx.x)))], T_dense_rf[(0)]);
  }
  ((volatile float*)red_buf0)[(((int)threadIdx.x))] = T_dense_rf[(0)];
  __syncthreads();
  for (int step = 32; step > 0; step /= 2) {
    if (((int)threadIdx.x) < step) {
      red_buf0[(((int)threadIdx.x))] = (red_buf0[(((int)threadIdx.x))] + red_buf0[((((int)threadIdx.x) + step))]);
    }
    __syncthreads();
  }
  if (((int)threadIdx.x) == 0) {
    T_relu[(((int)blockIdx.x))] = max((red_buf0[(0)] + placeholder2[(((int)blockIdx.x))]), 0.000000e+00f);
  }
}

extern "C" __global__ void fused_nn_softmax_kernel0(float* __restrict__ T_softmax_norm, float* __restrict__ placeholder) {
  float sum = 0.000000e+00f;
  for (int i = 0; i < 10; ++i) {
    sum = (sum + __ocml_exp_f32(placeholder[(i)]));
  }
  if (((int)threadIdx.x) < 10) {
    T_softmax_norm[(((int)threadIdx.x))] = (__ocml_exp_f32(placeholder[(((int)threadIdx.x))]) / sum);
  }
}
"""
SCHEDULE = {
    "storage": [
        {"name": "data", "size": 128, "stype": "float32"},
        {"name": "p0", "size": 1280, "stype": "float32"},
        {"name": "null", "size": 10, "stype": "float32"},
        {"name": "p1", "size": 10, "stype": "float32"},
        {"name": "output", "size": 10, "stype": "float32"},
    ],
    "kernels": [
        {"name": "fused_nn_dense_add_nn_relu_kernel0", "launch_params": [10, 1, 1, 64, 1, 1], "args": [0, 1, 2, 3]},
        {"name": "fused_nn_softmax_kernel0", "launch_params": [1, 1, 1, 64, 1, 1], "args": [4, 2]},
    ],
    "args": [0, 1, 3],
    "shared_memory": {"fused_nn_dense_add_nn_relu_kernel0": 256},
}

folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
random = np.random.default_rng(5)
arrays = {"p0": random.standard_normal(1280).astype(np.float32) / 11, "p1": random.standard_normal(10).astype(np.float32)}
parts = [b"TVM_MODEL_PARAMS\0", struct.pack("<Q", len(arrays))]
for name, array in arrays.items():
    parts += [name.encode() + b"\0", struct.pack("<Q", array.size), array.astype(np.float32).tobytes()]
(folder / f"{folder.name}.param").write_bytes(b"".join(parts))
(folder / f"{folder.name}.cu").write_text(SOURCE)
(folder / f"{folder.name}.json").write_text(json.dumps(SCHEDULE))
