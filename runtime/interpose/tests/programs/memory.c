/* Programs that allocate from pools and use managed memory. They check their results. */
#include "calls.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct { int kind, id; } location;
typedef struct {
    int kind, handles;
    location place;
    void *security;
    size_t max_bytes;
    unsigned short usage;
    unsigned char reserved[54];
} pool_properties;

CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUhandle), cuMemFreeAsync(CUdeviceptr, CUhandle);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *, size_t, CUhandle, CUhandle);
CUresult cuMemPoolCreate(CUhandle *, const pool_properties *), cuMemPoolDestroy(CUhandle);
CUresult cuMemPoolTrimTo(CUhandle, size_t), cuMemPoolSetAttribute(CUhandle, int, void *);
CUresult cuMemPoolGetAttribute(CUhandle, int, void *), cuMemPoolGetAccess(int *, CUhandle, location *);
CUresult cuDeviceGetDefaultMemPool(CUhandle *, int), cuDeviceGetMemPool(CUhandle *, int);
CUresult cuDeviceSetMemPool(int, CUhandle);
CUresult cuMemAllocManaged(CUdeviceptr *, size_t, unsigned), cuMemAdvise(CUdeviceptr, size_t, int, int);
CUresult cuMemPrefetchAsync(CUdeviceptr, size_t, int, CUhandle);
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *, void *, unsigned);
CUresult cuMemHostRegister_v2(void *, size_t, unsigned), cuMemHostUnregister(void *);
CUresult cuMemsetD32Async(CUdeviceptr, unsigned, size_t, CUhandle);
CUresult cuMemsetD2D16Async(CUdeviceptr, size_t, unsigned short, size_t, size_t, CUhandle);
CUresult cuStreamAttachMemAsync(CUhandle, CUdeviceptr, size_t, unsigned);

enum { WORDS = 1000 };

