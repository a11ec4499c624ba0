/* A client of etcd's version 3 API.
 *
 * Calls: built, sent, read; who is asked, and how often, is decided below. With a user name a call first waits for a log-in;
 * if its token is refused it waits for another one, once. It waits for as long as it has time itself, whatever the others
 * and the log-in have.
 *
 * A watch is a stream:
 *
 *   IDLE --> OPENING --created--> OPEN       what comes is told, and the next revision is remembered
 *    ^          |                  |
 *    +--pause---+-- end, silence --+-- compacted, or a store that is behind us --> STANDING until it is resumed
 *
 * A lease: a grant, then a keep-alive every third of its time. What fails is tried again until it can be alive no longer. */
#include "kv/etcd3_uv.h"

#include "base/rng.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    LOG_IN_MS = 10000,   /* for one log-in; then there is another one, if somebody still waits */
    OPEN_MS = 10000,     /* for a stream's head, at all servers; then it is told and tried anew */
    PAUSE_FIRST_MS = 50, /* until a stream that ended is opened again: doubled each time, */
    PAUSE_MAX_MS = 2000, /* up to this, +- 50 percent */
    PROBE_MS = 2000,     /* for the answer of a server that was silent */
    CREATED_MS = 5000,   /* for etcd's confirmation on an open stream */
    KEEP_ALIVE_AGAIN_MS = 200,
    KEEP_ALIVE_LEAST_MS = 250, /* for one attempt */
    TOKEN_LINE_MAX = 4096,
};

struct mu_etcd3 {
    uv_loop_t *loop;
    struct mu_http *http;
    struct mu_rng rng;
    uint64_t renew_ms;
    char *user, *password;
    char *token_line;       /* "Authorization: ..."; NULL: there is none, or it was refused */
    unsigned token_number;  /* counts log-ins */
    bool no_auth;           /* etcd does not want one */
    struct mu_list waiting; /* calls, for a log-in */
    uv_timer_t timer;       /* the time of one of them is up */
    struct mu_http_request log_in;
    struct mu_buf log_in_body;
    uint64_t log_in_ms; /* when it began */
    bool logging_in, closing;
    unsigned parts; /* to be closed: client and timer */
    mu_etcd3_closed *on_closed;
    void *closed_ctx;
};

/* ---- Log-in ---- */

static void send_call(struct mu_etcd3_call *call);
static void start_log_in(struct mu_etcd3 *etcd);

static bool needs_log_in(const struct mu_etcd3 *etcd)
{
    return etcd->user != NULL && etcd->token_line == NULL && !etcd->no_auth;
}

static void refuse(struct mu_etcd3_call *call, int rc, const struct muster_error *why)
{
    call->http.error = *why;
    call->http.rc = mu_wrap(&call->http.error, rc, "%s", call->what);
    mu_http_refuse(call->etcd->http, &call->http);
}

static struct mu_etcd3_call *pop_waiting(struct mu_list *from)
{
    struct mu_list *link = mu_list_pop(from);
    struct mu_etcd3_call *call = link == NULL ? NULL : MU_LIST_ITEM(link, struct mu_etcd3_call, link);

    if (call != NULL)
        call->waiting = false;
    return call;
}

/* Takes the token out of the answer, or says why there is none. */
static int take_token(struct mu_etcd3 *etcd, struct muster_error *reterr)
{
    const struct mu_etcd3_request request = { .kind = MU_ETCD3_AUTHENTICATE, .user = etcd->user };
    struct mu_etcd3_answer answer = { 0 };
    int rc = mu_etcd3_read(&request, etcd->log_in.status, mu_buf_slice(&etcd->log_in.reply), &answer, reterr);

    if (rc < 0)
        return mu_wrap(reterr, rc, "%s: %s", etcd->log_in.what, mu_http_endpoint(etcd->http, etcd->log_in.endpoint));
    if (answer.code == MU_ETCD3_PRECONDITION) {
        etcd->no_auth = true; /* "authentication is not enabled" */
    } else if (answer.code != 0) {
        (void)mu_etcd3_fail(answer.code, answer.message, etcd->log_in.status, reterr);
        rc = mu_wrap(reterr, MUSTER_EINVAL, "%s: %s", etcd->log_in.what,
                     mu_http_endpoint(etcd->http, etcd->log_in.endpoint));
    } else if (answer.token.len > TOKEN_LINE_MAX || memchr(answer.token.data, '\n', answer.token.len) != NULL) {
        rc = mu_fail(reterr, MUSTER_EPROTOCOL, "%s: the token is none", etcd->log_in.what);
    } else if (asprintf(&etcd->token_line, "Authorization: %s", answer.token.data) < 0) {
        etcd->token_line = NULL;
        rc = mu_fail(reterr, MUSTER_ENOMEM, "no memory for a token");
    } else {
        etcd->token_number++;
    }
    mu_etcd3_answer_done(&answer);
    return rc;
}

