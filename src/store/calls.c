/* The client side of one connection.
 *
 * Happy path: submit() puts a call in `waiting`; pump() turns its next request into bytes and, if an answer will come,
 * a slot at the end of `slots`; read() matches answers to slots in order and finishes the call or sends its next
 * request. Failures: a call that times out leaves its slot behind, without a call, to take the answer. A WAIT that was
 * sent is cancelled with CANCEL_WAIT, and "00 01" or "01" is the answer. lose() finishes every call with one cause. */
#include "store/calls.h"

#include "base/error.h"
#include "base/texts.h"
#include "base/words.h"
#include "store/greeting.h"
#include "store/requests.h"
#include "store/store.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    FOUND_ROOM_MIN = 16,
    KEY_SHOWN_BYTES = 64, /* of a key, in an error's text */
    DESCRIPTION_BYTES = 256,
};

#define VALUE_BYTES_MAX (UINT64_C(1) << 30)  /* of one value that a server sends */
#define VALUES_MAX (UINT64_C(1) << 26)       /* that a server sends in one answer */
#define ANSWER_BYTES_MAX (UINT64_C(1) << 30) /* of all of them together */

struct mu_slot {
    struct mu_list link;
    struct mu_call *call; /* NULL: it ran out of time; drop the answer */
    enum mu_answer_shape shape;
    uint64_t left;  /* VALUES */
    uint64_t taken; /* VALUES: bytes that they take so far */
    bool canceling;
};

MU_DEFINE_TEXTS(mu_call_name, enum mu_call_kind, MU_CALL_KINDS)

void mu_calls_init(struct mu_calls *calls, bool raw_keys)
{
    *calls = (struct mu_calls){ .raw_keys = raw_keys };
    mu_list_init(&calls->waiting);
    mu_list_init(&calls->sending);
    mu_list_init(&calls->slots);
    mu_list_init(&calls->finished);
}

static void free_slot(struct mu_slot *slot)
{
    mu_list_remove(&slot->link);
    free(slot);
}

static void drop_slots(struct mu_calls *calls)
{
    struct mu_slot *slot;

    calls->parked = NULL;
    while ((slot = MU_LIST_FIRST(struct mu_slot, &calls->slots, link)) != NULL)
        free_slot(slot);
}

void mu_calls_done(struct mu_calls *calls)
{
    assert(mu_list_empty(&calls->waiting) && mu_list_empty(&calls->sending) && mu_list_empty(&calls->finished));
    drop_slots(calls);
    mu_buf_done(&calls->out);
    mu_buf_done(&calls->in);
}

/* ---- Finishing ---- */

static void finish(struct mu_calls *calls, struct mu_call *call)
{
    mu_list_remove(&call->link);
    mu_list_push(&calls->finished, &call->link);
}

/* "get 'k' at 192.0.2.1:29500", "wait 'a' and 2 more". Keys are cut. */
static void describe(const struct mu_calls *calls, const struct mu_call *call, char text[static DESCRIPTION_BYTES])
{
    const struct muster_slice *key = call->count > 0 ? &call->keys[0] : &call->key;
    char shown[KEY_SHOWN_BYTES + sizeof "..."], more[32] = "";
    const char *at = calls->peer[0] != '\0' ? " at " : "";

    if (call->count > 1)
        (void)snprintf(more, sizeof more, " and %zu more", call->count - 1);
    if (key->len > 0)
        (void)snprintf(text, DESCRIPTION_BYTES, "%s '%s'%s%s%s", mu_call_name(call->kind),
                       mu_words_plain(mu_slice(key->data, key->len), shown, sizeof shown), more, at, calls->peer);
    else
        (void)snprintf(text, DESCRIPTION_BYTES, "%s%s%s", mu_call_name(call->kind), at, calls->peer);
}

/* call->error has code and cause; the description of the call is put in front, unless there was no connection to make
 * it on. */
static void finish_failed(struct mu_calls *calls, struct mu_call *call)
{
    char what[DESCRIPTION_BYTES];

    describe(calls, call, what);
    if (calls->lost.code != MUSTER_ECONNECT)
        (void)mu_wrap(&call->error, call->error.code, "%s", what);
    call->rc = call->error.code;
    muster_bytes_done(&call->bytes);
    muster_values_done(&call->found);
    finish(calls, call);
}

