/* What must hold in every run of the classic rendezvous, whatever happens. The server's side of it is looked at: who
 * wrote which participant, keep-alive and announcement.
 *
 *  - Who replaces or deletes the document has seen it as it was.
 *  - A node takes part once in a document. Who takes a participant or an announcement out takes its own out.
 *  - Who joins a version has that rank in its final document, in which all have confirmed; no rank is given twice.
 *  - There are no more notices than there are places for them, and ranks that are named. In the calm all of ours that
 *    wait together for more nodes know each other by name; where nobody waits, no notice is left.
 *  - Of a node that has ended nothing is left: no participant of a round that can still be left, no keep-alive, no
 *    announcement. Unless it could not reach the server while it took that back, or its time for it was over.
 *
 * Where the server has lost everything, numbers come again: a node may take a participant that is there for itself, and
 * one of them at most gets that rank (who wrote the mark). Then only the first and the third are asked for; and
 * likewise where a stranger overwrites documents. */
#include "classic_sim.h"

#include <inttypes.h>
#include <string.h>

enum { WORLDS_MAX = 4096, ANNOUNCERS_MAX = 256, LATE_MAX_MS = 30000, TAKE_BACK_MS = MU_CLASSIC_QUIT_MS };

/* A version of which there was a final document. */
struct world {
    uint64_t epoch;
    int64_t version, count;
    uint64_t owners[NODES_MAX]; /* lives, by rank */
    uint64_t lives[NODES_MAX];  /* that say so */
};

/* The document that is there. */
struct held {
    bool is_there;
    enum mu_classic_status status;
    int64_t version;
    size_t participants;
    uint64_t owners[NODES_MAX];       /* lives */
    uint64_t waiting[ANNOUNCERS_MAX]; /* lives that have announced themselves */
    size_t waiting_count;
};

static struct held held;
static struct world worlds[WORLDS_MAX];
static size_t worlds_count;

void check_reset(void)
{
    held = (struct held){ .version = -1 };
    worlds_count = 0;
}

/* ---- The document ---- */

static uint64_t hash_of(const char *text)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (; *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return hash;
}

void check_saw(struct node *node, const char *text)
{
    node->seen.hashes[node->seen.count++ % SEEN_MAX] = hash_of(text);
}

void check_replaces(const struct request *by, const char *text)
{
    if (by->is_stock || text == NULL)
        return;
    for (size_t i = 0; i < SEEN_MAX && i < by->seen.count; i++)
        if (by->seen.hashes[i] == hash_of(text))
            return;
    fail("node %u replaces a document that it has never seen: %s", by->slot, text);
}

/* What is put back may be older than what a stranger has overwritten. */
static bool is_strict(void)
{
    return w.epoch == 0 && !w.on[F_STRANGER];
}

static bool owns(uint64_t life)
{
    for (size_t i = 0; i < held.participants; i++)
        if (held.owners[i] == life)
            return true;
    return false;
}

static void count_participants(const struct mu_classic_doc *doc, const struct request *by)
{
    if (doc->participants > NODES_MAX)
        fail("a document of %zu participants", doc->participants);
    while (held.participants > doc->participants) {
        if (!by->is_stock && is_strict() && held.owners[held.participants - 1] != by->life)
            fail("node %u takes another participant out", by->slot);
        held.participants--;
    }
    while (held.participants < doc->participants) {
        if (!by->is_stock && is_strict() && owns(by->life))
            fail("node %u takes part twice in version %" PRId64, by->slot, doc->version);
        held.owners[held.participants++] = by->life;
    }
}

static bool drop_waiting(uint64_t life)
{
    for (size_t i = 0; i < held.waiting_count; i++) {
        if (held.waiting[i] == life) {
            held.waiting[i] = held.waiting[--held.waiting_count];
            return true;
        }
    }
    return false;
}

static void take_back(const struct request *by)
{
    if (drop_waiting(by->life))
        return;
    if (is_strict())
        fail("node %u takes an announcement back that is not its own", by->slot);
    held.waiting_count--;
}

static void count_waiting(const struct mu_classic_doc *doc, const struct request *by)
{
    if (doc->waiting < 0 || doc->waiting > ANNOUNCERS_MAX)
        fail("%" PRId64 " nodes wait", doc->waiting);
    while ((int64_t)held.waiting_count > doc->waiting)
        take_back(by);
    while ((int64_t)held.waiting_count < doc->waiting)
        held.waiting[held.waiting_count++] = by->life;
}

