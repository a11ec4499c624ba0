/* The classic etcd rendezvous, phase by phase: which requests follow which answers, and what is told. Keys are shown
 * without the job's root: "av" is the document, "v_1/..." a version's directory, "mark ..." what says who a rank is,
 * "notice ..." what a node that waits says about itself. Only a node with a name has notices. */
#include "pure.h"
#include "rdzv/classic.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define ROOT "/p/run_job"
#define NOTICES "/p/muster/waiting"
#define SETUP "{\"status\": \"setup\"}"
#define OPEN_1 "{\"status\": \"joinable\", \"version\": \"1\", \"participants\": []}"
#define IN_1(list) "{\"status\": \"joinable\", \"version\": \"1\", \"participants\": [" list "]}"
#define FROZEN_1(list, keys)                                                                                           \
    "{\"status\": \"frozen\", \"version\": \"1\", \"participants\": [" list "], \"keep_alives\": [" keys "]}"
#define KEY(rank) "\"/p/run_job/rdzv/v_1/rank_" rank "\""
#define FINAL_1(list, keys, waiting)                                                                                   \
    "{\"status\": \"final\", \"version\": \"1\", \"participants\": [" list "], \"keep_alives\": [" keys                \
    "], \"num_workers_waiting\": " waiting "}"
#define PAIR_1(waiting) FINAL_1("0, 1", KEY("0") ", " KEY("1"), waiting)
#define TRIO_1 FINAL_1("0, 1, 2", KEY("0") ", " KEY("1") ", " KEY("2"), "0")
#define IN_2(list) "{\"status\": \"joinable\", \"version\": \"2\", \"participants\": [" list "]}"
#define FROZEN_2(list) "{\"status\": \"frozen\", \"version\": \"2\", \"participants\": [" list "], \"keep_alives\": []}"
#define FINAL_2                                                                                                        \
    "{\"status\": \"final\", \"version\": \"2\", \"participants\": [0], \"keep_alives\": "                             \
    "[\"/p/run_job/rdzv/v_2/rank_0\"], \"num_workers_waiting\": 0}"
#define CLOSED_PAIR_1                                                                                                  \
    "{\"status\": \"closed\", \"version\": \"1\", \"participants\": [0, 1], \"keep_alives\": [" KEY("0") ", " KEY(     \
        "1") "], \"num_workers_waiting\": 0}"

enum { START_MS = 1000, MARK_INDEX = 17 /* at which confirming() writes its mark */ };

struct scene {
    struct mu_classic *classic;
    uint64_t now_ms, main_id, job_id, rank_id, close_id, look_id, notice_id;
    bool shows_self;                 /* else the write of "self" is answered at once, and not told */
    bool once;                       /* the last request of all */
    uint64_t timeout_ms;             /* its, as well */
    struct mu_classic_notice notice; /* the last that was written or deleted */
    char trace[8192];
    size_t used;
    int error;
    char why[1024]; /* of that error */
};

static const char *scene_name; /* of the node in the next scenes; NULL: it has none */

static struct scene *make(int64_t min, int64_t max)
{
    struct scene *s = calloc(1, sizeof *s);
    const struct mu_classic_config config = { .prefix = "p//",
                                              .run_id = "job",
                                              .nodes_min = min,
                                              .nodes_max = max,
                                              .join_ms = 600000,
                                              .last_call_ms = 30000,
                                              .close_ms = 30000,
                                              .node = "me_1_2",
                                              .name = scene_name,
                                              .pid = 1,
                                              .local_id = 2,
                                              .seed = 1 };
    struct muster_error error;

    assert_non_null(s);
    assert_int_equal(mu_classic_new(&config, &s->classic, &error), 0);
    s->now_ms = START_MS;
    return s;
}

static void end(struct scene *s)
{
    scene_name = NULL;
    mu_classic_free(s->classic);
    free(s);
}

__attribute__((format(printf, 2, 3))) static void note(struct scene *s, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    s->used += (size_t)vsnprintf(s->trace + s->used, sizeof s->trace - s->used, format, args);
    va_end(args);
    assert_true(s->used < sizeof s->trace);
}

static const char *short_key(struct mu_slice key)
{
    static char text[256];
    const char *rest = text;

    (void)snprintf(text, sizeof text, "%.*s", (int)key.len, key.data);
    if (strcmp(text, NOTICES) == 0)
        return "notices";
    if (strncmp(text, NOTICES "/", strlen(NOTICES "/")) == 0) {
        size_t hash = strlen(NOTICES "/") + strlen("0123456789abcdef_");

        assert_true(strlen(text) > hash);
        memmove(text + 7, text + hash, strlen(text) - hash + 1);
        return memcpy(text, "notice ", 7);
    }
    if (strncmp(text, ROOT "/rdzv/", strlen(ROOT "/rdzv/")) == 0)
        rest = text + strlen(ROOT "/rdzv/");
    else if (strncmp(text, ROOT "/muster/nodes/", strlen(ROOT "/muster/nodes/")) == 0)
        return "self";
    else if (strncmp(text, ROOT "/muster/", strlen(ROOT "/muster/")) == 0) {
        memmove(text + 5, text + strlen(ROOT "/muster/"), strlen(text) - strlen(ROOT "/muster/") + 1);
        memcpy(text, "mark ", 5);
    } else if (strcmp(text, ROOT "/rdzv") == 0)
        rest = text + strlen(ROOT "/");
    else if (strncmp(text, ROOT, strlen(ROOT)) == 0)
        rest = text + strlen("/p/");
    return strcmp(rest, "active_version") == 0 ? "av" : strcmp(rest, "version_counter") == 0 ? "counter" : rest;
}

static void keep_id(struct scene *s, const struct mu_classic_request *request, bool closing, bool looking)
{
    const char *key = short_key(request->key);

    if (strncmp(key, "notice", 6) == 0)
        s->notice_id = request->id;
    else if (request->refresh && strncmp(key, "run_", 4) == 0)
        s->job_id = request->id;
    else if (request->refresh) {
        s->rank_id = request->id;
        assert_int_equal(request->timeout_ms, 2500); /* which leaves time for another server, before the key is gone */
    } else if (closing)
        s->close_id = request->id;
    else if (looking)
        s->look_id = request->id;
    else
        s->main_id = request->id;
}

static void note_request(struct scene *s, const struct mu_classic_request *request)
{
    static const char *const kinds[] = { "GET", "PUT", "DELETE", "WATCH" };

    bool is_notice = strncmp(short_key(request->key), "notice", 6) == 0;

    s->once = request->once;
    s->timeout_ms = request->timeout_ms;
    note(s, "%s %s", kinds[request->kind], short_key(request->key));
    if (is_notice) {
        struct mu_slice value = request->has_value ? request->value : request->prev_value;

        assert_true(request->kind == MU_CLASSIC_GET || mu_classic_notice_read(value, &s->notice));
        if (request->has_prev_value)
            note(s, " if ours");
        if (request->ttl_s != 0)
            note(s, " ttl %" PRId64, request->ttl_s);
        return;
    }
    if (request->has_value)
        note(s, " %.*s", (int)request->value.len, request->value.data);
    if (request->dir)
        note(s, " dir");
    if (request->refresh)
        note(s, " refresh");
    if (request->must_not_exist)
        note(s, " new");
    if (request->prev_index != 0)
        note(s, " at %" PRIu64, request->prev_index);
    if (request->has_prev_value)
        note(s, " if %.*s", (int)request->prev_value.len, request->prev_value.data);
    if (request->ttl_s != 0)
        note(s, " ttl %" PRId64, request->ttl_s);
    if (request->recursive)
        note(s, " all");
    if (request->wait_index != 0)
        note(s, " from %" PRIu64, request->wait_index);
}

static void note_tell(struct scene *s, const struct mu_classic_effect *effect)
{
    note(s, "%s", mu_part_tell_text(effect->news.tell));
    if (effect->news.tell == MU_PART_TELL_WAITING || effect->news.tell == MU_PART_TELL_LOOKED)
        note(s, " %" PRId64 "%s", effect->news.count, effect->news.closed ? " closed" : "");
    if (effect->news.tell == MU_PART_TELL_LOOKED && effect->news.error == NULL)
        note(s, effect->news.round < 0 ? " no round" : " round %" PRId64, effect->news.round);
    for (size_t i = 0; i < effect->news.ranks_count; i++)
        note(s, " %zu", effect->news.ranks[i]);
    if (effect->news.error != NULL) {
        s->error = effect->news.error->code;
        (void)snprintf(s->why, sizeof s->why, "%s", effect->news.error->text);
    }
    if (effect->news.tell == MU_PART_TELL_FAILED ||
        (effect->news.tell == MU_PART_TELL_LOOKED && effect->news.error != NULL))
        note(s, " %s", muster_error_name(effect->news.error->code));
}

static bool is_self_put(const struct mu_classic_effect *effect)
{
    return effect->type == MU_CLASSIC_DO_REQUEST && effect->request.kind == MU_CLASSIC_PUT &&
           strcmp(short_key(effect->request.key), "self") == 0;
}

static void note_effect(struct scene *s, const struct mu_classic_event *event, const struct mu_classic_effect *effect)
{
    if (effect->type == MU_CLASSIC_DO_TELL && effect->news.tell == MU_PART_TELL_PROGRESS)
        return;
    if (s->used > 0)
        note(s, "; ");
    if (effect->type == MU_CLASSIC_DO_REQUEST) {
        note_request(s, &effect->request);
        keep_id(s, &effect->request, event->type == MU_CLASSIC_ON_CLOSE || (event->id != 0 && event->id == s->close_id),
                event->type == MU_CLASSIC_ON_LOOK);
    } else if (effect->type == MU_CLASSIC_DO_CANCEL) {
        note(s, "cancel");
    } else {
        note_tell(s, effect);
    }
}

/* What an event brings about, without progress: "GET av; joined". */
static const char *step(struct scene *s, struct mu_classic_event event)
{
    struct mu_classic_effects effects;
    uint64_t self_id;

    s->used = 0;
    s->trace[0] = '\0';
    do {
        event.now_ms = s->now_ms;
        mu_classic_step(s->classic, &event, &effects);
        self_id = 0;
        for (unsigned i = 0; i < effects.count; i++) {
            if (is_self_put(&effects.items[i]) && !s->shows_self)
                self_id = effects.items[i].request.id;
            else
                note_effect(s, &event, &effects.items[i]);
        }
        event = (struct mu_classic_event){ .type = MU_CLASSIC_ON_ANSWER, .id = self_id };
    } while (self_id != 0);
    return s->trace;
}

static const char *asked(struct scene *s, enum mu_classic_event_type type)
{
    return step(s, (struct mu_classic_event){ .type = type });
}

/* Answers to the phases' request. */
static const char *gets(struct scene *s, const char *value, uint64_t index)
{
    return step(s, (struct mu_classic_event){ .type = MU_CLASSIC_ON_ANSWER,
                                              .id = s->main_id,
                                              .value = mu_slice_str(value),
                                              .index = index,
                                              .modified = index });
}

static const char *done(struct scene *s, uint64_t modified)
{
    return gets(s, "", modified);
}

static const char *code_for(struct scene *s, uint64_t id, int code, bool unsure)
{
    const struct muster_error error = { .code = code < 0 ? code : MUSTER_EINVAL, .text = "no" };

    return step(s, (struct mu_classic_event){
                       .type = MU_CLASSIC_ON_ANSWER, .id = id, .code = code, .unsure = unsure, .error = &error });
}

/* When etcd has that index. */
static const char *code_at(struct scene *s, uint64_t id, int number, uint64_t index)
{
    const struct muster_error error = { .code = MUSTER_EINVAL, .text = "no" };

    return step(s, (struct mu_classic_event){
                       .type = MU_CLASSIC_ON_ANSWER, .id = id, .code = number, .index = index, .error = &error });
}

static const char *code(struct scene *s, int number)
{
    return code_for(s, s->main_id, number, false);
}

static const char *lost(struct scene *s)
{
    return code_for(s, s->main_id, MUSTER_ELOST, true);
}

/* A watch has seen a change of this key. */
static const char *fires(struct scene *s, const char *key, uint64_t index)
{
    return step(s, (struct mu_classic_event){ .type = MU_CLASSIC_ON_ANSWER,
                                              .id = s->main_id,
                                              .key = mu_slice_str(key),
                                              .modified = index,
                                              .index = index });
}

static const char *doc_changes(struct scene *s, uint64_t index)
{
    return fires(s, ROOT "/rdzv/active_version", index);
}

/* The keys below `dir`, by their names: "rank_0 kv"; NULL-terminated. */
static const char *lists(struct scene *s, const char *dir, uint64_t index, ...)
{
    struct mu_classic_node nodes[8];
    char keys[8][256];
    size_t count = 0;
    va_list args;
    const char *name;

    va_start(args, index);
    while ((name = va_arg(args, const char *)) != NULL) {
        (void)snprintf(keys[count], sizeof keys[count], "%s/%s", dir, name);
        nodes[count] = (struct mu_classic_node){ mu_slice_str(keys[count]), mu_slice_str("me_1_2") };
        count++;
    }
    va_end(args);
    return step(
        s, (struct mu_classic_event){
               .type = MU_CLASSIC_ON_ANSWER, .id = s->main_id, .index = index, .nodes = nodes, .nodes_count = count });
}

static const char *passes(struct scene *s, uint64_t ms)
{
    s->now_ms += ms;
    return asked(s, MU_CLASSIC_ON_TIME);
}

/* Up to when time is wanted next. */
static const char *wakes(struct scene *s)
{
    uint64_t when = mu_classic_deadline_ms(s->classic);

    assert_true(when != UINT64_MAX);
    return passes(s, when > s->now_ms ? when - s->now_ms : 0);
}

#define SAYS(what, text) assert_string_equal(what, text)

/* ---- Scenes on the way ---- */

static void prepared(struct scene *s)
{
    SAYS(asked(s, MU_CLASSIC_ON_JOIN), "PUT /p dir new");
    SAYS(done(s, 4), "PUT run_job dir new ttl 7200");
    (void)done(s, 5);
    (void)done(s, 7);
    SAYS(done(s, 8), "GET av");
    SAYS(wakes(s), "PUT run_job refresh ttl 7200");
    (void)code_for(s, s->job_id, 0, false);
}

/* About to read the document. */
static struct scene *looking(int64_t min, int64_t max)
{
    struct scene *s = make(min, max);

    prepared(s);
    return s;
}

/* About to join a version that we opened. */
static struct scene *opened(int64_t nodes)
{
    struct scene *s = looking(nodes, nodes);

    (void)code(s, 100);
    (void)done(s, 10);
    (void)gets(s, "0", 9);
    (void)done(s, 11);
    (void)done(s, 12);
    (void)done(s, 13);
    return s;
}

/* As rank 0 of as many nodes. */
static struct scene *waiting_for_peers(int64_t nodes)
{
    struct scene *s = opened(nodes);

    SAYS(done(s, 14), "WATCH av from 15");
    return s;
}

/* As rank 1, where there is room for more. */
static struct scene *second(int64_t min, int64_t max)
{
    struct scene *s = looking(min, max);

    (void)gets(s, IN_1("0"), 14);
    SAYS(done(s, 15), "WATCH av from 16");
    return s;
}

/* As rank 1 of two: it is frozen, and our confirmation is being written. */
static struct scene *confirming(void)
{
    struct scene *s = looking(2, 2);

    SAYS(gets(s, IN_1("0"), 14), "PUT av " FROZEN_1("0, 1", "") " if " IN_1("0") " ttl 10");
    (void)done(s, 15);
    (void)done(s, 16);
    (void)done(s, MARK_INDEX);
    return s;
}

/* The same, up to the last request of a join. */
static struct scene *about_to_join(void)
{
    struct scene *s = confirming();

    SAYS(done(s, 18), "WATCH av from 19");
    SAYS(doc_changes(s, 20), "GET av");
    SAYS(gets(s, PAIR_1("0"), 20), "PUT v_1/kv dir new");
    SAYS(done(s, 21), "GET mark v_1");
    return s;
}

/* The marks are read: of two that are ours, or with PyTorch as rank 0. */
static void joins(struct scene *s, bool ours)
{
    SAYS(ours ? lists(s, ROOT "/muster/v_1", 22, "rank_0", "rank_1", NULL)
              : lists(s, ROOT "/muster/v_1", 22, "rank_1", NULL),
         "joined; GET av");
    assert_int_equal(mu_classic_world(s->classic)->all_ours, ours);
}

/* Member of a pair, as rank 1. */
static struct scene *pair(bool ours)
{
    struct scene *s = about_to_join();

    joins(s, ours);
    return s;
}

static struct scene *watching(bool ours)
{
    struct scene *s = pair(ours);

    SAYS(gets(s, PAIR_1("0"), 22), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 22, "rank_0", "rank_1", "kv", NULL), "WATCH rdzv all from 23");
    return s;
}

/* The same in a group of three, as rank 2. */
static struct scene *watching_two_others(void)
{
    struct scene *s = looking(3, 3);

    (void)gets(s, IN_1("0, 1"), 14);
    for (uint64_t index = 15; index <= 18; index++)
        (void)done(s, index);
    (void)doc_changes(s, 20);
    SAYS(gets(s, TRIO_1, 20), "PUT v_1/kv dir new");
    SAYS(done(s, 21), "GET mark v_1");
    SAYS(lists(s, ROOT "/muster/v_1", 22, "rank_0", "rank_1", "rank_2", NULL), "joined; GET av");
    SAYS(gets(s, TRIO_1, 22), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 22, "rank_0", "rank_1", "rank_2", NULL), "WATCH rdzv all from 23");
    return s;
}

