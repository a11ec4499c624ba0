/* A loop that is run a turn at a time, until something is so. */
#ifndef MU_TESTS_TURNS_UV_H
#define MU_TESTS_TURNS_UV_H

#include "pure.h"

#include <uv.h>

enum { TURNS_MS_MAX = 30000 };

static inline void on_turn(uv_timer_t *timer)
{
    (void)timer;
}

static inline void take_turn_of(uv_loop_t *whose)
{
    uv_timer_t timer;

    (void)uv_timer_init(whose, &timer);
    (void)uv_timer_start(&timer, on_turn, 5, 0); /* so that it never waits for longer */
    (void)uv_run(whose, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&timer, NULL);
    (void)uv_run(whose, UV_RUN_NOWAIT);
}

#define UNTIL_OF(whose, condition)                                                                                     \
    do {                                                                                                               \
        uint64_t since_ms_ = uv_hrtime() / 1000000;                                                                    \
        while (!(condition)) {                                                                                         \
            take_turn_of(whose);                                                                                       \
            if (uv_hrtime() / 1000000 - since_ms_ > TURNS_MS_MAX)                                                      \
                fail_msg("this never came true: %s", #condition);                                                      \
        }                                                                                                              \
    } while (0)

#endif
