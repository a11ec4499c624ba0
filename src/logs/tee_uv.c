/* One stream of one worker that passes through us.
 *
 * Happy path: bytes of the pipe are written to the file as they are, and cut into lines for the console and, if they
 * match, for the filtered file. At the end of the pipe, the rest of a line is shown as a line. If the console has no
 * room, its lines stay in the file and are read from there later; the pipe is read meanwhile. If a file has no room,
 * the pipe is not read until it has. If its file system is silent, the pipe is read all the same: lines that only the
 * file has are not shown (a warning says so), and later lines are shown as if there were no file. If another process
 * holds the other end of the pipe, it has no end; the owner ends the tee after a time. */
#include "logs/tee_uv.h"

#include "base/log.h"
#include "logs/lines.h"
#include "logs/tail.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static_assert(MU_PREFIX_MAX + MU_LINES_LINE_MAX + 2 <= MU_CONSOLE_PUT_BYTES_MAX, "a whole piece fits");

enum { SCRATCH_BYTES_MAX = MU_PREFIX_MAX + MU_LINES_LINE_MAX + 1 };

struct mu_tee {
    uv_poll_t poll;
    int fd;
    struct mu_logfile *file, *filtered;
    const struct mu_filters *filters;
    struct mu_console *console;
    struct mu_console_source *source;
    struct mu_lines lines, filter_lines; /* the latter keep up when the console does not */
    bool lagging;                        /* the console has seen the file up to its mark */
    bool paused;                         /* the pipe is not read: a file is full */
    struct mu_tail *tail;
    struct mu_buf scratch; /* a line for the filtered file */
    bool matched;          /* the line that is given away in pieces */
    bool ended;
    uint64_t bytes;
    mu_tee_ended *on_ended;
    mu_tee_closed *on_closed;
    void *ctx;
    size_t prefix_len;
    char prefix[];
};

/* A line longer than MU_LINES_LINE_MAX is judged by its beginning. */
static void filter_piece(struct mu_tee *tee, const struct mu_lines_piece *piece)
{
    if (piece->starts)
        tee->matched = mu_filters_match(tee->filters, piece->text);
    if (!tee->matched)
        return;
    tee->scratch.len = 0;
    if ((piece->starts && mu_buf_append(&tee->scratch, tee->prefix, tee->prefix_len, SCRATCH_BYTES_MAX) < 0) ||
        mu_buf_append(&tee->scratch, piece->text.data, piece->text.len, SCRATCH_BYTES_MAX) < 0 ||
        (piece->ends && mu_buf_append(&tee->scratch, "\n", 1, SCRATCH_BYTES_MAX) < 0)) {
        mu_logfile_lose(tee->filtered, piece->text.len, ENOMEM);
        return;
    }
    (void)mu_logfile_write(tee->filtered, mu_buf_slice(&tee->scratch));
}

static void filter(struct mu_tee *tee, struct mu_slice bytes)
{
    struct mu_lines_piece piece;

    while (mu_lines_next(&tee->filter_lines, &bytes, &piece))
        filter_piece(tee, &piece);
}

static void show_piece(struct mu_tee *tee, const struct mu_lines_piece *piece)
{
    mu_console_put(tee->source, mu_slice(tee->prefix, tee->prefix_len), piece->text, piece->starts, piece->ends);
}

/* Returns how many bytes at the end were left for later; always 0 unless that is `possible`. */
static size_t show(struct mu_tee *tee, struct mu_slice bytes, bool possible)
{
    struct mu_lines_piece piece;

    while ((!possible || mu_console_source_has_room(tee->source)) && mu_lines_next(&tee->lines, &bytes, &piece))
        show_piece(tee, &piece);
    return bytes.len;
}

static void catch_up(void *ctx);

