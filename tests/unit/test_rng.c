/* Random numbers: the same for the same seed, and within their bounds. */
#include "base/rng.h"
#include "pure.h"

static void the_numbers_are_those_of_splitmix64(void **state)
{
    static const uint64_t of_zero[] = { 0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f };
    static const uint64_t of_1234567[] = { 0x599ed017fb08fc85, 0x2c73f08458540fa5, 0x883ebce5a3f27c77,
                                           0x3fbef740e9177b3f, 0xe3b8346708cb5ecd };
    struct mu_rng rng = mu_rng_seeded(0);

    (void)state;
    for (size_t i = 0; i < COUNT(of_zero); i++)
        assert_true(mu_rng_next(&rng) == of_zero[i]);
    rng = mu_rng_seeded(1234567);
    for (size_t i = 0; i < COUNT(of_1234567); i++)
        assert_true(mu_rng_next(&rng) == of_1234567[i]);
}

static void a_seed_replays(void **state)
{
    struct mu_rng a = mu_rng_seeded(42), b = mu_rng_seeded(42), c = mu_rng_seeded(43);
    bool differs = false;

    (void)state;
    for (int i = 0; i < 1000; i++) {
        uint64_t number = mu_rng_below(&a, 1000);

        assert_true(number == mu_rng_below(&b, 1000));
        differs |= number != mu_rng_below(&c, 1000);
    }
    assert_true(differs);
}

static void numbers_below_a_bound_reach_all_of_it_and_stay_below(void **state)
{
    struct mu_rng rng = mu_rng_seeded(7);
    unsigned seen[10] = { 0 };

    (void)state;
    for (int i = 0; i < 10000; i++) {
        uint64_t number = mu_rng_below(&rng, COUNT(seen));

        assert_true(number < COUNT(seen));
        seen[number]++;
    }
    for (size_t i = 0; i < COUNT(seen); i++)
        assert_in_range(seen[i], 800, 1200);
    assert_true(mu_rng_below(&rng, 0) == 0);
    assert_true(mu_rng_below(&rng, 1) == 0);
    for (int i = 0; i < 100; i++)
        assert_true(mu_rng_below(&rng, UINT64_MAX) < UINT64_MAX);
}

static void jitter_spreads_over_both_sides_and_no_further(void **state)
{
    struct mu_rng rng = mu_rng_seeded(7);
    bool low = false, high = false;

    (void)state;
    for (int i = 0; i < 10000; i++) {
        uint64_t delay = mu_rng_jitter(&rng, 1000, 50);

        assert_in_range(delay, 500, 1500);
        low |= delay < 550;
        high |= delay > 1450;
    }
    assert_true(low && high);
    for (int i = 0; i < 100; i++)
        assert_in_range(mu_rng_jitter(&rng, 1, 100), 0, 2);
}

static void jitter_of_nothing_changes_nothing(void **state)
{
    struct mu_rng rng = mu_rng_seeded(7);

    (void)state;
    assert_true(mu_rng_jitter(&rng, 1000, 0) == 1000);
    assert_true(mu_rng_jitter(&rng, 0, 50) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_numbers_are_those_of_splitmix64),
        cmocka_unit_test(a_seed_replays),
        cmocka_unit_test(numbers_below_a_bound_reach_all_of_it_and_stay_below),
        cmocka_unit_test(jitter_spreads_over_both_sides_and_no_further),
        cmocka_unit_test(jitter_of_nothing_changes_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
