/* Connections counted by address. */
#include "store/origins.h"

#include "base/error.h"
#include "base/list.h"

#include <assert.h>
#include <stdlib.h>

struct mu_origin {
    struct mu_bucket_item item; /* in origins->all */
    size_t count;
    unsigned char host[MU_ADDR_BYTES];
};

static struct mu_origin *find_or_make(struct mu_origins *origins, const union mu_addr *addr)
{
    unsigned char host[MU_ADDR_BYTES];
    struct mu_origin *origin;
    unsigned hash;

    mu_addr_bytes(addr, host);
    hash = mu_hash(origins->seed, mu_slice((const char *)host, sizeof host));
    for (struct mu_bucket_item *item = mu_buckets_first(&origins->all, hash); item != NULL; item = item->next) {
        origin = MU_LIST_ITEM(item, struct mu_origin, item);
        if (memcmp(origin->host, host, sizeof host) == 0)
            return origin;
    }
    origin = calloc(1, sizeof *origin);
    if (origin == NULL)
        return NULL;
    memcpy(origin->host, host, sizeof host);
    if (mu_buckets_add(&origins->all, &origin->item, hash))
        return origin;
    free(origin);
    return NULL;
}

int mu_origins_add(struct mu_origins *origins, const union mu_addr *addr, size_t max, struct mu_origin **ret_origin,
                   struct muster_error *reterr)
{
    struct mu_origin *origin = find_or_make(origins, addr);

    if (origin == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory to count its connections");
    if (origin->count > 0 && origin->count >= max)
        return mu_fail(reterr, MUSTER_ELIMIT, "its address has %zu connections, which is the limit for one address",
                       origin->count);
    origin->count++;
    *ret_origin = origin;
    return 0;
}

void mu_origins_remove(struct mu_origins *origins, struct mu_origin *origin)
{
    assert(origin->count > 0);
    if (--origin->count > 0)
        return;
    mu_buckets_remove(&origins->all, &origin->item);
    free(origin);
    if (origins->all.count == 0)
        mu_buckets_done(&origins->all);
}
