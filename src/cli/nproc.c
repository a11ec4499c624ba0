/* CPUs and GPUs as the kernel and the drivers list them. */
#include "cli/nproc.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    CPUS_MAX = 1 << 20,    /* bits of an affinity mask */
    FILE_BYTES_MAX = 8192, /* of anything that is read here */
    DEVICES_MAX = 1024,    /* entries of CUDA_VISIBLE_DEVICES that are looked at */
};

/* ---- Files ---- */

/* The path under `root`, in `path`; false: it is too long. */
static bool place(char path[static PATH_MAX], const char *root, const char *name)
{
    return snprintf(path, PATH_MAX, "%s%s", root, name) < PATH_MAX;
}

static bool read_text(const char *path, char text[static FILE_BYTES_MAX])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t len = 0;
    ssize_t got = fd < 0 ? -1 : 1;

    while (got > 0 && len < FILE_BYTES_MAX - 1) {
        got = read(fd, text + len, FILE_BYTES_MAX - 1 - len);
        len += got > 0 ? (size_t)got : 0;
    }
    if (fd >= 0)
        (void)close(fd);
    text[len] = '\0';
    return got >= 0;
}

static bool exists(const char *root, const char *name)
{
    char path[PATH_MAX];

    return place(path, root, name) && access(path, F_OK) == 0;
}

/* ---- CPUs ---- */

int64_t mu_nproc_cpus(void)
{
    int64_t count = 0;

    for (int cpus = CPU_SETSIZE; cpus <= CPUS_MAX && count == 0; cpus *= 2) { /* until the kernel's mask fits */
        size_t size = CPU_ALLOC_SIZE((size_t)cpus);
        cpu_set_t *set = CPU_ALLOC((size_t)cpus);

        if (set == NULL)
            break;
        if (sched_getaffinity(0, size, set) == 0)
            count = CPU_COUNT_S(size, set);
        CPU_FREE(set);
    }
    return count > 0 ? count : 1;
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
    char path[PATH_MAX], text[FILE_BYTES_MAX];
    int64_t used, period;

    if (place(path, directory, "/cpu.max") && read_text(path, text) &&
        sscanf(text, "%" SCNd64 " %" SCNd64, &used, &period) == 2)
        take_smaller(quota, used, period);
}

/* One level of version 1: a quota of -1 is none. */
static void read_level_1(const char *directory, int64_t *quota)
{
    char path[PATH_MAX], text[FILE_BYTES_MAX];
    int64_t used, period;

    if (!place(path, directory, "/cpu.cfs_quota_us") || !read_text(path, text) || sscanf(text, "%" SCNd64, &used) != 1)
        return;
    if (!place(path, directory, "/cpu.cfs_period_us") || !read_text(path, text) ||
        sscanf(text, "%" SCNd64, &period) != 1)
        return;
    take_smaller(quota, used, period);
}

typedef void read_level(const char *directory, int64_t *quota);

/* From our own group up to where the hierarchy is mounted. In a container that sees only its own part of it the lower ones
 * are not there, and the mount itself is our group. */
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

/* Whether "cpu" is among "cpu,cpuacct". */
static bool has_cpu(const char *controllers)
{
    while (*controllers != '\0') {
        size_t len = strcspn(controllers, ",");

        if (len == 3 && strncmp(controllers, "cpu", len) == 0)
            return true;
        controllers += len + (controllers[len] == ',');
    }
    return false;
}

int64_t mu_nproc_quota(const char *root)
{
    static const char *const mounts_2[] = { "/sys/fs/cgroup", "/sys/fs/cgroup/unified" }, *const mounts_1[] = {
        "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpuacct,cpu"
    };
    char path[PATH_MAX], text[FILE_BYTES_MAX], *rest = text, *line;
    int64_t quota = 0;

    if (!place(path, root, "/proc/self/cgroup") || !read_text(path, text))
        return 0;
    while ((line = strsep(&rest, "\n")) != NULL) { /* NUMBER:CONTROLLERS:GROUP */
        char *group = line, *controllers;

        (void)strsep(&group, ":");
        controllers = group == NULL ? NULL : strsep(&group, ":");
        if (group == NULL || controllers == NULL)
            continue;
        for (size_t i = 0; controllers[0] == '\0' && i < sizeof mounts_2 / sizeof mounts_2[0]; i++)
            read_levels(root, mounts_2[i], group, read_level_2, &quota);
        for (size_t i = 0; has_cpu(controllers) && i < sizeof mounts_1 / sizeof mounts_1[0]; i++)
            read_levels(root, mounts_1[i], group, read_level_1, &quota);
    }
    return quota;
}

