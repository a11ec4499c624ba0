/* See engine_session.h. */
#include "store/engine_session.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    KVS_BYTES = 256 * 1024,    /* of keys in one frame, unless a single one is larger */
    EVENTS_BYTES = 256 * 1024, /* the same for changes */
    ANSWERS_MAX = 16,          /* of one session that are being sent page by page */
    DOCUMENTS_MAX = 64         /* bytes of what their keys begin with */
};

#define OUT_BYTES_MAX (MU_FRAME_BYTES_MAX + 64u)
#define LISTS_BYTES_MAX (16u << 20) /* what the lists of one frame may take in memory: 4,096 operations take less */

/* ---- Sending ---- */

/* The keys that were found, of which those before `next` were sent, and what is to be sent behind them, once the peer
 * has taken them all: a single key may take as much as may be unsent. */
struct answer {
    struct mu_list link; /* in session->answers */
    uint32_t id;
    int64_t revision;
    struct mu_engine_found found;
    size_t next;
    bool is_sent; /* the last page, too */
    struct mu_buf behind;
};

static void hold_back(struct mu_engine_session *session, struct answer *answer, struct mu_slice bytes)
{
    struct mu_budget *transit = session->host->transit;

    if (session->held_back > MU_ENGINE_UNSENT_MAX)
        session->host->drop(session, "it does not read its replies: more than 1 MiB is unsent");
    else if (!mu_budget_take(transit, bytes.len))
        session->host->drop(session, "no room for unsent bytes: too many are in use by all connections");
    else if (mu_buf_append(&answer->behind, bytes.data, bytes.len, SIZE_MAX) == 0)
        session->held_back += bytes.len;
    else {
        mu_budget_give(transit, bytes.len);
        session->host->drop(session, "no memory for an answer");
    }
}

static void send_frame(struct mu_engine_session *session, const struct mu_frame *frame)
{
    struct mu_buf *out = &session->host->out;

    if (session->dead)
        return;
    out->len = 0;
    if (mu_frame_write(frame, out, OUT_BYTES_MAX) < 0)
        session->host->drop(session, "no memory for an answer");
    else if (mu_list_empty(&session->answers))
        (void)session->host->send(session, mu_buf_slice(out));
    else
        hold_back(session, MU_LIST_ITEM(session->answers.prev, struct answer, link), mu_buf_slice(out));
}

static const char *refusal(const struct mu_engine *engine, enum mu_engine_code code)
{
    switch (code) {
    case MU_ENGINE_OK:
        return "";
    case MU_ENGINE_INVALID:
        return "a length or number is beyond its limit, or a key stands twice in a transaction, or is the store's own";
    case MU_ENGINE_NOT_FOUND:
        return "this job has no such lease";
    case MU_ENGINE_DENIED:
        return "this is not the secret of that lease";
    case MU_ENGINE_EXHAUSTED:
        return mu_engine_full(engine);
    case MU_ENGINE_PRECONDITION:
        return "HELLO has to come first, and once; a lease is granted once";
    case MU_ENGINE_MOVED:
        return "the job has moved to a document of the store";
    case MU_ENGINE_UNAUTHENTICATED:
        return "this is not the proof of the store's token";
    }
    return "unknown";
}

static void send_done(struct mu_engine_session *session, uint32_t id, enum mu_engine_code code,
                      const struct mu_engine_last *last)
{
    struct mu_frame frame = { .type = MU_FRAME_DONE,
                              .id = id,
                              .code = (uint32_t)code,
                              .held = last->held,
                              .revision = last->revision,
                              .last = last->id,
                              .text = mu_slice_str(refusal(session->host->engine, code)) };

    send_frame(session, &frame);
}

static void send_code(struct mu_engine_session *session, uint32_t id, enum mu_engine_code code, bool held)
{
    struct mu_engine_last now = { .held = held, .revision = mu_engine_revision(session->host->engine) };

    send_done(session, id, code, &now);
}

