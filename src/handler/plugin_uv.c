/* Back ends of other people: loaded from shared objects, and run on a libuv loop.
 *
 * Loading: the directory, and the file that a name in it leads to, must be writable by nobody but root and us, for what is
 * in them runs with our rights; then the object is opened, its one symbol looked up and checked, and its name registered.
 * One that fails is an error that names the file; those before it in the order of names stay.
 *
 * Running: a handler of a back end is wrapped in one of ours. The wrapper gives it timers and descriptors on the loop, and
 * passes calls on to it and events back. When it is freed the back end goes first; what it then has not given back is
 * closed for it, with a warning; when the loop has closed the last of it the wrapper goes and the caller is told. A
 * back end that fails to create its handler is cleaned up after in the same way, by the caller's loop. */
#include "base/list.h"
#include "base/log.h"
#include "handler/plugin.h"
#include "kv/later_uv.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fnmatch.h>
#include <libgen.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

/* A handler's table up to what every handler has; what came later may be missing. */
#define OPS_BYTES_MIN offsetof(struct muster_handler_ops, endpoint)

enum {
    FILES_MAX = 256,     /* in one directory */
    SERVICES_MAX = 4096, /* timers and watches of one handler */
};

struct mu_plugin {
    struct mu_plugin *next;
    const struct muster_backend_1 *backend;
    char *file;
};

/* All that are loaded. They are never taken away, so that whoever found one may use it without the lock. */
static struct {
    pthread_mutex_t lock;
    struct mu_plugin *first;
} loaded = { .lock = PTHREAD_MUTEX_INITIALIZER };

const char *mu_plugin_file(const struct mu_plugin *plugin)
{
    return plugin->file;
}

/* With the lock held. */
static struct mu_plugin *find_loaded(const char *name)
{
    struct mu_plugin *plugin = loaded.first;

    while (plugin != NULL && strcmp(plugin->backend->name, name) != 0)
        plugin = plugin->next;
    return plugin;
}

/* ---- Loading ---- */

