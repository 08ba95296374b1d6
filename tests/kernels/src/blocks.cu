// Threads of a block work together: shared memory, barriers, reductions, scans, sorts, transposes.
#include <cstdint>

extern "C" __global__ void block_sum(const float *x, float *out, int n)
{
    __shared__ float partial[256];
    int t = threadIdx.x, i = blockIdx.x * 256 + t;
    partial[t] = i < n ? x[i] : 0.0f;
    __syncthreads();
    for (int reach = 128; reach > 0; reach >>= 1) {
        if (t < reach)
            partial[t] += partial[t + reach];
        __syncthreads();
    }
    if (t == 0)
        out[blockIdx.x] = partial[0];
}

extern "C" __global__ void dynamic_sum(const int *x, int *out, int n)
{
    extern __shared__ int values[];
    int t = threadIdx.x, size = blockDim.x;
    int sum = 0;
    for (int i = t; i < n; i += size)
        sum += x[blockIdx.x * n + i];
    values[t] = sum;
    __syncthreads();
    if (t == 0) {
        for (int i = 1; i < size; i++)
            sum += values[i];
        out[blockIdx.x] = sum;
    }
}

extern "C" __global__ void argmax(const float *x, int *out, int n)
{
    __shared__ float best[128];
    __shared__ int where[128];
    int t = threadIdx.x;
    const float *row = x + (size_t)blockIdx.x * n;
    float value = -3e38f;
    int at = -1;
    for (int i = t; i < n; i += 128)
        if (row[i] > value) {
            value = row[i];
            at = i;
        }
    best[t] = value;
    where[t] = at;
    __syncthreads();
    for (int reach = 64; reach > 0; reach /= 2) {
        if (t < reach && (best[t + reach] > best[t] || (best[t + reach] == best[t] && where[t + reach] < where[t]))) {
            best[t] = best[t + reach];
            where[t] = where[t + reach];
        }
        __syncthreads();
    }
    if (t == 0)
        out[blockIdx.x] = where[0];
}

// Hillis and Steele: inclusive.
extern "C" __global__ void scan_inclusive(const int *x, int *out)
{
    __shared__ int values[2][256];
    int t = threadIdx.x, side = 0;
    values[0][t] = x[blockIdx.x * 256 + t];
    __syncthreads();
    for (int reach = 1; reach < 256; reach *= 2) {
        values[1 - side][t] = values[side][t] + (t >= reach ? values[side][t - reach] : 0);
        side = 1 - side;
        __syncthreads();
    }
    out[blockIdx.x * 256 + t] = values[side][t];
}

// Blelloch: exclusive, two elements a thread.
extern "C" __global__ void scan_exclusive(const int *x, int *out)
{
    __shared__ int values[256];
    int t = threadIdx.x, base = blockIdx.x * 256, step = 1;
    values[2 * t] = x[base + 2 * t];
    values[2 * t + 1] = x[base + 2 * t + 1];
    for (int d = 128; d > 0; d >>= 1) {
        __syncthreads();
        if (t < d) {
            int a = step * (2 * t + 1) - 1, b = step * (2 * t + 2) - 1;
            values[b] += values[a];
        }
        step *= 2;
    }
    if (t == 0)
        values[255] = 0;
    for (int d = 1; d < 256; d *= 2) {
        step >>= 1;
        __syncthreads();
        if (t < d) {
            int a = step * (2 * t + 1) - 1, b = step * (2 * t + 2) - 1, kept = values[a];
            values[a] = values[b];
            values[b] += kept;
        }
    }
    __syncthreads();
    out[base + 2 * t] = values[2 * t];
    out[base + 2 * t + 1] = values[2 * t + 1];
}

extern "C" __global__ void bitonic_sort(unsigned *x)
{
    __shared__ unsigned keys[512];
    int t = threadIdx.x;
    unsigned *mine = x + blockIdx.x * 512;
    keys[t] = mine[t];
    keys[t + 256] = mine[t + 256];
    for (int size = 2; size <= 512; size *= 2)
        for (int stride = size / 2; stride > 0; stride /= 2) {
            __syncthreads();
            int low = 2 * t - (t & (stride - 1));
            bool up = (low & size) == 0;
            unsigned a = keys[low], b = keys[low + stride];
            if ((a > b) == up) {
                keys[low] = b;
                keys[low + stride] = a;
            }
        }
    __syncthreads();
    mine[t] = keys[t];
    mine[t + 256] = keys[t + 256];
}

