/* Runs a back end of other people on a libuv loop (plugin_load.c loads it).
 *
 * Its handler is wrapped in one of ours. The wrapper gives it timers and descriptors on the loop, and passes calls on
 * to it and events back. When it is freed the back end goes first. What it then has not given back is closed for it,
 * with a warning. When the loop has closed the last of it the wrapper goes and the caller is told. A back end that
 * fails to create its handler is cleaned up after in the same way, by the caller's loop. */
#include "base/list.h"
#include "base/log.h"
#include "handler/plugin.h"
#include "handler/plugin_asks.h"
#include "kv/later_uv.h"

#include <stdlib.h>
#include <uv.h>

struct wrapper {
    struct mu_handler base;
    struct muster_handler_ops ops; /* a table each: the name in it is the back end's */
    struct muster_host host;       /* what the back end sees */
    uv_loop_t *loop;
    const struct mu_plugin *plugin;
    struct muster_handler *inner; /* NULL: not created yet */
    muster_rdzv_listener *listener;
    void *listener_ctx;
    struct mu_list services; /* that the back end holds */
    unsigned handles;        /* that the loop has not closed yet: `later`, and those of services */
    struct mu_plugin_machine machine;
    /* For what was told inside of a call. Closed last of all, so that `done` always comes from the loop. */
    struct mu_later later;
    void (*done)(void *ctx);
    void *done_ctx;
};

struct service { /* the back end holds it by a bare pointer */
    union {
        uv_handle_t any;
        uv_timer_t timer;
        uv_poll_t poll;
    } handle;
    struct mu_list link;
    struct wrapper *wrapper;
    void (*fire)(void *arg);                   /* of a timer */
    void (*ready)(void *arg, unsigned events); /* of a watch */
    unsigned events;
    void *arg;
};

static void feed(struct wrapper *w, struct mu_plugin_event event);

static void handle_closed(void *ctx)
{
    struct wrapper *w = ctx;
    void (*done)(void *ctx) = w->done;
    void *done_ctx = w->done_ctx;

    if (--w->handles > 0)
        return;
    free(w);
    if (done != NULL)
        done(done_ctx);
}

static void on_service_closed(uv_handle_t *handle)
{
    struct service *service = handle->data;
    struct wrapper *w = service->wrapper;

    free(service);
    handle_closed(w);
}

static void close_service(struct service *service)
{
    mu_list_remove(&service->link);
    mu_plugin_drop_service(&service->wrapper->machine);
    uv_close(&service->handle.any, on_service_closed);
}

static struct service *new_service(struct wrapper *w, void *arg)
{
    struct service *service = calloc(1, sizeof *service);

    if (service == NULL || !mu_plugin_hold_service(&w->machine)) {
        free(service);
        return NULL;
    }
    service->wrapper = w;
    service->arg = arg;
    return service;
}

/* Its handle is the loop's from here on. */
static void hold_handle(struct wrapper *w, struct service *service)
{
    service->handle.any.data = service;
    mu_list_push(&w->services, &service->link);
    w->handles++;
}

static int64_t host_now_ms(void *ctx)
{
    struct wrapper *w = ctx;

    uv_update_time(w->loop); /* a back end may have computed for long since the loop turned */
    return (int64_t)uv_now(w->loop);
}

static void on_timer(uv_timer_t *timer)
{
    struct service *service = timer->data;

    service->fire(service->arg);
}

static void *host_timer_start(void *ctx, int64_t delay_ms, void (*fire)(void *arg), void *arg)
{
    struct wrapper *w = ctx;
    struct service *service = new_service(w, arg);

    if (service == NULL)
        return NULL;
    service->fire = fire;
    (void)uv_timer_init(w->loop, &service->handle.timer);
    hold_handle(w, service);
    uv_update_time(w->loop);
    (void)uv_timer_start(&service->handle.timer, on_timer, mu_plugin_delay_ms(delay_ms), 0);
    return service;
}

