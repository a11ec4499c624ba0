/* What must hold, whatever happens. */
#include "fold_sim.h"

#include <string.h>

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

/* The newest record of a node in etcd; false: it has none. */
static bool find_record(uint64_t id, struct mu_fold_record *ret_record)
{
    char prefix[MU_FOLD_KEY_MAX], text[MU_FOLD_ID_TEXT_MAX];
    struct mu_fold_record record;
    bool found = false;

    (void)snprintf(prefix, sizeof prefix, "nodes/%s/", mu_fold_id_text(id, text));
    for (size_t i = 0; i < s->keys_count; i++) {
        if (strncmp(s->keys[i].name, prefix, strlen(prefix)) != 0)
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

void check_key_gone(const struct key *key)
{
    struct mu_fold_record gone, left;
    uint64_t id;
    struct node *node;

    if (strncmp(key->name, "nodes/", 6) != 0 || !mu_fold_id_parse(mu_slice(key->name + 6, 16), &id))
        return;
    node = node_by_id(id);
    if (s->on[F_STRANGER] && key->lease == 0)
        return;
    SIM_EXPECT(mu_fold_record_read(mu_buf_slice(&key->value), &gone, NULL) == 0, "a record that is none");
    if (node == NULL || (find_record(id, &left) && left.seq >= gone.seq)) /* an older one says what was before */
        return;
    node->gone_rev = s->revision;
    node->gone_us = s->now_us;
    node->gone_incarnation = s->incarnation;
}

/* Whether nothing in etcd has ever said that it is not in this world. */
static bool is_surely_in(const struct node *node, uint64_t world, int64_t since)
{
    struct mu_fold_record record;
    const struct world *known = find_world(world);

    if (!node->alive || node->world != world || !find_record(node->id, &record))
        return false;
    if (known == NULL || known->incarnation != s->incarnation) /* what was said before etcd forgot it counts, too */
        return false;
    if (node->gone_rev >= since || node->gone_incarnation != s->incarnation)
        return false;
    /* The leader may have folded what it saw before the record went, and learn of that only later. */
    if (node->gone_us != 0 && node->gone_us + 2 * s->lease_ms * MS > known->born_us)
        return false;
    return record.joining != (record.world == world);
}

static void check_next(const struct key *before, const struct mu_fold_world *now)
{
    struct mu_fold_world last = { .id = 0 };

    SIM_EXPECT(mu_fold_world_read(mu_buf_slice(&before->value), &last, NULL) == 0, "a document that is none");
    SIM_EXPECT(now->round == last.round + 1, "round %" PRId64 " follows round %" PRId64, now->round, last.round);
    SIM_EXPECT(now->id != last.id, "a world is written twice");
    for (size_t i = 0; i < last.count; i++) {
        const struct node *node = node_by_id(last.members[i].id);

        SIM_EXPECT(node == NULL || !is_surely_in(node, last.id, before->mod),
                   "round %" PRId64 " begins while node %u is in round %" PRId64, now->round, node->index, last.round);
    }
    mu_fold_world_done(&last);
}

static bool is_closed(void)
{
    const struct key *key = etcd_get("job/closed");
    uint64_t who;

    return key != NULL && mu_fold_mark_read(mu_buf_slice(&key->value), &who, NULL) == 0;
}

void check_put(const struct key *before, const struct key *key)
{
    struct mu_fold_world world = { .id = 0 };
    struct world *known;

    if (s->scribbles)
        return;
    if (before != NULL && before->lease == 0 && s->on[F_STRANGER])
        before = NULL; /* what the stranger wrote counts as missing */
    if (strcmp(key->name, "job/closed") == 0) {
        SIM_EXPECT(s->close_asked, "closed, and nobody asked for it");
        s->closed_ever = true;
    }
    if (strcmp(key->name, "job/doc") != 0)
        return;
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
        if (mu_buf_append(&known->bytes, key->value.data, key->value.len, SIZE_MAX) < 0)
            abort();
    } else {
        SIM_EXPECT(before == NULL, "an old world over a newer one");
        SIM_EXPECT(mu_slice_equal(mu_buf_slice(&known->bytes), mu_buf_slice(&key->value)), "a world was changed");
    }
    mu_fold_world_done(&world);
}

void check_joined(struct node *node)
{
    const struct mu_fold_world *world = mu_fold_world(node->fold);
    int64_t rank = mu_fold_rank(node->fold);
    const struct world *known = find_world(world->id);

    SIM_EXPECT(known != NULL, "node %u joins a world that nobody wrote", node->index);
    SIM_EXPECT(mu_slice_equal(mu_buf_slice(&known->bytes), mu_buf_slice(&world->bytes)),
               "node %u holds other members than were written", node->index);
    SIM_EXPECT(rank >= 0 && (size_t)rank < world->count && world->members[rank].id == node->id,
               "node %u has rank %" PRId64 ", which is not its own", node->index, rank);
    SIM_EXPECT((int64_t)world->count >= node->settings.nodes_min && (int64_t)world->count <= node->settings.nodes_max,
               "node %u: a world of %zu is not of %" PRId64 " to %" PRId64, node->index, world->count,
               node->settings.nodes_min, node->settings.nodes_max);
    SIM_EXPECT(node->world == 0, "node %u joins while its workers run", node->index);
}

void check_lost(struct node *node)
{
    const struct mu_fold_world *world = mu_fold_world(node->fold);
    const struct key *doc = etcd_get("job/doc");

    for (size_t i = 0; doc != NULL && i < world->count; i++) {
        const struct node *other = node_by_id(world->members[i].id);

        if (!mu_fold_is_lost(node->fold, i) || other == NULL)
            continue;
        SIM_EXPECT(other != node, "node %u is told that it has lost itself", node->index);
        SIM_EXPECT(!is_surely_in(other, world->id, doc->create), "node %u is told that it has lost %u, which is there",
                   node->index, other->index);
    }
}

void check_closed(void)
{
    SIM_EXPECT(s->close_asked, "told as closed, and nobody asked for it");
}
