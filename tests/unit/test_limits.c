/* Limits: defaults, what follows from what, and what contradicts itself. */
#include "pure.h"
#include "store/limits.h"

static void zeroes_become_the_defaults(void **state)
{
    struct muster_store_limits limits = { 0 };

    (void)state;
    assert_int_equal(mu_limits_settle(&limits, NULL), 0);
    assert_true(limits.key_bytes == 8 << 10);
    assert_true(limits.value_bytes == 64 << 20);
    assert_true(limits.keys == 131072);
    assert_true(limits.request_bytes >= 128 << 20);
    assert_true(limits.unsent_bytes == 128 << 20);
    assert_true(limits.connections == 262144);
    assert_true(limits.total_bytes == 1 << 30);
}

/* A COMPARE_SET carries two values; that and a reply of one must fit wherever one value does. */
static void raising_the_value_limit_alone_is_enough(void **state)
{
    struct muster_store_limits limits = { .value_bytes = UINT64_C(1) << 30 };

    (void)state;
    assert_int_equal(mu_limits_settle(&limits, NULL), 0);
    assert_true(limits.request_bytes >= 2 * limits.value_bytes + limits.key_bytes + 25);
    assert_true(limits.unsent_bytes >= limits.value_bytes + 8);
    assert_true(limits.total_bytes >= 4 * limits.value_bytes);
}

static void what_is_given_stays(void **state)
{
    const struct muster_store_limits given = { 1, 2, 3, 4, 5, 6, 7, 8 };
    struct muster_store_limits limits = given;

    (void)state;
    assert_int_equal(mu_limits_settle(&limits, NULL), 0);
    assert_memory_equal(&limits, &given, sizeof given);
}

static void limits_that_cannot_work_are_refused_by_name(void **state)
{
    static const struct {
        struct muster_store_limits limits;
        const char *word;
    } rows[] = {
        { { .key_bytes = (1 << 20) + 1 }, "key" },
        { { .value_bytes = (UINT64_C(1) << 30) + 1 }, "value" },
        { { .value_bytes = UINT64_MAX }, "value" },
        { { .unsent_bytes = UINT64_C(1) << 32 }, "unsent replies" },
        { { .key_bytes = 100, .request_bytes = 99 }, "request" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_store_limits limits = rows[i].limits;
        struct muster_error err = { 0 };

        assert_int_equal(mu_limits_settle(&limits, &err), MUSTER_EINVAL);
        assert_int_equal(err.code, MUSTER_EINVAL);
        assert_non_null(strstr(err.text, rows[i].word));
        assert_int_equal(mu_limits_settle(&limits, NULL), MUSTER_EINVAL);
    }
}

static void the_largest_limits_are_taken(void **state)
{
    struct muster_store_limits limits = { .key_bytes = 1 << 20,
                                          .value_bytes = UINT64_C(1) << 30,
                                          .unsent_bytes = UINT32_MAX };

    (void)state;
    assert_int_equal(mu_limits_settle(&limits, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zeroes_become_the_defaults),   cmocka_unit_test(raising_the_value_limit_alone_is_enough),
        cmocka_unit_test(what_is_given_stays),          cmocka_unit_test(limits_that_cannot_work_are_refused_by_name),
        cmocka_unit_test(the_largest_limits_are_taken),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
