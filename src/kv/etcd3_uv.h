/* A client of etcd's version 3 API (its JSON gateway): calls, watches and leases, on a libuv loop. See kv/http_uv.h for
 * how servers are chosen and when something is tried again.
 *
 * With a user name it logs in before the first request, and again whenever its token is refused.
 * Everything is used from the loop's thread, and nothing calls back inside of a call of this header. */
#ifndef MU_KV_ETCD3_UV_H
#define MU_KV_ETCD3_UV_H

#include "kv/etcd3.h"
#include "kv/http_uv.h"

struct mu_etcd3;

struct mu_etcd3_config {
    struct mu_http_config http;
    const char *user, *password; /* NULL: no log-in */
    const char *token;           /* instead of these: a token from elsewhere. NULL: none */
    uint64_t renew_ms;           /* of watches; 0: MU_ETCD3_RENEW_MS */
};

/* Opening makes no connection yet. MUSTER_ENOTSUP: no libcurl; MUSTER_EINVAL: the configuration. */
int mu_etcd3_start(uv_loop_t *loop, const struct mu_etcd3_config *config, struct mu_etcd3 **ret_etcd,
                   struct muster_error *reterr);
/* Calls under way are done with MUSTER_ECANCELED, from the loop; then `closed`, after which the memory is gone. Watches
 * and leases must have been closed before (closing them is enough: one need not wait, except for a lease's revocation,
 * which is otherwise cut off). */
typedef void mu_etcd3_closed(void *ctx);
void mu_etcd3_close(struct mu_etcd3 *etcd, mu_etcd3_closed *closed, void *ctx);
struct mu_http *mu_etcd3_http(struct mu_etcd3 *etcd); /* for mu_http_local_address() and the like */

/* ---- Calls ---- */

struct mu_etcd3_call;
typedef void mu_etcd3_done(struct mu_etcd3_call *call);

/* The memory is the caller's. What the request points to is needed only inside of mu_etcd3_call(); the call itself must
 * stay until `done`. */
struct mu_etcd3_call {
    /* Asked. */
    struct mu_etcd3_request request; /* RANGE, TXN, GRANT, KEEP_ALIVE, REVOKE */
    /* TXN: doing it twice has the same effect as once (plain puts), so it is sent again when an answer was lost. Not
     * for a transaction whose own effect makes its compares fail. The other kinds are repeated as needed. */
    bool repeatable;
    uint64_t timeout_ms;     /* for all tries; above 0 */
    uint64_t attempt_ms;     /* for one server, before the next is tried; 0: MU_HTTP_ATTEMPT_MS */
    unsigned only;           /* 0: any server. Else: endpoint only - 1 and no other, and only once */
    mu_http_retry *on_retry; /* an attempt failed, and there will be another one; ctx of what it is given is the call.
                              * May be NULL */
    mu_etcd3_done *done;     /* exactly once, from the loop */
    void *ctx;
    /* Answered. */
    /* 0: etcd has done it: see answer (a transaction whose compares failed is rc 0, succeeded false). Below 0: not.
     * answer.code is gRPC's code, if an etcd said so (MU_ETCD3_EXHAUSTED: no space; MU_ETCD3_NOT_FOUND: no such lease;
     * MU_ETCD3_OUT_OF_RANGE: compacted; ...), else 0. MUSTER_ETIMEOUT, _ECONNECT, _ELOST, _ERESOLVE: nobody there;
     * MUSTER_EPROTOCOL: that is no etcd; MUSTER_ECANCELED. `error` says what was tried, at which endpoint, and the
     * result: "transact on '/a': http://127.0.0.1:2379: HTTP 503, 14 etcdserver: no leader". */
    int rc;
    struct muster_error error;
    bool unsure;                   /* with rc < 0: it may have been carried out all the same, or may yet be */
    struct mu_etcd3_answer answer; /* the receiver's to free: mu_etcd3_answer_done(), whatever rc is */
    /* Under way: the driver's. */
    struct mu_etcd3 *etcd;
    struct mu_http_request http;
    struct mu_buf body;
    uint64_t started_ms;
    struct mu_list link;   /* of those that wait for a log-in */
    unsigned token_number; /* which of our log-ins it was sent with */
    bool waiting, again;
    char what[160];
};

void mu_etcd3_call(struct mu_etcd3 *etcd, struct mu_etcd3_call *call);
/* `done` still comes, from the loop, with MUSTER_ECANCELED or what it was about to come with. For calls under way
 * only. */
void mu_etcd3_cancel(struct mu_etcd3_call *call);

