/* An engine's connection: what each frame is answered with, and what ends it. */
#include "failmalloc.h"
#include "store/engine_session.h"
#include "store/limits.h"
#include "trace.h"

#include <inttypes.h>
#include <stdio.h>

enum { SESSIONS = 4 };

static const struct mu_engine_ends ends = { "10.0.0.9:77", "10.0.0.9", "10.0.0.1", NULL };

struct client {
    struct mu_engine_session session;
    struct mu_buf heard;
    bool is_slow;  /* takes one thing at a time */
    char why[128]; /* it was dropped */
};

struct scene {
    struct mu_budget budget, transit;
    struct mu_service service;
    struct mu_engine_host_config config;
    struct mu_engine_host host;
    struct client clients[SESSIONS];
    uint64_t now_ms;
    int64_t base; /* the revision at the start */
    struct trace trace;
};

static struct client *client_of(struct mu_engine_session *session)
{
    return MU_LIST_ITEM(session, struct client, session);
}

static bool on_send(struct mu_engine_session *session, struct mu_slice bytes)
{
    assert_false(session->dead);
    assert_int_equal(mu_buf_append(&client_of(session)->heard, bytes.data, bytes.len, SIZE_MAX), 0);
    return !client_of(session)->is_slow;
}

static void on_drop(struct mu_engine_session *session, const char *why)
{
    session->dead = true;
    (void)snprintf(client_of(session)->why, sizeof client_of(session)->why, "%s", why);
}

static void say_frame(struct scene *s, const struct mu_frame *frame)
{
    trace_add(&s->trace, "%s%s %" PRIu32, s->trace.len > 0 ? "; " : "", mu_frame_type_text(frame->type), frame->id);
    switch (frame->type) {
    case MU_FRAME_WELCOME:
        trace_add(&s->trace, " v%" PRIu32 " %.*s by %.*s at %.*s to %.*s", frame->version, (int)frame->run_id.len,
                  frame->run_id.data, (int)frame->node.len, frame->node.data, (int)frame->my_addr.len,
                  frame->my_addr.data, (int)frame->your_addr.len, frame->your_addr.data);
        if (frame->moved)
            trace_add(&s->trace, " moved");
        break;
    case MU_FRAME_DONE:
        trace_add(&s->trace, " code %" PRIu32 "%s at %" PRId64, frame->code, frame->held ? " held" : "",
                  frame->revision - s->base);
        if (frame->last != 0)
            trace_add(&s->trace, " last %" PRIu32, frame->last);
        assert_int_equal(frame->code == 0, frame->text.len == 0);
        break;
    case MU_FRAME_CHALLENGE:
        trace_add(&s->trace, " %.*s", (int)frame->nonce.len, frame->nonce.data);
        break;
    case MU_FRAME_KVS:
        trace_add(&s->trace, "%s at %" PRId64 ":", frame->more ? " more" : "", frame->revision - s->base);
        for (size_t i = 0; i < frame->kvs_count && i < 3; i++)
            trace_add(&s->trace, " %.*s", (int)frame->kvs[i].key.len, frame->kvs[i].key.data);
        if (frame->kvs_count > 3)
            trace_add(&s->trace, " ...%zu", frame->kvs_count);
        break;
    case MU_FRAME_EVENTS:
        trace_add(&s->trace, " watch %" PRIu32 ":", frame->watch);
        for (size_t i = 0; i < frame->changes_count; i++) {
            trace_add(&s->trace, " %c%.*s", frame->changes[i].deleted ? '-' : '+', (int)frame->changes[i].kv.key.len,
                      frame->changes[i].kv.key.data);
            if (frame->changes[i].deleted)
                trace_add(&s->trace, " %s, heard %" PRIu64 " ms ago", mu_engine_end_text(frame->changes[i].end),
                          frame->changes[i].ago_ms);
        }
        break;
    default:
        break;
    }
}

/* What a client has heard since it was last asked. */
static const char *heard(struct scene *s, unsigned i)
{
    struct mu_slice left = mu_buf_slice(&s->clients[i].heard);

    trace_begin(&s->trace);
    while (left.len > 0) {
        size_t len = mu_frame_length(left);
        struct mu_arena arena = { 0 };
        struct mu_frame frame;

        assert_int_equal(mu_frame_read(mu_slice(left.data, len), &arena, &frame, NULL), 0);
        say_frame(s, &frame);
        mu_arena_done(&arena);
        left = mu_slice(left.data + len, left.len - len);
    }
    mu_buf_done(&s->clients[i].heard);
    return s->trace.text;
}

static int feed(struct scene *s, unsigned i, struct mu_slice bytes, struct muster_error *reterr)
{
    return mu_engine_session_feed(&s->clients[i].session, bytes, s->now_ms, reterr);
}

static const char *ask(struct scene *s, unsigned i, struct mu_frame frame)
{
    struct mu_buf out = { 0 };

    assert_int_equal(mu_frame_write(&frame, &out, SIZE_MAX / 2), 0);
    assert_int_equal(feed(s, i, mu_buf_slice(&out), NULL), 0);
    mu_buf_done(&out);
    return heard(s, i);
}

