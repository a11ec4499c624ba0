/* A client of etcd's version 2 API.
 *
 * Calls: built, sent, read; who is asked, and how often, is decided below. A server that says that it is in trouble (5xx) is
 * as good as none.
 * Watches: one long poll after the other, each from the index behind the last event. A poll that cannot be made is made again
 * for ever; the first failure is told, and the first success after it.
 * Leases: a refresh when it is time, tried for as long as the key can be alive. */
#include "kv/etcd2_uv.h"

#include "base/rng.h"

#include <assert.h>
#include <stdlib.h>

enum {
    AGAIN_MS = 500,          /* until a watch or a lease is tried again that failed at once, +- 50 percent */
    REFRESH_LEAST_MS = 1000, /* for a refresh, however late it is */
};

struct mu_etcd2 {
    uv_loop_t *loop;
    struct mu_http *http;
    struct mu_rng rng;
    mu_etcd2_closed *on_closed;
    void *closed_ctx;
};

/* ---- Calls ---- */

static enum mu_http_verdict judge(const struct mu_http_request *http, struct muster_error *reterr)
{
    struct mu_etcd2_answer answer = { 0 };
    int rc;

    if (http->status < 500 && (http->reply.len > 0 || http->status >= 300))
        return MU_HTTP_TAKE;
    /* A server that shuts down ends long polls with nothing. */
    rc = mu_etcd2_read(http->status, http->etcd_index, mu_buf_slice(&http->reply), &answer, reterr);
    if (rc == 0)
        (void)mu_etcd2_fail(&answer, http->status, reterr);
    reterr->code = MUSTER_ELOST;
    mu_etcd2_answer_done(&answer);
    return MU_HTTP_AGAIN_UNSURE;
}

static void read_answer(struct mu_etcd2_call *call)
{
    const char *endpoint = mu_http_endpoint(call->etcd->http, call->http.endpoint);

    call->status = call->http.status;
    call->rc = mu_etcd2_read(call->status, call->http.etcd_index, mu_buf_slice(&call->http.reply), &call->answer,
                             &call->error);
    if (call->rc == 0 && call->answer.code == 0 && call->answer.nodes_count == 0 && !call->request.no_value) {
        mu_etcd2_answer_done(&call->answer);
        call->rc = mu_fail(&call->error, MUSTER_EPROTOCOL, "HTTP %u: 'node' is missing", call->status);
    }
    if (call->rc == 0 && call->answer.code != 0)
        (void)mu_etcd2_fail(&call->answer, call->status, &call->error);
    if (call->rc < 0 || call->answer.code != 0)
        (void)mu_wrap(&call->error, call->error.code, "%s: %s", call->what, endpoint);
}

static void on_http_done(struct mu_http_request *http)
{
    struct mu_etcd2_call *call = http->ctx;

    call->error = http->error;
    call->rc = http->rc;
    call->unsure =
        http->rc < 0 && http->unsure && (call->request.kind == MU_ETCD2_PUT || call->request.kind == MU_ETCD2_DELETE);
    if (http->rc == 0)
        read_answer(call);
    mu_buf_done(&http->reply);
    mu_etcd2_wire_done(&call->wire);
    call->done(call);
}

bool mu_etcd2_is_away(int rc)
{
    return rc == MUSTER_ETIMEOUT || rc == MUSTER_ECONNECT || rc == MUSTER_ELOST || rc == MUSTER_ERESOLVE;
}

