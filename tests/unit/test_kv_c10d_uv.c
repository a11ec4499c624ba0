/* The back end of the c10d rendezvous on real stores: what it puts where, whom it wakes, and what becomes of requests
 * when the store goes. */
#include "asking_uv.h"
#include "failmalloc.h"
#include "fake_store.h"
#include "kv/kv_c10d_uv.h"
#include "store/client_uv.h"
#include "store/limits.h"
#include "store/listen.h"
#include "store/server_uv.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define MARKER "Y2FuaW1hZGFt"
#define DOCUMENT "torch.rendezvous.job"

struct scene {
    struct asking a; /* first */
    struct mu_server *server;
    uint16_t port;
    uint64_t read_timeout_ms; /* 0: long enough */
    struct mu_client *other;  /* looks and meddles behind the back end's back */
    struct mu_call call;
    unsigned called, clients_closed, servers_closed;
    unsigned ready;
    struct muster_error ready_error;
};

static void on_server_closed(struct mu_server *server, void *ctx)
{
    struct scene *s = ctx;

    (void)server;
    s->servers_closed++;
    uv_stop(&s->a.loop);
}

static void on_other_closed(struct mu_client *client, void *ctx)
{
    struct scene *s = ctx;

    (void)client;
    s->clients_closed++;
    uv_stop(&s->a.loop);
}

static void on_other_ready(struct mu_client *client, const struct muster_error *error, void *ctx)
{
    (void)client;
    (void)ctx;
    assert_null(error);
}

static void on_called(struct mu_call *call)
{
    struct scene *s = call->ctx;

    s->called++;
    uv_stop(&s->a.loop);
}

static void on_ready(struct mu_kv *kv, const struct muster_error *error, void *ctx)
{
    struct scene *s = ctx;

    assert_ptr_equal(kv, s->a.kv);
    s->ready++;
    uv_stop(&s->a.loop);
    if (error != NULL)
        s->ready_error = *error;
}

/* On the port that the last one had, if there was one. */
static void serve(struct scene *s, enum mu_dialect legacy)
{
    struct mu_server_config config = { .legacy = legacy, .seed = { 1, 2 } };
    int fd = -1;

    assert_int_equal(mu_limits_settle(&config.limits, NULL), 0);
    assert_int_equal(mu_listen_open("127.0.0.1", s->port, &fd, NULL), 0);
    assert_int_equal(mu_server_start(&s->a.loop, fd, &config, &s->server, NULL), 0);
    s->port = mu_addr_port(mu_server_address(s->server));
}

static void close_server(struct scene *s)
{
    if (s->server == NULL)
        return;
    s->servers_closed = 0;
    mu_server_close(s->server, on_server_closed, s);
    RUN_UNTIL(&s->a, s->servers_closed > 0);
    s->server = NULL;
}

static void close_other(struct scene *s)
{
    if (s->other == NULL)
        return;
    s->clients_closed = 0;
    mu_client_close(s->other, on_other_closed, s);
    RUN_UNTIL(&s->a, s->clients_closed > 0);
    s->other = NULL;
}

static int start_kv(struct scene *s, uint16_t port, enum mu_dialect dialect, const char *host_node,
                    struct muster_error *error)
{
    const struct mu_kv_c10d_config config = {
        .host = "127.0.0.1",
        .port = port,
        .run_id = "job",
        .dialect = dialect,
        .read_timeout_ms = s->read_timeout_ms == 0 ? QUICK_MS : s->read_timeout_ms,
        .seed = 7,
        .host_node = host_node,
        .on_ready = on_ready,
        .ctx = s,
    };

    return mu_kv_c10d_start(&s->a.loop, &config, &s->a.kv, error);
}

static void begin_speaking(struct scene *s, enum mu_dialect legacy, enum mu_dialect dialect)
{
    const struct mu_client_config other = { .host = "127.0.0.1", .dialect = dialect, .connect_timeout_ms = QUICK_MS };
    struct mu_client_config config = other;

    memset(s, 0, sizeof *s);
    asking_begin(&s->a);
    serve(s, legacy);
    assert_int_equal(start_kv(s, s->port, dialect, NULL, NULL), 0);
    config.port = s->port;
    assert_int_equal(mu_client_start(&s->a.loop, &config, on_other_ready, NULL, s, &s->other, NULL), 0);
}

static void begin(struct scene *s)
{
    begin_speaking(s, MU_DIALECT_L, MU_DIALECT_V);
}

static void end(struct scene *s)
{
    close_other(s);
    asking_close(&s->a);
    close_server(s);
    asking_end(&s->a);
}

/* A call of somebody else. The answer stays until the next one. */
static struct mu_call *other_calls(struct scene *s, struct mu_call call)
{
    muster_bytes_done(&s->call.bytes);
    s->call = call;
    s->call.done = on_called;
    s->call.ctx = s;
    s->called = 0;
    mu_client_call(s->other, &s->call, QUICK_MS);
    RUN_UNTIL(&s->a, s->called > 0);
    assert_int_equal(s->call.rc, 0);
    return &s->call;
}

static void other_sets(struct scene *s, const char *key, const char *value)
{
    (void)other_calls(s, (struct mu_call){ .kind = MU_CALL_SET, .key = muster_str(key), .value = muster_str(value) });
    (void)other_calls(s, (struct mu_call){ .kind = MU_CALL_NUM_KEYS }); /* by now it is there */
}

static bool other_deletes(struct scene *s, const char *key)
{
    return other_calls(s, (struct mu_call){ .kind = MU_CALL_DELETE_KEY, .key = muster_str(key) })->result != 0;
}

static bool is_there(struct scene *s, const char *key)
{
    const struct muster_slice slice = muster_str(key);

    return other_calls(s, (struct mu_call){ .kind = MU_CALL_CHECK, .keys = &slice, .count = 1 })->result != 0;
}

