/* The client of an engine: what it is asked for, and what it tells. See engine_store.h. */
#include "kv/engine_store_parts.h"

#include <assert.h>
#include <stdlib.h>

static const char *const prefixes[SCOPES] = { [MU_FOLD_JOB] = "job/", [MU_FOLD_NODES] = "nodes/" };

static const struct muster_error no_memory = { .code = MUSTER_ENOMEM, .text = "no memory for an answer of the store" };

/* ---- Telling ---- */

static void note_done(struct note *note)
{
    free(note->error);
    mu_arena_done(&note->arena);
    *note = (struct note){ .error = NULL };
}

static struct note *note_new(struct mu_engine_store *s)
{
    if (s->notes_end == s->notes_room) {
        s->notes_end -= s->notes_first;
        memmove(s->notes, s->notes + s->notes_first, s->notes_end * sizeof s->notes[0]);
        s->notes_first = 0;
    }
    assert(s->notes_end < s->notes_room); /* events are taken before more comes in */
    return &s->notes[s->notes_end++];
}

bool mu_es_has_room_for_changes(struct mu_engine_store *s)
{
    size_t count = s->notes_end - s->notes_first, room = s->notes_room * 2;
    struct note *more;

    if (s->notes_room - count > NOTES_RESERVE)
        return true;
    more = room <= NOTES_MAX ? realloc(s->notes, room * sizeof *more) : NULL;
    if (more == NULL)
        return false;
    s->notes = more;
    s->notes_room = room;
    return true;
}

void mu_es_tell_with(struct mu_engine_store *s, struct mu_fold_event event, const struct muster_error *error,
                     struct mu_arena *arena)
{
    struct note *note;

    if (mu_es_is_ending(s))
        return;
    note = note_new(s);
    *note = (struct note){ .event = event };
    if (error != NULL) {
        note->error = malloc(sizeof *error);
        if (note->error != NULL)
            *note->error = *error;
        note->event.error = note->error != NULL ? note->error : &no_memory;
    }
    if (arena != NULL) {
        note->arena = *arena;
        *arena = (struct mu_arena){ .bytes_max = MU_ENGINE_STORE_LOAD_MAX };
    }
}

void mu_es_tell(struct mu_engine_store *s, struct mu_fold_event event, const struct muster_error *error)
{
    mu_es_tell_with(s, event, error, NULL);
}

const struct mu_fold_event *mu_es_next_event(struct mu_engine_store *s)
{
    note_done(&s->told);
    if (s->notes_first == s->notes_end) {
        s->notes_first = s->notes_end = 0;
        return NULL;
    }
    s->told = s->notes[s->notes_first++];
    return &s->told.event;
}

/* ---- Requests ---- */

void mu_es_request_done(struct mu_engine_store *s, struct request *r)
{
    s->frames_bytes -= r->frame.len;
    mu_buf_done(&r->frame);
    mu_arena_done(&r->arena);
    mu_list_remove(&r->link);
    mu_list_push(&s->unused, &r->link);
}

void mu_es_give_time(struct mu_engine_store *s, struct request *r)
{
    r->deadline_ms = s->now_ms + s->lease_ms < r->until_ms ? s->now_ms + s->lease_ms : r->until_ms;
}

/* NULL: too many are under way. */
static struct request *request_new(struct mu_engine_store *s, const struct mu_fold_effect *effect, uint64_t until_ms)
{
    struct request *r = MU_LIST_POP(struct request, &s->unused, link);

    if (r == NULL)
        return NULL;
    *r = (struct request){ .type = effect->type,
                           .id = effect->type != MU_FOLD_DO_UNMARK ? effect->id : 0,
                           .scope = effect->scope,
                           .lease = (uint64_t)effect->lease,
                           .until_ms = until_ms,
                           .arena = { .bytes_max = MU_ENGINE_STORE_LOAD_MAX } };
    mu_es_give_time(s, r);
    mu_list_push(&s->requests, &r->link);
    return r;
}

