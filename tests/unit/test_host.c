/* How a c10d node gets its store: every state with every event, and the stories that go through several of them. */
#include "handler/host.h"
#include "pure.h"

#include <stdio.h>
#include <stdlib.h>

enum { PATIENCE_MS = 60000 };

/* ---- What happens, by name ---- */

struct happening {
    const char *name;
    enum mu_host_event_type type;
    struct mu_host_addresses addresses;
    bool in_engine;
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
    { .name = "engine", .type = MU_HOST_ON_ANSWERED, .in_engine = true },
    { .name = "offered", .type = MU_HOST_ON_PROBED, .in_engine = true },
    { .name = "without", .type = MU_HOST_ON_PROBED },
    { .name = "silent", .type = MU_HOST_ON_NOT_PROBED, .code = MUSTER_ELOST, .text = "reset" },
    { .name = "babble", .type = MU_HOST_ON_NOT_PROBED, .code = MUSTER_EPROTOCOL, .text = "nonsense" },
    { .name = "nonsense", .type = MU_HOST_ON_NOT_ANSWERED, .code = MUSTER_EPROTOCOL, .text = "nonsense" },
    { .name = "unusable", .type = MU_HOST_ON_UNUSABLE },
    { .name = "moved", .type = MU_HOST_ON_MOVED },
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
    static const char *const names[] = { "resolve", "listen",     "record",   "watch", "connect", "ask",
                                         "probe",   "disconnect", "unlisten", "use",   "fail",    "" };
    static const char *const levels[] = {
        [MUSTER_LOG_INFO] = "info", [MUSTER_LOG_NOTICE] = "notice", [MUSTER_LOG_WARNING] = "warn"
    };
    size_t len = strlen(text);
    int put = snprintf(text + len, room - len, "%s%s", len > 0 ? ", " : "", names[effect->type]);

    len += (size_t)put;
    assert_true(len < room);
    if (effect->type == MU_HOST_DO_CONNECT)
        (void)snprintf(text + len, room - len, " %s %llu", places[effect->place], (unsigned long long)effect->wait_ms);
    else if (effect->type == MU_HOST_DO_USE && effect->engine)
        (void)snprintf(text + len, room - len, " engine");
    else if (effect->type == MU_HOST_DO_ASK || effect->type == MU_HOST_DO_PROBE)
        (void)snprintf(text + len, room - len, " %llu", (unsigned long long)effect->wait_ms);
    else if (effect->type == MU_HOST_DO_SAY)
        (void)snprintf(text + len, room - len, "%s (%s)", levels[effect->level], effect->text);
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
    const struct mu_bind_plan plan = { .reason = MU_BIND_OWN, .hosts = "10.0.0.7" };
    struct mu_host_event event = { .type = what->type,
                                   .now_ms = now_ms,
                                   .addresses = what->addresses,
                                   .port = 29401,
                                   .plan = &plan,
                                   .in_engine = what->in_engine,
                                   .node = mu_slice_str("node7_1_1") };
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

static struct mu_host engine_host(void)
{
    struct mu_host h = host_with(MU_HOST_IF_OURS, 29400);

    h.config.engine = true;
    return h;
}

#define HOSTS(connects)                                                                                                \
    "info (hosting its store on port 29401 of 10.0.0.7), record, watch, connect own " connects " -> connecting"

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
        { "", "start-loopback",
          "warn ('node7' is the loopback address, so only nodes on this host can join it), listen -> listening" },
        { "", "start-foreign", "connect endpoint 5000 -> connecting" },
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
        { "start", "foreign", "connect endpoint 5000 -> connecting" },
        { "start", "unknown", "warn (cannot resolve 'node7': no such name; trying again for 60 s) -> pausing" },
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

