/* What keeps a job from burning its time in starts: pauses, nodes that are held off, restarts that count. */
#include "failmalloc.h"
#include "pure.h"
#include "rdzv/slowdown.h"

#include <stdio.h>

enum { NODE8 = 8, NODE9 = 9, REVISION = 20 };

/* In a round that began at that revision. */
static void stays(struct mu_slowdown *s, uint64_t id, const char *name, uint64_t lasted_ms, uint64_t ended_ms)
{
    mu_slowdown_ended(s, &(struct mu_slowdown_stay){ id, name, REVISION, lasted_ms, ended_ms });
}

static void the_third_short_round_in_a_row_brings_a_pause(void **state)
{
    static const struct {
        int64_t before;
        uint64_t lasted_ms;
        int64_t crashes;
        uint64_t pause_ms;
    } rows[] = {
        { 0, 100, 1, 0 },
        { 1, 9999, 2, 0 },
        { 2, 0, 3, 1000 },
        { 3, 5000, 4, 2000 },
        { 4, 1, 5, 4000 },
        { 7, 1, 8, 30000 },
        { 99, 1, 100, 30000 }, /* at most */
        { MU_FOLD_COUNT_MAX, 1, MU_FOLD_COUNT_MAX, 30000 },
        { 2, 10000, 0, 0 },
        { 99, 60000, 0, 0 }, /* it worked for a while */
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t crashes = mu_slowdown_crashes(rows[i].before, rows[i].lasted_ms);

        assert_int_equal(crashes, rows[i].crashes);
        assert_int_equal(mu_slowdown_pause_ms(crashes), rows[i].pause_ms);
    }
}

static void a_node_that_comes_and_goes_is_held_off(void **state)
{
    struct mu_slowdown s = { .nodes = NULL };
    uint64_t now_ms = 1000, hold_ms = 30000;

    (void)state;
    assert_int_equal(mu_slowdown_until_ms(&s, NODE9), 0);
    stays(&s, NODE9, "node9", 29999, now_ms);
    stays(&s, NODE8, "node8", 5, now_ms);
    stays(&s, NODE9, "node9", 5, now_ms);
    assert_int_equal(mu_slowdown_until_ms(&s, NODE9), 0);
    for (int i = 0; i < 8; i++) { /* from the third time on, twice as long each time, and at most ten minutes */
        stays(&s, NODE9, "node9", 5, now_ms);
        assert_int_equal(mu_slowdown_until_ms(&s, NODE9), now_ms + hold_ms);
        now_ms += hold_ms;
        hold_ms = hold_ms * 2 < 600000 ? hold_ms * 2 : 600000;
    }
    assert_int_equal(mu_slowdown_until_ms(&s, NODE8), 0);
    mu_slowdown_done(&s);
}

/* It is the last three stays that count. */
static void a_stay_that_was_long_or_that_others_ended_breaks_the_row(void **state)
{
    for (int others = 0; others < 2; others++) {
        struct mu_slowdown s = { .nodes = NULL };

        (void)state;
        for (unsigned k = 0; k < 5; k++)
            stays(&s, NODE9, "node9", 5, 1000);
        assert_int_equal(mu_slowdown_until_ms(&s, NODE9), 1000 + 120000);
        if (others)
            mu_slowdown_ended_by_others(&s, NODE9);
        else
            stays(&s, NODE9, "node9", 30000, 32000);
        assert_int_equal(mu_slowdown_until_ms(&s, NODE9), 0);
        stays(&s, NODE9, "node9", 5, 33000);
        stays(&s, NODE9, "node9", 5, 34000);
        assert_int_equal(mu_slowdown_until_ms(&s, NODE9), 0);
        stays(&s, NODE9, "node9", 5, 35000);
        assert_int_equal(mu_slowdown_until_ms(&s, NODE9), 35000 + 30000); /* as if nothing had been before */
        mu_slowdown_done(&s);
    }
}

static void nobody_else_s_row_is_broken(void **state)
{
    struct mu_slowdown s = { .nodes = NULL };

    (void)state;
    mu_slowdown_ended_by_others(&s, NODE8);
    assert_null(s.nodes);
    for (unsigned k = 0; k < 3; k++) {
        stays(&s, NODE9, "node9", 5, 1000);
        mu_slowdown_ended_by_others(&s, NODE8);
    }
    assert_int_equal(mu_slowdown_until_ms(&s, NODE9), 31000);
    mu_slowdown_done(&s);
}

