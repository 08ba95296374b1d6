/* Operations on vectors, copies and settings, compared with loops. The first argument names the test. */
#include "check.h"
#include <pthread.h>

typedef int axpy_t(void *, int, const void *, const void *, int, void *, int);
typedef int scal_t(void *, int, const void *, void *, int);
typedef int copy_t(void *, int, const void *, int, void *, int);
typedef int swap_t(void *, int, void *, int, void *, int);
axpy_t cublasSaxpy_v2, cublasDaxpy_v2;
scal_t cublasSscal_v2, cublasDscal_v2;
copy_t cublasScopy_v2, cublasDcopy_v2;
swap_t cublasSswap_v2, cublasDswap_v2;
int cublasSdot_v2(void *, int, const void *, int, const void *, int, void *);
int cublasDdot_v2(void *, int, const void *, int, const void *, int, void *);
int cublasSnrm2_v2(void *, int, const void *, int, void *), cublasDnrm2_v2(void *, int, const void *, int, void *);
int cublasSasum_v2(void *, int, const void *, int, void *), cublasDasum_v2(void *, int, const void *, int, void *);
int cublasIsamax_v2(void *, int, const void *, int, int *), cublasIdamax_v2(void *, int, const void *, int, int *);
int cublasIsamin_v2(void *, int, const void *, int, int *), cublasIdamin_v2(void *, int, const void *, int, int *);
int cublasDotEx(void *, int, const void *, int, int, const void *, int, int, void *, int, int);
int cublasScalEx(void *, int, const void *, int, void *, int, int, int);
int cublasIsamax_v2_64(void *, int64_t, const void *, int64_t, int64_t *);
int cublasSgemm_v2(void *, int, int, int, int, int, const void *, const void *, int, const void *, int, const void *,
                   void *, int);
int cublasSetVector(int, int, const void *, int, void *, int), cublasGetVector(int, int, const void *, int, void *, int);
int cublasSetMatrix(int, int, int, const void *, int, void *, int);
int cublasGetMatrix(int, int, int, const void *, int, void *, int);
int cublasSetMatrixAsync(int, int, int, const void *, int, void *, int, void *);
int cublasGetStream_v2(void *, void **), cublasGetPointerMode_v2(void *, int *), cublasSetMathMode(void *, int);
int cublasGetMathMode(void *, int *), cublasSetWorkspace_v2(void *, void *, size_t), cublasSetAtomicsMode(void *, int);
int cublasGetVersion_v2(void *, int *), cublasGetProperty(int, int *);
const char *cublasGetStatusString(int);

static void *handle;

static const int increments[][2] = {{1, 1}, {2, 3}, {-1, 2}, {3, -2}, {-2, -1}, {0, 1}, {1, 0}};

/* The index of element `i` of a vector as BLAS counts it. */
static size_t place(int i, int count, int increment) {
    return (size_t)(increment >= 0 ? i * (long)increment : (count - 1 - i) * -(long)increment);
}

static void check(const char *what, numbers_t of, const double *wanted) {
    to_host(&of);
    for (size_t i = 0; i < of.count; i++) close_to(what, at(of, i), wanted[i], 4 + fabs(wanted[i]), allowed(of.type, 1));
}

static double *copy_of(numbers_t of) {
    double *copy = malloc(of.count * sizeof *copy);
    for (size_t i = 0; i < of.count; i++) copy[i] = at(of, i);
    return copy;
}