/* A loop that turns whenever the engine wants it to. */
static void turn(struct scene *s, uint64_t ms)
{
    uint64_t until_ms = s->now_ms + ms;

    while (mu_engine_deadline_ms(s->host.engine) < until_ms) {
        s->now_ms = mu_engine_deadline_ms(s->host.engine);
        mu_engine_host_turn(&s->host, s->now_ms, s->now_ms);
    }
    s->now_ms = until_ms;
    mu_engine_host_turn(&s->host, until_ms, until_ms);
}

static const char *const nonces[] = { "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210",
                                      "00000000000000000000000000000000", "11111111111111111111111111111111" };

static void begin(struct scene *s, unsigned i)
{
    struct mu_engine_ends his = ends;

    his.nonce = s->host.token != NULL ? nonces[i] : NULL;
    mu_engine_session_init(&s->clients[i].session, &s->host, &his);
}

static void leave(struct scene *s, unsigned i, bool cut)
{
    struct client *client = &s->clients[i];

    mu_engine_session_leave(&client->session, cut, s->now_ms);
    mu_buf_done(&client->heard);
    begin(s, i);
}

static struct mu_frame a_hello(void)
{
    return (struct mu_frame){ .type = MU_FRAME_HELLO,
                              .id = 1,
                              .version_min = 1,
                              .version_max = 7,
                              .run_id = mu_slice_str("job"),
                              .node = mu_slice_str("node3") };
}

static struct mu_frame a_grant(uint64_t lease)
{
    return (struct mu_frame){ .type = MU_FRAME_GRANT,
                              .id = 2,
                              .lease = lease,
                              .ttl_ms = 5000,
                              .bound = true,
                              .secret = mu_slice_str("0123456789abcdef") };
}

static struct mu_frame a_put(const struct mu_engine_op *op, uint32_t id)
{
    return (struct mu_frame){ .type = MU_FRAME_TXN, .id = id, .txn = { .then = op, .then_count = 1 } };
}

static struct mu_engine_op put_op(const char *key, uint64_t lease)
{
    return (struct mu_engine_op){ MU_ENGINE_PUT, mu_slice_str(key), mu_slice_str("v"), lease };
}

static int setup(void **state)
{
    struct scene *s = calloc(1, sizeof *s);
    struct muster_store_limits limits = { 0 };

    if (s == NULL || mu_limits_settle(&limits, NULL) < 0)
        return -1;
    mu_service_init(&s->service, &limits, MU_DIALECT_L, (struct mu_hash_seed){ 1, 2 }, NULL);
    s->service.documents = "/doc.";
    s->now_ms = 1000;
    s->transit.max = s->budget.max = 64 << 20;
    s->config = (struct mu_engine_host_config){ .budget = &s->budget,
                                                .transit = &s->transit,
                                                .random = { UINT64_MAX, 77 },
                                                .node = "host1",
                                                .service = &s->service,
                                                .send = on_send,
                                                .drop = on_drop };
    if (mu_engine_host_init(&s->host, &s->config) < 0)
        return -1;
    s->base = mu_engine_revision(s->host.engine);
    mu_engine_host_turn(&s->host, s->now_ms, s->now_ms);
    for (unsigned i = 0; i < SESSIONS; i++)
        mu_engine_session_init(&s->clients[i].session, &s->host, &ends);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    struct scene *s = *state;

    for (unsigned i = 0; i < SESSIONS; i++)
        leave(s, i, false);
    mu_engine_host_done(&s->host);
    mu_service_done(&s->service);
    assert_int_equal(s->budget.used, 0);
    assert_int_equal(s->transit.used, 0);
    free(s);
    return 0;
}

/* ---- Answers ---- */

static void a_node_says_all_it_needs_in_one_segment(void **state)
{
    struct scene *s = *state;
    struct mu_engine_op op = put_op("nodes/1", 9);
    struct mu_frame frames[] = { a_hello(),
                                 a_grant(9),
                                 { .type = MU_FRAME_LOAD, .id = 3, .watch = 1, .key = mu_slice_str("nodes/") },
                                 a_put(&op, 4) };
    struct mu_buf out = { 0 };

    for (size_t i = 0; i < COUNT(frames); i++)
        assert_int_equal(mu_frame_write(&frames[i], &out, SIZE_MAX / 2), 0);
    assert_int_equal(feed(s, 0, mu_buf_slice(&out), NULL), 0);
    assert_string_equal(heard(s, 0),
                        "WELCOME 1 v1 job by host1 at 10.0.0.1 to 10.0.0.9; DONE 2 code 0 at 0; KVS 3 at 0:; "
                        "DONE 4 code 0 held at 1");
    turn(s, 0);
    assert_string_equal(heard(s, 0), "EVENTS 0 watch 1: +nodes/1");
    mu_buf_done(&out);
}

static void bytes_may_come_one_by_one(void **state)
{
    struct scene *s = *state;
    struct mu_engine_op op = put_op("a", 0);
    struct mu_frame frames[] = { a_hello(), a_put(&op, 2), { .type = MU_FRAME_KEEP, .id = 3 } };
    struct mu_buf out = { 0 };

    for (size_t i = 0; i < COUNT(frames); i++)
        assert_int_equal(mu_frame_write(&frames[i], &out, SIZE_MAX / 2), 0);
    for (size_t i = 0; i < out.len; i++)
        assert_int_equal(feed(s, 0, mu_slice(out.data + i, 1), NULL), 0);
    assert_string_equal(heard(s, 0), "WELCOME 1 v1 job by host1 at 10.0.0.1 to 10.0.0.9; DONE 2 code 0 held at 1; "
                                     "DONE 3 code 0 at 1");
    mu_buf_done(&out);
}

