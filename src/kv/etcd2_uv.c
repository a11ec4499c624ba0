/* Calls of etcd's version 2 API. A call is built, sent and read; http_uv.c decides which server is asked, and how
 * often. A server that says that it is in trouble (5xx) counts as unreachable. */
#include "kv/etcd2_uv.h"

#include <assert.h>

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
    const char *endpoint = mu_http_endpoint(call->etcd, call->http.endpoint);

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

static void on_connection_ended(struct mu_http_request *http, const struct muster_error *error)
{
    (void)error;
    mu_http_cancel(http);
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

void mu_etcd2_call(struct mu_http *etcd, struct mu_etcd2_call *call)
{
    int rc;

    assert(call->timeout_ms > 0);
    *call = (struct mu_etcd2_call){
        .request = call->request, .timeout_ms = call->timeout_ms, .done = call->done, .ctx = call->ctx, .etcd = etcd
    };
    (void)mu_etcd2_text(&call->request, call->what, sizeof call->what);
    call->http = (struct mu_http_request){ .what = call->what,
                                           .timeout_ms = call->timeout_ms,
                                           .attempt_ms = call->request.kind == MU_ETCD2_WATCH ? UINT64_MAX : 0,
                                           .repeatable = mu_etcd2_is_repeatable(&call->request),
                                           .judge = judge,
                                           .on_retry = call->request.once ? on_connection_ended : NULL,
                                           .done = on_http_done,
                                           .ctx = call };
    rc = mu_etcd2_build(&call->request, &call->wire, &call->http.error);
    if (rc < 0) {
        call->http.rc = mu_wrap(&call->http.error, rc, "%s", call->what);
        mu_http_refuse(etcd, &call->http);
        return;
    }
    call->http.method = call->wire.method;
    call->http.target = call->wire.target.data;
    if (call->request.kind == MU_ETCD2_PUT) {
        call->http.body = call->wire.body.data != NULL ? mu_buf_slice(&call->wire.body) : mu_slice("", 0);
        call->http.content_type = "application/x-www-form-urlencoded";
    }
    mu_http_submit(etcd, &call->http);
}

void mu_etcd2_ask(struct mu_http *etcd, struct mu_etcd2_call *call, struct mu_etcd2_request request,
                  uint64_t timeout_ms, mu_etcd2_done *done, void *ctx)
{
    *call = (struct mu_etcd2_call){
        .request = request, .timeout_ms = timeout_ms > 0 ? timeout_ms : 1, .done = done, .ctx = ctx
    };
    mu_etcd2_call(etcd, call);
}

void mu_etcd2_cancel(struct mu_etcd2_call *call)
{
    mu_http_cancel(&call->http);
}
