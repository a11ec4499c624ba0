/* An agent's life. See the diagram in policy.h. */
#include "agent/policy.h"

#include "proc/signals.h"

#include <assert.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define NOTHING "?" /* what a look at a verdict gets where there is none */
#define REMOVED_WHY "the others had gone on without this node"
enum { TEXT_SHOWN_MAX = 400, LINES_MAX = 4 };

enum what { BUDGET_SET, VERDICT_LOOK, VERDICT_GET };

enum workers { NONE, STARTING, UP, STOPPING };

/* What follows when the workers are gone. */
enum fate {
    UNDECIDED,
    REJOIN,
    BUDGET, /* a worker has failed: the budget decides */
    ILL,    /* one hangs in the kernel: this node is not for the next round, the others go on */
    DONE,   /* they have succeeded */
    END,    /* policy->outcome */
};

enum charge { UNCHARGED, CHARGING, RESTARTS_LEFT, USED_UP, UNKNOWN /* the store was silent for too long */ };

struct mu_policy {
    char *job_prefix, *role, *node;
    int64_t size, max_restarts;
    uint64_t grace_ms, store_ms, barrier_ms;

    enum mu_policy_phase phase;
    enum mu_group_state state;
    enum workers workers;
    enum fate fate;
    struct mu_policy_outcome outcome; /* kind NONE: not decided */
    struct mu_asks asks;
    uint64_t deadline_ms; /* of the phase */

    /* The rendezvous. */
    struct mu_policy_joined joined;
    bool in;                 /* we may be a member of something */
    bool noted;              /* ... whose others can read why we leave it for good */
    uint64_t leave_until_ms; /* LEAVE was said; 0: it was not */
    bool closed;             /* no round can follow */
    bool down;               /* the store is away */
    uint64_t down_ms;        /* ... since then */
    uint64_t down_until_ms;  /* ... and is waited for until then; 0: nobody knows */
    uint64_t down_say_ms;    /* when that is said again; UINT64_MAX: never */
    char down_why[MU_POLICY_TEXT_MAX];
    struct mu_ranks_start assign;
    struct mu_completion_start watch;

    /* The workers. */
    bool ever_started;
    int64_t succeeded; /* of this round */
    int64_t leftovers;
    char unkilled[MU_POLICY_TEXT_MAX];    /* what they are */
    char peer_failed[MU_POLICY_TEXT_MAX]; /* a worker of somebody else, and no round has followed yet */
    bool graceful;                        /* the rendezvous takes us for a spare of a job that is closed */
    char signal_name[MU_SIGNAL_NAME_MAX];
    struct mu_signals_seen signals; /* that are handled */
    bool serve;                     /* after leaving: a store is in our process, and others still need it */
    uint64_t serve_until_ms;        /* ... but no longer than until then; 0: MU_POLICY_SERVE_MS */
    uint64_t done_ms;               /* when our workers had succeeded */
    int64_t base_rank, failed_rank; /* failed_rank: of the first that has */
    char failure[MU_POLICY_TEXT_MAX];
    enum mu_group_state failed_as; /* FAILED or UNHEALTHY */

    /* The budget. */
    int64_t count, own, known; /* of this round; what we count ourselves; what the job's is, at the least */
    bool shared;
    enum charge charge;
    uint64_t charge_ms, charge_until_ms; /* since when; until we have to look how it stands */
    bool gone;                           /* the process in which the budget is */
    struct muster_error silence;         /* what became of our last request for it */
    char budget[MU_RESTART_BUDGET_MAX], paid[MU_RESTART_BUDGET_MAX]; /* before and after we have paid */

    /* For records and metrics. */
    uint64_t run_ms, join_ms, assign_ms, start_ms, stop_ms, initialize_ms, restart_ms;
    bool restarting;
    char why[MU_POLICY_TEXT_MAX], text[MU_POLICY_TEXT_MAX];
    char lines[LINES_MAX][MU_POLICY_TEXT_MAX]; /* of this step */
    size_t lines_count;
    struct muster_error error; /* of a record */
};

const char *mu_policy_phase_text(enum mu_policy_phase phase)
{
    switch (phase) {
#define X(name, text)                                                                                                  \
    case MU_POLICY_##name:                                                                                             \
        return text;
        MU_POLICY_PHASES(X)
#undef X
    }
    return "?";
}

const char *mu_policy_event_text(enum mu_policy_event_type type)
{
    switch (type) {
#define X(name, text)                                                                                                  \
    case MU_POLICY_ON_##name:                                                                                          \
        return text;
        MU_POLICY_EVENTS(X)
#undef X
    }
    return "?";
}

const char *mu_policy_effect_text(enum mu_policy_effect_type type)
{
    switch (type) {
#define X(name, text)                                                                                                  \
    case MU_POLICY_DO_##name:                                                                                          \
        return text;
        MU_POLICY_EFFECTS(X)
#undef X
    }
    return "?";
}

const char *mu_policy_outcome_text(enum mu_policy_outcome_kind kind)
{
    switch (kind) {
#define X(name, text)                                                                                                  \
    case MU_POLICY_OUTCOME_##name:                                                                                     \
        return text;
        MU_POLICY_OUTCOMES(X)
#undef X
    }
    return "?";
}

/* ---- Making one ---- */

