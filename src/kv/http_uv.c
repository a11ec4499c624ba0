/* HTTP requests to a cluster, on libcurl and libuv.
 *
 * Happy path: a request becomes a `work`, which is one transfer to the server that worked last; its answer is the
 * request's. Failures: the work goes to the next server; when all have failed it pauses. The final error has that of
 * each server in the last round. A work whose time is up ends at once: libcurl limits transfers; our timer limits
 * pauses, and streams that have not begun. */
#include "kv/http_uv.h"

#include "kv/http_curl.h"
#include "kv/later_uv.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    OWN_MAX = 2,             /* header lines of the request's */
    LINES_MAX = OWN_MAX + 2, /* with the content type and the final NULL */
    CONTENT_TYPE_MAX = 80,
    TRIED_MAX = 640, /* bytes of what was tried, in one error */
    TRY_MS_MIN = 20,
};

struct work {
    struct mu_http *http;
    struct mu_http_request *request;
    struct mu_list link; /* of all that are under way */
    struct mu_curl_transfer transfer;
    bool transferring, begun; /* begun: a stream's head is there */
    bool answered;            /* the head of this attempt's answer is there */
    bool unsure;              /* an attempt may have been carried out */
    struct mu_tries tries;
    unsigned endpoint, attempts;
    uint64_t started_ms, deadline_ms;
    uint64_t due_ms;                                /* when the timer has something to do for it; UINT64_MAX: nothing */
    int code;                                       /* of the last attempt */
    char tried[TRIED_MAX], tried_before[TRIED_MAX]; /* in this round, and in the one before */
    char *url;
    size_t url_room;
    char content_type[CONTENT_TYPE_MAX];
    char *own[OWN_MAX]; /* copies: the caller's may have changed by the next attempt */
    const char *headers[LINES_MAX];
};

struct poll {
    uv_poll_t handle;
    struct mu_http *http;
    int fd;
    int wanted;
};

struct mu_http {
    uv_loop_t *loop;
    struct mu_curl *curl;
    struct mu_endpoints endpoints;
    uint64_t answered_ms[MU_ENDPOINTS_MAX];
    unsigned current;
    uint64_t connect_ms, attempt_ms;
    struct mu_rng rng;
    uv_timer_t curl_timer; /* libcurl's */
    uv_timer_t timer;      /* ours */
    struct mu_list works;
    struct mu_later later; /* requests that are answered */
    size_t works_count;
    size_t handles;
    char local[64];
    struct mu_http_server server; /* port 0: not known */
    bool closing;
    mu_http_closed *on_closed;
    void *closed_ctx;
};

static void attempt(struct work *work);

/* ---- Answers ---- */

static void on_timer(uv_timer_t *timer);

/* The timer is always derived from what there is to do. */
static void arm(struct mu_http *http)
{
    uint64_t due_ms = UINT64_MAX;

    if (uv_is_closing((uv_handle_t *)&http->timer))
        return;
    MU_LIST_EACH (const struct work, work, &http->works, link)
        due_ms = work->due_ms < due_ms ? work->due_ms : due_ms;
    mu_timer_until(&http->timer, due_ms, on_timer);
}

static void free_work(struct work *work)
{
    mu_list_remove(&work->link);
    work->http->works_count--;
    mu_buf_done(&work->transfer.reply);
    for (size_t i = 0; i < OWN_MAX; i++)
        free(work->own[i]);
    free(work->url);
    free(work);
}

/* Takes the work away from its request, whose rc and error are set. */
static struct mu_http_request *end(struct work *work)
{
    struct mu_http_request *request = work->request;

    request->work = NULL;
    free_work(work);
    return request;
}

static void tell_answer(struct mu_list *link)
{
    struct mu_http_request *request = MU_LIST_ITEM(link, struct mu_http_request, link);

    request->done(request);
}

static void end_later(struct work *work)
{
    struct mu_http *http = work->http;

    mu_later_push(&http->later, &end(work)->link);
}

/* ---- Failing, and going on ---- */

static void note(struct work *work, const struct muster_error *error)
{
    size_t used = strlen(work->tried);

    (void)snprintf(work->tried + used, sizeof work->tried - used, "%s%s: %s", used == 0 ? "" : "; ",
                   work->http->endpoints.urls[work->endpoint], error->text);
    work->code = error->code;
}

