/* Parameters of the rendezvous etcd-v3. */
#include "handler/etcd_v3_params.h"
#include "kv/engine_etcd3.h"
#include "pure.h"

static struct mu_v3_place place;
static struct muster_error error;

static int read_place(const char *endpoint, const char *options)
{
    struct muster_rdzv_params *params = NULL;
    int rc;

    assert_int_equal(muster_rdzv_params_new("etcd-v3", endpoint, "job", 1, 4, NULL, &params, NULL), 0);
    assert_int_equal(muster_rdzv_params_set_options(params, options, NULL), 0);
    rc = mu_v3_place_read(params, &place, &error);
    muster_rdzv_params_free(params); /* numbers stay */
    return rc;
}

static const struct mu_node me = { { "node7", 5 }, 4711, 99 };

static void without_options_there_are_defaults(void **state)
{
    (void)state;
    assert_int_equal(read_place("", ""), 0);
    assert_string_equal(place.http.endpoints, "localhost:2379");
    assert_true(place.lease_s == MU_V3_LEASE_S && place.job_lease_s == MU_ENGINE_JOB_LEASE_S);
    assert_true(place.first_s == MU_V3_READ_TIMEOUT_S && place.use_agent_store);
    assert_true(place.settings.nodes_min == 1 && place.settings.nodes_max == 4);
    assert_true(place.user == NULL && place.token == NULL && place.http.protocol == NULL);
}

/* Keys of the job must not go while its nodes still have theirs. */
static void the_jobs_lease_is_some_of_a_nodes(void **state)
{
    static const struct {
        const char *options;
        uint64_t lease_s, job_lease_s;
    } table[] = {
        { "lease=2", 2, 60 },
        { "lease=15", 15, 60 },
        { "lease=16", 16, 64 },
        { "lease=3000", 3000, MU_V3_LEASE_MAX_S },
        { "lease=30,job_lease=30", 30, 30 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(table); i++) {
        assert_int_equal(read_place("h", table[i].options), 0);
        assert_int_equal(place.lease_s, table[i].lease_s);
        assert_int_equal(place.job_lease_s, table[i].job_lease_s);
    }
}

/* Renewals come often enough that one may fail. */
static void a_fence_may_be_shorter_than_the_lease(void **state)
{
    static const struct {
        const char *options;
        uint64_t fence_s, renew_ms;
    } table[] = {
        { "lease=10", 0, 0 },
        { "fence=1", 1, 333 },
        { "lease=10,fence=30", 30, 10000 },
        { "fence=86400", 86400, 28800000 },
    };
    const uint64_t random[2] = { 2, 3 };

    (void)state;
    for (size_t i = 0; i < COUNT(table); i++) {
        assert_int_equal(read_place("h", table[i].options), 0);
        assert_int_equal(place.fence_s, table[i].fence_s);
        assert_int_equal(mu_engine_renew_ms(place.fence_s), table[i].renew_ms);
        assert_int_equal(mu_v3_fold_config(&place, &me, random).fence_ms, 1000 * table[i].fence_s);
    }
}

static void restarts_count_for_a_window_if_there_is_one(void **state)
{
    const uint64_t random[2] = { 2, 3 };

    (void)state;
    assert_int_equal(read_place("h", "lease=10"), 0);
    assert_int_equal(mu_v3_fold_config(&place, &me, random).restart_window_s, 0);
    assert_int_equal(read_place("h", "restart_window=3600"), 0);
    assert_int_equal(mu_v3_fold_config(&place, &me, random).restart_window_s, 3600);
}

static void bad_options_are_named(void **state)
{
    static const struct {
        const char *options, *name;
    } table[] = {
        { "lease=1", "lease" },
        { "lease=3601", "lease" },
        { "lease=30,job_lease=29", "job_lease" },
        { "fence=0", "fence" },
        { "fence=86401", "fence" },
        { "restart_window=0", "restart_window" },
        { "restart_window=1000000001", "restart_window" },
        { "read_timeout=0", "read_timeout" },
        { "user=ann", "'user' and 'password'" },
        { "password=x", "'user' and 'password'" },
        { "unheard=1", "unheard" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(table); i++) {
        assert_int_equal(read_place("h", table[i].options), MUSTER_EINVAL);
        assert_non_null(strstr(error.text, table[i].name));
    }
}

static void a_world_has_so_many_members_and_no_more(void **state)
{
    struct muster_rdzv_params *params = NULL;

    (void)state;
    assert_int_equal(muster_rdzv_params_new("etcd-v3", "h", "job", MU_FOLD_MEMBERS_MAX + 1, 20000, NULL, &params, NULL),
                     0);
    assert_int_equal(mu_v3_place_read(params, &place, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "more than 16384"));
    muster_rdzv_params_free(params);
}

static void its_machines_are_told_the_same_times_and_limits(void **state)
{
    uint64_t random[] = { 0, 5 };
    struct mu_fold_config fold;

    (void)state;
    assert_int_equal(read_place("h", "lease=20,job_lease=90,read_timeout=7,use_agent_store=false"), 0);
    fold = mu_v3_fold_config(&place, &me, random);
    assert_true(fold.lease_ms == 20000 && fold.job_lease_ms == 90000 && fold.first_ms == 7000);
    assert_true(fold.settings.nodes_max == 4 && fold.pid == 4711 && fold.seed == 5);
    assert_true(fold.ops_max == MU_ENGINE_ETCD3_OPS_MAX && fold.wants_names);
    assert_int_equal(fold.local_id, 99);
    assert_int_equal(fold.id, 1); /* 0 is nobody */
    random[0] = 17;
    assert_int_equal(mu_v3_fold_config(&place, &me, random).id, 17);
    assert_true(mu_v3_boot_config(&place).nodes_max == 4 && !mu_v3_boot_config(&place).use_agent_store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_options_there_are_defaults),
        cmocka_unit_test(the_jobs_lease_is_some_of_a_nodes),
        cmocka_unit_test(a_fence_may_be_shorter_than_the_lease),
        cmocka_unit_test(restarts_count_for_a_window_if_there_is_one),
        cmocka_unit_test(bad_options_are_named),
        cmocka_unit_test(a_world_has_so_many_members_and_no_more),
        cmocka_unit_test(its_machines_are_told_the_same_times_and_limits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
