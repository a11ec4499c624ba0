/* The agent: what its machines want is done here, and what happens is told to them.
 *
 * Happy path: RUN -> the policy says JOIN -> the handler tells JOINED -> ASSIGN: the ranks machine exchanges sizes through
 * the group's store -> START_WORKERS: output is opened, commands are made and started -> they exit -> STOP_WORKERS ends what
 * they left -> FINISH: the completion machine waits for the others -> END. What goes from one machine to another is the
 * business of job.h.
 *
 * Failures of the store are the machines' business: every ask is answered, with an error if need be. Without memory for an
 * ask or an event the agent ends with an error. */
#include "agent/agent_uv.h"

#include "agent/formed_text.h"
#include "agent/job.h"
#include "agent/oom.h"
#include "agent/timer_uv.h"
#include "agent/trace.h"
#include "base/files.h"
#include "base/log.h"
#include "events/agent_event.h"
#include "handler/rdzv_trace.h"
#include "kv/kv_c10d_uv.h"
#include "logs/tail.h"
#include "proc/keeper.h"
#include "proc/signals_uv.h"
#include "rdzv/doc.h"
#include "rdzv/round_keys.h"
#include "store/listen.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define KV_TIMEOUT_MS 60000
#define READ_MS 2000 /* for what a worker that has failed left in files */
#define DISK_CLOSE_MS                                                                                                  \
    1000 /* in the end, for files that are being closed; what was written to them is waited for before */

/* What a worker that has failed left in files. They may be on a file system that hangs: a thread reads them. */
struct reading {
    struct mu_file_job job;
    struct mu_agent *agent;
    struct mu_exit exit;          /* without a function's result */
    bool stopping;                /* when it ended */
    char *error_path, *tail_path; /* NULL: none */
    struct mu_errfile error;
    struct mu_buf tail;
};

enum {
    FILES_AGENT = 40, /* its own: connections to stores, consoles, signals, the file timer, what is open for a moment */
    FILES_PER_WORKER = 2, /* its pidfd, and the pipe of a function's result */
};

struct worker {
    pid_t pid;                  /* 0: a driver's */
    struct muster_worker_id id; /* the same, or what a driver calls it */
    int64_t rank, role_rank;
    bool started, exited, failed;
    int code;
    int64_t noticed_s;
    unsigned order; /* of its death; those who were stopped come last, by local rank, as PyTorch finds them */
    bool hung;      /* which was noticed before, and counts instead */
    bool out_of_memory;
    char *error_path;
    struct mu_errfile error;
    struct mu_buf tail;
    struct reading *reading; /* until it is through, its end is not told; NULL: none */
    struct mu_buf value;     /* what a function gave back */
};

struct mu_agent {
    uv_loop_t *loop;
    struct mu_agent_config config;
    char *run_id, *backend, *role, *entry_point, *timer_file, *node;
    char *start_method;      /* NULL: workers are programs */
    char *event_log_handler; /* NULL: not known */
    char hostname[256];
    struct muster_handler *handler;
    struct muster_rdzv *made; /* goes after the handler; NULL: none */
    struct mu_job *job;
    struct mu_kv *kv;       /* to the group's store; NULL: not opened yet */
    struct mu_kv *users_kv; /* the same for the library's user, whose waits are not to hold up ours */
    char kv_host[MU_RDZV_HOST_MAX];
    uint16_t kv_port;
    size_t waits; /* gets that are under way in it */
    uv_timer_t timer;
    uv_poll_t keeper;
    bool has_keeper;
    struct mu_will *will;             /* what the keeper sends if we are killed; NULL: it sends nothing */
    char will_key[MU_WILL_BYTES_MAX]; /* that it sets; empty: to be made, if there is to be one */
    struct mu_watch *signals, *stop_signal;
    /* The round. */
    struct muster_rdzv_info info;
    bool old_dialect;
    bool meets_alone; /* the back end has no address for the workers: worker 0 listens here */
    /* The workers. */
    struct mu_group *group;
    struct worker *workers; /* of the last attempt */
    unsigned deaths;
    struct mu_disk *disk; /* NULL: none were needed so far */
    uv_timer_t read_timer;
    size_t readings;   /* that are under way */
    bool has_stopped;  /* all workers are stopped, and it is told when what they left is read ... */
    size_t left_count; /* ... with what is left of them */
    char *left;
    bool opening; /* the output of an attempt is being opened; its workers are started then */
    struct mu_logs *logs;
    size_t logs_open; /* attempts whose output is still being read */
    struct mu_watchdog *watchdog;
    struct mu_oom oom;
    bool stopping; /* what dies now dies of us */
    bool said_where;
    bool traits;
    /* The end. */
    uint64_t start_ms;
    size_t files; /* reserved */
    bool ended, freeing;
    struct mu_policy_outcome outcome;
    size_t handles;
    void (*done)(void *ctx);
    void *done_ctx;
};

/* A request of a machine to the store. */
struct order {
    struct mu_kv_request request;
    struct mu_agent *agent;
    enum mu_job_who who;
    uint64_t id;
    bool waits;
    struct mu_buf key, value, expected;
};

static void feed(struct mu_agent *a, struct mu_job_event event);
static void handle_gone(struct mu_agent *a, size_t handles);
static void on_kv_closed(struct mu_kv *kv, void *ctx);
static void on_ended(uv_timer_t *timer);

/* ---- Telling ---- */

/* What happened, from the loop. */
static void tell(struct mu_agent *a, struct mu_policy_event event)
{
    feed(a, (struct mu_job_event){ .type = MU_JOB_ON_TOLD, .told = event });
}

/* What comes at once of something that the job wants. */
static void tell_later(struct mu_agent *a, struct mu_policy_event event)
{
    mu_job_tell(a->job, &event);
}

/* ---- The store ---- */

static struct mu_slice slice_of(const struct muster_bytes *bytes)
{
    return mu_slice(bytes->data, bytes->len);
}

static void free_order(struct order *order)
{
    muster_bytes_done(&order->request.bytes);
    muster_bytes_done(&order->request.state_token);
    mu_buf_done(&order->key);
    mu_buf_done(&order->value);
    mu_buf_done(&order->expected);
    free(order);
}

