/* Names of rendezvous back ends, and what creates their handlers. The default registry knows the back ends of this
 * library from the start: there is nothing to set up, and nothing to fail. */
#include "handler/plugin.h"
#include "handler/rdzv_trace.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    NAMES_MAX = 1024, /* in one registry */
    NAME_BYTES_MAX = 255,
    CREATOR_TEXT_MAX = 512,
    NAMES_TEXT_MAX = 512, /* of all names in an error */
};

struct binding {
    const char *name;
    muster_rdzv_creator *creator; /* NULL: a blocking handler is made around what `start` starts */
    void *ctx;
    mu_handler_start *start; /* NULL: the creator's blocking handler is driven */
};

struct muster_rdzv_registry {
    pthread_mutex_t lock;
    const struct binding *builtins;
    size_t builtins_count;
    struct binding *bindings; /* in the order they came; names are ours */
    size_t count;
};

static const struct binding library_builtins[] = {
    { .name = "etcd", .creator = muster_rdzv_etcd_create, .start = mu_etcd_start },
    { .name = "etcd-v2", .creator = mu_rdzv_etcd_v2_create, .start = mu_etcd_v2_start },
    { .name = "etcd-v3", .start = mu_etcd_v3_start },
    { .name = "c10d", .start = mu_c10d_start },
    { .name = "static", .creator = muster_rdzv_static_create, .start = mu_static_start },
};

static struct muster_rdzv_registry library_registry = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .builtins = library_builtins,
    .builtins_count = sizeof library_builtins / sizeof library_builtins[0],
};

struct muster_rdzv_registry *muster_rdzv_registry_default(void)
{
    return &library_registry;
}

int muster_rdzv_registry_new(struct muster_rdzv_registry **ret_registry, struct muster_error *reterr)
{
    struct muster_rdzv_registry *registry = calloc(1, sizeof *registry);

    if (registry == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "rendezvous registry: no memory");
    (void)pthread_mutex_init(&registry->lock, NULL);
    *ret_registry = registry;
    return 0;
}

void muster_rdzv_registry_free(struct muster_rdzv_registry *registry)
{
    if (registry == NULL)
        return;
    assert(registry != &library_registry);
    for (size_t i = 0; i < registry->count; i++)
        free((char *)registry->bindings[i].name);
    free(registry->bindings);
    (void)pthread_mutex_destroy(&registry->lock);
    free(registry);
}

/* ---- Names. With the lock held. ---- */

static const struct binding *find_in(const struct binding *bindings, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(bindings[i].name, name) == 0)
            return &bindings[i];
    }
    return NULL;
}

bool mu_handler_is_builtin(const char *backend)
{
    return find_in(library_builtins, library_registry.builtins_count, backend) != NULL;
}

static const struct binding *find(const struct muster_rdzv_registry *registry, const char *name)
{
    const struct binding *found = find_in(registry->builtins, registry->builtins_count, name);

    return found != NULL ? found : find_in(registry->bindings, registry->count, name);
}

static size_t list_names(const struct binding *bindings, size_t count, char *text, size_t used)
{
    for (size_t i = 0; i < count && used < NAMES_TEXT_MAX; i++)
        used += (size_t)snprintf(text + used, NAMES_TEXT_MAX - used, "%s%s", used == 0 ? "" : ", ", bindings[i].name);
    return used;
}

static int unknown(const struct muster_rdzv_registry *registry, const char *name, struct muster_error *reterr)
{
    char names[NAMES_TEXT_MAX] = "none";
    size_t used = list_names(registry->builtins, registry->builtins_count, names, 0);

    (void)list_names(registry->bindings, registry->count, names, used);
    return mu_fail(reterr, MUSTER_EINVAL,
                   "the rendezvous back end '%s' is not registered (known: %s); register it, or name the directory of "
                   "its shared object with --backend-dir",
                   name, names);
}

static const char *creator_text(const struct binding *binding, char text[static CREATOR_TEXT_MAX])
{
    if (find_in(library_builtins, library_registry.builtins_count, binding->name) == binding)
        return "the one of this library";
    if (binding->creator == mu_plugin_create)
        (void)snprintf(text, CREATOR_TEXT_MAX, "the one of '%s'", ((const struct mu_plugin *)binding->ctx)->file);
    else
        (void)snprintf(text, CREATOR_TEXT_MAX, "creator 0x%" PRIxPTR " with context %p", (uintptr_t)binding->creator,
                       binding->ctx);
    return text;
}

static int check_same(const struct binding *there, const struct binding *given, struct muster_error *reterr)
{
    char there_text[CREATOR_TEXT_MAX], given_text[CREATOR_TEXT_MAX];

    if (there->creator == given->creator && there->ctx == given->ctx)
        return 0;
    return mu_fail(reterr, MUSTER_EINVAL, "the rendezvous back end '%s' cannot be bound to %s: it is bound to %s",
                   given->name, creator_text(given, given_text), creator_text(there, there_text));
}

/* Copies the name. */
static int bind_new(struct muster_rdzv_registry *registry, struct binding binding, struct muster_error *reterr)
{
    struct binding *bindings;
    char *name;

    if (registry->count == NAMES_MAX)
        return mu_fail(reterr, MUSTER_ELIMIT, "the rendezvous back end '%s' cannot be registered: there are %d already",
                       binding.name, NAMES_MAX);
    name = strdup(binding.name);
    bindings = name == NULL ? NULL : realloc(registry->bindings, (registry->count + 1) * sizeof *bindings);
    if (bindings == NULL) {
        free(name);
        return mu_fail(reterr, MUSTER_ENOMEM, "rendezvous registry: no memory");
    }
    binding.name = name;
    registry->bindings = bindings;
    registry->bindings[registry->count++] = binding;
    return 0;
}

