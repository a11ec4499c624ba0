/* The output of one attempt: directories, files and pipes, and who of the workers gets which.
 *
 * Opened whole: every file and pipe is there before the first worker is. The ends that workers get are closed as they
 * are spawned; a tee's other end is read until the last writer is gone. The end: mu_logs_finish() waits for the ends of
 * all pipes, and for a console that lags behind as long as it moves; then, or when the time is up, tees and timer are
 * closed, and with the last of them everything is freed. A disk that is full when an attempt is opened costs files, not workers. */
#include "logs/logs_uv.h"

#include "base/log.h"
#include "logs/lines.h"
#include "logs/logfile.h"
#include "logs/tail.h"
#include "logs/tee_uv.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { OUT, ERR, STREAMS };

static const struct {
    const char *name, *file, *filtered;
    unsigned mask;
} kinds[STREAMS] = {
    [OUT] = { "standard output", "stdout.log", "filtered_stdout.log", MU_STD_OUT },
    [ERR] = { "standard error", "stderr.log", "filtered_stderr.log", MU_STD_ERR },
};

struct stream {
    int child_fd;           /* what the worker gets; -1: inherits, or is spawned */
    bool shared;            /* child_fd is logs->null_fd */
    char *path;             /* its file; NULL: none */
    struct mu_logfile file; /* tee'd: what we write */
    struct mu_tee *tee;     /* NULL: does not pass through us */
};

struct worker {
    struct stream streams[STREAMS];
    char *error_file; /* NULL: none */
};

struct mu_logs {
    uv_loop_t *loop;
    uv_timer_t timer;
    char directory[MU_LOGTREE_PATH_MAX];
    int null_fd;
    bool has_redirected; /* some worker writes to a file without us */
    uint32_t drain_ms;
    uint32_t tees_open; /* that are not read to the end and shown */
    struct mu_console *consoles[STREAMS];
    uint64_t sent; /* by both consoles, when last looked at */
    int handles;   /* to be closed before it can be freed */
    bool closing;
    bool full_said;
    struct mu_logs_stats final;
    struct mu_logfile filtered[STREAMS];
    mu_logs_finished *on_finished;
    void *ctx;
    uint32_t workers_count;
    struct worker workers[];
};

static bool is_full(int errnum)
{
    return errnum == ENOSPC || errnum == EDQUOT || errnum == EFBIG; /* EFBIG: ulimit -f */
}

/* ---- Opening */

static int join(const char *dir, const char *name, char path[static MU_LOGTREE_PATH_MAX], struct muster_error *reterr)
{
    int len = snprintf(path, MU_LOGTREE_PATH_MAX, "%s/%s", dir, name);

    if (len < 0 || len >= MU_LOGTREE_PATH_MAX)
        return mu_fail(reterr, MUSTER_ELIMIT, "path '%.100s...' is too long", dir);
    return 0;
}

static int fail_memory(struct muster_error *reterr)
{
    return mu_fail(reterr, MUSTER_ENOMEM, "out of memory");
}

/* A new file at `path`. *ret_fd is -1 when the disk is full, which is said for the first one. */
static int create(struct mu_logs *logs, const char *path, int *ret_fd, struct muster_error *reterr)
{
    int errnum;

    *ret_fd = -1;
    errnum = mu_logfile_create(path, ret_fd);
    if (errnum == 0)
        return 0;
    if (!is_full(errnum))
        return mu_fail_errno(reterr, errnum, "create '%s'", path);
    if (!logs->full_said)
        mu_log(MUSTER_LOG_WARNING, "create '%s': %s; workers go on, but what they say is not kept in files", path,
               strerror(errnum));
    logs->full_said = true;
    return 0;
}

static int open_null(struct mu_logs *logs, struct stream *stream, struct muster_error *reterr)
{
    if (logs->null_fd < 0)
        logs->null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (logs->null_fd < 0)
        return mu_fail_errno(reterr, errno, "open '/dev/null'");
    stream->child_fd = logs->null_fd;
    stream->shared = true;
    return 0;
}

