/* What a blocking rendezvous remembers of its handler's events, and which of them answers a call. */
#include "handler/blocking_rdzv.h"
#include "pure.h"

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

        for (int standing = OUT; standing <= (int)REMOVED; standing++)
            assert_int_equal(mu_blocking_after((enum mu_blocking_standing)standing, &event), rows[i].after[standing]);
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

static void a_broken_round_calls_for_the_next_one(void **state)
{
    static const struct {
        enum mu_blocking_standing standing;
        int rc;
        int64_t count, expected; /* -1: the error is returned */
    } rows[] = {
        { OUT, 0, 0, 0 },     { OUT, 0, 3, 3 },     { OUT, MUSTER_ELOST, 0, -1 },    { MEMBER, 0, 0, 0 },
        { MEMBER, 0, 2, 2 },  { BROKEN, 0, 0, 1 },  { MEMBER, MUSTER_ELOST, 0, -1 }, { BROKEN, 0, 4, 4 },
        { REMOVED, 0, 0, 1 }, { REMOVED, 0, 2, 2 }, { BROKEN, MUSTER_ELOST, 9, 1 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        int64_t count = -1;
        int rc = mu_blocking_nodes_waiting(rows[i].standing, rows[i].rc, rows[i].count, &count);

        assert_int_equal(rc, rows[i].expected < 0 ? rows[i].rc : 0);
        assert_int_equal(count, rows[i].expected);
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
        assert_int_equal(mu_blocking_is_dynamic(rows[i].backend), rows[i].is_dynamic);
        muster_rdzv_params_free(params);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_event_in_every_standing),
        cmocka_unit_test(a_call_is_answered_by_its_event_or_its_failure_alone),
        cmocka_unit_test(a_broken_round_calls_for_the_next_one),
        cmocka_unit_test(errors_of_a_connection_are_told_as_such),
        cmocka_unit_test(the_store_of_a_round_is_found_by_its_back_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
