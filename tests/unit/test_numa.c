/* Which CPUs a worker gets in each mode, on machines that the test brings along. */
#include "cli/numa.h"
#include "fake_tree.h"

static struct mu_numa numa;
static int nodes[8]; /* of the devices */

/* "0 0 1 1" */
static size_t devices_on(const char *text)
{
    size_t count = 0;
    int len;

    while (sscanf(text, "%d%n", &nodes[count], &len) == 1) {
        text += len;
        count++;
        assert_true(count < COUNT(nodes));
    }
    return count;
}

/* "CPUS/MEMORY" for each device, with '|' between them; or the error of the first that has one. */
static const char *bind_all(enum mu_numa_mode mode, const char *allowed, const char *device_nodes)
{
    static char text[2048];
    size_t count = devices_on(device_nodes), len = 0;
    struct muster_error error = { 0 };
    struct mu_cpus cpus;

    assert_true(mu_cpus_parse(allowed, &cpus));
    if (mu_numa_read(tree, mode, &cpus, &numa, &error) < 0) {
        (void)snprintf(text, sizeof text, "error: %s", error.text);
        return text;
    }
    for (size_t i = 0; i < count; i++) {
        struct mu_binding binding;
        char room[128];

        if (mu_numa_choose(&numa, mode, nodes, count, i, &binding, &error) < 0) {
            (void)snprintf(text, sizeof text, "error of %zu: %s", i, error.text);
            return text;
        }
        assert_int_not_equal(binding.memory, MU_MEMORY_INHERITED);
        len += (size_t)snprintf(text + len, sizeof text - len, "%s%s", i == 0 ? "" : "|",
                                mu_cpus_text(&binding.cpus, room, sizeof room));
        if (binding.memory == MU_MEMORY_PREFERRED)
            len += (size_t)snprintf(text + len, sizeof text - len, "/%d", __builtin_ctzl(binding.nodes[0]));
    }
    return text;
}

struct row {
    enum mu_numa_mode mode;
    const char *allowed, *devices, *result;
};

static void check(const struct row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const char *result = bind_all(rows[i].mode, rows[i].allowed, rows[i].devices);

        if (strcmp(result, rows[i].result) != 0)
            fail_msg("row %zu: '%s' instead of '%s'", i, result, rows[i].result);
    }
}

#define CHECK(...)                                                                                                     \
    do {                                                                                                               \
        const struct row rows[] = { __VA_ARGS__ };                                                                     \
        check(rows, COUNT(rows));                                                                                      \
    } while (0)

#define NODE MU_NUMA_NODE
#define SOCKET MU_NUMA_SOCKET
#define EXCLUSIVE MU_NUMA_EXCLUSIVE
#define COMPLEX MU_NUMA_CORE_COMPLEX

static void modes_have_names(void **state)
{
    enum mu_numa_mode mode;

    (void)state;
    assert_true(mu_numa_mode_parse("node", &mode) && mode == MU_NUMA_NODE);
    assert_true(mu_numa_mode_parse("socket", &mode) && mode == MU_NUMA_SOCKET);
    assert_true(mu_numa_mode_parse("exclusive", &mode) && mode == MU_NUMA_EXCLUSIVE);
    assert_true(mu_numa_mode_parse("core-complex", &mode) && mode == MU_NUMA_CORE_COMPLEX);
    assert_false(mu_numa_mode_parse("", &mode));
    assert_false(mu_numa_mode_parse("Node", &mode));
}

static void one_node(void **state)
{
    (void)state;
    put_cpus((struct fake_cpus){ .sockets = 1, .nodes = 1, .caches = 1, .cores = 4, .threads = 1 });
    CHECK({ NODE, "0-3", "0 0", "0-3/0|0-3/0" }, /* all of them share it */
          { SOCKET, "0-3", "0 0", "0-3|0-3" },   /* memory is local: a socket may have several nodes */
          { EXCLUSIVE, "0-3", "0 0", "0-1/0|2-3/0" }, { EXCLUSIVE, "0-3", "0", "0-3/0" },
          { EXCLUSIVE, "0-3", "0 0 0", "0-1/0|2/0|3/0" }, /* the first ones get what is over */
          { COMPLEX, "0-3", "0 0", "0-3/0|0-3/0" });
}

