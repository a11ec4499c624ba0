/* The files of a log directory, on a loop.
 *
 * The thread rings when a job was run; the loop then tells what came of it. While something is under way a timer looks
 * whether anything moves. */
#include "logs/disk.h"

#include "base/log.h"

#include <assert.h>
#include <stdlib.h>
#include <unistd.h>
#include <uv.h>

enum state { IDLE, BUSY, SILENT, CLOSING, CLOSED };

struct mu_disk {
    uv_async_t rang;
    uv_timer_t look;
    struct mu_filethread *thread;
    enum state state;
    struct mu_list watchers;
    uint32_t look_ms;
    uint64_t beats; /* at the last look */
    unsigned quiet; /* looks since something moved */
    unsigned handles;
    bool hangs;
    void (*on_closed)(void *ctx, bool hangs);
    void *ctx;
};

static void on_look(uv_timer_t *timer);
static void close_down(struct mu_disk *disk);

static void look_again(struct mu_disk *disk)
{
    (void)uv_timer_start(&disk->look, on_look, disk->look_ms, 0);
}

static void enter(struct mu_disk *disk, enum state state)
{
    assert(disk->state != CLOSED && (disk->state != CLOSING || state == CLOSED));
    disk->state = state;
    if (state == IDLE || state == CLOSED)
        (void)uv_timer_stop(&disk->look);
}

/* Something has moved. */
static void moved(struct mu_disk *disk)
{
    disk->beats = mu_filethread_beats(disk->thread);
    disk->quiet = 0;
}

static void wake(void *ctx)
{
    (void)uv_async_send(&((struct mu_disk *)ctx)->rang);
}

/* Nothing is under way. */
static void through(struct mu_disk *disk)
{
    if (disk->state == CLOSING)
        close_down(disk);
    else
        enter(disk, IDLE);
}

static void on_rang(uv_async_t *async)
{
    struct mu_disk *disk = async->data;

    if (disk->state == CLOSED)
        return;
    moved(disk);
    if (disk->state == SILENT)
        enter(disk, BUSY);
    mu_filethread_turn(disk->thread);
    if (mu_filethread_is_idle(disk->thread))
        through(disk);
}

static void tell_silent(struct mu_disk *disk)
{
    struct mu_list told;

    mu_list_init(&told);
    mu_list_take(&told, &disk->watchers); /* one that is told may leave, or come */
    while (!mu_list_empty(&told)) {
        struct mu_list *link = mu_list_pop(&told);
        struct mu_disk_watcher *watcher = MU_LIST_ITEM(link, struct mu_disk_watcher, link);

        mu_list_push(&disk->watchers, link);
        watcher->on_silent(watcher);
    }
}

static void on_look(uv_timer_t *timer)
{
    struct mu_disk *disk = timer->data;

    if (mu_filethread_is_idle(disk->thread)) { /* what was cancelled is dropped without a word */
        through(disk);
        return;
    }
    if (mu_filethread_beats(disk->thread) != disk->beats) {
        moved(disk);
        if (disk->state == SILENT)
            enter(disk, BUSY);
    } else if (disk->quiet < MU_DISK_LOOKS) {
        disk->quiet++;
    }
    look_again(disk);
    if (disk->quiet < MU_DISK_LOOKS || disk->state == SILENT)
        return;
    if (disk->state == CLOSING) {
        close_down(disk);
        return;
    }
    enter(disk, SILENT);
    tell_silent(disk);
}

int mu_disk_start(struct uv_loop_s *loop, const struct mu_disk_config *config, struct mu_disk **ret_files,
                  struct muster_error *reterr)
{
    struct mu_disk *disk = calloc(1, sizeof *disk);
    struct mu_filethread_config thread = { .wake = wake, .ctx = disk, .at_once = config->at_once };
    int rc;

    if (disk == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for the thread that writes files");
    disk->thread = mu_filethread_new(&thread);
    if (disk->thread == NULL) {
        free(disk);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for the thread that writes files");
    }
    rc = uv_async_init(loop, &disk->rang, on_rang);
    if (rc < 0) {
        (void)mu_filethread_free(disk->thread);
        free(disk);
        return mu_fail_errno(reterr, -rc, "make a wake-up for the loop");
    }
    (void)uv_timer_init(loop, &disk->look);
    disk->rang.data = disk->look.data = disk;
    disk->handles = 2;
    disk->look_ms = (config->silent_ms > 0 ? config->silent_ms : MU_DISK_SILENT_MS) / MU_DISK_LOOKS;
    mu_list_init(&disk->watchers);
    *ret_files = disk;
    return 0;
}

void mu_disk_submit(struct mu_disk *disk, struct mu_file_job *job)
{
    assert(disk->state != CLOSING && disk->state != CLOSED);
    if (disk->state == IDLE) {
        enter(disk, BUSY);
        moved(disk);
        look_again(disk);
    }
    mu_filethread_submit(disk->thread, job);
}

bool mu_disk_is_silent(const struct mu_disk *disk)
{
    return disk->state == SILENT;
}

uint64_t mu_disk_beats(const struct mu_disk *disk)
{
    return mu_filethread_beats(disk->thread);
}

void mu_disk_watch(struct mu_disk *disk, struct mu_disk_watcher *watcher)
{
    mu_list_push(&disk->watchers, &watcher->link);
}

void mu_disk_unwatch(struct mu_disk_watcher *watcher)
{
    mu_list_remove(&watcher->link);
}

/* ---- Closing descriptors */

struct closing {
    struct mu_file_job job; /* first: the job is what is freed */
    int fd;
};

static void run_close(struct mu_file_job *job)
{
    struct closing *closing = MU_LIST_ITEM(job, struct closing, job);

    if (closing->fd >= 0)
        (void)close(closing->fd);
    closing->fd = -1;
}

static void free_closing(struct mu_file_job *job)
{
    free(MU_LIST_ITEM(job, struct closing, job));
}

static void drop_close(struct mu_file_job *job)
{
    run_close(job);
    free_closing(job);
}

struct mu_file_job *mu_file_closing_new(int fd)
{
    struct closing *closing = malloc(sizeof *closing);

    if (closing == NULL)
        return NULL;
    *closing = (struct closing){ .job = { .run = run_close, .done = free_closing, .drop = drop_close }, .fd = fd };
    return &closing->job;
}

/* ---- The end */

static void on_handle_closed(uv_handle_t *handle)
{
    struct mu_disk *disk = handle->data;

    if (--disk->handles > 0)
        return;
    if (disk->on_closed != NULL)
        disk->on_closed(disk->ctx, disk->hangs);
    free(disk);
}

static void close_down(struct mu_disk *disk)
{
    enter(disk, CLOSED);
    disk->hangs = !mu_filethread_free(disk->thread);
    uv_close((uv_handle_t *)&disk->rang, on_handle_closed);
    uv_close((uv_handle_t *)&disk->look, on_handle_closed);
}

void mu_disk_close(struct mu_disk *disk, uint32_t quiet_ms, void (*on_closed)(void *ctx, bool hangs), void *ctx)
{
    bool silent = disk->state == SILENT;

    assert(disk->state != CLOSING && mu_list_empty(&disk->watchers));
    disk->on_closed = on_closed;
    disk->ctx = ctx;
    enter(disk, CLOSING);
    if (silent || mu_filethread_is_idle(disk->thread)) {
        close_down(disk);
        return;
    }
    moved(disk);
    disk->look_ms = quiet_ms / MU_DISK_LOOKS;
    look_again(disk);
}
