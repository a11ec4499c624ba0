/* An engine client (engine_client.h) over the frames of a muster store's engine. engine_store.h says what it does. */
#ifndef MU_KV_ENGINE_STORE_UV_H
#define MU_KV_ENGINE_STORE_UV_H

#include "kv/engine_client.h"
#include "kv/engine_store.h"

#include <uv.h>

/* Makes no connection before the first request. MUSTER_EINVAL: it is no endpoint; MUSTER_ENOMEM. */
int mu_engine_store_start(uv_loop_t *loop, const struct mu_engine_store_config *config, mu_engine_client_heard *heard,
                          void *ctx, struct mu_engine_client **ret_client, struct muster_error *reterr);
/* For what only this client can tell. */
const struct mu_engine_store *mu_engine_store_of(const struct mu_engine_client *client);

#endif
