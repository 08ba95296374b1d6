/* Gaussian elimination: two small launches for each column. */
#include "check.h"
#include <vector>

__global__ void multipliers(float *factors, const float *matrix, int size, int column) {
    int row = blockIdx.x * blockDim.x + threadIdx.x + column + 1;
    if (row < size) factors[row * size + column] = matrix[row * size + column] / matrix[column * size + column];
}

__global__ void eliminate(const float *factors, float *matrix, float *right, int size, int column) {
    int row = blockIdx.y * blockDim.y + threadIdx.y + column + 1, x = blockIdx.x * blockDim.x + threadIdx.x + column;
    if (row >= size || x >= size) return;
    float factor = factors[row * size + column];
    matrix[row * size + x] -= factor * matrix[column * size + x];
    if (x == column) right[row] -= factor * right[column];
}

int main(int argc, char **argv) {
    int size = argc > 1 ? atoi(argv[1]) : 48;
    unsigned seed = 4;
    std::vector<float> matrix(size * size), right(size), original, wanted;
    for (int i = 0; i < size * size; i++) matrix[i] = draw(&seed, 100) * 0.01f + (i % (size + 1) == 0 ? size : 0);
    for (auto &value : right) value = draw(&seed, 100);
    original = matrix;
    wanted = right;
    float *d_matrix, *d_factors, *d_right;
    OK(cudaMalloc(&d_matrix, matrix.size() * sizeof(float)));
    OK(cudaMalloc(&d_factors, matrix.size() * sizeof(float)));
    OK(cudaMalloc(&d_right, size * sizeof(float)));
    OK(cudaMemset(d_factors, 0, matrix.size() * sizeof(float)));
    OK(cudaMemcpy(d_matrix, matrix.data(), matrix.size() * sizeof(float), cudaMemcpyHostToDevice));
    OK(cudaMemcpy(d_right, right.data(), size * sizeof(float), cudaMemcpyHostToDevice));
    for (int column = 0; column < size - 1; column++) {
        multipliers<<<(size + 63) / 64, 64>>>(d_factors, d_matrix, size, column);
        eliminate<<<dim3((size + 7) / 8, (size + 7) / 8), dim3(8, 8)>>>(d_factors, d_matrix, d_right, size, column);
        OK(cudaDeviceSynchronize());
    }
    OK(cudaMemcpy(matrix.data(), d_matrix, matrix.size() * sizeof(float), cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(right.data(), d_right, size * sizeof(float), cudaMemcpyDeviceToHost));
    std::vector<double> solution(size);
    for (int row = size - 1; row >= 0; row--) {
        double rest = right[row];
        for (int x = row + 1; x < size; x++) rest -= matrix[row * size + x] * solution[x];
        solution[row] = rest / matrix[row * size + row];
    }
    for (int row = 0; row < size; row++) {
        double sum = 0;
        for (int x = 0; x < size; x++) sum += original[row * size + x] * solution[x];
        compare("row", row, sum, wanted[row], 1e-4);
    }
    printf("gaussian: %d unknowns, %d launches\n", size, 2 * (size - 1));
    return 0;
}
