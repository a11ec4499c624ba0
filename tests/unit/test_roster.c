/* Who is in a static group: announcements, counts, goodbyes, and what rank 0 tells the others. */
#include "failmalloc.h"
#include "handler/roster.h"
#include "pure.h"

#include <stdio.h>
#include <stdlib.h>

static struct mu_roster roster;

static int set_up(void **state)
{
    (void)state;
    mu_roster_init(&roster);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    mu_roster_done(&roster);
    return 0;
}

static void announce(uint64_t connection, const char *text)
{
    assert_int_equal(mu_roster_announced(&roster, connection, mu_slice_str(text)), 0);
}

static void a_record_says_who_has_a_rank(void **state)
{
    char record[MU_ROSTER_RECORD_MAX], name[MU_ROSTER_NAME_MAX];
    int64_t pid = 0;

    (void)state;
    mu_roster_record(0xabc, 4711, "node 7", record);
    assert_string_equal(record, "0000000000000abc 4711 node 7");
    assert_true(mu_roster_read_record(mu_slice_str(record), &pid, name));
    assert_int_equal(pid, 4711);
    assert_string_equal(name, "node 7");
}

static void what_is_no_record_is_dropped(void **state)
{
    static const char *const rows[] = { "",       "x",     "a b c",   "a 1", "a 1 ",
                                        "a -1 n", "1 a 1", "x a 1 n", "1 ",  "99999999999999999999999999 a 1 n" };
    char long_name[400] = "1 a 1 ";

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        announce(i + 1, rows[i]);
    memset(long_name + 6, 'n', 300);
    announce(99, long_name);
    for (uint64_t connection = 1; connection < 100; connection++)
        assert_null(mu_roster_take(&roster, connection));
}

static void names_do_not_reach_a_terminal_raw(void **state)
{
    char name[MU_ROSTER_NAME_MAX];
    int64_t pid;

    (void)state;
    assert_true(mu_roster_read_record(mu_slice_str("a 1 n\x1b[2J\n"), &pid, name));
    assert_string_equal(name, "n?[2J?");
}

static void a_node_is_known_by_its_connection(void **state)
{
    struct mu_roster_node *node;

    (void)state;
    announce(5, "1 a 7 one");
    announce(6, "2 b 8 two");
    announce(6, "3 c 9 three"); /* each connection has one node */
    mu_roster_counted(&roster, 5, 1);
    mu_roster_counted(&roster, 4, 2); /* of PyTorch */
    mu_roster_counted(&roster, 6, 3);
    assert_int_equal(mu_roster_present(&roster), 3);
    node = mu_roster_take(&roster, 6);
    assert_non_null(node);
    assert_int_equal(node->rank, 2);
    assert_string_equal(node->record, "b 8 two");
    assert_false(node->left);
    free(node);
    assert_int_equal(mu_roster_present(&roster), 2);
    assert_null(mu_roster_take(&roster, 6));
    assert_null(mu_roster_take(&roster, 4));
}

static void a_goodbye_is_remembered_and_one_that_was_not_counted_is_not_missed(void **state)
{
    struct mu_roster_node *node;

    (void)state;
    announce(5, "1 a 7 one");
    announce(5, "left");
    announce(9, "left");
    node = mu_roster_take(&roster, 5);
    assert_true(node->left);
    free(node);
    mu_roster_counted(&roster, 1, 1);
    assert_int_equal(mu_roster_present(&roster), 1);
}

static void nodes_are_told_by_rank_whoever_came_first(void **state)
{
    static const char *const lines[] = { "2 a 1 n2", "0 a 1 n0", "3 a 1 n3", "1 a 1 n1" };
    struct mu_roster_progress told;

    (void)state;
    for (uint64_t i = 0; i < COUNT(lines); i++) {
        announce(i + 1, lines[i]);
        mu_roster_counted(&roster, i + 1, (int64_t)i + 1);
    }
    mu_roster_progress(&roster, false, &told);
    assert_int_equal(told.nodes_count, COUNT(lines));
    for (size_t i = 0; i < told.nodes_count; i++)
        assert_int_equal(told.nodes[i].name[1] - '0', i);
}

static void progress_is_read_as_it_was_written(void **state)
{
    struct mu_roster_progress told, heard;
    char text[MU_ROSTER_TEXT_MAX];
    size_t len;

    (void)state;
    for (unsigned i = 0; i < MU_ROSTER_SHOWN_MAX + 4; i++) {
        char line[32];

        (void)snprintf(line, sizeof line, "%u a %u n%u", i, i + 100, i);
        announce(i + 1, line);
        mu_roster_counted(&roster, i + 1, i + 1);
    }
    announce(99, "99 a 1 not counted yet");
    for (int open = 0; open < 2; open++) {
        mu_roster_progress(&roster, open != 0, &told);
        len = mu_roster_write_progress(&told, text);
        assert_true(mu_roster_read_progress(mu_slice(text, len), &heard));
        assert_int_equal(heard.open, open != 0);
        assert_int_equal(heard.joined, MU_ROSTER_SHOWN_MAX + 4);
        assert_int_equal(heard.nodes_count, MU_ROSTER_SHOWN_MAX);
        assert_string_equal(heard.nodes[2].name, "n2");
        assert_int_equal(heard.nodes[2].pid, 102);
    }
    for (size_t cut = 0; cut < len; cut++)
        (void)mu_roster_read_progress(mu_slice(text, cut), &heard); /* no more than what is there is read */
}

static void what_is_no_progress_is_refused(void **state)
{
    static const char *const rows[] = { "x", "1", "1 ", "1 x", "1 2 3", "1 2\n", "1 2\nx", "1 2\n3", "1 2\n\n3 a" };
    struct mu_roster_progress heard;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_false(mu_roster_read_progress(mu_slice_str(rows[i]), &heard));
}

static void without_memory_a_node_has_no_name(void **state)
{
    (void)state;
    FOR_EACH_FAILURE (n) {
        int rc = mu_roster_announced(&roster, 1, mu_slice_str("1 a 7 one"));

        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
    }
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_record_says_who_has_a_rank),
        TEST(what_is_no_record_is_dropped),
        TEST(names_do_not_reach_a_terminal_raw),
        TEST(a_node_is_known_by_its_connection),
        TEST(a_goodbye_is_remembered_and_one_that_was_not_counted_is_not_missed),
        TEST(nodes_are_told_by_rank_whoever_came_first),
        TEST(progress_is_read_as_it_was_written),
        TEST(what_is_no_progress_is_refused),
        TEST(without_memory_a_node_has_no_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
