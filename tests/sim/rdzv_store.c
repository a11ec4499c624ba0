/* The store: the document's key as c10d has it, a bell, turns and digests, and ways to fail.
 *
 * A request travels for a random time, is carried out at one instant (a read in two: the bell's counter, then the
 * document), and its answer travels back. On one connection nothing overtakes anything, unless the seed says so.
 *
 * The key: absent, then a marker that says "no document yet" (a read creates it), then documents. Compare-and-set goes
 * by the bytes. A store that lost its data has no key, and a write with a token finds that there is none. */
#include "rdzv_sim.h"

enum { TURNS_MAX = 1 << 16, BELL_KEPT = 64 };

#define STOCK_READ_TIMEOUT_US (60 * SECOND)

struct digest {
    int64_t round;
    struct mu_buf bytes;
};

static struct {
    bool up, gone;
    uint64_t up_us; /* since when */
    unsigned incarnation, wipes;
    struct version *old;      /* a document that was there once; NULL: none is kept */
    bool has_key;             /* marker or document */
    struct version *document; /* NULL: the marker, or nothing */
    int64_t bell, turns, turns_done;
    unsigned char given[TURNS_MAX]; /* turns that are over */
    struct digest *digests;
    size_t digests_len, digests_room;
    struct request *parked;  /* for the bell */
    struct request *queue;   /* for a turn */
    struct request *blocked; /* reads of PyTorch's that wait for the key */
    struct request *unused;
} s;

/* ---- Versions ---- */

struct version *version_keep(struct version *version)
{
    if (version != NULL)
        version->refs++;
    return version;
}

void version_drop(struct version *version)
{
    if (version == NULL || --version->refs > 0)
        return;
    mu_buf_done(&version->bytes);
    mu_doc_done(&version->doc);
    free(version->ids);
    free(version);
}

static struct version *version_new(struct mu_slice bytes, bool foreign)
{
    struct version *version = calloc(1, sizeof *version);
    struct muster_error error;

    if (version == NULL || mu_buf_assign(&version->bytes, bytes) < 0)
        abort();
    version->refs = 1;
    version->incarnation = s.incarnation;
    version->born_us = w.now_us;
    version->foreign = foreign;
    mu_doc_init(&version->doc, (struct mu_hash_seed){ w.seed, 1 }, w.dialect);
    if (!w.checking || foreign)
        return version;
    EXPECT("I13", mu_pickle_decode(bytes, &version->doc, &error) == 0, "what was written cannot be read: %s",
           error.text);
    version->ids = calloc(version->doc.count + 1, sizeof version->ids[0]);
    if (version->ids == NULL)
        abort();
    for (size_t i = 0; i < version->doc.count; i++)
        version->ids[i] = (uint16_t)id_of(&version->doc.members[i].node);
    return version;
}

/* ---- Requests ---- */

struct request *request_new(struct node *node, enum mu_rdzv_effect_type type, unsigned conn)
{
    struct request *request = s.unused;

    if (request != NULL)
        s.unused = request->next;
    else if ((request = calloc(1, sizeof *request)) == NULL)
        abort();
    *request = (struct request){ .type = type,
                                 .slot = node->slot,
                                 .life = node->life,
                                 .conn = conn,
                                 .bytes = { request->bytes.data, 0, request->bytes.cap },
                                 .token = { request->token.data, 0, request->token.cap } };
    return request;
}

void request_free(struct request *request)
{
    version_drop(request->version);
    request->version = NULL;
    request->next = s.unused;
    s.unused = request;
}

static uint64_t travel_us(void)
{
    uint64_t us = 50 + below(250);

    if (w.on[F_SLOW] && !w.calm && chance(w.percent[F_SLOW]))
        us += below(w.slow_us);
    return us;
}

static bool cut(const struct request *request)
{
    return w.nodes[request->slot].cut_until_us > w.now_us;
}

/* Back to the node that asked. */
static void answer(struct request *request)
{
    struct node *node = &w.nodes[request->slot];
    uint64_t at = w.now_us + travel_us();

    if (!(w.on[F_REORDER] && !w.calm) && node->life == request->life) {
        if (at <= node->conn_down_us[request->conn])
            at = node->conn_down_us[request->conn] + 1;
        node->conn_down_us[request->conn] = at;
    }
    push(at, EV_ANSWER, request->slot, request->life, request);
}

static struct request *copy_of(const struct request *request)
{
    struct request *copy = request_new(&w.nodes[request->slot], request->type, request->conn);
    struct mu_buf bytes = copy->bytes, token = copy->token;