static void assert_stored(struct scene *s, const char *key, const char *text)
{
    assert_true(is_there(s, key));
    assert_bytes(&other_calls(s, (struct mu_call){ .kind = MU_CALL_GET, .key = muster_str(key) })->bytes, text);
    muster_bytes_done(&s->call.bytes);
}

static struct mu_kv_request *ask_kind(struct scene *s, enum mu_kv_kind kind, int64_t number)
{
    struct mu_kv_request *request = ask(&s->a, (struct mu_kv_request){ .kind = kind, .number = number });

    assert_ok(request);
    return request;
}

/* ---- The document ---- */

static void every_kind_has_a_text(void **state)
{
    (void)state;
    assert_string_equal(mu_kv_kind_text(MU_KV_READ), "read the document");
    assert_string_equal(mu_kv_kind_text(MU_KV_DELETE), "delete");
    assert_string_equal(mu_kv_kind_text((enum mu_kv_kind)99), "unknown");
}

static void a_read_of_nothing_leaves_the_marker_for_others(void **state)
{
    struct scene s;

    (void)state;
    begin(&s);
    assert_false(ask_kind(&s, MU_KV_READ, 0)->found);
    assert_null(s.a.requests[0].bytes.data);
    assert_stored(&s, DOCUMENT, MARKER);
    assert_false(ask_kind(&s, MU_KV_READ, 0)->found);
    assert_stored(&s, DOCUMENT, MARKER);
    end(&s);
}

static void what_was_written_is_read_with_its_text_as_token(void **state)
{
    struct scene s;
    struct mu_kv_request *answer;

    (void)state;
    begin(&s);
    (void)ask_kind(&s, MU_KV_READ, 0);
    answer = ask(&s.a, asking_write("first", NULL));
    assert_ok(answer);
    assert_true(answer->written && answer->found);
    assert_null(answer->bytes.data); /* the caller has it */
    assert_bytes(&answer->state_token, "Zmlyc3Q=");
    assert_stored(&s, DOCUMENT, "Zmlyc3Q=");
    answer = ask_kind(&s, MU_KV_READ, 0);
    assert_true(answer->found);
    assert_bytes(&answer->bytes, "first");
    assert_bytes(&answer->state_token, "Zmlyc3Q=");
    (void)ask_at(&s.a, 1, asking_write("second", &answer->state_token));
    answer = answer_at(&s.a, 1);
    assert_true(answer->written);
    assert_bytes(&answer->state_token, "c2Vjb25k");
    end(&s);
}

static void a_lost_write_gives_the_winners_document(void **state)
{
    struct muster_bytes old = { (char *)"b2xk", 4 };
    const struct muster_bytes *const tokens[] = { NULL, &old };
    struct scene s;

    (void)state;
    begin(&s);
    other_sets(&s, DOCUMENT, "d2lubmVy");
    for (size_t i = 0; i < COUNT(tokens); i++) {
        struct mu_kv_request *answer = ask(&s.a, asking_write("mine", tokens[i]));

        assert_ok(answer);
        assert_false(answer->written);
        assert_true(answer->found);
        assert_bytes(&answer->bytes, "winner");
        assert_bytes(&answer->state_token, "d2lubmVy");
    }
    end(&s);
}

static void a_key_that_vanished_is_told_from_a_lost_write(void **state)
{
    struct muster_bytes token;
    struct scene s;
    struct mu_kv_request *answer;

    (void)state;
    begin(&s);
    (void)ask_kind(&s, MU_KV_READ, 0);
    answer = ask(&s.a, asking_write("first", NULL));
    token = answer->state_token;
    answer->state_token = (struct muster_bytes){ 0 };
    assert_true(other_deletes(&s, DOCUMENT));
    answer = ask(&s.a, asking_write("second", &token));
    assert_ok(answer);
    assert_false(answer->written || answer->found);
    assert_false(is_there(&s, DOCUMENT));
    muster_bytes_done(&token);
    end(&s);
}

/* PyTorch's own client would be answered with the marker here, for ever. */
static void a_write_without_token_creates_a_key_that_vanished(void **state)
{
    struct scene s;
    struct mu_kv_request *answer;

    (void)state;
    begin(&s);
    answer = ask(&s.a, asking_write("again", NULL));
    assert_ok(answer);
    assert_true(answer->written && answer->found);
    assert_stored(&s, DOCUMENT, "YWdhaW4=");
    end(&s);
}

static void an_empty_token_counts_as_none(void **state)
{
    struct muster_bytes empty = { (char *)"", 0 };
    struct scene s;

    (void)state;
    begin(&s);
    (void)ask_kind(&s, MU_KV_READ, 0);
    assert_true(ask(&s.a, asking_write("x", &empty))->written);
    end(&s);
}

/* By the time of a write: a READ would have found it, and put the marker there. */
static void an_emptied_document_counts_as_none(void **state)
{
    struct muster_bytes token = { (char *)"abcde", 5 };
    struct mu_kv_request *answer;
    struct scene s;

    (void)state;
    begin(&s);
    other_sets(&s, DOCUMENT, "");
    answer = ask(&s.a, asking_write("x", &token));
    assert_ok(answer);
    assert_false(answer->written || answer->found);
    answer = ask(&s.a, asking_write("again", NULL));
    assert_ok(answer);
    assert_true(answer->written && answer->found);
    assert_stored(&s, DOCUMENT, "YWdhaW4=");
    end(&s);
}

