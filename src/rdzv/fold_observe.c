/* One node of a rendezvous with a leader, see fold.h: what the state means for it, and what its owner is told. */
#include "rdzv/fold_parts.h"

#include <assert.h>
#include <inttypes.h>

/* A complete round runs without us, and has no place for us; or did, when we last saw it. */
bool mu_fold_was_spare(const struct mu_fold *f)
{
    return f->phase == MU_FOLD_JOINING && mu_fold_has(f, JOB_DOC) && f->doc.id != f->last_world &&
           !(mu_fold_has_news(f) && f->news.over) && f->doc.nodes >= f->settings.nodes_max;
}

bool mu_fold_is_spare(const struct mu_fold *f)
{
    return f->job.loaded && mu_fold_was_spare(f);
}

struct mu_part_progress mu_fold_progress(const struct mu_fold *f)
{
    struct mu_part_progress progress = { .round = mu_fold_has(f, JOB_DOC) ? f->doc.round : -1,
                                         .spare = mu_fold_is_spare(f),
                                         .last_call_until_ms = UINT64_MAX,
                                         .deadline_ms = f->deadline_ms };

    if (progress.spare)
        progress.deadline_ms = UINT64_MAX;
    if (mu_fold_has_news(f)) {
        progress.joined = f->news.joined;
        progress.waiting = f->news.waiting;
        progress.spares = f->news.spares;
        progress.apart = f->news.apart;
        if (f->news.joined == 0 && (progress.spare || f->news.waiting > 0) && mu_fold_has(f, JOB_DOC))
            progress.joined = f->doc.nodes; /* of the round that runs without us */
        if (f->news.last_call_ms >= 0)
            progress.last_call_until_ms = f->news_since_ms + (uint64_t)f->news.last_call_ms;
    }
    return progress;
}

static void tell_progress(struct mu_fold *f)
{
    struct mu_part_progress now = mu_fold_progress(f);

    if (f->has_told && now.round == f->told.round && now.joined == f->told.joined && now.waiting == f->told.waiting &&
        now.spares == f->told.spares && now.apart == f->told.apart && now.spare == f->told.spare &&
        now.last_call_until_ms == f->told.last_call_until_ms)
        return;
    f->has_told = true;
    f->told = now;
    (void)mu_fold_tell(f, MU_PART_TELL_PROGRESS);
}

/* With a window, as many count as did when the world was written. */
static int64_t restarts_left(const struct mu_fold_world *world)
{
    int64_t used = world->window_s == 0 ? world->count : (int64_t)world->charges_count;

    return used < world->max_restarts ? world->max_restarts - used : 0;
}

/* The job's first node has decided it. */
static void compare_window(struct mu_fold *f)
{
    if (f->last_world == 0 && f->world.window_s != f->window_s && f->foreign.code == 0)
        (void)mu_fail(&f->foreign, MUSTER_EINVAL,
                      "restart_window is %" PRId64 " here, but the job was started with %" PRId64 ", which counts",
                      f->window_s, f->world.window_s);
}

static void enter_world(struct mu_fold *f)
{
    f->world = f->doc;
    f->names = f->seat.names;
    f->seat.names = (struct mu_fold_members){ .world = 0 };
    f->rank = f->seat.found.rank;
    f->seat_told = (struct mu_part_seat){
        .count = f->world.count,
        .restarts_left = restarts_left(&f->world),
        .max_restarts = f->world.max_restarts,
        .base_rank = f->seat.found.base_rank,
        .world_size = f->world.size,
        .base_role_rank = f->seat.found.base_role_rank,
        .role_world_size = f->seat.found.role_size,
        .why = f->world.why[0] != '\0' ? f->world.why : NULL,
    };
    f->record.end = (struct mu_fold_end){ .kind = MU_FOLD_END_NONE };
    mu_fold_note_known(f);
    f->known.rank = f->rank;
    f->told_over = false;
    f->told_gone = 0;
    f->phase = MU_FOLD_MEMBER;
    compare_window(f);
    f->joined_ms = f->now_ms;
    f->told_waiting = false;
    if (f->may_be_marked)
        (void)mu_fold_emit(f, MU_FOLD_DO_UNMARK);
    f->marked_lease = 0;
    f->may_be_marked = false;
    mu_fold_tell(f, MU_PART_TELL_JOINED)->round = f->world.round;
}

