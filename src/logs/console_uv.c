/* Our standard output or standard error, shared with others.
 *
 * Lines are put at the end of a queue of blocks; a flush sends from its front for as long as the other side takes it.
 * When it takes no more, an epoll of our own watches the descriptor and the loop watches that epoll: libuv would make a
 * descriptor non-blocking that it watches itself. With a writer thread, one chunk at a time is handed to it, and it
 * rings when that has gone out. A source that has used up its share loses lines until there is room again. Warnings are
 * logged from the loop, never from within a call: the log itself may be written here. */
#include "logs/console_uv.h"

#include "base/clock.h"
#include "base/files.h"
#include "base/list.h"
#include "base/log.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    BLOCK_BYTES_MIN = 4096,
    IOVECS_MAX = 64,
    WRITER_BYTES_MAX = 65536, /* handed to the thread at once */
    WHERE_MAX = 1024,         /* longer places are cut */
};

struct block {
    struct mu_list link;
    struct mu_console_source *source;
    size_t len, cap, sent;
    char data[];
};

struct mu_console_source {
    struct mu_list link; /* in console->sources, until it is released and has nothing waiting */
    struct mu_console *console;
    size_t waiting;
    bool released;
    mu_console_room *on_room; /* NULL: does not wait for it */
    void *room_ctx;
    bool full;             /* its lines are dropped until there is room again */
    bool skipping;         /* the rest of a line whose beginning was dropped */
    uint64_t lines, bytes; /* dropped, and not said yet */
    char label[MU_CONSOLE_LABEL_MAX];
    char where[WHERE_MAX];
};

struct writer {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    uv_async_t rang;
    bool busy, stop;
    int errnum;
    size_t len;
    char data[WRITER_BYTES_MAX];
};

struct mu_console {
    uv_loop_t *loop;
    enum mu_console_way way;
    int fd;       /* what is written to */
    int own_fd;   /* -1, or the description of our own; then fd is the same */
    int epoll_fd; /* -1, or what tells that there is room */
    uv_poll_t poll;
    bool watching;     /* for room */
    uv_timer_t timer;  /* the end of mu_console_close() */
    uv_timer_t notice; /* something is to be said */
    struct writer *writer;
    struct mu_list blocks, sources;
    bool inside;                    /* a line has been begun and not ended */
    struct mu_console_source *open; /* by which source; NULL: by one that is released */
    size_t waiting;                 /* in blocks */
    size_t in_flight;               /* in the writer's hands */
    uint64_t sent, dropped_lines, dropped_bytes;
    int errnum; /* why it is gone, or why something was lost */
    bool errnum_said;
    bool wanted; /* a source may be waiting for room */
    bool unsaid; /* a source may have lost lines that are not said yet */
    bool closing, finished;
    int handles;
    mu_console_closed *on_closed;
    void *ctx;
    char name[MU_CONSOLE_LABEL_MAX];
};

/* ---- Saying what was lost */

static bool has_room(const struct mu_console_source *source)
{
    return source->waiting <= MU_CONSOLE_SOURCE_BYTES_MAX / 2 && source->console->waiting <= MU_CONSOLE_BYTES_MAX / 2;
}

static void say_dropped(struct mu_console_source *source)
{
    uint64_t lines = source->lines, bytes = source->bytes;

    source->lines = 0;
    source->bytes = 0;
    mu_log(MUSTER_LOG_WARNING, "%s did not keep up: %" PRIu64 " lines (%" PRIu64 " bytes) of %s were not shown%s%s",
           source->console->name, lines, bytes, source->label, source->where[0] != '\0' ? "; they are in " : "",
           source->where);
}

static void maybe_free(struct mu_console_source *source)
{
    if (!source->released || source->waiting > 0 || source->lines > 0)
        return;
    if (source->console->open == source)
        source->console->open = NULL;
    mu_list_remove(&source->link);
    free(source);
}

