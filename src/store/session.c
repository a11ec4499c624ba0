/* From a connection's bytes through codec and table to the bytes of replies.
 *
 * Happy path: feed() takes whole requests straight from what the driver read; only the start of an unfinished one is
 * kept, in `unread`. Each request is one step of the table. Its answer is sent first, then the peers that it woke are
 * told, then those that watch the key. Failures: a request that cannot be read or carried out ends its own connection
 * only. */
#include "store/session.h"

#include "base/error.h"
#include "store/engine.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

enum {
    CONN_SHARE = 4,         /* one connection may have a quarter of what all may have */
    ENGINE_SHARE = 4,       /* the store's keys leave a quarter to the engine ... */
    TRANSIT_SHARE = 2,      /* what is half-read or unsent may take half as much again */
    TURN_BYTES = 32 * 1024, /* of a list that are carried out in one turn: a millisecond or so */
    TURN_KEYS = 4096,       /* as many keys may be listed at once */
    RUN_ID_SHOWN = 64,      /* bytes of it in an error */
    KEY_SHOWN = 96,         /* the same of a key */
};

#define ENGINE_BYTES_MAX (64u << 20) /* ... or so many bytes, if that is less */

void mu_service_init(struct mu_service *service, const struct muster_store_limits *limits, enum mu_dialect legacy,
                     struct mu_hash_seed seed, mu_session_send *send)
{
    *service = (struct mu_service){
        .limits = *limits,
        .budget = { .max = limits->total_bytes },
        .transit = { .max = limits->total_bytes / TRANSIT_SHARE },
        .legacy = legacy,
        .send = send,
    };
    mu_list_init(&service->outsiders);
    mu_table_init(&service->table, &service->budget, limits->value_bytes, seed);
    service->table.share_max = limits->total_bytes / CONN_SHARE;
}

void mu_service_offer_engine(struct mu_service *service, const char *documents)
{
    size_t share = service->budget.max / ENGINE_SHARE;

    assert(!service->offers_engine && service->budget.used == 0);
    service->offers_engine = true;
    service->documents = documents;
    service->reserved = share < ENGINE_BYTES_MAX ? share : ENGINE_BYTES_MAX;
    service->budget.used = service->reserved;
}

void mu_service_close_documents(struct mu_service *service, const char *notes)
{
    assert(service->offers_engine && service->documents != NULL);
    service->documents_closed = true;
    service->notes = notes;
}

void mu_service_done(struct mu_service *service)
{
    mu_table_done(&service->table);
    mu_budget_give(&service->budget, service->reserved);
    assert(service->budget.used == 0 && service->transit.used == 0);
}

void mu_session_init(struct mu_session *session, struct mu_service *service)
{
    *session = (struct mu_session){ .service = service, .send = service->send };
    mu_list_init(&session->outsider);
    mu_codec_init(&session->codec, &service->limits, service->legacy);
    mu_peer_init(&session->peer);
}

static void send_parts(struct mu_session *session, const struct mu_slice *parts, size_t count)
{
    if (!session->dead)
        session->send(session, parts, count);
}

static void send_number(struct mu_session *session, uint64_t number, size_t bytes)
{
    char wire[8];
    struct mu_slice part = mu_slice(wire, bytes);

    mu_put_u64(wire, number); /* little-endian: the first bytes are the shorter forms */
    send_parts(session, &part, 1);
}

static void send_bytes(struct mu_session *session, struct mu_slice bytes)
{
    char len[8];
    struct mu_slice parts[] = { mu_slice(len, sizeof len), bytes };

    mu_put_u64(len, bytes.len);
    send_parts(session, parts, bytes.len > 0 ? 2 : 1);
}

static void send_values(struct mu_session *session, const struct mu_request *request)
{
    struct mu_slice list = request->list, key;

    while (!session->dead && mu_request_next(&list, &key, NULL))
        send_bytes(session, mu_table_get(&session->service->table, key));
}

static void send_keys(struct mu_session *session)
{
    const struct mu_table *table = &session->service->table;

    for (const struct mu_entry *e = mu_table_next(table, NULL); e != NULL && !session->dead;
         e = mu_table_next(table, e))
        send_bytes(session, mu_entry_key(e));
}

