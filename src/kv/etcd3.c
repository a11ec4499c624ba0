/* Answers and streams of etcd's version 3 API: read by jansson and copied into an arena. etcd3_requests.c has the
 * requests. */
#include "kv/etcd3.h"

#include "base/base64.h"
#include "base/words.h"
#include "kv/etcd_json.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

enum { BYTES_MAX = 64 << 20, INNER_PATH_MAX = 64, SAMPLE_MAX = 200 };

/* ---- Answers ---- */

struct reader {
    struct mu_etcd_reader in;
    struct mu_arena *arena;
    struct mu_buf bytes; /* for decoding; used again and again */
};

static void no_memory(struct reader *r)
{
    if (r->in.rc == 0)
        r->in.rc = mu_fail(r->in.error, MUSTER_ENOMEM, "no memory for the answer");
}

/* Zeroed; NULL: it has failed. */
static void *alloc(struct reader *r, size_t count, size_t size)
{
    void *memory = r->in.rc == 0 ? mu_arena_alloc(r->arena, (count + 1) * size) : NULL;

    if (memory == NULL)
        no_memory(r);
    else
        memset(memory, 0, (count + 1) * size);
    return memory;
}

/* With a NUL behind it. */
static struct mu_slice copy_text(struct reader *r, struct mu_slice text)
{
    char *own = alloc(r, text.len, 1);

    if (own == NULL)
        return mu_slice("", 0);
    if (text.len > 0)
        memcpy(own, text.data, text.len);
    return mu_slice(own, text.len);
}

static struct mu_slice read_bytes(struct reader *r, const json_t *object, const char *path, const char *field)
{
    struct mu_slice text = mu_etcd_json_text(&r->in, object, path, field);
    int rc;

    r->bytes.len = 0;
    rc = mu_base64_decode(text, &r->bytes, BYTES_MAX);
    if (rc == MUSTER_ENOMEM)
        no_memory(r);
    else if (rc < 0)
        mu_etcd_json_wrong(&r->in, path, field, "not base64");
    return copy_text(r, mu_buf_slice(&r->bytes));
}

static void need(struct reader *r, bool is_there, const char *path, const char *field)
{
    if (r->in.rc == 0 && !is_there)
        r->in.rc = mu_fail(r->in.error, MUSTER_EPROTOCOL, "'%s%s' is missing", path, field);
}

static void read_kv(struct reader *r, const json_t *json, const char *path, struct mu_etcd3_kv *kv)
{
    if (r->in.rc == 0 && !json_is_object(json))
        r->in.rc = mu_fail(r->in.error, MUSTER_EPROTOCOL, "'%.*s' is not an object", (int)strlen(path) - 1, path);
    kv->key = read_bytes(r, json, path, "key");
    kv->value = read_bytes(r, json, path, "value");
    kv->create = mu_etcd_json_int(&r->in, json, path, "create_revision");
    kv->mod = mu_etcd_json_int(&r->in, json, path, "mod_revision");
    kv->version = mu_etcd_json_int(&r->in, json, path, "version");
    kv->lease = mu_etcd_json_int(&r->in, json, path, "lease");
    need(r, kv->key.len > 0, path, "key");
    need(r, kv->mod > 0, path, "mod_revision");
}

/* How many elements there are to be read; 0 after a failure. */
static size_t read_array(struct reader *r, const json_t *object, const char *path, const char *field,
                         json_t **ret_array)
{
    size_t count;

    *ret_array = mu_etcd_json_array(&r->in, object, path, field);
    count = json_array_size(*ret_array);
    if (r->in.rc == 0 && count > MU_ETCD3_KVS_MAX)
        r->in.rc = mu_fail(r->in.error, MUSTER_ELIMIT, "'%s%s' has %zu elements", path, field, count);
    return r->in.rc == 0 ? count : 0;
}

static void read_range(struct reader *r, const json_t *json, const char *path, struct mu_etcd3_result *result)
{
    json_t *array;
    size_t count = read_array(r, json, path, "kvs", &array);
    struct mu_etcd3_kv *kvs = alloc(r, count, sizeof *kvs);
    char inner[INNER_PATH_MAX];

    (void)snprintf(inner, sizeof inner, "%skvs.", path);
    for (size_t i = 0; r->in.rc == 0 && i < count; i++)
        read_kv(r, json_array_get(array, i), inner, &kvs[i]);
    *result = (struct mu_etcd3_result){ .kind = MU_ETCD3_OP_RANGE,
                                        .count = mu_etcd_json_int(&r->in, json, path, "count"),
                                        .kvs = kvs,
                                        .kvs_count = count };
    result->more = mu_etcd_json_bool(&r->in, json, path, "more");
}

