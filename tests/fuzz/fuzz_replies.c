/* Arbitrary bytes as a server's replies to a program of calls. The input is both: its first byte chooses the dialect,
 * then each instruction is a byte that makes a call, lets time pass, writes, answers a probe, or hands the next bytes
 * over as what the server said. Whatever comes, every call is done once and nothing is left behind. */
#include "store/calls.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS_MAX = 64, KINDS = MU_CALL_PING + 1, READ_MAX = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    const uint8_t *data;
    size_t len;
};

struct program {
    struct mu_calls calls;
    struct mu_call call[CALLS_MAX];
    unsigned done[CALLS_MAX];
    size_t count, finished;
    enum mu_dialect dialect;
    uint64_t now_ms;
};

static unsigned next(struct input *input)
{
    if (input->len == 0)
        return 0;
    input->len--;
    return *input->data++;
}

static void take_finished(struct program *p)
{
    struct mu_call *call;

    while ((call = mu_calls_pop_finished(&p->calls)) != NULL) {
        assert(++p->done[call - p->call] == 1);
        assert(call->rc == 0 || (call->error.code == call->rc && call->error.text[0] != '\0'));
        assert(call->rc == 0 || (call->bytes.data == NULL && call->found.items == NULL));
        muster_bytes_done(&call->bytes);
        muster_values_done(&call->found);
        p->finished++;
    }
}

static void make_call(struct program *p, unsigned kind, unsigned detail)
{
    static const struct muster_slice keys[] = { { "a", 1 }, { "bc", 2 }, { "", 0 } };
    struct mu_call *call = &p->call[p->count];

    if (p->count == CALLS_MAX)
        return;
    p->count++;
    *call = (struct mu_call){ .kind = (enum mu_call_kind)(kind % KINDS),
                              .key = keys[detail % 3],
                              .value = keys[detail / 3 % 3],
                              .desired = keys[detail / 9 % 3],
                              .keys = keys,
                              .values = keys,
                              .count = detail % 4,
                              .number = (int64_t)detail - 8,
                              .block = detail & 1 };
    mu_calls_submit(&p->calls, call, detail % 32, p->now_ms);
}

static void read_some(struct program *p, struct input *input, size_t len)
{
    char *exact;

    if (len > input->len)
        len = input->len;
    exact = malloc(len == 0 ? 1 : len); /* so that one byte too far is seen */
    assert(exact != NULL);
    memcpy(exact, input->data, len);
    input->data += len;
    input->len -= len;
    mu_calls_read(&p->calls, mu_slice(exact, len));
    free(exact);
}

static void write_some(struct program *p, size_t len)
{
    if (len > p->calls.out.len)
        len = p->calls.out.len;
    mu_buf_consume(&p->calls.out, len);
    mu_calls_wrote(&p->calls, len);
}

static void step(struct program *p, struct input *input)
{
    unsigned what = next(input);

    if (what < 0x60) {
        make_call(p, what, next(input));
    } else if (what < 0xc0) {
        read_some(p, input, what % READ_MAX);
    } else if (what < 0xd0) {
        write_some(p, next(input));
    } else if (what < 0xe0) {
        p->now_ms += what & 15;
        mu_calls_pass_time(&p->calls, p->now_ms);
    } else if (p->calls.probe != 0 && what & 2) {
        mu_calls_probe_failed(&p->calls, p->calls.probe, "no answer");
    } else if (p->calls.probe != 0) {
        mu_calls_probed(&p->calls, p->calls.probe, what & 1);
    } else {
        write_some(p, SIZE_MAX);
    }
    if (p->calls.renew)
        mu_calls_opened(&p->calls, p->dialect);
    take_finished(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum mu_dialect dialects[] = { MU_DIALECT_V, MU_DIALECT_L1, MU_DIALECT_L0 };
    static struct program p;
    struct input input = { data, size };
    const struct muster_error over = { .code = MUSTER_ELOST, .text = "over" };
    unsigned how = next(&input);

    memset(p.done, 0, sizeof p.done);
    p.count = p.finished = 0;
    p.now_ms = 0;
    p.dialect = dialects[how % 3];
    mu_calls_init(&p.calls, how & 4);
    if (how & 8)
        p.calls.features_known = p.calls.features_had = ~0U;
    mu_calls_opened(&p.calls, p.dialect);
    while (input.len > 0)
        step(&p, &input);
    mu_calls_lose(&p.calls, &over);
    take_finished(&p);
    assert(p.finished == p.count);
    mu_calls_done(&p.calls);
    return 0;
}
