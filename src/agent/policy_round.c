/* One round in an agent's life: from joining it until its workers are gone. See policy.h. */
#include "agent/policy_parts.h"

#include <signal.h>

/* ---- Joining ---- */

void mu_policy_join(struct mu_policy *p)
{
    assert(p->workers == NONE && p->leftovers == 0 && p->fate != END);
    p->fate = UNDECIDED;
    p->charge = UNCHARGED;
    p->charge_until_ms = UINT64_MAX;
    mu_asks_drop(&p->asks);
    mu_policy_set_membership(p, MAY_BE_MEMBER);
    p->join_ms = p->initialize_ms = p->now_ms;
    mu_policy_enter(p, MU_POLICY_JOINING, UINT64_MAX);
    (void)mu_policy_emit(p, MU_POLICY_DO_JOIN);
}

/* The workers of the round have not been started: it is over at once. */
void mu_policy_join_again(struct mu_policy *p, const char *why)
{
    (void)snprintf(p->why, sizeof p->why, "%s", why);
    p->restart_ms = p->restart_ms == UINT64_MAX ? p->now_ms : p->restart_ms;
    (void)mu_policy_emit(p, MU_POLICY_DO_ASSIGN_STOP);
    (void)mu_policy_emit(p, MU_POLICY_DO_WATCH_STOP);
    mu_policy_join(p);
}

void mu_policy_on_joined(struct mu_policy *p, const struct mu_policy_event *event)
{
    if (p->phase != MU_POLICY_JOINING)
        return;
    p->joined = *event->joined;
    p->closed = false;
    if (p->joined.led)
        p->count = p->joined.count;
    (void)mu_policy_put_record(p, MU_POLICY_RECORD_RENDEZVOUS, (int64_t)(p->now_ms - p->join_ms));
    p->joined.own_count = p->own;
    p->joined.count_min = p->known;
    if (p->joined.led && p->joined.max_restarts != p->max_restarts) {
        mu_policy_say(p, MUSTER_LOG_WARNING,
                      "max restarts are %" PRId64 " here, but the job was started with %" PRId64 ", which counts",
                      p->max_restarts, p->joined.max_restarts);
        p->max_restarts = p->joined.max_restarts;
    }
    p->joined.max_restarts = p->max_restarts;
    memcpy(p->joined.last.failure, p->claim, sizeof p->claim);
    memcpy(p->joined.last.loss, p->loss, sizeof p->loss);
    mu_policy_emit(p, MU_POLICY_DO_WATCH)->joined = &p->joined;
    mu_policy_emit(p, MU_POLICY_DO_ASSIGN)->joined = &p->joined;
    p->assign_ms = p->now_ms;
    mu_policy_enter(p, MU_POLICY_ASSIGNING, UINT64_MAX);
}

void mu_policy_on_assigned(struct mu_policy *p, const struct mu_policy_event *event)
{
    struct mu_policy_effect *start;

    if (p->phase != MU_POLICY_ASSIGNING)
        return;
    p->count = event->ranks->count;
    p->base_rank = event->ranks->base_rank;
    p->shared = event->ranks->shared;
    p->own = p->shared ? p->count : mu_policy_larger(p->own, p->count);
    if (p->shared)
        p->known = mu_policy_larger(p->known, p->count);
    p->claim[0] = p->loss[0] = p->peer_failed[0] = '\0';
    if (event->ranks->settled[0] != '\0')
        mu_policy_say(p, MUSTER_LOG_WARNING, "%s", event->ranks->settled);
    (void)mu_policy_put_record(p, MU_POLICY_RECORD_ASSIGN, (int64_t)(p->now_ms - p->assign_ms));
    mu_policy_time_step(p, MU_METRICS_ASSIGN_WORKER_RANKS, true, p->assign_ms);
    mu_policy_time_step(p, MU_METRICS_RENDEZVOUS, true, p->join_ms);
    p->start_ms = p->now_ms;
    p->workers = STARTING;
    p->ever_started = true;
    p->succeeded = 0;
    p->failure[0] = '\0';
    mu_policy_enter(p, MU_POLICY_STARTING, UINT64_MAX);
    start = mu_policy_emit(p, MU_POLICY_DO_START_WORKERS);
    start->ok = p->restart_ms != UINT64_MAX;
    start->number = start->ok ? (int64_t)(p->now_ms - p->restart_ms) : 0;
}

