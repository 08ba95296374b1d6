/* Rings: inference requests to a daemon on this machine through shared memory.
 *
 * Link with -latoll_ring_c. A ring may be used by one thread at a time, and may move between
 * threads. Functions that return int return ATOLL_OK or another status; atoll_ring_error() then
 * returns the message. Texts are UTF-8 and end in a zero byte.
 */
#ifndef ATOLL_RING_H
#define ATOLL_RING_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Results of functions. */
enum atoll_status {
    ATOLL_OK = 0,
    ATOLL_BAD_REQUEST = 1, /* the request is wrong; repeating it does not help */
    ATOLL_NOT_FOUND = 2,   /* there is no such model */
    ATOLL_DENIED = 3,      /* the tenant may not do this */
    ATOLL_QUOTA = 4,       /* the tenant has exhausted a limit */
    ATOLL_BUSY = 5,        /* the daemon is overloaded or stops; try again later */
    ATOLL_DEADLINE = 6,    /* the deadline passed */
    ATOLL_FUNCTION = 7,    /* the function failed on the device */
    ATOLL_DAEMON = 8,      /* the daemon or its machine failed */
    ATOLL_CONNECTION = 9,  /* no daemon listens, or the connection ended */
    ATOLL_FULL = 10,       /* all slots are in use, or the inputs are too large for a slot */
    ATOLL_ARGUMENT = 11,   /* an argument of the function is not valid */
    ATOLL_INTERNAL = 12    /* a bug in this library */
};

/* Types of elements. An element of ATOLL_BYTES is its length (uint32_t, little-endian), followed by
 * its bytes. */
enum atoll_datatype {
    ATOLL_BOOL = 0,
    ATOLL_UINT8 = 1,
    ATOLL_UINT16 = 2,
    ATOLL_UINT32 = 3,
    ATOLL_UINT64 = 4,
    ATOLL_INT8 = 5,
    ATOLL_INT16 = 6,
    ATOLL_INT32 = 7,
    ATOLL_INT64 = 8,
    ATOLL_FP16 = 9,
    ATOLL_BF16 = 10,
    ATOLL_FP32 = 11,
    ATOLL_FP64 = 12,
    ATOLL_BYTES = 13
};

typedef struct atoll_ring atoll_ring;
typedef struct atoll_answer atoll_answer;

/* A ring to open. Members that are 0 or NULL have the defaults, except for the times. The default
 * socket is $XDG_RUNTIME_DIR/atoll.sock, or /run/atoll.sock if this variable is not set. */
typedef struct {
    const char *socket;      /* the daemon's control socket */
    const char *tenant;      /* the tenant to act for; default: that of the user */
    uint32_t slots;          /* most requests in flight, rounded up to a power of two; default: 4 */
    uint32_t spin_us;        /* how long this side spins for an answer before it sleeps */
    uint32_t daemon_spin_us; /* how long the daemon spins for a request, at most 1000 */
    uint64_t arena_bytes;    /* bytes for the tensors of all slots; default: 4 MiB */
} atoll_ring_options;

/* A tensor: dense, row-major, little-endian. */
typedef struct {
    const char *name;
    int32_t datatype; /* enum atoll_datatype */
    uint32_t rank;
    const int64_t *shape;
    const void *data;
    uint64_t bytes;
} atoll_tensor;

/* An inference request. */
typedef struct {
    const char *model;          /* a function of the tenant, or a model by its name over HTTP */
    const char *version;        /* NULL for the newest */
    const char *id;             /* may be NULL */
    const char *parameters;     /* a JSON object as over HTTP, as in {"priority":1}; NULL for none */
    const atoll_tensor *inputs;
    uint32_t input_count;
    uint32_t output_count;      /* 0 for all outputs */
    const char *const *outputs; /* names of the requested outputs */
} atoll_call;

/* Opens a ring. `options` may be NULL; both sides then spin for 50 microseconds. */
int atoll_ring_open(const atoll_ring_options *options, atoll_ring **ring);

/* Closes a ring, and cancels its requests. NULL is allowed. */
void atoll_ring_close(atoll_ring *ring);

/* Sends a request that calls no model to the ring's thread in the daemon, and waits for its answer. */
int atoll_ring_ping(atoll_ring *ring);

/* Sends a request and waits for its answer. Free the answer with atoll_answer_free(). */
int atoll_ring_infer(atoll_ring *ring, const atoll_call *call, atoll_answer **answer);

/* Sends a request. Its slot is in use until atoll_ring_receive() is called with the ticket. */
int atoll_ring_send(atoll_ring *ring, const atoll_call *call, uint32_t *ticket);

/* Waits for the answer to a request. Answers may be received in any order. */
int atoll_ring_receive(atoll_ring *ring, uint32_t ticket, atoll_answer **answer);

/* Number of outputs of an answer. */
size_t atoll_answer_count(const atoll_answer *answer);

/* An output of an answer. Its pointers are valid until the answer is freed. */
int atoll_answer_output(const atoll_answer *answer, size_t index, atoll_tensor *output);

/* The version of the model that answered. Valid until the answer is freed. */
const char *atoll_answer_version(const atoll_answer *answer);

/* Frees an answer. NULL is allowed. */
void atoll_answer_free(atoll_answer *answer);

/* The message of the last function of this thread that did not return ATOLL_OK. Valid until the next
 * one. */
const char *atoll_ring_error(void);

#ifdef __cplusplus
}
#endif

#endif
