/* One node's part in an etcd-v3 rendezvous. Pure: events and the time come in, effects go out.
 *
 * Keys, all below /muster/<run id>/ (fold_doc.h has their values):
 *   nodes/<node>/<lease>    a node's record: what it wants. Written by that node alone, under its own lease
 *   nodes/<node>/done       its workers have succeeded
 *   nodes/<node>/killed     its agent was killed: written by its keeper, which then ends the node's lease (its will)
 *   job/folder              which node leads; under that node's lease
 *   job/doc                 the world of the round, in numbers
 *   job/news                what has become of it: who is gone, who waits
 *   job/closed              nobody joins any more, and how the job ended
 *   seat/<world>/<node>     the rank of that node in that world, and those of its workers
 *   member/<world>/<page>   who is in it, by rank
 *   member/<world>/left/<node>   the last record of a member that has left it
 *   job/master              is the driver's: where workers meet
 *   job/stock               is the store's: somebody waits who cannot meet here
 *   job/moved               the job goes on in a document
 * and, below /muster//, where no job is:
 *   waiting/<run id>        the record of a leader that waits for a round, under its own lease, for people (waiters.h)
 * Keys without a node's lease are under the job's, which the leader keeps alive: when nobody is left, all of them go.
 *
 * **One writer.** Each node writes its own record, so no write can fail because of another's. One node, the leader,
 * watches the records and folds them: into the world of a round when it is complete, and the news about it. The leader
 * is the node that created job/folder; the key goes with its lease, and then the next one takes the place. A node that
 * finds its own mark there, under a lease that it has given up, takes the place itself. Each of the leader's
 * writes is a transaction that holds only if job/folder is still its own; one of the document also only if that is
 * still the revision that it folded from, and the job is not closed. So there is one chain of worlds, even if a leader
 * was paused or cut off; a lease is never trusted to exclude anybody.
 *
 * **What a change costs.** All others watch job/ alone, where every value is small: a change costs a message a node,
 * of a size that does not depend on how many there are. Whoever joins and sees a new document reads its own seat, and
 * is in if there is one. Pages are read by who wants names, and by who begins to lead, and finds there also
 * who has left while nobody led. With many records the leader folds less often.
 *
 * **Batches.** A world is written in as many transactions as it takes: pages and seats first, under its own random
 * identity, where nobody looks for them yet; the document with the last of them, which also takes the seats and pages
 * of the replaced world away. If one of them does not hold, or nobody knows, the world is given up, and another one is
 * made. What is left of it the next leader finds among the pages, and takes away with its own document.
 *
 * **Rounds** are those of the dynamic rendezvous. The next world is made when nobody is in the old one any more and
 * there are max nodes, or min and the last call is over, or min and everybody of the round before is back or gone (and
 * at least one is back). A member is in a world until its record says that it left, or its record is gone: an event of
 * etcd's, no clock. Nodes that could be let in are `waiting` (told after a hold-down); those without a place are
 * spares. Members of the last round come first, in their old order; then everybody by the revision that created its
 * record. Where the store has documents too, those who are in are then sorted by name, as in a document. A newcomer is
 * a spare if its limits contradict those of the nodes before it, or if it wants more nodes than there are: no node can
 * end a round in which it cannot be.
 *
 *   IDLE --join--> JOINING --the document's world has a seat for us--> MEMBER --join--> JOINING ...
 *     ^               |                                                   |  \
 *     +----LEAVING <--+------------------------ leave --------------------+   +--in the news as gone, or another
 *                                                                                document--> removed: IDLE
 *
 * **Identity.** Worlds have random identities; numbers of rounds are for people. A node never enters a world that it
 * has left, and a node that holds another world than the document's was removed. So two sets of members never believe
 * in one world, even if etcd has lost its data and somebody puts something old back.
 *
 * **Doubt.** A write without an answer may still happen. For the job's keys that is harmless: each write names the
 * revision that it replaces, so the keys are read again and what is to be done is decided anew. A record could come
 * back over a newer one: so it is given up with its lease, whose id is in its key, and written again under a new one.
 * A write that was refused, as by an etcd without space, leaves no doubt: it is made again, under the same lease.
 *
 * **etcd was away.** Nothing is judged meanwhile, and etcd gives every lease its full time again. If our lease was
 * lost, or etcd has lost its data, we take a new one, write our record again (same identity, and which rank we have in
 * which world), and for a lease's time no missing record counts as gone. A missing document is put back by the leader,
 * from what it remembers and from the records of those who stay: at once if they are more than half of the world's
 * nodes, else after a lease's time; the highest round, then the one that most of them hold. Whoever joins gets no seat
 * in it, and who was gone stays gone. No first round is made while a record says that there is one. A leader that finds
 * pages missing takes the document away, and puts it back in the same way.
 *
 * **A store that a node hosts** goes with that node. The document says which member it is. Members tell that they have
 * lost it when nobody listens there any more, or when nothing was heard for a lease's time, or when another store
 * answers. Who joins waits for settings.store_lost_ms. What answers there next has nothing of the job. So each node
 * whose store was replaced writes into its record which world it knows last, whether it is in it or not, and who
 * hosted the store. The world is put back from that, without that member, and the next one follows: rounds and
 * restarts are counted on. No first round is made while a record names a world.
 *
 * **PyTorch's nodes** (and whoever else cannot meet here) want the job's document in the store. One who comes waits
 * there, and the leader sees it in job/stock: as a newcomer, if the world has a place for it, else as a spare. When
 * nobody is in the world any more, and there is a place, no next world is made: the leader puts an empty document into
 * the store, and all nodes meet in that (mu_fold_has_moved). A job that ends leaves a closed one there, so that nobody
 * begins it anew. They also meet in a document where a store without an engine takes the place of theirs.
 *
 * **Fence.** A member that is cut off goes on with its workers, beside the node that has taken its place. With a fence
 * it tells REMOVED when its lease was not renewed for that time, joins nothing by itself, and enters no world.
 *
 * **Foreign values.** A value in one of these keys that is not ours is told, and counts as missing: the leader puts
 * the document and records back, the leader's place is taken, a job is not closed by it, and who finds its seat
 * overwritten joins the next round. A document with the name of a world that we know, and another round or count of
 * nodes, is none of ours; a record that says so of that world does not hold it. A write that replaces it names its
 * revision. A document or a leader's mark that another version of muster wrote (it is under a lease) is refused and
 * stays: the node ends, and names both versions. */