/* ---- GPUs ---- */

typedef bool is_device(const char *directory, const char *name);

static int64_t count_entries(const char *root, const char *name, is_device *is)
{
    char path[PATH_MAX];
    DIR *directory = place(path, root, name) ? opendir(path) : NULL;
    const struct dirent *entry;
    int64_t count = 0;

    if (directory == NULL)
        return 0;
    while ((entry = readdir(directory)) != NULL)
        count += entry->d_name[0] != '.' && is(path, entry->d_name);
    (void)closedir(directory);
    return count;
}

static bool any(const char *directory, const char *name)
{
    (void)directory;
    (void)name;
    return true;
}

/* nvidia0, but not nvidiactl or nvidia-uvm */
static bool is_nvidia_node(const char *directory, const char *name)
{
    static const char prefix[] = "nvidia";
    const char *number = name + sizeof prefix - 1;

    (void)directory;
    return strncmp(name, prefix, sizeof prefix - 1) == 0 && number[0] != '\0' &&
           number[strspn(number, "0123456789")] == '\0';
}

/* AMD's list has the CPUs in it as well: they have no SIMD units. */
static bool is_amd_gpu(const char *directory, const char *name)
{
    char path[PATH_MAX], text[FILE_BYTES_MAX];
    const char *simds;

    if (snprintf(path, sizeof path, "%s/%s/properties", directory, name) >= PATH_MAX || !read_text(path, text))
        return false;
    simds = strstr(text, "simd_count ");
    return simds != NULL && strtol(simds + strlen("simd_count "), NULL, 10) > 0;
}

static int64_t count_listed(const char *root)
{
    int64_t count = count_entries(root, "/proc/driver/nvidia/gpus", any);

    if (count == 0) /* a container may see the devices only */
        count = count_entries(root, "/dev", is_nvidia_node);
    if (count == 0)
        count = count_entries(root, "/sys/class/kfd/kfd/topology/nodes", is_amd_gpu);
    return count;
}

static const char *skip_blanks(const char *text)
{
    while (*text == ' ' || (*text >= '\t' && *text <= '\r'))
        text++;
    return text;
}

static bool is_name(const char *entry)
{
    return strncmp(entry, "GPU-", 4) == 0 || strncmp(entry, "MIG-", 4) == 0;
}

/* One entry as CUDA takes it: "2", or GPU-... and MIG-... once the first one was such a name. False: it ends the list. */
static bool is_valid(const char *entry, const char *first, bool names, int64_t listed)
{
    char *end;
    long index;

    if (names)
        return strncmp(entry, first, 4) == 0;
    index = strtol(entry, &end, 10);
    return end > entry && index >= 0 && (listed == 0 || index < listed);
}

static bool is_same(const char *a, const char *b)
{
    if (is_name(a))
        return strcspn(a, ",") == strcspn(b, ",") && strncmp(a, b, strcspn(a, ",")) == 0;
    return strtol(a, NULL, 10) == strtol(b, NULL, 10);
}

static int64_t count_visible(const char *visible, int64_t listed)
{
    const char *entries[DEVICES_MAX], *at = visible;
    bool names = is_name(visible);
    int64_t count = 0;

    while (count < DEVICES_MAX) {
        entries[count] = names ? at : skip_blanks(at); /* there are no blanks before names */
        if (!is_valid(entries[count], entries[0], names, listed))
            return count;
        for (int64_t i = 0; i < count; i++) {
            if (is_same(entries[i], entries[count]))
                return 0;
        }
        at = entries[count] + strcspn(entries[count], ",");
        count++;
        if (*at == '\0')
            return count;
        at++;
    }
    return count;
}

struct mu_nproc_gpus mu_nproc_gpus(const char *root, const char *visible)
{
    int64_t listed = count_listed(root);

    return (struct mu_nproc_gpus){
        .has_driver = listed > 0 || exists(root, "/dev/nvidiactl") || exists(root, "/dev/dxg") ||
                      exists(root, "/dev/nvhost-ctrl"),
        .count = visible == NULL ? listed : count_visible(visible, listed),
    };
}
