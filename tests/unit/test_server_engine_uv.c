/* Connections of a store server that speak the engine's frames, on real sockets. */
#include "base/files.h"
#include "serving_uv.h"

#include <inttypes.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const struct mu_server_offer offer = { .node = "host1_7_1", .documents = "/torch.rendezvous." };
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

/* One that watches what the engine itself says to the job. */
static struct peer *watcher_of_job(struct scene *s)
{
    struct peer *peer = greet(s);

    tell(peer, (struct mu_frame){ .type = MU_FRAME_LOAD, .id = 3, .watch = 1, .key = mu_slice_str("job/") });
    assert_int_equal(told(peer).type, MU_FRAME_KVS);
    tell(peer, grant(7, 5000)); /* it takes part */
    assert_done(peer, MU_ENGINE_OK);
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

    mu_server_offer_engine(((struct scene *)*state)->server, &offer);
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
    assert_true(mu_slice_equal(welcome.my_addr, mu_slice_str("127.0.0.1")));
    assert_false(welcome.moved);
    assert_true(mu_slice_equal(welcome.run_id, mu_slice_str("job")));
    assert_true(mu_slice_equal(welcome.node, mu_slice_str("host1_7_1")));
    assert_true(welcome.revision >= MU_ENGINE_REVISION_MIN);
    epoch = welcome.epoch;
    stop_serving(s);
    serve(s, (struct muster_store_limits){ 0 }, MU_DIALECT_L); /* another start, another epoch */
    mu_server_offer_engine(s->server, &offer);
    peer = meet(s, V);
    ask(peer, "CHECK #1 (muster/engine/1)", "00");
    tell(peer, hello);
    assert_true(told(peer).epoch != epoch);
}

/* ---- A job meets in one place ---- */

static void who_asks_for_the_document_of_a_job_in_the_engine_waits_for_it(void **state)
{
    struct scene *s = *state;
    struct peer *stock = meet(s, V), *node = watcher_of_job(s), *gone = meet(s, V);
    const struct mu_engine_op yield = { .kind = MU_ENGINE_YIELD };

    ask(stock, "COMPARE_SET (/torch.rendezvous.other) () (doc)", "(doc)");
    say(gone, "COMPARE_SET (/torch.rendezvous.job) () (doc)");
    assert_change(node, MU_ENGINE_OUTSIDERS, false, MU_ENGINE_DELETED);
    peer_close(gone);
    assert_change(node, MU_ENGINE_OUTSIDERS, true, MU_ENGINE_DELETED);
    say(stock, "COMPARE_SET (/torch.rendezvous.job) () (doc)");
    assert_change(node, MU_ENGINE_OUTSIDERS, false, MU_ENGINE_DELETED);
    tell(node, (struct mu_frame){ .type = MU_FRAME_TXN, .id = 9, .txn = { .then = &yield, .then_count = 1 } });
    assert_done(node, MU_ENGINE_OK);
    hear(stock, "(doc)");
    node = meet(s, V);
    ask(node, "CHECK #1 (muster/engine/1)", "00");
    tell(node, hello);
    assert_true(told(node).moved);
}

static void who_asks_for_the_document_of_a_job_that_is_over_goes_on(void **state)
{
    struct scene *s = *state;
    struct peer *stock = meet(s, V), *node = watcher_of_job(s);

    say(stock, "COMPARE_SET (/torch.rendezvous.job) () (doc)");
    assert_change(node, MU_ENGINE_OUTSIDERS, false, MU_ENGINE_DELETED);
    peer_close(node);
    hear(stock, "(doc)");
}

