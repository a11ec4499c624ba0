/* One node's part in an etcd-v3 rendezvous: what it asks of etcd, what it writes under which conditions, what it
 * tells. */
#include "failmalloc.h"
#include "pure.h"
#include "rdzv/fold.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

enum { LEASE_MS = 10000, JOB_MS = 60000, FIRST_MS = 60000, MIN = 2, MAX = 3, JOB_LEASE = 900, KVS_MAX = 16 };

#define ME UINT64_C(0x11)
#define OTHER UINT64_C(0x22)
#define THIRD UINT64_C(0x33)

struct scene {
    struct mu_fold *fold;
    uint64_t now_ms, hold_ms;
    char trace[2048];
    uint64_t load_id[2], take, write_id, grant_id, keep_id, look_id, drop_id; /* of the last effects */
    char doc[1024];                                                           /* as last written */
    struct muster_error why;                                                  /* of the last failure */
    /* etcd, as the next LOADED says. */
    struct mu_fold_kv kvs[KVS_MAX];
    struct mu_buf values[KVS_MAX];
    char names[KVS_MAX][MU_FOLD_KEY_MAX];
    size_t count;
};

/* ---- What it does, in words: "load job, take lease, write [job/folder absent] nodes/me job/folder" ---- */

static void say(struct scene *s, const char *text)
{
    size_t used = strlen(s->trace);

    (void)snprintf(s->trace + used, sizeof s->trace - used, "%s", text);
}

static void say_key(struct scene *s, struct mu_slice key)
{
    char text[MU_FOLD_KEY_MAX + 2];

    if (key.len > 6 && memcmp(key.data, "nodes/", 6) == 0)
        (void)snprintf(text, sizeof text, " record");
    else
        (void)snprintf(text, sizeof text, " %.*s", (int)key.len, key.data);
    say(s, text);
}

static void say_record(struct scene *s, struct mu_slice value)
{
    struct mu_fold_record record;
    char text[64];

    assert_int_equal(mu_fold_record_read(value, &record, NULL), 0);
    (void)snprintf(text, sizeof text, "(%s %" PRIx64 ")", record.joining ? "join" : "stay", record.world);
    say(s, text);
}

static void say_put(struct scene *s, const struct mu_fold_put *put)
{
    say_key(s, put->key);
    if (put->key.data[0] == 'n')
        say_record(s, put->value);
    if (mu_slice_equal(put->key, mu_slice_str("job/doc")))
        (void)snprintf(s->doc, sizeof s->doc, "%.*s", (int)put->value.len, put->value.data);
    if (mu_slice_equal(put->key, mu_slice_str("job/news"))) {
        struct mu_fold_news news = { .world = 0 };
        char text[32];

        assert_int_equal(mu_fold_news_read(put->value, &news, NULL), 0);
        say(s, "(gone");
        for (size_t i = 0; i < news.gone_count; i++) {
            (void)snprintf(text, sizeof text, " %u", (unsigned)news.gone[i]);
            say(s, text);
        }
        (void)snprintf(text, sizeof text, "; waiting %d%s", (int)news.waiting, news.grace ? "; grace" : "");
        say(s, text);
        if (news.spares > 0) {
            (void)snprintf(text, sizeof text, "; %d spare, %d apart", (int)news.spares, (int)news.apart);
            say(s, text);
        }
        say(s, ")");
        mu_fold_news_done(&news);
    }
}

static void say_write(struct scene *s, const struct mu_fold_write *write)
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
    for (unsigned i = 0; i < write->puts_count; i++)
        say_put(s, &write->puts[i]);
    for (unsigned i = 0; i < write->else_count; i++) {
        say(s, i == 0 ? " else" : "");
        say_key(s, write->else_puts[i].key);
    }
}

static void say_tell(struct scene *s, const struct mu_fold_effect *effect)
{
    say(s, mu_part_tell_text(effect->news.tell));
    if (effect->news.tell == MU_PART_TELL_FAILED ||
        (effect->news.tell == MU_PART_TELL_LOOKED && effect->news.error != NULL)) {
        s->why = *effect->news.error;
        say(s, " ");
        say(s, muster_error_name(effect->news.error->code));
    } else if (effect->news.tell == MU_PART_TELL_LOOKED && effect->news.round < 0) {
        say(s, " at nothing");
    }
}

static void say_effect(struct scene *s, const struct mu_fold_effect *effect)
{
    if (s->trace[0] != '\0')
        say(s, ", ");
    switch (effect->type) {
    case MU_FOLD_DO_LOAD:
        s->load_id[effect->scope] = effect->id;
        say(s, effect->scope == MU_FOLD_JOB ? "load job" : "load nodes");
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

static const char *step(struct scene *s, struct mu_fold_event event)
{
    struct mu_fold_effects effects;

    event.now_ms = s->now_ms;
    mu_fold_step(s->fold, &event, &effects);
    s->trace[0] = '\0';
    for (unsigned i = 0; i < effects.count; i++)
        say_effect(s, &effects.items[i]);
    return s->trace;
}

static const char *asked(struct scene *s, enum mu_fold_event_type what)
{
    return step(s, (struct mu_fold_event){ .type = what });
}

static const char *passes(struct scene *s, uint64_t ms)
{
    s->now_ms += ms;
    return asked(s, MU_FOLD_ON_TIME);
}

static const char *leased(struct scene *s, int64_t lease)
{
    return step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_LEASED, .id = s->take, .lease = lease });
}

static const char *wrote(struct scene *s, bool held, int64_t revision)
{
    return step(
        s, (struct mu_fold_event){ .type = MU_FOLD_ON_WROTE, .id = s->write_id, .held = held, .revision = revision });
}

static const char *granted(struct scene *s, int64_t lease)
{
    return step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_GRANTED, .id = s->grant_id, .lease = lease });
}

static const char *kept(struct scene *s, bool held)
{
    return step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_KEPT, .id = s->keep_id, .held = held });
}

/* The client's connection is in trouble, or is not any more. */
static const char *trouble(struct scene *s, bool is_away)
{
    const struct muster_error error = { .code = MUSTER_ECONNECT, .text = "connection refused" };

    return step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_TROUBLE, .error = is_away ? &error : NULL });
}

static const char *failed(struct scene *s, uint64_t id)
{
    struct muster_error error = { .code = MUSTER_ECONNECT, .text = "connection refused" };

    return step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_REQUEST_FAILED, .id = id, .error = &error });
}

static const char *lease_gone(struct scene *s, uint64_t id)
{
    const struct muster_error error = { .code = MUSTER_EINVAL, .text = "no such lease" };

    return step(
        s, (struct mu_fold_event){ .type = MU_FOLD_ON_REQUEST_FAILED, .id = id, .error = &error, .lease_gone = true });
}

/* ---- What is in etcd ---- */

static struct mu_buf *add(struct scene *s, const char *name, int64_t create, int64_t mod, int64_t lease)
{
    size_t at = s->count++;

    assert_true(at < KVS_MAX);
    (void)snprintf(s->names[at], sizeof s->names[at], "%s", name);
    s->kvs[at] = (struct mu_fold_kv){ .key = mu_slice_str(s->names[at]), .create = create, .mod = mod, .lease = lease };
    return &s->values[at];
}

static void add_doc(struct scene *s, uint64_t id, int64_t mod, const uint64_t *members, size_t count)
{
    struct mu_fold_member all[4];
    struct mu_fold_world world = {
        .id = id, .round = (int64_t)id, .hold_ms = s->hold_ms, .members = all, .count = count
    };
    struct mu_buf *value = add(s, "job/doc", 1, mod, JOB_LEASE);

    for (size_t i = 0; i < count; i++)
        all[i] = (struct mu_fold_member){ members[i], { mu_slice_str("host"), 1, 1 } };
    assert_int_equal(mu_fold_world_write(&world), 0);
    assert_int_equal(mu_buf_assign(value, mu_buf_slice(&world.bytes)), 0);
    mu_buf_done(&world.bytes);
}

static void add_full_news(struct scene *s, int64_t mod, const struct mu_fold_news *news)
{
    assert_int_equal(mu_fold_news_write(news, add(s, "job/news", 2, mod, JOB_LEASE)), 0);
}

static void add_news(struct scene *s, uint64_t world, int64_t mod, const uint32_t *gone, size_t count, int64_t waiting)
{
    add_full_news(
        s, mod,
        &(struct mu_fold_news){
            .world = world, .gone = (uint32_t *)gone, .gone_count = count, .waiting = waiting, .last_call_ms = -1 });
}

static void add_leader(struct scene *s, uint64_t node, int64_t create, int64_t lease)
{
    assert_int_equal(mu_fold_mark_write(node, add(s, "job/folder", create, create, lease)), 0);
}

