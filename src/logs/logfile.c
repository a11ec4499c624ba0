/* A log file that we write on behalf of a worker. */
#include "logs/logfile.h"

#include "base/log.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#define HIGH_FD 8192         /* or half of what we may have open */
#define KEPT_BYTES 65536     /* of a buffer that is empty */
#define STEP_BYTES (1 << 16) /* written at once, so that a slow disk is seen to move */

struct mu_logfile_write {
    struct mu_file_job job;
    struct mu_logfile *file;
    int fd;
    struct mu_buf bytes;
    size_t done; /* of them */
    int errnum;
};

struct mu_logfile_read {
    struct mu_file_job job;
    struct mu_logfile *file;
    int fd;
    off_t at;
    ssize_t got;
    mu_logfile_on_read *on_read;
    void *ctx;
    char bytes[MU_LOGFILE_READ_BYTES];
};

int mu_logfile_create(const char *path, int *ret_fd)
{
    /* Appends, so that there is no hole if a worker reopens and truncates it (as a shell's `> /dev/stderr` does). */
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOCTTY, 0666);

    if (fd < 0)
        return errno;
    *ret_fd = fd;
    return 0;
}

static int dup_high(int fd)
{
    struct rlimit limit;
    int floor = HIGH_FD;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur / 2 < HIGH_FD)
        floor = (int)(limit.rlim_cur / 2);
    return fcntl(fd, F_DUPFD_CLOEXEC, floor);
}

int mu_logfile_move_up(int fd)
{
    int moved = dup_high(fd);

    if (moved < 0)
        return fd;
    (void)close(fd);
    return moved;
}

void mu_logfile_make_room(int fd)
{
    int high = dup_high(fd);

    if (high >= 0)
        (void)close(high);
}

/* ---- On the thread */

static void run_write(struct mu_file_job *job)
{
    struct mu_logfile_write *w = MU_LIST_ITEM(job, struct mu_logfile_write, job);

    while (w->done < w->bytes.len) {
        size_t left = w->bytes.len - w->done;
        ssize_t done = write(w->fd, w->bytes.data + w->done, left < STEP_BYTES ? left : STEP_BYTES);

        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0) {
            w->errnum = errno;
            return;
        }
        w->done += (size_t)done;
        mu_filethread_beat(job);
    }
}

static void drop_write(struct mu_file_job *job)
{
    struct mu_logfile_write *w = MU_LIST_ITEM(job, struct mu_logfile_write, job);

    mu_buf_done(&w->bytes);
    free(w);
}

static void run_read(struct mu_file_job *job)
{
    struct mu_logfile_read *r = MU_LIST_ITEM(job, struct mu_logfile_read, job);

    r->got = pread(r->fd, r->bytes, sizeof r->bytes, r->at);
}

static void drop_read(struct mu_file_job *job)
{
    free(MU_LIST_ITEM(job, struct mu_logfile_read, job));
}

/* ---- On the loop */

/* What was gathered is put under way. */
static void start_write(struct mu_logfile *file)
{
    struct mu_logfile_write *w = file->writing;
    struct mu_buf empty = w->bytes;

    assert(!file->busy && empty.len == 0 && file->gathered.len > 0);
    w->bytes = file->gathered;
    file->gathered = empty;
    w->done = 0;
    w->errnum = 0;
    file->busy = true;
    mu_disk_submit(file->disk, &w->job);
}

static void settle(struct mu_logfile *file, struct mu_logfile_write *w)
{
    uint64_t start = file->settled;

    file->busy = false;
    file->settled += w->bytes.len;
    if (file->mark > start && file->mark <= file->settled)
        file->mark_at = file->written + (file->mark - start < w->done ? file->mark - start : w->done);
    file->written += w->done;
    if (w->done < w->bytes.len)
        mu_logfile_lose(file, w->bytes.len - w->done, w->errnum);
    w->bytes.len = 0;
    if (w->bytes.cap > KEPT_BYTES)
        mu_buf_done(&w->bytes);
}

static void on_written(struct mu_file_job *job)
{
    struct mu_logfile_write *w = MU_LIST_ITEM(job, struct mu_logfile_write, job);
    struct mu_logfile *file = w->file;

    settle(file, w);
    if (file->gathered.len > 0)
        start_write(file);
    if (file->on_moved != NULL)
        file->on_moved(file->ctx); /* last: it may be the end of the file */
}

int mu_logfile_init(struct mu_logfile *file, struct mu_disk *disk, int fd, const char *path)
{
    *file = (struct mu_logfile){ .fd = -1,
                                 .disk = disk,
                                 .path = strdup(path),
                                 .writing = calloc(1, sizeof *file->writing),
                                 .closing = mu_file_closing_new(fd) };
    if (file->path == NULL || file->writing == NULL || file->closing == NULL) {
        free(file->closing);
        file->closing = NULL;
        mu_logfile_done(file);
        return MUSTER_ENOMEM;
    }
    *file->writing = (struct mu_logfile_write){ .job = { .run = run_write, .done = on_written, .drop = drop_write },
                                                .file = file,
                                                .fd = fd };
    file->fd = fd;
    return 0;
}

