/* The etcd-v3 rendezvous on a real loop, with servers that say what the test wants: rounds that end before the owner
 * has heard of them, and an etcd that does not answer. With a real etcd it is tested in tests/interop. */
#include "base/base64.h"
#include "etcd_scene.h"
#include "handler/handler.h"
#include "kv/kv.h"
#include "rdzv/fold_doc.h"

#define OTHER UINT64_C(0x22)
#define THIRD UINT64_C(0x33)

enum { MEMBERS = 3, WORLDS = 16 };

static struct scene {
    struct muster_handler *handler;
    uint64_t me; /* as our record says */
    char events[TEXT_MAX];
    uint64_t worlds[WORLDS][MEMBERS]; /* who is in the world of that id, by rank */
    unsigned names_read;              /* so often somebody asked who that is */
    /* Told. */
    unsigned joined, waiting, lost, removed, failed, left;
    int64_t round;
    struct muster_error why;
} scene;

static void on_event(void *ctx, const struct muster_rdzv_event *event)
{
    struct scene *s = ctx;

    s->joined += event->type == MUSTER_RDZV_JOINED;
    s->waiting += event->type == MUSTER_RDZV_WAITING;
    s->lost += event->type == MUSTER_RDZV_PEERS_LOST;
    s->removed += event->type == MUSTER_RDZV_REMOVED;
    s->failed += event->type == MUSTER_RDZV_FAILED;
    s->left += event->type == MUSTER_RDZV_LEFT;
    if (event->type == MUSTER_RDZV_JOINED)
        s->round = event->round;
    if (event->type == MUSTER_RDZV_FAILED)
        s->why = *event->error;
}

static const char *as_etcd_with_seats(struct server *server, struct peer *peer);

static int start_scene(void **state)
{
    scene = (struct scene){ .round = -1 };
    (void)start_etcd(state);
    for (int i = 0; i < SERVERS; i++)
        servers[i].choose = as_etcd_with_seats;
    script[MU_ETCD3_GRANT].lines[0] = "{" HEADER("7") ",\"ID\":\"1\",\"TTL\":\"1000\"}";
    return 0;
}

static int end_scene(void **state)
{
    bool freed = false;

    if (scene.handler != NULL) {
        scene.handler->ops->free(scene.handler, set_and_stop, &freed);
        run_until(&freed);
    }
    return stop_servers(state);
}

static void start_handler(int64_t nodes_min, int64_t nodes_max, const char *options)
{
    struct muster_rdzv_params *params = NULL;
    char endpoint[32];

    (void)snprintf(endpoint, sizeof endpoint, "127.0.0.1:%u", ports[0]);
    assert_int_equal(
        muster_rdzv_params_new("etcd-v3", endpoint, "job", nodes_min, nodes_max, "127.0.0.1", &params, NULL), 0);
    assert_int_equal(muster_rdzv_params_set_options(params, options, NULL), 0);
    assert_int_equal(mu_etcd_v3_start(&loop, params, on_event, &scene, &scene.handler, NULL), 0);
    muster_rdzv_params_free(params);
}

/* ---- What is in etcd ---- */

static const char *in_base64(struct mu_slice bytes)
{
    struct mu_buf coded = { 0 };
    char *text = next_text();

    assert_int_equal(mu_base64_encode(bytes, &coded, TEXT_MAX - 1), 0);
    (void)snprintf(text, TEXT_MAX, "%.*s", (int)coded.len, coded.data);
    mu_buf_done(&coded);
    return text;
}

static const char *key_json(const char *name, struct mu_buf *value, int revision)
{
    char *text = next_text(), key[64];

    (void)snprintf(key, sizeof key, "/muster/job/%s", name);
    (void)snprintf(text, TEXT_MAX,
                   "{\"key\":\"%s\",\"create_revision\":\"5\",\"mod_revision\":\"%d\",\"version\":\"1\","
                   "\"lease\":\"22\",\"value\":\"%s\"}",
                   in_base64(mu_slice_str(key)), revision, in_base64(mu_buf_slice(value)));
    mu_buf_done(value);
    return text;
}

