/* Where servers listen: what the user says, what a host is on this machine, and what that comes to. */
#include "base/error.h"
#include "handler/bind_uv.h"
#include "handler/local_addresses.h"
#include "pure.h"
#include "store/listen.h"

#include <stdio.h>

enum { ADDRS_MAX = 8 };

/* "10.0.0.5+ 10.0.0.6-": addresses, and whether they are this machine's. */
static size_t read_addrs(const char *text, union mu_addr addrs[static ADDRS_MAX], bool owned[static ADDRS_MAX])
{
    char copy[256], *rest = copy;
    size_t count = 0;

    (void)snprintf(copy, sizeof copy, "%s", text);
    for (char *word; (word = strsep(&rest, " ")) != NULL;) {
        size_t len = strlen(word);

        if (len == 0)
            continue;
        assert_true(count < ADDRS_MAX);
        owned[count] = word[len - 1] == '+';
        word[len - 1] = '\0';
        assert_true(mu_addr_parse(word, 0, &addrs[count++]));
    }
    return count;
}

static void the_plan_follows_from_what_a_host_is_here(void **state)
{
    static const struct {
        const char *given, *host, *addrs, *also;
        enum mu_bind_reason reason;
        const char *hosts;
    } rows[] = {
        { NULL, "localhost", "127.0.0.1+ ::1+", NULL, MU_BIND_OWN, "127.0.0.1,::1" },
        { NULL, "127.0.0.1", "127.0.0.1+", NULL, MU_BIND_OWN, "127.0.0.1,::1" },
        { NULL, "10.0.0.5", "10.0.0.5+", NULL, MU_BIND_OWN, "10.0.0.5,127.0.0.1,::1" },
        { NULL, "fd00::5", "fd00::5+", NULL, MU_BIND_OWN, "fd00::5,127.0.0.1,::1" },
        { NULL, "::ffff:10.0.0.5", "::ffff:10.0.0.5+", NULL, MU_BIND_OWN, "10.0.0.5,127.0.0.1,::1" },
        /* Of several those that are ours. */
        { NULL, "jobs", "10.0.0.4- 10.0.0.5+ fd00::5+", NULL, MU_BIND_OWN, "10.0.0.5,fd00::5,127.0.0.1,::1" },
        /* systemd resolves a machine's own name to all of its addresses, those of single links among them. */
        { NULL, "node1", "10.0.0.5+ fe80::5%lo+", NULL, MU_BIND_OWN, "10.0.0.5,fe80::5%lo,127.0.0.1,::1" },
        /* The node's own address for others. */
        { NULL, "localhost", "127.0.0.1+", "10.1.0.5+", MU_BIND_OWN, "127.0.0.1,10.1.0.5,::1" },
        { NULL, "localhost", "127.0.0.1+", "10.1.0.5-", MU_BIND_OWN, "127.0.0.1,::1" },
        { NULL, "localhost", "127.0.0.1+", "0.0.0.0+", MU_BIND_OWN, "127.0.0.1,::1" },
        /* Loopback is, though IPv6 may be off. */
        { NULL, "localhost", "127.0.0.1+ ::1-", NULL, MU_BIND_OWN, "127.0.0.1,::1" },
        /* A name that is loopback here may be another address elsewhere; localhost and addresses are not. */
        { NULL, "node1", "127.0.1.1+", NULL, MU_BIND_INTERFACES, "127.0.1.1,10.0.0.5,fd00::5,127.0.0.1,::1" },
        { NULL, "node1", "127.0.1.1+ 10.0.0.5+", NULL, MU_BIND_OWN, "127.0.1.1,10.0.0.5,127.0.0.1,::1" },
        { NULL, "LOCALHOST.localdomain", "127.0.0.1+", NULL, MU_BIND_OWN, "127.0.0.1,::1" },
        { NULL, "a.localhost", "127.0.0.1+", NULL, MU_BIND_OWN, "127.0.0.1,::1" },
        { NULL, "ip6-localhost", "::1+", NULL, MU_BIND_OWN, "::1,127.0.0.1" },
        { NULL, "127.0.0.7", "127.0.0.7+", NULL, MU_BIND_OWN, "127.0.0.7,127.0.0.1,::1" },
        /* Nothing of it is here, or nothing is known. */
        { NULL, "service", "10.9.9.9-", NULL, MU_BIND_NOT_OWN, "any" },
        { NULL, "service", "", NULL, MU_BIND_NOT_OWN, "any" },
        { NULL, "service", "10.9.9.9-", "10.1.0.5+", MU_BIND_NOT_OWN, "any" },
        /* Whoever writes that means it. */
        { NULL, "0.0.0.0", "0.0.0.0+", NULL, MU_BIND_ASKED, "any" },
        { NULL, "::", "::+", NULL, MU_BIND_ASKED, "any" },
        { "any", "10.0.0.5", "10.0.0.5+", NULL, MU_BIND_ASKED, "any" },
        { "0.0.0.0", "10.0.0.5", "10.0.0.5+", NULL, MU_BIND_ASKED, "any" },
        { "10.0.0.5,::", "10.0.0.5", "10.0.0.5+", NULL, MU_BIND_ASKED, "any" },
        { "10.0.0.5", "service", "10.9.9.9-", NULL, MU_BIND_ASKED, "10.0.0.5,127.0.0.1,::1" },
        { "localhost", "10.0.0.5", "10.0.0.5+", NULL, MU_BIND_ASKED, "127.0.0.1,::1" },
        { "127.0.0.1,10.0.0.5", "10.0.0.5", "10.0.0.5+", NULL, MU_BIND_ASKED, "127.0.0.1,10.0.0.5,::1" },
    };
    union mu_addr interfaces[2], also[ADDRS_MAX];
    bool also_owned[ADDRS_MAX] = { false };

    (void)state;
    assert_true(mu_addr_parse("10.0.0.5", 0, &interfaces[0]) && mu_addr_parse("fd00::5", 0, &interfaces[1]));
    for (size_t i = 0; i < COUNT(rows); i++) {
        union mu_addr addrs[ADDRS_MAX];
        bool owned[ADDRS_MAX];
        struct mu_bind_plan plan;
        const struct mu_bind_question question = {
            .given = rows[i].given,
            .host = rows[i].host,
            .addrs = addrs,
            .owned = owned,
            .addrs_count = read_addrs(rows[i].addrs, addrs, owned),
            .also = rows[i].also != NULL && read_addrs(rows[i].also, also, also_owned) == 1 ? &also[0] : NULL,
            .also_owned = also_owned[0],
            .interfaces = interfaces,
            .interfaces_count = COUNT(interfaces),
        };

        mu_bind_plan(&question, &plan);
        if (plan.reason != rows[i].reason || strcmp(plan.hosts, rows[i].hosts) != 0)
            fail_msg("row %zu: '%s' for reason %d", i, plan.hosts, (int)plan.reason);
    }
}