bool mu_es_is_reading(const struct request *r)
{
    return r->type == MU_FOLD_DO_LOAD || r->type == MU_FOLD_DO_RANGE ||
           (r->type == MU_FOLD_DO_LOOK_AROUND && r->look != LOOK_MARK);
}

void mu_es_begin_anew(struct request *r)
{
    mu_arena_done(&r->arena);
    r->last = NULL;
    r->kvs_count = r->nodes_count = 0;
    r->look = r->frame.len > 0 ? LOOK_MARK : LOOK_NODES;
    r->progress = WAITING;
}

void mu_es_look_on(struct mu_engine_store *s, struct request *r, enum look look)
{
    assert(r->type == MU_FOLD_DO_LOOK_AROUND && look > r->look);
    r->look = look;
    r->progress = WAITING;
    mu_es_give_time(s, r);
}

bool mu_es_is_final(uint32_t code)
{
    return code == MU_ENGINE_INVALID || code == MU_ENGINE_DENIED || code == MU_ENGINE_PRECONDITION ||
           code == MU_ENGINE_UNAUTHENTICATED;
}

void mu_es_fail(struct mu_engine_store *s, struct request *r, uint32_t code, bool final,
                const struct muster_error *error)
{
    struct mu_fold_event event = { .type = MU_FOLD_ON_REQUEST_FAILED,
                                   .id = r->id,
                                   .final = final,
                                   .refused = code != MU_ENGINE_OK,
                                   .lease_gone = code == MU_ENGINE_NOT_FOUND };

    if (r->type == MU_FOLD_DO_LOOK_AROUND) {
        event.type = MU_FOLD_ON_CROWD;
    } else if (r->type == MU_FOLD_DO_DROP_LEASE) {
        event = (struct mu_fold_event){ .type = MU_FOLD_ON_DROPPED, .id = r->id };
        error = NULL;
    }
    if (r->id != 0)
        mu_es_tell(s, event, error);
    mu_es_request_done(s, r);
}

struct request *mu_es_find_sent(struct mu_engine_store *s, uint32_t frame_id)
{
    MU_LIST_EACH (struct request, r, &s->requests, link)
        if (r->progress == SENT && r->frame_id == frame_id)
            return r;
    return NULL;
}

/* ---- Our lease ---- */

bool mu_es_has_lease(const struct mu_engine_store *s)
{
    return s->lease.state == LEASE_TAKEN || s->lease.state == LEASE_HELD;
}

void mu_es_tell_leased(struct mu_engine_store *s)
{
    mu_es_tell(s,
               (struct mu_fold_event){ .type = MU_FOLD_ON_LEASED,
                                       .id = s->lease.take,
                                       .lease = (int64_t)s->lease.id,
                                       .sent_ms = s->lease.asked_ms },
               NULL);
}

/* What became of transactions that went to the lost connection is not known, and will not be. */
void mu_es_fail_doubtful(struct mu_engine_store *s, bool final, const struct muster_error *error)
{
    MU_LIST_EACH_LEAVING (struct request, r, &s->requests, link)
        if (r->progress == DOUBTFUL)
            mu_es_fail(s, r, MU_ENGINE_OK, final, error);
}

static void forget_lease(struct mu_engine_store *s)
{
    s->lease.state = LEASE_NONE;
    s->grant_id = s->keep_id = s->attach_id = 0;
}

void mu_es_lose_lease(struct mu_engine_store *s, bool refused, bool final, const struct muster_error *error)
{
    struct mu_fold_event event = {
        .type = MU_FOLD_ON_LEASE_LOST, .id = s->lease.take, .final = final, .refused = refused
    };

    assert(s->lease.state != LEASE_NONE);
    forget_lease(s);
    mu_es_tell(s, event, error);
    mu_es_fail_doubtful(s, final, error);
}

/* ---- Sending ---- */

bool mu_es_is_awaiting(const struct mu_engine_store *s)
{
    if (s->attach_id != 0 || s->grant_id != 0 || s->keep_id != 0)
        return true;
    MU_LIST_EACH (struct request, r, &s->requests, link)
        if (r->progress == SENT)
            return true;
    return false;
}

