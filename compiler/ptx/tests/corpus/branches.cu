// Control flow: a switch that becomes a jump table, break and continue, a goto out of two loops, a trap.
#include "gpu.h"
__constant__ unsigned char codes[4] = {1, 2, 4, 8};
__device__ double scale = 0.5;
extern "C" __global__ void branches(int *data, int count) {
    int i = tid_x();
    switch (data[i]) {
    case 0: data[i] = 7; break;
    case 1: data[i] = data[i + 1] * 3; break;
    case 2: data[i] = count / (data[i + 2] + 1); break;
    case 3: data[i] = -data[i]; break;
    case 4: data[i] ^= count; break;
    case 5: data[i] = (int)(data[i] * scale); break;
    case 6: data[i] = codes[count & 3]; break;
    case 7: __builtin_trap();
    default: data[i]--;
    }
    for (int j = 0; j < count; j++)
        for (int k = j; k < count; k++) {
            if (data[k] == i) continue;
            if (data[k] < 0) goto out;
            if (data[k] > 100) break;
            data[k]++;
        }
out:
    data[count] = i;
}
