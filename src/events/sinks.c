/* Sinks of events and of metrics, by name. A line goes out in one write, so that lines of several processes do not mix;
 * lines that a full disk or a closed stderr does not take are lost, and workers and agent go on. A thread writes the
 * lines; the result of a write is looked at when the next line comes, and at the end. */
#include "events/sinks.h"

#include "base/error.h"
#include "base/files.h"
#include "base/filethread.h"
#include "base/log.h"
#include "events/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_PREFIX "file:"

struct kind {
    const char *item;                  /* what a line is, for people: "event" */
    const char *option, *file;         /* what chooses the sink, and what a file of it is called */
    int console;                       /* descriptor */
    void (*set)(struct mu_sink *sink); /* as the process's sink; NULL: takes it away */
};

struct mu_sink {
    const struct kind *kind;
    int fd;                       /* -1: nothing to write to */
    char *path;                   /* NULL: the console */
    struct mu_filethread *thread; /* NULL: nothing to write to */
    size_t waiting;               /* bytes in lines that are not written yet ... */
    uint64_t lines;               /* ... and how many */
    bool said;                    /* that lines are lost */
    uint64_t lost;
};

/* A line on its way. */
struct line {
    struct mu_file_job job;
    struct mu_sink *sink;
    int fd, errnum;
    size_t len;
    char text[]; /* and a line end */
};

static struct line *new_line(const char *text)
{
    size_t len = strlen(text);
    struct line *line = malloc(sizeof *line + len + 1);

    if (line == NULL)
        return NULL;
    *line = (struct line){ .len = len + 1 };
    memcpy(line->text, text, len);
    line->text[len] = '\n';
    return line;
}

/* Where there is no memory for a copy, line and line end go out one after the other. */
static void write_line(int fd, const char *text)
{
    struct line *line = new_line(text);

    if (line != NULL)
        (void)mu_files_write(fd, mu_slice(line->text, line->len), false);
    else if (mu_files_write(fd, mu_slice_str(text), false) == 0)
        (void)mu_files_write(fd, mu_slice("\n", 1), false);
    free(line);
}

void muster_events_console_all(void *ctx, const struct muster_event_record *record)
{
    (void)ctx;
    if (record->json != NULL)
        write_line(STDERR_FILENO, record->json);
}

void muster_events_console(void *ctx, const struct muster_event_record *record)
{
    if (record->source != MUSTER_EVENT_RENDEZVOUS)
        muster_events_console_all(ctx, record);
}

/* Why lines wait. */
static const char *silence(const struct mu_sink *sink)
{
    return sink->path != NULL ? "the file system does not answer" : "nobody reads it";
}

static void lose(struct mu_sink *sink, const char *reason)
{
    sink->lost++;
    if (!sink->said)
        mu_log(MUSTER_LOG_WARNING, "write %s to %s: %s; %ss are lost", sink->kind->item,
               sink->path != NULL ? sink->path : "the console", reason, sink->kind->item);
    sink->said = true;
}

/* ---- A file */

static void run_line(struct mu_file_job *job)
{
    struct line *line = MU_LIST_ITEM(job, struct line, job);

    line->errnum = mu_files_write(line->fd, mu_slice(line->text, line->len), false);
}

static void drop_line(struct mu_file_job *job)
{
    free(MU_LIST_ITEM(job, struct line, job));
}

static void on_line(struct mu_file_job *job)
{
    struct line *line = MU_LIST_ITEM(job, struct line, job);
    struct mu_sink *sink = line->sink;

    sink->waiting -= line->len;
    sink->lines--;
    if (line->errnum != 0)
        lose(sink, strerror(line->errnum));
    drop_line(job);
}

static void submit(struct mu_sink *sink, const char *text)
{
    struct line *line;

    mu_filethread_turn(sink->thread);
    if (sink->waiting + strlen(text) >= MU_SINK_BYTES_MAX) {
        lose(sink, silence(sink));
        return;
    }
    line = new_line(text);
    if (line == NULL) {
        lose(sink, muster_error_text(MUSTER_ENOMEM));
        return;
    }
    line->job = (struct mu_file_job){ .run = run_line, .done = on_line, .drop = drop_line };
    line->sink = sink;
    line->fd = sink->fd;
    sink->waiting += line->len;
    sink->lines++;
    mu_filethread_submit(sink->thread, &line->job);
}

/* NULL: there was no memory for the line. */
static void put_line(struct mu_sink *sink, const char *text)
{
    if (text == NULL)
        lose(sink, muster_error_text(MUSTER_ENOMEM));
    else
        submit(sink, text);
}