static void fail(struct mu_calls *calls, struct mu_call *call, int code, const char *why)
{
    (void)mu_fail(&call->error, code, "%s", why);
    finish_failed(calls, call);
}

struct mu_call *mu_calls_pop_finished(struct mu_calls *calls)
{
    return MU_LIST_POP(struct mu_call, &calls->finished, link);
}

static void succeed(struct mu_calls *calls, struct mu_call *call);

/* ---- Requests ---- */

/* Which feature the call needs of a V server; 0: none. */
static unsigned feature_of(enum mu_call_kind kind)
{
    switch (kind) {
    case MU_CALL_PING:
        return MU_FEATURE_PING;
    case MU_CALL_QUEUE_PUSH:
    case MU_CALL_QUEUE_POP:
    case MU_CALL_QUEUE_LEN:
        return MU_FEATURE_QUEUES;
    case MU_CALL_LIST_KEYS:
        return MU_FEATURE_LIST_KEYS;
    default:
        return 0;
    }
}

enum can { CAN, CANNOT, ASK };

static enum can can_do(const struct mu_calls *calls, const struct mu_call *call)
{
    unsigned feature = feature_of(call->kind);

    if (call->kind == MU_CALL_APPEND)
        return mu_op_code(MU_OP_APPEND, calls->dialect) >= 0 ? CAN : CANNOT;
    if (call->kind == MU_CALL_BARRIER)
        return calls->dialect == MU_DIALECT_V ? CAN : CANNOT; /* no probe is harmless: the caller has to know */
    if (feature == 0)
        return CAN;
    if (calls->dialect != MU_DIALECT_V)
        return CANNOT;
    if (!(calls->features_known & feature))
        return ASK;
    return calls->features_had & feature ? CAN : CANNOT;
}

static struct mu_slot *new_slot(struct mu_calls *calls, struct mu_call *call, enum mu_answer_shape shape)
{
    struct mu_slot *slot = calloc(1, sizeof *slot);

    if (slot == NULL)
        return NULL;
    slot->call = call;
    slot->shape = shape;
    slot->left = shape == MU_ANSWER_VALUES ? call->count : 0;
    mu_list_push(&calls->slots, &slot->link);
    if (shape == MU_ANSWER_WAIT)
        calls->parked = slot;
    return slot;
}

/* Sends the call's next request. The call leaves `waiting`. */
static void send_step(struct mu_calls *calls, struct mu_call *call)
{
    size_t before = calls->out.len;
    enum mu_answer_shape shape;
    int rc = mu_request_put(calls, call, &shape);

    mu_list_remove(&call->link);
    if (rc == 0 && shape != MU_ANSWER_NONE && new_slot(calls, call, shape) == NULL)
        rc = MUSTER_ENOMEM;
    if (rc < 0) {
        calls->out.len = before;
        fail(calls, call, rc, rc == MUSTER_ELIMIT ? "more than 1 GiB would wait to be sent" : muster_error_text(rc));
        return;
    }
    calls->queued += calls->out.len - before;
    call->sent_at = calls->queued;
    if (shape == MU_ANSWER_NONE && call->sent_at <= calls->written)
        succeed(calls, call); /* a multi_set of no keys: there was nothing to send */
    else if (shape == MU_ANSWER_NONE)
        mu_list_push(&calls->sending, &call->link);
}

/* Sends as much as may be sent now. */
static void pump(struct mu_calls *calls)
{
    struct mu_call *call;

    assert(!calls->open || calls->lost.code == 0);
    assert(calls->parked == NULL || !mu_list_empty(&calls->slots));
    calls->probe = 0;
    while (calls->open && calls->parked == NULL &&
           (call = MU_LIST_FIRST(struct mu_call, &calls->waiting, link)) != NULL) {
        switch (can_do(calls, call)) {
        case CANNOT:
            (void)mu_fail(&call->error, MUSTER_ENOTSUP, "the server (dialect %s) does not have it",
                          mu_dialect_name(calls->dialect));
            finish_failed(calls, call);
            break;
        case ASK:
            calls->probe = feature_of(call->kind);
            return;
        case CAN:
            /* A 1.13 server's WAIT can only be given up with its connection, so it has that to itself. */
            if (calls->dialect == MU_DIALECT_L0 && !mu_list_empty(&calls->slots))
                return;
            send_step(calls, call);
            break;
        }
    }
}

