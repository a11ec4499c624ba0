/* One node of an etcd-v3 rendezvous, and as much of etcd as a test writes down for it. What the node does is a line of
 * words: "load job, take lease, write [ job/folder absent] record(join 0) job/folder else record". */
#ifndef TESTS_UNIT_FOLD_SCENE_H
#define TESTS_UNIT_FOLD_SCENE_H

#include "base/base64.h"
#include "pure.h"
#include "rdzv/fold.h"
#include "rdzv/pickle.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { LEASE_MS = 10000, JOB_MS = 60000, FIRST_MS = 60000, MIN = 2, MAX = 3, JOB_LEASE = 900, KVS_MAX = 32 };

#define ME UINT64_C(0x11)
#define OTHER UINT64_C(0x22)
#define THIRD UINT64_C(0x33)

struct scene {
    struct mu_fold *fold;
    uint64_t now_ms, hold_ms;
    bool own_hosts; /* each agent that is added has one; else all share one */
    char trace[2048];
    uint64_t load_id[2], take, write_id, grant_id, keep_id, look_id, drop_id; /* of the last effects */
    uint64_t seat_id, pages_id;                                               /* of reads that are under way */
    char doc[MU_FOLD_SMALL_MAX + 1], page[1024];                              /* as last written */
    struct mu_fold_record record;                                             /* ... and so our own, */
    struct mu_fold_news news;                                                 /* ... and so these */
    struct mu_fold_closed closed;
    struct mu_fold_seat seats[8];
    struct mu_fold_world like; /* what documents that are added say of restarts, and the round, if it is not the id */
    struct muster_error why;   /* of the last failure */
    /* The world in etcd whose document was added last. */
    uint64_t world, members[4];
    size_t members_count;
    /* etcd, as the next LOADED says. */
    struct mu_fold_kv kvs[KVS_MAX];
    struct mu_buf values[KVS_MAX];
    char names[KVS_MAX][MU_FOLD_KEY_MAX];
    size_t count;
};

/* ---- What it does, in words: "load job, take lease, write [job/folder absent] nodes/me job/folder" ---- */

static inline bool begins(struct mu_slice key, const char *text)
{
    return mu_slice_skip(&key, text);
}

/* The id in such a key: "seat/<world>/<node>", "member/<world>/". */
static inline uint64_t id_in(struct mu_slice key, size_t at)
{
    uint64_t id = 0;

    assert_true(key.len >= at + 16 && mu_fold_id_parse(mu_slice(key.data + at, 16), &id));
    return id;
}

static inline void say(struct scene *s, const char *text)
{
    size_t used = strlen(s->trace);

    (void)snprintf(s->trace + used, sizeof s->trace - used, "%s", text);
}

/* "member/<world>/<number>" */
static inline int page_in(struct mu_slice key)
{
    size_t skip = sizeof "member/0123456789abcdef/" - 1;
    char number[8] = "";

    assert_true(key.len > skip && key.len - skip < sizeof number);
    memcpy(number, key.data + skip, key.len - skip);
    return atoi(number);
}

/* "member/<world>/left/<node>" */
static inline bool is_goodbye(struct mu_slice key)
{
    return begins(key, "member/") && key.len == sizeof "member/0123456789abcdef/left/0123456789abcdef" - 1;
}

static inline void say_lease(struct scene *s, int64_t lease)
{
    char text[32];

    (void)snprintf(text, sizeof text, "@%" PRId64, lease);
    say(s, text);
}

static inline void say_key(struct scene *s, struct mu_slice key)
{
    char text[MU_FOLD_KEY_MAX + 2];

    if (begins(key, "nodes/") && key.data[key.len - 1] == 'e' && key.data[key.len - 5] == '/')
        (void)snprintf(text, sizeof text, " done");
    else if (begins(key, "nodes/"))
        (void)snprintf(text, sizeof text, " record");
    else if (is_goodbye(key))
        (void)snprintf(text, sizeof text, " goodbye");
    else if (begins(key, "member/"))
        (void)snprintf(text, sizeof text, " page %d", page_in(key));
    else if (begins(key, "seat/"))
        (void)snprintf(text, sizeof text, " seat %" PRIx64, id_in(key, sizeof "seat/0123456789abcdef/" - 1));
    else
        (void)snprintf(text, sizeof text, " %.*s", (int)key.len, key.data);
    say(s, text);
}

