/* What a fold machine on a muster store's engine is told, by the parameters of a c10d rendezvous. */
#include "handler/engine_params.h"
#include "pure.h"
#include "store/engine.h"

#include <stdio.h>

static struct mu_engine_params engine;
static struct muster_error error;

static int read_with(const char *options, bool on, int64_t nodes_min)
{
    struct mu_dynamic_config dynamic = { .request_timeout_ms = 7000 };
    struct muster_rdzv_params *params = NULL;
    int rc;

    assert_int_equal(muster_rdzv_params_new("c10d", "h", "job", nodes_min, 20000, NULL, &params, NULL), 0);
    assert_int_equal(muster_rdzv_params_set_options(params, options, NULL), 0);
    assert_int_equal(mu_rdzv_settings_from_params(params, &dynamic.settings, NULL), 0);
    rc = mu_engine_params_read(params, &dynamic, on, &engine, &error);
    muster_rdzv_params_free(params);
    return rc;
}

static int read(const char *options, bool on)
{
    return read_with(options, on, 1);
}

static void the_lease_is_the_silence_that_the_user_allows(void **state)
{
    static const struct {
        const char *options;
        uint64_t lease_ms, job_lease_ms;
    } rows[] = {
        { "", MU_ENGINE_LEASE_MS, 60000 },
        { "keep_alive_interval=5", 15000, 60000 },
        { "keep_alive_max_attempt=2", 10000, 60000 },
        { "keep_alive_interval=1,keep_alive_max_attempt=1", 1000, 60000 },
        { "keep_alive_interval=10,keep_alive_max_attempt=3", 30000, 120000 },
        { "keep_alive_interval=100000", MU_ENGINE_LEASE_MAX_MS, 4ull * MU_ENGINE_LEASE_MAX_MS },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_int_equal(read(rows[i].options, true), 0);
        assert_int_equal(engine.lease_ms, rows[i].lease_ms);
        assert_int_equal(engine.job_lease_ms, rows[i].job_lease_ms);
        assert_int_equal(engine.first_ms, 7000);
    }
}

static void fence_and_window_are_the_engines(void **state)
{
    static const struct {
        const char *options;
        bool on;
        int rc;
        const char *text;
    } rows[] = {
        { "fence=4,restart_window=60", true, 0, NULL },
        { "fence=4", false, MUSTER_EINVAL, "option 'fence' does not go with engine=off" },
        { "restart_window=60", false, MUSTER_EINVAL, "option 'restart_window' does not go with engine=off" },
        { "token_file=/t", false, MUSTER_EINVAL, "option 'token_file' does not go with engine=off" },
        { "fence=0", true, MUSTER_EINVAL, "fence" },
        { "fence=86401", true, MUSTER_EINVAL, "fence" },
        { "restart_window=x", true, MUSTER_EINVAL, "restart_window" },
        { "", false, 0, NULL },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_int_equal(read(rows[i].options, rows[i].on), rows[i].rc);
        assert_true(rows[i].text == NULL || strstr(error.text, rows[i].text) != NULL);
        assert_true(i > 0 || (engine.fence_s == 4 && engine.restart_window_s == 60));
    }
    assert_true(engine.fence_s == 0 && engine.restart_window_s == 0);
}

static void a_world_has_so_many_members_and_no_more(void **state)
{
    (void)state;
    assert_int_equal(read_with("", true, MU_FOLD_MEMBERS_MAX), 0);
    assert_int_equal(read_with("", true, MU_FOLD_MEMBERS_MAX + 1), MUSTER_EINVAL);
    assert_string_equal(error.text, "a minimum of 16385 nodes is more than 16384, the most that fit into a round of "
                                    "etcd-v3, or of c10d; with engine=off there may be more");
    assert_int_equal(read_with("", false, MU_FOLD_MEMBERS_MAX + 1), 0); /* in a document they do */
}

