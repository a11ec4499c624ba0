/* How a c10d node gets its store: every state with every event, and the stories that go through several of them. */
#include "handler/host.h"
#include "pure.h"

#include <stdio.h>

enum { PATIENCE_MS = 60000 };

/* ---- What happens, by name ---- */

struct happening {
    const char *name;
    enum mu_host_event_type type;
    struct mu_host_addresses addresses;
    int code; /* of the error; 0: none */
    const char *text;
};

static const struct happening happenings[] = {
    { .name = "start", .type = MU_HOST_ON_START },
    { .name = "start-own", .type = MU_HOST_ON_START, .addresses = { 1, true, false } },
    { .name = "start-loopback", .type = MU_HOST_ON_START, .addresses = { 1, true, true } },
    { .name = "start-foreign", .type = MU_HOST_ON_START, .addresses = { 2, false, false } },
    { .name = "own", .type = MU_HOST_ON_RESOLVED, .addresses = { 3, true, false } },
    { .name = "foreign", .type = MU_HOST_ON_RESOLVED, .addresses = { 1, false, false } },
    { .name = "unknown", .type = MU_HOST_ON_RESOLVED, .code = MUSTER_ERDZV_CONNECTION, .text = "no such name" },
    { .name = "bound", .type = MU_HOST_ON_BOUND },
    { .name = "taken", .type = MU_HOST_ON_NOT_BOUND, .code = MUSTER_EADDRINUSE, .text = "in use" },
    { .name = "forbidden", .type = MU_HOST_ON_NOT_BOUND, .code = MUSTER_ESYSTEM, .text = "permission denied" },
    { .name = "connected", .type = MU_HOST_ON_CONNECTED },
    { .name = "refused", .type = MU_HOST_ON_NOT_CONNECTED, .code = MUSTER_ERDZV_CONNECTION, .text = "refused" },
    { .name = "alien", .type = MU_HOST_ON_NOT_CONNECTED, .code = MUSTER_EPROTOCOL, .text = "not a store" },
    { .name = "answered", .type = MU_HOST_ON_ANSWERED },
    { .name = "lost", .type = MU_HOST_ON_NOT_ANSWERED, .code = MUSTER_ELOST, .text = "reset" },
    { .name = "nonsense", .type = MU_HOST_ON_NOT_ANSWERED, .code = MUSTER_EPROTOCOL, .text = "nonsense" },
    { .name = "unusable", .type = MU_HOST_ON_UNUSABLE },
    { .name = "time", .type = MU_HOST_ON_TIME },
};

static const struct happening *find(const char *name, size_t len)
{
    for (size_t i = 0; i < COUNT(happenings); i++) {
        if (strlen(happenings[i].name) == len && strncmp(happenings[i].name, name, len) == 0)
            return &happenings[i];
    }
    fail_msg("no such happening: %.*s", (int)len, name);
    return NULL;
}

/* ---- What is done, as text ---- */

static const char *const places[] = { "endpoint", "loopback", "own" };

static void put_effect(const struct mu_host_effect *effect, char *text, size_t room)
{
    static const char *const names[] = { "resolve", "listen", "connect",       "ask",        "disconnect", "unlisten",
                                         "use",     "fail",   "warn-loopback", "warn-taken", "warn-guest" };
    size_t len = strlen(text);
    int put = snprintf(text + len, room - len, "%s%s", len > 0 ? ", " : "", names[effect->type]);

    len += (size_t)put;
    assert_true(len < room);
    if (effect->type == MU_HOST_DO_CONNECT)
        (void)snprintf(text + len, room - len, " %s %llu", places[effect->place], (unsigned long long)effect->wait_ms);
    else if (effect->type == MU_HOST_DO_ASK)
        (void)snprintf(text + len, room - len, " %llu", (unsigned long long)effect->wait_ms);
    else if (effect->error != NULL)
        (void)snprintf(text + len, room - len, " (%s)", effect->error->text);
    if (effect->type == MU_HOST_DO_FAIL)
        assert_int_equal(effect->error->code, MUSTER_ERDZV_CONNECTION);
}