/* To be said with the next say_events(). */
static void add_event(const char *name, struct mu_buf *value, int revision)
{
    size_t used = strlen(scene.events);
    int len = snprintf(scene.events + used, sizeof scene.events - used,
                       "{\"result\":{\"header\":{\"revision\":\"%d\"},\"events\":[{\"kv\":%s}]}}\n", revision,
                       key_json(name, value, revision));

    assert_true(len > 0 && used + (size_t)len < sizeof scene.events);
}

/* In one piece, so that they are read in one turn of the loop. */
static void say_events(void)
{
    on_stream_text(scene.events);
    scene.events[0] = '\0';
}

static void add_world(uint64_t id, const uint64_t members[static MEMBERS], int revision)
{
    struct mu_fold_world world = { .id = id, .round = (int64_t)id, .one_host = true, .first = "127.0.0.1", .size = 1 };
    struct mu_buf value = { 0 };

    while (world.nodes < MEMBERS && members[world.nodes] != 0) {
        scene.worlds[id][world.nodes] = members[world.nodes];
        world.nodes++;
    }
    assert_int_equal(mu_fold_world_write(&world, &value), 0);
    add_event("job/doc", &value, revision);
}

/* Our seat; its length is 0 if there is none. */
static void write_seat(const uint64_t members[static MEMBERS], struct mu_buf *value)
{
    for (int64_t i = 0; i < MEMBERS; i++)
        if (members[i] == scene.me)
            assert_int_equal(mu_fold_seat_write(&(struct mu_fold_seat){ .rank = i, .role_size = 1 }, value), 0);
}

static void write_page(const uint64_t members[static MEMBERS], struct mu_buf *value)
{
    struct mu_fold_member all[MEMBERS];
    size_t count = 0;

    for (; count < MEMBERS && members[count] != 0; count++)
        all[count] = (struct mu_fold_member){ members[count], { mu_slice_str("127.0.0.1"), 1, 1 } };
    assert_int_equal(mu_fold_page_write(all, count, value), 0);
    scene.names_read++;
}

/* The key that is asked for, without the job's prefix; empty: something else is asked. */
static void find_key(const char *request, char name[static 64])
{
    const char *key = strstr(request, "\"key\":\"");
    struct mu_buf bytes = { 0 };

    name[0] = '\0';
    if (strstr(request, mu_etcd3_path(MU_ETCD3_RANGE)) == NULL || key == NULL)
        return;
    key += strlen("\"key\":\"");
    assert_int_equal(mu_base64_decode(mu_slice(key, strcspn(key, "\"")), &bytes, 256), 0);
    if (bytes.len > strlen("/muster/job/"))
        (void)snprintf(name, 64, "%.*s", (int)(bytes.len - strlen("/muster/job/")),
                       bytes.data + strlen("/muster/job/"));
    mu_buf_done(&bytes);
}

/* Seats and pages are as the worlds are that were added; all else is as a test has written it down. */
static const char *as_etcd_with_seats(struct server *server, struct peer *peer)
{
    struct script range = script[MU_ETCD3_RANGE];
    struct mu_buf value = { 0 };
    char name[64], key[72];
    char *line = next_text();
    const char *text;
    uint64_t world = 0;
    bool seat;

    find_key(peer->text, name);
    seat = strncmp(name, "seat/", 5) == 0;
    if (!seat && strncmp(name, "member/", 7) != 0)
        return as_etcd(server, peer);
    assert_true(mu_fold_id_parse(mu_slice(name + (seat ? 5 : 7), 16), &world) && world < WORLDS);
    (seat ? write_seat : write_page)(scene.worlds[world], &value);
    (void)snprintf(key, sizeof key, "%s%s", name, seat ? "" : "0000");
    if (value.len == 0)
        (void)snprintf(line, TEXT_MAX, "{" HEADER("1000") "}");
    else
        (void)snprintf(line, TEXT_MAX, "{" HEADER("1000") ",\"count\":\"1\",\"kvs\":[%s]}", key_json(key, &value, 9));
    script[MU_ETCD3_RANGE] = (struct script){ .lines = { line } };
    text = as_etcd(server, peer);
    script[MU_ETCD3_RANGE] = range;
    return text;
}

/* The machine knows who is in its world, and so that it is in; nobody was told. */
static void until_in(unsigned worlds)
{
    UNTIL(scene.names_read == worlds);
    for (int i = 0; i < 20; i++)
        take_turn();
}

