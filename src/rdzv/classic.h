/* One node's part in the classic etcd rendezvous (etcd's v2 keys, PyTorch's `etcd` back end). Pure: events and the time
 * come in, requests go out.
 *
 *   IDLE --join--> PREPARE --> LOOK --none--> CREATE, COUNT, OPEN --+
 *                              ^ |--joinable------------------------ + --> JOIN --> LAST CALL or WAIT FOR PEERS
 *                              | |--setup, frozen--> watch            |      --frozen--> CONFIRM --> WAIT FOR FINAL
 *                              | +--final--> ANNOUNCE, WAIT TO FREE   |      --> MEMBER
 *                              |     (delete it when a keep-alive is missing)
 *                              +------ whatever no longer fits -------+
 *   join and leave take back what can be taken back first: QUIT.
 *
 * At most one request of the states is under way, beside one each for the two leases, a close, a look and a notice.
 * Answers to other ids are dropped. mu_classic_deadline_ms() always says when time must pass next.
 *
 * Keys, with P the prefix, J = P/run_<run id> and R = J/rdzv, spelled as etcd lists them:
 *   R/version_counter, R/active_version (the document), R/v_<n>/rank_<r> (keep-alive), R/v_<n>/kv (the round's store)
 *   J/muster/v_<n>/rank_<r>                 ours alone: who that rank is. If each has one, no member is PyTorch
 *   J/muster/nodes/<number>                 ours alone: written before a join. Gone if the server lost everything since
 *   P/muster/waiting/<hash of J>_<place>    ours alone: the notice of a node that waits, for people
 *
 * Notices. Documents count nodes and do not name them. So a node that has waited for a while writes a notice, which
 * expires unless it is renewed, and deletes it when the wait ends. The notices of all jobs below P share a directory,
 * which is read before each line about the wait. It stays small: the first MU_WAITERS_NAMES_MAX participants of a
 * document have a notice each; all others share one key for each --nnodes. Notices decide nothing.
 *
 * Better than the original, with the same keys and documents:
 *  - A node that gives up takes itself out: the last participant of a joinable document removes itself, any other
 *    removes the document. A waiting node takes its announcement back, a member deletes its keep-alive.
 *  - A node never joins twice: after a write without an answer it looks what is there.
 *  - Members that are all ours regroup without waiting for keep-alives to expire: each deletes its keep-alive, and then
 *    the document. Where PyTorch is among them, the announcement stands until PyTorch has seen it.
 *  - The last call of such members ends when all of them are back, or gone for a second; not while more nodes are known
 *    to wait. A member that did not see how many waited leaves a second to the one that deleted the document.
 *    A member that is still stopping keeps its keep-alive: the others wait for it, or it is told.
 *  - Leases outlast errors, and are put back if they expired unnoticed.
 *  - A foreign value does not end a group: see classic_foreign.c.
 *  - A missing keep-alive is a lost peer, at once; after an outage only when there was time to put it back. */
#ifndef MU_RDZV_CLASSIC_H
#define MU_RDZV_CLASSIC_H

#include "base/rng.h"
#include "rdzv/classic_doc.h"
#include "rdzv/part.h"
#include "rdzv/waiters.h"

#define MU_CLASSIC_PREFIX_DEFAULT "/torchelastic/p2p"
#define MU_CLASSIC_NODE_MAX 512 /* bytes that say who a node is */

#define MU_CLASSIC_SETUP_TTL_S MUSTER_ETCD_SETUP_TTL_S
#define MU_CLASSIC_JOINABLE_TTL_S MUSTER_ETCD_JOINABLE_EPHEMERAL_TTL_S
#define MU_CLASSIC_FROZEN_TTL_S MUSTER_ETCD_FROZEN_TTL_S
#define MU_CLASSIC_RANK_TTL_S MUSTER_ETCD_WORKER_KEEPALIVE_TTL_S
#define MU_CLASSIC_ROOT_TTL_S MUSTER_ETCD_RUNID_SUBROOT_TTL_S
#define MU_CLASSIC_NOTICE_TTL_S 20

