// Control flow: exits, barriers, calls, tables, arrays of a thread's own, output.
#include <cassert>
#include <cstdint>
#include <cstdio>

extern "C" __global__ void exit_before_barrier(const int *x, int *out, int n)
{
    __shared__ int tile[64];
    int t = threadIdx.x;
    tile[t] = 0;
    if (blockIdx.x * 64 + t >= n)
        return;
    tile[t] = x[blockIdx.x * 64 + t];
    __syncthreads();
    out[blockIdx.x * 64 + t] = tile[t ^ 1] + tile[t];
}

extern "C" __global__ void exit_before_barriers(const int *x, int *out)
{
    __shared__ int tile[96];
    int t = threadIdx.x, v = x[blockIdx.x * 96 + t];
    tile[t] = v;
    __syncthreads();
    if (v % 7 == 0)
        return;
    int left = tile[(t + 95) % 96];
    __syncthreads();
    tile[t] = left + v;
    __syncthreads();
    if (left % 5 == 0)
        return;
    out[blockIdx.x * 96 + t] = tile[t] * 3;
    __syncthreads();
    out[blockIdx.x * 96 + t] += left;
}

extern "C" __global__ void exit_in_barrier_loop(const int *rounds, int *out)
{
    __shared__ int sum;
    int t = threadIdx.x, mine = rounds[blockIdx.x * blockDim.x + t];
    if (t == 0)
        sum = 0;
    __syncthreads();
    for (int i = 0; i < 40; i++) {
        if (i >= mine)
            return;
        atomicAdd(&sum, i);
        __syncthreads();
        out[blockIdx.x * blockDim.x + t] = i + 1;
        __syncthreads();
    }
}

extern "C" __global__ void collatz(const unsigned *x, int *steps, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    unsigned v = x[i];
    int count = 0;
    while (v != 1 && count < 500) {
        v = v & 1 ? 3 * v + 1 : v >> 1;
        count++;
    }
    steps[i] = count;
}

extern "C" __global__ void mandelbrot(unsigned short *out, int width, int height, int limit)
{
    int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
    if (c >= width || r >= height)
        return;
    float cx = -2.0f + 3.0f * c / width, cy = -1.0f + 2.0f * r / height, x = 0.0f, y = 0.0f;
    int i = 0;
    for (; i < limit && __fadd_rn(__fmul_rn(x, x), __fmul_rn(y, y)) < 4.0f; i++) {
        float next = __fadd_rn(__fsub_rn(__fmul_rn(x, x), __fmul_rn(y, y)), cx);
        y = __fadd_rn(__fmul_rn(__fmul_rn(2.0f, x), y), cy);
        x = next;
    }
    out[r * width + c] = i;
}

extern "C" __global__ void interpreter(const int *program, int length, const int *x, int *out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, value = x[i], other = i;
    for (int at = 0; at < length; at++)
        switch ((program[at] + value) & 7) {
        case 0: value += other; break;
        case 1: value ^= 0x55; break;
        case 2: value = value * 3 + 1; break;
        case 3: other = value >> 2; break;
        case 4: value -= other << 1; break;
        case 5: value = ~value; break;
        case 6: other += 7; break;
        default: value = __popc(value) + other;
        }
    out[i] = value;
}

struct Pair {
    float first;
    int second[3];
};

static __device__ __noinline__ Pair make_pair_of(float x, int i)
{
    Pair p = {x * 2.0f, {i, i * i, -i}};
    return p;
}

static __device__ __noinline__ float use_pair(Pair p, const float *table, int n)
{
    float sum = p.first;
    for (int i = 0; i < n; i++)
        sum += table[i] * p.second[i % 3];
    return sum;
}

extern "C" __global__ void structs(const float *x, float *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = use_pair(make_pair_of(x[i], i % 5), x, 4);
}

typedef int (*Operation)(int, int);
static __device__ __noinline__ int add(int a, int b) { return a + b; }
static __device__ __noinline__ int subtract(int a, int b) { return a - b; }
static __device__ __noinline__ int multiply(int a, int b) { return a * b; }
static __device__ Operation const operations[3] = {add, subtract, multiply};

extern "C" __global__ void function_table(const int *x, int *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = operations[(unsigned)x[i] % 3](x[i], i);
}

static __device__ __noinline__ void exchange(int *tile, int t)
{
    __syncthreads();
    int v = tile[t ^ 31];
    __syncthreads();
    tile[t] = v;
}

extern "C" __global__ void barrier_in_function(const int *x, int *out)
{
    __shared__ int tile[128];
    int t = threadIdx.x;
    tile[t] = x[blockIdx.x * 128 + t];
    exchange(tile, t);
    exchange(tile, t);
    exchange(tile, t);
    __syncthreads();
    out[blockIdx.x * 128 + t] = tile[t];
}

__constant__ int primes[8] = {2, 3, 5, 7, 11, 13, 17, 19};

