/* A node's part in a rendezvous, for the code that drives it. Three machines play it: rdzv.h (one shared document),
 * classic.h (etcd's v2 keys) and fold.h (etcd v3). They are asked the same and tell the same, in the words below; their
 * requests to the back end are their own. Each machine's list of events begins with the shared ones, so a shared number
 * means the same in all of them. Its effects are requests, then TELL, then what is only for the record. */
#ifndef MU_RDZV_PART_H
#define MU_RDZV_PART_H

#include "base/texts.h"
#include "rdzv/doc.h"

#define MU_PART_EVENTS(X)                                                                                              \
    X(JOIN, "join")   /* asked: take part in the next round */                                                         \
    X(LEAVE, "leave") /* asked: out of the round */                                                                    \
    X(CLOSE, "close") /* asked: nobody joins any more */                                                               \
    X(LOOK, "look")   /* asked: LOOKED, with what is there now */                                                      \
    X(TIME, "time")   /* the deadline has come. As what was `asked`: the machine did it by itself */

enum mu_part_event_type {
#define X(name, text) MU_PART_ON_##name,
    MU_PART_EVENTS(X)
#undef X
        MU_PART_ON_REPORT, /* asked: say what has become of our workers. Of a led machine alone: mu_part_led_ops */
};

#define MU_PART_TELLS(X)                                                                                               \
    X(JOINED, "joined")             /* in a round: world() */                                                          \
    X(WAITING, "waiting")           /* `count` nodes could be let in; once a round, after the hold-down */             \
    X(LOST, "lost")                 /* members of our round, all of them; again when there are more */                 \
    X(REMOVED, "removed")           /* the others go on without us; once a round. We are no member any more */         \
    X(CLOSED, "closed")             /* seen closed (asked: TIME), or CLOSE done; once */                               \
    X(LEFT, "left")                 /* LEAVE done */                                                                   \
    X(FAILED, "failed")             /* `asked` (JOIN, LEAVE, CLOSE; TIME: the membership): error */                    \
    X(LOOKED, "looked")             /* round, count: waiting, closed; or error */                                      \
    X(BACKEND_DOWN, "backend_down") /* the first failed request of a row: error. It is tried again */                  \
    X(BACKEND_UP, "backend_up")                                                                                        \
    X(PROGRESS, "progress") /* while joining: progress() has changed */                                                \
    X(REPORTED, "reported") /* REPORT is acknowledged; or error: it cannot be. round: that it was of */                \
    X(FOREIGN, "foreign")   /* a key of ours holds what none of us wrote: error is a sentence for the log */

enum mu_part_tell {
#define X(name, text) MU_PART_TELL_##name,
    MU_PART_TELLS(X)
#undef X
        MU_PART_TELLS_COUNT,
};

static inline MU_DEFINE_TEXTS(mu_part_tell_text, enum mu_part_tell, MU_PART_TELLS)

/* What is told; borrows from the machine until its next step. */
struct mu_part_news {
    enum mu_part_tell tell;
    enum mu_part_event_type asked;    /* FAILED, CLOSED */
    int64_t round, count;             /* -1: of no round */
    bool closed;                      /* LOOKED */
    const char *who;                  /* WAITING: the first of them; NULL: not known */
    const struct muster_error *error; /* FAILED, BACKEND_DOWN, FOREIGN; of a LOOKED or REPORTED that was not possible */
    uint64_t away_ms, give_up_in_ms;  /* BACKEND_DOWN: how long already; for how long yet, UINT64_MAX: not known */
    bool host_lost;                   /* BACKEND_DOWN: the store's host, a member, is lost with it; LOST follows */
    const size_t *ranks;              /* LOST, where the machine counts and does not name them */
    size_t ranks_count;
    /* LOST of a led machine: why the round is over, one sentence, the same on every node. REMOVED: why this node has
     * removed itself; NULL: the others have. */
    const char *cause;
};

/* ---- A machine with a leader ---- */

/* One node of the round leads: it assigns ranks, counts restarts, finds out why a round ended, and ends the job
 * (fold.h). The other machines have none of this; there the agents do it by keys of their own (agent/ranks.h,
 * agent/completion.h). */

