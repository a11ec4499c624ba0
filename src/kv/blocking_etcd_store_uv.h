/* An etcd store and etcd's keys for callers that may block: one thread with a loop, from start to stop. Calls from any
 * thread, several at once. */
#ifndef MU_KV_BLOCKING_ETCD_STORE_UV_H
#define MU_KV_BLOCKING_ETCD_STORE_UV_H

#include "kv/etcd_store_uv.h"

struct mu_etcd_sync;

int mu_etcd_sync_start(const struct mu_kv_etcd_store_config *config, struct mu_etcd_sync **ret_sync,
                       struct muster_error *reterr);
void mu_etcd_sync_stop(struct mu_etcd_sync *sync); /* NULL is fine. No call may be under way */

/* Both fill in the answer and return its rc. `done` and `ctx` are not the caller's. */
int mu_etcd_sync_kv(struct mu_etcd_sync *sync, struct mu_kv_request *request);
int mu_etcd_sync_call(struct mu_etcd_sync *sync, struct mu_etcd2_call *call);

/* The store that muster_store_etcd_new() gives, on this; it takes the sync, also on failure. */
int mu_etcd_sync_store(struct mu_etcd_sync *sync, int64_t timeout_ms, struct muster_store **ret_store,
                       struct muster_error *reterr);

/* All of it, whatever program it comes from. MUSTER_EINVAL: its size, or its endpoints, are not set. */
int mu_etcd_config_whole(const struct muster_etcd_config *given, struct muster_etcd_config *ret_whole,
                         struct muster_error *reterr);

#endif