/* The server was away, and is asked again. */
static struct scene *back_after_an_outage(void)
{
    struct scene *s = watching(true);

    SAYS(code(s, MUSTER_ELOST), "backend_down");
    SAYS(wakes(s), "GET av");
    return s;
}

/* Member of a pair in which there is room for a third. */
static struct scene *elastic_pair(int64_t min, bool ours)
{
    struct scene *s = second(min, 3);

    (void)doc_changes(s, 16);
    (void)gets(s, FROZEN_1("0, 1", ""), 17);
    (void)done(s, 18);
    (void)done(s, 19);
    (void)done(s, 20);
    (void)doc_changes(s, 21);
    (void)gets(s, PAIR_1("0"), 21);
    (void)done(s, 22);
    joins(s, ours);
    return s;
}

/* The same, all ours, about to read the document to join anew; the last one was this. */
static struct scene *regrouping(int64_t min, const char *document)
{
    struct scene *s = elastic_pair(min, true);

    (void)gets(s, document, 23);
    (void)lists(s, ROOT "/rdzv/v_1", 23, "rank_0", "rank_1", NULL);
    SAYS(asked(s, MU_CLASSIC_ON_JOIN), "cancel; DELETE v_1/rank_1");
    SAYS(done(s, 24), "GET av");
    return s;
}

/* The same; that document was still there, and another member was faster with deleting it. */
static struct scene *regrouping_as_seen(const char *document)
{
    struct scene *s = regrouping(2, PAIR_1("0"));
    char deletes[256];

    (void)snprintf(deletes, sizeof deletes, "DELETE av if %s", document);
    SAYS(gets(s, document, 24), deletes);
    SAYS(code(s, 100), "GET av");
    return s;
}

/* A group is there, and knows that we wait; its keep-alives are being listed. */
static struct scene *announced(void)
{
    struct scene *s = looking(2, 3);

    SAYS(gets(s, PAIR_1("0"), 20), "PUT av " PAIR_1("1") " if " PAIR_1("0"));
    SAYS(done(s, 22), "GET v_1");
    return s;
}

static const char *times_out(struct scene *s)
{
    s->now_ms = START_MS + 600000;
    return asked(s, MU_CLASSIC_ON_TIME);
}

/* ---- Phases ---- */

static void the_first_join_makes_directories_and_counter(void **state)
{
    struct scene *s = make(2, 3);

    (void)state;
    s->shows_self = true;
    SAYS(asked(s, MU_CLASSIC_ON_JOIN), "PUT /p dir new");
    SAYS(code(s, 105), "PUT run_job dir new ttl 7200");
    SAYS(done(s, 5), "PUT rdzv dir new");
    SAYS(wakes(s), "PUT run_job refresh ttl 7200");
    SAYS(code(s, 105), "PUT counter 0 new");
    SAYS(code(s, 105), "PUT self me_1_2");
    SAYS(done(s, 9), "GET av");
    end(s);
}

static void the_directory_of_the_job_is_renewed_every_hour(void **state)
{
    struct scene *s = watching(true);

    (void)state;
    while (s->now_ms + 5000 < START_MS + 3600000) {
        assert_null(strstr(passes(s, 5000), "run_job"));
        (void)code_for(s, s->rank_id, 0, false);
    }
    assert_non_null(strstr(passes(s, 5000), "PUT run_job refresh ttl 7200"));
    end(s);
}

static void no_directory_is_made_for_the_root_as_prefix(void **state)
{
    struct muster_error error;
    struct mu_classic_effects effects;
    struct mu_classic *classic;
    const struct mu_classic_config config = {
        .prefix = "/", .run_id = "x", .nodes_min = 1, .nodes_max = 1, .node = ""
    };

    (void)state;
    assert_int_equal(mu_classic_new(&config, &classic, &error), 0);
    mu_classic_step(classic, &(struct mu_classic_event){ .type = MU_CLASSIC_ON_JOIN }, &effects);
    assert_int_equal(effects.count, 1);
    assert_int_equal(effects.items[0].request.key.len, strlen("/run_x"));
    assert_memory_equal(effects.items[0].request.key.data, "/run_x", strlen("/run_x"));
    mu_classic_free(classic);
}

/* As recorded of PyTorch, byte for byte. */
static void where_there_is_no_document_one_is_created(void **state)
{
    struct scene *s = looking(2, 3);

    (void)state;
    SAYS(code(s, 100), "PUT av " SETUP " new ttl 5");
    SAYS(done(s, 10), "GET counter");
    SAYS(gets(s, "0", 9), "PUT counter 1 at 9");
    SAYS(done(s, 11), "PUT v_1 dir new");
    SAYS(done(s, 12), "PUT av " OPEN_1 " if " SETUP);
    SAYS(done(s, 13), "PUT av " IN_1("0") " if " OPEN_1);
    SAYS(done(s, 14), "WATCH av from 15");
    end(s);
}

static void whoever_is_late_with_creating_looks_again(void **state)
{
    struct scene *s = looking(2, 3);

    (void)state;
    (void)code(s, 100);
    SAYS(code(s, 105), "GET av"); /* somebody else's setup */
    (void)code(s, 100);
    (void)done(s, 10);
    SAYS(gets(s, "7", 9), "PUT counter 8 at 9");
    SAYS(code(s, 101), "");
    SAYS(wakes(s), "GET av");
    (void)code(s, 100);
    (void)done(s, 20);
    (void)gets(s, "8", 19);
    (void)done(s, 21);
    SAYS(code(s, 105), ""); /* the directory is there */
    SAYS(wakes(s), "GET av");
    (void)code(s, 100);
    (void)done(s, 30);
    (void)gets(s, "9", 29);
    (void)done(s, 31);
    (void)done(s, 32);
    SAYS(code(s, 101), ""); /* closed, or our setup has expired */
    SAYS(wakes(s), "GET av");
    end(s);
}

static void a_vanished_counter_is_made_anew(void **state)
{
    struct scene *s = looking(2, 3);

    (void)state;
    (void)code(s, 100);
    (void)done(s, 10);
    SAYS(code(s, 100), "");
    SAYS(wakes(s), "PUT /p dir new");
    end(s);
}

static void setup_and_frozen_are_waited_out(void **state)
{
    struct scene *s = looking(2, 3);

    (void)state;
    SAYS(gets(s, SETUP, 10), "WATCH av from 11");
    SAYS(doc_changes(s, 13), "GET av");
    SAYS(gets(s, FROZEN_1("0, 1", ""), 15), "WATCH av from 16");
    SAYS(code(s, MUSTER_ETIMEOUT), "GET av");
    SAYS(gets(s, FROZEN_1("0, 1", ""), 17), "WATCH av from 18");
    SAYS(code(s, 401), "GET av"); /* index cleared: read and go on */
    end(s);
}

static void a_joinable_document_without_room_is_waited_out(void **state)
{
    struct scene *s = looking(1, 2);

    (void)state;
    SAYS(gets(s, IN_1("0, 1"), 10), "WATCH av from 11");
    end(s);
}

static void a_closed_one_is_not_joined(void **state)
{
    struct scene *s = looking(2, 3);

    (void)state;
    SAYS(gets(s, "{\"status\": \"closed\", \"version\": \"1\", \"participants\": [0]}", 10), "failed ERDZV_CLOSED");
    assert_true(mu_classic_state(s->classic) == MU_CLASSIC_IN_IDLE);
    end(s);
}

static void the_ttl_of_a_join_depends_on_how_many_are_in(void **state)
{
    struct scene *s = looking(2, 3);

    (void)state;
    SAYS(gets(s, OPEN_1, 10), "PUT av " IN_1("0") " if " OPEN_1);
    SAYS(code(s, 101), "");
    (void)wakes(s);
    SAYS(gets(s, IN_1("0"), 11), "PUT av " IN_1("0, 1") " if " IN_1("0") " ttl 10");
    SAYS(code(s, 101), "");
    (void)wakes(s);
    SAYS(gets(s, IN_1("0, 1"), 12), "PUT av " FROZEN_1("0, 1, 2", "") " if " IN_1("0, 1") " ttl 10");
    end(s);
}

/* It may have been done, or may yet be: joining again would be a participant that nobody is. */
static void a_join_whose_answer_was_lost_ends_the_version(void **state)
{
    struct scene *s = looking(2, 3);

    (void)state;
    (void)gets(s, OPEN_1, 10);
    SAYS(lost(s), "backend_down");
    SAYS(wakes(s), "GET av");
    SAYS(gets(s, IN_1("0"), 11), "backend_up; DELETE av if " IN_1("0"));
    SAYS(done(s, 12), "GET av");
    SAYS(code(s, 100), "PUT av " SETUP " new ttl 5");
    end(s);
}

static void a_join_that_was_not_sent_is_made_again(void **state)
{
    struct scene *s = looking(2, 3);

    (void)state;
    (void)gets(s, OPEN_1, 10);
    SAYS(code(s, MUSTER_ECONNECT), "backend_down");
    SAYS(wakes(s), "GET av");
    SAYS(gets(s, OPEN_1, 10), "backend_up; PUT av " IN_1("0") " if " OPEN_1);
    end(s);
}

static void the_last_call_keeps_the_document_and_then_freezes_it(void **state)
{
    struct scene *s = looking(2, 3);

    (void)state;
    (void)gets(s, IN_1("0"), 14);
    SAYS(done(s, 15), "WATCH av from 16");
    s->now_ms += MU_CLASSIC_TOUCH_MS;
    SAYS(code(s, MUSTER_ETIMEOUT), "GET av");
    SAYS(gets(s, IN_1("0, 1"), 15), "PUT av " IN_1("0, 1") " if " IN_1("0, 1") " ttl 10");
    SAYS(done(s, 16), "WATCH av from 17");
    s->now_ms += 30000;
    SAYS(code(s, MUSTER_ETIMEOUT), "GET av");
    SAYS(gets(s, IN_1("0, 1"), 16), "PUT av " FROZEN_1("0, 1", "") " if " IN_1("0, 1") " ttl 10");
    SAYS(done(s, 17), "PUT v_1/rank_1  ttl 10");
    end(s);
}

static void the_last_call_goes_by_what_others_write(void **state)
{
    struct scene *s = second(2, 4);

    (void)state;
    s->now_ms += 3000;
    SAYS(doc_changes(s, 16), "GET av");
    SAYS(gets(s, IN_1("0, 1, 2"), 16), "WATCH av from 17"); /* a newcomer has renewed the TTL */
    s->now_ms += MU_CLASSIC_TOUCH_MS;
    (void)code(s, MUSTER_ETIMEOUT);
    (void)gets(s, IN_1("0, 1, 2"), 16);
    SAYS(code(s, 101), "");
    SAYS(wakes(s), "GET av");
    SAYS(gets(s, FROZEN_1("0, 1, 2, 3", ""), 17), "PUT v_1/rank_1  ttl 10");
    end(s);
}

static void the_last_call_is_over_when_the_version_is(void **state)
{
    static const char *const others[] = { NULL, IN_2("0"), FROZEN_2("0, 1"), CLOSED_PAIR_1, PAIR_1("0"), IN_1("0") };

    (void)state;
    for (size_t i = 0; i < COUNT(others); i++) {
        struct scene *s = second(2, 3);

        (void)doc_changes(s, 16);
        SAYS(others[i] == NULL ? code(s, 100) : gets(s, others[i], 16), "GET av");
        end(s);
    }
}

static void peers_are_waited_for_until_it_is_frozen(void **state)
{
    struct scene *s = waiting_for_peers(2);

    (void)state;
    SAYS(doc_changes(s, 15), "GET av");
    SAYS(gets(s, FROZEN_1("0, 1", ""), 15), "PUT v_1/rank_0  ttl 10");
    end(s);
}

static void peers_of_a_version_that_is_gone_are_not_waited_for(void **state)
{
    struct scene *s = waiting_for_peers(2);

    (void)state;
    (void)doc_changes(s, 15);
    SAYS(gets(s, "{\"status\": \"joinable\", \"version\": \"2\", \"participants\": [0]}", 16), "GET av");
    end(s);
}

static void an_error_while_waiting_does_not_join_twice(void **state)
{
    struct scene *s = waiting_for_peers(3);

    (void)state;
    SAYS(code(s, MUSTER_ELOST), "backend_down");
    SAYS(wakes(s), "GET av");
    SAYS(gets(s, IN_1("0, 1"), 15), "backend_up; WATCH av from 16");
    end(s);
}

/* The server has lost everything since, and PyTorch has made the same writes: what is there is of another rank 1. */
static void a_confirmation_that_is_not_our_own_is_another_group(void **state)
{
    struct scene *s = confirming();

    (void)state;
    SAYS(code(s, 101), "");
    SAYS(wakes(s), "GET av");
    SAYS(gets(s, FROZEN_1("0, 1", KEY("1")), 30), "GET av");
    SAYS(gets(s, PAIR_1("0"), 31), "PUT av " PAIR_1("1") " if " PAIR_1("0"));
    end(s);
}

static void a_rank_that_has_confirmed_twice_is_two_nodes(void **state)
{
    struct scene *s = confirming();

    (void)state;
    SAYS(done(s, 18), "WATCH av from 19");
    SAYS(doc_changes(s, 20), "GET av");
    SAYS(gets(s, FINAL_1("0, 1", KEY("1") ", " KEY("1"), "0"), 20), "GET av");
    end(s);
}

static void confirming_writes_a_keep_alive_and_then_its_key(void **state)
{
    struct scene *s = looking(2, 2);

    (void)state;
    (void)gets(s, IN_1("0"), 14);
    SAYS(done(s, 15), "PUT v_1/rank_1  ttl 10");
    SAYS(done(s, 16), "PUT mark v_1/rank_1 me_1_2 new");
    SAYS(done(s, 17), "PUT av " FROZEN_1("0, 1", KEY("1")) " if " FROZEN_1("0, 1", "") " ttl 10");
    SAYS(code(s, 101), "");
    SAYS(wakes(s), "GET av");
    SAYS(gets(s, FROZEN_1("0, 1", KEY("0")), 18),
         "PUT av " PAIR_1("0") " if " FROZEN_1("0, 1", KEY("0"))); /* the last one: final, without TTL */
    SAYS(done(s, 19), "PUT v_1/kv dir new");
    end(s);
}

static void a_confirmation_whose_answer_was_lost_is_looked_for(void **state)
{
    struct scene *s = confirming();

    (void)state;
    (void)lost(s);
    SAYS(wakes(s), "GET av");
    SAYS(gets(s, FROZEN_1("0, 1", KEY("1")), 18), "backend_up; GET self");
    SAYS(gets(s, "me_1_2", 18), "WATCH av from 19");
    SAYS(doc_changes(s, 20), "GET av");
    SAYS(gets(s, PAIR_1("0"), 20), "PUT v_1/kv dir new");
    end(s);
}

/* The first was carried out late, in front of the second. */
static void a_confirmation_without_an_answer_may_come_late(void **state)
{
    struct scene *s = confirming();

    (void)state;
    (void)lost(s);
    SAYS(wakes(s), "GET av");
    SAYS(gets(s, FROZEN_1("0, 1", ""), 18),
         "backend_up; PUT av " FROZEN_1("0, 1", KEY("1")) " if " FROZEN_1("0, 1", "") " ttl 10");
    SAYS(code(s, 101), "");
    SAYS(wakes(s), "GET av");
    SAYS(gets(s, FROZEN_1("0, 1", KEY("1")), 19), "GET self");
    SAYS(gets(s, "me_1_2", 19), "WATCH av from 20");
    end(s);
}

/* PyTorch is rank 1 of the document that is there now, and has confirmed. */
static void a_confirmation_whose_answer_was_lost_with_everything_is_another_s(void **state)
{
    struct scene *s = confirming();

    (void)state;
    (void)lost(s);
    SAYS(wakes(s), "GET av");
    SAYS(gets(s, FROZEN_1("0, 1", KEY("1")), 18), "backend_up; GET self");
    SAYS(code(s, MUSTER_ELOST), "backend_down");
    SAYS(wakes(s), "GET av");
    SAYS(gets(s, PAIR_1("0"), 20), "backend_up; GET self");
    SAYS(code(s, 100), "PUT /p dir new");
    for (int step_count = 0; step_count < 3; step_count++)
        (void)code(s, 105);
    SAYS(code(s, 105), "GET av");
    SAYS(gets(s, PAIR_1("0"), 21), "PUT av " PAIR_1("1") " if " PAIR_1("0"));
    SAYS(passes(s, 20000), "PUT run_job refresh ttl 7200"); /* its keep-alive is PyTorch's */
    end(s);
}

static void a_version_that_does_not_stay_frozen_is_left(void **state)
{
    struct scene *s = confirming();

    (void)state;
    (void)code(s, 101);
    (void)wakes(s);
    SAYS(code(s, 100), "GET av");
    end(s);
}

static void a_final_version_without_our_rank_is_left(void **state)
{
    struct scene *s = confirming();

    (void)state;
    (void)done(s, 18);
    (void)doc_changes(s, 20);
    SAYS(gets(s, FINAL_1("0", KEY("1"), "0"), 20), "GET av"); /* and not a rank 1 of one */
    SAYS(gets(s, FINAL_1("0", KEY("1"), "0"), 20),
         "PUT av " FINAL_1("0", KEY("1"), "1") " if " FINAL_1("0", KEY("1"), "0"));
    end(s);
}

