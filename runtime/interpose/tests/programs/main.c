/* A program for the CUDA driver. Its output is the same with a local device and in a session. */
#include "calls.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT 10000

/* The sum of two vectors, and facts about device and kernel. */
static int add(void) {
    static float a[COUNT], b[COUNT], c[COUNT];
    CUdeviceptr at[3], base;
    CUhandle module, again, sum;
    int count, version, units, threads, blocks, kind;
    char name[64];
    size_t bytes;
    begin();
    DO(cuDriverGetVersion(&version));
    DO(cuDeviceGetCount(&count));
    DO(cuDeviceGetName(name, sizeof name, 0));
    DO(cuDeviceGetAttribute(&units, 16, 0));
    printf("%d device, %s, CUDA %d, %d units\n", count, name, version, units);
    for (int i = 0; i < COUNT; i++) a[i] = i * 0.5f, b[i] = 1000 - i * 0.25f;
    for (int i = 0; i < 3; i++) DO(cuMemAlloc_v2(&at[i], sizeof a));
    DO(cuMemcpyHtoD_v2(at[0], a, sizeof a));
    DO(cuMemcpyHtoD_v2(at[1], b, sizeof b));
    DO(cuModuleLoadData(&module, PTX));
    DO(cuModuleLoadData(&again, PTX));
    sum = kernel(module, "add");
    unsigned n = COUNT;
    void *params[] = {&at[0], &at[1], &at[2], &n};
    DO(cuLaunchKernel(sum, (COUNT + 255) / 256, 1, 1, 256, 1, 1, 0, 0, params, 0));
    DO(cuMemcpyDtoH_v2(c, at[2], sizeof c));
    for (int i = 0; i < COUNT; i++) if (c[i] != a[i] + b[i]) { printf("%d is wrong\n", i); return 1; }
    printf("sum %08x\n", digest(c, sizeof c));
    /* The same with one parameter buffer, and a kernel of the second module. */
    struct { CUdeviceptr a, b, c; unsigned n; } buffer = {at[2], at[1], at[0], n};
    /* Without the padding behind the last parameter, which NVIDIA's driver refuses. */
    size_t size = 3 * sizeof(CUdeviceptr) + sizeof n;
    void *extra[] = {(void *)1, &buffer, (void *)2, &size, 0};
    DO(cuLaunchKernel(kernel(again, "add"), (COUNT + 63) / 64, 1, 1, 64, 1, 1, 0, 0, 0, extra));
    DO(cuMemcpyDtoH_v2(c, at[0], sizeof c));
    printf("sum %08x\n", digest(c, sizeof c));
    size = sizeof buffer;
    SAY("padded", cuLaunchKernel(kernel(again, "add"), 1, 1, 1, 64, 1, 1, 0, 0, 0, extra));
    /* NVIDIA's runtime asks for all of them, and fails if one is missing. */
    for (int i = 15; i >= 0; i--) DO(cuFuncGetAttribute(&threads, i, sum));
    SAY("no attribute", cuFuncGetAttribute(&blocks, 16, sum));
    DO(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, sum, 256, 0));
    printf("%d threads, %d blocks\n", threads, blocks);
    DO(cuMemGetAddressRange_v2(&base, &bytes, at[1] + 5));
    DO(cuPointerGetAttribute(&kind, 2, at[1]));
    printf("offset %d, %d bytes, kind %d\n", (int)(at[1] - base), (int)bytes, kind);
    DO(cuModuleUnload(module));
    DO(cuModuleUnload(again));
    for (int i = 0; i < 3; i++) DO(cuMemFree_v2(at[i]));
    return 0;
}

/* Many launches, each with a copy to the device and one to the host. */
static int loop(int launches) {
    uint32_t words[64];
    CUdeviceptr at;
    CUhandle module, scale;
    unsigned n = 64;
    begin();
    DO(cuModuleLoadData(&module, PTX));
    scale = kernel(module, "scale");
    DO(cuMemAlloc_v2(&at, sizeof words));
    for (int i = 0; i < 64; i++) words[i] = i;
    for (int i = 0; i < launches; i++) {
        void *params[] = {&at, &n};
        words[i % 64] += i;
        DO(cuMemcpyHtoD_v2(at, words, sizeof words));
        DO(cuLaunchKernel(scale, 1, 1, 1, 64, 1, 1, 0, 0, params, 0));
        DO(cuMemcpyDtoH_v2(words, at, sizeof words));
    }
    printf("%d launches %08x\n", launches, digest(words, sizeof words));
    return 0;
}