/* ---- Watches ----
 *
 * Tells every change of a key, or of all keys with a prefix, in order and once, from a revision on, over reconnects and
 * any outage, until it is closed. A silent server is noticed: when nothing was heard from it for MU_ETCD3_SILENT_MS, it
 * is asked for something small; without an answer the watch moves to the next server. (Keep-alives of a lease of the
 * same client count as being heard, so that with a lease nothing is asked.) A proxy may lose one stream while it
 * carries everything else: a stream that is silent for MU_ETCD3_RENEW_MS, +- 25 percent, is opened again from where it
 * was. This is not told as trouble. */

#define MU_ETCD3_SILENT_MS 4000
#define MU_ETCD3_RENEW_MS 20000

struct mu_etcd3_watch;
struct mu_etcd3_watch_ops {
    /* All changes of one or more whole revisions, in order; `revision` is the newest of them. Borrowed until it
     * returns. */
    void (*on_events)(struct mu_etcd3_watch *watch, const struct mu_etcd3_event *events, size_t count, int64_t revision,
                      void *ctx);
    /* Changes were missed: those before `compact_revision` are gone (or, with 0: it is another store, whose revision is
     * behind what we have seen). The watch stands still: close it, read, and start another. */
    void (*on_compacted)(struct mu_etcd3_watch *watch, int64_t compact_revision, void *ctx);
    /* It cannot be heard for the moment (`error`), and is tried again; or it can be heard again (NULL). May be NULL.
     * Once for each change. It is told as heard when etcd has confirmed the watch, also the first time. */
    void (*on_trouble)(struct mu_etcd3_watch *watch, const struct muster_error *error, void *ctx);
};

/* `key` is copied; `ops` is a constant. `revision`: the first that counts (what a read answered, + 1); 0: from now on,
 * that is from the moment that on_trouble(NULL) tells. */
int mu_etcd3_watch_start(struct mu_etcd3 *etcd, struct mu_slice key, bool prefix, int64_t revision,
                         const struct mu_etcd3_watch_ops *ops, void *ctx, struct mu_etcd3_watch **ret_watch,
                         struct muster_error *reterr);
/* No callback comes after this call; the memory is freed by the loop. Also from inside of its callbacks. */
void mu_etcd3_watch_close(struct mu_etcd3_watch *watch);

/* ---- Leases ----
 *
 * Takes a lease and keeps it alive every third of its time to live. Errors are tolerated as long as the lease can be
 * alive by our monotonic clock, counted from when the last successful request was sent. */

struct mu_etcd3_lease;
struct mu_etcd3_lease_ops {
    /* Once: there is a lease. */
    void (*on_granted)(struct mu_etcd3_lease *lease, int64_t id, void *ctx);
    /* Once, the end: etcd says that it is gone, or it must be by our clock, or it was never granted. Close it, and
     * start a new one if needed. */
    void (*on_lost)(struct mu_etcd3_lease *lease, const struct muster_error *error, void *ctx);
    /* A keep-alive failed (`error`), and is tried again; or one got through again (NULL). May be NULL. Once for each
     * change. */
    void (*on_trouble)(struct mu_etcd3_lease *lease, const struct muster_error *error, void *ctx);
};

/* `grant_ms`: how long to try to get one; above 0. We choose the id at random, so that a grant whose answer was lost
 * can be repeated. */
int mu_etcd3_lease_start(struct mu_etcd3 *etcd, int64_t ttl_s, uint64_t grant_ms, const struct mu_etcd3_lease_ops *ops,
                         void *ctx, struct mu_etcd3_lease **ret_lease, struct muster_error *reterr);
/* Before it is granted: it is kept alive at least this often, and each time that etcd has acknowledged this is told. */
void mu_etcd3_lease_tell_renewed(struct mu_etcd3_lease *lease, uint64_t every_ms,
                                 void (*on_renewed)(struct mu_etcd3_lease *lease, void *ctx));
/* When the last request that was acknowledged, the grant included, was sent, by uv_now(). */
uint64_t mu_etcd3_lease_renewed_ms(const struct mu_etcd3_lease *lease);
int64_t mu_etcd3_lease_id(const struct mu_etcd3_lease *lease); /* 0: not granted (yet) */
/* No callback comes after this call, except `closed`; the memory is freed by the loop. `revoke`: also asks etcd to end
 * it, and with it its keys, for at most revoke_ms, in the background. `closed` (may be NULL) comes from the loop when
 * that is over. Also from inside of its callbacks. */
void mu_etcd3_lease_close(struct mu_etcd3_lease *lease, bool revoke, uint64_t revoke_ms, void (*closed)(void *ctx),
                          void *ctx);

#endif
