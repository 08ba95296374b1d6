// Sorts, searches, graphs, codes, signals: what programs do besides linear algebra.
#include <cooperative_groups.h>
#include <cstdint>
#include <cuda_fp16.h>

// Four bits a round: ranks by scanning what each of 16 digits has before it.
extern "C" __global__ void radix_sort(unsigned *keys, int bits)
{
    __shared__ unsigned values[128], counts[16][129];
    int t = threadIdx.x;
    unsigned *mine = keys + blockIdx.x * 128;
    values[t] = mine[t];
    for (int shift = 0; shift < bits; shift += 4) {
        __syncthreads();
        unsigned key = values[t], digit = key >> shift & 15;
        for (int d = 0; d < 16; d++)
            counts[d][t] = d == digit;
        __syncthreads();
        if (t < 16) {
            unsigned sum = 0;
            for (int i = 0; i < 128; i++) {
                unsigned one = counts[t][i];
                counts[t][i] = sum;
                sum += one;
            }
            counts[t][128] = sum;
        }
        __syncthreads();
        unsigned rank = counts[digit][t];
        for (unsigned d = 0; d < digit; d++)
            rank += counts[d][128];
        values[rank] = key;
    }
    __syncthreads();
    mine[t] = values[t];
}

// Each thread finds where its part of the merged list begins, then merges.
extern "C" __global__ void merge_path(const int *a, const int *b, int *out, int na, int nb, int share)
{
    int begin = (blockIdx.x * blockDim.x + threadIdx.x) * share;
    if (begin >= na + nb)
        return;
    int low = max(0, begin - nb), high = min(begin, na);
    while (low < high) {
        int middle = (low + high) / 2;
        if (a[middle] <= b[begin - 1 - middle])
            low = middle + 1;
        else
            high = middle;
    }
    int i = low, j = begin - low;
    for (int at = begin; at < begin + share && at < na + nb; at++)
        out[at] = j >= nb || (i < na && a[i] <= b[j]) ? a[i++] : b[j++];
}

// Where runs of equal numbers begin, and how long they are; a scan of ballots gives each run its place.
extern "C" __global__ void run_lengths(const unsigned char *x, unsigned char *value, int *begin, int *count, int n)
{
    __shared__ int before[32];
    __shared__ int total;
    int t = threadIdx.x, lane = t & 31, warp = t >> 5, warps = blockDim.x >> 5;
    int done = 0;
    for (int base = 0; base < n; base += blockDim.x) {
        int i = base + t;
        bool first = i < n && (i == 0 || x[i] != x[i - 1]);
        unsigned ballot = __ballot_sync(~0u, first);
        if (lane == 0)
            before[warp] = __popc(ballot);
        __syncthreads();
        if (t == 0) {
            int sum = 0;
            for (int w = 0; w < warps; w++) {
                int mine = before[w];
                before[w] = sum;
                sum += mine;
            }
            total = sum;
        }
        __syncthreads();
        if (first) {
            int at = done + before[warp] + __popc(ballot & ((1u << lane) - 1));
            value[at] = x[i];
            begin[at] = i;
        }
        done += total;
        __syncthreads();
    }
    if (t == 0)
        *count = done;
}

extern "C" __global__ void pagerank(const int *begin, const int *from, const int *degree, const float *rank, float *next, int nodes)
{
    int node = blockIdx.x * blockDim.x + threadIdx.x;
    if (node >= nodes)
        return;
    float sum = 0.0f;
    for (int e = begin[node]; e < begin[node + 1]; e++)
        sum += __fdividef(__ldg(&rank[from[e]]), (float)__ldg(&degree[from[e]]));
    next[node] = 0.15f / nodes + 0.85f * sum;
}

// Radix 2 in shared memory, 128 points a block; bits are reversed while loading.
extern "C" __global__ void fft(const float2 *x, float2 *y)
{
    __shared__ float2 values[128];
    int t = threadIdx.x;
    for (int i = t; i < 128; i += 64)
        values[__brev(i) >> 25] = x[blockIdx.x * 128 + i];
    for (int half = 1; half < 128; half *= 2) {
        __syncthreads();
        int j = t & (half - 1), i = 2 * t - j;
        float s, c;
        sincospif(-(float)j / half, &s, &c);
        float2 a = values[i], b = values[i + half];
        float2 turned = make_float2(b.x * c - b.y * s, b.x * s + b.y * c);
        values[i] = make_float2(a.x + turned.x, a.y + turned.y);
        values[i + half] = make_float2(a.x - turned.x, a.y - turned.y);
    }
    __syncthreads();
    for (int i = t; i < 128; i += 64)
        y[blockIdx.x * 128 + i] = values[i];
}

