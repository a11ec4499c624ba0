/* How a job has ended, as it stands in the job's store: JSON. Pure.
 *
 * Anybody who reaches the store can write to the key. A verdict is believed if it has this form, names a member by its
 * rank, and a round that can end the job: the reader's own, with its tag, or a later one if the reader knows that its
 * own round is over. Anything else is told and ignored, and replaced by the node that has a verdict to write. A node
 * that was not in that round, and finds the job closed, tells a verdict as a fact if the budget has the same round.
 * That keeps out mistakes, and writers who do not know the job; it does not keep out a writer who copies all of this
 * from the store. Tokens would. */
#ifndef MU_AGENT_VERDICT_H
#define MU_AGENT_VERDICT_H

#include "base/error.h"
#include "base/slice.h"

#define MU_VERDICT_CAUSE_MAX 512 /* with its NUL; longer ones are cut */
#define MU_VERDICT_NODE_MAX 320

struct mu_verdict {
    bool succeeded;
    int64_t round; /* the one that ended */
    uint64_t tag;
    int64_t rank; /* of the group. Of T failed, which has the same form: the worker's */
    char node[MU_VERDICT_NODE_MAX], cause[MU_VERDICT_CAUSE_MAX];
};

#define MU_VERDICT_TEXT_MAX 8192
/* The key of the verdict is "muster.<run_id>/verdict"; its value is JSON. Returns the length, or MUSTER_ENOMEM. */
int mu_verdict_write(const struct mu_verdict *verdict, char text[static MU_VERDICT_TEXT_MAX]);
bool mu_verdict_read(struct mu_slice text, struct mu_verdict *ret_verdict); /* false: it is none */
struct mu_verdict_reader {                                                  /* a member of a round */
    int64_t round;
    uint64_t tag;
    int64_t world_size;
    bool is_over; /* the round: the job was closed, or has gone on without the reader */
};

bool mu_verdict_is_credible(const struct mu_verdict *verdict, const struct mu_verdict_reader *reader);

#endif
