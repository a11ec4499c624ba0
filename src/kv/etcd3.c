/* Answers and streams of etcd's version 3 API: read by jansson and copied into an arena. etcd3_requests.c has the
 * requests. */
#include "kv/etcd3.h"

#include "base/arena.h"
#include "base/base64.h"
#include "base/words.h"
#include "kv/etcd_json.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { BYTES_MAX = 64 << 20, INNER_PATH_MAX = 64, SAMPLE_MAX = 200 };

struct mu_etcd3_store {
    struct mu_arena arena;
};

/* ---- Answers ---- */

struct reader {
    struct mu_arena *arena;
    struct mu_buf bytes; /* for decoding; used again and again */
    struct muster_error *error;
};

static int no_memory(struct reader *r)
{
    return mu_fail(r->error, MUSTER_ENOMEM, "no memory for the answer");
}

static int read_bytes(struct reader *r, const json_t *object, const char *path, const char *field,
                      struct mu_slice *ret_bytes)
{
    struct mu_slice text = { NULL, 0 };
    char *own;
    int rc = mu_etcd_json_text(object, path, field, &text, r->error);

    if (rc < 0)
        return rc;
    r->bytes.len = 0;
    rc = mu_base64_decode(text, &r->bytes, BYTES_MAX);
    if (rc == MUSTER_ENOMEM)
        return no_memory(r);
    if (rc < 0)
        return mu_fail(r->error, MUSTER_EPROTOCOL, "'%s%s' is not base64", path, field);
    own = mu_arena_alloc(r->arena, r->bytes.len + 1);
    if (own == NULL)
        return no_memory(r);
    if (r->bytes.len > 0)
        memcpy(own, r->bytes.data, r->bytes.len);
    own[r->bytes.len] = '\0';
    *ret_bytes = mu_slice(own, r->bytes.len);
    return 0;
}

static int copy_text(struct reader *r, struct mu_slice text, struct mu_slice *ret_text)
{
    char *own = mu_arena_alloc(r->arena, text.len + 1);

    if (own == NULL)
        return no_memory(r);
    if (text.len > 0)
        memcpy(own, text.data, text.len);
    own[text.len] = '\0';
    *ret_text = mu_slice(own, text.len);
    return 0;
}

static int read_kv(struct reader *r, const json_t *json, const char *path, struct mu_etcd3_kv *ret_kv)
{
    int rc;

    *ret_kv = (struct mu_etcd3_kv){ 0 };
    if (!json_is_object(json))
        return mu_fail(r->error, MUSTER_EPROTOCOL, "'%.*s' is not an object", (int)strlen(path) - 1, path);
    rc = read_bytes(r, json, path, "key", &ret_kv->key);
    if (rc == 0)
        rc = read_bytes(r, json, path, "value", &ret_kv->value);
    if (rc == 0)
        rc = mu_etcd_json_int(json, path, "create_revision", &ret_kv->create, r->error);
    if (rc == 0)
        rc = mu_etcd_json_int(json, path, "mod_revision", &ret_kv->mod, r->error);
    if (rc == 0)
        rc = mu_etcd_json_int(json, path, "version", &ret_kv->version, r->error);
    if (rc == 0)
        rc = mu_etcd_json_int(json, path, "lease", &ret_kv->lease, r->error);
    if (rc == 0 && ret_kv->key.len == 0)
        rc = mu_fail(r->error, MUSTER_EPROTOCOL, "'%skey' is missing", path);
    if (rc == 0 && ret_kv->mod <= 0)
        rc = mu_fail(r->error, MUSTER_EPROTOCOL, "'%smod_revision' is missing", path);
    return rc;
}

static int read_kvs(struct reader *r, const json_t *object, const char *path, const char *field,
                    struct mu_etcd3_result *result)
{
    json_t *array = NULL, *item;
    struct mu_etcd3_kv *kvs;
    size_t index, count;
    char inner[INNER_PATH_MAX];
    int rc = mu_etcd_json_array(object, path, field, &array, r->error);

