/* The one place records pass through. As with log lines, sink and context are read together under a lock, and the sink
 * runs under it: once it is taken away it is not called any more. */
#include "events/record.h"

#include "base/clock.h"
#include "events/agent_event.h"
#include "events/json.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

enum { MESSAGE_MAX_BYTES = 2048 }; /* an error's text fits, with a step in front of it */

static struct {
    pthread_mutex_t lock;
    muster_events_sink *sink;
    void *ctx;
} out = { .lock = PTHREAD_MUTEX_INITIALIZER };

const char *muster_node_state_name(enum muster_node_state state)
{
    static const char *const names[] = { [MUSTER_NODE_INIT] = "INIT",
                                         [MUSTER_NODE_RUNNING] = "RUNNING",
                                         [MUSTER_NODE_SUCCEEDED] = "SUCCEEDED",
                                         [MUSTER_NODE_FAILED] = "FAILED" };

    return (size_t)state < sizeof names / sizeof names[0] ? names[state] : "unknown";
}

const char *mu_event_error_kind(int code)
{
    static const struct {
        int code;
        const char *kind;
    } rows[] = {
        { MUSTER_EINVAL, "ValueError" },
        { MUSTER_ENOMEM, "MemoryError" },
        { MUSTER_ETIMEOUT, "TimeoutError" },
        { MUSTER_ECONNECT, "DistNetworkError" },
        { MUSTER_ELOST, "DistNetworkError" },
        { MUSTER_ERESOLVE, "DistNetworkError" },
        { MUSTER_EADDRINUSE, "DistNetworkError" },
        { MUSTER_ESIGNAL, "SignalException" },
        { MUSTER_ERDZV_CLOSED, "RendezvousClosedError" },
        { MUSTER_ERDZV_TIMEOUT, "RendezvousTimeoutError" },
        { MUSTER_ERDZV_CONNECTION, "RendezvousConnectionError" },
        { MUSTER_ERDZV_STATE, "RendezvousStateError" },
        { MUSTER_ERDZV_GRACEFUL_EXIT, "RendezvousGracefulExitError" },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].code == code)
            return rows[i].kind;
    }
    return "RuntimeError";
}

void muster_events_set_sink(muster_events_sink *sink, void *ctx)
{
    (void)pthread_mutex_lock(&out.lock);
    out.sink = sink;
    out.ctx = ctx;
    (void)pthread_mutex_unlock(&out.lock);
}

bool mu_event_wanted(void)
{
    bool wanted;

    (void)pthread_mutex_lock(&out.lock);
    wanted = out.sink != NULL;
    (void)pthread_mutex_unlock(&out.lock);
    return wanted;
}

/* With the lock held. Events of agents and workers come with their JSON. */
static void hand_over(struct muster_event_record *record, const char *format, va_list args)
{
    char message[MESSAGE_MAX_BYTES];
    struct mu_buf json = { 0 };

    (void)vsnprintf(message, sizeof message, format, args);
    record->size = sizeof *record;
    record->message = message;
    if (record->timestamp_ms == 0)
        record->timestamp_ms = mu_wall_us() / 1000;
    if (record->source == MUSTER_EVENT_RENDEZVOUS && mu_rdzv_event_write(record, &json) == 0 &&
        mu_buf_append(&json, "", 1, MU_JSON_BYTES_MAX + 1) == 0)
        record->json = json.data;
    out.sink(out.ctx, record);
    mu_buf_done(&json);
}

void mu_event_record(struct muster_event_record record, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)pthread_mutex_lock(&out.lock);
    if (out.sink != NULL)
        hand_over(&record, format, args);
    (void)pthread_mutex_unlock(&out.lock);
    va_end(args);
}
