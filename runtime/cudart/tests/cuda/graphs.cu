/* A captured graph that is launched again and again, memory from the pool, and managed memory. */
#include "check.h"

#define COUNT 4096

__global__ void step(float *to, const float *from, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] = 0.5f * from[i] + 0.25f * (from[(i + 1) % count] + from[(i + count - 1) % count]);
}

__global__ void mean(float *sum, const float *from, int count) {
    float all = 0;
    for (int i = 0; i < count; i++) all += from[i];
    *sum = all / count;
}

int main() {
    static float now[COUNT], then[COUNT];
    unsigned seed = 5;
    float *a, *b, *result;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    OK(cudaStreamCreate(&stream));
    OK(cudaMallocManaged(&result, sizeof(float)));
    OK(cudaMallocAsync(&a, sizeof now, stream));
    OK(cudaMallocAsync(&b, sizeof now, stream));
    for (auto &value : now) value = draw(&seed, 1000);
    OK(cudaMemcpyAsync(a, now, sizeof now, cudaMemcpyHostToDevice, stream));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    step<<<COUNT / 256, 256, 0, stream>>>(b, a, COUNT);
    step<<<COUNT / 256, 256, 0, stream>>>(a, b, COUNT);
    mean<<<1, 1, 0, stream>>>(result, a, COUNT);
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&executable, graph, 0));
    for (int round = 0; round < 20; round++) {
        OK(cudaGraphLaunch(executable, stream));
        OK(cudaStreamSynchronize(stream));
        for (int half = 0; half < 2; half++) {
            for (int i = 0; i < COUNT; i++)
                then[i] = 0.5f * now[i] + 0.25f * (now[(i + 1) % COUNT] + now[(i + COUNT - 1) % COUNT]);
            for (int i = 0; i < COUNT; i++) now[i] = then[i];
        }
        float all = 0;
        for (float value : now) all += value;
        compare("mean", round, *result, all / COUNT, 1e-4);
    }
    step<<<COUNT / 256, 256, 0, stream>>>(b, a, COUNT);
    OK(cudaMemcpyAsync(then, b, sizeof then, cudaMemcpyDeviceToHost, stream));
    OK(cudaFreeAsync(a, stream));
    OK(cudaFreeAsync(b, stream));
    OK(cudaStreamSynchronize(stream));
    for (int i = 0; i < COUNT; i++) {
        float beside = now[(i + 1) % COUNT] + now[(i + COUNT - 1) % COUNT];
        compare("number", i, then[i], 0.5f * now[i] + 0.25f * beside, 1e-4);
    }
    OK(cudaGraphExecDestroy(executable));
    OK(cudaGraphDestroy(graph));
    OK(cudaFree(result));
    printf("graphs: %d numbers, 20 launches of a graph\n", COUNT);
    return 0;
}