/* The attempts so far, as an error. An attempt that only timed out says less than those before it. */
static int describe(const struct work *work, int code, struct muster_error *reterr)
{
    const char *what = work->request->what;
    const char *tried = work->tried[0] != '\0' ? work->tried : work->tried_before;
    const char *before = tried == work->tried && work->code == MUSTER_ETIMEOUT ? work->tried_before : "";
    uint64_t took_ms = uv_now(work->http->loop) - work->started_ms;

    if (tried[0] == '\0')
        return mu_fail(reterr, code, "%s: %s: no answer", what, work->http->endpoints.urls[work->endpoint]);
    if (work->attempts > 1)
        return mu_fail(reterr, code, "%s: %s%s%s (%u tries in %" PRIu64 ".%" PRIu64 " s)", what, tried,
                       before[0] != '\0' ? "; before that: " : "", before, work->attempts, took_ms / 1000,
                       took_ms % 1000 / 100);
    return mu_fail(reterr, code, "%s: %s", what, tried);
}

static void fail(struct work *work, int code)
{
    struct mu_http_request *request = work->request;

    mu_buf_done(&request->reply);
    request->unsure = work->unsure;
    request->rc = describe(work, code, &request->error);
}

void mu_http_give_up(struct mu_http *http, unsigned endpoint)
{
    if (http->current == endpoint)
        http->current = (endpoint + 1) % http->endpoints.count;
}

/* Nothing more can be done in this round: true if there is to be another one. */
static bool pause_work(struct work *work)
{
    struct mu_http *http = work->http;
    uint32_t all = http->endpoints.count == 32 ? UINT32_MAX : (UINT32_C(1) << http->endpoints.count) - 1;

    memcpy(work->tried_before, work->tried, sizeof work->tried);
    work->tried[0] = '\0';
    if ((work->tries.lost & all) == all)
        return false;
    work->due_ms =
        uv_now(http->loop) + mu_tries_pause_ms(&work->tries, MU_HTTP_PAUSE_FIRST_MS, MU_HTTP_PAUSE_MAX_MS, &http->rng);
    if (work->due_ms > work->deadline_ms)
        work->due_ms = work->deadline_ms;
    arm(http);
    return true;
}

/* The last attempt failed, its error is noted: true if the work goes on. */
static bool go_on(struct work *work)
{
    /* An attempt without time would only hide why those before it failed. */
    if (uv_now(work->http->loop) + TRY_MS_MIN >= work->deadline_ms || work->request->only > 0)
        return false;
    if (mu_tries_next(&work->tries, work->http->endpoints.count, work->http->current, &work->endpoint)) {
        attempt(work);
        return true;
    }
    return pause_work(work);
}

static void tell(struct work *work)
{
    struct mu_http_request *request = end(work);

    request->done(request);
}

/* A long poll does not notice a silent server, so long polls at that server are moved to another one. */
static void move_long_polls(struct mu_http *http, unsigned endpoint)
{
    if (http->endpoints.count == 1)
        return;
    MU_LIST_EACH (struct work, work, &http->works, link) {
        bool polls = work->transferring && work->answered && work->request->attempt_ms == UINT64_MAX;

        if (polls && work->endpoint == endpoint && work->request->only == 0)
            work->due_ms = uv_now(http->loop);
    }
    arm(http);
}

/* After a failed attempt: the next one, or the end. */
static void next(struct work *work, bool unsure, const struct muster_error *error)
{
    struct mu_http_request *request = work->request;
    struct muster_error told;

    (void)mu_fail(&told, error->code, "%s: %s: %s", request->what, work->http->endpoints.urls[work->endpoint],
                  error->text);
    /* A long poll that ends without an event says nothing about its server. */
    if (error->code != MUSTER_ETIMEOUT || !work->answered)
        mu_http_give_up(work->http, work->endpoint);
    if (error->code == MUSTER_ETIMEOUT && !work->answered)
        move_long_polls(work->http, work->endpoint);
    work->unsure = work->unsure || unsure;
    if ((unsure && !request->repeatable) || !go_on(work)) {
        fail(work, work->code);
        tell(work);
    } else if (request->work != NULL && request->on_retry != NULL) {
        request->on_retry(request, &told);
    }
}

static enum mu_http_verdict judge(const struct mu_http_request *request, struct muster_error *reterr)
{
    if (request->judge != NULL)
        return request->judge(request, reterr);
    if (request->status < 500)
        return MU_HTTP_TAKE;
    (void)mu_fail(reterr, MUSTER_ELOST, "HTTP %u", request->status);
    return MU_HTTP_AGAIN_UNSURE;
}

