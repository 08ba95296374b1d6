// The kernels of `atoll bench kernel`: one source that is CUDA C and OpenCL C, so that a peer runs what we run.
// `regenerate.sh` makes kernels.ptx from it.

#ifdef __OPENCL_VERSION__
#define KERNEL __kernel
#define GLOBAL __global
#define SHARED __local
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define TID_X ((int)get_local_id(0))
#define TID_Y ((int)get_local_id(1))
#define BLOCK_X ((int)get_group_id(0))
#define BLOCK_Y ((int)get_group_id(1))
#define THREADS_X ((int)get_local_size(0))
#define BLOCKS_X ((int)get_num_groups(0))
#define SHARED_ADD(p) atomic_inc(p)
#define GLOBAL_ADD(p, v) atomic_add(p, v)
#define EXP(x) exp(x)
#define RSQRT(x) rsqrt(x)
#define FMA(a, b, c) fma(a, b, c)
typedef uint u32;
#else
#define KERNEL extern "C" __global__
#define GLOBAL
#define SHARED __shared__
#define BARRIER() __syncthreads()
#define TID_X ((int)threadIdx.x)
#define TID_Y ((int)threadIdx.y)
#define BLOCK_X ((int)blockIdx.x)
#define BLOCK_Y ((int)blockIdx.y)
#define THREADS_X ((int)blockDim.x)
#define BLOCKS_X ((int)gridDim.x)
#define SHARED_ADD(p) atomicAdd(p, 1u)
#define GLOBAL_ADD(p, v) atomicAdd(p, v)
#define EXP(x) __expf(x)
#define RSQRT(x) rsqrtf(x)
#define FMA(a, b, c) fmaf(a, b, c)
typedef unsigned u32;
#endif

// Blocks of 256 threads, n threads in all.
KERNEL void vector_add(GLOBAL const float *a, GLOBAL const float *b, GLOBAL float *c, int n)
{
    int i = BLOCK_X * THREADS_X + TID_X;
    if (i < n)
        c[i] = a[i] + b[i];
}

// C = A B for n x n matrices. Blocks of 32 x 8 threads make 64 x 32 elements of C: a thread has 8 rows of one column.
#define GEMM_ROWS 8
#define GEMM_K 32
KERNEL void gemm(GLOBAL const float *a, GLOBAL const float *b, GLOBAL float *c, int n)
{
    SHARED float left[GEMM_K][8 * GEMM_ROWS + 4];
    SHARED float right[GEMM_K][32];
    int tx = TID_X, ty = TID_Y;
    int row = BLOCK_Y * 8 * GEMM_ROWS, column = BLOCK_X * 32;
    float sum[GEMM_ROWS];
    for (int i = 0; i < GEMM_ROWS; i++)
        sum[i] = 0.0f;
    for (int k = 0; k < n; k += GEMM_K) {
        for (int i = 0; i < 8; i++)
            left[tx][ty + 8 * i] = a[(row + ty + 8 * i) * n + k + tx];
        for (int i = 0; i < GEMM_K; i += 8)
            right[ty + i][tx] = b[(k + ty + i) * n + column + tx];
        BARRIER();
#pragma unroll
        for (int j = 0; j < GEMM_K; j++) {
            float r = right[j][tx];
#pragma unroll
            for (int i = 0; i < GEMM_ROWS; i++)
                sum[i] = FMA(left[j][ty * GEMM_ROWS + i], r, sum[i]);
        }
        BARRIER();
    }
    for (int i = 0; i < GEMM_ROWS; i++)
        c[(row + ty * GEMM_ROWS + i) * n + column + tx] = sum[i];
}

