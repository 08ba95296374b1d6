/* Reserved addresses, physical memory, and mappings. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef uint64_t CUdeviceptr, handle_t;
typedef int CUresult;
typedef struct { int kind, id; } place_t;
typedef struct { int kind, handles; place_t place; void *rest; unsigned char flags[8]; } properties_t;
typedef struct { place_t place; int flags; } access_t;
extern CUresult cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
extern CUresult cuDeviceGetAttribute(int *, int, int), cuMemFree_v2(CUdeviceptr);
extern CUresult cuMemcpyHtoD_v2(CUdeviceptr, const void *, size_t), cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t);
extern CUresult cuMemGetAllocationGranularity(size_t *, const properties_t *, int);
extern CUresult cuMemAddressReserve(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
extern CUresult cuMemAddressFree(CUdeviceptr, size_t), cuMemUnmap(CUdeviceptr, size_t), cuMemRelease(handle_t);
extern CUresult cuMemCreate(handle_t *, size_t, const properties_t *, unsigned long long);
extern CUresult cuMemMap(CUdeviceptr, size_t, size_t, handle_t, unsigned long long);
extern CUresult cuMemSetAccess(CUdeviceptr, size_t, const access_t *, size_t);
extern CUresult cuMemGetAccess(unsigned long long *, const place_t *, CUdeviceptr);
extern CUresult cuMemRetainAllocationHandle(handle_t *, void *);
extern CUresult cuMemGetAllocationPropertiesFromHandle(properties_t *, handle_t);
extern CUresult cuMemExportToShareableHandle(void *, handle_t, int, unsigned long long);

#define NEED(condition) do { if (!(condition)) { printf("line %d\n", __LINE__); return 1; } } while (0)

int main(void) {
    properties_t properties = {.kind = 1, .place = {1, 0}}, found;
    access_t access = {{1, 0}, 3};
    size_t step = 0;
    int has = 0, descriptor;
    unsigned long long flags = 9;
    uint32_t sent[4] = {1, 2, 3, 4}, back[4] = {0};
    CUdeviceptr at, other;
    handle_t low, high, same;
    void *context;
    NEED(!cuInit(0) && !cuDevicePrimaryCtxRetain(&context, 0) && !cuCtxSetCurrent(context));
    NEED(!cuDeviceGetAttribute(&has, 102, 0) && has == 1);
    NEED(!cuMemGetAllocationGranularity(&step, &properties, 0) && step == 2 << 20);
    NEED(cuMemAddressReserve(&at, step + 1, 0, 0, 0) == 1 && cuMemAddressReserve(&at, 0, 0, 0, 0) == 1);
    NEED(cuMemAddressReserve(&at, 1 << 30, 0, 0, 0) == 2);
    NEED(!cuMemAddressReserve(&at, 4 * step, 0, 0, 0) && at % step == 0);
    NEED(!cuMemAddressReserve(&other, 2 * step, 4 * step, 0, 0) && other % (4 * step) == 0);
    NEED(cuMemCreate(&low, 1, &properties, 0) == 1 && cuMemCreate(&low, step << 20, &properties, 0) == 2);
    NEED(!cuMemCreate(&low, step, &properties, 0) && !cuMemCreate(&high, 2 * step, &properties, 0));
    /* Nothing is mapped yet. */
    NEED(cuMemSetAccess(at, step, &access, 1) == 1 && cuMemGetAccess(&flags, &access.place, at) == 1);
    NEED(!cuMemMap(at, step, 0, low, 0) && !cuMemMap(at + step, 2 * step, 0, high, 0));
    /* Mapped already, beyond the memory, beyond the reservation, and elsewhere. */
    NEED(cuMemMap(at, step, 0, low, 0) == 1 && cuMemMap(at + 3 * step, step, step, low, 0) == 1);
    NEED(cuMemMap(at + 3 * step, 2 * step, 0, high, 0) == 1 && cuMemMap(other, step, 0, low, 0) == 801);
    NEED(!cuMemSetAccess(at, 3 * step, &access, 1) && !cuMemGetAccess(&flags, &access.place, at + step) && flags == 3);
    NEED(!cuMemcpyHtoD_v2(at + step - 8, sent, 16) && !cuMemcpyDtoH_v2(back, at + step - 8, 16));
    NEED(!memcmp(sent, back, 16));
    NEED(!cuMemRetainAllocationHandle(&same, (void *)(uintptr_t)(at + step + 4)) && same == high);
    NEED(!cuMemGetAllocationPropertiesFromHandle(&found, high) && found.kind == 1 && found.place.kind == 1);
    NEED(cuMemExportToShareableHandle(&descriptor, high, 1, 0) == 801);
    /* A handle stays as long as it is held or mapped. */
    NEED(!cuMemRelease(high) && !cuMemRelease(high) && cuMemRelease(high) == 1);
    NEED(cuMemUnmap(at + step, step) == 1 && cuMemAddressFree(at, 4 * step) == 1 && cuMemFree_v2(at) == 1);
    NEED(!cuMemUnmap(at, 3 * step) && cuMemRetainAllocationHandle(&same, (void *)(uintptr_t)(at + step)) == 1);
    NEED(!cuMemMap(at, step, 0, low, 0) && !cuMemUnmap(at, step) && !cuMemRelease(low));
    NEED(cuMemAddressFree(at, step) == 1 && !cuMemAddressFree(at, 4 * step) && !cuMemAddressFree(other, 2 * step));
    NEED(cuMemcpyHtoD_v2(at, sent, 16) == 1);
    puts("virtual memory");
    return 0;
}