static void add_one(void *number) {
    ++*(int *)number;
}

/* Several streams, events between them, pinned memory, fills, a variable, a host function. */
static int streams(void) {
    enum { STREAMS = 3, WORDS = 4096 };
    CUhandle stream[STREAMS], begun, done[STREAMS], module, scale;
    CUdeviceptr at[STREAMS], all, factor;
    uint32_t *pinned, five = 5, read = 0;
    unsigned n = WORDS;
    size_t bytes;
    float milliseconds = -1;
    int calls = 0;
    begin();
    DO(cuModuleLoadData(&module, PTX));
    scale = kernel(module, "scale");
    DO(cuModuleGetGlobal_v2(&factor, &bytes, module, "factor"));
    DO(cuMemcpyDtoH_v2(&read, factor, 4));
    printf("factor %u of %d bytes\n", read, (int)bytes);
    DO(cuMemcpyHtoD_v2(factor, &five, 4));
    DO(cuMemHostAlloc((void **)&pinned, STREAMS * WORDS * 4, 0));
    memset(pinned, 0, STREAMS * WORDS * 4);
    DO(cuMemAlloc_v2(&all, STREAMS * WORDS * 4));
    DO(cuMemsetD8_v2(all, 1, STREAMS * WORDS * 4));
    DO(cuMemcpyDtoD_v2(all + 64, all, 64));
    DO(cuStreamSynchronize(0));
    DO(cuEventCreate(&begun, 0));
    for (int i = 0; i < STREAMS; i++) {
        DO(cuStreamCreate(&stream[i], i & 1));
        DO(cuEventCreate(&done[i], i == 1 ? 2 : 0));
        DO(cuMemAlloc_v2(&at[i], WORDS * 4));
    }
    DO(cuEventRecord(begun, stream[0]));
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < STREAMS; i++) {
            void *params[] = {&at[i], &n};
            /* Each stream continues with the result of the previous one. */
            if (round == 0 && i == 0) DO(cuMemsetD16Async(at[0], 0x0203, WORDS * 2, stream[0]));
            if (i > 0) {
                DO(cuStreamWaitEvent(stream[i], done[i - 1], 0));
                DO(cuMemcpyHtoDAsync_v2(at[i], pinned, 16, stream[i]));
                DO(cuMemcpyDtoDAsync_v2(at[i], at[i - 1], WORDS * 4, stream[i]));
            }
            DO(cuLaunchKernel(scale, WORDS / 128, 1, 1, 128, 1, 1, 0, stream[i], params, 0));
            DO(cuEventRecord(done[i], stream[i]));
        }
        DO(cuStreamWaitEvent(stream[0], done[STREAMS - 1], 0));
        DO(cuEventSynchronize(done[STREAMS - 1]));
    }
    for (int i = 0; i < STREAMS; i++) DO(cuMemcpyDtoHAsync_v2(pinned + i * WORDS, at[i], WORDS * 4, stream[i]));
    /* The copied data goes to the device again, in stream order. */
    DO(cuStreamSynchronize(stream[1]));
    DO(cuStreamSynchronize(stream[2]));
    DO(cuMemcpyHtoDAsync_v2(all, pinned, WORDS * 4, stream[0]));
    DO(cuLaunchHostFunc(stream[0], add_one, &calls));
    DO(cuEventRecord(done[0], stream[0]));
    DO(cuCtxSynchronize());
    printf("words %08x, %d call\n", digest(pinned, STREAMS * WORDS * 4), calls);
    DO(cuMemcpy((CUdeviceptr)(uintptr_t)pinned, all, STREAMS * WORDS * 4));
    printf("words %08x\n", digest(pinned, STREAMS * WORDS * 4));
    DO(cuEventElapsedTime(&milliseconds, begun, done[0]));
    printf("%s\n", milliseconds >= 0 && milliseconds < 600000 ? "time passed" : "no time");
    SAY("query", cuStreamQuery(stream[0]));
    SAY("query", cuEventQuery(done[2]));
    SAY("untimed", cuEventElapsedTime(&milliseconds, begun, done[1]));
    for (int i = 0; i < STREAMS; i++) {
        DO(cuStreamDestroy_v2(stream[i]));
        DO(cuEventDestroy_v2(done[i]));
    }
    DO(cuMemFreeHost(pinned));
    return 0;
}

