/* Who is done: the marks, the counters, and PyTorch's barrier. See completion.h. */
#include "agent/completion_parts.h"

/* ---- Was this one done? ---- */

/* While the job is about to fail it matters alone that somebody was lost. */
static void tell_lost(struct mu_completion *f)
{
    const char *who = mu_completion_who(f);

    if (f->told_lost || (f->state == MU_COMPLETION_ACCOUNTING && f->gone.count > 0 && !mu_vanished_any_lost(&f->gone)))
        return;
    f->told_lost = true;
    (void)snprintf(f->text, sizeof f->text, "%s", who);
    mu_completion_emit(f, MU_COMPLETION_DO_LOST)->text = f->text;
}

static void note_lost(struct mu_completion *f)
{
    f->undone = true;
    if (f->state == MU_COMPLETION_WAITING) {
        mu_completion_end_behind(f);
    } else if (f->state == MU_COMPLETION_WATCHING && f->closed) {
        mu_completion_begin_judging_closed(f);
    } else if (f->state == MU_COMPLETION_WATCHING || f->state == MU_COMPLETION_ACCOUNTING) {
        tell_lost(f);
    }
}

static bool is_wanted(const struct mu_completion *f, int64_t rank)
{
    if (mu_completion_bit(f->marked, rank) || mu_completion_bit(f->foreign, rank))
        return false;
    return (f->full && !f->missing) || mu_completion_bit(f->vanished, rank);
}

void mu_completion_sweep_on(struct mu_completion *f)
{
    for (; f->sweeping && f->cursor < f->start.world_size && mu_asks_free(&f->asks) > SPARE_SLOTS; f->cursor++) {
        struct mu_ask_slot *slot;

        if (!is_wanted(f, f->cursor))
            continue;
        if (mu_completion_is_old(f))
            slot = mu_asks_add(&f->asks, MU_ASK_CHECK, CHECK_MARK, f->cursor, MARK_113, f->prefix, f->cursor);
        else
            slot = mu_asks_look(&f->asks, CHECK_MARK, f->cursor, MU_ROUND_DONE_KEY, f->own_prefix, f->cursor);
        slot->once = true; /* without an answer they are lost: so it is if the store's host is the one that went */
        if (f->state == MU_COMPLETION_ACCOUNTING)
            mu_asks_look(&f->asks, HEARD_CHECK, f->cursor, HEARD, f->own_prefix, f->cursor)->once = true;
    }
    mu_completion_read_notes(f);
}

void mu_completion_set_mark(struct mu_completion *f)
{
    char text[MU_VANISHED_NOTE_MAX];

    if (mu_asks_has(&f->asks, MARK_SET))
        return;
    mu_vanished_write_mark(text, MU_MARK_DONE, f->start.rank, f->node);
    (void)mu_asks_put(&f->asks, MU_ASK_SET, MARK_SET, -1, mu_slice_str(text), MU_ROUND_DONE_KEY, f->own_prefix,
                      f->start.rank);
}

static void set_mark_113(struct mu_completion *f)
{
    char text[32];
    int len = snprintf(text, sizeof text, "%" PRId64, f->start.rank);

    if (!mu_asks_has(&f->asks, MARK_SET))
        (void)mu_asks_put(&f->asks, MU_ASK_SET, MARK_SET, -1, mu_slice(text, (size_t)len), MARK_113, f->prefix,
                          f->start.rank);
}

static void set_fin_113(struct mu_completion *f)
{
    if (!mu_asks_has(&f->asks, FIN_SET))
        (void)mu_asks_put(&f->asks, MU_ASK_SET, FIN_SET, -1, mu_slice_str("FIN"), MARK_113 ".FIN", f->prefix,
                          f->start.rank);
}

void mu_completion_sweep(struct mu_completion *f)
{
    struct mu_ask_slot *slot;

    mu_asks_drop_what(&f->asks, CHECK_MARK);
    mu_asks_drop_what(&f->asks, HEARD_CHECK);
    mu_asks_drop_what(&f->asks, STOCK_COUNT);
    mu_asks_drop_what(&f->asks, OUR_COUNT);
    mu_completion_read_notes_again(f);
    f->sweeping = true;
    f->cursor = 0;
    f->look_again_ms = f->scan_ms = UINT64_MAX;
    f->full = f->state == MU_COMPLETION_WAITING && mu_completion_has_marks(f);
    f->missing = false;
    f->stock_count = f->our_count = 0;
    if (f->foreign_count > 0) { /* in this order: we may find too few of them done for a moment, but never too many */
        slot = mu_asks_add(&f->asks, MU_ASK_ADD, STOCK_COUNT, -1, MEMBERS, f->prefix);
        slot->once = true;
        slot = mu_asks_add(&f->asks, MU_ASK_ADD, OUR_COUNT, -1, COUNT, f->own_prefix);
        slot->once = true;
    }
    mu_completion_sweep_on(f);
}

