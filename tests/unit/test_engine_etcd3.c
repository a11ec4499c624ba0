/* The fold machine's requests in etcd's words: requests as they go to etcd, and what each answer and error means. */
#include "failmalloc.h"
#include "kv/engine_etcd3.h"
#include "proc/will.h"
#include "pure.h"
#include "store/net.h"

#include <stdio.h>

static struct mu_engine_etcd3_names names;
static struct mu_engine_etcd3_ask asked_for;

static int stop(void **state)
{
    (void)state;
    mu_engine_etcd3_ask_done(&asked_for);
    return 0;
}

static int start(void **state)
{
    (void)state;
    mu_engine_etcd3_names_init(&names, "job 1");
    return 0;
}

/* ---- Requests ---- */

static const char *body(void)
{
    static char text[8192];
    struct mu_buf built = { 0 };

    assert_int_equal(mu_etcd3_build(&asked_for.request, &built, NULL), 0);
    (void)snprintf(text, sizeof text, "%s%s %.*s", asked_for.repeatable ? "again " : "",
                   mu_etcd3_path(asked_for.request.kind), (int)built.len, built.data);
    mu_buf_done(&built);
    return text;
}

static const char *asks(struct mu_fold_effect effect)
{
    mu_engine_etcd3_ask_done(&asked_for);
    assert_int_equal(mu_engine_etcd3_ask(&names, &effect, 60, &asked_for), 0);
    return body();
}

#define ASKS(...) asks((struct mu_fold_effect){ __VA_ARGS__ })

static void a_slash_in_a_run_id_stays_in_its_job(void **state)
{
    (void)state;
    assert_string_equal(names.prefix, "/muster/job 1/");
    assert_string_equal(names.waiting, "/muster//waiting/job 1");
    mu_engine_etcd3_names_init(&names, "a/nodes%2F");
    assert_string_equal(names.prefix, "/muster/a%2Fnodes%252F/");
    assert_string_equal(names.waiting, "/muster//waiting/a%2Fnodes%252F");
}

static void a_run_id_of_any_length_has_room(void **state)
{
    char run_id[MU_RDZV_RUN_ID_MAX + 1];

    (void)state;
    memset(run_id, '/', MU_RDZV_RUN_ID_MAX);
    run_id[MU_RDZV_RUN_ID_MAX] = '\0';
    mu_engine_etcd3_names_init(&names, run_id);
    assert_int_equal(strlen(names.prefix), strlen("/muster//") + 3 * MU_RDZV_RUN_ID_MAX);
    assert_int_equal(strlen(names.waiting), strlen("/muster//waiting/") + 3 * MU_RDZV_RUN_ID_MAX);
}

static void a_load_reads_all_keys_of_its_scope(void **state)
{
    (void)state;
    assert_string_equal(
        ASKS(.type = MU_FOLD_DO_LOAD, .scope = MU_FOLD_JOB),
        "/v3/kv/range {\"key\":\"L211c3Rlci9qb2IgMS9qb2Iv\",\"range_end\":\"L211c3Rlci9qb2IgMS9qb2Iw\"}");
    assert_string_equal(
        ASKS(.type = MU_FOLD_DO_LOAD, .scope = MU_FOLD_NODES),
        "/v3/kv/range {\"key\":\"L211c3Rlci9qb2IgMS9ub2Rlcy8=\",\"range_end\":\"L211c3Rlci9qb2IgMS9ub2RlczA=\"}");
}

static void leases_of_the_job_are_asked_for_by_their_time_and_kept_by_their_number(void **state)
{
    (void)state;
    assert_string_equal(ASKS(.type = MU_FOLD_DO_GRANT_JOB), "/v3/lease/grant {\"TTL\":\"60\"}");
    assert_string_equal(ASKS(.type = MU_FOLD_DO_KEEP_JOB, .lease = 7), "/v3/lease/keepalive {\"ID\":\"7\"}");
}