static void add_closed(struct scene *s)
{
    assert_int_equal(mu_fold_mark_write(OTHER, add(s, "job/closed", 3, 3, JOB_LEASE)), 0);
}

static void add_full_record(struct scene *s, uint64_t id, int64_t create, struct mu_fold_record record)
{
    char key[MU_FOLD_KEY_MAX];

    (void)snprintf(record.name, sizeof record.name, "host");
    record.pid = record.local_id = 1;
    (void)snprintf(key, sizeof key, "nodes/%016" PRIx64 "/%016" PRIx64, id, (uint64_t)create);
    assert_int_equal(mu_fold_record_write(&record, add(s, key, create, create, create)), 0);
}

static void add_record(struct scene *s, uint64_t id, int64_t create, uint64_t seq, bool joining, uint64_t world)
{
    add_full_record(
        s, id, create,
        (struct mu_fold_record){ .nodes_min = MIN, .nodes_max = MAX, .seq = seq, .joining = joining, .world = world });
}

static void forget(struct scene *s)
{
    for (size_t i = 0; i < s->count; i++)
        mu_buf_done(&s->values[i]);
    s->count = 0;
}

static const char *tell_it(struct scene *s, enum mu_fold_event_type type, enum mu_fold_scope scope)
{
    for (size_t i = 0; i < s->count; i++)
        s->kvs[i].value = mu_buf_slice(&s->values[i]);
    (void)step(s, (struct mu_fold_event){ .type = type,
                                          .id = type == MU_FOLD_ON_CROWD ? s->look_id : s->load_id[scope],
                                          .scope = scope,
                                          .kvs = s->kvs,
                                          .count = s->count });
    forget(s);
    return s->trace;
}

static const char *loaded(struct scene *s, enum mu_fold_scope scope)
{
    return tell_it(s, MU_FOLD_ON_LOADED, scope);
}

static const char *changed(struct scene *s, enum mu_fold_scope scope)
{
    return tell_it(s, MU_FOLD_ON_CHANGED, scope);
}

static const char *deleted(struct scene *s, enum mu_fold_scope scope, const char *name, int64_t mod)
{
    (void)add(s, name, 0, mod, 0);
    s->kvs[0].deleted = true;
    return changed(s, scope);
}

/* ---- Scenes ---- */

static void begin(struct scene *s, int64_t nodes_min, int64_t nodes_max)
{
    struct mu_fold_config config = { .settings = MU_RDZV_SETTINGS_DEFAULT,
                                     .name = "host",
                                     .pid = 1,
                                     .local_id = 1,
                                     .id = ME,
                                     .lease_ms = LEASE_MS,
                                     .job_lease_ms = JOB_MS,
                                     .first_ms = FIRST_MS,
                                     .seed = 1 };

    config.settings.nodes_min = nodes_min;
    config.settings.nodes_max = nodes_max;
    s->now_ms = 1000;
    assert_int_equal(mu_fold_new(&config, &s->fold, NULL), 0);
}

static int set_up(void **state)
{
    struct scene *s = calloc(1, sizeof *s);

    if (s == NULL)
        return -1;
    begin(s, MIN, MAX);
    *state = s;
    return 0;
}

static int tear_down(void **state)
{
    struct scene *s = *state;

    forget(s);
    mu_fold_free(s->fold);
    free(s);
    return 0;
}

/* What is in etcd is read, a lease taken and the record written. */
static void put_record(struct scene *s, int64_t lease, int64_t revision)
{
    (void)loaded(s, MU_FOLD_JOB);
    (void)leased(s, lease);
    (void)wrote(s, true, revision);
}

/* Its record is written, somebody else folds. */
static void join_beside_a_leader(struct scene *s)
{
    (void)asked(s, MU_FOLD_ON_JOIN);
    add_leader(s, OTHER, 5, 22);
    put_record(s, 11, 6);
}

static void join_as_leader(struct scene *s)
{
    (void)asked(s, MU_FOLD_ON_JOIN);
    put_record(s, 11, 6);
    add_leader(s, ME, 6, 11);
    assert_string_equal(changed(s, MU_FOLD_JOB), "leader, load nodes");
}

static const uint64_t us[] = { OTHER, ME }, them[] = { OTHER, THIRD };

/* A leader of the round 7 of these two. */
static void fold_round(struct scene *s, const uint64_t *members)
{
    (void)asked(s, MU_FOLD_ON_JOIN);
    add_leader(s, ME, 6, 11);
    add_doc(s, 7, 20, members, 2);
    put_record(s, 11, 21);
}

/* The records of the two who want in. */
static void add_both(struct scene *s)
{
    add_record(s, ME, 6, 1, true, 0);
    add_record(s, OTHER, 7, 1, true, 0);
}

/* News have been written, by us, and come back. */
static const char *news_are_there(struct scene *s, uint64_t world, int64_t revision, const uint32_t *gone, size_t count,
                                  int64_t waiting)
{
    (void)wrote(s, true, revision);
    add_news(s, world, revision, gone, count, waiting);
    return changed(s, MU_FOLD_JOB);
}

static void be_member(struct scene *s)
{
    join_beside_a_leader(s);
    add_doc(s, 7, 20, us, 2);
    assert_string_equal(changed(s, MU_FOLD_JOB), "joined");
}

static const char *lose_lease(struct scene *s)
{
    struct muster_error error = { .code = MUSTER_ELOST, .text = "the lease is over" };

    return step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_LEASE_LOST, .id = s->take, .error = &error });
}

/* A member whose lease was lost, and who is the leader when it is back; its record is about to be read. */
static void be_leader_again(struct scene *s)
{
    be_member(s);
    (void)lose_lease(s);
    add_leader(s, ME, 50, 12);
    add_doc(s, 7, 20, us, 2);
    put_record(s, 12, 51);
    add_record(s, ME, 50, 2, false, 7);
}

/* ---- Joining ---- */

static void a_join_reads_and_takes_a_lease_at_once(void **state)
{
    struct scene *s = *state;

    assert_string_equal(asked(s, MU_FOLD_ON_JOIN), "load job, take lease");
    assert_string_equal(loaded(s, MU_FOLD_JOB), "progress");
    assert_string_equal(leased(s, 11), "write [ job/folder absent] record(join 0) job/folder else record");
}

static void who_finds_a_leader_writes_its_record_only(void **state)
{
    struct scene *s = *state;

    (void)asked(s, MU_FOLD_ON_JOIN);
    add_leader(s, OTHER, 5, 22);
    (void)loaded(s, MU_FOLD_JOB);
    assert_string_equal(leased(s, 11), "write record(join 0)");
    assert_string_equal(wrote(s, true, 6), "");
    assert_false(mu_fold_is_leader(s->fold));
}

static void a_document_that_has_us_is_joined(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_int_equal(mu_fold_phase(s->fold), MU_FOLD_MEMBER);
    assert_int_equal(mu_fold_request_until_ms(s->fold, 5), 5 + LEASE_MS); /* to notice a lost etcd in time */
    assert_true(mu_fold_rank(s->fold) == 1 && mu_fold_world(s->fold)->count == 2);
    assert_true(mu_fold_world(s->fold)->round == 7);
}

static void a_document_without_us_is_not(void **state)
{
    struct scene *s = *state;

    join_beside_a_leader(s);
    add_doc(s, 7, 20, them, 2);
    assert_string_equal(changed(s, MU_FOLD_JOB), "progress");
    assert_int_equal(mu_fold_phase(s->fold), MU_FOLD_JOINING);
    assert_null(mu_fold_world(s->fold));
}

/* A world is entered once. */
static void a_world_that_was_left_is_not_entered_again(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(asked(s, MU_FOLD_ON_JOIN), "progress, write record(join 7)");
    (void)wrote(s, true, 21);
    add_doc(s, 7, 22, us, 2); /* put back by somebody */
    assert_string_equal(changed(s, MU_FOLD_JOB), "");
    add_doc(s, 8, 23, us, 2);
    assert_string_equal(changed(s, MU_FOLD_JOB), "joined");
}

static void a_world_that_has_us_as_gone_is_not_entered(void **state)
{
    static const uint32_t gone[] = { 1 };
    struct scene *s = *state;

    join_beside_a_leader(s);
    add_doc(s, 7, 20, us, 2);
    add_news(s, 7, 20, gone, 1, 0);
    assert_string_equal(changed(s, MU_FOLD_JOB), "progress, write record(join 7)");
}

static void a_closed_job_is_not_joined(void **state)
{
    struct scene *s = *state;

    (void)asked(s, MU_FOLD_ON_JOIN);
    add_closed(s);
    assert_string_equal(loaded(s, MU_FOLD_JOB), "failed ERDZV_CLOSED, drop lease, closed");
    assert_int_equal(mu_fold_phase(s->fold), MU_FOLD_IDLE);
}

