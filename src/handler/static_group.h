/* One node's part in a static group, decided. Pure: state and event in, effects out. static_uv.c drives it.
 *
 *   IDLE --join--> SERVING (rank 0) --> CONNECTING --> ASKING --rank 0 is muster--> ANNOUNCING --> CLAIMING --+
 *                    |                                   |                                                    |
 *                    | its port is taken                 +--rank 0 is PyTorch--> COUNTING <-------------------+
 *                    v                                                            |    |
 *                 DISPUTED                       OPEN <--rank 0 is PyTorch--------+    | rank 0 is muster
 *                 asks who has it                |  ^                                  v
 *                                                |  +-------all are in----------- GATHERING
 *                                                +--a node was killed; rank 0 serves on--> BROKEN
 *
 * A failure, a join taken back, and a join in BROKEN lead to CLOSING, and when all is closed to IDLE. There a join
 * begins that was asked for meanwhile. FREE leads to ENDING and FREED from any state: in OPEN by way of LEAVING, where
 * a node says goodbye to a muster rank 0, and in BROKEN by way of LINGERING, where rank 0 lets the others hear of the
 * loss.
 *
 * A muster rank 0 knows which node has which rank (roster.h). A node announces itself and takes its rank by
 * compare-and-set before it is counted: a second node of the same rank is refused and told the name of the first. Rank
 * 0 tells the others which nodes are in while they wait. A connection that ends without a goodbye belongs to a killed
 * node. Before all are in, it is no longer counted and another node may take its rank. Afterwards all are told and
 * their membership has failed, because a static group cannot go on without one of its ranks.
 *
 * What the owner is to be told is written down in `due` and told one at a time, at a TURN: the owner may ask for the
 * next thing, or free the handler, while it is told. */
#ifndef MU_HANDLER_STATIC_GROUP_H
#define MU_HANDLER_STATIC_GROUP_H

#include "base/rng.h"
#include "handler/roster.h"
#include "handler/static_params.h"
#include "store/calls.h"

#define MU_STATIC_STATES(X)                                                                                            \
    X(IDLE)       /* nothing is open */                                                                                \
    X(SERVING)    /* rank 0 starts its store */                                                                        \
    X(DISPUTED)   /* rank 0's port is taken: it asks there whether another node has its rank */                        \
    X(CONNECTING) /* to the store of rank 0 */                                                                         \
    X(ASKING)     /* whether rank 0 is muster */                                                                       \
    X(ANNOUNCING) /* tells rank 0 who this node is */                                                                  \
    X(CLAIMING)   /* takes its rank */                                                                                 \
    X(COUNTING)   /* adds itself to PyTorch's count */                                                                 \
    X(GATHERING)  /* waits until all are in */                                                                         \
    X(OPEN)       /* all are in */                                                                                     \
    X(BROKEN)     /* rank 0: one was killed */                                                                         \
    X(CLOSING)    /* client and server are being closed */                                                             \
    X(LEAVING)    /* freed: says goodbye */                                                                            \
    X(LINGERING)  /* freed: waits until the others have gone */                                                        \
    X(ENDING)     /* freed: everything is being closed */                                                              \
    X(FREED)

enum mu_static_state {
#define X(name) MU_STATIC_##name,
    MU_STATIC_STATES(X)
#undef X
};

#define MU_STATIC_EVENTS(X)                                                                                            \
    X(JOIN) /* these five by the owner; after FREE it asks for nothing more */                                         \
    X(LEAVE)                                                                                                           \
    X(CLOSE)                                                                                                           \
    X(LOOK)                                                                                                            \
    X(FREE)                                                                                                            \
    X(TURN)      /* from the loop, as long as mu_static_wants_turn() */                                                \
    X(TIME)      /* mu_static_deadline_ms() has come */                                                                \
    X(SERVED)    /* rank 0's store has started, or `error` */                                                          \
    X(WRITTEN)   /* a progress is in rank 0's store, or `error` */                                                     \
    X(ANNOUNCED) /* rank 0: `connection` has announced `bytes` */                                                      \
    X(COUNTED)   /* rank 0: `bytes` nodes were counted, the last by `connection` */                                    \
    X(GONE)      /* rank 0: `connection` has ended */                                                                  \
    X(CONNECTED) /* the client is connected, or `error` */                                                             \
    X(LOST)      /* the client's connection is lost: `error` */                                                        \
    X(ANSWERED)  /* the call: `bytes` or `number`, or `error` */                                                       \
    X(SAID)      /* the goodbye was answered, or was not */                                                            \
    X(CLOSED)    /* everything that CLOSE closes is closed */

enum mu_static_event_type {
#define X(name) MU_STATIC_ON_##name,
    MU_STATIC_EVENTS(X)
#undef X
};

struct mu_static_event {
    enum mu_static_event_type type;
    uint64_t now_ms;
    uint64_t connection;
    int64_t number;
    struct mu_slice bytes;
    const struct muster_error *error; /* NULL: none */
};

#define MU_STATIC_EFFECTS(X)                                                                                           \
    X(SERVE)        /* start the store of rank 0; then SERVED */                                                       \
    X(CONNECT)      /* within timeout_ms; then CONNECTED */                                                            \
    X(CALL)         /* rank 0's store: `kind` of call, `key`, within timeout_ms; then ANSWERED */                      \
    X(PROGRESS)     /* rank 0: write `progress` as number `number`; then WRITTEN */                                    \
    X(WRITE)        /* rank 0: `text` for the value `expected` of `key`; nobody asks whether there was memory */       \
    X(GOODBYE)      /* the same as CALL, of which one is under way, and ends; then SAID */                             \
    X(CLOSE_CLIENT) /* while the server stays */                                                                       \
    X(CLOSE)        /* close client and server; then CLOSED */                                                         \
    X(END)          /* the same, and the loop's handles; then CLOSED */                                                \
    X(TELL)         /* `tell`; always the last effect of a step */                                                     \
    X(FREED)        /* nothing is left: free the machine */