static void a_range_reads_one_key_or_all_that_begin_like_it(void **state)
{
    const struct mu_etcd3_op *range = &asked_for.request.range;

    (void)state;
    (void)ASKS(.type = MU_FOLD_DO_RANGE, .key = { "seat/1/2", 8 });
    assert_true(asked_for.request.kind == MU_ETCD3_RANGE && !range->prefix && !asked_for.repeatable);
    assert_true(mu_slice_equal(range->key, mu_slice_str("/muster/job 1/seat/1/2")));
    (void)ASKS(.type = MU_FOLD_DO_RANGE, .key = { "member/", 7 }, .prefix = true);
    assert_true(range->prefix && mu_slice_equal(range->key, mu_slice_str("/muster/job 1/member/")));
}

static struct mu_slice key_of(const struct mu_etcd3_op *op)
{
    return op->key;
}

static void a_write_is_one_transaction(void **state)
{
    const struct mu_fold_op ops[] = { { MU_FOLD_PUT, { "job/doc", 7 }, { "v", 1 }, 3 },
                                      { MU_FOLD_PUT, { "job/news", 8 }, { "w", 1 }, 4 },
                                      { .kind = MU_FOLD_DELETE_PREFIX, .key = { "seat/1/", 7 } } };
    const struct mu_fold_op otherwise = { MU_FOLD_PUT, { "nodes/1", 7 }, { "x", 1 }, 6 };
    const struct mu_fold_write write = {
        .compares = { { MU_FOLD_MOD, { "job/doc", 7 }, 5 }, { MU_FOLD_ABSENT, { "job/closed", 10 }, 0 } },
        .compares_count = 2,
        .ops = ops,
        .ops_count = 3,
        .else_ops = &otherwise,
        .else_count = 1,
        .repeatable = true,
    };
    const struct mu_etcd3_txn *txn = &asked_for.request.txn;

    (void)state;
    (void)ASKS(.type = MU_FOLD_DO_WRITE, .write = &write);
    assert_true(asked_for.repeatable && asked_for.request.kind == MU_ETCD3_TXN);
    assert_true(txn->compares_count == 2 && txn->success_count == 3 && txn->failure_count == 1);
    assert_true(txn->compares[0].target == MU_ETCD3_MOD && txn->compares[0].number == 5);
    assert_true(txn->compares[1].target == MU_ETCD3_CREATE && txn->compares[1].number == 0); /* absent */
    assert_true(mu_slice_equal(txn->compares[1].key, mu_slice_str("/muster/job 1/job/closed")));
    assert_true(mu_slice_equal(key_of(&txn->success[0]), mu_slice_str("/muster/job 1/job/doc")));
    assert_true(mu_slice_equal(key_of(&txn->success[1]), mu_slice_str("/muster/job 1/job/news")));
    assert_true(mu_slice_equal(key_of(&txn->failure[0]), mu_slice_str("/muster/job 1/nodes/1")));
    assert_true(txn->success[1].lease == 4 && txn->failure[0].lease == 6 && !txn->success[1].prefix);
    assert_true(txn->success[2].kind == MU_ETCD3_OP_DELETE && txn->success[2].prefix);
}

