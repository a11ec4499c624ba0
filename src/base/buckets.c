/* A hash table that grows a little at a time. Each insertion moves a few chains of the old array; they are all moved
 * long before the new one is full. */
#include "base/buckets.h"

#include <assert.h>
#include <stdlib.h>

enum { SIZE_MIN = 32, MOVED_AT_ONCE = 4 };

static void move_one(struct mu_buckets *buckets)
{
    struct mu_bucket_item *item = buckets->old[buckets->moved];

    while (item != NULL) {
        struct mu_bucket_item *next = item->next, **head = &buckets->heads[item->hash & (buckets->size - 1)];

        item->next = *head;
        *head = item;
        item = next;
    }
    buckets->moved++;
}

static void move_some(struct mu_buckets *buckets)
{
    for (unsigned i = 0; i < MOVED_AT_ONCE && buckets->moved < buckets->old_size; i++)
        move_one(buckets);
    if (buckets->moved < buckets->old_size)
        return;
    free(buckets->old);
    buckets->old = NULL;
}

static bool grow(struct mu_buckets *buckets)
{
    size_t size = buckets->size == 0 ? SIZE_MIN : buckets->size * 2;
    struct mu_bucket_item **heads = calloc(size, sizeof(struct mu_bucket_item *));

    if (heads == NULL)
        return false;
    assert(buckets->old == NULL);
    buckets->old = buckets->heads;
    buckets->old_size = buckets->size;
    buckets->moved = 0;
    buckets->heads = heads;
    buckets->size = size;
    return true;
}

bool mu_buckets_add(struct mu_buckets *buckets, struct mu_bucket_item *item, unsigned hash)
{
    struct mu_bucket_item **head;

    if (buckets->old == NULL && buckets->count >= buckets->size && !grow(buckets) && buckets->size == 0)
        return false;
    if (buckets->old != NULL)
        move_some(buckets);
    head = mu_buckets_chain(buckets, hash);
    item->hash = hash;
    item->next = *head;
    *head = item;
    buckets->count++;
    return true;
}

void mu_buckets_remove(struct mu_buckets *buckets, struct mu_bucket_item *item)
{
    struct mu_bucket_item **at = mu_buckets_chain(buckets, item->hash);

    while (*at != item) {
        assert(*at != NULL);
        at = &(*at)->next;
    }
    *at = item->next;
    buckets->count--;
}

void mu_buckets_done(struct mu_buckets *buckets)
{
    free(buckets->heads);
    free(buckets->old);
    *buckets = (struct mu_buckets){ 0 };
}
