/* The engine: what keys, leases and watches of a job do, who is told, and that nothing is left behind. */
#include "failmalloc.h"
#include "store/engine.h"
#include "trace.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

enum {
    PEERS = 15,
    LEASE_MS = 5000,
    RECONNECT_MS = MU_ENGINE_RECONNECT_MS,
    STEP_MS = MU_ENGINE_TICK_MS + MU_ENGINE_LATE_MS,
    GONE_MS = RECONNECT_MS + MU_ENGINE_PROBATION_MS
};

#define BASE (MU_ENGINE_REVISION_MIN + 7)

struct scene {
    struct mu_budget budget;
    struct mu_engine *engine;
    struct mu_engine_peer peers[PEERS];
    uint64_t now_ms, ago_ms; /* ago_ms: of the last deletion that was pushed */
    uint32_t last_txn;
    struct trace trace;
};

/* ---- Telling what happened; revisions count from 0 ---- */

static void on_push(void *ctx, struct mu_engine_peer *peer, uint32_t watch, int64_t revision,
                    const struct mu_engine_change *changes, size_t count)
{
    struct scene *s = ctx;

    trace_add(&s->trace, "%s%td.%u at %" PRId64 ":", s->trace.len > 0 ? "; " : "", peer - s->peers, watch,
              revision - BASE);
    if (count == 0)
        trace_add(&s->trace, " lost");
    for (size_t i = 0; i < count; i++) {
        const struct mu_engine_kv *kv = &changes[i].kv;

        if (changes[i].deleted)
            s->ago_ms = changes[i].ago_ms;
        if (changes[i].deleted)
            trace_add(&s->trace, " -%.*s %s", (int)kv->key.len, kv->key.data, mu_engine_end_text(changes[i].end));
        else
            trace_add(&s->trace, " +%.*s=%.*s", (int)kv->key.len, kv->key.data, (int)kv->value.len, kv->value.data);
        trace_add(&s->trace, "@%" PRId64, kv->mod - BASE);
    }
}

static const char *flush(struct scene *s)
{
    trace_begin(&s->trace);
    mu_engine_flush(s->engine);
    mu_engine_check(s->engine);
    return s->trace.text;
}

/* A loop that was away meanwhile. */
static const char *wake(struct scene *s, uint64_t at_ms)
{
    s->now_ms = at_ms;
    mu_engine_turn(s->engine, at_ms);
    return flush(s);
}

/* A loop that turns whenever the engine wants it to; what is pushed in the end. */
static const char *after(struct scene *s, uint64_t ms)
{
    uint64_t until_ms = s->now_ms + ms;

    while (mu_engine_deadline_ms(s->engine) < until_ms)
        mu_engine_turn(s->engine, mu_engine_deadline_ms(s->engine));
    return wake(s, until_ms);
}

static const char *keys(struct scene *s, unsigned peer, const char *prefix)
{
    struct mu_engine_found found;

    trace_begin(&s->trace);
    assert_int_equal(mu_engine_range(s->engine, &s->peers[peer], mu_slice_str(prefix), true, 0, &found), MU_ENGINE_OK);
    for (size_t i = 0; i < found.count; i++) {
        struct mu_engine_kv kv = mu_engine_kv(&found, i);

        trace_add(&s->trace, "%s%.*s=%.*s %" PRId64 "/%" PRId64 "%s", i > 0 ? ", " : "", (int)kv.key.len, kv.key.data,
                  (int)kv.value.len, kv.value.data, kv.create - BASE, kv.mod - BASE, kv.lease != 0 ? "*" : "");
    }
    mu_engine_found_done(s->engine, &found);
    return s->trace.text;
}

/* ---- Asking ---- */

static int hello(struct scene *s, unsigned peer, const char *run_id)
{
    return (int)mu_engine_hello(s->engine, &s->peers[peer], mu_slice_str(run_id), false);
}

static int grant(struct scene *s, unsigned peer, uint64_t lease, bool bound)
{
    struct mu_engine_grant wanted = {
        .lease = lease, .ttl_ms = LEASE_MS, .bound = bound, .secret = mu_slice_str("0123456789abcdef")
    };

    return (int)mu_engine_grant(s->engine, &s->peers[peer], &wanted, s->now_ms);
}

static int transact(struct scene *s, unsigned peer, struct mu_engine_txn txn, bool *ret_held)
{
    txn.id = ++s->last_txn;
    return (int)mu_engine_txn(s->engine, &s->peers[peer], &txn, ret_held);
}

static struct mu_engine_op put_op(const char *key, const char *value, uint64_t lease)
{
    return (struct mu_engine_op){ MU_ENGINE_PUT, mu_slice_str(key), mu_slice_str(value), lease };
}

static struct mu_engine_op delete_op(const char *key, bool prefix)
{
    return (struct mu_engine_op){ .kind = prefix ? MU_ENGINE_DELETE_PREFIX : MU_ENGINE_DELETE,
                                  .key = mu_slice_str(key) };
}

static int do_ops(struct scene *s, unsigned peer, const struct mu_engine_op *ops, size_t count)
{
    bool held;

    return transact(s, peer, (struct mu_engine_txn){ .then = ops, .then_count = count }, &held);
}

static int put(struct scene *s, unsigned peer, const char *key, const char *value, uint64_t lease)
{
    struct mu_engine_op op = put_op(key, value, lease);

    return do_ops(s, peer, &op, 1);
}

static int watch(struct scene *s, unsigned peer, uint32_t number, const char *prefix)
{
    struct mu_engine_found found;

    enum mu_engine_code code = mu_engine_load(s->engine, &s->peers[peer], number, mu_slice_str(prefix), &found);

    mu_engine_found_done(s->engine, &found);
    return (int)code;
}

static void leave(struct scene *s, unsigned peer, bool cut)
{
    mu_engine_leave(s->engine, &s->peers[peer], cut, s->now_ms);
    mu_engine_peer_init(&s->peers[peer]);
}

static int attach(struct scene *s, unsigned peer, uint64_t lease, struct mu_engine_last *ret_last)
{
    struct mu_engine_peer *old;
    enum mu_engine_code code = mu_engine_attach(s->engine, &s->peers[peer], lease, s->now_ms, ret_last, &old);

    if (old != NULL) { /* as a driver does: it has no lease any more */
        mu_engine_leave(s->engine, old, true, s->now_ms);
        mu_engine_peer_init(old);
    }
    return (int)code;
}

static int64_t revision(const struct scene *s)
{
    return mu_engine_revision(s->engine) - BASE;
}

/* Peer 0 has a bound lease of that number with the key "n", which peer 1 watches. */
static void watch_a_lease(struct scene *s, uint64_t lease)
{
    assert_int_equal(watch(s, 1, 1, ""), MU_ENGINE_OK);
    assert_int_equal(grant(s, 0, lease, true), MU_ENGINE_OK);
    assert_int_equal(put(s, 0, "n", "", lease), MU_ENGINE_OK);
    assert_string_equal(flush(s), "1.1 at 1: +n=@1");
}

/* So many peers have a lease with a key each, "a" and on, which peer 3 watches; they came `gap_ms` after each other. */
static void watch_leases(struct scene *s, unsigned count, uint64_t gap_ms)
{
    assert_int_equal(watch(s, 3, 1, ""), MU_ENGINE_OK);
    for (unsigned i = 0; i < count; i++) {
        assert_int_equal(grant(s, i, 10 + i, true), MU_ENGINE_OK);
        assert_int_equal(put(s, i, (char[]){ (char)('a' + i), '\0' }, "", 10 + i), MU_ENGINE_OK);
        (void)after(s, gap_ms);
    }
}

static void hear_from_2_and_3(struct scene *s)
{
    mu_engine_heard(s->engine, &s->peers[2], s->now_ms);
    mu_engine_heard(s->engine, &s->peers[3], s->now_ms);
}

/* Peers 0 to 3 are of job "j", peer 4 of another one, peer 5 has not said HELLO. */
static int setup_reserved(void **state, size_t budget_max, size_t reserved)
{
    struct scene *s = calloc(1, sizeof *s);
    struct mu_engine_config config;

    if (s == NULL)
        return -1;
    s->budget.max = budget_max;
    s->budget.used = reserved;
    s->now_ms = 1000;
    config = (struct mu_engine_config){
        .budget = &s->budget, .reserved = reserved, .seed = { 1, 2 }, .revision = BASE, .push = on_push, .ctx = s
    };
    s->engine = mu_engine_new(&config);
    for (unsigned i = 0; i < PEERS; i++) {
        mu_engine_peer_init(&s->peers[i]);
        if (i < 5 && hello(s, i, i < 4 ? "j" : "other") != MU_ENGINE_OK)
            return -1;
    }
    mu_engine_turn(s->engine, s->now_ms);
    *state = s;
    return s->engine != NULL ? 0 : -1;
}

static int setup_with(void **state, size_t budget_max)
{
    return setup_reserved(state, budget_max, 0);
}

static int setup(void **state)
{
    return setup_with(state, 1 << 20);
}

static int teardown(void **state)
{
    struct scene *s = *state;

    for (unsigned i = 0; i < PEERS; i++)
        mu_engine_leave(s->engine, &s->peers[i], false, s->now_ms);
    mu_engine_free(s->engine);
    assert_int_equal(s->budget.used, 0);
    free(s);
    return 0;
}

