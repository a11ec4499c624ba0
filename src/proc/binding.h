/* Where a worker runs and where its memory comes from. */
#ifndef MU_PROC_BINDING_H
#define MU_PROC_BINDING_H

#include "base/cpus.h"

/* For functions that run in a child that shares our memory, on a stack of its own: sanitizers cannot follow them. */
#if defined(__clang__)
#define MU_IN_CHILD __attribute__((no_sanitize("address", "undefined", "memory", "thread")))
#else
#define MU_IN_CHILD __attribute__((no_sanitize_address, no_sanitize_undefined, no_sanitize_thread))
#endif

#define MU_BINDING_NODES_MAX 1024u /* as many NUMA nodes as Linux can be built for */

enum mu_memory {
    MU_MEMORY_INHERITED, /* as the launcher's */
    MU_MEMORY_LOCAL,     /* from the NUMA node of the CPU that asks for it */
    MU_MEMORY_PREFERRED, /* from `nodes`, and from others when they are full */
};

/* Filled in before the fork: the child only hands it to the kernel. */
struct mu_binding {
    struct mu_cpus cpus; /* not empty */
    enum mu_memory memory;
    unsigned long nodes[MU_BINDING_NODES_MAX / MU_CPUS_WORD_BITS];
};

void mu_binding_prefer_node(struct mu_binding *binding, unsigned node); /* below MU_BINDING_NODES_MAX */

/* Both return 0 or an errno, and only make system calls, so that a child may call them before exec. */
int mu_binding_set_cpus(const struct mu_binding *binding);
int mu_binding_set_memory(const struct mu_binding *binding);

/* Whether this process may set the binding's memory policy: 0 or an errno. Containers often forbid it. Sets it for a
 * moment, and then the former one again. */
int mu_binding_try_memory(const struct mu_binding *binding);

#endif
