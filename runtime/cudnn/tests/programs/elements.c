/* Operations on elements, compared with loops. The first argument names the test. */
#include "check.h"

int cudnnCreateActivationDescriptor(void **), cudnnDestroyActivationDescriptor(void *);
int cudnnSetActivationDescriptor(void *, int, int, double), cudnnSetActivationDescriptorSwishBeta(void *, double);
int cudnnActivationForward(void *, void *, const void *, void *, const void *, const void *, void *, void *);
int cudnnAddTensor(void *, const void *, void *, const void *, const void *, void *, void *);
int cudnnTransformTensor(void *, const void *, void *, const void *, const void *, void *, void *);
int cudnnScaleTensor(void *, void *, void *, const void *), cudnnSetTensor(void *, void *, void *, const void *);
int cudnnCreateOpTensorDescriptor(void **), cudnnDestroyOpTensorDescriptor(void *);
int cudnnSetOpTensorDescriptor(void *, int, int, int);
int cudnnOpTensor(void *, void *, const void *, void *, const void *, const void *, void *, const void *, const void *,
                  void *, void *);
int cudnnDeriveBNTensorDescriptor(void *, void *, int);
int cudnnBatchNormalizationForwardInference(void *, int, const void *, const void *, void *, const void *, void *, void *,
                                            void *, const void *, const void *, const void *, const void *, double);
int cudnnCreateDropoutDescriptor(void **), cudnnDestroyDropoutDescriptor(void *);
int cudnnDropoutGetStatesSize(void *, size_t *), cudnnDropoutGetReserveSpaceSize(void *, size_t *);
int cudnnSetDropoutDescriptor(void *, void *, float, void *, size_t, unsigned long long);
int cudnnDropoutForward(void *, void *, void *, const void *, void *, void *, void *, size_t);

static const int images[] = {2, 3, 1, 5, 7}, volumes[] = {2, 3, 2, 4, 5};

/* An operation on up to three tensors. */
typedef struct {
    int operation;
    double alpha, alpha_b, coefficient;
    const tensor_t *a, *b, *parameters;
} operation_t;

static double of_tensor(const tensor_t *of, int n, int c, int d, int h, int w) {
    int where[] = {n, c, d, h, w};
    for (int i = 0; i < 5; i++)
        if (of->sizes[i] == 1) where[i] = 0;
    return at(of->numbers, place(of, where));
}

static double activated(const void *context, int n, int c, int d, int h, int w) {
    const operation_t *of = context;
    double x = of_tensor(of->a, n, c, d, h, w), coefficient = of->coefficient;
    switch (of->operation) {
    case SIGMOID: return 1 / (1 + exp(-x));
    case RELU: return x > 0 ? x : 0;
    case TANH: return tanh(x);
    case CLIPPED_RELU: return x < 0 ? 0 : x > coefficient ? coefficient : x;
    case ELU: return x > 0 ? x : coefficient * (exp(x) - 1);
    case SWISH: return x / (1 + exp(-coefficient * x));
    default: return x;
    }
}

static void check_activation(int mode, int type, int format, double alpha, double beta) {
    tensor_t x = tensor(type, format, 4, images, 1), y = tensor(type, format, 4, images, 2);
    void *activation;
    factor_t a = factor(type, alpha), b = factor(type, beta);
    operation_t of = {mode, 0, 0, 0.75, &x, 0, 0};
    if (beta == 0) fill(&y, NAN);
    OK(cudnnCreateActivationDescriptor(&activation));
    OK(cudnnSetActivationDescriptor(activation, mode, 1, 0.75));
    OK(cudnnSetActivationDescriptorSwishBeta(activation, 0.75));
    OK(cudnnActivationForward(handle, activation, &a, x.descriptor, x.numbers.device, &b, y.descriptor,
                              y.numbers.device));
    compare("activation", &y, activated, &of, alpha, beta, 10);
    OK(cudnnDestroyActivationDescriptor(activation));
    free_tensor(x), free_tensor(y);
}

/* The result of an activation for one number. */
static double activate_one(int mode, int type, int nan, double number) {
    static const int one[] = {1, 1, 1, 1, 1};
    tensor_t x = tensor(type, NCHW, 4, one, 1);
    void *activation;
    factor_t a = factor(type, 1), b = factor(type, 0);
    fill(&x, number);
    OK(cudnnCreateActivationDescriptor(&activation));
    OK(cudnnSetActivationDescriptor(activation, mode, nan, 6));
    /* In place. */
    OK(cudnnActivationForward(handle, activation, &a, x.descriptor, x.numbers.device, &b, x.descriptor,
                              x.numbers.device));
    to_host(&x.numbers);
    double result = at(x.numbers, 0);
    OK(cudnnDestroyActivationDescriptor(activation));
    free_tensor(x);
    return result;
}