static void a_name_is_looked_up_where_nothing_else_says_where_to_listen(void **state)
{
    static const struct {
        const char *bind, *host;
        size_t known;
        bool looks_up;
    } rows[] = {
        { NULL, "node1", 0, true },
        { NULL, "10.0.0.5", 1, false },
        { "any", "node1", 0, false },
        { "10.0.0.5", "node1", 1, false },
    };
    char too_long[MU_HOST_MAX + 1];

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_int_equal(mu_bind_needs_lookup(&(struct mu_bind){ .hosts = rows[i].bind }, rows[i].host, rows[i].known),
                         rows[i].looks_up);
    memset(too_long, 'a', sizeof too_long - 1);
    too_long[MU_HOST_MAX] = '\0';
    assert_false(mu_bind_needs_lookup(&(struct mu_bind){ .hosts = NULL }, too_long, 0));
    too_long[MU_HOST_MAX - 1] = '\0';
    assert_true(mu_bind_needs_lookup(&(struct mu_bind){ .hosts = NULL }, too_long, 0));
}

static void the_longest_plan_has_room(void **state)
{
    union mu_addr addrs[16], interfaces[MU_BIND_INTERFACES_MAX + 8];
    bool owned[16];
    struct mu_bind_plan plan;
    struct mu_bind_question question = {
        .host = "name", .addrs = addrs, .owned = owned, .addrs_count = 16, .interfaces = interfaces
    };

    (void)state;
    for (size_t i = 0; i < 16; i++) {
        assert_true(mu_addr_parse("127.100.100.100", 0, &addrs[i]));
        owned[i] = true;
    }
    for (size_t i = 0; i < COUNT(interfaces); i++)
        assert_true(mu_addr_parse("fd00:1111:2222:3333:4444:5555:6666:7777", 0, &interfaces[i]));
    question.interfaces_count = COUNT(interfaces);
    question.also = &interfaces[0];
    question.also_owned = true;
    mu_bind_plan(&question, &plan);
    assert_true(strlen(plan.hosts) < sizeof plan.hosts / 2);
}

