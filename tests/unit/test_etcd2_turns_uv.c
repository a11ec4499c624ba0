/* Turns in etcd's version 2 API, on a real loop with a server of the test's own that knows these keys and no others.
 * Where libcurl is not installed nothing is tested. */
#include "failmalloc.h"
#include "http_scene.h"
#include "kv/etcd2_turns_uv.h"

#include <inttypes.h>

enum { REPLY_MAX = 512, REPLIES = 64, MARKS = 16 };

/* ---- The server ---- */

static struct {
    uint64_t index, tail, done;
    uint64_t marks[MARKS];
    unsigned marks_count, watches, counts; /* requests: for a mark, for who was last */
    struct peer *watcher;
    uint64_t watched;
    bool is_watched, is_counted; /* somebody has written who was last */
    char replies[REPLIES][REPLY_MAX];
    unsigned replies_count;
} etcd;

static const char *reply(unsigned status, const char *body)
{
    char *text = etcd.replies[etcd.replies_count++ % REPLIES];

    (void)snprintf(text, REPLY_MAX, "HTTP/1.1 %u X\r\nContent-Length: %zu\r\nX-Etcd-Index: %" PRIu64 "\r\n\r\n%s",
                   status, strlen(body), etcd.index, body);
    return text;
}

static const char *reply_node(const char *key, const char *value, uint64_t modified, uint64_t before)
{
    char body[REPLY_MAX - 120], prev[120] = "";

    if (before > 0)
        (void)snprintf(prev, sizeof prev,
                       ",\"prevNode\":{\"key\":\"/x\",\"value\":\"other\",\"modifiedIndex\":%" PRIu64 "}", before);
    (void)snprintf(body, sizeof body,
                   "{\"action\":\"set\",\"node\":{\"key\":\"%s\",\"value\":\"%s\",\"modifiedIndex\":%" PRIu64 "}%s}",
                   key, value, modified, prev);
    return reply(200, body);
}

static const char *reply_none(void)
{
    return reply(404, "{\"errorCode\":100,\"message\":\"Key not found\",\"cause\":\"/x\"}");
}

static bool is_marked(uint64_t turn)
{
    for (unsigned i = 0; i < etcd.marks_count; i++)
        if (etcd.marks[i] == turn)
            return true;
    return false;
}

static void mark(uint64_t turn)
{
    etcd.index++;
    etcd.marks[etcd.marks_count++ % MARKS] = turn;
    if (etcd.is_watched && etcd.watched == turn) {
        const char *text = reply_node("/over", "", etcd.index, 0);

        etcd.is_watched = false;
        say(etcd.watcher, text, strlen(text));
    }
}

static const char *on_mark(struct peer *peer, uint64_t turn, bool put)
{
    if (put) {
        mark(turn);
        return reply_node("/over", "", etcd.index, 0);
    }
    if (is_marked(turn))
        return reply_node("/over", "", etcd.index, 0);
    if (strstr(peer->text, "wait=true") == NULL)
        return reply_none();
    etcd.watches++;
    etcd.watcher = peer;
    etcd.watched = turn;
    etcd.is_watched = true;
    uv_stop(&loop);
    return SILENT;
}

static const char *on_tail(void)
{
    uint64_t before = etcd.tail;

    etcd.tail = ++etcd.index;
    return reply_node("/turn", "x", etcd.tail, before);
}

static const char *on_done(const struct peer *peer, bool put)
{
    char value[24];

    if (put) {
        etcd.done = strtoull(strstr(peer->text, "value=") + 6, NULL, 10);
        etcd.index++;
        etcd.is_counted = true;
        uv_stop(&loop);
    } else {
        etcd.counts++;
    }
    if (etcd.done == 0)
        return reply_none();
    (void)snprintf(value, sizeof value, "%" PRIu64, etcd.done);
    return reply_node("/done", value, etcd.index, 0);
}

static const char *choose(struct server *server, struct peer *peer)
{
    bool put = strncmp(peer->text, "PUT ", 4) == 0;
    const char *over = strstr(peer->text, "/torch/elastic/muster/over.");

    (void)server;
    if (over != NULL)
        return on_mark(peer, strtoull(over + 27, NULL, 10), put);
    if (strstr(peer->text, "/torch/elastic/muster/done.job") != NULL)
        return on_done(peer, put);
    assert_true(put && strstr(peer->text, "/torch/elastic/muster/turn.job") != NULL);
    return on_tail();
}

/* ---- The client ---- */

struct scene {
    struct mu_http *etcd;
    struct mu_etcd2_turns turns;
    struct mu_kv_request request;
    bool done;
    unsigned closing;
    bool closed;
};

static void on_closed(void *ctx)
{
    struct scene *s = ctx;

    s->closed = --s->closing == 0;
    uv_stop(&loop);
}

