/* A user's own blocking handler (struct muster_rdzv) as an event-driven one on a loop; see user_handler.h. */
#ifndef MU_HANDLER_USER_HANDLER_UV_H
#define MU_HANDLER_USER_HANDLER_UV_H

#include "handler/handler.h"

/* `take`: the handler is freed with this one, also if this fails. */
int mu_user_handler_start(struct uv_loop_s *loop, struct muster_rdzv *rdzv, bool take, const struct mu_driving *driving,
                          const char *local_addr, muster_rdzv_listener *listener, void *ctx,
                          struct muster_handler **ret_handler, struct muster_error *reterr);

#endif