static void a_spare_of_a_closed_job_ends_well(void **state)
{
    static const uint64_t full[] = { 2, 3, 4 };
    struct scene *s = *state;

    join_beside_a_leader(s);
    add_doc(s, 7, 20, full, 3);
    (void)changed(s, MU_FOLD_JOB);
    assert_true(mu_fold_progress(s->fold).spare);
    assert_string_equal(passes(s, 3600000), ""); /* a spare waits for as long as it takes */
    add_closed(s);
    assert_string_equal(changed(s, MU_FOLD_JOB), "failed ERDZV_GRACEFUL_EXIT, drop lease, closed");
}

static void too_few_nodes_are_a_timeout(void **state)
{
    struct scene *s = *state;

    join_beside_a_leader(s);
    assert_true(mu_fold_deadline_ms(s->fold) <= 1000 + 600000);
    assert_string_equal(passes(s, 600000), "failed ERDZV_TIMEOUT, drop lease");
}

static void a_wait_that_lasts_looks_around_and_a_timeout_names_who_came(void **state)
{
    struct scene *s = *state;

    join_beside_a_leader(s);
    assert_string_equal(passes(s, MU_WAITERS_FIRST_MS - 1), "");
    assert_string_equal(passes(s, 1), "look around, write [ record mod 6] else record");
    assert_string_equal(wrote(s, true, 6), "");
    add_record(s, OTHER, 4, 1, true, 0);
    assert_string_equal(tell_it(s, MU_FOLD_ON_CROWD, MU_FOLD_NODES), "progress");
    assert_non_null(strstr(passes(s, MU_WAITERS_FIRST_MS), "look around"));
    (void)wrote(s, true, 6);
    add_record(s, OTHER, 4, 1, true, 0);
    assert_string_equal(tell_it(s, MU_FOLD_ON_CROWD, MU_FOLD_NODES), ""); /* nothing is new */
    assert_int_equal(mu_fold_crowd(s->fold)->count, 1);
    add_full_news(s, 20, &(struct mu_fold_news){ .joined = 1, .last_call_ms = -1 });
    assert_string_equal(changed(s, MU_FOLD_JOB), "progress");
    assert_string_equal(passes(s, 600000), "failed ERDZV_TIMEOUT, drop lease");
    assert_string_equal(s->why.text, "timed out after 600 s: 1 of 2 to 3 nodes joined (host)");
}

static void a_timeout_names_who_has_other_limits_or_waits_for_another_job(void **state)
{
    struct scene *s = *state;
    struct mu_fold_record other = { .name = "node7", .nodes_min = 2, .nodes_max = 2, .joining = true };

    join_beside_a_leader(s);
    (void)passes(s, MU_WAITERS_FIRST_MS);
    (void)wrote(s, true, 6);
    add_full_record(s, OTHER, 4, (struct mu_fold_record){ .nodes_min = 8, .nodes_max = 8, .joining = true });
    assert_int_equal(mu_fold_record_write(&other, add(s, "waiting/job8", 9, 9, 9)), 0);
    assert_string_equal(tell_it(s, MU_FOLD_ON_CROWD, MU_FOLD_NODES), "progress");
    assert_string_equal(passes(s, 600000), "failed ERDZV_TIMEOUT, drop lease");
    assert_non_null(strstr(s->why.text, "; host was started with --nnodes 8, this node with --nnodes 2:3; "
                                        "node7 waits at the same endpoint for rendezvous 'job8'"));
}

static void members_of_a_round_that_runs_are_not_among_those_who_wait(void **state)
{
    struct scene *s = *state;

    join_beside_a_leader(s);
    (void)passes(s, MU_WAITERS_FIRST_MS);
    (void)wrote(s, true, 6);
    add_doc(s, 7, 20, them, 2);
    (void)changed(s, MU_FOLD_JOB);
    add_record(s, OTHER, 4, 1, true, 0); /* as it was when it joined */
    add_record(s, THIRD, 5, 2, true, 7); /* has left it since, and waits again */
    assert_string_equal(tell_it(s, MU_FOLD_ON_CROWD, MU_FOLD_NODES), "progress");
    assert_int_equal(mu_fold_crowd(s->fold)->count, 1);
}

static const char *looked(struct scene *s, struct mu_fold_event event)
{
    event.type = MU_FOLD_ON_CROWD;
    event.id = s->look_id;
    return step(s, event);
}

/* A look that its driver dropped had moved the time of the next one, and counted as one that may have left a mark. */
static void one_look_is_under_way_at_a_time(void **state)
{
    struct scene *s = *state;
    uint64_t first;

    join_beside_a_leader(s);
    assert_non_null(strstr(passes(s, MU_WAITERS_FIRST_MS), "look around"));
    (void)wrote(s, true, 6);
    first = s->look_id;
    assert_string_equal(passes(s, 60000), "");
    assert_string_equal(step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_CROWD, .id = first + 1 }), "");
    assert_non_null(strstr(looked(s, (struct mu_fold_event){ .error = &s->why }), "look around")); /* is due */
    assert_int_not_equal(s->look_id, first);
    (void)wrote(s, true, 6);
    assert_string_equal(looked(s, (struct mu_fold_event){ .count = 0 }), "");
    assert_non_null(strstr(passes(s, 60000), "look around"));
}

/* A group that is there at once writes nothing of the kind. */
static void a_leader_that_waits_leaves_a_mark_and_takes_it_away_when_the_round_begins(void **state)
{
    struct scene *s = *state;

    join_as_leader(s);
    (void)loaded(s, MU_FOLD_NODES);
    assert_non_null(strstr(passes(s, MU_WAITERS_FIRST_MS), "look around with a mark"));
    assert_null(strstr(looked(s, (struct mu_fold_event){ .error = &s->why }), "look around"));
    assert_non_null(strstr(passes(s, MU_WAITERS_FIRST_MS), "look around with a mark")); /* that one had failed */
    (void)looked(s, (struct mu_fold_event){ .held = true, .lease = 11 });
    assert_null(strstr(passes(s, 5000), "with a mark"));
    assert_non_null(strstr(s->trace, "look around"));
    add_doc(s, 7, 20, us, 2);
    assert_non_null(strstr(changed(s, MU_FOLD_JOB), "unmark"));
}

static void an_etcd_that_was_never_heard_is_given_up_early(void **state)
{
    struct scene *s = *state;

    (void)asked(s, MU_FOLD_ON_JOIN);
    assert_string_equal(failed(s, s->load_id[MU_FOLD_JOB]), "backend_down");
    assert_string_equal(passes(s, FIRST_MS), "failed ERDZV_CONNECTION, drop lease, load job");
}

static void the_time_for_the_first_answer_ends_with_it(void **state)
{
    struct scene *s = *state;

    assert_int_equal(mu_fold_request_until_ms(s->fold, s->now_ms), UINT64_MAX);
    (void)asked(s, MU_FOLD_ON_LOOK);
    assert_int_equal(mu_fold_request_until_ms(s->fold, s->now_ms), UINT64_MAX);
    (void)asked(s, MU_FOLD_ON_JOIN);
    assert_int_equal(mu_fold_request_until_ms(s->fold, s->now_ms), s->now_ms + FIRST_MS);
    (void)passes(s, 10);
    (void)failed(s, s->load_id[MU_FOLD_JOB]);
    assert_int_equal(mu_fold_request_until_ms(s->fold, s->now_ms), s->now_ms - 10 + FIRST_MS);
    (void)leased(s, 11);
    assert_int_equal(mu_fold_request_until_ms(s->fold, s->now_ms), UINT64_MAX);
}

static void an_etcd_that_has_not_answered_is_the_cause_of_a_timeout(void **state)
{
    struct scene *s = *state;

    (void)asked(s, MU_FOLD_ON_JOIN);
    assert_string_equal(passes(s, 600000), "failed ERDZV_TIMEOUT, drop lease");
    assert_string_equal(s->why.text, "timed out after 600 s: etcd has not answered");
}

static void a_refusal_is_final(void **state)
{
    struct muster_error error = { .code = MUSTER_EINVAL, .text = "authentication failed" };
    struct scene *s = *state;

    (void)asked(s, MU_FOLD_ON_JOIN);
    assert_string_equal(step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_REQUEST_FAILED,
                                                        .id = s->load_id[MU_FOLD_JOB],
                                                        .error = &error,
                                                        .final = true }),
                        "failed EINVAL, drop lease");
}

