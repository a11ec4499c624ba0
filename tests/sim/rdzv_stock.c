/* A node as PyTorch behaves, written from its description and sharing nothing with our rules: it polls once a second,
 * compares wall clocks, writes again at once when it lost, takes its world from its own cleaned copy, and tells nobody
 * anything. Above it an agent: looks for waiting nodes, and joins again when a peer of its world is gone, as its
 * workers would fail then. */
#include "rdzv_sim.h"

#define CACHE_US SECOND
#define POLL_US SECOND
#define ROLL_BACK_US (5 * SECOND)
#define BROKEN_US (2 * SECOND) /* so long after a peer is gone the workers fail */

enum op { OP_NONE, OP_EXIT, OP_JOIN, OP_KEEP_ALIVE, OP_CLOSE, OP_COUNT_WAITING };

enum act {
    ACT_KEEP_ALIVE,
    ACT_PARTICIPATE,
    ACT_WAIT,
    ACT_SPARE,
    ACT_UNPARTICIPATE,
    ACT_UNWAIT,
    ACT_UNSPARE,
    ACT_COMPLETE,
    ACT_CLOSE,
    ACT_SYNC,
    ACT_CLOSED,
    ACT_TIMEOUT,
    ACT_CRASH, /* up to 2.5 a deadline that is not there is compared */
    ACT_FINISH,
};

struct stock {
    struct mu_doc doc;
    struct mu_buf token;
    bool has_token, dirty, synced, constructed;
    uint64_t synced_us;
    enum op op;
    uint64_t deadline_us;
    bool busy;
    uint64_t request_id;
    uint64_t poll_us, beat_us, monitor_us, monitor_every_us, rejoin_us, broken_us; /* 0: not */
    bool in, closed;
    int64_t round;
    uint16_t *world;
    size_t world_count;
};

static void sync_state(struct node *node);
static void again(struct node *node);

static void wake_at(struct node *node, uint64_t *what, uint64_t at_us)
{
    *what = at_us;
    push(at_us, EV_STOCK, node->slot, node->life, NULL);
}

/* ---- The document ---- */

static void epilogue(struct mu_doc *doc, int64_t nodes_min)
{
    if (doc->complete) {
        if (doc->participants == 0) {
            doc->complete = false;
            doc->round++;
        }
    } else if ((int64_t)doc->participants < nodes_min) {
        doc->has_deadline = false;
    }
}

static void sanitize(struct node *node)
{
    struct mu_doc *doc = &node->model->doc;
    int64_t expire = node_wall_us(node) - (int64_t)(mu_rdzv_death_age_ms(&node->settings) * MS);
    bool participant = false;

    for (size_t i = 0; i < doc->count;) {
        struct mu_doc_member *member = &doc->members[i];

        if ((member->in & MU_DOC_HEARTBEAT) == 0 || member->heartbeat_us >= expire) {
            i++;
            continue;
        }
        TELL("%s: drops %u by its clock", node->name, id_of(&member->node));
        participant |= (member->in & MU_DOC_PARTICIPANT) != 0;
        mu_doc_drop(doc, &member->node, member->in);
        i = 0;
    }
    if (participant)
        epilogue(doc, node->settings.nodes_min);
}

static void beat(struct node *node)
{
    struct mu_doc_member *member = mu_doc_enter(&node->model->doc, &node->me, MU_DOC_HEARTBEAT);

    if (member == NULL)
        abort();
    member->heartbeat_us = node_wall_us(node);
}

static void complete(struct mu_doc *doc)
{
    doc->complete = true;
    doc->has_deadline = false;
    for (size_t i = 0; i < doc->count; i++) {
        doc->members[i].rank = 0;
        for (size_t j = 0; j < doc->count; j++)
            doc->members[i].rank += (doc->members[j].in & MU_DOC_PARTICIPANT) != 0 &&
                                    mu_node_compare(&doc->members[j].node, &doc->members[i].node) < 0;
    }
}