static void nothing_is_done_without_a_hello(void **state)
{
    struct scene *s = *state;
    struct mu_engine_op op = put_op("a", 0);

    assert_string_equal(ask(s, 0, a_grant(9)), "DONE 2 code 9 at 0");
    assert_string_equal(ask(s, 0, a_put(&op, 3)), "DONE 3 code 9 at 0");
    assert_string_equal(ask(s, 0, (struct mu_frame){ .type = MU_FRAME_LOAD, .id = 4 }), "DONE 4 code 9 at 0");
    assert_string_equal(ask(s, 0, (struct mu_frame){ .type = MU_FRAME_RANGE, .id = 5, .prefix = true }),
                        "DONE 5 code 9 at 0");
    assert_string_equal(ask(s, 0, (struct mu_frame){ .type = MU_FRAME_ATTACH, .id = 6, .lease = 1 }),
                        "DONE 6 code 9 at 0");
    assert_string_equal(ask(s, 0, (struct mu_frame){ .type = MU_FRAME_KEEP, .id = 7, .lease = 1 }),
                        "DONE 7 code 9 at 0");
    assert_string_equal(ask(s, 0, (struct mu_frame){ .type = MU_FRAME_UNWATCH, .id = 8 }), "DONE 8 code 0 at 0");
}

static void hello_for_another_job_is_refused(void **state)
{
    struct scene *s = *state;
    struct mu_frame other = a_hello();

    (void)ask(s, 0, a_hello());
    other.run_id = mu_slice_str("other");
    assert_string_equal(ask(s, 0, other), "DONE 1 code 9 at 0");
}

static void a_will_ends_a_lease_without_a_hello(void **state)
{
    struct scene *s = *state;
    struct mu_engine_op op = put_op("nodes/1", 9);
    struct mu_frame will = { .type = MU_FRAME_REVOKE, .id = 1, .lease = 9, .secret = mu_slice_str("0123456789abcdeX") };
    struct muster_error error;
    struct mu_buf out = { 0 };

    (void)ask(s, 0, a_hello());
    (void)ask(s, 0, a_grant(9));
    (void)ask(s, 0, a_put(&op, 3));
    (void)ask(s, 1, a_hello());
    (void)ask(s, 1, (struct mu_frame){ .type = MU_FRAME_LOAD, .id = 2, .watch = 5, .key = mu_slice_str("nodes/") });
    assert_int_equal(mu_frame_write(&will, &out, SIZE_MAX / 2), 0);
    assert_true(feed(s, 2, mu_buf_slice(&out), &error) < 0);
    assert_string_equal(error.text, "a will with another secret than that of lease 0000000000000009");
    assert_string_equal(heard(s, 2), "DONE 1 code 7 at 1");
    mu_buf_done(&out);
    leave(s, 2, true);
    turn(s, 300);
    will.secret = mu_slice_str("0123456789abcdef");
    assert_string_equal(ask(s, 2, will), "DONE 1 code 0 at 2");
    turn(s, 0);
    assert_string_equal(heard(s, 1), "EVENTS 0 watch 5: -nodes/1 revoked, heard 300 ms ago");
}

/* The mark lies under another lease of that job; one of another job would not do, and the lease ends all the same. */
static void a_will_leaves_a_mark(void **state)
{
    struct scene *s = *state;
    struct mu_engine_op op = put_op("nodes/1", 9), other = put_op("nodes/2", 10);
    struct mu_frame will = { .type = MU_FRAME_REVOKE,
                             .id = 1,
                             .lease = 9,
                             .secret = mu_slice_str("0123456789abcdef"),
                             .mark = put_op("nodes/1/killed", 8) };

    (void)ask(s, 0, a_hello());
    for (uint64_t lease = 8; lease <= 10; lease++)
        (void)ask(s, 0, a_grant(lease));
    (void)ask(s, 0, a_put(&op, 3));
    (void)ask(s, 0, a_put(&other, 4));
    (void)ask(s, 1, a_hello());
    (void)ask(s, 1, (struct mu_frame){ .type = MU_FRAME_LOAD, .id = 2, .watch = 5, .key = mu_slice_str("nodes/") });
    assert_string_equal(ask(s, 2, will), "DONE 1 code 0 at 4");
    turn(s, 0);
    assert_string_equal(heard(s, 1), "EVENTS 0 watch 5: +nodes/1/killed -nodes/1 revoked, heard 0 ms ago");
    will.lease = 10;
    will.mark.lease = 77;
    assert_string_equal(ask(s, 2, will), "DONE 1 code 0 at 5");
    turn(s, 0);
    assert_string_equal(heard(s, 1), "EVENTS 0 watch 5: -nodes/2 revoked, heard 0 ms ago");
}

static struct mu_engine_op document_op(const char *document)
{
    return (struct mu_engine_op){ .kind = MU_ENGINE_DOCUMENT, .value = mu_slice_str(document) };
}