static void a_job_that_takes_nobody_else_refuses_and_tells_of_them_once(void **state)
{
    struct scene *s = *state;
    struct peer *stock = meet(s, V), *node = meet(s, V), *again = meet(s, V);
    struct mu_frame only = hello;

    only.only = true;
    ask(stock, "CHECK #1 (muster/engine/1/job)", "01");
    ask(node, "CHECK #1 (muster/engine/1)", "00");
    tell(node, only);
    assert_int_equal(told(node).type, MU_FRAME_WELCOME);
    ask(stock, "CHECK #1 (muster/engine/1/job)", "00");
    ask(stock, "CHECK #1 (muster/engine/1/other)", "01");
    say(stock, "COMPARE_SET (/torch.rendezvous.job) () (doc)");
    hear_end(stock);
    say(again, "ADD (/torch.rendezvous.job) #1");
    hear_end(again);
    assert_int_equal(lines_with("it asks for the document of job 'job', which meets in the engine alone (engine=only)"),
                     1);
    tell(node, (struct mu_frame){ .type = MU_FRAME_KEEP, .id = 4 });
    assert_done(node, MU_ENGINE_OK);
}

static void a_job_with_a_document_does_not_meet_in_the_engine(void **state)
{
    struct scene *s = *state;
    struct peer *stock = meet(s, V), *node = meet(s, V);

    ask(stock, "COMPARE_SET (/torch.rendezvous.job) () (doc)", "(doc)");
    ask(node, "CHECK #1 (muster/engine/1)", "00");
    tell(node, hello);
    assert_true(told(node).moved);
    ask(stock, "DELETE_KEY (/torch.rendezvous.job)", "#1");
    tell(node, hello);
    assert_false(told(node).moved);
}

/* ---- A token ---- */

static int start_with_token(void **state)
{
    struct mu_server_offer guarded = offer;
    struct mu_token token = { 0 };
    int rc = start_scene(state);

    mu_token_init(&token, mu_slice_str("correct horse battery staple"));
    guarded.notes = "/muster.";
    guarded.token = &token;
    mu_server_offer_engine(((struct scene *)*state)->server, &guarded);
    return rc;
}

/* Says HELLO, and takes the nonce that it is answered with. */
static struct peer *knock(struct scene *s, char ret_nonce[static MU_TOKEN_NONCE_BYTES])
{
    struct peer *peer = meet(s, V);
    struct mu_frame challenge;

    ask(peer, "CHECK #1 (muster/engine/1)", "00");
    tell(peer, hello);
    challenge = told(peer);
    assert_int_equal(challenge.type, MU_FRAME_CHALLENGE);
    assert_int_equal(challenge.nonce.len, MU_TOKEN_NONCE_BYTES);
    memcpy(ret_nonce, challenge.nonce.data, MU_TOKEN_NONCE_BYTES);
    return peer;
}

static void prove(struct peer *peer, const char *text, const char nonce[static MU_TOKEN_NONCE_BYTES])
{
    struct mu_frame proven = hello;
    struct mu_token token = { 0 };
    char proof[MU_TOKEN_PROOF_BYTES];

    mu_token_init(&token, mu_slice_str(text));
    mu_token_prove(&token, mu_slice(nonce, MU_TOKEN_NONCE_BYTES), hello.run_id, hello.node, proof);
    proven.proof = mu_slice(proof, sizeof proof);
    tell(peer, proven);
}

static void who_proves_the_token_is_welcome(void **state)
{
    char nonce[MU_TOKEN_NONCE_BYTES];
    struct peer *node = knock(*state, nonce);

    prove(node, "correct horse battery staple", nonce);
    assert_int_equal(told(node).type, MU_FRAME_WELCOME);
    put(node, "n/1", 0);
}

static void who_has_another_token_is_told_and_cut_off(void **state)
{
    char nonce[MU_TOKEN_NONCE_BYTES];
    struct peer *node = knock(*state, nonce);

    prove(node, "a token that is not that one", nonce);
    assert_done(node, MU_ENGINE_UNAUTHENTICATED);
    hear_end(node);
    assert_int_equal(lines_with("its token is another one than this store's"), 1);
}

