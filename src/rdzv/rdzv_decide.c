/* What follows from the document as it was just seen: the rules are asked, and their actions gathered into one
 * write. */
#include "rdzv/rdzv_parts.h"

#include <assert.h>

/* ---- When ---- */

uint64_t mu_rdzv_last_call_end_ms(const struct mu_rdzv *r)
{
    return r->deadline_seen_ms + r->settings.last_call_ms + r->complete_jitter_ms;
}

/* When the round that follows ours need not wait for anybody any more; NEVER: somebody may still come. */
uint64_t mu_rdzv_everybody_is_back_ms(const struct mu_rdzv *r, const struct mu_doc *doc)
{
    uint64_t when = 0;

    if (!has_world(r) || doc->round != r->world.round + 1 || doc->waiting > 0)
        return NEVER;
    if (doc->spares > 0 && (int64_t)doc->participants < r->settings.nodes_max)
        return NEVER; /* they are about to step in */
    for (size_t i = 0; i < r->world.count; i++) {
        const struct presence *presence = &r->presences[i];
        uint64_t wait_ms = presence->state == EXPIRED ? 0 : MU_RDZV_LEFT_MS;

        if (mu_doc_has(doc, &r->world.members[i], MU_DOC_PARTICIPANT))
            continue;
        if (presence->state == PRESENT)
            return NEVER;
        when = later(when, presence->since_ms + later(wait_ms, r->settings.lost_node_wait_ms));
    }
    return when;
}

uint64_t mu_rdzv_effective_deadline_ms(const struct mu_rdzv *r)
{
    return r->spare ? NEVER : r->deadline_ms;
}

/* When to write a heartbeat. A node that waits for its turn, or whose round ends, soon writes for another reason; until
 * then a heartbeat would only get in the way of nodes that leave and join. */
uint64_t mu_rdzv_beat_wanted_ms(const struct mu_rdzv *r)
{
    bool ends = r->phase == MU_RDZV_PHASE_MEMBER && r->lost_count > 0 && r->dead_count == 0;
    bool waits = r->turn_state == TURN_TAKING || r->turn_state == TURN_WAITING;

    if (!ends && !waits)
        return r->beat_due_ms;
    return later(r->beat_due_ms, r->beat_sent_ms + mu_rdzv_death_age_ms(&r->settings) / 3 * 2);
}

static struct mu_rdzv_moment moment_of(const struct mu_rdzv *r, const struct plan *plan)
{
    return (struct mu_rdzv_moment){
        .now_ms = r->now_ms,
        .deadline_ms = mu_rdzv_effective_deadline_ms(r),
        .keep_alive_due = r->now_ms >= mu_rdzv_beat_wanted_ms(r) && !plan->beats,
        .last_call_over =
            (r->doc.has_deadline && r->sights.doc.has_deadline && r->doc.deadline_us == r->sights.doc.deadline_us &&
             r->now_ms >= mu_rdzv_last_call_end_ms(r)) ||
            r->now_ms >= mu_rdzv_everybody_is_back_ms(r, &r->doc),
    };
}

/* ---- What comes next ---- */

static size_t count_lost(const struct mu_rdzv *r) /* members of our round who are not in the document any more */
{
    size_t count = 0;

    for (size_t i = 0; i < r->world.count; i++)
        count += !mu_doc_has(&r->doc, &r->world.members[i], MU_DOC_PARTICIPANT);
    return count;
}

static bool waits_to_exit(const struct mu_rdzv *r)
{
    return mu_rdzv_fails_alike(r, r->exit_since_ms) && r->doc.round == r->exit_round && r->doc.complete &&
           !r->doc.closed && r->doc.waiting == 0 && count_lost(r) == 0;
}

static enum mu_rdzv_action next_in_phase(struct mu_rdzv *r, struct plan *plan)
{
    struct mu_rdzv_moment moment = moment_of(r, plan);

    if (plan->phase == MU_RDZV_PHASE_EXITING && waits_to_exit(r)) {
        moment.deadline_ms = NEVER;
        return mu_rules_keep_alive(&r->doc, &r->me, &moment) == MU_RDZV_KEEP_ALIVE ? MU_RDZV_KEEP_ALIVE : MU_RDZV_SYNC;
    }
    if (plan->phase == MU_RDZV_PHASE_EXITING) {
        /* In any other round we are by our own write, whose answer did not come. */
        enum mu_rdzv_action action =
            r->doc.round == r->exit_round ? mu_rules_exit(&r->doc, &r->me, &moment) : MU_RDZV_FINISH;

        if (action != MU_RDZV_FINISH)
            return action;
        plan->phase = MU_RDZV_PHASE_JOINING;
    }
    switch (plan->phase) {
    case MU_RDZV_PHASE_JOINING:
        return mu_rules_join(&r->doc, &r->me, &r->settings, &moment);
    case MU_RDZV_PHASE_MEMBER:
        moment.deadline_ms = NEVER;
        return mu_rules_keep_alive(&r->doc, &r->me, &moment);
    case MU_RDZV_PHASE_LEAVING:
        return mu_rules_leave(&r->doc, &r->me, &moment);
    case MU_RDZV_PHASE_EXITING:
    case MU_RDZV_PHASE_SETTLING:
    case MU_RDZV_PHASE_IDLE:
        break;
    }
    return MU_RDZV_SYNC;
}

