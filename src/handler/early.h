/* What a handler was asked before it could do it: kept until its back end is there, and passed on to the handler within, or
 * until there is none, and told as failed. In the order it came, each at most once. */
#ifndef MU_HANDLER_EARLY_H
#define MU_HANDLER_EARLY_H

#include "base/error.h"

#include <stddef.h>

enum mu_early_ask { MU_EARLY_JOIN, MU_EARLY_CLOSE, MU_EARLY_LOOK, MU_EARLY_COUNT };

struct mu_early { /* zeroed memory is empty */
    enum mu_early_ask items[MU_EARLY_COUNT];
    size_t count;
};

void mu_early_add(struct mu_early *early, enum mu_early_ask ask);
void mu_early_drop(struct mu_early *early, enum mu_early_ask ask);

void mu_early_pass_one_on(enum mu_early_ask ask, struct muster_handler *inner);
void mu_early_pass_on(struct mu_early *early, struct muster_handler *inner); /* all, and none is left */

struct mu_early_node { /* who was asked */
    const char *run_id, *local_addr;
    int64_t local_id;
};

/* There is no back end: puts that on record, and tells each of them as failed, by FAILED or LOOKED; none is left. What is asked
 * from inside of `tell` is of the next try, and kept. The handler must not be freed before this has returned (it may be
 * asked to), and `tell` then tells nothing. */
typedef void mu_early_tell(void *ctx, enum muster_rdzv_event_type type, enum muster_rdzv_request request,
                           const struct muster_error *error);
void mu_early_fail(struct mu_early *early, const struct mu_early_node *node, const struct muster_error *error,
                   mu_early_tell *tell, void *ctx);

#endif
