/* Memory that is made piece by piece and dies whole. */
#ifndef MU_BASE_ARENA_H
#define MU_BASE_ARENA_H

#include "base/slice.h"

struct mu_arena_block;

/* Zeroed memory with `bytes_max` set is an empty arena. */
struct mu_arena {
    struct mu_arena_block *blocks;
    size_t bytes, bytes_max; /* given out so far, and the ceiling; 0 = none */
};

void *mu_arena_alloc(struct mu_arena *arena, size_t size); /* aligned for any type; NULL when there is no more */
struct mu_slice mu_arena_join(struct mu_arena *arena, struct mu_slice a, struct mu_slice b); /* .data NULL: no more */
/* A copy; NULL stays NULL. No memory: NULL, and *full is set. */
const char *mu_arena_text(struct mu_arena *arena, const char *text, bool *full);
void mu_arena_done(struct mu_arena *arena); /* frees everything; the arena is empty and usable again */

#endif
