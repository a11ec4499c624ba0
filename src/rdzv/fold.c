/* See fold.h. After every event the whole state is looked at: observe() tells what it means for us (fold_observe.c),
 * drive() makes the requests that are missing. So no event has to think of what follows from it, and a request that
 * failed is made again because what it was for is still not so. At most one load of each scope, one lease, one write
 * and one keep-alive are under way. Whatever depends on time asks is_due(), which remembers the earliest moment for the
 * next TIME. */
#include "rdzv/fold_parts.h"

#include "base/texts.h"
#include "base/words.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- Texts ---- */

MU_DEFINE_TEXTS(mu_fold_event_text, enum mu_fold_event_type, MU_FOLD_EVENTS)

MU_DEFINE_TEXTS(mu_fold_phase_text, enum mu_fold_phase, MU_FOLD_PHASES)

/* ---- Helpers ---- */

struct mu_fold_effect *mu_fold_emit(struct mu_fold *f, enum mu_fold_effect_type type)
{
    assert(f->out->count < MU_FOLD_EFFECTS_MAX);
    f->out->items[f->out->count] = (struct mu_fold_effect){ .type = type };
    return &f->out->items[f->out->count++];
}

struct mu_part_news *mu_fold_tell(struct mu_fold *f, enum mu_part_tell what)
{
    struct mu_part_news *news = &mu_fold_emit(f, MU_FOLD_DO_TELL)->news;

    *news = (struct mu_part_news){ .tell = what, .give_up_in_ms = UINT64_MAX };
    return news;
}

struct mu_fold_effect *mu_fold_request(struct mu_fold *f, enum mu_fold_effect_type type, uint64_t *ret_id)
{
    struct mu_fold_effect *effect = mu_fold_emit(f, type);

    effect->id = *ret_id = ++f->last_id;
    return effect;
}

/* To the request of this id, which is then no longer under way. */
bool mu_fold_is_answer(const struct mu_fold_event *event, uint64_t *id)
{
    if (event->id == 0 || event->id != *id)
        return false;
    *id = 0;
    return true;
}

bool mu_fold_is_due(struct mu_fold *f, uint64_t when_ms)
{
    if (f->now_ms >= when_ms)
        return true;
    if (when_ms < f->wake_ms)
        f->wake_ms = when_ms;
    return false;
}

bool mu_fold_is_present(const struct mu_fold *f)
{
    return f->phase == MU_FOLD_JOINING || f->phase == MU_FOLD_MEMBER;
}

bool mu_fold_is_leader(const struct mu_fold *f)
{
    return f->job.loaded && mu_fold_has(f, JOB_LEADER) && f->lease != 0 && f->leader == f->id &&
           f->seen[JOB_LEADER].lease == f->lease;
}

bool mu_fold_was_left(const struct mu_fold *f, uint64_t world)
{
    for (size_t i = 0; i < f->left_count; i++)
        if (f->left[i] == world)
            return true;
    return false;
}

void mu_fold_note_left(struct mu_fold *f, uint64_t world)
{
    f->left_world = world;
    if (mu_fold_was_left(f, world))
        return;
    if (f->left_count == MU_FOLD_LEFT_MAX)
        memmove(f->left, f->left + 1, --f->left_count * sizeof *f->left);
    f->left[f->left_count++] = world;
}

static void out_of_world(struct mu_fold *f)
{
    if (f->world.id != 0) {
        f->last_world = f->world.id;
        mu_fold_note_left(f, f->world.id);
    }
    f->world = (struct mu_fold_world){ .id = 0 };
    mu_fold_members_done(&f->names);
    f->rank = -1;
}

/* Read it all again before anything else is decided. */
void mu_fold_distrust(struct view *view)
{
    view->loaded = false;
    view->load_id = 0;
}

/* An etcd that was away may have lost its data. A node then finds its lease gone, and reads again. Without a lease
 * nothing tells: a watch goes on if the new etcd's revision is beyond what was seen. */
static void distrust_without_lease(struct mu_fold *f)
{
    if (f->was_away && f->lease == 0 && f->job.loaded)
        mu_fold_distrust(&f->job);
}

