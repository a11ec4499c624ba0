/* A store that fails, or has lost the document.
 *
 * A store that is away is asked again, at delays that grow up to half a keep-alive interval, and nobody is judged.
 * If it comes back without the document, a member that holds the document of its round puts it back; a node that
 * had left that round leaves it once more. If no node holds one, numbers of rounds may come again. So no node joins
 * the same members under the same number twice, and the keys of a round carry a tag made of its members
 * (round_keys.h).
 *
 * If the store's host is a member, it is lost with the store: at once when connections are refused, after the death age
 * and store_lost_ms when there is silence. Nodes that join wait store_lost_ms for such a store, and then fail with an
 * error that names the host; a node without a place in the round waits MU_RDZV_SURPLUS_MS. A muster host puts its name
 * under a key. A PyTorch member counts as the host if it has the endpoint's name, and for spares if no node says that
 * it hosts. Members try a store that stands alone without a limit. */
#include "rdzv/rdzv_parts.h"
#include "rdzv/store_lost_text.h"

#include <assert.h>
#include <stdlib.h>

/* ---- A value that is no document ---- */

void mu_rdzv_set_value(struct mu_rdzv *r, enum value_state value)
{
    if (r->value != value)
        r->value_since_ms = r->now_ms;
    r->value = value;
    assert((value != VALUE_GONE && value != VALUE_FOREIGN) || r->size == 0);
}

/* The document is not for us, and is left as it is. The owner's requests fail at once, a membership after the death
 * age. */
void mu_rdzv_refuse(struct mu_rdzv *r, const struct muster_error *error)
{
    mu_rdzv_set_value(r, VALUE_REFUSED);
    mu_rdzv_try_later(r);
    r->error = *error;
    mu_rdzv_answer_look(r);
    if (r->close == CLOSE_ASKED)
        mu_rdzv_refuse_close(r);
    if (is_joining(r)) {
        mu_rdzv_fail_join(r);
    } else if (r->phase == MU_RDZV_PHASE_LEAVING) {
        mu_rdzv_abandon(r);
        mu_rdzv_become(r, MU_RDZV_PHASE_IDLE);
        tell_failed(r, MU_PART_ON_LEAVE);
    } else if (r->phase == MU_RDZV_PHASE_MEMBER &&
               r->now_ms - r->value_since_ms >= mu_rdzv_death_age_ms(&r->settings)) {
        mu_rdzv_become(r, MU_RDZV_PHASE_IDLE);
        mu_rdzv_forget_world(r);
        tell_failed(r, MU_PART_ON_TIME);
    }
}

/* ---- A store that is lost ---- */

/* The store goes with another node that is, or was, one of the job. */
static bool host_is_member(const struct mu_rdzv *r)
{
    return r->host_state == HOST_MEMBER && !mu_node_equal(&r->host, &r->me);
}

void mu_rdzv_look_for_host(struct mu_rdzv *r)
{
    if (r->host_state == HOST_NODE && (mu_rdzv_in_world(r, &r->host) || mu_doc_find(&r->sights.doc, &r->host) != NULL))
        r->host_state = HOST_MEMBER;
}

/* We want to join, and the round is complete and full without us. Where the document is gone or was
 * overwritten, there may be no such round any more. */
static bool is_surplus(const struct mu_rdzv *r)
{
    const struct mu_doc *doc = &r->sights.doc;

    return is_joining(r) && r->copy == COPY_STORED && r->value == VALUE_FINE && doc->complete &&
           !mu_doc_has(doc, &r->me, MU_DOC_PARTICIPANT) &&
           (r->spare || (int64_t)doc->participants >= r->settings.nodes_max);
}

/* When the store is lost for good; NEVER: it is waited for without a limit. A PyTorch node does not say that it hosts
 * the store; where one is in the round and no node of ours hosts it, a PyTorch node does. */
static uint64_t store_lost_ms(const struct mu_rdzv *r)
{
    bool with_stock = r->host_state == HOST_OUTSIDE && r->copy != COPY_NONE && !r->all_ours;

    if (r->store == STORE_REFUSED && is_surplus(r) && (host_is_member(r) || with_stock))
        return r->refused_since_ms + MU_RDZV_SURPLUS_MS;
    if (!is_away(r) || !host_is_member(r))
        return NEVER;
    if (r->store == STORE_REFUSED)
        return r->refused_since_ms + r->settings.store_lost_ms;
    return r->away_since_ms + mu_rdzv_death_age_ms(&r->settings) + r->settings.store_lost_ms;
}

