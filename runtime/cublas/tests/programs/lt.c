/* Products by cuBLASLt, compared with loops. The first argument names the test. */
#include "check.h"

typedef struct { uint64_t words[8]; } algorithm_t;
typedef struct { algorithm_t algorithm; size_t bytes; int status; float waves; int reserved[4]; } found_t;
int cublasLtCreate(void **), cublasLtDestroy(void *), cublasLtMatmulDescCreate(void **, int, int);
int cublasLtMatmulDescDestroy(void *), cublasLtMatmulDescSetAttribute(void *, int, const void *, size_t);
int cublasLtMatmulDescGetAttribute(void *, int, void *, size_t, size_t *);
int cublasLtMatmulDescInit_internal(void *, size_t, int, int);
int cublasLtMatrixLayoutCreate(void **, int, uint64_t, uint64_t, int64_t), cublasLtMatrixLayoutDestroy(void *);
int cublasLtMatrixLayoutSetAttribute(void *, int, const void *, size_t);
int cublasLtMatrixLayoutInit_internal(void *, size_t, int, uint64_t, uint64_t, int64_t);
int cublasLtMatmulPreferenceCreate(void **), cublasLtMatmulPreferenceDestroy(void *);
int cublasLtMatmulPreferenceSetAttribute(void *, int, const void *, size_t);
int cublasLtMatmulAlgoGetHeuristic(void *, void *, void *, void *, void *, void *, void *, int, found_t *, int *);
int cublasLtMatmul(void *, void *, const void *, const void *, void *, const void *, void *, const void *, const void *,
                   void *, void *, void *, const void *, void *, size_t, void *);
int cublasLtMatrixTransform(void);
size_t cublasLtGetVersion(void);

enum { SCALE_POINTER_MODE = 2, TRANS_A = 3, TRANS_B = 4, EPILOGUE = 7, BIAS = 8, BIAS_BATCH = 10, AUX = 11, SCALE_A = 17 };
enum { ORDER = 1, BATCH_COUNT = 5, BATCH_OFFSET = 6, ROWS_FIRST = 1 };
enum { RELU = 2, OF_BIAS = 4, GELU = 32 };

static void *handle;

