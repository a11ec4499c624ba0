/* One node of an etcd-v3 rendezvous, see fold.h: what it asks of etcd, and what it writes there for itself: its record,
 * the leader's place, the mark of a closed job, a document that was lost. */
#include "rdzv/fold_parts.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

void mu_fold_compare(struct mu_fold *f, enum mu_fold_compare_kind kind, const char *key, int64_t revision)
{
    assert(f->write.compares_count < MU_FOLD_COMPARES_MAX);
    f->write.compares[f->write.compares_count++] = (struct mu_fold_compare){ kind, mu_slice_str(key), revision };
}

void mu_fold_put(struct mu_fold *f, const char *key, const struct mu_buf *value, int64_t lease)
{
    assert(f->write.puts_count < MU_FOLD_PUTS_MAX);
    f->write.puts[f->write.puts_count++] = (struct mu_fold_put){ mu_slice_str(key), mu_buf_slice(value), lease };
}

/* It is still what was seen. */
void mu_fold_compare_key(struct mu_fold *f, enum job_key key)
{
    bool there = f->seen[key].value != KEY_NONE;

    mu_fold_compare(f, there ? MU_FOLD_MOD : MU_FOLD_ABSENT, mu_fold_key_names[key], there ? f->seen[key].mod : 0);
}

/* What is in it is not ours: nobody leads. */
static bool is_place_empty(const struct mu_fold *f)
{
    return f->seen[JOB_LEADER].value == KEY_NONE || f->seen[JOB_LEADER].value == KEY_FOREIGN;
}

void mu_fold_send(struct mu_fold *f, enum written what)
{
    f->writing = what;
    f->write_take = f->lease_take;
    f->write_job = mu_fold_job_lease(f);
    f->write_loads = f->loads;
    mu_fold_request(f, MU_FOLD_DO_WRITE, &f->write_id)->write = &f->write;
}

/* Encodings that fail for want of memory are tried again later. */
bool mu_fold_is_encoded(struct mu_fold *f, int rc)
{
    f->write = (struct mu_fold_write){ .compares_count = 0 };
    if (rc == 0)
        return true;
    mu_fold_back_off(f);
    (void)mu_fold_is_due(f, f->retry_at_ms);
    return false;
}

static bool wants_record(const struct mu_fold *f)
{
    if (!mu_fold_is_present(f) || f->lease == 0)
        return false;
    if (f->record_is == RECORD_MISSING)
        return true;
    if (f->phase == MU_FOLD_MEMBER) /* whoever folds shall know that there is a world to be put back */
        return f->job.loaded && !mu_fold_has(f, JOB_DOC) && f->record_is == RECORD_JOINS;
    return f->record_is != RECORD_JOINS || f->written_world != f->left_world;
}

/* A node that waits does not see its own record: it is put again if somebody has overwritten it, and else nothing is
 * written. */
static void check_record(struct mu_fold *f)
{
    f->checks_record = false;
    if (!mu_fold_is_encoded(f, mu_fold_record_write(&f->record, &f->value)))
        return;
    mu_fold_name_record(f, f->id, (uint64_t)f->lease);
    mu_fold_compare(f, MU_FOLD_MOD, f->key, f->record_mod);
    f->write.else_puts[0] = (struct mu_fold_put){ mu_slice_str(f->key), mu_buf_slice(&f->value), f->lease };
    f->write.else_count = 1;
    f->write.repeatable = true;
    mu_fold_send(f, RECORD);
}

/* Its key, into f->key. */
void mu_fold_name_record(struct mu_fold *f, uint64_t id, uint64_t lease)
{
    char text[MU_FOLD_ID_TEXT_MAX], under[MU_FOLD_ID_TEXT_MAX];

    (void)snprintf(f->key, sizeof f->key, "nodes/%s/%s", mu_fold_id_text(id, text), mu_fold_id_text(lease, under));
}

