/* One stream of one worker that passes through us.
 *
 * The pipe is readable: its bytes are written to the file as they are, cut into lines for the console and, if they match,
 * for the filtered file; this goes on until the pipe is at its end, and what was left of a line is then shown as one.
 * The console has no room: its lines are left where they are, in the file, and read from there when it has; meanwhile
 * the pipe is read as ever. A worker that dies mid-line has written all it could: the pipe holds it, and is read to its
 * end. If somebody else holds the other end of the pipe there is no end; the owner then ends it when it has waited
 * enough. */
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
    uint64_t shown;                      /* lagging: up to where in the file the console has seen it */
    bool lagging;
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
    mu_logfile_write(tee->filtered, mu_buf_slice(&tee->scratch));
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

/* Returns how many bytes at the end were left for later, which is only ever done if that is `possible`. */
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
    uint64_t lost = tee->file != NULL ? tee->file->lost : 0;
    size_t left;

    tee->bytes += bytes.len;
    if (tee->file != NULL)
        mu_logfile_write(tee->file, bytes);
    if (tee->tail != NULL)
        mu_tail_add(tee->tail, bytes);
    if (tee->filtered != NULL)
        filter(tee, bytes);
    if (tee->lagging) /* it has its turn; what is not in the file will not be shown either, and the file says so */
        return;
    left = show(tee, bytes, tee->file != NULL && tee->file->lost == lost);
    if (left == 0)
        return;
    tee->lagging = true;
    tee->shown = tee->file->written - left;
    mu_console_source_want_room(tee->source, catch_up, tee);
}

static void show_rest(struct mu_tee *tee)
{
    struct mu_lines_piece piece;

    if (mu_lines_end(&tee->lines, &piece))
        show_piece(tee, &piece);
    mu_console_flush(tee->console);
}

/* The console has room: what the file holds meanwhile is shown, until it is full again or there is no more. */
static void catch_up(void *ctx)
{
    struct mu_tee *tee = ctx;
    char chunk[MU_TEE_CHUNK_BYTES];

    while (tee->lagging && mu_console_source_has_room(tee->source)) {
        ssize_t got = pread(tee->file->fd, chunk, sizeof chunk, (off_t)tee->shown);

        if (got > 0)
            tee->shown += (size_t)got - show(tee, mu_slice(chunk, (size_t)got), true);
        if (got <= 0 || tee->shown >= tee->file->written) /* also when somebody has cut the file */
            tee->lagging = false;
    }
    mu_console_flush(tee->console);
    if (tee->lagging) {
        mu_console_source_want_room(tee->source, catch_up, tee);
    } else if (tee->ended) {
        show_rest(tee);
        tee->on_ended(tee->ctx);
    }
}

void mu_tee_end(struct mu_tee *tee)
{
    struct mu_lines_piece piece;

    assert(!tee->ended);
    tee->ended = true;
    (void)uv_poll_stop(&tee->poll);
    if (tee->filtered != NULL && mu_lines_end(&tee->filter_lines, &piece))
        filter_piece(tee, &piece);
    mu_console_flush(tee->console);
    if (tee->lagging)
        return;
    show_rest(tee);
    tee->on_ended(tee->ctx);
}

/* Until there is nothing to read, or `bytes_max` have been read. */
static void read_some(struct mu_tee *tee, size_t bytes_max)
{
    char chunk[MU_TEE_CHUNK_BYTES];

    for (size_t total = 0; total < bytes_max;) {
        ssize_t got = read(tee->fd, chunk, sizeof chunk);

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
    read_some(poll->data, MU_TEE_TURN_BYTES);
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
        read_some(tee, MU_TEE_DRAIN_BYTES);
}

bool mu_tee_has_ended(const struct mu_tee *tee)
{
    return tee->ended;
}

uint64_t mu_tee_lag(const struct mu_tee *tee)
{
    return tee->lagging ? tee->file->written - tee->shown : 0;
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
    if (tee->lagging)
        mu_log(MUSTER_LOG_WARNING, "the last %" PRIu64 " bytes of '%s' were not shown: the console does not keep up",
               mu_tee_lag(tee), tee->file->path);
    else if (!tee->ended)
        show_rest(tee);
    uv_close((uv_handle_t *)&tee->poll, on_poll_closed);
}