static inline void say_record(struct scene *s, struct mu_slice value)
{
    struct mu_fold_record record;
    char text[64];

    assert_int_equal(mu_fold_record_read(value, &record, NULL), 0);
    s->record = record;
    (void)snprintf(text, sizeof text, "(%s %" PRIx64, record.joining ? "join" : "stay", record.world);
    say(s, text);
    if (record.end.kind != MU_FOLD_END_NONE) {
        static const char *const ends[] = { "", "failed", "done", "again", "left", "lost" };

        (void)snprintf(text, sizeof text, "; %s %d at %d", ends[record.end.kind], (int)record.end.rank,
                       (int)record.end.at);
        say(s, text);
    }
    say(s, record.host.name[0] != '\0' ? "; host lost)" : ")");
}

static inline void say_news(struct scene *s, struct mu_slice value)
{
    struct mu_fold_news news = { .world = 0 };
    char text[32];

    assert_int_equal(mu_fold_news_read(value, &news, NULL), 0);
    s->news = news;
    say(s, "(gone");
    for (size_t i = 0; i < news.spans_count; i++)
        for (uint32_t rank = news.spans[i].first; rank <= news.spans[i].last; rank++) {
            (void)snprintf(text, sizeof text, " %u", (unsigned)rank);
            say(s, text);
        }
    if (news.missing > 0) {
        (void)snprintf(text, sizeof text, ", %d missing", (int)news.missing);
        say(s, text);
    }
    (void)snprintf(text, sizeof text, "; waiting %d%s", (int)news.waiting, news.grace ? "; grace" : "");
    say(s, text);
    if (news.spares > 0) {
        (void)snprintf(text, sizeof text, "; %d spare, %d apart", (int)news.spares, (int)news.apart);
        say(s, text);
    }
    say(s, ")");
}

static inline void say_delete(struct scene *s, struct mu_slice key)
{
    char text[MU_FOLD_KEY_MAX];

    if (begins(key, "job/"))
        (void)snprintf(text, sizeof text, " -%.*s", (int)key.len, key.data);
    else if (begins(key, "seat/"))
        (void)snprintf(text, sizeof text, " -seats %" PRIx64, id_in(key, sizeof "seat/" - 1));
    else
        (void)snprintf(text, sizeof text, " -pages %" PRIx64, id_in(key, sizeof "member/" - 1));
    say(s, text);
}

/* "document(8, 2.x, closed)": of that round, with nobody in it */
static inline void say_document(struct scene *s, struct mu_slice value)
{
    struct mu_buf pickle = { 0 };
    struct mu_doc doc;
    char text[64];

    mu_doc_init(&doc, (struct mu_hash_seed){ 0 }, MU_DOC_DIALECT_2_X);
    assert_int_equal(mu_base64_decode(value, &pickle, SIZE_MAX), 0);
    assert_int_equal(mu_pickle_decode(mu_buf_slice(&pickle), &doc, NULL), 0);
    assert_true(doc.count == 0 && !doc.complete && !doc.has_deadline);
    (void)snprintf(text, sizeof text, " document(%" PRId64 ", %s%s)", doc.round, doc.dialect.spares ? "2.x" : "1.13",
                   doc.closed ? ", closed" : "");
    say(s, text);
    mu_doc_done(&doc);
    mu_buf_done(&pickle);
}

