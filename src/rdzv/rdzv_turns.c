/* Turns and the bell: hints that keep nodes out of each other's way and tell them when to read. The compare-and-set
 * decides; a turn or a ring that is lost costs time and nothing else.
 *
 * A turn is a number from a counter in the store. A node waits until the turn before its own is over, then writes: in a
 * crowd each node writes once, and no write is lost.
 *
 * Every ring makes all nodes read the whole document, so N rings for N nodes would cost N^3 bytes. mu_rdzv_rings()
 * compares what is written with what was there, and rings only when all nodes have something to do: a round ends (its
 * first member leaves, the first node wants in, a dead one is taken out, it is closed), its last member leaves and so
 * opens the next round, or that one is complete. To regroup, a node reads the document four times, whatever N: when the
 * round ends, with its turn to leave, with its turn to join, and when the round is complete. A heartbeat that falls due
 * meanwhile waits, for those writes carry one. PyTorch does not ring: what it does is found by the slow read. */
#include "rdzv/rdzv_parts.h"

#include <assert.h>

/* ---- Turns ---- */

static void set_turn(struct mu_rdzv *r, enum turn_state state)
{
    assert((r->turn_id != 0) == (state == TURN_TAKING || state == TURN_WAITING));
    assert(state == TURN_WAITING || state == TURN_HELD || r->turn == 0);
    r->turn_state = state;
}

void mu_rdzv_give_turn(struct mu_rdzv *r)
{
    if (r->turn > 0)
        push(r, MU_RDZV_DO_TURN_GIVE)->turn = r->turn;
    r->turn = 0;
    r->turn_id = 0;
    set_turn(r, TURN_NONE);
}

void mu_rdzv_take_turn(struct mu_rdzv *r)
{
    assert(r->turn_state == TURN_NONE);
    push(r, MU_RDZV_DO_TURN_TAKE)->id = r->turn_id = ++r->last_id;
    set_turn(r, TURN_TAKING);
}

void mu_rdzv_hold_turn(struct mu_rdzv *r)
{
    set_turn(r, TURN_HELD);
    r->turn_held_ms = r->now_ms;
    mu_rdzv_look_now(r);
}

/* Those before us are done: we are in nobody's way, and need not back off. */
static void hold_own_turn(struct mu_rdzv *r)
{
    mu_rdzv_hold_turn(r);
    r->write_after_ms = 0;
}

uint64_t mu_rdzv_turns_before(const struct mu_rdzv *r)
{
    return r->turns_done < r->turn ? (uint64_t)(r->turn - r->turns_done) : 1;
}

/* Until the node before us is done. The more are before us, the longer that may take; if none of them is done in that
 * time, they are gone. */
static void wait_for_turn(struct mu_rdzv *r)
{
    uint64_t before = mu_rdzv_turns_before(r);
    uint64_t each_ms = is_crowd(r) || before > MU_RDZV_CROWD ? MU_RDZV_TURN_CROWD_MS : MU_RDZV_TURN_WAIT_MS;
    struct mu_rdzv_effect *effect = NULL;

    if (r->turns_done >= r->turn - 1) {
        hold_own_turn(r);
        return;
    }
    effect = push(r, MU_RDZV_DO_TURN_WAIT);
    effect->id = r->turn_id = ++r->last_id;
    set_turn(r, TURN_WAITING);
    effect->turn = r->turn - 1;
    effect->wait_ms = sooner(before * each_ms, MU_RDZV_TURN_WAIT_MAX_MS);
}

bool mu_rdzv_needs_turn(const struct mu_rdzv *r, enum mu_rdzv_action action)
{
    switch (action) {
    case MU_RDZV_ADD_TO_PARTICIPANTS:
    case MU_RDZV_ADD_TO_WAIT_LIST:
    case MU_RDZV_ADD_TO_REDUNDANCY_LIST:
    case MU_RDZV_REMOVE_FROM_PARTICIPANTS:
    case MU_RDZV_REMOVE_FROM_WAIT_LIST:
    case MU_RDZV_REMOVE_FROM_REDUNDANCY_LIST:
        return r->has_turns;
    case MU_RDZV_KEEP_ALIVE:
        return is_crowd(r);
    default:
        return false;
    }
}

/* ---- Ringing ---- */

static bool has_of_ours(const struct mu_doc *doc, unsigned in)
{
    for (size_t i = 0; i < doc->count; i++)
        if ((doc->members[i].in & in) != 0 && mu_node_is_ours(&doc->members[i].node))
            return true;
    return false;
}

/* A muster member has left the complete round of `doc`, and rang. A node that was never in that round cannot know, and
 * takes nodes that wait for such members. */
static bool has_lost_one_of_ours(const struct mu_rdzv *r, const struct mu_doc *doc)
{
    if (!has_world(r) || doc->round != r->world.round)
        return has_of_ours(doc, MU_DOC_WAITING);
    for (size_t i = 0; i < r->world.count; i++)
        if (mu_node_is_ours(&r->world.members[i]) && !mu_doc_has(doc, &r->world.members[i], MU_DOC_PARTICIPANT))
            return true;
    return false;
}