/* What may come later must not come over what is newer: it dies with its lease. */
static void a_record_in_doubt_is_given_up_with_its_lease(void **state)
{
    struct scene *s = *state;

    (void)asked(s, MU_FOLD_ON_JOIN);
    add_leader(s, OTHER, 5, 22);
    (void)loaded(s, MU_FOLD_JOB);
    (void)leased(s, 11);
    assert_string_equal(failed(s, s->write_id), "drop lease, backend_down");
    assert_string_equal(passes(s, MU_FOLD_RETRY_MS * 2), "load job, take lease");
    assert_string_equal(leased(s, 12), "backend_up, write [ job/folder absent] record(join 0) job/folder else record");
}

/* ---- Folding ---- */

static void the_maximum_completes_a_round_at_once(void **state)
{
    struct scene *s = *state;

    join_as_leader(s);
    add_both(s);
    add_record(s, THIRD, 5, 1, true, 0);
    assert_string_equal(loaded(s, MU_FOLD_NODES), "grant job");
    assert_string_equal(granted(s, 900), "write [ job/folder mod 6, job/doc absent, job/closed absent] job/doc");
    /* By the revisions that created their records. */
    assert_non_null(strstr(s->doc, "[[\"0000000000000033\",\"host\",1,1],[\"0000000000000011\",\"host\",1,1],"
                                   "[\"0000000000000022\",\"host\",1,1]]"));
    assert_non_null(strstr(s->doc, "\"round\":0"));
    assert_string_equal(wrote(s, true, 30), "completed");
}

static void the_minimum_waits_for_the_last_call(void **state)
{
    struct scene *s = *state;

    join_as_leader(s);
    add_both(s);
    (void)loaded(s, MU_FOLD_NODES);
    assert_string_equal(granted(s, 900), "write [ job/folder mod 6, job/doc absent] job/news(gone; waiting 0)");
    (void)news_are_there(s, 0, 30, NULL, 0, 0);
    assert_null(strstr(passes(s, 29000), "job/doc absent,"));
    (void)news_are_there(s, 0, 31, NULL, 0, 0);
    assert_non_null(strstr(passes(s, 1500), "job/closed absent] job/doc"));
}

/* A leader whose last call began now; the news of it are there. */
static void begin_last_call(struct scene *s)
{
    join_as_leader(s);
    add_both(s);
    (void)loaded(s, MU_FOLD_NODES);
    (void)granted(s, 900);
    (void)wrote(s, true, 30);
    add_full_news(s, 30, &(struct mu_fold_news){ .joined = 2, .last_call_ms = 30000 });
    assert_string_equal(changed(s, MU_FOLD_JOB), "progress");
}

/* As when etcd has compacted what the watch would have gone on with: all is read again, and nothing has changed. */
static void read_again(struct scene *s)
{
    assert_string_equal(step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_STALE, .scope = MU_FOLD_JOB }),
                        "unwatch nodes, load job");
    add_leader(s, ME, 6, 11);
    add_full_news(s, 30, &(struct mu_fold_news){ .joined = 2, .last_call_ms = 30000 });
    assert_non_null(strstr(loaded(s, MU_FOLD_JOB), "leader, load nodes"));
    add_both(s);
    assert_string_equal(loaded(s, MU_FOLD_NODES), "");
}

static void what_is_read_again_does_not_prolong_the_last_call(void **state)
{
    struct scene *s = *state;
    uint64_t until_ms;

    begin_last_call(s);
    until_ms = mu_fold_progress(s->fold).last_call_until_ms;
    assert_int_equal(until_ms, s->now_ms + 30000);
    for (int i = 0; i < 2; i++) {
        s->now_ms += 10000;
        read_again(s);
        assert_int_equal(mu_fold_progress(s->fold).last_call_until_ms, until_ms);
    }
    assert_string_equal(passes(s, 9999), "");
    assert_non_null(strstr(passes(s, 1), "job/closed absent] job/doc"));
}

static void a_leader_of_a_new_place_begins_a_last_call_of_its_own(void **state)
{
    struct scene *s = *state;

    begin_last_call(s);
    s->now_ms += 20000;
    add_leader(s, OTHER, 40, 22);
    (void)changed(s, MU_FOLD_JOB);
    (void)wrote(s, true, 41); /* it has looked at its record */
    add_leader(s, ME, 50, 11);
    assert_non_null(strstr(changed(s, MU_FOLD_JOB), "leader, load nodes"));
    add_both(s);
    assert_string_equal(loaded(s, MU_FOLD_NODES), "");
    assert_null(strstr(passes(s, 29999), "job/doc absent,"));
    assert_non_null(strstr(passes(s, 1), "job/closed absent] job/doc"));
}

static void a_record_that_is_gone_is_news_at_once(void **state)
{
    struct scene *s = *state;

    fold_round(s, us);
    add_both(s);
    assert_string_equal(loaded(s, MU_FOLD_NODES), "");
    assert_string_equal(deleted(s, MU_FOLD_NODES, "nodes/0000000000000022/0000000000000007", 40),
                        "write [ job/folder mod 6, job/doc mod 20] job/news(gone 0; waiting 0)");
}

static void a_record_that_says_so_has_left(void **state)
{
    struct scene *s = *state;

    fold_round(s, us);
    add_record(s, ME, 6, 1, true, 0);
    add_record(s, OTHER, 7, 2, true, 7);
    assert_string_equal(loaded(s, MU_FOLD_NODES),
                        "write [ job/folder mod 6, job/doc mod 20] job/news(gone 0; waiting 1)");
}

/* Of round 7, which OTHER and we are in (or were), and who comes: each with these limits. */
struct limits_row {
    const char *name;
    bool back; /* OTHER and we have left the round */
    int64_t limits[2], third[2], fourth[2];
    const char *news; /* NULL: a round is written, of these: */
    const char *members;
};

static void add_newcomer(struct scene *s, uint64_t id, int64_t create, const int64_t limits[2])
{
    if (limits[0] > 0)
        add_full_record(
            s, id, create,
            (struct mu_fold_record){ .nodes_min = limits[0], .nodes_max = limits[1], .seq = 1, .joining = true });
}

/* The members of the document that was written: "22 11". */
static void list_members(const struct scene *s, char *text, size_t room)
{
    struct mu_fold_world world = { .id = 0 };
    size_t used = 0;

    assert_int_equal(mu_fold_world_read(mu_slice_str(s->doc), &world, NULL), 0);
    text[0] = '\0';
    for (size_t m = 0; m < world.count; m++)
        used += (size_t)snprintf(text + used, room - used, "%s%" PRIx64, m == 0 ? "" : " ", world.members[m].id);
    mu_fold_world_done(&world);
}

static void fold_newcomers(struct scene *s, const struct limits_row *row)
{
    static const uint32_t both[] = { 0, 1 };
    const struct mu_fold_record record = {
        .nodes_min = row->limits[0], .nodes_max = row->limits[1], .seq = 1, .joining = true, .world = row->back ? 7 : 0
    };

    begin(s, row->limits[0], row->limits[1]);
    (void)asked(s, MU_FOLD_ON_JOIN);
    add_leader(s, ME, 6, 11);
    add_doc(s, 7, 20, us, 2);
    if (row->back)
        add_news(s, 7, 20, both, 2, 0);
    put_record(s, 11, 21);
    add_full_record(s, ME, 6, record);
    add_full_record(s, OTHER, 7, record);
    add_newcomer(s, THIRD, 8, row->third);
    add_newcomer(s, 0x44, 9, row->fourth);
    (void)loaded(s, MU_FOLD_NODES);
}

