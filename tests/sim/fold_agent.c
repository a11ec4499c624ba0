/* An agent on top of a node: the program's own job (agent/job.h) with all its machines, and its workers. They run until
 * the storm ends them, in the last calm for a moment. What must hold:
 *
 *   G1  workers are started in the world that their node is in, with its ranks and its restart count (fold_check.c)
 *   G2  no worker is alive when its agent joins, starts others, or ends
 *   G4  an agent ends for a reason of its own, or because the job was closed; a verdict was written before it is told
 *   G8  only what is said of the round, or of its own workers, makes an agent stop them
 *   D   a node whose workers have succeeded starts none again, and ends well
 *   E   in the calm, once workers succeed, every agent ends */
#include "fold_job.h"

#include <signal.h>
#include <string.h>

enum { GRACE_MS = 5000 };

const char owner_program[] = "muster-sim-fold-job";
const uint64_t owner_leave_us = (GRACE_MS + 100) * MS;

static bool finishing; /* workers succeed soon after they were started */

/* ---- Time ---- */

struct call {
    struct node *node;
    uint64_t id, number;
    later_fn *fn;
};

static void on_call(void *arg)
{
    struct call *call = arg;

    if (call->node->alive && call->node->id == call->id && call->node->paused_until_us > s->now_us) {
        sim_at(call->node->paused_until_us, on_call, call);
        return;
    }
    if (call->node->alive && call->node->id == call->id)
        call->fn(call->node, call->number);
    free(call);
}

void later(struct node *node, uint64_t in_us, later_fn *fn, uint64_t number)
{
    struct call *call = calloc(1, sizeof *call);

    if (call == NULL)
        abort();
    *call = (struct call){ node, node->id, number, fn };
    sim_at(s->now_us + in_us, on_call, call);
}

/* ---- Workers ---- */

static void step(struct node *node, struct mu_job_event event);

static void tell(struct node *node, struct mu_policy_event event)
{
    step(node, (struct mu_job_event){ .type = MU_JOB_ON_TOLD, .told = event });
}

static void on_stopped(struct node *node, uint64_t generation)
{
    struct agent *a = node->agent;

    if (a->generation != generation || !a->stopping || a->running > 0)
        return;
    a->stopping = false;
    tell(node, (struct mu_policy_event){ .type = MU_POLICY_ON_STOPPED, .round = -1 });
}

/* number: generation, index of the worker, and whether it has succeeded. */
static void on_exit_of(struct node *node, uint64_t number)
{
    struct agent *a = node->agent;
    struct worker *worker = &a->workers[number >> 1 & 7];
    bool ok = number & 1;

    if (a->generation != number >> 4 || !worker->alive || a->ended)
        return;
    worker->alive = false;
    a->running--;
    sim_trace("node %u: a worker %s", node->index, ok ? "is done" : "ends badly");
    tell(node, (struct mu_policy_event){ .type = MU_POLICY_ON_EXITED,
                                         .round = -1,
                                         .number = worker - a->workers,
                                         .ok = ok,
                                         .text = ok ? "exitcode 0" : "exitcode 1" });
    if (a->stopping && a->running == 0)
        later(node, 0, on_stopped, a->generation);
}

static void exit_later(struct node *node, size_t index, bool ok, uint64_t in_us)
{
    later(node, in_us, on_exit_of, node->agent->generation << 4 | index << 1 | ok);
}

static void start_workers(struct node *node)
{
    struct agent *a = node->agent;
    const struct mu_ranks_result *ranks = mu_job_assigned(a->job);

    SIM_EXPECT(a->running == 0 && !a->stopping, "node %u starts workers beside others", node->index);
    SIM_EXPECT(!a->succeeded && !node->done, "node %u starts workers, and is done", node->index);
    check_starting(node, &(struct mu_part_seat){ .count = ranks->count,
                                                 .base_rank = ranks->base_rank,
                                                 .world_size = ranks->world_size,
                                                 .base_role_rank = ranks->base_role_rank,
                                                 .role_world_size = ranks->role_world_size });
    a->generation++;
    a->running = (size_t)node->size;
    for (size_t i = 0; i < a->running; i++) {
        a->workers[i] = (struct worker){ .alive = true, .ignores = !s->calm && chance(10) };
        if (finishing)
            exit_later(node, i, true, below(2 * SECOND));
    }
    mu_job_tell(a->job, &(struct mu_policy_event){ .type = MU_POLICY_ON_STARTED, .round = -1 });
}

