/* How many connections each address has. Pure. */
#ifndef MU_STORE_ORIGINS_H
#define MU_STORE_ORIGINS_H

#include "base/buckets.h"
#include "base/hash.h"
#include "store/net.h"

struct mu_origin; /* an address with at least one connection */

struct mu_origins {
    struct mu_buckets all; /* takes no memory while there are no connections */
    struct mu_hash_seed seed;
};

/* One more from this address. MUSTER_ELIMIT, with *reterr set, when it has `max` already; MUSTER_ENOMEM. */
int mu_origins_add(struct mu_origins *origins, const union mu_addr *addr, size_t max, struct mu_origin **ret_origin,
                   struct muster_error *reterr);
void mu_origins_remove(struct mu_origins *origins, struct mu_origin *origin); /* one less */

#endif
