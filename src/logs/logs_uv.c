/* The output of one attempt: directories, files and pipes, and which worker gets which.
 *
 * Opened whole: every file and pipe is there before the first worker is. A job on the thread that writes files makes
 * the directories and files; then pipes are made, here. The ends that workers get are closed as they are spawned; a
 * tee's other end is read until the last writer is gone. The end: mu_logs_finish() waits for the ends of all pipes, and
 * for console and files as long as they move. Then, or when the time is up, tees and timer are closed, and the last of
 * them frees everything. If the disk is full or silent when an attempt is opened, workers run without files. */
#include "logs/logs_uv.h"

#include "base/log.h"
#include "logs/lines.h"
#include "logs/logfile.h"
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
    struct mu_logs *logs;
    int child_fd;                /* what the worker gets; -1: inherits, or is spawned */
    bool shared;                 /* child_fd is logs->null_fd */
    struct mu_file_job *closing; /* child_fd is a file: closes it; NULL: it is a pipe */
    char *path;                  /* its file; NULL: none */
    struct mu_logfile file;      /* tee'd: what we write */
    struct mu_tee *tee;          /* NULL: does not pass through us */
};

/* What the thread makes when an attempt is opened. */
struct wanted {
    int kind;
    bool filtered;
    bool ours;           /* we write it, and keep it open; else the worker does */
    uint32_t local_rank; /* unless it is a filtered file */
    int fd, errnum;      /* what came of it; -1 and 0: it was not tried */
};

struct opening {
    struct mu_file_job job;
    struct mu_logs *logs;
    struct mu_logtree tree; /* a copy: the thread may hang in it */
    uint64_t restart_count, round;
    uint32_t workers;
    char directory[MU_LOGTREE_PATH_MAX];
    int rc; /* of the directory */
    struct muster_error error;
    size_t count;
    struct wanted items[];
};

struct worker {
    struct stream streams[STREAMS];
    uint32_t rank;
    char *error_file; /* NULL: none */
};

