/* Products of matrices, compared with loops. The first argument names the test. */
#include "check.h"

int cublasSgemm_v2(void *, int, int, int, int, int, const void *, const void *, int, const void *, int, const void *,
                   void *, int);
int cublasDgemm_v2(void *, int, int, int, int, int, const void *, const void *, int, const void *, int, const void *,
                   void *, int);
int cublasSgemm_v2_64(void *, int, int, int64_t, int64_t, int64_t, const void *, const void *, int64_t, const void *,
                      int64_t, const void *, void *, int64_t);
int cublasHgemm(void *, int, int, int, int, int, const void *, const void *, int, const void *, int, const void *,
                void *, int);
int cublasGemmEx(void *, int, int, int, int, int, const void *, const void *, int, int, const void *, int, int,
                 const void *, void *, int, int, int, int);
int cublasSgemmBatched(void *, int, int, int, int, int, const void *, const void *, int, const void *, int,
                       const void *, void *, int, int);
int cublasDgemmStridedBatched(void *, int, int, int, int, int, const void *, const void *, int, long long, const void *,
                              int, long long, const void *, void *, int, long long, int);
int cublasGemmStridedBatchedEx(void *, int, int, int, int, int, const void *, const void *, int, int, long long,
                               const void *, int, int, long long, const void *, void *, int, int, long long, int, int,
                               int);
int cublasGemmBatchedEx(void *, int, int, int, int, int, const void *, const void *, int, int, const void *, int, int,
                        const void *, void *, int, int, int, int, int);
int cublasSgemv_v2(void *, int, int, int, const void *, const void *, int, const void *, int, const void *, void *, int);
int cublasDgemv_v2(void *, int, int, int, const void *, const void *, int, const void *, int, const void *, void *, int);
int cublasSgemvStridedBatched(void *, int, int, int, const void *, const void *, int, long long, const void *, int,
                              long long, const void *, void *, int, long long, int);
int cublasSgemvBatched(void *, int, int, int, const void *, const void *, int, const void *, int, const void *, void *,
                       int, int);
int cublasDger_v2(void *, int, int, const void *, const void *, int, const void *, int, void *, int);
int cublasDgeam(void *, int, int, int, int, const void *, const void *, int, const void *, const void *, int, void *, int);
int cublasDsyrk_v2(void *, int, int, int, int, const void *, const void *, int, const void *, void *, int);
int cublasCgemm_v2(void), cublasStrsm_v2(void), cublasDestroy_v2(void *);

/* A combination of types: computation, A and B, C, alpha and beta. */
typedef struct {
    int compute, in, out, scale;
} types_t;

static const types_t combinations[] = {
    {COMPUTE_32F, F32, F32, F32}, {COMPUTE_TF32, F32, F32, F32},   {COMPUTE_64F, F64, F64, F64},
    {COMPUTE_16F, F16, F16, F16}, {COMPUTE_32F, F16, F16, F32},    {COMPUTE_32F, F16, F32, F32},
    {COMPUTE_32F, BF16, F32, F32}, {COMPUTE_32F, BF16, BF16, F32}, {COMPUTE_32F, S8, F32, F32},
    {COMPUTE_32I, S8, S32, S32},
};

/* Sizes of all tiles: one column, one row, narrow, wide, and edges of them. */
static const int sizes[][3] = {{1, 1, 1}, {5, 1, 7}, {1, 9, 3}, {3, 5, 2}, {33, 9, 17}, {65, 67, 18}, {70, 17, 33}, {4, 3, 0}};

static void *handle;

/* C by loops: `c` has the old numbers and gets the new ones. */
static void multiply(types_t types, int op_a, int op_b, const int *size, double alpha, const void *a, int lda,
                     const void *b, int ldb, double beta, double *c, int ldc) {
    for (int j = 0; j < size[1]; j++)
        for (int i = 0; i < size[0]; i++) {
            double sum = 0;
            for (int l = 0; l < size[2] && alpha != 0; l++)
                sum += get(types.in, a, op_a ? l + (size_t)i * lda : i + (size_t)l * lda)
                       * get(types.in, b, op_b ? j + (size_t)l * ldb : l + (size_t)j * ldb);
            double *at = &c[i + (size_t)j * ldc];
            *at = (size[2] && alpha != 0 ? alpha * sum : 0) + (beta != 0 ? beta * *at : 0);
        }
}