static void read_result(struct reader *r, const json_t *json, struct mu_etcd3_result *result)
{
    const json_t *range = json_object_get(json, "response_range");
    const json_t *deleted = json_object_get(json, "response_delete_range");

    if (json_is_object(range)) {
        read_range(r, range, "response_range.", result);
    } else if (json_is_object(deleted)) {
        result->kind = MU_ETCD3_OP_DELETE;
        result->count = mu_etcd_json_int(&r->in, deleted, "response_delete_range.", "deleted");
    } else if (json_is_object(json_object_get(json, "response_put"))) {
        result->kind = MU_ETCD3_OP_PUT;
    } else {
        r->in.rc = mu_fail(r->in.error, MUSTER_EPROTOCOL, "'responses' has an element that is not a response");
    }
}

static void read_txn(struct reader *r, const struct mu_etcd3_request *request, const json_t *root,
                     struct mu_etcd3_answer *answer)
{
    struct mu_etcd3_result *results;
    json_t *array;
    size_t wanted;

    answer->succeeded = mu_etcd_json_bool(&r->in, root, "", "succeeded");
    array = mu_etcd_json_array(&r->in, root, "", "responses");
    wanted = answer->succeeded ? request->txn.success_count : request->txn.failure_count;
    if (r->in.rc == 0 && json_array_size(array) != wanted)
        r->in.rc = mu_fail(r->in.error, MUSTER_EPROTOCOL, "'responses' has %zu elements instead of %zu",
                           json_array_size(array), wanted);
    results = alloc(r, wanted, sizeof *results);
    for (size_t i = 0; r->in.rc == 0 && i < wanted; i++)
        read_result(r, json_array_get(array, i), &results[i]);
    answer->results = results;
    answer->results_count = wanted;
}

static void read_lease(struct reader *r, const json_t *root, struct mu_etcd3_answer *answer)
{
    answer->lease = mu_etcd_json_int(&r->in, root, "", "ID");
    answer->ttl_s = mu_etcd_json_int(&r->in, root, "", "TTL");
    need(r, answer->lease != 0, "", "ID");
}

static int64_t read_revision(struct reader *r, const json_t *root)
{
    const json_t *header = mu_etcd_json_object(&r->in, root, "", "header");

    need(r, header != NULL, "", "header");
    (void)mu_etcd_json_id(&r->in, header, "header.", "cluster_id"); /* an etcd has these two */
    (void)mu_etcd_json_id(&r->in, header, "header.", "member_id");
    return mu_etcd_json_int(&r->in, header, "header.", "revision");
}

static void read_success(struct reader *r, const struct mu_etcd3_request *request, const json_t *root,
                         struct mu_etcd3_answer *answer)
{
    struct mu_etcd3_result *result;

    answer->revision = read_revision(r, root);
    if (r->in.rc < 0)
        return;
    switch (request->kind) {
    case MU_ETCD3_RANGE:
        result = alloc(r, 1, sizeof *result);
        if (result != NULL)
            read_range(r, root, "", result);
        answer->results = result;
        answer->results_count = 1;
        return;
    case MU_ETCD3_TXN:
        read_txn(r, request, root, answer);
        return;
    case MU_ETCD3_GRANT:
    case MU_ETCD3_KEEP_ALIVE:
        read_lease(r, root, answer);
        return;
    case MU_ETCD3_AUTHENTICATE:
        answer->token = copy_text(r, mu_etcd_json_text(&r->in, root, "", "token"));
        need(r, answer->token.len > 0, "", "token");
        return;
    case MU_ETCD3_REVOKE:
    case MU_ETCD3_WATCH:
        return;
    }
}

/* Of a plain call {"code", "message" or "error"}, or of a stream {"error": {"grpc_code", "message"}}. */
static void read_error(struct reader *r, const json_t *root, int *ret_code, struct mu_slice *ret_message)
{
    const json_t *error = json_object_get(root, "error");
    const json_t *from = json_is_object(error) ? error : root;
    const char *path = from == root ? "" : "error.";
    int64_t code = mu_etcd_json_int(&r->in, from, path, "code");
    int64_t other = mu_etcd_json_int(&r->in, from, path, "grpc_code");
    struct mu_slice message = mu_etcd_json_text(&r->in, from, path, "message");

    if (message.len == 0 && json_is_string(error))
        message = mu_etcd_json_text(&r->in, root, "", "error");
    code = code != 0 ? code : other;
    need(r, code > 0 && code <= INT32_MAX, "", "code");
    *ret_code = (int)code;
    *ret_message = copy_text(r, message);
}

