/* How a job has ended, as it stands in the job's store: JSON. Pure. */
#ifndef MU_AGENT_VERDICT_H
#define MU_AGENT_VERDICT_H

#include "base/error.h"
#include "base/slice.h"

#define MU_VERDICT_CAUSE_MAX 512 /* with its NUL; longer ones are cut */
#define MU_VERDICT_NODE_MAX 320

struct mu_verdict {
    bool succeeded;
    int64_t rank; /* of the group; -1: none. Of T failed, which has the same form: the worker's */
    char node[MU_VERDICT_NODE_MAX], cause[MU_VERDICT_CAUSE_MAX];
};

#define MU_VERDICT_TEXT_MAX 8192
/* The key of the verdict is "muster.<run_id>/verdict"; its value is JSON. Returns the length, or MUSTER_ENOMEM. */
int mu_verdict_write(const struct mu_verdict *verdict, char text[static MU_VERDICT_TEXT_MAX]);
/* MUSTER_EPROTOCOL: it is no verdict. */
int mu_verdict_read(struct mu_slice text, struct mu_verdict *ret_verdict, struct muster_error *reterr);

#endif