/* We wait, and the store may have forgotten that we are done. */
void mu_completion_doubt(struct mu_completion *f)
{
    if (f->state != MU_COMPLETION_WAITING)
        return;
    f->uncounted = true;
    if (mu_completion_has_marks(f))
        mu_completion_set_mark(f);
    else if (mu_completion_is_old(f))
        set_mark_113(f);
    if (mu_completion_is_old(f) && f->fins)
        set_fin_113(f);
    if (mu_completion_has_marks(f) && !f->sweeping && f->scan_ms > f->now_ms + MU_COMPLETION_SCAN_MS)
        f->scan_ms = f->now_ms + MU_COMPLETION_SCAN_MS;
}

static bool is_sweep_through(const struct mu_completion *f)
{
    return f->sweeping && f->cursor >= f->start.world_size && !mu_asks_has(&f->asks, CHECK_MARK) &&
           !mu_asks_has(&f->asks, HEARD_CHECK) && !mu_asks_has(&f->asks, STOCK_COUNT) &&
           !mu_asks_has(&f->asks, OUR_COUNT) && mu_completion_are_notes_read(f);
}

static bool has_unmarked(const struct mu_completion *f)
{
    for (int64_t rank = 0; rank < f->start.world_size; rank++) {
        if (mu_completion_bit(f->vanished, rank) && !mu_completion_bit(f->foreign, rank) &&
            !mu_completion_bit(f->marked, rank))
            return true;
    }
    return false;
}

/* Somebody has overwritten or deleted a mark. The node whose mark it was is done, and waits for this key. */
static void ask_to_mark_again(struct mu_completion *f)
{
    if (!f->unmarked || !mu_completion_is_private(f))
        return;
    f->unmarked = false;
    (void)mu_asks_put(&f->asks, MU_ASK_SET, LOOK_SET, -1, mu_slice_str(LOOK_AGAIN), "%slast", f->own_prefix);
}

void mu_completion_judge(struct mu_completion *f)
{
    if (!is_sweep_through(f))
        return;
    f->sweeping = false;
    if (has_unmarked(f)) {
        note_lost(f);
    } else if (f->foreign_count > f->stock_count - f->our_count) {
        if (f->second_look)
            note_lost(f);
        else
            f->look_again_ms = f->now_ms + MU_COMPLETION_SECOND_LOOK_MS;
        f->second_look = true;
    } else if (f->full && f->marked_count + f->foreign_count == f->start.world_size) {
        mu_completion_be_last(f);
    } else if (f->full) {
        f->scan_ms = f->now_ms + (f->uncounted ? MU_COMPLETION_SCAN_MS : MU_COMPLETION_SCAN_SLOW_MS);
        ask_to_mark_again(f);
    }
}

void mu_completion_on_lost(struct mu_completion *f, const struct mu_completion_event *event)
{
    /* A store that is away cannot say who was done; and mostly it is its host that is lost. */
    bool watches = f->state == MU_COMPLETION_WATCHING || f->state == MU_COMPLETION_ACCOUNTING;
    bool unknown = f->vanished == NULL || !f->start.has_store || (f->down && watches);

    if ((!watches && !mu_completion_is_done(f)) || !mu_completion_is_tracked(f))
        return;
    mu_vanished_set_cause(&f->gone, event->text);
    for (size_t i = 0; i < event->lost_count; i++) {
        int64_t rank = event->lost[i].rank;

        if (event->lost[i].name[0] != '\0')
            mu_vanished_add(&f->gone, rank, event->lost[i].name, event->lost[i].ours, event->lost[i].waits);
        if (rank < 0 || rank >= f->start.world_size || f->vanished == NULL) {
            unknown = true;
        } else if (!mu_completion_bit(f->vanished, rank)) {
            mu_completion_set_bit(f->vanished, rank);
            f->vanished_count++;
            if (!event->lost[i].ours && !mu_completion_is_old(f)) {
                mu_completion_set_bit(f->foreign, rank);
                f->foreign_count++;
            }
        }
    }
    f->second_look = false;
    if (unknown)
        note_lost(f);
    else
        mu_completion_sweep(f);
}

/* ---- Done ---- */

void mu_completion_begin_waiting(struct mu_completion *f, bool look_now)
{
    mu_completion_enter(f, MU_COMPLETION_WAITING);
    f->deadline_ms = f->wait_until_ms;
    if (f->undone) {
        mu_completion_end_behind(f);
        return;
    }
    if (mu_completion_is_private(f))
        (void)mu_asks_add(&f->asks, MU_ASK_GET, LAST_GET, -1, "%slast", f->own_prefix);
    else if (!mu_completion_is_old(f))
        (void)mu_asks_add(&f->asks, MU_ASK_GET, LAST_GET, -1, LAST, f->prefix);
    if (mu_completion_has_marks(f))
        f->scan_ms = f->now_ms + (f->uncounted ? MU_COMPLETION_SCAN_MS : MU_COMPLETION_SCAN_SLOW_MS);
    else if (!mu_completion_is_tracked(f))
        f->scan_ms = f->now_ms + MU_COMPLETION_PROBE_MS;
    if (f->away_ms != UINT64_MAX)
        mu_completion_probe(f);
    if (look_now || (f->vanished_count > 0 && mu_completion_has_marks(f)))
        mu_completion_sweep(f);
}

