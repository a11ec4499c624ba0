/* Which round it is, the names of its keys in the job's store, and what is kept there of the budget. Pure.
 *
 *   R  torch.rendezvous.<run_id>.<round>/  PyTorch's keys; <run_id>/ where there are no rounds
 *   M  muster.<run_id>/                    the job's, of our own
 *   T  muster.<run_id>/<round>.<tag>/      the round's, of our own
 *
 * The number of a round may come twice: where a store has lost its data, or its host was started again, members who remember
 * nothing begin anew. The tag is made of the members and their ranks, of which every one is another process: keys of another
 * round are other keys. So what is found under T was written by a member of this very round, and what is found under a
 * rank there by the one that has it. */
#ifndef MU_AGENT_ROUND_H
#define MU_AGENT_ROUND_H

#include "rdzv/doc.h"

#define MU_ROUND_PREFIX_EXTRA 64 /* of a prefix, beside the run id; with its NUL */
#define MU_ROUND_COUNT_MAX 1000000000

uint64_t mu_round_tag(const struct mu_node *members, size_t count); /* by rank */

/* Each needs room for the run id and MU_ROUND_PREFIX_EXTRA. */
void mu_round_stock_prefix(char *text, size_t room, const char *run_id,
                           int64_t round);                             /* R; round -1: there are none */
void mu_round_job_prefix(char *text, size_t room, const char *run_id); /* M */
void mu_round_own_prefix(char *text, size_t room, const char *run_id, int64_t round, uint64_t tag); /* T */

/* The budget is the job's, in one key, M budget, that is only ever changed by COMPARE_SET: the round that goes on, and the
 * restarts up to it. Rank 0 of a round puts its round there before any worker starts; a round that a worker's failure
 * ended is charged by the first of its members to write one restart more, and its name behind it. Where another round is
 * found, the own one is over for the job, and costs nothing. */
struct mu_round_budget {
    int64_t count, round;
    uint64_t tag;
    bool charged; /* the round has been paid for; count is what follows it */
};

#define MU_ROUND_PAYER_MAX 320 /* of the name of who has paid; longer ones are cut */
#define MU_ROUND_BUDGET_MAX (MU_ROUND_PAYER_MAX + 80)
/* `node`: who pays; NULL: nobody has. Returns the length. */
int mu_round_budget_write(char text[static MU_ROUND_BUDGET_MAX], const struct mu_round_budget *budget,
                          const char *node);
bool mu_round_budget_read(struct mu_slice text, struct mu_round_budget *ret_budget); /* false: it is none */

#endif