static void final_means_joined_and_says_who_is_who(void **state)
{
    struct scene *s = pair(false);
    const struct mu_classic_world *world = mu_classic_world(s->classic);

    (void)state;
    assert_int_equal(world->version, 1);
    assert_int_equal(world->rank, 1);
    assert_int_equal(world->count, 2);
    assert_null(world->marks[0]); /* PyTorch's */
    assert_string_equal(world->marks[1], "me_1_2");
    end(s);
}

static void a_join_that_succeeds_at_the_last_moment_has_succeeded(void **state)
{
    struct scene *s = about_to_join();

    (void)state;
    SAYS(times_out(s), "PUT v_1/rank_1 refresh ttl 10");
    SAYS(lists(s, ROOT "/muster/v_1", 22, "rank_0", "rank_1", NULL), "joined; GET av");
    SAYS(asked(s, MU_CLASSIC_ON_JOIN), "cancel; cancel; DELETE v_1/rank_1"); /* and can be followed by the next */
    end(s);
}

/* The server has lost everything meanwhile: versions have been counted anew. */
static void a_rank_whose_mark_is_another_s_is_not_ours(void **state)
{
    struct scene *s = about_to_join();
    const struct mu_classic_node node = { mu_slice_str(ROOT "/muster/v_1/rank_1"), mu_slice_str("another_1_2") };

    (void)state;
    SAYS(step(s,
              (struct mu_classic_event){
                  .type = MU_CLASSIC_ON_ANSWER, .id = s->main_id, .index = 22, .nodes = &node, .nodes_count = 1 }),
         "GET av");
    end(s);
}

static void a_document_older_than_our_joining_is_another_one(void **state)
{
    struct scene *s = waiting_for_peers(3);

    (void)state;
    (void)code(s, MUSTER_ELOST);
    (void)wakes(s);
    SAYS(gets(s, IN_1("0, 1"), 9), "backend_up; GET av");
    end(s);
}

static void a_join_that_succeeds_after_leave_was_asked_is_left_untold(void **state)
{
    struct scene *s = about_to_join();

    (void)state;
    SAYS(asked(s, MU_CLASSIC_ON_LEAVE), "cancel; DELETE v_1/rank_1");
    SAYS(done(s, 23), "GET av");
    SAYS(gets(s, PAIR_1("0"), 23), "left");
    end(s);
}

/* ---- A group is there ---- */

static void a_late_joiner_announces_itself_and_waits(void **state)
{
    struct scene *s = looking(2, 3);

    (void)state;
    SAYS(gets(s, PAIR_1("0"), 20), "PUT av " PAIR_1("1") " if " PAIR_1("0"));
    SAYS(code(s, 101), "");
    (void)wakes(s);
    SAYS(gets(s, PAIR_1("1"), 21), "PUT av " PAIR_1("2") " if " PAIR_1("1"));
    SAYS(done(s, 22), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 22, "rank_0", "rank_1", NULL), "WATCH rdzv all from 23");
    SAYS(fires(s, ROOT "/rdzv/v_1/kv/a2V5", 23), "WATCH rdzv all from 24"); /* none of its business */
    SAYS(fires(s, ROOT "/rdzv/v_1/rank_0", 24), "GET av");
    SAYS(gets(s, PAIR_1("2"), 24), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 24, "rank_1", NULL), "DELETE av if " PAIR_1("2"));
    SAYS(done(s, 25), "GET av");
    end(s);
}

/* The server has lost everything, and the group was put back as somebody knew it before. */
static void an_announcement_that_is_gone_is_made_again(void **state)
{
    struct scene *s = looking(2, 3);

    (void)state;
    (void)gets(s, PAIR_1("0"), 20);
    (void)done(s, 22);
    (void)lists(s, ROOT "/rdzv/v_1", 22, "rank_0", "rank_1", NULL);
    (void)doc_changes(s, 24);
    SAYS(gets(s, PAIR_1("0"), 24), "PUT av " PAIR_1("1") " if " PAIR_1("0"));
    end(s);
}

static void whoever_waits_looks_again_when_that_group_is_over(void **state)
{
    static const char *const others[] = { NULL, IN_2(""), FROZEN_2("0, 1"), CLOSED_PAIR_1 };

    (void)state;
    for (size_t i = 0; i < COUNT(others); i++) {
        struct scene *s = announced();

        (void)lists(s, ROOT "/rdzv/v_1", 22, "rank_0", "rank_1", NULL);
        SAYS(i == 0 ? code(s, 401) : doc_changes(s, 23), "GET av"); /* 401: index cleared */
        SAYS(others[i] == NULL ? code(s, 100) : gets(s, others[i], 23), "GET av");
        end(s);
    }
}

/* PyTorch records what it was given as prefix; etcd lists its own form. */
static void keep_alives_are_the_same_however_they_are_written(void **state)
{
    const char *document = FINAL_1("0", "\"p//run_job/rdzv/v_1/rank_0\"", "0");
    struct scene *s = looking(2, 3);

    (void)state;
    (void)gets(s, document, 20);
    (void)done(s, 22);
    SAYS(lists(s, ROOT "/rdzv/v_1", 22, "rank_0", NULL), "WATCH rdzv all from 23");
    end(s);
}

static void a_busy_store_does_not_keep_a_watch_busy(void **state)
{
    struct scene *s = make(2, 3);
    uint64_t index = 23;

    (void)state;
    prepared(s);
    (void)gets(s, PAIR_1("0"), 20);
    (void)done(s, 22);
    (void)lists(s, ROOT "/rdzv/v_1", 22, "rank_0", "rank_1", NULL);
    for (int i = 1; i < MU_CLASSIC_IDLE_EVENTS_MAX; i++)
        assert_int_equal(strncmp(fires(s, ROOT "/rdzv/v_1/kv/a2V5", index++), "WATCH", 5), 0);
    SAYS(fires(s, ROOT "/rdzv/v_1/kv/a2V5", index), "");
    SAYS(wakes(s), "GET av");
    end(s);
}

static void a_waiting_node_that_gives_up_takes_its_announcement_back(void **state)
{
    struct scene *s = announced();

    (void)state;
    (void)lists(s, ROOT "/rdzv/v_1", 22, "rank_0", "rank_1", NULL);
    SAYS(times_out(s), "cancel; GET av");
    SAYS(gets(s, PAIR_1("2"), 30), "PUT av " PAIR_1("1") " if " PAIR_1("2"));
    SAYS(done(s, 31), "failed ERDZV_TIMEOUT");
    end(s);
}

static void a_waiting_node_that_leaves_takes_its_announcement_back(void **state)
{
    struct scene *s = announced();

    (void)state;
    SAYS(asked(s, MU_CLASSIC_ON_LEAVE), "cancel; GET av");
    SAYS(gets(s, PAIR_1("1"), 30), "PUT av " PAIR_1("0") " if " PAIR_1("1"));
    SAYS(done(s, 31), "left");
    end(s);
}

static void an_announcement_whose_answer_was_lost_is_not_made_twice(void **state)
{
    struct scene *s = looking(2, 3);

    (void)state;
    (void)gets(s, PAIR_1("0"), 20);
    (void)lost(s);
    (void)wakes(s);
    SAYS(gets(s, PAIR_1("1"), 21), "backend_up; GET v_1");
    end(s);
}

/* It may have been another's: then taking it back would leave a node waiting that nobody knows of. */
static void an_announcement_that_may_be_another_s_is_not_taken_back(void **state)
{
    struct scene *s = looking(2, 3);

    (void)state;
    (void)gets(s, PAIR_1("0"), 20);
    (void)lost(s);
    (void)wakes(s);
    (void)gets(s, PAIR_1("1"), 21);
    SAYS(asked(s, MU_CLASSIC_ON_LEAVE), "cancel; GET av");
    SAYS(gets(s, PAIR_1("1"), 22), "left");
    end(s);
}

/* ---- Who waits ---- */

/* Whom a line would name, and what it would add. */
static const char *known(struct scene *s)
{
    static char text[2048];
    struct mu_part_progress progress = mu_classic_progress(s->classic);
    char words[MU_WAITERS_NOTE_MAX];
    const char *more = mu_waiters_note(mu_classic_crowd(s->classic), words);
    size_t used = 0;

    text[0] = '\0';
    for (size_t i = 0; i < progress.nodes_count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%.*s", i > 0 ? " " : "",
                                 (int)progress.nodes[i].name.len, progress.nodes[i].name.data);
    if (more != NULL)
        (void)snprintf(text + used, sizeof text - used, "; %s", more);
    return text;
}

static struct mu_classic_notice of(const char *name, int64_t version, int64_t rank, int64_t min, int64_t max)
{
    struct mu_classic_notice notice = { .id = (uint64_t)rank + 100,
                                        .run_id = "job",
                                        .nodes_min = min,
                                        .nodes_max = max,
                                        .version = version,
                                        .rank = rank };

    (void)snprintf(notice.name, sizeof notice.name, "%s", name);
    return notice;
}

/* The directory of notices is read. Those of another rendezvous have another hash in their keys. */
static const char *reads(struct scene *s, const struct mu_classic_notice *notices, size_t count)
{
    struct mu_classic_node nodes[16];
    char keys[16][256];
    struct mu_buf values[16] = { 0 };
    const char *said;

    for (size_t i = 0; i < count; i++) {
        bool ours = strcmp(notices[i].run_id, "job") == 0;

        (void)snprintf(keys[i], sizeof keys[i], NOTICES "/%016" PRIx64 "_x%zu",
                       ours ? mu_hash64((struct mu_hash_seed){ 0, 0 }, mu_slice_str(ROOT)) : 0, i);
        assert_int_equal(mu_classic_notice_write(&notices[i], &values[i]), 0);
        nodes[i] = (struct mu_classic_node){ mu_slice_str(keys[i]), mu_buf_slice(&values[i]) };
    }
    said = step(s, (struct mu_classic_event){
                       .type = MU_CLASSIC_ON_ANSWER, .id = s->notice_id, .nodes = nodes, .nodes_count = count });
    for (size_t i = 0; i < count; i++)
        mu_buf_done(&values[i]);
    return said;
}

static const char *noticed(struct scene *s)
{
    return code_for(s, s->notice_id, 0, false);
}

static struct scene *named(int64_t nodes)
{
    scene_name = "me";
    return waiting_for_peers(nodes);
}

static void who_waits_leaves_a_notice_and_looks_who_else_does(void **state)
{
    struct scene *s = named(4);
    struct mu_classic_notice notices[] = { of("c", 1, 2, 4, 4), of("b", 1, 1, 4, 4), of("old", 0, 0, 4, 4) };

    (void)state;
    (void)doc_changes(s, 15); /* two more have come, whom nobody knows yet */
    (void)gets(s, IN_1("0, 1, 2"), 15);
    SAYS(known(s), "");
    SAYS(wakes(s), "PUT notice rank_0 ttl 20");
    assert_int_equal(s->now_ms, START_MS + MU_WAITERS_FIRST_MS);
    SAYS(s->notice.name, "me");
    SAYS(s->notice.run_id, "job");
    assert_int_equal(s->notice.version, 1);
    assert_int_equal(s->notice.rank, 0);
    assert_int_equal(s->notice.nodes_max, 4);
    SAYS(noticed(s), "GET notices");
    SAYS(reads(s, notices, 3), "");
    SAYS(known(s), "me b c"); /* by rank; a notice of an earlier version is of nobody who is in */
    SAYS(wakes(s), "GET notices");
    assert_int_equal(s->now_ms, START_MS + 4000); /* a second before the first line */
    (void)code_for(s, s->notice_id, 100, false);  /* the others are gone */
    SAYS(known(s), "me");
    end(s);
}

static void a_notice_is_renewed_in_time(void **state)
{
    struct scene *s = named(4);
    uint64_t written_ms;
    const char *said;

    (void)state;
    SAYS(wakes(s), "PUT notice rank_0 ttl 20");
    written_ms = s->now_ms;
    for (said = noticed(s); strncmp(said, "PUT", 3) != 0; said = wakes(s))
        if (strcmp(said, "GET notices") == 0)
            (void)reads(s, NULL, 0);
    SAYS(said, "PUT notice rank_0 ttl 20");
    assert_int_equal(s->now_ms, written_ms + MU_CLASSIC_NOTICE_TTL_S * 500);
    end(s);
}

static void a_notice_goes_when_the_wait_ends(void **state)
{
    struct scene *s = named(4);

    (void)state;
    (void)wakes(s);
    (void)noticed(s);
    (void)reads(s, NULL, 0);
    SAYS(asked(s, MU_CLASSIC_ON_LEAVE), "cancel; GET av; DELETE notice rank_0 if ours");
    SAYS(gets(s, IN_1("0"), 15), "PUT av " OPEN_1 " if " IN_1("0"));
    SAYS(done(s, 16), "left");
    SAYS(noticed(s), "");
    end(s);
}

static void a_notice_that_is_being_written_goes_after_that(void **state)
{
    struct scene *s = named(4);

    (void)state;
    (void)wakes(s);
    SAYS(asked(s, MU_CLASSIC_ON_LEAVE), "cancel; GET av");
    SAYS(code_for(s, s->notice_id, MUSTER_ETIMEOUT, true), "DELETE notice rank_0 if ours"); /* it may be there */
    end(s);
}

static void a_round_that_forms_at_once_has_no_notice(void **state)
{
    struct scene *s;

    (void)state;
    scene_name = "me";
    s = watching(true);
    SAYS(passes(s, 2 * MU_WAITERS_FIRST_MS), "");
    end(s);
}

static void a_notice_that_cannot_be_written_or_read_fails_nothing(void **state)
{
    struct scene *s = named(4);

    (void)state;
    (void)wakes(s);
    SAYS(code_for(s, s->notice_id, MUSTER_ECONNECT, false), "GET notices"); /* nothing is told */
    SAYS(code_for(s, s->notice_id, MUSTER_ECONNECT, false), "");
    SAYS(known(s), "me");
    SAYS(wakes(s), "PUT notice rank_0 ttl 20");                 /* again, before the next look */
    SAYS(code_for(s, s->notice_id, 110, false), "GET notices"); /* forbidden */
    SAYS(reads(s, (struct mu_classic_notice[]){ of("b", 1, 1, 4, 4) }, 1), "");
    SAYS(doc_changes(s, 15), "GET av");
    SAYS(gets(s, IN_1("0, 1"), 15), "WATCH av from 16");
    SAYS(known(s), "me b");
    end(s);
}

static void what_is_no_notice_is_not_taken_for_one(void **state)
{
    static const char *const texts[] = {
        "", "{}", "me_1_2", "[1]", "{\"v\": 1, \"id\": \"0\"}", "{\"v\": 1, \"id\": \"zz\"}"
    };
    struct scene *s = named(4);

    (void)state;
    (void)wakes(s);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct mu_classic_node node = { mu_slice_str(NOTICES "/x"), mu_slice_str(texts[i]) };

        (void)noticed(s);
        (void)step(s, (struct mu_classic_event){
                          .type = MU_CLASSIC_ON_ANSWER, .id = s->notice_id, .nodes = &node, .nodes_count = 1 });
        SAYS(known(s), "me");
        (void)wakes(s);
    }
    end(s);
}

static void another_nnodes_and_another_rendezvous_are_named(void **state)
{
    struct scene *s = named(4);
    struct mu_classic_notice notices[] = { of("odd", 1, 1, 3, 3), of("late", -1, -1, 2, 8), of("x", 7, 0, 2, 2),
                                           of("y", 7, 1, 2, 2) };

    (void)state;
    (void)snprintf(notices[2].run_id, sizeof notices[2].run_id, "job8");
    (void)snprintf(notices[3].run_id, sizeof notices[3].run_id, "job8");
    (void)doc_changes(s, 15);
    (void)gets(s, IN_1("0, 1"), 15);
    (void)wakes(s);
    (void)noticed(s);
    (void)reads(s, notices, 4);
    SAYS(known(s), "me odd; odd was started with --nnodes 3, this node with --nnodes 4; "
                   "late was started with --nnodes 2:8, this node with --nnodes 4; "
                   "x waits at the same endpoint for rendezvous 'job8'");
    (void)code_for(s, s->notice_id, 0, false);
    s->now_ms = START_MS + 600000;
    (void)asked(s, MU_CLASSIC_ON_TIME);
    (void)gets(s, IN_1("0, 1"), 15);
    (void)done(s, 16);
    assert_non_null(
        strstr(s->why, "timed out after 600 s: 2 of 4 nodes joined (me, odd); odd was started with --nnodes 3, "));
    assert_non_null(strstr(s->why, "; x waits at the same endpoint for rendezvous 'job8'; the last step: "));
    end(s);
}

/* Nobody names it, and of its --nnodes others speak. */
static void a_participant_without_a_place_has_a_notice_only_if_nobody_is_like_it(void **state)
{
    struct scene *s;
    struct mu_classic_notice like = of("a", 1, 0, 10, 10), unlike = of("b", 1, 1, 2, 10);

    (void)state;
    scene_name = "me";
    s = looking(10, 10);
    (void)gets(s, IN_1("0, 1, 2, 3, 4, 5, 6, 7"), 14);
    (void)done(s, 15);
    SAYS(wakes(s), "GET notices");
    SAYS(reads(s, &like, 1), "");
    SAYS(wakes(s), "GET notices");
    SAYS(reads(s, &unlike, 1), "PUT notice nodes_10_10 ttl 20");
    assert_int_equal(s->notice.rank, 8);
    SAYS(known(s), "b; b was started with --nnodes 2:10, this node with --nnodes 10");
    end(s);
}