/* ---- Keys ---- */

static void a_key_has_the_revisions_of_its_making_and_its_last_change(void **state)
{
    struct scene *s = *state;

    assert_int_equal(put(s, 0, "b", "1", 0), MU_ENGINE_OK);
    assert_int_equal(put(s, 0, "a", "2", 0), MU_ENGINE_OK);
    assert_int_equal(put(s, 1, "b", "3", 0), MU_ENGINE_OK);
    assert_string_equal(keys(s, 2, ""), "a=2 2/2, b=3 1/3");
}

static void a_job_sees_its_own_keys_alone(void **state)
{
    struct scene *s = *state;

    (void)put(s, 0, "a", "1", 0);
    (void)put(s, 4, "a", "2", 0);
    assert_string_equal(keys(s, 1, ""), "a=1 1/1");
    assert_string_equal(keys(s, 4, ""), "a=2 2/2");
}

static void a_prefix_is_a_run_of_keys(void **state)
{
    struct scene *s = *state;
    struct mu_engine_op ops[] = { put_op("seat/1/b", "", 0), put_op("seat/10", "", 0), put_op("seat/1/a", "", 0),
                                  put_op("seat", "", 0), put_op("seat0", "", 0) };

    assert_int_equal(do_ops(s, 0, ops, COUNT(ops)), MU_ENGINE_OK);
    assert_string_equal(keys(s, 0, "seat/1/"), "seat/1/a= 1/1, seat/1/b= 1/1");
    assert_string_equal(keys(s, 0, "seat/2"), "");
    assert_int_equal(do_ops(s, 0, (struct mu_engine_op[]){ delete_op("seat/1", true) }, 1), MU_ENGINE_OK);
    assert_string_equal(keys(s, 0, ""), "seat= 1/1, seat0= 1/1");
}

static void a_transaction_that_changes_nothing_makes_no_revision(void **state)
{
    struct scene *s = *state;
    struct mu_engine_op ops[] = { delete_op("nothing", false), delete_op("no", true) };
    struct mu_engine_compare compare = { MU_ENGINE_IF_MOD, mu_slice_str("a"), BASE };
    struct mu_engine_op op = put_op("a", "1", 0);
    bool held = true;

    assert_int_equal(do_ops(s, 0, ops, COUNT(ops)), MU_ENGINE_OK);
    assert_int_equal(
        transact(s, 0,
                 (struct mu_engine_txn){ .compares = &compare, .compares_count = 1, .then = &op, .then_count = 1 },
                 &held),
        MU_ENGINE_OK);
    assert_false(held);
    assert_int_equal(revision(s), 0);
}

static void compares_choose_the_branch(void **state)
{
    static const struct {
        enum mu_engine_compare_kind kind;
        const char *key;
        int64_t revision;
        bool holds;
    } rows[] = {
        { MU_ENGINE_IF_ABSENT, "a", 0, false },       { MU_ENGINE_IF_ABSENT, "no", 0, true },
        { MU_ENGINE_IF_CREATE, "a", BASE + 1, true }, { MU_ENGINE_IF_CREATE, "a", BASE + 2, false },
        { MU_ENGINE_IF_MOD, "a", BASE + 2, true },    { MU_ENGINE_IF_MOD, "a", BASE + 1, false },
        { MU_ENGINE_IF_MOD, "no", 0, true },          { MU_ENGINE_IF_CREATE, "no", 0, true },
        { MU_ENGINE_IF_MOD, "no", BASE + 1, false },  { MU_ENGINE_IF_ABSENT, "long", 0, true }, /* "longer" is there */
    };
    struct scene *s = *state;
    struct mu_engine_op then = put_op("then", "", 0), otherwise = put_op("otherwise", "", 0);

    (void)put(s, 0, "a", "1", 0);
    (void)put(s, 0, "a", "2", 0);
    (void)put(s, 0, "longer", "", 0);
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_engine_compare compares[] = { { MU_ENGINE_IF_MOD, mu_slice_str("a"), BASE + 2 },
                                                { rows[i].kind, mu_slice_str(rows[i].key), rows[i].revision } };
        struct mu_engine_txn txn = { .compares = compares,
                                     .then = &then,
                                     .otherwise = &otherwise,
                                     .compares_count = 2,
                                     .then_count = 1,
                                     .otherwise_count = 1 };
        bool held;

        assert_int_equal(transact(s, 0, txn, &held), MU_ENGINE_OK);
        assert_int_equal(held, rows[i].holds);
        assert_string_not_equal(keys(s, 0, rows[i].holds ? "then" : "otherwise"), "");
        assert_string_equal(keys(s, 0, rows[i].holds ? "otherwise" : "then"), "");
        (void)do_ops(s, 0, (struct mu_engine_op[]){ delete_op("then", false), delete_op("otherwise", false) }, 2);
    }
}

/* Who waits for a document would not be seen any more. */
static void the_engines_own_key_is_nobody_elses(void **state)
{
    struct scene *s = *state;
    struct mu_engine_op gone = delete_op(MU_ENGINE_OUTSIDERS, false), all = delete_op("job/", true), forged;
    bool held;

    forged = put_op(MU_ENGINE_OUTSIDERS, "{}", 0);
    assert_int_equal(do_ops(s, 0, &forged, 1), MU_ENGINE_INVALID);
    assert_int_equal(do_ops(s, 0, &all, 1), MU_ENGINE_OK); /* it is not there */
    assert_int_not_equal(mu_engine_wait(s->engine, mu_slice_str("j"), false), 0);
    assert_int_equal(do_ops(s, 0, &forged, 1), MU_ENGINE_INVALID);
    assert_int_equal(do_ops(s, 0, &gone, 1), MU_ENGINE_INVALID);
    assert_int_equal(do_ops(s, 0, &all, 1), MU_ENGINE_INVALID);
    assert_int_equal(transact(s, 0, (struct mu_engine_txn){ .otherwise = &gone, .otherwise_count = 1 }, &held),
                     MU_ENGINE_INVALID);
    assert_non_null(strstr(keys(s, 0, "job/"), "job/stock={\"v\":2,\"old\":0}"));
}

static void what_cannot_be_is_refused_and_changes_nothing(void **state)
{
    static char long_key[MU_ENGINE_KEY_MAX + 2], long_value[MU_ENGINE_VALUE_MAX + 2];
    struct scene *s = *state;
    struct mu_engine_op twice[] = { put_op("a", "1", 0), put_op("b", "", 0), put_op("a", "2", 0) };
    struct mu_engine_op both[] = { put_op("ab", "1", 0), delete_op("ab", false) };
    struct mu_engine_op prefix[] = { delete_op("a", true), put_op("ab", "1", 0) };
    struct mu_engine_op overlap[] = { delete_op("a", true), delete_op("ab", false) };
    struct mu_engine_op bad = put_op("a", "", 0);
    struct mu_engine_compare compare = { MU_ENGINE_COMPARES_COUNT, mu_slice_str("a"), 0 };
    bool held;

    memset(long_key, 'k', sizeof long_key - 1);
    memset(long_value, 'v', sizeof long_value - 1);
    assert_int_equal(do_ops(s, 0, twice, COUNT(twice)), MU_ENGINE_INVALID);
    assert_int_equal(do_ops(s, 0, both, COUNT(both)), MU_ENGINE_INVALID);
    assert_int_equal(do_ops(s, 0, prefix, COUNT(prefix)), MU_ENGINE_INVALID);
    assert_int_equal(do_ops(s, 0, overlap, COUNT(overlap)), MU_ENGINE_OK); /* as in etcd */
    assert_int_equal(put(s, 0, long_key, "", 0), MU_ENGINE_INVALID);
    assert_int_equal(put(s, 0, "", "", 0), MU_ENGINE_INVALID);
    assert_int_equal(put(s, 0, "a", long_value, 0), MU_ENGINE_INVALID);
    assert_int_equal(put(s, 0, "a", "1", 77), MU_ENGINE_NOT_FOUND);
    assert_int_equal(put(s, 5, "a", "1", 0), MU_ENGINE_PRECONDITION);
    bad.kind = MU_ENGINE_OPS_COUNT;
    assert_int_equal(do_ops(s, 0, &bad, 1), MU_ENGINE_INVALID);
    assert_int_equal(transact(s, 0, (struct mu_engine_txn){ .compares = &compare, .compares_count = 1 }, &held),
                     MU_ENGINE_INVALID);
    /* Also in the branch that is not taken. */
    assert_int_equal(
        transact(s, 0, (struct mu_engine_txn){ .otherwise = twice, .otherwise_count = COUNT(twice) }, &held),
        MU_ENGINE_INVALID);
    assert_int_equal(transact(s, 0, (struct mu_engine_txn){ .then_count = MU_ENGINE_OPS_MAX + 1 }, &held),
                     MU_ENGINE_INVALID);
    assert_string_equal(keys(s, 0, ""), "");
    assert_int_equal(revision(s), 0);
}

static bool note_document(void *ctx, struct mu_slice run_id, struct mu_slice document, bool ended)
{
    struct scene *s = ctx;

    trace_begin(&s->trace);
    trace_add(&s->trace, "%.*s: %.*s%s", (int)run_id.len, run_id.data, (int)document.len, document.data,
              ended ? ", ended" : "");
    return !mu_slice_equal(document, mu_slice_str("too large"));
}

