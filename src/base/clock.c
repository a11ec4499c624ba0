/* Time, waiting on it, and threads that stay out of the way of signals. */
#include "base/clock.h"

#include <errno.h>
#include <signal.h>
#include <time.h>

int64_t mu_clock_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int64_t mu_clock_in_ms(int64_t ms)
{
    int64_t now_ms = mu_clock_ms();

    return ms < INT64_MAX - now_ms ? now_ms + ms : INT64_MAX;
}

int64_t mu_wall_us(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

void mu_pause_ms(int64_t ms)
{
    struct timespec time = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

    while (nanosleep(&time, &time) < 0 && errno == EINTR)
        continue;
}

int mu_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    int rc = pthread_condattr_init(&attr);

    if (rc != 0)
        return rc;
    rc = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    if (rc == 0)
        rc = pthread_cond_init(cond, &attr);
    (void)pthread_condattr_destroy(&attr);
    return rc;
}

bool mu_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t until_ms)
{
    struct timespec until = { .tv_sec = until_ms / 1000, .tv_nsec = until_ms % 1000 * 1000000 };

    return pthread_cond_timedwait(cond, lock, &until) == 0;
}

/* All signals are blocked, SIGPIPE of a closed connection too. */
int mu_thread_start(pthread_t *ret_thread, void *(*run)(void *), void *arg)
{
    sigset_t all, before;
    int rc;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(ret_thread, NULL, run, arg);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}
