/* Convolutions and their gradients, compared with loops. The first argument names the test. */
#include "check.h"

int cudnnCreateConvolutionDescriptor(void **), cudnnDestroyConvolutionDescriptor(void *);
int cudnnSetConvolutionNdDescriptor(void *, int, const int *, const int *, const int *, int, int);
int cudnnSetConvolutionGroupCount(void *, int);
int cudnnGetConvolutionNdForwardOutputDim(void *, void *, void *, int, int *);
int cudnnGetConvolutionForwardWorkspaceSize(void *, void *, void *, void *, void *, int, size_t *);
int cudnnConvolutionForward(void *, const void *, void *, const void *, void *, const void *, void *, int, void *,
                            size_t, const void *, void *, void *);
int cudnnConvolutionBiasActivationForward(void *, const void *, void *, const void *, void *, const void *, void *, int,
                                          void *, size_t, const void *, void *, const void *, void *, const void *,
                                          void *, void *, void *);
int cudnnConvolutionBackwardData(void *, const void *, void *, const void *, void *, const void *, void *, int, void *,
                                 size_t, const void *, void *, void *);
int cudnnConvolutionBackwardFilter(void *, const void *, void *, const void *, void *, const void *, void *, int, void *,
                                   size_t, const void *, void *, void *);
int cudnnConvolutionBackwardBias(void *, const void *, void *, const void *, const void *, void *, void *);
int cudnnCreateActivationDescriptor(void **), cudnnDestroyActivationDescriptor(void *);
int cudnnSetActivationDescriptor(void *, int, int, double);

/* A convolution: y = x * w. */
typedef struct {
    int rank, groups, mode, padding[3], stride[3], dilation[3];
    tensor_t x, w, y;
    void *descriptor;
} problem_t;

typedef struct {
    int rank, batch, inputs, outputs, groups, mode, size[3], filter[3], padding[3], stride[3], dilation[3];
} shape_t;

