/* How many workers a machine can take: CPUs and GPUs as the kernel and the drivers list them. `root`: see
 * kernel_files.h. */
#ifndef MU_CLI_NPROC_H
#define MU_CLI_NPROC_H

#include "base/cpus.h"
#include "cli/gpus.h"

#define MU_NPROC_MAX 4096 /* as many as logs take */

/* CPUs that this process may run on. False: the kernel does not say it. */
bool mu_nproc_allowed(struct mu_cpus *ret_cpus);
int64_t mu_nproc_cpus(void); /* how many these are; at least 1 */

/* How many CPUs' worth of time the cgroups of this process leave to it, rounded up; the smallest of all levels, version
 * 1 and 2. 0: as much as there is. */
int64_t mu_nproc_quota(const char *root);

struct mu_nproc_gpus {
    bool has_driver; /* there is a trace of one: its list, or its device */
    int64_t count;   /* devices a worker would see */
};

/* See mu_gpus_count(). */
struct mu_nproc_gpus mu_nproc_gpus(const char *root, const struct mu_gpus_variables *variables);

#endif