struct mu_logs {
    uv_loop_t *loop;
    uv_timer_t timer;
    struct mu_logs_config config; /* for opening */
    struct mu_disk *disk;
    struct mu_disk_watcher watcher;
    struct opening *opening; /* NULL: opened */
    mu_logs_opened *on_opened;
    char directory[MU_LOGTREE_PATH_MAX];
    int null_fd;
    bool has_redirected; /* some worker writes to a file without us */
    uint32_t drain_ms;
    uint32_t tees_open; /* that are not read to the end and shown */
    struct mu_console *consoles[STREAMS];
    uint64_t sent;  /* by both consoles, when last looked at */
    uint64_t beats; /* of files, then */
    unsigned quiet; /* looks since files have moved */
    int handles;    /* to be closed before it can be freed */
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

static int join(const char *dir, const char *name, char path[static MU_LOGTREE_PATH_MAX])
{
    int len = snprintf(path, MU_LOGTREE_PATH_MAX, "%s/%s", dir, name);

    return len < 0 || len >= MU_LOGTREE_PATH_MAX ? ENAMETOOLONG : 0;
}

/* 0 or an errno value. */
static int path_of(const char *dir, const struct wanted *item, char path[static MU_LOGTREE_PATH_MAX])
{
    char name[32];

    if (item->filtered)
        return join(dir, kinds[item->kind].filtered, path);
    (void)snprintf(name, sizeof name, "%u/%s", (unsigned)item->local_rank, kinds[item->kind].file);
    return join(dir, name, path);
}

static int fail_memory(struct muster_error *reterr)
{
    return mu_fail(reterr, MUSTER_ENOMEM, "out of memory");
}

/* On the thread. */
static void run_open(struct mu_file_job *job)
{
    struct opening *o = MU_LIST_ITEM(job, struct opening, job);
    char path[MU_LOGTREE_PATH_MAX];

    o->rc = mu_logtree_attempt(&o->tree, o->restart_count, o->round, o->workers, o->directory, &o->error);
    for (size_t i = 0; i < o->count && o->rc == 0; i++) {
        struct wanted *item = &o->items[i];

        item->errnum = path_of(o->directory, item, path);
        if (item->errnum == 0)
            item->errnum = mu_logfile_create(path, &item->fd);
        if (item->errnum != 0 && !is_full(item->errnum))
            return;
        if (item->errnum == 0 && item->ours)
            item->fd = mu_logfile_move_up(item->fd);
        mu_filethread_beat(job);
    }
}

static void close_rest(struct mu_file_job *job)
{
    struct opening *o = MU_LIST_ITEM(job, struct opening, job);

    for (size_t i = 0; i < o->count; i++) {
        if (o->items[i].fd >= 0)
            (void)close(o->items[i].fd);
        o->items[i].fd = -1;
    }
}

static void free_opening(struct mu_file_job *job)
{
    free(MU_LIST_ITEM(job, struct opening, job));
}

static void drop_open(struct mu_file_job *job)
{
    close_rest(job);
    free_opening(job);
}

/* The descriptor of a file that was made; -1 when the disk is full, which is said for the first one. It is the
 * caller's. */
static int take_file(struct mu_logs *logs, struct wanted *item, char path[static MU_LOGTREE_PATH_MAX], int *ret_fd,
                     struct muster_error *reterr)
{
    *ret_fd = -1;
    if (logs->directory[0] == '\0')
        return 0;
    (void)path_of(logs->directory, item, path);
    *ret_fd = item->fd;
    item->fd = -1;
    if (item->errnum == 0)
        return 0;
    if (!is_full(item->errnum))
        return mu_fail_errno(reterr, item->errnum, "create '%s'", path);
    if (!logs->full_said)
        mu_log(MUSTER_LOG_WARNING, "create '%s': %s; workers go on, but their output is not kept in files", path,
               strerror(item->errnum));
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

static const struct mu_filters *filters_of(const struct mu_logs_config *config, int kind)
{
    return kind == OUT ? config->filters_out : config->filters_err;
}

static int open_tee(struct mu_logs *logs, uint32_t local_rank, int kind, struct muster_error *reterr)
{
    struct stream *stream = &logs->workers[local_rank].streams[kind];
    const struct mu_logs_config *config = &logs->config;
    char prefix[MU_PREFIX_MAX], label[MU_CONSOLE_LABEL_MAX];
    int rc, ends[2];
    struct mu_tee_config tee = {
        .file = stream->file.fd >= 0 ? &stream->file : NULL,
        .console = logs->consoles[kind],
        .label = label,
        .where = stream->file.fd >= 0 ? stream->path : NULL,
        .prefix = prefix,
        .filters = filters_of(config, kind),
        .filtered = logs->filtered[kind].fd >= 0 ? &logs->filtered[kind] : NULL,
        .keep_tail = kind == ERR,
        .on_ended = on_tee_ended,
        .ctx = logs,
    };
    const struct mu_prefix_words words = { .role = config->role != NULL ? config->role : MUSTER_DEFAULT_ROLE,
                                           .host = config->host != NULL ? config->host : "localhost",
                                           .rank = logs->workers[local_rank].rank,
                                           .local_rank = local_rank };

    mu_prefix_format(config->prefix_template, &words, prefix);
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

static bool is_shown(const struct mu_logs_config *config, uint32_t local_rank)
{
    return config->shown == NULL || mu_ranks_shown_has(config->shown, local_rank);
}

static bool is_teed(const struct mu_logs_config *config, uint32_t local_rank, int kind)
{
    return config->tees != NULL && (mu_redirects_of(config->tees, local_rank) & kinds[kind].mask) != 0;
}

static bool is_redirected(const struct mu_logs_config *config, uint32_t local_rank, int kind)
{
    return config->redirects != NULL && (mu_redirects_of(config->redirects, local_rank) & kinds[kind].mask) != 0;
}

static bool is_filtered(const struct mu_logs_config *config, int kind)
{
    const struct mu_filters *filters = filters_of(config, kind);

    return filters != NULL && filters->count > 0;
}

static bool is_ours(const struct mu_logs_config *config, uint32_t local_rank, int kind)
{
    return is_teed(config, local_rank, kind) && is_shown(config, local_rank);
}

static void on_file_moved(void *ctx);
static void on_filtered_moved(void *ctx);

/* A stream without a file and without a place in one. */
static int open_without_file(struct mu_logs *logs, uint32_t local_rank, int kind, struct muster_error *reterr)
{
    struct stream *stream = &logs->workers[local_rank].streams[kind];

    if (!is_shown(&logs->config, local_rank))
        return open_null(logs, stream, reterr);
    if (is_teed(&logs->config, local_rank, kind))
        return open_tee(logs, local_rank, kind, reterr);
    return is_redirected(&logs->config, local_rank, kind) ? open_null(logs, stream, reterr) : 0;
}

/* Takes the descriptor on success. */
static int open_with_file(struct mu_logs *logs, uint32_t local_rank, int kind, int fd, const char *path,
                          struct muster_error *reterr)
{
    struct stream *stream = &logs->workers[local_rank].streams[kind];

    stream->path = strdup(path);
    if (stream->path == NULL)
        return fail_memory(reterr);
    if (is_ours(&logs->config, local_rank, kind)) {
        if (mu_logfile_init(&stream->file, logs->disk, fd, path) < 0)
            return fail_memory(reterr);
        stream->file.on_moved = on_file_moved;
        stream->file.ctx = stream;
        return 0;
    }
    stream->closing = mu_file_closing_new(fd);
    if (stream->closing == NULL)
        return fail_memory(reterr);
    stream->child_fd = fd;
    logs->has_redirected = true;
    return 0;
}

static int open_filtered(struct mu_logs *logs, int kind, int fd, const char *path, struct muster_error *reterr)
{
    if (mu_logfile_init(&logs->filtered[kind], logs->disk, fd, path) < 0)
        return fail_memory(reterr);
    logs->filtered[kind].on_moved = on_filtered_moved;
    logs->filtered[kind].ctx = logs;
    return 0;
}

/* Puts a file that was made to its use. */
static int use_file(struct mu_logs *logs, struct wanted *item, struct muster_error *reterr)
{
    char path[MU_LOGTREE_PATH_MAX];
    int fd, rc = take_file(logs, item, path, &fd, reterr);

    if (rc < 0 || fd < 0)
        return rc;
    if (item->filtered)
        rc = open_filtered(logs, item->kind, fd, path, reterr);
    else
        rc = open_with_file(logs, item->local_rank, item->kind, fd, path, reterr);
    if (rc < 0)
        item->fd = fd; /* and is closed with the rest */
    return rc;
}

static int name_error_file(struct mu_logs *logs, uint32_t local_rank, struct muster_error *reterr)
{
    char path[MU_LOGTREE_PATH_MAX], name[32];

    (void)snprintf(name, sizeof name, "%u/error.json", (unsigned)local_rank);
    if (join(logs->directory, name, path) != 0)
        return mu_fail(reterr, MUSTER_ELIMIT, "path '%.100s...' is too long", logs->directory);
    logs->workers[local_rank].error_file = strdup(path);
    return logs->workers[local_rank].error_file == NULL ? fail_memory(reterr) : 0;
}

static int use_directory(struct mu_logs *logs, const struct opening *o, struct muster_error *reterr)
{
    *logs->config.tree = o->tree;
    if (o->rc == 0) {
        memcpy(logs->directory, o->directory, sizeof logs->directory);
        return 0;
    }
    if (is_full(o->error.errnum)) {
        mu_log(MUSTER_LOG_WARNING, "%s; workers go on without log files and error files", o->error.text);
        return 0;
    }
    *reterr = o->error;
    return o->rc;
}

static int open_all(struct mu_logs *logs, struct opening *o, struct muster_error *reterr)
{
    int rc = o != NULL ? use_directory(logs, o, reterr) : 0;

    for (size_t i = 0; o != NULL && i < o->count && rc == 0; i++)
        rc = use_file(logs, &o->items[i], reterr);
    for (uint32_t i = 0; i < logs->workers_count && rc == 0; i++) {
        if (logs->directory[0] != '\0')
            rc = name_error_file(logs, i, reterr);
        for (int kind = 0; kind < STREAMS && rc == 0; kind++) {
            struct stream *stream = &logs->workers[i].streams[kind];

            if (stream->path == NULL)
                rc = open_without_file(logs, i, kind, reterr);
            else if (stream->closing == NULL)
                rc = open_tee(logs, i, kind, reterr);
        }
    }
    return rc;
}

static void close_down(struct mu_logs *logs);

/* With what the thread has made, or without (NULL). */
static void opened(struct mu_logs *logs, struct opening *o)
{
    struct muster_error error = { 0 };
    mu_logs_opened *on_opened = logs->on_opened;
    void *ctx = logs->ctx;
    int rc = mu_logtree_is_null(logs->config.tree) ? 0 : open_all(logs, o, &error);

    logs->opening = NULL;
    if (rc < 0) {
        close_down(logs);
        (void)mu_wrap(&error, rc, "output of the workers");
    }
    on_opened(ctx, rc < 0 ? &error : NULL);
}

static void on_opening_done(struct mu_file_job *job)
{
    struct opening *o = MU_LIST_ITEM(job, struct opening, job);
    struct mu_disk *disk = o->logs->disk;
    bool left = false;

    opened(o->logs, o);
    for (size_t i = 0; i < o->count; i++)
        left |= o->items[i].fd >= 0;
    o->job = (struct mu_file_job){ .run = close_rest, .done = free_opening, .drop = drop_open };
    if (left)
        mu_disk_submit(disk, &o->job);
    else
        free_opening(&o->job);
}

/* NULL: no memory. */
static struct opening *plan(struct mu_logs *logs)
{
    const struct mu_logs_config *config = &logs->config;
    struct opening *o = calloc(1, sizeof *o + (STREAMS * ((size_t)config->workers + 1)) * sizeof o->items[0]);

    if (o == NULL)
        return NULL;
    o->job = (struct mu_file_job){ .run = run_open, .done = on_opening_done, .drop = drop_open };
    o->logs = logs;
    o->tree = *config->tree;
    o->restart_count = config->restart_count;
    o->round = config->round;
    o->workers = config->workers;
    for (int kind = 0; kind < STREAMS; kind++)
        if (is_filtered(config, kind))
            o->items[o->count++] = (struct wanted){ .kind = kind, .filtered = true, .ours = true, .fd = -1 };
    for (uint32_t i = 0; i < config->workers; i++)
        for (int kind = 0; kind < STREAMS; kind++)
            if (is_teed(config, i, kind) || is_redirected(config, i, kind))
                o->items[o->count++] =
                    (struct wanted){ .kind = kind, .local_rank = i, .ours = is_ours(config, i, kind), .fd = -1 };
    return o;
}

/* Nothing is to be made, or nothing can be. */
static void on_open_at_once(uv_timer_t *timer)
{
    opened(timer->data, NULL);
}

static void go_without_files(struct mu_logs *logs)
{
    mu_log(MUSTER_LOG_WARNING,
           "log directory '%s' does not answer; workers go on without log files and error files until the next restart",
           logs->config.tree->base);
    opened(logs, NULL);
}

/* It was silent before: this attempt does not wait as long as the one that found out. */
static void on_still_silent(uv_timer_t *timer)
{
    struct mu_logs *logs = timer->data;

    if (logs->opening == NULL || !mu_disk_is_silent(logs->disk))
        return;
    mu_filethread_cancel(&logs->opening->job);
    go_without_files(logs);
}

static void on_silent(struct mu_disk_watcher *watcher);

static bool keeps_files(const struct opening *o)
{
    bool any = false;

    for (size_t i = 0; i < o->count; i++)
        any |= o->items[i].ours;
    return any;
}

static int start_opening(struct mu_logs *logs, struct muster_error *reterr)
{
    if (mu_logtree_is_null(logs->config.tree)) {
        (void)uv_timer_start(&logs->timer, on_open_at_once, 0, 0);
        return 0;
    }
    logs->opening = plan(logs);
    if (logs->opening == NULL)
        return fail_memory(reterr);
    if (keeps_files(logs->opening))
        mu_logfile_make_room(uv_backend_fd(logs->loop)); /* before there is a thread */
    mu_disk_submit(logs->disk, &logs->opening->job);
    if (mu_disk_is_silent(logs->disk))
        (void)uv_timer_start(&logs->timer, on_still_silent, 0, 0);
    return 0;
}

int mu_logs_open(uv_loop_t *loop, const struct mu_logs_config *config, mu_logs_opened *on_opened, void *ctx,
                 struct mu_logs **ret_logs, struct muster_error *reterr)
{
    struct mu_logs *logs;
    int rc;

    assert(config->workers <= MU_LOGS_WORKERS_MAX);
    logs = calloc(1, sizeof *logs + config->workers * sizeof logs->workers[0]);
    if (logs == NULL)
        return fail_memory(reterr);
    logs->loop = loop;
    logs->config = *config;
    logs->disk = config->disk;
    logs->on_opened = on_opened;
    logs->ctx = ctx;
    logs->null_fd = -1;
    logs->consoles[OUT] = config->out;
    logs->consoles[ERR] = config->err;
    logs->drain_ms = config->drain_ms > 0 ? config->drain_ms : MU_LOGS_DRAIN_MS;
    logs->workers_count = config->workers;
    for (int kind = 0; kind < STREAMS; kind++) {
        logs->filtered[kind].fd = -1;
        for (uint32_t i = 0; i < config->workers; i++) {
            logs->workers[i].rank = config->ranks != NULL ? config->ranks[i] : i;
            logs->workers[i].streams[kind].logs = logs;
            logs->workers[i].streams[kind].child_fd = -1;
            logs->workers[i].streams[kind].file.fd = -1;
        }
    }
    (void)uv_timer_init(loop, &logs->timer);
    logs->timer.data = logs;
    logs->handles = 1;
    logs->watcher.on_silent = on_silent;
    mu_disk_watch(logs->disk, &logs->watcher);
    rc = start_opening(logs, reterr);
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
            if (is_teed(config, i, kind))
                count += 3;
            else if (is_redirected(config, i, kind))
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

        if (stream->closing != NULL)
            mu_disk_submit(logs->disk, stream->closing);
        else if (stream->child_fd >= 0 && !stream->shared)
            (void)close(stream->child_fd);
        stream->closing = NULL;
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
    return stream->tee != NULL ? mu_tee_tail(stream->tee, ret) : mu_buf_assign(ret, mu_slice(NULL, 0));
}

const char *mu_logs_tail_file(const struct mu_logs *logs, uint32_t local_rank)
{
    const struct stream *stream;

    assert(local_rank < logs->workers_count && !logs->closing);
    stream = &logs->workers[local_rank].streams[ERR];
    return stream->tee != NULL ? NULL : stream->path;
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

static uint64_t bytes_waiting(const struct mu_logs *logs)
{
    uint64_t bytes = 0;

    for (int kind = 0; kind < STREAMS; kind++) {
        bytes += mu_logfile_waiting(&logs->filtered[kind]);
        for (uint32_t i = 0; i < logs->workers_count; i++)
            bytes += mu_logfile_waiting(&logs->workers[i].streams[kind].file);
    }
    return bytes;
}

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
    mu_disk_unwatch(&logs->watcher);
    for (uint32_t i = 0; i < logs->workers_count; i++) {
        mu_logs_spawned(logs, i);
        for (int kind = 0; kind < STREAMS; kind++)
            if (logs->workers[i].streams[kind].tee != NULL)
                mu_tee_close(logs->workers[i].streams[kind].tee, on_tee_closed);
    }
    stats = mu_logs_stats(logs);
    stats.file_bytes_lost += bytes_waiting(logs);
    stats.pipes_open += logs->final.pipes_open;
    logs->final = stats;
    uv_close((uv_handle_t *)&logs->timer, on_timer_closed);
}

static bool is_through(const struct mu_logs *logs)
{
    return logs->tees_open == 0 && (mu_disk_is_silent(logs->disk) || bytes_waiting(logs) == 0);
}

static void maybe_close_down(struct mu_logs *logs)
{
    if (logs->on_finished != NULL && !logs->closing && is_through(logs))
        close_down(logs);
}

static void on_tee_ended(void *ctx)
{
    struct mu_logs *logs = ctx;

    logs->tees_open--;
    maybe_close_down(logs);
}

static void on_file_moved(void *ctx)
{
    struct stream *stream = ctx;

    if (stream->logs->closing)
        return;
    if (stream->tee != NULL)
        mu_tee_go_on(stream->tee);
    maybe_close_down(stream->logs);
}

static void go_on(struct mu_logs *logs)
{
    for (uint32_t i = 0; i < logs->workers_count; i++)
        for (int kind = 0; kind < STREAMS && !logs->closing; kind++)
            if (logs->workers[i].streams[kind].tee != NULL)
                mu_tee_go_on(logs->workers[i].streams[kind].tee);
    maybe_close_down(logs);
}

static void on_filtered_moved(void *ctx)
{
    struct mu_logs *logs = ctx;

    if (!logs->closing)
        go_on(logs);
}

static void on_silent(struct mu_disk_watcher *watcher)
{
    struct mu_logs *logs = MU_LIST_ITEM(watcher, struct mu_logs, watcher);

    if (logs->opening != NULL) {
        mu_filethread_cancel(&logs->opening->job);
        go_without_files(logs);
        return;
    }
    if (bytes_waiting(logs) > 0)
        mu_log(MUSTER_LOG_WARNING,
               "log directory '%s' does not answer; workers go on, and output that does not fit is lost there",
               logs->directory);
    go_on(logs);
}

/* Processes that a worker has left behind may hold a pipe for ever. Only what they have written so far is read. */
static void end_pipes(struct mu_logs *logs)
{
    for (uint32_t i = 0; i < logs->workers_count; i++)
        for (int kind = 0; kind < STREAMS; kind++) {
            struct mu_tee *tee = logs->workers[i].streams[kind].tee;

            if (tee != NULL && !mu_tee_has_ended(tee))
                mu_tee_drain(tee);
            if (tee == NULL || mu_tee_has_ended(tee))
                continue;
            mu_log(MUSTER_LOG_WARNING,
                   "a process that local rank %u left behind holds its %s open; muster stops reading it", (unsigned)i,
                   kinds[kind].name);
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
    uint64_t sent = sent_so_far(logs), beats = mu_disk_beats(logs->disk);

    end_pipes(logs);
    if (logs->closing) /* that was all there was to wait for */
        return;
    logs->quiet = beats == logs->beats && bytes_waiting(logs) > 0 ? logs->quiet + 1 : 0;
    /* Nor is the console going to take the rest, or the file system. */
    if (logs->quiet >= MU_LOGS_QUIET_MAX || (sent == logs->sent && bytes_waiting(logs) == 0)) {
        close_down(logs);
        return;
    }
    logs->sent = sent;
    logs->beats = beats;
    (void)uv_timer_start(&logs->timer, on_time_up, logs->drain_ms, 0);
}

/* Workers that write to a file without us are told of a full disk themselves; we only see that it is full. */
struct fullness {
    struct mu_file_job job;
    bool full;
    char directory[];
};

static void run_fullness(struct mu_file_job *job)
{
    struct fullness *f = MU_LIST_ITEM(job, struct fullness, job);
    struct statvfs st;

    f->full = statvfs(f->directory, &st) == 0 && st.f_blocks > 0 && st.f_bavail == 0;
}

static void drop_fullness(struct mu_file_job *job)
{
    free(MU_LIST_ITEM(job, struct fullness, job));
}

static void on_fullness(struct mu_file_job *job)
{
    const struct fullness *f = MU_LIST_ITEM(job, struct fullness, job);

    if (f->full)
        mu_log(MUSTER_LOG_WARNING, "the disk under '%s' is full: output that workers redirected there may be cut off",
               f->directory);
    drop_fullness(job);
}

static void say_if_full(const struct mu_logs *logs)
{
    size_t len = strlen(logs->directory);
    struct fullness *f = logs->has_redirected ? calloc(1, sizeof *f + len + 1) : NULL;

    if (f == NULL)
        return;
    f->job = (struct mu_file_job){ .run = run_fullness, .done = on_fullness, .drop = drop_fullness };
    memcpy(f->directory, logs->directory, len);
    mu_disk_submit(logs->disk, &f->job);
}

void mu_logs_finish(struct mu_logs *logs, mu_logs_finished *on_finished, void *ctx)
{
    assert(on_finished != NULL && logs->on_finished == NULL);
    logs->on_finished = on_finished;
    logs->ctx = ctx;
    if (logs->opening != NULL) {
        mu_filethread_cancel(&logs->opening->job);
        logs->opening = NULL;
        close_down(logs);
        return;
    }
    (void)uv_timer_stop(&logs->timer);
    for (uint32_t i = 0; i < logs->workers_count; i++)
        mu_logs_spawned(logs, i);
    say_if_full(logs);
    if (is_through(logs)) {
        close_down(logs);
        return;
    }
    logs->sent = sent_so_far(logs);
    logs->beats = mu_disk_beats(logs->disk);
    (void)uv_timer_start(&logs->timer, on_time_up, logs->drain_ms, 0);
}
