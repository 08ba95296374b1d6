/* Kernels of the conformance suite as native code of the host ABI: what the compiler would emit, written by hand. */
#include <stdint.h>

struct context {
    uint32_t version, compute_unit;
    uint64_t params;
    uint32_t grid[3], block[3];
    uint64_t block_begin, block_end;
    uint64_t shared;
    uint32_t shared_bytes, scratch_bytes;
    uint64_t scratch;
    const volatile uint32_t *stop_word;
    void *const *helpers;
    volatile uint64_t *block_word;
    const volatile uint32_t *halt_word;
};

/* The appended parameters of a preemptible kernel. */
struct preempt {
    const volatile uint32_t *epoch_word;
    volatile uint32_t *evicted_word;
    volatile uint8_t *progress;
    uint32_t issued_epoch;
};

typedef void trap(const struct context *, uint32_t code, uint32_t line, uint32_t thread, uint32_t access, uint64_t address);

const uint32_t atoll_host_abi_version = 2;

static void spin_for(uint64_t cycles) {
    uint64_t start = __builtin_ia32_rdtsc();
    while (__builtin_ia32_rdtsc() - start < cycles)
        __builtin_ia32_pause();
}

/* True if the block must not run: it has finished before, or its launch was evicted. */
static int skips(const struct preempt *p, uint64_t block) {
    if (p->progress[block])
        return 1;
    if ((int32_t)(*p->epoch_word - p->issued_epoch) <= 0)
        return 0;
    *p->evicted_word = 1;
    return 1;
}

/* out[i] = a[i] + b[i], 256 elements per block. */
struct vector_add_params {
    const float *a, *b;
    float *out;
    uint32_t n;
};

void vector_add(const struct context *c) {
    const struct vector_add_params *p = (const struct vector_add_params *)c->params;
    for (uint64_t block = c->block_begin; block < c->block_end; block++)
        for (uint64_t i = block * 256; i < (block + 1) * 256 && i < p->n; i++)
            p->out[i] = p->a[i] + p->b[i];
}

/* Each block spins, then counts itself: counts[block] += 1. */
struct spin_params {
    uint32_t *counts;
    uint64_t cycles;
    struct preempt preempt;
};

void spin(const struct context *c) {
    const struct spin_params *p = (const struct spin_params *)c->params;
    for (uint64_t block = c->block_begin; block < c->block_end; block++) {
        spin_for(p->cycles);
        __atomic_fetch_add(&p->counts[block], 1, __ATOMIC_RELAXED);
    }
}

void spin_preemptible(const struct context *c) {
    const struct spin_params *p = (const struct spin_params *)c->params;
    for (uint64_t block = c->block_begin; block < c->block_end && !*c->stop_word; block++) {
        if (skips(&p->preempt, block))
            continue;
        spin_for(p->cycles);
        __atomic_fetch_add(&p->counts[block], 1, __ATOMIC_RELAXED);
        p->preempt.progress[block] = 1;
    }
}

/* A block that may run again: sets out[block] to a wrong value, and after a while to 3 * block + 1. */
void settle_preemptible(const struct context *c) {
    const struct spin_params *p = (const struct spin_params *)c->params;
    volatile uint32_t *out = p->counts;
    for (uint64_t block = c->block_begin; block < c->block_end && !*c->stop_word; block++) {
        if (skips(&p->preempt, block))
            continue;
        out[block] = ~0u;
        spin_for(p->cycles);
        out[block] = 3 * (uint32_t)block + 1;
        p->preempt.progress[block] = 1;
    }
}

/* Appends its tag to a log: log[0] is the number of entries. A block does not end until gate[0] reaches `until`. */
struct note_params {
    uint32_t *log;
    const volatile uint32_t *gate;
    uint32_t tag, until;
    struct preempt preempt;
};

static void note_one(const struct note_params *p) {
    p->log[1 + __atomic_fetch_add(p->log, 1, __ATOMIC_RELAXED)] = p->tag;
    while ((int32_t)(*p->gate - p->until) < 0)
        __builtin_ia32_pause();
}

void note(const struct context *c) {
    const struct note_params *p = (const struct note_params *)c->params;
    for (uint64_t block = c->block_begin; block < c->block_end; block++)
        note_one(p);
}