static enum mu_rdzv_action next_action(struct mu_rdzv *r, struct plan *plan)
{
    if (r->close == CLOSE_ASKED && !r->doc.closed && r->now_ms <= r->close_deadline_ms)
        return MU_RDZV_MARK_CLOSED;
    return next_in_phase(r, plan);
}

/* May this be written now, on the document as it was just seen? If not, sees to it that it may soon. */
static bool may_write(struct mu_rdzv *r, enum mu_rdzv_action action)
{
    if (r->now_ms < r->write_after_ms) {
        mu_rdzv_hold_back(r, true);
        return false;
    }
    if (!mu_rdzv_needs_turn(r, action))
        return true;
    if (r->turn_state == TURN_NONE)
        mu_rdzv_take_turn(r);
    if (r->turn_state != TURN_HELD)
        return false;
    if (r->main_sent_ms < r->turn_held_ms)
        mu_rdzv_look_now(r);
    return r->main_sent_ms >= r->turn_held_ms;
}

/* ---- The write ---- */

static bool beats(enum mu_rdzv_action action)
{
    return action == MU_RDZV_KEEP_ALIVE || action == MU_RDZV_ADD_TO_PARTICIPANTS ||
           action == MU_RDZV_ADD_TO_WAIT_LIST || action == MU_RDZV_ADD_TO_REDUNDANCY_LIST;
}

static struct mu_rdzv_deed *add_deed(struct plan *plan, enum mu_rdzv_action action, int64_t round)
{
    assert(plan->deeds_count < DEEDS_MAX);
    plan->deeds[plan->deeds_count] = (struct mu_rdzv_deed){ .action = action, .round = round };
    return &plan->deeds[plan->deeds_count++];
}

/* The first deed of a write also takes the dead out. */
int mu_rdzv_apply(struct mu_rdzv *r, struct plan *plan, enum mu_rdzv_action action, int64_t doc_now_us)
{
    bool was_complete = r->doc.complete, completes;
    const struct mu_doc *before = plan->count == 0 && r->dead_count > 0 ? &r->sights.doc : &r->doc;
    const bool before_complete = before->complete, before_called = before->has_deadline;
    const int64_t before_round = before->round, round = r->doc.round;
    struct mu_rdzv_deed *deed = NULL;
    int rc = mu_rules_apply(&r->doc, &r->me, &r->settings, action, doc_now_us);

    if (rc < 0)
        return rc;
    if (action == MU_RDZV_REMOVE_FROM_REDUNDANCY_LIST && plan->phase == MU_RDZV_PHASE_JOINING) {
        r->deadline_ms = r->now_ms + r->settings.join_ms;
        r->spare = false;
    }
    if (action == MU_RDZV_ADD_TO_PARTICIPANTS)
        r->entered_round = r->doc.round;
    completes = action != MU_RDZV_MARK_COMPLETE && r->doc.complete && !was_complete; /* the last one has come */
    plan->count++;
    deed = add_deed(plan, action, round);
    deed->ends_round = before_complete && before_round < r->doc.round;
    deed->ends_last_call = before_called && !r->doc.has_deadline && !r->doc.complete;
    if (beats(action) && action != MU_RDZV_KEEP_ALIVE)
        (void)add_deed(plan, MU_RDZV_KEEP_ALIVE, round);
    if (completes)
        (void)add_deed(plan, MU_RDZV_MARK_COMPLETE, round);
    plan->beats |= beats(action);
    return 0;
}

void mu_rdzv_send_write(struct mu_rdzv *r, const struct plan *plan, int64_t doc_now_us)
{
    struct mu_rdzv_effect *effect = NULL;

    r->bytes.len = 0;
    if (r->codec->encode(&r->doc, &r->bytes) < 0) {
        mu_rdzv_try_later(r);
        return;
    }
    r->plan = *plan;
    r->plan.rings |= mu_rdzv_rings(r);
    r->plan.size = r->bytes.len;
    r->planned_us = doc_now_us;
    effect = request(r, MU_RDZV_DO_WRITE);
    effect->bytes = mu_buf_slice(&r->bytes);
    effect->token = mu_buf_slice(&r->token);
    effect->has_token = has_token(r);
    push(r, MU_RDZV_DO_PLANNED);
}

/* ---- Nothing to write ---- */