static void mutate(struct node *node, enum act act)
{
    struct stock *k = node->model;
    struct mu_doc *doc = &k->doc;

    switch (act) {
    case ACT_KEEP_ALIVE:
        beat(node);
        break;
    case ACT_PARTICIPATE:
        mu_doc_drop(doc, &node->me, MU_DOC_WAITING);
        (void)mu_doc_enter(doc, &node->me, MU_DOC_PARTICIPANT);
        beat(node);
        if ((int64_t)doc->participants == node->settings.nodes_min) {
            doc->has_deadline = true;
            doc->deadline_us = node_wall_us(node) + (int64_t)(node->settings.last_call_ms * MS);
        }
        if ((int64_t)doc->participants == node->settings.nodes_max)
            complete(doc);
        break;
    case ACT_WAIT:
        mu_doc_drop(doc, &node->me, MU_DOC_SPARE);
        (void)mu_doc_enter(doc, &node->me, MU_DOC_WAITING);
        beat(node);
        break;
    case ACT_SPARE:
        (void)mu_doc_enter(doc, &node->me, MU_DOC_SPARE);
        beat(node);
        break;
    case ACT_UNPARTICIPATE:
        mu_doc_drop(doc, &node->me, MU_DOC_PARTICIPANT | MU_DOC_HEARTBEAT);
        epilogue(doc, node->settings.nodes_min);
        break;
    case ACT_UNWAIT:
        mu_doc_drop(doc, &node->me, MU_DOC_WAITING | MU_DOC_HEARTBEAT);
        break;
    case ACT_UNSPARE:
        mu_doc_drop(doc, &node->me, MU_DOC_SPARE | MU_DOC_HEARTBEAT);
        if (k->op == OP_JOIN)
            k->deadline_us = w.now_us + node->settings.join_ms * MS;
        break;
    case ACT_COMPLETE:
        complete(doc);
        break;
    case ACT_CLOSE:
        doc->closed = true;
        break;
    case ACT_SYNC:
    case ACT_CLOSED:
    case ACT_TIMEOUT:
    case ACT_CRASH:
    case ACT_FINISH:
        abort();
    }
    k->dirty = true;
}

/* ---- What to do ---- */

static enum act decide_join(const struct node *node)
{
    const struct stock *k = node->model;
    const struct mu_doc *doc = &k->doc;
    const struct mu_doc_member *me = mu_doc_find(doc, &node->me);
    unsigned in = me == NULL ? 0 : me->in;
    int64_t count = (int64_t)doc->participants, now = node_wall_us(node);
    bool old = !doc->dialect.spares, over = w.now_us > k->deadline_us;
    bool due = (in & MU_DOC_HEARTBEAT) != 0 && me->heartbeat_us <= now - (int64_t)(node->settings.keep_alive_ms * MS);

    if (doc->closed)
        return ACT_CLOSED;
    if ((in & MU_DOC_SPARE) != 0) {
        if (count != node->settings.nodes_max)
            return ACT_UNSPARE;
        return due ? ACT_KEEP_ALIVE : ACT_SYNC;
    }
    if (doc->complete && (in & MU_DOC_PARTICIPANT) != 0)
        return ACT_FINISH;
    if (over && w.now_us <= k->deadline_us + ROLL_BACK_US) {
        if ((in & MU_DOC_PARTICIPANT) != 0)
            return ACT_UNPARTICIPATE;
        if ((in & MU_DOC_WAITING) != 0)
            return ACT_UNWAIT;
    }
    if (over)
        return ACT_TIMEOUT;
    if (doc->complete && count < node->settings.nodes_max && (in & MU_DOC_WAITING) == 0)
        return ACT_WAIT;
    if (doc->complete && count >= node->settings.nodes_max && (in & (MU_DOC_WAITING | MU_DOC_SPARE)) == 0 && !old)
        return ACT_SPARE;
    if (!doc->complete && (in & MU_DOC_PARTICIPANT) != 0 && count >= node->settings.nodes_min &&
        (old || count <= node->settings.nodes_max)) {
        if (!doc->dialect.zoned && !doc->has_deadline)
            return ACT_CRASH;
        if (doc->has_deadline && doc->deadline_us < now)
            return ACT_COMPLETE;
    }
    if (!doc->complete && (in & MU_DOC_PARTICIPANT) == 0)
        return ACT_PARTICIPATE;
    return due ? ACT_KEEP_ALIVE : ACT_SYNC;
}

static enum act decide(const struct node *node)
{
    const struct stock *k = node->model;
    const struct mu_doc_member *me = mu_doc_find(&k->doc, &node->me);
    bool over = w.now_us > k->deadline_us;

    switch (k->op) {
    case OP_JOIN:
        return decide_join(node);
    case OP_EXIT:
        if (me == NULL || (me->in & MU_DOC_PARTICIPANT) == 0)
            return ACT_FINISH;
        return over ? ACT_TIMEOUT : ACT_UNPARTICIPATE;
    case OP_KEEP_ALIVE:
        if (me == NULL || (me->in & MU_DOC_HEARTBEAT) == 0 ||
            me->heartbeat_us > node_wall_us(node) - (int64_t)(node->settings.keep_alive_ms * MS))
            return ACT_FINISH;
        return over ? ACT_TIMEOUT : ACT_KEEP_ALIVE;
    case OP_CLOSE:
        if (k->doc.closed)
            return ACT_FINISH;
        return over ? ACT_TIMEOUT : ACT_CLOSE;
    case OP_COUNT_WAITING:
    case OP_NONE:
        break;
    }
    return ACT_FINISH;
}

