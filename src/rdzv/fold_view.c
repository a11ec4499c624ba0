/* One node of an etcd-v3 rendezvous, see fold.h: what is in etcd below job/, as far as we know. */
#include "rdzv/fold_parts.h"

#include "base/words.h"

enum { VALUE_ROOM = 36, KEY_ROOM = 200 }; /* for the start of what a stranger wrote, and a NUL */

const char *const mu_fold_key_names[JOB_KEYS] = { "job/doc",    "job/news",  "job/folder",
                                                  "job/closed", "job/stock", "job/moved" };

bool mu_fold_has(const struct mu_fold *f, enum job_key key)
{
    return f->seen[key].value == KEY_OURS;
}

bool mu_fold_has_news(const struct mu_fold *f)
{
    return mu_fold_has(f, JOB_NEWS) && f->news.world == (mu_fold_has(f, JOB_DOC) ? f->doc.id : 0);
}

/* Told once, when the events have been taken in. */
void mu_fold_see_foreign(struct mu_fold *f, const struct mu_fold_kv *kv, const char *then)
{
    char value[VALUE_ROOM], key[KEY_ROOM];

    if (f->foreign.code == 0)
        (void)mu_fail(&f->foreign, MUSTER_ERDZV_STATE, "somebody wrote %zu bytes ('%s') to %s; %s", kv->value.len,
                      mu_words_plain(kv->value, value, sizeof value), mu_words_plain(kv->key, key, sizeof key), then);
}

/* Whatever version wrote it, it has a lease. */
static bool is_other_version(const struct mu_fold_kv *kv)
{
    return kv->lease != 0 && mu_fold_is_other_version(kv->value);
}

/* What a read of the value (0 or below) makes of it. */
static void set_seen(struct mu_fold *f, enum job_key key, int rc, const struct mu_fold_kv *kv)
{
    static const char *const then[JOB_KEYS] = {
        "the leader puts the document back", "the leader writes it anew", "a new leader is found", "the job stays open",
        "nobody waits for a document",       "the job stays where it is"
    };
    struct key_seen *seen = &f->seen[key];

    if (rc < 0 && is_other_version(kv))
        seen->value = KEY_OTHER;
    else
        seen->value = rc < 0 ? KEY_FOREIGN : KEY_OURS;
    if (seen->value == KEY_FOREIGN && seen->mod != kv->mod)
        mu_fold_see_foreign(f, kv, then[key]);
    seen->mod = kv->mod;
    seen->lease = kv->lease;
}

void mu_fold_begin_grace(struct mu_fold *f)
{
    if (f->now_ms + f->lease_ms > f->grace_until_ms)
        f->grace_until_ms = f->now_ms + f->lease_ms;
}

/* A world is written once, and put back as it was. */
bool mu_fold_contradicts(int64_t round, int64_t nodes, const struct mu_fold_world *world)
{
    return round != world->round || nodes != world->nodes;
}

/* With the name of a world that we are in, or lead, and other numbers: none of us wrote it. */
static bool is_lie(const struct mu_fold *f, const struct mu_fold_world *doc)
{
    if (doc->id == f->world.id)
        return mu_fold_contradicts(doc->round, doc->nodes, &f->world);
    return f->was_leader && doc->id == f->lead.members.world && doc->nodes != (int64_t)f->lead.members.count;
}

static bool apply_doc(struct mu_fold *f, const struct mu_fold_kv *kv)
{
    bool is_new = kv->mod != f->seen[JOB_DOC].mod;
    struct mu_fold_world doc;
    struct muster_error why;
    int rc = mu_fold_world_read(kv->value, &doc, &why);

    if (rc == MUSTER_ENOMEM)
        return false;
    if (rc == 0 && is_lie(f, &doc))
        rc = MUSTER_ERDZV_STATE;
    if (rc == 0)
        f->doc = doc;
    set_seen(f, JOB_DOC, rc, kv);
    if (f->seen[JOB_DOC].value == KEY_FOREIGN && is_new)
        mu_fold_begin_grace(f);
    if (f->seen[JOB_DOC].value == KEY_OTHER)
        f->other = why;
    if (rc == 0 && f->doc.id != f->doc_since) {
        f->doc_since = f->doc.id;
        f->doc_since_ms = f->now_ms;
        f->call_since_ms = UINT64_MAX;
    }
    return true;
}

static bool apply_news(struct mu_fold *f, const struct mu_fold_kv *kv)
{
    bool had = mu_fold_has(f, JOB_NEWS), grace = had && f->news.grace, again = had && f->seen[JOB_NEWS].mod == kv->mod;
    int rc = mu_fold_news_read(kv->value, &f->news, NULL);

    if (rc == MUSTER_ENOMEM)
        return false;
    set_seen(f, JOB_NEWS, rc, kv);
    if (!again)
        f->news_since_ms = f->now_ms;
    if (rc < 0)
        return true;
    if (f->news.grace && !grace)
        mu_fold_begin_grace(f);
    mu_leader_see_news(f);
    return true;
}

