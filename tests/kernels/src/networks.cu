// Layers of neural networks, and products on matrix units of every input type.
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

static __device__ float sum_of_warp(float v)
{
    for (int reach = 16; reach > 0; reach /= 2)
        v += __shfl_xor_sync(~0u, v, reach);
    return v;
}

// A row a warp, several warps a block.
extern "C" __global__ void rms_norm(const float *x, const float *gain, float *y, int rows, int n)
{
    int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows)
        return;
    float square = 0.0f;
    for (int i = lane; i < n; i += 32)
        square += x[row * n + i] * x[row * n + i];
    float scale = rsqrtf(sum_of_warp(square) / n + 1e-6f);
    for (int i = lane; i < n; i += 32)
        y[row * n + i] = x[row * n + i] * scale * gain[i];
}

// A channel a block, over all images.
extern "C" __global__ void batch_norm(const float *x, float *y, float *mean, float *variance, int images, int plane)
{
    __shared__ float sums[32], squares[32];
    int channel = blockIdx.x, channels = gridDim.x, t = threadIdx.x, warps = (blockDim.x + 31) / 32;
    float sum = 0.0f, square = 0.0f;
    for (int i = t; i < images * plane; i += blockDim.x) {
        float v = x[(i / plane * channels + channel) * plane + i % plane];
        sum += v;
        square += v * v;
    }
    sum = sum_of_warp(sum);
    square = sum_of_warp(square);
    if (t % 32 == 0) {
        sums[t / 32] = sum;
        squares[t / 32] = square;
    }
    __syncthreads();
    sum = square = 0.0f;
    for (int w = 0; w < warps; w++) {
        sum += sums[w];
        square += squares[w];
    }
    float count = images * plane, m = sum / count, v = square / count - m * m;
    if (t == 0) {
        mean[channel] = m;
        variance[channel] = v;
    }
    for (int i = t; i < images * plane; i += blockDim.x) {
        int at = (i / plane * channels + channel) * plane + i % plane;
        y[at] = (x[at] - m) / sqrtf(v + 1e-5f);
    }
}

// Rotary positions: pairs that lie half a head apart.
extern "C" __global__ void rope(const __half *x, __half *y, int heads, int depth)
{
    int position = blockIdx.x, half = depth / 2;
    for (int i = threadIdx.x; i < heads * half; i += blockDim.x) {
        int pair = i % half, at = (position * heads + i / half) * depth + pair;
        float angle = position * exp2f(-13.28771238f * 2.0f * pair / depth), s, c;
        sincosf(angle, &s, &c);
        float a = __half2float(x[at]), b = __half2float(x[at + half]);
        y[at] = __float2half(a * c - b * s);
        y[at + half] = __float2half(b * c + a * s);
    }
}

extern "C" __global__ void cross_entropy(const float *logits, const int *label, float *loss, int classes)
{
    int row = blockIdx.x, lane = threadIdx.x;
    const float *in = logits + row * classes;
    float high = -INFINITY, sum = 0.0f;
    for (int i = lane; i < classes; i += 32)
        high = fmaxf(high, in[i]);
    for (int reach = 16; reach > 0; reach /= 2)
        high = fmaxf(high, __shfl_xor_sync(~0u, high, reach));
    for (int i = lane; i < classes; i += 32)
        sum += __expf(in[i] - high);
    sum = sum_of_warp(sum);
    if (lane == 0)
        loss[row] = __logf(sum) + high - in[label[row]];
}

// 3 x 3, every second pixel, what lies outside does not count.
extern "C" __global__ void average_pool(const float *x, float *y, int n, int half)
{
    int c = threadIdx.x, r = threadIdx.y + blockIdx.x * blockDim.y, plane = blockIdx.y;
    if (c >= half || r >= half)
        return;
    float sum = 0.0f;
    int count = 0;
    for (int i = 2 * r - 1; i <= 2 * r + 1; i++)
        for (int j = 2 * c - 1; j <= 2 * c + 1; j++)
            if (i >= 0 && i < n && j >= 0 && j < n) {
                sum += x[(plane * n + i) * n + j];
                count++;
            }
    y[(plane * half + r) * half + c] = sum / count;
}