/* 2 sockets of 2 nodes of 1 cache of 4 cores of 2 threads: node 1 is 4-7 and 20-23. */
static void two_sockets_of_two_nodes(void **state)
{
    (void)state;
    put_cpus((struct fake_cpus){ .sockets = 2, .nodes = 2, .caches = 1, .cores = 4, .threads = 2 });
    CHECK({ NODE, "0-31", "0 1 2 3", "0-3,16-19/0|4-7,20-23/1|8-11,24-27/2|12-15,28-31/3" },
          { NODE, "0-31", "3 3 1", "12-15,28-31/3|12-15,28-31/3|4-7,20-23/1" },
          { SOCKET, "0-31", "0 1 2 3", "0-7,16-23|0-7,16-23|8-15,24-31|8-15,24-31" },
          /* whole cores, with their threads; each of one node counts among the devices of that node */
          { EXCLUSIVE, "0-31", "0 0", "0-1,16-17/0|2-3,18-19/0" },
          { EXCLUSIVE, "0-31", "1 0 1 3", "4-5,20-21/1|0-3,16-19/0|6-7,22-23/1|12-15,28-31/3" },
          { EXCLUSIVE, "0-31", "2 2 2", "8-9,24-25/2|10,26/2|11,27/2" },
          { COMPLEX, "0-31", "2 2", "8-11,24-27/2|8-11,24-27/2" });
}

/* 1 socket of 2 nodes of 3 caches of 2 cores of 2 threads: node 1 is 6-11 and 18-23. */
static void several_caches_on_a_node(void **state)
{
    (void)state;
    put_cpus((struct fake_cpus){ .sockets = 1, .nodes = 2, .caches = 3, .cores = 2, .threads = 2 });
    CHECK({ COMPLEX, "0-23", "1 1 1 1", "6-7,18-19/1|8-9,20-21/1|10-11,22-23/1|6-7,18-19/1" },
          { COMPLEX, "0-23", "0 1 0 1", "0-1,12-13/0|6-7,18-19/1|2-3,14-15/0|8-9,20-21/1" },
          /* the ones with the most CPUs left come first */
          { COMPLEX, "6,8,9,21,10,22,23", "1 1 1", "8-9,21/1|10,22-23/1|6/1" },
          { COMPLEX, "7,20", "1 1 1", "7/1|20/1|7/1" }, { SOCKET, "0-23", "0", "0-23" },
          { EXCLUSIVE, "0-23", "1 1 1 1", "6-7,18-19/1|8-9,20-21/1|10,22/1|11,23/1" });
}

/* A cpuset, or taskset, leaves only a part. */
static void what_is_not_allowed_is_left_out(void **state)
{
    (void)state;
    put_cpus((struct fake_cpus){ .sockets = 2, .nodes = 2, .caches = 1, .cores = 4, .threads = 2 });
    CHECK({ NODE, "1-4,18", "0 1", "1-3,18/0|4/1" }, { SOCKET, "1-4,18", "1", "1-4,18" },
          { SOCKET, "9,20", "1 2", "20|9" }, /* nodes without a CPU for us are passed over */
          { EXCLUSIVE, "1,2,3,17", "0 0", "1-2,17/0|3/0" },
          { EXCLUSIVE, "16-18", "0 0 0", "16/0|17/0|18/0" }, /* second threads alone are cores, too */
          { EXCLUSIVE, "1,17", "0 0",
            "error of 0: 2 GPUs are on NUMA node 0, but this process may run on only 1 of its cores" },
          { NODE, "0-3", "0 1",
            "error of 1: its GPU is on NUMA node 1, none of whose CPUs this process may run on (it may use 0-3)" },
          { COMPLEX, "0-3", "2",
            "error of 0: its GPU is on NUMA node 2, none of whose CPUs this process may run on (it may use 0-3)" },
          { NODE, "0-31", "7", "error of 0: its GPU is on NUMA node 7, but the kernel lists only 0-3" });
}