static void what_the_user_says_is_checked(void **state)
{
    static const char *const good[] = { "any",    "localhost", "10.0.0.5", "fd00::5", "10.0.0.5,fd00::5,localhost",
                                        "0.0.0.0" };
    static const char *const bad[] = {
        "", "eth0", "10.0.0.5,", ",", "10.0.0.5;10.0.0.6", "any,10.0.0.5", "10.0.0.5:80"
    };
    static const char *const good_networks[] = { "10.0.0.0/8", "10.0.0.1", "10.0.0.0/8,fd00::/8" };
    static const char *const bad_networks[] = { "", "10.0.0.0/8,", "10.0.0.1/8", "net" };
    struct muster_error error;
    char many[MU_BIND_TEXT_MAX] = "::1";

    (void)state;
    for (size_t i = 0; i < COUNT(good); i++)
        assert_int_equal(mu_bind_check_hosts(good[i], &error), 0);
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_int_equal(mu_bind_check_hosts(bad[i], &error), MUSTER_EINVAL);
    for (size_t i = 0; i < COUNT(good_networks); i++)
        assert_int_equal(mu_bind_check_allow(good_networks[i], &error), 0);
    for (size_t i = 0; i < COUNT(bad_networks); i++)
        assert_int_equal(mu_bind_check_allow(bad_networks[i], &error), MUSTER_EINVAL);
    for (int i = 0; i < MU_BIND_NETWORKS_MAX; i++)
        strcat(many, ",::1");
    assert_int_equal(mu_bind_check_allow(many, &error), MUSTER_EINVAL);
    memset(many, '1', sizeof many - 1);
    assert_int_equal(mu_bind_check_hosts(many, &error), MUSTER_EINVAL);
    assert_int_equal(mu_bind_check_allow(many, &error), MUSTER_EINVAL);
    many[MU_HOST_MAX] = '\0';
    assert_int_equal(mu_bind_check_hosts(many, &error), MUSTER_EINVAL);
    assert_int_equal(mu_bind_check_allow(many, &error), MUSTER_EINVAL);
}

static void options_of_a_rendezvous_say_it(void **state)
{
    struct muster_rdzv_params *params = NULL;
    struct mu_bind bind = { .hosts = "x" };
    struct muster_error error;

    (void)state;
    assert_int_equal(muster_rdzv_params_new("c10d", "h:1", "job", 1, 1, NULL, &params, NULL), 0);
    assert_int_equal(mu_bind_from_params(params, &bind, NULL), 0);
    assert_true(bind.hosts == NULL && bind.allow == NULL);
    assert_int_equal(muster_rdzv_params_set_text(params, "bind", "10.0.0.5", NULL), 0);
    assert_int_equal(muster_rdzv_params_set_text(params, "allow", "10.0.0.0/8,::1", NULL), 0);
    assert_int_equal(mu_bind_from_params(params, &bind, NULL), 0);
    assert_string_equal(bind.hosts, "10.0.0.5");
    assert_string_equal(bind.allow, "10.0.0.0/8,::1");
    assert_int_equal(muster_rdzv_params_set_text(params, "allow", "10", NULL), 0);
    assert_int_equal(mu_bind_from_params(params, &bind, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "option 'allow'"));
    assert_int_equal(muster_rdzv_params_set_int(params, "bind", 5, NULL), 0);
    assert_int_equal(mu_bind_from_params(params, &bind, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "option 'bind'"));
    muster_rdzv_params_free(params);
}