static double activated(int epilogue, double x) {
    if (epilogue & RELU) return x < 0 ? 0 : x;
    if (epilogue & GELU) return x / (1 + exp(-2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    return x;
}

static void *layout(int type, int rows, int columns, int ld, int by_rows, int batch, long long offset) {
    void *made;
    OK(cublasLtMatrixLayoutCreate(&made, type, (uint64_t)rows, (uint64_t)columns, ld));
    OK(cublasLtMatrixLayoutSetAttribute(made, ORDER, &by_rows, 4));
    OK(cublasLtMatrixLayoutSetAttribute(made, BATCH_COUNT, &batch, 4));
    OK(cublasLtMatrixLayoutSetAttribute(made, BATCH_OFFSET, &offset, 8));
    return made;
}

/* D = activation(alpha * A' * B + beta * C + bias) of a batch of two, with C and D by columns or rows. */
static void product(int in, int out, int epilogue, int by_rows) {
    enum { M = 37, NN = 21, K = 18, BATCH = 2 };
    int transposed = T, ld = by_rows ? NN + 1 : M + 2, count = ld * (by_rows ? M : NN);
    numbers_t a = numbers(in, K * M * BATCH, 1), b = numbers(in, K * NN, 2), bias = numbers(out, M * BATCH, 4);
    numbers_t c = numbers(out, (size_t)count * BATCH, 3), d = numbers(out, (size_t)count * BATCH, 5);
    float factors[2] = {0.5, -1};
    void *operation, *a_layout = layout(in, K, M, K, 0, BATCH, K * M), *b_layout = layout(in, K, NN, K, 0, BATCH, 0);
    void *c_layout = layout(out, M, NN, ld, by_rows, BATCH, count), *preference, *stream;
    size_t bytes = 1 << 20, written = 0;
    long long bias_batch = M;
    OK(cublasLtMatmulDescCreate(&operation, COMPUTE_32F, F32));
    OK(cublasLtMatmulDescSetAttribute(operation, TRANS_A, &transposed, 4));
    OK(cublasLtMatmulDescSetAttribute(operation, EPILOGUE, &epilogue, 4));
    if (epilogue & OF_BIAS) OK(cublasLtMatmulDescSetAttribute(operation, BIAS, &bias.device, 8));
    OK(cublasLtMatmulDescSetAttribute(operation, BIAS_BATCH, &bias_batch, 8));
    int back = -1;
    OK(cublasLtMatmulDescGetAttribute(operation, EPILOGUE, &back, 4, &written));
    IS(back == epilogue && written == 4);
    OK(cublasLtMatmulPreferenceCreate(&preference));
    OK(cublasLtMatmulPreferenceSetAttribute(preference, 1, &bytes, 8));
    found_t found[3];
    int results = -1;
    OK(cublasLtMatmulAlgoGetHeuristic(handle, operation, a_layout, b_layout, c_layout, c_layout, preference, 3, found,
                                      &results));
    IS(results == 1 && found[0].status == 0 && found[0].bytes == 0);
    OK(cudaStreamCreate(&stream));
    OK(cublasLtMatmul(handle, operation, &factors[0], a.device, a_layout, b.device, b_layout, &factors[1], c.device,
                      c_layout, d.device, c_layout, &found[0].algorithm, 0, 0, stream));
    OK(cudaStreamSynchronize(stream));
    double *before = malloc(d.count * sizeof *before);
    for (size_t i = 0; i < d.count; i++) before[i] = at(d, i);
    to_host(&d);
    for (int z = 0; z < BATCH; z++)
        for (int j = 0; j < NN; j++)
            for (int i = 0; i < M; i++) {
                double sum = 0;
                for (int l = 0; l < K; l++) sum += at(a, z * K * M + l + i * K) * at(b, l + j * K);
                size_t here = (size_t)(z * count + (by_rows ? j + i * ld : i + j * ld));
                double wanted = 0.5 * sum - at(c, here) + (epilogue & OF_BIAS ? at(bias, z * M + i) : 0);
                before[here] = activated(epilogue, wanted);
            }
    char what[64];
    snprintf(what, sizeof what, "types %d and %d, epilogue %d, by rows %d", in, out, epilogue, by_rows);
    double error = out == F32 ? 4e-6 : allowed(out, K);
    for (size_t i = 0; i < d.count; i++) close_to(what, at(d, i), before[i], 4 + fabs(before[i]), error);
    free(before);
    OK(cublasLtMatmulDescDestroy(operation));
    OK(cublasLtMatmulPreferenceDestroy(preference));
    OK(cublasLtMatrixLayoutDestroy(a_layout));
    OK(cublasLtMatrixLayoutDestroy(b_layout));
    OK(cublasLtMatrixLayoutDestroy(c_layout));
    drop(a), drop(b), drop(c), drop(d), drop(bias);
}

static void epilogues(void) {
    const int all[] = {1, RELU, OF_BIAS, RELU | OF_BIAS, GELU, GELU | OF_BIAS};
    const int types[][2] = {{F32, F32}, {F16, F16}, {BF16, BF16}, {F16, F32}};
    for (int t = 0; t < 4; t++)
        for (int e = 0; e < 6; e++) product(types[t][0], types[t][1], all[e], (t + e) % 2);
}

/* Descriptors in the program's memory, factors on the device, a result that is not read. */
static void others(void) {
    uint64_t operation[32], a_layout[8];
    int on_device = 1;
    double numbers_of[4] = {1, 2, 3, 4};
    OK(cublasLtMatmulDescInit_internal(operation, sizeof operation, COMPUTE_64F, F64));
    OK(cublasLtMatrixLayoutInit_internal(a_layout, sizeof a_layout, F64, 2, 2, 2));
    OK(cublasLtMatmulDescSetAttribute(operation, SCALE_POINTER_MODE, &on_device, 4));
    numbers_t a = numbers(F64, 4, 0), d = numbers(F64, 4, 0), factors = numbers(F64, 2, 0);
    memcpy(a.host, numbers_of, sizeof numbers_of);
    to_device(&a);
    put(F64, factors.host, 0, 2), put(F64, factors.host, 1, 0);
    to_device(&factors);
    OK(cublasLtMatmul(handle, operation, factors.device, a.device, a_layout, a.device, a_layout,
                      (double *)factors.device + 1, 0, a_layout, d.device, a_layout, 0, 0, 0, 0));
    to_host(&d);
    IS(at(d, 0) == 14 && at(d, 1) == 20 && at(d, 2) == 30 && at(d, 3) == 44);
    IS(cublasLtGetVersion() >= 111103);
    drop(a), drop(d), drop(factors);
}

static void refusals(void) {
    void *operation, *square, *tall, *of_other;
    int epilogue = 128 | RELU, nothing = 0, results = -1, order = 2;
    float one = 1;
    void *address = &one, *null = 0;
    found_t found;
    numbers_t a = numbers(F32, 64, 1);
    OK(cublasLtMatmulDescCreate(&operation, COMPUTE_32F, F32));
    OK(cublasLtMatrixLayoutCreate(&square, F32, 8, 8, 8));
    OK(cublasLtMatrixLayoutCreate(&tall, F32, 8, 4, 8));
    OK(cublasLtMatrixLayoutCreate(&of_other, F16, 8, 8, 8));
#define MATMUL(h, op, l_a, l_b, l_d, d) \
    cublasLtMatmul(h, op, &one, a.device, l_a, a.device, l_b, &one, d, l_d, d, l_d, 0, 0, 0, 0)
    FAILS(MATMUL(0, operation, square, square, square, a.device), NOT_INITIALIZED);
    FAILS(MATMUL(handle, square, square, square, square, a.device), INVALID_VALUE);
    FAILS(MATMUL(handle, 0, square, square, square, a.device), INVALID_VALUE);
    FAILS(MATMUL(handle, operation, tall, square, square, a.device), INVALID_VALUE);
    FAILS(MATMUL(handle, operation, square, square, tall, a.device), INVALID_VALUE);
    FAILS(MATMUL(handle, operation, square, square, square, 0), INVALID_VALUE);
    FAILS(MATMUL(handle, operation, of_other, square, square, a.device), NOT_SUPPORTED);
    FAILS(cublasLtMatmulAlgoGetHeuristic(handle, operation, of_other, square, square, square, 0, 1, &found, &results),
          NOT_SUPPORTED);
    IS(results == 0);
    FAILS(cublasLtMatmulAlgoGetHeuristic(handle, operation, square, square, square, square, 0, 0, &found, &results),
          INVALID_VALUE);
    /* Attributes of a wrong size or number; values that are not supported. */
    FAILS(cublasLtMatmulDescSetAttribute(operation, EPILOGUE, &epilogue, 8), INVALID_VALUE);
    FAILS(cublasLtMatmulDescSetAttribute(operation, 99, &epilogue, 4), INVALID_VALUE);
    FAILS(cublasLtMatmulDescSetAttribute(operation, EPILOGUE, 0, 4), INVALID_VALUE);
    FAILS(cublasLtMatmulDescSetAttribute(operation, SCALE_A, &address, 8), NOT_SUPPORTED);
    OK(cublasLtMatmulDescSetAttribute(operation, AUX, &null, 8));
    OK(cublasLtMatmulDescSetAttribute(operation, EPILOGUE, &epilogue, 4));
    FAILS(MATMUL(handle, operation, square, square, square, a.device), NOT_SUPPORTED);
    /* A bias has an address when the product runs; heuristics do not need it. */
    epilogue = OF_BIAS;
    OK(cublasLtMatmulDescSetAttribute(operation, EPILOGUE, &epilogue, 4));
    OK(cublasLtMatmulAlgoGetHeuristic(handle, operation, square, square, square, square, 0, 1, &found, &results));
    FAILS(MATMUL(handle, operation, square, square, square, a.device), INVALID_VALUE);
    epilogue = 1;
    OK(cublasLtMatmulDescSetAttribute(operation, EPILOGUE, &epilogue, 4));
    OK(cublasLtMatrixLayoutSetAttribute(square, ORDER, &order, 4));
    FAILS(MATMUL(handle, operation, square, square, square, a.device), NOT_SUPPORTED);
    OK(cublasLtMatrixLayoutSetAttribute(square, ORDER, &nothing, 4));
    FAILS(cublasLtMatrixTransform(), NOT_SUPPORTED);
    OK(cublasLtMatrixLayoutDestroy(tall));
    FAILS(cublasLtMatrixLayoutDestroy(tall), INVALID_VALUE);
    uint64_t small[4];
    FAILS(cublasLtMatrixLayoutInit_internal(small, sizeof small, F32, 1, 1, 1), INVALID_VALUE);
    /* What was refused has changed nothing. */
    OK(MATMUL(handle, operation, square, square, square, a.device));
    drop(a);
}

int main(int count, char **arguments) {
    const char *test = count > 1 ? arguments[1] : "";
    OK(cublasLtCreate(&handle));
    if (!strcmp(test, "epilogues")) epilogues();
    else if (!strcmp(test, "others")) others();
    else if (!strcmp(test, "refusals")) refusals();
    else return 2;
    OK(cublasLtDestroy(handle));
    printf("%s\n", test);
    return 0;
}
