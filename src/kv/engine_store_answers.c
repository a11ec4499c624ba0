/* The client of an engine: what the engine sends. See engine_store.h. */
#include "kv/engine_store_parts.h"

#include "store/codec.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- Answers ---- */

static int no_answer(const struct mu_frame *frame, struct muster_error *reterr)
{
    return mu_fail(reterr, MUSTER_EPROTOCOL, "a frame %s with the id %" PRIu32 ", which answers nothing",
                   mu_frame_type_text(frame->type), frame->id);
}

static int code_of(uint32_t code)
{
    return mu_es_is_final(code) ? MUSTER_EINVAL : code == MU_ENGINE_EXHAUSTED ? MUSTER_ELIMIT : MUSTER_ELOST;
}

static struct muster_error refusal(const struct mu_engine_store *s, const struct mu_frame *frame, const char *what)
{
    struct muster_error error = { .code = 0 };

    (void)mu_fail(&error, code_of(frame->code), "the store at %s %s: %.*s", s->peer, what, (int)frame->text.len,
                  frame->text.data);
    return error;
}

static int out_of_memory(const struct mu_engine_store *s, struct muster_error *reterr)
{
    return mu_fail(reterr, MUSTER_ENOMEM, "no memory for what the store at %s holds, at most %u MiB", s->peer,
                   MU_ENGINE_STORE_LOAD_MAX >> 20);
}

/* False: no memory. */
static bool tell_met(struct mu_engine_store *s, struct mu_slice host, bool moved)
{
    struct mu_fold_event event = { .type = MU_FOLD_ON_MET, .another = s->is_another, .moved = moved };
    struct mu_arena arena = { 0 };

    event.host = mu_arena_join(&arena, host, mu_slice_str(""));
    if (event.host.data == NULL)
        return false;
    mu_es_tell_with(s, event, NULL, &arena);
    return true;
}

/* The job has no keys here. */
static void leave_to_document(struct mu_engine_store *s)
{
    (void)mu_fail(&s->why, MUSTER_ELOST, "the job meets in a document of the store at %s", s->peer);
    mu_es_hang_up(s);
}

static int on_welcome(struct mu_engine_store *s, const struct mu_frame *frame, struct muster_error *reterr)
{
    if (frame->id == 0 || frame->id != s->hello_id)
        return no_answer(frame, reterr);
    if (s->state == MU_ENGINE_STORE_KNOCKING) {
        (void)mu_fail(&s->why, MUSTER_EINVAL,
                      "the store at %s has no token, and this node has one (token_file): it does not go on without",
                      s->peer);
        mu_es_refuse_all(s);
        return 0;
    }
    if (frame->version < 1 || frame->version > MU_FRAME_VERSION)
        return mu_fail(reterr, MUSTER_EPROTOCOL, "version %" PRIu32 " of the engine's frames, which was not offered",
                       frame->version);
    s->hello_id = 0;
    s->is_another = s->has_epoch && s->epoch != frame->epoch;
    s->epoch = frame->epoch;
    s->has_epoch = true;
    s->hosted_by_node = frame->node.len > 0;
    (void)snprintf(s->local, sizeof s->local, "%.*s", (int)frame->your_addr.len, frame->your_addr.data);
    if (!tell_met(s, frame->node, frame->moved))
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for what the engine says");
    if (frame->moved) {
        leave_to_document(s);
        return 0;
    }
    if (s->attach_id != 0)
        mu_es_become(s, MU_ENGINE_STORE_ATTACHING);
    else
        mu_es_be_ready(s);
    return 0;
}

/* To our HELLO, which had no proof. */
static int on_challenge(struct mu_engine_store *s, const struct mu_frame *frame, struct muster_error *reterr)
{
    bool is_first = s->state == MU_ENGINE_STORE_KNOCKING || !s->token.is_there;

    if (frame->id == 0 || frame->id != s->hello_id || !is_first)
        return no_answer(frame, reterr);
    if (!s->token.is_there) {
        (void)mu_fail(&s->why, MUSTER_EINVAL, "the store at %s wants a token (--rdzv-conf token_file=PATH)", s->peer);
        mu_es_refuse_all(s);
        return 0;
    }
    if (frame->nonce.len != MU_TOKEN_NONCE_BYTES)
        return mu_fail(reterr, MUSTER_EPROTOCOL, "a nonce of %zu bytes", frame->nonce.len);
    mu_es_greet_with(s, frame->nonce);
    return 0;
}