static void conclude_closing(struct mu_rdzv *r)
{
    bool asked = r->close == CLOSE_ASKED;

    if (!r->doc.closed && asked && r->now_ms > r->close_deadline_ms)
        mu_rdzv_fail_close(r);
    if (r->doc.closed && (asked || (r->phase == MU_RDZV_PHASE_MEMBER && r->close == CLOSE_NONE))) {
        mu_rdzv_set_close(r, CLOSE_TOLD);
        tell(r, MU_PART_TELL_CLOSED)->asked = asked ? MU_PART_ON_CLOSE : MU_PART_ON_TIME;
    }
}

static void conclude(struct mu_rdzv *r, enum mu_rdzv_action action)
{
    switch (r->phase) {
    case MU_RDZV_PHASE_EXITING:
    case MU_RDZV_PHASE_JOINING:
        if (action == MU_RDZV_FINISH) {
            mu_rdzv_settle(r);
        } else if (action == MU_RDZV_ERROR_CLOSED) {
            (void)mu_fail(&r->error, MUSTER_ERDZV_CLOSED, "the rendezvous is closed");
            mu_rdzv_fail_join(r);
        } else if (action == MU_RDZV_ERROR_GRACEFUL_EXIT) {
            (void)mu_fail(&r->error, MUSTER_ERDZV_GRACEFUL_EXIT,
                          "the rendezvous was closed while this node was a spare");
            mu_rdzv_fail_join(r);
        } else if (action == MU_RDZV_ERROR_TIMEOUT) {
            mu_rdzv_say_timeout(r);
            mu_rdzv_fail_join(r);
        }
        break;
    case MU_RDZV_PHASE_LEAVING:
        if (action == MU_RDZV_FINISH) {
            mu_rdzv_abandon(r);
            mu_rdzv_become(r, MU_RDZV_PHASE_IDLE);
            r->exit_round = -1;
            tell(r, MU_PART_TELL_LEFT);
        } else if (action == MU_RDZV_ERROR_TIMEOUT) {
            mu_rdzv_fail_leave(r);
        }
        break;
    case MU_RDZV_PHASE_MEMBER:
    case MU_RDZV_PHASE_SETTLING:
    case MU_RDZV_PHASE_IDLE:
        break;
    }
}

static bool refuses(struct mu_rdzv *r)
{
    const struct mu_doc *doc = &r->sights.doc;
    struct muster_error error = { 0 };
    char text[MU_NODE_TEXT_MAX];

    if (r->maybe_in || !is_joining(r) || mu_doc_find(doc, &r->me) == NULL)
        return false;
    (void)mu_fail(&error, MUSTER_ERDZV_STATE, "another node has the same identity, %s", mu_node_text(&r->me, text));
    mu_rdzv_refuse(r, &error);
    return true;
}

/* A node that waits for a turn must not be taken for dead meanwhile. */
static bool beats_meanwhile(const struct mu_rdzv *r, const struct plan *plan, enum mu_rdzv_action wanted)
{
    struct mu_rdzv_moment moment = moment_of(r, plan);

    moment.deadline_ms = NEVER;
    return wanted != MU_RDZV_KEEP_ALIVE && plan->count == 0 && r->now_ms >= r->write_after_ms && is_joining(r) &&
           mu_rules_keep_alive(&r->doc, &r->me, &moment) == MU_RDZV_KEEP_ALIVE;
}

/* The document was just seen: what follows from it? */
void mu_rdzv_evaluate(struct mu_rdzv *r)
{
    struct plan plan = { .phase = r->phase };
    enum mu_rdzv_action action = MU_RDZV_SYNC;
    int64_t doc_now_us = 0;

    if (refuses(r))
        return;
    if (r->looking)
        r->error = (struct muster_error){ 0 };
    mu_rdzv_answer_look(r);
    if (r->phase == MU_RDZV_PHASE_MEMBER)
        mu_rdzv_watch_round(r);
    conclude_closing(r);
    plan.phase = r->phase;
    mu_rdzv_hold_back(r, false);
    doc_now_us = mu_liveness_time(&r->sights, &r->me, r->now_ms, r->beat_us, r->beat_sent_ms, r->wall_us);
    for (;;) {
        action = next_action(r, &plan);
        if (!mu_rdzv_action_writes(action) || plan.count == ACTIONS_MAX)
            break;
        if (may_write(r, action))
            plan.used_turn |= mu_rdzv_needs_turn(r, action);
        else if (beats_meanwhile(r, &plan, action))
            action = MU_RDZV_KEEP_ALIVE;
        else
            break;
        if (mu_rdzv_apply(r, &plan, action, doc_now_us) < 0) {
            (void)mu_rdzv_refresh_view(r);
            mu_rdzv_try_later(r);
            return;
        }
    }
    if (plan.count > 0) {
        mu_rdzv_send_write(r, &plan, doc_now_us);
        return;
    }
    if (r->turn_state == TURN_HELD && !mu_rdzv_action_writes(action)) {
        mu_rdzv_give_turn(r); /* there is nothing to do with it */
        r->turn_in_vain = true;
    }
    conclude(r, action);
}