_Static_assert((int)UV_READABLE == (int)MUSTER_FD_READABLE && (int)UV_WRITABLE == (int)MUSTER_FD_WRITABLE, "");

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct service *service = poll->data;

    service->ready(service->arg, mu_plugin_ready(status < 0, (unsigned)events, service->events));
}

static void *host_fd_watch(void *ctx, int fd, unsigned events, void (*ready)(void *arg, unsigned events), void *arg)
{
    struct wrapper *w = ctx;
    unsigned watched = mu_plugin_watched(fd, events);
    struct service *service = watched != 0 ? new_service(w, arg) : NULL;

    if (service == NULL)
        return NULL;
    service->ready = ready;
    service->events = watched;
    if (uv_poll_init(w->loop, &service->handle.poll, fd) < 0) {
        mu_plugin_drop_service(&w->machine);
        free(service);
        return NULL;
    }
    hold_handle(w, service);
    if (uv_poll_start(&service->handle.poll, (int)service->events, on_poll) < 0) {
        close_service(service);
        return NULL;
    }
    return service;
}

static void host_stop(void *ctx, void *service)
{
    (void)ctx;
    if (service != NULL)
        close_service(service);
}

static void host_log(void *ctx, enum muster_log_level level, const char *line)
{
    mu_log(level, "rendezvous back end '%s': %s", ((struct wrapper *)ctx)->machine.name, line);
}

static const struct muster_host host_template = {
    .size = sizeof host_template,
    .now_ms = host_now_ms,
    .timer_start = host_timer_start,
    .timer_stop = host_stop,
    .fd_watch = host_fd_watch,
    .fd_unwatch = host_stop,
    .log = host_log,
    .fail = mu_plugin_fail,
    .params_endpoint = muster_rdzv_params_endpoint,
    .params_run_id = muster_rdzv_params_run_id,
    .params_local_addr = muster_rdzv_params_local_addr,
    .params_min_nodes = muster_rdzv_params_min_nodes,
    .params_max_nodes = muster_rdzv_params_max_nodes,
    .params_get = muster_rdzv_params_get,
    .params_get_as_bool = muster_rdzv_params_get_as_bool,
    .params_get_as_int = muster_rdzv_params_get_as_int,
};

/* ---- The machine ---- */

static void on_turn(void *ctx)
{
    feed(ctx, (struct mu_plugin_event){ .type = MU_PLUGIN_ON_TURN });
}

static void on_inner_freed(void *ctx)
{
    feed(ctx, (struct mu_plugin_event){ .type = MU_PLUGIN_ON_FREED });
}

static void on_event(void *ctx, const struct muster_rdzv_event *event)
{
    feed(ctx, (struct mu_plugin_event){ .type = MU_PLUGIN_ON_TOLD, .told = event });
}

static void call(struct wrapper *w, enum muster_rdzv_request request)
{
    const struct muster_handler_ops *ops = w->inner->ops;
    void (*const calls[])(struct muster_handler *) = { [MUSTER_RDZV_REQUEST_JOIN] = ops->join,
                                                       [MUSTER_RDZV_REQUEST_LEAVE] = ops->leave,
                                                       [MUSTER_RDZV_REQUEST_CLOSE] = ops->close,
                                                       [MUSTER_RDZV_REQUEST_LOOK] = ops->look };

    calls[request](w->inner);
    feed(w, (struct mu_plugin_event){ .type = MU_PLUGIN_ON_RETURNED });
}

static void end(struct wrapper *w)
{
    struct mu_list *link;

    while ((link = mu_list_first(&w->services)) != NULL)
        close_service(MU_LIST_ITEM(link, struct service, link));
    mu_later_close(&w->later, handle_closed, w);
}