#ifndef MU_RDZV_FOLD_H
#define MU_RDZV_FOLD_H

#include "base/rng.h"
#include "rdzv/fold_doc.h"
#include "rdzv/part.h"
#include "rdzv/rules.h"
#include "rdzv/waiters.h"

#define MU_FOLD_RETRY_MS 50 /* after a failed request: so long +-50 %, doubling */
#define MU_FOLD_RETRY_MAX_MS 1000
#define MU_FOLD_CROWN_MS 10          /* the place of the leader is empty: the member of rank r waits r times this */
#define MU_FOLD_CROWN_MAX_MS 400     /* ... at most; before the first round up to this at random; others after it */
#define MU_FOLD_LEAVE_MS 500         /* for what is reported, before we leave */
#define MU_FOLD_NEWS_MS 500          /* between news that bring only numbers */
#define MU_FOLD_NEWS_NODE_MS 5       /* ... and for each node that they go to */
#define MU_FOLD_NEWS_MAX_MS 5000     /* ... at most: a join's time does not run while news tell of a pause */
#define MU_FOLD_LEFT_MAX 16          /* worlds that we have left and remember */
#define MU_FOLD_NODES_MAX (1u << 15) /* records that are looked at */
#define MU_FOLD_FOLDS_A_MS 500       /* records that a leader folds in a millisecond: with more it takes its time */
#define MU_FOLD_OPS_MIN 12
#define MU_FOLD_KEY_MAX 64 /* of a key without the job's prefix */

/* ---- Events ---- */

enum mu_fold_scope { MU_FOLD_JOB, MU_FOLD_NODES }; /* "job/", "nodes/" */

/* How the lease of a deleted key has ended. etcd does not tell. */
enum mu_fold_how { MU_FOLD_HOW_UNKNOWN, MU_FOLD_HOW_REVOKED, MU_FOLD_HOW_RESET, MU_FOLD_HOW_SILENT };