struct mu_part_self { /* of this node; what the leader has to know */
    const char *role;
    int64_t local_world_size, max_restarts;
};

enum mu_part_end {
    MU_PART_END_FAILED, /* a worker has failed: rank, text */
    MU_PART_END_DONE,   /* all have succeeded, and nothing of them is left. We stay a member */
    MU_PART_END_AGAIN,  /* it stops its workers because nodes want to join, and joins the next round: text, why */
    MU_PART_END_LEFT,   /* it leaves the job for good, whatever its workers do: text, why */
    MU_PART_END_LOST,   /* the same, and it goes without its own doing: text, how: "its launcher was killed" */
};

struct mu_part_report { /* of our part in the round that we are in */
    enum mu_part_end end;
    int64_t rank;     /* the worker's, of the world */
    const char *text; /* for people, one line; of a failure, it names the rank and the node */
};

#define MU_PART_REPORT_MAX 400 /* bytes of the text, with its NUL; more is cut */

struct mu_part_seat {
    int64_t count;                       /* restarts of the job: TORCHELASTIC_RESTART_COUNT */
    int64_t restarts_left, max_restarts; /* of the job */
    int64_t base_rank, world_size, base_role_rank, role_world_size; /* worker i is RANK base_rank + i */
    const char *why; /* the last round ended, and what that costs: one sentence; NULL: it was the first */
};

struct mu_part_verdict {
    bool succeeded;
    const char *cause; /* of a failure: one sentence, the same on every node */
};

struct mu_part_world { /* of the round that we are in */
    int64_t round, rank;
    size_t count;
    bool all_ours;                   /* no member is PyTorch */
    const struct mu_part_seat *seat; /* of ours, until the next step; NULL: no leader, agents agree on ranks */
};

struct mu_part_progress { /* of a round that forms */
    int64_t round;        /* -1: not known */
    int64_t joined, waiting, spares;
    int64_t apart;               /* etcd-v3: of the spares, have limits that do not go together with the others' */
    bool spare;                  /* we are one */
    uint64_t last_call_until_ms; /* UINT64_MAX: it has not begun */
    uint64_t deadline_ms;        /* of the join; UINT64_MAX: none (a spare) */
    const struct mu_node *nodes; /* etcd: of those that have joined, the ones known by name; until the next step */
    size_t nodes_count;
};

struct mu_part_now {
    uint64_t now_ms; /* monotonic */
    int64_t wall_us; /* since 1970 */
};

/* Where a step's effects go: first every request, then every tell, for a tell may lead to the next step. */
struct mu_part_sink {
    void (*request)(void *ctx, const void *effect); /* the machine's own struct */
    void (*tell)(void *ctx, const struct mu_part_news *news);
    void (*own)(void *ctx, const void *effect); /* for the record, behind TELL; NULL: nobody wants it */
    void *ctx;
};

struct mu_part_led_ops {
    void (*introduce)(void *part, const struct mu_part_self *self); /* before the first JOIN; copied */
    /* REPORT: a step, as `step` below. Copied. REPORTED follows, also if we are no member any more: an error then. */
    void (*report)(void *part, const struct mu_part_report *report, struct mu_part_now now,
                   const struct mu_part_sink *to);
    /* How the job has ended, until the next step; NULL: it is not closed, or nobody knows. Asked when CLOSED is told,
     * or that a JOIN has failed. */
    const struct mu_part_verdict *(*verdict)(const void *part);
};

struct mu_part_ops {
    const char *name;
    /* `own`: the machine's own event, whose time is filled in here; NULL: `type`, which all machines know. */
    void (*step)(void *part, enum mu_part_event_type type, const void *own, struct mu_part_now now,
                 const struct mu_part_sink *to);
    uint64_t (*deadline_ms)(const void *part);                        /* when TIME is wanted; UINT64_MAX: never */
    bool (*world)(const void *part, struct mu_part_world *ret_world); /* false: we are in none */
    struct mu_part_progress (*progress)(const void *part);
    const char *(*phase)(const void *part); /* what it does now, for people: a constant */
    const struct mu_part_led_ops *led;      /* NULL: the machine has no leader */
};

extern const struct mu_part_ops mu_rdzv_part, mu_classic_part, mu_fold_part;

#endif