static void take_answer(struct work *work)
{
    struct mu_http *http = work->http;
    struct mu_http_request *request = work->request;
    struct muster_error error = { 0 };
    enum mu_http_verdict verdict;

    request->status = work->transfer.status;
    request->etcd_index = work->transfer.etcd_index;
    request->endpoint = work->endpoint;
    mu_buf_done(&request->reply);
    request->reply = work->transfer.reply;
    work->transfer.reply = (struct mu_buf){ 0 };
    verdict = request->on_chunk != NULL ? MU_HTTP_TAKE : judge(request, &error);
    if (verdict != MU_HTTP_TAKE) {
        note(work, &error);
        mu_buf_done(&request->reply);
        next(work, verdict == MU_HTTP_AGAIN_UNSURE, &error);
        return;
    }
    if (request->on_chunk == NULL) /* a stream that ends says nothing about its server */
        http->current = work->endpoint;
    request->unsure = work->unsure;
    tell(work);
}

static void on_transferred(struct mu_curl_transfer *transfer)
{
    struct work *work = transfer->ctx;
    struct mu_http *http = work->http;
    struct muster_error error;

    work->transferring = false;
    if (transfer->local[0] != '\0')
        memcpy(http->local, transfer->local, sizeof http->local);
    if (transfer->rc == 0) {
        http->server.url = http->endpoints.urls[work->endpoint];
        memcpy(http->server.address, transfer->server, sizeof http->server.address);
        http->server.port = transfer->server_port;
        take_answer(work);
        return;
    }
    if (transfer->chunk_rc < 0 && transfer->on_chunk != NULL)
        transfer->error = work->request->error;
    note(work, &transfer->error);
    mu_buf_done(&transfer->reply);
    work->code = transfer->rc;
    if (transfer->permanent)
        work->tries.lost |= UINT32_C(1) << work->endpoint;
    if (transfer->rc != MUSTER_ENOMEM && transfer->rc != MUSTER_ELIMIT && transfer->chunk_rc == 0 && !work->begun) {
        error = transfer->error; /* the next attempt is made in the same place */
        next(work, transfer->sent, &error);
        return;
    }
    if (transfer->chunk_rc == 0)
        mu_http_give_up(http, work->endpoint);
    work->unsure = work->unsure || transfer->sent;
    fail(work, transfer->rc);
    tell(work);
}

/* ---- Attempts ---- */

static int on_chunk(struct mu_curl_transfer *transfer, struct mu_slice bytes)
{
    struct work *work = transfer->ctx;

    work->http->answered_ms[work->endpoint] = uv_now(work->http->loop);
    return work->request->on_chunk(work->request, bytes);
}

/* From here on a stream or a long poll may take its time. */
static void on_head(struct mu_curl_transfer *transfer)
{
    struct work *work = transfer->ctx;

    work->answered = true;
    work->begun = work->request->on_chunk != NULL;
    work->request->status = transfer->status;
    work->request->etcd_index = transfer->etcd_index;
    work->request->endpoint = work->endpoint;
    work->http->answered_ms[work->endpoint] = uv_now(work->http->loop);
    work->due_ms = UINT64_MAX;
    arm(work->http);
}

/* For the head of an answer. */
static uint64_t head_limit(const struct work *work, uint64_t left_ms)
{
    uint64_t asked_ms = work->request->attempt_ms;
    uint64_t limit_ms = asked_ms == 0 || asked_ms == UINT64_MAX ? work->http->attempt_ms : asked_ms;

    return limit_ms < left_ms ? limit_ms : left_ms;
}

static int make_url(struct work *work)
{
    const char *base = work->http->endpoints.urls[work->endpoint];
    size_t room = strlen(base) + strlen(work->request->target) + 1;

    if (room > work->url_room) {
        char *url = realloc(work->url, room);

        if (url == NULL)
            return MUSTER_ENOMEM;
        work->url = url;
        work->url_room = room;
    }
    (void)snprintf(work->url, work->url_room, "%s%s", base, work->request->target);
    return 0;
}

