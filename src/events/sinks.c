/* Sinks of events, by name. A line goes out in one write, so that lines of several processes do not mix; what a full disk or a
 * closed stderr does not take is lost, and workers and agent go on. */
#include "events/sinks.h"

#include "base/error.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define FILE_PREFIX "file:"

struct mu_event_sink {
    int fd; /* -1: nothing to write to */
    bool own_fd;
    char *path; /* NULL: the console */
    bool said;  /* that events are lost */
    uint64_t lost;
};

/* False with errno set: not all of it went out. Only the rest is tried again, and only after an interruption. */
static bool write_line(int fd, const char *text)
{
    char end[] = "\n";
    struct iovec parts[2] = { { .iov_base = (void *)(uintptr_t)text, .iov_len = strlen(text) },
                              { .iov_base = end, .iov_len = 1 } };
    struct iovec *part = parts;

    while (part < parts + 2) {
        ssize_t len = writev(fd, part, (int)(parts + 2 - part));

        if (len < 0 && errno == EINTR)
            continue;
        if (len < 0)
            return false;
        while (part < parts + 2 && (size_t)len >= part->iov_len) {
            len -= (ssize_t)part->iov_len;
            part++;
        }
        if (part < parts + 2) {
            part->iov_base = (char *)part->iov_base + len;
            part->iov_len -= (size_t)len;
        }
    }
    return true;
}

void muster_events_console_all(void *ctx, const struct muster_event_record *record)
{
    (void)ctx;
    if (record->json != NULL)
        (void)write_line(STDERR_FILENO, record->json);
}

void muster_events_console(void *ctx, const struct muster_event_record *record)
{
    if (record->source != MUSTER_EVENT_RENDEZVOUS)
        muster_events_console_all(ctx, record);
}

static void lose(struct mu_event_sink *sink, const char *reason)
{
    sink->lost++;
    if (!sink->said)
        mu_log(MUSTER_LOG_WARNING, "write event to %s%s: %s; events are lost", sink->path != NULL ? "" : "the console",
               sink->path != NULL ? sink->path : "", reason);
    sink->said = true;
}

static void on_event(void *ctx, const struct muster_event_record *record)
{
    struct mu_event_sink *sink = ctx;

    if (record->source == MUSTER_EVENT_RENDEZVOUS)
        return;
    if (record->json == NULL)
        lose(sink, muster_error_text(MUSTER_ENOMEM));
    else if (!write_line(sink->fd, record->json))
        lose(sink, strerror(errno));
}

static int open_file(struct mu_event_sink *sink, const char *path, struct muster_error *reterr)
{
    if (*path == '\0')
        return mu_fail(reterr, MUSTER_EINVAL, "event log handler '" FILE_PREFIX "': no path");
    sink->path = strdup(path);
    if (sink->path == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "event log '%s': no memory", path);
    /* Never waits: a FIFO that nobody reads is an error. */
    sink->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
    if (sink->fd < 0)
        return mu_fail_errno(reterr, errno, "open event log '%s'", path);
    sink->own_fd = true;
    return 0;
}

/* What the name says; -1 in `fd`: nowhere. */
static int choose(struct mu_event_sink *sink, const char *name, struct muster_error *reterr)
{
    if (strcmp(name, "null") == 0 || strcmp(name, "dynamic_rendezvous") == 0)
        return 0;
    if (strncmp(name, FILE_PREFIX, strlen(FILE_PREFIX)) == 0)
        return open_file(sink, name + strlen(FILE_PREFIX), reterr);
    if (strcmp(name, "console") != 0)
        return mu_fail(reterr, MUSTER_EINVAL, "unknown event log handler '%s': null, console or file:PATH", name);
    sink->fd = STDERR_FILENO;
    return 0;
}

int mu_event_sink_open(const char *name, struct mu_event_sink **ret_sink, struct muster_error *reterr)
{
    struct mu_event_sink *sink = malloc(sizeof *sink);
    int rc;

    if (sink == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "event log handler '%s': no memory", name);
    *sink = (struct mu_event_sink){ .fd = -1 };
    rc = choose(sink, name, reterr);
    if (rc < 0) {
        free(sink->path);
        free(sink);
        return rc;
    }
    if (sink->fd >= 0)
        muster_events_set_sink(on_event, sink);
    *ret_sink = sink;
    return 0;
}

void mu_event_sink_close(struct mu_event_sink *sink)
{
    if (sink == NULL)
        return;
    if (sink->fd >= 0)
        muster_events_set_sink(NULL, NULL);
    if (sink->own_fd)
        (void)close(sink->fd);
    free(sink->path);
    free(sink);
}

uint64_t mu_event_sink_lost(const struct mu_event_sink *sink)
{
    return sink->lost;
}