static void take(struct mu_tee *tee, struct mu_slice bytes)
{
    bool in_file = tee->file != NULL && mu_logfile_write(tee->file, bytes);
    size_t left;

    tee->bytes += bytes.len;
    if (tee->tail != NULL)
        mu_tail_add(tee->tail, bytes);
    if (tee->filtered != NULL)
        filter(tee, bytes);
    if (tee->lagging) /* it is read from the file later; what the file has lost is not shown either, and the file
                       * reports it */
        return;
    left = show(tee, bytes, in_file && !mu_disk_is_silent(tee->file->disk));
    if (left == 0)
        return;
    tee->lagging = true;
    mu_logfile_set_mark(tee->file, left);
    mu_console_source_want_room(tee->source, catch_up, tee);
}

static void show_rest(struct mu_tee *tee)
{
    struct mu_lines_piece piece;

    if (mu_lines_end(&tee->lines, &piece))
        show_piece(tee, &piece);
    mu_console_flush(tee->console);
}

/* The console has seen all that it will see of the file. */
static void end_lag(struct mu_tee *tee)
{
    tee->lagging = false;
    if (!tee->ended)
        return;
    show_rest(tee);
    tee->on_ended(tee->ctx);
}

static void say_not_shown(const struct mu_tee *tee, const char *why)
{
    mu_log(MUSTER_LOG_WARNING, "the last %" PRIu64 " bytes of '%s' were not shown: %s", mu_tee_lag(tee),
           tee->file->path, why);
}

static void on_read_again(void *ctx, struct mu_slice bytes)
{
    struct mu_tee *tee = ctx;

    mu_logfile_advance(tee->file, bytes.len - show(tee, bytes, true));
    mu_console_flush(tee->console);
    if (bytes.len == 0) /* the file was truncated */
        end_lag(tee);
    else
        catch_up(tee);
}

/* The console has room, or the file has moved: shows the lines that are only in the file. */
static void catch_up(void *ctx)
{
    struct mu_tee *tee = ctx;

    if (!tee->lagging || tee->file->reading != NULL)
        return;
    if (mu_tee_lag(tee) == 0) {
        end_lag(tee);
    } else if (!mu_console_source_has_room(tee->source)) {
        mu_console_source_want_room(tee->source, catch_up, tee);
    } else if (mu_logfile_can_read(tee->file) && mu_logfile_start_read(tee->file, on_read_again, tee) < 0) {
        say_not_shown(tee, muster_error_text(MUSTER_ENOMEM));
        end_lag(tee);
    }
}

void mu_tee_end(struct mu_tee *tee)
{
    struct mu_lines_piece piece;

    assert(!tee->ended);
    tee->ended = true;
    tee->paused = false;
    (void)uv_poll_stop(&tee->poll);
    if (tee->filtered != NULL && mu_lines_end(&tee->filter_lines, &piece))
        filter_piece(tee, &piece);
    mu_console_flush(tee->console);
    if (tee->lagging)
        return;
    show_rest(tee);
    tee->on_ended(tee->ctx);
}

static bool has_full_file(const struct mu_tee *tee)
{
    return (tee->file != NULL && mu_logfile_is_full(tee->file)) ||
           (tee->filtered != NULL && mu_logfile_is_full(tee->filtered));
}

/* Until there is nothing to read, or `bytes_max` have been read, or a file is full and the worker `waits` for it. */
static void read_some(struct mu_tee *tee, size_t bytes_max, bool waits)
{
    char chunk[MU_TEE_CHUNK_BYTES];

    for (size_t total = 0; total < bytes_max;) {
        ssize_t got;

        if (waits && has_full_file(tee)) {
            tee->paused = true;
            (void)uv_poll_stop(&tee->poll);
            break;
        }
        got = read(tee->fd, chunk, sizeof chunk);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            break;
        if (got <= 0) { /* a pipe does not fail in any other way */
            mu_tee_end(tee);
            return;
        }
        take(tee, mu_slice(chunk, (size_t)got));
        total += (size_t)got;
        if ((size_t)got < sizeof chunk && bytes_max == MU_TEE_TURN_BYTES)
            break; /* most likely empty: do not ask just to be told so */
    }
    mu_console_flush(tee->console);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    (void)status; /* whatever it is, the read tells */
    (void)events;
    read_some(poll->data, MU_TEE_TURN_BYTES, true);
}

