#include "store/requests.h"

#include "store/greeting.h"

enum { OUT_BYTES_MAX = 1 << 30 }; /* what may wait to be written */

/* The request of each call and what it is answered by. */
static const struct plan {
    enum mu_op op;
    enum mu_answer_shape shape;
    bool waits; /* a WAIT for the keys is sent and answered first */
} plans[] = {
    [MU_CALL_SET] = { MU_OP_SET, MU_ANSWER_NONE, false },
    [MU_CALL_GET] = { MU_OP_GET, MU_ANSWER_BYTES, true },
    [MU_CALL_ADD] = { MU_OP_ADD, MU_ANSWER_NUMBER, false },
    [MU_CALL_COMPARE_SET] = { MU_OP_COMPARE_SET, MU_ANSWER_BYTES, false },
    [MU_CALL_CHECK] = { MU_OP_CHECK, MU_ANSWER_READY, false },
    [MU_CALL_WAIT] = { MU_OP_WAIT, MU_ANSWER_WAIT, false },
    [MU_CALL_DELETE_KEY] = { MU_OP_DELETE_KEY, MU_ANSWER_NUMBER, false },
    [MU_CALL_NUM_KEYS] = { MU_OP_NUM_KEYS, MU_ANSWER_NUMBER, false },
    [MU_CALL_APPEND] = { MU_OP_APPEND, MU_ANSWER_NONE, false },
    [MU_CALL_MULTI_GET] = { MU_OP_MULTI_GET, MU_ANSWER_VALUES, true },
    [MU_CALL_MULTI_SET] = { MU_OP_MULTI_SET, MU_ANSWER_NONE, false },
    [MU_CALL_QUEUE_PUSH] = { MU_OP_QUEUE_PUSH, MU_ANSWER_NONE, false },
    [MU_CALL_QUEUE_POP] = { MU_OP_QUEUE_POP, MU_ANSWER_POPPED, true },
    [MU_CALL_QUEUE_LEN] = { MU_OP_QUEUE_LEN, MU_ANSWER_NUMBER, false },
    [MU_CALL_LIST_KEYS] = { MU_OP_LIST_KEYS, MU_ANSWER_KEYS, false },
    [MU_CALL_BARRIER] = { MU_OP_BARRIER, MU_ANSWER_WAIT, false },
    [MU_CALL_PING] = { MU_OP_PING, MU_ANSWER_WORD, false },
};

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

/* Values may be NULL. */
static int put_list(struct mu_calls *calls, const struct mu_call *call, const struct muster_slice *keys,
                    const struct muster_slice *values, size_t count)
{
    int rc = put_number(calls, (int64_t)count);

    for (size_t i = 0; i < count && rc == 0; i++) {
        rc = put_key(calls, call, keys[i]);
        if (rc == 0 && values != NULL)
            rc = put_bytes(calls, values[i]);
    }
    return rc;
}

static int put_field(struct mu_calls *calls, const struct mu_call *call, char field, bool is_second_value)
{
    char nonce[4];

    switch (field) {
    case 'k':
        return put_key(calls, call, call->key);
    case 'v':
        return put_bytes(calls, is_second_value ? call->desired : call->value);
    case 'n':
        return put_number(calls, call->number);
    case 'u':
        mu_put_u32(nonce, MU_MAGIC);
        return put(calls, nonce, sizeof nonce);
    default:
        if (call->kind == MU_CALL_GET || call->kind == MU_CALL_QUEUE_POP) /* the WAIT for their one key */
            return put_list(calls, call, &call->key, NULL, 1);
        return put_list(calls, call, call->keys, field == 'p' ? call->values : NULL, call->count);
    }
}

static int put_request(struct mu_calls *calls, const struct mu_call *call, enum mu_op op)
{
    const char *fields = mu_op_fields(op), code = (char)mu_op_code(op, calls->dialect);
    int rc = put(calls, &code, 1);

    for (size_t i = 0; fields[i] != '\0' && rc == 0; i++)
        rc = put_field(calls, call, fields[i], i == 2);
    return rc;
}

/* For servers that do not know lists of values: one request for each key. */
static int put_each(struct mu_calls *calls, const struct mu_call *call, enum mu_op op)
{
    int rc = 0;

    for (size_t i = 0; i < call->count && rc == 0; i++) {
        struct mu_call one = { .key = call->keys[i], .raw_key = call->raw_key };

        if (op == MU_OP_SET)
            one.value = call->values[i];
        rc = put_request(calls, &one, op);
    }
    return rc;
}

int mu_request_put(struct mu_calls *calls, const struct mu_call *call, enum mu_answer_shape *ret_shape)
{
    const struct plan *plan = &plans[call->kind];

    if (plan->waits && call->step == 0) {
        *ret_shape = MU_ANSWER_WAIT;
        return put_request(calls, call, MU_OP_WAIT);
    }
    *ret_shape = plan->shape;
    if (mu_op_code(plan->op, calls->dialect) < 0)
        return put_each(calls, call, plan->op == MU_OP_MULTI_SET ? MU_OP_SET : MU_OP_GET);
    return put_request(calls, call, plan->op);
}

int mu_request_put_cancel(struct mu_calls *calls)
{
    return put_request(calls, NULL, MU_OP_CANCEL_WAIT); /* it has no fields */
}

int mu_calls_lone_set(const struct mu_calls *calls, struct mu_slice key, struct mu_slice value,
                      struct mu_buf *ret_bytes)
{
    struct mu_calls alone = { .dialect = calls->dialect, .raw_keys = calls->raw_keys };
    struct mu_call call = { .kind = MU_CALL_SET, .key = { key.data, key.len }, .value = { value.data, value.len } };
    struct mu_slice greeting = mu_greeting(calls->dialect);
    int rc = put(&alone, greeting.data, greeting.len);

    if (rc == 0)
        rc = put_request(&alone, &call, MU_OP_SET);
    if (rc < 0)
        mu_buf_done(&alone.out);
    else
        *ret_bytes = alone.out;
    return rc;
}
