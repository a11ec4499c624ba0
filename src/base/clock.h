/* The one clock that waits are measured with, and waiting on it. For blocking calls; code that decides is told the
 * time. */
#ifndef MU_BASE_CLOCK_H
#define MU_BASE_CLOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

int64_t mu_clock_ms(void);          /* monotonic */
int64_t mu_clock_in_ms(int64_t ms); /* that long from now (0 or more); at most INT64_MAX, which never comes */
int64_t mu_wall_us(void);           /* by the clock on the wall, since 1970; for the record, not for waiting */

void mu_pause_ms(int64_t ms); /* of this thread; 0: none */

/* A condition variable whose deadlines are on that clock, so that setting the time of day does not stretch them. */
int mu_cond_init(pthread_cond_t *cond);
/* False when it is `until_ms` and nothing was signalled. */
bool mu_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t until_ms);

/* A thread that takes no signals: those are the program's. */
int mu_thread_start(pthread_t *ret_thread, void *(*run)(void *), void *arg); /* 0 or an errno value */

#endif