static void a_newcomer_whose_limits_do_not_suit_is_left_out(void **state)
{
    static const struct limits_row rows[] = {
        { "suits", false, { 2, 4 }, { 2, 4 }, { 0, 0 }, "(gone; waiting 1)", NULL },
        { "contradicts", false, { 2, 4 }, { 8, 8 }, { 0, 0 }, "(gone; waiting 0; 1 spare, 1 apart)", NULL },
        { "contradicts, beside one that suits",
          false,
          { 2, 4 },
          { 8, 8 },
          { 2, 4 },
          "(gone; waiting 1; 1 spare, 1 apart)",
          NULL },
        { "contradicts itself", false, { 2, 4 }, { 4, 3 }, { 0, 0 }, "(gone; waiting 0; 1 spare, 1 apart)", NULL },
        { "newcomers contradict each other: who came first",
          false,
          { 1, 8 },
          { 1, 3 },
          { 4, 8 },
          "(gone; waiting 1; 1 spare, 1 apart)",
          NULL },
        { "wants more than there are",
          false,
          { 2, 8 },
          { 4, 8 },
          { 0, 0 },
          "(gone; waiting 0; 1 spare, 0 apart)",
          NULL },
        { "wants as many as there are", false, { 2, 8 }, { 4, 8 }, { 2, 8 }, "(gone; waiting 2)", NULL },
        { "wants more than there are, and would keep out one that suits",
          false,
          { 2, 8 },
          { 6, 8 },
          { 2, 4 },
          "(gone; waiting 1; 1 spare, 1 apart)",
          NULL },
        { "allows so few that it has no place",
          false,
          { 2, 4 },
          { 1, 2 },
          { 0, 0 },
          "(gone; waiting 0; 1 spare, 0 apart)",
          NULL },
        { "contradicts those who are back", true, { 2, 2 }, { 8, 8 }, { 0, 0 }, NULL, "22 11" },
        { "wants more than are back", true, { 2, 8 }, { 8, 8 }, { 0, 0 }, NULL, "22 11" },
        { "allows fewer than are back", true, { 2, 8 }, { 1, 1 }, { 2, 8 }, NULL, "22 11 44" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct scene *s = calloc(1, sizeof *s);
        char members[64];

        assert_non_null(s);
        fold_newcomers(s, &rows[i]);
        if (rows[i].news != NULL && strstr(s->trace, rows[i].news) == NULL)
            fail_msg("a newcomer that %s: %s", rows[i].name, s->trace);
        if (rows[i].members != NULL) {
            list_members(s, members, sizeof members);
            if (strcmp(members, rows[i].members) != 0)
                fail_msg("a newcomer that %s: %s", rows[i].name, members);
        }
        (void)tear_down((void **)&s);
    }
}

/* Then there is nobody whose round could be kept from them. */
static void newcomers_alone_are_waited_for(void **state)
{
    static const uint64_t dead[] = { 0x55, 0x66 };
    struct scene *s = *state;
    struct mu_fold_record record = { .nodes_min = 3, .nodes_max = 3, .seq = 1, .joining = true };

    fold_round(s, dead);
    add_full_record(s, ME, 6, record);
    add_full_record(s, OTHER, 7, record);
    assert_non_null(strstr(loaded(s, MU_FOLD_NODES), "job/news(gone 0 1; waiting 0)"));
    (void)news_are_there(s, 7, 22, (const uint32_t[]){ 0, 1 }, 2, 0);
    add_full_record(s, THIRD, 8, record);
    assert_non_null(strstr(changed(s, MU_FOLD_NODES), "job/closed absent] job/doc"));
}

/* After etcd has lost its data: whoever is in, its limits are not known before its record is there again. */
static void newcomers_wait_for_the_limits_of_whoever_is_in(void **state)
{
    struct scene *s = *state;

    be_leader_again(s);
    add_record(s, THIRD, 51, 1, true, 0);
    assert_non_null(strstr(loaded(s, MU_FOLD_NODES), "(gone; waiting 0; 1 spare, 0 apart)"));
    (void)wrote(s, true, 52);
    add_full_news(s, 52, &(struct mu_fold_news){ .world = 7, .spares = 1, .last_call_ms = -1 });
    (void)changed(s, MU_FOLD_JOB);
    add_record(s, OTHER, 52, 2, false, 7);
    assert_non_null(strstr(changed(s, MU_FOLD_NODES), "(gone; waiting 1)"));
}

static void limits_that_do_not_go_together_are_named_as_the_cause(void **state)
{
    struct scene *s = *state;

    join_beside_a_leader(s);
    add_doc(s, 7, 20, them, 2);
    add_full_news(s, 20, &(struct mu_fold_news){ .world = 7, .spares = 1, .apart = 1, .last_call_ms = -1 });
    (void)changed(s, MU_FOLD_JOB);
    assert_string_equal(passes(s, 600000), "failed ERDZV_TIMEOUT, drop lease");
    assert_non_null(
        strstr(s->why.text,
               "1 node was started with an --nnodes that does not go together with that of the others; this node has "
               "--nnodes 2:3"));
}

/* News from elsewhere may name more ranks than there are. */
static void ranks_that_nobody_has_are_not_counted_as_gone(void **state)
{
    static const uint64_t full[] = { 2, 3, 4 };
    static const uint32_t gone[] = { 5, 6, 7, 8 };
    struct scene *s = *state;

    join_beside_a_leader(s);
    add_doc(s, 7, 20, full, 3);
    add_news(s, 7, 20, gone, 4, 0);
    (void)changed(s, MU_FOLD_JOB);
    assert_true(mu_fold_progress(s->fold).spare);
    add_doc(s, 8, 21, them, 2);
    add_news(s, 8, 21, gone, 4, 0);
    (void)changed(s, MU_FOLD_JOB);
    assert_false(mu_fold_progress(s->fold).spare);
}

/* The older record of a node that has taken a new lease may be there for a while. */
static void the_newest_record_of_a_node_counts(void **state)
{
    struct scene *s = *state;

    fold_round(s, us);
    add_record(s, ME, 6, 1, true, 0);
    add_record(s, OTHER, 7, 2, false, 7);
    add_record(s, OTHER, 9, 1, true, 7);
    assert_string_equal(loaded(s, MU_FOLD_NODES), "");
}

static void nobody_starts_anew_while_somebody_is_in(void **state)
{
    struct scene *s = *state;

    be_member(s);
    (void)asked(s, MU_FOLD_ON_JOIN);
    (void)wrote(s, true, 21);
    add_leader(s, ME, 22, 11);
    assert_string_equal(changed(s, MU_FOLD_JOB), "leader, load nodes, keep job");
    add_record(s, ME, 6, 2, true, 7);
    add_record(s, OTHER, 7, 1, true, 0);
    add_record(s, THIRD, 8, 1, true, 0);
    assert_non_null(strstr(loaded(s, MU_FOLD_NODES), "job/news(gone 1; waiting 2)"));
    (void)news_are_there(s, 7, 23, (const uint32_t[]){ 1 }, 1, 2);
    add_record(s, OTHER, 7, 2, true, 7); /* now everybody is out, and back: no last call */
    assert_string_equal(changed(s, MU_FOLD_NODES),
                        "write [ job/folder mod 22, job/doc mod 20, job/closed absent] job/doc");
    /* Members of the last round come first, in their order. */
    assert_non_null(strstr(s->doc, "[[\"0000000000000022\",\"host\",1,1],[\"0000000000000011\",\"host\",1,1],"
                                   "[\"0000000000000033\",\"host\",1,1]]"));
    assert_non_null(strstr(s->doc, "\"round\":8"));
}

static void a_leader_that_is_not_any_more_stops_at_once(void **state)
{
    struct scene *s = *state;

    fold_round(s, us);
    add_leader(s, OTHER, 50, 22);
    assert_string_equal(changed(s, MU_FOLD_JOB), "unwatch nodes");
    add_record(s, ME, 6, 1, true, 0);
    assert_string_equal(changed(s, MU_FOLD_NODES), "");
}

static void an_empty_place_is_taken_by_turns(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(deleted(s, MU_FOLD_JOB, "job/folder", 30), "");
    assert_string_equal(passes(s, MU_FOLD_CROWN_MS / 2), "");
    assert_string_equal(passes(s, MU_FOLD_CROWN_MS * 2), "write [ job/folder absent] job/folder");
}

static void the_leader_keeps_the_lease_of_the_job(void **state)
{
    struct scene *s = *state;

    fold_round(s, us);
    assert_true(s->keep_id != 0);
    assert_string_equal(kept(s, true), "");
    assert_string_equal(passes(s, JOB_MS / 3), "keep job");
    assert_string_equal(kept(s, false), "unwatch nodes, load job");
}

/* ---- Members ---- */

static void losses_are_told_once_and_again_when_there_are_more(void **state)
{
    static const uint64_t three[] = { OTHER, ME, THIRD };
    static const uint32_t gone[] = { 0, 2 };
    struct scene *s = *state;

    join_beside_a_leader(s);
    add_doc(s, 7, 20, three, 3);
    (void)changed(s, MU_FOLD_JOB);
    add_news(s, 7, 21, gone, 1, 0);
    assert_string_equal(changed(s, MU_FOLD_JOB), "lost");
    assert_true(mu_fold_is_lost(s->fold, 0) && !mu_fold_is_lost(s->fold, 2));
    add_news(s, 7, 22, gone, 1, 1);
    assert_string_equal(changed(s, MU_FOLD_JOB), "waiting");
    add_news(s, 7, 23, gone, 2, 1);
    assert_string_equal(changed(s, MU_FOLD_JOB), "lost");
    add_news(s, 6, 24, gone, 2, 1); /* of another world */
    assert_string_equal(changed(s, MU_FOLD_JOB), "");
}

static void a_round_that_is_over_when_we_see_it_is_told_as_that(void **state)
{
    static const uint32_t gone[] = { 0 };
    struct scene *s = *state;

    join_beside_a_leader(s);
    add_doc(s, 7, 20, us, 2);
    add_news(s, 7, 21, gone, 1, 0);
    assert_string_equal(changed(s, MU_FOLD_JOB), "joined, lost");
}

static void another_world_means_that_we_were_removed(void **state)
{
    struct scene *s = *state;

    be_member(s);
    add_doc(s, 8, 30, them, 2);
    assert_string_equal(changed(s, MU_FOLD_JOB), "removed, drop lease");
    assert_int_equal(mu_fold_phase(s->fold), MU_FOLD_IDLE);
}

static void news_of_our_own_end_mean_it_too(void **state)
{
    static const uint32_t gone[] = { 1 };
    struct scene *s = *state;

    be_member(s);
    add_news(s, 7, 21, gone, 1, 0);
    assert_string_equal(changed(s, MU_FOLD_JOB), "removed, drop lease");
}

static void waiting_nodes_are_told_after_the_hold_down_and_not_while_etcd_is_away(void **state)
{
    struct scene *s = *state;

    s->hold_ms = 1000;
    be_member(s);
    add_news(s, 7, 21, NULL, 0, 1);
    assert_string_equal(changed(s, MU_FOLD_JOB), "");
    assert_true(mu_fold_deadline_ms(s->fold) == s->now_ms + 1000);
    assert_string_equal(trouble(s, true), "backend_down");
    assert_string_equal(trouble(s, true), "");
    assert_string_equal(passes(s, 2000), "");
    assert_string_equal(trouble(s, false), "backend_up, waiting");
}

static void leaving_drops_the_lease_and_is_told_when_that_is_over(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(asked(s, MU_FOLD_ON_LEAVE), "drop lease");
    assert_string_equal(step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_DROPPED, .id = s->drop_id }), "left");
    assert_string_equal(asked(s, MU_FOLD_ON_LEAVE), "left");
}

