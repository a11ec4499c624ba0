/* A round that this node has joined, as the machines of agent/ are told of it. */
#ifndef MU_AGENT_ROUND_H
#define MU_AGENT_ROUND_H

#include "agent/settlement.h"

struct mu_round {
    int64_t round;             /* -1: the back end has no rounds, and tells nothing of its members */
    uint64_t tag;              /* of its members */
    int64_t rank, world_size;  /* of the group: agents */
    bool all_ours;             /* no PyTorch member in the round; false if that is not known */
    bool old_dialect;          /* PyTorch's agents are 1.13 to 2.3 */
    bool has_store;            /* for the agents of the round; without one, nodes can only be alone or identical */
    bool needs_master;         /* it came without MASTER_ADDR and MASTER_PORT: rank 0 is PyTorch 1.13 */
    bool serves;               /* the rendezvous store runs in our process; LINGER is answered */
    bool serves_workers;       /* the same of the workers' store, which other nodes use */
    int64_t own_count;         /* restarts that we count ourselves: used if the job's count is not */
    int64_t count_min;         /* the job's count is not below this, as far as we know */
    int64_t max_restarts;      /* of the job: if a charge would make it more, there is no round */
    bool led;                  /* it has a leader (led.h), which counts: these are what it says */
    int64_t restarts_left;     /* ... beside max_restarts */
    int64_t count;             /* ... as well: restarts so far */
    struct mu_settlement last; /* the last round whose ranks were assigned, as far as this node knows; borrowed */
};

#endif
