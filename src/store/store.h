/* A call of a store as one struct, whatever kind of store it is. */
#ifndef MU_STORE_STORE_H
#define MU_STORE_STORE_H

#include "base/slice.h"
#include "store/calls.h"

/* Makes the call and waits for its end: 0, and the answer is in `call`; or *reterr says why not. What `call` asks for
 * may be changed. A negative timeout stands for the store's default. */
int mu_store_run(struct muster_store *store, struct mu_call *call, int64_t timeout_ms, struct muster_error *reterr);

/* Does it have compare_set? A view with a prefix has what its inner store has. */
bool mu_store_can_compare_set(const struct muster_store *store);

/* The entries of a table whose calls are made by its `run`: compare_set and free are still to be named. */
#define MU_STORE_CALLS_BY_RUN                                                                                          \
    .set = muster_store_set, .get = muster_store_get, .add = muster_store_add, .check = muster_store_check,            \
    .wait = muster_store_wait, .delete_key = muster_store_delete_key, .num_keys = muster_store_num_keys,               \
    .append = muster_store_append, .multi_get = muster_store_multi_get, .multi_set = muster_store_multi_set,           \
    .queue_push = muster_store_queue_push, .queue_pop = muster_store_queue_pop, .queue_len = muster_store_queue_len,   \
    .list_keys = muster_store_list_keys, .barrier = muster_store_barrier, .ping = muster_store_ping

/* For the `run` of a store that does not have this call: multi_get, multi_set and barrier are made from other calls of
 * the store. The barrier has the keys that PyTorch's own has for stores without one. All others: MUSTER_ENOTSUP. */
int mu_store_run_from_others(struct muster_store *store, struct mu_call *call, int64_t timeout_ms,
                             struct muster_error *reterr);

/* Leaves the values that begin with `prefix`, without it. */
void mu_values_strip(struct muster_values *values, struct mu_slice prefix);

#endif
