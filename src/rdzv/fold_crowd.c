/* One node of a rendezvous with a leader, see fold.h: who else waits, for messages. Nothing is decided by it. */
#include "rdzv/fold_parts.h"

#include "rdzv/timeout_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* One thing that was read; false: it is none. Who of those is in the document's world is known of a small one. */
static bool read_item(const struct mu_fold *f, const struct mu_fold_kv *kv, const struct mu_fold_members *members,
                      struct mu_waiters_item *ret_item)
{
    uint64_t under = 0;

    ret_item->id = 0;
    ret_item->run_id = kv->key;
    if (!mu_slice_skip(&ret_item->run_id, "waiting/") &&
        (!mu_leader_parse_key(kv->key, &ret_item->id, &under) || ret_item->id == 0))
        return false;
    if (mu_fold_record_read(kv->value, &ret_item->record, NULL) < 0)
        return false;
    if (mu_fold_has(f, JOB_DOC) && ret_item->id != 0 && ret_item->record.world != f->doc.id &&
        (members->world == 0 || mu_fold_members_rank(members, ret_item->id) >= 0))
        ret_item->record.joining = false; /* it has joined */
    return true;
}

static void read_members(const struct mu_fold *f, const struct mu_fold_event *event, struct mu_fold_members *members)
{
    size_t pages = 0;

    if (!mu_fold_has(f, JOB_DOC) || f->doc.nodes > MU_FOLD_PAGE_MEMBERS ||
        mu_fold_members_init(members, f->doc.id, (size_t)f->doc.nodes) < 0)
        return;
    if (mu_fold_read_pages(event, members, &pages) < 0 || pages == 0 || !mu_fold_members_sort(members))
        mu_fold_members_done(members);
}

void mu_fold_on_crowd(struct mu_fold *f, const struct mu_fold_event *event)
{
    struct mu_fold_members members = { .world = 0 };
    struct mu_waiters_item *items;
    size_t count = 0;

    if (!mu_fold_is_answer(event, &f->look_id) || event->error != NULL)
        return; /* for people only: what cannot be read is not told */
    if (event->held && event->lease == f->lease && f->may_be_marked)
        f->marked_lease = event->lease;
    if (f->phase != MU_FOLD_JOINING || event->count > MU_WAITERS_RECORDS_MAX + MU_WAITERS_MARKS_MAX + 1)
        return;
    read_members(f, event, &members);
    items = calloc(event->count + 1, sizeof *items);
    for (size_t i = 0; items != NULL && i < event->count; i++)
        count += read_item(f, &event->kvs[i], &members, &items[count]);
    if (items != NULL && mu_waiters_see(&f->crowd, &f->record, items, count))
        f->has_told = false; /* that is told again */
    free(items);
    mu_fold_members_done(&members);
}

const struct mu_waiters *mu_fold_crowd(const struct mu_fold *f)
{
    return &f->crowd;
}

const char *mu_fold_apart_text(const struct mu_fold *f, int64_t apart, char text[static MU_WAITERS_NOTE_MAX])
{
    (void)snprintf(text, MU_WAITERS_NOTE_MAX,
                   "%" PRId64 " %s started with an --nnodes that does not go together with that of the others; this "
                   "node has --nnodes %" PRId64 ":%" PRId64,
                   apart, apart == 1 ? "node was" : "nodes were", f->settings.nodes_min, f->settings.nodes_max);
    return text;
}

const char *mu_fold_note(const struct mu_fold *f, char note[static MU_WAITERS_NOTE_MAX])
{
    int64_t apart = mu_fold_progress(f).apart;
    const char *named = mu_waiters_note(&f->crowd, note);

    /* Whose they are is not known yet, or too many have come. */
    if (named == NULL && apart > 0)
        return mu_fold_apart_text(f, apart, note);
    if (named != NULL || !mu_fold_has_news(f))
        return named;
    if (f->news.pause_ms > 0) {
        (void)snprintf(note, MU_WAITERS_NOTE_MAX,
                       "the last rounds failed within %d s of their start; the next one begins in %" PRId64 " s",
                       MU_SLOWDOWN_CRASH_MS / 1000, (f->news.pause_ms + 999) / 1000);
        return note;
    }
    if (f->news.held[0] == '\0') {
        if (!f->news.over || f->news.missing == 0)
            return NULL;
        (void)snprintf(note, MU_WAITERS_NOTE_MAX, "the last round has ended: %s", f->news.cause); /* who is awaited */
        return note;
    }
    (void)snprintf(note, MU_WAITERS_NOTE_MAX,
                   "%s has come and gone several times, each time within %d s; it is let in again in %" PRId64 " s",
                   f->news.held, MU_SLOWDOWN_FLAP_MS / 1000, (f->news.held_ms + 999) / 1000);
    return note;
}

/* Why a join has taken too long, into f->error. */
void mu_fold_say_timeout(struct mu_fold *f)
{
    struct mu_part_progress seen = mu_fold_progress(f);
    char text[MU_TIMEOUT_TEXT_MAX], note[MU_WAITERS_NOTE_MAX];

    if (f->away != AWAY_NOT) {
        f->error = f->why_away;
        f->error.code = MUSTER_ERDZV_TIMEOUT;
        (void)mu_wrap(&f->error, f->error.code, "timed out after %" PRIu64 " s: %s cannot be used",
                      f->settings.join_ms / 1000, f->service);
    } else if (!f->ever_heard) {
        (void)mu_fail(&f->error, MUSTER_ERDZV_TIMEOUT, "timed out after %" PRIu64 " s: %s has not answered",
                      f->settings.join_ms / 1000, f->service);
    } else if (seen.apart > 0 && f->crowd.apart[0] == '\0') {
        (void)mu_fail(&f->error, MUSTER_ERDZV_TIMEOUT, "timed out after %" PRIu64 " s: %s", f->settings.join_ms / 1000,
                      mu_fold_apart_text(f, seen.apart, note));
    } else {
        struct mu_timeout_text came = { .waited_ms = f->settings.join_ms,
                                        .joined = seen.joined,
                                        .nodes_min = f->settings.nodes_min,
                                        .nodes_max = f->settings.nodes_max,
                                        .nodes = f->crowd.nodes,
                                        .nodes_count = f->crowd.count };
        bool has_note = mu_waiters_note(&f->crowd, note) != NULL;

        if (f->crowd.count == MU_WAITERS_NAMES_MAX && seen.joined > MU_WAITERS_NAMES_MAX)
            came.nodes_count = (size_t)seen.joined; /* so many more are counted */
        (void)mu_fail(&f->error, MUSTER_ERDZV_TIMEOUT, "%s%s%s", mu_timeout_text_write(&came, text),
                      has_note ? "; " : "", note);
    }
}
