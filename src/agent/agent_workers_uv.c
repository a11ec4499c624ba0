/* An agent's workers: how they are started, where their output goes, how they end and how they are stopped.
 *
 * Happy path: mu_agent_start_workers() opens their output -> on_logs_opened() starts them -> on_worker_exit() tells the
 * policy how each one ended -> mu_agent_stop_workers() ends what they left -> on_workers_stopped(). */
#include "agent/agent_parts_uv.h"
#include "base/log.h"
#include "logs/tail.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define READ_MS 2000 /* for what a worker that has failed left in files */

/* What a worker that has failed left in files. They may be on a file system that hangs: a thread reads them. */
struct mu_reading {
    struct mu_file_job job;
    struct mu_agent *agent;
    struct mu_exit exit;          /* without a function's result */
    bool stopping;                /* when it ended */
    char *error_path, *tail_path; /* NULL: none */
    struct mu_errfile error;
    struct mu_buf tail;
};

void mu_agent_forget_workers(struct mu_agent *a)
{
    for (size_t i = 0; i < (size_t)a->config.local_world_size; i++) {
        free(a->workers[i].error_path);
        mu_errfile_done(&a->workers[i].error);
        mu_buf_done(&a->workers[i].tail);
        mu_buf_done(&a->workers[i].value);
        a->workers[i] = (struct mu_worker){ 0 };
    }
    a->deaths = 0;
}

static void on_logs_finished(void *ctx, const struct mu_logs_stats *stats)
{
    struct mu_agent *a = ctx;

    (void)stats;
    a->logs_open--;
    mu_agent_handles_gone(a, 0);
}

static void finish_logs(struct mu_agent *a)
{
    if (a->logs == NULL)
        return;
    mu_logs_finish(a->logs, on_logs_finished, a);
    a->logs = NULL;
}

static bool owns(void *ctx, int32_t pid)
{
    return mu_group_owns(((struct mu_agent *)ctx)->group, pid);
}

static void on_watchdog(void *ctx, enum mu_watchdog_event_type type, const struct mu_timer *timer,
                        const struct muster_error *error)
{
    struct mu_agent *a = ctx;
    struct mu_event_agent agent = mu_agent_event_of(a);
    struct mu_timer_event event = { .name = mu_watchdog_event_name(type), .agent = &agent };

    if (error != NULL)
        mu_log(MUSTER_LOG_WARNING, "file timer: %s", error->text);
    if (type > MU_WATCHDOG_KILLED)
        return;
    if (timer != NULL) {
        event.has_timer = true;
        event.pid = timer->pid;
        event.scope = timer->scope;
        event.expiration_s = timer->at_s;
        event.signal = timer->signal;
        mu_log(MUSTER_LOG_WARNING, "file timer: %s: pid %" PRId32, event.name, timer->pid);
    }
    mu_timer_event_record(&event);
}

static void start_watchdog(struct mu_agent *a)
{
    struct mu_watchdog_config config = { .path = a->timer_file, .is_ours = owns, .on_event = on_watchdog, .ctx = a };
    struct muster_error error = { 0 };

    if (a->timer_file != NULL && a->watchdog == NULL && mu_watchdog_start(a->loop, &config, &a->watchdog, &error) < 0)
        mu_log(MUSTER_LOG_ERROR, "file timer: %s; workers run without", error.text);
}

static void stop_watchdog(struct mu_agent *a)
{
    if (a->watchdog == NULL)
        return;
    a->handles++;
    mu_watchdog_close(a->watchdog, mu_agent_on_part_closed, a);
    a->watchdog = NULL;
}

/* Lines that scripts look for. */
static void say_where(struct mu_agent *a)
{
    if (!a->said_where && a->config.tree->run[0] != '\0') {
        a->said_where = true;
        mu_log(MUSTER_LOG_INFO, MU_SAY_LOG_DIR, a->config.tree->run);
    }
    for (int64_t i = 0; i < a->config.local_world_size; i++) {
        const char *path = mu_logs_error_file(a->logs, (uint32_t)i);

        if (path[0] != '\0') /* there is none without a log directory */
            mu_log(MUSTER_LOG_INFO, MU_SAY_ERROR_FILE, i, path);
    }
}