struct mu_fold_kv {
    struct mu_slice key; /* without the job's prefix: "job/doc" */
    bool deleted;        /* of a change only; then there is no more than key, mod, how and ago_ms */
    struct mu_slice value;
    int64_t create, mod, lease;
    enum mu_fold_how how;
    uint64_t ago_ms; /* how is known: since the lease's owner was last heard */
};

#define MU_FOLD_EVENTS(X)                                                                                              \
    MU_PART_EVENTS(X)                                                                                                  \
    X(REPORT, "report")         /* asked: report */                                                                    \
    X(LOADED, "loaded")         /* LOAD's answer: kvs, all keys of that scope; changes follow from there on */         \
    X(CHANGED, "changed")       /* scope, kvs, in order */                                                             \
    X(STALE, "stale")           /* scope: changes were missed; none come before it is loaded again */                  \
    X(TROUBLE, "trouble")       /* etcd cannot be heard: error, gone; or can again: NULL. Again when it is gone */     \
    X(LEASED, "leased")         /* TAKE_LEASE's answer: lease, sent_ms */                                              \
    X(MET, "met")               /* the store that holds the keys: host, another, moved */                              \
    X(RENEWED, "renewed")       /* it was kept alive: id: of TAKE_LEASE, sent_ms. Only if somebody wants it */         \
    X(LEASE_LOST, "lease lost") /* ... or it was lost, now or later: error */                                          \
    X(DROPPED, "dropped")       /* DROP_LEASE's answer, whatever came of it */                                         \
    X(RANGED, "ranged")         /* RANGE's answer: kvs */                                                              \
    X(WROTE, "wrote")           /* WRITE's answer: held: its compares did, and `ops` were made; revision */            \
    X(GRANTED, "granted")       /* GRANT_JOB's answer: lease */                                                        \
    X(KEPT, "kept")             /* KEEP_JOB's answer: held: the lease is there */                                      \
    X(CROWD, "crowd")           /* LOOK_AROUND's answer: kvs; held: our mark is under `lease`. Or error */             \
    X(REQUEST_FAILED,                                                                                                  \
      "request failed") /* LOAD, RANGE, WRITE, GRANT_JOB, KEEP_JOB: error; perhaps it was done, unless `refused` */

enum mu_fold_event_type {
#define X(name, text) MU_FOLD_ON_##name,
    MU_FOLD_EVENTS(X)
#undef X
};

struct mu_fold_event { /* borrows what it points to */
    enum mu_fold_event_type type;
    uint64_t now_ms; /* monotonic */
    uint64_t id;     /* of the effect that is answered; LEASE_LOST: of TAKE_LEASE */
    enum mu_fold_scope scope;
    const struct mu_part_report *report;
    const struct mu_fold_kv *kvs;
    size_t count;
    int64_t lease;
    uint64_t sent_ms; /* LEASED, RENEWED: when that was asked for: the lease lasts from then on. 0: now */
    bool held;
    int64_t revision; /* WROTE: of what was put */
    const struct muster_error *error;
    bool gone;            /* TROUBLE: nobody listens there */
    uint64_t ago_ms;      /* TROUBLE: since it was last heard; 0: not known */
    struct mu_slice host; /* MET: the node whose agent hosts it, as mu_node_text() writes it; empty: no node does */
    bool another;         /* MET: it has nothing of what was there when it was met last */
    bool moved;           /* MET: the job meets in a document of that store */
    bool final;           /* REQUEST_FAILED, LEASE_LOST: trying again does not help (refused, not allowed, ...) */
    bool refused;         /* REQUEST_FAILED, LEASE_LOST: the other side has answered that it does not do it */
    bool lease_gone;      /* REQUEST_FAILED: etcd has answered that it has no such lease; nothing was done */
};

/* ---- Effects ---- */