static inline void say_put(struct scene *s, const struct mu_fold_op *put)
{
    if (put->kind == MU_FOLD_DOCUMENT) {
        say_document(s, put->value);
        return;
    }
    if (put->kind == MU_FOLD_YIELD) {
        say(s, " yield");
        return;
    }
    if (put->kind == MU_FOLD_DELETE_PREFIX) {
        say_delete(s, put->key);
        return;
    }
    say_key(s, put->key);
    if (begins(put->key, "seat/")) {
        struct mu_fold_seat seat = { .rank = -1 };
        char text[32];

        assert_int_equal(mu_fold_seat_read(put->value, &seat, NULL), 0);
        s->seats[seat.rank % 8] = seat;
        (void)snprintf(text, sizeof text, "=%d", (int)seat.rank);
        say(s, text);
    }
    if (is_goodbye(put->key))
        say_lease(s, put->lease);
    else if (begins(put->key, "member/"))
        (void)snprintf(s->page, sizeof s->page, "%.*s", (int)put->value.len, put->value.data);
    if (put->key.data[0] == 'n' && put->key.data[put->key.len - 1] == 'e')
        say_lease(s, put->lease);
    else if (put->key.data[0] == 'n')
        say_record(s, put->value);
    if (mu_slice_equal(put->key, mu_slice_str("job/doc")))
        (void)snprintf(s->doc, sizeof s->doc, "%.*s", (int)put->value.len, put->value.data);
    if (mu_slice_equal(put->key, mu_slice_str("job/closed")))
        assert_int_equal(mu_fold_closed_read(put->value, &s->closed, NULL), 0);
    if (mu_slice_equal(put->key, mu_slice_str("job/news")))
        say_news(s, put->value);
}

static inline void say_write(struct scene *s, const struct mu_fold_write *write)
{
    static const char *const kinds[] = { "absent", "mod" };
    char text[64];

    say(s, "write");
    for (unsigned i = 0; i < write->compares_count; i++) {
        say(s, i == 0 ? " [" : ",");
        say_key(s, write->compares[i].key);
        (void)snprintf(text, sizeof text, " %s", kinds[write->compares[i].kind]);
        say(s, text);
        if (write->compares[i].revision != 0) {
            (void)snprintf(text, sizeof text, " %" PRId64, write->compares[i].revision);
            say(s, text);
        }
    }
    say(s, write->compares_count > 0 ? "]" : "");
    for (size_t i = 0; i < write->ops_count; i++)
        say_put(s, &write->ops[i]);
    for (size_t i = 0; i < write->else_count; i++) {
        say(s, i == 0 ? " else" : "");
        say_key(s, write->else_ops[i].key);
    }
}

static inline void say_tell(struct scene *s, const struct mu_fold_effect *effect)
{
    say(s, mu_part_tell_text(effect->news.tell));
    if (effect->news.tell == MU_PART_TELL_BACKEND_DOWN && effect->news.give_up_in_ms != UINT64_MAX) {
        char text[32];

        (void)snprintf(text, sizeof text, " for %" PRIu64 " ms", effect->news.give_up_in_ms);
        say(s, text);
    }
    if (effect->news.tell == MU_PART_TELL_FAILED ||
        ((effect->news.tell == MU_PART_TELL_LOOKED || effect->news.tell == MU_PART_TELL_REPORTED) &&
         effect->news.error != NULL)) {
        s->why = *effect->news.error;
        say(s, " ");
        say(s, muster_error_name(effect->news.error->code));
    } else if (effect->news.tell == MU_PART_TELL_LOOKED && effect->news.round < 0) {
        say(s, " at nothing");
    } else if (effect->news.tell == MU_PART_TELL_LOST && effect->news.cause[0] != '\0') {
        say(s, ": ");
        say(s, effect->news.cause);
    }
}

static inline void say_range(struct scene *s, const struct mu_fold_effect *effect)
{
    if (begins(effect->key, "seat/")) {
        assert_true(id_in(effect->key, sizeof "seat/" - 1) == mu_fold_doc(s->fold)->id && !effect->prefix);
        assert_true(id_in(effect->key, sizeof "seat/0123456789abcdef/" - 1) == ME);
        s->seat_id = effect->id;
        say(s, "read seat");
    } else if (mu_slice_equal(effect->key, mu_slice_str("member/"))) {
        assert_true(effect->prefix);
        s->pages_id = effect->id;
        say(s, "read pages");
    } else {
        assert_true(id_in(effect->key, sizeof "member/" - 1) == mu_fold_doc(s->fold)->id && effect->prefix);
        s->seat_id = effect->id;
        say(s, "read names");
    }
}

