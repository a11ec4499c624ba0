/* What must hold. The store sees every write, and each node's answers pass through here, so that what a machine does
 * can be held against what it can know; and against what is so.
 *
 *   I1  the ranks of a completed round are 0..n-1, in the order of the nodes
 *   I2  who joins a round is told the same members and its own place among them
 *   I3  a completed round has min to max members, by the limits of the node that completes it
 *   I4  rounds never go back, in one life of the store; a node joins none twice
 *   I5  closed is for ever; who has seen it never joins after that
 *   I6  a write replaces the very document that its author saw last, and changes only its own entry of it
 *   I7  a member that was dropped is told in bounded time, once it can look
 *   I8  after the storm everybody is in one complete round, or a spare, in bounded time, and it stays so
 *   I9  the lists are disjoint, everybody in them has a heartbeat
 *   I10 there is a deadline exactly from the minimum to the completion; a round is completed when it is over, or by a
 *       member of the round before when all of those are back, or gone
 *   I12 a spare disturbs nobody
 *   I13 whatever is written can be read
 *   I14 nobody is removed who was not silent for the death age while its remover looked
 *   ask what is asked is answered in bounded time, once; events come at most once a round, and for a reason */
#include "rdzv_sim.h"

#define TOLD_US (12 * SECOND) /* I7: polls, retries and their answers */
#define ASK_SLACK_US (2 * SECOND)

static const unsigned lists = MU_DOC_PARTICIPANT | MU_DOC_WAITING | MU_DOC_SPARE;

unsigned id_of(const struct mu_node *node)
{
    if (mu_node_is_ours(node))
        return (unsigned)node->local_id & (IDS_MAX - 1);
    return ((unsigned)node->pid - 1000) ^ w.id_mask;
}

static const struct mu_doc_member *find(const struct version *version, const struct mu_node *node)
{
    return version == NULL ? NULL : mu_doc_find(&version->doc, node);
}

static bool equal_limits(void)
{
    return !w.on[F_LIMITS];
}

/* ---- Writes ---- */

void check_sent_write(struct node *author, const struct mu_rdzv_effect *effect)
{
    author->write_ms = node_ms(author);
    if (!w.checking)
        return;
    EXPECT("I6", author->seen_any, "%s writes without having looked", author->name);
    EXPECT("I6", effect->has_token == (author->seen != NULL), "%s writes %s, but saw %s", author->name,
           effect->has_token ? "with a token" : "without a token", author->seen != NULL ? "a document" : "none");
    EXPECT("I6", !effect->has_token || mu_slice_equal(effect->token, mu_buf_slice(&author->seen->bytes)),
           "%s writes with a token that is not what it saw last", author->name);
}

static bool has_list_order(const struct mu_doc *doc)
{
    for (size_t i = 0; i < doc->count; i++) {
        const struct mu_doc_member *a = &doc->members[i];
        int64_t rank = 0;

        if ((a->in & MU_DOC_PARTICIPANT) == 0)
            continue;
        for (size_t j = 0; j < doc->count; j++) {
            const struct mu_doc_member *b = &doc->members[j];

            rank += (b->in & MU_DOC_PARTICIPANT) != 0 && mu_node_compare(&b->node, &a->node) < 0;
        }
        if (rank != a->rank)
            return false;
    }
    return true;
}

/* A node that nothing but an outage of the store kept from writing. */
static const struct node *innocent(unsigned id)
{
    if (w.on[F_LIMITS] && w.on[F_STOCK]) /* PyTorch's node that wants fewer than there are writes without end */
        return NULL;
    for (unsigned i = 0; i < w.nodes_count; i++) {
        const struct node *node = &w.nodes[i];
        uint64_t grace_us = (mu_rdzv_death_age_ms(&node->settings) + node->settings.keep_alive_ms) * MS;

        if (store_up_for_us() < mu_rdzv_death_age_ms(&node->settings) * MS)
            continue; /* everybody has had time to come back */
        if (w.forged_us != 0 && w.now_us - w.forged_us < 2 * grace_us)
            continue; /* old heartbeats in a document that a stranger wrote are believed as well */
        if (node->alive && !node->stock && node->id == id && (node->member || node->asked == ASKED_JOIN) &&
            node->asked_us + grace_us < w.now_us && !w.on[F_SLOW] && node->paused_until_us + grace_us < w.now_us &&
            node->cut_until_us + grace_us < w.now_us && node->hindered_us + grace_us < w.now_us)
            return node;
    }
    return NULL;
}

