/* Keys of rounds that are long over: on a store that stands for a long time they would become ever more. Pure; one machine for
 * an agent's life.
 *
 * A round of ours alone leaves behind, with T as in rdzv/names.h: T role_info/<rank>, T ranks/<rank>, T done/<rank>, T left/<rank> of
 * every member, and T count, T done_count, T last, T failed, T MASTER_ADDR, T MASTER_PORT. Every agent remembers the last rounds
 * that it was in; when its workers have been started in a later one, it deletes what is of itself in those that are
 * MU_CLEAR_ROUNDS behind; who is rank 0, or was it then, deletes what is of the round as well. If the later one has the same
 * members (the tag says so), every key is deleted once. If not, some may have gone, and rank 0, or who was it then, deletes all
 * there is. Somebody who is still in such a round was removed, and about to hear of it.
 *
 * Nothing depends on it: a request that fails is not made again, and a store that cannot delete keeps what it has. */
#ifndef MU_AGENT_CLEAR_H
#define MU_AGENT_CLEAR_H

#include "agent/asks.h"
#include "agent/round.h"

#define MU_CLEAR_ROUNDS 8 /* so many are left alone */
#define MU_CLEAR_PAST_MAX                                                                                              \
    32 /* so many are remembered; if more than that never came to anything, the oldest is forgotten */

struct mu_clear_round {
    int64_t round;
    uint64_t tag;
    int64_t rank, world_size;
};

enum mu_clear_event_type {
    MU_CLEAR_ON_JOINED,  /* round: one of ours alone, with a store */
    MU_CLEAR_ON_STARTED, /* the workers of the last one that was joined are up */
    MU_CLEAR_ON_ANSWER,  /* ASK's answer */
};

struct mu_clear_event { /* borrowed */
    enum mu_clear_event_type type;
    uint64_t now_ms;
    const struct mu_clear_round *round;
    struct mu_answer answer;
};

struct mu_clear_effects { /* all are asks; borrowed until the next step */
    struct mu_ask items[MU_ASKS_MAX];
    unsigned count;
};

struct mu_clear; /* opaque */

int mu_clear_new(const char *run_id, struct mu_clear **ret_clear, struct muster_error *reterr);
void mu_clear_free(struct mu_clear *clear);

/* Same state, same event, same effects, always. `out` is overwritten. */
void mu_clear_step(struct mu_clear *clear, const struct mu_clear_event *event, struct mu_clear_effects *out);

#endif
