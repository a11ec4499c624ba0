/* The client of an engine on a real loop and real sockets, with a store server in the same thread. */
#include "kv/engine_store_uv.h"
#include "serving_uv.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>

enum { CLIENTS = 3, LEASE_MS = 3000 };

static const struct mu_server_offer offer = { .node = "" };

struct client {
    struct mu_engine_client *engine;
    char heard[4096]; /* "<event> <id> <keys>; ..." */
    struct mu_fold_event last;
    char error[1024]; /* of the last event that had one */
    int64_t lease;
    bool calling, closes_when_heard, closed;
    struct client *closes_other; /* when it hears of a change */
};

static struct client clients[CLIENTS];

static void on_closed(void *ctx)
{
    ((struct client *)ctx)->closed = true;
}

static void close_client(struct client *c)
{
    c->engine->ops->close(c->engine, on_closed, c);
    c->engine = NULL;
}

static void on_heard(void *ctx, const struct mu_fold_event *event)
{
    struct client *c = ctx;
    size_t used = strlen(c->heard);

    assert_false(c->calling);
    assert_non_null(c->engine);
    if (event->type == MU_FOLD_ON_MET && !event->another)
        return;
    c->last = *event;
    if (event->type == MU_FOLD_ON_LEASED)
        c->lease = event->lease;
    if (c->closes_other != NULL && c->closes_other->engine != NULL && event->type == MU_FOLD_ON_CHANGED)
        close_client(c->closes_other);
    if (c->closes_when_heard)
        close_client(c); /* what was heard is there yet */
    (void)snprintf(c->heard + used, sizeof c->heard - used, "%s%s %" PRIu64, used > 0 ? "; " : "",
                   mu_fold_event_text(event->type), event->id);
    if (event->error != NULL)
        (void)snprintf(c->error, sizeof c->error, "%s", event->error->text);
    for (size_t i = 0; i < event->count; i++) {
        used = strlen(c->heard);
        (void)snprintf(c->heard + used, sizeof c->heard - used, " %s%.*s", event->kvs[i].deleted ? "-" : "",
                       (int)event->kvs[i].key.len, event->kvs[i].key.data);
    }
}

static void start_at(struct scene *s, struct client *c, const char *endpoint, const char *run_id)
{
    struct mu_engine_store_config config = { .endpoint = endpoint,
                                             .run_id = run_id,
                                             .node = "n",
                                             .lease_ms = LEASE_MS,
                                             .job_lease_ms = 9000,
                                             .seed = 7 + (uint64_t)(c - clients),
                                             .will_secret = "0123456789abcde" };

    *c = (struct client){ .closed = false };
    assert_int_equal(mu_engine_store_start(&s->loop, &config, on_heard, c, &c->engine, NULL), 0);
}

static struct client *start_client(struct scene *s, unsigned index)
{
    char endpoint[MU_ADDR_TEXT_MAX];

    start_at(s, &clients[index], mu_addr_format(mu_server_address(s->server), endpoint), "job");
    return &clients[index];
}

static int begin(void **state)
{
    int rc = start_scene(state);

    memset(clients, 0, sizeof clients);
    mu_server_offer_engine(((struct scene *)*state)->server, &offer);
    return rc;
}

static int end(void **state)
{
    for (unsigned i = 0; i < CLIENTS; i++) {
        bool was_started = clients[i].engine != NULL || clients[i].heard[0] != '\0';

        if (clients[i].engine != NULL)
            close_client(&clients[i]);
        if (was_started)
            UNTIL(clients[i].closed);
    }
    return end_scene(state);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, begin, end)

static void make(struct client *c, struct mu_fold_effect effect)
{
    c->calling = true;
    c->engine->ops->request(c->engine, &effect, UINT64_MAX);
    c->calling = false;
}

#define MAKE(c, ...) make(c, (struct mu_fold_effect){ __VA_ARGS__ })

static void put_key(struct client *c, uint64_t id, const char *key)
{
    struct mu_fold_op op = { MU_FOLD_PUT, mu_slice_str(key), mu_slice_str("v"), c->lease };
    struct mu_fold_write write = { .ops = &op, .ops_count = 1 };

    MAKE(c, .type = MU_FOLD_DO_WRITE, .id = id, .write = &write);
}

#define HEARS(c, text)                                                                                                 \
    do {                                                                                                               \
        UNTIL(strcmp((c)->heard, text) == 0 || strlen((c)->heard) > strlen(text));                                     \
        assert_string_equal((c)->heard, text);                                                                         \
        (c)->heard[0] = '\0';                                                                                          \
    } while (0)

