// Compiled by nvcc for a debugger: DWARF sections, locations with inlined functions.
__device__ __noinline__ int twice(int x) { return 2 * x; }
__global__ void k(int *out, int n) {
    __shared__ int tile[32];
    for (int i = threadIdx.x; i < n; i += 32) tile[i & 31] = twice(i);
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x];
}
