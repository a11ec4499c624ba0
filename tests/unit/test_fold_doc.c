/* What the nodes of an etcd-v3 rendezvous write into etcd: what is written is read again, and nothing else is. */
#include "failmalloc.h"
#include "pure.h"
#include "rdzv/fold_doc.h"
#include "rdzv/slowdown.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#define ID "00000000000000ab"

enum { NODES_MAX = 1 << 15 }; /* that a leader looks at */

static struct mu_fold_member member(uint64_t id, const char *name)
{
    return (struct mu_fold_member){ id, { mu_slice_str(name), 77, 0x4D100000 } };
}

/* ---- What was written is read ---- */

static void a_record_is_read_as_it_was_written(void **state)
{
    struct mu_fold_record record = { .name = "host-\xc3\xa4",
                                     .pid = 4711,
                                     .local_id = 0x4D112345,
                                     .nodes_min = 2,
                                     .nodes_max = 4,
                                     .seq = 9,
                                     .joining = true,
                                     .world = 0xfedcba9876543210,
                                     .round = 12,
                                     .rank = 3,
                                     .nodes = 4,
                                     .count = 6,
                                     .world_size = 32,
                                     .role = "train\xc3\xa9r",
                                     .size = 8,
                                     .max_restarts = 5,
                                     .window_s = 3600,
                                     .end = { MU_FOLD_END_FAILED, 0xab, 12, 77, "exitcode 1" } },
                          again = { .pid = 0 };
    struct mu_buf bytes = { 0 };

    (void)state;
    for (int i = 0; i < 3; i++) {
        record.joining = i != 1;
        (void)snprintf(record.host.name, sizeof record.host.name, "%s", i == 2 ? "no\"de" : "");
        record.host.rank = 3;
        assert_int_equal(mu_fold_record_write(&record, &bytes), 0);
        assert_int_equal(mu_fold_record_read(mu_buf_slice(&bytes), &again, NULL), 0);
        assert_string_equal(again.name, record.name);
        assert_true(again.pid == record.pid && again.local_id == record.local_id && again.seq == record.seq);
        assert_true(again.nodes_min == 2 && again.nodes_max == 4 && again.world == record.world);
        assert_true(again.joining == record.joining);
        assert_string_equal(again.role, record.role);
        assert_true(again.size == 8 && again.max_restarts == 5 && again.window_s == 3600);
        assert_true(again.end.kind == MU_FOLD_END_FAILED && again.end.world == 0xab && again.end.rank == 12);
        assert_int_equal(again.end.at, 77);
        assert_string_equal(again.end.text, "exitcode 1");
        assert_string_equal(again.host.name, record.host.name);
        if (i > 0) /* of one who stays, or has left because its store is gone */
            assert_true(again.round == 12 && again.rank == 3 && again.nodes == 4);
    }
    assert_int_equal(again.host.rank, 3);
    assert_true(again.count == 6 && again.world_size == 32);
    mu_buf_done(&bytes);
}

static void each_end_is_read_as_it_was_written(void **state)
{
    (void)state;
    for (enum mu_fold_end_kind kind = MU_FOLD_END_NONE; kind <= MU_FOLD_END_LEFT; kind++) {
        struct mu_fold_record record = { .name = "a", .nodes_min = 1, .nodes_max = 1, .size = 1, .joining = true },
                              again = { .pid = 0 };
        struct mu_buf bytes = { 0 };

        record.end = (struct mu_fold_end){ .kind = kind, .world = UINT64_MAX, .rank = -1, .at = INT64_MAX };
        memset(record.end.text, '"', sizeof record.end.text - 1);
        assert_int_equal(mu_fold_record_write(&record, &bytes), 0);
        assert_int_equal(mu_fold_record_read(mu_buf_slice(&bytes), &again, NULL), 0);
        assert_int_equal(again.end.kind, kind);
        if (kind != MU_FOLD_END_NONE) {
            assert_true(again.end.world == UINT64_MAX && again.end.rank == -1 && again.end.at == INT64_MAX);
            assert_string_equal(again.end.text, record.end.text);
        }
        mu_buf_done(&bytes);
    }
}

static void a_world_is_read_as_it_was_written(void **state)
{
    struct mu_fold_world world = { .id = 5,
                                   .round = 7,
                                   .nodes = 3,
                                   .hold_ms = 2000,
                                   .one_host = true,
                                   .first = "node7",
                                   .first_pid = 4711,
                                   .first_local_id = 12,
                                   .size = 24,
                                   .count = 3,
                                   .max_restarts = 9,
                                   .why = "rank 2's failure on node7: exitcode 1; restarting",
                                   .crashes = 2,
                                   .window_s = 3600,
                                   .charges = { 3000, 20, 0 },
                                   .charges_count = 3,
                                   .rest_ms = 999,
                                   .host = { .rank = 2, .name = "node7" } },
                         again = { .id = 0 };
    struct mu_buf bytes = { 0 };

    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mu_fold_world_write(&world, &bytes), 0);
        assert_int_equal(mu_fold_world_read(mu_buf_slice(&bytes), &again, NULL), 0);
        assert_true(again.id == 5 && again.round == 7 && again.nodes == 3 && again.hold_ms == 2000);
        assert_true(again.one_host == world.one_host && again.first_pid == 4711 && again.first_local_id == 12);
        assert_string_equal(again.first, world.first);
        assert_true(again.size == 24 && again.count == 3 && again.max_restarts == 9 && again.crashes == 2);
        assert_string_equal(again.why, world.why);
        assert_true(again.window_s == 3600 && again.charges_count == world.charges_count);
        assert_int_equal(again.rest_ms, world.rest_ms);
        assert_string_equal(again.host.name, world.host.name);
        assert_int_equal(again.host.rank, world.host.name[0] != '\0' ? 2 : 0);
        assert_memory_equal(again.charges, world.charges, world.charges_count * sizeof world.charges[0]);
        world.one_host = false;
        world.first[0] = world.why[0] = '\0'; /* not known; the first one */
        world.charges_count = 0;
        world.rest_ms = 0;         /* it is not written then */
        world.host.name[0] = '\0'; /* nor is this */
    }
    mu_buf_done(&bytes);
}