static void what_is_not_base64_is_told_with_its_token_so_that_it_can_be_replaced(void **state)
{
    struct muster_bytes token;
    struct scene s;
    struct mu_kv_request *answer;

    (void)state;
    begin(&s);
    other_sets(&s, DOCUMENT, "abcde");
    answer = ask(&s.a, asking_write("x", NULL));
    assert_ok(answer);
    assert_true(answer->found && answer->foreign);
    assert_false(answer->written);
    answer = ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_READ });
    assert_ok(answer);
    assert_true(answer->found && answer->foreign);
    assert_int_equal(answer->error.code, MUSTER_ERDZV_STATE);
    assert_string_equal(answer->error.text, "what is stored under 'torch.rendezvous.job' is not base64 (5 bytes)");
    assert_null(answer->bytes.data);
    assert_bytes(&answer->state_token, "abcde");
    token = answer->state_token;
    answer->state_token = (struct muster_bytes){ 0 };
    answer = ask(&s.a, asking_write("x", &token));
    assert_ok(answer);
    assert_true(answer->written && answer->found && !answer->foreign);
    muster_bytes_done(&token);
    other_sets(&s, DOCUMENT, "@@@"); /* as PyTorch reads it: nothing */
    answer = ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_READ });
    assert_ok(answer);
    assert_true(answer->found && !answer->foreign);
    assert_bytes(&answer->bytes, "");
    other_sets(&s, DOCUMENT, ""); /* as good as none */
    assert_false(ask_kind(&s, MU_KV_READ, 0)->found);
    end(&s);
}

static void a_document_too_long_is_refused_both_ways(void **state)
{
    size_t len = ((size_t)16 << 20) + 1;
    char *text = malloc(len / 3 * 4 + 8);
    struct scene s;
    struct mu_kv_request *answer;

    (void)state;
    assert_non_null(text);
    memset(text, 'A', len / 3 * 4 + 8);
    text[len / 3 * 4 + 4] = '\0';
    begin(&s);
    answer = ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_WRITE, .value = { text, len } });
    assert_int_equal(answer->rc, MUSTER_ELIMIT);
    other_sets(&s, DOCUMENT, text);
    answer = ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_READ });
    assert_ok(answer);
    assert_true(answer->found && answer->foreign);
    assert_non_null(strstr(answer->error.text, "too long"));
    end(&s);
    free(text);
}

/* ---- Bell, turns, digests, host ---- */

static void the_bell_wakes_who_is_parked(void **state)
{
    struct scene s;

    (void)state;
    begin(&s);
    assert_int_equal(ask_kind(&s, MU_KV_READ, 0)->number, 0);
    (void)ask_at(&s.a, 1, (struct mu_kv_request){ .kind = MU_KV_PARK, .number = 0 });
    (void)ask_kind(&s, MU_KV_READ, 0); /* other things go on meanwhile */
    assert_int_equal(s.a.done[1], 0);
    (void)ask_kind(&s, MU_KV_RING, 0);
    assert_ok(answer_at(&s.a, 1));
    assert_int_equal(ask_kind(&s, MU_KV_READ, 0)->number, 1);
    (void)ask_at(&s.a, 1, (struct mu_kv_request){ .kind = MU_KV_PARK, .number = 0 }); /* it has rung already */
    assert_ok(answer_at(&s.a, 1));
    assert_stored(&s, "muster.job/bell/1", "1");
    end(&s);
}

static void old_rings_are_taken_away(void **state)
{
    struct scene s;
    char key[64];

    (void)state;
    begin(&s);
    for (int i = 0; i < 70; i++)
        (void)ask_kind(&s, MU_KV_RING, 0);
    for (int i = 1; i <= 70; i++) {
        (void)snprintf(key, sizeof key, "muster.job/bell/%d", i);
        assert_int_equal(is_there(&s, key), i > 70 - 64);
    }
    assert_int_equal(ask_kind(&s, MU_KV_READ, 0)->number, 70);
    end(&s);
}

static void a_park_ends_with_its_time(void **state)
{
    struct scene s;

    (void)state;
    begin(&s);
    assert_int_equal(ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_PARK, .timeout_ms = 20 })->rc, MUSTER_ETIMEOUT);
    (void)ask_at(&s.a, 1, (struct mu_kv_request){ .kind = MU_KV_PARK });
    (void)ask_kind(&s, MU_KV_RING, 0);
    assert_ok(answer_at(&s.a, 1));
    end(&s);
}

static void parks_replace_each_other(enum mu_dialect legacy, enum mu_dialect dialect)
{
    struct scene s;

    begin_speaking(&s, legacy, dialect);
    (void)ask_kind(&s, MU_KV_RING, 0);
    (void)ask_at(&s.a, 1, (struct mu_kv_request){ .kind = MU_KV_PARK, .number = 7 });
    (void)ask_kind(&s, MU_KV_READ, 0);
    (void)ask_at(&s.a, 2, (struct mu_kv_request){ .kind = MU_KV_PARK, .number = 8 }); /* before the first was sent */
    (void)ask_at(&s.a, 3, (struct mu_kv_request){ .kind = MU_KV_PARK, .number = 1 });
    assert_int_equal(answer_at(&s.a, 1)->rc, MUSTER_ECANCELED);
    assert_int_equal(answer_at(&s.a, 2)->rc, MUSTER_ECANCELED);
    (void)ask_kind(&s, MU_KV_READ, 0);
    assert_int_equal(s.a.done[3], 0);
    (void)ask_kind(&s, MU_KV_RING, 0);
    assert_ok(answer_at(&s.a, 3));
    end(&s);
}

static void a_new_park_ends_the_old_one_at_once(void **state)
{
    (void)state;
    parks_replace_each_other(MU_DIALECT_L, MU_DIALECT_V);
    parks_replace_each_other(MU_DIALECT_L1, MU_DIALECT_L1);
    parks_replace_each_other(MU_DIALECT_L0, MU_DIALECT_L0); /* whose wait cannot be called off */
}