/* One event: its effects, then the state. */
static const char *step(struct mu_host *h, const struct happening *what, uint64_t now_ms)
{
    static char text[1024];
    struct muster_error error = { 0 };
    struct mu_host_event event = { .type = what->type, .now_ms = now_ms, .addresses = what->addresses };
    struct mu_host_effects effects;

    if (what->code != 0) {
        (void)mu_fail(&error, what->code, "%s", what->text);
        event.error = &error;
    }
    mu_host_step(h, &event, &effects);
    text[0] = '\0';
    for (unsigned i = 0; i < effects.count; i++)
        put_effect(&effects.items[i], text, sizeof text);
    (void)snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", text[0] == '\0' ? "" : " -> ",
                   mu_host_state_text(h->state));
    assert_true((h->state == MU_HOST_PAUSING) == (mu_host_deadline_ms(h) != UINT64_MAX));
    return text;
}

static struct mu_host host_with(enum mu_host_rule rule, uint16_t port)
{
    const struct mu_host_config config = {
        .name = "node7", .port = port, .rule = rule, .patience_ms = PATIENCE_MS, .warn_loopback = true
    };
    struct mu_host h;

    mu_host_init(&h, &config);
    return h;
}

/* "start own taken": happenings at time 0. The last one's text. */
static const char *play(struct mu_host *h, const char *script, uint64_t now_ms)
{
    const char *last = "";

    while (*script != '\0') {
        size_t len = strcspn(script, " ");

        last = step(h, find(script, len), now_ms);
        script += len;
        script += strspn(script, " ");
    }
    return last;
}

/* ---- Every state with every event ---- */

