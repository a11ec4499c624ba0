/* When next_rendezvous() is called again if a handler says "not yet": MUSTER_ERETRY after a pause,
 * MUSTER_ERETRY_NOW at once. Pure. PyTorch's classic etcd rendezvous has two exceptions for this; here any handler of a
 * user's own may say it. */
#ifndef MU_HANDLER_RETRY_H
#define MU_HANDLER_RETRY_H

#include <stdint.h>

#define MU_RETRY_PAUSE_MS 1000
#define MU_RETRY_AT_ONCE_MAX 16 /* in a row; then there is a pause after all, so that nobody spins */
#define MU_RETRY_TIME_MS 600000 /* from the first "not yet" on: PyTorch's time for a join */

struct mu_retry {     /* zeroed memory: nothing was said yet */
    int64_t until_ms; /* 0: it has not begun */
    unsigned at_once; /* in a row */
};

/* What follows this code of a call: the pause before the next one; -1: it is the result; -2: it would be tried again,
 * but the time is up. */
int64_t mu_retry_pause_ms(struct mu_retry *retry, int code, int64_t now_ms);

#endif
