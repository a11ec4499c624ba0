/* The parameters of the classic etcd rendezvous, from options or from a URL. */
#ifndef MU_HANDLER_ETCD_PARAMS_H
#define MU_HANDLER_ETCD_PARAMS_H

#include "handler/handler.h"
#include "kv/endpoints.h"
#include "rdzv/classic.h"

#define MU_ETCD_TIMEOUT_S 600
#define MU_ETCD_LAST_CALL_S 30
#define MU_ETCD_CLOSE_S 30
#define MU_ETCD_SECONDS_MAX INT64_C(1000000000)

struct mu_etcd_place {               /* texts are the parameters' */
    const char *run_id, *local_addr; /* local_addr NULL: none */
    const char *prefix;              /* NULL: the default */
    struct mu_http_config http;      /* without its seed */
    int64_t nodes_min, nodes_max;
    uint64_t join_ms, last_call_ms, close_ms;
    bool old_dialect; /* PyTorch members are 1.13 to 2.3 */
    struct mu_boot_master master;
};

/* With an endpoint "etcd://...": what the URL says, and what it leaves open from the parameters. *ret_own is the
 * caller's; NULL: the parameters are good as they are. */
int mu_etcd_params_resolve(const struct muster_rdzv_params *params, struct muster_rdzv_params **ret_own,
                           struct muster_error *reterr);

/* The run id of an endpoint "etcd://...", which is the caller's; NULL: it is no URL. */
int mu_etcd_params_run_id(const char *endpoint, char **ret_run_id, struct muster_error *reterr);

/* What muster_rdzv_etcd_new() was given, as options. */
int mu_etcd_params_add(struct muster_rdzv_params *params, const struct muster_etcd_config *etcd, const char *prefix,
                       int64_t timeout_ms, int64_t last_call_timeout_ms, struct muster_error *reterr);

/* What etcd-v2 is told: *ret_http, whose texts are the parameters' and `protocol`. */
int mu_etcd_v2_params_read(const struct muster_rdzv_params *params, struct mu_http_config *ret_http,
                           char protocol[static MU_RDZV_WORD_MAX], struct muster_error *reterr);

int mu_etcd_params_read(const struct muster_rdzv_params *params, struct mu_etcd_place *ret_place,
                        struct muster_error *reterr);
/* ... and where the job's keys are in etcd. */
int mu_etcd_params_read_root(const struct muster_rdzv_params *params, struct mu_etcd_place *ret_place,
                             char ret_root[static MU_CLASSIC_KEY_MAX], struct muster_error *reterr);

/* Of its machines. These borrow. `node`: room for the node as text. */
struct mu_boot_config mu_etcd_boot_config(const struct mu_etcd_place *place, const char *name);
struct mu_classic_config mu_etcd_classic_config(const struct mu_etcd_place *place, const char *name, int64_t pid,
                                                uint64_t seed, char node[static MU_NODE_TEXT_MAX]);

#endif
