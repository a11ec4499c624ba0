/* The machine's CPUs and NUMA nodes, from sysfs. */
#include "base/error.h"
#include "base/kernel_files.h"
#include "cli/numa.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NODES "/sys/devices/system/node"
#define CPUS "/sys/devices/system/cpu"

static bool read_list(const char *root, struct mu_cpus *ret_set, const char *path)
{
    char text[MU_KERNEL_FILES_TEXT_MAX];

    return mu_kernel_files_read(root, text, "%s", path) && mu_cpus_parse(text, ret_set);
}

/* Nodes that have memory and that the cpuset of this process allows; all, if the kernel does not say. */
static void read_memory(const char *root, struct mu_numa *numa)
{
    static const char key[] = "\nMems_allowed_list:";
    char text[MU_KERNEL_FILES_TEXT_MAX];
    const char *list = mu_kernel_files_read(root, text, "/proc/self/status") ? strstr(text, key) : NULL;
    struct mu_cpus left, have;

    if (!read_list(root, &have, NODES "/has_memory"))
        have = numa->nodes;
    left = have;
    if (list != NULL) {
        list += sizeof key - 1;
        text[(size_t)(list - text) + strcspn(list, "\n")] = '\0';
        if (!mu_cpus_parse(list, &left))
            left = have;
    }
    MU_CPUS_EACH (node, &left) {
        if (mu_cpus_has(&have, node))
            mu_cpus_add(&numa->memory, node);
    }
}

static int read_nodes(const char *root, struct mu_numa *numa, struct muster_error *reterr)
{
    if (!read_list(root, &numa->nodes, NODES "/online"))
        return mu_fail(reterr, MUSTER_ENOTSUP, "this kernel lists no NUMA nodes (" NODES "/online)");
    MU_CPUS_EACH (node, &numa->nodes) {
        char text[MU_KERNEL_FILES_TEXT_MAX];
        struct mu_cpus cpus;

        if (!mu_kernel_files_read(root, text, NODES "/node%u/cpulist", node) || !mu_cpus_parse(text, &cpus))
            return mu_fail(reterr, MUSTER_ENOTSUP, "cannot read the CPUs of NUMA node %u: " NODES "/node%u/cpulist",
                           node, node);
        MU_CPUS_EACH (cpu, &cpus)
            numa->cpus[cpu].node = (int)node;
    }
    return 0;
}

static int read_socket(const char *root, unsigned cpu, struct mu_numa_cpu *about, struct muster_error *reterr)
{
    char text[MU_KERNEL_FILES_TEXT_MAX], *end = text;

    if (mu_kernel_files_read(root, text, CPUS "/cpu%u/topology/physical_package_id", cpu))
        about->socket = (int)strtol(text, &end, 10);
    if (end == text)
        return mu_fail(reterr, MUSTER_ENOTSUP,
                       "cannot read the socket of CPU %u: " CPUS "/cpu%u/topology/physical_package_id", cpu, cpu);
    return 0;
}

static int read_core(const char *root, unsigned cpu, struct mu_numa_cpu *about, struct muster_error *reterr)
{
    char text[MU_KERNEL_FILES_TEXT_MAX];
    struct mu_cpus threads;

    if (mu_kernel_files_read(root, text, CPUS "/cpu%u/topology/thread_siblings_list", cpu) &&
        mu_cpus_parse(text, &threads))
        about->core = mu_cpus_next(&threads, 0);
    else
        about->core = MU_CPUS_MAX;
    if (about->core == MU_CPUS_MAX)
        return mu_fail(reterr, MUSTER_ENOTSUP,
                       "cannot read the core of CPU %u: " CPUS "/cpu%u/topology/thread_siblings_list", cpu, cpu);
    return 0;
}

struct caches {
    const char *root;
    unsigned cpu;
    long level;     /* the highest so far */
    unsigned first; /* the lowest CPU of that cache */
};

static void found_cache(void *ctx, const char *name)
{
    struct caches *caches = ctx;
    char text[MU_KERNEL_FILES_TEXT_MAX];
    struct mu_cpus sharing;
    long level;

    if (strncmp(name, "index", 5) != 0 ||
        !mu_kernel_files_read(caches->root, text, CPUS "/cpu%u/cache/%s/type", caches->cpu, name) ||
        (strncmp(text, "Unified", 7) != 0 && strncmp(text, "Data", 4) != 0) ||
        !mu_kernel_files_read(caches->root, text, CPUS "/cpu%u/cache/%s/level", caches->cpu, name))
        return;
    level = strtol(text, NULL, 10);
    if (level <= caches->level ||
        !mu_kernel_files_read(caches->root, text, CPUS "/cpu%u/cache/%s/shared_cpu_list", caches->cpu, name) ||
        !mu_cpus_parse(text, &sharing) || mu_cpus_next(&sharing, 0) == MU_CPUS_MAX)
        return;
    caches->level = level;
    caches->first = mu_cpus_next(&sharing, 0);
}

static int read_cache(const char *root, unsigned cpu, struct mu_numa_cpu *about, struct muster_error *reterr)
{
    struct caches caches = { .root = root, .cpu = cpu };
    char path[64];

    (void)snprintf(path, sizeof path, CPUS "/cpu%u/cache", cpu);
    if (!mu_kernel_files_each(root, path, found_cache, &caches) || caches.level == 0)
        return mu_fail(reterr, MUSTER_ENOTSUP, "cannot read the caches of CPU %u: %s", cpu, path);
    about->cache = caches.first;
    return 0;
}

static int read_cpu(const char *root, enum mu_numa_mode mode, unsigned cpu, struct mu_numa_cpu *about,
                    struct muster_error *reterr)
{
    switch (mode) {
    case MU_NUMA_NODE:
        return 0;
    case MU_NUMA_SOCKET:
        return read_socket(root, cpu, about, reterr);
    case MU_NUMA_EXCLUSIVE:
        return read_core(root, cpu, about, reterr);
    case MU_NUMA_CORE_COMPLEX:
        return read_cache(root, cpu, about, reterr);
    }
    return 0;
}

int mu_numa_read(const char *root, enum mu_numa_mode mode, const struct mu_cpus *allowed, struct mu_numa *ret_numa,
                 struct muster_error *reterr)
{
    int rc;

    memset(ret_numa, 0, sizeof *ret_numa);
    ret_numa->allowed = *allowed;
    for (unsigned cpu = 0; cpu < MU_CPUS_MAX; cpu++)
        ret_numa->cpus[cpu].node = -1;
    rc = read_nodes(root, ret_numa, reterr);
    for (unsigned cpu = mu_cpus_next(allowed, 0); rc == 0 && cpu < MU_CPUS_MAX; cpu = mu_cpus_next(allowed, cpu + 1))
        rc = read_cpu(root, mode, cpu, &ret_numa->cpus[cpu], reterr);
    if (rc == 0)
        read_memory(root, ret_numa);
    return rc;
}