static int start_transfer(struct work *work, struct muster_error *reterr)
{
    struct mu_http_request *request = work->request;
    uint64_t now_ms = uv_now(work->http->loop);
    uint64_t left_ms = work->deadline_ms > now_ms ? work->deadline_ms - now_ms : 1;
    uint64_t limit_ms = head_limit(work, left_ms);
    bool patient = request->on_chunk != NULL || request->attempt_ms == UINT64_MAX;

    if (make_url(work) < 0)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a request");
    work->transfer = (struct mu_curl_transfer){
        .url = work->url,
        .method = request->method,
        .body = request->body,
        .headers = work->headers,
        .once = !request->repeatable,
        .connect_ms = work->http->connect_ms < limit_ms ? work->http->connect_ms : limit_ms,
        .timeout_ms = request->on_chunk != NULL ? 0
                      : patient                 ? left_ms
                                                : limit_ms,
        .head_max = MU_HTTP_HEAD_MAX,
        .reply_max = MU_HTTP_BODY_MAX,
        .on_chunk = request->on_chunk != NULL ? on_chunk : NULL,
        .on_head = on_head,
        .done = on_transferred,
        .ctx = work,
    };
    work->due_ms = patient ? now_ms + limit_ms : UINT64_MAX;
    work->answered = false;
    return mu_curl_add(work->http->curl, &work->transfer, reterr);
}

/* To work->endpoint. What fails here fails later, from the loop. */
static void attempt(struct work *work)
{
    struct muster_error error;
    int rc = start_transfer(work, &error);

    work->attempts++;
    work->transferring = rc == 0;
    if (rc < 0) {
        note(work, &error);
        fail(work, rc);
        end_later(work);
        return;
    }
    arm(work->http);
}

/* The end of a pause, of the time for a stream's head, or of the whole time. */
static void wake(struct work *work)
{
    struct muster_error error;

    if (work->transferring) {
        mu_curl_remove(&work->transfer);
        work->transferring = false;
        (void)mu_fail(&error, MUSTER_ETIMEOUT, "no answer");
        note(work, &error);
        next(work, true, &error);
        return;
    }
    if (!go_on(work)) {
        fail(work, work->code);
        tell(work);
    }
}

static struct work *find_due(const struct mu_http *http)
{
    MU_LIST_EACH (struct work, work, &http->works, link) {
        if (work->due_ms <= uv_now(http->loop))
            return work;
    }
    return NULL;
}

/* ---- The loop ---- */

void mu_http_cancel(struct mu_http_request *request)
{
    struct work *work = request->work;

    if (work == NULL)
        return; /* it is about to be told */
    if (work->transferring)
        mu_curl_remove(&work->transfer);
    mu_buf_done(&request->reply);
    request->rc = mu_fail(&request->error, MUSTER_ECANCELED, "%s: canceled", request->what);
    request->unsure = work->unsure || work->transferring;
    end_later(work);
}

static void handle_closed(struct mu_http *http)
{
    if (--http->handles > 0)
        return;
    if (http->on_closed != NULL)
        http->on_closed(http->closed_ctx);
    free(http);
}

static void on_handle_closed(uv_handle_t *handle)
{
    handle_closed(handle->data);
}

/* Everybody has been told. */
static void shut_down(void *ctx)
{
    struct mu_http *http = ctx;

    assert(http->works_count == 0);
    mu_curl_free(http->curl);
    http->curl = NULL;
    uv_close((uv_handle_t *)&http->timer, on_handle_closed);
    uv_close((uv_handle_t *)&http->curl_timer, on_handle_closed);
}

static void on_timer(uv_timer_t *timer)
{
    struct mu_http *http = timer->data;
    struct work *work;

    while (!http->closing && (work = find_due(http)) != NULL) {
        work->due_ms = UINT64_MAX;
        wake(work);
    }
    arm(http);
}

static void on_curl_timer(uv_timer_t *timer)
{
    struct mu_http *http = timer->data;

    mu_curl_wake(http->curl);
}

static void curl_wake_in(void *ctx, int64_t ms)
{
    struct mu_http *http = ctx;

    if (uv_is_closing((uv_handle_t *)&http->curl_timer))
        return;
    if (ms < 0)
        (void)uv_timer_stop(&http->curl_timer);
    else
        (void)uv_timer_start(&http->curl_timer, on_curl_timer, (uint64_t)ms, 0);
}

static void on_poll(uv_poll_t *handle, int status, int events)
{
    struct poll *poll = handle->data;
    unsigned ready = 0;

    if (status >= 0)
        ready = ((events & UV_READABLE) != 0 ? MU_CURL_READ : 0) | ((events & UV_WRITABLE) != 0 ? MU_CURL_WRITE : 0);
    mu_curl_ready(poll->http->curl, poll->fd, ready);
    if (status < 0 && !uv_is_closing((uv_handle_t *)handle)) /* libuv has stopped it: there was more before the error */
        (void)uv_poll_start(handle, poll->wanted, on_poll);
}

