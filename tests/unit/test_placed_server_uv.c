/* A store server on its owner's loop, and one on a thread of its own: both do the same. */

#include "failmalloc.h"
#include "pure.h"
#include "store/client_uv.h"
#include "store/placed_server_uv.h"

#include <signal.h>

enum { CLIENTS = 3, PATIENCE_MS = 20000 };

struct scene {
    uv_loop_t loop;
    struct mu_placed_server *server;
    struct mu_client *clients[CLIENTS];
    struct mu_call call;
    bool called;
    unsigned ready, closed, renewed, alone, clients_closed;
    uint64_t renewed_id;
};

/* What is waited for stops the loop, which would sleep otherwise. */
#define RUN_UNTIL(s, condition)                                                                                        \
    do {                                                                                                               \
        while (!(condition))                                                                                           \
            (void)uv_run(&(s)->loop, UV_RUN_ONCE);                                                                     \
    } while (0)

static void on_closed(void *ctx)
{
    ((struct scene *)ctx)->closed++;
}

static void on_alone(void *ctx)
{
    struct scene *s = ctx;

    s->alone++;
    uv_stop(&s->loop);
}

static void on_renewed(void *ctx, uint64_t id, const struct muster_error *error)
{
    struct scene *s = ctx;

    assert_null(error);
    s->renewed++;
    s->renewed_id = id;
    uv_stop(&s->loop);
}

static void on_ready(struct mu_client *client, const struct muster_error *error, void *ctx)
{
    struct scene *s = ctx;

    (void)client;
    assert_null(error);
    s->ready++;
    uv_stop(&s->loop);
}

static void on_client_closed(struct mu_client *client, void *ctx)
{
    struct scene *s = ctx;

    (void)client;
    s->clients_closed++;
    uv_stop(&s->loop);
}

static void on_called(struct mu_call *call)
{
    struct scene *s = call->ctx;

    assert_int_equal(call->rc, 0);
    s->called = true;
    uv_stop(&s->loop);
}

static void begin(struct scene *s, bool apart)
{
    const struct muster_store_server_config config = { .size = sizeof config, .host = "127.0.0.1" };

    memset(s, 0, sizeof *s);
    (void)signal(SIGPIPE, SIG_IGN);
    assert_int_equal(uv_loop_init(&s->loop), 0);
    assert_int_equal(mu_placed_server_start(&s->loop, &config, apart, &s->server, NULL), 0);
}

static void join(struct scene *s, size_t index, const char *host)
{
    const struct mu_client_config config = { .host = host,
                                             .port = mu_addr_port(mu_placed_server_address(s->server)),
                                             .connect_timeout_ms = PATIENCE_MS,
                                             .seed = 1 };
    unsigned ready = s->ready;

    assert_int_equal(mu_client_start(&s->loop, &config, on_ready, NULL, s, &s->clients[index], NULL), 0);
    RUN_UNTIL(s, s->ready > ready);
}

static void leave(struct scene *s, size_t index)
{
    unsigned closed = s->clients_closed;

    mu_client_close(s->clients[index], on_client_closed, s);
    RUN_UNTIL(s, s->clients_closed > closed);
}

/* ADDs 1 to a counter. */
static int64_t count(struct scene *s, size_t index)
{
    s->call = (struct mu_call){ .kind = MU_CALL_ADD, .key = muster_str("n"), .number = 1, .done = on_called, .ctx = s };
    s->called = false;
    mu_client_call(s->clients[index], &s->call, PATIENCE_MS);
    RUN_UNTIL(s, s->called);
    return s->call.result;
}

static void end(struct scene *s)
{
    mu_placed_server_close(s->server, on_closed, s);
    assert_int_equal(s->closed, 0); /* never from inside */
    while (uv_run(&s->loop, UV_RUN_DEFAULT) != 0)
        continue;
    assert_int_equal(s->closed, 1);
    assert_int_equal(uv_loop_close(&s->loop), 0);
}

static void it_serves(bool apart)
{
    struct scene s;

    begin(&s, apart);
    join(&s, 0, "127.0.0.1");
    join(&s, 1, "127.0.0.1");
    assert_int_equal(count(&s, 0), 1);
    assert_int_equal(count(&s, 1), 2);
    leave(&s, 0);
    leave(&s, 1);
    end(&s);
}

