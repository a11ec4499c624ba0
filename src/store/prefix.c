/* A view of another store in which every key has a prefix. Nothing is kept here but the prefix: a call makes the longer
 * keys in an arena, asks the inner store, and drops the arena. It has no barrier of its own: the one that is made from
 * other calls works on prefixed keys, as PyTorch's does. */
#include "base/arena.h"
#include "base/error.h"
#include "muster.h"

#include <stdlib.h>

struct prefix_store {
    struct muster_store base;
    struct muster_store *inner;
    size_t len; /* of prefix, its "/" included */
    char prefix[];
};

static struct prefix_store *view(struct muster_store *store)
{
    return (struct prefix_store *)store;
}

static struct mu_slice prefix_of(const struct prefix_store *store)
{
    return mu_slice(store->prefix, store->len);
}

static int join(struct mu_arena *arena, const struct prefix_store *store, struct muster_slice key,
                struct muster_slice *ret_key, struct muster_error *reterr)
{
    struct mu_slice joined = mu_arena_join(arena, prefix_of(store), mu_slice(key.data, key.len));

    if (joined.data == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory to put a prefix before a key");
    *ret_key = (struct muster_slice){ joined.data, joined.len };
    return 0;
}

static int join_all(struct mu_arena *arena, const struct prefix_store *store, const struct muster_slice *keys,
                    size_t count, struct muster_slice **ret_keys, struct muster_error *reterr)
{
    struct muster_slice *joined;
    int rc = 0;

    if (count > SIZE_MAX / sizeof *joined)
        return mu_fail(reterr, MUSTER_EINVAL, "%zu keys are too many", count);
    joined = mu_arena_alloc(arena, count * sizeof *joined);
    if (joined == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory to put a prefix before %zu keys", count);
    for (size_t i = 0; i < count && rc == 0; i++)
        rc = join(arena, store, keys[i], &joined[i], reterr);
    *ret_keys = joined;
    return rc;
}

/* Runs `call`, in which `key` is the prefixed key, and drops what was made for it. */
#define WITH_KEY(call)                                                                                                 \
    struct mu_arena arena = { 0 };                                                                                     \
    struct muster_store *inner = view(store)->inner;                                                                   \
    int rc = join(&arena, view(store), key, &key, reterr);                                                             \
                                                                                                                       \
    if (rc == 0)                                                                                                       \
        rc = (call);                                                                                                   \
    mu_arena_done(&arena);                                                                                             \
    return rc

/* The same for `keys`. */
#define WITH_KEYS(call)                                                                                                \
    struct mu_arena arena = { 0 };                                                                                     \
    struct muster_store *inner = view(store)->inner;                                                                   \
    struct muster_slice *joined = NULL;                                                                                \
    int rc = join_all(&arena, view(store), keys, count, &joined, reterr);                                              \
                                                                                                                       \
    if (rc == 0)                                                                                                       \
        rc = (call);                                                                                                   \
    mu_arena_done(&arena);                                                                                             \
    return rc

static int prefix_set(struct muster_store *store, struct muster_slice key, struct muster_slice value,
                      int64_t timeout_ms, struct muster_error *reterr)
{
    WITH_KEY(muster_store_set(inner, key, value, timeout_ms, reterr));
}

static int prefix_get(struct muster_store *store, struct muster_slice key, int64_t timeout_ms,
                      struct muster_bytes *ret_value, struct muster_error *reterr)
{
    WITH_KEY(muster_store_get(inner, key, timeout_ms, ret_value, reterr));
}

static int prefix_add(struct muster_store *store, struct muster_slice key, int64_t delta, int64_t timeout_ms,
                      int64_t *ret_value, struct muster_error *reterr)
{
    WITH_KEY(muster_store_add(inner, key, delta, timeout_ms, ret_value, reterr));
}

static int prefix_compare_set(struct muster_store *store, struct muster_slice key, struct muster_slice expected,
                              struct muster_slice desired, int64_t timeout_ms, struct muster_bytes *ret_value,
                              struct muster_error *reterr)
{
    WITH_KEY(muster_store_compare_set(inner, key, expected, desired, timeout_ms, ret_value, reterr));
}

static int prefix_check(struct muster_store *store, const struct muster_slice *keys, size_t count, int64_t timeout_ms,
                        bool *ret_all_exist, struct muster_error *reterr)
{
    WITH_KEYS(muster_store_check(inner, joined, count, timeout_ms, ret_all_exist, reterr));
}

static int prefix_wait(struct muster_store *store, const struct muster_slice *keys, size_t count, int64_t timeout_ms,
                       struct muster_error *reterr)
{
    WITH_KEYS(muster_store_wait(inner, joined, count, timeout_ms, reterr));
}

static int prefix_delete_key(struct muster_store *store, struct muster_slice key, int64_t timeout_ms, bool *ret_deleted,
                             struct muster_error *reterr)
{
    WITH_KEY(muster_store_delete_key(inner, key, timeout_ms, ret_deleted, reterr));
}

static int prefix_num_keys(struct muster_store *store, int64_t timeout_ms, int64_t *ret_count,
                           struct muster_error *reterr)
{
    return muster_store_num_keys(view(store)->inner, timeout_ms, ret_count, reterr); /* of all prefixes, as stock's */
}

static int prefix_append(struct muster_store *store, struct muster_slice key, struct muster_slice value,
                         int64_t timeout_ms, struct muster_error *reterr)
{
    WITH_KEY(muster_store_append(inner, key, value, timeout_ms, reterr));
}

static int prefix_multi_get(struct muster_store *store, const struct muster_slice *keys, size_t count,
                            int64_t timeout_ms, struct muster_values *ret_values, struct muster_error *reterr)
{
    WITH_KEYS(muster_store_multi_get(inner, joined, count, timeout_ms, ret_values, reterr));
}

static int prefix_multi_set(struct muster_store *store, const struct muster_slice *keys,
                            const struct muster_slice *values, size_t count, int64_t timeout_ms,
                            struct muster_error *reterr)
{
    WITH_KEYS(muster_store_multi_set(inner, joined, values, count, timeout_ms, reterr));
}

static int prefix_queue_push(struct muster_store *store, struct muster_slice key, struct muster_slice value,
                             int64_t timeout_ms, struct muster_error *reterr)
{
    WITH_KEY(muster_store_queue_push(inner, key, value, timeout_ms, reterr));
}

static int prefix_queue_pop(struct muster_store *store, struct muster_slice key, bool block, int64_t timeout_ms,
                            struct muster_bytes *ret_value, struct muster_error *reterr)
{
    WITH_KEY(muster_store_queue_pop(inner, key, block, timeout_ms, ret_value, reterr));
}

static int prefix_queue_len(struct muster_store *store, struct muster_slice key, int64_t timeout_ms, int64_t *ret_len,
                            struct muster_error *reterr)
{
    WITH_KEY(muster_store_queue_len(inner, key, timeout_ms, ret_len, reterr));
}

static int prefix_list_keys(struct muster_store *store, int64_t timeout_ms, struct muster_values *ret_keys,
                            struct muster_error *reterr)
{
    struct mu_slice prefix = prefix_of(view(store));
    struct muster_values keys = { 0 };
    size_t kept = 0;
    int rc = muster_store_list_keys(view(store)->inner, timeout_ms, &keys, reterr);

    if (rc < 0)
        return rc;
    for (size_t i = 0; i < keys.count; i++) {
        struct muster_bytes key = keys.items[i];

        if (key.len < prefix.len || memcmp(key.data, prefix.data, prefix.len) != 0) {
            muster_bytes_done(&key);
            continue;
        }
        key.len -= prefix.len;
        memmove(key.data, key.data + prefix.len, key.len + 1); /* the NUL as well */
        keys.items[kept++] = key;
    }
    keys.count = kept;
    *ret_keys = keys;
    return 0;
}

static int prefix_ping(struct muster_store *store, int64_t timeout_ms, struct muster_error *reterr)
{
    return muster_store_ping(view(store)->inner, timeout_ms, reterr);
}

static void prefix_free(struct muster_store *store)
{
    free(view(store));
}

static const struct muster_store_ops prefix_ops = {
    .size = sizeof prefix_ops,
    .name = "prefix",
    .set = prefix_set,
    .get = prefix_get,
    .add = prefix_add,
    .compare_set = prefix_compare_set,
    .check = prefix_check,
    .wait = prefix_wait,
    .delete_key = prefix_delete_key,
    .num_keys = prefix_num_keys,
    .append = prefix_append,
    .multi_get = prefix_multi_get,
    .multi_set = prefix_multi_set,
    .queue_push = prefix_queue_push,
    .queue_pop = prefix_queue_pop,
    .queue_len = prefix_queue_len,
    .list_keys = prefix_list_keys,
    .ping = prefix_ping,
    .free = prefix_free,
};

int muster_store_prefix_new(struct muster_slice prefix, struct muster_store *inner, struct muster_store **ret_store,
                            struct muster_error *reterr)
{
    struct prefix_store *store = malloc(sizeof *store + prefix.len + 1);

    if (store == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a prefix store");
    store->base = (struct muster_store){ .ops = &prefix_ops, .timeout_ms = muster_store_timeout(inner) };
    store->inner = inner;
    store->len = prefix.len + 1;
    if (prefix.len > 0)
        memcpy(store->prefix, prefix.data, prefix.len);
    store->prefix[prefix.len] = '/';
    *ret_store = &store->base;
    return 0;
}
