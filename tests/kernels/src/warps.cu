// Lanes of a warp, atomics, graphs.
#include <cooperative_groups.h>
#include <cstdint>

extern "C" __global__ void warp_sums(const int *x, int *out)
{
    int lane = threadIdx.x & 31, v = x[blockIdx.x * blockDim.x + threadIdx.x];
    int down = v, butterfly = v, scan = v;
    for (int reach = 16; reach > 0; reach /= 2)
        down += __shfl_down_sync(~0u, down, reach);
    for (int reach = 1; reach < 32; reach *= 2)
        butterfly = max(butterfly, __shfl_xor_sync(~0u, butterfly, reach));
    for (int reach = 1; reach < 32; reach *= 2) {
        int other = __shfl_up_sync(~0u, scan, reach);
        if (lane >= reach)
            scan += other;
    }
    int at = (blockIdx.x * blockDim.x + threadIdx.x) * 3;
    out[at] = __shfl_sync(~0u, down, 0);
    out[at + 1] = butterfly;
    out[at + 2] = scan;
}

extern "C" __global__ void votes(const int *x, unsigned *out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, v = x[i];
    unsigned odd = __ballot_sync(~0u, v & 1);
    unsigned bits = (__all_sync(~0u, v > -1000) ? 1u : 0u) | (__any_sync(~0u, v > 90) ? 2u : 0u);
    unsigned same = __match_any_sync(~0u, v & 3);
    int pred;
    unsigned all = __match_all_sync(~0u, v >> 8, &pred);
    out[4 * i] = odd;
    out[4 * i + 1] = bits | (pred ? 4u : 0u) | all << 3;
    out[4 * i + 2] = same;
    out[4 * i + 3] = __reduce_add_sync(~0u, (unsigned)v) ^ __reduce_max_sync(~0u, (unsigned)v) ^ __reduce_or_sync(~0u, (unsigned)v);
}

// Each warp writes its positive elements side by side.
extern "C" __global__ void compact(const int *x, int *out, int *counts)
{
    int lane = threadIdx.x & 31, warp = (blockIdx.x * blockDim.x + threadIdx.x) >> 5, v = x[warp * 32 + lane];
    unsigned keep = __ballot_sync(~0u, v > 0);
    if (v > 0)
        out[warp * 32 + __popc(keep & ((1u << lane) - 1))] = v;
    if (lane == 0)
        counts[warp] = __popc(keep);
}

// Lanes that part, and talk to those that went with them.
extern "C" __global__ void divergent_groups(const int *x, int *out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, v = x[i], result;
    if (v & 1) {
        unsigned mask = __activemask();
        result = __shfl_sync(mask, v, __ffs(mask) - 1) + __popc(mask);
    } else if (v & 2) {
        unsigned mask = __activemask();
        result = -__popc(mask) - __reduce_min_sync(mask, v);
    } else
        result = v;
    out[i] = result;
}

extern "C" __global__ void tiled_groups(const float *x, float *out)
{
    namespace cg = cooperative_groups;
    auto tile = cg::tiled_partition<8>(cg::this_thread_block());
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = x[i];
    for (int reach = 4; reach > 0; reach /= 2)
        v += tile.shfl_down(v, reach);
    out[i] = tile.shfl(v, 0);
}

extern "C" __global__ void histogram_global(const unsigned char *x, unsigned *bins, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        atomicAdd(&bins[x[i]], 1u);
}

extern "C" __global__ void histogram_shared(const unsigned char *x, unsigned *bins, int n)
{
    __shared__ unsigned mine[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x)
        mine[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&mine[x[i]], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x)
        if (mine[i])
            atomicAdd(&bins[i], mine[i]);
}

extern "C" __global__ void atomics(const int *x, int *out, unsigned long long *wide, double *sum, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    int v = x[i];
    atomicAdd(&out[0], v);
    atomicMax(&out[1], v);
    atomicMin(&out[2], v);
    atomicAnd(&out[3], v | 0xff);
    atomicOr(&out[4], v);
    atomicXor(&out[5], v);
    atomicInc((unsigned *)&out[6], 99u);
    atomicSub(&out[7], 2 * v);
    atomicAdd(wide, (unsigned long long)(long long)v * 1000003ull);
    atomicAdd(sum, (double)(v % 64));
}

