/* PyTorch's etcd-v2 rendezvous: a dynamic rendezvous whose document is in etcd.
 *
 *   STARTING --> CONNECTING --> RUNNING: everything goes to the handler within
 *       ^            v no etcd there, or one that does not let us
 *       +--next ask-- FAILED
 *
 * Happy path: the document is read once, so that whoever cannot reach etcd learns so in read_timeout and not in join_timeout.
 * What is asked meanwhile waits. Failures are told as the failure of what was asked; once it runs, an etcd that is away is the
 * dynamic rendezvous' to bear. */
#include "kv/kv_etcd_v2_uv.h"

#include "handler/front_uv.h"
#include "kv/endpoints.h"
#include "kv/etcd_store_uv.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

enum { PROTOCOL_MAX = 16 };

struct etcd_v2 {
    struct mu_front front;
    /* By the parameters. */
    struct mu_http_config http; /* its texts are ours */
    char *endpoints, *ca_file, *cert_file, *key_file;
    char protocol[PROTOCOL_MAX];
    struct mu_doc_dialect dialect;
    uint64_t read_timeout_ms;
    struct mu_rdzv_settings settings;
    struct mu_kv_request first; /* whether etcd is there at all */
};

/* ---- Ending ---- */

static void free_texts(struct etcd_v2 *e)
{
    free(e->endpoints);
    free(e->ca_file);
    free(e->cert_file);
    free(e->key_file);
}

static void over(struct mu_front *front)
{
    free_texts((struct etcd_v2 *)front);
    mu_front_free(front);
}

/* ---- Connecting ---- */

static void run(struct etcd_v2 *e)
{
    const struct mu_dynamic_config config = {
        .backend = "etcd-v2",
        .run_id = e->front.run_id,
        .local_addr = e->front.local_addr,
        .bind = mu_front_bind(&e->front),
        .master = e->front.master,
        .settings = e->settings,
        .dialect = e->dialect,
        .local_id = e->front.local_id,
        .use_agent_store = e->front.use_agent_store,
        .request_timeout_ms = e->read_timeout_ms,
    };

    mu_front_run(&e->front, &config);
}

static void on_first_read(struct mu_kv_request *request)
{
    struct etcd_v2 *e = request->ctx;

    muster_bytes_done(&request->bytes);
    muster_bytes_done(&request->state_token);
    if (e->front.freeing)
        return;
    if (request->rc == 0 || request->rc == MUSTER_ERDZV_STATE) /* which is not the connection's fault */
        run(e);
    else
        mu_front_fail(&e->front, MUSTER_ERDZV_CONNECTION, &request->error);
}

static void begin(struct mu_front *front)
{
    struct etcd_v2 *e = (struct etcd_v2 *)front;
    const struct mu_kv_etcd_v2_config config = { .http = &e->http, .run_id = front->run_id };
    struct muster_error error;
    int rc;

    assert(front->kv == NULL && front->inner == NULL);
    rc = mu_kv_etcd_v2_start(front->loop, &config, &front->kv, &error);
    if (rc < 0) {
        mu_front_fail(front, rc, &error);
        return;
    }
    e->first = (struct mu_kv_request){ .kind = MU_KV_READ,
                                       .timeout_ms = e->read_timeout_ms < e->settings.join_ms ? e->read_timeout_ms
                                                                                              : e->settings.join_ms,
                                       .done = on_first_read,
                                       .ctx = e };
    front->kv->ops->submit(front->kv, &e->first);
}

/* ---- The handler ---- */

static const struct muster_handler_ops etcd_v2_ops = {
    .size = sizeof etcd_v2_ops,
    .name = "etcd-v2",
    .join = mu_front_join,
    .leave = mu_front_leave,
    .close = mu_front_close,
    .look = mu_front_look,
    .use_agent_store = mu_front_use_agent_store,
    .free = mu_front_end,
    .when_alone = mu_front_when_alone,
};

static int open_kv(struct muster_handler *handler, struct mu_kv **ret_kv, struct muster_error *reterr)
{
    struct etcd_v2 *e = (struct etcd_v2 *)handler;
    const struct mu_kv_etcd_store_config config = { .http = &e->http,
                                                    .dir = MU_KV_ETCD_V2_STORE,
                                                    .seed = e->http.seed + 2 };

    return mu_kv_etcd_store_start(e->front.loop, &config, ret_kv, reterr);
}

static const struct mu_handler_ops agent_ops = { .open_kv = open_kv };
static const struct mu_front_ops front_ops = { &etcd_v2_ops, &agent_ops, .begin = begin, .over = over };

/* ---- Parameters ---- */