/* A temporary directory of ours is trusted to answer: without files to write, no thread is needed. */
static int start_disk(struct mu_agent *a, struct muster_error *reterr)
{
    const struct mu_logs_config *logs = &a->config.logs;
    struct mu_disk_config config = { .at_once = a->config.tree->is_temporary };

    for (uint32_t i = 0; i < (uint32_t)a->config.local_world_size && config.at_once; i++)
        config.at_once =
            mu_redirects_of(logs->redirects, i) == MU_STD_NONE && mu_redirects_of(logs->tees, i) == MU_STD_NONE;
    return a->disk != NULL ? 0 : mu_disk_start(a->loop, &config, &a->disk, reterr);
}

static void on_logs_opened(void *ctx, const struct muster_error *error);

static int open_logs(struct mu_agent *a, struct muster_error *reterr)
{
    struct mu_logs_config config = a->config.logs;
    uint32_t count = (uint32_t)a->config.local_world_size;
    uint32_t *ranks = calloc(count, sizeof *ranks);
    int rc = ranks == NULL ? mu_fail(reterr, MUSTER_ENOMEM, "the workers' output") : start_disk(a, reterr);

    for (uint32_t i = 0; i < count && rc == 0; i++)
        ranks[i] = (uint32_t)(mu_job_assigned(a->job)->base_rank + i);
    config.disk = a->disk;
    config.tree = a->config.tree;
    config.restart_count = (uint64_t)mu_job_assigned(a->job)->count;
    config.round = a->info.round >= 0 ? (uint64_t)a->info.round : 0;
    config.workers = count;
    config.ranks = ranks;
    config.role = a->role;
    config.host = a->hostname;
    if (rc == 0)
        rc = mu_logs_open(a->loop, &config, on_logs_opened, a, &a->logs, reterr);
    free(ranks);
    if (rc < 0)
        return rc;
    a->logs_open++;
    a->opening = true;
    return 0;
}

static struct mu_stdio stdio_of(int fd)
{
    return (struct mu_stdio){ .type = fd < 0 ? MU_STDIO_INHERIT : MU_STDIO_FD, .fd = fd };
}

/* Whether an agent serves the workers' store. Worker 0 serves it with PyTorch 1.13 (except in a static rendezvous,
 * which has no rounds), and if the back end has no address for the workers. */
static bool shares_store(const struct mu_agent *a)
{
    return (!a->old_dialect || a->info.round < 0) && !a->meets_alone && a->handler->ops->use_agent_store(a->handler);
}

struct mu_agent_worker mu_agent_about_worker(const struct mu_agent *a, uint32_t local_rank)
{
    const struct mu_ranks_result *assigned = mu_job_assigned(a->job);
    const struct mu_boot_master *given = &a->config.master;
    bool own_master = assigned->master_port != 0; /* of a PyTorch 1.13 rank 0 */
    const char *found_addr = own_master ? assigned->master_addr : a->info.bootstrap.master_addr;
    uint16_t found_port = own_master ? assigned->master_port : a->info.bootstrap.master_port;

    return (struct mu_agent_worker){
        .local_rank = local_rank,
        .rank = assigned->base_rank + local_rank,
        .group_rank = a->info.rank,
        .role_rank = assigned->base_role_rank + local_rank,
        .local_world_size = a->config.local_world_size,
        .world_size = assigned->world_size,
        .group_world_size = a->info.world_size,
        .role_world_size = assigned->role_world_size,
        .master_addr = given->addr[0] != '\0' ? given->addr : found_addr,
        .master_port = given->port != 0 ? given->port : found_port,
        .restart_count = assigned->count,
        .use_agent_store = shares_store(a),
        .error_file = a->logs != NULL ? mu_logs_error_file(a->logs, local_rank) : "",
        .timer_file = a->watchdog != NULL ? a->timer_file : NULL,
    };
}

static int prepare_worker(struct mu_agent *a, uint32_t index, struct mu_spawn *ret_spec, struct muster_error *reterr)
{
    struct mu_worker *worker = &a->workers[index];
    struct mu_agent_worker about = mu_agent_about_worker(a, index);
    struct mu_logs_stdio io = mu_logs_stdio(a->logs, index);
    int rc = a->config.prepare(a->config.ctx, &about, ret_spec, reterr);

    if (rc < 0)
        return rc;
    ret_spec->io[0] = stdio_of(io.in);
    ret_spec->io[1] = stdio_of(io.out);
    ret_spec->io[2] = stdio_of(io.err);
    worker->rank = about.rank;
    worker->role_rank = about.role_rank;
    worker->error_path = about.error_file[0] != '\0' ? strdup(about.error_file) : NULL;
    return 0;
}

