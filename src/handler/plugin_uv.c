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

#include <assert.h>
#include <stdlib.h>
#include <uv.h>

enum { SERVICES_MAX = 4096 }; /* timers and watches of one handler */

/* ---- Services. The back end holds them by a bare pointer. ---- */

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
    unsigned services_count;
    unsigned closing; /* handles that the loop has not closed yet */
    struct mu_plugin_asks asks;
    enum { CREATING, SERVING, FREEING, OVER } state; /* OVER: nothing of the back end is left */
    /* For what was told inside of a call. Closed last of all, so that `done` always comes from the loop. */
    struct mu_later later;
    void (*done)(void *ctx);
    void *done_ctx;
};

struct service {
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

static const char *name_of(const struct wrapper *w)
{
    return w->plugin->backend->name;
}

static void handle_closed(void *ctx)
{
    struct wrapper *w = ctx;
    void (*done)(void *ctx) = w->done;
    void *done_ctx = w->done_ctx;

    w->closing--;
    if (w->state != OVER || w->closing > 0)
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
    struct wrapper *w = service->wrapper;

    mu_list_remove(&service->link);
    w->services_count--;
    w->closing++;
    uv_close(&service->handle.any, on_service_closed);
}

static struct service *new_service(struct wrapper *w, void *arg)
{
    struct service *service = NULL;

    if (w->services_count < SERVICES_MAX)
        service = calloc(1, sizeof *service);
    if (service != NULL) {
        service->wrapper = w;
        service->arg = arg;
    }
    return service;
}

/* Its handle is the loop's from here on. */
static void hold_service(struct wrapper *w, struct service *service)
{
    service->handle.any.data = service;
    mu_list_push(&w->services, &service->link);
    w->services_count++;
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
    hold_service(w, service);
    uv_update_time(w->loop);
    (void)uv_timer_start(&service->handle.timer, on_timer, delay_ms < 0 ? 0 : (uint64_t)delay_ms, 0);
    return service;
}

/* A descriptor with an error is all it is watched for: the back end finds the error when it uses it. */
static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct service *service = poll->data;
    unsigned found = 0;

    if (status < 0 || (events & UV_READABLE) != 0)
        found |= MUSTER_FD_READABLE;
    if (status < 0 || (events & UV_WRITABLE) != 0)
        found |= MUSTER_FD_WRITABLE;
    service->ready(service->arg, found & service->events);
}