static uint64_t time_left(const struct mu_etcd3_call *call)
{
    uint64_t passed_ms = uv_now(call->etcd->loop) - call->started_ms;

    return call->timeout_ms > passed_ms ? call->timeout_ms - passed_ms : 0;
}

static void on_waited(uv_timer_t *timer);

/* The timer is always derived from who waits. */
static void arm_waiting(struct mu_etcd3 *etcd)
{
    uint64_t left_ms = UINT64_MAX;

    for (struct mu_list *link = etcd->waiting.next; link != &etcd->waiting; link = link->next) {
        uint64_t its_ms = time_left(MU_LIST_ITEM(link, struct mu_etcd3_call, link));

        left_ms = its_ms < left_ms ? its_ms : left_ms;
    }
    if (mu_list_empty(&etcd->waiting))
        (void)uv_timer_stop(&etcd->timer);
    else
        (void)uv_timer_start(&etcd->timer, on_waited, left_ms, 0);
}

/* Those whose time is up wait no longer; the log-in goes on, for the others and for who comes next. */
static void on_waited(uv_timer_t *timer)
{
    struct mu_etcd3 *etcd = timer->data;
    struct muster_error error;
    int rc = mu_http_so_far(&etcd->log_in, &error);

    for (struct mu_list *link = etcd->waiting.next, *next; link != &etcd->waiting; link = next) {
        struct mu_etcd3_call *call = MU_LIST_ITEM(link, struct mu_etcd3_call, link);

        next = link->next;
        if (time_left(call) > 0)
            continue;
        mu_list_remove(&call->link);
        call->waiting = false;
        refuse(call, rc, &error);
    }
    arm_waiting(etcd);
}

static void on_logged_in(struct mu_http_request *http)
{
    struct mu_etcd3 *etcd = http->ctx;
    struct muster_error error = http->error;
    struct mu_etcd3_call *call;
    struct mu_list all;
    /* Nobody answered: others may want to wait longer. What failed before its time would fail again. */
    bool away = http->rc < 0 && uv_now(etcd->loop) - etcd->log_in_ms >= LOG_IN_MS;
    int rc = http->rc == 0 ? take_token(etcd, &error) : http->rc;

    etcd->logging_in = false;
    mu_buf_done(&http->reply);
    mu_buf_done(&etcd->log_in_body);
    mu_list_init(&all);
    while ((call = pop_waiting(&etcd->waiting)) != NULL)
        mu_list_push(&all, &call->link);
    while ((call = pop_waiting(&all)) != NULL) {
        if (rc == 0) {
            send_call(call);
        } else if (away && !etcd->closing && time_left(call) > 0) {
            call->waiting = true;
            mu_list_push(&etcd->waiting, &call->link);
        } else {
            refuse(call, rc, &error);
        }
    }
    if (!mu_list_empty(&etcd->waiting) && !etcd->logging_in)
        start_log_in(etcd);
    if (!etcd->closing)
        arm_waiting(etcd);
}

