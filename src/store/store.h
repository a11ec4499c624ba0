/* What kinds of stores share. */
#ifndef MU_STORE_STORE_H
#define MU_STORE_STORE_H

#include "muster.h"

/* A barrier made of add, set and wait, in the way and with the keys of PyTorch's own for stores without one. */
int mu_store_meet(struct muster_store *store, struct muster_slice key, int64_t world_size, int64_t timeout_ms,
                  struct muster_error *reterr);

#endif
