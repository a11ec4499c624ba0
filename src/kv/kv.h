/* What a dynamic rendezvous needs of a back end: the document with a fencing token and, if it has them, a bell, turns
 * and settled digests; also the plain store of the job, for ranks, addresses and counters. It carries and never judges.
 * Every request is answered from the loop, exactly once, never inside of the call. */
#ifndef MU_KV_KV_H
#define MU_KV_KV_H

#include "base/buf.h"
#include "base/error.h"
#include "base/list.h"

#include <stdint.h>
#include <sys/socket.h>

#define MU_KV_KINDS(X)                                                                                                 \
    X(READ, "read the document") /* found, bytes, token, foreign; number: the bell's counter */                        \
    /* value, token/has_token -> written; found, token: what is there now; bytes: the same, unless written */          \
    X(WRITE, "write the document")                                                                                     \
    X(RING, "ring the bell")                                                                                           \
    X(PARK, "wait for the bell")    /* number: answered when the counter is above it. A new one ends the old one */    \
    X(TURN_TAKE, "take a turn")     /* -> number: the turn, done: how many are over */                                 \
    X(TURN_WAIT, "wait for a turn") /* number: the turn to be over -> found (false: the time was up), done */          \
    X(TURN_GIVE, "end a turn")      /* number */                                                                       \
    X(SETTLE, "settle a round")     /* number: round, value: digest -> bytes: the first digest of that round */        \
    /* -> found, bytes: "NAME_PID_LOCAL-ID" of the node that hosts the store; foreign: the job meets in its engine */  \
    X(HOST, "find the store's host")                                                                                   \
    /* -> found: the store offers one, and has no document of this job. No other request may follow then */            \
    X(PROBE, "look for an engine")                                                                                     \
    X(GET, "get")                     /* key -> bytes; waits until it is there */                                      \
    X(SET, "set")                     /* key, value */                                                                 \
    X(ADD, "add")                     /* key, number -> number */                                                      \
    X(COMPARE_SET, "compare and set") /* key, token: expected, value: desired -> bytes: what is there now */           \
    X(CHECK, "check")                 /* key -> found */                                                               \
    X(DELETE, "delete")               /* key -> found */

enum mu_kv_kind {
#define X(name, text) MU_KV_##name,
    MU_KV_KINDS(X)
#undef X
};

const char *mu_kv_kind_text(enum mu_kv_kind value);

struct mu_kv_request;
typedef void mu_kv_done(struct mu_kv_request *request);

/* The memory is the caller's and, like what the first part points to, must stay until `done`. */
struct mu_kv_request {
    /* Asked. */
    enum mu_kv_kind kind;
    struct muster_slice key, value, token;
    bool has_token;
    int64_t number;
    uint64_t timeout_ms; /* above 0 */
    uint64_t held_ms;  /* READ: a store that answers otherwise may keep the document back for so long, if it is more */
    const void *owner; /* of several that share a back end; see end_waits. NULL: the one that opened it */
    mu_kv_done *done;
    void *ctx;
    /* Answered. */
    int rc; /* below 0: error says why */
    struct muster_error error;
    bool foreign; /* with rc 0, of READ and WRITE: found, but it is no document (not base64, ...); error says why.
                   * HOST: see above */
    bool gone;    /* with rc < 0: the host refuses connections, or reset ours and does not take a new one */
    bool found, written;
    struct muster_bytes bytes, state_token; /* the receiver's to free */
    int64_t done_count;
    /* Under way: the driver's. */
    struct mu_list link;
    uint64_t started_ms;
};

/* For drivers: a request that was asked now, and has no answer yet. */
void mu_kv_begin(struct mu_kv_request *request, uint64_t now_ms);
/* For drivers: it failed with rc, for the reason in `error`; what it has of an answer is freed. */
void mu_kv_fail(struct mu_kv_request *request, int rc, const struct muster_error *error);
/* For drivers: of its timeout; 0: nothing is left. */
uint64_t mu_kv_left_ms(const struct mu_kv_request *request, uint64_t now_ms);
/* For drivers: WRITE's document as it goes on the wire, base64. */
int mu_kv_encode_document(const struct mu_kv_request *request, struct mu_buf *text, struct muster_error *reterr);
/* For drivers: what is stored under `key` becomes the answer, but for its token: a document, or something foreign. */
int mu_kv_give_document(struct mu_kv_request *request, const char *key, struct mu_slice text,
                        struct muster_error *reterr);
