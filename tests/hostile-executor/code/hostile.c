/* Native code of a hostile tenant: it has taken over its executor's process, and attacks the daemon from there. */
#include <stdint.h>

/* As `HostContext` in compiler/kgraph/src/host_abi.rs. */
struct context {
    uint32_t version, compute_unit;
    uint64_t params;
    uint32_t grid[3], block[3];
    uint64_t block_begin, block_end;
    uint64_t shared;
    uint32_t shared_bytes, scratch_bytes;
    uint64_t scratch;
    uint64_t stop_word;
    uint64_t helpers;
    volatile uint64_t *block_word;
    uint64_t halt_word;
};

/* Arguments of `hostile`, and what the passes append. */
struct params {
    const uint64_t *how;
    const uint8_t *text;
    volatile uint64_t *out;
    uint64_t epoch_word, evicted_word;
    volatile uint8_t *progress;
};

/* The attacks, in the order of `Attack` in src/attack.rs. how[0] is the attack. */
enum { NOTHING, CALL, WINDOWS, HOARD, SEND, SEND_FILE, SCRIBBLE, STORE, FORGE, STEAL, SPIN, RING, SIGNAL };

/* x86-64 Linux. */
enum {
    SYS_WRITE = 1, SYS_MMAP = 9, SYS_MUNMAP = 11, SYS_RT_SIGPROCMASK = 14, SYS_MADVISE = 28, SYS_SENDMSG = 46, SYS_RECVMSG = 47,
    SYS_GETPID = 39, SYS_CLOCK_GETTIME = 228, SYS_TGKILL = 234
};
enum { MADV_DONTNEED = 4, MADV_POPULATE_WRITE = 23, MSG_DONTWAIT = 0x40, MSG_NOSIGNAL = 0x4000, CLOCK_MONOTONIC = 1, PAGE = 4096 };

/* Descriptors of an executor: its end of the channel, then those of the first message. */
enum { CHANNEL = 3 };

const uint32_t atoll_host_abi_version = 2;

static int64_t call(uint64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f) {
    int64_t answer;
    register uint64_t r10 __asm__("r10") = d;
    register uint64_t r8 __asm__("r8") = e;
    register uint64_t r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(answer)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return answer;
}

static uint64_t now_ns(void) {
    uint64_t time[2];
    call(SYS_CLOCK_GETTIME, CLOCK_MONOTONIC, (uint64_t)time, 0, 0, 0, 0);
    return time[0] * 1000000000 + time[1];
}

/* From here on no signal reaches this thread: neither the watchdog's nor that of an interruption. */
static void block_signals(void) {
    uint64_t all = ~(uint64_t)0;
    call(SYS_RT_SIGPROCMASK, 0, (uint64_t)&all, 0, 8, 0, 0);
}

static void spin_until(uint64_t end_ns) {
    while (now_ns() < end_ns)
        for (int i = 0; i < 1000; i++)
            __builtin_ia32_pause();
}

/* Waits, so that the launch is still running when the attack is found. */
static void linger(void) {
    spin_until(now_ns() + 8000000000);
}

/* The control words and rings: a stop word lies on their first page. */
static uint8_t *link_of(const struct context *c) {
    return (uint8_t *)(c->stop_word & ~(uint64_t)(PAGE - 1));
}

/* Touches how[2] bytes of device memory after the output, in windows of how[1] bytes that it unmaps again. */
static void windows(const uint64_t *how, volatile uint64_t *out) {
    uint64_t start = ((uint64_t)out + PAGE - 1) & ~(uint64_t)(PAGE - 1);
    for (uint64_t done = 0; done < how[2]; done += how[1]) {
        if (call(SYS_MADVISE, start + done, how[1], MADV_POPULATE_WRITE, 0, 0, 0) != 0)
            break;
        call(SYS_MADVISE, start + done, how[1], MADV_DONTNEED, 0, 0, 0);
        out[0] = done + how[1];
    }
}

/* Maps private memory until the system refuses: out[0] is the number of bytes, out[1] the refusal. */
static void hoard(const uint64_t *how, volatile uint64_t *out) {
    uint64_t parts[128], count = 0;
    while (count < 128) {
        int64_t at = call(SYS_MMAP, 0, how[1], 3, 0x22, ~(uint64_t)0, 0);
        if (at < 0) {
            out[1] = (uint64_t)-at;
            break;
        }
        parts[count++] = (uint64_t)at;
    }
    out[0] = count * how[1];
    while (count > 0)
        call(SYS_MUNMAP, parts[--count], how[1], 0, 0, 0, 0);
}

struct vector {
    uint64_t at, bytes;
};
struct message {
    uint64_t name, name_bytes;
    struct vector *parts;
    uint64_t part_count;
    void *control;
    uint64_t control_bytes;
    uint64_t flags;
};

