// For NVIDIA's own compiler: printf, a constant table, a local array, a texture, a switch, atomics, doubles, a vote and a shuffle.
extern "C" __device__ int printf(const char *, ...);
__constant__ float weights[4] = {0.5f, 1, 2, 4};
__device__ __noinline__ float slow(float x) {
    float local[4];
    for (int k = 0; k < 4; k++) local[(int)x + k & 3] = weights[k] * x;
    return local[(int)(x * 3) & 3];
}
extern "C" __global__ void __launch_bounds__(256, 2) mixed(float *out, const float *__restrict__ in, double *sums, cudaTextureObject_t image, int n) {
    __shared__ float tile[256];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    tile[threadIdx.x] = slow(in[i]) + tex2D<float>(image, i, 0.5f);
    __syncthreads();
    float x = tile[255 - threadIdx.x];
    switch (i & 7) {
    case 0: x *= 2; break;
    case 1: x = __saturatef(x); break;
    case 2: x = x > 0 ? sqrtf(x) : -x; break;
    case 3: x = fminf(x, 3.f); break;
    case 4: printf("%d %f\n", i, x); break;
    case 5: x = __shfl_xor_sync(0xffffffff, x, 1); break;
    default: x = __ballot_sync(0xffffffff, x > 1) ? x / 3 : 0;
    }
    atomicAdd(&sums[i % 3], (double)x);
#pragma unroll 1
    for (int k = 0; k < n % 5; k++) x = fmaf(x, x, in[k]);
    out[i] = x;
}