/* An agent that was started anew has another identity. It cannot be one that was there beside it. */
static void agents_of_one_name_are_told_apart(void **state)
{
    struct mu_slowdown s = { .nodes = NULL };

    (void)state;
    mu_slowdown_came(&s, 1, "node9", REVISION + 1); /* nobody is known */
    for (unsigned k = 0; k < 3; k++)
        stays(&s, NODE9, "node9", 5, 1000);
    s.nodes[0].here = true;
    mu_slowdown_came(&s, 1, "node9", REVISION + 1);
    assert_int_equal(mu_slowdown_until_ms(&s, 1), 0); /* that one is there */
    s.nodes[0].here = false;
    mu_slowdown_came(&s, 2, "node9", REVISION - 1); /* it was there when the round of that stay began */
    mu_slowdown_came(&s, 3, "node8", REVISION + 1);
    assert_int_equal(mu_slowdown_until_ms(&s, 2), 0);
    assert_int_equal(mu_slowdown_until_ms(&s, 3), 0);
    mu_slowdown_came(&s, 4, "node9", REVISION + 1);
    mu_slowdown_came(&s, 5, "node9", REVISION + 2);
    assert_int_equal(mu_slowdown_until_ms(&s, 4), 31000);
    assert_int_equal(mu_slowdown_until_ms(&s, 5), 0); /* only one of them can be it */
    stays(&s, 4, "node9", 5, 40000);
    assert_int_equal(mu_slowdown_until_ms(&s, 4), 40000 + 60000);
    mu_slowdown_done(&s);
}

static void only_so_many_are_remembered_the_oldest_is_forgotten(void **state)
{
    struct mu_slowdown s = { .nodes = NULL };
    char name[32];

    (void)state;
    for (unsigned k = 0; k < 3; k++)
        stays(&s, NODE9, "first", 5, 1);
    for (unsigned i = 0; i < MU_SLOWDOWN_NODES_MAX - 1; i++) {
        (void)snprintf(name, sizeof name, "node%u", i);
        stays(&s, 1000 + i, name, 5, 10 + i);
    }
    assert_int_equal(mu_slowdown_until_ms(&s, NODE9), 30001);
    stays(&s, NODE8, "one more", 5, 9999);
    assert_int_equal(mu_slowdown_until_ms(&s, NODE9), 0);
    mu_slowdown_done(&s);
}

static void without_memory_nobody_is_held_off(void **state)
{
    struct mu_slowdown s = { .nodes = NULL };

    (void)state;
    fail_alloc_at(1);
    stays(&s, NODE9, "node9", 5, 1);
    fail_alloc_at(0);
    for (unsigned k = 0; k < 2; k++)
        stays(&s, NODE9, "node9", 5, 1);
    assert_int_equal(mu_slowdown_until_ms(&s, NODE9), 0);
    mu_slowdown_done(&s);
}

static void only_restarts_within_the_window_count(void **state)
{
    struct mu_fold_world world = { .window_s = 3600, .charges = { 3000, 600, 0 }, .charges_count = 3 };

    (void)state;
    assert_int_equal(mu_slowdown_recent(&world, 599000), 3);
    assert_true(world.charges[0] == 3599 && world.charges[2] == 599);
    assert_int_equal(mu_slowdown_recent(&world, 1000), 2);
    assert_int_equal(world.charges[0], 1200);
    assert_int_equal(mu_slowdown_recent(&world, 3600000), 0);
}

/* What is less than a second is carried to the next round. */
static void restarts_age_in_quick_rounds_as_in_slow_ones(void **state)
{
    struct mu_fold_world world = { .window_s = 3600, .charges = { 0 }, .charges_count = 1 };

    (void)state;
    for (int i = 0; i < 1000; i++)
        (void)mu_slowdown_recent(&world, 999);
    assert_int_equal(world.charges[0], 999);
    assert_int_equal(world.rest_ms, 0);
    (void)mu_slowdown_recent(&world, 2600000 + 750);
    assert_true(world.charges[0] == 3599 && world.rest_ms == 750);
    assert_int_equal(mu_slowdown_recent(&world, 249), 1);
    assert_int_equal(mu_slowdown_recent(&world, 1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_third_short_round_in_a_row_brings_a_pause),
        cmocka_unit_test(a_node_that_comes_and_goes_is_held_off),
        cmocka_unit_test(a_stay_that_was_long_or_that_others_ended_breaks_the_row),
        cmocka_unit_test(nobody_else_s_row_is_broken),
        cmocka_unit_test(agents_of_one_name_are_told_apart),
        cmocka_unit_test(only_so_many_are_remembered_the_oldest_is_forgotten),
        cmocka_unit_test(without_memory_nobody_is_held_off),
        cmocka_unit_test(only_restarts_within_the_window_count),
        cmocka_unit_test(restarts_age_in_quick_rounds_as_in_slow_ones),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