static void start_log_in(struct mu_etcd3 *etcd)
{
    const struct mu_etcd3_request request = { .kind = MU_ETCD3_AUTHENTICATE,
                                              .user = etcd->user,
                                              .password = etcd->password };

    assert(!etcd->logging_in);
    etcd->logging_in = true;
    etcd->log_in_ms = uv_now(etcd->loop);
    etcd->log_in = (struct mu_http_request){ .method = "POST",
                                             .target = mu_etcd3_path(MU_ETCD3_AUTHENTICATE),
                                             .content_type = "application/json",
                                             .what = "log in",
                                             .timeout_ms = LOG_IN_MS,
                                             .repeatable = true,
                                             .done = on_logged_in,
                                             .ctx = etcd };
    etcd->log_in.rc = mu_etcd3_build(&request, &etcd->log_in_body, &etcd->log_in.error);
    if (etcd->log_in.rc < 0) {
        mu_http_refuse(etcd->http, &etcd->log_in);
        return;
    }
    etcd->log_in.body = mu_buf_slice(&etcd->log_in_body);
    mu_http_submit(etcd->http, &etcd->log_in);
}

static void wait_for_log_in(struct mu_etcd3_call *call)
{
    struct mu_etcd3 *etcd = call->etcd;

    call->waiting = true;
    mu_list_push(&etcd->waiting, &call->link);
    if (!etcd->logging_in)
        start_log_in(etcd);
    arm_waiting(etcd);
}

/* The token that this was sent with is not good (any more). */
static void drop_token(struct mu_etcd3 *etcd, unsigned token_number)
{
    if (etcd->user == NULL || token_number != etcd->token_number)
        return; /* there is a newer one */
    free(etcd->token_line);
    etcd->token_line = NULL;
    etcd->no_auth = false;
}

/* ---- Calls ---- */

static enum mu_http_verdict judge_error(const struct mu_http_request *http, const struct mu_etcd3_answer *answer,
                                        struct muster_error *reterr)
{
    enum mu_etcd3_advice advice = mu_etcd3_advise(answer->code, answer->message);

    if (advice != MU_ETCD3_ELSEWHERE && advice != MU_ETCD3_UNCERTAIN)
        return MU_HTTP_TAKE;
    (void)mu_etcd3_fail(answer->code, answer->message, http->status, reterr);
    return advice == MU_ETCD3_ELSEWHERE ? MU_HTTP_AGAIN : MU_HTTP_AGAIN_UNSURE;
}

static enum mu_http_verdict judge(const struct mu_http_request *http, struct muster_error *reterr)
{
    const struct mu_etcd3_call *call = http->ctx;
    struct mu_etcd3_answer answer = { 0 };
    enum mu_http_verdict verdict;
    int rc;

    if (http->status < 300 && http->reply.len > 0)
        return MU_HTTP_TAKE;
    rc = mu_etcd3_read(&call->request, http->status, mu_buf_slice(&http->reply), &answer, reterr);
    if (rc == 0)
        verdict = judge_error(http, &answer, reterr);
    else
        verdict = http->status >= 500 || http->reply.len == 0 ? MU_HTTP_AGAIN_UNSURE : MU_HTTP_TAKE;
    mu_etcd3_answer_done(&answer);
    return verdict;
}

/* True: it is sent again, with another token. */
static bool logs_in_again(struct mu_etcd3_call *call)
{
    struct mu_etcd3 *etcd = call->etcd;

    if (call->again || etcd->user == NULL || time_left(call) == 0 ||
        mu_etcd3_advise(call->answer.code, call->answer.message) != MU_ETCD3_LOG_IN)
        return false;
    call->again = true;
    drop_token(etcd, call->token_number);
    mu_etcd3_answer_done(&call->answer);
    send_call(call);
    return true;
}

static void read_answer(struct mu_etcd3_call *call)
{
    const char *endpoint = mu_http_endpoint(call->etcd->http, call->http.endpoint);

    call->rc =
        mu_etcd3_read(&call->request, call->http.status, mu_buf_slice(&call->http.reply), &call->answer, &call->error);
    if (call->rc == 0 && call->answer.code != 0)
        call->rc = mu_etcd3_fail(call->answer.code, call->answer.message, call->http.status, &call->error);
    if (call->rc < 0)
        (void)mu_wrap(&call->error, call->rc, "%s: %s", call->what, endpoint);
}