/* Node 1 has memory, but no CPUs; node 0 no memory for this process. */
static void nodes_may_lack_cpus_or_memory(void **state)
{
    (void)state;
    put_cpus((struct fake_cpus){ .sockets = 1, .nodes = 3, .caches = 1, .cores = 2, .threads = 1 });
    put("/sys/devices/system/node/node1/cpulist", "\n");
    put("/sys/devices/system/node/has_memory", "1-2\n");
    CHECK({ NODE, "0-5", "0 2", "0-1|4-5/2" }, { SOCKET, "0-5", "0", "0-1,4-5" },
          { NODE, "0-5", "1",
            "error of 0: its GPU is on NUMA node 1, none of whose CPUs this process may run on (it may use 0-5)" });
    put("/proc/self/status", "Name:\tx\nMems_allowed:\t1\nMems_allowed_list:\t0-1\nvoluntary_ctxt_switches:\t1\n");
    CHECK({ NODE, "0-5", "0 2", "0-1|4-5" });
    put("/proc/self/status", "Name:\tx\nMems_allowed_list:\tnonsense\n");
    CHECK({ NODE, "0-5", "0 2", "0-1|4-5/2" });
}

/* What is offline is in no list of the kernel and has no files. */
static void offline_cpus_are_not_asked_about(void **state)
{
    (void)state;
    put("/sys/devices/system/node/online", "0\n");
    put("/sys/devices/system/node/node0/cpulist", "0,2\n");
    for (unsigned cpu = 0; cpu < 3; cpu += 2) {
        put_at("0\n", "/sys/devices/system/cpu/cpu%u/topology/physical_package_id", cpu);
        put_at(cpu == 0 ? "0\n" : "2\n", "/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", cpu);
    }
    CHECK({ NODE, "0,2", "0", "0,2/0" }, { SOCKET, "0,2", "0", "0,2" }, { EXCLUSIVE, "0,2", "0 0", "0/0|2/0" });
}

/* Fast cores with two threads and an L3 cache for all, slow ones with one thread and an L2 cache for every four. */
static void cores_may_be_of_two_kinds(void **state)
{
    static const char *const siblings[] = { "0-1", "0-1", "2-3", "2-3", "4", "5", "6", "7" };

    (void)state;
    put("/sys/devices/system/node/online", "0\n");
    put("/sys/devices/system/node/node0/cpulist", "0-7\n");
    for (unsigned cpu = 0; cpu < COUNT(siblings); cpu++) {
        put_at(siblings[cpu], "/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", cpu);
        put_at("Unified\n", "/sys/devices/system/cpu/cpu%u/cache/index2/type", cpu);
        put_at("2\n", "/sys/devices/system/cpu/cpu%u/cache/index2/level", cpu);
        put_at(cpu < 4 ? siblings[cpu] : "4-7", "/sys/devices/system/cpu/cpu%u/cache/index2/shared_cpu_list", cpu);
        if (cpu >= 4)
            continue;
        put_at("Unified\n", "/sys/devices/system/cpu/cpu%u/cache/index3/type", cpu);
        put_at("3\n", "/sys/devices/system/cpu/cpu%u/cache/index3/level", cpu);
        put_at("0-3", "/sys/devices/system/cpu/cpu%u/cache/index3/shared_cpu_list", cpu);
    }
    CHECK({ EXCLUSIVE, "0-7", "0 0", "0-4/0|5-7/0" }, { COMPLEX, "0-7", "0 0", "0-3/0|4-7/0" },
          { COMPLEX, "1,3-7", "0 0", "4-7/0|1,3/0" });
}

