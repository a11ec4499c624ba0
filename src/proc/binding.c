/* CPUs and memory policy, by system calls: no libnuma, no numactl. */
#include "proc/binding.h"

#include <assert.h>
#include <errno.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

void mu_binding_prefer_node(struct mu_binding *binding, unsigned node)
{
    assert(node < MU_BINDING_NODES_MAX);
    binding->memory = MU_MEMORY_PREFERRED;
    binding->nodes[node / MU_CPUS_WORD_BITS] |= 1ul << node % MU_CPUS_WORD_BITS;
}

MU_IN_CHILD int mu_binding_set_cpus(const struct mu_binding *binding)
{
    return syscall(SYS_sched_setaffinity, 0, sizeof binding->cpus.words, binding->cpus.words) < 0 ? errno : 0;
}

MU_IN_CHILD int mu_binding_set_memory(const struct mu_binding *binding)
{
    long rc = 0;

    switch (binding->memory) {
    case MU_MEMORY_INHERITED:
        break;
    case MU_MEMORY_LOCAL:
        rc = syscall(SYS_set_mempolicy, MPOL_LOCAL, NULL, 0ul);
        break;
    case MU_MEMORY_PREFERRED: /* the kernel takes one bit less than it is told */
        rc = syscall(SYS_set_mempolicy, MPOL_PREFERRED, binding->nodes, MU_BINDING_NODES_MAX + 1ul);
        break;
    }
    return rc < 0 ? errno : 0;
}

int mu_binding_try_memory(const struct mu_binding *binding)
{
    unsigned long nodes[MU_BINDING_NODES_MAX / MU_CPUS_WORD_BITS] = { 0 };
    int mode, errnum;

    if (binding->memory == MU_MEMORY_INHERITED)
        return 0;
    if (syscall(SYS_get_mempolicy, &mode, nodes, MU_BINDING_NODES_MAX + 1ul, NULL, 0ul) < 0)
        return errno;
    errnum = mu_binding_set_memory(binding);
    if (errnum == 0 && syscall(SYS_set_mempolicy, (long)mode, nodes, MU_BINDING_NODES_MAX + 1ul) < 0)
        return errno;
    return errnum;
}
