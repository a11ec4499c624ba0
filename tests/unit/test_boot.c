/* Where the workers of a round meet: what rank 0 opens and publishes, what the others read, and how it fails. */
#include "failmalloc.h"
#include "handler/boot.h"
#include "pure.h"

#include <inttypes.h>
#include <stdio.h>

enum { T0 = 1000, DEADLINE = T0 + MU_BOOT_TIMEOUT_MS };

#define K(round, name) "torch.rendezvous.job." #round "/MASTER_" name

struct scene {
    struct mu_boot boot;
    char trace[4096];
    uint64_t id; /* of the last request */
};

static int set_up(void **state)
{
    static struct scene scene;
    struct mu_boot_config config = { .run_id = "job", .hostname = "here", .use_agent_store = true };

    scene = (struct scene){ .id = 0 };
    assert_int_equal(mu_boot_init(&scene.boot, &config, NULL), 0);
    *state = &scene;
    return 0;
}

static int tear_down(void **state)
{
    struct scene *s = *state;

    mu_boot_done(&s->boot);
    return 0;
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

static void configure(struct scene *s, struct mu_boot_config config)
{
    mu_boot_done(&s->boot);
    config.run_id = "job";
    config.hostname = "here";
    assert_int_equal(mu_boot_init(&s->boot, &config, NULL), 0);
}

/* The place only where the user has named a port. */
static int show_place(char *text, size_t room, const char *what, const struct mu_boot_effect *e)
{
    return e->port == 0 ? snprintf(text, room, "%s", what)
                        : snprintf(text, room, "%s %s %u", what, e->addr, (unsigned)e->port);
}

static int show(char *text, size_t room, const struct mu_boot_effect *e)
{
    switch (e->type) {
    case MU_BOOT_DO_OPEN_STORE:
        return show_place(text, room, e->apart ? "open apart" : "open", e);
    case MU_BOOT_DO_RENEW_STORE:
        return show_place(text, room, "renew", e);
    case MU_BOOT_DO_OPEN_AGENTS:
        return show_place(text, room, "open for agents", e);
    case MU_BOOT_DO_FREE_PORT:
        return show_place(text, room, "free port", e);
    case MU_BOOT_DO_REACH:
        return snprintf(text, room, "reach %s %u %" PRIu64, e->addr, e->port, e->wait_ms);
    case MU_BOOT_DO_CLOSE_STORE:
        return snprintf(text, room, "close");
    case MU_BOOT_DO_CLOSE_AGENTS:
        return snprintf(text, room, "close the agents'");
    case MU_BOOT_DO_CHECK_SELF:
        return snprintf(text, room, "self %s %u %" PRIu64, e->addr, e->port, e->wait_ms);
    case MU_BOOT_DO_GET:
        return snprintf(text, room, "get %.*s %" PRIu64, (int)e->key.len, e->key.data, e->wait_ms);
    case MU_BOOT_DO_CHECK:
        return snprintf(text, room, "check %.*s", (int)e->key.len, e->key.data);
    case MU_BOOT_DO_SET:
        return snprintf(text, room, "set %.*s=%.*s", (int)e->key.len, e->key.data, (int)e->value.len, e->value.data);
    case MU_BOOT_DO_DONE:
        return snprintf(text, room, "done '%s' %u", e->addr, e->port);
    case MU_BOOT_DO_FAIL:
        return snprintf(text, room, "fail %s: %s", muster_error_name(e->error->code), e->error->text);
    case MU_BOOT_DO_SAY:
        assert_true(e->level == MUSTER_LOG_WARNING || e->level == MUSTER_LOG_DEBUG);
        return snprintf(text, room, "%s: %s", e->level == MUSTER_LOG_WARNING ? "warn" : "debug", e->text);
    }
    return 0;
}

static const char *step(struct scene *s, struct mu_boot_event event)
{
    struct mu_boot_effects effects;
    size_t used = 0;

    mu_boot_step(&s->boot, &event, &effects);
    s->trace[0] = '\0';
    for (unsigned i = 0; i < effects.count; i++) {
        used += (size_t)snprintf(s->trace + used, sizeof s->trace - used, "%s", i > 0 ? ", " : "");
        used += (size_t)show(s->trace + used, sizeof s->trace - used, &effects.items[i]);
        if (effects.items[i].id != 0)
            s->id = effects.items[i].id;
    }
    return s->trace;
}

static const char *start(struct scene *s, uint64_t now_ms, struct mu_boot_start round)
{
    return step(s, (struct mu_boot_event){ .type = MU_BOOT_ON_START, .now_ms = now_ms, .start = &round });
}

/* A round of our own kind. */
static struct mu_boot_start ours(int64_t round, int64_t rank)
{
    return (struct mu_boot_start){
        .round = round,
        .rank = rank,
        .all_ours = true,
        .rank0_ours = true,
        .rank0 = mu_slice_str("a_1_1"),
        .own_addr = "10.0.0.1",
    };
}

/* A round with a PyTorch member, and who rank 0 is. */
static struct mu_boot_start mixed(int64_t round, int64_t rank, bool rank0_ours, const char *rank0)
{
    struct mu_boot_start start_of = ours(round, rank);

    start_of.all_ours = false;
    start_of.rank0_ours = rank0_ours;
    start_of.rank0 = mu_slice_str(rank0);
    return start_of;
}

static const char *listening(struct scene *s, uint64_t now_ms, uint16_t port)
{
    return step(s, (struct mu_boot_event){ .type = MU_BOOT_ON_LISTENING, .now_ms = now_ms, .id = s->id, .port = port });
}

static const char *plain(struct scene *s, enum mu_boot_event_type type, uint64_t now_ms)
{
    return step(s, (struct mu_boot_event){ .type = type, .now_ms = now_ms, .id = s->id });
}

static const char *got(struct scene *s, uint64_t now_ms, const char *value)
{
    return step(s, (struct mu_boot_event){
                       .type = MU_BOOT_ON_GOT, .now_ms = now_ms, .id = s->id, .value = mu_slice_str(value) });
}

static const char *found(struct scene *s, uint64_t now_ms, bool is_there)
{
    return step(s,
                (struct mu_boot_event){ .type = MU_BOOT_ON_FOUND, .now_ms = now_ms, .id = s->id, .found = is_there });
}

static const char *failed(struct scene *s, enum mu_boot_event_type type, uint64_t now_ms, int code, const char *text)
{
    struct muster_error error;

    (void)mu_fail(&error, code, "%s", text);
    return step(s, (struct mu_boot_event){ .type = type, .now_ms = now_ms, .id = s->id, .error = &error });
}

static void publishes(struct scene *s, uint64_t now_ms, uint16_t port)
{
    assert_non_null(strstr(listening(s, now_ms, port), "self 10.0.0.1"));
    assert_non_null(strstr(plain(s, MU_BOOT_ON_CHECKED, now_ms), "MASTER_ADDR=10.0.0.1"));
    assert_non_null(strstr(plain(s, MU_BOOT_ON_SET, now_ms), "MASTER_PORT="));
    assert_non_null(strstr(plain(s, MU_BOOT_ON_SET, now_ms), "done '10.0.0.1'"));
}

/* The names of keys, of both kinds. */
static void keys_bear_the_tag_of_a_round_that_is_ours_alone(void **state)
{
    static const char tagged[] = "muster.job/3.00000000000000ab/MASTER_";
    struct scene *s = *state;
    struct mu_boot_start round = ours(3, 0);
    char expected[128];

    round.tag = 0xab;
    (void)start(s, T0, round);
    (void)listening(s, T0, 4711);
    (void)snprintf(expected, sizeof expected, "set %sADDR=10.0.0.1", tagged);
    assert_string_equal(plain(s, MU_BOOT_ON_CHECKED, T0), expected);
    (void)snprintf(expected, sizeof expected, "set %sPORT=4711", tagged);
    assert_string_equal(plain(s, MU_BOOT_ON_SET, T0), expected);

    round.rank = 1;
    (void)snprintf(expected, sizeof expected, "%sADDR", tagged);
    assert_non_null(strstr(start(s, T0, round), expected));
    (void)snprintf(expected, sizeof expected, "%sPORT", tagged);
    assert_non_null(strstr(got(s, T0, "10.0.0.1"), expected));

    round = mixed(4, 1, true, "a_1_1"); /* PyTorch looks for its own names */
    round.tag = 0xab;
    assert_non_null(strstr(start(s, T0, round), "get " K(4, "ADDR")));
}

/* ---- Rank 0 ---- */

static void rank_0_opens_a_store_checks_it_and_publishes_address_then_port(void **state)
{
    struct scene *s = *state;

    assert_true(mu_boot_deadline_ms(&s->boot) == UINT64_MAX);
    assert_string_equal(start(s, T0, ours(3, 0)), "open");
    assert_true(mu_boot_deadline_ms(&s->boot) == DEADLINE);
    assert_string_equal(listening(s, T0, 4711), "self 10.0.0.1 4711 5000");
    assert_string_equal(plain(s, MU_BOOT_ON_CHECKED, T0), "set " K(3, "ADDR") "=10.0.0.1");
    assert_string_equal(plain(s, MU_BOOT_ON_SET, T0), "set " K(3, "PORT") "=4711");
    assert_string_equal(plain(s, MU_BOOT_ON_SET, T0), "done '10.0.0.1' 4711");
    assert_string_equal(mu_boot_state_text(s->boot.state), "done");
    assert_true(mu_boot_deadline_ms(&s->boot) == UINT64_MAX);
}

static void where_many_nodes_may_come_the_workers_store_has_a_thread_of_its_own(void **state)
{
    static const struct {
        int64_t nodes_max;
        const char *opens;
    } rows[] = { { 0, "open" },
                 { MU_BOOT_APART_NODES - 1, "open" },
                 { MU_BOOT_APART_NODES, "open apart" },
                 { 10 * MU_BOOT_APART_NODES, "open apart" } };
    struct scene *s = *state;

    for (size_t i = 0; i < COUNT(rows); i++) {
        configure(s, (struct mu_boot_config){ .use_agent_store = true, .nodes_max = rows[i].nodes_max });
        assert_string_equal(start(s, T0, ours(0, 0)), rows[i].opens);
    }
    configure(s, (struct mu_boot_config){
                     .use_agent_store = true, .nodes_max = MU_BOOT_APART_NODES, .master = { .port = 4711 } });
    assert_null(strstr(start(s, T0, ours(0, 0)), "apart")); /* the next round wants the port at once */
    configure(s, (struct mu_boot_config){ .agents_store = true, .nodes_max = MU_BOOT_APART_NODES });
    assert_string_equal(start(s, T0, ours(0, 0)), "open for agents"); /* to which few connect */
}

static void rounds_of_our_own_kind_get_a_new_store_each(void **state)
{
    struct scene *s = *state;

    assert_string_equal(start(s, T0, ours(0, 0)), "open");
    publishes(s, T0, 4711);
    assert_string_equal(start(s, T0, ours(1, 0)), "close, open");
    publishes(s, T0, 4712);
    assert_string_equal(start(s, T0, ours(2, 1)), "close, get " K(2, "ADDR") " 2000");
    assert_string_equal(start(s, T0, ours(3, 0)), "open");
}

static void with_a_stock_member_one_listener_stays_for_good(void **state)
{
    struct scene *s = *state;

    assert_string_equal(start(s, T0, ours(0, 0)), "open");
    publishes(s, T0, 4711);
    assert_string_equal(start(s, T0, mixed(1, 0, true, "a_1_1")), "renew");
    publishes(s, T0, 4711);
    assert_string_equal(start(s, T0, ours(2, 0)), "renew");
    publishes(s, T0, 4711);
    assert_string_equal(start(s, T0, ours(3, 1)), "get " K(3, "ADDR") " 2000");
    assert_string_equal(plain(s, MU_BOOT_ON_STOP, T0), "");
}

static void without_an_agents_store_only_a_free_port_is_published(void **state)
{
    struct scene *s = *state;

    configure(s, (struct mu_boot_config){ .use_agent_store = false });
    assert_string_equal(start(s, T0, ours(0, 0)), "free port");
    assert_string_equal(listening(s, T0, 999), "set " K(0, "ADDR") "=10.0.0.1");
    assert_string_equal(plain(s, MU_BOOT_ON_SET, T0), "set " K(0, "PORT") "=999");
    assert_string_equal(plain(s, MU_BOOT_ON_SET, T0), "done '10.0.0.1' 999");
    assert_string_equal(start(s, T0, ours(1, 0)), "free port");
}

static void an_old_document_gets_a_free_port_too(void **state)
{
    struct scene *s = *state;
    struct mu_boot_start old = mixed(4, 0, true, "a_1_1");

    old.old_dialect = true;
    assert_string_equal(start(s, T0, old), "free port");
    assert_string_equal(listening(s, T0, 999), "set " K(4, "ADDR") "=10.0.0.1");
}

/* PyTorch 2.5 publishes nothing: its workers go to the endpoint. */
static void workers_that_meet_in_the_rendezvous_store_need_no_other(void **state)
{
    struct scene *s = *state;

    for (int64_t rank = 0; rank < 2; rank++) {
        struct mu_boot_start there = mixed(4, rank, rank == 0, rank == 0 ? "a_1_1" : "B_2_2");

        there.met_at = "node1";
        there.met_port = 29400;
        assert_string_equal(start(s, T0, there), "done 'node1' 29400"); /* and no word of a rank 0 that moved */
        there.round = 5;
        there.met_at = "127.0.0.1";
        assert_string_equal(start(s, T0, there), "done '127.0.0.1' 29400");
    }
    assert_string_equal(start(s, T0, ours(6, 0)), "open");
}

static void an_endpoint_that_is_too_long_to_be_met_at_is_an_error(void **state)
{
    struct scene *s = *state;
    char name[MU_BOOT_ADDR_MAX + 1];
    struct mu_boot_start there = mixed(4, 0, true, "a_1_1");

    memset(name, 'n', MU_BOOT_ADDR_MAX);
    name[MU_BOOT_ADDR_MAX] = '\0';
    there.met_at = name;
    there.met_port = 29400;
    assert_non_null(strstr(start(s, T0, there), "fail ELIMIT"));
}

static void a_free_port_leaves_the_kept_listener_alone(void **state)
{
    struct scene *s = *state;
    struct mu_boot_start old = mixed(2, 0, true, "a_1_1");

    old.old_dialect = true;
    assert_string_equal(start(s, T0, mixed(1, 0, true, "a_1_1")), "open");
    publishes(s, T0, 4711);
    assert_string_equal(start(s, T0, old), "free port");
    assert_non_null(strstr(failed(s, MU_BOOT_ON_LISTEN_FAILED, T0, MUSTER_ESYSTEM, "no"), "fail ESYSTEM"));
    assert_string_equal(start(s, T0, ours(3, 0)), "renew");
    assert_non_null(strstr(failed(s, MU_BOOT_ON_LISTEN_FAILED, T0, MUSTER_ENOMEM, "no"), "fail ENOMEM"));
    assert_string_equal(start(s, T0, ours(4, 0)), "renew"); /* it still listens */
}

static void the_address_is_the_best_that_is_known(void **state)
{
    static const struct {
        const char *local_addr, *own, *accepted_on;
        bool standalone, elsewhere;
        const char *first, *second; /* tried, then after the first does not work */
        bool at_localhost;
        bool no_localhost;
    } rows[] = {
        { NULL, "10.0.0.1", NULL, false, false, "10.0.0.1", "here", false, false },
        { NULL, "10.0.0.1", "10.0.0.7", false, true, "10.0.0.1", "here", false, false },
        { "", "10.0.0.1", NULL, false, false, "10.0.0.1", "here", false, false },
        { "name.example", "10.0.0.1", "10.0.0.7", false, true, "name.example", NULL, false, false },
        { "169.254.0.9", "10.0.0.1", NULL, false, true, "169.254.0.9", NULL, false, false },
        { NULL, "127.0.0.1", NULL, false, false, "127.0.0.1", "here", false, false },
        { NULL, "127.0.0.1", "10.0.0.7", false, false, "10.0.0.7", "127.0.0.1", false, false },
        { NULL, "::1", "10.0.0.7", false, true, "10.0.0.7", "here", false, false },
        { NULL, "127.0.0.1", NULL, false, true, "here", "127.0.0.1", false, false },
        { NULL, "10.0.0.1", NULL, true, false, "localhost", "127.0.0.1", false, false },
        { NULL, "127.0.0.1", NULL, true, false, "127.0.0.1", NULL, true, true },
        { "node1", "127.0.0.1", NULL, true, false, "node1", NULL, true, false },
        { NULL, "127.0.0.1", NULL, false, false, "localhost", "127.0.0.1", true, false },
        { NULL, "::1", NULL, false, false, "localhost", "::1", true, false },
        { NULL, "127.0.0.1", NULL, false, false, "127.0.0.1", "here", true, true },
        { NULL, "127.0.0.1", "10.0.0.7", false, true, "10.0.0.7", "here", true, false },
        { NULL, "127.0.0.1", "10.0.0.7", false, false, "10.0.0.7", "localhost", true, false },
        { NULL, "10.0.0.1", NULL, false, false, "10.0.0.1", "here", true, false },
        { NULL, "", NULL, false, false, "here", NULL, false, false },
        { NULL, NULL, NULL, false, false, "here", NULL, false, false },
        { NULL, "169.254.3.4", NULL, false, false, "here", NULL, false, false },
        { NULL, "fe80::1", NULL, false, false, "here", NULL, false, false },
        { NULL, "::1", "fe80::1", false, false, "::1", "here", false, false },
        { NULL, "fd00::1", NULL, false, false, "fd00::1", "here", false, false },
    };
    struct scene *s = *state;

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_boot_start round = ours(0, 0);
        char expected[64];

        configure(s, (struct mu_boot_config){ .use_agent_store = true,
                                              .local_addr = rows[i].local_addr,
                                              .nodes_max = rows[i].standalone ? 1 : 2,
                                              .at_localhost = rows[i].at_localhost,
                                              .no_localhost = rows[i].no_localhost });
        round.own_addr = rows[i].own;
        round.accepted_on = rows[i].accepted_on;
        round.elsewhere = rows[i].elsewhere;
        assert_string_equal(start(s, T0, round), "open");
        (void)snprintf(expected, sizeof expected, "self %s 1 5000", rows[i].first);
        assert_string_equal(listening(s, T0, 1), expected);
        (void)failed(s, MU_BOOT_ON_REQUEST_FAILED, T0, MUSTER_ECONNECT, "refused");
        if (rows[i].second == NULL) {
            (void)snprintf(expected, sizeof expected, "its own worker store at %s, port 1: refused", rows[i].first);
            assert_non_null(strstr(s->trace, "fail ECONNECT: bootstrap of round 0: this node does not reach "));
        } else {
            (void)snprintf(expected, sizeof expected, "; trying %s, self %s 1 5000", rows[i].second, rows[i].second);
        }
        assert_non_null(strstr(s->trace, expected));
    }
}

