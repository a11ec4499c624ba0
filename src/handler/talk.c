/* The conversation between a handler and its owner. */
#include "handler/talk.h"

#include "base/texts.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

/* ---- What is asked and not yet begun ---- */

static bool is_queued(const struct mu_talk *t, enum mu_part_event_type asked)
{
    for (size_t i = 0; i < t->queue_count; i++) {
        if (t->queue[i] == asked)
            return true;
    }
    return false;
}

static void enqueue(struct mu_talk *t, enum mu_part_event_type asked)
{
    if (is_queued(t, asked))
        return;
    assert(t->queue_count < MU_TALK_QUEUE_MAX);
    t->queue[t->queue_count++] = asked;
}

/* Each is one of its own. */
static void enqueue_report(struct mu_talk *t, const struct mu_part_report *report)
{
    struct mu_talk_report *copy = &t->reports[t->reports_count];

    assert(t->reports_count < MU_TALK_REPORTS_MAX && t->queue_count < MU_TALK_QUEUE_MAX);
    t->queue[t->queue_count++] = MU_PART_ON_REPORT;
    t->reports_count++;
    copy->report = *report;
    (void)snprintf(copy->text, sizeof copy->text, "%s", report->text != NULL ? report->text : "");
}

static const struct mu_part_report *dequeue_report(struct mu_talk *t)
{
    struct mu_talk_report *first = &t->reports[MU_TALK_REPORTS_MAX];

    *first = t->reports[0];
    t->reports_count--;
    memmove(t->reports, t->reports + 1, t->reports_count * sizeof t->reports[0]);
    first->report.text = first->text;
    return &first->report;
}

static enum mu_part_event_type dequeue(struct mu_talk *t)
{
    enum mu_part_event_type first = t->queue[0];

    t->queue_count--;
    memmove(t->queue, t->queue + 1, t->queue_count * sizeof t->queue[0]);
    return first;
}

static void unqueue(struct mu_talk *t, enum mu_part_event_type asked)
{
    size_t kept = 0;

    for (size_t i = 0; i < t->queue_count; i++) {
        if (t->queue[i] != asked)
            t->queue[kept++] = t->queue[i];
    }
    t->queue_count = kept;
}

/* ---- The state ---- */

bool mu_talk_has_back_end(const struct mu_talk *t)
{
    return t->state >= MU_TALK_IDLE;
}

bool mu_talk_is_joining(const struct mu_talk *t)
{
    return t->state == MU_TALK_JOINING || t->state == MU_TALK_BOOTING || t->state == MU_TALK_GIVING_UP ||
           t->state == MU_TALK_LEAVING_TO_JOIN;
}

/* The machine was asked to leave, or is about to be. */
static bool is_leaving(const struct mu_talk *t)
{
    return t->state == MU_TALK_LEAVING || t->state == MU_TALK_LEAVING_TO_JOIN || t->state == MU_TALK_GIVING_UP;
}

bool mu_talk_is_due(const struct mu_talk *t)
{
    if (!mu_talk_has_back_end(t))
        return t->state == MU_TALK_UNSOUGHT || is_queued(t, MU_PART_ON_LEAVE);
    return t->queue_count > 0;
}

static bool is_way(enum mu_talk_state from, enum mu_talk_state to)
{
    switch (to) {
    case MU_TALK_UNSOUGHT:
        return from == MU_TALK_ABSENT || from >= MU_TALK_IDLE;
    case MU_TALK_SEEKING:
        return from == MU_TALK_UNSOUGHT;
    case MU_TALK_ABSENT:
        return from == MU_TALK_SEEKING;
    case MU_TALK_IDLE:
        return from == MU_TALK_SEEKING || from == MU_TALK_JOINING || from == MU_TALK_BOOTING ||
               from == MU_TALK_JOINED || from == MU_TALK_GIVING_UP || from == MU_TALK_LEAVING;
    case MU_TALK_JOINING:
        return from == MU_TALK_SEEKING || from == MU_TALK_IDLE || from == MU_TALK_BOOTING || from == MU_TALK_JOINED ||
               from == MU_TALK_LEAVING_TO_JOIN;
    case MU_TALK_BOOTING:
        return from == MU_TALK_JOINING;
    case MU_TALK_JOINED:
    case MU_TALK_GIVING_UP:
        return from == MU_TALK_BOOTING;
    case MU_TALK_LEAVING:
        return from == MU_TALK_SEEKING || (from >= MU_TALK_IDLE && from != MU_TALK_LEAVING);
    case MU_TALK_LEAVING_TO_JOIN:
        return from == MU_TALK_LEAVING || from == MU_TALK_SEEKING;
    }
    return false;
}