static void send_answer(struct mu_session *session, const struct mu_request *request, const struct mu_answer *answer)
{
    switch (answer->kind) {
    case MU_ANSWER_NONE:
    case MU_ANSWER_REFUSED:
        break;
    case MU_ANSWER_BYTE:
        send_number(session, (uint64_t)answer->number, 1);
        break;
    case MU_ANSWER_WORD:
        send_number(session, (uint64_t)answer->number, 4);
        break;
    case MU_ANSWER_NUMBER:
        send_number(session, (uint64_t)answer->number, 8);
        break;
    case MU_ANSWER_BYTES:
        send_bytes(session, answer->bytes);
        break;
    case MU_ANSWER_POPPED:
        send_number(session, (uint64_t)answer->number, 8);
        if (answer->number > 0)
            send_bytes(session, answer->bytes);
        break;
    case MU_ANSWER_VALUES:
        send_values(session, request);
        break;
    case MU_ANSWER_KEYS:
        send_number(session, (uint64_t)answer->number, 8);
        send_keys(session);
        break;
    }
}

/* A send evicts much of the caches, so the next session is prefetched meanwhile. */
static void tell_woken(struct mu_service *service)
{
    struct mu_peer *peer;

    while ((peer = mu_table_pop_woken(&service->table)) != NULL) {
        const struct mu_list *next = mu_list_first(&service->table.woken);

        if (next != NULL) {
            __builtin_prefetch((const char *)next - 64);
            __builtin_prefetch(next, 1);
            __builtin_prefetch((const char *)next + 64);
        }
        send_number(MU_LIST_ITEM(peer, struct mu_session, peer), MU_STOP_WAITING, 1);
    }
}

static void tell_watcher(struct mu_session *session, const struct mu_change *change)
{
    char head[9], before_len[8], after_len[8];
    const struct mu_slice parts[] = {
        mu_slice(head, sizeof head),           change->key,  mu_slice(before_len, sizeof before_len), change->before,
        mu_slice(after_len, sizeof after_len), change->after
    };

    head[0] = (char)change->kind;
    mu_put_u64(head + 1, change->key.len);
    mu_put_u64(before_len, change->before.len);
    mu_put_u64(after_len, change->after.len);
    send_parts(session, parts, sizeof parts / sizeof parts[0]);
}

static void tell_watchers(const struct mu_change *change)
{
    if (change->watchers == NULL)
        return;
    for (const struct mu_list *link = change->watchers->next; link != change->watchers; link = link->next)
        tell_watcher(MU_LIST_ITEM(mu_watch_peer(link), struct mu_session, peer), change);
}

/* ---- The engine ---- */

static bool is_write(enum mu_op op)
{
    return op == MU_OP_SET || op == MU_OP_COMPARE_SET || op == MU_OP_ADD || op == MU_OP_APPEND ||
           op == MU_OP_QUEUE_PUSH;
}

/* What keeps nodes that meet in a document out. A question for a note, by a COMPARE_SET that cannot change anything, is
 * let through: with it nodes ask who hosts the store, before they know of an engine. */
static bool is_of_document(const struct mu_service *service, const struct mu_request *request)
{
    struct mu_slice document = request->key, note = request->key;
    bool asks =
        request->op == MU_OP_COMPARE_SET && request->value.len > 0 && mu_slice_equal(request->value, request->desired);

    return mu_slice_skip(&document, service->documents) ||
           (!asks && service->notes != NULL && mu_slice_skip(&note, service->notes));
}

/* There may be no engine yet: nobody has asked for it. */
static enum mu_engine_place place_of_job(const struct mu_service *service, struct mu_slice run_id)
{
    if (service->only != NULL && mu_slice_equal(run_id, mu_slice_str(service->only)))
        return MU_ENGINE_PLACE_ONLY;
    return service->engine != NULL ? mu_engine_place_of(service->engine, run_id) : MU_ENGINE_PLACE_NONE;
}

