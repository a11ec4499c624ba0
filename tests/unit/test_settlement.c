/* Whose fault it was, and what it costs: what members tell each other of the round before. */
#include "agent/settlement.h"
#include "pure.h"

#include <stdio.h>

/* All that a test has made; freed after it. */
static struct mu_settlement made[8];
static size_t made_count;

static int tear_down(void **state)
{
    (void)state;
    for (size_t i = 0; i < made_count; i++)
        mu_vanished_done(&made[i].missing);
    made_count = 0;
    return 0;
}

static struct mu_settlement *nothing(void)
{
    made[made_count] = (struct mu_settlement){ .known = false };
    return &made[made_count++];
}

static struct mu_settlement *of_round(int64_t round, const char *failure, const char *missing)
{
    struct mu_settlement *s = nothing();

    mu_settlement_begin(s, round, 0xab);
    (void)snprintf(s->failure, sizeof s->failure, "%s", failure);
    if (missing != NULL)
        mu_vanished_add(&s->missing, 2, missing, true, false);
    return s;
}

/* What `from` tells is added to `to`. */
static void tell(const struct mu_settlement *from, struct mu_settlement *to)
{
    char text[MU_SETTLEMENT_JSON_MAX];
    size_t len = mu_settlement_write(from, text);
    json_t *json = json_loadb(text, len, 0, NULL);

    assert_non_null(json);
    mu_settlement_add(to, json);
    json_decref(json);
}

static void what_one_member_tells_another_knows(void **state)
{
    struct mu_settlement *from = of_round(3, "rank 12's failure on node3", "node \"9\" \\");
    struct mu_settlement *to = nothing();

    (void)state;
    (void)snprintf(from->loss, sizeof from->loss, "lost node8");
    tell(from, to);
    assert_true(to->known);
    assert_int_equal(to->round, 3);
    assert_int_equal(to->tag, 0xab);
    assert_string_equal(to->failure, from->failure);
    assert_string_equal(to->loss, from->loss);
    assert_int_equal(to->missing.count, 1);
    assert_int_equal(to->missing.members[0].rank, 2);
    assert_string_equal(to->missing.members[0].name, "node \"9\" \\");
    tell(from, to); /* twice is once */
    assert_int_equal(to->missing.count, 1);
}

static void the_latest_round_counts_and_the_first_failure(void **state)
{
    struct mu_settlement *to = of_round(3, "", NULL), *old = of_round(2, "old", "node8"),
                         *same = of_round(3, "one", "node9"), *more = of_round(3, "two", NULL),
                         *later = of_round(4, "", "node7"), *other = of_round(4, "x", "node6");

    (void)state;
    tell(old, to);
    assert_string_equal(to->failure, "");
    tell(same, to);
    tell(more, to);
    assert_string_equal(to->failure, "one");
    assert_int_equal(to->missing.count, 1);
    tell(later, to);
    assert_int_equal(to->round, 4);
    assert_string_equal(to->missing.members[0].name, "node7");
    other->tag = 0xcd; /* of the same number, and another one */
    tell(other, to);
    assert_string_equal(to->failure, "");
    assert_int_equal(to->missing.count, 1);
}

static void there_may_be_nothing_to_tell(void **state)
{
    struct mu_settlement *none = nothing();
    char text[MU_SETTLEMENT_JSON_MAX];

    (void)state;
    assert_int_equal(mu_settlement_write(none, text), 0);
}

static void a_round_without_failure_or_loss_ends_the_claim_of_an_older_one(void **state)
{
    struct mu_settlement *to = of_round(2, "old", "node8"), *calm = of_round(3, "", NULL);

    (void)state;
    tell(calm, to);
    assert_int_equal(to->round, 3);
    assert_string_equal(to->failure, "");
    assert_int_equal(to->missing.count, 0);
}

