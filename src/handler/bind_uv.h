/* Finds out what a host is to this machine, and so where to listen for it. Numeric addresses and localhost are known at
 * once; only other names are looked up. */
#ifndef MU_HANDLER_BIND_UV_H
#define MU_HANDLER_BIND_UV_H

#include "handler/bind.h"

#include <uv.h>

/* The plan; NULL: it was cancelled. From the loop. */
typedef void mu_bind_planned(void *ctx, const struct mu_bind_plan *plan);

struct mu_bind_uv { /* one question at a time; zeroed memory is idle */
    uv_getaddrinfo_t resolver;
    enum { MU_BIND_UV_IDLE, MU_BIND_UV_ASKED, MU_BIND_UV_CANCELLED } state;
    struct mu_bind bind;
    char host[MU_HOST_MAX];
    mu_bind_planned *on_planned;
    void *ctx;
};

/* True: *ret_plan is filled in, and nothing more comes. False: `on_planned` comes later, once. `bind` and its texts
 * must stay until then. */
bool mu_bind_uv_ask(struct mu_bind_uv *ask, uv_loop_t *loop, const struct mu_bind *bind, const char *host,
                    struct mu_bind_plan *ret_plan, mu_bind_planned *on_planned, void *ctx);
/* If it is busy: on_planned still comes, from the loop, with NULL; only then may the memory go. */
void mu_bind_uv_cancel(struct mu_bind_uv *ask);

/* The same for callers that may block. */
void mu_bind_ask_blocking(const struct mu_bind *bind, const char *host, struct mu_bind_plan *ret_plan);

/* With addresses that are known. `also`: the node's own address for others; it counts if it is numeric and this
 * machine's. */
void mu_bind_ask_known(const struct mu_bind *bind, const char *host, const union mu_addr *addrs, size_t count,
                       const char *also, struct mu_bind_plan *ret_plan);

#endif
