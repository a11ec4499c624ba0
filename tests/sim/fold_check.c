/* What must hold, whatever happens. */
#include "fold_sim.h"
#include "rdzv/attribution.h"

#include <string.h>

enum {
    FENCE_LATE_MS = 60,    /* it is looked at so often, and times are cut to milliseconds */
    REPORT_LATE_MS = 1000, /* until the leader has heard what was acknowledged */
};

void check_reset(void)
{
    for (unsigned i = 0; i < s->nodes_count; i++) {
        s->nodes[i].gone_rev = s->revision;
        s->nodes[i].gone_incarnation = s->incarnation;
    }
}

static struct world *find_world(uint64_t id)
{
    for (size_t i = 0; i < s->worlds_count; i++)
        if (s->worlds[i].id == id)
            return &s->worlds[i];
    return NULL;
}

static bool is_mark(const struct key *key)
{
    return strstr(key->name, "/done") != NULL || strstr(key->name, "/killed") != NULL;
}

/* The newest record of a node in etcd; false: it has none. */
static bool find_record(uint64_t id, struct mu_fold_record *ret_record)
{
    char prefix[MU_FOLD_KEY_MAX], text[MU_FOLD_ID_TEXT_MAX];
    struct mu_fold_record record;
    bool found = false;

    (void)snprintf(prefix, sizeof prefix, "nodes/%s/", mu_fold_id_text(id, text));
    for (size_t i = 0; i < s->keys_count; i++) {
        if (strncmp(s->keys[i].name, prefix, strlen(prefix)) != 0 || is_mark(&s->keys[i]))
            continue;
        if (s->on[F_STRANGER] && s->keys[i].lease == 0)
            continue;
        SIM_EXPECT(mu_fold_record_read(mu_buf_slice(&s->keys[i].value), &record, NULL) == 0, "a record that is none");
        if (!found || record.seq > ret_record->seq)
            *ret_record = record;
        found = true;
    }
    return found;
}

bool check_has_record(const struct node *node)
{
    struct mu_fold_record record;

    return find_record(node->id, &record);
}

/* Also if it left before it heard that this was written. */
bool check_has_done_mark(const struct node *node)
{
    char name[MU_FOLD_KEY_MAX], text[MU_FOLD_ID_TEXT_MAX];

    (void)snprintf(name, sizeof name, "nodes/%s/done", mu_fold_id_text(node->id, text));
    return etcd_get(name) != NULL;
}

size_t check_done_and_gone(uint64_t id)
{
    const struct world *world = find_world(id);
    size_t count = 0;

    for (size_t i = 0; i < world->count; i++) {
        const struct node *node = node_by_id(world->members[i]);

        count += node->done_world == id && (node->done || node->was_marked) &&
                 (!node->alive || node->owner != OWNER_RUNNING);
    }
    return count;
}

static void forget_world(const struct key *doc)
{
    struct mu_fold_world world = { .id = 0 };
    struct world *known = NULL;

    if (mu_fold_world_read(mu_buf_slice(&doc->value), &world, NULL) == 0)
        known = find_world(world.id);
    if (known != NULL)
        known->forgotten = true;
}

void check_key_gone(const struct key *key)
{
    struct mu_fold_record gone, left;
    uint64_t id;
    struct node *node;

    if (strcmp(key->name, "job/doc") == 0)
        forget_world(key);

    if (strncmp(key->name, "nodes/", 6) != 0 || is_mark(key) || !mu_fold_id_parse(mu_slice(key->name + 6, 16), &id))
        return;
    node = node_by_id(id);
    if (s->on[F_STRANGER] && key->lease == 0)
        return;
    SIM_EXPECT(mu_fold_record_read(mu_buf_slice(&key->value), &gone, NULL) == 0, "a record that is none");
    if (node == NULL || (find_record(id, &left) && left.seq >= gone.seq)) /* an older one says what was before */
        return;
    node->gone_rev = s->revision;
    node->gone_us = s->now_us;
    node->gone_from = gone.joining ? gone.world : 0;
    node->gone_incarnation = s->incarnation;
}

static bool says_in(const struct mu_fold_record *record, uint64_t world)
{
    return record->joining != (record->world == world);
}

/* By its newest record it is not in the document's world: the leader may see that, also if another record follows. */
static void note_out(uint64_t id)
{
    const struct key *doc = etcd_get("job/doc");
    struct mu_fold_world world = { .id = 0 };
    struct mu_fold_record record;
    struct node *node = node_by_id(id);

    if (node == NULL || doc == NULL || mu_fold_world_read(mu_buf_slice(&doc->value), &world, NULL) < 0 ||
        !find_record(id, &record))
        return;
    if (!says_in(&record, world.id))
        node->out_of = world.id;
}