        { "start own", "bound", HOSTS("60000") },
        { "start own", "taken", "connect endpoint 3000 -> connecting" },
        { "start own", "forbidden",
          "warn (host the store: permission denied; looking for a store that already runs there), "
          "connect endpoint 60000 -> connecting" },
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
        { "start own taken", "refused", "disconnect, warn (the port is taken: refused; trying again) -> pausing" },
        { "start own taken", "alien", "disconnect, fail (the port is taken by another program: not a store) -> idle" },
        { "start own forbidden", "refused",
          "disconnect, fail (host the store: permission denied; and no other store is there: refused) -> idle" },
        { "start foreign", "connected", "ask 60000 -> asking" },
        { "start foreign", "refused", "disconnect, notice (refused; trying again for 60 s) -> pausing" },
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
    assert_string_equal(play(&never, "start-own", 0), "connect endpoint 5000 -> connecting");
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
    assert_string_equal(play(&h, "start", 0), "connect endpoint 5000 -> connecting");
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
    assert_string_equal(play(&h, "start own bound", 0), HOSTS("60000"));
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
        assert_string_equal(play(&h, "unknown", now_ms),
                            now_ms == 0
                                ? "warn (cannot resolve 'node7': no such name; trying again for 60 s) -> pausing"
                                : "pausing"); /* said once */
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
    assert_string_equal(play(&h, "bound", 700), HOSTS("59300"));
}

/* For ten minutes nobody knew why. */
static void a_store_that_is_not_reached_is_said_once_and_tried_for_the_rest(void **state)
{
    struct mu_host h = host_with(MU_HOST_IF_OURS, 29400), short_time = host_with(MU_HOST_IF_OURS, 29400);

    (void)state;
    assert_string_equal(play(&h, "start-foreign", 0), "connect endpoint 5000 -> connecting");
    assert_string_equal(play(&h, "refused", 5000), "disconnect, notice (refused; trying again for 55 s) -> pausing");
    assert_string_equal(play(&h, "time", 5500), "connect endpoint 54500 -> connecting");
    assert_string_equal(play(&h, "refused", 60000), "disconnect, fail (refused) -> idle");
    assert_string_equal(play(&h, "start-foreign", 61000), "connect endpoint 60000 -> connecting");

    short_time.config.patience_ms = 3000;
    assert_string_equal(play(&short_time, "start-foreign", 0), "connect endpoint 3000 -> connecting");
    assert_string_equal(play(&short_time, "refused", 3000), "disconnect, fail (refused) -> idle");
}

static void a_taken_port_is_dialled_and_bound_by_turns_until_the_time_is_up(void **state)
{
    struct mu_host h = host_with(MU_HOST_IF_OURS, 29400);

    (void)state;
    assert_string_equal(play(&h, "start-own taken", 0), "connect endpoint 3000 -> connecting");
    assert_string_equal(play(&h, "refused", 3000),
                        "disconnect, warn (the port is taken: refused; trying again) -> pausing");
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
    assert_string_equal(play(&h, "time bound", 3500), HOSTS("56500"));
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
    assert_string_equal(play(&h, "time", 510), "connect endpoint 5000 -> connecting");
    assert_string_equal(play(&h, "refused", 60000), "disconnect, fail (refused) -> idle");
}

static void a_host_that_is_killed_while_it_is_asked_may_be_replaced_by_us(void **state)
{
    struct mu_host h = host_with(MU_HOST_IF_OURS, 29400);

    (void)state;
    (void)play(&h, "start-own taken connected lost", 0);
    assert_string_equal(play(&h, "time", 500), "listen -> listening");
    assert_string_equal(play(&h, "bound", 500), HOSTS("59500"));
    assert_string_equal(play(&h, "connected", 500), "use -> found");
}

/* ---- The engine ---- */

#define USING(endpoint) "info (using muster's engine at " endpoint "), "
#define IN_A_DOCUMENT "info (meeting in a document: the store at node7:29400 has no engine), "
#define MOVED "info (meeting in a document: a PyTorch node is in the job), "