static void what_gives_a_job_up_stands_alone_and_once(void **state)
{
    static const struct mu_engine_op yield = { .kind = MU_ENGINE_YIELD };
    struct mu_engine_op document = { .kind = MU_ENGINE_DOCUMENT, .value = mu_slice_str("doc") }, bad = document;
    struct mu_engine_op both[] = { document, yield };
    struct scene *s = *state;
    struct mu_engine_config config = {
        .budget = &s->budget, .revision = BASE, .push = on_push, .document = note_document, .ctx = s
    };
    bool held;

    assert_int_equal(do_ops(s, 0, &yield, 1), MU_ENGINE_INVALID); /* there are no documents */
    assert_int_equal(do_ops(s, 0, &document, 1), MU_ENGINE_INVALID);
    for (unsigned i = 0; i < COUNT(s->peers); i++)
        leave(s, i, false);
    mu_engine_free(s->engine);
    s->engine = mu_engine_new(&config);
    assert_int_equal(hello(s, 0, "j"), MU_ENGINE_OK);
    bad.key = mu_slice_str("k");
    assert_int_equal(do_ops(s, 0, &bad, 1), MU_ENGINE_INVALID);
    bad = (struct mu_engine_op){ .kind = MU_ENGINE_DOCUMENT };
    assert_int_equal(do_ops(s, 0, &bad, 1), MU_ENGINE_INVALID);
    bad = (struct mu_engine_op){ .kind = MU_ENGINE_YIELD, .value = mu_slice_str("v") };
    assert_int_equal(do_ops(s, 0, &bad, 1), MU_ENGINE_INVALID);
    assert_int_equal(transact(s, 0, (struct mu_engine_txn){ .otherwise = &document, .otherwise_count = 1 }, &held),
                     MU_ENGINE_INVALID);
    document.value = mu_slice_str("too large");
    assert_int_equal(do_ops(s, 0, (struct mu_engine_op[]){ put_op("b", "1", 0), document, yield }, 3),
                     MU_ENGINE_EXHAUSTED);
    assert_string_equal(keys(s, 0, ""), "");
    assert_int_equal(do_ops(s, 0, &document, 1), MU_ENGINE_OK); /* a job that ends does without */
    assert_int_not_equal(mu_engine_place_of(s->engine, mu_slice_str("j")), MU_ENGINE_PLACE_DOCUMENT);
    document.value = mu_slice_str("doc");
    assert_int_equal(do_ops(s, 0, (struct mu_engine_op[]){ document, put_op("a", "1", 0) }, 2), MU_ENGINE_OK);
    assert_string_equal(s->trace.text, "j: doc, ended");
    assert_int_equal(do_ops(s, 0, both, 2), MU_ENGINE_OK);
    assert_string_equal(s->trace.text, "j: doc");
    assert_int_equal(do_ops(s, 0, both, 2), MU_ENGINE_MOVED);
    assert_string_equal(keys(s, 0, ""), "a=1 2/2");
}

static void a_full_budget_refuses_the_whole_transaction(void **state)
{
    struct scene *s = *state;
    struct mu_engine_op ops[] = { put_op("a", "small", 0), put_op("b", "also small", 0) };
    size_t used = s->budget.used;

    s->budget.max = used + 100;
    assert_int_equal(do_ops(s, 0, ops, COUNT(ops)), MU_ENGINE_EXHAUSTED);
    assert_string_equal(mu_engine_full(s->engine), "the store's memory is full");
    assert_string_equal(keys(s, 0, ""), "");
    assert_int_equal(s->budget.used, used);
    assert_int_equal(grant(s, 0, 1, true), MU_ENGINE_EXHAUSTED);
    assert_int_equal(hello(s, 5, "a third job of a long name: aaaaaaaaaaaaaaaaaaaaaaaaa"), MU_ENGINE_EXHAUSTED);
    s->budget.max = 0;
    assert_int_equal(do_ops(s, 0, ops, COUNT(ops)), MU_ENGINE_OK);
}

static void the_engine_takes_half_of_the_budget_and_no_more(void **state)
{
    static char value[1000];
    struct scene *s = *state;
    struct mu_engine_op op = { .kind = MU_ENGINE_PUT, .value = mu_slice(value, sizeof value) };
    char name[16];
    int code = MU_ENGINE_OK;

    for (unsigned i = 0; code == MU_ENGINE_OK; i++) {
        (void)snprintf(name, sizeof name, "%u", i);
        op.key = mu_slice_str(name);
        code = do_ops(s, 0, &op, 1);
    }
    assert_int_equal(code, MU_ENGINE_EXHAUSTED);
    assert_in_range(s->budget.used, s->budget.max / 2 - 2000, s->budget.max / 2);
    (void)do_ops(s, 0, (struct mu_engine_op[]){ delete_op("", true) }, 1);
    assert_int_equal(do_ops(s, 0, &op, 1), MU_ENGINE_OK);
    s->budget.used += s->budget.max / 2; /* the store's keys have taken the other half */
    assert_int_equal(put(s, 0, "a", "1", 0), MU_ENGINE_OK);
    s->budget.used += s->budget.max / 2 - 2000;
    assert_int_equal(do_ops(s, 0, (struct mu_engine_op[]){ put_op("b", "1", 0), op }, 2), MU_ENGINE_EXHAUSTED);
    s->budget.used -= s->budget.max - 2000;
}

static void what_is_set_aside_for_the_engine_is_used_first(void **state)
{
    enum { RESERVED = 100000 };
    static char value[1000];
    struct scene *s;
    struct mu_engine_op op = { .kind = MU_ENGINE_PUT, .value = mu_slice(value, sizeof value) };
    unsigned count = 0;
    char name[16];

    teardown(state);
    (void)setup_reserved(state, 1 << 20, RESERVED);
    s = *state;
    s->budget.used = s->budget.max; /* the store's keys have taken all the rest */
    assert_int_equal(grant(s, 0, 7, true), MU_ENGINE_OK);
    for (int code = MU_ENGINE_OK; code == MU_ENGINE_OK; count++) {
        (void)snprintf(name, sizeof name, "%u", count);
        op.key = mu_slice_str(name);
        code = do_ops(s, 0, &op, 1);
    }
    assert_in_range(count, 80, 100);
    assert_int_equal(s->budget.used, s->budget.max);
    s->budget.used -= s->budget.max / 2; /* half of them are gone */
    for (int code = MU_ENGINE_OK; code == MU_ENGINE_OK; count++) {
        (void)snprintf(name, sizeof name, "%u", count);
        op.key = mu_slice_str(name);
        code = do_ops(s, 0, &op, 1);
    }
    assert_in_range(count, 400, 500);
    assert_true(s->budget.used < s->budget.max);
    (void)do_ops(s, 0, (struct mu_engine_op[]){ delete_op("", true) }, 1);
    assert_int_equal(s->budget.used, s->budget.max / 2);
    s->budget.used = RESERVED; /* which teardown finds */
    assert_int_equal(mu_engine_revoke(s->engine, &s->peers[0], 7, mu_slice_str(""), NULL), MU_ENGINE_OK);
    assert_int_equal(s->budget.used, RESERVED);
    s->budget.used = 0;
}

static const char *first(struct scene *s, const char *key, bool prefix, uint32_t limit)
{
    struct mu_engine_found found;

    trace_begin(&s->trace);
    assert_int_equal(mu_engine_range(s->engine, &s->peers[0], mu_slice_str(key), prefix, limit, &found), MU_ENGINE_OK);
    for (size_t i = 0; i < found.count; i++)
        trace_add(&s->trace, "%s%.*s", i > 0 ? " " : "", (int)mu_engine_kv(&found, i).key.len,
                  mu_engine_kv(&found, i).key.data);
    mu_engine_found_done(s->engine, &found);
    return s->trace.text;
}

static void a_limit_brings_the_first_keys_in_order(void **state)
{
    struct scene *s = *state;
    struct mu_engine_found found;

    assert_string_equal(first(s, "n/", true, 2), "");
    for (const char *name = "ecbad"; *name != '\0'; name++)
        (void)put(s, 0, (char[]){ 'n', '/', *name, '\0' }, "", 0);
    (void)put(s, 0, "m", "", 0);
    (void)put(s, 0, "o", "", 0);
    assert_string_equal(first(s, "n/", true, 0), "n/a n/b n/c n/d n/e");
    assert_string_equal(first(s, "n/", true, 1), "n/a");
    assert_string_equal(first(s, "n/", true, 4), "n/a n/b n/c n/d");
    assert_string_equal(first(s, "n/", true, 5), "n/a n/b n/c n/d n/e");
    assert_string_equal(first(s, "n/", true, MU_ENGINE_LIMIT_MAX), "n/a n/b n/c n/d n/e");
    assert_string_equal(first(s, "n/b", false, 1), "n/b");
    assert_int_equal(
        mu_engine_range(s->engine, &s->peers[0], mu_slice_str("n/"), true, MU_ENGINE_LIMIT_MAX + 1, &found),
        MU_ENGINE_INVALID);
    assert_true(found.count == 0 && found.items == NULL);
}

