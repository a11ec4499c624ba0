/* Requests of etcd's version 3 API. Bodies are written by hand, for most of them is base64. */
#include "base/base64.h"
#include "base/words.h"
#include "kv/etcd3.h"
#include "kv/etcd_json.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

enum { BODY_MAX = 64 << 20, NUMBER_TEXT_MAX = 64, KEY_SHOWN_MAX = 100 };

const char *mu_etcd3_path(enum mu_etcd3_kind kind)
{
    static const char *const paths[] = {
#define X(name, path, text) path,
        MU_ETCD3_KINDS(X)
#undef X
    };

    return paths[kind];
}

struct writer {
    struct mu_buf *out;
    int rc;
    bool first; /* of its object or array */
};

static void put(struct writer *w, const char *text, size_t len)
{
    if (w->rc == 0)
        w->rc = mu_buf_append(w->out, text, len, BODY_MAX);
}

static void put_text(struct writer *w, const char *text)
{
    put(w, text, strlen(text));
}

static void separate(struct writer *w)
{
    if (!w->first)
        put_text(w, ",");
    w->first = false;
}

static void name(struct writer *w, const char *text)
{
    separate(w);
    put_text(w, "\"");
    put_text(w, text);
    put_text(w, "\":");
}

static void begin(struct writer *w, const char *bracket)
{
    put_text(w, bracket);
    w->first = true;
}

static void end(struct writer *w, const char *bracket)
{
    put_text(w, bracket);
    w->first = false;
}

static void begin_field(struct writer *w, const char *field, const char *bracket)
{
    name(w, field);
    begin(w, bracket);
}

static void add_bytes(struct writer *w, const char *field, struct mu_slice bytes)
{
    begin_field(w, field, "\"");
    if (w->rc == 0)
        w->rc = mu_base64_encode(bytes, w->out, BODY_MAX);
    end(w, "\"");
}

/* As it is, but for what JSON does not take. */
static void add_text(struct writer *w, const char *field, const char *text)
{
    begin_field(w, field, "\"");
    for (const char *at = text; *at != '\0'; at++) {
        char escaped[8];

        if ((unsigned char)*at >= 0x20 && *at != '"' && *at != '\\') {
            put(w, at, 1);
            continue;
        }
        (void)snprintf(escaped, sizeof escaped, "\\u%04x", (unsigned)(unsigned char)*at);
        put_text(w, escaped);
    }
    end(w, "\"");
}

static void add_number(struct writer *w, const char *field, int64_t number)
{
    char text[NUMBER_TEXT_MAX];

    (void)snprintf(text, sizeof text, "%" PRId64, number);
    add_text(w, field, text);
}

static void add_number_if(struct writer *w, const char *field, int64_t number)
{
    if (number != 0)
        add_number(w, field, number);
}

static void add_flag(struct writer *w, const char *field, bool value)
{
    if (value) {
        name(w, field);
        put_text(w, "true");
    }
}

/* The first key behind all with that prefix; for an empty one, and for one of 0xff alone, that is the end of all
 * keys. */
static void add_range_end(struct writer *w, struct mu_slice prefix)
{
    char text[MU_ETCD3_KEY_MAX];
    size_t len = prefix.len;

    while (len > 0 && (unsigned char)prefix.data[len - 1] == 0xff)
        len--;
    if (len == 0) {
        add_bytes(w, "range_end", mu_slice("", 1)); /* a NUL */
        return;
    }
    memcpy(text, prefix.data, len);
    text[len - 1] = (char)((unsigned char)text[len - 1] + 1);
    add_bytes(w, "range_end", mu_slice(text, len));
}

static void add_key(struct writer *w, const struct mu_etcd3_op *op)
{
    if (op->prefix && op->key.len == 0)
        add_bytes(w, "key", mu_slice("", 1));
    else
        add_bytes(w, "key", op->key);
    if (op->prefix)
        add_range_end(w, op->key);
}