/* Whether nothing in etcd has ever said that it is not in this world. */
static bool is_surely_in(const struct node *node, uint64_t world, int64_t since)
{
    struct mu_fold_record record;
    const struct world *known = find_world(world);

    if (!node->alive || node->world != world || !find_record(node->id, &record))
        return false;
    if (node->report.end == MU_PART_END_DONE) /* none of its workers is there any more */
        return false;
    if (node->out_of == world)
        return false;
    if (known == NULL || known->forgotten ||
        known->incarnation != s->incarnation) /* what was said before etcd forgot it counts, too */
        return false;
    if (node->gone_rev >= since || node->gone_incarnation != s->incarnation)
        return false;
    /* The leader may have folded what it saw before the record went, and learn of that only later. */
    if (node->gone_us != 0 && node->gone_us + 2 * s->lease_ms * MS > known->born_us)
        return false;
    return says_in(&record, world);
}

/* ---- What a round costs ---- */

/* What a member says first of its end. */
static void note_end(const struct key *key)
{
    struct mu_fold_record record;
    struct world *world;

    if (strncmp(key->name, "nodes/", 6) != 0 || is_mark(key) || (s->on[F_STRANGER] && key->lease == 0))
        return;
    SIM_EXPECT(mu_fold_record_read(mu_buf_slice(&key->value), &record, NULL) == 0, "a record that is none");
    world = record.end.kind != MU_FOLD_END_NONE ? find_world(record.end.world) : NULL;
    if (world == NULL)
        return;
    if (record.end.kind == MU_FOLD_END_FAILED && world->failed_rev == 0)
        world->failed_rev = key->mod;
    if (record.end.kind > MU_FOLD_END_DONE && world->goes_rev == 0)
        world->goes_rev = key->mod;
}

/* The others may have seen it, also if its server and with it the mark is gone, and the node has had no answer. */
static void note_done(const struct key *key)
{
    const char *last = strrchr(key->name, '/');
    uint64_t id;

    if (last == NULL || strcmp(last, "/done") != 0 ||
        !mu_fold_id_parse(mu_slice(key->name + strlen("nodes/"), 16), &id))
        return;
    for (unsigned i = 0; i < s->nodes_count; i++)
        s->nodes[i].was_marked |= s->nodes[i].id == id;
}

/* Nothing but what the seed does with nodes disturbs the leader's judgement. */
static bool is_plain(void)
{
    static const enum fault disturbing[] = { F_PAUSE,  F_CUT,   F_LOST,       F_REFUSED,  F_LATER,   F_SLOW,
                                             F_OUTAGE, F_WIPE,  F_EXPIRE,     F_STRANGER, F_COMPACT, F_REBIRTH,
                                             F_LIMITS, F_RESET, F_LATEATTACH, F_STAND,    F_EPOCH,   F_TWO };

    for (size_t i = 0; i < sizeof disturbing / sizeof disturbing[0]; i++)
        if (s->on[disturbing[i]])
            return false;
    return !s->on_after_move; /* who has moved is missing at the next store */
}

/* Whether its loss may have ended the round that a worker's failure ended first. Who begins to lead later knows less:
 * then all losses count. */
static bool may_be_cause(const struct node *node, const struct world *world, uint64_t failed_us)
{
    uint64_t late_us = (s->lease_ms + MU_ATTRIBUTION_LATE_MS + REPORT_LATE_MS) * MS;

    if (node->killed_us == 0) /* also with stopped workers, before its record said so */
        return false;
    return s->led_us > world->born_us || (node->gone_from != world->id && node->killed_us <= failed_us + late_us);
}

/* A node may have failed in another world since then, and this one may be put back. */
void check_reports_failure(uint64_t id)
{
    for (size_t i = 0; i < s->worlds_count; i++)
        s->worlds[i].has_failed |= s->worlds[i].id == id;
}