static void drop_lease(struct mu_fold *f, uint64_t id)
{
    struct mu_fold_effect *effect;

    if (f->lease_take == 0)
        return;
    effect = mu_fold_emit(f, MU_FOLD_DO_DROP_LEASE);
    effect->id = id;
    effect->lease_take = f->lease_take;
    f->lease_take = 0;
    f->lease = 0;
    f->record_is = RECORD_MISSING;
    f->marked_lease = 0; /* the mark goes with it */
    f->may_be_marked = false;
    distrust_without_lease(f);
}

/* The report cannot be made any more. */
static void drop_report(struct mu_fold *f)
{
    static const struct muster_error error = { .code = MUSTER_ERDZV_STATE,
                                               .text = "this node is in no round any more" };
    struct mu_part_news *news;

    if (f->report == REPORT_NONE)
        return;
    f->report = REPORT_NONE;
    if (f->report_round == OWN_REPORT)
        return;
    news = mu_fold_tell(f, MU_PART_TELL_REPORTED);
    news->round = f->report_round;
    news->error = &error;
}

void mu_fold_become_idle(struct mu_fold *f)
{
    out_of_world(f);
    drop_report(f);
    drop_lease(f, 0);
    f->lease_was_lost = false;
    f->phase = MU_FOLD_IDLE;
}

void mu_fold_tell_failed(struct mu_fold *f, enum mu_part_event_type asked)
{
    struct mu_part_news *news = mu_fold_tell(f, MU_PART_TELL_FAILED);

    news->asked = asked;
    news->error = &f->error;
    if (asked == MU_PART_ON_CLOSE)
        f->closing = false;
    else
        mu_fold_become_idle(f);
}

void mu_fold_back_off(struct mu_fold *f)
{
    uint64_t most_ms = f->lease_ms / 8 < MU_FOLD_RETRY_MAX_MS ? f->lease_ms / 8 : MU_FOLD_RETRY_MAX_MS;

    f->retry_ms = f->retry_ms == 0 ? MU_FOLD_RETRY_MS : f->retry_ms * 2;
    if (f->retry_ms > most_ms)
        f->retry_ms = most_ms;
    f->retry_at_ms = f->now_ms + mu_rng_jitter(&f->rng, f->retry_ms, 50);
}

/* All is well again, and so it is told if it was not. */
static void is_back(struct mu_fold *f)
{
    enum away before = f->away;

    f->retry_ms = 0;
    f->retry_at_ms = 0;
    f->away = AWAY_NOT;
    f->away_since_ms = f->refused_since_ms = UINT64_MAX;
    if (before == AWAY_NOT)
        return;
    f->was_away |= before == AWAY_SILENT;
    distrust_without_lease(f);
    (void)mu_fold_tell(f, MU_PART_TELL_BACKEND_UP);
}

/* An answer to a question does not mean that what was refused would be done now: that is tried at a pace of its own. */
void mu_fold_is_heard(struct mu_fold *f)
{
    f->ever_heard = true;
    if (f->away != AWAY_REFUSES)
        is_back(f);
}

/* Something was done, or nothing is wanted any more. */
void mu_fold_is_obeyed(struct mu_fold *f)
{
    f->ever_heard = true;
    is_back(f);
}

/* `refuses`: etcd answers, but does not do what it is asked for. */
static void is_away(struct mu_fold *f, bool refuses, const struct muster_error *error)
{
    enum away before = f->away;

    f->away = refuses ? AWAY_REFUSES : AWAY_SILENT;
    if (refuses)
        f->away_since_ms = UINT64_MAX;
    else if (f->away_since_ms == UINT64_MAX)
        f->away_since_ms = f->now_ms;
    if (error != NULL)
        f->why_away = *error;
    if (f->looking && !refuses) {
        f->looking = false;
        mu_fold_tell(f, MU_PART_TELL_LOOKED)->error = &f->why_away;
    }
    if (before == AWAY_NOT)
        mu_fold_tell_away(f);
}

/* ---- Events ---- */