/* Compares C with its wanted numbers, padding included. */
static void compare(const char *what, numbers_t c, const double *wanted, int depth) {
    to_host(&c);
    double error = allowed(c.type, depth);
    for (size_t i = 0; i < c.count; i++) close_to(what, at(c, i), wanted[i], 4 + fabs(wanted[i]), error);
}

static double *copy_of(numbers_t of) {
    double *copy = malloc((of.count + 1) * sizeof *copy);
    for (size_t i = 0; i < of.count; i++) copy[i] = at(of, i);
    return copy;
}

/* One product with padded leading dimensions, in host or device pointer mode. */
static void product(types_t types, int op_a, int op_b, const int *size, double alpha, double beta, int on_device) {
    int m = size[0], n = size[1], k = size[2];
    int lda = (op_a ? k : m) + 3, ldb = (op_b ? n : k) + 2, ldc = m + 1;
    numbers_t a = numbers(types.in, (size_t)lda * ((op_a ? m : k) + 1), 1);
    numbers_t b = numbers(types.in, (size_t)ldb * ((op_b ? k : n) + 1), 2);
    numbers_t c = numbers(types.out, (size_t)ldc * n, 3);
    numbers_t factors = numbers(types.scale, 2, 0);
    put(types.scale, factors.host, 0, alpha);
    put(types.scale, factors.host, 1, beta);
    to_device(&factors);
    double *wanted = copy_of(c);
    multiply(types, op_a, op_b, size, alpha, a.host, lda, b.host, ldb, beta, wanted, ldc);
    char *base = on_device ? factors.device : factors.host;
    OK(cublasSetPointerMode_v2(handle, on_device));
    OK(cublasGemmEx(handle, op_a, op_b, m, n, k, base, a.device, types.in, lda, b.device, types.in, ldb,
                    base + size_of(types.scale), c.device, types.out, ldc, types.compute, -1));
    char what[99];
    snprintf(what, sizeof what, "compute %d, %d to %d, ops %d %d, size %d %d %d, device %d", types.compute, types.in,
             types.out, op_a, op_b, m, n, k, on_device);
    compare(what, c, wanted, k);
    free(wanted);
    drop(a), drop(b), drop(c), drop(factors);
}