static void a_mark_is_put_only_beside_the_document_that_we_know(void **state)
{
    const struct mu_etcd3_txn *txn = &asked_for.request.txn;

    (void)state;
    (void)ASKS(.type = MU_FOLD_DO_LOOK_AROUND, .value = { "me", 2 }, .lease = 7, .doc_mod = 9);
    assert_true(txn->compares_count == 1 && txn->compares[0].target == MU_ETCD3_MOD && txn->compares[0].number == 9);
    assert_true(txn->success_count == 3 && txn->failure_count == 2 && asked_for.repeatable);
    assert_true(txn->success[0].limit == MU_WAITERS_RECORDS_MAX && txn->success[1].limit == MU_WAITERS_MARKS_MAX);
    assert_true(mu_slice_equal(key_of(&txn->success[0]), mu_slice_str("/muster/job 1/nodes/")));
    assert_true(mu_slice_equal(key_of(&txn->success[1]), mu_slice_str("/muster//waiting/")));
    assert_true(mu_slice_equal(key_of(&txn->success[2]), mu_slice_str("/muster//waiting/job 1")));
    assert_true(txn->success[2].kind == MU_ETCD3_OP_PUT && txn->success[2].lease == 7);
    (void)ASKS(.type = MU_FOLD_DO_LOOK_AROUND, .lease = 7); /* no mark */
    assert_true(txn->success_count == 2 && txn->failure_count == 2);
    (void)ASKS(.type = MU_FOLD_DO_LOOK_AROUND, .key = { "member/1/0000", 13 }, .value = { "me", 2 }, .lease = 7);
    assert_true(txn->success_count == 4 && txn->failure_count == 3);
    for (size_t i = 0; i < 3; i++)
        assert_true(txn->success[i].kind == MU_ETCD3_OP_RANGE && txn->failure[i].kind == MU_ETCD3_OP_RANGE);
    assert_true(mu_slice_equal(key_of(&txn->success[2]), mu_slice_str("/muster/job 1/member/1/0000")));
    assert_true(mu_slice_equal(key_of(&txn->failure[2]), mu_slice_str("/muster/job 1/member/1/0000")));
    assert_true(!txn->success[2].prefix && txn->success[3].kind == MU_ETCD3_OP_PUT && txn->success[3].lease == 7);
    (void)ASKS(.type = MU_FOLD_DO_LOOK_AROUND, .key = { "member/1/0000", 13 });
    assert_true(txn->success_count == 3 && txn->failure_count == 3);
    (void)ASKS(.type = MU_FOLD_DO_UNMARK);
    assert_true(txn->compares_count == 0 && txn->success_count == 1 && txn->success[0].kind == MU_ETCD3_OP_DELETE);
    assert_true(mu_slice_equal(key_of(&txn->success[0]), mu_slice_str("/muster//waiting/job 1")));
}

/* ---- Errors ---- */

/* Each error that etcd's clients know (rpctypes), as its gateway says it. */
static const struct {
    int code;
    const char *message;
    bool final, lease_gone, lease_final;
} errors[] = {
    /* We may not, or may not so: asking again changes nothing. */
    { MU_ETCD3_DENIED, "etcdserver: permission denied", true, false, true },
    { MU_ETCD3_UNAUTHENTICATED, "etcdserver: invalid auth token", true, false, true },
    { MU_ETCD3_INVALID, "etcdserver: authentication failed, invalid user ID or password", true, false, true },
    { MU_ETCD3_INVALID, "etcdserver: user name is empty", true, false, true },
    { MU_ETCD3_INVALID, "etcdserver: revision of auth store is old", true, false, true },
    { MU_ETCD3_INVALID, "etcdserver: key is not provided", true, false, true },
    { MU_ETCD3_INVALID, "etcdserver: duplicate key given in txn request", true, false, true },
    { MU_ETCD3_INVALID, "etcdserver: too many operations in txn request", true, false, true },
    { MU_ETCD3_INVALID, "etcdserver: request is too large", true, false, false },
    /* The lease of a put is gone: nothing was done, another lease is needed. */
    { MU_ETCD3_NOT_FOUND, "etcdserver: requested lease not found", false, true, true },
    /* Full, or too busy: somebody may make room. */
    { MU_ETCD3_EXHAUSTED, "etcdserver: mvcc: database space exceeded", false, false, false },
    { MU_ETCD3_EXHAUSTED, "etcdserver: too many requests", false, false, false },
    /* It may have been done. */
    { MU_ETCD3_UNAVAILABLE, "etcdserver: no leader", false, false, false },
    { MU_ETCD3_UNAVAILABLE, "etcdserver: leader changed", false, false, false },
    { MU_ETCD3_UNAVAILABLE, "etcdserver: request timed out", false, false, false },
    { MU_ETCD3_UNAVAILABLE, "etcdserver: request timed out, possibly due to previous leader failure", false, false,
      false },
    { MU_ETCD3_UNAVAILABLE, "etcdserver: server stopped", false, false, false },
    { MU_ETCD3_UNAVAILABLE, "etcdserver: unhealthy cluster", false, false, false },
    { MU_ETCD3_CANCELED, "context canceled", false, false, false },
    { MU_ETCD3_UNKNOWN, "etcdserver: corrupt cluster", false, false, false },
    { MU_ETCD3_DEADLINE, "context deadline exceeded", false, false, false },
    { MU_ETCD3_INTERNAL, "internal error", false, false, false },
    /* Of a state that may change. */
    { MU_ETCD3_PRECONDITION, "etcdserver: authentication is not enabled", false, false, true },
    { MU_ETCD3_PRECONDITION, "etcdserver: lease already exists", false, false, true },
    { MU_ETCD3_OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", false, false, true },
    { MU_ETCD3_OUT_OF_RANGE, "etcdserver: too large lease TTL", false, false, false },
};

static void every_error_of_etcd_is_final_or_tried_again(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(errors); i++) {
        struct muster_error error;
        struct mu_fold_event event;
        int rc = mu_etcd3_fail(errors[i].code, mu_slice_str(errors[i].message), 400, &error);

        event = mu_engine_etcd3_failed(5, rc, errors[i].code, &error);
        assert_true(event.type == MU_FOLD_ON_REQUEST_FAILED && event.id == 5 && event.error == &error);
        if (event.final != errors[i].final || event.lease_gone != errors[i].lease_gone)
            fail_msg("%s", errors[i].message);
        event = mu_engine_etcd3_lease_lost(6, &error);
        assert_true(event.type == MU_FOLD_ON_LEASE_LOST && event.id == 6 && event.error == &error);
        if (event.final != errors[i].lease_final)
            fail_msg("lease: %s", errors[i].message);
    }
}

