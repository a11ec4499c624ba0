#include "store/requests.h"

#include "store/greeting.h"

enum { OUT_BYTES_MAX = 1 << 30 }; /* what may wait to be written */

static int put(struct mu_calls *calls, const void *data, size_t len)
{
    return mu_buf_append(&calls->out, data, len, OUT_BYTES_MAX);
}

static int put_number(struct mu_calls *calls, int64_t number)
{
    char wire[8];

    mu_put_u64(wire, (uint64_t)number);
    return put(calls, wire, sizeof wire);
}

static int put_bytes(struct mu_calls *calls, struct muster_slice bytes)
{
    int rc = put_number(calls, (int64_t)bytes.len);

    return rc < 0 ? rc : put(calls, bytes.data, bytes.len);
}

/* A key as it goes on the wire: "/" in front, as every PyTorch client does. */
static int put_key(struct mu_calls *calls, const struct mu_call *call, struct muster_slice key)
{
    size_t slash = calls->raw_keys || call->raw_key ? 0 : 1;
    int rc = put_number(calls, (int64_t)(slash + key.len));

    if (rc == 0)
        rc = put(calls, "/", slash);
    return rc < 0 ? rc : put(calls, key.data, key.len);
}

static int put_code(struct mu_calls *calls, enum mu_op op)
{
    char code = (char)mu_op_code(op, calls->dialect);

    return put(calls, &code, 1);
}

/* An op with one key and, where the op has one, a value. */
static int put_request(struct mu_calls *calls, const struct mu_call *call, enum mu_op op, struct muster_slice key,
                       const struct muster_slice *value)
{
    int rc = put_code(calls, op);

    if (rc == 0)
        rc = put_key(calls, call, key);
    return rc < 0 || value == NULL ? rc : put_bytes(calls, *value);
}

static int put_keys(struct mu_calls *calls, const struct mu_call *call, enum mu_op op, bool with_values)
{
    int rc = put_code(calls, op);

    if (rc == 0)
        rc = put_number(calls, (int64_t)call->count);
    for (size_t i = 0; i < call->count && rc == 0; i++) {
        rc = put_key(calls, call, call->keys[i]);
        if (rc == 0 && with_values)
            rc = put_bytes(calls, call->values[i]);
    }
    return rc;
}

static int put_wait(struct mu_calls *calls, const struct mu_call *call)
{
    int rc = put_code(calls, MU_OP_WAIT);

    if (rc == 0)
        rc = put_number(calls, 1);
    return rc < 0 ? rc : put_key(calls, call, call->key);
}

static int put_each(struct mu_calls *calls, const struct mu_call *call, enum mu_op op)
{
    int rc = 0;

    for (size_t i = 0; i < call->count && rc == 0; i++)
        rc = put_request(calls, call, op, call->keys[i], op == MU_OP_SET ? &call->values[i] : NULL);
    return rc;
}

static int put_counted(struct mu_calls *calls, const struct mu_call *call, enum mu_op op)
{
    int rc = put_request(calls, call, op, call->key, NULL);

    return rc < 0 ? rc : put_number(calls, call->number);
}

static int put_compare_set(struct mu_calls *calls, const struct mu_call *call)
{
    int rc = put_request(calls, call, MU_OP_COMPARE_SET, call->key, &call->value);

    return rc < 0 ? rc : put_bytes(calls, call->desired);
}

static int put_ping(struct mu_calls *calls)
{
    char nonce[4];
    int rc = put_code(calls, MU_OP_PING);

    mu_put_u32(nonce, MU_MAGIC);
    return rc < 0 ? rc : put(calls, nonce, sizeof nonce);
}

