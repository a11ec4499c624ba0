/* The static rendezvous for callers that block. Rank 0 serves a store at the endpoint; every node connects and is
 * counted under PyTorch's key, and rank 0 waits until all have come. There are no rounds and nothing is ever closed. */
#include "base/log.h"
#include "handler/bind_uv.h"
#include "handler/blocking_rdzv.h"
#include "handler/static_params.h"

#include <pthread.h>
#include <stdlib.h>

struct blocking {
    struct muster_rdzv base;
    struct mu_static_place place;
    pthread_mutex_t lock; /* of the stores: calls come one after the other */
    struct muster_store *store, *view;
};

static struct blocking *blocking(struct muster_rdzv *rdzv)
{
    return (struct blocking *)rdzv;
}

static const char *static_run_id(const struct muster_rdzv *rdzv)
{
    return ((const struct blocking *)rdzv)->place.run_id;
}

static int open_stores(struct blocking *b, struct muster_error *reterr)
{
    const struct mu_bind bind = mu_static_bind(&b->place);
    struct mu_bind_networks networks;
    struct mu_bind_plan plan = { .reason = MU_BIND_OWN };
    const struct muster_store_server_config server = mu_bind_server_config(&bind, &plan, 0, &networks);
    const struct muster_store_tcp_config config = mu_static_store_config(&b->place, &server);
    char warning[MU_BIND_WARNING_MAX];
    int rc;

    if (config.is_host) {
        mu_bind_ask_blocking(&bind, b->place.host, &plan);
        if (mu_static_bind_warning(&b->place, &plan, warning))
            mu_log(MUSTER_LOG_WARNING, "static rendezvous: %s", warning);
    }
    rc = muster_store_tcp_new(&config, &b->store, reterr);
    if (rc == 0)
        rc = muster_store_prefix_new(muster_str(b->place.run_id), b->store, &b->view, reterr);
    if (rc < 0) {
        muster_store_free(b->store);
        b->store = NULL;
        return mu_static_error(&b->place, rc, reterr);
    }
    return 0;
}

static int static_next(struct muster_rdzv *rdzv, struct muster_rdzv_info *ret_info, struct muster_error *reterr)
{
    struct blocking *b = blocking(rdzv);
    int rc = 0;

    (void)pthread_mutex_lock(&b->lock);
    if (b->view == NULL)
        rc = open_stores(b, reterr);
    if (rc == 0)
        *ret_info = mu_static_info(&b->place, b->view);
    (void)pthread_mutex_unlock(&b->lock);
    return rc;
}

static void static_free(struct muster_rdzv *rdzv)
{
    struct blocking *b = blocking(rdzv);

    muster_store_free(b->view);
    muster_store_free(b->store);
    (void)pthread_mutex_destroy(&b->lock);
    free(b);
}

static const struct muster_rdzv_ops static_ops = {
    .size = sizeof static_ops,
    .get_backend = mu_static_name,
    .get_run_id = static_run_id,
    .use_agent_store = mu_static_shares_store,
    .next_rendezvous = static_next,
    .is_closed = mu_static_is_closed,
    .set_closed = mu_static_set_closed,
    .num_nodes_waiting = mu_static_nodes_waiting,
    .shutdown = mu_static_shut_down,
    .free = static_free,
};

/* `rc`: what came of reading the place. */
static int new_blocking(int rc, const struct mu_static_place *place, struct muster_rdzv **ret_rdzv,
                        struct muster_error *reterr)
{
    struct blocking *b = rc < 0 ? NULL : calloc(1, sizeof *b);

    if (rc == 0 && b == NULL)
        rc = mu_fail(reterr, MUSTER_ENOMEM, "no memory for a static rendezvous");
    if (b == NULL)
        return mu_wrap(reterr, rc, "make a static rendezvous");
    b->base.ops = &static_ops;
    b->place = *place;
    (void)pthread_mutex_init(&b->lock, NULL);
    *ret_rdzv = &b->base;
    return 0;
}

int muster_rdzv_static_new(const char *master_addr, uint16_t master_port, int64_t rank, int64_t world_size,
                           const char *run_id, int64_t timeout_ms, struct muster_rdzv **ret_rdzv,
                           struct muster_error *reterr)
{
    struct mu_static_place place;
    int rc = mu_static_place_init(&place, master_addr, master_port, rank, world_size, timeout_ms, run_id, reterr);

    return new_blocking(rc, &place, ret_rdzv, reterr);
}

int muster_rdzv_static_create(void *ctx, const struct muster_rdzv_params *params, struct muster_rdzv **ret_rdzv,
                              struct muster_error *reterr)
{
    struct mu_static_place place;

    (void)ctx;
    return new_blocking(mu_static_place_from_params(params, &place, reterr), &place, ret_rdzv, reterr);
}

bool mu_rdzv_is_static(const struct muster_rdzv *rdzv)
{
    return rdzv->ops == &static_ops;
}

int mu_rdzv_static_start_twin(uv_loop_t *loop, struct muster_rdzv *rdzv, muster_rdzv_listener *listener, void *ctx,
                              struct muster_handler **ret_handler, struct muster_error *reterr)
{
    struct blocking *b = blocking(rdzv);
    int rc;

    (void)pthread_mutex_lock(&b->lock);
    rc = mu_blocking_check_twin("static", b->view != NULL, reterr);
    (void)pthread_mutex_unlock(&b->lock);
    return rc < 0 ? rc : mu_static_start_at(loop, &b->place, NULL, listener, ctx, ret_handler, reterr);
}