static bool is_silent(const struct node *observer, unsigned id)
{
    const struct sighting *sighting = &observer->sightings[id];

    return sighting->life == observer->life &&
           observer->look_ms - sighting->since_ms >= mu_rdzv_death_age_ms(&observer->settings);
}

static void check_dropped(struct node *author, unsigned id)
{
    const struct sighting *sighting = &author->sightings[id];
    uint64_t age_ms = mu_rdzv_death_age_ms(&author->settings);

    EXPECT("I14", is_silent(author, id), "%s drops %u, whose silence it has watched for %" PRIu64 " of %" PRIu64 " ms",
           author->name, id, sighting->life == author->life ? author->look_ms - sighting->since_ms : 0, age_ms);
    /* Its clock shows whole milliseconds. */
    EXPECT("I14", w.now_us - w.last_write_us[id] + MS > age_ms * MS,
           "%s drops %u, which wrote its heartbeat %.3f s ago", author->name, id,
           (double)(w.now_us - w.last_write_us[id]) / 1e6);
    EXPECT("I14", innocent(id) == NULL, "%s drops %u, which only the outage of the store has silenced", author->name,
           id);
}

/* Entries of others: as they were, or silently dead. */
static void check_others(struct node *author, const struct version *before, const struct version *after)
{
    bool completes = after->doc.complete && !(before->doc.complete && before->doc.round == after->doc.round);

    for (size_t i = 0; i < after->doc.count; i++) {
        const struct mu_doc_member *now = &after->doc.members[i], *then = find(before, &now->node);

        if (after->ids[i] == author->id)
            continue;
        EXPECT("I6", then != NULL, "%s adds %u", author->name, after->ids[i]);
        EXPECT("I6", then->in == now->in && then->heartbeat_us == now->heartbeat_us, "%s changes the entry of %u",
               author->name, after->ids[i]);
        EXPECT("I6", completes || then->rank == now->rank, "%s changes the rank of %u", author->name, after->ids[i]);
    }
    for (size_t i = 0; i < before->doc.count; i++) {
        if (before->ids[i] != author->id && find(after, &before->doc.members[i].node) == NULL)
            check_dropped(author, before->ids[i]);
    }
}

/* It was not there for a second's worth of looks. */
static bool gone_for_a_while(const struct node *observer, unsigned id)
{
    const struct sighting *sighting = &observer->sightings[id];

    return sighting->life != observer->life || observer->write_ms - sighting->last_ms >= MU_RDZV_LEFT_MS;
}

/* A member of the round before does not wait for those who are not going to come. */
static bool everybody_is_back(struct node *author, const struct version *before, const struct version *after)
{
    const struct world_seen *last = author->last_round < 0 ? NULL : &w.worlds[author->world];

    if (last == NULL || last->round != after->doc.round - 1 || after->doc.waiting > 0)
        return false;
    for (size_t i = 0; i < last->count; i++) {
        bool in = false, was_in = false;

        for (size_t j = 0; j < after->doc.count; j++)
            in |= after->ids[j] == last->ids[i] && (after->doc.members[j].in & MU_DOC_PARTICIPANT) != 0;
        for (size_t j = 0; before != NULL && j < before->doc.count; j++)
            was_in |= before->ids[j] == last->ids[i];
        if (!in && !was_in && !is_silent(author, last->ids[i]) && !gone_for_a_while(author, last->ids[i]))
            return false;
    }
    return true;
}

static void note_too_many(const struct node *author, const struct version *document)
{
    if (!document->doc.complete || (int64_t)document->doc.participants < author->settings.nodes_max)
        return;
    for (unsigned i = 0; i < w.nodes_count; i++) {
        const struct node *node = &w.nodes[i];
        const struct mu_doc_member *member = node->alive && node->stock ? find(document, &node->me) : NULL;

        if (member != NULL && (member->in & MU_DOC_WAITING) != 0)
            w.too_many_us = w.now_us;
    }
}

