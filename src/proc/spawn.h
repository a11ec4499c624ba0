/* Starting one worker.
 *
 * A command is started by something like vfork: the parent waits until exec has worked or failed. A function is started
 * by fork. The child
 * - dies with the thread that started it (PDEATHSIG KILL), and leads a session of its own;
 * - gets back signal mask, dispositions, umask and soft RLIMIT_NOFILE as they were when the program started, except
 *   that SIGPIPE has its default action;
 * - has a higher oom_score_adj than the launcher, so that the kernel kills it first when memory runs out;
 * - has the descriptors 0, 1 and 2, and no others;
 * - is bound to CPUs and memory, if it has a binding (binding.h).
 * Nothing is set up for its death: see proc_uv.h. */
#ifndef MU_PROC_SPAWN_H
#define MU_PROC_SPAWN_H

#include "base/buf.h"
#include "proc/binding.h"
#include "proc/signals.h"

#define MU_SPAWN_RESULT_MAX (64u << 20) /* bytes that a function may give back */
#define MU_SPAWN_OOM_SCORE 100          /* added to oom_score_adj */
#define MU_SPAWN_EXIT_SETUP 127         /* a function's child that could not be set up; its result tells why */

struct mu_stdio {
    enum { MU_STDIO_INHERIT, MU_STDIO_FD } type;
    int fd; /* stays open on our side */
};

/* Runs in the child. What it puts into `result` (at most MU_SPAWN_RESULT_MAX) goes back to the parent; what it returns
 * is the exit code, 0 to 255. It should not exec. */
typedef int mu_spawn_function(void *ctx, struct mu_buf *result);

struct mu_spawn {            /* zeroed, then filled in; borrowed */
    const char *const *argv; /* NULL-terminated; argv[0] is the program, looked for in envp's PATH if it has no slash */
    const char *const *envp; /* NULL-terminated; NULL: ours */
    struct mu_stdio io[3];
    const struct mu_binding *binding; /* its CPUs and memory; NULL: ours */
    mu_spawn_function *function;      /* instead of a command; argv is ignored */
    const char *function_name;        /* for errors */
    void *function_ctx;
};

struct mu_spawned {
    pid_t pid;     /* also the number of its group and of its session */
    int result_fd; /* a function's: non-blocking, for mu_result_read(); the caller closes it. Else -1 */
};

/* `startup` may be NULL: the child gets what we have now. On failure the error names program and reason, its errnum is
 * ENOENT (no such program), EACCES (may not be executed), ..., and nothing is left. */
int mu_spawn_start(const struct mu_spawn *spec, const struct mu_startup *startup, struct mu_spawned *ret_spawned,
                   struct muster_error *reterr);

/* What comes back from a function. Zeroed memory is ready for use. */
struct mu_result {
    char header[16];
    size_t header_len;
    uint64_t len; /* as the header says */
    struct mu_buf bytes;
    bool complete;
};

/* Reads what is there. 0: all of it (complete is set), or nothing more for now. An error: it will never be complete. It
 * ended in the middle, was too long, or the child could not be set up; the text says why. */
int mu_result_read(struct mu_result *result, int fd, struct muster_error *reterr);
void mu_result_done(struct mu_result *result);

#endif
