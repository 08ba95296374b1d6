// One thread an element, or a few: guards, strides, types and rounding.
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void saxpy(const float *x, float *y, float a, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = a * x[i] + y[i];
}

extern "C" __global__ void grid_stride(const float *x, float *y, int n)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        y[i] = sqrtf(fabsf(x[i])) + 1.0f / (1.0f + x[i] * x[i]);
}

extern "C" __global__ void activations(const float *x, float *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    float v = x[i];
    y[i] = fmaxf(v, 0.0f);
    y[n + i] = 1.0f / (1.0f + __expf(-v));
    y[2 * n + i] = 0.5f * v * (1.0f + tanhf(0.7978845608f * (v + 0.044715f * v * v * v)));
    y[3 * n + i] = v > 20.0f ? v : logf(1.0f + expf(v));
    y[4 * n + i] = sinf(v) * cosf(2.0f * v);
}

extern "C" __global__ void clamp_bytes(const int *x, unsigned char *y, short *z, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    int v = x[i];
    y[i] = (unsigned char)(v < 0 ? 0 : v > 255 ? 255 : v);
    z[i] = (short)(v >> 3);
}

extern "C" __global__ void wide_integers(const long long *a, const long long *b, unsigned long long *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    unsigned long long x = (unsigned long long)a[i], y = (unsigned long long)b[i];
    out[i] = x * y + (x ^ (y >> 7));
    out[n + i] = __umul64hi(x, y);
    out[2 * n + i] = y ? x / y : 0;
    out[3 * n + i] = y ? x % y : x;
    out[4 * n + i] = (unsigned long long)(b[i] ? a[i] / b[i] : 0);
}

// clang has no library for the intrinsic.
static __device__ int dot4(int a, int b, int c)
{
    int sum;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}

extern "C" __global__ void bit_tricks(const unsigned *a, const unsigned *b, unsigned *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    unsigned x = a[i], y = b[i];
    out[i] = __popc(x) + 32 * __clz(x);
    out[n + i] = __brev(x) ^ __byte_perm(x, y, 0x5140);
    out[2 * n + i] = __funnelshift_l(x, y, y & 31) + __funnelshift_rc(x, y, y & 63);
    out[3 * n + i] = __ffs(x) + dot4((int)x, (int)y, 7);
    out[4 * n + i] = __sad((int)x, (int)y, 5u) + __umulhi(x, y) + __mul24((int)x, (int)y);
    out[5 * n + i] = y % 97u + x / (y | 1u);
}

extern "C" __global__ void rounding(const float *a, const float *b, float *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    float x = a[i], y = b[i];
    out[i] = __fadd_rz(x, y);
    out[n + i] = __fadd_ru(x, y);
    out[2 * n + i] = __fmul_rd(x, y);
    out[3 * n + i] = __fmaf_rz(x, y, x);
    out[4 * n + i] = __fdiv_ru(x, y);
    out[5 * n + i] = __fsqrt_rd(fabsf(x));
    out[6 * n + i] = __int2float_rz(__float2int_rn(x * 1000.0f)) + rintf(y) + floorf(x) + ceilf(y) + truncf(x);
    out[7 * n + i] = __saturatef(x * y);
}

extern "C" __global__ void doubles(const double *a, const double *b, double *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    out[i] = fma(a[i], b[i], 1.0) / (1.0 + fabs(a[i]));
    out[n + i] = sqrt(fabs(b[i])) - (double)(float)a[i];
    out[2 * n + i] = (double)(long long)(a[i] * 1e6) + (double)(int)b[i];
}

extern "C" __global__ void halves(const __half *a, const __half *b, __half *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    out[i] = __hadd(a[i], b[i]);
    out[n + i] = __hmul(a[i], b[i]);
    out[2 * n + i] = __hfma(a[i], b[i], a[i]);
    out[3 * n + i] = __float2half_rn(__half2float(a[i]) / 3.0f);
    out[4 * n + i] = __hgt(a[i], b[i]) ? a[i] : __hneg(b[i]);
}

extern "C" __global__ void half_pairs(const __half2 *a, const __half2 *b, __half2 *out, int pairs)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < pairs)
        out[i] = __hfma2(a[i], b[i], __hmin2(a[i], b[i]));
}

extern "C" __global__ void bfloats(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = __bfloat162float(a[i]) * 2.0f + __bfloat162float(__float2bfloat16(__bfloat162float(b[i]) * 1.7f));
}

extern "C" __global__ void interleave(const float4 *a, float2 *out, int quads)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= quads)
        return;
    float4 v = a[i];
    out[2 * i] = make_float2(v.x, v.z);
    out[2 * i + 1] = make_float2(v.y, v.w);
}

extern "C" __global__ void black_scholes(const float *price, const float *strike, const float *years, float *call, float *put, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    float s = price[i], x = strike[i], t = years[i], root = sqrtf(t);
    float d1 = (logf(s / x) + (0.02f + 0.5f * 0.3f * 0.3f) * t) / (0.3f * root), d2 = d1 - 0.3f * root;
    float n1 = 0.5f * (1.0f + erff(d1 * 0.70710678f)), n2 = 0.5f * (1.0f + erff(d2 * 0.70710678f));
    float discount = expf(-0.02f * t);
    call[i] = s * n1 - x * discount * n2;
    put[i] = x * discount * (1.0f - n2) - s * (1.0f - n1);
}

extern "C" __global__ void philox(unsigned *out, unsigned key, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    unsigned c0 = i, c1 = 0, c2 = 7, c3 = 11, k0 = key, k1 = key ^ 0x12345678u;
    for (int round = 0; round < 10; round++) {
        unsigned high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        unsigned high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[i] = c0 ^ c1 ^ c2 ^ c3;
}