static int check_trusted(const char *path, const struct stat *st, struct muster_error *reterr)
{
    if (st->st_uid != 0 && st->st_uid != geteuid())
        return mu_fail(reterr, MUSTER_EINVAL, "'%s' belongs to user %u; expected root or user %u", path,
                       (unsigned)st->st_uid, (unsigned)geteuid());
    if ((st->st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return mu_fail(reterr, MUSTER_EINVAL,
                       "'%s' is writable by others than its owner (mode %04o); expected no such right: chmod go-w",
                       path, (unsigned)(st->st_mode & 07777));
    return 0;
}

static int check_directory(const char *path, struct muster_error *reterr)
{
    struct stat st;

    if (stat(path, &st) < 0)
        return mu_fail_errno(reterr, errno, "'%s'", path);
    if (!S_ISDIR(st.st_mode))
        return mu_fail(reterr, MUSTER_EINVAL, "'%s' is not a directory", path);
    return check_trusted(path, &st, reterr);
}

/* `path` has no symbolic links in it. Whoever may write the directory it lies in may swap the file. */
static int check_file(const char *path, struct muster_error *reterr)
{
    char *copy = strdup(path);
    struct stat st;
    int rc;

    if (copy == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory");
    rc = check_directory(dirname(copy), reterr);
    free(copy);
    if (rc < 0)
        return rc;
    if (stat(path, &st) < 0)
        return mu_fail_errno(reterr, errno, "'%s'", path);
    if (!S_ISREG(st.st_mode))
        return mu_fail(reterr, MUSTER_EINVAL, "'%s' is not a regular file", path);
    return check_trusted(path, &st, reterr);
}

static int check_backend(const struct muster_backend_1 *backend, struct muster_error *reterr)
{
    const uint32_t size_min = offsetof(struct muster_backend_1, create) + sizeof backend->create;

    if (backend->abi != MUSTER_BACKEND_ABI)
        return mu_fail(reterr, MUSTER_EINVAL, "its abi is %u; expected %u", (unsigned)backend->abi,
                       (unsigned)MUSTER_BACKEND_ABI);
    if (backend->size < size_min)
        return mu_fail(reterr, MUSTER_EINVAL, "its size is %u bytes; expected at least %u", (unsigned)backend->size,
                       (unsigned)size_min);
    if (backend->name == NULL || backend->name[0] == '\0')
        return mu_fail(reterr, MUSTER_EINVAL, "it has no name; expected that of a back end");
    if (backend->create == NULL)
        return mu_fail(reterr, MUSTER_EINVAL, "it has no create function");
    return 0;
}

/* With the lock held. An object that was loaded before is found again, so that registering it again changes nothing. */
static int enter(const struct muster_backend_1 *backend, const char *file, struct muster_rdzv_registry *registry,
                 struct muster_error *reterr)
{
    struct mu_plugin *plugin = find_loaded(backend->name);
    int rc;

    if (plugin != NULL && plugin->backend != backend)
        return mu_fail(reterr, MUSTER_EINVAL, "the back end '%s' is in this process already, from '%s'", backend->name,
                       plugin->file);
    if (plugin != NULL)
        return muster_rdzv_registry_register(registry, backend->name, mu_plugin_create, plugin, reterr);
    plugin = calloc(1, sizeof *plugin);
    if (plugin != NULL)
        plugin->file = strdup(file);
    if (plugin == NULL || plugin->file == NULL) {
        free(plugin);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory");
    }
    plugin->backend = backend;
    rc = muster_rdzv_registry_register(registry, backend->name, mu_plugin_create, plugin, reterr);
    if (rc < 0) {
        free(plugin->file);
        free(plugin);
        return rc;
    }
    plugin->next = loaded.first;
    loaded.first = plugin;
    return 0;
}

/* dlopen() knows an object again by its path, so it is given the real one, not a descriptor's. */
static int load_object(const char *path, struct muster_rdzv_registry *registry, struct muster_error *reterr)
{
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct muster_backend_1 *backend;
    int rc;

    if (object == NULL)
        return mu_fail(reterr, MUSTER_EINVAL, "it does not load: %s", dlerror());
    backend = dlsym(object, MUSTER_BACKEND_SYMBOL);
    if (backend == NULL)
        rc =
            mu_fail(reterr, MUSTER_EINVAL, "it does not have the symbol " MUSTER_BACKEND_SYMBOL " that a back end has");
    else
        rc = check_backend(backend, reterr);
    if (rc == 0) {
        (void)pthread_mutex_lock(&loaded.lock);
        rc = enter(backend, path, registry, reterr);
        (void)pthread_mutex_unlock(&loaded.lock);
    }
    if (rc < 0)
        (void)dlclose(object);
    return rc;
}

static int load_file(const char *directory, const char *name, struct muster_rdzv_registry *registry,
                     struct muster_error *reterr)
{
    char *path = NULL, *real;
    int rc;

    if (asprintf(&path, "%s/%s", directory, name) < 0)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory");
    real = realpath(path, NULL);
    if (real == NULL)
        rc = mu_fail_errno(reterr, errno, "it cannot be found");
    else
        rc = check_file(real, reterr);
    if (rc == 0)
        rc = load_object(real, registry, reterr);
    if (rc < 0)
        rc = mu_wrap(reterr, rc, "load the rendezvous back end '%s'", path);
    free(real);
    free(path);
    return rc;
}

static int is_object(const struct dirent *entry)
{
    return fnmatch("*.so", entry->d_name, FNM_PERIOD) == 0;
}

static int by_name(const struct dirent **a, const struct dirent **b) /* in every locale the same */
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

int muster_rdzv_registry_load(struct muster_rdzv_registry *registry, const char *directory, struct muster_error *reterr)
{
    struct dirent **entries = NULL;
    int count, rc = check_directory(directory, reterr);

    if (rc < 0)
        return mu_wrap(reterr, rc, "load rendezvous back ends");
    count = scandir(directory, &entries, is_object, by_name);
    if (count < 0)
        return mu_fail_errno(reterr, errno, "load rendezvous back ends: '%s'", directory);
    if (count > FILES_MAX)
        rc = mu_fail(reterr, MUSTER_ELIMIT, "load rendezvous back ends: '%s' has %d of them, more than %d", directory,
                     count, FILES_MAX);
    for (int i = 0; i < count && rc == 0; i++)
        rc = load_file(directory, entries[i]->d_name, registry, reterr);
    for (int i = 0; i < count; i++)
        free(entries[i]);
    free(entries);
    return rc;
}

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
    /* What was asked for and not answered yet, oldest first: for back ends that do not say what has failed. */
    enum muster_rdzv_request asked[MUSTER_RDZV_REQUEST_MEMBERSHIP];
    unsigned asked_count;
    bool calling;    /* inside of a call to the back end, which must not tell anything */
    bool told_early; /* it did, and this: */
    enum muster_rdzv_event_type early;
    enum muster_rdzv_request early_request; /* in the call that asked for this */
    bool freeing, over;                     /* asked to go; nothing of the back end is left */
    /* Says what was told too early. While there is an inner handler; closed last of all, so that `done` always comes from
     * the loop. */
    struct mu_later last;
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

static void end_if_over(struct wrapper *w)
{
    void (*done)(void *ctx) = w->done;
    void *done_ctx = w->done_ctx;

    if (!w->over || w->closing > 0)
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
    w->closing--;
    end_if_over(w);
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

static void host_timer_stop(void *ctx, void *timer)
{
    (void)ctx;
    if (timer != NULL)
        close_service(timer);
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

static void host_fd_unwatch(void *ctx, void *watch)
{
    (void)ctx;
    if (watch != NULL)
        close_service(watch);
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
    .timer_stop = host_timer_stop,
    .fd_watch = host_fd_watch,
    .fd_unwatch = host_fd_unwatch,
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

static void on_last_closed(void *ctx)
{
    struct wrapper *w = ctx;

    w->closing--;
    end_if_over(w);
}

static void on_inner_freed(void *ctx)
{
    struct wrapper *w = ctx;

    if (w->over) {
        mu_log(MUSTER_LOG_ERROR, "rendezvous back end '%s' said twice that its handler is freed", name_of(w));
        return;
    }
    w->over = true;
    close_services(w);
    w->closing++;
    mu_later_close(&w->last, on_last_closed, w);
}

static void free_inner(struct wrapper *w)
{
    w->freeing = true;
    w->inner->ops->free(w->inner, on_inner_freed, w);
}

/* ---- Calls and events ---- */

static struct wrapper *wrapper_of(const struct muster_handler *handler)
{
    return (struct wrapper *)handler;
}

static void forget_ask(struct wrapper *w, enum muster_rdzv_request request)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < w->asked_count; i++) {
        if (w->asked[i] != request)
            w->asked[kept++] = w->asked[i];
    }
    w->asked_count = kept;
}

/* The oldest ask that FAILED may be the answer of. Without one it is the membership that has failed. */
static enum muster_rdzv_request oldest_ask(const struct wrapper *w)
{
    for (unsigned i = 0; i < w->asked_count; i++) {
        if (w->asked[i] != MUSTER_RDZV_REQUEST_LOOK) /* LOOKED is its answer, with an error or without */
            return w->asked[i];
    }
    return MUSTER_RDZV_REQUEST_MEMBERSHIP;
}

static void forget_answered(struct wrapper *w, const struct muster_rdzv_event *event)
{
    switch (event->type) {
    case MUSTER_RDZV_JOINED:
        forget_ask(w, MUSTER_RDZV_REQUEST_JOIN);
        break;
    case MUSTER_RDZV_LEFT:
        forget_ask(w, MUSTER_RDZV_REQUEST_LEAVE);
        break;
    case MUSTER_RDZV_CLOSED:
        forget_ask(w, MUSTER_RDZV_REQUEST_CLOSE);
        break;
    case MUSTER_RDZV_LOOKED:
        forget_ask(w, MUSTER_RDZV_REQUEST_LOOK);
        break;
    case MUSTER_RDZV_FAILED:
        forget_ask(w, event->request);
        break;
    case MUSTER_RDZV_WAITING:
    case MUSTER_RDZV_PEERS_LOST:
    case MUSTER_RDZV_REMOVED:
    case MUSTER_RDZV_BACKEND_DOWN:
    case MUSTER_RDZV_BACKEND_UP:
    case MUSTER_RDZV_PROGRESS:
        break;
    }
}

static void ask(struct muster_handler *handler, enum muster_rdzv_request request,
                void (*what)(struct muster_handler *handler))
{
    struct wrapper *w = wrapper_of(handler);

    if (request == MUSTER_RDZV_REQUEST_LEAVE) /* nobody waits for the join any more */
        forget_ask(w, MUSTER_RDZV_REQUEST_JOIN);
    forget_ask(w, request);
    w->asked[w->asked_count++] = request;
    w->calling = true;
    what(w->inner);
    w->calling = false;
}

static void plugin_join(struct muster_handler *handler)
{
    ask(handler, MUSTER_RDZV_REQUEST_JOIN, wrapper_of(handler)->inner->ops->join);
}

static void plugin_leave(struct muster_handler *handler)
{
    ask(handler, MUSTER_RDZV_REQUEST_LEAVE, wrapper_of(handler)->inner->ops->leave);
}

static void plugin_close(struct muster_handler *handler)
{
    ask(handler, MUSTER_RDZV_REQUEST_CLOSE, wrapper_of(handler)->inner->ops->close);
}

static void plugin_look(struct muster_handler *handler)
{
    ask(handler, MUSTER_RDZV_REQUEST_LOOK, wrapper_of(handler)->inner->ops->look);
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

/* Nobody shall wait for what was told at the wrong time: it becomes an error, at the right one. */
static void on_told_early(void *ctx)
{
    struct wrapper *w = ctx;
    struct muster_error error;
    struct muster_rdzv_event event = { .size = sizeof event, .round = -1, .error = &error };

    if (w->freeing)
        return;
    event.type = w->early_request == MUSTER_RDZV_REQUEST_LOOK ? MUSTER_RDZV_LOOKED : MUSTER_RDZV_FAILED;
    event.request = w->early_request;
    forget_ask(w, w->early_request);
    (void)mu_fail(
        &error, MUSTER_EINTERNAL,
        "the rendezvous back end '%s' told '%s' inside of a call; expected that it tells later, from the loop",
        name_of(w), muster_rdzv_event_name(w->early));
    w->listener(w->listener_ctx, &event);
}

static void on_event(void *ctx, const struct muster_rdzv_event *event)
{
    struct muster_rdzv_event whole = { 0 };
    struct wrapper *w = ctx;

    if (w->freeing)
        return;
    if (w->calling) {
        w->told_early = true;
        w->early = event->type;
        w->early_request = w->asked_count > 0 ? w->asked[w->asked_count - 1] : MUSTER_RDZV_REQUEST_UNKNOWN;
        if (w->inner != NULL)
            mu_later_turn(&w->last, on_told_early, w);
        return;
    }
    if (event->size < offsetof(struct muster_rdzv_event, info)) {
        mu_log(MUSTER_LOG_ERROR, "rendezvous back end '%s' told an event of %u bytes; dropped", name_of(w),
               (unsigned)event->size);
        return;
    }
    memcpy(&whole, event, event->size < sizeof whole ? event->size : sizeof whole); /* it may be an older one */
    /* Older events end before `note`, with padding in the place of `request`. A value that we do not know is no better. */
    if (event->size <= offsetof(struct muster_rdzv_event, note) ||
        (unsigned)whole.request > MUSTER_RDZV_REQUEST_MEMBERSHIP)
        whole.request = MUSTER_RDZV_REQUEST_UNKNOWN;
    whole.size = sizeof whole;
    if (whole.type == MUSTER_RDZV_FAILED && whole.request == MUSTER_RDZV_REQUEST_UNKNOWN)
        whole.request = oldest_ask(w);
    forget_answered(w, &whole);
    w->listener(w->listener_ctx, &whole);
}

/* ---- Creation ---- */

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

static bool can_be_freed(const struct muster_handler *handler)
{
    return handler != NULL && handler->ops != NULL && handler->ops->size >= OPS_BYTES_MIN && handler->ops->free != NULL;
}

static void adopt(struct wrapper *w, struct muster_handler *inner)
{
    w->inner = inner;
    mu_later_open(&w->last, w->loop, NULL);
}

/* Gives the wrapper back to the loop, with whatever the back end left in it. */
static void abandon(struct wrapper *w, struct muster_handler *inner)
{
    if (can_be_freed(inner)) {
        adopt(w, inner);
        free_inner(w);
        return;
    }
    w->over = true;
    close_services(w);
    end_if_over(w);
}

static int call_create(struct wrapper *w, const struct muster_rdzv_params *params, struct muster_handler **ret_inner,
                       struct muster_error *reterr)
{
    int rc;

    w->calling = true;
    rc = w->plugin->backend->create(&w->host, params, on_event, w, ret_inner, reterr);
    w->calling = false;
    if (rc < 0) {
        *ret_inner = NULL;
        return rc;
    }
    if (rc > 0)
        return mu_fail(reterr, MUSTER_EINTERNAL, "its create function returned %d; expected 0 or an error", rc);
    if (w->told_early)
        return mu_fail(reterr, MUSTER_EINTERNAL, "it told '%s' before its handler was created",
                       muster_rdzv_event_name(w->early));
    return check_handler(*ret_inner, name_of(w), reterr);
}

static int create(struct wrapper *w, const struct muster_rdzv_params *params, struct muster_error *reterr)
{
    struct muster_handler *inner = NULL;
    struct muster_error error = { 0 };
    int rc = call_create(w, params, &inner, &error);

    if (rc < 0) {
        rc = mu_fail(reterr, rc, "rendezvous back end '%s' of '%s': %s", name_of(w), w->plugin->file,
                     error.text[0] == '\0' ? muster_error_text(rc) : error.text);
        abandon(w, inner);
        return rc;
    }
    adopt(w, inner);
    return 0;
}

static const struct mu_handler_ops agent_ops = { .open_kv = NULL };

static struct wrapper *wrapper_new(uv_loop_t *loop, const struct mu_plugin *plugin, muster_rdzv_listener *listener,
                                   void *ctx)
{
    struct wrapper *w = calloc(1, sizeof *w);

    if (w == NULL)
        return NULL;
    w->ops = (struct muster_handler_ops){ .size = sizeof w->ops,
                                          .name = plugin->backend->name,
                                          .join = plugin_join,
                                          .leave = plugin_leave,
                                          .close = plugin_close,
                                          .look = plugin_look,
                                          .use_agent_store = plugin_use_agent_store,
                                          .free = plugin_free };
    w->base = (struct mu_handler){ { &w->ops }, &agent_ops };
    w->host = host_template;
    w->host.ctx = w;
    w->loop = loop;
    w->plugin = plugin;
    w->listener = listener;
    w->listener_ctx = ctx;
    mu_list_init(&w->services);
    return w;
}

int mu_plugin_start(uv_loop_t *loop, const struct muster_rdzv_params *params, muster_rdzv_listener *listener, void *ctx,
                    struct muster_handler **ret_handler, struct muster_error *reterr)
{
    const char *name = muster_rdzv_params_backend(params);
    struct mu_plugin *plugin;
    struct wrapper *w;
    int rc;

    (void)pthread_mutex_lock(&loaded.lock);
    plugin = find_loaded(name);
    (void)pthread_mutex_unlock(&loaded.lock);
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
