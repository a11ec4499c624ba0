/* Worker specs with little memory, and the environments that are made of them. What else there is to say about specs
 * stands in test_agent_api.c. */
#include "agent/spec.h"

#include "failmalloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static struct muster_rdzv_params *make_params(void)
{
    struct muster_rdzv_params *params = NULL;

    assert_int_equal(muster_rdzv_params_new("c10d", "node0:1", "job", 1, 1, NULL, &params, NULL), 0);
    return params;
}

static struct muster_worker_spec make_spec(const struct muster_rdzv_params *params)
{
    static const char *const argv[] = { "python3", "train.py", NULL }, *const envp[] = { "A=1", NULL };
    struct muster_worker_spec spec;

    muster_worker_spec_init(&spec);
    spec.rdzv = params;
    spec.local_world_size = 2;
    spec.argv = argv;
    spec.envp = envp;
    spec.log_dir = "/logs";
    spec.redirects = "3";
    spec.tee = "0:1";
    spec.signals = "SIGTERM";
    return spec;
}

static void a_spec_is_copied_whole(void **state)
{
    struct muster_rdzv_params *params = make_params();
    struct muster_worker_spec given = make_spec(params);
    struct mu_spec spec;

    (void)state;
    assert_int_equal(mu_spec_init(&spec, &given, NULL), 0);
    muster_rdzv_params_free(params);
    assert_string_equal(muster_rdzv_params_run_id(spec.given.rdzv), "job");
    assert_string_equal(spec.given.argv[1], "train.py");
    assert_ptr_not_equal(spec.given.argv[1], given.argv[1]);
    assert_null(spec.given.argv[2]);
    assert_string_equal(spec.given.envp[0], "A=1");
    assert_string_equal(spec.given.log_dir, "/logs");
    assert_int_equal(mu_redirects_of(&spec.redirects, 7), MU_STD_BOTH);
    assert_int_equal(mu_redirects_of(&spec.tee, 0), MU_STD_OUT);
    assert_int_equal(spec.signals.count, 1);
    assert_int_equal(spec.given.shutdown_timeout_ms, MU_SPEC_SHUTDOWN_MS);
    mu_spec_done(&spec);
}

static bool has(char **list, const char *text)
{
    for (; *list != NULL; list++) {
        if (strcmp(*list, text) == 0)
            return true;
    }
    return false;
}

static const struct mu_agent_worker second = {
    .local_rank = 1,
    .rank = 3,
    .group_rank = 1,
    .role_rank = 1,
    .local_world_size = 2,
    .world_size = 4,
    .group_world_size = 2,
    .role_world_size = 2,
    .master_addr = "node0",
    .master_port = 1234,
    .restart_count = 5,
    .error_file = "/logs/error.json",
};

static void a_worker_finds_who_it_is_in_its_environment(void **state)
{
    static const char *const inherited[] = { "RANK=9", "RANKED=1", "odd", "NCCL_ASYNC_ERROR_HANDLING=0", NULL };
    static const char *const expected[] = {
        "LOCAL_RANK=1",
        "RANK=3",
        "GROUP_RANK=1",
        "ROLE_RANK=1",
        "ROLE_NAME=trainer",
        "LOCAL_WORLD_SIZE=2",
        "WORLD_SIZE=4",
        "GROUP_WORLD_SIZE=2",
        "ROLE_WORLD_SIZE=2",
        "MASTER_ADDR=node0",
        "MASTER_PORT=1234",
        "TORCHELASTIC_RESTART_COUNT=5",
        "TORCHELASTIC_MAX_RESTARTS=3",
        "TORCHELASTIC_RUN_ID=job",
        "TORCHELASTIC_USE_AGENT_STORE=False",
        "TORCHELASTIC_ERROR_FILE=/logs/error.json",
        "TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
        "RANKED=1",
        "odd",
        "NCCL_ASYNC_ERROR_HANDLING=0",
    };
    struct muster_rdzv_params *params = make_params();
    struct muster_worker_spec given = make_spec(params);
    struct mu_spec spec;
    size_t count = 0;
    char **envp;

    (void)state;
    given.role = "trainer";
    assert_int_equal(mu_spec_init(&spec, &given, NULL), 0);
    envp = mu_spec_environment(&spec, &second, inherited);
    assert_non_null(envp);
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        if (!has(envp, expected[i]))
            fail_msg("there is no %s", expected[i]);
    }
    while (envp[count] != NULL)
        count++;
    assert_int_equal(count, sizeof expected / sizeof expected[0]);
    free(envp);
    mu_spec_done(&spec);
    muster_rdzv_params_free(params);
}

static void any_allocation_may_fail(void **state)
{
    static const char *const inherited[] = { "A=1", NULL };
    struct muster_rdzv_params *params = make_params();
    struct muster_worker_spec given = make_spec(params);
    struct muster_worker_group *copy = NULL;
    struct muster_agent *agent = NULL;
    struct muster_error error = { 0 };
    struct mu_spec spec;
    char **envp = NULL;
    int rc = -1;

    (void)state;
    for (unsigned long nth = 1; rc < 0; nth++) {
        fail_alloc_at(nth);
        rc = muster_agent_new(&given, &agent, &error);
        fail_alloc_at(0);
        assert_true(rc == 0 || (rc == MUSTER_ENOMEM && agent == NULL && error.code == rc));
    }
    rc = -1;
    for (unsigned long nth = 1; rc < 0; nth++) {
        fail_alloc_at(nth);
        rc = muster_agent_snapshot(agent, &copy, &error);
        fail_alloc_at(0);
        assert_true(rc == 0 || (rc == MUSTER_ENOMEM && copy == NULL));
    }
    muster_worker_group_free(copy);
    muster_agent_free(agent);
    rc = -1;
    for (unsigned long nth = 1; rc < 0; nth++) {
        fail_alloc_at(nth);
        rc = muster_worker_spec_check(&given, &error);
        fail_alloc_at(0);
        assert_true(rc == 0 || rc == MUSTER_ENOMEM);
    }
    assert_int_equal(mu_spec_init(&spec, &given, NULL), 0);
    for (unsigned long nth = 1; envp == NULL; nth++) {
        fail_alloc_at(nth);
        envp = mu_spec_environment(&spec, &second, inherited);
        fail_alloc_at(0);
    }
    assert_true(has(envp, "TORCHELASTIC_USE_AGENT_STORE=False"));
    free(envp);
    mu_spec_done(&spec);
    muster_rdzv_params_free(params);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_spec_is_copied_whole),
        cmocka_unit_test(a_worker_finds_who_it_is_in_its_environment),
        cmocka_unit_test(any_allocation_may_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