static void the_address_is_one_that_we_listen_on(void **state)
{
    static const struct {
        const char *bind, *own, *accepted_on;
        bool elsewhere;
        const char *first, *second;
    } rows[] = {
        { "10.0.0.5", "10.0.0.1", NULL, false, "10.0.0.5", "here" },
        { "10.0.0.5,10.0.0.1", "10.0.0.1", NULL, false, "10.0.0.1", "10.0.0.5" },
        { "any", "10.0.0.1", NULL, false, "10.0.0.1", "here" },
        { "localhost", "10.0.0.1", NULL, false, "127.0.0.1", "here" },
        { "10.0.0.5", "127.0.0.1", "10.0.0.7", true, "10.0.0.5", "here" },
        { "10.0.0.5", "127.0.0.1", NULL, true, "10.0.0.5", "here" },
        { "10.0.0.5", "127.0.0.1", NULL, false, "127.0.0.1", "10.0.0.5" },
    };
    struct scene *s = *state;

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_boot_start round = ours(0, 0);
        char expected[64];

        configure(s, (struct mu_boot_config){ .use_agent_store = true, .bind = { .hosts = rows[i].bind } });
        assert_string_equal(s->boot.bind.hosts, rows[i].bind);
        round.own_addr = rows[i].own;
        round.accepted_on = rows[i].accepted_on;
        round.elsewhere = rows[i].elsewhere;
        assert_string_equal(start(s, T0, round), "open");
        (void)snprintf(expected, sizeof expected, "self %s 1 5000", rows[i].first);
        assert_string_equal(listening(s, T0, 1), expected);
        (void)failed(s, MU_BOOT_ON_REQUEST_FAILED, T0, MUSTER_ECONNECT, "refused");
        (void)snprintf(expected, sizeof expected, "; trying %s, self", rows[i].second);
        assert_non_null(strstr(s->trace, expected));
    }
}