/* The first so many of that world are gone; another one waits. */
static void add_news(uint64_t world, size_t gone_count, int revision)
{
    struct mu_fold_news news = { .world = world, .waiting = 1, .last_call_ms = -1, .over = gone_count > 0 };
    struct mu_buf value = { 0 };

    for (uint32_t i = 0; i < gone_count; i++)
        mu_fold_news_add_gone(&news, i, mu_slice_str("127.0.0.1"));
    assert_int_equal(mu_fold_news_write(&news, &value), 0);
    add_event("job/news", &value, revision);
}

static void add_master(uint64_t world, int revision)
{
    struct mu_fold_master master = { .world = world, .addr = "127.0.0.1", .port = 1234, .agents_port = 1234 };
    struct mu_buf value = { 0 };

    assert_int_equal(mu_fold_master_write(&master, &value), 0);
    add_event("job/master", &value, revision);
}

/* Out of the transaction that put our record. */
static uint64_t find_me(void)
{
    const char *start = in_base64(mu_slice_str("/muster/job/nodes/")); /* 18 bytes: what follows is coded for itself */
    const char *key = strstr(script[MU_ETCD3_TXN].body, start);
    struct mu_buf name = { 0 };
    uint64_t id = 0;

    assert_non_null(key);
    assert_int_equal(mu_base64_decode(mu_slice(key + strlen(start), 44), &name, 64), 0); /* "<id>/<lease>" */
    assert_true(mu_fold_id_parse(mu_slice(name.data, 16), &id));
    mu_buf_done(&name);
    return id;
}

/* Somebody else folds; our record is put, and job/ is watched. */
static void join_beside_a_leader(void)
{
    static char job[TEXT_MAX];
    struct mu_buf mark = { 0 };

    assert_int_equal(mu_fold_mark_write(OTHER, &mark), 0);
    (void)snprintf(job, sizeof job, "{" HEADER("7") ",\"count\":\"1\",\"kvs\":[%s]}", key_json("job/folder", &mark, 5));
    script[MU_ETCD3_RANGE].lines[0] = job;
    script[MU_ETCD3_RANGE].lines[1] = "{" HEADER("1000") "}"; /* a watch that asks whether the server is there */
    scene.handler->ops->join(scene.handler);
    UNTIL(script[MU_ETCD3_TXN].asked == 1 && stream != NULL);
    scene.me = find_me();
}

/* We are rank 0, and etcd does not let us say where the workers meet. */
static void fail_boot(void)
{
    script[MU_ETCD3_TXN].lines[1] = "400 " FAILURE("3", "no");
    script[MU_ETCD3_TXN].lines[2] = script[MU_ETCD3_TXN].lines[0];
    add_world(7, (uint64_t[MEMBERS]){ scene.me, OTHER }, 10);
    say_events();
}

/* ---- Tests ---- */

static void a_round_that_the_owner_was_not_told_of_is_not_told_as_over(void **state)
{
    (void)state;
    start_handler(2, 2, "join_timeout=600");
    join_beside_a_leader();
    add_world(7, (uint64_t[MEMBERS]){ OTHER, scene.me }, 10);
    say_events();
    until_in(1);
    add_news(7, 1, 11);
    add_world(8, (uint64_t[MEMBERS]){ OTHER, THIRD }, 12);
    say_events();
    UNTIL(script[MU_ETCD3_TXN].asked == 2); /* its record for the next round */
    assert_int_equal(scene.removed + scene.lost + scene.waiting + scene.failed, 0);
    add_world(9, (uint64_t[MEMBERS]){ OTHER, scene.me }, 13);
    add_master(9, 14);
    say_events();
    UNTIL(scene.joined == 1);
    assert_int_equal(scene.round, 9);
    add_world(10, (uint64_t[MEMBERS]){ OTHER, THIRD }, 15);
    say_events();
    UNTIL(scene.removed == 1); /* of this one it was told */
    assert_int_equal(scene.lost + scene.failed, 0);
}

static void losses_of_a_round_that_the_owner_was_not_told_of_are_not_told(void **state)
{
    (void)state;
    start_handler(2, 3, "join_timeout=600");
    join_beside_a_leader();
    add_world(7, (uint64_t[MEMBERS]){ OTHER, THIRD, scene.me }, 10);
    say_events();
    until_in(1);
    add_news(7, 1, 11);
    add_news(7, 2, 12);
    say_events();
    UNTIL(script[MU_ETCD3_TXN].asked == 2);
    assert_int_equal(scene.removed + scene.lost + scene.waiting + scene.failed, 0);
}