/* ---- Answers ---- */

static int keep_bytes(struct muster_bytes *ret_bytes, struct mu_slice bytes)
{
    *ret_bytes = (struct muster_bytes){ .data = mu_slice_copy(bytes), .len = bytes.len };
    return ret_bytes->data == NULL ? MUSTER_ENOMEM : 0;
}

static int keep_found(struct mu_call *call, struct mu_slice bytes)
{
    int rc;

    if (call->found.count == call->found_room) {
        size_t room = call->found_room < FOUND_ROOM_MIN ? FOUND_ROOM_MIN : 2 * call->found_room;
        struct muster_bytes *items = realloc(call->found.items, room * sizeof *items);

        if (items == NULL)
            return MUSTER_ENOMEM;
        call->found.items = items;
        call->found_room = room;
    }
    rc = keep_bytes(&call->found.items[call->found.count], bytes);
    if (rc == 0)
        call->found.count++;
    return rc;
}

static void protocol_error(struct mu_calls *calls, const char *what)
{
    struct muster_error error;

    (void)mu_fail(&error, MUSTER_EPROTOCOL, "the server's answer makes no sense: %s", what);
    mu_calls_lose(calls, &error);
}

/* What was found for the first slot. */
enum progress {
    PROGRESS_MORE, /* the answer is not whole yet */
    PROGRESS_PART, /* something was taken, the slot stays */
    PROGRESS_DONE, /* the answer is whole */
    PROGRESS_LOST, /* nonsense came, and every call has failed */
};

/* Reads one string at *at. */
static enum progress read_bytes(struct mu_calls *calls, struct mu_slice in, size_t *at, struct mu_slice *ret_bytes)
{
    uint64_t len;

    if (in.len - *at < 8)
        return PROGRESS_MORE;
    len = mu_get_u64(in.data + *at);
    if (len > VALUE_BYTES_MAX) {
        protocol_error(calls, "a value of more than 1 GiB");
        return PROGRESS_LOST;
    }
    if (in.len - *at - 8 < len)
        return PROGRESS_MORE;
    *ret_bytes = mu_slice(in.data + *at + 8, (size_t)len);
    *at += 8 + (size_t)len;
    return PROGRESS_DONE;
}

static void fail_memory(struct mu_calls *calls, struct mu_slot *slot)
{
    fail(calls, slot->call, MUSTER_ENOMEM, "no memory for the answer");
    slot->call = NULL;
}

static enum progress answer_wait(struct mu_calls *calls, struct mu_slot *slot, unsigned byte)
{
    if (byte == MU_STOP_WAITING && slot->canceling)
        return PROGRESS_PART; /* it was woken just before; the answer to CANCEL_WAIT follows */
    if (byte != (slot->canceling ? MU_WAIT_CANCELED : MU_STOP_WAITING)) {
        protocol_error(calls, "the answer to a WAIT is neither 0 nor 1");
        return PROGRESS_LOST;
    }
    return PROGRESS_DONE;
}

static enum progress answer_string(struct mu_calls *calls, struct mu_slot *slot, struct mu_slice in, size_t *at)
{
    struct mu_slice bytes;
    enum progress progress = read_bytes(calls, in, at, &bytes);

    if (progress != PROGRESS_DONE || slot->call == NULL)
        return progress;
    if (slot->shape == MU_ANSWER_VALUES || slot->shape == MU_ANSWER_KEYS) {
        if (keep_found(slot->call, bytes) < 0)
            fail_memory(calls, slot);
    } else if (keep_bytes(&slot->call->bytes, bytes) < 0) {
        fail_memory(calls, slot);
    }
    return PROGRESS_DONE;
}

static enum progress answer_values(struct mu_calls *calls, struct mu_slot *slot, struct mu_slice in, size_t *at)
{
    while (slot->left > 0) {
        size_t before = *at;
        enum progress progress = answer_string(calls, slot, in, at);

        if (progress != PROGRESS_DONE)
            return progress;
        slot->left--;
        slot->taken += *at - before + sizeof(struct muster_bytes);
        if (slot->taken > ANSWER_BYTES_MAX) {
            protocol_error(calls, "values of more than 1 GiB together");
            return PROGRESS_LOST;
        }
    }
    return PROGRESS_DONE;
}