// A maximum of floats through compare and swap.
extern "C" __global__ void atomic_float_max(const float *x, unsigned *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    unsigned old = *(volatile unsigned *)out;
    while (__uint_as_float(old) < x[i]) {
        unsigned seen = atomicCAS(out, old, __float_as_uint(x[i]));
        if (seen == old)
            break;
        old = seen;
    }
}

// One atomic for all lanes that want one.
extern "C" __global__ void aggregated_count(const int *x, int *counter, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && x[i] % 3 == 0) {
        unsigned mask = __activemask();
        if ((threadIdx.x & 31) == __ffs(mask) - 1)
            atomicAdd(counter, __popc(mask));
    }
}

extern "C" __global__ void bfs_level(const int *begin, const int *to, int *level, int *changed, int depth, int nodes)
{
    int node = blockIdx.x * blockDim.x + threadIdx.x;
    if (node >= nodes || level[node] != depth)
        return;
    for (int e = begin[node]; e < begin[node + 1]; e++)
        if (atomicCAS(&level[to[e]], -1, depth + 1) == -1)
            *changed = 1;
}

extern "C" __global__ void sssp_relax(const int *begin, const int *to, const int *weight, const int *from, int *distance, int nodes)
{
    int node = blockIdx.x * blockDim.x + threadIdx.x;
    if (node >= nodes)
        return;
    for (int e = begin[node]; e < begin[node + 1]; e++)
        atomicMin(&distance[to[e]], from[node] + weight[e]);
}

extern "C" __global__ void spmv_scalar(const int *begin, const int *to, const float *value, const float *x, float *y, int rows)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows)
        return;
    float sum = 0.0f;
    for (int e = begin[row]; e < begin[row + 1]; e++)
        sum += value[e] * x[to[e]];
    y[row] = sum;
}

extern "C" __global__ void spmv_vector(const int *begin, const int *to, const float *value, const float *x, float *y, int rows)
{
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x & 31;
    if (row >= rows)
        return;
    float sum = 0.0f;
    for (int e = begin[row] + lane; e < begin[row + 1]; e += 32)
        sum += value[e] * x[to[e]];
    for (int reach = 16; reach > 0; reach /= 2)
        sum += __shfl_down_sync(~0u, sum, reach);
    if (lane == 0)
        y[row] = sum;
}

extern "C" __global__ void embedding(const long long *index, const float *table, float *out, int width)
{
    const float *row = table + index[blockIdx.x] * width;
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        out[blockIdx.x * width + i] = row[i];
}

// Roots by halving paths, edges hooked with compare and swap.
extern "C" __global__ void connect(const int *from, const int *to, int *parent, int edges)
{
    int e = blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= edges)
        return;
    volatile int *p = parent;
    int a = from[e], b = to[e];
    while (true) {
        while (a != p[a])
            a = p[a];
        while (b != p[b])
            b = p[b];
        if (a == b)
            break;
        int high = max(a, b), low = min(a, b);
        if (atomicCAS(&parent[high], high, low) == high)
            break;
    }
}

// A lock that lanes of one warp fight for.
extern "C" __global__ void spin_lock(int *lock, int *sum, const int *x)
{
    int v = x[blockIdx.x * blockDim.x + threadIdx.x];
    bool done = false;
    while (!done)
        if (atomicCAS(lock, 0, 1) == 0) {
            *(volatile int *)sum = *(volatile int *)sum + v;
            __threadfence();
            atomicExch(lock, 0);
            done = true;
        }
}

// Single-pass scan: a block waits for the sum of those before it.
extern "C" __global__ void scan_lookback(const int *x, int *out, volatile int *state, volatile int *prefix)
{
    __shared__ int values[128];
    __shared__ int before;
    int t = threadIdx.x, b = blockIdx.x;
    values[t] = x[b * 128 + t];
    __syncthreads();
    for (int reach = 1; reach < 128; reach *= 2) {
        int v = t >= reach ? values[t - reach] : 0;
        __syncthreads();
        values[t] += v;
        __syncthreads();
    }
    if (t == 127) {
        int sum = 0;
        if (b > 0) {
            while (state[b - 1] == 0)
                ;
            __threadfence();
            sum = prefix[b - 1];
        }
        before = sum;
        prefix[b] = sum + values[127];
        __threadfence();
        state[b] = 1;
    }
    __syncthreads();
    out[b * 128 + t] = values[t] + before;
}
