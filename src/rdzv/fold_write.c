/* One node of a rendezvous with a leader, see fold.h: what it asks of the engine, and what it writes there for itself:
 * its record, the leader's place, the mark of a closed job. */
#include "rdzv/fold_parts.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

void mu_fold_compare(struct mu_fold *f, enum mu_fold_compare_kind kind, const char *key, int64_t revision)
{
    assert(f->write.compares_count < MU_FOLD_COMPARES_MAX);
    f->write.compares[f->write.compares_count++] = (struct mu_fold_compare){ kind, mu_slice_str(key), revision };
}

void mu_fold_put(struct mu_fold *f, const char *key, const struct mu_buf *value, int64_t lease)
{
    assert(f->write.ops_count < OPS_MAX);
    f->write.ops = f->ops;
    f->ops[f->write.ops_count++] = (struct mu_fold_op){ MU_FOLD_PUT, mu_slice_str(key), mu_buf_slice(value), lease };
}

/* It is still what was seen. */
void mu_fold_compare_key(struct mu_fold *f, enum job_key key)
{
    bool there = f->seen[key].value != KEY_NONE;

    mu_fold_compare(f, there ? MU_FOLD_MOD : MU_FOLD_ABSENT, mu_fold_key_names[key], there ? f->seen[key].mod : 0);
}

/* What is in it is not ours: nobody leads. The same if it is of an earlier lease of this node, which has given that one
 * up, but may not have been able to end it. */