static void the_longest_names_fit(void **state)
{
    char name[MU_VANISHED_NAME_MAX + 8], text[MU_SETTLEMENT_JSON_MAX];
    struct mu_settlement *s = of_round(INT64_MAX, "", NULL);

    (void)state;
    memset(name, '"', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    memset(s->failure, '"', sizeof s->failure - 1);
    memset(s->loss, '"', sizeof s->loss - 1);
    for (int64_t i = 0; i < MU_VANISHED_NAMED_MAX + 2; i++)
        mu_vanished_add(&s->missing, INT64_MAX - i, name, true, false);
    assert_true(mu_settlement_write(s, text) > 0);
    (void)snprintf(s->missing.members[0].name, sizeof s->missing.members[0].name, "\xff"); /* is no text */
    assert_true(mu_settlement_write(s, text) > 0);
}

static void of_many_missing_members_all_are_told_of(void **state)
{
    struct mu_settlement *from = of_round(3, "", NULL), *to = nothing();

    (void)state;
    for (int64_t i = 0; i < MU_VANISHED_NAMED_MAX + MU_SETTLEMENT_RANKS_MAX + 1; i++)
        mu_vanished_add(&from->missing, 1048576 - i, "node9", true, false);
    tell(from, to);
    assert_int_equal(to->missing.count, MU_VANISHED_NAMED_MAX + MU_SETTLEMENT_RANKS_MAX);
    for (size_t i = 0; i < to->missing.count; i++)
        assert_int_equal(to->missing.members[i].rank, 1048576 - (int64_t)i);
    assert_string_equal(to->missing.members[MU_VANISHED_NAMED_MAX - 1].name, "node9");
    assert_string_equal(to->missing.members[MU_VANISHED_NAMED_MAX].name, "the node of group rank 1048568");
}

static void anything_else_is_ignored(void **state)
{
    static const char *const texts[] = {
        "[]",
        "{}",
        "{\"round\": -1, \"tag\": \"00000000000000ab\"}",
        "{\"round\": \"3\", \"tag\": \"00000000000000ab\"}",
        "{\"round\": 3, \"tag\": \"ab\"}",
        "{\"round\": 3, \"tag\": \"00000000000000AB\"}",
        "{\"round\": 3}",
    };
    struct mu_settlement *to = nothing();
    json_t *json;

    (void)state;
    mu_settlement_add(to, NULL);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        json = json_loads(texts[i], 0, NULL);
        mu_settlement_add(to, json);
        json_decref(json);
        assert_false(to->known);
    }
    json =
        json_loads("{\"round\": 3, \"tag\": \"00000000000000ab\", \"failure\": 7, \"missing\": [-1, [2], [-1, \"a\"], "
                   "[\"2\", \"b\"], [2, 3], [2, \"c\"]]}",
                   0, NULL);
    mu_settlement_add(to, json);
    json_decref(json);
    assert_string_equal(to->failure, "");
    assert_int_equal(to->missing.count, 1);
    assert_string_equal(to->missing.members[0].name, "c");
}

static void only_who_said_nothing_was_lost(void **state)
{
    struct mu_settlement *s = of_round(3, "rank 12's failure on node3", "node9");
    struct mu_vanished_member *member = &s->missing.members[0];
    char text[MU_SETTLEMENT_TEXT_MAX];

    (void)state;
    assert_true(mu_settlement_is_free(s));
    mu_settlement_say(s, 3, text);
    assert_string_equal(text,
                        "lost node9; rank 12's failure on node3 is a consequence; restarting with 3 nodes, no restart "
                        "charged");
    mu_vanished_read_note(member, mu_slice_str("lost: its agent was killed"));
    s->failure[0] = '\0';
    assert_true(mu_settlement_is_free(s));
    mu_settlement_say(s, 1, text);
    assert_string_equal(text,
                        "lost node9: its agent was killed; the failure of a worker is a consequence; restarting with "
                        "1 node, no restart charged");
    mu_vanished_read_note(member, mu_slice_str("left: SIGTERM"));
    assert_false(mu_settlement_is_free(s));
    mu_vanished_read_note(member, mu_slice_str("again: rank 12 failed"));
    assert_false(mu_settlement_is_free(s));
    member->note = MU_NOTE_NONE;
    member->done = true;
    assert_false(mu_settlement_is_free(s));
    (void)snprintf(s->loss, sizeof s->loss, "lost node8"); /* it was told as the cause */
    assert_true(mu_settlement_is_free(s));
    mu_settlement_say(s, 2, text);
    assert_string_equal(
        text, "lost node8; the failure of a worker is a consequence; restarting with 2 nodes, no restart charged");
    s->missing.count = 0;
    s->loss[0] = '\0';
    assert_false(mu_settlement_is_free(s));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(what_one_member_tells_another_knows, tear_down),
        cmocka_unit_test_teardown(the_latest_round_counts_and_the_first_failure, tear_down),
        cmocka_unit_test_teardown(there_may_be_nothing_to_tell, tear_down),
        cmocka_unit_test_teardown(a_round_without_failure_or_loss_ends_the_claim_of_an_older_one, tear_down),
        cmocka_unit_test_teardown(the_longest_names_fit, tear_down),
        cmocka_unit_test_teardown(of_many_missing_members_all_are_told_of, tear_down),
        cmocka_unit_test_teardown(anything_else_is_ignored, tear_down),
        cmocka_unit_test_teardown(only_who_said_nothing_was_lost, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
