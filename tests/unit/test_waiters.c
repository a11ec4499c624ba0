/* Who waits for a round, for people. */
#include "pure.h"
#include "rdzv/waiters.h"

#include <stdio.h>

static struct mu_waiters crowd;
static const struct mu_fold_record own = { .name = "me", .nodes_min = 3, .nodes_max = 3, .joining = true };

static struct mu_waiters_item node(uint64_t id, const char *name, int64_t nodes_min, int64_t nodes_max)
{
    struct mu_waiters_item item = {
        .id = id, .record = { .nodes_min = nodes_min, .nodes_max = nodes_max, .seq = 1, .joining = true }
    };

    (void)snprintf(item.record.name, sizeof item.record.name, "%s", name);
    return item;
}

static struct mu_waiters_item mark(const char *run_id, const char *name)
{
    struct mu_waiters_item item = node(0, name, 2, 2);

    item.run_id = mu_slice_str(run_id);
    return item;
}

static const char *note(void)
{
    static char text[MU_WAITERS_NOTE_MAX];

    return mu_waiters_note(&crowd, text);
}

static const char *names(void)
{
    static char text[MU_WAITERS_NAMES_MAX * (MU_FOLD_NAME_MAX + 1) + 1];
    size_t used = 0;

    text[0] = '\0';
    for (size_t i = 0; i < crowd.count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%.*s ", (int)crowd.nodes[i].name.len,
                                 crowd.nodes[i].name.data);
    return text;
}

static int set_up(void **state)
{
    (void)state;
    crowd = (struct mu_waiters){ .count = 0 };
    return 0;
}