static void without_any_address_it_says_so(void **state)
{
    struct mu_boot_config config = { .run_id = "job", .hostname = "", .use_agent_store = true };
    struct scene *s = *state;
    struct mu_boot_start round = ours(0, 0);

    mu_boot_done(&s->boot);
    assert_int_equal(mu_boot_init(&s->boot, &config, NULL), 0);
    round.own_addr = "fe80::1";
    assert_string_equal(start(s, T0, round), "fail EINVAL: bootstrap of round 0: no address of this machine is known; "
                                             "--local-addr names one");
}

static void a_store_that_does_not_open_is_the_end(void **state)
{
    struct scene *s = *state;

    (void)start(s, T0, ours(0, 0));
    assert_string_equal(failed(s, MU_BOOT_ON_LISTEN_FAILED, T0, MUSTER_ESYSTEM, "too many open files"),
                        "fail ESYSTEM: bootstrap of round 0: open the worker store: too many open files");
    assert_string_equal(start(s, T0, ours(1, 0)), "open"); /* nothing to close */
}

static void publishing_is_tried_again_while_the_store_is_away(void **state)
{
    struct scene *s = *state;

    (void)start(s, T0, ours(0, 0));
    (void)listening(s, T0, 4711);
    (void)plain(s, MU_BOOT_ON_CHECKED, T0);
    assert_string_equal(failed(s, MU_BOOT_ON_REQUEST_FAILED, T0, MUSTER_ELOST, "gone"), "");
    assert_true(mu_boot_deadline_ms(&s->boot) == T0 + MU_BOOT_RETRY_MS);
    assert_string_equal(plain(s, MU_BOOT_ON_SET, T0), ""); /* not asked */
    assert_string_equal(plain(s, MU_BOOT_ON_TIME, T0 + MU_BOOT_RETRY_MS - 1), "");
    assert_string_equal(plain(s, MU_BOOT_ON_TIME, T0 + MU_BOOT_RETRY_MS), "set " K(0, "ADDR") "=10.0.0.1");
    assert_true(mu_boot_deadline_ms(&s->boot) == DEADLINE);
    (void)failed(s, MU_BOOT_ON_REQUEST_FAILED, DEADLINE - 100, MUSTER_ECONNECT, "refused");
    assert_true(mu_boot_deadline_ms(&s->boot) == DEADLINE);
    assert_string_equal(
        plain(s, MU_BOOT_ON_TIME, DEADLINE),
        "fail ERDZV_CONNECTION: bootstrap of round 0: publish MASTER_ADDR: gave up after 60.0 s: refused");
}