#define MU_FOLD_EFFECTS(X)                                                                                             \
    X(LOAD, "load")               /* scope: read it, and watch it from there on; replaces an earlier watch of it */    \
    X(UNWATCH, "unwatch")         /* scope: no more changes */                                                         \
    X(RANGE, "range")             /* key: read it; with `prefix` all keys that begin like it */                        \
    X(TAKE_LEASE, "take lease")   /* and keep it alive, until DROP_LEASE or LEASE_LOST */                              \
    X(DROP_LEASE, "drop lease")   /* `lease_take`: end the one of that TAKE_LEASE; id 0: no answer is wanted */        \
    X(GRANT_JOB, "grant job")     /* a lease for the job; not kept alive by itself */                                  \
    X(KEEP_JOB, "keep job")       /* lease */                                                                          \
    X(LOOK_AROUND, "look around") /* see below */                                                                      \
    X(UNMARK, "unmark")           /* take our mark away */                                                             \
    X(WRITE, "write")             /* write */                                                                          \
    X(TELL, "tell")               /* news */                                                                           \
    X(COMPLETED, "completed")     /* for the record: we, as the leader, wrote the world of news.round */               \
    X(LEADER, "leader")           /* for the record: we are the leader now */

/* LOOK_AROUND reads some of nodes/ and waiting/ (not our own), and `key`, if there is one. `value` is our mark: it is
 * put there first, under `lease`, if the document's revision is still `doc_mod`; empty: none. One is under way at a
 * time. */
enum mu_fold_effect_type {
#define X(name, text) MU_FOLD_DO_##name,
    MU_FOLD_EFFECTS(X)
#undef X
};

enum mu_fold_compare_kind { MU_FOLD_ABSENT, MU_FOLD_MOD };

struct mu_fold_compare {
    enum mu_fold_compare_kind kind;
    struct mu_slice key;
    int64_t revision;
};

/* DOCUMENT: `value` is put into the store, as the job's document. YIELD: the job has moved there. */
enum mu_fold_op_kind { MU_FOLD_PUT, MU_FOLD_DELETE_PREFIX, MU_FOLD_DOCUMENT, MU_FOLD_YIELD };

struct mu_fold_op {
    enum mu_fold_op_kind kind;
    struct mu_slice key, value;
    int64_t lease; /* PUT */
};

#define MU_FOLD_COMPARES_MAX 4

struct mu_fold_write {
    struct mu_fold_compare compares[MU_FOLD_COMPARES_MAX];
    unsigned compares_count;
    const struct mu_fold_op *ops, *else_ops; /* if all compares hold, or if not */
    size_t ops_count, else_count;
    bool repeatable; /* doing it twice is as good as once */
};

struct mu_fold_effect { /* borrows from the machine, until the next step */
    enum mu_fold_effect_type type;
    uint64_t id;
    enum mu_fold_scope scope;
    struct mu_slice key;
    bool prefix;
    uint64_t lease_take;
    int64_t lease;
    const struct mu_fold_write *write;
    struct mu_slice value;
    int64_t doc_mod;
    struct mu_part_news news;
};

#define MU_FOLD_EFFECTS_MAX 24

struct mu_fold_effects {
    struct mu_fold_effect items[MU_FOLD_EFFECTS_MAX];
    unsigned count;
};

/* ---- The machine ---- */

struct mu_fold_config { /* copied */
    struct mu_rdzv_settings
        settings;         /* nodes_min to close_ms and lost_node_wait_ms; heartbeats are the lease's business */
    const char *service;  /* what holds the keys, for people: a constant; NULL: "etcd" */
    const char *endpoint; /* where that is, if a node may host it, for people; NULL: no node does. Borrowed */
    const char *name;     /* at most MU_FOLD_NAME_MAX bytes */
    int64_t pid, local_id;
    uint64_t id; /* random, not 0 */
    uint64_t lease_ms, job_lease_ms;
    uint64_t
        first_ms;   /* for etcd to be heard at all; above 0. After that it may be away for as long as a join may last */
    bool tells_how; /* the service tells how leases end; else they end for silence, but for a will */
    uint64_t seed;  /* random */
    size_t ops_max; /* of a write, as the client has it; at least MU_FOLD_OPS_MIN */
    bool wants_names;                       /* mu_fold_names() */
    const struct mu_doc_dialect *documents; /* of documents in that store; NULL: it has none, and no PyTorch nodes */
    uint64_t
        restart_window_s; /* at most MU_FOLD_WINDOW_MAX_S; 0: none. Not with more than MU_FOLD_CHARGES_MAX restarts */
    /* A member whose lease was not renewed for so long is removed by itself; 0: it goes on. RENEWED is wanted then. */
    uint64_t fence_ms;
};

