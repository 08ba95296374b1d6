/* Pooling, normalization across channels, softmax and reductions, compared with loops. The first argument
   names the test. */
#include "check.h"

int cudnnCreatePoolingDescriptor(void **), cudnnDestroyPoolingDescriptor(void *);
int cudnnSetPoolingNdDescriptor(void *, int, int, int, const int *, const int *, const int *);
int cudnnGetPoolingNdForwardOutputDim(void *, void *, int, int *);
int cudnnPoolingForward(void *, void *, const void *, void *, const void *, const void *, void *, void *);
int cudnnCreateLRNDescriptor(void **), cudnnDestroyLRNDescriptor(void *);
int cudnnSetLRNDescriptor(void *, unsigned, double, double, double);
int cudnnLRNCrossChannelForward(void *, void *, int, const void *, void *, const void *, const void *, void *, void *);
int cudnnSoftmaxForward(void *, int, int, const void *, void *, const void *, const void *, void *, void *);
int cudnnCreateReduceTensorDescriptor(void **), cudnnDestroyReduceTensorDescriptor(void *);
int cudnnSetReduceTensorDescriptor(void *, int, int, int, int, int);
int cudnnGetReductionWorkspaceSize(void *, void *, void *, void *, size_t *);
int cudnnReduceTensor(void *, void *, void *, size_t, void *, size_t, const void *, void *, const void *, const void *,
                      void *, void *);

enum { MAX, AVERAGE_INCLUDE, AVERAGE_EXCLUDE, MAX_DETERMINISTIC };

typedef struct {
    int rank, sizes[5], window[3], padding[3], stride[3];
} pooling_t;

static const pooling_t poolings[] = {
    {4, {2, 3, 1, 6, 7}, {1, 2, 3}, {0, 0, 1}, {1, 2, 2}},
    {4, {1, 2, 1, 5, 5}, {1, 3, 3}, {0, 1, 1}, {1, 1, 2}},
    {5, {1, 2, 4, 5, 6}, {2, 3, 2}, {1, 1, 0}, {2, 1, 3}},
};

typedef struct {
    const pooling_t *shape;
    const tensor_t *x;
    int mode, nan;
} pooled_t;

static double pooled(const void *context, int n, int c, int d, int h, int w) {
    const pooled_t *of = context;
    int o[] = {d, h, w}, i[3], low[3], high[3], all = 1, inside = 0;
    double sum = 0, most = -INFINITY;
    for (int k = 0; k < 3; k++) {
        low[k] = o[k] * of->shape->stride[k] - of->shape->padding[k], high[k] = low[k] + of->shape->window[k];
        all *= of->shape->window[k];
        if (low[k] < 0) low[k] = 0;
        if (high[k] > of->x->sizes[k + 2]) high[k] = of->x->sizes[k + 2];
    }
    for (i[0] = low[0]; i[0] < high[0]; i[0]++)
        for (i[1] = low[1]; i[1] < high[1]; i[1]++)
            for (i[2] = low[2]; i[2] < high[2]; i[2]++) {
                double number = value(of->x, n, c, i[0], i[1], i[2]);
                sum += number, inside++;
                if (number > most || (of->nan && isnan(number))) most = number;
            }
    if (of->mode == MAX || of->mode == MAX_DETERMINISTIC) return most;
    return sum / (of->mode == AVERAGE_INCLUDE ? all : inside);
}

static void check_pooling(const pooling_t *shape, int mode, int nan, int type, int format, double alpha, double beta) {
    int space = shape->rank - 2, sizes[5] = {shape->sizes[0], shape->sizes[1]}, wanted[5], found[5];
    for (int i = 0; i < 3; i++)
        sizes[i + 2] = (shape->sizes[i + 2] + 2 * shape->padding[i] - shape->window[i]) / shape->stride[i] + 1;
    tensor_t x = tensor(type, format, shape->rank, shape->sizes, 1), y = tensor(type, format, shape->rank, sizes, 2);
    put(type, x.numbers.host, 4, NAN);
    to_device(&x.numbers);
    if (beta == 0) fill(&y, NAN);
    factor_t a = factor(type, alpha), b = factor(type, beta);
    void *pooling;
    OK(cudnnCreatePoolingDescriptor(&pooling));
    OK(cudnnSetPoolingNdDescriptor(pooling, mode, nan, space, shape->window + 3 - space, shape->padding + 3 - space,
                                   shape->stride + 3 - space));
    OK(cudnnGetPoolingNdForwardOutputDim(pooling, x.descriptor, shape->rank, found));
    flat(shape->rank, sizes, wanted);
    for (int i = 0; i < shape->rank; i++) IS(found[i] == wanted[i]);
    pooled_t of = {shape, &x, mode, nan};
    OK(cudnnPoolingForward(handle, pooling, &a, x.descriptor, x.numbers.device, &b, y.descriptor, y.numbers.device));
    compare("pooling", &y, pooled, &of, alpha, beta, 18);
    OK(cudnnDestroyPoolingDescriptor(pooling));
    free_tensor(x), free_tensor(y);
}