static void an_error_that_does_not_mend_is_the_end(void **state)
{
    static const int codes[] = { MUSTER_ENOTSUP, MUSTER_EPROTOCOL, MUSTER_ECANCELED, MUSTER_ENOMEM, MUSTER_ELIMIT };
    struct scene *s = *state;

    for (size_t i = 0; i < COUNT(codes); i++) {
        (void)start(s, T0, ours(0, 1));
        assert_non_null(strstr(failed(s, MU_BOOT_ON_REQUEST_FAILED, T0, codes[i], "bad"),
                               "bootstrap of round 0: read MASTER_ADDR: bad"));
        assert_int_equal(s->boot.error.code, codes[i]);
        assert_string_equal(mu_boot_state_text(s->boot.state), "failed");
    }
}

static void every_state_of_rank_0_has_a_deadline(void **state)
{
    static const char *const steps[] = { "open the worker store", "connect to our own worker store",
                                         "publish MASTER_ADDR", "publish MASTER_PORT" };
    struct scene *s = *state;

    for (size_t i = 0; i < COUNT(steps); i++) {
        char expected[160];

        (void)start(s, T0, ours(0, 0));
        if (i > 0)
            (void)listening(s, T0, 1);
        if (i > 1)
            (void)plain(s, MU_BOOT_ON_CHECKED, T0);
        if (i > 2)
            (void)plain(s, MU_BOOT_ON_SET, T0);
        assert_string_equal(plain(s, MU_BOOT_ON_TIME, DEADLINE - 1), "");
        (void)snprintf(expected, sizeof expected,
                       "fail ERDZV_TIMEOUT: bootstrap of round 0: %s: not done within 60.0 s", steps[i]);
        assert_string_equal(plain(s, MU_BOOT_ON_TIME, DEADLINE), expected);
        assert_true(mu_boot_deadline_ms(&s->boot) == UINT64_MAX);
    }
}

/* ---- The others ---- */

static void the_others_read_address_and_port(void **state)
{
    struct scene *s = *state;

    assert_string_equal(start(s, T0, ours(3, 2)), "get " K(3, "ADDR") " 2000");
    assert_string_equal(got(s, T0 + 10, "10.0.0.1"), "get " K(3, "PORT") " 2000");
    assert_string_equal(got(s, T0 + 20, "4711"), "done '10.0.0.1' 4711");
}

static void keys_that_do_not_come_are_an_error_naming_rank_0(void **state)
{
    struct scene *s = *state;

    (void)start(s, T0, ours(3, 2));
    assert_string_equal(plain(s, MU_BOOT_ON_MISSING, DEADLINE - 5), "get " K(3, "ADDR") " 5");
    assert_string_equal(plain(s, MU_BOOT_ON_MISSING, DEADLINE), "fail ERDZV_TIMEOUT: bootstrap of round 3: rank 0 "
                                                                "(a_1_1) has not published MASTER_ADDR within 60.0 s");
    (void)start(s, T0, ours(4, 2));
    (void)got(s, T0, "10.0.0.1");
    assert_string_equal(plain(s, MU_BOOT_ON_TIME, DEADLINE), "fail ERDZV_TIMEOUT: bootstrap of round 4: rank 0 (a_1_1) "
                                                             "has not published MASTER_PORT within 60.0 s");
}

static void a_port_is_a_decimal_number_from_1_to_65535(void **state)
{
    static const struct {
        const char *text;
        bool good;
    } rows[] = {
        { "1", true },    { "65535", true }, { "0", false },   { "65536", false },  { "", false },
        { "-1", false },  { "+1", false },   { " 1", false },  { "1 ", false },     { "x", false },
        { "1.0", false }, { "0x1", false },  { "1\n", false }, { "123456", false }, { "00000000001", false },
    };
    struct scene *s = *state;

    for (size_t i = 0; i < COUNT(rows); i++) {
        (void)start(s, T0, ours(0, 1));
        (void)got(s, T0, "a");
        (void)got(s, T0, rows[i].text);
        assert_ptr_equal(strstr(s->trace, rows[i].good ? "done 'a' " : "fail ERDZV_STATE: "), s->trace);
    }
    assert_non_null(strstr(s->trace, "MASTER_PORT of rank 0 (a_1_1) is not a decimal number from 1 to 65535"));
    (void)start(s, T0, ours(0, 1));
    (void)got(s, T0, "a");
    (void)step(s, (struct mu_boot_event){ .type = MU_BOOT_ON_GOT, .id = s->id, .value = mu_slice("12\0", 3) });
    assert_non_null(strstr(s->trace, "fail ERDZV_STATE"));
}

static void an_address_is_text_without_blanks(void **state)
{
    struct scene *s = *state;
    char name[MU_BOOT_ADDR_MAX + 1];
    static const char *const bad[] = { "", " ", "a b", "a\n", "\x01", "\x7f" };

    for (size_t i = 0; i < COUNT(bad); i++) {
        (void)start(s, T0, ours(0, 1));
        assert_non_null(strstr(got(s, T0, bad[i]), "fail ERDZV_STATE: bootstrap of round 0: MASTER_ADDR of rank 0"));
    }
    memset(name, 'n', sizeof name);
    name[MU_BOOT_ADDR_MAX] = '\0';
    (void)start(s, T0, ours(0, 1));
    assert_non_null(strstr(got(s, T0, name), "is not an address (256 bytes)"));
    name[MU_BOOT_ADDR_MAX - 1] = '\0';
    (void)start(s, T0, ours(0, 1));
    assert_non_null(strstr(got(s, T0, name), "get "));
}

/* ---- Rank 0 is PyTorch ---- */

static void a_stock_rank_0_that_publishes_is_taken_at_its_word(void **state)
{
    struct scene *s = *state;

    assert_string_equal(start(s, T0, mixed(3, 1, false, "p_2_0")), "get " K(3, "ADDR") " 1000");
    assert_string_equal(got(s, T0, "p"), "get " K(3, "PORT") " 2000");
    assert_string_equal(got(s, T0, "5"), "done 'p' 5");
}