static void on_http_done(struct mu_http_request *http)
{
    struct mu_etcd3_call *call = http->ctx;

    call->error = http->error;
    call->rc = http->rc;
    call->unsure = http->rc < 0 && http->unsure;
    if (http->rc == 0)
        read_answer(call);
    mu_buf_done(&http->reply);
    if (call->rc < 0 && call->answer.code != 0 && !call->etcd->closing && logs_in_again(call))
        return;
    mu_buf_done(&call->body);
    call->done(call);
}

static bool is_repeatable(const struct mu_etcd3_call *call)
{
    return call->request.kind != MU_ETCD3_TXN || call->repeatable;
}

static void send_call(struct mu_etcd3_call *call)
{
    struct mu_etcd3 *etcd = call->etcd;
    uint64_t left_ms = time_left(call);

    if (needs_log_in(etcd)) {
        wait_for_log_in(call);
        return;
    }
    call->token_number = etcd->token_number;
    call->http = (struct mu_http_request){ .method = "POST",
                                           .target = mu_etcd3_path(call->request.kind),
                                           .body = mu_buf_slice(&call->body),
                                           .content_type = "application/json",
                                           .headers = { etcd->token_line },
                                           .what = call->what,
                                           .timeout_ms = left_ms > 0 ? left_ms : 1,
                                           .attempt_ms = call->attempt_ms,
                                           .repeatable = is_repeatable(call),
                                           .only = call->only,
                                           .on_retry = call->on_retry,
                                           .judge = judge,
                                           .done = on_http_done,
                                           .ctx = call };
    mu_http_submit(etcd->http, &call->http);
}

void mu_etcd3_call(struct mu_etcd3 *etcd, struct mu_etcd3_call *call)
{
    struct muster_error error;
    int rc;

    assert(call->timeout_ms > 0 && call->request.kind != MU_ETCD3_WATCH);
    call->etcd = etcd;
    call->rc = 0;
    call->unsure = call->waiting = call->again = false;
    call->error = (struct muster_error){ 0 };
    call->answer = (struct mu_etcd3_answer){ 0 };
    call->body = (struct mu_buf){ 0 };
    call->started_ms = uv_now(etcd->loop);
    call->http = (struct mu_http_request){ .done = on_http_done, .ctx = call };
    mu_list_init(&call->link);
    (void)mu_etcd3_text(&call->request, call->what, sizeof call->what);
    rc = mu_etcd3_build(&call->request, &call->body, &error);
    if (rc < 0)
        refuse(call, rc, &error);
    else
        send_call(call);
}

void mu_etcd3_cancel(struct mu_etcd3_call *call)
{
    struct muster_error error;

    if (!call->waiting) {
        mu_http_cancel(call->etcd->http, &call->http);
        return;
    }
    mu_list_remove(&call->link);
    call->waiting = false;
    (void)mu_fail(&error, MUSTER_ECANCELED, "canceled");
    refuse(call, MUSTER_ECANCELED, &error);
}

/* ---- Watches ---- */

enum watch_state { WATCH_IDLE, WATCH_OPENING, WATCH_OPEN, WATCH_STANDING };