static uint32_t next_id(struct mu_engine_store *s)
{
    s->last_id += s->last_id == UINT32_MAX ? 2 : 1; /* 0 is for what is sent unasked */
    return s->last_id;
}

static void note_sending(struct mu_engine_store *s)
{
    s->sent_ms = s->now_ms;
    if (!mu_es_is_awaiting(s))
        s->quiet_since_ms = s->now_ms;
}

uint32_t mu_es_send_frame(struct mu_engine_store *s, struct mu_frame frame)
{
    frame.id = next_id(s);
    if (mu_frame_write(&frame, &s->out, OUT_MAX) < 0)
        return 0;
    note_sending(s);
    return frame.id;
}

static uint32_t send_made(struct mu_engine_store *s, struct request *r)
{
    uint32_t id = next_id(s);

    mu_put_u32(r->frame.data + FRAME_ID_AT, id);
    if (mu_buf_append(&s->out, r->frame.data, r->frame.len, OUT_MAX) < 0)
        return 0;
    note_sending(s);
    return id;
}

static uint64_t new_lease_id(struct mu_engine_store *s)
{
    return mu_rng_next(&s->rng) >> 1 | 1; /* the machine's are signed */
}

static uint32_t send_look(struct mu_engine_store *s, struct request *r)
{
    bool nodes = r->look == LOOK_NODES;

    if (r->look == LOOK_MARK)
        return send_made(s, r);
    return mu_es_send_frame(
        s, (struct mu_frame){ .type = MU_FRAME_RANGE,
                              .prefix = true,
                              .limit = nodes ? MU_WAITERS_RECORDS_MAX : MU_WAITERS_MARKS_MAX,
                              .key = mu_slice_str(nodes ? prefixes[MU_FOLD_NODES] : MU_ENGINE_SHOWN) });
}

static uint32_t send_request(struct mu_engine_store *s, struct request *r)
{
    switch (r->type) {
    case MU_FOLD_DO_WRITE:
        r->lease = mu_es_has_lease(s) || s->lease.state == LEASE_ASKED ? s->lease.id : 0;
        return send_made(s, r);
    case MU_FOLD_DO_RANGE:
    case MU_FOLD_DO_UNMARK:
        return send_made(s, r);
    case MU_FOLD_DO_LOAD:
        return mu_es_send_frame(s, (struct mu_frame){ .type = MU_FRAME_LOAD,
                                                      .watch = (uint32_t)r->scope,
                                                      .key = mu_slice_str(prefixes[r->scope]) });
    case MU_FOLD_DO_LOOK_AROUND:
        return send_look(s, r);
    case MU_FOLD_DO_GRANT_JOB:
        r->lease = new_lease_id(s); /* one that was granted before, unheard, ends by itself */
        return mu_es_send_frame(
            s, (struct mu_frame){ .type = MU_FRAME_GRANT, .lease = r->lease, .ttl_ms = (uint32_t)s->job_lease_ms });
    case MU_FOLD_DO_KEEP_JOB:
        return mu_es_send_frame(s, (struct mu_frame){ .type = MU_FRAME_KEEP, .lease = r->lease });
    case MU_FOLD_DO_DROP_LEASE:
        return mu_es_send_frame(s, (struct mu_frame){ .type = MU_FRAME_REVOKE, .lease = r->lease });
    case MU_FOLD_DO_UNWATCH:
    case MU_FOLD_DO_TAKE_LEASE:
    case MU_FOLD_DO_TELL:
    case MU_FOLD_DO_COMPLETED:
    case MU_FOLD_DO_LEADER:
        break;
    }
    assert(false); /* these are no requests that are answered */
    return 0;
}

static bool send_grant(struct mu_engine_store *s)
{
    bool may_be_another = s->has_epoch && s->state == MU_ENGINE_STORE_GREETING;

    s->lease.id = new_lease_id(s);
    s->lease.asked_ms = s->now_ms;
    s->grant_id = mu_es_send_frame(s, (struct mu_frame){ .type = MU_FRAME_GRANT,
                                                         .lease = s->lease.id,
                                                         .ttl_ms = (uint32_t)s->lease_ms,
                                                         .bound = true,
                                                         .secret = mu_slice(s->secret, sizeof s->secret) });
    if (s->grant_id == 0)
        return false;
    s->lease.state = s->cautious || s->in_trouble || may_be_another ? LEASE_ASKED : LEASE_TAKEN;
    if (s->lease.state == LEASE_TAKEN)
        mu_es_tell_leased(s);
    return true;
}

