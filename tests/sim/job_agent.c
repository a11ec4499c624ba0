/* An agent on top of a node: the program's own job, with all its machines. What the rendezvous tells arrives from the
 * loop, in its order. */
#include "job_sim.h"

#include <signal.h>

static bool is_there(const struct agent *a)
{
    return a->job != NULL && !a->ended && a->node->alive && a->node->life == a->life;
}

/* ---- Effects ---- */

static void start_workers(struct agent *a)
{
    struct mu_policy_event told = { .type = MU_POLICY_ON_STARTED, .round = a->round };
    struct muster_error error = { 0 };

    check_starting(a);
    boot_check_starting(a);
    if (!procs_start(a)) {
        a->personal = true;
        (void)mu_fail(&error, MUSTER_ESYSTEM, "simulated");
        told.type = MU_POLICY_ON_START_FAILED;
        told.error = &error;
    }
    if (boot_port_is_taken(a))
        a->procs.table[0].fails = true;
    mu_job_tell(a->job, &told);
}

static void end(struct agent *a, const struct mu_policy_outcome *outcome)
{
    TELL("%s: ends, %s: %s", a->name, mu_policy_outcome_text(outcome->kind), outcome->error.text);
    EXPECT("end", !a->ended, "%s ends twice", a->name);
    check_ending(a, outcome);
    a->ended = true;
    job.retired[a->node->slot] = true;
}

static void perform_policy(struct agent *a, const struct mu_policy_effect *effect)
{
    switch (effect->type) {
    case MU_POLICY_DO_JOIN:
        check_joining(a);
        boot_ask(a, MU_RDZV_JOIN);
        break;
    case MU_POLICY_DO_LEAVE:
        boot_ask(a, MU_RDZV_LEAVE);
        break;
    case MU_POLICY_DO_START_WORKERS:
        start_workers(a);
        break;
    case MU_POLICY_DO_STOP_WORKERS:
        procs_stop(a, effect->signal, effect->grace_ms);
        break;
    case MU_POLICY_DO_KILL_WORKERS:
        procs_stop(a, SIGKILL, 0);
        break;
    case MU_POLICY_DO_SAY:
        TELL("%s: says: %s", a->name, effect->text);
        break;
    case MU_POLICY_DO_END:
        end(a, effect->outcome);
        break;
    case MU_POLICY_DO_LINGER:
        a->lingers = true;
        break;
    case MU_POLICY_DO_STATE:
        check_state(a, effect->state);
        break;
    case MU_POLICY_DO_RECORD:
    case MU_POLICY_DO_STEP:
    case MU_POLICY_DO_DECISION:
    case MU_POLICY_DO_FINAL:
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
        abort();
    }
}

static void perform(struct agent *a, const struct mu_job_effect *effect)
{
    switch (effect->type) {
    case MU_JOB_DO_ASK:
        kv_ask(a, effect->who, &effect->ask);
        break;
    case MU_JOB_DO_CLOSE:
        boot_ask(a, MU_RDZV_CLOSE);
        break;
    case MU_JOB_DO_REPORT: /* the document machine has no leader */
        abort();
    case MU_JOB_DO_WARN:
        TELL("%s: warning: %s", a->name, effect->text);
        break;
    case MU_JOB_DO_POLICY:
        perform_policy(a, effect->policy);
        break;
    }
}

static bool is_news(enum mu_policy_effect_type type)
{
    return type <= MU_POLICY_DO_LINGER || type == MU_POLICY_DO_END;
}

/* Before the effects of a step of the policy are carried out. */
static void on_step(void *ctx, const struct mu_policy_event *event, enum mu_policy_phase before,
                    const struct mu_policy_effects *effects)
{
    struct agent *a = ctx;
    enum mu_policy_phase now = mu_policy_phase(mu_job_policy(a->job));

    if (event->type != MU_POLICY_ON_TIME && event->type != MU_POLICY_ON_ANSWER)
        TELL("%s: is told: %s%s%s", a->name, mu_policy_event_text(event->type), event->text != NULL ? ": " : "",
             event->text != NULL ? event->text : "");
    if (event->type == MU_POLICY_ON_LOST)
        check_lost(a);
    if (event->type == MU_POLICY_ON_FINISHED)
        a->behind = event->end != MU_COMPLETION_END_ALL_DONE && event->end != MU_COMPLETION_END_FAILED;
    if (now != before)
        TELL("%s: now %s", a->name, mu_policy_phase_text(now));
    check_step(a, event, before, effects);
    for (unsigned i = 0; i < effects->count; i++) {
        enum mu_policy_effect_type type = effects->items[i].type;

        if (is_news(type))
            TELL("%s: %s", a->name, mu_policy_effect_text(type));
        if (type == MU_POLICY_DO_FINISH) {
            a->done = true;
            a->done_us = w.now_us;
            job.done_round[a->node->id] = a->round;
        } else if (type == MU_POLICY_DO_FAIL_JOB) {
            check_fail_job(a);
        }
    }
}

static void on_timer(struct agent *a, void *what, uint64_t number);

