/* What people read after a failure: a line in the log as soon as it happens, and at the end of the run the box that
 * torchrun prints. Also some lines of the log that scripts look for. Pure: texts in, texts out. */
#ifndef MU_AGENT_REPORT_H
#define MU_AGENT_REPORT_H

#include "agent/errfile.h"

#include <inttypes.h>
#include <sys/types.h>

#define MU_REPORT_BYTES_MAX ((size_t)64 << 20) /* of one report */
#define MU_REPORT_DETAIL_MAX 256               /* bytes of a message or of a last line in the one line */
#define MU_REPORT_PROBLEMS_MAX 8               /* error files that could not be used, one line each */

/* "SIGKILL"; "<N/A>" for numbers that Python has no name for. */
const char *mu_report_signal_name(int number);

struct mu_failure { /* of one worker; borrows */
    int64_t rank, local_rank;
    pid_t pid;
    const char *id;                 /* of a driver's worker, instead of the pid; NULL: a process */
    int exit_code;                  /* the status, or minus the number of the signal it died of */
    int64_t noticed_s;              /* wall clock, seconds; counts when there is no error file */
    const char *error_path;         /* shown if `error` is present */
    const struct mu_errfile *error; /* NULL or not present: none */
    bool out_of_memory;             /* see oom.h */
    struct mu_slice last_stderr;    /* the end of what it wrote, as far as we have it; may be empty */
};

/* When it happened, by its error file if there is one. Whole seconds. */
int64_t mu_failure_time_s(const struct mu_failure *failure);
/* Which came first: the earliest; of equals the first in the list. `count` must not be 0. Put real failures in front of
 * those of siblings that were stopped because of them. */
size_t mu_failure_first(const struct mu_failure *failures, size_t count);

/* The line, without its end: "rank 1 on node0 (local rank 1, pid 42) failed: killed by SIGKILL (out of memory): last
 * words". The last words are the message of its error file, or else the last line of its stderr that says something, as
 * far as stderr goes through us. Appends. */
int mu_failure_write_line(const struct mu_failure *failure, const char *host, struct mu_buf *out);

/* raw_error of its event: the error file's content or {"message": "<NONE>"}, with PyTorch's errorTraits if `traits`.
 * Appends. */
int mu_failure_write_raw(const struct mu_failure *failure, bool traits, struct mu_buf *out);
/* Whether any of them ended with an exit code and without an error file. After the first such failure PyTorch puts
 * errorTraits on every failure without an error file, as long as the launcher lives: remember a true answer over all
 * attempts. */
bool mu_failures_have_traits(const struct mu_failure *failures, size_t count);

struct mu_report {               /* borrows */
    const char *job;             /* mu_report_job() */
    const char *host;            /* gethostname() */
    bool signal_names;           /* 2.13: also name the signal behind the exit code; false: as 1.13 to 2.11 */
    struct mu_failure *failures; /* in the order in which they were found; by local rank if found together */
    size_t count;                /* above 0 */
};

/* "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: " and the box, ending with a line end.
 * Appends. */
int mu_report_write_box(const struct mu_report *report, struct mu_buf *out);
/* What `muster run` prints at the end: a line for each error file that was there and could not be used, then the box.
 * Appends. */
int mu_report_write(const struct mu_report *report, struct mu_buf *out);

/* What the job is called in the box. `argv`: the worker's command, templates not yet filled in. `run_path`: --run-path
 * was given. `interpreter`: argv[0] is the Python interpreter that we chose (PYTHON_EXEC, or found in PATH), not the
 * user's program. */
const char *mu_report_job(const char *const *argv, bool interpreter, bool run_path);
/* entry_point of events: the base name of the program. */
const char *mu_report_entry_point(const char *program);

/* Lines of the log that scripts look for, in PyTorch's words, with their level. They are cut to the room that is given,
 * and end with a NUL. Others are in policy.c and proc/proc_uv.c. */
/* DEBUG. `start_method`: of workers that are functions, "spawn" or "fork"; NULL: they are programs. */
void mu_say_failed(char *line, size_t room, const struct mu_failure *failure, const char *entry_point,
                   const char *start_method);
#define MU_SAY_LOG_DIR "log directory set to: %s"                                        /* INFO */
#define MU_SAY_ERROR_FILE "Setting worker%" PRId64 " reply file to: %s"                  /* INFO: local rank, path */
#define MU_SAY_NO_COPY "no error file defined for parent, to copy child error file (%s)" /* DEBUG */
/* The last line of a run that a signal ended: "...SignalException: Process 42 got signal: 15"; on stderr, not in the
 * log. */
void mu_say_ended_by_signal(char *line, size_t room, pid_t pid, int signal);

#endif