/* The number in front of a list of keys, or of a queue's item; what follows it is read as strings. */
static enum progress answer_counted(struct mu_calls *calls, struct mu_slot *slot, struct mu_slice in, size_t *at)
{
    uint64_t number;

    if (in.len - *at < 8)
        return PROGRESS_MORE;
    number = mu_get_u64(in.data + *at);
    if (number > (slot->shape == MU_ANSWER_KEYS ? VALUES_MAX : (uint64_t)INT64_MAX)) {
        protocol_error(calls, "an impossible count");
        return PROGRESS_LOST;
    }
    *at += 8;
    if (slot->shape == MU_ANSWER_KEYS) {
        slot->shape = MU_ANSWER_VALUES;
        slot->left = number;
        return PROGRESS_PART;
    }
    if (slot->call != NULL)
        slot->call->result = (int64_t)number;
    if (number == 0)
        return PROGRESS_DONE;
    slot->shape = MU_ANSWER_BYTES;
    return PROGRESS_PART;
}

static enum progress answer_number(struct mu_slot *slot, struct mu_slice in, size_t *at, size_t bytes)
{
    uint64_t number;

    if (in.len - *at < bytes)
        return PROGRESS_MORE;
    number = bytes == 1   ? (unsigned char)in.data[*at]
             : bytes == 4 ? mu_get_u32(in.data + *at)
                          : mu_get_u64(in.data + *at);
    *at += bytes;
    if (slot->call != NULL)
        slot->call->result = (int64_t)number;
    return PROGRESS_DONE;
}

static enum progress answer(struct mu_calls *calls, struct mu_slot *slot, struct mu_slice in, size_t *at)
{
    switch (slot->shape) {
    case MU_ANSWER_WAIT:
        if (in.len == *at)
            return PROGRESS_MORE;
        return answer_wait(calls, slot, (unsigned char)in.data[(*at)++]);
    case MU_ANSWER_READY:
        return answer_number(slot, in, at, 1);
    case MU_ANSWER_WORD:
        return answer_number(slot, in, at, 4);
    case MU_ANSWER_NUMBER:
        return answer_number(slot, in, at, 8);
    case MU_ANSWER_BYTES:
        return answer_string(calls, slot, in, at);
    case MU_ANSWER_VALUES:
        return answer_values(calls, slot, in, at);
    case MU_ANSWER_POPPED:
    case MU_ANSWER_KEYS:
        return answer_counted(calls, slot, in, at);
    case MU_ANSWER_NONE:
        break;
    }
    protocol_error(calls, "an answer where none was expected");
    return PROGRESS_LOST;
}

/* Does the call need another request, now that this one is answered? */
static bool goes_on(const struct mu_call *call)
{
    switch (call->kind) {
    case MU_CALL_GET:
    case MU_CALL_QUEUE_POP:
        return call->step == 0;
    case MU_CALL_MULTI_GET:
        return call->step == 0 && call->count > 0; /* of no keys there is nothing to be answered */
    default:
        return false;
    }
}

static void succeed(struct mu_calls *calls, struct mu_call *call)
{
    switch (call->kind) {
    case MU_CALL_CHECK:
        call->result = call->result == MU_CHECK_READY;
        break;
    case MU_CALL_DELETE_KEY:
        call->result = call->result != 0;
        break;
    case MU_CALL_QUEUE_POP:
        if (call->result == 0) {
            fail(calls, call, MUSTER_EEMPTY, "the queue is empty");
            return;
        }
        break;
    case MU_CALL_LIST_KEYS:
        if (!calls->raw_keys) /* keys without the "/" that clients put in front are not of clients (`init/`) */
            mu_values_strip(&call->found, mu_slice_str("/"));
        break;
    case MU_CALL_PING:
        if (call->result != (int64_t)MU_MAGIC) {
            fail(calls, call, MUSTER_EPROTOCOL, "the answer is not the number that was sent");
            return;
        }
        break;
    default:
        break;
    }
    call->rc = 0;
    finish(calls, call);
}

static void answered(struct mu_calls *calls, struct mu_slot *slot)
{
    struct mu_call *call = slot->call;

    if (calls->parked == slot)
        calls->parked = NULL;
    free_slot(slot);
    if (call == NULL)
        return;
    if (goes_on(call)) {
        call->step++;
        mu_list_push_front(&calls->waiting, &call->link); /* it was first */
    } else {
        succeed(calls, call);
    }
}

