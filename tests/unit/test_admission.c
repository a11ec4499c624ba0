/* Which connections a store server takes, and which it closes for a newcomer. */
#include "failmalloc.h"
#include "pure.h"
#include "store/admission.h"

#include <stdio.h>

#define NOW_MS 100000

static union mu_addr address(const char *host, uint16_t port)
{
    union mu_addr addr = { .any = { 0 } };

    assert_true(mu_addr_parse(host, port, &addr));
    return addr;
}

static void a_newcomer_is_held_against_networks_address_and_limit(void **state)
{
    static const struct {
        const char *allow; /* NULL: everywhere */
        bool allow_own;
        const char *from;
        bool from_here;
        uint64_t per_address, limit; /* connections */
        size_t room, conns, had;     /* had: connections that its address has already */
        const char *refused;         /* NULL: it is taken */
    } rows[] = {
        { NULL, false, "10.0.0.1", false, 0, 100, 100, 1, 0, NULL },
        { "10.0.0.0/8", false, "10.0.0.1", false, 0, 100, 100, 1, 0, NULL },
        { "10.0.0.0/8", false, "11.0.0.1", false, 0, 100, 100, 1, 0, "in none of the allowed networks" },
        { "10.0.0.0/8", false, "127.0.0.1", true, 0, 100, 100, 1, 0, "in none of the allowed networks" },
        { "10.0.0.0/8", true, "127.0.0.1", true, 0, 100, 100, 1, 0, NULL },
        { "10.0.0.0/8", true, "11.0.0.1", false, 0, 100, 100, 1, 0, "in none of the allowed networks" },
        /* one address may have half of what there is room for */
        { NULL, false, "10.0.0.1", false, 0, 8, 100, 4, 3, NULL },
        { NULL, false, "10.0.0.1", false, 0, 8, 100, 5, 4, "its address has 4 connections" },
        { NULL, false, "10.0.0.1", false, 0, 100, 8, 5, 4, "its address has 4 connections" },
        { NULL, false, "10.0.0.1", false, 6, 8, 100, 6, 5, NULL },
        { NULL, false, "10.0.0.1", false, 6, 8, 100, 7, 6, "its address has 6 connections" },
        { NULL, false, "10.0.0.1", false, 0, 1, 100, 1, 0, NULL }, /* half of one is still one */
        /* those of this machine are not counted by address */
        { NULL, false, "127.0.0.1", true, 1, 100, 100, 50, 0, NULL },
        /* all together */
        { NULL, false, "10.0.0.1", false, 0, 8, 100, 8, 0, NULL },
        { NULL, false, "10.0.0.1", false, 0, 8, 100, 9, 0, "8 connections are open, which is the limit" },
        { NULL, false, "127.0.0.1", true, 0, 8, 100, 9, 0, "8 connections are open, which is the limit" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_network network;
        struct mu_admission admission = { .allow_own = rows[i].allow_own };
        struct muster_store_limits limits = { .connections = rows[i].limit,
                                              .connections_per_address = rows[i].per_address };
        union mu_addr from = address(rows[i].from, 1000);
        struct mu_newcomer newcomer = { &from, rows[i].from_here, rows[i].conns, rows[i].room };
        struct mu_origin *origins[8] = { NULL }, *origin = NULL;
        struct muster_error error = { 0 };
        int rc;

        if (rows[i].allow != NULL) {
            assert_int_equal(mu_network_parse(rows[i].allow, &network, NULL), 0);
            admission.allow = &network;
            admission.allow_count = 1;
        }
        for (size_t n = 0; n < rows[i].had; n++)
            assert_int_equal(mu_origins_add(&admission.origins, &from, SIZE_MAX, &origins[n], NULL), 0);
        rc = mu_admission_check(&admission, &limits, &newcomer, &origin, &error);
        if (rows[i].refused == NULL ? rc != 0 : rc == 0 || strstr(error.text, rows[i].refused) == NULL)
            fail_msg("row %zu: %d, '%s'", i, rc, error.text);
        if (rc == 0)
            assert_int_equal(origin == NULL, rows[i].from_here);
        if (origin != NULL)
            mu_origins_remove(&admission.origins, origin);
        for (size_t n = 0; n < rows[i].had; n++)
            mu_origins_remove(&admission.origins, origins[n]);
        assert_null(admission.origins.all.heads);
    }
}

static void descriptors_decide_whether_there_is_room(void **state)
{
    static const struct {
        size_t fd, files, conns, conns_max;
        enum mu_files_room room;
    } rows[] = {
        { 10, 1024, 1, 900, MU_FILES_ENOUGH },   { 10, 1024, 900, 900, MU_FILES_ENOUGH },
        { 10, 1024, 901, 900, MU_FILES_SHORT },  { 1019, 1024, 1, 900, MU_FILES_ENOUGH },
        { 1020, 1024, 1, 900, MU_FILES_NONE }, /* others have nearly all of them */
        { 1020, 1024, 901, 900, MU_FILES_NONE }, { 3, 4, 1, 0, MU_FILES_NONE },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_int_equal(mu_admission_room(rows[i].fd, rows[i].files, rows[i].conns, rows[i].conns_max), rows[i].room);
}

/* Which of these is closed? The list is walked in order, as a server does it. */
static void the_connection_that_is_of_least_use_is_closed(void **state)
{
    enum { MAX = 4 };
    static const struct {
        struct mu_candidate all[MAX]; /* addr is filled in */
        size_t count;
        int spare; /* -1: none */
    } rows[] = {
        { { { 0 } }, 0, -1 },
        { { { .heard_ms = 0 } }, 1, 0 },
        { { { .heard_ms = 0, .is_busy = true } }, 1, -1 },
        { { { .heard_ms = 0, .waits = true } }, 1, -1 },
        { { { .heard_ms = 0, .is_owed = true } }, 1, -1 },
        { { { .heard_ms = NOW_MS - 1000 } }, 1, 0 },
        { { { .heard_ms = NOW_MS - 999 } }, 1, -1 }, /* not idle */
        { { { .heard_ms = NOW_MS } }, 1, -1 },
        { { { .heard_ms = 5 }, { .heard_ms = 4 }, { .heard_ms = 6 } }, 3, 1 },
        { { { .heard_ms = 5 }, { .heard_ms = 5 } }, 2, 0 },
        { { { .heard_ms = 1, .from_here = true }, { .heard_ms = 9 } }, 2, 1 }, /* those from outside go first */
        { { { .heard_ms = 9 }, { .heard_ms = 1, .from_here = true } }, 2, 0 },
        { { { .heard_ms = 9, .from_here = true }, { .heard_ms = 1, .from_here = true } }, 2, 1 },
        { { { .heard_ms = 1, .waits = true }, { .heard_ms = 9, .from_here = true } }, 2, 1 },
        { { { 0 }, { 0 }, { 0 }, { .heard_ms = 0, .from_here = true } }, 4, 0 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_own_sockets own = { .count = 0 };
        union mu_addr addrs[MAX];
        struct mu_candidate best, candidate;
        int found = -1;

        for (size_t n = 0; n < rows[i].count; n++) {
            addrs[n] = address("10.0.0.1", (uint16_t)(1000 + n));
            candidate = rows[i].all[n];
            candidate.addr = &addrs[n];
            if (mu_admission_prefers(&candidate, found < 0 ? NULL : &best, &own, NOW_MS)) {
                best = candidate;
                found = (int)n;
            }
        }
        if (found != rows[i].spare)
            fail_msg("row %zu: %d is closed instead of %d", i, found, rows[i].spare);
    }
}

static void connections_of_this_process_are_never_closed(void **state)
{
    struct mu_own_sockets own = { .addrs = { address("127.0.0.1", 5), address("::1", 6) }, .count = 2 };
    static const struct {
        const char *host;
        uint16_t port;
        bool is_own;
    } rows[] = { { "127.0.0.1", 5, true },
                 { "127.0.0.1", 6, false },
                 { "127.0.0.2", 5, false },
                 { "::1", 6, true },
                 { "::ffff:127.0.0.1", 5, true } };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        union mu_addr addr = address(rows[i].host, rows[i].port);
        struct mu_candidate candidate = { .addr = &addr };

        assert_int_equal(mu_own_sockets_has(&own, &addr), rows[i].is_own);
        assert_int_equal(mu_admission_prefers(&candidate, NULL, &own, NOW_MS), !rows[i].is_own);
    }
}

/* ---- Connections by address, whatever its ports and however it is written ---- */

enum { MAX = 3 }; /* connections of one address */

static struct mu_origins origins;

static int add(const char *host, uint16_t port, struct mu_origin **ret_origin, struct muster_error *error)
{
    union mu_addr addr = address(host, port);

    return mu_origins_add(&origins, &addr, MAX, ret_origin, error);
}

static void an_address_may_have_so_many_and_no_more(void **state)
{
    struct mu_origin *here[MAX], *there, *more = NULL;
    struct muster_error error;

    (void)state;
    for (uint16_t i = 0; i < MAX; i++)
        assert_int_equal(add("192.0.2.1", i, &here[i], &error), 0);
    assert_int_equal(add("192.0.2.1", 99, &more, &error), MUSTER_ELIMIT);
    assert_string_equal(error.text, "its address has 3 connections, which is the limit for one address");
    assert_int_equal(add("::ffff:192.0.2.1", 99, &more, &error), MUSTER_ELIMIT);
    assert_int_equal(add("2001:db8::1", 99, &there, &error), 0);
    mu_origins_remove(&origins, here[1]);
    assert_int_equal(add("192.0.2.1", 99, &here[1], &error), 0);
    for (size_t i = 0; i < MAX; i++)
        mu_origins_remove(&origins, here[i]);
    mu_origins_remove(&origins, there);
    assert_null(origins.all.heads);
}

static void an_address_there_is_no_memory_for_is_refused(void **state)
{
    (void)state;
    FOR_EACH_FAILURE (n) {
        struct mu_origin *origin = NULL;
        int rc = add("192.0.2.1", 1, &origin, NULL);

        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        if (rc == 0)
            mu_origins_remove(&origins, origin);
        assert_null(origins.all.heads);
    }
}

static void strays_are_told_of_once_while_they_are_remembered(void **state)
{
    struct mu_strays strays = { .count = 0 };
    union mu_addr first = address("10.0.0.1", 1), again = address("10.0.0.1", 2), other;
    char text[32];

    (void)state;
    assert_true(mu_strays_add(&strays, &first));
    assert_false(mu_strays_add(&strays, &again));
    for (int i = 0; i < MU_STRAYS_MAX; i++) {
        (void)snprintf(text, sizeof text, "10.0.1.%d", i);
        other = address(text, 1);
        assert_true(mu_strays_add(&strays, &other));
        assert_false(mu_strays_add(&strays, &other));
    }
    assert_true(mu_strays_add(&strays, &first)); /* it was forgotten */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_newcomer_is_held_against_networks_address_and_limit),
        cmocka_unit_test(descriptors_decide_whether_there_is_room),
        cmocka_unit_test(the_connection_that_is_of_least_use_is_closed),
        cmocka_unit_test(connections_of_this_process_are_never_closed),
        cmocka_unit_test(an_address_may_have_so_many_and_no_more),
        cmocka_unit_test(an_address_there_is_no_memory_for_is_refused),
        cmocka_unit_test(strays_are_told_of_once_while_they_are_remembered),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