// Points inside a quarter of a circle, by a generator of each thread's own.
extern "C" __global__ void monte_carlo(unsigned long long *inside, unsigned seed, int points)
{
    unsigned long long state = (seed + blockIdx.x * blockDim.x + threadIdx.x + 1ull) * 0x9e3779b97f4a7c15ull;
    int count = 0;
    for (int i = 0; i < points; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        unsigned long long x = state >> 44, y = state >> 20 & 0xfffff;
        count += x * x + y * y < 1ull << 40;
    }
    count = __reduce_add_sync(~0u, count);
    if (threadIdx.x % 32 == 0)
        atomicAdd(inside, (unsigned long long)count);
}

extern "C" __global__ void bilateral(const float *x, float *y, int n, float near, float alike)
{
    int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
    if (c >= n || r >= n)
        return;
    float centre = x[r * n + c], sum = 0.0f, weights = 0.0f;
    for (int i = max(r - 2, 0); i <= min(r + 2, n - 1); i++)
        for (int j = max(c - 2, 0); j <= min(c + 2, n - 1); j++) {
            float v = x[i * n + j], d = v - centre;
            float weight = __expf(-((i - r) * (i - r) + (j - c) * (j - c)) * near - d * d * alike);
            sum += weight * v;
            weights += weight;
        }
    y[r * n + c] = sum / weights;
}

