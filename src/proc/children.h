/* The children of a process, and all processes below them, read from /proc.
 *
 * The kernel's own list (<pid>/task/<tid>/children) where there is one; it may miss a child while others end. With
 * `thorough`, or if the kernel has no such list, every process is looked at. */
#ifndef MU_PROC_CHILDREN_H
#define MU_PROC_CHILDREN_H

#include "base/error.h"

#include <stdint.h>
#include <sys/types.h>

#define MU_CHILD_COMM_MAX 64  /* names of kernel threads can be longer than 16; cut there */
#define MU_CHILDREN_MAX 65536 /* more than that are not listed */
#define MU_PROC_ROOT "/proc"
#define MU_CHILD_SHM_MANAGER "torch_shm_manag" /* PyTorch's torch_shm_manager: the kernel keeps 15 bytes */

struct mu_child {
    pid_t pid, ppid, pgid, sid;
    char
        state; /* as in /proc/<pid>/stat: R S D T t Z X I; of another thread if the first has ended before the others */
    uint64_t start; /* when it was started, in the kernel's ticks: no other process has had this pid and this start */
    char comm[MU_CHILD_COMM_MAX];
};

struct mu_children { /* zeroed memory is an empty list */
    struct mu_child *items;
    size_t count, cap;
};

struct mu_pids { /* borrowed; ascending */
    const pid_t *items;
    size_t count;
};

/* Replaces the list by the children of `parent`, in order of pid, without those in `skip` (may be NULL). Processes that
 * end meanwhile may be in it or not. MUSTER_ENOTSUP: `root` is not there, or shows the processes of another pid
 * namespace (checked for our own pid only); MUSTER_ENOMEM, MUSTER_ELIMIT, MUSTER_ESYSTEM: no descriptor is free. */
int mu_children_list(struct mu_children *list, const char *root, pid_t parent, bool thorough,
                     const struct mu_pids *skip, struct muster_error *reterr);
/* Replaces the list by all processes whose group is one of `pgids`. The same errors. */
int mu_children_in_groups(struct mu_children *list, const char *root, const struct mu_pids *pgids,
                          struct muster_error *reterr);
/* Replaces the processes in the list (their pids are enough) by all processes below them: their children, the children
 * of these, and so on, at most MU_CHILDREN_MAX. The same errors; the list is empty then. */
int mu_children_below(struct mu_children *list, const char *root, struct muster_error *reterr);
int mu_children_add(struct mu_children *list, const struct mu_child *child); /* MUSTER_ENOMEM, MUSTER_ELIMIT */
/* Signals a process that need not be our child, if its pid still belongs to the process that was listed in
 * MU_PROC_ROOT. 0 or -errno; -ESRCH: it does not. On a kernel without pidfds the pid could be reused between the check
 * and the signal, if all pids were used up in that moment. */
int mu_child_signal(const struct mu_child *child, int signal);
/* One process; false if it does not exist (any more) or cannot be read. */
bool mu_child_read(const char *root, pid_t pid, struct mu_child *ret_child);
bool mu_child_is_dead(const struct mu_child *child); /* a zombie */
/* How often the kernel has switched from it (its first thread) to something else. False: nothing can be read. */
bool mu_child_read_switches(const char *root, pid_t pid, uint64_t *ret_switches);
void mu_children_done(struct mu_children *list);

#endif