    if (rc < 0)
        return rc;
    count = json_array_size(array);
    if (count > MU_ETCD3_KVS_MAX)
        return mu_fail(r->error, MUSTER_ELIMIT, "'%s%s' has %zu elements", path, field, count);
    kvs = mu_arena_alloc(r->arena, (count + 1) * sizeof *kvs);
    if (kvs == NULL)
        return no_memory(r);
    (void)snprintf(inner, sizeof inner, "%s%s.", path, field);
    json_array_foreach(array, index, item)
    {
        rc = read_kv(r, item, inner, &kvs[index]);
        if (rc < 0)
            return rc;
    }
    result->kvs = kvs;
    result->kvs_count = count;
    return 0;
}

static int read_range(struct reader *r, const json_t *json, const char *path, struct mu_etcd3_result *result)
{
    int rc = read_kvs(r, json, path, "kvs", result);

    result->kind = MU_ETCD3_OP_RANGE;
    if (rc == 0)
        rc = mu_etcd_json_int(json, path, "count", &result->count, r->error);
    return rc == 0 ? mu_etcd_json_bool(json, path, "more", &result->more, r->error) : rc;
}

static int read_result(struct reader *r, const json_t *json, struct mu_etcd3_result *result)
{
    const json_t *range = json_object_get(json, "response_range");
    const json_t *deleted = json_object_get(json, "response_delete_range");

    *result = (struct mu_etcd3_result){ 0 };
    if (json_is_object(range))
        return read_range(r, range, "response_range.", result);
    result->kind = json_is_object(deleted) ? MU_ETCD3_OP_DELETE : MU_ETCD3_OP_PUT;
    if (json_is_object(deleted))
        return mu_etcd_json_int(deleted, "response_delete_range.", "deleted", &result->count, r->error);
    if (json_is_object(json_object_get(json, "response_put")))
        return 0;
    return mu_fail(r->error, MUSTER_EPROTOCOL, "'responses' has something that is no response");
}

static int new_results(struct reader *r, size_t count, struct mu_etcd3_answer *answer,
                       struct mu_etcd3_result **ret_results)
{
    struct mu_etcd3_result *results = mu_arena_alloc(r->arena, (count + 1) * sizeof *results);

    if (results == NULL)
        return no_memory(r);
    memset(results, 0, (count + 1) * sizeof *results);
    answer->results = *ret_results = results;
    answer->results_count = count;
    return 0;
}

static int read_txn(struct reader *r, const struct mu_etcd3_request *request, const json_t *root,
                    struct mu_etcd3_answer *answer)
{
    struct mu_etcd3_result *results = NULL;
    json_t *array = NULL, *item;
    size_t index, wanted;
    int rc = mu_etcd_json_bool(root, "", "succeeded", &answer->succeeded, r->error);

