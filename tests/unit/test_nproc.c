/* CPUs and GPUs, counted in trees that the test brings along. */
#include "cli/nproc.h"
#include "fake_tree.h"

#include <sched.h>

/* ---- CPUs ---- */

static void cpus_are_those_this_process_may_use(void **state)
{
    cpu_set_t before, one;
    int first = 0;

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_int_equal(mu_nproc_cpus(), CPU_COUNT(&before));
    while (!CPU_ISSET((size_t)first, &before))
        first++;
    CPU_ZERO(&one);
    CPU_SET((size_t)first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(mu_nproc_cpus(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

static void without_cgroups_there_is_no_quota(void **state)
{
    (void)state;
    assert_int_equal(mu_nproc_quota(tree), 0);
    put("/proc/self/cgroup", "0::/a/b\n");
    assert_int_equal(mu_nproc_quota(tree), 0);
}

static void version_2_has_one_file(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/a/b\n");
    put("/sys/fs/cgroup/a/b/cpu.max", "150000 100000\n");
    assert_int_equal(mu_nproc_quota(tree), 2); /* rounded up */
    put("/sys/fs/cgroup/a/b/cpu.max", "100000 100000\n");
    assert_int_equal(mu_nproc_quota(tree), 1);
    put("/sys/fs/cgroup/a/b/cpu.max", "1000 100000\n");
    assert_int_equal(mu_nproc_quota(tree), 1);
    put("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    assert_int_equal(mu_nproc_quota(tree), 0);
}

static void the_smallest_level_counts(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/a/b\n");
    put("/sys/fs/cgroup/a/b/cpu.max", "800000 100000\n");
    put("/sys/fs/cgroup/a/cpu.max", "300000 100000\n");
    put("/sys/fs/cgroup/cpu.max", "max 100000\n");
    assert_int_equal(mu_nproc_quota(tree), 3);
}

static void in_a_container_the_mount_is_our_group(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/docker/0123\n");
    put("/sys/fs/cgroup/cpu.max", "400000 100000\n");
    assert_int_equal(mu_nproc_quota(tree), 4);
    put("/proc/self/cgroup", "0::/../../other\n");
    assert_int_equal(mu_nproc_quota(tree), 4);
}

static void version_1_has_two_files(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "12:cpuset:/x\n4:cpu,cpuacct:/a\n1:name=systemd:/\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "250000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
    assert_int_equal(mu_nproc_quota(tree), 3);
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n");
    assert_int_equal(mu_nproc_quota(tree), 0);
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "0\n");
    assert_int_equal(mu_nproc_quota(tree), 0);
}

static void nonsense_is_no_quota(void **state)
{
    static const char *const texts[] = { "", "\n", "x", "1", "1 x", "-5 100000", "0 0", "5 0" };

    (void)state;
    put("/proc/self/cgroup", "\n:\n::\n0:\nxyz\n0::/a\n");
    for (size_t i = 0; i < COUNT(texts); i++) {
        put("/sys/fs/cgroup/a/cpu.max", texts[i]);
        assert_int_equal(mu_nproc_quota(tree), 0);
    }
    put("/sys/fs/cgroup/a/cpu.max", "9223372036854775807 1\n");
    assert_int_equal(mu_nproc_quota(tree), INT64_MAX);
}

/* ---- GPUs ---- */

static struct mu_nproc_gpus gpus(const char *visible)
{
    const struct mu_gpus_variables variables = { .cuda = visible };

    return mu_nproc_gpus(tree, &variables);
}

static void without_a_driver_only_the_variable_counts(void **state)
{
    (void)state;
    assert_false(gpus(NULL).has_driver);
    assert_int_equal(gpus(NULL).count, 0);
    assert_false(gpus("0,1").has_driver);
    assert_int_equal(gpus("0,1").count, 2);
}

static void the_drivers_list_counts_and_bounds(void **state)
{
    (void)state;
    put("/proc/driver/nvidia/gpus/0000:01:00.0", NULL);
    put("/proc/driver/nvidia/gpus/0000:02:00.0", NULL);
    put("/proc/driver/nvidia/gpus/0000:03:00.0", NULL);
    assert_true(gpus(NULL).has_driver);
    assert_int_equal(gpus(NULL).count, 3);
    assert_int_equal(gpus("").count, 0);
    assert_int_equal(gpus("2,0").count, 2);
    assert_int_equal(gpus("0,3,1").count, 1); /* what is not there ends the list */
}

static void devices_count_where_the_list_is_hidden(void **state)
{
    (void)state;
    put("/dev/nvidiactl", "");
    put("/dev/nvidia-uvm", "");
    assert_true(gpus(NULL).has_driver);
    assert_int_equal(gpus(NULL).count, 0);
    put("/dev/nvidia0", "");
    put("/dev/nvidia7", "");
    assert_int_equal(gpus(NULL).count, 2);
}

static void amd_lists_its_cpus_too(void **state)
{
    (void)state;
    put("/sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 16\nsimd_count 0\n");
    put("/sys/class/kfd/kfd/topology/nodes/1/properties", "cpu_cores_count 0\nsimd_count 256\n");
    put("/sys/class/kfd/kfd/topology/nodes/2/properties", "cpu_cores_count 0\nsimd_count 256\n");
    put("/sys/class/kfd/kfd/topology/nodes/3", NULL);
    assert_int_equal(gpus(NULL).count, 2);
    assert_true(gpus(NULL).has_driver);
}

static void amd_s_devices_have_lists_of_their_own(void **state)
{
    static const struct {
        struct mu_gpus_variables variables;
        int64_t count;
    } rows[] = {
        { { .cuda = "1" }, 1 },
        { { .cuda = "1", .hip = "0,1" }, 2 },
        { { .cuda = "1", .hip = "" }, 1 },
        { { .hip = "2,1,0" }, 3 },
        { { .rocr = "0,2" }, 2 },
        { { .rocr = "" }, 0 },
        { { .rocr = "2", .hip = "0,1" }, 1 }, /* what the first leaves is counted from 0 */
        { { .rocr = "x", .hip = "0,1" }, 0 },
    };

    (void)state;
    for (unsigned i = 1; i < 4; i++)
        put_amd(i, i, "0", "0");
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_int_equal(mu_nproc_gpus(tree, &rows[i].variables).count, rows[i].count);
}

static void nvidia_s_devices_have_no_list_but_cuda_s(void **state)
{
    const struct mu_gpus_variables variables = { .hip = "0", .rocr = "" };

    (void)state;
    put_nvidia("0000:01:00.0", "1", "0", "");
    put_nvidia("0000:02:00.0", "1", "0", "");
    assert_int_equal(mu_nproc_gpus(tree, &variables).count, 2);
}

static void visible_devices_are_read_as_cuda_reads_them(void **state)
{
    static const struct {
        const char *visible;
        int64_t count;
    } rows[] = {
        { "", 0 },
        { " ", 0 },
        { "-1", 0 },
        { "NoDevFiles", 0 },
        { "0", 1 },
        { " 0 , 1 ", 2 },
        { "0,1,-1,2", 2 },
        { "0,x,2", 1 },
        { "0,,2", 1 },
        { "0,1,0", 0 },
        { "1,01", 0 },
        { "0,1,", 2 },
        { "1gpu2,2ampere", 2 },
        { "GPU-aaaa,GPU-bbbb", 2 },
        { "GPU-aaaa,GPU-aaaa", 0 },
        { "GPU-aaaa, GPU-bbbb", 1 },
        { " GPU-aaaa", 0 },
        { "GPU-aaaa,1", 1 },
        { "MIG-a,MIG-b,MIG-c", 3 },
        { "0,GPU-aaaa", 1 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        int64_t count = gpus(rows[i].visible).count;

        if (count != rows[i].count)
            fail_msg("'%s' are %lld devices", rows[i].visible, (long long)count);
    }
}

static void a_list_without_end_is_cut(void **state)
{
    enum { MANY = 3000 };
    static char list[MANY * 6];
    char *to = list;

    (void)state;
    for (int i = 0; i < MANY; i++)
        to += sprintf(to, "%s%d", i == 0 ? "" : ",", i);
    assert_int_equal(gpus(list).count, 1024);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TREE_TEST(cpus_are_those_this_process_may_use),
        TREE_TEST(without_cgroups_there_is_no_quota),
        TREE_TEST(version_2_has_one_file),
        TREE_TEST(the_smallest_level_counts),
        TREE_TEST(in_a_container_the_mount_is_our_group),
        TREE_TEST(version_1_has_two_files),
        TREE_TEST(nonsense_is_no_quota),
        TREE_TEST(without_a_driver_only_the_variable_counts),
        TREE_TEST(the_drivers_list_counts_and_bounds),
        TREE_TEST(devices_count_where_the_list_is_hidden),
        TREE_TEST(amd_lists_its_cpus_too),
        TREE_TEST(amd_s_devices_have_lists_of_their_own),
        TREE_TEST(nvidia_s_devices_have_no_list_but_cuda_s),
        TREE_TEST(visible_devices_are_read_as_cuda_reads_them),
        TREE_TEST(a_list_without_end_is_cut),
    };

    return cmocka_run_group_tests_name("nproc", tests, NULL, NULL);
}
