/* The seam between the driver of the fold machine (rdzv/fold.h) and the place where the nodes of a job coordinate, such
 * as etcd (engine_etcd3_uv.h). It speaks the machine's own words: a request is one of the machine's effects, and what
 * comes back is one of its events. A client carries requests; it decides nothing, and knows no machine.
 *
 * Requests are LOAD, UNWATCH, RANGE, TAKE_LEASE, DROP_LEASE, GRANT_JOB, KEEP_JOB, LOOK_AROUND, UNMARK and WRITE.
 * Their owner chooses the ids, and uses none twice. Each id is answered once, with the event that fold.h names for the
 * effect.
 * LOOK_AROUND reads at most MU_WAITERS_RECORDS_MAX records, however many there are, and tells the oldest first.
 * There is no answer to UNWATCH and UNMARK, to an id of 0, nor to a LOAD that was ended by UNWATCH or by another LOAD
 * of its scope.
 *
 * Unasked come CHANGED and STALE of a scope that was loaded, LEASE_LOST of a lease that was taken (and
 * RENEWED, where the client was made for that), TROUBLE, and, where a node may host what is asked, MET. */
#ifndef MU_KV_ENGINE_CLIENT_H
#define MU_KV_ENGINE_CLIENT_H

#include "kv/kv.h"
#include "rdzv/fold.h"

struct mu_engine_client;

/* From the loop, never inside of a call of the client. The event is borrowed until this returns; its now_ms is not
 * filled in. New requests may be made from here, and the client may be closed. */
typedef void mu_engine_client_heard(void *ctx, const struct mu_fold_event *event);

struct mu_engine_client_ops { /* a constant */
    size_t ops_max;           /* operations of one write; what is larger fails */
    /* Copies what it needs of the effect. `until_ms`: when the request has to be over, answered or failed, in the
     * loop's time; UINT64_MAX: the client decides. */
    void (*request)(struct mu_engine_client *client, const struct mu_fold_effect *effect, uint64_t until_ms);
    /* The address of this node as the other side sees it, as text. False: it is not known (yet). */
    bool (*local_address)(const struct mu_engine_client *client, char *ret_text, size_t room);
    /* What another process sends when this one was killed: puts the `mark`, then ends the lease that was taken. False:
     * there is nothing like this now: no lease, no connection, it takes more than a few bytes (TLS, a log-in). */
    bool (*will)(const struct mu_engine_client *client, const struct mu_fold_op *mark, struct mu_kv_lone *ret_will);
    /* Nothing is heard from here on. Ends the lease, and with it this node's keys, cancels what is under way, and calls
     * `closed` from the loop; then the memory is gone. */
    void (*close)(struct mu_engine_client *client, void (*closed)(void *ctx), void *ctx);
};

struct mu_engine_client { /* first member of the client's own */
    const struct mu_engine_client_ops *ops;
    mu_engine_client_heard *heard;
    void *ctx;
};

#endif