/* Without a text of its own, a number is one. */
static void name_worker(struct mu_worker *worker, const struct muster_worker_id *id)
{
    worker->id = *id;
    worker->id.text[sizeof worker->id.text - 1] = '\0';
    if (id->text[0] == '\0' && id->number != 0)
        (void)snprintf(worker->id.text, sizeof worker->id.text, "%" PRId64, id->number);
}

static int start_all(struct mu_agent *a, struct muster_error *reterr)
{
    uint32_t count = (uint32_t)a->config.local_world_size, prepared = 0;
    struct mu_spawn *specs = calloc(count, sizeof *specs);
    int rc = specs == NULL ? mu_fail(reterr, MUSTER_ENOMEM, "the workers") : 0;

    start_watchdog(a);
    for (; rc == 0 && prepared < count; prepared++)
        rc = prepare_worker(a, prepared, &specs[prepared], reterr);
    mu_oom_read("", &a->oom);
    if (rc == 0)
        rc = mu_group_start(a->group, specs, count, reterr);
    for (uint32_t i = 0; i < count; i++) {
        a->workers[i].pid = mu_group_pid(a->group, i);
        name_worker(&a->workers[i], &(struct muster_worker_id){ .number = a->workers[i].pid });
        a->workers[i].started = a->workers[i].pid > 0;
        mu_logs_spawned(a->logs, i);
    }
    for (uint32_t i = 0; i < prepared; i++)
        a->config.release(a->config.ctx, &specs[i]);
    free(specs);
    return rc;
}

/* The same for workers that are no processes. */
static int start_by_driver(struct mu_agent *a, struct muster_error *reterr)
{
    uint32_t count = (uint32_t)a->config.local_world_size;
    struct mu_agent_worker *about = calloc(count, sizeof *about);
    struct muster_worker_id *ids = calloc(count, sizeof *ids);
    int rc = about == NULL || ids == NULL ? mu_fail(reterr, MUSTER_ENOMEM, "the workers") : 0;

    for (uint32_t i = 0; rc == 0 && i < count; i++)
        about[i] = mu_agent_about_worker(a, i);
    if (rc == 0)
        rc = a->config.driver->start(a->config.ctx, about, count, ids, reterr);
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        a->workers[i].rank = about[i].rank;
        a->workers[i].role_rank = about[i].role_rank;
        name_worker(&a->workers[i], &ids[i]);
        a->workers[i].started = true;
    }
    free(about);
    free(ids);
    return rc;
}

/* What came of START_WORKERS. */
static struct mu_policy_event started(struct mu_agent *a, const struct muster_error *error)
{
    return (struct mu_policy_event){ .type = error == NULL ? MU_POLICY_ON_STARTED : MU_POLICY_ON_START_FAILED,
                                     .round = a->info.round,
                                     .error = error };
}

static void on_logs_opened(void *ctx, const struct muster_error *error)
{
    struct mu_agent *a = ctx;
    struct muster_error own = { 0 };

    assert(a->opening);
    a->opening = false;
    if (error != NULL) { /* it has let go of everything by itself */
        a->logs = NULL;
        a->logs_open--;
        mu_agent_tell(a, started(a, error));
        return;
    }
    say_where(a);
    mu_agent_tell(a, started(a, start_all(a, &own) < 0 ? &own : NULL));
}

/* `regroup_ms`: since the group before it ended; -1: it is the first. */
void mu_agent_start_workers(struct mu_agent *a, int64_t regroup_ms)
{
    struct muster_error error = { 0 };
    int rc;

    finish_logs(a);
    mu_agent_forget_workers(a);
    a->stopping = false;
    mu_agent_say_formed(a, regroup_ms); /* before the workers say anything */
    rc = a->config.driver != NULL ? start_by_driver(a, &error) : open_logs(a, &error);
    if (rc < 0 || a->config.driver != NULL)
        mu_agent_tell_later(a, started(a, rc < 0 ? &error : NULL));
}

/* ---- What a worker that has failed left in files ---- */

static void run_reading(struct mu_file_job *job)
{
    struct mu_reading *r = MU_LIST_ITEM(job, struct mu_reading, job);

    mu_errfile_read(r->error_path, &r->error);
    if (r->tail_path != NULL)
        (void)mu_tail_file(r->tail_path, &r->tail);
}