static void turns_come_in_order_and_are_waited_for(void **state)
{
    struct scene s;
    struct mu_kv_request *answer;

    (void)state;
    begin(&s);
    for (int64_t t = 1; t <= 3; t++) {
        answer = ask_kind(&s, MU_KV_TURN_TAKE, 0);
        assert_int_equal(answer->number, t);
        assert_int_equal(answer->done_count, 0);
    }
    (void)ask_at(&s.a, 1, (struct mu_kv_request){ .kind = MU_KV_TURN_WAIT, .number = 1 });
    (void)ask_at(&s.a, 2, (struct mu_kv_request){ .kind = MU_KV_TURN_WAIT, .number = 2 });
    (void)ask_kind(&s, MU_KV_READ, 0);
    assert_int_equal(s.a.done[1] + s.a.done[2], 0);
    (void)ask_kind(&s, MU_KV_TURN_GIVE, 1);
    answer = answer_at(&s.a, 1);
    assert_ok(answer);
    assert_true(answer->found);
    assert_int_equal(answer->done_count, 1);
    assert_int_equal(s.a.done[2], 0);
    (void)ask_kind(&s, MU_KV_TURN_GIVE, 2);
    answer = answer_at(&s.a, 2);
    assert_true(answer->found);
    assert_int_equal(answer->done_count, 2);
    assert_int_equal(ask_kind(&s, MU_KV_TURN_TAKE, 0)->done_count, 2);
    (void)ask_kind(&s, MU_KV_TURN_GIVE, 66);
    assert_false(is_there(&s, "muster.job/turn/2"));
    assert_true(is_there(&s, "muster.job/turn/1"));
    end(&s);
}

/* What a stranger may put where a counter was. */
static const char *const no_counters[] = { "", "hello", "-7", "9223372036854775807", "99999999999999999999", "1 2" };

static void a_bell_that_is_no_counter_is_set_to_one_by_who_reads(void **state)
{
    struct scene s;

    (void)state;
    begin(&s);
    (void)ask_kind(&s, MU_KV_RING, 0);
    assert_int_equal(ask_kind(&s, MU_KV_READ, 0)->number, 1);
    for (size_t i = 0; i < COUNT(no_counters); i++) {
        int64_t bell = 0;

        other_sets(&s, "muster.job/bell", no_counters[i]);
        bell = ask_kind(&s, MU_KV_READ, 0)->number;
        assert_int_equal(ask_kind(&s, MU_KV_READ, 0)->number, bell);
        ask_at(&s.a, 1, (struct mu_kv_request){ .kind = MU_KV_PARK, .number = bell, .timeout_ms = 60000 });
        (void)ask_kind(&s, MU_KV_RING, 0);
        assert_ok(answer_at(&s.a, 1)); /* it rings again */
    }
    other_sets(&s, "muster.job/bell", "1000000000000000"); /* a high number is as good as any */
    assert_int_equal(ask_kind(&s, MU_KV_READ, 0)->number, 1000000000000000);
    end(&s);
}

static void a_ring_of_what_is_no_counter_costs_the_ring_and_nothing_else(void **state)
{
    struct scene s;
    struct mu_kv_request *answer;

    (void)state;
    begin(&s);
    (void)ask_kind(&s, MU_KV_READ, 0);
    other_sets(&s, "muster.job/bell", "hello");
    answer = ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_RING });
    assert_int_equal(answer->rc, MUSTER_ELOST);
    assert_false(answer->gone);
    (void)ask_kind(&s, MU_KV_READ, 0); /* which sets it anew */
    (void)ask_kind(&s, MU_KV_RING, 0);
    end(&s);
}

static void turns_that_are_no_counters_are_gone_without_and_set_anew(void **state)
{
    static const char *const keys[] = { "muster.job/turn", "muster.job/turns_done" };
    struct scene s;

    (void)state;
    begin(&s);
    (void)ask_kind(&s, MU_KV_TURN_TAKE, 0);
    for (size_t i = 0; i < COUNT(keys) * COUNT(no_counters); i++) {
        struct mu_kv_request *answer = NULL;
        int64_t turn = 0;

        other_sets(&s, keys[i % COUNT(keys)], no_counters[i / COUNT(keys)]);
        for (unsigned tries = 0; turn == 0; tries++) {
            answer = ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_TURN_TAKE });
            assert_false(answer->gone);
            assert_true(tries < 3 && (answer->rc == 0 || answer->rc == MUSTER_ELOST)); /* the asker goes on without */
            turn = answer->rc == 0 ? answer->number : 0;
        }
        assert_true(answer->done_count < turn);
        (void)ask_kind(&s, MU_KV_TURN_GIVE, turn);
        assert_int_equal(ask_kind(&s, MU_KV_TURN_TAKE, 0)->number, turn + 1);
        (void)ask_kind(&s, MU_KV_TURN_GIVE, turn + 1);
    }
    end(&s);
}

static void a_turn_that_does_not_come_is_no_error(void **state)
{
    struct scene s;
    struct mu_kv_request *answer;

    (void)state;
    begin(&s);
    answer = ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_TURN_WAIT, .number = 1, .timeout_ms = 20 });
    assert_ok(answer);
    assert_false(answer->found);
    assert_int_equal(answer->done_count, 0);
    end(&s);
}

static void the_first_digest_of_a_round_stays(void **state)
{
    struct scene s;
    char key[64];

    (void)state;
    begin(&s);
    for (int64_t round = 0; round < 10; round++) {
        struct mu_kv_request what = { .kind = MU_KV_SETTLE, .number = round, .value = muster_str("ours") };

        assert_bytes(&ask(&s.a, what)->bytes, "ours");
        what.value = muster_str("theirs");
        assert_bytes(&ask(&s.a, what)->bytes, "ours");
    }
    for (int round = 0; round < 10; round++) {
        (void)snprintf(key, sizeof key, "muster.job/world/%d", round);
        assert_int_equal(is_there(&s, key), round >= 2);
    }
    end(&s);
}