static void closing_is_a_key_of_its_own(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(asked(s, MU_FOLD_ON_CLOSE), "write [ job/closed absent] job/closed");
    (void)wrote(s, true, 40);
    add_closed(s);
    assert_string_equal(changed(s, MU_FOLD_JOB), "closed");
    assert_string_equal(asked(s, MU_FOLD_ON_CLOSE), "closed");
}

static void closing_takes_a_lease_if_there_is_none_and_gives_up_in_time(void **state)
{
    struct scene *s = *state;

    assert_string_equal(asked(s, MU_FOLD_ON_CLOSE), "load job");
    assert_string_equal(loaded(s, MU_FOLD_JOB), "grant job");
    assert_string_equal(failed(s, s->grant_id), "backend_down");
    assert_string_equal(passes(s, 30000), "failed ERDZV_TIMEOUT");
}

static void a_look_needs_no_membership(void **state)
{
    struct scene *s = *state;

    assert_string_equal(asked(s, MU_FOLD_ON_LOOK), "load job");
    assert_string_equal(loaded(s, MU_FOLD_JOB), "looked at nothing");
    assert_string_equal(asked(s, MU_FOLD_ON_LOOK), "looked at nothing");
    add_leader(s, OTHER, 6, 5); /* nodes gather, and no round was formed yet */
    (void)changed(s, MU_FOLD_JOB);
    assert_string_equal(asked(s, MU_FOLD_ON_LOOK), "looked");
}

static void a_look_while_etcd_is_away_fails_at_once(void **state)
{
    struct scene *s = *state;

    be_member(s);
    (void)trouble(s, true);
    assert_string_equal(asked(s, MU_FOLD_ON_LOOK), "looked ECONNECT");
    assert_string_equal(asked(s, MU_FOLD_ON_LOOK), "looked ECONNECT");
    assert_string_equal(trouble(s, false), "backend_up");
    assert_string_equal(asked(s, MU_FOLD_ON_LOOK), "looked");
}

/* ---- When etcd was away ---- */

/* Nothing would have told it that etcd has lost its data since. */
static void without_a_lease_what_was_read_is_read_again(void **state)
{
    struct scene *s = *state;

    be_member(s);
    (void)trouble(s, true);
    assert_string_equal(trouble(s, false), "backend_up");
    assert_string_equal(asked(s, MU_FOLD_ON_LEAVE), "drop lease, load job");
    (void)loaded(s, MU_FOLD_JOB);
    (void)trouble(s, true);
    assert_string_equal(trouble(s, false), "backend_up, load job");
}

static void a_lost_lease_is_replaced_and_the_record_says_stay(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(lose_lease(s), "load job, take lease");
    add_leader(s, OTHER, 5, 22);
    add_doc(s, 7, 20, us, 2);
    assert_string_equal(loaded(s, MU_FOLD_JOB), "");
    assert_string_equal(leased(s, 12), "write record(stay 7)");
    assert_int_equal(mu_fold_phase(s->fold), MU_FOLD_MEMBER);
}

static void after_that_nobody_is_gone_for_a_lease(void **state)
{
    struct scene *s = *state;

    be_leader_again(s);
    assert_string_equal(loaded(s, MU_FOLD_NODES), ""); /* OTHER's is missing */
    assert_string_equal(passes(s, LEASE_MS - 1), "");
    assert_string_equal(passes(s, 1), "write [ job/folder mod 50, job/doc mod 20] job/news(gone 0; waiting 0)");
}

static void a_document_that_is_missing_is_put_back(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(deleted(s, MU_FOLD_JOB, "job/doc", 30), "write record(stay 7)");
    (void)wrote(s, true, 31);
    assert_string_equal(passes(s, 2 * MU_FOLD_RESTORE_MS), "grant job");
    assert_string_equal(granted(s, 901), "write [ job/doc absent] job/doc job/news(gone; waiting 0; grace)");
    assert_true(mu_slice_equal(mu_buf_slice(&mu_fold_world(s->fold)->bytes), mu_slice_str(s->doc)));
}

static void no_first_round_is_made_while_somebody_holds_one(void **state)
{
    struct scene *s = *state;

    join_as_leader(s);
    add_both(s);
    add_record(s, THIRD, 5, 1, true, 0);
    add_record(s, 4, 8, 5, false, 77);
    (void)loaded(s, MU_FOLD_NODES);
    assert_null(strstr(granted(s, 900), "job/doc,"));
    assert_null(strstr(s->trace, "] job/doc"));
}

static void missed_changes_are_read_again(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(step(s, (struct mu_fold_event){ .type = MU_FOLD_ON_STALE, .scope = MU_FOLD_JOB }), "load job");
    add_doc(s, 8, 30, them, 2);
    assert_string_equal(changed(s, MU_FOLD_JOB), ""); /* of a watch that is over */
    add_leader(s, OTHER, 5, 22);
    add_doc(s, 7, 20, us, 2);
    assert_string_equal(loaded(s, MU_FOLD_JOB), "");
}

static void answers_to_nothing_are_dropped(void **state)
{
    struct scene *s = *state;

    be_member(s);
    for (int type = MU_FOLD_ON_LOADED; type <= MU_FOLD_ON_REQUEST_FAILED; type++) {
        if (type == MU_FOLD_ON_CHANGED || type == MU_FOLD_ON_STALE || type == MU_FOLD_ON_TROUBLE)
            continue;
        assert_string_equal(
            step(s, (struct mu_fold_event){ .type = (enum mu_fold_event_type)type, .id = 4711, .lease = 3 }), "");
    }
    assert_int_equal(mu_fold_phase(s->fold), MU_FOLD_MEMBER);
}

/* A step of which only the ids are kept. */
static void blind_step(struct mu_fold *fold, struct scene *s, struct mu_fold_event event)
{
    struct mu_fold_effects effects;

    s->now_ms += 2000;
    event.now_ms = s->now_ms;
    mu_fold_step(fold, &event, &effects);
    for (unsigned i = 0; i < effects.count; i++) {
        const struct mu_fold_effect *effect = &effects.items[i];

        if (effect->type == MU_FOLD_DO_LOAD)
            s->load_id[effect->scope] = effect->id;
        else if (effect->type == MU_FOLD_DO_TAKE_LEASE)
            s->take = effect->id;
        else if (effect->type == MU_FOLD_DO_WRITE)
            s->write_id = effect->id;
    }
}