/* A lost connection took transactions, and the engine has carried out those up to the one with this id. */
static void settle_doubts(struct mu_engine_store *s, const struct mu_frame *frame)
{
    MU_LIST_EACH_LEAVING (struct request, r, &s->requests, link) {
        if (r->progress != DOUBTFUL)
            continue;
        if (r->frame_id == frame->last) {
            mu_es_tell(s,
                       (struct mu_fold_event){
                           .type = MU_FOLD_ON_WROTE, .id = r->id, .held = frame->held, .revision = frame->revision },
                       NULL);
            mu_es_request_done(s, r);
        } else if ((int32_t)(r->frame_id - frame->last) > 0) {
            r->progress = WAITING;
        }
    }
    mu_es_fail_doubtful(s, false, &s->why); /* those before it */
}

static int on_attached(struct mu_engine_store *s, const struct mu_frame *frame, struct muster_error *reterr)
{
    struct muster_error lost;

    if (s->state != MU_ENGINE_STORE_ATTACHING)
        return no_answer(frame, reterr);
    s->attach_id = 0;
    if (frame->code == MU_ENGINE_OK) {
        s->lease.state = LEASE_HELD;
        settle_doubts(s, frame);
    } else {
        lost = refusal(s, frame, "has ended our lease");
        if (s->is_another)
            (void)mu_fail(&lost, MUSTER_ELOST, "the store at %s has been started anew, and the lease is lost", s->peer);
        mu_es_lose_lease(s, false, false, &lost);
    }
    mu_es_be_ready(s);
    return 0;
}

static void on_granted(struct mu_engine_store *s, const struct mu_frame *frame)
{
    struct muster_error lost;

    s->grant_id = 0;
    s->cautious = frame->code != MU_ENGINE_OK;
    if (s->cautious) {
        lost = refusal(s, frame, "refuses a lease");
        mu_es_lose_lease(s, true, mu_es_is_final(frame->code), &lost);
        return;
    }
    if (s->lease.state == LEASE_ASKED)
        mu_es_tell_leased(s);
    s->lease.state = LEASE_HELD;
}

static void on_kept(struct mu_engine_store *s, const struct mu_frame *frame)
{
    struct muster_error lost;

    s->keep_id = 0;
    if (frame->code == MU_ENGINE_OK && s->renew_ms > 0 && s->lease.state == LEASE_HELD)
        mu_es_tell(s, (struct mu_fold_event){ .type = MU_FOLD_ON_RENEWED, .id = s->lease.take, .sent_ms = s->kept_ms },
                   NULL);
    if (frame->code == MU_ENGINE_OK || !mu_es_has_lease(s))
        return;
    lost = refusal(s, frame, "has ended our lease");
    mu_es_lose_lease(s, false, false, &lost);
}

static int on_request_done(struct mu_engine_store *s, struct request *r, const struct mu_frame *frame,
                           struct muster_error *reterr)
{
    static const enum mu_fold_event_type answers[] = { [MU_FOLD_DO_WRITE] = MU_FOLD_ON_WROTE,
                                                       [MU_FOLD_DO_GRANT_JOB] = MU_FOLD_ON_GRANTED,
                                                       [MU_FOLD_DO_KEEP_JOB] = MU_FOLD_ON_KEPT,
                                                       [MU_FOLD_DO_DROP_LEASE] = MU_FOLD_ON_DROPPED };
    bool ok = frame->code == MU_ENGINE_OK;
    struct mu_fold_event event = { .id = r->id };

    if (mu_es_is_reading(r) && ok)
        return no_answer(frame, reterr);
    if (frame->code == MU_ENGINE_MOVED) {
        mu_es_request_done(s, r);
        return tell_met(s, mu_slice_str(""), true) ? 0 : out_of_memory(s, reterr);
    }
    if (r->type == MU_FOLD_DO_LOOK_AROUND && r->look == LOOK_MARK) { /* also without a mark the others are named */
        r->marked = ok && frame->held;
        mu_es_look_on(s, r, LOOK_NODES);
        return 0;
    }
    if (!ok && r->type != MU_FOLD_DO_DROP_LEASE &&
        (r->type != MU_FOLD_DO_KEEP_JOB || frame->code != MU_ENGINE_NOT_FOUND)) {
        struct muster_error error = refusal(s, frame, "refuses a request");

        mu_es_fail(s, r, frame->code, mu_es_is_final(frame->code), &error);
        return 0;
    }
    event.type = answers[r->type];
    if (r->type == MU_FOLD_DO_WRITE) {
        event.held = frame->held;
        event.revision = frame->revision;
    } else if (r->type == MU_FOLD_DO_GRANT_JOB) {
        event.lease = (int64_t)r->lease;
    } else {
        event.held = ok && r->type == MU_FOLD_DO_KEEP_JOB;
    }
    if (r->id != 0)
        mu_es_tell(s, event, NULL);
    mu_es_request_done(s, r);
    return 0;
}

