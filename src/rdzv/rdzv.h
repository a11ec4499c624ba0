/* One node's part in a dynamic rendezvous: keeps a copy of the document, joins, leaves and closes by the rules, writes
 * heartbeats, judges which members are dead, and tells what happened. Pure: events and the time come in, effects go
 * out.
 *
 *   IDLE --join--> LEAVING the old round --> JOINING --complete, and me in it--> settling --> MEMBER
 *     ^               (turn, write)          (turn, write, wait)                                |
 *     |                                                                 join, leave, close, removed, failed
 *     +-----------------------------------------------------------------------------------------+
 *
 * At most one read or write, one park and one turn request are under way; an answer to another id is dropped.
 * mu_rdzv_deadline_ms() always says when time must pass next.
 *
 * Every document that can be read is believed, with its round, members and heartbeats. A lower round, or a document
 * without us, takes us out of our round. A value that is no document is logged and replaced by compare-and-set: at once
 * by a node that is in the complete round of its copy, by other nodes after a keep-alive interval. A document of
 * another layout is refused and left alone.
 *
 * What is better than in PyTorch, with the same document:
 * - A peer is dead when we saw the same heartbeat for the whole death age, looking at least once in every keep-alive
 *   interval. A pause of ours or an outage of the store begins this anew. No clocks are compared.
 * - Times that we write are the document's own: those of the PyTorch members if there are any.
 * - A bell tells all nodes that a round ends, that the next one is open, and that it is complete. Turns keep a crowd
 *   from overwriting each other. Both are hints. See rdzv_turns.c.
 * - While the store is away nobody is judged, unless a member hosts it. See rdzv_away.c.
 * - The first member that sees the complete document puts down its digest. A member that saw another document does not
 *   start, but joins anew: so all that start have the same ranks and world. */
#ifndef MU_RDZV_RDZV_H
#define MU_RDZV_RDZV_H

#include "base/buf.h"
#include "base/rng.h"
#include "rdzv/part.h"
#include "rdzv/rules.h"

#define MU_RDZV_POLL_MS 1000                          /* reads beside the bell, because PyTorch does not ring */
#define MU_RDZV_POLL_BYTES_S ((uint64_t)16 << 20)     /* of all members together; past it they read less often */
#define MU_RDZV_POLL_OURS_BYTES_S ((uint64_t)2 << 20) /* where all ring: the slow read only finds newcomers */
#define MU_RDZV_POLL_TURN_MS 4                        /* between reads, for each turn that a crowd waits for */
#define MU_RDZV_IDLE_RINGS_MAX 3                      /* that bring nothing; then the bell waits for the next read */
#define MU_RDZV_TURN_WAIT_MS 100                      /* for each node before us */
#define MU_RDZV_TURN_CROWD_MS 500                     /* instead, where there are many */
#define MU_RDZV_TURN_WAIT_MAX_MS 2000
#define MU_RDZV_TURN_TRIES 4       /* lost writes with which a turn is over */
#define MU_RDZV_CROWD 16           /* with more members, heartbeats take turns, too */
#define MU_RDZV_FAIL_ALIKE_MS 5000 /* for workers of all nodes to fail by themselves: mu_rdzv_fails_alike() */
#define MU_RDZV_BACK_OFF_MS 4      /* after a lost write: random below this, doubling */
#define MU_RDZV_BACK_OFF_MAX_MS 1000
#define MU_RDZV_RETRY_MS 100 /* after a failed request, +-50 %, doubling */
#define MU_RDZV_RETRY_MAX_MS 5000
#define MU_RDZV_LEFT_MS 1000       /* how long a round waits for a member of the last one that has left */
#define MU_RDZV_HOLD_STOCK_MS 1500 /* a PyTorch member looks once a second, and must have seen the round */
#define MU_RDZV_SURPLUS_MS 2000    /* for a refused store to come back, of a node that has no place in the round */
#define MU_RDZV_LAST_TRY_MS 1000   /* that a join has at least, if the store was lost before it began */
#define MU_RDZV_HOST_SHOWN_MAX 200
#define MU_RDZV_DIGEST_MAX 64

/* ---- What the document is written as ---- */

