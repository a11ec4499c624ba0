/* Which connections a store server takes. See admission.h. */
#include "store/admission.h"

#include "base/error.h"
#include "base/list.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

enum {
    FILES_KEPT_FREE = 4, /* past the last descriptor libuv would turn peers away without a word */
    IDLE_MS = 1000,      /* a connection that has asked for something since then is not idle */
    ADDRESS_SHARE = 2,   /* one address of another machine may have half of the connections that there is room for */
};

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

bool mu_own_sockets_has(const struct mu_own_sockets *own, const union mu_addr *addr)
{
    assert(own->count <= MU_OWN_SOCKETS_MAX);
    for (size_t i = 0; i < own->count; i++) {
        if (mu_addr_port(&own->addrs[i]) == mu_addr_port(addr) && mu_addr_same_host(&own->addrs[i], addr))
            return true;
    }
    return false;
}

bool mu_strays_add(struct mu_strays *strays, const union mu_addr *addr)
{
    for (size_t i = 0; i < strays->count && i < MU_STRAYS_MAX; i++)
        if (mu_addr_same_host(&strays->addrs[i], addr))
            return false;
    strays->addrs[strays->count++ % MU_STRAYS_MAX] = *addr;
    return true;
}

static bool is_allowed(const struct mu_admission *admission, const struct mu_newcomer *newcomer)
{
    for (size_t i = 0; i < admission->allow_count; i++) {
        if (mu_network_has(&admission->allow[i], newcomer->addr))
            return true;
    }
    return admission->allow_count == 0 || (admission->allow_own && newcomer->from_here);
}

/* Workers of several nodes may come from one address (NAT), so an address may have many. */
static size_t address_max(const struct muster_store_limits *limits, size_t process_room)
{
    size_t room = process_room < limits->connections ? process_room : (size_t)limits->connections;

    return limits->connections_per_address > 0 ? (size_t)limits->connections_per_address : room / ADDRESS_SHARE;
}

int mu_admission_check(struct mu_admission *admission, const struct muster_store_limits *limits,
                       const struct mu_newcomer *newcomer, struct mu_origin **ret_origin, struct muster_error *reterr)
{
    size_t max = address_max(limits, newcomer->process_room);
    int rc = 0;

    assert(newcomer->conns > 0);
    *ret_origin = NULL;
    if (!is_allowed(admission, newcomer))
        return mu_fail(reterr, MUSTER_EINVAL, "its address is in none of the allowed networks");
    if (!newcomer->from_here)
        rc = mu_origins_add(&admission->origins, newcomer->addr, max, ret_origin, reterr);
    if (rc == 0 && newcomer->conns > limits->connections)
        rc =
            mu_fail(reterr, MUSTER_ELIMIT, "%" PRIu64 " connections are open, which is the limit", limits->connections);
    return rc;
}

/* Descriptors are given out lowest first: a high one means that the process has hardly any left, whatever holds
 * them. */
enum mu_files_room mu_admission_room(size_t fd, size_t files, size_t conns, size_t conns_max)
{
    if (fd + FILES_KEPT_FREE >= files)
        return MU_FILES_NONE;
    return conns > conns_max ? MU_FILES_SHORT : MU_FILES_ENOUGH;
}

bool mu_admission_prefers(const struct mu_candidate *candidate, const struct mu_candidate *best,
                          const struct mu_own_sockets *own, uint64_t now_ms)
{
    assert(candidate->heard_ms <= now_ms);
    if (candidate->is_busy || candidate->waits || candidate->is_owed || now_ms - candidate->heard_ms < IDLE_MS)
        return false;
    if (best != NULL && candidate->from_here != best->from_here && candidate->from_here)
        return false;
    if (best != NULL && candidate->from_here == best->from_here && candidate->heard_ms >= best->heard_ms)
        return false;
    return !mu_own_sockets_has(own, candidate->addr);
}