static void with_the_engine_each_state_goes_on_as_it_should(void **state)
{
    static const struct {
        const char *before, *event, *then;
    } rows[] = {
        { "start own", "bound",
          "info (hosting its store on port 29401 of 10.0.0.7), record, " USING(
              "127.0.0.1:29401") "use engine -> found" },
        { "start own", "taken", "connect endpoint 3000 -> connecting" },
        { "start own taken", "connected", "ask 60000 -> asking" },
        { "start foreign connected", "answered", "probe 60000 -> probing" },
        { "start foreign connected", "engine", "probe 60000 -> probing" },
        { "start foreign connected", "lost", "disconnect -> pausing" },
        { "start foreign connected", "offered", "asking" },
        { "start foreign connected", "silent", "asking" },
        { "start foreign connected answered", "offered", "disconnect, " USING("node7:29400") "use engine -> found" },
        { "start foreign connected answered", "without", IN_A_DOCUMENT "use -> found" },
        { "start foreign connected answered", "silent", "disconnect -> pausing" },
        { "start foreign connected answered", "babble", "disconnect, fail (nonsense) -> idle" },
        { "start foreign connected answered", "own", "probing" },
        { "start foreign connected answered", "bound", "probing" },
        { "start foreign connected answered", "connected", "probing" },
        { "start foreign connected answered", "answered", "probing" },
        { "start foreign connected answered", "lost", "probing" },
        { "start foreign connected answered", "unusable", "probing" },
        { "start foreign connected answered", "time", "probing" },
        { "start foreign connected answered offered", "unusable", "idle" },
        { "start own bound", "unusable", "unlisten -> idle" },
        { "start foreign connected answered offered", "moved", MOVED "connect endpoint 5000 -> connecting" },
        { "start foreign connected answered offered moved", "connected", "ask 60000 -> asking" },
        { "start foreign connected answered offered moved connected", "answered", "use -> found" },
        { "start foreign connected answered offered moved", "refused",
          "disconnect, notice (refused; trying again for 60 s) -> pausing" },
        { "start own bound", "moved", MOVED "watch, connect own 60000 -> connecting" },
        { "start own bound moved", "connected", "use -> found" },
        { "start own bound moved connected", "unusable", "unlisten -> idle" },
        /* For good. */
        { "start own bound moved connected unusable start foreign connected", "answered", "use -> found" },
        { "start own bound moved connected unusable start own", "bound",
          "info (hosting its store on port 29401 of 10.0.0.7), record, watch, connect own 60000 -> connecting" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_host h = engine_host();

        (void)play(&h, rows[i].before, 0);
        assert_string_equal(play(&h, rows[i].event, 0), rows[i].then);
    }
}

static void a_job_with_a_token_never_meets_in_a_document(void **state)
{
    struct mu_host h = engine_host();

    (void)state;
    h.config.token = true;
    assert_string_equal(play(&h, "start-foreign connected answered without", 0),
                        "disconnect, fail (a job with a token (token_file) meets in the engine alone, and the store at "
                        "node7:29400 has no engine) -> idle");
    h = engine_host();
    h.config.token = true;
    assert_string_equal(play(&h, "start-foreign connected answered offered", 0),
                        "disconnect, " USING("node7:29400") "use engine -> found");
}

static void an_address_with_colons_has_brackets_before_its_port(void **state)
{
    struct mu_host h = engine_host();
    char endpoint[MU_ENDPOINT_MAX];

    (void)state;
    h.config.name = "fd00::7";
    assert_string_equal(mu_host_dial_endpoint(&h, endpoint), "[fd00::7]:29400");
    assert_string_equal(play(&h, "start-foreign connected answered offered", 0),
                        "disconnect, " USING("[fd00::7]:29400") "use engine -> found");
}

static void a_probe_that_is_lost_is_made_again(void **state)
{
    struct mu_host h = engine_host();

    (void)state;
    (void)play(&h, "start-foreign connected answered silent", 0);
    assert_string_equal(play(&h, "time connected answered offered", 500),
                        "disconnect, " USING("node7:29400") "use engine -> found");
    assert_false(mu_host_hosts(&h));
    (void)play(&h, "unusable start-foreign connected answered", 1000);
    assert_string_equal(play(&h, "silent", 1000 + PATIENCE_MS), "disconnect, fail (reset) -> idle");
}

/* Agents' keys are there all the while. */
static void a_store_is_known_also_while_the_job_moves_to_its_document(void **state)
{
    static const struct {
        const char *words;
        bool known;
    } rows[] = { { "start-foreign connected answered", false },
                 { "offered", true },
                 { "moved", true },
                 { "refused", true },
                 { "time", true },
                 { "connected answered", true },
                 { "unusable", false },
                 { "start-foreign", true } };
    struct mu_host h = engine_host();

    (void)state;
    assert_false(mu_host_is_known(&h));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        (void)play(&h, rows[i].words, 1000 * i);
        assert_int_equal(mu_host_is_known(&h), rows[i].known);
    }
}

