/* Worker specs: checked field by field, copied whole; environments made of them. */
#include "agent/spec.h"

#include "agent/report.h"
#include "base/error.h"
#include "handler/handler.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- Checks ---- */

/* A shorter struct of an older program has zeros where it ends. */
static int read_whole(const struct muster_worker_spec *spec, struct muster_worker_spec *ret_whole,
                      struct muster_error *reterr)
{
    *ret_whole = (struct muster_worker_spec){ 0 };
    if (spec->size == 0)
        return mu_fail(reterr, MUSTER_EINVAL, "worker spec: size is not set");
    memcpy(ret_whole, spec, spec->size < sizeof *ret_whole ? spec->size : sizeof *ret_whole);
    ret_whole->size = sizeof *ret_whole;
    return 0;
}

static bool has_command(const struct muster_worker_spec *spec)
{
    return spec->argv != NULL && spec->argv[0] != NULL && spec->argv[0][0] != '\0';
}

static int check_entry_point(const struct muster_worker_spec *spec, struct muster_error *reterr)
{
    const struct muster_worker_driver_ops *ops = spec->driver != NULL ? spec->driver->ops : NULL;

    if (!has_command(spec) && spec->argv != NULL)
        return mu_fail(reterr, MUSTER_EINVAL, "worker spec: argv has no program in it");
    if (spec->argv != NULL && spec->function != NULL)
        return mu_fail(reterr, MUSTER_EINVAL,
                       "worker spec: argv and function are both set; an entry point is one of them");
    if (spec->argv == NULL && spec->function == NULL && spec->driver == NULL)
        return mu_fail(reterr, MUSTER_EINVAL, "worker spec: no entry point: neither argv nor function is set");
    if (spec->function != NULL && (spec->function_name == NULL || spec->function_name[0] == '\0'))
        return mu_fail(reterr, MUSTER_EINVAL, "worker spec: function_name must not be empty");
    if (spec->driver == NULL)
        return 0;
    if (ops == NULL || ops->size <= offsetof(struct muster_worker_driver_ops, stop) || ops->name == NULL ||
        ops->start == NULL || ops->stop == NULL)
        return mu_fail(reterr, MUSTER_EINVAL, "worker spec: driver needs a size, a name, start and stop");
    if (spec->log_dir != NULL)
        return mu_fail(reterr, MUSTER_EINVAL, "worker spec: log_dir is for processes; the driver '%s' has its own",
                       ops->name);
    return 0;
}

static int check_output(const struct muster_worker_spec *spec, struct mu_redirects *ret_redirects,
                        struct mu_redirects *ret_tee, struct muster_error *reterr)
{
    int rc = 0;

    *ret_redirects = *ret_tee = (struct mu_redirects){ 0 };
    if (spec->log_dir == NULL && (spec->redirects != NULL || spec->tee != NULL))
        return mu_fail(reterr, MUSTER_EINVAL, "worker spec: %s needs log_dir",
                       spec->redirects != NULL ? "redirects" : "tee");
    if (spec->log_dir != NULL && spec->log_dir[0] == '\0')
        return mu_fail(reterr, MUSTER_EINVAL, "worker spec: log_dir must not be empty");
    if (spec->redirects != NULL)
        rc = mu_redirects_parse("redirects", spec->redirects, ret_redirects, reterr);
    if (rc == 0 && spec->tee != NULL)
        rc = mu_redirects_parse("tee", spec->tee, ret_tee, reterr);
    return rc < 0 ? mu_wrap(reterr, rc, "worker spec") : 0;
}

static int check_master(const struct muster_worker_spec *spec, struct mu_boot_master *ret_master,
                        struct muster_error *reterr)
{
    int rc = 0;

    *ret_master = (struct mu_boot_master){ .port = spec->master_port };
    if (spec->master_addr != NULL)
        rc = mu_boot_master_set_addr(ret_master, spec->master_addr, reterr);
    return rc < 0 ? mu_wrap(reterr, rc, "worker spec") : 0;
}

static int check_rendezvous(const struct muster_worker_spec *spec, struct muster_error *reterr)
{
    const struct muster_rdzv *handler = spec->rdzv_handler;

    if (spec->rdzv == NULL && handler == NULL)
        return mu_fail(reterr, MUSTER_EINVAL, "worker spec: neither rdzv nor rdzv_handler is set");
    if (spec->rdzv != NULL && handler != NULL)
        return mu_fail(reterr, MUSTER_EINVAL,
                       "worker spec: rdzv and rdzv_handler are both set; a rendezvous is one of them");
    if (handler != NULL && (handler->ops == NULL || muster_rdzv_get_backend(handler)[0] == '\0'))
        return mu_fail(reterr, MUSTER_EINVAL, "worker spec: rdzv_handler needs a get_backend() that returns its name");
    return 0;
}

