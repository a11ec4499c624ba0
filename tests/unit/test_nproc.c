/* CPUs and GPUs, counted in trees that the test brings along. */
#include "cli/nproc.h"
#include "pure.h"

#include <ftw.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64];

static int remove_one(const char *path, const struct stat *about, int type, struct FTW *where)
{
    (void)about;
    (void)type;
    (void)where;
    return remove(path);
}

static int setup(void **state)
{
    (void)state;
    (void)strcpy(root, "/tmp/muster-nproc-XXXXXX");
    return mkdtemp(root) == NULL ? -1 : 0;
}

static int teardown(void **state)
{
    (void)state;
    return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* A file with its directories; without text: a directory. */
static void put(const char *name, const char *text)
{
    char path[PATH_MAX];
    FILE *file;

    (void)snprintf(path, sizeof path, "%s%s", root, name);
    for (char *slash = strchr(path + strlen(root) + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    if (text == NULL) {
        assert_int_equal(mkdir(path, 0700), 0);
        return;
    }
    file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

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
    assert_int_equal(mu_nproc_quota(root), 0);
    put("/proc/self/cgroup", "0::/a/b\n");
    assert_int_equal(mu_nproc_quota(root), 0);
}

static void version_2_has_one_file(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/a/b\n");
    put("/sys/fs/cgroup/a/b/cpu.max", "150000 100000\n");
    assert_int_equal(mu_nproc_quota(root), 2); /* rounded up */
    put("/sys/fs/cgroup/a/b/cpu.max", "100000 100000\n");
    assert_int_equal(mu_nproc_quota(root), 1);
    put("/sys/fs/cgroup/a/b/cpu.max", "1000 100000\n");
    assert_int_equal(mu_nproc_quota(root), 1);
    put("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    assert_int_equal(mu_nproc_quota(root), 0);
}

static void the_smallest_level_counts(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/a/b\n");
    put("/sys/fs/cgroup/a/b/cpu.max", "800000 100000\n");
    put("/sys/fs/cgroup/a/cpu.max", "300000 100000\n");
    put("/sys/fs/cgroup/cpu.max", "max 100000\n");
    assert_int_equal(mu_nproc_quota(root), 3);
}

static void in_a_container_the_mount_is_our_group(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/docker/0123\n");
    put("/sys/fs/cgroup/cpu.max", "400000 100000\n");
    assert_int_equal(mu_nproc_quota(root), 4);
    put("/proc/self/cgroup", "0::/../../other\n");
    assert_int_equal(mu_nproc_quota(root), 4);
}

static void version_1_has_two_files(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "12:cpuset:/x\n4:cpu,cpuacct:/a\n1:name=systemd:/\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "250000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
    assert_int_equal(mu_nproc_quota(root), 3);
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n");
    assert_int_equal(mu_nproc_quota(root), 0);
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "0\n");
    assert_int_equal(mu_nproc_quota(root), 0);
}

static void nonsense_is_no_quota(void **state)
{
    static const char *const texts[] = { "", "\n", "x", "1", "1 x", "-5 100000", "0 0", "5 0" };

    (void)state;
    put("/proc/self/cgroup", "\n:\n::\n0:\nxyz\n0::/a\n");
    for (size_t i = 0; i < COUNT(texts); i++) {
        put("/sys/fs/cgroup/a/cpu.max", texts[i]);
        assert_int_equal(mu_nproc_quota(root), 0);
    }
    put("/sys/fs/cgroup/a/cpu.max", "9223372036854775807 1\n");
    assert_int_equal(mu_nproc_quota(root), INT64_MAX);
}

/* ---- GPUs ---- */

static void without_a_driver_only_the_variable_counts(void **state)
{
    (void)state;
    assert_false(mu_nproc_gpus(root, NULL).has_driver);
    assert_int_equal(mu_nproc_gpus(root, NULL).count, 0);
    assert_false(mu_nproc_gpus(root, "0,1").has_driver);
    assert_int_equal(mu_nproc_gpus(root, "0,1").count, 2);
}

static void the_drivers_list_counts_and_bounds(void **state)
{
    (void)state;
    put("/proc/driver/nvidia/gpus/0000:01:00.0", NULL);
    put("/proc/driver/nvidia/gpus/0000:02:00.0", NULL);
    put("/proc/driver/nvidia/gpus/0000:03:00.0", NULL);
    assert_true(mu_nproc_gpus(root, NULL).has_driver);
    assert_int_equal(mu_nproc_gpus(root, NULL).count, 3);
    assert_int_equal(mu_nproc_gpus(root, "").count, 0);
    assert_int_equal(mu_nproc_gpus(root, "2,0").count, 2);
    assert_int_equal(mu_nproc_gpus(root, "0,3,1").count, 1); /* what is not there ends the list */
}

static void devices_count_where_the_list_is_hidden(void **state)
{
    (void)state;
    put("/dev/nvidiactl", "");
    put("/dev/nvidia-uvm", "");
    assert_true(mu_nproc_gpus(root, NULL).has_driver);
    assert_int_equal(mu_nproc_gpus(root, NULL).count, 0);
    put("/dev/nvidia0", "");
    put("/dev/nvidia7", "");
    assert_int_equal(mu_nproc_gpus(root, NULL).count, 2);
}

static void amd_lists_its_cpus_too(void **state)
{
    (void)state;
    put("/sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 16\nsimd_count 0\n");
    put("/sys/class/kfd/kfd/topology/nodes/1/properties", "cpu_cores_count 0\nsimd_count 256\n");
    put("/sys/class/kfd/kfd/topology/nodes/2/properties", "cpu_cores_count 0\nsimd_count 256\n");
    put("/sys/class/kfd/kfd/topology/nodes/3", NULL);
    assert_int_equal(mu_nproc_gpus(root, NULL).count, 2);
    assert_true(mu_nproc_gpus(root, NULL).has_driver);
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
        int64_t count = mu_nproc_gpus(root, rows[i].visible).count;

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
    assert_int_equal(mu_nproc_gpus(root, list).count, 1024);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(cpus_are_those_this_process_may_use),
        TEST(without_cgroups_there_is_no_quota),
        TEST(version_2_has_one_file),
        TEST(the_smallest_level_counts),
        TEST(in_a_container_the_mount_is_our_group),
        TEST(version_1_has_two_files),
        TEST(nonsense_is_no_quota),
        TEST(without_a_driver_only_the_variable_counts),
        TEST(the_drivers_list_counts_and_bounds),
        TEST(devices_count_where_the_list_is_hidden),
        TEST(amd_lists_its_cpus_too),
        TEST(visible_devices_are_read_as_cuda_reads_them),
        TEST(a_list_without_end_is_cut),
    };

    return cmocka_run_group_tests_name("nproc", tests, NULL, NULL);
}