/* How event-driven handlers of the same kind are started, for creators whose handlers are made of those. */
static mu_handler_start *start_of(muster_rdzv_creator *creator)
{
    for (size_t i = 0; i < sizeof library_builtins / sizeof library_builtins[0]; i++) {
        if (library_builtins[i].creator == creator)
            return library_builtins[i].start;
    }
    return creator == mu_plugin_create ? mu_plugin_start : NULL;
}

int muster_rdzv_registry_register(struct muster_rdzv_registry *registry, const char *backend,
                                  muster_rdzv_creator *creator, void *ctx, struct muster_error *reterr)
{
    struct binding given = { .name = backend, .creator = creator, .ctx = ctx, .start = start_of(creator) };
    const struct binding *there;
    int rc;

    if (backend == NULL || backend[0] == '\0')
        return mu_fail(reterr, MUSTER_EINVAL, "the name of the rendezvous back end is empty");
    if (strlen(backend) > NAME_BYTES_MAX)
        return mu_fail(reterr, MUSTER_ELIMIT, "rendezvous back end '%.40s...': its name is longer than %d bytes",
                       backend, NAME_BYTES_MAX);
    if (creator == NULL)
        return mu_fail(reterr, MUSTER_EINVAL, "the rendezvous back end '%s' has no creator", backend);
    (void)pthread_mutex_lock(&registry->lock);
    there = find(registry, backend);
    rc = there != NULL ? check_same(there, &given, reterr) : bind_new(registry, given, reterr);
    (void)pthread_mutex_unlock(&registry->lock);
    return rc;
}

/* ---- Handlers ---- */

/* The creator runs without the lock: it may take its time, and use the registry. */
static int look_up(struct muster_rdzv_registry *registry, const char *name, struct binding *ret_binding,
                   struct muster_error *reterr)
{
    const struct binding *found;
    int rc = 0;

    (void)pthread_mutex_lock(&registry->lock);
    found = find(registry, name);
    if (found == NULL)
        rc = unknown(registry, name, reterr);
    else
        *ret_binding = *found;
    (void)pthread_mutex_unlock(&registry->lock);
    return rc;
}

/* Records what went wrong, also for callers without an error to fill in. */
static int failed(const struct muster_rdzv_params *params, int rc, struct muster_error *error,
                  struct muster_error *reterr)
{
    if (error->text[0] == '\0') /* a creator need not say why */
        (void)snprintf(error->text, sizeof error->text, "%s", muster_error_text(rc));
    error->code = rc;
    return mu_rdzv_trace_create_failed(muster_rdzv_params_run_id(params), muster_rdzv_params_local_addr(params), error,
                                       reterr);
}

static int create(const struct binding *binding, const struct muster_rdzv_params *params, struct muster_rdzv **ret_rdzv,
                  struct muster_error *reterr)
{
    const char *name = muster_rdzv_params_backend(params), *own;
    struct muster_rdzv *rdzv = NULL;
    int rc;

    rc = binding->creator != NULL ? binding->creator(binding->ctx, params, &rdzv, reterr)
                                  : mu_rdzv_blocking_new(binding->start, params, &rdzv, reterr);
    if (rc < 0)
        return rc;
    if (rc > 0 || rdzv == NULL)
        return mu_fail(reterr, MUSTER_EINTERNAL, "the creator of the rendezvous back end '%s' gave no handler", name);
    own = muster_rdzv_get_backend(rdzv);
    if (strcmp(own, name) == 0) {
        *ret_rdzv = rdzv;
        return 0;
    }
    rc = mu_fail(reterr, MUSTER_EINVAL, "the rendezvous handler's own name '%s' is not the back end asked for, '%s'",
                 own, name);
    muster_rdzv_free(rdzv);
    return rc;
}

int muster_rdzv_registry_create(struct muster_rdzv_registry *registry, const struct muster_rdzv_params *params,
                                struct muster_rdzv **ret_rdzv, struct muster_error *reterr)
{
    struct muster_error error = { 0 };
    struct binding binding = { .name = NULL };
    int rc = look_up(registry, muster_rdzv_params_backend(params), &binding, &error);

    if (rc == 0)
        rc = create(&binding, params, ret_rdzv, &error);
    return rc < 0 ? failed(params, rc, &error, reterr) : 0;
}

int mu_handler_start_by_name(struct muster_rdzv_registry *registry, struct uv_loop_s *loop,
                             const struct muster_rdzv_params *params, struct mu_driving *driving,
                             muster_rdzv_listener *listener, void *ctx, struct muster_handler **ret_handler,
                             struct muster_error *reterr)
{
    struct muster_error error = { 0 };
    struct binding binding = { .name = NULL };
    struct muster_rdzv *rdzv = NULL;
    int rc = look_up(registry, muster_rdzv_params_backend(params), &binding, &error);

    if (rc == 0 && binding.start != NULL) {
        rc = binding.start(loop, params, listener, ctx, ret_handler, &error);
    } else if (rc == 0) {
        rc = create(&binding, params, &rdzv, &error);
        if (rc == 0)
            rc = mu_handler_start_given(loop, rdzv, true, driving, muster_rdzv_params_local_addr(params), listener, ctx,
                                        ret_handler, &error);
    }
    return rc < 0 ? failed(params, rc, &error, reterr) : 0;
}
