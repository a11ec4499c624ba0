/* An agent on top of a node: the program's own policy, ranks and finish machines, wired as agent_uv.c wires them. What the
 * rendezvous tells arrives from the loop, in its order. Its workers' store is there at once: nothing is made of it here. */
#include "job_sim.h"

#include <signal.h>

struct news { /* of the rendezvous */
    enum mu_rdzv_tell tell;
    int64_t round, count, rank;
    bool old_dialect;
    unsigned incarnation;
    unsigned ids[AGENTS_MAX]; /* the world's, or the lost */
    size_t ids_count;
    struct muster_error error;
};

static void pump(struct agent *a);
static void step_policy(struct agent *a, struct mu_policy_event event);

static bool is_there(const struct agent *a)
{
    return a->policy != NULL && !a->ended && a->node->alive && a->node->life == a->life;
}

/* ---- The queue ---- */

static void tell_policy(struct agent *a, struct mu_policy_event event)
{
    struct queued *queued = &a->queue[a->queue_count];

    if (a->ended)
        return;
    EXPECT("queue", a->queue_count < QUEUE_MAX, "%s: too much at once", a->name);
    a->queue_count++;
    queued->event = event;
    if (event.joined != NULL)
        queued->joined = *event.joined;
    if (event.ranks != NULL)
        queued->ranks = *event.ranks;
    if (event.error != NULL)
        queued->error = *event.error;
    if (event.text != NULL)
        (void)snprintf(queued->text, sizeof queued->text, "%s", event.text);
}

/* ---- Ranks and finish ---- */

static void step_ranks(struct agent *a, struct mu_ranks_event event)
{
    struct mu_ranks_effects effects;

    event.now_ms = node_ms(a->node);
    mu_ranks_step(a->ranks, &event, &effects);
    for (unsigned i = 0; i < effects.count; i++) {
        const struct mu_ranks_effect *effect = &effects.items[i];

        switch (effect->type) {
        case MU_RANKS_DO_ASK:
            kv_ask(a, FOR_RANKS, &effect->ask);
            break;
        case MU_RANKS_DO_DONE:
            a->assigned = *effect->result;
            tell_policy(a, (struct mu_policy_event){
                               .type = MU_POLICY_ON_ASSIGNED, .round = a->round, .ranks = effect->result });
            break;
        case MU_RANKS_DO_FAIL:
            tell_policy(a, (struct mu_policy_event){
                               .type = MU_POLICY_ON_ASSIGN_FAILED, .round = a->round, .error = effect->error });
            break;
        }
    }
}

static void step_finish(struct agent *a, struct mu_finish_event event)
{
    struct mu_finish_effects effects;

    event.now_ms = node_ms(a->node);
    mu_finish_step(a->finish, &event, &effects);
    for (unsigned i = 0; i < effects.count && is_there(a); i++) {
        const struct mu_finish_effect *effect = &effects.items[i];
        struct mu_policy_event told = { .round = a->round, .text = effect->text, .end = effect->end };

        switch (effect->type) {
        case MU_FINISH_DO_ASK:
            kv_ask(a, FOR_FINISH, &effect->ask);
            break;
        case MU_FINISH_DO_CLOSE:
            node_ask(a->node, MU_RDZV_CLOSE);
            break;
        case MU_FINISH_DO_LOST:
            TELL("%s: lost %s", a->name, effect->text);
            check_lost(a);
            told.type = MU_POLICY_ON_LOST;
            tell_policy(a, told);
            break;
        case MU_FINISH_DO_JOB_FAILED:
            TELL("%s: %s", a->name, effect->text);
            told.type = MU_POLICY_ON_JOB_FAILED;
            tell_policy(a, told);
            break;
        case MU_FINISH_DO_WARN:
            TELL("%s: warning: %s", a->name, effect->text);
            break;
        case MU_FINISH_DO_END:
            TELL("%s: finished: %s", a->name, mu_finish_end_text(effect->end));
            a->behind = effect->end != MU_FINISH_END_ALL_DONE && effect->end != MU_FINISH_END_FAILED;
            told.type = MU_POLICY_ON_FINISHED;
            tell_policy(a, told);
            break;
        }
    }
}

void agent_answer(struct agent *a, enum who who, struct mu_answer answer)
{
    switch (who) {
    case FOR_POLICY:
        step_policy(a, (struct mu_policy_event){ .type = MU_POLICY_ON_ANSWER, .answer = answer, .round = -1 });
        break;
    case FOR_RANKS:
        step_ranks(a, (struct mu_ranks_event){ .type = MU_RANKS_ON_ANSWER, .answer = answer });
        break;
    case FOR_FINISH:
        step_finish(a, (struct mu_finish_event){ .type = MU_FINISH_ON_ANSWER, .answer = answer, .round = -1 });
        break;
    }
    pump(a);
}