static void free_reading(struct mu_file_job *job)
{
    struct mu_reading *r = MU_LIST_ITEM(job, struct mu_reading, job);

    free(r->error_path);
    free(r->tail_path);
    mu_errfile_done(&r->error);
    mu_buf_done(&r->tail);
    free(r);
}

static void tell_exited(struct mu_agent *a, const struct mu_exit *exit, bool stopping);
static void tell_stopped(struct mu_agent *a);

static void on_was_read(struct mu_file_job *job)
{
    struct mu_reading *r = MU_LIST_ITEM(job, struct mu_reading, job);
    struct mu_agent *a = r->agent;
    struct mu_worker *worker = &a->workers[r->exit.rank];

    worker->error = r->error;
    r->error = (struct mu_errfile){ 0 };
    if (worker->tail.len == 0) {
        struct mu_buf empty = worker->tail;

        worker->tail = r->tail;
        r->tail = empty;
    }
    worker->reading = NULL;
    a->readings--;
    tell_exited(a, &r->exit, r->stopping);
    free_reading(job);
    tell_stopped(a);
}

static char *say_not_read(const char *path)
{
    char *text;

    return asprintf(&text, "error file '%s' is not used: the file system does not answer", path) < 0 ? NULL : text;
}

/* They have had their time. */
static void on_read_timer(uv_timer_t *timer)
{
    struct mu_agent *a = timer->data;

    for (size_t i = 0; i < (size_t)a->config.local_world_size; i++) {
        struct mu_worker *worker = &a->workers[i];
        struct mu_reading *r = worker->reading;

        if (r == NULL)
            continue;
        worker->reading = NULL;
        a->readings--;
        if (worker->error_path != NULL)
            worker->error.problem = say_not_read(worker->error_path);
        tell_exited(a, &r->exit, r->stopping);
        mu_filethread_cancel(&r->job);
    }
    tell_stopped(a);
}

static void stop_readings(struct mu_agent *a)
{
    for (size_t i = 0; i < (size_t)a->config.local_world_size; i++) {
        if (a->workers[i].reading != NULL)
            mu_filethread_cancel(&a->workers[i].reading->job);
        a->workers[i].reading = NULL;
    }
    a->readings = 0;
}

/* False: there is nothing to read, or no memory for it. */
static bool start_reading(struct mu_agent *a, const struct mu_exit *exit)
{
    struct mu_worker *worker = &a->workers[exit->rank];
    const char *tail = a->logs != NULL && !worker->hung ? mu_logs_tail_file(a->logs, exit->rank) : NULL;
    struct mu_reading *r = worker->error_path != NULL || tail != NULL ? calloc(1, sizeof *r) : NULL;

    if (r == NULL)
        return false;
    r->job = (struct mu_file_job){ .run = run_reading, .done = on_was_read, .drop = free_reading };
    r->agent = a;
    r->exit = (struct mu_exit){ .rank = exit->rank, .pid = exit->pid, .code = exit->code };
    r->stopping = a->stopping;
    r->error_path = worker->error_path != NULL ? strdup(worker->error_path) : NULL;
    r->tail_path = tail != NULL ? strdup(tail) : NULL;
    worker->reading = r;
    if (a->readings++ == 0)
        (void)uv_timer_start(&a->read_timer, on_read_timer, mu_disk_is_silent(a->disk) ? 0 : READ_MS, 0);
    mu_disk_submit(a->disk, &r->job);
    return true;
}

/* Keeps a function's value or, if it failed, its error text. A value that did not come back is a failure. */
static void keep_value(struct mu_worker *worker, const struct mu_exit *exit)
{
    const char *lost = exit->result_error != NULL ? exit->result_error->text : NULL;

    if (worker->hung)
        return; /* what was said of it counts */
    if (exit->result.len > 0 && mu_buf_assign(worker->failed ? &worker->tail : &worker->value, exit->result) < 0)
        lost = "no memory for what it gave back";
    if (lost == NULL || (worker->failed && exit->code != MU_SPAWN_EXIT_SETUP))
        return;
    worker->failed = true;
    (void)mu_buf_assign(&worker->tail, mu_slice_str(lost));
}