extern "C" __global__ void odd_even_sort(int *x, int n)
{
    extern __shared__ int keys[];
    int t = threadIdx.x;
    for (int i = t; i < n; i += blockDim.x)
        keys[i] = x[blockIdx.x * n + i];
    __syncthreads();
    for (int round = 0; round < n; round++) {
        int i = 2 * t + (round & 1);
        if (i + 1 < n && keys[i] > keys[i + 1]) {
            int kept = keys[i];
            keys[i] = keys[i + 1];
            keys[i + 1] = kept;
        }
        __syncthreads();
    }
    for (int i = t; i < n; i += blockDim.x)
        x[blockIdx.x * n + i] = keys[i];
}

extern "C" __global__ void transpose_naive(const float *x, float *y, int rows, int columns)
{
    int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
    if (r < rows && c < columns)
        y[c * rows + r] = x[r * columns + c];
}

extern "C" __global__ void transpose_tiled(const float *x, float *y, int rows, int columns)
{
    __shared__ float tile[32][33];
    int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
    for (int i = 0; i < 32; i += 8)
        if (r + i < rows && c < columns)
            tile[threadIdx.y + i][threadIdx.x] = x[(r + i) * columns + c];
    __syncthreads();
    c = blockIdx.y * 32 + threadIdx.x;
    r = blockIdx.x * 32 + threadIdx.y;
    for (int i = 0; i < 32; i += 8)
        if (r + i < columns && c < rows)
            y[(r + i) * rows + c] = tile[threadIdx.x][threadIdx.y + i];
}

// Three dimensions of threads and blocks.
extern "C" __global__ void permute_axes(const short *x, short *y, int a, int b, int c)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y, k = blockIdx.z * blockDim.z + threadIdx.z;
    if (i < c && j < b && k < a)
        y[(i * a + k) * b + j] = x[(k * b + j) * c + i];
}

extern "C" __global__ void stencil_2d(const float *x, float *y, int n)
{
    __shared__ float tile[10][34];
    int tx = threadIdx.x, ty = threadIdx.y, c = blockIdx.x * 32 + tx, r = blockIdx.y * 8 + ty;
    for (int j = ty; j < 10; j += 8)
        for (int i = tx; i < 34; i += 32) {
            int rr = blockIdx.y * 8 + j - 1, cc = blockIdx.x * 32 + i - 1;
            tile[j][i] = rr >= 0 && rr < n && cc >= 0 && cc < n ? x[rr * n + cc] : 0.0f;
        }
    __syncthreads();
    if (r < n && c < n)
        y[r * n + c] = 0.5f * tile[ty + 1][tx + 1] + 0.125f * (tile[ty][tx + 1] + tile[ty + 2][tx + 1] + tile[ty + 1][tx] + tile[ty + 1][tx + 2]);
}

extern "C" __global__ void stencil_3d(const float *x, float *y, int n)
{
    int i = threadIdx.x, j = threadIdx.y + blockIdx.x * blockDim.y;
    if (i < 1 || j < 1 || i >= n - 1 || j >= n - 1)
        return;
    float below = x[j * n + i], here = x[(n + j) * n + i];
    for (int k = 1; k < n - 1; k++) {
        float above = x[((k + 1) * n + j) * n + i];
        const float *plane = x + (k * n + j) * n + i;
        y[(k * n + j) * n + i] = below + above + plane[-1] + plane[1] + plane[-n] + plane[n] - 6.0f * here;
        below = here;
        here = above;
    }
}

