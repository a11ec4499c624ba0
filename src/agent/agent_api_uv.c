/* The agent of library users: that of agent_uv.h, on a loop that runs in the thread that calls muster_agent_run().
 *
 * Other threads reach it through what `lock` guards: the group as it was last published, signals and ends of workers
 * that wait to be told, and an async handle that wakes the loop up for them. The loop's thread publishes whenever the
 * state changes or workers are about to be started. It reads what it alone writes without the lock.
 *
 * A run that cannot be started closes what it has opened, like every other run at its end, and returns the reason. */
#include "agent/group_store_uv.h"
#include "agent/spec.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "handler/handler.h"
#include "proc/keeper.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONSOLE_MS 5000       /* for what is still to be shown, in the end */
#define SIGNALS_WAITING_MAX 8 /* the second one kills: more have nothing to add */

/* NOLINTNEXTLINE(misc-redundant-expression): they are equal today */
_Static_assert(MU_SPEC_WORKERS_MAX <= MU_GROUP_WORKERS_MAX && MU_SPEC_WORKERS_MAX <= MU_LOGS_WORKERS_MAX, "");

extern char **environ;

/* A driver's worker: it runs, or has ended and the agent has still to be told, or neither. */
struct ended {
    bool runs;
    char *unhealthy; /* what is wrong with one that runs, still to be told; NULL: nothing */
    int exit_code;
    int64_t wall_ms;
    struct muster_bytes value;
};

struct muster_agent {
    struct mu_spec spec;
    /* Between the threads. */
    pthread_mutex_t lock;
    enum { NEW, RUNNING, ENDED } phase;
    struct muster_worker_group group;
    struct muster_worker *workers; /* the group's */
    int signals[SIGNALS_WAITING_MAX];
    size_t signals_count;
    struct ended *ended; /* by local rank */
    uint32_t *told;      /* local ranks, in the order of their ends */
    size_t told_count;
    uv_async_t wake; /* while RUNNING */
    struct mu_group_store store;
    /* The loop's. */
    uv_loop_t loop;
    struct mu_agent *agent;    /* NULL: not started, or freed */
    struct mu_startup startup; /* what workers get where no guard was started, as it is when the run begins */
    struct mu_logtree tree;
    struct mu_console *out, *err; /* NULL: nothing is tee'd */
    struct mu_arena attempt;      /* what the workers that are being started get */
    struct muster_run_result *result;
    int death_signal; /* what it was ended by, or SIGTERM */
    int rc;
    struct muster_error error;
};

/* What a function is called with. */
struct call {
    const struct muster_agent *agent;
    struct muster_worker worker;
};

struct result {
    struct muster_run_result base; /* the first member */
    struct mu_arena arena;
};

/* ---- States ---- */

#define X(name, text) _Static_assert((int)MUSTER_WORKER_##name == (int)MU_GROUP_##name, "");
MUSTER_WORKER_STATES(X)
#undef X

const char *muster_worker_state_name(enum muster_worker_state state)
{
    return mu_group_state_name((enum mu_group_state)state);
}

bool muster_worker_state_is_running(enum muster_worker_state state)
{
    return mu_group_state_is_running((enum mu_group_state)state);
}

const char *muster_worker_text(const struct muster_worker *worker, char text[MUSTER_WORKER_TEXT_MAX])
{
    (void)snprintf(text, MUSTER_WORKER_TEXT_MAX,
                   "local_rank=%lld,global_rank=%lld,role_rank=%lld,world_size=%lld,role_world_size=%lld",
                   (long long)worker->local_rank, (long long)worker->global_rank, (long long)worker->role_rank,
                   (long long)worker->world_size, (long long)worker->role_world_size);
    return text;
}

/* ---- The group ---- */

static void publish(struct muster_agent *p)
{
    struct muster_worker_group *group = &p->group;
    struct mu_agent_view view = { 0 };

    (void)pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; i < group->workers_count; i++) {
        mu_agent_look(p->agent, i, &view);
        p->workers[i].id = view.id.number;
        memcpy(p->workers[i].id_text, view.id.text, sizeof view.id.text);
        if (view.worker.world_size == 0)
            continue;
        p->workers[i].global_rank = view.worker.rank;
        p->workers[i].role_rank = view.worker.role_rank;
        p->workers[i].world_size = view.worker.world_size;
        p->workers[i].role_world_size = view.worker.role_world_size;
    }
    group->state = (enum muster_worker_state)view.state;
    group->round = view.round;
    group->group_rank = view.worker.group_rank;
    group->group_world_size = view.worker.group_world_size;
    group->restart_count = view.worker.restart_count;
    group->remaining_restarts = view.remaining_restarts;
    group->master.master_port = view.worker.master_port;
    (void)snprintf(group->master.master_addr, sizeof group->master.master_addr, "%s", view.worker.master_addr);
    (void)pthread_mutex_unlock(&p->lock);
}