void note_preemptible(const struct context *c) {
    const struct note_params *p = (const struct note_params *)c->params;
    for (uint64_t block = c->block_begin; block < c->block_end && !*c->stop_word; block++) {
        if (skips(&p->preempt, block))
            continue;
        note_one(p);
        p->preempt.progress[block] = 1;
    }
}

/* Traps in block `at`, thread 7, with a code and an access; counts the others. */
struct trap_params {
    uint32_t *counts;
    uint64_t at;
    uint32_t code, access;
    uint64_t address;
};

void trap_at(const struct context *c) {
    const struct trap_params *p = (const struct trap_params *)c->params;
    for (uint64_t block = c->block_begin; block < c->block_end; block++) {
        *c->block_word = block;
        if (block == p->at) {
            (*(trap *)c->helpers[0])(c, p->code, 1234, 7, p->access, p->address);
            return;
        }
        p->counts[block] = 1;
    }
}

/* Block `at` faults: kind 0 stores to `address`, 1 divides by zero, 2 is no instruction, 3 runs out of stack, 4 loads from `address`, 5 jumps there. Others count themselves. */
struct fault_params {
    uint32_t *counts;
    uint32_t at;
    volatile uint32_t kind;
    uint64_t address;
};

__attribute__((noinline)) static uint32_t endless(volatile uint32_t *n) {
    volatile uint32_t here[1024];
    here[*n % 1024] = ++*n;
    if (*n == 0)
        return 0;
    return endless(n) + here[*n % 1024];
}

void fault_at(const struct context *c) {
    struct fault_params *p = (struct fault_params *)c->params;
    volatile uint32_t zero = 0;
    for (uint64_t block = c->block_begin; block < c->block_end; block++) {
        *c->block_word = block;
        p->counts[block] = 1;
        if (block != p->at)
            continue;
        switch (p->kind) {
        case 0: *(volatile uint32_t *)p->address = 1; break; /* store */
        case 1: zero = 7 / zero; break; /* divide */
        case 2: __builtin_trap(); break; /* undefined */
        case 3: endless(&zero); break;
        case 4: zero = *(volatile uint32_t *)p->address; break; /* load */
        case 5: (*(void (*)(void))p->address)(); break;
        }
    }
}

/* Block `at` never ends: kind 0 checks the halt word, 1 does not, 2 spends most of its time in a helper. Others count themselves. */
typedef int print(const struct context *, const char *format, const void *arguments, uint32_t bytes, uint32_t line, uint32_t thread);

void forever_at(const struct context *c) {
    struct fault_params *p = (struct fault_params *)c->params;
    for (uint64_t block = c->block_begin; block < c->block_end; block++) {
        *c->block_word = block;
        p->counts[block] = 1;
        while (block == p->at) {
            if (p->kind == 0 && *c->halt_word) {
                (*(trap *)c->helpers[0])(c, 7, 4321, ~0u, 0, 0);
                return;
            }
            if (p->kind == 2)
                (*(print *)c->helpers[1])(c, "%%", 0, 0, 0, 0);
            __builtin_ia32_pause(); /* spin */
        }
    }
}

/* Every block prints through a format at `address`, or one of its own where that is 0. */
void print_all(const struct context *c) {
    struct fault_params *p = (struct fault_params *)c->params;
    for (uint64_t block = c->block_begin; block < c->block_end; block++) {
        struct { uint32_t block; double half; const char *name; } arguments = { (uint32_t)block, block / 2.0, "seven" };
        const char *format = p->address ? (const char *)p->address : "block %u: %.1f %s\n";
        p->counts[block] = (*(print *)c->helpers[1])(c, format, &arguments, sizeof arguments, 1, 0);
    }
}

/* Asks whether thread 3 may make an access, as checked code does. */
typedef uint32_t check(const struct context *, uint32_t access, uint32_t line, uint32_t thread, uint64_t address, uint32_t local_bytes);

void checked(const struct context *c) {
    const struct trap_params *p = (const struct trap_params *)c->params;
    for (uint64_t block = c->block_begin; block < c->block_end; block++) {
        *c->block_word = block;
        if (!(*(check *)c->helpers[2])(c, p->access, 77, 3, p->address, 16))
            return;
        p->counts[block] = 1;
    }
}