static void without_an_answer_of_etcd_only_what_is_no_etcd_is_final(void **state)
{
    static const struct {
        int rc;
        bool final;
    } table[] = { { MUSTER_ENOTSUP, true },   { MUSTER_EPROTOCOL, true }, { MUSTER_ETIMEOUT, false },
                  { MUSTER_ECONNECT, false }, { MUSTER_ELOST, false },    { MUSTER_ERESOLVE, false },
                  { MUSTER_ENOMEM, false },   { MUSTER_ELIMIT, false },   { MUSTER_ECANCELED, false } };

    (void)state;
    for (size_t i = 0; i < COUNT(table); i++) {
        struct muster_error error = { .code = table[i].rc };

        assert_int_equal(mu_engine_etcd3_failed(5, table[i].rc, 0, &error).final, table[i].final);
        assert_int_equal(mu_engine_etcd3_lease_lost(5, &error).final, table[i].final);
        assert_false(mu_engine_etcd3_failed(5, table[i].rc, 0, &error).lease_gone);
    }
}

/* ---- The will ---- */

static const struct mu_fold_op killed = { MU_FOLD_PUT, { "nodes/1/killed", 14 }, { "{}", 2 }, 4 };

static void a_will_puts_the_mark_and_then_ends_the_lease(void **state)
{
    static const char first[] = "POST /v3/kv/txn HTTP/1.1\r\nHost: etcd1:2379\r\nContent-Type: application/json\r\n"
                                "Content-Length: ";
    static const char second[] = "POST /v3/lease/revoke HTTP/1.1\r\nHost: etcd1:2379\r\nContent-Type: "
                                 "application/json\r\nContent-Length: 10\r\nConnection: close\r\n\r\n{\"ID\":\"7\"}";
    const struct mu_http_server server = { "http://etcd1:2379", "192.0.2.7", 2379 };
    char text[MU_WILL_BYTES_MAX + 1], shown[MU_ADDR_TEXT_MAX];
    struct mu_kv_lone will;
    union mu_addr address;
    char *body, *end;
    size_t len;

    (void)state;
    assert_true(mu_engine_etcd3_will(&names, &server, false, &killed, 7, &will));
    assert_true(will.server_closes);
    memcpy(&address, &will.address, will.address_len);
    assert_string_equal(mu_addr_format(&address, shown), "192.0.2.7:2379");
    (void)snprintf(text, sizeof text, "%.*s", (int)will.bytes.len, will.bytes.data);
    assert_memory_equal(text, first, sizeof first - 1);
    len = strtoul(text + sizeof first - 1, &end, 10);
    assert_memory_equal(end, "\r\n\r\n", 4);
    body = end + 4;
    assert_string_equal(body + len, second);
    body[len] = '\0';
    assert_string_equal(body, "{\"success\":[{\"request_put\":{\"key\":\"L211c3Rlci9qb2IgMS9ub2Rlcy8xL2tpbGxlZA==\","
                              "\"value\":\"e30=\",\"lease\":\"4\"}}]}");
    mu_buf_done(&will.bytes);
}

