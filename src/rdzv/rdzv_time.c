/* When to look at the document, when to give up, and what is sent when its time has come. */
#include "rdzv/rdzv_parts.h"

/* ---- When to look ---- */

void mu_rdzv_set_look(struct mu_rdzv *r, enum look_state state)
{
    assert(state != LOOK_RETRY || r->main_id == 0); /* its answer would come in between */
    r->look = state;
}

void mu_rdzv_look_now(struct mu_rdzv *r)
{
    if (r->look != LOOK_RETRY)
        mu_rdzv_set_look(r, LOOK_NOW);
}

void mu_rdzv_hold_back(struct mu_rdzv *r, bool held)
{
    if (r->look == LOOK_SLOWLY || r->look == LOOK_HELD_BACK)
        mu_rdzv_set_look(r, held ? LOOK_HELD_BACK : LOOK_SLOWLY);
}

void mu_rdzv_retry_at(struct mu_rdzv *r, uint64_t when_ms)
{
    mu_rdzv_set_look(r, LOOK_RETRY);
    r->retry_at_ms = when_ms;
}

void mu_rdzv_try_later(struct mu_rdzv *r)
{
    mu_rdzv_retry_at(r, r->now_ms + MU_RDZV_POLL_MS);
}

static uint64_t poll_ms(const struct mu_rdzv *r)
{
    uint64_t bytes = (uint64_t)r->sights.doc.count * r->size;
    uint64_t slow = bytes / ((r->all_ours && r->has_bell ? MU_RDZV_POLL_OURS_BYTES_S : MU_RDZV_POLL_BYTES_S) / 1000);
    uint64_t most = r->settings.keep_alive_ms / 5 * 4; /* a longer gap would keep us from judging anybody */

    /* A crowd that waits for its turns must not keep the store from the node whose turn it is. */
    if (r->turn_state == TURN_WAITING && mu_rdzv_turns_before(r) > MU_RDZV_CROWD)
        slow = later(slow, mu_rdzv_turns_before(r) * MU_RDZV_POLL_TURN_MS);
    return sooner(slow > MU_RDZV_POLL_MS ? slow : MU_RDZV_POLL_MS, most);
}

/* NEVER if we have looked since. */
static uint64_t if_new(const struct mu_rdzv *r, uint64_t when_ms)
{
    return r->sights.any && when_ms <= r->sights.seen_ms ? NEVER : when_ms;
}

static bool must_beat(const struct mu_rdzv *r)
{
    return (r->phase == MU_RDZV_PHASE_EXITING || r->phase == MU_RDZV_PHASE_JOINING ||
            r->phase == MU_RDZV_PHASE_MEMBER) &&
           mu_doc_has(&r->doc, &r->me, MU_DOC_HEARTBEAT);
}

/* When a heartbeat begins with a turn; the document is read when it has come. NEVER: not now. */
static uint64_t next_turn_ms(const struct mu_rdzv *r)
{
    bool may = must_beat(r) && is_crowd(r) && r->turn_state == TURN_NONE && !is_away(r) && r->value != VALUE_REFUSED;

    return may ? mu_rdzv_beat_wanted_ms(r) : NEVER;
}

/* When the document has to be looked at next, if nothing else happens. */
static uint64_t next_look_ms(const struct mu_rdzv *r)
{
    const struct mu_doc *doc = &r->doc;
    uint64_t base = r->sights.any && r->sights.seen_ms > r->op_start_ms ? r->sights.seen_ms : r->op_start_ms;
    uint64_t when = base + poll_ms(r);

    if (r->look == LOOK_RETRY)
        return r->retry_at_ms;
    if (r->look == LOOK_NOW || is_away(r) || r->value == VALUE_REFUSED)
        return 0;
    if (r->look == LOOK_HELD_BACK)
        when = sooner(when, r->write_after_ms);
    if (must_beat(r) && !is_crowd(r))
        when = sooner(when, if_new(r, mu_rdzv_beat_wanted_ms(r)));
    if (r->phase == MU_RDZV_PHASE_JOINING && !doc->complete && mu_doc_has(doc, &r->me, MU_DOC_PARTICIPANT) &&
        (int64_t)doc->participants >= r->settings.nodes_min) {
        uint64_t back_ms = mu_rdzv_everybody_is_back_ms(r, doc);

        if (doc->has_deadline)
            when = sooner(when, if_new(r, mu_rdzv_last_call_end_ms(r)));
        when = sooner(when, if_new(r, back_ms));
    }
    if (r->phase == MU_RDZV_PHASE_MEMBER && mu_rdzv_somebody_can_join(r) && !r->told_waiting)
        when = sooner(when, if_new(r, r->hold_until_ms));
    if (is_joining(r) && !r->spare)
        when = sooner(when, if_new(r, r->deadline_ms + 1));
    return when;
}

