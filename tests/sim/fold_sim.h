/* The etcd-v3 rendezvous in a storm: what the parts of the simulator share. One process, one thread, virtual time, one
 * seed.
 *
 *   sim_fold.c    what the seed decides, the nodes and their owners, the storm, the calm, the command line
 *   fold_etcd.c   etcd: revisions, transactions, leases, watches, compaction; how it fails
 *   fold_check.c  what must hold */
#ifndef FOLD_SIM_H
#define FOLD_SIM_H

#include "base/buf.h"
#include "base/rng.h"
#include "rdzv/fold.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    NODES_MAX = 2048,  /* lives: each is an identity of its own */
    TRACE_LINES = 300, /* of the end of a failed run */
    TRACE_TEXT = 200,
    KEYS_MAX = 8192,
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
    X(FAIL, "fail")       /* workers fail: a member joins anew */                                                      \
    X(SPARES, "spares")   /* there are more nodes than the maximum */                                                  \
    X(LIMITS, "limits")   /* nodes have different limits, which may exclude each other */                              \
    X(CLOSE, "close")                                                                                                  \
    X(STRANGER, "stranger") /* somebody writes nonsense to the job's keys; only if wished for */

enum fault {
#define X(name, text) F_##name,
    FAULTS(X)
#undef X
        FAULTS_COUNT,
};

struct key { /* in etcd */
    char name[MU_FOLD_KEY_MAX];
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

struct node {
    unsigned index;
    bool alive;
    uint64_t id;
    struct mu_rdzv_settings settings;
    struct mu_fold *fold;
    struct watch watches[2];
    uint64_t paused_until_us, cut_until_us;
    uint64_t timer_us;
    uint64_t look_id; /* of the LOOK_AROUND that is under way */
    /* The client's lease object. */
    uint64_t take;
    int64_t lease;
    uint64_t lease_sure_us; /* until when it can be there, by the node's own reckoning */
    /* The owner. */
    int owner;
    uint64_t owner_us; /* when it last changed */
    uint64_t world;    /* that its workers run in; 0: none */
    size_t world_count;
    uint64_t told_us; /* LOST, or that it is not in it */
    uint64_t tells;   /* LOST, WAITING, REMOVED, FAILED */
    uint64_t gone_us;
    int64_t gone_rev; /* when its last record went */
    unsigned gone_incarnation;
};

struct world {
    uint64_t id;
    int64_t round;
    struct mu_buf bytes;
    unsigned incarnation;
    uint64_t born_us;
};

struct sim {
    uint64_t seed, now_us;
    struct mu_rng rng;
    bool on[FAULTS_COUNT];
    bool tracing, calm;
    uint64_t lease_ms, job_lease_ms;
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
    bool scribbles; /* what is put is the stranger's */
    /* nodes */
    struct node nodes[NODES_MAX];
    unsigned nodes_count, slots;
    bool close_asked, closed_ever;
    struct world worlds[WORLDS_MAX];
    size_t worlds_count;
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

/* fold_etcd.c */
void etcd_reset(void);
void etcd_free(void);
void etcd_effect(struct node *node, const struct mu_fold_effect *effect);
void etcd_down(bool wipe);
void etcd_up(void);
void etcd_hear(struct node *node, bool heard); /* its watches are cut off, or back */
void etcd_tick(void);                          /* leases that are over */
void etcd_compact(void);
void etcd_renew(void); /* all streams are opened anew, and what they would go on with was compacted */
void etcd_revoke(int64_t lease);
void etcd_node_gone(struct node *node); /* the process is gone: its watches and requests, too */
const struct key *etcd_get(const char *name);
void etcd_scribble(const char *name, const char *value); /* a stranger does, under no lease */

/* fold_check.c */
void check_joined(struct node *node);
void check_lost(struct node *node);
void check_put(const struct key *before, const struct key *now); /* of job/doc, when etcd carries it out */
void check_closed(void);
bool check_has_record(const struct node *node); /* that nobody has overwritten */
void check_key_gone(const struct key *key);
void check_reset(void);

#endif