static int check_not_negative(const char *name, int64_t value, struct muster_error *reterr)
{
    return value >= 0
               ? 0
               : mu_fail(reterr, MUSTER_EINVAL, "worker spec: %s must not be below 0, but is %" PRId64, name, value);
}

static int check(const struct muster_worker_spec *spec, struct mu_spec *ret_parsed, struct muster_error *reterr)
{
    int rc;

    if (spec->role == NULL || spec->role[0] == '\0')
        return mu_fail(reterr, MUSTER_EINVAL, "worker spec: role must not be empty");
    if (spec->local_world_size <= 0)
        return mu_fail(reterr, MUSTER_EINVAL, "worker spec: local_world_size must be above 0, not %" PRId64,
                       spec->local_world_size);
    if (spec->local_world_size > MU_SPEC_WORKERS_MAX)
        return mu_fail(reterr, MUSTER_ELIMIT, "worker spec: local_world_size is %" PRId64 "; at most %d can be run",
                       spec->local_world_size, MU_SPEC_WORKERS_MAX);
    if (spec->monitor_interval_ms <= 0)
        return mu_fail(reterr, MUSTER_EINVAL, "worker spec: monitor_interval_ms must be above 0, not %" PRId64,
                       spec->monitor_interval_ms);
    rc = check_not_negative("max_restarts", spec->max_restarts, reterr);
    if (rc == 0)
        rc = check_rendezvous(spec, reterr);
    if (rc == 0)
        rc = check_entry_point(spec, reterr);
    if (rc == 0)
        rc = check_output(spec, &ret_parsed->redirects, &ret_parsed->tee, reterr);
    if (rc == 0)
        rc = check_master(spec, &ret_parsed->master, reterr);
    if (rc < 0)
        return rc;
    mu_signals_parse(&ret_parsed->signals, spec->signals != NULL ? spec->signals : "");
    if (ret_parsed->signals.skipped[0] != '\0')
        return mu_fail(reterr, MUSTER_EINVAL, "worker spec: signals: unknown, or cannot be handled: %s",
                       ret_parsed->signals.skipped);
    rc = check_not_negative("shutdown_timeout_ms", spec->shutdown_timeout_ms, reterr);
    if (rc == 0)
        rc = check_not_negative("uninterruptible_timeout_ms", spec->uninterruptible_timeout_ms, reterr);
    return rc < 0 ? rc : check_not_negative("exit_barrier_timeout_ms", spec->exit_barrier_timeout_ms, reterr);
}

int muster_worker_spec_check(const struct muster_worker_spec *spec, struct muster_error *reterr)
{
    struct muster_worker_spec whole;
    struct mu_spec *parsed = calloc(1, sizeof *parsed);
    int rc = parsed == NULL ? mu_fail(reterr, MUSTER_ENOMEM, "worker spec: out of memory")
                            : read_whole(spec, &whole, reterr);

    if (rc == 0)
        rc = check(&whole, parsed, reterr);
    free(parsed);
    return rc;
}

const char *muster_worker_spec_entry_point(const struct muster_worker_spec *spec)
{
    if (spec->function != NULL)
        return spec->function_name != NULL ? spec->function_name : "";
    if (has_command(spec))
        return mu_report_entry_point(spec->argv[0]);
    return spec->driver != NULL ? spec->driver->ops->name : "";
}

/* ---- The copy ---- */

static const char *const *copy_list(struct mu_arena *arena, const char *const *list, bool *is_full)
{
    const char **copy;
    size_t count = 0;

    if (list == NULL)
        return NULL;
    while (list[count] != NULL)
        count++;
    copy = mu_arena_alloc(arena, (count + 1) * sizeof *copy);
    if (copy == NULL) {
        *is_full = true;
        return NULL;
    }
    for (size_t i = 0; i < count; i++)
        copy[i] = mu_arena_text(arena, list[i], is_full);
    copy[count] = NULL;
    return copy;
}

/* The back ends of this library open the workers' store where the master is to be. */
static int tell_handler(const struct mu_boot_master *master, struct muster_rdzv_params *params,
                        struct muster_error *reterr)
{
    const char *backend = muster_rdzv_params_backend(params);
    int rc = 0;

