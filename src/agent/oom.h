/* Whether the kernel killed a worker because memory ran out, as far as that can be known without privileges: the kernel
 * counts such kills for our cgroup (memory.events of v2, memory.oom_control of v1), or else for the machine
 * (/proc/vmstat). If the count has grown since the workers were started and a worker died of a SIGKILL that we did not
 * send, the kernel killed it. */
#ifndef MU_AGENT_OOM_H
#define MU_AGENT_OOM_H

#include <stdbool.h>
#include <stdint.h>

struct mu_oom {
    bool known;      /* false: no counter here; nothing is ever said to be out of memory */
    bool of_machine; /* the counter is the whole machine's: it may have been another process */
    uint64_t kills;
};

/* `root` is put in front of /proc and /sys: "" on a real machine. Reads two or three small files; waits for nothing. */
void mu_oom_read(const char *root, struct mu_oom *ret_oom);

/* `before`: read when the workers were started; `after`: read when this one was found dead. `exit_code` is minus the
 * signal's number; 137, which a shell makes of it, counts too. */
bool mu_oom_killed(const struct mu_oom *before, const struct mu_oom *after, int exit_code);

#endif