static void a_server_lets_in_what_is_allowed_and_this_machine(void **state)
{
    static const struct {
        const char *allow, *networks[3];
    } rows[] = { { NULL, { NULL } },
                 { "10.0.0.0/8", { "10.0.0.0/8" } },
                 { "10.0.0.0/8,::1", { "10.0.0.0/8", "::1" } } };
    const struct mu_bind_plan plan = { .hosts = "10.0.0.5,127.0.0.1" };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct mu_bind bind = { .allow = rows[i].allow };
        struct mu_bind_networks room;
        struct muster_store_server_config config = mu_bind_server_config(&bind, &plan, 4711, &room);
        size_t count = 0;

        assert_int_equal(config.size, sizeof config);
        assert_string_equal(config.host, plan.hosts);
        assert_int_equal(config.port, 4711);
        assert_true(config.allow_own);
        assert_true((config.allow == NULL) == (rows[i].allow == NULL));
        for (; rows[i].networks[count] != NULL; count++)
            assert_string_equal(config.allow[count], rows[i].networks[count]);
        assert_true(config.allow == NULL || config.allow[count] == NULL);
    }
}

static bool covers(const char *hosts, const char *text)
{
    const struct mu_bind bind = { .hosts = hosts };
    union mu_addr addr;

    assert_true(mu_addr_parse(text, 0, &addr));
    return mu_bind_covers(&bind, &addr);
}

static void what_is_bound_covers_addresses(void **state)
{
    (void)state;
    assert_true(covers(NULL, "10.0.0.5"));
    assert_true(covers("any", "10.0.0.5"));
    assert_true(covers("0.0.0.0", "10.0.0.5"));
    assert_true(covers("10.0.0.4,10.0.0.5", "::ffff:10.0.0.5"));
    assert_false(covers("10.0.0.4,localhost", "10.0.0.5"));
    assert_true(covers("10.0.0.4", "127.0.0.1")); /* which is always there */
}

static void the_first_bound_address_is_one_for_others(void **state)
{
    static const struct {
        const char *hosts, *first;
    } rows[] = {
        { NULL, NULL },
        { "any", NULL },
        { "0.0.0.0", NULL },
        { "10.0.0.5,10.0.0.6", "10.0.0.5" },
        { "localhost,10.0.0.6", "10.0.0.6" },
        { "localhost", "127.0.0.1" },
        { "127.0.0.9,127.0.0.8", "127.0.0.9" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct mu_bind bind = { .hosts = rows[i].hosts };
        char text[64];

        assert_int_equal(mu_bind_first(&bind, text, sizeof text), rows[i].first != NULL);
        if (rows[i].first != NULL)
            assert_string_equal(text, rows[i].first);
    }
}

struct listener {
    char tried[256];
    const char *fails_at;
};

static int listen_at(void *ctx, const union mu_addr *addr, struct muster_error *reterr)
{
    struct listener *listener = ctx;
    char text[MU_ADDR_TEXT_MAX];

    assert_true(mu_addr_host(addr, text, sizeof text));
    strcat(strcat(listener->tried, text), " ");
    return strcmp(listener->fails_at, text) == 0 ? mu_fail(reterr, MUSTER_EADDRINUSE, "no") : 0;
}

static void an_address_that_others_were_told_is_needed(void **state)
{
    static const struct {
        enum mu_bind_reason reason;
        const char *hosts, *fails_at, *tried;
        int rc;
    } rows[] = {
        { MU_BIND_OWN, "192.0.2.1,127.0.0.1", "", "192.0.2.1 127.0.0.1 ", 0 },
        { MU_BIND_OWN, "192.0.2.1,127.0.0.1", "127.0.0.1", "192.0.2.1 127.0.0.1 ", 0 },
        { MU_BIND_OWN, "192.0.2.1,127.0.0.1", "192.0.2.1", "192.0.2.1 ", MUSTER_EADDRINUSE },
        { MU_BIND_ASKED, "192.0.2.1,name", "", "192.0.2.1 ", 0 },
        /* One of them is used. */
        { MU_BIND_INTERFACES, "192.0.2.1,127.0.0.1", "192.0.2.1", "192.0.2.1 127.0.0.1 ", 0 },
        { MU_BIND_NOT_OWN, MU_LISTEN_ANY, "10.0.0.1", "10.0.0.1 10.0.0.2 ", 0 },
    };
    union mu_addr own[2];

    (void)state;
    assert_true(mu_addr_parse("10.0.0.1", 0, &own[0]) && mu_addr_parse("10.0.0.2", 0, &own[1]));
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_bind_plan plan = { .reason = rows[i].reason };
        struct listener listener = { .fails_at = rows[i].fails_at };
        struct muster_error error;

        strcpy(plan.hosts, rows[i].hosts);
        assert_int_equal(mu_bind_each(&plan, own, COUNT(own), listen_at, &listener, &error), rows[i].rc);
        assert_string_equal(listener.tried, rows[i].tried);
    }
}

