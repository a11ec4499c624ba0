/* From options and variables to a configuration: every rule, every check, and their order. What is expected here was
 * seen on PyTorch 2.13, if nothing else is said. */
#include "run_scene.h"

#include "cli/nproc.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>

#define PROGRAM "--no-python|/bin/sh" /* one that is there, wherever PATH leads */

/* `argv` without the script, which is put behind it. */
static int configure(struct scene *scene, const char *argv, const char *variables)
{
    char all[SCENE_BYTES_MAX];
    int rc;

    (void)snprintf(all, sizeof all, "%s%s%s", argv, argv[0] == '\0' ? "" : "|", PROGRAM);
    rc = scene_parse(scene, all, variables);
    return rc < 0 ? rc : scene_configure_on(scene, "/nowhere");
}

static struct mu_run_config *configured(struct scene *scene, const char *argv, const char *variables)
{
    if (configure(scene, argv, variables) < 0)
        fail_msg("'%s' with '%s': %s: %s", argv, variables, mu_run_kind_name(scene->problem.kind),
                 scene->problem.error.text);
    return scene->config;
}

/* ---- Checks ---- */

static const struct {
    const char *argv, *variables;
    enum mu_run_kind kind;
    const char *part; /* of the error */
} bad[] = {
    { "", "LOGLEVEL=17", MU_RUN_VALUE, "LOGLEVEL" },
    { "", "LOGLEVEL=info", MU_RUN_VALUE, "'info'" },
    { "--nnodes=1:2:3", "", MU_RUN_RUNTIME, "nnodes=1:2:3 is not in \"MIN:MAX\" format" },
    { "--nnodes=x", "", MU_RUN_VALUE, "'x'" },
    { "--nnodes=1:x", "", MU_RUN_VALUE, "'x'" },
    { "--nnodes=1:", "", MU_RUN_VALUE, "''" },
    { "--nnodes=", "", MU_RUN_VALUE, "''" },
    { "--nnodes=99999999999999999999", "", MU_RUN_VALUE, "99999999999999999999" }, /* stock has no limit */
    { "--nnodes=0", "", MU_RUN_ASSERTION, "minimum (0)" },
    { "--nnodes=-1:2", "", MU_RUN_ASSERTION, "minimum (-1)" },
    { "--nnodes=3:2", "", MU_RUN_ASSERTION, "maximum (2)" },
    { "--max-restarts=-1", "", MU_RUN_ASSERTION, "--max-restarts=-1" },
    { "--nproc-per-node=x", "", MU_RUN_VALUE, "Unsupported nproc_per_node value: x" },
    { "--nproc-per-node=CPU", "", MU_RUN_VALUE, "Unsupported nproc_per_node value: CPU" },
    { "", "PET_NPROC_PER_NODE=", MU_RUN_VALUE, "Unsupported nproc_per_node value: " },
    { "--nproc-per-node=gpu", "", MU_RUN_VALUE, "Cuda is not available" },
    { "--nproc-per-node=gpu", "CUDA_VISIBLE_DEVICES=", MU_RUN_VALUE, "Cuda is not available" },
    { "--nproc-per-node=xpu", "", MU_RUN_VALUE, "Xpu is not available" },
    { "--rdzv-conf=a", "", MU_RUN_VALUE, "'a'" },
    { "--rdzv-conf==a", "", MU_RUN_VALUE, "--rdzv-conf" },
    { "--rdzv-conf=,", "", MU_RUN_VALUE, "--rdzv-conf" },
    { "--rdzv-conf=a=", "", MU_RUN_VALUE, "'a'" },
    { "--local-ranks-filter=x", "", MU_RUN_VALUE, "--local-ranks-filter" },
    { "--local-ranks-filter=0,", "", MU_RUN_VALUE, "--local-ranks-filter" },
    { "--local-ranks-filter= ", "", MU_RUN_VALUE, "--local-ranks-filter" },
    { "--logs-specs=foo", "", MU_RUN_VALUE, "--logs-specs=foo: Could not find entrypoint: only 'default' is possible" },
    { "--logs-specs=", "", MU_RUN_VALUE, "only 'default' is possible" },
    { "--redirects=4", "", MU_RUN_VALUE, "4" },
    { "--redirects=10:1", "", MU_RUN_VALUE, "10:1" },
    { "--redirects=", "", MU_RUN_VALUE, "--redirects" },
    { "--tee=x", "", MU_RUN_VALUE, "--tee" },
    { "--shutdown-timeout=-1", "", MU_RUN_VALUE, "-1" },
    { "", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=x", MU_RUN_VALUE, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=x" },
    { "", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=2.5", MU_RUN_VALUE, "2.5" },
    { "", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=", MU_RUN_VALUE, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT" },
    { "", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=-3", MU_RUN_VALUE, "-3" }, /* stock takes it, to no good */
    { "--exit-barrier-timeout=-1", "", MU_RUN_VALUE, "--exit-barrier-timeout" },
    { "--exit-barrier-timeout=nan", "", MU_RUN_VALUE, "--exit-barrier-timeout" },
    { "", "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT=x", MU_RUN_VALUE, "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT=x" },
    { "", "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT=-1", MU_RUN_VALUE, "UNINTERRUPTIBLE" },
    { "-m", "", MU_RUN_VALUE, "Don't use both" },
    { "--rdzv-backend=", "", MU_RUN_VALUE, "empty" },
    { "--rdzv-endpoint=h", "", MU_RUN_VALUE, "port is missing in endpoint: h" },
    { "--rdzv-endpoint=h:99999", "", MU_RUN_VALUE, "h:99999" },
    { "--rdzv-endpoint=h!:1", "", MU_RUN_VALUE, "h!:1" },
    { "--rdzv-backend=c10d|--rdzv-endpoint=h:99999", "", MU_RUN_VALUE, "h:99999" },
    { "--rdzv-backend=c10d|--rdzv-endpoint=h!:1", "", MU_RUN_VALUE, "h!:1" },
    { "--nnodes=2|--master-port=70000", "", MU_RUN_VALUE, "127.0.0.1:70000" },
    { "--nnodes=2|--master-port=-1", "", MU_RUN_VALUE, "127.0.0.1:-1" },
    { "--nnodes=2|--node-rank=2", "", MU_RUN_VALUE, "--node-rank=2" }, /* stock waits for a timeout */
    { "--nnodes=2|--node-rank=-1", "", MU_RUN_VALUE, "--node-rank=-1" },
    { "--nproc-per-node=0", "", MU_RUN_ASSERTION, "--nproc-per-node=0" },
    { "--nproc-per-node=-2", "", MU_RUN_ASSERTION, "--nproc-per-node=-2" },
    { "--nproc-per-node=4097", "", MU_RUN_VALUE, "4096" },
    { "--monitor-interval=0", "", MU_RUN_ASSERTION, "--monitor-interval" },
    { "--monitor-interval=-1", "", MU_RUN_ASSERTION, "--monitor-interval" },
    { "--monitor-interval=nan", "", MU_RUN_ASSERTION, "--monitor-interval" },
    { "--virtual-local-rank|--nproc-per-node=2", "CUDA_VISIBLE_DEVICES=3", MU_RUN_VALUE,
      "local_rank 1 exceeds available GPUs in CUDA_VISIBLE_DEVICES=3" },
    { "--virtual-local-rank|--nproc-per-node=2", "CUDA_VISIBLE_DEVICES=", MU_RUN_VALUE, "local_rank 1" },
    { "--virtual-local-rank|--nproc-per-node=2", "HIP_VISIBLE_DEVICES=3|CUDA_VISIBLE_DEVICES=1,2", MU_RUN_VALUE,
      "local_rank 1 exceeds available GPUs in HIP_VISIBLE_DEVICES=3" },
    { "--event-log-handler=foo", "", MU_RUN_KEY, "'foo'" },
    { "--event-log-handler=file:", "", MU_RUN_KEY, "'file:'" },
    { "--metrics=foo", "", MU_RUN_VALUE, "'foo'" },
    { "--metrics=file:", "", MU_RUN_VALUE, "'file:'" },
    { "--metrics=dynamic_rendezvous", "", MU_RUN_VALUE, "null, console or file:PATH" },
    { "--numa-binding=node", "", MU_RUN_RUNTIME, "no NVIDIA or AMD GPU was found" },
};

static void what_is_wrong_is_said_by_kind_and_name(void **state)
{
    struct scene scene;

    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        if (configure(&scene, bad[i].argv, bad[i].variables) == 0)
            fail_msg("'%s' with '%s' was taken", bad[i].argv, bad[i].variables);
        if (scene.problem.kind != bad[i].kind || strstr(scene.problem.error.text, bad[i].part) == NULL)
            fail_msg("'%s' with '%s': %s: %s", bad[i].argv, bad[i].variables, mu_run_kind_name(scene.problem.kind),
                     scene.problem.error.text);
        assert_null(strchr(scene.problem.error.text, '\n'));
        assert_null(scene.config);
    }
}

/* One mistake for each check, in the order in which they are to be found. */
static int configure_older(struct scene *scene, const char *argv)
{
    const struct mu_run_host host = { .program = "muster launch",
                                      .is_launch = true,
                                      .environ = scene->environ.items,
                                      .root = "/nowhere",
                                      .rng = &scene->rng };

    memset(scene, 0, sizeof *scene);
    scene->rng = mu_rng_seeded(7);
    split_words(&scene->argv, argv);
    split_words(&scene->environ, "PYTHON_EXEC=/bin/true");
    assert_int_equal(
        mu_run_options_parse(scene->argv.items, true, scene->environ.items, &scene->options, &scene->problem), 0);
    return mu_run_config_new(&scene->options, &host, &scene->config, &scene->problem);
}

/* It says that it is old, and wants --use-env where there is nobody to read an argument. */
static void the_older_command_has_a_rule_of_its_own(void **state)
{
    struct scene scene;

    (void)state;
    assert_true(configure_older(&scene, "--no-python|--nnodes=x|sh") < 0);
    assert_int_equal(scene.problem.kind, MU_RUN_VALUE);
    assert_non_null(strstr(scene.problem.error.text, "--use-env"));
    assert_int_equal(configure_older(&scene, "--no-python|--use_env|sh"), 0);
    assert_string_equal(scene.config->command.argv[0], "sh");
    assert_null(scene.config->command.argv[1]);
    assert_int_equal(scene.config->notes[0].level, MUSTER_LOG_WARNING);
    assert_non_null(strstr(scene.config->notes[0].text, "deprecated"));
    scene_done(&scene);
    assert_int_equal(configure_older(&scene, "x.py"), 0);
    assert_string_equal(scene.config->command.argv[3], "--local-rank=${local_rank}");
    scene_done(&scene);
}

static void of_two_mistakes_the_one_that_stock_finds_is_found(void **state)
{
    static const struct {
        const char *argv;
        const char *part;
    } order[] = {
        { "--nnodes=1:2:3", "MIN:MAX" },
        { "--max-restarts=-1", "--max-restarts" },
        { "--nproc-per-node=x", "nproc_per_node" },
        { "--rdzv-conf=a", "--rdzv-conf" },
        { "--local-ranks-filter=x", "--local-ranks-filter" },
        { "--logs-specs=q", "--logs-specs" },
        { "--redirects=9", "--redirects" },
        { "--tee=9", "--tee" },
        { "--shutdown-timeout=-1", "--shutdown-timeout" },
        { "-m", "Don't use both" },
        { "--rdzv-backend=", "empty" },
        { "--rdzv-endpoint=h!:1|--rdzv-backend=c10d", "h!:1" },
        { "--monitor-interval=0", "--monitor-interval" },
        { "--event-log-handler=foo", "--event-log-handler" },
        { "--numa-binding=node", "--numa-binding" },
    };
    struct scene scene;
    char argv[SCENE_BYTES_MAX];

    (void)state;
    for (size_t i = 0; i < COUNT(order); i++) {
        for (size_t other = i + 1; other < COUNT(order); other++) {
            if (strcmp(order[i].argv, "--rdzv-backend=") == 0 && other == i + 1)
                continue; /* the same option */
            (void)snprintf(argv, sizeof argv, "%s|%s", order[other].argv, order[i].argv);
            assert_true(configure(&scene, argv, "") < 0);
            if (strstr(scene.problem.error.text, order[i].part) == NULL)
                fail_msg("'%s': %s", argv, scene.problem.error.text);
        }
    }
}

/* ---- Where nodes meet ---- */

static void alone_it_needs_no_place_to_meet(void **state)
{
    static const char *const lines[] = {
        "",
        "--rdzv-id=given",
        "--master-addr=h",
        "--nnodes=1",
        "--standalone|--rdzv-backend=static|--rdzv-endpoint=h:1",
        "--standalone|--rdzv-backend=nope",
        "--standalone|--master-port=1",
    };
    struct scene scene;

    (void)state;
    for (size_t i = 0; i < COUNT(lines); i++) {
        const struct mu_run_config *config = configured(&scene, lines[i], "");
        const char *id = muster_rdzv_params_run_id(config->params);

        assert_true(config->is_standalone);
        assert_string_equal(muster_rdzv_params_backend(config->params), "c10d");
        assert_string_equal(muster_rdzv_params_endpoint(config->params), "localhost:0");
        assert_int_equal(strlen(id), 36);
        assert_true(id[8] == '-' && id[13] == '-' && id[14] == '4' && id[18] == '-' && id[23] == '-');
        assert_non_null(strchr("89ab", id[19]));
        scene_done(&scene);
    }
}

static bool has_note(const struct mu_run_config *config, enum muster_log_level level, const char *part)
{
    for (size_t i = 0; i < config->notes_count; i++) {
        if (config->notes[i].level == level && strstr(config->notes[i].text, part) != NULL)
            return true;
    }
    return false;
}

static void only_whoever_asks_for_it_sees_the_banner(void **state)
{
    struct scene scene;

    (void)state;
    configured(&scene, "--standalone|--nnodes=1:4", "");
    assert_true(has_note(scene.config, MUSTER_LOG_INFO, "\n**************************************\nRendezvous info:"));
    assert_true(has_note(scene.config, MUSTER_LOG_INFO, "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-id="));
    assert_int_equal(scene.config->nodes_max, 4); /* not forced to be one */
    scene_done(&scene);
    configured(&scene, "", "");
    assert_false(has_note(scene.config, MUSTER_LOG_INFO, "Rendezvous info"));
    scene_done(&scene);
}

static const struct {
    const char *argv, *variables;
    const char *backend, *endpoint, *run_id;
} places[] = {
    { "--nnodes=2", "", "static", "127.0.0.1:29500", "none" },
    { "--nnodes=1:2|--rdzv-id=j", "", "static", "127.0.0.1:29500", "j" },
    { "--master-port=1", "", "static", "127.0.0.1:1", "none" },
    { "", "PET_MASTER_PORT=12", "static", "127.0.0.1:12", "none" },
    { "--nnodes=2|--master-addr=h|--master-port=7", "", "static", "h:7", "none" },
    { "--nnodes=2|--master-addr=[::1]", "", "static", "[::1]:29500", "none" },
    { "--rdzv-endpoint=h:1", "", "static", "h:1", "none" },
    { "--rdzv-backend=c10d", "", "c10d", "localhost:29400", "none" },
    { "--rdzv-backend=c10d|--rdzv-endpoint=h", "", "c10d", "h", "none" },
    { "--rdzv-backend=c10d|--rdzv-endpoint=h:1|--rdzv-id=j", "", "c10d", "h:1", "j" },
    { "--rdzv-backend=other", "", "other", "", "none" },
    { "--rdzv-backend=other|--rdzv-endpoint=!", "", "other", "!", "none" },
    { "--rdzv-backend=etcd|--rdzv-endpoint=h", "", "etcd", "h", "none" },
    { "--rdzv-backend=etcd|--rdzv-endpoint=etcd://h:1/a%20job?min_workers=1", "", "etcd",
      "etcd://h:1/a%20job?min_workers=1", "a job" },
    { "--rdzv-backend=etcd|--rdzv-endpoint=etcd://h/job|--rdzv-id=", "", "etcd", "etcd://h/job", "job" },
    { "--rdzv-backend=etcd|--rdzv-endpoint=etcd://h/job|--rdzv-id=none", "", "etcd", "etcd://h/job", "none" },
    { "--rdzv-backend=etcd|--rdzv-endpoint=etcd://h/job", "PET_RDZV_ID=other", "etcd", "etcd://h/job", "other" },
    { "--rdzv-backend=other|--rdzv-endpoint=etcd://h/job", "", "other", "etcd://h/job", "none" },
};

static void places_are_as_given_or_made_of_the_masters(void **state)
{
    struct scene scene;

    (void)state;
    for (size_t i = 0; i < COUNT(places); i++) {
        const struct mu_run_config *config = configured(&scene, places[i].argv, places[i].variables);

        assert_false(config->is_standalone);
        assert_string_equal(muster_rdzv_params_backend(config->params), places[i].backend);
        assert_string_equal(muster_rdzv_params_endpoint(config->params), places[i].endpoint);
        assert_string_equal(muster_rdzv_params_run_id(config->params), places[i].run_id);
        scene_done(&scene);
    }
}

static void a_master_without_effect_is_warned_of(void **state)
{
    struct scene scene;

    (void)state;
    configured(&scene, "--rdzv-backend=c10d", "");
    assert_true(has_note(scene.config, MUSTER_LOG_WARNING, "master_addr is only used for static"));
    scene_done(&scene);
    configured(&scene, "--rdzv-backend=c10d|--rdzv-endpoint=h:1", "");
    assert_false(has_note(scene.config, MUSTER_LOG_WARNING, ""));
    scene_done(&scene);
    configured(&scene, "--standalone", "");
    assert_false(has_note(scene.config, MUSTER_LOG_WARNING, ""));
    scene_done(&scene);
}

static void an_empty_id_becomes_a_random_number(void **state)
{
    struct scene scene;
    const char *id;

    (void)state;
    configured(&scene, "--rdzv-id=|--rdzv-backend=c10d", "");
    id = muster_rdzv_params_run_id(scene.config->params);
    assert_true(strlen(id) > 30 && id[strspn(id, "0123456789")] == '\0');
    assert_true(has_note(scene.config, MUSTER_LOG_WARNING, id));
    scene_done(&scene);
}

static int64_t option_of(const struct mu_run_config *config, const char *key)
{
    int64_t value = -77;

    assert_int_equal(muster_rdzv_params_get_as_int(config->params, key, -1, &value, NULL), 0);
    return value;
}

static void the_rendezvous_gets_its_options(void **state)
{
    struct scene scene;
    bool shared = true;

    (void)state;
    configured(&scene, "--nnodes=2:4|--node-rank=1|--rdzv-conf= a = 1 ,timeout=3,rank=9,a=2|--local-addr=me", "");
    assert_int_equal(option_of(scene.config, "rank"), 1); /* the node's, whatever else is said */
    assert_int_equal(option_of(scene.config, "timeout"), 3);
    assert_int_equal(option_of(scene.config, "a"), 2);
    assert_int_equal(muster_rdzv_params_min_nodes(scene.config->params), 2);
    assert_int_equal(muster_rdzv_params_max_nodes(scene.config->params), 4);
    assert_string_equal(muster_rdzv_params_local_addr(scene.config->params), "me");
    scene_done(&scene);
    configured(&scene, "--rdzv-backend=c10d|--rdzv-endpoint=h:1|--local-addr=|--node-rank=7",
               "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1");
    assert_int_equal(option_of(scene.config, "rank"), -1);
    assert_int_equal(option_of(scene.config, "timeout"), 900);
    assert_null(muster_rdzv_params_local_addr(scene.config->params));
    assert_int_equal(muster_rdzv_params_get_as_bool(scene.config->params, "use_agent_store", true, &shared, NULL), 0);
    assert_false(shared);
    scene_done(&scene);
}

/* ---- Nodes and workers ---- */

static void nodes_are_a_number_or_a_range(void **state)
{
    static const struct {
        const char *argv;
        int64_t min, max;
    } rows[] = {
        { "", 1, 1 },
        { "--nnodes=3", 3, 3 },
        { "--nnodes=2:20", 2, 20 },
        { "--nnodes= 1 : +2_0 ", 1, 20 },
    };
    struct scene scene;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        configured(&scene, rows[i].argv, "");
        assert_int_equal(scene.config->nodes_min, rows[i].min);
        assert_int_equal(scene.config->nodes_max, rows[i].max);
        scene_done(&scene);
    }
}

