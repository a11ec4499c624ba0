/* Where the workers of a round meet, on a real loop: real stores, and keys that are answered when the test says so. */
#include "failmalloc.h"
#include "handler/boot_uv.h"
#include "pure.h"
#include "store/client_uv.h"
#include "store/placed_server_uv.h"
#include "turns_uv.h"

#include <stdio.h>

/* ---- A kv whose requests wait until the test answers them ---- */

struct keys {
    struct mu_kv kv;
    struct mu_kv_request *request; /* the one under way */
    unsigned asked;
    char key[128], value[64];
};

static void submit(struct mu_kv *kv, struct mu_kv_request *request)
{
    struct keys *keys = (struct keys *)kv;

    assert_null(keys->request);
    assert_true(request->timeout_ms > 0 && request->timeout_ms <= (request->kind == MU_KV_GET ? 2000 : 60000));
    keys->request = request;
    keys->asked++;
    (void)snprintf(keys->key, sizeof keys->key, "%.*s", (int)request->key.len, (const char *)request->key.data);
    (void)snprintf(keys->value, sizeof keys->value, "%.*s", (int)request->value.len, (const char *)request->value.data);
}

static const struct mu_kv_ops keys_ops = { .name = "keys", .submit = submit };

struct scene {
    uv_loop_t loop;
    struct keys keys;
    struct mu_boot_uv boot;
    struct muster_store_info bootstrap;
    struct muster_error error;
    unsigned done, failed;
    bool closed, close_when_done, own_keys;
};

static struct scene s;

static bool is_on(void) /* started, and neither done, failed nor stopped */
{
    return mu_boot_deadline_ms(&s.boot.machine) != UINT64_MAX;
}

/* Answers what is under way. */
static void answer(int rc, const char *bytes)
{
    struct mu_kv_request *request = s.keys.request;

    assert_non_null(request);
    s.keys.request = NULL;
    request->rc = rc;
    if (rc < 0)
        (void)mu_fail(&request->error, rc, "no such luck");
    if (bytes != NULL)
        request->bytes = (struct muster_bytes){ strdup(bytes), strlen(bytes) };
    request->done(request);
}

static void on_closed(void *ctx)
{
    assert_ptr_equal(ctx, &s);
    s.closed = true;
}

static void on_done(void *ctx, const struct muster_store_info *bootstrap)
{
    assert_ptr_equal(ctx, &s);
    s.bootstrap = *bootstrap;
    s.done++;
    assert_false(is_on());
    if (s.close_when_done)
        mu_boot_uv_close(&s.boot, on_closed);
}

static void on_failed(void *ctx, const struct muster_error *error)
{
    assert_ptr_equal(ctx, &s);
    s.error = *error;
    s.failed++;
    assert_false(is_on());
}

/* Without a kv: every key is there, and can be written, at once. */
static void on_request(void *ctx, const struct mu_boot_effect *effect)
{
    bool port = memmem(effect->key.data, effect->key.len, "PORT", 4) != NULL;
    struct mu_boot_event event = { .type = MU_BOOT_ON_SET, .id = effect->id };

    assert_ptr_equal(ctx, &s);
    if (effect->type == MU_BOOT_DO_GET) {
        event.type = MU_BOOT_ON_GOT;
        event.value = mu_slice_str(port ? "4711" : "there");
    }
    mu_boot_uv_answer(&s.boot, event);
}

static const struct mu_boot_uv_ops ops = { .on_done = on_done, .on_failed = on_failed, .request = on_request };

static int open_boot_at(const char *local_addr, bool use_agent_store, bool agents_store)
{
    const struct mu_boot_config machine = {
        .run_id = "job",
        .local_addr = local_addr,
        .use_agent_store = use_agent_store,
        .agents_store = agents_store,
        .nodes_max = 1,
    };
    const struct mu_boot_uv_config config = { .kv = s.own_keys ? NULL : &s.keys.kv, .ops = &ops, .ctx = &s };
    int rc = mu_boot_uv_init(&s.boot, &machine, NULL);

    if (rc == 0)
        mu_boot_uv_open(&s.boot, &s.loop, &config);
    return rc;
}