static void a_job_that_wants_the_engine_only_does_not_follow_to_a_document(void **state)
{
    struct mu_host h = engine_host();

    (void)state;
    h.config.only = true;
    assert_string_equal(play(&h, "start-foreign connected answered offered moved", 0),
                        "fail (a job with engine=only meets in the engine alone, and the store at node7:29400 has a "
                        "document of this job: a node without the engine began it) -> idle");
    h = engine_host();
    h.config.only = true;
    assert_string_equal(play(&h, "start-foreign connected answered without", 0),
                        "disconnect, fail (a job with engine=only meets in the engine alone, and the store at "
                        "node7:29400 has no engine) -> idle");
}

static void a_node_without_the_engine_is_told_that_the_others_have_it(void **state)
{
    struct mu_host h = host_with(MU_HOST_IF_OURS, 29400);

    (void)state;
    (void)play(&h, "start-foreign connected", 0);
    assert_string_equal(play(&h, "engine", 0),
                        "disconnect, fail (this node has engine=off, but the job meets in the engine of the store at "
                        "node7:29400 alone (it has a token, or engine=only); start it without engine=off) -> idle");
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
    assert_int_equal(mu_host_linger_first(false, false), MU_HOST_STAY);
    assert_int_equal(mu_host_linger_first(false, true), MU_HOST_AWAIT_WORKERS);
    assert_int_equal(mu_host_linger_first(true, false), MU_HOST_AWAIT_RENDEZVOUS);
    assert_int_equal(mu_host_linger_first(true, true), MU_HOST_AWAIT_RENDEZVOUS);
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
        { "node1:7", "engine=off", NULL, 2, 0, 7, MU_HOST_IF_OURS, false },
        { "node1:7", "engine= ON ", NULL, 2, 0, 7, MU_HOST_IF_OURS, false },
        { "node1:7", "engine=Only", NULL, 2, 0, 7, MU_HOST_IF_OURS, false },
        { "node1:7", "engine=yes", NULL, 2, MUSTER_EINVAL, 0, 0, false },
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
        char host[MU_HOST_MAX], endpoint[MU_ENDPOINT_MAX], expected[MU_ENDPOINT_MAX];

        dynamic.settings.nodes_max = rows[i].nodes_max;
        assert_int_equal(muster_rdzv_params_new("c10d", rows[i].endpoint, "job", 1, 2, NULL, &params, NULL), 0);
        assert_int_equal(muster_rdzv_params_set_options(params, rows[i].options, NULL), 0);
        assert_int_equal(mu_host_from_params(params, &dynamic, host, endpoint, &config, NULL), rows[i].rc);
        if (rows[i].rc == 0) {
            assert_int_equal(config.port, rows[i].port);
            assert_int_equal(config.rule, rows[i].rule);
            assert_int_equal(config.patience_ms, 5000);
            assert_memory_equal(host, rows[i].endpoint, strcspn(rows[i].endpoint, ":"));
            assert_int_equal(config.others, rows[i].nodes_max > 1);
            assert_int_equal(config.only, strstr(rows[i].options, "Only") != NULL);
            assert_int_equal(config.engine, strstr(rows[i].options, "off") == NULL);
            (void)snprintf(expected, sizeof expected, "%s:%d", host, rows[i].port);
            assert_string_equal(endpoint, expected);
        }
        assert_int_equal(config.warn_loopback, rows[i].warns);
        muster_rdzv_params_free(params);
    }
}