__constant__ unsigned sha_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// SHA-256 of messages of 32 bytes, one a thread.
extern "C" __global__ void sha256(const unsigned char *message, unsigned *digest, int n)
{
    int m = blockIdx.x * blockDim.x + threadIdx.x;
    if (m >= n)
        return;
    unsigned w[16], h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}, v[8];
    for (int i = 0; i < 8; i++)
        w[i] = __byte_perm(((const unsigned *)message)[m * 8 + i], 0, 0x0123);
    for (int i = 8; i < 16; i++)
        w[i] = i == 8 ? 0x80000000 : i == 15 ? 256 : 0;
    for (int i = 0; i < 8; i++)
        v[i] = h[i];
    for (int round = 0; round < 64; round++) {
        unsigned word = w[round & 15];
        if (round >= 16) {
            unsigned a = w[(round + 1) & 15], b = w[(round + 14) & 15];
            word += (__funnelshift_r(a, a, 7) ^ __funnelshift_r(a, a, 18) ^ a >> 3) + w[(round + 9) & 15] +
                    (__funnelshift_r(b, b, 17) ^ __funnelshift_r(b, b, 19) ^ b >> 10);
            w[round & 15] = word;
        }
        unsigned e = v[4], a = v[0];
        unsigned t1 = v[7] + (__funnelshift_r(e, e, 6) ^ __funnelshift_r(e, e, 11) ^ __funnelshift_r(e, e, 25)) + ((e & v[5]) ^ (~e & v[6])) +
                      sha_constants[round] + word;
        unsigned t2 = (__funnelshift_r(a, a, 2) ^ __funnelshift_r(a, a, 13) ^ __funnelshift_r(a, a, 22)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        for (int i = 7; i > 0; i--)
            v[i] = v[i - 1];
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        digest[m * 8 + i] = h[i] + v[i];
}

// Distance of two texts: diagonals one after another, a barrier between them.
extern "C" __global__ void edit_distance(const unsigned char *a, const unsigned char *b, int *distance, int n)
{
    extern __shared__ int rows[];
    int t = threadIdx.x, *older = rows, *old = rows + n + 1, *now = rows + 2 * (n + 1);
    const unsigned char *mine = a + blockIdx.x * n, *other = b + blockIdx.x * n;
    for (int d = 0; d <= 2 * n; d++) {
        for (int i = t; i <= n; i += blockDim.x) {
            int j = d - i;
            if (j < 0 || j > n)
                continue;
            int best;
            if (i == 0 || j == 0)
                best = i + j;
            else
                best = min(older[i - 1] + (mine[i - 1] != other[j - 1]), min(old[i - 1], old[i]) + 1);
            now[i] = best;
        }
        __syncthreads();
        int *kept = older;
        older = old;
        old = now;
        now = kept;
    }
    if (t == 0)
        distance[blockIdx.x] = old[n];
}

// Sums begin anew at flags.
extern "C" __global__ void segmented_scan(const int *x, const unsigned char *flag, int *out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31, sum = x[i];
    bool begun = flag[i] || lane == 0;
    for (int reach = 1; reach < 32; reach *= 2) {
        int other = __shfl_up_sync(~0u, sum, reach);
        bool earlier = __shfl_up_sync(~0u, (int)begun, reach);
        if (lane >= reach && !begun) {
            sum += other;
            begun = earlier;
        }
    }
    out[i] = sum;
}

// The block that finishes last adds up what the others left.
extern "C" __global__ void last_block_sum(const double *x, volatile double *partial, unsigned *finished, double *out, int n)
{
    __shared__ double sums[8];
    __shared__ bool last;
    int t = threadIdx.x;
    double sum = 0.0;
    for (int i = blockIdx.x * blockDim.x + t; i < n; i += gridDim.x * blockDim.x)
        sum += x[i];
    for (int reach = 16; reach > 0; reach /= 2)
        sum += __shfl_down_sync(~0u, sum, reach);
    if (t % 32 == 0)
        sums[t / 32] = sum;
    __syncthreads();
    if (t == 0) {
        sum = 0.0;
        for (int w = 0; w < blockDim.x / 32; w++)
            sum += sums[w];
        partial[blockIdx.x] = sum;
        __threadfence();
        last = atomicInc(finished, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last || t > 0)
        return;
    sum = 0.0;
    for (int b = 0; b < gridDim.x; b++)
        sum += partial[b];
    *out = sum;
}

// 128 bits: carries from word to word.
extern "C" __global__ void wide_products(const unsigned long long *a, const unsigned long long *b, unsigned long long *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    unsigned __int128 x = (unsigned __int128)a[i] << 64 | b[i], y = (unsigned __int128)b[i] << 64 | ~a[i];
    unsigned __int128 sum = x + y, product = x * y - sum;
    out[4 * i] = (unsigned long long)sum;
    out[4 * i + 1] = (unsigned long long)(sum >> 64);
    out[4 * i + 2] = (unsigned long long)product;
    out[4 * i + 3] = (unsigned long long)(product >> 64);
}

// A matrix of bits times another: rows and columns meet by `and`.
extern "C" __global__ void bit_product(const unsigned *a, const unsigned *b, unsigned *c, int n)
{
    int row = blockIdx.x, word = threadIdx.y, lane = threadIdx.x, column = word * 32 + lane;
    int meet = 0;
    for (int i = 0; i < n / 32; i++)
        meet += __popc(a[row * (n / 32) + i] & b[column * (n / 32) + i]);
    unsigned bits = __ballot_sync(~0u, meet & 1);
    if (lane == 0)
        c[row * (n / 32) + word] = bits;
}

// Rounds until no thread changes anything; all leave together.
extern "C" __global__ void relax_until_still(int *x, int *rounds, int n)
{
    extern __shared__ int height[];
    int t = threadIdx.x;
    if (t < n)
        height[t] = x[blockIdx.x * n + t];
    __syncthreads();
    int round = 0;
    while (true) {
        int now = t < n ? height[t] : 0, left = t > 0 && t < n ? height[t - 1] : now, right = t + 1 < n ? height[t + 1] : now;
        int next = max(now, max(left, right) - 3);
        __syncthreads();
        if (t < n)
            height[t] = next;
        if (!__syncthreads_or(next != now))
            break;
        round++;
    }
    if (t < n)
        x[blockIdx.x * n + t] = height[t];
    if (t == 0)
        rounds[blockIdx.x] = round;
}

extern "C" __global__ void lower_bound(const long long *sorted, const long long *wanted, int *at, int n, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    int low = 0, high = n;
    while (low < high) {
        int middle = (low + high) >> 1;
        if (sorted[middle] < wanted[i])
            low = middle + 1;
        else
            high = middle;
    }
    at[i] = low;
}

// Gauss and Jordan with pivots, a matrix a thread; indices that are known at run time only.
extern "C" __global__ void invert_4x4(const double *x, double *y, int n)
{
    int m = blockIdx.x * blockDim.x + threadIdx.x;
    if (m >= n)
        return;
    double a[4][8];
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            a[i][j] = x[m * 16 + i * 4 + j];
            a[i][j + 4] = i == j;
        }
    for (int k = 0; k < 4; k++) {
        int pivot = k;
        for (int i = k + 1; i < 4; i++)
            if (fabs(a[i][k]) > fabs(a[pivot][k]))
                pivot = i;
        for (int j = 0; j < 8; j++) {
            double kept = a[k][j];
            a[k][j] = a[pivot][j];
            a[pivot][j] = kept;
        }
        double scale = 1.0 / a[k][k];
        for (int j = 0; j < 8; j++)
            a[k][j] *= scale;
        for (int i = 0; i < 4; i++) {
            double factor = i == k ? 0.0 : a[i][k];
            for (int j = 0; j < 8; j++)
                a[i][j] -= factor * a[k][j];
        }
    }
    for (int i = 0; i < 16; i++)
        y[m * 16 + i] = a[i / 4][i % 4 + 4];
}

// Bytes of pixels, four at a time.
extern "C" __global__ void yuv(const uchar4 *rgb, uchar4 *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    uchar4 p = rgb[i];
    int y = (16843 * p.x + 33030 * p.y + 6423 * p.z + 32768) >> 16, u = (-9699 * p.x - 19071 * p.y + 28770 * p.z + 32768) >> 16;
    int v = (28770 * p.x - 24117 * p.y - 4653 * p.z + 32768) >> 16;
    out[i] = make_uchar4(y + 16, u + 128, v + 128, p.w);
}

// The same bits as other types, through a union and through memory.
union Bits {
    double wide;
    unsigned long long whole;
    struct {
        unsigned short quarter[4];
    };
};

extern "C" __global__ void reinterpret(const double *x, unsigned short *quarters, float *halved, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    Bits bits;
    bits.wide = x[i];
    for (int q = 0; q < 4; q++)
        quarters[4 * i + q] = bits.quarter[(q + i) & 3];
    bits.whole -= 1ull << 52;
    halved[i] = (float)bits.wide;
}

// Halves are added in memory; the numbers are small and whole, so that their order does not matter.
extern "C" __global__ void atomic_halves(const signed char *x, __half2 *sums, int n, int bins)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        atomicAdd(&sums[i % bins], __halves2half2(__float2half((float)x[i]), __float2half(1.0f)));
}