/* How many keys from there on go into one frame. */
static size_t page_of(const struct mu_engine_found *found, size_t from)
{
    size_t bytes = 0, count = 0;

    while (from + count < found->count && count < MU_FRAME_KVS_MAX) {
        struct mu_engine_kv kv = mu_engine_kv(found, from + count);

        bytes += mu_frame_kv_bytes(&kv);
        if (count > 0 && bytes > KVS_BYTES)
            break;
        count++;
    }
    return count;
}

static void free_answer(struct mu_engine_session *session, struct answer *answer)
{
    mu_engine_found_done(session->host->engine, &answer->found);
    mu_budget_give(session->host->transit, answer->behind.len);
    session->held_back -= answer->behind.len;
    mu_buf_done(&answer->behind);
    mu_list_remove(&answer->link);
    session->answers_count--;
    free(answer);
}

static bool write_page(struct mu_engine_session *session, struct answer *answer)
{
    size_t count = page_of(&answer->found, answer->next);
    struct mu_engine_kv *kvs = calloc(count + 1, sizeof *kvs);
    struct mu_frame frame = { .type = MU_FRAME_KVS,
                              .id = answer->id,
                              .more = answer->next + count < answer->found.count,
                              .revision = answer->revision,
                              .kvs = kvs,
                              .kvs_count = count };
    bool written = false;

    for (size_t i = 0; kvs != NULL && i < count; i++)
        kvs[i] = mu_engine_kv(&answer->found, answer->next + i);
    session->host->out.len = 0;
    if (kvs != NULL)
        written = mu_frame_write(&frame, &session->host->out, OUT_BYTES_MAX) == 0;
    answer->next += count;
    answer->is_sent = !frame.more;
    free(kvs);
    return written;
}

/* As many pages as the peer takes. */
static void send_pages(struct mu_engine_session *session)
{
    struct answer *answer;
    bool takes_more = true;

    while (takes_more && !session->dead && (answer = MU_LIST_FIRST(struct answer, &session->answers, link)) != NULL) {
        if (answer->is_sent) {
            if (answer->behind.len > 0)
                takes_more = session->host->send(session, mu_buf_slice(&answer->behind));
            free_answer(session, answer);
        } else if (write_page(session, answer)) {
            takes_more = session->host->send(session, mu_buf_slice(&session->host->out));
        } else {
            session->host->drop(session, "no memory for an answer");
        }
    }
}

void mu_engine_session_sent(struct mu_engine_session *session)
{
    send_pages(session);
}

/* Takes what was found. */
static void send_kvs(struct mu_engine_session *session, uint32_t id, struct mu_engine_found *found)
{
    struct answer *answer = session->answers_count < ANSWERS_MAX ? calloc(1, sizeof *answer) : NULL;
    bool is_first = mu_list_empty(&session->answers);

    if (answer == NULL) {
        mu_engine_found_done(session->host->engine, found);
        session->host->drop(session, session->answers_count < ANSWERS_MAX ? "no memory for an answer"
                                                                          : "it does not read its replies");
        return;
    }
    *answer = (struct answer){ .id = id, .revision = mu_engine_revision(session->host->engine), .found = *found };
    mu_list_push(&session->answers, &answer->link);
    session->answers_count++;
    if (is_first)
        send_pages(session);
}

/* How many changes go into one frame. */
static size_t changes_of(const struct mu_engine_change *changes, size_t count)
{
    size_t bytes = 0, some = 0;

    while (some < count && (some == 0 || bytes < EVENTS_BYTES) && some < MU_FRAME_KVS_MAX)
        bytes += mu_frame_kv_bytes(&changes[some++].kv);
    return some;
}

static void on_push(void *ctx, struct mu_engine_peer *peer, uint32_t watch, int64_t revision,
                    const struct mu_engine_change *changes, size_t count)
{
    struct mu_engine_session *session = MU_LIST_ITEM(peer, struct mu_engine_session, peer);
    struct mu_frame frame = { .type = count > 0 ? MU_FRAME_EVENTS : MU_FRAME_STALE,
                              .watch = watch,
                              .revision = revision };

    (void)ctx;
    if (count == 0)
        send_frame(session, &frame);
    while (count > 0 && !session->dead) {
        frame.changes = changes;
        frame.changes_count = changes_of(changes, count);
        send_frame(session, &frame);
        changes += frame.changes_count;
        count -= frame.changes_count;
    }
}