static int open_boot(bool use_agent_store, bool agents_store)
{
    return open_boot_at(NULL, use_agent_store, agents_store);
}

static int start(void **state)
{
    (void)state;
    s = (struct scene){ .keys = { .kv = { .ops = &keys_ops } } };
    return uv_loop_init(&s.loop);
}

#define UNTIL(condition) UNTIL_OF(&s.loop, condition)

static void end(void)
{
    if (!s.boot.closing)
        mu_boot_uv_close(&s.boot, on_closed);
    assert_false(s.closed);
    if (s.keys.request != NULL) {
        take_turn_of(&s.loop);
        assert_false(s.closed); /* it waits for the kv */
        answer(MUSTER_ECANCELED, NULL);
    }
    UNTIL(s.closed);
    mu_boot_uv_done(&s.boot);
    assert_int_equal(uv_run(&s.loop, UV_RUN_NOWAIT), 0); /* nothing is left */
}

static int stop(void **state)
{
    (void)state;
    return uv_loop_close(&s.loop);
}

static void begin(int64_t round, int64_t rank)
{
    const struct mu_boot_start round_start = {
        .round = round, .rank = rank, .all_ours = true, .rank0_ours = true, .rank0 = mu_slice_str("a_1_2")
    };

    mu_boot_uv_start(&s.boot, &round_start);
}

/* ---- Does anybody answer there? ---- */

static int reached; /* 1: yes, -1: no */
static bool client_closed;

static void on_ready(struct mu_client *client, const struct muster_error *error, void *ctx)
{
    (void)client;
    (void)ctx;
    reached = error == NULL ? 1 : -1;
}

static void on_client_closed(struct mu_client *client, void *ctx)
{
    (void)client;
    (void)ctx;
    client_closed = true;
}

static bool answers(uint16_t port)
{
    const struct mu_client_config config = {
        .host = "127.0.0.1", .port = port, .connect_timeout_ms = 10000, .rounds_max = 1
    };
    struct mu_client *client = NULL;

    reached = 0;
    client_closed = false;
    assert_int_equal(mu_client_start(&s.loop, &config, on_ready, NULL, NULL, &client, NULL), 0);
    UNTIL(reached != 0);
    mu_client_close(client, on_client_closed, NULL);
    UNTIL(client_closed);
    return reached > 0;
}

/* ---- Rank 0 ---- */

/* Publishes what it is asked to, and tells the port. */
static uint16_t published(int64_t round)
{
    char key[128];

    UNTIL(s.keys.request != NULL);
    (void)snprintf(key, sizeof key, "torch.rendezvous.job.%lld/MASTER_ADDR", (long long)round);
    assert_string_equal(s.keys.key, key);
    assert_string_equal(s.keys.value, s.boot.machine.local_addr[0] == '\0' ? "localhost" : s.boot.machine.local_addr);
    answer(0, NULL);
    (void)snprintf(key, sizeof key, "torch.rendezvous.job.%lld/MASTER_PORT", (long long)round);
    assert_string_equal(s.keys.key, key);
    answer(0, NULL);
    return (uint16_t)strtoul(s.keys.value, NULL, 10);
}

static void rank_0_opens_a_store_and_publishes_it(void **state)
{
    uint16_t first, second;

    (void)state;
    assert_int_equal(open_boot(true, false), 0);
    assert_false(is_on());
    begin(0, 0);
    assert_true(is_on());
    first = published(0);
    assert_int_equal(s.done, 1);
    assert_string_equal(s.bootstrap.master_addr, "localhost");
    assert_int_equal(s.bootstrap.master_port, first);
    assert_non_null(mu_boot_uv_agents_store(&s.boot));
    assert_true(answers(first));
    begin(1, 0); /* each round has its own */
    second = published(1);
    assert_int_equal(s.done, 2);
    assert_true(answers(second));
    assert_true(first == second || !answers(first));
    begin(2, 1); /* somebody else's turn */
    assert_null(mu_boot_uv_agents_store(&s.boot));
    end();
}