    *copy = *request;
    copy->bytes = bytes;
    copy->token = token;
    copy->next = NULL;
    (void)version_keep(copy->version);
    if (mu_buf_assign(&copy->bytes, mu_buf_slice(&request->bytes)) < 0)
        abort();
    return copy;
}

static bool answered_type(enum mu_rdzv_effect_type type)
{
    return type != MU_RDZV_DO_RING && type != MU_RDZV_DO_TURN_GIVE;
}

/* The node hears that it failed, whether that is true or not. */
static void answer_failed(struct request *request, uint64_t after_us)
{
    if (!answered_type(request->type)) {
        request_free(request);
        return;
    }
    if (w.on[F_STALE] && !w.calm && chance(50) && !request->failed) {
        struct request *late = copy_of(request);

        late->sent_stale = true;
        push(w.now_us + after_us + 1 + below(3 * SECOND), EV_ANSWER, late->slot, late->life, late);
    }
    if (s.up)
        w.nodes[request->slot].hindered_us = w.now_us;
    request->failed = true;
    request->gone = !s.up && s.gone;
    push(w.now_us + after_us + travel_us(), EV_ANSWER, request->slot, request->life, request);
}

void request_send(struct request *request)
{
    struct node *node = &w.nodes[request->slot];
    uint64_t at = w.now_us + travel_us();

    request->sent_us = w.now_us;
    if (at <= node->conn_up_us[request->conn])
        at = node->conn_up_us[request->conn] + 1;
    node->conn_up_us[request->conn] = at;
    push(at, EV_ARRIVE, request->slot, request->life, request);
}

/* ---- The document ---- */

static void replace(struct version *version)
{
    if (s.document != NULL && !s.document->foreign && w.on[F_FORGER] && chance(20)) {
        version_drop(s.old);
        s.old = version_keep(s.document);
    }
    version_drop(s.document);
    s.document = version;
    s.has_key = true;
    for (struct request *request = s.blocked, *next; request != NULL; request = next) {
        next = request->next;
        store_look(request);
    }
    s.blocked = NULL;
}

/* The answer to `request` brings the document. */
static void count_read(const struct request *request)
{
    struct node *node = &w.nodes[request->slot];

    node->reads++;
    node->read_bytes += request->version != NULL ? request->version->bytes.len : 0;
}

void store_look(struct request *request)
{
    const struct node *node = &w.nodes[request->slot];

    if (!s.up) {
        request->failed = true;
        answer_failed(request, below(SECOND));
        return;
    }
    if (!s.has_key) {
        if (node->stock && request->number == 0 && node->life == request->life) { /* PyTorch's get waits for the key */
            request->next = s.blocked;
            s.blocked = request;
            return;
        }
        s.has_key = true;
    }
    w.reads++;
    request->incarnation = s.incarnation;
    request->found = s.document != NULL;
    request->version = version_keep(s.document);
    count_read(request);
    if (fault(F_LOST))
        answer_failed(request, below(SECOND));
    else
        answer(request);
}

static void write(struct request *request)
{
    struct node *author = &w.nodes[request->slot];
    struct mu_slice bytes = mu_buf_slice(&request->bytes);
    bool may;

    w.writes++;
    if (request->has_token)
        may = s.document != NULL && mu_slice_equal(mu_buf_slice(&s.document->bytes), mu_buf_slice(&request->token));
    else
        may = s.document == NULL && (s.has_key || !author->stock);
    if (may) {
        struct version *version = version_new(bytes, false), *old = version_keep(s.document);

        if (w.checking)
            check_write(author->life == request->life ? author : NULL, old == NULL || old->foreign ? NULL : old,
                        version);
        if (w.checking && old != NULL && old->foreign)
            check_replaced(old, version);
        replace(version);
        version_drop(old);
    }
    request->incarnation = s.incarnation;
    request->found = s.document != NULL;
    /* Whether it was ours is inferred from the bytes: somebody else's equal ones would do. */
    request->written = s.document != NULL && mu_slice_equal(mu_buf_slice(&s.document->bytes), bytes);
    request->version = version_keep(s.document);
    if (!request->written) {
        w.writes_lost++;
        count_read(request);
    }
    if (fault(F_LOST))
        answer_failed(request, below(SECOND));
    else
        answer(request);
}

/* ---- Bell, turns, digests ---- */

static void unlink_from(struct request **list, struct request *request)
{
    while (*list != NULL && *list != request)
        list = &(*list)->next;
    if (*list == request)
        *list = request->next;
}

static void ring(struct request *request)
{
    struct request **link = &s.parked, *parked;
    bool deaf = fault(F_DEAF);

    request_free(request);
    s.bell++;
    while ((parked = *link) != NULL) {
        if (parked->number + 1 != s.bell || deaf) {
            link = &parked->next;
            continue;
        }
        *link = parked->next;
        answer(parked);
    }
}

