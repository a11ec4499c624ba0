/* etcd's keys API, version 2. */
#include "kv/etcd2.h"

#include "base/words.h"
#include "kv/etcd_json.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { NUMBER_MAX = 24, WIRE_MAX = 200 << 20, SAMPLE_MAX = 160, KEY_SHOWN_MAX = 100 };

/* ---- Requests ---- */

static int append(struct mu_buf *out, const char *text)
{
    return mu_buf_append(out, text, strlen(text), WIRE_MAX);
}

static bool is_plain(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.' || c == '~';
}

/* As part of a form or a query (a blank is "+"), or of a path. */
static int append_escaped(struct mu_buf *out, struct mu_slice bytes, bool path)
{
    static const char digits[] = "0123456789ABCDEF";
    int rc = mu_buf_reserve(out, bytes.len, WIRE_MAX);

    for (size_t i = 0; rc == 0 && i < bytes.len; i++) {
        unsigned char c = (unsigned char)bytes.data[i];
        char escaped[3] = { '%', digits[c >> 4], digits[c & 15] };

        if (is_plain(c))
            rc = mu_buf_append(out, &bytes.data[i], 1, WIRE_MAX);
        else if (c == ' ' && !path)
            rc = mu_buf_append(out, "+", 1, WIRE_MAX);
        else
            rc = mu_buf_append(out, escaped, sizeof escaped, WIRE_MAX);
    }
    return rc;
}

/* Segment by segment, without empty ones: what etcd makes of the key anyway, but for that it would redirect us. */
static int append_path(struct mu_buf *out, struct mu_slice key, struct muster_error *reterr)
{
    int rc = append(out, "/v2/keys");
    size_t at = 0;

    while (rc == 0 && at < key.len) {
        const char *start = key.data + at, *end = memchr(start, '/', key.len - at);
        struct mu_slice segment = mu_slice(start, end == NULL ? key.len - at : (size_t)(end - start));

        at += segment.len + 1;
        if (segment.len == 0)
            continue;
        if (mu_slice_equal(segment, mu_slice(".", 1)) || mu_slice_equal(segment, mu_slice("..", 2)))
            return mu_fail(reterr, MUSTER_EINVAL, "'.' and '..' cannot be parts of a key");
        rc = append(out, "/");
        if (rc == 0)
            rc = append_escaped(out, segment, true);
    }
    if (rc == 0 && out->len == strlen("/v2/keys"))
        rc = append(out, "/");
    return rc;
}

/* name=value, with what separates it from the one before. */
static int add_field(struct mu_buf *out, const char *separator, const char *name, struct mu_slice value)
{
    int rc = append(out, separator);

    if (rc == 0)
        rc = append(out, name);
    if (rc == 0)
        rc = append(out, "=");
    return rc == 0 ? append_escaped(out, value, false) : rc;
}

struct fields { /* of a form or a query */
    struct mu_buf *out;
    bool query;
    size_t count;
    int rc;
};

static void field(struct fields *fields, const char *name, struct mu_slice value)
{
    const char *separator = fields->count > 0 ? "&" : fields->query ? "?" : "";

    if (fields->rc == 0)
        fields->rc = add_field(fields->out, separator, name, value);
    fields->count++;
}

static void field_if(struct fields *fields, bool wanted, const char *name)
{
    if (wanted)
        field(fields, name, mu_slice("true", 4));
}

static void field_number(struct fields *fields, const char *name, uint64_t number)
{
    char text[NUMBER_MAX];
    int len = snprintf(text, sizeof text, "%" PRIu64, number);

    if (number > 0)
        field(fields, name, mu_slice(text, (size_t)len));
}

static void add_conditions(struct fields *fields, const struct mu_etcd2_request *request)
{
    if (request->has_prev_value)
        field(fields, "prevValue", request->prev_value);
    field_number(fields, "prevIndex", request->prev_index);
}