static void activations(void) {
    for (int mode = SIGMOID; mode <= SWISH; mode++)
        for (int t = 0; t < 4; t++) check_activation(mode, types[t], t % 2 ? NHWC : NCHW, 1, 0);
    check_activation(TANH, F32, NCHW, -2, 0.5);
    check_activation(SIGMOID, F64, NHWC, 3, 1);
    static const int both[] = {F32, F64};
    for (int t = 0; t < 2; t++) {
        int type = both[t];
        IS(activate_one(SIGMOID, type, 1, -INFINITY) == 0 && activate_one(SIGMOID, type, 1, INFINITY) == 1);
        IS(activate_one(TANH, type, 1, -1000) == -1 && activate_one(TANH, type, 1, 1000) == 1);
        IS(activate_one(ELU, type, 1, -1000) == -6 && activate_one(ELU, type, 1, 1000) == 1000);
        double small = activate_one(TANH, type, 1, 1e-6);
        IS(fabs(small - 1e-6) < 1e-12);
        for (int mode = SIGMOID; mode <= SWISH; mode++) IS(isnan(activate_one(mode, type, 1, NAN)));
        IS(activate_one(RELU, type, 0, NAN) == 0 && activate_one(CLIPPED_RELU, type, 0, NAN) == 0);
    }
}

static double copied(const void *context, int n, int c, int d, int h, int w) {
    return of_tensor(((const operation_t *)context)->a, n, c, d, h, w);
}

/* C = alpha * A + beta * C for A with size 1 in some dimensions. */
static void check_sum(int type, int format, const int *sizes, double alpha, double beta) {
    tensor_t a = tensor(type, NCHW, 5, sizes, 1), c = tensor(type, format, 5, volumes, 2);
    factor_t alphas = factor(type, alpha), betas = factor(type, beta);
    operation_t of = {0, 0, 0, 0, &a, 0, 0};
    if (beta == 0) fill(&c, NAN);
    OK(cudnnAddTensor(handle, &alphas, a.descriptor, a.numbers.device, &betas, c.descriptor, c.numbers.device));
    compare("sum", &c, copied, &of, alpha, beta, 2);
    free_tensor(a), free_tensor(c);
}

static void copies(void) {
    static const int sizes[][5] = {{1, 3, 1, 1, 1}, {2, 3, 2, 4, 5}, {1, 1, 1, 1, 1}, {1, 3, 2, 4, 5}, {2, 1, 2, 1, 5}};
    for (int s = 0; s < 5; s++)
        for (int t = 0; t < 4; t++) check_sum(types[t], s % 2 ? NHWC : NCHW, sizes[s], t == 1 ? -1 : 2, t == 0 ? 0 : 1);
    /* Between formats, strides and types. */
    static const int pairs[][2] = {{F32, F32}, {F32, F16}, {BF16, F32}, {F16, BF16}, {F64, F64}};
    for (int p = 0; p < 5; p++) {
        tensor_t x = tensor(pairs[p][0], NCHW, 4, images, 1), y = tensor(pairs[p][1], NHWC, 4, images, 2);
        tensor_t gaps = spread(pairs[p][1], 4, images, 3, 3);
        factor_t one = factor(pairs[p][1], 1), zero = factor(pairs[p][1], 0);
        operation_t of = {0, 0, 0, 0, &x, 0, 0};
        fill(&y, NAN);
        OK(cudnnTransformTensor(handle, &one, x.descriptor, x.numbers.device, &zero, y.descriptor, y.numbers.device));
        compare("other format", &y, copied, &of, 1, 0, 1);
        OK(cudnnTransformTensor(handle, &one, x.descriptor, x.numbers.device, &one, gaps.descriptor,
                                gaps.numbers.device));
        compare("other strides", &gaps, copied, &of, 1, 1, 1);
        /* What is between the elements stays as it is. */
        IS(at(gaps.numbers, 1) == number(pairs[p][1], 3, 1));
        free_tensor(x), free_tensor(y), free_tensor(gaps);
    }
    for (int t = 0; t < 4; t++) {
        tensor_t y = tensor(types[t], NHWC, 4, images, 4), old = tensor(types[t], NHWC, 4, images, 4);
        factor_t factors = factor(types[t], -2.5);
        operation_t of = {0, 0, 0, 0, &old, 0, 0};
        OK(cudnnScaleTensor(handle, y.descriptor, y.numbers.device, &factors));
        compare("scaled", &y, copied, &of, -2.5, 0, 1);
        char value[8];
        put(types[t], value, 0, 1.75);
        OK(cudnnSetTensor(handle, y.descriptor, y.numbers.device, value));
        to_host(&y.numbers);
        for (size_t i = 0; i < y.numbers.count; i++) IS(at(y.numbers, i) == 1.75);
        free_tensor(y), free_tensor(old);
    }
}