static void check_completion(struct node *author, const struct version *before, const struct version *after)
{
    const struct mu_doc *doc = &after->doc;
    int64_t n = (int64_t)doc->participants;
    bool over;

    EXPECT("I1", has_list_order(doc), "%s completes round %" PRId64 " with wrong ranks", author->name, doc->round);
    EXPECT("I3", n >= author->settings.nodes_min && n <= author->settings.nodes_max,
           "%s completes round %" PRId64 " with %" PRId64 " members, limits are %" PRId64 " to %" PRId64, author->name,
           doc->round, n, author->settings.nodes_min, author->settings.nodes_max);
    if (n == author->settings.nodes_max)
        return;
    over = before != NULL && before->doc.has_deadline && author->has_deadline &&
           author->deadline_us == before->doc.deadline_us &&
           author->write_ms - author->deadline_since_ms >= author->settings.last_call_ms;
    EXPECT("I10", over || everybody_is_back(author, before, after),
           "%s completes round %" PRId64 " with %" PRId64 " of at most %" PRId64
           " members before the last call is over",
           author->name, doc->round, n, author->settings.nodes_max);
}

static void check_shape(const struct node *author, const struct version *after)
{
    const struct mu_doc *doc = &after->doc;

    for (size_t i = 0; i < doc->count; i++) {
        unsigned in = doc->members[i].in & lists;

        EXPECT("I9", in == MU_DOC_PARTICIPANT || in == MU_DOC_WAITING || in == MU_DOC_SPARE, "%s writes %u in lists %x",
               author->name, after->ids[i], in);
        EXPECT("I9", (doc->members[i].in & MU_DOC_HEARTBEAT) != 0, "%s writes %u without a heartbeat", author->name,
               after->ids[i]);
    }
    if (equal_limits() && !w.on[F_STOCK])
        EXPECT("I10", doc->has_deadline == (!doc->complete && (int64_t)doc->participants >= author->settings.nodes_min),
               "%s writes a document of %zu participants, %scomplete, with%s a deadline", author->name,
               doc->participants, doc->complete ? "" : "in", doc->has_deadline ? "" : "out");
}

static void note_members(const struct node *author, const struct version *before, const struct version *after)
{
    for (size_t i = 0; i < after->doc.count; i++) {
        const struct mu_doc_member *then = find(before, &after->doc.members[i].node);

        if (then == NULL ? author != NULL && author->id == after->ids[i]
                         : then->heartbeat_us != after->doc.members[i].heartbeat_us)
            w.last_write_us[after->ids[i]] = w.now_us;
    }
}

static void tell_document(const struct node *author, const struct version *after)
{
    char text[160];
    size_t len = 0;

    text[0] = '\0';
    for (size_t i = 0; i < after->doc.count && len < sizeof text - 16; i++) {
        const struct mu_doc_member *member = &after->doc.members[i];

        len += (size_t)snprintf(text + len, sizeof text - len, " %u", after->ids[i]);
        if ((member->in & MU_DOC_PARTICIPANT) != 0)
            len += (size_t)snprintf(text + len, sizeof text - len, "=%" PRId64, member->rank);
        if ((member->in & MU_DOC_WAITING) != 0)
            len += (size_t)snprintf(text + len, sizeof text - len, "w");
        if ((member->in & MU_DOC_SPARE) != 0)
            len += (size_t)snprintf(text + len, sizeof text - len, "s");
    }
    tell("store: %s writes round %" PRId64 "%s%s%s:%s", author == NULL ? "somebody dead" : author->name,
         after->doc.round, after->doc.complete ? ", complete" : "", after->doc.closed ? ", closed" : "",
         after->doc.has_deadline ? ", deadline" : "", text);
}

void check_write(struct node *author, const struct version *before, const struct version *after)
{
    const char *name = author == NULL ? "somebody dead" : author->name;

    if (w.tracing)
        tell_document(author, after);
    if (before != NULL) {
        EXPECT("I4", after->doc.round >= before->doc.round, "%s writes round %" PRId64 " over round %" PRId64, name,
               after->doc.round, before->doc.round);
        EXPECT("I5", after->doc.closed || !before->doc.closed, "%s opens a closed rendezvous", name);
    }
    if (author != NULL && !author->stock) {
        check_shape(author, after);
        if (before != NULL) {
            check_others(author, before, after);
            EXPECT("I4",
                   after->doc.round <= before->doc.round + 1 &&
                       (after->doc.round == before->doc.round || before->doc.complete),
                   "%s writes round %" PRId64 " over %s round %" PRId64, name, after->doc.round,
                   before->doc.complete ? "complete" : "open", before->doc.round);
            if (after->doc.complete && !(before->doc.complete && before->doc.round == after->doc.round))
                check_completion(author, before, after);
        } else if (after->doc.complete && author->last_round != after->doc.round) { /* nor is it put back */
            check_completion(author, before, after);
        }
    }
    if (author != NULL)
        note_too_many(author, after);
    note_members(author, before, after);
}