/* axpy, scal, copy and swap of `count` elements. */
static void change(int type, int count, int incx, int incy, int on_device) {
    size_t reach = (size_t)count * 3 + 1;
    numbers_t x = numbers(type, reach, 1), y = numbers(type, reach, 2), alpha = numbers(type, 1, 0);
    put(type, alpha.host, 0, -1.25);
    to_device(&alpha);
    void *factor = on_device ? alpha.device : alpha.host;
    double *wanted_x = copy_of(x), *wanted_y = copy_of(y);
    OK(cublasSetPointerMode_v2(handle, on_device));
    for (int i = 0; i < count; i++) wanted_y[place(i, count, incy)] += -1.25 * wanted_x[place(i, count, incx)];
    OK((type == F32 ? cublasSaxpy_v2 : cublasDaxpy_v2)(handle, count, factor, x.device, incx, y.device, incy));
    check("axpy", y, wanted_y);
    for (int i = 0; i < count && incx > 0; i++) wanted_x[place(i, count, incx)] *= -1.25;
    OK((type == F32 ? cublasSscal_v2 : cublasDscal_v2)(handle, count, factor, x.device, incx));
    check("scal", x, wanted_x);
    for (int i = 0; i < count; i++) {
        double *a = &wanted_x[place(i, count, incx)], *b = &wanted_y[place(i, count, incy)], old = *a;
        *a = *b, *b = old;
    }
    OK((type == F32 ? cublasSswap_v2 : cublasDswap_v2)(handle, count, x.device, incx, y.device, incy));
    check("swap", x, wanted_x);
    check("swap", y, wanted_y);
    for (int i = 0; i < count; i++) wanted_y[place(i, count, incy)] = wanted_x[place(i, count, incx)];
    OK((type == F32 ? cublasScopy_v2 : cublasDcopy_v2)(handle, count, x.device, incx, y.device, incy));
    check("copy", y, wanted_y);
    check("copy", x, wanted_x);
    free(wanted_x), free(wanted_y);
    drop(x), drop(y), drop(alpha);
}