extern "C" __global__ void im2col(const float *x, float *columns, int channels, int n)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < channels * 9 * n * n; i += gridDim.x * blockDim.x) {
        int pixel = i % (n * n), tap = i / (n * n) % 9, channel = i / (9 * n * n);
        int r = pixel / n + tap / 3 - 1, c = pixel % n + tap % 3 - 1;
        columns[i] = r >= 0 && r < n && c >= 0 && c < n ? x[(channel * n + r) * n + c] : 0.0f;
    }
}

// Winograd F(2 x 2, 3 x 3) of one plane: 16 products for four pixels.
extern "C" __global__ void winograd(const float *x, const float *w, float *y, int n)
{
    __shared__ float kernel[4][4];
    int t = threadIdx.y * blockDim.x + threadIdx.x;
    if (t < 16) {
        const float g[4][3] = {{1, 0, 0}, {0.5f, 0.5f, 0.5f}, {0.5f, -0.5f, 0.5f}, {0, 0, 1}};
        float sum = 0.0f;
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 3; j++)
                sum += g[t / 4][i] * w[i * 3 + j] * g[t % 4][j];
        kernel[t / 4][t % 4] = sum;
    }
    __syncthreads();
    int r = 2 * (blockIdx.y * blockDim.y + threadIdx.y), c = 2 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (r + 3 >= n + 2 || c + 3 >= n + 2)
        return;
    float d[4][4], u[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            d[i][j] = x[(r + i) * (n + 2) + c + j];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        u[0][j] = d[0][j] - d[2][j];
        u[1][j] = d[1][j] + d[2][j];
        u[2][j] = d[2][j] - d[1][j];
        u[3][j] = d[1][j] - d[3][j];
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        d[i][0] = (u[i][0] - u[i][2]) * kernel[i][0];
        d[i][1] = (u[i][1] + u[i][2]) * kernel[i][1];
        d[i][2] = (u[i][2] - u[i][1]) * kernel[i][2];
        d[i][3] = (u[i][1] - u[i][3]) * kernel[i][3];
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        u[0][j] = d[0][j] + d[1][j] + d[2][j];
        u[1][j] = d[1][j] - d[2][j] - d[3][j];
    }
    for (int i = 0; i < 2; i++)
        *(float2 *)&y[(r + i) * n + c] = make_float2(u[i][0] + u[i][1] + u[i][2], u[i][1] - u[i][2] - u[i][3]);
}

// A product of pixels with a residual, four pixels a thread.
extern "C" __global__ void conv_pointwise(const float *x, const float *w, const float *residual, float *y, int channels, int pixels)
{
    int p = 4 * (blockIdx.x * blockDim.x + threadIdx.x), k = blockIdx.y;
    if (p >= pixels)
        return;
    float4 sum = *(const float4 *)&residual[k * pixels + p];
    for (int c = 0; c < channels; c++) {
        float4 v = *(const float4 *)&x[c * pixels + p];
        float f = w[k * channels + c];
        sum.x += f * v.x;
        sum.y += f * v.y;
        sum.z += f * v.z;
        sum.w += f * v.w;
    }
    *(float4 *)&y[k * pixels + p] = make_float4(fmaxf(sum.x, 0), fmaxf(sum.y, 0), fmaxf(sum.z, 0), fmaxf(sum.w, 0));
}

// A row a block: the largest absolute value becomes 127.
extern "C" __global__ void quantize_rows(const float *x, signed char *y, float *scale, int n)
{
    __shared__ int top;
    if (threadIdx.x == 0)
        top = 0;
    __syncthreads();
    const float *row = x + blockIdx.x * n;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        atomicMax(&top, __float_as_int(fabsf(row[i])));
    __syncthreads();
    float step = __fdiv_rn(__int_as_float(top), 127.0f);
    if (threadIdx.x == 0)
        scale[blockIdx.x] = step;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        y[blockIdx.x * n + i] = (signed char)__float2int_rn(__fdiv_rn(row[i], step));
}

