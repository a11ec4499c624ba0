/* Two processes for one launcher: if one of them is killed, the other cleans up.
 *
 *   keeper    the pid that the user sees: forwards signals, ends as the agent did, cleans up when the agent dies
 *     agent   own session, parent of the workers: everything else
 *       workers, each with a session of its own
 *
 * The keeper has no loop, no thread and almost no memory. Both are sub-reapers: processes that workers detach become
 * children of the agent, or of the keeper if the agent is gone. If the keeper is gone, the agent reads the end of a
 * pipe and has to kill its workers and end. If the agent was killed, a torch_shm_manager that is left gets
 * MU_STOP_SHARED_MS, as in a stop; if the keeper was killed, it gets no time.
 *
 * An agent that is killed cannot tell the other nodes. It may leave a last will with its keeper (will.h). If the agent
 * dies of a signal, the keeper sends it after all leftovers are gone.
 *
 * Ctrl-Z: the agent gets SIGTSTP (it should call mu_group_suspend()); when it has stopped, or 500 ms later, the keeper
 * stops itself. SIGCONT goes on to the agent. SIGHUP is not forwarded if it was ignored at the start (nohup). */
#ifndef MU_PROC_KEEPER_H
#define MU_PROC_KEEPER_H

#include "proc/signals.h"
#include "proc/will.h"

#define MU_KEEPER_DRAIN_MS 100   /* for what is left when the agent is gone, to end by itself */
#define MU_KEEPER_STUCK_MS 5000  /* for what does not end after SIGKILL */
#define MU_KEEPER_SUSPEND_MS 500 /* for the agent to stop after SIGTSTP */

/* Forks. Returns 0 in the agent; never in the keeper, which ends without exit(): flush first. Call it while there is
 * one thread. `name` is what the keeper's own messages begin with ("muster run"); copied. In the agent: signal mask and
 * dispositions are as before, mu_guarded() is true, and *ret_fd (close-on-exec, stays ours) becomes readable (end of
 * file) when the keeper is gone. On failure there is still one process. */
int mu_keeper_run(const struct mu_startup *startup, const char *name, int *ret_fd, struct muster_error *reterr);

/* Whether this process is the agent of a keeper: it adopts what its workers detach and may kill it. */
bool mu_guarded(void);
bool mu_guard_adopts(void); /* ... and the kernel lets it adopt */
/* In a guarded process: whether processes that workers detach can be found and ended. The error says what is missing:
 * adoption by the kernel, or /proc. Keeper and agent run without it too, but such processes may survive. */
int mu_guard_check(struct muster_error *reterr);
int mu_guard_fd(void); /* what *ret_fd was; -1: not guarded */
/* A place for the last will of an agent of this process, to be released; NULL: not guarded, or no place is free. */
struct mu_will *mu_guard_will(void);
pid_t mu_guard_keeper(void);                     /* the pid that the user sees: the keeper's; ours: not guarded */
const struct mu_startup *mu_guard_startup(void); /* NULL: not guarded */

#endif
