// Tiled matrix product: shared memory, barriers, nested loops, an unrolled inner product.
#include "gpu.h"
#define TILE 16
extern "C" __global__ void __launch_bounds__(256) gemm(const float *a, const float *b, float *c, int n) {
    __shared__ float left[TILE][TILE], right[TILE][TILE];
    int row = ctaid_y() * TILE + tid_y(), column = ctaid_x() * TILE + tid_x();
    float sum = 0;
    for (int t = 0; t < n; t += TILE) {
        left[tid_y()][tid_x()] = a[row * n + t + tid_x()];
        right[tid_y()][tid_x()] = b[(t + tid_y()) * n + column];
        sync();
        for (int k = 0; k < TILE; k++) sum += left[tid_y()][k] * right[k][tid_x()];
        sync();
    }
    c[row * n + column] = sum;
}