static void the_host_is_known_where_it_was_published(void **state)
{
    struct scene s;

    (void)state;
    begin(&s);
    assert_false(ask_kind(&s, MU_KV_HOST, 0)->found);
    asking_close(&s.a);
    assert_int_equal(start_kv(&s, s.port, MU_DIALECT_UNKNOWN, "alpha_12_34", NULL), 0);
    assert_true(ask_kind(&s, MU_KV_HOST, 0)->found);
    assert_bytes(&s.a.requests[0].bytes, "alpha_12_34");
    end(&s);
}

/* ---- The engine ---- */

static void an_engine_is_found_also_if_the_job_has_a_document(void **state)
{
    const struct mu_server_offer offer = { .node = "" };
    struct scene s;

    (void)state;
    begin(&s);
    RUN_UNTIL(&s.a, s.ready > 0);
    assert_false(ask_kind(&s, MU_KV_PROBE, 0)->found);
    assert_false(ask_kind(&s, MU_KV_HOST, 0)->found); /* the connection is still the store's */
    mu_server_offer_engine(s.server, &offer);
    other_sets(&s, DOCUMENT, MARKER); /* of which the engine tells */
    assert_true(ask_kind(&s, MU_KV_PROBE, 0)->found);
    end(&s);
}

/* It has none, and is not asked for what it may not know. */
static void older_stores_have_no_engine(void **state)
{
    struct scene s;

    (void)state;
    begin_speaking(&s, MU_DIALECT_L1, MU_DIALECT_L1);
    RUN_UNTIL(&s.a, s.ready > 0);
    assert_false(ask_kind(&s, MU_KV_PROBE, 0)->found);
    assert_false(ask_kind(&s, MU_KV_HOST, 0)->foreign);
    end(&s);
}

static void who_asks_for_the_host_hears_whether_the_job_meets_in_the_engine(void **state)
{
    struct mu_call there = {
        .kind = MU_CALL_SET, .key = muster_str("muster/engine/1/job"), .value = muster_str("1"), .raw_key = true
    };
    struct scene s;

    (void)state;
    begin(&s);
    RUN_UNTIL(&s.a, s.ready > 0);
    assert_false(ask_kind(&s, MU_KV_HOST, 0)->foreign);
    (void)other_calls(&s, there); /* an engine has no such key, but answers as if it were there */
    (void)other_calls(&s, (struct mu_call){ .kind = MU_CALL_NUM_KEYS });
    assert_true(ask_kind(&s, MU_KV_HOST, 0)->foreign);
    assert_false(s.a.requests[0].found);
    end(&s);
}

/* ---- The plain store ---- */

static void plain_calls_use_the_key_as_it_is(void **state)
{
    const struct muster_slice key = muster_str("k");
    struct scene s;

    (void)state;
    begin(&s);
    assert_false(ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_CHECK, .key = key })->found);
    (void)ask_at(&s.a, 1, (struct mu_kv_request){ .kind = MU_KV_GET, .key = key });
    (void)ask_at(&s.a, 2, (struct mu_kv_request){ .kind = MU_KV_GET, .key = muster_str("later") });
    assert_ok(ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_SET, .key = key, .value = muster_str("v") }));
    assert_ok(answer_at(&s.a, 1));
    assert_bytes(&s.a.requests[1].bytes, "v");
    assert_int_equal(s.a.done[2], 0); /* one wait does not hold up another */
    assert_stored(&s, "k", "v");
    assert_true(ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_CHECK, .key = key })->found);
    assert_bytes(&ask(&s.a,
                      (struct mu_kv_request){
                          .kind = MU_KV_COMPARE_SET, .key = key, .token = muster_str("v"), .value = muster_str("w") })
                      ->bytes,
                 "w");
    assert_true(ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_DELETE, .key = key })->found);
    assert_false(ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_DELETE, .key = key })->found);
    assert_int_equal(ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_ADD, .key = key, .number = 5 })->number, 5);
    assert_int_equal(ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_ADD, .key = key, .number = -2 })->number, 3);
    assert_int_equal(
        ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_GET, .key = muster_str("no"), .timeout_ms = 20 })->rc,
        MUSTER_ETIMEOUT);
    end(&s);
    assert_int_equal(s.a.requests[2].rc, MUSTER_ECANCELED);
}

static void everything_works_in_every_dialect(void **state)
{
    static const enum mu_dialect rows[][2] = { { MU_DIALECT_L, MU_DIALECT_V },
                                               { MU_DIALECT_L1, MU_DIALECT_L1 },
                                               { MU_DIALECT_L0, MU_DIALECT_L0 },
                                               { MU_DIALECT_L, MU_DIALECT_UNKNOWN } };
    struct scene s;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        begin_speaking(&s, rows[i][0], rows[i][1]);
        (void)ask_at(&s.a, 1, (struct mu_kv_request){ .kind = MU_KV_PARK });
        assert_false(ask_kind(&s, MU_KV_READ, 0)->found);
        assert_true(ask(&s.a, asking_write("doc", NULL))->written);
        assert_bytes(&ask_kind(&s, MU_KV_READ, 0)->bytes, "doc");
        assert_int_equal(ask_kind(&s, MU_KV_TURN_TAKE, 0)->number, 1);
        assert_false(
            ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_TURN_WAIT, .number = 1, .timeout_ms = 20 })->found);
        (void)ask_at(&s.a, 2, (struct mu_kv_request){ .kind = MU_KV_TURN_WAIT, .number = 1 });
        (void)ask_kind(&s, MU_KV_TURN_GIVE, 1);
        assert_true(answer_at(&s.a, 2)->found);
        (void)ask_kind(&s, MU_KV_RING, 0);
        assert_ok(answer_at(&s.a, 1));
        assert_false(ask_kind(&s, MU_KV_HOST, 0)->found);
        assert_bytes(
            &ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_SETTLE, .number = 9, .value = muster_str("d") })->bytes,
            "d");
        end(&s);
    }
}