/* Where the job is whose document this writes. */
static enum mu_engine_place place_of(const struct mu_service *service, enum mu_op op, struct mu_slice *ret_run_id,
                                     struct mu_slice key)
{
    *ret_run_id = key;
    if (!is_write(op) || service->documents == NULL || !mu_slice_skip(ret_run_id, service->documents))
        return MU_ENGINE_PLACE_NONE;
    return place_of_job(service, *ret_run_id);
}

/* A COMPARE_SET counts also if it would change nothing: so PyTorch's nodes read the document. */
static int keep_to_the_engine(struct mu_session *session, const struct mu_request *request, struct muster_error *reterr)
{
    const struct mu_service *service = session->service;
    enum mu_engine_place place;
    struct mu_slice run_id;

    if (is_write(request->op) && service->documents_closed && is_of_document(service, request)) {
        session->strayed = true;
        return mu_fail(reterr, MUSTER_EINVAL,
                       "it writes the key '%.*s', but this store has a token: its jobs meet in the engine alone, so "
                       "nodes need token_file, and not engine=off",
                       (int)(request->key.len < KEY_SHOWN ? request->key.len : KEY_SHOWN), request->key.data);
    }
    place = place_of(service, request->op, &run_id, request->key);
    if (place == MU_ENGINE_PLACE_LEFT)
        mu_engine_give_up(service->engine, run_id);
    if (place != MU_ENGINE_PLACE_HERE && place != MU_ENGINE_PLACE_ONLY)
        return 0;
    session->strayed = true;
    return mu_fail(reterr, MUSTER_EINVAL, "it asks for the document of job '%.*s', which meets in the engine%s",
                   (int)(run_id.len < RUN_ID_SHOWN ? run_id.len : RUN_ID_SHOWN), run_id.data,
                   place == MU_ENGINE_PLACE_ONLY ? " alone (engine=only)" : "");
}

/* As nodes of a rendezvous begin: PyTorch's take their time for the answer. */
static bool must_wait(const struct mu_session *session, const struct mu_request *request, struct mu_slice *ret_run_id)
{
    return (request->op == MU_OP_SET || request->op == MU_OP_COMPARE_SET) && !session->service->documents_closed &&
           place_of(session->service, request->op, ret_run_id, request->key) == MU_ENGINE_PLACE_HERE;
}

static bool speaks_old(const struct mu_session *session)
{
    return session->codec.dialect != MU_DIALECT_V;
}

static int begin_to_wait(struct mu_session *session, struct mu_slice run_id, struct muster_error *reterr)
{
    struct mu_service *service = session->service;

    if (mu_buf_assign(&session->run_id, run_id) == 0)
        session->job = mu_engine_wait(service->engine, run_id, speaks_old(session));
    if (session->job == 0) {
        mu_buf_done(&session->run_id);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a node that waits for its job's document");
    }
    mu_list_push(&service->outsiders, &session->outsider);
    session->state = MU_SESSION_OUTSIDE;
    return 0;
}

static void end_to_wait(struct mu_session *session)
{
    if (session->state != MU_SESSION_OUTSIDE)
        return;
    session->state = MU_SESSION_READING;
    mu_list_remove(&session->outsider);
    if (session->service->engine != NULL)
        mu_engine_wait_over(session->service->engine, mu_buf_slice(&session->run_id), session->job,
                            speaks_old(session));
    session->job = 0;
    mu_buf_done(&session->run_id);
}

static bool still_waits(const struct mu_session *session)
{
    const struct mu_engine *engine = session->service->engine;

    return session->state == MU_SESSION_OUTSIDE && engine != NULL &&
           mu_engine_still_waits(engine, mu_buf_slice(&session->run_id), session->job);
}

/* The only key of a CHECK in today's dialect; of another request, nothing. */
static struct mu_slice checked_key(const struct mu_session *session, const struct mu_request *request)
{
    struct mu_slice list = request->list, key = mu_slice("", 0);

    if (request->op == MU_OP_CHECK && session->codec.dialect == MU_DIALECT_V && request->count == 1)
        (void)mu_request_next(&list, &key, NULL);
    return key;
}

