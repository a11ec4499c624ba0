/* A store server on its owner's loop, or on a thread of its own. See placed_server_uv.h.
 *
 * Happy path on a thread: an order is posted -> it is carried out there -> it is put among the answers, and `news`
 * wakes the owner's loop -> the owner is told. Failures: what cannot be posted fails at once. Once the server is being
 * closed nothing is told but that it is closed. */
#include "store/placed_server_uv.h"

#include "base/error.h"
#include "store/loop_thread_uv.h"
#include "store/server_uv.h"

#include <assert.h>
#include <stdlib.h>

struct order {
    struct mu_posted posted; /* the thread's, until it is answered */
    struct mu_list link;     /* in answers */
    struct mu_placed_server *placed;
    mu_placed_server_renewed *renewed; /* NULL: an order that nobody waits for */
    void *ctx;
    uint64_t id;
    int rc;
    struct muster_error error;
};

struct mu_placed_server {
    struct mu_server *server;
    bool apart; /* `thread`, `news` and what is under the lock are in use */
    bool closing;
    void (*alone)(void *ctx);
    void *alone_ctx;
    void (*closed)(void *ctx);
    void *closed_ctx;
    struct mu_loop_thread thread;
    uv_async_t news;
    pthread_mutex_t lock;
    struct mu_list answers; /* under lock, as the next two */
    bool is_alone;          /* which is to be told */
    bool has_ended;         /* the thread has nothing more to do */
};

static const char what[] = "a store server";

static struct mu_placed_server *of_thread(struct mu_loop_thread *thread)
{
    return MU_LIST_ITEM(thread, struct mu_placed_server, thread);
}

/* ---- On the thread ---- */

static void close_there(struct mu_loop_thread *thread)
{
    mu_server_close(of_thread(thread)->server, NULL, NULL);
}

/* The last that is done there: the owner joins the thread. */
static void on_ended_there(struct mu_loop_thread *thread)
{
    struct mu_placed_server *p = of_thread(thread);

    (void)pthread_mutex_lock(&p->lock);
    p->has_ended = true;
    (void)uv_async_send(&p->news); /* under the lock: p may be gone right behind it */
    (void)pthread_mutex_unlock(&p->lock);
}

static void answer(struct order *order)
{
    struct mu_placed_server *p = order->placed;

    (void)pthread_mutex_lock(&p->lock);
    mu_list_push(&p->answers, &order->link);
    (void)uv_async_send(&p->news);
    (void)pthread_mutex_unlock(&p->lock);
}

static void renew_there(struct mu_posted *posted)
{
    struct order *order = (struct order *)posted;

    order->rc = mu_server_renew(order->placed->server, &order->error);
    answer(order);
}

static void on_alone_there(void *ctx)
{
    struct mu_placed_server *p = ctx;

    (void)pthread_mutex_lock(&p->lock);
    p->is_alone = true;
    (void)uv_async_send(&p->news);
    (void)pthread_mutex_unlock(&p->lock);
}

static void when_alone_there(struct mu_posted *posted)
{
    struct order *order = (struct order *)posted;

    mu_server_when_alone(order->placed->server, on_alone_there, order->placed);
    answer(order);
}

/* ---- What comes back ---- */

static void on_gone(uv_handle_t *handle)
{
    struct mu_placed_server *p = handle->data;

    (void)pthread_mutex_destroy(&p->lock);
    if (p->closed != NULL)
        p->closed(p->closed_ctx);
    free(p);
}

static void take(struct mu_placed_server *p, struct order *order)
{
    if (order->renewed != NULL && !p->closing)
        order->renewed(order->ctx, order->id, order->rc < 0 ? &order->error : NULL);
    free(order);
}

static struct order *next_answer(struct mu_placed_server *p)
{
    struct order *order;

    (void)pthread_mutex_lock(&p->lock);
    order = MU_LIST_POP(struct order, &p->answers, link);
    (void)pthread_mutex_unlock(&p->lock);
    return order;
}

static void tell_alone(struct mu_placed_server *p)
{
    void (*alone)(void *ctx) = p->alone;

    if (alone == NULL || p->closing)
        return;
    p->alone = NULL;
    alone(p->alone_ctx);
}

static void on_news(uv_async_t *async)
{
    struct mu_placed_server *p = async->data;
    bool is_alone, has_ended;
    struct order *order;

    while ((order = next_answer(p)) != NULL)
        take(p, order);
    (void)pthread_mutex_lock(&p->lock);
    is_alone = p->is_alone;
    has_ended = p->has_ended;
    p->is_alone = false;
    (void)pthread_mutex_unlock(&p->lock);
    if (is_alone)
        tell_alone(p);
    if (!has_ended)
        return;
    (void)pthread_join(p->thread.thread, NULL);
    mu_loop_thread_done(&p->thread);
    uv_close((uv_handle_t *)&p->news, on_gone);
}

/* ---- Start ---- */

/* On its own loop, which nobody runs so far. */
static int start_there(struct mu_placed_server *p, const struct muster_store_server_config *config,
                       struct muster_error *reterr)
{
    int rc = mu_loop_thread_open(&p->thread, what, reterr);

