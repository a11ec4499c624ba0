/* A call of a store as one struct, whatever kind of store it is. */
#ifndef MU_STORE_STORE_H
#define MU_STORE_STORE_H

#include "base/slice.h"
#include "store/calls.h"

/* Makes the call and waits for its end: 0, and the answer is in `call`; or *reterr says why not. What `call` asks for
 * may be changed. A negative timeout stands for the store's default. */
int mu_store_run(struct muster_store *store, struct mu_call *call, int64_t timeout_ms, struct muster_error *reterr);

/* For the `run` of a store that does not have this call: multi_get, multi_set and barrier are made from other calls of
 * the store. The barrier has the keys that PyTorch's own has for stores without one. All others: MUSTER_ENOTSUP. */
int mu_store_run_from_others(struct muster_store *store, struct mu_call *call, int64_t timeout_ms,
                             struct muster_error *reterr);

/* Leaves the values that begin with `prefix`, without it. */
void mu_values_strip(struct muster_values *values, struct mu_slice prefix);

#endif