static void check_cost(const struct world *last, const struct mu_fold_world *now)
{
    int64_t cost = now->count - last->restarts;
    bool goes_first = last->goes_rev != 0 && (last->failed_rev == 0 || last->goes_rev < last->failed_rev);
    uint64_t failed_us = UINT64_MAX, killed_us = UINT64_MAX;
    bool failed = false, lost = false;

    for (size_t i = 0; i < last->count; i++) {
        const struct node *node = node_by_id(last->members[i]);

        if (node == NULL)
            continue;
        failed |= node->failed_world == last->id;
        if (node->failed_world == last->id && node->failed_us != 0 && node->failed_us < failed_us)
            failed_us = node->failed_us;
        if (node->killed_world == last->id && node->failed_world != last->id && node->killed_us < killed_us)
            killed_us = node->killed_us;
    }
    for (size_t i = 0; i < last->count && !lost && failed_us != UINT64_MAX; i++) {
        const struct node *node = node_by_id(last->members[i]);

        lost = node != NULL && may_be_cause(node, last, failed_us);
    }
    SIM_EXPECT(cost == 0 || cost == 1, "a round costs %" PRId64 " restarts", cost);
    SIM_EXPECT(cost == 0 || failed || last->has_failed, "a restart is charged, and nobody has failed");
    if (!is_plain())
        return;
    SIM_EXPECT(cost == 0 || killed_us > failed_us || failed_us == UINT64_MAX,
               "a restart is charged, and the failure was a consequence");
    SIM_EXPECT(cost == 0 || !goes_first, "a restart is charged, and a node had ended the round before the failure");
    if (!s->on[F_LEAVE])
        SIM_EXPECT(cost == 1 || failed_us == UINT64_MAX || lost || goes_first,
                   "a failure costs nothing, and nobody was lost");
}

static void check_next(const struct key *before, const struct mu_fold_world *now)
{
    int64_t used = now->window_s == 0 ? now->count : (int64_t)now->charges_count;
    struct mu_fold_world last = { .id = 0 };
    const struct world *known;

    SIM_EXPECT(mu_fold_world_read(mu_buf_slice(&before->value), &last, NULL) == 0, "a document that is none");
    SIM_EXPECT(now->round == last.round + 1, "round %" PRId64 " follows round %" PRId64, now->round, last.round);
    SIM_EXPECT(now->id != last.id, "a world is written twice");
    known = find_world(last.id);
    check_cost(known, now);
    SIM_EXPECT(now->max_restarts == last.max_restarts && now->window_s == last.window_s && used <= now->max_restarts,
               "restart %" PRId64 " of %" PRId64, used, now->max_restarts);
    for (size_t i = 0; i < known->count; i++) {
        const struct node *node = node_by_id(known->members[i]);

        SIM_EXPECT(node == NULL || !is_surely_in(node, last.id, before->mod),
                   "round %" PRId64 " begins while node %u is in round %" PRId64, now->round, node->index, last.round);
    }
}

/* ---- Members ---- */

static void read_page(const struct key *key, void *ctx)
{
    struct mu_fold_members *members = ctx;
    size_t number = strtoul(key->name + strlen("member/0123456789abcdef/"), NULL, 10);

    SIM_EXPECT(mu_fold_members_read_page(members, number, mu_buf_slice(&key->value), NULL) == 0, "%s is no page",
               key->name);
}

static void check_seat(const struct key *key, void *ctx)
{
    struct mu_fold_members *members = ctx;
    uint64_t id = 0;
    struct mu_fold_seat seat = { .rank = -1 };

    SIM_EXPECT(mu_fold_id_parse(mu_slice_str(key->name + strlen("seat/0123456789abcdef/")), &id) &&
                   mu_fold_seat_read(mu_buf_slice(&key->value), &seat, NULL) == 0 &&
                   mu_fold_members_rank(members, id) == seat.rank,
               "%s is not as the pages say", key->name);
    members->world++; /* counts them */
}

/* Pages and seats of a world are there before its document, and say the same. */
static void note_members(const struct mu_fold_world *world, struct world *known)
{
    struct mu_fold_members members = { .world = 0 };
    char prefix[MU_FOLD_KEY_MAX];

    if (mu_fold_members_init(&members, 0, (size_t)world->nodes) < 0)
        abort();
    (void)snprintf(prefix, sizeof prefix, "member/%016" PRIx64 "/", world->id);
    etcd_each(prefix, read_page, &members);
    SIM_EXPECT(mu_fold_members_sort(&members) && mu_fold_members_all_known(&members), "members are missing");
    (void)snprintf(prefix, sizeof prefix, "seat/%016" PRIx64 "/", world->id);
    etcd_each(prefix, check_seat, &members);
    SIM_EXPECT(members.world == (uint64_t)world->nodes, "%" PRIu64 " seats for %" PRId64 " nodes", members.world,
               world->nodes);
    known->count = members.count;
    known->members = calloc(members.count, sizeof *known->members);
    if (known->members == NULL)
        abort();
    for (size_t i = 0; i < members.count; i++)
        known->members[i] = members.items[i].id;
    mu_fold_members_done(&members);
}

