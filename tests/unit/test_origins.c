/* Connections by address: each address has its own count, whatever its ports and however it is written. */
#include "failmalloc.h"
#include "pure.h"
#include "store/origins.h"

enum { MAX = 3 };

static struct mu_origins origins;

static int add(const char *host, uint16_t port, struct mu_origin **ret_origin, struct muster_error *error)
{
    union mu_addr addr;

    assert_true(mu_addr_parse(host, port, &addr));
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_address_may_have_so_many_and_no_more),
        cmocka_unit_test(an_address_there_is_no_memory_for_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
