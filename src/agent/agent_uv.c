/* The agent: does what its machines want, and tells them what happens.
 *
 * Happy path: RUN -> the policy says JOIN -> the handler tells JOINED -> ASSIGN: the ranks machine exchanges sizes
 * through the group's store, or the round's leader has assigned them -> START_WORKERS: output is opened, commands are
 * made and started -> they exit -> STOP_WORKERS ends what they left -> FINISH: the completion machine waits for the
 * others -> END. job.h passes events from one machine to another.
 *
 * The machines handle failures of the store: every request is answered, if need be with an error. Without memory for a
 * request or an event the agent ends with an error. */
#include "agent/agent_parts_uv.h"
#include "agent/trace.h"
#include "base/files.h"
#include "base/log.h"
#include "base/random.h"
#include "kv/later_uv.h"
#include "rdzv/doc.h"
#include "rdzv/round_keys.h"
#include "store/listen.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* At the end, for closing files. Writes to them have been waited for before. */
#define DISK_CLOSE_MS 1000

enum {
    FILES_AGENT = 40, /* its own: connections to stores, consoles, signals, the file timer, what is open for a moment */
    FILES_PER_WORKER = 2, /* its pidfd, and the pipe of a function's result */
};

static void on_ended(void *ctx);

/* ---- Telling ---- */

/* What happened, from the loop. */
void mu_agent_tell(struct mu_agent *a, struct mu_policy_event event)
{
    mu_agent_feed(a, (struct mu_job_event){ .type = MU_JOB_ON_TOLD, .told = event });
}

/* What comes at once of something that the job wants. */
void mu_agent_tell_later(struct mu_agent *a, struct mu_policy_event event)
{
    mu_job_tell(a->job, &event);
}

/* ---- The policy ---- */

static void end(struct mu_agent *a, const struct mu_policy_outcome *outcome)
{
    a->ended = true;
    a->outcome = *outcome;
    (void)uv_timer_stop(&a->timer);
    mu_later_turn(&a->ending, on_ended, a);
}

static void on_alone(void *ctx)
{
    struct mu_agent *a = ctx;

    mu_agent_tell(a, (struct mu_policy_event){ .type = MU_POLICY_ON_ALONE, .round = -1 });
}

static void perform_policy(struct mu_agent *a, const struct mu_policy_effect *effect)
{
    struct mu_metrics_outcome final = {
        .role = a->role,
        .failed = !effect->ok,
        .remaining_restarts = effect->number,
        .max_restarts = mu_policy_max_restarts(mu_job_policy(a->job)),
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
        mu_agent_start_workers(a, effect->ok ? effect->number : -1);
        break;
    case MU_POLICY_DO_STOP_WORKERS:
        mu_agent_stop_workers(a, effect->signal, effect->grace_ms, effect->ok);
        break;
    case MU_POLICY_DO_KILL_WORKERS:
        mu_agent_stop_workers(a, SIGKILL, 0, effect->ok);
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
        mu_agent_record(a, effect);
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
        mu_agent_submit(a, effect->who, &effect->ask);
        break;
    case MU_JOB_DO_CLOSE:
        a->handler->ops->close(a->handler);
        break;
    case MU_JOB_DO_REPORT:
        mu_handler_ops(a->handler)->report(a->handler, effect->report);
        break;
    case MU_JOB_DO_WARN:
        mu_log(MUSTER_LOG_WARNING, "%s", effect->text);
        break;
    case MU_JOB_DO_POLICY:
        perform_policy(a, effect->policy);
        break;
    }
}

