/* The rendezvous of the fold machine in a storm: what the parts of the simulator share. One process, one thread,
 * virtual time, one seed.
 *
 *   sim_fold.c      what the seed decides, the nodes, the storm, the calm, the command line
 *   fold_owner.c    muster-sim-fold: what a node is asked for, as the seed says
 *   fold_agent.c    muster-sim-fold-job: by the program's own agent, with workers (fold_job.h)
 *   fold_etcd.c     etcd: revisions, transactions, leases, watches, compaction; how it fails
 *   fold_store.c    a muster store's engine and its clients, the real ones; connections, and how they fail
 *   fold_outside.c  those who meet in a document of that store
 *   fold_check.c    what must hold */
#ifndef FOLD_SIM_H
#define FOLD_SIM_H

#include "base/buf.h"
#include "base/rng.h"
#include "rdzv/fold.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    NODES_MAX = 4096,  /* lives: each is an identity of its own */
    TRACE_LINES = 300, /* of the end of a failed run */
    TRACE_TEXT = 200,
    KEYS_MAX = 16384,
    WORLDS_MAX = 4096,
    ODD_MAX = 2,          /* nodes at a time whose limits contradict the others' */
    AT_ONCE_MAX = 200000, /* events at one instant: more is a loop that never waits */
};

#define MS UINT64_C(1000) /* virtual time is in microseconds */
#define SECOND UINT64_C(1000000)

#define FAULTS(X)                                                                                                      \
    X(KILL, "kill")       /* a node vanishes */                                                                        \
    X(REBIRTH, "rebirth") /* and comes back as a new identity */                                                       \
    X(PAUSE, "pause")     /* nothing reaches a node, then everything */                                                \
    X(CUT, "cut")         /* one node's way to etcd is cut for a while */                                              \
    X(LOST, "lost")       /* the answer to a request that was carried out is lost */                                   \
    X(REFUSED, "refused") /* a request fails without being carried out */                                              \
    X(LATER, "later")     /* what was reported as failed is carried out later all the same */                          \
    X(SLOW, "slow")       /* etcd takes its time */                                                                    \
    X(OUTAGE, "outage")   /* etcd is away and comes back with its data */                                              \
    X(WIPE, "wipe")       /* or without them */                                                                        \
    X(COMPACT, "compact") /* history that watches have not read yet is dropped; in the calm under all of them */       \
    X(EXPIRE, "expire")   /* a lease is revoked by somebody */                                                         \
    X(LATE, "late")       /* some come late */                                                                         \
    X(LEAVE, "leave")     /* some leave, and may come again */                                                         \
    X(FAIL, "fail")       /* workers fail: a member says so, and joins anew */                                         \
    X(DONE, "done")       /* workers succeed: a member says so, and waits for the others */                            \
    X(SPARES, "spares")   /* there are more nodes than the maximum */                                                  \
    X(LIMITS, "limits")   /* nodes have different limits, which may exclude each other */                              \
    X(CLOSE, "close")                                                                                                  \
    X(STRANGER, "stranger") /* somebody writes nonsense to the job's keys; only if wished for */                       \
    /* Of the place "store" only. There an outage cuts off all nodes at once. */                                       \
    X(RESET, "reset")            /* a connection breaks, at any byte */                                                \
    X(LATEATTACH, "attach_late") /* ... and no other is made before the lease is over */                               \
    X(STAND, "server_pause")     /* the server stands still; then everything that waited arrives at once */            \
    X(EPOCH, "epoch")            /* the server dies, and another one answers there */                                  \
    X(TWO, "two_servers")        /* ... while some still reach the old one */                                          \
    X(STOCK, "stock")            /* PyTorch nodes come and wait for the document; some go; all may meet in it then */  \
    X(HOSTED, "hosted")          /* a node hosts the store, which goes with it; another node hosts an empty one then */

enum fault {
#define X(name, text) F_##name,
    FAULTS(X)
#undef X
        FAULTS_COUNT,
};

struct key { /* in etcd */
    char name[MU_FOLD_KEY_MAX];
    uint32_t hash;
    struct mu_buf value;
    int64_t create, mod, lease;
};

struct change {
    int64_t revision;
    struct key key; /* deleted: no value */
    bool deleted;
};

struct watch {
    bool on, heard;
    uint64_t load_id;        /* the newest load: an older one says nothing any more */
    int64_t seen, delivered; /* revisions that are on their way to the node, and have reached it */
    uint64_t generation, last_us;
};

enum { OWNER_IDLE, OWNER_JOINING, OWNER_RUNNING, OWNER_STOPPING, OWNER_LEAVING, OWNER_ENDED };

struct client; /* fold_store.c */
struct server; /* the same */
struct agent;  /* fold_agent.c */
struct mu_engine;

