/* Parameters of the classic etcd rendezvous: options, and URLs. */
#include "handler/etcd_params.h"
#include "pure.h"

#include <stdio.h>

static struct muster_rdzv_params *params_of(const char *endpoint, const char *run_id, const char *options)
{
    struct muster_rdzv_params *params = NULL;
    struct muster_error error;

    assert_int_equal(muster_rdzv_params_new("etcd", endpoint, run_id, 2, 4, "here", &params, &error), 0);
    assert_int_equal(muster_rdzv_params_set_options(params, options, &error), 0);
    return params;
}

static void without_options_everything_is_as_pytorch_has_it(void **state)
{
    struct muster_rdzv_params *params = params_of("", "job", "");
    struct mu_etcd_place place;
    struct muster_error error;

    (void)state;
    assert_int_equal(mu_etcd_params_read(params, &place, &error), 0);
    assert_string_equal(place.http.endpoints, "localhost");
    assert_null(place.prefix);
    assert_null(place.http.protocol);
    assert_int_equal(place.join_ms, 600000);
    assert_int_equal(place.last_call_ms, 30000);
    assert_int_equal(place.nodes_min, 2);
    assert_int_equal(place.nodes_max, 4);
    assert_false(place.old_dialect);
    muster_rdzv_params_free(params);
}

static void options_are_taken(void **state)
{
    struct muster_rdzv_params *params =
        params_of("a:1,b:2", "job",
                  "timeout=7,last_call_timeout=3,close_timeout=9,etcd_prefix=x/y,protocol=https,"
                  "cacert=/ca,cert=/c,key=/k,dialect=1.13");
    struct mu_etcd_place place;
    struct muster_error error;

    (void)state;
    assert_int_equal(mu_etcd_params_read(params, &place, &error), 0);
    assert_string_equal(place.http.endpoints, "a:1,b:2");
    assert_string_equal(place.prefix, "x/y");
    assert_string_equal(place.http.protocol, "https");
    assert_string_equal(place.http.ca_file, "/ca");
    assert_string_equal(place.http.cert_file, "/c");
    assert_string_equal(place.http.key_file, "/k");
    assert_int_equal(place.join_ms, 7000);
    assert_int_equal(place.last_call_ms, 3000);
    assert_int_equal(place.close_ms, 9000);
    assert_true(place.old_dialect);
    muster_rdzv_params_free(params);
}

static void its_machines_are_told_the_same_times_and_limits(void **state)
{
    struct muster_rdzv_params *params =
        params_of("", "job", "timeout=7,last_call_timeout=3,close_timeout=9,etcd_prefix=x,master_port=4711");
    char node[MU_NODE_TEXT_MAX];
    struct mu_etcd_place place;
    struct mu_classic_config classic;
    struct mu_boot_config boot;
    struct muster_error error;

    (void)state;
    assert_int_equal(mu_etcd_params_read(params, &place, &error), 0);
    classic = mu_etcd_classic_config(&place, "node7", 12, 0x123456789, node);
    assert_true(classic.join_ms == 7000 && classic.last_call_ms == 3000 && classic.close_ms == 9000);
    assert_true(classic.nodes_min == 2 && classic.nodes_max == 4 && classic.seed == 0x123456789 && classic.pid == 12);
    assert_int_equal(classic.local_id, mu_node_local_id(MU_NODE_VERSION, 0x23456789));
    assert_string_equal(classic.prefix, "x");
    assert_string_equal(classic.run_id, "job");
    assert_string_equal(classic.name, "node7");
    assert_memory_equal(classic.node, "node7_12_", 9);
    boot = mu_etcd_boot_config(&place, "node7");
    assert_string_equal(boot.run_id, "job");
    assert_string_equal(boot.local_addr, "here");
    assert_string_equal(boot.hostname, "node7");
    assert_int_equal(boot.master.port, 4711);
    assert_false(boot.use_agent_store || boot.agents_store); /* worker 0 hosts the workers' store */
    muster_rdzv_params_free(params);
}

static void a_key_counts_only_with_its_certificate(void **state)
{
    struct muster_rdzv_params *params = params_of("", "job", "key=/k");
    struct mu_etcd_place place;
    struct muster_error error;

    (void)state;
    assert_int_equal(mu_etcd_params_read(params, &place, &error), 0);
    assert_null(place.http.key_file);
    muster_rdzv_params_free(params);
}