/* Its lease is taken, and it watches nodes/. */
static struct client *settle_in(struct scene *s, unsigned index)
{
    struct client *c = start_client(s, index);

    MAKE(c, .type = MU_FOLD_DO_LOAD, .id = 1, .scope = MU_FOLD_NODES);
    MAKE(c, .type = MU_FOLD_DO_TAKE_LEASE, .id = 2);
    UNTIL(strstr(c->heard, "leased 2") != NULL && strstr(c->heard, "loaded 1") != NULL);
    c->heard[0] = '\0';
    return c;
}

static struct mu_conn *only_conn(struct scene *s)
{
    return MU_LIST_FIRST(struct mu_conn, &s->server->conns, link);
}

/* ---- What works ---- */

static void it_loads_watches_writes_and_ends_its_lease(void **state)
{
    struct scene *s = *state;
    struct client *a = settle_in(s, 0), *b = settle_in(s, 1);
    char address[64];

    put_key(a, 3, "nodes/1/2");
    HEARS(b, "changed 0 nodes/1/2");
    UNTIL(strstr(a->heard, "wrote 3") != NULL);
    assert_true(a->engine->ops->local_address(a->engine, address, sizeof address));
    assert_string_equal(address, "127.0.0.1");
    a->heard[0] = '\0';
    MAKE(b, .type = MU_FOLD_DO_GRANT_JOB, .id = 4);
    HEARS(b, "granted 4");
    MAKE(b, .type = MU_FOLD_DO_KEEP_JOB, .id = 5, .lease = b->last.lease);
    HEARS(b, "kept 5");
    assert_true(b->last.held);
    MAKE(b, .type = MU_FOLD_DO_KEEP_JOB, .id = 6, .lease = 4711);
    HEARS(b, "kept 6");
    assert_false(b->last.held);
    MAKE(b, .type = MU_FOLD_DO_RANGE, .id = 7, .key = mu_slice_str("nodes/1/2"));
    HEARS(b, "ranged 7 nodes/1/2");
    MAKE(b, .type = MU_FOLD_DO_LOOK_AROUND, .id = 8);
    HEARS(b, "crowd 8 nodes/1/2");
    MAKE(a, .type = MU_FOLD_DO_DROP_LEASE, .id = 9, .lease_take = 2);
    UNTIL(strstr(a->heard, "dropped 9") != NULL);
    HEARS(b, "changed 0 -nodes/1/2");
    MAKE(b, .type = MU_FOLD_DO_UNWATCH, .scope = MU_FOLD_NODES);
}

static void other_nodes_see_at_once_that_it_was_closed(void **state)
{
    struct scene *s = *state;
    struct client *a = settle_in(s, 0), *b = settle_in(s, 1);
    uint64_t since_ms;

    put_key(a, 3, "nodes/1/2");
    HEARS(b, "changed 0 nodes/1/2");
    since_ms = uv_now(&s->loop);
    close_client(a);
    HEARS(b, "changed 0 -nodes/1/2");
    assert_true(uv_now(&s->loop) - since_ms < 1000); /* it revokes; else that would take 1.5 s */
    UNTIL(a->closed);
}

static void it_may_be_closed_from_inside_of_an_event(void **state)
{
    struct scene *s = *state;
    struct client *a = start_client(s, 0);

    a->closes_when_heard = true;
    MAKE(a, .type = MU_FOLD_DO_TAKE_LEASE, .id = 2);
    MAKE(a, .type = MU_FOLD_DO_LOAD, .id = 1, .scope = MU_FOLD_NODES);
    UNTIL(a->closed);
    assert_string_equal(a->heard, "leased 2");
    UNTIL(stats(s).connections == 0);
}

/* What it would have heard has come already, and is read in the same turn of the loop. */
static void it_may_be_closed_while_something_comes(void **state)
{
    struct scene *s = *state;
    struct client *a = settle_in(s, 0), *b = settle_in(s, 1), *c = settle_in(s, 2);

    MAKE(a, .type = MU_FOLD_DO_DROP_LEASE, .id = 9, .lease_take = 2);
    MAKE(b, .type = MU_FOLD_DO_DROP_LEASE, .id = 9, .lease_take = 2);
    UNTIL(strstr(a->heard, "dropped 9") != NULL && strstr(b->heard, "dropped 9") != NULL);
    a->closes_other = b;
    b->closes_other = a;
    put_key(c, 3, "nodes/1/2");
    UNTIL(a->closed || b->closed);
    assert_true(a->engine != NULL || b->engine != NULL);
    UNTIL(stats(s).connections == 2);
}

static void it_may_be_closed_before_it_is_used(void **state)
{
    struct client *a = start_client(*state, 0);

    close_client(a);
    UNTIL(a->closed);
}

