/* Connections of a store server that speak the engine's frames, on real sockets. */
#include "serving_uv.h"

#include <inttypes.h>

static const struct mu_frame hello = {
    .type = MU_FRAME_HELLO, .id = 1, .version_min = 1, .version_max = 1, .run_id = { "job", 3 }, .node = { "n", 1 }
};
static const struct mu_frame load = { .type = MU_FRAME_LOAD, .id = 2, .watch = 1, .key = { "n/", 2 } };

static struct mu_frame grant(uint64_t lease, uint32_t ttl_ms)
{
    return (struct mu_frame){ .type = MU_FRAME_GRANT,
                              .id = 3,
                              .lease = lease,
                              .ttl_ms = ttl_ms,
                              .bound = true,
                              .secret = mu_slice_str("0123456789abcdef") };
}

static void tell(struct peer *peer, struct mu_frame frame)
{
    struct mu_buf out = { 0 };

    assert_int_equal(mu_frame_write(&frame, &out, SIZE_MAX / 2), 0);
    peer_send(peer, mu_buf_slice(&out));
    mu_buf_done(&out);
}

/* What the last frame that was told lies in. */
static struct mu_arena arena;

/* The next frame, whose bytes live until the one after it. */
static struct mu_frame told(struct peer *peer)
{
    static char bytes[1 << 20];
    struct mu_frame frame = { 0 };
    size_t len;

    mu_arena_done(&arena);
    assert_true(peer_try_read(peer, bytes, 4));
    len = mu_frame_length(mu_slice(bytes, 4));
    assert_in_range(len, MU_FRAME_HEAD_BYTES, sizeof bytes);
    assert_true(peer_try_read(peer, bytes + 4, len - 4));
    assert_int_equal(mu_frame_read(mu_slice(bytes, len), &arena, &frame, NULL), 0);
    return frame;
}

static void assert_done(struct peer *peer, enum mu_engine_code code)
{
    struct mu_frame frame = told(peer);

    assert_int_equal(frame.type, MU_FRAME_DONE);
    assert_int_equal(frame.code, code);
}

static void put(struct peer *peer, const char *key, uint64_t lease)
{
    struct mu_engine_op op = { MU_ENGINE_PUT, mu_slice_str(key), mu_slice_str("v"), lease };

    tell(peer, (struct mu_frame){ .type = MU_FRAME_TXN, .id = 9, .txn = { .then = &op, .then_count = 1 } });
    assert_done(peer, MU_ENGINE_OK);
}

/* A peer that speaks frames and has said HELLO. */
static struct peer *greet(struct scene *s)
{
    struct peer *peer = meet(s, V);

    ask(peer, "CHECK #1 (muster/engine/1)", "00");
    tell(peer, hello);
    assert_int_equal(told(peer).type, MU_FRAME_WELCOME);
    return peer;
}

static struct peer *watcher_of(struct scene *s)
{
    struct peer *peer = greet(s);

    tell(peer, load);
    assert_int_equal(told(peer).type, MU_FRAME_KVS);
    return peer;
}

static void assert_change(struct peer *peer, const char *key, bool deleted, enum mu_engine_end end)
{
    struct mu_frame frame = told(peer);

    assert_int_equal(frame.type, MU_FRAME_EVENTS);
    assert_int_equal(frame.changes_count, 1);
    assert_true(mu_slice_equal(frame.changes[0].kv.key, mu_slice_str(key)));
    assert_int_equal(frame.changes[0].deleted, deleted);
    assert_int_equal(frame.changes[0].end, end);
}

static int start_offering(void **state)
{
    int rc = start_scene(state);

    mu_server_offer_engine(((struct scene *)*state)->server);
    return rc;
}

/* ---- Moving ---- */

static void a_store_without_an_engine_says_that_the_key_is_not_there(void **state)
{
    struct peer *peer = meet(*state, V);

    ask(peer, "CHECK #1 (muster/engine/1)", "01");
    ask(peer, "ADD (a) #1", "#1"); /* and goes on as before */
}