/* What must hold between two steps. */
static void check(const struct mu_talk *t)
{
    bool waits_for_join = mu_talk_is_joining(t);

    if (mu_talk_has_back_end(t)) {
        assert(!is_queued(t, MU_PART_ON_JOIN) || t->state == MU_TALK_JOINING);
        assert(!is_queued(t, MU_PART_ON_LEAVE) || is_leaving(t));
    } else {
        waits_for_join = is_queued(t, MU_PART_ON_JOIN);
        assert(t->state != MU_TALK_ABSENT || t->queue_count == 0 ||
               (t->queue_count == 1 && is_queued(t, MU_PART_ON_LEAVE)));
    }
    assert(t->joins_asked - t->joins_answered == (waits_for_join ? 1 : 0)); /* one answer to each JOIN */
    assert(t->state == MU_TALK_BOOTING || (t->waiting == 0 && !t->closed));
    assert(t->state != MU_TALK_GIVING_UP || t->error.code != 0);
    assert(t->state != MU_TALK_JOINED || t->round >= 0);
}

static void become(struct mu_talk *t, enum mu_talk_state state)
{
    assert(is_way(t->state, state));
    if (t->state == MU_TALK_BOOTING) { /* what was kept back is told by now, or never */
        t->waiting = 0;
        t->closed = false;
    }
    t->state = state;
}

/* ---- Effects ---- */

static struct mu_talk_effect *emit(struct mu_talk_effects *out, enum mu_talk_effect_type type)
{
    struct mu_talk_effect *effect;

    assert(out->count < MU_TALK_EFFECTS_MAX);
    effect = &out->items[out->count++];
    *effect = (struct mu_talk_effect){ .type = type, .round = -1 };
    return effect;
}

static struct mu_talk_effect *tell(const struct mu_talk *t, enum mu_part_tell what, struct mu_talk_effects *out)
{
    struct mu_talk_effect *effect = emit(out, MU_TALK_DO_TELL);

    effect->tell = what;
    effect->round = t->round;
    return effect;
}

static void tell_failed(const struct mu_talk *t, enum mu_part_event_type asked, const struct muster_error *error,
                        struct mu_talk_effects *out)
{
    struct mu_talk_effect *effect = tell(t, MU_PART_TELL_FAILED, out);

    effect->asked = asked;
    effect->error = error;
}

static void stop_boot(const struct mu_talk *t, struct mu_talk_effects *out)
{
    if (t->state == MU_TALK_BOOTING)
        (void)emit(out, MU_TALK_DO_STOP_BOOT);
}

/* ---- Joining ---- */

static void ask_to_join(struct mu_talk *t)
{
    become(t, MU_TALK_JOINING);
    enqueue(t, MU_PART_ON_JOIN);
}

static void fail_join(struct mu_talk *t, const struct muster_error *error, struct mu_talk_effects *out)
{
    unqueue(t, MU_PART_ON_JOIN); /* its owner knows now */
    stop_boot(t, out);
    become(t, MU_TALK_IDLE);
    t->joins_answered++;
    tell_failed(t, MU_PART_ON_JOIN, error, out);
}

/* The node leaves before the owner hears why. */
static void give_up(struct mu_talk *t, const struct muster_error *error)
{
    t->error = *error;
    become(t, MU_TALK_GIVING_UP);
    enqueue(t, MU_PART_ON_LEAVE);
}

