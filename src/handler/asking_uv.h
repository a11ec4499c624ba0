/* What the owner of a handler asks it for: done later, from the loop, in the order in which it was asked. */
#ifndef MU_HANDLER_ASKING_UV_H
#define MU_HANDLER_ASKING_UV_H

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

#define MU_ASKING_MAX 8 /* asked and not yet done; more are an owner's that does not wait for answers */

struct mu_asking { /* a member of its handler */
    uv_timer_t timer;
    unsigned items[MU_ASKING_MAX]; /* of an enum of the handler's */
    size_t count;
    void (*on_ask)(void *ctx, unsigned what);
    void (*closed)(void *ctx);
    void *ctx;
};

/* Only fills in memory; but from here on it is the loop's, and has to be closed. */
void mu_asking_open(struct mu_asking *asking, uv_loop_t *loop, void (*on_ask)(void *ctx, unsigned what), void *ctx);
/* Where there are too many, the newest takes the last one's place. */
void mu_asking_put(struct mu_asking *asking, unsigned what);
bool mu_asking_has(const struct mu_asking *asking, unsigned what);
bool mu_asking_ends_with(const struct mu_asking *asking, unsigned what);   /* that was asked last, and is not begun */
void mu_asking_close(struct mu_asking *asking, void (*closed)(void *ctx)); /* what is left is forgotten */

#endif
