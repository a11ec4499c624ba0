/* The public store calls: defaults filled in, then the store's own table of functions. A call that the table lacks is
 * made from others that it has, or answers "not supported". */
#include "store/store.h"

#include "base/clock.h"
#include "base/error.h"

#include <inttypes.h>
#include <stdlib.h>

void muster_bytes_done(struct muster_bytes *bytes)
{
    free(bytes->data);
    *bytes = (struct muster_bytes){ 0 };
}

void muster_values_done(struct muster_values *values)
{
    for (size_t i = 0; i < values->count; i++)
        free(values->items[i].data);
    free(values->items);
    *values = (struct muster_values){ 0 };
}

void muster_store_set_timeout(struct muster_store *store, int64_t timeout_ms)
{
    if (timeout_ms > 0)
        __atomic_store_n(&store->timeout_ms, timeout_ms, __ATOMIC_RELAXED);
}

int64_t muster_store_timeout(const struct muster_store *store)
{
    return __atomic_load_n(&store->timeout_ms, __ATOMIC_RELAXED);
}

static int64_t settle_timeout(const struct muster_store *store, int64_t timeout_ms)
{
    return timeout_ms < 0 ? muster_store_timeout(store) : timeout_ms;
}

static int not_supported(const struct muster_store *store, const char *what, struct muster_error *reterr)
{
    return mu_fail(reterr, MUSTER_ENOTSUP, "%s: a store of kind '%s' does not have it", what, store->ops->name);
}

/* Is `member` there, in a table that may be shorter than ours? */
#define HAS(store, member)                                                                                             \
    ((store)->ops->size >= offsetof(struct muster_store_ops, member) + sizeof((store)->ops->member) &&                 \
     (store)->ops->member != NULL)