static bool was_sent(const struct mu_engine_store *s, uint32_t id)
{
    return id != 0 && (int32_t)(s->last_id - id) >= 0;
}

static int on_done(struct mu_engine_store *s, struct request *r, const struct mu_frame *frame,
                   struct muster_error *reterr)
{
    if (r != NULL)
        return on_request_done(s, r, frame, reterr);
    if (!was_sent(s, frame->id))
        return no_answer(frame, reterr);
    if (frame->id == s->hello_id) {
        s->why = refusal(s, frame, "refuses this node");
        if (frame->code == MU_ENGINE_UNAUTHENTICATED)
            (void)mu_fail(&s->why, MUSTER_EINVAL, "the store at %s refuses our token: it has another one", s->peer);
        if (mu_es_is_final(frame->code))
            mu_es_refuse_all(s);
        else
            mu_es_hang_up(s);
    } else if (frame->id == s->attach_id) {
        return on_attached(s, frame, reterr);
    } else if (frame->id == s->grant_id) {
        on_granted(s, frame);
    } else if (frame->id == s->keep_id) {
        on_kept(s, frame);
    }
    return 0; /* or it was given up before */
}

/* ---- Keys ---- */

static struct mu_fold_kv seen(const struct mu_engine_kv *kv, bool deleted)
{
    return (struct mu_fold_kv){ .key = kv->key,
                                .deleted = deleted,
                                .value = kv->value,
                                .create = kv->create,
                                .mod = kv->mod,
                                .lease = (int64_t)kv->lease };
}

static struct mu_fold_kv changed(const struct mu_engine_change *change)
{
    static const enum mu_fold_how hows[] = {
        [MU_ENGINE_DELETED] = MU_FOLD_HOW_UNKNOWN,
        [MU_ENGINE_REVOKED] = MU_FOLD_HOW_REVOKED,
        [MU_ENGINE_RESET] = MU_FOLD_HOW_RESET,
        [MU_ENGINE_SILENT] = MU_FOLD_HOW_SILENT,
    };
    struct mu_fold_kv kv = seen(&change->kv, change->deleted);

    if (change->deleted)
        kv.how = hows[change->end];
    kv.ago_ms = change->ago_ms;
    return kv;
}

static int by_coming(const void *a, const void *b)
{
    const struct mu_fold_kv *left = a, *right = b;

    return left->create < right->create ? -1 : left->create > right->create;
}

/* Nodes, in the order of their coming, and behind them the marks of other jobs. Without the latter a store of an older
 * muster brings our own. */
static size_t sort_crowd(const struct request *r, struct mu_fold_kv *kvs)
{
    size_t count = r->nodes_count < MU_WAITERS_RECORDS_MAX ? r->nodes_count : MU_WAITERS_RECORDS_MAX; /* the limits */
    size_t max = count + MU_WAITERS_MARKS_MAX;

    qsort(kvs, r->nodes_count, sizeof *kvs, by_coming);
    for (size_t i = r->nodes_count; i < r->kvs_count && count < max; i++)
        if (kvs[i].key.len > sizeof MU_ENGINE_SHOWN - 1)
            kvs[count++] = kvs[i];
    return count;
}

/* All pages are there. */
static void tell_read(struct mu_engine_store *s, struct request *r)
{
    struct mu_fold_kv *kvs = mu_arena_alloc(&r->arena, (r->kvs_count + 1) * sizeof *kvs);
    struct mu_fold_event event = { .type = MU_FOLD_ON_RANGED, .id = r->id, .scope = r->scope };
    struct muster_error error;
    size_t at = r->kvs_count;

    if (kvs == NULL) {
        (void)out_of_memory(s, &error);
        mu_es_fail(s, r, MU_ENGINE_OK, false, &error);
        return;
    }
    for (const struct page *page = r->last; page != NULL; page = page->before)
        for (size_t i = page->count; i-- > 0;)
            kvs[--at] = seen(&page->kvs[i], false);
    event.kvs = kvs;
    event.count = r->kvs_count;
    if (r->type == MU_FOLD_DO_LOOK_AROUND) {
        event.type = MU_FOLD_ON_CROWD;
        event.count = sort_crowd(r, kvs);
        event.held = r->marked;
        event.lease = (int64_t)r->lease;
    } else if (r->type == MU_FOLD_DO_LOAD) {
        event.type = MU_FOLD_ON_LOADED;
        s->watched[r->scope] = true;
    }
    mu_es_tell_with(s, event, NULL, &r->arena);
    mu_es_request_done(s, r);
}

