/* The client on a loop, with a server of ours on the same loop or something stranger on a thread: what it finds out,
 * when it calls back, and that it always ends. */
#include "failmalloc.h"
#include "fake_store.h"
#include "store/client_uv.h"
#include "store/server_parts_uv.h"

#include <stdio.h>

enum { QUICK_MS = 20000, CALLS = 8 };

#define SLICE(text)                                                                                                    \
    {                                                                                                                  \
        (text), sizeof(text) - 1                                                                                       \
    }

struct scene {
    uv_loop_t loop;
    uv_timer_t alarm; /* ends a test that hangs */
    struct mu_server *server;
    struct mu_client *client;
    bool inside; /* of a call from outside */
    unsigned ready, lost, closed;
    struct muster_error ready_error, lost_error;
    struct mu_call calls[CALLS];
    unsigned done[CALLS];
    bool close_when_ready, close_when_done, close_when_lost;
};

static void on_alarm(uv_timer_t *timer)
{
    (void)timer;
    fail_msg("the test hangs");
}

static void on_closed(struct mu_client *client, void *ctx)
{
    struct scene *s = ctx;

    assert_ptr_equal(client, s->client);
    s->closed++;
    uv_stop(&s->loop);
    s->client = NULL;
}

static void close_client(struct scene *s)
{
    s->inside = true;
    mu_client_close(s->client, on_closed, s);
    s->inside = false;
}

static void on_ready(struct mu_client *client, const struct muster_error *error, void *ctx)
{
    struct scene *s = ctx;

    (void)client;
    assert_false(s->inside);
    s->ready++;
    uv_stop(&s->loop);
    if (error != NULL)
        s->ready_error = *error;
    if (s->close_when_ready)
        close_client(s);
}

static void on_lost(struct mu_client *client, const struct muster_error *error, void *ctx)
{
    struct scene *s = ctx;

    (void)client;
    assert_false(s->inside);
    s->lost++;
    uv_stop(&s->loop);
    s->lost_error = *error;
    if (s->close_when_lost)
        close_client(s);
}

static void on_done(struct mu_call *call)
{
    struct scene *s = call->ctx;

    assert_false(s->inside);
    s->done[call - s->calls]++;
    uv_stop(&s->loop);
    if (s->close_when_done)
        close_client(s);
}

static int start_server(struct scene *s, struct muster_error *error)
{
    const struct muster_store_server_config config = { .size = sizeof config, .host = "127.0.0.1" };

    return mu_server_start_as(&s->loop, &config, &s->server, error);
}

static uint16_t port_of(const struct scene *s)
{
    return mu_addr_port(mu_server_address(s->server));
}

static int start_client(struct scene *s, uint16_t port, enum mu_dialect dialect, uint64_t timeout_ms,
                        struct muster_error *error)
{
    const struct mu_client_config config = {
        .host = "127.0.0.1", .port = port, .dialect = dialect, .connect_timeout_ms = timeout_ms, .seed = 7
    };
    int rc;

    s->inside = true;
    rc = mu_client_start(&s->loop, &config, on_ready, on_lost, s, &s->client, error);
    s->inside = false;
    return rc;
}

static void call(struct scene *s, size_t index, struct mu_call what, uint64_t timeout_ms)
{
    what.done = on_done;
    what.ctx = s;
    s->calls[index] = what;
    s->inside = true;
    mu_client_call(s->client, &s->calls[index], timeout_ms);
    s->inside = false;
}

static void begin(struct scene *s)
{
    *s = (struct scene){ .server = NULL };
    assert_int_equal(uv_loop_init(&s->loop), 0);
    assert_int_equal(uv_timer_init(&s->loop, &s->alarm), 0);
    assert_int_equal(uv_timer_start(&s->alarm, on_alarm, 3ULL * QUICK_MS, 0), 0);
}

static void run_until(struct scene *s, const unsigned *count)
{
    while (*count == 0)
        (void)uv_run(&s->loop, UV_RUN_DEFAULT); /* every callback stops it */
}