struct mu_doc_codec {
    const char *name;
    int (*decode)(struct mu_slice bytes, struct mu_doc *doc, struct muster_error *reterr);
    int (*encode)(const struct mu_doc *doc, struct mu_buf *out);
    bool (*is_other_layout)(struct mu_slice bytes); /* of what decode() refuses: a document, not ours to replace */
};

extern const struct mu_doc_codec mu_doc_codec_pickle;

/* ---- Events ---- */

#define MU_RDZV_EVENTS(X)                                                                                              \
    MU_PART_EVENTS(X)                                                                                                  \
    X(STOP, "stop")                     /* asked: no more heartbeats; the document is left as it is */                 \
    X(STATE, "state")                   /* READ's answer: found, bytes, token, bell */                                 \
    X(WRITTEN, "written")               /* WRITE's answer: written; found, bytes, token: what is there now */          \
    X(RUNG, "rung")                     /* PARK's answer: something newer is there */                                  \
    X(TURN, "turn")                     /* TURN_TAKE's answer: turn, turns_done */                                     \
    X(TURN_CAME, "turn came")           /* TURN_WAIT's answer: found; false: its time was up. turns_done */            \
    X(SETTLED, "settled")               /* SETTLE's answer: bytes, the digest that was first */                        \
    X(REQUEST_FAILED, "request failed") /* any of them: error, gone */                                                 \
    X(HOST, "host")                     /* node: in whose process the store is; NULL: in none of ours */

enum mu_rdzv_event_type {
#define X(name, text) MU_RDZV_##name,
    MU_RDZV_EVENTS(X)
#undef X
};

struct mu_rdzv_event { /* borrows what it points to */
    enum mu_rdzv_event_type type;
    uint64_t now_ms; /* monotonic */
    int64_t wall_us; /* since 1970; used only where the document has no time of its own yet */
    uint64_t id;     /* of the effect that is answered */
    bool found, written;
    struct mu_slice bytes, token;
    int64_t bell;
    int64_t turn, turns_done;
    /* REQUEST_FAILED: MUSTER_ERDZV_STATE is final, everything else is tried again. STATE, WRITTEN: what was found is no
     * document, and why; NULL: `bytes` will tell. */
    const struct muster_error *error;
    bool gone; /* the store's host refuses connections: its process is not there */
    const struct mu_node *node;
};

/* ---- Effects ---- */

#define MU_RDZV_EFFECTS(X)                                                                                             \
    X(READ, "read")   /* the bell's counter, then the document, which may be kept back for wait_ms */                  \
    X(WRITE, "write") /* `bytes`, if the document still is what `token` says; has_token false: if there is none */     \
    X(RING, "ring")   /* no answer */                                                                                  \
    X(PARK, "park")   /* answer when the bell's counter is above `bell`; replaces an earlier PARK */                   \
    X(TURN_TAKE, "take turn")                                                                                          \
    X(TURN_WAIT, "wait for turn") /* until `turn` was given, at most wait_ms */                                        \
    X(TURN_GIVE, "give turn")     /* `turn` is over; no answer */                                                      \
    X(SETTLE, "settle")           /* `bytes` as the digest of `round`, unless there is one */                          \
    X(TELL, "tell")               /* `news`: to the owner, with what mu_rdzv_* below says */                           \
    X(PLANNED, "planned")         /* with WRITE, for the record: mu_rdzv_deeds() is what it writes */                  \
    X(SYNCED, "synced")           /* WRITE's answer, for the record: `written`, or another's write came first; also    \
                                   * mu_rdzv_removed(), and `beat`: a member's heartbeat */

/* LOOKED tells what the store had, at most a second ago. LEFT also answers STOP. BACKEND_DOWN is also told of the first
 * request that is refused. */

enum mu_rdzv_effect_type {
#define X(name, text) MU_RDZV_DO_##name,
    MU_RDZV_EFFECTS(X)
#undef X
};

struct mu_rdzv_effect { /* borrows from the machine, until the next step */
    enum mu_rdzv_effect_type type;
    uint64_t id;
    struct mu_slice bytes, token;
    bool has_token;
    int64_t bell, turn, round;
    uint64_t wait_ms;
    struct mu_part_news news; /* TELL */
    bool written, beat;       /* SYNCED */
};

#define MU_RDZV_EFFECTS_MAX 16

struct mu_rdzv_effects {
    struct mu_rdzv_effect items[MU_RDZV_EFFECTS_MAX];
    unsigned count;
};