#define CALL(store, member, ...)                                                                                       \
    (HAS(store, member) ? (store)->ops->member((store), __VA_ARGS__) : not_supported((store), #member, reterr))

void muster_store_free(struct muster_store *store)
{
    if (store != NULL && HAS(store, free))
        store->ops->free(store);
}

int muster_store_set(struct muster_store *store, struct muster_slice key, struct muster_slice value, int64_t timeout_ms,
                     struct muster_error *reterr)
{
    return CALL(store, set, key, value, settle_timeout(store, timeout_ms), reterr);
}

int muster_store_get(struct muster_store *store, struct muster_slice key, int64_t timeout_ms,
                     struct muster_bytes *ret_value, struct muster_error *reterr)
{
    return CALL(store, get, key, settle_timeout(store, timeout_ms), ret_value, reterr);
}

int muster_store_add(struct muster_store *store, struct muster_slice key, int64_t delta, int64_t timeout_ms,
                     int64_t *ret_value, struct muster_error *reterr)
{
    return CALL(store, add, key, delta, settle_timeout(store, timeout_ms), ret_value, reterr);
}

int muster_store_compare_set(struct muster_store *store, struct muster_slice key, struct muster_slice expected,
                             struct muster_slice desired, int64_t timeout_ms, struct muster_bytes *ret_value,
                             struct muster_error *reterr)
{
    return CALL(store, compare_set, key, expected, desired, settle_timeout(store, timeout_ms), ret_value, reterr);
}

int muster_store_check(struct muster_store *store, const struct muster_slice *keys, size_t count, int64_t timeout_ms,
                       bool *ret_all_exist, struct muster_error *reterr)
{
    return CALL(store, check, keys, count, settle_timeout(store, timeout_ms), ret_all_exist, reterr);
}

int muster_store_wait(struct muster_store *store, const struct muster_slice *keys, size_t count, int64_t timeout_ms,
                      struct muster_error *reterr)
{
    return CALL(store, wait, keys, count, settle_timeout(store, timeout_ms), reterr);
}

int muster_store_delete_key(struct muster_store *store, struct muster_slice key, int64_t timeout_ms, bool *ret_deleted,
                            struct muster_error *reterr)
{
    return CALL(store, delete_key, key, settle_timeout(store, timeout_ms), ret_deleted, reterr);
}

int muster_store_num_keys(struct muster_store *store, int64_t timeout_ms, int64_t *ret_count,
                          struct muster_error *reterr)
{
    return CALL(store, num_keys, settle_timeout(store, timeout_ms), ret_count, reterr);
}

int muster_store_append(struct muster_store *store, struct muster_slice key, struct muster_slice value,
                        int64_t timeout_ms, struct muster_error *reterr)
{
    return CALL(store, append, key, value, settle_timeout(store, timeout_ms), reterr);
}

int muster_store_queue_push(struct muster_store *store, struct muster_slice key, struct muster_slice value,
                            int64_t timeout_ms, struct muster_error *reterr)
{
    return CALL(store, queue_push, key, value, settle_timeout(store, timeout_ms), reterr);
}

int muster_store_queue_pop(struct muster_store *store, struct muster_slice key, bool block, int64_t timeout_ms,
                           struct muster_bytes *ret_value, struct muster_error *reterr)
{
    return CALL(store, queue_pop, key, block, settle_timeout(store, timeout_ms), ret_value, reterr);
}

int muster_store_queue_len(struct muster_store *store, struct muster_slice key, int64_t timeout_ms, int64_t *ret_len,
                           struct muster_error *reterr)
{
    return CALL(store, queue_len, key, settle_timeout(store, timeout_ms), ret_len, reterr);
}

int muster_store_list_keys(struct muster_store *store, int64_t timeout_ms, struct muster_values *ret_keys,
                           struct muster_error *reterr)
{
    return CALL(store, list_keys, settle_timeout(store, timeout_ms), ret_keys, reterr);
}

int muster_store_ping(struct muster_store *store, int64_t timeout_ms, struct muster_error *reterr)
{
    return CALL(store, ping, settle_timeout(store, timeout_ms), reterr);
}

/* ---- Calls that can be made from others. Their parts share one deadline. ---- */

static int64_t left_of(int64_t start_ms, int64_t timeout_ms)
{
    int64_t passed = mu_clock_ms() - start_ms;

    return passed < timeout_ms ? timeout_ms - passed : 0;
}

static int get_each(struct muster_store *store, const struct muster_slice *keys, size_t count, int64_t timeout_ms,
                    struct muster_values *ret_values, struct muster_error *reterr)
{
    struct muster_values values = { 0 };
    int64_t start_ms = mu_clock_ms();
    int rc = 0;

    values.items = calloc(count == 0 ? 1 : count, sizeof *values.items);
    if (values.items == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "multi_get: no memory for %zu values", count);
    for (; values.count < count && rc == 0; values.count += rc == 0)
        rc = muster_store_get(store, keys[values.count], left_of(start_ms, timeout_ms), &values.items[values.count],
                              reterr);
    if (rc < 0) {
        muster_values_done(&values);
        return mu_wrap(reterr, rc, "multi_get");
    }
    *ret_values = values;
    return 0;
}

int muster_store_multi_get(struct muster_store *store, const struct muster_slice *keys, size_t count,
                           int64_t timeout_ms, struct muster_values *ret_values, struct muster_error *reterr)
{
    timeout_ms = settle_timeout(store, timeout_ms);
    if (HAS(store, multi_get))
        return store->ops->multi_get(store, keys, count, timeout_ms, ret_values, reterr);
    return get_each(store, keys, count, timeout_ms, ret_values, reterr);
}

int muster_store_multi_set(struct muster_store *store, const struct muster_slice *keys,
                           const struct muster_slice *values, size_t count, int64_t timeout_ms,
                           struct muster_error *reterr)
{
    int64_t start_ms;
    int rc = 0;

    timeout_ms = settle_timeout(store, timeout_ms);
    if (HAS(store, multi_set))
        return store->ops->multi_set(store, keys, values, count, timeout_ms, reterr);
    start_ms = mu_clock_ms();
    for (size_t i = 0; i < count && rc == 0; i++)
        rc = muster_store_set(store, keys[i], values[i], left_of(start_ms, timeout_ms), reterr);
    return rc < 0 ? mu_wrap(reterr, rc, "multi_set") : 0;
}

/* KEY and SUFFIX in one piece; the caller frees .data. */
static struct muster_bytes with_suffix(struct muster_slice key, const char *suffix)
{
    size_t len = key.len + strlen(suffix);
    char *data = malloc(len + 1);

    if (data == NULL)
        return (struct muster_bytes){ 0 };
    if (key.len > 0)
        memcpy(data, key.data, key.len);
    memcpy(data + key.len, suffix, strlen(suffix) + 1);
    return (struct muster_bytes){ .data = data, .len = len };
}

/* Counts the members at one key; the last one sets another that all wait for. */
static int meet(struct muster_store *store, struct muster_slice count_key, struct muster_slice last_key,
                int64_t world_size, int64_t timeout_ms, struct muster_error *reterr)
{
    int64_t start_ms = mu_clock_ms(), arrived = 0;
    int rc = muster_store_add(store, count_key, 1, timeout_ms, &arrived, reterr);

    if (rc == 0 && arrived == world_size)
        rc = muster_store_set(store, last_key, muster_str("1"), left_of(start_ms, timeout_ms), reterr);
    if (rc == 0)
        rc = muster_store_wait(store, &last_key, 1, left_of(start_ms, timeout_ms), reterr);
    return rc;
}

int mu_store_meet(struct muster_store *store, struct muster_slice key, int64_t world_size, int64_t timeout_ms,
                  struct muster_error *reterr)
{
    struct muster_bytes count_key = with_suffix(key, "/num_members"), last_key = with_suffix(key, "/last_member");
    int rc;

    if (count_key.data == NULL || last_key.data == NULL)
        rc = mu_fail(reterr, MUSTER_ENOMEM, "no memory for its keys");
    else
        rc = meet(store, (struct muster_slice){ count_key.data, count_key.len },
                  (struct muster_slice){ last_key.data, last_key.len }, world_size, timeout_ms, reterr);
    muster_bytes_done(&count_key);
    muster_bytes_done(&last_key);
    return rc < 0 ? mu_wrap(reterr, rc, "barrier") : 0;
}

int muster_store_barrier(struct muster_store *store, struct muster_slice key, int64_t world_size, int64_t timeout_ms,
                         struct muster_error *reterr)
{
    timeout_ms = settle_timeout(store, timeout_ms);
    if (world_size < 1)
        return mu_fail(reterr, MUSTER_EINVAL, "barrier: a world size of %" PRId64 " is not above 0", world_size);
    if (HAS(store, barrier))
        return store->ops->barrier(store, key, world_size, timeout_ms, reterr);
    return mu_store_meet(store, key, world_size, timeout_ms, reterr);
}
