/* The board of those who wait. */
#include "pure.h"
#include "rdzv/notice_board.h"

#include <stdio.h>

static struct mu_notice_board_text store; /* what is in the store */
static bool missing;                      /* the key is not there */

static void begin(struct mu_notice_board *board, const char *run_id, const char *name, int64_t min, int64_t max)
{
    mu_notice_board_begin(board, run_id, name, min, max, 0);
}

/* One compare-and-set, as PyTorch's store does it. */
static void write_if(struct mu_notice_board *board, const struct mu_notice_board_text *wanted)
{
    bool same = store.len == board->now.len && memcmp(store.bytes, board->now.bytes, store.len) == 0;

    if (missing ? board->now.len == 0 : same) {
        store = *wanted;
        missing = false;
    }
}

static void beat(struct mu_notice_board *board, uint64_t now_ms)
{
    for (unsigned tries = 0; tries < 3 && mu_notice_board_is_due(board, now_ms); tries++) {
        struct mu_notice_board_text wanted;

        mu_notice_board_post(board, now_ms, &wanted);
        write_if(board, &wanted);
        if (missing)
            (void)mu_notice_board_see(board, mu_slice(board->now.bytes, board->now.len), &wanted);
        else
            (void)mu_notice_board_see(board, mu_slice(store.bytes, store.len), &wanted);
    }
}

static const char *note(const struct mu_notice_board *board)
{
    static char text[MU_NOTICE_BOARD_NOTE_MAX];
    const char *found = mu_notice_board_note(board, text);

    return found != NULL ? found : "";
}

static int setup(void **state)
{
    (void)state;
    store.len = 0;
    missing = true;
    return 0;
}

static void nodes_with_another_id_are_named(void **state)
{
    struct mu_notice_board a, b;

    (void)state;
    begin(&a, "job7", "node1", 4, 4);
    begin(&b, "job8", "node7", 4, 4);
    beat(&a, 1000);
    beat(&b, 1000);
    assert_string_equal(note(&a), "");
    beat(&a, 3000);
    beat(&b, 3000);
    assert_string_equal(note(&a), "node7 waits at the same endpoint for rendezvous 'job8'");
    assert_string_equal(note(&b), "node1 waits at the same endpoint for rendezvous 'job7'");
}

static void another_rendezvous_is_told_of_once_and_as_it_was_written(void **state)
{
    struct mu_notice_board a, b, c;

    (void)state;
    begin(&a, "job7", "node1", 4, 4);
    begin(&b, "my 100%25 job", "node 7", 4, 4);
    begin(&c, "my 100%25 job", "node 7", 2, 2);
    for (uint64_t ms = 1000; ms <= 3000; ms += 2000) {
        beat(&b, ms);
        beat(&c, ms);
        beat(&a, ms);
    }
    beat(&a, 5000);
    assert_string_equal(note(&a), "node 7 waits at the same endpoint for rendezvous 'my 100%25 job'");
}

static void nodes_with_another_nnodes_are_named(void **state)
{
    struct mu_notice_board a, b;

    (void)state;
    begin(&a, "job", "node1", 4, 4);
    begin(&b, "job", "node7", 2, 3);
    for (uint64_t ms = 1000; ms <= 3000; ms += 2000) {
        beat(&a, ms);
        beat(&b, ms);
    }
    beat(&a, 5000);
    assert_string_equal(note(&a), "node7 was started with --nnodes 2:3, this node with --nnodes 4");
    assert_string_equal(note(&b), "node1 was started with --nnodes 4, this node with --nnodes 2:3");
}

static void nodes_that_agree_have_one_line_and_no_note(void **state)
{
    struct mu_notice_board boards[3];

    (void)state;
    for (size_t i = 0; i < 3; i++)
        begin(&boards[i], "job", i == 0 ? "a" : i == 1 ? "b" : "c", 4, 4);
    for (uint64_t ms = 1000; ms <= 9000; ms += 2000)
        for (size_t i = 0; i < 3; i++)
            beat(&boards[i], ms);
    for (size_t i = 0; i < 3; i++)
        assert_string_equal(note(&boards[i]), "");
    store.bytes[store.len] = '\0';
    assert_non_null(strstr(store.bytes, "job 4 4 "));
    assert_ptr_equal(strchr(store.bytes, '\n'), store.bytes + store.len - 1);
}

static void what_a_killed_node_left_is_not_believed(void **state)
{
    struct mu_notice_board killed, other;

    (void)state;
    begin(&killed, "old", "node9", 2, 2);
    beat(&killed, 1000);
    begin(&other, "job", "node1", 2, 2);
    for (uint64_t ms = 1000; ms <= 9000; ms += 2000)
        beat(&other, ms);
    assert_string_equal(note(&other), "");
}

