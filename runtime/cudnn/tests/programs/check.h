/* Common parts of the programs: declarations, and tensors on the host and on the device. */
#include <stddef.h>

/* Declared as in cudnn.h. */
int cudnnCreate(void **), cudnnDestroy(void *);
int cudnnCreateTensorDescriptor(void **), cudnnDestroyTensorDescriptor(void *);
int cudnnSetTensorNdDescriptor(void *, int, int, const int *, const int *);
int cudnnSetTensorNdDescriptorEx(void *, int, int, int, const int *);
int cudnnGetTensorNdDescriptor(void *, int, int *, int *, int *, int *);
int cudnnCreateFilterDescriptor(void **), cudnnDestroyFilterDescriptor(void *);
int cudnnSetFilterNdDescriptor(void *, int, int, int, const int *);
const char *cudnnGetErrorString(int);
size_t cudnnGetVersion(void);

enum { F32 = 0, F64 = 1, F16 = 2, S8 = 3, S32 = 4, BF16 = 9 };
enum { NCHW = 0, NHWC = 1 };
enum { CONVOLUTION = 0, CROSS_CORRELATION = 1 };
enum { SIGMOID, RELU, TANH, CLIPPED_RELU, ELU, IDENTITY, SWISH };
#define NAME_OF(status) cudnnGetErrorString(status)

#include "../../../cuda-library/tests/programs/numbers.h"

/* Results that differ between the versions. */
static int is_eight(void) { return cudnnGetVersion() < 9000; }
#define BAD_PARAM (is_eight() ? 3 : 2000)
#define NOT_INITIALIZED (is_eight() ? 1 : 1001)
#define NOT_SUPPORTED (is_eight() ? 9 : 3000)

static const int types[] = {F32, F16, BF16, F64};

static void *handle;

/* A tensor of five dimensions: batch, channels, and three of space; the first of space is missing in
   the descriptor if `rank` is 4. */
typedef struct {
    int type, rank, sizes[5], strides[5];
    numbers_t numbers;
    void *descriptor;
} tensor_t;

/* The sizes or strides as the descriptor has them. */
static void flat(int rank, const int *five, int *to) {
    for (int i = 0; i < rank; i++) to[i] = five[i < 2 ? i : i + 5 - rank];
}

static size_t place(const tensor_t *of, const int *at) {
    size_t index = 0;
    for (int i = 0; i < 5; i++) index += (size_t)at[i] * (size_t)of->strides[i];
    return index;
}

static double value(const tensor_t *of, int n, int c, int d, int h, int w) {
    int where[] = {n, c, d, h, w};
    return at(of->numbers, place(of, where));
}

/* Strides without gaps in the order of the format. */
static void pack(tensor_t *of, int format) {
    static const int orders[][5] = {{4, 3, 2, 1, 0}, {1, 4, 3, 2, 0}};
    int next = 1;
    for (int i = 0; i < 5; i++) of->strides[orders[format][i]] = next, next *= of->sizes[orders[format][i]];
}

/* The number of elements between the first and the last, both included. */
static size_t span(const tensor_t *of) {
    size_t last = 1;
    for (int i = 0; i < 5; i++) last += (size_t)(of->sizes[i] - 1) * (size_t)of->strides[i];
    return last;
}

static tensor_t shaped(int type, int rank, const int *sizes) {
    tensor_t made = {type, rank, {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]}, {0}, {0}, 0};
    return made;
}

/* A tensor in a format. */
static tensor_t tensor(int type, int format, int rank, const int *sizes, int seed) {
    tensor_t made = shaped(type, rank, sizes);
    int given[5];
    pack(&made, format);
    made.numbers = numbers(type, span(&made), seed);
    flat(rank, sizes, given);
    OK(cudnnCreateTensorDescriptor(&made.descriptor));
    OK(cudnnSetTensorNdDescriptorEx(made.descriptor, format, type, rank, given));
    return made;
}

/* A tensor with gaps between its elements: `gap` times the strides without. */
static tensor_t spread(int type, int rank, const int *sizes, int gap, int seed) {
    tensor_t made = shaped(type, rank, sizes);
    int given[5], strides[5];
    pack(&made, NCHW);
    for (int i = 0; i < 5; i++) made.strides[i] *= gap;
    made.numbers = numbers(type, span(&made), seed);
    flat(rank, sizes, given), flat(rank, made.strides, strides);
    OK(cudnnCreateTensorDescriptor(&made.descriptor));
    OK(cudnnSetTensorNdDescriptor(made.descriptor, type, rank, given, strides));
    return made;
}

/* A filter: output channels, input channels of a group, and space. */
static tensor_t filter(int type, int format, int rank, const int *sizes, int seed) {
    tensor_t made = shaped(type, rank, sizes);
    int given[5];
    pack(&made, format);
    made.numbers = numbers(type, span(&made), seed);
    flat(rank, sizes, given);
    OK(cudnnCreateFilterDescriptor(&made.descriptor));
    OK(cudnnSetFilterNdDescriptor(made.descriptor, type, format, rank, given));
    return made;
}

static void fill(tensor_t *of, double number) {
    for (size_t i = 0; i < of->numbers.count; i++) put(of->type, of->numbers.host, i, number);
    to_device(&of->numbers);
}

static void free_tensor(tensor_t of) {
    drop(of.numbers);
    OK(cudnnDestroyTensorDescriptor(of.descriptor));
}

static void free_filter(tensor_t of) {
    drop(of.numbers);
    OK(cudnnDestroyFilterDescriptor(of.descriptor));
}

/* A factor as the library reads it. */
typedef union {
    float f;
    double d;
} factor_t;

static factor_t factor(int type, double number) {
    factor_t made;
    if (type == F64) made.d = number;
    else made.f = (float)number;
    return made;
}

/* Compares the tensor on the device with `wanted(context, n, c, d, h, w)`. `old` are its numbers before. */
typedef double wanted_t(const void *, int, int, int, int, int);

static void compare(const char *what, tensor_t *of, wanted_t *wanted, const void *context, double alpha, double beta,
                    int depth) {
    size_t bytes = of->numbers.count * size_of(of->type);
    numbers_t old = of->numbers;
    old.host = malloc(bytes);
    memcpy(old.host, of->numbers.host, bytes);
    to_host(&of->numbers);
    int i[5];
    for (i[0] = 0; i[0] < of->sizes[0]; i[0]++)
        for (i[1] = 0; i[1] < of->sizes[1]; i[1]++)
            for (i[2] = 0; i[2] < of->sizes[2]; i[2]++)
                for (i[3] = 0; i[3] < of->sizes[3]; i[3]++)
                    for (i[4] = 0; i[4] < of->sizes[4]; i[4]++) {
                        double number = alpha * wanted(context, i[0], i[1], i[2], i[3], i[4]);
                        if (beta != 0) number += beta * at(old, place(of, i));
                        double error = 2 * allowed(of->type, depth);
                        close_to(what, at(of->numbers, place(of, i)), number, 1 + fabs(number), error);
                    }
    free(old.host);
}