    if (rc < 0)
        return rc;
    rc = mu_server_start_as(&p->thread.loop, config, &p->server, reterr);
    if (rc == 0) {
        rc = mu_loop_thread_start(&p->thread, what, reterr);
        if (rc < 0)
            close_there(&p->thread);
    }
    if (rc < 0)
        mu_loop_thread_discard(&p->thread);
    return rc;
}

static int start_apart(struct mu_placed_server *p, uv_loop_t *loop, const struct muster_store_server_config *config,
                       struct muster_error *reterr)
{
    int rc = start_there(p, config, reterr);

    if (rc < 0)
        return rc;
    p->apart = true;
    mu_list_init(&p->answers);
    (void)pthread_mutex_init(&p->lock, NULL);
    p->news.data = p;
    rc = uv_async_init(loop, &p->news, on_news);
    if (rc == 0)
        return 0;
    (void)mu_loop_thread_stop(&p->thread, close_there, -1, NULL);
    mu_loop_thread_done(&p->thread);
    (void)pthread_mutex_destroy(&p->lock);
    return mu_fail_errno(reterr, -rc, "hear from the thread of %s", what);
}

int mu_placed_server_start(uv_loop_t *loop, const struct muster_store_server_config *config, bool apart,
                           struct mu_placed_server **ret_server, struct muster_error *reterr)
{
    struct mu_placed_server *p = calloc(1, sizeof *p);
    int rc;

    if (p == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a store server");
    rc = apart ? start_apart(p, loop, config, reterr) : mu_server_start_as(loop, config, &p->server, reterr);
    if (rc < 0) {
        free(p);
        return rc;
    }
    *ret_server = p;
    return 0;
}

const union mu_addr *mu_placed_server_address(const struct mu_placed_server *p)
{
    return mu_server_address(p->server);
}

/* ---- What the owner wants ---- */

struct listen_call {
    struct mu_posted posted;
    struct mu_placed_server *placed;
    const union mu_addr *addr;
    int rc;
    struct muster_error *reterr;
};

static void listen_there(struct mu_posted *posted)
{
    struct listen_call *call = (struct listen_call *)posted;

    call->rc = mu_server_listen_also(call->placed->server, call->addr, call->reterr);
    mu_posted_done(posted);
}

int mu_placed_server_listen_also(struct mu_placed_server *p, const union mu_addr *addr, struct muster_error *reterr)
{
    struct listen_call call = { .posted = { .begin = listen_there }, .placed = p, .addr = addr, .reterr = reterr };

    assert(!p->closing); /* nobody would answer on the thread */
    if (!p->apart)
        return mu_server_listen_also(p->server, addr, reterr);
    if (mu_server_listens_on(p->server, addr))
        return 0;
    mu_loop_thread_call(&p->thread, &call.posted);
    return call.rc;
}

/* False: no memory. */
static bool post(struct mu_placed_server *p, const struct order *like)
{
    struct order *order = malloc(sizeof *order);

    assert(!p->closing);
    if (order == NULL)
        return false;
    *order = *like;
    order->placed = p;
    mu_list_init(&order->link);
    mu_list_init(&order->posted.link);
    mu_loop_thread_post(&p->thread, &order->posted);
    return true;
}

void mu_placed_server_renew(struct mu_placed_server *p, uint64_t id, mu_placed_server_renewed *renewed, void *ctx)
{
    const struct order order = { .posted = { .begin = renew_there }, .id = id, .renewed = renewed, .ctx = ctx };
    struct muster_error error;

    if (p->apart && post(p, &order))
        return;
    if (p->apart)
        (void)mu_fail(&error, MUSTER_ENOMEM, "no memory to renew a store");
    renewed(ctx, id, !p->apart && mu_server_renew(p->server, &error) == 0 ? NULL : &error);
}

struct alone_call {
    struct mu_posted posted;
    struct mu_placed_server *placed;
    bool is_alone;
};

static void look_there(struct mu_posted *posted)
{
    struct alone_call *call = (struct alone_call *)posted;

    call->is_alone = mu_server_is_alone(call->placed->server);
    mu_posted_done(posted);
}

bool mu_placed_server_is_alone(struct mu_placed_server *p)
{
    struct alone_call call = { .posted = { .begin = look_there }, .placed = p };

    assert(!p->closing);
    if (!p->apart)
        return mu_server_is_alone(p->server);
    mu_loop_thread_call(&p->thread, &call.posted);
    return call.is_alone;
}

void mu_placed_server_when_alone(struct mu_placed_server *p, void (*alone)(void *ctx), void *ctx)
{
    if (!p->apart) {
        mu_server_when_alone(p->server, alone, ctx);
        return;
    }
    p->alone = alone;
    p->alone_ctx = ctx;
    (void)post(p, &(struct order){ .posted = { .begin = when_alone_there } });
}

/* ---- Close ---- */

static void on_server_closed(struct mu_server *server, void *ctx)
{
    struct mu_placed_server *p = ctx;

    (void)server;
    if (p->closed != NULL)
        p->closed(p->closed_ctx);
    free(p);
}

void mu_placed_server_close(struct mu_placed_server *p, void (*closed)(void *ctx), void *ctx)
{
    assert(!p->closing);
    p->closing = true;
    p->closed = closed;
    p->closed_ctx = ctx;
    if (p->apart)
        mu_loop_thread_end(&p->thread, close_there, on_ended_there);
    else
        mu_server_close(p->server, on_server_closed, p);
}
