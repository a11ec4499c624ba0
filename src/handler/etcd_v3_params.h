/* The parameters of the etcd-v3 rendezvous. Pure. */
#ifndef MU_HANDLER_ETCD_V3_PARAMS_H
#define MU_HANDLER_ETCD_V3_PARAMS_H

#include "handler/engine_params.h"
#include "kv/endpoints.h"

#define MU_V3_LEASE_S 10
#define MU_V3_LEASE_MIN_S 2 /* etcd's own election takes about one */
#define MU_V3_LEASE_MAX_S 3600
#define MU_V3_READ_TIMEOUT_S 60 /* for the first answer of etcd */

struct mu_v3_place { /* texts are the parameters'; NULL: none */
    const char *run_id, *local_addr;
    struct mu_http_config http; /* without its seed */
    const char *user, *password, *token;
    struct mu_rdzv_settings settings;
    bool use_agent_store;
    uint64_t lease_s, job_lease_s;
    uint64_t fence_s;          /* 0: none */
    uint64_t restart_window_s; /* the same */
    uint64_t first_s;          /* for etcd to be heard at all */
    struct mu_bind bind;
    struct mu_boot_master master;
};

int mu_v3_place_read(const struct muster_rdzv_params *params, struct mu_v3_place *ret_place,
                     struct muster_error *reterr);

/* Of its machines. These borrow. */
struct mu_boot_config mu_v3_boot_config(const struct mu_v3_place *place);
struct mu_fold_config mu_v3_fold_config(const struct mu_v3_place *place, const struct mu_node *me,
                                        const uint64_t random[static 2]);

#endif