static void a_join_that_ends_with_its_time_while_it_boots_takes_its_record_away(void **state)
{
    uint64_t until_ms;

    (void)state;
    start_handler(2, 2, "join_timeout=5");
    until_ms = uv_now(&loop) + 5000;
    join_beside_a_leader();
    add_world(7, (uint64_t[MEMBERS]){ OTHER, scene.me }, 10);
    say_events();
    UNTIL(uv_now(&loop) > until_ms + 100);
    assert_int_equal(scene.failed, 0);
    add_news(7, 1, 11);
    add_news(7, 1, 12);
    say_events();
    UNTIL(scene.failed == 1);
    assert_int_equal(scene.why.code, MUSTER_ERDZV_TIMEOUT);
    assert_string_equal(scene.why.text,
                        "join rendezvous 'job': timed out after 5 s: every round lost a member before it could begin");
    assert_int_equal(script[MU_ETCD3_REVOKE].asked, 1); /* and all that was under it */
    assert_int_equal(scene.removed + scene.lost + scene.waiting + scene.left, 0);
}

static void an_owner_that_leaves_and_joins_while_a_failed_join_leaves_hears_of_both(void **state)
{
    (void)state;
    script[MU_ETCD3_REVOKE].lines[0] = SILENT;
    start_handler(2, 2, "join_timeout=600");
    join_beside_a_leader();
    fail_boot();
    UNTIL(script[MU_ETCD3_REVOKE].asked == 1);
    assert_int_equal(scene.failed, 0);
    scene.handler->ops->leave(scene.handler);
    scene.handler->ops->join(scene.handler);
    UNTIL(scene.left == 1);
    assert_int_equal(scene.failed, 0);
    UNTIL(script[MU_ETCD3_TXN].asked == 3); /* two records, and what was refused */
}

static void on_late(uv_timer_t *timer)
{
    *(bool *)timer->data = true;
}

/* By the loop's own order of what is due, however late it is: a request alone has 5 s under such a lease. */
static void an_etcd_that_says_nothing_is_given_up_when_the_time_for_that_is_over(void **state)
{
    static bool late;
    static uv_timer_t timer = { .data = &late };

    (void)state;
    script[MU_ETCD3_RANGE].lines[0] = script[MU_ETCD3_GRANT].lines[0] = SILENT;
    start_handler(1, 1, "lease=1000,read_timeout=1");
    (void)uv_run(&loop, UV_RUN_NOWAIT);
    scene.handler->ops->join(scene.handler);
    (void)uv_timer_init(&loop, &timer);
    (void)uv_timer_start(&timer, on_late, 4500, 0);
    UNTIL(scene.failed == 1 || late);
    uv_close((uv_handle_t *)&timer, NULL); /* over when the handler is freed */
    assert_int_equal(scene.failed, 1);
    assert_int_equal(scene.why.code, MUSTER_ERDZV_CONNECTION);
    assert_non_null(strstr(scene.why.text, "etcd could not be used within 1 s"));
}

static void a_loss_is_noticed_within_a_lease(void **state)
{
    (void)state;
    start_handler(1, 1, "lease=40,keep_alive_interval=1");
    assert_int_equal(((const struct mu_handler *)scene.handler)->loss_ms, 40000);
}

/* As an agent does whose user asks for keys of the group's store. */
int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, start_scene, end_scene)
        TEST(a_round_that_the_owner_was_not_told_of_is_not_told_as_over),
        TEST(losses_of_a_round_that_the_owner_was_not_told_of_are_not_told),
        TEST(a_join_that_ends_with_its_time_while_it_boots_takes_its_record_away),
        TEST(an_owner_that_leaves_and_joins_while_a_failed_join_leaves_hears_of_both),
        TEST(an_etcd_that_says_nothing_is_given_up_when_the_time_for_that_is_over),
        TEST(a_loss_is_noticed_within_a_lease),
    };

    return run_with_curl("etcd_v3_uv", tests, COUNT(tests));
}
