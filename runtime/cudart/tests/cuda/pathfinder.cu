/* The cheapest path through a grid, row by row. A launch computes several rows in dynamic shared
 * memory. */
#include "check.h"
#include <algorithm>
#include <vector>

#define ROWS_AT_ONCE 4
#define BLOCK 128

__global__ void relax(const int *wall, const int *from, int *to, int width, int first, int rows) {
    extern __shared__ int shared[];
    int *now = shared, *then = shared + BLOCK;
    // Blocks overlap by the cells that a block cannot compute after ROWS_AT_ONCE rows, because
    // their neighbours belong to other blocks.
    int x = (int)blockIdx.x * (BLOCK - 2 * ROWS_AT_ONCE) - ROWS_AT_ONCE + (int)threadIdx.x, i = threadIdx.x;
    bool inside = x >= 0 && x < width;
    now[i] = inside ? from[x] : 1 << 30;
    __syncthreads();
    for (int row = 0; row < rows; row++) {
        int best = now[i];
        if (i > 0) best = min(best, now[i - 1]);
        if (i < BLOCK - 1) best = min(best, now[i + 1]);
        then[i] = inside ? best + wall[(first + row) * width + x] : 1 << 30;
        __syncthreads();
        int *swap = now;
        now = then;
        then = swap;
    }
    if (inside && i >= ROWS_AT_ONCE && i < BLOCK - ROWS_AT_ONCE) to[x] = now[i];
}

int main(int argc, char **argv) {
    int width = argc > 1 ? atoi(argv[1]) : 1000, height = 21;
    unsigned seed = 3;
    std::vector<int> wall(width * height), result(width);
    for (auto &value : wall) value = draw(&seed, 10);
    int *d_wall, *d_cost[2];
    OK(cudaMalloc(&d_wall, wall.size() * sizeof(int)));
    OK(cudaMalloc(&d_cost[0], width * sizeof(int)));
    OK(cudaMalloc(&d_cost[1], width * sizeof(int)));
    OK(cudaMemcpy(d_wall, wall.data(), wall.size() * sizeof(int), cudaMemcpyHostToDevice));
    OK(cudaMemcpy(d_cost[0], d_wall, width * sizeof(int), cudaMemcpyDeviceToDevice));
    int blocks = (width + BLOCK - 2 * ROWS_AT_ONCE - 1) / (BLOCK - 2 * ROWS_AT_ONCE), now = 0;
    for (int row = 1; row < height; row += ROWS_AT_ONCE, now = 1 - now)
        relax<<<blocks, BLOCK, 2 * BLOCK * sizeof(int)>>>(d_wall, d_cost[now], d_cost[1 - now], width, row,
                                                          std::min(ROWS_AT_ONCE, height - row));
    OK(cudaMemcpy(result.data(), d_cost[now], width * sizeof(int), cudaMemcpyDeviceToHost));
    std::vector<int> cost(wall.begin(), wall.begin() + width), next(width);
    for (int row = 1; row < height; row++) {
        for (int x = 0; x < width; x++) {
            int best = cost[x];
            if (x > 0) best = std::min(best, cost[x - 1]);
            if (x < width - 1) best = std::min(best, cost[x + 1]);
            next[x] = best + wall[row * width + x];
        }
        cost.swap(next);
    }
    for (int x = 0; x < width; x++) compare("cost", x, result[x], cost[x], 0);
    printf("pathfinder: %d by %d, cheapest %d\n", width, height, *std::min_element(cost.begin(), cost.end()));
    return 0;
}
