/* What the nodes of an etcd-v3 rendezvous write into etcd: what is written is read again, and nothing else is. */
#include "pure.h"
#include "rdzv/fold_doc.h"

#include <stdio.h>
#include <stdlib.h>

static struct mu_fold_member member(uint64_t id, const char *name)
{
    return (struct mu_fold_member){ id, { mu_slice_str(name), 77, 0x4D100000 } };
}

static void a_record_is_read_as_it_was_written(void **state)
{
    struct mu_fold_record record = { .name = "host-\xc3\xa4",
                                     .pid = 4711,
                                     .local_id = 0x4D112345,
                                     .nodes_min = 2,
                                     .nodes_max = 4,
                                     .seq = 9,
                                     .joining = true,
                                     .world = 0xfedcba9876543210 },
                          again = { .pid = 0 };
    struct mu_buf bytes = { 0 };

    (void)state;
    for (int i = 0; i < 2; i++) {
        record.joining = i == 0;
        assert_int_equal(mu_fold_record_write(&record, &bytes), 0);
        assert_int_equal(mu_fold_record_read(mu_buf_slice(&bytes), &again, NULL), 0);
        assert_string_equal(again.name, record.name);
        assert_true(again.pid == record.pid && again.local_id == record.local_id && again.seq == record.seq);
        assert_true(again.nodes_min == 2 && again.nodes_max == 4 && again.world == record.world);
        assert_true(again.joining == record.joining);
    }
    mu_buf_done(&bytes);
}

static void a_world_is_read_as_it_was_written_and_knows_ranks(void **state)
{
    struct mu_fold_member members[] = { member(30, "c"), member(10, "a"), member(20, "b") };
    struct mu_fold_world world = { .id = 5, .round = 7, .hold_ms = 2000, .members = members, .count = 3 };
    struct mu_fold_world again = { .id = 0 };

    (void)state;
    assert_int_equal(mu_fold_world_write(&world), 0);
    assert_int_equal(mu_fold_world_read(mu_buf_slice(&world.bytes), &again, NULL), 0);
    assert_true(again.id == 5 && again.round == 7 && again.hold_ms == 2000 && again.count == 3);
    assert_true(mu_slice_equal(mu_buf_slice(&again.bytes), mu_buf_slice(&world.bytes)));
    assert_true(mu_slice_equal(again.members[1].node.name, mu_slice_str("a")));
    assert_true(mu_fold_world_rank(&again, 30) == 0 && mu_fold_world_rank(&again, 10) == 1);
    assert_true(mu_fold_world_rank(&again, 20) == 2 && mu_fold_world_rank(&again, 40) == -1);
    mu_buf_done(&world.bytes);
    mu_fold_world_done(&again);
    assert_true(mu_fold_world_rank(&again, 30) == -1);
}

static void news_are_read_as_they_were_written(void **state)
{
    uint32_t gone[] = { 0, 3, 17 };
    struct mu_fold_news news = { .world = 5,
                                 .gone = gone,
                                 .gone_count = 3,
                                 .waiting = 2,
                                 .spares = 1,
                                 .joined = 4,
                                 .apart = 1,
                                 .last_call_ms = -1,
                                 .grace = true },
                        again = { .world = 0 };
    struct mu_buf bytes = { 0 };

    (void)state;
    assert_int_equal(mu_fold_news_write(&news, &bytes), 0);
    assert_int_equal(mu_fold_news_read(mu_buf_slice(&bytes), &again, NULL), 0);
    assert_true(again.world == 5 && again.waiting == 2 && again.spares == 1 && again.joined == 4 && again.apart == 1);
    assert_true(again.last_call_ms == -1 && again.grace && again.gone_count == 3);
    for (int64_t rank = 0; rank < 20; rank++)
        assert_true(mu_fold_news_gone(&again, rank) == (rank == 0 || rank == 3 || rank == 17));
    mu_fold_news_done(&again);
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

/* Of later versions we read what we know. */
static void unknown_members_are_skipped(void **state)
{
    uint64_t node = 0;

    (void)state;
    assert_int_equal(
        mu_fold_mark_read(mu_slice_str("{\"v\":2,\"node\":\"000000000000000f\",\"more\":[1,{\"a\":2}]}"), &node, NULL),
        0);
    assert_true(node == 15);
}

static void what_is_wrong_is_refused_by_name(void **state)
{
    static const struct {
        const char *text, *why;
    } worlds[] = {
        { "", "byte" },
        { "[]", "'v'" },
        { "{\"v\":0}", "'v'" },
        { "{\"v\":1}", "'world'" },
        { "{\"v\":1,\"world\":\"0000000000000000\"}", "'world'" },
        { "{\"v\":1,\"world\":\"00000000000000AB\"}", "'world'" },
        { "{\"v\":1,\"world\":\"00000000000000ab\",\"round\":-1}", "'round'" },
        { "{\"v\":1,\"world\":\"00000000000000ab\",\"round\":0,\"hold_ms\":99999999}", "'hold_ms'" },
        { "{\"v\":1,\"world\":\"00000000000000ab\",\"round\":0,\"hold_ms\":0}", "'members'" },
        { "{\"v\":1,\"world\":\"00000000000000ab\",\"round\":0,\"hold_ms\":0,\"members\":[]}", "'members'" },
        { "{\"v\":1,\"world\":\"00000000000000ab\",\"round\":0,\"hold_ms\":0,\"members\":[[\"0000000000000001\","
          "\"a\",1]]}",
          "member 0" },
        { "{\"v\":1,\"world\":\"00000000000000ab\",\"round\":0,\"hold_ms\":0,\"members\":[[\"0000000000000001\",\"\","
          "1,1]]}",
          "member 0" },
        { "{\"v\":1,\"world\":\"00000000000000ab\",\"round\":0,\"hold_ms\":0,\"members\":[[\"0000000000000001\","
          "\"a\",1,1],"
          "[\"0000000000000001\",\"b\",1,1]]}",
          "twice" },
    };
    struct mu_fold_world world = { .id = 0 };
    struct muster_error error = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++) {
        assert_int_equal(mu_fold_world_read(mu_slice_str(worlds[i].text), &world, &error), MUSTER_ERDZV_STATE);
        assert_non_null(strstr(error.text, worlds[i].why));
        assert_true(world.id == 0 && world.members == NULL);
    }
}