/* The record, and with it the leader's place if that is empty. Each of the two ways puts the record. */
static void write_record(struct mu_fold *f)
{
    int rc;

    f->record.seq++;
    f->record.joining = f->phase == MU_FOLD_JOINING;
    f->record.world = f->record.joining ? f->left_world : f->world.id;
    rc = mu_fold_record_write(&f->record, &f->value);
    if (rc == 0)
        rc = mu_fold_mark_write(f->id, &f->mark);
    if (!mu_fold_is_encoded(f, rc))
        return;
    mu_fold_name_record(f, f->id, (uint64_t)f->lease);
    f->write.repeatable = true;
    mu_fold_put(f, f->key, &f->value, f->lease);
    if (!f->job.loaded || f->seen[JOB_LEADER].value == KEY_NONE) {
        mu_fold_compare(f, MU_FOLD_ABSENT, "job/folder", 0);
        mu_fold_put(f, "job/folder", &f->mark, f->lease);
        f->write.else_puts[0] = f->write.puts[0];
        f->write.else_count = 1;
    }
    f->written_world = f->record.world;
    mu_fold_send(f, RECORD);
}

static void write_crown(struct mu_fold *f)
{
    if (!mu_fold_is_encoded(f, mu_fold_mark_write(f->id, &f->mark)))
        return;
    mu_fold_compare_key(f, JOB_LEADER);
    mu_fold_put(f, "job/folder", &f->mark, f->lease);
    mu_fold_send(f, CROWN);
}

int64_t mu_fold_job_lease(const struct mu_fold *f)
{
    int64_t leases[4] = { mu_fold_has(f, JOB_DOC) ? f->seen[JOB_DOC].lease : 0,
                          mu_fold_has(f, JOB_NEWS) ? f->seen[JOB_NEWS].lease : 0,
                          mu_fold_has(f, JOB_CLOSED) ? f->seen[JOB_CLOSED].lease : 0, f->granted_job };

    for (size_t i = 0; i < 4; i++)
        if (leases[i] != 0 && leases[i] != f->dead_job)
            return leases[i];
    return 0;
}

/* 0: it is being taken. */
int64_t mu_fold_need_job_lease(struct mu_fold *f)
{
    int64_t lease = mu_fold_job_lease(f);

    if (lease == 0 && f->grant_id == 0)
        (void)mu_fold_request(f, MU_FOLD_DO_GRANT_JOB, &f->grant_id);
    return lease;
}

static void write_closed(struct mu_fold *f)
{
    int64_t lease = mu_fold_need_job_lease(f);

    if (lease == 0 || !mu_fold_is_encoded(f, mu_fold_mark_write(f->id, &f->mark)))
        return;
    mu_fold_compare_key(f, JOB_CLOSED);
    mu_fold_put(f, "job/closed", &f->mark, lease);
    mu_fold_send(f, CLOSED_MARK);
}

static void write_restored(struct mu_fold *f)
{
    struct mu_fold_news news = { .world = f->world.id, .last_call_ms = -1, .grace = true };
    int64_t lease = mu_fold_need_job_lease(f);
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
    if (!mu_fold_is_encoded(f, rc))
        return;
    mu_fold_compare_key(f, JOB_DOC);
    mu_fold_put(f, "job/doc", &f->world.bytes, lease);
    mu_fold_put(f, "job/news", &f->value, lease);
    mu_fold_send(f, RESTORED);
}

/* ---- What is to be done ---- */

void mu_fold_load(struct mu_fold *f, struct view *view, enum mu_fold_scope scope)
{
    mu_fold_request(f, MU_FOLD_DO_LOAD, &view->load_id)->scope = scope;
}

/* Lower ranks first, so that not all do it. */
static uint64_t turn_ms(struct mu_fold *f, uint64_t step_ms)
{
    uint64_t wait_ms = f->phase == MU_FOLD_MEMBER ? (uint64_t)f->rank * step_ms + mu_rng_below(&f->rng, step_ms)
                                                  : mu_rng_below(&f->rng, MU_FOLD_CROWN_MAX_MS);

    return wait_ms < MU_FOLD_CROWN_MAX_MS ? wait_ms : MU_FOLD_CROWN_MAX_MS + mu_rng_below(&f->rng, step_ms);
}