/* Bytes of several frames and reads: more than one page, and more than a socket takes at once. */
static void much_is_loaded(void **state)
{
    static char value[200 * 1024];
    struct scene *s = *state;
    struct client *a = settle_in(s, 0), *b;
    char key[32];

    for (unsigned i = 0; i < 20; i++) {
        struct mu_fold_op op = { MU_FOLD_PUT, { 0 }, mu_slice(value, sizeof value), a->lease };
        struct mu_fold_write write = { .ops = &op, .ops_count = 1 };

        (void)snprintf(key, sizeof key, "nodes/%02u/2", i);
        op.key = mu_slice_str(key);
        MAKE(a, .type = MU_FOLD_DO_WRITE, .id = 10 + i, .write = &write);
    }
    UNTIL(strstr(a->heard, "wrote 29") != NULL);
    b = start_client(s, 1);
    MAKE(b, .type = MU_FOLD_DO_LOAD, .id = 1, .scope = MU_FOLD_NODES);
    UNTIL(b->heard[0] != '\0');
    assert_int_equal(b->last.type, MU_FOLD_ON_LOADED);
    assert_int_equal(b->last.count, 20);
}

static void the_will_of_another_process_ends_its_lease(void **state)
{
    struct scene *s = *state;
    struct client *a = settle_in(s, 0), *b = settle_in(s, 1);
    const struct mu_fold_op mark = { MU_FOLD_PUT, mu_slice_str("nodes/1/killed"), mu_slice_str("{}"), 0 };
    struct peer *keeper;
    union mu_addr addr;
    char bytes[MU_ENGINE_STORE_WILL_MAX];
    size_t len;

    put_key(a, 3, "nodes/1/2");
    HEARS(b, "changed 0 nodes/1/2");
    assert_true(mu_engine_store_will(mu_engine_store_of(a->engine), &mark, &addr, bytes, &len));
    keeper = peer_new(&addr, V);
    peer_connect(keeper, &addr);
    peer_send(keeper, mu_slice(bytes, len));
    HEARS(b, "changed 0 nodes/1/killed -nodes/1/2");
    UNTIL(strstr(a->heard, "lease lost 2") != NULL); /* with its next KEEP */
}

/* ---- What goes wrong ---- */

static void a_connection_that_is_cut_is_made_again(void **state)
{
    struct scene *s = *state;
    struct client *a = settle_in(s, 0);

    for (uint64_t i = 0; i < 3; i++) {
        put_key(a, 10 + i, "nodes/1/2"); /* is sent, and perhaps carried out, before it is cut */
        if (i > 0)
            (void)uv_run(&s->loop, UV_RUN_NOWAIT);
        mu_conn_doom(only_conn(s));
        mu_server_close_doomed(s->server);
        UNTIL(strstr(a->heard, "stale 0") != NULL && strstr(a->heard, "wrote") != NULL);
        assert_null(strstr(a->heard, "failed"));
        assert_null(strstr(a->heard, "lost"));
        a->heard[0] = '\0';
        MAKE(a, .type = MU_FOLD_DO_LOAD, .id = 20 + i, .scope = MU_FOLD_NODES);
        UNTIL(strstr(a->heard, "loaded") != NULL);
        a->heard[0] = '\0';
    }
}

static void a_server_that_is_gone_is_trouble_and_its_successor_has_no_lease(void **state)
{
    struct scene *s = *state;
    struct client *a = settle_in(s, 0);
    union mu_addr at = *mu_server_address(s->server);
    struct mu_server_config config = { .legacy = MU_DIALECT_L, .seed = { 1, 2 } };
    char text[MU_ADDR_TEXT_MAX], why[256];
    int fd = -1;

    stop_serving(s);
    HEARS(a, "stale 0; trouble 0");
    assert_true(a->last.gone);
    (void)snprintf(why, sizeof why, "cannot connect to %s", mu_addr_format(&at, text));
    assert_non_null(strstr(a->error, why));
    assert_int_equal(mu_listen_open("127.0.0.1", mu_addr_port(&at), &fd, NULL), 0);
    assert_int_equal(mu_limits_settle(&config.limits, NULL), 0);
    assert_int_equal(mu_server_start(&s->loop, fd, &config, &s->server, NULL), 0);
    mu_server_offer_engine(s->server, &offer);
    HEARS(a, "met 0; lease lost 2; trouble 0");
    assert_non_null(strstr(a->error, "has been started anew"));
    MAKE(a, .type = MU_FOLD_DO_TAKE_LEASE, .id = 9);
    HEARS(a, "leased 9");
}

