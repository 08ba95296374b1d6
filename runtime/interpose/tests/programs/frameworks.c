/* Calls that PyTorch, JAX, Triton and numba need by name: libraries of theirs do not load without
   them. Prints what each returns. */
#include "calls.h"

typedef struct { unsigned id; char pad[4]; unsigned value[16]; } attribute;
typedef struct {
    unsigned grid[3], block[3], shared;
    CUhandle stream;
    attribute *attributes;
    unsigned count;
} configuration;
typedef struct { void *affinity; int count; void *cig; } context_params;

CUresult cuCtxCreate_v3(CUhandle *, void *, int, unsigned, int);
CUresult cuCtxCreate_v4(CUhandle *, context_params *, unsigned, int), cuCtxResetPersistingL2Cache(void);
CUresult cuLibraryLoadData(CUhandle *, const void *, int *, void **, unsigned, int *, void **, unsigned);
CUresult cuLibraryGetKernel(CUhandle *, CUhandle, const char *), cuKernelGetLibrary(CUhandle *, CUhandle);
CUresult cuKernelGetName(const char **, CUhandle), cuKernelSetCacheConfig(CUhandle, int, int);
CUresult cuLaunchKernelEx(const configuration *, CUhandle, void **, void **);
CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *, int *, CUhandle, size_t (*)(int), size_t, int, unsigned);
CUresult cuOccupancyMaxActiveClusters(int *, CUhandle, const configuration *);
CUresult cuLinkCreate_v2(unsigned, int *, void **, CUhandle *), cuLinkDestroy(CUhandle);
CUresult cuTensorMapEncodeTiled(void *, int, uint32_t, void *, const uint64_t *, const uint64_t *,
    const uint32_t *, const uint32_t *, int, int, int, int);
CUresult cuMulticastCreate(uint64_t *, const void *), cuStreamGetAttribute(CUhandle, int, void *);

static void launch(CUhandle kernel) {
    CUdeviceptr at;
    unsigned words[4] = {1, 2, 3, 4}, count = 4;
    void *params[] = {&at, &count};
    /* May begin early, prefers shared memory: hints. A cluster of two blocks is none. */
    attribute attributes[] = {{.id = 6, .value = {1}}, {.id = 14, .value = {100}}, {.id = 4, .value = {2, 1, 1}}};
    configuration launch = {{1, 1, 1}, {4, 1, 1}, 0, 0, attributes, 2};
    DO(cuMemAlloc_v2(&at, sizeof words));
    DO(cuMemcpyHtoD_v2(at, words, sizeof words));
    DO(cuLaunchKernelEx(&launch, kernel, params, 0));
    DO(cuMemcpyDtoH_v2(words, at, sizeof words));
    printf("launched: %u %u %u %u\n", words[0], words[1], words[2], words[3]);
    launch.count = 3;
    SAY("a cluster", cuLaunchKernelEx(&launch, kernel, params, 0));
}

int main(void) {
    CUhandle context, current, library, kernel, of;
    const char *name;
    int grid = 0, block = 0, number = -1;
    uint64_t handle, words[16];
    context_params params = {0, 0, 0}, limited = {words, 1, 0};
    begin();
    DO(cuCtxCreate_v3(&context, 0, 0, 0, 0));
    DO(cuCtxCreate_v4(&context, 0, 0, 0));
    DO(cuCtxCreate_v4(&context, &params, 0, 0));
    DO(cuCtxGetCurrent(&current));
    printf("current: %d\n", context == current);
    SAY("fewer compute units", cuCtxCreate_v4(&context, &limited, 0, 0));
    DO(cuCtxResetPersistingL2Cache());
    DO(cuLibraryLoadData(&library, PTX, 0, 0, 0, 0, 0, 0));
    DO(cuLibraryGetKernel(&kernel, library, "scale"));
    DO(cuKernelGetName(&name, kernel));
    DO(cuKernelGetLibrary(&of, kernel));
    printf("%s of the library: %d\n", name, of == library);
    DO(cuKernelSetCacheConfig(kernel, 1, 0));
    DO(cuOccupancyMaxPotentialBlockSizeWithFlags(&grid, &block, kernel, 0, 0, 0, 0));
    printf("occupied: %d\n", grid > 0 && block > 0);
    launch(kernel);
    DO(cuDeviceGetAttribute(&number, 120, 0));
    printf("launches of clusters: %d\n", number);
    SAY("clusters", cuOccupancyMaxActiveClusters(&number, kernel, 0));
    SAY("link", cuLinkCreate_v2(0, 0, 0, &of));
    SAY("tensor map", cuTensorMapEncodeTiled(words, 0, 1, 0, words, 0, 0, 0, 0, 0, 0, 0));
    SAY("multicast", cuMulticastCreate(&handle, words));
    SAY("attribute of a stream", cuStreamGetAttribute(0, 1, words));
    return 0;
}