static void on_state(void *ctx, enum mu_group_state state)
{
    struct muster_agent *p = ctx;

    (void)state;
    if (p->agent != NULL) /* it is just being started, with the state that we have */
        publish(p);
}

/* Workers are about to be started. */
static void begin_attempt(struct muster_agent *p)
{
    publish(p);
    mu_arena_done(&p->attempt);
    (void)pthread_mutex_lock(&p->lock);
    p->group.attempt++;
    for (size_t i = 0; p->spec.given.driver != NULL && i < p->group.workers_count; i++)
        p->ended[i].runs = true;
    (void)pthread_mutex_unlock(&p->lock);
}

int muster_agent_snapshot(struct muster_agent *p, struct muster_worker_group **ret_group, struct muster_error *reterr)
{
    struct muster_worker_group *copy;

    (void)pthread_mutex_lock(&p->lock);
    copy = mu_worker_group_copy(&p->group);
    (void)pthread_mutex_unlock(&p->lock);
    if (copy == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "snapshot of a worker group: out of memory");
    *ret_group = copy;
    return 0;
}

/* ---- Workers that are processes ---- */

/* In the child. */
static int call_function(void *ctx, struct mu_buf *result)
{
    const struct call *call = ctx;
    const struct muster_worker_spec *spec = &call->agent->spec.given;
    struct muster_bytes value = { 0 };
    int code = spec->function(spec->function_ctx, &call->worker, &value);

    if (mu_buf_append(result, value.data, value.len, SIZE_MAX) < 0)
        code = code == 0 ? 1 : code;
    free(value.data);
    return code;
}

static int prepare(void *ctx, const struct mu_agent_worker *worker, struct mu_spawn *ret_spec,
                   struct muster_error *reterr)
{
    struct muster_agent *p = ctx;
    const struct muster_worker_spec *spec = &p->spec.given;
    struct call *call;
    char **envp;

    if (worker->local_rank == 0)
        begin_attempt(p);
    call = mu_arena_alloc(&p->attempt, sizeof *call);
    envp = mu_spec_environment(&p->spec, worker, spec->envp != NULL ? spec->envp : (const char *const *)environ);
    if (call == NULL || envp == NULL) {
        free(envp);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for worker %lld", (long long)worker->local_rank);
    }
    *call = (struct call){ .agent = p, .worker = p->workers[worker->local_rank] };
    ret_spec->argv = spec->argv;
    ret_spec->envp = (const char *const *)envp;
    if (spec->function != NULL) {
        ret_spec->function = call_function;
        ret_spec->function_name = spec->function_name;
        ret_spec->function_ctx = call;
    }
    return 0;
}

static void release(void *ctx, struct mu_spawn *spec)
{
    (void)ctx; /* the rest is the attempt's */
    free((void *)spec->envp);
}

/* ---- Workers of a driver's ---- */

/* Ends of workers that nothing waits for: start has failed, or the run is over. */
static void forget_ends(struct muster_agent *p)
{
    (void)pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < (size_t)p->spec.given.local_world_size; i++) {
        muster_bytes_done(&p->ended[i].value);
        free(p->ended[i].unhealthy);
        p->ended[i] = (struct ended){ 0 };
    }
    p->told_count = 0;
    (void)pthread_mutex_unlock(&p->lock);
}

static int driver_start(void *ctx, const struct mu_agent_worker *workers, size_t count,
                        struct muster_worker_id *ret_ids, struct muster_error *reterr)
{
    struct muster_agent *p = ctx;
    struct muster_worker_driver *driver = p->spec.given.driver;
    struct muster_worker_group *copy;
    int rc;

