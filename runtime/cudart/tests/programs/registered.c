/* A small program as nvcc translates it: it registers a fat binary and launches its kernel. Here the
 * fat binary is read from a file. The first argument names the test, the second the file. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Declared as in cuda_runtime_api.h and crt/host_runtime.h. */
typedef struct { unsigned x, y, z; } dim3;
typedef struct { int magic, version; const void *image; void *rest; } wrapper_t;
typedef struct { int memory, device; void *on_device, *on_host; } pointer_t;
void **__cudaRegisterFatBinary(wrapper_t *);
void __cudaRegisterFatBinaryEnd(void **), __cudaUnregisterFatBinary(void **);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int);
void __cudaRegisterManagedVar(void **, void **, char *, const char *, int, size_t, int, int);
void __cudaRegisterTexture(void **, const void *, const void **, const char *, int, int, int);
int cudaDriverGetVersion(int *), cudaInitDevice(int, unsigned, unsigned), cudaGetKernel(void **, const void *);
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void *);
int __cudaPopCallConfiguration(dim3 *, dim3 *, size_t *, void *);
int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *);
int cudaMalloc(void **, size_t), cudaFree(void *), cudaMemcpy(void *, const void *, size_t, int);
int cudaMemcpyAsync(void *, const void *, size_t, int, void *), cudaMemset(void *, int, size_t);
int cudaMemcpy2D(void *, size_t, const void *, size_t, size_t, size_t, int);
int cudaMallocPitch(void **, size_t *, size_t, size_t), cudaMallocHost(void **, size_t), cudaFreeHost(void *);
int cudaMemcpyToSymbol(const void *, const void *, size_t, size_t, int);
int cudaMemcpyFromSymbol(void *, const void *, size_t, size_t, int);
int cudaGetSymbolSize(size_t *, const void *), cudaPointerGetAttributes(pointer_t *, const void *);
int cudaStreamCreate(void **), cudaStreamDestroy(void *), cudaStreamSynchronize(void *);
int cudaEventCreate(void **), cudaEventRecord(void *, void *), cudaEventSynchronize(void *), cudaEventDestroy(void *);
int cudaDeviceSynchronize(void), cudaDeviceReset(void), cudaGetDeviceCount(int *), cudaSetDevice(int);
int cudaRuntimeGetVersion(int *), cudaGetLastError(void), cudaPeekAtLastError(void), cudaFreeArray(void *);
int cudaGetDeviceProperties(void *, int), cudaGetDeviceProperties_v2(void *, int), cudaDeviceGetAttribute(int *, int, int);
int cudaBindTexture(void), cudaFuncGetAttributes(void *, const void *);
int cudaStreamBeginCapture(void *, int), cudaStreamEndCapture(void *, void **), cudaGraphLaunch(void *, void *);
int cudaGraphGetNodes(void *, void **, size_t *), cudaGraphDestroy(void *), cudaGraphExecDestroy(void *);
int cudaGraphCreate(void **, unsigned), cudaGraphNodeGetType(void *, int *), cudaFreeAsync(void *, void *);
int cudaGraphAddMemcpyNode1D(void **, void *, void **, size_t, void *, const void *, size_t, int);
int cudaGraphAddEmptyNode(void **, void *, void **, size_t), cudaMallocManaged(void **, size_t, unsigned);
int cudaDeviceGetDefaultMemPool(void **, int), cudaMallocFromPoolAsync(void **, size_t, void *, void *);
/* The arguments of these differ between versions of the runtime. */
int cudaGraphInstantiate(), cudaGraphExecUpdate(), cudaGraphGetEdges(), cudaGraphAddDependencies();
int cudaStreamGetCaptureInfo(), cudaMemPrefetchAsync(), cudaMemAdvise();
typedef struct { const void *host; dim3 grid, block; unsigned shared; void **each, **extra; } kernel_t;
typedef struct { int kind, id; } place_t;
typedef struct { int result; void *node, *from; } updated_t;
int cudaGraphKernelNodeGetParams(void *, kernel_t *);
int cudaGraphExecKernelNodeSetParams(void *, void *, const kernel_t *);
typedef struct { size_t width, height, depth; } extent_t;
typedef struct { void *at; size_t pitch, width, height; } rows_t;
typedef struct {
    void *from_array; size_t x, y, z; rows_t from; void *to_array; size_t to_x, to_y, to_z; rows_t to;
    extent_t extent; int kind;
} copy_t;
int cudaMalloc3D(rows_t *, extent_t), cudaMemcpy3D(const copy_t *);
const char *cudaGetErrorName(int), *cudaGetErrorString(int);