static struct world *find_world(uint64_t epoch, int64_t version)
{
    for (size_t i = worlds_count; i-- > 0;)
        if (worlds[i].epoch == epoch && worlds[i].version == version)
            return &worlds[i];
    return NULL;
}

/* A document that was on its way when the server lost everything is of the world from before. */
static void note_final(const struct mu_classic_doc *doc, const struct request *by)
{
    uint64_t epoch = w.epoch > 0 && by->sent_ms < w.wiped_ms ? w.epoch - 1 : w.epoch;
    struct world *world;

    if (doc->keep_alives != doc->participants)
        fail("version %" PRId64 " is final and %zu of %zu have confirmed", doc->version, doc->keep_alives,
             doc->participants);
    if (find_world(epoch, doc->version) != NULL)
        return;
    if (worlds_count == WORLDS_MAX)
        fail("too many versions");
    world = &worlds[worlds_count++];
    *world = (struct world){ .epoch = epoch, .version = doc->version, .count = (int64_t)doc->participants };
    memcpy(world->owners, held.owners, sizeof held.owners);
}

void check_document(const struct request *by)
{
    const char *text = etcd_value(ACTIVE);
    struct mu_classic_doc doc;
    struct muster_error error;
    bool was_final;

    if (text == NULL) {
        held = (struct held){ .version = -1 };
        return;
    }
    if (mu_classic_doc_read(mu_slice_str(text), &doc, &error) < 0) {
        if (!w.on[F_STRANGER] || by != NULL)
            fail("%s: %s", error.text, text);
        return; /* the one before may be put back */
    }
    if (held.version != doc.version)
        held = (struct held){ .version = doc.version };
    was_final = held.is_there && held.status == MU_CLASSIC_FINAL;
    count_participants(&doc, by);
    count_waiting(&doc, by);
    if (doc.status == MU_CLASSIC_FINAL && !was_final)
        note_final(&doc, by);
    held.is_there = true;
    held.status = doc.status;
    mu_classic_doc_done(&doc);
}

/* ---- Nodes ---- */

/* A mark that was on its way when the server lost everything says so of a version from before. */
static struct world *find_world_of(const struct node *node)
{
    struct world *world = NULL;

    for (uint64_t epoch = node->epoch + 1; epoch-- > 0 && world == NULL;)
        world = find_world(epoch, node->version);
    return world;
}

void name_of(const struct node *node, char *text, size_t room)
{
    (void)snprintf(text, room, "node%u_1_%" PRIu64, node->slot, node->life);
}

bool is_another_s_rank(const struct node *node)
{
    char key[128], name[32];
    struct mu_node other;
    const char *mark;

    (void)snprintf(key, sizeof key, JOB "/muster/v_%" PRId64 "/rank_%" PRId64, node->version, node->rank);
    name_of(node, name, sizeof name);
    mark = etcd_value(key);
    return !node->is_stock && mark != NULL && mu_node_read(mu_slice_str(mark), &other) && strcmp(mark, name) != 0;
}

/* Where everything is lost, PyTorch takes another group for its own; but nobody of ours has a rank that PyTorch has by
 * right, or another one of ours. */
static void check_twins(const struct node *node, const struct world *world)
{
    for (unsigned i = 0; i < w.nodes_count; i++) {
        const struct node *other = &w.nodes[i], *stock = other->is_stock ? other : node;
        bool is_twin = other != node && other->life != 0 && other->member && other->version == node->version &&
                       other->rank == node->rank && other->epoch == node->epoch;

        if (is_twin && (!stock->is_stock || (node->is_stock != other->is_stock && world != NULL &&
                                             world->owners[node->rank] == stock->life)))
            fail("nodes %u and %u are rank %" PRId64 " of version %" PRId64, node->slot, i, node->rank, node->version);
    }
}