/* The round has ended before the owner was told that it began. */
static void join_next_instead(struct mu_talk *t, uint64_t now_ms, struct mu_talk_effects *out)
{
    struct muster_error error;

    stop_boot(t, out);
    if (now_ms < t->join_deadline_ms) {
        ask_to_join(t);
        return;
    }
    (void)mu_fail(&error, MUSTER_ERDZV_TIMEOUT,
                  "timed out after %" PRIu64 " s: every round lost a member before it could begin", t->join_ms / 1000);
    give_up(t, &error);
}

static void on_booted(struct mu_talk *t, struct mu_talk_effects *out)
{
    int64_t waiting = t->waiting;
    bool closed = t->closed;

    assert(t->state == MU_TALK_BOOTING);
    t->round = t->boot_round;
    t->joins_answered++;
    become(t, MU_TALK_JOINED);
    (void)tell(t, MU_PART_TELL_JOINED, out);
    if (waiting > 0) {
        struct mu_talk_effect *effect = tell(t, MU_PART_TELL_WAITING, out);

        effect->count = waiting;
        effect->who = t->waiting_who[0] != '\0' ? t->waiting_who : NULL;
    }
    if (closed)
        tell(t, MU_PART_TELL_CLOSED, out)->asked = MU_PART_ON_TIME;
}

/* ---- What the machine tells ---- */

/* LEFT, or leaving has failed; then we are out all the same. */
static void on_left(struct mu_talk *t, const struct mu_part_news *news, struct mu_talk_effects *out)
{
    assert(is_leaving(t) && !is_queued(t, MU_PART_ON_LEAVE));
    if (t->state == MU_TALK_GIVING_UP) {
        become(t, MU_TALK_IDLE);
        t->joins_answered++;
        tell_failed(t, MU_PART_ON_JOIN, &t->error, out);
        return;
    }
    if (news->tell == MU_PART_TELL_FAILED)
        tell_failed(t, MU_PART_ON_LEAVE, news->error, out);
    else
        (void)tell(t, MU_PART_TELL_LEFT, out);
    if (t->state == MU_TALK_LEAVING_TO_JOIN)
        ask_to_join(t);
    else
        become(t, MU_TALK_IDLE);
}

/* The join has failed, or the membership of a round. A round that the owner was not told of belongs to the join. An
 * owner that wants to leave hears of that alone. */
static void on_membership_failed(struct mu_talk *t, const struct muster_error *error, struct mu_talk_effects *out)
{
    if (t->state == MU_TALK_JOINING || t->state == MU_TALK_BOOTING) {
        fail_join(t, error, out);
    } else if (t->state == MU_TALK_JOINED) {
        become(t, MU_TALK_IDLE);
        tell_failed(t, MU_PART_ON_TIME, error, out);
    }
}

static void on_failed(struct mu_talk *t, const struct mu_part_news *news, struct mu_talk_effects *out)
{
    if (news->asked == MU_PART_ON_LEAVE)
        on_left(t, news, out);
    else if (news->asked == MU_PART_ON_CLOSE)
        tell_failed(t, MU_PART_ON_CLOSE, news->error, out);
    else
        on_membership_failed(t, news->error, out);
}

static void pass_on(const struct mu_talk *t, const struct mu_part_news *news, struct mu_talk_effects *out)
{
    struct mu_talk_effect *effect = tell(t, news->tell, out);

    effect->round = news->round;
    effect->count = news->count;
    effect->asked = news->asked;
    effect->error = news->error;
    effect->who = news->who;
}

/* WAITING, LOST or REMOVED. */
static void on_round_news(struct mu_talk *t, const struct mu_part_news *news, uint64_t now_ms,
                          struct mu_talk_effects *out)
{
    if (t->state == MU_TALK_JOINED) {
        assert(news->round == t->round);
        pass_on(t, news, out);
    } else if (t->state == MU_TALK_BOOTING && news->tell == MU_PART_TELL_WAITING) {
        t->waiting = news->count;
        (void)snprintf(t->waiting_who, sizeof t->waiting_who, "%s", news->who != NULL ? news->who : "");
    } else if (t->state == MU_TALK_BOOTING) {
        join_next_instead(t, now_ms, out);
    }
}

