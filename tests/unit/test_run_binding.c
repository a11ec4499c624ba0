/* --numa-binding from the command line to a binding for each worker, on machines that the test brings along. */
#include "fake_tree.h"
#include "old_kernel.h"
#include "run_scene.h"

#include <sys/wait.h>

#define PROGRAM "|--no-python|/bin/sh"

/* `allowed` are the CPUs of this process. */
static int configure(struct scene *scene, const char *argv, const char *variables, const char *allowed)
{
    struct mu_cpus cpus;
    const struct mu_run_host host = {
        .program = "torchrun", .environ = scene->environ.items, .root = tree, .allowed = &cpus, .rng = &scene->rng
    };
    char all[SCENE_BYTES_MAX];

    (void)snprintf(all, sizeof all, "%s%s", argv, PROGRAM);
    assert_int_equal(scene_parse(scene, all, variables), 0);
    assert_true(mu_cpus_parse(allowed, &cpus));
    scene->rng = mu_rng_seeded(7);
    return mu_run_config_new(&scene->options, &host, &scene->config, &scene->problem);
}

/* The CPUs of each worker with '|' between them; or the error. */
static const char *bound(const char *argv, const char *variables, const char *allowed)
{
    static char text[2048];
    struct scene scene;
    size_t len = 0;

    text[0] = '\0';
    if (configure(&scene, argv, variables, allowed) < 0) {
        (void)snprintf(text, sizeof text, "%s: %s", mu_run_kind_name(scene.problem.kind), scene.problem.error.text);
        return text;
    }
    for (int64_t i = 0; i < scene.config->nproc; i++) {
        char room[128];

        len += (size_t)snprintf(text + len, sizeof text - len, "%s%s", i == 0 ? "" : "|",
                                mu_cpus_text(&scene.config->bound[i].binding.cpus, room, sizeof room));
    }
    scene_done(&scene);
    return text;
}

static bool has_note(const struct mu_run_config *config, enum muster_log_level level, const char *part)
{
    for (size_t i = 0; i < config->notes_count; i++) {
        if (config->notes[i].level == level && strstr(config->notes[i].text, part) != NULL)
            return true;
    }
    return false;
}

/* Node 0 is 0-3, node 1 is 4-7; the first two GPUs are on node 1. */
static void put_machine(void)
{
    put_cpus((struct fake_cpus){ .sockets = 2, .nodes = 1, .caches = 2, .cores = 2, .threads = 1 });
    put_nvidia("0000:01:00.0", "0x2330\n", "1\n", "GPU-a");
    put_nvidia("0000:02:00.0", "0x2330\n", "1\n", "GPU-b");
    put_nvidia("0000:03:00.0", "0x2330\n", "0\n", "GPU-c");
}

static void workers_get_the_cpus_next_to_their_gpus(void **state)
{
    static const struct {
        const char *argv, *variables, *result;
    } rows[] = {
        { "--numa-binding=node|--nproc-per-node=3", "", "4-7|4-7|0-3" },
        { "--numa-binding=socket|--nproc-per-node=3", "", "4-7|4-7|0-3" },
        { "--numa-binding=exclusive|--nproc-per-node=3", "", "4-5|6-7|0-3" },
        { "--numa-binding=core-complex|--nproc-per-node=3", "", "4-5|6-7|0-1" },
        { "--numa-binding=node|--nproc-per-node=gpu", "", "4-7|4-7|0-3" },
        { "--numa_binding=node", "", "4-7" },
        /* of two GPUs on the node the second is not used: its share is left */
        { "--numa-binding=exclusive", "", "4-5" },
        /* unless no worker sees it */
        { "--numa-binding=exclusive", "CUDA_VISIBLE_DEVICES=1", "4-7" },
        { "--numa-binding=node|--nproc-per-node=2", "CUDA_VISIBLE_DEVICES=2,0", "0-3|4-7" },
        { "--numa-binding=node|--nproc-per-node=2|--virtual-local-rank", "CUDA_VISIBLE_DEVICES=GPU-c,GPU-b",
          "0-3|4-7" },
        { "--numa-binding=node|--nproc-per-node=2|--virtual-local-rank", "HIP_VISIBLE_DEVICES=2,1", "0-3|4-7" },
        { "--numa-binding=node|--nproc-per-node=2", "HIP_VISIBLE_DEVICES=2,1",
          "4-7|4-7" }, /* NVIDIA's do not read it */
        { "--numa-binding=node|--nproc-per-node=4", "",
          "RuntimeError: --numa-binding=node: local rank 3 has no GPU (visible GPUs: 3, workers: 4)" },
        { "--numa-binding=node", "CUDA_VISIBLE_DEVICES=",
          "RuntimeError: --numa-binding=node: local rank 0 has no GPU (visible GPUs: 0, workers: 1)" },
    };

    (void)state;
    put_machine();
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_string_equal(bound(rows[i].argv, rows[i].variables, "0-7"), rows[i].result);
}

