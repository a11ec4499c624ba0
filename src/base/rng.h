/* Random numbers as an argument: code that needs one is given a generator, and a test gives a seeded one. */
#ifndef MU_BASE_RNG_H
#define MU_BASE_RNG_H

#include <stdint.h>

struct mu_rng {
    uint64_t state;
};

struct mu_rng mu_rng_seeded(uint64_t seed);
uint64_t mu_rng_next(struct mu_rng *rng);
uint64_t mu_rng_below(struct mu_rng *rng, uint64_t bound); /* 0..bound-1; 0 for a bound of 0 */

/* `base` spread evenly over base +- percent/100, for retries that must not march in step. */
uint64_t mu_rng_jitter(struct mu_rng *rng, uint64_t base, unsigned percent);

#endif
