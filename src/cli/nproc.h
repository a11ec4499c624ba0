/* How many workers a machine can take: CPUs and GPUs as the kernel and the drivers list them. Nothing is loaded or linked
 * for it. `root` stands in front of every path that is read ("" for this machine's own), so that a test can bring its tree. */
#ifndef MU_CLI_NPROC_H
#define MU_CLI_NPROC_H

#include <stdbool.h>
#include <stdint.h>

#define MU_NPROC_MAX 4096 /* as many as logs take */

/* CPUs that this process may run on. At least 1. */
int64_t mu_nproc_cpus(void);

/* How many CPUs' worth of time the cgroups of this process leave to it, rounded up; the smallest of all levels, version 1
 * and 2. 0: as much as there is. */
int64_t mu_nproc_quota(const char *root);

struct mu_nproc_gpus {
    bool has_driver; /* there is a trace of one: its list, or its device */
    int64_t count;   /* devices a worker would see */
};

/* `visible` is the value of CUDA_VISIBLE_DEVICES, or NULL. If it is there its entries count, up to the first one that names
 * no device, and none at all if one comes twice; a driver's list, where there is one, bounds them. Else the list counts. */
struct mu_nproc_gpus mu_nproc_gpus(const char *root, const char *visible);

#endif