static void without_the_option_nobody_is_bound(void **state)
{
    struct scene scene;

    (void)state;
    put_machine();
    assert_int_equal(configure(&scene, "--nproc-per-node=2", "", "0-7"), 0);
    assert_null(scene.config->bound);
    assert_null(scene.config->numa_binding);
    scene_done(&scene);
}

static void what_cannot_be_bound_says_why(void **state)
{
    (void)state;
    assert_string_equal(
        bound("--numa-binding=socket", "", "0-7"),
        "RuntimeError: --numa-binding=socket: no NVIDIA or AMD GPU was found, and workers are bound to the "
        "CPUs next to their GPU; leave the option out");
    put_machine();
    assert_string_equal(
        bound("--numa-binding=node|--nproc-per-node=3", "", "4-5"),
        "RuntimeError: --numa-binding=node: local rank 2: its GPU is on NUMA node 0, none of whose CPUs this "
        "process may run on (it may use 4-5)");
    put("/proc/driver/nvidia/gpus/0000:04:00.0", NULL);
    put("/sys/bus/pci/devices/0000:04:00.0/device", "0x2330\n");
    assert_string_equal(bound("--numa-binding=node", "", "0-7"),
                        "RuntimeError: --numa-binding=node: cannot read the NUMA node of GPU 0000:04:00.0: "
                        "/sys/bus/pci/devices/0000:04:00.0/numa_node");
    put("/sys/bus/pci/devices/0000:04:00.0/numa_node", "0\n");
    put("/sys/bus/pci/devices/0000:04:00.0/device", "0x20b0\n");
    assert_string_equal(
        bound("--numa-binding=node", "", "0-7"),
        "RuntimeError: --numa-binding=node: which GPU is device 0? They are of several models, and CUDA puts "
        "the fastest first; set CUDA_DEVICE_ORDER=PCI_BUS_ID");
    assert_string_equal(bound("--numa-binding=node", "CUDA_DEVICE_ORDER=PCI_BUS_ID", "0-7"), "4-7");
    put("/proc/driver/nvidia/gpus/strange", NULL);
    assert_string_equal(bound("--numa-binding=node", "CUDA_DEVICE_ORDER=PCI_BUS_ID", "0-7"),
                        "RuntimeError: --numa-binding=node: the driver does not say the PCI address of device 0");
}

/* -1: with one node it can only be that one. */
static void a_gpu_whose_node_is_not_said_is_on_node_0(void **state)
{
    struct scene scene;

    (void)state;
    put_cpus((struct fake_cpus){ .sockets = 1, .nodes = 1, .caches = 1, .cores = 4, .threads = 1 });
    put_nvidia("0000:01:00.0", "1", "-1\n", "GPU-a");
    assert_int_equal(configure(&scene, "--numa-binding=node", "", "0-3"), 0);
    assert_false(has_note(scene.config, MUSTER_LOG_WARNING, "firmware"));
    scene_done(&scene);
    put_cpus((struct fake_cpus){ .sockets = 1, .nodes = 2, .caches = 1, .cores = 2, .threads = 1 });
    assert_int_equal(configure(&scene, "--numa-binding=node", "", "0-3"), 0);
    assert_int_equal(scene.config->bound[0].node, 0);
    assert_true(has_note(scene.config, MUSTER_LOG_WARNING,
                         "the firmware does not say on which NUMA node a GPU is (its numa_node is -1)"));
    scene_done(&scene);
}