/* The mark is sent before the counts, and on its heels: whoever is counted is marked. */
static void count_ourselves(struct mu_completion *f)
{
    struct mu_ask_slot *slot;

    if (mu_completion_has_marks(f)) {
        mu_completion_set_mark(f);
        slot = mu_asks_add(&f->asks, MU_ASK_ADD, DONE_ADD, -1, COUNT, f->own_prefix);
        slot->ask.number = 1;
        slot->once = true; /* twice would end the wait of the others too soon */
    }
    if (mu_completion_is_private(f))
        return;
    slot = mu_asks_add(&f->asks, MU_ASK_ADD, MEMBERS_ADD, -1, MEMBERS, f->prefix);
    slot->ask.number = 1;
    slot->once = true;
}

void mu_completion_on_done(struct mu_completion *f)
{
    uint64_t limit_ms = f->barrier_ms;

    if (f->state != MU_COMPLETION_WATCHING)
        return;
    if (f->removed) {
        mu_completion_end_over(f, GONE_ON);
        return;
    }
    if (limit_ms == UINT64_MAX && !mu_completion_is_tracked(f))
        limit_ms = MU_COMPLETION_BARRIER_MS;
    f->wait_until_ms = limit_ms == UINT64_MAX ? UINT64_MAX : f->now_ms + limit_ms;
    f->deadline_ms = limit_ms == UINT64_MAX ? UINT64_MAX : f->now_ms + (limit_ms < MARK_MS ? MARK_MS : limit_ms);
    f->gone_ms = UINT64_MAX; /* what a wait has met while the workers ran says nothing about now */
    if (f->away_ms != UINT64_MAX)
        f->away_ms = f->now_ms; /* it has as long as any other */
    mu_completion_enter(f, MU_COMPLETION_MARKING);
    if (f->vanished != NULL) {
        mu_completion_set_bit(f->marked, f->start.rank);
        f->marked_count++;
    }
    if (!f->start.has_store && f->start.world_size == 1)
        mu_completion_be_last(f);
    else if (!f->start.has_store)
        mu_completion_end_over(
            f, "this node's workers have succeeded; the back end has no store to wait for the other nodes");
    else if (mu_completion_is_old(f))
        set_mark_113(f);
    else
        count_ourselves(f);
}

/* 1.13: all marks, then all have seen them. */
void mu_completion_barrier_113_on(struct mu_completion *f)
{
    if (f->state != MU_COMPLETION_WAITING || !mu_completion_is_old(f))
        return;
    for (; f->barrier_cursor < f->start.world_size && mu_asks_free(&f->asks) > BARRIER_SPARE_SLOTS;
         f->barrier_cursor++) {
        if (f->barrier_cursor != f->start.rank && !f->fins)
            (void)mu_asks_add(&f->asks, MU_ASK_GET, BARRIER_113, f->barrier_cursor, MARK_113, f->prefix,
                              f->barrier_cursor);
        else if (f->barrier_cursor != f->start.rank && f->start.rank == 0)
            (void)mu_asks_add(&f->asks, MU_ASK_GET, FIN_113, f->barrier_cursor, MARK_113 ".FIN", f->prefix,
                              f->barrier_cursor);
    }
    if (f->barrier_cursor < f->start.world_size || mu_asks_has(&f->asks, BARRIER_113) ||
        mu_asks_has(&f->asks, FIN_113) || mu_asks_has(&f->asks, FIN_SET))
        return;
    if (f->fins) {
        mu_completion_be_last(f); /* everybody closes there; one of them does it first */
        return;
    }
    f->fins = true;
    f->fin_ms = f->now_ms + MU_COMPLETION_FIN_MS;
    f->barrier_cursor = 0;
    set_fin_113(f);
    mu_completion_barrier_113_on(f);
}

/* ---- Answers ---- */

void mu_completion_marked(struct mu_completion *f, const struct mu_ask_slot *slot, const struct mu_answer *answer)
{
    bool old = mu_completion_is_old(f); /* a key that is there is a mark */
    bool found =
        answer->error == NULL && (old ? answer->found : mu_vanished_is_mark(answer->value, MU_MARK_DONE, slot->index));

    if (!old && !found && mu_answer_is_there(answer)) {
        f->unmarked = true;
        mu_completion_warn_foreign(f, "a done mark", slot->key, answer->value, "ignoring it");
    }
    f->missing |= !found;
    if (found && !mu_completion_bit(f->marked, slot->index)) {
        mu_completion_set_bit(f->marked, slot->index);
        f->marked_count++;
    }
}

void mu_completion_counted(struct mu_completion *f, const struct mu_answer *answer)
{
    bool last = answer->error == NULL && answer->number >= f->start.world_size;

    if (answer->error != NULL) {
        f->uncounted = true;
        mu_completion_warn(f, "the exit barrier", answer->error);
    }
    if (last && !mu_completion_is_private(f)) {
        mu_completion_be_last(f);
        return;
    }
    f->uncounted |= last; /* if a mark is missing all the same */
    f->unmarked |= last;
    mu_completion_begin_waiting(f, last);
}