static bool is_document(const struct scene *s, const char *text)
{
    return mu_slice_equal(mu_table_get(&s->service.table, mu_slice_str("/doc.job")), mu_slice_str(text));
}

static void a_job_that_has_a_document_meets_there(void **state)
{
    struct scene *s = *state;
    struct mu_engine_op op = put_op("nodes/1", 9);
    struct mu_frame other = a_hello();

    assert_true(mu_service_put(&s->service, mu_slice_str("/doc.job"), mu_slice_str("x")));
    assert_string_equal(ask(s, 0, a_hello()), "WELCOME 1 v1 job by host1 at 10.0.0.1 to 10.0.0.9 moved");
    assert_string_equal(ask(s, 0, a_grant(9)), "DONE 2 code 10 at 0"); /* which came in the same segment */
    assert_string_equal(ask(s, 0, a_put(&op, 3)), "DONE 3 code 10 at 0");
    assert_string_equal(ask(s, 0, (struct mu_frame){ .type = MU_FRAME_REVOKE, .id = 4, .lease = 9 }),
                        "DONE 4 code 10 at 0");
    other.run_id = mu_slice_str("job2");
    assert_string_equal(ask(s, 1, other), "WELCOME 1 v1 job2 by host1 at 10.0.0.1 to 10.0.0.9");
    assert_true(mu_service_put(&s->service, mu_slice_str("/doc.job"), mu_slice_str("")));
    assert_string_equal(ask(s, 0, a_hello()), "WELCOME 1 v1 job by host1 at 10.0.0.1 to 10.0.0.9");
}

static void a_job_that_is_given_up_for_a_document_goes_on_there(void **state)
{
    struct scene *s = *state;
    struct mu_engine_op ops[] = { put_op("job/moved", 0), document_op("x"), { .kind = MU_ENGINE_YIELD } };
    struct mu_engine_op op = put_op("nodes/1", 0);
    struct mu_frame yield = a_put(ops, 3);

    yield.txn.then_count = COUNT(ops);
    (void)ask(s, 0, a_hello());
    (void)ask(s, 0, a_grant(9));
    assert_string_equal(ask(s, 0, yield), "DONE 3 code 0 held at 1");
    assert_true(is_document(s, "x"));
    assert_string_equal(ask(s, 0, a_put(&op, 4)), "DONE 4 code 10 at 1");
    assert_string_equal(ask(s, 1, a_hello()), "WELCOME 1 v1 job by host1 at 10.0.0.1 to 10.0.0.9 moved");
    leave(s, 0, false);
    turn(s, 10000); /* nothing of it is left here */
    assert_string_equal(ask(s, 1, a_hello()), "WELCOME 1 v1 job by host1 at 10.0.0.1 to 10.0.0.9 moved");
}

/* Others of that job see its document while it ends; the next job of that name is another one. */
static void the_name_of_a_job_that_ended_here_is_free_again(void **state)
{
    struct scene *s = *state;
    struct mu_engine_op op = document_op("closed");

    for (unsigned i = 0; i < 2; i++) {
        (void)ask(s, 0, a_hello());
        assert_true(is_document(s, ""));
        (void)ask(s, 0, a_put(&op, 2));
        assert_true(is_document(s, "closed"));
        assert_int_equal(mu_engine_place_of(s->host.engine, mu_slice_str("job")), MU_ENGINE_PLACE_DOCUMENT);
        assert_string_equal(ask(s, 1, a_hello()), "WELCOME 1 v1 job by host1 at 10.0.0.1 to 10.0.0.9");
        leave(s, 0, false);
        leave(s, 1, false);
    }
    assert_true(mu_service_put(&s->service, mu_slice_str("/doc.job"), mu_slice_str("begun anew by somebody")));
    assert_string_equal(ask(s, 0, a_hello()), "WELCOME 1 v1 job by host1 at 10.0.0.1 to 10.0.0.9 moved");
}

static void a_lease_moves_to_a_new_connection(void **state)
{
    struct scene *s = *state;
    struct mu_engine_op op = put_op("nodes/1", 9);

    (void)ask(s, 0, a_hello());
    (void)ask(s, 0, a_grant(9));
    (void)ask(s, 0, a_put(&op, 33));
    (void)ask(s, 1, a_hello());
    assert_string_equal(ask(s, 1, (struct mu_frame){ .type = MU_FRAME_ATTACH, .id = 2, .lease = 9 }),
                        "DONE 2 code 0 held at 1 last 33");
    assert_true(s->clients[0].session.dead);
    assert_string_equal(s->clients[0].why, "its lease 0000000000000009 was taken over by 10.0.0.9:77");
    assert_int_equal(feed(s, 0, mu_slice_str("not a frame"), NULL), 0); /* nothing of it is looked at */
    leave(s, 0, true);
    turn(s, 4999);
    assert_string_equal(
        ask(s, 1, (struct mu_frame){ .type = MU_FRAME_RANGE, .id = 3, .prefix = true, .key = mu_slice_str("nodes/") }),
        "KVS 3 at 1: nodes/1");
}

