/* The watchdog on a loop.
 *
 * start: make the FIFO, open it for reading and writing (so that neither open nor read ever waits or sees an end),
 * watch it. A request arrives: into the table; the clock is set to the next expiry. The clock fires: every process with
 * an expired timer is checked, and signalled through a pidfd that was opened before the check, so that its number
 * cannot belong to another process. The clock is the wall clock: set forward, it fires at once, as the protocol's times
 * demand. */
#include "agent/timer_uv.h"

#include "base/clock.h"
#include "base/texts.h"
#include "base/words.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_pidfd_send_signal /* headers older than the calls; one number on every machine */
#define SYS_pidfd_send_signal 424
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

enum {
    READ_BYTES = 65536,
    READS_MAX = 16, /* in one turn of the loop */
    SHOWN_MAX = 200 /* bytes of a bad request in a log */
};

#define FAR_S 4e9 /* later than this is never: the kernel's clock ends some time after */

struct mu_watchdog {
    uv_poll_t requests, clock;
    int fifo, clock_fd;
    char *path;
    dev_t dev; /* of the FIFO that we made */
    ino_t ino;
    struct mu_watchdog_config config;
    struct mu_timers timers;
    unsigned open_handles;
    bool closing;
    void (*on_closed)(void *ctx);
    void *closed_ctx;
};

MU_DEFINE_TEXTS(mu_watchdog_event_name, enum mu_watchdog_event_type, MU_WATCHDOG_EVENTS)

static void tell(struct mu_watchdog *w, enum mu_watchdog_event_type type, const struct mu_timer *timer,
                 const struct muster_error *error)
{
    w->config.on_event(w->config.ctx, type, timer, error);
}

/* ---- Signals ---- */