static void a_stock_rank_0_that_is_silent_keeps_to_an_earlier_pair(void **state)
{
    struct scene *s = *state;

    (void)start(s, T0, mixed(3, 1, false, "p_2_0"));
    assert_string_equal(plain(s, MU_BOOT_ON_MISSING, T0 + 1000), "check " K(2, "PORT"));
    assert_string_equal(found(s, T0 + 1000, false), "check " K(1, "PORT"));
    assert_string_equal(found(s, T0 + 1000, true), "get " K(1, "ADDR") " 1000");
    assert_string_equal(got(s, T0 + 1000, "p"), "get " K(1, "PORT") " 1000");
    assert_string_equal(got(s, T0 + 1000, "5"), "done 'p' 5");
}

static void an_earlier_pair_that_vanishes_is_not_the_end(void **state)
{
    struct scene *s = *state;

    (void)start(s, T0, mixed(2, 1, false, "p_2_0"));
    (void)plain(s, MU_BOOT_ON_MISSING, T0 + 1000);
    (void)found(s, T0 + 1000, true);
    assert_string_equal(plain(s, MU_BOOT_ON_MISSING, T0 + 2000), "check " K(0, "PORT"));
    assert_string_equal(found(s, T0 + 2000, true), "get " K(0, "ADDR") " 1000");
    (void)got(s, T0 + 2000, "p");
    assert_string_equal(plain(s, MU_BOOT_ON_MISSING, T0 + 3000), "get " K(2, "ADDR") " 2000");
}

static void without_an_earlier_pair_this_rounds_is_waited_for(void **state)
{
    struct scene *s = *state;

    (void)start(s, T0, mixed(0, 1, false, "p_2_0"));
    assert_string_equal(plain(s, MU_BOOT_ON_MISSING, T0 + 1000), "get " K(0, "ADDR") " 2000");
    assert_string_equal(plain(s, MU_BOOT_ON_TIME, DEADLINE), "fail ERDZV_TIMEOUT: bootstrap of round 0: rank 0 (p_2_0) "
                                                             "has not published MASTER_ADDR within 60.0 s");
}

static void not_more_than_the_last_rounds_are_looked_at(void **state)
{
    struct scene *s = *state;
    unsigned looked = 0;

    (void)start(s, T0, mixed(100, 1, false, "p_2_0"));
    (void)plain(s, MU_BOOT_ON_MISSING, T0 + 1000);
    while (strstr(s->trace, "check ") != NULL) {
        looked++;
        (void)found(s, T0 + 1000, false);
    }
    assert_int_equal(looked, MU_BOOT_ROUNDS_MAX);
    assert_string_equal(s->trace, "get " K(100, "ADDR") " 2000");
}

static void rounds_that_had_another_rank_0_are_passed_over(void **state)
{
    struct scene *s = *state;

    (void)start(s, T0, mixed(4, 1, false, "p_2_0"));
    (void)got(s, T0, "p");
    (void)got(s, T0, "5");
    assert_non_null(
        strstr(start(s, T0, mixed(5, 1, true, "a_1_1")), "warn: rank 0 has moved from p_2_0 to a_1_1 in round 5"));
    (void)got(s, T0, "a");
    (void)got(s, T0, "6");
    (void)start(s, T0, mixed(6, 1, false, "p_2_0"));
    assert_string_equal(plain(s, MU_BOOT_ON_MISSING, T0 + 1000), "check " K(4, "PORT"));
}

static void an_old_stock_rank_0_publishes_later(void **state)
{
    struct scene *s = *state;
    struct mu_boot_start old = mixed(3, 1, false, "p_2_0");

    old.old_dialect = true;
    assert_string_equal(start(s, T0, old), "done '' 0");
    assert_true(mu_boot_deadline_ms(&s->boot) == UINT64_MAX);
    old = mixed(4, 1, true, "a_1_1");
    old.old_dialect = true;
    assert_string_equal(start(s, T0, old), "get " K(4, "ADDR") " 2000"); /* one of us does it at once */
}

static void a_rank_0_that_moves_under_a_stock_member_is_warned_of(void **state)
{
    static const struct {
        bool stock_before, stock_now, old;
        const char *rank0;
        bool warns;
    } rows[] = {
        { true, true, false, "b_1_1", true },    { true, true, false, "a_1_1", false },
        { false, true, false, "b_1_1", false },  { true, false, false, "b_1_1", false },
        { false, false, false, "b_1_1", false }, { true, true, true, "b_1_1", false },
    };
    struct scene *s = *state;

    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_boot_start before = mixed(0, 1, true, "a_1_1"), now = mixed(1, 1, true, rows[i].rank0);

        configure(s, (struct mu_boot_config){ .use_agent_store = true });
        before.all_ours = !rows[i].stock_before;
        now.all_ours = !rows[i].stock_now;
        now.old_dialect = rows[i].old;
        assert_null(strstr(start(s, T0, before), "warn"));
        assert_int_equal(strstr(start(s, T0, now), "warn: rank 0 has moved from a_1_1 to b_1_1") != NULL,
                         rows[i].warns);
    }
}

/* ---- Whatever comes at the wrong time ---- */

static void answers_to_other_requests_are_dropped(void **state)
{
    struct scene *s = *state;

    assert_string_equal(got(s, T0, "a"), "");
    assert_string_equal(plain(s, MU_BOOT_ON_TIME, T0), "");
    (void)start(s, T0, ours(3, 2));
    s->id++;
    assert_string_equal(got(s, T0, "a"), "");
    s->id--;
    assert_string_equal(plain(s, MU_BOOT_ON_SET, T0), "");
    assert_string_equal(found(s, T0, true), "");
    assert_string_equal(listening(s, T0, 1), "");
    assert_string_equal(got(s, T0, "a"), "get " K(3, "PORT") " 2000");
    assert_string_equal(plain(s, MU_BOOT_ON_STOP, T0), "");
    assert_string_equal(got(s, T0, "1"), "");
    assert_true(mu_boot_deadline_ms(&s->boot) == UINT64_MAX);
}

static void a_new_round_replaces_the_one_under_way(void **state)
{
    struct scene *s = *state;
    uint64_t old_id;

    (void)start(s, T0, ours(0, 0));
    old_id = s->id;
    assert_string_equal(start(s, T0, ours(1, 0)), "close, open");
    assert_string_equal(step(s, (struct mu_boot_event){ .type = MU_BOOT_ON_LISTENING, .id = old_id, .port = 1 }), "");
    assert_string_equal(listening(s, T0, 2), "self 10.0.0.1 2 5000");
    assert_string_equal(plain(s, MU_BOOT_ON_STOP, T0), "close");
}

/* ---- Where the user wants it ---- */

static void name_master(struct scene *s, const char *addr, uint16_t port, bool use_agent_store)
{
    struct mu_boot_config config = { .use_agent_store = use_agent_store, .local_addr = "10.9.9.9" };

    (void)snprintf(config.master.addr, sizeof config.master.addr, "%s", addr);
    config.master.port = port;
    configure(s, config);
}

