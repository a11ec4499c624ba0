/* A view of another store in which every key has a prefix. Nothing is kept here but the prefix: a call makes the longer
 * keys in an arena, asks the inner store, and drops the arena. It has no barrier of its own: the one that is made from
 * other calls works on prefixed keys, as PyTorch's does. */
#include "base/arena.h"
#include "base/error.h"
#include "store/store.h"

#include <stdlib.h>

struct prefix_store {
    struct muster_store base;
    struct muster_store_ops ops;
    struct muster_store *inner;
    size_t len; /* of prefix, its "/" included */
    char prefix[];
};

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

static int add_prefix(struct mu_arena *arena, const struct prefix_store *store, struct mu_call *call,
                      struct muster_error *reterr)
{
    struct muster_slice *joined = NULL;
    int rc;

    if (call->count == 0)
        return join(arena, store, call->key, &call->key, reterr);
    rc = join_all(arena, store, call->keys, call->count, &joined, reterr);
    call->keys = joined;
    return rc;
}

/* num_keys counts those of all prefixes, as PyTorch's does. */
static int prefix_run(struct muster_store *base, struct mu_call *call, int64_t timeout_ms, struct muster_error *reterr)
{
    const struct prefix_store *store = (const struct prefix_store *)base;
    struct mu_arena arena = { 0 };
    int rc;

    if (call->kind == MU_CALL_BARRIER)
        return mu_store_run_from_others(base, call, timeout_ms, reterr);
    rc = add_prefix(&arena, store, call, reterr);
    if (rc == 0)
        rc = mu_store_run(store->inner, call, timeout_ms, reterr);
    mu_arena_done(&arena);
    if (rc == 0 && call->kind == MU_CALL_LIST_KEYS)
        mu_values_strip(&call->found, prefix_of(store));
    return rc;
}

static void prefix_free(struct muster_store *store)
{
    free(store);
}

static const struct muster_store_ops prefix_ops = {
    .size = sizeof prefix_ops,
    .name = "prefix",
    MU_STORE_CALLS_BY_RUN,
    .run = prefix_run,
    .free = prefix_free,
};

int muster_store_prefix_new(struct muster_slice prefix, struct muster_store *inner, struct muster_store **ret_store,
                            struct muster_error *reterr)
{
    struct prefix_store *store = malloc(sizeof *store + prefix.len + 1);

    if (store == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a prefix store");
    store->base = (struct muster_store){ .ops = &store->ops, .timeout_ms = muster_store_timeout(inner) };
    store->ops = prefix_ops;
    store->ops.compare_set = mu_store_can_compare_set(inner) ? muster_store_compare_set : NULL;
    store->inner = inner;
    store->len = prefix.len + 1;
    if (prefix.len > 0)
        memcpy(store->prefix, prefix.data, prefix.len);
    store->prefix[prefix.len] = '/';
    *ret_store = &store->base;
    return 0;
}
