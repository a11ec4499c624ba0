/* The store of agents whose rendezvous is in etcd. Keys of the job (its verdict, its budget) are kept in etcd, by
 * transaction, under the job's lease, and so outlive every member. All other keys belong to the round, and go to the
 * store that rank 0's agent serves for this round. The job's keys are those of `muster.<run id>/` without a further
 * slash, and the done marks and notes of a round, `muster.<run id>/<round>/done/<rank>` and `.../left/<rank>`: rank 0's
 * agent may be the first that ends. */
#ifndef MU_KV_KV_JOB_UV_H
#define MU_KV_KV_JOB_UV_H

#include "kv/etcd3_uv.h"
#include "kv/kv.h"

struct mu_kv_job_config {
    const char *run_id; /* copied, as is `prefix` */
    const char *prefix; /* in etcd: "/muster/<run id>/job/kv/" */
    const char *marks;  /* of done marks and notes: "/muster/<run id>/done/", which nobody watches; copied, too */
    struct mu_etcd3 *etcd;
    int64_t (*lease)(void *ctx); /* of the job; 0: not known at the moment */
    /* Once, unless it was detached: nothing below may be called any more. */
    void (*on_closing)(struct mu_kv *kv, void *ctx);
    void *ctx;
};

/* GET, SET, COMPARE_SET and CHECK of the job's keys; of the round's, everything that a TCPStore can. */
int mu_kv_job_start(uv_loop_t *loop, const struct mu_kv_job_config *config, struct mu_kv **ret_kv,
                    struct muster_error *reterr);

/* Uses this store of the round from now on; requests to the one before are done with MUSTER_ECANCELED. */
void mu_kv_job_meet(struct mu_kv *kv, const char *host, uint16_t port);
/* This key of the job has changed (without the prefix), or any of them (NULL). */
void mu_kv_job_changed(struct mu_kv *kv, const struct mu_slice *key);
/* The client of etcd is about to be closed: no request to it is made any more, and no callback of the configuration is
 * called. */
void mu_kv_job_detach(struct mu_kv *kv);

#endif