    (void)workers;
    (void)count;
    begin_attempt(p);
    copy = mu_worker_group_copy(&p->group);
    rc = copy == NULL ? mu_fail(reterr, MUSTER_ENOMEM, "the workers")
                      : driver->ops->start(driver, p, copy, ret_ids, reterr);
    muster_worker_group_free(copy);
    if (rc < 0)
        forget_ends(p);
    return rc < 0 ? mu_wrap(reterr, rc, "worker driver '%s'", driver->ops->name) : 0;
}

static void driver_stop(void *ctx, const struct muster_worker_stop *how)
{
    struct muster_worker_driver *driver = ((struct muster_agent *)ctx)->spec.given.driver;

    driver->ops->stop(driver, how);
}

static void driver_shutdown(struct muster_agent *p)
{
    struct muster_worker_driver *driver = p->spec.given.driver;

    if (driver != NULL && driver->ops->size > offsetof(struct muster_worker_driver_ops, shutdown) &&
        driver->ops->shutdown != NULL)
        driver->ops->shutdown(driver, p->death_signal);
}

static int copy_value(struct muster_slice value, struct muster_bytes *ret_copy)
{
    *ret_copy = (struct muster_bytes){ mu_slice_copy(mu_slice(value.data, value.len)), value.len };
    return ret_copy->data == NULL ? MUSTER_ENOMEM : 0;
}

/* With the lock. */
static bool runs(const struct muster_agent *p, int64_t attempt, int64_t local_rank)
{
    return p->phase == RUNNING && p->spec.given.driver != NULL && attempt == p->group.attempt && local_rank >= 0 &&
           local_rank < p->spec.given.local_world_size && p->ended[local_rank].runs;
}

static int no_such_worker(int64_t attempt, int64_t local_rank, struct muster_error *reterr)
{
    return mu_fail(reterr, MUSTER_EINVAL, "worker %lld of attempt %lld: no such worker runs", (long long)local_rank,
                   (long long)attempt);
}

int muster_agent_worker_ended(struct muster_agent *p, int64_t attempt, int64_t local_rank, int exit_code,
                              struct muster_slice value, struct muster_error *reterr)
{
    struct ended ended = { .exit_code = exit_code };
    bool running;

    if (value.len > 0 && copy_value(value, &ended.value) < 0)
        return mu_fail(reterr, MUSTER_ENOMEM, "a worker's value of %zu bytes: out of memory", value.len);
    ended.wall_ms = mu_wall_us() / 1000;
    (void)pthread_mutex_lock(&p->lock);
    running = runs(p, attempt, local_rank);
    if (running) {
        free(p->ended[local_rank].unhealthy);
        p->ended[local_rank] = ended;
        p->told[p->told_count++] = (uint32_t)local_rank;
        (void)uv_async_send(&p->wake);
    }
    (void)pthread_mutex_unlock(&p->lock);
    if (running)
        return 0;
    muster_bytes_done(&ended.value);
    return no_such_worker(attempt, local_rank, reterr);
}

int muster_agent_worker_unhealthy(struct muster_agent *p, int64_t attempt, int64_t local_rank, const char *text,
                                  struct muster_error *reterr)
{
    char *cause = strdup(text == NULL || text[0] == '\0' ? "it is stuck" : text);
    bool running;

    if (cause == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "an unhealthy worker: out of memory");
    cause[strcspn(cause, "\r\n")] = '\0';
    (void)pthread_mutex_lock(&p->lock);
    running = runs(p, attempt, local_rank);
    if (running) {
        char *before = p->ended[local_rank].unhealthy;

        p->ended[local_rank].unhealthy = cause;
        cause = before;
        (void)uv_async_send(&p->wake);
    }
    (void)pthread_mutex_unlock(&p->lock);
    free(cause); /* the new one if the worker does not run, else the one before it */
    return running ? 0 : no_such_worker(attempt, local_rank, reterr);
}

/* ---- What other threads have said ---- */

void muster_agent_signal(struct muster_agent *p, int signal)
{
    (void)pthread_mutex_lock(&p->lock);
    if (p->phase != ENDED && p->signals_count < SIGNALS_WAITING_MAX)
        p->signals[p->signals_count++] = signal;
    if (p->phase == RUNNING)
        (void)uv_async_send(&p->wake);
    (void)pthread_mutex_unlock(&p->lock);
}

static bool next_signal(struct muster_agent *p, int *ret_signal)
{
    bool any;

    (void)pthread_mutex_lock(&p->lock);
    any = p->signals_count > 0;
    *ret_signal = p->signals[0];
    if (any)
        memmove(p->signals, p->signals + 1, --p->signals_count * sizeof p->signals[0]);
    (void)pthread_mutex_unlock(&p->lock);
    return any;
}