    if (master->addr[0] != '\0' && mu_rdzv_knows_option(backend, "master_addr"))
        rc = muster_rdzv_params_set_text(params, "master_addr", master->addr, reterr);
    if (rc == 0 && master->port != 0 && mu_rdzv_knows_option(backend, "master_port"))
        rc = muster_rdzv_params_set_int(params, "master_port", master->port, reterr);
    return rc;
}

/* Of a handler: what is known of it. */
static int copy_params(const struct muster_worker_spec *spec, struct muster_rdzv_params **ret_params,
                       struct muster_error *reterr)
{
    const struct muster_rdzv *handler = spec->rdzv_handler;

    if (handler == NULL)
        return muster_rdzv_params_copy(spec->rdzv, ret_params, reterr);
    return muster_rdzv_params_new(muster_rdzv_get_backend(handler), "", muster_rdzv_get_run_id(handler), 1, 1, NULL,
                                  ret_params, reterr);
}

static int copy_all(struct mu_spec *spec, struct muster_error *reterr)
{
    struct muster_worker_spec *it = &spec->given;
    struct muster_rdzv_params *params = NULL;
    bool is_full = false;
    int rc = copy_params(it, &params, reterr);

    if (rc < 0)
        return rc;
    it->rdzv = params;
    rc = tell_handler(&spec->master, params, reterr);
    if (rc < 0) {
        mu_spec_done(spec);
        return rc;
    }
    it->master_addr = mu_arena_text(&spec->arena, it->master_addr, &is_full);
    it->role = mu_arena_text(&spec->arena, it->role, &is_full);
    it->argv = copy_list(&spec->arena, it->argv, &is_full);
    it->function_name = mu_arena_text(&spec->arena, it->function_name, &is_full);
    it->envp = copy_list(&spec->arena, it->envp, &is_full);
    it->log_dir = mu_arena_text(&spec->arena, it->log_dir, &is_full);
    it->redirects = mu_arena_text(&spec->arena, it->redirects, &is_full);
    it->tee = mu_arena_text(&spec->arena, it->tee, &is_full);
    it->signals = mu_arena_text(&spec->arena, it->signals, &is_full);
    if (!is_full)
        return 0;
    mu_spec_done(spec);
    return mu_fail(reterr, MUSTER_ENOMEM, "worker spec: out of memory");
}

int mu_spec_init(struct mu_spec *ret_spec, const struct muster_worker_spec *spec, struct muster_error *reterr)
{
    int rc;

    *ret_spec = (struct mu_spec){ 0 };
    rc = read_whole(spec, &ret_spec->given, reterr);
    if (rc == 0)
        rc = check(&ret_spec->given, ret_spec, reterr);
    if (rc == 0)
        rc = copy_all(ret_spec, reterr);
    if (rc < 0)
        return rc;
    if (ret_spec->given.shutdown_timeout_ms == 0)
        ret_spec->given.shutdown_timeout_ms = MU_SPEC_SHUTDOWN_MS;
    return 0;
}

void mu_spec_done(struct mu_spec *spec)
{
    muster_rdzv_params_free((struct muster_rdzv_params *)(uintptr_t)spec->given.rdzv);
    mu_arena_done(&spec->arena);
    spec->given.rdzv = NULL;
}

/* ---- Environment ---- */

char **mu_spec_environment(const struct mu_spec *spec, const struct mu_agent_worker *worker,
                           const char *const *inherited)
{
    struct mu_worker_job job = {
        .role = spec->given.role,
        .run_id = muster_rdzv_params_run_id(spec->given.rdzv),
        .max_restarts = spec->given.max_restarts,
        .signals = spec->given.signals,
        .old_torch = mu_worker_is_for_1_13(spec->given.rdzv),
    };

    return mu_worker_environment(&job, worker, inherited, false);
}

/* ---- Groups ---- */

struct muster_worker_group *mu_worker_group_copy(const struct muster_worker_group *group)
{
    size_t workers = group->workers_count * sizeof *group->workers, role = strlen(group->role) + 1;
    struct muster_worker_group *copy = malloc(sizeof *copy + workers + role);

    if (copy == NULL)
        return NULL;
    *copy = *group;
    copy->workers = memcpy(copy + 1, group->workers, workers);
    copy->role = memcpy((char *)(copy + 1) + workers, group->role, role);
    return copy;
}

void muster_worker_group_free(struct muster_worker_group *group)
{
    free(group);
}
