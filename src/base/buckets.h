/* A hash table that grows a little at a time: no insertion waits until all items have been moved.
 *
 * Items are part of what the caller keeps, and the caller compares keys: walk mu_buckets_first() by `next`. While the
 * table grows there are two arrays; each hash belongs to one of them, so there is one chain to look at. */
#ifndef MU_BASE_BUCKETS_H
#define MU_BASE_BUCKETS_H

#include <stdbool.h>
#include <stddef.h>

struct mu_bucket_item {
    struct mu_bucket_item *next;
    unsigned hash;
};

struct mu_buckets { /* zeroed memory is an empty table */
    struct mu_bucket_item **heads, **old;
    size_t size, old_size; /* powers of two */
    size_t moved;          /* of the old array: from here on it is still in use */
    size_t count;
};

static inline struct mu_bucket_item **mu_buckets_chain(const struct mu_buckets *buckets, unsigned hash)
{
    size_t index;

    if (buckets->old == NULL)
        return &buckets->heads[hash & (buckets->size - 1)];
    index = hash & (buckets->old_size - 1);
    return index >= buckets->moved ? &buckets->old[index] : &buckets->heads[hash & (buckets->size - 1)];
}

static inline struct mu_bucket_item *mu_buckets_first(const struct mu_buckets *buckets, unsigned hash)
{
    return buckets->size == 0 ? NULL : *mu_buckets_chain(buckets, hash);
}

/* False: no memory for the first item. Later there is always room, if with longer chains. */
bool mu_buckets_add(struct mu_buckets *buckets, struct mu_bucket_item *item, unsigned hash);
void mu_buckets_remove(struct mu_buckets *buckets, struct mu_bucket_item *item);
void mu_buckets_done(struct mu_buckets *buckets); /* frees the arrays, not the items */

#endif
