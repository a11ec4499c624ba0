/* When a handler that said "not yet" is asked again. */
#include "handler/retry.h"
#include "muster.h"
#include "pure.h"

enum { START_MS = 5000 };

static void only_not_yet_is_asked_again(void **state)
{
    static const int codes[] = { 0, MUSTER_ERDZV_CLOSED, MUSTER_ERDZV_TIMEOUT, MUSTER_ECONNECT, MUSTER_EINVAL };
    struct mu_retry retry = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        assert_int_equal(mu_retry_pause_ms(&retry, codes[i], START_MS), -1);
}

static void later_is_after_a_pause_and_now_is_at_once(void **state)
{
    struct mu_retry retry = { 0 };

    (void)state;
    assert_int_equal(mu_retry_pause_ms(&retry, MUSTER_ERETRY, START_MS), MU_RETRY_PAUSE_MS);
    assert_int_equal(mu_retry_pause_ms(&retry, MUSTER_ERETRY_NOW, START_MS), 0);
    assert_int_equal(mu_retry_pause_ms(&retry, MUSTER_ERETRY, START_MS), MU_RETRY_PAUSE_MS);
}

static void a_handler_that_always_says_now_does_not_spin(void **state)
{
    struct mu_retry retry = { 0 };

    (void)state;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < MU_RETRY_AT_ONCE_MAX; i++)
            assert_int_equal(mu_retry_pause_ms(&retry, MUSTER_ERETRY_NOW, START_MS), 0);
        assert_int_equal(mu_retry_pause_ms(&retry, MUSTER_ERETRY_NOW, START_MS), MU_RETRY_PAUSE_MS);
    }
}

static void it_ends_when_the_time_is_up(void **state)
{
    struct mu_retry retry = { 0 };

    (void)state;
    assert_int_equal(mu_retry_pause_ms(&retry, MUSTER_ERETRY, START_MS), MU_RETRY_PAUSE_MS);
    assert_int_equal(mu_retry_pause_ms(&retry, MUSTER_ERETRY, START_MS + MU_RETRY_TIME_MS - 1), MU_RETRY_PAUSE_MS);
    assert_int_equal(mu_retry_pause_ms(&retry, MUSTER_ERETRY, START_MS + MU_RETRY_TIME_MS), -2);
    assert_int_equal(mu_retry_pause_ms(&retry, MUSTER_ERETRY_NOW, START_MS + MU_RETRY_TIME_MS), -2);
    assert_int_equal(mu_retry_pause_ms(&retry, 0, START_MS + MU_RETRY_TIME_MS), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_not_yet_is_asked_again),
        cmocka_unit_test(later_is_after_a_pause_and_now_is_at_once),
        cmocka_unit_test(a_handler_that_always_says_now_does_not_spin),
        cmocka_unit_test(it_ends_when_the_time_is_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