/* For the policy, which logs it once; PyTorch's own line is logged at DEBUG. */
static void describe_failure(const struct mu_agent *a, uint32_t rank, char *text, size_t room)
{
    struct mu_failure failure = mu_agent_failure_of(&a->workers[rank], rank);
    struct mu_buf line = { 0 };
    char stock[512];

    if (mu_failure_write_line(&failure, a->hostname, &line) == 0)
        (void)snprintf(text, room, "%.*s", (int)line.len, line.data);
    mu_buf_done(&line);
    mu_say_failed(stock, sizeof stock, &failure, a->entry_point, a->start_method);
    mu_log(MUSTER_LOG_DEBUG, "%s", stock);
}

static void on_worker_exit(void *ctx, const struct mu_exit *exit)
{
    struct mu_agent *a = ctx;
    struct mu_worker *worker = &a->workers[exit->rank];
    struct mu_oom oom;
    bool reading = false;

    worker->exited = true;
    worker->code = exit->code;
    worker->failed = exit->code != 0 || worker->hung;
    if (!worker->hung) {
        worker->noticed_s = exit->wall_ms / 1000;
        worker->order = a->stopping ? UINT_MAX : a->deaths++;
    }
    mu_watchdog_forget(a->watchdog, exit->pid);
    if (a->logs != NULL)
        mu_logs_worker_exited(a->logs, exit->rank);
    if (worker->failed) {
        if (!a->stopping) {
            mu_oom_read("", &oom);
            worker->out_of_memory = mu_oom_killed(&a->oom, &oom, exit->code);
        }
        if (a->logs != NULL && !worker->hung)
            (void)mu_logs_tail(a->logs, exit->rank, &worker->tail);
        reading = start_reading(a, exit);
    }
    keep_value(worker, exit);
    if (!reading)
        tell_exited(a, exit, a->stopping);
}

/* All that will be known of its end is known. */
static void tell_exited(struct mu_agent *a, const struct mu_exit *exit, bool stopping)
{
    struct mu_worker *worker = &a->workers[exit->rank];
    char text[MU_POLICY_TEXT_MAX] = "";

    if (a->ended)
        return;
    if (worker->failed && !stopping)
        describe_failure(a, exit->rank, text, sizeof text);
    mu_agent_tell(a, (struct mu_policy_event){ .type = MU_POLICY_ON_EXITED,
                                               .round = a->info.round,
                                               .number = exit->rank,
                                               .ok = !worker->failed,
                                               .text = text });
}

/* It still runs, and counts as failed from now on. */
static void tell_unhealthy(struct mu_agent *a, uint32_t rank, const char *text, bool can_be_stopped)
{
    struct mu_worker *worker = &a->workers[rank];

    worker->hung = true;
    worker->noticed_s = time(NULL);
    worker->order = a->deaths++;
    (void)mu_buf_assign(&worker->tail, mu_slice_str(text));
    mu_agent_tell(a, (struct mu_policy_event){ .type = MU_POLICY_ON_UNHEALTHY,
                                               .round = a->info.round,
                                               .number = rank,
                                               .ok = can_be_stopped,
                                               .text = text });
}

static void on_worker_hang(void *ctx, const struct mu_hang *hang)
{
    struct mu_agent *a = ctx;
    const struct mu_worker *worker = &a->workers[hang->rank];
    char text[512];

    (void)snprintf(text, sizeof text,
                   "rank %" PRId64 " on %s (local rank %" PRIu32 ", pid %d, %s) has hung in the kernel (state %c) for "
                   "more than %" PRIu64 ".%01" PRIu64 " s",
                   worker->rank, a->hostname, hang->rank, (int)hang->pid, hang->comm, hang->state,
                   a->config.hang_ms / 1000, a->config.hang_ms % 1000 / 100);
    tell_unhealthy(a, hang->rank, text, false);
}

/* Workers that cannot be killed count as failed. */
static void give_up_on_the_rest(struct mu_agent *a, const char *left)
{
    for (size_t i = 0; i < (size_t)a->config.local_world_size; i++) {
        struct mu_worker *worker = &a->workers[i];
        char text[256];

        if (!worker->started || worker->exited)
            continue;
        worker->failed = true;
        worker->code = -SIGKILL;
        if (worker->hung)
            continue;
        worker->noticed_s = time(NULL);
        worker->order = UINT_MAX;
        (void)snprintf(text, sizeof text, "it does not end: %.200s", left);
        (void)mu_buf_assign(&worker->tail, mu_slice_str(text));
    }
}

