/* A tree of files that stands for a machine's /proc, /sys and /dev, in a directory of its own for each test. */
#ifndef TESTS_UNIT_FAKE_TREE_H
#define TESTS_UNIT_FAKE_TREE_H

#include "pure.h"

#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static char tree[64];

static inline int remove_one(const char *path, const struct stat *about, int type, struct FTW *where)
{
    (void)about;
    (void)type;
    (void)where;
    return remove(path);
}

static inline int tree_setup(void **state)
{
    (void)state;
    (void)strcpy(tree, "/tmp/muster-tree-XXXXXX");
    return mkdtemp(tree) == NULL ? -1 : 0;
}

static inline int tree_teardown(void **state)
{
    (void)state;
    return nftw(tree, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

#define TREE_TEST(function) cmocka_unit_test_setup_teardown(function, tree_setup, tree_teardown)

/* A file with its directories; without text: a directory. */
static inline void put(const char *name, const char *text)
{
    char path[PATH_MAX];
    FILE *file;

    (void)snprintf(path, sizeof path, "%s%s", tree, name);
    for (char *slash = strchr(path + strlen(tree) + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
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

static inline void put_at(const char *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static inline void put_at(const char *text, const char *format, ...)
{
    char name[256];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(name, sizeof name, format, args);
    va_end(args);
    put(name, text);
}

/* ---- CPUs and NUMA nodes ---- */

/* So many of each inside of the one before. CPUs are numbered as Linux does: the first threads of all cores, then the
 * second. */
struct fake_cpus {
    unsigned sockets, nodes, caches, cores, threads;
};

static inline void put_cpu(const struct fake_cpus *m, unsigned core, unsigned thread)
{
    unsigned cores = m->sockets * m->nodes * m->caches * m->cores, cpu = core + thread * cores;
    unsigned first = core / m->cores * m->cores;
    char siblings[64] = "", sharing[64] = "", text[32];

    for (unsigned i = 0; i < m->threads; i++) {
        size_t at = strlen(siblings), from = strlen(sharing);

        (void)snprintf(siblings + at, sizeof siblings - at, "%s%u", i == 0 ? "" : ",", core + i * cores);
        (void)snprintf(sharing + from, sizeof sharing - from, "%s%u-%u", i == 0 ? "" : ",", first + i * cores,
                       first + m->cores - 1 + i * cores);
    }
    (void)snprintf(text, sizeof text, "%u\n", core / (m->nodes * m->caches * m->cores));
    put_at(text, "/sys/devices/system/cpu/cpu%u/topology/physical_package_id", cpu);
    put_at(siblings, "/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", cpu);
    put_at("Data\n", "/sys/devices/system/cpu/cpu%u/cache/index0/type", cpu);
    put_at("1\n", "/sys/devices/system/cpu/cpu%u/cache/index0/level", cpu);
    put_at(siblings, "/sys/devices/system/cpu/cpu%u/cache/index0/shared_cpu_list", cpu);
    put_at("Instruction\n", "/sys/devices/system/cpu/cpu%u/cache/index1/type", cpu);
    put_at("9\n", "/sys/devices/system/cpu/cpu%u/cache/index1/level", cpu);
    put_at(siblings, "/sys/devices/system/cpu/cpu%u/cache/index1/shared_cpu_list", cpu);
    put_at("Unified\n", "/sys/devices/system/cpu/cpu%u/cache/index3/type", cpu);
    put_at("3\n", "/sys/devices/system/cpu/cpu%u/cache/index3/level", cpu);
    put_at(sharing, "/sys/devices/system/cpu/cpu%u/cache/index3/shared_cpu_list", cpu);
    put_at("", "/sys/devices/system/cpu/cpu%u/cache/uevent", cpu);
}

static inline void put_cpus(struct fake_cpus m)
{
    unsigned each = m.caches * m.cores, cores = m.sockets * m.nodes * each;
    char text[64];

    for (unsigned core = 0; core < cores; core++) {
        for (unsigned thread = 0; thread < m.threads; thread++)
            put_cpu(&m, core, thread);
    }
    for (unsigned node = 0; node < m.sockets * m.nodes; node++) {
        int len = 0;

        for (unsigned thread = 0; thread < m.threads; thread++)
            len += snprintf(text + len, sizeof text - (size_t)len, "%s%u-%u", thread == 0 ? "" : ",",
                            node * each + thread * cores, node * each + each - 1 + thread * cores);
        (void)strcat(text, "\n");
        put_at(text, "/sys/devices/system/node/node%u/cpulist", node);
    }
    (void)snprintf(text, sizeof text, "0-%u\n", m.sockets * m.nodes - 1);
    put("/sys/devices/system/node/online", text);
    put("/sys/devices/system/node/has_memory", text);
}

/* ---- GPUs ---- */

static inline void put_nvidia(const char *address, const char *model, const char *node, const char *uuid)
{
    char text[256];

    (void)snprintf(text, sizeof text, "Model: \t\t NVIDIA\nIRQ:   \t\t 7\nGPU UUID: \t %s\nBus Type: \t PCIe\n", uuid);
    put_at(text, "/proc/driver/nvidia/gpus/%s/information", address);
    put_at(node, "/sys/bus/pci/devices/%s/numa_node", address);
    put_at(model, "/sys/bus/pci/devices/%s/device", address);
    put_at("0x10de\n", "/sys/bus/pci/devices/%s/vendor", address);
    put_at("0x030200\n", "/sys/bus/pci/devices/%s/class", address);
}

static inline void put_amd(unsigned number, unsigned bus, const char *node, const char *id)
{
    char text[256];

    (void)snprintf(text, sizeof text, "cpu_cores_count 0\nsimd_count 256\nlocation_id %u\ndomain 0\nunique_id %s\n",
                   bus << 8, id);
    put_at(text, "/sys/class/kfd/kfd/topology/nodes/%u/properties", number);
    put_at(node, "/sys/bus/pci/devices/0000:%02x:00.0/numa_node", bus);
    put_at("0x740f\n", "/sys/bus/pci/devices/0000:%02x:00.0/device", bus);
}

#endif
