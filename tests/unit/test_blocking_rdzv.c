/* What a blocking rendezvous remembers of its handler's events, what its calls ask for, and what they return. */
#include "handler/blocking_rdzv.h"
#include "pure.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#define OUT MU_BLOCKING_OUT
#define MEMBER MU_BLOCKING_MEMBER
#define BROKEN MU_BLOCKING_BROKEN
#define REMOVED MU_BLOCKING_REMOVED

/* What came of it: the steps of a call, its result, what is to be logged and how it is recorded. */
static char told[512];

static void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void tell(const char *format, ...)
{
    size_t len = strlen(told);
    va_list args;

    va_start(args, format);
    (void)vsnprintf(told + len, sizeof told - len, format, args);
    va_end(args);
}

/* ---- What is remembered ---- */

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
        char warning[MU_BLOCKING_WARNING_MAX];

        for (int standing = OUT; standing <= (int)REMOVED; standing++) {
            struct mu_blocking_seen seen = { .standing = (enum mu_blocking_standing)standing };

            assert_int_equal(mu_blocking_trouble(&seen, &event, warning),
                             event.type == MUSTER_RDZV_BACKEND_DOWN &&
                                 (seen.standing == MEMBER || seen.standing == BROKEN));
            mu_blocking_see(&seen, &event);
            assert_int_equal(seen.standing, rows[i].after[standing]);
            assert_int_equal(seen.closed, event.type == MUSTER_RDZV_CLOSED);
        }
    }
}

