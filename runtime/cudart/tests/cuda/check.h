/* What the programs share: checked calls, and numbers that look random. */
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#define OK(call)                                                                                     \
    do {                                                                                             \
        cudaError_t error = (call);                                                                  \
        if (error != cudaSuccess) {                                                                  \
            printf("%s: %s (%s)\n", #call, cudaGetErrorName(error), cudaGetErrorString(error));      \
            exit(1);                                                                                 \
        }                                                                                            \
    } while (0)

/* The next number of a linear congruential sequence, below a bound. */
static inline unsigned draw(unsigned *state, unsigned bound) {
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) % bound;
}

/* Ends the program if a value is not as computed on the CPU. */
static inline void compare(const char *what, int index, double got, double wanted, double tolerance) {
    double difference = got - wanted, scale = wanted < 0 ? -wanted : wanted;
    if (difference < 0) difference = -difference;
    if (difference <= tolerance * (scale > 1 ? scale : 1)) return;
    printf("%s %d is %.9g, and %.9g on the CPU\n", what, index, got, wanted);
    exit(1);
}