/* ---- Stopping ---- */

void mu_policy_stop(struct mu_policy *p, int signal, uint64_t grace_ms)
{
    struct mu_policy_effect *effect;

    if (p->phase == MU_POLICY_ASSIGNING)
        (void)mu_policy_emit(p, MU_POLICY_DO_ASSIGN_STOP);
    if (p->phase != MU_POLICY_STOPPING)
        mu_policy_enter(p, MU_POLICY_STOPPING, UINT64_MAX);
    if (p->workers == NONE)
        return;
    if (p->workers != STOPPING)
        p->stop_ms = p->now_ms;
    p->workers = STOPPING;
    effect = mu_policy_emit(p, signal == SIGKILL ? MU_POLICY_DO_KILL_WORKERS : MU_POLICY_DO_STOP_WORKERS);
    effect->signal = signal;
    effect->grace_ms = grace_ms;
    effect->ok = p->fate == REJOIN || (p->fate == BUDGET && !p->closed && mu_policy_remaining_restarts(p) > 0);
}

bool mu_policy_has_workers(const struct mu_policy *p) /* of a round that goes on */
{
    return p->phase == MU_POLICY_STARTING || p->phase == MU_POLICY_RUNNING;
}

/* The round is over, and nobody's fault. */
void mu_policy_regroup(struct mu_policy *p, int signal)
{
    p->failure[0] = '\0'; /* of a worker, while the others were being started: it did not end the round */
    p->fate = REJOIN;
    p->restart_ms = p->now_ms;
    mu_policy_say(p, MUSTER_LOG_WARNING, "%.*s; restarting the group", TEXT_SHOWN_MAX * 2, p->why);
    if (p->phase == MU_POLICY_RUNNING) /* else there is no group yet */
        mu_policy_observe(p, MU_GROUP_HEALTHY);
    mu_policy_stop(p, signal, p->grace_ms);
}

/* ---- Workers ---- */

static void failed_with(struct mu_policy *p, const struct mu_policy_event *event)
{
    if (p->failure[0] != '\0') /* the first is the cause */
        return;
    p->failed_rank = p->base_rank + event->number;
    (void)snprintf(p->failure, sizeof p->failure, "%s",
                   event->text == NULL || event->text[0] == '\0' ? "a worker has failed" : event->text);
}

/* The others need not wait until ours have been stopped. */
static void tell_failed(struct mu_policy *p)
{
    struct mu_policy_effect *effect;

    if (p->closed)
        return; /* no round can follow */
    effect = mu_policy_emit(p, MU_POLICY_DO_TELL_FAILED);
    effect->number = p->failed_rank;
    effect->text = p->failure;
}

static void say_failure(struct mu_policy *p)
{
    mu_policy_say(p, MUSTER_LOG_ERROR, "%.*s", TEXT_SHOWN_MAX * 2, p->failure);
}

/* `state`: what the group is now, FAILED or UNHEALTHY. */
static void worker_failed(struct mu_policy *p, enum mu_group_state state)
{
    p->fate = BUDGET;
    p->failed_as = state;
    say_failure(p);
    (void)snprintf(p->why, sizeof p->why, "%s", p->failure);
    p->restart_ms = p->now_ms;
    mu_policy_observe(p, state);
    mu_policy_stop(p, SIGTERM, p->grace_ms);
    tell_failed(p);
    if (p->closed)
        p->charge = USED_UP; /* no round can follow */
    else
        mu_policy_charge(p);
}

static void check_success(struct mu_policy *p)
{
    if (p->phase != MU_POLICY_RUNNING || p->succeeded < p->size)
        return;
    p->fate = DONE;
    mu_policy_observe(p, MU_GROUP_SUCCEEDED);
    mu_policy_stop(p, SIGTERM, p->grace_ms); /* whatever they have left behind */
}