/* An empty place, or a missing document: whose turn it is. */
static bool is_my_turn(struct mu_fold *f, bool wanted, uint64_t *at_ms, uint64_t step_ms)
{
    if (!wanted) {
        *at_ms = UINT64_MAX;
        return false;
    }
    if (*at_ms == UINT64_MAX)
        *at_ms = f->now_ms + turn_ms(f, step_ms);
    return mu_fold_is_due(f, *at_ms);
}

static void write_something(struct mu_fold *f)
{
    bool restores = f->phase == MU_FOLD_MEMBER && f->job.loaded && !mu_fold_has(f, JOB_DOC) && f->lease != 0;
    bool crowns =
        mu_fold_is_present(f) && f->job.loaded && is_place_empty(f) && f->lease != 0 && f->record_is != RECORD_MISSING;
    bool my_restore = is_my_turn(f, restores, &f->restore_at_ms, MU_FOLD_RESTORE_MS);
    bool my_crown = is_my_turn(f, crowns, &f->crown_at_ms, MU_FOLD_CROWN_MS);

    if (f->write_id != 0)
        return;
    if (wants_record(f)) {
        write_record(f);
        return;
    }
    if (!f->job.loaded)
        return;
    if (f->checks_record && f->phase == MU_FOLD_JOINING && f->lease != 0) {
        check_record(f);
        return;
    }
    if (f->job_mod < f->awaited_mod) {
        if (!mu_fold_is_due(f, f->awaited_until_ms))
            return;
        mu_fold_distrust(&f->job); /* it must have come by now: what we watch is not what we wrote to */
        mu_fold_load(f, &f->job, MU_FOLD_JOB);
        return;
    }
    if (!mu_fold_has(f, JOB_CLOSED) && (f->closing || (f->told_closed && f->phase == MU_FOLD_MEMBER)))
        write_closed(f);
    else if (my_restore)
        write_restored(f);
    else if (my_crown)
        write_crown(f);
    else if (mu_fold_is_leader(f) && f->nodes.loaded && !restores && !mu_leader_put_back(f))
        mu_leader_fold(f);
}

/* The leader's mark speaks for all who wait with it. The answer to one look brings the next, if that is due. */
static void look_around(struct mu_fold *f)
{
    struct mu_fold_effect *effect;

    if (f->phase != MU_FOLD_JOINING || !f->job.loaded || mu_fold_is_spare(f) || f->look_id != 0 ||
        !mu_fold_is_due(f, f->look_at_ms))
        return;
    f->look_at_ms = f->join_since_ms + mu_waiters_next_ms(f->now_ms - f->join_since_ms, f->settings.join_ms);
    f->checks_record = !mu_fold_is_leader(f); /* which sees it */
    effect = mu_fold_request(f, MU_FOLD_DO_LOOK_AROUND, &f->look_id);
    effect->doc_mod = mu_fold_doc_mod(f);
    if (!mu_fold_is_leader(f) || f->lease == 0 || f->marked_lease == f->lease ||
        mu_fold_record_write(&f->record, &f->waiting) < 0)
        return;
    f->may_be_marked = true;
    effect->value = mu_buf_slice(&f->waiting);
    effect->lease = f->lease;
}

void mu_fold_drive(struct mu_fold *f)
{
    mu_leader_drive(f);
    look_around(f);
    if (!f->active || !mu_fold_is_due(f, f->retry_at_ms))
        return;
    if (!f->job.loaded && f->job.load_id == 0)
        mu_fold_load(f, &f->job, MU_FOLD_JOB);
    if (mu_fold_is_present(f) && f->lease_take == 0)
        (void)mu_fold_request(f, MU_FOLD_DO_TAKE_LEASE, &f->lease_take);
    write_something(f);
}