/* A password is left to nobody, TLS is more than a few bytes, and a link's address means nothing without the link. */
static void there_is_no_will_where_a_few_bytes_are_not_enough(void **state)
{
    static const struct {
        struct mu_http_server server;
        bool logs_in;
        int64_t lease;
        bool will;
    } rows[] = {
        { { "http://a:1", "::1", 1 }, false, 7, true },        { { "http://a:1", "192.0.2.7", 1 }, true, 7, false },
        { { "http://a:1", "192.0.2.7", 1 }, false, 0, false }, { { "https://a:1", "192.0.2.7", 1 }, false, 7, false },
        { { "http://a:1", "fe80::1", 1 }, false, 7, false },   { { "http://a:1", "", 1 }, false, 7, false },
    };
    struct mu_kv_lone will;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_true(mu_engine_etcd3_will(&names, &rows[i].server, rows[i].logs_in, &killed, rows[i].lease, &will) ==
                    rows[i].will);
        mu_buf_done(&will.bytes);
    }
}

static void a_will_that_is_too_long_is_none(void **state)
{
    const struct mu_http_server server = { "http://etcd1:2379", "192.0.2.7", 2379 };
    char run_id[MU_RDZV_RUN_ID_MAX + 1];
    struct mu_kv_lone will;

    (void)state;
    memset(run_id, 'x', MU_RDZV_RUN_ID_MAX);
    run_id[MU_RDZV_RUN_ID_MAX] = '\0';
    mu_engine_etcd3_names_init(&names, run_id);
    assert_false(mu_engine_etcd3_will(&names, &server, false, &killed, 7, &will));
    assert_null(will.bytes.data);
}

/* ---- Answers ---- */

static struct mu_fold_event told;
static bool unsure; /* an attempt may have been carried out */

static bool hears(enum mu_fold_effect_type type, int rc, struct mu_etcd3_answer answer)
{
    static const struct muster_error error = { .code = MUSTER_ELOST };
    const struct mu_engine_etcd3_asked asked = { .type = type, .id = 5, .scope = MU_FOLD_NODES, .lease = 7 };

    return mu_engine_etcd3_answer(&names, &asked, rc, unsure, &answer, &error, &told);
}

static void each_answer_is_an_event(void **state)
{
    (void)state;
    assert_true(hears(MU_FOLD_DO_WRITE, 0, (struct mu_etcd3_answer){ .succeeded = true, .revision = 8 }));
    assert_true(told.type == MU_FOLD_ON_WROTE && told.id == 5 && told.held && told.revision == 8);
    assert_true(hears(MU_FOLD_DO_WRITE, 0, (struct mu_etcd3_answer){ .revision = 8 }));
    assert_true(told.type == MU_FOLD_ON_WROTE && !told.held);
    assert_true(hears(MU_FOLD_DO_GRANT_JOB, 0, (struct mu_etcd3_answer){ .lease = 3 }));
    assert_true(told.type == MU_FOLD_ON_GRANTED && told.id == 5 && told.lease == 3);
    assert_true(hears(MU_FOLD_DO_KEEP_JOB, 0, (struct mu_etcd3_answer){ .ttl_s = 3 }));
    assert_true(told.type == MU_FOLD_ON_KEPT && told.id == 5 && told.held);
    assert_true(hears(MU_FOLD_DO_KEEP_JOB, 0, (struct mu_etcd3_answer){ .ttl_s = 0 }));
    assert_true(told.type == MU_FOLD_ON_KEPT && !told.held);
}

