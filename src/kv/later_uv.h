/* The one way to do something later: from the loop, soon, and never inside of the call that wanted it. For answers that
 * are there at once, and for code that must not act from inside of a call or callback. */
#ifndef MU_KV_LATER_UV_H
#define MU_KV_LATER_UV_H

#include "kv/kv.h"

#include <uv.h>

struct mu_later { /* a member of its driver */
    uv_idle_t handle;
    struct mu_list list;
    void (*tell)(struct mu_list *link);
    void (*turn)(void *ctx); /* NULL: none is wanted */
    void *turn_ctx;
    void (*closed)(void *ctx);
    void *ctx;
};

/* Only fills in memory; but from here on it is the loop's, and has to be closed. `tell` is NULL where nothing is
 * pushed. */
void mu_later_open(struct mu_later *later, uv_loop_t *loop, void (*tell)(struct mu_list *link));
/* `tell` is called for it, from the loop, soon, and in order. What is pushed from inside of `tell` waits for the next
 * turn of the loop: it may be refused again, and for ever. */
void mu_later_push(struct mu_later *later, struct mu_list *link);
/* Where mu_kv_tell() tells: the request has failed, and is told so. */
void mu_later_fail(struct mu_later *later, struct mu_kv_request *request, const struct muster_error *error);
/* `turn` is called once, from the loop, soon, and after what was pushed; however often it is wanted before that.
 * Wanted from inside of it: in the next turn of the loop. Not called any more once it is being closed. */
void mu_later_turn(struct mu_later *later, void (*turn)(void *ctx), void *ctx);
/* Tells what is left, and then `closed`, from the loop; until then more may be pushed. */
void mu_later_close(struct mu_later *later, void (*closed)(void *ctx), void *ctx);

/* A timer for a moment of the loop's time; UINT64_MAX: it is stopped. */
void mu_timer_until(uv_timer_t *timer, uint64_t when_ms, uv_timer_cb on_time);

#endif