static void a_proof_that_somebody_has_overheard_is_worth_nothing(void **state)
{
    struct scene *s = *state;
    char nonce[MU_TOKEN_NONCE_BYTES], another[MU_TOKEN_NONCE_BYTES];
    struct peer *node = knock(s, nonce), *thief = knock(s, another);

    assert_memory_not_equal(nonce, another, sizeof nonce);
    prove(node, "correct horse battery staple", nonce);
    assert_int_equal(told(node).type, MU_FRAME_WELCOME);
    prove(thief, "correct horse battery staple", nonce); /* the same bytes */
    assert_done(thief, MU_ENGINE_UNAUTHENTICATED);
    hear_end(thief);
}

/* Also before any node has come. Other keys are nobody's business. */
static void documents_are_refused_and_told_of_once(void **state)
{
    struct scene *s = *state;
    struct peer *stock = meet(s, V), *again = meet(s, V), *old = meet(s, L1), *note = meet(s, V), *other = meet(s, V);

    say(stock, "COMPARE_SET (/torch.rendezvous.job) () (doc)");
    hear_end(stock);
    say(again, "COMPARE_SET (/torch.rendezvous.another) () (doc)");
    hear_end(again);
    say(old, "COMPARE_SET (/torch.rendezvous.job) () (doc)");
    hear_end(old);
    say(note, "SET (/muster.job/host) (x)");
    hear_end(note);
    assert_int_equal(lines_with("it writes the key '/torch.rendezvous.job', but this store has a token"), 1);
    assert_int_equal(lines_with("but this store has a token"), 1);
    ask(other, "ADD (torch) #1", "#1");
    ask(other, "CHECK #1 (/torch.rendezvous.job)", "01");
    ask(other, "CHECK #1 (muster/engine/1/job)", "00");
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
    struct peer *node = greet(s), *other = watcher_of(s), *keeper = meet(s, V), *guesser = meet(s, V);
    struct mu_frame guess = {
        .type = MU_FRAME_REVOKE, .id = 1, .lease = 7, .secret = mu_slice_str("0000000000000000")
    };

    tell(node, grant(7, 20000));
    assert_done(node, MU_ENGINE_OK);
    put(node, "n/1", 7);
    assert_change(other, "n/1", false, MU_ENGINE_DELETED);
    ask(guesser, "CHECK #1 (muster/engine/1)", "00");
    tell(guesser, guess);
    assert_done(guesser, MU_ENGINE_DENIED);
    hear_end(guesser);
    assert_int_equal(lines_with("a will with another secret than that of lease 0000000000000007"), 1);
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
    char why[128];

    tell(node, grant(7, 20000));
    assert_done(node, MU_ENGINE_OK);
    put(node, "n/1", 7);
    tell(again, (struct mu_frame){ .type = MU_FRAME_ATTACH, .id = 2, .lease = 7 });
    assert_int_equal(told(again).last, 9);
    (void)snprintf(why, sizeof why, "refused 127.0.0.1:%u: its lease 0000000000000007 was taken over by 127.0.0.1:%u",
                   peer_port(node), peer_port(again));
    hear_end(node);
    assert_int_equal(lines_with(why), 1);
    put(again, "n/1", 7);
}

static void on_alone(void *ctx)
{
    *(bool *)ctx = true;
}

static void a_server_is_not_alone_while_a_node_may_come_back(void **state)
{
    struct scene *s = *state;
    struct peer *node = greet(s);
    bool alone = false;

    tell(node, grant(7, 20000));
    assert_done(node, MU_ENGINE_OK);
    peer_reset(node);
    UNTIL(stats(s).connections == 0);
    assert_false(mu_server_is_alone(s->server));
    mu_server_when_alone(s->server, on_alone, &alone);
    UNTIL(!mu_server_engine_expects_peers(s->server));
    UNTIL(alone);
}

/* ---- Pauses ---- */

static void sleep_ms(long ms)
{
    (void)nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 }, NULL);
}