/* Of a name that a stranger wrote, nothing may be put back that takes more room, or that a terminal obeys. */
static void names_in_a_world_are_read_as_plain_words(void **state)
{
    static const char text[] =
        "{\"v\":2,\"world\":\"" ID "\",\"round\":0,\"nodes\":1,\"size\":1,\"count\":0,\"max_restarts\":0,"
        "\"window_s\":0,\"charges\":[],\"crashes\":0,\"hold_ms\":0,\"first\":[\"a\\u001bb\",1,1],\"why\":\"\","
        "\"host\":[0,\"c\\u0007\\u00e4\"]}";
    struct mu_fold_world world;

    (void)state;
    assert_int_equal(mu_fold_world_read(mu_slice_str(text), &world, NULL), 0);
    assert_null(strchr(world.first, '\x1b'));
    assert_null(strchr(world.host.name, '\x07'));
    assert_true(world.first[0] == 'a' && world.host.name[0] == 'c');
}

static void a_seat_is_read_as_it_was_written(void **state)
{
    const struct mu_fold_seat seat = { .rank = MU_FOLD_MEMBERS_MAX - 1,
                                       .base_rank = MU_FOLD_WORKERS_MAX - 1,
                                       .base_role_rank = MU_FOLD_WORKERS_MAX - 2,
                                       .role_size = MU_FOLD_WORKERS_MAX };
    struct mu_fold_seat again = { .rank = -1 };
    struct mu_buf bytes = { 0 };

    (void)state;
    assert_int_equal(mu_fold_seat_write(&seat, &bytes), 0);
    assert_int_equal(mu_fold_seat_read(mu_buf_slice(&bytes), &again, NULL), 0);
    assert_true(again.rank == seat.rank && again.base_rank == seat.base_rank);
    assert_true(again.base_role_rank == seat.base_role_rank && again.role_size == seat.role_size);
    assert_true(bytes.len <= MU_FOLD_SMALL_MAX);
    mu_buf_done(&bytes);
}

static void pages_are_read_as_they_were_written_and_know_ranks(void **state)
{
    enum { COUNT_ALL = MU_FOLD_PAGE_MEMBERS + 2 };
    struct mu_fold_member all[COUNT_ALL];
    struct mu_fold_members members = { .world = 0 };
    struct mu_buf bytes = { 0 };

    (void)state;
    for (size_t i = 0; i < COUNT_ALL; i++)
        all[i] = member(1000 - i, i == 0 ? "a" : "b");
    all[1].id = 0; /* nobody knows */
    assert_int_equal(mu_fold_members_init(&members, 5, COUNT_ALL), 0);
    assert_int_equal(mu_fold_page_write(all, MU_FOLD_PAGE_MEMBERS, &bytes), 0);
    assert_int_equal(mu_fold_members_read_page(&members, 0, mu_buf_slice(&bytes), NULL), 0);
    assert_true(mu_fold_members_sort(&members) && !mu_fold_members_all_known(&members));
    assert_int_equal(mu_fold_page_write(all + MU_FOLD_PAGE_MEMBERS, 2, &bytes), 0);
    assert_int_equal(mu_fold_members_read_page(&members, 1, mu_buf_slice(&bytes), NULL), 0);
    assert_true(mu_fold_members_sort(&members) && !mu_fold_members_all_known(&members));
    assert_true(mu_slice_equal(members.items[0].node.name, mu_slice_str("a")));
    assert_true(members.items[0].node.pid == 77 && members.items[0].node.local_id == 0x4D100000);
    for (size_t i = 0; i < COUNT_ALL; i++)
        assert_int_equal(mu_fold_members_rank(&members, 1000 - i), i == 1 ? -1 : (int64_t)i);
    assert_int_equal(mu_fold_members_set(&members, 1, &(struct mu_fold_member){ 9, { mu_slice_str("c"), 1, 1 } }), 0);
    assert_true(mu_fold_members_sort(&members) && mu_fold_members_all_known(&members));
    assert_int_equal(mu_fold_members_rank(&members, 9), 1);
    assert_int_equal(mu_fold_members_set(&members, 1, &all[0]), 0); /* who was there is forgotten */
    assert_false(mu_fold_members_sort(&members));                   /* somebody is in it twice */
    mu_fold_members_done(&members);
    assert_int_equal(mu_fold_members_rank(&members, 9), -1);
    mu_buf_done(&bytes);
}

static void news_are_read_as_they_were_written(void **state)
{
    struct mu_fold_news news = { .world = 5,
                                 .missing = 2,
                                 .waiting = 2,
                                 .spares = 1,
                                 .joined = 4,
                                 .apart = 1,
                                 .newcomers = 2,
                                 .who = "node9",
                                 .over = true,
                                 .cause = "lost node0: no keep-alive for 10 s",
                                 .held = "node8",
                                 .held_ms = 29000,
                                 .pause_ms = 4000,
                                 .last_call_ms = -1,
                                 .grace = true },
                        again = { .world = 0 };
    struct mu_buf bytes = { 0 };

    (void)state;
    mu_fold_news_add_gone(&news, 0, mu_slice_str("node0"));
    mu_fold_news_add_gone(&news, 3, mu_slice_str(""));
    mu_fold_news_add_gone(&news, 4, mu_slice_str("node4"));
    mu_fold_news_add_gone(&news, 17, mu_slice_str("node17"));
    assert_int_equal(mu_fold_news_write(&news, &bytes), 0);
    assert_int_equal(mu_fold_news_read(mu_buf_slice(&bytes), &again, NULL), 0);
    assert_true(again.world == 5 && again.waiting == 2 && again.spares == 1 && again.joined == 4 && again.apart == 1);
    assert_true(again.newcomers == 2 && again.last_call_ms == -1 && again.grace);
    assert_string_equal(again.who, "node9");
    assert_true(again.over && again.held_ms == 29000 && again.pause_ms == 4000);
    assert_string_equal(again.cause, news.cause);
    assert_string_equal(again.held, "node8");
    assert_true(again.gone == 4 && again.missing == 2 && again.spans_count == 3 && again.lost_count == 3);
    assert_string_equal(again.lost[1], "node4");
    for (int64_t rank = 0; rank < 20; rank++)
        assert_true(mu_fold_news_gone(&again, rank) == (rank == 0 || rank == 3 || rank == 4 || rank == 17));
    mu_buf_done(&bytes);
}

