/* The document of the classic etcd rendezvous: reading, and writing what comes next. jansson keeps the order of fields
 * and writes ", " and ": " as Python does. */
#include "rdzv/classic_doc.h"

#include "base/texts.h"

#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#define DUMP_FLAGS (JSON_ENSURE_ASCII)
#define VERSION_MAX INT64_C(999999999999999999)
#define NOTICE_VERSION 1

MU_DEFINE_TEXTS(mu_classic_status_text, enum mu_classic_status, MU_CLASSIC_STATUSES)

/* ---- Reading ---- */

static int bad(struct muster_error *reterr, const char *what)
{
    return mu_fail(reterr, MUSTER_ERDZV_STATE, "the document is not one of a rendezvous: %s", what);
}

static bool read_status(const char *text, enum mu_classic_status *ret_status)
{
#define X(name, known)                                                                                                 \
    if (strcmp(text, known) == 0) {                                                                                    \
        *ret_status = MU_CLASSIC_##name;                                                                               \
        return true;                                                                                                   \
    }
    MU_CLASSIC_STATUSES(X)
#undef X
    return false;
}

static int read_participants(const json_t *list, struct mu_classic_doc *doc, struct muster_error *reterr)
{
    if (!json_is_array(list) || json_array_size(list) > MU_CLASSIC_NODES_MAX)
        return bad(reterr, "'participants' is no list, or too long");
    doc->participants = json_array_size(list);
    for (size_t i = 0; i < doc->participants; i++) {
        const json_t *rank = json_array_get(list, i);

        if (!json_is_integer(rank) || json_integer_value(rank) != (json_int_t)i)
            return bad(reterr, "'participants' are not 0, 1, 2, ...");
    }
    return 0;
}

static int read_keep_alives(const json_t *list, struct mu_classic_doc *doc, struct muster_error *reterr)
{
    if (!json_is_array(list) || json_array_size(list) > MU_CLASSIC_NODES_MAX)
        return bad(reterr, "'keep_alives' is no list, or too long");
    doc->keep_alives = json_array_size(list);
    for (size_t i = 0; i < doc->keep_alives; i++) {
        if (!json_is_string(json_array_get(list, i)))
            return bad(reterr, "'keep_alives' are not all texts");
    }
    return 0;
}

/* What a status must have; a closed document may have any of it, and what it has must be right. */
static int read_fields(const json_t *json, struct mu_classic_doc *doc, struct muster_error *reterr)
{
    const json_t *version = json_object_get(json, "version"), *participants = json_object_get(json, "participants");
    const json_t *keep_alives = json_object_get(json, "keep_alives");
    const json_t *waiting = json_object_get(json, "num_workers_waiting");
    bool joinable =
        doc->status == MU_CLASSIC_JOINABLE || doc->status == MU_CLASSIC_FROZEN || doc->status == MU_CLASSIC_FINAL;
    bool frozen = doc->status == MU_CLASSIC_FROZEN || doc->status == MU_CLASSIC_FINAL;
    int rc = 0;

    if ((joinable || version != NULL) &&
        (!json_is_string(version) ||
         !mu_slice_number(mu_slice_str(json_string_value(version)), VERSION_MAX, &doc->version)))
        return bad(reterr, "'version' is no number as text");
    if (joinable || participants != NULL)
        rc = read_participants(participants, doc, reterr);
    if (rc == 0 && (frozen || keep_alives != NULL))
        rc = read_keep_alives(keep_alives, doc, reterr);
    if (rc < 0)
        return rc;
    if (doc->keep_alives > doc->participants)
        return bad(reterr, "there are more 'keep_alives' than 'participants'");
    if (doc->status == MU_CLASSIC_FINAL || waiting != NULL) {
        if (!json_is_integer(waiting) || json_integer_value(waiting) < 0 || json_integer_value(waiting) > INT32_MAX)
            return bad(reterr, "'num_workers_waiting' is not a number of nodes");
        doc->waiting = json_integer_value(waiting);
    }
    return 0;
}

static json_t *load(struct mu_slice text, json_error_t *ret_why)
{
    return json_loadb(text.len > 0 ? text.data : "", text.len, 0, ret_why);
}

/* jansson says nothing then. */
static bool is_no_memory(const json_error_t *why)
{
    return json_error_code(why) == json_error_out_of_memory || json_error_code(why) == json_error_unknown;
}