enum { COUNT = 1000, TO_DEVICE = 1, TO_HOST = 2, ON_DEVICE = 3, ANY = 4 };

#define OK(call) expect(#call, call, 0)
#define FAILS(call, code) expect(#call, call, code)
#define IS(condition) expect(#condition, !(condition), 0)

static void expect(const char *what, int got, int wanted) {
    if (got == wanted) return;
    printf("%s: %d (%s), not %d\n", what, got, cudaGetErrorString(got), wanted);
    exit(1);
}

/* The host symbols of the kernel and of its variables. */
static void add(void) {}
static void gone(void) {}
static unsigned scale[2], sum;
static wrapper_t wrapper = {0x466243b1, 1, 0, 0};
static void **binary;

static void read_image(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) exit(2);
    char *image = calloc(1, 1 << 20);
    fread(image, 1, 1 << 20, file);
    fclose(file);
    wrapper.image = image;
}

static void register_all(void) {
    binary = __cudaRegisterFatBinary(&wrapper);
    __cudaRegisterFunction(binary, (const char *)add, "add", "add", -1, 0, 0, 0, 0, 0);
    __cudaRegisterFunction(binary, (const char *)gone, "gone", "gone", -1, 0, 0, 0, 0, 0);
    __cudaRegisterVar(binary, (char *)scale, "scale", "scale", 0, sizeof scale, 1, 0);
    __cudaRegisterVar(binary, (char *)&sum, "sum", "sum", 0, sizeof sum, 0, 0);
    __cudaRegisterFatBinaryEnd(binary);
}

/* A launch as nvcc translates it. */
static int launch(unsigned blocks, unsigned threads, void **arguments, void *stream) {
    dim3 grid = {blocks, 1, 1}, block = {threads, 1, 1};
    size_t shared;
    __cudaPushCallConfiguration(grid, block, 0, stream);
    OK(__cudaPopCallConfiguration(&grid, &block, &shared, &stream));
    return cudaLaunchKernel((const void *)add, grid, block, arguments, shared, stream);
}

