/* How a job has ended, as text, and which of it is believed. */
#include "agent/verdict.h"
#include "pure.h"

#define WITH(round, tag, rank)                                                                                         \
    "{\"verdict\": \"failed\", \"round\": " round ", \"tag\": " tag ", \"node\": \"n7\", \"rank\": " rank              \
    ", \"cause\": \"c\"}"
#define TAG "\"00000000000000ab\""

static void a_verdict_is_read_as_it_was_written(void **state)
{
    struct mu_verdict verdict = { .round = 7, .tag = 0xab, .rank = 12, .node = "n\"1", .cause = "a\\b \xc3\xa4" }, read;
    char text[MU_VERDICT_TEXT_MAX];
    int len = mu_verdict_write(&verdict, text);

    (void)state;
    assert_true(len > 0);
    assert_true(mu_verdict_read(mu_slice(text, (size_t)len), &read));
    assert_false(read.succeeded);
    assert_int_equal(read.round, 7);
    assert_int_equal(read.tag, 0xab);
    assert_int_equal(read.rank, 12);
    assert_string_equal(read.node, verdict.node);
    assert_string_equal(read.cause, verdict.cause);
    memset(verdict.cause, 0x01, sizeof verdict.cause - 1);
    memset(verdict.node, 0xff, sizeof verdict.node - 1);
    len = mu_verdict_write(&verdict, text);
    assert_true(len > 0);
    assert_true(mu_verdict_read(mu_slice(text, (size_t)len), &read));
    assert_string_equal(read.node, "(not UTF-8)");
}

static void what_is_no_verdict_is_refused(void **state)
{
    static const char *const bad[] = {
        "",
        "{}",
        "[]",
        "1",
        "garbage",
        "{\"verdict\": 1}",
        "{\"verdict\": \"so so\"}",
        "{\"ver",
        "{\"verdict\": \"failed\", \"node\": \"n7\", \"rank\": 0, \"cause\": \"c\"}",
        WITH("\"3\"", TAG, "0"),
        WITH("3", "\"ab\"", "0"),
        WITH("3", "\"00000000000000AB\"", "0"),
        WITH("3", TAG, "\"x\""),
    };
    struct mu_verdict verdict;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(mu_verdict_read(mu_slice_str(bad[i]), &verdict));
}

static void a_verdict_is_believed_if_it_names_a_round_and_a_member_that_can_end_the_job(void **state)
{
    static const struct {
        const char *text;
        /* Who believes it: a member of round 3 with 2 nodes; the same, if that is over. */
        bool member, removed;
    } cases[] = {
        { WITH("3", TAG, "1"), true, true },
        { WITH("3", "\"00000000000000cd\"", "1"), false, false }, /* another round of the same number */
        { WITH("3", TAG, "2"), false, false },                    /* there are two */
        { WITH("3", TAG, "-1"), false, false },
        { WITH("4", "\"00000000000000cd\"", "9"), false, true }, /* a later one, which this node was not in */
        { WITH("2", TAG, "1"), false, false },                   /* the job has gone on since */
        { WITH("-1", TAG, "1"), false, false },
    };
    struct mu_verdict_reader member = { .round = 3, .tag = 0xab, .world_size = 2 }, removed = member;
    struct mu_verdict verdict;

    (void)state;
    removed.is_over = true;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_true(mu_verdict_read(mu_slice_str(cases[i].text), &verdict));
        assert_int_equal(mu_verdict_is_credible(&verdict, &member), cases[i].member);
        assert_int_equal(mu_verdict_is_credible(&verdict, &removed), cases[i].removed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_verdict_is_read_as_it_was_written),
        cmocka_unit_test(what_is_no_verdict_is_refused),
        cmocka_unit_test(a_verdict_is_believed_if_it_names_a_round_and_a_member_that_can_end_the_job),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