static void a_server_that_listens_on_more_than_was_said_is_warned_of(void **state)
{
    static const struct {
        enum mu_bind_reason reason;
        bool others;
        const char *text;
    } rows[] = {
        { MU_BIND_ASKED, true, NULL },
        { MU_BIND_OWN, true, NULL },
        { MU_BIND_INTERFACES, false, NULL },
        { MU_BIND_INTERFACES, true,
          "'h' is a loopback address on this machine, so its store also listens on the addresses of all interfaces; "
          "--bind ADDR limits that" },
        { MU_BIND_NOT_OWN, false,
          "'h' is not an address of this machine, so its store listens on every address; --bind ADDR limits that" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct mu_bind_plan plan = { .reason = rows[i].reason };
        char text[MU_BIND_WARNING_MAX];
        bool warns = mu_bind_warning(&plan, "h", "its store", rows[i].others, text);

        assert_int_equal(warns, rows[i].text != NULL);
        if (warns)
            assert_string_equal(text, rows[i].text);
    }
}

/* /etc/hosts has 127.0.1.1 and a gateway's address for the machine's own name: other nodes come by an interface. */
static void a_name_that_is_loopback_and_a_strangers_address_is_served_on_all_interfaces(void **state)
{
    union mu_addr addrs[2], own[MU_BIND_INTERFACES_MAX];
    size_t count = mu_own_addresses(own, MU_BIND_INTERFACES_MAX);
    struct mu_bind_plan plan;

    (void)state;
    assert_true(mu_addr_parse("127.0.1.1", 0, &addrs[0]) && mu_addr_parse("203.0.113.5", 0, &addrs[1]));
    mu_bind_ask_known(&(struct mu_bind){ .hosts = NULL }, "node1", addrs, 2, NULL, &plan);
    assert_int_equal(plan.reason, MU_BIND_INTERFACES);
    for (size_t i = 0; i < count; i++) {
        char text[MU_ADDR_TEXT_MAX];

        assert_true(mu_addr_host(&own[i], text, sizeof text));
        assert_non_null(strstr(plan.hosts, text));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plan_follows_from_what_a_host_is_here),
        cmocka_unit_test(a_name_is_looked_up_where_nothing_else_says_where_to_listen),
        cmocka_unit_test(the_longest_plan_has_room),
        cmocka_unit_test(what_the_user_says_is_checked),
        cmocka_unit_test(options_of_a_rendezvous_say_it),
        cmocka_unit_test(a_server_lets_in_what_is_allowed_and_this_machine),
        cmocka_unit_test(what_is_bound_covers_addresses),
        cmocka_unit_test(the_first_bound_address_is_one_for_others),
        cmocka_unit_test(an_address_that_others_were_told_is_needed),
        cmocka_unit_test(a_server_that_listens_on_more_than_was_said_is_warned_of),
        cmocka_unit_test(a_name_that_is_loopback_and_a_strangers_address_is_served_on_all_interfaces),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