static bool next_ended(struct muster_agent *p, uint32_t *ret_rank, struct ended *ret_ended)
{
    bool any;

    (void)pthread_mutex_lock(&p->lock);
    any = p->told_count > 0;
    if (any) {
        *ret_rank = p->told[0];
        *ret_ended = p->ended[*ret_rank];
        p->ended[*ret_rank] = (struct ended){ 0 };
        memmove(p->told, p->told + 1, --p->told_count * sizeof p->told[0]);
    }
    (void)pthread_mutex_unlock(&p->lock);
    return any;
}

/* NULL: there is no more of them. The caller frees it. */
static char *next_unhealthy(struct muster_agent *p, uint32_t *ret_rank)
{
    char *text = NULL;

    (void)pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; text == NULL && i < p->group.workers_count; i++) {
        text = p->ended[i].unhealthy;
        p->ended[i].unhealthy = NULL;
        *ret_rank = i;
    }
    (void)pthread_mutex_unlock(&p->lock);
    return text;
}

static void on_wake(uv_async_t *wake)
{
    struct muster_agent *p = wake->data;
    struct ended ended;
    uint32_t rank;
    char *text;
    int signal;

    mu_group_store_turn(&p->store, p->agent);
    while (p->agent != NULL && next_signal(p, &signal))
        mu_agent_signal(p->agent, signal);
    while (p->agent != NULL && p->spec.given.driver != NULL && (text = next_unhealthy(p, &rank)) != NULL) {
        mu_agent_worker_unhealthy(p->agent, rank, text);
        free(text);
    }
    while (p->agent != NULL && next_ended(p, &rank, &ended)) {
        struct mu_exit exit = { .rank = rank,
                                .code = ended.exit_code,
                                .wall_ms = ended.wall_ms,
                                .result = mu_slice(ended.value.data, ended.value.len) };

        mu_agent_worker_ended(p->agent, &exit);
        muster_bytes_done(&ended.value);
    }
}

/* ---- The result ---- */

static const char *keep_text(struct mu_arena *arena, struct mu_slice text)
{
    return mu_arena_join(arena, text, mu_slice("", 0)).data;
}

static bool keep_failures(const struct muster_agent *p, struct result *result, const struct mu_agent_result *from)
{
    struct muster_failure *failures = mu_arena_alloc(&result->arena, (from->count + 1) * sizeof *failures);
    bool kept = failures != NULL;

    for (size_t i = 0; kept && i < from->count; i++) {
        const struct mu_failure *failure = &from->failures[i];
        bool has_file = failure->error != NULL && failure->error->present;

        failures[i] = (struct muster_failure){
            .global_rank = failure->rank,
            .local_rank = failure->local_rank,
            .id = p->workers[failure->local_rank].id,
            .id_text = keep_text(&result->arena, mu_slice_str(p->workers[failure->local_rank].id_text)),
            .exit_code = failure->exit_code,
            .time_s = mu_failure_time_s(failure),
            .message =
                keep_text(&result->arena, has_file ? mu_slice_str(failure->error->message) : failure->last_stderr),
            .error_file = has_file ? keep_text(&result->arena, mu_slice_str(failure->error_path)) : NULL,
            .out_of_memory = failure->out_of_memory,
        };
        kept =
            failures[i].message != NULL && failures[i].id_text != NULL && (!has_file || failures[i].error_file != NULL);
    }
    result->base.failures = failures;
    result->base.failures_count = from->count;
    return kept;
}

static bool keep_values(struct result *result, const struct mu_agent_result *from)
{
    struct muster_return_value *values = mu_arena_alloc(&result->arena, (from->values_count + 1) * sizeof *values);
    bool kept = values != NULL;

    for (size_t i = 0; kept && i < from->values_count; i++) {
        values[i] = (struct muster_return_value){
            .global_rank = from->values[i].rank,
            .local_rank = from->values[i].local_rank,
            .value = { keep_text(&result->arena, from->values[i].value), from->values[i].value.len },
        };
        kept = values[i].value.data != NULL;
    }
    result->base.return_values = values;
    result->base.return_values_count = from->values_count;
    return kept;
}

