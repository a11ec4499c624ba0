/* What a blocking rendezvous remembers of its handler's events, what its calls ask for, and what they return. */
#include "handler/blocking_rdzv.h"
#include "pure.h"

#include <stdio.h>

#define OUT MU_BLOCKING_OUT
#define MEMBER MU_BLOCKING_MEMBER
#define BROKEN MU_BLOCKING_BROKEN
#define REMOVED MU_BLOCKING_REMOVED

static void every_event_in_every_standing(void **state)
{
    static const struct {
        enum muster_rdzv_event_type type;
        enum muster_rdzv_request request; /* of FAILED */
        enum mu_blocking_standing after[4];
    } rows[] = {
        { MUSTER_RDZV_JOINED, 0, { MEMBER, MEMBER, MEMBER, MEMBER } },
        { MUSTER_RDZV_LEFT, 0, { OUT, OUT, OUT, OUT } },
        { MUSTER_RDZV_PEERS_LOST, 0, { OUT, BROKEN, BROKEN, REMOVED } },
        { MUSTER_RDZV_REMOVED, 0, { REMOVED, REMOVED, REMOVED, REMOVED } },
        { MUSTER_RDZV_CLOSED, 0, { OUT, MEMBER, BROKEN, REMOVED } },
        { MUSTER_RDZV_WAITING, 0, { OUT, MEMBER, BROKEN, REMOVED } },
        { MUSTER_RDZV_LOOKED, 0, { OUT, MEMBER, BROKEN, REMOVED } },
        { MUSTER_RDZV_BACKEND_DOWN, 0, { OUT, MEMBER, BROKEN, REMOVED } },
        { MUSTER_RDZV_BACKEND_UP, 0, { OUT, MEMBER, BROKEN, REMOVED } },
        { MUSTER_RDZV_PROGRESS, 0, { OUT, MEMBER, BROKEN, REMOVED } },
        { MUSTER_RDZV_FAILED, MUSTER_RDZV_REQUEST_JOIN, { OUT, OUT, OUT, OUT } },
        { MUSTER_RDZV_FAILED, MUSTER_RDZV_REQUEST_MEMBERSHIP, { OUT, BROKEN, BROKEN, REMOVED } },
        { MUSTER_RDZV_FAILED, MUSTER_RDZV_REQUEST_LEAVE, { OUT, MEMBER, BROKEN, REMOVED } },
        { MUSTER_RDZV_FAILED, MUSTER_RDZV_REQUEST_CLOSE, { OUT, MEMBER, BROKEN, REMOVED } },
        { MUSTER_RDZV_FAILED, MUSTER_RDZV_REQUEST_LOOK, { OUT, MEMBER, BROKEN, REMOVED } },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_rdzv_event event = { .type = rows[i].type, .request = rows[i].request };

        for (int standing = OUT; standing <= (int)REMOVED; standing++) {
            struct mu_blocking_seen seen = { .standing = (enum mu_blocking_standing)standing };

            assert_int_equal(mu_blocking_must_warn(&seen, &event),
                             event.type == MUSTER_RDZV_BACKEND_DOWN &&
                                 (seen.standing == MEMBER || seen.standing == BROKEN));
            mu_blocking_see(&seen, &event);
            assert_int_equal(seen.standing, rows[i].after[standing]);
            assert_int_equal(seen.closed, event.type == MUSTER_RDZV_CLOSED);
        }
    }
}