/* A foreign value takes nobody out of its round who was well all the time, and could put the document back. */
void check_replaced(const struct version *foreign, const struct version *after)
{
    for (unsigned i = 0; i < w.nodes_count; i++) {
        const struct node *node = &w.nodes[i];
        uint64_t well_us = 2 * node->settings.keep_alive_ms * MS;
        uint64_t since_us = foreign->born_us > well_us ? foreign->born_us - well_us : 0;

        if (!node->alive || node->stock || !node->member || node->joined_us > since_us || w.on[F_SLOW] ||
            w.on[F_LAZY] || node->paused_until_us > since_us || node->cut_until_us > since_us ||
            node->impaired_us > since_us || node->hindered_us > since_us || w.forged_us > since_us ||
            w.spoilt_us[1] > since_us)
            continue; /* who missed the document between two such values counts from the first */
        EXPECT("I15", after->doc.round == node->joined_round && mu_doc_has(&after->doc, &node->me, MU_DOC_PARTICIPANT),
               "round %" PRId64 " takes the place of a foreign value, and %s was well in round %" PRId64,
               after->doc.round, node->name, node->joined_round);
    }
}

/* ---- What a node sees ---- */

void check_seen(struct node *node, const struct request *request)
{
    const struct mu_doc *doc;
    uint64_t now_ms = node_ms(node);
    bool gap, found;

    if (request->id != node->main_id)
        return;
    node->main_id = 0;
    if (request->failed || !w.checking)
        return;
    node->settled_incarnation = request->incarnation;
    if (request->type != MU_RDZV_DO_READ && request->type != MU_RDZV_DO_WRITE)
        return;
    found = request->found && !request->version->foreign;
    gap = !node->seen_any || now_ms - node->look_ms > node->settings.keep_alive_ms || !found;
    node->seen_any = true;
    node->look_ms = now_ms;
    version_drop(node->seen);
    node->seen = version_keep(request->version);
    if (gap)
        memset(node->sightings, 0, sizeof node->sightings[0] * w.ids_count);
    if (!found) {
        node->has_deadline &= node->seen != NULL; /* its last call goes on, if that document comes back */
        return;
    }
    doc = &node->seen->doc;
    for (size_t i = 0; i < doc->count; i++) {
        struct sighting *sighting = &node->sightings[node->seen->ids[i]];

        if (sighting->life != node->life || sighting->heartbeat_us != doc->members[i].heartbeat_us)
            *sighting = (struct sighting){ doc->members[i].heartbeat_us, now_ms, now_ms, node->life };
        sighting->last_ms = now_ms;
    }
    if (doc->has_deadline && !(node->has_deadline && node->deadline_us == doc->deadline_us))
        node->deadline_since_ms = now_ms;
    node->has_deadline = doc->has_deadline;
    node->deadline_us = doc->deadline_us;
    if (doc->closed && mu_rdzv_phase(node->rdzv) != MU_RDZV_PHASE_SETTLING) {
        node->saw_closed = true;
        node->saw_closed_incarnation = request->incarnation;
    }
    if (mu_doc_has(doc, &node->me, MU_DOC_SPARE))
        node->spare_us = node->spare_seen_us = w.now_us;
}

/* ---- Worlds ---- */

static size_t world_of(unsigned incarnation, int64_t round)
{
    size_t i = 0;

    while (i < w.worlds_len && !(w.worlds[i].incarnation == incarnation && w.worlds[i].round == round))
        i++;
    return i;
}

static int by_id(const void *a, const void *b)
{
    return (int)*(const uint16_t *)a - (int)*(const uint16_t *)b;
}

static void new_world(unsigned incarnation, int64_t round, const uint16_t *ids, size_t count)
{
    struct world_seen *world;

    if (w.worlds_len == w.worlds_room) {
        w.worlds_room = w.worlds_room * 2 + 16;
        w.worlds = realloc(w.worlds, w.worlds_room * sizeof w.worlds[0]);
        if (w.worlds == NULL)
            abort();
    }
    world = &w.worlds[w.worlds_len++];
    *world = (struct world_seen){ .incarnation = incarnation, .round = round, .count = count };
    world->ids = malloc((count + 1) * sizeof ids[0]);
    if (world->ids == NULL)
        abort();
    memcpy(world->ids, ids, count * sizeof ids[0]);
}