bool mu_es_may_send(const struct mu_engine_store *s)
{
    return s->state == MU_ENGINE_STORE_READY || (s->state == MU_ENGINE_STORE_GREETING && s->attach_id == 0);
}

uint64_t mu_es_keep_at_ms(const struct mu_engine_store *s)
{
    uint64_t quiet_ms = s->sent_ms + mu_engine_keep_ms(s->lease_ms), renew_ms = s->kept_ms + s->renew_ms;

    if (s->state != MU_ENGINE_STORE_READY || s->keep_id != 0)
        return UINT64_MAX;
    return s->renew_ms > 0 && renew_ms < quiet_ms ? renew_ms : quiet_ms;
}

/* ATTACH tells what became of the last transaction: that is to be a write, and not a mark, until it is answered. */
static bool has_to_wait(const struct mu_engine_store *s, const struct request *r)
{
    if (r->type != MU_FOLD_DO_UNMARK && (r->type != MU_FOLD_DO_LOOK_AROUND || r->look != LOOK_MARK))
        return false;
    MU_LIST_EACH (const struct request, other, &s->requests, link)
        if (other->type == MU_FOLD_DO_WRITE && other->progress != WAITING)
            return true;
    return false;
}

bool mu_es_send_due(struct mu_engine_store *s)
{
    if (s->lease.state == LEASE_WANTED && !send_grant(s))
        return false;
    MU_LIST_EACH (struct request, r, &s->requests, link) {
        if (r->progress != WAITING || has_to_wait(s, r))
            continue;
        r->frame_id = send_request(s, r);
        if (r->frame_id == 0)
            return false;
        r->progress = SENT;
    }
    if (s->now_ms < mu_es_keep_at_ms(s))
        return true;
    s->keep_id =
        mu_es_send_frame(s, (struct mu_frame){ .type = MU_FRAME_KEEP, .lease = mu_es_has_lease(s) ? s->lease.id : 0 });
    s->kept_ms = s->now_ms;
    return s->keep_id != 0;
}

/* ---- From outside: requests ---- */

static struct request *find_load(struct mu_engine_store *s, enum mu_fold_scope scope)
{
    MU_LIST_EACH (struct request, r, &s->requests, link)
        if (r->type == MU_FOLD_DO_LOAD && r->scope == scope)
            return r;
    return NULL;
}

/* Ends the watch, or the load that would start one. */
static void unwatch(struct mu_engine_store *s, enum mu_fold_scope scope)
{
    struct request *load = find_load(s, scope);

    s->watched[scope] = false;
    if (load != NULL)
        mu_es_request_done(s, load);
}

static void copy_ops(const struct mu_fold_op *ops, size_t count, struct mu_engine_op *to)
{
    static const enum mu_engine_op_kind kinds[] = { [MU_FOLD_PUT] = MU_ENGINE_PUT,
                                                    [MU_FOLD_DELETE_PREFIX] = MU_ENGINE_DELETE_PREFIX,
                                                    [MU_FOLD_DOCUMENT] = MU_ENGINE_DOCUMENT,
                                                    [MU_FOLD_YIELD] = MU_ENGINE_YIELD };

    for (size_t i = 0; i < count; i++)
        to[i] = (struct mu_engine_op){ kinds[ops[i].kind], ops[i].key, ops[i].value, (uint64_t)ops[i].lease };
}