static void a_call_is_answered_by_its_event_or_its_failure_alone(void **state)
{
    static const enum muster_rdzv_request requests[] = { MUSTER_RDZV_REQUEST_UNKNOWN, MUSTER_RDZV_REQUEST_JOIN,
                                                         MUSTER_RDZV_REQUEST_LEAVE, MUSTER_RDZV_REQUEST_CLOSE,
                                                         MUSTER_RDZV_REQUEST_LOOK };
    static const struct {
        enum muster_rdzv_event_type type;
        enum muster_rdzv_request request, answers;
    } rows[] = {
        { MUSTER_RDZV_JOINED, 0, MUSTER_RDZV_REQUEST_JOIN },
        { MUSTER_RDZV_LEFT, 0, MUSTER_RDZV_REQUEST_LEAVE },
        { MUSTER_RDZV_CLOSED, 0, MUSTER_RDZV_REQUEST_CLOSE },
        { MUSTER_RDZV_LOOKED, 0, MUSTER_RDZV_REQUEST_LOOK },
        { MUSTER_RDZV_FAILED, MUSTER_RDZV_REQUEST_JOIN, MUSTER_RDZV_REQUEST_JOIN },
        { MUSTER_RDZV_FAILED, MUSTER_RDZV_REQUEST_LEAVE, MUSTER_RDZV_REQUEST_LEAVE },
        { MUSTER_RDZV_FAILED, MUSTER_RDZV_REQUEST_CLOSE, MUSTER_RDZV_REQUEST_CLOSE },
        { MUSTER_RDZV_FAILED, MUSTER_RDZV_REQUEST_LOOK, MUSTER_RDZV_REQUEST_LOOK },
        { MUSTER_RDZV_FAILED, MUSTER_RDZV_REQUEST_MEMBERSHIP, MUSTER_RDZV_REQUEST_UNKNOWN },
        { MUSTER_RDZV_PEERS_LOST, 0, MUSTER_RDZV_REQUEST_UNKNOWN },
        { MUSTER_RDZV_REMOVED, 0, MUSTER_RDZV_REQUEST_UNKNOWN },
        { MUSTER_RDZV_WAITING, 0, MUSTER_RDZV_REQUEST_UNKNOWN },
        { MUSTER_RDZV_PROGRESS, 0, MUSTER_RDZV_REQUEST_UNKNOWN },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_rdzv_event event = { .type = rows[i].type, .request = rows[i].request };

        for (size_t r = 0; r < COUNT(requests); r++)
            assert_int_equal(mu_blocking_answers(requests[r], &event),
                             requests[r] != MUSTER_RDZV_REQUEST_UNKNOWN && requests[r] == rows[i].answers);
    }
}

static void what_was_seen_closed_stays_closed(void **state)
{
    struct mu_blocking_seen seen = { .closed = true };

    (void)state;
    mu_blocking_see(&seen, &(struct muster_rdzv_event){ .type = MUSTER_RDZV_LOOKED });
    assert_true(seen.closed);
    assert_true(mu_blocking_is_known(MU_BLOCKING_IS_CLOSED, &seen));
    assert_false(mu_blocking_is_known(MU_BLOCKING_SHUT_DOWN, &seen));
    seen.closed = false;
    assert_false(mu_blocking_is_known(MU_BLOCKING_IS_CLOSED, &seen));
}

/* The steps of the call, then what came of it. Each step is answered by the next code. */
static const char *trace(struct mu_blocking_call *call, struct mu_blocking_seen seen, const int codes[3],
                         struct mu_blocking_answer answer, char text[static 128])
{
    static const char *const names[] = { [MU_BLOCKING_DO_JOIN] = "join",
                                         [MU_BLOCKING_DO_CLOSE] = "close",
                                         [MU_BLOCKING_DO_LOOK] = "look",
                                         [MU_BLOCKING_DO_LEAVE] = "leave",
                                         [MU_BLOCKING_DO_LEAVE_SOON] = "leave soon",
                                         [MU_BLOCKING_DO_OPEN_STORES] = "open" };
    enum mu_blocking_step step;
    int used = 0;

