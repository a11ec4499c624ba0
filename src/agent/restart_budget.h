/* What is kept in the job's store of its budget, as text. Pure. */
#ifndef MU_AGENT_RESTART_BUDGET_H
#define MU_AGENT_RESTART_BUDGET_H

#include "rdzv/round_keys.h"

#define MU_ROUND_COUNT_MAX 1000000000

/* The budget is the job's, in one key, M budget, that is only ever changed by COMPARE_SET: the round that goes on, and the
 * restarts up to it. Rank 0 of a round puts its round there before any worker starts; a round that a worker's failure
 * ended is charged by the first of its members to write one restart more, and its name behind it. Where another round is
 * found, the own one is over for the job, and costs nothing. */
struct mu_restart_budget {
    int64_t count, round;
    uint64_t tag;
    bool charged; /* the round has been paid for; count is what follows it */
};

#define MU_ROUND_PAYER_MAX 320 /* of the name of who has paid; longer ones are cut */
#define MU_RESTART_BUDGET_MAX (MU_ROUND_PAYER_MAX + 80)
/* `node`: who pays; NULL: nobody has. Returns the length. */
int mu_restart_budget_write(char text[static MU_RESTART_BUDGET_MAX], const struct mu_restart_budget *budget,
                            const char *node);
bool mu_restart_budget_read(struct mu_slice text, struct mu_restart_budget *ret_budget); /* false: it is none */

#endif
