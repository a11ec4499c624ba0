/* What the fold machine (rdzv/fold.h) needs to know of the place where it runs, from the parameters of a rendezvous:
 * etcd, or the engine of a muster store. Pure. */
#ifndef MU_HANDLER_ENGINE_PARAMS_H
#define MU_HANDLER_ENGINE_PARAMS_H

#include "handler/handler.h"
#include "rdzv/fold.h"

#define MU_ENGINE_DEFAULT "on" /* of the option `engine` */
#define MU_ENGINE_LEASE_MS 5000
#define MU_ENGINE_LEASE_MAX_MS 3600000
#define MU_ENGINE_JOB_LEASE_S 60 /* how long the rest of a job stays; at least four leases of a node */
#define MU_ENGINE_FENCE_MAX_S 86400

struct mu_engine_params {
    const char *service;                /* "etcd", for people */
    uint64_t lease_ms, job_lease_ms;    /* of a node; of what is left of a job */
    uint64_t fence_s, restart_window_s; /* 0: none */
    uint64_t first_ms;                  /* for the service to be heard at all */
    size_t ops_max;                     /* of a write */
    bool tells_how;                     /* it tells how leases end */
};

uint64_t mu_engine_job_lease_s(uint64_t lease_s);
uint64_t mu_engine_renew_ms(uint64_t fence_s); /* at least so often the client has to renew a lease; 0: as it likes */
/* The options `fence` and `restart_window`. */
int mu_engine_fence_from_params(const struct muster_rdzv_params *params, uint64_t *ret_s, struct muster_error *reterr);
int mu_engine_window_from_params(const struct muster_rdzv_params *params, uint64_t *ret_s, struct muster_error *reterr);

/* MUSTER_EINVAL: no world takes the smallest number of nodes. */
int mu_engine_check_nodes(const struct mu_rdzv_settings *settings, struct muster_error *reterr);

/* Where the token is; NULL: there is none. Borrowed from the parameters. */
int mu_engine_token_file(const struct muster_rdzv_params *params, const char **ret_path, struct muster_error *reterr);
/* A path from the environment (MUSTER_TOKEN_FILE; NULL or empty: it is not set) as the option token_file, which wins if
 * it is given, too. Only c10d has tokens. MUSTER_EINVAL: there is a path, and engine=off. */
int mu_engine_take_token_file(struct muster_rdzv_params *params, const char *path, struct muster_error *reterr);

/* Of a muster store's engine. The lease is as long as the silence after which a node counts as dead, if the user has
 * said how long that is. `engine` false: MUSTER_EINVAL for options that need it. */
int mu_engine_params_read(const struct muster_rdzv_params *params, const struct mu_dynamic_config *dynamic, bool engine,
                          struct mu_engine_params *ret_engine, struct muster_error *reterr);

/* Borrows. */
struct mu_fold_config mu_engine_fold_config(const struct mu_engine_params *engine,
                                            const struct mu_rdzv_settings *settings, const struct mu_node *me,
                                            const uint64_t random[static 2]);

#endif
