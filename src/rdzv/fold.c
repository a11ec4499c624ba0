/* See fold.h. After every event the whole state is looked at: observe() tells what it means for us, drive() makes the
 * requests that are missing. So no event has to think of what follows from it, and a request that failed is made again
 * because what it was for is still not so. At most one load of each scope, one lease, one write and one keep-alive are under
 * way. Whatever depends on time asks is_due(), which remembers the earliest moment for the next TIME. */
#include "rdzv/fold.h"

#include "rdzv/timeout_text.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct entry { /* of nodes/ */
    uint64_t id;
    uint64_t under; /* the lease in the key: several of one node differ in it */
    int64_t create;
    struct mu_fold_record record;
};

struct view {
    bool loaded;
    uint64_t load_id; /* 0: no load is under way */
};

enum written { RECORD, CROWN, CLOSED_MARK, RESTORED, WORLD, NEWS };

struct mu_fold {
    struct mu_rdzv_settings settings;
    struct mu_fold_record record; /* who we are; what we want is in `written` and wanted() */
    uint64_t id, lease_ms, job_lease_ms, first_ms;
    struct mu_rng rng;
    enum mu_fold_phase phase;
    uint64_t last_id, wake_ms;
    /* What is in etcd, as far as we know. */
    bool ever_heard;
    uint64_t first_until_ms;
    bool active; /* something was asked of us: job/ is looked at */
    struct view job, nodes;
    bool has_doc, has_news, has_folder, has_closed;
    struct mu_fold_world doc;
    struct mu_fold_news news;
    int64_t doc_mod, doc_lease, news_mod, news_lease, closed_lease;
    uint64_t folder;
    int64_t folder_create, folder_lease;
    uint64_t doc_since;         /* which one */
    uint64_t doc_since_ms;      /* when we first saw it */
    uint64_t news_since_ms;     /* when they came */
    struct muster_error broken; /* the document cannot be read; code 0: it can */
    struct entry **entries;     /* sorted by id, then by lease; the folder's only */
    size_t entries_count, entries_room;
    bool *gone; /* by rank of the document; the folder's. Who is gone once stays gone */
    /* Our own part. */
    uint64_t lease_take; /* the id of TAKE_LEASE; 0: there is none, and none is being taken */
    int64_t lease;       /* 0: not (yet) */
    bool lease_was_lost;
    bool record_written; /* under this lease; then this was it: */
    bool written_joining;
    uint64_t written_world;
    struct mu_fold_world world; /* MEMBER: ours */
    int64_t rank;
    bool *lost;
    uint64_t left[MU_FOLD_LEFT_MAX]; /* worlds that we were in, or could have been; the newest last */
    size_t left_count;
    uint64_t left_world; /* as our record says */
    uint64_t joined_ms, deadline_ms, close_deadline_ms;
    uint64_t drop_id; /* LEAVING */
    bool closing, looking, told_closed, told_waiting, was_folder, down;
    struct mu_fold_progress told;
    bool has_told;
    /* Who else waits, while we join. */
    struct mu_waiters crowd;
    uint64_t join_since_ms, look_at_ms; /* when the join was asked for; when we look around next */
    int64_t marked_lease;               /* under which our mark was put; 0: it was not */
    bool may_be_marked;
    /* Requests. */
    uint64_t write_id, grant_id, keep_id; /* 0: none is under way */
    enum written writing;
    uint64_t write_take;              /* under which of our leases */
    int64_t write_round, write_count; /* of a world */
    int64_t job_mod;                  /* the newest change of job/ that we have seen */
    int64_t awaited_mod;              /* what we wrote there and have not seen yet: until then nothing more is folded */
    uint64_t awaited_until_ms;
    uint64_t loads, write_loads;   /* how often job/ was read; and had been when the write was made */
    int64_t granted_job, dead_job; /* leases of the job: one that we took, one that is gone */
    int64_t write_job, keep_lease; /* that the write and the keep-alive under way are about */
    uint64_t retry_at_ms, retry_ms;
    uint64_t keep_at_ms;
    uint64_t crown_at_ms, restore_at_ms; /* UINT64_MAX: not empty, not missing */
    uint64_t grace_until_ms;
    uint64_t call_since_ms; /* the minimum is there; UINT64_MAX: it is not */
    int64_t call_folder; /* ... as we saw it in the folder's place of this revision: reading it again is no new call */
    uint64_t news_at_ms; /* not before this, if they bring only numbers */
    /* What effects point to. */
    struct mu_fold_write write;
    struct mu_buf value, mark, waiting;
    char key[MU_FOLD_KEY_MAX];
    struct muster_error error, away;
};

/* ---- Texts ---- */

const char *mu_fold_event_text(enum mu_fold_event_type type)
{
    switch (type) {
#define X(name, text)                                                                                                  \
    case MU_FOLD_ON_##name:                                                                                            \
        return text;
        MU_FOLD_EVENTS(X)
#undef X
    }
    return "?";
}

const char *mu_fold_effect_text(enum mu_fold_effect_type type)
{
    switch (type) {
#define X(name, text)                                                                                                  \
    case MU_FOLD_DO_##name:                                                                                            \
        return text;
        MU_FOLD_EFFECTS(X)
#undef X
    }
    return "?";
}

const char *mu_fold_tell_text(enum mu_fold_tell tell)
{
    switch (tell) {
#define X(name, text)                                                                                                  \
    case MU_FOLD_TELL_##name:                                                                                          \
        return text;
        MU_FOLD_TELLS(X)
#undef X
    }
    return "?";
}

const char *mu_fold_phase_text(enum mu_fold_phase phase)
{
    switch (phase) {
#define X(name, text)                                                                                                  \
    case MU_FOLD_##name:                                                                                               \
        return text;
        MU_FOLD_PHASES(X)
#undef X
    }
    return "?";
}

/* ---- Helpers ---- */

static struct mu_fold_effect *emit(struct mu_fold_effects *out, enum mu_fold_effect_type type)
{
    assert(out->count < MU_FOLD_EFFECTS_MAX);
    out->items[out->count] = (struct mu_fold_effect){ .type = type };
    return &out->items[out->count++];
}

static struct mu_fold_effect *tell(struct mu_fold_effects *out, enum mu_fold_tell what)
{
    struct mu_fold_effect *effect = emit(out, MU_FOLD_DO_TELL);

    effect->tell = what;
    return effect;
}

static uint64_t next_id(struct mu_fold *f)
{
    return ++f->last_id;
}

static bool is_due(struct mu_fold *f, uint64_t now_ms, uint64_t when_ms)
{
    if (now_ms >= when_ms)
        return true;
    if (when_ms < f->wake_ms)
        f->wake_ms = when_ms;
    return false;
}

static bool is_present(const struct mu_fold *f)
{
    return f->phase == MU_FOLD_JOINING || f->phase == MU_FOLD_MEMBER;
}

bool mu_fold_is_folder(const struct mu_fold *f)
{
    return f->job.loaded && f->has_folder && f->lease != 0 && f->folder == f->id && f->folder_lease == f->lease;
}

static bool was_left(const struct mu_fold *f, uint64_t world)
{
    for (size_t i = 0; i < f->left_count; i++)
        if (f->left[i] == world)
            return true;
    return false;
}

static void note_left(struct mu_fold *f, uint64_t world)
{
    f->left_world = world;
    if (was_left(f, world))
        return;
    if (f->left_count == MU_FOLD_LEFT_MAX)
        memmove(f->left, f->left + 1, --f->left_count * sizeof *f->left);
    f->left[f->left_count++] = world;
}

static void out_of_world(struct mu_fold *f)
{
    if (f->world.id != 0)
        note_left(f, f->world.id);
    mu_fold_world_done(&f->world);
    free(f->lost);
    f->lost = NULL;
    f->rank = -1;
    f->restore_at_ms = UINT64_MAX;
}

static void drop_lease(struct mu_fold *f, uint64_t id, struct mu_fold_effects *out)
{
    struct mu_fold_effect *effect;

    if (f->lease_take == 0)
        return;
    effect = emit(out, MU_FOLD_DO_DROP_LEASE);
    effect->id = id;
    effect->lease_take = f->lease_take;
    f->lease_take = 0;
    f->lease = 0;
    f->record_written = false;
    f->marked_lease = 0; /* the mark goes with it */
    f->may_be_marked = false;
}

static void become_idle(struct mu_fold *f, struct mu_fold_effects *out)
{
    out_of_world(f);
    drop_lease(f, 0, out);
    f->lease_was_lost = false;
    f->phase = MU_FOLD_IDLE;
}

static void tell_failed(struct mu_fold *f, enum mu_fold_event_type asked, struct mu_fold_effects *out)
{
    struct mu_fold_effect *effect = tell(out, MU_FOLD_TELL_FAILED);

    effect->asked = asked;
    effect->error = &f->error;
    if (asked == MU_FOLD_ON_CLOSE)
        f->closing = false;
    else
        become_idle(f, out);
}