/* What another version of muster wrote. */
static bool is_refused(const struct mu_fold *f)
{
    return f->seen[JOB_DOC].value == KEY_OTHER || f->seen[JOB_LEADER].value == KEY_OTHER;
}

/* The leader lets somebody wait, perhaps us: that is no time of our join's. It lasts as long as the last news say. */
static void await_news(struct mu_fold *f)
{
    bool waits = mu_fold_has_news(f) && (f->news.held[0] != '\0' || f->news.pause_ms > 0);
    int64_t wait_ms = f->news.held_ms > f->news.pause_ms ? f->news.held_ms : f->news.pause_ms;
    uint64_t until_ms = waits ? f->news_since_ms + (uint64_t)wait_ms : 0;
    uint64_t least_ms = until_ms + f->settings.join_ms;
    uint64_t most_ms = (until_ms > f->now_ms ? until_ms : f->now_ms) + f->settings.join_ms;
    uint64_t deadline_ms = f->deadline_ms < least_ms ? least_ms : f->deadline_ms > most_ms ? most_ms : f->deadline_ms;

    if (deadline_ms == f->deadline_ms)
        return;
    f->deadline_ms = deadline_ms;
    f->has_told = false; /* that is told */
}

/* Of a world that was put back, too, by a leader that has gone since: the next one does not know that. */
static bool is_over_for_long(struct mu_fold *f)
{
    return f->news.over && mu_fold_is_due(f, f->news_since_ms + f->lease_ms);
}

static void observe_joining(struct mu_fold *f)
{
    bool spare = mu_fold_is_spare(f);

    if (mu_fold_has(f, JOB_CLOSED)) {
        bool waited = spare && f->has_told && f->told.spare; /* who comes later was no spare of this job */

        (void)mu_fail(&f->error, waited ? MUSTER_ERDZV_GRACEFUL_EXIT : MUSTER_ERDZV_CLOSED,
                      waited ? "the rendezvous was closed while this node was a spare" : "the rendezvous is closed");
        mu_fold_tell_failed(f, MU_PART_ON_JOIN);
        return;
    }
    if (is_refused(f)) {
        f->error = f->other;
        mu_fold_tell_failed(f, MU_PART_ON_JOIN);
        return;
    }
    if (mu_fold_has(f, JOB_DOC) && f->doc.id != f->known.world.id)
        mu_fold_note_known(f);
    mu_fold_seat_observe(f);
    if (f->seat.state == SEAT_FOUND && !mu_fold_was_left(f, f->doc.id) && !mu_fold_is_fenced(f)) {
        if (!mu_fold_has_news(f) || !mu_fold_news_gone(&f->news, f->seat.found.rank)) {
            enter_world(f);
            return;
        }
        mu_fold_note_left(f, f->doc.id);
    }
    /* A world that was put back may have lost our seat with the rest, and the leader waits for us. */
    if (f->seat.state == SEAT_NONE && mu_fold_has_news(f) && (f->news.grace || is_over_for_long(f)))
        mu_fold_note_left(f, f->doc.id);
    if (mu_fold_has(f, JOB_DOC) && mu_fold_was_left(f, f->doc.id))
        f->left_world = f->doc.id; /* our record will say so */
    if (spare)
        f->deadline_ms = f->now_ms + f->settings.join_ms;
    else
        await_news(f);
    tell_progress(f);
}

static void observe_deadline(struct mu_fold *f)
{
    if (f->phase != MU_FOLD_JOINING)
        return;
    if (!f->ever_heard && mu_fold_is_due(f, f->first_until_ms) && f->away != AWAY_NOT) {
        f->error = f->why_away;
        f->error.code = MUSTER_ERDZV_CONNECTION;
        (void)mu_wrap(&f->error, f->error.code, "%s could not be used within %" PRIu64 " s", f->service,
                      f->first_ms / 1000);
        mu_fold_tell_failed(f, MU_PART_ON_JOIN);
        return;
    }
    if (mu_fold_gives_up_store(f)) {
        mu_fold_tell_failed(f, MU_PART_ON_JOIN);
        return;
    }
    if (!mu_fold_is_due(f, f->deadline_ms))
        return;
    mu_fold_say_timeout(f);
    mu_fold_tell_failed(f, MU_PART_ON_JOIN);
}