/* Sends how[2] bytes of text how[1] times over the channel, with descriptor how[3] if it is not 0. */
static void send(const uint64_t *how, const uint8_t *text, volatile uint64_t *out, int with_file) {
    struct vector part = {(uint64_t)text, how[2]};
    /* A header of 16 bytes (length, SOL_SOCKET, SCM_RIGHTS) and one descriptor. */
    uint64_t control[3] = {20, (uint64_t)1 << 32 | 1, how[3]};
    struct message message = {0, 0, &part, 1, with_file ? control : 0, with_file ? 24 : 0, 0};
    for (uint64_t i = 0; i < how[1]; i++) {
        if (call(SYS_SENDMSG, CHANNEL, (uint64_t)&message, MSG_NOSIGNAL, 0, 0, 0) < 0)
            break;
        out[0] = i + 1;
    }
}

/* Takes every message from the daemon and throws it away, for how[1] ns. */
static void steal(const uint64_t *how) {
    uint64_t end = now_ns() + how[1];
    uint8_t bytes[4096], control[1024];
    block_signals();
    while (now_ns() < end) {
        struct vector part = {(uint64_t)bytes, sizeof bytes};
        struct message message = {0, 0, &part, 1, control, sizeof control, 0};
        call(SYS_RECVMSG, CHANNEL, (uint64_t)&message, MSG_DONTWAIT, 0, 0, 0);
    }
}

/* Stores how[2] random words between the bytes how[3] and how[4] of control words and rings; how[1] is the seed. */
static void scribble(const uint64_t *how, uint8_t *link) {
    uint64_t state = how[1] * 2 + 1, words = (how[4] - how[3]) / 8;
    for (uint64_t i = 0; i < how[2]; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint64_t at = (state >> 20) % words;
        state = state * 6364136223846793005u + 1442695040888963407u;
        ((volatile uint64_t *)(link + how[3]))[at] = state >> (state >> 58);
    }
}

/* Puts a completion of the running launch, with no time to bill, into its ring, and keeps the thread for how[8] ns. how[1] and how[2]
   are the places of the index and of the first slot of the first command ring, how[3] and how[4] those of the first completion ring;
   how[5] is the distance to the rings of the next queue, how[6] the place of the first stop word, how[7] the number of slots,
   how[9] the descriptor of the bell. */
static void forge(const struct context *c, const uint64_t *how) {
    uint8_t *link = link_of(c);
    uint64_t rings = (c->stop_word - (uint64_t)link - how[6]) / 64 * how[5];
    volatile uint64_t *commands = (volatile uint64_t *)(link + how[2] + rings);
    uint64_t mine = *(volatile uint64_t *)(link + how[1] + rings) - 1;
    uint64_t launch = commands[(mine & (how[7] - 1)) * 64];
    volatile uint64_t *tail = (volatile uint64_t *)(link + how[3] + rings);
    volatile uint64_t *slot = (volatile uint64_t *)(link + how[4] + rings) + (*tail & (how[7] - 1)) * 7;
    uint64_t now = now_ns(), words[7] = {launch, 0, now, now, 0, 0, 0}, one = 1;
    block_signals();
    for (int i = 0; i < 7; i++)
        slot[i] = words[i];
    __atomic_store_n((uint64_t *)tail, *tail + 1, __ATOMIC_SEQ_CST);
    call(SYS_WRITE, how[9], (uint64_t)&one, 8, 0, 0, 0);
    spin_until(now + how[8]);
}

static void attack(const struct context *c, const struct params *p) {
    const uint64_t *how = p->how;
    switch (how[0]) {
    case CALL:
        p->out[0] = (uint64_t)call(how[1], how[2], how[3], how[4], how[5], how[6], how[7]);
        break;
    case WINDOWS:
        windows(how, p->out);
        linger();
        break;
    case HOARD:
        hoard(how, p->out);
        break;
    case SEND:
    case SEND_FILE:
        send(how, p->text, p->out, how[0] == SEND_FILE);
        linger();
        break;
    case SCRIBBLE:
        scribble(how, link_of(c));
        break;
    case STORE:
        *(volatile uint64_t *)(link_of(c) + how[1]) = how[2];
        linger();
        break;
    case FORGE:
        forge(c, how);
        break;
    case STEAL:
        steal(how);
        break;
    case SPIN:
        block_signals();
        spin_until(now_ns() + how[1]);
        break;
    case SIGNAL: {
        uint64_t own = (uint64_t)call(SYS_GETPID, 0, 0, 0, 0, 0, 0);
        p->out[0] = (uint64_t)call(SYS_TGKILL, own, own, how[1], 0, 0, 0);
        linger();
        break;
    }
    case RING:
        for (uint64_t i = 0, one = 1; i < how[1]; i++)
            call(SYS_WRITE, how[2], (uint64_t)&one, 8, 0, 0, 0);
        break;
    }
}

void hostile(const struct context *c) {
    const struct params *p = (const struct params *)c->params;
    for (uint64_t block = c->block_begin; block < c->block_end; block++) {
        *c->block_word = block;
        attack(c, p);
        p->progress[block] = 1;
    }
}