/* PyTorch's own flaws are not ours: its members count only where nothing but they is unusual. */
static bool counts_stock(void)
{
    for (unsigned i = 0; i < FAULTS_COUNT; i++) {
        if (w.on[i] && i != F_STOCK && i != F_OLD && i != F_MIDDLE && i != F_PLAIN && i != F_DEAF && i != F_LAZY)
            return false;
    }
    return true;
}

/* Somebody has left since: who comes to look only now sees fewer, which PyTorch does not notice. */
static bool has_shrunk(size_t world)
{
    const struct version *document = store_document();
    size_t still = 0;

    for (size_t i = 0; document != NULL && i < document->doc.count; i++)
        still += (document->doc.members[i].in & MU_DOC_PARTICIPANT) != 0;
    return world < w.worlds_len &&
           (document == NULL || document->doc.round != w.worlds[world].round || still != w.worlds[world].count);
}

void check_world(struct node *node, int64_t round, const uint16_t *ids, size_t count, size_t rank)
{
    unsigned incarnation = node->stock ? store_incarnation() : node->settled_incarnation;
    size_t at = world_of(incarnation, round);
    uint16_t sorted[IDS_MAX];

    if (!w.checking || (node->stock && (!counts_stock() || has_shrunk(at))))
        return;
    EXPECT("I2", rank < count, "%s is told rank %zu of %zu", node->name, rank, count);
    memcpy(sorted, ids, count * sizeof ids[0]);
    qsort(sorted, count, sizeof sorted[0], by_id);
    if (at == w.worlds_len)
        new_world(incarnation, round, sorted, count);
    EXPECT("I2", w.worlds[at].count == count && memcmp(w.worlds[at].ids, sorted, count * sizeof ids[0]) == 0,
           "%s is told a world of %zu in round %" PRId64 ", others one of %zu", node->name, count, round,
           w.worlds[at].count);
    node->world = at;
}

static void joined(struct node *node)
{
    const struct mu_rdzv_world *world = mu_rdzv_world(node->rdzv);
    unsigned incarnation = node->seen == NULL ? 0 : node->seen->incarnation; /* that of the completed document */
    uint16_t ids[IDS_MAX];

    TELL("%s: JOINED round %" PRId64 ", rank %" PRId64 " of %zu", node->name, world->round, world->rank, world->count);
    EXPECT("ask", node->asked == ASKED_JOIN, "%s is told that it has joined, but did not ask", node->name);
    EXPECT("I5", !node->saw_closed || node->saw_closed_incarnation != incarnation, "%s joins what it saw closed",
           node->name);
    EXPECT("I4", node->last_incarnation != incarnation || node->last_round < world->round,
           "%s joins round %" PRId64 " after round %" PRId64, node->name, world->round, node->last_round);
    EXPECT("I2", (size_t)world->rank < world->count && mu_node_equal(&world->members[world->rank], &node->me),
           "%s is told another's rank", node->name);
    for (size_t i = 0; i < world->count; i++) {
        ids[i] = (uint16_t)id_of(&world->members[i]);
        EXPECT("I1", i == 0 || mu_node_compare(&world->members[i - 1], &world->members[i]) < 0,
               "%s is told ranks out of order", node->name);
    }
    check_world(node, world->round, ids, world->count, (size_t)world->rank);
    if (equal_limits() && !w.on[F_STOCK])
        EXPECT("I3", (int64_t)world->count >= node->settings.nodes_min, "%s joins a world of %zu, minimum is %" PRId64,
               node->name, world->count, node->settings.nodes_min);
    node->last_incarnation = incarnation;
    node->last_round = node->joined_round = world->round;
    node->joined_us = w.now_us;
    node->member = true;
    node->told_lost = 0;
    node->told_waiting = node->told_removed = false;
    node->dropped_us = node->broken_us = 0;
}

/* ---- Events ---- */

/* So long, by its own clock, a node has said that the store is away. */
static bool is_down_for(const struct node *node, uint64_t ms)
{
    return node->down && node_ms(node) - node->down_ms >= ms;
}