static void back_off(struct mu_fold *f, uint64_t now_ms)
{
    uint64_t most_ms = f->lease_ms / 8 < MU_FOLD_RETRY_MAX_MS ? f->lease_ms / 8 : MU_FOLD_RETRY_MAX_MS;

    f->retry_ms = f->retry_ms == 0 ? MU_FOLD_RETRY_MS : f->retry_ms * 2;
    if (f->retry_ms > most_ms)
        f->retry_ms = most_ms;
    f->retry_at_ms = now_ms + mu_rng_jitter(&f->rng, f->retry_ms, 50);
}

static void is_heard(struct mu_fold *f, struct mu_fold_effects *out)
{
    f->ever_heard = true;
    f->retry_ms = 0;
    f->retry_at_ms = 0;
    if (!f->down)
        return;
    f->down = false;
    (void)tell(out, MU_FOLD_TELL_BACKEND_UP);
}

static void is_away(struct mu_fold *f, const struct muster_error *error, struct mu_fold_effects *out)
{
    if (error != NULL)
        f->away = *error;
    if (f->looking) {
        f->looking = false;
        tell(out, MU_FOLD_TELL_LOOKED)->error = &f->away;
    }
    if (f->down)
        return;
    f->down = true;
    tell(out, MU_FOLD_TELL_BACKEND_DOWN)->error = &f->away;
}

/* Read it all again before anything else is decided. */
static void distrust(struct view *view)
{
    view->loaded = false;
    view->load_id = 0;
}

/* ---- What we know of nodes/ ---- */

