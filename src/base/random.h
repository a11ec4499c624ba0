/* Random bytes of the kernel's. Code that decides has none of its own: it is told them, or a seed (rng.h). */
#ifndef MU_BASE_RANDOM_H
#define MU_BASE_RANDOM_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

/* For secrets, and for identities that must not meet: it fails rather than give bytes that others could guess. */
int mu_random(void *bytes, size_t len, struct muster_error *reterr);

/* A number that only has to differ between processes and moments: where the kernel gives none, time and pid. */
uint64_t mu_fresh_seed(void);

#endif