static void in_another_version_the_notice_is_another(void **state)
{
    struct scene *s = named(4);

    (void)state;
    (void)wakes(s);
    (void)noticed(s);
    (void)reads(s, NULL, 0);
    SAYS(doc_changes(s, 15), "GET av");
    SAYS(gets(s, IN_2("0"), 16), "GET av");
    SAYS(gets(s, IN_2("0"), 16), "PUT av " IN_2("0, 1") " if " IN_2("0"));
    SAYS(done(s, 17), "WATCH av from 18; DELETE notice rank_0 if ours");
    SAYS(noticed(s), "PUT notice rank_1 ttl 20");
    assert_int_equal(s->notice.version, 2);
    end(s);
}

/* ---- Giving up ---- */

static void a_timeout_says_how_many_came_and_names_this_node_if_it_is_alone(void **state)
{
    struct scene *s;

    (void)state;
    scene_name = "me";
    s = waiting_for_peers(3);
    SAYS(known(s), "me");
    (void)times_out(s);
    (void)gets(s, IN_1("0"), 15);
    SAYS(done(s, 16), "failed ERDZV_TIMEOUT");
    assert_ptr_equal(strstr(s->why, "timed out after 600 s: 1 of 3 nodes joined (me); the last step: "), s->why);
    end(s);
}

static void the_last_participant_takes_itself_out(void **state)
{
    struct scene *s = waiting_for_peers(3);

    (void)state;
    SAYS(times_out(s), "cancel; GET av");
    SAYS(gets(s, IN_1("0"), 15), "PUT av " OPEN_1 " if " IN_1("0"));
    SAYS(code(s, 101), "");
    SAYS(wakes(s), "GET av");
    SAYS(gets(s, IN_1("0, 1"), 16), "DELETE av if " IN_1("0, 1")); /* somebody has come after us */
    SAYS(done(s, 17), "failed ERDZV_TIMEOUT");
    end(s);
}

static void a_frozen_version_is_removed_by_whoever_gives_up(void **state)
{
    struct scene *s = looking(2, 2);

    (void)state;
    (void)gets(s, IN_1("0"), 14);
    (void)done(s, 15); /* frozen; the keep-alive is being written */
    SAYS(asked(s, MU_CLASSIC_ON_LEAVE), "");
    SAYS(done(s, 16), "DELETE v_1/rank_1");
    SAYS(done(s, 17), "GET av");
    SAYS(gets(s, FROZEN_1("0, 1", ""), 17), "DELETE av if " FROZEN_1("0, 1", ""));
    SAYS(done(s, 18), "left");
    end(s);
}

static void leaving_does_not_take_longer_than_its_time(void **state)
{
    struct scene *s = watching(true);

    (void)state;
    SAYS(asked(s, MU_CLASSIC_ON_LEAVE), "cancel; DELETE v_1/rank_1");
    SAYS(code(s, MUSTER_ECONNECT), "backend_down");
    s->now_ms += MU_CLASSIC_QUIT_MS;
    SAYS(asked(s, MU_CLASSIC_ON_TIME), "left");
    end(s);
}

static void what_could_not_be_left_is_ended_by_the_next_join(void **state)
{
    struct scene *s = waiting_for_peers(3);

    (void)state;
    SAYS(asked(s, MU_CLASSIC_ON_LEAVE), "cancel; GET av");
    SAYS(code(s, MUSTER_ECONNECT), "backend_down");
    s->now_ms += MU_CLASSIC_QUIT_MS;
    SAYS(asked(s, MU_CLASSIC_ON_TIME), "left");
    SAYS(asked(s, MU_CLASSIC_ON_JOIN), "backend_up; GET av");
    SAYS(gets(s, IN_1("0"), 15), "DELETE av if " IN_1("0"));
    end(s);
}

static void a_join_without_an_answer_by_then_is_ended_by_the_next(void **state)
{
    struct scene *s = looking(2, 3);

    (void)state;
    SAYS(gets(s, OPEN_1, 10), "PUT av " IN_1("0") " if " OPEN_1);
    SAYS(asked(s, MU_CLASSIC_ON_LEAVE), "");
    s->now_ms += MU_CLASSIC_QUIT_MS;
    SAYS(asked(s, MU_CLASSIC_ON_TIME), "cancel; left");
    SAYS(asked(s, MU_CLASSIC_ON_JOIN), "GET av");
    SAYS(gets(s, IN_1("0"), 15), "DELETE av if " IN_1("0"));
    end(s);
}

static void what_could_not_be_left_is_left_by_the_next_leave(void **state)
{
    struct scene *s = waiting_for_peers(3);

    (void)state;
    (void)asked(s, MU_CLASSIC_ON_LEAVE);
    (void)code(s, MUSTER_ECONNECT);
    s->now_ms += MU_CLASSIC_QUIT_MS;
    SAYS(asked(s, MU_CLASSIC_ON_TIME), "left");
    SAYS(asked(s, MU_CLASSIC_ON_LEAVE), "GET av");
    SAYS(gets(s, IN_1("0, 1"), 15), "backend_up; DELETE av if " IN_1("0, 1"));
    SAYS(done(s, 16), "left");
    end(s);
}

static void who_is_closed_out_while_confirming_leaves_no_keep_alive(void **state)
{
    struct scene *s = confirming();

    (void)state;
    (void)code(s, 101);
    (void)wakes(s);
    SAYS(gets(s, CLOSED_PAIR_1, 18), "GET av");
    SAYS(gets(s, CLOSED_PAIR_1, 18), "DELETE v_1/rank_1");
    SAYS(done(s, 19), "failed ERDZV_CLOSED");
    end(s);
}

static void a_keep_alive_that_may_have_been_written_is_deleted(void **state)
{
    struct scene *s = looking(2, 2);

    (void)state;
    (void)gets(s, IN_1("0"), 14);
    SAYS(done(s, 15), "PUT v_1/rank_1  ttl 10");
    SAYS(code(s, MUSTER_ELOST), "backend_down");
    SAYS(asked(s, MU_CLASSIC_ON_LEAVE), "DELETE v_1/rank_1");
    end(s);
}

/* With PyTorch among the members it is kept for a while, but not longer than its owner is there. */
static void the_keep_alive_of_the_last_group_goes_with_its_owner(void **state)
{
    struct scene *s = watching(false);

    (void)state;
    (void)asked(s, MU_CLASSIC_ON_JOIN);
    (void)gets(s, PAIR_1("0"), 23);
    (void)done(s, 24);
    SAYS(asked(s, MU_CLASSIC_ON_LEAVE), "cancel; DELETE v_1/rank_1");
    SAYS(done(s, 25), "GET av");
    SAYS(gets(s, PAIR_1("1"), 25), "PUT av " PAIR_1("0") " if " PAIR_1("1"));
    end(s);
}

static void leaving_when_in_nothing_is_done_at_once(void **state)
{
    struct scene *s = make(1, 1);

    (void)state;
    SAYS(asked(s, MU_CLASSIC_ON_LEAVE), "left");
    end(s);
}

static void a_join_asked_for_while_leaving_follows(void **state)
{
    struct scene *s = watching(true);

    (void)state;
    (void)asked(s, MU_CLASSIC_ON_LEAVE);
    SAYS(asked(s, MU_CLASSIC_ON_JOIN), "");
    SAYS(done(s, 30), "left; GET av");
    end(s);
}

/* ---- The group ---- */

static void a_member_hears_of_waiting_nodes_once(void **state)
{
    struct scene *s = elastic_pair(2, true);

    (void)state;
    SAYS(gets(s, PAIR_1("1"), 23), "waiting 1; GET v_1");
    (void)lists(s, ROOT "/rdzv/v_1", 23, "rank_0", "rank_1", NULL);
    (void)doc_changes(s, 24);
    SAYS(gets(s, PAIR_1("2"), 24), "GET v_1");
    end(s);
}

static void nodes_for_whom_there_is_no_room_end_no_group(void **state)
{
    struct scene *s = pair(true);

    (void)state;
    SAYS(gets(s, PAIR_1("1"), 23), "GET v_1");
    end(s);
}

static void a_missing_keep_alive_is_a_lost_peer(void **state)
{
    struct scene *s = watching(true);

    (void)state;
    SAYS(fires(s, ROOT "/rdzv/v_1/rank_0", 23), "GET av");
    SAYS(gets(s, PAIR_1("0"), 23), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 23, "rank_1", NULL), "lost 0; WATCH rdzv all from 24");
    (void)doc_changes(s, 24);
    (void)gets(s, PAIR_1("1"), 24);
    SAYS(lists(s, ROOT "/rdzv/v_1", 24, "rank_1", NULL), "WATCH rdzv all from 25"); /* told once */
    end(s);
}

static void a_document_that_is_gone_is_a_lost_group(void **state)
{
    struct scene *s = watching(true);

    (void)state;
    SAYS(doc_changes(s, 23), "GET av");
    SAYS(code(s, 100), "GET mark v_1/rank_1");
    SAYS(gets(s, "me_1_2", MARK_INDEX), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 23, "rank_1", NULL), "lost 0; WATCH av from 23");
    assert_true(mu_classic_state(s->classic) == MU_CLASSIC_IN_OVER_WATCH);
    end(s);
}

/* Of a pair of ours: the document is gone, and workers are being stopped. */
static struct scene *over(bool ours)
{
    struct scene *s = watching(ours);

    (void)doc_changes(s, 23);
    (void)code_at(s, s->main_id, MU_CLASSIC_CODE_NOT_FOUND, 23);
    (void)gets(s, "me_1_2", 23);
    SAYS(lists(s, ROOT "/rdzv/v_1", 23, "rank_0", "rank_1", NULL), "lost 0; WATCH rdzv all from 24");
    return s;
}

static void who_is_stopping_keeps_its_keep_alive_so_that_it_is_waited_for(void **state)
{
    struct scene *s = over(true);

    (void)state;
    SAYS(passes(s, 5000), "PUT v_1/rank_1 refresh ttl 10");
    SAYS(code_for(s, s->rank_id, MUSTER_ETIMEOUT, true), "backend_down; cancel; WATCH rdzv all from 24");
    SAYS(passes(s, 500), "PUT v_1/rank_1 refresh ttl 10");
    SAYS(code_for(s, s->rank_id, 0, false), "backend_up");
    SAYS(doc_changes(s, 24), "GET av");
    SAYS(gets(s, IN_2("0"), 24), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 24, "rank_0", "rank_1", NULL), "WATCH rdzv all from 25");
    SAYS(passes(s, 5000), "PUT v_1/rank_1 refresh ttl 10");
    SAYS(code_for(s, s->rank_id, 0, false), "");
    SAYS(asked(s, MU_CLASSIC_ON_JOIN), "cancel; DELETE v_1/rank_1");
    end(s);
}

/* The server may have lost what says that it has lost nothing, and another one put the group back. */
static void who_joins_anew_says_again_that_it_is_here(void **state)
{
    struct scene *s = over(true);

    (void)state;
    s->shows_self = true;
    SAYS(asked(s, MU_CLASSIC_ON_JOIN), "cancel; DELETE v_1/rank_1");
    SAYS(done(s, 30), "PUT self me_1_2");
    SAYS(done(s, 31), "GET av");
    SAYS(gets(s, IN_2("0"), 31), "PUT av " FROZEN_2("0, 1") " if " IN_2("0") " ttl 10");
    (void)done(s, 32);
    SAYS(code(s, MUSTER_ELOST), "backend_down");
    (void)passes(s, 2 * MU_CLASSIC_RETRY_MS);
    SAYS(code(s, 100), "backend_up; PUT self me_1_2"); /* also when it begins anew */
    end(s);
}

/* Where everything was lost, another group has our number, and our keep-alive's name. */
static void who_is_stopping_does_not_renew_another_s_keep_alive(void **state)
{
    struct scene *s = back_after_an_outage();

    (void)state;
    SAYS(gets(s, IN_1("0, 1"), 9), "backend_up; GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 9, "rank_0", "rank_1", NULL), "lost 0; WATCH av from 10");
    SAYS(passes(s, 30000), "");
    end(s);
}

/* A member that was lost is one, also when another one has ended the group before: that is why our worker failed. */
static void who_is_stopping_hears_whose_keep_alive_ends(void **state)
{
    struct scene *s = over(true);

    (void)state;
    SAYS(fires(s, ROOT "/rdzv/v_1/rank_0", 24), "GET av");
    SAYS(gets(s, IN_2("0"), 24), "GET v_1");
    SAYS(code(s, MUSTER_ELOST), "backend_down");
    SAYS(wakes(s), "GET av");
    SAYS(gets(s, IN_2("0"), 25), "backend_up; GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 25, "rank_1", NULL), "WATCH rdzv all from 26"); /* it may have had no server */
    SAYS(passes(s, 5000), "PUT v_1/rank_1 refresh ttl 10");
    SAYS(code_for(s, s->rank_id, 0, false), "");
    SAYS(passes(s, 5000), "PUT v_1/rank_1 refresh ttl 10");
    SAYS(code_for(s, s->rank_id, 0, false), "");
    SAYS(passes(s, MU_CLASSIC_GRACE_MS - 10000), "cancel; GET av");
    SAYS(gets(s, IN_2("0"), 26), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 26, "rank_1", NULL), "lost 0; WATCH av from 27");
    SAYS(doc_changes(s, 27), "GET av");
    SAYS(gets(s, IN_2("0"), 27), "WATCH av from 28"); /* nobody is left */
    end(s);
}

/* Also when nothing happens any more: at the end of the grace it is looked again. */
static void who_is_stopping_judges_at_the_end_of_the_grace(void **state)
{
    for (int by_time = 0; by_time < 2; by_time++) {
        struct scene *s = over(true);

        (void)state;
        SAYS(code(s, MUSTER_ELOST), "backend_down");
        SAYS(wakes(s), "GET av");
        SAYS(gets(s, IN_2("0"), 25), "backend_up; GET v_1");
        SAYS(lists(s, ROOT "/rdzv/v_1", 25, "rank_1", NULL), "WATCH rdzv all from 26");
        assert_int_equal(s->timeout_ms, MU_CLASSIC_GRACE_MS);
        for (int i = 0; i < 2; i++) {
            SAYS(passes(s, 5000), "PUT v_1/rank_1 refresh ttl 10");
            SAYS(code_for(s, s->rank_id, 0, false), "");
        }
        s->now_ms += MU_CLASSIC_GRACE_MS - 10000;
        if (by_time)
            SAYS(asked(s, MU_CLASSIC_ON_TIME), "cancel; GET av");
        else
            SAYS(code(s, MUSTER_ETIMEOUT), "GET av");
        SAYS(gets(s, IN_2("0"), 25), "GET v_1");
        SAYS(lists(s, ROOT "/rdzv/v_1", 25, "rank_1", NULL), "lost 0; WATCH av from 26");
        assert_true(s->timeout_ms > MU_CLASSIC_GRACE_MS); /* there is nothing left to judge */
        end(s);
    }
}

/* A second look that was due while it was a member is not taken. */
static void who_is_stopping_drops_the_second_look_of_a_member(void **state)
{
    struct scene *s = back_after_an_outage();

    (void)state;
    (void)gets(s, PAIR_1("0"), 23);
    (void)gets(s, "me_1_2", 23);
    SAYS(lists(s, ROOT "/rdzv/v_1", 23, "rank_1", NULL), "WATCH rdzv all from 24");
    assert_int_equal(s->timeout_ms, MU_CLASSIC_GRACE_MS);
    (void)doc_changes(s, 24);
    (void)gets(s, IN_2("0"), 24);
    SAYS(lists(s, ROOT "/rdzv/v_1", 24, "rank_1", NULL), "lost 0; WATCH av from 25");
    assert_true(s->timeout_ms > MU_CLASSIC_GRACE_MS);
    end(s);
}

static void who_is_stopping_is_told_all_that_are_lost(void **state)
{
    struct scene *s = watching_two_others();

    (void)state;
    (void)doc_changes(s, 23);
    (void)code_at(s, s->main_id, MU_CLASSIC_CODE_NOT_FOUND, 23);
    (void)gets(s, "me_1_2", 23);
    SAYS(lists(s, ROOT "/rdzv/v_1", 23, "rank_0", "rank_1", "rank_2", NULL), "lost 0; WATCH rdzv all from 24");
    (void)fires(s, ROOT "/rdzv/v_1/rank_1", 24);
    (void)code_at(s, s->main_id, MU_CLASSIC_CODE_NOT_FOUND, 24);
    SAYS(lists(s, ROOT "/rdzv/v_1", 24, "rank_0", "rank_2", NULL), "lost 1; WATCH rdzv all from 25");
    (void)doc_changes(s, 25);
    (void)gets(s, IN_2("0"), 25);
    SAYS(lists(s, ROOT "/rdzv/v_1", 25, "rank_0", "rank_2", NULL), "WATCH rdzv all from 26");
    (void)fires(s, ROOT "/rdzv/v_1/rank_0", 26);
    (void)gets(s, IN_2("0"), 26);
    SAYS(lists(s, ROOT "/rdzv/v_1", 26, "rank_2", NULL), "lost 0 1; WATCH av from 27");
    end(s);
}

/* If our own keep-alive is not there, nothing is known of the others: all have ended while the server was away. */
static void who_is_stopping_without_its_keep_alive_judges_nobody(void **state)
{
    for (int found = 0; found < 2; found++) {
        struct scene *s = over(true);

        (void)state;
        SAYS(fires(s, ROOT "/rdzv/v_1/rank_0", 24), "GET av");
        SAYS(code_at(s, s->main_id, MU_CLASSIC_CODE_NOT_FOUND, 24), "GET v_1");
        if (found)
            SAYS(lists(s, ROOT "/rdzv/v_1", 24, "kv", NULL), "WATCH av from 25");
        else
            SAYS(code_at(s, s->main_id, MU_CLASSIC_CODE_NOT_FOUND, 24), "WATCH av from 25");
        SAYS(passes(s, 30000), ""); /* what will be there may be another's */
        SAYS(asked(s, MU_CLASSIC_ON_JOIN), "cancel; GET av");
        end(s);
    }
}

/* It is found to have ended while the others' are being listed. */
static void who_is_stopping_and_loses_its_keep_alive_meanwhile_judges_nobody(void **state)
{
    struct scene *s = over(true);

    (void)state;
    (void)fires(s, ROOT "/rdzv/v_1/rank_0", 24);
    SAYS(gets(s, IN_2("0"), 24), "GET v_1");
    SAYS(passes(s, 5000), "PUT v_1/rank_1 refresh ttl 10");
    SAYS(code_for(s, s->rank_id, MU_CLASSIC_CODE_NOT_FOUND, false), "");
    SAYS(lists(s, ROOT "/rdzv/v_1", 24, "rank_1", NULL), "WATCH av from 25");
    end(s);
}

/* Keep-alives of our group's number are another's. */
static void who_is_stopping_where_everything_was_lost_judges_nobody(void **state)
{
    struct scene *s = over(true);

    (void)state;
    (void)fires(s, ROOT "/rdzv/v_1/rank_0", 24);
    SAYS(code_at(s, s->main_id, MU_CLASSIC_CODE_NOT_FOUND, 3), "WATCH av from 4");
    end(s);

    s = over(true);
    (void)fires(s, ROOT "/rdzv/v_1/rank_0", 24);
    SAYS(gets(s, IN_1("0, 1"), 9), "WATCH av from 10");
    SAYS(passes(s, 30000), "");
    end(s);

    s = over(true);
    (void)fires(s, ROOT "/rdzv/v_1/rank_0", 24);
    (void)gets(s, IN_2("0"), 24);
    SAYS(lists(s, ROOT "/rdzv/v_1", 9, "rank_1", NULL), "GET av"); /* a watch from 25 on would see nothing */
    SAYS(code_at(s, s->main_id, MU_CLASSIC_CODE_NOT_FOUND, 30), "WATCH av from 31");
    end(s);
}

/* A server without a majority may lag behind the one that was asked before. */
static void who_is_stopping_takes_no_refusal_for_a_loss(void **state)
{
    struct scene *s = over(true);

    (void)state;
    (void)fires(s, ROOT "/rdzv/v_1/rank_0", 24);
    SAYS(code_at(s, s->main_id, 300, 3), "backend_down");
    SAYS(wakes(s), "GET av");
    SAYS(gets(s, IN_2("0"), 24), "backend_up; GET v_1");
    end(s);
}

static void who_is_stopping_when_the_others_go_on_is_removed(void **state)
{
    struct scene *s = over(true);

    (void)state;
    (void)doc_changes(s, 24);
    SAYS(gets(s, FROZEN_2("0, 1"), 24), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 24, "rank_0", "rank_1", NULL), "WATCH rdzv all from 25");
    SAYS(code(s, MUSTER_ECANCELED), "");
    SAYS(wakes(s), "GET av");
    SAYS(gets(s, FINAL_2, 26), "removed");
    SAYS(passes(s, 20000), ""); /* nobody waits for it */
    SAYS(asked(s, MU_CLASSIC_ON_JOIN), "DELETE v_1/rank_1");
    end(s);
}