static void on_join(struct mu_fold *f)
{
    assert(f->phase == MU_FOLD_IDLE || f->phase == MU_FOLD_MEMBER);
    out_of_world(f);
    f->phase = MU_FOLD_JOINING;
    f->deadline_ms = f->now_ms + f->settings.join_ms;
    f->has_told = false;
    f->first_until_ms = f->now_ms + f->first_ms;
    f->crowd = (struct mu_waiters){ .count = 0 };
    f->join_since_ms = f->now_ms;
    f->look_at_ms = f->now_ms + mu_waiters_next_ms(0, f->settings.join_ms);
}

static void on_report(struct mu_fold *f, const struct mu_part_report *report)
{
    static const enum mu_fold_end_kind kinds[] = {
        [MU_PART_END_FAILED] = MU_FOLD_END_FAILED, [MU_PART_END_DONE] = MU_FOLD_END_DONE,
        [MU_PART_END_AGAIN] = MU_FOLD_END_AGAIN,   [MU_PART_END_LEFT] = MU_FOLD_END_LEFT,
        [MU_PART_END_LOST] = MU_FOLD_END_LOST,
    };
    struct mu_fold_end *end = &f->record.end;

    f->report = REPORT_WANTED;
    f->report_round = f->world.round;
    if (f->phase != MU_FOLD_MEMBER) {
        f->report_round = -1;
        drop_report(f);
        return;
    }
    if (end->kind == MU_FOLD_END_DONE)
        return; /* that stays so */
    *end = (struct mu_fold_end){ .kind = kinds[report->end], .world = f->world.id, .rank = report->rank };
    (void)mu_words_plain(mu_slice_str(report->text != NULL ? report->text : ""), end->text, sizeof end->text);
}

static void leave(struct mu_fold *f)
{
    f->leave_by_ms = 0;
    drop_report(f);
    out_of_world(f);
    f->known.world.id = 0;
    f->known.is_lost = false;
    f->lease_was_lost = false;
    if (f->lease_take == 0) {
        f->phase = MU_FOLD_IDLE;
        (void)mu_fold_tell(f, MU_PART_TELL_LEFT);
        return;
    }
    f->phase = MU_FOLD_LEAVING;
    f->drop_id = ++f->last_id;
    drop_lease(f, f->drop_id);
}

/* As after a boot that failed. Whoever has reported how its workers ended has said enough. */
static void say_goodbye(struct mu_fold *f)
{
    if (f->report != REPORT_NONE || f->record.end.kind != MU_FOLD_END_NONE)
        return;
    f->record.end = (struct mu_fold_end){ .kind = MU_FOLD_END_LEFT, .world = f->world.id, .rank = -1 };
    f->report = REPORT_WANTED;
    f->report_round = OWN_REPORT;
}

/* What we report goes first: with our lease our record is gone, and nobody would know why. */
static void on_leave(struct mu_fold *f)
{
    if (f->phase == MU_FOLD_LEAVING || f->leave_by_ms != 0)
        return;
    if (f->phase == MU_FOLD_MEMBER && f->lease != 0)
        say_goodbye(f);
    if (f->phase == MU_FOLD_MEMBER && f->report != REPORT_NONE && f->lease != 0)
        f->leave_by_ms = f->now_ms + MU_FOLD_LEAVE_MS;
    else
        leave(f);
}

static void observe_leaving(struct mu_fold *f)
{
    if (f->leave_by_ms != 0 &&
        (f->report == REPORT_NONE || f->phase != MU_FOLD_MEMBER || mu_fold_is_due(f, f->leave_by_ms)))
        leave(f);
}

static void on_dropped(struct mu_fold *f, const struct mu_fold_event *event)
{
    if (f->phase != MU_FOLD_LEAVING || event->id != f->drop_id)
        return;
    f->phase = MU_FOLD_IDLE;
    (void)mu_fold_tell(f, MU_PART_TELL_LEFT);
}

static void on_leased(struct mu_fold *f, const struct mu_fold_event *event)
{
    if (event->id == 0 || event->id != f->lease_take)
        return;
    assert(event->lease != 0);
    mu_fold_is_obeyed(f);
    mu_fold_renewed(f, event);
    f->lease = event->lease;
    f->record_is = RECORD_MISSING;
    if (f->lease_was_lost)
        mu_fold_begin_grace(f);
    f->lease_was_lost = false;
}