/* Calls that fail, and what they return. */
static int errors(void) {
    CUhandle module, function, context = 0, stream;
    CUdeviceptr at, other;
    uint32_t words[16] = {0};
    CUdeviceptr wild = 0x10;
    void *params[] = {&wild};
    find_calls();
    SAY("before cuInit", cuMemAlloc_v2(&at, 16));
    DO(cuInit(0));
    SAY("without a context", cuMemAlloc_v2(&at, 16));
    DO(cuCtxCreate_v2(&context, 0, 0));
    SAY("no bytes", cuMemAlloc_v2(&at, 0));
    SAY("null", cuMemAlloc_v2(0, 16));
    SAY("too much", cuMemAlloc_v2(&at, (size_t)1 << 50));
    SAY("device", cuDeviceGet(&(int){0}, 9));
    DO(cuMemAlloc_v2(&at, 64));
    DO(cuMemAlloc_v2(&other, 64));
    SAY("beyond", cuMemcpyHtoD_v2(at, words, 65));
    SAY("beyond", cuMemcpyDtoH_v2(words, at + 32, 33));
    SAY("wild", cuMemcpyHtoD_v2(0x1000, words, 4));
    SAY("unaligned", cuMemsetD32_v2(at + 1, 0, 1));
    SAY("inside", cuMemFree_v2(at + 16));
    DO(cuMemFree_v2(other));
    SAY("twice", cuMemFree_v2(other));
    SAY("freed", cuMemcpyDtoH_v2(words, other, 4));
    char log[512] = "";
    int names[] = {5, 6};
    void *values[] = {log, (void *)sizeof log};
    SAY("no PTX", cuModuleLoadDataEx(&module, ".version 7.0\n.target sm_80\n.address_size 64\nnonsense", 2, names, values));
    printf("a log: %s\n", log[0] ? "yes" : "no");
    SAY("new PTX", cuModuleLoadData(&module, ".version 99.0\n.target sm_80\n.address_size 64\n"));
    DO(cuModuleLoadData(&module, PTX));
    SAY("no kernel", cuModuleGetFunction(&function, module, "nothing"));
    SAY("no variable", cuModuleGetGlobal_v2(&other, 0, module, "nothing"));
    SAY("no module", cuModuleGetFunction(&function, (CUhandle)77, "add"));
    function = kernel(module, "store");
    SAY("no kernel", cuLaunchKernel((CUhandle)77, 1, 1, 1, 1, 1, 1, 0, 0, params, 0));
    SAY("no blocks", cuLaunchKernel(function, 0, 1, 1, 1, 1, 1, 0, 0, params, 0));
    SAY("large block", cuLaunchKernel(function, 1, 1, 1, 2048, 1, 1, 0, 0, params, 0));
    SAY("no parameters", cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0));
    SAY("stream", cuStreamSynchronize((CUhandle)77));
    DO(cuStreamCreate(&stream, 1));
    DO(cuStreamDestroy_v2(stream));
    SAY("destroyed", cuStreamSynchronize(stream));
    SAY("event", cuEventRecord((CUhandle)77, 0));
    DO(cuMemcpyDtoH_v2(words, at, 64));
    /* This launch faults; every call after it returns the error. */
    SAY("wild store", cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, params, 0));
    SAY("synchronize", cuCtxSynchronize());
    SAY("copy", cuMemcpyDtoH_v2(words, at, 4));
    SAY("allocate", cuMemAlloc_v2(&other, 64));
    SAY("launch", cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, params, 0));
    return 0;
}