static int make_txn(struct request *r, const struct mu_fold_write *write)
{
    struct mu_engine_compare compares[MU_FOLD_COMPARES_MAX];
    struct mu_engine_op *ops = calloc(write->ops_count + write->else_count + 1, sizeof *ops);
    struct mu_frame frame = { .type = MU_FRAME_TXN };
    int rc;

    if (ops == NULL)
        return MUSTER_ENOMEM;
    frame.txn = (struct mu_engine_txn){ .compares = compares,
                                        .compares_count = write->compares_count,
                                        .then = ops,
                                        .then_count = write->ops_count,
                                        .otherwise = ops + write->ops_count,
                                        .otherwise_count = write->else_count };
    for (unsigned i = 0; i < write->compares_count; i++)
        compares[i] =
            (struct mu_engine_compare){ write->compares[i].kind == MU_FOLD_MOD ? MU_ENGINE_IF_MOD : MU_ENGINE_IF_ABSENT,
                                        write->compares[i].key, write->compares[i].revision };
    copy_ops(write->ops, write->ops_count, ops);
    copy_ops(write->else_ops, write->else_count, ops + write->ops_count);
    r->repeatable = write->repeatable;
    rc = mu_frame_write(&frame, &r->frame, MU_FRAME_BYTES_MAX);
    free(ops);
    return rc;
}

static int make_range(struct request *r, const struct mu_fold_effect *effect)
{
    struct mu_frame frame = { .type = MU_FRAME_RANGE, .prefix = effect->prefix, .key = effect->key };

    return mu_frame_write(&frame, &r->frame, MU_FRAME_BYTES_MAX);
}

static int make_mark(struct request *r, const struct mu_fold_effect *effect)
{
    const struct mu_fold_op put = { MU_FOLD_PUT, mu_slice_str(MU_ENGINE_SHOWN), effect->value, effect->lease };
    const struct mu_fold_write write = { .compares = { { MU_FOLD_MOD, mu_slice_str("job/doc"), effect->doc_mod } },
                                         .compares_count = 1,
                                         .ops = &put,
                                         .ops_count = 1 };

    return effect->value.len > 0 ? make_txn(r, &write) : 0;
}

static int make_unmark(struct request *r)
{
    const struct mu_fold_op delete = { .kind = MU_FOLD_DELETE_PREFIX, .key = mu_slice_str(MU_ENGINE_SHOWN) };

    return make_txn(r, &(struct mu_fold_write){ .ops = &delete, .ops_count = 1 });
}

static void make_frame(struct mu_engine_store *s, struct request *r, const struct mu_fold_effect *effect)
{
    int rc = effect->type == MU_FOLD_DO_WRITE         ? make_txn(r, effect->write)
             : effect->type == MU_FOLD_DO_RANGE       ? make_range(r, effect)
             : effect->type == MU_FOLD_DO_LOOK_AROUND ? make_mark(r, effect)
             : effect->type == MU_FOLD_DO_UNMARK      ? make_unmark(r)
                                                      : 0;
    struct muster_error error;

    mu_es_begin_anew(r);
    s->frames_bytes += r->frame.len;
    if (rc == 0 && s->frames_bytes <= MU_ENGINE_STORE_WRITES_MAX)
        return;
    if (rc == MUSTER_ENOMEM)
        (void)mu_fail(&error, rc, "the store at %s: no memory for a request", s->peer);
    else
        (void)mu_fail(&error, MUSTER_ELIMIT, "the store at %s: a request of more bytes than it takes", s->peer);
    mu_es_fail(s, r, MU_ENGINE_OK, rc == MUSTER_ELIMIT, &error);
}

static void take_lease(struct mu_engine_store *s, const struct mu_fold_effect *effect, uint64_t until_ms)
{
    assert(s->lease.state == LEASE_NONE);
    s->lease = (struct lease){ .state = LEASE_WANTED, .take = effect->id, .until_ms = s->now_ms + s->lease_ms };
    if (until_ms < s->lease.until_ms)
        s->lease.until_ms = until_ms;
}

/* What the engine hears from us renews all leases of our connection. One that is given up ends by REVOKE, which goes
 * behind its GRANT or ATTACH at once if there is a connection, or else by itself, without one. False: by itself. */
