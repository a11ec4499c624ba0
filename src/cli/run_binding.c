/* A binding for each worker of this node. */
#include "cli/run_binding.h"

#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_ROOM = 512 }; /* for a worker's list of CPUs */

struct plan { /* much for a stack */
    struct mu_gpus gpus;
    struct mu_gpu_seen seen[MU_GPUS_MAX];
    int nodes[MU_GPUS_MAX]; /* of what is seen */
    size_t count;
    struct mu_numa numa;
};

static int find_devices(struct plan *plan, const struct mu_run_machine *machine, size_t workers,
                        struct muster_error *reterr)
{
    int rc;

    mu_gpus_list(machine->root, &plan->gpus);
    if (plan->gpus.vendor == MU_GPUS_NONE)
        return mu_fail(reterr, MUSTER_ENOTSUP,
                       "no NVIDIA or AMD GPU was found, and workers are bound to the CPUs next to their GPU; leave the "
                       "option out");
    rc = mu_gpus_seen(&plan->gpus, &machine->variables, plan->seen, &plan->count, reterr);
    if (rc < 0)
        return rc;
    if (plan->count < workers)
        return mu_fail(reterr, MUSTER_ELIMIT, "local rank %zu has no GPU (visible GPUs: %zu, workers: %zu)",
                       plan->count, plan->count, workers);
    return 0;
}

/* Devices without a worker count too: EXCLUSIVE leaves them their share. */
static int find_nodes(struct plan *plan, struct mu_run_binding_news *news, struct muster_error *reterr)
{
    for (size_t i = 0; i < plan->count; i++) {
        const struct mu_gpu_seen *seen = &plan->seen[i];

        if (seen->node == MU_GPU_NODE_UNKNOWN && seen->address[0] == '\0')
            return mu_fail(reterr, MUSTER_ENOTSUP, "the driver does not say the PCI address of device %zu", i);
        if (seen->node == MU_GPU_NODE_UNKNOWN)
            return mu_fail(reterr, MUSTER_ENOTSUP,
                           "cannot read the NUMA node of GPU %s: /sys/bus/pci/devices/%s/numa_node", seen->address,
                           seen->address);
        if (seen->node == MU_GPU_NODE_UNSAID && mu_cpus_count(&plan->numa.nodes) > 1)
            news->node_unsaid = true;
        plan->nodes[i] = seen->node == MU_GPU_NODE_UNSAID ? 0 : seen->node;
    }
    return 0;
}

static int choose_all(const struct plan *plan, enum mu_numa_mode mode, size_t count, struct mu_run_bound *bound,
                      struct muster_error *reterr)
{
    for (size_t i = 0; i < count; i++) {
        const char *address = plan->seen[i].address;
        int rc = mu_numa_choose(&plan->numa, mode, plan->nodes, plan->count, i, &bound[i].binding, reterr);

        if (rc < 0)
            return mu_wrap(reterr, rc, "local rank %zu", i);
        bound[i].node = plan->nodes[i];
        (void)snprintf(bound[i].address, sizeof bound[i].address, "%s", address == NULL ? "" : address);
    }
    return 0;
}

/* A policy that cannot be set is left out: memory comes from near the CPUs anyway, unless the inherited policy says
 * otherwise. */
static int try_memory(struct mu_run_bound *bound, size_t count)
{
    int errnum = 0;

    for (size_t i = 0; i < count && errnum == 0; i++)
        errnum = mu_binding_try_memory(&bound[i].binding);
    for (size_t i = 0; i < count && errnum != 0; i++)
        bound[i].binding.memory = MU_MEMORY_INHERITED;
    return errnum;
}

int mu_run_bindings(const struct mu_run_machine *machine, enum mu_numa_mode mode, size_t count,
                    struct mu_run_bound **ret_bound, struct mu_run_binding_news *ret_news, struct muster_error *reterr)
{
    struct plan *plan = malloc(sizeof *plan);
    struct mu_run_bound *bound = calloc(count, sizeof *bound);
    int rc = plan == NULL || bound == NULL ? mu_fail(reterr, MUSTER_ENOMEM, "the CPUs of the workers") : 0;

    *ret_news = (struct mu_run_binding_news){ 0 };
    if (rc == 0)
        rc = find_devices(plan, machine, count, reterr);
    if (rc == 0)
        rc = mu_numa_read(machine->root, mode, machine->allowed, &plan->numa, reterr);
    if (rc == 0)
        rc = find_nodes(plan, ret_news, reterr);
    if (rc == 0)
        rc = choose_all(plan, mode, count, bound, reterr);
    if (rc == 0) {
        ret_news->memory_errnum = try_memory(bound, count);
        *ret_bound = bound;
        bound = NULL;
    }
    free(bound);
    free(plan);
    return rc;
}

void mu_run_bound_text(struct mu_text *out, const struct mu_run_bound *bound)
{
    char room[LIST_ROOM];

    mu_text_add(out, "CPUs %s", mu_cpus_text(&bound->binding.cpus, room, sizeof room));
    switch (bound->binding.memory) {
    case MU_MEMORY_INHERITED:
        break;
    case MU_MEMORY_LOCAL:
        mu_text_add(out, ", local memory");
        break;
    case MU_MEMORY_PREFERRED:
        mu_text_add(out, ", memory of NUMA node %d", bound->node);
        break;
    }
    if (bound->address[0] != '\0')
        mu_text_add(out, " (GPU %s)", bound->address);
}