enum mu_static_effect_type {
#define X(name) MU_STATIC_DO_##name,
    MU_STATIC_EFFECTS(X)
#undef X
};

enum mu_static_key {
    MU_STATIC_KEY_COUNT,       /* PyTorch's count of the nodes that have come; without the "/" that others begin with */
    MU_STATIC_KEY_MASTER_ADDR, /* agents of PyTorch 1.13 know the endpoint, and wait until rank 0 has put it there */
    MU_STATIC_KEY_MASTER_PORT,
    MU_STATIC_KEY_HOST,     /* these only muster nodes use: rank 0 is one */
    MU_STATIC_KEY_ANNOUNCE, /* a node tells rank 0 who it is, and later that it leaves */
    MU_STATIC_KEY_LOST,
    MU_STATIC_KEY_NODE,     /* by rank: the record of its holder */
    MU_STATIC_KEY_PROGRESS, /* by number */
};

struct mu_static_effect { /* borrows from the machine until its next step */
    enum mu_static_effect_type type;
    enum mu_call_kind kind;
    enum muster_rdzv_event_type tell;
    enum muster_rdzv_request request; /* of a FAILED that is told */
    enum mu_static_key key;
    int64_t number; /* of the key, too */
    uint64_t timeout_ms, seed;
    const char *text, *expected;
};

#define MU_STATIC_EFFECTS_MAX 3
struct mu_static_effects {
    struct mu_static_effect items[MU_STATIC_EFFECTS_MAX];
    size_t count;
};

struct mu_static {
    const struct mu_static_place *place;
    const char *name;
    int64_t pid;
    struct mu_rng rng;
    enum mu_static_state state;
    enum mu_static_owner { MU_STATIC_OUT, MU_STATIC_JOINING, MU_STATIC_MEMBER } owner;
    enum mu_static_rank_0 { MU_STATIC_UNKNOWN, MU_STATIC_PYTORCH, MU_STATIC_MUSTER } rank_0;
    unsigned due;                      /* tells, one bit each, the lowest first */
    enum muster_rdzv_request failed;   /* with a FAILED that is due */
    struct muster_error error;         /* the same */
    struct muster_error taken;         /* DISPUTED: what is wrong with the port, if no other rank 0 has it */
    uint64_t deadline_ms;              /* of the join; in LINGERING of that */
    char record[MU_ROSTER_RECORD_MAX]; /* of this node, another one at each try */
    uint64_t heard;                    /* how many of rank 0's progresses we have */
    struct mu_roster_progress progress;
    /* Rank 0 alone: */
    struct mu_roster roster;
    uint64_t progress_due_ms; /* 0: at the next turn; UINT64_MAX: there is nothing new */
    uint64_t written;         /* how many progresses */
    struct mu_roster_node gone;
    char lost_text[MU_ROSTER_NAME_MAX + 64];
};

/* The place and the name are borrowed. `seed`: random. */
void mu_static_init(struct mu_static *m, const struct mu_static_place *place, const char *name, int64_t pid,
                    uint64_t seed);
void mu_static_step(struct mu_static *m, const struct mu_static_event *event, struct mu_static_effects *out);
bool mu_static_wants_turn(const struct mu_static *m);
bool mu_static_has_store(const struct mu_static *m);                    /* the owner may use the store of the group */
uint64_t mu_static_deadline_ms(const struct mu_static *m);              /* UINT64_MAX: none */
uint64_t mu_static_left_ms(const struct mu_static *m, uint64_t now_ms); /* of the join */

/* ---- static_keys.c: what is in rank 0's store, and what the owner is told ---- */

#define MU_STATIC_KEY_MAX (MU_RDZV_RUN_ID_MAX + 64)

/* As rank 0's server has it. */
struct mu_slice mu_static_key(const struct mu_static_place *place, enum mu_static_key what, int64_t number,
                              char key[static MU_STATIC_KEY_MAX]);

struct mu_static_value {
    enum mu_static_key key;
    char text[sizeof((struct mu_static_place *)0)->host];
};
#define MU_STATIC_FIRST 3
/* What is there from the start. Returns how many. */
size_t mu_static_first_values(const struct mu_static_place *place, struct mu_static_value rows[static MU_STATIC_FIRST]);

struct mu_static_call_texts {
    char key[MU_STATIC_KEY_MAX], value[MU_ROSTER_RECORD_MAX + 24];
    struct muster_slice keys[1];
};
/* The call of a CALL or GOODBYE; borrows from the machine and from `texts`. */
struct mu_call mu_static_call(const struct mu_static *m, const struct mu_static_effect *effect,
                              struct mu_static_call_texts *texts);
/* Room for what a tell points to. */
struct mu_static_told {
    struct muster_rdzv_progress progress;
    struct muster_rdzv_info info;
};
/* A TELL in the words of the owner; borrows from the machine and from `told`. */
struct muster_rdzv_event mu_static_event(const struct mu_static *m, const struct mu_static_effect *effect,
                                         uint64_t now_ms, struct mu_static_told *told);

#endif