static bool gone_for(const struct node *node, const struct mu_node *peer)
{
    const struct mu_doc_member *member = find(node->seen, peer);
    const struct node *host = w.host_slot >= 0 ? &w.nodes[w.host_slot] : NULL;

    if (member == NULL || (member->in & MU_DOC_PARTICIPANT) == 0 || node->seen->doc.round != node->joined_round)
        return true;
    if (host != NULL && (!store_is_up() || is_down_for(node, node->settings.store_lost_ms)))
        return true;
    return is_silent(node, id_of(peer));
}

static void lost_some(struct node *node, const struct mu_rdzv_effect *effect)
{
    struct mu_rdzv_nodes lost = mu_rdzv_lost(node->rdzv);

    EXPECT("ask", node->member && effect->news.round == node->joined_round, "%s is told of losses, but is no member",
           node->name);
    /* While the store is away it is the host. Another that was told may have been seen again since. */
    EXPECT("ask", lost.count > node->told_lost || node->down, "%s is told of no new losses", node->name);
    for (size_t i = 0; i < lost.count; i++)
        EXPECT("I12", !mu_node_equal(&lost.items[i], &node->me) && gone_for(node, &lost.items[i]),
               "%s is told that %u is lost, which is there", node->name, id_of(&lost.items[i]));
    node->told_lost = lost.count;
}

static void waiting(struct node *node, const struct mu_rdzv_effect *effect)
{
    EXPECT("ask", node->member && effect->news.round == node->joined_round, "%s is told who waits, but is no member",
           node->name);
    EXPECT("ask", !node->told_waiting, "%s is told who waits twice in a round", node->name);
    EXPECT("I12", effect->news.count > 0 && node->seen != NULL && (size_t)effect->news.count <= node->seen->doc.waiting,
           "%s is told that %" PRId64 " wait, but saw %zu", node->name, effect->news.count,
           node->seen == NULL ? 0 : node->seen->doc.waiting);
    EXPECT("ask", !node->held_down || w.now_us - node->joined_us >= SECOND - 2 * MS,
           "%s is told who waits %.3f s after joining, and the round before was short", node->name,
           (double)(w.now_us - node->joined_us) / 1e6);
    node->told_waiting = true;
}

static void removed(struct node *node, const struct mu_rdzv_effect *effect)
{
    EXPECT("ask", node->member && effect->news.round == node->joined_round,
           "%s is told that it is removed, but is no member", node->name);
    EXPECT("I7",
           node->seen != NULL && (node->seen->doc.round != node->joined_round || !node->seen->doc.complete ||
                                  !mu_doc_has(&node->seen->doc, &node->me, MU_DOC_PARTICIPANT)),
           "%s is told that it is removed, but saw itself in, or no document", node->name);
    node->told_removed = true;
    node->member = false;
}

/* A spare of a full round waits without limit, as long as there is a store that says so. */
static bool is_spare(const struct node *node)
{
    const struct mu_doc *doc = mu_rdzv_doc(node->rdzv); /* without those whom it thinks dead */

    return node->seen != NULL && mu_doc_has(&node->seen->doc, &node->me, MU_DOC_SPARE) &&
           node->spare_seen_us >= node->asked_us && mu_doc_has(doc, &node->me, MU_DOC_SPARE) &&
           (int64_t)doc->participants == node->settings.nodes_max;
}

/* A join may end before its time if the store was lost with a member that hosts it. */
static bool lost_the_store(const struct node *node, int code)
{
    uint64_t least_ms = node->settings.store_lost_ms;

    if (least_ms > MU_RDZV_SURPLUS_MS && node->seen != NULL && node->seen->doc.complete)
        least_ms = MU_RDZV_SURPLUS_MS;
    return code == MUSTER_ERDZV_CONNECTION && (w.host_slot >= 0 || w.on[F_STOCK]) && is_down_for(node, least_ms);
}