static int begin(struct scene *s)
{
    const struct mu_http_config config = { .endpoints = endpoints, .first_is_first = true };
    struct muster_error error;
    int rc;

    memset(s, 0, sizeof *s);
    rc = mu_etcd2_turns_init(&s->turns, &loop, "job", 7, &error);
    if (rc < 0)
        return rc;
    rc = mu_http_start(&loop, &config, &s->etcd, &error);
    if (rc < 0) {
        mu_etcd2_turns_done(&s->turns);
        return rc;
    }
    mu_etcd2_turns_start(&s->turns, s->etcd);
    return 0;
}

static void open_scene(struct scene *s, uint64_t tail, uint64_t done)
{
    int rc;

    memset(&etcd, 0, sizeof etcd);
    etcd.index = 100;
    etcd.tail = tail;
    etcd.done = done;
    servers[0].choose = choose;
    rc = begin(s);
    if (rc == MUSTER_ENOTSUP)
        skip();
    assert_int_equal(rc, 0);
}

static void close_scene(struct scene *s)
{
    s->closing = 2;
    mu_etcd2_turns_close(&s->turns, on_closed, s);
    mu_http_close(s->etcd, on_closed, s);
    run_until(&s->closed);
    mu_etcd2_turns_done(&s->turns);
}

static void on_answered(struct mu_kv_request *request)
{
    ((struct scene *)request->ctx)->done = true;
    uv_stop(&loop);
}

static void submit(struct scene *s, enum mu_kv_kind kind, int64_t number, uint64_t timeout_ms)
{
    s->done = false;
    s->request = (struct mu_kv_request){
        .kind = kind, .number = number, .timeout_ms = timeout_ms, .done = on_answered, .ctx = s
    };
    uv_update_time(&loop);
    mu_kv_begin(&s->request, uv_now(&loop));
    if (mu_etcd2_turns_submit(&s->turns, &s->request))
        s->done = true;
}

static void ask(struct scene *s, enum mu_kv_kind kind, int64_t number, uint64_t timeout_ms)
{
    submit(s, kind, number, timeout_ms);
    run_until(&s->done);
}

static int64_t take(struct scene *s)
{
    ask(s, MU_KV_TURN_TAKE, 0, GUARD_MS);
    assert_int_equal(s->request.rc, 0);
    return s->request.number;
}

/* ---- Tests ---- */

static void the_first_turn_comes_at_once(void **state)
{
    struct scene s;

    (void)state;
    open_scene(&s, 0, 0);
    assert_int_equal(take(&s), 101);
    assert_int_equal(s.request.done_count, 100);
    assert_int_equal(s.turns.index, 101); /* what is read for it must be no older */
    ask(&s, MU_KV_TURN_WAIT, 100, 50);
    assert_true(s.request.found);
    assert_int_equal(etcd.watches, 0);
    close_scene(&s);
}

/* Else the second would take every write of this etcd for somebody who is before it, and wait for as long as it may. */
static void the_first_of_all_says_from_where_it_is_counted(void **state)
{
    struct scene s;

    (void)state;
    open_scene(&s, 0, 0);
    assert_int_equal(take(&s), 101);
    run_until(&etcd.is_counted);
    assert_int_equal(etcd.done, 100);
    assert_int_equal(take(&s), 103);
    assert_int_equal(s.request.done_count, 101); /* one is before it, and nobody else */
    close_scene(&s);
}

static void a_turn_after_one_that_is_over_comes_at_once(void **state)
{
    struct scene s;

    (void)state;
    open_scene(&s, 90, 90);
    assert_int_equal(take(&s), 101);
    assert_int_equal(s.request.done_count, 100);
    close_scene(&s);
}

static void who_begins_a_crowd_says_from_where_it_is_counted(void **state)
{
    struct scene s;

    (void)state;
    open_scene(&s, 7, 7);
    assert_int_equal(take(&s), 101);
    close_scene(&s);
    /* The write may be cut off by the end; what it says, if it came, is the turn before. */
    assert_true(etcd.done == 7 || etcd.done == 100);
}

static void the_next_turn_comes_with_the_mark_of_the_one_before(void **state)
{
    struct scene s;

    (void)state;
    open_scene(&s, 95, 92);
    assert_int_equal(take(&s), 101);
    assert_int_equal(s.request.done_count, 100 - 3); /* of 93, 94 and 95, some may be other writes */
    submit(&s, MU_KV_TURN_WAIT, 100, GUARD_MS);
    run_until(&etcd.is_watched);
    assert_false(s.done);
    mark(95);
    run_until(&s.done);
    assert_int_equal(s.request.rc, 0);
    assert_true(s.request.found);
    assert_int_equal(s.request.done_count, 100);
    assert_int_equal(s.turns.index, etcd.index);
    close_scene(&s);
}

static void a_mark_that_is_there_is_seen_at_once(void **state)
{
    struct scene s;

    (void)state;
    open_scene(&s, 95, 92);
    assert_int_equal(take(&s), 101);
    mark(95);
    ask(&s, MU_KV_TURN_WAIT, 100, GUARD_MS);
    assert_true(s.request.found);
    assert_int_equal(etcd.watches, 0);
    close_scene(&s);
}