/* ---- Requests ---- */

#define ENDED "muster/ended/" /* and a run id: the document of a job that ended here, as it was put */

/* The job's key with one of these prefixes, in `room`. Nothing: there are no documents. */
static struct mu_slice job_key(const struct mu_engine_host *host, const char *prefix, struct mu_slice run_id,
                               char room[static DOCUMENTS_MAX + MU_ENGINE_RUN_ID_MAX])
{
    size_t len;

    if (host->service == NULL || prefix == NULL || run_id.len == 0 || run_id.len > MU_ENGINE_RUN_ID_MAX)
        return mu_slice("", 0);
    len = strlen(prefix);
    assert(len <= DOCUMENTS_MAX);
    memcpy(room, prefix, len);
    memcpy(room + len, run_id.data, run_id.len);
    return mu_slice(room, len + run_id.len);
}

static bool has_documents(const struct mu_engine_host *host)
{
    return host->service != NULL && host->service->documents != NULL;
}

/* The job's document. One that ended here is none: its name is free again, as that of every job whose keys are gone. */
static bool has_document(const struct mu_engine_host *host, struct mu_slice run_id)
{
    char room[DOCUMENTS_MAX + MU_ENGINE_RUN_ID_MAX], ended_room[DOCUMENTS_MAX + MU_ENGINE_RUN_ID_MAX];
    struct mu_slice document, ended;

    if (!has_documents(host))
        return false;
    document = mu_table_get(&host->service->table, job_key(host, host->service->documents, run_id, room));
    ended = mu_table_get(&host->service->table, job_key(host, ENDED, run_id, ended_room));
    return document.data != NULL && (ended.data == NULL || !mu_slice_equal(document, ended));
}

static void forget_ended(const struct mu_engine_host *host, struct mu_slice run_id)
{
    char room[DOCUMENTS_MAX + MU_ENGINE_RUN_ID_MAX];
    struct mu_slice key = job_key(host, ENDED, run_id, room);

    if (!has_documents(host) || mu_table_get(&host->service->table, key).data == NULL)
        return;
    (void)mu_service_put(host->service, key, mu_slice("", 0));
    (void)mu_service_put(host->service, job_key(host, host->service->documents, run_id, room), mu_slice("", 0));
}

static bool on_document(void *ctx, struct mu_slice run_id, struct mu_slice document, bool ended)
{
    const struct mu_engine_host *host = ctx;
    char room[DOCUMENTS_MAX + MU_ENGINE_RUN_ID_MAX];

    return has_documents(host) &&
           (!ended || mu_service_put(host->service, job_key(host, ENDED, run_id, room), document)) &&
           mu_service_put(host->service, job_key(host, host->service->documents, run_id, room), document);
}

/* The first HELLO has no proof: only now the node learns what it has to prove its token with. A wrong one is answered,
 * so that the node does not try again; its connection is cut, and it is named in the log. */
static int challenge(struct mu_engine_session *session, const struct mu_frame *frame, bool *ret_proven,
                     struct muster_error *reterr)
{
    const struct mu_token *token = session->host->token;
    struct mu_slice nonce = mu_slice(session->ends.nonce, MU_TOKEN_NONCE_BYTES);
    struct mu_frame asked = { .type = MU_FRAME_CHALLENGE, .id = frame->id, .nonce = nonce };

    *ret_proven = false;
    if (frame->proof.len == 0) {
        send_frame(session, &asked);
        return 0;
    }
    *ret_proven = mu_token_accepts(token, nonce, frame->run_id, frame->node, frame->proof);
    if (*ret_proven)
        return 0;
    send_code(session, frame->id, MU_ENGINE_UNAUTHENTICATED, false);
    return mu_fail(reterr, MUSTER_EPROTOCOL, "its token is another one than this store's");
}