static void refused(struct mu_fold *f, const struct muster_error *error)
{
    if (error != NULL)
        f->error = *error;
    if (f->closing)
        mu_fold_tell_failed(f, MU_PART_ON_CLOSE);
    if (f->phase == MU_FOLD_JOINING)
        mu_fold_tell_failed(f, MU_PART_ON_JOIN);
    if (mu_fold_a_peer_hosts(f))
        f->known.is_lost = true; /* what is there now is no store of ours */
}

/* The join ends with it: that etcd is away would be another story. */
static bool ends_join(const struct mu_fold *f, const struct mu_fold_event *event)
{
    return event->final && f->phase == MU_FOLD_JOINING && !f->looking;
}

static void on_lease_lost(struct mu_fold *f, const struct mu_fold_event *event)
{
    if (event->id == 0 || event->id != f->lease_take)
        return;
    if (f->lease != 0) { /* etcd was away, or has forgotten it, and then perhaps everything */
        f->lease_was_lost = true;
        mu_fold_distrust(&f->job);
    } else {
        mu_fold_back_off(f);
        if (!ends_join(f, event))
            is_away(f, event->refused, event->error);
    }
    f->lease_take = 0;
    f->lease = 0;
    f->record_is = RECORD_MISSING;
    if (event->final)
        refused(f, event->error);
}

static void on_wrote(struct mu_fold *f, const struct mu_fold_event *event)
{
    if (!mu_fold_is_answer(event, &f->write_id))
        return;
    mu_fold_is_obeyed(f);
    if (f->writing == RECORD) {
        f->record_is = f->lease_take == 0 || f->lease_take != f->write_take ? RECORD_MISSING
                       : f->record.joining                                  ? RECORD_JOINS
                                                                            : RECORD_STAYS;
        if (event->held ? f->write.ops_count > 0 : f->write.else_count > 0)
            f->record_mod = event->revision;
        if (f->report == REPORT_SENT) {
            f->report = REPORT_NONE;
            if (f->record.end.at == 0)
                f->record.end.at = event->revision;
            if (f->report_round != OWN_REPORT)
                mu_fold_tell(f, MU_PART_TELL_REPORTED)->round = f->report_round;
        }
        return;
    }
    if (f->writing == SEATS || f->writing == WORLD)
        mu_leader_batch_written(f, event->held);
    if (f->writing == SEATS && event->held)
        return; /* nobody watches these */
    if (f->writing == RECORD_BACK) {
        mu_leader_end_put_back(f, false);
        return;
    }
    if (event->held && f->job.loaded && f->write_loads == f->loads) {
        f->awaited_mod = event->revision;
        f->awaited_until_ms = f->now_ms + f->lease_ms;
    } else {
        mu_fold_distrust(&f->job);
    }
}

static void job_lease_is_gone(struct mu_fold *f, int64_t lease)
{
    f->dead_job = lease;
    if (f->granted_job == lease)
        f->granted_job = 0;
}

static void on_failed(struct mu_fold *f, const struct mu_fold_event *event)
{
    if (mu_fold_is_answer(event, &f->write_id)) {
        bool ours = f->writing == RECORD || f->writing == CROWN;

        bool doubtful = f->writing == RECORD && !event->refused;

        /* Without an answer nobody knows either whether etcd still has what it had. */
        if (f->lease != 0 && f->write_take == f->lease_take && (doubtful || (ours && event->lease_gone)))
            f->lease_was_lost = true;
        if (f->writing == RECORD && f->report == REPORT_SENT)
            f->report = REPORT_WANTED;
        if (f->writing == RECORD && f->leave_by_ms != 0)
            drop_report(f); /* it goes without */
        else if ((doubtful || f->lease_was_lost) && f->write_take == f->lease_take)
            drop_lease(f, 0); /* a record in doubt must not come back later */
        if (f->writing == SEATS || f->writing == WORLD)
            mu_leader_give_up_world(f);
        if (f->writing == MOVE && event->refused)
            mu_leader_move_failed(f);
        if (event->lease_gone && f->writing == RECORD_BACK) {
            mu_leader_end_put_back(f, true);
        } else if (event->lease_gone && (!ours || f->record.end.kind == MU_FOLD_END_DONE)) {
            job_lease_is_gone(f, f->write_job); /* that we are done is under it, too */
        }
        mu_fold_distrust(&f->job);
    } else if (!mu_fold_is_answer(event, &f->grant_id) && !mu_fold_is_answer(event, &f->keep_id) &&
               !mu_fold_is_answer(event, &f->job.load_id) && !mu_fold_is_answer(event, &f->nodes.load_id) &&
               !mu_fold_seat_failed(f, event) && !mu_leader_failed(f, event)) {
        return;
    }
    mu_fold_back_off(f);
    if (!event->lease_gone && !ends_join(f, event))
        is_away(f, event->refused, event->error);
    if (event->final)
        refused(f, event->error);
}