static void add_range(struct writer *w, const struct mu_etcd3_op *op)
{
    add_key(w, op);
    add_number_if(w, "limit", op->limit);
    add_number_if(w, "revision", op->revision);
    add_flag(w, "count_only", op->count_only);
    if (op->sort) {
        add_text(w, "sort_order", op->descending ? "DESCEND" : "ASCEND");
        add_text(w, "sort_target", op->sort_by == MU_ETCD3_BY_CREATE ? "CREATE" : "MOD");
    }
}

static void add_op(struct writer *w, const struct mu_etcd3_op *op)
{
    switch (op->kind) {
    case MU_ETCD3_OP_RANGE:
        begin_field(w, "request_range", "{");
        add_range(w, op);
        break;
    case MU_ETCD3_OP_PUT:
        begin_field(w, "request_put", "{");
        add_bytes(w, "key", op->key);
        add_bytes(w, "value", op->value);
        add_number_if(w, "lease", op->lease);
        break;
    case MU_ETCD3_OP_DELETE:
        begin_field(w, "request_delete_range", "{");
        add_key(w, op);
        break;
    }
    end(w, "}");
}

static void add_ops(struct writer *w, const char *field, const struct mu_etcd3_op *ops, size_t count)
{
    if (count == 0)
        return;
    begin_field(w, field, "[");
    for (size_t i = 0; i < count; i++) {
        separate(w);
        begin(w, "{");
        add_op(w, &ops[i]);
        end(w, "}");
    }
    end(w, "]");
}

static void add_compare(struct writer *w, const struct mu_etcd3_compare *compare)
{
    static const char *const targets[] = { "CREATE", "MOD", "VALUE" };
    static const char *const fields[] = { "create_revision", "mod_revision", "value" };

    separate(w);
    begin(w, "{");
    add_bytes(w, "key", compare->key);
    add_text(w, "target", targets[compare->target]);
    add_text(w, "result", "EQUAL");
    if (compare->target == MU_ETCD3_VALUE)
        add_bytes(w, "value", compare->value);
    else
        add_number(w, fields[compare->target], compare->number);
    end(w, "}");
}

static void add_txn(struct writer *w, const struct mu_etcd3_txn *txn)
{
    if (txn->compares_count > 0) {
        begin_field(w, "compare", "[");
        for (size_t i = 0; i < txn->compares_count; i++)
            add_compare(w, &txn->compares[i]);
        end(w, "]");
    }
    add_ops(w, "success", txn->success, txn->success_count);
    add_ops(w, "failure", txn->failure, txn->failure_count);
}

static void add_body(struct writer *w, const struct mu_etcd3_request *request)
{
    begin(w, "{");
    switch (request->kind) {
    case MU_ETCD3_RANGE:
        add_range(w, &request->range);
        break;
    case MU_ETCD3_TXN:
        add_txn(w, &request->txn);
        break;
    case MU_ETCD3_GRANT:
        add_number(w, "TTL", request->ttl_s);
        add_number_if(w, "ID", request->lease);
        break;
    case MU_ETCD3_KEEP_ALIVE:
    case MU_ETCD3_REVOKE:
        add_number(w, "ID", request->lease);
        break;
    case MU_ETCD3_WATCH:
        begin_field(w, "create_request", "{");
        add_key(w, &request->range);
        add_number_if(w, "start_revision", request->range.revision);
        add_flag(w, "progress_notify", true);
        end(w, "}");
        break;
    case MU_ETCD3_AUTHENTICATE:
        add_text(w, "name", request->user);
        add_text(w, "password", request->password);
        break;
    }
    end(w, "}");
}

static int check_key(struct mu_slice key, bool may_be_empty, struct muster_error *reterr)
{
    if (key.len == 0 && !may_be_empty)
        return mu_fail(reterr, MUSTER_EINVAL, "a key is empty");
    if (key.len > MU_ETCD3_KEY_MAX)
        return mu_fail(reterr, MUSTER_ELIMIT, "a key of %zu bytes is too long", key.len);
    return 0;
}