static void read_root(struct reader *r, const struct mu_etcd3_request *request, unsigned status, const json_t *root,
                      struct mu_etcd3_answer *answer)
{
    const json_t *inner = root;

    if (request->kind == MU_ETCD3_KEEP_ALIVE && json_is_object(json_object_get(root, "result")))
        inner = json_object_get(root, "result"); /* the first message of a stream */
    if (status >= 300 || json_object_get(inner, "error") != NULL)
        read_error(r, inner, &answer->code, &answer->message);
    else
        read_success(r, request, inner, answer);
}

int mu_etcd3_read(const struct mu_etcd3_request *request, unsigned status, struct mu_slice body,
                  struct mu_etcd3_answer *ret_answer, struct muster_error *reterr)
{
    struct mu_etcd3_answer answer = { 0 };
    struct reader r = { .in = { .error = reterr }, .arena = &answer.arena };
    json_t *root;

    assert(request->kind != MU_ETCD3_WATCH);
    r.in.rc = mu_etcd_json_load(status, body, &root, reterr);
    if (r.in.rc == 0) {
        read_root(&r, request, status, root, &answer);
        json_decref(root);
        if (r.in.rc < 0)
            (void)mu_wrap(reterr, r.in.rc, "HTTP %u", status);
    } else if (status == 404) {
        (void)mu_wrap(reterr, r.in.rc, "no version 3 API here (etcd 3.4 or newer has it)");
    }
    mu_buf_done(&r.bytes);
    if (r.in.rc < 0)
        mu_etcd3_answer_done(&answer);
    else
        *ret_answer = answer;
    return r.in.rc;
}

void mu_etcd3_answer_done(struct mu_etcd3_answer *answer)
{
    mu_arena_done(&answer->arena);
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

static void read_event(struct reader *r, const json_t *json, struct mu_etcd3_event *event)
{
    struct mu_slice type;

    if (!json_is_object(json)) {
        r->in.rc = mu_fail(r->in.error, MUSTER_EPROTOCOL, "'events' has an element that is not an object");
        return;
    }
    type = mu_etcd_json_text(&r->in, json, "events.", "type");
    read_kv(r, json_object_get(json, "kv"), "events.kv.", &event->kv);
    if (mu_slice_equal(type, mu_slice_str("DELETE")))
        event->kind = MU_ETCD3_DELETE;
    else if (type.len > 0 && !mu_slice_equal(type, mu_slice_str("PUT")))
        mu_etcd_json_wrong(&r->in, "events.", "type", "neither PUT nor DELETE");
}

static void read_message(struct reader *r, const json_t *root, struct mu_etcd3_message *message)
{
    const json_t *result = mu_etcd_json_object(&r->in, root, "", "result");
    struct mu_etcd3_event *events;
    json_t *array;

    if (result == NULL) {
        read_error(r, root, &message->code, &message->message);
        return;
    }
    message->revision = read_revision(r, result);
    message->created = mu_etcd_json_bool(&r->in, result, "", "created");
    message->canceled = mu_etcd_json_bool(&r->in, result, "", "canceled");
    message->compact_revision = mu_etcd_json_int(&r->in, result, "", "compact_revision");
    message->message = copy_text(r, mu_etcd_json_text(&r->in, result, "", "cancel_reason"));
    message->events_count = read_array(r, result, "", "events", &array);
    message->events = events = alloc(r, message->events_count, sizeof *events);
    for (size_t i = 0; r->in.rc == 0 && i < message->events_count; i++)
        read_event(r, json_array_get(array, i), &events[i]);
}

static int take_object(struct mu_slice text, struct mu_etcd3_message *ret_message, struct muster_error *reterr)
{
    struct mu_etcd3_message message = { 0 };
    struct reader r = { .in = { .error = reterr }, .arena = &message.arena };
    json_t *root;

    r.in.rc = mu_etcd_json_load(200, text, &root, reterr);
    if (r.in.rc == 0) {
        read_message(&r, root, &message);
        json_decref(root);
    }
    mu_buf_done(&r.bytes);
    if (r.in.rc < 0)
        mu_etcd3_message_done(&message);
    else
        *ret_message = message;
    return r.in.rc;
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
            return mu_fail(reterr, MUSTER_EPROTOCOL, "not a message of a watch: '%s'",
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
    mu_arena_done(&message->arena);
    *message = (struct mu_etcd3_message){ 0 };
}