int mu_classic_doc_read(struct mu_slice text, struct mu_classic_doc *ret_doc, struct muster_error *reterr)
{
    struct mu_classic_doc doc = { .version = -1 };
    json_error_t why = { .line = 0 };
    const char *status;
    json_t *json;
    int rc;

    if (text.len > MU_CLASSIC_DOC_MAX)
        return bad(reterr, "it is longer than 4 MiB");
    json = load(text, &why);
    if (json == NULL) {
        if (is_no_memory(&why))
            return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a document");
        return bad(reterr, why.text);
    }
    status = json_string_value(json_object_get(json, "status"));
    if (status == NULL)
        rc = bad(reterr, "it has no status");
    else if (!read_status(status, &doc.status))
        rc = mu_fail(reterr, MUSTER_ERDZV_STATE,
                     "the document has the status '%.32s', which this version of muster does not know", status);
    else
        rc = read_fields(json, &doc, reterr);
    if (rc < 0) {
        json_decref(json);
        return rc;
    }
    doc.json = json;
    *ret_doc = doc;
    return 0;
}

bool mu_classic_doc_is_other_layout(struct mu_slice text)
{
    bool fits = text.len <= MU_CLASSIC_DOC_MAX;
    json_error_t why = { .line = 0 };
    json_t *json = fits ? load(text, &why) : NULL;
    const char *status = json_string_value(json_object_get(json, "status"));
    enum mu_classic_status known;
    bool other = json == NULL ? fits && is_no_memory(&why) : status != NULL && !read_status(status, &known);

    json_decref(json);
    return other;
}

void mu_classic_doc_done(struct mu_classic_doc *doc)
{
    json_decref(doc->json);
    *doc = (struct mu_classic_doc){ .version = -1 };
}

const char *mu_classic_doc_keep_alive(const struct mu_classic_doc *doc, size_t index)
{
    return json_string_value(json_array_get(json_object_get(doc->json, "keep_alives"), index));
}

size_t mu_classic_doc_count_keep_alive(const struct mu_classic_doc *doc, const char *key)
{
    char text[MU_CLASSIC_KEY_MAX];
    size_t count = 0;

    for (size_t i = 0; i < doc->keep_alives; i++)
        count += mu_classic_key_clean(mu_classic_doc_keep_alive(doc, i), text, sizeof text) && strcmp(text, key) == 0;
    return count;
}

/* ---- Writing ---- */

/* jansson writes \u00E9, Python \u00e9. */
static void lower_escapes(char *text)
{
    for (char *at = strchr(text, '\\'); at != NULL; at = strchr(at + 2, '\\')) {
        for (int i = 2; at[1] == 'u' && i < 6; i++)
            at[i] = (char)(at[i] >= 'A' && at[i] <= 'F' ? at[i] - 'A' + 'a' : at[i]);
    }
}

/* Takes the object. `failed` is below 0 if a change to it was: also if there is no memory for it, and it is NULL. */
static int dump(json_t *json, int failed, struct mu_buf *out)
{
    char *text = json == NULL || failed < 0 ? NULL : json_dumps(json, DUMP_FLAGS);
    int rc;

    json_decref(json);
    if (text == NULL)
        return MUSTER_ENOMEM;
    lower_escapes(text);
    rc = mu_buf_assign(out, mu_slice_str(text));
    free(text);
    return rc;
}

/* A copy in which lists may be changed, with another status. */
static json_t *copy_as(const struct mu_classic_doc *doc, enum mu_classic_status status)
{
    json_t *copy = json_deep_copy(doc->json);

    if (copy != NULL && json_object_set_new(copy, "status", json_string(mu_classic_status_text(status))) < 0) {
        json_decref(copy);
        copy = NULL;
    }
    return copy;
}

int mu_classic_doc_setup(struct mu_buf *out)
{
    return dump(json_pack("{s:s}", "status", "setup"), 0, out);
}

int mu_classic_doc_joinable(int64_t version, struct mu_buf *out)
{
    char text[24];

    (void)snprintf(text, sizeof text, "%" PRId64, version);
    return dump(json_pack("{s:s,s:s,s:[]}", "status", "joinable", "version", text, "participants"), 0, out);
}

int mu_classic_doc_joined(const struct mu_classic_doc *doc, bool freeze, struct mu_buf *out)
{
    json_t *copy = copy_as(doc, freeze ? MU_CLASSIC_FROZEN : MU_CLASSIC_JOINABLE);
    int failed =
        json_array_append_new(json_object_get(copy, "participants"), json_integer((json_int_t)doc->participants));

    assert(doc->status == MU_CLASSIC_JOINABLE);
    if (freeze && failed == 0)
        failed = json_object_set_new(copy, "keep_alives", json_array());
    return dump(copy, failed, out);
}

int mu_classic_doc_left(const struct mu_classic_doc *doc, struct mu_buf *out)
{
    json_t *copy = copy_as(doc, MU_CLASSIC_JOINABLE);

    assert(doc->status == MU_CLASSIC_JOINABLE && doc->participants > 0);
    return dump(copy, json_array_remove(json_object_get(copy, "participants"), doc->participants - 1), out);
}

int mu_classic_doc_frozen(const struct mu_classic_doc *doc, struct mu_buf *out)
{
    json_t *copy = copy_as(doc, MU_CLASSIC_FROZEN);

    assert(doc->status == MU_CLASSIC_JOINABLE);
    return dump(copy, json_object_set_new(copy, "keep_alives", json_array()), out);
}