static void workers_are_counted_or_given(void **state)
{
    struct scene scene;

    (void)state;
    assert_int_equal(configured(&scene, "", "")->nproc, 1);
    scene_done(&scene);
    assert_int_equal(configured(&scene, "--nproc-per-node= 4 ", "")->nproc, 4);
    assert_true(has_note(scene.config, MUSTER_LOG_INFO, "Using nproc_per_node=4."));
    scene_done(&scene);
    assert_int_equal(configured(&scene, "--nproc-per-node=4096", "")->nproc, 4096);
    scene_done(&scene);
    assert_int_equal(configured(&scene, "--nproc-per-node=cpu", "")->nproc, mu_nproc_cpus());
    scene_done(&scene);
    assert_int_equal(configured(&scene, "--nproc-per-node=auto", "")->nproc, mu_nproc_cpus());
    scene_done(&scene);
    assert_int_equal(configured(&scene, "--nproc-per-node=gpu", "CUDA_VISIBLE_DEVICES=0,1,2")->nproc, 3);
    scene_done(&scene);
    /* A list alone makes no machine one with GPUs. */
    assert_int_equal(configured(&scene, "--nproc-per-node=auto", "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6")->nproc,
                     mu_nproc_cpus());
    scene_done(&scene);
}

static void several_workers_get_one_thread_each_unless_told_otherwise(void **state)
{
    static const struct {
        const char *argv, *variables;
        bool set;
    } rows[] = {
        { "", "", false },
        { "--nproc-per-node=2", "", true },
        { "--nproc-per-node=2", "OMP_NUM_THREADS=3", false },
        { "--nproc-per-node=2", "OMP_NUM_THREADS=", false },
    };
    struct scene scene;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        configured(&scene, rows[i].argv, rows[i].variables);
        assert_int_equal(scene.config->set_omp, rows[i].set);
        assert_int_equal(has_note(scene.config, MUSTER_LOG_WARNING,
                                  "\n*****************************************\nSetting OMP_NUM_THREADS environment "
                                  "variable for each process to be 1"),
                         rows[i].set);
        scene_done(&scene);
    }
}