static void amd_s_gpus_are_found_too(void **state)
{
    (void)state;
    put_cpus((struct fake_cpus){ .sockets = 2, .nodes = 1, .caches = 2, .cores = 2, .threads = 1 });
    put_amd(1, 0x11, "1\n", "1");
    put_amd(2, 0x21, "0\n", "2");
    assert_string_equal(bound("--numa-binding=node|--nproc-per-node=2", "", "0-7"), "4-7|0-3");
    assert_string_equal(bound("--numa-binding=node|--nproc-per-node=2", "HIP_VISIBLE_DEVICES=1,0", "0-7"), "0-3|4-7");
}

static void it_is_told_and_shown(void **state)
{
    struct scene scene;
    struct mu_text text = { 0 };

    (void)state;
    put_machine();
    put("/sys/devices/system/node/has_memory", "7\n"); /* this machine may not have what the tree has */
    assert_int_equal(configure(&scene, "--numa-binding=exclusive|--nproc-per-node=3", "", "0-7"), 0);
    for (int i = 0; i < 3; i++)
        scene.config->bound[i].binding.memory = MU_MEMORY_LOCAL;
    mu_binding_prefer_node(&scene.config->bound[2].binding, 0);
    assert_true(has_note(scene.config, MUSTER_LOG_INFO, "local rank 0 is bound to CPUs 4-5"));
    assert_true(has_note(scene.config, MUSTER_LOG_INFO, "\nlocal rank 2 is bound to CPUs 0-3"));
    mu_run_config_text(&text, scene.config);
    assert_false(text.failed);
    mu_text_add(&text, "%c", '\0');
    assert_non_null(strstr(text.buf.data,
                           "  numa_binding            exclusive\n"
                           "    local rank 0          CPUs 4-5, local memory (GPU 0000:01:00.0)\n"
                           "    local rank 1          CPUs 6-7, local memory (GPU 0000:02:00.0)\n"
                           "    local rank 2          CPUs 0-3, memory of NUMA node 0 (GPU 0000:03:00.0)\n"));
    mu_text_done(&text);
    scene_done(&scene);
}

/* Docker forbids it unless it is told otherwise. CPUs are set all the same, and memory comes from near them by
 * default. */
static void a_memory_policy_that_is_forbidden_is_a_warning(void **state)
{
    int status;
    pid_t pid;

    (void)state;
    put_machine();
    pid = fork();
    if (pid == 0) {
        struct scene scene;
        bool right;

        old_container();
        right = configure(&scene, "--numa-binding=node|--nproc-per-node=3", "", "0-7") == 0 &&
                has_note(scene.config, MUSTER_LOG_WARNING,
                         "--numa-binding=node: workers are bound to their CPUs, but keep the memory policy of the "
                         "launcher: setting one is not possible here (Operation not permitted)");
        for (int i = 0; right && i < 3; i++)
            right = scene.config->bound[i].binding.memory == MU_MEMORY_INHERITED;
        _exit(right ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void memory_may_run_out(void **state)
{
    (void)state;
    put_machine();
    FOR_EACH_FAILURE (n) {
        struct mu_text text = { 0 };
        struct scene scene;

        if (configure(&scene, "--numa-binding=core-complex|--nproc-per-node=2", "", "0-7") < 0) {
            assert_int_equal(scene.problem.kind, MU_RUN_MEMORY);
            assert_true(fail_alloc_hit());
            continue;
        }
        mu_run_config_text(&text, scene.config);
        assert_int_equal(text.failed != 0, fail_alloc_hit());
        mu_text_done(&text);
        scene_done(&scene);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TREE_TEST(workers_get_the_cpus_next_to_their_gpus),
        TREE_TEST(without_the_option_nobody_is_bound),
        TREE_TEST(what_cannot_be_bound_says_why),
        TREE_TEST(a_gpu_whose_node_is_not_said_is_on_node_0),
        TREE_TEST(amd_s_gpus_are_found_too),
        TREE_TEST(it_is_told_and_shown),
        TREE_TEST(a_memory_policy_that_is_forbidden_is_a_warning),
        TREE_TEST(memory_may_run_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