static void on_poll_closed(uv_handle_t *handle)
{
    struct poll *poll = handle->data;
    struct mu_http *http = poll->http;

    free(poll);
    handle_closed(http);
}

static void *curl_watch(void *ctx, void *watch, int fd, unsigned events)
{
    struct mu_http *http = ctx;
    struct poll *poll = watch;
    int wanted = ((events & MU_CURL_READ) != 0 ? UV_READABLE : 0) | ((events & MU_CURL_WRITE) != 0 ? UV_WRITABLE : 0);

    if (events == 0) {
        if (poll != NULL)
            uv_close((uv_handle_t *)&poll->handle, on_poll_closed);
        return NULL;
    }
    if (poll == NULL) {
        poll = malloc(sizeof *poll);
        if (poll == NULL)
            return NULL; /* nothing is heard of it, and its time will be up */
        if (uv_poll_init(http->loop, &poll->handle, fd) < 0) {
            free(poll);
            return NULL;
        }
        poll->handle.data = poll;
        poll->http = http;
        poll->fd = fd;
        http->handles++;
    }
    poll->wanted = wanted;
    (void)uv_poll_start(&poll->handle, wanted, on_poll);
    return poll;
}

static const struct mu_curl_loop curl_loop = { .watch = curl_watch, .wake_in = curl_wake_in };

/* ---- From outside ---- */

static int set_headers(struct work *work)
{
    const struct mu_http_request *request = work->request;
    size_t count = 0;

    static_assert(sizeof request->headers / sizeof request->headers[0] == OWN_MAX, "each has its copy");
    if (request->body.data != NULL) {
        (void)snprintf(work->content_type, sizeof work->content_type, "Content-Type: %s", request->content_type);
        work->headers[count++] = work->content_type;
    }
    for (size_t i = 0; i < OWN_MAX; i++) {
        if (request->headers[i] == NULL)
            continue;
        work->own[i] = strdup(request->headers[i]);
        if (work->own[i] == NULL)
            return MUSTER_ENOMEM;
        work->headers[count++] = work->own[i];
    }
    assert(count < LINES_MAX);
    work->headers[count] = NULL;
    return 0;
}

void mu_http_submit(struct mu_http *http, struct mu_http_request *request)
{
    struct work *work;

    assert(!http->closing && request->timeout_ms > 0 && request->what != NULL);
    request->rc = 0;
    request->error = (struct muster_error){ 0 };
    request->unsure = false;
    request->status = 0;
    request->etcd_index = 0;
    request->reply = (struct mu_buf){ 0 };
    request->work = NULL;
    mu_list_init(&request->link);
    work = http->works_count < MU_HTTP_REQUESTS_MAX ? calloc(1, sizeof *work) : NULL;
    if (work == NULL) {
        request->rc = http->works_count < MU_HTTP_REQUESTS_MAX
                          ? mu_fail(&request->error, MUSTER_ENOMEM, "%s: no memory for a request", request->what)
                          : mu_fail(&request->error, MUSTER_ELIMIT, "%s: %d requests are under way already",
                                    request->what, MU_HTTP_REQUESTS_MAX);
        mu_later_push(&http->later, &request->link);
        return;
    }
    work->http = http;
    work->request = request;
    work->started_ms = uv_now(http->loop);
    work->deadline_ms =
        request->timeout_ms < UINT64_MAX - work->started_ms ? work->started_ms + request->timeout_ms : UINT64_MAX;
    work->code = MUSTER_ETIMEOUT;
    work->due_ms = UINT64_MAX;
    request->work = work;
    mu_list_push(&http->works, &work->link);
    http->works_count++;
    if (set_headers(work) < 0) {
        request->rc = mu_fail(&request->error, MUSTER_ENOMEM, "%s: no memory for a request", request->what);
        end_later(work);
        return;
    }
    assert(request->only <= http->endpoints.count);
    if (request->only > 0)
        work->endpoint = request->only - 1;
    else
        (void)mu_tries_next(&work->tries, http->endpoints.count, http->current, &work->endpoint);
    attempt(work);
}