struct node {
    unsigned index;
    unsigned number; /* its name */
    bool alive;
    uint64_t id;
    struct mu_rdzv_settings settings;
    struct mu_fold *fold;
    struct watch watches[2];
    uint64_t paused_until_us, cut_until_us;
    uint64_t timer_us;
    uint64_t look_id; /* of the LOOK_AROUND that is under way */
    struct client *client;
    uint64_t bytes; /* that were sent to it */
    /* The client's lease object. */
    uint64_t take;
    int64_t lease;
    uint64_t renewed_us;    /* when the last renewal that it knows of was sent */
    uint64_t lease_sure_us; /* until when it can be there, by the node's own reckoning */
    /* The owner. */
    struct agent *agent;
    int owner;
    uint64_t owner_us; /* when it last changed */
    uint64_t world;    /* that its workers run in; 0: none */
    size_t world_count;
    uint64_t silent_world; /* in which it was told LOST, because somebody's lease ran out */
    uint64_t told_us;      /* LOST, or that it is not in it */
    uint64_t tells;        /* LOST, WAITING, REMOVED, FAILED */
    uint64_t gone_us;
    int64_t gone_rev; /* when its last record went */
    unsigned gone_incarnation;
    uint64_t gone_from; /* the world that it had left by then, as that record said; 0: none */
    uint64_t out_of;    /* the newest world in the document that a record of it, then its newest, was not in */
    /* Its workers. */
    int64_t size;
    char role[8];
    struct mu_part_report report;
    char report_text[64];             /* its text: a node that stands still hears it later */
    uint64_t failed_world, failed_us; /* where one of them failed, and when it was acknowledged; 0: not yet */
    uint64_t done_world;              /* where they were done */
    bool was_marked;                  /* ... and a key has said so */
    uint64_t left_world;              /* where it said that it leaves */
    bool done;                        /* that they are was acknowledged */
    uint64_t killed_world, killed_us; /* where it was when it vanished */
};

struct world {
    uint64_t id;
    int64_t round;
    size_t count;
    uint64_t *members; /* by rank */
    int64_t restarts;
    unsigned incarnation;
    bool forgotten; /* its document was lost: who was in it is known only of those who say so */
    uint64_t born_us;
    unsigned port;                /* where its workers meet; 0: nobody was told */
    bool has_failed;              /* a worker of it, as its node reports */
    int64_t failed_rev, goes_rev; /* the first that said so of a member: its worker failed, it ends the round itself */
};

struct place { /* where the nodes meet */
    const char *name;
    void (*reset)(void);
    void (*free)(void);
    void (*node_new)(struct node *node, const char *name);
    void (*node_leaves)(struct node *node); /* it ends its lease before it goes */
    void (*node_gone)(struct node *node);   /* the process is gone: its watches and requests, too */
    /* Its keeper sends its will. False: it does not get through, or there is none. NULL: node_gone() does that. */
    bool (*will)(const struct node *node);
    void (*effect)(struct node *node, const struct mu_fold_effect *effect);
    void (*down)(bool wipe);
    void (*up)(void);
    void (*hear)(struct node *node, bool heard); /* its watches are cut off, or back */
    void (*tick)(void);                          /* leases that are over */
    void (*compact)(void);
    void (*renew)(void); /* all streams are opened anew, and what they would go on with was compacted */
    void (*expire)(void);
    void (*scribble)(const char *name, const char *value); /* a stranger does, under no lease */
};

extern const struct place place_etcd, place_store;

struct sim {
    uint64_t seed, now_us;
    struct mu_rng rng, more; /* the other one decides what came later: so an old seed does what it always did */
    struct mu_rng stock;
    const struct place *place;
    bool on[FAULTS_COUNT];
    bool moved;         /* the job has, to a document, and the rest is not simulated */
    bool on_after_move; /* it is: stores are lost, and their documents with them */
    bool tracing, calm, crowd;
    bool over;        /* nothing happens any more */
    uint64_t calm_us; /* since when; 0: it is not */
    uint64_t lease_ms, job_lease_ms;
    size_t ops_max;                   /* of a write */
    uint64_t fence_percent, fence_ms; /* of the lease; 0: none */
    uint64_t window_s;                /* in which restarts count; 0: all do */
    bool wills;                       /* a killed node's keeper says so, and ends its lease */
    bool keeps_names;                 /* an agent that is started again has the name of the one that was killed */
    bool names;                       /* nodes want to know who is in their world */
    int64_t max_restarts;
    /* etcd */
    bool up;
    unsigned incarnation; /* counts losses of its data */
    bool counts_on;       /* a new etcd has the revisions of other jobs: no watch that goes on there is stale */
    int64_t revision, compacted;
    struct key *keys;
    size_t keys_count;
    struct change *changes;
    size_t changes_count, changes_room;
    struct lease {
        int64_t id;
        uint64_t ttl_us, until_us;
    } leases[KEYS_MAX];
    size_t leases_count;
    uint64_t proposals, wrong_lease_writes;
    bool scribbles;    /* what is put is the stranger's */
    struct node *host; /* of the store; NULL: nobody is */
    bool hosted;       /* ... now: it is dead */
    /* nodes */
    struct node nodes[NODES_MAX];
    unsigned nodes_count, slots;
    uint16_t by_id[2 * NODES_MAX]; /* index + 1, by id modulo its size, or behind it */
    bool close_asked, closed_ever;
    bool verdicts[2]; /* that it failed, or succeeded: was written with reason */
    struct world worlds[WORLDS_MAX];
    size_t worlds_count;
    uint64_t led_us; /* since when the leader is */
    uint64_t joins, lives;
};

