/* Log-in and calls of a client of etcd's version 3 API. A call is built, sent and read; http_uv.c decides which server
 * is asked, and how often. With a user name a call first waits for a log-in; if its token is refused it waits for
 * another one, once. It waits as long as its own timeout allows, whatever time the other calls and the log-in have. */
#include "kv/etcd3_parts_uv.h"

#include "base/text.h"
#include "kv/later_uv.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    LOG_IN_MS = 10000, /* for one log-in; then there is another one, if a call still waits */
    TOKEN_LINE_MAX = 4096,
};

static const struct muster_error canceled = { .code = MUSTER_ECANCELED, .text = "canceled" };

/* ---- Log-in ---- */

static void send_call(struct mu_etcd3_call *call);
static void start_log_in(struct mu_etcd3 *etcd);

bool mu_etcd3_needs_log_in(const struct mu_etcd3 *etcd)
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
    struct mu_etcd3_call *call = MU_LIST_POP(struct mu_etcd3_call, from, link);

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
        rc = mu_fail(reterr, MUSTER_EPROTOCOL, "%s: etcd's token has a line break, or more than %d bytes",
                     etcd->log_in.what, TOKEN_LINE_MAX);
    } else if ((etcd->token_line = mu_text_format("Authorization: %s", answer.token.data)) == NULL) {
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

/* The timer is always derived from the calls that wait. */
static void arm_waiting(struct mu_etcd3 *etcd)
{
    uint64_t until_ms = UINT64_MAX;

    MU_LIST_EACH (const struct mu_etcd3_call, call, &etcd->waiting, link) {
        if (call->started_ms + call->timeout_ms < until_ms)
            until_ms = call->started_ms + call->timeout_ms;
    }
    mu_timer_until(&etcd->timer, until_ms, on_waited);
}

/* Calls whose time is up wait no longer; the log-in goes on for the others and for later calls. */
static void on_waited(uv_timer_t *timer)
{
    struct mu_etcd3 *etcd = timer->data;
    struct muster_error error;
    int rc = mu_http_so_far(&etcd->log_in, &error);

    MU_LIST_EACH_LEAVING (struct mu_etcd3_call, call, &etcd->waiting, link) {
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
    /* No server answered in time: other calls may wait longer. A failure before that time would happen again. */
    bool away = http->rc < 0 && uv_now(etcd->loop) - etcd->log_in_ms >= LOG_IN_MS;
    int rc = http->rc == 0 ? take_token(etcd, &error) : http->rc;

    etcd->logging_in = false;
    mu_buf_done(&http->reply);
    mu_buf_done(&etcd->log_in_body);
    mu_list_take(&all, &etcd->waiting);
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
void mu_etcd3_drop_token(struct mu_etcd3 *etcd, unsigned token_number)
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
    mu_etcd3_drop_token(etcd, call->token_number);
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
    if (http->rc == 0)
        read_answer(call);
    /* What etcd refuses is not done, unless an earlier attempt was. */
    call->unsure = call->rc < 0 && (http->unsure || (http->rc == 0 && call->answer.code == 0));
    mu_buf_done(&http->reply);
    if (call->rc < 0 && call->answer.code != 0 && !call->etcd->closing && logs_in_again(call))
        return;
    mu_buf_done(&call->body);
    call->done(call);
}

static void send_call(struct mu_etcd3_call *call)
{
    struct mu_etcd3 *etcd = call->etcd;
    uint64_t left_ms = time_left(call);

    if (mu_etcd3_needs_log_in(etcd)) {
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
                                           .repeatable = call->request.kind != MU_ETCD3_TXN || call->repeatable,
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
    if (!call->waiting) {
        mu_http_cancel(&call->http);
        return;
    }
    mu_list_remove(&call->link);
    call->waiting = false;
    refuse(call, MUSTER_ECANCELED, &canceled);
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
            return mu_fail(reterr, MUSTER_EINVAL, "etcd: the token has a line break, or more than %d bytes",
                           TOKEN_LINE_MAX);
        etcd->token_line = mu_text_format("Authorization: %s", config->token);
        failed = etcd->token_line == NULL;
    }
    return failed ? mu_fail(reterr, MUSTER_ENOMEM, "etcd: no memory for a client") : 0;
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
        return rc;
    }
    (void)uv_timer_init(loop, &etcd->timer); /* only fills in memory */
    etcd->timer.data = etcd;
    *ret_etcd = etcd;
    return 0;
}

static void part_closed(void *ctx)
{
    struct mu_etcd3 *etcd = ctx;

    if (--etcd->parts > 0)
        return;
    if (etcd->on_closed != NULL)
        etcd->on_closed(etcd->closed_ctx);
    free_etcd(etcd);
}

static void on_timer_closed(uv_handle_t *handle)
{
    part_closed(handle->data);
}

void mu_etcd3_close(struct mu_etcd3 *etcd, mu_etcd3_closed *closed, void *ctx)
{
    struct mu_etcd3_call *call;

    assert(!etcd->closing);
    etcd->closing = true;
    etcd->on_closed = closed;
    etcd->closed_ctx = ctx;
    while ((call = pop_waiting(&etcd->waiting)) != NULL)
        refuse(call, MUSTER_ECANCELED, &canceled);
    etcd->parts = 2;
    uv_close((uv_handle_t *)&etcd->timer, on_timer_closed);
    mu_http_close(etcd->http, part_closed, etcd);
}

struct mu_http *mu_etcd3_http(struct mu_etcd3 *etcd)
{
    return etcd->http;
}
