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

int mu_fold_world_write(struct mu_fold_world *world)
{
    json_t *members = json_array();

    for (size_t i = 0; members != NULL && i < world->count; i++) {
        if (json_array_append_new(members, member_json(&world->members[i])) != 0) {
            json_decref(members);
            members = NULL;
        }
    }
    if (members == NULL)
        return MUSTER_ENOMEM;
    return dump(json_pack("{s:i,s:o,s:I,s:I,s:o}", "v", MU_FOLD_VERSION, "world", id_json(world->id), "round",
                          (json_int_t)world->round, "hold_ms", (json_int_t)world->hold_ms, "members", members),
                &world->bytes);
}

int mu_fold_news_write(const struct mu_fold_news *news, struct mu_buf *out)
{
    json_t *gone = json_array();

    for (size_t i = 0; gone != NULL && i < news->gone_count; i++) {
        if (json_array_append_new(gone, json_integer((json_int_t)news->gone[i])) != 0) {
            json_decref(gone);
            gone = NULL;
        }
    }
    if (gone == NULL)
        return MUSTER_ENOMEM;
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

static int wrong(struct muster_error *reterr, const char *what, const char *name)
{
    return mu_fail(reterr, MUSTER_ERDZV_STATE, "%s: '%s' is missing or wrong", what, name);
}

/* NULL: *ret_rc says why. The version must be there, whatever it is: newer ones keep what we know. */
static json_t *parse(struct mu_slice bytes, const char *what, int *ret_rc, struct muster_error *reterr)
{
    json_error_t error = { .line = 0 };
    json_t *json, *version;

    if (bytes.len > MU_FOLD_VALUE_MAX) {
        *ret_rc = mu_fail(reterr, MUSTER_ERDZV_STATE, "%s: its %zu bytes are more than %u", what, bytes.len,
                          MU_FOLD_VALUE_MAX);
        return NULL;
    }
    json = json_loadb(bytes.data == NULL ? "" : bytes.data, bytes.len, JSON_REJECT_DUPLICATES, &error);
    if (json == NULL) {
        enum json_error_code code = json_error_code(&error);

        /* For want of memory jansson mostly says nothing. */
        *ret_rc = code == json_error_out_of_memory || code == json_error_unknown
                      ? mu_fail(reterr, MUSTER_ENOMEM, "%s", what)
                      : mu_fail(reterr, MUSTER_ERDZV_STATE, "%s: byte %d: %.100s", what, error.position, error.text);
        return NULL;
    }
    version = json_object_get(json, "v");
    if (!json_is_integer(version) || json_integer_value(version) < 1) {
        *ret_rc = wrong(reterr, what, "v");
        json_decref(json);
        return NULL;
    }
    return json;
}

bool mu_fold_is_newer(struct mu_slice bytes)
{
    int rc = 0;
    json_t *json = parse(bytes, "", &rc, NULL);
    bool newer = json == NULL ? rc == MUSTER_ENOMEM : json_integer_value(json_object_get(json, "v")) > MU_FOLD_VERSION;

    json_decref(json);
    return newer;
}

static bool get_int(const json_t *json, int64_t min, int64_t max, int64_t *ret_number)
{
    if (!json_is_integer(json) || json_integer_value(json) < min || json_integer_value(json) > max)
        return false;
    *ret_number = json_integer_value(json);
    return true;
}

static int read_int(const json_t *json, const char *what, const char *name, int64_t min, int64_t max,
                    int64_t *ret_number, struct muster_error *reterr)
{
    return get_int(json_object_get(json, name), min, max, ret_number) ? 0 : wrong(reterr, what, name);
}

static bool get_id(const json_t *json, uint64_t *ret_id)
{
    return json_is_string(json) &&
           mu_fold_id_parse(mu_slice(json_string_value(json), json_string_length(json)), ret_id);
}

static int read_id(const json_t *json, const char *what, const char *name, uint64_t *ret_id,
                   struct muster_error *reterr)
{
    return get_id(json_object_get(json, name), ret_id) ? 0 : wrong(reterr, what, name);
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

static int read_record(const json_t *json, struct mu_fold_record *record, struct muster_error *reterr)
{
    const char *what = "the record of a node", *want = json_string_value(json_object_get(json, "want"));
    int64_t seq = 0;
    int rc = 0;

    if (!get_text(json_object_get(json, "name"), record->name, sizeof record->name))
        rc = wrong(reterr, what, "name");
    if (rc == 0)
        rc = read_int(json, what, "pid", 0, INT64_MAX, &record->pid, reterr);
    if (rc == 0)
        rc = read_int(json, what, "local_id", 0, INT64_MAX, &record->local_id, reterr);
    if (rc == 0)
        rc = read_int(json, what, "min", 1, INT64_MAX, &record->nodes_min, reterr);
    if (rc == 0)
        rc = read_int(json, what, "max", 1, INT64_MAX, &record->nodes_max, reterr);
    if (rc == 0)
        rc = read_int(json, what, "seq", 0, INT64_MAX, &seq, reterr);
    if (rc == 0)
        rc = read_id(json, what, "world", &record->world, reterr);
    if (rc == 0 && (want == NULL || (strcmp(want, "join") != 0 && strcmp(want, "stay") != 0)))
        rc = wrong(reterr, what, "want");
    if (rc < 0)
        return rc;
    record->seq = (uint64_t)seq;
    record->joining = strcmp(want, "join") == 0;
    return 0;
}

int mu_fold_record_read(struct mu_slice bytes, struct mu_fold_record *ret_record, struct muster_error *reterr)
{
    struct mu_fold_record record = { .pid = 0 };
    int rc = 0;
    json_t *json = parse(bytes, "the record of a node", &rc, reterr);

    if (json == NULL)
        return rc;
    rc = read_record(json, &record, reterr);
    json_decref(json);
    if (rc == 0)
        *ret_record = record;
    return rc;
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
static int find_places(struct mu_fold_world *world, struct muster_error *reterr)
{
    world->places = calloc(world->count + 1, sizeof *world->places);
    if (world->places == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "the world of a round");
    for (size_t i = 0; i < world->count; i++)
        world->places[i] = (struct mu_fold_place){ world->members[i].id, (uint32_t)i };
    qsort(world->places, world->count, sizeof *world->places, by_id);
    for (size_t i = 1; i < world->count; i++)
        if (world->places[i].id == world->places[i - 1].id)
            return mu_fail(reterr, MUSTER_ERDZV_STATE, "the world of a round: a node is in it twice");
    return 0;
}

static int read_members(const json_t *json, struct mu_fold_world *world, struct muster_error *reterr)
{
    size_t count = json_array_size(json);

    if (!json_is_array(json) || count == 0 || count > MU_FOLD_MEMBERS_MAX)
        return wrong(reterr, "the world of a round", "members");
    world->members = calloc(count, sizeof *world->members);
    if (world->members == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "the world of a round");
    for (size_t i = 0; i < count; i++) {
        int rc = read_member(json_array_get(json, i), &world->members[i]);

        if (rc < 0)
            return mu_fail(reterr, rc, "the world of a round: member %zu is wrong", i);
        world->count++;
    }
    return find_places(world, reterr);
}

static int read_world(const json_t *json, struct mu_fold_world *world, struct muster_error *reterr)
{
    const char *what = "the world of a round";
    int64_t hold_ms = 0;
    int rc = read_id(json, what, "world", &world->id, reterr);

    if (rc == 0 && world->id == 0)
        rc = wrong(reterr, what, "world");
    if (rc == 0)
        rc = read_int(json, what, "round", 0, MU_DOC_ROUND_MAX, &world->round, reterr);
    if (rc == 0)
        rc = read_int(json, what, "hold_ms", 0, MU_FOLD_HOLD_MAX_MS, &hold_ms, reterr);
    world->hold_ms = (uint64_t)hold_ms;
    return rc == 0 ? read_members(json_object_get(json, "members"), world, reterr) : rc;
}

int mu_fold_world_read(struct mu_slice bytes, struct mu_fold_world *ret_world, struct muster_error *reterr)
{
    struct mu_fold_world world = { .id = 0 };
    int rc = 0;
    json_t *json = parse(bytes, "the world of a round", &rc, reterr);

    if (json == NULL)
        return rc;
    rc = read_world(json, &world, reterr);
    json_decref(json);
    if (rc == 0 && mu_buf_append(&world.bytes, bytes.data, bytes.len, MU_FOLD_VALUE_MAX) < 0)
        rc = mu_fail(reterr, MUSTER_ENOMEM, "the world of a round");
    if (rc < 0) {
        mu_fold_world_done(&world);
        return rc;
    }
    mu_fold_world_done(ret_world);
    *ret_world = world;
    return 0;
}

static int read_gone(const json_t *json, struct mu_fold_news *news, struct muster_error *reterr)
{
    size_t count = json_array_size(json);
    int64_t before = -1;

    if (!json_is_array(json) || count > MU_FOLD_MEMBERS_MAX)
        return wrong(reterr, "the news of a round", "gone");
    news->gone = calloc(count + 1, sizeof *news->gone);
    if (news->gone == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "the news of a round");
    for (size_t i = 0; i < count; i++) {
        if (!get_int(json_array_get(json, i), before + 1, MU_FOLD_MEMBERS_MAX - 1, &before))
            return wrong(reterr, "the news of a round", "gone");
        news->gone[i] = (uint32_t)before;
    }
    news->gone_count = count;
    return 0;
}

static int read_news(const json_t *json, struct mu_fold_news *news, struct muster_error *reterr)
{
    const char *what = "the news of a round";
    int rc = read_id(json, what, "world", &news->world, reterr);

    if (rc == 0)
        rc = read_int(json, what, "waiting", 0, INT64_MAX, &news->waiting, reterr);
    if (rc == 0)
        rc = read_int(json, what, "spares", 0, INT64_MAX, &news->spares, reterr);
    if (rc == 0)
        rc = read_int(json, what, "joined", 0, INT64_MAX, &news->joined, reterr);
    if (rc == 0 && json_object_get(json, "apart") != NULL)
        rc = read_int(json, what, "apart", 0, INT64_MAX, &news->apart, reterr);
    if (rc == 0 && json_object_get(json, "newcomers") != NULL)
        rc = read_int(json, what, "newcomers", 0, INT64_MAX, &news->newcomers, reterr);
    if (rc == 0 && json_is_string(json_object_get(json, "who")))
        (void)snprintf(news->who, sizeof news->who, "%s", json_string_value(json_object_get(json, "who")));
    if (rc == 0)
        rc = read_int(json, what, "last_call_ms", -1, INT64_MAX / 2, &news->last_call_ms, reterr);
    if (rc == 0 && !json_is_boolean(json_object_get(json, "grace")))
        rc = wrong(reterr, what, "grace");
    news->grace = json_is_true(json_object_get(json, "grace"));
    return rc == 0 ? read_gone(json_object_get(json, "gone"), news, reterr) : rc;
}

int mu_fold_news_read(struct mu_slice bytes, struct mu_fold_news *ret_news, struct muster_error *reterr)
{
    struct mu_fold_news news = { .world = 0 };
    int rc = 0;
    json_t *json = parse(bytes, "the news of a round", &rc, reterr);

    if (json == NULL)
        return rc;
    rc = read_news(json, &news, reterr);
    json_decref(json);
    if (rc < 0) {
        mu_fold_news_done(&news);
        return rc;
    }
    mu_fold_news_done(ret_news);
    *ret_news = news;
    return 0;
}

int mu_fold_mark_read(struct mu_slice bytes, uint64_t *ret_node, struct muster_error *reterr)
{
    int rc = 0;
    uint64_t node = 0;
    json_t *json = parse(bytes, "the mark of a node", &rc, reterr);

    if (json == NULL)
        return rc;
    rc = read_id(json, "the mark of a node", "node", &node, reterr);
    json_decref(json);
    if (rc == 0)
        *ret_node = node;
    return rc;
}

int mu_fold_master_read(struct mu_slice bytes, struct mu_fold_master *ret_master, struct muster_error *reterr)
{
    const char *what = "where workers meet";
    struct mu_fold_master master = { .port = 0 };
    int64_t port = 0, agents_port = 0;
    int rc = 0;
    json_t *json = parse(bytes, what, &rc, reterr);

    if (json == NULL)
        return rc;
    rc = read_id(json, what, "world", &master.world, reterr);
    if (rc == 0 && !get_text(json_object_get(json, "addr"), master.addr, sizeof master.addr))
        rc = wrong(reterr, what, "addr");
    if (rc == 0)
        rc = read_int(json, what, "port", 1, UINT16_MAX, &port, reterr);
    if (rc == 0)
        rc = read_int(json, what, "agents_port", 1, UINT16_MAX, &agents_port, reterr);
    json_decref(json);
    if (rc < 0)
        return rc;
    master.port = (uint16_t)port;
    master.agents_port = (uint16_t)agents_port;
    *ret_master = master;
    return 0;
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

int mu_fold_world_copy(const struct mu_fold_world *from, struct mu_fold_world *ret_to)
{
    struct mu_fold_world to = { .id = from->id, .round = from->round, .hold_ms = from->hold_ms };

    to.members = calloc(from->count + 1, sizeof *to.members);
    to.places = calloc(from->count + 1, sizeof *to.places);
    for (; to.members != NULL && to.places != NULL && to.count < from->count; to.count++) {
        struct mu_fold_member *member = &to.members[to.count];

        *member = from->members[to.count];
        member->node.name.data = strdup(member->node.name.data);
        if (member->node.name.data == NULL)
            break;
        to.places[to.count] = from->places[to.count];
    }
    if (to.count < from->count || to.members == NULL || to.places == NULL ||
        mu_buf_append(&to.bytes, from->bytes.data, from->bytes.len, MU_FOLD_VALUE_MAX) < 0) {
        mu_fold_world_done(&to);
        return MUSTER_ENOMEM;
    }
    mu_fold_world_done(ret_to);
    *ret_to = to;
    return 0;
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
    size_t from = 0, to = news->gone_count;

    while (from < to) {
        size_t middle = from + (to - from) / 2;

        if ((int64_t)news->gone[middle] == rank)
            return true;
        if ((int64_t)news->gone[middle] < rank)
            from = middle + 1;
        else
            to = middle;
    }
    return false;
}