/* ---- The policy ---- */

static void start_workers(struct agent *a)
{
    struct muster_error error = { 0 };

    check_starting(a);
    if (procs_start(a)) {
        tell_policy(a, (struct mu_policy_event){ .type = MU_POLICY_ON_STARTED, .round = a->round });
        return;
    }
    a->personal = true;
    (void)mu_fail(&error, MUSTER_ESYSTEM, "simulated");
    tell_policy(a, (struct mu_policy_event){ .type = MU_POLICY_ON_START_FAILED, .round = a->round, .error = &error });
}

static void end(struct agent *a, const struct mu_policy_outcome *outcome)
{
    TELL("%s: ends, %s: %s", a->name, mu_policy_outcome_text(outcome->kind), outcome->error.text);
    EXPECT("end", !a->ended, "%s ends twice", a->name);
    check_ending(a, outcome);
    a->ended = true;
    a->queue_count = 0;
    job.retired[a->node->slot] = true;
}

static void perform(struct agent *a, const struct mu_policy_effect *effect)
{
    switch (effect->type) {
    case MU_POLICY_DO_JOIN:
        check_joining(a);
        node_ask(a->node, MU_RDZV_JOIN);
        break;
    case MU_POLICY_DO_LEAVE:
        node_ask(a->node, MU_RDZV_LEAVE);
        break;
    case MU_POLICY_DO_ASSIGN:
        step_ranks(a, (struct mu_ranks_event){ .type = MU_RANKS_ON_START, .start = effect->assign });
        break;
    case MU_POLICY_DO_ASSIGN_STOP:
        step_ranks(a, (struct mu_ranks_event){ .type = MU_RANKS_ON_STOP });
        break;
    case MU_POLICY_DO_WATCH:
        step_finish(a, (struct mu_finish_event){ .type = MU_FINISH_ON_START, .start = effect->watch, .round = -1 });
        break;
    case MU_POLICY_DO_WATCH_STOP:
        step_finish(a, (struct mu_finish_event){ .type = MU_FINISH_ON_STOP, .round = -1 });
        break;
    case MU_POLICY_DO_FINISH:
        a->done = true;
        job.done_round[a->node->id] = a->round;
        step_finish(a, (struct mu_finish_event){ .type = MU_FINISH_ON_DONE, .round = -1 });
        break;
    case MU_POLICY_DO_FAIL_JOB:
        check_fail_job(a);
        step_finish(a, (struct mu_finish_event){ .type = MU_FINISH_ON_FAIL, .text = effect->text, .round = -1 });
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
    case MU_POLICY_DO_ASK:
        kv_ask(a, FOR_POLICY, &effect->ask);
        break;
    case MU_POLICY_DO_SAY:
        TELL("%s: says: %s", a->name, effect->text);
        break;
    case MU_POLICY_DO_END:
        end(a, effect->outcome);
        break;
    case MU_POLICY_DO_LINGER: /* who else is connected is not known: it ends with its time */
    case MU_POLICY_DO_STATE:
    case MU_POLICY_DO_RECORD:
    case MU_POLICY_DO_STEP:
    case MU_POLICY_DO_DECISION:
    case MU_POLICY_DO_FINAL:
        break;
    }
}

static bool is_news(enum mu_policy_effect_type type)
{
    return type <= MU_POLICY_DO_LINGER || type == MU_POLICY_DO_END;
}

static void step_policy(struct agent *a, struct mu_policy_event event)
{
    struct mu_policy_effects effects;
    enum mu_policy_phase before = mu_policy_phase(a->policy);

    if (!is_there(a))
        return;
    EXPECT("nested", !a->stepping, "%s: a step inside of a step", a->name);
    a->stepping = true;
    event.now_ms = node_ms(a->node);
    mu_policy_step(a->policy, &event, &effects);
    if (event.type != MU_POLICY_ON_TIME && event.type != MU_POLICY_ON_ANSWER)
        TELL("%s: is told: %s", a->name, mu_policy_event_text(event.type));
    if (mu_policy_phase(a->policy) != before)
        TELL("%s: now %s", a->name, mu_policy_phase_text(mu_policy_phase(a->policy)));
    check_step(a, &event, before, &effects);
    for (unsigned i = 0; i < effects.count && is_there(a); i++) {
        if (is_news(effects.items[i].type))
            TELL("%s: %s", a->name, mu_policy_effect_text(effects.items[i].type));
        perform(a, &effects.items[i]);
    }
    a->stepping = false;
    if (a->ended && a->node->alive)
        node_die(a->node);
}

static void on_timer(struct agent *a, void *what, uint64_t number);

static uint64_t sooner(uint64_t x, uint64_t y)
{
    return x < y ? x : y;
}