static bool is_closed(void)
{
    const struct key *key = etcd_get("job/closed");
    struct mu_fold_closed closed;

    return key != NULL && mu_fold_closed_read(mu_buf_slice(&key->value), &closed, NULL) == 0;
}

static bool is_end_of(const struct world *last, const struct mu_fold_closed *closed)
{
    bool failed = false, done = true;

    for (size_t i = 0; i < last->count; i++) {
        const struct node *node = node_by_id(last->members[i]);

        failed |= node->failed_world == last->id;
        done &= node->report.end == MU_PART_END_DONE;
    }
    return closed->succeeded ? done : failed && (last->restarts == s->max_restarts || s->window_s > 0);
}

/* By somebody who was asked to, or by the leader, for a reason: the end of the world that is in the document; or, if
 * nobody has put it back so far, of one that a node has run in. Such a verdict may be put back later. */
static void check_end(const struct key *key)
{
    const struct key *doc = etcd_get("job/doc");
    struct mu_fold_world world = { .id = 0 };
    struct mu_fold_closed closed;
    bool holds;

    SIM_EXPECT(mu_fold_closed_read(mu_buf_slice(&key->value), &closed, NULL) == 0, "an end that is none");
    s->closed_ever = true;
    if (!closed.has_verdict)
        SIM_EXPECT(s->close_asked, "closed, and nobody asked for it");
    if (doc != NULL && mu_fold_world_read(mu_buf_slice(&doc->value), &world, NULL) < 0)
        world.id = 0;
    holds = closed.has_verdict && s->verdicts[closed.succeeded];
    for (size_t i = 0; closed.has_verdict && i < s->worlds_count; i++)
        holds |= (world.id == 0 || s->worlds[i].id == world.id) && is_end_of(&s->worlds[i], &closed);
    SIM_EXPECT(!closed.has_verdict || holds, "%s, and that is not so", closed.succeeded ? "succeeded" : "failed");
    s->close_asked |= closed.has_verdict;
    s->verdicts[closed.succeeded] |= closed.has_verdict;
}

void check_put(const struct key *before, const struct key *key)
{
    struct mu_fold_world world = { .id = 0 };
    struct world *known;
    uint64_t id;

    if (s->scribbles)
        return;
    if (before != NULL && before->lease == 0 && s->on[F_STRANGER])
        before = NULL; /* what the stranger wrote counts as missing */
    if (strcmp(key->name, "job/closed") == 0)
        check_end(key);
    if (strcmp(key->name, "job/folder") == 0)
        s->led_us = s->now_us;
    note_end(key);
    note_done(key);
    if (strncmp(key->name, "nodes/", 6) == 0 && mu_fold_id_parse(mu_slice(key->name + 6, 16), &id))
        note_out(id);
    if (strcmp(key->name, "job/doc") != 0)
        return;
    SIM_EXPECT(key->value.len <= MU_FOLD_SMALL_MAX, "a document of %zu bytes", key->value.len);
    SIM_EXPECT(mu_fold_world_read(mu_buf_slice(&key->value), &world, NULL) == 0, "a document that is none");
    known = find_world(world.id);
    SIM_EXPECT(!is_closed() || known != NULL, "a round begins after the job was closed");
    if (before != NULL)
        check_next(before, &world);
    if (known == NULL) {
        SIM_EXPECT(s->worlds_count < WORLDS_MAX, "too many worlds");
        known = &s->worlds[s->worlds_count++];
        *known =
            (struct world){ .id = world.id, .round = world.round, .incarnation = s->incarnation, .born_us = s->now_us };
        known->restarts = world.count;
        note_members(&world, known);
    } else {
        SIM_EXPECT(before == NULL, "an old world over a newer one");
        SIM_EXPECT(known->round == world.round && known->count == (size_t)world.nodes, "a world was changed");
    }
    for (size_t i = 0; i < known->count; i++)
        note_out(known->members[i]);
}

/* Workers are counted by the ranks of their nodes, and those of a role for themselves. */
static void check_ranks(const struct node *node, const struct world *known, int64_t rank)
{
    const struct mu_part_seat *seat = mu_fold_seat(node->fold);
    int64_t base = 0, size = 0, role_base = 0, role_size = 0;

    for (size_t i = 0; i < known->count; i++) {
        const struct node *other = node_by_id(known->members[i]);
        bool same = strcmp(other->role, node->role) == 0;

        base += (int64_t)i < rank ? other->size : 0;
        size += other->size;
        role_base += same && (int64_t)i < rank ? other->size : 0;
        role_size += same ? other->size : 0;
    }
    SIM_EXPECT(seat->base_rank == base && seat->world_size == size && seat->base_role_rank == role_base &&
                   seat->role_world_size == role_size,
               "node %u has other ranks than its place gives it", node->index);
    SIM_EXPECT(seat->count == known->restarts, "node %u is told %" PRId64 " restarts of %" PRId64, node->index,
               seat->count, known->restarts);
}

