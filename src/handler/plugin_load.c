/* Loads back ends of other people from shared objects.
 *
 * Only root and this user may be able to write the directory and the file that a name in it leads to, for what is in
 * them runs with our rights. Then the object is opened, its one symbol looked up and checked, and its name registered.
 * An object that fails is an error that names the file; those before it in the order of names stay. */
#include "handler/plugin.h"

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

enum { FILES_MAX = 256 }; /* in one directory */

/* All that are loaded. They are never taken away, so one that was found may be used without the lock. */
static struct {
    pthread_mutex_t lock;
    struct mu_plugin *first;
} loaded = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* With the lock held. */
static struct mu_plugin *find_loaded(const char *name)
{
    struct mu_plugin *plugin = loaded.first;

    while (plugin != NULL && strcmp(plugin->backend->name, name) != 0)
        plugin = plugin->next;
    return plugin;
}

const struct mu_plugin *mu_plugin_find(const char *name, struct muster_error *reterr)
{
    const struct mu_plugin *plugin;

    (void)pthread_mutex_lock(&loaded.lock);
    plugin = find_loaded(name);
    (void)pthread_mutex_unlock(&loaded.lock);
    if (plugin == NULL)
        (void)mu_fail(reterr, MUSTER_EINVAL, "no shared object with the rendezvous back end '%s' is loaded", name);
    return plugin;
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

/* `type`: S_IFDIR or S_IFREG, which is `kind` in words. */
static int check_trusted(const char *path, mode_t type, const char *kind, struct muster_error *reterr)
{
    struct stat st;

    if (stat(path, &st) < 0)
        return mu_fail_errno(reterr, errno, "'%s'", path);
    if ((st.st_mode & S_IFMT) != type)
        return mu_fail(reterr, MUSTER_EINVAL, "'%s' is not a %s", path, kind);
    if (st.st_uid != 0 && st.st_uid != geteuid())
        return mu_fail(reterr, MUSTER_EINVAL, "'%s' belongs to user %u; expected root or user %u", path,
                       (unsigned)st.st_uid, (unsigned)geteuid());
    if ((st.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return mu_fail(reterr, MUSTER_EINVAL, "'%s' can be written by others (mode %04o); run chmod go-w on it", path,
                       (unsigned)(st.st_mode & 07777));
    return 0;
}

static int check_directory(const char *path, struct muster_error *reterr)
{
    return check_trusted(path, S_IFDIR, "directory", reterr);
}

/* `path` has no symbolic links in it. Who can write the directory can swap the file. */
static int check_file(const char *path, struct muster_error *reterr)
{
    char *copy = strdup(path);
    int rc;

    if (copy == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory");
    rc = check_directory(dirname(copy), reterr);
    free(copy);
    return rc < 0 ? rc : check_trusted(path, S_IFREG, "regular file", reterr);
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
        rc = mu_fail(reterr, MUSTER_EINVAL, "it has no symbol " MUSTER_BACKEND_SYMBOL);
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