void mu_fold_tell_removed(struct mu_fold *f, const char *cause)
{
    struct mu_part_news *news = mu_fold_tell(f, MU_PART_TELL_REMOVED);

    news->round = f->world.round;
    news->cause = cause;
    mu_fold_become_idle(f);
}

static void observe_member(struct mu_fold *f)
{
    if (is_refused(f)) {
        f->error = f->other;
        mu_fold_tell_failed(f, MU_PART_ON_TIME);
        return;
    }
    if (mu_fold_has(f, JOB_DOC) && f->doc.id != f->world.id) {
        mu_fold_tell_removed(f, NULL);
        return;
    }
    if (!mu_fold_has(f, JOB_NEWS) || f->news.world != f->world.id)
        return;
    if (mu_fold_news_gone(&f->news, f->rank)) {
        mu_fold_tell_removed(f, NULL);
        return;
    }
    if (f->news.over && (!f->told_over || f->news.gone > f->told_gone)) {
        struct mu_part_news *news = mu_fold_tell(f, MU_PART_TELL_LOST);

        f->told_over = true;
        f->told_gone = f->news.gone;
        news->round = f->world.round;
        news->cause = f->news.cause;
    }
    /* Not while etcd is away: workers would be stopped for a round that cannot come. */
    if (f->news.waiting > 0 && !f->told_waiting && !mu_fold_has(f, JOB_CLOSED) && f->away == AWAY_NOT &&
        mu_fold_is_due(f, f->joined_ms + f->world.hold_ms)) {
        struct mu_part_news *news = mu_fold_tell(f, MU_PART_TELL_WAITING);

        f->told_waiting = true;
        news->round = f->world.round;
        news->count = f->news.newcomers > 0 ? f->news.newcomers : f->news.waiting;
        news->who = f->news.newcomers > 0 && f->news.who[0] != '\0' ? f->news.who : NULL;
    }
}

/* Once; and again in a round that could begin because what we saw was lost: what was told of another round is over. */
static void observe_closed(struct mu_fold *f)
{
    bool is_told = f->told_closed && (f->world.id == 0 || f->told_closed_in == f->world.id);

    if (!mu_fold_has(f, JOB_CLOSED) || (is_told && !f->closing))
        return;
    f->told_closed = true;
    f->told_closed_in = f->world.id;
    mu_fold_tell(f, MU_PART_TELL_CLOSED)->asked = f->closing ? MU_PART_ON_CLOSE : MU_PART_ON_TIME;
    f->closing = false;
}

void mu_fold_observe(struct mu_fold *f)
{
    if (f->foreign.code != 0) {
        f->told_foreign = f->foreign;
        f->foreign.code = 0;
        mu_fold_tell(f, MU_PART_TELL_FOREIGN)->error = &f->told_foreign;
    }
    if (f->phase == MU_FOLD_MEMBER && f->record.end.kind != MU_FOLD_END_DONE && mu_fold_is_fenced(f))
        mu_fold_tell_removed(f, f->fence_text);
    mu_fold_observe_host(f);
    if (f->job.loaded) {
        if (f->phase == MU_FOLD_JOINING)
            observe_joining(f);
        if (f->phase == MU_FOLD_MEMBER && f->leave_by_ms == 0) /* the world that we have just entered may be over */
            observe_member(f);
        observe_closed(f);
    }
    observe_deadline(f);
    if (f->closing && mu_fold_is_due(f, f->close_deadline_ms)) {
        (void)mu_fail(&f->error, MUSTER_ERDZV_TIMEOUT, "the job could not be closed within %" PRIu64 " s",
                      f->settings.close_ms / 1000);
        mu_fold_tell_failed(f, MU_PART_ON_CLOSE);
    }
    if (f->looking && f->job.loaded && f->away != AWAY_SILENT) {
        struct mu_part_news *news = mu_fold_tell(f, MU_PART_TELL_LOOKED);

        f->looking = false;
        news->closed = mu_fold_has(f, JOB_CLOSED);
        news->round = mu_fold_has(f, JOB_DOC)                                    ? f->doc.round
                      : mu_fold_has(f, JOB_LEADER) || mu_fold_has(f, JOB_CLOSED) ? 0
                                                                                 : -1;
        news->count = mu_fold_has(f, JOB_NEWS) ? f->news.waiting : 0;
    }
}
