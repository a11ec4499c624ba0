/* How long a request to etcd may last. */
#include "handler/patience.h"
#include "pure.h"

static struct mu_fold *fold;
static struct mu_patience patience;

static int start(void **state)
{
    struct mu_fold_config config = { .settings = MU_RDZV_SETTINGS_DEFAULT,
                                     .name = "a",
                                     .pid = 7,
                                     .id = 1,
                                     .lease_ms = 9000,
                                     .job_lease_ms = 60000,
                                     .first_ms = 60000,
                                     .seed = 1 };

    (void)state;
    mu_patience_init(&patience, 9000);
    return mu_fold_new(&config, &fold, NULL);
}

static int end(void **state)
{
    (void)state;
    mu_fold_free(fold);
    return 0;
}

static void a_request_has_a_third_of_a_lease_within_limits(void **state)
{
    (void)state;
    assert_int_equal(mu_patience_ms(&patience, fold, 0), 3000);
    mu_patience_init(&patience, 1000);
    assert_int_equal(mu_patience_ms(&patience, fold, 0), MU_PATIENCE_MIN_MS);
    mu_patience_init(&patience, 3600000);
    assert_int_equal(mu_patience_ms(&patience, fold, 0), MU_PATIENCE_MAX_MS);
}

static void an_etcd_that_is_late_is_given_more_time_and_less_again_when_it_answers(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 9; i++)
        mu_patience_learn(&patience, MUSTER_ETIMEOUT);
    assert_int_equal(mu_patience_ms(&patience, fold, 0), 3000 * MU_PATIENCE_TIMES_MAX);
    mu_patience_learn(&patience, MUSTER_ECONNECT); /* says nothing about its load */
    assert_int_equal(mu_patience_ms(&patience, fold, 0), 3000 * MU_PATIENCE_TIMES_MAX);
    for (unsigned i = 0; i < 99; i++)
        mu_patience_learn(&patience, 0);
    assert_int_equal(mu_patience_ms(&patience, fold, 0), 3000);
}

static void a_node_that_has_never_heard_of_etcd_waits_no_longer_than_its_join(void **state)
{
    struct mu_fold_effects effects;

    (void)state;
    mu_fold_step(fold, &(struct mu_fold_event){ .type = MU_FOLD_ON_JOIN, .now_ms = 1000 }, &effects);
    assert_int_equal(mu_patience_ms(&patience, fold, 1000), 3000);
    assert_int_equal(mu_patience_ms(&patience, fold, 60999), 1);
    assert_int_equal(mu_patience_ms(&patience, fold, 70000), 1);
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
        cmocka_unit_test_setup_teardown(a_request_has_a_third_of_a_lease_within_limits, start, end),
        cmocka_unit_test_setup_teardown(an_etcd_that_is_late_is_given_more_time_and_less_again_when_it_answers, start,
                                        end),
        cmocka_unit_test_setup_teardown(a_node_that_has_never_heard_of_etcd_waits_no_longer_than_its_join, start, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