static void on_answered(struct mu_kv_request *request)
{
    struct order *order = request->ctx;

    order->agent->waits -= order->waits;
    if (!order->agent->freeing && !order->agent->ended)
        feed(order->agent, (struct mu_job_event){ .type = MU_JOB_ON_ANSWER,
                                                  .who = order->who,
                                                  .answer = { .id = order->id,
                                                              .value = slice_of(&request->bytes),
                                                              .number = request->number,
                                                              .found = request->found,
                                                              .error = request->rc < 0 ? &request->error : NULL,
                                                              .gone = request->gone } });
    free_order(order);
}

/* The handler says where the group's store is once a round was joined; it does not move while we are connected. */
static int open_kv(struct mu_agent *a, struct mu_kv **kv, struct muster_error *reterr)
{
    struct mu_kv_c10d_config config = { .run_id = a->run_id, .read_timeout_ms = KV_TIMEOUT_MS };
    uint64_t seed = 0;

    if (*kv != NULL)
        return 0;
    if (mu_handler_has_kv(a->handler))
        return mu_handler_open_kv(a->handler, kv, reterr);
    if (a->handler->ops->endpoint == NULL ||
        !a->handler->ops->endpoint(a->handler, a->kv_host, sizeof a->kv_host, &a->kv_port))
        return mu_fail(reterr, MUSTER_ENOTSUP, "back end '%s' has no store for agents", a->backend);
    if (getrandom(&seed, sizeof seed, 0) < 0)
        seed = (uint64_t)getpid();
    config.host = a->kv_host;
    config.port = a->kv_port;
    config.seed = seed;
    return mu_kv_c10d_start(a->loop, &config, kv, reterr);
}

static int fill_order(struct mu_agent *a, struct order *order, const struct mu_ask *ask, struct muster_error *reterr)
{
    if (mu_buf_append(&order->key, ask->key.data, ask->key.len, SIZE_MAX) < 0 ||
        mu_buf_append(&order->value, ask->value.data, ask->value.len, SIZE_MAX) < 0 ||
        mu_buf_append(&order->expected, ask->expected.data, ask->expected.len, SIZE_MAX) < 0)
        return mu_fail(reterr, MUSTER_ENOMEM, "a request to the store");
    order->request.key = (struct muster_slice){ order->key.data, order->key.len };
    order->request.value = (struct muster_slice){ order->value.data, order->value.len };
    order->request.token = (struct muster_slice){ order->expected.data, order->expected.len };
    return open_kv(a, &a->kv, reterr);
}

/* An ask that cannot even be made is answered with the reason. */
static void submit(struct mu_agent *a, enum mu_job_who who, const struct mu_ask *ask)
{
    static const enum mu_kv_kind kinds[] = {
        [MU_ASK_GET] = MU_KV_GET,     [MU_ASK_SET] = MU_KV_SET,
        [MU_ASK_ADD] = MU_KV_ADD,     [MU_ASK_COMPARE_SET] = MU_KV_COMPARE_SET,
        [MU_ASK_CHECK] = MU_KV_CHECK, [MU_ASK_DELETE] = MU_KV_DELETE,
    };
    struct order *order = calloc(1, sizeof *order);
    struct muster_error error = { 0 };
    int rc = MUSTER_ENOMEM;

    if (order == NULL)
        (void)mu_fail(&error, rc, "a request to the store");
    else
        rc = fill_order(a, order, ask, &error);
    if (rc < 0) {
        if (order != NULL)
            free_order(order);
        mu_job_refuse(a->job, who, ask->id, &error);
        return;
    }
    order->agent = a;
    order->who = who;
    order->id = ask->id;
    order->request.kind = kinds[ask->kind];
    order->request.number = ask->number;
    order->request.timeout_ms = ask->timeout_ms;
    order->request.done = on_answered;
    order->request.ctx = order;
    order->waits = ask->kind == MU_ASK_GET;
    a->waits += order->waits;
    a->kv->ops->submit(a->kv, &order->request);
}

/* A new round: whatever we still wait for is of an earlier one, and may never come. What waits in a TCPStore has its
 * connection to itself, and there are few: those of the new round would queue up behind it. */
static void end_waits(struct mu_agent *a)
{
    if (a->users_kv != NULL) {
        a->handles++;
        a->users_kv->ops->close(a->users_kv, on_kv_closed, a);
        a->users_kv = NULL;
    }
    if (a->waits == 0 || a->kv == NULL || mu_handler_has_kv(a->handler))
        return;
    a->handles++;
    a->kv->ops->close(a->kv, on_kv_closed, a);
    a->kv = NULL; /* opened again when it is needed */
}

static int64_t job_round(const struct mu_agent *a, int64_t round);

bool mu_agent_round_prefix(const struct mu_agent *a, char *text, size_t room)
{
    if (a->info.world_size < 0 || mu_policy_phase(mu_job_policy(a->job)) == MU_POLICY_JOINING)
        return false;
    mu_round_stock_prefix(text, room, a->run_id, job_round(a, a->info.round));
    return true;
}

void mu_agent_ask(struct mu_agent *a, struct mu_kv_request *request)
{
    request->rc = a->ended ? mu_fail(&request->error, MUSTER_ECANCELED, "the run is over")
                           : open_kv(a, &a->users_kv, &request->error);
    if (request->rc == 0)
        a->users_kv->ops->submit(a->users_kv, request);
    else
        request->done(request);
}

/* ---- Events for the record ---- */

static struct mu_event_agent event_agent(const struct mu_agent *a)
{
    return (struct mu_event_agent){
        .run_id = a->run_id,
        .role = a->role,
        .hostname = a->hostname,
        .rdzv_backend = a->backend,
        .entry_point = a->entry_point,
        .group_rank = a->info.rank,
        .group_world_size = a->info.world_size,
        .agent_restarts = mu_policy_count(mu_job_policy(a->job)),
    };
}

static struct mu_failure failure_of(const struct worker *worker, int64_t local_rank)
{
    return (struct mu_failure){
        .rank = worker->rank,
        .local_rank = local_rank,
        .pid = worker->pid,
        .id = worker->pid == 0 ? worker->id.text : NULL,
        .exit_code = worker->code,
        .noticed_s = worker->noticed_s,
        .error_path = worker->error_path,
        .error = &worker->error,
        .out_of_memory = worker->out_of_memory,
        .last_stderr = mu_buf_slice(&worker->tail),
    };
}

/* In seconds, for events of the end. PyTorch's others have 0. */
static int64_t total_run_time_s(const struct mu_agent *a)
{
    return (int64_t)(uv_now(a->loop) - a->start_ms) / 1000;
}