/* The round stays complete, but its members have to regroup: the first of them leaves, or the first node wants in. */
static bool ends_round(const struct mu_rdzv *r, const struct mu_doc *before, const struct mu_doc *after)
{
    bool leaves = after->participants<before->participants, waits = after->waiting> before->waiting;

    return (leaves && !has_lost_one_of_ours(r, before)) || (waits && !has_of_ours(before, MU_DOC_WAITING));
}

/* The last member leaves. If that is a PyTorch node, which does not ring, the first muster node that comes in does. */
static bool opens_round(const struct mu_doc *before, const struct mu_doc *after)
{
    return before->complete || (has_of_ours(after, MU_DOC_WAITING) && has_of_ours(after, MU_DOC_PARTICIPANT) &&
                                !has_of_ours(before, MU_DOC_PARTICIPANT));
}

/* The write of r->doc, where now r->sights.doc is. */
bool mu_rdzv_rings(const struct mu_rdzv *r)
{
    const struct mu_doc *before = &r->sights.doc, *after = &r->doc;

    if (r->dead_count > 0 || after->closed != before->closed)
        return true;
    if (!after->complete)
        return opens_round(before, after);
    return !before->complete || before->round != after->round || ends_round(r, before, after);
}

/* ---- Being rung ---- */

void mu_rdzv_set_bell(struct mu_rdzv *r, enum bell_state state)
{
    if (state != BELL_PARKED)
        r->park_id = 0; /* an answer that still comes is dropped */
    r->bell_state = state;
    assert((state == BELL_PARKED) == (r->park_id != 0));
}

/* A bell that has been tampered with may ring all the time. */
void mu_rdzv_note_ring(struct mu_rdzv *r, struct mu_slice token)
{
    bool same = has_token(r) && mu_slice_equal(token, mu_buf_slice(&r->token));

    if (!same)
        r->idle_rings = 0;
    else if (r->bell_state == BELL_RUNG)
        r->idle_rings++;
    if (r->bell_state == BELL_RUNG)
        mu_rdzv_set_bell(r, BELL_LATER); /* until the document is seen */
}

/* As long as the user says, or else growing, more with more members. Never so long that heartbeats would be missed. */
static uint64_t back_off_below_ms(const struct mu_rdzv *r)
{
    uint64_t most = mu_rdzv_death_age_ms(&r->settings) / 4 + 1;

    if (r->settings.back_off_ms > 0)
        return sooner(r->settings.back_off_ms + 1, most);
    most = sooner(most, MU_RDZV_BACK_OFF_MS * (r->sights.doc.count + 1) + MU_RDZV_BACK_OFF_MAX_MS);
    return sooner((uint64_t)MU_RDZV_BACK_OFF_MS << r->lost_writes, most);
}

/* Random and bounded. With a turn it is tried again at once, for other nodes wait for its end; but not for ever. */
void mu_rdzv_back_off(struct mu_rdzv *r)
{
    r->lost_writes = r->lost_writes < 16 ? r->lost_writes + 1 : 16;
    if (r->turn_state == TURN_HELD) {
        if (r->lost_writes <= MU_RDZV_TURN_TRIES)
            return;
        mu_rdzv_give_turn(r);
    }
    r->write_after_ms = r->now_ms + mu_rng_below(&r->rng, back_off_below_ms(r));
}

void mu_rdzv_on_turn(struct mu_rdzv *r, const struct mu_rdzv_event *event)
{
    r->turn = event->turn;
    r->turns_done = event->turns_done;
    wait_for_turn(r);
}

void mu_rdzv_on_turn_came(struct mu_rdzv *r, const struct mu_rdzv_event *event)
{
    bool got_on = event->turns_done > r->turns_done;

    r->turns_done = event->turns_done;
    if (event->found)
        hold_own_turn(r);
    else if (!got_on)
        mu_rdzv_hold_turn(r);
    else
        wait_for_turn(r);
}

/* Most likely the next round is open, and all that wait for it write now: the document is read once, with our turn. */
static bool reads_with_turn(const struct mu_rdzv *r)
{
    return r->has_turns && !r->turn_in_vain && !is_away(r) && r->value == VALUE_FINE &&
           r->phase == MU_RDZV_PHASE_JOINING && r->sights.doc.complete &&
           mu_doc_has(&r->sights.doc, &r->me, MU_DOC_WAITING);
}

void mu_rdzv_on_rung(struct mu_rdzv *r)
{
    mu_rdzv_set_bell(r, BELL_RUNG); /* what rang is in the document that is read next */
    if (reads_with_turn(r) && r->turn_state == TURN_NONE)
        mu_rdzv_take_turn(r);
    else if (!reads_with_turn(r) || r->turn_state == TURN_HELD)
        mu_rdzv_look_now(r);
}