static void a_heartbeat_that_could_not_be_sent_is_a_warning(void **state)
{
    const struct mu_blocking_seen seen = { .standing = MEMBER };
    const struct muster_error error = { .code = MUSTER_ELOST, .text = "the store is gone" };
    char warning[MU_BLOCKING_WARNING_MAX];

    (void)state;
    assert_true(mu_blocking_trouble(
        &seen, &(struct muster_rdzv_event){ .type = MUSTER_RDZV_BACKEND_DOWN, .error = &error }, warning));
    assert_string_equal(warning, "could not send a heartbeat: the store is gone; trying again");
    assert_true(mu_blocking_trouble(&seen, &(struct muster_rdzv_event){ .type = MUSTER_RDZV_BACKEND_DOWN }, warning));
    assert_string_equal(warning, "could not send a heartbeat: the back end does not answer; trying again");
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

/* ---- Calls ---- */

struct row {
    enum mu_blocking_call_kind kind;
    enum mu_blocking_standing standing;
    enum mu_blocking_store_kind store;
    const char *expected;
    bool is_closed; /* this is known before the call */
    int codes[3];   /* answers to its steps, one after the other; all of them say: */
    bool says_closed;
    int64_t says_count;
};

/* The rest is zero, unless it is given: nothing is known, no step fails, nothing is closed, nobody waits. */
#define ROW(name, before, text, ...)                                                                                   \
    {                                                                                                                  \
        .kind = MU_BLOCKING_##name, .standing = (before), .expected = (text), __VA_ARGS__                              \
    }

static const char *recorded_as(enum mu_rdzv_trace_kind kind)
{
    switch (kind) {
    case MU_RDZV_TRACE_JOIN_FAILED:
        return "next_rendezvous";
    case MU_RDZV_TRACE_IS_CLOSED_FAILED:
        return "is_closed";
    case MU_RDZV_TRACE_SET_CLOSED_FAILED:
        return "set_closed";
    case MU_RDZV_TRACE_NODES_WAITING_FAILED:
        return "num_nodes_waiting";
    case MU_RDZV_TRACE_SHUTDOWN_FAILED:
        return "shutdown";
    default:
        return "what no call does";
    }
}

/* Each step is answered by the next code. */
static void run_call(const struct row *row)
{
    static const char *const names[] = { [MU_BLOCKING_DO_JOIN] = "join",
                                         [MU_BLOCKING_DO_CLOSE] = "close",
                                         [MU_BLOCKING_DO_LOOK] = "look",
                                         [MU_BLOCKING_DO_LEAVE] = "leave",
                                         [MU_BLOCKING_DO_LEAVE_SOON] = "leave soon",
                                         [MU_BLOCKING_DO_OPEN_TCP] = "connect",
                                         [MU_BLOCKING_DO_OPEN_GIVEN] = "open" };
    const struct mu_blocking_seen seen = { row->standing, row->is_closed };
    struct mu_blocking_answer answer = { .closed = row->says_closed, .count = row->says_count, .info = { .round = 9 } };
    struct mu_blocking_call call = { .kind = row->kind, .store = row->store };
    char warning[MU_BLOCKING_WARNING_MAX];
    enum mu_rdzv_trace_kind kind;
    enum mu_blocking_step step;

    told[0] = '\0';
    for (size_t i = 0; (step = mu_blocking_next(&call, &seen, &answer)) != MU_BLOCKING_DO_RETURN; i++) {
        assert_true(i < COUNT(row->codes));
        tell("%s, ", names[step]);
        answer.error.code = row->codes[i];
        (void)snprintf(answer.error.text, sizeof answer.error.text, "why");
    }
    tell("%s%s", call.rc < 0 ? "fails" : "works", call.result.closed ? ", closed" : "");
    if (call.rc == 0 && call.result.count != 0)
        tell(", %d waiting", (int)call.result.count);
    if (!mu_blocking_failed(&call, &kind, warning))
        return;
    if (warning[0] != '\0')
        tell(", warns: %s", warning);
    tell(", records %s", recorded_as(kind));
}

/* Every call, by what is known before it and by the answers to its steps. */
static void each_call_takes_its_steps_and_tells_what_came_of_them(void **state)
{
    enum { LOST = MUSTER_ELOST, GONE = MUSTER_ECONNECT, LATE = MUSTER_ERDZV_TIMEOUT };
    static const struct row rows[] = {
        ROW(NEXT, OUT, "join, works"),
        ROW(NEXT, OUT, "join, open, works", .store = MU_BLOCKING_STORE_GIVEN),
        ROW(NEXT, OUT, "join, connect, works", .store = MU_BLOCKING_STORE_FIXED),
        ROW(NEXT, OUT, "join, connect, works", .store = MU_BLOCKING_STORE_MOVES),
        ROW(NEXT, OUT, "join, fails", .codes = { LOST }, .store = MU_BLOCKING_STORE_GIVEN),
        ROW(NEXT, OUT, "join, connect, leave, fails, records next_rendezvous", .codes = { 0, GONE, LOST },
            .store = MU_BLOCKING_STORE_FIXED),
        ROW(NEXT, OUT, "join, open, leave, fails, records next_rendezvous", .codes = { 0, MUSTER_ENOMEM },
            .store = MU_BLOCKING_STORE_GIVEN),

        ROW(IS_CLOSED, MEMBER, "look, works"),
        ROW(IS_CLOSED, MEMBER, "look, works, closed", .says_closed = true),
        ROW(IS_CLOSED, MEMBER, "works, closed", .is_closed = true),
        ROW(IS_CLOSED, MEMBER, "look, fails, records is_closed", .codes = { LOST }),

        ROW(SET_CLOSED, OUT, "close, works"),
        ROW(SET_CLOSED, OUT, "works, closed", .is_closed = true),
        ROW(SET_CLOSED, OUT, "close, fails, records set_closed", .codes = { LOST }),

        /* A broken round calls for the next one. */
        ROW(NODES_WAITING, OUT, "look, works", .is_closed = true),
        ROW(NODES_WAITING, OUT, "look, works, 3 waiting", .says_count = 3),
        ROW(NODES_WAITING, MEMBER, "look, works, 2 waiting", .says_count = 2),
        ROW(NODES_WAITING, BROKEN, "look, works, 1 waiting"),
        ROW(NODES_WAITING, BROKEN, "look, works, 4 waiting", .says_count = 4),
        ROW(NODES_WAITING, BROKEN, "look, works, 1 waiting", .codes = { LOST }, .says_count = 9),
        ROW(NODES_WAITING, REMOVED, "look, works, 1 waiting"),
        ROW(NODES_WAITING, REMOVED, "look, works, 2 waiting", .says_count = 2),
        ROW(NODES_WAITING, OUT, "look, fails, records num_nodes_waiting", .codes = { LOST }),
        ROW(NODES_WAITING, MEMBER, "look, fails, records num_nodes_waiting", .codes = { LOST }),

        /* Closed first, then left. Errors of the rendezvous are told as "not closed". */
        ROW(SHUT_DOWN, OUT, "close, works, closed"),
        ROW(SHUT_DOWN, OUT, "works, closed", .is_closed = true),
        ROW(SHUT_DOWN, REMOVED, "works, closed", .is_closed = true),
        ROW(SHUT_DOWN, MEMBER, "leave soon, works, closed", .is_closed = true),
        ROW(SHUT_DOWN, BROKEN, "close, leave soon, works, closed", .codes = { 0, LOST }),
        ROW(SHUT_DOWN, MEMBER, "close, leave soon, works, warns: could not be shut down: why, records shutdown",
            .codes = { LATE }),
        ROW(SHUT_DOWN, OUT, "close, fails, warns: could not be shut down: why, records shutdown",
            .codes = { MUSTER_ENOMEM }),

        ROW(FREE, OUT, "works"),
        ROW(FREE, REMOVED, "works"),
        ROW(FREE, MEMBER, "leave soon, works"),
        ROW(FREE, BROKEN, "leave soon, works", .codes = { LOST }),
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        run_call(&rows[i]);
        assert_string_equal(told, rows[i].expected);
    }
}

static void a_handler_that_uses_something_of_the_users_is_waited_for(void **state)
{
    (void)state;
    assert_int_equal(mu_blocking_end_ms(true), -1);
    assert_int_equal(mu_blocking_end_ms(false), 1000);
}

/* ---- Stores ---- */

static void a_store_that_cannot_be_opened_says_for_which_round(void **state)
{
    static const struct {
        int code, told_as;
    } rows[] = { { MUSTER_ECONNECT, MUSTER_ERDZV_CONNECTION }, { MUSTER_ENOMEM, MUSTER_ENOMEM } };
    const struct mu_blocking_seen seen = { .standing = MEMBER };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_blocking_call call = { .kind = MU_BLOCKING_NEXT, .did = MU_BLOCKING_DO_OPEN_TCP };
        const struct mu_blocking_answer answer = { .info = { .round = 9 },
                                                   .error = { .code = rows[i].code, .text = "why" } };

        assert_int_equal(mu_blocking_next(&call, &seen, &answer), MU_BLOCKING_DO_LEAVE);
        assert_int_equal(mu_blocking_next(&call, &seen, &answer), MU_BLOCKING_DO_RETURN);
        assert_int_equal(call.rc, rows[i].told_as);
        assert_string_equal(call.result.error.text, "open the store of round 9: why");
    }
}

