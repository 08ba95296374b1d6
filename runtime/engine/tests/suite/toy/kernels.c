/* The toy model's kernels as native code of the host ABI, preempted by epoch (docs/decisions/0010-preemption-by-epoch.md): what the compiler would emit, written by hand. */
#include <stdint.h>

struct context {
    uint32_t version, compute_unit;
    uint64_t params;
    uint32_t grid[3], block[3];
    uint64_t block_begin, block_end;
    uint64_t shared;
    uint32_t shared_bytes, scratch_bytes;
    uint64_t scratch, stop_word, helpers, block_word, halt_word;
};

struct step_params {
    uint32_t *x;
    const uint32_t *w;
    uint32_t n, k;
    volatile uint32_t *epoch_word, *evicted_word;
    volatile uint8_t *progress;
    uint32_t issued_epoch;
};

struct move_params {
    const uint32_t *from;
    uint32_t *to;
    uint32_t n;
};

typedef void trap(const struct context *, uint32_t code, uint32_t line, uint32_t thread, uint32_t access, uint64_t address);

enum { PER_BLOCK = 16, BAD = 0xBAD, TRAP = 0xDEAD, WILD = 0x317D, HANG = 0x4A46 };

const uint32_t atoll_host_abi_version = 2;

/* Takes some microseconds, as real blocks do. */
static void linger(void) {
    for (volatile int i = 0; i < 2000; i++) {
    }
}

void step(const struct context *c) {
    const struct step_params *p = (const struct step_params *)c->params;
    for (uint64_t b = c->block_begin; b < c->block_end; b++) {
        if (p->progress[b])
            continue;
        if ((int32_t)(*p->epoch_word - p->issued_epoch) > 0) {
            *p->evicted_word = 1;
            continue;
        }
        linger();
        *(volatile uint64_t *)c->block_word = b;
        for (uint32_t i = b * PER_BLOCK; i < (b + 1) * PER_BLOCK && i < p->n; i++) {
            if (p->x[i] == TRAP) {
                (*(trap **)c->helpers)(c, 1, __LINE__, i % PER_BLOCK, 0, 0);
                return;
            }
            if (p->x[i] == WILD)
                *(volatile uint32_t *)(uint64_t)p->x[i] = 1;
            while (p->x[i] == HANG)
                __builtin_ia32_pause();
            p->x[i] = p->x[i] * 3 + p->k + p->w[i % 8];
        }
        p->progress[b] = 1;
    }
}

void move(const struct context *c) {
    const struct move_params *p = (const struct move_params *)c->params;
    for (uint64_t b = c->block_begin; b < c->block_end; b++)
        for (uint32_t i = b * PER_BLOCK; i < (b + 1) * PER_BLOCK && i < p->n; i++)
            p->to[i] = p->from[i];
}

struct judge_params {
    const uint32_t *x;
    uint32_t *check;
    uint32_t n, unused;
    volatile uint32_t *epoch_word, *evicted_word;
    volatile uint8_t *progress;
    uint32_t issued_epoch;
};

void judge(const struct context *c) {
    const struct judge_params *p = (const struct judge_params *)c->params;
    for (uint64_t b = c->block_begin; b < c->block_end; b++) {
        if (p->progress[b])
            continue;
        if ((int32_t)(*p->epoch_word - p->issued_epoch) > 0) {
            *p->evicted_word = 1;
            continue;
        }
        linger();
        for (uint32_t i = b * PER_BLOCK; i < (b + 1) * PER_BLOCK && i < p->n; i++)
            if (p->x[i] == BAD)
                *p->check = 1;
        p->progress[b] = 1;
    }
}

void size(const struct context *c) {
    const struct judge_params *p = (const struct judge_params *)c->params;
    if (p->progress[0] || c->block_begin == c->block_end)
        return;
    if ((int32_t)(*p->epoch_word - p->issued_epoch) > 0) {
        *p->evicted_word = 1;
        return;
    }
    linger();
    *p->check = p->x[0];
    p->progress[0] = 1;
}

/* Copies numbers. A block takes as many thousand ticks of the time stamp counter as its first number says. */
void dwell(const struct context *c) {
    const struct judge_params *p = (const struct judge_params *)c->params;
    for (uint64_t b = c->block_begin; b < c->block_end; b++) {
        if (p->progress[b])
            continue;
        if ((int32_t)(*p->epoch_word - p->issued_epoch) > 0) {
            *p->evicted_word = 1;
            continue;
        }
        *(volatile uint64_t *)c->block_word = b;
        for (uint64_t begin = __builtin_ia32_rdtsc(); __builtin_ia32_rdtsc() - begin < 1000ull * p->x[b * PER_BLOCK];) {
        }
        for (uint32_t i = b * PER_BLOCK; i < (b + 1) * PER_BLOCK && i < p->n; i++)
            p->check[i] = p->x[i];
        p->progress[b] = 1;
    }
}

void tick(const struct context *c) {
    const struct judge_params *p = (const struct judge_params *)c->params;
    if (p->progress[0] || c->block_begin == c->block_end)
        return;
    if ((int32_t)(*p->epoch_word - p->issued_epoch) > 0) {
        *p->evicted_word = 1;
        return;
    }
    linger();
    *(uint32_t *)p->x -= 1;
    p->progress[0] = 1;
}