static double operated(const void *context, int n, int c, int d, int h, int w) {
    const operation_t *of = context;
    double a = of->alpha * of_tensor(of->a, n, c, d, h, w), b = of->alpha_b * of_tensor(of->b, n, c, d, h, w);
    switch (of->operation) {
    case 0: return a + b;
    case 1: return a * b;
    case 2: return a < b ? a : b;
    case 3: return a > b ? a : b;
    case 4: return sqrt(a);
    default: return 1 - a;
    }
}

static void operations(void) {
    static const int channels[] = {1, 3, 1, 1, 1};
    for (int operation = 0; operation < 6; operation++)
        for (int t = 0; t < 4; t++) {
            int type = types[t];
            double beta = t == 2 ? 0 : 0.5;
            tensor_t a = tensor(type, NCHW, 5, volumes, 1), b = tensor(type, NCHW, 5, t % 2 ? channels : volumes, 2);
            tensor_t c = tensor(type, NHWC, 5, volumes, 3);
            factor_t first = factor(type, 2), second = factor(type, -1), betas = factor(type, beta);
            operation_t of = {operation, 2, -1, 0, &a, &b, 0};
            void *descriptor;
            if (operation == 4) {
                for (size_t i = 0; i < a.numbers.count; i++)
                    put(type, a.numbers.host, i, fabs(at(a.numbers, i)));
                to_device(&a.numbers);
            }
            if (beta == 0) fill(&c, NAN);
            OK(cudnnCreateOpTensorDescriptor(&descriptor));
            OK(cudnnSetOpTensorDescriptor(descriptor, operation, type == F64 ? F64 : F32, 1));
            OK(cudnnOpTensor(handle, descriptor, &first, a.descriptor, a.numbers.device, &second, b.descriptor,
                             b.numbers.device, &betas, c.descriptor, c.numbers.device));
            compare("operation", &c, operated, &of, 1, beta, 2);
            OK(cudnnDestroyOpTensorDescriptor(descriptor));
            free_tensor(a), free_tensor(b), free_tensor(c);
        }
}

static double normalized(const void *context, int n, int c, int d, int h, int w) {
    const operation_t *of = context;
    const tensor_t *p = of->parameters;
    double x = of_tensor(of->a, n, c, d, h, w), scale = of_tensor(&p[0], 0, c, d, h, w);
    double bias = of_tensor(&p[1], 0, c, d, h, w), mean = of_tensor(&p[2], 0, c, d, h, w);
    return scale * (x - mean) / sqrt(of_tensor(&p[3], 0, c, d, h, w) + 0.001) + bias;
}

static void norms(void) {
    for (int mode = 0; mode < 3; mode++)
        for (int t = 0; t < 4; t++) {
            int type = types[t], of_parameters = type == F64 ? F64 : F32;
            int sizes[] = {1, 3, mode ? 1 : 2, mode ? 1 : 4, mode ? 1 : 5};
            tensor_t x = tensor(type, t % 2 ? NHWC : NCHW, 5, volumes, 1), y = tensor(type, NCHW, 5, volumes, 2);
            tensor_t p[4];
            for (int i = 0; i < 4; i++) p[i] = tensor(of_parameters, NCHW, 5, sizes, 3 + i);
            for (size_t i = 0; i < p[3].numbers.count; i++)
                put(of_parameters, p[3].numbers.host, i, fabs(at(p[3].numbers, i)) + 0.25);
            to_device(&p[3].numbers);
            void *derived;
            int found_type, rank, found[5], strides[5];
            OK(cudnnCreateTensorDescriptor(&derived));
            OK(cudnnDeriveBNTensorDescriptor(derived, x.descriptor, mode));
            OK(cudnnGetTensorNdDescriptor(derived, 5, &found_type, &rank, found, strides));
            IS(found_type == of_parameters && rank == 5 && !memcmp(found, sizes, sizeof sizes));
            double alpha = t == 0 ? 2 : 1, beta = t == 0 ? 0.5 : 0;
            factor_t a = factor(type, alpha), b = factor(type, beta);
            operation_t of = {0, 0, 0, 0, &x, 0, p};
            if (beta == 0) fill(&y, NAN);
            OK(cudnnBatchNormalizationForwardInference(handle, mode, &a, &b, x.descriptor, x.numbers.device,
                                                       y.descriptor, y.numbers.device, derived, p[0].numbers.device,
                                                       p[1].numbers.device, p[2].numbers.device, p[3].numbers.device,
                                                       0.001));
            compare("normalized", &y, normalized, &of, alpha, beta, 16);
            OK(cudnnDestroyTensorDescriptor(derived));
            for (int i = 0; i < 4; i++) free_tensor(p[i]);
            free_tensor(x), free_tensor(y);
        }
}

