/* How a round ends, and how the job does: what is heard, and which part acts on it. See the diagram in completion.h. */
#include "agent/completion_parts.h"

#include "base/texts.h"

#include <stdlib.h>

MU_DEFINE_TEXTS(mu_completion_state_text, enum mu_completion_state, MU_COMPLETION_STATES)

MU_DEFINE_TEXTS(mu_completion_end_text, enum mu_completion_end, MU_COMPLETION_ENDS)

/* ---- Making one ---- */

int mu_completion_new(const struct mu_completion_config *config, struct mu_completion **ret_completion,
                      struct muster_error *reterr)
{
    struct mu_completion *f = calloc(1, sizeof *f);
    bool is_full = false;

    if (f == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for the end of a job");
    f->prefix_room = strlen(config->run_id) + MU_ROUND_PREFIX_EXTRA;
    f->run_id = mu_arena_text(&f->names, config->run_id, &is_full);
    f->prefix = mu_arena_alloc(&f->names, f->prefix_room);
    f->job_prefix = mu_arena_alloc(&f->names, f->prefix_room);
    f->own_prefix = mu_arena_alloc(&f->names, f->prefix_room);
    f->barrier_ms = config->barrier_ms;
    f->loss_ms = config->loss_ms == 0 ? MU_COMPLETION_LOSS_MS : config->loss_ms;
    f->deadline_ms = f->look_again_ms = f->scan_ms = f->away_ms = f->gone_ms = f->fin_ms = UINT64_MAX;
    f->removed_by_ms = f->close_again_ms = UINT64_MAX;
    mu_line_copy(f->node, sizeof f->node, mu_slice_str(config->node));
    mu_line_copy(f->host, sizeof f->host, mu_slice_str(config->host != NULL ? config->host : config->node));
    if (is_full || f->prefix == NULL || f->job_prefix == NULL || f->own_prefix == NULL ||
        mu_asks_init(&f->asks, f->prefix_room, MU_VERDICT_TEXT_MAX, NULL) < 0) {
        mu_completion_free(f);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for the end of a job");
    }
    mu_round_job_prefix(f->job_prefix, f->prefix_room, config->run_id);
    *ret_completion = f;
    return 0;
}

void mu_completion_free(struct mu_completion *f)
{
    if (f == NULL)
        return;
    mu_asks_done(&f->asks);
    free(f->vanished);
    mu_vanished_done(&f->gone);
    mu_buf_done(&f->replaced);
    mu_arena_done(&f->names);
    free(f);
}

/* ---- Words ---- */

struct mu_completion_effect *mu_completion_emit(struct mu_completion *f, enum mu_completion_effect_type type)
{
    assert(f->out->count < MU_COMPLETION_EFFECTS_MAX);
    f->out->items[f->out->count] = (struct mu_completion_effect){ .type = type };
    return &f->out->items[f->out->count++];
}

bool mu_completion_bit(const uint8_t *bits, int64_t rank)
{
    return bits != NULL && (bits[rank / 8] >> (rank % 8) & 1) != 0;
}

/* Who is missed, and what is known of it. */
const char *mu_completion_who(struct mu_completion *f)
{
    for (size_t i = 0; i < f->gone.count; i++) {
        struct mu_vanished_member *member = &f->gone.members[i];

        member->done = member->rank >= 0 && mu_completion_bit(f->marked, member->rank);
        member->waits |= member->rank >= 0 && mu_completion_bit(f->heard, member->rank); /* it is about to */
    }
    mu_vanished_say(&f->gone, f->who, sizeof f->who);
    return f->who;
}

void mu_completion_warn(struct mu_completion *f, const char *what, const struct muster_error *error)
{
    (void)snprintf(f->warning, sizeof f->warning, "%s: %.600s; going on without", what, error->text);
    mu_completion_emit(f, MU_COMPLETION_DO_WARN)->text = f->warning;
}

void mu_completion_warn_foreign(struct mu_completion *f, const char *what, const char *key, struct mu_slice value,
                                const char *next)
{
    mu_foreign_say(f->foreign_text, what, key, value, next);
    mu_completion_emit(f, MU_COMPLETION_DO_WARN)->text = f->foreign_text;
}

/* ---- Kinds of rounds ---- */

bool mu_completion_is_tracked(const struct mu_completion *f) /* we hear of its members, and it can be closed */
{
    return f->start.round >= 0;
}

bool mu_completion_is_private(const struct mu_completion *f) /* nobody of PyTorch looks: all keys are ours */
{
    return mu_completion_is_tracked(f) && f->start.all_ours && f->start.has_store;
}

bool mu_completion_is_old(const struct mu_completion *f) /* the keys are those of 1.13 */
{
    return f->start.old_dialect && !mu_completion_is_private(f);
}

bool mu_completion_has_marks(const struct mu_completion *f) /* ours, beside what PyTorch writes */
{
    return mu_completion_is_tracked(f) && f->start.has_store && !mu_completion_is_old(f);
}

bool mu_completion_is_done(const struct mu_completion *f)
{
    return f->state == MU_COMPLETION_MARKING || f->state == MU_COMPLETION_WAITING;
}

void mu_completion_set_bit(uint8_t *bits, int64_t rank)
{
    bits[rank / 8] |= (uint8_t)(1U << (rank % 8));
}

/* ---- States ---- */

static bool is_closing(const struct mu_completion *f)
{
    return f->state == MU_COMPLETION_VERDICT || f->state == MU_COMPLETION_CLOSING || f->state == MU_COMPLETION_FREEING;
}

static bool is_over(const struct mu_completion *f)
{
    return f->state == MU_COMPLETION_IDLE || f->state == MU_COMPLETION_ENDED;
}

/* What must hold in a state. */
static bool is_sound(const struct mu_completion *f)
{
    if (is_over(f)) /* nothing is under way but what a node says when it stops to listen */
        return !f->sweeping && !f->judging_closed && f->deadline_ms == UINT64_MAX;
    if ((is_closing(f) && (f->sweeping || f->deadline_ms == UINT64_MAX)) ||
        (f->close_again_ms != UINT64_MAX && f->state != MU_COMPLETION_CLOSING))
        return false;
    if (f->state == MU_COMPLETION_ACCOUNTING)
        return mu_completion_is_private(f) && f->vanished != NULL && f->start.world_size > 1;
    return f->start.rank >= 0 && f->start.rank < f->start.world_size && f->marked_count <= f->start.world_size &&
           f->vanished_count <= f->start.world_size;
}

void mu_completion_enter(struct mu_completion *f, enum mu_completion_state state)
{
    switch (state) {
    case MU_COMPLETION_IDLE:
    case MU_COMPLETION_WATCHING:
    case MU_COMPLETION_ENDED:
        break;
    case MU_COMPLETION_ACCOUNTING:
    case MU_COMPLETION_MARKING:
        assert(f->state == MU_COMPLETION_WATCHING);
        break;
    case MU_COMPLETION_WAITING:
        assert(f->state == MU_COMPLETION_MARKING);
        break;
    case MU_COMPLETION_VERDICT:
        assert(!is_over(f) && !is_closing(f));
        break;
    case MU_COMPLETION_CLOSING:
    case MU_COMPLETION_FREEING:
        assert(is_closing(f) && f->state < state);
        break;
    }
    f->state = state;
}

/* ---- Events ---- */

static int reserve(struct mu_completion *f, int64_t world_size)
{
    size_t bytes = (size_t)(world_size + 7) / 8;
    uint8_t *bits = realloc(f->vanished, 4 * bytes);

    if (bits == NULL) {
        free(f->vanished);
        f->vanished = f->foreign = f->marked = f->heard = NULL;
        return MUSTER_ENOMEM;
    }
    memset(bits, 0, 4 * bytes);
    f->vanished = bits;
    f->foreign = bits + bytes;
    f->marked = bits + 2 * bytes;
    f->heard = bits + 3 * bytes;
    return 0;
}

static void start_round(struct mu_completion *f, const struct mu_round *start)
{
    assert(start->world_size >= 1 && start->rank >= 0 && start->rank < start->world_size);
    mu_completion_be_idle(f, MU_COMPLETION_WATCHING);
    f->start = *start;
    mu_round_stock_prefix(f->prefix, f->prefix_room, f->run_id, start->round);
    mu_round_own_prefix(f->own_prefix, f->prefix_room, f->run_id, start->round, start->tag);
    (void)reserve(f, start->world_size); /* without, whoever vanishes is lost */
    f->foreign_count = f->marked_count = f->vanished_count = 0;
    f->undone = f->removed = f->closed = f->told_failed = f->said_failed = f->said_heard = f->told_lost = f->noted =
        f->leaves = false;
    f->second_look = f->full = f->missing = f->uncounted = f->unmarked = f->fins = f->down = false;
    f->cursor = f->barrier_cursor = 0;
    f->text[0] = '\0';
    mu_vanished_done(&f->gone);
    f->waiting = 0;
    f->cleared = 0;
    f->seen = UNSEEN;
    f->away_ms = UINT64_MAX; /* the round was joined there */
}

/* ---- A host that has gone ---- */

/* Answers say that the store is there, or that nobody listens. Silence about a key that is waited for says nothing, and
 * neither does a SET, which a store does not answer. */
static void note_host(struct mu_completion *f, const struct mu_ask *ask, const struct mu_answer *answer)
{
    bool timed_out = answer->error != NULL && answer->error->code == MUSTER_ETIMEOUT;

    if (answer->error == NULL)
        f->gone_ms = UINT64_MAX;
    else if (answer->gone && f->gone_ms == UINT64_MAX)
        f->gone_ms = f->now_ms;
    if (answer->error == NULL && ask->kind != MU_ASK_SET)
        f->away_ms = UINT64_MAX;
    if (answer->error == NULL || !mu_ask_may_mend(answer->error->code) || (timed_out && ask->kind == MU_ASK_GET) ||
        f->away_ms != UINT64_MAX)
        return;
    f->away_ms = timed_out && f->now_ms > ask->timeout_ms ? f->now_ms - ask->timeout_ms : f->now_ms;
}

/* When there is nothing more to be expected of a store that is away. A PyTorch host goes as soon as it may; else it is
 * a store that stands alone and may be started again, or one of us: if that is a member, we hear of its end. */
static uint64_t away_until_ms(const struct mu_completion *f)
{
    bool closing = is_closing(f) && f->end == MU_COMPLETION_END_ALL_DONE;
    uint64_t refused_ms = UINT64_MAX, silent_ms = UINT64_MAX;

    if (closing && f->gone_ms != UINT64_MAX)
        return f->gone_ms + (f->start.all_ours ? MU_COMPLETION_GONE_MS : 0);
    if (!mu_completion_is_done(f))
        return UINT64_MAX;
    if (f->gone_ms != UINT64_MAX)
        refused_ms =
            f->gone_ms + (f->closed || (mu_completion_is_tracked(f) && !f->start.all_ours) ? MU_COMPLETION_GONE_MS
                                                                                           : MU_COMPLETION_REFUSED_MS);
    if (f->away_ms != UINT64_MAX)
        silent_ms = f->away_ms + MU_COMPLETION_SILENT_MS;
    return mu_sooner_ms(refused_ms, silent_ms);
}

static void end_away(struct mu_completion *f)
{
    bool refused = f->gone_ms != UINT64_MAX;

    if (is_closing(f)) {
        mu_completion_end_written(f);
        return;
    }
    (void)snprintf(f->text, sizeof f->text,
                   "the workers of this node have succeeded, and the store has %s for %" PRIu64
                   " s: ending without waiting for the other nodes",
                   refused ? "refused connections" : "not answered",
                   (f->now_ms - (refused ? f->gone_ms : f->away_ms)) / 1000);
    mu_completion_end_as(f, MU_COMPLETION_END_AWAY);
}

static void look_again(struct mu_completion *f)
{
    if (!mu_completion_is_tracked(f)) { /* there are no marks: is the store there? */
        f->scan_ms = f->now_ms + MU_COMPLETION_PROBE_MS;
        mu_completion_probe(f);
        return;
    }
    if (f->down)
        mu_completion_probe(f);
    if (f->state == MU_COMPLETION_WAITING && mu_completion_has_marks(f))
        mu_completion_set_mark(f);
    mu_completion_sweep(f);
}

static void pass_time(struct mu_completion *f)
{
    if (f->now_ms >= away_until_ms(f)) {
        end_away(f);
    } else if (f->now_ms >= f->removed_by_ms) {
        mu_completion_look_again_at_round(f);
    } else if (f->now_ms >= f->fin_ms) {
        mu_completion_be_last(f);
    } else if (f->now_ms >= f->deadline_ms && f->state == MU_COMPLETION_ACCOUNTING) {
        mu_completion_fail(f);
    } else if (f->now_ms >= f->deadline_ms && mu_completion_is_done(f)) {
        (void)snprintf(f->text, sizeof f->text,
                       "this node's workers have succeeded; the other nodes were not done in time");
        mu_completion_end_as(f, MU_COMPLETION_END_TIMEOUT);
    } else if (f->now_ms >= f->deadline_ms) {
        mu_completion_end_late(f);
    } else if (f->now_ms >= f->close_again_ms) {
        mu_completion_close_again(f);
    } else if (f->now_ms >= f->look_again_ms || f->now_ms >= f->scan_ms) {
        look_again(f);
    }
}

/* The answer is final: an error here is one that asking again does not mend. */
static void answered(struct mu_completion *f, const struct mu_completion_event *event)
{
    const struct mu_answer *answer = &event->answer;
    const struct mu_ask_slot *asked = mu_asks_find(&f->asks, answer->id);
    struct mu_ask_slot slot;

    if (asked == NULL)
        return;
    note_host(f, &asked->ask, answer);
    if (answer->error != NULL && answer->error->code != MUSTER_ETIMEOUT && asked->ask.kind == MU_ASK_GET)
        mu_completion_doubt(f);
    if (f->away_ms != UINT64_MAX)
        mu_completion_probe(f);
    if (!mu_asks_answer(&f->asks, answer, f->now_ms, &slot))
        return;
    switch ((enum what)slot.what) {
    case MARK_SET:
        if (f->state == MU_COMPLETION_MARKING && mu_completion_is_old(f))
            mu_completion_begin_waiting(f, false);
        break;
    case DONE_ADD:
        if (mu_completion_is_private(f))
            mu_completion_counted(f, answer);
        break;
    case MEMBERS_ADD:
        mu_completion_counted(f, answer);
        break;
    case LAST_GET:
        if (answer->error == NULL && mu_completion_is_private(f) &&
            !mu_slice_equal(answer->value, mu_slice_str(ALL_DONE))) {
            if (!mu_slice_equal(answer->value, mu_slice_str(LOOK_AGAIN)))
                mu_completion_warn_foreign(f, "the end of the round", slot.key, answer->value, "ignoring it");
            mu_completion_doubt(f); /* the marks decide */
        } else if (answer->error == NULL)
            mu_completion_end_all_done(f);
        else
            mu_completion_end_over(f, "this node's workers have succeeded; the exit barrier is broken");
        break;
    case BUDGET_LOOK:
    case BUDGET_AGAIN:
        mu_completion_take_budget(f, &slot, answer);
        break;
    case RIVAL_LOOK:
        mu_completion_take_rival(f, answer);
        break;
    case VERDICT_AGAIN:
        mu_completion_take_verdict_again(f, answer);
        break;
    case VERDICT_SET:
        mu_completion_verdict_written(f, &slot, answer);
        break;
    case LAST_SET:
        mu_completion_end_written(f);
        break;
    case VERDICT_LOOK:
        mu_completion_take_verdict(f, &slot, answer);
        break;
    case CLOSED_COUNT:
        f->closed_count = answer->error == NULL ? answer->number : -1;
        break;
    case CHECK_MARK:
        mu_completion_marked(f, &slot, answer);
        break;
    case STOCK_COUNT:
        f->stock_count = answer->error == NULL ? answer->number : 0;
        break;
    case OUR_COUNT:
        f->our_count = answer->error == NULL ? answer->number : 0;
        break;
    case FAILED_GET:
        mu_completion_take_failed(f, &slot, answer);
        break;
    case FAILED_CLEAR:
        if (answer->error == NULL)
            mu_completion_listen(f);
        break;
    case HEARD_GET:
    case HEARD_CHECK:
        mu_completion_take_heard(f, &slot, answer);
        break;
    case NOTE_LOOK:
        mu_completion_take_note(f, &slot, answer);
        break;
    case PROBE:
        if (f->down && f->state == MU_COMPLETION_WAITING && f->scan_ms > f->now_ms + MU_COMPLETION_PROBE_MS)
            f->scan_ms = f->now_ms + MU_COMPLETION_PROBE_MS; /* it answers us, and not the rendezvous: look again */
        break;
    case NOTE_SET:
    case LOOK_SET:
    case HEARD_SET:
    case FAILED_SET:
    case BARRIER_113:
    case FIN_SET:
    case FIN_113:
        break;
    }
}

static void take(struct mu_completion *f, const struct mu_completion_event *event)
{
    bool of_this = event->round < 0 || event->round == f->start.round;

    switch (event->type) {
    case MU_COMPLETION_ON_START:
        start_round(f, event->start);
        break;
    case MU_COMPLETION_ON_STOP:
        mu_completion_end_listening(f);
        break;
    case MU_COMPLETION_ON_LISTEN:
        mu_completion_listen(f);
        break;
    case MU_COMPLETION_ON_WORKER_FAILED:
        mu_completion_tell_others(f, event);
        break;
    case MU_COMPLETION_ON_NOTE:
        mu_completion_write_note(f, event);
        break;
    case MU_COMPLETION_ON_WAITING:
        if (of_this)
            mu_completion_on_waiting(f, event);
        break;
    case MU_COMPLETION_ON_LOST:
        if (of_this)
            mu_completion_on_lost(f, event);
        break;
    case MU_COMPLETION_ON_REMOVED:
        f->removed = f->removed || of_this;
        if (of_this && mu_completion_is_done(f))
            mu_completion_end_over(f, GONE_ON);
        else if (of_this && f->removed_by_ms != UINT64_MAX)
            mu_completion_be_outdated(f);
        break;
    case MU_COMPLETION_ON_CLOSED:
        mu_completion_on_closed(f);
        break;
    case MU_COMPLETION_ON_CLOSE_FAILED:
        mu_completion_on_close_failed(f, event->error);
        break;
    case MU_COMPLETION_ON_BACKEND_DOWN:
        f->down = true;
        if (f->away_ms == UINT64_MAX)
            f->away_ms = f->now_ms > event->away_ms ? f->now_ms - event->away_ms : 0;
        mu_completion_probe(f);
        break;
    case MU_COMPLETION_ON_BACKEND_UP:
        f->down = false;
        f->away_ms = f->gone_ms = UINT64_MAX;
        if (f->removed_by_ms != UINT64_MAX || mu_asks_has(&f->asks, BUDGET_AGAIN) ||
            mu_asks_has(&f->asks, VERDICT_AGAIN))
            mu_completion_await_removal(f);
        mu_completion_doubt(f);
        mu_completion_close_again(f);
        break;
    case MU_COMPLETION_ON_DONE:
        mu_completion_on_done(f);
        break;
    case MU_COMPLETION_ON_FAIL:
        mu_completion_on_fail(f, event);
        break;
    case MU_COMPLETION_ON_ANSWER:
        answered(f, event);
        break;
    case MU_COMPLETION_ON_TIME:
        break;
    case MU_COMPLETION_ON_REPORTED:
        assert(false);
        break;
    }
}

void mu_completion_step(struct mu_completion *f, const struct mu_completion_event *event,
                        struct mu_completion_effects *out)
{
    struct mu_ask ask;