    if (rc == 0)
        rc = mu_etcd_json_array(root, "", "responses", &array, r->error);
    if (rc < 0)
        return rc;
    wanted = answer->succeeded ? request->txn.success_count : request->txn.failure_count;
    if (json_array_size(array) != wanted)
        return mu_fail(r->error, MUSTER_EPROTOCOL, "'responses' has %zu elements instead of %zu",
                       json_array_size(array), wanted);
    rc = new_results(r, wanted, answer, &results);
    if (rc < 0)
        return rc;
    json_array_foreach(array, index, item)
    {
        rc = read_result(r, item, &results[index]);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int read_lease(struct reader *r, const json_t *root, struct mu_etcd3_answer *answer)
{
    int rc = mu_etcd_json_int(root, "", "ID", &answer->lease, r->error);

    if (rc == 0)
        rc = mu_etcd_json_int(root, "", "TTL", &answer->ttl_s, r->error);
    if (rc == 0 && answer->lease == 0)
        rc = mu_fail(r->error, MUSTER_EPROTOCOL, "'ID' is missing");
    return rc;
}

static int read_revision(struct reader *r, const json_t *root, int64_t *ret_revision)
{
    json_t *header = NULL;
    uint64_t id;
    int rc = mu_etcd_json_object(root, "", "header", &header, r->error);

    if (rc == 0 && header == NULL)
        rc = mu_fail(r->error, MUSTER_EPROTOCOL, "'header' is missing");
    if (rc == 0) /* an etcd has these two */
        rc = mu_etcd_json_id(header, "header.", "cluster_id", &id, r->error);
    if (rc == 0)
        rc = mu_etcd_json_id(header, "header.", "member_id", &id, r->error);
    return rc == 0 ? mu_etcd_json_int(header, "header.", "revision", ret_revision, r->error) : rc;
}

static int read_token(struct reader *r, const json_t *root, struct mu_etcd3_answer *answer)
{
    struct mu_slice token = { NULL, 0 };
    int rc = mu_etcd_json_text(root, "", "token", &token, r->error);

    if (rc == 0 && token.len == 0)
        rc = mu_fail(r->error, MUSTER_EPROTOCOL, "'token' is missing");
    return rc == 0 ? copy_text(r, token, &answer->token) : rc;
}

static int read_success(struct reader *r, const struct mu_etcd3_request *request, const json_t *root,
                        struct mu_etcd3_answer *answer)
{
    struct mu_etcd3_result *results = NULL;
    int rc = read_revision(r, root, &answer->revision);

    if (rc < 0)
        return rc;
    switch (request->kind) {
    case MU_ETCD3_RANGE:
        rc = new_results(r, 1, answer, &results);
        return rc == 0 ? read_range(r, root, "", &results[0]) : rc;
    case MU_ETCD3_TXN:
        return read_txn(r, request, root, answer);
    case MU_ETCD3_GRANT:
    case MU_ETCD3_KEEP_ALIVE:
        return read_lease(r, root, answer);
    case MU_ETCD3_AUTHENTICATE:
        return read_token(r, root, answer);
    case MU_ETCD3_REVOKE:
    case MU_ETCD3_WATCH:
        break;
    }
    return 0;
}

/* Of a plain call {"code", "message" or "error"}, or of a stream {"error": {"grpc_code", "message"}}. False: it is
 * none. */
static int read_error(struct reader *r, const json_t *root, int *ret_code, struct mu_slice *ret_message)
{
    const json_t *error = json_object_get(root, "error");
    const json_t *from = json_is_object(error) ? error : root;
    const char *path = from == root ? "" : "error.";
    struct mu_slice message = { NULL, 0 };
    int64_t code = 0, other = 0;
    int rc = mu_etcd_json_int(from, path, "code", &code, r->error);

    if (rc == 0)
        rc = mu_etcd_json_int(from, path, "grpc_code", &other, r->error);
    if (rc == 0)
        rc = mu_etcd_json_text(from, path, "message", &message, r->error);
    if (rc == 0 && message.len == 0 && json_is_string(error))
        rc = mu_etcd_json_text(root, "", "error", &message, r->error);
    if (rc < 0)
        return rc;
    code = code != 0 ? code : other;
    if (code <= 0 || code > INT32_MAX)
        return mu_fail(r->error, MUSTER_EPROTOCOL, "'code' is missing");
    *ret_code = (int)code;
    return copy_text(r, message, ret_message);
}

static struct mu_etcd3_store *new_store(void)
{
    return calloc(1, sizeof(struct mu_etcd3_store));
}

static void free_store(struct mu_etcd3_store *store)
{
    if (store == NULL)
        return;
    mu_arena_done(&store->arena);
    free(store);
}

static int read_root(struct reader *r, const struct mu_etcd3_request *request, unsigned status, const json_t *root,
                     struct mu_etcd3_answer *answer)
{
    const json_t *inner = root;

    if (request->kind == MU_ETCD3_KEEP_ALIVE && json_is_object(json_object_get(root, "result")))
        inner = json_object_get(root, "result"); /* the first message of a stream */
    if (status >= 300 || json_object_get(inner, "error") != NULL)
        return read_error(r, inner, &answer->code, &answer->message);
    return read_success(r, request, inner, answer);
}

int mu_etcd3_read(const struct mu_etcd3_request *request, unsigned status, struct mu_slice body,
                  struct mu_etcd3_answer *ret_answer, struct muster_error *reterr)
{
    struct mu_etcd3_answer answer = { .store = new_store() };
    struct reader r = { .error = reterr };
    json_t *root;
    int rc;

    assert(request->kind != MU_ETCD3_WATCH);
    if (answer.store == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for the answer");
    r.arena = &answer.store->arena;
    rc = mu_etcd_json_load(status, body, &root, reterr);
    if (rc == 0) {
        rc = read_root(&r, request, status, root, &answer);
        json_decref(root);
        if (rc < 0)
            (void)mu_wrap(reterr, rc, "HTTP %u", status);
    } else if (status == 404) {
        (void)mu_wrap(reterr, rc, "no version 3 API here (etcd 3.4 or newer has it)");
    }
    mu_buf_done(&r.bytes);
    if (rc < 0)
        mu_etcd3_answer_done(&answer);
    else
        *ret_answer = answer;
    return rc;
}

void mu_etcd3_answer_done(struct mu_etcd3_answer *answer)
{
    free_store(answer->store);
    *answer = (struct mu_etcd3_answer){ 0 };
}

static bool says(struct mu_slice message, const char *text)
{
    return message.len > 0 && memmem(message.data, message.len, text, strlen(text)) != NULL;
}

enum mu_etcd3_advice mu_etcd3_advise(int code, struct mu_slice message)
{
    switch (code) {
    case MU_ETCD3_UNAUTHENTICATED:
        return MU_ETCD3_LOG_IN;
    case MU_ETCD3_INVALID:
        return says(message, "user name is empty") || says(message, "revision of auth store is old") ? MU_ETCD3_LOG_IN
                                                                                                     : MU_ETCD3_TELL;
    case MU_ETCD3_UNAVAILABLE:
        return says(message, "no leader") ? MU_ETCD3_ELSEWHERE : MU_ETCD3_UNCERTAIN;
    case MU_ETCD3_EXHAUSTED:
        return says(message, "too many requests") ? MU_ETCD3_ELSEWHERE : MU_ETCD3_TELL;
    case MU_ETCD3_CANCELED:
    case MU_ETCD3_UNKNOWN:
    case MU_ETCD3_DEADLINE:
    case MU_ETCD3_INTERNAL:
        return MU_ETCD3_UNCERTAIN;
    default:
        return MU_ETCD3_TELL;
    }
}

int mu_etcd3_fail(int code, struct mu_slice message, unsigned status, struct muster_error *reterr)
{
    enum mu_etcd3_advice advice = mu_etcd3_advise(code, message);
    char text[SAMPLE_MAX];
    int rc = MUSTER_EINVAL;

    if (advice == MU_ETCD3_ELSEWHERE || advice == MU_ETCD3_UNCERTAIN)
        rc = MUSTER_ELOST;
    if (code == MU_ETCD3_EXHAUSTED || says(message, "too large"))
        rc = MUSTER_ELIMIT;
    return mu_fail(reterr, rc, "HTTP %u, %d %s", status, code, mu_words_plain(message, text, sizeof text));
}

/* ---- Streams ---- */

int mu_etcd3_stream_feed(struct mu_etcd3_stream *stream, struct mu_slice bytes, struct muster_error *reterr)
{
    int rc = mu_buf_append(&stream->pending, bytes.data, bytes.len, MU_ETCD3_MESSAGE_MAX);

    if (rc == MUSTER_ELIMIT)
        return mu_fail(reterr, rc, "a message of the watch is longer than %u bytes", MU_ETCD3_MESSAGE_MAX);
    return rc < 0 ? mu_fail(reterr, rc, "no memory for a watch") : 0;
}

void mu_etcd3_stream_done(struct mu_etcd3_stream *stream)
{
    mu_buf_done(&stream->pending);
    *stream = (struct mu_etcd3_stream){ 0 };
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* The length of the first object, from its brace to the one that closes it; 0: it is not all there. */
static size_t find_object(struct mu_etcd3_stream *stream)
{
    const struct mu_buf *pending = &stream->pending;

    for (; stream->scanned < pending->len; stream->scanned++) {
        char c = pending->data[stream->scanned];

        if (stream->text) {
            stream->text = stream->escape || c != '"';
            stream->escape = !stream->escape && c == '\\';
        } else if (c == '"') {
            stream->text = true;
        } else if (c == '{') {
            stream->depth++;
        } else if (c == '}' && --stream->depth == 0) {
            return stream->scanned + 1;
        }
    }
    return 0;
}

static int read_event(struct reader *r, const json_t *json, struct mu_etcd3_event *event)
{
    struct mu_slice type = { NULL, 0 };
    int rc;

    *event = (struct mu_etcd3_event){ 0 };
    if (!json_is_object(json))
        return mu_fail(r->error, MUSTER_EPROTOCOL, "'events' has something that is no object");
    rc = mu_etcd_json_text(json, "events.", "type", &type, r->error);
    if (rc == 0)
        rc = read_kv(r, json_object_get(json, "kv"), "events.kv.", &event->kv);
    if (rc < 0)
        return rc;
    if (mu_slice_equal(type, mu_slice_str("DELETE")))
        event->kind = MU_ETCD3_DELETE;
    else if (type.len > 0 && !mu_slice_equal(type, mu_slice_str("PUT")))
        return mu_fail(r->error, MUSTER_EPROTOCOL, "'events.type' is neither PUT nor DELETE");
    return 0;
}

static int read_events(struct reader *r, const json_t *result, struct mu_etcd3_message *message)
{
    struct mu_etcd3_event *events;
    json_t *array = NULL, *item;
    size_t index, count;
    int rc = mu_etcd_json_array(result, "", "events", &array, r->error);

    if (rc < 0)
        return rc;
    count = json_array_size(array);
    if (count > MU_ETCD3_KVS_MAX)
        return mu_fail(r->error, MUSTER_ELIMIT, "'events' has %zu elements", count);
    events = mu_arena_alloc(r->arena, (count + 1) * sizeof *events);
    if (events == NULL)
        return no_memory(r);
    json_array_foreach(array, index, item)
    {
        rc = read_event(r, item, &events[index]);
        if (rc < 0)
            return rc;
    }
    message->events = events;
    message->events_count = count;
    return 0;
}

static int read_message(struct reader *r, const json_t *root, struct mu_etcd3_message *message)
{
    struct mu_slice reason = { NULL, 0 };
    json_t *result = NULL;
    int rc = mu_etcd_json_object(root, "", "result", &result, r->error);

    if (rc < 0)
        return rc;
    if (result == NULL)
        return read_error(r, root, &message->code, &message->message);
    rc = read_revision(r, result, &message->revision);
    if (rc == 0)
        rc = mu_etcd_json_bool(result, "", "created", &message->created, r->error);
    if (rc == 0)
        rc = mu_etcd_json_bool(result, "", "canceled", &message->canceled, r->error);
    if (rc == 0)
        rc = mu_etcd_json_int(result, "", "compact_revision", &message->compact_revision, r->error);
    if (rc == 0)
        rc = mu_etcd_json_text(result, "", "cancel_reason", &reason, r->error);
    if (rc == 0)
        rc = copy_text(r, reason, &message->message);
    return rc == 0 ? read_events(r, result, message) : rc;
}

static int take_object(struct mu_slice text, struct mu_etcd3_message *ret_message, struct muster_error *reterr)
{
    struct mu_etcd3_message message = { .store = new_store() };
    struct reader r = { .error = reterr };
    json_t *root;
    int rc;

    if (message.store == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a watch");
    r.arena = &message.store->arena;
    rc = mu_etcd_json_load(200, text, &root, reterr);
    if (rc == 0) {
        rc = read_message(&r, root, &message);
        json_decref(root);
    }
    mu_buf_done(&r.bytes);
    if (rc < 0)
        mu_etcd3_message_done(&message);
    else
        *ret_message = message;
    return rc;
}

int mu_etcd3_stream_next(struct mu_etcd3_stream *stream, struct mu_etcd3_message *ret_message,
                         struct muster_error *reterr)
{
    struct mu_buf *pending = &stream->pending;
    char sample[SAMPLE_MAX];
    size_t len, blanks = 0;
    int rc;

    if (stream->scanned == 0) {
        while (blanks < pending->len && is_blank(pending->data[blanks]))
            blanks++;
        mu_buf_consume(pending, blanks);
        if (pending->len > 0 && pending->data[0] != '{')
            return mu_fail(reterr, MUSTER_EPROTOCOL, "no message of a watch but '%s'",
                           mu_words_plain(mu_buf_slice(pending), sample, sizeof sample));
    }
    len = find_object(stream);
    if (len == 0)
        return 0;
    rc = take_object(mu_slice(pending->data, len), ret_message, reterr);
    mu_buf_consume(pending, len);
    stream->scanned = 0;
    stream->depth = 0;
    return rc < 0 ? rc : 1;
}

void mu_etcd3_message_done(struct mu_etcd3_message *message)
{
    free_store(message->store);
    *message = (struct mu_etcd3_message){ 0 };
}