static void on_told(struct mu_talk *t, const struct mu_part_news *news, uint64_t now_ms, struct mu_talk_effects *out)
{
    assert(mu_talk_has_back_end(t));
    switch (news->tell) {
    case MU_PART_TELL_JOINED:
        if (is_leaving(t))
            return; /* the owner does not want it any more */
        assert(t->state == MU_TALK_JOINING && !is_queued(t, MU_PART_ON_JOIN));
        t->boot_round = news->round;
        become(t, MU_TALK_BOOTING);
        (void)emit(out, MU_TALK_DO_START_BOOT);
        break;
    case MU_PART_TELL_WAITING:
    case MU_PART_TELL_LOST:
    case MU_PART_TELL_REMOVED:
        on_round_news(t, news, now_ms, out);
        break;
    case MU_PART_TELL_CLOSED: /* kept back as news of the round; an answer is told now, too */
        t->closed |= t->state == MU_TALK_BOOTING;
        if (t->state != MU_TALK_BOOTING || news->asked == MU_PART_ON_CLOSE)
            tell(t, MU_PART_TELL_CLOSED, out)->asked = news->asked;
        break;
    case MU_PART_TELL_LEFT:
        on_left(t, news, out);
        break;
    case MU_PART_TELL_FAILED:
        on_failed(t, news, out);
        break;
    case MU_PART_TELL_BACKEND_DOWN:
    case MU_PART_TELL_BACKEND_UP:
        pass_on(t, news, out);
        out->items[out->count - 1].round = t->round;
        break;
    case MU_PART_TELL_LOOKED:
        pass_on(t, news, out);
        out->items[out->count - 1].asked = MU_PART_ON_LOOK;
        break;
    case MU_PART_TELL_PROGRESS:
        pass_on(t, news, out);
        break;
    case MU_PART_TELL_REPORTED: /* of an earlier round, nobody waits for it */
        if ((t->state == MU_TALK_JOINED && news->round == t->round) ||
            (t->state == MU_TALK_IDLE && news->error != NULL))
            pass_on(t, news, out);
        break;
    case MU_PART_TELL_FOREIGN: /* is logged, and told to nobody */
    case MU_PART_TELLS_COUNT:
        break;
    }
}

/* ---- What the owner asks ---- */

static void on_join(struct mu_talk *t, uint64_t now_ms)
{
    t->joins_asked++;
    t->join_deadline_ms = now_ms + t->join_ms;
    if (!mu_talk_has_back_end(t))
        enqueue(t, MU_PART_ON_JOIN);
    else if (t->state == MU_TALK_LEAVING)
        become(t, MU_TALK_LEAVING_TO_JOIN);
    else
        ask_to_join(t);
}

/* It takes back a JOIN that is not answered yet. One LEFT answers all that ask for it. */
static void on_leave(struct mu_talk *t, struct mu_talk_effects *out)
{
    if (mu_talk_is_joining(t) || is_queued(t, MU_PART_ON_JOIN))
        t->joins_answered++;
    unqueue(t, MU_PART_ON_JOIN);
    stop_boot(t, out);
    if (!is_leaving(t))
        enqueue(t, MU_PART_ON_LEAVE);
    if (mu_talk_has_back_end(t) && t->state != MU_TALK_LEAVING)
        become(t, MU_TALK_LEAVING);
}

static void on_asked(struct mu_talk *t, const struct mu_talk_event *event, struct mu_talk_effects *out)
{
    if (event->asked == MU_PART_ON_JOIN)
        on_join(t, event->now_ms);
    else if (event->asked == MU_PART_ON_LEAVE)
        on_leave(t, out);
    else if (event->asked != MU_PART_ON_REPORT)
        enqueue(t, event->asked);
    else if (t->state == MU_TALK_JOINED || t->state == MU_TALK_IDLE) /* the machine says that it is in no round */
        enqueue_report(t, event->report);
    if (t->state == MU_TALK_ABSENT && event->asked != MU_PART_ON_LEAVE)
        become(t, MU_TALK_UNSOUGHT);
}

