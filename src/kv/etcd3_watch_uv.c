/* A watch is a stream:
 *
 *   IDLE --> OPENING --created--> OPEN       what comes is told, and the next revision is remembered
 *    ^          |                  |
 *    +--pause---+-- end, silence --+-- compacted, or a store that is behind us --> STANDING until it is closed */
#include "kv/etcd3_parts_uv.h"
#include "kv/later_uv.h"

#include <assert.h>
#include <stdlib.h>

enum {
    OPEN_MS = 10000,     /* for a stream's head, at all servers; then it is told and tried anew */
    PAUSE_FIRST_MS = 50, /* until a stream that ended is opened again: doubled each time, */
    PAUSE_MAX_MS = 2000, /* up to this, +- 50 percent */
    PROBE_MS = 2000,     /* for the answer of a server that was silent */
    CREATED_MS = 5000,   /* for etcd's confirmation on an open stream */
};

enum watch_state { WATCH_IDLE, WATCH_OPENING, WATCH_OPEN, WATCH_STANDING };

struct mu_etcd3_watch {
    struct mu_etcd3 *etcd;
    const struct mu_etcd3_watch_ops *ops;
    void *ctx;
    enum watch_state state;
    struct mu_etcd3_op range; /* key, prefix; revision: the next that counts, 0: not known yet */
    struct mu_http_request http;
    struct mu_buf body;
    struct mu_etcd3_stream stream;
    struct mu_etcd3_call probe;
    struct mu_later news; /* there are bytes to be read */
    uv_timer_t timer;     /* a pause is over; or: is the server still there? */
    unsigned handles;
    unsigned failures, token_number;
    uint64_t opened_ms;
    uint64_t renew_ms; /* when its stream is opened anew, if that says nothing until then */
    bool streaming, probing, closed;
    enum told { NOTHING, HEARD, TROUBLE } told; /* last, by on_trouble */
    char *key;
    char what[160];
};

static void open_stream(struct mu_etcd3_watch *watch);
static void arm_check(struct mu_etcd3_watch *watch);

static void free_watch_if_over(struct mu_etcd3_watch *watch)
{
    if (!watch->closed || watch->handles > 0 || watch->streaming || watch->probing)
        return;
    mu_buf_done(&watch->body);
    mu_etcd3_stream_done(&watch->stream);
    free(watch->key);
    free(watch);
}

static void on_watch_part_closed(void *ctx)
{
    struct mu_etcd3_watch *watch = ctx;

    watch->handles--;
    free_watch_if_over(watch);
}

static void on_watch_handle_closed(uv_handle_t *handle)
{
    on_watch_part_closed(handle->data);
}

static void tell_trouble(struct mu_etcd3_watch *watch, const struct muster_error *error)
{
    enum told now = error != NULL ? TROUBLE : HEARD;

    if (watch->closed || watch->told == now)
        return;
    watch->told = now;
    if (watch->ops->on_trouble != NULL)
        watch->ops->on_trouble(watch, error, watch->ctx);
}

static void on_pause_over(uv_timer_t *timer)
{
    open_stream(timer->data);
}

/* The stream is no good: end it, tell, and open another one after a pause. */
static void start_over(struct mu_etcd3_watch *watch, const struct muster_error *error)
{
    struct mu_etcd3 *etcd = watch->etcd;
    uint64_t pause_ms = PAUSE_FIRST_MS;

    if (watch->streaming)
        mu_http_cancel(&watch->http);
    watch->state = WATCH_IDLE;
    for (unsigned i = 0; i < watch->failures && pause_ms < PAUSE_MAX_MS; i++)
        pause_ms *= 2;
    watch->failures++;
    tell_trouble(watch, error);
    if (!watch->closed && watch->state == WATCH_IDLE)
        (void)uv_timer_start(&watch->timer, on_pause_over,
                             mu_rng_jitter(&etcd->rng, pause_ms < PAUSE_MAX_MS ? pause_ms : PAUSE_MAX_MS, 50), 0);
}

static void stand_still(struct mu_etcd3_watch *watch, int64_t compact_revision)
{
    if (watch->streaming)
        mu_http_cancel(&watch->http);
    watch->state = WATCH_STANDING;
    (void)uv_timer_stop(&watch->timer);
    watch->ops->on_compacted(watch, compact_revision, watch->ctx);
}