static void on_tee_ended(void *ctx);

static int open_tee(struct mu_logs *logs, const struct mu_logs_config *config, struct stream *stream, int kind,
                    uint32_t local_rank, struct muster_error *reterr)
{
    const struct mu_filters *filters = kind == OUT ? config->filters_out : config->filters_err;
    char prefix[MU_PREFIX_MAX], label[MU_CONSOLE_LABEL_MAX];
    int rc, ends[2];
    struct mu_tee_config tee = {
        .file = stream->file.fd >= 0 ? &stream->file : NULL,
        .console = logs->consoles[kind],
        .label = label,
        .where = stream->file.fd >= 0 ? stream->path : NULL,
        .prefix = prefix,
        .filters = filters,
        .filtered = logs->filtered[kind].fd >= 0 ? &logs->filtered[kind] : NULL,
        .keep_tail = kind == ERR,
        .on_ended = on_tee_ended,
        .ctx = logs,
    };

    mu_prefix_format(config->prefix_template, config->role != NULL ? config->role : "default",
                     config->ranks != NULL ? config->ranks[local_rank] : local_rank, local_rank, prefix);
    (void)snprintf(label, sizeof label, "the %s of local rank %u", kinds[kind].name, (unsigned)local_rank);
    if (pipe2(ends, O_CLOEXEC) < 0)
        return mu_fail_errno(reterr, errno, "make a pipe for %s", label);
    tee.fd = ends[0];
    rc = mu_tee_start(logs->loop, &tee, &stream->tee, reterr);
    if (rc < 0) {
        (void)close(ends[0]);
        (void)close(ends[1]);
        return mu_wrap(reterr, rc, "%s", label);
    }
    stream->child_fd = ends[1];
    logs->handles++;
    logs->tees_open++;
    return 0;
}

/* The stream's file, if it can be made; `fd` is then what to write to. */
static int open_file(struct mu_logs *logs, struct stream *stream, int kind, uint32_t local_rank, int *ret_fd,
                     struct muster_error *reterr)
{
    char path[MU_LOGTREE_PATH_MAX], name[32];
    int rc;

    *ret_fd = -1;
    if (logs->directory[0] == '\0')
        return 0;
    (void)snprintf(name, sizeof name, "%u/%s", (unsigned)local_rank, kinds[kind].file);
    rc = join(logs->directory, name, path, reterr);
    if (rc == 0)
        rc = create(logs, path, ret_fd, reterr);
    if (rc < 0 || *ret_fd < 0)
        return rc;
    stream->path = strdup(path);
    if (stream->path != NULL)
        return 0;
    (void)close(*ret_fd);
    return fail_memory(reterr);
}

static int open_stream(struct mu_logs *logs, const struct mu_logs_config *config, uint32_t local_rank, int kind,
                       struct muster_error *reterr)
{
    struct stream *stream = &logs->workers[local_rank].streams[kind];
    bool shown = config->shown == NULL || mu_ranks_shown_has(config->shown, local_rank);
    bool tee = config->tees != NULL && (mu_redirects_of(config->tees, local_rank) & kinds[kind].mask) != 0;
    bool redirect =
        config->redirects != NULL && (mu_redirects_of(config->redirects, local_rank) & kinds[kind].mask) != 0;
    int rc, fd;

    if (!tee && !redirect)
        return shown ? 0 : open_null(logs, stream, reterr);
    rc = open_file(logs, stream, kind, local_rank, &fd, reterr);
    if (rc < 0)
        return rc;
    if (tee && shown) {
        if (fd >= 0 && mu_logfile_init(&stream->file, fd, stream->path) < 0)
            return fail_memory(reterr);
        return open_tee(logs, config, stream, kind, local_rank, reterr);
    }
    if (fd < 0)
        return open_null(logs, stream, reterr);
    stream->child_fd = fd;
    logs->has_redirected = true;
    return 0;
}