static void who_is_stopping_does_not_put_its_keep_alive_back(void **state)
{
    struct scene *s = over(true);

    (void)state;
    (void)passes(s, 5000);
    SAYS(code_for(s, s->rank_id, MU_CLASSIC_CODE_NOT_FOUND, false), "");
    SAYS(passes(s, 20000), "");
    SAYS(asked(s, MU_CLASSIC_ON_JOIN), "cancel; GET av"); /* what may be there is another's */
    end(s);
}

static void who_is_stopping_hears_that_the_job_is_closed(void **state)
{
    struct scene *s = over(true);

    (void)state;
    (void)doc_changes(s, 24);
    SAYS(gets(s, "{\"status\": \"closed\"}", 24), "closed; GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 24, "rank_1", NULL), "lost 0; WATCH av from 25");
    (void)doc_changes(s, 25);
    SAYS(code_at(s, s->main_id, MU_CLASSIC_CODE_NOT_FOUND, 25), "WATCH av from 26");
    (void)doc_changes(s, 26);
    SAYS(code(s, MUSTER_ELOST), "backend_down");
    SAYS(wakes(s), "GET av");
    end(s);
}

static void who_is_stopping_may_find_a_server_that_has_lost_everything(void **state)
{
    struct scene *s = over(true);

    (void)state;
    (void)passes(s, 5000);
    SAYS(code_at(s, s->rank_id, MU_CLASSIC_CODE_NOT_FOUND, 3), "cancel; GET av");
    SAYS(code_at(s, s->main_id, MU_CLASSIC_CODE_NOT_FOUND, 3), "WATCH av from 4");
    end(s);
}

static void a_next_version_that_is_complete_means_removed(void **state)
{
    struct scene *s = watching(true);

    (void)state;
    (void)doc_changes(s, 23);
    SAYS(gets(s, FINAL_2, 24), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 24, "rank_0", "rank_1", NULL), "removed");
    end(s);
}

static void a_next_version_after_our_keep_alive_lapsed_means_removed(void **state)
{
    struct scene *s = watching(true);

    (void)state;
    (void)doc_changes(s, 23);
    SAYS(gets(s, "{\"status\": \"joinable\", \"version\": \"2\", \"participants\": [0]}", 24), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 24, "rank_0", NULL), "removed");
    end(s);
}

static void closing_by_others_is_told_once_and_the_group_goes_on(void **state)
{
    struct scene *s = pair(true);

    (void)state;
    SAYS(gets(s, CLOSED_PAIR_1, 23), "closed; GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 23, "rank_0", "rank_1", NULL), "WATCH rdzv all from 24");
    (void)doc_changes(s, 24);
    SAYS(gets(s, CLOSED_PAIR_1, 24), "GET v_1");
    end(s);
}

static void a_keep_alive_is_renewed_and_errors_do_not_end_that(void **state)
{
    struct scene *s = watching(true);

    (void)state;
    SAYS(passes(s, 5000), "PUT v_1/rank_1 refresh ttl 10");
    SAYS(code_for(s, s->rank_id, MUSTER_ECONNECT, false), "backend_down");
    SAYS(passes(s, 500), "PUT v_1/rank_1 refresh ttl 10");
    SAYS(code_for(s, s->rank_id, 0, false), "backend_up");
    SAYS(passes(s, 5000), "PUT v_1/rank_1 refresh ttl 10");
    end(s);
}

static void a_server_that_refuses_is_as_one_that_is_away(void **state)
{
    struct scene *s = watching(true);

    (void)state;
    (void)passes(s, 5000);
    SAYS(code_for(s, s->rank_id, 110, false), "backend_down");
    SAYS(passes(s, 500), "PUT v_1/rank_1 refresh ttl 10");
    SAYS(code_for(s, s->rank_id, 110, false), "");
    (void)passes(s, 10000);
    SAYS(code_for(s, s->rank_id, 110, false), "");
    SAYS(passes(s, 500), ""); /* the keep-alive is gone by now: there is no hurry */
    SAYS(passes(s, 2500), "PUT v_1/rank_1 refresh ttl 10");
    SAYS(code_for(s, s->rank_id, 0, false), "backend_up");
    end(s);
}

static void a_keep_alive_that_alone_is_refused_keeps_no_peer_from_being_judged(void **state)
{
    struct scene *s = watching(true);

    (void)state;
    (void)passes(s, 5000);
    SAYS(code_for(s, s->rank_id, 110, false), "backend_down");
    SAYS(fires(s, ROOT "/rdzv/v_1/rank_0", 23), "GET av"); /* which is answered: that does not make it well */
    SAYS(gets(s, PAIR_1("0"), 23), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 23, "rank_1", NULL), "WATCH rdzv all from 24");
    for (int i = 0; i < 12; i++) {
        (void)passes(s, 1000);
        (void)code_for(s, s->rank_id, 110, false);
    }
    SAYS(gets(s, PAIR_1("0"), 24), "GET v_1"); /* it was read again when the time was over */
    SAYS(lists(s, ROOT "/rdzv/v_1", 24, "rank_1", NULL), "lost 0; WATCH rdzv all from 25");
    end(s);
}

/* The server that is silent may be that of the watch. */
static void a_keep_alive_without_an_answer_has_the_watch_made_anew(void **state)
{
    struct scene *s = watching(true);

    (void)state;
    (void)passes(s, 5000);
    SAYS(code_for(s, s->rank_id, MUSTER_ETIMEOUT, true), "backend_down; cancel; WATCH rdzv all from 23");
    SAYS(code(s, MUSTER_ETIMEOUT), "GET av");
    end(s);
}

static void a_lapsed_keep_alive_is_put_back(void **state)
{
    struct scene *s = watching(true);

    (void)state;
    (void)passes(s, 5000);
    SAYS(code_for(s, s->rank_id, 100, false), "PUT v_1/rank_1  ttl 10");
    end(s);
}

static void who_leaves_deletes_its_keep_alive_when_that_is_put_back(void **state)
{
    struct scene *s = watching(true);

    (void)state;
    (void)passes(s, 5000);
    SAYS(code_for(s, s->rank_id, 100, false), "PUT v_1/rank_1  ttl 10");
    SAYS(asked(s, MU_CLASSIC_ON_LEAVE), "");
    SAYS(done(s, 25), "cancel; DELETE v_1/rank_1");
    SAYS(done(s, 26), "left");
    end(s);
}

static void who_joins_anew_deletes_its_keep_alive_when_that_is_put_back(void **state)
{
    struct scene *s = watching(true);

    (void)state;
    (void)passes(s, 5000);
    SAYS(code_for(s, s->rank_id, 100, false), "PUT v_1/rank_1  ttl 10");
    SAYS(asked(s, MU_CLASSIC_ON_JOIN), "cancel");
    SAYS(done(s, 25), "DELETE v_1/rank_1");
    SAYS(done(s, 26), "GET av");
    end(s);
}

static void who_joins_anew_waits_for_its_own_writes(void **state)
{
    struct scene *s = back_after_an_outage();

    (void)state;
    (void)gets(s, PAIR_1("0"), 30);
    (void)gets(s, "me_1_2", MARK_INDEX);
    SAYS(lists(s, ROOT "/rdzv/v_1", 30, "kv", NULL), "PUT v_1/rank_1  ttl 10");
    SAYS(asked(s, MU_CLASSIC_ON_JOIN), ""); /* it might come behind our deletion */
    SAYS(done(s, 31), "DELETE v_1/rank_1");
    SAYS(done(s, 32), "GET av");
    end(s);
}

static void who_joins_anew_and_leaves_meanwhile_leaves(void **state)
{
    struct scene *s = watching(true);

    (void)state;
    (void)passes(s, 5000);
    SAYS(code_for(s, s->rank_id, 100, false), "PUT v_1/rank_1  ttl 10");
    SAYS(asked(s, MU_CLASSIC_ON_JOIN), "cancel");
    SAYS(asked(s, MU_CLASSIC_ON_LEAVE), "");
    SAYS(done(s, 25), "DELETE v_1/rank_1");
    SAYS(done(s, 26), "left");
    end(s);
}

static void who_is_about_to_leave_does_not_put_its_keep_alive_back(void **state)
{
    struct scene *s = confirming();

    (void)state;
    (void)passes(s, 5000);
    SAYS(asked(s, MU_CLASSIC_ON_LEAVE), ""); /* the confirmation is being written */
    SAYS(code_for(s, s->rank_id, 100, false), "");
    SAYS(passes(s, 500), "");
    SAYS(code(s, 101), "DELETE v_1/rank_1");
    end(s);
}

static void after_an_outage_nobody_is_judged_for_a_while(void **state)
{
    struct scene *s = back_after_an_outage();

    (void)state;
    SAYS(gets(s, PAIR_1("0"), 30), "backend_up; GET mark v_1/rank_1");
    SAYS(gets(s, "me_1_2", MARK_INDEX), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 30, "kv", NULL), "PUT v_1/rank_1  ttl 10"); /* all have lapsed */
    SAYS(done(s, 31), "WATCH rdzv all from 31");
    s->now_ms += MU_CLASSIC_GRACE_MS;
    (void)code(s, MUSTER_ETIMEOUT);
    SAYS(gets(s, PAIR_1("0"), 40), "GET mark v_1/rank_1"); /* so long without a word: is it still ours? */
    (void)gets(s, "me_1_2", MARK_INDEX);
    SAYS(lists(s, ROOT "/rdzv/v_1", 40, "rank_1", NULL), "lost 0; WATCH rdzv all from 41");
    end(s);
}

static void a_group_of_the_same_number_that_is_not_ours_means_removed(void **state)
{
    struct scene *s = back_after_an_outage();

    (void)state;
    (void)gets(s, PAIR_1("0"), 30);
    SAYS(gets(s, "another_1_2", 30), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 30, "rank_0", "rank_1", NULL), "removed");
    end(s);
}

static void a_server_that_has_lost_everything_gets_the_group_back(void **state)
{
    struct scene *s = back_after_an_outage();

    (void)state;
    SAYS(code(s, 100), "backend_up; GET mark v_1/rank_1");
    SAYS(code(s, 100), "PUT /p dir new");
    SAYS(done(s, 1), "PUT run_job dir new ttl 7200");
    SAYS(done(s, 2), "PUT rdzv dir new");
    SAYS(done(s, 3), "PUT counter 1 new");
    SAYS(done(s, 4), "PUT v_1/rank_1  ttl 10");
    SAYS(done(s, 6), "PUT v_1/kv dir new");
    SAYS(done(s, 7), "PUT av " PAIR_1("0") " new");
    SAYS(done(s, 8),
         "PUT mark v_1/rank_0 me_1_2 new"); /* before the document they would be another's, if it comes first */
    SAYS(done(s, 9), "PUT mark v_1/rank_1 me_1_2 new");
    SAYS(done(s, 10), "GET av");
    SAYS(gets(s, PAIR_1("0"), 10), "GET mark v_1/rank_1");
    SAYS(gets(s, "me_1_2", 10), "GET v_1");
    end(s);
}

static const char *with_backend_up(const char *text)
{
    static char whole[512];

    (void)snprintf(whole, sizeof whole, "backend_up; %s", text);
    return whole;
}

/* At putting its document back. */
static struct scene *putting_back(void)
{
    struct scene *s = back_after_an_outage();

    (void)code(s, 100);
    (void)code(s, 100);
    for (uint64_t index = 1; index < 6; index++)
        (void)done(s, index);
    SAYS(done(s, 7), "PUT av " PAIR_1("0") " new");
    return s;
}

static void a_document_whose_putting_back_has_no_answer_is_looked_for(void **state)
{
    static const struct {
        const char *label, *document;
        uint64_t modified;
        const char *then;
    } rows[] = {
        { "it was written", PAIR_1("0"), 8, "GET self" },
        { "it was not", NULL, 0, "PUT av " PAIR_1("0") " new" },
        { "it is one that was there before", PAIR_1("0"), 7, "GET av" },
        { "it is another one", IN_1("0"), 8, "GET av" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct scene *s = putting_back();

        SAYS(lost(s), "backend_down");
        SAYS(passes(s, 2 * MU_CLASSIC_RETRY_MS), "PUT run_job refresh ttl 7200; GET av");
        SAYS(rows[i].document != NULL ? gets(s, rows[i].document, rows[i].modified) : code(s, 100),
             with_backend_up(rows[i].then));
        end(s);
    }
}

/* PyTorch makes the same document where everything is lost twice. */
static void a_document_that_is_found_is_ours_if_nothing_was_lost_meanwhile(void **state)
{
    (void)state;
    for (int kept = 0; kept < 2; kept++) {
        struct scene *s = putting_back();

        (void)lost(s);
        (void)passes(s, 2 * MU_CLASSIC_RETRY_MS);
        SAYS(gets(s, PAIR_1("0"), 14), "backend_up; GET self");
        if (kept)
            SAYS(gets(s, "me_1_2", 14), "PUT mark v_1/rank_0 me_1_2 new");
        else
            SAYS(code(s, 100), "GET av");
        end(s);
    }
}

static void a_server_that_loses_everything_again_gets_no_more_marks(void **state)
{
    struct scene *s = back_after_an_outage();

    (void)state;
    (void)code(s, 100);
    (void)code(s, 100);
    for (uint64_t index = 1; index < 7; index++)
        (void)done(s, index);
    SAYS(done(s, 8), "PUT mark v_1/rank_0 me_1_2 new");
    SAYS(done(s, 4), "GET av");
    end(s);
}

/* Its marks are there again, and its document is not yet. */
static void a_group_that_another_has_put_back_is_not_over(void **state)
{
    struct scene *s = back_after_an_outage();

    (void)state;
    SAYS(code(s, 100), "backend_up; GET mark v_1/rank_1");
    SAYS(code(s, 100), "PUT /p dir new");
    for (int step_count = 0; step_count < 6; step_count++)
        (void)code(s, 105);
    SAYS(code(s, 105), "GET av"); /* of the document, this one */
    SAYS(gets(s, PAIR_1("0"), 9), "GET mark v_1/rank_1");
    SAYS(code_at(s, s->main_id, 100, 9), "WATCH mark v_1/rank_1 from 10");
    SAYS(fires(s, ROOT "/muster/v_1/rank_1", 10), "GET av");
    SAYS(gets(s, PAIR_1("0"), 10), "GET mark v_1/rank_1");
    SAYS(gets(s, "me_1_2", 10), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 10, "rank_0", "rank_1", NULL), "WATCH rdzv all from 11");
    end(s);
}