/* ---- Is the server still there, and still the same? ---- */

/* The revision of the store, by all its members, is behind ours: it is another store. */
static bool is_behind(const struct mu_etcd3_watch *watch, int64_t revision)
{
    return watch->range.revision > 0 && revision + 1 < watch->range.revision;
}

static void on_probed(struct mu_etcd3_call *call)
{
    struct mu_etcd3_watch *watch = call->ctx;
    bool was_open = watch->state == WATCH_OPEN && call->only > 0 && call->only - 1 == watch->http.endpoint;

    watch->probing = false;
    if (watch->closed) {
        free_watch_if_over(watch);
    } else if (call->rc == 0 && watch->state != WATCH_STANDING && is_behind(watch, call->answer.revision)) {
        stand_still(watch, 0);
    } else if (watch->state == WATCH_IDLE && !watch->streaming && !uv_is_active((uv_handle_t *)&watch->timer)) {
        if (call->rc == 0 || call->only > 0) /* it was for the sake of a log-in; or it was in the way of that */
            open_stream(watch);
        else
            start_over(watch, &call->error);
    } else if (call->rc < 0 && was_open) {
        mu_http_give_up(watch->etcd->http, watch->http.endpoint);
        start_over(watch, &call->error);
    } else if (was_open) {
        arm_check(watch);
    }
    mu_etcd3_answer_done(&call->answer);
}

static void probe(struct mu_etcd3_watch *watch, unsigned only)
{
    if (watch->probing)
        return;
    watch->probing = true;
    watch->probe = (struct mu_etcd3_call){
        .request = { .kind = MU_ETCD3_RANGE,
                     .range = { .key = watch->range.key, .prefix = watch->range.prefix, .count_only = true } },
        .timeout_ms = only > 0 ? PROBE_MS : OPEN_MS,
        .only = only,
        .done = on_probed,
        .ctx = watch
    };
    mu_etcd3_call(watch->etcd, &watch->probe);
}

static void on_check(uv_timer_t *timer)
{
    struct mu_etcd3_watch *watch = timer->data;
    const struct mu_http *http = watch->etcd->http;
    uint64_t now_ms = uv_now(watch->etcd->loop);
    struct muster_error error;

    if (watch->state == WATCH_OPENING && now_ms - watch->opened_ms >= CREATED_MS && watch->http.status != 0) {
        (void)mu_fail(&error, MUSTER_ETIMEOUT, "%s: %s: the watch is not confirmed", watch->what,
                      mu_http_endpoint(http, watch->http.endpoint));
        mu_http_give_up(watch->etcd->http, watch->http.endpoint);
        start_over(watch, &error);
    } else if (watch->state == WATCH_OPEN && now_ms >= watch->renew_ms) {
        watch->state = WATCH_IDLE; /* its end opens the next one, from the same revision on */
        mu_http_cancel(&watch->http);
    } else if (watch->state == WATCH_OPEN &&
               now_ms - mu_http_answered_ms(http, watch->http.endpoint) >= MU_ETCD3_SILENT_MS) {
        (void)uv_timer_start(&watch->timer, on_check, PROBE_MS * 2, 0); /* if the one under way is for another server */
        probe(watch, watch->http.endpoint + 1);
    } else {
        arm_check(watch);
    }
}

/* Armed for the moment when the server has been silent for too long. */
static void arm_check(struct mu_etcd3_watch *watch)
{
    uint64_t now_ms = uv_now(watch->etcd->loop), at_ms = watch->opened_ms + CREATED_MS;

    if (watch->state == WATCH_OPEN) {
        at_ms = mu_http_answered_ms(watch->etcd->http, watch->http.endpoint) + MU_ETCD3_SILENT_MS;
        at_ms = at_ms < watch->renew_ms ? at_ms : watch->renew_ms;
    } else if (at_ms <= now_ms) {
        at_ms = now_ms + CREATED_MS;
    }
    (void)uv_timer_start(&watch->timer, on_check, at_ms > now_ms ? at_ms - now_ms : 1, 0);
}

/* ---- What a stream says ---- */