static void any_frame_renews_a_lease(void **state)
{
    struct scene *s = *state;

    (void)ask(s, 0, a_hello());
    (void)ask(s, 0, a_grant(9));
    for (unsigned i = 0; i < 5; i++) {
        turn(s, 4900);
        (void)ask(s, 0, (struct mu_frame){ .type = MU_FRAME_KEEP, .id = 1 });
    }
    assert_string_equal(ask(s, 0, (struct mu_frame){ .type = MU_FRAME_KEEP, .id = 4, .lease = 9 }),
                        "DONE 4 code 0 at 0");
    turn(s, 5000);
    assert_string_equal(ask(s, 0, (struct mu_frame){ .type = MU_FRAME_KEEP, .id = 4, .lease = 9 }),
                        "DONE 4 code 5 at 0");
}

/* Twenty keys of 50,000 bytes, which take a megabyte. */
static void put_much(struct scene *s)
{
    static char value[50000];
    struct mu_engine_op ops[20];
    struct mu_frame all = { .type = MU_FRAME_TXN, .id = 2, .txn = { .then = ops, .then_count = COUNT(ops) } };
    char names[COUNT(ops)][8];

    for (unsigned i = 0; i < COUNT(ops); i++) {
        (void)snprintf(names[i], sizeof names[i], "k%02u", i);
        ops[i] = (struct mu_engine_op){ MU_ENGINE_PUT, mu_slice_str(names[i]), mu_slice(value, sizeof value), 0 };
    }
    assert_string_equal(ask(s, 0, all), "DONE 2 code 0 held at 1");
}

static void many_keys_come_in_several_frames(void **state)
{
    struct scene *s = *state;

    (void)ask(s, 0, a_hello());
    (void)ask(s, 1, a_hello());
    (void)ask(s, 1, (struct mu_frame){ .type = MU_FRAME_LOAD, .id = 2, .watch = 1 });
    put_much(s);
    assert_string_equal(ask(s, 0, (struct mu_frame){ .type = MU_FRAME_RANGE, .id = 3, .prefix = true }),
                        "KVS 3 more at 1: k00 k01 k02 ...5; KVS 3 more at 1: k05 k06 k07 ...5; "
                        "KVS 3 more at 1: k10 k11 k12 ...5; KVS 3 at 1: k15 k16 k17 ...5");
    turn(s, 0);
    assert_string_equal(heard(s, 1),
                        "EVENTS 0 watch 1: +k00 +k01 +k02 +k03 +k04 +k05; EVENTS 0 watch 1: +k06 +k07 +k08 "
                        "+k09 +k10 +k11; EVENTS 0 watch 1: +k12 +k13 +k14 +k15 +k16 +k17; EVENTS 0 watch "
                        "1: +k18 +k19");
}

static const char *heard_once_sent(struct scene *s, unsigned i)
{
    mu_engine_session_sent(&s->clients[i].session);
    return heard(s, i);
}

/* And they are the keys of the moment in which they were asked for; what comes later is told behind them. */
static void the_next_page_waits_until_the_one_before_was_taken(void **state)
{
    struct scene *s = *state;
    struct mu_engine_op op = { .kind = MU_ENGINE_DELETE_PREFIX, .key = mu_slice_str("k1") };

    (void)ask(s, 0, a_hello());
    (void)ask(s, 1, a_hello());
    put_much(s);
    s->clients[1].is_slow = true;
    assert_string_equal(ask(s, 1, (struct mu_frame){ .type = MU_FRAME_LOAD, .id = 3, .watch = 1 }),
                        "KVS 3 more at 1: k00 k01 k02 ...5");
    assert_string_equal(ask(s, 1, (struct mu_frame){ .type = MU_FRAME_KEEP, .id = 4 }), "");
    (void)ask(s, 0, a_put(&op, 5));
    turn(s, 0);
    assert_string_equal(
        ask(s, 1, (struct mu_frame){ .type = MU_FRAME_RANGE, .id = 6, .prefix = true, .key = mu_slice_str("k0") }), "");
    assert_string_equal(ask(s, 1, (struct mu_frame){ .type = MU_FRAME_KEEP, .id = 7 }), "");
    assert_string_equal(heard_once_sent(s, 1), "KVS 3 more at 1: k05 k06 k07 ...5");
    assert_string_equal(heard_once_sent(s, 1), "KVS 3 more at 1: k10 k11 k12 ...5");
    assert_string_equal(heard_once_sent(s, 1), "KVS 3 at 1: k15 k16 k17 ...5");
    assert_string_equal(ask(s, 1, (struct mu_frame){ .type = MU_FRAME_KEEP, .id = 8 }), ""); /* it may be a large one */
    assert_string_equal(heard_once_sent(s, 1),
                        "DONE 4 code 0 at 1; EVENTS 0 watch 1: -k10 deleted, heard 0 ms ago -k11 deleted, heard 0 ms "
                        "ago -k12 deleted, heard 0 ms ago -k13 deleted, heard 0 ms ago -k14 deleted, heard 0 ms ago "
                        "-k15 deleted, heard 0 ms ago -k16 deleted, heard 0 ms ago -k17 deleted, heard 0 ms ago -k18 "
                        "deleted, heard 0 ms ago -k19 deleted, heard 0 ms ago");
    assert_string_equal(heard_once_sent(s, 1), "KVS 6 more at 2: k00 k01 k02 ...5");
    assert_string_equal(heard_once_sent(s, 1), "KVS 6 at 2: k05 k06 k07 ...5");
    assert_string_equal(heard_once_sent(s, 1), "DONE 7 code 0 at 2; DONE 8 code 0 at 2");
    assert_string_equal(heard_once_sent(s, 1), "");
    assert_string_equal(ask(s, 1, (struct mu_frame){ .type = MU_FRAME_KEEP, .id = 9 }), "DONE 9 code 0 at 2");
    assert_int_equal(s->transit.used, 0);
}

