/* The watchdog: file timers (agent/timer.h) on a loop. It makes the FIFO, reads what workers ask for, and sends them
 * the signal that they named at the time that they named. That is then an ordinary death of a worker. One is started
 * whenever workers are started, and closed when they are stopped. Nothing polls: a wall-clock timer is set to
 * the next expiry. */
#ifndef MU_AGENT_TIMER_UV_H
#define MU_AGENT_TIMER_UV_H

#include "agent/timer.h"

#include <uv.h>

struct mu_watchdog;

#define MU_WATCHDOG_EVENTS(X)                                                                                          \
    X(STARTED, "watchdog started")                                                                                     \
    X(STOPPED, "watchdog stopped")                                                                                     \
    X(EXPIRED, "timer expired")      /* timer */                                                                       \
    X(KILLED, "kill worker process") /* timer: its signal was sent */                                                  \
    X(REFUSED, "refused")            /* timer, error: it was not sent: not a process of ours, or no permission */      \
    X(BAD_REQUEST, "bad request")    /* error, one line: a request that is none, and was skipped */                    \
    X(FAILED, "failed")              /* error: nothing is read from the FIFO any more; timers that run still expire */

enum mu_watchdog_event_type {
#define X(name, text) MU_WATCHDOG_##name,
    MU_WATCHDOG_EVENTS(X)
#undef X
};

/* The texts are the names of PyTorch's timer events: the first four are to be recorded (events/agent_event.h). */
const char *mu_watchdog_event_name(enum mu_watchdog_event_type value);

struct mu_watchdog_config {
    const char *path; /* of the FIFO; copied */
    /* Whether this is a worker of ours, or a descendant of one. Nothing else is ever signalled. */
    bool (*is_ours)(void *ctx, int32_t pid);
    /* Called from the loop; STARTED and STOPPED from inside of start and close. `timer` and `error` are borrowed and
     * may be NULL. It must not close the watchdog. */
    void (*on_event)(void *ctx, enum mu_watchdog_event_type type, const struct mu_timer *timer,
                     const struct muster_error *error);
    void *ctx;
};

/* Makes the FIFO anew, mode 0600: an old FIFO, or an empty file that is ours, goes; anything else there is an error. */
int mu_watchdog_start(uv_loop_t *loop, const struct mu_watchdog_config *config, struct mu_watchdog **ret_watchdog,
                      struct muster_error *reterr);
void mu_watchdog_forget(struct mu_watchdog *watchdog, int32_t pid); /* the process is dead; NULL is fine */
/* Removes the FIFO; no signal is sent after this. `on_closed` may be NULL. NULL is fine: then on_closed is not
 * called. */
void mu_watchdog_close(struct mu_watchdog *watchdog, void (*on_closed)(void *ctx), void *ctx);

#endif
