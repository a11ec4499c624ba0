/* A user's own back end and store as the back end of a dynamic rendezvous. Their calls may block, so each kind has a
 * thread of its own, started when first needed: the document, watching it, the store. */
#ifndef MU_KV_KV_USER_UV_H
#define MU_KV_KV_USER_UV_H

#include "kv/kv.h"

#include <uv.h>

/* `backend` and `store` must outlive it. Closing waits, without blocking the loop, until calls under way return, for
 * patience_ms at most (0: without a limit); a call that has not returned by then is left behind with its thread, and
 * one line is logged. */
int mu_kv_user_start(uv_loop_t *loop, struct muster_rdzv_backend *backend, struct muster_store *store,
                     const char *run_id, uint64_t patience_ms, struct mu_kv **ret_kv, struct muster_error *reterr);

#endif