int mu_policy_new(const struct mu_policy_config *config, struct mu_policy **ret_policy, struct muster_error *reterr)
{
    size_t prefix_room = strlen(config->run_id) + MU_ROUND_PREFIX_EXTRA;
    struct mu_policy *p;

    if (config->local_world_size < 1 || config->max_restarts < 0)
        return mu_fail(reterr, MUSTER_EINVAL, "%" PRId64 " workers with %" PRId64 " restarts are not possible",
                       config->local_world_size, config->max_restarts);
    p = calloc(1, sizeof *p);
    if (p == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for an agent");
    p->job_prefix = malloc(prefix_room);
    p->role = strdup(config->role);
    p->node = strdup(config->node);
    if (p->job_prefix == NULL || p->role == NULL || p->node == NULL ||
        mu_asks_init(&p->asks, prefix_room, MU_RESTART_BUDGET_MAX, NULL) < 0) {
        mu_policy_free(p);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for an agent");
    }
    mu_round_job_prefix(p->job_prefix, prefix_room, config->run_id);
    p->size = config->local_world_size;
    p->max_restarts = config->max_restarts;
    p->grace_ms = config->grace_ms;
    p->store_ms = config->store_ms == 0 ? MU_POLICY_STORE_MS : config->store_ms;
    p->state = MU_GROUP_INIT;
    p->barrier_ms = config->barrier_ms == 0 ? UINT64_MAX : config->barrier_ms;
    p->deadline_ms = p->charge_until_ms = p->down_say_ms = UINT64_MAX;
    p->joined.round = -1;
    *ret_policy = p;
    return 0;
}

void mu_policy_free(struct mu_policy *p)
{
    if (p == NULL)
        return;
    mu_asks_done(&p->asks);
    free(p->job_prefix);
    free(p->role);
    free(p->node);
    free(p);
}

/* ---- Telling ---- */

static struct mu_policy_effect *emit(struct mu_policy_effects *out, enum mu_policy_effect_type type)
{
    assert(out->count < MU_POLICY_EFFECTS_MAX);
    out->items[out->count] = (struct mu_policy_effect){ .type = type, .duration_ms = -1 };
    return &out->items[out->count++];
}

static void say(struct mu_policy *p, struct mu_policy_effects *out, enum muster_log_level level, const char *format,
                ...) __attribute__((format(printf, 4, 5)));

static void say(struct mu_policy *p, struct mu_policy_effects *out, enum muster_log_level level, const char *format,
                ...)
{
    struct mu_policy_effect *effect = emit(out, MU_POLICY_DO_SAY);
    va_list args;

    assert(p->lines_count < LINES_MAX);
    va_start(args, format);
    (void)vsnprintf(p->lines[p->lines_count], sizeof p->lines[0], format, args);
    va_end(args);
    effect->level = level;
    effect->text = p->lines[p->lines_count++];
}

static void enter_state(struct mu_policy *p, enum mu_group_state state, struct mu_policy_effects *out)
{
    if (p->state == state)
        return;
    assert(mu_group_state_may_follow(p->state, state));
    p->state = state;
    emit(out, MU_POLICY_DO_STATE)->state = state;
}

static void time_step(enum mu_metrics_step which, bool ok, uint64_t since_ms, uint64_t now_ms,
                      struct mu_policy_effects *out)
{
    struct mu_policy_effect *effect = emit(out, MU_POLICY_DO_STEP);

    effect->step = which;
    effect->ok = ok;
    effect->duration_ms = (int64_t)(now_ms - since_ms);
}

/* What began with the rendezvous has failed: PyTorch measures an exception in every step that it leaves. */
static void initialize_failed(struct mu_policy *p, uint64_t now_ms, struct mu_policy_effects *out)
{
    time_step(MU_METRICS_INITIALIZE_WORKERS, false, p->initialize_ms, now_ms, out);
    if (p->restarting)
        time_step(MU_METRICS_RESTART_WORKERS, false, p->restart_ms, now_ms, out);
}

static struct mu_policy_effect *record(struct mu_policy *p, enum mu_policy_record which, int64_t duration_ms,
                                       struct mu_policy_effects *out)
{
    struct mu_policy_effect *effect = emit(out, MU_POLICY_DO_RECORD);

    effect->record = which;
    effect->duration_ms = duration_ms;
    effect->state = p->state;
    return effect;
}

/* A look at the workers has found the group in this state: as PyTorch does after each of its polls, the state is first
 * changed and then measured. Nothing else is measured as a decision. */
static void observe(struct mu_policy *p, enum mu_group_state state, uint64_t now_ms, struct mu_policy_effects *out)
{
    struct mu_policy_effect *effect;

    enter_state(p, state, out);
    time_step(MU_METRICS_MONITOR_WORKERS, true, now_ms, now_ms, out);
    effect = emit(out, MU_POLICY_DO_DECISION);
    effect->state = p->state;
    effect->number = mu_policy_remaining_restarts(p);
}

/* ---- The end ---- */

static void enter(struct mu_policy *p, enum mu_policy_phase phase, uint64_t deadline_ms)
{
    p->phase = phase;
    p->deadline_ms = deadline_ms;
}

static void decide(struct mu_policy *p, enum mu_policy_outcome_kind kind, int rc, int signal)
{
    p->outcome.kind = kind;
    p->outcome.rc = rc;
    p->outcome.signal = signal;
    p->fate = END;
    p->down_say_ms = UINT64_MAX; /* what is left to be done does not depend on the store */
}

static void decide_signal(struct mu_policy *p, int signal)
{
    bool dies = !p->ever_started;

    decide(p, dies ? MU_POLICY_OUTCOME_DIE : MU_POLICY_OUTCOME_SIGNALED, dies ? 128 + signal : 1, signal);
    (void)mu_fail(&p->outcome.error, MUSTER_ESIGNAL, "stopped by signal %d", signal);
}

static void be_stopped(struct mu_policy *p, struct mu_policy_effects *out)
{
    assert(p->workers == NONE);
    if (mu_group_state_is_running(p->state))
        enter_state(p, MU_GROUP_STOPPED, out);
}

/* Another round may follow, also after a failure. */
static void be_between_rounds(struct mu_policy *p, struct mu_policy_effects *out)
{
    if (p->state == MU_GROUP_FAILED)
        enter_state(p, MU_GROUP_STOPPED, out);
    be_stopped(p, out);
}

static void end(struct mu_policy *p, uint64_t now_ms, struct mu_policy_effects *out)
{
    enum mu_policy_outcome_kind kind = p->outcome.kind;
    bool returned = kind == MU_POLICY_OUTCOME_SUCCEEDED || kind == MU_POLICY_OUTCOME_WORKERS_FAILED;
    bool raised = !returned && kind != MU_POLICY_OUTCOME_GRACEFUL;
    struct mu_policy_effect *agent;

    assert(kind != MU_POLICY_OUTCOME_NONE);
    be_stopped(p, out);
    enter(p, MU_POLICY_ENDED, UINT64_MAX);
    p->charge_until_ms = p->down_say_ms = UINT64_MAX;
    mu_asks_drop(&p->asks);
    (void)emit(out, MU_POLICY_DO_WATCH_STOP);
    p->outcome.state = p->state;
    if (returned) {
        struct mu_policy_effect *final = emit(out, MU_POLICY_DO_FINAL);

        final->ok = kind == MU_POLICY_OUTCOME_SUCCEEDED;
        final->number = mu_policy_remaining_restarts(p);
        (void)record(p, MU_POLICY_RECORD_WORKERS_END, -1, out);
    }
    if (kind != MU_POLICY_OUTCOME_DIE) {
        time_step(MU_METRICS_RUN, !raised, p->run_ms, now_ms, out);
        agent = record(p, MU_POLICY_RECORD_AGENT, -1, out);
        agent->state = raised ? MU_GROUP_FAILED : MU_GROUP_SUCCEEDED;
        agent->error = raised ? &p->outcome.error : NULL;
    }
    emit(out, MU_POLICY_DO_END)->outcome = &p->outcome;
}

/* So that the others know why, before we are gone. */
static void note(struct mu_policy *p, bool again, const char *why, struct mu_policy_effects *out)
{
    struct mu_policy_effect *effect = emit(out, MU_POLICY_DO_NOTE);

    effect->ok = again;
    effect->text = why;
    p->noted = !again;
}

static void say_leave(struct mu_policy *p, uint64_t now_ms, struct mu_policy_effects *out)
{
    if (p->leave_until_ms != 0)
        return;
    if (!p->noted)
        note(p, false, p->outcome.error.text[0] != '\0' ? p->outcome.error.text : "done", out);
    (void)emit(out, MU_POLICY_DO_WATCH_STOP);
    (void)emit(out, MU_POLICY_DO_LEAVE);
    p->leave_until_ms = now_ms + MU_POLICY_LEAVE_MS;
}

static void leave(struct mu_policy *p, uint64_t now_ms, struct mu_policy_effects *out)
{
    be_stopped(p, out);
    if (!p->in) {
        end(p, now_ms, out);
        return;
    }
    say_leave(p, now_ms, out);
    enter(p, MU_POLICY_LEAVING, p->leave_until_ms);
}

/* The others may still be reading, in our process, how it ended. */
static void linger(struct mu_policy *p, uint64_t now_ms, struct mu_policy_effects *out)
{
    if (!p->joined.serves) {
        end(p, now_ms, out);
        return;
    }
    if (p->phase != MU_POLICY_SERVING)
        (void)emit(out, MU_POLICY_DO_LINGER);
    enter(p, MU_POLICY_LINGERING, now_ms + MU_POLICY_LINGER_MS);
}

/* The rendezvous store: until the job has a verdict. The workers' store alone: as long as others are connected to it. */
static void serve(struct mu_policy *p, uint64_t now_ms, struct mu_policy_effects *out)
{
    say(p, out, MUSTER_LOG_INFO, "done; serving the %s store until the other nodes have ended",
        p->joined.serves ? "rendezvous" : "workers'");
    (void)emit(out, MU_POLICY_DO_LINGER);
    if (p->joined.serves)
        (void)mu_asks_add(&p->asks, MU_ASK_GET, VERDICT_GET, -1, "%sverdict", p->job_prefix);
    enter(p, MU_POLICY_SERVING, p->serve_until_ms != 0 ? p->serve_until_ms : now_ms + MU_POLICY_SERVE_MS);
}

static void left(struct mu_policy *p, uint64_t now_ms, struct mu_policy_effects *out)
{
    p->in = false;
    if (p->serve)
        serve(p, now_ms, out);
    else
        end(p, now_ms, out);
}

/* ---- Joining ---- */

static void join(struct mu_policy *p, uint64_t now_ms, struct mu_policy_effects *out)
{
    assert(p->workers == NONE && p->leftovers == 0 && p->fate != END);
    p->fate = UNDECIDED;
    p->charge = UNCHARGED;
    p->charge_until_ms = UINT64_MAX;
    mu_asks_drop(&p->asks);
    p->in = true;
    p->leave_until_ms = 0;
    p->join_ms = p->initialize_ms = now_ms;
    enter(p, MU_POLICY_JOINING, UINT64_MAX);
    (void)emit(out, MU_POLICY_DO_JOIN);
}

/* The workers of the round have not been started: it is over at once. */
static void join_again(struct mu_policy *p, const char *why, uint64_t now_ms, struct mu_policy_effects *out)
{
    (void)snprintf(p->why, sizeof p->why, "%s", why);
    p->restarting = true;
    p->restart_ms = p->restart_ms == 0 ? now_ms : p->restart_ms;
    (void)emit(out, MU_POLICY_DO_ASSIGN_STOP);
    (void)emit(out, MU_POLICY_DO_WATCH_STOP);
    join(p, now_ms, out);
}

static void on_joined(struct mu_policy *p, const struct mu_policy_event *event, struct mu_policy_effects *out)
{
    if (p->phase != MU_POLICY_JOINING)
        return;
    p->joined = *event->joined;
    p->closed = false;
    p->peer_failed[0] = '\0';
    p->noted = false;
    (void)record(p, MU_POLICY_RECORD_RENDEZVOUS, (int64_t)(event->now_ms - p->join_ms), out);
    p->watch = (struct mu_completion_start){ .round = p->joined.round,
                                             .tag = p->joined.tag,
                                             .rank = p->joined.rank,
                                             .world_size = p->joined.world_size,
                                             .all_ours = p->joined.all_ours,
                                             .old_dialect = p->joined.old_dialect,
                                             .has_store = p->joined.has_store };
    p->assign = (struct mu_ranks_start){ .round = p->joined.round,
                                         .tag = p->joined.tag,
                                         .rank = p->joined.rank,
                                         .world_size = p->joined.world_size,
                                         .all_ours = p->joined.all_ours,
                                         .old_dialect = p->joined.old_dialect,
                                         .has_store = p->joined.has_store,
                                         .needs_master = p->joined.needs_master,
                                         .own_count = p->own,
                                         .count_min = p->known };
    emit(out, MU_POLICY_DO_WATCH)->watch = &p->watch;
    emit(out, MU_POLICY_DO_ASSIGN)->assign = &p->assign;
    p->assign_ms = event->now_ms;
    enter(p, MU_POLICY_ASSIGNING, UINT64_MAX);
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void on_assigned(struct mu_policy *p, const struct mu_policy_event *event, struct mu_policy_effects *out)
{
    struct mu_policy_effect *start;

    if (p->phase != MU_POLICY_ASSIGNING)
        return;
    p->count = event->ranks->count;
    p->base_rank = event->ranks->base_rank;
    p->shared = event->ranks->shared;
    p->own = larger(p->own, p->count);
    if (p->shared)
        p->known = larger(p->known, p->count);
    (void)record(p, MU_POLICY_RECORD_ASSIGN, (int64_t)(event->now_ms - p->assign_ms), out);
    time_step(MU_METRICS_ASSIGN_WORKER_RANKS, true, p->assign_ms, event->now_ms, out);
    time_step(MU_METRICS_RENDEZVOUS, true, p->join_ms, event->now_ms, out);
    p->start_ms = event->now_ms;
    p->workers = STARTING;
    p->ever_started = true;
    p->succeeded = 0;
    p->failure[0] = '\0';
    enter(p, MU_POLICY_STARTING, UINT64_MAX);
    start = emit(out, MU_POLICY_DO_START_WORKERS);
    start->ok = p->restarting;
    start->number = p->restarting ? (int64_t)(event->now_ms - p->restart_ms) : 0;
}

/* ---- Stopping ---- */

static void stop(struct mu_policy *p, int signal, uint64_t grace_ms, uint64_t now_ms, struct mu_policy_effects *out)
{
    struct mu_policy_effect *effect;

    if (p->phase == MU_POLICY_ASSIGNING)
        (void)emit(out, MU_POLICY_DO_ASSIGN_STOP);
    if (p->phase != MU_POLICY_STOPPING)
        enter(p, MU_POLICY_STOPPING, UINT64_MAX);
    if (p->workers == NONE)
        return;
    if (p->workers != STOPPING)
        p->stop_ms = now_ms;
    p->workers = STOPPING;
    effect = emit(out, signal == SIGKILL ? MU_POLICY_DO_KILL_WORKERS : MU_POLICY_DO_STOP_WORKERS);
    effect->signal = signal;
    effect->grace_ms = grace_ms;
    effect->ok = p->fate == REJOIN || (p->fate == BUDGET && !p->closed && mu_policy_remaining_restarts(p) > 0);
}

static bool has_workers(const struct mu_policy *p) /* of a round that goes on */
{
    return p->phase == MU_POLICY_STARTING || p->phase == MU_POLICY_RUNNING;
}

/* The round is over, and nobody's fault. */
static void regroup(struct mu_policy *p, int signal, uint64_t now_ms, struct mu_policy_effects *out)
{
    p->failure[0] = '\0'; /* of a worker, while the others were being started: it did not end the round */
    p->fate = REJOIN;
    p->restarting = true;
    p->restart_ms = now_ms;
    say(p, out, MUSTER_LOG_WARNING, "%.*s; restarting the group", TEXT_SHOWN_MAX * 2, p->why);
    if (p->phase == MU_POLICY_RUNNING) /* else there is no group yet */
        observe(p, MU_GROUP_HEALTHY, now_ms, out);
    stop(p, signal, p->grace_ms, now_ms, out);
}

static void fail_with(struct mu_policy *p, const struct muster_error *error, uint64_t now_ms,
                      struct mu_policy_effects *out)
{
    decide(p, MU_POLICY_OUTCOME_ERROR, 1, 0);
    p->outcome.error = *error;
    note(p, false, p->outcome.error.text, out);
    stop(p, SIGTERM, p->grace_ms, now_ms, out);
}

/* ---- The budget ---- */

static void charged(struct mu_policy *p, int64_t spent)
{
    spent = larger(spent, p->count + 1);
    p->charge = spent > p->max_restarts ? USED_UP : RESTARTS_LEFT;
    p->charge_until_ms = UINT64_MAX;
    mu_asks_drop(&p->asks);
    if (p->charge == RESTARTS_LEFT) {
        p->count = spent;
        p->own = larger(p->own, spent);
        p->known = p->shared ? larger(p->known, spent) : p->known;
    }
}

/* While the workers are being stopped. Also if nothing is left: whether the job has failed is for its present round to say. */
static void charge(struct mu_policy *p, uint64_t now_ms)
{
    struct mu_restart_budget budget = { .count = p->count, .round = p->joined.round, .tag = p->joined.tag };
    struct mu_ask_slot *slot;

    if (!p->shared) {
        charged(p, p->count + 1);
        return;
    }
    p->charge = CHARGING;
    p->charge_ms = now_ms;
    p->charge_until_ms = now_ms + MU_POLICY_CHARGE_MS;
    p->gone = false;
    p->silence.code = 0;
    slot = mu_asks_add(&p->asks, MU_ASK_COMPARE_SET, BUDGET_SET, -1, "%sbudget", p->job_prefix);
    (void)mu_restart_budget_write(p->budget, &budget, NULL);
    budget.count++;
    (void)mu_restart_budget_write(p->paid, &budget, p->node);
    slot->ask.expected = mu_slice_str(p->budget);
    mu_asks_value(&p->asks, slot, mu_slice_str(p->paid));
}

/* The round that a worker's failure ended costs nothing. */
static void uncharge(struct mu_policy *p)
{
    p->charge = UNCHARGED;
    p->charge_until_ms = UINT64_MAX;
    mu_asks_drop(&p->asks);
    p->fate = REJOIN;
}

/* The others have gone on without us: what our workers write from now on is in their way. */
static void be_outdated(struct mu_policy *p, uint64_t now_ms, struct mu_policy_effects *out)
{
    uncharge(p);
    (void)snprintf(p->why, sizeof p->why, "%s", REMOVED_WHY);
    say(p, out, MUSTER_LOG_WARNING, "%s; restarting the group", p->why);
    stop(p, SIGKILL, 0, now_ms, out);
}

/* The store says nothing. */
static void await_budget(struct mu_policy *p, uint64_t now_ms, struct mu_policy_effects *out)
{
    uint64_t waited_ms = now_ms - p->charge_ms;

    if (p->charge != CHARGING || waited_ms < MU_POLICY_CHARGE_MS)
        return;
    if (p->fate != BUDGET) {
        p->charge_until_ms = UINT64_MAX; /* nothing depends on it any more; it may still be paid for */
    } else if (p->gone && p->count >= p->max_restarts) {
        charged(p, p->count + 1);
    } else if (waited_ms >= p->store_ms) {
        p->charge = UNKNOWN;
        p->charge_until_ms = UINT64_MAX;
        mu_asks_drop(&p->asks);
    } else if (now_ms >= p->charge_until_ms) {
        p->charge_until_ms = p->charge_ms + p->store_ms;
        say(p, out, MUSTER_LOG_WARNING,
            "waiting up to %" PRIu64 " s for the store to say whether restarts are left%s%.*s", p->store_ms / 1000,
            p->silence.code != 0 ? ": " : "", TEXT_SHOWN_MAX * 2, p->silence.code != 0 ? p->silence.text : "");
    }
}

/* A store that has forgotten the budget, or cannot say it, leaves us to what we know. */
static void on_budget(struct mu_policy *p, const struct mu_answer *answer, uint64_t now_ms,
                      struct mu_policy_effects *out)
{
    struct mu_restart_budget found;

    if (answer->error != NULL || !mu_restart_budget_read(answer->value, &found))
        charged(p, p->count + 1);
    else if (found.round == p->joined.round && found.tag == p->joined.tag)
        charged(p, found.count); /* whoever has paid */
    else if (p->fate == BUDGET)
        be_outdated(p, now_ms, out);
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
static void tell_failed(struct mu_policy *p, struct mu_policy_effects *out)
{
    struct mu_policy_effect *effect;

    if (p->closed)
        return; /* no round can follow */
    effect = emit(out, MU_POLICY_DO_TELL_FAILED);
    effect->number = p->failed_rank;
    effect->text = p->failure;
}

static void say_failure(struct mu_policy *p, struct mu_policy_effects *out)
{
    say(p, out, MUSTER_LOG_ERROR, "%.*s", TEXT_SHOWN_MAX * 2, p->failure);
}

/* `state`: what the group is now, FAILED or UNHEALTHY. */
static void worker_failed(struct mu_policy *p, enum mu_group_state state, uint64_t now_ms,
                          struct mu_policy_effects *out)
{
    p->fate = BUDGET;
    p->failed_as = state;
    say_failure(p, out);
    (void)snprintf(p->why, sizeof p->why, "%s", p->failure);
    p->restarting = true;
    p->restart_ms = now_ms;
    observe(p, state, now_ms, out);
    stop(p, SIGTERM, p->grace_ms, now_ms, out);
    tell_failed(p, out);
    if (p->closed)
        p->charge = USED_UP; /* no round can follow */
    else
        charge(p, now_ms);
}

static void check_success(struct mu_policy *p, uint64_t now_ms, struct mu_policy_effects *out)
{
    if (p->phase != MU_POLICY_RUNNING || p->succeeded < p->size)
        return;
    p->fate = DONE;
    observe(p, MU_GROUP_SUCCEEDED, now_ms, out);
    stop(p, SIGTERM, p->grace_ms, now_ms, out); /* whatever they have left behind */
}

static void on_exited(struct mu_policy *p, const struct mu_policy_event *event, struct mu_policy_effects *out)
{
    if (!has_workers(p))
        return; /* they are being stopped: how they end decides nothing any more */
    if (!event->ok && p->phase == MU_POLICY_STARTING) {
        failed_with(p, event); /* before the last of them was started; STARTED follows */
        return;
    }
    if (!event->ok) {
        failed_with(p, event);
        worker_failed(p, MU_GROUP_FAILED, event->now_ms, out);
        return;
    }
    p->succeeded++;
    assert(p->succeeded <= p->size);
    check_success(p, event->now_ms, out);
}

static void on_unhealthy(struct mu_policy *p, const struct mu_policy_event *event, struct mu_policy_effects *out)
{
    if (p->phase != MU_POLICY_RUNNING)
        return;
    failed_with(p, event);
    if (event->ok) {
        worker_failed(p, MU_GROUP_UNHEALTHY, event->now_ms, out);
        return;
    }
    p->fate = ILL;
    say_failure(p, out);
    note(p, false, p->failure, out);
    observe(p, MU_GROUP_UNHEALTHY, event->now_ms, out);
    stop(p, SIGTERM, p->grace_ms, event->now_ms, out);
    tell_failed(p, out);
}

static void on_started(struct mu_policy *p, uint64_t now_ms, struct mu_policy_effects *out)
{
    if (p->phase != MU_POLICY_STARTING || p->workers != STARTING)
        return;
    p->workers = UP;
    time_step(MU_METRICS_START_WORKERS, true, p->start_ms, now_ms, out);
    time_step(MU_METRICS_INITIALIZE_WORKERS, true, p->initialize_ms, now_ms, out);
    (void)record(p, MU_POLICY_RECORD_WORKERS_START, -1, out);
    enter(p, MU_POLICY_RUNNING, UINT64_MAX);
    (void)emit(out, MU_POLICY_DO_LISTEN);
    if (p->restarting)
        time_step(MU_METRICS_RESTART_WORKERS, true, p->restart_ms, now_ms, out);
    p->restarting = false;
    p->restart_ms = 0;
    observe(p, MU_GROUP_HEALTHY, now_ms, out);
    if (p->failure[0] != '\0')
        worker_failed(p, MU_GROUP_FAILED, now_ms, out);
    else
        check_success(p, now_ms, out);
}

static void on_start_failed(struct mu_policy *p, const struct mu_policy_event *event, struct mu_policy_effects *out)
{
    struct muster_error error = *event->error;

    if (p->phase != MU_POLICY_STARTING)
        return;
    time_step(MU_METRICS_START_WORKERS, false, p->start_ms, event->now_ms, out);
    initialize_failed(p, event->now_ms, out);
    enter_state(p, MU_GROUP_UNKNOWN, out);
    (void)mu_wrap(&error, error.code, "start the workers of role '%.200s' (state UNKNOWN)", p->role);
    fail_with(p, &error, event->now_ms, out);
}

static void on_stopped(struct mu_policy *p, const struct mu_policy_event *event, struct mu_policy_effects *out)
{
    if (p->workers != STOPPING)
        return;
    p->workers = NONE;
    p->leftovers = event->number;
    time_step(MU_METRICS_STOP_WORKERS, event->number == 0, p->stop_ms, event->now_ms, out);
    if (event->number == 0)
        return;
    (void)snprintf(p->unkilled, sizeof p->unkilled, "%" PRId64 " process%s of the workers cannot be killed: %.*s",
                   event->number, event->number == 1 ? "" : "es", TEXT_SHOWN_MAX,
                   event->text == NULL ? "no more is known" : event->text);
    say(p, out, MUSTER_LOG_ERROR, "%s", p->unkilled);
}

/* ---- When nothing of the workers is left ---- */

static void finish(struct mu_policy *p, uint64_t now_ms, struct mu_policy_effects *out)
{
    p->leftovers = 0;
    p->done_ms = now_ms;
    enter(p, MU_POLICY_FINISHING, UINT64_MAX);
    (void)emit(out, MU_POLICY_DO_FINISH);
}

static void decide_workers_failed(struct mu_policy *p)
{
    decide(p, MU_POLICY_OUTCOME_WORKERS_FAILED, 1, 0);
    p->outcome.error.code = 0;
    (void)snprintf(p->outcome.error.text, sizeof p->outcome.error.text, "%s", p->failure);
}

/* `text`: what the failure, which was said when it happened, means for the job. */
static void be_failed(struct mu_policy *p, const char *text, struct mu_policy_effects *out)
{
    decide_workers_failed(p);
    enter_state(p, MU_GROUP_FAILED, out);
    say(p, out, MUSTER_LOG_ERROR, "%s", text);
}

static void fail_job(struct mu_policy *p, uint64_t now_ms, struct mu_policy_effects *out)
{
    if (p->closed) {
        be_failed(p, "the job is closed: giving up", out);
        leave(p, now_ms, out);
        return;
    }
    (void)snprintf(p->text, sizeof p->text, "%.*s; no restarts left (max restarts: %" PRId64 ")", TEXT_SHOWN_MAX,
                   p->failure, p->max_restarts);
    be_stopped(p, out); /* an unhealthy one */
    emit(out, MU_POLICY_DO_FAIL_JOB)->text = p->text;
    enter(p, MU_POLICY_FAILING, UINT64_MAX);
}

static void restart(struct mu_policy *p, uint64_t now_ms, struct mu_policy_effects *out)
{
    be_between_rounds(p, out);
    (void)emit(out, MU_POLICY_DO_WATCH_STOP);
    if (p->fate == BUDGET) {
        int64_t remaining = mu_policy_remaining_restarts(p);

        say(p, out, MUSTER_LOG_INFO,
            "[%.200s] Worker group %s. %" PRId64 "/%" PRId64 " attempts left; will restart worker group", p->role,
            mu_group_state_name(p->failed_as), remaining + 1, p->max_restarts);
    }
    join(p, now_ms, out);
}

/* Nobody can say whether the round was still the job's. */
static void give_up_on_the_store(struct mu_policy *p, uint64_t now_ms, struct mu_policy_effects *out)
{
    uint64_t waited_ms = now_ms - p->charge_ms;

    (void)snprintf(p->text, sizeof p->text, "the store has been silent for %" PRIu64 " s: giving up%s%.*s",
                   waited_ms / 1000, p->silence.code != 0 ? ": " : "", TEXT_SHOWN_MAX,
                   p->silence.code != 0 ? p->silence.text : "");
    be_failed(p, p->text, out);
    leave(p, now_ms, out);
}

/* A process that cannot be killed may still use what the next round would: there is none. */
static void give_up_on_leftovers(struct mu_policy *p, uint64_t now_ms, struct mu_policy_effects *out)
{
    if (p->state == MU_GROUP_HEALTHY)
        enter_state(p, MU_GROUP_UNHEALTHY, out);
    enter_state(p, p->state == MU_GROUP_INIT ? MU_GROUP_UNKNOWN : MU_GROUP_FAILED, out);
    decide(p, MU_POLICY_OUTCOME_ERROR, 1, 0);
    (void)mu_fail(&p->outcome.error, MUSTER_ESYSTEM, "stop the workers of role '%.200s' (state %s): %.*s", p->role,
                  mu_group_state_name(p->state), TEXT_SHOWN_MAX + 64, p->unkilled);
    leave(p, now_ms, out);
}

static void after_stop(struct mu_policy *p, uint64_t now_ms, struct mu_policy_effects *out)
{
    bool matters = p->fate == REJOIN || p->fate == ILL || (p->fate == BUDGET && p->charge != USED_UP);

    if (p->leftovers > 0 && matters) {
        give_up_on_leftovers(p, now_ms, out);
        return;
    }
    switch (p->fate) {
    case DONE:
        finish(p, now_ms, out);
        break;
    case REJOIN:
        restart(p, now_ms, out);
        break;
    case BUDGET:
        if (p->charge == CHARGING) {
            be_between_rounds(p, out);
            enter(p, MU_POLICY_CHARGING, UINT64_MAX);
        } else if (p->charge == USED_UP)
            fail_job(p, now_ms, out);
        else if (p->charge == UNKNOWN)
            give_up_on_the_store(p, now_ms, out);
        else
            restart(p, now_ms, out);
        break;
    case ILL:
        be_failed(p, "this node leaves the job", out);
        leave(p, now_ms, out);
        break;
    case END:
        leave(p, now_ms, out);
        break;
    case UNDECIDED:
        assert(false);
        break;
    }
}

/* Judges the state reached, not the event that led there. */
static void proceed(struct mu_policy *p, uint64_t now_ms, struct mu_policy_effects *out)
{
    if (p->phase == MU_POLICY_CHARGING && p->charge != CHARGING)
        enter(p, MU_POLICY_STOPPING, UINT64_MAX);
    if (p->phase == MU_POLICY_STOPPING && p->workers == NONE)
        after_stop(p, now_ms, out);
}

/* ---- The rendezvous ---- */

static bool is_old(const struct mu_policy *p, const struct mu_policy_event *event)
{
    return event->round >= 0 && p->joined.round >= 0 && event->round < p->joined.round;
}

/* Those of the others who have not heard of it will find us gone, too, and say the same. */
static void membership_changed(struct mu_policy *p, const char *why, uint64_t now_ms, struct mu_policy_effects *out)
{
    if (p->phase != MU_POLICY_ASSIGNING && !has_workers(p))
        return;
    (void)snprintf(p->text, sizeof p->text, "%s", why);
    note(p, true, p->text, out);
    if (p->phase == MU_POLICY_ASSIGNING) {
        join_again(p, p->text, now_ms, out);
        return;
    }
    (void)snprintf(p->why, sizeof p->why, "%s", p->text);
    regroup(p, SIGTERM, now_ms, out);
}

/* The budget went with the member in whose process it was: that loss ends the round, and not what our worker made of it. */
static void be_free(struct mu_policy *p, const char *why, struct mu_policy_effects *out)
{
    uncharge(p);
    (void)snprintf(p->why, sizeof p->why, "%s", why);
    say(p, out, MUSTER_LOG_WARNING, "%.*s; %.*s, and the store with it: no restart is counted; restarting the group",
        TEXT_SHOWN_MAX, p->failure, TEXT_SHOWN_MAX, p->why);
    p->failure[0] = '\0';
}

static void on_lost(struct mu_policy *p, const struct mu_policy_event *event, struct mu_policy_effects *out)
{
    const char *why = event->text == NULL ? "lost a node" : event->text;

    if (p->fate == BUDGET && p->charge == CHARGING && (p->down || p->gone))
        be_free(p, why, out);
    else
        membership_changed(p, why, event->now_ms, out);
}

static void on_peer_failed(struct mu_policy *p, const struct mu_policy_event *event, struct mu_policy_effects *out)
{
    if (!has_workers(p) || p->closed)
        return;
    (void)snprintf(p->why, sizeof p->why, "%s", event->text == NULL ? "a worker failed on another node" : event->text);
    (void)snprintf(p->peer_failed, sizeof p->peer_failed, "%s", p->why);
    regroup(p, SIGTERM, event->now_ms, out);
}

static void on_waiting(struct mu_policy *p, const struct mu_policy_event *event, struct mu_policy_effects *out)
{
    if (is_old(p, event) || p->closed)
        return;
    if (has_workers(p))
        say(p, out, MUSTER_LOG_INFO,
            "[%.200s] Detected %" PRId64 " new nodes from group_rank=%" PRId64 "; will restart worker group", p->role,
            event->number, p->joined.rank);
    membership_changed(p, event->text == NULL ? "nodes want to join" : event->text, event->now_ms, out);
}

static void on_removed(struct mu_policy *p, const struct mu_policy_event *event, struct mu_policy_effects *out)
{
    const char *why = REMOVED_WHY;

    if (is_old(p, event))
        return;
    if (p->phase == MU_POLICY_ASSIGNING) {
        join_again(p, why, event->now_ms, out);
    } else if (has_workers(p)) {
        (void)snprintf(p->why, sizeof p->why, "%s", why);
        regroup(p, SIGKILL, event->now_ms, out);
    } else if (p->fate == BUDGET && p->charge == CHARGING) {
        be_outdated(p, event->now_ms, out); /* whether it was paid for is of no concern to the job any more */
    } else if (p->phase == MU_POLICY_STOPPING && p->workers == STOPPING && p->fate != DONE) {
        say(p, out, MUSTER_LOG_WARNING, "%s: its workers have no grace any more", why);
        stop(p, SIGKILL, 0, event->now_ms, out); /* what they write from now on is in the others' way */
    }
}

static void ask_why(struct mu_policy *p, uint64_t now_ms)
{
    struct mu_ask_slot *slot = mu_asks_add(&p->asks, MU_ASK_COMPARE_SET, VERDICT_LOOK, -1, "%sverdict", p->job_prefix);

    slot->ask.expected = mu_slice_str(NOTHING); /* a missing key answers that, and stays missing */
    slot->once = true;
    mu_asks_value(&p->asks, slot, mu_slice_str(NOTHING));
    enter(p, MU_POLICY_ASKING, now_ms + MU_POLICY_WHY_MS);
}

/* A member of the round that has failed for good is no spare, also if it looks like one by the time the job is closed. */
static void decide_peer_failed(struct mu_policy *p, const struct muster_error *error)
{
    decide(p, MU_POLICY_OUTCOME_ERROR, 1, 0);
    p->graceful = true;
    p->outcome.error = *error;
    p->outcome.error.code = MUSTER_ERDZV_CLOSED;
}

/* What the verdict says, without the failure of another node that was told when it happened. */
static const char *untold_cause(const struct mu_policy *p, const struct mu_verdict *verdict)
{
    size_t told = strlen(p->peer_failed);
    const char *cause = verdict->cause;

    if (told > 0 && strncmp(cause, p->peer_failed, told) == 0 && strncmp(cause + told, "; ", 2) == 0)
        return cause + told + 2;
    return cause;
}

static void join_failed(struct mu_policy *p, const struct muster_error *error, uint64_t now_ms,
                        struct mu_policy_effects *out)
{
    struct mu_policy_effect *effect = record(p, MU_POLICY_RECORD_RENDEZVOUS, (int64_t)(now_ms - p->join_ms), out);

    p->error = *error;
    effect->error = &p->error;
    time_step(MU_METRICS_RENDEZVOUS, false, p->join_ms, now_ms, out);
    initialize_failed(p, now_ms, out);
    if (error->code == MUSTER_ERDZV_GRACEFUL_EXIT && p->peer_failed[0] != '\0') {
        decide_peer_failed(p, error);
        ask_why(p, now_ms);
        return;
    }
    if (error->code == MUSTER_ERDZV_GRACEFUL_EXIT) {
        say(p, out, MUSTER_LOG_INFO, "Rendezvous gracefully exited: %.*s", TEXT_SHOWN_MAX * 2, error->text);
        decide(p, MU_POLICY_OUTCOME_GRACEFUL, 0, 0);
        p->outcome.error = *error;
        p->in = false;
        end(p, now_ms, out);
        return;
    }
    decide(p, MU_POLICY_OUTCOME_ERROR, 1, 0);
    p->outcome.error = *error;
    if (p->down && p->down_until_ms == 0) /* else the rendezvous has said it */
        (void)mu_wrap(&p->outcome.error, error->code, "the store has been away for %" PRIu64 " s",
                      (now_ms - p->down_ms) / 1000);
    if (error->code == MUSTER_ERDZV_CLOSED)
        ask_why(p, now_ms);
    else
        leave(p, now_ms, out);
}

/* "join rendezvous 'job': the rendezvous is closed: the job has succeeded" */
static void add_reason(struct muster_error *error, const char *reason, const char *cause)
{
    size_t used = strlen(error->text);

    (void)snprintf(error->text + used, sizeof error->text - used, ": %s%s", reason, cause);
}

/* The job is closed: was it a failure of ours that we could not come back from? */
static void told_why(struct mu_policy *p, const struct mu_answer *answer, uint64_t now_ms,
                     struct mu_policy_effects *out)
{
    struct mu_verdict verdict;
    bool known = answer != NULL && answer->error == NULL && mu_verdict_read(answer->value, &verdict, NULL) == 0;

    p->in = false;
    mu_asks_drop(&p->asks);
    if (known && verdict.succeeded)
        add_reason(&p->outcome.error, "the job has succeeded", "");
    else if (known)
        add_reason(&p->outcome.error, "the job has failed: ", untold_cause(p, &verdict));
    else if (p->peer_failed[0] != '\0')
        add_reason(&p->outcome.error, "the job did not restart", "");
    if (known && verdict.succeeded && p->graceful) /* a spare after all */
        decide(p, MU_POLICY_OUTCOME_GRACEFUL, 0, 0);
    if (p->failure[0] != '\0') {
        say(p, out, MUSTER_LOG_ERROR, "%.*s", TEXT_SHOWN_MAX * 2, p->outcome.error.text);
        decide_workers_failed(p);
        enter_state(p, MU_GROUP_FAILED, out);
    }
    end(p, now_ms, out);
}

static void leave_failed(struct mu_policy *p, uint64_t now_ms, struct mu_policy_effects *out)
{
    if (p->phase == MU_POLICY_LEAVING)
        left(p, now_ms, out);
    else if (p->phase == MU_POLICY_STOPPING && p->leave_until_ms != 0)
        p->in = false;
}

static void membership_failed(struct mu_policy *p, const struct muster_error *error, uint64_t now_ms,
                              struct mu_policy_effects *out)
{
    switch (p->phase) {
    case MU_POLICY_ASSIGNING:
    case MU_POLICY_STARTING:
    case MU_POLICY_RUNNING:
        fail_with(p, error, now_ms, out);
        break;
    case MU_POLICY_FINISHING: /* done is done */
        say(p, out, MUSTER_LOG_WARNING, "done; the membership has failed: %.*s", TEXT_SHOWN_MAX * 2, error->text);
        decide(p, MU_POLICY_OUTCOME_SUCCEEDED, 0, 0);
        end(p, now_ms, out);
        break;
    case MU_POLICY_IDLE: /* what follows finds out for itself */
    case MU_POLICY_JOINING:
    case MU_POLICY_LEAVING:
    case MU_POLICY_STOPPING:
    case MU_POLICY_ASKING:
    case MU_POLICY_CHARGING:
    case MU_POLICY_FAILING:
    case MU_POLICY_SERVING:
    case MU_POLICY_LINGERING:
    case MU_POLICY_ENDED:
        break;
    }
}

static void on_failed(struct mu_policy *p, const struct mu_policy_event *event, struct mu_policy_effects *out)
{
    switch (event->request) {
    case MUSTER_RDZV_REQUEST_JOIN:
        if (p->phase == MU_POLICY_JOINING)
            join_failed(p, event->error, event->now_ms, out);
        break;
    case MUSTER_RDZV_REQUEST_LEAVE:
        leave_failed(p, event->now_ms, out);
        break;
    case MUSTER_RDZV_REQUEST_MEMBERSHIP:
        membership_failed(p, event->error, event->now_ms, out);
        break;
    case MUSTER_RDZV_REQUEST_CLOSE: /* finish's */
    case MUSTER_RDZV_REQUEST_LOOK:
    case MUSTER_RDZV_REQUEST_UNKNOWN:
        assert(false);
        break;
    }
}

static void note_away(struct mu_policy *p, const struct mu_policy_event *event)
{
    p->down_until_ms = event->give_up_in_ms == 0 ? 0 : event->now_ms + event->give_up_in_ms;
    (void)snprintf(p->down_why, sizeof p->down_why, "%s", event->error->text);
}

static void on_backend(struct mu_policy *p, const struct mu_policy_event *event, struct mu_policy_effects *out)
{
    bool down = event->type == MU_POLICY_ON_BACKEND_DOWN;

    if (p->phase == MU_POLICY_ENDED)
        return;
    if (down)
        note_away(p, event); /* what changed is in the next line */
    if (down == p->down)
        return;
    p->down = down;
    if (down) {
        p->down_ms = event->now_ms > event->away_ms ? event->now_ms - event->away_ms : 0;
        if (p->outcome.kind == MU_POLICY_OUTCOME_NONE)
            p->down_say_ms = event->now_ms + MU_POLICY_AWAY_SAY_MS;
        if (event->number > 0 && has_workers(p) && !p->closed)
            return; /* the loss ends the round, and its line says that it is the store's host */
        say(p, out, MUSTER_LOG_WARNING, "%.*s; %strying again", TEXT_SHOWN_MAX * 2, p->down_why,
            p->workers == UP ? "the workers run on; " : "");
    } else {
        uint64_t away_ms = event->now_ms - p->down_ms;

        p->down_say_ms = UINT64_MAX;
        say(p, out, MUSTER_LOG_NOTICE, "the store is back after %" PRIu64 ".%" PRIu64 " s", away_ms / 1000,
            away_ms % 1000 / 100);
    }
}

/* Every few seconds, and then less often. */
static void say_away(struct mu_policy *p, uint64_t now_ms, struct mu_policy_effects *out)
{
    uint64_t away_ms = now_ms - p->down_ms;
    char limit[64] = "";

    if (now_ms < p->down_say_ms)
        return;
    assert(p->down);
    p->down_say_ms =
        now_ms + (away_ms < MU_POLICY_AWAY_SAY_LATER_MS ? MU_POLICY_AWAY_SAY_MS : MU_POLICY_AWAY_SAY_LATER_MS);
    if (p->down_until_ms > now_ms)
        (void)snprintf(limit, sizeof limit, " for up to %" PRIu64 " s", (p->down_until_ms - now_ms + 999) / 1000);
    say(p, out, MUSTER_LOG_WARNING, "the store has been away for %" PRIu64 " s (%.*s); %strying again%s",
        away_ms / 1000, TEXT_SHOWN_MAX, p->down_why, p->workers == UP ? "the workers run on; " : "", limit);
}

/* ---- The other machines ---- */

static void on_assign_failed(struct mu_policy *p, const struct mu_policy_event *event, struct mu_policy_effects *out)
{
    struct mu_policy_effect *effect;

    if (p->phase != MU_POLICY_ASSIGNING)
        return;
    effect = record(p, MU_POLICY_RECORD_ASSIGN, (int64_t)(event->now_ms - p->assign_ms), out);
    p->error = *event->error;
    effect->error = &p->error;
    time_step(MU_METRICS_ASSIGN_WORKER_RANKS, false, p->assign_ms, event->now_ms, out);
    time_step(MU_METRICS_RENDEZVOUS, false, p->join_ms, event->now_ms, out);
    initialize_failed(p, event->now_ms, out);
    fail_with(p, event->error, event->now_ms, out);
}

static void on_assign_again(struct mu_policy *p, const struct mu_policy_event *event, struct mu_policy_effects *out)
{
    if (p->phase == MU_POLICY_ASSIGNING)
        join_again(p, event->text == NULL ? "the round was over" : event->text, event->now_ms, out);
}

static void on_job_failed(struct mu_policy *p, const struct mu_policy_event *event, struct mu_policy_effects *out)
{
    struct muster_error error = { 0 };

    if (p->phase != MU_POLICY_ASSIGNING && !has_workers(p))
        return;
    (void)mu_fail(&error, MUSTER_ERDZV_CLOSED, "%s", event->text == NULL ? "the job has failed" : event->text);
    say(p, out, MUSTER_LOG_ERROR, "the job has failed on another node; stopping the workers"); /* why: in the end */
    fail_with(p, &error, event->now_ms, out);
}

/* The verdict is written; unless the job, after all, goes on. */
static void on_job_ended(struct mu_policy *p, const struct mu_policy_event *event, struct mu_policy_effects *out)
{
    if (event->end == MU_COMPLETION_END_OUTDATED) {
        be_outdated(p, event->now_ms, out);
        return;
    }
    be_failed(p,
              event->end == MU_COMPLETION_END_UNSAID ? "no restarts left; could not tell the other nodes"
                                                     : "no restarts left: the job has failed and is closed",
              out);
    linger(p, event->now_ms, out);
}

static void on_finished(struct mu_policy *p, const struct mu_policy_event *event, struct mu_policy_effects *out)
{
    bool good = event->end == MU_COMPLETION_END_ALL_DONE;

    if (p->phase == MU_POLICY_FAILING) {
        on_job_ended(p, event, out);
        return;
    }
    if (p->phase != MU_POLICY_FINISHING)
        return;
    decide(p, MU_POLICY_OUTCOME_SUCCEEDED, 0, 0);
    if (event->text != NULL) {
        say(p, out, good ? MUSTER_LOG_INFO : MUSTER_LOG_WARNING, "%.*s", TEXT_SHOWN_MAX * 2, event->text);
    }
    if (good) {
        linger(p, event->now_ms, out);
        return;
    }
    p->serve = p->joined.serves && event->end != MU_COMPLETION_END_TIMEOUT;
    if (event->end == MU_COMPLETION_END_AWAY && !p->joined.serves && p->joined.serves_workers) {
        p->serve = true;
        p->serve_until_ms = p->barrier_ms == UINT64_MAX ? UINT64_MAX : p->done_ms + p->barrier_ms;
    }
    leave(p, event->now_ms, out);
}

/* ---- Signals, and the keeper ---- */

static void on_signal(struct mu_policy *p, const struct mu_policy_event *event, struct mu_policy_effects *out)
{
    int signal = (int)event->number;
    enum mu_signal_meaning meaning = mu_signals_see(&p->signals, signal, event->now_ms);

    if (meaning == MU_SIGNAL_REPEAT) {
        say(p, out, MUSTER_LOG_INFO, "Received %d death signal again, shutting down as before", signal);
        return;
    }
    say(p, out, MUSTER_LOG_WARNING, "Received %d death signal, shutting down%s", signal,
        p->workers == NONE           ? ""
        : meaning == MU_SIGNAL_BEGIN ? " workers"
                                     : " workers at once");
    if (p->outcome.kind == MU_POLICY_OUTCOME_NONE || p->phase == MU_POLICY_SERVING)
        decide_signal(p, signal);
    if (p->outcome.signal == signal)
        note(p, false, mu_signal_name(signal, p->signal_name), out);
    switch (p->phase) {
    case MU_POLICY_STARTING:
    case MU_POLICY_RUNNING:
    case MU_POLICY_STOPPING:
        if (meaning == MU_SIGNAL_BEGIN)
            stop(p, signal, p->grace_ms, event->now_ms, out);
        else
            stop(p, SIGKILL, 0, event->now_ms, out);
        break;
    case MU_POLICY_ASSIGNING:
        (void)emit(out, MU_POLICY_DO_ASSIGN_STOP);
        leave(p, event->now_ms, out);
        break;
    case MU_POLICY_JOINING:
    case MU_POLICY_CHARGING:
    case MU_POLICY_FINISHING:
    case MU_POLICY_IDLE:
        leave(p, event->now_ms, out);
        break;
    case MU_POLICY_FAILING:
        be_failed(p, "no restarts left", out);
        end(p, event->now_ms, out);
        break;
    case MU_POLICY_ASKING: /* it is decided: end it */
    case MU_POLICY_LEAVING:
    case MU_POLICY_SERVING:
    case MU_POLICY_LINGERING:
        end(p, event->now_ms, out);
        break;
    case MU_POLICY_ENDED:
        break;
    }
}

/* Nobody is there to kill what we would leave behind: everything at once, and out. */
static void on_keeper_gone(struct mu_policy *p, uint64_t now_ms, struct mu_policy_effects *out)
{
    decide(p, MU_POLICY_OUTCOME_KEEPER_GONE, 1, 0);
    (void)mu_fail(&p->outcome.error, MUSTER_ESYSTEM, "the process that started this agent is gone");
    p->serve = false;
    note(p, false, "its launcher was killed", out);
    if (p->workers == NONE) {
        if (p->phase == MU_POLICY_ASSIGNING)
            (void)emit(out, MU_POLICY_DO_ASSIGN_STOP);
        leave(p, now_ms, out);
        return;
    }
    stop(p, SIGKILL, 0, now_ms, out);
    if (p->in)
        say_leave(p, now_ms, out);
    p->deadline_ms = now_ms + MU_POLICY_LEAVE_MS;
}

/* ---- Driving ---- */

static void on_answer(struct mu_policy *p, const struct mu_policy_event *event, struct mu_policy_effects *out)
{
    const struct mu_answer *answer = &event->answer;
    const struct mu_ask_slot *asked = mu_asks_find(&p->asks, answer->id);
    struct mu_ask_slot slot;

    if (asked != NULL && asked->what == BUDGET_SET && answer->error != NULL) {
        p->gone = answer->gone;
        p->silence = *answer->error;
    }
    if (!mu_asks_answer(&p->asks, answer, event->now_ms, &slot))
        return;
    switch ((enum what)slot.what) {
    case BUDGET_SET:
        on_budget(p, answer, event->now_ms, out);
        break;
    case VERDICT_LOOK:
        told_why(p, answer, event->now_ms, out);
        break;
    case VERDICT_GET:
        linger(p, event->now_ms, out);
        break;
    }
}

static void pass_time(struct mu_policy *p, uint64_t now_ms, struct mu_policy_effects *out)
{
    await_budget(p, now_ms, out);
    say_away(p, now_ms, out);
    if (now_ms < p->deadline_ms)
        return;
    if (p->phase == MU_POLICY_LEAVING)
        left(p, now_ms, out);
    else if (p->phase == MU_POLICY_ASKING)
        told_why(p, NULL, now_ms, out);
    else if (p->phase == MU_POLICY_STOPPING) { /* the keeper is gone: the rest at once; that has limits of its own */
        p->deadline_ms = UINT64_MAX;
        stop(p, SIGKILL, 0, now_ms, out);
    } else
        end(p, now_ms, out); /* lingered long enough */
}

static void take(struct mu_policy *p, const struct mu_policy_event *event, struct mu_policy_effects *out)
{
    switch (event->type) {
    case MU_POLICY_ON_RUN:
        p->run_ms = event->now_ms;
        if (p->phase == MU_POLICY_IDLE)
            join(p, event->now_ms, out);
        break;
    case MU_POLICY_ON_JOINED:
        on_joined(p, event, out);
        break;
    case MU_POLICY_ON_WAITING:
        on_waiting(p, event, out);
        break;
    case MU_POLICY_ON_REMOVED:
        on_removed(p, event, out);
        break;
    case MU_POLICY_ON_CLOSED:
        p->closed = true;
        break;
    case MU_POLICY_ON_LEFT:
        if (p->phase == MU_POLICY_LEAVING)
            left(p, event->now_ms, out);
        else if (p->leave_until_ms != 0)
            p->in = false;
        break;
    case MU_POLICY_ON_FAILED:
        on_failed(p, event, out);
        break;
    case MU_POLICY_ON_BACKEND_DOWN:
    case MU_POLICY_ON_BACKEND_UP:
        on_backend(p, event, out);
        break;
    case MU_POLICY_ON_ASSIGNED:
        on_assigned(p, event, out);
        break;
    case MU_POLICY_ON_ASSIGN_AGAIN:
        on_assign_again(p, event, out);
        break;
    case MU_POLICY_ON_ASSIGN_FAILED:
        on_assign_failed(p, event, out);
        break;
    case MU_POLICY_ON_LOST:
        on_lost(p, event, out);
        break;
    case MU_POLICY_ON_JOB_FAILED:
        on_job_failed(p, event, out);
        break;
    case MU_POLICY_ON_PEER_FAILED:
        on_peer_failed(p, event, out);
        break;
    case MU_POLICY_ON_FINISHED:
        on_finished(p, event, out);
        break;
    case MU_POLICY_ON_STARTED:
        on_started(p, event->now_ms, out);
        break;
    case MU_POLICY_ON_START_FAILED:
        on_start_failed(p, event, out);
        break;
    case MU_POLICY_ON_EXITED:
        on_exited(p, event, out);
        break;
    case MU_POLICY_ON_UNHEALTHY:
        on_unhealthy(p, event, out);
        break;
    case MU_POLICY_ON_STOPPED:
        on_stopped(p, event, out);
        break;
    case MU_POLICY_ON_SIGNAL:
        on_signal(p, event, out);
        break;
    case MU_POLICY_ON_KEEPER_GONE:
        on_keeper_gone(p, event->now_ms, out);
        break;
    case MU_POLICY_ON_ALONE:
        if (p->phase == MU_POLICY_SERVING || p->phase == MU_POLICY_LINGERING)
            end(p, event->now_ms, out);
        break;
    case MU_POLICY_ON_ANSWER:
        on_answer(p, event, out);
        break;
    case MU_POLICY_ON_TIME:
        break;
    }
}

void mu_policy_step(struct mu_policy *p, const struct mu_policy_event *event, struct mu_policy_effects *out)
{
    struct mu_ask ask;

    out->count = 0;
    p->lines_count = 0;
    if (p->phase == MU_POLICY_ENDED)
        return;
    take(p, event, out);
    pass_time(p, event->now_ms, out);
    proceed(p, event->now_ms, out);
    while (mu_asks_emit(&p->asks, event->now_ms, UINT64_MAX, &ask))
        emit(out, MU_POLICY_DO_ASK)->ask = ask;
    assert(p->phase != MU_POLICY_JOINING || p->workers == NONE);
    assert((p->phase == MU_POLICY_STARTING || p->phase == MU_POLICY_RUNNING) ==
           (p->workers == STARTING || p->workers == UP));
    assert(!mu_group_state_is_running(p->state) || p->workers == UP || p->workers == STOPPING);
}

uint64_t mu_policy_deadline_ms(const struct mu_policy *p)
{
    uint64_t due_ms = mu_asks_due_ms(&p->asks);

    due_ms = due_ms < p->deadline_ms ? due_ms : p->deadline_ms;
    due_ms = due_ms < p->down_say_ms ? due_ms : p->down_say_ms;
    return due_ms < p->charge_until_ms ? due_ms : p->charge_until_ms;
}

enum mu_policy_phase mu_policy_phase(const struct mu_policy *p)
{
    return p->phase;
}

enum mu_group_state mu_policy_state(const struct mu_policy *p)
{
    return p->state;
}

int64_t mu_policy_count(const struct mu_policy *p)
{
    return p->count;
}

int64_t mu_policy_remaining_restarts(const struct mu_policy *p)
{
    return larger(p->max_restarts - p->count, 0);
}