static void transposes(void) {
    for (size_t t = 0; t < sizeof combinations / sizeof *combinations; t++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (int ops = 0; ops < 4; ops++) {
                if (!is_taken((int)(t + s) + ops)) continue;
                int whole = combinations[t].scale == S32;
                product(combinations[t], ops & 1, ops & 2 ? C : N, sizes[s], whole ? 2 : 0.5, whole ? -1 : 1.25,
                        (int)(ops + s) % 2);
            }
}

/* The entry points of one type. */
static void plain(void) {
    int m = 37, n = 5, k = 19;
    const int size[] = {m, n, k};
    types_t types[] = {{0, F32, F32, F32}, {0, F64, F64, F64}, {0, F16, F16, F16}, {0, F32, F32, F32}};
    for (int i = 0; i < 4; i++) {
        numbers_t a = numbers(types[i].in, (size_t)m * k, 1), b = numbers(types[i].in, (size_t)k * n, 2);
        numbers_t c = numbers(types[i].in, (size_t)m * n, 3), factors = numbers(types[i].scale, 2, 0);
        put(types[i].scale, factors.host, 0, -1.5), put(types[i].scale, factors.host, 1, 0.5);
        const void *alpha = factors.host, *beta = (char *)factors.host + size_of(types[i].scale);
        double *wanted = copy_of(c);
        multiply(types[i], N, T, size, -1.5, a.host, m, b.host, n, 0.5, wanted, m);
        OK(cublasSetPointerMode_v2(handle, 0));
        if (i == 3) OK(cublasSgemm_v2_64(handle, N, T, m, n, k, alpha, a.device, m, b.device, n, beta, c.device, m));
        else OK((i == 0 ? cublasSgemm_v2 : i == 1 ? cublasDgemm_v2 : cublasHgemm)(
            handle, N, T, m, n, k, alpha, a.device, m, b.device, n, beta, c.device, m));
        compare("a product of one type", c, wanted, k);
        free(wanted);
        drop(a), drop(b), drop(c), drop(factors);
    }
}

/* Batches: at a distance, and by arrays of addresses, whose third matrices come first. */
static void batches(void) {
    enum { BATCH = 3, M = 13, NN = 11, K = 6 };
    const int size[] = {M, NN, K};
    for (int kind = 0; kind < 4; kind++) {
        types_t types = kind == 0 ? (types_t){COMPUTE_64F, F64, F64, F64} : kind == 1 ? (types_t){COMPUTE_32F, F32, F32, F32}
            : (types_t){COMPUTE_32F, F16, F32, F32};
        numbers_t a = numbers(types.in, M * K * BATCH + 5, 1), b = numbers(types.in, K * NN, 2);
        numbers_t c = numbers(types.out, M * NN * BATCH, 3), factors = numbers(types.scale, 2, 0);
        put(types.scale, factors.host, 0, 2), put(types.scale, factors.host, 1, 1);
        const void *alpha = factors.host, *beta = (char *)factors.host + size_of(types.scale);
        int is_array = kind == 1 || kind == 3, reach = M * K + 1;
        double *wanted = copy_of(c);
        void *arrays[3][BATCH], *on_device[3];
        for (int i = 0; i < BATCH; i++) {
            int from = is_array ? BATCH - 1 - i : i;
            multiply(types, N, N, size, 2, (char *)a.host + size_of(types.in) * reach * from, M, b.host, K, 1,
                     wanted + i * M * NN, M);
            arrays[0][i] = (char *)a.device + size_of(types.in) * reach * from;
            arrays[1][i] = b.device;
            arrays[2][i] = (char *)c.device + size_of(types.out) * M * NN * i;
        }
        for (int i = 0; i < 3; i++) {
            OK(cudaMalloc(&on_device[i], sizeof arrays[i]));
            OK(cudaMemcpy(on_device[i], arrays[i], sizeof arrays[i], TO_DEVICE));
        }
        if (kind == 0) OK(cublasDgemmStridedBatched(handle, N, N, M, NN, K, alpha, a.device, M, reach, b.device, K, 0,
                                                    beta, c.device, M, M * NN, BATCH));
        if (kind == 1) OK(cublasSgemmBatched(handle, N, N, M, NN, K, alpha, on_device[0], M, on_device[1], K, beta,
                                             on_device[2], M, BATCH));
        if (kind == 2) OK(cublasGemmStridedBatchedEx(handle, N, N, M, NN, K, alpha, a.device, types.in, M, reach,
                                                     b.device, types.in, K, 0, beta, c.device, types.out, M, M * NN,
                                                     BATCH, types.compute, -1));
        if (kind == 3) OK(cublasGemmBatchedEx(handle, N, N, M, NN, K, alpha, on_device[0], types.in, M, on_device[1],
                                              types.in, K, beta, on_device[2], types.out, M, BATCH, types.compute, -1));
        compare("a batch", c, wanted, K);
        for (int i = 0; i < 3; i++) OK(cudaFree(on_device[i]));
        free(wanted);
        drop(a), drop(b), drop(c), drop(factors);
    }
}

/* y = alpha * op(A) * x + beta * y and A = alpha * x * y' + A, with increments. */
static void vectors(void) {
    const int increments[] = {1, 2, -1, -3};
    double factors[] = {0.5, -2};
    for (int op = N; op <= C; op++)
        for (int i = 0; i < 4; i++) {
            int m = 35, n = 18, lda = m + 2, incx = increments[i], incy = increments[3 - i];
            int of_x = op ? m : n, of_y = op ? n : m, step_x = abs(incx), step_y = abs(incy);
            numbers_t a = numbers(F64, (size_t)lda * n, 1), x = numbers(F64, (size_t)of_x * step_x, 2);
            numbers_t y = numbers(F64, (size_t)of_y * step_y, 3);
            double *wanted = copy_of(y);
            for (int row = 0; row < of_y; row++) {
                double sum = 0;
                for (int l = 0; l < of_x; l++)
                    sum += at(a, op ? l + (size_t)row * lda : row + (size_t)l * lda)
                           * at(x, (size_t)(incx > 0 ? l : of_x - 1 - l) * step_x);
                double *to = &wanted[(incy > 0 ? row : of_y - 1 - row) * step_y];
                *to = 0.5 * sum - 2 * *to;
            }
            OK(cublasDgemv_v2(handle, op, m, n, &factors[0], a.device, lda, x.device, incx, &factors[1], y.device, incy));
            compare("gemv", y, wanted, of_x);
            free(wanted);
            /* A += 0.5 * x * y', with the roles of the sizes. */
            numbers_t outer = numbers(F64, (size_t)(of_x + 1) * of_y, 4);
            wanted = copy_of(outer);
            for (int column = 0; column < of_y; column++)
                for (int row = 0; row < of_x; row++)
                    wanted[row + column * (of_x + 1)] += 0.5 * at(x, (size_t)(incx > 0 ? row : of_x - 1 - row) * step_x)
                        * at(y, (size_t)(incy > 0 ? column : of_y - 1 - column) * step_y);
            OK(cublasSetPointerMode_v2(handle, 1));
            numbers_t half = numbers(F64, 1, 0);
            put(F64, half.host, 0, 0.5);
            to_device(&half);
            OK(cublasDger_v2(handle, of_x, of_y, half.device, x.device, incx, y.device, incy, outer.device, of_x + 1));
            OK(cublasSetPointerMode_v2(handle, 0));
            to_host(&y);
            compare("ger", outer, wanted, 1);
            free(wanted);
            drop(a), drop(x), drop(y), drop(outer), drop(half);
        }
    /* A batch of matrices and vectors of f32. */
    float alpha = 1, beta = 0;
    numbers_t a = numbers(F32, 3 * 4 * 2, 1), x = numbers(F32, 4 * 2, 2), y = numbers(F32, 3 * 2, 3);
    double wanted[6] = {0};
    for (int b = 0; b < 2; b++)
        for (int i = 0; i < 3; i++)
            for (int l = 0; l < 4; l++) wanted[b * 3 + i] += at(a, b * 12 + i + l * 3) * at(x, b * 4 + l);
    OK(cublasSgemvStridedBatched(handle, N, 3, 4, &alpha, a.device, 3, 12, x.device, 1, 4, &beta, y.device, 1, 3, 2));
    compare("gemv of a batch", y, wanted, 4);
    /* The same by arrays of addresses, the last ones first. */
    void *arrays[3][2], *on_device[3];
    for (int b = 0; b < 2; b++) {
        arrays[0][b] = (float *)a.device + (1 - b) * 12;
        arrays[1][b] = (float *)x.device + (1 - b) * 4;
        arrays[2][b] = (float *)y.device + (1 - b) * 3;
    }
    for (int i = 0; i < 3; i++) {
        OK(cudaMalloc(&on_device[i], sizeof arrays[i]));
        OK(cudaMemcpy(on_device[i], arrays[i], sizeof arrays[i], TO_DEVICE));
    }
    memset(y.host, 0, y.count * 4);
    to_device(&y);
    OK(cublasSgemvBatched(handle, N, 3, 4, &alpha, on_device[0], 3, on_device[1], 1, &beta, on_device[2], 1, 2));
    compare("gemv of arrays", y, wanted, 4);
    for (int i = 0; i < 3; i++) OK(cudaFree(on_device[i]));
    drop(a), drop(x), drop(y);
}

/* C = alpha * op(A) + beta * op(B), and triangles of alpha * op(A) * op(A)' + beta * C. */
static void matrices(void) {
    enum { M = 67, NN = 35 };
    double factors[] = {0.5, -2, 0};
    for (int ops = 0; ops < 4; ops++) {
        int a_t = ops & 1, b_t = ops >> 1, lda = (a_t ? NN : M) + 1, ldb = (b_t ? NN : M) + 2, ldc = M + 3;
        numbers_t a = numbers(F64, (size_t)lda * (a_t ? M : NN), 1), b = numbers(F64, (size_t)ldb * (b_t ? M : NN), 2);
        numbers_t c = numbers(F64, (size_t)ldc * NN, 3);
        double *wanted = copy_of(c);
        for (int j = 0; j < NN; j++)
            for (int i = 0; i < M; i++)
                wanted[i + j * ldc] = 0.5 * at(a, (size_t)(a_t ? j + i * lda : i + j * lda))
                    - 2 * at(b, (size_t)(b_t ? j + i * ldb : i + j * ldb));
        OK(cublasDgeam(handle, a_t, b_t, M, NN, &factors[0], a.device, lda, &factors[1], b.device, ldb, c.device, ldc));
        compare("geam", c, wanted, 1);
        /* Without B. */
        for (int j = 0; j < NN; j++)
            for (int i = 0; i < M; i++) wanted[i + j * ldc] = 0.5 * at(a, (size_t)(a_t ? j + i * lda : i + j * lda));
        OK(cublasDgeam(handle, a_t, b_t, M, NN, &factors[0], a.device, lda, &factors[2], 0, ldb, c.device, ldc));
        compare("geam of one matrix", c, wanted, 1);
        FAILS(cublasDgeam(handle, T, N, M, NN, &factors[0], c.device, ldc, &factors[1], b.device, M, c.device, ldc),
              INVALID_VALUE);
        FAILS(cublasDgeam(handle, N, N, M, NN, &factors[0], a.device, M - 1, &factors[1], b.device, M, c.device, ldc),
              INVALID_VALUE);
        free(wanted);
        /* The triangle, with the roles of the sizes. */
        numbers_t s = numbers(F64, (size_t)ldc * M, 4);
        wanted = copy_of(s);
        for (int j = 0; j < M; j++)
            for (int i = 0; i < M; i++) {
                double sum = 0;
                for (int l = 0; l < NN; l++)
                    sum += at(a, (size_t)(a_t ? l + i * lda : i + l * lda)) * at(a, (size_t)(a_t ? l + j * lda : j + l * lda));
                if (b_t ? i <= j : i >= j) wanted[i + j * ldc] = 0.5 * sum - 2 * wanted[i + j * ldc];
            }
        OK(cublasDsyrk_v2(handle, b_t, a_t, M, NN, &factors[0], a.device, lda, &factors[1], s.device, ldc));
        compare("syrk", s, wanted, NN);
        FAILS(cublasDsyrk_v2(handle, 2, a_t, M, NN, &factors[0], a.device, lda, &factors[1], s.device, ldc), INVALID_VALUE);
        free(wanted);
        drop(a), drop(b), drop(c), drop(s);
    }
}

/* What is not read: A and B if alpha is 0 or k is 0, C if beta is 0. */
static void rules(void) {
    enum { M = 35, NN = 20, K = 9 };
    numbers_t factors = numbers(F32, 3, 0), nan = numbers(F32, M * K + K * NN, 1), good = numbers(F32, M * K + K * NN, 1);
    for (size_t i = 0; i < nan.count; i++) put(F32, nan.host, i, NAN);
    to_device(&nan);
    put(F32, factors.host, 0, 0), put(F32, factors.host, 1, 0.5), put(F32, factors.host, 2, NAN);
    to_device(&factors);
    for (int on_device = 0; on_device < 2; on_device++) {
        float *factor = on_device ? factors.device : factors.host;
        OK(cublasSetPointerMode_v2(handle, on_device));
        numbers_t c = numbers(F32, M * NN, 3);
        double *wanted = copy_of(c);
        for (int i = 0; i < M * NN; i++) wanted[i] *= 0.5;
        /* alpha = 0, then k = 0 with alpha NaN. */
        OK(cublasSgemm_v2(handle, N, N, M, NN, K, factor, nan.device, M, nan.device, K, factor + 1, c.device, M));
        compare("alpha = 0", c, wanted, 0);
        for (int i = 0; i < M * NN; i++) wanted[i] *= 0.5;
        OK(cublasSgemm_v2(handle, N, N, M, NN, 0, factor + 2, nan.device, M, nan.device, 1, factor + 1, c.device, M));
        compare("k = 0", c, wanted, 0);
        /* beta = 0 with NaN in C. */
        memcpy(c.host, nan.host, M * K * 4);
        to_device(&c);
        memset(wanted, 0, sizeof *wanted * M * NN);
        const int size[] = {M, NN, K};
        multiply((types_t){0, F32, F32, F32}, N, N, size, 0.5, good.host, M, (float *)good.host + M * K, K, 0, wanted, M);
        OK(cublasSgemm_v2(handle, N, N, M, NN, K, factor + 1, good.device, M, (float *)good.device + M * K, K, factor,
                          c.device, M));
        compare("beta = 0", c, wanted, K);
        /* Both are 0: C is 0. NaN in A is in the product if alpha is not 0. */
        memcpy(c.host, nan.host, M * K * 4);
        to_device(&c);
        OK(cublasSgemm_v2(handle, T, T, M, NN, K, factor, nan.device, K, nan.device, NN, factor, c.device, M));
        memset(wanted, 0, sizeof *wanted * M * NN);
        compare("both are 0", c, wanted, 0);
        OK(cublasSgemm_v2(handle, N, N, M, NN, K, factor + 1, nan.device, M, good.device, K, factor, c.device, M));
        to_host(&c);
        IS(isnan(at(c, 0)) && isnan(at(c, M * NN - 1)));
        free(wanted);
        drop(c);
    }
    OK(cublasSetPointerMode_v2(handle, 0));
    /* Arrays of addresses of A and B are not read either. */
    float part = 0.5, zero = 0;
    for (int k = 0; k <= K; k += K) {
        numbers_t c = numbers(F32, M * NN, 3);
        double *wanted = copy_of(c);
        for (int i = 0; i < M * NN; i++) wanted[i] *= 0.5;
        void *array;
        OK(cudaMalloc(&array, sizeof c.device));
        OK(cudaMemcpy(array, &c.device, sizeof c.device, TO_DEVICE));
        OK(cublasSgemmBatched(handle, N, N, M, NN, k, k ? &zero : &part, 0, M, 0, K, &part, array, M, 1));
        compare("a batch without inputs", c, wanted, 0);
        free(wanted);
        drop(c);
        OK(cudaFree(array));
    }
    /* A vector is not scaled if the matrix has no columns: BLAS returns at once. */
    numbers_t y = numbers(F32, 4, 5);
    double *wanted = copy_of(y);
    float half = 0.5;
    OK(cublasSgemv_v2(handle, N, 4, 0, &half, good.device, 4, good.device, 1, &half, y.device, 1));
    compare("a matrix without columns", y, wanted, 0);
    free(wanted);
    drop(y), drop(factors), drop(nan), drop(good);
}

static void refusals(void) {
    float one = 1;
    numbers_t a = numbers(F32, 64, 1), c = numbers(F32, 64, 2);
    double *wanted = copy_of(c);
#define SGEMM(h, op_a, op_b, m, n, k, alpha, lda, ldb, ldc) \
    cublasSgemm_v2(h, op_a, op_b, m, n, k, alpha, a.device, lda, a.device, ldb, &one, c.device, ldc)
    FAILS(SGEMM(0, N, N, 4, 4, 4, &one, 4, 4, 4), NOT_INITIALIZED);
    FAILS(SGEMM((void *)&one, N, N, 4, 4, 4, &one, 4, 4, 4), NOT_INITIALIZED);
    FAILS(SGEMM(handle, N, N, -1, 4, 4, &one, 4, 4, 4), INVALID_VALUE);
    FAILS(SGEMM(handle, N, N, 4, -4, 4, &one, 4, 4, 4), INVALID_VALUE);
    FAILS(SGEMM(handle, N, N, 4, 4, -4, &one, 4, 4, 4), INVALID_VALUE);
    FAILS(SGEMM(handle, N, N, 4, 4, 4, &one, 3, 4, 4), INVALID_VALUE);
    FAILS(SGEMM(handle, T, N, 2, 4, 4, &one, 3, 4, 4), INVALID_VALUE);
    FAILS(SGEMM(handle, N, T, 4, 4, 2, &one, 4, 3, 4), INVALID_VALUE);
    FAILS(SGEMM(handle, N, N, 4, 4, 4, &one, 4, 4, 3), INVALID_VALUE);
    FAILS(SGEMM(handle, N, N, 0, 0, 0, &one, 0, 1, 1), INVALID_VALUE);
    FAILS(SGEMM(handle, N, N, 4, 4, 4, 0, 4, 4, 4), INVALID_VALUE);
    FAILS(SGEMM(handle, 9, N, 4, 4, 4, &one, 4, 4, 4), INVALID_VALUE);
    FAILS(cublasSgemm_v2(handle, N, N, 4, 4, 4, &one, 0, 4, a.device, 4, &one, c.device, 4), INVALID_VALUE);
    OK(SGEMM(handle, N, N, 0, 4, 4, &one, 1, 4, 1));
    OK(SGEMM(handle, N, N, 4, 0, 4, &one, 4, 4, 4));
    FAILS(cublasSgemm_v2_64(handle, N, N, 1ll << 33, 1, 1, &one, a.device, 1ll << 33, a.device, 1, &one, c.device,
                            1ll << 33), NOT_SUPPORTED);
    FAILS(cublasSgemv_v2(handle, N, 4, 4, &one, a.device, 4, a.device, 0, &one, c.device, 1), INVALID_VALUE);
    FAILS(cublasGemmEx(handle, N, N, 4, 4, 4, &one, a.device, F32, 4, a.device, F16, 4, &one, c.device, F32, 4,
                       COMPUTE_32F, -1), NOT_SUPPORTED);
    FAILS(cublasCgemm_v2(), NOT_SUPPORTED);
    FAILS(cublasStrsm_v2(), NOT_SUPPORTED);
    FAILS(cublasStrsm_v2(), NOT_SUPPORTED);
    FAILS(cublasCreate_v2(0), INVALID_VALUE);
    FAILS(cublasDestroy_v2((void *)&one), NOT_INITIALIZED);
    compare("nothing is written", c, wanted, 0);
    free(wanted);
    drop(a), drop(c);
}

int main(int count, char **arguments) {
    const char *test = count > 1 ? arguments[1] : "";
    OK(cublasCreate_v2(&handle));
    if (!strcmp(test, "transposes")) transposes();
    else if (!strcmp(test, "plain")) plain();
    else if (!strcmp(test, "batches")) batches();
    else if (!strcmp(test, "vectors")) vectors();
    else if (!strcmp(test, "matrices")) matrices();
    else if (!strcmp(test, "rules")) rules();
    else if (!strcmp(test, "refusals")) refusals();
    else return 2;
    OK(cublasDestroy_v2(handle));
    FAILS(cublasDestroy_v2(handle), NOT_INITIALIZED);
    printf("%s\n", test);
    return 0;
}