/* A leader's life, again and again the same answers, until all of it has been taken in. */
static bool live(struct mu_fold *fold, struct scene *s, size_t job_count)
{
    bool leader = false;

    blind_step(fold, s, (struct mu_fold_event){ .type = MU_FOLD_ON_JOIN });
    for (int turn = 0; turn < 6; turn++) {
        blind_step(fold, s, (struct mu_fold_event){ .type = MU_FOLD_ON_LEASED, .id = s->take, .lease = 11 });
        blind_step(fold, s,
                   (struct mu_fold_event){ .type = MU_FOLD_ON_LOADED,
                                           .id = s->load_id[MU_FOLD_JOB],
                                           .scope = MU_FOLD_JOB,
                                           .kvs = s->kvs,
                                           .count = job_count });
        blind_step(fold, s, (struct mu_fold_event){ .type = MU_FOLD_ON_WROTE, .id = s->write_id, .held = true });
        blind_step(fold, s,
                   (struct mu_fold_event){ .type = MU_FOLD_ON_LOADED,
                                           .id = s->load_id[MU_FOLD_NODES],
                                           .scope = MU_FOLD_NODES,
                                           .kvs = s->kvs + job_count,
                                           .count = s->count - job_count });
        blind_step(fold, s, (struct mu_fold_event){ .type = MU_FOLD_ON_TIME });
        leader |= mu_fold_is_leader(fold);
    }
    return leader && mu_fold_phase(fold) == MU_FOLD_MEMBER;
}

static void memory_that_is_missing_once_is_asked_for_again(void **state)
{
    struct scene *s = *state;
    struct mu_fold_config config = { .settings = MU_RDZV_SETTINGS_DEFAULT,
                                     .name = "host",
                                     .id = ME,
                                     .lease_ms = LEASE_MS,
                                     .job_lease_ms = JOB_MS,
                                     .first_ms = FIRST_MS };

    config.settings.nodes_max = MAX;
    add_doc(s, 7, 20, us, 2);
    add_leader(s, ME, 6, 11);
    add_news(s, 7, 20, NULL, 0, 0);
    add_both(s);
    for (size_t i = 0; i < s->count; i++)
        s->kvs[i].value = mu_buf_slice(&s->values[i]);
    FOR_EACH_FAILURE (nth) {
        struct mu_fold *fold = NULL;
        int rc = mu_fold_new(&config, &fold, NULL);

        if (rc == 0)
            assert_true(live(fold, s, 3));
        else
            assert_int_equal(rc, MUSTER_ENOMEM);
        mu_fold_free(fold);
    }
}

/* Whether there is no memory for reading this record if the nth allocation from now on fails. */
static bool is_unreadable_without(unsigned long nth, struct mu_slice value)
{
    struct mu_fold_record record;
    int rc;

    fail_alloc_at(nth);
    rc = mu_fold_record_read(value, &record, NULL);
    fail_alloc_at(0);
    return rc == MUSTER_ENOMEM;
}

static void missing_memory_is_nobody_s_death(void **state)
{
    struct scene *s = *state;
    json_malloc_t allocate;
    json_free_t release;
    int failures = 0;

    json_get_alloc_funcs(&allocate, &release);
    json_set_alloc_funcs(malloc, free); /* those that can fail here */
    fold_round(s, us);
    add_both(s);
    assert_string_equal(loaded(s, MU_FOLD_NODES), "");
    for (unsigned long nth = 1; nth <= 8; nth++) {
        add_record(s, OTHER, 7, 1, true, 0);
        if (!is_unreadable_without(nth, mu_buf_slice(&s->values[0]))) {
            forget(s);
            continue;
        }
        failures++;
        fail_alloc_at(nth);
        (void)changed(s, MU_FOLD_NODES);
        fail_alloc_at(0);
        assert_string_equal(s->trace, "");
        assert_string_equal(passes(s, 2 * MU_FOLD_RETRY_MS), "load nodes");
        add_record(s, ME, 6, 1, true, 0);
        add_record(s, OTHER, 7, 1, true, 0);
        assert_string_equal(loaded(s, MU_FOLD_NODES), "");
    }
    assert_true(failures > 0);
    /* Likewise the leader's place: it is read again, and we are still the leader. */
    add_leader(s, ME, 6, 11);
    fail_alloc_at(1);
    (void)changed(s, MU_FOLD_JOB);
    fail_alloc_at(0);
    assert_string_equal(s->trace, "unwatch nodes");
    assert_string_equal(passes(s, 2 * MU_FOLD_RETRY_MS), "load job");
    add_leader(s, ME, 6, 11);
    add_doc(s, 7, 20, us, 2);
    assert_non_null(strstr(loaded(s, MU_FOLD_JOB), "leader, load nodes"));
    json_set_alloc_funcs(allocate, release);
}