static void rank_0_listens_where_the_user_wants_it_and_publishes_that(void **state)
{
    struct scene *s = *state;

    name_master(s, "node1", 4711, true);
    assert_string_equal(start(s, T0, ours(0, 0)), "open node1 4711");
    assert_string_equal(listening(s, T0, 4711), "self node1 4711 5000");
    assert_string_equal(plain(s, MU_BOOT_ON_CHECKED, T0), "set " K(0, "ADDR") "=node1");
    assert_string_equal(plain(s, MU_BOOT_ON_SET, T0), "set " K(0, "PORT") "=4711");
    assert_string_equal(plain(s, MU_BOOT_ON_SET, T0), "done 'node1' 4711");
    assert_string_equal(start(s, T0, ours(1, 0)), "close, open node1 4711"); /* the same in every round */
    name_master(s, "", 4711, false);                                         /* worker 0 will listen there */
    assert_string_equal(start(s, T0, ours(0, 0)), "free port 10.9.9.9 4711");
    assert_string_equal(listening(s, T0, 4711), "set " K(0, "ADDR") "=10.9.9.9");
    name_master(s, "node1", 0, true);
    assert_string_equal(start(s, T0, ours(0, 0)), "open");
    assert_string_equal(listening(s, T0, 5), "self node1 5 5000");
    assert_non_null(strstr(failed(s, MU_BOOT_ON_REQUEST_FAILED, T0, MUSTER_ECONNECT, "refused"),
                           "fail ECONNECT: bootstrap of round 0: this node does not reach its own worker store "
                           "at node1, port 5: refused")); /* another host's address */
}

static void a_port_of_the_users_that_is_taken_is_tried_again_for_a_while(void **state)
{
    struct scene *s = *state;
    uint64_t now_ms = T0;

    name_master(s, "node1", 4711, true);
    (void)start(s, T0, ours(0, 0));
    assert_string_equal(failed(s, MU_BOOT_ON_LISTEN_FAILED, now_ms, MUSTER_EADDRINUSE, "taken"),
                        "warn: master_port: taken; trying again for 5 s");
    assert_true(mu_boot_deadline_ms(&s->boot) == T0 + MU_BOOT_RETRY_MS);
    now_ms += MU_BOOT_RETRY_MS;
    assert_string_equal(plain(s, MU_BOOT_ON_TIME, now_ms), "open node1 4711");
    assert_string_equal(failed(s, MU_BOOT_ON_LISTEN_FAILED, now_ms, MUSTER_EADDRINUSE, "taken"), ""); /* said once */
    now_ms += MU_BOOT_RETRY_MS;
    (void)plain(s, MU_BOOT_ON_TIME, now_ms);
    assert_string_equal(listening(s, now_ms, 4711), "self node1 4711 5000");
    (void)start(s, T0, ours(1, 0));
    assert_string_equal(failed(s, MU_BOOT_ON_LISTEN_FAILED, T0 + MU_BOOT_PORT_WAIT_MS, MUSTER_EADDRINUSE, "taken"),
                        "fail EADDRINUSE: bootstrap of round 1: open the worker store: master_port: taken");
}

static void the_users_pair_comes_before_that_of_rank_0_once_a_store_answers_there(void **state)
{
    struct scene *s = *state;

    name_master(s, "gate", 0, true);
    (void)start(s, T0, ours(0, 1));
    (void)got(s, T0, "10.0.0.1");
    assert_string_equal(
        got(s, T0, "4711"),
        "warn: the workers of this node are sent to gate, port 4711 (master_addr, master_port); rank 0 (a_1_1) "
        "has published 10.0.0.1, port 4711, reach gate 4711 5000");
    assert_string_equal(plain(s, MU_BOOT_ON_CHECKED, T0), "done 'gate' 4711");
    name_master(s, "10.0.0.1", 4712, true);
    (void)start(s, T0, ours(0, 1));
    (void)got(s, T0, "10.0.0.1");
    assert_non_null(strstr(got(s, T0, "4711"), "reach 10.0.0.1 4712 5000"));
    assert_string_equal(failed(s, MU_BOOT_ON_REQUEST_FAILED, T0, MUSTER_ECONNECT, "refused"),
                        "fail ECONNECT: bootstrap of round 0: no store answers at 10.0.0.1, port 4712, where "
                        "master_addr and master_port of this node send its workers: refused");
    name_master(s, "10.0.0.1", 4711, true); /* the same on all nodes: nothing to say */
    (void)start(s, T0, ours(0, 1));
    (void)got(s, T0, "10.0.0.1");
    assert_string_equal(got(s, T0, "4711"), "done '10.0.0.1' 4711");
    name_master(s, "gate", 0, false); /* worker 0 does not listen yet */
    (void)start(s, T0, ours(0, 1));
    (void)got(s, T0, "10.0.0.1");
    assert_non_null(strstr(got(s, T0, "4711"), ", done 'gate' 4711"));
}

static struct muster_rdzv_params *new_params(void)
{
    struct muster_rdzv_params *params = NULL;

    assert_int_equal(muster_rdzv_params_new("c10d", "here:1", "job", 1, 1, NULL, &params, NULL), 0);
    return params;
}

static void options_name_address_and_port(void **state)
{
    static const struct {
        const char *addr, *port, *error;
    } wrong[] = {
        { "", NULL, "master_addr: '' must be a host name or an address, without port and brackets" },
        { "a b", NULL, "master_addr: 'a b' must be a host name or an address, without port and brackets" },
        { "a\x01", NULL, "master_addr: " },
        { "here:29500", NULL,
          "master_addr: 'here:29500' must be a host name or an address, without port and brackets" },
        { "[::1]", NULL, "master_addr: '[::1]' must be a host name or an address, without port and brackets" },
        { "tcp://here", NULL,
          "master_addr: 'tcp://here' must be a host name or an address, without port and brackets" },
        { NULL, "0", "master_port: 0 is not a port from 1 to 65535" },
        { NULL, "65536", "master_port: 65536 is not a port from 1 to 65535" },
        { NULL, "x", "'master_port': 'x' is not a whole number, or it is too large" },
        { NULL, "99999999999999999999", "is not a whole number, or it is too large" },
    };
    struct muster_rdzv_params *params = new_params();
    struct mu_boot_master master;
    struct muster_error error = { 0 };

    (void)state;
    assert_int_equal(mu_boot_master_from_params(params, &master, &error), 0);
    assert_string_equal(master.addr, "");
    assert_int_equal(master.port, 0);
    (void)muster_rdzv_params_set_text(params, "master_addr", "fd00::5", NULL);
    (void)muster_rdzv_params_set_text(params, "master_port", "65535", NULL);
    assert_int_equal(mu_boot_master_from_params(params, &master, &error), 0);
    assert_string_equal(master.addr, "fd00::5");
    assert_int_equal(master.port, 65535);
    muster_rdzv_params_free(params);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        params = new_params();
        if (wrong[i].addr != NULL)
            (void)muster_rdzv_params_set_text(params, "master_addr", wrong[i].addr, NULL);
        if (wrong[i].port != NULL)
            (void)muster_rdzv_params_set_text(params, "master_port", wrong[i].port, NULL);
        assert_int_equal(mu_boot_master_from_params(params, &master, &error), MUSTER_EINVAL);
        assert_non_null(strstr(error.text, wrong[i].error));
        muster_rdzv_params_free(params);
    }
}