/* No address to the parser, so the resolver is asked; which needs no network for it. */
#define A_NAME "127.2"

static void a_name_is_resolved_before_anybody_listens(void **state)
{
    uint16_t port;

    (void)state;
    assert_int_equal(open_boot_at(A_NAME, true, false), 0);
    begin(0, 0);
    assert_null(mu_boot_uv_agents_store(&s.boot)); /* not yet */
    port = published(0);
    assert_string_equal(s.bootstrap.master_addr, A_NAME);
    assert_true(answers(port));
    end();
}

static void a_round_may_end_while_a_name_is_resolved(void **state)
{
    (void)state;
    assert_int_equal(open_boot_at(A_NAME, true, false), 0);
    begin(0, 0);
    mu_boot_uv_stop(&s.boot);
    assert_false(is_on());
    begin(1, 0); /* the first answer is nobody's */
    assert_true(answers(published(1)));
    assert_int_equal(s.done, 1);
    begin(2, 0);
    end(); /* also while it is resolved */
    assert_int_equal(s.done + s.failed, 1);
}

static void an_address_of_another_machine_opens_every_address(void **state)
{
    (void)state;
    assert_int_equal(open_boot_at("192.0.2.77", true, false), 0);
    begin(0, 0);
    assert_true(mu_addr_is_any(mu_placed_server_address(mu_boot_uv_agents_store(&s.boot))));
    end();
}

static void agents_listen_where_workers_will(void **state)
{
    const union mu_addr *addr;
    char text[MU_ADDR_TEXT_MAX];

    (void)state;
    assert_int_equal(open_boot_at("127.0.0.9", false, true), 0);
    begin(0, 0);
    (void)published(0);
    addr = mu_placed_server_address(mu_boot_uv_agents_store(&s.boot));
    assert_true(mu_addr_host(addr, text, sizeof text));
    assert_string_equal(text, "127.0.0.9");
    assert_true(answers(mu_addr_port(addr))); /* by loopback */
    end();
}

static void a_round_that_ends_before_it_began_leaves_nothing(void **state)
{
    (void)state;
    assert_int_equal(open_boot(true, false), 0);
    mu_boot_uv_stop(&s.boot); /* nothing is under way */
    begin(0, 0);
    mu_boot_uv_stop(&s.boot); /* while it connects to itself */
    assert_false(is_on());
    begin(1, 0);
    UNTIL(s.keys.request != NULL);
    mu_boot_uv_stop(&s.boot);
    answer(0, NULL); /* nobody waits for it any more */
    assert_null(s.keys.request);
    assert_null(mu_boot_uv_agents_store(&s.boot));
    assert_int_equal(s.done + s.failed, 0);
    end();
}

static void without_an_agents_store_only_a_port_is_found(void **state)
{
    (void)state;
    assert_int_equal(open_boot(false, false), 0);
    begin(0, 0);
    assert_false(answers(published(0)));
    assert_int_equal(s.done, 1);
    assert_null(mu_boot_uv_agents_store(&s.boot));
    end();
}

static void agents_may_have_a_store_where_workers_have_none(void **state)
{
    uint16_t port;

    (void)state;
    assert_int_equal(open_boot(false, true), 0);
    begin(0, 0);
    port = published(0);
    assert_false(answers(port));
    assert_true(answers(mu_addr_port(mu_placed_server_address(mu_boot_uv_agents_store(&s.boot)))));
    begin(1, 1);
    assert_null(mu_boot_uv_agents_store(&s.boot)); /* of the round before */
    answer(MUSTER_ETIMEOUT, NULL);
    mu_boot_uv_stop(&s.boot);
    end();
}

/* ---- The others ---- */

