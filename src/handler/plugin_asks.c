/* What was asked of somebody else's handler. See plugin_asks.h. */
#include "handler/plugin_asks.h"

#include <assert.h>
#include <string.h>

static void forget(struct mu_plugin_asks *asks, enum muster_rdzv_request request)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < asks->count; i++) {
        if (asks->items[i].request != request)
            asks->items[kept++] = asks->items[i];
    }
    asks->count = kept;
}

void mu_plugin_ask(struct mu_plugin_asks *asks, enum muster_rdzv_request request)
{
    assert(!asks->calling && request < MUSTER_RDZV_REQUEST_MEMBERSHIP);
    if (request == MUSTER_RDZV_REQUEST_LEAVE) /* nobody waits for the join any more */
        forget(asks, MUSTER_RDZV_REQUEST_JOIN);
    forget(asks, request);
    assert(asks->count < sizeof asks->items / sizeof asks->items[0]);
    asks->items[asks->count++] = (struct mu_plugin_ask){ .request = request };
    asks->calling = true;
}

void mu_plugin_asked(struct mu_plugin_asks *asks)
{
    const struct mu_plugin_ask *newest = &asks->items[asks->count - 1];

    assert(asks->calling && asks->count > 0);
    asks->calling = false;
    if (newest->request == MUSTER_RDZV_REQUEST_UNKNOWN && !newest->is_early)
        asks->count--; /* the handler is there */
}

/* The oldest ask that FAILED may be the answer of. Without one it is the membership that has failed. */
static enum muster_rdzv_request oldest(const struct mu_plugin_asks *asks)
{
    for (unsigned i = 0; i < asks->count; i++) {
        if (asks->items[i].request != MUSTER_RDZV_REQUEST_LOOK) /* LOOKED is its answer, with an error or without */
            return asks->items[i].request;
    }
    return MUSTER_RDZV_REQUEST_MEMBERSHIP;
}

/* UNKNOWN: none. */
static enum muster_rdzv_request answered_by(const struct muster_rdzv_event *event)
{
    switch (event->type) {
    case MUSTER_RDZV_JOINED:
        return MUSTER_RDZV_REQUEST_JOIN;
    case MUSTER_RDZV_LEFT:
        return MUSTER_RDZV_REQUEST_LEAVE;
    case MUSTER_RDZV_CLOSED:
        return MUSTER_RDZV_REQUEST_CLOSE;
    case MUSTER_RDZV_LOOKED:
        return MUSTER_RDZV_REQUEST_LOOK;
    case MUSTER_RDZV_FAILED:
        return event->request;
    case MUSTER_RDZV_WAITING:
    case MUSTER_RDZV_PEERS_LOST:
    case MUSTER_RDZV_REMOVED:
    case MUSTER_RDZV_BACKEND_DOWN:
    case MUSTER_RDZV_BACKEND_UP:
    case MUSTER_RDZV_PROGRESS:
        break;
    }
    return MUSTER_RDZV_REQUEST_UNKNOWN;
}

enum mu_plugin_event mu_plugin_take_event(struct mu_plugin_asks *asks, const struct muster_rdzv_event *event,
                                          struct muster_rdzv_event *ret_whole)
{
    if (asks->calling) {
        asks->items[asks->count - 1].is_early = true;
        asks->items[asks->count - 1].told = event->type;
        return MU_PLUGIN_EARLY;
    }
    if (event->size < offsetof(struct muster_rdzv_event, info))
        return MU_PLUGIN_SHORT;
    *ret_whole = (struct muster_rdzv_event){ .size = 0 };
    memcpy(ret_whole, event, event->size < sizeof *ret_whole ? event->size : sizeof *ret_whole);
    /* Older events end before `note`, with padding in the place of `request`. An unknown value is no better. */
    if (event->size <= offsetof(struct muster_rdzv_event, note) ||
        (unsigned)ret_whole->request > MUSTER_RDZV_REQUEST_MEMBERSHIP)
        ret_whole->request = MUSTER_RDZV_REQUEST_UNKNOWN;
    ret_whole->size = sizeof *ret_whole;
    if (ret_whole->type == MUSTER_RDZV_FAILED && ret_whole->request == MUSTER_RDZV_REQUEST_UNKNOWN)
        ret_whole->request = oldest(asks);
    forget(asks, answered_by(ret_whole));
    return MU_PLUGIN_WHOLE;
}