static int add_form(struct mu_buf *body, const struct mu_etcd2_request *request)
{
    struct fields fields = { .out = body };

    if (request->has_value)
        field(&fields, "value", request->value);
    field_number(&fields, "ttl", (uint64_t)request->ttl_s);
    field_if(&fields, request->dir, "dir");
    if (request->prev_exist != MU_ETCD2_ANY)
        field(&fields, "prevExist", mu_slice_str(request->prev_exist == MU_ETCD2_MUST ? "true" : "false"));
    add_conditions(&fields, request);
    field_if(&fields, request->refresh, "refresh");
    field_if(&fields, request->no_value, "noValueOnSuccess");
    return fields.rc;
}

static int add_query(struct mu_buf *target, const struct mu_etcd2_request *request)
{
    struct fields fields = { .out = target, .query = true };

    field_if(&fields, request->kind == MU_ETCD2_WATCH, "wait");
    field_number(&fields, "waitIndex", request->wait_index);
    field_if(&fields, request->recursive, "recursive");
    field_if(&fields, request->sorted, "sorted");
    field_if(&fields, request->quorum, "quorum");
    if (request->kind == MU_ETCD2_DELETE) {
        field_if(&fields, request->dir, "dir");
        add_conditions(&fields, request);
    }
    return fields.rc;
}

static int check(const struct mu_etcd2_request *request, struct muster_error *reterr)
{
    assert(request->ttl_s >= 0);
    if (request->key.len == 0 || request->key.data[0] != '/' ||
        memchr(request->key.data, '\0', request->key.len) != NULL)
        return mu_fail(reterr, MUSTER_EINVAL, "a key begins with '/' and has no NUL in it");
    if (request->key.len > MU_ETCD2_KEY_MAX)
        return mu_fail(reterr, MUSTER_ELIMIT, "a key of %zu bytes is too long", request->key.len);
    if (request->value.len > MU_ETCD2_VALUE_MAX || request->prev_value.len > MU_ETCD2_VALUE_MAX)
        return mu_fail(reterr, MUSTER_ELIMIT, "a value of more than %u bytes is too long", MU_ETCD2_VALUE_MAX);
    return 0;
}

int mu_etcd2_build(const struct mu_etcd2_request *request, struct mu_etcd2_wire *ret_wire, struct muster_error *reterr)
{
    static const char *const methods[] = { "GET", "PUT", "DELETE", "GET" };
    struct mu_etcd2_wire wire = { .method = methods[request->kind] };
    int rc = check(request, reterr);

    if (rc < 0)
        return rc;
    rc = append_path(&wire.target, request->key, reterr);
    if (rc == 0)
        rc = request->kind == MU_ETCD2_PUT ? add_form(&wire.body, request) : add_query(&wire.target, request);
    if (rc == 0)
        rc = mu_buf_append(&wire.target, "", 1, WIRE_MAX);
    if (rc == 0) {
        *ret_wire = wire;
        return 0;
    }
    mu_etcd2_wire_done(&wire);
    return rc == MUSTER_EINVAL ? rc : mu_fail(reterr, rc, "no memory for a request");
}

void mu_etcd2_wire_done(struct mu_etcd2_wire *wire)
{
    mu_buf_done(&wire->target);
    mu_buf_done(&wire->body);
}

bool mu_etcd2_is_repeatable(const struct mu_etcd2_request *request)
{
    switch (request->kind) {
    case MU_ETCD2_GET:
    case MU_ETCD2_WATCH:
        return true;
    case MU_ETCD2_PUT: /* that it must be there stays true */
        return request->prev_exist != MU_ETCD2_MUST_NOT && request->prev_index == 0 && !request->has_prev_value;
    case MU_ETCD2_DELETE:
        return false;
    }
    return false;
}

