// Device functions: direct and indirect calls, recursion, a structure by value, a table of function pointers, a local array.
#include "gpu.h"
struct Pair { int first; long second; };
__device__ __attribute__((noinline)) int twice(int x) { return 2 * x; }
__device__ __attribute__((noinline)) int thrice(int x) { return 3 * x; }
__device__ __attribute__((noinline)) int fold(Pair p) { return p.first + (int)p.second; }
__device__ __attribute__((noinline)) int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
__device__ int (*const table[])(int) = {twice, thrice};
extern "C" __device__ void external(int *);
extern "C" __global__ void calls(int *out, int which) {
    int scratch[8];
    for (int i = 0; i < 8; i++) scratch[i] = out[i];
    external(scratch);
    Pair p = {scratch[which & 7], which};
    out[0] = table[which & 1](which) + fold(p) + fibonacci(which) + scratch[out[1] & 7];
}
