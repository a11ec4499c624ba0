/* Keys, leases and watches of the jobs at one server: what a rendezvous of muster nodes needs of etcd, and no more.
 * Pure: the time is an argument, and what watchers are told goes to the driver's `push`. It knows nothing of
 * rendezvous.
 *
 * **Jobs.** A peer (a connection) says HELLO for one job, and sees nothing but that job's keys. A job exists while it
 * has a peer or a lease. Then its keys go, too, with or without a lease: nobody is left who could read them.
 *
 * **What a job shows** is the one exception: its key MU_ENGINE_SHOWN. A range of that prefix brings this key of all
 * other jobs, each with the job's run id behind it, and nothing of the own job.
 *
 * **Keys** have a create and a mod revision, as in etcd. There is one revision for the whole engine. It begins at a
 * random number above 2^40, so no compare holds across two starts of a server. A transaction that changes nothing
 * makes no revision. Nothing old is kept: a watch begins with what is there now.
 *
 * **Watches** tell every change of the keys with a prefix, in order, gathered until mu_engine_flush(). If there is no
 * room for a change, the watch is stale: its peer has to load again.
 *
 * **Leases.** The keys of a lease go with it, all in one revision. A bound lease belongs to a connection:
 *
 *   BOUND --its connection was closed or reset--> RESET: RECONNECT_MS to attach it to another connection
 *     |  \--the server cut its connection,
 *     |     or was paused just before----------> CUT: its whole time, to attach it to another connection
 *     +--nothing was heard of it for its time---> it ends, as SILENT
 *
 * A free lease (FREE) has no connection; it lasts while somebody keeps it.
 *
 * **Outsiders** are those who want the job's document in the store (session.h): PyTorch's nodes. One who comes waits,
 * and the job's nodes see the key MU_ENGINE_OUTSIDERS, until the job has a document or is over. Its nodes put a
 * document there (op DOCUMENT), and give the job up for it (YIELD): from then on it has moved, and takes no
 * transactions. A job with a HELLO of a node that wants the engine `only` takes no outsiders.
 *
 * **Nobody is judged for another's pause.** A lease that is due ends only in mu_engine_turn(), after a poll that began
 * past its time and brought nothing. A lease without a connection (RESET, CUT) ends PROBATION_MS later, for its owner
 * may be about to be accepted. If half of a job's leases, and at least two, are silent at once, the network is
 * suspected, and for SUSPECT_MS no lease of that job ends.
 *
 * Leases live in the engine's own time. While there are some it wants a turn every IDLE_TICK_MS, and every TICK_MS
 * while a lease may end: it has no connection, or nothing was heard of it for half of its time. No turn adds more to
 * that time than its tick and LATE_MS. So a pause of the server, be it short or long, counts for little. During a long
 * one clients give their connections up, all of them, and not all find a place in the queue of newcomers at once: hence
 * the whole time for leases whose connection is found closed after a pause. */
#ifndef MU_STORE_ENGINE_H
#define MU_STORE_ENGINE_H

#include "base/buckets.h"
#include "base/buf.h"
#include "base/hash.h"
#include "base/list.h"

#define MU_ENGINE_KEY_MAX 256
#define MU_ENGINE_VALUE_MAX (1u << 20)
#define MU_ENGINE_RUN_ID_MAX 1024
#define MU_ENGINE_COMPARES_MAX 8
#define MU_ENGINE_OPS_MAX 4096       /* of a transaction, each branch */
#define MU_ENGINE_WATCHES_MAX 8      /* of a peer */
#define MU_ENGINE_PREFIXES_MAX 64    /* that are watched in one job */
#define MU_ENGINE_PEERS_MAX 32768    /* of a job */
#define MU_ENGINE_LEASES_MAX 65536   /* of a job */
#define MU_ENGINE_KEYS_MAX 262144    /* of a job; it also bounds how long one request can take */
#define MU_ENGINE_BOUND_MAX 8        /* leases of a peer */
#define MU_ENGINE_CHANGES_MAX 131072 /* that one watched prefix gathers before they are pushed */
#define MU_ENGINE_LIMIT_MAX 1024     /* of a range with a limit */
#define MU_ENGINE_SECRET_BYTES 16
#define MU_ENGINE_SHOWN "waiting/"      /* the key of a job that the other jobs may read ... */
#define MU_ENGINE_SHOWN_MAX 4096        /* ... if its value has no more bytes */
#define MU_ENGINE_OUTSIDERS "job/stock" /* the engine's own key, no TXN changes it: somebody waits for the document */
#define MU_ENGINE_TTL_MIN_MS 100
#define MU_ENGINE_TTL_MAX_MS (24u * 3600 * 1000)

