/* Why a round ended, and what that costs: the rule, and every sentence. */
#include "pure.h"
#include "rdzv/attribution.h"

#include <stdio.h>

static const struct {
    struct mu_attribution a;
    int64_t cost;
    const char *cause, *why;
} rows[] = {
    /* A loss is the cause, whatever others report. */
    { { .lost = 1, .lost_names = { "node9" }, .how = "no keep-alive for 10 s" },
      0,
      "lost node9: no keep-alive for 10 s",
      "lost node9: no keep-alive for 10 s; restarting with 3 nodes, no restart charged" },
    { { .lost = 1,
        .lost_names = { "node9" },
        .how = "its agent was killed",
        .failed = true,
        .failed_rank = 12,
        .failed_node = "node3",
        .failed_text = "exitcode 1" },
      0,
      "lost node9: its agent was killed",
      "lost node9: its agent was killed; rank 12's failure on node3 is a consequence; restarting with 3 nodes, no "
      "restart charged" },
    { { .lost = 5, .lost_names = { "a", "b", "c" } },
      0,
      "lost a, b, c and 2 more",
      "lost a, b, c and 2 more; restarting with 3 nodes, no restart charged" },
    { { .lost = 1 }, 0, "lost a node", "lost a node; restarting with 3 nodes, no restart charged" },
    { { .lost = 4 }, 0, "lost 4 nodes", "lost 4 nodes; restarting with 3 nodes, no restart charged" },
    /* Without one, what was reported first is. A failure costs one restart. */
    { { .first = MU_ATTRIBUTION_FAILED, .failed = true, .failed_rank = 0, .failed_node = "node3" },
      1,
      "rank 0's failure on node3",
      "rank 0's failure on node3; restarting with 3 nodes, restart 2 of 5" },
    { { .first = MU_ATTRIBUTION_FAILED,
        .failed = true,
        .failed_rank = 7,
        .failed_node = "node3",
        .failed_text = "rank 7 on node3 (local rank 1, pid 12) failed: exit code 1",
        .left_node = "x",
        .newcomers = 1 },
      1,
      "rank 7 on node3 (local rank 1, pid 12) failed: exit code 1",
      "rank 7 on node3 (local rank 1, pid 12) failed: exit code 1; restarting with 3 nodes, restart 2 of 5" },
    /* Nodes that come and go cost nothing, nor does what that made others report. */
    { { .first = MU_ATTRIBUTION_LEFT,
        .left_node = "node7",
        .left_text = "signal SIGTERM",
        .newcomers = 1,
        .newcomer = "node8" },
      0,
      "node7 left (signal SIGTERM)",
      "node7 left (signal SIGTERM); restarting with 3 nodes, no restart charged" },
    { { .first = MU_ATTRIBUTION_LEFT,
        .left_node = "node7",
        .failed = true,
        .failed_rank = 2,
        .failed_node = "node3",
        .failed_text = "exit code 1" },
      0,
      "node7 left",
      "node7 left; rank 2's failure on node3 is a consequence; restarting with 3 nodes, no restart charged" },
    { { .first = MU_ATTRIBUTION_AGAIN,
        .failed = true,
        .failed_rank = 2,
        .failed_node = "node3",
        .newcomers = 1,
        .newcomer = "node8" },
      0,
      "node8 joins",
      "node8 joins; rank 2's failure on node3 is a consequence; restarting with 3 nodes, no restart charged" },
    { { .first = MU_ATTRIBUTION_AGAIN }, /* who wanted to join has gone again */
      0,
      "the round was joined anew",
      "the round was joined anew; restarting with 3 nodes, no restart charged" },
    { { .newcomers = 1, .newcomer = "node8" },
      0,
      "node8 joins",
      "node8 joins; restarting with 3 nodes, no restart charged" },
    { { .newcomers = 3, .newcomer = "node8" },
      0,
      "node8 and others join",
      "node8 and others join; restarting with 3 nodes, no restart charged" },
    { { .lost = 0 },
      0,
      "the round was joined anew",
      "the round was joined anew; restarting with 3 nodes, no restart charged" },
};

static void each_end_has_one_cause_one_cost_and_one_sentence(void **state)
{
    char cause[MU_FOLD_CAUSE_MAX], why[MU_FOLD_WHY_MAX];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(mu_attribution_cost(&rows[i].a), rows[i].cost);
        mu_attribution_cause(&rows[i].a, cause);
        assert_string_equal(cause, rows[i].cause);
        mu_attribution_why(&rows[i].a, 3, 2, 5, why);
        assert_string_equal(why, rows[i].why);
    }
}

/* However long the cause is. */
static void a_job_that_fails_says_how_many_restarts_it_had(void **state)
{
    struct mu_attribution a = { .first = MU_ATTRIBUTION_FAILED, .failed = true, .failed_text = "rank 7 failed" };
    char end[MU_FOLD_CAUSE_MAX];

    (void)state;
    mu_attribution_end(&a, 3, end);
    assert_string_equal(end, "rank 7 failed; no restarts left (max restarts: 3)");
    memset(a.failed_text, 'x', sizeof a.failed_text - 1);
    mu_attribution_end(&a, INT64_MAX, end);
    assert_non_null(strstr(end, "x; no restarts left (max restarts: 9223372036854775807)"));
}

static void one_node_is_said_so(void **state)
{
    char why[MU_FOLD_WHY_MAX];

    (void)state;
    mu_attribution_why(&rows[5].a, 1, 1, 1, why);
    assert_string_equal(why, "rank 0's failure on node3; restarting with 1 node, restart 1 of 1");
}

/* The sentence ends with the cost, however long the names are. */
static void long_names_leave_room_for_the_cost(void **state)
{
    struct mu_attribution a = { .lost = 9, .how = "no keep-alive for 10 s", .failed = true };
    char why[MU_FOLD_WHY_MAX];

    (void)state;
    for (size_t i = 0; i < MU_ATTRIBUTION_NAMED; i++)
        memset(a.lost_names[i], 'n', MU_FOLD_SHOWN_MAX - 1);
    memset(a.failed_node, 'm', MU_FOLD_SHOWN_MAX - 1);
    mu_attribution_why(&a, 10000, 1, 3, why);
    assert_non_null(strstr(why, "restarting with 10000 nodes, no restart charged"));
}

static void a_loss_that_is_noticed_long_after_a_failure_did_not_cause_it(void **state)
{
    static const struct {
        uint64_t lost_ms, failed_ms, notice_ms;
        bool cause;
    } times[] = {
        { 1000, 5000, 10000, true },  /* noticed before */
        { 5000, 5000, 10000, true },  /* at once */
        { 17000, 5000, 10000, true }, /* as late as a lease can end, and a little later */
        { 17001, 5000, 10000, false },
    };

    (void)state;
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++)
        assert_int_equal(mu_attribution_is_cause(times[i].lost_ms, times[i].failed_ms, times[i].notice_ms),
                         times[i].cause);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_end_has_one_cause_one_cost_and_one_sentence),
        cmocka_unit_test(a_job_that_fails_says_how_many_restarts_it_had),
        cmocka_unit_test(one_node_is_said_so),
        cmocka_unit_test(long_names_leave_room_for_the_cost),
        cmocka_unit_test(a_loss_that_is_noticed_long_after_a_failure_did_not_cause_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
