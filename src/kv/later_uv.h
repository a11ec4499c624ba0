/* Answers that are there at once, and are told from the loop all the same, never inside of the call that wanted them. */
#ifndef MU_KV_LATER_UV_H
#define MU_KV_LATER_UV_H

#include "base/list.h"

#include <uv.h>

struct mu_later { /* a member of its driver */
    uv_idle_t handle;
    struct mu_list list;
    void (*tell)(struct mu_list *link);
    void (*closed)(void *ctx);
    void *ctx;
};

/* Only fills in memory; but from here on it is the loop's, and has to be closed. */
void mu_later_open(struct mu_later *later, uv_loop_t *loop, void (*tell)(struct mu_list *link));
/* `tell` is called for it, from the loop, soon, and in order. What is pushed from inside of `tell` has to wait until everybody
 * else had a turn of the loop: for it may be refused again, and for ever. */
void mu_later_push(struct mu_later *later, struct mu_list *link);
/* Tells what is left, and then `closed`, from the loop; until then more may be pushed. */
void mu_later_close(struct mu_later *later, void (*closed)(void *ctx), void *ctx);

#endif
