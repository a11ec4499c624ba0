/* Processes that hang in the kernel. */
#include "proc/stuck.h"

bool mu_stuck_step(struct mu_stuck *stuck, const struct mu_stuck_look *look, uint64_t limit_ms, uint64_t now_ms)
{
    if (look->state != 'D') {
        *stuck = (struct mu_stuck){ 0 };
        return false;
    }
    if (!stuck->sleeps || look->switches != stuck->switches) {
        *stuck = (struct mu_stuck){ .sleeps = true, .since_ms = now_ms, .switches = look->switches };
        return false;
    }
    if (stuck->told || now_ms - stuck->since_ms < limit_ms)
        return false;
    stuck->told = true;
    return true;
}

uint64_t mu_stuck_next_ms(const struct mu_stuck *stuck, uint64_t limit_ms, uint64_t now_ms)
{
    uint64_t pause_ms = limit_ms / 2 > MU_STUCK_LOOK_MIN_MS ? limit_ms / 2 : MU_STUCK_LOOK_MIN_MS;

    if (stuck->sleeps && !stuck->told && stuck->since_ms + limit_ms > now_ms)
        return stuck->since_ms + limit_ms;
    return now_ms + pause_ms;
}