static void run(void) {
    unsigned numbers[COUNT], results[COUNT], factors[2] = {3, 100}, count = COUNT, total = 7, expected = 7;
    void *at, *stream, *event;
    void *arguments[] = {&at, &count};
    for (unsigned i = 0; i < COUNT; i++) numbers[i] = i, expected += i;
    OK(cudaMalloc(&at, sizeof numbers));
    OK(cudaMemcpyToSymbol(scale, factors, sizeof factors, 0, TO_DEVICE));
    OK(cudaMemcpyToSymbol(&sum, &total, sizeof total, 0, TO_DEVICE));
    OK(cudaMemcpy(at, numbers, sizeof numbers, TO_DEVICE));
    OK(launch(4, 256, arguments, 0));
    OK(cudaMemcpy(results, at, sizeof results, TO_HOST));
    OK(cudaMemcpyFromSymbol(&total, &sum, sizeof total, 0, TO_HOST));
    IS(total == expected);
    for (unsigned i = 0; i < COUNT; i++) IS(results[i] == 3 * i + 100);
    /* A launch and copies in a stream, from and to pinned memory, ordered by an event. */
    unsigned *pinned;
    OK(cudaMallocHost((void **)&pinned, sizeof numbers));
    OK(cudaStreamCreate(&stream));
    OK(cudaEventCreate(&event));
    memcpy(pinned, numbers, sizeof numbers);
    OK(cudaMemcpyAsync(at, pinned, sizeof numbers, TO_DEVICE, stream));
    OK(launch(4, 256, arguments, stream));
    OK(cudaMemcpyAsync(pinned, at, sizeof numbers, TO_HOST, stream));
    OK(cudaEventRecord(event, stream));
    OK(cudaEventSynchronize(event));
    OK(cudaStreamSynchronize(stream));
    for (unsigned i = 0; i < COUNT; i++) IS(pinned[i] == 3 * i + 100);
    OK(cudaFreeHost(pinned));
    OK(cudaEventDestroy(event));
    OK(cudaStreamDestroy(stream));
    OK(cudaMemset(at, 0xff, sizeof numbers));
    OK(cudaMemcpy(results, at, sizeof results, ANY));
    IS(results[COUNT - 1] == ~0u);
    OK(cudaFree(at));
    /* After a reset, memory and variables have to be set up again. */
    OK(cudaDeviceReset());
    OK(cudaMalloc(&at, sizeof numbers));
    OK(cudaMemcpyToSymbol(scale, factors, sizeof factors, 0, TO_DEVICE));
    OK(cudaMemset(at, 0, sizeof numbers));
    OK(launch(1, 1, arguments, 0));
    OK(cudaMemcpy(results, at, sizeof results, TO_HOST));
    IS(results[0] == 100 && results[1] == 0);
    printf("added\n");
}

static void rows(void) {
    unsigned char wide[5][16], narrow[5][10];
    size_t pitch;
    void *at;
    for (int i = 0; i < 5; i++) for (int j = 0; j < 16; j++) wide[i][j] = i * 16 + j;
    OK(cudaMallocPitch(&at, &pitch, 10, 5));
    IS(pitch >= 10);
    OK(cudaMemcpy2D(at, pitch, wide, 16, 10, 5, TO_DEVICE));
    OK(cudaMemcpy2D(narrow, 10, at, pitch, 10, 5, ANY));
    for (int i = 0; i < 5; i++) IS(!memcmp(narrow[i], wide[i], 10));
    printf("rows\n");
}

static void errors(void) {
    unsigned number = 5;
    void *at, *arguments[] = {&at, &number};
    pointer_t pointer;
    size_t bytes;
    OK(cudaMalloc(&at, 64));
    FAILS(cudaMemcpy(at, &number, 4, 9), 21);
    FAILS(cudaPeekAtLastError(), 21);
    FAILS(cudaGetLastError(), 21);
    OK(cudaGetLastError());
    FAILS(cudaMemcpyToSymbol(&pointer, &number, 4, 0, TO_DEVICE), 13);
    FAILS(cudaMemcpyToSymbol(&sum, &number, 4, 1, TO_DEVICE), 1);
    FAILS(cudaMemcpyToSymbol(&sum, &number, 4, 0, TO_HOST), 21);
    FAILS(launch(1, 2000, arguments, 0), 9);
    dim3 one = {1, 1, 1};
    FAILS(cudaLaunchKernel((const void *)gone, one, one, arguments, 0, 0), 98);
    FAILS(cudaLaunchKernel((const void *)errors, one, one, arguments, 0, 0), 98);
    FAILS(__cudaPopCallConfiguration(&one, &one, &bytes, &at), 52);
    FAILS(cudaSetDevice(7), 101);
    FAILS(cudaMalloc(0, 4), 1);
    OK(cudaFree(0));
    OK(cudaGetSymbolSize(&bytes, scale));
    IS(bytes == 8);
    OK(cudaPointerGetAttributes(&pointer, at));
    IS(pointer.memory == 2 && pointer.device == 0 && pointer.on_device == at);
    OK(cudaPointerGetAttributes(&pointer, &number));
    IS(pointer.memory == 0 && pointer.on_host == &number);
    /* A missing entry point prints its name once. */
    FAILS(cudaFreeArray(at), 801);
    FAILS(cudaFreeArray(at), 801);
    FAILS(cudaBindTexture(), 801);
    IS(!strcmp(cudaGetErrorName(801), "cudaErrorNotSupported"));
    IS(!strcmp(cudaGetErrorName(12345), "unrecognized error code"));
    /* After a faulting access, every later call returns its error. */
    unsigned long long wrong = 16;
    arguments[0] = &wrong;
    OK(launch(1, 1, arguments, 0));
    FAILS(cudaDeviceSynchronize(), 700);
    FAILS(cudaMalloc(&at, 4), 700);
    FAILS(cudaGetLastError(), 700);
    FAILS(cudaGetLastError(), 700);
    printf("errors\n");
}