/* A TCPStore's document. PyTorch's clients put a "/" in front of the key. */
#define MU_KV_C10D_DOCUMENTS "torch.rendezvous." /* and the run id */
#define MU_KV_C10D_DOCUMENT_KEY MU_KV_C10D_DOCUMENTS "%s"
#define MU_KV_C10D_NOTES "muster." /* and the run id, and "/": what muster's nodes note beside the document */
#define MU_KV_C10D_NO_DOCUMENT "Y2FuaW1hZGFt" /* PyTorch's marker, so that reads never have to wait */
/* For drivers: "PREFIX7/K" is K of round 7. Returns "7", and leaves K. Empty: it is no such key, and stays as it is. */
struct mu_slice mu_kv_take_round(struct mu_slice *key, const char *prefix);
/* For drivers: it is done. By its `link`, as struct mu_later wants it. */
void mu_kv_tell(struct mu_list *link);

/* For stores whose calls are requests: makes the request, waits for its answer, and gives it as *request. */
typedef int mu_kv_ask(struct muster_store *store, struct mu_kv_request *request, int64_t timeout_ms,
                      struct muster_error *reterr);
int mu_kv_run(struct muster_store *store, mu_kv_ask *ask, struct mu_call *call, int64_t timeout_ms,
              struct muster_error *reterr);

struct mu_kv;
struct mu_will;
typedef void mu_kv_closed(struct mu_kv *kv, void *ctx);

struct mu_kv_lone {
    struct sockaddr_storage address;
    socklen_t address_len;
    bool server_closes;  /* as in struct mu_will_text (proc/will.h) */
    struct mu_buf bytes; /* the receiver's to free */
};

struct mu_kv_ops {
    const char *name; /* "c10d" */
    bool has_bell, has_turns, has_settle;
    bool is_common; /* COMPARE_SET reaches keys that all jobs at this endpoint share */
    void (*submit)(struct mu_kv *kv, struct mu_kv_request *request);
    /* Pending requests are done with MUSTER_ECANCELED first, from the loop; then `closed`, then the memory goes.
     * Nobody waits for the end: NULL. */
    void (*close)(struct mu_kv *kv, mu_kv_closed *closed, void *ctx);
    void (*free)(struct mu_kv *kv); /* the memory alone; for mu_kv_part_closed() */
    /* Requests of this owner that wait for something are done with MUSTER_ECANCELED, from the loop. No owner's waits
     * hold up another owner's requests. NULL: it has one owner. */
    void (*end_waits)(struct mu_kv *kv, const void *owner);
    /* Our address as the store's host sees us, numeric; false: not known. May be NULL. */
    bool (*local_address)(const struct mu_kv *kv, char *text, size_t room);
    /* The address and the bytes by which another process can set a key. False: there is no connection at the moment.
     * NULL where that takes more than a few bytes: etcd wants HTTP, perhaps TLS and a password. */
    bool (*lone_set)(const struct mu_kv *kv, struct mu_slice key, struct mu_slice value, struct mu_kv_lone *ret_lone);
};

struct mu_kv { /* first member of every driver's own */
    const struct mu_kv_ops *ops;
    bool closing;
    size_t parts;            /* handles, clients and the like that are still to be closed */
    mu_kv_closed *on_closed; /* may be NULL */
    void *closed_ctx;
};

/* Makes it this will (proc/will.h), and frees its bytes. */
void mu_kv_leave(struct mu_kv_lone *lone, struct mu_will *will);

/* For drivers: `close` was called. */
void mu_kv_begin_close(struct mu_kv *kv, mu_kv_closed *closed, void *ctx);
/* For drivers: one of kv's parts is closed. The last one tells it, and frees kv. */
void mu_kv_part_closed(void *kv);
void mu_kv_inner_closed(struct mu_kv *inner, void *kv); /* the same, where the part is another struct mu_kv */

#endif