static void ignore_closed(struct mu_server *server, void *ctx)
{
    (void)server;
    (void)ctx;
}

static void end(struct scene *s)
{
    if (s->client != NULL)
        close_client(s);
    if (s->server != NULL)
        mu_server_close(s->server, ignore_closed, NULL);
    uv_close((uv_handle_t *)&s->alarm, NULL);
    while (uv_run(&s->loop, UV_RUN_DEFAULT) != 0)
        continue;
    assert_null(s->client);
    assert_int_equal(uv_loop_close(&s->loop), 0); /* nothing is left on it */
    for (size_t i = 0; i < CALLS; i++) {
        muster_bytes_done(&s->calls[i].bytes);
        muster_values_done(&s->calls[i].found);
    }
}

static const struct mu_call set_k = { .kind = MU_CALL_SET, .key = SLICE("k"), .value = SLICE("v") };
static const struct mu_call get_k = { .kind = MU_CALL_GET, .key = SLICE("k") };
static const struct mu_call get_never = { .kind = MU_CALL_GET, .key = SLICE("never") };
static const struct mu_call num_keys = { .kind = MU_CALL_NUM_KEYS };
static const struct mu_call ping = { .kind = MU_CALL_PING };

/* ---- Happy paths ---- */

static void calls_may_be_made_before_there_is_a_connection(void **state)
{
    struct scene s;
    union mu_addr addr;

    (void)state;
    begin(&s);
    assert_int_equal(start_server(&s, NULL), 0);
    assert_int_equal(start_client(&s, port_of(&s), MU_DIALECT_UNKNOWN, QUICK_MS, NULL), 0);
    assert_false(mu_client_local_address(s.client, &addr));
    call(&s, 0, set_k, QUICK_MS);
    call(&s, 1, get_k, QUICK_MS);
    run_until(&s, &s.done[1]);
    assert_int_equal(s.ready, 1);
    assert_int_equal(s.ready_error.code, 0);
    assert_int_equal(s.calls[0].rc, 0);
    assert_string_equal(s.calls[1].bytes.data, "v");
    assert_int_equal(mu_client_dialect(s.client), MU_DIALECT_V);
    assert_true(mu_client_local_address(s.client, &addr));
    assert_true(mu_addr_is_loopback(&addr));
    end(&s);
    assert_int_equal(s.closed, 1);
    assert_int_equal(s.lost, 0); /* closing is not losing */
}

static void a_refusal_is_told_from_silence(void **state)
{
    struct fake_store fake = { .to_v = FAKE_IS_SILENT };
    struct mu_client_config config = { .host = "127.0.0.1", .connect_timeout_ms = QUICK_MS, .rounds_max = 1 };
    struct scene s;
    int fd;

    (void)state;
    begin(&s);
    fd = fake_listener(&config.port, -1);
    assert_int_equal(mu_client_start(&s.loop, &config, on_ready, on_lost, &s, &s.client, NULL), 0);
    assert_false(mu_client_is_lost(s.client));
    run_until(&s, &s.ready); /* long before the time is up */
    assert_int_equal(s.ready_error.code, MUSTER_ECONNECT);
    assert_true(mu_client_is_lost(s.client));
    assert_true(mu_client_refused(s.client));
    (void)close(fd);
    end(&s);
    begin(&s);
    fake_start(&fake);
    assert_int_equal(start_client(&s, fake.port, MU_DIALECT_UNKNOWN, 100, NULL), 0);
    run_until(&s, &s.ready);
    assert_int_equal(s.ready_error.code, MUSTER_ECONNECT);
    assert_true(mu_client_is_lost(s.client));
    assert_false(mu_client_refused(s.client));
    end(&s);
    fake_stop(&fake);
}