static void stop_workers(struct node *node, uint64_t grace_ms)
{
    struct agent *a = node->agent;

    a->stopping = true;
    for (size_t i = 0; i < WORKERS_MAX; i++)
        if (a->workers[i].alive)
            exit_later(node, i, false, a->workers[i].ignores ? grace_ms * MS : below(30 * MS));
    if (a->running == 0)
        later(node, below(2 * MS), on_stopped, a->generation);
}

/* ---- The agent ---- */

static void on_process_end(struct node *node, uint64_t number)
{
    (void)number;
    node_exits(node);
}

static void check_ending(const struct node *node, const struct mu_policy_outcome *outcome)
{
    const struct agent *a = node->agent;
    bool good = outcome->kind == MU_POLICY_OUTCOME_SUCCEEDED;

    SIM_EXPECT(a->running == 0, "node %u ends, and workers are there", node->index);
    SIM_EXPECT(!good || a->succeeded, "node %u ends well, and its workers have not succeeded", node->index);
    SIM_EXPECT(good || !a->succeeded || a->personal, "node %u ends badly, and its workers have succeeded", node->index);
    SIM_EXPECT(good || a->personal || a->join_failed || s->closed_ever, "node %u ends without a reason: %s",
               node->index, outcome->error.text);
}

static void on_linger_over(struct node *node, uint64_t number)
{
    (void)number;
    tell(node, (struct mu_policy_event){ .type = MU_POLICY_ON_ALONE, .round = -1 });
}

static void perform_policy(struct node *node, const struct mu_policy_effect *effect)
{
    struct agent *a = node->agent;

    switch (effect->type) {
    case MU_POLICY_DO_JOIN:
        SIM_EXPECT(a->running == 0 && !a->stopping, "node %u joins, and old workers are there", node->index);
        SIM_EXPECT(!a->succeeded, "node %u joins, and is done", node->index);
        handler_ask(node, MU_PART_ON_JOIN, NULL);
        break;
    case MU_POLICY_DO_LEAVE:
        handler_ask(node, MU_PART_ON_LEAVE, NULL);
        break;
    case MU_POLICY_DO_START_WORKERS:
        start_workers(node);
        break;
    case MU_POLICY_DO_STOP_WORKERS:
        stop_workers(node, effect->grace_ms);
        break;
    case MU_POLICY_DO_KILL_WORKERS:
        stop_workers(node, 0);
        break;
    case MU_POLICY_DO_LINGER:
        later(node, below(SECOND), on_linger_over, 0);
        break;
    case MU_POLICY_DO_END:
        sim_trace("node %u ends, %s: %s", node->index, mu_policy_outcome_text(effect->outcome->kind),
                  effect->outcome->error.text);
        check_ending(node, effect->outcome);
        a->ended = true;
        later(node, 0, on_process_end, 0);
        break;
    default:
        break;
    }
}

static int owner_state(enum mu_policy_phase phase)
{
    switch (phase) {
    case MU_POLICY_IDLE:
        return OWNER_IDLE;
    case MU_POLICY_JOINING:
    case MU_POLICY_ASKING:
        return OWNER_JOINING;
    case MU_POLICY_ASSIGNING:
    case MU_POLICY_STARTING:
    case MU_POLICY_RUNNING:
    case MU_POLICY_FINISHING:
        return OWNER_RUNNING;
    case MU_POLICY_STOPPING:
        return OWNER_STOPPING;
    case MU_POLICY_CHARGING:
    case MU_POLICY_FAILING:
    case MU_POLICY_LEAVING:
    case MU_POLICY_SERVING:
    case MU_POLICY_LINGERING:
        return OWNER_LEAVING;
    case MU_POLICY_ENDED:
        break;
    }
    return OWNER_ENDED;
}

/* Before the effects of a step of the policy are carried out. */
static void on_step(void *ctx, const struct mu_policy_event *event, enum mu_policy_phase before,
                    const struct mu_policy_effects *effects)
{
    struct node *node = ctx;
    enum mu_policy_phase now = mu_policy_phase(mu_job_policy(node->agent->job));

    if (now != before)
        sim_trace("node %u: %s -> %s", node->index, mu_policy_event_text(event->type), mu_policy_phase_text(now));
    SIM_EXPECT(before != MU_POLICY_RUNNING || now != MU_POLICY_STOPPING ||
                   (event->type != MU_POLICY_ON_BACKEND_DOWN && event->type != MU_POLICY_ON_BACKEND_UP &&
                    event->type != MU_POLICY_ON_TIME),
               "node %u stops its workers for no reason", node->index);
    for (unsigned i = 0; i < effects->count; i++)
        node->agent->succeeded |= effects->items[i].type == MU_POLICY_DO_FINISH;
}