static void arm(struct agent *a)
{
    uint64_t ms = sooner(mu_policy_deadline_ms(a->policy),
                         sooner(mu_ranks_deadline_ms(a->ranks), mu_finish_deadline_ms(a->finish)));
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

/* Tells what waits, until nothing does; then sets the timer anew. */
static void pump(struct agent *a)
{
    struct queued *first = &a->queue[QUEUE_MAX];

    if (a->stepping)
        return;
    while (a->queue_count > 0 && is_there(a)) {
        *first = a->queue[0];
        a->queue_count--;
        memmove(a->queue, a->queue + 1, a->queue_count * sizeof a->queue[0]);
        if (first->event.joined != NULL)
            first->event.joined = &first->joined;
        if (first->event.ranks != NULL)
            first->event.ranks = &first->ranks;
        if (first->event.error != NULL)
            first->event.error = &first->error;
        if (first->event.text != NULL)
            first->event.text = first->text;
        step_policy(a, first->event);
    }
    if (is_there(a))
        arm(a);
}

static void on_timer(struct agent *a, void *what, uint64_t number)
{
    uint64_t now_ms = node_ms(a->node);

    (void)what;
    if (number != a->timer_generation)
        return;
    a->timer_us = 0;
    if (now_ms >= mu_ranks_deadline_ms(a->ranks))
        step_ranks(a, (struct mu_ranks_event){ .type = MU_RANKS_ON_TIME });
    if (now_ms >= mu_finish_deadline_ms(a->finish))
        step_finish(a, (struct mu_finish_event){ .type = MU_FINISH_ON_TIME, .round = -1 });
    if (now_ms >= mu_policy_deadline_ms(a->policy))
        step_policy(a, (struct mu_policy_event){ .type = MU_POLICY_ON_TIME, .round = -1 });
    pump(a);
}

void agent_tell(struct agent *a, struct mu_policy_event event)
{
    step_policy(a, event);
    pump(a);
}

/* ---- The rendezvous ---- */

static void on_joined(struct agent *a, const struct news *news)
{
    struct mu_policy_joined joined = {
        .round = news->round,
        .rank = news->rank,
        .world_size = (int64_t)news->ids_count,
        .all_ours = true,
        .old_dialect = news->old_dialect,
        .has_store = true,
        .serves = (int)a->node->slot == w.host_slot && a->node->settings.nodes_max > 1,
    };

    a->round = news->round;
    a->rank = news->rank;
    a->incarnation = news->incarnation;
    a->world_count = news->ids_count;
    memcpy(a->world, news->ids, sizeof a->world);
    a->closed = false;
    a->lost_us = 0;
    a->joined_us = w.now_us;
    step_policy(a, (struct mu_policy_event){ .type = MU_POLICY_ON_JOINED, .round = news->round, .joined = &joined });
}

static void on_peers_lost(struct agent *a, const struct news *news)
{
    struct mu_finish_peer lost[AGENTS_MAX];
    char text[256] = "";
    size_t len = 0;

    for (size_t i = 0; i < news->ids_count; i++) {
        lost[i] = (struct mu_finish_peer){ .rank = -1, .ours = true };
        for (size_t k = 0; k < a->world_count; k++)
            if (a->world[k] == news->ids[i])
                lost[i].rank = (int64_t)k;
        len += (size_t)snprintf(text + len, sizeof text - len, "%s%u", i > 0 ? ", " : "", news->ids[i]);
    }
    a->lost_us = w.now_us;
    step_finish(a, (struct mu_finish_event){ .type = MU_FINISH_ON_PEERS_LOST,
                                             .round = news->round,
                                             .lost = lost,
                                             .lost_count = news->ids_count,
                                             .text = text });
}

static void on_failed(struct agent *a, struct mu_policy_event told)
{
    if (mu_finish_state(a->finish) == MU_FINISH_CLOSING) {
        step_finish(a, (struct mu_finish_event){ .type = MU_FINISH_ON_CLOSE_FAILED, .round = -1, .error = told.error });
        return;
    }
    told.type = MU_POLICY_ON_FAILED;
    step_policy(a, told);
}

static void on_news(struct agent *a, void *what, uint64_t number)
{
    const struct news *news = what;
    struct mu_policy_event told = { .round = news->round, .error = &news->error, .number = news->count };

    (void)number;
    switch (news->tell) {
    case MU_RDZV_TELL_JOINED:
        on_joined(a, news);
        break;
    case MU_RDZV_TELL_WAITING:
        told.type = MU_POLICY_ON_WAITING;
        step_policy(a, told);
        break;
    case MU_RDZV_TELL_PEERS_LOST:
        on_peers_lost(a, news);
        break;
    case MU_RDZV_TELL_REMOVED:
        step_finish(a, (struct mu_finish_event){ .type = MU_FINISH_ON_REMOVED, .round = news->round });
        told.type = MU_POLICY_ON_REMOVED;
        step_policy(a, told);
        if (is_there(a))
            check_removed(a);
        break;
    case MU_RDZV_TELL_CLOSED:
        a->closed = true;
        step_finish(a, (struct mu_finish_event){ .type = MU_FINISH_ON_CLOSED, .round = -1 });
        told.type = MU_POLICY_ON_CLOSED;
        step_policy(a, told);
        break;
    case MU_RDZV_TELL_LEFT:
        told.type = MU_POLICY_ON_LEFT;
        step_policy(a, told);
        break;
    case MU_RDZV_TELL_FAILED:
        on_failed(a, told);
        break;
    case MU_RDZV_TELL_BACKEND_DOWN:
        told.type = MU_POLICY_ON_BACKEND_DOWN;
        step_policy(a, told);
        break;
    case MU_RDZV_TELL_BACKEND_UP:
        step_finish(a, (struct mu_finish_event){ .type = MU_FINISH_ON_BACKEND_UP, .round = -1 });
        told.type = MU_POLICY_ON_BACKEND_UP;
        step_policy(a, told);
        break;
    case MU_RDZV_TELL_LOOKED:
    case MU_RDZV_TELL_PROGRESS:
    case MU_RDZV_TELL_RECORD:
        break;
    }
    free(what);
    pump(a);
}

static void copy_ids(struct news *news, const struct mu_node *nodes, size_t count)
{
    for (size_t i = 0; i < count && i < AGENTS_MAX; i++)
        news->ids[news->ids_count++] = id_of(&nodes[i]);
}

void agent_hear(struct node *node, const struct mu_rdzv_effect *effect)
{
    struct agent *a = &job.agents[node->slot];
    struct news *news;

    if (effect->tell == MU_RDZV_TELL_PROGRESS || effect->tell == MU_RDZV_TELL_RECORD)
        return;
    TELL("%s: rendezvous: %s", node->name, mu_rdzv_tell_text(effect->tell));
    news = calloc(1, sizeof *news);
    if (news == NULL)
        abort();
    *news = (struct news){ .tell = effect->tell,
                           .round = effect->round,
                           .count = effect->count,
                           .incarnation = store_incarnation(),
                           .error = *mu_rdzv_error(node->rdzv) };
    if (effect->tell == MU_RDZV_TELL_JOINED) {
        const struct mu_rdzv_world *world = mu_rdzv_world(node->rdzv);

        news->round = world->round;
        news->rank = world->rank;
        news->old_dialect = !world->dialect.addr;
        copy_ids(news, world->members, world->count);
    } else if (effect->tell == MU_RDZV_TELL_PEERS_LOST) {
        struct mu_rdzv_nodes lost = mu_rdzv_lost(node->rdzv);

        copy_ids(news, lost.items, lost.count);
    } else if (effect->tell != MU_RDZV_TELL_WAITING && effect->tell != MU_RDZV_TELL_REMOVED) {
        news->round = a->round;
    }
    later(w.now_us, on_news, a, news, 0);
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
        .restart_grace_ms = job.restart_grace_ms,
        .signal_grace_ms = job.signal_grace_ms,
    };
    struct mu_ranks_config ranks = { .run_id = RUN_ID, .role = "default", .local_world_size = policy.local_world_size };
    struct mu_finish_config finish = { .run_id = RUN_ID, .barrier_ms = job.barrier_ms };

    *a = (struct agent){ .node = node, .life = node->life, .size = policy.local_world_size, .round = -1 };
    a->procs.generation = generation;
    a->signal_grace_ms = job.signal_grace_ms;
    (void)snprintf(a->name, sizeof a->name, "agent%u.%u", node->slot, node->id);
    policy.node = finish.node = a->name;
    job.sizes[node->id] = a->size;
    job.died_us[node->id] = 0;
    job.done_round[node->id] = -1;
    if (mu_policy_new(&policy, &a->policy, NULL) < 0 || mu_ranks_new(&ranks, &a->ranks, NULL) < 0 ||
        mu_finish_new(&finish, &a->finish, NULL) < 0)
        abort();
    TELL("%s: runs %" PRId64 " workers", a->name, a->size);
    later(w.now_us + below(20 * MS), on_run, a, NULL, 0);
}

/* Its workers die with it. */
void agent_bury(struct agent *a)
{
    mu_policy_free(a->policy);
    mu_ranks_free(a->ranks);
    mu_finish_free(a->finish);
    a->policy = NULL;
    a->ranks = NULL;
    a->finish = NULL;
    a->procs.running = 0;
    a->procs.left = false;
    a->procs.generation++;
    a->life = 0;
    job.died_us[a->node->id] = w.now_us;
}