/* Without a back end we are in no round, and have left at once. */
static void take_turn_without_back_end(struct mu_talk *t, struct mu_talk_effects *out)
{
    if (is_queued(t, MU_PART_ON_LEAVE)) {
        unqueue(t, MU_PART_ON_LEAVE);
        (void)tell(t, MU_PART_TELL_LEFT, out);
    }
    if (t->state != MU_TALK_UNSOUGHT)
        return;
    become(t, MU_TALK_SEEKING);
    (void)emit(out, MU_TALK_DO_FIND);
}

/* One request a turn: what comes of it at once may change the rest. */
static void on_turn(struct mu_talk *t, struct mu_talk_effects *out)
{
    struct mu_talk_effect *effect;

    if (!mu_talk_has_back_end(t)) {
        take_turn_without_back_end(t, out);
        return;
    }
    if (t->queue_count == 0)
        return;
    effect = emit(out, MU_TALK_DO_ASK);
    effect->asked = dequeue(t);
    if (effect->asked == MU_PART_ON_REPORT)
        effect->report = dequeue_report(t);
}

/* ---- The back end ---- */

static void on_found(struct mu_talk *t, uint64_t now_ms)
{
    bool joins = is_queued(t, MU_PART_ON_JOIN), leaves = is_queued(t, MU_PART_ON_LEAVE);

    t->join_deadline_ms = now_ms + t->join_ms;
    if (leaves)
        unqueue(t, MU_PART_ON_JOIN); /* it comes behind */
    become(t, leaves ? (joins ? MU_TALK_LEAVING_TO_JOIN : MU_TALK_LEAVING) : joins ? MU_TALK_JOINING : MU_TALK_IDLE);
}

/* What the owner asks when it hears of that is of the next try. */
static void on_not_found(struct mu_talk *t, const struct muster_error *error, struct mu_talk_effects *out)
{
    for (size_t i = 0; i < t->queue_count; i++) {
        enum mu_part_event_type asked = t->queue[i];

        if (asked == MU_PART_ON_LEAVE)
            (void)tell(t, MU_PART_TELL_LEFT, out);
        else
            tell_failed(t, asked, error, out);
        if (asked == MU_PART_ON_LOOK)
            out->items[out->count - 1].tell = MU_PART_TELL_LOOKED;
        if (asked == MU_PART_ON_JOIN)
            t->joins_answered++;
    }
    t->queue_count = 0;
    become(t, MU_TALK_ABSENT);
}

/* A round that was joined is over by now. We have left what we were leaving. */
static void on_moved(struct mu_talk *t, const struct mu_talk_event *event, struct mu_talk_effects *out)
{
    bool joins = t->state == MU_TALK_JOINING || t->state == MU_TALK_BOOTING || t->state == MU_TALK_LEAVING_TO_JOIN;
    bool leaves = t->state == MU_TALK_LEAVING || t->state == MU_TALK_LEAVING_TO_JOIN;

    assert(mu_talk_has_back_end(t));
    stop_boot(t, out);
    if (t->state == MU_TALK_GIVING_UP) {
        t->joins_answered++;
        tell_failed(t, MU_PART_ON_JOIN, &t->error, out);
    }
    if (leaves)
        (void)tell(t, MU_PART_TELL_LEFT, out);
    unqueue(t, MU_PART_ON_LEAVE);
    unqueue(t, MU_PART_ON_REPORT);
    t->reports_count = 0;
    become(t, MU_TALK_UNSOUGHT);
    if (joins)
        enqueue(t, MU_PART_ON_JOIN);
    if (event->close)
        enqueue(t, MU_PART_ON_CLOSE);
    if (event->look)
        enqueue(t, MU_PART_ON_LOOK);
}