static void what_etcd_refuses_was_not_done_unless_an_attempt_before_was(void **state)
{
    const struct mu_etcd3_answer full = { .code = MU_ETCD3_EXHAUSTED }, none = { .code = 0 };

    (void)state;
    assert_true(hears(MU_FOLD_DO_WRITE, MUSTER_ELIMIT, full) && told.refused);
    assert_true(hears(MU_FOLD_DO_WRITE, MUSTER_ECONNECT, none) && !told.refused);
    unsure = true;
    assert_true(hears(MU_FOLD_DO_WRITE, MUSTER_ELIMIT, full) && !told.refused);
    unsure = false;
}

static void a_failure_is_told_unless_it_was_for_people_only(void **state)
{
    static const enum mu_fold_effect_type types[] = { MU_FOLD_DO_LOAD, MU_FOLD_DO_WRITE, MU_FOLD_DO_GRANT_JOB,
                                                      MU_FOLD_DO_KEEP_JOB };
    const struct mu_etcd3_answer gone = { .code = MU_ETCD3_NOT_FOUND };

    (void)state;
    for (size_t i = 0; i < COUNT(types); i++) {
        assert_true(hears(types[i], MUSTER_EINVAL, gone));
        assert_true(told.type == MU_FOLD_ON_REQUEST_FAILED && told.id == 5 && told.lease_gone && !told.final);
    }
    assert_true(hears(MU_FOLD_DO_LOOK_AROUND, MUSTER_EINVAL, gone));
    assert_true(told.type == MU_FOLD_ON_CROWD && told.id == 5 && told.error != NULL && !told.held);
    assert_true(told.refused);
    assert_false(hears(MU_FOLD_DO_UNMARK, MUSTER_EINVAL, gone));
    assert_false(hears(MU_FOLD_DO_UNMARK, 0, (struct mu_etcd3_answer){ .succeeded = true }));
}

#define KV(text)                                                                                                       \
    {                                                                                                                  \
        .key = { text, sizeof text - 1 }, .value = { "v", 1 }, .create = 2, .mod = 3, .lease = 4                       \
    }

static void a_load_brings_keys_without_the_prefix(void **state)
{
    static const struct mu_etcd3_kv kvs[] = { KV("/muster/job 1/nodes/1"), KV("/muster/other/nodes/2") };
    const struct mu_etcd3_result result = { .kind = MU_ETCD3_OP_RANGE, .kvs = kvs, .kvs_count = COUNT(kvs) };

    (void)state;
    assert_true(hears(MU_FOLD_DO_LOAD, 0, (struct mu_etcd3_answer){ .results = &result, .results_count = 1 }));
    assert_true(told.type == MU_FOLD_ON_LOADED && told.id == 5 && told.scope == MU_FOLD_NODES && told.count == 2);
    assert_true(mu_slice_equal(told.kvs[0].key, mu_slice_str("nodes/1")));
    assert_true(told.kvs[0].create == 2 && told.kvs[0].mod == 3 && told.kvs[0].lease == 4 && !told.kvs[0].deleted);
    assert_true(mu_slice_equal(told.kvs[0].value, mu_slice_str("v")));
    assert_int_equal(told.kvs[1].key.len, 0); /* was not asked for */
    mu_engine_etcd3_event_done(&told);
}

static void looking_around_brings_records_and_the_marks_of_others(void **state)
{
    static const struct mu_etcd3_kv records[] = { KV("/muster/job 1/nodes/1") };
    static const struct mu_etcd3_kv marks[] = { KV("/muster//waiting/job 1"), KV("/muster//waiting/other"),
                                                KV("/muster//waiting/") };
    const struct mu_etcd3_result results[] = { { .kvs = records, .kvs_count = 1 }, { .kvs = marks, .kvs_count = 3 } };

    (void)state;
    assert_true(hears(MU_FOLD_DO_LOOK_AROUND, 0,
                      (struct mu_etcd3_answer){ .succeeded = true, .results = results, .results_count = 2 }));
    assert_true(told.type == MU_FOLD_ON_CROWD && told.held && told.lease == 7 && told.count == 3);
    assert_true(mu_slice_equal(told.kvs[0].key, mu_slice_str("nodes/1")));
    assert_true(mu_slice_equal(told.kvs[1].key, mu_slice_str("waiting/other"))); /* our own is no news */
    assert_int_equal(told.kvs[2].key.len, 0);                                    /* nobody's */
    mu_engine_etcd3_event_done(&told);
    assert_true(hears(MU_FOLD_DO_LOOK_AROUND, 0, (struct mu_etcd3_answer){ .succeeded = false }));
    assert_false(told.held); /* the document has changed: no mark */
    mu_engine_etcd3_event_done(&told);
}