static void when_the_time_is_up_it_is_told_who_was_last_and_the_watch_goes_on(void **state)
{
    struct scene s;

    (void)state;
    open_scene(&s, 95, 92);
    assert_int_equal(take(&s), 101);
    submit(&s, MU_KV_TURN_WAIT, 100, 300);
    run_until(&etcd.is_watched);
    run_until(&s.done);
    assert_int_equal(s.request.rc, 0);
    assert_false(s.request.found);
    assert_int_equal(s.request.done_count, 97); /* nobody got on */
    etcd.done = 94;
    ask(&s, MU_KV_TURN_WAIT, 100, 20);
    assert_false(s.request.found);
    assert_int_equal(s.request.done_count, 99);
    submit(&s, MU_KV_TURN_WAIT, 100, GUARD_MS);
    mark(95);
    run_until(&s.done);
    assert_true(s.request.found);
    assert_int_equal(etcd.watches, 1);
    assert_int_equal(etcd.counts, 3);
    close_scene(&s);
}

static void who_gives_a_turn_that_it_did_not_wait_for_to_the_end_waits_for_nobody(void **state)
{
    struct scene s;

    (void)state;
    open_scene(&s, 95, 92);
    assert_int_equal(take(&s), 101);
    submit(&s, MU_KV_TURN_WAIT, 100, 100); /* its owner is dead */
    run_until(&s.done);
    assert_false(s.request.found);
    assert_int_not_equal(s.turns.before, 0);
    ask(&s, MU_KV_TURN_GIVE, 101, GUARD_MS);
    assert_int_equal(s.turns.before, 0);
    close_scene(&s);
}

static void giving_leaves_a_mark_and_says_who_was_last(void **state)
{
    struct scene s;

    (void)state;
    open_scene(&s, 0, 0);
    assert_int_equal(take(&s), 101);
    run_until(&etcd.is_counted); /* the two may come in any order */
    ask(&s, MU_KV_TURN_GIVE, 101, GUARD_MS);
    assert_int_equal(s.request.rc, 0);
    assert_true(is_marked(101));
    assert_int_equal(etcd.done, 101);
    close_scene(&s);
}

static void whoever_waits_when_it_is_closed_is_told(void **state)
{
    struct scene s;

    (void)state;
    open_scene(&s, 95, 92);
    assert_int_equal(take(&s), 101);
    submit(&s, MU_KV_TURN_WAIT, 100, GUARD_MS);
    run_until(&etcd.is_watched);
    close_scene(&s);
    assert_true(s.done);
    assert_int_equal(s.request.rc, MUSTER_ECANCELED);
}

static void a_turn_that_is_taken_anew_ends_the_wait_for_the_old_one(void **state)
{
    struct mu_kv_request again = { .kind = MU_KV_TURN_TAKE, .timeout_ms = GUARD_MS, .done = on_answered };
    struct scene s, other = { .done = false };

    (void)state;
    open_scene(&s, 95, 92);
    assert_int_equal(take(&s), 101);
    submit(&s, MU_KV_TURN_WAIT, 100, GUARD_MS);
    run_until(&etcd.is_watched);
    again.ctx = &other;
    mu_kv_begin(&again, uv_now(&loop));
    assert_false(mu_etcd2_turns_submit(&s.turns, &again));
    run_until(&other.done);
    assert_true(s.done);
    assert_int_equal(s.request.rc, MUSTER_ECANCELED);
    assert_int_equal(again.number, 102);
    close_scene(&s);
}

static void without_memory_it_is_said_and_nothing_is_lost(void **state)
{
    struct scene s;

    (void)state;
    open_scene(&s, 0, 0); /* or skip */
    close_scene(&s);
    FOR_EACH_FAILURE (n) {
        int rc = begin(&s);

        if (rc < 0) {
            assert_true(fail_alloc_hit());
            continue;
        }
        etcd.tail = etcd.done = ++etcd.index;
        ask(&s, MU_KV_TURN_TAKE, 0, GUARD_MS);
        if (s.request.rc == 0)
            ask(&s, MU_KV_TURN_GIVE, s.request.number, GUARD_MS);
        assert_true(s.request.rc == 0 || fail_alloc_hit());
        close_scene(&s);
    }
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, start_servers, stop_servers)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE(the_first_turn_comes_at_once),
        SCENE(the_first_of_all_says_from_where_it_is_counted),
        SCENE(a_turn_after_one_that_is_over_comes_at_once),
        SCENE(who_begins_a_crowd_says_from_where_it_is_counted),
        SCENE(the_next_turn_comes_with_the_mark_of_the_one_before),
        SCENE(a_mark_that_is_there_is_seen_at_once),
        SCENE(when_the_time_is_up_it_is_told_who_was_last_and_the_watch_goes_on),
        SCENE(who_gives_a_turn_that_it_did_not_wait_for_to_the_end_waits_for_nobody),
        SCENE(giving_leaves_a_mark_and_says_who_was_last),
        SCENE(whoever_waits_when_it_is_closed_is_told),
        SCENE(a_turn_that_is_taken_anew_ends_the_wait_for_the_old_one),
        SCENE(without_memory_it_is_said_and_nothing_is_lost),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