/* ---- The machine ---- */

void mu_talk_init(struct mu_talk *t, uint64_t join_ms, bool finds_back_end)
{
    *t = (struct mu_talk){
        .state = finds_back_end ? MU_TALK_UNSOUGHT : MU_TALK_IDLE, .join_ms = join_ms, .round = -1, .boot_round = -1
    };
}

void mu_talk_step(struct mu_talk *t, const struct mu_talk_event *event, struct mu_talk_effects *out)
{
    out->count = 0;
    check(t);
    switch (event->type) {
    case MU_TALK_ON_ASKED:
        on_asked(t, event, out);
        break;
    case MU_TALK_ON_TURN:
        on_turn(t, out);
        break;
    case MU_TALK_ON_TOLD:
        on_told(t, event->news, event->now_ms, out);
        break;
    case MU_TALK_ON_BOOTED:
        on_booted(t, out);
        break;
    case MU_TALK_ON_BOOT_FAILED:
        give_up(t, event->error);
        break;
    case MU_TALK_ON_FOUND:
        on_found(t, event->now_ms);
        break;
    case MU_TALK_ON_NOT_FOUND:
        on_not_found(t, event->error, out);
        break;
    case MU_TALK_ON_MOVED:
        on_moved(t, event, out);
        break;
    }
    check(t);
}

MU_DEFINE_TEXTS(mu_talk_state_text, enum mu_talk_state, MU_TALK_STATES)

enum muster_rdzv_request mu_talk_request(enum mu_part_event_type asked)
{
    static const enum muster_rdzv_request requests[] = {
        [MU_PART_ON_JOIN] = MUSTER_RDZV_REQUEST_JOIN,       [MU_PART_ON_LEAVE] = MUSTER_RDZV_REQUEST_LEAVE,
        [MU_PART_ON_CLOSE] = MUSTER_RDZV_REQUEST_CLOSE,     [MU_PART_ON_LOOK] = MUSTER_RDZV_REQUEST_LOOK,
        [MU_PART_ON_TIME] = MUSTER_RDZV_REQUEST_MEMBERSHIP, [MU_PART_ON_REPORT] = MUSTER_RDZV_REQUEST_UNKNOWN
    };

    return requests[asked];
}

/* ---- In the words of the owner ---- */

static int64_t left_ms(uint64_t until_ms, uint64_t now_ms)
{
    if (until_ms == UINT64_MAX)
        return -1;
    return until_ms > now_ms ? (int64_t)(until_ms - now_ms) : 0;
}

static void add_world(struct muster_rdzv_event *event, struct mu_talk_facts *facts)
{
    struct mu_part_world world = { .rank = -1 };

    (void)facts->part_ops->world(facts->part, &world);
    facts->info = (struct muster_rdzv_info){
        .round = world.round, .rank = world.rank, .world_size = (int64_t)world.count, .bootstrap = *facts->bootstrap
    };
    event->info = &facts->info;
    event->seat = world.seat;
}

static void add_progress(struct muster_rdzv_event *event, struct mu_talk_facts *facts)
{
    struct mu_part_progress seen = facts->part_ops->progress(facts->part);

    facts->progress =
        (struct muster_rdzv_progress){ .min_nodes = facts->nodes_min,
                                       .max_nodes = facts->nodes_max,
                                       .joined = seen.joined,
                                       .waiting = seen.waiting,
                                       .spares = seen.spares,
                                       .spare = seen.spare,
                                       .last_call_left_ms = left_ms(seen.last_call_until_ms, facts->now_ms),
                                       .join_left_ms = left_ms(seen.deadline_ms, facts->now_ms) };
    event->round = seen.round;
    event->progress = &facts->progress;
}

static const struct mu_part_verdict *verdict(const struct mu_talk_facts *facts)
{
    return facts->part != NULL && facts->part_ops->led != NULL ? facts->part_ops->led->verdict(facts->part) : NULL;
}

