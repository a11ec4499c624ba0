/* The restart budget as text, as the job's store keeps it. Pure. */
#ifndef MU_AGENT_RESTART_BUDGET_H
#define MU_AGENT_RESTART_BUDGET_H

#include "rdzv/round_keys.h"

#define MU_ROUND_COUNT_MAX 1000000000

/* The budget is the job's, in one key, M budget, that is only ever changed by COMPARE_SET: the round that goes on, and
 * the restarts up to it. Rank 0 of a round puts its round there before any worker starts; a round that a worker's
 * failure ended is claimed by the first of its members to write one restart more, and its name behind it; rank 0 of the
 * next round settles whether that is charged (settlement.h). Where another round is found, the own one is over for the
 * job, and costs nothing. */
struct mu_restart_budget {
    int64_t count, round;
    uint64_t tag;
    bool charged; /* a failure of the round is claimed; count is what follows it, unless a member was lost */
    bool used_up; /* ... and no restart is left for it: the job has failed, also if it could not be closed */
};

#define MU_RESTART_BUDGET_USED_UP "used up" /* in the place of the node that claims it */

#define MU_ROUND_PAYER_MAX 320 /* of the name of the node that claims it; longer ones are cut */
#define MU_RESTART_BUDGET_MAX (MU_ROUND_PAYER_MAX + 80)
/* `node`: who claims it; NULL: nobody has. Returns the length. */
int mu_restart_budget_write(char text[static MU_RESTART_BUDGET_MAX], const struct mu_restart_budget *budget,
                            const char *node);
bool mu_restart_budget_read(struct mu_slice text, struct mu_restart_budget *ret_budget); /* false: it is none */

#endif