static void news_of_ranks_that_do_not_rise_are_refused(void **state)
{
    static const char *const texts[] = {
        "{\"v\":1,\"world\":\"00000000000000ab\",\"gone\":[1,1],\"waiting\":0,\"spares\":0,\"joined\":0,"
        "\"last_call_ms\":-1,\"grace\":false}",
        "{\"v\":1,\"world\":\"00000000000000ab\",\"gone\":[-1],\"waiting\":0,\"spares\":0,\"joined\":0,"
        "\"last_call_ms\":-1,\"grace\":false}",
        "{\"v\":1,\"world\":\"00000000000000ab\",\"gone\":[99999],\"waiting\":0,\"spares\":0,\"joined\":0,"
        "\"last_call_ms\":-1,\"grace\":false}",
        "{\"v\":1,\"world\":\"00000000000000ab\",\"gone\":[],\"waiting\":0,\"spares\":0,\"joined\":0,"
        "\"last_call_ms\":-1,\"grace\":0}",
        "{\"v\":1,\"world\":\"00000000000000ab\",\"gone\":[],\"waiting\":0,\"spares\":0,\"joined\":0,\"apart\":-1,"
        "\"last_call_ms\":-1,\"grace\":false}",
    };
    struct mu_fold_news news = { .world = 0 };

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_int_equal(mu_fold_news_read(mu_slice_str(texts[i]), &news, NULL), MUSTER_ERDZV_STATE);
}

static void what_is_too_large_is_neither_written_nor_read(void **state)
{
    enum { COUNT = 6000 };
    struct mu_fold_member *members = calloc(COUNT, sizeof *members);
    char name[MU_FOLD_NAME_MAX + 1], *large = calloc(MU_FOLD_VALUE_MAX + 2, 1);
    struct mu_fold_world world = { .id = 5, .members = members, .count = COUNT };

    (void)state;
    assert_true(members != NULL && large != NULL);
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    for (size_t i = 0; i < COUNT; i++)
        members[i] = member(i + 1, name);
    assert_int_equal(mu_fold_world_write(&world), MUSTER_ELIMIT);
    memset(large, ' ', MU_FOLD_VALUE_MAX + 1);
    assert_int_equal(mu_fold_world_read(mu_slice(large, MU_FOLD_VALUE_MAX + 1), &world, NULL), MUSTER_ERDZV_STATE);
    mu_buf_done(&world.bytes);
    free(members);
    free(large);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_is_read_as_it_was_written),
        cmocka_unit_test(a_world_is_read_as_it_was_written_and_knows_ranks),
        cmocka_unit_test(news_are_read_as_they_were_written),
        cmocka_unit_test(marks_and_masters_are_read_as_they_were_written),
        cmocka_unit_test(unknown_members_are_skipped),
        cmocka_unit_test(what_is_wrong_is_refused_by_name),
        cmocka_unit_test(news_of_ranks_that_do_not_rise_are_refused),
        cmocka_unit_test(what_is_too_large_is_neither_written_nor_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
