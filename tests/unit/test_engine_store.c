/* The client of an engine, alone: what it sends and tells in each state, whatever comes or is lost. The other side is
 * the test's own words here, and a real engine at the end. */
#include "failmalloc.h"
#include "kv/engine_store.h"
#include "store/engine_session.h"
#include "store/session.h"
#include "trace.h"

#include <inttypes.h>

#define LEASE_MS 3000
#define JOB_LEASE_MS 9000

#define STORE "the store at node1:29400 (10.0.0.1:29400)"

enum { T0 = 100000, MARK_LEASE = 21 };

static const char nonce[MU_TOKEN_NONCE_BYTES + 1] = "0123456789abcdef0123456789abcdef";

struct scene {
    struct mu_engine_store *store;
    const char *run_id;
    const struct mu_token *token;
    bool only;
    const char *host; /* the node that hosts the store; NULL: none does */
    uint64_t lease_ms;
    uint64_t now_ms;
    bool linked;                   /* as the driver would see it */
    bool probed;                   /* frames follow */
    size_t segments;               /* that had bytes */
    uint32_t ids[MU_FRAMES_COUNT]; /* of the last frame of that type */
    uint64_t leases[MU_FRAMES_COUNT];
    struct mu_buf sent; /* what is not understood yet */
    bool writes_when_leased;
    bool holds;        /* nothing is done about what comes out */
    uint64_t asked_ms; /* the last LEASED: when it was asked for */
    struct trace trace;
};

static struct scene sc;