static void who_waits_no_longer_takes_its_line_away(void **state)
{
    struct mu_notice_board_text wanted;
    struct mu_notice_board a, b;

    (void)state;
    begin(&a, "job7", "node1", 2, 2);
    begin(&b, "job8", "node7", 2, 2);
    beat(&a, 1000);
    beat(&b, 1000);
    assert_true(mu_notice_board_end(&b, &wanted));
    write_if(&b, &wanted);
    assert_false(mu_notice_board_end(&b, &wanted));
    assert_string_equal(note(&b), "");
    store.bytes[store.len] = '\0';
    assert_string_equal(store.bytes, "job7 2 2 node1 1\n");
    begin(&b, "job8", "node7", 2, 2);
    assert_false(mu_notice_board_end(&b, &wanted)); /* a short wait leaves nothing behind */
}

static void control_characters_of_an_id_are_shown_as_codes(void **state)
{
    struct mu_notice_board a, b;

    (void)state;
    begin(&a, "job", "node1", 2, 2);
    begin(&b, "a b\n%\x1b[2J", "n\xc3\xa9", 2, 2);
    beat(&a, 1000);
    beat(&b, 1000);
    beat(&a, 3000);
    assert_string_equal(note(&a), "n\xC3\xA9 waits at the same endpoint for rendezvous 'a b%0A%%1B[2J'");
}

static void the_board_is_bounded_and_the_newest_stay(void **state)
{
    struct mu_notice_board boards[40];
    size_t lines = 0;

    (void)state;
    for (size_t i = 0; i < 40; i++) {
        char id[250];

        memset(id, 'x', sizeof id);
        (void)snprintf(id + 200, sizeof id - 200, "%zu", i);
        begin(&boards[i], id, "node", 2, 2);
        beat(&boards[i], 1000);
    }
    for (size_t i = 0; i < store.len; i++)
        lines += store.bytes[i] == '\n';
    assert_int_equal(lines, MU_NOTICE_BOARD_LINES_MAX);
    store.bytes[store.len] = '\0';
    assert_non_null(strstr(store.bytes, "xx39 2 2 node"));
}

static void nonsense_is_passed_over_and_swept_away(void **state)
{
    static const char text[] = "x\n\n a b c d\nid 2 2 n 1 more\nid 2 2 n x\nid 2 -2 n 1\n\x1b[2J 2 2 n 1\nno end";
    struct mu_notice_board a;

    (void)state;
    memcpy(store.bytes, text, sizeof text - 1);
    store.len = sizeof text - 1;
    missing = false;
    begin(&a, "job", "node1", 2, 2);
    beat(&a, 1000);
    beat(&a, 3000);
    assert_string_equal(note(&a), "");
    store.bytes[store.len] = '\0';
    assert_string_equal(store.bytes, "job 2 2 node1 3\n");
}

static void an_id_that_is_too_long_is_left_out(void **state)
{
    struct mu_notice_board a;
    char id[300];

    (void)state;
    memset(id, 'x', sizeof id - 1);
    id[sizeof id - 1] = '\0';
    begin(&a, id, "node1", 2, 2);
    assert_false(mu_notice_board_is_due(&a, 10000));
    assert_string_equal(note(&a), "");
}

static void a_board_that_was_lost_is_begun_anew(void **state)
{
    struct mu_notice_board a;

    (void)state;
    begin(&a, "job", "node1", 2, 2);
    beat(&a, 1000);
    store.len = 0;
    missing = true;
    beat(&a, 3000);
    store.bytes[store.len] = '\0';
    assert_non_null(strstr(store.bytes, "job 2 2 node1 "));
}

#define TEST(function) cmocka_unit_test_setup(function, setup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(nodes_with_another_id_are_named),
        TEST(another_rendezvous_is_told_of_once_and_as_it_was_written),
        TEST(nodes_with_another_nnodes_are_named),
        TEST(nodes_that_agree_have_one_line_and_no_note),
        TEST(what_a_killed_node_left_is_not_believed),
        TEST(who_waits_no_longer_takes_its_line_away),
        TEST(control_characters_of_an_id_are_shown_as_codes),
        TEST(the_board_is_bounded_and_the_newest_stay),
        TEST(nonsense_is_passed_over_and_swept_away),
        TEST(an_id_that_is_too_long_is_left_out),
        TEST(a_board_that_was_lost_is_begun_anew),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
