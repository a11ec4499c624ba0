/* A handler in front of another one. */
#include "handler/front_uv.h"

#include "kv/kv.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/random.h>

/* ---- Telling ---- */

static void tell(void *ctx, enum muster_rdzv_event_type type, enum muster_rdzv_request request,
                 const struct muster_error *error)
{
    struct mu_front *front = ctx;
    const struct muster_rdzv_event event = {
        .size = sizeof event, .type = type, .round = -1, .request = request, .error = error
    };

    if (!front->freeing)
        front->listener(front->ctx, &event);
}

static void on_news(uv_timer_t *timer)
{
    tell(timer->data, MUSTER_RDZV_LEFT, MUSTER_RDZV_REQUEST_UNKNOWN, NULL);
}

/* ---- The back end ---- */

static void on_begin(uv_timer_t *timer)
{
    struct mu_front *front = timer->data;

    front->ops->begin(front);
}

int mu_front_draw(struct mu_front *front, uint64_t *ret_seed, struct muster_error *reterr)
{
    uint64_t random[2];

    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return mu_fail(reterr, MUSTER_ESYSTEM, "no random numbers");
    front->local_id = mu_node_local_id(MU_NODE_VERSION, (uint32_t)random[0]);
    *ret_seed = random[1];
    return 0;
}

int mu_front_take_places(struct mu_front *front, const struct muster_rdzv_params *params, struct muster_error *reterr)
{
    struct mu_bind bind;
    int rc = mu_bind_from_params(params, &bind, reterr);

    if (rc == 0)
        rc = mu_boot_master_from_params(params, &front->master, reterr);
    if (rc < 0)
        return rc;
    front->bind_hosts = bind.hosts == NULL ? NULL : strdup(bind.hosts);
    front->bind_allow = bind.allow == NULL ? NULL : strdup(bind.allow);
    if ((bind.hosts != NULL && front->bind_hosts == NULL) || (bind.allow != NULL && front->bind_allow == NULL))
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a rendezvous");
    return 0;
}

struct mu_bind mu_front_bind(const struct mu_front *front)
{
    return (struct mu_bind){ .hosts = front->bind_hosts, .allow = front->bind_allow };
}

struct muster_handler *mu_front_open(struct mu_front *front, const struct mu_front_ops *ops, uv_loop_t *loop,
                                     muster_rdzv_listener *listener, void *ctx)
{
    front->handler = (struct mu_handler){ { ops->handler }, ops->agent };
    front->ops = ops;
    front->loop = loop;
    front->listener = listener;
    front->ctx = ctx;
    (void)uv_timer_init(loop, &front->timer); /* these only fill in memory */
    (void)uv_timer_init(loop, &front->news);
    front->timer.data = front->news.data = front;
    (void)uv_timer_start(&front->timer, on_begin, 0, 0);
    return &front->handler.base;
}

void mu_front_run(struct mu_front *front, const struct mu_dynamic_config *config)
{
    struct mu_kv *kv = front->kv;
    struct muster_error error;
    int rc;

    front->kv = NULL;
    rc = mu_dynamic_start(front->loop, config, kv, front->listener, front->ctx, &front->inner, &error);
    if (rc < 0)
        mu_front_fail(front, rc, &error);
    else
        mu_early_pass_on(&front->early, front->inner);
}

void mu_front_fail(struct mu_front *front, int code, struct muster_error *error)
{
    const struct mu_early_node node = { front->run_id, front->local_addr, front->local_id };

    error->code = code;
    (void)uv_timer_stop(&front->timer);
    mu_front_close_kv(front);
    front->failed = true;
    mu_early_fail(&front->early, &node, error, tell, front);
}

/* ---- What is asked ---- */

static void put_ask(struct muster_handler *handler, enum mu_early_ask ask)
{
    struct mu_front *front = (struct mu_front *)handler;

    if (front->inner != NULL) {
        mu_early_pass_one_on(ask, front->inner);
        return;
    }
    mu_early_add(&front->early, ask);
    if (!front->failed)
        return;
    front->failed = false;
    (void)uv_timer_start(&front->timer, on_begin, 0, 0);
}

void mu_front_join(struct muster_handler *handler)
{
    put_ask(handler, MU_EARLY_JOIN);
}

void mu_front_close(struct muster_handler *handler)
{
    put_ask(handler, MU_EARLY_CLOSE);
}

void mu_front_look(struct muster_handler *handler)
{
    put_ask(handler, MU_EARLY_LOOK);
}

/* Whoever is not in the document yet has left as soon as it no longer wants to join. */
void mu_front_leave(struct muster_handler *handler)
{
    struct mu_front *front = (struct mu_front *)handler;

    if (front->inner != NULL) {
        front->inner->ops->leave(front->inner);
        return;
    }
    mu_early_drop(&front->early, MU_EARLY_JOIN);
    (void)uv_timer_start(&front->news, on_news, 0, 0);
}

bool mu_front_use_agent_store(const struct muster_handler *handler)
{
    return ((const struct mu_front *)handler)->use_agent_store;
}

bool mu_front_hosts_workers(const struct mu_front *front)
{
    return front->inner != NULL && front->inner->ops->hosts(front->inner);
}

void mu_front_when_alone(struct muster_handler *handler, void (*alone)(void *ctx), void *ctx)
{
    struct mu_front *front = (struct mu_front *)handler;

    if (mu_front_hosts_workers(front))
        front->inner->ops->when_alone(front->inner, alone, ctx);
}

/* ---- The end ---- */

void mu_front_hold(struct mu_front *front)
{
    front->handles++;
}

void mu_front_drop(struct mu_front *front)
{
    assert(front->handles > 0);
    front->handles--;
    if (front->freeing && front->handles == 0)
        front->ops->over(front);
}

void mu_front_free_texts(struct mu_front *front)
{
    free(front->run_id);
    free(front->local_addr);
    free(front->bind_hosts);
    free(front->bind_allow);
}

void mu_front_free(struct mu_front *front)
{
    void (*done)(void *ctx) = front->on_freed;
    void *ctx = front->freed_ctx;

    mu_front_free_texts(front);
    free(front);
    done(ctx);
}

static void on_kv_closed(struct mu_kv *kv, void *ctx)
{
    (void)kv;
    mu_front_drop(ctx);
}

void mu_front_close_kv(struct mu_front *front)
{
    struct mu_kv *kv = front->kv;

    front->kv = NULL;
    if (kv == NULL)
        return;
    mu_front_hold(front);
    kv->ops->close(kv, on_kv_closed, front);
}

static void on_timer_closed(uv_handle_t *handle)
{
    mu_front_drop(handle->data);
}

static void on_inner_freed(void *ctx)
{
    mu_front_drop(ctx);
}

void mu_front_end(struct muster_handler *handler, void (*done)(void *ctx), void *ctx)
{
    struct mu_front *front = (struct mu_front *)handler;

    assert(!front->freeing);
    front->freeing = true;
    front->on_freed = done;
    front->freed_ctx = ctx;
    front->handles += 2;
    uv_close((uv_handle_t *)&front->timer, on_timer_closed);
    uv_close((uv_handle_t *)&front->news, on_timer_closed);
    mu_front_close_kv(front);
    if (front->inner == NULL)
        return;
    mu_front_hold(front);
    front->inner->ops->free(front->inner, on_inner_freed, front);
}