static void record_worker(struct mu_agent *a, size_t index, enum mu_agent_event_state state)
{
    const struct worker *worker = &a->workers[index];
    struct mu_event_agent agent = event_agent(a);
    struct mu_event_worker about = {
        .rank = worker->rank,
        .local_rank = (int64_t)index,
        .role_rank = worker->role_rank,
        .role_world_size = mu_job_assigned(a->job)->role_world_size,
        .id = worker->id.text,
        .pid = worker->pid,
        .has_failed = worker->failed,
        .exit_code = worker->code,
    };
    struct mu_agent_event event = { .state = state, .agent = &agent, .worker = &about, .duration_ms = -1 };
    struct mu_buf raw = { 0 };

    if (state != MU_EVENT_START)
        agent.total_run_time_s = total_run_time_s(a);
    if (worker->failed) {
        struct mu_failure failure = failure_of(worker, (int64_t)index);

        a->traits |= mu_failures_have_traits(&failure, 1);
        if (mu_failure_write_raw(&failure, a->traits, &raw) == 0 && mu_buf_append(&raw, "", 1, SIZE_MAX) == 0)
            event.raw_error = raw.data;
    }
    mu_agent_event_record(&event);
    mu_buf_done(&raw);
}

static enum mu_agent_event_state end_state(enum mu_worker_end end)
{
    switch (end) {
    case MU_WORKER_SUCCEEDED:
        return MU_EVENT_SUCCEEDED;
    case MU_WORKER_FAILED:
        return MU_EVENT_FAILED;
    case MU_WORKER_TERMINATED:
        break;
    }
    return MU_EVENT_TERMINATED;
}

static void record(struct mu_agent *a, const struct mu_policy_effect *effect)
{
    struct mu_event_agent agent = event_agent(a);
    struct mu_agent_event event = { .agent = &agent,
                                    .duration_ms = (double)effect->duration_ms,
                                    .raw_error = effect->error != NULL ? effect->error->text : NULL };

    switch (effect->record) {
    case MU_POLICY_RECORD_RENDEZVOUS:
        event.state = MU_EVENT_RENDEZVOUS;
        mu_agent_event_record(&event);
        break;
    case MU_POLICY_RECORD_ASSIGN:
        event.state = MU_EVENT_ASSIGN_WORKER_RANKS;
        mu_agent_event_record(&event);
        break;
    case MU_POLICY_RECORD_AGENT:
        agent.total_run_time_s = total_run_time_s(a);
        event.state = effect->state == MU_GROUP_SUCCEEDED ? MU_EVENT_SUCCEEDED : MU_EVENT_FAILED;
        mu_agent_event_record(&event);
        break;
    case MU_POLICY_RECORD_WORKERS_START:
        for (size_t i = 0; i < (size_t)a->config.local_world_size; i++)
            record_worker(a, i, MU_EVENT_START);
        break;
    case MU_POLICY_RECORD_WORKERS_END:
        for (size_t i = 0; i < (size_t)a->config.local_world_size; i++)
            if (a->workers[i].started)
                record_worker(a, i, end_state(mu_worker_end_of(effect->state, a->workers[i].failed)));
        break;
    }
}

/* ---- Workers ---- */

static void forget_workers(struct mu_agent *a)
{
    for (size_t i = 0; i < (size_t)a->config.local_world_size; i++) {
        free(a->workers[i].error_path);
        mu_errfile_done(&a->workers[i].error);
        mu_buf_done(&a->workers[i].tail);
        mu_buf_done(&a->workers[i].value);
        a->workers[i] = (struct worker){ 0 };
    }
    a->deaths = 0;
}