static void park(struct request *request)
{
    struct request **link = &s.parked, *old;

    while ((old = *link) != NULL) {
        if (old->slot != request->slot || old->life != request->life) {
            link = &old->next;
            continue;
        }
        *link = old->next;
        old->sent_stale = true;
        if (w.on[F_STALE] && !w.calm)
            answer(old);
        else
            request_free(old);
    }
    if (s.bell > request->number && s.bell - request->number <= BELL_KEPT) {
        answer(request);
        return;
    }
    request->next = s.parked;
    s.parked = request;
}

static void turn_take(struct request *request)
{
    request->turn = ++s.turns;
    request->turns_done = s.turns_done;
    request->incarnation = s.incarnation;
    if (fault(F_LOST))
        answer_failed(request, below(SECOND));
    else
        answer(request);
}

static void turn_wait(struct request *request)
{
    request->turns_done = s.turns_done;
    if (request->number <= 0 || (request->number < TURNS_MAX && s.given[request->number])) {
        request->found = true;
        answer(request);
        return;
    }
    request->next = s.queue;
    s.queue = request;
    push(w.now_us + request->wait_us, EV_TURN, request->slot, request->life, request);
}

void store_turn_out(struct request *request)
{
    struct request *at = s.queue;

    while (at != NULL && at != request)
        at = at->next;
    if (at == NULL || request->wait_us == 0)
        return; /* it was answered, and may be another one by now */
    if (request->sent_us + request->wait_us > w.now_us)
        return;
    unlink_from(&s.queue, request);
    request->turns_done = s.turns_done;
    answer(request);
}

static void turn_give(struct request *request)
{
    struct request **link = &s.queue, *waiting;

    s.turns_done++;
    if (request->number >= 0 && request->number < TURNS_MAX)
        s.given[request->number] = 1;
    while ((waiting = *link) != NULL) {
        if (waiting->number != request->number) {
            link = &waiting->next;
            continue;
        }
        *link = waiting->next;
        waiting->turns_done = s.turns_done;
        waiting->found = true;
        answer(waiting);
    }
    request_free(request);
}

static void settle(struct request *request)
{
    struct digest *digest = NULL;

    for (size_t i = 0; i < s.digests_len && digest == NULL; i++) {
        if (s.digests[i].round == request->number)
            digest = &s.digests[i];
    }
    if (digest == NULL) {
        if (s.digests_len == s.digests_room) {
            s.digests_room = s.digests_room * 2 + 16;
            s.digests = realloc(s.digests, s.digests_room * sizeof s.digests[0]);
            if (s.digests == NULL)
                abort();
        }
        digest = &s.digests[s.digests_len++];
        *digest = (struct digest){ .round = request->number };
        if (mu_buf_assign(&digest->bytes, mu_buf_slice(&request->bytes)) < 0)
            abort();
    } else if (mu_buf_assign(&request->bytes, mu_buf_slice(&digest->bytes)) < 0) {
        abort();
    }
    request->incarnation = s.incarnation;
    if (fault(F_LOST))
        answer_failed(request, below(SECOND));
    else
        answer(request);
}

/* ---- Arriving ---- */

void store_arrive(struct request *request)
{
    if (!s.up) {
        request->failed = true;
        answer_failed(request, s.gone ? 0 : below(w.settings.keep_alive_ms * MS / 2));
        return;
    }
    if (cut(request) || fault(F_REFUSED)) {
        w.nodes[request->slot].impaired_us = w.now_us;
        request->failed = true; /* nothing was done, so nothing comes late */
        answer_failed(request, below(SECOND));
        return;
    }
    switch (request->type) {
    case MU_RDZV_DO_READ:
        request->bell = s.bell;
        if (chance(20))
            push(w.now_us + below(500), EV_LOOK, request->slot, request->life, request);
        else
            store_look(request);
        break;
    case MU_RDZV_DO_WRITE:
        write(request);
        break;
    case MU_RDZV_DO_RING:
        ring(request);
        break;
    case MU_RDZV_DO_PARK:
        park(request);
        break;
    case MU_RDZV_DO_TURN_TAKE:
        turn_take(request);
        break;
    case MU_RDZV_DO_TURN_WAIT:
        turn_wait(request);
        break;
    case MU_RDZV_DO_TURN_GIVE:
        turn_give(request);
        break;
    case MU_RDZV_DO_SETTLE:
        settle(request);
        break;
    case MU_RDZV_DO_TELL:
    case MU_RDZV_DO_PLANNED:
    case MU_RDZV_DO_SYNCED:
        abort();
    }
}