    for (size_t i = 0; (step = mu_blocking_next(call, &seen, &answer)) != MU_BLOCKING_DO_RETURN; i++) {
        assert_true(i < 3);
        used += snprintf(text + used, 128 - (size_t)used, "%s, ", names[step]);
        answer.error.code = codes[i];
    }
    (void)snprintf(text + used, 128 - (size_t)used, "%s%s%s", call->rc < 0 ? "fails" : "works",
                   call->rc == 0 && call->result.error.code < 0 ? " with an error" : "", call->warns ? ", warns" : "");
    return text;
}

/* Every call, by what is known before it and by the answers to its steps. */
static void each_call_takes_its_steps_and_tells_what_came_of_them(void **state)
{
    enum { LOST = MUSTER_ELOST, GONE = MUSTER_ECONNECT, LATE = MUSTER_ERDZV_TIMEOUT, NONE = -1 };
    static const struct {
        enum mu_blocking_call_kind kind;
        enum mu_blocking_standing standing;
        bool closed;
        int codes[3];
        bool answer_closed;
        int64_t answer_count;
        const char *expected;
        bool told_closed;
        int64_t told_count;
        int record;
    } rows[] = {
        { MU_BLOCKING_NEXT, OUT, false, { 0 }, false, 0, "join, open, works", false, 0, NONE },
        { MU_BLOCKING_NEXT, OUT, false, { LOST }, false, 0, "join, fails", false, 0, NONE },
        { MU_BLOCKING_NEXT,
          OUT,
          false,
          { 0, GONE, LOST },
          false,
          0,
          "join, open, leave, fails",
          false,
          0,
          MU_RDZV_TRACE_JOIN_FAILED },

        { MU_BLOCKING_IS_CLOSED, MEMBER, false, { 0 }, false, 0, "look, works", false, 0, NONE },
        { MU_BLOCKING_IS_CLOSED, MEMBER, false, { 0 }, true, 0, "look, works", true, 0, NONE },
        { MU_BLOCKING_IS_CLOSED, MEMBER, true, { 0 }, false, 0, "works", true, 0, NONE },
        { MU_BLOCKING_IS_CLOSED,
          MEMBER,
          false,
          { LOST },
          false,
          0,
          "look, fails",
          false,
          0,
          MU_RDZV_TRACE_IS_CLOSED_FAILED },

        { MU_BLOCKING_SET_CLOSED, OUT, false, { 0 }, false, 0, "close, works", false, 0, NONE },
        { MU_BLOCKING_SET_CLOSED, OUT, true, { 0 }, false, 0, "works", true, 0, NONE },
        { MU_BLOCKING_SET_CLOSED,
          OUT,
          false,
          { LOST },
          false,
          0,
          "close, fails",
          false,
          0,
          MU_RDZV_TRACE_SET_CLOSED_FAILED },

        /* A broken round calls for the next one. */
        { MU_BLOCKING_NODES_WAITING, OUT, true, { 0 }, false, 0, "look, works", false, 0, NONE },
        { MU_BLOCKING_NODES_WAITING, OUT, false, { 0 }, false, 3, "look, works", false, 3, NONE },
        { MU_BLOCKING_NODES_WAITING, MEMBER, false, { 0 }, false, 2, "look, works", false, 2, NONE },
        { MU_BLOCKING_NODES_WAITING, BROKEN, false, { 0 }, false, 0, "look, works", false, 1, NONE },
        { MU_BLOCKING_NODES_WAITING, BROKEN, false, { 0 }, false, 4, "look, works", false, 4, NONE },
        { MU_BLOCKING_NODES_WAITING, BROKEN, false, { LOST }, false, 9, "look, works", false, 1, NONE },
        { MU_BLOCKING_NODES_WAITING, REMOVED, false, { 0 }, false, 0, "look, works", false, 1, NONE },
        { MU_BLOCKING_NODES_WAITING, REMOVED, false, { 0 }, false, 2, "look, works", false, 2, NONE },
        { MU_BLOCKING_NODES_WAITING,
          OUT,
          false,
          { LOST },
          false,
          0,
          "look, fails",
          false,
          0,
          MU_RDZV_TRACE_NODES_WAITING_FAILED },
        { MU_BLOCKING_NODES_WAITING,
          MEMBER,
          false,
          { LOST },
          false,
          0,
          "look, fails",
          false,
          0,
          MU_RDZV_TRACE_NODES_WAITING_FAILED },

        /* Closed first, then left. Errors of the rendezvous are told as "not closed". */
        { MU_BLOCKING_SHUT_DOWN, OUT, false, { 0 }, false, 0, "close, works", true, 0, NONE },
        { MU_BLOCKING_SHUT_DOWN, OUT, true, { 0 }, false, 0, "works", true, 0, NONE },
        { MU_BLOCKING_SHUT_DOWN, REMOVED, true, { 0 }, false, 0, "works", true, 0, NONE },
        { MU_BLOCKING_SHUT_DOWN, MEMBER, true, { 0 }, false, 0, "leave soon, works", true, 0, NONE },
        { MU_BLOCKING_SHUT_DOWN, BROKEN, false, { 0, LOST }, false, 0, "close, leave soon, works", true, 0, NONE },
        { MU_BLOCKING_SHUT_DOWN,
          MEMBER,
          false,
          { LATE },
          false,
          0,
          "close, leave soon, works with an error, warns",
          false,
          0,
          MU_RDZV_TRACE_SHUTDOWN_FAILED },
        { MU_BLOCKING_SHUT_DOWN,
          OUT,
          false,
          { MUSTER_ENOMEM },
          false,
          0,
          "close, fails, warns",
          false,
          0,
          MU_RDZV_TRACE_SHUTDOWN_FAILED },

        { MU_BLOCKING_FREE, OUT, false, { 0 }, false, 0, "works", false, 0, NONE },
        { MU_BLOCKING_FREE, REMOVED, false, { 0 }, false, 0, "works", false, 0, NONE },
        { MU_BLOCKING_FREE, MEMBER, false, { 0 }, false, 0, "leave soon, works", false, 0, NONE },
        { MU_BLOCKING_FREE, BROKEN, false, { LOST }, false, 0, "leave soon, works", false, 0, NONE },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct mu_blocking_seen seen = { rows[i].standing, rows[i].closed };
        const struct mu_blocking_answer answer = { .closed = rows[i].answer_closed, .count = rows[i].answer_count };
        struct mu_blocking_call call = { .kind = rows[i].kind };
        char text[128];

        assert_string_equal(trace(&call, seen, rows[i].codes, answer, text), rows[i].expected);
        assert_int_equal(call.result.closed, rows[i].told_closed);
        if (call.rc == 0)
            assert_int_equal(call.result.count, rows[i].told_count);
        assert_int_equal(call.records, rows[i].record != NONE);
        if (call.records)
            assert_int_equal(call.failed_as, rows[i].record);
    }
}