static void a_file_that_is_missing_is_named(void **state)
{
    (void)state;
    CHECK({ NODE, "0", "0", "error: this kernel lists no NUMA nodes (/sys/devices/system/node/online)" });
    put("/sys/devices/system/node/online", "0\n");
    CHECK({ NODE, "0", "0", "error: cannot read the CPUs of NUMA node 0: /sys/devices/system/node/node0/cpulist" });
    put("/sys/devices/system/node/node0/cpulist", "0-3\n");
    CHECK({ NODE, "0", "0", "0/0" },
          { SOCKET, "0", "0",
            "error: cannot read the socket of CPU 0: /sys/devices/system/cpu/cpu0/topology/physical_package_id" },
          { EXCLUSIVE, "0", "0",
            "error: cannot read the core of CPU 0: /sys/devices/system/cpu/cpu0/topology/thread_siblings_list" },
          { COMPLEX, "0", "0", "error: cannot read the caches of CPU 0: /sys/devices/system/cpu/cpu0/cache" });
    put("/sys/devices/system/cpu/cpu0/topology/physical_package_id", "x");
    put("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "\n");
    put("/sys/devices/system/cpu/cpu0/cache/index0/type", "Instruction\n");
    put("/sys/devices/system/cpu/cpu0/cache/index1/type", "Unified\n");
    put("/sys/devices/system/cpu/cpu0/cache/index1/level", "1\n");
    put("/sys/devices/system/cpu/cpu0/cache/index1/shared_cpu_list", "\n");
    CHECK({ SOCKET, "0", "0",
            "error: cannot read the socket of CPU 0: /sys/devices/system/cpu/cpu0/topology/physical_package_id" },
          { EXCLUSIVE, "0", "0",
            "error: cannot read the core of CPU 0: /sys/devices/system/cpu/cpu0/topology/thread_siblings_list" },
          { COMPLEX, "0", "0", "error: cannot read the caches of CPU 0: /sys/devices/system/cpu/cpu0/cache" });
}

/* No CPU belongs to two workers, and none is left over, whatever the numbers are. */
static void shares_are_a_partition(void **state)
{
    (void)state;
    put_cpus((struct fake_cpus){ .sockets = 1, .nodes = 1, .caches = 1, .cores = 13, .threads = 2 });
    for (size_t devices = 1; devices < COUNT(nodes); devices++) {
        struct mu_cpus all, used = { 0 };

        assert_true(mu_cpus_parse("0-25", &all));
        assert_int_equal(mu_numa_read(tree, MU_NUMA_EXCLUSIVE, &all, &numa, NULL), 0);
        memset(nodes, 0, sizeof nodes);
        for (size_t i = 0; i < devices; i++) {
            struct mu_binding binding;

            assert_int_equal(mu_numa_choose(&numa, MU_NUMA_EXCLUSIVE, nodes, devices, i, &binding, NULL), 0);
            for (unsigned cpu = 0; cpu < 26; cpu++) {
                assert_false(mu_cpus_has(&binding.cpus, cpu) && mu_cpus_has(&used, cpu));
                if (mu_cpus_has(&binding.cpus, cpu))
                    mu_cpus_add(&used, cpu);
            }
        }
        assert_memory_equal(&used, &all, sizeof all);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(modes_have_names),          TREE_TEST(one_node),
        TREE_TEST(two_sockets_of_two_nodes),         TREE_TEST(several_caches_on_a_node),
        TREE_TEST(what_is_not_allowed_is_left_out),  TREE_TEST(nodes_may_lack_cpus_or_memory),
        TREE_TEST(offline_cpus_are_not_asked_about), TREE_TEST(cores_may_be_of_two_kinds),
        TREE_TEST(a_file_that_is_missing_is_named),  TREE_TEST(shares_are_a_partition),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