#define MU_FOLD_PHASES(X)                                                                                              \
    X(IDLE, "idle")                                                                                                    \
    X(JOINING, "joining")                                                                                              \
    X(MEMBER, "member")                                                                                                \
    X(LEAVING, "leaving")

enum mu_fold_phase {
#define X(name, text) MU_FOLD_##name,
    MU_FOLD_PHASES(X)
#undef X
};

struct mu_fold; /* opaque */

int mu_fold_new(const struct mu_fold_config *config, struct mu_fold **ret_fold, struct muster_error *reterr);
void mu_fold_free(struct mu_fold *fold);

/* Same state, same event, same effects, always. Cannot fail. `out` is overwritten. */
void mu_fold_step(struct mu_fold *fold, const struct mu_fold_event *event, struct mu_fold_effects *out);
uint64_t mu_fold_deadline_ms(const struct mu_fold *fold); /* when TIME is wanted; UINT64_MAX: never */
/* Until when a request that is made now may last. A node that joins and has never heard of etcd waits no longer than
 * its join does; a member has to notice within a lease's time that etcd is away. UINT64_MAX: there is no limit. */
uint64_t mu_fold_request_until_ms(const struct mu_fold *fold, uint64_t now_ms);

/* Borrowed until the next step. */
enum mu_fold_phase mu_fold_phase(const struct mu_fold *fold);
const struct mu_fold_world *mu_fold_world(const struct mu_fold *fold); /* of ours; NULL: we are in none */
const struct mu_fold_world *mu_fold_doc(const struct mu_fold *fold);   /* of the job; NULL: there is none */
int64_t mu_fold_doc_mod(const struct mu_fold *fold);                   /* its revision; 0: there is none */
int64_t mu_fold_rank(const struct mu_fold *fold);                      /* ours; -1 */
int64_t mu_fold_lease(const struct mu_fold *fold);                     /* of our own; 0: none */
int64_t mu_fold_job_lease(const struct mu_fold *fold);                 /* 0: not known */
bool mu_fold_is_leader(const struct mu_fold *fold);
/* What is to be put when our agent was killed, before our lease is ended; until the next step. False: we have none. */
bool mu_fold_will(const struct mu_fold *fold, struct mu_fold_op *ret_mark);
/* As in struct mu_part_led_ops. */
void mu_fold_introduce(struct mu_fold *fold, const struct mu_part_self *self);
const struct mu_part_seat *mu_fold_seat(const struct mu_fold *fold); /* in our world; NULL: we are in none */
const struct mu_part_verdict *mu_fold_verdict(const struct mu_fold *fold);
/* The members of our world; NULL: we are in none, or nobody wants to know. */
const struct mu_fold_members *mu_fold_names(const struct mu_fold *fold);
/* Whether that rank of our world is lost, as far as the news say. */
bool mu_fold_is_lost(const struct mu_fold *fold, size_t rank);
/* The first `room` of them, or of those that are lost; returns how many. */
size_t mu_fold_name(const struct mu_fold *fold, bool only_lost, struct mu_node *nodes, size_t room);

#define MU_FOLD_MOVED_CAUSE "the other nodes have gone on in a document: a PyTorch node is in the job"
/* The job goes on in a document of the store. Nothing is told or asked for from here on; what was asked and not
 * answered is to be asked there: a join, if the phase is JOINING, and what mu_fold_asked() says. */
bool mu_fold_has_moved(const struct mu_fold *fold);
struct mu_fold_asked {
    bool close, look;
};
struct mu_fold_asked mu_fold_asked(const struct mu_fold *fold);

struct mu_part_progress mu_fold_progress(const struct mu_fold *fold);
const struct mu_waiters *mu_fold_crowd(const struct mu_fold *fold); /* as it was seen last in this wait */
/* What is to be told besides progress and names; NULL: nothing. */
const char *mu_fold_note(const struct mu_fold *fold, char note[static MU_WAITERS_NOTE_MAX]);

const char *mu_fold_event_text(enum mu_fold_event_type value);
const char *mu_fold_phase_text(enum mu_fold_phase value);

#endif