static void on_timer(uv_timer_t *timer)
{
    mu_agent_feed(timer->data, (struct mu_job_event){ .type = MU_JOB_ON_TIME });
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

/* Does what the job wants, until it wants nothing more; then renews last will and timer. */
void mu_agent_feed(struct mu_agent *a, struct mu_job_event event)
{
    struct mu_job_effect effect;

    mu_job_step(a->job, &event);
    while (mu_job_next(a->job, uv_now(a->loop), &effect))
        perform(a, &effect);
    mu_agent_renew_will(a);
    if (!a->ended)
        mu_timer_until(&a->timer, mu_job_deadline_ms(a->job), on_timer);
}

/* ---- The rendezvous ---- */

static struct mu_node *nodes_of(const struct muster_rdzv_event *event)
{
    struct mu_node *nodes = calloc(event->nodes_count + 1, sizeof *nodes);

    for (size_t i = 0; nodes != NULL && i < event->nodes_count; i++)
        nodes[i] =
            (struct mu_node){ mu_slice_str(event->nodes[i].name), event->nodes[i].pid, event->nodes[i].local_id };
    return nodes;
}

/* To the machines, a round of which nothing is told is none. */
static int64_t job_round(const struct mu_agent *a, int64_t round)
{
    return mu_handler_ops(a->handler)->hides_members ? -1 : round;
}

bool mu_agent_round_prefix(const struct mu_agent *a, char *text, size_t room)
{
    if (a->info.world_size < 0 || mu_policy_phase(mu_job_policy(a->job)) == MU_POLICY_JOINING)
        return false;
    mu_round_stock_prefix(text, room, a->run_id, job_round(a, a->info.round));
    return true;
}

static struct mu_round joined_of(struct mu_agent *a, const struct muster_rdzv_event *event, const struct mu_node *nodes,
                                 size_t count)
{
    bool all_ours = count > 0 || event->info->world_size == 1;

    for (size_t i = 0; nodes != NULL && i < count; i++)
        all_ours &= mu_node_is_ours(&nodes[i]);
    return (struct mu_round){
        .round = job_round(a, event->info->round),
        .rank = event->info->rank,
        .world_size = event->info->world_size,
        .all_ours = all_ours,
        .old_dialect = event->old_dialect,
        .has_store = mu_agent_has_store(a),
        .needs_master =
            a->info.bootstrap.master_port == 0 && (a->config.master.addr[0] == '\0' || a->config.master.port == 0),
        .serves = a->handler->ops->hosts != NULL && a->handler->ops->hosts(a->handler),
        .serves_workers = event->info->rank == 0 && event->info->world_size > 1 && !event->old_dialect &&
                          a->handler->ops->when_alone != NULL && a->handler->ops->use_agent_store(a->handler),
    };
}

/* If a back end has neither a store nor an address, a single node can do without both. */
static void take_round(struct mu_agent *a, const struct muster_rdzv_event *event)
{
    struct muster_store_info *meet = &a->info.bootstrap;

    a->info = *event->info;
    a->old_dialect = event->old_dialect;
    a->meets_alone = meet->master_port == 0 && a->info.world_size == 1 && !mu_agent_has_store(a) &&
                     mu_listen_free_port(&meet->master_port, NULL) == 0;
    if (a->meets_alone)
        (void)snprintf(meet->master_addr, sizeof meet->master_addr, "127.0.0.1");
}

static void on_rdzv(void *ctx, const struct muster_rdzv_event *event)
{
    struct mu_agent *a = ctx;
    struct mu_round joined;
    struct mu_node *nodes;
    struct mu_job_event told = { .type = MU_JOB_ON_RDZV,
                                 .rdzv = event->type,
                                 .round = job_round(a, event->round),
                                 .request = event->request,
                                 .error = event->error,
                                 .count = event->count,
                                 .cause = event->cause,
                                 .seat = mu_handler_ops(a->handler)->report != NULL ? event->seat : NULL,
                                 .verdict = event->verdict };

    if (a->ended || a->freeing)
        return;
    if (event->type == MUSTER_RDZV_BACKEND_DOWN) {
        told.away_ms = event->away_ms > 0 ? (uint64_t)event->away_ms : 0;
        told.give_up_in_ms = event->give_up_in_ms > 0 ? (uint64_t)event->give_up_in_ms : 0;
    }
    if (event->type == MUSTER_RDZV_FAILED && event->request == MUSTER_RDZV_REQUEST_CLOSE)
        mu_agent_record_failed_shutdown(a, event);
    if (a->config.on_rdzv != NULL)
        a->config.on_rdzv(a->config.ctx, event);
    nodes = nodes_of(event);
    told.nodes = nodes;
    told.nodes_count = nodes != NULL || event->type == MUSTER_RDZV_JOINED ? event->nodes_count : 0;
    if (event->type == MUSTER_RDZV_BACKEND_UP)
        a->will_key[0] = '\0'; /* to be made anew, for the store may have moved; the old will counts until then */
    if (event->type == MUSTER_RDZV_JOINED) {
        mu_agent_end_waits(a);
        take_round(a, event);
        joined = joined_of(a, event, told.nodes, told.nodes_count);
        told.joined = &joined;
        told.round = joined.round;
        mu_agent_say_members(event);
    }
    mu_agent_feed(a, told);
    free(nodes);
}

/* ---- Signals and the keeper ---- */

static void on_signal(void *ctx, int signal)
{
    struct mu_agent *a = ctx;

    mu_agent_tell(a, (struct mu_policy_event){ .type = MU_POLICY_ON_SIGNAL, .round = -1, .number = signal });
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
    mu_agent_tell(a, (struct mu_policy_event){ .type = MU_POLICY_ON_KEEPER_GONE, .round = -1 });
}

/* ---- The end ---- */

static int by_death(const void *x, const void *y)
{
    const struct mu_worker *const *left = x, *const *right = y;

    if ((*left)->order == (*right)->order)
        return *left < *right ? -1 : *left > *right; /* of one array */
    return (*left)->order < (*right)->order ? -1 : 1;
}

static void on_ended(void *ctx)
{
    struct mu_agent *a = ctx;
    size_t count = (size_t)a->config.local_world_size;
    struct mu_worker **dead = calloc(count, sizeof *dead);
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
        failures[i] = mu_agent_failure_of(dead[i], dead[i] - a->workers);
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
        mu_agent_forget_workers(a);
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
    (void)hangs; /* the code that ends the process asks mu_filethread_hangs() */
    mu_agent_handles_gone(ctx, 1);
}

/* One thing less that the loop has of ours. */
void mu_agent_handles_gone(struct mu_agent *a, size_t handles)
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
    mu_agent_handles_gone(handle->data, 1);
}