#define MU_ENGINE_KEEP_MS 1700      /* a client sends something at least so often */
#define MU_ENGINE_RECONNECT_MS 1500 /* to attach a lease whose connection was closed: a lost SYN costs a second */
#define MU_ENGINE_PROBATION_MS 200  /* on top, in which the loop turns: a newcomer takes several turns */
#define MU_ENGINE_TICK_MS 100
#define MU_ENGINE_IDLE_TICK_MS 1000
#define MU_ENGINE_LATE_MS 25
#define MU_ENGINE_SUSPECT_MS 30000
#define MU_ENGINE_PAUSE_MS 400 /* if a turn is so late the server was paused ... */
#define MU_ENGINE_AFTER_PAUSE_MS                                                                                       \
    1000 /* ... and connections that are closed so soon after may have been given up for it */

#define MU_ENGINE_REVISION_MIN ((int64_t)1 << 40)

/* After how long a client with such a lease sends KEEP, if it has nothing else to send. One or two of them may be late
 * or lost. With a long lease it could send fewer, but then it would notice late that its connection is reset. */
static inline uint64_t mu_engine_keep_ms(uint64_t ttl_ms)
{
    return ttl_ms / 3 < MU_ENGINE_KEEP_MS ? ttl_ms / 3 : MU_ENGINE_KEEP_MS;
}

/* What a request is answered with: gRPC's codes, as etcd uses them. */
enum mu_engine_code {
    MU_ENGINE_OK = 0,
    MU_ENGINE_INVALID = 3,          /* a length or number is beyond its limit; one key twice in a transaction */
    MU_ENGINE_NOT_FOUND = 5,        /* no such lease in this job */
    MU_ENGINE_DENIED = 7,           /* a will with another secret */
    MU_ENGINE_EXHAUSTED = 8,        /* of memory, peers, leases, watches */
    MU_ENGINE_PRECONDITION = 9,     /* no HELLO so far, or a second one; there is such a lease already */
    MU_ENGINE_MOVED = 10,           /* the job goes on in a document of the store */
    MU_ENGINE_UNAUTHENTICATED = 16, /* HELLO with a wrong proof of the token */
};

/* Why a key is gone. */
#define MU_ENGINE_ENDS(X)                                                                                              \
    X(DELETED, "deleted") /* by a transaction */                                                                       \
    X(REVOKED, "revoked") /* its lease was ended, by its owner or by a will */                                         \
    X(RESET, "reset")     /* its lease's connection was closed, and nobody came back */                                \
    X(SILENT, "silent")   /* nothing was heard of its lease */

enum mu_engine_end {
#define X(name, text) MU_ENGINE_##name,
    MU_ENGINE_ENDS(X)
#undef X
        MU_ENGINE_ENDS_COUNT,
};

struct mu_engine_item; /* the engine's own */

struct mu_engine_kv {
    struct mu_slice key, value;
    int64_t create, mod; /* revisions */
    uint64_t lease;      /* 0: none */
};

struct mu_engine_change {
    struct mu_engine_kv kv;      /* deleted: the key, and the revision of that in `mod` */
    struct mu_engine_item *item; /* in the engine: whose bytes these are */
    bool deleted;
    enum mu_engine_end end;
    uint64_t ago_ms; /* deleted: how long ago its lease was last heard; 0 also if it had none */
};

struct mu_engine;
struct mu_engine_job;
struct mu_engine_peer;
struct mu_engine_prefix;

struct mu_engine_watch {
    struct mu_list link; /* in prefix->watches */
    struct mu_engine_peer *peer;
    struct mu_engine_prefix *prefix; /* NULL: not in use */
    uint32_t number;                 /* the peer's name for it */
    size_t from;                     /* of the prefix's changes: what came after the load */
};

/* A connection, as the engine sees it. Embedded in whatever the caller knows of a connection. */
struct mu_engine_peer {
    struct mu_list link;       /* in job->peers */
    struct mu_engine_job *job; /* NULL: no HELLO so far */
    struct mu_list leases;     /* that are bound to it */
    struct mu_engine_watch watches[MU_ENGINE_WATCHES_MAX];
};