static void what_waits_behind_pages_is_limited(void **state)
{
    struct scene *s = *state;
    struct client *deaf = &s->clients[1];
    size_t answers = 0;

    (void)ask(s, 0, a_hello());
    put_much(s);
    for (unsigned round = 0; round < 2; round++) {
        enum mu_frame_type type = round == 0 ? MU_FRAME_KEEP : MU_FRAME_RANGE;

        (void)ask(s, 1, a_hello());
        deaf->is_slow = true;
        for (answers = 0; !deaf->session.dead; answers++) {
            (void)ask(s, 1, (struct mu_frame){ .type = answers == 0 ? MU_FRAME_RANGE : type, .id = 3, .prefix = true });
            assert_true(s->transit.used < MU_ENGINE_UNSENT_MAX + 1000);
        }
        assert_string_equal(deaf->why, round == 0 ? "it does not read its replies: more than 1 MiB is unsent"
                                                  : "it does not read its replies");
        assert_in_range(answers, round == 0 ? 10000 : 10, round == 0 ? 50000 : 20);
        leave(s, 1, true);
        assert_int_equal(s->transit.used, 0);
    }
}

static void lost_changes_are_told_as_stale(void **state)
{
    struct scene *s = *state;
    struct mu_engine_op op = put_op("a", 0);

    (void)ask(s, 0, a_hello());
    (void)ask(s, 0, a_put(&op, 2));
    (void)ask(s, 0, (struct mu_frame){ .type = MU_FRAME_LOAD, .id = 3, .watch = 4 });
    FOR_EACH_FAILURE (n) { /* the last allocation of a transaction is that for the change */
        struct mu_engine_txn txn = { .id = 9, .then = &op, .then_count = 1 };
        bool held;

        if (mu_engine_txn(s->host.engine, &s->clients[0].session.peer, &txn, &held) != MU_ENGINE_OK)
            continue;
        fail_alloc_at(0);
        break;
    }
    turn(s, 0);
    assert_string_equal(heard(s, 0), "STALE 0");
}

/* ---- A token ---- */

/* The host has one from now on, and each of its connections a nonce of its own. */
static void use_token(struct scene *s, const struct mu_token *token)
{
    for (unsigned i = 0; i < SESSIONS; i++)
        leave(s, i, false);
    mu_engine_host_done(&s->host);
    s->config.token = token;
    assert_int_equal(mu_engine_host_init(&s->host, &s->config), 0);
    mu_engine_host_turn(&s->host, s->now_ms, s->now_ms);
    for (unsigned i = 0; i < SESSIONS; i++)
        begin(s, i);
}

/* HELLO, with the proof that this token makes of such a nonce, run id and node. */
static struct mu_frame a_proven_hello(const struct mu_token *token, const char *nonce, const char *run_id,
                                      const char *node)
{
    static char proof[MU_TOKEN_PROOF_BYTES];
    struct mu_frame frame = a_hello();

    mu_token_prove(token, mu_slice_str(nonce), mu_slice_str(run_id), mu_slice_str(node), proof);
    frame.proof = mu_slice(proof, sizeof proof);
    return frame;
}

static const char welcomed[] = "WELCOME 1 v1 job by host1 at 10.0.0.1 to 10.0.0.9";

static void a_node_with_the_token_is_let_in(void **state)
{
    struct scene *s = *state;
    struct mu_token token = { 0 };

    mu_token_init(&token, mu_slice_str("correct horse battery staple"));
    use_token(s, &token);
    assert_string_equal(ask(s, 0, a_hello()), "CHALLENGE 1 0123456789abcdef0123456789abcdef");
    assert_string_equal(ask(s, 0, a_hello()), "CHALLENGE 1 0123456789abcdef0123456789abcdef");
    assert_string_equal(ask(s, 0, a_proven_hello(&token, nonces[0], "job", "node3")), welcomed);
    assert_int_not_equal(mu_engine_place_of(s->host.engine, mu_slice_str("job")), MU_ENGINE_PLACE_NONE);
    assert_string_equal(ask(s, 0, a_hello()), "DONE 1 code 9 at 0"); /* once */
    use_token(s, NULL);
    assert_string_equal(ask(s, 1, a_proven_hello(&token, nonces[1], "job", "node3")), welcomed); /* nobody asks */
    use_token(s, NULL);
}