void mu_etcd2_call(struct mu_etcd2 *etcd, struct mu_etcd2_call *call)
{
    int rc;

    assert(call->timeout_ms > 0);
    call->etcd = etcd;
    call->rc = 0;
    call->unsure = false;
    call->status = 0;
    call->error = (struct muster_error){ 0 };
    call->answer = (struct mu_etcd2_answer){ 0 };
    call->wire = (struct mu_etcd2_wire){ 0 };
    (void)mu_etcd2_text(&call->request, call->what, sizeof call->what);
    call->http = (struct mu_http_request){ .what = call->what,
                                           .timeout_ms = call->timeout_ms,
                                           .attempt_ms = call->request.kind == MU_ETCD2_WATCH ? UINT64_MAX : 0,
                                           .repeatable = mu_etcd2_is_repeatable(&call->request),
                                           .judge = judge,
                                           .done = on_http_done,
                                           .ctx = call };
    rc = mu_etcd2_build(&call->request, &call->wire, &call->http.error);
    if (rc < 0) {
        call->http.rc = mu_wrap(&call->http.error, rc, "%s", call->what);
        mu_http_refuse(etcd->http, &call->http);
        return;
    }
    call->http.method = call->wire.method;
    call->http.target = call->wire.target.data;
    if (call->request.kind == MU_ETCD2_PUT) {
        call->http.body = call->wire.body.data != NULL ? mu_buf_slice(&call->wire.body) : mu_slice("", 0);
        call->http.content_type = "application/x-www-form-urlencoded";
    }
    mu_http_submit(etcd->http, &call->http);
}

void mu_etcd2_cancel(struct mu_etcd2_call *call)
{
    mu_http_cancel(call->etcd->http, &call->http);
}

/* ---- Watches ---- */

struct mu_etcd2_watch {
    struct mu_etcd2 *etcd;
    struct mu_etcd2_call call;
    const struct mu_etcd2_watch_ops *ops;
    void *ctx;
    uv_timer_t timer;
    uint64_t index; /* the next that counts; 0: not known yet */
    bool polling, closed, timer_closed;
    bool trouble;
    char *key;
};

static void poll(struct mu_etcd2_watch *watch);

static void free_watch_if_over(struct mu_etcd2_watch *watch)
{
    if (!watch->timer_closed || watch->polling)
        return;
    free(watch->key);
    free(watch);
}

static void on_watch_timer_closed(uv_handle_t *handle)
{
    struct mu_etcd2_watch *watch = handle->data;

    watch->timer_closed = true;
    free_watch_if_over(watch);
}

static void on_watch_timer(uv_timer_t *timer)
{
    poll(timer->data);
}

static void tell_trouble(struct mu_etcd2_watch *watch, const struct muster_error *error)
{
    if (watch->closed || watch->trouble == (error != NULL))
        return;
    watch->trouble = error != NULL;
    if (watch->ops->on_trouble != NULL)
        watch->ops->on_trouble(watch, error, watch->ctx);
}

static void poll_later(struct mu_etcd2_watch *watch)
{
    if (!watch->closed)
        (void)uv_timer_start(&watch->timer, on_watch_timer, mu_rng_jitter(&watch->etcd->rng, AGAIN_MS, 50), 0);
}

/* Etcd has answered. Afterwards the watch may be closed. */
static void take_event(struct mu_etcd2_watch *watch)
{
    const struct mu_etcd2_answer *answer = &watch->call.answer;

    if (answer->code == MU_ETCD2_OK) {
        watch->index = answer->nodes[0].modified + 1;
        tell_trouble(watch, NULL);
        if (!watch->closed)
            watch->ops->on_event(watch, answer, watch->ctx);
    } else {
        watch->index = answer->index == 0 ? 0 : answer->index + 1;
        tell_trouble(watch, NULL);
        if (!watch->closed)
            watch->ops->on_cleared(watch, answer->index, watch->ctx);
    }
}

static void on_polled(struct mu_etcd2_call *call)
{
    struct mu_etcd2_watch *watch = call->ctx;
    bool event = call->rc == 0 && (call->answer.code == MU_ETCD2_OK || call->answer.code == MU_ETCD2_INDEX_CLEARED);
    bool nothing = call->rc == MUSTER_ETIMEOUT && call->http.status == 200;

    watch->polling = false;
    if (watch->index == 0 && nothing && call->http.etcd_index > 0)
        watch->index = call->http.etcd_index + 1; /* so that nothing is missed between two polls */
    if (!watch->closed && event)
        take_event(watch);
    else if (!event)
        tell_trouble(watch, nothing ? NULL : &call->error);
    mu_etcd2_answer_done(&call->answer);
    if (watch->closed)
        free_watch_if_over(watch);
    else if (event || nothing)
        poll(watch);
    else
        poll_later(watch);
}