static void failed(struct node *node, const struct mu_rdzv_effect *effect)
{
    const struct muster_error *error = mu_rdzv_error(node->rdzv);
    uint64_t took_ms = (w.now_us - node->asked_us) / MS + 1;

    TELL("%s: %s failed: %s", node->name, mu_rdzv_event_text((enum mu_rdzv_event_type)effect->news.asked), error->text);
    EXPECT("ask", error->code != MUSTER_ERDZV_STATE, "%s cannot read the document: %s", node->name, error->text);
    switch (effect->news.asked) {
    case MU_PART_ON_JOIN:
        EXPECT("ask", node->asked == ASKED_JOIN, "%s fails to join, but was not asked", node->name);
        if (error->code == MUSTER_ERDZV_CLOSED || error->code == MUSTER_ERDZV_GRACEFUL_EXIT)
            EXPECT("I5", node->saw_closed, "%s did not see that it is closed", node->name);
        else
            EXPECT("ask",
                   lost_the_store(node, error->code) ||
                       (took_ms >= node->settings.join_ms &&
                        (!is_spare(node) || w.now_us - node->spare_seen_us >= node->settings.join_ms * MS)),
                   "%s gives up after %" PRIu64 " ms: %s", node->name, took_ms, error->text);
        break;
    case MU_PART_ON_LEAVE:
        EXPECT("ask", node->asked == ASKED_LEAVE, "%s fails to leave, but was not asked", node->name);
        break;
    case MU_PART_ON_CLOSE:
        EXPECT("ask", node->closing, "%s fails to close, but was not asked", node->name);
        break;
    default:
        fail("ask", "%s: membership fails: %s", node->name, error->text);
    }
}

static void tell_deeds(const struct node *node)
{
    struct mu_rdzv_deeds deeds = mu_rdzv_deeds(node->rdzv);

    for (size_t i = 0; i < deeds.count; i++)
        TELL("%s: wants to %s, round %" PRId64, node->name, mu_rdzv_action_text(deeds.items[i].action),
             deeds.items[i].round);
}

void check_tell(struct node *node, const struct mu_rdzv_effect *effect)
{
    if (effect->type == MU_RDZV_DO_PLANNED)
        tell_deeds(node);
    else if (effect->type == MU_RDZV_DO_SYNCED)
        TELL("%s: %s", node->name, effect->written ? "did it" : "was too late");
    if (effect->type != MU_RDZV_DO_TELL)
        return;
    if (effect->news.tell != MU_PART_TELL_PROGRESS)
        TELL("%s: told %s", node->name, mu_part_tell_text(effect->news.tell));
    if (!w.checking) {
        node->member |= effect->news.tell == MU_PART_TELL_JOINED;
        return;
    }
    switch (effect->news.tell) {
    case MU_PART_TELL_JOINED:
        joined(node);
        break;
    case MU_PART_TELL_WAITING:
        waiting(node, effect);
        break;
    case MU_PART_TELL_LOST:
        lost_some(node, effect);
        break;
    case MU_PART_TELL_REMOVED:
        removed(node, effect);
        break;
    case MU_PART_TELL_CLOSED:
        EXPECT("ask", node->saw_closed, "%s is told that it is closed, which it did not see", node->name);
        EXPECT("ask", !node->told_closed || node->closing, "%s is told twice that it is closed", node->name);
        node->told_closed = true;
        break;
    case MU_PART_TELL_LEFT:
        EXPECT("ask", node->asked == ASKED_LEAVE, "%s has left, but was not asked", node->name);
        break;
    case MU_PART_TELL_FAILED:
        failed(node, effect);
        break;
    case MU_PART_TELL_LOOKED:
        EXPECT("ask", node->looking, "%s has looked, but was not asked", node->name);
        break;
    case MU_PART_TELL_BACKEND_DOWN:
        EXPECT("ask", !node->down || node->refused, "%s: the back end is down twice", node->name);
        if (!node->down)
            node->down_ms = node_ms(node);
        node->down = true;
        break;
    case MU_PART_TELL_BACKEND_UP:
        EXPECT("ask", node->down, "%s: the back end is up, but never was down", node->name);
        node->down = false;
        break;
    case MU_PART_TELL_PROGRESS:
    case MU_PART_TELL_REPORTED:
    case MU_PART_TELL_FOREIGN:
    case MU_PART_TELLS_COUNT:
        break;
    }
}

/* ---- From time to time ---- */

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void check_dropped_is_told(struct node *node)
{
    const struct version *document = store_document();
    bool in = document != NULL && document->doc.round == node->joined_round && document->doc.complete &&
              mu_doc_has(&document->doc, &node->me, MU_DOC_PARTICIPANT);

    if (in || !node->member || node->told_lost || node->told_waiting || !store_is_up()) {
        node->dropped_us = 0;
        return;
    }
    if (node->dropped_us == 0)
        node->dropped_us = w.now_us;
    EXPECT("I7", w.now_us - later(node->dropped_us, node->impaired_us) <= TOLD_US + 4 * w.slow_us,
           "%s was dropped %.1f s ago and does not know", node->name, (double)(w.now_us - node->dropped_us) / 1e6);
}