void mu_policy_on_exited(struct mu_policy *p, const struct mu_policy_event *event)
{
    if (!mu_policy_has_workers(p))
        return; /* they are being stopped: how they end decides nothing any more */
    if (!event->ok && p->phase == MU_POLICY_STARTING) {
        failed_with(p, event); /* before the last of them was started; STARTED follows */
        return;
    }
    if (!event->ok) {
        failed_with(p, event);
        worker_failed(p, MU_GROUP_FAILED);
        return;
    }
    p->succeeded++;
    assert(p->succeeded <= p->size);
    check_success(p);
}

void mu_policy_on_unhealthy(struct mu_policy *p, const struct mu_policy_event *event)
{
    if (p->phase != MU_POLICY_RUNNING)
        return;
    failed_with(p, event);
    if (event->ok) {
        worker_failed(p, MU_GROUP_UNHEALTHY);
        return;
    }
    p->fate = ILL;
    say_failure(p);
    mu_policy_note(p, MU_NOTE_LEFT, p->failure);
    mu_policy_observe(p, MU_GROUP_UNHEALTHY);
    mu_policy_stop(p, SIGTERM, p->grace_ms);
    tell_failed(p);
}

void mu_policy_on_started(struct mu_policy *p, const struct mu_policy_event *event)
{
    (void)event;
    if (p->phase != MU_POLICY_STARTING || p->workers != STARTING)
        return;
    p->workers = UP;
    mu_policy_time_step(p, MU_METRICS_START_WORKERS, true, p->start_ms);
    mu_policy_time_step(p, MU_METRICS_INITIALIZE_WORKERS, true, p->initialize_ms);
    (void)mu_policy_put_record(p, MU_POLICY_RECORD_WORKERS_START, -1);
    mu_policy_enter(p, MU_POLICY_RUNNING, UINT64_MAX);
    (void)mu_policy_emit(p, MU_POLICY_DO_LISTEN);
    if (p->restart_ms != UINT64_MAX)
        mu_policy_time_step(p, MU_METRICS_RESTART_WORKERS, true, p->restart_ms);
    p->restart_ms = UINT64_MAX;
    mu_policy_observe(p, MU_GROUP_HEALTHY);
    if (p->failure[0] != '\0')
        worker_failed(p, MU_GROUP_FAILED);
    else
        check_success(p);
}

void mu_policy_on_start_failed(struct mu_policy *p, const struct mu_policy_event *event)
{
    struct muster_error error = *event->error;

    if (p->phase != MU_POLICY_STARTING)
        return;
    mu_policy_time_step(p, MU_METRICS_START_WORKERS, false, p->start_ms);
    mu_policy_initialize_failed(p);
    mu_policy_enter_state(p, MU_GROUP_UNKNOWN);
    (void)mu_wrap(&error, error.code, "start the workers of role '%.200s' (state UNKNOWN)", p->role);
    mu_policy_fail_with(p, &error);
}

void mu_policy_on_stopped(struct mu_policy *p, const struct mu_policy_event *event)
{
    if (p->workers != STOPPING)
        return;
    p->workers = NONE;
    p->leftovers = event->number;
    mu_policy_time_step(p, MU_METRICS_STOP_WORKERS, event->number == 0, p->stop_ms);
    if (event->number == 0)
        return;
    (void)snprintf(p->unkilled, sizeof p->unkilled, "%" PRId64 " process%s of the workers cannot be killed: %.*s",
                   event->number, event->number == 1 ? "" : "es", TEXT_SHOWN_MAX,
                   event->text == NULL ? "no more is known" : event->text);
    mu_policy_say(p, MUSTER_LOG_ERROR, "%s", p->unkilled);
}

/* ---- When nothing of the workers is left ---- */

static void finish(struct mu_policy *p)
{
    p->leftovers = 0;
    p->done_ms = p->now_ms;
    mu_policy_enter(p, MU_POLICY_FINISHING, UINT64_MAX);
    (void)mu_policy_emit(p, MU_POLICY_DO_FINISH);
}