// Two numbers at once, computed in more precision than they are kept in.
extern "C" __global__ void gelu_half(const __half2 *x, __half2 *y, int pairs)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < pairs; i += gridDim.x * blockDim.x) {
        float2 v = __half22float2(x[i]);
        v.x = 0.5f * v.x * (1.0f + erff(v.x * 0.70710678f));
        v.y = 0.5f * v.y * (1.0f + erff(v.y * 0.70710678f));
        y[i] = __float22half2_rn(v);
    }
}

extern "C" __global__ void gemm_batched(const float *a, const float *b, float *c, int m, int n, int k)
{
    __shared__ float left[8][9], right[8][9];
    int tx = threadIdx.x, ty = threadIdx.y, column = blockIdx.x * 8 + tx, row = blockIdx.y * 8 + ty, batch = blockIdx.z;
    float sum = 0.0f;
    for (int base = 0; base < k; base += 8) {
        left[ty][tx] = row < m && base + tx < k ? a[(batch * m + row) * k + base + tx] : 0.0f;
        right[ty][tx] = column < n && base + ty < k ? b[(batch * k + base + ty) * n + column] : 0.0f;
        __syncthreads();
        for (int i = 0; i < 8; i++)
            sum += left[ty][i] * right[i][tx];
        __syncthreads();
    }
    if (row < m && column < n)
        c[(batch * m + row) * n + column] = sum;
}

// One warp, 16 x 8 elements; b has its columns in rows.
extern "C" __global__ void gemm_bfloat(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *c, int n, int k)
{
    int lane = threadIdx.x, row = blockIdx.y * 16 + lane / 4, column = blockIdx.x * 8 + lane / 4;
    float sum[4] = {};
    for (int base = lane % 4 * 2; base < k; base += 16) {
        unsigned p0 = *(const unsigned *)&a[row * k + base], p1 = *(const unsigned *)&a[(row + 8) * k + base];
        unsigned p2 = *(const unsigned *)&a[row * k + base + 8], p3 = *(const unsigned *)&a[(row + 8) * k + base + 8];
        unsigned q0 = *(const unsigned *)&b[column * k + base], q1 = *(const unsigned *)&b[column * k + base + 8];
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(p0), "r"(p1), "r"(p2), "r"(p3), "r"(q0), "r"(q1));
    }
    float *out = c + row * n + blockIdx.x * 8 + lane % 4 * 2;
    *(float2 *)out = make_float2(sum[0], sum[1]);
    *(float2 *)(out + 8 * n) = make_float2(sum[2], sum[3]);
}

// Numbers lose the low bits of their fraction first.
static __device__ unsigned tensor_float(float v)
{
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(v));
    return bits;
}

extern "C" __global__ void gemm_tensor_float(const float *a, const float *b, float *c, int n, int k)
{
    int lane = threadIdx.x, row = blockIdx.y * 16 + lane / 4, column = blockIdx.x * 8 + lane / 4;
    float sum[4] = {};
    for (int base = lane % 4; base < k; base += 8) {
        unsigned p0 = tensor_float(a[row * k + base]), p1 = tensor_float(a[(row + 8) * k + base]);
        unsigned p2 = tensor_float(a[row * k + base + 4]), p3 = tensor_float(a[(row + 8) * k + base + 4]);
        unsigned q0 = tensor_float(b[column * k + base]), q1 = tensor_float(b[column * k + base + 4]);
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(p0), "r"(p1), "r"(p2), "r"(p3), "r"(q0), "r"(q1));
    }
    float *out = c + row * n + blockIdx.x * 8 + lane % 4 * 2;
    *(float2 *)out = make_float2(sum[0], sum[1]);
    *(float2 *)(out + 8 * n) = make_float2(sum[2], sum[3]);
}

