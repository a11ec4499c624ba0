/* What members tell each other about a round: that a worker failed, that they leave, and why. See completion.h. */
#include "agent/completion_parts.h"

/* ---- Notes of those who leave ---- */

/* Somebody may look for a note of ours. */
bool mu_completion_is_missed(const struct mu_completion *f)
{
    return f->state == MU_COMPLETION_WATCHING && mu_completion_has_marks(f) && f->start.world_size > 1;
}

void mu_completion_write_note(struct mu_completion *f, const struct mu_completion_event *event)
{
    char text[MU_VANISHED_NOTE_MAX];

    if (!mu_completion_is_missed(f))
        return;
    f->noted = true;
    f->leaves = event->note != MU_NOTE_AGAIN;
    if (event->note != MU_NOTE_LOST)
        mu_completion_say_heard(f);
    mu_vanished_write_note(text, event->note, event->text == NULL ? "" : event->text);
    mu_asks_drop_what(&f->asks, NOTE_SET);
    (void)mu_asks_put(&f->asks, MU_ASK_SET, NOTE_SET, -1, mu_slice_str(text), MU_ROUND_LEFT_KEY, f->own_prefix,
                      f->start.rank);
}

/* ---- Workers that fail ---- */

void mu_completion_listen(struct mu_completion *f)
{
    if ((f->state == MU_COMPLETION_WATCHING || mu_completion_is_done(f)) && mu_completion_is_private(f) &&
        f->start.world_size > 1 && !mu_asks_has(&f->asks, FAILED_GET))
        (void)mu_asks_add(&f->asks, MU_ASK_GET, FAILED_GET, -1, FAILED_KEY, f->own_prefix);
}

static void write_failed(struct mu_completion *f, struct mu_slice text)
{
    (void)mu_asks_put(&f->asks, MU_ASK_SET, FAILED_SET, -1, text, FAILED_KEY, f->own_prefix);
}

void mu_completion_tell_others(struct mu_completion *f, const struct mu_completion_event *event)
{
    const char *text = event->text == NULL ? "a worker has failed" : event->text;
    struct mu_verdict failure = { .round = f->start.round, .tag = f->start.tag, .rank = event->rank };
    int len;

    if (f->state != MU_COMPLETION_WATCHING || f->closed || f->said_failed)
        return;
    f->said_failed = true;
    mu_line_copy(failure.node, sizeof failure.node, mu_slice_str(f->host));
    mu_line_copy(failure.cause, sizeof failure.cause, mu_slice_str(text));
    len = mu_verdict_write(&failure, f->verdict_text);
    if (len > 0 && mu_completion_is_private(f) && f->start.world_size > 1)
        write_failed(f, mu_slice(f->verdict_text, (size_t)len));
    if (!f->noted)
        mu_completion_write_note(f, &(struct mu_completion_event){ .note = MU_NOTE_AGAIN, .text = text });
}

/* A wait that nobody ends would stay in the store, and on our connection to it, beside those of the next round. But
 * what ends it ends the others' waits, too, and they hear of no failure until they see us gone. A node that is done, or
 * leaves for good, sees no other round: its wait ends with its connection. */
void mu_completion_end_listening(struct mu_completion *f)
{
    char text[MU_VANISHED_NOTE_MAX];
    bool waits =
        f->state == MU_COMPLETION_WATCHING && mu_asks_has(&f->asks, FAILED_GET) && !f->said_failed && !f->leaves;

    mu_completion_be_idle(f, MU_COMPLETION_IDLE);
    if (!waits)
        return;
    mu_vanished_write_mark(text, MU_MARK_UNTOLD, f->start.rank, f->node);
    write_failed(f, mu_slice_str(text));
}

/* A member has ended its own wait, and with it ours: we see it gone soon. */
static bool is_untold(const struct mu_completion *f, struct mu_slice text)
{
    int64_t rank = 0;

    while (rank < f->start.world_size && !mu_vanished_is_mark(text, MU_MARK_UNTOLD, rank))
        rank++;
    return rank < f->start.world_size;
}