static bool read_answers(struct mu_calls *calls, struct mu_slice in, size_t *ret_used)
{
    *ret_used = 0;
    while (*ret_used < in.len || !mu_list_empty(&calls->slots)) {
        struct mu_slot *slot = MU_LIST_FIRST(struct mu_slot, &calls->slots, link);
        enum progress progress;

        if (slot == NULL) {
            protocol_error(calls, "bytes that answer no request");
            return false;
        }
        progress = answer(calls, slot, in, ret_used);
        if (progress == PROGRESS_LOST)
            return false;
        if (progress == PROGRESS_DONE)
            answered(calls, slot);
        if (progress == PROGRESS_MORE)
            return true;
    }
    return true;
}

void mu_calls_read(struct mu_calls *calls, struct mu_slice bytes)
{
    struct muster_error error;
    struct mu_slice in = bytes;
    size_t used;
    int rc = 0;

    if (calls->lost.code != 0)
        return;
    if (calls->in.len > 0) {
        rc = mu_buf_append(&calls->in, bytes.data, bytes.len, SIZE_MAX); /* one answer's claim is checked in time */
        in = mu_buf_slice(&calls->in);
    }
    if (rc == 0 && !read_answers(calls, in, &used))
        return;
    if (rc == 0 && calls->in.len > 0)
        mu_buf_consume(&calls->in, used);
    else if (rc == 0 && used < bytes.len)
        rc = mu_buf_append(&calls->in, bytes.data + used, bytes.len - used, SIZE_MAX);
    if (rc < 0) {
        (void)mu_fail(&error, rc, "no memory for an answer of the server");
        mu_calls_lose(calls, &error);
        return;
    }
    if (calls->in.len == 0)
        mu_buf_done(&calls->in);
    pump(calls);
}

/* ---- Other events ---- */

static uint64_t deadline_of(const struct mu_call *call, uint64_t timeout_ms)
{
    return timeout_ms > UINT64_MAX - 1 - call->start_ms ? UINT64_MAX - 1 : call->start_ms + timeout_ms;
}

void mu_calls_submit(struct mu_calls *calls, struct mu_call *call, uint64_t timeout_ms, uint64_t now_ms)
{
    call->rc = 0;
    call->result = 0;
    call->error = (struct muster_error){ 0 };
    call->bytes = (struct muster_bytes){ 0 };
    call->found = (struct muster_values){ 0 };
    call->found_room = 0;
    call->step = call->kind == MU_CALL_QUEUE_POP && !call->block ? 1 : 0;
    call->start_ms = now_ms;
    call->deadline_ms = deadline_of(call, timeout_ms);
    mu_list_init(&call->link);
    if (calls->lost.code != 0) {
        call->error = calls->lost;
        finish_failed(calls, call);
        return;
    }
    mu_list_push(&calls->waiting, &call->link);
    pump(calls);
}

void mu_calls_name_peer(struct mu_calls *calls, const char *peer)
{
    (void)snprintf(calls->peer, sizeof calls->peer, "%s", peer);
}

void mu_calls_opened(struct mu_calls *calls, enum mu_dialect dialect)
{
    calls->dialect = dialect;
    calls->open = true;
    calls->renew = false;
    calls->written = calls->queued = 0;
    pump(calls);
}

void mu_calls_wrote(struct mu_calls *calls, size_t bytes)
{
    struct mu_call *call;

    calls->written += bytes;
    while ((call = MU_LIST_FIRST(struct mu_call, &calls->sending, link)) != NULL) {
        if (call->sent_at > calls->written)
            break;
        succeed(calls, call);
    }
}

void mu_calls_probed(struct mu_calls *calls, unsigned feature, bool had)
{
    calls->features_known |= feature;
    if (had)
        calls->features_had |= feature;
    pump(calls);
}

void mu_calls_probe_failed(struct mu_calls *calls, unsigned feature, const char *why)
{
    MU_LIST_EACH_LEAVING (struct mu_call, call, &calls->waiting, link) {
        if (feature_of(call->kind) != feature)
            continue;
        (void)mu_fail(&call->error, MUSTER_ECONNECT, "could not find out whether the server has it: %s", why);
        finish_failed(calls, call);
    }
    pump(calls);
}

