// Vector loads and stores, half precision, 64-bit arithmetic with carries, inline assembly with its own registers and labels.
#include "gpu.h"
typedef float float4 __attribute__((ext_vector_type(4)));
typedef _Float16 half2 __attribute__((ext_vector_type(2)));
extern "C" __global__ void vectors(float4 *a, const float4 *b, half2 *h, unsigned long *wide, unsigned *counter) {
    int i = tid_x();
    a[i] = a[i] * b[i] + b[i + 1];
    h[i] = h[i] * h[i + 1];
    unsigned __int128 product = (unsigned __int128)wide[i] * wide[i + 1];
    wide[i] = (unsigned long)(product >> 64);
    unsigned old;
    asm volatile("{\n\t.reg .pred %%p;\n\tsetp.eq.u32 %%p, %1, 0;\n\t@%%p bra AGAIN_%=;\n\tatom.global.add.u32 %0, [%2], %1;\nAGAIN_%=:\n\t}"
                 : "=r"(old) : "r"(i), "l"(counter) : "memory");
    asm volatile("{.reg .pred %%p; .reg .b32 t;\n mov.b32 t, WARP_SZ; setp.lt.and.u32 %%p|_, t, 0x20U, !%%p;}" ::: "memory");
    counter[i] = old;
}