static void addresses_are_summed_up(void **state)
{
    static const struct {
        const char *addrs; /* with a + behind this machine's */
        struct mu_host_addresses all;
    } rows[] = {
        { "", { 0, false, true } },
        { "127.0.0.1+", { 1, true, true } },
        { "127.0.0.1+ ::1", { 2, true, true } },
        { "10.0.0.5+", { 1, true, false } },
        { "10.0.0.4 10.0.0.5+ 10.0.0.6", { 3, true, false } },
        { "127.0.0.1 10.0.0.5", { 2, false, false } },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        union mu_addr addrs[4];
        bool owned[4];
        unsigned count = 0;
        struct mu_host_addresses all;

        for (const char *at = rows[i].addrs; *at != '\0'; count++) {
            size_t len = strcspn(at, "+ ");
            char text[64];

            (void)snprintf(text, sizeof text, "%.*s", (int)len, at);
            assert_true(count < COUNT(addrs) && mu_addr_parse(text, 0, &addrs[count]));
            owned[count] = at[len] == '+';
            at += len + strspn(at + len, "+ ");
        }
        all = mu_host_addresses(addrs, owned, count);
        assert_int_equal(all.count, rows[i].all.count);
        assert_int_equal(all.any_own, rows[i].all.any_own);
        assert_int_equal(all.all_loopback, rows[i].all.all_loopback);
    }
}

static void it_is_known_who_hosts(void **state)
{
    struct mu_host h = host_with(MU_HOST_IF_OURS, 0);
    char too_long[MU_NODE_TEXT_MAX + 1];
    struct mu_host_event answer = { .type = MU_HOST_ON_ANSWERED };
    struct mu_host_effects effects;

    (void)state;
    (void)play(&h, "start own bound", 0); /* by the happening, this is node7_1_1 */
    assert_string_equal(mu_host_published(&h), "node7_1_1");
    assert_int_equal(mu_host_port(&h), 29401);
    (void)play(&h, "refused", 0);
    assert_null(mu_host_published(&h));
    assert_int_equal(mu_host_port(&h), 0);

    h = host_with(MU_HOST_IF_OURS, 29400);
    (void)play(&h, "start-foreign connected answered", 0);
    assert_string_equal(h.hosted_by, "node7_1_1");
    assert_null(mu_host_published(&h)); /* that is its host's to say */
    assert_int_equal(mu_host_port(&h), 29400);
    (void)play(&h, "unusable start-foreign", 0);
    assert_string_equal(h.hosted_by, "");

    memset(too_long, 'n', sizeof too_long);
    for (int len = MU_NODE_TEXT_MAX + 1; len >= MU_NODE_TEXT_MAX - 1; len--) {
        h = host_with(MU_HOST_IF_OURS, 29400);
        (void)play(&h, "start-foreign connected", 0);
        answer.node = mu_slice(too_long, (size_t)len);
        mu_host_step(&h, &answer, &effects);
        assert_int_equal(strlen(h.hosted_by), len < MU_NODE_TEXT_MAX ? len : 0);
    }
}

/* Debian maps a machine's own name to 127.0.1.1. */
static void a_host_that_listens_on_more_than_was_said_warns(void **state)
{
    static const struct {
        enum mu_bind_reason reason;
        bool others, warns;
    } rows[] = {
        { MU_BIND_OWN, true, false },
        { MU_BIND_INTERFACES, false, false },
        { MU_BIND_INTERFACES, true, true },
        { MU_BIND_NOT_OWN, false, true },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_host h = host_with(MU_HOST_IF_OURS, 29400);
        const struct mu_bind_plan plan = { .reason = rows[i].reason, .hosts = "any" };
        const struct mu_host_event bound = { .type = MU_HOST_ON_BOUND, .port = 7, .plan = &plan };
        struct mu_host_effects effects;

        h.config.others = rows[i].others;
        (void)play(&h, "start own", 0);
        mu_host_step(&h, &bound, &effects);
        assert_int_equal(effects.count, rows[i].warns ? 5 : 4);
        assert_int_equal(effects.items[0].level, rows[i].warns ? MUSTER_LOG_WARNING : MUSTER_LOG_INFO);
        assert_string_equal(effects.items[rows[i].warns].text, "hosting its store on port 7 of any");
    }
}