static void *host_fd_watch(void *ctx, int fd, unsigned events, void (*ready)(void *arg, unsigned events), void *arg)
{
    struct wrapper *w = ctx;
    int wanted =
        ((events & MUSTER_FD_READABLE) != 0 ? UV_READABLE : 0) | ((events & MUSTER_FD_WRITABLE) != 0 ? UV_WRITABLE : 0);
    struct service *service = wanted == 0 || fd < 0 ? NULL : new_service(w, arg);

    if (service == NULL)
        return NULL;
    service->ready = ready;
    service->events = events;
    if (uv_poll_init(w->loop, &service->handle.poll, fd) < 0) {
        free(service);
        return NULL;
    }
    hold_service(w, service);
    if (uv_poll_start(&service->handle.poll, wanted, on_poll) < 0) {
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
    struct wrapper *w = ctx;

    mu_log(level, "rendezvous back end '%s': %s", name_of(w), line);
}

static int host_fail(void *ctx, struct muster_error *reterr, int code, const char *text)
{
    (void)ctx;
    return mu_fail(reterr, code < 0 ? code : MUSTER_EINTERNAL, "%s", text);
}

static const struct muster_host host_template = {
    .size = sizeof host_template,
    .now_ms = host_now_ms,
    .timer_start = host_timer_start,
    .timer_stop = host_stop,
    .fd_watch = host_fd_watch,
    .fd_unwatch = host_stop,
    .log = host_log,
    .fail = host_fail,
    .params_endpoint = muster_rdzv_params_endpoint,
    .params_run_id = muster_rdzv_params_run_id,
    .params_local_addr = muster_rdzv_params_local_addr,
    .params_min_nodes = muster_rdzv_params_min_nodes,
    .params_max_nodes = muster_rdzv_params_max_nodes,
    .params_get = muster_rdzv_params_get,
    .params_get_as_bool = muster_rdzv_params_get_as_bool,
    .params_get_as_int = muster_rdzv_params_get_as_int,
};

/* ---- The end of a wrapper ---- */

static void close_services(struct wrapper *w)
{
    struct mu_list *link;

    if (!mu_list_empty(&w->services))
        mu_log(MUSTER_LOG_WARNING, "rendezvous back end '%s' did not give back %u timers and watches; they are closed",
               name_of(w), w->services_count);
    while ((link = mu_list_first(&w->services)) != NULL)
        close_service(MU_LIST_ITEM(link, struct service, link));
}

static void end(struct wrapper *w)
{
    w->state = OVER;
    close_services(w);
    w->closing++;
    mu_later_close(&w->later, handle_closed, w);
}

static void on_inner_freed(void *ctx)
{
    struct wrapper *w = ctx;

    if (w->state == OVER)
        mu_log(MUSTER_LOG_ERROR, "rendezvous back end '%s' said twice that its handler is freed", name_of(w));
    else
        end(w);
}

static void free_inner(struct wrapper *w)
{
    assert(w->state == CREATING || w->state == SERVING);
    w->state = FREEING;
    w->inner->ops->free(w->inner, on_inner_freed, w);
}

/* ---- Calls and events ---- */

static struct wrapper *wrapper_of(const struct muster_handler *handler)
{
    return (struct wrapper *)handler;
}

static void ask(struct muster_handler *handler, enum muster_rdzv_request request)
{
    struct wrapper *w = wrapper_of(handler);
    const struct muster_handler_ops *ops = w->inner->ops;
    void (*const calls[])(struct muster_handler *) = { [MUSTER_RDZV_REQUEST_JOIN] = ops->join,
                                                       [MUSTER_RDZV_REQUEST_LEAVE] = ops->leave,
                                                       [MUSTER_RDZV_REQUEST_CLOSE] = ops->close,
                                                       [MUSTER_RDZV_REQUEST_LOOK] = ops->look };

    mu_plugin_ask(&w->asks, request);
    calls[request](w->inner);
    mu_plugin_asked(&w->asks);
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
    free_inner(w);
}

/* One a turn. */
static void on_told_early(void *ctx)
{
    struct wrapper *w = ctx;
    struct muster_error error;
    struct muster_rdzv_event event;

    if (w->state != SERVING || !mu_plugin_answer_early(&w->asks, name_of(w), &error, &event))
        return;
    mu_later_turn(&w->later, on_told_early, w);
    w->listener(w->listener_ctx, &event);
}

static void on_event(void *ctx, const struct muster_rdzv_event *event)
{
    struct muster_rdzv_event whole;
    struct wrapper *w = ctx;

    if (w->state == FREEING || w->state == OVER)
        return;
    switch (mu_plugin_take_event(&w->asks, event, &whole)) {
    case MU_PLUGIN_WHOLE:
        w->listener(w->listener_ctx, &whole);
        break;
    case MU_PLUGIN_EARLY:
        mu_later_turn(&w->later, on_told_early, w);
        break;
    case MU_PLUGIN_SHORT:
        mu_log(MUSTER_LOG_ERROR, "rendezvous back end '%s' told an event of %u bytes; dropped", name_of(w),
               (unsigned)event->size);
        break;
    }
}

/* ---- Creation ---- */

/* Gives the wrapper back to the loop, with what the back end left in it. */
static void abandon(struct wrapper *w, struct muster_handler *inner)
{
    w->inner = inner;
    if (mu_plugin_can_be_freed(inner))
        free_inner(w);
    else
        end(w);
}

static int create(struct wrapper *w, const struct muster_rdzv_params *params, struct muster_error *reterr)
{
    struct muster_handler *inner = NULL;
    struct muster_error error = { 0 };
    int rc;

    mu_plugin_ask(&w->asks, MUSTER_RDZV_REQUEST_UNKNOWN);
    rc = w->plugin->backend->create(&w->host, params, on_event, w, &inner, &error);
    mu_plugin_asked(&w->asks);
    rc = mu_plugin_check_created(&w->asks, rc, name_of(w), &inner, &error);
    if (rc < 0) {
        rc = mu_fail(reterr, rc, "rendezvous back end '%s' of '%s': %s", name_of(w), w->plugin->file,
                     error.text[0] == '\0' ? muster_error_text(rc) : error.text);
        abandon(w, inner);
        return rc;
    }
    w->inner = inner;
    w->state = SERVING;
    return 0;
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
    mu_later_open(&w->later, loop, NULL);
    return w;
}

int mu_plugin_start(uv_loop_t *loop, const struct muster_rdzv_params *params, muster_rdzv_listener *listener, void *ctx,
                    struct muster_handler **ret_handler, struct muster_error *reterr)
{
    const char *name = muster_rdzv_params_backend(params);
    const struct mu_plugin *plugin = mu_plugin_find(name);
    struct wrapper *w;
    int rc;

    if (plugin == NULL)
        return mu_fail(reterr, MUSTER_EINVAL, "no shared object with the rendezvous back end '%s' is loaded", name);
    w = wrapper_new(loop, plugin, listener, ctx);
    if (w == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "rendezvous back end '%s': no memory", name);
    rc = create(w, params, reterr);
    if (rc == 0)
        *ret_handler = &w->base.base;
    return rc;
}

int mu_plugin_create(void *ctx, const struct muster_rdzv_params *params, struct muster_rdzv **ret_rdzv,
                     struct muster_error *reterr)
{
    const struct mu_plugin *plugin = ctx;

    if (strcmp(plugin->backend->name, muster_rdzv_params_backend(params)) != 0)
        return mu_fail(reterr, MUSTER_EINVAL, "'%s' has the rendezvous back end '%s', not '%s'", plugin->file,
                       plugin->backend->name, muster_rdzv_params_backend(params));
    return mu_rdzv_blocking_new(mu_plugin_start, params, ret_rdzv, reterr);
}