    assert(is_sound(f));
    out->count = 0;
    f->out = out;
    f->now_ms = event->now_ms;
    take(f, event);
    mu_completion_sweep_on(f);
    mu_completion_judge(f);
    mu_completion_judge_closed(f);
    mu_completion_barrier_113_on(f);
    pass_time(f);
    mu_completion_judge(f); /* a sweep that has nothing to ask is over at once */
    mu_completion_account(f);
    mu_completion_tell_waiting(f);
    while (mu_asks_emit(&f->asks, f->now_ms, f->deadline_ms, &ask))
        mu_completion_emit(f, MU_COMPLETION_DO_ASK)->ask = ask;
    assert(is_sound(f));
}

uint64_t mu_completion_deadline_ms(const struct mu_completion *f)
{
    return mu_sooner_ms(
        mu_sooner_ms(mu_sooner_ms(f->deadline_ms, away_until_ms(f)),
                     mu_sooner_ms(f->close_again_ms, mu_asks_due_ms(&f->asks))),
        mu_sooner_ms(mu_sooner_ms(f->fin_ms, f->removed_by_ms), mu_sooner_ms(f->look_again_ms, f->scan_ms)));
}

enum mu_completion_state mu_completion_state(const struct mu_completion *f)
{
    return f->state;
}

bool mu_completion_will(const struct mu_completion *f, char *key, size_t key_room,
                        char text[static MU_VANISHED_NOTE_MAX])
{
    int len;

    if (!mu_completion_is_missed(f) || f->noted)
        return false;
    len = snprintf(key, key_room, MU_ROUND_LEFT_KEY, f->own_prefix, f->start.rank);
    mu_vanished_write_note(text, MU_NOTE_LOST, MU_COMPLETION_KILLED);
    return len > 0 && (size_t)len < key_room;
}
