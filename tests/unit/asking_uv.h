/* A back end on a loop in the test's own thread, and requests to it. */
#ifndef TESTS_UNIT_ASKING_UV_H
#define TESTS_UNIT_ASKING_UV_H

#include "kv/kv.h"
#include "pure.h"

#include <signal.h>
#include <uv.h>

enum { QUICK_MS = 20000, ASKED_MAX = 16 };

struct asking {
    uv_loop_t loop;
    uv_timer_t alarm; /* ends a test that hangs */
    struct mu_kv *kv;
    bool inside; /* of a call from outside */
    struct mu_kv_request requests[ASKED_MAX];
    unsigned done[ASKED_MAX];
    unsigned kv_closed;
};

static inline void on_alarm(uv_timer_t *timer)
{
    (void)timer;
    fail_msg("the test hangs");
}

static inline void asking_begin(struct asking *a)
{
    *a = (struct asking){ .kv = NULL };
    (void)signal(SIGPIPE, SIG_IGN);
    assert_int_equal(uv_loop_init(&a->loop), 0);
    assert_int_equal(uv_timer_init(&a->loop, &a->alarm), 0);
    assert_int_equal(uv_timer_start(&a->alarm, on_alarm, 2ULL * QUICK_MS, 0), 0);
}

static inline void on_kv_closed(struct mu_kv *kv, void *ctx)
{
    struct asking *a = ctx;

    assert_ptr_equal(kv, a->kv);
    assert_false(a->inside);
    a->kv_closed++;
    a->kv = NULL;
    uv_stop(&a->loop);
}

/* Each callback that may be waited for stops the loop, which would sleep otherwise. */
#define RUN_UNTIL(a, condition)                                                                                        \
    do {                                                                                                               \
        while (!(condition))                                                                                           \
            (void)uv_run(&(a)->loop, UV_RUN_ONCE);                                                                     \
    } while (0)

static inline void asking_close(struct asking *a)
{
    if (a->kv == NULL)
        return;
    a->kv_closed = 0;
    a->inside = true;
    a->kv->ops->close(a->kv, on_kv_closed, a);
    a->inside = false;
    RUN_UNTIL(a, a->kv_closed > 0);
}

/* The test has closed what it opened on the loop beside the back end. */
static inline void asking_end(struct asking *a)
{
    asking_close(a);
    uv_close((uv_handle_t *)&a->alarm, NULL);
    while (uv_run(&a->loop, UV_RUN_DEFAULT) != 0)
        continue;
    assert_int_equal(uv_loop_close(&a->loop), 0);
    for (size_t i = 0; i < ASKED_MAX; i++) {
        muster_bytes_done(&a->requests[i].bytes);
        muster_bytes_done(&a->requests[i].state_token);
    }
}

static inline void on_answer(struct mu_kv_request *request)
{
    struct asking *a = request->ctx;

    assert_false(a->inside);
    a->done[request - a->requests]++;
    uv_stop(&a->loop);
    if (request->rc < 0)
        assert_int_equal(request->error.code, request->rc);
}

/* Asks with the request of that number, which must not be under way. */
static inline struct mu_kv_request *ask_at(struct asking *a, size_t index, struct mu_kv_request what)
{
    struct mu_kv_request *request = &a->requests[index];

    muster_bytes_done(&request->bytes);
    muster_bytes_done(&request->state_token);
    *request = what;
    request->done = on_answer;
    request->ctx = a;
    if (request->timeout_ms == 0)
        request->timeout_ms = QUICK_MS;
    a->done[index] = 0;
    a->inside = true;
    a->kv->ops->submit(a->kv, request);
    a->inside = false;
    return request;
}

static inline struct mu_kv_request *answer_at(struct asking *a, size_t index)
{
    RUN_UNTIL(a, a->done[index] > 0);
    assert_int_equal(a->done[index], 1);
    return &a->requests[index];
}

static inline struct mu_kv_request *ask(struct asking *a, struct mu_kv_request what)
{
    (void)ask_at(a, 0, what);
    return answer_at(a, 0);
}

static inline void assert_bytes(const struct muster_bytes *bytes, const char *text)
{
    assert_non_null(bytes->data);
    assert_int_equal(bytes->len, strlen(text));
    assert_memory_equal(bytes->data, text, bytes->len);
}

static inline void assert_ok(const struct mu_kv_request *request)
{
    if (request->rc != 0)
        fail_msg("%s", request->error.text);
}

static inline struct mu_kv_request asking_write(const char *value, const struct muster_bytes *token)
{
    struct mu_kv_request request = { .kind = MU_KV_WRITE, .value = muster_str(value) };

    if (token != NULL) {
        request.has_token = true;
        request.token = (struct muster_slice){ token->data, token->len };
    }
    return request;
}

#endif