static int on_kvs(struct mu_engine_store *s, struct request *r, const struct mu_frame *frame,
                  struct muster_error *reterr)
{
    struct page *page;

    if (r == NULL)
        return was_sent(s, frame->id) ? 0 : no_answer(frame, reterr);
    if (!mu_es_is_reading(r))
        return no_answer(frame, reterr);
    page = mu_arena_alloc(&r->arena, sizeof *page);
    if (page == NULL)
        return out_of_memory(s, reterr);
    *page = (struct page){ r->last, frame->kvs, frame->kvs_count };
    r->last = page;
    r->kvs_count += frame->kvs_count;
    if (frame->more) {
        mu_es_give_time(s, r);
    } else if (r->type == MU_FOLD_DO_LOOK_AROUND && r->look == LOOK_NODES) {
        r->nodes_count = r->kvs_count;
        mu_es_look_on(s, r, LOOK_OTHERS);
    } else {
        tell_read(s, r);
    }
    return 0;
}

/* What comes before the answer to LOAD is of an earlier watch. */
static int on_events(struct mu_engine_store *s, const struct mu_frame *frame, struct mu_arena *arena,
                     struct muster_error *reterr)
{
    struct mu_fold_event event = { .type = MU_FOLD_ON_CHANGED, .scope = (enum mu_fold_scope)frame->watch };
    struct mu_fold_kv *kvs;

    if (frame->id != 0 || frame->watch >= SCOPES)
        return mu_fail(reterr, MUSTER_EPROTOCOL, "changes of a watch %" PRIu32 " that was not asked for", frame->watch);
    if (!s->watched[frame->watch])
        return 0;
    if (frame->type == MU_FRAME_STALE) {
        s->watched[frame->watch] = false;
        event.type = MU_FOLD_ON_STALE;
        mu_es_tell(s, event, NULL);
        return 0;
    }
    kvs = mu_arena_alloc(arena, (frame->changes_count + 1) * sizeof *kvs);
    if (kvs == NULL || !mu_es_has_room_for_changes(s))
        return out_of_memory(s, reterr);
    for (size_t i = 0; i < frame->changes_count; i++)
        kvs[i] = changed(&frame->changes[i]);
    event.kvs = kvs;
    event.count = frame->changes_count;
    mu_es_tell_with(s, event, NULL, arena);
    return 0;
}

/* ---- Bytes ---- */

static int take_frame(struct mu_engine_store *s, struct request *r, const struct mu_frame *frame,
                      struct mu_arena *arena, struct muster_error *reterr)
{
    if (s->state == MU_ENGINE_STORE_ENDING) { /* nothing else is waited for */
        if (frame->type == MU_FRAME_DONE && frame->id == s->end_id)
            mu_es_hang_up(s);
        return 0;
    }
    switch (frame->type) {
    case MU_FRAME_WELCOME:
        return on_welcome(s, frame, reterr);
    case MU_FRAME_DONE:
        return on_done(s, r, frame, reterr);
    case MU_FRAME_KVS:
        return on_kvs(s, r, frame, reterr);
    case MU_FRAME_EVENTS:
    case MU_FRAME_STALE:
        return on_events(s, frame, arena, reterr);
    case MU_FRAME_CHALLENGE:
        return on_challenge(s, frame, reterr);
    case MU_FRAME_HELLO:
    case MU_FRAME_ATTACH:
    case MU_FRAME_GRANT:
    case MU_FRAME_KEEP:
    case MU_FRAME_REVOKE:
    case MU_FRAME_LOAD:
    case MU_FRAME_UNWATCH:
    case MU_FRAME_RANGE:
    case MU_FRAME_TXN:
    case MU_FRAMES_COUNT:
        break;
    }
    return mu_fail(reterr, MUSTER_EPROTOCOL, "the frame %s is a client's", mu_frame_type_text(frame->type));
}

/* One whole frame. Its bytes are copied to where what is told of it can stay. */
static int read_frame(struct mu_engine_store *s, struct mu_slice bytes, struct muster_error *reterr)
{
    struct request *r = mu_es_find_sent(s, mu_get_u32(bytes.data + FRAME_ID_AT));
    struct mu_arena own = { .bytes_max = MU_ENGINE_STORE_LOAD_MAX }, *arena = r != NULL ? &r->arena : &own;
    char *copy = mu_arena_alloc(arena, bytes.len);
    struct mu_frame frame;
    int rc;

    if (copy != NULL)
        memcpy(copy, bytes.data, bytes.len);
    rc = copy != NULL ? mu_frame_read(mu_slice(copy, bytes.len), arena, &frame, reterr) : out_of_memory(s, reterr);
    if (rc == 0)
        rc = take_frame(s, r, &frame, arena, reterr);
    if (rc == MUSTER_ENOMEM && r != NULL) {
        mu_es_fail(s, r, MU_ENGINE_OK, false, reterr); /* the rest of its answer is not waited for */
        rc = 0;
    }
    mu_arena_done(&own);
    return rc;
}

