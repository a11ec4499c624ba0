/* PyTorch's etcd-v2 rendezvous: a dynamic rendezvous whose document is in etcd.
 *
 * Happy path: the document is read once, so that a node that cannot reach etcd learns so in read_timeout and not in
 * join_timeout. What is asked meanwhile waits (talk.h). No etcd there, or one that does not let us in, is told as the
 * failure of what was asked; the next request tries again. Once it runs, the document machine waits for an etcd that
 * is away. */
#include "kv/kv_etcd_v2_uv.h"

#include "handler/dynamic_uv.h"
#include "kv/endpoints.h"
#include "kv/etcd_store_uv.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

enum { PROTOCOL_MAX = 16 };

struct etcd_v2 {
    struct mu_dynamic dynamic;
    /* By the parameters. */
    struct mu_http_config http; /* its texts are ours */
    char *endpoints, *ca_file, *cert_file, *key_file;
    char protocol[PROTOCOL_MAX];
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

static void done(struct mu_dynamic *d)
{
    free_texts((struct etcd_v2 *)d);
}

/* ---- Connecting ---- */

static void on_first_read(struct mu_kv_request *request)
{
    struct etcd_v2 *e = request->ctx;

    muster_bytes_done(&request->bytes);
    muster_bytes_done(&request->state_token);
    if (e->dynamic.shell.freeing)
        return;
    if (request->rc == 0 || request->rc == MUSTER_ERDZV_STATE) { /* which is not the connection's fault */
        (void)mu_dynamic_run(&e->dynamic, &(struct mu_dynamic_place){ .store_addr = NULL });
        return;
    }
    request->error.code = MUSTER_ERDZV_CONNECTION;
    mu_dynamic_fail(&e->dynamic, &request->error);
}

static void find(struct mu_dynamic *d)
{
    struct etcd_v2 *e = (struct etcd_v2 *)d;
    const struct mu_kv_etcd_v2_config config = { .http = &e->http, .run_id = d->run_id };
    uint64_t read_ms = d->config.request_timeout_ms, join_ms = d->config.settings.join_ms;
    struct muster_error error;

    assert(d->kv == NULL && d->rdzv == NULL);
    e->http.seed = d->seed;
    if (mu_kv_etcd_v2_start(d->shell.loop, &config, &d->kv, &error) < 0) {
        mu_dynamic_fail(d, &error);
        return;
    }
    e->first = (struct mu_kv_request){
        .kind = MU_KV_READ, .timeout_ms = read_ms < join_ms ? read_ms : join_ms, .done = on_first_read, .ctx = e
    };
    d->kv->ops->submit(d->kv, &e->first);
}

/* ---- The handler ---- */

static const struct muster_handler_ops etcd_v2_ops = {
    .size = sizeof etcd_v2_ops,
    .name = "etcd-v2",
    .join = mu_shell_join,
    .leave = mu_shell_leave,
    .close = mu_shell_ask_to_close,
    .look = mu_shell_look,
    .use_agent_store = mu_dynamic_use_agent_store,
    .free = mu_dynamic_free,
    .when_alone = mu_dynamic_when_alone,
};

static int open_kv(struct muster_handler *handler, struct mu_kv **ret_kv, struct muster_error *reterr)
{
    struct etcd_v2 *e = (struct etcd_v2 *)handler;
    const struct mu_kv_etcd_store_config config = { .http = &e->http,
                                                    .dir = MU_KV_ETCD_V2_STORE,
                                                    .seed = e->dynamic.seed + 2 };

    return mu_kv_etcd_store_start(e->dynamic.shell.loop, &config, ret_kv, reterr);
}

static const struct mu_handler_ops agent_ops = { .open_kv = open_kv };
static const struct mu_finder_ops finder = { &etcd_v2_ops, &agent_ops, .find = find, .done = done };

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

static int read_params(struct etcd_v2 *e, const struct muster_rdzv_params *params, struct mu_dynamic_config *ret_config,
                       struct muster_error *reterr)
{
    int rc = mu_dynamic_config_from_params("etcd-v2", params, ret_config, reterr);

    if (rc == 0)
        rc = read_protocol(e, params, reterr);
    if (rc == 0)
        rc = read_endpoints(e, params, reterr);
    return rc == 0 ? read_files(e, params, reterr) : rc;
}

int mu_etcd_v2_start(struct uv_loop_s *loop, const struct muster_rdzv_params *params, muster_rdzv_listener *listener,
                     void *ctx, struct muster_handler **ret_handler, struct muster_error *reterr)
{
    struct etcd_v2 *e = calloc(1, sizeof *e);
    struct mu_dynamic_config config;
    int rc;

    if (e == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a rendezvous");
    rc = read_params(e, params, &config, reterr);
    if (rc < 0) {
        free_texts(e);
        free(e);
        return mu_wrap(reterr, rc, "rendezvous etcd-v2");
    }
    rc = mu_dynamic_open(&e->dynamic, loop, &finder, &config, listener, ctx, ret_handler, reterr);
    return rc < 0 ? mu_wrap(reterr, rc, "rendezvous etcd-v2") : 0;
}

/* ---- For callers that block ---- */

int mu_rdzv_etcd_v2_create(void *ctx, const struct muster_rdzv_params *params, struct muster_rdzv **ret_rdzv,
                           struct muster_error *reterr)
{
    struct etcd_v2 e = { .endpoints = NULL }; /* for its parameters alone */
    struct mu_dynamic_config dynamic;
    struct muster_etcd_config config = { .size = sizeof config };
    struct muster_store *store = NULL;
    int rc = read_params(&e, params, &dynamic, reterr);

    (void)ctx;
    config.endpoints = e.endpoints;
    config.protocol = e.protocol;
    config.cacert = e.ca_file;
    config.cert = e.cert_file;
    config.key = e.key_file;
    if (rc == 0)
        rc = muster_store_etcd_new(&config, MU_KV_ETCD_V2_STORE, 0, &store, reterr);
    free_texts(&e);
    if (rc < 0)
        return mu_wrap(reterr, rc, "rendezvous etcd-v2");
    return mu_rdzv_blocking_new_with(muster_rdzv_params_backend(params), mu_etcd_v2_start, params, store, ret_rdzv,
                                     reterr);
}
