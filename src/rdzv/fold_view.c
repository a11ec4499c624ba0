/* One node of an etcd-v3 rendezvous, see fold.h: what is in etcd below job/, as far as we know. */
#include "rdzv/fold_parts.h"

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
    if (mu_leader_renew_gone(f))
        return true;
    mu_fold_world_done(&f->doc);
    f->has_doc = false;
    return false;
}

void mu_fold_begin_grace(struct mu_fold *f, uint64_t now_ms)
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
        mu_fold_begin_grace(f, now_ms);
    for (size_t i = 0; f->has_news && f->gone != NULL && f->news.world == f->doc.id && i < f->news.gone_count; i++)
        if (f->news.gone[i] < f->doc.count)
            f->gone[f->news.gone[i]] = true;
    return true;
}

static bool apply_leader(struct mu_fold *f, const struct mu_fold_kv *kv)
{
    int rc = mu_fold_mark_read(kv->value, &f->leader, NULL);

    if (rc == MUSTER_ENOMEM)
        return false;
    if (rc < 0)
        f->leader = 0; /* somebody's, who is not us; it goes with its lease */
    f->has_leader = true;
    f->leader_create = kv->create;
    f->leader_lease = kv->lease;
    return true;
}

/* Whoever holds it has time to put it back. */
static void doc_vanished(struct mu_fold *f, uint64_t now_ms)
{
    f->has_doc = false;
    f->broken = (struct muster_error){ 0 };
    mu_fold_begin_grace(f, now_ms);
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
            return apply_leader(f, kv);
        f->has_leader = false;
    } else if (is_key(kv, "job/closed")) {
        f->has_closed = !kv->deleted;
        f->closed_lease = kv->lease;
    }
    return true;
}

void mu_fold_on_loaded(struct mu_fold *f, const struct mu_fold_event *event, struct mu_fold_effects *out)
{
    struct view *view = event->scope == MU_FOLD_JOB ? &f->job : &f->nodes;
    bool whole = true;

    if (event->id == 0 || event->id != view->load_id)
        return;
    view->load_id = 0;
    if (event->scope == MU_FOLD_JOB) {
        bool had_news = f->has_news, had_doc = f->has_doc;

        f->has_doc = f->has_leader = f->has_closed = f->has_news = false;
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
        mu_leader_forget(f);
        for (size_t i = 0; whole && i < event->count; i++)
            whole = mu_leader_apply(f, &event->kvs[i]);
    }
    if (whole) {
        view->loaded = true;
        mu_fold_is_heard(f, out);
    } else {
        mu_fold_back_off(f, event->now_ms);
    }
}

void mu_fold_on_changed(struct mu_fold *f, const struct mu_fold_event *event, struct mu_fold_effects *out)
{
    struct view *view = event->scope == MU_FOLD_JOB ? &f->job : &f->nodes;
    bool whole = true;

    if (!view->loaded)
        return;
    for (size_t i = 0; whole && i < event->count; i++)
        whole = event->scope == MU_FOLD_JOB ? apply_job(f, &event->kvs[i], event->now_ms)
                                            : mu_leader_apply(f, &event->kvs[i]);
    if (whole) {
        mu_fold_is_heard(f, out);
        return;
    }
    mu_fold_distrust(view);
    mu_fold_back_off(f, event->now_ms);
}
