// Products of matrices in every style.
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

extern "C" __global__ void gemm_naive(const float *a, const float *b, float *c, int m, int n, int k)
{
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= m || column >= n)
        return;
    float sum = 0.0f;
    for (int i = 0; i < k; i++)
        sum += a[row * k + i] * b[i * n + column];
    c[row * n + column] = sum;
}

extern "C" __global__ void gemm_tiled(const float *a, const float *b, float *c, int n)
{
    __shared__ float left[16][16], right[16][16];
    int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * 16 + ty, column = blockIdx.x * 16 + tx;
    float sum = 0.0f;
    for (int k = 0; k < n; k += 16) {
        left[ty][tx] = a[row * n + k + tx];
        right[ty][tx] = b[(k + ty) * n + column];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 16; i++)
            sum += left[ty][i] * right[i][tx];
        __syncthreads();
    }
    c[row * n + column] = sum;
}

// 64 x 64 elements a block, 4 x 4 a thread, vectors of four.
extern "C" __global__ void __launch_bounds__(256) gemm_registers(const float *a, const float *b, float *c, int n)
{
    __shared__ float left[16][64], right[16][64];
    int t = threadIdx.x, tx = t % 16, ty = t / 16;
    int row = blockIdx.y * 64, column = blockIdx.x * 64;
    float sum[4][4] = {};
    for (int k = 0; k < n; k += 16) {
        float4 v = *(const float4 *)&a[(row + t / 4) * n + k + t % 4 * 4];
        left[t % 4 * 4 + 0][t / 4] = v.x;
        left[t % 4 * 4 + 1][t / 4] = v.y;
        left[t % 4 * 4 + 2][t / 4] = v.z;
        left[t % 4 * 4 + 3][t / 4] = v.w;
        *(float4 *)&right[t / 16][t % 16 * 4] = *(const float4 *)&b[(k + t / 16) * n + column + t % 16 * 4];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float4 p = *(float4 *)&left[i][ty * 4], q = *(float4 *)&right[i][tx * 4];
            float pp[4] = {p.x, p.y, p.z, p.w}, qq[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int s = 0; s < 4; s++)
                    sum[r][s] = fmaf(pp[r], qq[s], sum[r][s]);
        }
        __syncthreads();
    }
    for (int r = 0; r < 4; r++)
        *(float4 *)&c[(row + ty * 4 + r) * n + column + tx * 4] = make_float4(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
}

extern "C" __global__ void gemm_double(const double *a, const double *b, double *c, int n)
{
    int column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    double sum = 0.0;
    for (int i = 0; i < n; i++)
        sum = fma(a[row * n + i], b[i * n + column], sum);
    c[row * n + column] = sum;
}

// clang has no library for the intrinsic.
static __device__ int dot4(int a, int b, int c)
{
    int sum;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}

// Four bytes at once.
extern "C" __global__ void gemm_bytes(const int *a, const int *b, int *c, int n, int words)
{
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (column >= n)
        return;
    int sum = 0;
    for (int i = 0; i < words; i++)
        sum = dot4(a[row * words + i], b[column * words + i], sum);
    c[row * n + column] = sum;
}

extern "C" __global__ void gemv(const float *a, const float *x, float *y, int n)
{
    int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    float sum = 0.0f;
    for (int i = lane; i < n; i += 32)
        sum += a[row * n + i] * x[i];
    for (int reach = 16; reach > 0; reach /= 2)
        sum += __shfl_down_sync(~0u, sum, reach);
    if (lane == 0)
        y[row] = sum;
}

// One warp makes 16 x 16 elements: mma.sync m16n8k16 through the wmma interface.
extern "C" __global__ void gemm_wmma(const __half *a, const __half *b, float *c, int n)
{
    using namespace nvcuda;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    int row = blockIdx.y * 16, column = blockIdx.x * 16;
    for (int k = 0; k < n; k += 16) {
        wmma::load_matrix_sync(left, a + row * n + k, n);
        wmma::load_matrix_sync(right, b + k * n + column, n);
        wmma::mma_sync(sum, left, right, sum);
    }
    wmma::store_matrix_sync(c + row * n + column, sum, n, wmma::mem_row_major);
}