/* ---- Events and metrics */

static void on_event(void *ctx, const struct muster_event_record *record)
{
    put_line(ctx, record->json);
}

static void set_for_events(struct mu_sink *sink)
{
    muster_events_set_sink(sink != NULL ? on_event : NULL, sink);
}

static const struct kind events = { "event", "event log handler", "event log", STDERR_FILENO, set_for_events };

static void on_metric(void *ctx, const struct muster_metric *metric)
{
    char line[MU_METRIC_LINE_MAX];

    put_line(ctx, mu_metric_line(metric, line));
}

static void set_for_metrics(struct mu_sink *sink)
{
    muster_metrics_set_sink(sink != NULL ? on_metric : NULL, sink);
}

static const struct kind metrics = { "metric", "metrics sink", "metrics file", STDOUT_FILENO, set_for_metrics };

/* ---- By name */

static int open_file(struct mu_sink *sink, const char *path, struct muster_error *reterr)
{
    if (*path == '\0')
        return mu_fail(reterr, MUSTER_EINVAL, "%s '" FILE_PREFIX "': no path", sink->kind->option);
    sink->path = strdup(path);
    if (sink->path == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "%s '%s': no memory", sink->kind->file, path);
    /* Never waits: a FIFO without a reader is an error. */
    sink->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
    if (sink->fd < 0)
        return mu_fail_errno(reterr, errno, "open %s '%s'", sink->kind->file, path);
    return 0;
}

/* What the name says; -1 in `fd`: nowhere. */
static int choose(struct mu_sink *sink, const char *name, struct muster_error *reterr)
{
    if (strcmp(name, "null") == 0 || (sink->kind == &events && strcmp(name, "dynamic_rendezvous") == 0))
        return 0;
    if (strncmp(name, FILE_PREFIX, strlen(FILE_PREFIX)) == 0)
        return open_file(sink, name + strlen(FILE_PREFIX), reterr);
    if (strcmp(name, "console") != 0)
        return mu_fail(reterr, MUSTER_EINVAL, "unknown %s '%s': null, console or file:PATH", sink->kind->option, name);
    sink->fd = sink->kind->console;
    return 0;
}

static int open_sink(const struct kind *kind, const char *name, struct mu_sink **ret_sink, struct muster_error *reterr)
{
    struct mu_sink *sink = malloc(sizeof *sink);
    int rc;

    if (sink == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "%s '%s': no memory", kind->option, name);
    *sink = (struct mu_sink){ .kind = kind, .fd = -1 };
    rc = choose(sink, name, reterr);
    if (rc == 0 && sink->fd >= 0) {
        sink->thread = mu_filethread_new(&(struct mu_filethread_config){ .wake = NULL });
        if (sink->thread == NULL)
            rc = mu_fail(reterr, MUSTER_ENOMEM, "%s '%s': no memory", kind->option, name);
    }
    if (rc < 0) {
        if (sink->path != NULL && sink->fd >= 0)
            (void)close(sink->fd);
        free(sink->path);
        free(sink);
        return rc;
    }
    if (sink->fd >= 0)
        kind->set(sink);
    *ret_sink = sink;
    return 0;
}

int mu_event_sink_open(const char *name, struct mu_sink **ret_sink, struct muster_error *reterr)
{
    return open_sink(&events, name, ret_sink, reterr);
}

int mu_metric_sink_open(const char *name, struct mu_sink **ret_sink, struct muster_error *reterr)
{
    return open_sink(&metrics, name, ret_sink, reterr);
}

void mu_sink_close(struct mu_sink *sink)
{
    bool ended;

    if (sink == NULL)
        return;
    if (sink->fd >= 0)
        sink->kind->set(NULL);
    if (sink->thread != NULL) {
        (void)mu_filethread_wait(sink->thread, MU_SINK_QUIET_MS);
        mu_filethread_turn(sink->thread);
    }
    while (sink->lines > 0) { /* they hang */
        lose(sink, silence(sink));
        sink->lines--;
    }
    if (sink->lost > 0 && sink->path != NULL)
        mu_log(MUSTER_LOG_WARNING, "%s lacks %" PRIu64 " %s%s", sink->path, sink->lost, sink->kind->item,
               sink->lost == 1 ? "" : "s");
    ended = mu_filethread_free(sink->thread);
    if (sink->path != NULL && ended)
        (void)close(sink->fd);
    free(sink->path);
    free(sink);
}