/* When all is read that they have left. */
static void tell_stopped(struct mu_agent *a)
{
    struct mu_policy_event event = {
        .type = MU_POLICY_ON_STOPPED, .round = a->info.round, .number = (int64_t)a->left_count, .text = a->left
    };
    char *left = a->left;

    if (a->readings > 0)
        return;
    (void)uv_timer_stop(&a->read_timer);
    if (!a->has_stopped)
        return;
    a->has_stopped = false;
    a->left = NULL;
    stop_watchdog(a);
    finish_logs(a);
    if (!a->ended)
        mu_agent_tell(a, event);
    free(left);
}

static void on_workers_stopped(void *ctx, const struct mu_stopped *stopped)
{
    struct mu_agent *a = ctx;

    give_up_on_the_rest(a, stopped->left);
    a->has_stopped = true;
    a->left_count = stopped->left_count;
    a->left = strdup(stopped->left); /* NULL: it is not said what they are */
    tell_stopped(a);
}

static bool all_ended(const struct mu_agent *a)
{
    bool all = true;

    for (size_t i = 0; i < (size_t)a->config.local_world_size; i++)
        all &= !a->workers[i].started || a->workers[i].exited;
    return all;
}

/* A driver's workers are stopped when the end of each was told. If all have ended, the driver is not called. */
static void stop_by_driver(struct mu_agent *a, int signal, uint64_t grace_ms, bool is_restart)
{
    const struct muster_worker_stop how = {
        .size = sizeof how, .signal = signal, .grace_ms = (int64_t)grace_ms, .is_restart = is_restart
    };
    bool again = a->stopping;

    a->stopping = true;
    if (!all_ended(a))
        a->config.driver->stop(a->config.ctx, &how);
    else if (!again)
        mu_agent_tell_later(a, (struct mu_policy_event){ .type = MU_POLICY_ON_STOPPED, .round = a->info.round });
}

void mu_agent_worker_ended(struct mu_agent *a, const struct mu_exit *exit)
{
    bool stopping = a->stopping;

    assert(a->config.driver != NULL && a->workers[exit->rank].started && !a->workers[exit->rank].exited);
    on_worker_exit(a, exit);
    if (stopping && all_ended(a))
        on_workers_stopped(a, &(struct mu_stopped){ .left = "" });
}

void mu_agent_worker_unhealthy(struct mu_agent *a, uint32_t local_rank, const char *text)
{
    const struct mu_worker *worker = &a->workers[local_rank];
    char line[MU_POLICY_TEXT_MAX];

    assert(a->config.driver != NULL && worker->started && !worker->exited);
    if (a->stopping || worker->hung)
        return; /* it is being stopped already */
    (void)snprintf(line, sizeof line, "rank %" PRId64 " on %s (local rank %" PRIu32 ", id %s) is unhealthy: %.400s",
                   worker->rank, a->hostname, local_rank, worker->id.text, text);
    tell_unhealthy(a, local_rank, line, true);
}

void mu_agent_stop_workers(struct mu_agent *a, int signal, uint64_t grace_ms, bool is_restart)
{
    if (a->config.driver != NULL) {
        stop_by_driver(a, signal, grace_ms, is_restart);
        return;
    }
    a->stopping = true;
    if (a->opening) { /* they are not started at all */
        a->opening = false;
        finish_logs(a);
    }
    if (signal == SIGKILL)
        mu_group_kill(a->group);
    else
        mu_group_stop(a->group, signal, grace_ms);
}

/* ---- For the agent ---- */

int mu_agent_make_group(struct mu_agent *a, struct muster_error *reterr)
{
    struct mu_startup for_workers = { .ignored = 0 };
    struct mu_group_config group = { .loop = a->loop,
                                     .startup = a->config.startup != NULL ? &for_workers : NULL,
                                     .on_exit = on_worker_exit,
                                     .on_stopped = on_workers_stopped,
                                     .hang_ms = a->config.hang_ms,
                                     .on_hang = on_worker_hang,
                                     .ctx = a };

    if (a->config.startup != NULL) {
        for_workers = *a->config.startup;
        mu_startup_for_workers(&for_workers, a->config.signals);
    }
    return mu_group_new(&group, &a->group, reterr);
}

void mu_agent_close_workers(struct mu_agent *a)
{
    stop_watchdog(a);
    stop_readings(a);
    finish_logs(a);
    if (a->group != NULL) {
        a->handles++;
        mu_group_close(a->group, mu_agent_on_part_closed, a);
    }
}