int mu_classic_doc_confirmed(const struct mu_classic_doc *doc, const char *key, struct mu_buf *out)
{
    bool last = doc->keep_alives + 1 == doc->participants;
    json_t *copy = copy_as(doc, last ? MU_CLASSIC_FINAL : MU_CLASSIC_FROZEN);
    int failed = json_array_append_new(json_object_get(copy, "keep_alives"), json_string(key));

    assert(doc->status == MU_CLASSIC_FROZEN);
    if (last && failed == 0)
        failed = json_object_set_new(copy, "num_workers_waiting", json_integer(0));
    return dump(copy, failed, out);
}

int mu_classic_doc_waiting(const struct mu_classic_doc *doc, int64_t waiting, struct mu_buf *out)
{
    json_t *copy = copy_as(doc, doc->status);

    return dump(copy, json_object_set_new(copy, "num_workers_waiting", json_integer(waiting)), out);
}

int mu_classic_doc_closed(const struct mu_classic_doc *doc, struct mu_buf *out)
{
    return dump(doc == NULL ? json_pack("{s:s}", "status", "closed") : copy_as(doc, MU_CLASSIC_CLOSED), 0, out);
}

/* ---- Notices ---- */

int mu_classic_notice_write(const struct mu_classic_notice *notice, struct mu_buf *out)
{
    char id[24];

    (void)snprintf(id, sizeof id, "%016" PRIx64, notice->id);
    return dump(json_pack("{s:i,s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I}", "v", NOTICE_VERSION, "id", id, "run_id",
                          notice->run_id, "name", notice->name, "pid", (json_int_t)notice->pid, "local_id",
                          (json_int_t)notice->local_id, "min", (json_int_t)notice->nodes_min, "max",
                          (json_int_t)notice->nodes_max, "version", (json_int_t)notice->version, "rank",
                          (json_int_t)notice->rank),
                0, out);
}

static bool read_text(const json_t *json, const char *name, char text[static MU_CLASSIC_NOTICE_TEXT_MAX])
{
    const char *value = json_string_value(json_object_get(json, name));
    size_t len = value == NULL ? 0 : strlen(value);

    if (len == 0 || len >= MU_CLASSIC_NOTICE_TEXT_MAX)
        return false;
    memcpy(text, value, len + 1);
    return true;
}

static bool read_number(const json_t *json, const char *name, int64_t min, int64_t *ret_number)
{
    const json_t *number = json_object_get(json, name);

    if (!json_is_integer(number) || json_integer_value(number) < min)
        return false;
    *ret_number = json_integer_value(number);
    return true;
}

static bool read_notice(const json_t *json, struct mu_classic_notice *notice)
{
    char id[MU_CLASSIC_NOTICE_TEXT_MAX];
    int64_t version;

    if (!read_number(json, "v", 1, &version) || !read_text(json, "id", id) ||
        strspn(id, "0123456789abcdef") != strlen(id) || strlen(id) > 16)
        return false;
    notice->id = strtoull(id, NULL, 16);
    return notice->id != 0 && read_text(json, "run_id", notice->run_id) && read_text(json, "name", notice->name) &&
           read_number(json, "pid", 0, &notice->pid) && read_number(json, "local_id", 0, &notice->local_id) &&
           read_number(json, "min", 1, &notice->nodes_min) && read_number(json, "max", 1, &notice->nodes_max) &&
           read_number(json, "version", -1, &notice->version) && read_number(json, "rank", -1, &notice->rank);
}

bool mu_classic_notice_read(struct mu_slice text, struct mu_classic_notice *ret_notice)
{
    struct mu_classic_notice notice = { .rank = -1 };
    json_t *json = text.len == 0 || text.len > MU_CLASSIC_NOTICE_MAX
                       ? NULL
                       : json_loadb(text.data, text.len, JSON_REJECT_DUPLICATES, NULL);
    bool good = json != NULL && read_notice(json, &notice);

    json_decref(json);
    if (good)
        *ret_notice = notice;
    return good;
}

/* ---- Keys ---- */

bool mu_classic_key_clean(const char *key, char *text, size_t room)
{
    size_t len = 0;

    while (*key != '\0') {
        size_t part = strcspn(key, "/");

        if (part == 2 && memcmp(key, "..", 2) == 0) {
            while (len > 0 && text[--len] != '/')
                continue;
        } else if (part > 0 && !(part == 1 && key[0] == '.')) {
            if (len + part + 2 > room)
                return false;
            text[len++] = '/';
            memcpy(text + len, key, part);
            len += part;
        }
        key += part;
        key += *key == '/' ? 1 : 0;
    }
    if (room < 2)
        return false;
    if (len == 0)
        text[len++] = '/';
    text[len] = '\0';
    return true;
}
