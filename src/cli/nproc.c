/* CPUs and GPUs as the kernel and the drivers list them. */
#include "cli/nproc.h"

#include "base/kernel_files.h"

#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

/* ---- CPUs ---- */

bool mu_nproc_allowed(struct mu_cpus *ret_cpus)
{
    struct mu_cpus cpus = { 0 };

    if (sched_getaffinity(0, sizeof cpus.words, (cpu_set_t *)(void *)cpus.words) < 0)
        return false;
    *ret_cpus = cpus;
    return true;
}

int64_t mu_nproc_cpus(void)
{
    struct mu_cpus cpus;

    return mu_nproc_allowed(&cpus) ? (int64_t)mu_cpus_count(&cpus) : 1;
}

static void take_smaller(int64_t *quota, int64_t used, int64_t period)
{
    int64_t cpus;

    if (used <= 0 || period <= 0)
        return;
    cpus = used / period + (used % period != 0);
    if (*quota == 0 || cpus < *quota)
        *quota = cpus;
}

/* One level of version 2: "QUOTA PERIOD" or "max PERIOD". */
static void read_level_2(const char *directory, int64_t *quota)
{
    char text[MU_KERNEL_FILES_TEXT_MAX];
    int64_t used, period;

    if (mu_kernel_files_read(directory, text, "/cpu.max") && sscanf(text, "%" SCNd64 " %" SCNd64, &used, &period) == 2)
        take_smaller(quota, used, period);
}

/* One level of version 1: a quota of -1 is none. */
static void read_level_1(const char *directory, int64_t *quota)
{
    char text[MU_KERNEL_FILES_TEXT_MAX];
    int64_t used, period;

    if (!mu_kernel_files_read(directory, text, "/cpu.cfs_quota_us") || sscanf(text, "%" SCNd64, &used) != 1)
        return;
    if (!mu_kernel_files_read(directory, text, "/cpu.cfs_period_us") || sscanf(text, "%" SCNd64, &period) != 1)
        return;
    take_smaller(quota, used, period);
}

typedef void read_level(const char *directory, int64_t *quota);

/* From our own group up to where the hierarchy is mounted. In a container that sees only its own part of it the lower
 * ones are not there, and the mount itself is our group. */
static void read_levels(const char *root, const char *mount, const char *group, read_level *level, int64_t *quota)
{
    char path[PATH_MAX];
    size_t top;

    if (snprintf(path, sizeof path, "%s%s", root, mount) >= PATH_MAX)
        return;
    top = strlen(path);
    if (group[0] == '/' && strstr(group, "..") == NULL && strlen(group) < sizeof path - top)
        (void)strcpy(path + top, group);
    for (;;) {
        char *slash;

        level(path, quota);
        slash = strrchr(path + top, '/');
        if (slash == NULL)
            break;
        *slash = '\0';
    }
}

struct quota {
    const char *root;
    int64_t cpus; /* 0: no limit so far */
};

static void found_group(void *ctx, const char *controllers, const char *group)
{
    static const char *const mounts_2[] = { "/sys/fs/cgroup", "/sys/fs/cgroup/unified" }, *const mounts_1[] = {
        "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpuacct,cpu"
    };
    bool has_cpu = mu_kernel_files_has_controller(controllers, "cpu");
    struct quota *quota = ctx;

    for (size_t i = 0; controllers[0] == '\0' && i < sizeof mounts_2 / sizeof mounts_2[0]; i++)
        read_levels(quota->root, mounts_2[i], group, read_level_2, &quota->cpus);
    for (size_t i = 0; has_cpu && i < sizeof mounts_1 / sizeof mounts_1[0]; i++)
        read_levels(quota->root, mounts_1[i], group, read_level_1, &quota->cpus);
}

int64_t mu_nproc_quota(const char *root)
{
    struct quota quota = { .root = root };

    mu_kernel_files_cgroups(root, found_group, &quota);
    return quota.cpus;
}

/* ---- GPUs ---- */

struct mu_nproc_gpus mu_nproc_gpus(const char *root, const struct mu_gpus_variables *variables)
{
    struct mu_gpus gpus;

    mu_gpus_list(root, &gpus);
    return (struct mu_nproc_gpus){
        .has_driver = gpus.devices > 0 || mu_kernel_files_exists(root, "/dev/nvidiactl") ||
                      mu_kernel_files_exists(root, "/dev/dxg") || mu_kernel_files_exists(root, "/dev/nvhost-ctrl"),
        .count = (int64_t)mu_gpus_count(&gpus, variables),
    };
}