/* So many keys, of which 64 are read, again and again. CPU time in ms. */
static double read_some(struct scene *s, unsigned count)
{
    struct mu_engine_found found;
    char name[16];
    clock_t began;

    for (unsigned i = 0; i < count; i++) {
        (void)snprintf(name, sizeof name, "n/%06u", i);
        assert_int_equal(put(s, 0, name, "", 0), MU_ENGINE_OK);
    }
    began = clock();
    for (unsigned i = 0; i < 2000; i++) {
        assert_int_equal(mu_engine_range(s->engine, &s->peers[0], mu_slice_str("n/"), true, 64, &found), MU_ENGINE_OK);
        assert_int_equal(found.count, 64);
        mu_engine_found_done(s->engine, &found);
    }
    return (double)(clock() - began) * 1000 / CLOCKS_PER_SEC;
}

static void a_range_with_a_limit_costs_what_it_brings(void **state)
{
    double few_ms, many_ms;

    teardown(state);
    (void)setup_with(state, 0);
    few_ms = read_some(*state, 1024);
    many_ms = read_some(*state, 65536);
    assert_true(many_ms < 50 + 16 * few_ms); /* not 64 times as long */
}

static void all_that_is_gathered_or_found_is_charged(void **state)
{
    struct scene *s = *state;
    struct mu_engine_found found;
    size_t used;

    for (unsigned i = 0; i < 100; i++)
        (void)put(s, 0, (char[]){ (char)('A' + i / 10), (char)('0' + i % 10), '\0' }, "", 0);
    (void)watch(s, 1, 1, "");
    used = s->budget.used;
    assert_int_equal(mu_engine_range(s->engine, &s->peers[0], mu_slice_str(""), true, 0, &found), MU_ENGINE_OK);
    assert_true(s->budget.used >= used + 100 * sizeof(void *));
    (void)do_ops(s, 0, (struct mu_engine_op[]){ delete_op("", true) }, 1);
    assert_true(s->budget.used >= used + 100 * sizeof(struct mu_engine_change));
    assert_int_equal(mu_engine_kv(&found, 99).key.data[1], '9'); /* what was found stays as it was */
    mu_engine_found_done(s->engine, &found);
    (void)flush(s);
    assert_true(s->budget.used < used);
    for (unsigned i = 0; i < 2; i++) {
        size_t before = s->budget.used;

        (void)grant(s, 0, i + 1, false);
        assert_true(i == 0 || s->budget.used - before < used); /* with the first one came the table */
        used = s->budget.used - before;
    }
}

/* Of a job without a memory limit: so many leases, each with two keys, that all end at once. CPU time in ms. */
static double end_leases(uint64_t count)
{
    struct mu_budget budget = { 0 };
    struct mu_engine_config config = { .budget = &budget, .seed = { 1, 2 }, .revision = BASE };
    struct mu_engine *engine = mu_engine_new(&config);
    struct mu_engine_peer peer;
    clock_t began;
    bool held;

    mu_engine_peer_init(&peer);
    assert_int_equal(mu_engine_hello(engine, &peer, mu_slice_str("j"), false), MU_ENGINE_OK);
    for (uint64_t i = 1; i <= count; i++) {
        struct mu_engine_grant wanted = { .lease = i, .ttl_ms = LEASE_MS };
        char names[2][24];
        struct mu_engine_op ops[2];

        for (unsigned n = 0; n < 2; n++) {
            (void)snprintf(names[n], sizeof names[n], "%u/%" PRIu64, n, i);
            ops[n] = put_op(names[n], "", i);
        }
        assert_int_equal(mu_engine_grant(engine, &peer, &wanted, 0), MU_ENGINE_OK);
        assert_int_equal(
            mu_engine_txn(engine, &peer, &(struct mu_engine_txn){ .id = 1, .then = ops, .then_count = 2 }, &held),
            MU_ENGINE_OK);
    }
    began = clock();
    for (uint64_t i = 1; i <= count; i++)
        assert_int_equal(mu_engine_revoke(engine, &peer, i, mu_slice_str(""), NULL), MU_ENGINE_OK);
    began = clock() - began;
    mu_engine_leave(engine, &peer, false, 0);
    mu_engine_free(engine);
    assert_int_equal(budget.used, 0);
    return (double)began * 1000 / CLOCKS_PER_SEC;
}

static void the_end_of_a_lease_costs_what_its_own_keys_cost(void **state)
{
    double few_ms = end_leases(2048), many_ms = end_leases(32768);

    (void)state;
    assert_true(many_ms < 50 + 64 * few_ms); /* 16 times as many: 16 times as long, or 256 times */
}

static void a_job_has_so_many_keys_and_no_more(void **state)
{
    enum { AT_ONCE = 4096 };
    static char names[AT_ONCE][16];
    static struct mu_engine_op ops[AT_ONCE];
    struct scene *s = *state;

    teardown(state);
    (void)setup_with(state, 0);
    s = *state;
    for (unsigned done = 0; done < MU_ENGINE_KEYS_MAX; done += AT_ONCE) {
        for (unsigned i = 0; i < AT_ONCE; i++) {
            (void)snprintf(names[i], sizeof names[i], "%u", (done + i) * 2654435761u);
            ops[i] = put_op(names[i], "", 0);
        }
        assert_int_equal(do_ops(s, 0, ops, AT_ONCE), MU_ENGINE_OK);
    }
    assert_int_equal(do_ops(s, 0, ops, AT_ONCE), MU_ENGINE_OK); /* the same again */
    assert_int_equal(put(s, 0, "one more", "", 0), MU_ENGINE_EXHAUSTED);
    assert_string_equal(mu_engine_full(s->engine), "the job has too many keys");
    (void)do_ops(s, 0, (struct mu_engine_op[]){ delete_op(names[0], false) }, 1);
    assert_int_equal(put(s, 0, "one more", "", 0), MU_ENGINE_OK);
    assert_int_equal(put(s, 4, "of another job", "", 0), MU_ENGINE_OK);
}

static void failing_memory_changes_nothing(void **state)
{
    struct scene *s = *state;
    struct mu_engine_op ops[] = { put_op("n/1", "1", 9), put_op("n/2", "2", 0), delete_op("x", true) };

    (void)grant(s, 0, 9, true);
    (void)watch(s, 1, 1, "n/");
    FOR_EACH_FAILURE (n) {
        int code = do_ops(s, 0, ops, COUNT(ops));

        if (code == MU_ENGINE_OK) {
            fail_alloc_at(0);
            break;
        }
        assert_int_equal(code, MU_ENGINE_EXHAUSTED);
        assert_string_equal(keys(s, 0, ""), "");
        assert_int_equal(revision(s), 0);
        assert_string_equal(flush(s), "");
    }
    assert_string_equal(keys(s, 0, ""), "n/1=1 1/1*, n/2=2 1/1");
}

/* ---- What a job shows to the others ---- */

static void a_job_shows_one_key_and_no_other(void **state)
{
    struct scene *s = *state;

    (void)grant(s, 4, 9, true);
    (void)do_ops(s, 4, (struct mu_engine_op[]){ put_op("waiting/", "me", 9), put_op("waiting/x", "", 0) }, 2);
    assert_string_equal(keys(s, 0, "waiting/"), "waiting/other=me 1/1"); /* and not its lease */
    assert_string_equal(keys(s, 0, "waiting"), "");
    assert_string_equal(keys(s, 0, "waiting/o"), "");
    assert_string_equal(keys(s, 0, ""), "");
    assert_string_equal(keys(s, 4, "waiting/"), ""); /* nothing of its own */
    assert_string_equal(keys(s, 4, "waiting"), "waiting/=me 1/1*, waiting/x= 1/1");
    (void)watch(s, 0, 1, "waiting/"); /* its own keys alone */
    (void)put(s, 4, "waiting/", "again", 9);
    assert_string_equal(flush(s), "");
    assert_string_equal(keys(s, 0, "waiting/"), "waiting/other=again 1/2");
    (void)put(s, 1, "waiting/", "us", 0);
    assert_string_equal(flush(s), "0.1 at 3: +waiting/=us@3");
    assert_string_equal(keys(s, 0, "waiting/"), "waiting/other=again 1/2");
    assert_string_equal(keys(s, 4, "waiting/"), "waiting/j=us 3/3");
    (void)mu_engine_revoke(s->engine, &s->peers[4], 9, mu_slice_str(""), NULL);
    assert_string_equal(keys(s, 0, "waiting/"), "");
}

static void the_newest_jobs_are_shown_first(void **state)
{
    struct scene *s = *state;

    for (unsigned i = 5; i < 9; i++) {
        (void)hello(s, i, (char[]){ (char)('a' + i), '\0' });
        if (i != 6)
            (void)put(s, i, "waiting/", "", 0);
    }
    assert_string_equal(first(s, "waiting/", true, 0), "waiting/i waiting/h waiting/f");
    assert_string_equal(first(s, "waiting/", true, 3), "waiting/i waiting/h waiting/f");
    assert_string_equal(first(s, "waiting/", true, 2), "waiting/i waiting/h");
}