/* Captured and explicit graphs, pools and managed memory, as a program for each version calls them. */
static void graphs(void) {
    unsigned numbers[COUNT], results[COUNT], factors[2] = {3, 100}, count = COUNT, few = 10;
    void *at, *stream, *graph, *other, *executable, *nodes[4], *pool;
    void *parameters[] = {&at, &count}, *fewer[] = {&at, &few};
    size_t found = 0, id = 0;
    int version, kind, status;
    kernel_t kernel;
    updated_t updated = {-1, 0, 0};
    OK(cudaRuntimeGetVersion(&version));
    int is_new = version >= 13000, is_old = version < 12000;
    for (unsigned i = 0; i < COUNT; i++) numbers[i] = i;
    OK(cudaMemcpyToSymbol(scale, factors, sizeof factors, 0, TO_DEVICE));
    OK(cudaStreamCreate(&stream));
    OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    OK(cudaMallocFromPoolAsync(&at, sizeof numbers, pool, stream));
    OK(cudaStreamBeginCapture(stream, 0));
    OK(cudaMemcpyAsync(at, numbers, sizeof numbers, TO_DEVICE, stream));
    OK(launch(4, 256, parameters, stream));
    OK(is_new ? cudaStreamGetCaptureInfo(stream, &status, &id, (void *)0, (void *)0, (void *)0, (void *)0)
              : cudaStreamGetCaptureInfo(stream, &status, &id));
    IS(status == 1 && id != 0);
    OK(cudaMemcpyAsync(results, at, sizeof results, TO_HOST, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(is_new ? cudaGraphGetEdges(graph, (void *)0, (void *)0, (void *)0, &found)
              : cudaGraphGetEdges(graph, (void *)0, (void *)0, &found));
    IS(found == 2);
    found = 4;
    OK(cudaGraphGetNodes(graph, nodes, &found));
    IS(found == 3 && nodes[3] == 0);
    OK(cudaGraphNodeGetType(nodes[1], &kind));
    IS(kind == 0);
    OK(is_old ? cudaGraphInstantiate(&executable, graph, (void *)0, (void *)0, (size_t)0)
              : cudaGraphInstantiate(&executable, graph, 0ull));
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < COUNT; i++) numbers[i] = i + round;
        OK(cudaGraphLaunch(executable, stream));
        OK(cudaStreamSynchronize(stream));
        for (unsigned i = 0; i < COUNT; i++) IS(results[i] == 3 * (i + round) + 100);
    }
    OK(cudaGraphKernelNodeGetParams(nodes[1], &kernel));
    IS(kernel.host == (const void *)add && kernel.grid.x == 4 && *(unsigned *)kernel.each[1] == COUNT);
    kernel.each = fewer;
    OK(cudaGraphExecKernelNodeSetParams(executable, nodes[1], &kernel));
    OK(cudaGraphLaunch(executable, stream));
    OK(cudaStreamSynchronize(stream));
    for (unsigned i = 0; i < COUNT; i++) IS(results[i] == (i < few ? 3 * numbers[i] + 100 : numbers[i]));
    OK(is_old ? cudaGraphExecUpdate(executable, graph, &updated.node, &updated.result)
              : cudaGraphExecUpdate(executable, graph, &updated));
    IS(updated.result == 0);
    /* A cycle: a copy before an empty node, and the other way round. */
    OK(cudaGraphCreate(&other, 0));
    OK(cudaGraphAddMemcpyNode1D(&nodes[0], other, 0, 0, at, numbers, sizeof numbers, TO_DEVICE));
    OK(cudaGraphAddEmptyNode(&nodes[1], other, nodes, 1));
    OK(is_new ? cudaGraphAddDependencies(other, nodes + 1, nodes, (void *)0, (size_t)1)
              : cudaGraphAddDependencies(other, nodes + 1, nodes, (size_t)1));
    FAILS(is_old ? cudaGraphInstantiate(&executable, other, &nodes[2], (void *)0, (size_t)0)
                 : cudaGraphInstantiate(&executable, other, 0ull), 1);
    OK(cudaGraphDestroy(other) | cudaGraphDestroy(graph));
    OK(cudaGraphExecDestroy(executable));
    FAILS(cudaGraphLaunch(executable, stream), 1);
    OK(cudaFreeAsync(at, stream));
    /* Managed memory, and a copy of two planes of 2 rows of 12 bytes. */
    OK(cudaMallocManaged(&at, sizeof numbers, 1));
    OK(is_new ? cudaMemPrefetchAsync(at, sizeof numbers, (place_t){1, 0}, 0u, stream)
              : cudaMemPrefetchAsync(at, sizeof numbers, 0, stream));
    OK(is_new ? cudaMemAdvise(at, sizeof numbers, 3, (place_t){2, 0}) : cudaMemAdvise(at, sizeof numbers, 3, -1));
    for (unsigned i = 0; i < COUNT; i++) ((unsigned *)at)[i] = 5 * i;
    OK(launch(4, 256, parameters, stream));
    OK(cudaDeviceSynchronize());
    for (unsigned i = 0; i < COUNT; i++) IS(((unsigned *)at)[i] == 15 * i + 100);
    copy_t copy = {.from = {numbers, 12, 12, 2}, .extent = {12, 2, 2}, .kind = TO_DEVICE};
    OK(cudaMalloc3D(&copy.to, (extent_t){12, 2, 2}));
    OK(cudaMemcpy3D(&copy));
    memset(results, 0, sizeof results);
    copy = (copy_t){.from = copy.to, .to = {results, 12, 12, 2}, .extent = {12, 2, 2}, .kind = TO_HOST};
    OK(cudaMemcpy3D(&copy));
    IS(!memcmp(results, numbers, 48) && results[12] == 0);
    OK(cudaFree(copy.from.at) | cudaFree(at) | cudaStreamDestroy(stream));
    printf("graphs\n");
}