static void say_errnum(struct mu_console *console)
{
    if (console->errnum == 0 || console->errnum_said)
        return;
    console->errnum_said = true;
    mu_log(MUSTER_LOG_WARNING, "%s: %s; workers go on, but their output is no longer shown there", console->name,
           strerror(console->errnum));
}

static struct mu_console_source *find_unsaid(struct mu_console *console, bool all)
{
    MU_LIST_EACH (struct mu_console_source, source, &console->sources, link) {
        if (source->lines > 0 && (all || has_room(source)))
            return source;
    }
    return NULL;
}

/* The log's sink may put lines here and flush them, and sources may end by that. So every search starts again. */
static void say(struct mu_console *console, bool all)
{
    struct mu_console_source *source;
    struct mu_list *link, *next;

    console->unsaid = false;
    say_errnum(console);
    while ((source = find_unsaid(console, all)) != NULL)
        say_dropped(source);
    for (link = console->sources.next; link != &console->sources; link = next) {
        next = link->next;
        source = MU_LIST_ITEM(link, struct mu_console_source, link);
        console->unsaid = console->unsaid || source->lines > 0;
        maybe_free(source);
    }
}

static struct mu_console_source *find_wanting(struct mu_console *console)
{
    MU_LIST_EACH (struct mu_console_source, source, &console->sources, link) {
        if (source->on_room != NULL && (has_room(source) || console->way == MU_CONSOLE_GONE))
            return source;
    }
    return NULL;
}

/* A callback either uses the room up or needs none, and may release sources. */
static void offer_room(struct mu_console *console)
{
    struct mu_console_source *source;

    while ((source = find_wanting(console)) != NULL) {
        mu_console_room *on_room = source->on_room;

        source->on_room = NULL;
        on_room(source->room_ctx);
    }
    console->wanted = false;
    MU_LIST_EACH (struct mu_console_source, other, &console->sources, link)
        console->wanted |= other->on_room != NULL;
}

static void on_notice(uv_timer_t *timer)
{
    struct mu_console *console = timer->data;

    say(console, false);
    offer_room(console);
}

static void say_soon(struct mu_console *console)
{
    if (!console->finished)
        (void)uv_timer_start(&console->notice, on_notice, 0, 0);
}

/* ---- The queue */

static void count_dropped(struct mu_console *console, uint64_t lines, uint64_t bytes)
{
    console->dropped_lines += lines;
    console->dropped_bytes += bytes;
}

/* What has gone out, or never will, from the front of the queue. */
static void consume(struct mu_console *console, size_t len)
{
    console->waiting -= len;
    while (len > 0) {
        struct block *block = MU_LIST_ITEM(mu_list_first(&console->blocks), struct block, link);
        struct mu_console_source *source = block->source;
        size_t take = block->len - block->sent < len ? block->len - block->sent : len;

        block->sent += take;
        source->waiting -= take;
        len -= take;
        if (block->sent == block->len) {
            mu_list_remove(&block->link);
            free(block);
        }
        maybe_free(source);
    }
    if (console->unsaid || console->wanted)
        say_soon(console);
}

static uint64_t count_ends(const char *data, size_t len)
{
    uint64_t count = 0;

    for (const char *lf = data; (lf = memchr(lf, '\n', len - (size_t)(lf - data))) != NULL; lf++)
        count++;
    return count;
}

/* Everything that waits is lost. */
static void drop_waiting(struct mu_console *console)
{
    MU_LIST_EACH (struct block, block, &console->blocks, link) {
        count_dropped(console, count_ends(block->data + block->sent, block->len - block->sent),
                      block->len - block->sent);
    }
    consume(console, console->waiting);
}

static struct block *room_for(struct mu_console_source *source, size_t len)
{
    struct mu_console *console = source->console;
    struct block *last =
        mu_list_empty(&console->blocks) ? NULL : MU_LIST_ITEM(console->blocks.prev, struct block, link);
    size_t cap = len > BLOCK_BYTES_MIN ? len : BLOCK_BYTES_MIN;