static void other_checks_and_older_peers_stay_with_the_store(void **state)
{
    struct scene *s = *state;
    struct peer *peer = meet(s, V), *older = meet(s, L1);

    ask(peer, "CHECK #1 (muster/engine/2)", "01");
    ask(peer, "CHECK #2 (muster/engine/1) (x)", "01");
    ask(peer, "PING %1", "%1");
    ask(older, "CHECK #1 (muster/engine/1)", "01");
    ask(older, "ADD (a) #1", "#1");
}

static void frames_and_requests_are_served_side_by_side(void **state)
{
    struct scene *s = *state;
    struct peer *stock = meet(s, V), *node = greet(s), *other = watcher_of(s);

    tell(node, grant(7, 5000));
    assert_done(node, MU_ENGINE_OK);
    ask(stock, "ADD (n/1) #1", "#1"); /* a store's key is none of the engine's */
    put(node, "n/1", 7);
    assert_change(other, "n/1", false, MU_ENGINE_DELETED);
    ask(stock, "GET (n/1)", "(1)");
}

static void frames_may_come_with_the_probe(void **state)
{
    struct scene *s = *state;
    struct peer *peer = meet(s, V);
    struct mu_buf out = { 0 };

    wire_put(&out, V, "CHECK #1 (muster/engine/1)");
    assert_int_equal(mu_frame_write(&hello, &out, SIZE_MAX / 2), 0);
    assert_int_equal(mu_frame_write(&load, &out, SIZE_MAX / 2), 0);
    peer_send(peer, mu_slice(out.data, out.len - 3)); /* the rest of the last one a little later */
    hear(peer, "00");
    assert_int_equal(told(peer).type, MU_FRAME_WELCOME);
    peer_send(peer, mu_slice(out.data + out.len - 3, 3));
    assert_int_equal(told(peer).type, MU_FRAME_KVS);
    mu_buf_done(&out);
}

static void nothing_of_the_store_comes_between_frames(void **state)
{
    struct scene *s = *state;
    struct peer *stock = meet(s, V), *peer = meet(s, V);

    say(peer, "WAIT #1 (late)");
    ask(peer, "CHECK #1 (muster/engine/1)", "00");
    ask(stock, "ADD (late) #1", "#1");
    tell(peer, hello);
    assert_int_equal(told(peer).type, MU_FRAME_WELCOME);
}

static void the_welcome_says_who_is_who(void **state)
{
    struct scene *s = *state;
    struct peer *peer = meet(s, V);
    struct mu_frame welcome;
    uint64_t epoch;

    ask(peer, "CHECK #1 (muster/engine/1)", "00");
    tell(peer, hello);
    welcome = told(peer);
    assert_true(mu_slice_equal(welcome.your_addr, mu_slice_str("127.0.0.1")));
    assert_true(mu_slice_equal(welcome.run_id, mu_slice_str("job")));
    assert_true(welcome.node.len > 0);
    assert_true(welcome.revision >= MU_ENGINE_REVISION_MIN);
    epoch = welcome.epoch;
    stop_serving(s);
    serve(s, (struct muster_store_limits){ 0 }, MU_DIALECT_L); /* another start, another epoch */
    mu_server_offer_engine(s->server);
    peer = meet(s, V);
    ask(peer, "CHECK #1 (muster/engine/1)", "00");
    tell(peer, hello);
    assert_true(told(peer).epoch != epoch);
}

/* ---- Ends ---- */

