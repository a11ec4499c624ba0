/* A node's wait for a rendezvous: when it is told, and with what. */
#include "cli/waiting.h"
#include "pure.h"

enum { START_MS = 7000000 };

static const struct mu_join_about about = { .backend = "c10d", .endpoint = "n1:1", .run_id = "job", .node = "n1" };
static struct mu_waiting waiting;
static struct mu_text text;

static int setup(void **state)
{
    (void)state;
    waiting = (struct mu_waiting){ 0 };
    mu_waiting_begin(&waiting, START_MS);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    mu_waiting_done(&waiting);
    mu_text_done(&text);
    return 0;
}

static void progress(uint64_t after_ms, int64_t joined, const char *note)
{
    const struct muster_rdzv_progress now = {
        .joined = joined, .min_nodes = 4, .max_nodes = 4, .last_call_left_ms = -1, .join_left_ms = 600000
    };
    const struct muster_node nodes[] = { { "a", -1, -1 }, { "b", -1, -1 }, { "c", -1, -1 } };

    mu_waiting_take(&waiting,
                    &(struct muster_rdzv_event){ .type = MUSTER_RDZV_PROGRESS,
                                                 .progress = &now,
                                                 .nodes = nodes,
                                                 .nodes_count = (size_t)joined,
                                                 .note = note },
                    START_MS + after_ms);
}

/* "[line]" if it is by the schedule, "(line)" if it is a change, "" if nothing is due. */
static const char *told(uint64_t after_ms)
{
    struct mu_text line = { .failed = false };
    bool scheduled = false, due = mu_waiting_tell(&waiting, &about, START_MS + after_ms, &line, &scheduled);

    text.buf.len = 0;
    if (due)
        mu_text_add(&text, scheduled ? "[%.*s]" : "(%.*s)", (int)line.buf.len, line.buf.data);
    mu_text_add(&text, "%c", '\0');
    mu_text_done(&line);
    return text.buf.data;
}

static uint64_t due(void)
{
    return mu_waiting_due_ms(&waiting) - START_MS;
}

static void it_is_told_after_5_10_20_40_and_60_s_and_then_every_minute(void **state)
{
    static const uint64_t moments_s[] = { 5, 10, 20, 40, 60, 120, 180, 240 };
    uint64_t at_ms = 0;

    (void)state;
    for (size_t i = 0; i < sizeof moments_s / sizeof moments_s[0]; i++) {
        at_ms = mu_waiting_next_ms(at_ms);
        assert_int_equal(at_ms, moments_s[i] * 1000);
    }
    assert_int_equal(mu_waiting_next_ms(0), 5000);
    assert_int_equal(mu_waiting_next_ms(4999), 5000);
    assert_int_equal(mu_waiting_next_ms(5000), 10000);
    assert_int_equal(mu_waiting_next_ms(59999), 60000);
    assert_int_equal(mu_waiting_next_ms(86400000), 86460000);
}

static void a_line_says_who_is_in_how_many_are_missing_and_until_when(void **state)
{
    (void)state;
    progress(100, 3, NULL);
    assert_int_equal(due(), 1100);
    assert_string_equal(told(1099), "");
    assert_string_equal(told(1100),
                        "(waiting for rendezvous 'job': 3 of 4 nodes joined (a, b, c), 1 more needed; gives up "
                        "in 9 min 59 s)");
    assert_int_equal(due(), 5000);
    assert_string_equal(told(5000),
                        "[waiting for rendezvous 'job': 3 of 4 nodes joined (a, b, c), 1 more needed; gives up "
                        "in 9 min 56 s]");
    assert_int_equal(due(), 10000);
}

static void a_large_group_is_named_in_part_and_counted_whole(void **state)
{
    static const struct muster_node nodes[] = { { "a", -1, -1 }, { "b", -1, -1 }, { "c", -1, -1 },
                                                { "d", -1, -1 }, { "e", -1, -1 }, { "f", -1, -1 },
                                                { "g", -1, -1 }, { "h", -1, -1 }, { "i", -1, -1 } };
    struct muster_rdzv_progress progress = {
        .joined = 30, .min_nodes = 32, .max_nodes = 32, .last_call_left_ms = -1, .join_left_ms = -1
    };
    struct muster_rdzv_event event = {
        .type = MUSTER_RDZV_PROGRESS, .progress = &progress, .nodes = nodes, .nodes_count = 8
    };

    (void)state;
    for (; event.nodes_count <= 9; event.nodes_count++) {
        mu_waiting_take(&waiting, &event, START_MS + 100);
        mu_waiting_status(&waiting, &about, START_MS + 100, &text);
        mu_text_add(&text, "%c", '\0');
        assert_non_null(strstr(text.buf.data, "30 of 32 nodes joined (a, b, c, d, e, f, g, h and 22 more), 2 more"));
        text.buf.len = 0;
    }
}

static void a_wait_of_which_nothing_is_heard_is_told_too(void **state)
{
    (void)state;
    assert_string_equal(told(5000), "[waiting for rendezvous 'job' at n1:1: no answer yet, after 5 s]");
    assert_string_equal(told(5001), "");
}

static void moments_that_were_missed_are_told_once(void **state)
{
    (void)state;
    assert_string_equal(told(47000), "[waiting for rendezvous 'job' at n1:1: no answer yet, after 47 s]");
    assert_int_equal(due(), 60000);
}

static void a_note_is_in_the_first_line_and_not_again(void **state)
{
    (void)state;
    progress(100, 3, "node7 was started with --nnodes 3, this node with --nnodes 4");
    assert_non_null(strstr(told(1100), "; node7 was started with --nnodes 3, this node with --nnodes 4)"));
    assert_non_null(strstr(told(5000), "; node7 was started with --nnodes 3, this node with --nnodes 4]"));
    assert_null(strstr(told(10000), "node7"));
    progress(10100, 3, "node8 waits at the same endpoint for rendezvous 'job8'");
    assert_int_equal(due(), 11100);
    assert_non_null(strstr(told(11100), "node8"));
    assert_non_null(strstr(told(20000), "node8"));
    progress(20100, 3, NULL);
    assert_string_equal(told(21200), "");
}

static void who_does_not_wait_has_nothing_to_tell(void **state)
{
    (void)state;
    progress(100, 3, NULL);
    mu_waiting_end(&waiting);
    assert_int_equal(mu_waiting_due_ms(&waiting), UINT64_MAX);
    assert_string_equal(told(5000), "");
    progress(6000, 2, NULL);
    assert_int_equal(mu_waiting_due_ms(&waiting), UINT64_MAX);
    mu_waiting_begin(&waiting, START_MS + 7000);
    assert_int_equal(due(), 12000);
    assert_string_equal(told(12000), "[waiting for rendezvous 'job' at n1:1: no answer yet, after 5 s]");
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(it_is_told_after_5_10_20_40_and_60_s_and_then_every_minute),
        TEST(a_line_says_who_is_in_how_many_are_missing_and_until_when),
        TEST(a_large_group_is_named_in_part_and_counted_whole),
        TEST(a_wait_of_which_nothing_is_heard_is_told_too),
        TEST(moments_that_were_missed_are_told_once),
        TEST(a_note_is_in_the_first_line_and_not_again),
        TEST(who_does_not_wait_has_nothing_to_tell),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