/* Ends the program if a condition does not hold. */
#define IS(condition) do { if (!(condition)) { \
    printf("line %d: %s does not hold\n", __LINE__, #condition); exit(1); } } while (0)

static CUhandle scale_kernel(void) {
    CUhandle module;
    DO(cuModuleLoadData(&module, PTX));
    return kernel(module, "scale");
}

/* The value of an attribute of 8 bytes. */
static uint64_t bytes_of(CUhandle pool, int attribute) {
    uint64_t value = ~0ull;
    DO(cuMemPoolGetAttribute(pool, attribute, &value));
    return value;
}

enum { REUSE = 1, THRESHOLD = 4, RESERVED = 5, USED = 7, USED_HIGH = 8 };

static int pools(void) {
    CUhandle stream, own, pool, current, scale;
    CUdeviceptr at, second, third;
    static uint32_t out[WORDS];
    unsigned n = WORDS;
    int value, flag = 0;
    uint64_t threshold = 1 << 20, zero = 0;
    begin();
    scale = scale_kernel();
    DO(cuStreamCreate(&stream, 1));
    DO(cuDeviceGetAttribute(&value, 115, 0));
    IS(value == 1);
    DO(cuDeviceGetDefaultMemPool(&own, 0));
    DO(cuDeviceGetMemPool(&current, 0));
    IS(own == current);
    /* Work, and allocations in its order. */
    for (int round = 0; round < 10; round++) {
        DO(cuMemAllocAsync(&at, WORDS * 4, stream));
        IS(bytes_of(own, USED) == WORDS * 4 && bytes_of(own, RESERVED) >= WORDS * 4);
        DO(cuMemsetD16Async(at, round, WORDS * 2, stream));
        void *params[] = {&at, &n};
        DO(cuLaunchKernel(scale, 4, 1, 1, 256, 1, 1, 0, stream, params, 0));
        DO(cuMemcpyDtoHAsync_v2(out, at, sizeof out, stream));
        DO(cuMemFreeAsync(at, stream));
        DO(cuStreamSynchronize(stream));
        for (int i = 0; i < WORDS; i++) IS(out[i] == (uint32_t)(round << 16 | round) * 3 + i);
    }
    IS(bytes_of(own, USED) == 0 && bytes_of(own, USED_HIGH) == WORDS * 4);
    DO(cuMemPoolSetAttribute(own, USED_HIGH, &zero));
    IS(bytes_of(own, USED_HIGH) == 0);
    DO(cuMemPoolSetAttribute(own, THRESHOLD, &threshold));
    IS(bytes_of(own, THRESHOLD) == 1 << 20);
    DO(cuMemPoolSetAttribute(own, REUSE, &flag));
    value = 7;
    DO(cuMemPoolGetAttribute(own, REUSE, &value));
    IS(value == 0);
    /* A pool of the program, which becomes that of the device. */
    pool_properties properties = {.kind = 1, .place = {1, 0}, .max_bytes = 8000};
    DO(cuMemPoolCreate(&pool, &properties));
    DO(cuDeviceSetMemPool(0, pool));
    DO(cuDeviceGetMemPool(&current, 0));
    IS(current == pool && current != own);
    DO(cuMemAllocAsync(&at, 4000, stream));
    DO(cuMemAllocFromPoolAsync(&second, 1000, own, stream));
    IS(bytes_of(pool, USED) == 4000 && bytes_of(own, USED) == 1000);
    SAY("beyond the maximum", cuMemAllocFromPoolAsync(&third, 4001, pool, stream));
    DO(cuMemAllocFromPoolAsync(&third, 4000, pool, stream));
    DO(cuMemFree_v2(third));
    IS(bytes_of(pool, USED) == 4000);
    DO(cuMemPoolGetAccess(&value, pool, &(location){1, 0}));
    IS(value == 3);
    DO(cuMemPoolTrimTo(pool, 0));
    /* Memory of a pool that was destroyed is still there. */
    DO(cuMemPoolDestroy(pool));
    DO(cuDeviceGetMemPool(&current, 0));
    IS(current == own);
    DO(cuMemsetD8_v2(at, 1, 4000));
    SAY("a pool that is gone", cuMemAllocFromPoolAsync(&third, 16, pool, stream));
    SAY("its attribute", cuMemPoolGetAttribute(pool, USED, &threshold));
    SAY("destroy again", cuMemPoolDestroy(pool));
    SAY("set as current", cuDeviceSetMemPool(0, pool));
    DO(cuMemFreeAsync(at, stream));
    SAY("free again", cuMemFreeAsync(at, stream));
    SAY("an address inside", cuMemFreeAsync(second + 512, stream));
    DO(cuMemFreeAsync(second, 0));
    SAY("no bytes", cuMemAllocAsync(&at, 0, stream));
    SAY("too many bytes", cuMemAllocAsync(&at, (size_t)1 << 60, stream));
    SAY("the pool of the device", cuMemPoolDestroy(own));
    SAY("a stream as a pool", cuMemPoolTrimTo(stream, 0));
    SAY("a pool as a stream", cuMemAllocAsync(&at, 16, own));
    SAY("no attribute", cuMemPoolGetAttribute(own, 9, &threshold));
    SAY("a count", cuMemPoolSetAttribute(own, USED, &zero));
    SAY("another device", cuDeviceGetDefaultMemPool(&pool, 1));
    properties.place.kind = 2;
    SAY("host memory", cuMemPoolCreate(&pool, &properties));
    properties = (pool_properties){.kind = 1, .place = {1, 5}};
    SAY("another device", cuMemPoolCreate(&pool, &properties));
    DO(cuCtxSynchronize());
    return 0;
}

static int managed(void) {
    enum { MANY = 50000 };
    CUhandle scale, stream, event;
    CUdeviceptr at, plain, second;
    static uint32_t in[MANY], out[MANY];
    unsigned n = MANY;
    int value;
    begin();
    scale = scale_kernel();
    DO(cuStreamCreate(&stream, 1));
    DO(cuEventCreate(&event, 2));
    DO(cuDeviceGetAttribute(&value, 83, 0));
    IS(value == 1);
    DO(cuDeviceGetAttribute(&value, 89, 0));
    IS(value == 0);
    DO(cuMemAllocManaged(&at, MANY * 4, 1));
    uint32_t *words = (uint32_t *)(uintptr_t)at;
    void *params[] = {&at, &n};
    DO(cuPointerGetAttribute(&value, 8, at));
    IS(value == 1);
    DO(cuMemAdvise(at, MANY * 4, 3, 0));
    DO(cuMemPrefetchAsync(at, MANY * 4, 0, stream));
    IS(words[0] == 0 && words[MANY - 1] == 0);
    /* The program and the device write in turn. The third round waits for an event. */
    for (int i = 0; i < MANY; i++) words[i] = in[i] = 7 * i;
    for (int round = 0; round < 3; round++) {
        DO(cuLaunchKernel(scale, 200, 1, 1, 256, 1, 1, 0, round ? stream : 0, params, 0));
        if (round == 0) DO(cuCtxSynchronize());
        if (round == 1) DO(cuStreamSynchronize(stream));
        if (round == 2) {
            DO(cuEventRecord(event, stream));
            DO(cuEventSynchronize(event));
        }
        for (int i = 0; i < MANY; i++) IS(words[i] == in[i] * 3 + i);
        for (int i = 0; i < MANY; i++) in[i] = words[i];
        /* A change of one page only. */
        words[30000 + round] = in[30000 + round] = round;
    }
    /* Two launches in one go, and copies from and to memory of both kinds. */
    DO(cuMemAlloc_v2(&plain, MANY * 4));
    DO(cuLaunchKernel(scale, 200, 1, 1, 256, 1, 1, 0, stream, params, 0));
    DO(cuLaunchKernel(scale, 200, 1, 1, 256, 1, 1, 0, stream, params, 0));
    DO(cuMemcpyDtoDAsync_v2(plain, at, MANY * 4, stream));
    DO(cuStreamSynchronize(stream));
    for (int i = 0; i < MANY; i++) IS(words[i] == (in[i] * 3 + i) * 3 + i);
    DO(cuMemcpyDtoH_v2(out, plain, sizeof out));
    IS(!memcmp(out, words, sizeof out));
    memset(out, 0, sizeof out);
    DO(cuMemcpyDtoH_v2(out, at, sizeof out));
    IS(!memcmp(out, words, sizeof out));
    for (int i = 0; i < MANY; i++) words[i] = 11 * i;
    DO(cuMemcpyHtoD_v2(plain, words, MANY * 4));
    DO(cuMemcpyDtoH_v2(out, plain, sizeof out));
    for (int i = 0; i < MANY; i++) IS(out[i] == 11u * i);
    DO(cuMemcpyHtoD_v2(at, in, sizeof in));
    IS(!memcmp(in, words, sizeof in));
    /* A fill or a copy of managed memory without a stream is done when it returns. */
    DO(cuMemsetD32_v2(at, 99, MANY));
    IS(words[0] == 99 && words[MANY - 1] == 99);
    DO(cuMemcpy(at, plain, MANY * 4));
    IS(words[MANY - 1] == 11u * (MANY - 1));
    words[0] = 5;
    DO(cuMemcpyDtoD_v2(at + 4, plain, MANY * 4 - 4));
    IS(words[0] == 5 && words[1] == 0 && words[MANY - 1] == 11u * (MANY - 2));
    DO(cuMemcpyDtoD_v2(plain, at, 4));
    DO(cuMemcpyDtoH_v2(out, plain, 4));
    IS(out[0] == 5);
    for (int i = 0; i < MANY; i++) words[i] = 11 * i;
    /* A second allocation while the device has the first one. */
    DO(cuLaunchKernel(scale, 200, 1, 1, 256, 1, 1, 0, 0, params, 0));
    DO(cuMemAllocManaged(&second, 100, 1));
    *(uint32_t *)(uintptr_t)second = 5;
    IS(words[1] == 11 * 3 + 1);
    DO(cuMemFree_v2(second));
    /* While the device may use it, the program must not: as on devices of this kind, it faults. */
    DO(cuLaunchKernel(scale, 200, 1, 1, 256, 1, 1, 0, 0, params, 0));
    pid_t child = fork();
    if (!child) {
        signal(SIGSEGV, SIG_DFL);
        _exit(*(volatile uint32_t *)words == 1 ? 8 : 9);
    }
    IS(waitpid(child, &value, 0) == child && WIFSIGNALED(value) && WTERMSIG(value) == SIGSEGV);
    DO(cuCtxSynchronize());
    IS(words[1] == (11 * 3 + 1) * 3 + 1);
    DO(cuMemFree_v2(at));
    /* Memory that was freed comes back as zeros. */
    DO(cuMemAllocManaged(&second, MANY * 4, 1));
    for (int i = 0; i < MANY; i++) IS(((uint32_t *)(uintptr_t)second)[i] == 0);
    SAY("for the host alone", cuMemAllocManaged(&at, 16, 2));
    SAY("no flags", cuMemAllocManaged(&at, 16, 0));
    SAY("no bytes", cuMemAllocManaged(&at, 0, 1));
    SAY("too many bytes", cuMemAllocManaged(&at, (size_t)1 << 60, 1));
    SAY("one stream", cuStreamAttachMemAsync(stream, second, 0, 4));
    SAY("all streams", cuStreamAttachMemAsync(stream, second, 0, 1));
    SAY("advice about other memory", cuMemAdvise(plain, 16, 1, 0));
    SAY("no advice", cuMemAdvise(second, 16, 0, 0));
    SAY("prefetch beyond", cuMemPrefetchAsync(second, MANY * 8, 0, stream));
    SAY("prefetch elsewhere", cuMemPrefetchAsync(second, 16, 3, stream));
    SAY("prefetch to the host", cuMemPrefetchAsync(second, 16, -1, stream));
    return 0;
}

/* Kernels and fills that use pinned memory by its address. */
static int mapped(void) {
    CUhandle scale, stream;
    CUdeviceptr at, second, plain;
    static uint32_t registered[WORDS + 3], out[WORDS];
    uint32_t *words, *others;
    unsigned n = WORDS;
    void *params[] = {&at, &n};
    begin();
    scale = scale_kernel();
    DO(cuStreamCreate(&stream, 1));
    DO(cuMemHostAlloc((void **)&words, (WORDS + 1) * 4, 2));
    DO(cuMemHostAlloc((void **)&others, WORDS * 4, 0));
    DO(cuMemHostGetDevicePointer_v2(&at, words + 1, 0));
    DO(cuMemHostGetDevicePointer_v2(&second, others, 0));
    DO(cuMemAlloc_v2(&plain, WORDS * 4));
    /* A fill, and a kernel after it in the stream. */
    words[0] = 7;
    DO(cuMemsetD32Async(at, 5, WORDS, stream));
    DO(cuLaunchKernel(scale, 4, 1, 1, 256, 1, 1, 0, stream, params, 0));
    DO(cuStreamSynchronize(stream));
    IS(words[0] == 7);
    for (int i = 0; i < WORDS; i++) IS(words[i + 1] == 15u + i);
    /* What the program changes beside the kernel's words stays. */
    n = 10;
    DO(cuLaunchKernel(scale, 1, 1, 1, 256, 1, 1, 0, stream, params, 0));
    words[20] = 99;
    DO(cuStreamSynchronize(stream));
    IS(words[1] == 45 && words[10] == 24 * 3 + 9 && words[11] == 25 && words[20] == 99);
    /* A copy that is not complete comes before the kernel. */
    n = WORDS;
    DO(cuMemsetD32Async(plain, 2, WORDS, stream));
    DO(cuMemcpyDtoHAsync_v2(words + 1, plain, WORDS * 4, stream));
    DO(cuLaunchKernel(scale, 4, 1, 1, 256, 1, 1, 0, stream, params, 0));
    DO(cuStreamSynchronize(stream));
    for (int i = 0; i < WORDS; i++) IS(words[i + 1] == 6u + i);
    /* Copies that name it as device memory, and a fill of rows. */
    DO(cuMemcpyDtoD_v2(plain, at, WORDS * 4));
    DO(cuMemcpyDtoD_v2(second, plain, WORDS * 4));
    DO(cuCtxSynchronize());
    IS(others[0] == 6 && others[WORDS - 1] == 6 + WORDS - 1);
    DO(cuMemsetD2D16Async(second, 8, 0x0101, 2, 3, stream));
    DO(cuStreamSynchronize(stream));
    IS(others[0] == 0x01010101 && others[1] == 7 && others[4] == 0x01010101 && others[6] == 12);
    /* Registered memory. */
    DO(cuMemHostRegister_v2(registered + 1, (WORDS + 1) * 4, 0));
    DO(cuMemHostGetDevicePointer_v2(&at, registered + 2, 0));
    DO(cuLaunchKernel(scale, 4, 1, 1, 256, 1, 1, 0, 0, params, 0));
    DO(cuCtxSynchronize());
    IS(registered[1] == 0);
    for (int i = 0; i < WORDS; i++) IS(registered[i + 2] == (uint32_t)i);
    DO(cuMemHostUnregister(registered + 1));
    SAY("not registered", cuMemHostGetDevicePointer_v2(&at, registered + 2, 0));
    SAY("not pinned", cuMemHostGetDevicePointer_v2(&at, out, 0));
    SAY("flags", cuMemHostGetDevicePointer_v2(&at, words, 1));
    SAY("beyond", cuMemsetD32Async((CUdeviceptr)(uintptr_t)words, 1, 1 << 20, stream));
    DO(cuMemFreeHost(words));
    return 0;
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "";
    if (!strcmp(what, "pools")) return pools();
    if (!strcmp(what, "managed")) return managed();
    if (!strcmp(what, "mapped")) return mapped();
    return 2;
}