static void poolings_of_all_kinds(void) {
    for (int s = 0; s < 3; s++)
        for (int mode = MAX; mode <= MAX_DETERMINISTIC; mode++)
            for (int t = 0; t < 4; t++)
                check_pooling(&poolings[s], mode, (s + t) % 2, types[t], t % 2 ? NHWC : NCHW, 1, 0);
    check_pooling(&poolings[0], MAX, 0, F32, NCHW, 2, -1);
    check_pooling(&poolings[1], AVERAGE_EXCLUDE, 1, F64, NHWC, 0.5, 2);
}

typedef struct {
    const tensor_t *x;
    unsigned window;
    double alpha, beta, k;
} response_t;

static double responded(const void *context, int n, int c, int d, int h, int w) {
    const response_t *of = context;
    int low = c - (int)(of->window - 1) / 2, high = low + (int)of->window;
    double squares = 0;
    for (int i = low < 0 ? 0 : low; i < high && i < of->x->sizes[1]; i++) {
        double number = value(of->x, n, i, d, h, w);
        squares += number * number;
    }
    return value(of->x, n, c, d, h, w) / pow(of->k + of->alpha / of->window * squares, of->beta);
}

static void responses(void) {
    static const int sizes[] = {2, 9, 1, 3, 4};
    static const unsigned windows[] = {1, 4, 5, 16};
    for (int i = 0; i < 4; i++)
        for (int t = 0; t < 4; t++) {
            tensor_t x = tensor(types[t], t % 2 ? NHWC : NCHW, 4, sizes, 1), y = tensor(types[t], NCHW, 4, sizes, 2);
            response_t of = {&x, windows[i], 0.5, i % 2 ? 0.75 : 1.25, 2};
            factor_t a = factor(types[t], 1), b = factor(types[t], i == 1 ? 2 : 0);
            void *descriptor;
            if (i != 1) fill(&y, NAN);
            OK(cudnnCreateLRNDescriptor(&descriptor));
            OK(cudnnSetLRNDescriptor(descriptor, of.window, of.alpha, of.beta, of.k));
            OK(cudnnLRNCrossChannelForward(handle, descriptor, 0, &a, x.descriptor, x.numbers.device, &b, y.descriptor,
                                           y.numbers.device));
            compare("response", &y, responded, &of, 1, i == 1 ? 2 : 0, 20);
            OK(cudnnDestroyLRNDescriptor(descriptor));
            free_tensor(x), free_tensor(y);
        }
}

/* Softmax. */
typedef struct {
    const tensor_t *x;
    int algorithm, mode;
} softmax_t;

static double softmax(const void *context, int n, int c, int d, int h, int w) {
    const softmax_t *of = context;
    const int *sizes = of->x->sizes;
    double sum = 0, number = value(of->x, n, c, d, h, w);
    for (int i = 0; i < sizes[1]; i++) {
        if (of->mode) sum += exp(value(of->x, n, i, d, h, w) - number);
        for (int e = 0; !of->mode && e < sizes[2] * sizes[3] * sizes[4]; e++)
            sum += exp(value(of->x, n, i, e / sizes[4] / sizes[3], e / sizes[4] % sizes[3], e % sizes[4]) - number);
    }
    return of->algorithm == 2 ? -log(sum) : 1 / sum;
}

static void check_softmax(const int *sizes, int type, int format, int algorithm, int mode, double alpha, double beta) {
    tensor_t x = tensor(type, format, 5, sizes, 1), y = tensor(type, NCHW, 5, sizes, 2);
    softmax_t of = {&x, algorithm, mode};
    factor_t a = factor(type, alpha), b = factor(type, beta);
    if (beta == 0) fill(&y, NAN);
    OK(cudnnSoftmaxForward(handle, algorithm, mode, &a, x.descriptor, x.numbers.device, &b, y.descriptor,
                           y.numbers.device));
    compare("softmax", &y, softmax, &of, alpha, beta, 40);
    free_tensor(x), free_tensor(y);
}