/* Those above are counted, and not named. */
static void news_name_so_many_spans_and_nodes(void **state)
{
    struct mu_fold_news news = { .world = UINT64_MAX, .last_call_ms = INT64_MAX / 2 }, again = { .world = 0 };
    struct mu_buf bytes = { 0 };
    char name[2 * MU_FOLD_SHOWN_MAX];

    (void)state;
    memset(name, 'x', sizeof name);
    for (uint32_t i = 0; i < 100; i++)
        mu_fold_news_add_gone(&news, 2 * i, mu_slice(name, sizeof name));
    assert_true(news.gone == 100 && news.spans_count == MU_FOLD_SPANS_MAX && news.lost_count == MU_FOLD_NAMED_MAX);
    assert_int_equal(strlen(news.lost[0]), MU_FOLD_SHOWN_MAX - 1); /* cut */
    assert_int_equal(mu_fold_news_write(&news, &bytes), 0);
    assert_true(bytes.len <= MU_FOLD_SMALL_MAX);
    assert_int_equal(mu_fold_news_read(mu_buf_slice(&bytes), &again, NULL), 0);
    assert_int_equal(again.gone, 100);
    assert_true(mu_fold_news_gone(&again, 2 * (MU_FOLD_SPANS_MAX - 1)));
    assert_false(mu_fold_news_gone(&again, 2 * MU_FOLD_SPANS_MAX));
    mu_buf_done(&bytes);
}

/* The largest numbers that there can be, and names that are nothing but quotes. */
static void whatever_is_in_them_worlds_and_news_are_small(void **state)
{
    struct mu_fold_news news = { .world = UINT64_MAX,
                                 .missing = MU_FOLD_MEMBERS_MAX,
                                 .waiting = NODES_MAX,
                                 .spares = NODES_MAX,
                                 .joined = NODES_MAX,
                                 .apart = NODES_MAX,
                                 .newcomers = NODES_MAX,
                                 .over = true,
                                 .held_ms = MU_SLOWDOWN_HOLD_MAX_MS,
                                 .pause_ms = MU_SLOWDOWN_PAUSE_MAX_MS,
                                 .last_call_ms = INT64_MAX / 2 };
    struct mu_fold_world world = { .id = UINT64_MAX,
                                   .round = MU_DOC_ROUND_MAX,
                                   .nodes = MU_FOLD_MEMBERS_MAX,
                                   .hold_ms = MU_FOLD_HOLD_MAX_MS,
                                   .first_pid = INT64_MAX,
                                   .first_local_id = INT64_MAX,
                                   .size = MU_FOLD_SIZE_MAX * (int64_t)MU_FOLD_MEMBERS_MAX,
                                   .count = MU_FOLD_COUNT_MAX,
                                   .max_restarts = INT64_MAX,
                                   .crashes = MU_FOLD_COUNT_MAX,
                                   .window_s = MU_FOLD_WINDOW_MAX_S,
                                   .charges_count = MU_FOLD_CHARGES_MAX,
                                   .rest_ms = 999 };
    struct mu_fold_world cut = { .id = 0 };
    struct mu_fold_news again = { .world = 0 };
    struct mu_buf bytes = { 0 };
    char quotes[MU_FOLD_SHOWN_MAX];

    (void)state;
    memset(quotes, '"', sizeof quotes);
    quotes[sizeof quotes - 1] = '\0';
    memcpy(world.first, quotes, sizeof quotes);
    memcpy(world.host.name, quotes, sizeof quotes);
    world.host.rank = MU_FOLD_MEMBERS_MAX - 1;
    memcpy(news.who, quotes, sizeof quotes);
    memcpy(news.held, quotes, sizeof quotes);
    memset(news.cause, '"', sizeof news.cause - 1);
    memset(world.why, '"', sizeof world.why - 1);
    for (size_t i = 0; i < world.charges_count; i++)
        world.charges[i] = MU_FOLD_WINDOW_MAX_S;
    assert_int_equal(mu_fold_world_write(&world, &bytes), 0);
    assert_true(bytes.len <= MU_FOLD_SMALL_MAX && bytes.len > MU_FOLD_SMALL_MAX - 2);
    assert_int_equal(mu_fold_world_read(mu_buf_slice(&bytes), &cut, NULL), 0);
    assert_true(cut.charges_count == MU_FOLD_CHARGES_MAX && strlen(cut.why) < strlen(world.why));
    assert_memory_equal(cut.why, world.why, strlen(cut.why)); /* cut */
    for (uint32_t i = 0; i < MU_FOLD_SPANS_MAX; i++)
        mu_fold_news_add_gone(&news, MU_FOLD_MEMBERS_MAX - 2 * (MU_FOLD_SPANS_MAX - i), mu_slice_str(quotes));
    news.gone = MU_FOLD_MEMBERS_MAX;
    assert_int_equal(mu_fold_news_write(&news, &bytes), 0);
    assert_true(bytes.len <= MU_FOLD_SMALL_MAX);
    assert_int_equal(mu_fold_news_read(mu_buf_slice(&bytes), &again, NULL), 0);
    assert_true(again.spans_count == MU_FOLD_SPANS_MAX && again.lost_count < MU_FOLD_NAMED_MAX);
    assert_string_equal(again.who, quotes);
    assert_string_equal(again.held, quotes);
    assert_true(strlen(again.cause) > 100 && strlen(again.cause) < strlen(news.cause)); /* cut */
    mu_buf_done(&bytes);
}

static void marks_and_masters_are_read_as_they_were_written(void **state)
{
    struct mu_fold_master master = { .world = 5, .addr = "10.0.0.1", .port = 1, .agents_port = 65535 }, again;
    struct mu_buf bytes = { 0 };
    uint64_t node = 0;

    (void)state;
    assert_int_equal(mu_fold_mark_write(UINT64_MAX, &bytes), 0);
    assert_int_equal(mu_fold_mark_read(mu_buf_slice(&bytes), &node, NULL), 0);
    assert_true(node == UINT64_MAX);
    assert_int_equal(mu_fold_master_write(&master, &bytes), 0);
    assert_int_equal(mu_fold_master_read(mu_buf_slice(&bytes), &again, NULL), 0);
    assert_string_equal(again.addr, "10.0.0.1");
    assert_true(again.world == 5 && again.port == 1 && again.agents_port == 65535);
    mu_buf_done(&bytes);
}