/* ---- The agent ---- */

static void begin(struct node *node, enum op op, uint64_t timeout_us)
{
    node->model->op = op;
    node->model->deadline_us = w.now_us + timeout_us;
    sync_state(node);
}

static void next_rendezvous(struct node *node)
{
    struct stock *k = node->model;

    TELL("%s: next rendezvous", node->name);
    k->in = false;
    k->beat_us = k->monitor_us = k->broken_us = k->rejoin_us = 0;
    begin(node, OP_EXIT, node->settings.join_ms * MS);
}

static void returned(struct node *node)
{
    struct stock *k = node->model;
    const struct mu_doc_member *me = mu_doc_find(&k->doc, &node->me);
    size_t rank = me == NULL ? 0 : (size_t)me->rank;

    k->in = true;
    k->round = k->doc.round;
    k->world_count = 0;
    for (size_t i = 0; i < k->doc.count; i++) {
        if ((k->doc.members[i].in & MU_DOC_PARTICIPANT) != 0)
            k->world[k->world_count++] = (uint16_t)id_of(&k->doc.members[i].node);
    }
    TELL("%s: returns with round %" PRId64 ", rank %zu of %zu", node->name, k->round, rank, k->world_count);
    w.joins++;
    check_world(node, k->round, k->world, k->world_count, rank);
    wake_at(node, &k->beat_us, w.now_us + node->settings.keep_alive_ms * MS);
    wake_at(node, &k->monitor_us, w.now_us + k->monitor_every_us);
}

static void give_up(struct node *node, const char *why)
{
    TELL("%s: %s", node->name, why);
    if (!w.calm && chance(20)) {
        node_die(node);
        return;
    }
    wake_at(node, &node->model->rejoin_us, w.now_us + SECOND / 2 + below(SECOND));
}

static void finished(struct node *node)
{
    struct stock *k = node->model;
    enum op op = k->op;

    k->op = OP_NONE;
    switch (op) {
    case OP_EXIT:
        k->op = OP_JOIN;
        sync_state(node);
        break;
    case OP_JOIN:
        returned(node);
        break;
    case OP_KEEP_ALIVE:
        wake_at(node, &k->beat_us, w.now_us + node->settings.keep_alive_ms * MS);
        break;
    case OP_COUNT_WAITING:
        if (k->doc.waiting > 0)
            next_rendezvous(node);
        else
            wake_at(node, &k->monitor_us, w.now_us + k->monitor_every_us);
        break;
    case OP_CLOSE:
        k->closed = true;
        wake_at(node, &k->monitor_us, w.now_us + k->monitor_every_us);
        break;
    case OP_NONE:
        break;
    }
}

static void failed(struct node *node, const char *why)
{
    struct stock *k = node->model;
    enum op op = k->op;

    k->op = OP_NONE;
    if (op == OP_EXIT || op == OP_JOIN)
        give_up(node, why);
    else if (op == OP_KEEP_ALIVE)
        wake_at(node, &k->beat_us, w.now_us + node->settings.keep_alive_ms * MS);
    else
        wake_at(node, &k->monitor_us, w.now_us + k->monitor_every_us);
}

/* ---- Holder and executor ---- */

static void execute(struct node *node)
{
    struct stock *k = node->model;
    enum act act = decide(node);

    switch (act) {
    case ACT_FINISH:
        finished(node);
        return;
    case ACT_SYNC:
        wake_at(node, &k->poll_us, w.now_us + POLL_US);
        return;
    case ACT_CLOSED:
        TELL("%s: closed", node->name);
        node->ended = true;
        node_die(node);
        return;
    case ACT_CRASH:
        node_die(node);
        return;
    case ACT_TIMEOUT:
        failed(node, "timed out");
        return;
    default:
        mutate(node, act);
        sync_state(node);
    }
}

static void sync_state(struct node *node)
{
    struct stock *k = node->model;
    struct request *request;

    if (!k->dirty && k->synced && k->synced_us + CACHE_US >= w.now_us) {
        execute(node);
        return;
    }
    request = request_new(node, k->dirty ? MU_RDZV_DO_WRITE : MU_RDZV_DO_READ, 0);
    request->id = ++k->request_id;
    if (k->dirty) {
        request->has_token = k->has_token;
        if (mu_pickle_encode(&k->doc, &request->bytes) < 0 ||
            mu_buf_assign(&request->token, mu_buf_slice(&k->token)) < 0)
            abort();
    } else {
        request->number = !k->constructed; /* only once does it create the key */
    }
    k->busy = true;
    request_send(request);
}