#ifndef LOOKUP
typedef struct {
    size_t src_x, src_y;
    unsigned src_kind;
    const void *src_host;
    CUdeviceptr src_device;
    void *src_array;
    size_t src_pitch, dst_x, dst_y;
    unsigned dst_kind;
    void *dst_host;
    CUdeviceptr dst_device;
    void *dst_array;
    size_t dst_pitch, width, height;
} rows_copy;
extern CUresult cuMemcpy2D_v2(const rows_copy *);
extern CUresult cuMemAllocPitch_v2(CUdeviceptr *, size_t *, size_t, size_t, unsigned);
extern CUresult cuMemsetD2D8_v2(CUdeviceptr, size_t, unsigned char, size_t, size_t);
extern CUresult cuMemcpyPeer(CUdeviceptr, CUhandle, CUdeviceptr, CUhandle, size_t);
extern CUresult cuCtxEnablePeerAccess(CUhandle, unsigned);
extern CUresult cuLibraryLoadData(CUhandle *, const void *, int *, void **, unsigned, int *, void **, unsigned);
extern CUresult cuLibraryGetKernel(CUhandle *, CUhandle, const char *);
extern CUresult cuLibraryUnload(CUhandle);
extern CUresult cuFuncGetName(const char **, CUhandle);
extern CUresult cuOccupancyMaxPotentialBlockSize(int *, int *, CUhandle, void *, size_t, int);

/* 2D copies, and kernels of a library. Some drivers that run the other tests lack them. */
static int rows(void) {
    enum { WIDTH = 12, HEIGHT = 5 };
    uint8_t sent[WIDTH * HEIGHT], back[16 * HEIGHT];
    CUdeviceptr at;
    CUhandle library, sum;
    const char *name;
    size_t pitch;
    int grid, block;
    begin();
    DO(cuMemAllocPitch_v2(&at, &pitch, WIDTH, HEIGHT, 4));
    if (pitch < WIDTH || pitch % 512) return 1;
    for (int i = 0; i < WIDTH * HEIGHT; i++) sent[i] = i;
    DO(cuMemcpy2D_v2(&(rows_copy){.src_kind = 1, .src_host = sent, .dst_kind = 2, .dst_device = at,
        .dst_pitch = pitch, .width = WIDTH, .height = HEIGHT}));
    DO(cuMemsetD2D8_v2(at + 1, pitch, 99, 2, HEIGHT));
    memset(back, 0, sizeof back);
    DO(cuMemcpy2D_v2(&(rows_copy){.src_kind = 2, .src_device = at, .src_pitch = pitch, .dst_kind = 1,
        .dst_host = back, .dst_x = 3, .dst_pitch = 16, .width = WIDTH, .height = HEIGHT}));
    for (int row = 0; row < HEIGHT; row++)
        for (int i = 0; i < 16; i++) {
            int from = i - 3;
            uint8_t expected = from < 0 || from >= WIDTH ? 0 : from == 1 || from == 2 ? 99 : row * WIDTH + from;
            if (back[row * 16 + i] != expected) { printf("row %d, byte %d\n", row, i); return 1; }
        }
    DO(cuMemcpyPeer(at + 64, 0, at, 0, 16));
    SAY_IF_NOT(201, cuMemcpyPeer(at, (CUhandle)77, at, 0, 16));
    SAY_IF_NOT(801, cuCtxEnablePeerAccess(0, 0));
    SAY_IF_NOT(801, cuCtxEnablePeerAccess(0, 0));
    DO(cuLibraryLoadData(&library, PTX, 0, 0, 0, 0, 0, 0));
    DO(cuLibraryGetKernel(&sum, library, "add"));
    DO(cuFuncGetName(&name, sum));
    if (strcmp(name, "add")) return 1;
    DO(cuOccupancyMaxPotentialBlockSize(&grid, &block, sum, 0, 0, 0));
    if (grid < 1 || block != 1024) { printf("%d blocks of %d\n", grid, block); return 1; }
    CUdeviceptr words;
    unsigned none = 0;
    DO(cuMemAlloc_v2(&words, 16));
    void *params[] = {&words, &words, &words, &none};
    DO(cuLaunchKernel(sum, 1, 1, 1, 32, 1, 1, 0, 0, params, 0));
    DO(cuCtxSynchronize());
    DO(cuLibraryUnload(library));
    printf("rows and libraries\n");
    return 0;
}
#endif