/* The layout of cudaDeviceProp for each version of the runtime. */
static void properties(void) {
    unsigned char bytes[2048];
    int version, count, units, attributes[64], places[] = {384, 388};
    memset(bytes, 0xaa, sizeof bytes);
    memset(attributes, 0xaa, sizeof attributes);
    OK(cudaRuntimeGetVersion(&version));
    OK(cudaGetDeviceCount(&count));
    IS(count == 1);
    int is_newest = version >= 13000;
    OK(version / 1000 == 12 ? cudaGetDeviceProperties_v2(bytes, 0) : cudaGetDeviceProperties(bytes, 0));
    OK(cudaDeviceGetAttribute(&units, 16, 0));
    IS(!memcmp(bytes + places[!is_newest], &units, 4));
    int end = is_newest ? 1008 : version >= 12000 ? 1032 : 728;
    IS(bytes[end] == 0xaa && bytes[end - 1] != 0xaa);
    OK(cudaFuncGetAttributes(attributes, (const void *)add));
    /* Threads of a block, and the compute capability that the PTX is for. */
    IS(attributes[6] == 1024 && attributes[8] == 80);
    /* The struct has 56 bytes in CUDA 11, 144 since CUDA 12. The kernel sets no cluster attributes. */
    int numbers = version < 12000 ? 14 : 36;
    for (int i = 13; i < numbers; i++) IS(attributes[i] == 0);
    IS(attributes[numbers] == (int)0xaaaaaaaa);
    printf("version %d: %s\n", version, bytes);
    if (!is_newest) return;
    /* While CUDA 11 is loaded, the caller may be of it: nothing is written past its structs. */
    IS(dlopen("libcudart.so.11.0", RTLD_NOW));
    FAILS(cudaGetDeviceProperties(bytes, 0), 801);
    memset(attributes, 0xaa, sizeof attributes);
    OK(cudaFuncGetAttributes(attributes, (const void *)add));
    IS(attributes[6] == 1024 && attributes[14] == (int)0xaaaaaaaa);
}