static void take_created(struct mu_etcd3_watch *watch, const struct mu_etcd3_message *message)
{
    watch->state = WATCH_OPEN;
    watch->failures = 0;
    if (watch->range.revision == 0)
        watch->range.revision = message->revision + 1;
    arm_check(watch);
    /* A member may lag behind; only a read that all agree on tells whether the store does. */
    if (is_behind(watch, message->revision))
        probe(watch, watch->http.endpoint + 1);
    tell_trouble(watch, NULL);
}

static void take_events(struct mu_etcd3_watch *watch, const struct mu_etcd3_message *message)
{
    const struct mu_etcd3_event *events = message->events;
    size_t count = message->events_count;
    int64_t newest;

    while (count > 0 && events->kv.mod < watch->range.revision) { /* told before */
        events++;
        count--;
    }
    if (count == 0)
        return;
    newest = events[count - 1].kv.mod;
    watch->range.revision = newest + 1;
    watch->ops->on_events(watch, events, count, newest, watch->ctx);
}

static void take_end(struct mu_etcd3_watch *watch, const struct mu_etcd3_message *message)
{
    struct muster_error error;

    if (message->compact_revision > 0) {
        stand_still(watch, message->compact_revision);
        return;
    }
    (void)mu_etcd3_fail(message->code != 0 ? message->code : MU_ETCD3_CANCELED, message->message, watch->http.status,
                        &error);
    (void)mu_wrap(&error, error.code, "%s: %s", watch->what, mu_http_endpoint(watch->etcd->http, watch->http.endpoint));
    if (mu_etcd3_advise(message->code, message->message) == MU_ETCD3_LOG_IN)
        mu_etcd3_drop_token(watch->etcd, watch->token_number);
    else
        mu_http_give_up(watch->etcd->http, watch->http.endpoint);
    start_over(watch, &error);
}

/* Afterwards the watch may be closed, or have another stream. */
static void take_message(struct mu_etcd3_watch *watch, const struct mu_etcd3_message *message)
{
    if (message->created && !message->canceled && message->code == 0)
        take_created(watch, message);
    if (watch->closed)
        return;
    if (message->code != 0 || message->canceled)
        take_end(watch, message);
    else if (message->events_count > 0)
        take_events(watch, message);
    else if (watch->state == WATCH_OPEN && !message->created && message->revision >= watch->range.revision)
        watch->range.revision = message->revision + 1; /* nothing older will come */
}

static bool is_listening(const struct mu_etcd3_watch *watch)
{
    return !watch->closed && (watch->state == WATCH_OPENING || watch->state == WATCH_OPEN);
}

static void read_stream(struct mu_etcd3_watch *watch)
{
    struct muster_error error;
    int rc = 1;

    while (is_listening(watch) && rc > 0) {
        struct mu_etcd3_message message = { 0 };

        rc = mu_etcd3_stream_next(&watch->stream, &message, &error);
        if (rc > 0)
            take_message(watch, &message);
        mu_etcd3_message_done(&message);
    }
    if (rc >= 0 || !is_listening(watch))
        return;
    (void)mu_wrap(&error, rc, "%s: %s: HTTP %u", watch->what, mu_http_endpoint(watch->etcd->http, watch->http.endpoint),
                  watch->http.status);
    mu_http_give_up(watch->etcd->http, watch->http.endpoint);
    start_over(watch, &error);
}

static void on_news(void *ctx)
{
    read_stream(ctx);
}

/* All nodes of a round see the same events at the same time: jitter keeps them from reconnecting together. */
static void put_renewal_off(struct mu_etcd3_watch *watch)
{
    struct mu_etcd3 *etcd = watch->etcd;

    watch->renew_ms = uv_now(etcd->loop) + mu_rng_jitter(&etcd->rng, etcd->renew_ms, 25);
}

/* Inside of libcurl: nothing may be told from here. */
static int on_chunk(struct mu_http_request *http, struct mu_slice bytes)
{
    struct mu_etcd3_watch *watch = http->ctx;
    int rc = mu_etcd3_stream_feed(&watch->stream, bytes, &http->error);

    put_renewal_off(watch);
    if (rc == 0 && !watch->closed)
        mu_later_turn(&watch->news, on_news, watch);
    return rc;
}

static void on_stream_retry(struct mu_http_request *http, const struct muster_error *error)
{
    tell_trouble(http->ctx, error);
}