static void time_out(struct mu_calls *calls, struct mu_call *call, const char *state)
{
    (void)mu_fail(&call->error, MUSTER_ETIMEOUT, "%s after %" PRIu64 " ms", state, call->deadline_ms - call->start_ms);
    finish_failed(calls, call);
}

static void time_out_list(struct mu_calls *calls, struct mu_list *list, uint64_t now_ms, const char *state)
{
    MU_LIST_EACH_LEAVING (struct mu_call, call, list, link) {
        if (call->deadline_ms <= now_ms)
            time_out(calls, call, state);
    }
}

static void lose_list(struct mu_calls *calls, struct mu_list *list, const struct muster_error *why)
{
    struct mu_call *call;

    while ((call = MU_LIST_FIRST(struct mu_call, list, link)) != NULL) {
        call->error = *why;
        finish_failed(calls, call);
    }
}

/* Cancels a pending WAIT; where the server cannot do that, the connection is replaced. */
static void cancel_parked(struct mu_calls *calls)
{
    struct muster_error error;
    size_t before = calls->out.len;

    if (calls->dialect == MU_DIALECT_L0) {
        (void)mu_fail(&error, MUSTER_ELOST, "the connection was replaced before this was sent");
        lose_list(calls, &calls->sending, &error);
        calls->open = false;
        calls->renew = true;
        calls->out.len = 0;
        mu_buf_done(&calls->in);
        drop_slots(calls);
        return;
    }
    if (mu_request_put_cancel(calls) < 0) {
        (void)mu_fail(&error, MUSTER_ENOMEM, "no memory to cancel a wait");
        mu_calls_lose(calls, &error);
        return;
    }
    calls->queued += calls->out.len - before;
    calls->parked->canceling = true;
}

void mu_calls_pass_time(struct mu_calls *calls, uint64_t now_ms)
{
    time_out_list(calls, &calls->waiting, now_ms,
                  calls->open ? "had to wait for other calls and timed out"
                              : "timed out before there was a connection");
    time_out_list(calls, &calls->sending, now_ms, "was not sent and timed out");
    MU_LIST_EACH_LEAVING (struct mu_slot, slot, &calls->slots, link) {
        if (slot->call == NULL || slot->call->deadline_ms > now_ms)
            continue;
        time_out(calls, slot->call, slot->shape == MU_ANSWER_WAIT ? "timed out" : "got no answer and timed out");
        slot->call = NULL;
        if (slot->shape == MU_ANSWER_WAIT) {
            cancel_parked(calls);
            break; /* a WAIT is always the last one */
        }
    }
    pump(calls);
}

void mu_call_extend(struct mu_call *call, uint64_t timeout_ms)
{
    uint64_t deadline_ms = deadline_of(call, timeout_ms);

    call->deadline_ms = deadline_ms > call->deadline_ms ? deadline_ms : call->deadline_ms;
}

void mu_calls_expire(struct mu_calls *calls, struct mu_call *call, uint64_t now_ms)
{
    call->deadline_ms = now_ms;
    mu_calls_pass_time(calls, now_ms);
}

void mu_calls_lose(struct mu_calls *calls, const struct muster_error *why)
{
    struct mu_slot *slot;

    if (calls->lost.code != 0)
        return;
    calls->lost = *why;
    calls->open = false;
    calls->renew = false;
    calls->probe = 0;
    while ((slot = MU_LIST_FIRST(struct mu_slot, &calls->slots, link)) != NULL) {
        if (slot->call != NULL)
            mu_list_push(&calls->sending, &slot->call->link);
        free_slot(slot);
    }
    calls->parked = NULL;
    lose_list(calls, &calls->sending, why);
    lose_list(calls, &calls->waiting, why);
    mu_buf_done(&calls->out);
    mu_buf_done(&calls->in);
}

static uint64_t earliest(const struct mu_list *list, uint64_t until)
{
    MU_LIST_EACH (const struct mu_call, call, list, link)
        until = call->deadline_ms < until ? call->deadline_ms : until;
    return until;
}

uint64_t mu_calls_deadline_ms(const struct mu_calls *calls)
{
    uint64_t until = earliest(&calls->sending, earliest(&calls->waiting, UINT64_MAX));

    MU_LIST_EACH (const struct mu_slot, slot, &calls->slots, link) {
        if (slot->call != NULL && slot->call->deadline_ms < until)
            until = slot->call->deadline_ms;
    }
    return until;
}
