// Products of square, row-major matrices whose size is a multiple of 64.

// c = a b. A block of 16 x 16 threads computes 64 x 64 elements, 4 x 4 per thread. Both factors pass
// through shared memory in slices of 16.
extern "C" __global__ void __launch_bounds__(256) sgemm(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int n)
{
    __shared__ float as[16][64];
    __shared__ float bs[16][64];
    const int tx = threadIdx.x, ty = threadIdx.y, t = ty * 16 + tx;
    const float* rows = a + (size_t)blockIdx.y * 64 * n;
    const float* columns = b + (size_t)blockIdx.x * 64;
    float sum[4][4] = {};
    for (int k = 0; k < n; k += 16) {
        for (int i = 0; i < 4; i++) {
            const int at = t + 256 * i;
            as[at % 16][at / 16] = rows[(size_t)(at / 16) * n + k + at % 16];
            bs[at / 64][at % 64] = columns[(size_t)(k + at / 64) * n + at % 64];
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < 16; j++) {
            float x[4], y[4];
            for (int i = 0; i < 4; i++) {
                x[i] = as[j][ty * 4 + i];
                y[i] = bs[j][tx + 16 * i];
            }
            for (int r = 0; r < 4; r++)
                for (int q = 0; q < 4; q++)
                    sum[r][q] += x[r] * y[q];
        }
        __syncthreads();
    }
    for (int r = 0; r < 4; r++)
        for (int q = 0; q < 4; q++)
            c[((size_t)blockIdx.y * 64 + ty * 4 + r) * n + blockIdx.x * 64 + tx + 16 * q] = sum[r][q];
}

// c = a b for complex matrices: 32 x 32 elements per block, 2 x 2 per thread.
extern "C" __global__ void __launch_bounds__(256) cgemm(const float2* __restrict__ a, const float2* __restrict__ b, float2* __restrict__ c, int n)
{
    __shared__ float2 as[16][32];
    __shared__ float2 bs[16][32];
    const int tx = threadIdx.x, ty = threadIdx.y, t = ty * 16 + tx;
    const float2* rows = a + (size_t)blockIdx.y * 32 * n;
    const float2* columns = b + (size_t)blockIdx.x * 32;
    float2 sum[2][2] = {};
    for (int k = 0; k < n; k += 16) {
        for (int i = 0; i < 2; i++) {
            const int at = t + 256 * i;
            as[at % 16][at / 16] = rows[(size_t)(at / 16) * n + k + at % 16];
            bs[at / 32][at % 32] = columns[(size_t)(k + at / 32) * n + at % 32];
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < 16; j++) {
            for (int r = 0; r < 2; r++) {
                const float2 x = as[j][ty * 2 + r];
                for (int q = 0; q < 2; q++) {
                    const float2 y = bs[j][tx + 16 * q];
                    sum[r][q].x += x.x * y.x - x.y * y.y;
                    sum[r][q].y += x.x * y.y + x.y * y.x;
                }
            }
        }
        __syncthreads();
    }
    for (int r = 0; r < 2; r++)
        for (int q = 0; q < 2; q++)
            c[((size_t)blockIdx.y * 32 + ty * 2 + r) * n + blockIdx.x * 32 + tx + 16 * q] = sum[r][q];
}