static inline void say_effect(struct scene *s, const struct mu_fold_effect *effect)
{
    if (s->trace[0] != '\0')
        say(s, ", ");
    switch (effect->type) {
    case MU_FOLD_DO_LOAD:
        s->load_id[effect->scope] = effect->id;
        say(s, effect->scope == MU_FOLD_JOB ? "load job" : "load nodes");
        break;
    case MU_FOLD_DO_RANGE:
        say_range(s, effect);
        break;
    case MU_FOLD_DO_TAKE_LEASE:
        s->take = effect->id;
        say(s, "take lease");
        break;
    case MU_FOLD_DO_WRITE:
        s->write_id = effect->id;
        say_write(s, effect->write);
        break;
    case MU_FOLD_DO_GRANT_JOB:
        s->grant_id = effect->id;
        say(s, "grant job");
        break;
    case MU_FOLD_DO_KEEP_JOB:
        s->keep_id = effect->id;
        say(s, "keep job");
        break;
    case MU_FOLD_DO_DROP_LEASE:
        s->drop_id = effect->id;
        say(s, "drop lease");
        break;
    case MU_FOLD_DO_LOOK_AROUND:
        s->look_id = effect->id;
        assert_int_equal(effect->doc_mod, mu_fold_doc_mod(s->fold));
        say(s, effect->value.len > 0 ? "look around with a mark" : "look around");
        break;
    case MU_FOLD_DO_UNMARK:
        say(s, "unmark");
        break;
    case MU_FOLD_DO_UNWATCH:
        say(s, "unwatch nodes");
        break;
    case MU_FOLD_DO_TELL:
        say_tell(s, effect);
        break;
    case MU_FOLD_DO_COMPLETED:
        say(s, "completed");
        break;
    case MU_FOLD_DO_LEADER:
        say(s, "leader");
        break;
    }
}

static inline const char *step(struct scene *s, struct mu_fold_event event)
{
    struct mu_fold_effects effects;

    event.now_ms = s->now_ms;
    mu_fold_step(s->fold, &event, &effects);
    s->trace[0] = '\0';
    for (unsigned i = 0; i < effects.count; i++)
        say_effect(s, &effects.items[i]);
    return s->trace;
}

static inline const char *asked(struct scene *s, enum mu_fold_event_type what)
{
    return step(s, (struct mu_fold_event){ .type = what });
}

static inline const char *passes(struct scene *s, uint64_t ms)
{
    s->now_ms += ms;
    return asked(s, MU_FOLD_ON_TIME);
}

static inline const char *leased(struct scene *s, int64_t lease)
{
    return step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_LEASED, .id = s->take, .lease = lease });
}

static inline const char *wrote(struct scene *s, bool held, int64_t revision)
{
    return step(
        s, (struct mu_fold_event){ .type = MU_FOLD_ON_WROTE, .id = s->write_id, .held = held, .revision = revision });
}

static inline const char *granted(struct scene *s, int64_t lease)
{
    return step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_GRANTED, .id = s->grant_id, .lease = lease });
}

static inline const char *kept(struct scene *s, bool held)
{
    return step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_KEPT, .id = s->keep_id, .held = held });
}

/* The client's connection is in trouble, or is not any more. */
static inline const char *trouble(struct scene *s, bool is_away)
{
    const struct muster_error error = { .code = MUSTER_ECONNECT, .text = "connection refused" };

    return step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_TROUBLE, .error = is_away ? &error : NULL });
}

/* ... and the store was not heard for so long. */
static inline const char *silent_for(struct scene *s, uint64_t ms)
{
    const struct muster_error error = { .code = MUSTER_ETIMEOUT, .text = "no answer" };

    return step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_TROUBLE, .error = &error, .ago_ms = ms });
}