/* One line: which worker failed first and how, or what another node has told. */
static bool keep_reason(struct result *result, const struct mu_agent_result *from)
{
    struct mu_slice text = mu_slice_str(from->outcome->error.text);
    struct mu_buf line = { 0 };
    char host[256] = "localhost";

    (void)gethostname(host, sizeof host - 1);
    if (!muster_run_result_is_failed(&result->base))
        text.len = 0;
    else if (from->count > 0 &&
             mu_failure_write_line(&from->failures[mu_failure_first(from->failures, from->count)], host, &line) == 0)
        text = mu_buf_slice(&line);
    result->base.reason = keep_text(&result->arena, text);
    mu_buf_done(&line);
    return result->base.reason != NULL;
}

static struct muster_run_result *make_result(const struct muster_agent *p, const struct mu_agent_result *from)
{
    struct result *result = calloc(1, sizeof *result);

    if (result == NULL)
        return NULL;
    result->base.size = sizeof result->base;
    result->base.state =
        from->outcome->kind == MU_POLICY_OUTCOME_SUCCEEDED ? MUSTER_WORKER_SUCCEEDED : MUSTER_WORKER_FAILED;
    result->base.total_run_time_ms = from->run_time_ms;
    if (keep_failures(p, result, from) && keep_values(result, from) && keep_reason(result, from))
        return &result->base;
    muster_run_result_free(&result->base);
    return NULL;
}

bool muster_run_result_is_failed(const struct muster_run_result *result)
{
    return result->state == MUSTER_WORKER_FAILED;
}

const struct muster_return_value *muster_run_result_value(const struct muster_run_result *result, int64_t global_rank)
{
    for (size_t i = 0; i < result->return_values_count; i++) {
        if (result->return_values[i].global_rank == global_rank)
            return &result->return_values[i];
    }
    return NULL;
}

const struct muster_failure *muster_run_result_failure(const struct muster_run_result *result, int64_t global_rank)
{
    for (size_t i = 0; i < result->failures_count; i++) {
        if (result->failures[i].global_rank == global_rank)
            return &result->failures[i];
    }
    return NULL;
}

void muster_run_result_free(struct muster_run_result *result)
{
    if (result == NULL)
        return;
    mu_arena_done(&((struct result *)result)->arena);
    free(result);
}

/* ---- The end ---- */

/* The loop ends when all of this is closed. */
static void close_rest(void *ctx)
{
    struct muster_agent *p = ctx;

    (void)pthread_mutex_lock(&p->lock);
    p->phase = ENDED;
    (void)pthread_mutex_unlock(&p->lock);
    mu_group_store_close(&p->store);
    uv_close((uv_handle_t *)&p->wake, NULL);
    if (p->out != NULL)
        mu_console_close(p->out, CONSOLE_MS, NULL, NULL);
    if (p->err != NULL)
        mu_console_close(p->err, CONSOLE_MS, NULL, NULL);
}

static void on_end(void *ctx, const struct mu_agent_result *result)
{
    struct muster_agent *p = ctx;
    struct mu_agent *agent = p->agent;
    const struct muster_error *error = &result->outcome->error;

    if (result->outcome->signal != 0)
        p->death_signal = result->outcome->signal;
    switch (result->outcome->kind) {
    case MU_POLICY_OUTCOME_SUCCEEDED:
    case MU_POLICY_OUTCOME_WORKERS_FAILED:
        p->result = make_result(p, result);
        if (p->result == NULL)
            p->rc = mu_fail(&p->error, MUSTER_ENOMEM, "the result of a run: out of memory");
        break;
    case MU_POLICY_OUTCOME_GRACEFUL:
        p->rc = mu_fail(&p->error, MUSTER_ERDZV_GRACEFUL_EXIT, "%s",
                        error->code != 0 ? error->text : "the job has ended without this node");
        break;
    case MU_POLICY_OUTCOME_NONE:
    case MU_POLICY_OUTCOME_SIGNALED:
    case MU_POLICY_OUTCOME_DIE:
    case MU_POLICY_OUTCOME_KEEPER_GONE:
    case MU_POLICY_OUTCOME_ERROR:
        p->error = *error;
        p->rc = error->code < 0 ? error->code : MUSTER_EINTERNAL;
        break;
    }
    publish(p);
    p->agent = NULL;
    mu_agent_free(agent, close_rest, p);
}

/* ---- The run ---- */

