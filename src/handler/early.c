/* What a handler was asked before it could do it. */
#include "handler/early.h"

#include "handler/rdzv_trace.h"

#include <assert.h>
#include <unistd.h>

void mu_early_add(struct mu_early *early, enum mu_early_ask ask)
{
    for (size_t i = 0; i < early->count; i++) {
        if (early->items[i] == ask)
            return;
    }
    assert(early->count < MU_EARLY_COUNT);
    early->items[early->count++] = ask;
}

void mu_early_drop(struct mu_early *early, enum mu_early_ask ask)
{
    size_t kept = 0;

    for (size_t i = 0; i < early->count; i++) {
        if (early->items[i] != ask)
            early->items[kept++] = early->items[i];
    }
    early->count = kept;
}

void mu_early_pass_one_on(enum mu_early_ask ask, struct muster_handler *inner)
{
    switch (ask) {
    case MU_EARLY_JOIN:
        inner->ops->join(inner);
        break;
    case MU_EARLY_CLOSE:
        inner->ops->close(inner);
        break;
    case MU_EARLY_LOOK:
        inner->ops->look(inner);
        break;
    case MU_EARLY_COUNT:
        break;
    }
}

/* Those that are there now. */
static struct mu_early take_all(struct mu_early *early)
{
    struct mu_early all = *early;

    early->count = 0;
    return all;
}

void mu_early_pass_on(struct mu_early *early, struct muster_handler *inner)
{
    struct mu_early all = take_all(early);

    for (size_t i = 0; i < all.count; i++)
        mu_early_pass_one_on(all.items[i], inner);
}

static void record_failure(const struct mu_early_node *node, const struct muster_error *error)
{
    char hostname[MU_HANDLER_NAME_MAX];
    const struct mu_teller who = mu_teller_new(node->run_id, node->local_addr, node->local_id, hostname);

    mu_rdzv_trace_tell(&who, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_BACKEND_FAILED, .error = error });
}

void mu_early_fail(struct mu_early *early, const struct mu_early_node *node, const struct muster_error *error,
                   mu_early_tell *tell, void *ctx)
{
    static const struct {
        const char *text;
        enum muster_rdzv_event_type told;
        enum muster_rdzv_request request;
    } asks[] = {
        [MU_EARLY_JOIN] = { "join", MUSTER_RDZV_FAILED, MUSTER_RDZV_REQUEST_JOIN },
        [MU_EARLY_CLOSE] = { "close", MUSTER_RDZV_FAILED, MUSTER_RDZV_REQUEST_CLOSE },
        [MU_EARLY_LOOK] = { "look at", MUSTER_RDZV_LOOKED, MUSTER_RDZV_REQUEST_LOOK },
    };
    struct mu_early all = take_all(early);

    record_failure(node, error);
    for (size_t i = 0; i < all.count; i++) {
        struct muster_error told = *error;

        (void)mu_wrap(&told, told.code, "%s rendezvous '%s'", asks[all.items[i]].text, node->run_id);
        tell(ctx, asks[all.items[i]].told, asks[all.items[i]].request, &told);
    }
}