/* The moment after which what was asked has failed, or the host is lost, whatever is under way. */
static uint64_t give_up_ms(const struct mu_rdzv *r)
{
    uint64_t when = sooner(mu_rdzv_join_lost_ms(r), mu_rdzv_host_lost_ms(r));

    if (is_joining(r) && !r->spare)
        when = sooner(when, r->deadline_ms + MU_RDZV_ROLL_BACK_MS);
    if (r->phase == MU_RDZV_PHASE_LEAVING)
        when = r->deadline_ms;
    if (r->close == CLOSE_ASKED)
        when = sooner(when, r->close_deadline_ms);
    return when;
}

uint64_t mu_rdzv_deadline_ms(const struct mu_rdzv *r)
{
    uint64_t when = give_up_ms(r);

    if (when != NEVER)
        when++;
    if (is_active(r) && r->main_id == 0)
        when = sooner(when, sooner(next_look_ms(r), next_turn_ms(r)));
    return when;
}

static void give_up(struct mu_rdzv *r)
{
    if (r->close == CLOSE_ASKED && r->now_ms > r->close_deadline_ms)
        mu_rdzv_fail_close(r);
    mu_rdzv_judge_host(r);
    if (r->now_ms >= mu_rdzv_join_lost_ms(r)) {
        mu_rdzv_say_store_lost(r);
        mu_rdzv_fail_join(r);
    } else if (is_joining(r) && !r->spare && r->now_ms > r->deadline_ms + MU_RDZV_ROLL_BACK_MS) {
        mu_rdzv_say_timeout(r);
        mu_rdzv_fail_join(r);
    } else if (r->phase == MU_RDZV_PHASE_LEAVING && r->now_ms > r->deadline_ms) {
        mu_rdzv_fail_leave(r);
    }
}

/* A job that meets in the store's engine keeps its document back from those who want in; members have seen theirs. */
static uint64_t held_ms(const struct mu_rdzv *r)
{
    return is_joining(r) && !r->looking ? r->settings.join_ms + MU_RDZV_ROLL_BACK_MS : 0;
}

/* Sends what is due. */
void mu_rdzv_pump(struct mu_rdzv *r)
{
    give_up(r);
    if (!is_active(r) || r->main_id != 0)
        return;
    if (r->now_ms >= next_turn_ms(r))
        mu_rdzv_take_turn(r);
    if (r->now_ms >= next_look_ms(r)) {
        mu_rdzv_set_look(r, LOOK_SLOWLY);
        request(r, MU_RDZV_DO_READ)->wait_ms = held_ms(r);
    }
    if (r->has_bell && r->phase != MU_RDZV_PHASE_IDLE && (r->copy != COPY_NONE || r->value == VALUE_FOREIGN) &&
        !is_away(r) && (r->bell_state == BELL_NONE || (r->bell_state == BELL_PARKED && r->park_bell != r->bell)) &&
        r->main_id == 0) {
        struct mu_rdzv_effect *effect = push(r, MU_RDZV_DO_PARK);

        effect->id = r->park_id = ++r->last_id;
        effect->bell = r->park_bell = r->bell;
        mu_rdzv_set_bell(r, BELL_PARKED);
    }
}
