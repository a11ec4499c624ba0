/* An agent in a round that has a leader. See the diagram in led.h. */
#include "agent/led.h"

#include "base/texts.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#define SUCCEEDED "this node's workers have succeeded"
enum { CAUSE_SHOWN_MAX = MU_SETTLEMENT_TEXT_MAX };

MU_DEFINE_TEXTS(mu_led_state_text, enum mu_led_state, MU_LED_STATES)

void mu_led_init(struct mu_led *l, uint64_t barrier_ms)
{
    *l = (struct mu_led){ .barrier_ms = barrier_ms, .round = -1 };
    l->deadline_ms = l->wait_until_ms = l->away_ms = UINT64_MAX;
}

struct mu_ranks_result mu_led_ranks(const struct mu_part_seat *seat)
{
    struct mu_ranks_result ranks = { .count = seat->count,
                                     .shared = true,
                                     .base_rank = seat->base_rank,
                                     .world_size = seat->world_size,
                                     .base_role_rank = seat->base_role_rank,
                                     .role_world_size = seat->role_world_size };

    mu_line_copy(ranks.settled, sizeof ranks.settled, mu_slice_str(seat->why != NULL ? seat->why : ""));
    return ranks;
}

/* ---- States ---- */

static bool is_done(const struct mu_led *l)
{
    return l->state == MU_LED_REPORTING || l->state == MU_LED_WAITING;
}

static bool is_sound(const struct mu_led *l)
{
    if (!is_done(l) && l->deadline_ms != UINT64_MAX)
        return false;
    if (is_done(l) && l->said != MU_LED_SAID_NOTHING)
        return false; /* workers that have failed do not succeed */
    return !l->over || l->state == MU_LED_REPORTING;
}

static void enter(struct mu_led *l, enum mu_led_state state, uint64_t deadline_ms)
{
    assert(state != MU_LED_REPORTING || l->state == MU_LED_WATCHING);
    assert(state != MU_LED_WAITING || l->state == MU_LED_REPORTING);
    assert(state != MU_LED_ENDED || is_done(l) || l->state == MU_LED_WATCHING);
    l->state = state;
    l->deadline_ms = deadline_ms;
    l->over = false;
}

static struct mu_completion_effect *emit(struct mu_led *l, enum mu_completion_effect_type type)
{
    assert(l->out->count < MU_COMPLETION_EFFECTS_MAX);
    l->out->items[l->out->count] = (struct mu_completion_effect){ .type = type };
    return &l->out->items[l->out->count++];
}

static void report(struct mu_led *l, enum mu_part_end end, int64_t rank, const char *text)
{
    mu_line_copy(l->reason, sizeof l->reason, mu_slice_str(text != NULL ? text : ""));
    l->report = (struct mu_part_report){ .end = end, .rank = rank, .text = l->reason };
    emit(l, MU_COMPLETION_DO_REPORT)->report = &l->report;
}

/* With l->text filled in. */
static void end(struct mu_led *l, enum mu_completion_end how)
{
    struct mu_completion_effect *effect = emit(l, MU_COMPLETION_DO_END);

    effect->end = how;
    effect->text = l->text;
    enter(l, MU_LED_ENDED, UINT64_MAX);
}

static void end_over(struct mu_led *l, const char *text)
{
    (void)snprintf(l->text, sizeof l->text, "%s", text);
    end(l, MU_COMPLETION_END_OVER);
}

static void tell(struct mu_led *l, enum mu_completion_effect_type type, int64_t number)
{
    struct mu_completion_effect *effect = emit(l, type);

    effect->number = number;
    effect->text = l->text;
}

/* ---- The round is over ---- */

static void on_over(struct mu_led *l, const struct mu_completion_event *event)
{
    const char *cause = event->text != NULL ? event->text : "lost a node";

    if (is_done(l)) {
        (void)snprintf(l->text, sizeof l->text, "%.*s; " SUCCEEDED ", so it ends and the other nodes regroup",
                       CAUSE_SHOWN_MAX, cause);
        l->over = l->state == MU_LED_REPORTING;
        if (!l->over)
            end(l, MU_COMPLETION_END_BEHIND);
    } else if (l->state == MU_LED_WATCHING && l->closed) {
        if (event->type == MU_COMPLETION_ON_WAITING)
            return; /* nobody can join */
        (void)snprintf(l->text, sizeof l->text, "the job was closed without a verdict; %.*s", CAUSE_SHOWN_MAX, cause);
        tell(l, MU_COMPLETION_DO_JOB_FAILED, 0);
    } else if (l->state == MU_LED_WATCHING) {
        l->told_over |= event->type == MU_COMPLETION_ON_LOST;
        (void)snprintf(l->text, sizeof l->text, "%s", cause);
        tell(l, event->type == MU_COMPLETION_ON_WAITING ? MU_COMPLETION_DO_WAITING : MU_COMPLETION_DO_LOST,
             event->rank);
    }
}

