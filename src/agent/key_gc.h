/* Deletes keys of rounds that are long over, for on a store that runs for a long time they would pile up. Pure; one
 * machine for an agent's life.
 *
 * A round of ours alone leaves behind, with T as in rdzv/round_keys.h: T role_info/<rank>, T ranks/<rank>, T
 * done/<rank>, T left/<rank>, T heard/<rank> of every member, and T count, T done_count, T last, T failed, T
 * MASTER_ADDR, T MASTER_PORT. Every agent remembers the last rounds that it was in; when its workers have been started
 * in a later round, it deletes its own keys of rounds that are MU_KEY_GC_ROUNDS behind. The agent that is rank 0 now or
 * was rank 0 then also deletes the keys of the round itself. If the later round has the same members (the tag says so),
 * every key is deleted once. If not, some members may be gone, and that agent deletes all keys of the round. A node
 * that is still in such an old round was removed and is about to be told.
 *
 * Nothing depends on it: a request that fails is not made again, and a store that cannot delete keeps what it has. */
#ifndef MU_AGENT_KEY_GC_H
#define MU_AGENT_KEY_GC_H

#include "agent/asks.h"
#include "agent/restart_budget.h"

#define MU_KEY_GC_ROUNDS 8 /* newer rounds are left alone */
#define MU_KEY_GC_PAST_MAX                                                                                             \
    32 /* that many are remembered; if more of them never started workers, the oldest is forgotten */

struct mu_key_gc_round {
    int64_t round;
    uint64_t tag;
    int64_t rank, world_size;
};

enum mu_key_gc_event_type {
    MU_KEY_GC_ON_JOINED,  /* round: one of ours alone, with a store */
    MU_KEY_GC_ON_STARTED, /* the workers of the last one that was joined are up */
    MU_KEY_GC_ON_ANSWER,  /* ASK's answer */
};

struct mu_key_gc_event { /* borrowed */
    enum mu_key_gc_event_type type;
    uint64_t now_ms;
    const struct mu_key_gc_round *round;
    struct mu_answer answer;
};

struct mu_key_gc_effects { /* all are asks; borrowed until the next step */
    struct mu_ask items[MU_ASKS_MAX];
    unsigned count;
};

struct mu_key_gc; /* opaque */

int mu_key_gc_new(const char *run_id, struct mu_key_gc **ret_gc, struct muster_error *reterr);
void mu_key_gc_free(struct mu_key_gc *gc);

/* Same state, same event, same effects, always. `out` is overwritten. */
void mu_key_gc_step(struct mu_key_gc *gc, const struct mu_key_gc_event *event, struct mu_key_gc_effects *out);

#endif