    if (last != NULL && last->source == source && last->cap - last->len >= len)
        return last;
    last = malloc(sizeof *last + cap);
    if (last == NULL)
        return NULL;
    *last = (struct block){ .source = source, .cap = cap };
    assert(console->blocks.prev != NULL); /* an initialized list links to something, if only to itself */
    mu_list_push(&console->blocks, &last->link);
    return last;
}

static void add(struct block *block, const char *data, size_t len)
{
    if (len > 0)
        memcpy(block->data + block->len, data, len);
    block->len += len;
    block->source->waiting += len;
    block->source->console->waiting += len;
}

static void drop(struct mu_console_source *source, size_t bytes)
{
    struct mu_console *console = source->console;
    uint64_t lines = source->skipping ? 0 : 1;

    source->skipping = true;
    count_dropped(console, lines, bytes);
    if (console->way == MU_CONSOLE_GONE) { /* said once, for all of them */
        if (!console->errnum_said)
            say_soon(console);
        return;
    }
    source->full = true;
    source->lines += lines;
    source->bytes += bytes;
    console->unsaid = true;
    if (has_room(source)) /* no memory, or no room for such a long line: no later event would report it */
        say_soon(console);
}

void mu_console_put(struct mu_console_source *source, struct mu_slice prefix, struct mu_slice text, bool starts,
                    bool ends)
{
    struct mu_console *console = source->console;
    bool mine = console->open == source;
    size_t need = prefix.len + text.len + 2;
    struct block *block;

    if (starts)
        source->skipping = false;
    if (source->full && has_room(source))
        source->full = false;
    if (source->skipping || source->full || console->way == MU_CONSOLE_GONE ||
        source->waiting + need > MU_CONSOLE_SOURCE_BYTES_MAX || console->waiting + need > MU_CONSOLE_BYTES_MAX ||
        (block = room_for(source, need)) == NULL) {
        drop(source, text.len);
        return;
    }
    if (console->inside && (starts || !mine)) /* the line that is begun there ends here */
        add(block, "\n", 1);
    if (starts || !mine)
        add(block, prefix.data, prefix.len);
    add(block, text.data, text.len);
    if (ends)
        add(block, "\n", 1);
    console->inside = !ends;
    console->open = ends ? NULL : source;
}

int mu_console_source_new(struct mu_console *console, const char *label, const char *where,
                          struct mu_console_source **ret_source, struct muster_error *reterr)
{
    struct mu_console_source *source = calloc(1, sizeof *source);

    if (source == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "out of memory");
    source->console = console;
    (void)snprintf(source->label, sizeof source->label, "%s", label);
    (void)snprintf(source->where, sizeof source->where, "%s", where != NULL ? where : "");
    mu_list_push(&console->sources, &source->link);
    *ret_source = source;
    return 0;
}

bool mu_console_source_has_room(const struct mu_console_source *source)
{
    const struct mu_console *console = source->console;

    return console->way == MU_CONSOLE_GONE ||
           (source->waiting + MU_CONSOLE_PUT_BYTES_MAX <= MU_CONSOLE_SOURCE_BYTES_MAX &&
            console->waiting + MU_CONSOLE_PUT_BYTES_MAX <= MU_CONSOLE_BYTES_MAX);
}

void mu_console_source_want_room(struct mu_console_source *source, mu_console_room *on_room, void *ctx)
{
    source->on_room = on_room;
    source->room_ctx = ctx;
    source->console->wanted = true;
    if (has_room(source) || source->console->way == MU_CONSOLE_GONE)
        say_soon(source->console);
}

void mu_console_source_release(struct mu_console_source *source)
{
    if (source == NULL)
        return;
    source->on_room = NULL;
    source->released = true;
    maybe_free(source);
}

struct mu_console_stats mu_console_stats(const struct mu_console *console)
{
    return (struct mu_console_stats){
        .way = console->way,
        .waiting = console->waiting + console->in_flight,
        .sent = console->sent,
        .dropped_lines = console->dropped_lines,
        .dropped_bytes = console->dropped_bytes,
    };
}

/* ---- Sending */

static void finish(struct mu_console *console);