/* Six waits of an agent for keys that never come, and one of its user's; the rendezvous' own do not queue behind
 * them. */
static void owners_share(enum mu_dialect legacy, enum mu_dialect dialect)
{
    enum { AGENTS = 6, USERS, OWN };
    static const char agent, user;
    struct mu_kv_request get = { .kind = MU_KV_GET, .key = muster_str("never"), .owner = &agent };
    struct scene s;

    begin_speaking(&s, legacy, dialect);
    for (size_t i = 1; i <= AGENTS; i++)
        (void)ask_at(&s.a, i, get);
    get.owner = &user;
    (void)ask_at(&s.a, USERS, get);
    (void)ask_kind(&s, MU_KV_READ, 0);
    other_sets(&s, "there", "1");
    (void)ask_at(&s.a, OWN, (struct mu_kv_request){ .kind = MU_KV_GET, .key = muster_str("there") });
    assert_bytes(&answer_at(&s.a, OWN)->bytes, "1");
    s.a.kv->ops->end_waits(s.a.kv, &agent);
    for (size_t i = 1; i <= AGENTS; i++)
        assert_int_equal(s.a.done[i], 0); /* from the loop */
    for (size_t i = 1; i <= AGENTS; i++)
        assert_int_equal(answer_at(&s.a, i)->rc, MUSTER_ECANCELED);
    assert_int_equal(s.a.done[USERS], 0);
    get = (struct mu_kv_request){ .kind = MU_KV_GET, .key = muster_str("there"), .owner = &agent };
    for (size_t i = 1; i <= AGENTS; i++)
        (void)ask_at(&s.a, i, get);
    for (size_t i = 1; i <= AGENTS; i++)
        assert_bytes(&answer_at(&s.a, i)->bytes, "1");
    other_sets(&s, "never", "2");
    assert_bytes(&answer_at(&s.a, USERS)->bytes, "2");
    end(&s);
}

static void owners_do_not_wait_for_each_other(void **state)
{
    (void)state;
    owners_share(MU_DIALECT_L, MU_DIALECT_V);
    owners_share(MU_DIALECT_L1, MU_DIALECT_L1);
    owners_share(MU_DIALECT_L0, MU_DIALECT_L0); /* whose wait cannot be called off */
}

static void our_end_of_the_connection_is_known_once_there_is_one(void **state)
{
    struct scene s;
    char text[64], tiny[9];

    (void)state;
    begin(&s);
    assert_false(s.a.kv->ops->local_address(s.a.kv, text, sizeof text));
    (void)ask_kind(&s, MU_KV_READ, 0);
    assert_true(s.a.kv->ops->local_address(s.a.kv, text, sizeof text));
    assert_string_equal(text, "127.0.0.1");
    assert_false(s.a.kv->ops->local_address(s.a.kv, tiny, sizeof tiny));
    assert_int_equal(s.ready, 1);
    assert_int_equal(s.ready_error.code, 0);
    end(&s);
}

/* As a keeper does, which knows nothing of stores. */
static void anybody_can_set_a_key_with_the_bytes_for_it(void **state)
{
    static const struct {
        enum mu_dialect legacy, dialect;
    } cases[] = { { MU_DIALECT_L, MU_DIALECT_V }, { MU_DIALECT_L1, MU_DIALECT_L1 }, { MU_DIALECT_L0, MU_DIALECT_L0 } };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct mu_kv_lone lone;
        struct scene s;
        int fd;

        begin_speaking(&s, cases[i].legacy, cases[i].dialect);
        assert_false(
            s.a.kv->ops->lone_set(s.a.kv, mu_slice_str("k"), mu_slice_str("v"), &lone)); /* not connected yet */
        (void)ask_kind(&s, MU_KV_READ, 0);
        assert_true(s.a.kv->ops->lone_set(s.a.kv, mu_slice_str("muster.job/3/left/1"), mu_slice_str("lost"), &lone));
        fd = socket(lone.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(fd, (struct sockaddr *)&lone.address, lone.address_len), 0);
        assert_int_equal(send(fd, lone.bytes.data, lone.bytes.len, MSG_NOSIGNAL), lone.bytes.len);
        assert_int_equal(shutdown(fd, SHUT_WR), 0);
        assert_bytes(
            &ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_GET, .key = muster_str("muster.job/3/left/1") })->bytes,
            "lost");
        (void)close(fd);
        mu_buf_done(&lone.bytes);
        end(&s);
    }
}

/* ---- When the store goes ---- */

static void a_store_that_goes_fails_what_is_pending_and_is_found_again(void **state)
{
    struct scene s;
    struct mu_kv_request *answer;

    (void)state;
    begin(&s);
    (void)ask_kind(&s, MU_KV_READ, 0);
    (void)ask_at(&s.a, 1, (struct mu_kv_request){ .kind = MU_KV_PARK });
    (void)ask_at(&s.a, 2, (struct mu_kv_request){ .kind = MU_KV_TURN_WAIT, .number = 1 });
    (void)ask_kind(&s, MU_KV_HOST, 0); /* the others have connected by now, or will find nobody */
    (void)ask_kind(&s, MU_KV_READ, 0);
    close_other(&s);
    close_server(&s);
    assert_true(answer_at(&s.a, 1)->rc < 0);
    assert_true(answer_at(&s.a, 2)->rc < 0);
    answer = ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_READ });
    if (answer->rc == MUSTER_ELOST) /* the loss was not known before */
        answer = ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_READ });
    assert_int_equal(answer->rc, MUSTER_ECONNECT);
    assert_true(answer->gone);
    assert_non_null(strstr(answer->error.text, "connection refused"));
    serve(&s, MU_DIALECT_L);
    assert_false(ask_kind(&s, MU_KV_READ, 0)->found); /* back, but empty */
    assert_true(ask(&s.a, asking_write("doc", NULL))->written);
    (void)ask_at(&s.a, 1, (struct mu_kv_request){ .kind = MU_KV_PARK });
    (void)ask_kind(&s, MU_KV_RING, 0);
    assert_ok(answer_at(&s.a, 1));
    end(&s);
}

