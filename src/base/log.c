/* The one place log lines pass through. The sink may be changed while other threads log: sink and context are read
 * together under a lock, and the sink itself runs under it, so that lines never mix. Whether a line is shown is known
 * without the lock: a line that is not shown costs reading one number. */
#include "base/log.h"

#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

enum { LINE_MAX_BYTES = 1024 };

static struct {
    pthread_mutex_t lock;
    muster_log_sink *sink;
    void *ctx;
    enum muster_log_level least;
} out = { .lock = PTHREAD_MUTEX_INITIALIZER, .least = MUSTER_LOG_DEBUG };

static atomic_int shown_from = INT_MAX; /* the least level that somebody sees; INT_MAX: there is no sink */

const char *muster_log_level_name(enum muster_log_level level)
{
    switch (level) {
#define X(name, number, text)                                                                                          \
    case MUSTER_LOG_##name:                                                                                            \
        return text;
        MUSTER_LOG_LEVELS(X)
#undef X
    }
    return "unknown";
}

/* With the lock held. */
static void note_shown(void)
{
    atomic_store_explicit(&shown_from, out.sink != NULL ? (int)out.least : INT_MAX, memory_order_relaxed);
}

void muster_log_set_sink(muster_log_sink *sink, void *ctx)
{
    (void)pthread_mutex_lock(&out.lock);
    out.sink = sink;
    out.ctx = ctx;
    note_shown();
    (void)pthread_mutex_unlock(&out.lock);
}

void muster_log_set_level(enum muster_log_level least)
{
    (void)pthread_mutex_lock(&out.lock);
    out.least = least;
    note_shown();
    (void)pthread_mutex_unlock(&out.lock);
}

bool mu_log_shows(enum muster_log_level level)
{
    return (int)level >= atomic_load_explicit(&shown_from, memory_order_relaxed);
}

bool mu_log_has_sink(void)
{
    return atomic_load_explicit(&shown_from, memory_order_relaxed) != INT_MAX;
}

void mu_log_make_plain(char *line)
{
    for (char *c = line; *c != '\0'; c++) {
        unsigned char byte = (unsigned char)c[0], next = (unsigned char)c[1];

        if ((byte < ' ' && byte != '\t') || byte == 0x7f)
            c[0] = '?';
        else if (byte == 0xc2 && next >= 0x80 && next < 0xa0) /* the other control characters */
            c[0] = c[1] = '?';
    }
}

void mu_log(enum muster_log_level level, const char *format, ...)
{
    char line[LINE_MAX_BYTES];
    va_list args;

    if (!mu_log_shows(level))
        return;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    mu_log_make_plain(line);
    (void)pthread_mutex_lock(&out.lock);
    if (out.sink != NULL)
        out.sink(out.ctx, level, line);
    (void)pthread_mutex_unlock(&out.lock);
}

bool mu_log_allowed(struct mu_log_limit *limit, uint64_t now_ms, uint64_t *ret_dropped)
{
    uint64_t back = (now_ms - limit->since_ms) * limit->per_s / 1000;

    if (now_ms < limit->since_ms || limit->used == 0) {
        limit->since_ms = now_ms;
    } else if (back > 0) {
        limit->used = back >= limit->used ? 0 : limit->used - (uint32_t)back;
        limit->since_ms += back * 1000 / limit->per_s;
    }
    if (limit->used >= limit->burst) {
        limit->dropped++;
        return false;
    }
    limit->used++;
    *ret_dropped = limit->dropped;
    limit->dropped = 0;
    return true;
}
