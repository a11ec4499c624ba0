/* --numa-binding for all workers of this node: from this machine's files and variables to a binding for each. */
#ifndef MU_CLI_RUN_BINDING_H
#define MU_CLI_RUN_BINDING_H

#include "cli/gpus.h"
#include "cli/join_text.h"
#include "cli/numa.h"

struct mu_run_bound { /* one worker */
    struct mu_binding binding;
    int node;                         /* of its GPU */
    char address[MU_GPU_ADDRESS_MAX]; /* of its GPU; "": not known which one of that node it is */
};

struct mu_run_machine { /* borrowed */
    const char *root;   /* see base/kernel_files.h */
    const struct mu_cpus *allowed;
    struct mu_gpus_variables variables;
};

/* What was done differently, to be told. */
struct mu_run_binding_news {
    bool node_unsaid;  /* a GPU's firmware does not say its NUMA node, and there are several: it was taken to be 0 */
    int memory_errnum; /* why the memory policy cannot be set, and stays as inherited; 0: it can */
};

/* `count` workers; local rank i uses the device i that it sees. The caller frees *ret_bound. */
int mu_run_bindings(const struct mu_run_machine *machine, enum mu_numa_mode mode, size_t count,
                    struct mu_run_bound **ret_bound, struct mu_run_binding_news *ret_news, struct muster_error *reterr);

/* "CPUs 0-15, memory of NUMA node 0 (GPU 0000:1b:00.0)" */
void mu_run_bound_text(struct mu_text *out, const struct mu_run_bound *bound);

#endif