static void wait_for_socket(void *ctx, int fd, short events, int timeout_ms)
{
    struct pollfd one = { .fd = fd, .events = events };

    (void)ctx;
    (void)poll(&one, 1, timeout_ms);
}

/* A process of its own that serves, and can be stopped. */
static pid_t start_server(struct scene *s, union mu_addr *ret_addr)
{
    socklen_t len = sizeof *ret_addr;
    int fd = bound_socket();
    pid_t pid;

    assert_int_equal(getsockname(fd, &ret_addr->any, &len), 0);
    assert_int_equal(listen(fd, 16), 0); /* so that nobody can come too early */
    pid = fork();
    if (pid == 0) {
        struct mu_server_config config = { .legacy = MU_DIALECT_L };
        struct mu_server *server;
        uv_loop_t loop;

        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (mu_limits_settle(&config.limits, NULL) == 0 && uv_loop_init(&loop) == 0 &&
            mu_server_start(&loop, fd, &config, &server, NULL) == 0) {
            mu_server_offer_engine(server, &offer);
            (void)uv_run(&loop, UV_RUN_DEFAULT);
        }
        _exit(1);
    }
    assert_true(pid > 0);
    (void)close(fd);
    peers_take_turns(wait_for_socket, s);
    return pid;
}

static struct peer *greet_at(const union mu_addr *addr)
{
    struct peer *peer = peer_new(addr, V);

    peer_connect(peer, addr);
    say(peer, "VALIDATE CE F7 85 3C");
    ask(peer, "CHECK #1 (muster/engine/1)", "00");
    tell(peer, hello);
    assert_int_equal(told(peer).type, MU_FRAME_WELCOME);
    return peer;
}

/* Stopped for 3 s and for 30 s, where a lease has its usual 5 s; here everything takes a fifth of that time. The node
 * was silent before, too, and nothing is heard from it meanwhile, as if the network had lost it. */