/* PyTorch is in our place: it has no mark. Or whoever put our group back has ended over it. */
static void who_gets_no_mark_is_removed(void **state)
{
    struct scene *s = back_after_an_outage();

    (void)state;
    SAYS(gets(s, PAIR_1("0"), 30), "backend_up; GET mark v_1/rank_1");
    SAYS(code_at(s, s->main_id, 100, 30), "WATCH mark v_1/rank_1 from 31");
    (void)passes(s, MU_CLASSIC_GRACE_MS);
    SAYS(code(s, MUSTER_ETIMEOUT), "GET av");
    SAYS(gets(s, PAIR_1("0"), 40), "GET mark v_1/rank_1");
    SAYS(code(s, 100), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 40, "rank_0", "rank_1", NULL), "cancel; removed");
    SAYS(asked(s, MU_CLASSIC_ON_JOIN), "GET av"); /* the keep-alive is another's: it is not deleted */
    end(s);
}

static void who_waits_for_its_mark_is_given_time_after_an_outage(void **state)
{
    struct scene *s = back_after_an_outage();

    (void)state;
    (void)gets(s, PAIR_1("0"), 30);
    SAYS(code_at(s, s->main_id, 100, 30), "WATCH mark v_1/rank_1 from 31");
    s->now_ms += MU_CLASSIC_GRACE_MS + 1;
    SAYS(code(s, MUSTER_ELOST), "backend_down");
    SAYS(passes(s, 2 * MU_CLASSIC_RETRY_MS), "PUT v_1/rank_1 refresh ttl 10; GET av");
    SAYS(gets(s, PAIR_1("0"), 30), "backend_up; GET mark v_1/rank_1");
    SAYS(code_at(s, s->main_id, 100, 30),
         "WATCH mark v_1/rank_1 from 31"); /* who writes it is about to find the server */
    end(s);
}

static void a_mark_that_is_missing_where_everything_was_lost_is_not_waited_for(void **state)
{
    struct scene *s = back_after_an_outage();

    (void)state;
    SAYS(gets(s, PAIR_1("0"), 30), "backend_up; GET mark v_1/rank_1");
    SAYS(code_at(s, s->main_id, 100, 2), "GET av");
    SAYS(code_at(s, s->main_id, 100, 2), "PUT /p dir new");
    end(s);
}

/* Nothing was lost, or it was put back: who has its mark has had a document. It was deleted on purpose. */
static void a_group_without_a_document_whose_mark_is_there_is_over(void **state)
{
    struct scene *s = back_after_an_outage();

    (void)state;
    SAYS(code(s, 100), "backend_up; GET mark v_1/rank_1");
    SAYS(gets(s, "me_1_2", 40), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 40, "rank_1", NULL), "lost 0; WATCH av from 23");
    end(s);
}

/* Another one of that number is there: what we put back is not said to be it. */
static void a_group_that_comes_too_late_leaves_no_marks(void **state)
{
    struct scene *s = back_after_an_outage();

    (void)state;
    (void)code(s, 100);
    (void)code(s, 100);
    for (int step_count = 0; step_count < 6; step_count++)
        (void)code(s, 105);
    SAYS(code(s, 105), "GET av");
    SAYS(gets(s, IN_1("0"), 9), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 9, "rank_1", NULL), "lost 0; WATCH av from 10");
    end(s);
}

static void a_group_of_the_same_number_that_was_faster_means_removed(void **state)
{
    struct scene *s = back_after_an_outage();

    (void)state;
    (void)code(s, 100);
    (void)code(s, 100);
    for (int step_count = 0; step_count < 6; step_count++)
        (void)code(s, 105); /* all of it is there again */
    SAYS(code(s, 105), "GET av");
    SAYS(gets(s, PAIR_1("0"), 9), "GET mark v_1/rank_1");
    SAYS(gets(s, "another_1_2", 10), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 10, "rank_0", "rank_1", NULL), "removed");
    SAYS(asked(s, MU_CLASSIC_ON_JOIN), "GET av"); /* the keep-alive is another's: it is not deleted */
    end(s);
}

static void a_server_that_counts_from_1_again_gets_it_back_at_once(void **state)
{
    struct scene *s = watching(true);

    (void)state;
    (void)doc_changes(s, 23);
    SAYS(code_at(s, s->main_id, MU_CLASSIC_CODE_NOT_FOUND, 5), "PUT /p dir new");
    end(s);
}

static void a_server_that_is_another_one_between_two_reads_is_read_from_the_beginning(void **state)
{
    struct scene *s = pair(true);

    (void)state;
    SAYS(gets(s, PAIR_1("0"), 22), "GET v_1");
    SAYS(code_at(s, s->main_id, MU_CLASSIC_CODE_NOT_FOUND, 3), "GET av");
    SAYS(code_at(s, s->main_id, MU_CLASSIC_CODE_NOT_FOUND, 3), "PUT /p dir new");
    end(s);
}

static void a_keep_alive_that_is_put_back_on_another_server_says_so(void **state)
{
    struct scene *s = pair(true);

    (void)state;
    SAYS(gets(s, PAIR_1("0"), 22), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 22, "rank_0", NULL), "PUT v_1/rank_1  ttl 10");
    SAYS(done(s, 4), "GET av");
    end(s);
}

static void a_renewal_tells_that_the_watch_waits_at_a_server_that_is_gone(void **state)
{
    struct scene *s = watching(true);

    (void)state;
    SAYS(passes(s, 5000), "PUT v_1/rank_1 refresh ttl 10");
    SAYS(code_at(s, s->rank_id, MU_CLASSIC_CODE_NOT_FOUND, 3), "PUT v_1/rank_1  ttl 10; cancel; GET av");
    end(s);
}

/* The connection ended under its watch, and the document is read. */
static struct scene *reconnected(void)
{
    struct scene *s = watching(true);

    assert_true(s->once);
    SAYS(code(s, MUSTER_ECANCELED), "");
    assert_true(mu_classic_deadline_ms(s->classic) <= s->now_ms + 2 * MU_CLASSIC_ENDED_MS);
    SAYS(wakes(s), "GET av");
    return s;
}

static void a_connection_that_ends_is_no_outage(void **state)
{
    struct scene *s = reconnected();

    (void)state;
    SAYS(gets(s, PAIR_1("0"), 30), "GET mark v_1/rank_1");
    SAYS(gets(s, "me_1_2", MARK_INDEX), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 30, "rank_1", NULL), "lost 0; WATCH rdzv all from 31");
    end(s);
}

/* Something between us and the server ends every watch at once. */
static void connections_that_keep_ending_are_made_less_and_less_often(void **state)
{
    struct scene *s = reconnected();
    uint64_t most = 0;

    (void)state;
    for (int i = 0; i < 2; i++) { /* before the next renewal */
        SAYS(gets(s, PAIR_1("0"), 30), "GET mark v_1/rank_1");
        SAYS(gets(s, "me_1_2", MARK_INDEX), "GET v_1");
        (void)lists(s, ROOT "/rdzv/v_1", 30, "rank_0", "rank_1", NULL);
        SAYS(code(s, MUSTER_ECANCELED), "");
        most = mu_classic_deadline_ms(s->classic) - s->now_ms;
        SAYS(wakes(s), "GET av");
    }
    assert_true(most >= 2 * MU_CLASSIC_ENDED_MS && most <= 6 * MU_CLASSIC_ENDED_MS);
    end(s);
}

static void a_server_that_is_empty_behind_a_new_connection_gets_the_group_back(void **state)
{
    struct scene *s = reconnected();

    (void)state;
    SAYS(code(s, 100), "GET mark v_1/rank_1");
    SAYS(code(s, 100), "PUT /p dir new");
    end(s);
}

/* Whoever was faster has written its own keep-alive and no other. */
static void who_finds_its_group_put_back_judges_nobody_yet(void **state)
{
    struct scene *s = reconnected();

    (void)state;
    SAYS(gets(s, PAIR_1("0"), 30), "GET mark v_1/rank_1");
    SAYS(code_at(s, s->main_id, 100, 30), "WATCH mark v_1/rank_1 from 31");
    SAYS(fires(s, ROOT "/muster/v_1/rank_1", 30), "GET av");
    SAYS(gets(s, PAIR_1("0"), 30), "GET mark v_1/rank_1");
    SAYS(gets(s, "me_1_2", 30), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 30, "rank_1", NULL), "WATCH rdzv all from 31");
    SAYS(passes(s, MU_CLASSIC_GRACE_MS), "PUT v_1/rank_1 refresh ttl 10; cancel; GET av");
    (void)gets(s, PAIR_1("0"), 40);
    (void)gets(s, "me_1_2", 26);
    SAYS(lists(s, ROOT "/rdzv/v_1", 40, "rank_1", NULL), "lost 0; WATCH rdzv all from 41");
    end(s);
}

static void who_waits_for_a_group_to_end_leaves_it_to_its_members_to_put_it_back(void **state)
{
    struct scene *s = announced();

    (void)state;
    (void)lists(s, ROOT "/rdzv/v_1", 22, "rank_0", "rank_1", NULL);
    assert_false(s->once);
    end(s);
}

static void who_waits_for_peers_looks_when_its_connection_has_ended(void **state)
{
    struct scene *s = waiting_for_peers(3);

    (void)state;
    assert_true(s->once);
    SAYS(code(s, MUSTER_ECANCELED), "");
    SAYS(wakes(s), "GET av");
    SAYS(code(s, 100), "GET av");
    SAYS(code(s, 100), "PUT av " SETUP " new ttl 5");
    end(s);
}

static void members_that_are_all_ours_regroup_at_once(void **state)
{
    struct scene *s = watching(true);

    (void)state;
    SAYS(asked(s, MU_CLASSIC_ON_JOIN), "cancel; DELETE v_1/rank_1");
    SAYS(done(s, 23), "GET av");
    SAYS(gets(s, PAIR_1("0"), 23), "DELETE av if " PAIR_1("0"));
    SAYS(done(s, 24), "GET av");
    SAYS(code(s, 100), "PUT av " SETUP " new ttl 5");
    end(s);
}

/* ---- The last call of a group that meets again ---- */

static void when_all_are_back_the_last_call_is_over(void **state)
{
    struct scene *s = regrouping_as_seen(PAIR_1("0"));

    (void)state;
    SAYS(gets(s, IN_2("0"), 30), "PUT av " IN_2("0, 1") " if " IN_2("0") " ttl 10");
    SAYS(done(s, 31), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 31, "kv", NULL), "PUT av " FROZEN_2("0, 1") " if " IN_2("0, 1") " ttl 10");
    SAYS(done(s, 32), "PUT v_2/rank_1  ttl 10");
    end(s);
}

static void a_member_that_has_not_stopped_yet_is_waited_for(void **state)
{
    struct scene *s = regrouping_as_seen(PAIR_1("0"));

    (void)state;
    (void)gets(s, IN_2("0"), 30); /* a newcomer */
    (void)done(s, 31);
    SAYS(lists(s, ROOT "/rdzv/v_1", 31, "rank_0", NULL), "WATCH rdzv all from 32");
    SAYS(fires(s, ROOT "/rdzv/v_1/kv/a2V5", 32), "WATCH rdzv all from 33");
    SAYS(fires(s, ROOT "/rdzv/v_1/rank_0", 33), "GET av");
    SAYS(gets(s, IN_2("0, 1"), 33), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 33, NULL), "PUT av " FROZEN_2("0, 1") " if " IN_2("0, 1") " ttl 10");
    SAYS(code(s, 101), ""); /* it is back, with the last place */
    SAYS(wakes(s), "GET av");
    SAYS(gets(s, FROZEN_2("0, 1, 2"), 34), "PUT v_2/rank_1  ttl 10");
    end(s);
}

static void a_member_that_is_gone_is_waited_for_a_second(void **state)
{
    struct scene *s = regrouping(1, PAIR_1("0"));

    (void)state;
    SAYS(gets(s, IN_2(""), 30), "PUT av " IN_2("0") " if " IN_2("") " ttl 10");
    SAYS(done(s, 31), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 31, NULL), "WATCH rdzv all from 32");
    s->now_ms += MU_CLASSIC_SETTLE_MS;
    SAYS(code(s, MUSTER_ETIMEOUT), "GET av");
    SAYS(gets(s, IN_2("0"), 32), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 32, NULL), "PUT av " FROZEN_2("0") " if " IN_2("0") " ttl 10");
    end(s);
}

/* The one who came last is quicker; but it may be a newcomer, which never ends a last call, or not know who waited. */
static void the_others_end_the_last_call_a_second_later(void **state)
{
    struct scene *s = regrouping(2, PAIR_1("0"));

    (void)state;
    (void)gets(s, IN_2(""), 30);
    SAYS(done(s, 31), "WATCH av from 32"); /* not enough nodes */
    (void)doc_changes(s, 32);
    SAYS(gets(s, IN_2("0, 1"), 32), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 32, NULL), "WATCH rdzv all from 33");
    s->now_ms += MU_CLASSIC_SETTLE_MS;
    (void)code(s, MUSTER_ETIMEOUT);
    (void)gets(s, IN_2("0, 1"), 33);
    SAYS(lists(s, ROOT "/rdzv/v_1", 33, NULL), "PUT av " FROZEN_2("0, 1") " if " IN_2("0, 1") " ttl 10");
    SAYS(code(s, 101), "");
    SAYS(wakes(s), "GET av");
    SAYS(gets(s, FROZEN_2("0, 1"), 34), "PUT v_2/rank_0  ttl 10");
    end(s);
}

static void nodes_that_waited_are_waited_for(void **state)
{
    struct scene *s = regrouping(2, PAIR_1("1"));

    (void)state;
    (void)gets(s, IN_2("0"), 30);
    (void)done(s, 31);
    SAYS(lists(s, ROOT "/rdzv/v_1", 31, NULL), "WATCH rdzv all from 32");
    s->now_ms += MU_CLASSIC_SETTLE_MS;
    (void)code(s, MUSTER_ETIMEOUT);
    (void)gets(s, IN_2("0, 1"), 32);
    SAYS(lists(s, ROOT "/rdzv/v_1", 32, NULL), "WATCH rdzv all from 33");
    end(s);
}

/* They announced themselves when it did not look any more: it was about to join, or paused over a stranger's value. */
static void nodes_that_waited_unnoticed_are_seen_at_the_end_of_the_group(void **state)
{
    struct scene *s = regrouping_as_seen(PAIR_1("1"));

    (void)state;
    (void)gets(s, IN_2("0"), 30);
    SAYS(done(s, 31), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 31, NULL), "WATCH rdzv all from 32");
    end(s);
}

/* It may not have seen all announcements: those who made them have a second to join. */
static void who_finds_the_last_document_gone_does_not_end_the_last_call_at_once(void **state)
{
    struct scene *s = regrouping(2, PAIR_1("0"));

    (void)state;
    (void)gets(s, IN_2("0"), 30);
    SAYS(done(s, 31), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 31, NULL), "WATCH rdzv all from 32");
    assert_int_equal(s->timeout_ms, MU_CLASSIC_SETTLE_MS);
    s->now_ms += MU_CLASSIC_SETTLE_MS;
    SAYS(code(s, MUSTER_ETIMEOUT), "GET av");
    SAYS(gets(s, IN_2("0, 1"), 32), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 32, NULL), "PUT av " FROZEN_2("0, 1") " if " IN_2("0, 1") " ttl 10");
    end(s);
}

static void who_deleted_the_last_document_ends_the_last_call_when_all_are_back(void **state)
{
    struct scene *s = regrouping(2, PAIR_1("0"));

    (void)state;
    SAYS(gets(s, PAIR_1("0"), 24), "DELETE av if " PAIR_1("0"));
    SAYS(done(s, 25), "GET av");
    (void)gets(s, IN_2(""), 30);
    SAYS(done(s, 31), "WATCH av from 32");
    SAYS(doc_changes(s, 32), "GET av"); /* the other member found the document gone */
    SAYS(gets(s, IN_2("0, 1"), 32), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 32, NULL), "PUT av " FROZEN_2("0, 1") " if " IN_2("0, 1") " ttl 10");
    end(s);
}