static bool is_probe(const struct mu_session *session, const struct mu_request *request)
{
    return session->service->offers_engine &&
           mu_slice_equal(checked_key(session, request), mu_slice_str(MU_SESSION_PROBE));
}

/* Whether the job it asks for takes no outsiders. */
static bool is_about_closed_job(const struct mu_session *session, const struct mu_request *request)
{
    const struct mu_service *service = session->service;
    struct mu_slice run_id = checked_key(session, request);

    if (!mu_slice_skip(&run_id, MU_SESSION_JOB_PROBE))
        return false;
    return service->documents_closed || place_of_job(service, run_id) == MU_ENGINE_PLACE_ONLY;
}

static void move(struct mu_session *session)
{
    session->state = MU_SESSION_MOVED;
    mu_table_leave(&session->service->table, &session->peer); /* nothing of the store may come between frames */
    mu_peer_init(&session->peer);
    tell_woken(session->service);
    send_number(session, MU_CHECK_READY, 1);
}

/* ---- Requests ---- */

static int step(struct mu_session *session, const struct mu_request *request, struct muster_error *reterr)
{
    struct mu_answer answer;
    int rc = keep_to_the_engine(session, request, reterr);

    if (rc < 0)
        return rc;
    mu_table_step(&session->service->table, &session->peer, request, &answer, reterr);
    send_answer(session, request, &answer);
    tell_watchers(&answer.change);
    tell_woken(session->service);
    return answer.kind == MU_ANSWER_REFUSED ? reterr->code : 0;
}

static int set_all(struct mu_session *session, const struct mu_request *request, struct muster_error *reterr)
{
    struct mu_request one = { .op = MU_OP_SET };
    struct mu_slice list = request->list;
    int rc = 0;

    while (rc == 0 && mu_request_next(&list, &one.key, &one.value))
        rc = step(session, &one, reterr);
    return rc;
}

/* Peers before 2.2 take turns with their server: a request while a WAIT is pending means that the peer gave the WAIT
 * up. If its key comes later, no stray byte may be sent before the answers that the peer expects by then. */
static bool ends_wait(const struct mu_session *session, const struct mu_request *request)
{
    return session->codec.dialect != MU_DIALECT_V && request->op != MU_OP_CANCEL_WAIT;
}

static int carry_out(struct mu_session *session, const struct mu_request *request, struct muster_error *reterr)
{
    session->service->requests++;
    if (is_probe(session, request)) {
        move(session);
        return 0;
    }
    if (is_about_closed_job(session, request)) {
        send_number(session, MU_CHECK_READY, 1);
        return 0;
    }
    if (ends_wait(session, request))
        mu_table_cancel_wait(&session->service->table, &session->peer);
    return request->op == MU_OP_MULTI_SET ? set_all(session, request, reterr) : step(session, request, reterr);
}

/* Whether it would hold up others and is therefore carried out in turns. */
static bool takes_long(const struct mu_session *session, const struct mu_request *request)
{
    return request->list.len > TURN_BYTES || (session->peer.regs != NULL && mu_peer_waits_long(&session->peer)) ||
           (request->op == MU_OP_LIST_KEYS && session->service->table.keys > TURN_KEYS);
}

/* Carries out the whole requests at the start of `in`; *ret_used is how many bytes they were. */
static int carry_out_all(struct mu_session *session, struct mu_slice in, uint64_t now_ms, size_t *ret_used,
                         struct muster_error *reterr)
{
    *ret_used = 0;
    while (!session->dead && session->state != MU_SESSION_MOVED) {
        struct mu_slice rest = mu_slice(in.data + *ret_used, in.len - *ret_used);
        struct mu_request request;
        struct mu_slice run_id;
        size_t used;
        int rc;

        switch (mu_codec_next(&session->codec, rest, now_ms, &request, &used, reterr)) {
        case MU_CODEC_REQUEST:
            break;
        case MU_CODEC_MORE:
        case MU_CODEC_GRACE:
            return 0;
        case MU_CODEC_BAD:
            return reterr->code;
        }
        if (takes_long(session, &request)) {
            session->state = MU_SESSION_FOUND; /* and read once more, where it can stay */
            return 0;
        }
        if (must_wait(session, &request, &run_id))
            return begin_to_wait(session, run_id, reterr);
        rc = carry_out(session, &request, reterr);
        if (rc < 0)
            return rc;
        *ret_used += used;
    }
    return 0;
}