static void on_granted(struct mu_fold *f, const struct mu_fold_event *event)
{
    if (!mu_fold_is_answer(event, &f->grant_id))
        return;
    f->granted_job = event->lease;
    f->keep_at_ms = f->now_ms + f->job_lease_ms / 3;
    mu_fold_is_obeyed(f);
}

static void on_kept(struct mu_fold *f, const struct mu_fold_event *event)
{
    if (!mu_fold_is_answer(event, &f->keep_id))
        return;
    mu_fold_is_heard(f);
    f->keep_at_ms = f->now_ms + f->job_lease_ms / 3;
    if (event->held)
        return;
    job_lease_is_gone(f, f->keep_lease);
    mu_fold_distrust(&f->job);
}

static void on_trouble(struct mu_fold *f, const struct mu_fold_event *event)
{
    bool is_new = event->gone && f->refused_since_ms == UINT64_MAX, was_away = f->away != AWAY_NOT;

    if (event->error == NULL) {
        mu_fold_is_heard(f);
        return;
    }
    if (is_new)
        f->refused_since_ms = f->now_ms;
    if (f->now_ms >= event->ago_ms && f->now_ms - event->ago_ms < f->away_since_ms)
        f->away_since_ms = f->now_ms - event->ago_ms;
    is_away(f, false, event->error);
    if (is_new && was_away)
        mu_fold_tell_away(f);
}

static void handle(struct mu_fold *f, const struct mu_fold_event *event)
{
    switch (event->type) {
    case MU_FOLD_ON_JOIN:
        f->active = true;
        on_join(f);
        break;
    case MU_FOLD_ON_LEAVE:
        on_leave(f);
        break;
    case MU_FOLD_ON_CLOSE:
        f->active = true;
        f->closing = true;
        f->close_deadline_ms = f->now_ms + f->settings.close_ms;
        break;
    case MU_FOLD_ON_LOOK:
        f->active = true;
        f->looking = true;
        if (f->away == AWAY_SILENT && f->job.loaded) /* no request is under way that would fail */
            is_away(f, false, NULL);
        break;
    case MU_FOLD_ON_REPORT:
        on_report(f, event->report);
        break;
    case MU_FOLD_ON_LOADED:
        mu_fold_on_loaded(f, event);
        break;
    case MU_FOLD_ON_CHANGED:
        mu_fold_on_changed(f, event);
        break;
    case MU_FOLD_ON_STALE:
        mu_fold_distrust(event->scope == MU_FOLD_JOB ? &f->job : &f->nodes);
        break;
    case MU_FOLD_ON_TROUBLE:
        on_trouble(f, event);
        break;
    case MU_FOLD_ON_LEASED:
        on_leased(f, event);
        break;
    case MU_FOLD_ON_MET:
        mu_fold_on_met(f, event);
        break;
    case MU_FOLD_ON_RENEWED:
        mu_fold_renewed(f, event);
        break;
    case MU_FOLD_ON_LEASE_LOST:
        on_lease_lost(f, event);
        break;
    case MU_FOLD_ON_DROPPED:
        on_dropped(f, event);
        break;
    case MU_FOLD_ON_RANGED:
        if (!mu_fold_seat_ranged(f, event))
            (void)mu_leader_ranged(f, event);
        break;
    case MU_FOLD_ON_WROTE:
        on_wrote(f, event);
        break;
    case MU_FOLD_ON_GRANTED:
        on_granted(f, event);
        break;
    case MU_FOLD_ON_KEPT:
        on_kept(f, event);
        break;
    case MU_FOLD_ON_CROWD:
        mu_fold_on_crowd(f, event);
        break;
    case MU_FOLD_ON_REQUEST_FAILED:
        on_failed(f, event);
        break;
    case MU_FOLD_ON_TIME:
        break;
    }
}

