/* An agent's life: what is heard, and which part of it acts on that. See the diagram in policy.h. */
#include "agent/policy_parts.h"

#include "base/texts.h"

#include <stdarg.h>
#include <stdlib.h>

MU_DEFINE_TEXTS(mu_policy_phase_text, enum mu_policy_phase, MU_POLICY_PHASES)

MU_DEFINE_TEXTS(mu_policy_event_text, enum mu_policy_event_type, MU_POLICY_EVENTS)

MU_DEFINE_TEXTS(mu_policy_effect_text, enum mu_policy_effect_type, MU_POLICY_EFFECTS)

MU_DEFINE_TEXTS(mu_policy_outcome_text, enum mu_policy_outcome_kind, MU_POLICY_OUTCOMES)

/* ---- Making one ---- */

int mu_policy_new(const struct mu_policy_config *config, struct mu_policy **ret_policy, struct muster_error *reterr)
{
    size_t prefix_room = strlen(config->run_id) + MU_ROUND_PREFIX_EXTRA;
    struct mu_policy *p;
    bool is_full = false;

    if (config->local_world_size < 1 || config->max_restarts < 0)
        return mu_fail(reterr, MUSTER_EINVAL, "%" PRId64 " workers with %" PRId64 " restarts are not possible",
                       config->local_world_size, config->max_restarts);
    p = calloc(1, sizeof *p);
    if (p == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for an agent");
    p->job_prefix = mu_arena_alloc(&p->names, prefix_room);
    p->role = mu_arena_text(&p->names, config->role, &is_full);
    p->node = mu_arena_text(&p->names, config->node, &is_full);
    p->host = config->host != NULL ? mu_arena_text(&p->names, config->host, &is_full) : p->node;
    if (is_full || p->job_prefix == NULL || mu_asks_init(&p->asks, prefix_room, MU_RESTART_BUDGET_MAX, NULL) < 0) {
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
    p->deadline_ms = p->charge_until_ms = p->down_ms = p->down_say_ms = p->restart_ms = UINT64_MAX;
    p->joined.round = -1;
    *ret_policy = p;
    return 0;
}

void mu_policy_free(struct mu_policy *p)
{
    if (p == NULL)
        return;
    mu_asks_done(&p->asks);
    mu_arena_done(&p->names);
    mu_buf_done(&p->budget);
    free(p);
}

/* ---- Telling ---- */

struct mu_policy_effect *mu_policy_emit(struct mu_policy *p, enum mu_policy_effect_type type)
{
    assert(p->out->count < MU_POLICY_EFFECTS_MAX);
    p->out->items[p->out->count] = (struct mu_policy_effect){ .type = type, .duration_ms = -1 };
    return &p->out->items[p->out->count++];
}

void mu_policy_say(struct mu_policy *p, enum muster_log_level level, const char *format, ...)
{
    struct mu_policy_effect *effect = mu_policy_emit(p, MU_POLICY_DO_SAY);
    va_list args;

    assert(p->lines_count < LINES_MAX);
    va_start(args, format);
    (void)vsnprintf(p->lines[p->lines_count], sizeof p->lines[0], format, args);
    va_end(args);
    effect->level = level;
    effect->text = p->lines[p->lines_count++];
}

void mu_policy_enter_state(struct mu_policy *p, enum mu_group_state state)
{
    if (p->state == state)
        return;
    assert(mu_group_state_may_follow(p->state, state));
    p->state = state;
    mu_policy_emit(p, MU_POLICY_DO_STATE)->state = state;
}

void mu_policy_time_step(struct mu_policy *p, enum mu_metrics_step which, bool ok, uint64_t since_ms)
{
    struct mu_policy_effect *effect = mu_policy_emit(p, MU_POLICY_DO_STEP);

    effect->step = which;
    effect->ok = ok;
    effect->duration_ms = (int64_t)(p->now_ms - since_ms);
}

/* What began with the rendezvous has failed: PyTorch measures an exception in every step that it leaves. */
void mu_policy_initialize_failed(struct mu_policy *p)
{
    mu_policy_time_step(p, MU_METRICS_INITIALIZE_WORKERS, false, p->initialize_ms);
    if (p->restart_ms != UINT64_MAX)
        mu_policy_time_step(p, MU_METRICS_RESTART_WORKERS, false, p->restart_ms);
}

struct mu_policy_effect *mu_policy_put_record(struct mu_policy *p, enum mu_policy_record which, int64_t duration_ms)
{
    struct mu_policy_effect *effect = mu_policy_emit(p, MU_POLICY_DO_RECORD);

    effect->record = which;
    effect->duration_ms = duration_ms;
    effect->state = p->state;
    return effect;
}

/* A look at the workers has found the group in this state: as PyTorch does after each of its polls, the state is first
 * changed and then measured. Nothing else is measured as a decision. */
void mu_policy_observe(struct mu_policy *p, enum mu_group_state state)
{
    struct mu_policy_effect *effect;

    mu_policy_enter_state(p, state);
    mu_policy_time_step(p, MU_METRICS_MONITOR_WORKERS, true, p->now_ms);
    effect = mu_policy_emit(p, MU_POLICY_DO_DECISION);
    effect->state = p->state;
    effect->number = mu_policy_remaining_restarts(p);
}

/* What must hold in a phase. */
static bool is_sound(const struct mu_policy *p)
{
    bool decided = p->outcome.kind != MU_POLICY_OUTCOME_NONE, gone = p->workers == NONE;

    switch (p->phase) {
    case MU_POLICY_IDLE:
        return gone && !decided && p->membership == NO_MEMBER;
    case MU_POLICY_JOINING:
        return gone && !decided && p->leftovers == 0 && p->fate == UNDECIDED && p->membership == MAY_BE_MEMBER;
    case MU_POLICY_ASSIGNING:
        return gone && !decided && p->membership == MAY_BE_MEMBER;
    case MU_POLICY_STARTING:
        return p->workers == STARTING && !decided && p->membership == MAY_BE_MEMBER;
    case MU_POLICY_RUNNING:
        return p->workers == UP && !decided && p->membership == MAY_BE_MEMBER;
    case MU_POLICY_STOPPING:
        return p->fate != UNDECIDED && decided == (p->fate == END);
    case MU_POLICY_CHARGING:
        return gone && !decided && p->fate == BUDGET && p->shared;
    case MU_POLICY_FINISHING:
        return gone && !decided && p->fate == DONE;
    case MU_POLICY_FAILING:
        return gone && !decided && p->fate == BUDGET && p->charge == USED_UP;
    case MU_POLICY_LEAVING:
        return gone && decided && p->membership == IS_LEAVING;
    case MU_POLICY_ASKING:
    case MU_POLICY_SERVING:
    case MU_POLICY_LINGERING:
    case MU_POLICY_ENDED:
        return gone && decided;
    }
    return false;
}

void mu_policy_enter(struct mu_policy *p, enum mu_policy_phase phase, uint64_t deadline_ms)
{
    p->phase = phase;
    assert(is_sound(p));
    p->deadline_ms = deadline_ms;
}

void mu_policy_set_membership(struct mu_policy *p, enum membership membership)
{
    bool was_in = p->membership == MAY_BE_MEMBER || p->membership == HAS_SAID_WHY;

    assert(membership == NO_MEMBER || was_in || (membership == MAY_BE_MEMBER && p->membership == NO_MEMBER));
    p->membership = membership;
}

int64_t mu_policy_larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

void mu_policy_write_foreign(struct mu_policy *p, const char *what, const char *key, struct mu_slice value,
                             const char *next)
{
    char full[MU_FOREIGN_TEXT_MAX / 2];

    (void)snprintf(full, sizeof full, "%.200s%s", p->job_prefix, key);
    mu_foreign_say(p->foreign, what, full, value, next);
}

/* ---- A store that is away ---- */

static void note_away(struct mu_policy *p, const struct mu_policy_event *event)
{
    p->down_until_ms = event->give_up_in_ms == 0 ? 0 : p->now_ms + event->give_up_in_ms;
    (void)snprintf(p->down_why, sizeof p->down_why, "%s", event->error->text);
}

static void on_backend(struct mu_policy *p, const struct mu_policy_event *event)
{
    bool down = event->type == MU_POLICY_ON_BACKEND_DOWN;

    if (p->phase == MU_POLICY_ENDED)
        return;
    if (down)
        note_away(p, event); /* what changed is in the next line */
    if (down == (p->down_ms != UINT64_MAX))
        return;
    if (down) {
        p->down_ms = p->now_ms > event->away_ms ? p->now_ms - event->away_ms : 0;
        if (p->outcome.kind == MU_POLICY_OUTCOME_NONE)
            p->down_say_ms = p->now_ms + MU_POLICY_AWAY_SAY_MS;
        if (event->number > 0 && mu_policy_has_workers(p) && !p->closed)
            return; /* the loss ends the round, and its line says that it is the store's host */
        mu_policy_say(p, MUSTER_LOG_WARNING, "%.*s; %strying again", TEXT_SHOWN_MAX * 2, p->down_why,
                      p->workers == UP ? "the workers run on; " : "");
    } else {
        uint64_t away_ms = p->now_ms - p->down_ms;

        p->down_ms = p->down_say_ms = UINT64_MAX;
        mu_policy_say(p, MUSTER_LOG_NOTICE, "the store is back after %" PRIu64 ".%" PRIu64 " s", away_ms / 1000,
                      away_ms % 1000 / 100);
    }
}

/* Every few seconds, and then less often. */
static void say_away(struct mu_policy *p)
{
    uint64_t away_ms = p->now_ms - p->down_ms;
    char limit[64] = "";

    if (p->now_ms < p->down_say_ms)
        return;
    assert(p->down_ms != UINT64_MAX);
    p->down_say_ms =
        p->now_ms + (away_ms < MU_POLICY_AWAY_SAY_LATER_MS ? MU_POLICY_AWAY_SAY_MS : MU_POLICY_AWAY_SAY_LATER_MS);
    if (p->down_until_ms > p->now_ms)
        (void)snprintf(limit, sizeof limit, " for up to %" PRIu64 " s", (p->down_until_ms - p->now_ms + 999) / 1000);
    mu_policy_say(p, MUSTER_LOG_WARNING, "the store has been away for %" PRIu64 " s (%.*s); %strying again%s",
                  away_ms / 1000, TEXT_SHOWN_MAX, p->down_why, p->workers == UP ? "the workers run on; " : "", limit);
}

/* ---- Signals, and the keeper ---- */

static void on_signal(struct mu_policy *p, const struct mu_policy_event *event)
{
    int signal = (int)event->number;
    enum mu_signal_meaning meaning = mu_signals_see(&p->signals, signal, p->now_ms);

    if (meaning == MU_SIGNAL_REPEAT) {
        mu_policy_say(p, MUSTER_LOG_INFO, "Received %d death signal again, shutting down as before", signal);
        return;
    }
    mu_policy_say(p, MUSTER_LOG_WARNING, "Received %d death signal, shutting down%s", signal,
                  p->workers == NONE           ? ""
                  : meaning == MU_SIGNAL_HURRY ? " workers at once"
                  : signal == SIGINT           ? " workers; another Ctrl-C kills them"
                                               : " workers");
    if (p->outcome.kind == MU_POLICY_OUTCOME_NONE || p->phase == MU_POLICY_SERVING)
        mu_policy_decide_signal(p, signal);
    if (p->outcome.signal == signal)
        mu_policy_note(p, MU_NOTE_LEFT, mu_signal_name(signal, p->signal_name));
    switch (p->phase) {
    case MU_POLICY_STARTING:
    case MU_POLICY_RUNNING:
    case MU_POLICY_STOPPING:
        if (meaning == MU_SIGNAL_BEGIN)
            mu_policy_stop(p, signal, p->grace_ms);
        else
            mu_policy_stop(p, SIGKILL, 0);
        break;
    case MU_POLICY_ASSIGNING:
        (void)mu_policy_emit(p, MU_POLICY_DO_ASSIGN_STOP);
        mu_policy_leave(p);
        break;
    case MU_POLICY_JOINING:
    case MU_POLICY_CHARGING:
    case MU_POLICY_FINISHING:
    case MU_POLICY_IDLE:
        mu_policy_leave(p);
        break;
    case MU_POLICY_FAILING:
        mu_policy_be_failed(p, "no restarts left");
        mu_policy_end(p);
        break;
    case MU_POLICY_ASKING: /* it is decided: end it */
    case MU_POLICY_LEAVING:
    case MU_POLICY_SERVING:
    case MU_POLICY_LINGERING:
        mu_policy_end(p);
        break;
    case MU_POLICY_ENDED:
        break;
    }
}

/* Nobody is there to kill what we would leave behind: everything at once, and out. */
static void on_keeper_gone(struct mu_policy *p, const struct mu_policy_event *event)
{
    (void)event;
    mu_policy_decide(p, MU_POLICY_OUTCOME_KEEPER_GONE, 1, 0);
    (void)mu_fail(&p->outcome.error, MUSTER_ESYSTEM, "the process that started this agent is gone");
    p->serve_until_ms = 0;
    mu_policy_note(p, MU_NOTE_LOST, "its launcher was killed");
    if (p->workers == NONE) {
        if (p->phase == MU_POLICY_ASSIGNING)
            (void)mu_policy_emit(p, MU_POLICY_DO_ASSIGN_STOP);
        mu_policy_leave(p);
        return;
    }
    mu_policy_stop(p, SIGKILL, 0);
    if (p->membership != NO_MEMBER)
        mu_policy_say_leave(p);
    p->deadline_ms = p->now_ms + MU_POLICY_LEAVE_MS;
}

/* ---- Driving ---- */

static void on_answer(struct mu_policy *p, const struct mu_policy_event *event)
{
    const struct mu_answer *answer = &event->answer;
    const struct mu_ask_slot *asked = mu_asks_find(&p->asks, answer->id);
    struct mu_ask_slot slot;

    if (asked != NULL && asked->what == BUDGET_SET && answer->error != NULL) {
        p->gone = answer->gone;
        p->silence = *answer->error;
    }
    if (!mu_asks_answer(&p->asks, answer, p->now_ms, &slot))
        return;
    switch ((enum what)slot.what) {
    case BUDGET_SET:
        mu_policy_on_budget(p, answer);
        break;
    case VERDICT_LOOK:
        mu_policy_take_verdict(p, answer);
        break;
    case ROUND_LOOK:
        mu_policy_take_round(p, answer);
        break;
    case VERDICT_GET:
        mu_policy_linger(p);
        break;
    }
}

static void pass_time(struct mu_policy *p)
{
    mu_policy_await_budget(p);
    say_away(p);
    if (p->now_ms < p->deadline_ms)
        return;
    if (p->phase == MU_POLICY_LEAVING)
        mu_policy_left(p);
    else if (p->phase == MU_POLICY_ASKING)
        mu_policy_tell_why(p, false);
    else if (p->phase == MU_POLICY_STOPPING) { /* the keeper is gone: the rest at once; that has limits of its own */
        p->deadline_ms = UINT64_MAX;
        mu_policy_stop(p, SIGKILL, 0);
    } else
        mu_policy_end(p); /* lingered long enough */
}

static void on_run(struct mu_policy *p, const struct mu_policy_event *event)
{
    (void)event;
    p->run_ms = p->now_ms;
    if (p->phase == MU_POLICY_IDLE)
        mu_policy_join(p);
}

static void on_closed(struct mu_policy *p, const struct mu_policy_event *event)
{
    (void)event;
    p->closed = true;
    if (p->phase == MU_POLICY_SERVING && p->joined.led)
        mu_policy_linger(p);
}

static void on_left(struct mu_policy *p, const struct mu_policy_event *event)
{
    (void)event;
    if (p->phase == MU_POLICY_LEAVING)
        mu_policy_left(p);
    else if (p->membership == IS_LEAVING)
        mu_policy_set_membership(p, NO_MEMBER);
}

static void on_alone(struct mu_policy *p, const struct mu_policy_event *event)
{
    (void)event;
    if (p->phase == MU_POLICY_SERVING || p->phase == MU_POLICY_LINGERING)
        mu_policy_end(p);
}

static mu_policy_hear *const hearers[] = {
    [MU_POLICY_ON_RUN] = on_run,
    [MU_POLICY_ON_JOINED] = mu_policy_on_joined,
    [MU_POLICY_ON_WAITING] = mu_policy_on_waiting,
    [MU_POLICY_ON_REMOVED] = mu_policy_on_removed,
    [MU_POLICY_ON_CLOSED] = on_closed,
    [MU_POLICY_ON_LEFT] = on_left,
    [MU_POLICY_ON_FAILED] = mu_policy_on_failed,
    [MU_POLICY_ON_BACKEND_DOWN] = on_backend,
    [MU_POLICY_ON_BACKEND_UP] = on_backend,
    [MU_POLICY_ON_ASSIGNED] = mu_policy_on_assigned,
    [MU_POLICY_ON_ASSIGN_AGAIN] = mu_policy_on_assign_again,
    [MU_POLICY_ON_ASSIGN_USED_UP] = mu_policy_on_used_up,
    [MU_POLICY_ON_ASSIGN_FAILED] = mu_policy_on_assign_failed,
    [MU_POLICY_ON_LOST] = mu_policy_on_lost,
    [MU_POLICY_ON_JOB_FAILED] = mu_policy_on_job_failed,
    [MU_POLICY_ON_PEER_FAILED] = mu_policy_on_peer_failed,
    [MU_POLICY_ON_FINISHED] = mu_policy_on_finished,
    [MU_POLICY_ON_STARTED] = mu_policy_on_started,
    [MU_POLICY_ON_START_FAILED] = mu_policy_on_start_failed,
    [MU_POLICY_ON_EXITED] = mu_policy_on_exited,
    [MU_POLICY_ON_UNHEALTHY] = mu_policy_on_unhealthy,
    [MU_POLICY_ON_STOPPED] = mu_policy_on_stopped,
    [MU_POLICY_ON_SIGNAL] = on_signal,
    [MU_POLICY_ON_KEEPER_GONE] = on_keeper_gone,
    [MU_POLICY_ON_ALONE] = on_alone,
    [MU_POLICY_ON_ANSWER] = on_answer,
    [MU_POLICY_ON_TIME] = NULL, /* passes with every event */
};

void mu_policy_step(struct mu_policy *p, const struct mu_policy_event *event, struct mu_policy_effects *out)
{
    struct mu_ask ask;

    assert(is_sound(p));
    out->count = 0;
    p->out = out;
    p->now_ms = event->now_ms;
    p->lines_count = 0;
    if (p->phase == MU_POLICY_ENDED)
        return;
    if (hearers[event->type] != NULL)
        hearers[event->type](p, event);
    pass_time(p);
    mu_policy_proceed(p);
    while (mu_asks_emit(&p->asks, p->now_ms, UINT64_MAX, &ask))
        mu_policy_emit(p, MU_POLICY_DO_ASK)->ask = ask;
    assert(is_sound(p) && p->count >= 0 && p->known >= 0);
    assert(mu_policy_has_workers(p) == (p->workers == STARTING || p->workers == UP));
    assert(!mu_group_state_is_running(p->state) || p->workers == UP || p->workers == STOPPING);
}

uint64_t mu_policy_deadline_ms(const struct mu_policy *p)
{
    return mu_sooner_ms(mu_sooner_ms(mu_asks_due_ms(&p->asks), p->deadline_ms),
                        mu_sooner_ms(p->down_say_ms, p->charge_until_ms));
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

int64_t mu_policy_max_restarts(const struct mu_policy *p)
{
    return p->max_restarts;
}

int64_t mu_policy_remaining_restarts(const struct mu_policy *p)
{
    return p->joined.led ? p->joined.restarts_left : mu_policy_larger(p->max_restarts - p->count, 0);
}