static void on_poll_retry(struct mu_http_request *http, const struct muster_error *error)
{
    struct mu_etcd2_call *call = http->ctx;

    tell_trouble(call->ctx, error);
}

static void poll(struct mu_etcd2_watch *watch)
{
    watch->polling = true;
    watch->call.request.wait_index = watch->index;
    mu_etcd2_call(watch->etcd, &watch->call);
    watch->call.http.on_retry = on_poll_retry;
}

int mu_etcd2_watch_start(struct mu_etcd2 *etcd, struct mu_slice key, bool recursive, uint64_t index,
                         const struct mu_etcd2_watch_ops *ops, void *ctx, struct mu_etcd2_watch **ret_watch,
                         struct muster_error *reterr)
{
    struct mu_etcd2_watch *watch = calloc(1, sizeof *watch);
    char *own = watch == NULL ? NULL : malloc(key.len + 1);

    if (own == NULL) {
        free(watch);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a watch");
    }
    memcpy(own, key.data, key.len);
    watch->etcd = etcd;
    watch->ops = ops;
    watch->ctx = ctx;
    watch->index = index;
    watch->key = own;
    watch->call = (struct mu_etcd2_call){
        .request = { .kind = MU_ETCD2_WATCH, .key = mu_slice(own, key.len), .recursive = recursive },
        .timeout_ms = MU_ETCD2_POLL_MS,
        .done = on_polled,
        .ctx = watch,
    };
    (void)uv_timer_init(etcd->loop, &watch->timer); /* fills in memory only */
    watch->timer.data = watch;
    poll(watch);
    *ret_watch = watch;
    return 0;
}

void mu_etcd2_watch_close(struct mu_etcd2_watch *watch)
{
    assert(!watch->closed);
    watch->closed = true;
    if (watch->polling)
        mu_etcd2_cancel(&watch->call);
    uv_close((uv_handle_t *)&watch->timer, on_watch_timer_closed);
}

/* ---- Leases ---- */

struct mu_etcd2_lease {
    struct mu_etcd2 *etcd;
    struct mu_etcd2_call call;
    mu_etcd2_lost *on_lost;
    void *ctx;
    uv_timer_t timer;
    uint64_t every_ms, ttl_ms;
    uint64_t since_ms; /* when the last write that was carried out was sent */
    uint64_t sent_ms;  /* the one under way */
    bool refreshing, lost, closed, timer_closed;
    char *key;
};

static void free_lease_if_over(struct mu_etcd2_lease *lease)
{
    if (!lease->timer_closed || lease->refreshing)
        return;
    free(lease->key);
    free(lease);
}

static void on_lease_timer_closed(uv_handle_t *handle)
{
    struct mu_etcd2_lease *lease = handle->data;

    lease->timer_closed = true;
    free_lease_if_over(lease);
}

static void refresh(uv_timer_t *timer)
{
    struct mu_etcd2_lease *lease = timer->data;
    uint64_t now_ms = uv_now(lease->etcd->loop), end_ms = lease->since_ms + lease->ttl_ms;

    lease->refreshing = true;
    lease->sent_ms = now_ms;
    lease->call.timeout_ms = end_ms > now_ms + REFRESH_LEAST_MS ? end_ms - now_ms : REFRESH_LEAST_MS;
    mu_etcd2_call(lease->etcd, &lease->call);
}

static void refresh_at(struct mu_etcd2_lease *lease, uint64_t at_ms)
{
    uint64_t now_ms = uv_now(lease->etcd->loop);

    (void)uv_timer_start(&lease->timer, refresh, at_ms > now_ms ? at_ms - now_ms : 0, 0);
}

