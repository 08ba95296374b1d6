/* Versions, descriptors and errors. The first argument names the test. */
#include "check.h"
#include <pthread.h>

size_t cudnnGetCudartVersion(void);
int cudnnGetProperty(int, int *), cudnnSetStream(void *, void *), cudnnGetStream(void *, void **);
int cudnnSetTensor4dDescriptor(void *, int, int, int, int, int, int);
int cudnnSetTensor4dDescriptorEx(void *, int, int, int, int, int, int, int, int, int);
int cudnnGetTensor4dDescriptor(void *, int *, int *, int *, int *, int *, int *, int *, int *, int *);
int cudnnGetTensorSizeInBytes(void *, size_t *);
int cudnnSetFilter4dDescriptor(void *, int, int, int, int, int, int);
int cudnnGetFilter4dDescriptor(void *, int *, int *, int *, int *, int *, int *);
int cudnnCreateConvolutionDescriptor(void **), cudnnDestroyConvolutionDescriptor(void *);
int cudnnSetConvolution2dDescriptor(void *, int, int, int, int, int, int, int, int);
int cudnnGetConvolution2dDescriptor(void *, int *, int *, int *, int *, int *, int *, int *, int *);
int cudnnGetConvolution2dForwardOutputDim(void *, void *, void *, int *, int *, int *, int *);
int cudnnSetConvolutionMathType(void *, int), cudnnGetConvolutionMathType(void *, int *);
int cudnnSetConvolutionReorderType(void *, int);
int cudnnGetConvolutionForwardAlgorithm_v7(void *, void *, void *, void *, void *, int, int *, void *);
int cudnnGetConvolutionForwardAlgorithmMaxCount(void *, int *);
int cudnnCreatePoolingDescriptor(void **), cudnnDestroyPoolingDescriptor(void *);
int cudnnSetPooling2dDescriptor(void *, int, int, int, int, int, int, int, int);
int cudnnGetPooling2dDescriptor(void *, int *, int *, int *, int *, int *, int *, int *, int *);
int cudnnGetPooling2dForwardOutputDim(void *, void *, int *, int *, int *, int *);
int cudnnCreateActivationDescriptor(void **), cudnnDestroyActivationDescriptor(void *);
int cudnnSetActivationDescriptor(void *, int, int, double), cudnnGetActivationDescriptor(void *, int *, int *, double *);
int cudnnScaleTensor(void *, void *, void *, const void *);
int cudnnBackendCreateDescriptor(int, void **), cudnnRNNForward(void), cudnnPoolingBackward(void);

/* The layout in the header. */
typedef struct {
    int algorithm, status;
    float time;
    size_t memory;
    int determinism, math_type, reserved[3];
} performance_t;

static void settings(void) {
    int major, minor, patch;
    void *stream, *found;
    OK(cudnnGetProperty(0, &major)), OK(cudnnGetProperty(1, &minor)), OK(cudnnGetProperty(2, &patch));
    FAILS(cudnnGetProperty(3, &patch), BAD_PARAM);
    IS(cudnnGetVersion() == (size_t)(major * (major < 9 ? 1000 : 10000) + minor * 100 + patch));
    IS(cudnnGetCudartVersion() >= 11000);
    printf("version %zu\n", cudnnGetVersion());
    OK(cudaStreamCreate(&stream));
    OK(cudnnSetStream(handle, stream)), OK(cudnnGetStream(handle, &found));
    IS(found == stream);
    FAILS(cudnnSetStream((void *)7, stream), NOT_INITIALIZED);
    FAILS(cudnnDestroy((void *)7), NOT_INITIALIZED);
    FAILS(cudnnCreate(0), BAD_PARAM);
    IS(!strcmp(cudnnGetErrorString(0), "CUDNN_STATUS_SUCCESS"));
    IS(!strcmp(cudnnGetErrorString(BAD_PARAM), "CUDNN_STATUS_BAD_PARAM"));
    IS(!strcmp(cudnnGetErrorString(NOT_SUPPORTED), "CUDNN_STATUS_NOT_SUPPORTED"));
    IS(*cudnnGetErrorString(-1));
}