static void softmaxes(void) {
    static const int sizes[][5] = {{3, 10, 1, 1, 1}, {2, 5, 2, 3, 4}, {1, 700, 1, 1, 2}, {2, 3, 4, 9, 8}};
    for (int s = 0; s < 4; s++)
        for (int t = 0; t < 4; t++)
            for (int mode = 0; mode < 2; mode++)
                check_softmax(sizes[s], types[t], (s + t) % 2 ? NHWC : NCHW, (s + t + mode) % 3, mode, 1, 0);
    check_softmax(sizes[1], F32, NHWC, 1, 1, 2, 0.5);
    /* Large numbers do not overflow, and a masked element has no part. */
    static const int four[] = {1, 4, 1, 1, 1};
    tensor_t x = tensor(F32, NCHW, 4, four, 1);
    const float numbers[] = {1000, 1000, -INFINITY, 998};
    memcpy(x.numbers.host, numbers, sizeof numbers);
    to_device(&x.numbers);
    factor_t one = factor(F32, 1), zero = factor(F32, 0);
    OK(cudnnSoftmaxForward(handle, 1, 0, &one, x.descriptor, x.numbers.device, &zero, x.descriptor, x.numbers.device));
    to_host(&x.numbers);
    double part = 1 / (2 + exp(-2));
    IS(fabs(at(x.numbers, 0) - part) < 1e-6 && at(x.numbers, 0) == at(x.numbers, 1));
    IS(at(x.numbers, 2) == 0 && fabs(at(x.numbers, 3) - part * exp(-2)) < 1e-6);
    free_tensor(x);
}

/* A reduction over the dimensions in which the result has one element. */
typedef struct {
    const tensor_t *a, *c;
    int operation, nan;
} reduction_t;

static double reduced(const void *context, int n, int c, int d, int h, int w) {
    const reduction_t *of = context;
    int at_c[] = {n, c, d, h, w}, i[5], low[5], high[5], count = 0;
    double sum = 0, product = 1, nonzero = 1, least = INFINITY, most = -INFINITY, large = 0, sizes = 0, squares = 0;
    for (int k = 0; k < 5; k++) {
        int is_inner = of->c->sizes[k] == 1;
        low[k] = is_inner ? 0 : at_c[k], high[k] = is_inner ? of->a->sizes[k] : at_c[k] + 1;
    }
    for (i[0] = low[0]; i[0] < high[0]; i[0]++)
        for (i[1] = low[1]; i[1] < high[1]; i[1]++)
            for (i[2] = low[2]; i[2] < high[2]; i[2]++)
                for (i[3] = low[3]; i[3] < high[3]; i[3]++)
                    for (i[4] = low[4]; i[4] < high[4]; i[4]++) {
                        double number = at(of->a->numbers, place(of->a, i)), size = fabs(number);
                        sum += number, product *= number, sizes += size, squares += number * number, count++;
                        nonzero *= number == 0 ? 1 : number;
                        if (number < least) least = number;
                        if (number > most) most = number;
                        if (size > large) large = size;
                    }
    const double results[] = {sum, product, least, most, large, sum / count, sizes, sqrt(squares), nonzero};
    return results[of->operation];
}

static void check_reduction(int operation, const int *sizes, int type, int format, double alpha, double beta) {
    static const int whole[] = {2, 3, 2, 5, 7};
    tensor_t a = tensor(type, format, 5, whole, 1), c = tensor(type, NCHW, 5, sizes, 2);
    reduction_t of = {&a, &c, operation, 1};
    factor_t alphas = factor(type, alpha), betas = factor(type, beta);
    void *descriptor;
    size_t bytes;
    /* Products stay in the range of all types. */
    for (size_t i = 0; (operation == 1 || operation == 8) && i < a.numbers.count; i++)
        put(type, a.numbers.host, i, i % 29 == 3 ? (operation == 1 ? 2 : 0) : i % 3 ? 1 : -1);
    to_device(&a.numbers);
    if (beta == 0) fill(&c, NAN);
    OK(cudnnCreateReduceTensorDescriptor(&descriptor));
    OK(cudnnSetReduceTensorDescriptor(descriptor, operation, type == F64 ? F64 : F32, 1, 0, 0));
    OK(cudnnGetReductionWorkspaceSize(handle, descriptor, a.descriptor, c.descriptor, &bytes));
    OK(cudnnReduceTensor(handle, descriptor, 0, 0, 0, bytes, &alphas, a.descriptor, a.numbers.device, &betas,
                         c.descriptor, c.numbers.device));
    compare("reduction", &c, reduced, &of, alpha, beta, 420);
    OK(cudnnDestroyReduceTensorDescriptor(descriptor));
    free_tensor(a), free_tensor(c);
}