void mu_http_refuse(struct mu_http *http, struct mu_http_request *request)
{
    assert(!http->closing && request->rc < 0);
    request->work = NULL;
    mu_list_init(&request->link);
    mu_later_push(&http->later, &request->link);
}

int mu_http_so_far(const struct mu_http_request *request, struct muster_error *reterr)
{
    const struct work *work = request->work;

    if (work == NULL)
        return mu_fail(reterr, MUSTER_ETIMEOUT, "%s: time is up", request->what);
    return describe(work, work->code, reterr);
}

const char *mu_http_endpoint(const struct mu_http *http, unsigned endpoint)
{
    return endpoint < http->endpoints.count ? http->endpoints.urls[endpoint] : "";
}

unsigned mu_http_endpoints_count(const struct mu_http *http)
{
    return http->endpoints.count;
}

uint64_t mu_http_answered_ms(const struct mu_http *http, unsigned endpoint)
{
    return endpoint < http->endpoints.count ? http->answered_ms[endpoint] : 0;
}

bool mu_http_local_address(const struct mu_http *http, char *text, size_t room)
{
    return http->local[0] != '\0' && (size_t)snprintf(text, room, "%s", http->local) < room;
}

bool mu_http_server(const struct mu_http *http, struct mu_http_server *ret_server)
{
    *ret_server = http->server;
    return http->server.port != 0;
}

void mu_http_close(struct mu_http *http, mu_http_closed *closed, void *ctx)
{
    struct work *work;

    assert(!http->closing);
    http->on_closed = closed;
    http->closed_ctx = ctx;
    while ((work = MU_LIST_FIRST(struct work, &http->works, link)) != NULL)
        mu_http_cancel(work->request);
    http->closing = true;
    mu_later_close(&http->later, shut_down, http);
}

static int check_file(const char *what, const char *path, struct muster_error *reterr)
{
    if (path != NULL && access(path, R_OK) != 0)
        return mu_fail_errno(reterr, errno, "%s '%s'", what, path);
    return 0;
}

static int check_config(const struct mu_http_config *config, struct muster_error *reterr)
{
    int rc = check_file("CA file", config->ca_file, reterr);

    if (rc == 0)
        rc = check_file("certificate", config->cert_file, reterr);
    if (rc == 0)
        rc = check_file("key", config->key_file, reterr);
    if (rc < 0)
        return rc;
    if (config->key_file != NULL && config->cert_file == NULL)
        return mu_fail(reterr, MUSTER_EINVAL, "a key ('%s') needs a certificate", config->key_file);
    if (config->protocol != NULL && strcmp(config->protocol, "http") != 0 && strcmp(config->protocol, "https") != 0)
        return mu_fail(reterr, MUSTER_EINVAL, "protocol '%s' is neither http nor https", config->protocol);
    return 0;
}

static int set_up(struct mu_http *http, const struct mu_http_config *config, struct muster_error *reterr)
{
    int rc = check_config(config, reterr);

    if (rc == 0)
        rc = mu_endpoints_parse(config->endpoints, config->protocol != NULL ? config->protocol : "http",
                                MU_HTTP_ETCD_PORT, &http->endpoints, reterr);
    return rc == 0 ? mu_curl_new(config, &curl_loop, http, &http->curl, reterr) : rc;
}

int mu_http_start(uv_loop_t *loop, const struct mu_http_config *config, struct mu_http **ret_http,
                  struct muster_error *reterr)
{
    struct mu_http *http = calloc(1, sizeof *http);
    int rc;

    if (http == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "etcd: no memory for a client");
    http->loop = loop;
    http->rng = mu_rng_seeded(config->seed);
    http->connect_ms = config->connect_ms != 0 ? config->connect_ms : MU_HTTP_CONNECT_MS;
    http->attempt_ms = config->attempt_ms != 0 ? config->attempt_ms : MU_HTTP_ATTEMPT_MS;
    mu_list_init(&http->works);
    rc = set_up(http, config, reterr);
    if (rc < 0) {
        free(http);
        return mu_wrap(reterr, rc, "etcd");
    }
    (void)uv_timer_init(loop, &http->timer); /* these only fill in memory */
    (void)uv_timer_init(loop, &http->curl_timer);
    http->timer.data = http->curl_timer.data = http;
    mu_later_open(&http->later, loop, tell_answer);
    http->handles = 2;
    if (!config->first_is_first)
        http->current = (unsigned)mu_rng_below(&http->rng, http->endpoints.count);
    *ret_http = http;
    return 0;
}