/* A join to a lost store has a moment, for the store may be back. */
uint64_t mu_rdzv_join_lost_ms(const struct mu_rdzv *r)
{
    uint64_t lost_ms = is_joining(r) ? store_lost_ms(r) : NEVER;

    return lost_ms == NEVER ? NEVER : later(lost_ms, r->op_start_ms + MU_RDZV_LAST_TRY_MS);
}

static bool is_told_lost(const struct mu_rdzv *r, const struct mu_node *node)
{
    for (size_t i = 0; i < r->lost_count && i < r->told_lost; i++)
        if (mu_node_equal(&r->lost[i], node))
            return true;
    return false;
}

/* When the host of a store that is away is lost to the members of its round; NEVER: it is not, or they know. */
uint64_t mu_rdzv_host_lost_ms(const struct mu_rdzv *r)
{
    if (r->phase != MU_RDZV_PHASE_MEMBER || !is_away(r) || !host_is_member(r) || !mu_rdzv_in_world(r, &r->host) ||
        is_told_lost(r, &r->host))
        return NEVER;
    return r->store == STORE_REFUSED ? r->refused_since_ms : store_lost_ms(r);
}

void mu_rdzv_judge_host(struct mu_rdzv *r)
{
    if (r->now_ms < mu_rdzv_host_lost_ms(r))
        return;
    assert(r->lost_count < r->world.count); /* we are in it, and are not lost */
    for (size_t i = 0; i < r->world.count; i++)
        if (mu_node_equal(&r->world.members[i], &r->host))
            r->lost[r->lost_count++] = r->world.members[i];
    mu_rdzv_tell_lost(r);
}

void mu_rdzv_say_store_lost(struct mu_rdzv *r)
{
    bool is_refused = r->store == STORE_REFUSED;

    mu_store_lost_text(
        &(struct mu_store_lost){ .where = r->endpoint,
                                 .host = &r->host,
                                 .is_surplus = is_surplus(r),
                                 .is_refused = is_refused,
                                 .since_ms = r->now_ms - (is_refused ? r->refused_since_ms : r->away_since_ms) },
        &r->error);
}

/* ---- A request that failed ---- */

/* When the store is back, we must be back before others have looked for us too long. */
static uint64_t retry_max_ms(const struct mu_rdzv *r)
{
    return sooner(MU_RDZV_RETRY_MAX_MS, r->settings.keep_alive_ms / 2 + 1);
}

static uint64_t left_ms(const struct mu_rdzv *r, uint64_t until_ms)
{
    return until_ms == NEVER ? NEVER : until_ms > r->now_ms ? until_ms - r->now_ms : 0;
}

/* Something that was due then comes only now: we did not look, and what was not answered meanwhile says nothing. */
static bool was_paused(const struct mu_rdzv *r, uint64_t due_ms)
{
    return due_ms != NEVER && r->now_ms > due_ms + r->settings.keep_alive_ms;
}

void mu_rdzv_note_pause(struct mu_rdzv *r, const struct mu_rdzv_event *event)
{
    uint64_t due_ms = mu_rdzv_deadline_ms(r);

    if (event->type == MU_RDZV_REQUEST_FAILED && event->id != 0 && event->id == r->main_id)
        due_ms = sooner(due_ms, r->main_sent_ms + 2 * r->settings.heartbeat_ms);
    if (is_away(r) && was_paused(r, due_ms))
        r->away_since_ms = r->refused_since_ms = r->now_ms;
}

/* From now on, and not from when it was asked: we may have paused in between. */
static void set_store(struct mu_rdzv *r, enum store_state state)
{
    if (state == STORE_SILENT)
        r->away_since_ms = r->now_ms;
    if (state == STORE_REFUSED)
        r->refused_since_ms = r->now_ms;
    assert(state != STORE_SILENT || r->store == STORE_HERE);
    assert(state != STORE_REFUSED || r->store == STORE_SILENT);
    r->store = state;
}

