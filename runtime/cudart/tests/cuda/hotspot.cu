/* Heat in a grid: repeated stencil in shared memory with a halo. */
#include "check.h"
#include <utility>
#include <vector>

#define TILE 16
#define STEP 0.1f

__global__ void diffuse(const float *heat, const float *power, float *next, int size) {
    __shared__ float tile[TILE + 2][TILE + 2];
    int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
    int i = threadIdx.x + 1, j = threadIdx.y + 1;
    auto at = [&](int x, int y) { return heat[min(max(y, 0), size - 1) * size + min(max(x, 0), size - 1)]; };
    tile[j][i] = at(x, y);
    if (threadIdx.x == 0) tile[j][0] = at(x - 1, y);
    if (threadIdx.x == TILE - 1) tile[j][TILE + 1] = at(x + 1, y);
    if (threadIdx.y == 0) tile[0][i] = at(x, y - 1);
    if (threadIdx.y == TILE - 1) tile[TILE + 1][i] = at(x, y + 1);
    __syncthreads();
    if (x >= size || y >= size) return;
    float around = tile[j][i - 1] + tile[j][i + 1] + tile[j - 1][i] + tile[j + 1][i];
    next[y * size + x] = tile[j][i] + STEP * (around - 4 * tile[j][i] + power[y * size + x]);
}

int main(int argc, char **argv) {
    int size = argc > 1 ? atoi(argv[1]) : 80, steps = 25;
    unsigned seed = 2;
    std::vector<float> heat(size * size), power(size * size), next(size * size);
    for (auto &value : heat) value = 300 + draw(&seed, 100) * 0.5f;
    for (auto &value : power) value = draw(&seed, 100) * 0.01f;
    float *d_heat, *d_power, *d_next;
    size_t bytes = heat.size() * sizeof(float);
    OK(cudaMalloc(&d_heat, bytes));
    OK(cudaMalloc(&d_power, bytes));
    OK(cudaMalloc(&d_next, bytes));
    OK(cudaMemcpy(d_heat, heat.data(), bytes, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(d_power, power.data(), bytes, cudaMemcpyHostToDevice));
    dim3 block(TILE, TILE), grid((size + TILE - 1) / TILE, (size + TILE - 1) / TILE);
    for (int step = 0; step < steps; step++) {
        diffuse<<<grid, block>>>(d_heat, d_power, d_next, size);
        std::swap(d_heat, d_next);
    }
    OK(cudaDeviceSynchronize());
    std::vector<float> result(size * size);
    OK(cudaMemcpy(result.data(), d_heat, bytes, cudaMemcpyDeviceToHost));
    auto at = [&](int x, int y) {
        x = x < 0 ? 0 : x >= size ? size - 1 : x;
        y = y < 0 ? 0 : y >= size ? size - 1 : y;
        return heat[y * size + x];
    };
    for (int step = 0; step < steps; step++) {
        for (int y = 0; y < size; y++)
            for (int x = 0; x < size; x++) {
                float around = at(x - 1, y) + at(x + 1, y) + at(x, y - 1) + at(x, y + 1);
                next[y * size + x] = at(x, y) + STEP * (around - 4 * at(x, y) + power[y * size + x]);
            }
        heat.swap(next);
    }
    for (int i = 0; i < size * size; i++) compare("heat", i, result[i], heat[i], 1e-5);
    printf("hotspot: %d by %d, %d steps\n", size, size, steps);
    return 0;
}