static void on_stream_end(struct mu_http_request *http)
{
    struct mu_etcd3_watch *watch = http->ctx;
    struct muster_error error = http->error;

    watch->streaming = false;
    if (watch->closed) {
        free_watch_if_over(watch);
        return;
    }
    if (is_listening(watch)) /* what came before the end */
        read_stream(watch);
    if (watch->closed)
        return;
    if (is_listening(watch)) {
        if (http->rc == 0)
            (void)mu_fail(&error, MUSTER_ELOST, "%s: %s: HTTP %u, the watch was ended", watch->what,
                          mu_http_endpoint(watch->etcd->http, http->endpoint), http->status);
        mu_http_give_up(watch->etcd->http, http->endpoint);
        start_over(watch, &error);
    } else if (watch->state == WATCH_IDLE && !uv_is_active((uv_handle_t *)&watch->timer)) {
        open_stream(watch);
    }
}

static void open_stream(struct mu_etcd3_watch *watch)
{
    struct mu_etcd3 *etcd = watch->etcd;
    const struct mu_etcd3_request request = { .kind = MU_ETCD3_WATCH, .range = watch->range };
    struct muster_error error;
    int rc;

    watch->state = WATCH_IDLE;
    if (watch->streaming)
        return; /* the old one's end comes first */
    if (mu_etcd3_needs_log_in(etcd)) {
        probe(watch, 0);
        return;
    }
    mu_etcd3_stream_done(&watch->stream);
    watch->body.len = 0;
    rc = mu_etcd3_build(&request, &watch->body, &error);
    if (rc < 0) {
        start_over(watch, &error);
        return;
    }
    watch->token_number = etcd->token_number;
    watch->http = (struct mu_http_request){ .method = "POST",
                                            .target = mu_etcd3_path(MU_ETCD3_WATCH),
                                            .body = mu_buf_slice(&watch->body),
                                            .content_type = "application/json",
                                            .headers = { "Grpc-Metadata-hasleader: true", etcd->token_line },
                                            .what = watch->what,
                                            .timeout_ms = OPEN_MS,
                                            .repeatable = true,
                                            .on_chunk = on_chunk,
                                            .on_retry = on_stream_retry,
                                            .done = on_stream_end,
                                            .ctx = watch };
    watch->streaming = true;
    watch->state = WATCH_OPENING;
    watch->opened_ms = uv_now(etcd->loop);
    put_renewal_off(watch);
    mu_http_submit(etcd->http, &watch->http);
    arm_check(watch);
}

int mu_etcd3_watch_start(struct mu_etcd3 *etcd, struct mu_slice key, bool prefix, int64_t revision,
                         const struct mu_etcd3_watch_ops *ops, void *ctx, struct mu_etcd3_watch **ret_watch,
                         struct muster_error *reterr)
{
    struct mu_etcd3_watch *watch = calloc(1, sizeof *watch);
    char *own = watch == NULL ? NULL : mu_slice_copy(key);
    struct mu_etcd3_request request = { .kind = MU_ETCD3_WATCH };

    if (own == NULL) {
        free(watch);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a watch");
    }
    watch->etcd = etcd;
    watch->ops = ops;
    watch->ctx = ctx;
    watch->key = own;
    watch->range = (struct mu_etcd3_op){ .key = mu_slice(own, key.len), .prefix = prefix, .revision = revision };
    request.range = watch->range;
    (void)mu_etcd3_text(&request, watch->what, sizeof watch->what);
    mu_later_open(&watch->news, etcd->loop, NULL); /* these only fill in memory */
    (void)uv_timer_init(etcd->loop, &watch->timer);
    watch->timer.data = watch;
    watch->handles = 2;
    open_stream(watch);
    *ret_watch = watch;
    return 0;
}

void mu_etcd3_watch_close(struct mu_etcd3_watch *watch)
{
    assert(!watch->closed);
    watch->closed = true;
    if (watch->streaming)
        mu_http_cancel(&watch->http);
    if (watch->probing)
        mu_etcd3_cancel(&watch->probe);
    mu_later_close(&watch->news, on_watch_part_closed, watch);
    uv_close((uv_handle_t *)&watch->timer, on_watch_handle_closed);
}
