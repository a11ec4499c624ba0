/* The workers of one agent on a loop: started, watched, stopped, reaped.
 *
 *   EMPTY --start--> RUNNING --stop or kill--> STOPPING --> stopped: EMPTY again
 *
 * - start() is done when it returns: every command was exec'ed, or the error says which was not. PDEATHSIG follows the
 *   thread: call it from a thread that outlives the workers.
 * - on_exit comes once for every worker (unless it could not be killed), from the loop, also during a stop, never
 *   inside a call. A dead worker stays unreaped until the stop, so that its group's number is not used again. So stop a
 *   group also when all its workers have ended: that ends what they left behind.
 * - on_stopped comes once, after all on_exits. Nothing of the workers is left, except for the processes that it names.
 * - In a guarded process (keeper.h) groups adopt the processes that workers detach: SIGCHLD is handled, and a stop ends
 *   when no child is left. Children in our own session that are not workers belong to another part of the program and
 *   are left alone.
 * - A process may have several groups, each on a loop and thread of its own. A group leaves processes alone that are in
 *   the session or process group of another group's workers. A process that has left these could belong to any group:
 *   the last group that has workers ends it.
 * - Without a guard, or where the kernel does not allow adoption, only the workers and their process groups are known.
 *   No other child is waited for. Deaths are told by pidfds, or by SIGCHLD where the kernel has no pidfds. */
#ifndef MU_PROC_PROC_UV_H
#define MU_PROC_PROC_UV_H

#include "proc/spawn.h"
#include "proc/stop.h"

#include <uv.h>

#define MU_GROUP_WORKERS_MAX 4096
#define MU_GROUP_POLL_MS 20 /* without a guard: how often a stop looks whether the groups have ended */

struct mu_group;

struct mu_exit {   /* borrowed */
    uint32_t rank; /* local: the place in the list of specs */
    pid_t pid;
    int code;        /* 0 to 255, or -signal */
    bool dumped;     /* core */
    int64_t wall_ms; /* when we heard of it, since the epoch */
    /* Of a function. */
    struct mu_slice result;
    const struct muster_error *result_error; /* it gave nothing back; NULL: it did, or is a command */
};

struct mu_hang {   /* borrowed */
    uint32_t rank; /* local */
    pid_t pid;
    const char *comm;
    char state; /* 'D' */
};

struct mu_stopped {      /* borrowed */
    size_t killed_count; /* processes that workers had left behind and that had to be killed */
    size_t left_count;   /* processes that could not be killed; 0: nothing is left */
    const char *left;    /* who they are, for a message; empty: none */
};

struct mu_group_config {
    uv_loop_t *loop;
    const struct mu_startup *startup; /* copied; NULL: mu_guard_startup(), and without that: as we are now */
    void (*on_exit)(void *ctx, const struct mu_exit *exit);
    void (*on_stopped)(void *ctx, const struct mu_stopped *stopped); /* may start() or close() */
    /* A worker has been in uninterruptible sleep for this long (stuck.h). From the loop, once for each such sleep, not
     * during a stop. 0: it is not checked. */
    uint64_t hang_ms;
    void (*on_hang)(void *ctx, const struct mu_hang *hang);
    void *ctx;
};

typedef void mu_group_closed_cb(void *ctx);

/* MUSTER_EINVAL: SIGCHLD is ignored here, so that exit codes would be lost. */
int mu_group_new(const struct mu_group_config *config, struct mu_group **ret_group, struct muster_error *reterr);

/* Starts all, in order; only when EMPTY. On failure those before the one that failed are running: stop the group.
 * on_exit of a worker comes with its place in `specs`. */
int mu_group_start(struct mu_group *group, const struct mu_spawn *specs, size_t count, struct muster_error *reterr);

/* `signal` to the workers' groups, at most grace_ms, then SIGKILL: see stop.h. During the grace a second stop sends its
 * signal too, if it is another one, and the earlier end counts. on_stopped also comes when EMPTY. */
void mu_group_stop(struct mu_group *group, int signal, uint64_t grace_ms);
/* SIGKILL at once; also quickens a stop that is under way. */
void mu_group_kill(struct mu_group *group);

/* Ctrl-Z: stops (SIGSTOP) the groups and then this process; when it is continued, the groups are too. */
void mu_group_suspend(struct mu_group *group);

pid_t mu_group_pid(const struct mu_group *group, uint32_t rank); /* 0: there is none (any more) */
/* Whether `pid` is a worker of this group, or in a worker's process group or session. For file timers. */
bool mu_group_owns(const struct mu_group *group, pid_t pid);
int mu_group_signal(struct mu_group *group, uint32_t rank,
                    int signal); /* to that worker's process group; 0 or -errno */

/* Only when EMPTY. `on_closed` (may be NULL) is the last callback; then it is freed. */
void mu_group_close(struct mu_group *group, mu_group_closed_cb *on_closed, void *ctx);

#endif