static void dropouts(void) {
    tensor_t x = tensor(F32, NCHW, 4, images, 1), y = tensor(F32, NCHW, 4, images, 2);
    size_t states_bytes = 0, reserve_bytes = 0;
    void *descriptor, *states, *reserve;
    operation_t of = {0, 0, 0, 0, &x, 0, 0};
    OK(cudnnDropoutGetStatesSize(handle, &states_bytes));
    OK(cudnnDropoutGetReserveSpaceSize(x.descriptor, &reserve_bytes));
    IS(states_bytes > 0 && reserve_bytes >= x.numbers.count / 8);
    OK(cudaMalloc(&states, states_bytes)), OK(cudaMalloc(&reserve, reserve_bytes));
    OK(cudnnCreateDropoutDescriptor(&descriptor));
    OK(cudnnSetDropoutDescriptor(descriptor, handle, 0, states, states_bytes, 1));
    fill(&y, NAN);
    OK(cudnnDropoutForward(handle, descriptor, x.descriptor, x.numbers.device, y.descriptor, y.numbers.device, reserve,
                           reserve_bytes));
    compare("dropout", &y, copied, &of, 1, 0, 1);
    FAILS(cudnnSetDropoutDescriptor(descriptor, handle, 2, states, states_bytes, 1), BAD_PARAM);
    OK(cudnnDestroyDropoutDescriptor(descriptor));
    OK(cudaFree(states)), OK(cudaFree(reserve));
    free_tensor(x), free_tensor(y);
}

/* Outputs in place of inputs with other strides, and types of computation. */
static void refusals(void) {
    static const int channels[] = {1, 3, 1, 1, 1};
    tensor_t x = tensor(F32, NCHW, 4, images, 1), y = tensor(F32, NHWC, 4, images, 2);
    tensor_t small = tensor(F32, NCHW, 4, channels, 3);
    factor_t one = factor(F32, 1), zero = factor(F32, 0);
    void *activation, *descriptor, *same = x.numbers.device;
    OK(cudnnCreateActivationDescriptor(&activation));
    OK(cudnnSetActivationDescriptor(activation, RELU, 1, 0));
    FAILS(cudnnActivationForward(handle, activation, &one, x.descriptor, same, &zero, y.descriptor, same), BAD_PARAM);
    FAILS(cudnnTransformTensor(handle, &one, x.descriptor, same, &zero, y.descriptor, same), BAD_PARAM);
    FAILS(cudnnAddTensor(handle, &one, small.descriptor, same, &one, x.descriptor, same), BAD_PARAM);
    OK(cudnnAddTensor(handle, &one, x.descriptor, same, &one, x.descriptor, same));
    OK(cudnnCreateOpTensorDescriptor(&descriptor));
    OK(cudnnSetOpTensorDescriptor(descriptor, 0, F64, 1));
    FAILS(cudnnOpTensor(handle, descriptor, &one, x.descriptor, same, &one, x.descriptor, same, &zero, x.descriptor,
                        same), NOT_SUPPORTED);
    OK(cudnnDestroyOpTensorDescriptor(descriptor)), OK(cudnnDestroyActivationDescriptor(activation));
    free_tensor(x), free_tensor(y), free_tensor(small);
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"activations", activations}, {"copies", copies}, {"operations", operations}, {"norms", norms},
                 {"dropouts", dropouts}, {"refusals", refusals}};
    OK(cudnnCreate(&handle));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (count > 1 && !strcmp(arguments[1], parts[i].name)) parts[i].run();
    OK(cudnnDestroy(handle));
    printf("%s\n", arguments[1]);
    return 0;
}
