/* Where to listen for a host: known at once, or by way of the resolver, and then by the plan of bind.c. A host that
 * cannot be resolved has no address that is this machine's: it is not looked up again, for a server must not wait for
 * names. */
#include "handler/bind_uv.h"

#include "handler/local_addresses.h"
#include "store/dial.h"

#include <assert.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>

void mu_bind_ask_known(const struct mu_bind *bind, const char *host, const union mu_addr *addrs, size_t count,
                       const char *also, struct mu_bind_plan *ret_plan)
{
    union mu_addr interfaces[MU_BIND_INTERFACES_MAX], more;
    bool owned[MU_DIAL_ADDRS_MAX] = { false }, has_more = also != NULL && mu_addr_parse(also, 0, &more);
    const struct mu_bind_question question = {
        .given = bind->hosts,
        .host = host,
        .addrs = addrs,
        .owned = owned,
        .addrs_count = count,
        .also = has_more ? &more : NULL,
        .also_owned = has_more && mu_owns_address(&more),
        .interfaces = interfaces,
        .interfaces_count = mu_own_addresses(interfaces, MU_BIND_INTERFACES_MAX),
    };

    assert(count <= MU_DIAL_ADDRS_MAX);
    for (size_t i = 0; i < count; i++)
        owned[i] = mu_owns_address(&addrs[i]);
    mu_bind_plan(&question, ret_plan);
}

static void on_resolved(uv_getaddrinfo_t *req, int status, struct addrinfo *list)
{
    struct mu_bind_uv *ask = req->data;
    union mu_addr addrs[MU_DIAL_ADDRS_MAX];
    struct mu_bind_plan plan;
    bool wanted = ask->state == MU_BIND_UV_ASKED;

    (void)status; /* without addresses it has failed, for whatever reason */
    ask->state = MU_BIND_UV_IDLE;
    if (wanted)
        mu_bind_ask_known(&ask->bind, ask->host, addrs, mu_dial_resolved(list, addrs), NULL, &plan);
    uv_freeaddrinfo(list);
    ask->on_planned(ask->ctx, wanted ? &plan : NULL);
}

bool mu_bind_uv_ask(struct mu_bind_uv *ask, uv_loop_t *loop, const struct mu_bind *bind, const char *host,
                    struct mu_bind_plan *ret_plan, mu_bind_planned *on_planned, void *ctx)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    union mu_addr addrs[MU_DIAL_ADDRS_MAX];
    size_t count = mu_dial_known(host, 0, addrs);

    assert(ask->state == MU_BIND_UV_IDLE);
    if (mu_bind_needs_lookup(bind, host, count)) {
        ask->bind = *bind;
        ask->on_planned = on_planned;
        ask->ctx = ctx;
        ask->resolver.data = ask;
        memcpy(ask->host, host, strlen(host) + 1);
        if (uv_getaddrinfo(loop, &ask->resolver, on_resolved, ask->host, NULL, &hints) == 0) {
            ask->state = MU_BIND_UV_ASKED;
            return false;
        }
    }
    mu_bind_ask_known(bind, host, addrs, count, NULL, ret_plan);
    return true;
}

void mu_bind_uv_cancel(struct mu_bind_uv *ask)
{
    if (ask->state == MU_BIND_UV_IDLE)
        return;
    ask->state = MU_BIND_UV_CANCELLED;
    (void)uv_cancel((uv_req_t *)&ask->resolver); /* one that has begun is waited for */
}

void mu_bind_ask_blocking(const struct mu_bind *bind, const char *host, struct mu_bind_plan *ret_plan)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    union mu_addr addrs[MU_DIAL_ADDRS_MAX];
    size_t count = mu_dial_known(host, 0, addrs);
    struct addrinfo *list = NULL;

    if (mu_bind_needs_lookup(bind, host, count) && getaddrinfo(host, NULL, &hints, &list) == 0) {
        count = mu_dial_resolved(list, addrs);
        freeaddrinfo(list);
    }
    mu_bind_ask_known(bind, host, addrs, count, NULL, ret_plan);
}