static void changes_are_told_in_order(void **state)
{
    static const struct mu_etcd3_event events[] = { { .kind = MU_ETCD3_PUT, .kv = KV("/muster/job 1/job/doc") },
                                                    { .kind = MU_ETCD3_DELETE, .kv = KV("/muster/job 1/job/news") } };

    (void)state;
    told = mu_engine_etcd3_changes(&names, MU_FOLD_JOB, events, 2);
    assert_true(told.type == MU_FOLD_ON_CHANGED && told.scope == MU_FOLD_JOB && told.count == 2);
    assert_true(mu_slice_equal(told.kvs[0].key, mu_slice_str("job/doc")) && !told.kvs[0].deleted);
    assert_true(mu_slice_equal(told.kvs[1].key, mu_slice_str("job/news")) && told.kvs[1].deleted);
    mu_engine_etcd3_event_done(&told);
}

static void without_memory_what_was_read_counts_as_missed(void **state)
{
    static const struct mu_etcd3_event event = { .kind = MU_ETCD3_PUT, .kv = KV("/muster/job 1/job/doc") };

    (void)state;
    fail_alloc_at(1);
    told = mu_engine_etcd3_changes(&names, MU_FOLD_JOB, &event, 1);
    fail_alloc_at(0);
    assert_true(told.type == MU_FOLD_ON_STALE && told.scope == MU_FOLD_JOB && told.count == 0);
    fail_alloc_at(1);
    assert_true(hears(MU_FOLD_DO_LOAD, 0, (struct mu_etcd3_answer){ .code = 0 }));
    fail_alloc_at(0);
    assert_true(told.type == MU_FOLD_ON_REQUEST_FAILED && told.id == 5 && !told.final);
    assert_int_equal(told.error->code, MUSTER_ENOMEM);
    fail_alloc_at(1);
    assert_true(hears(MU_FOLD_DO_LOOK_AROUND, 0, (struct mu_etcd3_answer){ .code = 0 }));
    fail_alloc_at(0);
    assert_true(told.type == MU_FOLD_ON_CROWD && told.id == 5 && told.error != NULL && !told.held);
}

