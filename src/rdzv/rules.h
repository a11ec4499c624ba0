/* The rules of the dynamic rendezvous, as PyTorch has them: what a node does next, and how each deed changes the
 * document. Pure; the order of the rules is the protocol.
 *
 *            count==min                 count==max, or last call over and a participant looks
 *  OPEN(r) ------------> LAST CALL(r) ------------------------------------------------> COMPLETE(r)
 *    ^  ^                    |  count<min after a removal: no deadline                       |
 *    |  +--------------------+                                                               |
 *    +-------------------- last participant leaves or dies: round r+1 -----------------------+
 *  closed: a flag on top of every state, never taken back
 *
 * Where we differ from PyTorch on purpose:
 *  - A node that waits for a place in a full round becomes a spare. PyTorch's members would restart for it for ever.
 *  - A spare that sees more participants than its own maximum stays a spare.
 *  - A participant without a heartbeat can die.
 *  - A last call whose deadline is missing is waited for; PyTorch crashes. */
#ifndef MU_RDZV_RULES_H
#define MU_RDZV_RULES_H

#include "rdzv/doc.h"

#define MU_RDZV_RUN_ID_MAX 1024 /* bytes: keys made of it stay far below a store's limit */

#define MU_HOLD_ROUND_MS 30000 /* after a round shorter than this, waiting nodes are held down */
#define MU_HOLD_MS 1000
#define MU_HOLD_MAX_MS 60000
#define MU_RDZV_ROLL_BACK_MS 5000 /* after the deadline: the time to take oneself out of the document again */

struct mu_rdzv_settings {
    int64_t nodes_min, nodes_max;
    uint64_t join_ms, last_call_ms, close_ms, heartbeat_ms;
    uint64_t keep_alive_ms;       /* between two heartbeats of a node */
    unsigned keep_alive_attempts; /* so many of them missing: dead */
    uint64_t lost_node_wait_ms;   /* how long a round is held open for the replacement of a lost member */
    uint64_t store_lost_ms;       /* how long a store is waited for whose host was a member and has gone */
    uint64_t back_off_ms;         /* after a lost write: a random wait of at most this; 0: one that grows by itself */
};
#define MU_RDZV_SETTINGS_DEFAULT                                                                                       \
    ((struct mu_rdzv_settings){ .nodes_min = 1,                                                                        \
                                .nodes_max = 1,                                                                        \
                                .join_ms = 600000,                                                                     \
                                .last_call_ms = 30000,                                                                 \
                                .close_ms = 30000,                                                                     \
                                .heartbeat_ms = 5000,                                                                  \
                                .keep_alive_ms = 5000,                                                                 \
                                .keep_alive_attempts = 3,                                                              \
                                .store_lost_ms = 30000 })

static inline uint64_t mu_rdzv_death_age_ms(const struct mu_rdzv_settings *settings)
{
    return settings->keep_alive_ms * settings->keep_alive_attempts;
}

/* Those that write come first. */
#define MU_RDZV_ACTIONS(X)                                                                                             \
    X(KEEP_ALIVE, "keep alive")                                                                                        \
    X(ADD_TO_PARTICIPANTS, "add to participants")                                                                      \
    X(ADD_TO_WAIT_LIST, "add to wait list")                                                                            \
    X(ADD_TO_REDUNDANCY_LIST, "add to redundancy list")                                                                \
    X(REMOVE_FROM_PARTICIPANTS, "remove from participants")                                                            \
    X(REMOVE_FROM_WAIT_LIST, "remove from wait list")                                                                  \
    X(REMOVE_FROM_REDUNDANCY_LIST, "remove from redundancy list")                                                      \
    X(MARK_COMPLETE, "mark complete")                                                                                  \
    X(MARK_CLOSED, "mark closed")                                                                                      \
    X(SYNC, "wait")                                                                                                    \
    X(ERROR_CLOSED, "closed")                                                                                          \
    X(ERROR_TIMEOUT, "timed out")                                                                                      \
    X(ERROR_GRACEFUL_EXIT, "closed for a spare")                                                                       \
    X(FINISH, "finished")

enum mu_rdzv_action {
#define X(name, text) MU_RDZV_##name,
    MU_RDZV_ACTIONS(X)
#undef X
};

const char *mu_rdzv_action_text(enum mu_rdzv_action value);
bool mu_rdzv_action_writes(enum mu_rdzv_action action);

/* What a rule may ask about beside the document. */
struct mu_rdzv_moment {
    uint64_t now_ms, deadline_ms; /* monotonic */
    bool keep_alive_due;          /* by our own clock; counts only if we have a heartbeat in the document */
    bool last_call_over;          /* the document's deadline has passed, as measured here */
};

enum mu_rdzv_action mu_rules_join(const struct mu_doc *doc, const struct mu_node *me,
                                  const struct mu_rdzv_settings *settings, const struct mu_rdzv_moment *moment);
enum mu_rdzv_action mu_rules_exit(const struct mu_doc *doc, const struct mu_node *me,
                                  const struct mu_rdzv_moment *moment);
/* Ours: out of every list. */
enum mu_rdzv_action mu_rules_leave(const struct mu_doc *doc, const struct mu_node *me,
                                   const struct mu_rdzv_moment *moment);
enum mu_rdzv_action mu_rules_keep_alive(const struct mu_doc *doc, const struct mu_node *me,
                                        const struct mu_rdzv_moment *moment);

/* Carries a writing action out on the document. `doc_now_us` is the time that is written. 0, or MUSTER_ENOMEM with the
 * document half changed: a copy to throw away. */
int mu_rules_apply(struct mu_doc *doc, const struct mu_node *me, const struct mu_rdzv_settings *settings,
                   enum mu_rdzv_action action, int64_t doc_now_us);

/* Drops these nodes everywhere; if a participant was among them, what follows from that. */
void mu_rules_remove_dead(struct mu_doc *doc, const struct mu_rdzv_settings *settings, const struct mu_node *dead,
                          size_t count);

/* The hold-down: how long members of the next round do not hear of waiting nodes, after a round that lasted for
 * `lasted_ms` and had a hold-down of `before_ms`. Twice as long each time, so that nodes that come and go cannot keep a
 * group from working. */
uint64_t mu_rules_hold_ms(uint64_t before_ms, uint64_t lasted_ms);

/* Whether the participants of a complete document have the ranks 0..n-1, each once, in node order. */
int mu_rules_ranks_whole(const struct mu_doc *doc, bool *ret_whole); /* 0 or MUSTER_ENOMEM */

#endif