static void arm(struct agent *a)
{
    uint64_t ms = mu_job_deadline_ms(a->job);
    uint64_t at;

    if (ms == UINT64_MAX) {
        a->timer_us = 0;
        a->timer_generation++;
        return;
    }
    at = ms * MS <= w.now_us + a->node->mono_offset_us ? w.now_us : ms * MS - a->node->mono_offset_us;
    if (at == a->timer_us && at > w.now_us)
        return;
    a->timer_us = at;
    later(at, on_timer, a, NULL, ++a->timer_generation);
}

static void feed(struct agent *a, struct mu_job_event event)
{
    struct mu_job_effect effect;

    if (!is_there(a))
        return;
    EXPECT("nested", !mu_job_is_busy(a->job), "%s: a step inside of a step", a->name);
    mu_job_step(a->job, &event);
    while (is_there(a) && mu_job_next(a->job, node_ms(a->node), &effect)) {
        a->assigned = *mu_job_assigned(a->job);
        perform(a, &effect);
    }
    check_states(a);
    if (a->ended && a->node->alive)
        node_die(a->node);
    if (is_there(a))
        arm(a);
}

static void on_timer(struct agent *a, void *what, uint64_t number)
{
    (void)what;
    if (number != a->timer_generation)
        return;
    a->timer_us = 0;
    feed(a, (struct mu_job_event){ .type = MU_JOB_ON_TIME });
}

void agent_tell(struct agent *a, struct mu_policy_event event)
{
    feed(a, (struct mu_job_event){ .type = MU_JOB_ON_TOLD, .told = event });
}

void agent_answer(struct agent *a, enum mu_job_who who, struct mu_answer answer)
{
    feed(a, (struct mu_job_event){ .type = MU_JOB_ON_ANSWER, .who = who, .answer = answer });
}

/* ---- The rendezvous ---- */

static enum muster_rdzv_event_type type_of(enum mu_part_tell tell)
{
    switch (tell) {
    case MU_PART_TELL_JOINED:
        return MUSTER_RDZV_JOINED;
    case MU_PART_TELL_WAITING:
        return MUSTER_RDZV_WAITING;
    case MU_PART_TELL_LOST:
        return MUSTER_RDZV_PEERS_LOST;
    case MU_PART_TELL_REMOVED:
        return MUSTER_RDZV_REMOVED;
    case MU_PART_TELL_CLOSED:
        return MUSTER_RDZV_CLOSED;
    case MU_PART_TELL_LEFT:
        return MUSTER_RDZV_LEFT;
    case MU_PART_TELL_FAILED:
        return MUSTER_RDZV_FAILED;
    case MU_PART_TELL_BACKEND_DOWN:
        return MUSTER_RDZV_BACKEND_DOWN;
    case MU_PART_TELL_BACKEND_UP:
        return MUSTER_RDZV_BACKEND_UP;
    case MU_PART_TELL_LOOKED:
        return MUSTER_RDZV_LOOKED;
    case MU_PART_TELL_PROGRESS:
    case MU_PART_TELL_REPORTED:
    case MU_PART_TELL_FOREIGN:
    case MU_PART_TELLS_COUNT:
        break;
    }
    return MUSTER_RDZV_PROGRESS;
}

/* The checks know a node by its number; so does the job, here. */
static void name_nodes(const struct news *news, struct mu_node nodes[static AGENTS_MAX])
{
    for (size_t i = 0; i < news->ids_count; i++)
        nodes[i] = (struct mu_node){ .name = mu_slice_str("node"),
                                     .pid = news->ids[i],
                                     .local_id = mu_node_local_id(MU_NODE_VERSION, news->ids[i]) };
}

static void note_joined(struct agent *a, const struct news *news)
{
    a->round = news->round;
    a->tag = news->tag;
    a->rank = news->rank;
    a->incarnation = news->incarnation;
    a->world_count = news->ids_count;
    memcpy(a->world, news->ids, sizeof a->world);
    a->closed = false;
    a->lost_us = 0;
}

static void on_news(struct agent *a, void *what, uint64_t number)
{
    const struct news *news = what;
    struct mu_node nodes[AGENTS_MAX];
    struct mu_round joined = {
        .round = news->round,
        .rank = news->rank,
        .world_size = (int64_t)news->ids_count,
        .all_ours = !job.on[T_MIXED],
        .old_dialect = news->old_dialect,
        .has_store = true,
        .serves = (int)a->node->slot == w.host_slot,
    };
    struct mu_job_event told = {
        .type = MU_JOB_ON_RDZV,
        .rdzv = type_of(news->tell),
        .round = news->round,
        .joined = &joined,
        .nodes = nodes,
        .nodes_count = news->ids_count,
        .count = news->count,
        .request = news->request,
        .error = &news->error,
        .away_ms = news->away_ms,
        .give_up_in_ms = news->give_up_in_ms == UINT64_MAX ? 0 : news->give_up_in_ms,
    };

    (void)number;
    name_nodes(news, nodes);
    if (news->tell == MU_PART_TELL_JOINED)
        note_joined(a, news);
    else if (news->tell == MU_PART_TELL_LOST)
        a->lost_us = w.now_us;
    else if (news->tell == MU_PART_TELL_CLOSED)
        a->closed = true;
    else if (news->tell == MU_PART_TELL_BACKEND_DOWN || news->tell == MU_PART_TELL_BACKEND_UP)
        a->store_away = news->tell == MU_PART_TELL_BACKEND_DOWN;
    feed(a, told);
    if (news->tell == MU_PART_TELL_REMOVED && is_there(a))
        check_removed(a);
    free(what);
}

