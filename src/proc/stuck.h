/* Processes that hang in the kernel: in one uninterruptible sleep (state D) for longer than a limit. Pure; one for each
 * process.
 *
 * Two looks are enough: both find it in that state, and the number of context switches is the same, so it has not run
 * in between. */
#ifndef MU_PROC_STUCK_H
#define MU_PROC_STUCK_H

#include <stdbool.h>
#include <stdint.h>

#define MU_STUCK_LOOK_MIN_MS 10

struct mu_stuck { /* zeroed: nothing is known */
    bool sleeps, told;
    uint64_t since_ms, switches;
};

struct mu_stuck_look {
    char state;        /* as in struct mu_child; '?': not known */
    uint64_t switches; /* so often the kernel has switched away from it */
};

/* True: it hangs. Said once for each such sleep. */
bool mu_stuck_step(struct mu_stuck *stuck, const struct mu_stuck_look *look, uint64_t limit_ms, uint64_t now_ms);
/* When to look again. */
uint64_t mu_stuck_next_ms(const struct mu_stuck *stuck, uint64_t limit_ms, uint64_t now_ms);

#endif