/* Nobody listens where the store was. */
static inline const char *store_is_gone(struct scene *s)
{
    const struct muster_error error = { .code = MUSTER_ECONNECT, .text = "connection refused" };

    return step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_TROUBLE, .error = &error, .gone = true });
}

/* The store is reached, whose host is this node; "": none. */
static inline const char *met(struct scene *s, const char *host, bool another)
{
    return step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_MET, .host = mu_slice_str(host), .another = another });
}

static inline const char *failed(struct scene *s, uint64_t id)
{
    struct muster_error error = { .code = MUSTER_ECONNECT, .text = "connection refused" };

    return step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_REQUEST_FAILED, .id = id, .error = &error });
}

static inline const char *refused(struct scene *s, uint64_t id)
{
    struct muster_error error = { .code = MUSTER_ELIMIT, .text = "database space exceeded" };

    return step(
        s, (struct mu_fold_event){ .type = MU_FOLD_ON_REQUEST_FAILED, .id = id, .error = &error, .refused = true });
}

static inline const char *lease_gone(struct scene *s, uint64_t id)
{
    const struct muster_error error = { .code = MUSTER_EINVAL, .text = "no such lease" };

    return step(
        s, (struct mu_fold_event){ .type = MU_FOLD_ON_REQUEST_FAILED, .id = id, .error = &error, .lease_gone = true });
}

/* ---- What is in etcd ---- */

static inline struct mu_buf *add(struct scene *s, const char *name, int64_t create, int64_t mod, int64_t lease)
{
    size_t at = s->count++;

    assert_true(at < KVS_MAX);
    (void)snprintf(s->names[at], sizeof s->names[at], "%s", name);
    s->kvs[at] = (struct mu_fold_kv){ .key = mu_slice_str(s->names[at]), .create = create, .mod = mod, .lease = lease };
    return &s->values[at];
}

static inline void add_doc(struct scene *s, uint64_t id, int64_t mod, const uint64_t *members, size_t count)
{
    struct mu_fold_world world = { .id = id,
                                   .round = s->like.round > 0 ? s->like.round : (int64_t)id,
                                   .nodes = (int64_t)count,
                                   .hold_ms = s->hold_ms,
                                   .one_host = true,
                                   .first = "host",
                                   .first_pid = 1,
                                   .first_local_id = 1,
                                   .size = (int64_t)count,
                                   .count = s->like.count,
                                   .max_restarts = s->like.max_restarts,
                                   .crashes = s->like.crashes,
                                   .window_s = s->like.window_s,
                                   .host = s->like.host,
                                   .charges = { s->like.charges[0] },
                                   .charges_count = s->like.charges_count,
                                   .rest_ms = s->like.rest_ms };

    assert_int_equal(mu_fold_world_write(&world, add(s, "job/doc", 1, mod, JOB_LEASE)), 0);
    s->world = id;
    s->members_count = count;
    memcpy(s->members, members, count * sizeof *members);
}

/* The rank of a node in the world that was added last; -1: none. */
static inline int64_t rank_of(const struct scene *s, uint64_t id)
{
    for (size_t i = 0; i < s->members_count; i++)
        if (s->members[i] == id)
            return (int64_t)i;
    return -1;
}

static inline void add_seat(struct scene *s, uint64_t world, int64_t rank)
{
    const struct mu_fold_seat seat = { .rank = rank, .base_rank = rank, .base_role_rank = rank, .role_size = 1 };
    char key[MU_FOLD_KEY_MAX];

    (void)snprintf(key, sizeof key, "seat/%016" PRIx64 "/%016" PRIx64, world, ME);
    assert_int_equal(mu_fold_seat_write(&seat, add(s, key, 1, 1, JOB_LEASE)), 0);
}

/* All agents are on one host, or each is on its own. */
static inline const char *name_of(const struct scene *s, uint64_t id, char name[static MU_FOLD_SHOWN_MAX])
{
    if (s->own_hosts)
        (void)snprintf(name, MU_FOLD_SHOWN_MAX, "node%" PRIx64, id);
    else
        (void)snprintf(name, MU_FOLD_SHOWN_MAX, "host");
    return name;
}