static void a_server_that_was_stopped_judges_nobody(void **state)
{
    static const long stopped_ms[] = { 600, 6000 };
    struct scene *s = *state;
    union mu_addr addr;
    pid_t server = start_server(s, &addr);
    struct peer *node = greet_at(&addr), *other = greet_at(&addr);

    tell(other, load);
    assert_int_equal(told(other).type, MU_FRAME_KVS);
    tell(node, grant(7, 1000));
    assert_done(node, MU_ENGINE_OK);
    put(node, "n/1", 7);
    assert_change(other, "n/1", false, MU_ENGINE_DELETED);
    for (size_t i = 0; i < 2; i++) {
        sleep_ms(300);
        assert_int_equal(kill(server, SIGSTOP), 0);
        sleep_ms(stopped_ms[i]);
        assert_int_equal(kill(server, SIGCONT), 0);
        for (unsigned turns = 0; turns < 5; turns++) {
            sleep_ms(200);
            tell(node, (struct mu_frame){ .type = MU_FRAME_KEEP, .id = 4, .lease = 7 });
            assert_done(node, MU_ENGINE_OK);
        }
    }
    assert_true(peer_hears_nothing(other));
    assert_change(other, "n/1", true, MU_ENGINE_SILENT); /* and now it is the node's own silence */
    (void)kill(server, SIGKILL);
    assert_int_equal(waitpid(server, NULL, 0), server);
    peers_take_turns(scene_turn, s);
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

/* With 1 MiB unsent, beside what the system takes for it. Its lease keeps its whole time. */
static void a_peer_that_never_reads_is_cut(void **state)
{
    static char value[MU_ENGINE_VALUE_MAX / 4];
    struct scene *s = *state;
    struct peer *deaf = watcher_of(s), *node = greet(s), *other;
    struct mu_engine_op op = { MU_ENGINE_PUT, mu_slice_str("n/1"), mu_slice(value, sizeof value), 0 };
    uint64_t since_ms;

    tell(deaf, grant(7, 3000));
    assert_done(deaf, MU_ENGINE_OK);
    put(deaf, "m/1", 7);
    for (unsigned i = 0; i < 64 && stats(s).connections == 2; i++) {
        tell(node, (struct mu_frame){ .type = MU_FRAME_TXN, .id = 9, .txn = { .then = &op, .then_count = 1 } });
        assert_done(node, MU_ENGINE_OK);
        assert_true(s->server->era->service.transit.used < 4u << 20);
    }
    UNTIL(stats(s).connections == 1);
    assert_int_equal(lines_with("it does not read its replies"), 1);
    since_ms = uv_now(&s->loop);
    other = greet(s);
    tell(other, (struct mu_frame){ .type = MU_FRAME_LOAD, .id = 2, .watch = 1, .key = mu_slice_str("m/") });
    assert_int_equal(told(other).kvs_count, 1);
    assert_change(other, "m/1", true, MU_ENGINE_SILENT);
    assert_true(uv_now(&s->loop) - since_ms > 2000);
}

static void a_flood_of_requests_costs_its_sender_alone(void **state)
{
    struct scene *s = *state;
    struct peer *flood = greet(s), *node = greet(s);
    struct mu_buf many = { 0 };

    for (unsigned i = 0; i < 2000; i++)
        assert_int_equal(mu_frame_write(&(struct mu_frame){ .type = MU_FRAME_KEEP, .id = 4 }, &many, SIZE_MAX / 2), 0);
    for (unsigned i = 0; i < 10000 && stats(s).connections == 2; i++) {
        (void)peer_try_send(flood, mu_buf_slice(&many)); /* it reads none of the answers */
        tell(node, (struct mu_frame){ .type = MU_FRAME_KEEP, .id = 4 });
        assert_done(node, MU_ENGINE_OK);
        assert_true(s->server->era->service.transit.used < 4u << 20);
    }
    assert_int_equal(stats(s).connections, 1);
    assert_int_equal(lines_with("it does not read its replies"), 1);
    mu_buf_done(&many);
}

/* Each asks for one key of many. */
static void a_flood_of_looks_costs_its_sender_alone(void **state)
{
    enum { AT_ONCE = 2048, KEYS = 32 * AT_ONCE };
    static char names[AT_ONCE][16];
    static struct mu_engine_op ops[AT_ONCE];
    struct scene *s = *state;
    struct peer *flood = greet(s), *node = greet(s);
    const struct mu_frame look = {
        .type = MU_FRAME_RANGE, .id = 5, .prefix = true, .limit = 1, .key = mu_slice_str("n/")
    };
    struct mu_buf many = { 0 };
    uint64_t since_ms;

    for (unsigned done = 0; done < KEYS; done += AT_ONCE) {
        for (unsigned i = 0; i < AT_ONCE; i++) {
            (void)snprintf(names[i], sizeof names[i], "n/%06u", done + i);
            ops[i] = (struct mu_engine_op){ MU_ENGINE_PUT, mu_slice_str(names[i]), mu_slice_str(""), 0 };
        }
        tell(node, (struct mu_frame){ .type = MU_FRAME_TXN, .id = 9, .txn = { .then = ops, .then_count = AT_ONCE } });
        assert_done(node, MU_ENGINE_OK);
    }
    for (unsigned i = 0; i < 2000; i++)
        assert_int_equal(mu_frame_write(&look, &many, SIZE_MAX / 2), 0);
    since_ms = uv_now(&s->loop);
    peer_send(flood, mu_buf_slice(&many));
    assert_int_equal(told(flood).kvs_count, 1);
    tell(node, (struct mu_frame){ .type = MU_FRAME_KEEP, .id = 4 });
    assert_done(node, MU_ENGINE_OK);
    uv_update_time(&s->loop);
    assert_true(uv_now(&s->loop) - since_ms < 200); /* to walk over all keys each time takes 500, on a fast machine */
    mu_buf_done(&many);
}

static void keys_that_nobody_reads_are_not_copied(void **state)
{
    static char value[MU_ENGINE_VALUE_MAX / 2];
    struct scene *s = *state;
    struct peer *deaf = greet(s), *node = greet(s);
    size_t count = 0;

    for (unsigned i = 0; i < 24; i++) {
        char name[8];
        struct mu_engine_op op = { MU_ENGINE_PUT, { name, 0 }, mu_slice(value, sizeof value), 0 };

        op.key.len = (size_t)snprintf(name, sizeof name, "n/%02u", i);
        tell(node, (struct mu_frame){ .type = MU_FRAME_TXN, .id = 9, .txn = { .then = &op, .then_count = 1 } });
        assert_done(node, MU_ENGINE_OK);
    }
    for (unsigned i = 0; i < 4; i++)
        tell(deaf, (struct mu_frame){ .type = MU_FRAME_RANGE, .id = 5, .prefix = true, .key = mu_slice_str("n/") });
    tell(deaf, (struct mu_frame){ .type = MU_FRAME_KEEP, .id = 6 });
    put(node, "m", 0); /* and others are served meanwhile */
    assert_true(s->server->era->service.transit.used < 4u << 20);
    for (unsigned answers = 0; answers < 4; answers++) { /* now it reads, and all of it is there */
        bool more = true;

        for (count = 0; more;) {
            struct mu_frame frame = told(deaf);

            assert_int_equal(frame.type, MU_FRAME_KVS);
            count += frame.kvs_count;
            more = frame.more;
        }
        assert_int_equal(count, 24);
    }
    assert_done(deaf, MU_ENGINE_OK);
}

static void a_newcomer_takes_the_place_of_one_without_a_hello(void **state)
{
    struct scene *s = *state;
    struct peer *mute = meet(s, V), *nodes[10];
    size_t reserved = mu_files_connections_max() - COUNT(nodes);

    ask(mute, "CHECK #1 (muster/engine/1)", "00");
    mu_files_reserve(reserved);
    for (size_t i = 0; i < COUNT(nodes); i++) {
        assert_true(i == 0 || peer_hears_nothing(mute));
        nodes[i] = greet(s);
    }
    hear_end(mute);
    for (size_t i = 0; i < COUNT(nodes); i++) {
        tell(nodes[i], (struct mu_frame){ .type = MU_FRAME_KEEP, .id = 4 });
        assert_done(nodes[i], MU_ENGINE_OK);
    }
    mu_files_release(reserved);
}

static void a_full_store_refuses_and_loses_nothing(void **state)
{
    static char value[200000];
    struct scene *s = *state;
    struct peer *node;
    struct mu_engine_op op = { MU_ENGINE_PUT, mu_slice_str("n/2"), mu_slice(value, sizeof value), 0 };

    serve(s, (struct muster_store_limits){ .value_bytes = 10000, .total_bytes = 100000 }, MU_DIALECT_L);
    mu_server_offer_engine(s->server, &offer);
    (void)greet(s); /* somebody stays, and the job with it */
    node = greet(s);
    put(node, "n/1", 0);
    tell(node, (struct mu_frame){ .type = MU_FRAME_TXN, .id = 9, .txn = { .then = &op, .then_count = 1 } });
    hear_end(node); /* not even half of it is taken */
    node = greet(s);
    op.value.len = 15000;
    for (unsigned i = 0; i < 2; i++) {
        op.key = mu_slice_str(i == 0 ? "n/3" : "n/4");
        tell(node, (struct mu_frame){ .type = MU_FRAME_TXN, .id = 9, .txn = { .then = &op, .then_count = 1 } });
        assert_done(node, MU_ENGINE_OK);
    }
    op.key = mu_slice_str("n/5");
    op.value.len = 21000; /* half of the store is the engine's */
    tell(node, (struct mu_frame){ .type = MU_FRAME_TXN, .id = 9, .txn = { .then = &op, .then_count = 1 } });
    assert_done(node, MU_ENGINE_EXHAUSTED);
    tell(node, (struct mu_frame){ .type = MU_FRAME_RANGE, .id = 5, .prefix = true, .key = mu_slice_str("n/") });
    assert_int_equal(told(node).kvs_count, 3);
}

static void a_job_goes_on_when_the_stores_keys_take_all_they_can(void **state)
{
    static char value[20000];
    struct scene *s = *state;
    struct mu_engine_op op = { MU_ENGINE_PUT, mu_slice_str("n/1"), mu_slice(value, sizeof value), 0 };
    struct peer *node, *late;
    struct mu_buf set = { 0 };
    char text[16];

    serve(s, (struct muster_store_limits){ .value_bytes = 20000, .total_bytes = 200000 }, MU_DIALECT_L);
    mu_server_offer_engine(s->server, &offer);
    node = greet(s);
    for (unsigned i = 0; stats(s).refused == 0; i++) { /* from a connection each: one may have a quarter at most */
        struct peer *stock = meet(s, V);

        assert_true(i < 100);
        set.len = 0;
        (void)snprintf(text, sizeof text, "SET (%u)", i);
        wire_put(&set, V, text);
        wire_put_str(&set, 'x', 5000);
        peer_send(stock, mu_buf_slice(&set));
        UNTIL(stats(s).keys == i + 1 || stats(s).refused > 0);
        peer_close(stock);
    }
    mu_buf_done(&set);
    assert_int_equal(lines_with("bytes are in use"), 1);
    tell(node, grant(7, 5000));
    assert_done(node, MU_ENGINE_OK);
    tell(node, (struct mu_frame){ .type = MU_FRAME_TXN, .id = 9, .txn = { .then = &op, .then_count = 1 } });
    assert_done(node, MU_ENGINE_OK);
    late = greet(s);
    put(late, "n/2", 0);
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

#define GUARDED(test) cmocka_unit_test_setup_teardown(test, start_with_token, end_scene)
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
        OFFERED(who_asks_for_the_document_of_a_job_in_the_engine_waits_for_it),
        OFFERED(who_asks_for_the_document_of_a_job_that_is_over_goes_on),
        OFFERED(a_job_that_takes_nobody_else_refuses_and_tells_of_them_once),
        OFFERED(a_job_with_a_document_does_not_meet_in_the_engine),
        GUARDED(who_proves_the_token_is_welcome),
        GUARDED(who_has_another_token_is_told_and_cut_off),
        GUARDED(a_proof_that_somebody_has_overheard_is_worth_nothing),
        GUARDED(documents_are_refused_and_told_of_once),
        OFFERED(a_peer_that_hangs_up_has_a_moment_to_come_back),
        OFFERED(silence_ends_a_lease),
        OFFERED(a_will_from_a_stranger_ends_a_lease),
        OFFERED(a_taken_lease_cuts_the_old_connection),
        OFFERED(a_server_is_not_alone_while_a_node_may_come_back),
        OFFERED(a_server_that_was_stopped_judges_nobody),
        OFFERED(what_is_no_frame_ends_that_connection_and_says_whose),
        OFFERED(a_peer_that_never_reads_is_cut),
        OFFERED(a_flood_of_requests_costs_its_sender_alone),
        OFFERED(a_flood_of_looks_costs_its_sender_alone),
        OFFERED(keys_that_nobody_reads_are_not_copied),
        OFFERED(a_newcomer_takes_the_place_of_one_without_a_hello),
        OFFERED(a_full_store_refuses_and_loses_nothing),
        OFFERED(a_job_goes_on_when_the_stores_keys_take_all_they_can),
        OFFERED(a_server_closes_with_everybody_connected),
        OFFERED(many_nodes_hear_of_one_change),
    };

    return cmocka_run_group_tests(tests, NULL, forget_last_frame);
}
