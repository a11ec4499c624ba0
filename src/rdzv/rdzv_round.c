/* A complete round: all members settle on the same world, and a member is told what happens to its round. */
#include "rdzv/rdzv_parts.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

void mu_rdzv_forget_world(struct mu_rdzv *r)
{
    free(r->world.members);
    mu_doc_done(&r->world_doc);
    free(r->presences);
    free(r->lost);
    r->world = (struct mu_rdzv_world){ 0 };
    r->presences = NULL;
    r->lost = NULL;
    r->lost_count = r->told_lost = 0;
}

bool mu_rdzv_in_world(const struct mu_rdzv *r, const struct mu_node *node)
{
    for (size_t i = 0; i < r->world.count; i++)
        if (mu_node_equal(&r->world.members[i], node))
            return true;
    return false;
}

void mu_rdzv_tell_lost(struct mu_rdzv *r)
{
    r->told_lost = r->lost_count;
    tell(r, MU_PART_TELL_LOST)->round = r->world.round;
}

/* Workers of PyTorch 2.5 meet in the rendezvous store, under the number of failures that their own agent has counted.
 * An agent that hears of the round's end before its workers have failed counts no failure, and its workers never meet
 * ours. So all workers get a moment to fail: a node that wants to leave a whole round waits for others to leave, and a
 * node that sees another leave waits for its own workers. */
bool mu_rdzv_fails_alike(const struct mu_rdzv *r, uint64_t since_ms)
{
    return r->shares_store && has_world(r) && !r->world.all_ours && r->world.dialect.habits == MU_HABITS_2_5 &&
           since_ms != 0 && r->now_ms - since_ms < MU_RDZV_FAIL_ALIKE_MS;
}

static void digest_of(const struct mu_doc *doc, char digest[static MU_RDZV_DIGEST_MAX])
{
    uint64_t sum = 0;

    /* Participants are distinct, so that a sum over them, each with its rank, does not depend on the order. */
    for (size_t i = 0; i < doc->count; i++) {
        const struct mu_doc_member *member = &doc->members[i];
        struct mu_hash_seed seed = { (uint64_t)member->node.pid ^ (uint64_t)member->rank << 32,
                                     (uint64_t)member->node.local_id };

        if ((member->in & MU_DOC_PARTICIPANT) != 0)
            sum += mu_hash64(seed, member->node.name);
    }
    (void)snprintf(digest, MU_RDZV_DIGEST_MAX, "%zu-%016llx", doc->participants, (unsigned long long)sum);
}

/* A complete round that lacks ranks, that others saw with other members, or that we left before: we leave it, which
 * the others notice, and join the next one. */
static void leave_broken_round(struct mu_rdzv *r)
{
    r->exit_round = r->sights.doc.round;
    mu_rdzv_become(r, MU_RDZV_PHASE_EXITING);
    mu_rdzv_look_now(r);
}

/* The names are those of `doc`, which must stay. */
static int list_world(const struct mu_doc *doc, const struct mu_node *me, struct mu_rdzv_world *ret_world)
{
    struct mu_rdzv_world world = { .round = doc->round, .all_ours = true, .dialect = doc->dialect };

    world.members = calloc(doc->participants, sizeof *world.members);
    if (world.members == NULL)
        return MUSTER_ENOMEM;
    world.count = doc->participants;
    for (size_t i = 0; i < doc->count; i++) {
        const struct mu_doc_member *member = &doc->members[i];

        if ((member->in & MU_DOC_PARTICIPANT) == 0)
            continue;
        world.members[member->rank] = member->node;
        world.all_ours &= mu_node_is_ours(&member->node);
        if (mu_node_equal(&member->node, me))
            world.rank = member->rank;
    }
    *ret_world = world;
    return 0;
}

static int enter_world(struct mu_rdzv *r)
{
    size_t count = r->sights.doc.participants;
    struct mu_doc doc = { .seed = r->sights.doc.seed };
    struct mu_rdzv_world world = { 0 };
    struct presence *presences = calloc(count, sizeof *presences);
    struct mu_node *lost = calloc(count, sizeof *lost);

    if (presences == NULL || lost == NULL || mu_doc_copy(&doc, &r->sights.doc) < 0 ||
        list_world(&doc, &r->me, &world) < 0) {
        free(presences);
        free(lost);
        mu_doc_done(&doc);
        return MUSTER_ENOMEM;
    }
    mu_rdzv_forget_world(r);
    r->world = world;
    r->world_doc = doc;
    r->presences = presences;
    r->lost = lost;
    return 0;
}

/* A store that lost its data gets back a document that some member held: it may list us, although we have left. If
 * nobody held one, numbers of rounds come again. A round is joined once, or its keys would be those of two rounds. */