static void add(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void add(const char *format, ...)
{
    char text[2048];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    trace_add(&sc.trace, "%s%s", sc.trace.len > 0 ? "; " : "", text);
}

/* What happened since the last time, in words. */
#define says(expected)                                                                                                 \
    do {                                                                                                               \
        assert_string_equal(sc.trace.text, expected);                                                                  \
        trace_begin(&sc.trace);                                                                                        \
    } while (0)

static const char *scope_text(enum mu_fold_scope scope)
{
    return scope == MU_FOLD_JOB ? "job/" : "nodes/";
}

static void ask(struct mu_fold_effect effect);
static void write_key(uint64_t id, bool repeatable);

/* ---- What it tells and wants ---- */

static void say_event(const struct mu_fold_event *e)
{
    const char *why = e->error != NULL ? e->error->text : "";

    assert_true(e->error == NULL || e->error->code < 0);
    switch (e->type) {
    case MU_FOLD_ON_LOADED:
    case MU_FOLD_ON_CHANGED:
    case MU_FOLD_ON_RANGED:
        if (e->type == MU_FOLD_ON_RANGED)
            add("ranged %" PRIu64, e->id);
        else
            add("%s %s", mu_fold_event_text(e->type), scope_text(e->scope));
        for (size_t i = 0; i < e->count; i++)
            trace_add(&sc.trace, " %s%.*s", e->kvs[i].deleted ? "-" : "", (int)e->kvs[i].key.len, e->kvs[i].key.data);
        break;
    case MU_FOLD_ON_STALE:
        add("stale %s", scope_text(e->scope));
        break;
    case MU_FOLD_ON_TROUBLE:
        add(e->error != NULL ? "trouble%s: %s" : "trouble over%s%s", e->gone ? " (gone)" : "", why);
        break;
    case MU_FOLD_ON_MET:
        if (e->another || e->host.len > 0 || e->moved) /* else it is the one that was met before, which no node hosts */
            add("met%s%s%.*s%s", e->another ? " another" : "", e->host.len > 0 ? " of " : "", (int)e->host.len,
                e->host.data, e->moved ? ", the job is in its document" : "");
        break;
    case MU_FOLD_ON_LEASED:
        assert_true(e->lease > 0);
        sc.asked_ms = e->sent_ms;
        add("leased %" PRIu64, e->id);
        break;
    case MU_FOLD_ON_WROTE:
        add("wrote %" PRIu64 "%s at %" PRId64, e->id, e->held ? " held" : "", e->revision);
        break;
    case MU_FOLD_ON_KEPT:
        add("kept %" PRIu64 "%s", e->id, e->held ? "" : " no more");
        break;
    case MU_FOLD_ON_CROWD:
        add("crowd %" PRIu64 " of %zu%s%s%s", e->id, e->count, e->held ? ", marked" : "", e->error != NULL ? ": " : "",
            why);
        assert_true(!e->held || e->lease == MARK_LEASE);
        for (size_t i = 0; i < e->count && i < 3; i++)
            trace_add(&sc.trace, " %.*s", (int)e->kvs[i].key.len, e->kvs[i].key.data);
        break;
    default:
        add("%s %" PRIu64 "%s%s%s%s", mu_fold_event_text(e->type), e->id, e->final ? " for good" : "",
            e->lease_gone ? " without a lease" : "", e->error != NULL ? ": " : "", why);
    }
}

/* MARK, UNMARK, or how many compares and operations it has. */
static void say_txn(const struct mu_engine_txn *txn)
{
    const struct mu_engine_op *op = &txn->then[0];

    assert_true(txn->then_count > 0);
    if (!mu_slice_equal(op->key, mu_slice_str("waiting/"))) {
        add("TXN %zu?%zu:%zu", txn->compares_count, txn->then_count, txn->otherwise_count);
    } else if (op->kind == MU_ENGINE_PUT) {
        add("MARK %.*s", (int)op->value.len, op->value.data);
        assert_int_equal(op->lease, MARK_LEASE);
        assert_true(txn->compares_count == 1 && txn->compares[0].kind == MU_ENGINE_IF_MOD);
        assert_true(mu_slice_equal(txn->compares[0].key, mu_slice_str("job/doc")) && txn->compares[0].revision == 5);
    } else {
        add("UNMARK");
        assert_true(op->kind == MU_ENGINE_DELETE_PREFIX && txn->compares_count == 0 && txn->then_count == 1);
    }
}

static void say_frame(const struct mu_frame *frame)
{
    sc.ids[frame->type] = frame->id;
    sc.leases[frame->type] = frame->lease;
    assert_true(frame->id > 0);
    switch (frame->type) {
    case MU_FRAME_HELLO:
        assert_true(mu_slice_equal(frame->run_id, mu_slice_str(sc.run_id)));
        assert_true(frame->proof.len == 0 ||
                    mu_token_accepts(sc.token, mu_slice_str(nonce), frame->run_id, frame->node, frame->proof));
        add(frame->proof.len > 0 ? "HELLO with proof" : "HELLO");
        break;
    case MU_FRAME_GRANT:
        assert_true(frame->lease != 0);
        add("GRANT%s", frame->bound ? "" : " free");
        assert_int_equal(frame->ttl_ms, frame->bound ? sc.lease_ms : JOB_LEASE_MS);
        break;
    case MU_FRAME_KEEP:
        add(frame->lease != 0 ? "KEEP" : "KEEP nothing");
        break;
    case MU_FRAME_LOAD:
    case MU_FRAME_RANGE:
        add("%s %.*s", mu_frame_type_text(frame->type), (int)frame->key.len, frame->key.data);
        if (frame->limit > 0)
            trace_add(&sc.trace, " limit %u", (unsigned)frame->limit);
        break;
    case MU_FRAME_TXN:
        say_txn(&frame->txn);
        break;
    default:
        add("%s", mu_frame_type_text(frame->type));
    }
}

/* The bytes that were sent, in words. */
static void say_sent(void)
{
    static const char probe[] = "\x00\xce\xf7\x85\x3c\x05\x01\0\0\0\0\0\0\0\x0f\0\0\0\0\0\0\0muster/engine/1";

    if (!sc.probed && sc.sent.len > 0) {
        assert_true(sc.sent.len >= sizeof probe - 1);
        assert_memory_equal(sc.sent.data, probe, sizeof probe - 1);
        mu_buf_consume(&sc.sent, sizeof probe - 1);
        sc.probed = true;
        add("probe");
    }
    while (sc.sent.len > 0) {
        size_t len = mu_frame_length(mu_buf_slice(&sc.sent));
        struct mu_arena arena = { .bytes_max = 1 << 24 };
        struct mu_frame frame;

        assert_in_range(len, MU_FRAME_HEAD_BYTES, sc.sent.len);
        assert_int_equal(mu_frame_read(mu_slice(sc.sent.data, len), &arena, &frame, NULL), 0);
        say_frame(&frame);
        mu_arena_done(&arena);
        mu_buf_consume(&sc.sent, len);
    }
}

static void hear_event(const struct mu_fold_event *event)
{
    bool leased = event->type == MU_FOLD_ON_LEASED;

    say_event(event);
    if (leased && sc.writes_when_leased)
        write_key(50, false);
}

/* As the driver does it. False: there is nothing more to do. */
static bool perform_next(void)
{
    struct mu_engine_store_output output = mu_engine_store_next(sc.store);

    switch (output.type) {
    case MU_ENGINE_STORE_EVENT:
        hear_event(output.event);
        return true;
    case MU_ENGINE_STORE_CONNECT:
        add("connect");
        return true;
    case MU_ENGINE_STORE_DISCONNECT:
        add("hang up");
        sc.linked = false;
        return true;
    case MU_ENGINE_STORE_BYTES:
        assert_true(sc.linked && output.bytes.len > 0);
        sc.segments++;
        assert_int_equal(mu_buf_append(&sc.sent, output.bytes.data, output.bytes.len, SIZE_MAX), 0);
        mu_buf_done(&output.bytes);
        say_sent();
        return true;
    case MU_ENGINE_STORE_NOTHING:
    case MU_ENGINE_STORE_END:
        break;
    }
    return false;
}

static void pump(void)
{
    while (!sc.holds && perform_next()) {
    }
}

/* ---- What comes in ---- */

static bool pumping;

static void ask(struct mu_fold_effect effect)
{
    mu_engine_store_request(sc.store, &effect, UINT64_MAX, sc.now_ms);
    if (pumping)
        pump();
}

static void load(uint64_t id, enum mu_fold_scope scope)
{
    ask((struct mu_fold_effect){ .type = MU_FOLD_DO_LOAD, .id = id, .scope = scope });
}

static void take(uint64_t id)
{
    ask((struct mu_fold_effect){ .type = MU_FOLD_DO_TAKE_LEASE, .id = id });
}

static void drop(uint64_t id, uint64_t lease_take)
{
    ask((struct mu_fold_effect){ .type = MU_FOLD_DO_DROP_LEASE, .id = id, .lease_take = lease_take });
}

static void write_key(uint64_t id, bool repeatable)
{
    static const struct mu_fold_op ops[] = { { MU_FOLD_PUT, { "nodes/1/2", 9 }, { "v", 1 }, 2 },
                                             { MU_FOLD_DELETE_PREFIX, { "seat/", 5 }, { "", 0 }, 0 } };
    struct mu_fold_write write = {
        .compares = { { MU_FOLD_ABSENT, mu_slice_str("job/folder"), 0 } },
        .compares_count = 1,
        .ops = ops,
        .ops_count = 2,
        .else_ops = ops,
        .else_count = 1,
        .repeatable = repeatable,
    };
    bool was = pumping;

    pumping = false; /* also from inside of pump() */
    ask((struct mu_fold_effect){ .type = MU_FOLD_DO_WRITE, .id = id, .write = &write });
    pumping = was;
}

static void write_now(uint64_t id, bool repeatable)
{
    write_key(id, repeatable);
    pump();
}

static void link_up(void)
{
    union mu_addr peer;

    assert_true(mu_addr_parse("10.0.0.1", 29400, &peer));
    sc.linked = true;
    sc.probed = false;
    mu_engine_store_connected(sc.store, &peer, sc.now_ms);
    pump();
}

static void hear(const char *bytes, size_t len)
{
    mu_engine_store_received(sc.store, mu_slice(bytes, len), sc.now_ms);
    pump();
}

static void hear_frame(struct mu_frame frame)
{
    struct mu_buf out = { 0 };

    assert_int_equal(mu_frame_write(&frame, &out, SIZE_MAX / 2), 0);
    hear(out.data, out.len);
    mu_buf_done(&out);
}

static void answer(enum mu_frame_type to, enum mu_engine_code code)
{
    hear_frame((struct mu_frame){
        .type = MU_FRAME_DONE, .id = sc.ids[to], .code = code, .text = mu_slice_str(code != 0 ? "no" : "") });
}

static void welcome(uint64_t epoch)
{
    hear_frame((struct mu_frame){ .type = MU_FRAME_WELCOME,
                                  .id = sc.ids[MU_FRAME_HELLO],
                                  .version = 1,
                                  .epoch = epoch,
                                  .node = mu_slice_str(sc.host != NULL ? sc.host : ""),
                                  .your_addr = mu_slice_str("10.0.0.7") });
}

/* These keys; an empty name ends them. */
static void hear_keys(enum mu_frame_type to, bool more, const char *first, const char *second)
{
    struct mu_engine_kv kvs[] = { { mu_slice_str(first), mu_slice_str("v"), 9, 9, 0 },
                                  { mu_slice_str(second), mu_slice_str("w"), 8, 8, 0 } };

    hear_frame((struct mu_frame){ .type = MU_FRAME_KVS,
                                  .id = sc.ids[to],
                                  .more = more,
                                  .kvs = kvs,
                                  .kvs_count = *second != '\0'  ? 2
                                               : *first != '\0' ? 1
                                                                : 0 });
}

static void hear_change(enum mu_fold_scope scope, const char *key, bool deleted)
{
    struct mu_engine_change change = { .kv = { .key = mu_slice_str(key), .mod = 11 }, .deleted = deleted };

    hear_frame((struct mu_frame){ .type = MU_FRAME_EVENTS, .watch = scope, .changes = &change, .changes_count = 1 });
}

static void lose(void)
{
    struct muster_error error = { .code = MUSTER_ELOST, .text = "connection reset by peer" };

    sc.linked = false;
    mu_engine_store_disconnected(sc.store, &error, sc.now_ms);
    pump();
}

static void pass(uint64_t ms)
{
    sc.now_ms += ms;
    mu_engine_store_time(sc.store, sc.now_ms);
    pump();
}

/* Until it wants to be told the time. */
static void pass_to_deadline(void)
{
    uint64_t at_ms = mu_engine_store_deadline_ms(sc.store);

    assert_true(at_ms != UINT64_MAX && at_ms > sc.now_ms);
    pass(at_ms - sc.now_ms);
}

static void assert_state(enum mu_engine_store_state state)
{
    assert_string_equal(mu_engine_store_state_text(mu_engine_store_state(sc.store)), mu_engine_store_state_text(state));
}

static struct mu_engine_store *store_renewed(uint64_t renew_ms)
{
    struct mu_engine_store_config config = { .endpoint = "node1:29400",
                                             .run_id = sc.run_id,
                                             .node = "n",
                                             .lease_ms = sc.lease_ms,
                                             .job_lease_ms = JOB_LEASE_MS,
                                             .renew_ms = renew_ms,
                                             .seed = 5,
                                             .will_secret = "0123456789abcde",
                                             .only = sc.only,
                                             .token = sc.token };

    return mu_engine_store_new(&config);
}

static struct mu_engine_store *store_new(void)
{
    return store_renewed(0);
}

static int begin(void **state)
{
    (void)state;
    sc = (struct scene){ .run_id = "job7", .lease_ms = LEASE_MS, .now_ms = T0 };
    sc.store = store_new();
    pumping = true;
    return sc.store == NULL;
}

static int end(void **state)
{
    (void)state;
    mu_engine_store_free(sc.store);
    mu_buf_done(&sc.sent);
    return 0;
}

static void restart(void)
{
    (void)end(NULL);
    (void)begin(NULL);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, begin, end)

/* Ready, with job/ watched, the lease of take 1, and nothing under way. */
static void settle_in(void)
{
    take(1);
    link_up();
    hear("\0", 1);
    load(2, MU_FOLD_JOB);
    welcome(77);
    answer(MU_FRAME_GRANT, MU_ENGINE_OK);
    hear_keys(MU_FRAME_LOAD, false, "", "");
    assert_state(MU_ENGINE_STORE_READY);
    trace_begin(&sc.trace);
}

/* After a loss: until HELLO and ATTACH are sent. */
static void come_back(void)
{
    pass_to_deadline();
    link_up();
    hear("\0", 1);
    trace_begin(&sc.trace);
}

/* ---- The beginning ---- */

static void everything_goes_in_one_segment(void **state)
{
    (void)state;
    sc.writes_when_leased = true;
    load(2, MU_FOLD_JOB);
    says("connect");
    take(1);
    says("");
    link_up();
    says("probe");
    assert_state(MU_ENGINE_STORE_PROBING);
    sc.segments = 0;
    hear("\0", 1);
    says("leased 1; HELLO; GRANT; LOAD job/; TXN 1?2:1");
    assert_int_equal(sc.segments, 1);
    welcome(77);
    says("");
    assert_state(MU_ENGINE_STORE_READY);
    assert_string_equal(mu_engine_store_local_address(sc.store), "10.0.0.7");
    answer(MU_FRAME_GRANT, MU_ENGINE_OK);
    hear_keys(MU_FRAME_LOAD, false, "job/doc", "job/news");
    says("loaded job/ job/doc job/news");
    hear_frame((struct mu_frame){ .type = MU_FRAME_DONE, .id = sc.ids[MU_FRAME_TXN], .held = true, .revision = 12 });
    says("wrote 50 held at 12");
    hear_change(MU_FOLD_JOB, "job/doc", true);
    says("changed job/ -job/doc");
}

static void a_job_may_have_the_longest_name(void **state)
{
    char run_id[MU_RDZV_RUN_ID_MAX + 1];

    memset(run_id, 'x', sizeof run_id - 1);
    run_id[sizeof run_id - 1] = '\0';
    (void)end(state);
    sc.run_id = run_id;
    sc.store = store_new();
    load(2, MU_FOLD_JOB);
    link_up();
    hear("\0", 1);
    says("connect; probe; HELLO; LOAD job/");
}

static void nothing_is_done_before_something_is_wanted(void **state)
{
    (void)state;
    pass(100000);
    says("");
    assert_true(mu_engine_store_deadline_ms(sc.store) == UINT64_MAX);
    ask((struct mu_fold_effect){ .type = MU_FOLD_DO_UNWATCH, .scope = MU_FOLD_JOB });
    ask((struct mu_fold_effect){ .type = MU_FOLD_DO_UNMARK });
    says("");
    drop(3, 1);
    says("dropped 3");
    drop(0, 1);
    says("");
    assert_state(MU_ENGINE_STORE_DOWN);
}

static void a_store_without_an_engine_is_refused_by_name(void **state)
{
    (void)state;
    load(2, MU_FOLD_JOB);
    take(1);
    link_up();
    trace_begin(&sc.trace);
    hear("\1", 1);
#define NO_ENGINE " has no engine: it is PyTorch's, or of an older muster"
    says("lease lost 1 for good: " STORE NO_ENGINE "; request failed 2 for good: " STORE NO_ENGINE "; hang up");
    assert_true(mu_engine_store_deadline_ms(sc.store) == UINT64_MAX);
    pass(10000);
    load(3, MU_FOLD_JOB); /* it may have been replaced */
    says("connect");
}

/* Where the engine was there is a store without one now. */
static void meet_no_engine(void)
{
    lose();
    pass_to_deadline();
    link_up();
    trace_begin(&sc.trace);
    hear("\1", 1);
}

/* Where the job met in an engine: its host is gone, and a PyTorch node hosts a store in its place. */
static void a_store_without_an_engine_has_the_job_in_a_document_where_there_was_an_engine(void **state)
{
    (void)state;
    sc.host = "node1_17_5";
    settle_in();
    meet_no_engine();
    says("met another, the job is in its document; hang up");
}

/* No member is lost with it, and workers run on: the engine may come back. */
static void a_store_that_no_node_hosted_is_waited_for(void **state)
{
    (void)state;
    settle_in();
    meet_no_engine();
    says("hang up");
    pass_to_deadline();
    says("connect");
}

static void of_a_job_that_wants_the_engine_only_it_is_refused_by_name(void **state)
{
    (void)state;
    mu_engine_store_free(sc.store);
    sc.only = true;
    sc.host = "node1_17_5";
    sc.store = store_new();
    settle_in();
    meet_no_engine();
    says("lease lost 1 for good: " STORE NO_ENGINE "; hang up");
}

static void what_is_no_store_is_given_up_and_tried_again(void **state)
{
    (void)state;
    load(2, MU_FOLD_JOB);
    link_up();
    trace_begin(&sc.trace);
    hear("HTTP/1.1 400", 12);
    says("hang up");
    pass_to_deadline();
    says("connect");
    link_up();
    trace_begin(&sc.trace);
    while (sc.now_ms < T0 + LEASE_MS)
        pass_to_deadline();
#define NO_CHECK STORE " sent: the byte 72 in answer to CHECK"
    says("trouble: " NO_CHECK "; request failed 2: " NO_CHECK);
}

/* Tried again or not, by the code. */
static void a_hello_that_is_refused(void **state)
{
    static const struct {
        enum mu_engine_code code;
        const char *says;
    } rows[] = {
#define REFUSED STORE " refuses this node: no"
        { MU_ENGINE_PRECONDITION,
          "lease lost 1 for good: " REFUSED "; request failed 2 for good: " REFUSED "; hang up" },
        { MU_ENGINE_DENIED, "lease lost 1 for good: " REFUSED "; request failed 2 for good: " REFUSED "; hang up" },
        { MU_ENGINE_EXHAUSTED, "hang up" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        restart();
        take(1);
        load(2, MU_FOLD_JOB);
        link_up();
        hear("\0", 1);
        trace_begin(&sc.trace);
        answer(MU_FRAME_HELLO, rows[i].code);
        says(rows[i].says);
        assert_state(MU_ENGINE_STORE_DOWN);
    }
}

/* ---- Requests ---- */

static void each_request_has_its_answer(void **state)
{
    (void)state;
    settle_in();
    load(3, MU_FOLD_NODES);
    says("LOAD nodes/");
    hear_keys(MU_FRAME_LOAD, false, "nodes/1/2", "");
    says("loaded nodes/ nodes/1/2");
    ask((struct mu_fold_effect){ .type = MU_FOLD_DO_GRANT_JOB, .id = 4 });
    says("GRANT free");
    answer(MU_FRAME_GRANT, MU_ENGINE_OK);
    says("granted 4");
    ask((struct mu_fold_effect){ .type = MU_FOLD_DO_KEEP_JOB, .id = 5, .lease = 99 });
    says("KEEP");
    assert_int_equal(sc.leases[MU_FRAME_KEEP], 99);
    answer(MU_FRAME_KEEP, MU_ENGINE_OK);
    says("kept 5");
    ask((struct mu_fold_effect){ .type = MU_FOLD_DO_KEEP_JOB, .id = 6, .lease = 99 });
    answer(MU_FRAME_KEEP, MU_ENGINE_NOT_FOUND);
    says("KEEP; kept 6 no more");
    ask((struct mu_fold_effect){ .type = MU_FOLD_DO_LOOK_AROUND, .id = 7 });
    says("RANGE nodes/ limit 64");
    hear_keys(MU_FRAME_RANGE, true, "nodes/1/2", "nodes/3/4");
    hear_keys(MU_FRAME_RANGE, false, "", "");
    says("RANGE waiting/ limit 16");
    hear_keys(MU_FRAME_RANGE, false, "waiting/job9", "");
    says("crowd 7 of 3 nodes/3/4 nodes/1/2 waiting/job9");
    write_now(8, false);
    answer(MU_FRAME_TXN, MU_ENGINE_OK);
    says("TXN 1?2:1; wrote 8 at 0");
    ask((struct mu_fold_effect){ .type = MU_FOLD_DO_RANGE, .id = 18, .key = mu_slice_str("seat/7"), .prefix = true });
    hear_keys(MU_FRAME_RANGE, false, "seat/7/1", "");
    says("RANGE seat/7; ranged 18 seat/7/1");
    ask((struct mu_fold_effect){ .type = MU_FOLD_DO_UNWATCH, .scope = MU_FOLD_NODES });
    answer(MU_FRAME_UNWATCH, MU_ENGINE_OK);
    says("UNWATCH");
    drop(9, 1);
    says("REVOKE");
    answer(MU_FRAME_REVOKE, MU_ENGINE_OK);
    says("dropped 9");
    take(10);
    says("leased 10; GRANT");
    drop(0, 10);
    answer(MU_FRAME_REVOKE, MU_ENGINE_OK);
    says("REVOKE");
}

static void what_the_engine_refuses_fails(void **state)
{
    (void)state;
    settle_in();
    load(3, MU_FOLD_NODES);
    answer(MU_FRAME_LOAD, MU_ENGINE_EXHAUSTED);
    says("LOAD nodes/; request failed 3: " STORE " refuses a request: no");
    write_now(4, false);
    answer(MU_FRAME_TXN, MU_ENGINE_NOT_FOUND);
    says("TXN 1?2:1; request failed 4 without a lease: " STORE " refuses a request: no");
    write_now(5, false);
    answer(MU_FRAME_TXN, MU_ENGINE_INVALID);
    says("TXN 1?2:1; request failed 5 for good: " STORE " refuses a request: no");
    ask((struct mu_fold_effect){ .type = MU_FOLD_DO_GRANT_JOB, .id = 6 });
    answer(MU_FRAME_GRANT, MU_ENGINE_EXHAUSTED);
    says("GRANT free; request failed 6: " STORE " refuses a request: no");
    ask((struct mu_fold_effect){ .type = MU_FOLD_DO_LOOK_AROUND, .id = 7 });
    answer(MU_FRAME_RANGE, MU_ENGINE_EXHAUSTED);
    says("RANGE nodes/ limit 64; crowd 7 of 0: " STORE " refuses a request: no");
    drop(8, 1);
    answer(MU_FRAME_REVOKE, MU_ENGINE_NOT_FOUND);
    says("REVOKE; dropped 8");
}

static void a_lease_that_is_refused_is_lost_and_the_next_one_waits(void **state)
{
    (void)state;
    take(1);
    link_up();
    hear("\0", 1);
    welcome(77);
    says("connect; probe; leased 1; HELLO; GRANT");
    answer(MU_FRAME_GRANT, MU_ENGINE_EXHAUSTED);
    says("lease lost 1: " STORE " refuses a lease: no");
    take(2);
    says("GRANT");
    answer(MU_FRAME_GRANT, MU_ENGINE_OK);
    says("leased 2");
    drop(0, 2);
    take(3); /* all is well again */
    says("REVOKE; leased 3; GRANT");
    answer(MU_FRAME_GRANT, MU_ENGINE_INVALID);
    says("lease lost 3 for good: " STORE " refuses a lease: no");
}

#define PAGE " nodes/1/2 nodes/3/4"

static void pages_are_one_answer(void **state)
{
    (void)state;
    settle_in();
    load(3, MU_FOLD_NODES);
    for (int i = 0; i < 5; i++) {
        pass(LEASE_MS - 1); /* each gives it more time */
        hear_keys(MU_FRAME_LOAD, true, "nodes/1/2", "nodes/3/4");
    }
    trace_begin(&sc.trace);
    hear_change(MU_FOLD_NODES, "nodes/1/2", true); /* of a watch before */
    hear_keys(MU_FRAME_LOAD, false, "nodes/5/6", "");
    says("loaded nodes/" PAGE PAGE PAGE PAGE PAGE " nodes/5/6");
}

static void only_the_last_load_of_a_scope_is_answered(void **state)
{
    uint32_t first;

    (void)state;
    settle_in();
    load(3, MU_FOLD_JOB);
    first = sc.ids[MU_FRAME_LOAD];
    hear_change(MU_FOLD_JOB, "job/doc", false);
    load(4, MU_FOLD_JOB);
    says("LOAD job/; LOAD job/");
    hear_frame((struct mu_frame){ .type = MU_FRAME_KVS, .id = first });
    hear_change(MU_FOLD_JOB, "job/doc", false);
    says("");
    hear_keys(MU_FRAME_LOAD, false, "job/doc", "");
    hear_change(MU_FOLD_JOB, "job/news", false);
    says("loaded job/ job/doc; changed job/ job/news");
    load(5, MU_FOLD_JOB);
    ask((struct mu_fold_effect){ .type = MU_FOLD_DO_UNWATCH, .scope = MU_FOLD_JOB });
    hear_keys(MU_FRAME_LOAD, false, "job/doc", "");
    hear_change(MU_FOLD_JOB, "job/news", false);
    says("LOAD job/; UNWATCH");
}

static void changes_that_were_lost_are_told(void **state)
{
    (void)state;
    settle_in();
    hear_frame((struct mu_frame){ .type = MU_FRAME_STALE, .watch = MU_FOLD_JOB });
    says("stale job/");
    hear_change(MU_FOLD_JOB, "job/doc", false);
    hear_frame((struct mu_frame){ .type = MU_FRAME_STALE, .watch = MU_FOLD_JOB });
    says("");
}

/* The engine answers in the order of the keys; waiters.h wants the order of their coming. */
static void a_crowd_is_no_more_than_was_asked_for_and_in_the_order_of_its_coming(void **state)
{
    struct mu_engine_kv kvs[100];
    char keys[100][24];

    (void)state;
    settle_in();
    ask((struct mu_fold_effect){ .type = MU_FOLD_DO_LOOK_AROUND, .id = 7 });
    for (int i = 0; i < 100; i++) {
        (void)snprintf(keys[i], sizeof keys[i], "nodes/%02d", i);
        kvs[i] = (struct mu_engine_kv){ .key = mu_slice_str(keys[i]), .create = 1000 - i };
    }
    hear_frame((struct mu_frame){ .type = MU_FRAME_KVS, .id = sc.ids[MU_FRAME_RANGE], .kvs = kvs, .kvs_count = 100 });
    says("RANGE nodes/ limit 64; RANGE waiting/ limit 16");
    for (int i = 0; i < 100; i++)
        kvs[i].key = mu_slice_str("waiting/job8");
    hear_frame((struct mu_frame){ .type = MU_FRAME_KVS, .id = sc.ids[MU_FRAME_RANGE], .kvs = kvs, .kvs_count = 100 });
    says("crowd 7 of 80 nodes/99 nodes/98 nodes/97");
}

static void look_around(uint64_t id)
{
    ask((struct mu_fold_effect){
        .type = MU_FOLD_DO_LOOK_AROUND, .id = id, .value = mu_slice_str("me"), .lease = MARK_LEASE, .doc_mod = 5 });
}

static void hear_held(enum mu_frame_type to, bool held)
{
    hear_frame((struct mu_frame){ .type = MU_FRAME_DONE, .id = sc.ids[to], .held = held });
}

/* Both answers to a node that looks around. */
static void hear_crowd(void)
{
    hear_keys(MU_FRAME_RANGE, false, "nodes/1/2", "");
    hear_keys(MU_FRAME_RANGE, false, "waiting/job8", "");
}

static void a_mark_is_put_before_others_are_looked_at(void **state)
{
    (void)state;
    settle_in();
    look_around(7);
    says("MARK me");
    hear_held(MU_FRAME_TXN, true);
    says("RANGE nodes/ limit 64");
    hear_keys(MU_FRAME_RANGE, false, "nodes/1/2", "");
    says("RANGE waiting/ limit 16");
    hear_keys(MU_FRAME_RANGE, false, "waiting/job8", "");
    says("crowd 7 of 2, marked nodes/1/2 waiting/job8");
    look_around(8); /* the document is another one meanwhile */
    hear_held(MU_FRAME_TXN, false);
    hear_crowd();
    says("MARK me; RANGE nodes/ limit 64; RANGE waiting/ limit 16; crowd 8 of 2 nodes/1/2 waiting/job8");
    look_around(9); /* no room for it */
    answer(MU_FRAME_TXN, MU_ENGINE_EXHAUSTED);
    hear_crowd();
    says("MARK me; RANGE nodes/ limit 64; RANGE waiting/ limit 16; crowd 9 of 2 nodes/1/2 waiting/job8");
}

static void a_mark_is_taken_away(void **state)
{
    (void)state;
    settle_in();
    ask((struct mu_fold_effect){ .type = MU_FOLD_DO_UNMARK, .id = 7 });
    says("UNMARK");
    answer(MU_FRAME_TXN, MU_ENGINE_OK);
    ask((struct mu_fold_effect){ .type = MU_FOLD_DO_UNMARK });
    answer(MU_FRAME_TXN, MU_ENGINE_EXHAUSTED);
    says("UNMARK");
    assert_false(mu_engine_store_deadline_ms(sc.store) < sc.now_ms + LEASE_MS / 3); /* nothing is awaited */
    for (unsigned i = 0; i < 2 * MU_ENGINE_STORE_REQUESTS_MAX; i++) /* without room it goes with its lease */
        ask((struct mu_fold_effect){ .type = MU_FOLD_DO_UNMARK });
}

/* A store of an older muster brings the job's own keys. */
static void our_own_mark_is_no_news(void **state)
{
    (void)state;
    settle_in();
    look_around(7);
    hear_held(MU_FRAME_TXN, true);
    hear_keys(MU_FRAME_RANGE, false, "", "");
    hear_keys(MU_FRAME_RANGE, false, "waiting/", "");
    says("MARK me; RANGE nodes/ limit 64; RANGE waiting/ limit 16; crowd 7 of 0, marked");
}

/* ATTACH tells of the last transaction. */
static void marks_wait_for_the_answer_to_a_write(void **state)
{
    (void)state;
    settle_in();
    write_now(3, false);
    look_around(7);
    ask((struct mu_fold_effect){ .type = MU_FOLD_DO_UNMARK });
    ask((struct mu_fold_effect){ .type = MU_FOLD_DO_LOOK_AROUND, .id = 8 }); /* puts none */
    says("TXN 1?2:1; RANGE nodes/ limit 64");
    answer(MU_FRAME_TXN, MU_ENGINE_OK);
    says("wrote 3 at 0; MARK me; UNMARK");
    write_now(4, false); /* which does not wait for them */
    says("TXN 1?2:1");
}

/* Of what has come so far nothing is kept. */
static void who_looks_around_begins_anew_after_a_loss(void **state)
{
    (void)state;
    settle_in();
    look_around(7);
    hear_held(MU_FRAME_TXN, true);
    hear_keys(MU_FRAME_RANGE, true, "nodes/5/6", "nodes/7/8");
    hear_keys(MU_FRAME_RANGE, false, "", "");
    says("MARK me; RANGE nodes/ limit 64; RANGE waiting/ limit 16");
    lose();
    come_back();
    welcome(77);
    answer(MU_FRAME_ATTACH, MU_ENGINE_OK);
    says("MARK me");
    hear_held(MU_FRAME_TXN, false);
    hear_crowd();
    says("RANGE nodes/ limit 64; RANGE waiting/ limit 16; crowd 7 of 2 nodes/1/2 waiting/job8");
}

/* Each of its answers gives it more time, up to what its owner gives it. */
static void who_looks_around_has_time_for_each_answer(void **state)
{
    struct mu_fold_effect effect = { .type = MU_FOLD_DO_LOOK_AROUND, .id = 7 };

    (void)state;
    settle_in();
    mu_engine_store_request(sc.store, &effect, sc.now_ms + 2 * LEASE_MS - 2, sc.now_ms);
    pump();
    pass(LEASE_MS - 1);
    hear_keys(MU_FRAME_RANGE, false, "nodes/1/2", "");
    trace_begin(&sc.trace);
    pass(LEASE_MS - 2);
    says("");
    hear_frame(
        (struct mu_frame){ .type = MU_FRAME_STALE, .watch = MU_FOLD_JOB }); /* it is there, but does not answer */
    trace_begin(&sc.trace);
    pass(1);
    says("crowd 7 of 0: " STORE " does not answer");
}

/* ---- Time ---- */

static void it_shows_that_it_is_there(void **state)
{
    (void)state;
    settle_in();
    pass(LEASE_MS / 3 - 1);
    says("");
    write_now(3, false); /* as good as a KEEP */
    answer(MU_FRAME_TXN, MU_ENGINE_OK);
    trace_begin(&sc.trace);
    pass(LEASE_MS / 3 - 1);
    says("");
    pass(1);
    says("KEEP");
    assert_int_equal(sc.leases[MU_FRAME_KEEP], sc.leases[MU_FRAME_GRANT]);
    answer(MU_FRAME_KEEP, MU_ENGINE_OK);
    pass_to_deadline();
    says("KEEP");
    answer(MU_FRAME_KEEP, MU_ENGINE_NOT_FOUND);
    says("lease lost 1: " STORE " has ended our lease: no");
    pass_to_deadline();
    says("KEEP nothing");
    assert_int_equal(sc.now_ms, T0 + 4 * (LEASE_MS / 3) - 1);
    answer(MU_FRAME_KEEP, MU_ENGINE_NOT_FOUND); /* whatever that may be */
    says("");
}

/* However long its lease: else it would notice late that its connection is reset. */
static void with_a_long_lease_it_shows_that_as_often(void **state)
{
    (void)end(state);
    sc.lease_ms = 60000;
    sc.store = store_new();
    settle_in();
    pass(MU_ENGINE_KEEP_MS - 1);
    says("");
    pass(1);
    says("KEEP");
}

/* For a fence: requests do not show when they were carried out. */
static void its_lease_is_renewed_as_often_as_is_wanted(void **state)
{
    enum { RENEW_MS = LEASE_MS / 10 };

    (void)state;
    mu_engine_store_free(sc.store);
    sc.store = store_renewed(RENEW_MS);
    settle_in(); /* the first KEEP was sent at once */
    pass(10);
    answer(MU_FRAME_KEEP, MU_ENGINE_OK);
    says("renewed 1");
    write_now(3, false);
    answer(MU_FRAME_TXN, MU_ENGINE_OK);
    trace_begin(&sc.trace);
    pass(RENEW_MS - 11);
    says("");
    pass(1);
    says("KEEP");
    answer(MU_FRAME_KEEP, MU_ENGINE_NOT_FOUND);
    says("lease lost 1: " STORE " has ended our lease: no");
    pass(RENEW_MS);
    says("KEEP nothing");
    answer(MU_FRAME_KEEP, MU_ENGINE_OK);
    says("");
}

/* For a fence, too: the engine may have granted it long before its answer came. */
static void a_lease_counts_from_when_it_was_asked_for(void **state)
{
    (void)state;
    take(1);
    pass(10);
    link_up();
    hear("\0", 1);
    says("connect; probe; leased 1; HELLO; GRANT");
    assert_int_equal(sc.asked_ms, T0 + 10);
    welcome(77);
    pass(100);
    answer(MU_FRAME_GRANT, MU_ENGINE_EXHAUSTED);
    take(2);
    trace_begin(&sc.trace);
    pass(LEASE_MS / 3 - 1);
    answer(MU_FRAME_GRANT, MU_ENGINE_OK);
    says("leased 2");
    assert_int_equal(sc.asked_ms, T0 + 110);
}

static void a_silent_engine_is_left_and_tried_again(void **state)
{
    (void)state;
    settle_in();
    pass_to_deadline();
    says("KEEP");
    pass(LEASE_MS - 1);
    hear_change(MU_FOLD_JOB, "job/doc", false); /* it is there */
    says("changed job/ job/doc");
    pass(LEASE_MS - 1);
    says("");
    pass(1);
    says("stale job/; hang up");
    assert_state(MU_ENGINE_STORE_DOWN);
    pass_to_deadline();
    says("connect");
    pass(MU_ENGINE_STORE_ATTEMPT_MS);
    says("trouble: "
         "the store at node1:29400 does not answer (connecting); hang up");
}

/* Nothing answers at all: what each request comes to. */
static void each_request_has_a_deadline(void **state)
{
    (void)state;
    load(2, MU_FOLD_JOB);
    take(1);
    ask((struct mu_fold_effect){ .type = MU_FOLD_DO_GRANT_JOB, .id = 4 });
    ask((struct mu_fold_effect){ .type = MU_FOLD_DO_KEEP_JOB, .id = 5, .lease = 99 });
    ask((struct mu_fold_effect){ .type = MU_FOLD_DO_LOOK_AROUND, .id = 7 });
    write_now(8, false);
    says("connect");
    pass_to_deadline();
    assert_int_equal(sc.now_ms, T0 + MU_ENGINE_STORE_TROUBLE_MS);
    says("trouble: the store at node1:29400 does not answer");
    pass_to_deadline();
    assert_int_equal(sc.now_ms, T0 + LEASE_MS);
#define LATE ": the store at node1:29400 does not answer"
    says("request failed 2" LATE "; request failed 4" LATE "; request failed 5" LATE "; crowd 7 of 0" LATE
         "; request failed 8" LATE "; lease lost 1" LATE);
    pass_to_deadline();
    says("hang up");
    assert_true(mu_engine_store_deadline_ms(sc.store) == UINT64_MAX); /* nothing is wanted */
}

static void a_request_has_the_time_that_its_owner_gives_it(void **state)
{
    struct mu_fold_effect effect = { .type = MU_FOLD_DO_LOAD, .id = 2 };

    (void)state;
    mu_engine_store_request(sc.store, &effect, sc.now_ms + 30, sc.now_ms);
    pump();
    pass_to_deadline();
    assert_int_equal(sc.now_ms, T0 + 30);
    says("connect; request failed 2: the store at node1:29400 does not answer");
    effect = (struct mu_fold_effect){ .type = MU_FOLD_DO_TAKE_LEASE, .id = 3 };
    mu_engine_store_request(sc.store, &effect, sc.now_ms, sc.now_ms);
    pump();
    says("lease lost 3: the store at node1:29400 does not answer");
}

static void an_answer_that_comes_too_late_is_nothing(void **state)
{
    uint32_t txn;

    (void)state;
    settle_in();
    write_now(3, false);
    txn = sc.ids[MU_FRAME_TXN];
    pass(LEASE_MS / 2);
    hear_change(MU_FOLD_JOB, "job/doc", false);
    trace_begin(&sc.trace);
    pass(LEASE_MS / 2);
    says("request failed 3: " STORE " does not answer");
    hear_frame((struct mu_frame){ .type = MU_FRAME_DONE, .id = txn });
    says("");
    assert_state(MU_ENGINE_STORE_READY);
}

static void a_lease_that_is_not_granted_in_time_is_revoked(void **state)
{
    (void)state;
    settle_in();
    drop(0, 1);
    take(3);
    answer(MU_FRAME_GRANT, MU_ENGINE_EXHAUSTED);
    take(4); /* is not told before it is granted */
    trace_begin(&sc.trace);
    pass(LEASE_MS / 2);
    hear_change(MU_FOLD_JOB, "job/doc", false);
    trace_begin(&sc.trace);
    pass(LEASE_MS / 2);
    says("lease lost 4: " STORE " does not answer; REVOKE");
    assert_int_equal(sc.leases[MU_FRAME_REVOKE], sc.leases[MU_FRAME_GRANT]);
}

/* ---- Losses ---- */

/* What is told at once, and what is sent by the next connection, for a loss in each state. */
static void a_loss_in_each_state(void **state)
{
    enum step { CONNECT, PROBE, GREET, GREETED, READY };
    static const struct {
        enum step upto;
        const char *at_once, *then;
    } rows[] = {
        { CONNECT, "", "leased 1; HELLO; GRANT; LOAD job/; KEEP" },
        { PROBE, "", "leased 1; HELLO; GRANT; LOAD job/; KEEP" },
        { GREET, "", "HELLO; ATTACH" }, /* LEASED was told: it may have been granted */
        { GREETED, "", "HELLO; ATTACH" },
        { READY, "stale job/", "HELLO; ATTACH" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        restart();
        take(1);
        load(2, MU_FOLD_JOB);
        ask((struct mu_fold_effect){ .type = MU_FOLD_DO_KEEP_JOB, .id = 5, .lease = 99 });
        if (rows[i].upto >= PROBE)
            link_up();
        if (rows[i].upto >= GREET)
            hear("\0", 1);
        if (rows[i].upto >= GREETED)
            welcome(77);
        if (rows[i].upto >= READY) {
            answer(MU_FRAME_GRANT, MU_ENGINE_OK);
            hear_keys(MU_FRAME_LOAD, false, "", "");
        }
        trace_begin(&sc.trace);
        lose();
        says(rows[i].at_once);
        pass_to_deadline();
        says("connect");
        assert_in_range(sc.now_ms, T0 + MU_ENGINE_STORE_RETRY_MS / 2, T0 + MU_ENGINE_STORE_RETRY_MS * 3 / 2);
        link_up();
        says("probe");
        hear("\0", 1);
        says(rows[i].then);
    }
}

static void attached(enum mu_engine_code code, uint32_t last)
{
    hear_frame((struct mu_frame){ .type = MU_FRAME_DONE,
                                  .id = sc.ids[MU_FRAME_ATTACH],
                                  .code = code,
                                  .last = last,
                                  .held = true,
                                  .revision = 44,
                                  .text = mu_slice_str(code != 0 ? "no" : "") });
}

/* Three transactions are under way, and the answer to ATTACH names one of them. */
static void what_became_of_transactions_is_known_by_the_lease(void **state)
{
#define RESET ": " STORE ": connection reset by peer"
    static const struct {
        int last; /* of the three; -1: none, 3: an earlier one */
        const char *says;
    } rows[] = {
        { -1, "TXN 1?2:1; TXN 1?2:1; TXN 1?2:1" },
        { 3, "TXN 1?2:1; TXN 1?2:1; TXN 1?2:1" },
        { 0, "wrote 10 held at 44; TXN 1?2:1; TXN 1?2:1" },
        { 1, "wrote 11 held at 44; request failed 10" RESET "; TXN 1?2:1" },
        { 2, "wrote 12 held at 44; request failed 10" RESET "; request failed 11" RESET },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        uint32_t ids[4];

        restart();
        settle_in();
        ids[3] = sc.ids[MU_FRAME_LOAD];
        for (unsigned k = 0; k < 3; k++) {
            write_now(10 + k, k == 1);
            ids[k] = sc.ids[MU_FRAME_TXN];
        }
        lose();
        come_back();
        welcome(77);
        assert_state(MU_ENGINE_STORE_ATTACHING);
        says("");
        attached(MU_ENGINE_OK, rows[i].last < 0 ? 0 : ids[rows[i].last]);
        says(rows[i].says);
        assert_state(MU_ENGINE_STORE_READY);
    }
}

static void a_lease_that_has_ended_is_lost(void **state)
{
    (void)state;
    settle_in();
    write_now(10, false);
    load(11, MU_FOLD_NODES);
    lose();
    come_back();
    welcome(77);
    attached(MU_ENGINE_NOT_FOUND, 0);
    says("lease lost 1: " STORE " has ended our lease: no; request failed 10: " STORE
         " has ended our lease: no; LOAD nodes/");
    take(12);
    says("leased 12; GRANT");
}

static void another_server_has_no_lease_of_ours(void **state)
{
    (void)state;
    settle_in();
    write_now(10, false);
    lose();
    trace_begin(&sc.trace);
    come_back();
    welcome(78);
    says("met another");
    attached(MU_ENGINE_NOT_FOUND, 0);
#define ANEW STORE " has been started anew, and the lease is lost"
    says("lease lost 1: " ANEW "; request failed 10: " ANEW);
    assert_state(MU_ENGINE_STORE_READY);
}

/* It was sent GRANT over a connection that was lost before WELCOME came: what is written under the lease has to wait
 * until it is known who answers. */
static void a_lease_of_what_may_be_another_server_is_told_when_it_is_granted(void **state)
{
    (void)state;
    settle_in();
    drop(0, 1);
    answer(MU_FRAME_REVOKE, MU_ENGINE_OK);
    lose();
    take(5);
    pass_to_deadline();
    link_up();
    hear("\0", 1);
    lose();
    come_back();
    trace_begin(&sc.trace);
    welcome(78);
    says("met another");
    answer(MU_FRAME_GRANT, MU_ENGINE_OK);
    says("leased 5");
    assert_state(MU_ENGINE_STORE_READY);
}

/* With no lease there is nothing to ask by: done or not, nobody knows. */
static void a_transaction_without_a_lease_fails_or_is_repeated(void **state)
{
    (void)state;
    settle_in();
    drop(0, 1);
    answer(MU_FRAME_REVOKE, MU_ENGINE_OK);
    write_now(10, false);
    write_now(11, true);
    trace_begin(&sc.trace);
    lose();
    says("stale job/; request failed 10" RESET);
    pass_to_deadline();
    link_up();
    trace_begin(&sc.trace);
    hear("\0", 1);
    says("HELLO; TXN 1?2:1");
}

static void a_transaction_before_the_lease_is_not_asked_for_by_it(void **state)
{
    (void)state;
    settle_in();
    drop(0, 1);
    write_now(10, false);
    take(3);
    trace_begin(&sc.trace);
    lose();
    says("stale job/; request failed 10" RESET);
}

static void a_lease_is_given_up_in_each_state(void **state)
{
    enum step { WANTED, TAKEN, HELD, LOST, GREETING, ATTACHING };
    static const char *const says_then[] = {
        [WANTED] = "dropped 4",
        [TAKEN] = "REVOKE",
        [HELD] = "REVOKE",
        [LOST] = "request failed 10",
        [GREETING] = "request failed 10",
        [ATTACHING] = "request failed 10",
    };

    (void)state;
    for (enum step step = WANTED; step <= ATTACHING; step++) {
        restart();
        take(1);
        if (step >= TAKEN) {
            link_up();
            hear("\0", 1);
            welcome(77);
        }
        if (step >= HELD)
            answer(MU_FRAME_GRANT, MU_ENGINE_OK);
        if (step >= LOST) {
            write_now(10, false);
            lose();
        }
        if (step >= GREETING)
            come_back();
        if (step >= ATTACHING)
            welcome(77);
        trace_begin(&sc.trace);
        drop(4, 1);
        assert_memory_equal(sc.trace.text, says_then[step], strlen(says_then[step]));
        if (step == LOST)
            come_back();
        if (step == LOST || step == GREETING)
            welcome(77);
        assert_state(step == WANTED ? MU_ENGINE_STORE_CONNECTING : MU_ENGINE_STORE_READY);
        trace_begin(&sc.trace);
        if (step > WANTED) {
            answer(MU_FRAME_REVOKE, MU_ENGINE_OK);
            says("dropped 4");
        }
        take(5);
    }
}

static void the_end_of_a_lease_is_not_waited_for_long(void **state)
{
    (void)state;
    settle_in();
    lose();
    drop(4, 1);
    trace_begin(&sc.trace);
    while (sc.now_ms < T0 + MU_ENGINE_STORE_REVOKE_MS)
        pass_to_deadline();
    says("connect; dropped 4");
}

/* Else it would renew the lease. */
static void a_lease_that_cannot_be_revoked_ends_with_the_connection(void **state)
{
    (void)state;
    settle_in();
    for (uint64_t i = 1; i <= MU_ENGINE_STORE_REQUESTS_MAX; i++) {
        drop(100 + i, i);
        take(i + 1);
    }
    trace_begin(&sc.trace);
    drop(200, MU_ENGINE_STORE_REQUESTS_MAX + 1);
    says("stale job/; dropped 200; hang up");
}

static void trouble_is_told_after_a_while_and_once(void **state)
{
    (void)state;
    settle_in();
    lose();
    trace_begin(&sc.trace);
    for (int i = 0; i < 40; i++) {
        pass_to_deadline();
        if (mu_engine_store_state(sc.store) == MU_ENGINE_STORE_CONNECTING) {
            struct muster_error error = { .code = MUSTER_ECONNECT, .text = "cannot connect to node1: refused" };

            mu_engine_store_disconnected(sc.store, &error, sc.now_ms);
            pump();
        }
    }
    assert_non_null(strstr(sc.trace.text, "trouble: cannot connect to node1: refused"));
    assert_null(strstr(strstr(sc.trace.text, "trouble") + 1, "trouble"));
    come_back();
    welcome(77);
    attached(MU_ENGINE_OK, 0);
    says("trouble over");
}

/* Until `count` tries to connect have failed. */
static void fail_to_connect(unsigned count, bool refused)
{
    const struct muster_error error = { .code = MUSTER_ECONNECT, .text = "no" };

    while (count > 0) {
        pass_to_deadline();
        if (mu_engine_store_state(sc.store) != MU_ENGINE_STORE_CONNECTING)
            continue;
        if (refused)
            mu_engine_store_refused(sc.store, &error, sc.now_ms);
        else
            mu_engine_store_disconnected(sc.store, &error, sc.now_ms);
        pump();
        count--;
    }
}

static const char *after_trouble(void)
{
    const char *at = strstr(sc.trace.text, "trouble");

    return at != NULL ? at : "";
}

static void that_nobody_listens_is_told_with_trouble_or_once_more(void **state)
{
    (void)state;
    settle_in();
    lose();
    trace_begin(&sc.trace);
    fail_to_connect(20, true);
    assert_true(strncmp(after_trouble(), "trouble (gone): no", strlen("trouble (gone): no")) == 0);
    assert_null(strstr(after_trouble() + 1, "trouble"));
    come_back();
    welcome(77);
    attached(MU_ENGINE_OK, 0);

    lose();
    trace_begin(&sc.trace);
    fail_to_connect(20, false);
    assert_true(strncmp(after_trouble(), "trouble: no", strlen("trouble: no")) == 0);
    trace_begin(&sc.trace);
    fail_to_connect(20, true);
    assert_true(strncmp(after_trouble(), "trouble (gone): no", strlen("trouble (gone): no")) == 0);
    assert_null(strstr(after_trouble() + 1, "trouble"));
}

static void whose_store_it_is_is_told_with_each_welcome(void **state)
{
    (void)state;
    settle_in();
    lose();
    come_back();
    trace_begin(&sc.trace);
    hear_frame((struct mu_frame){ .type = MU_FRAME_WELCOME,
                                  .id = sc.ids[MU_FRAME_HELLO],
                                  .version = 1,
                                  .epoch = 78,
                                  .node = mu_slice_str("node1_17_5"),
                                  .your_addr = mu_slice_str("10.0.0.7") });
    says("met another of node1_17_5");
}

static void a_lease_after_trouble_is_told_when_it_is_granted(void **state)
{
    (void)state;
    settle_in();
    lose();
    pass(MU_ENGINE_STORE_TROUBLE_MS);
    drop(0, 1);
    take(5);
    link_up();
    trace_begin(&sc.trace);
    hear("\0", 1);
    says("HELLO; GRANT; REVOKE");
    welcome(77);
    answer(MU_FRAME_GRANT, MU_ENGINE_OK);
    says("trouble over; leased 5");
}

/* ---- The end ---- */

static void it_ends_its_lease_when_it_ends(void **state)
{
    (void)state;
    settle_in();
    write_key(10, false); /* is not sent any more, or is: nobody waits for it */
    mu_engine_store_end(sc.store, sc.now_ms);
    pump();
    says("TXN 1?2:1; REVOKE");
    assert_state(MU_ENGINE_STORE_ENDING);
    answer(MU_FRAME_TXN, MU_ENGINE_OK);
    hear_change(MU_FOLD_JOB, "job/doc", false);
    says("");
    answer(MU_FRAME_REVOKE, MU_ENGINE_OK);
    says("hang up");
    assert_state(MU_ENGINE_STORE_ENDED);
    assert_true(mu_engine_store_deadline_ms(sc.store) == UINT64_MAX);
}

static void it_ends_whatever_happens(void **state)
{
    enum step { DOWN, CONNECT, PROBE, GREET, SILENT, LOST, WRONG, ROWS };

    (void)state;
    for (enum step step = DOWN; step < ROWS; step++) {
        restart();
        if (step >= CONNECT)
            take(1);
        if (step >= PROBE)
            link_up();
        if (step >= GREET)
            hear("\0", 1);
        if (step >= SILENT)
            welcome(77);
        trace_begin(&sc.trace);
        mu_engine_store_end(sc.store, sc.now_ms);
        pump();
        says(step == DOWN ? "" : step < GREET ? "hang up" : "REVOKE");
        if (step == GREET) { /* is not what is waited for */
            welcome(77);
            answer(MU_FRAME_GRANT, MU_ENGINE_OK);
        }
        if (step == GREET || step == SILENT) {
            pass_to_deadline();
            assert_int_equal(sc.now_ms, T0 + MU_ENGINE_STORE_REVOKE_MS);
            says("hang up");
        } else if (step == LOST) {
            lose();
        } else if (step == WRONG) {
            hear("\1\0\0\0", 4);
            says("hang up");
        }
        says("");
        assert_state(MU_ENGINE_STORE_ENDED);
    }
}

/* ---- The order of what comes out ---- */

/* One call a letter. */
static void play(char call)
{
    switch (call) {
    case 't':
        take(1);
        break;
    case 'l':
        load(2, MU_FOLD_JOB);
        break;
    case 'c':
        link_up();
        break;
    case 'p':
        hear("\0", 1);
        break;
    case 'w':
        welcome(77);
        break;
    case 'g':
        answer(MU_FRAME_GRANT, MU_ENGINE_OK);
        break;
    case 'k':
        hear_keys(MU_FRAME_LOAD, false, "", "");
        break;
    case 'r':
        answer(MU_FRAME_REVOKE, MU_ENGINE_OK);
        break;
    case 'x':
        lose();
        break;
    case '?': /* wrong bytes */
        hear("\1\0\0\0", 4);
        break;
    case '.': /* until it wants to hear that time has passed */
        pass_to_deadline();
        break;
    case 'e':
        mu_engine_store_end(sc.store, sc.now_ms);
        pump();
        break;
    default:
        fail_msg("no such call: %c", call);
    }
}

/* Plays the calls; behind | nothing is done about what comes out. Returns all that comes out in the end. */
static const char *comes_out(const char *calls)
{
    static const char *const names[] = { "nothing", "event", "connect", "disconnect", "bytes", "end" };
    struct mu_engine_store_output output;

    restart();
    for (; *calls != '\0'; calls++)
        if (*calls == '|')
            sc.holds = true;
        else
            play(*calls);
    trace_begin(&sc.trace);
    do {
        output = mu_engine_store_next(sc.store);
        add("%s", names[output.type]);
        mu_buf_done(&output.bytes);
    } while (output.type != MU_ENGINE_STORE_NOTHING && output.type != MU_ENGINE_STORE_END);
    return sc.trace.text;
}

static void what_comes_out_has_one_order(void **state)
{
    static const struct {
        const char *calls, *out;
    } rows[] = {
        { "|", "nothing" },
        { "|t", "connect; nothing" },
        { "|tl", "connect; nothing" },
        { "t|l", "nothing" }, /* CONNECTING */
        { "t|c", "bytes; nothing" },
        { "tc|l", "nothing" }, /* PROBING */
        { "tcl|p", "event; bytes; nothing" },
        { "tc|pl", "event; bytes; nothing" },
        { "tclp|w", "event; nothing" },          /* GREETING: it is met */
        { "tclp|wgk", "event; event; nothing" }, /* READY */
        { "tclpwgk|x", "event; nothing" },
        { "tclpwgk|?", "event; disconnect; nothing" },
        { "tclpwgk|l?", "disconnect; nothing" }, /* the LOAD is not sent any more */
        { "tclpwgk?|.", "connect; nothing" },
        { "tclpwgk?|..", "event; connect; nothing" }, /* TROUBLE */
        /* The end: nothing is told any more. */
        { "|e", "end" },
        { "|te", "end" }, /* the wish to connect is gone */
        { "t|e", "disconnect; end" },
        { "tc|e", "disconnect; end" },
        { "t|ce", "disconnect; end" },  /* the probe is not sent any more */
        { "tclp|e", "bytes; nothing" }, /* ENDING */
        { "tclp|wgke", "bytes; nothing" },
        { "tclpwgke|", "nothing" },
        { "tclpwgke|r", "disconnect; end" },
        { "tclpwgke|x", "end" },
        { "tclpwgk|xe", "end" },
        { "tclpwgk|?e", "disconnect; end" },
        { "tclpwgke|.", "disconnect; end" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        if (strcmp(comes_out(rows[i].calls), rows[i].out) != 0)
            fail_msg("%s: %s and not %s", rows[i].calls, sc.trace.text, rows[i].out);
}

/* ---- Bytes that are wrong ---- */

static void wrong_frames_end_the_connection(void **state)
{
    struct mu_engine_change change = { .kv = { .key = mu_slice_str("x") } };
    const struct {
        struct mu_frame frame;
        const char *why;
    } rows[] = {
        { { .type = MU_FRAME_DONE, .id = 0 }, "a frame DONE with the id 0, which answers nothing" },
        { { .type = MU_FRAME_DONE, .id = 4711 }, "a frame DONE with the id 4711, which answers nothing" },
        { { .type = MU_FRAME_KVS, .id = 4711 }, "a frame KVS with the id 4711, which answers nothing" },
        { { .type = MU_FRAME_KVS, .id = 4 }, "a frame KVS with the id 4, which answers nothing" },
        { { .type = MU_FRAME_DONE, .id = 5 }, "a frame DONE with the id 5, which answers nothing" },
        { { .type = MU_FRAME_WELCOME, .id = 1, .version = 1, .epoch = 5 },
          "a frame WELCOME with the id 1, which answers nothing" },
        { { .type = MU_FRAME_EVENTS, .watch = 7, .changes = &change, .changes_count = 1 },
          "changes of a watch 7 that was not asked for" },
        { { .type = MU_FRAME_EVENTS, .id = 3, .changes = &change, .changes_count = 1 },
          "changes of a watch 0 that was not asked for" },
        { { .type = MU_FRAME_STALE, .watch = 2 }, "changes of a watch 2 that was not asked for" },
        { { .type = MU_FRAME_KEEP, .id = 3 }, "the frame KEEP is a client's" },
        { { .type = MU_FRAME_TXN, .id = 3 }, "the frame TXN is a client's" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        char text[256];

        restart();
        settle_in();
        write_now(10, false); /* frame 4 */
        load(11, MU_FOLD_NODES);
        assert_int_equal(sc.ids[MU_FRAME_TXN], 4);
        assert_int_equal(sc.ids[MU_FRAME_LOAD], 5);
        trace_begin(&sc.trace);
        hear_frame(rows[i].frame);
        says("stale job/; hang up");
        pass_to_deadline();
        pass(LEASE_MS);
        (void)snprintf(text, sizeof text, STORE " sent: %s", rows[i].why);
        assert_non_null(strstr(sc.trace.text, text));
    }
}

static void frames_of_wrong_lengths_end_the_connection(void **state)
{
    static const char *const heads[] = { "\x00\x00\x00\x00",
                                         "\x07\x00\x00\x00",
                                         "\xff\xff\xff\xff",
                                         "\x01\x00\x40\x00",
                                         "\x08\x00\x00\x00\x0b\x00\x00\x00\x04\x00\x00\x00",
                                         "\x08\x00\x00\x00\x63\x00\x00\x00\x04\x00\x00\x00",
                                         "\x08\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00" };

    (void)state;
    for (size_t i = 0; i < COUNT(heads); i++) {
        restart();
        settle_in();
        hear(heads[i], i < 4 ? 4 : 12);
        says("stale job/; hang up");
    }
}

static void a_version_that_was_not_offered_is_refused(void **state)
{
    (void)state;
    load(2, MU_FOLD_JOB);
    link_up();
    hear("\0", 1);
    trace_begin(&sc.trace);
    hear_frame((struct mu_frame){ .type = MU_FRAME_WELCOME, .id = sc.ids[MU_FRAME_HELLO], .version = 2, .epoch = 1 });
    says("hang up");
}

/* ---- A token ---- */

#define TOKEN_TEST(test) cmocka_unit_test_setup_teardown(test, begin_with_token, end)

static struct mu_token token;

static int begin_with_token(void **state)
{
    if (begin(state) != 0)
        return -1;
    mu_engine_store_free(sc.store);
    mu_token_init(&token, mu_slice_str("correct horse battery staple"));
    sc.token = &token;
    sc.store = store_new();
    return sc.store == NULL;
}

static void challenge(void)
{
    hear_frame(
        (struct mu_frame){ .type = MU_FRAME_CHALLENGE, .id = sc.ids[MU_FRAME_HELLO], .nonce = mu_slice_str(nonce) });
}

static void a_node_proves_its_token_before_it_asks_for_anything(void **state)
{
    (void)state;
    take(1);
    load(2, MU_FOLD_JOB);
    link_up();
    says("connect; probe");
    hear("\0", 1);
    says("HELLO");
    assert_state(MU_ENGINE_STORE_KNOCKING);
    load(3, MU_FOLD_NODES);
    says("");
    challenge();
    says("leased 1; HELLO with proof; GRANT; LOAD job/; LOAD nodes/");
    welcome(77);
    says("");
    assert_state(MU_ENGINE_STORE_READY);
}

/* Each connection has a nonce of its own. */
static void it_proves_it_again_to_attach_its_lease(void **state)
{
    (void)state;
    take(1);
    link_up();
    hear("\0", 1);
    challenge();
    welcome(77);
    answer(MU_FRAME_GRANT, MU_ENGINE_OK);
    trace_begin(&sc.trace);
    lose();
    pass_to_deadline();
    link_up();
    hear("\0", 1);
    says("connect; probe; HELLO");
    challenge();
    says("HELLO with proof; ATTACH");
    welcome(77);
    answer(MU_FRAME_ATTACH, MU_ENGINE_OK);
    says("");
    assert_state(MU_ENGINE_STORE_READY);
}

static void a_store_without_a_token_gets_nothing_of_a_job_with_one(void **state)
{
    (void)state;
    load(2, MU_FOLD_JOB);
    link_up();
    hear("\0", 1);
    trace_begin(&sc.trace);
    welcome(77);
    says("request failed 2 for good: " STORE
         " has no token, and this node has one (token_file): it does not go on without; "
         "hang up");
    assert_state(MU_ENGINE_STORE_DOWN);
}

static void a_store_that_refuses_our_token_is_named(void **state)
{
    (void)state;
    take(1);
    load(2, MU_FOLD_JOB);
    link_up();
    hear("\0", 1);
    challenge();
    trace_begin(&sc.trace);
    answer(MU_FRAME_HELLO, MU_ENGINE_UNAUTHENTICATED);
    says("lease lost 1 for good: " STORE " refuses our token: it has another one; "
         "request failed 2 for good: " STORE " refuses our token: it has another one; hang up");
}

static void a_store_that_wants_a_token_is_named(void **state)
{
    (void)state;
    load(2, MU_FOLD_JOB);
    link_up();
    hear("\0", 1);
    trace_begin(&sc.trace);
    challenge();
    says("request failed 2 for good: " STORE " wants a token (--rdzv-conf token_file=PATH); hang up");
}

static void challenges_that_make_no_sense_end_the_connection(void **state)
{
    static const struct {
        bool again;
        uint32_t id;
        size_t len;
    } rows[] = { { false, 0, 32 }, { false, 9, 32 }, { false, 1, 31 }, { false, 1, 0 }, { true, 2, 32 } };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        load(2, MU_FOLD_JOB);
        link_up();
        hear("\0", 1);
        if (rows[i].again)
            challenge();
        trace_begin(&sc.trace);
        hear_frame(
            (struct mu_frame){ .type = MU_FRAME_CHALLENGE, .id = rows[i].id, .nonce = mu_slice(nonce, rows[i].len) });
        says("hang up");
        assert_state(MU_ENGINE_STORE_DOWN);
        (void)end(NULL);
        (void)begin_with_token(NULL);
    }
}

/* ---- With a real engine ---- */

static const struct mu_engine_ends ends = { "10.0.0.9:77", "10.0.0.9", "10.0.0.1", NULL };

struct server {
    struct mu_budget budget, transit;
    struct mu_engine_host host;
    struct mu_engine_session session, watcher;
    bool linked;
    size_t to_skip;      /* bytes of the probe */
    struct mu_buf heard; /* by the client, next */
    struct mu_buf log;   /* by the watcher */
};

static struct server server;

/* Only the client's allocations fail. */
static unsigned long alloc_fails; /* so many later; 0: none does */
static bool alloc_failed;

static void client_begins(void)
{
    if (alloc_fails > 0)
        fail_alloc_at(alloc_fails);
}

static void client_ends(void)
{
    if (alloc_fails == 0)
        return;
    alloc_failed = fail_alloc_hit();
    alloc_fails = alloc_failed ? 0 : alloc_fails - fail_alloc_count();
    fail_alloc_at(0);
}

#define CLIENT(call)                                                                                                   \
    do {                                                                                                               \
        client_begins();                                                                                               \
        call;                                                                                                          \
        client_ends();                                                                                                 \
    } while (0)

static bool on_server_sends(struct mu_engine_session *session, struct mu_slice bytes)
{
    struct mu_buf *to = session == &server.session ? &server.heard : &server.log;

    assert_int_equal(mu_buf_append(to, bytes.data, bytes.len, SIZE_MAX), 0);
    return true;
}

static void on_server_drops(struct mu_engine_session *session, const char *why)
{
    assert_non_null(why);
    session->dead = true;
}

static void tell_watcher(struct mu_frame frame)
{
    struct mu_buf out = { 0 };

    assert_int_equal(mu_frame_write(&frame, &out, SIZE_MAX / 2), 0);
    assert_int_equal(mu_engine_session_feed(&server.watcher, mu_buf_slice(&out), sc.now_ms, NULL), 0);
    mu_buf_done(&out);
}

static void serve(void)
{
    struct mu_engine_host_config config = { .budget = &server.budget,
                                            .transit = &server.transit,
                                            .random = { 1, 2 },
                                            .node = "host",
                                            .send = on_server_sends,
                                            .drop = on_server_drops };

    server = (struct server){ .budget = { .max = 1 << 20 }, .transit = { .max = 1 << 20 } };
    assert_int_equal(mu_engine_host_init(&server.host, &config), 0);
    mu_engine_session_init(&server.watcher, &server.host, &ends);
    tell_watcher((struct mu_frame){
        .type = MU_FRAME_HELLO, .id = 1, .version_min = 1, .version_max = 1, .run_id = mu_slice_str("job7") });
}

static void server_loses(bool cut)
{
    if (server.linked)
        mu_engine_session_leave(&server.session, cut, sc.now_ms);
    server.linked = false;
    server.heard.len = 0;
}

static void stop_serving(void)
{
    server_loses(false);
    mu_engine_session_leave(&server.watcher, false, sc.now_ms);
    mu_engine_host_done(&server.host);
    mu_buf_done(&server.heard);
    mu_buf_done(&server.log);
    assert_int_equal(server.budget.used, 0);
    assert_int_equal(server.transit.used, 0);
}

/* How many keys begin like that at the server, and the create revisions they had. */
static size_t keys_there(const char *prefix)
{
    struct mu_arena arena = { .bytes_max = 1 << 20 };
    struct mu_frame frame;
    size_t count;

    server.log.len = 0;
    tell_watcher((struct mu_frame){ .type = MU_FRAME_RANGE, .id = 2, .prefix = true, .key = mu_slice_str(prefix) });
    assert_int_equal(mu_frame_read(mu_buf_slice(&server.log), &arena, &frame, NULL), 0);
    count = frame.kvs_count;
    mu_arena_done(&arena);
    return count;
}

/* A node that writes one key after the other, each without a compare, and tells what it hears. */
struct node {
    uint64_t next_id, take, lost, lost_before, failed, trouble; /* before: anything was written */
    int64_t lease;
    uint64_t writing; /* 0: none is under way */
    unsigned number, numbers;
    uint64_t load;
    bool loaded;
};

static struct node node;

static void node_acts(void)
{
    while (node.load == 0 || (node.lease == 0 && node.take == 0) ||
           (node.lease != 0 && node.writing == 0 && node.number < node.numbers)) {
        struct mu_fold_effect effect = { .id = ++node.next_id };
        struct mu_fold_op op = { MU_FOLD_PUT, { 0 }, mu_slice_str("v"), node.lease };
        struct mu_fold_write write = { .ops = &op, .ops_count = 1 };
        char key[32];

        if (node.load == 0) {
            effect.type = MU_FOLD_DO_LOAD;
            effect.scope = MU_FOLD_JOB;
            node.load = effect.id;
        } else if (node.lease == 0) {
            effect.type = MU_FOLD_DO_TAKE_LEASE;
            node.take = effect.id;
        } else {
            (void)snprintf(key, sizeof key, "job/%u", node.number);
            op.key = mu_slice_str(key);
            effect.type = MU_FOLD_DO_WRITE;
            effect.write = &write;
            node.writing = effect.id;
        }
        CLIENT(mu_engine_store_request(sc.store, &effect, UINT64_MAX, sc.now_ms));
    }
}

static void node_hears(const struct mu_fold_event *e)
{
    if (e->type == MU_FOLD_ON_LOADED && e->id == node.load)
        node.loaded = true;
    if ((e->type == MU_FOLD_ON_REQUEST_FAILED && e->id == node.load) || e->type == MU_FOLD_ON_STALE) {
        node.load = 0;
        node.loaded = false;
    }
    if (e->type == MU_FOLD_ON_LEASED && e->id == node.take)
        node.lease = e->lease;
    if (e->type == MU_FOLD_ON_LEASE_LOST && e->id == node.take) {
        node.lease = 0;
        node.take = 0;
        node.lost++;
        node.lost_before += node.number == 0;
    }
    if (e->type == MU_FOLD_ON_WROTE || (e->type == MU_FOLD_ON_REQUEST_FAILED && e->id == node.writing)) {
        assert_int_equal(e->id, node.writing);
        node.writing = 0;
        node.failed += e->type == MU_FOLD_ON_REQUEST_FAILED;
        node.number += e->type == MU_FOLD_ON_WROTE;
    }
    node.trouble += e->type == MU_FOLD_ON_TROUBLE && e->error != NULL;
}

static size_t cut_up_at, cut_down_at; /* the connection is cut when so many bytes went that way; SIZE_MAX: never */

static void cut_now(void)
{
    struct muster_error error = { .code = MUSTER_ELOST, .text = "reset" };

    server_loses(false);
    CLIENT(mu_engine_store_disconnected(sc.store, &error, sc.now_ms));
}

/* Up to `len` bytes in that direction, one after the other if `slowly`; cut where that is due. True: it was. */
static bool send_up(struct mu_slice bytes)
{
    struct mu_slice some = bytes;

    if (cut_up_at < some.len)
        some.len = cut_up_at;
    if (cut_up_at != SIZE_MAX)
        cut_up_at -= some.len;
    if (server.to_skip > 0) { /* what a store's session does */
        size_t skip = some.len < server.to_skip ? some.len : server.to_skip;

        server.to_skip -= skip;
        some = mu_slice(some.data + skip, some.len - skip);
        if (server.to_skip == 0 && skip > 0)
            assert_int_equal(mu_buf_append(&server.heard, "\0", 1, SIZE_MAX), 0);
    }
    if (some.len > 0 && !server.session.dead)
        assert_int_equal(mu_engine_session_feed(&server.session, some, sc.now_ms, NULL), 0);
    (void)mu_engine_host_turn(&server.host, sc.now_ms, sc.now_ms);
    if (cut_up_at != 0 && !server.session.dead)
        return false;
    cut_up_at = SIZE_MAX;
    cut_now();
    return true;
}

static bool send_down(bool slowly)
{
    while (server.heard.len > 0 && server.linked) {
        size_t len = slowly ? 1 : server.heard.len;
        char bytes[4096];

        if (len > cut_down_at)
            len = cut_down_at;
        if (len > sizeof bytes)
            len = sizeof bytes;
        if (cut_down_at != SIZE_MAX)
            cut_down_at -= len;
        memcpy(bytes, server.heard.data, len);
        mu_buf_consume(&server.heard, len);
        if (len > 0)
            CLIENT(mu_engine_store_received(sc.store, mu_slice(bytes, len), sc.now_ms));
        if (cut_down_at == 0) {
            cut_down_at = SIZE_MAX;
            cut_now();
            return true;
        }
        if (!slowly || server.heard.len == 0)
            return true;
    }
    return false;
}

static void link_with_engine(void)
{
    union mu_addr peer;

    assert_true(mu_addr_parse("10.0.0.1", 29400, &peer));
    mu_engine_session_init(&server.session, &server.host, &ends);
    server.linked = true;
    server.to_skip = 5 + 1 + 16 + sizeof MU_SESSION_PROBE - 1;
    CLIENT(mu_engine_store_connected(sc.store, &peer, sc.now_ms));
}

static void step_with_engine(bool slowly)
{
    struct mu_engine_store_output output;
    uint64_t at_ms;

    node_acts();
    output = mu_engine_store_next(sc.store);
    switch (output.type) {
    case MU_ENGINE_STORE_EVENT:
        node_hears(output.event);
        return;
    case MU_ENGINE_STORE_CONNECT:
        link_with_engine();
        return;
    case MU_ENGINE_STORE_DISCONNECT:
        server_loses(false);
        return;
    case MU_ENGINE_STORE_BYTES:
        (void)send_up(mu_buf_slice(&output.bytes));
        mu_buf_done(&output.bytes);
        return;
    case MU_ENGINE_STORE_NOTHING:
    case MU_ENGINE_STORE_END:
        break;
    }
    if (send_down(slowly))
        return;
    at_ms = mu_engine_store_deadline_ms(sc.store);
    if (at_ms > sc.now_ms)
        sc.now_ms = at_ms < sc.now_ms + 50 ? at_ms : sc.now_ms + 50;
    (void)mu_engine_host_turn(&server.host, sc.now_ms, sc.now_ms);
    CLIENT(mu_engine_store_time(sc.store, sc.now_ms));
}

/* Until everything is written and loaded. */
static void run_with_engine(bool slowly)
{
    node = (struct node){ .numbers = 4 };
    for (int i = 0; node.number < node.numbers || !node.loaded; i++) {
        assert_true(i < 20000);
        step_with_engine(slowly);
    }
}

static int64_t revision_there(void)
{
    return mu_engine_revision(server.host.engine);
}

/* Each transaction makes a revision: as many as there are keys means that none was done twice. */
static void assert_each_once(int64_t before)
{
    assert_int_equal(node.lost, 0);
    assert_int_equal(node.failed, 0);
    assert_int_equal(node.trouble, 0);
    assert_int_equal(keys_there("job/"), node.numbers);
    assert_int_equal(revision_there() - before, node.numbers);
}

static void bytes_may_come_one_by_one(void **state)
{
    int64_t before;

    (void)state;
    serve();
    before = revision_there();
    cut_up_at = cut_down_at = SIZE_MAX;
    run_with_engine(true);
    assert_each_once(before);
    stop_serving();
}

/* Wherever the connection is cut, in either direction, each transaction is done once, and answered. */
static void no_transaction_is_lost_or_done_twice(void **state)
{
    (void)state;
    for (int way = 0; way < 2; way++) {
        bool was_cut = true;

        for (size_t at = 1; was_cut; at++) {
            size_t *cut_at = way == 0 ? &cut_up_at : &cut_down_at;
            int64_t before;

            restart();
            serve();
            before = revision_there();
            cut_up_at = cut_down_at = SIZE_MAX;
            *cut_at = at;
            run_with_engine(false);
            was_cut = *cut_at == SIZE_MAX;
            assert_int_equal(keys_there("job/"), node.numbers);
            if (node.lost_before == 0) /* a lease that was told may not have been granted */
                assert_each_once(before);
            stop_serving();
        }
    }
}

/* Whatever allocation of the client fails: nothing leaks, and in the end all is written. */
static void memory_may_run_out_anywhere(void **state)
{
    bool hit = true;

    (void)state;
    for (unsigned long nth = 1; hit; nth++) {
        restart();
        serve();
        cut_up_at = cut_down_at = SIZE_MAX;
        alloc_fails = nth;
        alloc_failed = false;
        run_with_engine(false);
        hit = alloc_failed;
        alloc_fails = 0;
        assert_int_equal(keys_there("job/"), node.numbers);
        stop_serving();
    }
}

static void the_will_ends_the_lease(void **state)
{
    static const char much[MU_ENGINE_STORE_WILL_MAX] = "much";
    const struct mu_fold_op mark = { MU_FOLD_PUT, mu_slice_str("nodes/1/killed"), mu_slice_str("{}"), 0 };
    const struct mu_fold_op large = { MU_FOLD_PUT, mark.key, { much, sizeof much }, 0 };
    union mu_addr addr;
    char bytes[MU_ENGINE_STORE_WILL_MAX], text[MU_ADDR_TEXT_MAX];
    size_t len, probe = 5 + 1 + 16 + sizeof MU_SESSION_PROBE - 1;
    struct mu_engine_session keeper;

    (void)state;
    assert_false(mu_engine_store_will(sc.store, &mark, &addr, bytes, &len));
    serve();
    cut_up_at = cut_down_at = SIZE_MAX;
    run_with_engine(false);
    assert_false(mu_engine_store_will(sc.store, &large, &addr, bytes, &len));
    assert_true(mu_engine_store_will(sc.store, &mark, &addr, bytes, &len));
    assert_string_equal(mu_addr_format(&addr, text), "10.0.0.1:29400");
    assert_true(len <= MU_ENGINE_STORE_WILL_MAX && len > probe);
    assert_int_equal(keys_there("job/"), 4);
    mu_engine_session_init(&keeper, &server.host, &ends);
    assert_int_equal(mu_engine_session_feed(&keeper, mu_slice(bytes + probe, len - probe), sc.now_ms, NULL), 0);
    mu_engine_session_leave(&keeper, false, sc.now_ms);
    assert_int_equal(keys_there("job/"), 0);
    while (node.lost == 0)
        step_with_engine(false);
    stop_serving();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(everything_goes_in_one_segment),
        TEST(a_job_may_have_the_longest_name),
        TEST(nothing_is_done_before_something_is_wanted),
        TEST(a_store_without_an_engine_is_refused_by_name),
        TEST(a_store_without_an_engine_has_the_job_in_a_document_where_there_was_an_engine),
        TEST(a_store_that_no_node_hosted_is_waited_for),
        TEST(of_a_job_that_wants_the_engine_only_it_is_refused_by_name),
        TEST(what_is_no_store_is_given_up_and_tried_again),
        TEST(a_hello_that_is_refused),
        TEST(each_request_has_its_answer),
        TEST(what_the_engine_refuses_fails),
        TEST(a_lease_that_is_refused_is_lost_and_the_next_one_waits),
        TEST(pages_are_one_answer),
        TEST(only_the_last_load_of_a_scope_is_answered),
        TEST(changes_that_were_lost_are_told),
        TEST(a_crowd_is_no_more_than_was_asked_for_and_in_the_order_of_its_coming),
        TEST(a_mark_is_put_before_others_are_looked_at),
        TEST(a_mark_is_taken_away),
        TEST(our_own_mark_is_no_news),
        TEST(marks_wait_for_the_answer_to_a_write),
        TEST(who_looks_around_begins_anew_after_a_loss),
        TEST(who_looks_around_has_time_for_each_answer),
        TEST(it_shows_that_it_is_there),
        TEST(with_a_long_lease_it_shows_that_as_often),
        TEST(its_lease_is_renewed_as_often_as_is_wanted),
        TEST(a_lease_counts_from_when_it_was_asked_for),
        TEST(a_silent_engine_is_left_and_tried_again),
        TEST(each_request_has_a_deadline),
        TEST(a_request_has_the_time_that_its_owner_gives_it),
        TEST(an_answer_that_comes_too_late_is_nothing),
        TEST(a_lease_that_is_not_granted_in_time_is_revoked),
        TEST(a_loss_in_each_state),
        TEST(what_became_of_transactions_is_known_by_the_lease),
        TEST(a_lease_that_has_ended_is_lost),
        TEST(another_server_has_no_lease_of_ours),
        TEST(a_lease_of_what_may_be_another_server_is_told_when_it_is_granted),
        TEST(a_transaction_without_a_lease_fails_or_is_repeated),
        TEST(a_transaction_before_the_lease_is_not_asked_for_by_it),
        TEST(a_lease_is_given_up_in_each_state),
        TEST(the_end_of_a_lease_is_not_waited_for_long),
        TEST(a_lease_that_cannot_be_revoked_ends_with_the_connection),
        TEST(trouble_is_told_after_a_while_and_once),
        TEST(that_nobody_listens_is_told_with_trouble_or_once_more),
        TEST(whose_store_it_is_is_told_with_each_welcome),
        TEST(a_lease_after_trouble_is_told_when_it_is_granted),
        TEST(it_ends_its_lease_when_it_ends),
        TEST(it_ends_whatever_happens),
        TEST(what_comes_out_has_one_order),
        TEST(wrong_frames_end_the_connection),
        TEST(frames_of_wrong_lengths_end_the_connection),
        TEST(a_version_that_was_not_offered_is_refused),
        TEST(bytes_may_come_one_by_one),
        TEST(no_transaction_is_lost_or_done_twice),
        TEST(memory_may_run_out_anywhere),
        TEST(the_will_ends_the_lease),
        TOKEN_TEST(a_node_proves_its_token_before_it_asks_for_anything),
        TOKEN_TEST(it_proves_it_again_to_attach_its_lease),
        TOKEN_TEST(a_store_without_a_token_gets_nothing_of_a_job_with_one),
        TOKEN_TEST(a_store_that_refuses_our_token_is_named),
        TOKEN_TEST(challenges_that_make_no_sense_end_the_connection),
        TEST(a_store_that_wants_a_token_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
