/* The states of a group of workers: their names, and every pair of them. */
#include "agent/group_states.h"
#include "pure.h"

static void states_have_the_names_that_pytorch_gives_them(void **state)
{
    static const char *const names[] = { "UNKNOWN", "INIT", "HEALTHY", "UNHEALTHY", "STOPPED", "SUCCEEDED", "FAILED" };

    (void)state;
    assert_int_equal(COUNT(names), MU_GROUP_STATES_COUNT);
    for (size_t i = 0; i < COUNT(names); i++)
        assert_string_equal(mu_group_state_name((enum mu_group_state)i), names[i]);
    assert_string_equal(mu_agent_event_state_name(MU_EVENT_SUCCEEDED), "SUCCEEDED");
    assert_string_equal(mu_agent_event_state_name(MU_EVENT_FAILED), "FAILED");
    assert_string_equal(mu_agent_event_state_name(MU_EVENT_TERMINATED), "TERMINATED");
}

/* Row: from; column: to; in the order of the names above. */
static void only_these_states_follow_each_other(void **state)
{
    static const char *const table[] = {
        /*              ? I H U S + - */
        /* UNKNOWN   */ "x......",
        /* INIT      */ "xxx....",
        /* HEALTHY   */ "x.xxxxx",
        /* UNHEALTHY */ "x..xx.x",
        /* STOPPED   */ "x.x.x.x",
        /* SUCCEEDED */ ".....x.",
        /* FAILED    */ "....x.x",
    };

    (void)state;
    for (size_t from = 0; from < MU_GROUP_STATES_COUNT; from++)
        for (size_t to = 0; to < MU_GROUP_STATES_COUNT; to++)
            assert_int_equal(mu_group_state_may_follow((enum mu_group_state)from, (enum mu_group_state)to),
                             table[from][to] == 'x');
}

static void healthy_and_unhealthy_groups_are_running(void **state)
{
    (void)state;
    for (size_t i = 0; i < MU_GROUP_STATES_COUNT; i++)
        assert_int_equal(mu_group_state_is_running((enum mu_group_state)i),
                         i == MU_GROUP_HEALTHY || i == MU_GROUP_UNHEALTHY);
}

static void a_worker_of_a_failed_group_without_a_failure_was_terminated(void **state)
{
    (void)state;
    assert_int_equal(mu_worker_end_of(MU_GROUP_FAILED, true), MU_EVENT_FAILED);
    assert_int_equal(mu_worker_end_of(MU_GROUP_FAILED, false), MU_EVENT_TERMINATED);
    assert_int_equal(mu_worker_end_of(MU_GROUP_SUCCEEDED, false), MU_EVENT_SUCCEEDED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_have_the_names_that_pytorch_gives_them),
        cmocka_unit_test(only_these_states_follow_each_other),
        cmocka_unit_test(healthy_and_unhealthy_groups_are_running),
        cmocka_unit_test(a_worker_of_a_failed_group_without_a_failure_was_terminated),
    };

    return cmocka_run_group_tests_name("states", tests, NULL, NULL);
}