static void unwatch(struct mu_console *console)
{
    if (console->watching)
        (void)uv_poll_stop(&console->poll);
    console->watching = false;
}

static void gone(struct mu_console *console, int errnum)
{
    console->way = MU_CONSOLE_GONE;
    console->errnum = errnum;
    console->errnum_said = false;
    unwatch(console);
    drop_waiting(console);
    say_soon(console);
}

static void on_room(uv_poll_t *poll, int status, int events)
{
    struct mu_console *console = poll->data;
    struct epoll_event event;

    (void)status;
    (void)events;
    (void)epoll_wait(console->epoll_fd, &event, 1, 0);
    mu_console_flush(console);
}

static void watch(struct mu_console *console)
{
    struct epoll_event event = { .events = EPOLLOUT | EPOLLONESHOT };

    (void)epoll_ctl(console->epoll_fd, EPOLL_CTL_MOD, console->fd, &event);
    if (!console->watching)
        (void)uv_poll_start(&console->poll, UV_READABLE, on_room);
    console->watching = true;
}

static ssize_t send_some(struct mu_console *console)
{
    struct iovec iovecs[IOVECS_MAX];
    struct msghdr message = { .msg_iov = iovecs };
    size_t count = 0;

    MU_LIST_EACH (struct block, block, &console->blocks, link) {
        if (count == IOVECS_MAX)
            break;
        iovecs[count++] = (struct iovec){ .iov_base = block->data + block->sent, .iov_len = block->len - block->sent };
    }
    message.msg_iovlen = count;
    if (console->way == MU_CONSOLE_SOCKET)
        return sendmsg(console->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    return writev(console->fd, iovecs, (int)count);
}

static void send_all(struct mu_console *console)
{
    while (console->waiting > 0) {
        ssize_t sent = send_some(console);

        if (sent > 0) {
            console->sent += (size_t)sent;
            consume(console, (size_t)sent);
        } else if (sent == 0) {
            gone(console, EIO);
        } else if (errno == EAGAIN && console->epoll_fd >= 0) {
            watch(console);
            return;
        } else if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) { /* a file; there may be room again later */
            console->errnum = errno;
            say_soon(console);
            drop_waiting(console);
        } else if (errno != EINTR) {
            gone(console, errno);
        }
    }
    unwatch(console);
}

static void hand_over(struct mu_console *console)
{
    struct writer *writer = console->writer;
    size_t len = 0;

    if (console->in_flight > 0 || console->waiting == 0)
        return;
    MU_LIST_EACH (struct block, block, &console->blocks, link) {
        size_t take = block->len - block->sent;

        if (len == WRITER_BYTES_MAX)
            break;
        if (take > WRITER_BYTES_MAX - len)
            take = WRITER_BYTES_MAX - len;
        memcpy(writer->data + len, block->data + block->sent, take);
        len += take;
    }
    console->sent += len;
    consume(console, len);
    console->in_flight = len;
    uv_ref((uv_handle_t *)&writer->rang);
    (void)pthread_mutex_lock(&writer->lock);
    writer->len = len;
    writer->busy = true;
    (void)pthread_cond_signal(&writer->wake);
    (void)pthread_mutex_unlock(&writer->lock);
}

void mu_console_flush(struct mu_console *console)
{
    switch (console->way) {
    case MU_CONSOLE_DIRECT:
    case MU_CONSOLE_PRIVATE:
    case MU_CONSOLE_SOCKET:
        send_all(console);
        break;
    case MU_CONSOLE_THREAD:
        hand_over(console);
        break;
    case MU_CONSOLE_GONE:
        break;
    }
    if (console->closing && console->waiting + console->in_flight == 0)
        finish(console);
}

/* ---- The writer thread */