static bool is_place_empty(const struct mu_fold *f)
{
    const struct key_seen *leader = &f->seen[JOB_LEADER];

    return leader->value == KEY_NONE || leader->value == KEY_FOREIGN ||
           (leader->value == KEY_OURS && f->leader == f->id && leader->lease != f->lease);
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

/* That a node which joins names: it has left it, or knows that it is lost. */
static uint64_t known_world(const struct mu_fold *f)
{
    return f->known.is_lost ? f->known.world.id : f->left_world;
}

/* It tells of a world that is lost, and there is another one now; or it was written before we knew that one is lost. */
static bool is_record_outdated(const struct mu_fold *f)
{
    return f->record_is == RECORD_JOINS && (f->record.nodes > 0) != f->known.is_lost;
}

static bool wants_record(const struct mu_fold *f)
{
    if (!mu_fold_is_present(f) || f->lease == 0)
        return false;
    if (f->record_is == RECORD_MISSING || f->report == REPORT_WANTED || is_record_outdated(f))
        return true;
    if (f->record.end.kind == MU_FOLD_END_DONE && mu_fold_has(f, JOB_DOC) && f->seen[JOB_DOC].lease != f->dead_job &&
        f->seen[JOB_DOC].lease != f->done_lease)
        return true; /* that we are done lasts no longer than the lease it is under */
    if (f->phase ==
        MU_FOLD_MEMBER) /* whoever leads shall know that there is a world to be put back, and who is in it */
        return f->job.loaded && f->record_is == RECORD_JOINS &&
               (!mu_fold_has(f, JOB_DOC) || (mu_fold_has_news(f) && f->news.grace));
    return f->record_is != RECORD_JOINS || f->written_world != known_world(f);
}

static void put_else(struct mu_fold *f, struct mu_fold_op op)
{
    f->else_op = op;
    f->write.else_ops = &f->else_op;
    f->write.else_count = 1;
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
    put_else(f, (struct mu_fold_op){ MU_FOLD_PUT, mu_slice_str(f->key), mu_buf_slice(&f->value), f->lease });
    f->write.repeatable = true;
    mu_fold_send(f, RECORD);
}

/* Its key, into f->key. */
void mu_fold_name_record(struct mu_fold *f, uint64_t id, uint64_t lease)
{
    char text[MU_FOLD_ID_TEXT_MAX], under[MU_FOLD_ID_TEXT_MAX];

    (void)snprintf(f->key, sizeof f->key, "nodes/%s/%s", mu_fold_id_text(id, text), mu_fold_id_text(lease, under));
}

/* That we are done outlives us: it is under the job's lease. */
static void put_done(struct mu_fold *f, int64_t job_lease)
{
    char text[MU_FOLD_ID_TEXT_MAX];

    (void)snprintf(f->done_key, sizeof f->done_key, "nodes/%s/done", mu_fold_id_text(f->id, text));
    mu_fold_put(f, f->done_key, &f->mark, job_lease);
    f->done_lease = job_lease;
}

/* Our record goes with our lease, perhaps before anybody leads who could read in it that we left. So it is also where
 * the next leader looks: beside the pages of our world, with which it is taken away. */
static void put_goodbye(struct mu_fold *f, int64_t job_lease)
{
    (void)snprintf(f->goodbye_key, sizeof f->goodbye_key, "member/%016" PRIx64 "/left/%016" PRIx64, f->world.id, f->id);
    mu_fold_compare_key(f, JOB_DOC);
    mu_fold_put(f, f->goodbye_key, &f->value, job_lease);
    put_else(f, f->ops[0]);
}

/* A round that we were not in: those who were know more of it. */
static bool is_stranger(const struct mu_fold *f)
{
    return mu_fold_has(f, JOB_DOC) && f->doc.id != f->world.id && f->doc.id != f->last_world;
}

/* Of a world that was lost with its store, also who is not in it tells what it knows. */
static void describe_world(struct mu_fold *f)
{
    struct mu_fold_world known = f->known.is_lost ? f->known.world : f->world, *world = &known;
    struct mu_fold_record *record = &f->record;
    bool is_free = record->joining && !f->known.is_lost;

    (void)mu_slowdown_recent(world, f->now_ms - f->known.since_ms);
    record->round = world->round;
    record->rank = f->known.is_lost ? f->known.rank : f->rank;
    record->nodes = world->nodes;
    record->count = world->count;
    record->world_size = world->size;
    record->crashes = world->crashes;
    record->charges_count = world->charges_count;
    memcpy(record->charges, world->charges, sizeof record->charges);
    record->host = f->known.is_lost ? world->host : (struct mu_fold_host){ .rank = 0 };
    record->max_restarts = is_free ? f->max_restarts : world->max_restarts;
    record->window_s = is_free ? f->window_s : world->window_s;
}

/* The record, and with it the leader's place if that is empty. Each of the two ways puts the record. */
void mu_fold_write_record(struct mu_fold *f)
{
    bool done = f->record.end.kind == MU_FOLD_END_DONE, leaves = mu_fold_end_is_goodbye(f->record.end.kind);
    int64_t job_lease = done ? mu_fold_need_job_lease(f) : mu_fold_job_lease(f);
    int rc;

    if (done && job_lease == 0)
        return; /* it is being taken */
    f->record.seq++;
    f->record.joining = f->phase == MU_FOLD_JOINING;
    f->record.world = f->record.joining ? known_world(f) : f->world.id;
    describe_world(f);
    rc = mu_fold_record_write(&f->record, &f->value);
    if (rc == 0)
        rc = mu_fold_mark_write(f->id, &f->mark);
    if (!mu_fold_is_encoded(f, rc))
        return;
    mu_fold_name_record(f, f->id, (uint64_t)f->lease);
    f->write.repeatable = true;
    mu_fold_put(f, f->key, &f->value, f->lease);
    if (done) {
        put_done(f, job_lease);
    } else if (leaves) {
        if (job_lease != 0 && mu_fold_has(f, JOB_DOC) && f->doc.id == f->world.id)
            put_goodbye(f, job_lease);
    } else if (!f->job.loaded || (f->seen[JOB_LEADER].value == KEY_NONE && !is_stranger(f))) {
        mu_fold_compare(f, MU_FOLD_ABSENT, "job/folder", 0);
        if (!f->job.loaded) /* of a round that there may be we would be a stranger */
            mu_fold_compare(f, MU_FOLD_ABSENT, "job/doc", 0);
        mu_fold_put(f, "job/folder", &f->mark, f->lease);
        put_else(f, f->ops[0]);
    }
    f->written_world = f->record.world;
    if (f->report == REPORT_WANTED)
        f->report = REPORT_SENT;
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

/* Under the job's lease, so that also who leads after us knows. */
bool mu_fold_will(const struct mu_fold *f, struct mu_fold_op *ret_mark)
{
    int64_t job = mu_fold_job_lease(f);

    *ret_mark = (struct mu_fold_op){ .kind = MU_FOLD_PUT,
                                     .key = mu_slice_str(f->killed_key),
                                     .value = mu_buf_slice(&f->killed_mark),
                                     .lease = job != 0 ? job : f->lease };
    return f->lease != 0;
}

void mu_fold_renewed(struct mu_fold *f, const struct mu_fold_event *event)
{
    assert(event->sent_ms <= f->now_ms);
    if (event->id != 0 && event->id == f->lease_take)
        f->renewed_ms = event->sent_ms != 0 ? event->sent_ms : f->now_ms;
}

bool mu_fold_is_fenced(struct mu_fold *f)
{
    return f->fence_ms > 0 && mu_fold_is_due(f, f->renewed_ms + f->fence_ms);
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
    int rc;

    if (f->closed.node == 0)
        f->closed.node = f->id; /* else somebody has taken away what we saw */
    if (lease == 0)
        return;
    rc = mu_fold_closed_write(&f->closed, &f->mark);
    if (!mu_fold_is_encoded(f, rc == 0 ? mu_fold_write_closed_document(f) : rc))
        return;
    mu_fold_compare_key(f, JOB_CLOSED);
    mu_fold_put(f, "job/closed", &f->mark, lease);
    mu_fold_put_closed_document(f);
    mu_fold_send(f, CLOSED_MARK);
}

/* ---- What is to be done ---- */

void mu_fold_load(struct mu_fold *f, struct view *view, enum mu_fold_scope scope)
{
    mu_fold_request(f, MU_FOLD_DO_LOAD, &view->load_id)->scope = scope;
}

/* Lower ranks first, so that not all do it; who was in no round comes last. */
static uint64_t turn_ms(struct mu_fold *f)
{
    uint64_t wait_ms = f->phase == MU_FOLD_MEMBER ? (uint64_t)f->rank * MU_FOLD_CROWN_MS : 0;

    if (is_stranger(f))
        return MU_FOLD_CROWN_MAX_MS + MU_FOLD_CROWN_MS + mu_rng_below(&f->rng, MU_FOLD_CROWN_MAX_MS);
    if (f->phase != MU_FOLD_MEMBER)
        return mu_rng_below(&f->rng, MU_FOLD_CROWN_MAX_MS);
    return (wait_ms < MU_FOLD_CROWN_MAX_MS ? wait_ms : MU_FOLD_CROWN_MAX_MS) + mu_rng_below(&f->rng, MU_FOLD_CROWN_MS);
}

/* Whose turn it is to take the leader's place, if that is empty. */
static bool is_my_turn(struct mu_fold *f, bool empty)
{
    if (!empty) {
        f->crown_at_ms = UINT64_MAX;
        return false;
    }
    if (f->crown_at_ms == UINT64_MAX)
        f->crown_at_ms = f->now_ms + turn_ms(f);
    return mu_fold_is_due(f, f->crown_at_ms);
}

static void write_something(struct mu_fold *f)
{
    bool crowns =
        mu_fold_is_present(f) && f->job.loaded && is_place_empty(f) && f->lease != 0 && f->record_is != RECORD_MISSING;
    bool my_crown = is_my_turn(f, crowns);

    if (f->write_id != 0)
        return;
    if (wants_record(f)) {
        mu_fold_write_record(f);
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
    else if (my_crown)
        write_crown(f);
    else if (mu_fold_is_leader(f) && f->nodes.loaded && !mu_leader_put_back(f))
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
    if (mu_fold_has(f, JOB_DOC) && f->doc.nodes <= MU_FOLD_PAGE_MEMBERS) {
        (void)snprintf(f->look_key, sizeof f->look_key, "member/%016" PRIx64 "/0000", f->doc.id);
        effect->key = mu_slice_str(f->look_key);
    }
    if (!mu_fold_is_leader(f) || f->lease == 0 || f->marked_lease == f->lease ||
        mu_fold_record_write(&f->record, &f->waiting) < 0)
        return;
    f->may_be_marked = true;
    effect->value = mu_buf_slice(&f->waiting);
    effect->lease = f->lease;
}

/* Not even what was refused. A leader always wants something: at least its job's lease kept. */
static bool wants_nothing(const struct mu_fold *f)
{
    return f->job.loaded && !mu_fold_is_leader(f) && f->write_id == 0 && f->grant_id == 0 &&
           (f->lease != 0 || f->lease_take == 0);
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
    mu_fold_seat_ask(f);
    write_something(f);
    if (f->away == AWAY_REFUSES && wants_nothing(f))
        mu_fold_is_obeyed(f);
}