static int check_ops(const struct mu_etcd3_op *ops, size_t count, struct muster_error *reterr)
{
    if (count > MU_ETCD3_OPS_MAX)
        return mu_fail(reterr, MUSTER_ELIMIT, "%zu operations are too many for a transaction", count);
    for (size_t i = 0; i < count; i++) {
        int rc = check_key(ops[i].key, ops[i].prefix && ops[i].kind != MU_ETCD3_OP_PUT, reterr);

        if (rc < 0)
            return rc;
        if (ops[i].value.len > MU_ETCD3_VALUE_MAX)
            return mu_fail(reterr, MUSTER_ELIMIT, "a value of %zu bytes is too long", ops[i].value.len);
    }
    return 0;
}

static int check_txn(const struct mu_etcd3_txn *txn, struct muster_error *reterr)
{
    int rc = check_ops(txn->success, txn->success_count, reterr);

    if (rc == 0)
        rc = check_ops(txn->failure, txn->failure_count, reterr);
    if (rc == 0 && txn->compares_count > MU_ETCD3_OPS_MAX)
        rc = mu_fail(reterr, MUSTER_ELIMIT, "%zu compares are too many for a transaction", txn->compares_count);
    for (size_t i = 0; rc == 0 && i < txn->compares_count; i++)
        rc = check_key(txn->compares[i].key, false, reterr);
    return rc;
}

int mu_etcd3_build(const struct mu_etcd3_request *request, struct mu_buf *body, struct muster_error *reterr)
{
    struct mu_buf out = { 0 };
    struct writer w = { .out = &out, .first = true };
    int rc = 0;

    if (request->kind == MU_ETCD3_RANGE || request->kind == MU_ETCD3_WATCH)
        rc = check_ops(&request->range, 1, reterr);
    else if (request->kind == MU_ETCD3_TXN)
        rc = check_txn(&request->txn, reterr);
    if (rc < 0)
        return rc;
    add_body(&w, request);
    if (w.rc == 0)
        w.rc = mu_buf_append(body, out.data, out.len, BODY_MAX);
    mu_buf_done(&out);
    return w.rc < 0 ? mu_fail(reterr, w.rc, "no room for a request") : 0;
}

static struct mu_slice key_of(const struct mu_etcd3_request *request)
{
    const struct mu_etcd3_txn *txn = &request->txn;

    if (request->kind != MU_ETCD3_TXN)
        return request->range.key;
    if (txn->success_count > 0)
        return txn->success[0].key;
    return txn->compares_count > 0 ? txn->compares[0].key : mu_slice("", 0);
}

const char *mu_etcd3_text(const struct mu_etcd3_request *request, char *text, size_t room)
{
    static const char *const texts[] = {
#define X(kind, path, what) what,
        MU_ETCD3_KINDS(X)
#undef X
    };
    char key[KEY_SHOWN_MAX];

    switch (request->kind) {
    case MU_ETCD3_RANGE:
    case MU_ETCD3_TXN:
    case MU_ETCD3_WATCH:
        (void)snprintf(text, room, "%s '%s'", texts[request->kind], mu_words_plain(key_of(request), key, sizeof key));
        break;
    case MU_ETCD3_GRANT:
    case MU_ETCD3_KEEP_ALIVE:
    case MU_ETCD3_REVOKE:
        (void)snprintf(text, room, "%s %" PRIx64, texts[request->kind], (uint64_t)request->lease);
        break;
    case MU_ETCD3_AUTHENTICATE:
        (void)snprintf(text, room, "%s as '%s'", texts[request->kind],
                       mu_words_plain(mu_slice_str(request->user), key, sizeof key));
        break;
    }
    return text;
}
