#include "rdzv/fold_doc.h"

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
    else if (before == 0 || json_dump_callback(json, append_bytes, out, JSON_COMPACT) != 0)
        rc = MUSTER_ENOMEM;
    if (rc < 0)
        out->len = 0;
    json_decref(json);
    return rc;
}

int mu_fold_record_write(const struct mu_fold_record *record, struct mu_buf *out)
{
    return dump(json_pack("{s:i,s:s,s:I,s:I,s:I,s:I,s:I,s:s,s:o}", "v", MU_FOLD_VERSION, "name", record->name, "pid",
                          (json_int_t)record->pid, "local_id", (json_int_t)record->local_id, "min",
                          (json_int_t)record->nodes_min, "max", (json_int_t)record->nodes_max, "seq",
                          (json_int_t)record->seq, "want", record->joining ? "join" : "stay", "world",
                          id_json(record->world)),
                out);
}

static json_t *member_json(const struct mu_fold_member *member)
{
    return json_pack("[o,s%,I,I]", id_json(member->id), member->node.name.data, member->node.name.len,
                     (json_int_t)member->node.pid, (json_int_t)member->node.local_id);
}

/* NULL: no memory. Takes both. */
static json_t *append(json_t *array, json_t *item)
{
    if (json_array_append_new(array, item) == 0)
        return array;
    json_decref(array);
    return NULL;
}

int mu_fold_world_write(struct mu_fold_world *world)
{
    json_t *members = json_array();

    for (size_t i = 0; i < world->count; i++)
        members = append(members, member_json(&world->members[i]));
    return dump(json_pack("{s:i,s:o,s:I,s:I,s:o}", "v", MU_FOLD_VERSION, "world", id_json(world->id), "round",
                          (json_int_t)world->round, "hold_ms", (json_int_t)world->hold_ms, "members", members),
                &world->bytes);
}

int mu_fold_news_write(const struct mu_fold_news *news, struct mu_buf *out)
{
    json_t *gone = json_array();

    for (size_t i = 0; i < news->gone_count; i++)
        gone = append(gone, json_integer((json_int_t)news->gone[i]));
    return dump(json_pack("{s:i,s:o,s:o,s:I,s:I,s:I,s:I,s:I,s:s*,s:I,s:b}", "v", MU_FOLD_VERSION, "world",
                          id_json(news->world), "gone", gone, "waiting", (json_int_t)news->waiting, "spares",
                          (json_int_t)news->spares, "joined", (json_int_t)news->joined, "apart",
                          (json_int_t)news->apart, "newcomers", (json_int_t)news->newcomers, "who",
                          news->who[0] != '\0' ? news->who : NULL, "last_call_ms", (json_int_t)news->last_call_ms,
                          "grace", (int)news->grace),
                out);
}

