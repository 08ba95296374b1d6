/* A program for the CUDA driver, for sessions in the daemon.
 *
 * session flood ROUNDS    launches long kernels in ROUNDS rounds, and prints what they counted
 * session table           variables of a module, in global and constant memory
 * session large           the same with an image of 200 KB
 * session steps BYTES     for each line of its input, changes variables and BYTES bytes of memory by
 *                         addresses that are in memory, and prints what is there
 * session wild            stores to an address that is not the program's */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As in cuda.h. */
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), cuCtxSynchronize(void);
int cuMemAlloc_v2(uint64_t *, size_t), cuModuleLoadData(void **, const void *), cuModuleUnload(void *);
int cuMemcpyHtoD_v2(uint64_t, const void *, size_t), cuMemcpyDtoH_v2(void *, uint64_t, size_t);
int cuModuleGetFunction(void **, void *, const char *), cuMemsetD8_v2(uint64_t, unsigned char, size_t);
int cuModuleGetGlobal_v2(uint64_t *, size_t *, void *, const char *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                   void **, void **);
int cuGetErrorName(int, const char **);

static const char PTX[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    ".global .align 4 .u32 counts[4] = {10, 20, 30, 40};\n"
    ".const .align 4 .u32 factor = 3;\n"
    /* Each thread counts to `rounds`, and adds its result to the word at `to`. */
    ".visible .entry spin(.param .u64 to, .param .u32 rounds) {\n"
    "  .reg .b32 %r<5>; .reg .b64 %d<2>; .reg .pred %p<2>;\n"
    "  ld.param.u64 %d1, [to]; ld.param.u32 %r1, [rounds]; mov.u32 %r2, 0; mov.u32 %r3, 1;\n"
    "again:\n"
    "  mad.lo.u32 %r3, %r3, 1664525, %r2; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, %r1;\n"
    "  @%p1 bra again;\n"
    "  atom.global.add.u32 %r4, [%d1], %r3; ret; }\n"
    /* Multiplies the table by the factor. */
    ".visible .entry scale() {\n"
    "  .reg .b32 %r<4>; .reg .b64 %d<3>;\n"
    "  mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 4; mov.u64 %d2, counts; add.s64 %d1, %d1, %d2;\n"
    "  ld.const.u32 %r2, [factor]; ld.global.u32 %r3, [%d1]; mul.lo.u32 %r3, %r3, %r2;\n"
    "  st.global.u32 [%d1], %r3; ret; }\n"
    /* Changes the words that the words at `from` point to, one for each thread. */
    ".visible .entry follow(.param .u64 from) {\n"
    "  .reg .b32 %r<3>; .reg .b64 %d<4>;\n"
    "  mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 8; ld.param.u64 %d2, [from]; add.s64 %d1, %d1, %d2;\n"
    "  ld.global.u64 %d3, [%d1]; ld.global.u32 %r2, [%d3]; mad.lo.u32 %r2, %r2, 5, %r1;\n"
    "  st.global.u32 [%d3], %r2; ret; }\n"
    ".visible .entry store(.param .u64 to) {\n"
    "  .reg .b64 %d<2>; ld.param.u64 %d1, [to]; st.global.u32 [%d1], 1; ret; }\n";

static void check(const char *call, int status) {
    const char *name = "?";
    if (!status) return;
    cuGetErrorName(status, &name);
    printf("%s: %s\n", call, name);
    fflush(stdout);
    exit(1);
}
#define DO(call) check(#call, call)

static void *module;

static void *kernel(const char *name) {
    void *found;
    DO(cuModuleGetFunction(&found, module, name));
    return found;
}

int main(int count, char **arguments) {
    const char *mode = count > 1 ? arguments[1] : "";
    void *context;
    DO(cuInit(0));
    DO(cuDevicePrimaryCtxRetain(&context, 0));
    DO(cuCtxSetCurrent(context));
    DO(cuModuleLoadData(&module, PTX));
    if (!strcmp(mode, "flood")) {
        unsigned spins = 20000, sum = 0;
        uint64_t at;
        DO(cuMemAlloc_v2(&at, 4));
        DO(cuMemsetD8_v2(at, 0, 4));
        void *params[] = {&at, &spins}, *spin = kernel("spin");
        for (int round = 0; round < atoi(arguments[2]); round++) {
            for (int i = 0; i < 8; i++) DO(cuLaunchKernel(spin, 64, 1, 1, 32, 1, 1, 0, 0, params, 0));
            DO(cuMemcpyDtoH_v2(&sum, at, 4));
            if (round == 0) printf("first %08x\n", sum), fflush(stdout);
        }
        printf("sum %08x\n", sum);
    } else if (!strcmp(mode, "steps")) {
        size_t bytes = strtoul(arguments[2], 0, 10), size;
        unsigned char *host = malloc(bytes);
        uint64_t at, pointers, counts, to[8];
        char line[16];
        DO(cuMemAlloc_v2(&at, bytes));
        DO(cuMemAlloc_v2(&pointers, sizeof to));
        for (size_t i = 0; i < bytes; i++) host[i] = (unsigned char)(i * 7 + i / 4096);
        for (int i = 0; i < 8; i++) to[i] = at + bytes / 8 / 4 * 4 * i;
        DO(cuMemcpyHtoD_v2(at, host, bytes));
        DO(cuMemcpyHtoD_v2(pointers, to, sizeof to));
        DO(cuModuleGetGlobal_v2(&counts, &size, module, "counts"));
        void *params[] = {&pointers}, *scale = kernel("scale"), *follow = kernel("follow");
        for (int step = 0; fgets(line, sizeof line, stdin); step++) {
            uint32_t words[4], sum = 0;
            DO(cuLaunchKernel(scale, 1, 1, 1, 4, 1, 1, 0, 0, 0, 0));
            DO(cuLaunchKernel(follow, 1, 1, 1, 8, 1, 1, 0, 0, params, 0));
            DO(cuMemcpyDtoH_v2(words, counts, sizeof words));
            DO(cuMemcpyDtoH_v2(host, at, bytes));
            for (size_t i = 0; i < bytes; i++) sum = sum * 31 + host[i];
            printf("step %d: %u %u %u %u, %08x\n", step, words[0], words[1], words[2], words[3], sum);
            fflush(stdout);
        }
        free(host);
    } else if (!strcmp(mode, "table") || !strcmp(mode, "large")) {
        uint32_t words[4], seven = 7;
        uint64_t counts, factor;
        size_t bytes;
        if (!strcmp(mode, "large")) {
            static char image[200000];
            memset(image, ' ', sizeof image - 1);
            memcpy(image, PTX, strlen(PTX));
            DO(cuModuleUnload(module));
            DO(cuModuleLoadData(&module, image));
        }
        DO(cuModuleGetGlobal_v2(&counts, &bytes, module, "counts"));
        printf("%d bytes\n", (int)bytes);
        for (int round = 0; round < 2; round++) {
            DO(cuLaunchKernel(kernel("scale"), 1, 1, 1, 4, 1, 1, 0, 0, 0, 0));
            DO(cuMemcpyDtoH_v2(words, counts, sizeof words));
            printf("%u %u %u %u\n", words[0], words[1], words[2], words[3]);
            DO(cuModuleGetGlobal_v2(&factor, &bytes, module, "factor"));
            DO(cuMemcpyHtoD_v2(factor, &seven, 4));
        }
        DO(cuModuleUnload(module));
    } else {
        uint64_t wild = 0x10;
        void *params[] = {&wild};
        DO(cuLaunchKernel(kernel("store"), 1, 1, 1, 1, 1, 1, 0, 0, params, 0));
        DO(cuCtxSynchronize());
    }
    return 0;
}
