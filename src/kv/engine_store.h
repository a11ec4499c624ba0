/* The client of an engine in a muster store (store/engine_session.h is the other side): the fold machine's requests and
 * events (kv/engine_client.h) in the engine's frames (store/frames.h). Pure: no clock, no socket, no randomness of its
 * own. engine_store_uv.h drives it on a loop.
 *
 *                                                               has a token: KNOCKING --CHALLENGE-+
 *                                                                               ^                 |
 *                                                                               | "there"         v
 *   DOWN --something is wanted, retry_at--> CONNECTING --connected--> PROBING --"there"--> GREETING --WELCOME-+
 *    ^                                                                                                        |
 *    |                                            READY <--its lease is ours again-- ATTACHING <--has a lease-+
 *    |                                              ^                                                         |
 *    |                                              +-------------------------------------------has no lease--+
 *    +-- from each of them: lost, silent for too long, or wrong bytes
 *
 *   mu_engine_store_end(): ENDING while our lease is being ended, then ENDED
 *
 * **In one segment.** The first time HELLO, GRANT, LOAD and TXN are sent together, as soon as the peer has said that it
 * is an engine. For that LEASED is told when GRANT is sent; should it be refused, LEASE_LOST follows. The grant after
 * that one, or after TROUBLE, is not told before it is answered; nor is one that goes to an engine that may be another
 * one than before, so that MET is told first.
 *
 * **A lost connection.** What was watched is told as STALE at once. A new connection is tried every RETRY_MS or so. It
 * attaches the lease, and the answer names the last transaction that the engine has carried out. That one is answered
 * from there, later ones are sent again, and of earlier ones nobody knows: they have failed. All other requests are
 * sent again, until their time is up. If the lease is gone, as it is where another server answers, LEASE_LOST is
 * told, and transactions without an answer have failed. After TROUBLE_MS without an engine, TROUBLE is told, and once
 * more if it turns out only later that nobody listens there. Each WELCOME is told as MET.
 *
 * **Its place taken.** Where there was an engine before, and a store without one answers, the job meets in a document
 * of that store: it is told as MET, as if an engine had said so. Not with `only` or a token.
 *
 * **Refused for good.** A store without an engine otherwise, or one that refuses our HELLO, fails every request with
 * `final`. So does one that wants a token if we have none. So does one that wants none if we have one: else a store
 * without a token would get what the token is to protect.
 *
 * **Looking around** is up to three requests, one after the other: our mark is put into what the job shows to others
 * (MU_ENGINE_SHOWN), and nodes/ and the marks of other jobs are read. A mark that is refused keeps nobody from reading.
 * With more than MU_WAITERS_RECORDS_MAX nodes those with the lowest keys are read: to find the oldest of many would
 * cost the engine as much as to read them all, for each of them. Marks are put and taken away while no other
 * transaction is under way: else ATTACH would tell of the mark, and not of what was written. */
#ifndef MU_KV_ENGINE_STORE_H
#define MU_KV_ENGINE_STORE_H

#include "base/buf.h"
#include "rdzv/fold.h"
#include "store/engine.h"
#include "store/net.h"
#include "store/token.h"

#define MU_ENGINE_STORE_RETRY_MS 200           /* between two tries to connect, +-50 % */
#define MU_ENGINE_STORE_ATTEMPT_MS 5000        /* for a try, until WELCOME and the lease are there */
#define MU_ENGINE_STORE_TROUBLE_MS 1000        /* without an engine, before it is told */
#define MU_ENGINE_STORE_REVOKE_MS 800          /* for the end of a lease; else it ends by itself */
#define MU_ENGINE_STORE_REQUESTS_MAX 32        /* under way */
#define MU_ENGINE_STORE_WRITES_MAX (16u << 20) /* bytes of transactions without an answer */
#define MU_ENGINE_STORE_LOAD_MAX (64u << 20)   /* bytes of the answer to one LOAD, in memory */
#define MU_ENGINE_STORE_WILL_MAX 1024

#define MU_ENGINE_STORE_STATES(X)                                                                                      \
    X(DOWN, "down")                                                                                                    \
    X(CONNECTING, "connecting")                                                                                        \
    X(PROBING, "probing")     /* is it an engine? */                                                                   \
    X(KNOCKING, "knocking")   /* HELLO without a proof is on its way: what is to be proven? */                         \
    X(GREETING, "greeting")   /* HELLO is on its way */                                                                \
    X(ATTACHING, "attaching") /* WELCOME has come, the answer to ATTACH not yet */                                     \
    X(READY, "ready")                                                                                                  \
    X(ENDING, "ending")                                                                                                \
    X(ENDED, "ended")