static void the_end_of_a_job_is_read_as_it_was_written(void **state)
{
    static const struct mu_fold_closed rows[] = { { .node = 5 },
                                                  { .node = 5, .has_verdict = true, .succeeded = true },
                                                  { .node = 5, .has_verdict = true, .cause = "rank 1's failure" } };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct mu_fold_closed again = { .node = 0 };
        struct mu_buf bytes = { 0 };

        assert_int_equal(mu_fold_closed_write(&rows[i], &bytes), 0);
        assert_int_equal(mu_fold_closed_read(mu_buf_slice(&bytes), &again, NULL), 0);
        assert_true(again.node == 5 && again.has_verdict == rows[i].has_verdict);
        assert_true(again.succeeded == rows[i].succeeded);
        assert_string_equal(again.cause, rows[i].cause);
        mu_buf_done(&bytes);
    }
}

/* ---- What is not read ---- */

enum what { RECORD, WORLD, SEAT, PAGE, NEWS, MARK, CLOSED, MASTER, WHATS };

static const char *const names[WHATS] = { "the record of a node", "the world of a round", "a seat",
                                          "a page of members",    "the news of a round",  "the mark of a node",
                                          "the end of the job",   "where workers meet" };

static int read_as(enum what what, struct mu_slice bytes, struct muster_error *reterr)
{
    struct mu_fold_record record;
    struct mu_fold_world world;
    struct mu_fold_members members = { .world = 0 };
    struct mu_fold_news news;
    struct mu_fold_master master;
    struct mu_fold_seat seat;
    struct mu_fold_closed closed;
    uint64_t node;
    int rc = 0;

    switch (what) {
    case RECORD:
        return mu_fold_record_read(bytes, &record, reterr);
    case WORLD:
        return mu_fold_world_read(bytes, &world, reterr);
    case SEAT:
        return mu_fold_seat_read(bytes, &seat, reterr);
    case PAGE:
        assert_int_equal(mu_fold_members_init(&members, 1, 2), 0);
        rc = mu_fold_members_read_page(&members, 0, bytes, reterr);
        mu_fold_members_done(&members);
        return rc;
    case NEWS:
        return mu_fold_news_read(bytes, &news, reterr);
    case MARK:
        return mu_fold_mark_read(bytes, &node, reterr);
    case CLOSED:
        return mu_fold_closed_read(bytes, &closed, reterr);
    case MASTER:
        return mu_fold_master_read(bytes, &master, reterr);
    case WHATS:
        break;
    }
    return -1;
}

/* Members that we do not know are skipped. */
static void unknown_members_are_skipped(void **state)
{
    uint64_t node = 0;

    (void)state;
    assert_int_equal(
        mu_fold_mark_read(mu_slice_str("{\"v\":2,\"node\":\"000000000000000f\",\"more\":[1,{\"a\":2}]}"), &node, NULL),
        0);
    assert_true(node == 15);
}

static void other_versions_are_refused_by_name(void **state)
{
    static const char *const others[] = { "1", "3", "4711" };

    (void)state;
    for (enum what what = RECORD; what < WHATS; what++)
        for (size_t i = 0; i < COUNT(others); i++) {
            struct muster_error error = { 0 };
            char text[32], why[256];

            (void)snprintf(text, sizeof text, "{\"v\":%s}", others[i]);
            (void)snprintf(why, sizeof why,
                           "%s: another version of muster wrote it (its values are of version %s, ours of version 2)",
                           names[what], others[i]);
            assert_int_equal(read_as(what, mu_slice_str(text), &error), MUSTER_ERDZV_STATE);
            assert_string_equal(error.text, why);
            assert_true(mu_fold_is_other_version(mu_slice_str(text)));
        }
    assert_false(mu_fold_is_other_version(mu_slice_str("{\"v\":2}")));
    assert_false(mu_fold_is_other_version(mu_slice_str("{\"v\":0}")));
    assert_false(mu_fold_is_other_version(mu_slice_str("[1]")));
    assert_false(mu_fold_is_other_version(mu_slice_str("garbage")));
}

#define RECORD_BY(self, more)                                                                                          \
    "{\"v\":2,\"name\":\"a\",\"pid\":1,\"local_id\":1,\"min\":1,\"max\":2,\"seq\":1," self "," more "}"
#define SELF(size, restarts, window)                                                                                   \
    "\"size\":" size ",\"max_restarts\":" restarts ",\"window_s\":" window ",\"role\":\"\""
#define RECORD_OF(more) RECORD_BY(SELF("1", "0", "0") ",\"end\":null", more)
#define JOIN "\"want\":\"join\",\"world\":\"" ID "\""

#define RECORD_END(end) RECORD_BY(SELF("1", "0", "0") ",\"end\":" end, JOIN)
#define STAY "\"want\":\"stay\",\"world\":\"" ID "\","
#define STAYS "\"round\":0,\"nodes\":2,\"rank\":1,\"count\":0,\"world_size\":1"
#define WORLD_OF(more) "{\"v\":2,\"world\":\"" ID "\"," more "}"
#define WORLD_REST(size, count, most, window, crashes, charges, why)                                                   \
    WORLD_OF("\"round\":0,\"nodes\":1,\"hold_ms\":0,\"first\":[\"a\",1,1],\"size\":" size ",\"count\":" count          \
             ",\"max_restarts\":" most ",\"window_s\":" window ",\"crashes\":" crashes ",\"charges\":" charges         \
             ",\"why\":" why)
#define COUNTS "\"size\":1,\"count\":0,\"max_restarts\":0,\"window_s\":0,\"crashes\":0,\"charges\":[],\"why\":\"\""
#define SEAT_OF(rank, base, role_base, role_size)                                                                      \
    "{\"v\":2,\"rank\":" rank ",\"base\":" base ",\"role_base\":" role_base ",\"role_size\":" role_size "}"
#define CLOSED_OF(more) "{\"v\":2,\"node\":\"" ID "\"," more "}"
#define NEWS_OF(gone, ranks, lost, more)                                                                               \
    "{\"v\":2,\"world\":\"" ID "\",\"gone\":" gone ",\"missing\":0,\"ranks\":" ranks ",\"lost\":" lost                 \
    ",\"waiting\":0,\"spares\":0,\"joined\":0,\"newcomers\":0," more "}"