/* Tells that the store is away, and once more when it turns out that nobody listens there. */
static void note_away(struct mu_rdzv *r, const struct mu_rdzv_event *event)
{
    enum store_state before = r->store;
    struct mu_part_news *news;

    if (before == STORE_HERE)
        set_store(r, STORE_SILENT);
    if (event->gone && before != STORE_REFUSED)
        set_store(r, STORE_REFUSED);
    if (r->told_store == r->store || r->phase == MU_RDZV_PHASE_IDLE)
        return;
    r->told_store = r->store;
    news = tell(r, MU_PART_TELL_BACKEND_DOWN);
    news->error = &r->error;
    news->away_ms = before == STORE_HERE ? sooner(r->now_ms - r->main_sent_ms, 2 * r->settings.heartbeat_ms)
                                         : r->now_ms - r->away_since_ms;
    news->give_up_in_ms = left_ms(r, is_joining(r) ? mu_rdzv_join_lost_ms(r) : store_lost_ms(r));
    news->host_lost = r->now_ms >= mu_rdzv_host_lost_ms(r); /* see mu_rdzv_judge_host() */
}

void mu_rdzv_on_request_failed(struct mu_rdzv *r, const struct mu_rdzv_event *event)
{
    if (event->error->code == MUSTER_ERDZV_STATE) {
        mu_rdzv_refuse(r, event->error);
        return;
    }
    r->maybe_in |= r->main_type == MU_RDZV_DO_WRITE;
    mu_rdzv_retry_at(r, r->now_ms + mu_rng_jitter(&r->rng, r->retry_ms, 50));
    r->retry_ms = sooner(r->retry_ms * 2, retry_max_ms(r));
    r->error = *event->error;
    if (r->phase == MU_RDZV_PHASE_SETTLING)
        mu_rdzv_become(r, MU_RDZV_PHASE_JOINING); /* look again; the round may be another one by then */
    note_away(r, event);
    if (is_joining(r) && r->spare && store_lost_ms(r) == NEVER) {
        r->spare = false; /* of what? Unless the store is back in time, and lists us */
        r->deadline_ms = r->now_ms + r->settings.join_ms;
    }
    mu_rdzv_answer_look(r);
}

void mu_rdzv_is_up(struct mu_rdzv *r)
{
    assert(r->look != LOOK_RETRY); /* this is the answer */
    if (r->told_store != STORE_HERE)
        tell(r, MU_PART_TELL_BACKEND_UP);
    r->store = r->told_store = STORE_HERE;
    r->retry_ms = MU_RDZV_RETRY_MS;
}

/* ---- A document that is gone, or was overwritten ---- */

/* We were in the complete round of our copy, and it may still go on. After a deletion only members put it back; a
 * foreign value is also replaced by a node that is about to leave that round, so that the others learn of it. */
static bool holds_round(const struct mu_rdzv *r)
{
    const struct mu_doc *last = &r->sights.doc;
    bool leaving = r->phase == MU_RDZV_PHASE_EXITING || r->phase == MU_RDZV_PHASE_LEAVING;

    return r->copy == COPY_STORED && last->complete && mu_doc_has(last, &r->me, MU_DOC_PARTICIPANT) && has_world(r) &&
           last->round == r->world.round &&
           (r->phase == MU_RDZV_PHASE_MEMBER || (leaving && r->value == VALUE_FOREIGN));
}

/* A copy from before a pause of ours may be of a round that the others have left. They have most of the interval to put
 * theirs back first. */
static bool may_put_back(const struct mu_rdzv *r)
{
    uint64_t interval_ms = r->settings.keep_alive_ms;

    return holds_round(r) && (r->value != VALUE_FOREIGN || r->now_ms - r->sights.seen_ms <= interval_ms ||
                              r->now_ms - r->value_since_ms >= interval_ms / 10 * 9);
}

/* Our copy may have older heartbeats than the document that was lost, which would look like silence. So each is made a
 * little later: a change, which begins the others' judgement anew. */
static void renew_heartbeats(struct mu_doc *doc)
{
    for (size_t i = 0; i < doc->count; i++)
        doc->members[i].heartbeat_us++;
}

