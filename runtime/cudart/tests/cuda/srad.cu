/* Despeckling of an image: a reduction by warps and atomics whose result comes back in every step,
 * and two stencils; with a constant, a variable, a template, streams, events and pinned memory. */
#include "check.h"
#include <cmath>
#include <vector>

__constant__ float lambda[1];
__device__ float sums[2];

template <typename T> __global__ void reduce(const T *image, int count) {
    float sum = 0, squares = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        sum += image[i];
        squares += image[i] * image[i];
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        sum += __shfl_down_sync(~0u, sum, offset);
        squares += __shfl_down_sync(~0u, squares, offset);
    }
    if (threadIdx.x % 32 == 0) {
        atomicAdd(&sums[0], sum);
        atomicAdd(&sums[1], squares);
    }
}

__host__ __device__ static float around(const float *image, int x, int y, int size, int direction) {
    const int dx[] = {1, -1, 0, 0}, dy[] = {0, 0, 1, -1};
    x += dx[direction];
    y += dy[direction];
    x = x < 0 ? 0 : x >= size ? size - 1 : x;
    y = y < 0 ? 0 : y >= size ? size - 1 : y;
    return image[y * size + x];
}

__host__ __device__ static float coefficient(const float *image, int x, int y, int size, float variance) {
    float here = image[y * size + x], gradient = 0, laplacian = 0;
    for (int i = 0; i < 4; i++) {
        float difference = around(image, x, y, size, i) - here;
        gradient += difference * difference;
        laplacian += difference;
    }
    gradient /= here * here;
    laplacian /= here;
    float scale = 1 + 0.25f * laplacian;
    float q = (0.5f * gradient - 0.0625f * laplacian * laplacian) / (scale * scale);
    float value = 1 / (1 + (q - variance) / (variance * (1 + variance)));
    return value < 0 ? 0 : value > 1 ? 1 : value;
}

__global__ void coefficients(const float *image, float *result, int size, float variance) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < size && y < size) result[y * size + x] = coefficient(image, x, y, size, variance);
}

__global__ void update(const float *image, const float *weights, float *next, int size) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= size || y >= size) return;
    float change = 0;
    for (int i = 0; i < 4; i++)
        change += around(weights, x, y, size, i) * (around(image, x, y, size, i) - image[y * size + x]);
    next[y * size + x] = image[y * size + x] + 0.25f * lambda[0] * change;
}

static float variance_of(float sum, float squares, int count) {
    float mean = sum / count;
    return (squares / count - mean * mean) / (mean * mean);
}

int main(int argc, char **argv) {
    int size = argc > 1 ? atoi(argv[1]) : 48, count = size * size, steps = 10;
    size_t bytes = count * sizeof(float);
    unsigned seed = 5;
    float factor = 0.5f, *image, *d_image, *d_weights, *d_next, *both;
    std::vector<float> cpu(count), weights(count), next(count);
    OK(cudaMallocHost(&image, bytes));
    OK(cudaHostAlloc(&both, 2 * sizeof(float), cudaHostAllocDefault));
    for (int i = 0; i < count; i++) cpu[i] = image[i] = expf(draw(&seed, 256) / 255.0f);
    OK(cudaMalloc(&d_image, bytes));
    OK(cudaMalloc(&d_weights, bytes));
    OK(cudaMalloc(&d_next, bytes));
    OK(cudaMemcpyToSymbol(lambda, &factor, sizeof factor));
    cudaStream_t stream;
    cudaEvent_t begin, end;
    OK(cudaStreamCreate(&stream));
    OK(cudaEventCreate(&begin));
    OK(cudaEventCreate(&end));
    OK(cudaEventRecord(begin, stream));
    OK(cudaMemcpyAsync(d_image, image, bytes, cudaMemcpyHostToDevice, stream));
    void *d_sums;
    OK(cudaGetSymbolAddress(&d_sums, sums));
    dim3 block(16, 16), grid((size + 15) / 16, (size + 15) / 16);
    for (int step = 0; step < steps; step++) {
        OK(cudaMemsetAsync(d_sums, 0, 2 * sizeof(float), stream));
        reduce<<<4, 128, 0, stream>>>(d_image, count);
        OK(cudaMemcpyFromSymbolAsync(both, sums, 2 * sizeof(float), 0, cudaMemcpyDeviceToHost, stream));
        OK(cudaStreamSynchronize(stream));
        float variance = variance_of(both[0], both[1], count);
        coefficients<<<grid, block, 0, stream>>>(d_image, d_weights, size, variance);
        update<<<grid, block, 0, stream>>>(d_image, d_weights, d_next, size);
        OK(cudaMemcpyAsync(d_image, d_next, bytes, cudaMemcpyDeviceToDevice, stream));
    }
    OK(cudaMemcpyAsync(image, d_image, bytes, cudaMemcpyDeviceToHost, stream));
    OK(cudaEventRecord(end, stream));
    OK(cudaEventSynchronize(end));
    float milliseconds = -1;
    OK(cudaEventElapsedTime(&milliseconds, begin, end));
    for (int step = 0; step < steps; step++) {
        float sum = 0, squares = 0;
        for (float value : cpu) sum += value, squares += value * value;
        float variance = variance_of(sum, squares, count);
        for (int i = 0; i < count; i++) weights[i] = coefficient(cpu.data(), i % size, i / size, size, variance);
        for (int i = 0; i < count; i++) {
            float change = 0;
            for (int j = 0; j < 4; j++)
                change += around(weights.data(), i % size, i / size, size, j) *
                          (around(cpu.data(), i % size, i / size, size, j) - cpu[i]);
            next[i] = cpu[i] + 0.25f * factor * change;
        }
        cpu.swap(next);
    }
    for (int i = 0; i < count; i++) compare("pixel", i, image[i], cpu[i], 1e-3);
    printf("srad: %d by %d, %d steps%s\n", size, size, steps, milliseconds >= 0 ? "" : ", in no time");
    OK(cudaFreeHost(image));
    OK(cudaFreeHost(both));
    OK(cudaEventDestroy(begin));
    OK(cudaEventDestroy(end));
    OK(cudaStreamDestroy(stream));
    return 0;
}