static void a_peer_that_hangs_up_has_a_moment_to_come_back(void **state)
{
    struct scene *s = *state;
    struct peer *node = greet(s), *other = watcher_of(s);

    tell(node, grant(7, 20000));
    assert_done(node, MU_ENGINE_OK);
    put(node, "n/1", 7);
    assert_change(other, "n/1", false, MU_ENGINE_DELETED);
    peer_reset(node);
    UNTIL(stats(s).connections == 1);
    node = greet(s);
    tell(node, (struct mu_frame){ .type = MU_FRAME_ATTACH, .id = 2, .lease = 7 });
    assert_done(node, MU_ENGINE_OK);
    peer_close(node);
    assert_change(other, "n/1", true, MU_ENGINE_RESET);
}

static void silence_ends_a_lease(void **state)
{
    struct scene *s = *state;
    struct peer *node = greet(s), *other = watcher_of(s);

    tell(node, grant(7, 200));
    assert_done(node, MU_ENGINE_OK);
    put(node, "n/1", 7);
    assert_change(other, "n/1", false, MU_ENGINE_DELETED);
    assert_change(other, "n/1", true, MU_ENGINE_SILENT);
    tell(node, (struct mu_frame){ .type = MU_FRAME_KEEP, .id = 4, .lease = 7 });
    assert_done(node, MU_ENGINE_NOT_FOUND);
}

static void a_will_from_a_stranger_ends_a_lease(void **state)
{
    struct scene *s = *state;
    struct peer *node = greet(s), *other = watcher_of(s), *keeper = meet(s, V);

    tell(node, grant(7, 20000));
    assert_done(node, MU_ENGINE_OK);
    put(node, "n/1", 7);
    assert_change(other, "n/1", false, MU_ENGINE_DELETED);
    ask(keeper, "CHECK #1 (muster/engine/1)", "00");
    tell(keeper,
         (struct mu_frame){ .type = MU_FRAME_REVOKE, .id = 1, .lease = 7, .secret = mu_slice_str("0123456789abcdef") });
    assert_done(keeper, MU_ENGINE_OK);
    assert_change(other, "n/1", true, MU_ENGINE_REVOKED);
}

static void a_taken_lease_cuts_the_old_connection(void **state)
{
    struct scene *s = *state;
    struct peer *node = greet(s), *again = greet(s);

    tell(node, grant(7, 20000));
    assert_done(node, MU_ENGINE_OK);
    put(node, "n/1", 7);
    tell(again, (struct mu_frame){ .type = MU_FRAME_ATTACH, .id = 2, .lease = 7 });
    assert_int_equal(told(again).last, 9);
    hear_end(node);
    put(again, "n/1", 7);
}

/* ---- What is no frame ---- */

static void what_is_no_frame_ends_that_connection_and_says_whose(void **state)
{
    struct scene *s = *state;
    struct peer *node = greet(s), *bad = greet(s);
    char from[64];

    (void)snprintf(from, sizeof from, "refused 127.0.0.1:%u: a frame of the unknown type 99", peer_port(bad));
    peer_send(bad, mu_slice("\x08\0\0\0\x63\0\0\0\0\0\0\0", 12));
    hear_end(bad);
    assert_int_equal(lines_with(from), 1);
    tell(node, (struct mu_frame){ .type = MU_FRAME_KEEP, .id = 4 });
    assert_done(node, MU_ENGINE_OK);
}

static void a_peer_that_never_reads_is_cut(void **state)
{
    static char value[MU_ENGINE_VALUE_MAX / 2];
    struct scene *s = *state;
    struct peer *deaf, *node;
    struct mu_engine_op op = { MU_ENGINE_PUT, mu_slice_str("n/1"), mu_slice(value, sizeof value), 0 };
    struct mu_frame big = { .type = MU_FRAME_TXN, .id = 9, .txn = { .then = &op, .then_count = 1 } };

    serve(s, (struct muster_store_limits){ .value_bytes = 1 << 20, .unsent_bytes = 4 << 20 }, MU_DIALECT_L);
    mu_server_offer_engine(s->server);
    deaf = watcher_of(s);
    node = greet(s);
    for (unsigned i = 0; i < 64 && stats(s).connections == 2; i++) {
        tell(node, big);
        assert_done(node, MU_ENGINE_OK);
    }
    UNTIL(stats(s).connections == 1);
    assert_int_equal(lines_with("it does not read its replies"), 1);
    assert_true(deaf->fd >= 0);
}