static void localhost_is_known_by_a_line_of_etc_hosts(void **state)
{
    static const struct {
        const char *line;
        bool expected;
    } rows[] = {
        { "127.0.0.1 localhost\n", true },
        { "127.0.0.1\tlocalhost.localdomain\tlocalhost\n", true },
        { "  ::1 ip6-localhost localhost", true },
        { "127.0.0.1 localhost# the usual\r\n", true },
        { "127.0.1.1 localhost here", true },
        { "", false },
        { "\n", false },
        { "127.0.0.1", false },
        { "127.0.0.1 ", false },
        { "# 127.0.0.1 localhost\n", false },
        { "127.0.0.1 here # localhost\n", false },
        { "127.0.0.1 localhost6\n", false },
        { "10.0.0.1 localhost\n", false },
        { "localhost 127.0.0.1\n", false },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (mu_boot_is_localhost(rows[i].line) != rows[i].expected)
            fail_msg("'%s'", rows[i].line);
    }
}

static void names_of_any_length_are_cut_or_refused(void **state)
{
    struct scene *s = *state;
    char name[2000];
    struct mu_boot_config config = { .run_id = name, .hostname = "h", .local_addr = name };
    struct mu_boot_start round = ours(INT64_MAX, 0);
    struct muster_error error;

    mu_boot_done(&s->boot);
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    assert_int_equal(mu_boot_init(&s->boot, &config, &error), MUSTER_EINVAL);
    assert_string_equal(error.text, "a local address of 1999 bytes is too long");
    config.local_addr = NULL;
    config.hostname = name;
    assert_int_equal(mu_boot_init(&s->boot, &config, &error), MUSTER_EINVAL);
    config.hostname = "h";
    assert_int_equal(mu_boot_init(&s->boot, &config, &error), 0);
    round.rank0 = mu_slice_str(name);
    (void)start(s, T0, round);
    assert_non_null(strstr(listening(s, T0, 1), "set torch.rendezvous.nnn"));
    assert_non_null(strstr(s->trace, "n.9223372036854775807/MASTER_ADDR=10.0.0.1"));
}

static void every_allocation_may_fail(void **state)
{
    struct mu_boot_config config = { .run_id = "job", .hostname = "here" };

    (void)state;
    FOR_EACH_FAILURE (n) {
        struct mu_boot boot;
        int rc = mu_boot_init(&boot, &config, NULL);

        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        mu_boot_done(&boot);
    }
}

/* What rank 0 opens, by what there is. */
static void a_store_is_opened_renewed_or_left_to_worker_0(void **state)
{
    static const struct {
        bool use_agent_store, agents_store;
        enum mu_boot_store before;
        const char *opens;
        enum mu_boot_store failed, listening;
    } rows[] = {
        { true, false, MU_BOOT_STORE_NONE, "open", MU_BOOT_STORE_NONE, MU_BOOT_STORE_OPEN },
        { true, true, MU_BOOT_STORE_NONE, "open", MU_BOOT_STORE_NONE, MU_BOOT_STORE_OPEN },
        { true, true, MU_BOOT_STORE_OPENING, "open", MU_BOOT_STORE_NONE, MU_BOOT_STORE_OPEN },
        { true, false, MU_BOOT_STORE_OPEN, "renew", MU_BOOT_STORE_OPEN, MU_BOOT_STORE_OPEN },
        { false, false, MU_BOOT_STORE_NONE, "free port", MU_BOOT_STORE_NONE, MU_BOOT_STORE_NONE },
        { false, false, MU_BOOT_STORE_OPEN, "free port", MU_BOOT_STORE_OPEN, MU_BOOT_STORE_OPEN },
        { false, true, MU_BOOT_STORE_NONE, "open for agents", MU_BOOT_STORE_NONE, MU_BOOT_STORE_NONE },
        { false, true, MU_BOOT_STORE_OPEN, "open for agents", MU_BOOT_STORE_OPEN, MU_BOOT_STORE_OPEN },
    };
    struct scene *s = *state;

    for (size_t i = 0; i < COUNT(rows); i++) {
        for (int works = 0; works < 2; works++) {
            configure(s, (struct mu_boot_config){ .use_agent_store = rows[i].use_agent_store,
                                                  .agents_store = rows[i].agents_store });
            s->boot.store = rows[i].before;
            s->boot.stock_seen = true; /* so that it is not closed */
            assert_string_equal(start(s, T0, ours(0, 0)), rows[i].opens);
            if (works)
                (void)listening(s, T0, 4711);
            else
                (void)failed(s, MU_BOOT_ON_LISTEN_FAILED, T0, MUSTER_ESYSTEM, "no");
            assert_int_equal(s->boot.store, works ? rows[i].listening : rows[i].failed);
        }
    }
    assert_int_equal(mu_boot_told_code(MUSTER_ESYSTEM), MUSTER_ERDZV_CONNECTION);
    assert_int_equal(mu_boot_told_code(MUSTER_ERDZV_TIMEOUT), MUSTER_ERDZV_TIMEOUT);
}

/* Whatever became of it, and whoever is in the rounds; the workers' store may stay for PyTorch's members. */
static void the_agents_store_goes_with_its_round(void **state)
{
    static const struct {
        bool stops, fails, stock_seen;
        const char *says;
    } rows[] = {
        { .says = "close the agents', get " K(1, "ADDR") " 2000" },
        { .fails = true, .says = "close the agents', get " K(1, "ADDR") " 2000" },
        { .stock_seen = true, .says = "close the agents', get " K(1, "ADDR") " 2000" },
        { .stops = true, .says = "close the agents'" },
    };
    struct scene *s = *state;

    for (size_t i = 0; i < COUNT(rows); i++) {
        configure(s, (struct mu_boot_config){ .agents_store = true });
        s->boot.stock_seen = rows[i].stock_seen;
        assert_string_equal(start(s, T0, ours(0, 0)), "open for agents");
        if (rows[i].fails)
            (void)failed(s, MU_BOOT_ON_LISTEN_FAILED, T0, MUSTER_ESYSTEM, "no");
        else
            (void)listening(s, T0, 4711);
        assert_string_equal(rows[i].stops ? plain(s, MU_BOOT_ON_STOP, T0) : start(s, T0, ours(1, 1)), rows[i].says);
        assert_string_equal(start(s, T0, ours(2, 1)), "get " K(2, "ADDR") " 2000"); /* it is closed once */
    }
}

/* A store that listens on more than the user may think of is worth a warning. */
static void it_says_where_a_new_store_listens(void **state)
{
    static const struct {
        bool use_agent_store;
        struct mu_bind_plan plan;
        const char *said;
    } rows[] = {
        { true, { MU_BIND_OWN, "10.0.0.1,::1" }, "debug: the workers' store listens on 10.0.0.1,::1, " },
        { false, { MU_BIND_OWN, "10.0.0.1" }, "debug: the agents' store listens on 10.0.0.1, " },
        { true, { MU_BIND_INTERFACES, "10.0.0.1" }, "debug: the workers' store listens on 10.0.0.1, " },
        { true,
          { MU_BIND_NOT_OWN, "any" },
          "warn: '10.0.0.1' is not an address of this machine, so the workers' store listens on every address; " },
    };
    struct scene *s = *state;

    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct mu_boot_event event = { .type = MU_BOOT_ON_LISTENING, .now_ms = T0, .port = 4711 };
        struct mu_boot_event with_plan = event;

        configure(s, (struct mu_boot_config){ .use_agent_store = rows[i].use_agent_store, .agents_store = true });
        (void)start(s, T0, ours(0, 0));
        with_plan.id = s->id;
        with_plan.plan = &rows[i].plan;
        assert_memory_equal(step(s, with_plan), rows[i].said, strlen(rows[i].said));
    }
}