static void a_call_may_be_ended_before_its_time(void **state)
{
    struct scene s;

    (void)state;
    begin(&s);
    assert_int_equal(start_server(&s, NULL), 0);
    assert_int_equal(start_client(&s, port_of(&s), MU_DIALECT_V, QUICK_MS, NULL), 0);
    call(&s, 0, get_never, 3ULL * QUICK_MS);
    call(&s, 1, set_k, QUICK_MS);
    run_until(&s, &s.ready);
    assert_int_equal(s.done[0], 0);
    s.inside = true;
    mu_client_expire(s.client, &s.calls[0]);
    s.inside = false;
    run_until(&s, &s.done[0]);
    assert_int_equal(s.calls[0].rc, MUSTER_ETIMEOUT);
    run_until(&s, &s.done[1]);
    assert_int_equal(s.calls[1].rc, 0);
    end(&s);
}

static void the_dialect_is_found_out(void **state)
{
    static const struct {
        struct fake_store fake;
        enum mu_dialect dialect;
    } rows[] = {
        { { .to_v = FAKE_ANSWERS }, MU_DIALECT_V },
        { { .to_v = FAKE_CLOSES, .to_l1 = FAKE_ANSWERS }, MU_DIALECT_L1 },
        { { .to_v = FAKE_CLOSES, .to_l1 = FAKE_CLOSES, .to_l0 = FAKE_ANSWERS }, MU_DIALECT_L0 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct fake_store fake = rows[i].fake;
        struct scene s;

        fake_start(&fake);
        begin(&s);
        assert_int_equal(start_client(&s, fake.port, MU_DIALECT_UNKNOWN, QUICK_MS, NULL), 0);
        assert_int_equal(mu_client_dialect(s.client), MU_DIALECT_UNKNOWN);
        run_until(&s, &s.ready);
        assert_int_equal(s.ready_error.code, 0);
        assert_int_equal(mu_client_dialect(s.client), rows[i].dialect);
        end(&s);
        fake_stop(&fake);
    }
}

static void a_dialect_that_is_given_is_not_asked_for(void **state)
{
    struct fake_store fake = { .to_v = FAKE_CLOSES, .to_l1 = FAKE_CLOSES, .to_l0 = FAKE_ANSWERS };
    struct scene s;

    (void)state;
    fake_start(&fake);
    begin(&s);
    assert_int_equal(start_client(&s, fake.port, MU_DIALECT_L0, QUICK_MS, NULL), 0);
    run_until(&s, &s.ready);
    assert_int_equal(s.ready_error.code, 0);
    assert_int_equal(fake_count(&fake, &fake.greeted), 1); /* no other greeting went before */
    end(&s);
    fake_stop(&fake);
}

static void features_are_asked_for_beside_the_connection(void **state)
{
    static const struct mu_call list = { .kind = MU_CALL_LIST_KEYS };
    static const struct mu_call len = { .kind = MU_CALL_QUEUE_LEN, .key = SLICE("q") };
    struct scene s;

    (void)state;
    begin(&s);
    assert_int_equal(start_server(&s, NULL), 0);
    assert_int_equal(start_client(&s, port_of(&s), MU_DIALECT_UNKNOWN, QUICK_MS, NULL), 0);
    call(&s, 0, ping, QUICK_MS);
    call(&s, 1, list, QUICK_MS);
    call(&s, 2, len, QUICK_MS);
    call(&s, 3, ping, QUICK_MS);
    run_until(&s, &s.done[3]);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(s.calls[i].rc, 0);
    assert_int_equal(s.calls[1].found.count, 0);
    end(&s);
}

/* On 1.13 a wait that has been given up costs the connection; those who come after get another. */
static void a_connection_is_replaced_where_a_wait_cannot_be_taken_back(void **state)
{
    struct scene s;

    (void)state;
    begin(&s);
    assert_int_equal(start_server(&s, NULL), 0);
    assert_int_equal(start_client(&s, port_of(&s), MU_DIALECT_L0, QUICK_MS, NULL), 0);
    run_until(&s, &s.ready);
    call(&s, 0, get_never, 10);
    call(&s, 1, num_keys, QUICK_MS);
    run_until(&s, &s.done[1]);
    assert_int_equal(s.calls[0].rc, MUSTER_ETIMEOUT);
    assert_int_equal(s.calls[1].rc, 0);
    assert_int_equal(s.server->accepted, 2);
    assert_int_equal(s.ready, 1);
    assert_int_equal(s.lost, 0);
    end(&s);
}

/* ---- Losing, failing, closing ---- */

static void a_lost_connection_is_told_once_after_its_calls(void **state)
{
    struct scene s;

    (void)state;
    begin(&s);
    assert_int_equal(start_server(&s, NULL), 0);
    assert_int_equal(start_client(&s, port_of(&s), MU_DIALECT_UNKNOWN, QUICK_MS, NULL), 0);
    run_until(&s, &s.ready);
    call(&s, 0, get_never, QUICK_MS);
    call(&s, 1, num_keys, QUICK_MS);
    mu_server_close(s.server, ignore_closed, NULL);
    s.server = NULL;
    run_until(&s, &s.lost);
    assert_int_equal(s.lost_error.code, MUSTER_ELOST);
    assert_int_equal(s.done[0], 1);
    assert_int_equal(s.done[1], 1);
    assert_int_equal(s.calls[0].rc, MUSTER_ELOST);
    assert_memory_equal(s.lost_error.text, "store 127.0.0.1:", 16);
    assert_memory_equal(s.calls[0].error.text, "get 'never' at 127.0.0.1:", 25);
    assert_non_null(strstr(s.calls[0].error.text, strstr(s.lost_error.text, ": "))); /* the same cause */
    call(&s, 2, set_k, QUICK_MS);
    assert_int_equal(s.done[2], 0); /* never from within the call */
    run_until(&s, &s.done[2]);
    assert_int_equal(s.calls[2].rc, MUSTER_ELOST);
    assert_int_equal(s.lost, 1);
    end(&s);
}

static void who_cannot_connect_is_told_once_and_so_are_its_calls(void **state)
{
    struct scene s;
    uint16_t port;
    int fd = fake_listener(&port, -1);

    (void)state;
    begin(&s);
    assert_int_equal(start_client(&s, port, MU_DIALECT_UNKNOWN, 200, NULL), 0);
    call(&s, 0, set_k, QUICK_MS);
    call(&s, 1, num_keys, 1);
    run_until(&s, &s.done[0]);
    assert_int_equal(s.ready, 1);
    assert_int_equal(s.ready_error.code, MUSTER_ECONNECT);
    assert_int_equal(s.calls[0].rc, MUSTER_ECONNECT);
    assert_int_equal(s.calls[1].rc, MUSTER_ETIMEOUT); /* it had less time than that */
    assert_int_equal(s.lost, 0);                      /* it never was there */
    end(&s);
    (void)close(fd);
}

/* The 1.13 server is gone when the connection has to be replaced: that is a loss. */
static void a_connection_that_cannot_be_replaced_is_lost(void **state)
{
    struct fake_store fake = { .to_l0 = FAKE_ANSWERS };
    struct scene s;

    (void)state;
    fake_start(&fake);
    begin(&s);
    assert_int_equal(start_client(&s, fake.port, MU_DIALECT_L0, QUICK_MS, NULL), 0);
    run_until(&s, &s.ready);
    call(&s, 0, get_never, QUICK_MS);
    call(&s, 1, num_keys, QUICK_MS);
    (void)uv_run(&s.loop, UV_RUN_NOWAIT);
    fake_await(&fake, 1 + 8 + 8 + 6);
    fake_stop(&fake);
    run_until(&s, &s.lost);
    assert_int_equal(s.calls[0].rc, MUSTER_ELOST);
    assert_int_equal(s.calls[1].rc, MUSTER_ELOST);
    end(&s);
}

static void it_may_be_closed_at_any_moment(void **state)
{
    for (int turns = 0; turns < 12; turns++) {
        struct scene s;

        (void)state;
        begin(&s);
        assert_int_equal(start_server(&s, NULL), 0);
        assert_int_equal(start_client(&s, port_of(&s), MU_DIALECT_UNKNOWN, QUICK_MS, NULL), 0);
        call(&s, 0, get_never, QUICK_MS);
        call(&s, 1, ping, QUICK_MS);
        for (int i = 0; i < turns; i++)
            (void)uv_run(&s.loop, UV_RUN_NOWAIT);
        close_client(&s);
        assert_int_equal(s.done[0], 0); /* from the loop, not from within */
        run_until(&s, &s.closed);
        assert_int_equal(s.done[0], 1);
        assert_int_equal(s.done[1], 1);
        assert_int_equal(s.calls[0].rc, MUSTER_ECANCELED);
        end(&s);
    }
}

static void it_may_be_closed_from_its_own_callbacks(void **state)
{
    (void)state;
    for (int who = 0; who < 3; who++) {
        struct scene s;

        begin(&s);
        s.close_when_ready = who == 0;
        s.close_when_done = who == 1;
        s.close_when_lost = who == 2;
        assert_int_equal(start_server(&s, NULL), 0);
        assert_int_equal(start_client(&s, port_of(&s), MU_DIALECT_UNKNOWN, QUICK_MS, NULL), 0);
        if (who == 1)
            call(&s, 0, set_k, QUICK_MS);
        run_until(&s, &s.ready);
        if (who == 2) {
            mu_server_close(s.server, ignore_closed, NULL);
            s.server = NULL;
        }
        run_until(&s, &s.closed);
        end(&s);
        assert_int_equal(s.closed, 1);
    }
}

static void it_may_be_closed_while_a_name_is_resolved(void **state)
{
    const struct mu_client_config config = { .host = "no-such-host.invalid",
                                             .port = 1,
                                             .connect_timeout_ms = QUICK_MS };
    struct scene s;

    (void)state;
    begin(&s);
    assert_int_equal(mu_client_start(&s.loop, &config, on_ready, NULL, &s, &s.client, NULL), 0);
    (void)uv_run(&s.loop, UV_RUN_NOWAIT);
    end(&s);
    assert_int_equal(s.closed, 1);
    assert_int_equal(s.ready, 0);
}

/* ---- Out of memory ---- */

static void run_short_of_memory(void)
{
    static struct scene s;
    struct muster_error error = { 0 };
    int rc;

    begin(&s);
    rc = start_server(&s, &error);
    if (rc == 0)
        rc = start_client(&s, port_of(&s), MU_DIALECT_UNKNOWN, 400, &error);
    if (rc == 0) {
        call(&s, 0, set_k, 300);
        call(&s, 1, get_k, 300);
        call(&s, 2, ping, 300);
        call(&s, 3, get_never, 20);
        call(&s, 4, num_keys, 300);
        for (size_t i = 0; i < 5; i++)
            run_until(&s, &s.done[i]);
        run_until(&s, &s.ready);
    } else {
        assert_int_equal(error.code, MUSTER_ENOMEM);
    }
    end(&s);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(s.done[i], rc == 0 ? 1 : 0);
}

static void any_allocation_may_fail_and_every_call_still_ends(void **state)
{
    (void)state;
    FOR_EACH_FAILURE (n)
        run_short_of_memory();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_may_be_made_before_there_is_a_connection),
        cmocka_unit_test(a_refusal_is_told_from_silence),
        cmocka_unit_test(a_call_may_be_ended_before_its_time),
        cmocka_unit_test(the_dialect_is_found_out),
        cmocka_unit_test(a_dialect_that_is_given_is_not_asked_for),
        cmocka_unit_test(features_are_asked_for_beside_the_connection),
        cmocka_unit_test(a_connection_is_replaced_where_a_wait_cannot_be_taken_back),
        cmocka_unit_test(a_lost_connection_is_told_once_after_its_calls),
        cmocka_unit_test(who_cannot_connect_is_told_once_and_so_are_its_calls),
        cmocka_unit_test(a_connection_that_cannot_be_replaced_is_lost),
        cmocka_unit_test(it_may_be_closed_at_any_moment),
        cmocka_unit_test(it_may_be_closed_from_its_own_callbacks),
        cmocka_unit_test(it_may_be_closed_while_a_name_is_resolved),
        cmocka_unit_test(any_allocation_may_fail_and_every_call_still_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