/* To one watch, in order; borrowed. No changes: some were lost, the watch has ended, load again. Must not call back. */
typedef void mu_engine_push(void *ctx, struct mu_engine_peer *peer, uint32_t watch, int64_t revision,
                            const struct mu_engine_change *changes, size_t count);

/* Puts the job's document into the store; `ended`: the job is over, and does not go on there. False: no room. Must not
 * call back. */
typedef bool mu_engine_document(void *ctx, struct mu_slice run_id, struct mu_slice document, bool ended);

struct mu_engine_config {
    struct mu_budget *budget; /* what the engine holds is charged to it, and is at most half of it ... */
    size_t reserved;          /* ... but not the first so many bytes, which were taken from it for the engine */
    struct mu_hash_seed seed;
    int64_t revision; /* random, at least MU_ENGINE_REVISION_MIN */
    bool shows_none;  /* jobs show nothing to each other */
    mu_engine_push *push;
    mu_engine_document *document; /* NULL: there are none, and DOCUMENT and YIELD are INVALID */
    void *ctx;
};

struct mu_engine *mu_engine_new(const struct mu_engine_config *config); /* NULL: no memory */
void mu_engine_free(struct mu_engine *engine);                          /* every peer must have left */

/* ---- Peers ---- */

void mu_engine_peer_init(struct mu_engine_peer *peer);
/* `only`: its job takes no outsiders from now on. */
enum mu_engine_code mu_engine_hello(struct mu_engine *engine, struct mu_engine_peer *peer, struct mu_slice run_id,
                                    bool only);
/* Something came from it: its leases are alive. To be called before what came is carried out. */
void mu_engine_heard(struct mu_engine *engine, struct mu_engine_peer *peer, uint64_t now_ms);
/* Its connection is gone; `cut`: because the server wanted so. */
void mu_engine_leave(struct mu_engine *engine, struct mu_engine_peer *peer, bool cut, uint64_t now_ms);

/* ---- Outsiders ---- */

enum mu_engine_place {
    MU_ENGINE_PLACE_NONE,     /* the engine does not have this job */
    MU_ENGINE_PLACE_LEFT,     /* it has what is left of it, but nobody is in it: an outsider may go on */
    MU_ENGINE_PLACE_HERE,     /* it has: an outsider waits */
    MU_ENGINE_PLACE_ONLY,     /* it has, and the job takes none */
    MU_ENGINE_PLACE_DOCUMENT, /* it has, and so has the store: an outsider may go on */
    MU_ENGINE_PLACE_MOVED,    /* the same, and the job's nodes are to go there */
};

enum mu_engine_place mu_engine_place_of(const struct mu_engine *engine, struct mu_slice run_id);
/* LEFT, and an outsider goes on: whoever was on the way into the job is to follow it. */
void mu_engine_give_up(struct mu_engine *engine, struct mu_slice run_id);
/* One more waits; HERE. `old`: it speaks the protocol of PyTorch before 2.2. The job's number is returned: there
 * may be another one of that name later. 0: no memory. */
uint64_t mu_engine_wait(struct mu_engine *engine, struct mu_slice run_id, bool old);
bool mu_engine_still_waits(const struct mu_engine *engine, struct mu_slice run_id, uint64_t number);
void mu_engine_wait_over(struct mu_engine *engine, struct mu_slice run_id, uint64_t number, bool old);
/* Goes up whenever those who wait may go on. */
uint64_t mu_engine_openings(const struct mu_engine *engine);

/* ---- Leases ---- */

struct mu_engine_op;

struct mu_engine_grant {
    uint64_t lease; /* chosen by the client at random; not 0 */
    uint64_t ttl_ms;
    bool bound;
    struct mu_slice secret; /* MU_ENGINE_SECRET_BYTES, or none: no will can end it */
};

enum mu_engine_code mu_engine_grant(struct mu_engine *engine, struct mu_engine_peer *peer,
                                    const struct mu_engine_grant *grant, uint64_t now_ms);
struct mu_engine_last { /* what came of a lease's last transaction */
    uint32_t id;        /* 0: there was none */
    bool held;
    int64_t revision; /* after it */
};
/* Binds a lease to this peer. *ret_old: the peer that had it, whose connection is to be cut, for what comes from there
 * counts no more; NULL: none. */
enum mu_engine_code mu_engine_attach(struct mu_engine *engine, struct mu_engine_peer *peer, uint64_t id,
                                     uint64_t now_ms, struct mu_engine_last *ret_last, struct mu_engine_peer **ret_old);
