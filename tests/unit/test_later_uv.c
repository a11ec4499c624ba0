/* What is done from the loop. */
#include "kv/later_uv.h"
#include "pure.h"

struct thing {
    struct mu_list link;
    unsigned told;
    unsigned again; /* so often it is pushed anew when it is told */
};

static uv_loop_t loop;
static struct mu_later later;

static void tell(struct mu_list *link)
{
    struct thing *thing = MU_LIST_ITEM(link, struct thing, link);

    thing->told++;
    if (thing->again > 0) {
        thing->again--;
        mu_later_push(&later, link);
    }
}

static int start(void **state)
{
    (void)state;
    if (uv_loop_init(&loop) < 0)
        return -1;
    mu_later_open(&later, &loop, tell);
    return 0;
}

static void on_closed(void *ctx)
{
    *(bool *)ctx = true;
}

static void end(void)
{
    bool closed = false;

    mu_later_close(&later, on_closed, &closed);
    assert_false(closed);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_true(closed);
    assert_int_equal(uv_loop_close(&loop), 0);
}

static void what_is_pushed_is_told_from_the_loop_and_once(void **state)
{
    struct thing things[2] = { { .told = 0 }, { .told = 0 } };

    (void)state;
    for (size_t i = 0; i < COUNT(things); i++)
        mu_later_push(&later, &things[i].link);
    assert_int_equal(things[0].told + things[1].told, 0);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0); /* and the loop has nothing left to do */
    assert_int_equal(things[0].told, 1);
    assert_int_equal(things[1].told, 1);
    end();
}

static void what_is_pushed_from_inside_has_to_wait_for_the_next_turn(void **state)
{
    struct thing thing = { .again = 3 };

    (void)state;
    mu_later_push(&later, &thing.link);
    for (unsigned turn = 1; turn <= 4; turn++) {
        (void)uv_run(&loop, UV_RUN_NOWAIT);
        assert_int_equal(thing.told, turn);
    }
    (void)uv_run(&loop, UV_RUN_NOWAIT);
    assert_int_equal(thing.told, 4);
    end();
}

static void what_is_left_is_told_before_it_is_closed(void **state)
{
    struct thing things[2] = { { .again = 1 }, { .told = 0 } };

    (void)state;
    mu_later_push(&later, &things[0].link);
    end();
    assert_int_equal(things[0].told, 2);
    assert_int_equal(things[1].told, 0);
}

static void what_comes_while_it_is_being_closed_is_told_too(void **state)
{
    struct thing thing = { .told = 0 };
    bool closed = false;

    (void)state;
    mu_later_close(&later, on_closed, &closed);
    mu_later_push(&later, &thing.link);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_true(closed);
    assert_int_equal(thing.told, 1);
    assert_int_equal(uv_loop_close(&loop), 0);
}

static void count(void *ctx)
{
    ++*(unsigned *)ctx;
}

/* The first two times. */
static void count_again(void *ctx)
{
    count(ctx);
    if (*(unsigned *)ctx < 3)
        mu_later_turn(&later, count_again, ctx);
}

static void a_turn_is_taken_once_however_often_it_is_wanted(void **state)
{
    unsigned turns = 0;

    (void)state;
    mu_later_turn(&later, count, &turns);
    mu_later_turn(&later, count, &turns);
    assert_int_equal(turns, 0);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(turns, 1);
    end();
}

static void a_turn_that_is_wanted_from_inside_has_to_wait_for_the_next(void **state)
{
    unsigned turns = 0;

    (void)state;
    mu_later_turn(&later, count_again, &turns);
    for (unsigned i = 1; i <= 3; i++) {
        (void)uv_run(&loop, UV_RUN_NOWAIT);
        assert_int_equal(turns, i);
    }
    end();
    assert_int_equal(turns, 3);
}

static void no_turn_is_taken_once_it_is_being_closed(void **state)
{
    unsigned turns = 0;

    (void)state;
    mu_later_turn(&later, count, &turns);
    end();
    assert_int_equal(turns, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(what_is_pushed_is_told_from_the_loop_and_once, start),
        cmocka_unit_test_setup(what_is_pushed_from_inside_has_to_wait_for_the_next_turn, start),
        cmocka_unit_test_setup(what_is_left_is_told_before_it_is_closed, start),
        cmocka_unit_test_setup(what_comes_while_it_is_being_closed_is_told_too, start),
        cmocka_unit_test_setup(a_turn_is_taken_once_however_often_it_is_wanted, start),
        cmocka_unit_test_setup(a_turn_that_is_wanted_from_inside_has_to_wait_for_the_next, start),
        cmocka_unit_test_setup(no_turn_is_taken_once_it_is_being_closed, start),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
