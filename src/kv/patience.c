/* How long a request to etcd may last. */
#include "kv/patience.h"

#include "base/error.h"

#include <assert.h>

void mu_patience_init(struct mu_patience *p, uint64_t lease_ms)
{
    *p = (struct mu_patience){ .request_ms = lease_ms / 3, .times = 1 };
    if (p->request_ms < MU_PATIENCE_MIN_MS)
        p->request_ms = MU_PATIENCE_MIN_MS;
    if (p->request_ms > MU_PATIENCE_MAX_MS)
        p->request_ms = MU_PATIENCE_MAX_MS;
}

uint64_t mu_patience_ms(const struct mu_patience *p, uint64_t until_ms, uint64_t now_ms)
{
    uint64_t ms = p->request_ms * p->times, most_ms = until_ms > now_ms ? until_ms - now_ms : 1;

    return ms < most_ms ? ms : most_ms;
}

uint64_t mu_patience_attempt_ms(uint64_t request_ms, unsigned servers)
{
    return servers > 1 ? request_ms / 2 : request_ms;
}

void mu_patience_learn(struct mu_patience *p, int rc)
{
    assert(p->times >= 1 && p->times <= MU_PATIENCE_TIMES_MAX);
    if (rc == MUSTER_ETIMEOUT)
        p->times = p->times * 2 < MU_PATIENCE_TIMES_MAX ? p->times * 2 : MU_PATIENCE_TIMES_MAX;
    else if (rc == 0 && p->times > 1)
        p->times--;
}

void mu_patience_learn_lease(struct mu_patience *p, int64_t lease, int rc)
{
    if (lease == 0)
        mu_patience_learn(p, rc);
}