void agent_deliver(struct agent *a, struct news *news)
{
    later(w.now_us, on_news, a, news, 0);
}

static void copy_ids(struct news *news, const struct mu_node *nodes, size_t count)
{
    for (size_t i = 0; i < count && i < AGENTS_MAX; i++)
        news->ids[news->ids_count++] = id_of(&nodes[i]);
}

void agent_hear(struct node *node, const struct mu_rdzv_effect *effect)
{
    struct agent *a = &job.agents[node->slot];
    struct mu_node nodes[AGENTS_MAX];
    struct news news;

    if (effect->type != MU_RDZV_DO_TELL || effect->news.tell == MU_PART_TELL_PROGRESS ||
        effect->news.tell == MU_PART_TELL_FOREIGN)
        return;
    TELL("%s: rendezvous: %s", node->name, mu_part_tell_text(effect->news.tell));
    news = (struct news){ .tell = effect->news.tell,
                          .round = effect->news.round,
                          .count = effect->news.count,
                          .away_ms = effect->news.away_ms,
                          .give_up_in_ms = effect->news.give_up_in_ms,
                          .incarnation = store_incarnation(),
                          .error = *mu_rdzv_error(node->rdzv) };
    if (effect->news.tell == MU_PART_TELL_JOINED) {
        const struct mu_rdzv_world *world = mu_rdzv_world(node->rdzv);

        news.round = world->round;
        news.rank = world->rank;
        news.old_dialect = world->dialect.habits == MU_HABITS_1_13;
        copy_ids(&news, world->members, world->count);
        name_nodes(&news, nodes);
        news.tag = mu_round_tag(nodes, news.ids_count);
    } else if (effect->news.tell == MU_PART_TELL_LOST) {
        struct mu_rdzv_nodes lost = mu_rdzv_lost(node->rdzv);

        copy_ids(&news, lost.items, lost.count);
    } else if (effect->news.tell != MU_PART_TELL_WAITING && effect->news.tell != MU_PART_TELL_REMOVED) {
        news.round = a->round;
    }
    boot_hear(a, effect, &news);
}

/* ---- Birth and death ---- */

void agent_signal(struct agent *a, int signal)
{
    TELL("%s: gets signal %d", a->name, signal);
    a->personal = true;
    if (a->signal_us == 0)
        a->signal_us = w.now_us;
    agent_tell(a, (struct mu_policy_event){ .type = MU_POLICY_ON_SIGNAL, .round = -1, .number = signal });
}

static void on_run(struct agent *a, void *what, uint64_t number)
{
    (void)what;
    (void)number;
    agent_tell(a, (struct mu_policy_event){ .type = MU_POLICY_ON_RUN, .round = -1 });
}

void agent_birth(struct node *node)
{
    struct agent *a = &job.agents[node->slot];
    uint64_t generation = a->procs.generation;
    struct mu_policy_config policy = {
        .run_id = RUN_ID,
        .role = "default",
        .local_world_size = 1 + (int64_t)below(SIZE_MAX_LOCAL),
        .max_restarts = job.max_restarts,
        .grace_ms = job.grace_ms,
        .store_ms = w.settings.join_ms,
    };
    struct mu_ranks_config ranks = { .run_id = RUN_ID, .role = "default", .local_world_size = policy.local_world_size };
    struct mu_completion_config completion = { .run_id = RUN_ID, .barrier_ms = job.barrier_ms };
    struct mu_job_config config;

    *a = (struct agent){
        .node = node, .life = node->life, .size = policy.local_world_size, .round = -1, .state = MU_GROUP_INIT
    };
    a->procs.generation = generation;
    a->grace_ms = job.grace_ms;
    (void)snprintf(a->name, sizeof a->name, "agent%u.%u", node->slot, node->id);
    policy.node = completion.node = a->name;
    job.sizes[node->id] = a->size;
    job.died_us[node->id] = 0;
    job.done_round[node->id] = -1;
    config = (struct mu_job_config){ policy, ranks, completion, on_step, a };
    if (mu_job_new(&config, &a->job, NULL) < 0)
        abort();
    host_birth(a);
    boot_birth(a);
    TELL("%s: runs %" PRId64 " workers", a->name, a->size);
    later(w.now_us + below(20 * MS), on_run, a, NULL, 0);
    procs_birth(a);
}

/* Its workers die with it. */
void agent_bury(struct agent *a)
{
    mu_job_free(a->job);
    a->job = NULL;
    boot_bury(a);
    procs_bury(a);
    a->life = 0;
    job.died_us[a->node->id] = w.now_us;
}