const struct mu_plugin_ask *mu_plugin_early(const struct mu_plugin_asks *asks)
{
    for (unsigned i = 0; i < asks->count; i++) {
        if (asks->items[i].is_early)
            return &asks->items[i];
    }
    return NULL;
}

bool mu_plugin_answer_early(struct mu_plugin_asks *asks, const char *name, struct muster_error *ret_error,
                            struct muster_rdzv_event *ret_event)
{
    const struct mu_plugin_ask *early = mu_plugin_early(asks);
    bool is_look;

    if (early == NULL)
        return false;
    (void)mu_fail(
        ret_error, MUSTER_EINTERNAL,
        "the rendezvous back end '%s' told '%s' inside of a call; expected that it tells later, from the loop", name,
        muster_rdzv_event_name(early->told));
    is_look = early->request == MUSTER_RDZV_REQUEST_LOOK;
    *ret_event = (struct muster_rdzv_event){ .size = sizeof *ret_event,
                                             .type = is_look ? MUSTER_RDZV_LOOKED : MUSTER_RDZV_FAILED,
                                             .round = -1,
                                             .request = early->request,
                                             .error = ret_error };
    forget(asks, early->request);
    return true;
}

/* ---- The handler it created ---- */

/* A handler's table up to what every handler has; what came later may be missing. */
#define OPS_BYTES_MIN offsetof(struct muster_handler_ops, endpoint)

static int check_handler(const struct muster_handler *handler, const char *name, struct muster_error *reterr)
{
    const struct muster_handler_ops *ops = handler == NULL ? NULL : handler->ops;

    if (ops == NULL)
        return mu_fail(reterr, MUSTER_EINTERNAL, "it gave no handler");
    if (ops->size < OPS_BYTES_MIN)
        return mu_fail(reterr, MUSTER_EINTERNAL, "its handler's table has %u bytes; expected at least %zu",
                       (unsigned)ops->size, OPS_BYTES_MIN);
    if (ops->join == NULL || ops->leave == NULL || ops->close == NULL || ops->look == NULL || ops->free == NULL)
        return mu_fail(reterr, MUSTER_EINTERNAL, "its handler lacks one of join, leave, close, look and free");
    if (ops->name == NULL || strcmp(ops->name, name) != 0)
        return mu_fail(reterr, MUSTER_EINVAL, "its handler's own name '%s' is not the back end asked for, '%s'",
                       ops->name == NULL ? "" : ops->name, name);
    return 0;
}

int mu_plugin_check_created(const struct mu_plugin_asks *asks, int rc, const char *name,
                            struct muster_handler **handler, struct muster_error *reterr)
{
    const struct mu_plugin_ask *early = mu_plugin_early(asks);

    if (rc < 0) {
        *handler = NULL;
        return rc;
    }
    if (rc > 0)
        return mu_fail(reterr, MUSTER_EINTERNAL, "its create function returned %d; expected 0 or an error", rc);
    if (early != NULL)
        return mu_fail(reterr, MUSTER_EINTERNAL, "it told '%s' before its handler was created",
                       muster_rdzv_event_name(early->told));
    return check_handler(*handler, name, reterr);
}

bool mu_plugin_can_be_freed(const struct muster_handler *handler)
{
    return handler != NULL && handler->ops != NULL && handler->ops->size >= OPS_BYTES_MIN && handler->ops->free != NULL;
}