static void the_others_ask_until_it_is_there(void **state)
{
    (void)state;
    assert_int_equal(open_boot(true, false), 0);
    begin(7, 3);
    assert_string_equal(s.keys.key, "torch.rendezvous.job.7/MASTER_ADDR");
    answer(MUSTER_ETIMEOUT, NULL);
    answer(MUSTER_ETIMEOUT, NULL);
    answer(0, "10.0.0.1");
    assert_string_equal(s.keys.key, "torch.rendezvous.job.7/MASTER_PORT");
    answer(0, "4711");
    assert_int_equal(s.done, 1);
    assert_string_equal(s.bootstrap.master_addr, "10.0.0.1");
    assert_int_equal(s.bootstrap.master_port, 4711);
    end();
}

static void a_store_that_is_away_is_asked_again_and_another_error_ends_it(void **state)
{
    (void)state;
    assert_int_equal(open_boot(true, false), 0);
    begin(7, 3);
    answer(MUSTER_ELOST, NULL);
    assert_null(s.keys.request);
    UNTIL(s.keys.request != NULL); /* by its timer */
    answer(MUSTER_ENOTSUP, NULL);
    assert_int_equal(s.failed, 1);
    assert_int_equal(s.error.code, MUSTER_ERDZV_CONNECTION); /* whatever it was */
    assert_non_null(strstr(s.error.text, "no such luck"));
    end();
}

static void keys_may_be_answered_at_once(void **state)
{
    (void)state;
    s.own_keys = true;
    assert_int_equal(open_boot(true, true), 0);
    begin(0, 1);
    assert_int_equal(s.done, 1);
    assert_string_equal(s.bootstrap.master_addr, "there");
    assert_int_equal(s.bootstrap.master_port, 4711);
    begin(1, 0);
    UNTIL(s.done == 2);
    assert_true(answers(s.bootstrap.master_port));
    end();
}

/* ---- Ends ---- */

static void it_can_be_closed_at_any_time(void **state)
{
    (void)state;
    for (int when = 0; when < 6; when++) {
        (void)stop(NULL);
        (void)start(NULL);
        s.close_when_done = when == 5;
        assert_int_equal(open_boot(true, false), 0);
        if (when == 1)
            begin(0, 0); /* it connects to itself */
        if (when == 2 || when == 3)
            begin(0, 1); /* a request is under way */
        if (when == 3)
            answer(MUSTER_ELOST, NULL); /* it waits to ask again */
        if (when >= 4) {
            begin(0, 0);
            (void)published(0); /* done; or closed from inside of being told */
        }
        end();
        assert_int_equal(s.done, when >= 4);
        assert_int_equal(s.failed, 0);
    }
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    FOR_EACH_FAILURE (n) {
        (void)stop(NULL);
        (void)start(NULL);
        s.own_keys = n % 2 == 0;
        if (open_boot(true, true) < 0)
            continue;
        begin(0, 0);
        while (s.done + s.failed == 0) {
            take_turn_of(&s.loop);
            if (s.keys.request != NULL)
                answer(0, NULL);
        }
        assert_true(s.done == 1 || fail_alloc_hit());
        begin(1, 1);
        if (s.keys.request != NULL)
            answer(MUSTER_ECANCELED, NULL);
        end();
    }
}

int main(void)
{
#define SCENE(test) cmocka_unit_test_setup_teardown(test, start, stop)
    const struct CMUnitTest tests[] = {
        SCENE(rank_0_opens_a_store_and_publishes_it),
        SCENE(a_name_is_resolved_before_anybody_listens),
        SCENE(a_round_may_end_while_a_name_is_resolved),
        SCENE(an_address_of_another_machine_opens_every_address),
        SCENE(agents_listen_where_workers_will),
        SCENE(a_round_that_ends_before_it_began_leaves_nothing),
        SCENE(without_an_agents_store_only_a_port_is_found),
        SCENE(agents_may_have_a_store_where_workers_have_none),
        SCENE(the_others_ask_until_it_is_there),
        SCENE(a_store_that_is_away_is_asked_again_and_another_error_ends_it),
        SCENE(keys_may_be_answered_at_once),
        SCENE(it_can_be_closed_at_any_time),
        SCENE(any_allocation_may_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
