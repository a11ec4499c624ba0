/* Who hangs in the kernel, judged by looks at it. */
#include "proc/stuck.h"
#include "pure.h"

enum { LIMIT_MS = 1000 };

struct look {
    uint64_t now_ms;
    char state;
    uint64_t switches;
    bool hangs;
    uint64_t next_ms;
};

static void look_on(const struct look *looks, size_t count)
{
    struct mu_stuck stuck = { 0 };

    for (size_t i = 0; i < count; i++) {
        struct mu_stuck_look look = { .state = looks[i].state, .switches = looks[i].switches };

        if (mu_stuck_step(&stuck, &look, LIMIT_MS, looks[i].now_ms) != looks[i].hangs ||
            mu_stuck_next_ms(&stuck, LIMIT_MS, looks[i].now_ms) != looks[i].next_ms)
            fail_msg("look %zu", i);
    }
}

static void one_long_sleep_is_told_once_when_its_time_is_up(void **state)
{
    static const struct look looks[] = {
        { 0, 'R', 5, false, 500 },      { 500, 'D', 6, false, 1500 },    { 1499, 'D', 6, false, 1500 },
        { 1500, 'D', 6, true, 2000 },   { 2000, 'D', 6, false, 2500 },   { 9000, 'D', 6, false, 9500 },
        { 9500, 'S', 7, false, 10000 }, { 10000, 'D', 9, false, 11000 }, { 11000, 'D', 9, true, 11500 },
    };

    (void)state;
    look_on(looks, COUNT(looks));
}

static void many_short_sleeps_are_none_however_often_one_is_seen(void **state)
{
    static const struct look looks[] = {
        { 0, 'D', 1, false, 1000 },     { 1000, 'D', 2, false, 2000 },  { 2000, 'D', 40, false, 3000 },
        { 2500, 'D', 41, false, 3500 }, { 3500, 'R', 41, false, 4000 },
    };

    (void)state;
    look_on(looks, COUNT(looks));
}

static void one_that_runs_or_cannot_be_seen_does_not_hang(void **state)
{
    static const struct look looks[] = {
        { 0, 'D', 1, false, 1000 },
        { 900, '?', 0, false, 1400 },
        { 1400, 'D', 1, false, 2400 },
        { 2400, 'D', 1, true, 2900 },
    };

    (void)state;
    look_on(looks, COUNT(looks));
}

static void short_limits_are_not_looked_at_all_the_time(void **state)
{
    struct mu_stuck stuck = { 0 };

    (void)state;
    assert_int_equal(mu_stuck_next_ms(&stuck, 1, 100), 100 + MU_STUCK_LOOK_MIN_MS);
    assert_int_equal(mu_stuck_next_ms(&stuck, 60000, 100), 30100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_long_sleep_is_told_once_when_its_time_is_up),
        cmocka_unit_test(many_short_sleeps_are_none_however_often_one_is_seen),
        cmocka_unit_test(one_that_runs_or_cannot_be_seen_does_not_hang),
        cmocka_unit_test(short_limits_are_not_looked_at_all_the_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