static bool revoke(struct mu_engine_store *s, uint64_t id)
{
    struct mu_fold_effect drop = { .type = MU_FOLD_DO_DROP_LEASE, .id = id, .lease = (int64_t)s->lease.id };

    if (s->lease.state == LEASE_WANTED)
        return false;
    if (request_new(s, &drop, s->now_ms + MU_ENGINE_STORE_REVOKE_MS) != NULL)
        return true;
    if (mu_es_speaks_frames(s)) {
        (void)mu_fail(&s->why, MUSTER_ELIMIT, "the store at %s: too many requests are under way", s->peer);
        mu_es_hang_up(s);
    }
    return false;
}

static void drop_lease(struct mu_engine_store *s, const struct mu_fold_effect *effect)
{
    bool is_revoked = false;
    struct muster_error error;

    if (s->lease.state != LEASE_NONE && s->lease.take == effect->lease_take) {
        is_revoked = revoke(s, effect->id);
        forget_lease(s);
        (void)mu_fail(&error, MUSTER_ECANCELED, "the store at %s: the lease of a transaction was given up", s->peer);
        mu_es_fail_doubtful(s, false, &error);
    }
    if (!is_revoked && effect->id != 0)
        mu_es_tell(s, (struct mu_fold_event){ .type = MU_FOLD_ON_DROPPED, .id = effect->id }, NULL);
}

void mu_es_ask(struct mu_engine_store *s, const struct mu_fold_effect *effect, uint64_t until_ms)
{
    struct request *r;

    switch (effect->type) {
    case MU_FOLD_DO_UNWATCH:
        unwatch(s, effect->scope);
        if (mu_es_may_send(s)) /* without memory the engine goes on, unheard */
            (void)mu_es_send_frame(s, (struct mu_frame){ .type = MU_FRAME_UNWATCH, .watch = (uint32_t)effect->scope });
        return;
    case MU_FOLD_DO_TAKE_LEASE:
        take_lease(s, effect, until_ms);
        return;
    case MU_FOLD_DO_DROP_LEASE:
        drop_lease(s, effect);
        return;
    case MU_FOLD_DO_UNMARK:
        if (!mu_es_has_lease(s) || mu_list_empty(&s->unused))
            return; /* the mark goes with its lease */
        break;
    case MU_FOLD_DO_LOAD:
        unwatch(s, effect->scope);
        break;
    case MU_FOLD_DO_LOOK_AROUND:
    case MU_FOLD_DO_RANGE:
    case MU_FOLD_DO_GRANT_JOB:
    case MU_FOLD_DO_KEEP_JOB:
    case MU_FOLD_DO_WRITE:
        break;
    case MU_FOLD_DO_TELL:
    case MU_FOLD_DO_COMPLETED:
    case MU_FOLD_DO_LEADER:
        assert(false); /* these are for the machine's owner */
    }
    r = request_new(s, effect, until_ms);
    assert(r != NULL); /* no machine has more requests under way */
    make_frame(s, r, effect);
}

/* ---- Time and end ---- */

struct muster_error mu_es_timed_out(const struct mu_engine_store *s)
{
    struct muster_error error = s->why;

    if (error.code == 0)
        (void)mu_fail(&error, MUSTER_ETIMEOUT, "the store at %s does not answer", s->peer);
    return error;
}

void mu_es_expire(struct mu_engine_store *s)
{
    struct muster_error error;

    MU_LIST_EACH_LEAVING (struct request, r, &s->requests, link) {
        if (s->now_ms < r->deadline_ms)
            continue;
        error = mu_es_timed_out(s);
        mu_es_fail(s, r, MU_ENGINE_OK, false, &error);
    }
    if ((s->lease.state == LEASE_WANTED || s->lease.state == LEASE_ASKED) && s->now_ms >= s->lease.until_ms) {
        error = mu_es_timed_out(s);
        (void)revoke(s, 0);
        mu_es_lose_lease(s, false, false, &error);
    }
}

void mu_es_forget_all(struct mu_engine_store *s)
{
    MU_LIST_EACH_LEAVING (struct request, r, &s->requests, link)
        mu_es_request_done(s, r);
    for (; s->notes_first < s->notes_end; s->notes_first++)
        note_done(&s->notes[s->notes_first]);
}
