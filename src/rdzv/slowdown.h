/* What keeps a job from burning its time in starts: pure rules of a rendezvous' leader.
 *
 * **Crash loop.** Rounds that fail within CRASH_MS of their start are followed by a pause, from the third in a row on:
 * 1 s, doubling to 30 s. How many there were is in the world, so the next leader knows.
 *
 * **Flapping.** A node whose last three stays each ended within FLAP_MS, because it was lost, left, or was charged with
 * a failure, is let in again only after 30 s, doubling to 10 min. A stay that was longer, or that others ended, breaks
 * the row: the node begins anew. The leader remembers rows; a new one begins anew. Nobody is held off where the job
 * would have too few nodes.
 *   Several agents may have one name. Each has a row of its own, by its identity; but an agent that is started anew has
 * a new one. It takes up the row of an agent of its name that is gone, if it came after the round of that agent's last
 * stay had begun: so an agent that was there beside another one never takes up its row. Of two that come after it, the
 * first takes it up, which may be the wrong one: nobody can tell. An agent that lost its lease meanwhile counts as one
 * that came.
 *
 * **Restart window.** With one, only restarts of the last so many seconds count against the maximum. The world has how
 * long ago each was when it was written: no clock of one node is another's. One that was charged for the last round is
 * up to a second too old, because all share what is left of a second.
 *
 * All of this is by the leader's clock, from when it first saw the world; and a world does not say when it was written.
 * To a node that came only later and then leads, the round and its members' stays look shorter, and restarts younger,
 * by the time before it came: at worst it takes a round for a short one, or counts a restart longer than the window. */
#ifndef MU_RDZV_SLOWDOWN_H
#define MU_RDZV_SLOWDOWN_H

#include "rdzv/fold_doc.h"

#define MU_SLOWDOWN_CRASH_MS 10000
#define MU_SLOWDOWN_CRASHES 3
#define MU_SLOWDOWN_PAUSE_MS 1000
#define MU_SLOWDOWN_PAUSE_MAX_MS 30000
#define MU_SLOWDOWN_FLAP_MS 30000
#define MU_SLOWDOWN_FLAPS 3
#define MU_SLOWDOWN_HOLD_MS 30000
#define MU_SLOWDOWN_HOLD_MAX_MS 600000
#define MU_SLOWDOWN_NODES_MAX 256 /* that are remembered; whoever was held off least recently is forgotten first */

/* So many failed rounds in a row were short; `lasted_ms`: of the one that has failed. */
int64_t mu_slowdown_crashes(int64_t before, uint64_t lasted_ms);
uint64_t mu_slowdown_pause_ms(int64_t crashes); /* before the next round */

struct mu_slowdown_node {
    uint64_t id; /* 0: free */
    char name[MU_FOLD_NAME_MAX + 1];
    int64_t since;        /* the revision at which the round of its last stay began */
    bool here;            /* it has a record, or its stay is to be counted yet: the leader says so before agents come */
    unsigned short_stays; /* in a row */
    uint64_t hold_ms, until_ms, seen_ms;
};

struct mu_slowdown { /* zeroed memory is empty */
    struct mu_slowdown_node *nodes;
};

struct mu_slowdown_stay {
    uint64_t id;
    const char *name;
    int64_t since; /* the revision at which the round began */
    uint64_t lasted_ms, ended_ms;
};

void mu_slowdown_done(struct mu_slowdown *slowdown);
/* A stay of that node has ended by its own doing. Without memory nothing is remembered. */
void mu_slowdown_ended(struct mu_slowdown *slowdown, const struct mu_slowdown_stay *stay);
void mu_slowdown_ended_by_others(struct mu_slowdown *slowdown, uint64_t id);
/* A node wants in that was not in the last round; `create`: the revision of its record. */
void mu_slowdown_came(struct mu_slowdown *slowdown, uint64_t id, const char *name, int64_t create);
uint64_t mu_slowdown_until_ms(const struct mu_slowdown *slowdown, uint64_t id); /* 0: it may come */

/* How many of the restarts count still, `passed_ms` after the world was written; their ages are moved on by as much,
 * and those that count no more are dropped. */
size_t mu_slowdown_recent(struct mu_fold_world *world, uint64_t passed_ms);

#endif
