/* Our standard output or standard error, shared with the workers and with the process that started us. So it is never
 * made non-blocking: that would hold for all of them. Lines wait in a bounded queue and go out when the other side
 * takes them; nothing here waits for that.
 *
 * How it goes out is found out once:
 * - a regular file, or anything else that has no readiness (/dev/null): written to directly;
 * - a pipe or a terminal: through a description of our own, opened from /proc/self/fd/N without blocking;
 * - a socket: MSG_DONTWAIT;
 * - where none of this is possible (a terminal of another user, no /proc): a thread that writes and may block;
 * - a descriptor that is closed, or whose reader is gone (EPIPE, EIO): everything is dropped, with one warning.
 *
 * Whole lines go in. A source (one stream of one worker, or the launcher's own lines) has a share of the queue; when it
 * is used up, a source that can wait asks for room. Lines of other sources are dropped until half of the share is free
 * again; a warning (base/log.h) then says how many were dropped. Descriptors 0-2 must be open, to /dev/null if nothing
 * else, and SIGPIPE ignored. One thread: the loop's. */
#ifndef MU_LOGS_CONSOLE_UV_H
#define MU_LOGS_CONSOLE_UV_H

#include "base/error.h"
#include "base/slice.h"

#include <uv.h>

#define MU_CONSOLE_SOURCE_BYTES_MAX (1u << 20) /* waiting, of one source */
#define MU_CONSOLE_BYTES_MAX (16u << 20)       /* waiting, of all sources together */
#define MU_CONSOLE_PUT_BYTES_MAX 67000         /* prefix and text of one mu_console_put() */
#define MU_CONSOLE_LABEL_MAX 128

enum mu_console_way {
    MU_CONSOLE_DIRECT,  /* never blocks */
    MU_CONSOLE_PRIVATE, /* a description of our own */
    MU_CONSOLE_SOCKET,  /* MSG_DONTWAIT */
    MU_CONSOLE_THREAD,
    MU_CONSOLE_GONE, /* nobody there */
};

struct mu_console;
struct mu_console_source;

struct mu_console_config {
    int fd;           /* borrowed; its flags are left alone */
    const char *name; /* "standard output", for what is said; copied */
    bool thread_only; /* do not look for another way; for tests */
};

struct mu_console_stats {
    enum mu_console_way way;
    size_t waiting; /* bytes */
    uint64_t sent;  /* bytes that have gone out, or into the writer thread's hands */
    uint64_t dropped_lines, dropped_bytes;
};

/* After a failure the loop has something to close in its next turn. */
int mu_console_start(uv_loop_t *loop, const struct mu_console_config *config, struct mu_console **ret_console,
                     struct muster_error *reterr);
struct mu_console_stats mu_console_stats(const struct mu_console *console);

/* A source of lines. `label` names it when lines are dropped: "standard output of local rank 3"; `where` (NULL:
 * nowhere) is where the dropped lines can still be read. Both are copied. Given back with _release(), after which what
 * is waiting still goes out; before the console is closed. */
int mu_console_source_new(struct mu_console *console, const char *label, const char *where,
                          struct mu_console_source **ret_source, struct muster_error *reterr);
void mu_console_source_release(struct mu_console_source *source); /* NULL is fine */

/* A line, or a piece of a long one: `prefix` goes in front of its first piece, a line end behind its last. Where
 * another source comes between the pieces, the line is ended there and goes on with the prefix on a line of its own.
 * Nothing goes out before mu_console_flush(). */
void mu_console_put(struct mu_console_source *source, struct mu_slice prefix, struct mu_slice text, bool starts,
                    bool ends);
/* Whether a put of any size will be taken; for sources that can wait instead of losing lines. Always true once the
 * console is gone: there is nothing to wait for. */
bool mu_console_source_has_room(const struct mu_console_source *source);
/* Calls back once, from the loop, when half of the source's share is free. */
typedef void mu_console_room(void *ctx);
void mu_console_source_want_room(struct mu_console_source *source, mu_console_room *on_room, void *ctx);
/* Sends what can be sent now; the rest follows by itself. To be called when a batch has been put. */
void mu_console_flush(struct mu_console *console);

typedef void mu_console_closed(struct mu_console *console, void *ctx);

/* Waits up to `wait_ms` for what is queued to go out, and drops and says the rest. From here on the console belongs to
 * the loop, which frees it after on_closed (may be NULL). */
void mu_console_close(struct mu_console *console, uint32_t wait_ms, mu_console_closed *on_closed, void *ctx);

#endif
