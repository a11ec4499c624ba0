/* What the simulators take from the real world: how long they have run, and the first of their fresh seeds. */
#ifndef MU_TESTS_SIM_CLOCK_H
#define MU_TESTS_SIM_CLOCK_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static inline double sim_seconds(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Random, so that simulators that are started at the same moment do not run the same seeds, nor ranges that overlap: a
 * clock would not do, for seeds are counted up from here. It is printed, so that a run that hangs can be repeated. */
static inline uint64_t sim_fresh_seed(void)
{
    uint64_t seed;

    if (getentropy(&seed, sizeof seed) != 0)
        abort();
    seed >>= 16; /* short enough to be typed, and there is room to count up */
    printf("seeds from 0x%" PRIx64 " on\n", seed);
    (void)fflush(stdout);
    return seed;
}

#endif