enum mu_engine_store_state {
#define X(name, text) MU_ENGINE_STORE_##name,
    MU_ENGINE_STORE_STATES(X)
#undef X
};

struct mu_engine_store; /* opaque */

struct mu_engine_store_config {      /* copied */
    const char *endpoint;            /* "host:port", for errors */
    const char *run_id;              /* at most MU_RDZV_RUN_ID_MAX bytes */
    const char *node;                /* this node's name */
    uint64_t lease_ms, job_lease_ms; /* of TAKE_LEASE and GRANT_JOB; a peer that is silent for lease_ms is gone */
    uint64_t renew_ms;               /* at least so often our lease is kept alive, and RENEWED is told; 0: it is not */
    uint64_t seed;                   /* random: for ids of leases, and delays */
    char will_secret[MU_ENGINE_SECRET_BYTES]; /* random: ends our lease, see mu_engine_store_will() */
    bool only;                                /* the job meets in the engine alone */
    const struct mu_token *token; /* that the store wants; NULL: it wants none. Wiped when the client is freed */
};

struct mu_engine_store *mu_engine_store_new(const struct mu_engine_store_config *config); /* NULL: no memory */
void mu_engine_store_free(struct mu_engine_store *store);

/* ---- In ----
 * Behind each of these the caller does what mu_engine_store_next() says. Times never go back. */

/* One of those that engine_client.h names; `until_ms` as there. */
void mu_engine_store_request(struct mu_engine_store *store, const struct mu_fold_effect *effect, uint64_t until_ms,
                             uint64_t now_ms);
/* The connection that was wanted is there; `peer`: the address at its other end. */
void mu_engine_store_connected(struct mu_engine_store *store, const union mu_addr *peer, uint64_t now_ms);
void mu_engine_store_received(struct mu_engine_store *store, struct mu_slice bytes, uint64_t now_ms);
/* It is gone (NULL: the other end closed it), or could not be made, which the error tells with the peer's name. */
void mu_engine_store_disconnected(struct mu_engine_store *store, const struct muster_error *error, uint64_t now_ms);
/* The same of one that could not be made because nobody listens there. */
void mu_engine_store_refused(struct mu_engine_store *store, const struct muster_error *error, uint64_t now_ms);
void mu_engine_store_time(struct mu_engine_store *store, uint64_t now_ms); /* at mu_engine_store_deadline_ms() */
/* No more requests are made, and no event is told. It ends the lease if the engine can be told; over when ENDED. */
void mu_engine_store_end(struct mu_engine_store *store, uint64_t now_ms);

/* ---- Out ---- */

enum mu_engine_store_output_type {
    MU_ENGINE_STORE_NOTHING, /* for now: the next input, or the time at mu_engine_store_deadline_ms() */
    MU_ENGINE_STORE_EVENT,   /* event: to be told to the owner */
    MU_ENGINE_STORE_CONNECT,
    MU_ENGINE_STORE_DISCONNECT, /* give up the connection, or the try to make one; nothing is heard of it any more */
    MU_ENGINE_STORE_BYTES,      /* bytes: to be sent, all that there are */
    MU_ENGINE_STORE_END,        /* it is over: nothing else follows */
};

struct mu_engine_store_output {
    enum mu_engine_store_output_type type;
    const struct mu_fold_event *event; /* borrowed until the next output is asked for. Its now_ms is not filled in */
    struct mu_buf bytes;               /* the caller takes them over */
};

/* What is to be done now. Behind everything that comes in, the caller does one after the other until there is NOTHING.
 * Each is told once, but NOTHING and END. Events come first: they lead to requests, whose bytes then go into the same
 * segment. */
struct mu_engine_store_output mu_engine_store_next(struct mu_engine_store *store);
uint64_t mu_engine_store_deadline_ms(const struct mu_engine_store *store); /* UINT64_MAX: never */

/* ---- What is known ---- */

enum mu_engine_store_state mu_engine_store_state(const struct mu_engine_store *store);
const char *mu_engine_store_state_text(enum mu_engine_store_state value);
/* This node's address as the engine sees it, as text; "": not known yet. */
const char *mu_engine_store_local_address(const struct mu_engine_store *store);
/* The address to connect to, and the bytes that put the mark and end our lease when they are sent there. False: we have
 * none. */
bool mu_engine_store_will(const struct mu_engine_store *store, const struct mu_fold_op *mark, union mu_addr *ret_addr,
                          char ret_bytes[static MU_ENGINE_STORE_WILL_MAX], size_t *ret_len);

#endif
