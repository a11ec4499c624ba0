/* Events of an agent and its workers, as lines of JSON. The fields that only PyTorch's own readers understand, the
 * inner metadata among them, are kept as they are there: JSON written as text inside of JSON. */
#include "events/agent_event.h"

#include "base/clock.h"
#include "base/texts.h"
#include "events/json.h"
#include "events/record.h"

#include <inttypes.h>
#include <stdio.h>

enum { NAME_MAX_BYTES = 64 };

MU_DEFINE_TEXTS(mu_agent_event_state_name, enum mu_agent_event_state, MU_AGENT_EVENTS)

/* One object being written. */
struct writer {
    struct mu_text text;
    bool more; /* a field is there already */
};

static void raw(struct writer *w, const char *text)
{
    mu_text_add(&w->text, "%s", text);
}

static void key(struct writer *w, const char *name)
{
    mu_text_add(&w->text, "%s\"%s\": ", w->more ? ", " : "", name);
    w->more = true;
}

static void put_slice(struct writer *w, const char *name, struct mu_slice value)
{
    key(w, name);
    mu_json_text(&w->text, value);
}

static void put_text(struct writer *w, const char *name, const char *value) /* NULL: null */
{
    if (value != NULL) {
        put_slice(w, name, mu_slice_str(value));
    } else {
        key(w, name);
        raw(w, "null");
    }
}

static void put_whole(struct writer *w, const char *name, int64_t value)
{
    key(w, name);
    mu_text_add(&w->text, "%" PRId64, value);
}

static void put_count(struct writer *w, const char *name, int64_t value) /* negative: null */
{
    if (value >= 0)
        put_whole(w, name, value);
    else
        put_text(w, name, NULL);
}

/* PyTorch writes these of a worker as lists of one. */
static void put_only(struct writer *w, const char *name, bool known, int64_t value)
{
    key(w, name);
    if (known)
        mu_text_add(&w->text, "[%" PRId64 "]", value);
    else
        raw(w, "[null]");
}

static void put_duration(struct writer *w, double duration_ms)
{
    key(w, "duration_ms");
    if (duration_ms < 0)
        raw(w, "null");
    else
        mu_json_real(&w->text, duration_ms);
}

/* Gives the bytes back to the caller. */
static int finish(struct writer *w, const char *end, struct mu_buf *out)
{
    raw(w, end);
    *out = w->text.buf;
    return w->text.failed;
}

static struct writer begin(struct mu_buf *out)
{
    struct writer w = { .text = { .buf = *out, .len_max = MU_JSON_BYTES_MAX } };

    raw(&w, "{");
    return w;
}

static void put_text_number(struct writer *w, const char *name, int64_t value)
{
    char text[MU_JSON_REAL_MAX];

    (void)snprintf(text, sizeof text, "%lld", (long long)value);
    put_text(w, name, text);
}

static void put_text_real(struct writer *w, const char *name, double value)
{
    char text[MU_JSON_REAL_MAX];

    mu_json_real_repr(value, text);
    put_text(w, name, text);
}

static int write_inner(const struct mu_agent_event *event, struct mu_buf *out)
{
    const struct mu_event_worker *worker = event->worker;
    struct writer w = begin(out);

    put_count(&w, "group_world_size", event->agent->group_world_size);
    put_text(&w, "entry_point", event->agent->entry_point);
    if (worker != NULL) {
        put_only(&w, "local_rank", true, worker->local_rank);
        put_only(&w, "role_rank", true, worker->role_rank);
        put_only(&w, "role_world_size", true, worker->role_world_size);
        put_only(&w, "exit_code", worker->has_failed, worker->exit_code);
        put_only(&w, "worker_pid", worker->has_failed && worker->pid > 0, worker->pid);
    }
    return finish(&w, "}", out);
}

static int write_inner_timer(const struct mu_timer_event *event, struct mu_buf *out)
{
    struct writer w = begin(out);

    put_text(&w, "watchdog_event", event->name);
    if (event->has_timer) {
        put_text_number(&w, "worker_pid", event->pid);
        put_text(&w, "scope_id", event->scope);
        put_text_real(&w, "expiration_time", event->expiration_s);
        put_text_number(&w, "signal", event->signal);
    }
    return finish(&w, "}", out);
}

/* The fields of all kinds of events, without the end of the line: a field may follow. PyTorch always writes 0 for the
 * time, which it documents as milliseconds. */
static void put_event(struct writer *w, const char *name, int64_t timestamp_ms, const char *state,
                      const struct mu_event_agent *agent, const struct mu_event_worker *worker, const char *raw_error,
                      struct mu_slice inner)
{
    put_text(w, "name", name);
    put_text(w, "source", worker != NULL ? "WORKER" : "AGENT");
    put_whole(w, "timestamp", timestamp_ms);
    key(w, "metadata");
    raw(w, "{");
    w->more = false;
    put_text(w, "run_id", agent->run_id);
    put_count(w, "global_rank", worker != NULL ? worker->rank : -1);
    put_count(w, "group_rank", agent->group_rank);
    put_text(w, "worker_id", worker != NULL ? worker->id : NULL);
    put_text(w, "role", agent->role);
    put_text(w, "hostname", agent->hostname);
    put_text(w, "state", state);
    put_whole(w, "total_run_time", agent->total_run_time_s);
    put_text(w, "rdzv_backend", agent->rdzv_backend);
    put_text(w, "raw_error", raw_error);
    put_slice(w, "metadata", inner);
    put_whole(w, "agent_restarts", agent->agent_restarts);
}