extern "C" __global__ void softmax_rows(const float *x, float *y, int n)
{
    __shared__ float partial[128];
    int t = threadIdx.x;
    const float *in = x + blockIdx.x * n;
    float high = -3e38f, sum = 0.0f;
    for (int i = t; i < n; i += 128) {
        float v = in[i];
        if (v > high) {
            sum *= expf(high - v);
            high = v;
        }
        sum += expf(v - high);
    }
    partial[t] = high;
    __syncthreads();
    for (int reach = 64; reach > 0; reach /= 2) {
        if (t < reach)
            partial[t] = fmaxf(partial[t], partial[t + reach]);
        __syncthreads();
    }
    float top = partial[0];
    __syncthreads();
    partial[t] = sum * expf(high - top);
    __syncthreads();
    for (int reach = 64; reach > 0; reach /= 2) {
        if (t < reach)
            partial[t] += partial[t + reach];
        __syncthreads();
    }
    for (int i = t; i < n; i += 128)
        y[blockIdx.x * n + i] = expf(in[i] - top) / partial[0];
}

extern "C" __global__ void layer_norm(const float *x, const float *gain, float *y, int n)
{
    __shared__ float mean, scale;
    const float *in = x + blockIdx.x * n;
    if (threadIdx.x == 0) {
        float sum = 0.0f, square = 0.0f;
        for (int i = 0; i < n; i++)
            sum += in[i];
        mean = sum / n;
        for (int i = 0; i < n; i++)
            square += (in[i] - mean) * (in[i] - mean);
        scale = rsqrtf(square / n + 1e-5f);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        y[blockIdx.x * n + i] = (in[i] - mean) * scale * gain[i];
}

extern "C" __global__ void max_pool(const float *x, float *y, int n)
{
    int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y, plane = blockIdx.z, half = n / 2;
    if (c >= half)
        return;
    const float *in = x + plane * n * n + 2 * r * n + 2 * c;
    y[plane * half * half + r * half + c] = fmaxf(fmaxf(in[0], in[1]), fmaxf(in[n], in[n + 1]));
}

extern "C" __global__ void conv_direct(const float *x, const float *w, float *y, int channels, int n)
{
    int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y, k = blockIdx.z;
    if (c >= n)
        return;
    float sum = 0.0f;
    for (int ch = 0; ch < channels; ch++)
        for (int i = -1; i <= 1; i++)
            for (int j = -1; j <= 1; j++) {
                int rr = r + i, cc = c + j;
                if (rr >= 0 && rr < n && cc >= 0 && cc < n)
                    sum += x[(ch * n + rr) * n + cc] * w[((k * channels + ch) * 3 + i + 1) * 3 + j + 1];
            }
    y[(k * n + r) * n + c] = sum;
}

extern "C" __global__ void conv_depthwise(const float *x, const float *w, float *y, int n)
{
    __shared__ float weights[9];
    int plane = blockIdx.y, t = threadIdx.x;
    if (t < 9)
        weights[t] = w[plane * 9 + t];
    __syncthreads();
    for (int at = blockIdx.x * blockDim.x + t; at < n * n; at += gridDim.x * blockDim.x) {
        int r = at / n, c = at % n;
        float sum = 0.0f;
        for (int i = 0; i < 9; i++) {
            int rr = r + i / 3 - 1, cc = c + i % 3 - 1;
            if (rr >= 0 && rr < n && cc >= 0 && cc < n)
                sum += x[plane * n * n + rr * n + cc] * weights[i];
        }
        y[plane * n * n + at] = sum;
    }
}

// Block sizes that fill no whole warps: the reversed part of each block.
extern "C" __global__ void odd_blocks(const int *x, int *y)
{
    __shared__ int tile[256];
    int size = blockDim.x * blockDim.y * blockDim.z;
    int t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    tile[t] = x[blockIdx.x * size + t];
    __syncthreads();
    y[blockIdx.x * size + t] = tile[size - 1 - t] + t;
}

extern "C" __global__ void game_of_life(const unsigned char *x, unsigned char *y, int n)
{
    int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
    if (c >= n || r >= n)
        return;
    int around = 0;
    for (int i = -1; i <= 1; i++)
        for (int j = -1; j <= 1; j++)
            if (i || j)
                around += x[((r + i + n) % n) * n + (c + j + n) % n];
    y[r * n + c] = around == 3 || (around == 2 && x[r * n + c]);
}