static void errors_of_a_connection_are_told_as_such(void **state)
{
    (void)state;
    assert_int_equal(mu_blocking_store_error(MUSTER_ECONNECT), MUSTER_ERDZV_CONNECTION);
    assert_int_equal(mu_blocking_store_error(MUSTER_ETIMEOUT), MUSTER_ERDZV_CONNECTION);
    assert_int_equal(mu_blocking_store_error(MUSTER_ENOMEM), MUSTER_ENOMEM);
}

static void the_store_of_a_round_is_found_by_its_back_end(void **state)
{
    static const struct {
        const char *backend, *endpoint, *options;
        int rc, kind;
        const char *host;
        int port;
        int64_t timeout_ms;
        bool is_dynamic;
    } rows[] = {
        { "c10d", "host:1234", "", 0, MU_BLOCKING_STORE_FIXED, "host", 1234, 60000, true },
        { "c10d", "host", "read_timeout=7", 0, MU_BLOCKING_STORE_FIXED, "host", 29400, 7000, true },
        { "c10d", "host:0", "", MUSTER_EINVAL, MU_BLOCKING_STORE_FIXED, "host", 0, 60000, true },
        { "c10d", "host:1", "read_timeout=0", MUSTER_EINVAL, MU_BLOCKING_STORE_FIXED, "host", 0, 60000, true },
        { "etcd-v3", "host:0", "", 0, MU_BLOCKING_STORE_MOVES, "", 0, 60000, false },
        { "etcd-v2", "host:0", "", 0, MU_BLOCKING_STORE_GIVEN, "", 0, 60000, true },
        { "mine", "", "", 0, MU_BLOCKING_STORE_GIVEN, "", 0, 60000, false },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_rdzv_params *params = NULL;
        struct mu_blocking_store store;

        assert_int_equal(muster_rdzv_params_new(rows[i].backend, rows[i].endpoint, "job", 1, 1, NULL, &params, NULL),
                         0);
        assert_int_equal(muster_rdzv_params_set_options(params, rows[i].options, NULL), 0);
        assert_int_equal(mu_blocking_find_store(rows[i].backend, params, &store, NULL), rows[i].rc);
        assert_int_equal(store.kind, rows[i].kind);
        assert_string_equal(store.host, rows[i].host);
        assert_int_equal(store.port, rows[i].port);
        assert_int_equal(store.timeout_ms, rows[i].timeout_ms);
        assert_int_equal(mu_blocking_check_dynamic(rows[i].backend, NULL), rows[i].is_dynamic ? 0 : MUSTER_EINVAL);
        assert_int_equal(mu_blocking_store_has_moved(&store, &(struct muster_rdzv_event){ .type = MUSTER_RDZV_JOINED }),
                         rows[i].kind == MU_BLOCKING_STORE_MOVES);
        assert_false(mu_blocking_store_has_moved(&store, &(struct muster_rdzv_event){ .type = MUSTER_RDZV_LEFT }));
        muster_rdzv_params_free(params);
    }
}