static void descriptors(void) {
    void *tensor, *filter, *convolution, *pooling, *activation;
    int v[10];
    size_t bytes;
    double coefficient;
    OK(cudnnCreateTensorDescriptor(&tensor)), OK(cudnnCreateFilterDescriptor(&filter));
    OK(cudnnCreateConvolutionDescriptor(&convolution)), OK(cudnnCreatePoolingDescriptor(&pooling));
    OK(cudnnCreateActivationDescriptor(&activation));
    OK(cudnnSetTensor4dDescriptor(tensor, NHWC, F16, 2, 3, 5, 7));
    OK(cudnnGetTensor4dDescriptor(tensor, &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &v[7], &v[8]));
    const int wanted[] = {F16, 2, 3, 5, 7, 105, 1, 21, 3};
    IS(!memcmp(v, wanted, sizeof wanted));
    OK(cudnnGetTensorSizeInBytes(tensor, &bytes));
    IS(bytes == 420);
    OK(cudnnSetTensor4dDescriptorEx(tensor, F32, 2, 3, 5, 7, 200, 50, 8, 1));
    OK(cudnnGetTensorSizeInBytes(tensor, &bytes));
    IS(bytes == 4 * (200 + 100 + 32 + 6 + 1));
    FAILS(cudnnSetTensor4dDescriptor(tensor, NCHW, F32, 2, 0, 5, 7), BAD_PARAM);
    FAILS(cudnnSetTensor4dDescriptor(tensor, NCHW, 99, 2, 3, 5, 7), BAD_PARAM);
    FAILS(cudnnSetTensor4dDescriptor(tensor, NCHW, F32, 65536, 65536, 1, 1), NOT_SUPPORTED);
    FAILS(cudnnSetTensor4dDescriptor(filter, NCHW, F32, 2, 3, 5, 7), BAD_PARAM);
    FAILS(cudnnSetTensor4dDescriptor((void *)&bytes, NCHW, F32, 2, 3, 5, 7), BAD_PARAM);
    FAILS(cudnnSetTensor4dDescriptor(0, NCHW, F32, 2, 3, 5, 7), BAD_PARAM);
    OK(cudnnSetTensor4dDescriptor(tensor, NCHW, F32, 2, 6, 9, 8));
    OK(cudnnSetFilter4dDescriptor(filter, F32, NCHW, 4, 6, 3, 2));
    OK(cudnnGetFilter4dDescriptor(filter, &v[0], &v[1], &v[2], &v[3], &v[4], &v[5]));
    IS(v[0] == F32 && v[1] == NCHW && v[2] == 4 && v[3] == 6 && v[4] == 3 && v[5] == 2);
    OK(cudnnSetConvolution2dDescriptor(convolution, 1, 0, 2, 1, 1, 2, CROSS_CORRELATION, F32));
    OK(cudnnGetConvolution2dDescriptor(convolution, &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &v[7]));
    const int set[] = {1, 0, 2, 1, 1, 2, CROSS_CORRELATION, F32};
    IS(!memcmp(v, set, sizeof set));
    FAILS(cudnnSetConvolution2dDescriptor(convolution, -1, 0, 2, 1, 1, 2, CROSS_CORRELATION, F32), BAD_PARAM);
    FAILS(cudnnSetConvolution2dDescriptor(convolution, 1, 0, 0, 1, 1, 2, CROSS_CORRELATION, F32), BAD_PARAM);
    OK(cudnnGetConvolution2dForwardOutputDim(convolution, tensor, filter, &v[0], &v[1], &v[2], &v[3]));
    IS(v[0] == 2 && v[1] == 4 && v[2] == 5 && v[3] == 6);
    OK(cudnnSetConvolutionMathType(convolution, 1)), OK(cudnnGetConvolutionMathType(convolution, &v[0]));
    IS(v[0] == 1);
    FAILS(cudnnSetConvolutionMathType(convolution, 4), BAD_PARAM);
    FAILS(cudnnSetConvolutionReorderType(convolution, 2), BAD_PARAM);
    void *output;
    performance_t found[3] = {{-1}};
    OK(cudnnCreateTensorDescriptor(&output));
    OK(cudnnSetTensor4dDescriptor(output, NCHW, F32, 2, 4, 5, 6));
    OK(cudnnGetConvolutionForwardAlgorithm_v7(handle, tensor, filter, convolution, output, 3, &v[0], found));
    IS(v[0] == 1 && found[0].algorithm == 0 && found[0].status == 0 && found[0].memory == 0);
    IS(found[0].determinism == 1 && found[0].math_type == 1);
    OK(cudnnGetConvolutionForwardAlgorithmMaxCount(handle, &v[0]));
    IS(v[0] >= 1);
    OK(cudnnSetTensor4dDescriptor(output, NCHW, F32, 2, 4, 5, 5));
    FAILS(cudnnGetConvolutionForwardAlgorithm_v7(handle, tensor, filter, convolution, output, 3, &v[0], found), BAD_PARAM);
    OK(cudnnSetPooling2dDescriptor(pooling, 1, 0, 3, 2, 1, 0, 2, 1));
    OK(cudnnGetPooling2dDescriptor(pooling, &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &v[7]));
    const int pool[] = {1, 0, 3, 2, 1, 0, 2, 1};
    IS(!memcmp(v, pool, sizeof pool));
    OK(cudnnGetPooling2dForwardOutputDim(pooling, tensor, &v[0], &v[1], &v[2], &v[3]));
    IS(v[0] == 2 && v[1] == 6 && v[2] == 5 && v[3] == 7);
    OK(cudnnSetActivationDescriptor(activation, CLIPPED_RELU, 1, 6));
    OK(cudnnGetActivationDescriptor(activation, &v[0], &v[1], &coefficient));
    IS(v[0] == CLIPPED_RELU && v[1] == 1 && coefficient == 6);
    FAILS(cudnnSetActivationDescriptor(activation, 7, 1, 6), BAD_PARAM);
    OK(cudnnDestroyTensorDescriptor(tensor)), OK(cudnnDestroyTensorDescriptor(output));
    FAILS(cudnnDestroyTensorDescriptor(tensor), BAD_PARAM);
    OK(cudnnDestroyTensorDescriptor(0));
    OK(cudnnDestroyFilterDescriptor(filter)), OK(cudnnDestroyConvolutionDescriptor(convolution));
    OK(cudnnDestroyPoolingDescriptor(pooling)), OK(cudnnDestroyActivationDescriptor(activation));
}