extern "C" __global__ void gemm_int8(const signed char *a, const signed char *b, int *c, int n, int k)
{
    int lane = threadIdx.x, row = blockIdx.y * 16 + lane / 4, column = blockIdx.x * 8 + lane / 4;
    int sum[4] = {};
    for (int base = lane % 4 * 4; base < k; base += 32) {
        unsigned p0 = *(const unsigned *)&a[row * k + base], p1 = *(const unsigned *)&a[(row + 8) * k + base];
        unsigned p2 = *(const unsigned *)&a[row * k + base + 16], p3 = *(const unsigned *)&a[(row + 8) * k + base + 16];
        unsigned q0 = *(const unsigned *)&b[column * k + base], q1 = *(const unsigned *)&b[column * k + base + 16];
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
                     : "r"(p0), "r"(p1), "r"(p2), "r"(p3), "r"(q0), "r"(q1));
    }
    int *out = c + row * n + blockIdx.x * 8 + lane % 4 * 2;
    *(int2 *)out = make_int2(sum[0], sum[1]);
    *(int2 *)(out + 8 * n) = make_int2(sum[2], sum[3]);
}

static __device__ void copy_async(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from));
}

// Four warps make 32 x 32 elements each out of 64 x 64; while they do, the next tiles arrive.
extern "C" __global__ void gemm_pipelined(const __half *a, const __half *b, float *c, int n, int k)
{
    __shared__ __align__(16) __half left[2][64][24], right[2][16][72];
    int t = threadIdx.x, lane = t % 32, warp = t / 32, row = warp / 2 * 32, column = warp % 2 * 32;
    const __half *from_a = a + (blockIdx.y * 64 + t / 2) * k + t % 2 * 8, *from_b = b + (t / 8) * n + blockIdx.x * 64 + t % 8 * 8;
    float sum[2][4][4] = {};
    copy_async(&left[0][t / 2][t % 2 * 8], from_a);
    copy_async(&right[0][t / 8][t % 8 * 8], from_b);
    asm volatile("cp.async.commit_group;");
    int steps = k / 16;
    for (int step = 0; step < steps; step++) {
        int side = step & 1;
        if (step + 1 < steps) {
            copy_async(&left[1 - side][t / 2][t % 2 * 8], from_a + (step + 1) * 16);
            copy_async(&right[1 - side][t / 8][t % 8 * 8], from_b + (step + 1) * 16 * n);
        }
        asm volatile("cp.async.commit_group;\ncp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        unsigned p[2][4], q[4][2];
        for (int i = 0; i < 2; i++) {
            unsigned at = (unsigned)__cvta_generic_to_shared(&left[side][row + i * 16 + lane % 16][lane / 16 * 8]);
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(p[i][0]), "=r"(p[i][1]), "=r"(p[i][2]), "=r"(p[i][3])
                         : "r"(at));
        }
        for (int j = 0; j < 4; j++) {
            unsigned at = (unsigned)__cvta_generic_to_shared(&right[side][lane % 16][column + j * 8]);
            asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(q[j][0]), "=r"(q[j][1]) : "r"(at));
        }
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 4; j++)
                asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                             : "+f"(sum[i][j][0]), "+f"(sum[i][j][1]), "+f"(sum[i][j][2]), "+f"(sum[i][j][3])
                             : "r"(p[i][0]), "r"(p[i][1]), "r"(p[i][2]), "r"(p[i][3]), "r"(q[j][0]), "r"(q[j][1]));
        __syncthreads();
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++) {
            float *out = c + (blockIdx.y * 64 + row + i * 16 + lane / 4) * n + blockIdx.x * 64 + column + j * 8 + lane % 4 * 2;
            *(float2 *)out = make_float2(sum[i][j][0], sum[i][j][1]);
            *(float2 *)(out + 8 * n) = make_float2(sum[i][j][2], sum[i][j][3]);
        }
}