static void on_time(struct node *node, uint64_t when_us);

static void arm(struct node *node)
{
    uint64_t when_ms = mu_job_deadline_ms(node->agent->job);
    uint64_t when_us = when_ms == UINT64_MAX ? UINT64_MAX : when_ms * MS;

    if (when_us != UINT64_MAX && when_us < s->now_us)
        when_us = s->now_us;
    if (when_us == node->agent->timer_us)
        return;
    node->agent->timer_us = when_us;
    if (when_us != UINT64_MAX)
        later(node, when_us - s->now_us, on_time, when_us);
}

static void step(struct node *node, struct mu_job_event event)
{
    static const struct muster_error no_store = { .code = MUSTER_ECONNECT, .text = "no store is known" };
    struct agent *a = node->agent;
    struct mu_job_effect effect;

    if (a->ended)
        return;
    mu_job_step(a->job, &event);
    while (mu_job_next(a->job, s->now_us / MS, &effect)) {
        /* Only a node that was in no round asks for a key: how a job ended that was closed before it came. */
        SIM_EXPECT(effect.type == MU_JOB_DO_REPORT || effect.type == MU_JOB_DO_POLICY ||
                       effect.type == MU_JOB_DO_WARN ||
                       (effect.type == MU_JOB_DO_ASK && effect.who == MU_JOB_POLICY && s->closed_ever),
                   "node %u has keys of its own, or closes the job", node->index);
        if (effect.type == MU_JOB_DO_ASK)
            mu_job_refuse(a->job, effect.who, effect.ask.id, &no_store);
        else if (effect.type == MU_JOB_DO_REPORT)
            handler_ask(node, MU_PART_ON_REPORT, effect.report);
        else if (effect.type == MU_JOB_DO_POLICY)
            perform_policy(node, effect.policy);
    }
    node->owner = owner_state(mu_policy_phase(mu_job_policy(a->job)));
    if (!a->ended)
        arm(node);
}

static void on_time(struct node *node, uint64_t when_us)
{
    if (node->agent->timer_us != when_us)
        return;
    node->agent->timer_us = UINT64_MAX;
    step(node, (struct mu_job_event){ .type = MU_JOB_ON_TIME });
}

void agent_hear(struct node *node, const struct muster_rdzv_event *event)
{
    struct mu_node nodes[64];
    struct mu_round joined = { .round = event->round, .has_store = true };
    struct mu_job_event told = { .type = MU_JOB_ON_RDZV,
                                 .rdzv = event->type,
                                 .round = event->round,
                                 .request = event->request,
                                 .error = event->error,
                                 .count = event->count,
                                 .cause = event->cause,
                                 .seat = event->seat,
                                 .verdict = event->verdict,
                                 .nodes = nodes,
                                 .nodes_count = event->nodes_count };

    for (size_t i = 0; i < event->nodes_count; i++)
        nodes[i] =
            (struct mu_node){ mu_slice_str(event->nodes[i].name), event->nodes[i].pid, event->nodes[i].local_id };
    if (event->type == MUSTER_RDZV_BACKEND_DOWN) {
        told.away_ms = (uint64_t)event->away_ms;
        told.give_up_in_ms = (uint64_t)event->give_up_in_ms;
    }
    if (event->info != NULL) {
        joined.rank = event->info->rank;
        joined.world_size = event->info->world_size;
        joined.all_ours = event->nodes_count > 0 || joined.world_size == 1;
        joined.serves = joined.rank == 0;
        told.joined = &joined;
    }
    if (event->verdict != NULL)
        SIM_EXPECT(s->verdicts[event->verdict->succeeded], "node %u is told a verdict that nobody wrote", node->index);
    if (event->type == MUSTER_RDZV_FAILED && event->error->code != MUSTER_ERDZV_CLOSED)
        node->agent->join_failed = true;
    step(node, told);
}

/* ---- The owner ---- */