static void check_asks(struct node *node)
{
    uint64_t slack = ASK_SLACK_US, since;

    if (mu_rdzv_progress(node->rdzv).spare)
        node->spare_us = w.now_us;
    since = later(node->asked_us, node->spare_us);
    if (node->paused_until_us + slack > w.now_us)
        return;
    if (node->asked == ASKED_JOIN && since < w.now_us)
        EXPECT("ask", w.now_us - since <= (node->settings.join_ms + MU_RDZV_ROLL_BACK_MS) * MS + slack,
               "%s has been joining for %.1f s", node->name, (double)(w.now_us - node->asked_us) / 1e6);
    if (node->asked == ASKED_LEAVE)
        EXPECT("ask", w.now_us - node->asked_us <= node->settings.close_ms * MS + slack,
               "%s has been leaving for %.1f s", node->name, (double)(w.now_us - node->asked_us) / 1e6);
    if (node->closing)
        EXPECT("ask", w.now_us - node->closing_us <= node->settings.close_ms * MS + slack,
               "%s has been closing for %.1f s", node->name, (double)(w.now_us - node->closing_us) / 1e6);
    if (node->looking)
        EXPECT("ask", w.now_us - node->looking_us <= 15 * SECOND + 4 * w.slow_us, "%s has been looking for %.1f s",
               node->name, (double)(w.now_us - node->looking_us) / 1e6);
}

void check_every_second(void)
{
    for (unsigned i = 0; i < w.nodes_count; i++) {
        struct node *node = &w.nodes[i];

        if (!node->alive || node->stock)
            continue;
        if (node->paused_until_us > w.now_us) {
            node->impaired_us = w.now_us;
            continue;
        }
        if (node->cut_until_us > w.now_us)
            node->impaired_us = w.now_us;
        check_dropped_is_told(node);
        check_asks(node);
        node_workers(node);
    }
}

/* ---- The end ---- */

static const char *why;

const char *why_not_well(void)
{
    return why;
}

static bool is_there(unsigned id, int64_t round)
{
    for (unsigned i = 0; i < w.nodes_count; i++) {
        const struct node *node = &w.nodes[i];

        if (node->alive && node->id == id)
            return node->stock ? stock_in(node, round) : node->member && node->joined_round == round;
    }
    return false;
}

static bool node_well(const struct node *node, const struct version *document)
{
    const struct mu_doc_member *me = find(document, &node->me);
    bool full = (int64_t)document->doc.participants >= node->settings.nodes_max;

    if (node->stock && stock_astray(node))
        return true;
    if (me == NULL)
        return full && !w.dialect.spares;
    if ((me->in & (MU_DOC_SPARE | MU_DOC_WAITING)) != 0)
        return full;
    return (me->in & MU_DOC_PARTICIPANT) != 0 && is_there(node->id, document->doc.round);
}

bool check_all_well(void)
{
    const struct version *document = store_document();
    bool somebody_cares = false; /* PyTorch's who were dropped do not */
    static char text[80];

    why = text;
    for (unsigned i = 0; i < w.nodes_count; i++) {
        const struct node *node = &w.nodes[i];

        if (node->alive && document != NULL && document->doc.closed && (node->told_closed || node->stock))
            continue;
        (void)snprintf(text, sizeof text, "%s is neither in nor a spare", node->name);
        if (node->alive &&
            (document == NULL || !document->doc.complete || document->doc.closed || !node_well(node, document)))
            return false;
        somebody_cares |= node->alive && !(node->stock && stock_astray(node));
    }
    for (size_t i = 0; somebody_cares && document != NULL && !document->doc.closed && i < document->doc.count; i++) {
        (void)snprintf(text, sizeof text, "%u is in, but not there", document->ids[i]);
        if ((document->doc.members[i].in & MU_DOC_PARTICIPANT) != 0 && !is_there(document->ids[i], document->doc.round))
            return false;
    }
    return true;
}

void check_begin(void)
{
    memset(w.last_write_us, 0, sizeof w.last_write_us);
    w.too_many_us = w.forged_us = w.spoilt_us[0] = w.spoilt_us[1] = 0;
    w.worlds_len = 0;
}

void check_end(void)
{
    for (size_t i = 0; i < w.worlds_len; i++)
        free(w.worlds[i].ids);
    w.worlds_len = 0;
}