static void reductions(void) {
    static const int sizes[][5] = {{1, 3, 1, 1, 1}, {2, 3, 1, 1, 1}, {1, 1, 1, 1, 1}, {1, 3, 2, 5, 7}, {2, 3, 2, 5, 7}};
    for (int operation = 0; operation < 9; operation++)
        for (int s = 0; s < 5; s++)
            check_reduction(operation, sizes[s], types[(operation + s) % 4], s % 2 ? NHWC : NCHW, 1, 0);
    check_reduction(0, sizes[0], F32, NCHW, 0.5, 2);
    check_reduction(7, sizes[1], F64, NHWC, -1, 1);
    /* Whether NaN is the largest number. */
    for (int nan = 0; nan < 2; nan++) {
        tensor_t a = tensor(F32, NCHW, 5, sizes[3], 1), c = tensor(F32, NCHW, 5, sizes[2], 2);
        put(F32, a.numbers.host, 40, NAN);
        to_device(&a.numbers);
        factor_t one = factor(F32, 1), zero = factor(F32, 0);
        void *descriptor;
        OK(cudnnCreateReduceTensorDescriptor(&descriptor));
        OK(cudnnSetReduceTensorDescriptor(descriptor, 3, F32, nan, 0, 0));
        OK(cudnnReduceTensor(handle, descriptor, 0, 0, 0, 0, &one, a.descriptor, a.numbers.device, &zero, c.descriptor,
                             c.numbers.device));
        to_host(&c.numbers);
        IS(nan ? isnan(at(c.numbers, 0)) : at(c.numbers, 0) == 1.5);
        /* Indices are not supported. */
        OK(cudnnSetReduceTensorDescriptor(descriptor, 3, F32, nan, 1, 0));
        FAILS(cudnnReduceTensor(handle, descriptor, 0, 0, 0, 0, &one, a.descriptor, a.numbers.device, &zero,
                                c.descriptor, c.numbers.device), NOT_SUPPORTED);
        OK(cudnnDestroyReduceTensorDescriptor(descriptor));
        free_tensor(a), free_tensor(c);
    }
}

/* Outputs in place of inputs, and types of computation. */
static void refusals(void) {
    static const int sizes[] = {2, 9, 1, 3, 4}, channels[] = {1, 9, 1, 1, 1};
    tensor_t x = tensor(F32, NCHW, 4, sizes, 1), y = tensor(F32, NHWC, 4, sizes, 2);
    tensor_t sums = tensor(F32, NCHW, 4, channels, 3);
    factor_t one = factor(F32, 1), zero = factor(F32, 0);
    void *response, *reduction, *same = x.numbers.device;
    OK(cudnnCreateLRNDescriptor(&response));
    FAILS(cudnnLRNCrossChannelForward(handle, response, 0, &one, x.descriptor, same, &zero, x.descriptor, same),
          NOT_SUPPORTED);
    FAILS(cudnnSoftmaxForward(handle, 1, 1, &one, x.descriptor, same, &zero, y.descriptor, same), BAD_PARAM);
    OK(cudnnCreateReduceTensorDescriptor(&reduction));
    OK(cudnnSetReduceTensorDescriptor(reduction, 0, F32, 1, 0, 0));
    FAILS(cudnnReduceTensor(handle, reduction, 0, 0, 0, 0, &one, x.descriptor, same, &zero, sums.descriptor, same),
          BAD_PARAM);
    OK(cudnnSetReduceTensorDescriptor(reduction, 0, F64, 1, 0, 0));
    FAILS(cudnnReduceTensor(handle, reduction, 0, 0, 0, 0, &one, x.descriptor, same, &zero, sums.descriptor,
                            sums.numbers.device), NOT_SUPPORTED);
    OK(cudnnDestroyLRNDescriptor(response)), OK(cudnnDestroyReduceTensorDescriptor(reduction));
    free_tensor(x), free_tensor(y), free_tensor(sums);
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"poolings", poolings_of_all_kinds}, {"responses", responses}, {"softmaxes", softmaxes},
                 {"reductions", reductions}, {"refusals", refusals}};
    OK(cudnnCreate(&handle));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (count > 1 && !strcmp(arguments[1], parts[i].name)) parts[i].run();
    OK(cudnnDestroy(handle));
    printf("%s\n", arguments[1]);
    return 0;
}
