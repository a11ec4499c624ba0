/* A keyed hash (SipHash-1-3) for tables whose keys come from the network. Each table has its own seed. */
#ifndef MU_BASE_HASH_H
#define MU_BASE_HASH_H

#include "base/slice.h"

#include <stdint.h>

struct mu_hash_seed {
    uint64_t k0, k1;
};

uint64_t mu_hash64(struct mu_hash_seed seed, struct mu_slice bytes);

static inline unsigned mu_hash(struct mu_hash_seed seed, struct mu_slice bytes)
{
    uint64_t h = mu_hash64(seed, bytes);

    return (unsigned)(h ^ h >> 32);
}

#endif