static void a_watch_begins_behind_what_was_loaded(void **state)
{
    static const struct {
        struct mu_fold_event event;
        const char *key;
        int64_t revision;
    } rows[] = {
        { { .type = MU_FOLD_ON_LOADED, .scope = MU_FOLD_JOB, .revision = 7 }, "/muster/job 1/job/", 8 },
        { { .type = MU_FOLD_ON_LOADED, .scope = MU_FOLD_NODES, .revision = 0 }, "/muster/job 1/nodes/", 1 },
        { { .type = MU_FOLD_ON_REQUEST_FAILED, .revision = 7 }, NULL, 0 },
        { { .type = MU_FOLD_ON_CROWD, .revision = 7 }, NULL, 0 },
        { { .type = MU_FOLD_ON_WROTE, .revision = 7 }, NULL, 0 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        char key[MU_ENGINE_ETCD3_KEY_MAX];
        int64_t revision = 0;

        assert_int_equal(mu_engine_etcd3_watch(&names, &rows[i].event, key, &revision), rows[i].key != NULL);
        assert_int_equal(revision, rows[i].revision);
        if (rows[i].key != NULL)
            assert_string_equal(key, rows[i].key);
    }
}

/* ---- Requests that are not sent ---- */

static void what_is_refused_fails_in_order_but_for_loads_that_are_not_wanted(void **state)
{
    static const struct mu_fold_effect effects[] = {
        { .type = MU_FOLD_DO_LOAD, .id = 1, .scope = MU_FOLD_JOB },
        { .type = MU_FOLD_DO_LOAD, .id = 2, .scope = MU_FOLD_NODES },
        { .type = MU_FOLD_DO_DROP_LEASE, .lease_take = 9 }, /* no answer is wanted */
        { .type = MU_FOLD_DO_DROP_LEASE, .id = 3, .lease_take = 9 },
        { .type = MU_FOLD_DO_TAKE_LEASE, .id = 4 },
        { .type = MU_FOLD_DO_LOOK_AROUND, .id = 5 },
        { .type = MU_FOLD_DO_WRITE, .id = 6, .scope = MU_FOLD_JOB },
    };
    static const struct {
        enum mu_fold_event_type type;
        uint64_t id;
    } answers[] = {
        { MU_FOLD_ON_REQUEST_FAILED, 2 }, { MU_FOLD_ON_DROPPED, 3 },        { MU_FOLD_ON_LEASE_LOST, 4 },
        { MU_FOLD_ON_CROWD, 5 },          { MU_FOLD_ON_REQUEST_FAILED, 6 },
    };
    struct mu_engine_etcd3_refused refused = { .count = 0 };

    (void)state;
    for (size_t i = 0; i < COUNT(effects); i++)
        mu_engine_etcd3_refuse(&refused, &effects[i]);
    mu_engine_etcd3_forget_load(&refused, MU_FOLD_JOB);
    for (size_t i = 0; i < COUNT(answers); i++) {
        assert_true(mu_engine_etcd3_next_refused(&refused, &told));
        assert_true(told.type == answers[i].type && told.id == answers[i].id && !told.final);
        if (told.type != MU_FOLD_ON_DROPPED)
            assert_int_equal(told.error->code, MUSTER_ENOMEM);
    }
    assert_false(mu_engine_etcd3_next_refused(&refused, &told));
}

static void only_the_lease_that_is_there_can_be_dropped(void **state)
{
    const struct mu_fold_effect drop = { .type = MU_FOLD_DO_DROP_LEASE, .lease_take = 3 };

    (void)state;
    assert_true(mu_engine_etcd3_drops(&drop, 3));
    assert_false(mu_engine_etcd3_drops(&drop, 4)); /* of another take */
    assert_false(mu_engine_etcd3_drops(&drop, 0)); /* lost, or not granted */
}

int main(void)
{
#define SCENE(scene) cmocka_unit_test_setup_teardown(scene, start, stop)
    const struct CMUnitTest tests[] = {
        SCENE(a_slash_in_a_run_id_stays_in_its_job),
        SCENE(a_run_id_of_any_length_has_room),
        SCENE(a_load_reads_all_keys_of_its_scope),
        SCENE(a_range_reads_one_key_or_all_that_begin_like_it),
        SCENE(leases_of_the_job_are_asked_for_by_their_time_and_kept_by_their_number),
        SCENE(a_write_is_one_transaction),
        SCENE(a_mark_is_put_only_beside_the_document_that_we_know),
        SCENE(a_will_puts_the_mark_and_then_ends_the_lease),
        SCENE(there_is_no_will_where_a_few_bytes_are_not_enough),
        SCENE(a_will_that_is_too_long_is_none),
        SCENE(every_error_of_etcd_is_final_or_tried_again),
        SCENE(without_an_answer_of_etcd_only_what_is_no_etcd_is_final),
        SCENE(each_answer_is_an_event),
        SCENE(what_etcd_refuses_was_not_done_unless_an_attempt_before_was),
        SCENE(a_failure_is_told_unless_it_was_for_people_only),
        SCENE(a_load_brings_keys_without_the_prefix),
        SCENE(looking_around_brings_records_and_the_marks_of_others),
        SCENE(changes_are_told_in_order),
        SCENE(without_memory_what_was_read_counts_as_missed),
        SCENE(a_watch_begins_behind_what_was_loaded),
        SCENE(what_is_refused_fails_in_order_but_for_loads_that_are_not_wanted),
        SCENE(only_the_lease_that_is_there_can_be_dropped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