static const char *reason(int why)
{
    return why == MU_LOGFILE_SILENT ? "the file system does not answer" : strerror(why);
}

void mu_logfile_lose(struct mu_logfile *file, size_t bytes, int errnum)
{
    file->lost += bytes;
    if (file->why != 0)
        return;
    file->why = errnum;
    mu_log(MUSTER_LOG_WARNING, "write '%s': %s; the worker goes on, but its output is missing from that file",
           file->path, reason(errnum));
}

/* While the file system is silent, there is room for the amount at which a writer would wait, and no more. */
static size_t room(const struct mu_logfile *file)
{
    size_t max = mu_disk_is_silent(file->disk) ? MU_LOGFILE_BYTES_MAX : MU_LOGFILE_OVER_BYTES_MAX;

    return file->gathered.len < max ? max - file->gathered.len : 0;
}

bool mu_logfile_write(struct mu_logfile *file, struct mu_slice bytes)
{
    if (file->fd < 0 || bytes.len == 0)
        return true;
    if (bytes.len > room(file)) {
        mu_logfile_lose(file, bytes.len, MU_LOGFILE_SILENT);
        return false;
    }
    if (mu_buf_append(&file->gathered, bytes.data, bytes.len, MU_LOGFILE_OVER_BYTES_MAX) < 0) {
        mu_logfile_lose(file, bytes.len, ENOMEM);
        return false;
    }
    file->accepted += bytes.len;
    if (!file->busy)
        start_write(file);
    return true;
}

bool mu_logfile_is_full(const struct mu_logfile *file)
{
    return file->fd >= 0 && file->gathered.len >= MU_LOGFILE_BYTES_MAX && !mu_disk_is_silent(file->disk);
}

uint64_t mu_logfile_waiting(const struct mu_logfile *file)
{
    return file->accepted - file->settled;
}

/* ---- Reading it again */

void mu_logfile_set_mark(struct mu_logfile *file, uint64_t back)
{
    assert(back <= file->accepted - file->settled); /* they have only just come */
    file->mark = file->accepted - back;
    file->mark_at = file->written; /* right if nothing is in front of it; else the end of a write corrects it */
}

uint64_t mu_logfile_behind(const struct mu_logfile *file)
{
    return file->mark > file->settled ? file->accepted - file->mark
                                      : file->written - file->mark_at + (file->accepted - file->settled);
}

bool mu_logfile_can_read(const struct mu_logfile *file)
{
    return file->mark <= file->settled && file->mark_at < file->written;
}

static void on_was_read(struct mu_file_job *job)
{
    struct mu_logfile_read *r = MU_LIST_ITEM(job, struct mu_logfile_read, job);

    r->file->reading = NULL;
    r->on_read(r->ctx, mu_slice(r->bytes, r->got > 0 ? (size_t)r->got : 0));
    free(r);
}

int mu_logfile_start_read(struct mu_logfile *file, mu_logfile_on_read *on_read, void *ctx)
{
    struct mu_logfile_read *r = malloc(sizeof *r);

    assert(file->reading == NULL && mu_logfile_can_read(file));
    if (r == NULL)
        return MUSTER_ENOMEM;
    r->job = (struct mu_file_job){ .run = run_read, .done = on_was_read, .drop = drop_read };
    r->file = file;
    r->fd = file->fd;
    r->at = (off_t)file->mark_at;
    r->got = 0;
    r->on_read = on_read;
    r->ctx = ctx;
    file->reading = r;
    mu_disk_submit(file->disk, &r->job);
    return 0;
}

void mu_logfile_stop_read(struct mu_logfile *file)
{
    if (file->reading != NULL)
        mu_filethread_cancel(&file->reading->job);
    file->reading = NULL;
}

void mu_logfile_advance(struct mu_logfile *file, size_t bytes)
{
    file->mark_at += bytes;
}

/* ---- The end */

void mu_logfile_done(struct mu_logfile *file)
{
    if (mu_logfile_waiting(file) > 0)
        mu_logfile_lose(file, mu_logfile_waiting(file), MU_LOGFILE_SILENT);
    if (file->lost > 0)
        mu_log(MUSTER_LOG_WARNING, "'%s' lacks %" PRIu64 " bytes: %s", file->path, file->lost, reason(file->why));
    mu_logfile_stop_read(file);
    if (file->busy)
        mu_filethread_cancel(&file->writing->job);
    else if (file->writing != NULL)
        drop_write(&file->writing->job);
    if (file->closing != NULL)
        mu_disk_submit(file->disk, file->closing);
    mu_buf_done(&file->gathered);
    free(file->path);
    *file = (struct mu_logfile){ .fd = -1 };
}