void mu_tee_go_on(struct mu_tee *tee)
{
    int rc;

    if (tee->paused && !has_full_file(tee)) {
        tee->paused = false;
        /* Cannot fail: the descriptor is good, and nothing else watches it. */
        rc = uv_poll_start(&tee->poll, UV_READABLE, on_readable);
        assert(rc == 0);
        (void)rc;
    }
    if (!tee->lagging)
        return;
    if (mu_disk_is_silent(tee->file->disk)) {
        say_not_shown(tee, "the file system does not answer");
        mu_logfile_stop_read(tee->file);
        end_lag(tee);
    } else {
        catch_up(tee);
    }
}

static void free_tee(struct mu_tee *tee)
{
    mu_console_source_release(tee->source);
    mu_lines_done(&tee->lines);
    mu_lines_done(&tee->filter_lines);
    mu_buf_done(&tee->scratch);
    free(tee->tail);
    free(tee);
}

int mu_tee_start(uv_loop_t *loop, const struct mu_tee_config *config, struct mu_tee **ret_tee,
                 struct muster_error *reterr)
{
    size_t prefix_len = strlen(config->prefix);
    struct mu_tee *tee = calloc(1, sizeof *tee + prefix_len + 1);
    int rc;

    if (tee == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "out of memory");
    tee->fd = config->fd;
    tee->file = config->file;
    tee->filters = config->filters;
    tee->filtered = config->filtered;
    tee->console = config->console;
    tee->on_ended = config->on_ended;
    tee->ctx = config->ctx;
    assert(prefix_len < MU_PREFIX_MAX);
    tee->prefix_len = prefix_len;
    memcpy(tee->prefix, config->prefix, prefix_len);
    if (config->keep_tail) {
        tee->tail = calloc(1, sizeof *tee->tail);
        if (tee->tail == NULL) {
            free_tee(tee);
            return mu_fail(reterr, MUSTER_ENOMEM, "out of memory");
        }
    }
    rc = mu_console_source_new(config->console, config->label, config->where, &tee->source, reterr);
    if (rc == 0 && (rc = uv_poll_init(loop, &tee->poll, tee->fd)) < 0)
        rc = mu_fail_errno(reterr, -rc, "watch the pipe");
    if (rc < 0) {
        free_tee(tee);
        return rc;
    }
    tee->poll.data = tee;
    /* Cannot fail: the descriptor is good, and nothing else watches it. */
    rc = uv_poll_start(&tee->poll, UV_READABLE, on_readable);
    assert(rc == 0);
    *ret_tee = tee;
    return 0;
}

void mu_tee_drain(struct mu_tee *tee)
{
    if (!tee->ended)
        read_some(tee, MU_TEE_DRAIN_BYTES, false);
}

bool mu_tee_has_ended(const struct mu_tee *tee)
{
    return tee->ended;
}

uint64_t mu_tee_lag(const struct mu_tee *tee)
{
    return tee->lagging ? mu_logfile_behind(tee->file) : 0;
}

uint64_t mu_tee_bytes(const struct mu_tee *tee)
{
    return tee->bytes;
}

int mu_tee_tail(const struct mu_tee *tee, struct mu_buf *ret)
{
    return tee->tail != NULL ? mu_tail_text(tee->tail, ret) : mu_buf_assign(ret, mu_slice(NULL, 0));
}

static void on_poll_closed(uv_handle_t *handle)
{
    struct mu_tee *tee = handle->data;
    mu_tee_closed *on_closed = tee->on_closed;
    void *ctx = tee->ctx;

    (void)close(tee->fd);
    free_tee(tee);
    on_closed(ctx);
}

void mu_tee_close(struct mu_tee *tee, mu_tee_closed *on_closed)
{
    assert(tee->on_closed == NULL);
    tee->on_closed = on_closed;
    if (tee->lagging) {
        say_not_shown(tee, "the console does not keep up");
        mu_logfile_stop_read(tee->file);
    } else if (!tee->ended) {
        show_rest(tee);
    }
    uv_close((uv_handle_t *)&tee->poll, on_poll_closed);
}
