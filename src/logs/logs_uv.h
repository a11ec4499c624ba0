/* The output of one attempt: of all workers of this node from one start to its end. One object per attempt; the next
 * attempt may be opened while the last one is still being drained. It lives on a loop and is used from its thread.
 *
 *   stream is               shown rank                          rank left out by --local-ranks-filter
 *   not redirected          inherits ours                       /dev/null
 *   redirected              the file, without us                the file, without us
 *   tee'd                   a pipe to us: file and console      the file, without us
 *   any, log dir /dev/null  inherits ours, as in PyTorch        inherits ours, as in PyTorch
 *
 *   mu_logs_open()                on_opened: directories, files and pipes are there
 *   mu_logs_stdio(), spawn        for each worker; mu_logs_error_file() for its environment
 *   mu_logs_spawned()             for each worker, spawned or not: our copies of its ends are closed
 *   ... output flows ...
 *   mu_logs_worker_exited()       for each that was spawned and has died: what it wrote is read at once
 *   mu_logs_tail()                for the report
 *   mu_logs_finish()              waits for the ends of the pipes, bounded, then frees
 *
 * Files are made, written and closed by a thread (logs/disk.h), so that a file system that hangs stops nothing here:
 * - while it is slow, a worker whose output we write waits when MU_LOGFILE_BYTES_MAX of it are waiting to be written;
 * - when it is silent, output goes on to the console, and what does not fit is lost, counted and reported;
 * - an attempt that is opened then goes on without files, as on a full disk;
 * - at the end it is waited for while it moves; after MU_LOGS_QUIET_MAX times drain_ms without a move the rest is lost.
 *
 * Later problems stop no worker, and are logged as warnings:
 * - a file cannot be written (a full disk): the loss is counted, each further byte is tried again, the console goes on;
 * - a console does not keep up: it gets its lines from the file later. It loses lines only without a file, or when it
 *   does not move at all for MU_LOGS_DRAIN_MS after mu_logs_finish();
 * - a process outlives its worker and holds the pipe: it is closed MU_LOGS_DRAIN_MS after mu_logs_finish(). */
#ifndef MU_LOGS_LOGS_UV_H
#define MU_LOGS_LOGS_UV_H

#include "logs/console_uv.h"
#include "logs/disk.h"
#include "logs/filters.h"
#include "logs/log_dirs.h"
#include "logs/redirects.h"

#include "base/buf.h"

#define MU_LOGS_DRAIN_MS 1000
#define MU_LOGS_QUIET_MAX 5 /* times drain_ms, for files in the end */
#define MU_LOGS_WORKERS_MAX 4096

struct mu_logs;

struct mu_logs_config {            /* zero it, then fill it in; what it points to must stay until on_opened */
    struct mu_disk *disk;          /* must live until the end of mu_logs_finish() */
    struct mu_logtree *tree;       /* open */
    uint64_t restart_count, round; /* the attempt's name in the tree */
    uint32_t workers;              /* local ranks 0..workers-1 */
    const uint32_t *ranks;         /* global ranks by local rank, for ${rank}; NULL: the same as local ranks */
    const char *role;              /* NULL: "default" */
    const char *host;              /* for ${hostname}; NULL: "localhost" */
    const char *prefix_template;   /* of tee'd lines; NULL or empty: [<role><local rank>]: */
    const struct mu_redirects *redirects, *tees;        /* NULL: none */
    const struct mu_ranks_shown *shown;                 /* NULL: all */
    const struct mu_filters *filters_out, *filters_err; /* NULL: none; must live until the end of mu_logs_finish() */
    struct mu_console *out, *err;                       /* both; must live until the end of mu_logs_finish() */
    uint32_t drain_ms;                                  /* 0: MU_LOGS_DRAIN_MS */
};

/* What a worker gets as descriptors 0, 1 and 2: -1 inherit ours, else dup2() this one, which stays ours and is
 * close-on-exec. Descriptors may be the same for several streams and workers. */
struct mu_logs_stdio {
    int in, out, err;
};

/* NULL: all is there. Else MUSTER_ESYSTEM and others when a directory, file or pipe cannot be made, naming it; `logs`
 * is gone then, and the loop closes in its next turns what was opened until then. A full disk or a silent file system
 * is no error. Then tee'd streams go to the console alone, redirected ones to /dev/null, and there is no error file; a
 * warning says so. */
typedef void mu_logs_opened(void *ctx, const struct muster_error *error);

/* on_opened: once, from the loop, never from within this call; not at all after mu_logs_finish(). */
int mu_logs_open(uv_loop_t *loop, const struct mu_logs_config *config, mu_logs_opened *on_opened, void *ctx,
                 struct mu_logs **ret_logs, struct muster_error *reterr);

/* How many descriptors that takes at most: for every stream its file and, if it passes through us, both ends of a
 * pipe. */
size_t mu_logs_files(const struct mu_logs_config *config, uint32_t workers);

/* The attempt's directory; "" with /dev/null, or when it could not be made. Valid until mu_logs_finish(). */
const char *mu_logs_directory(const struct mu_logs *logs);
/* Value of TORCHELASTIC_ERROR_FILE; "" when there is none. Valid until mu_logs_finish(). */
const char *mu_logs_error_file(const struct mu_logs *logs, uint32_t local_rank);
/* Valid until mu_logs_spawned() for this worker. */
struct mu_logs_stdio mu_logs_stdio(const struct mu_logs *logs, uint32_t local_rank);

/* The worker has its descriptors now, or will never be started: ours are closed. Without this a pipe does not end. */
void mu_logs_spawned(struct mu_logs *logs, uint32_t local_rank);
/* The worker is dead: reads what its pipes hold, so that its file, the console and its tail are complete as far as the
 * worker itself wrote them. */
void mu_logs_worker_exited(struct mu_logs *logs, uint32_t local_rank);

/* The last lines of a worker's standard error, from what passed through us; else an empty text. `ret` is emptied first.
 * MUSTER_ENOMEM. */
int mu_logs_tail(const struct mu_logs *logs, uint32_t local_rank, struct mu_buf *ret);
/* The file to which a worker's standard error went without us, for mu_tail_file(). NULL: none. Valid until
 * mu_logs_finish(). */
const char *mu_logs_tail_file(const struct mu_logs *logs, uint32_t local_rank);

struct mu_logs_stats {
    uint64_t bytes;           /* that passed through us */
    uint64_t file_bytes_lost; /* of them, not in their file, or not in a filtered file */
    uint64_t bytes_not_shown; /* of them, in their file but not given to the console yet; in the end: never */
    uint32_t pipes_open;      /* not at their end yet; in the end: held by others, and so not read to the end */
};

struct mu_logs_stats mu_logs_stats(const struct mu_logs *logs);

typedef void mu_logs_finished(void *ctx, const struct mu_logs_stats *stats);

/* All workers are dead, or their output is not wanted any more. Once every pipe is at its end and its output is
 * written, or the time is up, files are closed, `logs` is freed and on_finished is called (from the loop, never from
 * within this call). Lines in the consoles' queues stay there. From here on `logs` belongs to the loop. */
void mu_logs_finish(struct mu_logs *logs, mu_logs_finished *on_finished, void *ctx);

#endif