#define NEWS_WHY(cause, held) "\"over\":true,\"cause\":" cause ",\"held\":" held
#define NEWS_MORE(more) NEWS_WHY("\"\"", "[\"\",0]") "," more
#define NEWS_END NEWS_MORE("\"apart\":0,\"pause_ms\":0,\"last_call_ms\":-1,\"grace\":false")
#define NEWS_WAITS(held_ms, pause_ms)                                                                                  \
    NEWS_WHY("\"\"", "[\"a\"," held_ms "]") ",\"apart\":0,\"pause_ms\":" pause_ms ",\"last_call_ms\":-1,\"grace\":false"
#define HIGHEST "9223372036854775807"
#define T10 "1,1,1,1,1,1,1,1,1,1"
#define X50 "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
#define X350 X50 X50 X50 X50 X50 X50 X50
#define PAGE_OF(members) "{\"v\":2,\"members\":" members "}"

static void what_is_wrong_is_refused_by_name(void **state)
{
    static const struct {
        enum what what;
        const char *text, *why; /* NULL: it is good */
    } rows[] = {
        { WORLD, "", "byte" },
        { WORLD, "[]", "'v'" },
        { WORLD, "{\"v\":0}", "'v'" },
        { WORLD, "{\"v\":2,\"v\":2}", "byte" },
        { WORLD, "{\"v\":2}", "'world'" },
        { WORLD, "{\"v\":2,\"world\":\"0000000000000000\"}", "'world'" },
        { WORLD, "{\"v\":2,\"world\":\"00000000000000AB\"}", "'world'" },
        { WORLD, WORLD_OF("\"round\":-1"), "'round'" },
        { WORLD, WORLD_OF("\"round\":9007199254740993"), "'round'" },
        { WORLD, WORLD_OF("\"round\":9007199254740992"), "'nodes'" },
        { WORLD, WORLD_OF("\"round\":0"), "'nodes'" },
        { WORLD, WORLD_OF("\"round\":0,\"nodes\":0"), "'nodes'" },
        { WORLD, WORLD_OF("\"round\":0,\"nodes\":16385"), "'nodes'" },
        { WORLD, WORLD_OF("\"round\":0,\"nodes\":1,\"hold_ms\":99999999"), "'hold_ms'" },
        { WORLD, WORLD_OF("\"round\":0,\"nodes\":1,\"hold_ms\":0"), "'size'" },
        { WORLD, WORLD_OF("\"round\":0,\"nodes\":1,\"hold_ms\":0," COUNTS), "'first'" },
        { WORLD, WORLD_OF("\"round\":0,\"nodes\":1,\"hold_ms\":0,\"first\":[\"a\",1]," COUNTS), "'first'" },
        { WORLD,
          WORLD_OF("\"round\":0,\"nodes\":1,\"hold_ms\":0,"
                   "\"first\":[\"123456789012345678901234567890123456789012345678\",1,1]," COUNTS),
          "'first'" },
        { WORLD, WORLD_OF("\"round\":0,\"nodes\":1,\"hold_ms\":0,\"first\":[\"a\",1,1]," COUNTS), NULL },
        { WORLD, WORLD_OF("\"round\":0,\"nodes\":1,\"hold_ms\":0,\"first\":[\"a\",1,1],\"rest_ms\":1000," COUNTS),
          "'rest_ms'" },
        { WORLD, WORLD_OF("\"round\":0,\"nodes\":1,\"hold_ms\":0,\"first\":[\"a\",1,1],\"host\":[0,\"a\"]," COUNTS),
          NULL },
        { WORLD, WORLD_OF("\"round\":0,\"nodes\":1,\"hold_ms\":0,\"first\":[\"a\",1,1],\"host\":[1,\"a\"]," COUNTS),
          "'host'" },
        { WORLD, WORLD_REST("0", "0", "0", "0", "0", "[]", "\"\""), "'size'" },
        { WORLD, WORLD_REST("17179869185", "0", "0", "0", "0", "[]", "\"\""), "'size'" },
        { WORLD, WORLD_REST("1", "1000000000", "0", "0", "1000000000", "[]", "\"\""), NULL },
        { WORLD, WORLD_REST("1", "1000000001", "0", "0", "0", "[]", "\"\""), "'count'" },
        { WORLD, WORLD_REST("1", HIGHEST, "0", "0", "0", "[]", "\"\""), "'count'" },
        { WORLD, WORLD_REST("1", "0", "0", "0", "1000000001", "[]", "\"\""), "'crashes'" },
        { WORLD, WORLD_REST("1", "0", "0", "0", HIGHEST, "[]", "\"\""), "'crashes'" },
        { WORLD, WORLD_REST("1", "-1", "0", "0", "0", "[]", "\"\""), "'count'" },
        { WORLD, WORLD_REST("1", "0", "-1", "0", "0", "[]", "\"\""), "'max_restarts'" },
        { WORLD, WORLD_REST("1", "0", "0", "-1", "0", "[]", "\"\""), "'window_s'" },
        { WORLD, WORLD_REST("1", "0", "0", "1000000001", "0", "[]", "\"\""), "'window_s'" },
        { WORLD, WORLD_REST("1", "0", "0", "0", "-1", "[]", "\"\""), "'crashes'" },
        { WORLD, WORLD_REST("1", "0", "0", "0", "0", "1", "\"\""), "'charges'" },
        { WORLD, WORLD_REST("1", "0", "0", "0", "0", "[-1]", "\"\""), "'charges'" },
        { WORLD, WORLD_REST("1", "0", "0", "0", "0", "[1000000001]", "\"\""), "'charges'" },
        { WORLD, WORLD_REST("1", "0", "0", "0", "0", "[\"1\"]", "\"\""), "'charges'" },
        { WORLD, WORLD_REST("1", "0", "0", "0", "0", "[" T10 "," T10 "," T10 ",1,1]", "\"\""), NULL },
        { WORLD, WORLD_REST("1", "0", "0", "0", "0", "[" T10 "," T10 "," T10 ",1,1,1]", "\"\""), "'charges'" },
        { WORLD, WORLD_REST("1", "0", "0", "0", "0", "[]", "1"), "'why'" },
        { WORLD, WORLD_REST("1", "0", "0", "0", "0", "[]", "\"" X350 "x\""), NULL },
        { WORLD, WORLD_REST("1", "0", "0", "0", "0", "[]", "\"" X350 "xx\""), "'why'" },
        { WORLD, WORLD_REST("17179869184", "9", "9", "1000000000", "9", "[1000000000]", "\"x\""), NULL },
        { RECORD, RECORD_OF("\"want\":\"go\",\"world\":\"" ID "\""), "'want'" },
        { RECORD, RECORD_OF("\"want\":\"join\""), "'world'" },
        { RECORD, RECORD_OF("\"want\":\"join\",\"world\":\"" ID "\""), NULL },
        { RECORD, RECORD_OF("\"want\":\"join\",\"world\":\"0000000000000000\""), NULL },
        { RECORD, RECORD_OF("\"want\":\"stay\",\"world\":\"0000000000000000\"," STAYS), "'world'" },
        { RECORD, RECORD_OF(STAY STAYS), NULL },
        { RECORD, RECORD_OF(STAY STAYS ",\"host\":[1,\"a\"]"), NULL },
        { RECORD, RECORD_OF(STAY STAYS ",\"host\":[2,\"a\"]"), "'host'" },
        { RECORD, RECORD_OF(STAY STAYS ",\"host\":[1,\"\"]"), "'host'" },
        { RECORD, RECORD_OF(STAY STAYS ",\"host\":[1]"), "'host'" },
        { RECORD, RECORD_OF(STAY STAYS ",\"host\":null"), "'host'" },
        { RECORD, RECORD_OF(JOIN ",\"nodes\":2"), "'round'" },
        { RECORD, RECORD_OF(JOIN ",\"nodes\":2,\"round\":0,\"rank\":-1,\"count\":0,\"world_size\":1"), NULL },
        { RECORD, RECORD_OF(JOIN ",\"nodes\":2,\"round\":0,\"rank\":-2,\"count\":0,\"world_size\":1"), "'rank'" },
        { RECORD, RECORD_OF(JOIN "," STAYS ",\"host\":[1,\"a\"]"), NULL },
        { RECORD, RECORD_OF("\"want\":\"join\",\"world\":\"0000000000000000\"," STAYS ",\"host\":[1,\"a\"]"),
          "'world'" },
        { RECORD, RECORD_OF(STAY "\"nodes\":2,\"rank\":1"), "'round'" },
        { RECORD, RECORD_OF(STAY "\"round\":0,\"rank\":1"), "'nodes'" },
        { RECORD, RECORD_OF(STAY "\"round\":0,\"nodes\":2"), "'rank'" },
        { RECORD, RECORD_OF(STAY "\"round\":0,\"nodes\":2,\"rank\":2"), "'rank'" },
        { RECORD, RECORD_OF(STAY "\"round\":0,\"nodes\":2,\"rank\":-1"), "'rank'" },
        { RECORD, RECORD_OF(STAY "\"round\":0,\"nodes\":2,\"rank\":1"), "'count'" },
        { RECORD, RECORD_OF(STAY "\"round\":0,\"nodes\":2,\"rank\":1,\"count\":-1"), "'count'" },
        { RECORD, RECORD_OF(STAY "\"round\":0,\"nodes\":2,\"rank\":1,\"count\":1000000001"), "'count'" },
        { RECORD, RECORD_OF(STAY "\"round\":0,\"nodes\":2,\"rank\":1,\"count\":" HIGHEST), "'count'" },
        { RECORD, RECORD_OF(STAY "\"round\":9007199254740993"), "'round'" },
        { RECORD, RECORD_OF(STAY "\"round\":0,\"nodes\":2,\"rank\":1,\"count\":0"), "'world_size'" },
        { RECORD, RECORD_OF(STAY "\"round\":0,\"nodes\":2,\"rank\":1,\"count\":0,\"world_size\":0"), "'world_size'" },
        { RECORD, RECORD_BY("\"x\":1", JOIN), "'size'" },
        { RECORD, RECORD_BY(SELF("0", "0", "0"), JOIN), "'size'" },
        { RECORD, RECORD_BY(SELF("1048577", "0", "0"), JOIN), "'size'" },
        { RECORD, RECORD_BY(SELF("1", "-1", "0"), JOIN), "'max_restarts'" },
        { RECORD, RECORD_BY(SELF("1", "0", "-1"), JOIN), "'window_s'" },
        { RECORD, RECORD_BY(SELF("1", "0", "1000000001"), JOIN), "'window_s'" },
        { RECORD, RECORD_BY("\"size\":1,\"max_restarts\":0,\"window_s\":0", JOIN), "'role'" },
        { RECORD, RECORD_BY("\"size\":1,\"max_restarts\":0,\"window_s\":0,\"role\":\"" X350 "\"", JOIN), "'role'" },
        { RECORD, RECORD_BY(SELF("1", "0", "0"), JOIN), "'end'" },
        { RECORD, RECORD_END("[]"), "'end'" },
        { RECORD, RECORD_END("\"failed\""), "'end'" },
        { RECORD, RECORD_END("[\"gone\",\"" ID "\",0,0,\"\"]"), "'end'" },
        { RECORD, RECORD_END("[\"\",\"" ID "\",0,0,\"\"]"), "'end'" },
        { RECORD, RECORD_END("[\"failed\",\"ab\",0,0,\"\"]"), "'end'" },
        { RECORD, RECORD_END("[\"failed\",\"" ID "\",-2,0,\"\"]"), "'end'" },
        { RECORD, RECORD_END("[\"failed\",\"" ID "\",0,-1,\"\"]"), "'end'" },
        { RECORD, RECORD_END("[\"failed\",\"" ID "\",0,0]"), "'end'" },
        { RECORD, RECORD_END("[\"failed\",\"" ID "\",0,0,\"" X350 "\"]"), "'end'" },
        { RECORD, RECORD_END("[\"done\",\"" ID "\",-1,0,\"\"]"), NULL },
        { RECORD, RECORD_END("[\"left\",\"" ID "\",0,9,\"because\"]"), NULL },
        { SEAT, "{\"v\":2}", "'rank'" },
        { SEAT, SEAT_OF("-1", "0", "0", "1"), "'rank'" },
        { SEAT, SEAT_OF("16384", "0", "0", "1"), "'rank'" },
        { SEAT, SEAT_OF("\"1\"", "0", "0", "1"), "'rank'" },
        { SEAT, "{\"v\":2,\"rank\":1}", "'base'" },
        { SEAT, SEAT_OF("1", "-1", "0", "1"), "'base'" },
        { SEAT, SEAT_OF("1", "0", "-1", "1"), "'role_base'" },
        { SEAT, SEAT_OF("1", "0", "0", "0"), "'role_size'" },
        { SEAT, SEAT_OF("16383", "0", "0", "1"), NULL },
        { SEAT, SEAT_OF("1", "17179869183", "17179869183", "17179869184"), NULL },
        { SEAT, SEAT_OF("1", "17179869184", "0", "1"), "'base'" },
        { SEAT, SEAT_OF("1", HIGHEST, "0", "1"), "'base'" },
        { SEAT, SEAT_OF("1", "0", "17179869184", "1"), "'role_base'" },
        { SEAT, SEAT_OF("1", "0", "0", "17179869185"), "'role_size'" },
        { PAGE, "{\"v\":2}", "'members'" },
        { PAGE, PAGE_OF("[null,null,null]"), "'members'" }, /* more than are in it */
        { PAGE, PAGE_OF("[[\"" ID "\",\"a\",1]]"), "rank 0" },
        { PAGE, PAGE_OF("[null,[\"" ID "\",\"\",1,1]]"), "rank 1" },
        { PAGE, PAGE_OF("[[\"0000000000000000\",\"a\",1,1]]"), "rank 0" },
        { PAGE, PAGE_OF("[1]"), "rank 0" },
        { PAGE, PAGE_OF("[[\"" ID "\",\"a\",1,1],null]"), NULL },
        { PAGE, PAGE_OF("[]"), NULL },
        { NEWS, NEWS_OF("1", "[[1,0]]", "[]", NEWS_END), "'ranks'" },
        { NEWS, NEWS_OF("2", "[[1,1],[2,2]]", "[]", NEWS_END), "'ranks'" }, /* are one span */
        { NEWS, NEWS_OF("2", "[[3,3],[1,1]]", "[]", NEWS_END), "'ranks'" },
        { NEWS, NEWS_OF("1", "[[-1,0]]", "[]", NEWS_END), "'ranks'" },
        { NEWS, NEWS_OF("1", "[[16384,16384]]", "[]", NEWS_END), "'ranks'" },
        { NEWS, NEWS_OF("1", "[1]", "[]", NEWS_END), "'ranks'" },
        { NEWS, NEWS_OF("1", "0", "[]", NEWS_END), "'ranks'" },
        { NEWS, NEWS_OF("1", "[[0,1]]", "[]", NEWS_END), "'gone'" },
        { NEWS, NEWS_OF("-1", "[]", "[]", NEWS_END), "'gone'" },
        { NEWS, NEWS_OF("1", "[]", "[\"\"]", NEWS_END), "'lost'" },
        { NEWS, NEWS_OF("1", "[]", "[1]", NEWS_END), "'lost'" },
        { NEWS, NEWS_OF("1", "[]", "[\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\"]", NEWS_END), "'lost'" },
        { NEWS, NEWS_OF("0", "[]", "[]", NEWS_MORE("\"apart\":-1")), "'apart'" },
        { NEWS, NEWS_OF("0", "[]", "[]", NEWS_MORE("\"apart\":0,\"pause_ms\":-1")), "'pause_ms'" },
        { NEWS, NEWS_OF("0", "[]", "[]", NEWS_MORE("\"apart\":0,\"pause_ms\":0,\"last_call_ms\":-2")),
          "'last_call_ms'" },
        { NEWS, NEWS_OF("0", "[]", "[]", NEWS_MORE("\"apart\":0,\"pause_ms\":0,\"last_call_ms\":-1,\"grace\":0")),
          "'grace'" },
        { NEWS, NEWS_OF("9", "[[1,1],[3,4]]", "[\"a\"]", NEWS_END), NULL },
        { NEWS, NEWS_OF("0", "[]", "[]", "\"apart\":0"), "'cause'" },
        { NEWS, NEWS_OF("0", "[]", "[]", NEWS_WHY("1", "[\"\",0]")), "'cause'" },
        { NEWS, NEWS_OF("0", "[]", "[]", NEWS_WHY("\"" X350 "\"", "[\"\",0]")), "'cause'" },
        { NEWS, NEWS_OF("0", "[]", "[]", "\"apart\":0," NEWS_WHY("\"\"", "[]")), "'held'" },
        { NEWS, NEWS_OF("0", "[]", "[]", "\"apart\":0," NEWS_WHY("\"\"", "[\"a\",-1]")), "'held'" },
        { NEWS, NEWS_OF("0", "[]", "[]", NEWS_WAITS("600000", "30000")), NULL },
        { NEWS, NEWS_OF("0", "[]", "[]", NEWS_WAITS("600001", "0")), "'held'" },
        { NEWS, NEWS_OF("0", "[]", "[]", NEWS_WAITS("9223372036854775807", "0")), "'held'" },
        { NEWS, NEWS_OF("0", "[]", "[]", NEWS_WAITS("0", "30001")), "'pause_ms'" },
        { CLOSED, "{\"v\":2}", "'node'" },
        { CLOSED, CLOSED_OF("\"cause\":\"\""), "'verdict'" },
        { CLOSED, CLOSED_OF("\"verdict\":\"succeeded?\",\"cause\":\"\""), "'verdict'" },
        { CLOSED, CLOSED_OF("\"verdict\":\"failed\""), "'cause'" },
        { CLOSED, CLOSED_OF("\"verdict\":\"failed\",\"cause\":\"" X350 "\""), "'cause'" },
        { CLOSED, CLOSED_OF("\"verdict\":\"\",\"cause\":\"\""), NULL },
        { MARK, "{\"v\":2,\"node\":\"1\"}", "'node'" },
        { MASTER, "{\"v\":2,\"world\":\"" ID "\",\"addr\":\"a\",\"port\":0}", "'port'" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_error error = { 0 };
        int rc = read_as(rows[i].what, mu_slice_str(rows[i].text), &error);

        if (rc != (rows[i].why == NULL ? 0 : MUSTER_ERDZV_STATE))
            fail_msg("%s: %d %s", rows[i].text, rc, error.text);
        if (rows[i].why != NULL &&
            (strstr(error.text, rows[i].why) == NULL || strstr(error.text, names[rows[i].what]) == NULL))
            fail_msg("%s: %s", rows[i].text, error.text);
    }
}

static void a_page_that_is_none_of_the_worlds_is_refused(void **state)
{
    struct mu_fold_members members = { .world = 0 };
    struct mu_slice page = mu_slice_str(PAGE_OF("[[\"" ID "\",\"a\",1,1]]"));

    (void)state;
    assert_int_equal(mu_fold_members_init(&members, 1, 2), 0);
    assert_int_equal(mu_fold_members_read_page(&members, 1, page, NULL), MUSTER_ERDZV_STATE);
    assert_int_equal(mu_fold_members_read_page(&members, SIZE_MAX / 64, page, NULL), MUSTER_ERDZV_STATE);
    assert_int_equal(mu_fold_members_read_page(&members, 0, page, NULL), 0);
    mu_fold_members_done(&members);
}

static void what_is_too_large_is_neither_written_nor_read(void **state)
{
    char *large = calloc(MU_FOLD_VALUE_MAX + 2, 1);
    struct mu_fold_member one = { 1, { mu_slice(large, MU_FOLD_VALUE_MAX), 1, 1 } };
    struct mu_buf bytes = { 0 };

    (void)state;
    assert_non_null(large);
    memset(large, 'x', MU_FOLD_VALUE_MAX);
    assert_int_equal(mu_fold_page_write(&one, 1, &bytes), MUSTER_ELIMIT);
    assert_int_equal(bytes.len, 0);
    memset(large, ' ', MU_FOLD_VALUE_MAX + 1);
    for (enum what what = RECORD; what < WHATS; what++)
        assert_int_equal(read_as(what, mu_slice(large, MU_FOLD_VALUE_MAX + 1), NULL), MUSTER_ERDZV_STATE);
    mu_buf_done(&bytes);
    free(large);
}

/* ---- Without memory ---- */

static int write_all(struct mu_buf *bytes)
{
    static const struct mu_fold_record record = { .name = "a", .end = { .kind = MU_FOLD_END_LEFT, .text = "b" } };
    static const struct mu_fold_world world = {
        .id = 1, .nodes = 1, .first = "a", .why = "b", .charges = { 1, 2 }, .charges_count = 2
    };
    static const struct mu_fold_seat seat = { .rank = 1 };
    static const struct mu_fold_closed closed = { .node = 1, .has_verdict = true, .cause = "c" };
    struct mu_fold_member members[2] = { member(1, "a") };
    struct mu_fold_news news = { .world = 1 };
    int rc = mu_fold_record_write(&record, bytes);

    mu_fold_news_add_gone(&news, 1, mu_slice_str("a"));
    if (rc == 0)
        rc = mu_fold_world_write(&world, bytes);
    if (rc == 0)
        rc = mu_fold_seat_write(&seat, bytes);
    if (rc == 0)
        rc = mu_fold_closed_write(&closed, bytes);
    if (rc == 0)
        rc = mu_fold_news_write(&news, bytes);
    if (rc == 0)
        rc = mu_fold_mark_write(1, bytes);
    return rc == 0 ? mu_fold_page_write(members, 2, bytes) : rc;
}

static void missing_memory_is_told(void **state)
{
    struct mu_fold_members members = { .world = 0 };
    struct mu_buf page = { 0 };
    json_malloc_t allocate;
    json_free_t release;

    (void)state;
    json_get_alloc_funcs(&allocate, &release);
    json_set_alloc_funcs(malloc, free); /* those that can fail here */
    FOR_EACH_FAILURE (nth) {
        struct mu_buf bytes = { 0 };
        int rc = write_all(&bytes);

        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        mu_buf_done(&bytes);
    }
    assert_int_equal(write_all(&page), 0);
    FOR_EACH_FAILURE (nth) {
        struct mu_fold_members fresh = { .world = 0 };
        int rc = mu_fold_members_init(&fresh, 1, 2);

        if (rc == 0)
            rc = mu_fold_members_read_page(&fresh, 0, mu_buf_slice(&page), NULL);
        assert_true(fail_alloc_hit() ? rc == MUSTER_ENOMEM || rc == MUSTER_ERDZV_STATE /* "invalid token" */ : rc == 0);
        mu_fold_members_done(&fresh);
    }
    assert_int_equal(mu_fold_members_init(&members, 7, 1), 0);
    fail_alloc_at(1);
    assert_int_equal(mu_fold_members_init(&members, 8, 2), MUSTER_ENOMEM);
    fail_alloc_at(2);
    assert_int_equal(mu_fold_members_init(&members, 8, 2), MUSTER_ENOMEM);
    fail_alloc_at(0);
    assert_true(members.world == 7 && members.count == 1); /* as they were */
    mu_fold_members_done(&members);
    mu_buf_done(&page);
    json_set_alloc_funcs(allocate, release);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_is_read_as_it_was_written),
        cmocka_unit_test(each_end_is_read_as_it_was_written),
        cmocka_unit_test(a_world_is_read_as_it_was_written),
        cmocka_unit_test(names_in_a_world_are_read_as_plain_words),
        cmocka_unit_test(a_seat_is_read_as_it_was_written),
        cmocka_unit_test(pages_are_read_as_they_were_written_and_know_ranks),
        cmocka_unit_test(news_are_read_as_they_were_written),
        cmocka_unit_test(news_name_so_many_spans_and_nodes),
        cmocka_unit_test(whatever_is_in_them_worlds_and_news_are_small),
        cmocka_unit_test(marks_and_masters_are_read_as_they_were_written),
        cmocka_unit_test(the_end_of_a_job_is_read_as_it_was_written),
        cmocka_unit_test(unknown_members_are_skipped),
        cmocka_unit_test(other_versions_are_refused_by_name),
        cmocka_unit_test(what_is_wrong_is_refused_by_name),
        cmocka_unit_test(a_page_that_is_none_of_the_worlds_is_refused),
        cmocka_unit_test(what_is_too_large_is_neither_written_nor_read),
        cmocka_unit_test(missing_memory_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