int mu_request_put(struct mu_calls *calls, const struct mu_call *call, enum mu_answer_shape *ret_shape)
{
    bool has_multi = mu_op_code(MU_OP_MULTI_GET, calls->dialect) >= 0;

    *ret_shape = MU_ANSWER_NONE;
    switch (call->kind) {
    case MU_CALL_SET:
        return put_request(calls, call, MU_OP_SET, call->key, &call->value);
    case MU_CALL_APPEND:
        return put_request(calls, call, MU_OP_APPEND, call->key, &call->value);
    case MU_CALL_QUEUE_PUSH:
        return put_request(calls, call, MU_OP_QUEUE_PUSH, call->key, &call->value);
    case MU_CALL_MULTI_SET:
        return has_multi ? put_keys(calls, call, MU_OP_MULTI_SET, true) : put_each(calls, call, MU_OP_SET);
    case MU_CALL_GET:
        *ret_shape = call->step == 0 ? MU_ANSWER_WAIT : MU_ANSWER_BYTES;
        return call->step == 0 ? put_wait(calls, call) : put_request(calls, call, MU_OP_GET, call->key, NULL);
    case MU_CALL_MULTI_GET:
        *ret_shape = call->step == 0 ? MU_ANSWER_WAIT : MU_ANSWER_VALUES;
        if (call->step == 0)
            return put_keys(calls, call, MU_OP_WAIT, false);
        return has_multi ? put_keys(calls, call, MU_OP_MULTI_GET, false) : put_each(calls, call, MU_OP_GET);
    case MU_CALL_QUEUE_POP:
        *ret_shape = call->step == 0 ? MU_ANSWER_WAIT : MU_ANSWER_POPPED;
        return call->step == 0 ? put_wait(calls, call) : put_request(calls, call, MU_OP_QUEUE_POP, call->key, NULL);
    case MU_CALL_ADD:
        *ret_shape = MU_ANSWER_NUMBER;
        return put_counted(calls, call, MU_OP_ADD);
    case MU_CALL_COMPARE_SET:
        *ret_shape = MU_ANSWER_BYTES;
        return put_compare_set(calls, call);
    case MU_CALL_CHECK:
        *ret_shape = MU_ANSWER_READY;
        return put_keys(calls, call, MU_OP_CHECK, false);
    case MU_CALL_WAIT:
        *ret_shape = MU_ANSWER_WAIT;
        return put_keys(calls, call, MU_OP_WAIT, false);
    case MU_CALL_DELETE_KEY:
        *ret_shape = MU_ANSWER_NUMBER;
        return put_request(calls, call, MU_OP_DELETE_KEY, call->key, NULL);
    case MU_CALL_NUM_KEYS:
        *ret_shape = MU_ANSWER_NUMBER;
        return put_code(calls, MU_OP_NUM_KEYS);
    case MU_CALL_QUEUE_LEN:
        *ret_shape = MU_ANSWER_NUMBER;
        return put_request(calls, call, MU_OP_QUEUE_LEN, call->key, NULL);
    case MU_CALL_LIST_KEYS:
        *ret_shape = MU_ANSWER_KEYS;
        return put_code(calls, MU_OP_LIST_KEYS);
    case MU_CALL_BARRIER:
        *ret_shape = MU_ANSWER_WAIT;
        return put_counted(calls, call, MU_OP_BARRIER);
    case MU_CALL_PING:
        *ret_shape = MU_ANSWER_WORD;
        return put_ping(calls);
    }
    return MUSTER_EINTERNAL;
}

int mu_request_put_cancel(struct mu_calls *calls)
{
    return put_code(calls, MU_OP_CANCEL_WAIT);
}

int mu_calls_lone_set(const struct mu_calls *calls, struct mu_slice key, struct mu_slice value, struct mu_buf *out)
{
    struct mu_calls alone = { .dialect = calls->dialect, .raw_keys = calls->raw_keys, .out = *out };
    struct mu_call call = { .kind = MU_CALL_SET, .key = { key.data, key.len }, .value = { value.data, value.len } };
    struct mu_slice greeting = mu_greeting(calls->dialect);
    int rc = put(&alone, greeting.data, greeting.len);

    if (rc == 0)
        rc = put_request(&alone, &call, MU_OP_SET, call.key, &call.value);
    *out = alone.out;
    return rc;
}
