/* The etcd-v3 handler from inside, for etcd_v3_uv.c (its life) and etcd_v3_requests_uv.c (requests to etcd). */
#ifndef MU_HANDLER_ETCD_V3_PARTS_UV_H
#define MU_HANDLER_ETCD_V3_PARTS_UV_H

#include "handler/etcd_v3_params.h"
#include "handler/meeting.h"
#include "handler/shell_uv.h"
#include "kv/engine_etcd3.h"
#include "kv/etcd3_uv.h"
#include "kv/kv_job_uv.h"
#include "kv/patience.h"

#include <stdio.h>
#include <stdlib.h>

#define MU_V3_REVOKE_MS 800 /* to take our keys out of etcd when we go; else they go with their lease */

struct mu_v3 {
    struct mu_shell shell;
    struct muster_rdzv_params *params; /* its texts are the place's */
    struct mu_v3_place place;
    char hostname[MU_HANDLER_NAME_MAX]; /* our name, unless the place has one */
    struct mu_engine_etcd3_names names;
    struct mu_patience patience;
    struct mu_meeting meeting;
    struct mu_etcd3 *etcd;
    struct mu_fold *fold;
    struct mu_etcd3_watch *watches[2]; /* by scope */
    uint64_t loads[2];                 /* the load of each that is under way; 0: none */
    struct mu_etcd3_lease *lease;
    uint64_t lease_take;
    struct mu_kv *kvs[2]; /* of an agent, and of its user; NULL: none */
};

static inline struct mu_v3 *mu_v3_of(struct mu_shell *shell)
{
    return (struct mu_v3 *)shell;
}

/* etcd_v3_requests_uv.c: what the fold machine wants from etcd. */
void mu_v3_request(struct mu_shell *shell, const void *wanted);
void mu_v3_answer_late(struct mu_shell *shell, uint64_t id, unsigned type);
void mu_v3_close_watches(struct mu_v3 *v);
/* Writes job/master, by a transaction that holds only if the round still is the job's; answers the boot's `id`. 0 or
 * MUSTER_ENOMEM. */
int mu_v3_publish(struct mu_v3 *v, uint64_t id, const struct mu_fold_master *master);

/* etcd_v3_uv.c: a GET of the boot's that waits may be answered now. */
void mu_v3_answer_get(struct mu_v3 *v);

#endif