/* The mark of another version's leader is somebody's, who is not us; it goes with its lease. */
static bool apply_leader(struct mu_fold *f, const struct mu_fold_kv *kv)
{
    struct muster_error why;
    int rc = mu_fold_mark_read(kv->value, &f->leader, &why);

    if (rc == MUSTER_ENOMEM)
        return false;
    set_seen(f, JOB_LEADER, rc, kv);
    if (f->seen[JOB_LEADER].value == KEY_OTHER)
        f->other = why;
    if (rc < 0)
        f->leader = 0;
    return true;
}

/* Also when another version says so. */
static bool apply_closed(struct mu_fold *f, const struct mu_fold_kv *kv)
{
    int rc = mu_fold_closed_read(kv->value, &f->closed, NULL);

    if (rc == MUSTER_ENOMEM)
        return false;
    f->verdict = (struct mu_part_verdict){ f->closed.succeeded, f->closed.cause };
    set_seen(f, JOB_CLOSED, rc < 0 && is_other_version(kv) ? 0 : rc, kv);
    return true;
}

/* The store's. */
static bool apply_stock(struct mu_fold *f, const struct mu_fold_kv *kv)
{
    int rc = mu_fold_stock_read(kv->value, &f->outsiders_are_old, NULL);

    if (rc == MUSTER_ENOMEM)
        return false;
    set_seen(f, JOB_STOCK, rc, kv);
    return true;
}

static bool apply_moved(struct mu_fold *f, const struct mu_fold_kv *kv)
{
    uint64_t who;
    int rc = mu_fold_mark_read(kv->value, &who, NULL);

    if (rc == MUSTER_ENOMEM)
        return false;
    set_seen(f, JOB_MOVED, rc, kv);
    return true;
}

static bool is_key(const struct mu_fold_kv *kv, enum job_key key)
{
    return mu_slice_equal(kv->key, mu_slice_str(mu_fold_key_names[key]));
}

/* False: no memory. */
static bool apply_job(struct mu_fold *f, const struct mu_fold_kv *kv)
{
    if (kv->mod > f->job_mod)
        f->job_mod = kv->mod;
    for (enum job_key key = 0; kv->deleted && key < JOB_KEYS; key++)
        if (is_key(kv, key))
            f->seen[key].value = KEY_NONE;
    if (kv->deleted && is_key(kv, JOB_DOC))
        mu_fold_begin_grace(f); /* whoever holds it has time to put it back */
    if (kv->deleted)
        return true;
    if (is_key(kv, JOB_DOC))
        return apply_doc(f, kv);
    if (is_key(kv, JOB_NEWS))
        return apply_news(f, kv);
    if (is_key(kv, JOB_LEADER))
        return apply_leader(f, kv);
    if (is_key(kv, JOB_STOCK))
        return apply_stock(f, kv);
    if (is_key(kv, JOB_MOVED))
        return apply_moved(f, kv);
    return !is_key(kv, JOB_CLOSED) || apply_closed(f, kv);
}

void mu_fold_on_loaded(struct mu_fold *f, const struct mu_fold_event *event)
{
    struct view *view = event->scope == MU_FOLD_JOB ? &f->job : &f->nodes;
    bool whole = true;

    if (!mu_fold_is_answer(event, &view->load_id))
        return;
    if (event->scope == MU_FOLD_JOB) {
        bool had_doc = mu_fold_has(f, JOB_DOC);
        enum key_value news = f->seen[JOB_NEWS].value;

        for (enum job_key key = 0; key < JOB_KEYS; key++)
            f->seen[key].value = KEY_NONE;
        f->job_mod = f->awaited_mod = 0;
        f->loads++;
        for (size_t i = 0; whole && i < event->count; i++) {
            if (is_key(&event->kvs[i], JOB_NEWS))
                f->seen[JOB_NEWS].value = news; /* grace is a matter of whether it was there before */
            whole = apply_job(f, &event->kvs[i]);
        }
        if (had_doc && !mu_fold_has(f, JOB_DOC) && whole)
            mu_fold_begin_grace(f);
    } else {
        mu_leader_forget(f);
        f->lead.pages_read = false; /* who has gone while we missed something may have said goodbye there */
        for (size_t i = 0; whole && i < event->count; i++)
            whole = mu_leader_apply(f, &event->kvs[i]);
    }
    if (whole) {
        mu_fold_is_heard(f);
        view->loaded = true;
        if (event->scope == MU_FOLD_JOB)
            f->was_away = false;
    } else {
        mu_fold_back_off(f);
    }
}

void mu_fold_on_changed(struct mu_fold *f, const struct mu_fold_event *event)
{
    struct view *view = event->scope == MU_FOLD_JOB ? &f->job : &f->nodes;
    bool whole = true;

    if (!view->loaded)
        return;
    for (size_t i = 0; whole && i < event->count; i++)
        whole = event->scope == MU_FOLD_JOB ? apply_job(f, &event->kvs[i]) : mu_leader_apply(f, &event->kvs[i]);
    if (whole) {
        mu_fold_is_heard(f);
        return;
    }
    mu_fold_distrust(view);
    mu_fold_back_off(f);
}