/* Read from /proc, for umask() would change it for other threads for a moment. */
static mode_t read_umask(void)
{
    FILE *file = fopen("/proc/self/status", "re");
    char line[256];
    unsigned mask = 022;

    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "Umask: %o", &mask) == 1)
            break;
    }
    if (file != NULL)
        (void)fclose(file);
    return (mode_t)mask;
}

/* SIGPIPE and SIGXFSZ must not end the program: they are blocked, and a pending one is taken away before they are
 * unblocked. */
static void block_write_signals(sigset_t *ret_set, sigset_t *ret_before)
{
    (void)sigemptyset(ret_set);
    (void)sigaddset(ret_set, SIGPIPE);
    (void)sigaddset(ret_set, SIGXFSZ);
    (void)pthread_sigmask(SIG_BLOCK, ret_set, ret_before);
}

/* Also restores the rest of the mask, from which handled signals were taken. */
static void unblock_write_signals(sigset_t *set, const sigset_t *before)
{
    static const struct timespec at_once;

    for (int signal = 1; signal < SIGRTMIN; signal++) {
        if (sigismember(before, signal) == 1) /* it was blocked before, so it stays pending for the program */
            (void)sigdelset(set, signal);
    }
    while (sigtimedwait(set, NULL, &at_once) > 0)
        continue;
    (void)pthread_sigmask(SIG_SETMASK, before, NULL);
}

static int open_output(struct muster_agent *p, struct muster_error *reterr)
{
    const struct muster_worker_spec *spec = &p->spec.given;
    struct mu_logtree_config tree = { .log_dir = spec->log_dir != NULL ? spec->log_dir : "/dev/null",
                                      .run_id = muster_rdzv_params_run_id(spec->rdzv),
                                      .seed = mu_fresh_seed() };
    struct mu_console_config out = { .fd = STDOUT_FILENO, .name = "standard output" };
    struct mu_console_config err = { .fd = STDERR_FILENO, .name = "standard error" };
    int rc = mu_logtree_open(&p->tree, &tree, reterr);

    if (rc < 0)
        return mu_wrap(reterr, rc, "log_dir '%s'", tree.log_dir);
    if (spec->tee != NULL)
        rc = mu_console_start(&p->loop, &out, &p->out, reterr);
    if (rc == 0 && spec->tee != NULL)
        rc = mu_console_start(&p->loop, &err, &p->err, reterr);
    return rc;
}

static int start(struct muster_agent *p, struct muster_error *reterr)
{
    static const struct mu_agent_driver driver = { driver_start, driver_stop };
    const struct muster_worker_spec *spec = &p->spec.given;
    struct mu_agent_config config = {
        .registry = spec->registry != NULL ? spec->registry : muster_rdzv_registry_default(),
        .params = spec->rdzv,
        .rdzv = spec->rdzv_handler,
        .monitor_ms = (uint64_t)spec->monitor_interval_ms,
        .role = spec->role,
        .entry_point = muster_worker_spec_entry_point(spec),
        .start_method = spec->function != NULL ? "fork" : NULL,
        .master = p->spec.master,
        .local_world_size = spec->local_world_size,
        .max_restarts = spec->max_restarts,
        .grace_ms = (uint64_t)spec->shutdown_timeout_ms,
        .barrier_ms = spec->exit_barrier_timeout_ms == 0 ? UINT64_MAX : (uint64_t)spec->exit_barrier_timeout_ms,
        .hang_ms = (uint64_t)spec->uninterruptible_timeout_ms,
        .identical = spec->workers_identical,
        .signals = &p->spec.signals,
        .startup = mu_guard_startup() != NULL ? mu_guard_startup() : &p->startup,
        .keeper_fd = mu_guard_fd(),
        .tree = &p->tree,
        .logs = { .redirects = &p->spec.redirects, .tees = &p->spec.tee },
        .driver = spec->driver != NULL ? &driver : NULL,
        .prepare = prepare,
        .release = release,
        .on_state = on_state,
        .on_end = on_end,
        .ctx = p,
    };
    int rc =
        config.registry == NULL ? mu_fail(reterr, MUSTER_ENOMEM, "no memory for an agent") : open_output(p, reterr);

    config.logs.out = p->out;
    config.logs.err = p->err;
    return rc == 0 ? mu_agent_start(&p->loop, &config, &p->agent, reterr) : rc;
}