static void virtual_ranks_take_devices_from_the_list(void **state)
{
    struct scene scene;

    (void)state;
    configured(&scene, "--virtual-local-rank|--nproc-per-node=2", "CUDA_VISIBLE_DEVICES= 3 ,\tGPU-4 , 5");
    assert_true(scene.config->virtual_local_rank);
    assert_string_equal(scene.config->visible_devices[0], "3");
    assert_string_equal(scene.config->visible_devices[1], "GPU-4");
    scene_done(&scene);
    configured(&scene, "--virtual-local-rank|--nproc-per-node=2", "");
    assert_null(scene.config->visible_devices);
    scene_done(&scene);
    configured(&scene, "--nproc-per-node=2", "CUDA_VISIBLE_DEVICES=3");
    assert_false(scene.config->virtual_local_rank);
    assert_null(scene.config->visible_devices);
    scene_done(&scene);
}

/* ---- Ends, output, variables ---- */

static void the_default_kind_of_logs_may_be_named(void **state)
{
    struct scene scene;

    (void)state;
    configured(&scene, "--logs-specs=default", "");
    scene_done(&scene);
}

static void times_are_options_variables_or_defaults(void **state)
{
    static const struct {
        const char *argv, *variables;
        int64_t shutdown_ms, barrier_ms, uninterruptible_ms;
    } rows[] = {
        { "", "", 30000, -1, 0 },
        { "--shutdown-timeout=0", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=x", 0, -1, 0 },
        { "", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=7", 7000, -1, 0 },
        { "", "PET_SHUTDOWN_TIMEOUT=8|TORCH_ELASTIC_SHUTDOWN_TIMEOUT=7", 8000, -1, 0 },
        { "--shutdown-timeout=9223372036854775807", "", INT64_C(1000000000000), -1, 0 },
        { "--exit-barrier-timeout=1.5", "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT=3", 30000, 1500, 0 },
        { "", "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT=0", 30000, 0, 0 },
        { "", "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT=inf", 30000, INT64_C(1000000000000), 0 },
        { "", "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT=0.5", 30000, -1, 500 },
    };
    struct scene scene;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        configured(&scene, rows[i].argv, rows[i].variables);
        assert_int_equal(scene.config->shutdown_timeout_ms, rows[i].shutdown_ms);
        assert_int_equal(scene.config->exit_barrier_timeout_ms, rows[i].barrier_ms);
        assert_int_equal(scene.config->uninterruptible_timeout_ms, rows[i].uninterruptible_ms);
        scene_done(&scene);
    }
}

static void signals_are_those_that_can_be_handled(void **state)
{
    struct scene scene;

    (void)state;
    configured(&scene, "", "");
    assert_int_equal(scene.config->signals.count, 4);
    assert_string_equal(scene.config->signals_text, "SIGTERM,SIGINT,SIGHUP,SIGQUIT");
    assert_false(has_note(scene.config, MUSTER_LOG_WARNING, ""));
    scene_done(&scene);
    configured(&scene, "--signals-to-handle=SIGUSR1, SIGFOO", "");
    assert_int_equal(scene.config->signals.count, 1);
    assert_int_equal(scene.config->signals.numbers[0], SIGUSR1);
    assert_string_equal(scene.config->signals_text, "SIGUSR1, SIGFOO");
    assert_true(has_note(scene.config, MUSTER_LOG_WARNING, "SIGFOO"));
    scene_done(&scene);
    configured(&scene, "--signals-to-handle=", "");
    assert_int_equal(scene.config->signals.count, 0);
    scene_done(&scene);
}

static void the_option_for_the_prefix_wins_over_the_variable(void **state)
{
    static const struct {
        const char *words, *variables, *template;
    } rows[] = {
        { "--log-line-prefix-template=A", "PET_LOG_LINE_PREFIX_TEMPLATE=B|TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=C",
          "A" },
        { "", "PET_LOG_LINE_PREFIX_TEMPLATE=B|TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=C", "B" },
        { "--log-line-prefix-template=", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=C", "C" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct scene scene;

        configured(&scene, rows[i].words, rows[i].variables);
        assert_string_equal(scene.config->prefix_template, rows[i].template);
        scene_done(&scene);
    }
}

static void output_goes_where_it_is_told(void **state)
{
    struct scene scene;

    (void)state;
    configured(&scene, "-r0:1,1:2|-t3|--local-ranks-filter=0, 2|--duplicate-stdout-filters=a,b,,c|--log-dir=/x",
               "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=[${rank}]|TMPDIR=/");
    assert_int_equal(mu_redirects_of(&scene.config->redirects, 1), MU_STD_ERR);
    assert_int_equal(mu_redirects_of(&scene.config->tee, 17), MU_STD_BOTH);
    assert_true(mu_ranks_shown_has(&scene.config->shown, 2));
    assert_false(mu_ranks_shown_has(&scene.config->shown, 1));
    assert_int_equal(scene.config->stdout_filters.count, 2);
    assert_int_equal(scene.config->stderr_filters.count, 0);
    assert_string_equal(scene.config->log_dir, "/x");
    assert_string_equal(scene.config->tmp_dir, "/");
    assert_string_equal(scene.config->prefix_template, "[${rank}]");
    scene_done(&scene);
    configured(&scene, "--log-dir=", "TMPDIR=/nowhere/at/all|TEMP=|TMP=/");
    assert_null(scene.config->log_dir);
    assert_null(scene.config->prefix_template);
    assert_string_equal(scene.config->tmp_dir, "/");
    scene_done(&scene);
    configured(&scene, "", "");
    assert_string_equal(scene.config->tmp_dir, "/tmp");
    scene_done(&scene);
}

static void variables_tell_the_agent_the_rest(void **state)
{
    struct scene scene;

    (void)state;
    configured(&scene, "",
               "TORCHELASTIC_ERROR_FILE=/e|TORCHELASTIC_ENABLE_FILE_TIMER=1|TORCHELASTIC_TIMER_FILE=/t|"
               "TORCHELASTIC_HEALTH_CHECK_PORT=8080|MUSTER_HEALTH_CHECK_TIMEOUT=1.5|TORCH_ELASTIC_WORKER_IDENTICAL=1");
    assert_string_equal(scene.config->error_file, "/e");
    assert_string_equal(scene.config->timer_file, "/t");
    assert_true(scene.config->file_timer && scene.config->workers_identical);
    assert_int_equal(scene.config->health_port, 8080);
    assert_int_equal(scene.config->health_timeout_ms, 1500);
    scene_done(&scene);
    configured(&scene, "",
               "TORCHELASTIC_ERROR_FILE=|TORCHELASTIC_ENABLE_FILE_TIMER=yes|TORCHELASTIC_HEALTH_CHECK_PORT=x|"
               "TORCH_ELASTIC_WORKER_IDENTICAL=0");
    assert_null(scene.config->error_file);
    assert_null(scene.config->timer_file);
    assert_false(scene.config->file_timer || scene.config->workers_identical);
    assert_int_equal(scene.config->health_port, -1);
    assert_true(has_note(scene.config, MUSTER_LOG_INFO, "TORCHELASTIC_HEALTH_CHECK_PORT=x"));
    scene_done(&scene);
}

static void the_log_level_is_a_name_or_an_option(void **state)
{
    static const struct {
        const char *argv, *variables;
        enum muster_log_level level;
    } rows[] = {
        { "", "", MUSTER_LOG_NOTICE },
        { "", "LOGLEVEL=INFO", MUSTER_LOG_INFO },
        { "", "LOGLEVEL=CRITICAL", MUSTER_LOG_ERROR },
        { "", "LOGLEVEL=WARN", MUSTER_LOG_WARNING },
        { "", "LOGLEVEL=NOTSET", MUSTER_LOG_DEBUG },
        { "-q", "LOGLEVEL=DEBUG", MUSTER_LOG_ERROR },
        { "-v", "LOGLEVEL=ERROR", MUSTER_LOG_INFO },
        { "-vv", "", MUSTER_LOG_DEBUG },
    };
    struct scene scene;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_int_equal(configured(&scene, rows[i].argv, rows[i].variables)->log_level, rows[i].level);
        scene_done(&scene);
    }
}

static void events_go_to_a_known_sink(void **state)
{
    static const char *const names[] = { "null", "console", "dynamic_rendezvous", "file:/x", "file:y" };
    struct scene scene;
    char argv[64];

    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        (void)snprintf(argv, sizeof argv, "--event-log-handler=%s", names[i]);
        assert_string_equal(configured(&scene, argv, "")->event_log_handler, names[i]);
        scene_done(&scene);
    }
}