void mu_agent_on_part_closed(void *ctx)
{
    mu_agent_handles_gone(ctx, 1);
}

static void on_handler_freed(void *ctx)
{
    struct mu_agent *a = ctx;

    muster_rdzv_free(a->made);
    mu_agent_handles_gone(a, 1);
}

void mu_agent_free(struct mu_agent *a, void (*done)(void *ctx), void *ctx)
{
    assert(a->ended && !a->freeing);
    a->freeing = true;
    a->done = done;
    a->done_ctx = ctx;
    a->handles += 4;
    mu_agent_close_workers(a);
    a->handles += 2;
    mu_later_close(&a->ending, mu_agent_on_part_closed, a);
    uv_close((uv_handle_t *)&a->read_timer, on_handle_closed);
    uv_close((uv_handle_t *)&a->timer, on_handle_closed);
    mu_watch_close(a->signals, mu_agent_on_part_closed, a);
    mu_watch_close(a->stop_signal, mu_agent_on_part_closed, a);
    if (a->has_keeper) {
        a->handles++;
        uv_close((uv_handle_t *)&a->keeper, on_handle_closed);
    }
    mu_agent_close_stores(a);
    a->handler->ops->free(a->handler, on_handler_freed, a);
}

/* ---- The start ---- */

static int copy_texts(struct mu_agent *a, const struct mu_agent_config *config)
{

    (void)snprintf(a->hostname, sizeof a->hostname, "localhost");
    (void)gethostname(a->hostname, sizeof a->hostname - 1);
    a->run_id = strdup(muster_rdzv_params_run_id(config->params));
    a->backend = strdup(muster_rdzv_params_backend(config->params));
    a->role = strdup(config->role);
    a->entry_point = strdup(config->entry_point);
    a->timer_file = config->timer_file != NULL ? strdup(config->timer_file) : NULL;
    a->start_method = config->start_method != NULL ? strdup(config->start_method) : NULL;
    a->event_log_handler = config->event_log_handler != NULL ? strdup(config->event_log_handler) : NULL;
    if (asprintf(&a->node, "%s_%d_%08" PRIx32, a->hostname, (int)getpid(), (uint32_t)mu_fresh_seed()) < 0)
        a->node = NULL;
    a->workers = calloc((size_t)config->local_world_size, sizeof *a->workers);
    return a->run_id != NULL && a->backend != NULL && a->role != NULL && a->entry_point != NULL && a->node != NULL &&
                   a->workers != NULL && (config->timer_file == NULL || a->timer_file != NULL) &&
                   (config->start_method == NULL || a->start_method != NULL) &&
                   (config->event_log_handler == NULL || a->event_log_handler != NULL)
               ? 0
               : MUSTER_ENOMEM;
}