/* ---- The job is over ---- */

static void end_unjudged(struct mu_led *l)
{
    end_over(l, SUCCEEDED "; the job was closed without a verdict: ending without waiting for the other nodes");
}

static void end_all_done(struct mu_led *l)
{
    (void)snprintf(l->text, sizeof l->text, "%s%" PRId64 " node%s done", l->world_size == 1 ? "" : "all ",
                   l->world_size, l->world_size == 1 ? " is" : "s are");
    end(l, MU_COMPLETION_END_ALL_DONE);
}

static void on_closed(struct mu_led *l, const struct mu_part_verdict *verdict)
{
    l->closed |= verdict == NULL;
    l->succeeded |= verdict != NULL && verdict->succeeded;
    if (verdict == NULL && l->state == MU_LED_WAITING) {
        end_unjudged(l);
    } else if (verdict != NULL && !verdict->succeeded) {
        (void)snprintf(l->text, sizeof l->text, "the job has failed: %.*s", CAUSE_SHOWN_MAX,
                       verdict->cause != NULL ? verdict->cause : "nobody knows why");
        if (is_done(l)) {
            end(l, MU_COMPLETION_END_OVER);
        } else if (l->state == MU_LED_WATCHING) {
            l->said = MU_LED_SAID_LEFT; /* nobody wants to know any more */
            tell(l, MU_COMPLETION_DO_JOB_FAILED, 0);
        }
    } else if (verdict != NULL && is_done(l)) {
        end_all_done(l);
    }
}

/* ---- What becomes of our workers ---- */

static uint64_t after(const struct mu_led *l, uint64_t least_ms)
{
    if (l->barrier_ms == UINT64_MAX)
        return UINT64_MAX;
    return l->now_ms + (l->barrier_ms < least_ms ? least_ms : l->barrier_ms);
}

static void on_done(struct mu_led *l)
{
    if (l->state != MU_LED_WATCHING)
        return;
    if (l->removed) {
        end_over(l, SUCCEEDED "; the other nodes go on without it");
        return;
    }
    l->wait_until_ms = after(l, MU_LED_CLOSE_MS);
    if (l->away_ms != UINT64_MAX)
        l->away_ms = l->now_ms; /* it has as long as any other */
    enter(l, MU_LED_REPORTING, after(l, MU_ASK_TIMEOUT_MS));
    report(l, MU_PART_END_DONE, -1, NULL);
}

static void on_reported(struct mu_led *l, const struct muster_error *error)
{
    bool over = l->over;

    if (l->state != MU_LED_REPORTING)
        return;
    enter(l, MU_LED_WAITING, l->wait_until_ms);
    if (error != NULL) {
        (void)snprintf(l->text, sizeof l->text, SUCCEEDED "; the other nodes could not be told: %.*s", CAUSE_SHOWN_MAX,
                       error->text);
        end(l, MU_COMPLETION_END_OVER);
    } else if (over) {
        end(l, MU_COMPLETION_END_BEHIND);
    } else if (l->succeeded) {
        end_all_done(l);
    } else if (l->closed) {
        end_unjudged(l);
    }
}

static void on_removed(struct mu_led *l)
{
    l->removed = true;
    if (is_done(l))
        end_over(l, SUCCEEDED "; the other nodes go on without it");
}

static void on_failed(struct mu_led *l, const struct mu_completion_event *event)
{
    if (l->state != MU_LED_WATCHING || l->said >= MU_LED_SAID_FAILED)
        return;
    l->said = MU_LED_SAID_FAILED;
    report(l, MU_PART_END_FAILED, event->rank, event->text);
}