static void the_machine_is_told_all_of_it(void **state)
{
    const struct mu_rdzv_settings settings = { .nodes_max = 4 };
    const struct mu_node me = { mu_slice_str("node7"), 4711, 99 };
    const uint64_t nobody[] = { 0, 5 }, somebody[] = { 17, 5 };
    struct mu_fold_config fold;

    (void)state;
    assert_int_equal(read("fence=4,restart_window=60", true), 0);
    fold = mu_engine_fold_config(&engine, &settings, &me, nobody);
    assert_string_equal(fold.name, "node7");
    assert_string_equal(fold.service, "the store");
    assert_true(fold.pid == 4711 && fold.local_id == 99 && fold.id == 1 && fold.seed == 5);
    assert_true(fold.lease_ms == MU_ENGINE_LEASE_MS && fold.job_lease_ms == 60000 && fold.first_ms == 7000);
    assert_true(fold.fence_ms == 4000 && fold.restart_window_s == 60 && fold.wants_names);
    assert_true(fold.ops_max == MU_ENGINE_OPS_MAX && fold.settings.nodes_max == 4);
    assert_int_equal(mu_engine_fold_config(&engine, &settings, &me, somebody).id, 17);
}

static const char *token_file_of(const char *backend, const char *options, const char *path)
{
    static char text[sizeof error.text];
    struct muster_rdzv_params *params = NULL;
    struct muster_value value;

    assert_int_equal(muster_rdzv_params_new(backend, "h", "job", 1, 1, NULL, &params, NULL), 0);
    assert_int_equal(muster_rdzv_params_set_options(params, options, NULL), 0);
    if (mu_engine_take_token_file(params, path, &error) < 0)
        (void)snprintf(text, sizeof text, "%s", error.text);
    else
        (void)snprintf(text, sizeof text, "%s",
                       muster_rdzv_params_get(params, "token_file", &value) ? value.text : "none");
    muster_rdzv_params_free(params);
    return text;
}

static void a_token_file_is_a_path(void **state)
{
    struct muster_rdzv_params *params = NULL;
    const char *path = "?";

    (void)state;
    assert_int_equal(muster_rdzv_params_new("c10d", "h", "job", 1, 1, NULL, &params, NULL), 0);
    assert_int_equal(mu_engine_token_file(params, &path, &error), 0);
    assert_null(path);
    assert_int_equal(muster_rdzv_params_set_text(params, "token_file", "/t", &error), 0);
    assert_int_equal(mu_engine_token_file(params, &path, &error), 0);
    assert_string_equal(path, "/t");
    assert_int_equal(muster_rdzv_params_set_bool(params, "token_file", true, &error), 0);
    assert_int_equal(mu_engine_token_file(params, &path, &error), MUSTER_EINVAL);
    assert_string_equal(error.text, "option 'token_file' is not text");
    muster_rdzv_params_free(params);
}

static void a_token_file_may_come_from_the_environment(void **state)
{
    (void)state;
    assert_string_equal(token_file_of("c10d", "engine=on", "/t"), "/t");
    assert_string_equal(token_file_of("c10d", "engine= ON", "/t"), "/t");
    assert_string_equal(token_file_of("c10d", "engine=on,token_file=/mine", "/t"), "/mine");
    assert_string_equal(token_file_of("c10d", "engine=on", NULL), "none");
    assert_string_equal(token_file_of("c10d", "engine=on", ""), "none");
    assert_string_equal(token_file_of("c10d", "", ""), "none");
    assert_string_equal(token_file_of("etcd-v3", "", "/t"), "none"); /* which has its own ways */
    assert_string_equal(token_file_of("c10d", "", "/t"), "/t");
    assert_string_equal(token_file_of("c10d", "engine=only", "/t"), "/t");
    assert_string_equal(token_file_of("c10d", "engine=off", "/t"),
                        "MUSTER_TOKEN_FILE is set, and there is no token with --rdzv-conf engine=off");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_lease_is_the_silence_that_the_user_allows),
        cmocka_unit_test(fence_and_window_are_the_engines),
        cmocka_unit_test(a_token_file_is_a_path),
        cmocka_unit_test(a_token_file_may_come_from_the_environment),
        cmocka_unit_test(a_world_has_so_many_members_and_no_more),
        cmocka_unit_test(the_machine_is_told_all_of_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
