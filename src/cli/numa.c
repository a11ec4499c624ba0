/* Which CPUs a worker gets. */
#include "cli/numa.h"

#include "base/error.h"

#include <assert.h>
#include <string.h>

enum { LIST_ROOM = 128 }; /* for a list of CPUs in an error */

bool mu_numa_mode_parse(const char *name, enum mu_numa_mode *ret_mode)
{
    static const char *const names[] = {
        [MU_NUMA_NODE] = "node",
        [MU_NUMA_SOCKET] = "socket",
        [MU_NUMA_EXCLUSIVE] = "exclusive",
        [MU_NUMA_CORE_COMPLEX] = "core-complex",
    };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) == 0) {
            *ret_mode = (enum mu_numa_mode)i;
            return true;
        }
    }
    return false;
}

/* The next allowed CPU of a node, from `from` on; MU_CPUS_MAX: there is none. */
static unsigned next_of_node(const struct mu_numa *numa, int node, unsigned from)
{
    unsigned cpu = mu_cpus_next(&numa->allowed, from);

    while (cpu < MU_CPUS_MAX && numa->cpus[cpu].node != node)
        cpu = mu_cpus_next(&numa->allowed, cpu + 1);
    return cpu;
}

#define FOR_EACH_OF_NODE(cpu, numa, node)                                                                              \
    for (unsigned cpu = next_of_node(numa, node, 0); (cpu) < MU_CPUS_MAX; (cpu) = next_of_node(numa, node, (cpu) + 1))

static void take_node(const struct mu_numa *numa, int node, struct mu_cpus *ret_cpus)
{
    FOR_EACH_OF_NODE (cpu, numa, node)
        mu_cpus_add(ret_cpus, cpu);
}

/* A node belongs to the socket of its lowest CPU. */
static void take_socket(const struct mu_numa *numa, int node, struct mu_cpus *ret_cpus)
{
    int socket = numa->cpus[next_of_node(numa, node, 0)].socket;

    MU_CPUS_EACH (other, &numa->nodes) {
        unsigned first = next_of_node(numa, (int)other, 0);

        if (first < MU_CPUS_MAX && numa->cpus[first].socket == socket)
            take_node(numa, (int)other, ret_cpus);
    }
}

/* The `place`th of `devices` on the node. If the cores cannot be divided evenly, the first devices get one more. */
static int take_share(const struct mu_numa *numa, int node, size_t place, size_t devices, struct mu_cpus *ret_cpus,
                      struct muster_error *reterr)
{
    struct mu_cpus cores = { 0 };
    size_t count, each, more, first, end, at = 0;

    FOR_EACH_OF_NODE (cpu, numa, node)
        mu_cpus_add(&cores, numa->cpus[cpu].core);
    count = mu_cpus_count(&cores);
    each = count / devices;
    more = count % devices;
    if (each == 0)
        return mu_fail(reterr, MUSTER_ELIMIT,
                       "%zu GPUs are on NUMA node %d, but this process may run on only %zu of its cores", devices, node,
                       count);
    first = place * each + (place < more ? place : more);
    end = first + each + (place < more ? 1 : 0);
    for (unsigned core = mu_cpus_next(&cores, 0); core < MU_CPUS_MAX && at < end;
         core = mu_cpus_next(&cores, core + 1), at++) {
        if (at < first)
            continue;
        FOR_EACH_OF_NODE (cpu, numa, node) {
            if (numa->cpus[cpu].core == core)
                mu_cpus_add(ret_cpus, cpu);
        }
    }
    return 0;
}

/* The caches with the most CPUs go first, of equals the one with the lowest CPU. More devices than caches: from the
 * start. */
static void take_complex(const struct mu_numa *numa, int node, size_t place, struct mu_cpus *ret_cpus)
{
    unsigned sizes[MU_CPUS_MAX] = { 0 }, best = 0;
    struct mu_cpus caches = { 0 };

    FOR_EACH_OF_NODE (cpu, numa, node) {
        sizes[numa->cpus[cpu].cache]++;
        mu_cpus_add(&caches, numa->cpus[cpu].cache);
    }
    place %= mu_cpus_count(&caches);
    for (size_t taken = 0; taken <= place; taken++) {
        if (taken > 0)
            sizes[best] = 0;
        best = mu_cpus_next(&caches, 0);
        for (unsigned cache = best; cache < MU_CPUS_MAX; cache = mu_cpus_next(&caches, cache + 1)) {
            if (sizes[cache] > sizes[best])
                best = cache;
        }
    }
    FOR_EACH_OF_NODE (cpu, numa, node) {
        if (numa->cpus[cpu].cache == best)
            mu_cpus_add(ret_cpus, cpu);
    }
}

static int check_node(const struct mu_numa *numa, int node, struct muster_error *reterr)
{
    char room[LIST_ROOM];

    if (!mu_cpus_has(&numa->nodes, (unsigned)node))
        return mu_fail(reterr, MUSTER_ENOTSUP, "its GPU is on NUMA node %d, but the kernel lists only %s", node,
                       mu_cpus_text(&numa->nodes, room, sizeof room));
    if (next_of_node(numa, node, 0) == MU_CPUS_MAX)
        return mu_fail(reterr, MUSTER_ENOTSUP,
                       "its GPU is on NUMA node %d, none of whose CPUs this process may run on (it may use %s)", node,
                       mu_cpus_text(&numa->allowed, room, sizeof room));
    return 0;
}

int mu_numa_choose(const struct mu_numa *numa, enum mu_numa_mode mode, const int *device_nodes, size_t devices,
                   size_t index, struct mu_binding *ret_binding, struct muster_error *reterr)
{
    int node = device_nodes[index], rc = check_node(numa, node, reterr);
    size_t place = 0, beside = 0; /* among the devices of this node */

    if (rc < 0)
        return rc;
    for (size_t i = 0; i < devices; i++) {
        place += i < index && device_nodes[i] == node;
        beside += device_nodes[i] == node;
    }
    assert(place < beside);
    *ret_binding = (struct mu_binding){ .memory = MU_MEMORY_LOCAL };
    switch (mode) {
    case MU_NUMA_NODE:
        take_node(numa, node, &ret_binding->cpus);
        break;
    case MU_NUMA_SOCKET:
        take_socket(numa, node, &ret_binding->cpus);
        break;
    case MU_NUMA_EXCLUSIVE:
        rc = take_share(numa, node, place, beside, &ret_binding->cpus, reterr);
        break;
    case MU_NUMA_CORE_COMPLEX:
        take_complex(numa, node, place, &ret_binding->cpus);
        break;
    }
    if (mode != MU_NUMA_SOCKET && (unsigned)node < MU_BINDING_NODES_MAX && mu_cpus_has(&numa->memory, (unsigned)node))
        mu_binding_prefer_node(ret_binding, (unsigned)node);
    assert(rc < 0 || mu_cpus_next(&ret_binding->cpus, 0) < MU_CPUS_MAX);
    return rc;
}