/* A pidfd: the process, even if its number is used again. -1 with ENOSYS: this kernel has none. */
static int open_process(int32_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

/* 0 or an errno value. */
static int send_signal(int handle, int32_t pid, int number)
{
    if (handle >= 0 && syscall(SYS_pidfd_send_signal, handle, number, NULL, 0) == 0)
        return 0;
    if (handle >= 0 && errno != ENOSYS)
        return errno;
    return kill(pid, number) == 0 ? 0 : errno;
}

static void kill_process(struct mu_watchdog *w, const struct mu_timer *timer)
{
    struct muster_error error = { 0 };
    int handle = open_process(timer->pid), errnum = errno;

    if (handle < 0 && errnum == ESRCH) /* gone already: as good as killed */
        return;
    if (!w->config.is_ours(w->config.ctx, timer->pid)) {
        (void)mu_fail(&error, MUSTER_EINVAL,
                      "timer '%s': process %d does not belong to a worker of this node; not signalled", timer->scope,
                      (int)timer->pid);
    } else {
        errnum = send_signal(handle, timer->pid, timer->signal);
        if (errnum != 0 && errnum != ESRCH)
            (void)mu_fail_errno(&error, errnum, "timer '%s': send signal %d to process %d", timer->scope, timer->signal,
                                (int)timer->pid);
    }
    if (handle >= 0)
        (void)close(handle);
    if (error.code < 0)
        tell(w, MU_WATCHDOG_REFUSED, timer, &error);
    else
        tell(w, MU_WATCHDOG_KILLED, timer, NULL);
}

/* ---- Time ---- */

/* To the next expiry; a time of zero switches the clock off. A double of today's seconds is exact to less than a
 * microsecond: one more, so that it never fires too early. */
static void set_clock(struct mu_watchdog *w)
{
    struct itimerspec when = { 0 };
    double at_s;
    int rc;

    if (mu_timers_next(&w->timers, &at_s) && at_s < FAR_S) {
        long us = (long)((at_s - (double)(time_t)at_s) * 1e6) + 1;

        when.it_value.tv_sec = (time_t)at_s + us / 1000000;
        when.it_value.tv_nsec = us % 1000000 * 1000;
    }
    rc = timerfd_settime(w->clock_fd, TFD_TIMER_ABSTIME, &when, NULL);
    assert(rc == 0);
    (void)rc;
}

static void expire(struct mu_watchdog *w)
{
    double now_s = (double)mu_wall_us() / 1e6;
    struct mu_timer_expiry expiry;

    while (mu_timers_expire(&w->timers, now_s, &expiry)) {
        MU_LIST_EACH (const struct mu_timer, timer, expiry.timers, link)
            tell(w, MU_WATCHDOG_EXPIRED, timer, NULL);
        if (expiry.signal > 0)
            kill_process(w, expiry.last);
    }
}

static void on_time(uv_poll_t *handle, int status, int events)
{
    struct mu_watchdog *w = handle->data;
    uint64_t times;

    (void)status;
    (void)events;
    (void)!read(w->clock_fd, &times, sizeof times);
    expire(w);
    set_clock(w);
}

/* ---- Requests ---- */

static void on_bad(void *ctx, struct mu_slice line, const struct muster_error *error)
{
    struct mu_watchdog *w = ctx;
    struct muster_error told = { 0 };
    char shown[SHOWN_MAX + 1];

    (void)mu_fail(&told, error->code, "timer request '%s': %s; skipped", mu_words_plain(line, shown, sizeof shown),
                  error->text);
    tell(w, MU_WATCHDOG_BAD_REQUEST, NULL, &told);
}

static void stop_reading(struct mu_watchdog *w, int errnum)
{
    struct muster_error error = { 0 };

    (void)uv_poll_stop(&w->requests);
    (void)mu_fail_errno(&error, errnum, "read timer requests from '%s'", w->path);
    tell(w, MU_WATCHDOG_FAILED, NULL, &error);
}

static void on_requests(uv_poll_t *handle, int status, int events)
{
    struct mu_watchdog *w = handle->data;
    char bytes[READ_BYTES];

    (void)events;
    if (status < 0) {
        stop_reading(w, -status);
        return;
    }
    for (int i = 0; i < READS_MAX; i++) {
        ssize_t len = read(w->fifo, bytes, sizeof bytes);

        if (len < 0 && errno == EINTR)
            continue;
        if (len < 0 && errno != EAGAIN)
            stop_reading(w, errno);
        if (len <= 0)
            break;
        mu_timers_feed(&w->timers, mu_slice(bytes, (size_t)len), on_bad, w);
    }
    expire(w); /* a time that has passed already */
    set_clock(w);
}

/* ---- Start and end ---- */

/* Removes what is there, but only a FIFO, or an empty file that is ours. */
static int clear_path(const char *path, struct muster_error *reterr)
{
    struct stat st;

    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : mu_fail_errno(reterr, errno, "look at '%s'", path);
    if (!S_ISFIFO(st.st_mode) && !(S_ISREG(st.st_mode) && st.st_size == 0 && st.st_uid == geteuid()))
        return mu_fail(reterr, MUSTER_EINVAL, "'%s' is there and is not a FIFO", path);
    if (unlink(path) < 0 && errno != ENOENT)
        return mu_fail_errno(reterr, errno, "remove '%s'", path);
    return 0;
}

/* Another user may have put a FIFO there: it must be ours, and writable by us alone. */
static int make_fifo(struct mu_watchdog *w, struct muster_error *reterr)
{
    struct stat st;

    if (mkfifo(w->path, 0600) < 0)
        return mu_fail_errno(reterr, errno, "make FIFO '%s'", w->path);
    w->fifo = open(w->path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY);
    if (w->fifo < 0) {
        int errnum = errno;

        (void)unlink(w->path);
        return mu_fail_errno(reterr, errnum, "open FIFO '%s'", w->path);
    }
    if (fstat(w->fifo, &st) < 0 || !S_ISFIFO(st.st_mode) || st.st_uid != geteuid() || fchmod(w->fifo, 0600) < 0)
        return mu_fail(reterr, MUSTER_ESYSTEM, "FIFO '%s' is not the one that we made", w->path);
    w->dev = st.st_dev;
    w->ino = st.st_ino;
    return 0;
}

static int open_all(struct mu_watchdog *w, const char *path, struct muster_error *reterr)
{
    int rc = clear_path(path, reterr);

    if (rc < 0)
        return rc;
    w->path = strdup(path);
    if (w->path == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory");
    w->clock_fd = timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK | TFD_CLOEXEC);
    if (w->clock_fd < 0)
        return mu_fail_errno(reterr, errno, "make a timer");
    return make_fifo(w, reterr);
}

/* Only if it is still ours: another watchdog may have made a new one there. */
static void remove_fifo(struct mu_watchdog *w)
{
    struct stat st;

    if (w->fifo >= 0 && lstat(w->path, &st) == 0 && st.st_dev == w->dev && st.st_ino == w->ino)
        (void)unlink(w->path);
}

static void release(struct mu_watchdog *w)
{
    remove_fifo(w);
    if (w->fifo >= 0)
        (void)close(w->fifo);
    if (w->clock_fd >= 0)
        (void)close(w->clock_fd);
    mu_timers_done(&w->timers);
    free(w->path);
    free(w);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct mu_watchdog *w = handle->data;
    void (*on_closed)(void *ctx) = w->on_closed;
    void *ctx = w->closed_ctx;

    if (--w->open_handles > 0)
        return;
    release(w);
    if (on_closed != NULL)
        on_closed(ctx);
}

static void close_handles(struct mu_watchdog *w)
{
    remove_fifo(w);
    w->closing = true;
    uv_close((uv_handle_t *)&w->requests, on_handle_closed);
    if (w->open_handles > 1)
        uv_close((uv_handle_t *)&w->clock, on_handle_closed);
}

static int watch(struct mu_watchdog *w, uv_loop_t *loop, uv_poll_t *handle, int fd, uv_poll_cb cb)
{
    int rc = uv_poll_init(loop, handle, fd);

    if (rc < 0)
        return rc;
    handle->data = w;
    w->open_handles++;
    return uv_poll_start(handle, UV_READABLE, cb);
}

int mu_watchdog_start(uv_loop_t *loop, const struct mu_watchdog_config *config, struct mu_watchdog **ret_watchdog,
                      struct muster_error *reterr)
{
    struct mu_watchdog *w = malloc(sizeof *w);
    int rc;

    if (w == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "start the watchdog: no memory");
    *w = (struct mu_watchdog){ .fifo = -1, .clock_fd = -1, .config = *config };
    mu_timers_init(&w->timers);
    rc = open_all(w, config->path, reterr);
    if (rc < 0) {
        release(w);
        return mu_wrap(reterr, rc, "start the watchdog");
    }
    w->config.path = w->path;
    rc = watch(w, loop, &w->requests, w->fifo, on_requests);
    if (rc == 0)
        rc = watch(w, loop, &w->clock, w->clock_fd, on_time);
    if (rc < 0) {
        if (w->open_handles > 0)
            close_handles(w);
        else
            release(w);
        return mu_fail_errno(reterr, -rc, "start the watchdog: watch '%s'", config->path);
    }
    *ret_watchdog = w;
    tell(w, MU_WATCHDOG_STARTED, NULL, NULL);
    return 0;
}

void mu_watchdog_forget(struct mu_watchdog *watchdog, int32_t pid)
{
    if (watchdog == NULL || watchdog->closing)
        return;
    mu_timers_forget(&watchdog->timers, pid);
    set_clock(watchdog);
}

void mu_watchdog_close(struct mu_watchdog *watchdog, void (*on_closed)(void *ctx), void *ctx)
{
    if (watchdog == NULL)
        return;
    assert(!watchdog->closing);
    watchdog->on_closed = on_closed;
    watchdog->closed_ctx = ctx;
    close_handles(watchdog);
    tell(watchdog, MU_WATCHDOG_STOPPED, NULL, NULL);
}
