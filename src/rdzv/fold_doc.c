#include "rdzv/fold_doc.h"

#include "base/texts.h"
#include "base/words.h"
#include "rdzv/slowdown.h"

#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- Identities ---- */

const char *mu_fold_id_text(uint64_t id, char text[static MU_FOLD_ID_TEXT_MAX])
{
    (void)snprintf(text, MU_FOLD_ID_TEXT_MAX, "%016" PRIx64, id);
    return text;
}

bool mu_fold_id_parse(struct mu_slice text, uint64_t *ret_id)
{
    uint64_t id = 0;

    if (text.len != MU_FOLD_ID_TEXT_MAX - 1)
        return false;
    for (size_t i = 0; i < text.len; i++) {
        char c = text.data[i];

        if (c >= '0' && c <= '9')
            id = id << 4 | (uint64_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            id = id << 4 | (uint64_t)(c - 'a' + 10);
        else
            return false;
    }
    *ret_id = id;
    return true;
}

static json_t *id_json(uint64_t id)
{
    char text[MU_FOLD_ID_TEXT_MAX];

    return json_string(mu_fold_id_text(id, text));
}

/* ---- Writing ---- */

static int append_bytes(const char *bytes, size_t len, void *ctx)
{
    return mu_buf_append(ctx, bytes, len, MU_FOLD_VALUE_MAX) < 0 ? -1 : 0;
}

/* Takes `json`, which may be NULL: no memory. */
static int dump(json_t *json, struct mu_buf *out)
{
    size_t before;
    int rc = 0;

    out->len = 0;
    if (json == NULL)
        return MUSTER_ENOMEM;
    before = json_dumpb(json, NULL, 0, JSON_COMPACT);
    if (before > MU_FOLD_VALUE_MAX)
        rc = MUSTER_ELIMIT;
    else if (before == 0 || json_dump_callback(json, append_bytes, out, JSON_COMPACT) != 0 || out->len != before)
        rc = MUSTER_ENOMEM; /* of a name that does not fit jansson says nothing */
    if (rc < 0)
        out->len = 0;
    json_decref(json);
    return rc;
}

static MU_DEFINE_TEXTS(end_text, enum mu_fold_end_kind, MU_FOLD_ENDS)

/* NULL: no memory. Takes both. */
static json_t *append(json_t *array, json_t *item)
{
    if (json_array_append_new(array, item) == 0)
        return array;
    json_decref(array);
    return NULL;
}

/* The same, of an object. */
static json_t *with(json_t *object, const char *key, json_t *item)
{
    if (json_object_set_new(object, key, item) == 0)
        return object;
    json_decref(object);
    return NULL;
}

static json_t *with_host(json_t *object, const struct mu_fold_host *host)
{
    if (host->name[0] == '\0')
        return object;
    return with(object, "host", json_pack("[I,s]", (json_int_t)host->rank, host->name));
}

/* NULL: no memory. */
static json_t *charges_json(const int64_t *charges, size_t count)
{
    json_t *array = json_array();

    for (size_t i = 0; i < count; i++)
        array = append(array, json_integer((json_int_t)charges[i]));
    return array;
}

static json_t *end_json(const struct mu_fold_end *end)
{
    if (end->kind == MU_FOLD_END_NONE)
        return json_null();
    return json_pack("[s,o,I,I,s]", end_text(end->kind), id_json(end->world), (json_int_t)end->rank,
                     (json_int_t)end->at, end->text);
}

int mu_fold_record_write(const struct mu_fold_record *record, struct mu_buf *out)
{
    json_t *json = json_pack(
        "{s:i,s:s,s:I,s:I,s:I,s:I,s:I,s:s,s:o,s:I,s:I,s:I,s:I,s:I,s:s,s:I,s:I,s:I,s:o}", "v", MU_FOLD_VERSION, "name",
        record->name, "pid", (json_int_t)record->pid, "local_id", (json_int_t)record->local_id, "min",
        (json_int_t)record->nodes_min, "max", (json_int_t)record->nodes_max, "seq", (json_int_t)record->seq, "want",
        record->joining ? "join" : "stay", "world", id_json(record->world), "round", (json_int_t)record->round, "rank",
        (json_int_t)record->rank, "nodes", (json_int_t)record->nodes, "count", (json_int_t)record->count, "world_size",
        (json_int_t)record->world_size, "role", record->role, "size", (json_int_t)record->size, "max_restarts",
        (json_int_t)record->max_restarts, "window_s", (json_int_t)record->window_s, "end", end_json(&record->end));

    if (record->charges_count > 0)
        json = with(json, "charges", charges_json(record->charges, record->charges_count));
    if (record->crashes > 0)
        json = with(json, "crashes", json_integer((json_int_t)record->crashes));
    return dump(with_host(json, &record->host), out);
}

static int write_world(const struct mu_fold_world *world, struct mu_buf *out)
{
    json_t *charges = charges_json(world->charges, world->charges_count), *json;

    json = json_pack("{s:i,s:o,s:I,s:I,s:I,s:I,s:I,s:I,s:o,s:I,s:I,s:b,s:[s,I,I],s:s}", "v", MU_FOLD_VERSION, "world",
                     id_json(world->id), "round", (json_int_t)world->round, "nodes", (json_int_t)world->nodes, "size",
                     (json_int_t)world->size, "count", (json_int_t)world->count, "max_restarts",
                     (json_int_t)world->max_restarts, "window_s", (json_int_t)world->window_s, "charges", charges,
                     "crashes", (json_int_t)world->crashes, "hold_ms", (json_int_t)world->hold_ms, "one_host",
                     (int)world->one_host, "first", world->first, (json_int_t)world->first_pid,
                     (json_int_t)world->first_local_id, "why", world->why);
    if (world->rest_ms > 0)
        json = with(json, "rest_ms", json_integer((json_int_t)world->rest_ms));
    return dump(with_host(json, &world->host), out);
}

/* False: nothing is left of it. */
static bool cut(char *text)
{
    size_t len = strlen(text);

    if (len > 0)
        text[len - 1] = '\0';
    return len > 0;
}

/* What does not fit of `why` is cut: quotes take twice their room. */
int mu_fold_world_write(const struct mu_fold_world *world, struct mu_buf *out)
{
    struct mu_fold_world small = *world;
    int rc = write_world(world, out);

    while (rc == 0 && out->len > MU_FOLD_SMALL_MAX && cut(small.why))
        rc = write_world(&small, out);
    assert(rc < 0 || out->len <= MU_FOLD_SMALL_MAX);
    return rc;
}

int mu_fold_seat_write(const struct mu_fold_seat *seat, struct mu_buf *out)
{
    return dump(json_pack("{s:i,s:I,s:I,s:I,s:I}", "v", MU_FOLD_VERSION, "rank", (json_int_t)seat->rank, "base",
                          (json_int_t)seat->base_rank, "role_base", (json_int_t)seat->base_role_rank, "role_size",
                          (json_int_t)seat->role_size),
                out);
}

static json_t *member_json(const struct mu_fold_member *member)
{
    if (member->id == 0)
        return json_null();
    return json_pack("[o,s%,I,I]", id_json(member->id), member->node.name.data, member->node.name.len,
                     (json_int_t)member->node.pid, (json_int_t)member->node.local_id);
}

int mu_fold_page_write(const struct mu_fold_member *members, size_t count, struct mu_buf *out)
{
    json_t *array = json_array();

    assert(count <= MU_FOLD_PAGE_MEMBERS);
    for (size_t i = 0; i < count; i++)
        array = append(array, member_json(&members[i]));
    return dump(json_pack("{s:i,s:o}", "v", MU_FOLD_VERSION, "members", array), out);
}

static json_t *spans_json(const struct mu_fold_span *spans, size_t count)
{
    json_t *array = json_array();

    for (size_t i = 0; i < count; i++)
        array = append(array, json_pack("[I,I]", (json_int_t)spans[i].first, (json_int_t)spans[i].last));
    return array;
}

static int write_news(const struct mu_fold_news *news, struct mu_buf *out)
{
    json_t *lost = json_array(), *json;

    for (size_t i = 0; i < news->lost_count; i++)
        lost = append(lost, json_string(news->lost[i]));
    json = json_pack("{s:i,s:o,s:b,s:s,s:I,s:I,s:o,s:o,s:I,s:I,s:I,s:I,s:I,s:s,s:[s,I],s:I,s:I,s:b}", "v",
                     MU_FOLD_VERSION, "world", id_json(news->world), "over", (int)news->over, "cause", news->cause,
                     "gone", (json_int_t)news->gone, "missing", (json_int_t)news->missing, "ranks",
                     spans_json(news->spans, news->spans_count), "lost", lost, "waiting", (json_int_t)news->waiting,
                     "spares", (json_int_t)news->spares, "joined", (json_int_t)news->joined, "apart",
                     (json_int_t)news->apart, "newcomers", (json_int_t)news->newcomers, "who", news->who, "held",
                     news->held, (json_int_t)news->held_ms, "pause_ms", (json_int_t)news->pause_ms, "last_call_ms",
                     (json_int_t)news->last_call_ms, "grace", (int)news->grace);
    if (news->done_count > 0)
        json = with(json, "done", spans_json(news->done, news->done_count));
    return dump(json, out);
}

/* Names that do not fit are left out, and then what does not fit of the texts is cut. */
int mu_fold_news_write(const struct mu_fold_news *news, struct mu_buf *out)
{
    struct mu_fold_news small = *news;
    int rc = write_news(news, out);

    while (rc == 0 && out->len > MU_FOLD_SMALL_MAX &&
           (small.lost_count > 0 ? small.lost_count-- > 0 : cut(small.cause) || cut(small.held)))
        rc = write_news(&small, out);
    assert(rc < 0 || out->len <= MU_FOLD_SMALL_MAX);
    return rc;
}

int mu_fold_mark_write(uint64_t node, struct mu_buf *out)
{
    return dump(json_pack("{s:i,s:o}", "v", MU_FOLD_VERSION, "node", id_json(node)), out);
}

int mu_fold_closed_write(const struct mu_fold_closed *closed, struct mu_buf *out)
{
    return dump(json_pack("{s:i,s:o,s:s,s:s}", "v", MU_FOLD_VERSION, "node", id_json(closed->node), "verdict",
                          !closed->has_verdict ? ""
                          : closed->succeeded  ? "succeeded"
                                               : "failed",
                          "cause", closed->cause),
                out);
}

int mu_fold_master_write(const struct mu_fold_master *master, struct mu_buf *out)
{
    return dump(json_pack("{s:i,s:o,s:s,s:i,s:i}", "v", MU_FOLD_VERSION, "world", id_json(master->world), "addr",
                          master->addr, "port", (int)master->port, "agents_port", (int)master->agents_port),
                out);
}

/* ---- Reading ---- */

/* The first failure stays; what is read after it is of no use. */
struct reader {
    const char *what;
    json_t *json; /* NULL: a failure */
    int rc;
    struct muster_error *reterr;
};

static void wrong(struct reader *r, const char *name)
{
    if (r->rc == 0)
        r->rc = mu_fail(r->reterr, MUSTER_ERDZV_STATE, "%s: '%s' is missing or wrong", r->what, name);
}

static void no_memory(struct reader *r)
{
    r->rc = mu_fail(r->reterr, MUSTER_ENOMEM, "%s", r->what);
}

static int64_t version_of(const json_t *json)
{
    return json_integer_value(json_object_get(json, "v")); /* 0: there is none */
}

static struct reader begin(struct mu_slice bytes, const char *what, struct muster_error *reterr)
{
    struct reader r = { .what = what, .reterr = reterr };
    json_error_t error = { .line = 0 };
    enum json_error_code code;

    if (bytes.len > MU_FOLD_VALUE_MAX) {
        r.rc = mu_fail(reterr, MUSTER_ERDZV_STATE, "%s: its %zu bytes are more than %u", what, bytes.len,
                       MU_FOLD_VALUE_MAX);
        return r;
    }
    r.json = json_loadb(bytes.data == NULL ? "" : bytes.data, bytes.len, JSON_REJECT_DUPLICATES, &error);
    code = json_error_code(&error);
    if (r.json != NULL && version_of(r.json) < 1)
        wrong(&r, "v");
    else if (r.json != NULL && version_of(r.json) != MU_FOLD_VERSION)
        r.rc = mu_fail(reterr, MUSTER_ERDZV_STATE,
                       "%s: another version of muster wrote it (its values are of version %" PRId64
                       ", ours of version %d)",
                       what, version_of(r.json), MU_FOLD_VERSION);
    else if (r.json == NULL && (code == json_error_out_of_memory || code == json_error_unknown))
        no_memory(&r); /* for want of memory jansson mostly says nothing */
    else if (r.json == NULL)
        r.rc = mu_fail(reterr, MUSTER_ERDZV_STATE, "%s: byte %d: %.100s", what, error.position, error.text);
    return r;
}

static int end(struct reader *r)
{
    json_decref(r->json);
    return r->rc;
}

bool mu_fold_is_other_version(struct mu_slice bytes)
{
    struct reader r = begin(bytes, "", NULL);
    bool other = version_of(r.json) >= 1 && version_of(r.json) != MU_FOLD_VERSION;

    return end(&r) == MUSTER_ENOMEM || other;
}

static bool get_int(const json_t *json, int64_t min, int64_t max, int64_t *ret_number)
{
    if (!json_is_integer(json) || json_integer_value(json) < min || json_integer_value(json) > max)
        return false;
    *ret_number = json_integer_value(json);
    return true;
}

static void read_int(struct reader *r, const char *name, int64_t min, int64_t max, int64_t *ret_number)
{
    if (!get_int(json_object_get(r->json, name), min, max, ret_number))
        wrong(r, name);
}

static uint16_t read_port(struct reader *r, const char *name)
{
    int64_t port = 0;

    read_int(r, name, 1, UINT16_MAX, &port);
    return (uint16_t)port;
}

static bool get_id(const json_t *json, uint64_t *ret_id)
{
    return json_is_string(json) &&
           mu_fold_id_parse(mu_slice(json_string_value(json), json_string_length(json)), ret_id);
}

static uint64_t read_id(struct reader *r, const char *name)
{
    uint64_t id = 0;

    if (!get_id(json_object_get(r->json, name), &id))
        wrong(r, name);
    return id;
}

/* Terminated, with at least one byte and at most room - 1. */
static bool get_text(const json_t *json, char *text, size_t room)
{
    if (!json_is_string(json) || json_string_length(json) == 0 || json_string_length(json) >= room ||
        strlen(json_string_value(json)) != json_string_length(json))
        return false;
    memcpy(text, json_string_value(json), json_string_length(json) + 1);
    return true;
}

static void read_text(struct reader *r, const char *name, char *text, size_t room)
{
    if (!get_text(json_object_get(r->json, name), text, room))
        wrong(r, name);
}

/* As read_text(), and may be empty. */
static void read_short(struct reader *r, const char *name, char *text, size_t room)
{
    const json_t *json = json_object_get(r->json, name);

    if (json_is_string(json) && json_string_length(json) == 0)
        text[0] = '\0';
    else if (!get_text(json, text, room))
        wrong(r, name);
}

static void read_end(struct reader *r, struct mu_fold_end *end)
{
    const json_t *json = json_object_get(r->json, "end");
    const char *kind = json_string_value(json_array_get(json, 0)), *text = json_string_value(json_array_get(json, 4));

    if (json_is_null(json))
        return;
    for (int i = MU_FOLD_END_FAILED; kind != NULL && i <= MU_FOLD_END_LOST; i++)
        if (strcmp(kind, end_text((enum mu_fold_end_kind)i)) == 0)
            end->kind = (enum mu_fold_end_kind)i;
    if (end->kind == MU_FOLD_END_NONE || !get_id(json_array_get(json, 1), &end->world) ||
        !get_int(json_array_get(json, 2), -1, INT64_MAX, &end->rank) ||
        !get_int(json_array_get(json, 3), 0, INT64_MAX, &end->at) || text == NULL || strlen(text) >= sizeof end->text)
        wrong(r, "end");
    else
        (void)mu_words_plain(mu_slice_str(text), end->text, sizeof end->text);
}

static void read_charges(struct reader *r, int64_t *charges, size_t *ret_count)
{
    const json_t *json = json_object_get(r->json, "charges");

    if (!json_is_array(json) || json_array_size(json) > MU_FOLD_CHARGES_MAX)
        wrong(r, "charges");
    for (size_t i = 0; r->rc == 0 && i < json_array_size(json); i++)
        if (!get_int(json_array_get(json, i), 0, MU_FOLD_WINDOW_MAX_S, &charges[(*ret_count)++]))
            wrong(r, "charges");
}

/* Optional. */
static void read_host(struct reader *r, int64_t nodes, struct mu_fold_host *host)
{
    const json_t *json = json_object_get(r->json, "host");
    char name[MU_FOLD_SHOWN_MAX];

    if (json == NULL)
        return;
    if (!get_int(json_array_get(json, 0), 0, nodes - 1, &host->rank) ||
        !get_text(json_array_get(json, 1), name, sizeof name))
        wrong(r, "host");
    else
        (void)mu_words_plain(mu_slice_str(name), host->name, sizeof host->name);
}

int mu_fold_record_read(struct mu_slice bytes, struct mu_fold_record *ret_record, struct muster_error *reterr)
{
    struct mu_fold_record record = { .pid = 0 };
    struct reader r = begin(bytes, "the record of a node", reterr);
    int64_t seq = 0;
    char want[sizeof "join"];

    read_text(&r, "name", record.name, sizeof record.name);
    read_int(&r, "pid", 0, INT64_MAX, &record.pid);
    read_int(&r, "local_id", 0, INT64_MAX, &record.local_id);
    read_int(&r, "min", 1, INT64_MAX, &record.nodes_min);
    read_int(&r, "max", 1, INT64_MAX, &record.nodes_max);
    read_int(&r, "seq", 0, INT64_MAX, &seq);
    record.seq = (uint64_t)seq;
    record.world = read_id(&r, "world");
    read_int(&r, "size", 1, MU_FOLD_SIZE_MAX, &record.size);
    read_int(&r, "max_restarts", 0, INT64_MAX, &record.max_restarts);
    read_int(&r, "window_s", 0, MU_FOLD_WINDOW_MAX_S, &record.window_s);
    read_short(&r, "role", record.role, sizeof record.role);
    read_end(&r, &record.end);
    read_text(&r, "want", want, sizeof want);
    if (r.rc == 0 && strcmp(want, "join") != 0 && strcmp(want, "stay") != 0)
        wrong(&r, "want");
    if (r.rc == 0) {
        record.joining = strcmp(want, "join") == 0;
        if (!record.joining || json_integer_value(json_object_get(r.json, "nodes")) != 0) {
            if (record.world == 0)
                wrong(&r, "world");
            read_int(&r, "round", 0, MU_DOC_ROUND_MAX, &record.round);
            read_int(&r, "nodes", 1, MU_FOLD_MEMBERS_MAX, &record.nodes);
            read_int(&r, "rank", record.joining ? -1 : 0, record.nodes - 1, &record.rank);
            read_int(&r, "count", 0, MU_FOLD_COUNT_MAX, &record.count);
            read_int(&r, "world_size", 1, MU_FOLD_WORKERS_MAX, &record.world_size);
            if (json_object_get(r.json, "charges") != NULL)
                read_charges(&r, record.charges, &record.charges_count);
            if (json_object_get(r.json, "crashes") != NULL)
                read_int(&r, "crashes", 0, MU_FOLD_COUNT_MAX, &record.crashes);
            read_host(&r, record.nodes, &record.host);
        }
    }
    if (r.rc == 0)
        *ret_record = record;
    return end(&r);
}

int mu_fold_world_read(struct mu_slice bytes, struct mu_fold_world *ret_world, struct muster_error *reterr)
{
    struct reader r = begin(bytes, "the world of a round", reterr);
    struct mu_fold_world world = { .id = read_id(&r, "world") };
    const json_t *first = json_object_get(r.json, "first");
    const char *name = json_string_value(json_array_get(first, 0));
    int64_t hold_ms = 0;

    if (world.id == 0)
        wrong(&r, "world");
    read_int(&r, "round", 0, MU_DOC_ROUND_MAX, &world.round);
    read_int(&r, "nodes", 1, MU_FOLD_MEMBERS_MAX, &world.nodes);
    read_int(&r, "hold_ms", 0, MU_FOLD_HOLD_MAX_MS, &hold_ms);
    world.hold_ms = (uint64_t)hold_ms;
    world.one_host = json_is_true(json_object_get(r.json, "one_host"));
    read_int(&r, "size", 1, MU_FOLD_WORKERS_MAX, &world.size);
    read_int(&r, "count", 0, MU_FOLD_COUNT_MAX, &world.count);
    read_int(&r, "max_restarts", 0, INT64_MAX, &world.max_restarts);
    read_int(&r, "window_s", 0, MU_FOLD_WINDOW_MAX_S, &world.window_s);
    read_int(&r, "crashes", 0, MU_FOLD_COUNT_MAX, &world.crashes);
    read_charges(&r, world.charges, &world.charges_count);
    if (json_object_get(r.json, "rest_ms") != NULL)
        read_int(&r, "rest_ms", 0, 999, &world.rest_ms);
    read_short(&r, "why", world.why, sizeof world.why);
    read_host(&r, world.nodes, &world.host);
    if (name == NULL || strlen(name) >= sizeof world.first ||
        !get_int(json_array_get(first, 1), 0, INT64_MAX, &world.first_pid) ||
        !get_int(json_array_get(first, 2), 0, INT64_MAX, &world.first_local_id))
        wrong(&r, "first");
    if (r.rc == 0) {
        (void)mu_words_plain(mu_slice_str(name), world.first, sizeof world.first);
        *ret_world = world;
    }
    return end(&r);
}

int mu_fold_seat_read(struct mu_slice bytes, struct mu_fold_seat *ret_seat, struct muster_error *reterr)
{
    struct reader r = begin(bytes, "a seat", reterr);
    struct mu_fold_seat seat = { .rank = 0 };

    read_int(&r, "rank", 0, MU_FOLD_MEMBERS_MAX - 1, &seat.rank);
    read_int(&r, "base", 0, MU_FOLD_WORKERS_MAX - 1, &seat.base_rank);
    read_int(&r, "role_base", 0, MU_FOLD_WORKERS_MAX - 1, &seat.base_role_rank);
    read_int(&r, "role_size", 1, MU_FOLD_WORKERS_MAX, &seat.role_size);
    if (r.rc == 0)
        *ret_seat = seat;
    return end(&r);
}

/* How many ranks they have. */
static int64_t read_spans(struct reader *r, const char *name, struct mu_fold_span *spans, size_t *ret_count)
{
    const json_t *json = json_object_get(r->json, name);
    int64_t named = 0, before = -2; /* a rank that follows would be of the same span */

    if (!json_is_array(json) || json_array_size(json) > MU_FOLD_SPANS_MAX)
        wrong(r, name);
    for (size_t i = 0; r->rc == 0 && i < json_array_size(json); i++) {
        const json_t *span = json_array_get(json, i);
        int64_t first = 0, last = 0;

        if (!get_int(json_array_get(span, 0), before + 2, MU_FOLD_MEMBERS_MAX - 1, &first) ||
            !get_int(json_array_get(span, 1), first, MU_FOLD_MEMBERS_MAX - 1, &last))
            wrong(r, name);
        spans[(*ret_count)++] = (struct mu_fold_span){ (uint32_t)first, (uint32_t)last };
        named += last - first + 1;
        before = last;
    }
    return named;
}

static void read_lost(struct reader *r, struct mu_fold_news *news)
{
    const json_t *json = json_object_get(r->json, "lost");

    if (!json_is_array(json) || json_array_size(json) > MU_FOLD_NAMED_MAX)
        wrong(r, "lost");
    for (size_t i = 0; r->rc == 0 && i < json_array_size(json); i++)
        if (!get_text(json_array_get(json, i), news->lost[news->lost_count++], sizeof news->lost[0]))
            wrong(r, "lost");
}

int mu_fold_news_read(struct mu_slice bytes, struct mu_fold_news *ret_news, struct muster_error *reterr)
{
    struct reader r = begin(bytes, "the news of a round", reterr);
    struct mu_fold_news news = { .world = read_id(&r, "world") };
    const char *who = json_string_value(json_object_get(r.json, "who"));
    const char *held = json_string_value(json_array_get(json_object_get(r.json, "held"), 0));

    news.over = json_is_true(json_object_get(r.json, "over"));
    read_short(&r, "cause", news.cause, sizeof news.cause);
    read_int(&r, "gone", 0, MU_FOLD_MEMBERS_MAX, &news.gone);
    read_int(&r, "missing", 0, news.gone, &news.missing);
    if (read_spans(&r, "ranks", news.spans, &news.spans_count) > news.gone)
        wrong(&r, "gone");
    if (json_object_get(r.json, "done") != NULL)
        (void)read_spans(&r, "done", news.done, &news.done_count);
    read_lost(&r, &news);
    read_int(&r, "waiting", 0, INT64_MAX, &news.waiting);
    read_int(&r, "spares", 0, INT64_MAX, &news.spares);
    read_int(&r, "joined", 0, INT64_MAX, &news.joined);
    read_int(&r, "apart", 0, INT64_MAX, &news.apart);
    read_int(&r, "newcomers", 0, INT64_MAX, &news.newcomers);
    (void)snprintf(news.who, sizeof news.who, "%s", who != NULL ? who : "");
    (void)snprintf(news.held, sizeof news.held, "%s", held != NULL ? held : "");
    if (!get_int(json_array_get(json_object_get(r.json, "held"), 1), 0, MU_SLOWDOWN_HOLD_MAX_MS, &news.held_ms))
        wrong(&r, "held");
    read_int(&r, "pause_ms", 0, MU_SLOWDOWN_PAUSE_MAX_MS, &news.pause_ms);
    read_int(&r, "last_call_ms", -1, INT64_MAX / 2, &news.last_call_ms);
    if (!json_is_boolean(json_object_get(r.json, "grace")))
        wrong(&r, "grace");
    news.grace = json_is_true(json_object_get(r.json, "grace"));
    if (r.rc == 0)
        *ret_news = news;
    return end(&r);
}

int mu_fold_mark_read(struct mu_slice bytes, uint64_t *ret_node, struct muster_error *reterr)
{
    struct reader r = begin(bytes, "the mark of a node", reterr);
    uint64_t node = read_id(&r, "node");

    if (r.rc == 0)
        *ret_node = node;
    return end(&r);
}

int mu_fold_stock_read(struct mu_slice bytes, bool *ret_old, struct muster_error *reterr)
{
    struct reader r = begin(bytes, "who waits for a document", reterr);
    int64_t old = 0;

    read_int(&r, "old", 0, 1, &old);
    if (r.rc == 0)
        *ret_old = old == 1;
    return end(&r);
}

int mu_fold_closed_read(struct mu_slice bytes, struct mu_fold_closed *ret_closed, struct muster_error *reterr)
{
    struct reader r = begin(bytes, "the end of the job", reterr);
    struct mu_fold_closed closed = { .node = read_id(&r, "node") };
    char verdict[sizeof "succeeded"] = "";

    read_short(&r, "verdict", verdict, sizeof verdict);
    read_short(&r, "cause", closed.cause, sizeof closed.cause);
    if (r.rc == 0) {
        closed.succeeded = strcmp(verdict, "succeeded") == 0;
        closed.has_verdict = closed.succeeded || strcmp(verdict, "failed") == 0;
        *ret_closed = closed;
    }
    return end(&r);
}

int mu_fold_master_read(struct mu_slice bytes, struct mu_fold_master *ret_master, struct muster_error *reterr)
{
    struct reader r = begin(bytes, "where workers meet", reterr);
    struct mu_fold_master master = { .world = read_id(&r, "world") };

    read_text(&r, "addr", master.addr, sizeof master.addr);
    master.port = read_port(&r, "port");
    master.agents_port = read_port(&r, "agents_port");
    if (r.rc == 0)
        *ret_master = master;
    return end(&r);
}

/* ---- News ---- */

static bool is_in(const struct mu_fold_span *spans, size_t count, int64_t rank)
{
    for (size_t i = 0; i < count; i++)
        if (rank >= (int64_t)spans[i].first && rank <= (int64_t)spans[i].last)
            return true;
    return false;
}

static void add_rank(struct mu_fold_span *spans, size_t *count, uint32_t rank)
{
    struct mu_fold_span *last = *count > 0 ? &spans[*count - 1] : NULL;

    assert(last == NULL || rank > last->last);
    if (last != NULL && rank == last->last + 1)
        last->last = rank;
    else if (*count < MU_FOLD_SPANS_MAX)
        spans[(*count)++] = (struct mu_fold_span){ rank, rank };
}

bool mu_fold_news_gone(const struct mu_fold_news *news, int64_t rank)
{
    return is_in(news->spans, news->spans_count, rank);
}

bool mu_fold_news_done(const struct mu_fold_news *news, int64_t rank)
{
    return is_in(news->done, news->done_count, rank);
}

void mu_fold_news_add_done(struct mu_fold_news *news, uint32_t rank)
{
    add_rank(news->done, &news->done_count, rank);
}

void mu_fold_news_add_gone(struct mu_fold_news *news, uint32_t rank, struct mu_slice name)
{
    news->gone++;
    add_rank(news->spans, &news->spans_count, rank);
    if (news->lost_count < MU_FOLD_NAMED_MAX && name.len > 0)
        (void)mu_words_plain(name, news->lost[news->lost_count++], sizeof news->lost[0]);
}

/* ---- Members ---- */

int mu_fold_members_init(struct mu_fold_members *members, uint64_t world, size_t count)
{
    struct mu_fold_member *items = calloc(count + 1, sizeof *items);
    struct mu_fold_place *places = calloc(count + 1, sizeof *places);

    if (items == NULL || places == NULL) {
        free(items);
        free(places);
        return MUSTER_ENOMEM;
    }
    mu_fold_members_done(members);
    *members = (struct mu_fold_members){ .world = world, .items = items, .count = count, .places = places };
    return 0;
}

void mu_fold_members_done(struct mu_fold_members *members)
{
    for (size_t i = 0; members->items != NULL && i < members->count; i++)
        free((char *)members->items[i].node.name.data);
    free(members->items);
    free(members->places);
    *members = (struct mu_fold_members){ .world = 0 };
}

int mu_fold_members_set(struct mu_fold_members *members, size_t rank, const struct mu_fold_member *member)
{
    char *name = mu_slice_copy(member->node.name);

    assert(rank < members->count && member->id != 0);
    if (name == NULL)
        return MUSTER_ENOMEM;
    free((char *)members->items[rank].node.name.data);
    members->items[rank] = *member;
    members->items[rank].node.name.data = name;
    return 0;
}

/* Whoever has been read before the first wrong one stays. */
int mu_fold_members_read_page(struct mu_fold_members *members, size_t number, struct mu_slice bytes,
                              struct muster_error *reterr)
{
    struct reader r = begin(bytes, "a page of members", reterr);
    const json_t *json = json_object_get(r.json, "members");
    size_t first = number * MU_FOLD_PAGE_MEMBERS;
    char name[MU_FOLD_NAME_MAX + 1];

    if (!json_is_array(json) || json_array_size(json) > MU_FOLD_PAGE_MEMBERS || number >= MU_FOLD_MEMBERS_MAX ||
        first + json_array_size(json) > members->count)
        wrong(&r, "members");
    for (size_t i = 0; r.rc == 0 && i < json_array_size(json); i++) {
        const json_t *item = json_array_get(json, i);
        struct mu_fold_member member = { .id = 0 };

        if (json_is_null(item))
            continue;
        if (!get_id(json_array_get(item, 0), &member.id) || member.id == 0 ||
            !get_text(json_array_get(item, 1), name, sizeof name) ||
            !get_int(json_array_get(item, 2), 0, INT64_MAX, &member.node.pid) ||
            !get_int(json_array_get(item, 3), 0, INT64_MAX, &member.node.local_id)) {
            r.rc = mu_fail(reterr, MUSTER_ERDZV_STATE, "%s: rank %zu is wrong", r.what, first + i);
            break;
        }
        member.node.name = mu_slice_str(name);
        if (mu_fold_members_set(members, first + i, &member) < 0)
            no_memory(&r);
    }
    return end(&r);
}

static int by_id(const void *a, const void *b)
{
    const struct mu_fold_place *left = a, *right = b;

    return left->id < right->id ? -1 : left->id > right->id;
}

bool mu_fold_members_sort(struct mu_fold_members *members)
{
    size_t count = 0;

    for (size_t i = 0; i < members->count; i++)
        if (members->items[i].id != 0)
            members->places[count++] = (struct mu_fold_place){ members->items[i].id, (uint32_t)i };
    members->places_count = count;
    qsort(members->places, count, sizeof *members->places, by_id);
    for (size_t i = 1; i < count; i++)
        if (members->places[i].id == members->places[i - 1].id)
            return false;
    return true;
}

bool mu_fold_members_all_known(const struct mu_fold_members *members)
{
    return members->places_count == members->count;
}

int64_t mu_fold_members_rank(const struct mu_fold_members *members, uint64_t id)
{
    struct mu_fold_place key = { .id = id };
    const struct mu_fold_place *place =
        members->places_count == 0 ? NULL : bsearch(&key, members->places, members->places_count, sizeof key, by_id);

    return place == NULL ? -1 : (int64_t)place->rank;
}