static int open_filtered(struct mu_logs *logs, const struct mu_filters *filters, int kind, struct muster_error *reterr)
{
    char path[MU_LOGTREE_PATH_MAX];
    int rc, fd = -1;

    if (filters == NULL || filters->count == 0 || logs->directory[0] == '\0')
        return 0;
    rc = join(logs->directory, kinds[kind].filtered, path, reterr);
    if (rc == 0)
        rc = create(logs, path, &fd, reterr);
    if (rc < 0 || fd < 0)
        return rc;
    return mu_logfile_init(&logs->filtered[kind], fd, path) < 0 ? fail_memory(reterr) : 0;
}

static int name_error_file(struct mu_logs *logs, uint32_t local_rank, struct muster_error *reterr)
{
    char path[MU_LOGTREE_PATH_MAX], name[32];
    int rc;

    (void)snprintf(name, sizeof name, "%u/error.json", (unsigned)local_rank);
    rc = join(logs->directory, name, path, reterr);
    if (rc < 0)
        return rc;
    logs->workers[local_rank].error_file = strdup(path);
    return logs->workers[local_rank].error_file == NULL ? fail_memory(reterr) : 0;
}

static int open_directory(struct mu_logs *logs, const struct mu_logs_config *config, struct muster_error *reterr)
{
    struct muster_error err;
    int errnum, rc;

    rc = mu_logtree_attempt(config->tree, config->restart_count, config->round, config->workers, logs->directory,
                            &errnum, &err);
    if (rc == 0)
        return 0;
    logs->directory[0] = '\0';
    if (is_full(errnum)) {
        mu_log(MUSTER_LOG_WARNING, "%s; workers go on without log files and error files", err.text);
        return 0;
    }
    if (reterr != NULL)
        *reterr = err;
    return rc;
}

static int open_all(struct mu_logs *logs, const struct mu_logs_config *config, struct muster_error *reterr)
{
    int rc;

    if (mu_logtree_is_null(config->tree))
        return 0;
    rc = open_directory(logs, config, reterr);
    if (rc == 0)
        rc = open_filtered(logs, config->filters_out, OUT, reterr);
    if (rc == 0)
        rc = open_filtered(logs, config->filters_err, ERR, reterr);
    for (uint32_t i = 0; i < config->workers && rc == 0; i++) {
        if (logs->directory[0] != '\0')
            rc = name_error_file(logs, i, reterr);
        for (int kind = 0; kind < STREAMS && rc == 0; kind++)
            rc = open_stream(logs, config, i, kind, reterr);
    }
    return rc;
}

static void close_down(struct mu_logs *logs);

int mu_logs_open(uv_loop_t *loop, const struct mu_logs_config *config, struct mu_logs **ret_logs,
                 struct muster_error *reterr)
{
    struct mu_logs *logs;
    int rc;

    assert(config->workers <= MU_LOGS_WORKERS_MAX);
    logs = calloc(1, sizeof *logs + config->workers * sizeof logs->workers[0]);
    if (logs == NULL)
        return fail_memory(reterr);
    logs->loop = loop;
    logs->null_fd = -1;
    logs->consoles[OUT] = config->out;
    logs->consoles[ERR] = config->err;
    logs->drain_ms = config->drain_ms > 0 ? config->drain_ms : MU_LOGS_DRAIN_MS;
    logs->workers_count = config->workers;
    for (int kind = 0; kind < STREAMS; kind++) {
        logs->filtered[kind].fd = -1;
        for (uint32_t i = 0; i < config->workers; i++) {
            logs->workers[i].streams[kind].child_fd = -1;
            logs->workers[i].streams[kind].file.fd = -1;
        }
    }
    (void)uv_timer_init(loop, &logs->timer);
    logs->timer.data = logs;
    logs->handles = 1;
    rc = open_all(logs, config, reterr);
    if (rc < 0) {
        close_down(logs);
        return mu_wrap(reterr, rc, "output of the workers");
    }
    *ret_logs = logs;
    return 0;
}