static size_t lower_bound(const struct mu_fold *f, uint64_t id, uint64_t under)
{
    size_t from = 0, to = f->entries_count;

    while (from < to) {
        size_t middle = from + (to - from) / 2;
        const struct entry *entry = f->entries[middle];

        if (entry->id < id || (entry->id == id && entry->under < under))
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

static void forget_entries(struct mu_fold *f)
{
    for (size_t i = 0; i < f->entries_count; i++)
        free(f->entries[i]);
    f->entries_count = 0;
}

/* "nodes/<id>/<lease>" */
static bool parse_key(struct mu_slice key, uint64_t *ret_id, uint64_t *ret_under)
{
    size_t head = sizeof "nodes/" - 1, id = MU_FOLD_ID_TEXT_MAX - 1;

    return key.len == head + id + 1 + id && memcmp(key.data, "nodes/", head) == 0 && key.data[head + id] == '/' &&
           mu_fold_id_parse(mu_slice(key.data + head, id), ret_id) &&
           mu_fold_id_parse(mu_slice(key.data + head + id + 1, id), ret_under);
}

static bool make_room(struct mu_fold *f)
{
    size_t room = f->entries_room == 0 ? 64 : f->entries_room * 2;
    struct entry **entries;

    if (f->entries_count < f->entries_room)
        return true;
    entries = realloc(f->entries, room * sizeof *entries);
    if (entries == NULL)
        return false;
    f->entries = entries;
    f->entries_room = room;
    return true;
}

/* False: no memory. What is no record of a node is skipped: nobody waits for whoever wrote it. */
static bool apply_node(struct mu_fold *f, const struct mu_fold_kv *kv)
{
    uint64_t id = 0, under = 0;
    struct mu_fold_record record;
    size_t at;
    bool there;
    int rc = 0;

    if (!parse_key(kv->key, &id, &under) || id == 0)
        return true;
    at = lower_bound(f, id, under);
    there = at < f->entries_count && f->entries[at]->id == id && f->entries[at]->under == under;
    if (!kv->deleted)
        rc = mu_fold_record_read(kv->value, &record, NULL);
    if (rc == MUSTER_ENOMEM)
        return false; /* it is there all the same */
    if (kv->deleted || rc < 0) {
        if (!there)
            return true;
        free(f->entries[at]);
        f->entries_count--;
        memmove(f->entries + at, f->entries + at + 1, (f->entries_count - at) * sizeof *f->entries);
        return true;
    }
    if (!there) {
        struct entry *entry;

        if (f->entries_count >= MU_FOLD_NODES_MAX)
            return true;
        entry = make_room(f) ? calloc(1, sizeof *entry) : NULL;
        if (entry == NULL)
            return false;
        memmove(f->entries + at + 1, f->entries + at, (f->entries_count - at) * sizeof *f->entries);
        f->entries[at] = entry;
        f->entries_count++;
    }
    *f->entries[at] = (struct entry){ .id = id, .under = under, .create = kv->create, .record = record };
    return true;
}

/* The newest of a node's records: those of older leases are still there for a while. *ret_next: the next node's. */
static const struct entry *newest(const struct mu_fold *f, size_t at, size_t *ret_next)
{
    const struct entry *best = f->entries[at];

    while (++at < f->entries_count && f->entries[at]->id == best->id)
        if (f->entries[at]->record.seq > best->record.seq)
            best = f->entries[at];
    *ret_next = at;
    return best;
}

static const struct entry *find_node(const struct mu_fold *f, uint64_t id)
{
    size_t at = lower_bound(f, id, 0), next;

    return at < f->entries_count && f->entries[at]->id == id ? newest(f, at, &next) : NULL;
}

/* ---- What we know of job/ ---- */

/* What the folder remembers of the members begins anew with what the news say. False: no memory. */
static bool renew_gone(struct mu_fold *f)
{
    bool *gone = calloc(f->doc.count + 1, sizeof *gone);

    if (gone == NULL)
        return false;
    free(f->gone);
    f->gone = gone;
    for (size_t i = 0; f->has_news && f->news.world == f->doc.id && i < f->news.gone_count; i++)
        if (f->news.gone[i] < f->doc.count)
            f->gone[f->news.gone[i]] = true;
    return true;
}

static bool apply_doc(struct mu_fold *f, const struct mu_fold_kv *kv, uint64_t now_ms)
{
    uint64_t before = f->has_doc ? f->doc.id : 0;
    int rc = 0;

    if (kv->mod != f->doc_mod || f->doc.id == 0 || !mu_slice_equal(kv->value, mu_buf_slice(&f->doc.bytes))) {
        f->broken = (struct muster_error){ 0 };
        rc = mu_fold_world_read(kv->value, &f->doc, &f->broken);
    }
    if (rc == MUSTER_ENOMEM)
        return false;
    f->has_doc = true;
    f->doc_mod = kv->mod;
    f->doc_lease = kv->lease;
    if (f->broken.code != 0 || f->doc.id == before)
        return true;
    if (f->doc.id != f->doc_since) {
        f->doc_since = f->doc.id;
        f->doc_since_ms = now_ms;
        f->call_since_ms = UINT64_MAX;
    }
    if (renew_gone(f))
        return true;
    mu_fold_world_done(&f->doc);
    f->has_doc = false;
    return false;
}

static void begin_grace(struct mu_fold *f, uint64_t now_ms)
{
    if (now_ms + f->lease_ms > f->grace_until_ms)
        f->grace_until_ms = now_ms + f->lease_ms;
}

static bool apply_news(struct mu_fold *f, const struct mu_fold_kv *kv, uint64_t now_ms)
{
    bool grace = f->has_news && f->news.grace, again = f->has_news && f->news_mod == kv->mod;
    int rc = mu_fold_news_read(kv->value, &f->news, NULL);

    if (rc == MUSTER_ENOMEM)
        return false;
    f->has_news = rc == 0; /* what is no news is overwritten by the next */
    f->news_mod = kv->mod;
    f->news_lease = kv->lease;
    if (!again)
        f->news_since_ms = now_ms;
    if (f->has_news && f->news.grace && !grace)
        begin_grace(f, now_ms);
    for (size_t i = 0; f->has_news && f->gone != NULL && f->news.world == f->doc.id && i < f->news.gone_count; i++)
        if (f->news.gone[i] < f->doc.count)
            f->gone[f->news.gone[i]] = true;
    return true;
}

static bool apply_folder(struct mu_fold *f, const struct mu_fold_kv *kv)
{
    int rc = mu_fold_mark_read(kv->value, &f->folder, NULL);

    if (rc == MUSTER_ENOMEM)
        return false;
    if (rc < 0)
        f->folder = 0; /* somebody's, who is not us; it goes with its lease */
    f->has_folder = true;
    f->folder_create = kv->create;
    f->folder_lease = kv->lease;
    return true;
}

/* Whoever holds it has time to put it back. */
static void doc_vanished(struct mu_fold *f, uint64_t now_ms)
{
    f->has_doc = false;
    f->broken = (struct muster_error){ 0 };
    begin_grace(f, now_ms);
}

static bool is_key(const struct mu_fold_kv *kv, const char *name)
{
    return mu_slice_equal(kv->key, mu_slice_str(name));
}

/* False: no memory. */
static bool apply_job(struct mu_fold *f, const struct mu_fold_kv *kv, uint64_t now_ms)
{
    if (kv->mod > f->job_mod)
        f->job_mod = kv->mod;
    if (is_key(kv, "job/doc")) {
        if (!kv->deleted)
            return apply_doc(f, kv, now_ms);
        doc_vanished(f, now_ms);
    } else if (is_key(kv, "job/news")) {
        if (!kv->deleted)
            return apply_news(f, kv, now_ms);
        f->has_news = false;
    } else if (is_key(kv, "job/folder")) {
        if (!kv->deleted)
            return apply_folder(f, kv);
        f->has_folder = false;
    } else if (is_key(kv, "job/closed")) {
        f->has_closed = !kv->deleted;
        f->closed_lease = kv->lease;
    }
    return true;
}

static void on_loaded(struct mu_fold *f, const struct mu_fold_event *event, struct mu_fold_effects *out)
{
    struct view *view = event->scope == MU_FOLD_JOB ? &f->job : &f->nodes;
    bool whole = true;

    if (event->id == 0 || event->id != view->load_id)
        return;
    view->load_id = 0;
    if (event->scope == MU_FOLD_JOB) {
        bool had_news = f->has_news, had_doc = f->has_doc;

        f->has_doc = f->has_folder = f->has_closed = f->has_news = false;
        f->job_mod = f->awaited_mod = 0;
        f->loads++;
        for (size_t i = 0; whole && i < event->count; i++) {
            if (is_key(&event->kvs[i], "job/news"))
                f->has_news = had_news; /* grace is a matter of whether it was there before */
            whole = apply_job(f, &event->kvs[i], event->now_ms);
        }
        if (had_doc && !f->has_doc && whole)
            doc_vanished(f, event->now_ms);
    } else {
        forget_entries(f);
        for (size_t i = 0; whole && i < event->count; i++)
            whole = apply_node(f, &event->kvs[i]);
    }
    if (whole) {
        view->loaded = true;
        is_heard(f, out);
    } else {
        back_off(f, event->now_ms);
    }
}

static void on_changed(struct mu_fold *f, const struct mu_fold_event *event, struct mu_fold_effects *out)
{
    struct view *view = event->scope == MU_FOLD_JOB ? &f->job : &f->nodes;
    bool whole = true;

    if (!view->loaded)
        return;
    for (size_t i = 0; whole && i < event->count; i++)
        whole =
            event->scope == MU_FOLD_JOB ? apply_job(f, &event->kvs[i], event->now_ms) : apply_node(f, &event->kvs[i]);
    if (whole) {
        is_heard(f, out);
        return;
    }
    distrust(view);
    back_off(f, event->now_ms);
}

/* ---- What it means for us ---- */

static bool is_gone(const struct mu_fold *f, int64_t rank)
{
    return f->has_news && f->news.world == f->doc.id && mu_fold_news_gone(&f->news, rank);
}

/* News may name ranks that the document does not have. */
static size_t members_left(const struct mu_fold *f)
{
    size_t gone = f->has_news && f->news.world == f->doc.id ? f->news.gone_count : 0;

    while (gone > 0 && f->news.gone[gone - 1] >= f->doc.count)
        gone--;
    return f->doc.count - gone;
}

/* A complete round that runs without us, and has no place for us. */
static bool is_spare(const struct mu_fold *f)
{
    return f->phase == MU_FOLD_JOINING && f->job.loaded && f->has_doc &&
           (int64_t)members_left(f) >= f->settings.nodes_max;
}

struct mu_fold_progress mu_fold_progress(const struct mu_fold *f)
{
    struct mu_fold_progress progress = { .round = f->has_doc ? f->doc.round : -1,
                                         .spare = is_spare(f),
                                         .last_call_until_ms = UINT64_MAX,
                                         .deadline_ms = f->deadline_ms };

    if (progress.spare)
        progress.deadline_ms = UINT64_MAX;
    if (f->has_news && f->news.world == (f->has_doc ? f->doc.id : 0)) {
        progress.joined = f->news.joined;
        progress.waiting = f->news.waiting;
        progress.spares = f->news.spares;
        progress.apart = f->news.apart;
        if (f->news.last_call_ms >= 0)
            progress.last_call_until_ms = f->news_since_ms + (uint64_t)f->news.last_call_ms;
    }
    return progress;
}

static void tell_progress(struct mu_fold *f, struct mu_fold_effects *out)
{
    struct mu_fold_progress now = mu_fold_progress(f);

    if (f->has_told && now.round == f->told.round && now.joined == f->told.joined && now.waiting == f->told.waiting &&
        now.spares == f->told.spares && now.apart == f->told.apart && now.spare == f->told.spare &&
        now.last_call_until_ms == f->told.last_call_until_ms)
        return;
    f->has_told = true;
    f->told = now;
    (void)tell(out, MU_FOLD_TELL_PROGRESS);
}

static void enter_world(struct mu_fold *f, int64_t rank, uint64_t now_ms, struct mu_fold_effects *out)
{
    bool *lost = calloc(f->doc.count, sizeof *lost);

    if (lost == NULL || mu_fold_world_copy(&f->doc, &f->world) < 0) {
        free(lost);
        (void)is_due(f, now_ms, now_ms + MU_FOLD_RETRY_MAX_MS); /* no memory: another time */
        return;
    }
    f->lost = lost;
    f->rank = rank;
    f->phase = MU_FOLD_MEMBER;
    f->joined_ms = now_ms;
    f->told_waiting = false;
    if (f->may_be_marked)
        (void)emit(out, MU_FOLD_DO_UNMARK);
    f->marked_lease = 0;
    f->may_be_marked = false;
    tell(out, MU_FOLD_TELL_JOINED)->round = f->world.round;
}

static void observe_joining(struct mu_fold *f, uint64_t now_ms, struct mu_fold_effects *out)
{
    int64_t rank = f->has_doc && f->broken.code == 0 ? mu_fold_world_rank(&f->doc, f->id) : -1;
    bool spare = is_spare(f);

    if (f->has_closed) {
        (void)mu_fail(&f->error, spare ? MUSTER_ERDZV_GRACEFUL_EXIT : MUSTER_ERDZV_CLOSED,
                      spare ? "the job was closed while this node was a spare" : "the job is closed");
        tell_failed(f, MU_FOLD_ON_JOIN, out);
        return;
    }
    if (f->has_doc && f->broken.code != 0) {
        f->error = f->broken;
        tell_failed(f, MU_FOLD_ON_JOIN, out);
        return;
    }
    if (rank >= 0 && !was_left(f, f->doc.id) && !is_gone(f, rank)) {
        enter_world(f, rank, now_ms, out);
        return;
    }
    if (rank >= 0)
        note_left(f, f->doc.id); /* our record will say so */
    if (spare)
        f->deadline_ms = now_ms + f->settings.join_ms;
    tell_progress(f, out);
}

static void observe_deadline(struct mu_fold *f, uint64_t now_ms, struct mu_fold_effects *out)
{
    struct mu_fold_progress seen;
    char text[MU_TIMEOUT_TEXT_MAX];

    if (f->phase != MU_FOLD_JOINING)
        return;
    if (!f->ever_heard && is_due(f, now_ms, f->first_until_ms) && f->down) {
        f->error = f->away;
        f->error.code = MUSTER_ERDZV_CONNECTION;
        (void)mu_wrap(&f->error, f->error.code, "etcd could not be used within %" PRIu64 " s", f->first_ms / 1000);
        tell_failed(f, MU_FOLD_ON_JOIN, out);
        return;
    }
    if (!is_due(f, now_ms, f->deadline_ms))
        return;
    seen = mu_fold_progress(f);
    if (f->down) {
        f->error = f->away;
        f->error.code = MUSTER_ERDZV_TIMEOUT;
        (void)mu_wrap(&f->error, f->error.code, "timed out after %" PRIu64 " s: etcd cannot be used",
                      f->settings.join_ms / 1000);
    } else if (!f->ever_heard) {
        (void)mu_fail(&f->error, MUSTER_ERDZV_TIMEOUT, "timed out after %" PRIu64 " s: etcd has not answered",
                      f->settings.join_ms / 1000);
    } else if (seen.apart > 0 && f->crowd.apart[0] == '\0') {
        (void)mu_fail(&f->error, MUSTER_ERDZV_TIMEOUT,
                      "timed out after %" PRIu64 " s: %" PRId64
                      " %s started with an --nnodes that does not go together "
                      "with that of the others; this node has --nnodes %" PRId64 ":%" PRId64,
                      f->settings.join_ms / 1000, seen.apart, seen.apart == 1 ? "node was" : "nodes were",
                      f->settings.nodes_min, f->settings.nodes_max);
    } else {
        struct mu_timeout_text came = { .waited_ms = f->settings.join_ms,
                                        .joined = seen.joined,
                                        .nodes_min = f->settings.nodes_min,
                                        .nodes_max = f->settings.nodes_max,
                                        .nodes = f->crowd.nodes,
                                        .nodes_count = f->crowd.count };
        char note[MU_WAITERS_NOTE_MAX];
        bool has_note = mu_waiters_note(&f->crowd, note) != NULL;

        if (f->crowd.count == MU_WAITERS_NAMES_MAX && seen.joined > MU_WAITERS_NAMES_MAX)
            came.nodes_count = (size_t)seen.joined; /* so many more are counted */
        (void)mu_fail(&f->error, MUSTER_ERDZV_TIMEOUT, "%s%s%s", mu_timeout_text_write(&came, text),
                      has_note ? "; " : "", note);
    }
    tell_failed(f, MU_FOLD_ON_JOIN, out);
}

static void tell_removed(struct mu_fold *f, struct mu_fold_effects *out)
{
    tell(out, MU_FOLD_TELL_REMOVED)->round = f->world.round;
    become_idle(f, out);
}

static void observe_member(struct mu_fold *f, uint64_t now_ms, struct mu_fold_effects *out)
{
    bool more = false;

    if (f->has_doc && f->broken.code != 0) {
        f->error = f->broken;
        tell_failed(f, MU_FOLD_ON_TIME, out);
        return;
    }
    if (f->has_doc && f->doc.id != f->world.id) {
        tell_removed(f, out);
        return;
    }
    if (!f->has_news || f->news.world != f->world.id)
        return;
    if (mu_fold_news_gone(&f->news, f->rank)) {
        tell_removed(f, out);
        return;
    }
    for (size_t i = 0; i < f->news.gone_count; i++) {
        if (f->news.gone[i] >= f->world.count || f->lost[f->news.gone[i]])
            continue;
        f->lost[f->news.gone[i]] = true;
        more = true;
    }
    if (more)
        tell(out, MU_FOLD_TELL_PEERS_LOST)->round = f->world.round;
    /* Not while etcd is away: workers would be stopped for a round that cannot come. */
    if (f->news.waiting > 0 && !f->told_waiting && !f->has_closed && !f->down &&
        is_due(f, now_ms, f->joined_ms + f->world.hold_ms)) {
        struct mu_fold_effect *effect = tell(out, MU_FOLD_TELL_WAITING);

        f->told_waiting = true;
        effect->round = f->world.round;
        effect->count = f->news.newcomers > 0 ? f->news.newcomers : f->news.waiting;
        effect->who = f->news.newcomers > 0 && f->news.who[0] != '\0' ? f->news.who : NULL;
    }
}

static void observe_closed(struct mu_fold *f, struct mu_fold_effects *out)
{
    if (!f->has_closed || (f->told_closed && !f->closing))
        return;
    f->told_closed = true;
    tell(out, MU_FOLD_TELL_CLOSED)->asked = f->closing ? MU_FOLD_ON_CLOSE : MU_FOLD_ON_TIME;
    f->closing = false;
}

static void observe(struct mu_fold *f, uint64_t now_ms, struct mu_fold_effects *out)
{
    if (f->job.loaded) {
        if (f->phase == MU_FOLD_JOINING)
            observe_joining(f, now_ms, out);
        if (f->phase == MU_FOLD_MEMBER) /* the world that we have just entered may be over */
            observe_member(f, now_ms, out);
        observe_closed(f, out);
    }
    observe_deadline(f, now_ms, out);
    if (f->closing && is_due(f, now_ms, f->close_deadline_ms)) {
        (void)mu_fail(&f->error, MUSTER_ERDZV_TIMEOUT, "the job could not be closed within %" PRIu64 " s",
                      f->settings.close_ms / 1000);
        tell_failed(f, MU_FOLD_ON_CLOSE, out);
    }
    if (f->looking && f->job.loaded && !f->down) {
        struct mu_fold_effect *effect = tell(out, MU_FOLD_TELL_LOOKED);

        f->looking = false;
        effect->closed = f->has_closed;
        effect->round = f->has_doc ? f->doc.round : f->has_folder || f->has_closed ? 0 : -1;
        effect->count = f->has_news ? f->news.waiting : 0;
    }
}

/* ---- Writing ---- */

static void compare(struct mu_fold *f, enum mu_fold_compare_kind kind, const char *key, int64_t revision)
{
    assert(f->write.compares_count < MU_FOLD_COMPARES_MAX);
    f->write.compares[f->write.compares_count++] = (struct mu_fold_compare){ kind, mu_slice_str(key), revision };
}

static void put(struct mu_fold *f, const char *key, const struct mu_buf *value, int64_t lease)
{
    assert(f->write.puts_count < MU_FOLD_PUTS_MAX);
    f->write.puts[f->write.puts_count++] = (struct mu_fold_put){ mu_slice_str(key), mu_buf_slice(value), lease };
}

static void compare_doc(struct mu_fold *f)
{
    if (f->has_doc)
        compare(f, MU_FOLD_MOD, "job/doc", f->doc_mod);
    else
        compare(f, MU_FOLD_ABSENT, "job/doc", 0);
}

static void send(struct mu_fold *f, enum written what, struct mu_fold_effects *out)
{
    struct mu_fold_effect *effect = emit(out, MU_FOLD_DO_WRITE);

    f->writing = what;
    f->write_id = next_id(f);
    f->write_take = f->lease_take;
    f->write_job = mu_fold_job_lease(f);
    f->write_loads = f->loads;
    effect->id = f->write_id;
    effect->write = &f->write;
}

/* Encodings that fail for want of memory are tried again later. */
static bool is_encoded(struct mu_fold *f, int rc, uint64_t now_ms)
{
    f->write = (struct mu_fold_write){ .compares_count = 0 };
    if (rc == 0)
        return true;
    back_off(f, now_ms);
    (void)is_due(f, now_ms, f->retry_at_ms);
    return false;
}

static bool wants_record(const struct mu_fold *f)
{
    if (!is_present(f) || f->lease == 0)
        return false;
    if (!f->record_written)
        return true;
    if (f->phase == MU_FOLD_MEMBER) /* whoever folds shall know that there is a world to be put back */
        return f->job.loaded && !f->has_doc && f->written_joining;
    return !f->written_joining || f->written_world != f->left_world;
}

/* The record, and with it the folder's place if that is empty. Each of the two ways puts the record. */
static void write_record(struct mu_fold *f, uint64_t now_ms, struct mu_fold_effects *out)
{
    char id[MU_FOLD_ID_TEXT_MAX], under[MU_FOLD_ID_TEXT_MAX];
    int rc;

    f->record.seq++;
    f->record.joining = f->phase == MU_FOLD_JOINING;
    f->record.world = f->record.joining ? f->left_world : f->world.id;
    rc = mu_fold_record_write(&f->record, &f->value);
    if (rc == 0)
        rc = mu_fold_mark_write(f->id, &f->mark);
    if (!is_encoded(f, rc, now_ms))
        return;
    (void)snprintf(f->key, sizeof f->key, "nodes/%s/%s", mu_fold_id_text(f->id, id),
                   mu_fold_id_text((uint64_t)f->lease, under));
    f->write.repeatable = true;
    put(f, f->key, &f->value, f->lease);
    if (!f->job.loaded || !f->has_folder) {
        compare(f, MU_FOLD_ABSENT, "job/folder", 0);
        put(f, "job/folder", &f->mark, f->lease);
        f->write.else_puts[0] = f->write.puts[0];
        f->write.else_count = 1;
    }
    f->written_joining = f->record.joining;
    f->written_world = f->record.world;
    send(f, RECORD, out);
}

static void write_crown(struct mu_fold *f, uint64_t now_ms, struct mu_fold_effects *out)
{
    if (!is_encoded(f, mu_fold_mark_write(f->id, &f->mark), now_ms))
        return;
    compare(f, MU_FOLD_ABSENT, "job/folder", 0);
    put(f, "job/folder", &f->mark, f->lease);
    send(f, CROWN, out);
}

int64_t mu_fold_job_lease(const struct mu_fold *f)
{
    int64_t leases[4] = { f->has_doc ? f->doc_lease : 0, f->has_news ? f->news_lease : 0,
                          f->has_closed ? f->closed_lease : 0, f->granted_job };

    for (size_t i = 0; i < 4; i++)
        if (leases[i] != 0 && leases[i] != f->dead_job)
            return leases[i];
    return 0;
}

/* 0: it is being taken. */
static int64_t need_job_lease(struct mu_fold *f, struct mu_fold_effects *out)
{
    int64_t lease = mu_fold_job_lease(f);

    if (lease == 0 && f->grant_id == 0) {
        f->grant_id = next_id(f);
        emit(out, MU_FOLD_DO_GRANT_JOB)->id = f->grant_id;
    }
    return lease;
}

static void write_closed(struct mu_fold *f, uint64_t now_ms, struct mu_fold_effects *out)
{
    int64_t lease = need_job_lease(f, out);

    if (lease == 0 || !is_encoded(f, mu_fold_mark_write(f->id, &f->mark), now_ms))
        return;
    compare(f, MU_FOLD_ABSENT, "job/closed", 0);
    put(f, "job/closed", &f->mark, lease);
    send(f, CLOSED_MARK, out);
}

static void write_restored(struct mu_fold *f, uint64_t now_ms, struct mu_fold_effects *out)
{
    struct mu_fold_news news = { .world = f->world.id, .last_call_ms = -1, .grace = true };
    int64_t lease = need_job_lease(f, out);
    int rc = MUSTER_ENOMEM;

    if (lease == 0)
        return;
    news.gone = calloc(f->world.count, sizeof *news.gone);
    if (news.gone != NULL) {
        for (size_t i = 0; i < f->world.count; i++)
            if (f->lost[i])
                news.gone[news.gone_count++] = (uint32_t)i;
        rc = mu_fold_news_write(&news, &f->value);
    }
    mu_fold_news_done(&news);
    if (!is_encoded(f, rc, now_ms))
        return;
    compare(f, MU_FOLD_ABSENT, "job/doc", 0);
    put(f, "job/doc", &f->world.bytes, lease);
    put(f, "job/news", &f->value, lease);
    send(f, RESTORED, out);
}

/* ---- Folding ---- */

struct candidate {
    const struct entry *entry;
    int64_t place; /* its rank of before; INT64_MAX: none */
    bool out, wants_more;
};

struct folded {
    size_t in;                    /* members who are in the document's world */
    size_t unknown;               /* of them, have no record: nobody knows their limits */
    struct candidate *candidates; /* who wants into the next, in the order of their claims */
    size_t count, out;            /* out: were left out */
    int64_t nodes_min, nodes_max; /* that suit all of them, and those who are in */
    size_t back;                  /* of them, were in the last world */
    size_t apart;                 /* of those left out, have limits that do not go together with the others' */
    size_t holders;               /* records of a world that is not there */
};

static int by_claim(const void *a, const void *b)
{
    const struct candidate *left = a, *right = b;

    if (left->place != right->place)
        return left->place < right->place ? -1 : 1;
    if (left->entry->create != right->entry->create)
        return left->entry->create < right->entry->create ? -1 : 1;
    return left->entry->id < right->entry->id ? -1 : left->entry->id > right->entry->id;
}

/* Who is in, by the records. In the time of grace a record that is missing does not count. */
static void judge_members(struct mu_fold *f, uint64_t now_ms, struct folded *folded)
{
    bool grace = !is_due(f, now_ms, f->grace_until_ms);

    for (size_t i = 0; f->has_doc && i < f->doc.count; i++) {
        const struct entry *entry = find_node(f, f->doc.members[i].id);

        if (entry == NULL)
            f->gone[i] |= !grace;
        else
            f->gone[i] |= entry->record.joining == (entry->record.world == f->doc.id);
        folded->in += !f->gone[i];
        folded->unknown += !f->gone[i] && entry == NULL;
    }
}

static void narrow(struct folded *folded, const struct mu_fold_record *record)
{
    if (record->nodes_min > folded->nodes_min)
        folded->nodes_min = record->nodes_min;
    if (record->nodes_max < folded->nodes_max)
        folded->nodes_max = record->nodes_max;
}

static bool goes_together(const struct folded *folded, const struct mu_fold_record *record)
{
    struct folded both = *folded;

    narrow(&both, record);
    return both.nodes_min <= both.nodes_max;
}

/* A newcomer that allows so few nodes that there is no place for itself does not narrow the others' limits. */
static bool has_place(const struct folded *folded, const struct mu_fold_record *record, size_t kept)
{
    return record->nodes_max >= folded->nodes_max || (int64_t)(folded->in + kept) < record->nodes_max;
}

/* In the order of their claims, the newcomers that go together with whoever is in or back, and with each other. How many
 * are candidates then. */
static size_t let_in(struct folded *folded, int64_t nodes_min, int64_t nodes_max)
{
    size_t kept = folded->back;

    folded->nodes_min = nodes_min;
    folded->nodes_max = nodes_max;
    for (size_t i = folded->back; i < folded->count; i++) {
        struct candidate *newcomer = &folded->candidates[i];
        const struct mu_fold_record *record = &newcomer->entry->record;

        newcomer->out = newcomer->wants_more || folded->unknown > 0 || !goes_together(folded, record) ||
                        !has_place(folded, record, kept);
        if (newcomer->out)
            continue;
        narrow(folded, record);
        kept++;
    }
    return kept;
}

/* Marks newcomers that were let in and want more than so many nodes. False: there are none. */
static bool mark_wanting(struct folded *folded, int64_t nodes)
{
    bool any = false;

    for (size_t i = folded->back; i < folded->count; i++) {
        struct candidate *newcomer = &folded->candidates[i];

        if (newcomer->out || newcomer->entry->record.nodes_min <= nodes)
            continue;
        newcomer->wants_more = any = true;
    }
    return any;
}

/* Nobody's limits may end a round that others have, or keep them from the next: whoever is in or back comes first, and a
 * newcomer is left out if its limits contradict theirs, or if it wants more nodes than there are. For the first round, and
 * when nobody else is there, it is waited for more. */
static void leave_out(const struct mu_fold *f, struct folded *folded)
{
    int64_t nodes_min = folded->nodes_min, nodes_max = folded->nodes_max;
    size_t kept = let_in(folded, nodes_min, nodes_max), count = 0;

    while (f->has_doc && mark_wanting(folded, (int64_t)(folded->in + kept)))
        kept = let_in(folded, nodes_min, nodes_max);
    if (folded->in + kept == 0) {
        for (size_t i = 0; i < folded->count; i++)
            folded->candidates[i].wants_more = false;
        (void)let_in(folded, nodes_min, nodes_max);
    }
    for (size_t i = 0; i < folded->count; i++) {
        if (!folded->candidates[i].out)
            folded->candidates[count++] = folded->candidates[i];
        else
            folded->apart += !goes_together(folded, &folded->candidates[i].entry->record);
    }
    folded->out = folded->count - count;
    folded->count = count;
}

static void find_candidates(struct mu_fold *f, struct folded *folded)
{
    for (size_t at = 0; at < f->entries_count;) {
        const struct entry *entry = newest(f, at, &at);
        int64_t rank = f->has_doc ? mu_fold_world_rank(&f->doc, entry->id) : -1;
        bool in = rank >= 0 && !f->gone[rank];

        folded->holders += !entry->record.joining;
        if (in || (rank >= 0 && entry->record.joining))
            narrow(folded, &entry->record);
        if (in || !entry->record.joining)
            continue;
        folded->back += rank >= 0;
        folded->candidates[folded->count++] =
            (struct candidate){ .entry = entry, .place = rank >= 0 ? rank : INT64_MAX };
    }
    qsort(folded->candidates, folded->count, sizeof *folded->candidates, by_claim);
    leave_out(f, folded);
}

/* Whether the next round is to begin now. */
static bool is_complete(struct mu_fold *f, const struct folded *folded, uint64_t now_ms)
{
    int64_t count = (int64_t)folded->count;

    bool awaits_doc = !f->has_doc && (folded->holders > 0 || !is_due(f, now_ms, f->grace_until_ms));

    if (f->has_closed || folded->in > 0 || awaits_doc || count < folded->nodes_min ||
        folded->nodes_min > folded->nodes_max) {
        f->call_since_ms = UINT64_MAX;
        return false;
    }
    if (f->call_since_ms == UINT64_MAX)
        f->call_since_ms = now_ms;
    if (count >= folded->nodes_max)
        return true;
    /* Nobody is in the last world any more: who is not back is gone. */
    if (f->has_doc && folded->back > 0 &&
        (folded->back == f->doc.count || is_due(f, now_ms, f->call_since_ms + f->settings.lost_node_wait_ms)))
        return true;
    return is_due(f, now_ms, f->call_since_ms + f->settings.last_call_ms);
}

static uint64_t next_hold_ms(const struct mu_fold *f, uint64_t now_ms)
{
    uint64_t longer = f->doc.hold_ms == 0 ? MU_FOLD_HOLD_MS : f->doc.hold_ms * 2;

    if (!f->has_doc || now_ms - f->doc_since_ms >= MU_FOLD_HOLD_ROUND_MS)
        return 0;
    return longer < MU_FOLD_HOLD_TOP_MS ? longer : MU_FOLD_HOLD_TOP_MS;
}

static int encode_world(struct mu_fold *f, const struct folded *folded, uint64_t now_ms)
{
    struct mu_fold_world world = { .round = f->has_doc ? f->doc.round + 1 : 0, .hold_ms = next_hold_ms(f, now_ms) };
    size_t count = folded->count < (size_t)folded->nodes_max ? folded->count : (size_t)folded->nodes_max;
    int rc;

    if (count > MU_FOLD_MEMBERS_MAX)
        count = MU_FOLD_MEMBERS_MAX;
    while (world.id == 0)
        world.id = mu_rng_next(&f->rng);
    world.members = calloc(count, sizeof *world.members);
    if (world.members == NULL)
        return MUSTER_ENOMEM;
    for (size_t i = 0; i < count; i++) { /* names stay the records' */
        const struct entry *entry = folded->candidates[i].entry;

        world.members[i] =
            (struct mu_fold_member){ entry->id,
                                     { mu_slice_str(entry->record.name), entry->record.pid, entry->record.local_id } };
    }
    world.count = count;
    rc = mu_fold_world_write(&world);
    free(world.members);
    if (rc < 0) {
        mu_buf_done(&world.bytes);
        return rc;
    }
    mu_buf_done(&f->value);
    f->value = world.bytes;
    f->write_round = world.round;
    f->write_count = (int64_t)count;
    return 0;
}

static void write_world(struct mu_fold *f, const struct folded *folded, uint64_t now_ms, struct mu_fold_effects *out)
{
    int64_t lease = need_job_lease(f, out);
    int rc;

    if (lease == 0)
        return;
    rc = encode_world(f, folded, now_ms);
    if (rc == MUSTER_ELIMIT && f->phase == MU_FOLD_JOINING) {
        (void)mu_fail(&f->error, MUSTER_ELIMIT, "the document of %zu nodes is larger than %u bytes", folded->count,
                      MU_FOLD_VALUE_MAX);
        tell_failed(f, MU_FOLD_ON_JOIN, out);
        return;
    }
    if (!is_encoded(f, rc, now_ms))
        return;
    compare(f, MU_FOLD_CREATE, "job/folder", f->folder_create);
    compare_doc(f);
    compare(f, MU_FOLD_ABSENT, "job/closed", 0);
    put(f, "job/doc", &f->value, lease);
    send(f, WORLD, out);
}

/* Without who is gone. */
static struct mu_fold_news make_news(const struct mu_fold *f, const struct folded *folded, uint64_t now_ms)
{
    bool full = (int64_t)folded->in >= folded->nodes_max;
    struct mu_fold_news news = { .world = f->has_doc ? f->doc.id : 0,
                                 .spares = (int64_t)folded->out,
                                 .apart = (int64_t)folded->apart,
                                 .last_call_ms = -1 };

    if (folded->in == 0)
        news.joined = (int64_t)folded->count;
    else if (full)
        news.spares += (int64_t)folded->count;
    else
        news.waiting = (int64_t)folded->count;
    for (size_t i = 0; news.waiting > 0 && i < folded->count; i++) {
        if (folded->candidates[i].place == INT64_MAX && news.newcomers++ == 0)
            (void)snprintf(news.who, sizeof news.who, "%s", folded->candidates[i].entry->record.name);
    }
    if (f->call_since_ms != UINT64_MAX) {
        uint64_t until_ms = f->call_since_ms + f->settings.last_call_ms;

        news.last_call_ms = until_ms > now_ms ? (int64_t)(until_ms - now_ms) : 0;
    }
    return news;
}

enum urgency { NOTHING, NUMBERS, URGENT };

static enum urgency compare_news(const struct mu_fold *f, const struct mu_fold_news *news)
{
    const struct mu_fold_news *old = &f->news;
    bool same = f->has_news && old->world == news->world;
    bool nothing = news->gone_count == 0 && news->waiting == 0 && news->spares == 0 && news->joined == 0;

    if (!same)
        return nothing ? NOTHING : news->gone_count > 0 || news->waiting > 0 ? URGENT : NUMBERS;
    if (old->gone_count != news->gone_count || (old->waiting > 0) != (news->waiting > 0))
        return URGENT;
    if (old->waiting != news->waiting || old->spares != news->spares || old->joined != news->joined ||
        old->apart != news->apart || old->grace != news->grace || (old->last_call_ms < 0) != (news->last_call_ms < 0))
        return NUMBERS;
    return NOTHING;
}

static void write_news(struct mu_fold *f, const struct folded *folded, uint64_t now_ms, struct mu_fold_effects *out)
{
    uint32_t *gone = calloc((f->has_doc ? f->doc.count : 0) + 1, sizeof *gone);
    struct mu_fold_news news;
    enum urgency urgency = NOTHING;
    int64_t lease = 0;
    int rc = MUSTER_ENOMEM;

    if (gone != NULL) {
        news = make_news(f, folded, now_ms);
        news.gone = gone;
        for (size_t i = 0; f->has_doc && i < f->doc.count; i++)
            if (f->gone[i])
                gone[news.gone_count++] = (uint32_t)i;
        if (f->has_news && f->news.grace && f->news.world == news.world)
            news.grace = now_ms < f->grace_until_ms;
        urgency = compare_news(f, &news);
        rc = mu_fold_news_write(&news, &f->value);
    }
    free(gone);
    if (rc == 0 && (urgency == NOTHING || (urgency == NUMBERS && !is_due(f, now_ms, f->news_at_ms))))
        return;
    lease = need_job_lease(f, out);
    if (lease == 0 || !is_encoded(f, rc, now_ms))
        return;
    compare(f, MU_FOLD_CREATE, "job/folder", f->folder_create);
    compare_doc(f);
    put(f, "job/news", &f->value, lease);
    f->news_at_ms = now_ms + MU_FOLD_NEWS_MS + MU_FOLD_NEWS_NODE_MS * folded->count;
    send(f, NEWS, out);
}

static void fold(struct mu_fold *f, uint64_t now_ms, struct mu_fold_effects *out)
{
    struct folded folded = { .nodes_min = 1, .nodes_max = INT64_MAX };

    if (f->has_doc && f->broken.code != 0)
        return;
    folded.candidates = calloc(f->entries_count + 1, sizeof *folded.candidates);
    if (folded.candidates == NULL) {
        (void)is_due(f, now_ms, now_ms + MU_FOLD_RETRY_MAX_MS);
        return;
    }
    judge_members(f, now_ms, &folded);
    find_candidates(f, &folded);
    if (is_complete(f, &folded, now_ms))
        write_world(f, &folded, now_ms, out);
    else
        write_news(f, &folded, now_ms, out);
    free(folded.candidates);
}

/* ---- Requests ---- */

static void load(struct mu_fold *f, struct view *view, enum mu_fold_scope scope, struct mu_fold_effects *out)
{
    struct mu_fold_effect *effect = emit(out, MU_FOLD_DO_LOAD);

    view->load_id = next_id(f);
    effect->id = view->load_id;
    effect->scope = scope;
}

/* Lower ranks first, so that not all do it. */
static uint64_t turn_ms(struct mu_fold *f, uint64_t step_ms)
{
    uint64_t wait_ms = f->phase == MU_FOLD_MEMBER ? (uint64_t)f->rank * step_ms + mu_rng_below(&f->rng, step_ms)
                                                  : mu_rng_below(&f->rng, MU_FOLD_CROWN_MAX_MS);

    return wait_ms < MU_FOLD_CROWN_MAX_MS ? wait_ms : MU_FOLD_CROWN_MAX_MS + mu_rng_below(&f->rng, step_ms);
}

/* An empty place, or a missing document: whose turn it is. */
static bool is_my_turn(struct mu_fold *f, bool wanted, uint64_t *at_ms, uint64_t step_ms, uint64_t now_ms)
{
    if (!wanted) {
        *at_ms = UINT64_MAX;
        return false;
    }
    if (*at_ms == UINT64_MAX)
        *at_ms = now_ms + turn_ms(f, step_ms);
    return is_due(f, now_ms, *at_ms);
}

static void write_something(struct mu_fold *f, uint64_t now_ms, struct mu_fold_effects *out)
{
    bool restores = f->phase == MU_FOLD_MEMBER && f->job.loaded && !f->has_doc && f->lease != 0;
    bool crowns = is_present(f) && f->job.loaded && !f->has_folder && f->lease != 0 && f->record_written;
    bool my_restore = is_my_turn(f, restores, &f->restore_at_ms, MU_FOLD_RESTORE_MS, now_ms);
    bool my_crown = is_my_turn(f, crowns, &f->crown_at_ms, MU_FOLD_CROWN_MS, now_ms);

    if (f->write_id != 0)
        return;
    if (wants_record(f)) {
        write_record(f, now_ms, out);
        return;
    }
    if (!f->job.loaded)
        return;
    if (f->job_mod < f->awaited_mod) {
        if (!is_due(f, now_ms, f->awaited_until_ms))
            return;
        distrust(&f->job); /* it must have come by now: what we watch is not what we wrote to */
        load(f, &f->job, MU_FOLD_JOB, out);
        return;
    }
    if (!f->has_closed && (f->closing || (f->told_closed && f->phase == MU_FOLD_MEMBER)))
        write_closed(f, now_ms, out);
    else if (my_restore)
        write_restored(f, now_ms, out);
    else if (my_crown)
        write_crown(f, now_ms, out);
    else if (mu_fold_is_folder(f) && f->nodes.loaded && !restores)
        fold(f, now_ms, out);
}

static void drive_folder(struct mu_fold *f, uint64_t now_ms, struct mu_fold_effects *out)
{
    bool folder = mu_fold_is_folder(f);
    int64_t lease = mu_fold_job_lease(f);

    if (folder && !f->was_folder) {
        if (f->doc.id != 0 && !renew_gone(f))
            return;
        if (f->folder_create != f->call_folder)
            f->call_since_ms = UINT64_MAX;
        f->call_folder = f->folder_create;
        f->keep_at_ms = now_ms;
        f->news_at_ms = 0;
        distrust(&f->nodes);
        (void)tell(out, MU_FOLD_TELL_FOLDER);
    } else if (!folder && f->was_folder) {
        distrust(&f->nodes);
        forget_entries(f);
        emit(out, MU_FOLD_DO_UNWATCH)->scope = MU_FOLD_NODES;
    }
    f->was_folder = folder;
    if (!folder || !is_due(f, now_ms, f->retry_at_ms))
        return;
    if (!f->nodes.loaded && f->nodes.load_id == 0)
        load(f, &f->nodes, MU_FOLD_NODES, out);
    if (lease != 0 && f->keep_id == 0 && is_due(f, now_ms, f->keep_at_ms)) {
        struct mu_fold_effect *effect = emit(out, MU_FOLD_DO_KEEP_JOB);

        f->keep_id = next_id(f);
        f->keep_lease = lease;
        effect->id = f->keep_id;
        effect->lease = lease;
    }
}

/* The folder's mark speaks for all who wait with it. */
static void look_around(struct mu_fold *f, uint64_t now_ms, struct mu_fold_effects *out)
{
    struct mu_fold_effect *effect;

    if (f->phase != MU_FOLD_JOINING || !f->job.loaded || is_spare(f) || !is_due(f, now_ms, f->look_at_ms))
        return;
    f->look_at_ms = f->join_since_ms + mu_waiters_next_ms(now_ms - f->join_since_ms, f->settings.join_ms);
    (void)is_due(f, now_ms, f->look_at_ms);
    effect = emit(out, MU_FOLD_DO_LOOK_AROUND);
    if (!mu_fold_is_folder(f) || f->lease == 0 || f->marked_lease == f->lease ||
        mu_fold_record_write(&f->record, &f->waiting) < 0)
        return;
    f->may_be_marked = true;
    effect->value = mu_buf_slice(&f->waiting);
    effect->lease = f->lease;
}

static void drive(struct mu_fold *f, uint64_t now_ms, struct mu_fold_effects *out)
{
    drive_folder(f, now_ms, out);
    look_around(f, now_ms, out);
    if (!f->active || !is_due(f, now_ms, f->retry_at_ms))
        return;
    if (!f->job.loaded && f->job.load_id == 0)
        load(f, &f->job, MU_FOLD_JOB, out);
    if (is_present(f) && f->lease_take == 0) {
        f->lease_take = next_id(f);
        emit(out, MU_FOLD_DO_TAKE_LEASE)->id = f->lease_take;
    }
    write_something(f, now_ms, out);
}

/* ---- Events ---- */

static void on_join(struct mu_fold *f, uint64_t now_ms)
{
    assert(f->phase == MU_FOLD_IDLE || f->phase == MU_FOLD_MEMBER);
    out_of_world(f);
    f->phase = MU_FOLD_JOINING;
    f->deadline_ms = now_ms + f->settings.join_ms;
    f->has_told = false;
    f->first_until_ms = now_ms + f->first_ms;
    f->crowd = (struct mu_waiters){ .count = 0 };
    f->join_since_ms = now_ms;
    f->look_at_ms = now_ms + mu_waiters_next_ms(0, f->settings.join_ms);
}

static void on_leave(struct mu_fold *f, struct mu_fold_effects *out)
{
    if (f->phase == MU_FOLD_LEAVING)
        return;
    out_of_world(f);
    f->lease_was_lost = false;
    if (f->lease_take == 0) {
        f->phase = MU_FOLD_IDLE;
        (void)tell(out, MU_FOLD_TELL_LEFT);
        return;
    }
    f->phase = MU_FOLD_LEAVING;
    f->drop_id = next_id(f);
    drop_lease(f, f->drop_id, out);
}

static void on_dropped(struct mu_fold *f, const struct mu_fold_event *event, struct mu_fold_effects *out)
{
    if (f->phase != MU_FOLD_LEAVING || event->id != f->drop_id)
        return;
    f->phase = MU_FOLD_IDLE;
    (void)tell(out, MU_FOLD_TELL_LEFT);
}

static void on_leased(struct mu_fold *f, const struct mu_fold_event *event, struct mu_fold_effects *out)
{
    if (event->id == 0 || event->id != f->lease_take)
        return;
    assert(event->lease != 0);
    f->lease = event->lease;
    f->record_written = false;
    if (f->lease_was_lost)
        begin_grace(f, event->now_ms);
    f->lease_was_lost = false;
    is_heard(f, out);
}

static void refused(struct mu_fold *f, const struct muster_error *error, struct mu_fold_effects *out)
{
    if (error != NULL)
        f->error = *error;
    if (f->closing)
        tell_failed(f, MU_FOLD_ON_CLOSE, out);
    if (f->phase == MU_FOLD_JOINING)
        tell_failed(f, MU_FOLD_ON_JOIN, out);
}

/* The join ends with it: that etcd is away would be another story. */
static bool ends_join(const struct mu_fold *f, const struct mu_fold_event *event)
{
    return event->final && f->phase == MU_FOLD_JOINING && !f->looking;
}

static void on_lease_lost(struct mu_fold *f, const struct mu_fold_event *event, struct mu_fold_effects *out)
{
    if (event->id == 0 || event->id != f->lease_take)
        return;
    if (f->lease != 0) { /* etcd was away, or has forgotten it, and then perhaps everything */
        f->lease_was_lost = true;
        distrust(&f->job);
    } else {
        back_off(f, event->now_ms);
        if (!ends_join(f, event))
            is_away(f, event->error, out);
    }
    f->lease_take = 0;
    f->lease = 0;
    f->record_written = false;
    if (event->final)
        refused(f, event->error, out);
}

static void on_wrote(struct mu_fold *f, const struct mu_fold_event *event, struct mu_fold_effects *out)
{
    if (event->id == 0 || event->id != f->write_id)
        return;
    f->write_id = 0;
    is_heard(f, out);
    if (f->writing == RECORD) {
        f->record_written = f->lease_take != 0 && f->lease_take == f->write_take;
        return;
    }
    if (f->writing == WORLD && event->held) {
        struct mu_fold_effect *effect = tell(out, MU_FOLD_TELL_COMPLETED);

        effect->round = f->write_round;
        effect->count = f->write_count;
    }
    if (event->held && f->job.loaded && f->write_loads == f->loads) {
        f->awaited_mod = event->revision;
        f->awaited_until_ms = event->now_ms + f->lease_ms;
    } else {
        distrust(&f->job);
    }
}

static void on_failed(struct mu_fold *f, const struct mu_fold_event *event, struct mu_fold_effects *out)
{
    if (event->id == 0)
        return;
    if (event->id == f->write_id) {
        bool ours = f->writing == RECORD || f->writing == CROWN;

        f->write_id = 0;
        if (ours && event->lease_gone && f->lease != 0 && f->write_take == f->lease_take)
            f->lease_was_lost = true;
        if ((f->writing == RECORD || f->lease_was_lost) && f->write_take == f->lease_take)
            drop_lease(f, 0, out); /* a record in doubt must not come back later */
        if (event->lease_gone && !ours) {
            f->dead_job = f->write_job;
            if (f->granted_job == f->write_job)
                f->granted_job = 0;
        }
        distrust(&f->job);
    } else if (event->id == f->grant_id) {
        f->grant_id = 0;
    } else if (event->id == f->keep_id) {
        f->keep_id = 0;
    } else if (event->id == f->job.load_id) {
        f->job.load_id = 0;
    } else if (event->id == f->nodes.load_id) {
        f->nodes.load_id = 0;
    } else {
        return;
    }
    back_off(f, event->now_ms);
    if (!event->lease_gone && !ends_join(f, event))
        is_away(f, event->error, out);
    if (event->final)
        refused(f, event->error, out);
}

static void on_granted(struct mu_fold *f, const struct mu_fold_event *event, struct mu_fold_effects *out)
{
    if (event->id == 0 || event->id != f->grant_id)
        return;
    f->grant_id = 0;
    f->granted_job = event->lease;
    f->keep_at_ms = event->now_ms + f->job_lease_ms / 3;
    is_heard(f, out);
}

static void on_kept(struct mu_fold *f, const struct mu_fold_event *event, struct mu_fold_effects *out)
{
    if (event->id == 0 || event->id != f->keep_id)
        return;
    f->keep_id = 0;
    is_heard(f, out);
    f->keep_at_ms = event->now_ms + f->job_lease_ms / 3;
    if (event->held)
        return;
    f->dead_job = f->keep_lease;
    if (f->granted_job == f->keep_lease)
        f->granted_job = 0;
    distrust(&f->job);
}

/* One thing that was read; false: it is none. */
static bool read_item(const struct mu_fold *f, const struct mu_fold_kv *kv, struct mu_waiters_item *ret_item)
{
    static const char waiting[] = "waiting/";
    uint64_t under = 0;

    ret_item->id = 0;
    if (kv->key.len > sizeof waiting - 1 && memcmp(kv->key.data, waiting, sizeof waiting - 1) == 0)
        ret_item->run_id = mu_slice(kv->key.data + sizeof waiting - 1, kv->key.len - (sizeof waiting - 1));
    else if (!parse_key(kv->key, &ret_item->id, &under) || ret_item->id == 0)
        return false;
    if (mu_fold_record_read(kv->value, &ret_item->record, NULL) < 0)
        return false;
    if (f->has_doc && ret_item->record.world != f->doc.id && mu_fold_world_rank(&f->doc, ret_item->id) >= 0)
        ret_item->record.joining = false; /* it has joined */
    return true;
}

static void on_crowd(struct mu_fold *f, const struct mu_fold_event *event)
{
    struct mu_waiters_item *items;
    size_t count = 0;

    if (event->held && event->lease == f->lease && f->may_be_marked)
        f->marked_lease = event->lease;
    if (f->phase != MU_FOLD_JOINING || event->count > MU_WAITERS_RECORDS_MAX + MU_WAITERS_MARKS_MAX)
        return;
    items = calloc(event->count + 1, sizeof *items);
    for (size_t i = 0; items != NULL && i < event->count; i++)
        count += read_item(f, &event->kvs[i], &items[count]);
    if (items != NULL && mu_waiters_see(&f->crowd, &f->record, items, count))
        f->has_told = false; /* that is told again */
    free(items);
}

static void on_trouble(struct mu_fold *f, const struct mu_fold_event *event, struct mu_fold_effects *out)
{
    if (event->error != NULL)
        is_away(f, event->error, out);
    else
        is_heard(f, out);
}

static void handle(struct mu_fold *f, const struct mu_fold_event *event, struct mu_fold_effects *out)
{
    switch (event->type) {
    case MU_FOLD_ON_JOIN:
        f->active = true;
        on_join(f, event->now_ms);
        break;
    case MU_FOLD_ON_LEAVE:
        on_leave(f, out);
        break;
    case MU_FOLD_ON_CLOSE:
        f->active = true;
        f->closing = true;
        f->close_deadline_ms = event->now_ms + f->settings.close_ms;
        break;
    case MU_FOLD_ON_LOOK:
        f->active = true;
        f->looking = true;
        if (f->down && f->job.loaded) /* no request is under way that would fail */
            is_away(f, NULL, out);
        break;
    case MU_FOLD_ON_LOADED:
        on_loaded(f, event, out);
        break;
    case MU_FOLD_ON_CHANGED:
        on_changed(f, event, out);
        break;
    case MU_FOLD_ON_STALE:
        distrust(event->scope == MU_FOLD_JOB ? &f->job : &f->nodes);
        break;
    case MU_FOLD_ON_TROUBLE:
        on_trouble(f, event, out);
        break;
    case MU_FOLD_ON_LEASED:
        on_leased(f, event, out);
        break;
    case MU_FOLD_ON_LEASE_LOST:
        on_lease_lost(f, event, out);
        break;
    case MU_FOLD_ON_DROPPED:
        on_dropped(f, event, out);
        break;
    case MU_FOLD_ON_WROTE:
        on_wrote(f, event, out);
        break;
    case MU_FOLD_ON_GRANTED:
        on_granted(f, event, out);
        break;
    case MU_FOLD_ON_KEPT:
        on_kept(f, event, out);
        break;
    case MU_FOLD_ON_CROWD:
        on_crowd(f, event);
        break;
    case MU_FOLD_ON_REQUEST_FAILED:
        on_failed(f, event, out);
        break;
    case MU_FOLD_ON_TIME:
        break;
    }
}

void mu_fold_step(struct mu_fold *f, const struct mu_fold_event *event, struct mu_fold_effects *out)
{
    out->count = 0;
    handle(f, event, out);
    f->wake_ms = UINT64_MAX;
    observe(f, event->now_ms, out);
    drive(f, event->now_ms, out);
    assert((f->phase == MU_FOLD_MEMBER) == (f->world.id != 0));
    assert(f->lease == 0 || f->lease_take != 0);
    assert(f->phase != MU_FOLD_IDLE || f->lease_take == 0);
}

uint64_t mu_fold_deadline_ms(const struct mu_fold *f)
{
    return f->wake_ms;
}

uint64_t mu_fold_first_until_ms(const struct mu_fold *f)
{
    return f->phase == MU_FOLD_JOINING && !f->ever_heard ? f->first_until_ms : UINT64_MAX;
}

/* ---- The rest ---- */

enum mu_fold_phase mu_fold_phase(const struct mu_fold *f)
{
    return f->phase;
}

const struct mu_fold_world *mu_fold_world(const struct mu_fold *f)
{
    return f->world.id != 0 ? &f->world : NULL;
}

const struct mu_fold_world *mu_fold_doc(const struct mu_fold *f)
{
    return f->has_doc && f->broken.code == 0 ? &f->doc : NULL;
}

int64_t mu_fold_doc_mod(const struct mu_fold *f)
{
    return f->has_doc ? f->doc_mod : 0;
}

int64_t mu_fold_rank(const struct mu_fold *f)
{
    return f->rank;
}

int64_t mu_fold_lease(const struct mu_fold *f)
{
    return f->lease;
}

const struct mu_waiters *mu_fold_crowd(const struct mu_fold *f)
{
    return &f->crowd;
}

bool mu_fold_is_lost(const struct mu_fold *f, size_t rank)
{
    return f->lost != NULL && rank < f->world.count && f->lost[rank];
}

int mu_fold_new(const struct mu_fold_config *config, struct mu_fold **ret_fold, struct muster_error *reterr)
{
    struct mu_fold *f;

    if (config->name[0] == '\0' || strlen(config->name) > MU_FOLD_NAME_MAX)
        return mu_fail(reterr, MUSTER_EINVAL, "the node's name of %zu bytes is not of 1 to %d", strlen(config->name),
                       MU_FOLD_NAME_MAX);
    assert(config->id != 0 && config->lease_ms > 0 && config->job_lease_ms > 0 && config->first_ms > 0);
    f = calloc(1, sizeof *f);
    if (f == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "a rendezvous");
    f->settings = config->settings;
    memcpy(f->record.name, config->name, strlen(config->name) + 1);
    f->record.pid = config->pid;
    f->record.local_id = config->local_id;
    f->record.nodes_min = config->settings.nodes_min;
    f->record.nodes_max = config->settings.nodes_max;
    f->id = config->id;
    f->lease_ms = config->lease_ms;
    f->job_lease_ms = config->job_lease_ms;
    f->first_ms = config->first_ms;
    f->rng = mu_rng_seeded(config->seed);
    f->rank = -1;
    f->wake_ms = UINT64_MAX;
    f->crown_at_ms = f->restore_at_ms = f->call_since_ms = UINT64_MAX;
    *ret_fold = f;
    return 0;
}

void mu_fold_free(struct mu_fold *f)
{
    if (f == NULL)
        return;
    forget_entries(f);
    free(f->entries);
    free(f->gone);
    free(f->lost);
    mu_fold_world_done(&f->doc);
    mu_fold_world_done(&f->world);
    mu_fold_news_done(&f->news);
    mu_buf_done(&f->value);
    mu_buf_done(&f->mark);
    mu_buf_done(&f->waiting);
    free(f);
}