static void a_view_shows_the_keys_of_its_round(void **state)
{
    char text[MU_BLOCKING_PREFIX_MAX], expected[MU_BLOCKING_PREFIX_MAX], run_id[MU_RDZV_RUN_ID_MAX + 1];

    (void)state;
    mu_blocking_prefix("job", 0, text);
    assert_string_equal(text, "torch.rendezvous.job.0");
    memset(run_id, 'x', sizeof run_id - 1);
    run_id[sizeof run_id - 1] = '\0';
    (void)snprintf(expected, sizeof expected, "torch.rendezvous.%s.%lld", run_id, (long long)INT64_MAX);
    mu_blocking_prefix(run_id, INT64_MAX, text);
    assert_string_equal(text, expected);
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
        bool is_given;
        int rc, kind;
        const char *host;
        int port;
        int64_t timeout_ms;
        bool is_dynamic;
    } rows[] = {
        { "c10d", "host:1234", "", false, 0, MU_BLOCKING_STORE_FIXED, "host", 1234, 60000, true },
        { "c10d", "host", "read_timeout=7", false, 0, MU_BLOCKING_STORE_FIXED, "host", 29400, 7000, true },
        { "c10d", "host:0", "", false, MUSTER_EINVAL, MU_BLOCKING_STORE_FIXED, "host", 0, 60000, true },
        { "c10d", "host:1", "read_timeout=0", false, MUSTER_EINVAL, MU_BLOCKING_STORE_FIXED, "host", 0, 60000, true },
        { "etcd-v3", "host:0", "", false, 0, MU_BLOCKING_STORE_MOVES, "", 0, 60000, false },
        { "etcd-v2", "host:0", "", true, 0, MU_BLOCKING_STORE_GIVEN, "", 0, 60000, true },
        { "etcd", "host:0", "", true, 0, MU_BLOCKING_STORE_GIVEN, "", 0, 60000, false },
        { "mine", "", "", false, 0, MU_BLOCKING_STORE_NONE, "", 0, 60000, false },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_rdzv_params *params = NULL;
        struct mu_blocking_store store;
        struct mu_dynamic_config config;
        struct muster_error error;

        assert_int_equal(muster_rdzv_params_new(rows[i].backend, rows[i].endpoint, "job", 1, 1, NULL, &params, NULL),
                         0);
        assert_int_equal(muster_rdzv_params_set_options(params, rows[i].options, NULL), 0);
        assert_int_equal(mu_blocking_find_store(rows[i].backend, params, rows[i].is_given, &store, NULL), rows[i].rc);
        assert_int_equal(store.kind, rows[i].kind);
        assert_string_equal(store.host, rows[i].host);
        assert_int_equal(store.port, rows[i].port);
        assert_int_equal(store.timeout_ms, rows[i].timeout_ms);
        assert_int_equal(mu_blocking_read_settings(rows[i].backend, params, &config, &error),
                         rows[i].is_dynamic ? 0 : MUSTER_EINVAL);
        if (!rows[i].is_dynamic)
            assert_non_null(strstr(error.text, "is not a dynamic one"));
        assert_int_equal(mu_blocking_store_has_moved(&store, &(struct muster_rdzv_event){ .type = MUSTER_RDZV_JOINED }),
                         rows[i].kind == MU_BLOCKING_STORE_MOVES);
        assert_false(mu_blocking_store_has_moved(&store, &(struct muster_rdzv_event){ .type = MUSTER_RDZV_LEFT }));
        muster_rdzv_params_free(params);
    }
}

