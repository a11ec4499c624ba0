/* Is everybody there? Asked before a job that has no restart left is failed. See completion.h; the rule is in
 * settlement.h.
 *
 * A worker that fails because another node was lost must not fail the job, and the loss is noticed only seconds later.
 * So a member that hears of a failure, or leaves the round for any other reason, says that it is there: T heard/<rank>.
 * The one that is about to fail the job waits for all of them. With everybody's answer nobody was lost, and the verdict
 * is written at once. A member that has vanished without an answer was lost, unless it was done or has left a note:
 * that is the cause, LOST is told, and the job goes on. Without either, after the time in which a loss is noticed, the
 * verdict is written. */
#include "agent/completion_parts.h"

void mu_completion_say_heard(struct mu_completion *f)
{
    char text[MU_VANISHED_NOTE_MAX];

    if (f->said_heard || !mu_completion_is_private(f) || f->start.world_size == 1)
        return;
    f->said_heard = true;
    mu_vanished_write_mark(text, MU_MARK_HEARD, f->start.rank, f->node);
    (void)mu_asks_put(&f->asks, MU_ASK_SET, HEARD_SET, -1, mu_slice_str(text), HEARD, f->own_prefix, f->start.rank);
}

/* Anything else than a member's own mark is no answer: it counts as silent. */
void mu_completion_take_heard(struct mu_completion *f, const struct mu_ask_slot *slot, const struct mu_answer *answer)
{
    bool there = slot->what == HEARD_CHECK ? mu_answer_is_there(answer) : answer->error == NULL;

    if (there && mu_vanished_is_mark(answer->value, MU_MARK_HEARD, slot->index))
        mu_completion_set_bit(f->heard, slot->index);
    else if (there)
        mu_completion_warn_foreign(f, "a node's answer", slot->key, answer->value, "ignoring it");
}

void mu_completion_fail(struct mu_completion *f)
{
    (void)snprintf(f->text, sizeof f->text, "%s", f->failure);
    if (f->closed)
        mu_completion_end_as(f, MU_COMPLETION_END_FAILED);
    else
        mu_completion_give_verdict(f, MU_COMPLETION_END_FAILED, f->failure);
}

/* Keeps the window full. Those who have vanished are judged by their marks and notes. */
static void ask_on(struct mu_completion *f)
{
    for (; f->account_cursor < f->start.world_size && mu_asks_free(&f->asks) > BARRIER_SPARE_SLOTS;
         f->account_cursor++) {
        int64_t rank = f->account_cursor;

        if (rank != f->start.rank && !mu_completion_bit(f->vanished, rank))
            (void)mu_asks_add(&f->asks, MU_ASK_GET, HEARD_GET, rank, HEARD, f->own_prefix, rank);
    }
}

static bool is_complete(const struct mu_completion *f)
{
    for (int64_t rank = 0; rank < f->start.world_size; rank++) {
        if (rank != f->start.rank && !mu_completion_bit(f->heard, rank) && !mu_completion_bit(f->vanished, rank))
            return false;
    }
    return true;
}

void mu_completion_account(struct mu_completion *f)
{
    if (f->state != MU_COMPLETION_ACCOUNTING || f->told_lost)
        return;
    ask_on(f);
    if (!mu_completion_is_judging(f) && (is_complete(f) || f->closed || f->removed))
        mu_completion_fail(f);
}

void mu_completion_on_fail(struct mu_completion *f, const struct mu_completion_event *event)
{
    if (f->state != MU_COMPLETION_WATCHING)
        return;
    (void)snprintf(f->failure, sizeof f->failure, "%s", event->text == NULL ? "the workers have failed" : event->text);
    if (event->settled || !mu_completion_is_private(f) || f->vanished == NULL || f->start.world_size == 1) {
        mu_completion_fail(f);
        return;
    }
    mu_completion_enter(f, MU_COMPLETION_ACCOUNTING);
    f->deadline_ms = f->now_ms + f->loss_ms;
    f->account_cursor = 0;
    f->told_lost = false; /* what was told before may have been somebody who left */
    if (f->vanished_count > 0)
        mu_completion_sweep(f);
}