static void check(const struct mu_fold *f)
{
    assert((f->phase == MU_FOLD_MEMBER) == (f->world.id != 0));
    assert(f->world.id == 0 || (f->rank >= 0 && f->rank < f->world.nodes));
    assert(f->world.id == 0 || !f->wants_names || f->names.count == (size_t)f->world.nodes);
    assert(f->lease == 0 || f->lease_take != 0);
    assert(f->record_is == RECORD_MISSING || f->lease != 0);
    assert((f->phase != MU_FOLD_IDLE && f->phase != MU_FOLD_LEAVING) || f->lease_take == 0);
    assert(!mu_fold_has(f, JOB_DOC) || f->doc.id != 0);
    assert(f->lead.entries_count == 0 || f->was_leader);
    assert((f->seat.id != 0) == (f->seat.state == SEAT_ASKED || f->seat.state == SEAT_NAMES_ASKED));
    assert(f->lead.next.id == 0 || f->was_leader);
    assert(f->lead.fates_count == f->lead.members.count && (f->lead.fates == NULL) == (f->lead.members.world == 0));
    assert(!f->job.loaded || f->job.load_id == 0);
}

void mu_fold_step(struct mu_fold *f, const struct mu_fold_event *event, struct mu_fold_effects *out)
{
    check(f);
    out->count = 0;
    f->out = out;
    f->now_ms = event->now_ms;
    handle(f, event);
    f->wake_ms = UINT64_MAX;
    if (!mu_fold_observe_moved(f)) {
        observe_leaving(f);
        mu_fold_observe(f);
        mu_fold_drive(f);
    }
    check(f);
    for (unsigned i = 0; i < f->out->count; i++) /* a loss is told of the world that we are in */
        assert(f->out->items[i].type != MU_FOLD_DO_TELL || f->out->items[i].news.tell != MU_PART_TELL_LOST ||
               f->world.id != 0);
}

uint64_t mu_fold_deadline_ms(const struct mu_fold *f)
{
    return f->wake_ms;
}

uint64_t mu_fold_request_until_ms(const struct mu_fold *f, uint64_t now_ms)
{
    if (f->phase == MU_FOLD_MEMBER)
        return now_ms + f->lease_ms;
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
    return mu_fold_has(f, JOB_DOC) ? &f->doc : NULL;
}

int64_t mu_fold_doc_mod(const struct mu_fold *f)
{
    return mu_fold_has(f, JOB_DOC) ? f->seen[JOB_DOC].mod : 0;
}

int64_t mu_fold_rank(const struct mu_fold *f)
{
    return f->rank;
}

int64_t mu_fold_lease(const struct mu_fold *f)
{
    return f->lease;
}

void mu_fold_introduce(struct mu_fold *f, const struct mu_part_self *self)
{
    f->wants_names = false; /* the leader names whoever matters */
    (void)mu_words_plain(mu_slice_str(self->role), f->record.role, sizeof f->record.role);
    f->record.size = self->local_world_size;
    f->max_restarts = self->max_restarts;
    if (f->window_s == 0 || self->max_restarts <= MU_FOLD_CHARGES_MAX)
        return;
    f->window_s = 0;
    (void)mu_fail(&f->foreign, MUSTER_EINVAL, "restart_window is not used: with it max restarts is at most %d",
                  MU_FOLD_CHARGES_MAX); /* for the log, with the first join */
}

const struct mu_part_seat *mu_fold_seat(const struct mu_fold *f)
{
    return f->world.id != 0 ? &f->seat_told : NULL;
}

const struct mu_part_verdict *mu_fold_verdict(const struct mu_fold *f)
{
    return mu_fold_has(f, JOB_CLOSED) && f->closed.has_verdict ? &f->verdict : NULL;
}