size_t mu_logs_files(const struct mu_logs_config *config, uint32_t workers)
{
    size_t count = 1 + STREAMS; /* /dev/null and the filtered files */

    for (uint32_t i = 0; i < workers; i++) {
        for (int kind = 0; kind < STREAMS; kind++) {
            if (config->tees != NULL && (mu_redirects_of(config->tees, i) & kinds[kind].mask) != 0)
                count += 3;
            else if (config->redirects != NULL && (mu_redirects_of(config->redirects, i) & kinds[kind].mask) != 0)
                count += 1;
        }
    }
    return count;
}

/* ---- In between */

const char *mu_logs_directory(const struct mu_logs *logs)
{
    return logs->directory;
}

const char *mu_logs_error_file(const struct mu_logs *logs, uint32_t local_rank)
{
    assert(local_rank < logs->workers_count);
    return logs->workers[local_rank].error_file != NULL ? logs->workers[local_rank].error_file : "";
}

struct mu_logs_stdio mu_logs_stdio(const struct mu_logs *logs, uint32_t local_rank)
{
    assert(local_rank < logs->workers_count);
    return (struct mu_logs_stdio){
        .in = -1,
        .out = logs->workers[local_rank].streams[OUT].child_fd,
        .err = logs->workers[local_rank].streams[ERR].child_fd,
    };
}

void mu_logs_spawned(struct mu_logs *logs, uint32_t local_rank)
{
    assert(local_rank < logs->workers_count);
    for (int kind = 0; kind < STREAMS; kind++) {
        struct stream *stream = &logs->workers[local_rank].streams[kind];

        if (stream->child_fd >= 0 && !stream->shared)
            (void)close(stream->child_fd);
        stream->child_fd = -1;
    }
}

void mu_logs_worker_exited(struct mu_logs *logs, uint32_t local_rank)
{
    assert(local_rank < logs->workers_count && !logs->closing);
    for (int kind = 0; kind < STREAMS; kind++)
        if (logs->workers[local_rank].streams[kind].tee != NULL)
            mu_tee_drain(logs->workers[local_rank].streams[kind].tee);
}

int mu_logs_tail(const struct mu_logs *logs, uint32_t local_rank, struct mu_buf *ret)
{
    const struct stream *stream;

    assert(local_rank < logs->workers_count && !logs->closing);
    stream = &logs->workers[local_rank].streams[ERR];
    if (stream->tee != NULL)
        return mu_tee_tail(stream->tee, ret);
    if (stream->path != NULL)
        return mu_tail_file(stream->path, ret);
    return mu_buf_assign(ret, mu_slice(NULL, 0));
}

struct mu_logs_stats mu_logs_stats(const struct mu_logs *logs)
{
    struct mu_logs_stats stats = { 0 };

    for (int kind = 0; kind < STREAMS; kind++) {
        stats.file_bytes_lost += logs->filtered[kind].lost;
        for (uint32_t i = 0; i < logs->workers_count; i++) {
            const struct stream *stream = &logs->workers[i].streams[kind];

            stats.file_bytes_lost += stream->file.lost;
            if (stream->tee == NULL)
                continue;
            stats.bytes += mu_tee_bytes(stream->tee);
            stats.bytes_not_shown += mu_tee_lag(stream->tee);
            stats.pipes_open += mu_tee_has_ended(stream->tee) ? 0 : 1;
        }
    }
    return stats;
}

/* ---- The end */

static void free_logs(struct mu_logs *logs)
{
    for (uint32_t i = 0; i < logs->workers_count; i++) {
        for (int kind = 0; kind < STREAMS; kind++) {
            mu_logfile_done(&logs->workers[i].streams[kind].file);
            free(logs->workers[i].streams[kind].path);
        }
        free(logs->workers[i].error_file);
    }
    for (int kind = 0; kind < STREAMS; kind++)
        mu_logfile_done(&logs->filtered[kind]);
    if (logs->null_fd >= 0)
        (void)close(logs->null_fd);
    free(logs);
}