void check_joined(struct node *node)
{
    const struct mu_fold_world *world = mu_fold_world(node->fold);
    int64_t rank = mu_fold_rank(node->fold);
    const struct world *known = world != NULL ? find_world(world->id) : NULL;
    const struct mu_fold_members *names = mu_fold_names(node->fold);

    SIM_EXPECT(world != NULL, "node %u joins a world that it is not in", node->index);
    SIM_EXPECT(known != NULL, "node %u joins a world that nobody wrote", node->index);
    SIM_EXPECT(world->round == known->round && (size_t)world->nodes == known->count,
               "node %u holds another round than was written", node->index);
    SIM_EXPECT(rank >= 0 && rank < world->nodes && known->members[rank] == node->id,
               "node %u has rank %" PRId64 ", which is not its own", node->index, rank);
    for (size_t i = 0; names != NULL && i < known->count; i++)
        SIM_EXPECT(names->items[i].id == known->members[i], "node %u was told another member of rank %zu", node->index,
                   i);
    SIM_EXPECT(world->nodes >= node->settings.nodes_min && world->nodes <= node->settings.nodes_max,
               "node %u: a world of %" PRId64 " is not of %" PRId64 " to %" PRId64, node->index, world->nodes,
               node->settings.nodes_min, node->settings.nodes_max);
    check_ranks(node, known, rank);
    SIM_EXPECT(node->world == 0, "node %u joins while its workers run", node->index);
}

void check_starting(const struct node *node, const struct mu_part_seat *ranks)
{
    const struct world *known = find_world(node->world);
    const struct mu_part_seat *seat = mu_fold_seat(node->fold);

    SIM_EXPECT(known != NULL && seat != NULL, "node %u starts workers, and has no seat", node->index);
    SIM_EXPECT(ranks->count == known->restarts && ranks->base_rank == seat->base_rank &&
                   ranks->world_size == seat->world_size && ranks->base_role_rank == seat->base_role_rank &&
                   ranks->role_world_size == seat->role_world_size,
               "node %u starts workers with other ranks than its seat has", node->index);
}

/* All who are told of a world are told the same place. */
void check_meeting(const struct node *node, unsigned port)
{
    struct world *known = mu_fold_world(node->fold) != NULL ? find_world(mu_fold_world(node->fold)->id) : NULL;

    SIM_EXPECT(known != NULL && port != 0, "node %u meets nobody", node->index);
    SIM_EXPECT(known->port == 0 || known->port == port, "node %u meets at port %u, others at %u", node->index, port,
               known->port);
    known->port = port;
}

void check_lost(struct node *node)
{
    const struct mu_fold_world *world = mu_fold_world(node->fold);
    const struct key *doc = etcd_get("job/doc");
    const struct world *known = find_world(world->id);

    for (size_t i = 0; doc != NULL && i < known->count; i++) {
        const struct node *other = node_by_id(known->members[i]);

        if (!mu_fold_is_lost(node->fold, i) || other == NULL)
            continue;
        SIM_EXPECT(other != node, "node %u is told that it has lost itself", node->index);
        if (world->host.name[0] != '\0' && (int64_t)i == world->host.rank)
            continue; /* with its store it is lost to all who do not reach that */
        SIM_EXPECT(!is_surely_in(other, world->id, doc->create), "node %u is told that it has lost %u, which is there",
                   node->index, other->index);
    }
}

void check_closed(void)
{
    SIM_EXPECT(s->close_asked, "told as closed, and nobody asked for it");
}

/* Nobody's workers run for longer without a renewal that it knows of. A paused agent cannot stop them. */
void check_fence(void)
{
    for (unsigned i = 0; s->fence_ms > 0 && i < s->nodes_count; i++) {
        const struct node *node = &s->nodes[i];

        SIM_EXPECT(!node->alive || node->world == 0 || node->report.end == MU_PART_END_DONE ||
                       node->paused_until_us + FENCE_LATE_MS * MS >= s->now_us ||
                       s->now_us <= node->renewed_us + (s->fence_ms + FENCE_LATE_MS) * MS,
                   "node %u runs on behind its fence", node->index);
    }
}