static const shape_t shapes[] = {
    {4, 2, 3, 4, 1, CROSS_CORRELATION, {1, 6, 7}, {1, 3, 3}, {0, 1, 1}, {1, 1, 1}, {1, 1, 1}},
    {4, 1, 4, 6, 2, CROSS_CORRELATION, {1, 8, 5}, {1, 3, 2}, {0, 0, 1}, {1, 2, 1}, {1, 1, 2}},
    {4, 2, 2, 3, 1, CONVOLUTION, {1, 5, 9}, {1, 2, 3}, {0, 1, 0}, {1, 1, 3}, {1, 2, 1}},
    {4, 1, 5, 5, 5, CROSS_CORRELATION, {1, 7, 7}, {1, 3, 3}, {0, 1, 1}, {1, 2, 2}, {1, 1, 1}},
    {4, 3, 17, 9, 1, CROSS_CORRELATION, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}, {1, 1, 1}},
    {5, 1, 2, 2, 1, CROSS_CORRELATION, {4, 5, 6}, {2, 3, 2}, {1, 1, 0}, {2, 1, 1}, {1, 1, 2}},
    {5, 2, 2, 4, 2, CONVOLUTION, {3, 4, 4}, {2, 2, 3}, {0, 1, 1}, {1, 2, 1}, {2, 1, 1}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* The element of the filter at an offset: a convolution turns it around. */
static int turned(const problem_t *of, int dimension, int offset) {
    return of->mode == CONVOLUTION ? of->w.sizes[dimension + 2] - 1 - offset : offset;
}

/* Calls `visit` for each product of an element of x and one of w that is part of an element of y. */
typedef void visit_t(void *, const int *, const int *, const int *);

static void products(const problem_t *of, visit_t *visit, void *context) {
    int y[5], f[3];
    int inputs = of->w.sizes[1], outputs = of->w.sizes[0] / of->groups;
    for (y[0] = 0; y[0] < of->y.sizes[0]; y[0]++)
        for (y[1] = 0; y[1] < of->y.sizes[1]; y[1]++)
            for (y[2] = 0; y[2] < of->y.sizes[2]; y[2]++)
                for (y[3] = 0; y[3] < of->y.sizes[3]; y[3]++)
                    for (y[4] = 0; y[4] < of->y.sizes[4]; y[4]++)
                        for (int c = 0; c < inputs; c++)
                            for (f[0] = 0; f[0] < of->w.sizes[2]; f[0]++)
                                for (f[1] = 0; f[1] < of->w.sizes[3]; f[1]++)
                                    for (f[2] = 0; f[2] < of->w.sizes[4]; f[2]++) {
                                        int x[5] = {y[0], y[1] / outputs * inputs + c}, w[5] = {y[1], c}, inside = 1;
                                        for (int i = 0; i < 3; i++) {
                                            x[i + 2] = y[i + 2] * of->stride[i] - of->padding[i] + f[i] * of->dilation[i];
                                            w[i + 2] = turned(of, i, f[i]);
                                            inside &= x[i + 2] >= 0 && x[i + 2] < of->x.sizes[i + 2];
                                        }
                                        if (inside) visit(context, x, w, y);
                                    }
}

/* Sums in f64 for each element of the result. */
typedef struct {
    const problem_t *problem;
    const tensor_t *result, *one, *two;
    double *sums;
} sums_t;

static const int *of_tensor(const problem_t *problem, const tensor_t *tensor, const int *x, const int *w, const int *y) {
    return tensor == &problem->x ? x : tensor == &problem->w ? w : y;
}

static void add(void *context, const int *x, const int *w, const int *y) {
    sums_t *to = context;
    const int *one = of_tensor(to->problem, to->one, x, w, y), *two = of_tensor(to->problem, to->two, x, w, y);
    double product = at(to->one->numbers, place(to->one, one)) * at(to->two->numbers, place(to->two, two));
    to->sums[place(to->result, of_tensor(to->problem, to->result, x, w, y))] += product;
}

static sums_t sums(const problem_t *of, const tensor_t *result, const tensor_t *one, const tensor_t *two) {
    sums_t made = {of, result, one, two, calloc(span(result), sizeof(double))};
    products(of, add, &made);
    return made;
}

static double sum_at(const void *context, int n, int c, int d, int h, int w) {
    const sums_t *of = context;
    int where[] = {n, c, d, h, w};
    return of->sums[place(of->result, where)];
}

static problem_t problem(const shape_t *shape, int type, int format, int gap) {
    problem_t made = {shape->rank, shape->groups, shape->mode};
    int space = shape->rank - 2, wanted[5], found[5];
    memcpy(made.padding, shape->padding, sizeof made.padding);
    memcpy(made.stride, shape->stride, sizeof made.stride);
    memcpy(made.dilation, shape->dilation, sizeof made.dilation);
    int x[5] = {shape->batch, shape->inputs}, w[5] = {shape->outputs, shape->inputs / shape->groups};
    int y[5] = {shape->batch, shape->outputs};
    for (int i = 0; i < 3; i++) {
        x[i + 2] = shape->size[i], w[i + 2] = shape->filter[i];
        int reach = (shape->filter[i] - 1) * shape->dilation[i] + 1;
        y[i + 2] = (shape->size[i] + 2 * shape->padding[i] - reach) / shape->stride[i] + 1;
    }
    made.x = gap > 1 ? spread(type, shape->rank, x, gap, 1) : tensor(type, format, shape->rank, x, 1);
    made.w = filter(type, format, shape->rank, w, 2);
    made.y = gap > 1 ? spread(type, shape->rank, y, gap, 3) : tensor(type, format, shape->rank, y, 3);
    OK(cudnnCreateConvolutionDescriptor(&made.descriptor));
    const int *pads = shape->padding + 3 - space, *strides = shape->stride + 3 - space;
    OK(cudnnSetConvolutionNdDescriptor(made.descriptor, space, pads, strides, shape->dilation + 3 - space, shape->mode,
                                       type == F64 ? F64 : F32));
    OK(cudnnSetConvolutionGroupCount(made.descriptor, shape->groups));
    OK(cudnnGetConvolutionNdForwardOutputDim(made.descriptor, made.x.descriptor, made.w.descriptor, shape->rank, found));
    flat(shape->rank, y, wanted);
    for (int i = 0; i < shape->rank; i++) IS(found[i] == wanted[i]);
    return made;
}

static void end(problem_t of) {
    free_tensor(of.x), free_filter(of.w), free_tensor(of.y);
    OK(cudnnDestroyConvolutionDescriptor(of.descriptor));
}

/* Products in an element of the result, at most. */
static int depth(const problem_t *of) {
    return of->w.sizes[1] * of->w.sizes[2] * of->w.sizes[3] * of->w.sizes[4];
}

static int forward(problem_t *of, double alpha, double beta) {
    int type = of->x.type;
    factor_t a = factor(type, alpha), b = factor(type, beta);
    size_t bytes = 1;
    OK(cudnnGetConvolutionForwardWorkspaceSize(handle, of->x.descriptor, of->w.descriptor, of->descriptor,
                                               of->y.descriptor, 1, &bytes));
    IS(bytes == 0);
    return cudnnConvolutionForward(handle, &a, of->x.descriptor, of->x.numbers.device, of->w.descriptor,
                                   of->w.numbers.device, of->descriptor, 1, 0, 0, &b, of->y.descriptor,
                                   of->y.numbers.device);
}

static void check_forward(const shape_t *shape, int type, int format, int gap, double alpha, double beta) {
    problem_t of = problem(shape, type, format, gap);
    if (beta == 0) fill(&of.y, NAN);
    sums_t wanted = sums(&of, &of.y, &of.x, &of.w);
    OK(forward(&of, alpha, beta));
    compare("forward", &of.y, sum_at, &wanted, alpha, beta, depth(&of));
    free(wanted.sums);
    end(of);
}

static void forwards(void) {
    for (int s = 0; s < SHAPES; s++)
        for (int t = 0; t < 4; t++)
            if (is_taken(s + t)) check_forward(&shapes[s], types[t], t % 2 ? NHWC : NCHW, 1, 1, 0);
    for (int s = 0; s < SHAPES; s++)
        if (is_taken(s)) check_forward(&shapes[s], F32, NCHW, 2, -0.5, 2);
    check_forward(&shapes[0], F32, NHWC, 1, 2, 0.5);
    check_forward(&shapes[5], F64, NHWC, 1, 0.25, -1);
}

/* Gradients with respect to x and w, and the bias. */
static void check_gradients(const shape_t *shape, int type, int format, double alpha, double beta) {
    problem_t of = problem(shape, type, format, 1);
    factor_t a = factor(type, alpha), b = factor(type, beta);
    sums_t wanted = sums(&of, &of.x, &of.y, &of.w);
    tensor_t kept = of.x;
    if (beta == 0) fill(&of.x, NAN);
    OK(cudnnConvolutionBackwardData(handle, &a, of.w.descriptor, of.w.numbers.device, of.y.descriptor,
                                    of.y.numbers.device, of.descriptor, 0, 0, 0, &b, kept.descriptor, kept.numbers.device));
    compare("gradient of x", &of.x, sum_at, &wanted, alpha, beta, of.w.sizes[0] * depth(&of) / of.w.sizes[1]);
    free(wanted.sums);
    for (size_t i = 0; i < of.x.numbers.count; i++) put(type, of.x.numbers.host, i, number(type, 1, i));
    to_device(&of.x.numbers);
    wanted = sums(&of, &of.w, &of.x, &of.y);
    if (beta == 0) fill(&of.w, NAN);
    OK(cudnnConvolutionBackwardFilter(handle, &a, of.x.descriptor, of.x.numbers.device, of.y.descriptor,
                                      of.y.numbers.device, of.descriptor, 0, 0, 0, &b, of.w.descriptor,
                                      of.w.numbers.device));
    int products = of.y.sizes[0] * of.y.sizes[2] * of.y.sizes[3] * of.y.sizes[4];
    compare("gradient of w", &of.w, sum_at, &wanted, alpha, beta, products);
    free(wanted.sums);

    int sizes[] = {1, shape->outputs, 1, 1, 1};
    tensor_t bias = tensor(type, NCHW, shape->rank, sizes, 4);
    double *bias_sums = calloc((size_t)shape->outputs, sizeof(double));
    for (int n = 0; n < of.y.sizes[0]; n++)
        for (int c = 0; c < of.y.sizes[1]; c++)
            for (int d = 0; d < of.y.sizes[2]; d++)
                for (int h = 0; h < of.y.sizes[3]; h++)
                    for (int w = 0; w < of.y.sizes[4]; w++) bias_sums[c] += value(&of.y, n, c, d, h, w);
    sums_t of_bias = {&of, &bias, &of.y, &of.y, bias_sums};
    if (beta == 0) fill(&bias, NAN);
    OK(cudnnConvolutionBackwardBias(handle, &a, of.y.descriptor, of.y.numbers.device, &b, bias.descriptor,
                                    bias.numbers.device));
    compare("gradient of the bias", &bias, sum_at, &of_bias, alpha, beta, products);
    free(bias_sums);
    free_tensor(bias);
    end(of);
}

static void gradients(void) {
    for (int s = 0; s < SHAPES; s++)
        if (is_taken(s)) check_gradients(&shapes[s], F32, s % 2 ? NHWC : NCHW, 1, 0);
    check_gradients(&shapes[1], F64, NCHW, -2, 0.5);
    check_gradients(&shapes[2], F16, NCHW, 1, 0);
    check_gradients(&shapes[6], F64, NHWC, 1, 1);
}

/* max(alpha * convolution + alpha_z * z + bias, 0), or without the maximum. */
typedef struct {
    sums_t *sums;
    const tensor_t *z, *bias;
    double alpha, alpha_z;
    int mode;
} epilogue_t;

static double finished(const void *context, int n, int c, int d, int h, int w) {
    const epilogue_t *of = context;
    double number = of->alpha * sum_at(of->sums, n, c, d, h, w) + value(of->bias, 0, c, 0, 0, 0);
    if (of->alpha_z != 0) number += of->alpha_z * value(of->z, n, c, d, h, w);
    return of->mode == IDENTITY ? number : number > 0 ? number : 0;
}

static void check_epilogue(const shape_t *shape, int type, int format, int mode, double alpha, double alpha_z) {
    problem_t of = problem(shape, type, format, 1);
    int sizes[] = {1, shape->outputs, 1, 1, 1};
    tensor_t z = tensor(type, NCHW, shape->rank, of.y.sizes, 5), bias = tensor(type, NCHW, shape->rank, sizes, 6);
    if (alpha_z == 0) fill(&z, NAN);
    fill(&of.y, NAN);
    sums_t wanted = sums(&of, &of.y, &of.x, &of.w);
    epilogue_t epilogue = {&wanted, &z, &bias, alpha, alpha_z, mode};
    factor_t a = factor(type, alpha), b = factor(type, alpha_z);
    void *activation;
    OK(cudnnCreateActivationDescriptor(&activation));
    OK(cudnnSetActivationDescriptor(activation, mode, 1, 0));
    OK(cudnnConvolutionBiasActivationForward(handle, &a, of.x.descriptor, of.x.numbers.device, of.w.descriptor,
                                             of.w.numbers.device, of.descriptor, 1, 0, 0, &b, z.descriptor,
                                             z.numbers.device, bias.descriptor, bias.numbers.device, activation,
                                             of.y.descriptor, of.y.numbers.device));
    compare("epilogue", &of.y, finished, &epilogue, 1, 0, depth(&of));
    OK(cudnnDestroyActivationDescriptor(activation));
    free(wanted.sums);
    free_tensor(z), free_tensor(bias);
    end(of);
}

static void epilogues(void) {
    for (int t = 0; t < 4; t++) check_epilogue(&shapes[t], types[t], NCHW, RELU, 1, 0);
    check_epilogue(&shapes[1], F32, NHWC, RELU, 0.5, 2);
    check_epilogue(&shapes[6], F32, NCHW, IDENTITY, -1, 1);
}

/* A gradient of the bias with one number for each image, where there are as many images as channels. */
static void bias_of_images(void) {
    static const int sizes[] = {4, 4, 1, 2, 3}, images[] = {4, 1, 1, 1, 1};
    tensor_t dy = tensor(F32, NCHW, 4, sizes, 1), db = tensor(F32, NCHW, 4, images, 2);
    factor_t one = factor(F32, 1);
    FAILS(cudnnConvolutionBackwardBias(handle, &one, dy.descriptor, dy.numbers.device, &one, db.descriptor,
                                       db.numbers.device), BAD_PARAM);
    free_tensor(dy), free_tensor(db);
}

/* Tensors that do not fit, and types and algorithms that are not supported. */
static void refusals(void) {
    bias_of_images();
    problem_t of = problem(&shapes[0], F32, NCHW, 1), other = problem(&shapes[1], F32, NCHW, 1);
    tensor_t y = of.y;
    of.y = other.y;
    factor_t one = factor(F32, 1);
    size_t bytes;
    FAILS(cudnnGetConvolutionForwardWorkspaceSize(handle, of.x.descriptor, of.w.descriptor, of.descriptor,
                                                  of.y.descriptor, 1, &bytes), BAD_PARAM);
    of.y = y;
    FAILS(cudnnConvolutionForward((void *)5, &one, of.x.descriptor, of.x.numbers.device, of.w.descriptor,
                                  of.w.numbers.device, of.descriptor, 1, 0, 0, &one, of.y.descriptor,
                                  of.y.numbers.device), NOT_INITIALIZED);
    FAILS(cudnnConvolutionForward(handle, &one, of.x.descriptor, of.x.numbers.device, of.x.descriptor,
                                  of.w.numbers.device, of.descriptor, 1, 0, 0, &one, of.y.descriptor,
                                  of.y.numbers.device), BAD_PARAM);
    FAILS(cudnnConvolutionForward(handle, (void *)0, of.x.descriptor, of.x.numbers.device, of.w.descriptor,
                                  of.w.numbers.device, of.descriptor, 1, 0, 0, &one, of.y.descriptor,
                                  of.y.numbers.device), BAD_PARAM);
    /* A filter without an address that is turned around. */
    problem_t turned_around = problem(&shapes[2], F32, NCHW, 1);
    void *address = turned_around.w.numbers.device;
    turned_around.w.numbers.device = 0;
    FAILS(forward(&turned_around, 1, 0), BAD_PARAM);
    turned_around.w.numbers.device = address;
    end(turned_around);
    int sizes[] = {1, 3, 5, 5}, strides[] = {75, 25, 5, 1};
    for (int i = 0; i < 2; i++) {
        void *bytes_tensor;
        OK(cudnnCreateTensorDescriptor(&bytes_tensor));
        OK(cudnnSetTensorNdDescriptor(bytes_tensor, S8, 4, sizes, strides));
        FAILS(cudnnConvolutionForward(handle, &one, bytes_tensor, of.x.numbers.device, of.w.descriptor,
                                      of.w.numbers.device, of.descriptor, 1, 0, 0, &one, of.y.descriptor,
                                      of.y.numbers.device), NOT_SUPPORTED);
        OK(cudnnDestroyTensorDescriptor(bytes_tensor));
    }
    for (int algorithm = -1; algorithm <= 8; algorithm += 9)
        FAILS(cudnnConvolutionForward(handle, &one, of.x.descriptor, of.x.numbers.device, of.w.descriptor,
                                      of.w.numbers.device, of.descriptor, algorithm, 0, 0, &one, of.y.descriptor,
                                      of.y.numbers.device), BAD_PARAM);
    /* f32 computed in f64. */
    const int ones[] = {1, 1};
    OK(cudnnSetConvolutionNdDescriptor(of.descriptor, 2, ones, ones, ones, CROSS_CORRELATION, F64));
    FAILS(cudnnConvolutionForward(handle, &one, of.x.descriptor, of.x.numbers.device, of.w.descriptor,
                                  of.w.numbers.device, of.descriptor, 1, 0, 0, &one, of.y.descriptor,
                                  of.y.numbers.device), NOT_SUPPORTED);
    OK(cudnnSetConvolutionNdDescriptor(of.descriptor, 2, ones, ones, ones, CROSS_CORRELATION, F32));
    /* Everything works after errors. */
    OK(forward(&of, 1, 0));
    end(of), end(other);
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"forwards", forwards}, {"gradients", gradients}, {"epilogues", epilogues}, {"refusals", refusals}};
    OK(cudnnCreate(&handle));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (count > 1 && !strcmp(arguments[1], parts[i].name)) parts[i].run();
    OK(cudnnDestroy(handle));
    printf("%s\n", arguments[1]);
    return 0;
}