struct mu_etcd3_watch {
    struct mu_etcd3 *etcd;
    const struct mu_etcd3_watch_ops *ops;
    void *ctx;
    enum watch_state state;
    struct mu_etcd3_op range; /* key, prefix, prev_kv; revision: the next that counts, 0: not known yet */
    struct mu_http_request http;
    struct mu_buf body;
    struct mu_etcd3_stream stream;
    struct mu_etcd3_call probe;
    uv_timer_t news;  /* there are bytes to be read */
    uv_timer_t timer; /* a pause is over; or: is the server still there? */
    unsigned handles;
    unsigned failures, token_number;
    uint64_t opened_ms;
    uint64_t renew_ms; /* when its stream is opened anew, if that says nothing until then */
    bool streaming, probing, closed;
    bool told, trouble; /* whether it can be heard, as far as was told */
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

static void on_watch_handle_closed(uv_handle_t *handle)
{
    struct mu_etcd3_watch *watch = handle->data;

    watch->handles--;
    free_watch_if_over(watch);
}

static void tell_trouble(struct mu_etcd3_watch *watch, const struct muster_error *error)
{
    if (watch->closed || (watch->told && watch->trouble == (error != NULL)))
        return;
    watch->told = true;
    watch->trouble = error != NULL;
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
        mu_http_cancel(etcd->http, &watch->http);
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
        mu_http_cancel(watch->etcd->http, &watch->http);
    watch->state = WATCH_STANDING;
    (void)uv_timer_stop(&watch->timer);
    watch->ops->on_compacted(watch, compact_revision, watch->ctx);
}

/* ---- Is the server still there, and still the same? ---- */

/* The store, as all its members know it, has not come as far as we have: it is another one. */
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
        mu_http_cancel(watch->etcd->http, &watch->http);
    } else if (watch->state == WATCH_OPEN &&
               now_ms - mu_http_answered_ms(http, watch->http.endpoint) >= MU_ETCD3_SILENT_MS) {
        (void)uv_timer_start(&watch->timer, on_check, PROBE_MS * 2, 0); /* if the one under way is for another server */
        probe(watch, watch->http.endpoint + 1);
    } else {
        arm_check(watch);
    }
}

/* For the moment when nothing has been heard for too long, if nothing is. */
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
    char endpoint[320];

    if (message->compact_revision > 0) {
        stand_still(watch, message->compact_revision);
        return;
    }
    (void)snprintf(endpoint, sizeof endpoint, "%s", mu_http_endpoint(watch->etcd->http, watch->http.endpoint));
    (void)mu_etcd3_fail(message->code != 0 ? message->code : MU_ETCD3_CANCELED, message->message, watch->http.status,
                        &error);
    (void)mu_wrap(&error, error.code, "%s: %s", watch->what, endpoint);
    if (mu_etcd3_advise(message->code, message->message) == MU_ETCD3_LOG_IN)
        drop_token(watch->etcd, watch->token_number);
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

static void on_news(uv_timer_t *timer)
{
    read_stream(timer->data);
}

