/* What the owner of a handler asks it for. */
#include "handler/asking_uv.h"
#include "pure.h"

#include <stdio.h>

static uv_loop_t loop;
static struct mu_asking asking;
static char trace[64];
static bool closed;

static void on_closed(void *ctx)
{
    assert_ptr_equal(ctx, trace);
    closed = true;
}

/* 7 asks for 8 and 9, and 9 is the end. */
static void on_ask(void *ctx, unsigned what)
{
    size_t used = strlen(trace);

    assert_ptr_equal(ctx, trace);
    (void)snprintf(trace + used, sizeof trace - used, "%u ", what);
    if (what == 7) {
        mu_asking_put(&asking, 8);
        mu_asking_put(&asking, 9);
        mu_asking_put(&asking, 1);
    }
    if (what == 9)
        mu_asking_close(&asking, on_closed);
}

static int start(void **state)
{
    (void)state;
    trace[0] = '\0';
    closed = false;
    mu_asking_open(&asking, &loop, on_ask, trace);
    return 0;
}

static void end(void)
{
    if (asking.closed == NULL)
        mu_asking_close(&asking, on_closed);
    assert_false(closed);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_true(closed);
}

static void what_is_asked_is_done_later_and_in_order(void **state)
{
    (void)state;
    mu_asking_put(&asking, 2);
    mu_asking_put(&asking, 1);
    mu_asking_put(&asking, 1);
    assert_true(mu_asking_has(&asking, 2));
    assert_false(mu_asking_ends_with(&asking, 2));
    assert_true(mu_asking_ends_with(&asking, 1));
    assert_string_equal(trace, "");
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_string_equal(trace, "2 1 1 ");
    assert_false(mu_asking_has(&asking, 1));
    assert_false(mu_asking_ends_with(&asking, 1));
    end();
}

static void it_may_be_asked_and_closed_from_inside(void **state)
{
    (void)state;
    mu_asking_put(&asking, 7);
    (void)uv_run(&loop, UV_RUN_NOWAIT);
    assert_string_equal(trace, "7 8 9 "); /* what came after that is forgotten */
    closed = false;
    (void)uv_run(&loop, UV_RUN_DEFAULT);
}

static void there_is_a_limit(void **state)
{
    (void)state;
    for (unsigned i = 10; i < 10 + MU_ASKING_MAX + 3; i++)
        mu_asking_put(&asking, i);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_string_equal(trace, "10 11 12 13 14 15 16 20 ");
    end();
}

static int open_loop(void **state)
{
    (void)state;
    return uv_loop_init(&loop);
}

static int close_loop(void **state)
{
    (void)state;
    return uv_loop_close(&loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(what_is_asked_is_done_later_and_in_order, start),
        cmocka_unit_test_setup(it_may_be_asked_and_closed_from_inside, start),
        cmocka_unit_test_setup(there_is_a_limit, start),
    };

    return cmocka_run_group_tests(tests, open_loop, close_loop);
}