static void a_store_without_an_engine_is_refused_by_name(void **state)
{
    struct scene *s = *state;
    struct client *a;
    char text[MU_ADDR_TEXT_MAX], why[256];

    serve(s, (struct muster_store_limits){ 0 }, MU_DIALECT_L); /* and offers none */
    a = start_client(s, 0);
    MAKE(a, .type = MU_FOLD_DO_TAKE_LEASE, .id = 2);
    MAKE(a, .type = MU_FOLD_DO_LOAD, .id = 1, .scope = MU_FOLD_NODES);
    HEARS(a, "lease lost 2; request failed 1");
    assert_true(a->last.final);
    (void)snprintf(why, sizeof why, "the store at %s has no engine: it is PyTorch's, or of an older muster",
                   mu_addr_format(mu_server_address(s->server), text));
    assert_string_equal(a->error, why);
    UNTIL(stats(s).connections == 0);
}

static void a_hello_that_is_refused_is_final(void **state)
{
    struct scene *s = *state;
    struct client *a = &clients[0];
    char endpoint[MU_ADDR_TEXT_MAX];

    start_at(s, a, mu_addr_format(mu_server_address(s->server), endpoint), ""); /* no job has this name */
    MAKE(a, .type = MU_FOLD_DO_LOAD, .id = 1, .scope = MU_FOLD_NODES);
    HEARS(a, "request failed 1");
    assert_true(a->last.final);
    assert_non_null(strstr(a->error, "refuses this node"));
}

static void a_peer_that_is_no_store_is_told(void **state)
{
    struct scene *s = *state;
    struct client *a = &clients[0];
    char endpoint[MU_ADDR_TEXT_MAX];
    union mu_addr addr;
    socklen_t len = sizeof addr;
    int fd = bound_socket(), peer = -1;

    assert_int_equal(listen(fd, 4), 0);
    assert_int_equal(getsockname(fd, &addr.any, &len), 0);
    start_at(s, a, mu_addr_format(&addr, endpoint), "job");
    MAKE(a, .type = MU_FOLD_DO_LOAD, .id = 1, .scope = MU_FOLD_NODES);
    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
    UNTIL((peer = accept(fd, NULL, NULL)) >= 0);
    assert_int_equal(write(peer, "SSH-2.0", 7), 7);
    UNTIL(a->heard[0] != '\0');
    assert_non_null(strstr(a->error, "sent: the byte 83 in answer to CHECK"));
    (void)close(peer);
    (void)close(fd);
}

static void a_name_that_is_none_fails_and_may_be_left_early(void **state)
{
    struct scene *s = *state;
    struct client *a = &clients[0];

    start_at(s, a, "no-such-host.invalid:29400", "job");
    MAKE(a, .type = MU_FOLD_DO_LOAD, .id = 1, .scope = MU_FOLD_NODES);
    HEARS(a, "trouble 0");
    assert_non_null(strstr(a->error, "no-such-host.invalid:29400"));
    close_client(a);
    UNTIL(a->closed);
    start_at(s, a, "no-such-host.invalid:29400", "job");
    MAKE(a, .type = MU_FOLD_DO_LOAD, .id = 1, .scope = MU_FOLD_NODES);
    (void)uv_run(&s->loop, UV_RUN_NOWAIT);
    close_client(a); /* while it is being looked up */
    UNTIL(a->closed);
    assert_string_equal(a->heard, "");
}

static void what_is_no_endpoint_is_refused(void **state)
{
    struct scene *s = *state;
    struct mu_engine_store_config config = {
        .endpoint = "host:99999", .run_id = "j", .lease_ms = 1, .job_lease_ms = 1
    };
    struct mu_engine_client *client;
    struct muster_error error;

    assert_int_equal(mu_engine_store_start(&s->loop, &config, on_heard, NULL, &client, &error), MUSTER_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(it_loads_watches_writes_and_ends_its_lease),
        TEST(other_nodes_see_at_once_that_it_was_closed),
        TEST(it_may_be_closed_from_inside_of_an_event),
        TEST(it_may_be_closed_while_something_comes),
        TEST(it_may_be_closed_before_it_is_used),
        TEST(much_is_loaded),
        TEST(the_will_of_another_process_ends_its_lease),
        TEST(a_connection_that_is_cut_is_made_again),
        TEST(a_server_that_is_gone_is_trouble_and_its_successor_has_no_lease),
        TEST(a_store_without_an_engine_is_refused_by_name),
        TEST(a_hello_that_is_refused_is_final),
        TEST(a_peer_that_is_no_store_is_told),
        TEST(a_name_that_is_none_fails_and_may_be_left_early),
        TEST(what_is_no_endpoint_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