/* Not even that there is such a job. */
static void a_node_without_the_token_does_and_learns_nothing(void **state)
{
    struct scene *s = *state;
    struct mu_engine_op op = put_op("a", 0);
    struct mu_token token = { 0 };

    mu_token_init(&token, mu_slice_str("correct horse battery staple"));
    use_token(s, &token);
    assert_string_equal(ask(s, 0, a_proven_hello(&token, nonces[0], "job", "node3")), welcomed);
    (void)ask(s, 0, a_put(&op, 3));
    assert_string_equal(ask(s, 1, a_hello()), "CHALLENGE 1 fedcba9876543210fedcba9876543210");
    assert_string_equal(ask(s, 1, a_grant(9)), "DONE 2 code 9 at 1");
    assert_string_equal(ask(s, 1, a_put(&op, 3)), "DONE 3 code 9 at 1");
    assert_string_equal(ask(s, 1, (struct mu_frame){ .type = MU_FRAME_LOAD, .id = 4 }), "DONE 4 code 9 at 1");
    assert_string_equal(ask(s, 1, (struct mu_frame){ .type = MU_FRAME_RANGE, .id = 5, .prefix = true }),
                        "DONE 5 code 9 at 1");
    assert_string_equal(ask(s, 1, (struct mu_frame){ .type = MU_FRAME_ATTACH, .id = 6, .lease = 1 }),
                        "DONE 6 code 9 at 1");
    use_token(s, NULL);
}

static void jobs_show_nothing_to_each_other_where_there_is_a_token(void **state)
{
    struct scene *s = *state;
    struct mu_engine_op op = put_op("waiting/", 0);
    struct mu_frame look = { .type = MU_FRAME_RANGE, .id = 5, .prefix = true, .key = mu_slice_str("waiting/") };
    struct mu_frame hello = a_hello();
    struct mu_token token = { 0 };

    (void)ask(s, 0, hello);
    (void)ask(s, 0, a_put(&op, 3));
    hello.run_id = mu_slice_str("job8");
    (void)ask(s, 1, hello);
    assert_string_equal(ask(s, 1, look), "KVS 5 at 1: waiting/job");
    mu_token_init(&token, mu_slice_str("correct horse battery staple"));
    use_token(s, &token);
    (void)ask(s, 0, a_proven_hello(&token, nonces[0], "job", "node3"));
    (void)ask(s, 0, a_put(&op, 3));
    hello = a_proven_hello(&token, nonces[1], "job8", "node3");
    hello.run_id = mu_slice_str("job8");
    assert_string_equal(ask(s, 1, hello), "WELCOME 1 v1 job8 by host1 at 10.0.0.1 to 10.0.0.9");
    assert_string_equal(ask(s, 1, look), "KVS 5 at 1:");
    use_token(s, NULL);
}

static void a_wrong_proof_ends_the_connection(void **state)
{
    static const struct {
        const char *token, *nonce, *run_id, *node;
    } rows[] = {
        { "correct horse battery stapla", "0123456789abcdef0123456789abcdef", "job", "node3" },
        { "correct horse battery staple", "fedcba9876543210fedcba9876543210", "job",
          "node3" }, /* of another connection */
        { "correct horse battery staple", "0123456789abcdef0123456789abcdef", "job2", "node3" },
        { "correct horse battery staple", "0123456789abcdef0123456789abcdef", "job", "node4" },
        { "correct horse battery staple", "0123456789abcdef0123456789abcdef", "jobn", "ode3" },
    };
    struct scene *s = *state;
    struct mu_token token = { 0 }, theirs = { 0 };

    mu_token_init(&token, mu_slice_str("correct horse battery staple"));
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_error error;
        struct mu_buf out = { 0 };
        struct mu_frame frame;

        use_token(s, &token);
        mu_token_init(&theirs, mu_slice_str(rows[i].token));
        (void)ask(s, 0, a_hello());
        frame = a_proven_hello(&theirs, rows[i].nonce, rows[i].run_id, rows[i].node);
        assert_int_equal(mu_frame_write(&frame, &out, SIZE_MAX / 2), 0);
        assert_int_equal(feed(s, 0, mu_buf_slice(&out), &error), MUSTER_EPROTOCOL);
        assert_string_equal(error.text, "its token is another one than this store's");
        assert_string_equal(heard(s, 0), "DONE 1 code 16 at 0"); /* it is told, too */
        assert_int_equal(mu_engine_place_of(s->host.engine, mu_slice_str("job")), MU_ENGINE_PLACE_NONE);
        mu_buf_done(&out);
    }
    use_token(s, NULL);
}

static void a_will_needs_no_token(void **state)
{
    struct scene *s = *state;
    struct mu_frame will = { .type = MU_FRAME_REVOKE, .id = 1, .lease = 9, .secret = mu_slice_str("0123456789abcdef") };
    struct mu_token token = { 0 };

    mu_token_init(&token, mu_slice_str("correct horse battery staple"));
    use_token(s, &token);
    (void)ask(s, 0, a_proven_hello(&token, nonces[0], "job", "node3"));
    (void)ask(s, 0, a_grant(9));
    assert_string_equal(ask(s, 1, will), "DONE 1 code 0 at 0");
    assert_string_equal(ask(s, 0, (struct mu_frame){ .type = MU_FRAME_KEEP, .id = 3, .lease = 9 }),
                        "DONE 3 code 5 at 0");
    use_token(s, NULL);
}

/* ---- What ends a connection ---- */