static const char *verb(const struct mu_etcd2_request *request)
{
    switch (request->kind) {
    case MU_ETCD2_GET:
        return "get";
    case MU_ETCD2_WATCH:
        return "watch";
    case MU_ETCD2_DELETE:
        return request->has_prev_value || request->prev_index > 0 ? "compare and delete" : "delete";
    case MU_ETCD2_PUT:
        break;
    }
    if (request->refresh)
        return "refresh";
    if (request->has_prev_value || request->prev_index > 0)
        return "compare and set";
    return request->prev_exist == MU_ETCD2_MUST_NOT ? "create" : request->dir ? "make directory" : "set";
}

const char *mu_etcd2_text(const struct mu_etcd2_request *request, char *text, size_t room)
{
    char key[KEY_SHOWN_MAX];

    (void)snprintf(text, room, "%s '%s'", verb(request), mu_words_plain(request->key, key, sizeof key));
    return text;
}

/* ---- Answers ---- */

static int read_node(const json_t *json, const char *path, struct mu_etcd2_node *ret_node, struct muster_error *reterr)
{
    struct mu_etcd_reader r = { .error = reterr };
    struct mu_etcd2_node node = { .modified = 0 };

    node.key = mu_etcd_json_text(&r, json, path, "key");
    node.value = mu_etcd_json_text(&r, json, path, "value");
    node.dir = mu_etcd_json_bool(&r, json, path, "dir");
    node.ttl_s = mu_etcd_json_int(&r, json, path, "ttl");
    node.modified = mu_etcd_json_id(&r, json, path, "modifiedIndex");
    if (r.rc < 0)
        return r.rc;
    if (node.key.len == 0 && !node.dir) /* the root has none */
        return mu_fail(reterr, MUSTER_EPROTOCOL, "'%skey' is missing", path);
    if (node.key.len > 0 && node.modified == 0)
        return mu_fail(reterr, MUSTER_EPROTOCOL, "'%smodifiedIndex' is missing", path);
    *ret_node = node;
    return 0;
}

static int add_node(struct mu_etcd2_answer *answer, size_t *room, const struct mu_etcd2_node *node,
                    struct muster_error *reterr)
{
    if (answer->nodes_count == MU_ETCD2_NODES_MAX)
        return mu_fail(reterr, MUSTER_ELIMIT, "there are more than %d nodes", MU_ETCD2_NODES_MAX);
    if (answer->nodes_count == *room) {
        size_t more = *room == 0 ? 1 : 2 * *room;
        struct mu_etcd2_node *nodes = realloc(answer->nodes, more * sizeof *nodes);

        if (nodes == NULL)
            return mu_fail(reterr, MUSTER_ENOMEM, "no memory for the answer");
        answer->nodes = nodes;
        *room = more;
    }
    answer->nodes[answer->nodes_count++] = *node;
    return 0;
}

static int read_nodes(struct mu_etcd2_answer *answer, size_t *room, const json_t *json, unsigned depth,
                      struct muster_error *reterr)
{
    const char *path = depth == 0 ? "node." : "node.nodes.";
    struct mu_etcd_reader r = { .error = reterr };
    struct mu_etcd2_node node;
    json_t *children, *child;
    size_t index;
    int rc = json_is_object(json)
                 ? read_node(json, path, &node, reterr)
                 : mu_fail(reterr, MUSTER_EPROTOCOL, "'node.nodes' has an element that is not an object");