static void on_handle_closed(struct mu_logs *logs)
{
    struct mu_logs_stats final = logs->final;
    mu_logs_finished *on_finished = logs->on_finished;
    void *ctx = logs->ctx;

    if (--logs->handles > 0)
        return;
    free_logs(logs);
    if (on_finished != NULL)
        on_finished(ctx, &final);
}

static void on_timer_closed(uv_handle_t *handle)
{
    on_handle_closed(handle->data);
}

static void on_tee_closed(void *ctx)
{
    on_handle_closed(ctx);
}

static void close_down(struct mu_logs *logs)
{
    struct mu_logs_stats stats;

    assert(!logs->closing);
    logs->closing = true;
    for (uint32_t i = 0; i < logs->workers_count; i++) {
        mu_logs_spawned(logs, i);
        for (int kind = 0; kind < STREAMS; kind++)
            if (logs->workers[i].streams[kind].tee != NULL)
                mu_tee_close(logs->workers[i].streams[kind].tee, on_tee_closed);
    }
    stats = mu_logs_stats(logs);
    stats.pipes_open += logs->final.pipes_open;
    logs->final = stats;
    uv_close((uv_handle_t *)&logs->timer, on_timer_closed);
}

static void on_tee_ended(void *ctx)
{
    struct mu_logs *logs = ctx;

    logs->tees_open--;
    if (logs->tees_open == 0 && logs->on_finished != NULL && !logs->closing)
        close_down(logs);
}

/* Processes that a worker has left behind may hold a pipe for ever. What they have said so far is still taken. */
static void end_pipes(struct mu_logs *logs)
{
    for (uint32_t i = 0; i < logs->workers_count; i++)
        for (int kind = 0; kind < STREAMS; kind++) {
            struct mu_tee *tee = logs->workers[i].streams[kind].tee;

            if (tee != NULL && !mu_tee_has_ended(tee))
                mu_tee_drain(tee);
            if (tee == NULL || mu_tee_has_ended(tee))
                continue;
            mu_log(MUSTER_LOG_WARNING, "a process that outlives local rank %u holds its %s; it is not read any more",
                   (unsigned)i, kinds[kind].name);
            logs->final.pipes_open++;
            mu_tee_end(tee);
        }
}

static uint64_t sent_so_far(const struct mu_logs *logs)
{
    return mu_console_stats(logs->consoles[OUT]).sent + mu_console_stats(logs->consoles[ERR]).sent;
}

static void on_time_up(uv_timer_t *timer)
{
    struct mu_logs *logs = timer->data;
    uint64_t sent = sent_so_far(logs);

    end_pipes(logs);
    if (logs->closing) /* that was all there was to wait for */
        return;
    if (sent == logs->sent) { /* nor is the console going to take the rest */
        close_down(logs);
        return;
    }
    logs->sent = sent;
    (void)uv_timer_start(&logs->timer, on_time_up, logs->drain_ms, 0);
}

/* Workers that write to a file without us are told of a full disk themselves; we only see that it is full. */
static void say_if_full(const struct mu_logs *logs)
{
    struct statvfs st;

    if (logs->has_redirected && statvfs(logs->directory, &st) == 0 && st.f_blocks > 0 && st.f_bavail == 0)
        mu_log(MUSTER_LOG_WARNING, "the disk under '%s' is full: output that workers redirected there may be cut off",
               logs->directory);
}

void mu_logs_finish(struct mu_logs *logs, mu_logs_finished *on_finished, void *ctx)
{
    assert(on_finished != NULL && logs->on_finished == NULL);
    for (uint32_t i = 0; i < logs->workers_count; i++)
        mu_logs_spawned(logs, i);
    say_if_full(logs);
    logs->on_finished = on_finished;
    logs->ctx = ctx;
    if (logs->tees_open == 0) {
        close_down(logs);
        return;
    }
    logs->sent = sent_so_far(logs);
    (void)uv_timer_start(&logs->timer, on_time_up, logs->drain_ms, 0);
}