static void it_looks_around_before_each_line_and_before_the_end(void **state)
{
    static const struct {
        uint64_t waited_ms, join_ms, next_ms;
    } cases[] = {
        { 0, 600000, 2000 },        { 2000, 600000, 4000 },     { 4000, 600000, 9000 },    { 9000, 600000, 19000 },
        { 19000, 600000, 39000 },   { 39000, 600000, 59000 },   { 59000, 600000, 119000 }, { 119000, 600000, 179000 },
        { 119500, 600000, 179000 }, { 540000, 600000, 599000 }, { 0, 1000, 500 },          { 500, 1000, 2000 },
        { 0, 3000, 1500 },          { 2000, 6000, 4000 },       { 4000, 6000, 5000 },      { 5000, 6000, 9000 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(mu_waiters_next_ms(cases[i].waited_ms, cases[i].join_ms), cases[i].next_ms);
}

static void those_who_have_come_are_named_in_their_order(void **state)
{
    struct mu_waiters_item items[] = { node(5, "b", 3, 3), node(4, "a", 2, 4), node(3, "c", 3, 3), node(5, "b", 3, 3) };

    (void)state;
    items[2].record.joining = false; /* it is in a round that runs */
    items[3].record.seq = 2;         /* the same node under a newer lease */
    items[3].record.pid = 77;
    assert_true(mu_waiters_see(&crowd, &own, items, 4));
    assert_string_equal(names(), "a b ");
    assert_int_equal(crowd.nodes[1].pid, 77);
    assert_false(mu_waiters_see(&crowd, &own, items, 4)); /* nothing is new */
    assert_null(note());
    assert_true(mu_waiters_see(&crowd, &own, items, 0));
    assert_string_equal(names(), "");
}

static void no_more_are_named_than_there_is_room_for(void **state)
{
    struct mu_waiters_item items[MU_WAITERS_NAMES_MAX + 2];

    (void)state;
    for (size_t i = 0; i < MU_WAITERS_NAMES_MAX + 2; i++)
        items[i] = node(i + 1, "x", 3, 3);
    assert_true(mu_waiters_see(&crowd, &own, items, MU_WAITERS_NAMES_MAX + 2));
    assert_int_equal(crowd.count, MU_WAITERS_NAMES_MAX);
}

static void who_contradicts_has_not_come_and_is_named_with_its_limits(void **state)
{
    struct mu_waiters_item items[] = { node(1, "me", 3, 3), node(2, "odd", 4, 4), node(3, "twin", 4, 4),
                                       node(4, "range", 4, 8), node(5, "fits", 1, 8) };

    (void)state;
    assert_true(mu_waiters_see(&crowd, &own, items, 5));
    assert_string_equal(names(), "me fits ");
    assert_string_equal(note(), "odd was started with --nnodes 4, this node with --nnodes 3; "
                                "range was started with --nnodes 4:8, this node with --nnodes 3");
}

/* The classic rendezvous lets in whoever comes. */
static void where_any_limits_get_in_all_are_named_and_other_limits_are_told(void **state)
{
    struct mu_waiters_item items[] = { node(1, "me", 3, 3), node(2, "odd", 4, 4), node(3, "wide", 1, 8),
                                       node(4, "same", 3, 3) };

    (void)state;
    crowd.any_limits = true;
    assert_true(mu_waiters_see(&crowd, &own, items, 4));
    assert_string_equal(names(), "me odd wide same ");
    assert_string_equal(note(), "odd was started with --nnodes 4, this node with --nnodes 3; "
                                "wide was started with --nnodes 1:8, this node with --nnodes 3");
}

static void one_node_is_named_for_all_of_another_rendezvous(void **state)
{
    struct mu_waiters_item items[] = { mark("job8", "a"), mark("job8", "b"), mark("job9", "c") };

    (void)state;
    assert_true(mu_waiters_see(&crowd, &own, items, 3));
    assert_string_equal(note(), "a waits at the same endpoint for rendezvous 'job8'; "
                                "c waits at the same endpoint for rendezvous 'job9'");
}

static void who_contradicts_a_round_that_runs_has_not_come(void **state)
{
    struct mu_waiters_item items[] = { node(1, "me", 3, 3), node(2, "in", 4, 8) };

    (void)state;
    items[1].record.joining = false;
    assert_true(mu_waiters_see(&crowd, &own, items, 2));
    assert_string_equal(names(), "");
    assert_string_equal(note(), "in was started with --nnodes 4:8, this node with --nnodes 3");
}

static void others_are_named_with_their_rendezvous_and_disturb_no_terminal(void **state)
{
    struct mu_waiters_item items[] = { node(1, "odd", 4, 4), mark("job8", "node7"), mark("a\033[2Jb", "n\n"),
                                       mark("c", "n"), mark("d", "n") };

    (void)state;
    assert_true(mu_waiters_see(&crowd, &own, items, 5));
    assert_string_equal(note(), "odd was started with --nnodes 4, this node with --nnodes 3; "
                                "node7 waits at the same endpoint for rendezvous 'job8'; "
                                "n? waits at the same endpoint for rendezvous 'a?[2Jb'; "
                                "n waits at the same endpoint for rendezvous 'c'");
}

static void long_texts_are_cut(void **state)
{
    struct mu_waiters_item items[3];
    char text[MU_FOLD_NAME_MAX + 1];

    (void)state;
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    for (size_t i = 0; i < 3; i++)
        items[i] = mark(text + i, text);
    assert_true(mu_waiters_see(&crowd, &own, items, 3));
    assert_true(strlen(note()) < MU_WAITERS_CLAUSES_SIZE);
}

#define TEST(name) cmocka_unit_test_setup(name, set_up)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(it_looks_around_before_each_line_and_before_the_end),
        TEST(those_who_have_come_are_named_in_their_order),
        TEST(no_more_are_named_than_there_is_room_for),
        TEST(who_contradicts_has_not_come_and_is_named_with_its_limits),
        TEST(where_any_limits_get_in_all_are_named_and_other_limits_are_told),
        TEST(one_node_is_named_for_all_of_another_rendezvous),
        TEST(who_contradicts_a_round_that_runs_has_not_come),
        TEST(others_are_named_with_their_rendezvous_and_disturb_no_terminal),
        TEST(long_texts_are_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
