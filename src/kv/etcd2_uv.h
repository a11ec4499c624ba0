/* Calls of etcd's version 2 API. See kv/http_uv.h for the client: how servers are chosen, and when something is tried
 * again. Everything is used from the loop's thread, and nothing calls back inside of a call of this header. */
#ifndef MU_KV_ETCD2_UV_H
#define MU_KV_ETCD2_UV_H

#include "kv/etcd2.h"
#include "kv/http_uv.h"

struct mu_etcd2_call;
typedef void mu_etcd2_done(struct mu_etcd2_call *call);

/* The memory is the caller's and must stay until `done`; what the request points to is needed only inside of
 * mu_etcd2_call(). */
struct mu_etcd2_call {
    /* Asked. */
    struct mu_etcd2_request request; /* also WATCH: one long poll, done with the first event, or MUSTER_ETIMEOUT */
    uint64_t timeout_ms;             /* for all tries; above 0 */
    mu_etcd2_done *done;             /* exactly once, from the loop */
    void *ctx;
    /* Answered. */
    /* 0: etcd has answered, and answer.code says whether well (0) or with an error of its own (100, 101, 105, 401, ...;
     * then `error` has a text for it: "set '/a': http://127.0.0.1:2379: HTTP 412, 105 Key already exists (/a)"). Below
     * 0: there is no such answer. MUSTER_ETIMEOUT: the time was up; MUSTER_ECONNECT, _ELOST, _ERESOLVE: nobody there;
     * MUSTER_EPROTOCOL: that is no etcd; MUSTER_ECANCELED; MUSTER_EINVAL, _ELIMIT, _ENOMEM: nothing was sent. `error`
     * says what was tried, at which endpoint, and what came of it. */
    int rc;
    struct muster_error error;
    bool unsure; /* with rc < 0, of a write: it may have been carried out all the same, or may yet be */
    unsigned status;
    struct mu_etcd2_answer answer; /* with rc 0 (else zeroed): the receiver's to free, mu_etcd2_answer_done() */
    /* Under way: the driver's. */
    struct mu_http *etcd;
    struct mu_http_request http;
    struct mu_etcd2_wire wire;
    char what[160];
};

void mu_etcd2_call(struct mu_http *etcd, struct mu_etcd2_call *call);
/* The same. Without any time left it is tried for a moment, and says itself what became of it. */
void mu_etcd2_ask(struct mu_http *etcd, struct mu_etcd2_call *call, struct mu_etcd2_request request,
                  uint64_t timeout_ms, mu_etcd2_done *done, void *ctx);
/* `done` still comes, from the loop, with MUSTER_ECANCELED or what it was about to come with. For calls under way
 * only. */
void mu_etcd2_cancel(struct mu_etcd2_call *call);

#endif