/* From here on other threads may wake the loop up. */
static int open_loop(struct muster_agent *p, struct muster_error *reterr)
{
    int rc = uv_loop_init(&p->loop);

    if (rc < 0)
        return mu_fail_errno(reterr, -rc, "make a loop");
    rc = uv_async_init(&p->loop, &p->wake, on_wake);
    if (rc < 0) {
        (void)uv_loop_close(&p->loop);
        return mu_fail_errno(reterr, -rc, "make a loop");
    }
    p->wake.data = p;
    mu_group_store_open(&p->store, &p->wake);
    (void)uv_async_send(&p->wake); /* for signals that have come before */
    return 0;
}

static int begin(struct muster_agent *p, struct muster_error *reterr)
{
    int rc;

    (void)pthread_mutex_lock(&p->lock);
    rc = p->phase == NEW ? open_loop(p, reterr) : mu_fail(reterr, MUSTER_EINVAL, "it has been run before");
    if (rc == 0)
        p->phase = RUNNING;
    (void)pthread_mutex_unlock(&p->lock);
    return rc;
}

int muster_agent_run(struct muster_agent *p, struct muster_run_result **ret_result, struct muster_error *reterr)
{
    struct muster_rdzv *handler = p->spec.given.rdzv_handler;
    sigset_t write_signals, before;
    int rc = handler != NULL ? mu_rdzv_claim(handler, reterr) : 0;

    if (rc < 0)
        return mu_wrap(reterr, rc, "run an agent");
    rc = begin(p, reterr);
    if (rc < 0) {
        if (handler != NULL)
            mu_rdzv_release(handler);
        return mu_wrap(reterr, rc, "run an agent");
    }
    mu_startup_look(&p->startup);
    p->startup.umask = read_umask();
    block_write_signals(&write_signals, &before);
    p->rc = start(p, &p->error);
    if (p->rc < 0)
        close_rest(p);
    (void)uv_run(&p->loop, UV_RUN_DEFAULT);
    rc = uv_loop_close(&p->loop);
    assert(rc == 0);
    unblock_write_signals(&write_signals, &before);
    mu_arena_done(&p->attempt);
    driver_shutdown(p);
    if (handler != NULL)
        mu_rdzv_release(handler);
    if (p->rc < 0) {
        if (reterr != NULL)
            *reterr = p->error;
        return p->rc;
    }
    *ret_result = p->result;
    return 0;
}

/* ---- New and free ---- */

int muster_agent_new(const struct muster_worker_spec *spec, struct muster_agent **ret_agent,
                     struct muster_error *reterr)
{
    struct muster_agent *p = calloc(1, sizeof *p);
    size_t count;
    int rc;

    if (p == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for an agent");
    rc = mu_spec_init(&p->spec, spec, reterr);
    if (rc < 0) {
        free(p);
        return rc;
    }
    count = (size_t)p->spec.given.local_world_size;
    p->workers = calloc(count, sizeof *p->workers);
    p->ended = calloc(count, sizeof *p->ended);
    p->told = calloc(count, sizeof *p->told);
    (void)pthread_mutex_init(&p->lock, NULL);
    mu_group_store_init(&p->store);
    if (p->workers == NULL || p->ended == NULL || p->told == NULL) {
        muster_agent_free(p);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for an agent");
    }
    for (size_t i = 0; i < count; i++)
        p->workers[i] = (struct muster_worker){
            .local_rank = (int64_t)i, .global_rank = -1, .role_rank = -1, .world_size = -1, .role_world_size = -1
        };
    p->death_signal = SIGTERM;
    p->group = (struct muster_worker_group){
        .size = sizeof p->group,
        .role = p->spec.given.role,
        .state = MUSTER_WORKER_INIT,
        .group_rank = -1,
        .group_world_size = -1,
        .round = -1,
        .remaining_restarts = p->spec.given.max_restarts,
        .workers = p->workers,
        .workers_count = count,
        .spec = &p->spec.given,
        .store = &p->store.base,
    };
    *ret_agent = p;
    return 0;
}

void muster_agent_free(struct muster_agent *p)
{
    if (p == NULL)
        return;
    assert(p->phase != RUNNING);
    if (p->ended != NULL)
        forget_ends(p);
    (void)pthread_mutex_destroy(&p->lock);
    mu_group_store_done(&p->store);
    free(p->workers);
    free(p->ended);
    free(p->told);
    mu_spec_done(&p->spec);
    free(p);
}