#define MU_CLASSIC_REQUEST_MS 5000   /* for an answer */
#define MU_CLASSIC_WATCH_MS 20000    /* then it is asked anew */
#define MU_CLASSIC_RETRY_MS 1000     /* after an error, +-50 % */
#define MU_CLASSIC_CAS_DELAY_MS 100  /* after a lost write: random below this */
#define MU_CLASSIC_TOUCH_MS 4000     /* a last call without news: the document's TTL is renewed */
#define MU_CLASSIC_SETTLE_MS 1000    /* members of the last group that are gone are waited for so long */
#define MU_CLASSIC_QUIT_MS 2000      /* for taking back what can be taken back, when leaving */
#define MU_CLASSIC_GIVE_UP_MS 10000  /* the same after a join that failed */
#define MU_CLASSIC_STAND_MS 6000     /* an announcement to members that only poll stands so long */
#define MU_CLASSIC_IDLE_EVENTS_MAX 8 /* of a watch, in a row, that are of no interest; then it rests */
#define MU_CLASSIC_IDLE_MS 250
#define MU_CLASSIC_ENDED_MS 250 /* after a connection that ended under a watch, +-50 %; then twice as long each time */
#define MU_CLASSIC_ENDED_MAX_MS 4000 /* ... up to this */
#define MU_CLASSIC_GRACE_MS 12000    /* after an outage nobody is judged for so long: a TTL, and a renewal's time */
#define MU_CLASSIC_FOREIGN_MS                                                                                          \
    3000 /* members have so long to put a document back; then a joining node deletes what is there */

#define MU_CLASSIC_CODE_NOT_FOUND 100
#define MU_CLASSIC_CODE_COMPARE 101
#define MU_CLASSIC_CODE_EXISTS 105
#define MU_CLASSIC_CODE_CLEARED 401

#define MU_CLASSIC_STATES(X)                                                                                           \
    X(IDLE, "idle")                                                                                                    \
    X(REJOIN_KEY, "delete our keep-alive")                                                                             \
    X(PREPARE, "make the directories")                                                                                 \
    X(LOOK, "read the document")                                                                                       \
    X(LOOK_WATCH, "wait for the document to change")                                                                   \
    X(CREATE, "create the document")                                                                                   \
    X(COUNT_READ, "read the version counter")                                                                          \
    X(COUNT_LIST, "list the versions for a new counter")                                                               \
    X(COUNT_WRITE, "increment the version counter")                                                                    \
    X(MAKE_DIR, "make the version's directory")                                                                        \
    X(OPEN, "open the document for joins")                                                                             \
    X(JOIN, "join")                                                                                                    \
    X(LAST_READ, "read the document in the last call")                                                                 \
    X(LAST_WATCH, "wait in the last call")                                                                             \
    X(LAST_TOUCH, "keep the document in the last call")                                                                \
    X(LAST_FREEZE, "end the last call")                                                                                \
    X(PEERS_READ, "read the document for peers")                                                                       \
    X(PEERS_WATCH, "wait for peers")                                                                                   \
    X(PAST_LIST, "look who of the last group has not come yet")                                                        \
    X(CONFIRM_KEY, "write our keep-alive")                                                                             \
    X(CONFIRM_MARK, "say who we are")                                                                                  \
    X(CONFIRM_WRITE, "confirm")                                                                                        \
    X(CONFIRM_READ, "read the document for confirmations")                                                             \
    X(CONFIRM_SELF, "look whether the server has lost everything")                                                     \
    X(FINAL_WATCH, "wait for confirmations")                                                                           \
    X(STORE_DIR, "make the store's directory")                                                                         \
    X(MARKS_READ, "read who the others are")                                                                           \
    X(MARK_BACK, "say again who we are")                                                                               \
    X(ANNOUNCE, "announce that we wait")                                                                               \
    X(FREE_READ, "read the document while waiting")                                                                    \
    X(FREE_LIST, "list the keep-alives while waiting")                                                                 \
    X(FREE_WATCH, "wait for the group to end")                                                                         \
    X(DROP, "delete the document")                                                                                     \
    X(MEMBER_READ, "read the document of our group")                                                                   \
    X(MEMBER_BACK, "put the document of our group back")                                                               \
    X(MEMBER_MARK, "look whether it is still our group")                                                               \
    X(MARK_WATCH, "wait until our group is put back")                                                                  \
    X(MEMBER_LIST, "list the keep-alives of our group")                                                                \
    X(MEMBER_WATCH, "watch our group")                                                                                 \
    X(MEMBER_KEY, "put our keep-alive back")                                                                           \
    X(OVER_READ, "look whether the others go on")                                                                      \
    X(OVER_LIST, "look which of the others are still there")                                                           \
    X(OVER_WATCH, "wait for the others to go on")                                                                      \
    X(OVER, "our group is over")                                                                                       \
    X(QUIT_KEY, "delete our keep-alive to leave")                                                                      \
    X(QUIT_READ, "read the document to leave")                                                                         \
    X(QUIT_WRITE, "take ourselves back")                                                                               \
    X(QUIT_DROP, "delete the document to leave")

enum mu_classic_state {
#define X(name, text) MU_CLASSIC_IN_##name,
    MU_CLASSIC_STATES(X)
#undef X
};

const char *mu_classic_state_text(enum mu_classic_state value);