static void only_the_last_group_may_end_a_last_call(void **state)
{
    struct scene *s = regrouping(2, PAIR_1("0"));

    (void)state;
    (void)gets(s, "{\"status\": \"joinable\", \"version\": \"3\", \"participants\": [0]}", 30);
    SAYS(done(s, 31), "WATCH av from 32"); /* there may have been another one meanwhile */
    end(s);
}

/* Its members do not say who they are. */
static void a_group_with_pytorch_in_it_has_its_whole_last_call(void **state)
{
    struct scene *s = elastic_pair(2, false);

    (void)state;
    SAYS(asked(s, MU_CLASSIC_ON_JOIN), "cancel; GET av");
    (void)gets(s, IN_2("0"), 30);
    SAYS(done(s, 31), "WATCH av from 32");
    end(s);
}

static void what_a_last_call_asks_about_the_last_group_may_fail(void **state)
{
    struct scene *s = regrouping_as_seen(PAIR_1("0"));

    (void)state;
    (void)gets(s, IN_2("0"), 30);
    (void)done(s, 31);
    SAYS(code(s, MUSTER_ECONNECT), "backend_down");
    SAYS(wakes(s), "GET av");
    SAYS(gets(s, IN_2("0, 1"), 31), "backend_up; GET v_1");
    SAYS(code(s, 100), "PUT av " FROZEN_2("0, 1") " if " IN_2("0, 1") " ttl 10"); /* nothing of it is left */
    end(s);
}

/* It looks for waiting nodes now and then: the announcement must stand, as long as PyTorch's own would. */
static void with_pytorch_among_them_members_announce_themselves(void **state)
{
    struct scene *s = watching(false);

    (void)state;
    SAYS(asked(s, MU_CLASSIC_ON_JOIN), "cancel; GET av");
    SAYS(gets(s, PAIR_1("0"), 23), "PUT av " PAIR_1("1") " if " PAIR_1("0"));
    SAYS(done(s, 24), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 24, "rank_1", NULL), "WATCH rdzv all from 25"); /* not yet */
    s->now_ms += MU_CLASSIC_STAND_MS;
    SAYS(code(s, MUSTER_ETIMEOUT), "GET av");
    (void)gets(s, PAIR_1("1"), 25);
    SAYS(lists(s, ROOT "/rdzv/v_1", 25, "rank_1", NULL), "DELETE av if " PAIR_1("1"));
    end(s);
}

static void waiting_is_held_down_after_short_rounds(void **state)
{
    struct scene *s = make(1, 2);

    (void)state;
    for (int round = 0; round < 2; round++) {
        if (round == 0)
            prepared(s);
        else
            SAYS(asked(s, MU_CLASSIC_ON_JOIN), "cancel; DELETE v_1/rank_0");
        if (round > 0)
            (void)done(s, 30);
        (void)gets(s, OPEN_1, 14);
        (void)done(s, 15);
        (void)doc_changes(s, 16);
        (void)gets(s, FROZEN_1("0", ""), 17);
        (void)done(s, 18);
        (void)done(s, 19);
        (void)done(s, 20);
        (void)done(s, 22);
        (void)lists(s, ROOT "/muster/v_1", 22, "rank_0", NULL);
        SAYS(gets(s, FINAL_1("0", KEY("0"), "1"), 23), round == 0 ? "waiting 1; GET v_1" : "GET v_1");
        (void)lists(s, ROOT "/rdzv/v_1", 23, "rank_0", NULL);
    }
    SAYS(passes(s, 1000), "waiting 1");
    end(s);
}

/* ---- Closing and looking ---- */

static const char *close_gets(struct scene *s, const char *value)
{
    return step(s, (struct mu_classic_event){ .type = MU_CLASSIC_ON_ANSWER,
                                              .id = s->close_id,
                                              .modified = 7,
                                              .value = mu_slice_str(value),
                                              .index = 50 });
}

static void closing_replaces_the_status_and_nothing_else(void **state)
{
    static const char *const rows[][2] = {
        { SETUP, "{\"status\": \"closed\"}" },
        { IN_1("0"), "{\"status\": \"closed\", \"version\": \"1\", \"participants\": [0]}" },
        { FROZEN_1("0", ""),
          "{\"status\": \"closed\", \"version\": \"1\", \"participants\": [0], \"keep_alives\": []}" },
        { FINAL_1("0", KEY("0"), "3"), "{\"status\": \"closed\", \"version\": \"1\", \"participants\": [0], "
                                       "\"keep_alives\": [" KEY("0") "], \"num_workers_waiting\": 3}" },
        { "{\"status\": \"final\", \"version\": \"1\", \"participants\": [0], \"keep_alives\": [" KEY(
              "0") "], "
                   "\"num_workers_waiting\": 0, \"more\": {\"a\": [1, 2.5, null]}}",
          "{\"status\": \"closed\", \"version\": \"1\", \"participants\": [0], \"keep_alives\": [" KEY(
              "0") "], "
                   "\"num_workers_waiting\": 0, \"more\": {\"a\": [1, 2.5, null]}}" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct scene *s = make(1, 1);
        char wanted[1024];

        SAYS(asked(s, MU_CLASSIC_ON_CLOSE), "GET av");
        (void)snprintf(wanted, sizeof wanted, "PUT av %s at 7", rows[i][1]);
        SAYS(close_gets(s, rows[i][0]), wanted);
        SAYS(code_for(s, s->close_id, 0, false), "closed");
        end(s);
    }
}

static void closing_where_there_is_no_document_writes_one(void **state)
{
    struct scene *s = make(1, 1);

    (void)state;
    (void)asked(s, MU_CLASSIC_ON_CLOSE);
    SAYS(code_for(s, s->close_id, 100, false), "PUT av {\"status\": \"closed\"} new ttl 7200");
    SAYS(code_for(s, s->close_id, 105, false), "");
    (void)passes(s, 100);
    end(s);
}

static void closing_begins_anew_when_somebody_else_wrote(void **state)
{
    struct scene *s = make(1, 1);

    (void)state;
    (void)asked(s, MU_CLASSIC_ON_CLOSE);
    (void)close_gets(s, SETUP);
    SAYS(code_for(s, s->close_id, 101, false), "");
    SAYS(wakes(s), "GET av");
    s->close_id = s->main_id; /* asked by time */
    SAYS(close_gets(s, PAIR_1("0")), "PUT av " CLOSED_PAIR_1 " at 7");
    end(s);
}

static void closing_what_is_closed_is_done(void **state)
{
    struct scene *s = make(1, 1);

    (void)state;
    (void)asked(s, MU_CLASSIC_ON_CLOSE);
    SAYS(close_gets(s, "{\"status\": \"closed\"}"), "closed");
    end(s);
}

static void closing_ends_with_its_time(void **state)
{
    struct scene *s = make(1, 1);

    (void)state;
    (void)asked(s, MU_CLASSIC_ON_CLOSE);
    SAYS(code_for(s, s->close_id, MUSTER_ECONNECT, false), "backend_down");
    s->now_ms += 30000;
    SAYS(asked(s, MU_CLASSIC_ON_TIME), "failed ERDZV_CONNECTION");
    end(s);
}

static void looking_tells_whether_it_is_there_or_closed_and_who_waits(void **state)
{
    static const struct {
        const char *value;
        int code;
        const char *told;
    } rows[] = {
        { "", 100, "looked 0 no round" },
        { PAIR_1("2"), 0, "looked 2 round 1" },
        { IN_1("0"), 0, "looked 0 round 1" },
        { "{\"status\": \"setup\"}", 0, "looked 0 round 0" },
        { "{\"status\": \"closed\", \"num_workers_waiting\": 5}", 0, "looked 0 closed round 0" },
        { "?", 0, "looked 0 ERDZV_STATE" },
        { "", MUSTER_ECONNECT, "looked 0 ERDZV_CONNECTION" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct scene *s = make(1, 1);
        const struct muster_error error = { .code = MUSTER_ECONNECT, .text = "no" };

        SAYS(asked(s, MU_CLASSIC_ON_LOOK), "GET av");
        SAYS(step(s, (struct mu_classic_event){ .type = MU_CLASSIC_ON_ANSWER,
                                                .id = s->look_id,
                                                .code = rows[i].code,
                                                .error = rows[i].code != 0 ? &error : NULL,
                                                .value = mu_slice_str(rows[i].value) }),
             rows[i].told);
        end(s);
    }
}

/* ---- Errors ---- */

static void what_is_no_etcd_ends_a_join_at_once(void **state)
{
    struct scene *s = make(1, 1);

    (void)state;
    (void)asked(s, MU_CLASSIC_ON_JOIN);
    SAYS(code(s, MUSTER_EPROTOCOL), "backend_down; failed ERDZV_CONNECTION");
    end(s);
}

static void etcds_own_refusal_ends_a_join_at_once(void **state)
{
    struct scene *s = make(1, 1);

    (void)state;
    (void)asked(s, MU_CLASSIC_ON_JOIN);
    SAYS(code(s, 110), "failed ERDZV_CONNECTION");
    end(s);
}

static void an_unreachable_server_is_tried_until_the_time_is_up(void **state)
{
    struct scene *s = make(1, 1);

    (void)state;
    (void)asked(s, MU_CLASSIC_ON_JOIN);
    SAYS(code(s, MUSTER_ECONNECT), "backend_down");
    SAYS(wakes(s), "PUT /p dir new");
    SAYS(code(s, MUSTER_ECONNECT), "");
    SAYS(times_out(s), "failed ERDZV_TIMEOUT");
    end(s);
}

static void an_answer_to_nobody_is_dropped(void **state)
{
    struct scene *s = make(1, 1);

    (void)state;
    (void)asked(s, MU_CLASSIC_ON_JOIN);
    SAYS(code_for(s, s->main_id + 7, 0, false), "");
    SAYS(code_for(s, 0, 0, false), "");
    end(s);
}

/* ---- What none of us wrote ---- */

static void what_is_no_document_is_waited_out_and_then_deleted(void **state)
{
    static const char *const bad[] = {
        "",
        "x",
        "[]",
        "{\"status\": 7}",
        "{\"status\": \"joinable\", \"participants\": []}",
        "{\"status\": \"joinable\", \"version\": 1, \"participants\": []}",
        "{\"status\": \"joinable\", \"version\": \"x\", \"participants\": []}",
        "{\"status\": \"joinable\", \"version\": \"1\", \"participants\": [1]}",
        "{\"status\": \"frozen\", \"version\": \"1\", \"participants\": [0]}",
        "{\"status\": \"final\", \"version\": \"1\", \"participants\": [0], \"keep_alives\": []}",
        PAIR_1("-1"),
        PAIR_1("9223372036854775807"),
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct scene *s = looking(2, 3);

        SAYS(gets(s, bad[i], 10), "foreign; WATCH av from 11");
        assert_non_null(strstr(s->why, "/rdzv/active_version, which is not a document of a rendezvous; waiting for"));
        s->now_ms += MU_CLASSIC_FOREIGN_MS - 1;
        SAYS(code(s, MUSTER_ETIMEOUT), "GET av");
        SAYS(gets(s, bad[i], 10), "WATCH av from 11"); /* it is told once */
        s->now_ms += 1;
        SAYS(code(s, MUSTER_ETIMEOUT), "GET av");
        SAYS(gets(s, bad[i], 10), "DELETE av at 10");
        SAYS(done(s, 12), "GET av");
        SAYS(code(s, 100), "PUT av " SETUP " new ttl 5");
        end(s);
    }
}

static void a_joining_node_goes_on_when_the_members_have_put_their_document_back(void **state)
{
    struct scene *s = looking(2, 3);

    (void)state;
    SAYS(gets(s, "garbage", 10), "foreign; WATCH av from 11");
    SAYS(doc_changes(s, 11), "GET av");
    SAYS(gets(s, PAIR_1("0"), 11), "PUT av " PAIR_1("1") " if " PAIR_1("0"));
    end(s);
}

static void a_document_of_another_layout_is_refused_by_name(void **state)
{
    struct scene *s = looking(2, 3);

    (void)state;
    SAYS(gets(s, "{\"status\": \"odd\"}", 10), "foreign; failed ERDZV_STATE");
    assert_non_null(strstr(s->why, "the document has the status 'odd', which this version of muster does not know"));
    end(s);
}

static void a_member_leaves_a_document_of_another_layout_alone(void **state)
{
    struct scene *s = watching(true);

    (void)state;
    SAYS(doc_changes(s, 23), "GET av");
    SAYS(gets(s, "{\"status\": \"odd\"}", 23), "foreign");
    assert_non_null(strstr(s->why, "leaving it alone"));
    SAYS(passes(s, 2 * MU_CLASSIC_RETRY_MS), "GET av");
    SAYS(gets(s, "{\"status\": \"odd\"}", 23), "");
    SAYS(passes(s, 2 * MU_CLASSIC_RETRY_MS), "GET av");
    SAYS(gets(s, PAIR_1("0"), 24), "GET v_1");
    end(s);
}

static void a_member_puts_the_document_of_its_group_back(void **state)
{
    struct scene *s = watching(true);

    (void)state;
    SAYS(doc_changes(s, 23), "GET av");
    SAYS(gets(s, "garb\033ge", 23), "foreign; PUT av " PAIR_1("0") " at 23");
    assert_string_equal(s->why, "somebody wrote 7 bytes ('garb?ge') to /p/run_job/rdzv/active_version, which is not a "
                                "document of a rendezvous; putting the group's document back");
    SAYS(done(s, 24), "GET av");
    SAYS(gets(s, PAIR_1("0"), 24), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 24, "rank_0", "rank_1", NULL), "WATCH rdzv all from 25");
    end(s);
}

static void a_member_that_is_second_with_that_reads_again(void **state)
{
    static const int codes[] = { 100, 101 };

    (void)state;
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        struct scene *s = watching(true);

        (void)doc_changes(s, 23);
        (void)gets(s, "garbage", 23);
        SAYS(code(s, codes[i]), "GET av");
        end(s);
    }
}

static void a_closed_document_is_put_back_as_one(void **state)
{
    struct scene *s = watching(true);

    (void)state;
    SAYS(doc_changes(s, 23), "GET av");
    SAYS(gets(s, CLOSED_PAIR_1, 23), "closed; GET v_1");
    (void)lists(s, ROOT "/rdzv/v_1", 23, "rank_0", "rank_1", NULL);
    (void)doc_changes(s, 24);
    SAYS(gets(s, "garbage", 24), "foreign; PUT av " CLOSED_PAIR_1 " at 24");
    end(s);
}

static void whoever_writes_there_again_and_again_is_answered_once_a_second(void **state)
{
    struct scene *s = watching(true);

    (void)state;
    (void)doc_changes(s, 23);
    SAYS(gets(s, "garbage", 23), "foreign; PUT av " PAIR_1("0") " at 23");
    SAYS(done(s, 24), "GET av");
    SAYS(gets(s, "more", 25), ""); /* still foreign: nothing new */
    SAYS(passes(s, MU_CLASSIC_RETRY_MS), "GET av");
    SAYS(gets(s, "more", 25), "PUT av " PAIR_1("0") " at 25");
    end(s);
}

static void a_participant_whose_document_is_overwritten_looks_again(void **state)
{
    struct scene *s = waiting_for_peers(3);

    (void)state;
    (void)doc_changes(s, 15);
    SAYS(gets(s, "garbage", 16), "foreign; GET av");
    SAYS(gets(s, "garbage", 16), "WATCH av from 17");
    end(s);
}

static void who_confirms_a_document_that_is_overwritten_looks_again(void **state)
{
    struct scene *s = confirming();

    (void)state;
    SAYS(code(s, 101), "");
    SAYS(wakes(s), "GET av");
    SAYS(gets(s, "garbage", 18), "foreign; GET av");
    end(s);
}

static void a_waiting_node_does_not_announce_itself_twice_to_a_document_that_is_put_back(void **state)
{
    struct scene *s = announced();

    (void)state;
    SAYS(lists(s, ROOT "/rdzv/v_1", 22, "rank_0", "rank_1", NULL), "WATCH rdzv all from 23");
    SAYS(doc_changes(s, 23), "GET av");
    SAYS(gets(s, "garbage", 23), "foreign; WATCH rdzv all from 24");
    SAYS(doc_changes(s, 24), "GET av");
    SAYS(gets(s, PAIR_1("1"), 24), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 24, "rank_0", "rank_1", NULL), "WATCH rdzv all from 25");
    /* Nobody puts it back: the group is gone. */
    SAYS(doc_changes(s, 25), "GET av");
    SAYS(gets(s, "garbage", 25), "foreign; WATCH rdzv all from 26");
    s->now_ms += MU_CLASSIC_FOREIGN_MS;
    SAYS(code(s, MUSTER_ETIMEOUT), "GET av");
    SAYS(gets(s, "garbage", 25), "DELETE av at 25");
    end(s);
}

static void who_stops_after_its_group_ended_waits_on(void **state)
{
    struct scene *s = watching(true);

    (void)state;
    (void)doc_changes(s, 23);
    SAYS(gets(s, IN_2(""), 24), "GET v_1");
    SAYS(lists(s, ROOT "/rdzv/v_1", 24, "rank_1", NULL), "lost 0; WATCH av from 25");
    SAYS(doc_changes(s, 25), "GET av");
    SAYS(gets(s, "garbage", 25), "foreign; WATCH av from 26");
    end(s);
}