static inline void add_page(struct scene *s, uint64_t world, const uint64_t *members, size_t count)
{
    struct mu_fold_member all[4];
    char key[MU_FOLD_KEY_MAX];
    char names[4][MU_FOLD_SHOWN_MAX];

    for (size_t i = 0; i < count; i++)
        all[i] = (struct mu_fold_member){ members[i], { mu_slice_str(name_of(s, members[i], names[i])), 1, 1 } };
    (void)snprintf(key, sizeof key, "member/%016" PRIx64 "/0000", world);
    assert_int_equal(mu_fold_page_write(all, count, add(s, key, 1, 1, JOB_LEASE)), 0);
}

static inline void add_full_news(struct scene *s, int64_t mod, const struct mu_fold_news *news)
{
    assert_int_equal(mu_fold_news_write(news, add(s, "job/news", 2, mod, JOB_LEASE)), 0);
}

static inline void add_news(struct scene *s, uint64_t world, int64_t mod, const uint32_t *gone, size_t count,
                            int64_t waiting)
{
    struct mu_fold_news news = { .world = world, .waiting = waiting, .last_call_ms = -1 };

    for (size_t i = 0; i < count; i++)
        mu_fold_news_add_gone(&news, gone[i], mu_slice_str("host"));
    news.over = count > 0;
    add_full_news(s, mod, &news);
}

/* Of members that have no record any more. */
static inline void add_losses(struct scene *s, uint64_t world, int64_t mod, const uint32_t *gone, size_t count)
{
    struct mu_fold_news news = { .world = world, .missing = (int64_t)count, .last_call_ms = -1 };

    for (size_t i = 0; i < count; i++)
        mu_fold_news_add_gone(&news, gone[i], mu_slice_str("host"));
    news.over = count > 0;
    add_full_news(s, mod, &news);
}

static inline void add_leader(struct scene *s, uint64_t node, int64_t create, int64_t lease)
{
    assert_int_equal(mu_fold_mark_write(node, add(s, "job/folder", create, create, lease)), 0);
}

static inline void add_closed(struct scene *s)
{
    const struct mu_fold_closed closed = { .node = OTHER };

    assert_int_equal(mu_fold_closed_write(&closed, add(s, "job/closed", 3, 3, JOB_LEASE)), 0);
}

static inline void add_full_record(struct scene *s, uint64_t id, int64_t create, struct mu_fold_record record)
{
    char key[MU_FOLD_KEY_MAX];

    (void)name_of(s, id, record.name);
    record.pid = record.local_id = 1;
    record.size = record.size > 0 ? record.size : 1;
    record.world_size = record.world_size > 0 ? record.world_size : 1;
    (void)snprintf(key, sizeof key, "nodes/%016" PRIx64 "/%016" PRIx64, id, (uint64_t)create);
    assert_int_equal(mu_fold_record_write(&record, add(s, key, create, create, create)), 0);
}

static inline void add_record(struct scene *s, uint64_t id, int64_t create, uint64_t seq, bool joining, uint64_t world)
{
    int64_t rank = rank_of(s, id);

    add_full_record(s, id, create,
                    (struct mu_fold_record){ .nodes_min = MIN,
                                             .nodes_max = MAX,
                                             .seq = seq,
                                             .joining = joining,
                                             .world = world,
                                             .round = (int64_t)world,
                                             .rank = rank < 0 ? 0 : rank,
                                             .nodes = joining    ? 0
                                                      : rank < 0 ? 1
                                                                 : (int64_t)s->members_count });
}

static inline void forget(struct scene *s)
{
    for (size_t i = 0; i < s->count; i++)
        mu_buf_done(&s->values[i]);
    s->count = 0;
}

static inline const char *tell(struct scene *s, enum mu_fold_event_type type, enum mu_fold_scope scope, uint64_t id)
{
    for (size_t i = 0; i < s->count; i++)
        s->kvs[i].value = mu_buf_slice(&s->values[i]);
    (void)step(s, (struct mu_fold_event){ .type = type, .id = id, .scope = scope, .kvs = s->kvs, .count = s->count });
    forget(s);
    return s->trace;
}

