/* A program for the CUDA driver that does the same work in each run.
 *
 * stored once SEED        works once, with data from SEED, and prints the result
 * stored loop ROUNDS      repeats the work with other data
 * stored state ROUNDS     repeats work that continues with the result of the round before
 * stored shapes ROUNDS    repeats the work; some rounds have other sizes, or more of it
 * stored sizes COUNT      works with COUNT numbers
 * stored pointers SEED    stores a pointer in memory, and reads through it
 * stored addresses SEED   copies an address to the device */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As in cuda.h. */
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
int cuMemAlloc_v2(uint64_t *, size_t), cuMemFree_v2(uint64_t), cuModuleLoadData(void **, const void *);
int cuMemcpyHtoD_v2(uint64_t, const void *, size_t), cuMemcpyDtoH_v2(void *, uint64_t, size_t);
int cuModuleGetFunction(void **, void *, const char *), cuMemsetD32_v2(uint64_t, unsigned, size_t);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                   void **, void **);

#define INDEX \
    "  .reg .b32 %r<8>; .reg .b64 %d<6>; .reg .pred %p<2>;\n" \
    "  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r1, %r1, %r2, %r3;\n"

static const char PTX[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    /* data[i] = data[i] * weights[i] + 1 */
    ".visible .entry affine(.param .u64 data, .param .u64 weights, .param .u32 count) {\n" INDEX
    "  ld.param.u32 %r4, [count]; setp.ge.u32 %p1, %r1, %r4; @%p1 bra done;\n"
    "  ld.param.u64 %d1, [data]; ld.param.u64 %d2, [weights]; mul.wide.u32 %d3, %r1, 4;\n"
    "  add.s64 %d1, %d1, %d3; add.s64 %d2, %d2, %d3;\n"
    "  ld.global.u32 %r5, [%d1]; ld.global.u32 %r6, [%d2]; mad.lo.u32 %r5, %r5, %r6, 1;\n"
    "  st.global.u32 [%d1], %r5;\n"
    "done:\n  ret; }\n"
    /* to[i] += from[count - 1 - i]; the pointers and the count are in a structure. */
    ".visible .entry mirror(.param .align 8 .b8 args[24]) {\n" INDEX
    "  ld.param.u32 %r4, [args+16]; setp.ge.u32 %p1, %r1, %r4; @%p1 bra done;\n"
    "  ld.param.u64 %d1, [args]; ld.param.u64 %d2, [args+8];\n"
    "  sub.u32 %r5, %r4, %r1; sub.u32 %r5, %r5, 1; mul.wide.u32 %d3, %r5, 4; add.s64 %d1, %d1, %d3;\n"
    "  mul.wide.u32 %d4, %r1, 4; add.s64 %d2, %d2, %d4;\n"
    "  ld.global.u32 %r6, [%d1]; ld.global.u32 %r7, [%d2]; add.u32 %r6, %r6, %r7;\n"
    "  st.global.u32 [%d2], %r6;\n"
    "done:\n  ret; }\n"
    /* table[0] = data */
    ".visible .entry keep(.param .u64 table, .param .u64 data) {\n"
    "  .reg .b64 %d<3>;\n"
    "  ld.param.u64 %d1, [table]; ld.param.u64 %d2, [data]; st.global.u64 [%d1], %d2;\n"
    "  ret; }\n"
    /* to[i] = table[0][i] + 1 */
    ".visible .entry follow(.param .u64 table, .param .u64 to, .param .u32 count) {\n" INDEX
    "  ld.param.u32 %r4, [count]; setp.ge.u32 %p1, %r1, %r4; @%p1 bra done;\n"
    "  ld.param.u64 %d1, [table]; ld.global.u64 %d4, [%d1]; ld.param.u64 %d2, [to];\n"
    "  mul.wide.u32 %d3, %r1, 4; add.s64 %d5, %d4, %d3; add.s64 %d2, %d2, %d3;\n"
    "  ld.global.u32 %r5, [%d5]; add.u32 %r5, %r5, 1; st.global.u32 [%d2], %r5;\n"
    "done:\n  ret; }\n";

enum { WORDS = 64, BLOCK = 32, WORDS_MAX = 1024 };

static void *affine, *mirror, *keep, *follow;
static uint64_t data, weights, result;

static void check(const char *call, int status) {
    if (!status) return;
    printf("%s: %d\n", call, status);
    exit(1);
}
#define DO(call) check(#call, call)

static void fill(uint64_t at, unsigned first, unsigned step, unsigned count) {
    uint32_t words[WORDS_MAX];
    for (unsigned i = 0; i < count; i++) words[i] = first + step * i;
    DO(cuMemcpyHtoD_v2(at, words, 4 * count));
}

static void print(uint64_t at, unsigned count) {
    uint32_t words[WORDS_MAX];
    DO(cuMemcpyDtoH_v2(words, at, 4 * count));
    for (unsigned i = 0; i < count; i++) printf("%08x", words[i]);
    printf("\n");
}

static void multiply(unsigned count) {
    void *params[] = {&data, &weights, &count};
    DO(cuLaunchKernel(affine, (count + BLOCK - 1) / BLOCK, 1, 1, BLOCK, 1, 1, 0, 0, params, 0));
}

static void work(unsigned seed, unsigned count) {
    struct { uint64_t from, to; uint32_t count, unused; } args = {data, result, count, 0};
    void *params[] = {&args};
    fill(data, seed, 3, count);
    multiply(count);
    DO(cuMemsetD32_v2(result, 0x01020304, count));
    DO(cuLaunchKernel(mirror, (count + BLOCK - 1) / BLOCK, 1, 1, BLOCK, 1, 1, 0, 0, params, 0));
    print(result, count);
}

/* The memory that is filled last may take the place of the data, unless the pointer counts. */
static void point(unsigned seed) {
    uint64_t table, other;
    unsigned count = WORDS;
    void *keep_params[] = {&table, &data}, *follow_params[] = {&table, &result, &count};
    DO(cuMemAlloc_v2(&table, 4 * WORDS));
    DO(cuMemAlloc_v2(&other, 4 * WORDS));
    fill(data, seed, 3, WORDS);
    multiply(WORDS);
    DO(cuLaunchKernel(keep, 1, 1, 1, 1, 1, 1, 0, 0, keep_params, 0));
    DO(cuMemsetD32_v2(other, 0x55555555, WORDS));
    DO(cuLaunchKernel(follow, WORDS / BLOCK, 1, 1, BLOCK, 1, 1, 0, 0, follow_params, 0));
    print(result, WORDS);
    DO(cuMemFree_v2(other));
    DO(cuMemFree_v2(table));
}

int main(int count, char **arguments) {
    const char *mode = count > 2 ? arguments[1] : "";
    unsigned number = count > 2 ? atoi(arguments[2]) : 0, words = strcmp(mode, "sizes") ? WORDS : number;
    void *context, *module;
    if (words == 0 || words > WORDS_MAX) return 2;
    DO(cuInit(0));
    DO(cuDevicePrimaryCtxRetain(&context, 0));
    DO(cuCtxSetCurrent(context));
    DO(cuModuleLoadData(&module, PTX));
    DO(cuModuleGetFunction(&affine, module, "affine"));
    DO(cuModuleGetFunction(&mirror, module, "mirror"));
    DO(cuModuleGetFunction(&keep, module, "keep"));
    DO(cuModuleGetFunction(&follow, module, "follow"));
    DO(cuMemAlloc_v2(&data, 4 * words));
    DO(cuMemAlloc_v2(&weights, 4 * words));
    DO(cuMemAlloc_v2(&result, 4 * words));
    fill(weights, 7, 2, words);
    if (!strcmp(mode, "once")) {
        work(number, words);
    } else if (!strcmp(mode, "loop")) {
        for (unsigned round = 0; round < number; round++) work(1000 * round, words);
    } else if (!strcmp(mode, "state")) {
        fill(data, 1, 1, words);
        for (unsigned round = 0; round < number; round++) {
            fill(weights, round + 2, 1, words);
            multiply(words);
            print(data, words);
        }
    } else if (!strcmp(mode, "shapes")) {
        for (unsigned round = 0; round < number; round++) {
            if (round % 7 == 6) multiply(words);
            work(1000 * round, round == 33 ? words / 2 : round % 5 == 4 ? words - round % 3 : words);
        }
    } else if (!strcmp(mode, "sizes")) {
        work(number, words);
    } else if (!strcmp(mode, "pointers")) {
        point(number);
    } else {
        uint64_t pointers[WORDS / 2] = {number, data};
        DO(cuMemcpyHtoD_v2(weights, pointers, sizeof pointers));
        /* The printed result does not depend on the address. */
        fill(weights, 7, 2, words);
        work(number, words);
    }
    DO(cuMemFree_v2(result));
    DO(cuMemFree_v2(weights));
    DO(cuMemFree_v2(data));
    return 0;
}