const struct mu_fold_members *mu_fold_names(const struct mu_fold *f)
{
    return f->names.world != 0 ? &f->names : NULL;
}

bool mu_fold_is_lost(const struct mu_fold *f, size_t rank)
{
    if (f->world.id != 0 && f->told_host_of == f->world.id && (int64_t)rank == f->world.host.rank)
        return true; /* with its store, so there are no news of it */
    return f->world.id != 0 && mu_fold_has(f, JOB_NEWS) && f->news.world == f->world.id &&
           mu_fold_news_gone(&f->news, (int64_t)rank);
}

size_t mu_fold_name(const struct mu_fold *f, bool only_lost, struct mu_node *nodes, size_t room)
{
    const struct mu_fold_members *members = mu_fold_names(f);
    size_t count = 0;

    for (size_t i = 0; members != NULL && i < members->count && count < room; i++)
        if (!only_lost || mu_fold_is_lost(f, i))
            nodes[count++] = members->items[i].node;
    return count;
}

int mu_fold_new(const struct mu_fold_config *config, struct mu_fold **ret_fold, struct muster_error *reterr)
{
    char id[MU_FOLD_ID_TEXT_MAX];
    struct mu_fold *f;

    if (config->name[0] == '\0' || strlen(config->name) > MU_FOLD_NAME_MAX)
        return mu_fail(reterr, MUSTER_EINVAL, "the node's name of %zu bytes is not of 1 to %d", strlen(config->name),
                       MU_FOLD_NAME_MAX);
    assert(config->id != 0 && config->lease_ms > 0 && config->job_lease_ms > 0 && config->first_ms > 0);
    assert(config->ops_max >= MU_FOLD_OPS_MIN && config->restart_window_s <= MU_FOLD_WINDOW_MAX_S);
    f = calloc(1, sizeof *f);
    if (f == NULL || mu_fold_mark_write(config->id, &f->killed_mark) < 0) {
        free(f);
        return mu_fail(reterr, MUSTER_ENOMEM, "a rendezvous");
    }
    (void)snprintf(f->killed_key, sizeof f->killed_key, "nodes/%s/killed", mu_fold_id_text(config->id, id));
    f->settings = config->settings;
    memcpy(f->record.name, config->name, strlen(config->name) + 1);
    f->record.pid = config->pid;
    f->record.local_id = config->local_id;
    f->record.nodes_min = config->settings.nodes_min;
    f->record.nodes_max = config->settings.nodes_max;
    f->service = config->service != NULL ? config->service : "etcd";
    f->endpoint = config->endpoint;
    f->id = config->id;
    f->lease_ms = config->lease_ms;
    f->job_lease_ms = config->job_lease_ms;
    f->first_ms = config->first_ms;
    f->ops_max = config->ops_max;
    f->record.size = 1;
    f->window_s = (int64_t)config->restart_window_s;
    (void)snprintf(f->how_lost, sizeof f->how_lost, "no keep-alive for %" PRIu64 " s", config->lease_ms / 1000);
    f->tells_how = config->tells_how;
    f->wants_names = config->wants_names;
    f->has_documents = config->documents != NULL;
    if (f->has_documents)
        f->dialect = *config->documents;
    f->fence_ms = config->fence_ms;
    (void)snprintf(f->fence_text, sizeof f->fence_text, "%s has acknowledged no keep-alive for %" PRIu64 " s",
                   f->service, config->fence_ms / 1000);
    f->rng = mu_rng_seeded(config->seed);
    f->rank = -1;
    f->wake_ms = UINT64_MAX;
    f->crown_at_ms = f->call_since_ms = f->lead.put_back_at_ms = UINT64_MAX;
    f->away_since_ms = f->refused_since_ms = UINT64_MAX;
    *ret_fold = f;
    return 0;
}

void mu_fold_free(struct mu_fold *f)
{
    if (f == NULL)
        return;
    mu_leader_done(f);
    mu_fold_members_done(&f->names);
    mu_fold_members_done(&f->seat.names);
    mu_buf_done(&f->value);
    mu_buf_done(&f->mark);
    mu_buf_done(&f->waiting);
    mu_buf_done(&f->killed_mark);
    mu_buf_done(&f->document);
    free(f);
}