static void a_full_store_refuses_and_loses_nothing(void **state)
{
    static char value[200000];
    struct scene *s = *state;
    struct peer *node;
    struct mu_engine_op op = { MU_ENGINE_PUT, mu_slice_str("n/2"), mu_slice(value, sizeof value), 0 };

    serve(s, (struct muster_store_limits){ .value_bytes = 10000, .total_bytes = 100000 }, MU_DIALECT_L);
    mu_server_offer_engine(s->server);
    node = greet(s);
    put(node, "n/1", 0);
    tell(node, (struct mu_frame){ .type = MU_FRAME_TXN, .id = 9, .txn = { .then = &op, .then_count = 1 } });
    hear_end(node); /* not even half of it is taken */
    node = greet(s);
    op.value.len = 30000;
    for (unsigned i = 0; i < 2; i++) {
        op.key = mu_slice_str(i == 0 ? "n/3" : "n/4");
        tell(node, (struct mu_frame){ .type = MU_FRAME_TXN, .id = 9, .txn = { .then = &op, .then_count = 1 } });
        assert_done(node, MU_ENGINE_OK);
    }
    op.key = mu_slice_str("n/5");
    op.value.len = 41000;
    tell(node, (struct mu_frame){ .type = MU_FRAME_TXN, .id = 9, .txn = { .then = &op, .then_count = 1 } });
    assert_done(node, MU_ENGINE_EXHAUSTED);
    tell(node, (struct mu_frame){ .type = MU_FRAME_RANGE, .id = 5, .prefix = true, .key = mu_slice_str("n/") });
    assert_int_equal(told(node).kvs_count, 3);
}

static void a_server_closes_with_everybody_connected(void **state)
{
    struct scene *s = *state;
    struct peer *node = greet(s);

    tell(node, grant(7, 20000));
    assert_done(node, MU_ENGINE_OK);
    put(node, "n/1", 7);
    (void)watcher_of(s);
    stop_serving(s);
}

static void many_nodes_hear_of_one_change(void **state)
{
    enum { NODES = 200 };
    struct scene *s = *state;
    struct peer *nodes[NODES], *leader = greet(s);

    for (unsigned i = 0; i < NODES; i++)
        nodes[i] = watcher_of(s);
    put(leader, "n/1", 0);
    for (unsigned i = 0; i < NODES; i++)
        assert_change(nodes[i], "n/1", false, MU_ENGINE_DELETED);
}

#define OFFERED(test) cmocka_unit_test_setup_teardown(test, start_offering, end_scene)

static int forget_last_frame(void **state)
{
    (void)state;
    mu_arena_done(&arena);
    return 0;
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        SCENE(a_store_without_an_engine_says_that_the_key_is_not_there),
        OFFERED(other_checks_and_older_peers_stay_with_the_store),
        OFFERED(frames_and_requests_are_served_side_by_side),
        OFFERED(frames_may_come_with_the_probe),
        OFFERED(nothing_of_the_store_comes_between_frames),
        OFFERED(the_welcome_says_who_is_who),
        OFFERED(a_peer_that_hangs_up_has_a_moment_to_come_back),
        OFFERED(silence_ends_a_lease),
        OFFERED(a_will_from_a_stranger_ends_a_lease),
        OFFERED(a_taken_lease_cuts_the_old_connection),
        OFFERED(what_is_no_frame_ends_that_connection_and_says_whose),
        OFFERED(a_peer_that_never_reads_is_cut),
        OFFERED(a_full_store_refuses_and_loses_nothing),
        OFFERED(a_server_closes_with_everybody_connected),
        OFFERED(many_nodes_hear_of_one_change),
    };

    return cmocka_run_group_tests(tests, NULL, forget_last_frame);
}