static bool was_joined_before(const struct mu_rdzv *r, int64_t round)
{
    for (size_t i = 0; i < PAST_MAX && i < r->past_count; i++) {
        if (r->past[i].round == round && strcmp(r->past[i].digest, r->digest) == 0)
            return true;
    }
    return r->entered_round != round;
}

static void remember_round(struct mu_rdzv *r)
{
    struct past_round *past = &r->past[r->past_count++ % PAST_MAX];

    past->round = r->world.round;
    memcpy(past->digest, r->digest, sizeof past->digest);
    r->entered_round = -1;
}

static void become_member(struct mu_rdzv *r)
{
    if (enter_world(r) < 0) {
        mu_rdzv_become(r, MU_RDZV_PHASE_JOINING); /* no memory: with the next look */
        return;
    }
    mu_rdzv_become(r, MU_RDZV_PHASE_MEMBER);
    mu_rdzv_give_turn(r);
    r->joined_ms = r->now_ms;
    r->hold_until_ms = r->now_ms + r->hold_ms;
    if (!r->world.all_ours && r->hold_ms < MU_RDZV_HOLD_STOCK_MS)
        r->hold_until_ms = r->now_ms + MU_RDZV_HOLD_STOCK_MS;
    r->lost_since_ms = r->exit_since_ms = 0;
    r->told_waiting = false;
    r->exit_round = r->world.round;
    remember_round(r);
    tell(r, MU_PART_TELL_JOINED)->round = r->world.round;
}

/* The round is complete and has us. */
void mu_rdzv_settle(struct mu_rdzv *r)
{
    struct mu_rdzv_effect *effect = NULL;
    bool whole = false;

    if (mu_rules_ranks_whole(&r->sights.doc, &whole) < 0) {
        mu_rdzv_try_later(r);
        return;
    }
    digest_of(&r->sights.doc, r->digest);
    if (!whole || (int64_t)r->sights.doc.participants < r->settings.nodes_min ||
        was_joined_before(r, r->sights.doc.round)) {
        leave_broken_round(r);
        return;
    }
    if (!r->has_settle) {
        become_member(r);
        return;
    }
    effect = request(r, MU_RDZV_DO_SETTLE);
    mu_rdzv_become(r, MU_RDZV_PHASE_SETTLING);
    effect->round = r->sights.doc.round;
    effect->bytes = mu_slice_str(r->digest);
}

void mu_rdzv_on_settled(struct mu_rdzv *r, const struct mu_rdzv_event *event)
{
    assert(r->phase == MU_RDZV_PHASE_SETTLING);
    if (!mu_slice_equal(event->bytes, mu_slice_str(r->digest)))
        leave_broken_round(r);
    else
        become_member(r);
}

static void note_lost(struct mu_rdzv *r)
{
    r->lost_count = 0;
    for (size_t i = 0; i < r->world.count; i++)
        if (!mu_doc_has(&r->doc, &r->world.members[i], MU_DOC_PARTICIPANT))
            r->lost[r->lost_count++] = r->world.members[i];
    if (r->lost_count <= r->told_lost)
        return;
    if (r->lost_since_ms == 0)
        r->lost_since_ms = r->now_ms;
    if (mu_rdzv_fails_alike(r, r->lost_since_ms))
        return;
    mu_rdzv_tell_lost(r);
    if (r->dead_count > 0) { /* they are taken out soon, so that they learn of it; all members mean to do that */
        uint64_t within_ms = sooner(10 * r->doc.participants, 500);

        r->beat_due_ms = sooner(r->beat_due_ms, r->now_ms + mu_rng_below(&r->rng, within_ms));
    }
}

/* A node that waits for a place in a full round would not get one in a new round either. */
bool mu_rdzv_somebody_can_join(const struct mu_rdzv *r)
{
    return r->doc.waiting > 0 && (int64_t)r->doc.participants < r->settings.nodes_max;
}

/* What a member makes of the document. */
void mu_rdzv_watch_round(struct mu_rdzv *r)
{
    const struct mu_doc *doc = &r->sights.doc;

    if (doc->round != r->world.round || !doc->complete || !mu_doc_has(doc, &r->me, MU_DOC_PARTICIPANT)) {
        tell(r, MU_PART_TELL_REMOVED)->round = r->world.round;
        mu_rdzv_become(r, MU_RDZV_PHASE_IDLE);
        mu_rdzv_forget_world(r);
        r->exit_round = -1;
        return;
    }
    note_lost(r);
    if (mu_rdzv_somebody_can_join(r) && !r->told_waiting && !r->doc.closed && r->now_ms >= r->hold_until_ms &&
        !mu_rdzv_fails_alike(r, r->lost_since_ms)) {
        struct mu_part_news *news = tell(r, MU_PART_TELL_WAITING);

        r->told_waiting = true;
        news->count = (int64_t)r->doc.waiting;
        news->round = r->world.round;
    }
}
