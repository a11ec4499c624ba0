/* The public store calls. Each becomes a struct mu_call. For a store of a user's own the function of its table is
 * called; a store of this library, whose table has the public calls themselves, runs the call whole. A call that a
 * store does not have is made from others, or answers "not supported". */
#include "store/store.h"

#include "base/arena.h"
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

void mu_values_strip(struct muster_values *values, struct mu_slice prefix)
{
    size_t kept = 0;

    for (size_t i = 0; i < values->count; i++) {
        struct muster_bytes *value = &values->items[i];

        if (value->len < prefix.len || memcmp(value->data, prefix.data, prefix.len) != 0) {
            muster_bytes_done(value);
            continue;
        }
        value->len -= prefix.len;
        memmove(value->data, value->data + prefix.len, value->len + 1); /* the NUL as well */
        values->items[kept++] = *value;
    }
    values->count = kept;
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

/* Is `member` there, in a table that may be shorter than ours? */
#define HAS(store, member)                                                                                             \
    ((store)->ops->size >= offsetof(struct muster_store_ops, member) + sizeof((store)->ops->member) &&                 \
     (store)->ops->member != NULL)

void muster_store_free(struct muster_store *store)
{
    if (store != NULL && HAS(store, free))
        store->ops->free(store);
}

bool mu_store_can_compare_set(const struct muster_store *store)
{
    return HAS(store, compare_set);
}

/* ---- Calls made from others. Their parts share one deadline. ---- */

static int64_t left_of(int64_t start_ms, int64_t timeout_ms)
{
    int64_t passed = mu_clock_ms() - start_ms;

    return passed < timeout_ms ? timeout_ms - passed : 0;
}

static int get_each(struct muster_store *store, struct mu_call *call, int64_t timeout_ms, struct muster_error *reterr)
{
    struct muster_values values = { .items = calloc(call->count == 0 ? 1 : call->count, sizeof *values.items) };
    int64_t start_ms = mu_clock_ms();
    int rc = 0;

    if (values.items == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "multi_get: no memory for %zu values", call->count);
    for (; values.count < call->count && rc == 0; values.count += rc == 0)
        rc = muster_store_get(store, call->keys[values.count], left_of(start_ms, timeout_ms),
                              &values.items[values.count], reterr);
    if (rc < 0) {
        muster_values_done(&values);
        return mu_wrap(reterr, rc, "multi_get");
    }
    call->found = values;
    return 0;
}

static int set_each(struct muster_store *store, const struct mu_call *call, int64_t timeout_ms,
                    struct muster_error *reterr)
{
    int64_t start_ms = mu_clock_ms();
    int rc = 0;

    for (size_t i = 0; i < call->count && rc == 0; i++)
        rc = muster_store_set(store, call->keys[i], call->values[i], left_of(start_ms, timeout_ms), reterr);
    return rc < 0 ? mu_wrap(reterr, rc, "multi_set") : 0;
}

/* Counts the members at one key; the last one sets another that all wait for. */
static int meet(struct muster_store *store, const struct mu_call *call, int64_t timeout_ms, struct muster_error *reterr)
{
    struct mu_slice key = mu_slice(call->key.data, call->key.len), count_key, last_key;
    int64_t start_ms = mu_clock_ms(), arrived = 0;
    struct mu_arena arena = { 0 };
    struct muster_slice last;
    int rc;

    count_key = mu_arena_join(&arena, key, mu_slice_str("/num_members"));
    last_key = mu_arena_join(&arena, key, mu_slice_str("/last_member"));
    last = (struct muster_slice){ last_key.data, last_key.len };
    if (count_key.data == NULL || last_key.data == NULL)
        rc = mu_fail(reterr, MUSTER_ENOMEM, "no memory for its keys");
    else
        rc = muster_store_add(store, (struct muster_slice){ count_key.data, count_key.len }, 1, timeout_ms, &arrived,
                              reterr);
    if (rc == 0 && arrived == call->number)
        rc = muster_store_set(store, last, muster_str("1"), left_of(start_ms, timeout_ms), reterr);
    if (rc == 0)
        rc = muster_store_wait(store, &last, 1, left_of(start_ms, timeout_ms), reterr);
    mu_arena_done(&arena);
    return rc < 0 ? mu_wrap(reterr, rc, "barrier") : 0;
}

int mu_store_run_from_others(struct muster_store *store, struct mu_call *call, int64_t timeout_ms,
                             struct muster_error *reterr)
{
    switch (call->kind) {
    case MU_CALL_MULTI_GET:
        return get_each(store, call, timeout_ms, reterr);
    case MU_CALL_MULTI_SET:
        return set_each(store, call, timeout_ms, reterr);
    case MU_CALL_BARRIER:
        return meet(store, call, timeout_ms, reterr);
    default:
        return mu_fail(reterr, MUSTER_ENOTSUP, "%s: a store of kind '%s' does not have it", mu_call_name(call->kind),
                       store->ops->name);
    }
}

/* ---- Running a call ---- */

static int run_whole(struct muster_store *store, struct mu_call *call, int64_t timeout_ms, struct muster_error *reterr)
{
    return HAS(store, run) ? store->ops->run(store, call, timeout_ms, reterr)
                           : mu_store_run_from_others(store, call, timeout_ms, reterr);
}

/* By a user's function if there is one. */
#define CALL(member, ...)                                                                                              \
    (HAS(store, member) && store->ops->member != muster_store_##member ? store->ops->member(store, __VA_ARGS__)        \
                                                                       : run_whole(store, call, timeout_ms, reterr))

static int run(struct muster_store *store, struct mu_call *call, int64_t timeout_ms, struct muster_error *reterr)
{
    bool yes = false;
    int rc;

    switch (call->kind) {
    case MU_CALL_SET:
        return CALL(set, call->key, call->value, timeout_ms, reterr);
    case MU_CALL_GET:
        return CALL(get, call->key, timeout_ms, &call->bytes, reterr);
    case MU_CALL_ADD:
        return CALL(add, call->key, call->number, timeout_ms, &call->result, reterr);
    case MU_CALL_COMPARE_SET:
        return CALL(compare_set, call->key, call->value, call->desired, timeout_ms, &call->bytes, reterr);
    case MU_CALL_CHECK:
        rc = CALL(check, call->keys, call->count, timeout_ms, &yes, reterr);
        call->result = yes || call->result != 0;
        return rc;
    case MU_CALL_WAIT:
        return CALL(wait, call->keys, call->count, timeout_ms, reterr);
    case MU_CALL_DELETE_KEY:
        rc = CALL(delete_key, call->key, timeout_ms, &yes, reterr);
        call->result = yes || call->result != 0;
        return rc;
    case MU_CALL_NUM_KEYS:
        return CALL(num_keys, timeout_ms, &call->result, reterr);
    case MU_CALL_APPEND:
        return CALL(append, call->key, call->value, timeout_ms, reterr);
    case MU_CALL_MULTI_GET:
        return CALL(multi_get, call->keys, call->count, timeout_ms, &call->found, reterr);
    case MU_CALL_MULTI_SET:
        return CALL(multi_set, call->keys, call->values, call->count, timeout_ms, reterr);
    case MU_CALL_QUEUE_PUSH:
        return CALL(queue_push, call->key, call->value, timeout_ms, reterr);
    case MU_CALL_QUEUE_POP:
        return CALL(queue_pop, call->key, call->block, timeout_ms, &call->bytes, reterr);
    case MU_CALL_QUEUE_LEN:
        return CALL(queue_len, call->key, timeout_ms, &call->result, reterr);
    case MU_CALL_LIST_KEYS:
        return CALL(list_keys, timeout_ms, &call->found, reterr);
    case MU_CALL_BARRIER:
        return CALL(barrier, call->key, call->number, timeout_ms, reterr);
    case MU_CALL_PING:
        return CALL(ping, timeout_ms, reterr);
    }
    return MUSTER_EINTERNAL;
}

int mu_store_run(struct muster_store *store, struct mu_call *call, int64_t timeout_ms, struct muster_error *reterr)
{
    int rc = run(store, call, timeout_ms < 0 ? muster_store_timeout(store) : timeout_ms, reterr);

    if (rc <= 0)
        return rc;
    muster_bytes_done(&call->bytes);
    muster_values_done(&call->found);
    return mu_fail(reterr, MUSTER_EINTERNAL, "%s: a store of kind '%s' returned %d; expected 0 or an error",
                   mu_call_name(call->kind), store->ops->name, rc);
}

struct wanted { /* where the answer goes: one of them */
    struct muster_bytes *bytes;
    struct muster_values *values;
    int64_t *number;
    bool *yes;
};

static int run_for(struct wanted wanted, struct muster_store *store, struct mu_call *call, int64_t timeout_ms,
                   struct muster_error *reterr)
{
    int rc = mu_store_run(store, call, timeout_ms, reterr);

    if (rc < 0)
        return rc;
    if (wanted.bytes != NULL)
        *wanted.bytes = call->bytes;
    else if (wanted.values != NULL)
        *wanted.values = call->found;
    else if (wanted.number != NULL)
        *wanted.number = call->result;
    else if (wanted.yes != NULL)
        *wanted.yes = call->result != 0;
    return 0;
}

/* ---- The public calls ---- */

int muster_store_set(struct muster_store *store, struct muster_slice key, struct muster_slice value, int64_t timeout_ms,
                     struct muster_error *reterr)
{
    struct mu_call call = { .kind = MU_CALL_SET, .key = key, .value = value };

    return mu_store_run(store, &call, timeout_ms, reterr);
}

int muster_store_get(struct muster_store *store, struct muster_slice key, int64_t timeout_ms,
                     struct muster_bytes *ret_value, struct muster_error *reterr)
{
    struct mu_call call = { .kind = MU_CALL_GET, .key = key };

    return run_for((struct wanted){ .bytes = ret_value }, store, &call, timeout_ms, reterr);
}

int muster_store_add(struct muster_store *store, struct muster_slice key, int64_t delta, int64_t timeout_ms,
                     int64_t *ret_value, struct muster_error *reterr)
{
    struct mu_call call = { .kind = MU_CALL_ADD, .key = key, .number = delta };

    return run_for((struct wanted){ .number = ret_value }, store, &call, timeout_ms, reterr);
}

int muster_store_compare_set(struct muster_store *store, struct muster_slice key, struct muster_slice expected,
                             struct muster_slice desired, int64_t timeout_ms, struct muster_bytes *ret_value,
                             struct muster_error *reterr)
{
    struct mu_call call = { .kind = MU_CALL_COMPARE_SET, .key = key, .value = expected, .desired = desired };

    return run_for((struct wanted){ .bytes = ret_value }, store, &call, timeout_ms, reterr);
}

int muster_store_check(struct muster_store *store, const struct muster_slice *keys, size_t count, int64_t timeout_ms,
                       bool *ret_all_exist, struct muster_error *reterr)
{
    struct mu_call call = { .kind = MU_CALL_CHECK, .keys = keys, .count = count };

    return run_for((struct wanted){ .yes = ret_all_exist }, store, &call, timeout_ms, reterr);
}

int muster_store_wait(struct muster_store *store, const struct muster_slice *keys, size_t count, int64_t timeout_ms,
                      struct muster_error *reterr)
{
    struct mu_call call = { .kind = MU_CALL_WAIT, .keys = keys, .count = count };

    return mu_store_run(store, &call, timeout_ms, reterr);
}

int muster_store_delete_key(struct muster_store *store, struct muster_slice key, int64_t timeout_ms, bool *ret_deleted,
                            struct muster_error *reterr)
{
    struct mu_call call = { .kind = MU_CALL_DELETE_KEY, .key = key };

    return run_for((struct wanted){ .yes = ret_deleted }, store, &call, timeout_ms, reterr);
}

int muster_store_num_keys(struct muster_store *store, int64_t timeout_ms, int64_t *ret_count,
                          struct muster_error *reterr)
{
    struct mu_call call = { .kind = MU_CALL_NUM_KEYS };

    return run_for((struct wanted){ .number = ret_count }, store, &call, timeout_ms, reterr);
}

int muster_store_append(struct muster_store *store, struct muster_slice key, struct muster_slice value,
                        int64_t timeout_ms, struct muster_error *reterr)
{
    struct mu_call call = { .kind = MU_CALL_APPEND, .key = key, .value = value };

    return mu_store_run(store, &call, timeout_ms, reterr);
}

int muster_store_multi_get(struct muster_store *store, const struct muster_slice *keys, size_t count,
                           int64_t timeout_ms, struct muster_values *ret_values, struct muster_error *reterr)
{
    struct mu_call call = { .kind = MU_CALL_MULTI_GET, .keys = keys, .count = count };

    return run_for((struct wanted){ .values = ret_values }, store, &call, timeout_ms, reterr);
}

int muster_store_multi_set(struct muster_store *store, const struct muster_slice *keys,
                           const struct muster_slice *values, size_t count, int64_t timeout_ms,
                           struct muster_error *reterr)
{
    struct mu_call call = { .kind = MU_CALL_MULTI_SET, .keys = keys, .values = values, .count = count };

    return mu_store_run(store, &call, timeout_ms, reterr);
}

int muster_store_queue_push(struct muster_store *store, struct muster_slice key, struct muster_slice value,
                            int64_t timeout_ms, struct muster_error *reterr)
{
    struct mu_call call = { .kind = MU_CALL_QUEUE_PUSH, .key = key, .value = value };

    return mu_store_run(store, &call, timeout_ms, reterr);
}

int muster_store_queue_pop(struct muster_store *store, struct muster_slice key, bool block, int64_t timeout_ms,
                           struct muster_bytes *ret_value, struct muster_error *reterr)
{
    struct mu_call call = { .kind = MU_CALL_QUEUE_POP, .key = key, .block = block };

    return run_for((struct wanted){ .bytes = ret_value }, store, &call, timeout_ms, reterr);
}

int muster_store_queue_len(struct muster_store *store, struct muster_slice key, int64_t timeout_ms, int64_t *ret_len,
                           struct muster_error *reterr)
{
    struct mu_call call = { .kind = MU_CALL_QUEUE_LEN, .key = key };

    return run_for((struct wanted){ .number = ret_len }, store, &call, timeout_ms, reterr);
}

int muster_store_list_keys(struct muster_store *store, int64_t timeout_ms, struct muster_values *ret_keys,
                           struct muster_error *reterr)
{
    struct mu_call call = { .kind = MU_CALL_LIST_KEYS };

    return run_for((struct wanted){ .values = ret_keys }, store, &call, timeout_ms, reterr);
}

int muster_store_ping(struct muster_store *store, int64_t timeout_ms, struct muster_error *reterr)
{
    struct mu_call call = { .kind = MU_CALL_PING };

    return mu_store_run(store, &call, timeout_ms, reterr);
}

int muster_store_barrier(struct muster_store *store, struct muster_slice key, int64_t world_size, int64_t timeout_ms,
                         struct muster_error *reterr)
{
    struct mu_call call = { .kind = MU_CALL_BARRIER, .key = key, .number = world_size };

    if (world_size < 1)
        return mu_fail(reterr, MUSTER_EINVAL, "barrier: the world size must be 1 or more, not %" PRId64, world_size);
    return mu_store_run(store, &call, timeout_ms, reterr);
}