extern struct sim *s;

/* sim_fold.c */
void sim_trace(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void sim_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define SIM_EXPECT(ok, ...)                                                                                            \
    do {                                                                                                               \
        if (!(ok))                                                                                                     \
            sim_fail(__VA_ARGS__);                                                                                     \
    } while (0)
uint64_t below(uint64_t bound);
bool chance(unsigned percent);
typedef void sim_fn(void *arg);
void sim_at(uint64_t when_us, sim_fn *fn, void *arg);
/* To a node, when it is not paused; events of one node keep their order of time. */
void feed(struct node *node, struct mu_fold_event event);
struct node *node_by_id(uint64_t id);
bool is_cut(const struct node *node);
void sim_run(uint64_t for_us);
void node_exits(struct node *node);                                       /* by itself */
void node_report(struct node *node, const struct mu_part_report *report); /* asks the machine for it, and notes it */

/* fold_owner.c, or fold_agent.c: whose node it is */
extern const char owner_program[];
extern const uint64_t owner_leave_us;              /* that workers may take before the others hear of it */
void owner_begin(void);                            /* a seed, once it has decided all else */
void owner_new(struct node *node, uint64_t in_us); /* it begins to join then */
void owner_gone(struct node *node);                /* its process is */
bool owner_takes(struct node *node, const struct mu_fold_event *event); /* an answer that is not for the machine */
void owner_hear(struct node *node, const struct mu_part_news *news);
void owner_heard(struct node *node); /* what a step of the machine has brought */
void owner_fails(struct node *node, bool says_so);
void owner_is_done(struct node *node);
void owner_leaves(struct node *node, uint64_t in_us);
void owner_asks(struct node *node, enum mu_fold_event_type what); /* CLOSE, LOOK */
void owner_finish(void);                                          /* in the calm: the job comes to its end */

/* fold_etcd.c: the keys that are checked, at any place */
const struct key *etcd_get(const char *name);
struct key *etcd_find(struct mu_slice name);
uint32_t etcd_hash(struct mu_slice name);
void etcd_copy_key(struct key *to, const struct key *from);
void etcd_each(const char *prefix, void (*fn)(const struct key *key, void *ctx), void *ctx);

/* fold_store.c */
void store_break(struct node *node, uint64_t refused_us); /* its connection, and for so long there is no other */
void store_split(uint64_t split_us);                      /* a new server, while some still reach the old one */
void store_hosted_by(const char *text);                   /* the one that is there, or is about to be */
bool store_answers(const struct server *server);
struct server *store_at_endpoint(void);                /* NULL: none answers */
struct server *store_of(const struct node *node);      /* that it reaches; NULL: none */
struct mu_engine *store_engine(struct server *server); /* for outsiders, who say when they have ... */
void store_changed(struct server *server);             /* ... changed something in it */
bool store_has_moved(void);                            /* the job has, to a document of the store that is there now */

/* fold_outside.c */
void outside_reset(void);
void outside_stock_comes(bool old);                                      /* a PyTorch node */
void outside_stock_goes(void);                                           /* one that waits */
bool outside_has_stock(void);                                            /* that waits */
void outside_node_comes(const struct node *node, struct server *server); /* it has moved, as that one said */
void outside_node_dies(const struct node *node);                         /* that had moved */
void outside_one_dies(void);                                             /* or none */
void outside_look(struct server *server);                                /* whether they still have to wait */
void outside_server_ends(struct server *server);
size_t outside_waiting(void); /* so many are not in a document */

/* fold_check.c */
void check_joined(struct node *node);
void check_reports_failure(uint64_t world);
void check_starting(const struct node *node, const struct mu_part_seat *ranks); /* its workers */
void check_meeting(const struct node *node, unsigned port);
void check_lost(struct node *node);
void check_put(const struct key *before, const struct key *now); /* of job/doc, when etcd carries it out */
void check_closed(void);
void check_fence(void);
size_t check_done_and_gone(uint64_t world);     /* so many of its members */
bool check_has_record(const struct node *node); /* that nobody has overwritten */
bool check_has_done_mark(const struct node *node);
void check_key_gone(const struct key *key);
void check_reset(void);

#endif