/* ---- Events ---- */

enum mu_classic_event_type { /* JOIN: not while a join is under way */
#define X(name, text) MU_CLASSIC_ON_##name,
                             MU_PART_EVENTS(X)
#undef X
                                 MU_CLASSIC_ON_ANSWER, /* of a request */
};

struct mu_classic_node { /* of a listing */
    struct mu_slice key, value;
};

struct mu_classic_event { /* borrows what it points to */
    enum mu_classic_event_type type;
    uint64_t now_ms; /* monotonic */
    /* ANSWER. */
    uint64_t id;
    int code;                            /* 0: done. Above 0: etcd's error code. Below 0: there is no answer. A WATCH
                                          * that is `once`: MUSTER_ECANCELED, its connection has ended */
    bool unsure;                         /* below 0: it may have been done, or may yet be */
    const struct muster_error *error;    /* with a code */
    struct mu_slice value;               /* GET */
    struct mu_slice key;                 /* WATCH: what has changed */
    uint64_t modified, index;            /* modifiedIndex of the node; X-Etcd-Index */
    const struct mu_classic_node *nodes; /* GET of a directory: what is in it */
    size_t nodes_count;
};

/* ---- Effects ---- */

enum mu_classic_kind { MU_CLASSIC_GET, MU_CLASSIC_PUT, MU_CLASSIC_DELETE, MU_CLASSIC_WATCH };

struct mu_classic_request { /* of the v2 keys API; borrows from the machine until its next step */
    uint64_t id;
    enum mu_classic_kind kind;
    struct mu_slice key;
    bool dir, refresh, recursive;
    bool once; /* WATCH: not to be made again by anybody else */
    bool has_value, has_prev_value;
    struct mu_slice value, prev_value;
    bool must_exist, must_not_exist;
    uint64_t prev_index, wait_index; /* 0: none */
    int64_t ttl_s;                   /* 0: none */
    uint64_t timeout_ms;
};

enum mu_classic_effect_type {
    MU_CLASSIC_DO_REQUEST,
    MU_CLASSIC_DO_CANCEL, /* id: nobody wants its answer any more */
    MU_CLASSIC_DO_TELL,
};

struct mu_classic_effect { /* borrows from the machine, until its next step */
    enum mu_classic_effect_type type;
    struct mu_classic_request request;
    uint64_t id;
    struct mu_part_news news; /* TELL. LOST: ranks */
};

#define MU_CLASSIC_EFFECTS_MAX 16

struct mu_classic_effects {
    struct mu_classic_effect items[MU_CLASSIC_EFFECTS_MAX];
    unsigned count;
};

/* ---- The machine ---- */

struct mu_classic_config { /* copied */
    const char *prefix;    /* NULL: MU_CLASSIC_PREFIX_DEFAULT */
    const char *run_id;
    int64_t nodes_min, nodes_max;
    uint64_t join_ms, last_call_ms, close_ms;
    const char *node; /* who we are, for the other nodes of our kind */
    const char *name; /* and for people; NULL: a node without a name, which has no notice and reads none */
    int64_t pid, local_id;
    uint64_t seed;
};

struct mu_classic_world {
    int64_t version; /* -1: we are in none */
    int64_t rank;
    size_t count;
    char *const *marks; /* by rank: what its node says it is; NULL: it is PyTorch */
    bool all_ours;
};

/* P and J as etcd has them. MUSTER_EINVAL: too long. */
int mu_classic_keys(const char *prefix, const char *run_id, char ret_prefix[static MU_CLASSIC_KEY_MAX],
                    char ret_root[static MU_CLASSIC_KEY_MAX], struct muster_error *reterr);

struct mu_classic; /* opaque */

/* MUSTER_EINVAL: limits or texts that cannot be. MUSTER_ENOMEM. */
int mu_classic_new(const struct mu_classic_config *config, struct mu_classic **ret_classic,
                   struct muster_error *reterr);
void mu_classic_free(struct mu_classic *m);

/* Same state, same event, same effects, always. `out` is overwritten. Without memory for a step, it is tried again
 * later. */
void mu_classic_step(struct mu_classic *m, const struct mu_classic_event *event, struct mu_classic_effects *out);
uint64_t mu_classic_deadline_ms(const struct mu_classic *m); /* when TIME is wanted; UINT64_MAX: never */

enum mu_classic_state mu_classic_state(const struct mu_classic *m);
const struct mu_classic_world *mu_classic_world(const struct mu_classic *m);
struct mu_part_progress mu_classic_progress(const struct mu_classic *m);
const struct mu_waiters *mu_classic_crowd(const struct mu_classic *m);
const char *mu_classic_root(const struct mu_classic *m); /* J, without "/" at its end */

#endif