static void what_is_no_request_ends_the_connection(void **state)
{
    static const struct {
        const char *bytes;
        size_t len;
        const char *text;
    } rows[] = {
        { "\7\0\0\0\1\0\0\0\0\0\0\0", 12, "a frame of 11 bytes" },
        { "\xff\xff\xff\xff", 4, "a frame of 4294967299 bytes" },
        { "\xfd\x0f\0\0", 4, "a frame of 4097 bytes before HELLO" },
        { "\0\0\0\0", 4, "a frame of 4 bytes" },
        { "\x08\0\0\0\x63\0\0\0\0\0\0\0", 12, "a frame of the unknown type 99" },
        { "\x0c\0\0\0\x0e\0\0\0\0\0\0\0\1\0\0\0", 16, "the frame STALE is a server's" },
        { "\x08\0\0\0\2\0\0\0\0\0\0\0", 12, "the frame ATTACH: lease" },
    };
    struct scene *s = *state;

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_error error;

        assert_int_equal(feed(s, 0, mu_slice(rows[i].bytes, rows[i].len), &error), MUSTER_EPROTOCOL);
        assert_string_equal(error.text, rows[i].text);
        leave(s, 0, true);
    }
}

static void versions_that_do_not_meet_are_refused_by_number(void **state)
{
    struct scene *s = *state;
    struct mu_frame newer = a_hello();
    struct muster_error error;
    struct mu_buf out = { 0 };

    newer.version_min = 2;
    newer.version_max = 3;
    assert_int_equal(mu_frame_write(&newer, &out, SIZE_MAX / 2), 0);
    assert_int_equal(feed(s, 0, mu_buf_slice(&out), &error), MUSTER_EPROTOCOL);
    assert_string_equal(error.text, "it speaks versions 2 to 3 of the engine's frames, and this store version 1");
    assert_non_null(strstr(heard(s, 0), "DONE 1 code 9")); /* it is told, too */
    leave(s, 0, true);
    assert_int_equal(feed(s, 0, mu_buf_slice(&out), NULL), MUSTER_EPROTOCOL); /* also if nobody wants to know why */
    mu_buf_done(&out);
}

static void half_a_frame_is_charged_and_given_back(void **state)
{
    struct scene *s = *state;
    struct muster_error error;
    static char part[100000] = "\0\0\x10\0\x09";

    (void)ask(s, 0, a_hello());
    (void)ask(s, 1, a_hello());
    assert_int_equal(feed(s, 0, mu_slice(part, sizeof part), &error), 0);
    assert_true(s->transit.used >= sizeof part);
    s->transit.max = s->transit.used + 1000;
    assert_int_equal(feed(s, 1, mu_slice(part, sizeof part), &error), MUSTER_ELIMIT);
    leave(s, 0, false);
    leave(s, 1, true);
    assert_int_equal(s->transit.used, 0);
}

static void failing_memory_cuts_one_connection_at_most(void **state)
{
    struct scene *s = *state;
    struct mu_engine_op op = put_op("nodes/1", 0);
    struct mu_frame frames[] = { a_hello(),
                                 a_put(&op, 2),
                                 { .type = MU_FRAME_LOAD, .id = 3, .watch = 1, .key = mu_slice_str("nodes/") } };
    struct mu_buf out = { 0 };

    for (size_t i = 0; i < COUNT(frames); i++)
        assert_int_equal(mu_frame_write(&frames[i], &out, SIZE_MAX / 2), 0);
    assert_int_equal(mu_buf_reserve(&s->clients[0].heard, 4096, SIZE_MAX), 0);
    FOR_EACH_FAILURE (n) {
        struct muster_error error;
        int rc = feed(s, 0, mu_buf_slice(&out), &error);

        assert_true(rc == 0 || rc == MUSTER_ENOMEM);
        turn(s, 1);
        mu_engine_session_leave(&s->clients[0].session, true, s->now_ms);
        mu_engine_session_init(&s->clients[0].session, &s->host, &ends);
        s->clients[0].heard.len = 0;
    }
    mu_buf_done(&out);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        CASE(a_node_says_all_it_needs_in_one_segment),
        CASE(bytes_may_come_one_by_one),
        CASE(nothing_is_done_without_a_hello),
        CASE(hello_for_another_job_is_refused),
        CASE(a_will_ends_a_lease_without_a_hello),
        CASE(a_will_leaves_a_mark),
        CASE(a_job_that_has_a_document_meets_there),
        CASE(a_job_that_is_given_up_for_a_document_goes_on_there),
        CASE(the_name_of_a_job_that_ended_here_is_free_again),
        CASE(a_node_with_the_token_is_let_in),
        CASE(a_node_without_the_token_does_and_learns_nothing),
        CASE(jobs_show_nothing_to_each_other_where_there_is_a_token),
        CASE(a_wrong_proof_ends_the_connection),
        CASE(a_will_needs_no_token),
        CASE(a_lease_moves_to_a_new_connection),
        CASE(any_frame_renews_a_lease),
        CASE(many_keys_come_in_several_frames),
        CASE(the_next_page_waits_until_the_one_before_was_taken),
        CASE(what_waits_behind_pages_is_limited),
        CASE(lost_changes_are_told_as_stale),
        CASE(what_is_no_request_ends_the_connection),
        CASE(versions_that_do_not_meet_are_refused_by_number),
        CASE(half_a_frame_is_charged_and_given_back),
        CASE(failing_memory_cuts_one_connection_at_most),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