/* Keeps the budget's idea of `unread` at its real size. */
static void settle_charge(struct mu_session *session)
{
    struct mu_budget *budget = &session->service->transit;

    mu_budget_give(budget, session->charged);
    session->charged = session->unread.cap;
    budget->used += session->charged; /* was asked for, in the worst case, before the buffer grew */
}

static int keep(struct mu_session *session, struct mu_slice bytes, struct muster_error *reterr)
{
    struct mu_service *service = session->service;
    size_t len = session->unread.len + bytes.len;
    size_t growth = len > session->unread.cap ? 2 * len + 64 - session->charged : 0;
    int rc;

    if (!mu_budget_take(&service->transit, growth))
        return mu_fail(reterr, MUSTER_ELIMIT,
                       "no room for a request that is still being sent: %zu of %zu bytes are in use",
                       service->transit.used, service->transit.max);
    rc = mu_buf_append(&session->unread, bytes.data, bytes.len, SIZE_MAX); /* the codec held it to request_bytes */
    mu_budget_give(&service->transit, growth);
    settle_charge(session);
    return rc < 0 ? mu_fail(reterr, rc, "no memory for a request that is still being sent") : 0;
}

/* What comes behind a request that waits. */
static int keep_behind(struct mu_session *session, struct mu_slice bytes, struct muster_error *reterr)
{
    if (session->unread.len + bytes.len > session->service->limits.request_bytes)
        return mu_fail(reterr, MUSTER_ELIMIT, "it goes on sending while it waits for its job's document");
    return keep(session, bytes, reterr);
}

static void forget_read(struct mu_session *session, size_t used)
{
    if (used == session->unread.len)
        mu_buf_done(&session->unread);
    else
        mu_buf_consume(&session->unread, used);
    settle_charge(session);
}

int mu_session_feed(struct mu_session *session, struct mu_slice bytes, uint64_t now_ms, struct muster_error *reterr)
{
    size_t used;
    int rc;

    assert(session->state == MU_SESSION_READING || session->state == MU_SESSION_OUTSIDE);
    if (still_waits(session))
        return bytes.len > 0 ? keep_behind(session, bytes, reterr) : 0;
    end_to_wait(session);
    if (session->codec.grace_until_ms != 0 && bytes.len == 0 && now_ms >= session->codec.grace_until_ms)
        mu_codec_grace_over(&session->codec);
    if (session->unread.len == 0) {
        rc = carry_out_all(session, bytes, now_ms, &used, reterr);
        if (rc < 0 || used == bytes.len)
            return rc;
        return keep(session, mu_slice(bytes.data + used, bytes.len - used), reterr);
    }
    rc = keep(session, bytes, reterr);
    if (rc < 0)
        return rc;
    rc = carry_out_all(session, mu_buf_slice(&session->unread), now_ms, &used, reterr);
    if (rc == 0)
        forget_read(session, used);
    return rc;
}

/* ---- Turns ---- */

/* Takes the next items off a list, as many as one turn is for. */
static struct mu_slice cut(const struct mu_request *request, struct mu_slice *list)
{
    struct mu_slice rest = *list, key, value;

    while (list->len - rest.len < TURN_BYTES &&
           mu_request_next(&rest, &key, request->op == MU_OP_MULTI_SET ? &value : NULL))
        continue;
    key = mu_slice(list->data, list->len - rest.len);
    *list = rest;
    return key;
}

/* CHECK ends with the first part that misses a key. */
static int check_part(struct mu_session *session, const struct mu_request *part, bool *ret_done,
                      struct muster_error *reterr)
{
    struct mu_answer answer;

    mu_table_step(&session->service->table, &session->peer, part, &answer, reterr);
    *ret_done = !part->has_more || answer.number != MU_CHECK_READY;
    if (*ret_done)
        send_answer(session, part, &answer);
    tell_woken(session->service); /* it may have owed something */
    return 0;
}