static void one_look_up_is_under_way_and_the_newest_is_wanted(void **state)
{
    static const struct {
        enum mu_boot_lookup before, wanted, forgotten, answered;
        bool asks;
    } rows[] = {
#define ROW(before, wanted, forgotten, answered, asks)                                                                 \
    { MU_BOOT_LOOKUP_##before, MU_BOOT_LOOKUP_##wanted, MU_BOOT_LOOKUP_##forgotten, MU_BOOT_LOOKUP_##answered, asks }
        ROW(FREE, BUSY, FREE, FREE, true),
        ROW(BUSY, NEXT, STALE, FREE, false),
        ROW(STALE, NEXT, STALE, FREE, false),
        ROW(NEXT, NEXT, STALE, BUSY, false),
#undef ROW
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        enum mu_boot_lookup lookup = rows[i].before;

        assert_int_equal(mu_boot_lookup_want(&lookup), rows[i].asks);
        assert_int_equal(lookup, rows[i].wanted);
        lookup = rows[i].before;
        mu_boot_lookup_forget(&lookup);
        assert_int_equal(lookup, rows[i].forgotten);
        lookup = rows[i].before;
        if (lookup != MU_BOOT_LOOKUP_FREE)
            assert_int_equal(mu_boot_lookup_answered(&lookup), rows[i].before);
        assert_int_equal(lookup, rows[i].answered);
    }
}

static void an_answer_from_inside_a_step_is_heard_after_it(void **state)
{
    struct mu_boot_inbox inbox = { .state = MU_BOOT_INBOX_IDLE };
    struct muster_error error = { .code = MUSTER_ELOST, .text = "gone" };
    const struct mu_boot_event time = { .type = MU_BOOT_ON_TIME };
    const struct mu_boot_event failed = { .type = MU_BOOT_ON_REQUEST_FAILED, .id = 7, .error = &error };
    struct mu_boot_event heard = { .id = 0 };

    (void)state;
    assert_true(mu_boot_inbox_hear(&inbox, &time));
    assert_false(mu_boot_inbox_hear(&inbox, &failed));
    error.text[0] = '\0'; /* its owner has gone on */
    assert_true(mu_boot_inbox_next(&inbox, &heard));
    assert_int_equal(heard.type, MU_BOOT_ON_REQUEST_FAILED);
    assert_int_equal(heard.id, 7);
    assert_string_equal(heard.error->text, "gone");
    assert_false(mu_boot_inbox_hear(&inbox, &time)); /* what that step has wanted is answered, too */
    assert_true(mu_boot_inbox_next(&inbox, &heard));
    assert_int_equal(heard.type, MU_BOOT_ON_TIME);
    assert_false(mu_boot_inbox_next(&inbox, &heard));
    assert_true(mu_boot_inbox_hear(&inbox, &time)); /* the next step */
}

static void an_answer_of_the_store_is_an_event(void **state)
{
    static const struct {
        enum mu_boot_effect_type asked;
        int rc;
        enum mu_boot_event_type expected;
    } rows[] = {
        { MU_BOOT_DO_GET, 0, MU_BOOT_ON_GOT },
        { MU_BOOT_DO_GET, MUSTER_ETIMEOUT, MU_BOOT_ON_MISSING },
        { MU_BOOT_DO_GET, MUSTER_ELOST, MU_BOOT_ON_REQUEST_FAILED },
        { MU_BOOT_DO_CHECK, 0, MU_BOOT_ON_FOUND },
        { MU_BOOT_DO_CHECK, MUSTER_ETIMEOUT, MU_BOOT_ON_REQUEST_FAILED },
        { MU_BOOT_DO_SET, 0, MU_BOOT_ON_SET },
        { MU_BOOT_DO_SET, MUSTER_ETIMEOUT, MU_BOOT_ON_REQUEST_FAILED },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct mu_kv_request request = {
            .kind = mu_boot_kv_kind(rows[i].asked), .rc = rows[i].rc, .error = { .code = rows[i].rc }, .found = true
        };
        struct mu_boot_event event = mu_boot_answer(7, &request);

        assert_int_equal(event.type, rows[i].expected);
        assert_int_equal(event.id, 7);
        assert_int_equal(event.found, rows[i].rc == 0);
        assert_int_equal(event.error != NULL, rows[i].rc < 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE(keys_bear_the_tag_of_a_round_that_is_ours_alone),
        SCENE(rank_0_opens_a_store_checks_it_and_publishes_address_then_port),
        SCENE(where_many_nodes_may_come_the_workers_store_has_a_thread_of_its_own),
        SCENE(rounds_of_our_own_kind_get_a_new_store_each),
        SCENE(with_a_stock_member_one_listener_stays_for_good),
        SCENE(without_an_agents_store_only_a_free_port_is_published),
        SCENE(an_old_document_gets_a_free_port_too),
        SCENE(workers_that_meet_in_the_rendezvous_store_need_no_other),
        SCENE(an_endpoint_that_is_too_long_to_be_met_at_is_an_error),
        SCENE(a_free_port_leaves_the_kept_listener_alone),
        SCENE(the_address_is_the_best_that_is_known),
        SCENE(the_address_is_one_that_we_listen_on),
        SCENE(without_any_address_it_says_so),
        SCENE(a_store_that_does_not_open_is_the_end),
        SCENE(publishing_is_tried_again_while_the_store_is_away),
        SCENE(an_error_that_does_not_mend_is_the_end),
        SCENE(every_state_of_rank_0_has_a_deadline),
        SCENE(the_others_read_address_and_port),
        SCENE(keys_that_do_not_come_are_an_error_naming_rank_0),
        SCENE(a_port_is_a_decimal_number_from_1_to_65535),
        SCENE(an_address_is_text_without_blanks),
        SCENE(a_stock_rank_0_that_publishes_is_taken_at_its_word),
        SCENE(a_stock_rank_0_that_is_silent_keeps_to_an_earlier_pair),
        SCENE(an_earlier_pair_that_vanishes_is_not_the_end),
        SCENE(without_an_earlier_pair_this_rounds_is_waited_for),
        SCENE(not_more_than_the_last_rounds_are_looked_at),
        SCENE(rounds_that_had_another_rank_0_are_passed_over),
        SCENE(an_old_stock_rank_0_publishes_later),
        SCENE(a_rank_0_that_moves_under_a_stock_member_is_warned_of),
        SCENE(answers_to_other_requests_are_dropped),
        SCENE(a_new_round_replaces_the_one_under_way),
        SCENE(rank_0_listens_where_the_user_wants_it_and_publishes_that),
        SCENE(a_port_of_the_users_that_is_taken_is_tried_again_for_a_while),
        SCENE(the_users_pair_comes_before_that_of_rank_0_once_a_store_answers_there),
        cmocka_unit_test(options_name_address_and_port),
        cmocka_unit_test(localhost_is_known_by_a_line_of_etc_hosts),
        SCENE(names_of_any_length_are_cut_or_refused),
        cmocka_unit_test(every_allocation_may_fail),
        SCENE(a_store_is_opened_renewed_or_left_to_worker_0),
        SCENE(the_agents_store_goes_with_its_round),
        SCENE(it_says_where_a_new_store_listens),
        cmocka_unit_test(one_look_up_is_under_way_and_the_newest_is_wanted),
        cmocka_unit_test(an_answer_from_inside_a_step_is_heard_after_it),
        cmocka_unit_test(an_answer_of_the_store_is_an_event),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