static void changes(void) {
    const int counts[] = {-1, 0, 1, 7, 700};
    for (int type = F32; type <= F64; type++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            for (size_t i = 0; i < sizeof increments / sizeof *increments; i++)
                change(type, counts[c] < 0 ? 0 : counts[c], increments[i][0], increments[i][1], (int)i % 2);
    float one = 1;
    OK(cublasSetPointerMode_v2(handle, 0));
    OK(cublasSaxpy_v2(handle, -5, &one, (void *)0, 1, (void *)0, 1));
    FAILS(cublasSaxpy_v2(handle, 5, (void *)0, (void *)0, 1, (void *)0, 1), INVALID_VALUE);
    FAILS(cublasSscal_v2((void *)0, 5, &one, (void *)0, 1), NOT_INITIALIZED);
}

/* A result in host or device pointer mode. */
static double result(int type, int on_device, int (*call)(void *, int, const void *, int, void *), int count,
                     const void *x, int incx) {
    numbers_t to = numbers(type, 1, 9);
    OK(cublasSetPointerMode_v2(handle, on_device));
    OK(call(handle, count, x, incx, on_device ? to.device : to.host));
    if (on_device) to_host(&to);
    double number = at(to, 0);
    drop(to);
    return number;
}

static void sums(void) {
    const int counts[] = {0, 1, 5, 256, 1003};
    for (int type = F32; type <= F64; type++)
        for (int c = 0; c < 5; c++)
            for (size_t i = 0; i < sizeof increments / sizeof *increments; i++) {
                int count = counts[c], incx = increments[i][0], incy = increments[i][1], on_device = (int)i % 2;
                numbers_t x = numbers(type, (size_t)count * 3 + 1, 1), y = numbers(type, (size_t)count * 3 + 1, 2);
                double dot = 0, sum = 0, squares = 0;
                int most = 0, least = 0;
                for (int e = 0; e < count; e++) {
                    double a = at(x, place(e, count, incx)), size = fabs(a);
                    dot += a * at(y, place(e, count, incy)), sum += size, squares += a * a;
                    if (size > fabs(at(x, place(most, count, incx)))) most = e;
                    if (size < fabs(at(x, place(least, count, incx)))) least = e;
                }
                numbers_t to = numbers(type, 1, 9);
                OK(cublasSetPointerMode_v2(handle, on_device));
                OK((type == F32 ? cublasSdot_v2 : cublasDdot_v2)(handle, count, x.device, incx, y.device, incy,
                                                                 on_device ? to.device : to.host));
                if (on_device) to_host(&to);
                close_to("dot", at(to, 0), dot, 4 * count + 1, allowed(type, 10));
                drop(to);
                int is_empty = incx <= 0 || !count;
                double error = allowed(type, 10), size = count + 1;
                close_to("asum", result(type, on_device, type == F32 ? cublasSasum_v2 : cublasDasum_v2, count, x.device,
                                        incx), is_empty ? 0 : sum, size, error);
                close_to("nrm2", result(type, on_device, type == F32 ? cublasSnrm2_v2 : cublasDnrm2_v2, count, x.device,
                                        incx), is_empty ? 0 : sqrt(squares), size, error);
                int places[2] = {-1, -1}, *on;
                OK(cudaMalloc((void **)&on, sizeof places));
                OK((type == F32 ? cublasIsamax_v2 : cublasIdamax_v2)(handle, count, x.device, incx,
                                                                     on_device ? on : places));
                OK((type == F32 ? cublasIsamin_v2 : cublasIdamin_v2)(handle, count, x.device, incx,
                                                                     on_device ? on + 1 : places + 1));
                if (on_device) OK(cudaMemcpy(places, on, sizeof places, TO_HOST));
                IS(places[0] == (is_empty ? 0 : most + 1));
                IS(places[1] == (is_empty ? 0 : least + 1));
                OK(cudaFree(on));
                drop(x), drop(y);
            }
}

/* Numbers at the limits of the types. */
static void limits(void) {
    double large[3] = {3e300, -4e300, 0}, tiny[2] = {3e-310, 4e-310}, odd[3] = {1, NAN, -5}, infinite[2] = {-INFINITY, 1};
    double first[3] = {NAN, 1, 7}, number;
    void *at;
    int place;
    OK(cudaMalloc(&at, 64));
    OK(cudaMemcpy(at, large, sizeof large, TO_DEVICE));
    OK(cublasDnrm2_v2(handle, 3, at, 1, &number));
    close_to("a norm whose squares overflow", number, 5e300, 5e300, 1e-14);
    OK(cudaMemcpy(at, tiny, sizeof tiny, TO_DEVICE));
    OK(cublasDnrm2_v2(handle, 2, at, 1, &number));
    close_to("a norm whose squares vanish", number, 5e-310, 5e-310, 1e-12);
    OK(cudaMemcpy(at, infinite, sizeof infinite, TO_DEVICE));
    OK(cublasDnrm2_v2(handle, 2, at, 1, &number));
    IS(isinf(number));
    OK(cudaMemcpy(at, odd, sizeof odd, TO_DEVICE));
    OK(cublasDnrm2_v2(handle, 3, at, 1, &number));
    IS(isnan(number));
    OK(cublasDasum_v2(handle, 3, at, 1, &number));
    IS(isnan(number));
    OK(cublasIdamax_v2(handle, 3, at, 1, &place));
    IS(place == 3);
    OK(cublasIdamin_v2(handle, 3, at, 1, &place));
    IS(place == 1);
    OK(cudaMemcpy(at, first, sizeof first, TO_DEVICE));
    OK(cublasIdamax_v2(handle, 3, at, 1, &place));
    IS(place == 1);
    float zeros[2] = {0, 0}, norm;
    int64_t wide = -1;
    OK(cudaMemcpy(at, zeros, sizeof zeros, TO_DEVICE));
    OK(cublasSnrm2_v2(handle, 2, at, 1, &norm));
    IS(norm == 0);
    OK(cublasIsamax_v2_64(handle, 2, at, 1, &wide));
    IS(wide == 1);
    FAILS(cublasSnrm2_v2(handle, 2, at, 1, 0), INVALID_VALUE);
    float pair[2] = {3, 4}, half = 0.5;
    OK(cudaMemcpy(at, pair, sizeof pair, TO_DEVICE));
    OK(cublasScalEx(handle, 2, &half, F32, at, F32, 1, F32));
    OK(cublasDotEx(handle, 2, at, F32, 1, at, F32, 1, &norm, F32, F32));
    IS(norm == 6.25);
    OK(cudaFree(at));
}

static void copies(void) {
    enum { ROWS = 5, COLUMNS = 3, LD = 8 };
    float from[LD * COLUMNS], to[LD * COLUMNS], *at;
    void *stream;
    OK(cudaMalloc((void **)&at, sizeof from));
    OK(cudaStreamCreate(&stream));
    for (int i = 0; i < LD * COLUMNS; i++) from[i] = (float)i, to[i] = -1;
    OK(cublasSetMatrix(ROWS, COLUMNS, 4, from, LD, at, ROWS));
    OK(cublasGetMatrix(ROWS, COLUMNS, 4, at, ROWS, to, LD - 1));
    for (int c = 0; c < COLUMNS; c++)
        for (int r = 0; r < LD - 1; r++) IS(to[r + c * (LD - 1)] == (r < ROWS ? from[r + c * LD] : -1));
    OK(cublasSetVector(4, 4, from, 3, at, 2));
    OK(cublasGetVector(4, 4, at, 2, to, 1));
    for (int i = 0; i < 4; i++) IS(to[i] == from[3 * i]);
    OK(cublasSetMatrixAsync(ROWS, COLUMNS, 4, from + 1, LD, at, LD, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cublasGetVector(2, 4, at + LD, 1, to, 1));
    IS(to[0] == from[1 + LD] && to[1] == from[2 + LD]);
    OK(cublasSetVector(0, 4, 0, 1, 0, 1));
    FAILS(cublasSetVector(-1, 4, from, 1, at, 1), INVALID_VALUE);
    FAILS(cublasSetVector(4, 4, from, 0, at, 1), INVALID_VALUE);
    FAILS(cublasSetVector(4, 0, from, 1, at, 1), INVALID_VALUE);
    FAILS(cublasGetMatrix(ROWS, COLUMNS, 4, at, ROWS - 1, to, ROWS), INVALID_VALUE);
    OK(cudaFree(at));
}

/* Each thread multiplies in a stream and with a handle of its own; half of them share a handle. */
static void *in_thread(void *shared) {
    void *own = shared, *stream;
    if (!shared) {
        OK(cublasCreate_v2(&own));
        OK(cudaStreamCreate(&stream));
        OK(cublasSetStream_v2(own, stream));
    }
    float a[4] = {1, 2, 3, 4}, c[4], alpha = 1, beta = 0;
    void *at, *to;
    OK(cudaMalloc(&at, sizeof a));
    OK(cudaMalloc(&to, sizeof c));
    OK(cudaMemcpy(at, a, sizeof a, TO_DEVICE));
    for (int i = 0; i < 20; i++) {
        OK(cublasSgemm_v2(own, N, N, 2, 2, 2, &alpha, at, 2, at, 2, &beta, to, 2));
        float sum = 0;
        OK(cublasSasum_v2(own, 4, to, 1, &sum));
        IS(sum == 7 + 10 + 15 + 22);
    }
    OK(cudaFree(at));
    OK(cudaFree(to));
    if (!shared) {
        /* A handle may outlive its stream. */
        OK(cudaStreamDestroy(stream));
        OK(cublasDestroy_v2(own));
    }
    return 0;
}

static void threads(void) {
    pthread_t all[4];
    for (int i = 0; i < 4; i++) OK(pthread_create(&all[i], 0, in_thread, i % 2 ? handle : 0));
    for (int i = 0; i < 4; i++) OK(pthread_join(all[i], 0));
}

static void settings(void) {
    void *stream = (void *)1, *made;
    int number = -1;
    OK(cublasGetStream_v2(handle, &stream));
    IS(!stream);
    OK(cudaStreamCreate(&made));
    OK(cublasSetStream_v2(handle, made));
    OK(cublasGetStream_v2(handle, &stream));
    IS(stream == made);
    OK(cublasSetPointerMode_v2(handle, 1));
    OK(cublasGetPointerMode_v2(handle, &number));
    IS(number == 1);
    FAILS(cublasSetPointerMode_v2(handle, 2), INVALID_VALUE);
    OK(cublasSetMathMode(handle, 3));
    OK(cublasGetMathMode(handle, &number));
    IS(number == 3);
    OK(cublasSetWorkspace_v2(handle, made, 1024));
    FAILS(cublasSetAtomicsMode(handle, 7), INVALID_VALUE);
    OK(cublasGetVersion_v2(handle, &number));
    int major = -1;
    OK(cublasGetProperty(0, &major));
    FAILS(cublasGetProperty(3, &major), INVALID_VALUE);
    IS(number / 10000 == major);
    IS(!strcmp(cublasGetStatusName(15), "CUBLAS_STATUS_NOT_SUPPORTED") && *cublasGetStatusString(7));
    IS(!strcmp(cublasGetStatusName(77), "unknown cuBLAS status"));
    printf("version %d\n", number);
}

int main(int count, char **arguments) {
    const char *test = count > 1 ? arguments[1] : "";
    OK(cublasCreate_v2(&handle));
    if (!strcmp(test, "changes")) changes();
    else if (!strcmp(test, "sums")) sums();
    else if (!strcmp(test, "limits")) limits();
    else if (!strcmp(test, "copies")) copies();
    else if (!strcmp(test, "threads")) threads();
    else if (!strcmp(test, "settings")) settings();
    else return 2;
    OK(cublasDestroy_v2(handle));
    printf("%s\n", test);
    return 0;
}