static void what_is_too_long_is_not_shown(void **state)
{
    static char text[MU_ENGINE_SHOWN_MAX + 2];
    struct scene *s = *state;
    const size_t id_max = MU_ENGINE_KEY_MAX - strlen("waiting/");

    memset(text, 'x', sizeof text - 1);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(mu_engine_hello(s->engine, &s->peers[5 + i], mu_slice(text, id_max + i), false), MU_ENGINE_OK);
        (void)put(s, 5 + i, "waiting/", "", 0);
    }
    assert_int_equal(strlen(first(s, "waiting/", true, 0)), MU_ENGINE_KEY_MAX);
    leave(s, 5, false);
    (void)put(s, 4, "waiting/", text, 0);
    assert_string_equal(first(s, "waiting/", true, 0), "");
    text[MU_ENGINE_SHOWN_MAX] = '\0';
    (void)put(s, 4, "waiting/", text, 0);
    assert_string_equal(first(s, "waiting/", true, 0), "waiting/other");
}

static bool take_document(void *ctx, struct mu_slice run_id, struct mu_slice document, bool ended)
{
    (void)ctx;
    (void)ended;
    return run_id.len > 0 && document.len > 0;
}

static void a_job_that_has_a_document_shows_nothing(void **state)
{
    const struct mu_engine_op document = { .kind = MU_ENGINE_DOCUMENT, .value = mu_slice_str("doc") };
    struct scene *s = *state;
    struct mu_engine_config config = {
        .budget = &s->budget, .revision = BASE, .push = on_push, .document = take_document, .ctx = s
    };

    for (unsigned i = 0; i < COUNT(s->peers); i++)
        leave(s, i, false);
    mu_engine_free(s->engine);
    s->engine = mu_engine_new(&config);
    for (unsigned i = 0; i < 4; i++) {
        (void)hello(s, i, (char[]){ (char)('a' + i), '\0' });
        (void)put(s, i, "waiting/", "", 0);
    }
    assert_string_equal(first(s, "waiting/", true, 0), "waiting/d waiting/c waiting/b");
    (void)do_ops(s, 1, &document, 1);
    (void)do_ops(s, 2, (struct mu_engine_op[]){ { .kind = MU_ENGINE_YIELD } }, 1);
    assert_string_equal(first(s, "waiting/", true, 0), "waiting/d");
}

static void failing_memory_shows_nothing(void **state)
{
    struct scene *s = *state;
    struct mu_engine_found found;
    size_t used;

    (void)hello(s, 5, "more");
    (void)put(s, 4, "waiting/", "me", 0);
    (void)put(s, 5, "waiting/", "me", 0);
    used = s->budget.used;
    FOR_EACH_FAILURE (n) {
        enum mu_engine_code code = mu_engine_range(s->engine, &s->peers[0], mu_slice_str("waiting/"), true, 0, &found);

        if (code == MU_ENGINE_OK) {
            fail_alloc_at(0);
            break;
        }
        assert_int_equal(code, MU_ENGINE_EXHAUSTED);
        assert_true(found.count == 0 && found.items == NULL && s->budget.used == used);
    }
    assert_int_equal(found.count, 2);
    leave(s, 4, false); /* what was found stays until it is sent */
    assert_true(mu_slice_equal(mu_engine_kv(&found, 1).key, mu_slice_str("waiting/other")));
    mu_engine_found_done(s->engine, &found);
}

/* ---- Watches ---- */

static void a_watch_tells_what_comes_after_its_load(void **state)
{
    struct scene *s = *state;

    (void)put(s, 0, "job/a", "1", 0);
    (void)watch(s, 1, 7, "job/");
    (void)put(s, 0, "job/a", "2", 0);
    (void)watch(s, 2, 8, "job/");
    (void)put(s, 0, "nodes/1", "x", 0);
    (void)do_ops(s, 0, (struct mu_engine_op[]){ put_op("job/b", "3", 0), delete_op("job/a", false) }, 2);
    assert_string_equal(flush(s), "1.7 at 4: +job/a=2@2 +job/b=3@4 -job/a deleted@4; 2.8 at 4: +job/b=3@4 "
                                  "-job/a deleted@4");
    assert_string_equal(flush(s), "");
    (void)put(s, 0, "job/c", "", 0);
    assert_string_equal(flush(s), "1.7 at 5: +job/c=@5; 2.8 at 5: +job/c=@5");
}

static void a_value_that_is_replaced_before_the_push_is_told_all_the_same(void **state)
{
    struct scene *s = *state;

    (void)watch(s, 1, 1, "");
    (void)put(s, 0, "a", "first", 0);
    (void)put(s, 0, "a", "second", 0);
    (void)do_ops(s, 0, (struct mu_engine_op[]){ delete_op("a", false) }, 1);
    assert_string_equal(flush(s), "1.1 at 3: +a=first@1 +a=second@2 -a deleted@3");
}

static void a_watch_ends_when_asked_replaced_or_left(void **state)
{
    struct scene *s = *state;

    (void)watch(s, 1, 1, "a");
    (void)watch(s, 1, 2, "a");
    mu_engine_unwatch(s->engine, &s->peers[1], 2);
    mu_engine_unwatch(s->engine, &s->peers[1], 99);
    (void)put(s, 0, "a", "1", 0);
    (void)watch(s, 1, 1, "b"); /* what was gathered for the old one goes with it */
    (void)put(s, 0, "b", "1", 0);
    assert_string_equal(flush(s), "1.1 at 2: +b=1@2");
    (void)put(s, 0, "b", "2", 0);
    leave(s, 1, false);
    assert_string_equal(flush(s), "");
}

static void a_peer_has_so_many_watches_and_no_more(void **state)
{
    struct scene *s = *state;

    for (uint32_t i = 0; i < MU_ENGINE_WATCHES_MAX; i++)
        assert_int_equal(watch(s, 0, i, "a"), MU_ENGINE_OK);
    assert_int_equal(watch(s, 0, 99, "a"), MU_ENGINE_EXHAUSTED);
    assert_string_equal(mu_engine_full(s->engine), "the connection has too many watches");
    assert_int_equal(watch(s, 0, 3, "b"), MU_ENGINE_OK);
    assert_int_equal(watch(s, 5, 1, "a"), MU_ENGINE_PRECONDITION);
}

static void a_job_has_so_many_watched_prefixes_and_no_more(void **state)
{
    struct scene *s = *state;
    char prefix[16];

    for (unsigned i = 0; i <= MU_ENGINE_PREFIXES_MAX; i++) {
        unsigned peer = 6 + i / MU_ENGINE_WATCHES_MAX;

        if (i % MU_ENGINE_WATCHES_MAX == 0)
            (void)hello(s, peer, "j");
        (void)snprintf(prefix, sizeof prefix, "%u/", i);
        assert_int_equal(watch(s, peer, i, prefix), i < MU_ENGINE_PREFIXES_MAX ? MU_ENGINE_OK : MU_ENGINE_EXHAUSTED);
    }
    assert_string_equal(mu_engine_full(s->engine), "the job has too many watched prefixes");
    assert_int_equal(watch(s, 0, 1, "5/"), MU_ENGINE_OK); /* one that is watched already */
    (void)put(s, 0, "5/", "x", 0);
    assert_string_equal(flush(s), "6.5 at 1: +5/=x@1; 0.1 at 1: +5/=x@1");
}

static void without_memory_for_a_change_the_watch_is_told_to_load_again(void **state)
{
    struct scene *s = *state;
    struct mu_engine_op op = put_op("a", "1", 0);

    (void)put(s, 0, "a", "0", 0);
    (void)watch(s, 1, 1, "a");
    (void)watch(s, 2, 1, "a");
    FOR_EACH_FAILURE (n) { /* that for the change comes last, and is the only one that does not refuse */
        if (do_ops(s, 0, &op, 1) != MU_ENGINE_OK)
            continue;
        fail_alloc_at(0);
        break;
    }
    assert_string_equal(flush(s), "1.1 at 2: lost; 2.1 at 2: lost");
    (void)put(s, 0, "a", "2", 0);
    assert_string_equal(flush(s), ""); /* it has ended */
    (void)watch(s, 1, 1, "a");
    (void)put(s, 0, "a", "3", 0);
    assert_string_equal(flush(s), "1.1 at 4: +a=3@4");
}

/* ---- Leases ---- */

static void the_keys_of_a_lease_go_with_it_in_one_revision(void **state)
{
    struct scene *s = *state;

    (void)watch(s, 1, 1, "");
    (void)grant(s, 0, 50, true);
    (void)grant(s, 0, 51, false);
    (void)put(s, 0, "z", "", 50);
    (void)put(s, 0, "a", "", 50);
    (void)put(s, 0, "k", "", 51);
    (void)put(s, 0, "m", "", 50);
    (void)put(s, 0, "m", "", 0); /* a put without a lease takes the key out of it */
    (void)flush(s);
    assert_int_equal(mu_engine_revoke(s->engine, &s->peers[0], 50, mu_slice_str(""), NULL), MU_ENGINE_OK);
    assert_string_equal(flush(s), "1.1 at 6: -a revoked@6 -z revoked@6");
    assert_string_equal(keys(s, 1, ""), "k= 3/3*, m= 4/5");
    assert_int_equal(mu_engine_revoke(s->engine, &s->peers[0], 50, mu_slice_str(""), NULL), MU_ENGINE_NOT_FOUND);
}

