/* A program that uses a ring, for the integration tests.
 *
 * program SOCKET affine     calls the function `affine` in several ways and prints "ok"
 * program SOCKET hang       prints "sent" and waits for a request that never ends
 */
#include "atoll_ring.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 1000

static void need(int is_so, const char *what) {
    if (!is_so) {
        printf("%s: %s\n", what, atoll_ring_error());
        exit(1);
    }
}

static const float *output(const atoll_answer *answer, int64_t count) {
    atoll_tensor y;
    need(atoll_answer_count(answer) == 1, "one output");
    need(atoll_answer_output(answer, 0, &y) == ATOLL_OK, "the output");
    need(strcmp(y.name, "y") == 0 && y.datatype == ATOLL_FP32 && y.rank == 1 && y.shape[0] == count, "its form");
    need(y.bytes == (uint64_t)count * sizeof(float), "its bytes");
    need(atoll_answer_output(answer, 1, &y) == ATOLL_ARGUMENT && strstr(atoll_ring_error(), "no output 1"), "no second");
    return y.data;
}

static void affine(atoll_ring *ring) {
    static float x[COUNT], b[COUNT];
    int64_t shape[] = {COUNT};
    atoll_tensor inputs[] = {
        {"x", ATOLL_FP32, 1, shape, x, sizeof x},
        {"b", ATOLL_FP32, 1, shape, b, sizeof b},
    };
    const char *outputs[] = {"y"};
    atoll_call call = {0};
    atoll_answer *answer, *other;
    uint32_t first, second, third;
    int index;

    call.model = "affine";
    call.parameters = "{\"priority\": 1}";
    call.id = "from C";
    call.inputs = inputs;
    call.input_count = 2;
    call.outputs = outputs;
    call.output_count = 1;
    for (index = 0; index < COUNT; index++) {
        x[index] = (float)index;
        b[index] = 0.5f;
    }
    need(atoll_ring_ping(ring) == ATOLL_OK, "ping");
    need(atoll_ring_infer(ring, &call, &answer) == ATOLL_OK, "infer");
    need(strcmp(atoll_answer_version(answer), "1") == 0, "the version");
    for (index = 0; index < COUNT; index++) {
        need(output(answer, COUNT)[index] == 3.0f * (float)index + 0.5f, "y");
    }

    /* Two slots: a third request has to wait. Answers are received in another order. */
    need(atoll_ring_send(ring, &call, &first) == ATOLL_OK, "send");
    x[0] = 100.0f;
    need(atoll_ring_send(ring, &call, &second) == ATOLL_OK, "send another");
    need(atoll_ring_send(ring, &call, &third) == ATOLL_FULL && strstr(atoll_ring_error(), "2 slots"), "full");
    need(atoll_ring_receive(ring, second, &other) == ATOLL_OK, "receive");
    need(output(other, COUNT)[0] == 300.5f, "the second");
    atoll_answer_free(other);
    need(atoll_ring_receive(ring, first, &other) == ATOLL_OK, "receive the other");
    need(output(other, COUNT)[0] == 0.5f, "the first");
    atoll_answer_free(other);
    need(atoll_ring_receive(ring, first, &other) == ATOLL_ARGUMENT, "received twice");
    need(output(answer, COUNT)[0] == 0.5f, "an answer stays as it is");
    atoll_answer_free(answer);

    /* Refused requests. */
    inputs[0].datatype = ATOLL_INT32;
    need(atoll_ring_infer(ring, &call, &answer) == ATOLL_BAD_REQUEST && strstr(atoll_ring_error(), "INT32"), "datatype");
    inputs[0].datatype = 14;
    need(atoll_ring_infer(ring, &call, &answer) == ATOLL_ARGUMENT, "no datatype");
    inputs[0].datatype = ATOLL_FP32;
    inputs[0].bytes -= 4;
    need(atoll_ring_infer(ring, &call, &answer) == ATOLL_BAD_REQUEST, "bytes");
    inputs[0].bytes = (uint64_t)1 << 20;
    shape[0] = 1 << 18;
    inputs[0].data = calloc(1, inputs[0].bytes);
    need(atoll_ring_infer(ring, &call, &answer) == ATOLL_FULL && strstr(atoll_ring_error(), "larger arena"), "too large");
    free((void *)inputs[0].data);
    shape[0] = COUNT;
    inputs[0].data = x;
    inputs[0].bytes = sizeof x;
    call.model = "missing";
    need(atoll_ring_infer(ring, &call, &answer) == ATOLL_NOT_FOUND && strstr(atoll_ring_error(), "missing"), "missing");
    call.model = NULL;
    need(atoll_ring_infer(ring, &call, &answer) == ATOLL_ARGUMENT, "no model");
    call.model = "affine";
    call.parameters = "{";
    need(atoll_ring_infer(ring, &call, &answer) == ATOLL_ARGUMENT && strstr(atoll_ring_error(), "JSON"), "parameters");
    call.parameters = NULL;
    need(atoll_ring_infer(ring, &call, NULL) == ATOLL_ARGUMENT, "no place");
    need(atoll_ring_infer(NULL, &call, &answer) == ATOLL_ARGUMENT, "no ring");
    need(atoll_ring_infer(ring, &call, &answer) == ATOLL_OK, "infer at last");
    atoll_answer_free(answer);
    atoll_answer_free(NULL);
    puts("ok");
}

static void hang(atoll_ring *ring) {
    uint32_t endless = 5, ticket;
    int64_t shape = 1;
    atoll_tensor mode = {"mode", ATOLL_UINT32, 1, &shape, &endless, sizeof endless};
    atoll_call call = {0};
    atoll_answer *answer;

    call.model = "faulty";
    call.inputs = &mode;
    call.input_count = 1;
    need(atoll_ring_send(ring, &call, &ticket) == ATOLL_OK, "send");
    puts("sent");
    fflush(stdout);
    atoll_ring_receive(ring, ticket, &answer);
    printf("answered: %s\n", atoll_ring_error());
}

int main(int count, char **arguments) {
    atoll_ring_options options = {0};
    atoll_ring *ring;

    if (count != 3) {
        return 2;
    }
    options.socket = "/nowhere/atoll.sock";
    need(atoll_ring_open(&options, &ring) == ATOLL_CONNECTION && strstr(atoll_ring_error(), "/nowhere"), "no daemon");
    options.socket = arguments[1];
    options.slots = 1000;
    need(atoll_ring_open(&options, &ring) == ATOLL_BAD_REQUEST && strstr(atoll_ring_error(), "256 slots"), "slots");
    options.slots = 2;
    options.arena_bytes = 1 << 17;
    need(atoll_ring_open(&options, &ring) == ATOLL_OK, "open");
    (strcmp(arguments[2], "hang") == 0 ? hang : affine)(ring);
    atoll_ring_close(ring);
    atoll_ring_close(NULL);
    return 0;
}