/* In the child of a fork every call fails; the parent continues. */
static int forked(void) {
    CUdeviceptr at;
    uint32_t word = 7;
    int status = 0;
    begin();
    DO(cuMemAlloc_v2(&at, 4));
    DO(cuMemcpyHtoD_v2(at, &word, 4));
    pid_t child = fork();
    if (child == 0) {
        int all = cuInit(0) == 3 && cuCtxSynchronize() == 3 && cuMemAlloc_v2(&at, 4) == 3;
        _exit(all ? 42 : 1);
    }
    waitpid(child, &status, 0);
    word = 0;
    DO(cuMemcpyDtoH_v2(&word, at, 4));
    printf("child %d, parent %u\n", WEXITSTATUS(status), word);
    return 0;
}

static CUhandle shared_context, shared_kernel;

static void *work(void *argument) {
    enum { WORDS = 512 };
    uint32_t words[WORDS], expected[WORDS];
    CUdeviceptr at;
    CUhandle stream;
    unsigned n = WORDS;
    DO(cuCtxSetCurrent(shared_context));
    DO(cuStreamCreate(&stream, 1));
    for (int round = 0; round < 25; round++) {
        DO(cuMemAlloc_v2(&at, sizeof words));
        void *params[] = {&at, &n};
        for (int i = 0; i < WORDS; i++) words[i] = i * 31 + round + (int)(intptr_t)argument;
        for (int i = 0; i < WORDS; i++) expected[i] = words[i] * 3 + i;
        DO(cuMemcpyHtoDAsync_v2(at, words, sizeof words, stream));
        DO(cuLaunchKernel(shared_kernel, WORDS / 64, 1, 1, 64, 1, 1, 0, stream, params, 0));
        DO(cuMemcpyDtoHAsync_v2(words, at, sizeof words, stream));
        DO(cuStreamSynchronize(stream));
        if (memcmp(words, expected, sizeof words)) { printf("wrong\n"); exit(1); }
        DO(cuMemFree_v2(at));
    }
    return 0;
}

/* Threads that share a context. */
static int threads(void) {
    pthread_t thread[4];
    CUhandle module;
    begin();
    DO(cuCtxGetCurrent(&shared_context));
    DO(cuModuleLoadData(&module, PTX));
    shared_kernel = kernel(module, "scale");
    for (intptr_t i = 0; i < 4; i++) pthread_create(&thread[i], 0, work, (void *)(i * 1000));
    for (int i = 0; i < 4; i++) pthread_join(thread[i], 0);
    printf("4 threads\n");
    return 0;
}

static CUdeviceptr last;

static void at_exit(void) {
    uint32_t word = 0;
    /* Some drivers are unloaded by now; none may crash. */
    cuMemcpyDtoH_v2(&word, last, 4);
    cuMemFree_v2(last);
    cuCtxSynchronize();
}

/* Calls at exit, while recorded calls have not been sent. */
static int exiting(void) {
    begin();
    atexit(at_exit);
    DO(cuMemAlloc_v2(&last, 1 << 20));
    DO(cuMemsetD8_v2(last, 1, 1 << 20));
    printf("exits\n");
    return 0;
}

/* Holds memory and a stream with work until it is killed. */
static int held(void) {
    CUdeviceptr at;
    CUhandle stream;
    begin();
    DO(cuMemAlloc_v2(&at, 1 << 20));
    DO(cuStreamCreate(&stream, 1));
    DO(cuMemsetD8_v2(at, 1, 1 << 20));
    DO(cuCtxSynchronize());
    printf("holds\n");
    fflush(stdout);
    for (;;) {
        DO(cuMemsetD8_v2(at, 1, 1 << 20));
        DO(cuStreamSynchronize(stream));
    }
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "";
    if (!strcmp(what, "add")) return add();
    if (!strcmp(what, "loop")) return loop(count > 2 ? atoi(words[2]) : 500);
    if (!strcmp(what, "streams")) return streams();
#ifndef LOOKUP
    if (!strcmp(what, "rows")) return rows();
#endif
    if (!strcmp(what, "errors")) return errors();
    if (!strcmp(what, "fork")) return forked();
    if (!strcmp(what, "threads")) return threads();
    if (!strcmp(what, "exit")) return exiting();
    if (!strcmp(what, "hold")) return held();
    printf("one of add, loop, streams, errors, fork, threads, exit, hold\n");
    return 2;
}