static void a_value_that_no_node_writes_is_told_with_its_writer(void **state)
{
    static const struct {
        const char *writer, *value, *text;
    } rows[] = {
        { NULL, "strange", NULL },
        { "10.0.0.9", MU_KV_C10D_NO_DOCUMENT, NULL },
        { "10.0.0.9", "gASVaaaa", NULL },
        { "10.0.0.9", "gA", "10.0.0.9:5 has overwritten the document with something else (2 bytes)" },
        { "10.0.0.9", "strange", "10.0.0.9:5 has overwritten the document with something else (7 bytes)" },
        { "10.0.0.9", "", "10.0.0.9:5 has overwritten the document with something else (0 bytes)" },
    };
    char *key = mu_host_document_key("job");

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        union mu_addr addr;
        char text[MU_HOST_SAY_MAX];
        const union mu_addr *writer = rows[i].writer != NULL && mu_addr_parse(rows[i].writer, 5, &addr) ? &addr : NULL;

        struct mu_host_effect said = { .text = NULL };

        assert_int_equal(mu_host_overwritten(writer, mu_slice_str(rows[i].value), text, &said), rows[i].text != NULL);
        if (rows[i].text == NULL)
            continue;
        assert_true(said.type == MU_HOST_DO_SAY && said.level == MUSTER_LOG_WARNING);
        assert_string_equal(said.text, rows[i].text);
    }
    assert_string_equal(key, "/torch.rendezvous.job");
    free(key);
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
        cmocka_unit_test(a_store_that_is_not_reached_is_said_once_and_tried_for_the_rest),
        cmocka_unit_test(a_taken_port_is_dialled_and_bound_by_turns_until_the_time_is_up),
        cmocka_unit_test(tries_that_fail_at_once_let_time_pass),
        cmocka_unit_test(a_taken_port_that_becomes_free_is_hosted),
        cmocka_unit_test(a_store_on_loopback_only_is_found),
        cmocka_unit_test(a_store_that_goes_before_it_says_who_hosts_it_is_not_found),
        cmocka_unit_test(a_host_that_is_killed_while_it_is_asked_may_be_replaced_by_us),
        cmocka_unit_test(with_the_engine_each_state_goes_on_as_it_should),
        cmocka_unit_test(a_job_with_a_token_never_meets_in_a_document),
        cmocka_unit_test(an_address_with_colons_has_brackets_before_its_port),
        cmocka_unit_test(a_probe_that_is_lost_is_made_again),
        cmocka_unit_test(a_store_is_known_also_while_the_job_moves_to_its_document),
        cmocka_unit_test(a_job_that_wants_the_engine_only_does_not_follow_to_a_document),
        cmocka_unit_test(a_node_without_the_engine_is_told_that_the_others_have_it),
        cmocka_unit_test(silence_ends_with_the_time),
        cmocka_unit_test(loopback_is_warned_of_once_and_only_where_it_matters),
        cmocka_unit_test(who_stays_goes_when_nobody_is_connected_to_either_store),
        cmocka_unit_test(the_parameters_say_who_hosts_and_where),
        cmocka_unit_test(addresses_are_summed_up),
        cmocka_unit_test(it_is_known_who_hosts),
        cmocka_unit_test(a_host_that_listens_on_more_than_was_said_warns),
        cmocka_unit_test(a_value_that_no_node_writes_is_told_with_its_writer),
        cmocka_unit_test(a_host_dials_loopback_and_sends_its_workers_to_the_endpoint),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