static void feed(struct wrapper *w, struct mu_plugin_event event)
{
    struct mu_plugin_effects effects;

    mu_plugin_step(&w->machine, &event, &effects);
    if (mu_plugin_wants_turn(&w->machine))
        mu_later_turn(&w->later, on_turn, w);
    for (unsigned i = 0; i < effects.count; i++) {
        switch (effects.items[i]) {
        case MU_PLUGIN_DO_CALL:
            call(w, effects.request);
            break;
        case MU_PLUGIN_DO_TELL:
            w->listener(w->listener_ctx, &effects.tell);
            break;
        case MU_PLUGIN_DO_SAY:
            mu_log(effects.level, "%s", effects.text);
            break;
        case MU_PLUGIN_DO_FREE:
            w->inner->ops->free(w->inner, on_inner_freed, w);
            break;
        case MU_PLUGIN_DO_END:
            end(w);
            break;
        }
    }
}

/* ---- The handler ---- */

static struct wrapper *wrapper_of(const struct muster_handler *handler)
{
    return (struct wrapper *)handler;
}

static void ask(struct muster_handler *handler, enum muster_rdzv_request request)
{
    feed(wrapper_of(handler), (struct mu_plugin_event){ .type = MU_PLUGIN_ON_ASKED, .request = request });
}

static bool plugin_use_agent_store(const struct muster_handler *handler)
{
    const struct muster_handler *inner = wrapper_of(handler)->inner;

    return inner->ops->use_agent_store != NULL && inner->ops->use_agent_store(inner);
}

static void plugin_free(struct muster_handler *handler, void (*done)(void *ctx), void *ctx)
{
    struct wrapper *w = wrapper_of(handler);

    w->done = done;
    w->done_ctx = ctx;
    feed(w, (struct mu_plugin_event){ .type = MU_PLUGIN_ON_FREE });
}

/* One that is refused is the loop's, with what the back end left in it. */
static int create(struct wrapper *w, const struct muster_rdzv_params *params, struct muster_error *reterr)
{
    struct muster_error error = { 0 };
    int rc = w->plugin->backend->create(&w->host, params, on_event, w, &w->inner, &error);

    rc = mu_plugin_check_created(&w->machine, rc, &error, w->plugin->file, &w->inner, reterr);
    feed(w, (struct mu_plugin_event){ .type = MU_PLUGIN_ON_CREATED, .rc = rc, .handler = w->inner });
    return rc;
}

static const struct mu_handler_ops agent_ops = { .open_kv = NULL };

static struct wrapper *wrapper_new(uv_loop_t *loop, const struct mu_plugin *plugin, muster_rdzv_listener *listener,
                                   void *ctx)
{
    struct wrapper *w = calloc(1, sizeof *w);

    if (w == NULL)
        return NULL;
    w->ops = (struct muster_handler_ops){ MU_HANDLER_OPS(plugin->backend->name),
                                          .use_agent_store = plugin_use_agent_store, .free = plugin_free };
    w->base = (struct mu_handler){ .base = { &w->ops }, .ops = &agent_ops, .ask = ask };
    w->host = host_template;
    w->host.ctx = w;
    w->loop = loop;
    w->plugin = plugin;
    w->listener = listener;
    w->listener_ctx = ctx;
    mu_list_init(&w->services);
    mu_plugin_init(&w->machine, plugin->backend->name);
    mu_later_open(&w->later, loop, NULL);
    w->handles = 1;
    return w;
}

int mu_plugin_start(uv_loop_t *loop, const struct muster_rdzv_params *params, muster_rdzv_listener *listener, void *ctx,
                    struct muster_handler **ret_handler, struct muster_error *reterr)
{
    const struct mu_plugin *plugin = mu_plugin_find(muster_rdzv_params_backend(params), reterr);
    struct wrapper *w;
    int rc;

    if (plugin == NULL)
        return MUSTER_EINVAL;
    w = wrapper_new(loop, plugin, listener, ctx);
    if (w == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "rendezvous back end '%s': no memory", plugin->backend->name);
    rc = create(w, params, reterr);
    if (rc == 0)
        *ret_handler = &w->base.base;
    return rc;
}