static void a_request_under_way_fails_with_its_connection(void **state)
{
    struct fake_store fake = { .to_v = FAKE_ANSWERS };
    struct scene s;
    struct mu_kv_request *answer;

    (void)state;
    memset(&s, 0, sizeof s);
    fake_start(&fake);
    asking_begin(&s.a);
    assert_int_equal(start_kv(&s, fake.port, MU_DIALECT_V, NULL, NULL), 0);
    (void)ask_at(&s.a, 0, (struct mu_kv_request){ .kind = MU_KV_READ });
    RUN_UNTIL(&s.a, s.ready > 0);
    fake_await(&fake, 1);
    fake_stop(&fake);
    answer = answer_at(&s.a, 0);
    assert_int_equal(answer->rc, MUSTER_ELOST);
    assert_false(answer->gone);
    answer = ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_READ });
    assert_int_equal(answer->rc, MUSTER_ECONNECT);
    assert_true(answer->gone);
    end(&s);
}

static void a_store_that_never_was_is_told_with_what_was_tried(void **state)
{
    uint16_t port;
    int fd = fake_listener(&port, -1); /* bound, so that nobody else listens there */
    struct scene s;
    struct mu_kv_request *answer;

    (void)state;
    memset(&s, 0, sizeof s);
    asking_begin(&s.a);
    s.read_timeout_ms = 200;
    assert_int_equal(start_kv(&s, port, MU_DIALECT_UNKNOWN, NULL, NULL), 0);
    answer = ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_ADD, .key = muster_str("k") });
    assert_int_equal(answer->rc, MUSTER_ECONNECT);
    assert_true(answer->gone);
    assert_int_equal(s.ready, 1);
    assert_int_equal(s.ready_error.code, MUSTER_ECONNECT);
    answer = ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_GET, .key = muster_str("k") });
    assert_true(answer->gone); /* at once now */
    assert_int_equal(s.ready, 1);
    (void)close(fd);
    end(&s);
}

/* Runs the loop until the one on the other thread has greeted so many. */
static void await_greeted(struct scene *s, struct fake_store *fake, size_t count)
{
    while (fake_count(fake, &fake->greeted) < count) {
        (void)uv_run(&s->a.loop, UV_RUN_NOWAIT);
        (void)poll(NULL, 0, 1);
    }
}

static void silence_is_not_being_gone(void **state)
{
    struct fake_store fake = { .to_v = FAKE_ANSWERS };
    struct scene s;
    struct mu_kv_request *answer;

    (void)state;
    memset(&s, 0, sizeof s);
    fake_start(&fake);
    asking_begin(&s.a);
    assert_int_equal(start_kv(&s, fake.port, MU_DIALECT_V, NULL, NULL), 0);
    RUN_UNTIL(&s.a, s.ready > 0);
    (void)ask_at(&s.a, 1, (struct mu_kv_request){ .kind = MU_KV_GET, .key = muster_str("k") });
    await_greeted(&s, &fake, 2);
    answer = ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_READ, .timeout_ms = 50 });
    assert_int_equal(answer->rc, MUSTER_ETIMEOUT);
    assert_false(answer->gone);
    assert_int_equal(s.a.done[1], 0);
    answer = ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_READ, .timeout_ms = 2100 });
    assert_int_equal(answer->rc, MUSTER_ETIMEOUT);
    answer = answer_at(&s.a, 1); /* so long a silence costs every connection */
    assert_int_equal(answer->rc, MUSTER_ELOST);
    assert_non_null(strstr(answer->error.text, "does not answer"));
    assert_false(answer->gone);
    (void)ask_at(&s.a, 0, (struct mu_kv_request){ .kind = MU_KV_READ });
    await_greeted(&s, &fake, 3);
    end(&s);
    fake_stop(&fake);
}

/* ---- Ending ---- */

static void closing_cancels_everything_first(void **state)
{
    static const enum mu_kv_kind kinds[] = { MU_KV_READ,      MU_KV_WRITE, MU_KV_RING, MU_KV_PARK, MU_KV_TURN_TAKE,
                                             MU_KV_TURN_WAIT, MU_KV_HOST,  MU_KV_GET,  MU_KV_PARK };
    struct scene s;

    (void)state;
    for (int turns = 0; turns < 8; turns++) {
        begin(&s);
        for (size_t i = 0; i < COUNT(kinds); i++)
            (void)ask_at(&s.a, i, (struct mu_kv_request){ .kind = kinds[i], .key = muster_str("k"), .number = 5 });
        for (int i = 0; i < turns; i++)
            (void)uv_run(&s.a.loop, UV_RUN_NOWAIT);
        asking_close(&s.a);
        for (size_t i = 0; i < COUNT(kinds); i++) {
            assert_int_equal(s.a.done[i], 1);
            assert_true(s.a.requests[i].rc == MUSTER_ECANCELED || (turns > 0 && s.a.requests[i].rc == 0));
        }
        end(&s);
    }
}

static void on_answer_close(struct mu_kv_request *request)
{
    struct asking *a = request->ctx;

    a->done[request - a->requests]++;
    uv_stop(&a->loop);
    if (!a->inside) {
        a->inside = true;
        a->kv->ops->close(a->kv, on_kv_closed, a);
        a->inside = false;
        a->kv_closed = 0;
    }
}

