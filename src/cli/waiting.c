/* A node's wait for a rendezvous. */
#include "cli/waiting.h"

#include <assert.h>
#include <inttypes.h>

uint64_t mu_waiting_next_ms(uint64_t waited_ms)
{
    static const uint64_t first[] = { 5000, 10000, 20000, 40000, 60000 };
    const uint64_t then = 60000;

    for (size_t i = 0; i < sizeof first / sizeof first[0]; i++)
        if (waited_ms < first[i])
            return first[i];
    return (waited_ms / then + 1) * then;
}

static void forget(struct mu_waiting *waiting)
{
    waiting->has_progress = waiting->note_told = false;
    waiting->changed_ms = UINT64_MAX;
    waiting->told_ms = 0;
    waiting->names.buf.len = waiting->note.buf.len = 0;
}

void mu_waiting_begin(struct mu_waiting *waiting, uint64_t now_ms)
{
    forget(waiting);
    waiting->state = MU_WAITING_ON;
    waiting->since_ms = now_ms;
}

void mu_waiting_end(struct mu_waiting *waiting)
{
    forget(waiting);
    waiting->state = MU_WAITING_OFF;
}

static bool differs(const struct mu_waiting *waiting, const struct muster_rdzv_progress *now)
{
    const struct muster_rdzv_progress *before = &waiting->progress;

    return !waiting->has_progress || now->joined != before->joined || now->waiting != before->waiting ||
           now->spares != before->spares || now->spare != before->spare ||
           (now->last_call_left_ms < 0) != (before->last_call_left_ms < 0);
}

/* A new note is worth a line, also where the first lines were told before it was known. */
static bool take_note(struct mu_waiting *waiting, const char *note)
{
    const char *before = waiting->note.buf.len > 0 ? waiting->note.buf.data : "";

    if (note == NULL)
        note = "";
    if (strcmp(note, before) == 0)
        return false;
    waiting->note.buf.len = 0;
    mu_text_add(&waiting->note, "%s%c", note, '\0');
    waiting->note_told = false;
    return note[0] != '\0';
}

/* Not all of a large group are in the event. */
static void add_names(struct mu_text *names, const struct muster_rdzv_event *event)
{
    size_t shown = event->nodes_count < MU_JOIN_NAMES_MAX ? event->nodes_count : MU_JOIN_NAMES_MAX;
    int64_t more = event->progress->joined > (int64_t)event->nodes_count ? event->progress->joined - (int64_t)shown
                                                                         : (int64_t)(event->nodes_count - shown);

    mu_text_add_nodes(names, event->nodes, shown);
    if (shown == MU_JOIN_NAMES_MAX && more > 0)
        mu_text_add(names, " and %" PRId64 " more", more);
}

static void take_progress(struct mu_waiting *waiting, const struct muster_rdzv_event *event, uint64_t now_ms)
{
    bool changed = differs(waiting, event->progress);

    waiting->progress = *event->progress;
    waiting->round = event->round;
    waiting->has_progress = true;
    waiting->progress_ms = now_ms;
    waiting->names.buf.len = 0;
    add_names(&waiting->names, event);
    mu_text_add(&waiting->names, "%c", '\0');
    changed |= take_note(waiting, event->note);
    if (changed && waiting->changed_ms == UINT64_MAX)
        waiting->changed_ms = now_ms;
}

void mu_waiting_take(struct mu_waiting *waiting, const struct muster_rdzv_event *event, uint64_t now_ms)
{
    if (waiting->state == MU_WAITING_OFF)
        return;
    if (event->type == MUSTER_RDZV_PROGRESS) {
        take_progress(waiting, event, now_ms);
    } else if (event->type == MUSTER_RDZV_BACKEND_DOWN) {
        if (waiting->state == MU_WAITING_ON)
            waiting->down_ms = now_ms;
        waiting->state = MU_WAITING_DOWN;
    } else if (event->type == MUSTER_RDZV_BACKEND_UP) {
        waiting->state = MU_WAITING_ON;
    }
}

static uint64_t scheduled_ms(const struct mu_waiting *waiting)
{
    return waiting->since_ms + mu_waiting_next_ms(waiting->told_ms);
}

uint64_t mu_waiting_due_ms(const struct mu_waiting *waiting)
{
    uint64_t due_ms = scheduled_ms(waiting);

    if (waiting->state == MU_WAITING_OFF)
        return UINT64_MAX;
    if (waiting->changed_ms != UINT64_MAX && waiting->changed_ms + MU_WAITING_CHANGE_MS < due_ms)
        due_ms = waiting->changed_ms + MU_WAITING_CHANGE_MS;
    return due_ms;
}

static struct mu_join_wait wait_of(const struct mu_waiting *waiting, uint64_t now_ms)
{
    return (struct mu_join_wait){
        .progress = waiting->has_progress ? &waiting->progress : NULL,
        .round = waiting->round,
        .names = waiting->names.buf.len > 0 ? waiting->names.buf.data : "",
        .waited_ms = (int64_t)(now_ms - waiting->since_ms),
        .progress_age_ms = (int64_t)(now_ms - waiting->progress_ms),
        .down_ms = waiting->state == MU_WAITING_DOWN ? (int64_t)(now_ms - waiting->down_ms) : -1,
    };
}

bool mu_waiting_tell(struct mu_waiting *waiting, const struct mu_join_about *about, uint64_t now_ms,
                     struct mu_text *out, bool *ret_scheduled)
{
    struct mu_join_wait wait = wait_of(waiting, now_ms);

    if (waiting->state == MU_WAITING_OFF || now_ms < mu_waiting_due_ms(waiting))
        return false;
    *ret_scheduled = now_ms >= scheduled_ms(waiting);
    if (*ret_scheduled)
        waiting->told_ms = now_ms - waiting->since_ms;
    waiting->changed_ms = UINT64_MAX;
    mu_join_text_status(out, about, &wait);
    if (waiting->note.buf.len > 1 && !waiting->note_told) {
        mu_text_add(out, "; %s", waiting->note.buf.data);
        waiting->note_told = *ret_scheduled; /* that line is the one that everybody sees */
    }
    assert(mu_waiting_due_ms(waiting) > now_ms);
    return true;
}

void mu_waiting_status(const struct mu_waiting *waiting, const struct mu_join_about *about, uint64_t now_ms,
                       struct mu_text *out)
{
    struct mu_join_wait wait = wait_of(waiting, now_ms);

    if (waiting->state == MU_WAITING_OFF)
        return;
    mu_join_text_status(out, about, &wait);
    if (waiting->note.buf.len > 1)
        mu_text_add(out, "; %s", waiting->note.buf.data);
}

void mu_waiting_done(struct mu_waiting *waiting)
{
    mu_text_done(&waiting->names);
    mu_text_done(&waiting->note);
}