static void each_state_answers_each_event(void **state)
{
    static const struct {
        const char *before; /* brings the machine there */
        const char *event, *then;
    } rows[] = {
        { "", "start", "resolve -> resolving" },
        { "", "start-own", "listen -> listening" },
        { "", "start-loopback", "warn-loopback, listen -> listening" },
        { "", "start-foreign", "connect endpoint 60000 -> connecting" },
        { "", "own", "idle" },
        { "", "bound", "idle" },
        { "", "taken", "idle" },
        { "", "connected", "idle" },
        { "", "refused", "idle" },
        { "", "answered", "idle" },
        { "", "lost", "idle" },
        { "", "unusable", "idle" },
        { "", "time", "idle" },

        { "start", "own", "listen -> listening" },
        { "start", "foreign", "connect endpoint 60000 -> connecting" },
        { "start", "unknown", "pausing" },
        { "start", "bound", "resolving" },
        { "start", "taken", "resolving" },
        { "start", "connected", "resolving" },
        { "start", "refused", "resolving" },
        { "start", "answered", "resolving" },
        { "start", "lost", "resolving" },
        { "start", "unusable", "resolving" },
        { "start", "time", "resolving" },

        { "start unknown", "time", "pausing" }, /* too early */
        { "start unknown", "own", "pausing" },
        { "start unknown", "bound", "pausing" },
        { "start unknown", "taken", "pausing" },
        { "start unknown", "connected", "pausing" },
        { "start unknown", "refused", "pausing" },
        { "start unknown", "answered", "pausing" },
        { "start unknown", "lost", "pausing" },
        { "start unknown", "unusable", "pausing" },

        { "start own", "bound", "connect own 60000 -> connecting" },
        { "start own", "taken", "connect endpoint 3000 -> connecting" },
        { "start own", "forbidden",
          "warn-guest (host the store: permission denied), connect endpoint 60000 -> connecting" },
        { "start own", "own", "listening" },
        { "start own", "connected", "listening" },
        { "start own", "refused", "listening" },
        { "start own", "answered", "listening" },
        { "start own", "lost", "listening" },
        { "start own", "unusable", "listening" },
        { "start own", "time", "listening" },

        { "start own bound", "connected", "use -> found" },
        { "start own bound", "refused", "disconnect, unlisten, fail (refused) -> idle" },
        { "start own bound", "alien", "disconnect, unlisten, fail (not a store) -> idle" },
        { "start own taken", "connected", "ask 60000 -> asking" },
        { "start own taken", "refused", "disconnect, warn-taken (refused) -> pausing" },
        { "start own taken", "alien", "disconnect, fail (the port is taken by another program: not a store) -> idle" },
        { "start own forbidden", "refused",
          "disconnect, fail (host the store: permission denied; and no other store is there: refused) -> idle" },
        { "start foreign", "connected", "ask 60000 -> asking" },
        { "start foreign", "refused", "disconnect, fail (refused) -> idle" },
        { "start foreign", "alien", "disconnect, fail (not a store) -> idle" },
        { "start foreign", "own", "connecting" },
        { "start foreign", "bound", "connecting" },
        { "start foreign", "taken", "connecting" },
        { "start foreign", "answered", "connecting" },
        { "start foreign", "lost", "connecting" },
        { "start foreign", "unusable", "connecting" },
        { "start foreign", "time", "connecting" },

        { "start foreign connected", "answered", "use -> found" },
        { "start foreign connected", "lost", "disconnect -> pausing" },
        { "start foreign connected", "nonsense", "disconnect, fail (nonsense) -> idle" },
        { "start foreign connected", "own", "asking" },
        { "start foreign connected", "bound", "asking" },
        { "start foreign connected", "taken", "asking" },
        { "start foreign connected", "connected", "asking" },
        { "start foreign connected", "refused", "asking" },
        { "start foreign connected", "unusable", "asking" },
        { "start foreign connected", "time", "asking" },

        { "start own bound connected", "unusable", "unlisten -> idle" },
        { "start foreign connected answered", "unusable", "idle" },
        { "start foreign connected answered", "own", "found" },
        { "start foreign connected answered", "bound", "found" },
        { "start foreign connected answered", "taken", "found" },
        { "start foreign connected answered", "connected", "found" },
        { "start foreign connected answered", "refused", "found" },
        { "start foreign connected answered", "answered", "found" },
        { "start foreign connected answered", "lost", "found" },
        { "start foreign connected answered", "time", "found" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_host h = host_with(MU_HOST_IF_OURS, 29400);

        (void)play(&h, rows[i].before, 0);
        assert_string_equal(play(&h, rows[i].event, 0), rows[i].then);
    }
}

/* ---- is_host, port 0 ---- */

static void is_host_decides_against_the_address(void **state)
{
    struct mu_host always = host_with(MU_HOST_ALWAYS, 29400), never = host_with(MU_HOST_NEVER, 29400);

    (void)state;
    assert_string_equal(play(&always, "start-foreign", 0), "listen -> listening");
    assert_string_equal(play(&never, "start-own", 0), "connect endpoint 60000 -> connecting");
}

static void a_host_by_option_needs_no_address_and_joins_nobody(void **state)
{
    struct mu_host h = host_with(MU_HOST_ALWAYS, 29400);

    (void)state;
    assert_string_equal(play(&h, "start unknown", 0), "listen -> listening");
    assert_string_equal(play(&h, "taken", 0), "fail (host the store: in use) -> idle");
}

static void a_guest_by_option_looks_nothing_up(void **state)
{
    struct mu_host h = host_with(MU_HOST_NEVER, 29400);

    (void)state;
    assert_string_equal(play(&h, "start", 0), "connect endpoint 60000 -> connecting");
    assert_false(mu_host_hosts(&h));
}

static void port_zero_is_the_hosts_alone(void **state)
{
    struct mu_host h = host_with(MU_HOST_IF_OURS, 0);

    (void)state;
    assert_string_equal(play(&h, "start-foreign", 0),
                        "fail (port 0 is for the node that hosts the store, and 'node7' is not an address of this "
                        "machine) -> idle");
    assert_string_equal(play(&h, "start own forbidden", 0), "fail (host the store: permission denied) -> idle");
    assert_string_equal(play(&h, "start own bound", 0), "connect own 60000 -> connecting");
    assert_true(mu_host_hosts(&h));
}

/* ---- Stories ---- */

static void a_name_is_looked_up_until_the_time_is_up(void **state)
{
    struct mu_host h = host_with(MU_HOST_IF_OURS, 29400);
    uint64_t now_ms = 0;

    (void)state;
    assert_string_equal(play(&h, "start", now_ms), "resolve -> resolving");
    for (; now_ms + MU_HOST_PAUSE_MS < PATIENCE_MS; now_ms = mu_host_deadline_ms(&h)) {
        assert_string_equal(play(&h, "unknown", now_ms), "pausing");
        assert_int_equal(mu_host_deadline_ms(&h), now_ms + MU_HOST_PAUSE_MS);
        assert_string_equal(play(&h, "time", mu_host_deadline_ms(&h)), "resolve -> resolving");
        if (h.lookups == PATIENCE_MS / MU_HOST_PAUSE_MS)
            break;
    }
    assert_string_equal(play(&h, "unknown", PATIENCE_MS - MU_HOST_PAUSE_MS),
                        "fail (cannot resolve 'node7' (120 tries in 60 s): no such name) -> idle");
    assert_string_equal(play(&h, "start own", 70000), "listen -> listening"); /* the next one begins anew */
    assert_int_equal(h.lookups, 1);
}

static void a_name_that_appears_is_taken(void **state)
{
    struct mu_host h = host_with(MU_HOST_IF_OURS, 29400);

    (void)state;
    (void)play(&h, "start unknown", 0);
    (void)play(&h, "time", 500);
    assert_string_equal(play(&h, "own", 700), "listen -> listening");
    assert_string_equal(play(&h, "bound", 700), "connect own 59300 -> connecting");
}

static void a_taken_port_is_dialled_and_bound_by_turns_until_the_time_is_up(void **state)
{
    struct mu_host h = host_with(MU_HOST_IF_OURS, 29400);

    (void)state;
    assert_string_equal(play(&h, "start-own taken", 0), "connect endpoint 3000 -> connecting");
    assert_string_equal(play(&h, "refused", 3000), "disconnect, warn-taken (refused) -> pausing");
    assert_string_equal(play(&h, "time", 3500), "listen -> listening");
    assert_string_equal(play(&h, "taken", 3500), "connect loopback 3000 -> connecting");
    assert_string_equal(play(&h, "refused", 6500), "disconnect -> pausing"); /* said once */
    assert_string_equal(play(&h, "time", 7000), "listen -> listening");
    assert_string_equal(play(&h, "taken", 58000), "connect endpoint 2000 -> connecting");
    assert_string_equal(play(&h, "refused", PATIENCE_MS - MU_HOST_PAUSE_MS),
                        "disconnect, fail (the port is taken: refused) -> idle");
}

/* A connection that cannot even be begun (no memory, no descriptor) fails within the same callback. */
static void tries_that_fail_at_once_let_time_pass(void **state)
{
    struct mu_host h = host_with(MU_HOST_IF_OURS, 29400);
    unsigned tries = 0;

    (void)state;
    (void)play(&h, "start-own", 0);
    for (uint64_t now_ms = 0; h.state == MU_HOST_LISTENING; tries++) {
        (void)play(&h, "taken refused", now_ms);
        assert_true(h.state == MU_HOST_PAUSING || h.state == MU_HOST_IDLE);
        now_ms += MU_HOST_PAUSE_MS;
        if (h.state == MU_HOST_PAUSING)
            (void)play(&h, "time", now_ms);
    }
    assert_int_equal(tries, PATIENCE_MS / MU_HOST_PAUSE_MS);
}

static void a_taken_port_that_becomes_free_is_hosted(void **state)
{
    struct mu_host h = host_with(MU_HOST_IF_OURS, 29400);

    (void)state;
    (void)play(&h, "start-own taken", 0);
    (void)play(&h, "refused", 3000);
    assert_string_equal(play(&h, "time bound", 3500), "connect own 56500 -> connecting");
    assert_string_equal(play(&h, "connected", 3501), "use -> found");
    assert_true(mu_host_hosts(&h));
}

static void a_store_on_loopback_only_is_found(void **state)
{
    struct mu_host h = host_with(MU_HOST_IF_OURS, 29400);

    (void)state;
    (void)play(&h, "start-own taken", 0);
    (void)play(&h, "refused", 3000);
    (void)play(&h, "time taken", 3500);
    assert_string_equal(play(&h, "connected", 3501), "ask 56499 -> asking");
    assert_string_equal(play(&h, "answered", 3502), "use -> found");
    assert_int_equal(h.place, MU_HOST_LOOPBACK);
    assert_false(mu_host_hosts(&h));
}

/* A spare whose host was killed before it had said who it is waited for the whole join timeout. */
static void a_store_that_goes_before_it_says_who_hosts_it_is_not_found(void **state)
{
    struct mu_host h = host_with(MU_HOST_IF_OURS, 29400);

    (void)state;
    (void)play(&h, "start-foreign connected", 0);
    assert_string_equal(play(&h, "lost", 10), "disconnect -> pausing");
    assert_string_equal(play(&h, "time", 509), "pausing");
    assert_string_equal(play(&h, "time", 510), "connect endpoint 59490 -> connecting");
    assert_string_equal(play(&h, "refused", 60000), "disconnect, fail (refused) -> idle");
}

static void a_host_that_is_killed_while_it_is_asked_may_be_replaced_by_us(void **state)
{
    struct mu_host h = host_with(MU_HOST_IF_OURS, 29400);

    (void)state;
    (void)play(&h, "start-own taken connected lost", 0);
    assert_string_equal(play(&h, "time", 500), "listen -> listening");
    assert_string_equal(play(&h, "bound", 500), "connect own 59500 -> connecting");
    assert_string_equal(play(&h, "connected", 500), "use -> found");
}

static void silence_ends_with_the_time(void **state)
{
    struct mu_host h = host_with(MU_HOST_IF_OURS, 29400);

    (void)state;
    (void)play(&h, "start-foreign connected", 0);
    assert_string_equal(play(&h, "lost", PATIENCE_MS - 1), "disconnect, fail (reset) -> idle");
}

static void loopback_is_warned_of_once_and_only_where_it_matters(void **state)
{
    struct mu_host h = host_with(MU_HOST_IF_OURS, 29400);

    (void)state;
    (void)play(&h, "start-loopback taken", 0);
    assert_string_equal(play(&h, "alien start-loopback", 1), "listen -> listening");
    h = host_with(MU_HOST_IF_OURS, 29400);
    h.config.warn_loopback = false;
    assert_string_equal(play(&h, "start-loopback", 0), "listen -> listening");
}

/* ---- Staying for the others' sake ---- */

/* An agent that had come back to the rendezvous store was cut off when the workers' store was left. */
static void who_stays_goes_when_nobody_is_connected_to_either_store(void **state)
{
    static const enum mu_host_linger then[3][3] = {
        /* of the workers' store: none, alone, others */
        [MU_HOST_NO_STORE] = { MU_HOST_STAY, MU_HOST_GO, MU_HOST_AWAIT_WORKERS },
        [MU_HOST_ALONE] = { MU_HOST_GO, MU_HOST_GO, MU_HOST_AWAIT_WORKERS },
        [MU_HOST_OTHERS] = { MU_HOST_AWAIT_RENDEZVOUS, MU_HOST_AWAIT_RENDEZVOUS, MU_HOST_AWAIT_RENDEZVOUS },
    };

    (void)state;
    for (unsigned rendezvous = 0; rendezvous < 3; rendezvous++)
        for (unsigned workers = 0; workers < 3; workers++)
            assert_int_equal(mu_host_linger((enum mu_host_company)rendezvous, (enum mu_host_company)workers),
                             then[rendezvous][workers]);
}

static void the_parameters_say_who_hosts_and_where(void **state)
{
    static const struct {
        const char *endpoint, *options, *bind;
        int64_t nodes_max;
        int rc, port, rule;
        bool warns;
    } rows[] = {
        { "node1", "", NULL, 2, 0, MU_HOST_PORT_DEFAULT, MU_HOST_IF_OURS, false },
        { "node1:7", "is_host=true", NULL, 2, 0, 7, MU_HOST_ALWAYS, false },
        { "node1:7", "is_host=false", NULL, 2, 0, 7, MU_HOST_NEVER, false },
        { "node1:0", "is_host=true", NULL, 2, 0, 0, MU_HOST_ALWAYS, false },
        { "node1:0", "is_host=false", NULL, 2, MUSTER_EINVAL, 0, 0, false },
        { "node1", "is_host=perhaps", NULL, 2, MUSTER_EINVAL, 0, 0, false },
        { "node1", "store_type= TCP ", NULL, 2, 0, MU_HOST_PORT_DEFAULT, MU_HOST_IF_OURS, false },
        { "node1", "store_type=file", NULL, 2, MUSTER_ENOTSUP, 0, 0, false },
        { "node1", "store_type=etcd", NULL, 2, MUSTER_EINVAL, 0, 0, false },
        { "node1:99999", "", NULL, 2, MUSTER_EINVAL, 0, 0, false },
        /* Nodes of other machines would come to that address. */
        { "localhost:7", "", NULL, 2, 0, 7, MU_HOST_IF_OURS, true },
        { "localhost:7", "", NULL, 1, 0, 7, MU_HOST_IF_OURS, false },
        { "localhost:7", "", "any", 2, 0, 7, MU_HOST_IF_OURS, false },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_dynamic_config dynamic = { .settings = MU_RDZV_SETTINGS_DEFAULT,
                                             .bind = { .hosts = rows[i].bind },
                                             .request_timeout_ms = 5000 };
        struct muster_rdzv_params *params = NULL;
        struct mu_host_config config = { .port = 0 };
        char host[MU_HOST_MAX];

        dynamic.settings.nodes_max = rows[i].nodes_max;
        assert_int_equal(muster_rdzv_params_new("c10d", rows[i].endpoint, "job", 1, 2, NULL, &params, NULL), 0);
        assert_int_equal(muster_rdzv_params_set_options(params, rows[i].options, NULL), 0);
        assert_int_equal(mu_host_from_params(params, &dynamic, host, &config, NULL), rows[i].rc);
        if (rows[i].rc == 0) {
            assert_int_equal(config.port, rows[i].port);
            assert_int_equal(config.rule, rows[i].rule);
            assert_int_equal(config.patience_ms, 5000);
            assert_memory_equal(host, rows[i].endpoint, strcspn(rows[i].endpoint, ":"));
        }
        assert_int_equal(config.warn_loopback, rows[i].warns);
        muster_rdzv_params_free(params);
    }
}

static void a_host_dials_loopback_and_sends_its_workers_to_the_endpoint(void **state)
{
    static const struct {
        enum mu_host_place place;
        const char *dials, *workers;
    } rows[] = {
        { MU_HOST_ENDPOINT, "node1", "node1" },
        { MU_HOST_LOOPBACK, "127.0.0.1", "127.0.0.1" },
        { MU_HOST_OWN, "127.0.0.1", "node1" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct mu_host host = { .config = { .name = "node1" }, .place = rows[i].place };

        assert_string_equal(mu_host_dial_name(&host), rows[i].dials);
        assert_string_equal(mu_host_workers_name(&host), rows[i].workers);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_state_answers_each_event),
        cmocka_unit_test(is_host_decides_against_the_address),
        cmocka_unit_test(a_host_by_option_needs_no_address_and_joins_nobody),
        cmocka_unit_test(a_guest_by_option_looks_nothing_up),
        cmocka_unit_test(port_zero_is_the_hosts_alone),
        cmocka_unit_test(a_name_is_looked_up_until_the_time_is_up),
        cmocka_unit_test(a_name_that_appears_is_taken),
        cmocka_unit_test(a_taken_port_is_dialled_and_bound_by_turns_until_the_time_is_up),
        cmocka_unit_test(tries_that_fail_at_once_let_time_pass),
        cmocka_unit_test(a_taken_port_that_becomes_free_is_hosted),
        cmocka_unit_test(a_store_on_loopback_only_is_found),
        cmocka_unit_test(a_store_that_goes_before_it_says_who_hosts_it_is_not_found),
        cmocka_unit_test(a_host_that_is_killed_while_it_is_asked_may_be_replaced_by_us),
        cmocka_unit_test(silence_ends_with_the_time),
        cmocka_unit_test(loopback_is_warned_of_once_and_only_where_it_matters),
        cmocka_unit_test(who_stays_goes_when_nobody_is_connected_to_either_store),
        cmocka_unit_test(the_parameters_say_who_hosts_and_where),
        cmocka_unit_test(a_host_dials_loopback_and_sends_its_workers_to_the_endpoint),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
