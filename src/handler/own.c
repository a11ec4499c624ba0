/* Handlers of this library whose groups have a store that is no TCPStore. */
#include "handler/user_handler_uv.h"

typedef int open_kv(struct muster_handler *handler, struct mu_kv **ret_kv, struct muster_error *reterr);

static const struct {
    const struct muster_handler_ops *ops;
    open_kv *open;
} own[] = {
    { &mu_etcd_handler_ops, mu_etcd_open_kv },       { &mu_etcd_v2_handler_ops, mu_etcd_v2_open_kv },
    { &mu_etcd_v3_handler_ops, mu_etcd_v3_open_kv }, { &mu_user_handler_handler_ops, mu_user_handler_open_kv },
    { &mu_dynamic_handler_ops, mu_dynamic_open_kv },
};

static open_kv *find(const struct muster_handler *handler)
{
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        if (own[i].ops == handler->ops)
            return own[i].open;
    }
    return NULL;
}

bool mu_handler_has_kv(const struct muster_handler *handler)
{
    if (handler->ops == &mu_user_handler_handler_ops)
        return mu_user_handler_has_store(handler);
    if (handler->ops == &mu_dynamic_handler_ops)
        return mu_dynamic_has_kv(handler);
    return find(handler) != NULL;
}

bool mu_handler_tells_of_members(const struct muster_handler *handler)
{
    return handler->ops != &mu_user_handler_handler_ops;
}

int mu_handler_open_kv(struct muster_handler *handler, struct mu_kv **ret_kv, struct muster_error *reterr)
{
    open_kv *open = find(handler);

    if (open == NULL)
        return mu_fail(reterr, MUSTER_ENOTSUP, "back end '%s' has no store for agents", handler->ops->name);
    return open(handler, ret_kv, reterr);
}