// Rows of n elements, one block of 256 threads a row.
KERNEL void softmax(GLOBAL const float *x, GLOBAL float *y, int n)
{
    SHARED float partial[256];
    GLOBAL const float *in = x + BLOCK_X * n;
    GLOBAL float *out = y + BLOCK_X * n;
    float high = -3.4e38f, sum = 0.0f;
    for (int i = TID_X; i < n; i += 256)
        high = in[i] > high ? in[i] : high;
    partial[TID_X] = high;
    BARRIER();
    for (int reach = 128; reach > 0; reach /= 2) {
        if (TID_X < reach)
            partial[TID_X] = partial[TID_X] > partial[TID_X + reach] ? partial[TID_X] : partial[TID_X + reach];
        BARRIER();
    }
    high = partial[0];
    BARRIER();
    for (int i = TID_X; i < n; i += 256)
        sum += EXP(in[i] - high);
    partial[TID_X] = sum;
    BARRIER();
    for (int reach = 128; reach > 0; reach /= 2) {
        if (TID_X < reach)
            partial[TID_X] += partial[TID_X + reach];
        BARRIER();
    }
    float scale = 1.0f / partial[0];
    for (int i = TID_X; i < n; i += 256)
        out[i] = EXP(in[i] - high) * scale;
}

// Rows of n elements, one block of 256 threads a row.
KERNEL void layernorm(GLOBAL const float *x, GLOBAL const float *gain, GLOBAL const float *bias, GLOBAL float *y, int n)
{
    SHARED float sums[256];
    SHARED float squares[256];
    GLOBAL const float *in = x + BLOCK_X * n;
    GLOBAL float *out = y + BLOCK_X * n;
    float sum = 0.0f, square = 0.0f;
    for (int i = TID_X; i < n; i += 256) {
        float value = in[i];
        sum += value;
        square = FMA(value, value, square);
    }
    sums[TID_X] = sum;
    squares[TID_X] = square;
    BARRIER();
    for (int reach = 128; reach > 0; reach /= 2) {
        if (TID_X < reach) {
            sums[TID_X] += sums[TID_X + reach];
            squares[TID_X] += squares[TID_X + reach];
        }
        BARRIER();
    }
    float mean = sums[0] / n;
    float scale = RSQRT(squares[0] / n - mean * mean + 1e-5f);
    for (int i = TID_X; i < n; i += 256)
        out[i] = FMA((in[i] - mean) * scale, gain[i], bias[i]);
}

// A plane of n x n elements with a border of zeroes, blocks of 32 x 8 threads.
KERNEL void conv3x3(GLOBAL const float *x, GLOBAL const float *w, GLOBAL float *y, int n)
{
    int column = BLOCK_X * 32 + TID_X, row = BLOCK_Y * 8 + TID_Y;
    if (column >= n || row >= n)
        return;
    float sum = 0.0f;
#pragma unroll
    for (int i = -1; i <= 1; i++)
#pragma unroll
        for (int j = -1; j <= 1; j++) {
            int r = row + i, c = column + j;
            if (r >= 0 && r < n && c >= 0 && c < n)
                sum = FMA(x[r * n + c], w[(i + 1) * 3 + j + 1], sum);
        }
    y[row * n + column] = sum;
}

// n x n elements through tiles of 32 x 32, blocks of 32 x 8 threads.
KERNEL void transpose(GLOBAL const float *x, GLOBAL float *y, int n)
{
    SHARED float tile[32][33];
    int column = BLOCK_X * 32 + TID_X, row = BLOCK_Y * 32 + TID_Y;
    for (int i = 0; i < 32; i += 8)
        tile[TID_Y + i][TID_X] = x[(row + i) * n + column];
    BARRIER();
    column = BLOCK_Y * 32 + TID_X;
    row = BLOCK_X * 32 + TID_Y;
    for (int i = 0; i < 32; i += 8)
        y[(row + i) * n + column] = tile[TID_X][TID_Y + i];
}

// Counts of bytes, blocks of 256 threads with bins of their own.
KERNEL void histogram(GLOBAL const unsigned char *x, GLOBAL u32 *bins, int n)
{
    SHARED u32 mine[256];
    mine[TID_X] = 0;
    BARRIER();
    for (int i = BLOCK_X * 256 + TID_X; i < n; i += BLOCKS_X * 256)
        SHARED_ADD(&mine[x[i]]);
    BARRIER();
    GLOBAL_ADD(&bins[TID_X], mine[TID_X]);
}