static inline const char *tell_it(struct scene *s, enum mu_fold_event_type type, enum mu_fold_scope scope)
{
    return tell(s, type, scope, type == MU_FOLD_ON_CROWD ? s->look_id : s->load_id[scope]);
}

/* Answers the read with what was added. */
static inline const char *ranged(struct scene *s, uint64_t *id)
{
    uint64_t asked_id = *id;

    *id = 0;
    return tell(s, MU_FOLD_ON_RANGED, MU_FOLD_JOB, asked_id);
}

/* Our seat in the world that was added last, if it has one. */
static inline const char *seated(struct scene *s)
{
    if (rank_of(s, ME) >= 0)
        add_seat(s, s->world, rank_of(s, ME));
    return ranged(s, &s->seat_id);
}

/* The pages of that world. */
static inline const char *paged(struct scene *s)
{
    if (s->world != 0)
        add_page(s, s->world, s->members, s->members_count);
    return ranged(s, &s->pages_id);
}

static inline const char *loaded(struct scene *s, enum mu_fold_scope scope)
{
    return tell_it(s, MU_FOLD_ON_LOADED, scope);
}

/* The records come, and then the pages, which a leader reads first of all. */
static inline const char *folds(struct scene *s)
{
    assert_non_null(strstr(loaded(s, MU_FOLD_NODES), "read pages"));
    return paged(s);
}

static inline const char *changed(struct scene *s, enum mu_fold_scope scope)
{
    return tell_it(s, MU_FOLD_ON_CHANGED, scope);
}

static inline const char *deleted(struct scene *s, enum mu_fold_scope scope, const char *name, int64_t mod)
{
    (void)add(s, name, 0, mod, 0);
    s->kvs[0].deleted = true;
    return changed(s, scope);
}

/* The same at an engine, which tells more of it. */
static inline const char *record_goes(struct scene *s, const char *name, int64_t mod, enum mu_fold_how how,
                                      uint64_t ago_ms)
{
    (void)add(s, name, 0, mod, 0);
    s->kvs[0].deleted = true;
    s->kvs[0].how = how;
    s->kvs[0].ago_ms = ago_ms;
    return changed(s, MU_FOLD_NODES);
}

/* ---- Scenes ---- */

static inline void begin_with(struct scene *s, int64_t nodes_min, int64_t nodes_max, struct mu_fold_config config)
{
    const struct mu_rdzv_settings settings = MU_RDZV_SETTINGS_DEFAULT;

    config.settings = settings;
    config.settings.nodes_min = nodes_min;
    config.settings.nodes_max = nodes_max;
    config.name = "host";
    config.pid = config.local_id = 1;
    config.id = ME;
    config.lease_ms = LEASE_MS;
    config.job_lease_ms = JOB_MS;
    config.first_ms = FIRST_MS;
    config.seed = 1;
    s->now_ms = 1000;
    assert_int_equal(mu_fold_new(&config, &s->fold, NULL), 0);
}

static inline void begin(struct scene *s, int64_t nodes_min, int64_t nodes_max)
{
    begin_with(s, nodes_min, nodes_max, (struct mu_fold_config){ .ops_max = MU_FOLD_OPS_MIN });
}

static inline int set_up(void **state)
{
    struct scene *s = calloc(1, sizeof *s);

    if (s == NULL)
        return -1;
    begin(s, MIN, MAX);
    *state = s;
    return 0;
}

static inline int tear_down(void **state)
{
    struct scene *s = *state;

    forget(s);
    mu_fold_free(s->fold);
    free(s);
    return 0;
}

/* What is in etcd is read, a lease taken and the record written. */
static inline void put_record(struct scene *s, int64_t lease, int64_t revision)
{
    (void)loaded(s, MU_FOLD_JOB);
    if (s->seat_id != 0)
        (void)seated(s);
    (void)leased(s, lease);
    (void)wrote(s, true, revision);
}