/* What is missing prints its name once. */
static void refusals(void) {
    void *descriptor;
    for (int i = 0; i < 2; i++) {
        FAILS(cudnnBackendCreateDescriptor(0, &descriptor), NOT_SUPPORTED);
        FAILS(cudnnRNNForward(), NOT_SUPPORTED);
        FAILS(cudnnPoolingBackward(), NOT_SUPPORTED);
    }
}

/* Threads that share a handle, each with its own tensor. */
static void *scale_often(void *argument) {
    static const int sizes[] = {1, 2, 1, 3, 4};
    tensor_t y = tensor(F32, NCHW, 4, sizes, 1);
    factor_t two = factor(F32, 2);
    (void)argument;
    for (int i = 0; i < 10; i++) OK(cudnnScaleTensor(handle, y.descriptor, y.numbers.device, &two));
    to_host(&y.numbers);
    for (size_t i = 0; i < y.numbers.count; i++) IS(at(y.numbers, i) == 1024 * number(F32, 1, i));
    free_tensor(y);
    return 0;
}

static void threads(void) {
    pthread_t started[4];
    for (int i = 0; i < 4; i++) OK(pthread_create(&started[i], 0, scale_often, 0));
    for (int i = 0; i < 4; i++) OK(pthread_join(started[i], 0));
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"settings", settings}, {"descriptors", descriptors}, {"refusals", refusals}, {"threads", threads}};
    OK(cudnnCreate(&handle));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (count > 1 && !strcmp(arguments[1], parts[i].name)) parts[i].run();
    OK(cudnnDestroy(handle));
    printf("%s\n", arguments[1]);
    return 0;
}