/* The whole frames at the start of these bytes, until one ends the connection; how many bytes these were. */
static int read_frames(struct mu_engine_store *s, struct mu_slice bytes, size_t *ret_used, struct muster_error *reterr)
{
    int rc = 0;

    *ret_used = 0;
    while (rc == 0 && mu_es_speaks_frames(s)) {
        struct mu_slice left = mu_slice(bytes.data + *ret_used, bytes.len - *ret_used);
        size_t len = mu_frame_length(left);

        if (len > MU_FRAME_BYTES_MAX || (len > 0 && len < MU_FRAME_HEAD_BYTES))
            return mu_fail(reterr, MUSTER_EPROTOCOL, "a frame of %zu bytes", len);
        if (len == 0 || len > left.len)
            return 0;
        rc = read_frame(s, mu_slice(left.data, len), reterr);
        *ret_used += len;
    }
    return rc;
}

static int take_frames(struct mu_engine_store *s, struct mu_slice bytes, struct muster_error *reterr)
{
    size_t used = 0;
    bool rests = s->in.len > 0; /* of a frame whose beginning has come before */
    int rc = rests ? mu_buf_append(&s->in, bytes.data, bytes.len, MU_FRAME_BYTES_MAX + bytes.len) : 0;

    if (rc < 0)
        return out_of_memory(s, reterr);
    if (rests) {
        struct mu_buf in = s->in;

        s->in = (struct mu_buf){ 0 }; /* a frame may end the connection, which empties it */
        rc = read_frames(s, mu_buf_slice(&in), &used, reterr);
        mu_buf_consume(&in, used);
        s->in = in;
    } else {
        rc = read_frames(s, bytes, &used, reterr);
        if (rc == 0 && mu_es_speaks_frames(s) &&
            mu_buf_append(&s->in, bytes.data + used, bytes.len - used, MU_FRAME_BYTES_MAX + bytes.len) < 0)
            return out_of_memory(s, reterr);
    }
    if (!mu_es_speaks_frames(s))
        s->in.len = 0;
    return rc;
}

/* Refused for good, or the end of the engine, or a store to wait for. Where a node of the job hosted the engine, only a
 * PyTorch node hosts a store without one in its place: the job goes on there. A `muster store` is no member, and those
 * whose workers run lose nothing with it: they wait until it is back. */
static int on_no_engine(struct mu_engine_store *s, struct muster_error *reterr)
{
    struct muster_error none;

    (void)mu_fail(&none, MUSTER_ENOTSUP, "the store at %s has no engine: it is PyTorch's, or of an older muster",
                  s->peer);
    if (s->has_epoch && !s->hosted_by_node) {
        *reterr = none;
        return none.code;
    }
    if (!s->has_epoch || s->only || s->token.is_there) {
        s->why = none;
        mu_es_refuse_all(s);
        return 0;
    }
    s->is_another = true;
    if (!tell_met(s, mu_slice_str(""), true))
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for what the store says");
    leave_to_document(s);
    return 0;
}

/* The answer to the probe: is the key of all engines there? */
static int take_probe(struct mu_engine_store *s, struct mu_slice *bytes, struct muster_error *reterr)
{
    char answer;

    if (bytes->len == 0)
        return 0;
    answer = bytes->data[0];
    *bytes = mu_slice(bytes->data + 1, bytes->len - 1);
    if (answer == MU_CHECK_READY) {
        mu_es_greet(s);
        return 0;
    }
    if (answer != MU_CHECK_NOT_READY)
        return mu_fail(reterr, MUSTER_EPROTOCOL, "the byte %d in answer to CHECK", (int)(unsigned char)answer);
    return on_no_engine(s, reterr);
}

int mu_es_take_bytes(struct mu_engine_store *s, struct mu_slice bytes, struct muster_error *reterr)
{
    int rc = s->state == MU_ENGINE_STORE_PROBING ? take_probe(s, &bytes, reterr) : 0;

    if (rc == 0 && mu_es_speaks_frames(s))
        rc = take_frames(s, bytes, reterr);
    if (rc == MUSTER_EPROTOCOL)
        (void)mu_wrap(reterr, rc, "the store at %s sent", s->peer);
    return rc;
}
