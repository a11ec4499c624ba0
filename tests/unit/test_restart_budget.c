/* Rounds: tags, the names of keys, and the budget as text. */
#include "agent/restart_budget.h"
#include "pure.h"

static struct mu_node node(const char *name, int64_t pid, int64_t local_id)
{
    return (struct mu_node){ mu_slice_str(name), pid, local_id };
}

static void a_tag_tells_rounds_by_their_members_and_ranks(void **state)
{
    struct mu_node members[] = { node("a", 1, 7), node("b", 2, 8) };
    uint64_t tag = mu_round_tag(members, 2);
    struct mu_node others[][2] = {
        { node("b", 2, 8), node("a", 1, 7) }, { node("a", 1, 7), node("b", 2, 9) },
        { node("a", 1, 7), node("b", 3, 8) }, { node("a", 1, 7), node("c", 2, 8) },
        { node("a", 2, 7), node("b", 1, 8) },
    };

    (void)state;
    assert_true(mu_round_tag(members, 2) == tag);
    assert_true(mu_round_tag(members, 1) != tag && mu_round_tag(NULL, 0) != tag);
    for (size_t i = 0; i < COUNT(others); i++)
        assert_true(mu_round_tag(others[i], 2) != tag);
}

static void keys_of_ours_carry_round_and_tag(void **state)
{
    char text[3 + MU_ROUND_PREFIX_EXTRA];

    (void)state;
    mu_round_stock_prefix(text, sizeof text, "job", 3);
    assert_string_equal(text, "torch.rendezvous.job.3/");
    mu_round_stock_prefix(text, sizeof text, "job", -1);
    assert_string_equal(text, "job/");
    mu_round_job_prefix(text, sizeof text, "job");
    assert_string_equal(text, "muster.job/");
    mu_round_own_prefix(text, sizeof text, "job", INT64_MAX, UINT64_MAX);
    assert_string_equal(text, "muster.job/9223372036854775807.ffffffffffffffff/");
}

static void a_budget_is_read_as_it_was_written(void **state)
{
    struct mu_restart_budget budget = { .count = 2, .round = 5, .tag = 0xab }, read;
    char text[MU_RESTART_BUDGET_MAX], name[1000];
    int len = mu_restart_budget_write(text, &budget, NULL);

    (void)state;
    assert_string_equal(text, "2 5.00000000000000ab");
    assert_true(mu_restart_budget_read(mu_slice(text, (size_t)len), &read));
    assert_true(read.count == 2 && read.round == 5 && read.tag == 0xab && !read.charged);
    (void)mu_restart_budget_write(text, &budget, "me");
    assert_string_equal(text, "2 5.00000000000000ab me");
    assert_true(mu_restart_budget_read(mu_slice_str(text), &read) && read.charged);
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    budget = (struct mu_restart_budget){
        .count = MU_ROUND_COUNT_MAX, .round = MU_DOC_ROUND_MAX, .tag = UINT64_MAX, .charged = false
    };
    len = mu_restart_budget_write(text, &budget, name);
    assert_true(mu_restart_budget_read(mu_slice(text, (size_t)len), &read));
    assert_true(read.count == budget.count && read.round == budget.round && read.tag == budget.tag && read.charged);
}

static void what_is_no_budget_is_refused(void **state)
{
    static const char *const bad[] = {
        "",
        "?",
        "1",
        "1 2",
        "1 2.",
        "1 2.00000000000000a",
        "1 2.00000000000000AB",
        "1 2.00000000000000abc",
        "-1 2.00000000000000ab",
        "1  2.00000000000000ab",
        " 1 2.00000000000000ab",
        "x 2.00000000000000ab",
        "1000000001 2.00000000000000ab",
        "9999999999999999999 2.00000000000000ab",
        "1 9999999999999999999.00000000000000ab",
    };
    struct mu_restart_budget read;

    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_false(mu_restart_budget_read(mu_slice_str(bad[i]), &read));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tag_tells_rounds_by_their_members_and_ranks),
        cmocka_unit_test(keys_of_ours_carry_round_and_tag),
        cmocka_unit_test(a_budget_is_read_as_it_was_written),
        cmocka_unit_test(what_is_no_budget_is_refused),
    };

    return cmocka_run_group_tests_name("round", tests, NULL, NULL);
}
