/* A store for the agent's pure machines: carries out one request at a time. A get of a key that is not there has no
 * answer yet. Memory is static: a test of failing allocations does not meet it. */
#ifndef TESTS_UNIT_ASK_STORE_H
#define TESTS_UNIT_ASK_STORE_H

#include "agent/asks.h"
#include "pure.h"

#include <inttypes.h>
#include <stdio.h>

enum { ASK_STORE_KEYS = 8192, ASK_STORE_BUCKETS = 16384, ASK_STORE_KEY = 112, ASK_STORE_VALUE = 400 };

struct ask_store {
    struct ask_item {
        char key[ASK_STORE_KEY], value[ASK_STORE_VALUE];
        size_t len;
    } items[ASK_STORE_KEYS];
    size_t count;
    size_t buckets[ASK_STORE_BUCKETS]; /* 1 + index; 0: none */
    char number[32];
};

static inline void ask_store_clear(struct ask_store *store)
{
    store->count = 0;
    memset(store->buckets, 0, sizeof store->buckets);
}

/* Where the key is, or would be. */
static inline size_t ask_store_bucket(struct ask_store *store, struct mu_slice key)
{
    uint32_t hash = 2166136261U;

    for (size_t i = 0; i < key.len; i++)
        hash = (hash ^ (unsigned char)key.data[i]) * 16777619U;
    for (size_t b = hash % ASK_STORE_BUCKETS;; b = (b + 1) % ASK_STORE_BUCKETS) {
        const struct ask_item *item = &store->items[store->buckets[b] - (store->buckets[b] > 0)];

        if (store->buckets[b] == 0 || (strlen(item->key) == key.len && memcmp(item->key, key.data, key.len) == 0))
            return b;
    }
}

static inline struct ask_item *ask_store_find(struct ask_store *store, struct mu_slice key)
{
    size_t bucket = ask_store_bucket(store, key);

    return store->buckets[bucket] == 0 ? NULL : &store->items[store->buckets[bucket] - 1];
}

static inline void ask_store_put(struct ask_store *store, struct mu_slice key, struct mu_slice value)
{
    struct ask_item *item = ask_store_find(store, key);

    if (item == NULL) {
        assert_true(store->count < ASK_STORE_KEYS && key.len < ASK_STORE_KEY);
        store->buckets[ask_store_bucket(store, key)] = store->count + 1;
        item = &store->items[store->count++];
        memcpy(item->key, key.data, key.len);
        item->key[key.len] = '\0';
    }
    assert_true(value.len < ASK_STORE_VALUE);
    if (value.len > 0)
        memcpy(item->value, value.data, value.len);
    item->value[value.len] = '\0';
    item->len = value.len;
}

/* The value as text, or NULL. */
static inline const char *ask_store_get(struct ask_store *store, const char *key)
{
    struct ask_item *item = ask_store_find(store, mu_slice_str(key));

    return item == NULL ? NULL : item->value;
}

static inline void ask_store_set(struct ask_store *store, const char *key, const char *value)
{
    ask_store_put(store, mu_slice_str(key), mu_slice_str(value));
}

/* False: it waits. The answer borrows from the store. */
static inline bool ask_store_do(struct ask_store *store, const struct mu_ask *ask, struct mu_answer *answer)
{
    struct ask_item *item = ask_store_find(store, ask->key);

    *answer = (struct mu_answer){ .id = ask->id, .found = item != NULL };
    assert_true(ask->id > 0 && ask->timeout_ms > 0);
    switch (ask->kind) {
    case MU_ASK_GET:
        if (item == NULL)
            return false;
        answer->value = mu_slice(item->value, item->len);
        break;
    case MU_ASK_SET:
        ask_store_put(store, ask->key, ask->value);
        break;
    case MU_ASK_ADD:
        answer->number = ask->number + (item == NULL ? 0 : strtoll(item->value, NULL, 10));
        (void)snprintf(store->number, sizeof store->number, "%" PRId64, answer->number);
        ask_store_put(store, ask->key, mu_slice_str(store->number));
        break;
    case MU_ASK_COMPARE_SET:
        answer->value = ask->expected;
        if (item == NULL && ask->expected.len > 0)
            break;
        if (item == NULL || mu_slice_equal(mu_slice(item->value, item->len), ask->expected))
            ask_store_put(store, ask->key, ask->value);
        item = ask_store_find(store, ask->key);
        answer->value = mu_slice(item->value, item->len);
        break;
    case MU_ASK_CHECK:
        break;
    case MU_ASK_DELETE: /* of what nobody reads any more */
        break;
    }
    return true;
}

#endif
