/* Common parts of the programs: checks, and numbers of all types in device memory. Included after the
   library's own enum of types (F32, F64, F16, BF16, S8, S32) and `NAME_OF`, the name of a result. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Declared as in cuda_runtime_api.h. */
int cudaMalloc(void **, size_t), cudaFree(void *), cudaMemcpy(void *, const void *, size_t, int);
int cudaStreamCreate(void **), cudaStreamDestroy(void *), cudaStreamSynchronize(void *), cudaDeviceSynchronize(void);

enum { TO_DEVICE = 1, TO_HOST = 2 };

#define OK(call) expect(#call, call, 0)
#define FAILS(call, status) expect(#call, call, status)
#define IS(condition) expect(#condition, !(condition), 0)

/* Whether a case of a long list is tested: all in a full run, otherwise one in three, which ATOLL_SEED selects. */
static int is_taken(int number) {
    const char *full = getenv("ATOLL_TEST_FULL"), *seed = getenv("ATOLL_SEED");
    return (full && !strcmp(full, "1")) || ((unsigned)number + (seed ? (unsigned)atoi(seed) : 1)) % 3 == 0;
}

static void expect(const char *what, int got, int wanted) {
    if (got == wanted) return;
    printf("%s: %d (%s), not %d\n", what, got, NAME_OF(got), wanted);
    exit(1);
}

static size_t size_of(int type) {
    return type == F64 ? 8 : type == F32 || type == S32 ? 4 : type == S8 ? 1 : 2;
}

/* Conversions of numbers that are exact in the type, or rounded towards zero. */
static void put(int type, void *at, size_t index, double number) {
    float f = (float)number;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    switch (type) {
    case F64: ((double *)at)[index] = number; break;
    case F32: ((float *)at)[index] = f; break;
    case S32: ((int32_t *)at)[index] = (int32_t)number; break;
    case S8: ((int8_t *)at)[index] = (int8_t)number; break;
    case BF16: ((uint16_t *)at)[index] = (uint16_t)(bits >> 16); break;
    default: {
        uint32_t magnitude = bits & 0x7fffffff, half = magnitude > 0x7f800000 ? 0x7e00 : magnitude < 0x38800000 ? 0
            : (magnitude - (112u << 23)) >> 13;
        ((uint16_t *)at)[index] = (uint16_t)(bits >> 31 << 15 | half);
    }
    }
}

static double get(int type, const void *at, size_t index) {
    uint32_t bits;
    float f;
    switch (type) {
    case F64: return ((const double *)at)[index];
    case F32: return ((const float *)at)[index];
    case S32: return ((const int32_t *)at)[index];
    case S8: return ((const int8_t *)at)[index];
    case BF16: bits = (uint32_t)((const uint16_t *)at)[index] << 16; break;
    default: {
        uint32_t half = ((const uint16_t *)at)[index], magnitude = half & 0x7fff;
        bits = magnitude >= 0x7c00 ? 0x7fc00000 : magnitude < 0x400 ? 0 : (magnitude << 13) + (112u << 23);
        bits |= half >> 15 << 31;
    }
    }
    memcpy(&f, &bits, 4);
    return f;
}

/* Small numbers that all types represent exactly: multiples of 1/4, whole in integers. */
static double number(int type, int seed, size_t index) {
    int whole = (int)((index * 7 + (size_t)seed * 5 + index / 11) % 13) - 6;
    return type == S8 || type == S32 ? whole : whole / 4.0;
}

/* A vector of numbers on the host and on the device. */
typedef struct {
    int type;
    size_t count;
    void *host, *device;
} numbers_t;

static numbers_t numbers(int type, size_t count, int seed) {
    numbers_t made = {type, count, calloc(count + 1, 8), 0};
    for (size_t i = 0; i < count; i++) put(type, made.host, i, number(type, seed, i));
    OK(cudaMalloc(&made.device, count * size_of(type) + 8));
    OK(cudaMemcpy(made.device, made.host, count * size_of(type), TO_DEVICE));
    return made;
}

static void to_device(numbers_t *of) { OK(cudaMemcpy(of->device, of->host, of->count * size_of(of->type), TO_DEVICE)); }

/* The numbers on the device, which replace those on the host. */
static void to_host(numbers_t *of) { OK(cudaMemcpy(of->host, of->device, of->count * size_of(of->type), TO_HOST)); }

static void drop(numbers_t of) {
    free(of.host);
    OK(cudaFree(of.device));
}

static double at(numbers_t of, size_t index) { return get(of.type, of.host, index); }

/* Relative error that a type and sums of `depth` products allow. */
static double allowed(int type, int depth) {
    double of_type = type == F64 ? 1e-15 : type == F32 ? 1e-7 : type == F16 ? 1e-3 : type == BF16 ? 8e-3 : 0;
    return of_type * (type == F16 || type == BF16 ? 1 : 4 + depth);
}

static void close_to(const char *what, double got, double wanted, double scale, double error) {
    if (fabs(got - wanted) <= error * scale || (isnan(got) && isnan(wanted)) || got == wanted) return;
    printf("%s: %.17g, not %.17g\n", what, got, wanted);
    exit(1);
}
