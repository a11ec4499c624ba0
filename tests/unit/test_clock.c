/* Monotonic time, waiting on it, and threads that take no signals. */
#include "base/clock.h"
#include "pure.h"

#include <signal.h>

static void time_does_not_run_backwards(void **state)
{
    int64_t last = mu_clock_ms();

    (void)state;
    for (int i = 0; i < 1000; i++) {
        int64_t now = mu_clock_ms();

        assert_true(now >= last);
        last = now;
    }
}

static void a_time_from_now_never_runs_over(void **state)
{
    int64_t now = mu_clock_ms();

    (void)state;
    assert_true(mu_clock_in_ms(0) >= now);
    assert_true(mu_clock_in_ms(1000) >= now + 1000);
    assert_true(mu_clock_in_ms(INT64_MAX / 2) < INT64_MAX);
    assert_true(mu_clock_in_ms(INT64_MAX) == INT64_MAX);
}

static void a_wait_ends_at_its_deadline_and_not_before(void **state)
{
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t cond;
    int64_t until = mu_clock_ms() + 20;

    (void)state;
    assert_int_equal(mu_cond_init(&cond), 0);
    (void)pthread_mutex_lock(&lock);
    while (mu_cond_wait_until(&cond, &lock, until))
        continue; /* woken for no reason */
    assert_true(mu_clock_ms() >= until);
    assert_false(mu_cond_wait_until(&cond, &lock, until - 1000)); /* one that has passed */
    (void)pthread_mutex_unlock(&lock);
    (void)pthread_cond_destroy(&cond);
}

static void *read_mask(void *arg)
{
    (void)pthread_sigmask(SIG_SETMASK, NULL, arg);
    return NULL;
}

static void a_thread_takes_no_signals_and_its_maker_keeps_its_own_mask(void **state)
{
    static const int signals[] = { SIGINT, SIGTERM, SIGPIPE, SIGCHLD, SIGUSR1 };
    sigset_t there, before, after;
    pthread_t thread;

    (void)state;
    (void)pthread_sigmask(SIG_SETMASK, NULL, &before);
    assert_int_equal(mu_thread_start(&thread, read_mask, &there), 0);
    (void)pthread_join(thread, NULL);
    (void)pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        assert_true(sigismember(&there, signals[i]));
        assert_int_equal(sigismember(&after, signals[i]), sigismember(&before, signals[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(time_does_not_run_backwards),
        cmocka_unit_test(a_time_from_now_never_runs_over),
        cmocka_unit_test(a_wait_ends_at_its_deadline_and_not_before),
        cmocka_unit_test(a_thread_takes_no_signals_and_its_maker_keeps_its_own_mask),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