int mu_fold_mark_write(uint64_t node, struct mu_buf *out)
{
    return dump(json_pack("{s:i,s:o}", "v", MU_FOLD_VERSION, "node", id_json(node)), out);
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

/* The version must be there, whatever it is: newer ones keep what we know. */
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
    if (r.json != NULL && json_integer_value(json_object_get(r.json, "v")) < 1)
        wrong(&r, "v");
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

bool mu_fold_is_newer(struct mu_slice bytes)
{
    struct reader r = begin(bytes, "", NULL);
    bool newer = json_integer_value(json_object_get(r.json, "v")) > MU_FOLD_VERSION;

    return end(&r) == MUSTER_ENOMEM || newer;
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

static void read_optional(struct reader *r, const char *name, int64_t *ret_number)
{
    if (json_object_get(r->json, name) != NULL)
        read_int(r, name, 0, INT64_MAX, ret_number);
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
    read_text(&r, "want", want, sizeof want);
    if (r.rc == 0 && strcmp(want, "join") != 0 && strcmp(want, "stay") != 0)
        wrong(&r, "want");
    if (r.rc == 0) {
        record.joining = strcmp(want, "join") == 0;
        *ret_record = record;
    }
    return end(&r);
}

static int read_member(const json_t *json, struct mu_fold_member *member)
{
    char name[MU_FOLD_NAME_MAX + 1];

    if (!json_is_array(json) || json_array_size(json) < 4 || !get_id(json_array_get(json, 0), &member->id) ||
        member->id == 0 || !get_text(json_array_get(json, 1), name, sizeof name) ||
        !get_int(json_array_get(json, 2), 0, INT64_MAX, &member->node.pid) ||
        !get_int(json_array_get(json, 3), 0, INT64_MAX, &member->node.local_id))
        return MUSTER_ERDZV_STATE;
    member->node.name = mu_slice(strdup(name), strlen(name));
    return member->node.name.data == NULL ? MUSTER_ENOMEM : 0;
}

static int by_id(const void *a, const void *b)
{
    const struct mu_fold_place *left = a, *right = b;

    return left->id < right->id ? -1 : left->id > right->id;
}

/* Nobody can have two ranks. */
static void find_places(struct reader *r, struct mu_fold_world *world)
{
    for (size_t i = 0; i < world->count; i++)
        world->places[i] = (struct mu_fold_place){ world->members[i].id, (uint32_t)i };
    qsort(world->places, world->count, sizeof *world->places, by_id);
    for (size_t i = 1; i < world->count; i++)
        if (world->places[i].id == world->places[i - 1].id)
            r->rc = mu_fail(r->reterr, MUSTER_ERDZV_STATE, "%s: a node is in it twice", r->what);
}

static void read_members(struct reader *r, struct mu_fold_world *world)
{
    const json_t *json = json_object_get(r->json, "members");
    size_t count = json_array_size(json); /* 0: it is no array */

    if (count == 0 || count > MU_FOLD_MEMBERS_MAX)
        wrong(r, "members");
    if (r->rc < 0)
        return;
    world->members = calloc(count, sizeof *world->members);
    world->places = calloc(count, sizeof *world->places);
    if (world->members == NULL || world->places == NULL) {
        no_memory(r);
        return;
    }
    for (; world->count < count; world->count++) {
        int rc = read_member(json_array_get(json, world->count), &world->members[world->count]);

        if (rc < 0) {
            r->rc = mu_fail(r->reterr, rc, "%s: member %zu is wrong", r->what, world->count);
            return;
        }
    }
    find_places(r, world);
}

int mu_fold_world_read(struct mu_slice bytes, struct mu_fold_world *ret_world, struct muster_error *reterr)
{
    struct reader r = begin(bytes, "the world of a round", reterr);
    struct mu_fold_world world = { .id = read_id(&r, "world") };
    int64_t hold_ms = 0;

    if (world.id == 0)
        wrong(&r, "world");
    read_int(&r, "round", 0, MU_DOC_ROUND_MAX, &world.round);
    read_int(&r, "hold_ms", 0, MU_FOLD_HOLD_MAX_MS, &hold_ms);
    world.hold_ms = (uint64_t)hold_ms;
    read_members(&r, &world);
    if (r.rc == 0 && mu_buf_append(&world.bytes, bytes.data, bytes.len, MU_FOLD_VALUE_MAX) < 0)
        no_memory(&r);
    mu_fold_world_done(r.rc < 0 ? &world : ret_world);
    if (r.rc == 0)
        *ret_world = world;
    return end(&r);
}

static void read_gone(struct reader *r, struct mu_fold_news *news)
{
    const json_t *json = json_object_get(r->json, "gone");
    size_t count = json_array_size(json);
    int64_t before = -1;

    if (!json_is_array(json) || count > MU_FOLD_MEMBERS_MAX)
        wrong(r, "gone");
    if (r->rc < 0)
        return;
    news->gone = calloc(count + 1, sizeof *news->gone);
    if (news->gone == NULL) {
        no_memory(r);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (!get_int(json_array_get(json, i), before + 1, MU_FOLD_MEMBERS_MAX - 1, &before))
            wrong(r, "gone");
        news->gone[i] = (uint32_t)before;
    }
    news->gone_count = count;
}

int mu_fold_news_read(struct mu_slice bytes, struct mu_fold_news *ret_news, struct muster_error *reterr)
{
    struct reader r = begin(bytes, "the news of a round", reterr);
    struct mu_fold_news news = { .world = read_id(&r, "world") };
    const char *who = json_string_value(json_object_get(r.json, "who"));

    read_int(&r, "waiting", 0, INT64_MAX, &news.waiting);
    read_int(&r, "spares", 0, INT64_MAX, &news.spares);
    read_int(&r, "joined", 0, INT64_MAX, &news.joined);
    read_optional(&r, "apart", &news.apart);
    read_optional(&r, "newcomers", &news.newcomers);
    (void)snprintf(news.who, sizeof news.who, "%s", who != NULL ? who : "");
    read_int(&r, "last_call_ms", -1, INT64_MAX / 2, &news.last_call_ms);
    if (!json_is_boolean(json_object_get(r.json, "grace")))
        wrong(&r, "grace");
    news.grace = json_is_true(json_object_get(r.json, "grace"));
    read_gone(&r, &news);
    mu_fold_news_done(r.rc < 0 ? &news : ret_news);
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

/* ---- In memory ---- */

void mu_fold_world_done(struct mu_fold_world *world)
{
    for (size_t i = 0; i < world->count; i++)
        free((char *)world->members[i].node.name.data);
    free(world->members);
    free(world->places);
    mu_buf_done(&world->bytes);
    *world = (struct mu_fold_world){ .id = 0 };
}

void mu_fold_news_done(struct mu_fold_news *news)
{
    free(news->gone);
    *news = (struct mu_fold_news){ .world = 0 };
}

int64_t mu_fold_world_rank(const struct mu_fold_world *world, uint64_t id)
{
    struct mu_fold_place key = { .id = id };
    const struct mu_fold_place *place =
        world->count == 0 ? NULL : bsearch(&key, world->places, world->count, sizeof key, by_id);

    return place == NULL ? -1 : (int64_t)place->rank;
}

bool mu_fold_news_gone(const struct mu_fold_news *news, int64_t rank)
{
    for (size_t i = 0; i < news->gone_count; i++)
        if ((int64_t)news->gone[i] == rank)
            return true;
    return false;
}