/* All of a round hear the same things at the same time: they do not come back together. */
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
        (void)uv_timer_start(&watch->news, on_news, 0, 0);
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
    if (needs_log_in(etcd)) {
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

int mu_etcd3_watch_start(struct mu_etcd3 *etcd, struct mu_slice key, bool prefix, bool prev_kv, int64_t revision,
                         const struct mu_etcd3_watch_ops *ops, void *ctx, struct mu_etcd3_watch **ret_watch,
                         struct muster_error *reterr)
{
    struct mu_etcd3_watch *watch = calloc(1, sizeof *watch);
    char *own = watch == NULL ? NULL : malloc(key.len + 1);
    struct mu_etcd3_request request = { .kind = MU_ETCD3_WATCH };

    if (own == NULL) {
        free(watch);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a watch");
    }
    if (key.len > 0)
        memcpy(own, key.data, key.len);
    watch->etcd = etcd;
    watch->ops = ops;
    watch->ctx = ctx;
    watch->key = own;
    watch->range = (struct mu_etcd3_op){
        .key = mu_slice(own, key.len), .prefix = prefix, .prev_kv = prev_kv, .revision = revision
    };
    request.range = watch->range;
    (void)mu_etcd3_text(&request, watch->what, sizeof watch->what);
    (void)uv_timer_init(etcd->loop, &watch->news); /* these only fill in memory */
    (void)uv_timer_init(etcd->loop, &watch->timer);
    watch->news.data = watch->timer.data = watch;
    watch->handles = 2;
    open_stream(watch);
    *ret_watch = watch;
    return 0;
}

void mu_etcd3_watch_resume(struct mu_etcd3_watch *watch, int64_t revision)
{
    assert(!watch->closed && watch->state == WATCH_STANDING);
    watch->range.revision = revision;
    watch->state = WATCH_IDLE;
    (void)uv_timer_start(&watch->timer, on_pause_over, 0, 0);
}

void mu_etcd3_watch_close(struct mu_etcd3_watch *watch)
{
    assert(!watch->closed);
    watch->closed = true;
    if (watch->streaming)
        mu_http_cancel(watch->etcd->http, &watch->http);
    if (watch->probing)
        mu_etcd3_cancel(&watch->probe);
    uv_close((uv_handle_t *)&watch->news, on_watch_handle_closed);
    uv_close((uv_handle_t *)&watch->timer, on_watch_handle_closed);
}

/* ---- Leases ---- */

struct mu_etcd3_lease {
    struct mu_etcd3 *etcd;
    const struct mu_etcd3_lease_ops *ops;
    void *ctx;
    struct mu_etcd3_call call, revocation;
    uv_timer_t timer;
    int64_t id, asked_ttl_s;
    uint64_t ttl_ms;
    uint64_t since_ms; /* when the last request that was carried out was sent */
    uint64_t sent_ms;  /* the one under way */
    bool granted, lost, trouble;
    bool calling, revoking, closed, timer_closed;
    void (*on_closed)(void *ctx);
    void *closed_ctx;
};

static void keep_alive(uv_timer_t *timer);

static void free_lease_if_over(struct mu_etcd3_lease *lease)
{
    if (!lease->closed || !lease->timer_closed || lease->calling || lease->revoking)
        return;
    if (lease->on_closed != NULL)
        lease->on_closed(lease->closed_ctx);
    free(lease);
}

static void on_lease_timer_closed(uv_handle_t *handle)
{
    struct mu_etcd3_lease *lease = handle->data;

    lease->timer_closed = true;
    free_lease_if_over(lease);
}

static void tell_lease_trouble(struct mu_etcd3_lease *lease, const struct muster_error *error)
{
    if (lease->closed || lease->lost || !lease->granted || lease->trouble == (error != NULL))
        return;
    lease->trouble = error != NULL;
    if (lease->ops->on_trouble != NULL)
        lease->ops->on_trouble(lease, error, lease->ctx);
}

static void lose(struct mu_etcd3_lease *lease, const struct muster_error *error)
{
    lease->lost = true;
    lease->ops->on_lost(lease, error, lease->ctx);
}

static void arm_lease(struct mu_etcd3_lease *lease, uint64_t at_ms)
{
    uint64_t now_ms = uv_now(lease->etcd->loop);

    if (!lease->closed)
        (void)uv_timer_start(&lease->timer, keep_alive, at_ms > now_ms ? at_ms - now_ms : 0, 0);
}

static void on_kept(struct mu_etcd3_call *call)
{
    struct mu_etcd3_lease *lease = call->ctx;
    uint64_t now_ms = uv_now(lease->etcd->loop);
    bool gone = (call->rc == 0 && call->answer.ttl_s <= 0) || (call->rc < 0 && call->answer.code == MU_ETCD3_NOT_FOUND);

    lease->calling = false;
    if (gone && call->rc == 0)
        (void)mu_fail(&call->error, MUSTER_ELOST, "%s: it has expired", call->what);
    mu_etcd3_answer_done(&call->answer);
    if (lease->closed) {
        free_lease_if_over(lease);
    } else if (call->rc == 0 && !gone) {
        lease->since_ms = lease->sent_ms;
        arm_lease(lease, lease->sent_ms + lease->ttl_ms / 3);
        tell_lease_trouble(lease, NULL);
    } else if (gone || now_ms >= lease->since_ms + lease->ttl_ms) {
        lose(lease, &call->error);
    } else {
        arm_lease(lease, now_ms + mu_rng_jitter(&lease->etcd->rng, KEEP_ALIVE_AGAIN_MS, 50));
        tell_lease_trouble(lease, &call->error);
    }
}

static void on_lease_retry(struct mu_http_request *http, const struct muster_error *error)
{
    struct mu_etcd3_call *call = http->ctx;

    tell_lease_trouble(call->ctx, error);
}

static void keep_alive(uv_timer_t *timer)
{
    struct mu_etcd3_lease *lease = timer->data;
    uint64_t now_ms = uv_now(lease->etcd->loop), end_ms = lease->since_ms + lease->ttl_ms;
    uint64_t attempt_ms = lease->ttl_ms / 6;

    lease->calling = true;
    lease->sent_ms = now_ms;
    lease->call = (struct mu_etcd3_call){
        .request = { .kind = MU_ETCD3_KEEP_ALIVE, .lease = lease->id },
        .timeout_ms = end_ms > now_ms + KEEP_ALIVE_LEAST_MS ? end_ms - now_ms : KEEP_ALIVE_LEAST_MS,
        .attempt_ms = attempt_ms > KEEP_ALIVE_LEAST_MS ? attempt_ms : KEEP_ALIVE_LEAST_MS,
        .on_retry = on_lease_retry,
        .done = on_kept,
        .ctx = lease,
    };
    mu_etcd3_call(lease->etcd, &lease->call);
}

/* A lease of that random number can only be ours: an earlier attempt got through. */
static void on_grant_done(struct mu_etcd3_call *call)
{
    struct mu_etcd3_lease *lease = call->ctx;
    bool ours = call->rc < 0 && call->answer.code == MU_ETCD3_PRECONDITION;
    int64_t ttl_s = call->rc == 0 ? call->answer.ttl_s : lease->asked_ttl_s;

    lease->calling = false;
    mu_etcd3_answer_done(&call->answer);
    if (lease->closed) {
        free_lease_if_over(lease);
    } else if (call->rc == 0 || ours) {
        lease->granted = true;
        lease->ttl_ms = (uint64_t)(ttl_s > 0 ? ttl_s : lease->asked_ttl_s) * 1000;
        lease->since_ms = lease->sent_ms;
        arm_lease(lease, lease->since_ms + lease->ttl_ms / 3);
        lease->ops->on_granted(lease, lease->id, lease->ctx);
    } else {
        lose(lease, &call->error);
    }
}

int mu_etcd3_lease_start(struct mu_etcd3 *etcd, int64_t ttl_s, uint64_t grant_ms, const struct mu_etcd3_lease_ops *ops,
                         void *ctx, struct mu_etcd3_lease **ret_lease, struct muster_error *reterr)
{
    struct mu_etcd3_lease *lease = calloc(1, sizeof *lease);

    assert(ttl_s > 0 && grant_ms > 0);
    if (lease == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a lease");
    lease->etcd = etcd;
    lease->ops = ops;
    lease->ctx = ctx;
    lease->asked_ttl_s = ttl_s;
    lease->id = (int64_t)(mu_rng_next(&etcd->rng) >> 1) | 1;
    (void)uv_timer_init(etcd->loop, &lease->timer); /* fills in memory only */
    lease->timer.data = lease;
    lease->calling = true;
    lease->sent_ms = uv_now(etcd->loop);
    lease->call = (struct mu_etcd3_call){ .request = { .kind = MU_ETCD3_GRANT, .lease = lease->id, .ttl_s = ttl_s },
                                          .timeout_ms = grant_ms,
                                          .done = on_grant_done,
                                          .ctx = lease };
    mu_etcd3_call(etcd, &lease->call);
    *ret_lease = lease;
    return 0;
}

int64_t mu_etcd3_lease_id(const struct mu_etcd3_lease *lease)
{
    return lease->granted ? lease->id : 0;
}

uint64_t mu_etcd3_lease_until_ms(const struct mu_etcd3_lease *lease)
{
    return lease->granted ? lease->since_ms + lease->ttl_ms : 0;
}

static void on_revoked(struct mu_etcd3_call *call)
{
    struct mu_etcd3_lease *lease = call->ctx;

    mu_etcd3_answer_done(&call->answer); /* if it could not be, its time will end it */
    lease->revoking = false;
    free_lease_if_over(lease);
}

void mu_etcd3_lease_close(struct mu_etcd3_lease *lease, bool revoke, uint64_t revoke_ms, void (*closed)(void *ctx),
                          void *ctx)
{
    assert(!lease->closed);
    lease->closed = true;
    lease->on_closed = closed;
    lease->closed_ctx = ctx;
    if (lease->calling)
        mu_etcd3_cancel(&lease->call);
    if (revoke && (lease->granted ? !lease->lost : lease->calling)) {
        lease->revoking = true;
        lease->revocation = (struct mu_etcd3_call){ .request = { .kind = MU_ETCD3_REVOKE, .lease = lease->id },
                                                    .timeout_ms = revoke_ms > 0 ? revoke_ms : 1,
                                                    .done = on_revoked,
                                                    .ctx = lease };
        mu_etcd3_call(lease->etcd, &lease->revocation);
    }
    uv_close((uv_handle_t *)&lease->timer, on_lease_timer_closed);
}

/* ---- Start and end ---- */

static void free_etcd(struct mu_etcd3 *etcd)
{
    free(etcd->user);
    free(etcd->password);
    free(etcd->token_line);
    mu_buf_done(&etcd->log_in_body);
    free(etcd);
}

static int copy_credentials(struct mu_etcd3 *etcd, const struct mu_etcd3_config *config, struct muster_error *reterr)
{
    bool failed = false;

    if (config->user != NULL) {
        etcd->user = strdup(config->user);
        etcd->password = strdup(config->password != NULL ? config->password : "");
        failed = etcd->user == NULL || etcd->password == NULL;
    } else if (config->token != NULL) {
        if (strchr(config->token, '\n') != NULL || strlen(config->token) > TOKEN_LINE_MAX)
            return mu_fail(reterr, MUSTER_EINVAL, "the token is none");
        failed = asprintf(&etcd->token_line, "Authorization: %s", config->token) < 0;
        if (failed)
            etcd->token_line = NULL;
    }
    return failed ? mu_fail(reterr, MUSTER_ENOMEM, "no memory for a client") : 0;
}

int mu_etcd3_start(uv_loop_t *loop, const struct mu_etcd3_config *config, struct mu_etcd3 **ret_etcd,
                   struct muster_error *reterr)
{
    struct mu_etcd3 *etcd = calloc(1, sizeof *etcd);
    int rc;

    if (etcd == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "etcd: no memory for a client");
    etcd->loop = loop;
    etcd->rng = mu_rng_seeded(config->http.seed + 1);
    etcd->renew_ms = config->renew_ms > 0 ? config->renew_ms : MU_ETCD3_RENEW_MS;
    mu_list_init(&etcd->waiting);
    rc = copy_credentials(etcd, config, reterr);
    if (rc == 0)
        rc = mu_http_start(loop, &config->http, &etcd->http, reterr);
    if (rc < 0) {
        free_etcd(etcd);
        return mu_wrap(reterr, rc, "etcd");
    }
    (void)uv_timer_init(loop, &etcd->timer); /* only fills in memory */
    etcd->timer.data = etcd;
    *ret_etcd = etcd;
    return 0;
}

static void part_closed(struct mu_etcd3 *etcd)
{
    if (--etcd->parts > 0)
        return;
    if (etcd->on_closed != NULL)
        etcd->on_closed(etcd->closed_ctx);
    free_etcd(etcd);
}

static void on_http_closed(struct mu_http *http, void *ctx)
{
    (void)http;
    part_closed(ctx);
}

static void on_timer_closed(uv_handle_t *handle)
{
    part_closed(handle->data);
}

void mu_etcd3_close(struct mu_etcd3 *etcd, mu_etcd3_closed *closed, void *ctx)
{
    struct mu_etcd3_call *call;
    struct muster_error error;

    assert(!etcd->closing);
    etcd->closing = true;
    etcd->on_closed = closed;
    etcd->closed_ctx = ctx;
    (void)mu_fail(&error, MUSTER_ECANCELED, "canceled");
    while ((call = pop_waiting(&etcd->waiting)) != NULL)
        refuse(call, MUSTER_ECANCELED, &error);
    etcd->parts = 2;
    uv_close((uv_handle_t *)&etcd->timer, on_timer_closed);
    mu_http_close(etcd->http, on_http_closed, etcd);
}

struct mu_http *mu_etcd3_http(struct mu_etcd3 *etcd)
{
    return etcd->http;
}