enum { LOSS_MARGIN_MS = 5000 }; /* for the news of a loss, beside the time in which it is noticed */

static int make_machines(struct mu_agent *a, struct muster_error *reterr)
{
    struct mu_rdzv_settings settings;
    bool timed = mu_rdzv_settings_from_params(a->config.params, &settings, NULL) == 0; /* the back end knows these */
    uint64_t loss_ms = ((const struct mu_handler *)a->handler)->loss_ms;
    struct mu_policy_config policy = {
        .run_id = a->run_id,
        .role = a->role,
        .node = a->node,
        .host = a->hostname,
        .local_world_size = a->config.local_world_size,
        .max_restarts = a->config.max_restarts,
        .grace_ms = a->config.grace_ms,
        .barrier_ms = a->config.barrier_ms,
        .store_ms = timed ? settings.join_ms : 0, /* as a node that joins waits for a store */
    };
    struct mu_ranks_config ranks = {
        .run_id = a->run_id,
        .role = a->role,
        .local_world_size = a->config.local_world_size,
        .identical = a->config.identical,
    };
    struct mu_completion_config completion = { .run_id = a->run_id,
                                               .node = a->node,
                                               .host = a->hostname,
                                               .barrier_ms = a->config.barrier_ms,
                                               .loss_ms = loss_ms > 0 ? loss_ms + LOSS_MARGIN_MS : 0 };
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
    if (rc == 0 && mu_handler_ops(a->handler)->introduce != NULL)
        mu_handler_ops(a->handler)
            ->introduce(a->handler, &(struct mu_part_self){ .role = a->role,
                                                            .local_world_size = config->local_world_size,
                                                            .max_restarts = config->max_restarts });
    return rc;
}

/* What the loop has of ours; after a failure it closes in the loop's next turns. */
static int make_handles(struct mu_agent *a, struct muster_error *reterr)
{
    /* Without a keeper Ctrl-Z is the program's own business. */
    struct mu_signals stop = { .numbers = { SIGTSTP }, .count = a->config.keeper_fd >= 0 ? 1 : 0 };
    int rc = start_handler(a, reterr);

    if (rc == 0)
        rc = make_machines(a, reterr);
    if (rc == 0 && a->config.driver == NULL)
        rc = mu_agent_make_group(a, reterr);
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
        .worker = mu_agent_about_worker(a, local_rank),
        .id = a->workers[local_rank].id,
    };
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
        a->files = FILES_AGENT + (size_t)config->local_world_size * FILES_PER_WORKER +
                   mu_logs_files(&config->logs, (uint32_t)config->local_world_size);
        mu_files_reserve(a->files);
    }
    if (rc == 0)
        rc = make_handles(a, reterr);
    if (rc < 0) {
        if (a != NULL)
            destroy(a);
        return rc;
    }
    mu_later_open(&a->ending, loop, NULL);
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
    mu_agent_tell(a, (struct mu_policy_event){ .type = MU_POLICY_ON_RUN, .round = -1 });
    return 0;
}