/* This node ends its part in the round. Of a round that the leader has ended there is nothing more to say. */
static void on_note(struct mu_led *l, const struct mu_completion_event *event)
{
    static const struct {
        enum mu_led_said says;
        enum mu_part_end end;
    } notes[] = {
        [MU_NOTE_AGAIN] = { MU_LED_SAID_AGAIN, MU_PART_END_AGAIN },
        [MU_NOTE_LEFT] = { MU_LED_SAID_LEFT, MU_PART_END_LEFT },
        [MU_NOTE_LOST] = { MU_LED_SAID_LEFT, MU_PART_END_LOST },
    };

    assert(event->note != MU_NOTE_NONE);
    if (l->state != MU_LED_WATCHING || l->said >= notes[event->note].says ||
        (event->note == MU_NOTE_AGAIN && l->told_over))
        return;
    l->said = notes[event->note].says;
    report(l, notes[event->note].end, -1, event->text);
}

/* ---- The machine ---- */

static uint64_t away_until_ms(const struct mu_led *l)
{
    return is_done(l) && l->away_ms != UINT64_MAX ? l->away_ms + MU_COMPLETION_SILENT_MS : UINT64_MAX;
}

static void pass_time(struct mu_led *l)
{
    if (l->now_ms >= away_until_ms(l)) {
        (void)snprintf(l->text, sizeof l->text,
                       SUCCEEDED ", and the store has not answered for %" PRIu64
                                 " s: ending without waiting for the other nodes",
                       (l->now_ms - l->away_ms) / 1000);
        end(l, MU_COMPLETION_END_AWAY);
    } else if (l->now_ms >= l->deadline_ms) {
        (void)snprintf(l->text, sizeof l->text, SUCCEEDED "; the other nodes were not done in time");
        end(l, MU_COMPLETION_END_TIMEOUT);
    }
}

static void start(struct mu_led *l, const struct mu_round *joined)
{
    enter(l, MU_LED_WATCHING, UINT64_MAX);
    l->round = joined->round;
    l->world_size = joined->world_size;
    l->said = MU_LED_SAID_NOTHING;
    l->closed = l->succeeded = l->removed = l->told_over = false;
    l->away_ms = UINT64_MAX; /* the round was joined there */
}

static void take(struct mu_led *l, const struct mu_completion_event *event)
{
    switch (event->type) {
    case MU_COMPLETION_ON_START:
        start(l, event->start);
        break;
    case MU_COMPLETION_ON_STOP:
        enter(l, MU_LED_IDLE, UINT64_MAX);
        break;
    case MU_COMPLETION_ON_LOST:
    case MU_COMPLETION_ON_WAITING:
        on_over(l, event);
        break;
    case MU_COMPLETION_ON_REMOVED:
        on_removed(l);
        break;
    case MU_COMPLETION_ON_CLOSED:
        on_closed(l, event->verdict);
        break;
    case MU_COMPLETION_ON_BACKEND_DOWN:
        if (l->away_ms == UINT64_MAX)
            l->away_ms = l->now_ms > event->away_ms ? l->now_ms - event->away_ms : 0;
        break;
    case MU_COMPLETION_ON_BACKEND_UP:
        l->away_ms = UINT64_MAX;
        break;
    case MU_COMPLETION_ON_DONE:
        on_done(l);
        break;
    case MU_COMPLETION_ON_REPORTED:
        on_reported(l, event->error);
        break;
    case MU_COMPLETION_ON_WORKER_FAILED:
        on_failed(l, event);
        break;
    case MU_COMPLETION_ON_NOTE:
        on_note(l, event);
        break;
    case MU_COMPLETION_ON_LISTEN:       /* the leader is always heard */
    case MU_COMPLETION_ON_CLOSE_FAILED: /* the agent asked, and has said what came of it: the leader closes the job */
    case MU_COMPLETION_ON_TIME:
        break;
    case MU_COMPLETION_ON_FAIL: /* nobody but the leader fails the job, or has asked for keys */
    case MU_COMPLETION_ON_ANSWER:
        assert(false);
        break;
    }
}

void mu_led_step(struct mu_led *l, const struct mu_completion_event *event, struct mu_completion_effects *out)
{
    bool is_old = event->round >= 0 && event->round != l->round;

    assert(is_sound(l));
    out->count = 0;
    l->out = out;
    l->now_ms = event->now_ms;
    if (!is_old)
        take(l, event);
    pass_time(l);
    assert(is_sound(l));
}

uint64_t mu_led_deadline_ms(const struct mu_led *l)
{
    return mu_sooner_ms(l->deadline_ms, away_until_ms(l));
}