/* Two threads take turns at this barrier. */
static pthread_barrier_t turn;

static void *other(void *unused) {
    unsigned number = 1;
    OK(cudaMemcpyToSymbol(&sum, &number, 4, 0, TO_DEVICE));
    pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn);
    /* The first thread has reset the device: this one goes on in the new context, which has its own variables. */
    OK(cudaMemcpyFromSymbol(&number, &sum, 4, 0, TO_HOST));
    IS(number == 0);
    OK(cudaPeekAtLastError());
    return unused;
}

static void threads(void) {
    unsigned number = 2;
    pthread_t thread;
    pthread_barrier_init(&turn, 0, 2);
    OK(cudaMemcpyToSymbol(&sum, &number, 4, 0, TO_DEVICE));
    pthread_create(&thread, 0, other, 0);
    pthread_barrier_wait(&turn);
    OK(cudaDeviceReset());
    pthread_barrier_wait(&turn);
    pthread_join(thread, 0);
    printf("threads\n");
}

/* A program that calls the driver API too. */
static void contexts(void) {
    unsigned number = 3, flags;
    int is_active;
    void *context, *driver = dlopen("libcuda.so.1", RTLD_NOW);
    IS(driver);
    int (*init)(unsigned) = dlsym(driver, "cuInit"), (*set)(void *) = dlsym(driver, "cuCtxSetCurrent");
    int (*state)(int, unsigned *, int *) = dlsym(driver, "cuDevicePrimaryCtxGetState");
    int (*reset)(int) = dlsym(driver, "cuDevicePrimaryCtxReset_v2");
    int (*retain)(void **, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    OK(init(0));
    OK(state(0, &flags, &is_active));
    IS(!is_active);
    FAILS(cudaInitDevice(9, 0, 0), 101);
    OK(cudaInitDevice(0, 0, 0));
    OK(state(0, &flags, &is_active));
    IS(is_active);
    OK(cudaMemcpyToSymbol(&sum, &number, 4, 0, TO_DEVICE));
    OK(reset(0));
    OK(cudaMemcpyFromSymbol(&number, &sum, 4, 0, TO_HOST));
    IS(number == 0);
    OK(cudaDeviceReset());
    /* A reset also destroys a context that only the program has retained. */
    OK(retain(&context, 0));
    OK(set(context));
    number = 4;
    OK(cudaMemcpyToSymbol(&sum, &number, 4, 0, TO_DEVICE));
    OK(cudaDeviceReset());
    OK(cudaMemcpyFromSymbol(&number, &sum, 4, 0, TO_HOST));
    IS(number == 0);
    printf("contexts\n");
}

/* After a fault every call returns its error, until the device is reset. */
static void reset(void) {
    unsigned count = 1;
    unsigned long long wrong = 16;
    void *at, *arguments[] = {&wrong, &count};
    OK(launch(1, 1, arguments, 0));
    FAILS(cudaDeviceSynchronize(), 700);
    FAILS(cudaGetLastError(), 700);
    FAILS(cudaGetLastError(), 700);
    OK(cudaDeviceReset());
    OK(cudaGetLastError());
    OK(cudaMalloc(&at, sizeof count));
    arguments[0] = &at;
    OK(launch(1, 1, arguments, 0));
    OK(cudaDeviceSynchronize());
    printf("reset\n");
}

static void launches(void) {
    dim3 one = {1, 1, 1}, grid, block;
    size_t shared;
    void *stream, *kernel;
    for (unsigned i = 0; i < 1024; i++) OK(__cudaPushCallConfiguration((dim3){i, 1, 1}, one, 0, 0));
    OK(cudaGetLastError());
    IS(__cudaPushCallConfiguration(one, one, 0, 0) != 0);
    FAILS(cudaGetLastError(), 701);
    OK(__cudaPopCallConfiguration(&grid, &block, &shared, &stream));
    IS(grid.x == 1023);
    FAILS(cudaGetKernel(&kernel, (const void *)add), 801);
    printf("launches\n");
}

/* A second library registers the same addresses and unregisters them. */
static void twice(void) {
    unsigned number = 5;
    void **first = binary;
    OK(cudaMemcpyToSymbol(&sum, &number, 4, 0, TO_DEVICE));
    register_all();
    OK(cudaMemcpyFromSymbol(&number, &sum, 4, 0, TO_HOST));
    IS(number == 0);
    __cudaUnregisterFatBinary(binary);
    binary = first;
    OK(cudaMemcpyFromSymbol(&number, &sum, 4, 0, TO_HOST));
    IS(number == 5);
    printf("twice\n");
}

/* A fat binary that needs a missing feature is refused; other calls still work. */
static void refused(int is_texture) {
    static void *managed;
    unsigned number = 6, count = 1;
    void *at, *arguments[] = {&at, &count};
    if (is_texture) __cudaRegisterTexture(binary, &managed, 0, "pixels", 2, 0, 0);
    else __cudaRegisterManagedVar(binary, &managed, 0, "shared", 0, 4, 0, 0);
    OK(cudaGetLastError());
    OK(cudaMalloc(&at, 4));
    FAILS(cudaMemcpyToSymbol(&sum, &number, 4, 0, TO_DEVICE), 801);
    FAILS(launch(1, 1, arguments, 0), 801);
    printf("refused\n");
}

/* A child that is forked while another thread loads code can exit. */
static void *loading(void *unused) {
    unsigned number = 7;
    OK(cudaMemcpyToSymbol(&sum, &number, 4, 0, TO_DEVICE));
    return unused;
}

static void forks(void) {
    pthread_t thread;
    pthread_create(&thread, 0, loading, 0);
    for (int i = 0; i < 50; i++) {
        pid_t child = fork();
        if (!child) {
            alarm(20);
            __cudaUnregisterFatBinary(binary);
            _exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        OK(status);
    }
    pthread_join(thread, 0);
    printf("forks\n");
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    read_image(arguments[2]);
    register_all();
    if (!strcmp(arguments[1], "run")) run();
    if (!strcmp(arguments[1], "rows")) rows();
    if (!strcmp(arguments[1], "errors")) errors();
    if (!strcmp(arguments[1], "graphs")) graphs();
    if (!strcmp(arguments[1], "properties")) properties();
    if (!strcmp(arguments[1], "threads")) threads();
    if (!strcmp(arguments[1], "contexts")) contexts();
    if (!strcmp(arguments[1], "reset")) reset();
    if (!strcmp(arguments[1], "launches")) launches();
    if (!strcmp(arguments[1], "twice")) twice();
    if (!strcmp(arguments[1], "managed")) refused(0);
    if (!strcmp(arguments[1], "texture")) refused(1);
    if (!strcmp(arguments[1], "forks")) forks();
    if (!strcmp(arguments[1], "load")) {
        int devices = -1, version = -1, has = !cudaGetDeviceCount(&devices);
        IS(has ? devices == 1 : devices == 0);
        OK(cudaDriverGetVersion(&version));
        IS(version > 0 || !has);
        int code = cudaMemcpyToSymbol(&sum, &count, 4, 0, TO_DEVICE);
        /* The error is cached: the driver is not called again. */
        FAILS(cudaMemcpyToSymbol(&sum, &count, 4, 0, TO_DEVICE), code);
        printf("%d %s\n", code, cudaGetErrorName(code));
    }
    __cudaUnregisterFatBinary(binary);
    return 0;
}
