/* Private tables of the driver, as NVIDIA's runtime uses them. */
#include <stdint.h>
#include <stdio.h>

typedef void *CUhandle;
typedef int CUresult;
extern CUresult cuInit(unsigned), cuGetExportTable(const void **, const unsigned char *);
extern CUresult cuDevicePrimaryCtxRetain(CUhandle *, int), cuDevicePrimaryCtxRelease_v2(int), cuCtxSetCurrent(CUhandle);

#define NEED(condition) do { if (!(condition)) { printf("line %d\n", __LINE__); return 1; } } while (0)

static const unsigned char RUNTIME[16] = {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a,
                                          0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9};
static const unsigned char STORAGE[16] = {0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11,
                                          0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93};
static const unsigned char OPTIONAL[16] = {0xf8, 0xcf, 0xf9, 0x51, 0x21, 0x46, 0x8b, 0x4e,
                                           0xb9, 0xe2, 0xfb, 0x46, 0x9e, 0x7c, 0x0d, 0xd9};
static const unsigned char OTHER[16];

static CUhandle freed_context;
static uintptr_t freed;

static void free_value(CUhandle context, void *key, void *value) {
    void *runtime;
    freed_context = context;
    freed = (uintptr_t)key * 100 + (uintptr_t)value;
    /* The driver may be called here. */
    if (cuGetExportTable((const void **)&runtime, RUNTIME)) freed = 0;
}

int main(void) {
    CUresult (**runtime)(), (**storage)();
    const void *none = OTHER;
    CUhandle primary, retained;
    void *value;
    NEED(!cuInit(0));
    NEED(!cuGetExportTable((const void **)&runtime, RUNTIME) && *(size_t *)runtime == 13 * sizeof(void *));
    NEED(!cuGetExportTable((const void **)&storage, STORAGE) && !storage[3]);
    NEED(cuGetExportTable(&none, OPTIONAL) == 801 && !none);
    NEED(runtime[3]() == 801 && runtime[3]() == 801);
    NEED(cuGetExportTable(&none, OTHER) == 801 && cuGetExportTable(&none, OTHER) == 801);
    /* The primary context may be current before it is retained. */
    NEED(!runtime[2](&primary, 0) && runtime[2](&primary, 1) == 101);
    NEED(!cuCtxSetCurrent(primary) && !cuDevicePrimaryCtxRetain(&retained, 0) && retained == primary);
    NEED(storage[2](&value, (void *)0, (void *)7) == 400);
    NEED(!storage[0](primary, (void *)7, (void *)5, free_value) && !storage[0](primary, (void *)8, (void *)6, free_value));
    NEED(!storage[2](&value, (void *)0, (void *)7) && value == (void *)5);
    NEED(!storage[1](primary, (void *)8) && storage[1](primary, (void *)8) == 400);
    NEED(!freed && !cuDevicePrimaryCtxRelease_v2(0));
    NEED(freed_context == primary && freed == 705);
    NEED(storage[2](&value, primary, (void *)7) == 400);
    puts("tables");
    return 0;
}