static void a_grant_that_cannot_be_is_refused(void **state)
{
    struct scene *s = *state;
    struct mu_engine_grant odd = { .lease = 8, .ttl_ms = MU_ENGINE_TTL_MIN_MS - 1 };

    assert_int_equal(grant(s, 0, 7, true), MU_ENGINE_OK);
    assert_int_equal(grant(s, 1, 7, true), MU_ENGINE_PRECONDITION); /* two clients with one lease */
    assert_int_equal(grant(s, 4, 7, true), MU_ENGINE_PRECONDITION);
    assert_int_equal(grant(s, 0, 0, true), MU_ENGINE_INVALID);
    assert_int_equal(grant(s, 5, 8, true), MU_ENGINE_PRECONDITION);
    assert_int_equal(mu_engine_grant(s->engine, &s->peers[0], &odd, 0), MU_ENGINE_INVALID);
    odd.ttl_ms = MU_ENGINE_TTL_MAX_MS + UINT64_C(1);
    assert_int_equal(mu_engine_grant(s->engine, &s->peers[0], &odd, 0), MU_ENGINE_INVALID);
    odd.ttl_ms = 1000;
    odd.secret = mu_slice_str("short");
    assert_int_equal(mu_engine_grant(s->engine, &s->peers[0], &odd, 0), MU_ENGINE_INVALID);
    for (uint64_t i = 1; i < MU_ENGINE_BOUND_MAX; i++)
        assert_int_equal(grant(s, 0, 100 + i, true), MU_ENGINE_OK);
    assert_int_equal(grant(s, 0, 200, true), MU_ENGINE_EXHAUSTED);
    assert_string_equal(mu_engine_full(s->engine), "the connection holds too many leases");
    assert_int_equal(grant(s, 0, 201, false), MU_ENGINE_OK);
}

static void a_job_has_so_many_leases_and_no_more(void **state)
{
    struct scene *s;

    teardown(state);
    (void)setup_with(state, 0);
    s = *state;
    for (uint64_t i = 0; i < MU_ENGINE_LEASES_MAX; i++)
        assert_int_equal(grant(s, (unsigned)i % 2, 1000 + i, false), MU_ENGINE_OK);
    assert_int_equal(grant(s, 0, 1, false), MU_ENGINE_EXHAUSTED);
    assert_string_equal(mu_engine_full(s->engine), "the job has too many leases");
    assert_int_equal(grant(s, 3, 1, true), MU_ENGINE_EXHAUSTED); /* also of a node that has none */
    assert_int_equal(put(s, 3, "n", "", 1), MU_ENGINE_NOT_FOUND);
    assert_int_equal(grant(s, 4, 1, true), MU_ENGINE_OK); /* of another job */
    assert_int_equal(mu_engine_keep(s->engine, &s->peers[1], 1000, s->now_ms), MU_ENGINE_OK);
    assert_int_equal(mu_engine_revoke(s->engine, &s->peers[1], 1000, mu_slice_str(""), NULL), MU_ENGINE_OK);
    assert_int_equal(grant(s, 3, 2, true), MU_ENGINE_OK);
    assert_int_equal(grant(s, 3, 3, true), MU_ENGINE_EXHAUSTED);
}

static void a_lease_of_another_job_is_not_there(void **state)
{
    struct scene *s = *state;
    struct mu_engine_last last;

    (void)grant(s, 0, 7, true);
    (void)grant(s, 0, 8, false);
    assert_int_equal(put(s, 4, "a", "", 7), MU_ENGINE_NOT_FOUND);
    assert_int_equal(attach(s, 4, 7, &last), MU_ENGINE_NOT_FOUND);
    assert_int_equal(mu_engine_keep(s->engine, &s->peers[4], 8, s->now_ms), MU_ENGINE_NOT_FOUND);
    assert_int_equal(mu_engine_revoke(s->engine, &s->peers[4], 7, mu_slice_str("0123456789abcdef"), NULL),
                     MU_ENGINE_NOT_FOUND);
    assert_int_equal(put(s, 1, "a", "", 7), MU_ENGINE_OK); /* of another node of the same job it is */
    assert_int_equal(mu_engine_keep(s->engine, &s->peers[1], 7, s->now_ms), MU_ENGINE_NOT_FOUND); /* but not to keep */
    assert_int_equal(attach(s, 1, 8, &last), MU_ENGINE_NOT_FOUND); /* a free one belongs to nobody */
}

static void a_will_needs_the_secret(void **state)
{
    struct scene *s = *state;
    struct mu_engine_grant without = { .lease = 8, .ttl_ms = 1000 };

    (void)grant(s, 0, 7, true);
    (void)mu_engine_grant(s->engine, &s->peers[0], &without, s->now_ms);
    assert_int_equal(mu_engine_revoke(s->engine, &s->peers[5], 7, mu_slice_str("0123456789abcdeX"), NULL),
                     MU_ENGINE_DENIED);
    assert_int_equal(mu_engine_revoke(s->engine, &s->peers[5], 7, mu_slice_str(""), NULL), MU_ENGINE_DENIED);
    assert_int_equal(mu_engine_revoke(s->engine, &s->peers[5], 8, mu_slice_str(""), NULL), MU_ENGINE_DENIED);
    assert_int_equal(mu_engine_revoke(s->engine, &s->peers[5], 9, mu_slice_str(""), NULL), MU_ENGINE_NOT_FOUND);
    assert_int_equal(mu_engine_revoke(s->engine, &s->peers[5], 7, mu_slice_str("0123456789abcdef"), NULL),
                     MU_ENGINE_OK);
}

static void silence_ends_a_lease_after_its_time(void **state)
{
    struct scene *s = *state;

    watch_a_lease(s, 7);
    assert_int_equal(mu_engine_deadline_ms(s->engine), s->now_ms + MU_ENGINE_IDLE_TICK_MS);
    assert_string_equal(after(s, LEASE_MS / 2), "");
    assert_int_equal(mu_engine_deadline_ms(s->engine), s->now_ms + MU_ENGINE_TICK_MS); /* a renewal is overdue */
    assert_string_equal(after(s, LEASE_MS / 2 - 1), "");
    assert_int_equal(mu_engine_deadline_ms(s->engine), s->now_ms + 1);
    mu_engine_heard(s->engine, &s->peers[0], s->now_ms);
    assert_string_equal(after(s, LEASE_MS - 1), "");
    assert_string_equal(after(s, 1), "1.1 at 2: -n silent@2");
    assert_int_equal(mu_engine_deadline_ms(s->engine), UINT64_MAX);
}

static void a_free_lease_lasts_while_somebody_keeps_it(void **state)
{
    struct scene *s = *state;

    (void)watch(s, 1, 1, "");
    (void)grant(s, 0, 7, false);
    (void)put(s, 0, "doc", "", 7);
    (void)flush(s);
    leave(s, 0, false);
    (void)after(s, 4000);
    assert_int_equal(mu_engine_keep(s->engine, &s->peers[1], 7, s->now_ms), MU_ENGINE_OK);
    assert_string_equal(after(s, LEASE_MS - 1), "");
    assert_string_equal(after(s, 1), "1.1 at 2: -doc silent@2");
    assert_int_equal(mu_engine_keep(s->engine, &s->peers[1], 7, s->now_ms), MU_ENGINE_NOT_FOUND);
}

static void a_reset_connection_may_come_back_soon(void **state)
{
    struct scene *s = *state;
    struct mu_engine_last last;

    watch_a_lease(s, 7);
    leave(s, 0, false);
    assert_string_equal(after(s, RECONNECT_MS - 1), "");
    assert_int_equal(attach(s, 2, 7, &last), MU_ENGINE_OK);
    assert_int_equal(last.id, 1);
    assert_string_equal(after(s, LEASE_MS - 1), "");
    mu_engine_heard(s->engine, &s->peers[2], s->now_ms);
    leave(s, 2, false);
    assert_string_equal(after(s, GONE_MS), "1.1 at 2: -n reset@2");
    assert_int_equal(attach(s, 3, 7, &last), MU_ENGINE_NOT_FOUND);
}

static void a_reset_late_in_a_silence_has_its_time_all_the_same(void **state)
{
    struct scene *s = *state;

    watch_a_lease(s, 7);
    (void)after(s, LEASE_MS - 100);
    leave(s, 0, false);
    assert_string_equal(after(s, GONE_MS - 1), "");
    assert_string_equal(after(s, 1), "1.1 at 2: -n reset@2");
}

/* After a pause a newcomer has to be accepted before it can be read. */
static void an_owner_that_came_back_during_our_pause_finds_its_lease(void **state)
{
    static const uint64_t pauses_ms[] = { 1, 100, 300, 500, 1800, 30000 };
    struct scene *s = *state;
    struct mu_engine_last last;

    (void)grant(s, 0, 7, true);
    for (size_t i = 0; i < COUNT(pauses_ms); i++) {
        leave(s, 0, false);
        (void)after(s, RECONNECT_MS - 1);
        (void)wake(s, s->now_ms + pauses_ms[i]);
        (void)wake(s, s->now_ms + 1);
        (void)wake(s, s->now_ms + 1);
        (void)hello(s, 0, "j");
        assert_int_equal(attach(s, 0, 7, &last), MU_ENGINE_OK);
    }
}