static void *run_writer(void *arg)
{
    struct mu_console *console = arg;
    struct writer *writer = console->writer;

    (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    (void)pthread_mutex_lock(&writer->lock);
    for (;;) {
        int errnum;

        while (!writer->busy && !writer->stop)
            (void)pthread_cond_wait(&writer->wake, &writer->lock);
        if (writer->stop)
            break;
        (void)pthread_mutex_unlock(&writer->lock);
        (void)pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL); /* only here, for here it may hang for ever */
        errnum = mu_files_write(console->fd, mu_slice(writer->data, writer->len), true);
        (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
        (void)pthread_mutex_lock(&writer->lock);
        writer->errnum = errnum;
        writer->busy = false;
        (void)uv_async_send(&writer->rang);
    }
    (void)pthread_mutex_unlock(&writer->lock);
    return NULL;
}

static void on_rang(uv_async_t *rang)
{
    struct mu_console *console = rang->data;
    struct writer *writer = console->writer;
    bool busy;
    int errnum;

    (void)pthread_mutex_lock(&writer->lock);
    busy = writer->busy;
    errnum = writer->errnum;
    (void)pthread_mutex_unlock(&writer->lock);
    if (busy || console->in_flight == 0 || console->finished)
        return;
    if (errnum != 0)
        count_dropped(console, count_ends(writer->data, writer->len), console->in_flight);
    console->in_flight = 0;
    uv_unref((uv_handle_t *)rang);
    if (errnum != 0)
        gone(console, errnum);
    mu_console_flush(console);
}

static int start_writer(struct mu_console *console, struct muster_error *reterr)
{
    struct writer *writer = calloc(1, sizeof *writer);
    int rc;

    if (writer == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "out of memory");
    rc = uv_async_init(console->loop, &writer->rang, on_rang);
    if (rc < 0) {
        free(writer);
        return mu_fail_errno(reterr, -rc, "make a wake-up for the writer thread");
    }
    writer->rang.data = console;
    uv_unref((uv_handle_t *)&writer->rang);
    (void)pthread_mutex_init(&writer->lock, NULL);
    (void)pthread_cond_init(&writer->wake, NULL);
    console->writer = writer;
    console->way = MU_CONSOLE_THREAD;
    rc = mu_thread_start(&writer->thread, run_writer, console);
    if (rc == 0)
        return 0;
    writer->stop = true; /* there is no thread */
    console->way = MU_CONSOLE_GONE;
    return mu_fail_errno(reterr, rc, "start the writer thread");
}

static void stop_writer(struct writer *writer)
{
    if (writer->stop)
        return;
    (void)pthread_mutex_lock(&writer->lock);
    writer->stop = true;
    (void)pthread_cond_signal(&writer->wake);
    (void)pthread_mutex_unlock(&writer->lock);
    (void)pthread_cancel(writer->thread);
    (void)pthread_join(writer->thread, NULL);
}

/* ---- Finding the way */

/* Watches for room with an epoll of our own. False with errno; EPERM: there is nothing to watch, it never blocks. */
static bool start_watching(struct mu_console *console, int fd)
{
    struct epoll_event event = { .events = EPOLLOUT | EPOLLONESHOT };
    int rc, epoll_fd = epoll_create1(EPOLL_CLOEXEC);

    if (epoll_fd < 0)
        return false;
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0) {
        rc = errno;
    } else {
        rc = -uv_poll_init(console->loop, &console->poll, epoll_fd);
    }
    if (rc != 0) {
        (void)close(epoll_fd);
        errno = rc;
        return false;
    }
    console->poll.data = console;
    console->epoll_fd = epoll_fd;
    console->handles++;
    return true;
}

static bool try_private(struct mu_console *console)
{
    char path[64];
    int fd, errnum;

    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", console->fd);
    /* Our session has no terminal, and must not get this one. */
    fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return false;
    if (start_watching(console, fd)) {
        console->way = MU_CONSOLE_PRIVATE;
        console->fd = fd;
        console->own_fd = fd;
        return true;
    }
    errnum = errno;
    (void)close(fd);
    if (errnum != EPERM)
        return false;
    console->way = MU_CONSOLE_DIRECT;
    return true;
}