static void metrics_go_to_a_known_sink(void **state)
{
    static const char *const names[] = { "null", "console", "file:/x" };
    struct scene scene;
    char argv[64];

    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        (void)snprintf(argv, sizeof argv, "--metrics=%s", names[i]);
        assert_string_equal(configured(&scene, argv, "")->metrics, names[i]);
        scene_done(&scene);
        (void)snprintf(argv, sizeof argv, "PET_METRICS=%s", names[i]);
        assert_string_equal(configured(&scene, "", argv)->metrics, names[i]);
        scene_done(&scene);
    }
}

/* ---- Text, memory ---- */

static void a_dry_run_shows_all_of_it(void **state)
{
    static const char *const parts[] = {
        "  nproc_per_node          2\n",
        "  rdzv_endpoint           h:1\n",
        "  metrics                 null\n",
        "  node_rank               1\n",
        "  redirects               0:1\n",
        "  tee                     3\n",
        "  rdzv_conf               a=1,password=***,token=***,b=2\n",
        "\n  /bin/sh -c 'echo it'\\''s $x' 0 '' $'a\\nb'\n",
        "  RANK=0\n",
        "  MASTER_ADDR=h\n",
        "  MASTER_PORT=1\n",
        "  WORLD_SIZE=6\n",
        "  TORCHELASTIC_USE_AGENT_STORE=True\n",
        "  OMP_NUM_THREADS=1\n",
        "  TORCHELASTIC_ERROR_FILE=(log directory)/attempt_0/0/error.json\n",
    };
    struct mu_text text = { 0 };
    struct scene scene;

    (void)state;
    scene_config(
        &scene,
        "--nnodes=2:3|--node-rank=1|--rdzv-endpoint=h:1|--nproc-per-node=2|-r0:1|-t3|--rdzv-conf=a=1,password=open "
        "sesame, token = open=t,b=2|"
        "--no-python|"
        "/bin/sh|-c|echo it's $x|$local_rank||a\nb",
        "");
    mu_run_config_text(&text, scene.config);
    assert_false(text.failed);
    assert_null(memmem(text.buf.data, text.buf.len, "open", 4));
    for (size_t i = 0; i < COUNT(parts); i++) {
        if (memmem(text.buf.data, text.buf.len, parts[i], strlen(parts[i])) == NULL)
            fail_msg("'%s' is not in: %.*s", parts[i], (int)text.buf.len, text.buf.data);
    }
    mu_text_done(&text);
    scene_done(&scene);
}