/* ---- New, and settings ---- */

static int never_get(struct muster_rdzv_backend *backend, bool *ret_found, struct muster_bytes *ret_state,
                     struct muster_bytes *ret_token, struct muster_error *reterr)
{
    (void)backend;
    *ret_found = false;
    *ret_state = *ret_token = (struct muster_bytes){ NULL, 0 };
    return mu_fail(reterr, MUSTER_EINTERNAL, "nobody asks");
}

static int never_set(struct muster_rdzv_backend *backend, struct muster_slice state, struct muster_slice token,
                     bool *ret_found, struct muster_bytes *ret_state, struct muster_bytes *ret_token, bool *ret_set,
                     struct muster_error *reterr)
{
    (void)state;
    (void)token;
    *ret_set = false;
    return never_get(backend, ret_found, ret_state, ret_token, reterr);
}

static const struct muster_store_ops store_ops = { .size = sizeof store_ops, .name = "mine" };
static const struct muster_store user_store = { &store_ops, 1000 };
static const struct muster_rdzv_backend_ops backend_ops = {
    .size = sizeof backend_ops, .name = "mine", .get_state = never_get, .set_state = never_set
};
static const struct muster_rdzv_backend user_backend = { &backend_ops };

static void a_users_back_end_gets_what_its_settings_leave_open(void **state)
{
    static const struct {
        const char *given, *name;
    } names[] = { { NULL, NULL }, { "", NULL }, { "node7", "node7" } };
    static const struct muster_rdzv_settings settings = {
        .size = sizeof settings, .run_id = "job", .min_nodes = 2, .max_nodes = 3, .timeout = { .join_ms = 70 }
    };
    struct muster_rdzv_params *params = NULL;
    struct mu_dynamic_config config;

    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        assert_int_equal(mu_blocking_settle(&settings, &user_store, &user_backend, names[i].given, &config, NULL), 0);
        assert_true(names[i].name == NULL ? config.local_addr == NULL : strcmp(config.local_addr, names[i].name) == 0);
        assert_true(strcmp(config.backend, "mine") == 0 && strcmp(config.run_id, "job") == 0);
        assert_int_equal(config.dialect.habits, MU_DOC_DIALECT_2_X.habits);
        assert_int_equal(config.request_timeout_ms, 60000);
        assert_true(config.settings.join_ms == 70 && config.settings.nodes_max == 3 && config.use_agent_store);
    }
    assert_int_equal(muster_rdzv_params_new("mine", "", "job", 2, 3, "node7", &params, NULL), 0);
    assert_int_equal(muster_rdzv_params_set_options(params, "join_timeout=70,dialect=1.13", NULL), 0);
    assert_int_equal(mu_blocking_read_params(params, &user_store, &user_backend, &config, NULL), 0);
    assert_true(strcmp(config.backend, "mine") == 0 && strcmp(config.run_id, "job") == 0);
    assert_string_equal(config.local_addr, "node7");
    assert_int_equal(config.dialect.habits, MU_HABITS_1_13);
    assert_int_equal(config.request_timeout_ms, 60000);
    assert_int_equal(config.settings.join_ms, 70000);
    muster_rdzv_params_free(params);
}