// Open addressing: a key takes the first free place behind its hash.
extern "C" __global__ void hash_insert(const unsigned *keys, unsigned long long *table, int *collisions, int n, int places)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    unsigned long long entry = (unsigned long long)keys[i] << 32 | (i + 1u);
    unsigned at = keys[i] * 2654435761u % places;
    while (atomicCAS(&table[at], 0ull, entry) != 0) {
        at = at + 1 == places ? 0 : at + 1;
        atomicAdd(collisions, 1);
    }
}

// Each lane with its peers of the same remainder.
extern "C" __global__ void labeled_groups(const int *x, int *out)
{
    namespace cg = cooperative_groups;
    int i = blockIdx.x * blockDim.x + threadIdx.x, v = x[i];
    unsigned peers = __match_any_sync(~0u, ((v % 3) + 3) % 3);
    int leader = __ffs(peers) - 1, rank = __popc(peers & ((1u << (threadIdx.x & 31)) - 1));
    int first = __shfl_sync(~0u, v, leader);
    auto active = cg::coalesced_threads();
    out[i] = (first * 64 + rank) * 64 + (int)active.size();
}

// Rays of a height field end at different steps, in loops within loops.
extern "C" __global__ void march(const float *height, int *steps, int n, int limit)
{
    int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
    if (c >= n || r >= n)
        return;
    int count = 0;
    for (int direction = 0; direction < 4; direction++) {
        int dr = direction & 1 ? 1 : -1, dc = direction & 2 ? 1 : -1, at_r = r, at_c = c;
        float z = height[r * n + c];
        for (int i = 0; i < limit; i++) {
            at_r += dr;
            at_c += dc;
            if (at_r < 0 || at_r >= n || at_c < 0 || at_c >= n)
                break;
            z = __fadd_rn(z, 0.25f);
            if (height[at_r * n + at_c] > z)
                break;
            if (((at_r ^ at_c) & 7) == 3)
                continue;
            count++;
        }
    }
    steps[r * n + c] = count;
}