/* Its record is written, somebody else folds. */
static inline void join_beside_a_leader(struct scene *s)
{
    (void)asked(s, MU_FOLD_ON_JOIN);
    add_leader(s, OTHER, 5, 22);
    put_record(s, 11, 6);
}

static inline void join_as_leader(struct scene *s)
{
    (void)asked(s, MU_FOLD_ON_JOIN);
    put_record(s, 11, 6);
    add_leader(s, ME, 6, 11);
    assert_string_equal(changed(s, MU_FOLD_JOB), "leader, load nodes");
}

static const uint64_t us[] = { OTHER, ME }, them[] = { OTHER, THIRD };

/* A leader of the round 7 of these two. */
static inline void fold_round(struct scene *s, const uint64_t *members)
{
    (void)asked(s, MU_FOLD_ON_JOIN);
    add_leader(s, ME, 6, 11);
    add_doc(s, 7, 20, members, 2);
    put_record(s, 11, 21);
}

/* The records of the two who want in. */
static inline void add_both(struct scene *s)
{
    add_record(s, ME, 6, 1, true, 0);
    add_record(s, OTHER, 7, 1, true, 0);
}

/* News have been written, by us, and come back. */
static inline const char *news_are_there(struct scene *s, uint64_t world, int64_t revision, const uint32_t *gone,
                                         size_t count, int64_t waiting)
{
    (void)wrote(s, true, revision);
    add_news(s, world, revision, gone, count, waiting);
    return changed(s, MU_FOLD_JOB);
}

static inline void be_member(struct scene *s)
{
    join_beside_a_leader(s);
    add_doc(s, 7, 20, us, 2);
    assert_string_equal(changed(s, MU_FOLD_JOB), "progress, read seat");
    assert_string_equal(seated(s), "joined");
}

static inline const char *lose_lease(struct scene *s)
{
    struct muster_error error = { .code = MUSTER_ELOST, .text = "the lease is over" };

    return step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_LEASE_LOST, .id = s->take, .error = &error });
}

/* A member whose lease was lost, and who is the leader when it is back; its record is about to be read. */
static inline void be_leader_again(struct scene *s)
{
    be_member(s);
    (void)lose_lease(s);
    add_leader(s, ME, 50, 12);
    add_doc(s, 7, 20, us, 2);
    put_record(s, 12, 51);
    add_record(s, ME, 50, 2, false, 7);
}

/* A record of a member of a world that is perhaps not there. */
static inline void add_holder(struct scene *s, uint64_t id, int64_t create, uint64_t world, int64_t round, int64_t rank,
                              int64_t nodes)
{
    add_full_record(
        s, id, create,
        (struct mu_fold_record){
            .nodes_min = MIN, .nodes_max = 4, .seq = 1, .world = world, .round = round, .rank = rank, .nodes = nodes });
}

/* A leader that waits, and finds these; until then nothing is written but news of those who join. */
static inline const char *find_holders(struct scene *s)
{
    add_record(s, ME, 6, 1, true, 0);
    assert_string_equal(folds(s), "grant job");
    return granted(s, 900);
}

/* The members of the page that was written: "22 11". */
static inline const char *list_members(const struct scene *s, char text[static 64])
{
    struct mu_fold_world world = { .id = 0 };
    struct mu_fold_members members = { .world = 0 };
    size_t used = 0;

    assert_int_equal(mu_fold_world_read(mu_slice_str(s->doc), &world, NULL), 0);
    assert_int_equal(mu_fold_members_init(&members, world.id, (size_t)world.nodes), 0);
    assert_int_equal(mu_fold_members_read_page(&members, 0, mu_slice_str(s->page), NULL), 0);
    text[0] = '\0';
    for (size_t m = 0; m < members.count; m++)
        used += (size_t)snprintf(text + used, 64 - used, "%s%" PRIx64, m == 0 ? "" : " ", members.items[m].id);
    mu_fold_members_done(&members);
    return text;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

#endif