/* Its settings are looked at before its parts, and the error says what it was for. */
static void a_users_back_end_that_cannot_be_used_is_named(void **state)
{
    static const struct muster_rdzv_settings good = {
        .size = sizeof good, .run_id = "job", .min_nodes = 1, .max_nodes = 1
    };
    static const struct muster_rdzv_settings bad = { .size = 0 };
    static const struct {
        const struct muster_rdzv_settings *settings;
        const struct muster_store *store;
        const struct muster_rdzv_backend *backend;
        const char *text;
    } rows[] = {
        { NULL, NULL, NULL, "make a dynamic rendezvous: the size of the settings is not set" },
        { &bad, NULL, NULL, "make a dynamic rendezvous: the size of the settings is not set" },
        { &good, NULL, NULL, "make a dynamic rendezvous: a rendezvous back end with a name is needed" },
        { &good, NULL, &user_backend,
          "make a dynamic rendezvous: a store is needed, which the members of a round share" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_error error = { .code = 0 }, ret = { .code = 0 };
        struct mu_dynamic_config config;
        int rc = mu_blocking_settle(rows[i].settings, rows[i].store, rows[i].backend, "node7", &config, &error);

        assert_int_equal(mu_blocking_create_failed(&config, rc, &error, &ret), MUSTER_EINVAL);
        assert_string_equal(ret.text, rows[i].text);
    }
}

static void settings_are_told_as_far_as_there_is_room(void **state)
{
    const struct mu_dynamic_config config = { .run_id = "job",
                                              .settings = { .nodes_min = 2, .nodes_max = 3, .join_ms = 70 },
                                              .bind = { .hosts = "any", .allow = "10.0.0.0/8" } };
    struct muster_rdzv_settings whole = { .size = sizeof whole }, none = { .size = 0 },
                                older = { .size = offsetof(struct muster_rdzv_settings, timeout), .allow = "left" };
    struct muster_error error;

    (void)state;
    assert_int_equal(mu_blocking_tell_settings(&config, &whole, &error), 0);
    assert_true(whole.size == sizeof whole && whole.max_nodes == 3 && whole.timeout.join_ms == 70);
    assert_true(strcmp(whole.bind, "any") == 0 && strcmp(whole.allow, "10.0.0.0/8") == 0 && whole.no_agent_store);
    assert_int_equal(mu_blocking_tell_settings(&config, &older, &error), 0);
    assert_true(older.max_nodes == 3 && older.timeout.join_ms == 0 && strcmp(older.allow, "left") == 0);
    assert_int_equal(mu_blocking_tell_settings(&config, &none, &error), MUSTER_EINVAL);
    assert_string_equal(error.text, "the size of the settings is not set");
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
    struct muster_error error;

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
    assert_int_equal(mu_blocking_check_twin("static", false, &error), 0);
    assert_int_equal(mu_blocking_check_twin("static", true, &error), MUSTER_EINVAL);
    assert_string_equal(
        error.text, "the rendezvous handler 'static' is in a round already; an agent needs one that has not joined");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_event_in_every_standing),
        cmocka_unit_test(a_heartbeat_that_could_not_be_sent_is_a_warning),
        cmocka_unit_test(a_call_is_answered_by_its_event_or_its_failure_alone),
        cmocka_unit_test(what_was_seen_closed_stays_closed),
        cmocka_unit_test(each_call_takes_its_steps_and_tells_what_came_of_them),
        cmocka_unit_test(a_handler_that_uses_something_of_the_users_is_waited_for),
        cmocka_unit_test(a_store_that_cannot_be_opened_says_for_which_round),
        cmocka_unit_test(a_view_shows_the_keys_of_its_round),
        cmocka_unit_test(errors_of_a_connection_are_told_as_such),
        cmocka_unit_test(the_store_of_a_round_is_found_by_its_back_end),
        cmocka_unit_test(a_users_back_end_gets_what_its_settings_leave_open),
        cmocka_unit_test(a_users_back_end_that_cannot_be_used_is_named),
        cmocka_unit_test(settings_are_told_as_far_as_there_is_room),
        cmocka_unit_test(a_second_handler_does_not_host_and_needs_a_first_one_outside_of_a_round),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