/* ---- Coming and going ---- */

static void fail_all(struct request **list)
{
    struct request *request;

    while ((request = *list) != NULL) {
        *list = request->next;
        request->failed = true;
        answer_failed(request, below(w.settings.keep_alive_ms * MS / 2));
    }
}

static void forget(void)
{
    s.has_key = false;
    version_drop(s.document);
    s.document = NULL;
    s.bell = s.turns = s.turns_done = 0;
    memset(s.given, 0, sizeof s.given);
    for (size_t i = 0; i < s.digests_len; i++)
        mu_buf_done(&s.digests[i].bytes);
    s.digests_len = 0;
}

/* What is in the document from now on has nothing to do with what was there. */
static void end_incarnation(void)
{
    memset(w.last_write_us, 0, sizeof w.last_write_us); /* heartbeats that nobody has seen are lost with the rest */
    s.incarnation++;
}

/* The document, of a later round. NULL: there is none. */
static struct version *later_round(void)
{
    struct mu_doc doc = { .seed = { w.seed, 1 } };
    struct mu_buf bytes = { 0 };
    struct version *version;

    if (store_document() == NULL)
        return NULL;
    if (mu_doc_copy(&doc, &s.document->doc) < 0)
        abort();
    doc.round += 1 + (int64_t)below(3);
    if (mu_pickle_encode(&doc, &bytes) < 0)
        abort();
    version = version_new(mu_buf_slice(&bytes), false);
    mu_buf_done(&bytes);
    mu_doc_done(&doc);
    return version;
}

static struct version *forged(void)
{
    if (chance(50))
        return later_round();
    return s.old != NULL ? version_new(mu_buf_slice(&s.old->bytes), false) : NULL;
}

/* Something that is no document. */
static struct version *foreign(void)
{
    static char huge[100000];
    const struct mu_slice values[] = { mu_slice_str("garbage"), mu_slice_str("\x80\x04]\x94."), mu_slice_str(""),
                                       mu_slice(huge, sizeof huge) };

    return version_new(values[below(4)], true);
}

void store_meddle(void)
{
    bool forges = w.on[F_FORGER] && chance(50), spoils = w.on[F_STRANGER] && chance(60);

    if (!s.up)
        return;
    TELL("store: a stranger writes to it");
    if (forges)
        w.forged_us = w.now_us;
    if (spoils) {
        w.spoilt_us[1] = w.spoilt_us[0];
        w.spoilt_us[0] = w.now_us;
    }
    if (forges || spoils) {
        replace(forges ? forged() : chance(20) ? NULL : foreign());
        end_incarnation();
    }
    if (w.on[F_STRANGER] && chance(40))
        s.bell = (int64_t)below(2000);
    if (w.on[F_STRANGER] && chance(40))
        s.turns = (int64_t)below(2000);
    if (w.on[F_STRANGER] && chance(40))
        s.turns_done = chance(50) ? (int64_t)below(2000) : -(int64_t)below(INT64_MAX);
}

void store_down(bool gone, bool wipe)
{
    TELL("store: down%s%s", gone ? ", connections refused" : "", wipe ? ", data lost" : "");
    s.up = false;
    s.gone = gone;
    fail_all(&s.parked);
    fail_all(&s.queue);
    fail_all(&s.blocked);
    if (wipe) {
        forget();
        end_incarnation();
        s.wipes++;
    }
}

void store_up(void)
{
    if (s.up)
        return;
    TELL("store: up again, incarnation %u", s.incarnation);
    s.up = true;
    s.up_us = w.now_us;
    s.gone = false;
    for (unsigned i = 0; i < w.nodes_count; i++)
        w.nodes[i].impaired_us = w.now_us;
}

bool store_is_gone(void)
{
    return !s.up && s.gone;
}

bool store_is_up(void)
{
    return s.up;
}

uint64_t store_up_for_us(void)
{
    return s.up ? w.now_us - s.up_us : 0;
}

unsigned store_incarnation(void)
{
    return s.incarnation;
}

unsigned store_wipes(void)
{
    return s.wipes;
}

const struct version *store_document(void)
{
    return s.document != NULL && s.document->foreign ? NULL : s.document;
}

void store_begin(void)
{
    s.up = true;
    s.up_us = 0;
    s.gone = false;
    s.incarnation = s.wipes = 0;
    forget();
}

static void free_list(struct request **list)
{
    struct request *request;

    while ((request = *list) != NULL) {
        *list = request->next;
        request_free(request);
    }
}

void store_end(void)
{
    free_list(&s.parked);
    free_list(&s.queue);
    free_list(&s.blocked);
    version_drop(s.old);
    s.old = NULL;
    forget();
}