/* The store that the first handler may host goes on there. */
static void a_second_handler_does_not_host_and_needs_a_first_one_outside_of_a_round(void **state)
{
    static const struct {
        const char *backend;
        enum mu_blocking_standing standing;
        int rc;
        bool is_told; /* not to host */
    } rows[] = {
        { "c10d", OUT, 0, true },
        { "c10d", REMOVED, 0, true },
        { "c10d", MEMBER, MUSTER_EINVAL, false },
        { "c10d", BROKEN, MUSTER_EINVAL, false },
        { "etcd-v2", OUT, 0, false },
        { "etcd-v3", OUT, 0, false },
        { "mine", OUT, 0, false },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct mu_blocking_seen seen = { .standing = rows[i].standing };
        struct muster_rdzv_params *params = NULL;
        struct muster_value value;

        assert_int_equal(muster_rdzv_params_new(rows[i].backend, "host", "job", 1, 1, NULL, &params, NULL), 0);
        assert_int_equal(mu_blocking_twin(rows[i].backend, &seen, params, NULL), rows[i].rc);
        assert_int_equal(mu_blocking_twin(rows[i].backend, &seen, NULL, NULL), rows[i].rc);
        assert_int_equal(muster_rdzv_params_get(params, "is_host", &value), rows[i].is_told);
        if (rows[i].is_told)
            assert_false(value.boolean);
        muster_rdzv_params_free(params);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_event_in_every_standing),
        cmocka_unit_test(a_call_is_answered_by_its_event_or_its_failure_alone),
        cmocka_unit_test(what_was_seen_closed_stays_closed),
        cmocka_unit_test(each_call_takes_its_steps_and_tells_what_came_of_them),
        cmocka_unit_test(errors_of_a_connection_are_told_as_such),
        cmocka_unit_test(the_store_of_a_round_is_found_by_its_back_end),
        cmocka_unit_test(a_second_handler_does_not_host_and_needs_a_first_one_outside_of_a_round),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