static void who_comes_after_it_was_renewed_finds_nothing(bool apart)
{
    struct scene s;

    begin(&s, apart);
    join(&s, 0, "127.0.0.1");
    assert_int_equal(count(&s, 0), 1);
    mu_placed_server_renew(s.server, 7, on_renewed, &s);
    mu_placed_server_renew(s.server, 8, on_renewed, &s);
    RUN_UNTIL(&s, s.renewed == 2);
    assert_int_equal(s.renewed_id, 8);
    join(&s, 1, "127.0.0.1");
    assert_int_equal(count(&s, 1), 1);
    assert_int_equal(count(&s, 0), 2);
    leave(&s, 0);
    leave(&s, 1);
    end(&s);
}

static void it_listens_at_one_more_address(bool apart)
{
    struct sockaddr_in addr = { .sin_family = AF_INET };
    union mu_addr other = { .any = { 0 } };
    struct scene s;

    addr.sin_addr.s_addr = htonl(0x7f080808);
    memcpy(&other, &addr, sizeof addr);
    begin(&s, apart);
    for (unsigned i = 0; i < 2; i++) /* it listens there already */
        assert_int_equal(mu_placed_server_listen_also(s.server, &other, NULL), 0);
    join(&s, 0, "127.8.8.8");
    assert_int_equal(count(&s, 0), 1);
    leave(&s, 0);
    end(&s);
}

/* All connections of this process count as its own. */
static void it_is_alone_without_others(bool apart)
{
    struct scene s;

    begin(&s, apart);
    join(&s, 0, "127.0.0.1");
    assert_true(mu_placed_server_is_alone(s.server));
    mu_placed_server_when_alone(s.server, on_alone, &s);
    RUN_UNTIL(&s, s.alone > 0);
    leave(&s, 0);
    end(&s);
    assert_int_equal(s.alone, 1);
}

/* What was asked before is not told any more. */
static void it_may_be_closed_with_everything_under_way(bool apart)
{
    struct scene s;

    begin(&s, apart);
    join(&s, 0, "127.0.0.1");
    if (apart)
        mu_placed_server_renew(s.server, 7, on_renewed, &s);
    mu_placed_server_when_alone(s.server, on_alone, &s);
    mu_client_close(s.clients[0], NULL, NULL);
    end(&s);
    assert_int_equal(s.renewed + s.alone, 0);
}

static void a_taken_port_is_an_error(bool apart)
{
    struct muster_store_server_config config = { .size = sizeof config, .host = "127.0.0.1" };
    struct mu_placed_server *other = NULL;
    struct muster_error error;
    struct scene s;

    begin(&s, apart);
    config.port = mu_addr_port(mu_placed_server_address(s.server));
    assert_true(mu_placed_server_start(&s.loop, &config, apart, &other, &error) < 0);
    assert_null(other);
    end(&s);
}

static void any_allocation_of_its_start_may_fail(bool apart)
{
    const struct muster_store_server_config config = { .size = sizeof config, .host = "127.0.0.1" };
    struct scene s;

    FOR_EACH_FAILURE (n) {
        int rc;

        assert_int_equal(uv_loop_init(&s.loop), 0);
        rc = mu_placed_server_start(&s.loop, &config, apart, &s.server, NULL);
        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        if (rc == 0)
            mu_placed_server_close(s.server, NULL, NULL);
        while (uv_run(&s.loop, UV_RUN_DEFAULT) != 0)
            continue;
        assert_int_equal(uv_loop_close(&s.loop), 0);
    }
}

static void (*const scenes[])(bool apart) = {
    it_serves,
    who_comes_after_it_was_renewed_finds_nothing,
    it_listens_at_one_more_address,
    it_is_alone_without_others,
    it_may_be_closed_with_everything_under_way,
    a_taken_port_is_an_error,
    any_allocation_of_its_start_may_fail,
};

static void on_its_owners_loop(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof scenes / sizeof scenes[0]; i++)
        scenes[i](false);
}

static void on_a_thread_of_its_own(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof scenes / sizeof scenes[0]; i++)
        scenes[i](true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_its_owners_loop),
        cmocka_unit_test(on_a_thread_of_its_own),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
