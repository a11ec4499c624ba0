/* File timers: a worker that may hang asks beforehand to be killed at a certain time. Requests are lines of JSON that
 * PyTorch's clients write into a FIFO:
 *
 *     {"version": 1, "pid": 4242, "scope_id": "scope#1", "expiration_time": 1794725297.9, "signal": 9}     acquire
 *     {"version": 1, "pid": 4242, "scope_id": "scope#1", "expiration_time": -1, "signal": 0}               release
 *
 * Pure: bytes and the time come in; the processes to be killed come out. Times are the wall clock's, seconds since the
 * epoch, as the protocol has them. A line that is no request is reported and skipped. */
#ifndef MU_AGENT_TIMER_H
#define MU_AGENT_TIMER_H

#include "base/buf.h"
#include "base/error.h"
#include "base/list.h"

#define MU_TIMER_LINE_MAX 4096 /* PIPE_BUF, without the line end: clients write no more */
#define MU_TIMERS_MAX 4096     /* at once; past it a new one is refused, and that is said */
#define MU_TIMERS_BYTES_MAX ((size_t)8 << 20)

struct mu_timer {
    struct mu_list link; /* in the order of acquiring */
    int32_t pid;
    int signal;   /* 0: the process is not killed, the timer is only forgotten */
    double at_s;  /* when it expires */
    size_t len;   /* of the scope */
    char scope[]; /* NUL-terminated */
};

/* `line` is the request, cut to what a log takes; `error` says what is wrong with it. */
typedef void mu_timers_bad(void *ctx, struct mu_slice line, const struct muster_error *error);

struct mu_timers {
    struct mu_list all, fallen; /* timers; of the last expiry */
    struct mu_budget budget;    /* their memory */
    size_t count;
    char line[MU_TIMER_LINE_MAX]; /* what has come of the line that is not complete */
    size_t len;
    bool skipping;          /* the line was too long: nothing counts until it ends */
    uint64_t requests, bad; /* since the beginning */
};

void mu_timers_init(struct mu_timers *timers);
void mu_timers_done(struct mu_timers *timers);

/* Bytes as they were read, in pieces of any size. */
void mu_timers_feed(struct mu_timers *timers, struct mu_slice bytes, mu_timers_bad *on_bad, void *ctx);

/* When the next one expires; false: none is running. */
bool mu_timers_next(const struct mu_timers *timers, double *ret_at_s);

struct mu_timer_expiry {
    int32_t pid;
    int signal; /* what to send; 0: nothing, none of them asked for it */
    /* The expired timers of this process, ordered by time, up to the one that names the signal. A list of struct
     * mu_timer, until the next call with these timers. Never empty. */
    const struct mu_list *timers;
    const struct mu_timer *last; /* the one that names the signal, or the last of the list */
};

/* The next process with an expired timer; all its timers, expired or not, are forgotten. False: none. */
bool mu_timers_expire(struct mu_timers *timers, double now_s, struct mu_timer_expiry *ret_expiry);

/* The process is dead: its timers are forgotten. */
void mu_timers_forget(struct mu_timers *timers, int32_t pid);

#endif
