// Compiled with debug information: files, locations and DWARF sections.
#include "gpu.h"
__device__ static int clamp(int x, int limit) { return x > limit ? limit : x; }
extern "C" __global__ void debug(int *data, int limit) { data[tid_x()] = clamp(data[tid_x()], limit); }