static void owners_are_expected_while_they_may_come_back(void **state)
{
    struct scene *s = *state;
    struct mu_engine_last last;

    (void)grant(s, 0, 7, true);
    (void)grant(s, 0, 8, false);
    assert_false(mu_engine_expects_peers(s->engine));
    leave(s, 0, false);
    assert_true(mu_engine_expects_peers(s->engine));
    (void)attach(s, 1, 7, &last);
    assert_false(mu_engine_expects_peers(s->engine));
    leave(s, 1, true);
    assert_true(mu_engine_expects_peers(s->engine));
    (void)after(s, LEASE_MS + MU_ENGINE_PROBATION_MS);
    assert_false(mu_engine_expects_peers(s->engine));
}

static void a_connection_that_the_server_cuts_has_the_whole_time(void **state)
{
    struct scene *s = *state;

    watch_a_lease(s, 7);
    (void)after(s, 4000);
    leave(s, 0, true);
    assert_string_equal(after(s, LEASE_MS + MU_ENGINE_PROBATION_MS - 1), "");
    assert_string_equal(after(s, 1), "1.1 at 2: -n silent@2");
}

static void a_lease_is_taken_over_from_a_connection_that_still_stands(void **state)
{
    struct scene *s = *state;
    struct mu_engine_last last;

    watch_a_lease(s, 7);
    (void)put(s, 0, "n", "2", 7);
    (void)flush(s);
    assert_int_equal(attach(s, 2, 7, &last), MU_ENGINE_OK);
    assert_int_equal(last.id, 2);
    assert_null(s->peers[0].job); /* cut */
    assert_string_equal(after(s, RECONNECT_MS + 1), "");
    assert_int_equal(attach(s, 2, 7, &last), MU_ENGINE_OK); /* again, by the one that has it */
    assert_int_equal(last.id, 2);
    assert_int_equal(put(s, 2, "n", "3", 7), MU_ENGINE_OK);
    assert_int_equal(attach(s, 3, 7, &last), MU_ENGINE_OK);
    assert_int_equal(last.id, 3);
}

static void a_refused_transaction_is_not_the_last_one(void **state)
{
    struct scene *s = *state;
    struct mu_engine_last last;

    (void)grant(s, 0, 7, true);
    (void)put(s, 0, "n", "", 7);
    assert_int_equal(put(s, 0, "n", "", 99), MU_ENGINE_NOT_FOUND);
    (void)attach(s, 2, 7, &last);
    assert_int_equal(last.id, 1);
    assert_true(last.held);
    assert_int_equal(last.revision, BASE + 1);
}

/* ---- Nobody is judged for another's pause ---- */

static void a_poll_that_began_before_the_time_judges_nobody(void **state)
{
    struct scene *s = *state;

    watch_a_lease(s, 7);
    assert_string_equal(after(s, LEASE_MS - 1), "");
    mu_engine_turn(s->engine, s->now_ms); /* it may have waited until after */
    mu_engine_heard(s->engine, &s->peers[0], s->now_ms + 50);
    assert_string_equal(wake(s, s->now_ms + 50), "");
    assert_string_equal(after(s, LEASE_MS - 1), "");
    assert_string_equal(after(s, 1), "1.1 at 2: -n silent@2");
    assert_int_equal(s->ago_ms, LEASE_MS);
}

static void a_pause_of_the_server_is_nobodys_silence(void **state)
{
    static const uint64_t pauses_ms[] = { STEP_MS, 400, 3000, 30000 };
    struct scene *s = *state;

    watch_a_lease(s, 7);
    (void)grant(s, 2, 8, false);
    (void)put(s, 0, "d", "", 8);
    (void)flush(s);
    for (size_t i = 0; i < COUNT(pauses_ms); i++) {
        assert_string_equal(after(s, LEASE_MS - STEP_MS - 10), "");
        assert_string_equal(wake(s, s->now_ms + pauses_ms[i]), "");
        assert_string_equal(after(s, 9), "");
        mu_engine_heard(s->engine, &s->peers[0], s->now_ms);
        (void)mu_engine_keep(s->engine, &s->peers[2], 8, s->now_ms);
    }
    assert_string_equal(after(s, LEASE_MS - 1), "");
    assert_string_equal(after(s, 1), "1.1 at 4: -n silent@3 -d silent@4");
}

static void many_short_pauses_are_nobodys_silence_either(void **state)
{
    struct scene *s = *state;

    watch_a_lease(s, 7);
    assert_string_equal(after(s, LEASE_MS / 2), "");
    for (unsigned paused_ms = 0; paused_ms < LEASE_MS; paused_ms += 400) { /* and then it reads for a moment */
        assert_string_equal(wake(s, s->now_ms + 400), "");
        assert_string_equal(after(s, 50), "");
    }
    assert_string_equal(after(s, LEASE_MS), "1.1 at 2: -n silent@2");
}

/* Its owner may have given it up meanwhile, and may have to try more than once until it is accepted. */
static void a_connection_that_is_closed_after_a_pause_leaves_its_lease_the_whole_time(void **state)
{
    static const uint64_t pauses_ms[] = { MU_ENGINE_IDLE_TICK_MS + MU_ENGINE_PAUSE_MS, 3000, 30000 };
    struct scene *s = *state;
    struct mu_engine_last last;

    watch_a_lease(s, 7);
    for (size_t i = 0; i < COUNT(pauses_ms); i++) {
        uint64_t began_ms = s->now_ms;

        s->now_ms += pauses_ms[i];
        if (i % 2 == 0) /* in the poll that was under way, or in the next one */
            leave(s, 0, false);
        mu_engine_turn(s->engine, began_ms);
        if (i % 2 == 1)
            leave(s, 0, false);
        (void)wake(s, s->now_ms);
        assert_string_equal(after(s, LEASE_MS - 1), "");
        (void)hello(s, 0, "j");
        assert_int_equal(attach(s, 0, 7, &last), MU_ENGINE_OK);
        (void)after(s, 10);
    }
    (void)wake(s, s->now_ms + 3000);
    leave(s, 0, false);
    assert_string_equal(after(s, LEASE_MS + MU_ENGINE_PROBATION_MS), "1.1 at 2: -n silent@2");
}

static void a_pause_is_soon_over(void **state)
{
    struct scene *s = *state;

    watch_a_lease(s, 7);
    (void)wake(s, s->now_ms + 3000);
    (void)after(s, MU_ENGINE_AFTER_PAUSE_MS);
    leave(s, 0, false);
    assert_string_equal(after(s, GONE_MS), "1.1 at 2: -n reset@2");
}

/* Without a lease no turns are wanted, and none that comes late is a pause. */
static void a_server_that_had_nothing_to_do_was_not_paused(void **state)
{
    struct scene *s = *state;

    s->now_ms += 60000;
    watch_a_lease(s, 7);
    mu_engine_heard(s->engine, &s->peers[0], s->now_ms);
    mu_engine_turn(s->engine, s->now_ms);
    leave(s, 0, false);
    assert_string_equal(after(s, GONE_MS), "1.1 at 2: -n reset@2");
}

/* However slow it is, silence is noticed in the end. */
static void a_server_that_is_always_late_judges_all_the_same(void **state)
{
    struct scene *s = *state;

    watch_a_lease(s, 7);
    for (unsigned i = 0; i < LEASE_MS / 3 / STEP_MS; i++)
        assert_string_equal(wake(s, s->now_ms + 2000), "");
    while (wake(s, s->now_ms + 2000)[0] == '\0')
        assert_true(s->now_ms < 60000);
    assert_string_equal(s->trace.text, "1.1 at 2: -n silent@2");
}

static void half_of_the_leases_silent_at_once_is_the_network(void **state)
{
    struct scene *s = *state;

    watch_leases(s, 4, 300);
    /* 0 and 1 fall silent. */
    for (unsigned i = 0; i < 3; i++) {
        (void)after(s, LEASE_MS / 3);
        hear_from_2_and_3(s);
    }
    assert_string_equal(after(s, 400), "");
    for (uint64_t waited_ms = 0; waited_ms < MU_ENGINE_SUSPECT_MS - 2000; waited_ms += 1000) {
        assert_string_equal(after(s, 1000), "");
        hear_from_2_and_3(s);
    }
    mu_engine_heard(s->engine, &s->peers[1], s->now_ms); /* one is back */
    assert_string_equal(after(s, 2000), "3.1 at 5: -a silent@5");
    mu_engine_heard(s->engine, &s->peers[1], s->now_ms);
    hear_from_2_and_3(s);
    assert_string_equal(after(s, LEASE_MS - 1), "");
}

static void a_suspicion_ends_and_may_come_again(void **state)
{
    struct scene *s = *state;

    watch_leases(s, 4, 0);
    for (uint64_t waited_ms = 0; waited_ms < LEASE_MS + MU_ENGINE_SUSPECT_MS - 1000; waited_ms += 1000) {
        assert_string_equal(after(s, 1000), ""); /* 0 and 1 are silent */
        hear_from_2_and_3(s);
    }
    assert_string_equal(after(s, 1000), "3.1 at 6: -a silent@5 -b silent@6");
    assert_string_equal(after(s, LEASE_MS + MU_ENGINE_SUSPECT_MS - 1001), ""); /* all are */
    assert_string_equal(after(s, 1), "3.1 at 8: -c silent@7 -d silent@8");
}