/* The job meets in a document. If not, `begins`: nobody is in it here so far. */
static bool is_elsewhere(const struct mu_engine_host *host, struct mu_slice run_id, bool *ret_begins)
{
    enum mu_engine_place place = mu_engine_place_of(host->engine, run_id);

    *ret_begins = place == MU_ENGINE_PLACE_NONE;
    if (place == MU_ENGINE_PLACE_NONE || place == MU_ENGINE_PLACE_LEFT)
        return has_document(host, run_id);
    return place == MU_ENGINE_PLACE_MOVED;
}

static int hello(struct mu_engine_session *session, const struct mu_frame *frame, struct muster_error *reterr)
{
    enum mu_engine_code code;
    struct mu_frame welcome = { .type = MU_FRAME_WELCOME,
                                .id = frame->id,
                                .version = mu_frame_version(frame->version_max),
                                .epoch = session->host->epoch,
                                .revision = mu_engine_revision(session->host->engine),
                                .run_id = frame->run_id,
                                .node = mu_slice_str(session->host->node),
                                .your_addr = mu_slice_str(session->ends.peer_addr),
                                .my_addr = mu_slice_str(session->ends.own_addr) };
    struct mu_frame refused = {
        .type = MU_FRAME_DONE, .id = frame->id, .code = MU_ENGINE_PRECONDITION, .revision = welcome.revision
    };
    bool proven = session->host->token == NULL || session->peer.job != NULL;
    bool begins = false;
    char why[128];
    int rc;

    if (frame->version_min > MU_FRAME_VERSION || frame->version_max < frame->version_min || frame->version_min == 0) {
        (void)snprintf(why, sizeof why,
                       "it speaks versions %" PRIu32 " to %" PRIu32
                       " of the engine's frames, and this store version %d",
                       frame->version_min, frame->version_max, MU_FRAME_VERSION);
        refused.text = mu_slice_str(why);
        send_frame(session, &refused); /* so that it does not try again */
        return mu_fail(reterr, MUSTER_EPROTOCOL, "%s", why);
    }
    rc = proven ? 0 : challenge(session, frame, &proven, reterr);
    if (!proven)
        return rc;
    if (session->peer.job == NULL && is_elsewhere(session->host, frame->run_id, &begins)) {
        welcome.moved = session->elsewhere = true;
        send_frame(session, &welcome);
        return 0;
    }
    session->elsewhere = false;
    if (session->peer.job == NULL && begins)
        forget_ended(session->host, frame->run_id);
    code = mu_engine_hello(session->host->engine, &session->peer, frame->run_id, frame->only);
    if (code != MU_ENGINE_OK)
        send_code(session, frame->id, code, false);
    else
        send_frame(session, &welcome);
    return 0;
}

/* With what came of the last transaction: no write is in doubt after a reset. */
static void attach(struct mu_engine_session *session, const struct mu_frame *frame)
{
    struct mu_engine_peer *old;
    struct mu_engine_last last;
    char why[160];
    enum mu_engine_code code =
        mu_engine_attach(session->host->engine, &session->peer, frame->lease, session->host->now_ms, &last, &old);

    if (old != NULL) {
        (void)snprintf(why, sizeof why, "its lease %016" PRIx64 " was taken over by %s", frame->lease,
                       session->ends.peer);
        session->host->drop(MU_LIST_ITEM(old, struct mu_engine_session, peer), why);
    }
    if (code == MU_ENGINE_OK)
        send_done(session, frame->id, code, &last);
    else
        send_code(session, frame->id, code, false);
}

static enum mu_engine_code grant(struct mu_engine_session *session, const struct mu_frame *frame)
{
    struct mu_engine_grant wanted = {
        .lease = frame->lease, .ttl_ms = frame->ttl_ms, .bound = frame->bound, .secret = frame->secret
    };

    return mu_engine_grant(session->host->engine, &session->peer, &wanted, session->host->now_ms);
}

static void look_up(struct mu_engine_session *session, const struct mu_frame *frame)
{
    struct mu_engine_found found;
    enum mu_engine_code code =
        frame->type == MU_FRAME_LOAD
            ? mu_engine_load(session->host->engine, &session->peer, frame->watch, frame->key, &found)
            : mu_engine_range(session->host->engine, &session->peer, frame->key, frame->prefix, frame->limit, &found);

    if (code != MU_ENGINE_OK)
        send_code(session, frame->id, code, false);
    else
        send_kvs(session, frame->id, &found);
}