static void errors_that_come_later_have_kinds_too(void **state)
{
    static const struct {
        int code, errnum;
        const char *kind;
    } rows[] = {
        { MUSTER_EINVAL, 0, "ValueError" },
        { MUSTER_ERDZV_TIMEOUT, 0, "RendezvousTimeoutError" },
        { MUSTER_ERDZV_CLOSED, 0, "RendezvousClosedError" },
        { MUSTER_ERDZV_CONNECTION, ECONNREFUSED, "RendezvousConnectionError" },
        { MUSTER_ERDZV_STATE, 0, "RendezvousStateError" },
        { MUSTER_ESIGNAL, 0, "SignalException" },
        { MUSTER_ETIMEOUT, ETIMEDOUT, "TimeoutError" },
        { MUSTER_EADDRINUSE, EADDRINUSE, "DistNetworkError" },
        { MUSTER_ENOMEM, ENOMEM, "MemoryError" },
        { MUSTER_ESYSTEM, 0, "RuntimeError" },
        { MUSTER_ESYSTEM, ENOENT, "FileNotFoundError" },
        { MUSTER_ESYSTEM, EACCES, "PermissionError" },
        { MUSTER_ESYSTEM, EPERM, "PermissionError" },
        { MUSTER_ESYSTEM, ENOTDIR, "NotADirectoryError" },
        { MUSTER_ESYSTEM, EISDIR, "IsADirectoryError" },
        { MUSTER_ESYSTEM, EEXIST, "FileExistsError" },
        { MUSTER_ESYSTEM, EAGAIN, "BlockingIOError" },
        { MUSTER_ESYSTEM, EMFILE, "OSError" },
        { MUSTER_EINVAL, EINVAL, "OSError" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_error error = { .code = rows[i].code, .errnum = rows[i].errnum };

        assert_string_equal(mu_run_error_kind(&error), rows[i].kind);
    }
}

static void missing_memory_is_an_error(void **state)
{
    struct scene scene;

    (void)state;
    FOR_EACH_FAILURE (n) {
        struct mu_text text = { 0 };
        bool failed = configure(&scene,
                                "--nproc-per-node=2|--rdzv-id=|--nnodes=2|--virtual-local-rank|--log-dir=/x|"
                                "--duplicate-stdout-filters=a|--duplicate-stderr-filters=b|--signals-to-handle=x|"
                                "--rdzv-conf=a=1",
                                "CUDA_VISIBLE_DEVICES=1,2|TORCHELASTIC_ERROR_FILE=/e|TORCHELASTIC_TIMER_FILE=/t|"
                                "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=x|TORCHELASTIC_HEALTH_CHECK_PORT=x") < 0;

        if (failed) {
            assert_int_equal(scene.problem.kind, MU_RUN_MEMORY);
            assert_int_equal(scene.problem.error.code, MUSTER_ENOMEM);
        } else {
            mu_run_config_text(&text, scene.config);
            failed = text.failed;
        }
        assert_int_equal(failed, fail_alloc_hit());
        mu_text_done(&text);
        scene_done(&scene);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_wrong_is_said_by_kind_and_name),
        cmocka_unit_test(the_older_command_has_a_rule_of_its_own),
        cmocka_unit_test(of_two_mistakes_the_one_that_stock_finds_is_found),
        cmocka_unit_test(alone_it_needs_no_place_to_meet),
        cmocka_unit_test(only_whoever_asks_for_it_sees_the_banner),
        cmocka_unit_test(places_are_as_given_or_made_of_the_masters),
        cmocka_unit_test(a_master_without_effect_is_warned_of),
        cmocka_unit_test(an_empty_id_becomes_a_random_number),
        cmocka_unit_test(the_rendezvous_gets_its_options),
        cmocka_unit_test(nodes_are_a_number_or_a_range),
        cmocka_unit_test(workers_are_counted_or_given),
        cmocka_unit_test(several_workers_get_one_thread_each_unless_told_otherwise),
        cmocka_unit_test(virtual_ranks_take_devices_from_the_list),
        cmocka_unit_test(the_default_kind_of_logs_may_be_named),
        cmocka_unit_test(times_are_options_variables_or_defaults),
        cmocka_unit_test(signals_are_those_that_can_be_handled),
        cmocka_unit_test(the_option_for_the_prefix_wins_over_the_variable),
        cmocka_unit_test(output_goes_where_it_is_told),
        cmocka_unit_test(variables_tell_the_agent_the_rest),
        cmocka_unit_test(the_log_level_is_a_name_or_an_option),
        cmocka_unit_test(events_go_to_a_known_sink),
        cmocka_unit_test(metrics_go_to_a_known_sink),
        cmocka_unit_test(a_dry_run_shows_all_of_it),
        cmocka_unit_test(errors_that_come_later_have_kinds_too),
        cmocka_unit_test(missing_memory_is_an_error),
    };

    return cmocka_run_group_tests_name("configuration of muster run", tests, NULL, NULL);
}