static void the_jobs_lease_is_kept_while_the_network_is_suspected(void **state)
{
    struct scene *s = *state;

    (void)watch(s, 3, 1, "");
    for (unsigned i = 0; i < 3; i++)
        (void)grant(s, i, 10 + i, true);
    (void)grant(s, 0, 20, false);
    (void)put(s, 0, "doc", "", 20);
    (void)flush(s);
    assert_string_equal(after(s, LEASE_MS), "");
    leave(s, 2, false);
    assert_string_equal(after(s, MU_ENGINE_SUSPECT_MS - 1), "");
    assert_int_equal(mu_engine_keep(s->engine, &s->peers[1], 20, s->now_ms), MU_ENGINE_OK);
    mu_engine_heard(s->engine, &s->peers[0], s->now_ms);
    mu_engine_heard(s->engine, &s->peers[1], s->now_ms);
    assert_string_equal(after(s, LEASE_MS - 1), "");
}

static void one_of_two_leases_is_just_silent(void **state)
{
    struct scene *s = *state;

    watch_a_lease(s, 10);
    (void)grant(s, 1, 11, true);
    (void)after(s, 4000);
    mu_engine_heard(s->engine, &s->peers[1], s->now_ms);
    assert_string_equal(after(s, 1000), "1.1 at 2: -n silent@2");
}

static void connections_that_break_are_not_the_network(void **state)
{
    struct scene *s = *state;

    watch_leases(s, 3, 0);
    for (unsigned i = 0; i < 3; i++)
        leave(s, i, false);
    assert_string_equal(after(s, GONE_MS), "3.1 at 6: -a reset@4 -b reset@5 -c reset@6");
}

static void a_deletion_says_when_its_lease_was_last_heard(void **state)
{
    struct scene *s = *state;

    watch_a_lease(s, 7);
    (void)after(s, 300);
    mu_engine_heard(s->engine, &s->peers[0], s->now_ms);
    assert_string_equal(after(s, LEASE_MS), "1.1 at 2: -n silent@2");
    assert_int_equal(s->ago_ms, LEASE_MS);
    (void)grant(s, 0, 8, true);
    (void)put(s, 0, "n", "", 8);
    (void)after(s, 70);
    (void)do_ops(s, 1, (struct mu_engine_op[]){ delete_op("n", false) }, 1);
    assert_string_equal(flush(s), "1.1 at 4: -n deleted@4");
    assert_int_equal(s->ago_ms, 70);
}

/* ---- Jobs ---- */

static void a_second_hello_is_refused(void **state)
{
    struct scene *s = *state;
    static char long_id[MU_ENGINE_RUN_ID_MAX + 2];

    memset(long_id, 'x', sizeof long_id - 1);
    assert_int_equal(hello(s, 0, "j"), MU_ENGINE_PRECONDITION);
    assert_int_equal(hello(s, 0, "other"), MU_ENGINE_PRECONDITION);
    assert_int_equal(hello(s, 5, ""), MU_ENGINE_INVALID);
    assert_int_equal(hello(s, 5, long_id), MU_ENGINE_INVALID);
}

static void a_job_has_so_many_connections_and_no_more(void **state)
{
    struct scene *s = *state; /* four of the job are there */
    const size_t count = MU_ENGINE_PEERS_MAX - 4;
    struct mu_engine_peer *crowd = calloc(count, sizeof *crowd);

    assert_non_null(crowd);
    for (size_t i = 0; i < count; i++) {
        mu_engine_peer_init(&crowd[i]);
        assert_int_equal(mu_engine_hello(s->engine, &crowd[i], mu_slice_str("j"), false), MU_ENGINE_OK);
    }
    assert_int_equal(hello(s, 5, "j"), MU_ENGINE_EXHAUSTED);
    assert_string_equal(mu_engine_full(s->engine), "the job has too many connections");
    assert_int_equal(put(s, 5, "a", "", 0), MU_ENGINE_PRECONDITION);
    assert_int_equal(hello(s, 5, "other"), MU_ENGINE_OK);
    assert_int_equal(put(s, 3, "a", "", 0), MU_ENGINE_OK); /* the others go on */
    leave(s, 0, false);
    assert_int_equal(hello(s, 6, "j"), MU_ENGINE_OK);
    assert_int_equal(hello(s, 7, "j"), MU_ENGINE_EXHAUSTED);
    for (size_t i = 0; i < count; i++)
        mu_engine_leave(s->engine, &crowd[i], false, s->now_ms);
    free(crowd);
}

static void a_job_goes_with_its_last_peer_and_lease_and_all_its_keys_too(void **state)
{
    struct scene *s = *state;
    size_t used = s->budget.used;

    assert_int_equal(hello(s, 5, "short"), MU_ENGINE_OK);
    (void)put(s, 5, "b", "", 0);
    leave(s, 5, false);
    assert_int_equal(s->budget.used, used);
    assert_int_equal(hello(s, 5, "short"), MU_ENGINE_OK);
    assert_string_equal(keys(s, 5, ""), "");
    (void)grant(s, 5, 1, true);
    (void)do_ops(s, 5, (struct mu_engine_op[]){ put_op("a", "", 1), put_op("b", "", 0) }, 2);
    leave(s, 5, false);
    assert_true(s->budget.used > used);
    (void)after(s, GONE_MS);
    assert_int_equal(s->budget.used, used);
    assert_int_equal(revision(s), 3); /* and its revisions are never used again */
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(a_key_has_the_revisions_of_its_making_and_its_last_change),
        CASE(a_job_sees_its_own_keys_alone),
        CASE(a_job_shows_one_key_and_no_other),
        CASE(the_newest_jobs_are_shown_first),
        CASE(what_is_too_long_is_not_shown),
        CASE(a_job_that_has_a_document_shows_nothing),
        CASE(failing_memory_shows_nothing),
        CASE(a_prefix_is_a_run_of_keys),
        CASE(a_transaction_that_changes_nothing_makes_no_revision),
        CASE(compares_choose_the_branch),
        CASE(what_cannot_be_is_refused_and_changes_nothing),
        CASE(the_engines_own_key_is_nobody_elses),
        CASE(what_gives_a_job_up_stands_alone_and_once),
        CASE(a_full_budget_refuses_the_whole_transaction),
        CASE(the_engine_takes_half_of_the_budget_and_no_more),
        CASE(what_is_set_aside_for_the_engine_is_used_first),
        CASE(all_that_is_gathered_or_found_is_charged),
        CASE(a_limit_brings_the_first_keys_in_order),
        CASE(a_range_with_a_limit_costs_what_it_brings),
        cmocka_unit_test(the_end_of_a_lease_costs_what_its_own_keys_cost),
        CASE(a_job_has_so_many_keys_and_no_more),
        CASE(failing_memory_changes_nothing),
        CASE(a_watch_tells_what_comes_after_its_load),
        CASE(a_value_that_is_replaced_before_the_push_is_told_all_the_same),
        CASE(a_watch_ends_when_asked_replaced_or_left),
        CASE(a_peer_has_so_many_watches_and_no_more),
        CASE(a_job_has_so_many_watched_prefixes_and_no_more),
        CASE(without_memory_for_a_change_the_watch_is_told_to_load_again),
        CASE(the_keys_of_a_lease_go_with_it_in_one_revision),
        CASE(a_grant_that_cannot_be_is_refused),
        CASE(a_job_has_so_many_leases_and_no_more),
        CASE(a_lease_of_another_job_is_not_there),
        CASE(a_will_needs_the_secret),
        CASE(silence_ends_a_lease_after_its_time),
        CASE(a_free_lease_lasts_while_somebody_keeps_it),
        CASE(a_reset_connection_may_come_back_soon),
        CASE(a_reset_late_in_a_silence_has_its_time_all_the_same),
        CASE(an_owner_that_came_back_during_our_pause_finds_its_lease),
        CASE(owners_are_expected_while_they_may_come_back),
        CASE(a_connection_that_the_server_cuts_has_the_whole_time),
        CASE(a_lease_is_taken_over_from_a_connection_that_still_stands),
        CASE(a_refused_transaction_is_not_the_last_one),
        CASE(a_poll_that_began_before_the_time_judges_nobody),
        CASE(a_pause_of_the_server_is_nobodys_silence),
        CASE(many_short_pauses_are_nobodys_silence_either),
        CASE(a_connection_that_is_closed_after_a_pause_leaves_its_lease_the_whole_time),
        CASE(a_pause_is_soon_over),
        CASE(a_server_that_had_nothing_to_do_was_not_paused),
        CASE(a_server_that_is_always_late_judges_all_the_same),
        CASE(half_of_the_leases_silent_at_once_is_the_network),
        CASE(a_suspicion_ends_and_may_come_again),
        CASE(the_jobs_lease_is_kept_while_the_network_is_suspected),
        CASE(one_of_two_leases_is_just_silent),
        CASE(connections_that_break_are_not_the_network),
        CASE(a_deletion_says_when_its_lease_was_last_heard),
        CASE(a_second_hello_is_refused),
        CASE(a_job_has_so_many_connections_and_no_more),
        CASE(a_job_goes_with_its_last_peer_and_lease_and_all_its_keys_too),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
