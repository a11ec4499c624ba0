/* Random bytes: as many as were asked for, and never the same ones. */
#include "base/random.h"
#include "pure.h"

static void bytes_are_filled_and_differ(void **state)
{
    char first[18] = { 0 }, second[18] = { 0 };

    (void)state;
    assert_int_equal(mu_random(first + 1, 16, NULL), 0);
    assert_int_equal(mu_random(second + 1, 16, NULL), 0);
    assert_memory_not_equal(first + 1, second + 1, 16);
    assert_true(first[0] == 0 && first[17] == 0); /* and no others */
}

static void seeds_differ(void **state)
{
    (void)state;
    assert_true(mu_fresh_seed() != mu_fresh_seed());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_filled_and_differ),
        cmocka_unit_test(seeds_differ),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