/* As PyTorch says it, before this one is counted; a leader has not counted it yet. */
static void say_attempts(struct mu_policy *p)
{
    int64_t left = mu_policy_remaining_restarts(p) + (p->joined.led ? 0 : 1);

    if (left == 0 && p->joined.led)
        mu_policy_say(p, MUSTER_LOG_INFO, "the job fails now, unless the leader finds that a lost node was the cause");
    else if (left == 0)
        mu_policy_say(p, MUSTER_LOG_WARNING, "no restarts left: the job fails, unless a lost node was the cause");
    else
        mu_policy_say(p, MUSTER_LOG_INFO,
                      "[%.200s] Worker group %s. %" PRId64 "/%" PRId64 " attempts left; will restart worker group",
                      p->role, mu_group_state_name(p->failed_as), left, p->max_restarts);
}

static void restart(struct mu_policy *p)
{
    mu_policy_be_between_rounds(p);
    (void)mu_policy_emit(p, MU_POLICY_DO_WATCH_STOP);
    if (p->fate == BUDGET)
        say_attempts(p);
    mu_policy_join(p);
}

/* A process that cannot be killed may still use what the next round would: there is none. */
static void give_up_on_leftovers(struct mu_policy *p)
{
    if (p->state == MU_GROUP_HEALTHY)
        mu_policy_enter_state(p, MU_GROUP_UNHEALTHY);
    mu_policy_enter_state(p, p->state == MU_GROUP_INIT ? MU_GROUP_UNKNOWN : MU_GROUP_FAILED);
    mu_policy_decide(p, MU_POLICY_OUTCOME_ERROR, 1, 0);
    (void)mu_fail(&p->outcome.error, MUSTER_ESYSTEM, "stop the workers of role '%.200s' (state %s): %.*s", p->role,
                  mu_group_state_name(p->state), TEXT_SHOWN_MAX + 64, p->unkilled);
    mu_policy_leave(p);
}

static void after_stop(struct mu_policy *p)
{
    bool matters = p->fate == REJOIN || p->fate == ILL || (p->fate == BUDGET && p->charge != USED_UP);

    if (p->leftovers > 0 && matters) {
        give_up_on_leftovers(p);
        return;
    }
    switch (p->fate) {
    case DONE:
        finish(p);
        break;
    case REJOIN:
        restart(p);
        break;
    case BUDGET:
        if (p->charge == CHARGING) {
            mu_policy_be_between_rounds(p);
            mu_policy_enter(p, MU_POLICY_CHARGING, UINT64_MAX);
        } else if (p->charge == USED_UP)
            mu_policy_fail_job(p);
        else if (p->charge == UNKNOWN)
            mu_policy_give_up_on_the_store(p);
        else
            restart(p);
        break;
    case ILL:
        mu_policy_be_failed(p, "this node leaves the job");
        mu_policy_leave(p);
        break;
    case END:
        mu_policy_leave(p);
        break;
    case UNDECIDED:
        assert(false);
        break;
    }
}

/* Judges the state reached, not the event that led there. */
void mu_policy_proceed(struct mu_policy *p)
{
    if (p->phase == MU_POLICY_CHARGING && p->charge != CHARGING)
        mu_policy_enter(p, MU_POLICY_STOPPING, UINT64_MAX);
    if (p->phase == MU_POLICY_STOPPING && p->workers == NONE)
        after_stop(p);
}

/* ---- The other machines ---- */

void mu_policy_on_assign_failed(struct mu_policy *p, const struct mu_policy_event *event)
{
    struct mu_policy_effect *effect;

    if (p->phase != MU_POLICY_ASSIGNING)
        return;
    effect = mu_policy_put_record(p, MU_POLICY_RECORD_ASSIGN, (int64_t)(p->now_ms - p->assign_ms));
    p->error = *event->error;
    effect->error = &p->error;
    mu_policy_time_step(p, MU_METRICS_ASSIGN_WORKER_RANKS, false, p->assign_ms);
    mu_policy_time_step(p, MU_METRICS_RENDEZVOUS, false, p->join_ms);
    mu_policy_initialize_failed(p);
    mu_policy_fail_with(p, event->error);
}

void mu_policy_on_assign_again(struct mu_policy *p, const struct mu_policy_event *event)
{
    if (p->phase != MU_POLICY_ASSIGNING)
        return;
    (void)snprintf(p->text, sizeof p->text, "%s", event->text == NULL ? "the round was over" : event->text);
    mu_policy_note(p, MU_NOTE_AGAIN, p->text);
    mu_policy_join_again(p, p->text);
}