// The same by hand: fragments through ldmatrix, tiles through cp.async.
extern "C" __global__ void gemm_mma(const __half *a, const __half *b, float *c, int n)
{
    __shared__ __align__(16) __half left[16][16], right[16][8];
    int lane = threadIdx.x, row = blockIdx.y * 16, column = blockIdx.x * 8;
    float sum[4] = {};
    for (int k = 0; k < n; k += 16) {
        unsigned to = (unsigned)__cvta_generic_to_shared(&left[lane / 2][lane % 2 * 8]);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to), "l"(a + (row + lane / 2) * n + k + lane % 2 * 8));
        if (lane < 16) {
            to = (unsigned)__cvta_generic_to_shared(&right[lane][0]);
            asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to), "l"(b + (k + lane) * n + column));
        }
        asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
        __syncwarp();
        unsigned p[4], q[2];
        unsigned from = (unsigned)__cvta_generic_to_shared(&left[lane % 16][lane / 16 * 8]);
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(p[0]), "=r"(p[1]), "=r"(p[2]), "=r"(p[3]) : "r"(from));
        from = (unsigned)__cvta_generic_to_shared(&right[lane % 16][0]);
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(q[0]), "=r"(q[1]) : "r"(from));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "r"(q[0]), "r"(q[1]));
        __syncwarp();
    }
    int r = row + lane / 4, s = column + lane % 4 * 2;
    c[r * n + s] = sum[0];
    c[r * n + s + 1] = sum[1];
    c[(r + 8) * n + s] = sum[2];
    c[(r + 8) * n + s + 1] = sum[3];
}

// Attention of one head, a query a thread, keys and values in tiles of shared memory, softmax as it goes along.
extern "C" __global__ void attention(const float *q, const float *k, const float *v, float *out, int n)
{
    __shared__ float keys[32][32], values[32][32];
    int t = threadIdx.x, query = blockIdx.x * 32 + t;
    float mine[32], sum[32] = {}, high = -3e38f, weight = 0.0f;
    for (int i = 0; i < 32; i++)
        mine[i] = q[query * 32 + i] * 0.17677669f;
    for (int base = 0; base < n; base += 32) {
        for (int i = 0; i < 32; i++) {
            keys[i][t] = k[(base + i) * 32 + t];
            values[i][t] = v[(base + i) * 32 + t];
        }
        __syncthreads();
        for (int j = 0; j < 32; j++) {
            float score = 0.0f;
            for (int i = 0; i < 32; i++)
                score += mine[i] * keys[j][i];
            float top = fmaxf(high, score), old = __expf(high - top), now = __expf(score - top);
            weight = weight * old + now;
            for (int i = 0; i < 32; i++)
                sum[i] = sum[i] * old + now * values[j][i];
            high = top;
        }
        __syncthreads();
    }
    for (int i = 0; i < 32; i++)
        out[query * 32 + i] = sum[i] / weight;
}

extern "C" __global__ void lu_panel(float *a, int n)
{
    int t = threadIdx.x;
    for (int k = 0; k < n - 1; k++) {
        for (int r = k + 1 + t; r < n; r += blockDim.x)
            a[r * n + k] /= a[k * n + k];
        __syncthreads();
        for (int at = t; at < (n - k - 1) * (n - k - 1); at += blockDim.x) {
            int r = k + 1 + at / (n - k - 1), c = k + 1 + at % (n - k - 1);
            a[r * n + c] -= a[r * n + k] * a[k * n + c];
        }
        __syncthreads();
    }
}

extern "C" __global__ void floyd_warshall(int *distance, int n)
{
    for (int k = 0; k < n; k++) {
        for (int at = threadIdx.x; at < n * n; at += blockDim.x) {
            int through = distance[at / n * n + k] + distance[k * n + at % n];
            if (through < distance[at])
                distance[at] = through;
        }
        __syncthreads();
    }
}
