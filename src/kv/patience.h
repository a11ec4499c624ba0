/* How long a request to etcd may last before it is made again, elsewhere or anew. A third of a lease, and twice as
 * long after each request that got no answer in time: an etcd with too much to do is not helped by asking again.
 * Pure. */
#ifndef MU_KV_PATIENCE_H
#define MU_KV_PATIENCE_H

#include <stdint.h>

#define MU_PATIENCE_MIN_MS 500 /* for an answer, however short the lease */
#define MU_PATIENCE_MAX_MS 5000
#define MU_PATIENCE_TIMES_MAX 16
#define MU_PATIENCE_REVOKE_MS 800 /* to take our keys out of etcd when we go; else they go with their lease */

struct mu_patience {
    uint64_t request_ms;
    unsigned times; /* 1 to MU_PATIENCE_TIMES_MAX */
};

void mu_patience_init(struct mu_patience *patience, uint64_t lease_ms);
/* `until_ms`: when it has to be over in any case; UINT64_MAX: there is no such time. Above 0. */
uint64_t mu_patience_ms(const struct mu_patience *patience, uint64_t until_ms, uint64_t now_ms);
/* ... and for one of several servers, before the next is asked. */
uint64_t mu_patience_attempt_ms(uint64_t request_ms, unsigned servers);
void mu_patience_learn(struct mu_patience *patience, int rc); /* what became of a request */
/* A lease is lost. `lease` 0: it was never granted, so the request for it has failed. */
void mu_patience_learn_lease(struct mu_patience *patience, int64_t lease, int rc);

#endif
