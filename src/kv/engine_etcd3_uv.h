/* An engine client (engine_client.h) over etcd's version 3 API. A request lasts at most as long as patience.h says, is
 * tried at each server, and failed then. */
#ifndef MU_KV_ENGINE_ETCD3_UV_H
#define MU_KV_ENGINE_ETCD3_UV_H

#include "kv/engine_client.h"
#include "kv/etcd3_uv.h"

struct mu_engine_etcd3_config {
    struct mu_etcd3_config etcd;
    const char *run_id;            /* copied; at most MU_RDZV_RUN_ID_MAX bytes */
    uint64_t lease_s, job_lease_s; /* of TAKE_LEASE and GRANT_JOB */
    uint64_t renew_ms;             /* at least so often a lease is kept alive, and RENEWED is told; 0: it is not */
};

/* Fails as mu_etcd3_start() does, and makes no connection yet. */
int mu_engine_etcd3_start(uv_loop_t *loop, const struct mu_engine_etcd3_config *config, mu_engine_client_heard *heard,
                          void *ctx, struct mu_engine_client **ret_client, struct muster_error *reterr);

#endif
