/* An etcd store and etcd's keys for callers that may block: one thread with a loop, from open to free. Calls from any
 * thread, several at once. */
#ifndef MU_KV_BLOCKING_ETCD_STORE_UV_H
#define MU_KV_BLOCKING_ETCD_STORE_UV_H

#include "kv/etcd_store_uv.h"

/* The store that muster_store_etcd_new() gives. `where`: its directories; the rest, and the seed, are set here. */
int mu_etcd_store_open(const struct mu_http_config *etcd, struct mu_kv_etcd_store_config where, int64_t timeout_ms,
                       struct muster_store **ret_store, struct muster_error *reterr);
/* With a store of that kind: fills in the answer and returns its rc. `done` and `ctx` are not the caller's. */
int mu_etcd_store_call(struct muster_store *store, struct mu_etcd2_call *call);

/* All of it, whatever program it comes from. MUSTER_EINVAL: its size, or its endpoints, are not set. */
int mu_etcd_config_whole(const struct muster_etcd_config *given, struct muster_etcd_config *ret_whole,
                         struct muster_error *reterr);

#endif