static int find_way(struct mu_console *console, bool thread_only, struct muster_error *reterr)
{
    struct stat st;

    if (fstat(console->fd, &st) < 0) {
        console->way = MU_CONSOLE_GONE;
        console->errnum = errno;
        return 0;
    }
    if (thread_only)
        return start_writer(console, reterr);
    if (S_ISREG(st.st_mode) || S_ISBLK(st.st_mode) || S_ISDIR(st.st_mode)) {
        /* Never through an open file description of our own: that would have its own offset. */
        console->way = MU_CONSOLE_DIRECT;
        return 0;
    }
    if (S_ISSOCK(st.st_mode) && start_watching(console, console->fd)) {
        console->way = MU_CONSOLE_SOCKET;
        return 0;
    }
    if (!S_ISSOCK(st.st_mode) && try_private(console))
        return 0;
    return start_writer(console, reterr);
}

/* ---- Beginning and end */

static void on_handle_closed(uv_handle_t *handle)
{
    struct mu_console *console = handle->data;

    if (--console->handles > 0)
        return;
    if (console->on_closed != NULL)
        console->on_closed(console, console->ctx);
    if (console->own_fd >= 0)
        (void)close(console->own_fd);
    if (console->epoll_fd >= 0)
        (void)close(console->epoll_fd);
    if (console->writer != NULL) {
        (void)pthread_mutex_destroy(&console->writer->lock);
        (void)pthread_cond_destroy(&console->writer->wake);
        free(console->writer);
    }
    free(console);
}

static void close_handles(struct mu_console *console)
{
    console->finished = true;
    if (console->writer != NULL) {
        stop_writer(console->writer);
        console->handles++;
        uv_close((uv_handle_t *)&console->writer->rang, on_handle_closed);
    }
    if (console->epoll_fd >= 0)
        uv_close((uv_handle_t *)&console->poll, on_handle_closed);
    uv_close((uv_handle_t *)&console->timer, on_handle_closed);
    uv_close((uv_handle_t *)&console->notice, on_handle_closed);
}

int mu_console_start(uv_loop_t *loop, const struct mu_console_config *config, struct mu_console **ret_console,
                     struct muster_error *reterr)
{
    struct mu_console *console = calloc(1, sizeof *console);
    int rc;

    if (console == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "%s: out of memory", config->name);
    console->loop = loop;
    console->fd = config->fd;
    console->own_fd = -1;
    console->epoll_fd = -1;
    mu_list_init(&console->blocks);
    mu_list_init(&console->sources);
    (void)snprintf(console->name, sizeof console->name, "%s", config->name);
    (void)uv_timer_init(loop, &console->timer);
    (void)uv_timer_init(loop, &console->notice);
    console->timer.data = console;
    console->notice.data = console;
    console->handles = 2;
    rc = find_way(console, config->thread_only, reterr);
    if (rc < 0) {
        close_handles(console); /* the loop frees it */
        return mu_wrap(reterr, rc, "%s", config->name);
    }
    *ret_console = console;
    return 0;
}

/* What is still there is dropped; what was dropped is said. */
static void finish(struct mu_console *console)
{
    size_t left = console->waiting + console->in_flight;

    assert(!console->finished);
    (void)uv_timer_stop(&console->timer);
    console->closing = false;
    unwatch(console);
    drop_waiting(console);
    count_dropped(console, 0, console->in_flight);
    console->in_flight = 0;
    if (left > 0)
        mu_log(MUSTER_LOG_WARNING, "%s is not being read: the last %zu bytes were not shown", console->name, left);
    say(console, true);
    assert(mu_list_empty(&console->sources));
    close_handles(console);
}

static void on_time_up(uv_timer_t *timer)
{
    finish(timer->data);
}

void mu_console_close(struct mu_console *console, uint32_t wait_ms, mu_console_closed *on_closed, void *ctx)
{
    assert(!console->closing && !console->finished);
    console->on_closed = on_closed;
    console->ctx = ctx;
    console->closing = true;
    (void)uv_timer_start(&console->timer, on_time_up, wait_ms, 0);
    mu_console_flush(console);
}
