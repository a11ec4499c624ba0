/* What an agent records as events, and the lines it logs about rounds. See agent_parts_uv.h. */
#include "agent/agent_parts_uv.h"
#include "agent/formed_text.h"
#include "base/log.h"
#include "handler/rdzv_trace.h"

struct mu_event_agent mu_agent_event_of(const struct mu_agent *a)
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

struct mu_failure mu_agent_failure_of(const struct mu_worker *worker, int64_t local_rank)
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
    const struct mu_worker *worker = &a->workers[index];
    struct mu_event_agent agent = mu_agent_event_of(a);
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
        struct mu_failure failure = mu_agent_failure_of(worker, (int64_t)index);

        a->traits |= mu_failures_have_traits(&failure, 1);
        if (mu_failure_write_raw(&failure, a->traits, &raw) == 0 && mu_buf_append(&raw, "", 1, SIZE_MAX) == 0)
            event.raw_error = raw.data;
    }
    mu_agent_event_record(&event);
    mu_buf_done(&raw);
}

void mu_agent_record(struct mu_agent *a, const struct mu_policy_effect *effect)
{
    struct mu_event_agent agent = mu_agent_event_of(a);
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
                record_worker(a, i, mu_worker_end_of(effect->state, a->workers[i].failed));
        break;
    }
}

void mu_agent_say_formed(const struct mu_agent *a, int64_t regroup_ms)
{
    const struct mu_policy *policy = mu_job_policy(a->job);
    struct mu_formed formed = { .round = a->info.round,
                                .first = mu_agent_about_worker(a, 0),
                                .regroup_ms = regroup_ms,
                                .restarts_used = mu_policy_max_restarts(policy) - mu_policy_remaining_restarts(policy),
                                .max_restarts = mu_policy_max_restarts(policy),
                                .role = a->role,
                                .event_log_handler = a->event_log_handler };
    char line[MU_FORMED_LINE_MAX];

    mu_formed_say(&formed, line);
    mu_log(MUSTER_LOG_NOTICE, "%s", line);
    for (unsigned i = 0; mu_formed_say_result(&formed, i, line); i++)
        mu_log(MUSTER_LOG_INFO, "%s", line);
}

/* Only some back ends know them. */
void mu_agent_say_members(const struct muster_rdzv_event *event)
{
    char line[MU_FORMED_LINE_MAX];

    for (size_t next = 0; next < event->nodes_count;) {
        next = mu_formed_say_members(event->info->round, event->nodes, event->nodes_count, next, line);
        mu_log(MUSTER_LOG_INFO, "%s", line);
    }
}

/* An agent closes the rendezvous to shut it down. */
void mu_agent_record_failed_shutdown(const struct mu_agent *a, const struct muster_rdzv_event *event)
{
    char hostname[MU_HANDLER_NAME_MAX];
    const struct mu_teller who = mu_teller_of_self(a->run_id, event->self, hostname);

    mu_rdzv_trace_tell(&who, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_SHUTDOWN_FAILED, .error = event->error });
}