    if (rc < 0)
        return rc;
    if (depth > MU_ETCD2_DEPTH_MAX)
        return mu_fail(reterr, MUSTER_ELIMIT, "directories are deeper than %d", MU_ETCD2_DEPTH_MAX);
    node.depth = depth;
    r.rc = add_node(answer, room, &node, reterr);
    children = mu_etcd_json_array(&r, json, path, "nodes");
    if (r.rc < 0)
        return r.rc;
    json_array_foreach(children, index, child)
    {
        rc = read_nodes(answer, room, child, depth + 1, reterr);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static bool is_write(struct mu_slice action)
{
    static const char *const writes[] = { "set", "create", "update", "compareAndSwap" };

    for (size_t i = 0; i < sizeof writes / sizeof writes[0]; i++)
        if (mu_slice_equal(action, mu_slice_str(writes[i])))
            return true;
    return false;
}

static int read_success(const json_t *root, struct mu_etcd2_answer *answer, struct muster_error *reterr)
{
    struct mu_etcd_reader r = { .error = reterr };
    const json_t *node, *prev;
    size_t room = 0;

    answer->action = mu_etcd_json_text(&r, root, "", "action");
    node = mu_etcd_json_object(&r, root, "", "node");
    if (r.rc == 0 && node == NULL && !is_write(answer->action))
        r.rc = mu_fail(reterr, MUSTER_EPROTOCOL, "'node' is missing");
    if (r.rc == 0 && answer->index == 0) /* a watch would have to guess its start, and be answered at once for ever */
        r.rc = mu_fail(reterr, MUSTER_EPROTOCOL, "the header X-Etcd-Index is missing; is there a proxy that drops it?");
    if (r.rc == 0 && node != NULL)
        r.rc = read_nodes(answer, &room, node, 0, reterr);
    prev = mu_etcd_json_object(&r, root, "", "prevNode");
    answer->has_prev = prev != NULL;
    return prev != NULL ? read_node(prev, "prevNode.", &answer->prev, reterr) : r.rc;
}

static int read_failure(const json_t *root, struct mu_etcd2_answer *answer, struct muster_error *reterr)
{
    struct mu_etcd_reader r = { .error = reterr };
    char message[SAMPLE_MAX];
    int64_t code = mu_etcd_json_int(&r, root, "", "errorCode");
    uint64_t index;

    answer->message = mu_etcd_json_text(&r, root, "", "message");
    answer->cause = mu_etcd_json_text(&r, root, "", "cause");
    index = mu_etcd_json_id(&r, root, "", "index");
    if (r.rc < 0)
        return r.rc;
    if (code <= 0 || code > INT32_MAX)
        return mu_fail(reterr, MUSTER_EPROTOCOL, "'errorCode' is missing, '%s'",
                       mu_words_plain(answer->message, message, sizeof message));
    answer->code = (int)code;
    if (answer->index == 0)
        answer->index = index;
    return 0;
}

int mu_etcd2_read(unsigned status, uint64_t index, struct mu_slice body, struct mu_etcd2_answer *ret_answer,
                  struct muster_error *reterr)
{
    struct mu_etcd2_answer answer = { .index = index };
    json_t *root;
    int rc = mu_etcd_json_load(status, body, &root, reterr);

    if (rc < 0)
        return status == 404 ? mu_wrap(reterr, rc, "no version 2 API here (etcd needs --enable-v2)") : rc;
    answer.json = root;
    rc = status < 300 ? read_success(root, &answer, reterr) : read_failure(root, &answer, reterr);
    if (rc < 0) {
        mu_etcd2_answer_done(&answer);
        return mu_wrap(reterr, rc, "HTTP %u", status);
    }
    *ret_answer = answer;
    return 0;
}

void mu_etcd2_answer_done(struct mu_etcd2_answer *answer)
{
    free(answer->nodes);
    json_decref(answer->json);
    *answer = (struct mu_etcd2_answer){ 0 };
}

int mu_etcd2_fail(const struct mu_etcd2_answer *answer, unsigned status, struct muster_error *reterr)
{
    char message[SAMPLE_MAX], cause[SAMPLE_MAX];
    bool trouble = answer->code == MU_ETCD2_RAFT || answer->code == MU_ETCD2_ELECTION;

    return mu_fail(reterr, trouble ? MUSTER_ELOST : MUSTER_EINVAL, "HTTP %u, %d %s (%s)", status, answer->code,
                   mu_words_plain(answer->message, message, sizeof message),
                   mu_words_plain(answer->cause, cause, sizeof cause));
}

bool mu_etcd2_is_away(int rc)
{
    return rc == MUSTER_ETIMEOUT || rc == MUSTER_ECONNECT || rc == MUSTER_ELOST || rc == MUSTER_ERESOLVE;
}