/* The highest version of which there is a directory; more digits than ours ever have are none of ours. */
static void a_counter_that_is_none_goes_on_from_the_last_version(void **state)
{
    static const char *const bad[] = { "many", "", "-1", "999999999999999999" };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct scene *s = looking(2, 3);

        (void)code(s, 100);
        (void)done(s, 10);
        SAYS(gets(s, bad[i], 9), "foreign; GET rdzv");
        SAYS(lists(s, ROOT "/rdzv", 10, "version_counter", "v_12", "v_7", "v_x", "v_999999999999999999", NULL),
             "PUT counter 13 at 9");
        SAYS(done(s, 11), "PUT v_13 dir new");
        end(s);
    }
}

static void a_counter_that_is_none_begins_with_1_where_there_was_no_version(void **state)
{
    struct scene *s = looking(2, 3);

    (void)state;
    (void)code(s, 100);
    (void)done(s, 10);
    (void)gets(s, "many", 9);
    SAYS(lists(s, ROOT "/rdzv", 10, "version_counter", NULL), "PUT counter 1 at 9");
    end(s);
}

static const char *sees_marks(struct scene *s, const char *rank_0, const char *rank_1)
{
    const struct mu_classic_node nodes[] = { { mu_slice_str(ROOT "/muster/v_1/rank_0"), mu_slice_str(rank_0) },
                                             { mu_slice_str(ROOT "/muster/v_1/rank_1"), mu_slice_str(rank_1) } };

    return step(s, (struct mu_classic_event){
                       .type = MU_CLASSIC_ON_ANSWER, .id = s->main_id, .index = 22, .nodes = nodes, .nodes_count = 2 });
}

static void a_node_whose_mark_is_overwritten_says_again_who_it_is(void **state)
{
    struct scene *s = about_to_join();

    (void)state;
    SAYS(sees_marks(s, "other_1_2", "garbage"), "foreign; PUT mark v_1/rank_1 me_1_2 if garbage");
    SAYS(done(s, 23), "GET mark v_1");
    SAYS(sees_marks(s, "other_1_2", "me_1_2"), "joined; GET av");
    end(s);
}

static void a_member_whose_mark_is_overwritten_stays_one(void **state)
{
    struct scene *s = back_after_an_outage();

    (void)state;
    SAYS(gets(s, PAIR_1("0"), 30), "backend_up; GET mark v_1/rank_1");
    SAYS(gets(s, "garbage", 31), "foreign; PUT mark v_1/rank_1 me_1_2 if garbage");
    SAYS(done(s, 32), "GET av");
    SAYS(gets(s, PAIR_1("0"), 32), "GET mark v_1/rank_1");
    SAYS(gets(s, "me_1_2", 33), "GET v_1");
    end(s);
}

static void a_mark_that_is_none_names_nobody(void **state)
{
    static const char *const bad[] = { "garbage", "", "_1_2", "x_1_", "x__2", "x_1_2 ", "x_1" };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct scene *s = about_to_join();

        SAYS(sees_marks(s, bad[i], "me_1_2"), "joined; GET av");
        assert_null(mu_classic_world(s->classic)->marks[0]);
        assert_false(mu_classic_world(s->classic)->all_ours);
        end(s);
    }
}

static void closing_replaces_what_none_of_us_wrote(void **state)
{
    struct scene *s = make(1, 1);

    (void)state;
    (void)asked(s, MU_CLASSIC_ON_CLOSE);
    SAYS(close_gets(s, "garbage"), "PUT av {\"status\": \"closed\"} at 7");
    SAYS(code_for(s, s->close_id, 0, false), "closed");
    end(s);
}

static void closing_refuses_a_document_of_another_layout(void **state)
{
    struct scene *s = make(1, 1);

    (void)state;
    (void)asked(s, MU_CLASSIC_ON_CLOSE);
    SAYS(close_gets(s, "{\"status\": \"odd\"}"), "failed ERDZV_STATE");
    end(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_join_makes_directories_and_counter),
        cmocka_unit_test(the_directory_of_the_job_is_renewed_every_hour),
        cmocka_unit_test(no_directory_is_made_for_the_root_as_prefix),
        cmocka_unit_test(where_there_is_no_document_one_is_created),
        cmocka_unit_test(whoever_is_late_with_creating_looks_again),
        cmocka_unit_test(a_vanished_counter_is_made_anew),
        cmocka_unit_test(setup_and_frozen_are_waited_out),
        cmocka_unit_test(a_joinable_document_without_room_is_waited_out),
        cmocka_unit_test(a_closed_one_is_not_joined),
        cmocka_unit_test(the_ttl_of_a_join_depends_on_how_many_are_in),
        cmocka_unit_test(a_join_whose_answer_was_lost_ends_the_version),
        cmocka_unit_test(a_join_that_was_not_sent_is_made_again),
        cmocka_unit_test(the_last_call_keeps_the_document_and_then_freezes_it),
        cmocka_unit_test(the_last_call_goes_by_what_others_write),
        cmocka_unit_test(the_last_call_is_over_when_the_version_is),
        cmocka_unit_test(peers_are_waited_for_until_it_is_frozen),
        cmocka_unit_test(peers_of_a_version_that_is_gone_are_not_waited_for),
        cmocka_unit_test(an_error_while_waiting_does_not_join_twice),
        cmocka_unit_test(confirming_writes_a_keep_alive_and_then_its_key),
        cmocka_unit_test(a_confirmation_that_is_not_our_own_is_another_group),
        cmocka_unit_test(a_rank_that_has_confirmed_twice_is_two_nodes),
        cmocka_unit_test(a_confirmation_whose_answer_was_lost_is_looked_for),
        cmocka_unit_test(a_confirmation_whose_answer_was_lost_with_everything_is_another_s),
        cmocka_unit_test(a_confirmation_without_an_answer_may_come_late),
        cmocka_unit_test(a_version_that_does_not_stay_frozen_is_left),
        cmocka_unit_test(a_final_version_without_our_rank_is_left),
        cmocka_unit_test(final_means_joined_and_says_who_is_who),
        cmocka_unit_test(a_join_that_succeeds_at_the_last_moment_has_succeeded),
        cmocka_unit_test(a_rank_whose_mark_is_another_s_is_not_ours),
        cmocka_unit_test(a_document_older_than_our_joining_is_another_one),
        cmocka_unit_test(a_join_that_succeeds_after_leave_was_asked_is_left_untold),
        cmocka_unit_test(a_late_joiner_announces_itself_and_waits),
        cmocka_unit_test(an_announcement_that_is_gone_is_made_again),
        cmocka_unit_test(whoever_waits_looks_again_when_that_group_is_over),
        cmocka_unit_test(keep_alives_are_the_same_however_they_are_written),
        cmocka_unit_test(a_busy_store_does_not_keep_a_watch_busy),
        cmocka_unit_test(a_waiting_node_that_gives_up_takes_its_announcement_back),
        cmocka_unit_test(a_waiting_node_that_leaves_takes_its_announcement_back),
        cmocka_unit_test(an_announcement_whose_answer_was_lost_is_not_made_twice),
        cmocka_unit_test(an_announcement_that_may_be_another_s_is_not_taken_back),
        cmocka_unit_test(who_waits_leaves_a_notice_and_looks_who_else_does),
        cmocka_unit_test(a_notice_is_renewed_in_time),
        cmocka_unit_test(a_notice_goes_when_the_wait_ends),
        cmocka_unit_test(a_notice_that_is_being_written_goes_after_that),
        cmocka_unit_test(a_round_that_forms_at_once_has_no_notice),
        cmocka_unit_test(a_notice_that_cannot_be_written_or_read_fails_nothing),
        cmocka_unit_test(what_is_no_notice_is_not_taken_for_one),
        cmocka_unit_test(another_nnodes_and_another_rendezvous_are_named),
        cmocka_unit_test(a_participant_without_a_place_has_a_notice_only_if_nobody_is_like_it),
        cmocka_unit_test(in_another_version_the_notice_is_another),
        cmocka_unit_test(a_timeout_says_how_many_came_and_names_this_node_if_it_is_alone),
        cmocka_unit_test(the_last_participant_takes_itself_out),
        cmocka_unit_test(a_frozen_version_is_removed_by_whoever_gives_up),
        cmocka_unit_test(leaving_does_not_take_longer_than_its_time),
        cmocka_unit_test(what_could_not_be_left_is_ended_by_the_next_join),
        cmocka_unit_test(a_join_without_an_answer_by_then_is_ended_by_the_next),
        cmocka_unit_test(what_could_not_be_left_is_left_by_the_next_leave),
        cmocka_unit_test(who_is_closed_out_while_confirming_leaves_no_keep_alive),
        cmocka_unit_test(a_keep_alive_that_may_have_been_written_is_deleted),
        cmocka_unit_test(the_keep_alive_of_the_last_group_goes_with_its_owner),
        cmocka_unit_test(leaving_when_in_nothing_is_done_at_once),
        cmocka_unit_test(a_join_asked_for_while_leaving_follows),
        cmocka_unit_test(a_member_hears_of_waiting_nodes_once),
        cmocka_unit_test(nodes_for_whom_there_is_no_room_end_no_group),
        cmocka_unit_test(a_missing_keep_alive_is_a_lost_peer),
        cmocka_unit_test(a_document_that_is_gone_is_a_lost_group),
        cmocka_unit_test(who_is_stopping_keeps_its_keep_alive_so_that_it_is_waited_for),
        cmocka_unit_test(who_joins_anew_says_again_that_it_is_here),
        cmocka_unit_test(who_is_stopping_does_not_renew_another_s_keep_alive),
        cmocka_unit_test(who_is_stopping_hears_whose_keep_alive_ends),
        cmocka_unit_test(who_is_stopping_judges_at_the_end_of_the_grace),
        cmocka_unit_test(who_is_stopping_drops_the_second_look_of_a_member),
        cmocka_unit_test(who_is_stopping_is_told_all_that_are_lost),
        cmocka_unit_test(who_is_stopping_without_its_keep_alive_judges_nobody),
        cmocka_unit_test(who_is_stopping_and_loses_its_keep_alive_meanwhile_judges_nobody),
        cmocka_unit_test(who_is_stopping_where_everything_was_lost_judges_nobody),
        cmocka_unit_test(who_is_stopping_takes_no_refusal_for_a_loss),
        cmocka_unit_test(who_is_stopping_when_the_others_go_on_is_removed),
        cmocka_unit_test(who_is_stopping_does_not_put_its_keep_alive_back),
        cmocka_unit_test(who_is_stopping_hears_that_the_job_is_closed),
        cmocka_unit_test(who_is_stopping_may_find_a_server_that_has_lost_everything),
        cmocka_unit_test(a_next_version_that_is_complete_means_removed),
        cmocka_unit_test(a_next_version_after_our_keep_alive_lapsed_means_removed),
        cmocka_unit_test(closing_by_others_is_told_once_and_the_group_goes_on),
        cmocka_unit_test(a_keep_alive_is_renewed_and_errors_do_not_end_that),
        cmocka_unit_test(a_server_that_refuses_is_as_one_that_is_away),
        cmocka_unit_test(a_keep_alive_that_alone_is_refused_keeps_no_peer_from_being_judged),
        cmocka_unit_test(a_lapsed_keep_alive_is_put_back),
        cmocka_unit_test(a_keep_alive_without_an_answer_has_the_watch_made_anew),
        cmocka_unit_test(who_leaves_deletes_its_keep_alive_when_that_is_put_back),
        cmocka_unit_test(who_joins_anew_deletes_its_keep_alive_when_that_is_put_back),
        cmocka_unit_test(who_joins_anew_waits_for_its_own_writes),
        cmocka_unit_test(who_joins_anew_and_leaves_meanwhile_leaves),
        cmocka_unit_test(who_is_about_to_leave_does_not_put_its_keep_alive_back),
        cmocka_unit_test(after_an_outage_nobody_is_judged_for_a_while),
        cmocka_unit_test(a_group_of_the_same_number_that_is_not_ours_means_removed),
        cmocka_unit_test(a_server_that_has_lost_everything_gets_the_group_back),
        cmocka_unit_test(a_document_whose_putting_back_has_no_answer_is_looked_for),
        cmocka_unit_test(a_document_that_is_found_is_ours_if_nothing_was_lost_meanwhile),
        cmocka_unit_test(a_server_that_loses_everything_again_gets_no_more_marks),
        cmocka_unit_test(a_group_that_comes_too_late_leaves_no_marks),
        cmocka_unit_test(who_gets_no_mark_is_removed),
        cmocka_unit_test(who_waits_for_its_mark_is_given_time_after_an_outage),
        cmocka_unit_test(a_mark_that_is_missing_where_everything_was_lost_is_not_waited_for),
        cmocka_unit_test(a_group_without_a_document_whose_mark_is_there_is_over),
        cmocka_unit_test(a_group_that_another_has_put_back_is_not_over),
        cmocka_unit_test(a_group_of_the_same_number_that_was_faster_means_removed),
        cmocka_unit_test(a_server_that_counts_from_1_again_gets_it_back_at_once),
        cmocka_unit_test(a_server_that_is_another_one_between_two_reads_is_read_from_the_beginning),
        cmocka_unit_test(a_keep_alive_that_is_put_back_on_another_server_says_so),
        cmocka_unit_test(a_renewal_tells_that_the_watch_waits_at_a_server_that_is_gone),
        cmocka_unit_test(a_connection_that_ends_is_no_outage),
        cmocka_unit_test(connections_that_keep_ending_are_made_less_and_less_often),
        cmocka_unit_test(a_server_that_is_empty_behind_a_new_connection_gets_the_group_back),
        cmocka_unit_test(who_finds_its_group_put_back_judges_nobody_yet),
        cmocka_unit_test(who_waits_for_a_group_to_end_leaves_it_to_its_members_to_put_it_back),
        cmocka_unit_test(who_waits_for_peers_looks_when_its_connection_has_ended),
        cmocka_unit_test(members_that_are_all_ours_regroup_at_once),
        cmocka_unit_test(when_all_are_back_the_last_call_is_over),
        cmocka_unit_test(a_member_that_has_not_stopped_yet_is_waited_for),
        cmocka_unit_test(a_member_that_is_gone_is_waited_for_a_second),
        cmocka_unit_test(the_others_end_the_last_call_a_second_later),
        cmocka_unit_test(nodes_that_waited_are_waited_for),
        cmocka_unit_test(nodes_that_waited_unnoticed_are_seen_at_the_end_of_the_group),
        cmocka_unit_test(who_finds_the_last_document_gone_does_not_end_the_last_call_at_once),
        cmocka_unit_test(who_deleted_the_last_document_ends_the_last_call_when_all_are_back),
        cmocka_unit_test(only_the_last_group_may_end_a_last_call),
        cmocka_unit_test(a_group_with_pytorch_in_it_has_its_whole_last_call),
        cmocka_unit_test(what_a_last_call_asks_about_the_last_group_may_fail),
        cmocka_unit_test(with_pytorch_among_them_members_announce_themselves),
        cmocka_unit_test(waiting_is_held_down_after_short_rounds),
        cmocka_unit_test(closing_replaces_the_status_and_nothing_else),
        cmocka_unit_test(closing_where_there_is_no_document_writes_one),
        cmocka_unit_test(closing_begins_anew_when_somebody_else_wrote),
        cmocka_unit_test(closing_what_is_closed_is_done),
        cmocka_unit_test(closing_ends_with_its_time),
        cmocka_unit_test(looking_tells_whether_it_is_there_or_closed_and_who_waits),
        cmocka_unit_test(what_is_no_etcd_ends_a_join_at_once),
        cmocka_unit_test(etcds_own_refusal_ends_a_join_at_once),
        cmocka_unit_test(an_unreachable_server_is_tried_until_the_time_is_up),
        cmocka_unit_test(an_answer_to_nobody_is_dropped),
        cmocka_unit_test(what_is_no_document_is_waited_out_and_then_deleted),
        cmocka_unit_test(a_joining_node_goes_on_when_the_members_have_put_their_document_back),
        cmocka_unit_test(a_document_of_another_layout_is_refused_by_name),
        cmocka_unit_test(a_member_leaves_a_document_of_another_layout_alone),
        cmocka_unit_test(a_member_puts_the_document_of_its_group_back),
        cmocka_unit_test(a_member_that_is_second_with_that_reads_again),
        cmocka_unit_test(a_closed_document_is_put_back_as_one),
        cmocka_unit_test(whoever_writes_there_again_and_again_is_answered_once_a_second),
        cmocka_unit_test(a_participant_whose_document_is_overwritten_looks_again),
        cmocka_unit_test(who_confirms_a_document_that_is_overwritten_looks_again),
        cmocka_unit_test(a_waiting_node_does_not_announce_itself_twice_to_a_document_that_is_put_back),
        cmocka_unit_test(who_stops_after_its_group_ended_waits_on),
        cmocka_unit_test(a_counter_that_is_none_goes_on_from_the_last_version),
        cmocka_unit_test(a_counter_that_is_none_begins_with_1_where_there_was_no_version),
        cmocka_unit_test(a_node_whose_mark_is_overwritten_says_again_who_it_is),
        cmocka_unit_test(a_member_whose_mark_is_overwritten_stays_one),
        cmocka_unit_test(a_mark_that_is_none_names_nobody),
        cmocka_unit_test(closing_replaces_what_none_of_us_wrote),
        cmocka_unit_test(closing_refuses_a_document_of_another_layout),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
