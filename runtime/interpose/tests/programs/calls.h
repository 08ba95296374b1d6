/* The driver's calls that the programs make, and their kernels. With LOOKUP the program finds the
 * calls by dlopen and cuGetProcAddress, otherwise it is linked with the driver. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
typedef uint64_t CUdeviceptr;
typedef void *CUhandle;

#define CALLS(CALL) \
    CALL(cuInit, (unsigned)) \
    CALL(cuDriverGetVersion, (int *)) \
    CALL(cuDeviceGetCount, (int *)) \
    CALL(cuDeviceGet, (int *, int)) \
    CALL(cuDeviceGetName, (char *, int, int)) \
    CALL(cuDeviceGetAttribute, (int *, int, int)) \
    CALL(cuDevicePrimaryCtxRetain, (CUhandle *, int)) \
    CALL(cuCtxSetCurrent, (CUhandle)) \
    CALL(cuCtxGetCurrent, (CUhandle *)) \
    CALL(cuCtxCreate_v2, (CUhandle *, unsigned, int)) \
    CALL(cuCtxDestroy_v2, (CUhandle)) \
    CALL(cuCtxSynchronize, (void)) \
    CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t)) \
    CALL(cuMemFree_v2, (CUdeviceptr)) \
    CALL(cuMemHostAlloc, (void **, size_t, unsigned)) \
    CALL(cuMemFreeHost, (void *)) \
    CALL(cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t)) \
    CALL(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t)) \
    CALL(cuMemcpyDtoD_v2, (CUdeviceptr, CUdeviceptr, size_t)) \
    CALL(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUhandle)) \
    CALL(cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUhandle)) \
    CALL(cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUhandle)) \
    CALL(cuMemcpy, (CUdeviceptr, CUdeviceptr, size_t)) \
    CALL(cuMemsetD8_v2, (CUdeviceptr, unsigned char, size_t)) \
    CALL(cuMemsetD32_v2, (CUdeviceptr, unsigned, size_t)) \
    CALL(cuMemsetD16Async, (CUdeviceptr, unsigned short, size_t, CUhandle)) \
    CALL(cuMemGetAddressRange_v2, (CUdeviceptr *, size_t *, CUdeviceptr)) \
    CALL(cuPointerGetAttribute, (void *, int, CUdeviceptr)) \
    CALL(cuModuleLoadData, (CUhandle *, const void *)) \
    CALL(cuModuleLoadDataEx, (CUhandle *, const void *, unsigned, int *, void **)) \
    CALL(cuModuleUnload, (CUhandle)) \
    CALL(cuModuleGetFunction, (CUhandle *, CUhandle, const char *)) \
    CALL(cuModuleGetGlobal_v2, (CUdeviceptr *, size_t *, CUhandle, const char *)) \
    CALL(cuFuncGetAttribute, (int *, int, CUhandle)) \
    CALL(cuLaunchKernel, (CUhandle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUhandle, \
        void **, void **)) \
    CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *, CUhandle, int, size_t)) \
    CALL(cuStreamCreate, (CUhandle *, unsigned)) \
    CALL(cuStreamDestroy_v2, (CUhandle)) \
    CALL(cuStreamSynchronize, (CUhandle)) \
    CALL(cuStreamQuery, (CUhandle)) \
    CALL(cuStreamWaitEvent, (CUhandle, CUhandle, unsigned)) \
    CALL(cuLaunchHostFunc, (CUhandle, void (*)(void *), void *)) \
    CALL(cuEventCreate, (CUhandle *, unsigned)) \
    CALL(cuEventDestroy_v2, (CUhandle)) \
    CALL(cuEventRecord, (CUhandle, CUhandle)) \
    CALL(cuEventQuery, (CUhandle)) \
    CALL(cuEventSynchronize, (CUhandle)) \
    CALL(cuEventElapsedTime, (float *, CUhandle, CUhandle)) \
    CALL(cuGetErrorName, (CUresult, const char **))

#ifdef LOOKUP
#include <dlfcn.h>
#define DECLARE(name, types) static CUresult (*name) types;
CALLS(DECLARE)
typedef CUresult (*lookup)(const char *, void **, int, uint64_t, int *);

/* Finds every call by its name, without the version suffix if it has one. */
static void find_calls(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        printf("%s\n", dlerror());
        exit(1);
    }
    lookup find = (lookup)dlsym(library, "cuGetProcAddress_v2");
    char name[128];
    int how = -1;
