/* A user's own blocking handler (struct muster_rdzv) as an event-driven one on a loop; see blocking.h. */
#ifndef MU_HANDLER_USER_HANDLER_UV_H
#define MU_HANDLER_USER_HANDLER_UV_H

#include "handler/handler.h"

extern const struct muster_handler_ops mu_user_handler_handler_ops;

/* `take`: the handler is freed with this one, also if this fails. */
int mu_user_handler_start(struct uv_loop_s *loop, struct muster_rdzv *rdzv, bool take, const struct mu_driving *driving,
                          const char *local_addr, muster_rdzv_listener *listener, void *ctx,
                          struct muster_handler **ret_handler, struct muster_error *reterr);

bool mu_user_handler_has_store(const struct muster_handler *handler); /* of the round */
int mu_user_handler_open_kv(struct muster_handler *handler, struct mu_kv **ret_kv, struct muster_error *reterr);

#endif