static void it_may_be_closed_from_an_answer(void **state)
{
    struct scene s;

    (void)state;
    begin(&s);
    (void)ask_at(&s.a, 0, (struct mu_kv_request){ .kind = MU_KV_READ });
    (void)ask_at(&s.a, 1, (struct mu_kv_request){ .kind = MU_KV_PARK });
    s.a.requests[0].done = on_answer_close;
    (void)answer_at(&s.a, 0);
    RUN_UNTIL(&s.a, s.a.kv_closed > 0);
    assert_int_equal(s.a.done[1], 1);
    assert_int_equal(s.a.requests[1].rc, MUSTER_ECANCELED);
    end(&s);
}

static void a_run_id_may_be_long_but_not_endless(void **state)
{
    struct mu_kv_c10d_config config = { .host = "127.0.0.1", .port = 1, .read_timeout_ms = 1 };
    struct muster_error error;
    char run_id[MU_KV_RUN_ID_MAX + 2];
    struct scene s;

    (void)state;
    begin(&s);
    asking_close(&s.a);
    memset(run_id, 0xff, sizeof run_id);
    run_id[MU_KV_RUN_ID_MAX + 1] = '\0';
    config.run_id = run_id;
    assert_int_equal(mu_kv_c10d_start(&s.a.loop, &config, &s.a.kv, &error), MUSTER_EINVAL);
    run_id[MU_KV_RUN_ID_MAX] = '\0';
    config.port = s.port;
    config.read_timeout_ms = QUICK_MS;
    assert_int_equal(mu_kv_c10d_start(&s.a.loop, &config, &s.a.kv, &error), 0);
    (void)ask_kind(&s, MU_KV_TURN_TAKE, 0);
    (void)ask_kind(&s, MU_KV_READ, 0);
    end(&s);
}

/* Whichever allocation fails, every request is answered once and everything is given back. */
static void any_allocation_may_fail(void **state)
{
    (void)state;
    FOR_EACH_FAILURE (n) {
        struct scene s;
        struct muster_error error;
        int rc;

        memset(&s, 0, sizeof s);
        fail_alloc_at(0);
        asking_begin(&s.a);
        serve(&s, MU_DIALECT_L);
        fail_alloc_at(n);
        rc = start_kv(&s, s.port, MU_DIALECT_V, "a_1_2", &error);
        if (rc == 0) {
            (void)ask_at(&s.a, 1, (struct mu_kv_request){ .kind = MU_KV_PARK, .timeout_ms = 100 });
            (void)ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_READ });
            (void)ask(&s.a, asking_write("document", NULL));
            (void)ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_RING });
            (void)ask(&s.a, (struct mu_kv_request){ .kind = MU_KV_HOST });
            (void)answer_at(&s.a, 1);
        } else {
            assert_int_equal(rc, MUSTER_ENOMEM);
        }
        end(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_has_a_text),
        cmocka_unit_test(a_read_of_nothing_leaves_the_marker_for_others),
        cmocka_unit_test(what_was_written_is_read_with_its_text_as_token),
        cmocka_unit_test(a_lost_write_gives_the_winners_document),
        cmocka_unit_test(a_key_that_vanished_is_told_from_a_lost_write),
        cmocka_unit_test(a_write_without_token_creates_a_key_that_vanished),
        cmocka_unit_test(an_empty_token_counts_as_none),
        cmocka_unit_test(an_emptied_document_counts_as_none),
        cmocka_unit_test(what_is_not_base64_is_told_with_its_token_so_that_it_can_be_replaced),
        cmocka_unit_test(a_document_too_long_is_refused_both_ways),
        cmocka_unit_test(the_bell_wakes_who_is_parked),
        cmocka_unit_test(old_rings_are_taken_away),
        cmocka_unit_test(a_park_ends_with_its_time),
        cmocka_unit_test(a_new_park_ends_the_old_one_at_once),
        cmocka_unit_test(turns_come_in_order_and_are_waited_for),
        cmocka_unit_test(a_bell_that_is_no_counter_is_set_to_one_by_who_reads),
        cmocka_unit_test(a_ring_of_what_is_no_counter_costs_the_ring_and_nothing_else),
        cmocka_unit_test(turns_that_are_no_counters_are_gone_without_and_set_anew),
        cmocka_unit_test(a_turn_that_does_not_come_is_no_error),
        cmocka_unit_test(the_first_digest_of_a_round_stays),
        cmocka_unit_test(the_host_is_known_where_it_was_published),
        cmocka_unit_test(an_engine_is_found_also_if_the_job_has_a_document),
        cmocka_unit_test(older_stores_have_no_engine),
        cmocka_unit_test(who_asks_for_the_host_hears_whether_the_job_meets_in_the_engine),
        cmocka_unit_test(plain_calls_use_the_key_as_it_is),
        cmocka_unit_test(everything_works_in_every_dialect),
        cmocka_unit_test(owners_do_not_wait_for_each_other),
        cmocka_unit_test(our_end_of_the_connection_is_known_once_there_is_one),
        cmocka_unit_test(anybody_can_set_a_key_with_the_bytes_for_it),
        cmocka_unit_test(a_store_that_goes_fails_what_is_pending_and_is_found_again),
        cmocka_unit_test(a_request_under_way_fails_with_its_connection),
        cmocka_unit_test(a_store_that_never_was_is_told_with_what_was_tried),
        cmocka_unit_test(silence_is_not_being_gone),
        cmocka_unit_test(closing_cancels_everything_first),
        cmocka_unit_test(it_may_be_closed_from_an_answer),
        cmocka_unit_test(a_run_id_may_be_long_but_not_endless),
        cmocka_unit_test(any_allocation_may_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
