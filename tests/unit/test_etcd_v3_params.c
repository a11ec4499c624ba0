/* Parameters of the rendezvous etcd-v3. */
#include "handler/etcd_v3_params.h"
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

static void without_options_there_are_defaults(void **state)
{
    (void)state;
    assert_int_equal(read_place("", ""), 0);
    assert_string_equal(place.http.endpoints, "localhost:2379");
    assert_true(place.lease_s == MU_V3_LEASE_S && place.job_lease_s == MU_V3_JOB_LEASE_S);
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

static void bad_options_are_named(void **state)
{
    static const struct {
        const char *options, *name;
    } table[] = {
        { "lease=1", "lease" },
        { "lease=3601", "lease" },
        { "lease=30,job_lease=29", "job_lease" },
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_options_there_are_defaults),
        cmocka_unit_test(the_jobs_lease_is_some_of_a_nodes),
        cmocka_unit_test(bad_options_are_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
