/* How long a request to etcd may last. */
#include "base/error.h"
#include "kv/patience.h"
#include "pure.h"

static struct mu_patience patience;

static int start(void **state)
{
    (void)state;
    mu_patience_init(&patience, 9000);
    return 0;
}

static uint64_t patience_ms(void)
{
    return mu_patience_ms(&patience, UINT64_MAX, 0);
}

static void a_request_has_a_third_of_a_lease_within_limits(void **state)
{
    (void)state;
    assert_int_equal(patience_ms(), 3000);
    mu_patience_init(&patience, 1000);
    assert_int_equal(patience_ms(), MU_PATIENCE_MIN_MS);
    mu_patience_init(&patience, 3600000);
    assert_int_equal(patience_ms(), MU_PATIENCE_MAX_MS);
}

static void an_etcd_that_is_late_is_given_more_time_and_less_again_when_it_answers(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 9; i++)
        mu_patience_learn(&patience, MUSTER_ETIMEOUT);
    assert_int_equal(patience_ms(), 3000 * MU_PATIENCE_TIMES_MAX);
    mu_patience_learn(&patience, MUSTER_ECONNECT); /* says nothing about its load */
    assert_int_equal(patience_ms(), 3000 * MU_PATIENCE_TIMES_MAX);
    for (unsigned i = 0; i < 99; i++)
        mu_patience_learn(&patience, 0);
    assert_int_equal(patience_ms(), 3000);
}

static void of_a_lease_only_the_request_for_it_says_how_busy_etcd_is(void **state)
{
    (void)state;
    mu_patience_learn_lease(&patience, 7, MUSTER_ETIMEOUT); /* it had been granted */
    assert_int_equal(patience_ms(), 3000);
    mu_patience_learn_lease(&patience, 0, MUSTER_ECONNECT);
    assert_int_equal(patience_ms(), 3000);
    mu_patience_learn_lease(&patience, 0, MUSTER_ETIMEOUT);
    assert_int_equal(patience_ms(), 6000);
}

static void a_request_that_has_to_be_over_by_then_waits_no_longer(void **state)
{
    (void)state;
    assert_int_equal(mu_patience_ms(&patience, 61000, 1000), 3000);
    assert_int_equal(mu_patience_ms(&patience, 61000, 60999), 1);
    assert_int_equal(mu_patience_ms(&patience, 61000, 70000), 1);
}

static void one_of_several_servers_has_half_of_it(void **state)
{
    (void)state;
    assert_int_equal(mu_patience_attempt_ms(3000, 1), 3000); /* there is nobody else to ask */
    assert_int_equal(mu_patience_attempt_ms(3000, 2), 1500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_of_several_servers_has_half_of_it),
        cmocka_unit_test_setup(a_request_has_a_third_of_a_lease_within_limits, start),
        cmocka_unit_test_setup(an_etcd_that_is_late_is_given_more_time_and_less_again_when_it_answers, start),
        cmocka_unit_test_setup(of_a_lease_only_the_request_for_it_says_how_busy_etcd_is, start),
        cmocka_unit_test_setup(a_request_that_has_to_be_over_by_then_waits_no_longer, start),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