static void on_refreshed(struct mu_etcd2_call *call)
{
    struct mu_etcd2_lease *lease = call->ctx;
    uint64_t now_ms = uv_now(lease->etcd->loop);
    bool gone = call->rc == 0 && call->answer.code == MU_ETCD2_NOT_FOUND;
    bool done = call->rc == 0 && call->answer.code == MU_ETCD2_OK;

    lease->refreshing = false;
    mu_etcd2_answer_done(&call->answer);
    if (lease->closed) {
        free_lease_if_over(lease);
    } else if (done) {
        lease->since_ms = lease->sent_ms;
        refresh_at(lease, lease->sent_ms + lease->every_ms);
    } else if (gone || now_ms >= lease->since_ms + lease->ttl_ms) {
        lease->lost = true;
        lease->on_lost(lease, &call->error, lease->ctx);
    } else {
        refresh_at(lease, now_ms + mu_rng_jitter(&lease->etcd->rng, AGAIN_MS, 50));
    }
}

int mu_etcd2_lease_start(struct mu_etcd2 *etcd, struct mu_slice key, bool dir, int64_t ttl_s, uint64_t every_ms,
                         uint64_t since_ms, mu_etcd2_lost *on_lost, void *ctx, struct mu_etcd2_lease **ret_lease,
                         struct muster_error *reterr)
{
    struct mu_etcd2_lease *lease = calloc(1, sizeof *lease);
    char *own = lease == NULL ? NULL : malloc(key.len + 1);

    assert(ttl_s > 0);
    if (own == NULL) {
        free(lease);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a lease");
    }
    memcpy(own, key.data, key.len);
    lease->etcd = etcd;
    lease->on_lost = on_lost;
    lease->ctx = ctx;
    lease->ttl_ms = (uint64_t)ttl_s * 1000;
    lease->every_ms = every_ms != 0 ? every_ms : lease->ttl_ms / 3;
    lease->since_ms = since_ms;
    lease->key = own;
    lease->call = (struct mu_etcd2_call){
        .request = { .kind = MU_ETCD2_PUT,
                     .key = mu_slice(own, key.len),
                     .dir = dir,
                     .refresh = true,
                     .ttl_s = ttl_s,
                     .prev_exist = MU_ETCD2_MUST },
        .done = on_refreshed,
        .ctx = lease,
    };
    (void)uv_timer_init(etcd->loop, &lease->timer); /* fills in memory only */
    lease->timer.data = lease;
    refresh_at(lease, since_ms + lease->every_ms);
    *ret_lease = lease;
    return 0;
}

void mu_etcd2_lease_close(struct mu_etcd2_lease *lease)
{
    assert(!lease->closed);
    lease->closed = true;
    if (lease->refreshing)
        mu_etcd2_cancel(&lease->call);
    uv_close((uv_handle_t *)&lease->timer, on_lease_timer_closed);
}

/* ---- Start and end ---- */

int mu_etcd2_start(uv_loop_t *loop, const struct mu_http_config *config, struct mu_etcd2 **ret_etcd,
                   struct muster_error *reterr)
{
    struct mu_etcd2 *etcd = calloc(1, sizeof *etcd);
    int rc;

    if (etcd == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "etcd: no memory for a client");
    etcd->loop = loop;
    etcd->rng = mu_rng_seeded(config->seed + 1);
    rc = mu_http_start(loop, config, &etcd->http, reterr);
    if (rc < 0) {
        free(etcd);
        return mu_wrap(reterr, rc, "etcd");
    }
    *ret_etcd = etcd;
    return 0;
}

static void on_http_closed(struct mu_http *http, void *ctx)
{
    struct mu_etcd2 *etcd = ctx;

    (void)http;
    if (etcd->on_closed != NULL)
        etcd->on_closed(etcd->closed_ctx);
    free(etcd);
}

void mu_etcd2_close(struct mu_etcd2 *etcd, mu_etcd2_closed *closed, void *ctx)
{
    etcd->on_closed = closed;
    etcd->closed_ctx = ctx;
    mu_http_close(etcd->http, on_http_closed, etcd);
}

struct mu_http *mu_etcd2_http(struct mu_etcd2 *etcd)
{
    return etcd->http;
}