#define FIND(symbol, types) \
    strcpy(name, #symbol); \
    if (strlen(name) > 3 && !strcmp(name + strlen(name) - 3, "_v2")) name[strlen(name) - 3] = 0; \
    if (find(name, (void **)&symbol, 12080, 0, &how) || how) { printf("%s is missing\n", name); exit(1); }
    CALLS(FIND)
    if (find("cuNothing", (void **)&name, 12080, 0, &how) != 500 || how != 1) exit(1);
}
#else
#define DECLARE(name, types) extern CUresult name types;
CALLS(DECLARE)
static void find_calls(void) {}
#endif

/* Ends the program if a call fails. */
#define DO(call) do { CUresult code = (call); if (code) { \
    const char *text = 0; cuGetErrorName(code, &text); \
    printf("line %d: %s: %s\n", __LINE__, #call, text ? text : "?"); exit(1); } } while (0)

/* Prints what a call returns. */
#define SAY(what, call) printf("%s: %d\n", what, (int)(call))

/* Ends the program if a call returns something else. */
#define SAY_IF_NOT(expected, call) do { CUresult code = (call); if (code != (expected)) { \
    printf("line %d: %s: %d\n", __LINE__, #call, code); exit(1); } } while (0)

static const char PTX[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    ".visible .global .align 4 .u32 factor = 3;\n"
    ".visible .entry add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)\n"
    "{ .reg .pred %p; .reg .b32 %r<6>; .reg .f32 %f<4>; .reg .b64 %d<8>;\n"
    "  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.s32 %r1, %r1, %r2, %r3;\n"
    "  ld.param.u32 %r4, [n]; setp.ge.u32 %p, %r1, %r4; @%p bra done;\n"
    "  ld.param.u64 %d1, [a]; ld.param.u64 %d2, [b]; ld.param.u64 %d3, [c]; mul.wide.u32 %d4, %r1, 4;\n"
    "  add.s64 %d1, %d1, %d4; add.s64 %d2, %d2, %d4; add.s64 %d3, %d3, %d4;\n"
    "  ld.global.f32 %f1, [%d1]; ld.global.f32 %f2, [%d2]; add.f32 %f3, %f1, %f2; st.global.f32 [%d3], %f3;\n"
    "done: ret; }\n"
    ".visible .entry scale(.param .u64 words, .param .u32 n)\n"
    "{ .reg .pred %p; .reg .b32 %r<8>; .reg .b64 %d<4>;\n"
    "  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.s32 %r1, %r1, %r2, %r3;\n"
    "  ld.param.u32 %r4, [n]; setp.ge.u32 %p, %r1, %r4; @%p bra over;\n"
    "  ld.param.u64 %d1, [words]; mul.wide.u32 %d2, %r1, 4; add.s64 %d1, %d1, %d2;\n"
    "  ld.global.u32 %r5, [factor]; ld.global.u32 %r6, [%d1]; mad.lo.u32 %r6, %r6, %r5, %r1;\n"
    "  st.global.u32 [%d1], %r6;\n"
    "over: ret; }\n"
    ".visible .entry store(.param .u64 address)\n"
    "{ .reg .b64 %d1; ld.param.u64 %d1, [address]; st.global.u64 [%d1], %d1; ret; }\n";

/* Makes the primary context current. */
static void begin(void) {
    CUhandle context;
    find_calls();
    DO(cuInit(0));
    DO(cuDevicePrimaryCtxRetain(&context, 0));
    DO(cuCtxSetCurrent(context));
}

__attribute__((unused)) static CUhandle kernel(CUhandle module, const char *name) {
    CUhandle function;
    DO(cuModuleGetFunction(&function, module, name));
    return function;
}

/* A checksum of bytes. */
__attribute__((unused)) static uint32_t digest(const void *data, size_t bytes) {
    uint32_t sum = 2166136261u;
    for (size_t i = 0; i < bytes; i++) sum = (sum ^ ((const uint8_t *)data)[i]) * 16777619u;
    return sum;
}
