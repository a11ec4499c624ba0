/* SplitMix64: one word of state, every seed is a good one. Not for secrets. */
#include "base/rng.h"

struct mu_rng mu_rng_seeded(uint64_t seed)
{
    return (struct mu_rng){ .state = seed };
}

uint64_t mu_rng_next(struct mu_rng *rng)
{
    uint64_t z = rng->state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint64_t mu_rng_below(struct mu_rng *rng, uint64_t bound)
{
    if (bound == 0)
        return 0;
    return (uint64_t)((unsigned __int128)mu_rng_next(rng) * bound >> 64);
}

uint64_t mu_rng_jitter(struct mu_rng *rng, uint64_t base, unsigned percent)
{
    uint64_t spread = base * percent / 100;

    return base - spread + mu_rng_below(rng, 2 * spread + 1);
}