/* One who guesses secrets is cut and named in the log. */
static int revoke(struct mu_engine_session *session, const struct mu_frame *frame, struct muster_error *reterr)
{
    enum mu_engine_code code =
        mu_engine_revoke(session->host->engine, &session->peer, frame->lease, frame->secret, &frame->mark);

    send_code(session, frame->id, code, false);
    if (code != MU_ENGINE_DENIED)
        return 0;
    return mu_fail(reterr, MUSTER_EPROTOCOL, "a will with another secret than that of lease %016" PRIx64, frame->lease);
}

static int carry_out(struct mu_engine_session *session, const struct mu_frame *frame, struct muster_error *reterr)
{
    struct mu_engine *engine = session->host->engine;
    enum mu_engine_code code = MU_ENGINE_OK;
    bool held = false;

    if (session->elsewhere && frame->type <= MU_FRAME_TXN && frame->type != MU_FRAME_HELLO) {
        send_code(session, frame->id, MU_ENGINE_MOVED, false);
        return 0;
    }
    switch (frame->type) {
    case MU_FRAME_HELLO:
        return hello(session, frame, reterr);
    case MU_FRAME_ATTACH:
        attach(session, frame);
        return 0;
    case MU_FRAME_LOAD:
    case MU_FRAME_RANGE:
        look_up(session, frame);
        return 0;
    case MU_FRAME_GRANT:
        code = grant(session, frame);
        break;
    case MU_FRAME_KEEP:
        if (frame->lease != 0)
            code = mu_engine_keep(engine, &session->peer, frame->lease, session->host->now_ms);
        break;
    case MU_FRAME_REVOKE:
        return revoke(session, frame, reterr);
    case MU_FRAME_UNWATCH:
        mu_engine_unwatch(engine, &session->peer, frame->watch);
        break;
    case MU_FRAME_TXN:
        code = mu_engine_txn(engine, &session->peer, &frame->txn, &held);
        break;
    case MU_FRAME_WELCOME:
    case MU_FRAME_DONE:
    case MU_FRAME_KVS:
    case MU_FRAME_EVENTS:
    case MU_FRAME_STALE:
    case MU_FRAME_CHALLENGE:
    case MU_FRAMES_COUNT:
        return mu_fail(reterr, MUSTER_EPROTOCOL, "the frame %s is a server's", mu_frame_type_text(frame->type));
    }
    send_code(session, frame->id, code, held);
    return 0;
}

/* ---- Bytes ---- */

/* Carries out the whole frames at the start of `bytes`; how many bytes these were, or an error. */
static int take_frames(struct mu_engine_session *session, struct mu_slice bytes, size_t *ret_used,
                       struct muster_error *reterr)
{
    int rc = 0;

    *ret_used = 0;
    while (rc == 0 && !session->dead) {
        struct mu_slice left = mu_slice(bytes.data + *ret_used, bytes.len - *ret_used);
        size_t len = mu_frame_length(left);
        struct mu_arena arena = { .bytes_max = LISTS_BYTES_MAX };
        struct mu_frame frame;

        if (len > MU_FRAME_BYTES_MAX || (len > 0 && len < MU_FRAME_HEAD_BYTES))
            return mu_fail(reterr, MUSTER_EPROTOCOL, "a frame of %zu bytes", len);
        if (len > MU_ENGINE_EARLY_MAX && session->peer.job == NULL)
            return mu_fail(reterr, MUSTER_EPROTOCOL, "a frame of %zu bytes before HELLO", len);
        if (len == 0 || len > left.len)
            return 0;
        rc = mu_frame_read(mu_slice(left.data, len), &arena, &frame, reterr);
        if (rc == 0)
            rc = carry_out(session, &frame, reterr);
        mu_arena_done(&arena);
        *ret_used += len;
    }
    return rc;
}