/* One turn of the request in hand. */
static int work_part(struct mu_session *session, bool *ret_done, struct muster_error *reterr)
{
    struct mu_request part = *session->work;
    int rc;

    part.list = cut(&part, &session->work->list);
    part.has_more = session->work->list.len > 0;
    *ret_done = !part.has_more;
    if (part.op == MU_OP_CHECK)
        rc = check_part(session, &part, ret_done, reterr);
    else if (part.op == MU_OP_MULTI_SET)
        rc = set_all(session, &part, reterr);
    else
        rc = step(session, &part, reterr);
    session->work->has_earlier = true;
    return rc;
}

/* Reads the request once more. Few connections ever have one like it, so there is memory for it only meanwhile. */
static int begin_work(struct mu_session *session, uint64_t now_ms, struct muster_error *reterr)
{
    enum mu_codec_result result;
    size_t used;

    session->work = calloc(1, sizeof *session->work);
    if (session->work == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a request with a long list");
    result = mu_codec_next(&session->codec, mu_buf_slice(&session->unread), now_ms, session->work, &used, reterr);
    assert(result == MU_CODEC_REQUEST); /* it was one before */
    (void)result;
    session->state = MU_SESSION_WORKING;
    session->service->requests++;
    return 0;
}

static void end_work(struct mu_session *session)
{
    free(session->work);
    session->work = NULL;
    session->state = MU_SESSION_READING;
}

static bool ends_long_wait(const struct mu_session *session)
{
    const struct mu_request *work = session->work;

    return session->peer.regs != NULL && !work->has_earlier &&
           (ends_wait(session, work) || work->op == MU_OP_WAIT || work->op == MU_OP_BARRIER ||
            work->op == MU_OP_CANCEL_WAIT);
}

int mu_session_work(struct mu_session *session, uint64_t now_ms, struct muster_error *reterr)
{
    struct mu_table *table = &session->service->table;
    bool done = false;
    int rc = 0;

    assert(mu_session_is_busy(session));
    if (session->state == MU_SESSION_FOUND)
        rc = begin_work(session, now_ms, reterr);
    if (rc < 0)
        return rc;
    if (ends_long_wait(session)) {
        (void)mu_table_cancel_some(table, &session->peer);
        return 0;
    }
    if (!session->work->has_earlier && ends_wait(session, session->work))
        mu_table_cancel_wait(table, &session->peer);
    rc = work_part(session, &done, reterr);
    if (rc < 0 || !done)
        return rc;
    end_work(session);
    forget_read(session, session->codec.pos);
    return mu_session_feed(session, mu_slice("", 0), now_ms, reterr); /* the bytes that came behind it */
}

struct mu_buf mu_session_take_rest(struct mu_session *session)
{
    struct mu_buf rest = session->unread;

    assert(session->state == MU_SESSION_MOVED);
    session->unread = (struct mu_buf){ 0 };
    settle_charge(session);
    return rest;
}

bool mu_session_leave_some(struct mu_session *session)
{
    session->dead = true;
    return mu_table_cancel_some(&session->service->table, &session->peer);
}

void mu_session_leave(struct mu_session *session)
{
    session->dead = true;
    end_to_wait(session);
    mu_table_leave(&session->service->table, &session->peer);
    end_work(session);
    forget_read(session, session->unread.len);
    tell_woken(session->service);
}

/* ---- Without a session ---- */

static void send_nothing(struct mu_session *session, const struct mu_slice *parts, size_t count)
{
    (void)session;
    (void)parts;
    (void)count;
}

bool mu_service_put(struct mu_service *service, struct mu_slice key, struct mu_slice value)
{
    struct mu_request request = { .op = value.len > 0 ? MU_OP_SET : MU_OP_DELETE_KEY, .key = key, .value = value };
    struct mu_session session;
    struct muster_error error;
    struct mu_answer answer;

    mu_session_init(&session, service);
    session.send = send_nothing;
    mu_table_step(&service->table, &session.peer, &request, &answer, &error);
    tell_watchers(&answer.change);
    mu_session_leave(&session); /* tells those who wait for the key */
    return answer.kind != MU_ANSWER_REFUSED;
}