static void add_outage(struct muster_rdzv_event *event, const struct mu_part_news *news)
{
    event->count = news->host_lost ? 1 : 0;
    event->away_ms = (int64_t)news->away_ms;
    if (news->give_up_in_ms != UINT64_MAX) /* 0: without a limit, or not known */
        event->give_up_in_ms = news->give_up_in_ms > 0 ? (int64_t)news->give_up_in_ms : 1;
}

/* What machines tell, and what owners are told, are the same list. */
_Static_assert((int)MU_PART_TELL_JOINED == (int)MUSTER_RDZV_JOINED &&
                   (int)MU_PART_TELL_LOST == (int)MUSTER_RDZV_PEERS_LOST &&
                   (int)MU_PART_TELL_LOOKED == (int)MUSTER_RDZV_LOOKED &&
                   (int)MU_PART_TELL_REPORTED == (int)MUSTER_RDZV_REPORTED,
               "");

const struct mu_part_news mu_talk_progress_news = { .tell = MU_PART_TELL_PROGRESS, .round = -1 };

struct muster_rdzv_event mu_talk_event(const struct mu_talk *t, const struct mu_talk_effect *effect,
                                       struct mu_talk_facts *facts)
{
    const struct mu_part_news *news = facts->news;
    struct muster_error *error = &facts->error;
    struct muster_rdzv_event event = { .type = (enum muster_rdzv_event_type)effect->tell,
                                       .round = effect->round,
                                       .count = effect->count };

    if (effect->error != NULL) {
        *error = *effect->error;
        event.error = error;
        if (effect->tell == MU_PART_TELL_FAILED && mu_talk_has_back_end(t) && !muster_error_is_rdzv(error->code))
            error->code = MUSTER_ERDZV_CONNECTION; /* why there is no back end keeps its own code */
    }
    if (effect->tell == MU_PART_TELL_FAILED || effect->tell == MU_PART_TELL_LOOKED)
        event.request = mu_talk_request(effect->asked);
    if (effect->tell == MU_PART_TELL_BACKEND_DOWN)
        add_outage(&event, news);
    if (effect->tell == MU_PART_TELL_LOST)
        event.cause = news->cause != NULL ? news->cause : facts->loss_cause;
    if (effect->tell == MU_PART_TELL_REMOVED)
        event.cause = news->cause;
    if (effect->tell == MU_PART_TELL_FAILED || effect->tell == MU_PART_TELL_CLOSED)
        event.verdict = verdict(facts);
    if (effect->tell == MU_PART_TELL_WAITING && effect->who != NULL) {
        facts->first = (struct muster_node){ effect->who, -1, -1 };
        event.nodes = &facts->first;
        event.nodes_count = 1;
    }
    if (effect->tell == MU_PART_TELL_JOINED)
        add_world(&event, facts);
    if (effect->tell == MU_PART_TELL_PROGRESS)
        add_progress(&event, facts);
    event.closed = effect->tell == MU_PART_TELL_LOOKED && news != NULL && news->closed;
    return event;
}

enum mu_talk_nodes mu_talk_nodes(enum mu_part_tell tell)
{
    switch (tell) {
    case MU_PART_TELL_JOINED:
        return MU_TALK_NODES_MEMBERS;
    case MU_PART_TELL_WAITING:
        return MU_TALK_NODES_WAITING;
    case MU_PART_TELL_LOST:
        return MU_TALK_NODES_LOST;
    case MU_PART_TELL_PROGRESS:
        return MU_TALK_NODES_SEEN;
    case MU_PART_TELL_FAILED:
    case MU_PART_TELL_CLOSED:
    case MU_PART_TELL_BACKEND_DOWN:
    case MU_PART_TELL_BACKEND_UP:
    case MU_PART_TELL_LOOKED:
    case MU_PART_TELL_LEFT:
    case MU_PART_TELL_REMOVED:
    case MU_PART_TELL_REPORTED:
    case MU_PART_TELL_FOREIGN:
    case MU_PART_TELLS_COUNT:
        break;
    }
    return MU_TALK_NODES_NONE;
}