/* What `unread` holds is charged to the budget of all connections. */
static int settle_charge(struct mu_engine_session *session, struct muster_error *reterr)
{
    mu_budget_give(session->host->transit, session->charged);
    session->charged = session->unread.cap;
    if (mu_budget_take(session->host->transit, session->charged))
        return 0;
    session->charged = 0;
    return mu_fail(reterr, MUSTER_ELIMIT, "no room for a frame that is not whole: %zu of %zu bytes are in use",
                   session->host->transit->used, session->host->transit->max);
}

static int keep_rest(struct mu_engine_session *session, struct mu_slice rest, struct muster_error *reterr)
{
    if (mu_buf_append(&session->unread, rest.data, rest.len, MU_FRAME_BYTES_MAX + rest.len) < 0)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a frame");
    return settle_charge(session, reterr);
}

int mu_engine_session_feed(struct mu_engine_session *session, struct mu_slice bytes, uint64_t now_ms,
                           struct muster_error *reterr)
{
    size_t used = 0;
    int rc = 0;

    session->host->now_ms = now_ms;
    mu_engine_heard(session->host->engine, &session->peer, now_ms); /* a part of a frame is a sign of life, too */
    if (session->unread.len > 0) {                                  /* its rest has come, or a part of it */
        rc = keep_rest(session, bytes, reterr);
        if (rc == 0)
            rc = take_frames(session, mu_buf_slice(&session->unread), &used, reterr);
        mu_buf_consume(&session->unread, used);
        return rc == 0 ? settle_charge(session, reterr) : rc;
    }
    rc = take_frames(session, bytes, &used, reterr);
    if (rc == 0 && used < bytes.len && !session->dead)
        rc = keep_rest(session, mu_slice(bytes.data + used, bytes.len - used), reterr);
    return rc;
}

void mu_engine_session_init(struct mu_engine_session *session, struct mu_engine_host *host,
                            const struct mu_engine_ends *ends)
{
    assert((host->token != NULL) == (ends->nonce != NULL));
    *session = (struct mu_engine_session){ .host = host, .ends = *ends };
    mu_list_init(&session->answers);
    mu_engine_peer_init(&session->peer);
}

void mu_engine_session_leave(struct mu_engine_session *session, bool cut, uint64_t now_ms)
{
    session->dead = true;
    MU_LIST_EACH_LEAVING (struct answer, answer, &session->answers, link)
        free_answer(session, answer);
    mu_engine_leave(session->host->engine, &session->peer, cut, now_ms);
    mu_budget_give(session->host->transit, session->charged);
    session->charged = 0;
    mu_buf_done(&session->unread);
}

/* ---- The host ---- */

int mu_engine_host_init(struct mu_engine_host *host, const struct mu_engine_host_config *config)
{
    struct mu_engine_config engine = {
        .budget = config->budget,
        .reserved = config->reserved,
        .seed = config->seed,
        .revision = MU_ENGINE_REVISION_MIN + (int64_t)(config->random[0] >> 4), /* far from the end, too */
        .shows_none = config->token != NULL,
        .push = on_push,
        .document = config->service != NULL && config->service->documents != NULL ? on_document : NULL,
        .ctx = host,
    };

    *host = (struct mu_engine_host){ .engine = mu_engine_new(&engine),
                                     .epoch = config->random[1],
                                     .node = config->node,
                                     .service = config->service,
                                     .token = config->token,
                                     .transit = config->transit,
                                     .send = config->send,
                                     .drop = config->drop };
    return host->engine != NULL ? 0 : MUSTER_ENOMEM;
}

void mu_engine_host_done(struct mu_engine_host *host)
{
    mu_engine_free(host->engine);
    mu_buf_done(&host->out);
}

bool mu_engine_host_turn(struct mu_engine_host *host, uint64_t began_ms, uint64_t now_ms)
{
    bool expected = mu_engine_expects_peers(host->engine);

    assert(began_ms <= now_ms);
    host->now_ms = now_ms;
    mu_engine_turn(host->engine, began_ms);
    mu_engine_flush(host->engine);
    return expected && !mu_engine_expects_peers(host->engine);
}