static void on_logs_finished(void *ctx, const struct mu_logs_stats *stats)
{
    struct mu_agent *a = ctx;

    (void)stats;
    a->logs_open--;
    handle_gone(a, 0);
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
    struct mu_event_agent agent = event_agent(a);
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

static void on_watchdog_closed(void *ctx)
{
    handle_gone(ctx, 1);
}

static void stop_watchdog(struct mu_agent *a)
{
    if (a->watchdog == NULL)
        return;
    a->handles++;
    mu_watchdog_close(a->watchdog, on_watchdog_closed, a);
    a->watchdog = NULL;
}

/* Lines that scripts look for. */
static void say_where(struct mu_agent *a)
{
    char line[MU_LOGTREE_PATH_MAX + 128];

    if (!a->said_where && a->config.tree->run[0] != '\0') {
        a->said_where = true;
        mu_say_log_dir(line, sizeof line, a->config.tree->run);
        mu_log(MUSTER_LOG_INFO, "%s", line);
    }
    for (uint32_t i = 0; i < (uint32_t)a->config.local_world_size; i++) {
        const char *path = mu_logs_error_file(a->logs, i);

        if (path[0] == '\0')
            continue; /* there is none without a log directory */
        mu_say_error_file(line, sizeof line, i, path);
        mu_log(MUSTER_LOG_INFO, "%s", line);
    }
}

/* Directories of our own in /tmp are trusted to answer: without files to write, no thread is worth its start. */
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

/* Whether an agent has the workers' store. With PyTorch 1.13 worker 0 has it, except in a static rendezvous, which has no rounds; so it
 * does where the back end has no address for them. */
static bool shares_store(const struct mu_agent *a)
{
    return (!a->old_dialect || a->info.round < 0) && !a->meets_alone && a->handler->ops->use_agent_store(a->handler);
}

static struct mu_agent_worker about_worker(const struct mu_agent *a, uint32_t index)
{
    const struct mu_ranks_result *assigned = mu_job_assigned(a->job);
    const struct mu_boot_master *given = &a->config.master;
    bool own_master = assigned->master_port != 0; /* of a PyTorch 1.13 rank 0 */
    const char *found_addr = own_master ? assigned->master_addr : a->info.bootstrap.master_addr;
    uint16_t found_port = own_master ? assigned->master_port : a->info.bootstrap.master_port;

    return (struct mu_agent_worker){
        .local_rank = index,
        .rank = assigned->base_rank + index,
        .group_rank = a->info.rank,
        .role_rank = assigned->base_role_rank + index,
        .local_world_size = a->config.local_world_size,
        .world_size = assigned->world_size,
        .group_world_size = a->info.world_size,
        .role_world_size = assigned->role_world_size,
        .master_addr = given->addr[0] != '\0' ? given->addr : found_addr,
        .master_port = given->port != 0 ? given->port : found_port,
        .restart_count = assigned->count,
        .use_agent_store = shares_store(a),
        .error_file = a->logs != NULL ? mu_logs_error_file(a->logs, index) : "",
        .timer_file = a->watchdog != NULL ? a->timer_file : NULL,
    };
}

static int prepare_worker(struct mu_agent *a, uint32_t index, struct mu_spawn *ret_spec, struct muster_error *reterr)
{
    struct worker *worker = &a->workers[index];
    struct mu_agent_worker about = about_worker(a, index);
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
static void name_worker(struct worker *worker, const struct muster_worker_id *id)
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
        rc = mu_group_start(a->group, specs, count, NULL, reterr);
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
        about[i] = about_worker(a, i);
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

static void say_formed(const struct mu_agent *a, int64_t regroup_ms)
{
    struct mu_agent_worker first = about_worker(a, 0);
    struct mu_formed formed = { .round = a->info.round,
                                .nodes = first.group_world_size,
                                .workers = first.world_size,
                                .rank = first.group_rank,
                                .first_worker = first.rank,
                                .local_workers = first.local_world_size,
                                .master_addr = first.master_addr,
                                .master_port = first.master_port,
                                .regroup_ms = regroup_ms,
                                .restarts = first.restart_count,
                                .max_restarts = a->config.max_restarts,
                                .role = a->role,
                                .first_role_rank = first.role_rank,
                                .role_workers = first.role_world_size,
                                .event_log_handler = a->event_log_handler };
    char line[MU_FORMED_LINE_MAX];

    mu_formed_say(&formed, line);
    mu_log(MUSTER_LOG_NOTICE, "%s", line);
    for (unsigned i = 0; mu_formed_say_result(&formed, i, line); i++)
        mu_log(MUSTER_LOG_INFO, "%s", line);
}

/* Only some back ends know them. */
static void say_members(const struct muster_rdzv_event *event)
{
    char line[MU_FORMED_LINE_MAX];

    for (size_t next = 0; next < event->nodes_count;) {
        next = mu_formed_say_members(event->info->round, event->nodes, event->nodes_count, next, line);
        mu_log(MUSTER_LOG_INFO, "%s", line);
    }
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
        tell(a, started(a, error));
        return;
    }
    say_where(a);
    tell(a, started(a, start_all(a, &own) < 0 ? &own : NULL));
}

/* `regroup_ms`: since the group before it ended; -1: it is the first. */
static void start_workers(struct mu_agent *a, int64_t regroup_ms)
{
    struct muster_error error = { 0 };
    int rc;

    finish_logs(a);
    forget_workers(a);
    a->stopping = false;
    say_formed(a, regroup_ms); /* before the workers say anything */
    rc = a->config.driver != NULL ? start_by_driver(a, &error) : open_logs(a, &error);
    if (rc < 0 || a->config.driver != NULL)
        tell_later(a, started(a, rc < 0 ? &error : NULL));
}

/* ---- What a worker that has failed left in files ---- */

static void run_reading(struct mu_file_job *job)
{
    struct reading *r = MU_LIST_ITEM(job, struct reading, job);

    mu_errfile_read(r->error_path, &r->error);
    if (r->tail_path != NULL)
        (void)mu_tail_file(r->tail_path, &r->tail);
}

static void free_reading(struct mu_file_job *job)
{
    struct reading *r = MU_LIST_ITEM(job, struct reading, job);

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
    struct reading *r = MU_LIST_ITEM(job, struct reading, job);
    struct mu_agent *a = r->agent;
    struct worker *worker = &a->workers[r->exit.rank];

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
        struct worker *worker = &a->workers[i];
        struct reading *r = worker->reading;

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
    struct worker *worker = &a->workers[exit->rank];
    const char *tail = a->logs != NULL && !worker->hung ? mu_logs_tail_file(a->logs, exit->rank) : NULL;
    struct reading *r = worker->error_path != NULL || tail != NULL ? calloc(1, sizeof *r) : NULL;

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

/* A function's value; of one that has failed, its last words. A value that did not come back is a failure. */
static void keep_value(struct worker *worker, const struct mu_exit *exit)
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

/* For the policy, which says it once; PyTorch's line is for debugging. */
static void describe_failure(const struct mu_agent *a, uint32_t rank, char *text, size_t room)
{
    struct mu_failure failure = failure_of(&a->workers[rank], rank);
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
    struct worker *worker = &a->workers[exit->rank];
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
    struct worker *worker = &a->workers[exit->rank];
    char text[MU_POLICY_TEXT_MAX] = "";

    if (a->ended)
        return;
    if (worker->failed && !stopping)
        describe_failure(a, exit->rank, text, sizeof text);
    tell(a, (struct mu_policy_event){ .type = MU_POLICY_ON_EXITED,
                                      .round = a->info.round,
                                      .number = exit->rank,
                                      .ok = !worker->failed,
                                      .text = text });
}

/* It still runs, and counts as failed from now on. */
static void tell_unhealthy(struct mu_agent *a, uint32_t rank, const char *text, bool can_be_stopped)
{
    struct worker *worker = &a->workers[rank];

    worker->hung = true;
    worker->noticed_s = time(NULL);
    worker->order = a->deaths++;
    (void)mu_buf_assign(&worker->tail, mu_slice_str(text));
    tell(a, (struct mu_policy_event){ .type = MU_POLICY_ON_UNHEALTHY,
                                      .round = a->info.round,
                                      .number = rank,
                                      .ok = can_be_stopped,
                                      .text = text });
}

static void on_worker_hang(void *ctx, const struct mu_hang *hang)
{
    struct mu_agent *a = ctx;
    const struct worker *worker = &a->workers[hang->rank];
    char text[512];

    (void)snprintf(text, sizeof text,
                   "rank %" PRId64 " on %s (local rank %" PRIu32 ", pid %d, %s) has hung in the kernel (state %c) for "
                   "more than %" PRIu64 ".%01" PRIu64 " s",
                   worker->rank, a->hostname, hang->rank, (int)hang->pid, hang->comm, hang->state,
                   a->config.hang_ms / 1000, a->config.hang_ms % 1000 / 100);
    tell_unhealthy(a, hang->rank, text, false);
}

/* Workers that cannot be killed have failed, as far as anybody will ever know. */
static void give_up_on_the_rest(struct mu_agent *a, const char *left)
{
    for (size_t i = 0; i < (size_t)a->config.local_world_size; i++) {
        struct worker *worker = &a->workers[i];
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
        tell(a, event);
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

/* A driver's workers are stopped when the end of each was told; without another call if it was already. */
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
        tell_later(a, (struct mu_policy_event){ .type = MU_POLICY_ON_STOPPED, .round = a->info.round });
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
    const struct worker *worker = &a->workers[local_rank];
    char line[MU_POLICY_TEXT_MAX];

    assert(a->config.driver != NULL && worker->started && !worker->exited);
    if (a->stopping || worker->hung)
        return; /* it is being stopped already */
    (void)snprintf(line, sizeof line, "rank %" PRId64 " on %s (local rank %" PRIu32 ", id %s) is unhealthy: %.400s",
                   worker->rank, a->hostname, local_rank, worker->id.text, text);
    tell_unhealthy(a, local_rank, line, true);
}

static void stop_workers(struct mu_agent *a, int signal, uint64_t grace_ms, bool is_restart)
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

/* ---- The policy ---- */

static void end(struct mu_agent *a, const struct mu_policy_outcome *outcome)
{
    a->ended = true;
    a->outcome = *outcome;
    (void)uv_timer_stop(&a->timer);
    (void)uv_timer_start(&a->timer, on_ended, 0, 0);
}

static void on_alone(void *ctx)
{
    struct mu_agent *a = ctx;

    tell(a, (struct mu_policy_event){ .type = MU_POLICY_ON_ALONE, .round = -1 });
}

static void perform_policy(struct mu_agent *a, const struct mu_policy_effect *effect)
{
    struct mu_metrics_outcome final = {
        .role = a->role,
        .failed = !effect->ok,
        .remaining_restarts = effect->number,
        .max_restarts = a->config.max_restarts,
    };

    switch (effect->type) {
    case MU_POLICY_DO_JOIN:
        if (a->config.on_join != NULL)
            a->config.on_join(a->config.ctx);
        a->handler->ops->join(a->handler);
        break;
    case MU_POLICY_DO_LEAVE:
        a->handler->ops->leave(a->handler);
        break;
    case MU_POLICY_DO_START_WORKERS:
        start_workers(a, effect->ok ? effect->number : -1);
        break;
    case MU_POLICY_DO_STOP_WORKERS:
        stop_workers(a, effect->signal, effect->grace_ms, effect->ok);
        break;
    case MU_POLICY_DO_KILL_WORKERS:
        stop_workers(a, SIGKILL, 0, effect->ok);
        break;
    case MU_POLICY_DO_LINGER:
        if (a->handler->ops->when_alone != NULL)
            a->handler->ops->when_alone(a->handler, on_alone, a);
        break;
    case MU_POLICY_DO_STATE:
        if (a->config.on_state != NULL)
            a->config.on_state(a->config.ctx, effect->state);
        break;
    case MU_POLICY_DO_RECORD:
        record(a, effect);
        break;
    case MU_POLICY_DO_STEP:
        mu_metrics_step(effect->step, effect->ok, effect->duration_ms);
        break;
    case MU_POLICY_DO_DECISION:
        mu_metrics_decision(a->role, mu_group_state_name(effect->state), effect->number);
        break;
    case MU_POLICY_DO_FINAL:
        mu_metrics_put_final(&final);
        break;
    case MU_POLICY_DO_SAY:
        mu_log(effect->level, "%s", effect->text);
        break;
    case MU_POLICY_DO_END:
        end(a, effect->outcome);
        break;
    case MU_POLICY_DO_ASSIGN: /* the job sees to these */
    case MU_POLICY_DO_ASSIGN_STOP:
    case MU_POLICY_DO_WATCH:
    case MU_POLICY_DO_WATCH_STOP:
    case MU_POLICY_DO_LISTEN:
    case MU_POLICY_DO_TELL_FAILED:
    case MU_POLICY_DO_NOTE:
    case MU_POLICY_DO_FINISH:
    case MU_POLICY_DO_FAIL_JOB:
    case MU_POLICY_DO_ASK:
        assert(false);
        break;
    }
}

static void perform(struct mu_agent *a, const struct mu_job_effect *effect)
{
    switch (effect->type) {
    case MU_JOB_DO_ASK:
        submit(a, effect->who, &effect->ask);
        break;
    case MU_JOB_DO_CLOSE:
        a->handler->ops->close(a->handler);
        break;
    case MU_JOB_DO_WARN:
        mu_log(MUSTER_LOG_WARNING, "%s", effect->text);
        break;
    case MU_JOB_DO_POLICY:
        perform_policy(a, effect->policy);
        break;
    }
}

/* ---- The last will ---- */

/* Derived whenever something has happened, so that it is never forgotten. Only a TCPStore can be written to by a keeper. On etcd
 * there is no will: the others learn of a killed node what they learn of every lost one, that its lease has run out. */
static void renew_will(struct mu_agent *a)
{
    char key[sizeof a->will_key], text[MU_VANISHED_NOTE_MAX];
    struct mu_kv_lone lone;

    if (a->will == NULL)
        return;
    if (a->ended || !mu_job_will(a->job, key, sizeof key, text)) {
        a->will_key[0] = '\0';
        mu_will_withdraw(a->will);
        return;
    }
    if (strcmp(key, a->will_key) == 0)
        return;
    if (a->kv == NULL || a->kv->ops->lone_set == NULL ||
        !a->kv->ops->lone_set(a->kv, mu_slice_str(key), mu_slice_str(text), &lone))
        return; /* not connected at the moment; what comes next brings us here again */
    (void)mu_will_set(a->will, (const struct sockaddr *)&lone.address, lone.address_len, mu_buf_slice(&lone.bytes));
    memcpy(a->will_key, key, strlen(key) + 1); /* also if it is too long: it stays so */
    mu_buf_done(&lone.bytes);
}

static void on_timer(uv_timer_t *timer)
{
    feed(timer->data, (struct mu_job_event){ .type = MU_JOB_ON_TIME });
}

/* For `-vv`. */
static void on_step(void *ctx, const struct mu_policy_event *event, enum mu_policy_phase before,
                    const struct mu_policy_effects *effects)
{
    struct mu_agent *a = ctx;
    struct mu_trace trace = { a->role, event, before, before, effects };
    char line[MU_TRACE_LINE_MAX];

    if (!mu_log_shows(MUSTER_LOG_DEBUG))
        return;
    trace.after = mu_policy_phase(mu_job_policy(a->job));
    if (mu_trace_say(&trace, line))
        mu_log(MUSTER_LOG_DEBUG, "%s", line);
}

/* Does what the job wants then, until it wants nothing more; and sets last will and timer anew. */
static void feed(struct mu_agent *a, struct mu_job_event event)
{
    struct mu_job_effect effect;
    uint64_t when_ms, now_ms = uv_now(a->loop);

    mu_job_step(a->job, &event);
    while (mu_job_next(a->job, uv_now(a->loop), &effect))
        perform(a, &effect);
    renew_will(a);
    if (a->ended)
        return;
    when_ms = mu_job_deadline_ms(a->job);
    if (when_ms == UINT64_MAX)
        (void)uv_timer_stop(&a->timer);
    else
        (void)uv_timer_start(&a->timer, on_timer, when_ms > now_ms ? when_ms - now_ms : 0, 0);
}

/* ---- The rendezvous ---- */

/* An agent closes the rendezvous to shut it down. */
static void record_failed_shutdown(const struct mu_agent *a, const struct muster_rdzv_event *event)
{
    char hostname[MU_HANDLER_NAME_MAX];
    const struct mu_teller who =
        event->self != NULL ? mu_teller_of(a->run_id, event->self) : mu_teller_new(a->run_id, NULL, -1, hostname);

    mu_rdzv_trace_tell(&who, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_SHUTDOWN_FAILED, .error = event->error });
}

/* Names and numbers as the machines have them; for nodes_count of them. NULL: no memory. */
static struct mu_node *nodes_of(const struct muster_rdzv_event *event)
{
    struct mu_node *nodes = calloc(event->nodes_count + 1, sizeof *nodes);

    for (size_t i = 0; nodes != NULL && i < event->nodes_count; i++)
        nodes[i] =
            (struct mu_node){ mu_slice_str(event->nodes[i].name), event->nodes[i].pid, event->nodes[i].local_id };
    return nodes;
}

static bool has_store(const struct mu_agent *a)
{
    char host[MU_RDZV_HOST_MAX];
    uint16_t port = 0;

    return mu_handler_has_kv(a->handler) ||
           (a->handler->ops->endpoint != NULL && a->handler->ops->endpoint(a->handler, host, sizeof host, &port));
}

/* To the machines, a round of which nothing is told is none. */
static int64_t job_round(const struct mu_agent *a, int64_t round)
{
    return mu_handler_tells_of_members(a->handler) ? round : -1;
}

static struct mu_job_joined joined_of(struct mu_agent *a, const struct muster_rdzv_event *event,
                                      const struct mu_node *nodes, size_t count)
{
    bool all_ours = count > 0 || event->info->world_size == 1;

    for (size_t i = 0; nodes != NULL && i < count; i++)
        all_ours &= mu_node_is_ours(&nodes[i]);
    return (struct mu_job_joined){
        .round = job_round(a, event->info->round),
        .rank = event->info->rank,
        .world_size = event->info->world_size,
        .all_ours = all_ours,
        .old_dialect = event->old_dialect,
        .has_store = has_store(a),
        .needs_master =
            a->info.bootstrap.master_port == 0 && (a->config.master.addr[0] == '\0' || a->config.master.port == 0),
        .serves = a->handler->ops->hosts != NULL && a->handler->ops->hosts(a->handler),
        .serves_workers = event->info->rank == 0 && event->info->world_size > 1 && !event->old_dialect &&
                          a->handler->ops->when_alone != NULL && a->handler->ops->use_agent_store(a->handler),
    };
}

/* Where a back end has neither a store nor an address, one node can do without both. */
static void take_round(struct mu_agent *a, const struct muster_rdzv_event *event)
{
    struct muster_store_info *meet = &a->info.bootstrap;

    a->info = *event->info;
    a->old_dialect = event->old_dialect;
    a->meets_alone = meet->master_port == 0 && a->info.world_size == 1 && !has_store(a) &&
                     mu_listen_free_port(&meet->master_port, NULL) == 0;
    if (a->meets_alone)
        (void)snprintf(meet->master_addr, sizeof meet->master_addr, "127.0.0.1");
}

static void on_rdzv(void *ctx, const struct muster_rdzv_event *event)
{
    struct mu_agent *a = ctx;
    struct mu_job_joined joined;
    struct mu_node *nodes;
    struct mu_job_event told = { .type = MU_JOB_ON_RDZV,
                                 .rdzv = event->type,
                                 .round = job_round(a, event->round),
                                 .request = event->request,
                                 .error = event->error,
                                 .count = event->count,
                                 .cause = event->cause };

    if (a->ended || a->freeing)
        return;
    if (event->type == MUSTER_RDZV_BACKEND_DOWN) {
        told.away_ms = event->away_ms > 0 ? (uint64_t)event->away_ms : 0;
        told.give_up_in_ms = event->give_up_in_ms > 0 ? (uint64_t)event->give_up_in_ms : 0;
    }
    if (event->type == MUSTER_RDZV_FAILED && event->request == MUSTER_RDZV_REQUEST_CLOSE)
        record_failed_shutdown(a, event);
    if (a->config.on_rdzv != NULL)
        a->config.on_rdzv(a->config.ctx, event);
    nodes = nodes_of(event);
    told.nodes = nodes;
    told.nodes_count = nodes != NULL || event->type == MUSTER_RDZV_JOINED ? event->nodes_count : 0;
    if (event->type == MUSTER_RDZV_BACKEND_UP)
        a->will_key[0] = '\0'; /* to be made anew, for the store may have moved; the old will counts until then */
    if (event->type == MUSTER_RDZV_JOINED) {
        end_waits(a);
        take_round(a, event);
        joined = joined_of(a, event, told.nodes, told.nodes_count);
        told.joined = &joined;
        told.round = joined.round;
        say_members(event);
    }
    feed(a, told);
    free(nodes);
}

/* ---- Signals and the keeper ---- */

static void on_signal(void *ctx, int signal)
{
    struct mu_agent *a = ctx;

    tell(a, (struct mu_policy_event){ .type = MU_POLICY_ON_SIGNAL, .round = -1, .number = signal });
}

void mu_agent_signal(struct mu_agent *a, int signal)
{
    on_signal(a, signal);
}

static void on_stop_signal(void *ctx, int signal)
{
    struct mu_agent *a = ctx;

    (void)signal;
    if (a->group != NULL)
        mu_group_suspend(a->group);
}

static void on_keeper(uv_poll_t *poll, int status, int events)
{
    struct mu_agent *a = poll->data;

    (void)status;
    (void)events;
    (void)uv_poll_stop(poll);
    tell(a, (struct mu_policy_event){ .type = MU_POLICY_ON_KEEPER_GONE, .round = -1 });
}

/* ---- The end ---- */

static int by_death(const void *x, const void *y)
{
    const struct worker *const *left = x, *const *right = y;

    if ((*left)->order == (*right)->order)
        return *left < *right ? -1 : *left > *right; /* of one array */
    return (*left)->order < (*right)->order ? -1 : 1;
}

static void on_ended(uv_timer_t *timer)
{
    struct mu_agent *a = timer->data;
    size_t count = (size_t)a->config.local_world_size;
    struct worker **dead = calloc(count, sizeof *dead);
    struct mu_failure *failures = calloc(count, sizeof *failures);
    struct mu_agent_value *values = calloc(count, sizeof *values);
    struct mu_agent_result result = { .outcome = &a->outcome,
                                      .failures = failures,
                                      .values = values,
                                      .run_time_ms = (int64_t)(uv_now(a->loop) - a->start_ms) };
    size_t failed = 0;

    for (size_t i = 0; dead != NULL && failures != NULL && i < count; i++)
        if (a->workers[i].failed)
            dead[failed++] = &a->workers[i];
    if (failed > 0)
        qsort(dead, failed, sizeof *dead, by_death);
    for (size_t i = 0; i < failed; i++)
        failures[i] = failure_of(dead[i], dead[i] - a->workers);
    result.count = failed;
    for (size_t i = 0; values != NULL && i < count; i++)
        if (a->workers[i].exited && !a->workers[i].failed)
            values[result.values_count++] = (struct mu_agent_value){ .rank = a->workers[i].rank,
                                                                     .local_rank = (int64_t)i,
                                                                     .value = mu_buf_slice(&a->workers[i].value) };
    free(dead);
    a->config.on_end(a->config.ctx, &result);
    free(failures);
    free(values);
}

static void destroy(struct mu_agent *a)
{
    mu_will_release(a->will);
    mu_job_free(a->job);
    if (a->workers != NULL)
        forget_workers(a);
    free(a->workers);
    free(a->run_id);
    free(a->backend);
    free(a->role);
    free(a->entry_point);
    free(a->start_method);
    free(a->event_log_handler);
    free(a->timer_file);
    free(a->node);
    mu_files_release(a->files);
    free(a->left);
    free(a);
}

static void on_disk_closed(void *ctx, bool hangs)
{
    (void)hangs; /* whoever ends the process asks mu_filethread_hangs() */
    handle_gone(ctx, 1);
}

/* One thing less that the loop has of ours. */
static void handle_gone(struct mu_agent *a, size_t handles)
{
    void (*done)(void *ctx) = a->done;
    void *ctx = a->done_ctx;

    a->handles -= handles;
    if (!a->freeing || a->handles > 0 || a->logs_open > 0)
        return;
    if (a->disk != NULL) {
        struct mu_disk *disk = a->disk;

        a->disk = NULL;
        a->handles++;
        mu_disk_close(disk, DISK_CLOSE_MS, on_disk_closed, a);
        return;
    }
    destroy(a);
    done(ctx);
}

static void on_handle_closed(uv_handle_t *handle)
{
    handle_gone(handle->data, 1);
}

static void on_kv_closed(struct mu_kv *kv, void *ctx)
{
    (void)kv;
    handle_gone(ctx, 1);
}

static void on_part_closed(void *ctx)
{
    handle_gone(ctx, 1);
}

static void on_handler_freed(void *ctx)
{
    struct mu_agent *a = ctx;

    muster_rdzv_free(a->made);
    handle_gone(a, 1);
}

void mu_agent_free(struct mu_agent *a, void (*done)(void *ctx), void *ctx)
{
    assert(a->ended && !a->freeing);
    a->freeing = true;
    a->done = done;
    a->done_ctx = ctx;
    a->handles += 4;
    stop_watchdog(a);
    stop_readings(a);
    finish_logs(a);
    a->handles++;
    uv_close((uv_handle_t *)&a->read_timer, on_handle_closed);
    uv_close((uv_handle_t *)&a->timer, on_handle_closed);
    if (a->group != NULL) {
        a->handles++;
        mu_group_close(a->group, on_part_closed, a);
    }
    mu_watch_close(a->signals, on_part_closed, a);
    mu_watch_close(a->stop_signal, on_part_closed, a);
    if (a->has_keeper) {
        a->handles++;
        uv_close((uv_handle_t *)&a->keeper, on_handle_closed);
    }
    if (a->kv != NULL) {
        a->handles++;
        a->kv->ops->close(a->kv, on_kv_closed, a);
    }
    if (a->users_kv != NULL) {
        a->handles++;
        a->users_kv->ops->close(a->users_kv, on_kv_closed, a);
    }
    a->handler->ops->free(a->handler, on_handler_freed, a);
}

/* ---- The start ---- */

static int copy_texts(struct mu_agent *a, const struct mu_agent_config *config)
{
    uint32_t random = 0;

    (void)snprintf(a->hostname, sizeof a->hostname, "localhost");
    (void)gethostname(a->hostname, sizeof a->hostname - 1);
    if (getrandom(&random, sizeof random, 0) < 0)
        random = (uint32_t)time(NULL);
    a->run_id = strdup(muster_rdzv_params_run_id(config->params));
    a->backend = strdup(muster_rdzv_params_backend(config->params));
    a->role = strdup(config->role);
    a->entry_point = strdup(config->entry_point);
    a->timer_file = config->timer_file != NULL ? strdup(config->timer_file) : NULL;
    a->start_method = config->start_method != NULL ? strdup(config->start_method) : NULL;
    a->event_log_handler = config->event_log_handler != NULL ? strdup(config->event_log_handler) : NULL;
    if (asprintf(&a->node, "%s_%d_%08" PRIx32, a->hostname, (int)getpid(), random) < 0)
        a->node = NULL;
    a->workers = calloc((size_t)config->local_world_size, sizeof *a->workers);
    return a->run_id != NULL && a->backend != NULL && a->role != NULL && a->entry_point != NULL && a->node != NULL &&
                   a->workers != NULL && (config->timer_file == NULL || a->timer_file != NULL) &&
                   (config->start_method == NULL || a->start_method != NULL) &&
                   (config->event_log_handler == NULL || a->event_log_handler != NULL)
               ? 0
               : MUSTER_ENOMEM;
}

/* As whoever joins waits for a store; 0: the back end knows no such time. */
static uint64_t store_ms(const struct mu_agent *a)
{
    struct mu_rdzv_settings settings;

    return mu_rdzv_settings_from_params(a->config.params, &settings, NULL) == 0 ? settings.join_ms : 0;
}

static int make_machines(struct mu_agent *a, struct muster_error *reterr)
{
    struct mu_policy_config policy = {
        .run_id = a->run_id,
        .role = a->role,
        .node = a->node,
        .local_world_size = a->config.local_world_size,
        .max_restarts = a->config.max_restarts,
        .grace_ms = a->config.grace_ms,
        .barrier_ms = a->config.barrier_ms,
        .store_ms = store_ms(a),
    };
    struct mu_ranks_config ranks = {
        .run_id = a->run_id,
        .role = a->role,
        .local_world_size = a->config.local_world_size,
        .identical = a->config.identical,
    };
    struct mu_completion_config completion = {
        .run_id = a->run_id, .node = a->node, .host = a->hostname, .barrier_ms = a->config.barrier_ms
    };
    struct mu_job_config job = {
        .policy = policy, .ranks = ranks, .completion = completion, .on_step = on_step, .ctx = a
    };

    return mu_job_new(&job, &a->job, reterr);
}

static void on_start_failed_closed(void *ctx)
{
    muster_rdzv_free(ctx);
}

static int start_handler(struct mu_agent *a, struct muster_error *reterr)
{
    const struct mu_agent_config *config = &a->config;
    struct mu_driving driving = MU_DRIVING_DEFAULT;
    int rc;

    if (config->monitor_ms > 0)
        driving.look_ms = config->monitor_ms;
    if (config->grace_ms > 0)
        driving.end_ms = config->grace_ms;
    if (config->rdzv != NULL)
        rc = mu_handler_start_given(a->loop, config->rdzv, false, &driving,
                                    muster_rdzv_params_local_addr(config->params), on_rdzv, a, &a->handler, reterr);
    else
        rc = mu_handler_start_by_name(config->registry, a->loop, config->params, &driving, on_rdzv, a, &a->handler,
                                      reterr);
    a->made = driving.made;
    return rc;
}

/* What the loop has of ours; after a failure it closes in the loop's next turns. */
static int make_handles(struct mu_agent *a, struct muster_error *reterr)
{
    struct mu_startup for_workers = { .ignored = 0 };
    struct mu_group_config group = { .loop = a->loop,
                                     .startup = a->config.startup != NULL ? &for_workers : NULL,
                                     .on_exit = on_worker_exit,
                                     .on_stopped = on_workers_stopped,
                                     .hang_ms = a->config.hang_ms,
                                     .on_hang = on_worker_hang,
                                     .ctx = a };
    /* Without a keeper Ctrl-Z is the program's own business. */
    struct mu_signals stop = { .numbers = { SIGTSTP }, .count = a->config.keeper_fd >= 0 ? 1 : 0 };
    int rc = start_handler(a, reterr);

    if (a->config.startup != NULL) {
        for_workers = *a->config.startup;
        mu_startup_for_workers(&for_workers, a->config.signals);
    }
    if (rc == 0 && a->config.driver == NULL)
        rc = mu_group_new(&group, &a->group, reterr);
    if (rc == 0)
        rc = mu_watch_start(a->loop, a->config.signals, a->config.startup, on_signal, a, &a->signals, reterr);
    if (rc == 0)
        rc = mu_watch_start(a->loop, &stop, a->config.startup, on_stop_signal, a, &a->stop_signal, reterr);
    if (rc == 0)
        return 0;
    if (a->signals != NULL)
        mu_watch_close(a->signals, NULL, NULL);
    if (a->group != NULL)
        mu_group_close(a->group, NULL, NULL);
    if (a->handler != NULL)
        a->handler->ops->free(a->handler, on_start_failed_closed, a->made);
    return rc;
}

void mu_agent_look(const struct mu_agent *a, uint32_t local_rank, struct mu_agent_view *ret_view)
{
    *ret_view = (struct mu_agent_view){
        .state = mu_policy_state(mu_job_policy(a->job)),
        .round = a->info.round,
        .remaining_restarts = mu_policy_remaining_restarts(mu_job_policy(a->job)),
        .worker = about_worker(a, local_rank),
        .id = a->workers[local_rank].id,
    };
}

size_t mu_agent_files(int64_t local_world_size, const struct mu_logs_config *logs)
{
    return FILES_AGENT + (size_t)local_world_size * FILES_PER_WORKER + mu_logs_files(logs, (uint32_t)local_world_size);
}

int mu_agent_check_files(int64_t local_world_size, const struct mu_logs_config *logs, struct muster_error *reterr)
{
    size_t least = MU_FILES_OWN + FILES_AGENT + MU_FILES_CONNECTIONS_LEAST; /* a worker may do without any of its own */

    return mu_files_check(least + mu_logs_files(logs, (uint32_t)local_world_size), reterr);
}

int mu_agent_start(uv_loop_t *loop, const struct mu_agent_config *config, struct mu_agent **ret_agent,
                   struct muster_error *reterr)
{
    struct mu_agent *a = calloc(1, sizeof *a);
    int rc = a == NULL || copy_texts(a, config) < 0 ? mu_fail(reterr, MUSTER_ENOMEM, "no memory for an agent") : 0;

    if (rc == 0) {
        a->loop = loop;
        a->config = *config;
        a->info = (struct muster_rdzv_info){ .rank = -1, .world_size = -1, .round = -1 };
        a->start_ms = uv_now(loop);
        a->files = mu_agent_files(config->local_world_size, &config->logs);
        mu_files_reserve(a->files);
        rc = make_machines(a, reterr);
    }
    if (rc == 0)
        rc = make_handles(a, reterr);
    if (rc < 0) {
        if (a != NULL)
            destroy(a);
        return rc;
    }
    (void)uv_timer_init(loop, &a->timer);
    (void)uv_timer_init(loop, &a->read_timer);
    a->timer.data = a->read_timer.data = a;
    if (config->keeper_fd >= 0 && uv_poll_init(loop, &a->keeper, config->keeper_fd) == 0) {
        a->has_keeper = true;
        a->will = mu_guard_will();
        a->keeper.data = a;
        (void)uv_poll_start(&a->keeper, UV_READABLE | UV_DISCONNECT, on_keeper);
    }
    *ret_agent = a;
    tell(a, (struct mu_policy_event){ .type = MU_POLICY_ON_RUN, .round = -1 });
    return 0;
}