/* Fills shared and scratch memory, and says in out[block] whether everything about the context is as it should be. */
struct arenas_params {
    uint32_t *out;
    uint32_t shared_bytes, scratch_bytes;
};

static int fills(uint64_t at, uint32_t bytes, uint8_t value) {
    volatile uint8_t *memory = (volatile uint8_t *)at;
    for (uint32_t i = 0; i < bytes; i++)
        memory[i] = value;
    for (uint32_t i = 0; i < bytes; i++)
        if (memory[i] != value)
            return 0;
    return at % 256 == 0;
}

void arenas(const struct context *c) {
    const struct arenas_params *p = (const struct arenas_params *)c->params;
    for (uint64_t block = c->block_begin; block < c->block_end; block++)
        p->out[block] = c->version == 2 && c->params % 16 == 0 && c->shared_bytes >= p->shared_bytes && c->scratch_bytes >= p->scratch_bytes &&
                        fills(c->shared, p->shared_bytes, (uint8_t)block) && fills(c->scratch, p->scratch_bytes, (uint8_t)~block);
}

/* When the last block ended on each compute unit (stamps[2 * unit]), and when its first one began if that is still 0 (stamps[2 * unit + 1]), by the time stamp counter. */
struct stamp_params {
    uint64_t *stamps;
    uint64_t cycles;
    struct preempt preempt;
};

void stamp_first(const struct context *c) {
    const struct stamp_params *p = (const struct stamp_params *)c->params;
    for (uint64_t block = c->block_begin; block < c->block_end; block++) {
        if (!p->stamps[2 * c->compute_unit + 1])
            p->stamps[2 * c->compute_unit + 1] = __builtin_ia32_rdtsc();
        spin_for(p->cycles);
    }
}

void stamp_last_preemptible(const struct context *c) {
    const struct stamp_params *p = (const struct stamp_params *)c->params;
    for (uint64_t block = c->block_begin; block < c->block_end && !*c->stop_word; block++) {
        if (skips(&p->preempt, block))
            continue;
        spin_for(p->cycles);
        p->stamps[2 * c->compute_unit] = __builtin_ia32_rdtsc();
        p->preempt.progress[block] = 1;
    }
}

/* What no compiler of ours emits: asks the system for something, and says what it answered. */
struct system_call_params {
    volatile int64_t *answer;
    uint64_t number, first, second, third, fourth;
};

void system_call(const struct context *c) {
    const struct system_call_params *p = (const struct system_call_params *)c->params;
    int64_t answer;
    register uint64_t fourth __asm__("r10") = p->fourth;
    /* The offset of mmap is checked also where it has no meaning. */
    register uint64_t fifth __asm__("r8") = 0, sixth __asm__("r9") = 0;
    __asm__ volatile("syscall"
                     : "=a"(answer)
                     : "a"(p->number), "D"(p->first), "S"(p->second), "d"(p->third), "r"(fourth), "r"(fifth), "r"(sixth)
                     : "rcx", "r11", "memory");
    *p->answer = answer;
}

/* The largest parameter block: out[block] is a sum of all its values, each times its place, and of *in; out[blocks + block] is the address `in`. */
struct wide_params {
    uint64_t *out, values[510];
    const uint64_t *in;
};

void wide(const struct context *c) {
    const struct wide_params *p = (const struct wide_params *)c->params;
    uint64_t sum = *p->in;
    for (uint64_t i = 0; i < 510; i++)
        sum += p->values[i] * (i + 1);
    for (uint64_t block = c->block_begin; block < c->block_end; block++) {
        p->out[block] = sum;
        p->out[c->grid[0] + block] = (uint64_t)p->in;
    }
}

/* Its preemption parameters lie at the end of a large block: counts[block] += the last value in front of them. */
struct wide_preemptible_params {
    uint32_t *counts;
    uint64_t values[507];
    struct preempt preempt;
};

void wide_preemptible(const struct context *c) {
    const struct wide_preemptible_params *p = (const struct wide_preemptible_params *)c->params;
    for (uint64_t block = c->block_begin; block < c->block_end && !*c->stop_word; block++) {
        if (skips(&p->preempt, block))
            continue;
        p->counts[block] += (uint32_t)p->values[506];
        p->preempt.progress[block] = 1;
    }
}