static void put_back(struct mu_rdzv *r)
{
    struct plan plan = { .phase = r->phase, .rings = true };
    int64_t doc_now_us = mu_liveness_time(&r->sights, &r->me, r->now_ms, r->beat_us, r->beat_sent_ms, r->wall_us);
    int rc;

    assert(holds_round(r) && (r->value == VALUE_GONE || r->value == VALUE_FOREIGN));
    rc = mu_doc_copy(&r->doc, &r->sights.doc);
    if (rc == 0) {
        renew_heartbeats(&r->doc);
        r->dead_count = 0;
        rc = mu_rdzv_apply(r, &plan, MU_RDZV_KEEP_ALIVE, doc_now_us);
    }
    if (rc == 0)
        mu_rdzv_send_write(r, &plan, doc_now_us);
    else
        mu_rdzv_try_later(r);
}

/* Others may hold the document: members look as often as we do. Where it is gone, there are such members if we saw
 * their round; where it was overwritten, there may always be some. */
static bool others_may_restore(const struct mu_rdzv *r)
{
    const struct mu_doc *last = &r->sights.doc;
    bool theirs =
        is_joining(r) && r->copy == COPY_STORED && last->complete && !mu_doc_has(last, &r->me, MU_DOC_PARTICIPANT);

    return (theirs || r->value == VALUE_FOREIGN) && r->now_ms - r->value_since_ms < r->settings.keep_alive_ms;
}

/* A new document, at a round that was not there yet: the open one may have been completed unseen. */
static void begin_anew(struct mu_rdzv *r)
{
    const struct mu_doc *last = &r->sights.doc;

    mu_doc_reset(&r->incoming, last->dialect); /* there may be others yet who read only that */
    r->incoming.round = r->copy == COPY_STORED ? last->round + 1 : last->round;
    if (r->value == VALUE_GONE)
        mu_rdzv_set_value(r, VALUE_NONE);
    if (mu_rdzv_see(r, &r->incoming, COPY_MADE_UP) < 0)
        mu_rdzv_try_later(r);
    else
        mu_rdzv_evaluate(r);
}

static void restore(struct mu_rdzv *r)
{
    r->sights.any = false; /* nobody is judged by what was before */
    if (may_put_back(r))
        put_back(r);
    else if (others_may_restore(r))
        mu_rdzv_retry_at(r, r->now_ms + MU_RDZV_POLL_MS / 2);
    else
        begin_anew(r);
}

/* The store has no document: it is new, or has lost its data. */
void mu_rdzv_on_missing(struct mu_rdzv *r)
{
    r->size = 0;
    mu_rdzv_set_value(r, VALUE_GONE);
    restore(r);
}

/* Somebody has written something else there. It is replaced, by compare-and-set, as if there were nothing. */
void mu_rdzv_on_foreign(struct mu_rdzv *r, const struct mu_rdzv_event *event, const struct muster_error *error)
{
    bool first = r->value != VALUE_FOREIGN;

    if (mu_rdzv_keep_token(r, VALUE_FOREIGN, event->token, 0) < 0) {
        mu_rdzv_try_later(r);
        return;
    }
    (void)mu_fail(&r->error, MUSTER_ERDZV_STATE, "somebody has overwritten the document: %s; %s", error->text,
                  may_put_back(r) ? "putting it back" : "waiting for its members to put it back");
    if (first)
        tell(r, MU_PART_TELL_FOREIGN)->error = &r->error;
    mu_rdzv_answer_look(r);
    restore(r);
}

void mu_rdzv_on_host(struct mu_rdzv *r, const struct mu_node *host)
{
    char *name = host != NULL ? mu_slice_copy(host->name) : NULL;
    bool known = r->host_state == HOST_NODE || r->host_state == HOST_MEMBER;
    bool same = host != NULL && known && mu_node_equal(&r->host, host);

    free(r->host_name);
    r->host_name = name;
    if (name == NULL) {
        r->host_state = host == NULL ? HOST_OUTSIDE : HOST_UNKNOWN;
        return;
    }
    if (!same)
        r->host_state = HOST_NODE;
    r->host = *host;
    r->host.name.data = r->host_name;
    mu_rdzv_look_for_host(r);
}