void mu_completion_take_failed(struct mu_completion *f, const struct mu_ask_slot *slot, const struct mu_answer *answer)
{
    struct mu_verdict failure;

    if (answer->error != NULL || is_untold(f, answer->value))
        return;
    if (!mu_verdict_read(answer->value, &failure) || failure.succeeded || failure.rank < 0 ||
        failure.round != f->start.round || failure.tag != f->start.tag) {
        mu_completion_warn_foreign(f, "the failure of a worker", slot->key, answer->value,
                                   f->cleared < CLEARED_MAX ? "deleting it" : "listening no more");
        if (f->cleared++ < CLEARED_MAX)
            (void)mu_asks_add(&f->asks, MU_ASK_DELETE, FAILED_CLEAR, -1, FAILED_KEY, f->own_prefix);
        return;
    }
    mu_completion_say_heard(f); /* also if we are done: we are there */
    if (f->state != MU_COMPLETION_WATCHING)
        return;
    (void)snprintf(f->text, sizeof f->text, "%s", failure.cause); /* names rank and host */
    mu_completion_emit(f, MU_COMPLETION_DO_PEER_FAILED)->text = f->text;
}

/* ---- Notes of those who have left ---- */

void mu_completion_read_notes(struct mu_completion *f)
{
    for (; f->sweeping && f->note_cursor < f->gone.count && mu_asks_free(&f->asks) > SPARE_SLOTS; f->note_cursor++) {
        const struct mu_vanished_member *member = &f->gone.members[f->note_cursor];

        if (!mu_completion_has_marks(f) || !member->ours || member->rank < 0 || member->note != MU_NOTE_NONE)
            continue;
        mu_asks_look(&f->asks, NOTE_LOOK, (int64_t)f->note_cursor, MU_ROUND_LEFT_KEY, f->own_prefix, member->rank)
            ->once = true;
    }
}

/* Those that were not there may be now. */
void mu_completion_read_notes_again(struct mu_completion *f)
{
    mu_asks_drop_what(&f->asks, NOTE_LOOK);
    f->note_cursor = 0;
}

void mu_completion_take_note(struct mu_completion *f, const struct mu_ask_slot *slot, const struct mu_answer *answer)
{
    struct mu_vanished_member *member = &f->gone.members[slot->index];

    mu_vanished_read_note(member, answer->error == NULL ? answer->value : mu_slice("", 0));
    if (member->note == MU_NOTE_NONE && mu_answer_is_there(answer))
        mu_completion_warn_foreign(f, "a note", slot->key, answer->value, "ignoring it");
}

bool mu_completion_are_notes_read(const struct mu_completion *f)
{
    return f->note_cursor == f->gone.count && !mu_asks_has(&f->asks, NOTE_LOOK);
}

/* ---- Nodes that want to join ---- */

/* Whether those who vanished were done is still being looked at. */
bool mu_completion_is_judging(const struct mu_completion *f)
{
    return f->sweeping || f->look_again_ms != UINT64_MAX;
}

void mu_completion_on_waiting(struct mu_completion *f, const struct mu_completion_event *event)
{
    if (f->state != MU_COMPLETION_WATCHING)
        return;
    f->waiting = event->rank;
    (void)snprintf(f->waiting_text, sizeof f->waiting_text, "%s", event->text == NULL ? "" : event->text);
}

void mu_completion_tell_waiting(struct mu_completion *f)
{
    struct mu_completion_effect *effect;

    if (f->waiting == 0 || mu_completion_is_judging(f))
        return;
    if (f->state == MU_COMPLETION_WATCHING && !f->told_lost) {
        effect = mu_completion_emit(f, MU_COMPLETION_DO_WAITING);
        effect->number = f->waiting;
        effect->text = f->waiting_text;
    }
    f->waiting = 0;
}
