/* --numa-binding: which CPUs a worker gets, and from which NUMA node its memory comes. Pure, but for mu_numa_read(). */
#ifndef MU_CLI_NUMA_H
#define MU_CLI_NUMA_H

#include "muster.h"
#include "proc/binding.h"

#include <stdint.h>

enum mu_numa_mode {
    MU_NUMA_NODE,         /* the CPUs of the device's NUMA node */
    MU_NUMA_SOCKET,       /* those of all NUMA nodes on the same socket */
    MU_NUMA_EXCLUSIVE,    /* a share of the cores of the node: one for each device there, with all their threads */
    MU_NUMA_CORE_COMPLEX, /* those of the node that share one last-level cache, another one for each device there */
};

bool mu_numa_mode_parse(const char *name, enum mu_numa_mode *ret_mode);

/* This machine. Of the CPUs only those that are allowed are filled in, and only with what the mode needs. */
struct mu_numa {
    struct mu_cpus allowed; /* to this process; none of them is offline */
    struct mu_cpus nodes;   /* that are there; some may have no CPUs */
    struct mu_cpus memory;  /* nodes from which this process may take memory */
    struct mu_numa_cpu {
        int node;       /* -1: in none */
        int socket;     /* SOCKET */
        unsigned core;  /* EXCLUSIVE: the lowest of the CPUs that are threads of one core */
        unsigned cache; /* CORE_COMPLEX: the lowest of the CPUs that share its last-level cache */
    } cpus[MU_CPUS_MAX];
};

/* Fills in all but `allowed`, which it is given, from the tree at `root` (kernel_files.h). */
int mu_numa_read(const char *root, enum mu_numa_mode mode, const struct mu_cpus *allowed, struct mu_numa *ret_numa,
                 struct muster_error *reterr);

/* The binding of a worker that uses device `index` of `devices`; `device_nodes` are their NUMA nodes, 0 or above. */
int mu_numa_choose(const struct mu_numa *numa, enum mu_numa_mode mode, const int *device_nodes, size_t devices,
                   size_t index, struct mu_binding *ret_binding, struct muster_error *reterr);

#endif