static int copy(const char *text, char **ret_own, struct muster_error *reterr)
{
    *ret_own = text == NULL ? NULL : strdup(text);
    if (text != NULL && *ret_own == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a rendezvous");
    return 0;
}

/* NULL if there is no such option, or an empty one. */
static int read_text(const struct muster_rdzv_params *params, const char *name, char **ret_own,
                     struct muster_error *reterr)
{
    struct muster_value value;

    if (!muster_rdzv_params_get(params, name, &value))
        return 0;
    if (value.kind != MUSTER_VALUE_TEXT)
        return mu_fail(reterr, MUSTER_EINVAL, "option '%s' is not text", name);
    return copy(value.text[0] == '\0' ? NULL : value.text, ret_own, reterr);
}

/* Trimmed, and in lower case. */
static int read_protocol(struct etcd_v2 *e, const struct muster_rdzv_params *params, struct muster_error *reterr)
{
    char *text = NULL;
    size_t len = 0;
    int rc = read_text(params, "protocol", &text, reterr);

    if (rc < 0)
        return rc;
    (void)snprintf(e->protocol, sizeof e->protocol, "http");
    if (text != NULL) {
        const char *start = text + strspn(text, " \t\r\n");

        while (start[len] != '\0' && !isspace((unsigned char)start[len]) && len < sizeof e->protocol - 1) {
            e->protocol[len] = (char)tolower((unsigned char)start[len]);
            len++;
        }
        e->protocol[len] = '\0';
        if (start[len + strspn(start + len, " \t\r\n")] != '\0' ||
            (strcmp(e->protocol, "http") != 0 && strcmp(e->protocol, "https") != 0))
            rc = mu_fail(reterr, MUSTER_EINVAL, "option 'protocol': '%.40s' is neither http nor https", text);
    }
    free(text);
    e->http.protocol = e->protocol;
    return rc;
}

static int read_endpoints(struct etcd_v2 *e, const struct muster_rdzv_params *params, struct muster_error *reterr)
{
    const char *endpoint = muster_rdzv_params_endpoint(params);
    struct mu_endpoints endpoints;
    int rc = copy(endpoint[strspn(endpoint, " \t")] == '\0' ? "localhost" : endpoint, &e->endpoints, reterr);

    if (rc == 0) /* to say it now, and not when it is used */
        rc = mu_endpoints_parse(e->endpoints, e->protocol, MU_HTTP_ETCD_PORT, &endpoints, reterr);
    e->http.endpoints = e->endpoints;
    return rc;
}

static int read_files(struct etcd_v2 *e, const struct muster_rdzv_params *params, struct muster_error *reterr)
{
    int rc = read_text(params, "ca_cert", &e->ca_file, reterr);

    if (rc == 0)
        rc = read_text(params, "ssl_cert", &e->cert_file, reterr);
    if (rc == 0)
        rc = read_text(params, "ssl_cert_key", &e->key_file, reterr);
    if (rc == 0 && e->key_file != NULL && e->cert_file == NULL)
        rc = mu_fail(reterr, MUSTER_EINVAL, "option 'ssl_cert_key' needs 'ssl_cert'");
    e->http.ca_file = e->ca_file;
    e->http.cert_file = e->cert_file;
    e->http.key_file = e->key_file;
    return rc;
}

static int read_params(struct etcd_v2 *e, const struct muster_rdzv_params *params, struct muster_error *reterr)
{
    int rc = mu_rdzv_check_options("etcd-v2", params, reterr);

    if (rc == 0)
        rc = read_protocol(e, params, reterr);
    if (rc == 0)
        rc = read_endpoints(e, params, reterr);
    if (rc == 0)
        rc = read_files(e, params, reterr);
    if (rc == 0)
        rc = mu_rdzv_read_timeout_from_params(params, &e->read_timeout_ms, reterr);
    if (rc == 0)
        rc = mu_rdzv_dialect_from_params(params, &e->dialect, &e->front.use_agent_store, reterr);
    if (rc == 0)
        rc = mu_rdzv_settings_from_params(params, &e->settings, reterr);
    if (rc == 0)
        rc = copy(muster_rdzv_params_run_id(params), &e->front.run_id, reterr);
    if (rc == 0)
        rc = copy(muster_rdzv_params_local_addr(params), &e->front.local_addr, reterr);
    return rc == 0 ? mu_front_take_places(&e->front, params, reterr) : rc;
}

static void free_all(struct etcd_v2 *e)
{
    free_texts(e);
    mu_front_free_texts(&e->front);
}

int mu_etcd_v2_start(struct uv_loop_s *loop, const struct muster_rdzv_params *params, muster_rdzv_listener *listener,
                     void *ctx, struct muster_handler **ret_handler, struct muster_error *reterr)
{
    struct etcd_v2 *e = calloc(1, sizeof *e);
    int rc;

    if (e == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a rendezvous");
    rc = read_params(e, params, reterr);
    if (rc == 0)
        rc = mu_dynamic_check_name(e->front.local_addr, reterr);
    if (rc == 0)
        rc = mu_front_draw(&e->front, &e->http.seed, reterr);
    if (rc < 0) {
        free_all(e);
        free(e);
        return mu_wrap(reterr, rc, "rendezvous etcd-v2");
    }
    *ret_handler = mu_front_open(&e->front, &front_ops, loop, listener, ctx);
    return 0;
}

/* ---- For callers that block ---- */

int mu_rdzv_etcd_v2_create(void *ctx, const struct muster_rdzv_params *params, struct muster_rdzv **ret_rdzv,
                           struct muster_error *reterr)
{
    struct etcd_v2 e = { .front = { .loop = NULL } }; /* for its parameters alone */
    struct muster_etcd_config config = { .size = sizeof config };
    struct muster_store *store = NULL;
    int rc = read_params(&e, params, reterr);

    (void)ctx;
    config.endpoints = e.endpoints;
    config.protocol = e.protocol;
    config.cacert = e.ca_file;
    config.cert = e.cert_file;
    config.key = e.key_file;
    if (rc == 0)
        rc = muster_store_etcd_new(&config, MU_KV_ETCD_V2_STORE, 0, &store, reterr);
    free_all(&e);
    if (rc < 0)
        return mu_wrap(reterr, rc, "rendezvous etcd-v2");
    return mu_rdzv_blocking_new_with(mu_etcd_v2_start, params, store, ret_rdzv, reterr);
}
