// Jacobi's method for a x = b, one launch per iteration; rows are independent within an iteration.

// The initial x = 0.
extern "C" __global__ void jacobi_start(double* x, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        x[i] = 0.0;
}

// One iteration: a warp computes one element of the next x. The matrix is in single precision,
// everything else in double precision.
extern "C" __global__ void jacobi_step(const float* __restrict__ a, const double* __restrict__ b, const double* __restrict__ x, double* __restrict__ next, int n)
{
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= n)
        return;
    double sum = 0.0;
    for (int j = lane; j < n; j += 32)
        sum += (double)a[(size_t)row * n + j] * x[j];
    for (int step = 16; step > 0; step /= 2)
        sum += __shfl_down_sync(0xffffffff, sum, step);
    if (lane == 0)
        next[row] = x[row] + (b[row] - sum) / (double)a[(size_t)row * n + row];
}