enum mu_engine_code mu_engine_keep(struct mu_engine *engine, struct mu_engine_peer *peer, uint64_t id, uint64_t now_ms);
/* Without a HELLO the secret has to be that of the lease. `mark` is put first, into that lease's job, if it can be;
 * NULL, or without a key: there is none. */
enum mu_engine_code mu_engine_revoke(struct mu_engine *engine, struct mu_engine_peer *peer, uint64_t id,
                                     struct mu_slice secret, const struct mu_engine_op *mark);

/* ---- Time ---- */

/* When mu_engine_turn() is wanted, after a poll that began then or later; UINT64_MAX: never. */
uint64_t mu_engine_deadline_ms(const struct mu_engine *engine);
/* After each poll. `began_ms`: when that poll began. */
void mu_engine_turn(struct mu_engine *engine, uint64_t began_ms);
/* Whether a lease without a connection may be attached again: its owner is probably about to come back. */
bool mu_engine_expects_peers(const struct mu_engine *engine);
bool mu_engine_has_changes(const struct mu_engine *engine); /* that are to be pushed */
/* Pushes what was gathered. */
void mu_engine_flush(struct mu_engine *engine);

/* ---- Keys ---- */

enum mu_engine_compare_kind { MU_ENGINE_IF_ABSENT, MU_ENGINE_IF_CREATE, MU_ENGINE_IF_MOD, MU_ENGINE_COMPARES_COUNT };

struct mu_engine_compare {
    enum mu_engine_compare_kind kind;
    struct mu_slice key;
    int64_t revision;
};

/* DOCUMENT and YIELD: see outsiders above. Only in `then`, and with no key; of several the first counts. DOCUMENT has a
 * value. Without YIELD it is left out if there is no room for it: a job can always end. */
enum mu_engine_op_kind {
    MU_ENGINE_PUT,
    MU_ENGINE_DELETE,
    MU_ENGINE_DELETE_PREFIX,
    MU_ENGINE_DOCUMENT,
    MU_ENGINE_YIELD,
    MU_ENGINE_OPS_COUNT,
};

struct mu_engine_op {
    enum mu_engine_op_kind kind;
    struct mu_slice key, value;
    uint64_t lease; /* PUT; 0: none, also if it had one */
};

struct mu_engine_txn {
    uint32_t id; /* of the request, for attach; above 0 */
    const struct mu_engine_compare *compares;
    const struct mu_engine_op *then, *otherwise; /* if all compares hold, or if not */
    size_t compares_count, then_count, otherwise_count;
};

/* All of it or nothing. */
enum mu_engine_code mu_engine_txn(struct mu_engine *engine, struct mu_engine_peer *peer,
                                  const struct mu_engine_txn *txn, bool *ret_held);
int64_t mu_engine_revision(const struct mu_engine *engine);
const char *mu_engine_full(const struct mu_engine *engine); /* what there was no room for when the last was EXHAUSTED */

/* The keys that begin with `key`, or that key alone, as they are now, in order. `limit` not 0: the first so many. What
 * this costs goes by what it brings, whatever else the job has: a client may ask for one key all the time.
 *
 * With the prefix MU_ENGINE_SHOWN: what the other jobs show, the newest job first, at most MU_ENGINE_LIMIT_MAX, and
 * without leases. Left out are jobs that go on in a document or have ended with one, and those whose run id makes the
 * key too long. This costs as much as there are jobs. */
struct mu_engine_found {
    struct mu_engine_item **items;
    size_t count;
};
enum mu_engine_code mu_engine_range(struct mu_engine *engine, struct mu_engine_peer *peer, struct mu_slice key,
                                    bool prefix, uint32_t limit, struct mu_engine_found *ret_found);
void mu_engine_found_done(struct mu_engine *engine, struct mu_engine_found *found); /* once more does no harm */
struct mu_engine_kv mu_engine_kv(const struct mu_engine_found *found, size_t index);

/* What is there now, and from then on a watch of that number; it replaces one of the same number. */
enum mu_engine_code mu_engine_load(struct mu_engine *engine, struct mu_engine_peer *peer, uint32_t number,
                                   struct mu_slice bytes, struct mu_engine_found *ret_found);
void mu_engine_unwatch(struct mu_engine *engine, struct mu_engine_peer *peer, uint32_t number);

/* Asserts what must hold of all jobs and leases; for tests. */
void mu_engine_check(const struct mu_engine *engine);

const char *mu_engine_end_text(enum mu_engine_end value);

#endif