extern "C" __global__ void constant_table(const int *x, int *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = x[i] % primes[i & 7] + primes[x[i] & 7];
}

// An array that is indexed by data lives in local memory.
extern "C" __global__ void local_array(const int *x, int *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    int counts[10];
    for (int d = 0; d < 10; d++)
        counts[d] = 0;
    for (unsigned v = x[i] < 0 ? -x[i] : x[i]; v; v /= 10)
        counts[v % 10]++;
    int code = 0;
    for (int d = 0; d < 10; d++)
        code = code * 3 + counts[d] % 3;
    out[i] = code;
}

extern "C" __global__ void static_and_dynamic(const int *x, int *out)
{
    __shared__ int fixed[64];
    extern __shared__ int rest[];
    int t = threadIdx.x;
    fixed[t] = x[blockIdx.x * 64 + t];
    rest[63 - t] = 2 * fixed[t];
    __syncthreads();
    out[blockIdx.x * 64 + t] = rest[t] + fixed[(t + 1) % 64];
}

// Half of the warps make what the other half takes, by two barriers of their own.
extern "C" __global__ void producer_consumer(const int *x, int *out, int rounds)
{
    __shared__ int box[64];
    int t = threadIdx.x & 63;
    if (threadIdx.x < 64) {
        for (int i = 0; i < rounds; i++) {
            box[t] = x[(blockIdx.x * rounds + i) * 64 + t] * 2;
            asm volatile("bar.arrive 1, 128;" ::: "memory");
            asm volatile("bar.sync 2, 128;" ::: "memory");
        }
    } else {
        int sum = 0;
        for (int i = 0; i < rounds; i++) {
            asm volatile("bar.sync 1, 128;" ::: "memory");
            sum += box[63 - t];
            asm volatile("bar.arrive 2, 128;" ::: "memory");
        }
        out[blockIdx.x * 64 + t] = sum;
    }
}

extern "C" __global__ void barrier_votes(const int *x, int *out)
{
    int v = x[blockIdx.x * blockDim.x + threadIdx.x];
    int count = __syncthreads_count(v > 0), all = __syncthreads_and(v > -90), any = __syncthreads_or(v > 90);
    out[blockIdx.x * blockDim.x + threadIdx.x] = count * 4 + (all ? 2 : 0) + (any ? 1 : 0);
}

extern "C" __global__ void prints(const int *x)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (x[i] > 2)
        printf("%d: %s %5.2f %u %c\n", x[i], "is large", x[i] * 0.5, 7u, 'a' + i);
}

extern "C" __global__ void nbody(const float4 *bodies, float4 *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 me = bodies[i];
    float ax = 0.0f, ay = 0.0f, az = 0.0f;
    for (int j = 0; j < n; j++) {
        float4 other = bodies[j];
        float dx = other.x - me.x, dy = other.y - me.y, dz = other.z - me.z;
        float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + 0.01f), force = other.w * inverse * inverse * inverse;
        ax += dx * force;
        ay += dy * force;
        az += dz * force;
    }
    out[i] = make_float4(ax, ay, az, 0.0f);
}

extern "C" __global__ void crc32(const unsigned char *x, unsigned *out, int bytes, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    unsigned crc = ~0u;
    for (int b = 0; b < bytes; b++) {
        crc ^= x[i * bytes + b];
        for (int k = 0; k < 8; k++)
            crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
    }
    out[i] = ~crc;
}

extern "C" __global__ void kmeans_assign(const float *points, const float *centres, int *out, int n, int k)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    float best = 3e38f;
    int at = 0;
    for (int c = 0; c < k; c++) {
        float distance = 0.0f;
        for (int d = 0; d < 4; d++) {
            float delta = points[i * 4 + d] - centres[c * 4 + d];
            distance += delta * delta;
        }
        if (distance < best) {
            best = distance;
            at = c;
        }
    }
    out[i] = at;
}

extern "C" __global__ void find_text(const unsigned char *text, const unsigned char *pattern, int *found, int n, int length)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i > n - length)
        return;
    int j = 0;
    while (j < length && text[i + j] == pattern[j])
        j++;
    if (j == length)
        atomicAdd(found, 1);
}

extern "C" __global__ void knapsack(const int *weight, const int *value, int *best, int items, int capacity)
{
    extern __shared__ int row[];
    for (int w = threadIdx.x; w <= capacity; w += blockDim.x)
        row[w] = 0;
    int *now = row, *next = row + capacity + 1;
    for (int i = 0; i < items; i++) {
        __syncthreads();
        for (int w = threadIdx.x; w <= capacity; w += blockDim.x)
            next[w] = w >= weight[i] ? max(now[w], now[w - weight[i]] + value[i]) : now[w];
        int *kept = now;
        now = next;
        next = kept;
    }
    __syncthreads();
    if (threadIdx.x == 0)
        *best = now[capacity];
}