void owner_hear(struct node *node, const struct mu_part_news *news)
{
    switch (news->tell) {
    case MU_PART_TELL_JOINED:
        check_joined(node);
        node->world = mu_fold_world(node->fold)->id;
        node->world_count = (size_t)mu_fold_world(node->fold)->nodes;
        s->joins++;
        break;
    case MU_PART_TELL_LOST:
        check_lost(node);
        if (strstr(news->cause, "no keep-alive") != NULL)
            node->silent_world = node->world;
        break;
    case MU_PART_TELL_REMOVED:
        node->world = 0;
        break;
    case MU_PART_TELL_CLOSED:
        check_closed();
        break;
    case MU_PART_TELL_REPORTED:
        if (news->error != NULL)
            break;
        node->done |= node->report.end == MU_PART_END_DONE;
        if (node->report.end == MU_PART_END_FAILED)
            node->failed_us = s->now_us;
        break;
    default:
        break;
    }
    if (news->tell == MU_PART_TELL_LOST || news->tell == MU_PART_TELL_REMOVED || news->tell == MU_PART_TELL_FAILED ||
        (news->tell == MU_PART_TELL_WAITING && node->report.end != MU_PART_END_DONE)) {
        node->tells++;
        if (node->told_us == 0)
            node->told_us = s->now_us;
    }
    handler_told(node, news);
}

bool owner_takes(struct node *node, const struct mu_fold_event *event)
{
    return handler_takes(node, event);
}

void owner_heard(struct node *node)
{
    handler_heard(node);
}

static void on_run(struct node *node, uint64_t number)
{
    (void)number;
    tell(node, (struct mu_policy_event){ .type = MU_POLICY_ON_RUN, .round = -1 });
}

void owner_begin(void)
{
    finishing = false;
}

void owner_new(struct node *node, uint64_t in_us)
{
    struct agent *a = calloc(1, sizeof *a);
    char name[32];
    struct mu_job_config config = {
        .policy = { .run_id = "job",
                    .role = node->role,
                    .node = name,
                    .local_world_size = node->size,
                    .max_restarts = s->max_restarts,
                    .grace_ms = GRACE_MS,
                    .store_ms = node->settings.join_ms },
        .ranks = { .run_id = "job", .role = node->role, .local_world_size = node->size },
        .completion = { .run_id = "job", .node = name, .barrier_ms = UINT64_MAX },
        .on_step = on_step,
        .ctx = node,
    };

    (void)snprintf(name, sizeof name, "node%u", node->index);
    if (a == NULL || mu_job_new(&config, &a->job, NULL) < 0)
        abort();
    a->timer_us = UINT64_MAX;
    node->agent = a;
    handler_new(node);
    later(node, in_us, on_run, 0);
}

void owner_gone(struct node *node)
{
    handler_free(node);
    mu_job_free(node->agent->job);
    free(node->agent);
    node->agent = NULL;
}

void owner_fails(struct node *node, bool says_so)
{
    (void)says_so;
    if (node->agent->running > 0)
        exit_later(node, below((uint64_t)node->size), false, 0);
}

void owner_is_done(struct node *node)
{
    for (size_t i = 0; i < (size_t)node->size; i++)
        exit_later(node, i, true, below(5 * MS));
}

static void on_signal(struct node *node, uint64_t number)
{
    node->agent->personal = true;
    tell(node, (struct mu_policy_event){ .type = MU_POLICY_ON_SIGNAL, .round = -1, .number = (int64_t)number });
}

void owner_leaves(struct node *node, uint64_t in_us)
{
    later(node, in_us, on_signal, SIGTERM);
}

void owner_asks(struct node *node, enum mu_fold_event_type what)
{
    if (what != MU_FOLD_ON_CLOSE) /* an agent never looks */
        return;
    s->close_asked = true;
    if (node->paused_until_us <= s->now_us)
        handler_ask(node, MU_PART_ON_CLOSE, NULL);
}

void owner_finish(void)
{
    uint64_t until_us = s->now_us + 1500 * SECOND;

    sim_trace("workers succeed");
    finishing = true;
    for (unsigned i = 0; i < s->nodes_count; i++)
        if (s->nodes[i].alive)
            owner_is_done(&s->nodes[i]);
    for (unsigned i = 0; i < s->nodes_count; i++)
        while (s->nodes[i].alive) {
            SIM_EXPECT(s->now_us < until_us, "node %u does not end", i);
            sim_run(SECOND);
        }
}