static void a_name_that_is_too_long_is_refused(void **state)
{
    char name[MU_FOLD_NAME_MAX + 2];
    struct mu_fold_config config = { .name = name, .id = 1, .lease_ms = 1, .job_lease_ms = 1, .first_ms = 1 };
    struct mu_fold *fold = NULL;

    (void)state;
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    assert_int_equal(mu_fold_new(&config, &fold, NULL), MUSTER_EINVAL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

/* ---- What none of us wrote ---- */

static const char *somebody_writes(struct scene *s, const char *key, int64_t mod, const char *value)
{
    assert_int_equal(mu_buf_assign(add(s, key, 1, mod, 0), mu_slice_str(value)), 0);
    return changed(s, strncmp(key, "job/", 4) == 0 ? MU_FOLD_JOB : MU_FOLD_NODES);
}

static void what_is_no_document_is_waited_out(void **state)
{
    static const char *const bad[] = { "garbage", "", "{}", "{\"v\": 1}", "{\"v\": 0}", "[2]" };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct scene *s = *state;

        join_beside_a_leader(s);
        assert_string_equal(somebody_writes(s, "job/doc", 20, bad[i]), "foreign");
        assert_string_equal(passes(s, LEASE_MS), "look around, write [ record mod 6] else record");
        assert_int_equal(mu_fold_phase(s->fold), MU_FOLD_JOINING);
        add_doc(s, 7, 21, us, 2);
        assert_string_equal(changed(s, MU_FOLD_JOB), "joined");
        (void)tear_down(state);
        (void)set_up(state);
    }
}

static void a_leader_makes_a_world_in_place_of_what_is_no_document(void **state)
{
    struct scene *s = *state;

    join_as_leader(s);
    assert_string_equal(somebody_writes(s, "job/doc", 20, "garbage"), "foreign");
    add_both(s);
    add_record(s, THIRD, 8, 1, true, 0);
    assert_string_equal(loaded(s, MU_FOLD_NODES), "grant job");
    (void)granted(s, 900);
    (void)wrote(s, true, 30); /* news */
    add_news(s, 0, 30, NULL, 0, 0);
    (void)changed(s, MU_FOLD_JOB);
    assert_non_null(
        strstr(passes(s, LEASE_MS), "write [ job/folder mod 6, job/doc mod 20, job/closed absent] job/doc"));
}

static void a_document_of_a_newer_version_is_refused_by_name(void **state)
{
    struct scene *s = *state;

    join_beside_a_leader(s);
    assert_string_equal(somebody_writes(s, "job/doc", 20, "{\"v\": 2}"), "failed ERDZV_STATE, drop lease");
}

static void a_member_puts_its_document_back_over_what_is_none(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(somebody_writes(s, "job/doc", 30, "garbage"), "foreign, write record(stay 7)");
    assert_string_equal(wrote(s, true, 31), "");
    assert_string_equal(passes(s, MU_FOLD_RESTORE_MS * 2), "grant job");
    assert_string_equal(granted(s, 900), "write [ job/doc mod 30] job/doc job/news(gone; waiting 0; grace)");
    (void)wrote(s, true, 32);
    add_doc(s, 7, 32, us, 2);
    assert_string_equal(changed(s, MU_FOLD_JOB), "");
    assert_int_equal(mu_fold_phase(s->fold), MU_FOLD_MEMBER);
}

static void news_that_are_none_are_skipped_and_told_once(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(somebody_writes(s, "job/news", 30, "garbage"), "foreign");
    assert_string_equal(somebody_writes(s, "job/news", 30, "garbage"), "");
    assert_int_equal(mu_fold_phase(s->fold), MU_FOLD_MEMBER);
}

static void a_leaders_place_that_holds_no_mark_is_empty(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(somebody_writes(s, "job/folder", 30, "garbage"), "foreign");
    assert_string_equal(passes(s, MU_FOLD_CROWN_MS * 2), "write [ job/folder mod 30] job/folder");
}

static void a_leader_whose_mark_is_overwritten_leads_no_more(void **state)
{
    struct scene *s = *state;

    fold_round(s, us);
    (void)kept(s, true);
    assert_string_equal(somebody_writes(s, "job/folder", 30, "garbage"), "foreign, unwatch nodes");
    assert_false(mu_fold_is_leader(s->fold));
}

static void the_place_of_a_newer_leader_is_not_empty(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_int_equal(mu_buf_assign(add(s, "job/folder", 1, 30, 8), mu_slice_str("{\"v\": 2}")), 0);
    assert_string_equal(changed(s, MU_FOLD_JOB), "");
    assert_string_equal(passes(s, MU_FOLD_CROWN_MAX_MS), "");
    assert_string_equal(somebody_writes(s, "job/folder", 31, "{\"v\": 2}"), "foreign"); /* under no lease */
    assert_string_equal(passes(s, MU_FOLD_CROWN_MS * 2), "write [ job/folder mod 31] job/folder");
}

static void a_mark_of_the_end_that_is_none_ends_nothing(void **state)
{
    struct scene *s = *state;

    join_as_leader(s);
    assert_string_equal(somebody_writes(s, "job/closed", 20, "garbage"), "foreign");
    add_both(s);
    add_record(s, THIRD, 8, 1, true, 0);
    (void)loaded(s, MU_FOLD_NODES);
    assert_string_equal(granted(s, 900), "write [ job/folder mod 6, job/doc absent, job/closed mod 20] job/doc");
}

static void a_mark_of_the_end_of_a_newer_version_counts(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(somebody_writes(s, "job/closed", 20, "{\"v\": 2}"), "closed");
}

static void closing_replaces_a_mark_that_is_none(void **state)
{
    struct scene *s = *state;

    be_member(s);
    assert_string_equal(somebody_writes(s, "job/closed", 20, "garbage"), "foreign");
    assert_string_equal(asked(s, MU_FOLD_ON_CLOSE), "write [ job/closed mod 20] job/closed");
}

static void fold_two_records(struct scene *s)
{
    fold_round(s, us);
    (void)kept(s, true);
    add_record(s, ME, 6, 2, false, 7);
    add_record(s, OTHER, 7, 1, false, 7);
    (void)loaded(s, MU_FOLD_NODES);
    assert_string_equal(somebody_writes(s, "nodes/0000000000000022/0000000000000007", 40, "garbage"),
                        "foreign, write [ record mod 40] record(stay 7)");
}

static void a_record_that_is_overwritten_is_put_back_by_the_leader(void **state)
{
    struct scene *s = *state;

    fold_two_records(s);
    assert_string_equal(wrote(s, true, 41), "");
}

static void a_node_that_waits_puts_its_own_record_back(void **state)
{
    struct scene *s = *state;

    join_beside_a_leader(s);
    assert_string_equal(passes(s, MU_WAITERS_FIRST_MS), "look around, write [ record mod 6] else record");
    assert_string_equal(wrote(s, false, 30), ""); /* it was overwritten */
    assert_string_equal(looked(s, (struct mu_fold_event){ .count = 0 }), "");
    assert_string_equal(passes(s, 60000), "look around, write [ record mod 30] else record");
    assert_string_equal(failed(s, s->write_id), "drop lease, backend_down"); /* it is in doubt */
}

static void a_record_whose_lease_is_over_is_not_put_back(void **state)
{
    struct scene *s = *state;

    fold_two_records(s);
    assert_string_equal(lease_gone(s, s->write_id), "unwatch nodes");
    add_leader(s, ME, 6, 11);
    add_doc(s, 7, 20, us, 2);
    (void)passes(s, MU_FOLD_RETRY_MAX_MS);
    (void)loaded(s, MU_FOLD_JOB);
    add_record(s, ME, 6, 2, false, 7);
    assert_string_equal(loaded(s, MU_FOLD_NODES),
                        "write [ job/folder mod 6, job/doc mod 20] job/news(gone 0; waiting 0)");
}

/* Nobody would ever see its end. */
static void a_record_that_is_not_under_its_lease_is_none(void **state)
{
    struct scene *s = *state;

    join_as_leader(s);
    add_both(s);
    add_record(s, THIRD, 8, 1, true, 0);
    s->kvs[2].lease = 0;
    assert_string_equal(loaded(s, MU_FOLD_NODES), "grant job");
    assert_string_equal(granted(s, 900), "write [ job/folder mod 6, job/doc absent] job/news(gone; waiting 0)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_join_reads_and_takes_a_lease_at_once),
        TEST(who_finds_a_leader_writes_its_record_only),
        TEST(a_document_that_has_us_is_joined),
        TEST(a_document_without_us_is_not),
        TEST(a_world_that_was_left_is_not_entered_again),
        TEST(a_world_that_has_us_as_gone_is_not_entered),
        TEST(a_closed_job_is_not_joined),
        TEST(a_spare_of_a_closed_job_ends_well),
        TEST(too_few_nodes_are_a_timeout),
        TEST(a_wait_that_lasts_looks_around_and_a_timeout_names_who_came),
        TEST(a_timeout_names_who_has_other_limits_or_waits_for_another_job),
        TEST(members_of_a_round_that_runs_are_not_among_those_who_wait),
        TEST(one_look_is_under_way_at_a_time),
        TEST(a_leader_that_waits_leaves_a_mark_and_takes_it_away_when_the_round_begins),
        TEST(an_etcd_that_was_never_heard_is_given_up_early),
        TEST(the_time_for_the_first_answer_ends_with_it),
        TEST(an_etcd_that_has_not_answered_is_the_cause_of_a_timeout),
        TEST(a_refusal_is_final),
        TEST(a_record_in_doubt_is_given_up_with_its_lease),
        TEST(the_maximum_completes_a_round_at_once),
        TEST(the_minimum_waits_for_the_last_call),
        TEST(what_is_read_again_does_not_prolong_the_last_call),
        TEST(a_leader_of_a_new_place_begins_a_last_call_of_its_own),
        TEST(a_record_that_is_gone_is_news_at_once),
        TEST(a_record_that_says_so_has_left),
        TEST(a_newcomer_whose_limits_do_not_suit_is_left_out),
        TEST(newcomers_alone_are_waited_for),
        TEST(newcomers_wait_for_the_limits_of_whoever_is_in),
        TEST(limits_that_do_not_go_together_are_named_as_the_cause),
        TEST(ranks_that_nobody_has_are_not_counted_as_gone),
        TEST(the_newest_record_of_a_node_counts),
        TEST(nobody_starts_anew_while_somebody_is_in),
        TEST(a_leader_that_is_not_any_more_stops_at_once),
        TEST(an_empty_place_is_taken_by_turns),
        TEST(the_leader_keeps_the_lease_of_the_job),
        TEST(losses_are_told_once_and_again_when_there_are_more),
        TEST(a_round_that_is_over_when_we_see_it_is_told_as_that),
        TEST(another_world_means_that_we_were_removed),
        TEST(news_of_our_own_end_mean_it_too),
        TEST(waiting_nodes_are_told_after_the_hold_down_and_not_while_etcd_is_away),
        TEST(leaving_drops_the_lease_and_is_told_when_that_is_over),
        TEST(closing_is_a_key_of_its_own),
        TEST(closing_takes_a_lease_if_there_is_none_and_gives_up_in_time),
        TEST(a_look_needs_no_membership),
        TEST(a_look_while_etcd_is_away_fails_at_once),
        TEST(without_a_lease_what_was_read_is_read_again),
        TEST(a_lost_lease_is_replaced_and_the_record_says_stay),
        TEST(after_that_nobody_is_gone_for_a_lease),
        TEST(a_document_that_is_missing_is_put_back),
        TEST(no_first_round_is_made_while_somebody_holds_one),
        TEST(missed_changes_are_read_again),
        TEST(answers_to_nothing_are_dropped),
        TEST(memory_that_is_missing_once_is_asked_for_again),
        TEST(missing_memory_is_nobody_s_death),
        TEST(a_name_that_is_too_long_is_refused),
        TEST(what_is_no_document_is_waited_out),
        TEST(a_leader_makes_a_world_in_place_of_what_is_no_document),
        TEST(a_document_of_a_newer_version_is_refused_by_name),
        TEST(a_member_puts_its_document_back_over_what_is_none),
        TEST(news_that_are_none_are_skipped_and_told_once),
        TEST(a_leaders_place_that_holds_no_mark_is_empty),
        TEST(a_leader_whose_mark_is_overwritten_leads_no_more),
        TEST(the_place_of_a_newer_leader_is_not_empty),
        TEST(a_mark_of_the_end_that_is_none_ends_nothing),
        TEST(a_mark_of_the_end_of_a_newer_version_counts),
        TEST(closing_replaces_a_mark_that_is_none),
        TEST(a_record_that_is_overwritten_is_put_back_by_the_leader),
        TEST(a_node_that_waits_puts_its_own_record_back),
        TEST(a_record_whose_lease_is_over_is_not_put_back),
        TEST(a_record_that_is_not_under_its_lease_is_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