static void take(struct node *node, struct mu_slice bytes)
{
    struct stock *k = node->model;
    struct muster_error error;

    if (mu_pickle_decode(bytes, &k->doc, &error) < 0)
        fail("I13", "PyTorch's model cannot read the document: %s", error.text);
}

void stock_answer(struct node *node, struct request *request)
{
    struct stock *k = node->model;

    if (!k->busy || request->id != k->request_id) {
        request_free(request);
        return;
    }
    k->busy = false;
    if (request->failed) {
        request_free(request);
        failed(node, "connection failed");
        again(node);
        return;
    }
    if (request->found) {
        take(node, mu_buf_slice(&request->version->bytes));
        k->has_token = true;
        if (mu_buf_assign(&k->token, mu_buf_slice(&request->version->bytes)) < 0)
            abort();
    } else if (request->type == MU_RDZV_DO_READ) {
        mu_doc_reset(&k->doc, w.dialect);
        k->has_token = false;
    } else if (k->has_token) {
        take(node, mu_buf_slice(&k->token)); /* a lost key answers with what was expected of it */
    }
    k->dirty = false;
    k->constructed = true;
    k->synced = true;
    k->synced_us = w.now_us;
    request_free(request);
    sanitize(node);
    execute(node);
    again(node);
}

static void again(struct node *node)
{
    if (node->model != NULL && !node->model->busy)
        push(w.now_us + 1, EV_STOCK, node->slot, node->life, NULL);
}

/* Its workers fail when one of them has lost a peer for some time. */
static bool world_broken(struct node *node)
{
    struct stock *k = node->model;
    bool broken = false;

    for (size_t i = 0; i < k->world_count; i++) {
        bool there = false;

        for (unsigned j = 0; j < w.nodes_count; j++) {
            const struct node *peer = &w.nodes[j];

            if (peer->alive && peer->id == k->world[i])
                there = peer->stock ? stock_in(peer, k->round) : peer->member && peer->joined_round == k->round;
        }
        broken |= !there;
    }
    if (!broken)
        k->broken_us = 0;
    else if (k->broken_us == 0)
        k->broken_us = w.now_us;
    return broken && k->broken_us + BROKEN_US < w.now_us;
}

static bool due(uint64_t *at_us)
{
    if (*at_us == 0 || *at_us > w.now_us)
        return false;
    *at_us = 0;
    return true;
}

void stock_wake(struct node *node)
{
    struct stock *k = node->model;

    if (k->busy)
        return; /* one after the other */
    if (due(&k->rejoin_us))
        next_rendezvous(node);
    else if (due(&k->poll_us))
        sync_state(node);
    else if (k->op == OP_NONE && due(&k->beat_us))
        begin(node, OP_KEEP_ALIVE, node->settings.heartbeat_ms * MS);
    else if (k->op == OP_NONE && k->monitor_us != 0 && k->monitor_us <= w.now_us) {
        if (world_broken(node) && !k->doc.closed)
            next_rendezvous(node);
        else if (!k->closed && w.on[F_CLOSE] && !w.calm && chance(1))
            begin(node, OP_CLOSE, node->settings.close_ms * MS);
        else
            begin(node, OP_COUNT_WAITING, 0);
    }
}

bool stock_in(const struct node *node, int64_t round)
{
    return node->model != NULL && node->model->in && node->model->round == round;
}

bool stock_astray(const struct node *node)
{
    return node->model->in && mu_doc_find(&node->model->doc, &node->me) == NULL;
}

void stock_birth(struct node *node)
{
    struct stock *k = calloc(1, sizeof *k);

    if (k == NULL || (k->world = calloc(IDS_MAX, sizeof k->world[0])) == NULL)
        abort();
    node->model = k;
    mu_doc_init(&k->doc, (struct mu_hash_seed){ w.seed, 2 }, w.dialect);
    k->monitor_every_us = 100 * MS + below(5 * SECOND);
    wake_at(node, &k->rejoin_us, w.now_us + 1 + below(300 * MS));
}

void stock_die(struct node *node)
{
    struct stock *k = node->model;

    if (k == NULL)
        return;
    mu_doc_done(&k->doc);
    mu_buf_done(&k->token);
    free(k->world);
    free(k);
    node->model = NULL;
}