void check_joined(const struct node *node)
{
    struct world *world = find_world_of(node);

    if (w.on[F_WIPE] && w.on[F_STOCK]) {
        check_twins(node, world);
        return;
    }
    if (!w.on[F_LIMITS] && (node->count < w.nodes_min || node->count > w.nodes_max))
        fail("version %" PRId64 " has %" PRId64 " members", node->version, node->count);
    if (node->rank < 0 || node->rank >= node->count)
        fail("version %" PRId64 ": rank %" PRId64 " of %" PRId64, node->version, node->rank, node->count);
    if (world == NULL)
        fail("node %u has joined version %" PRId64 ", which was never final", node->slot, node->version);
    if (world->count != node->count)
        fail("two worlds of version %" PRId64 ": of %" PRId64 " and of %" PRId64, node->version, world->count,
             node->count);
    if (w.epoch == 0 ? world->owners[node->rank] != node->life : node->epoch == w.epoch && is_another_s_rank(node))
        fail("node %u is not rank %" PRId64 " of version %" PRId64, node->slot, node->rank, node->version);
    if (world->lives[node->rank] != 0)
        fail("rank %" PRId64 " of version %" PRId64 " was given twice", node->rank, node->version);
    world->lives[node->rank] = node->life;
}

static bool has_writes_under_way(const struct node *node)
{
    for (size_t i = requests_count; i-- > 0 && requests[i]->sent_ms + LATE_MAX_MS >= w.now_ms;) {
        const struct request *request = requests[i];

        if (request->life == node->life && request->is_coming && !is_notice(request->key) &&
            (request->kind == MU_CLASSIC_PUT || request->kind == MU_CLASSIC_DELETE))
            return true;
    }
    return false;
}

static void check_participants(const struct node *node)
{
    if ((held.status == MU_CLASSIC_JOINABLE || held.status == MU_CLASSIC_FROZEN) && owns(node->life))
        fail("node %u has ended and is a participant of version %" PRId64, node->slot, held.version);
}

static void check_keep_alives(const struct node *node)
{
    char key[128];

    for (unsigned rank = 0; held.is_there && rank < NODES_MAX; rank++) {
        (void)snprintf(key, sizeof key, JOB "/rdzv/v_%" PRId64 "/rank_%u", held.version, rank);
        if (etcd_life(key) == node->life)
            fail("node %u has ended and keeps rank %u of version %" PRId64 " alive", node->slot, rank, held.version);
    }
}

static void check_announcements(const struct node *node)
{
    for (size_t i = 0; held.status == MU_CLASSIC_FINAL && i < held.waiting_count; i++)
        if (held.waiting[i] == node->life)
            fail("node %u has ended and still waits for version %" PRId64, node->slot, held.version);
}

/* ---- Notices ---- */

bool is_notice(const char *key)
{
    return strncmp(key, NOTICES "/", strlen(NOTICES "/")) == 0;
}

void check_notices(void)
{
    size_t limits = w.on[F_LIMITS] ? (size_t)w.lives : 1; /* each node that ever was may have others */

    if (etcd_count_below(NOTICES) > MU_WAITERS_NAMES_MAX + limits)
        fail("there are %zu notices", etcd_count_below(NOTICES));
}

static bool waits_for_peers(const struct node *node)
{
    return node->life != 0 && !node->is_stock && mu_classic_state(node->classic) == MU_CLASSIC_IN_PEERS_WATCH;
}

static bool names(const struct node *node, const struct node *other)
{
    struct mu_part_progress progress = mu_classic_progress(node->classic);

    for (size_t i = 0; i < progress.nodes_count; i++)
        if (progress.nodes[i].pid == (int64_t)other->life)
            return true;
    return false;
}

void check_named(void)
{
    /* Not where everything was lost: there two may take one participant for themselves. */
    for (unsigned i = 0; i < w.nodes_count; i++)
        for (unsigned n = 0; n < w.nodes_count; n++)
            if (waits_for_peers(&w.nodes[i]) && waits_for_peers(&w.nodes[n]) && !names(&w.nodes[i], &w.nodes[n]))
                fail("node %u does not know that node %u waits, too", i, n);
}

void check_ended(struct node *node)
{
    bool slept = w.now_ms < node->paused_until_ms + MU_CLASSIC_GIVE_UP_MS; /* through the time that it has for this */
    bool late = node->in_trouble || slept || w.now_ms - node->quit_ms >= TAKE_BACK_MS;

    if (!is_strict())
        return;
    if (!late)
        check_participants(node);
    if (late || node->late_ms >= node->quit_ms || has_writes_under_way(node)) {
        node->excused_ms = w.now_ms;
        node->in_doubt = true;
        return;
    }
    if (node->excused_ms == 0 || w.now_ms >= node->excused_ms + LATE_MAX_MS + MU_CLASSIC_RANK_TTL_S * 1000)
        check_keep_alives(node);
    if (!node->in_doubt)
        check_announcements(node);
}