static void name_of(const struct mu_agent_event *event, char ret_name[NAME_MAX_BYTES])
{
    (void)snprintf(ret_name, NAME_MAX_BYTES, "torchelastic.worker.status.%s", mu_agent_event_state_name(event->state));
}

int mu_agent_event_write(const struct mu_agent_event *event, struct mu_buf *out)
{
    char name[NAME_MAX_BYTES];
    struct mu_buf inner = { 0 };
    int rc = write_inner(event, &inner);
    struct writer w = begin(out);

    name_of(event, name);
    put_event(&w, name, event->timestamp_ms, mu_agent_event_state_name(event->state), event->agent, event->worker,
              event->raw_error, mu_buf_slice(&inner));
    put_duration(&w, event->duration_ms);
    mu_buf_done(&inner);
    return finish(&w, "}}", out) < 0 ? w.text.failed : rc;
}

/* These have no duration at all. */
int mu_timer_event_write(const struct mu_timer_event *event, struct mu_buf *out)
{
    struct mu_buf inner = { 0 };
    int rc = write_inner_timer(event, &inner);
    struct writer w = begin(out);

    put_event(&w, event->name, event->timestamp_ms, "RUNNING", event->agent, NULL, NULL, mu_buf_slice(&inner));
    mu_buf_done(&inner);
    return finish(&w, "}}", out) < 0 ? w.text.failed : rc;
}

int mu_rdzv_event_write(const struct muster_event_record *record, struct mu_buf *out)
{
    struct writer w = begin(out);

    put_text(&w, "name", record->name);
    put_text(&w, "run_id", record->run_id);
    put_text(&w, "message", record->message);
    put_text(&w, "hostname", record->hostname);
    put_whole(&w, "pid", record->pid);
    put_text(&w, "node_state", muster_node_state_name(record->node_state));
    put_text(&w, "master_endpoint", "");
    put_count(&w, "rank", record->rank);
    put_count(&w, "local_id", record->local_id);
    put_text(&w, "error_trace", record->error != NULL ? record->error : "");
    return finish(&w, "}", out);
}

static enum muster_node_state node_state_of(enum mu_agent_event_state state)
{
    if (state == MU_EVENT_START)
        return MUSTER_NODE_INIT;
    if (state == MU_EVENT_SUCCEEDED)
        return MUSTER_NODE_SUCCEEDED;
    return state == MU_EVENT_FAILED || state == MU_EVENT_TERMINATED ? MUSTER_NODE_FAILED : MUSTER_NODE_RUNNING;
}

/* Takes the bytes of `json`; an empty one stands for a lack of memory. */
static void record(const struct mu_event_agent *agent, struct muster_event_record told, struct mu_buf *json, int rc)
{
    told.run_id = agent->run_id;
    told.hostname = agent->hostname;
    told.local_id = -1;
    if (rc == 0 && mu_buf_append(json, "", 1, MU_JSON_BYTES_MAX + 1) == 0)
        told.json = json->data;
    mu_event_record(told, "%s", told.message);
    mu_buf_done(json);
}

void mu_agent_event_record(const struct mu_agent_event *event)
{
    const struct mu_event_worker *worker = event->worker;
    struct mu_agent_event stamped = *event;
    char name[NAME_MAX_BYTES];
    struct mu_buf json = { 0 };
    int rc;

    if (!mu_event_wanted())
        return;
    if (stamped.timestamp_ms == 0)
        stamped.timestamp_ms = mu_wall_us() / 1000;
    rc = mu_agent_event_write(&stamped, &json);
    name_of(event, name);
    record(event->agent,
           (struct muster_event_record){
               .name = name,
               .message = mu_agent_event_state_name(event->state),
               .pid = worker != NULL && worker->pid > 0 ? worker->pid : -1,
               .rank = worker != NULL ? worker->rank : -1,
               .node_state = node_state_of(event->state),
               .error = event->raw_error,
               .timestamp_ms = stamped.timestamp_ms,
               .source = worker != NULL ? MUSTER_EVENT_WORKER : MUSTER_EVENT_AGENT,
           },
           &json, rc);
}

void mu_timer_event_record(const struct mu_timer_event *event)
{
    struct mu_timer_event stamped = *event;
    struct mu_buf json = { 0 };
    int rc;

    if (!mu_event_wanted())
        return;
    if (stamped.timestamp_ms == 0)
        stamped.timestamp_ms = mu_wall_us() / 1000;
    rc = mu_timer_event_write(&stamped, &json);
    record(event->agent,
           (struct muster_event_record){
               .name = event->name,
               .message = event->name,
               .pid = event->has_timer ? event->pid : -1,
               .rank = -1,
               .node_state = MUSTER_NODE_RUNNING,
               .timestamp_ms = stamped.timestamp_ms,
               .source = MUSTER_EVENT_AGENT,
           },
           &json, rc);
}