static void bad_options_are_named(void **state)
{
    static const char *const rows[][2] = {
        { "protocol=HTTP", "protocol" },
        { "protocol=ftp", "protocol" },
        { "timeout=0", "timeout" },
        { "timeout=soon", "timeout" },
        { "last_call_timeout=-1", "last_call_timeout" },
        { "dialect=3", "dialect" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_rdzv_params *params = params_of("", "job", rows[i][0]);
        struct mu_etcd_place place;
        struct muster_error error;

        assert_int_equal(mu_etcd_params_read(params, &place, &error), MUSTER_EINVAL);
        assert_non_null(strstr(error.text, rows[i][1]));
        muster_rdzv_params_free(params);
    }
}

static void etcd_v2_has_options_of_its_own(void **state)
{
    static const struct {
        const char *endpoint, *options;
        int rc;
        const char *expected; /* protocol, endpoints and files; or what the error names */
    } rows[] = {
        { "", "", 0, "http localhost - - -" },
        { " \t", "protocol= HTTPS ", 0, "https localhost - - -" },
        { "a:1,b", "ca_cert=/ca,ssl_cert=/c,ssl_cert_key=/k", 0, "http a:1,b /ca /c /k" },
        { "a", "ssl_cert=/c", 0, "http a - /c -" },
        { "a", "ssl_cert_key=/k", MUSTER_EINVAL, "'ssl_cert_key' needs 'ssl_cert'" },
        { "a", "protocol=ftp", MUSTER_EINVAL, "'ftp' is neither http nor https" },
        { "a:b:c", "", MUSTER_EINVAL, "a:b:c" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_rdzv_params *params = params_of(rows[i].endpoint, "job", rows[i].options);
        char protocol[MU_RDZV_WORD_MAX], text[256];
        struct mu_http_config http = { .endpoints = NULL };
        struct muster_error error;

        assert_int_equal(mu_etcd_v2_params_read(params, &http, protocol, &error), rows[i].rc);
        (void)snprintf(text, sizeof text, "%s %s %s %s %s", http.protocol, http.endpoints,
                       http.ca_file != NULL ? http.ca_file : "-", http.cert_file != NULL ? http.cert_file : "-",
                       http.key_file != NULL ? http.key_file : "-");
        assert_non_null(strstr(rows[i].rc < 0 ? error.text : text, rows[i].expected));
        muster_rdzv_params_free(params);
    }
}

static void a_run_id_is_needed(void **state)
{
    struct muster_rdzv_params *params = params_of("", "", "");
    struct mu_etcd_place place;
    struct muster_error error;

    (void)state;
    assert_int_equal(mu_etcd_params_read(params, &place, &error), MUSTER_EINVAL);
    muster_rdzv_params_free(params);
}

static void a_url_says_it_all(void **state)
{
    struct muster_rdzv_params *params = NULL;
    struct muster_error error;
    struct mu_etcd_place place;

    (void)state;
    assert_int_equal(muster_rdzv_params_from_url("etcd://localhost:2379/a%20job?min_workers=1&max_workers=3&timeout=300"
                                                 "&etcd_prefix=%2Fmy",
                                                 &params, &error),
                     0);
    assert_string_equal(muster_rdzv_params_backend(params), "etcd");
    assert_string_equal(muster_rdzv_params_endpoint(params), "localhost:2379");
    assert_string_equal(muster_rdzv_params_run_id(params), "a job");
    assert_int_equal(mu_etcd_params_read(params, &place, &error), 0);
    assert_int_equal(place.nodes_min, 1);
    assert_int_equal(place.nodes_max, 3);
    assert_int_equal(place.join_ms, 300000);
    assert_string_equal(place.prefix, "/my");
    muster_rdzv_params_free(params);
}

static void a_bad_url_is_an_error_that_says_why(void **state)
{
    static const char *const rows[][2] = {
        { "http://h/j?min_workers=1&max_workers=1", "begin" },
        { "etcd:///j?min_workers=1&max_workers=1", "host" },
        { "etcd://h?min_workers=1&max_workers=1", "run id" },
        { "etcd://h/?min_workers=1&max_workers=1", "run id" },
        { "etcd://h/j", "min_workers" },
        { "etcd://h/j?min_workers=1", "max_workers" },
        { "etcd://h/j?min_workers=x&max_workers=1", "min_workers" },
        { "etcd://h/j?min_workers=0&max_workers=1", "min_workers" },
        { "etcd://h/j?min_workers=3&max_workers=2", "minimum" },
        { "etcd://h/j?min_workers=1&max_workers=1&colour=red", "colour" },
        { "etcd://h/j?min_workers=1&max_workers=1&timout=3", "did you mean 'timeout'?" },
        { "etcd://h/j?min_workers=1&max_workers=1&timeout=1&timeout=2", "twice" },
        { "etcd://h/j?min_workers=1&max_workers=1&timeout", "KEY=VALUE" },
        { "etcd://h/j?min_workers=1&max_workers=1&=1", "KEY=VALUE" },
        { "etcd://h/%zz?min_workers=1&max_workers=1", "%" },
        { "etcd://h/j%00?min_workers=1&max_workers=1", "%" },
        { "etcd://ann:pw@h/j", "URL 'etcd://***@h/j': " },
        { "etcd://h/j?min_workers=1&password=pw&x=pw",
          "URL 'etcd://h/j?min_workers=1&password=***': option 'password' is unknown" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_rdzv_params *params = NULL;
        struct muster_error error;

        assert_int_equal(muster_rdzv_params_from_url(rows[i][0], &params, &error), MUSTER_EINVAL);
        assert_non_null(strstr(error.text, rows[i][1]));
        assert_null(strstr(error.text, "pw"));
        assert_null(params);
    }
}

static void a_url_as_endpoint_leaves_the_rest_to_the_parameters(void **state)
{
    struct muster_rdzv_params *params =
        params_of("etcd://h:1/job?max_workers=3&timeout=5", "job", "timeout=9,close_timeout=8");
    struct muster_rdzv_params *own = NULL;
    struct mu_etcd_place place;
    struct muster_error error;

    (void)state;
    assert_int_equal(mu_etcd_params_resolve(params, &own, &error), 0);
    assert_non_null(own);
    assert_int_equal(mu_etcd_params_read(own, &place, &error), 0);
    assert_string_equal(place.http.endpoints, "h:1");
    assert_int_equal(place.nodes_min, 2);
    assert_int_equal(place.nodes_max, 3);
    assert_int_equal(place.join_ms, 5000);
    assert_int_equal(place.close_ms, 8000);
    assert_string_equal(muster_rdzv_params_local_addr(own), "here");
    muster_rdzv_params_free(own);
    muster_rdzv_params_free(params);
}

static void a_url_with_another_run_id_is_an_error(void **state)
{
    struct muster_rdzv_params *params = params_of("etcd://h:1/other", "job", ""), *own = NULL;
    struct muster_error error;

    (void)state;
    assert_int_equal(mu_etcd_params_resolve(params, &own, &error), MUSTER_EINVAL);
    assert_null(own);
    muster_rdzv_params_free(params);
}

static void the_run_id_of_a_url_is_told(void **state)
{
    static const char *const rows[][2] = {
        { "etcd://h:1/job", "job" },
        { "etcd://h/a%20job?min_workers=1&colour=red", "a job" }, /* that is wrong later */
        { "h:1", NULL },
        { "http://h:1/job", NULL },
        { "", NULL },
    };
    struct muster_error error;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        char *run_id = NULL;

        assert_int_equal(mu_etcd_params_run_id(rows[i][0], &run_id, &error), 0);
        assert_true((run_id == NULL) == (rows[i][1] == NULL));
        if (run_id != NULL)
            assert_string_equal(run_id, rows[i][1]);
        free(run_id);
    }
}

static void a_url_without_a_run_id_is_an_error(void **state)
{
    static const char *const rows[] = { "etcd://h:1", "etcd://h:1/", "etcd://h:1/?min_workers=1", "etcd:///job",
                                        "etcd://h:1/%zz" };
    struct muster_error error;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        char *run_id = NULL;

        assert_int_equal(mu_etcd_params_run_id(rows[i], &run_id, &error), MUSTER_EINVAL);
        assert_null(run_id);
    }
}

static void any_other_endpoint_is_good_as_it_is(void **state)
{
    struct muster_rdzv_params *params = params_of("h:1", "job", ""), *own = NULL;
    struct muster_error error;

    (void)state;
    assert_int_equal(mu_etcd_params_resolve(params, &own, &error), 0);
    assert_null(own);
    muster_rdzv_params_free(params);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_options_everything_is_as_pytorch_has_it),
        cmocka_unit_test(options_are_taken),
        cmocka_unit_test(a_key_counts_only_with_its_certificate),
        cmocka_unit_test(its_machines_are_told_the_same_times_and_limits),
        cmocka_unit_test(bad_options_are_named),
        cmocka_unit_test(etcd_v2_has_options_of_its_own),
        cmocka_unit_test(a_run_id_is_needed),
        cmocka_unit_test(a_url_says_it_all),
        cmocka_unit_test(a_bad_url_is_an_error_that_says_why),
        cmocka_unit_test(a_url_as_endpoint_leaves_the_rest_to_the_parameters),
        cmocka_unit_test(a_url_with_another_run_id_is_an_error),
        cmocka_unit_test(the_run_id_of_a_url_is_told),
        cmocka_unit_test(a_url_without_a_run_id_is_an_error),
        cmocka_unit_test(any_other_endpoint_is_good_as_it_is),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