/* What a write does to the document, one step after the other. */
struct mu_rdzv_deed {
    enum mu_rdzv_action action;
    int64_t round;       /* of the document before it */
    bool ends_round;     /* it had no participants left: the next round begins */
    bool ends_last_call; /* fewer than the minimum are left in an open round */
};

struct mu_rdzv_deeds {
    const struct mu_rdzv_deed *items;
    size_t count;
};

/* ---- The machine ---- */

struct mu_rdzv_config { /* copied, the names included */
    struct mu_rdzv_settings settings;
    struct mu_node me;
    const char *endpoint;                 /* of the store, for people; NULL: not known */
    struct mu_doc_dialect dialect;        /* of a document that we are the first to write; expected of others */
    const struct mu_doc_codec *codec;     /* NULL: pickle */
    bool has_bell, has_turns, has_settle; /* what the back end can do */
    bool shares_store;                    /* where PyTorch 2.5 is in the round, workers meet in the rendezvous store */
    struct mu_hash_seed hash_seed;        /* random */
    uint64_t seed;                        /* random; for back-off */
};

struct mu_rdzv_world { /* of a completed round, members by rank */
    int64_t round, rank;
    struct mu_node *members;
    size_t count;
    bool all_ours; /* nobody of them is PyTorch */
    struct mu_doc_dialect dialect;
};

struct mu_rdzv_nodes {
    struct mu_node *items;
    size_t count;
};

#define MU_RDZV_PHASES(X)                                                                                              \
    X(IDLE, "idle")       /* not in the document, as far as we can tell */                                             \
    X(EXITING, "exiting") /* joining, still a participant of the old round */                                          \
    X(JOINING, "joining")                                                                                              \
    X(SETTLING, "settling") /* the round is complete and has us */                                                     \
    X(MEMBER, "member")                                                                                                \
    X(LEAVING, "leaving")

enum mu_rdzv_phase {
#define X(name, text) MU_RDZV_PHASE_##name,
    MU_RDZV_PHASES(X)
#undef X
};

struct mu_rdzv; /* opaque; see rdzv.c */

int mu_rdzv_new(const struct mu_rdzv_config *config, struct mu_rdzv **ret_rdzv, struct muster_error *reterr);
void mu_rdzv_free(struct mu_rdzv *rdzv);

/* Same state, same event, same effects, always. Cannot fail. `out` is overwritten. */
void mu_rdzv_step(struct mu_rdzv *rdzv, const struct mu_rdzv_event *event, struct mu_rdzv_effects *out);
uint64_t mu_rdzv_deadline_ms(const struct mu_rdzv *rdzv); /* when TIME is wanted; UINT64_MAX: never */

/* What a tell refers to. Borrowed until the next step. */
enum mu_rdzv_phase mu_rdzv_phase(const struct mu_rdzv *rdzv);
const struct mu_doc *mu_rdzv_doc(const struct mu_rdzv *rdzv); /* our copy, without those we think dead */
bool mu_rdzv_doc_exists(const struct mu_rdzv *rdzv);          /* the store had one when we last read or wrote */
const struct mu_rdzv_world *mu_rdzv_world(const struct mu_rdzv *rdzv); /* since JOINED; NULL: no member */
struct mu_rdzv_nodes mu_rdzv_lost(const struct mu_rdzv *rdzv);         /* LOST */
bool mu_rdzv_store_refuses(const struct mu_rdzv *rdzv);                /* connections; else it answers, or is silent */
struct mu_rdzv_deeds mu_rdzv_deeds(const struct mu_rdzv *rdzv);        /* PLANNED */
struct mu_rdzv_nodes mu_rdzv_removed(const struct mu_rdzv *rdzv);      /* SYNCED: whom the write removed as dead */
const struct muster_error *mu_rdzv_error(const struct mu_rdzv *rdzv);  /* FAILED, BACKEND_DOWN, LOOKED */

struct mu_part_progress mu_rdzv_progress(const struct mu_rdzv *rdzv);

const char *mu_rdzv_event_text(enum mu_rdzv_event_type value);
const char *mu_rdzv_effect_text(enum mu_rdzv_effect_type value);
const char *mu_rdzv_phase_text(enum mu_rdzv_phase value);

#endif
