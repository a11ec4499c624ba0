/* PyTorch's etcd-v2 rendezvous: a dynamic rendezvous whose document is in etcd.
 *
 * Happy path: the document is read once, so that a node that cannot reach etcd learns so in read_timeout and not in
 * join_timeout. What is asked meanwhile waits (talk.h). No etcd there, or one that does not let us in, is told as the
 * failure of what was asked; the next request tries again. Once it runs, the document machine waits for an etcd that
 * is away. */
#include "kv/kv_etcd_v2_uv.h"

#include "base/random.h"
#include "handler/dynamic_uv.h"
#include "handler/etcd_params.h"
#include "kv/etcd_store_uv.h"

#include <assert.h>

struct etcd_v2 {
    struct mu_dynamic dynamic;
    /* By the parameters. */
    struct mu_http_config http; /* its texts are in dynamic.texts */
    char protocol[MU_RDZV_WORD_MAX];
    struct mu_kv_request first; /* whether etcd is there at all */
};

/* ---- Connecting ---- */

static void on_first_read(struct mu_kv_request *request)
{
    struct etcd_v2 *e = request->ctx;

    muster_bytes_done(&request->bytes);
    muster_bytes_done(&request->state_token);
    if (e->dynamic.shell.freeing)
        return;
    if (mu_dynamic_is_there(request->rc, &request->error))
        (void)mu_dynamic_run(&e->dynamic, &(struct mu_dynamic_place){ .store_addr = NULL });
    else
        mu_dynamic_fail(&e->dynamic, &request->error);
}

static void find(struct mu_dynamic *d)
{
    struct etcd_v2 *e = (struct etcd_v2 *)d;
    struct muster_error error;

    assert(d->kv == NULL && d->rdzv == NULL);
    e->http.seed = d->seed;
    if (mu_kv_etcd_v2_start(d->shell.loop, &e->http, d->config.run_id, &d->kv, &error) < 0) {
        mu_dynamic_fail(d, &error);
        return;
    }
    e->first = (struct mu_kv_request){
        .kind = MU_KV_READ, .timeout_ms = mu_dynamic_find_ms(&d->config), .done = on_first_read, .ctx = e
    };
    d->kv->ops->submit(d->kv, &e->first);
}

/* ---- The handler ---- */

static const struct muster_handler_ops etcd_v2_ops = { MU_DYNAMIC_OPS("etcd-v2") };

static int open_kv(struct muster_handler *handler, struct mu_kv **ret_kv, struct muster_error *reterr)
{
    struct etcd_v2 *e = (struct etcd_v2 *)handler;
    const struct mu_kv_etcd_store_config config = {
        .http = &e->http, .dir = MU_KV_ETCD_V2_STORE, .gives_foreign = true, .seed = mu_fresh_seed()
    };

    return mu_kv_etcd_store_start(e->dynamic.shell.loop, &config, ret_kv, reterr);
}

static const struct mu_handler_ops agent_ops = { .open_kv = open_kv };

/* ---- Parameters ---- */

static int read_params(struct mu_dynamic *d, const struct muster_rdzv_params *params, struct mu_dynamic_config *config,
                       struct muster_error *reterr)
{
    struct etcd_v2 *e = (struct etcd_v2 *)d;
    const char **texts[] = { &e->http.endpoints, &e->http.ca_file, &e->http.cert_file, &e->http.key_file };
    int rc = mu_etcd_v2_params_read(params, &e->http, e->protocol, reterr);
    bool full = false;

    (void)config;
    for (size_t i = 0; rc == 0 && i < sizeof texts / sizeof texts[0]; i++)
        *texts[i] = mu_arena_text(&d->texts, *texts[i], &full);
    return full ? mu_fail(reterr, MUSTER_ENOMEM, "no memory for a rendezvous") : rc;
}

static const struct mu_finder_ops finder = {
    .size = sizeof(struct etcd_v2), .handler = &etcd_v2_ops, .agent = &agent_ops, .read = read_params, .find = find
};

int mu_etcd_v2_start(struct uv_loop_s *loop, const struct muster_rdzv_params *params, muster_rdzv_listener *listener,
                     void *ctx, struct muster_handler **ret_handler, struct muster_error *reterr)
{
    return mu_dynamic_start_finder(&finder, loop, params, listener, ctx, ret_handler, reterr);
}

/* ---- For callers that block ---- */

int mu_rdzv_etcd_v2_create(void *ctx, const struct muster_rdzv_params *params, struct muster_rdzv **ret_rdzv,
                           struct muster_error *reterr)
{
    char protocol[MU_RDZV_WORD_MAX];
    struct mu_http_config http = { .endpoints = NULL };
    struct mu_dynamic_config dynamic;
    struct muster_etcd_config config = { .size = sizeof config };
    struct muster_store *store = NULL;
    int rc = mu_dynamic_read_config("etcd-v2", params, &dynamic, reterr);

    (void)ctx;
    if (rc == 0)
        rc = mu_etcd_v2_params_read(params, &http, protocol, reterr);
    config.endpoints = http.endpoints;
    config.protocol = http.protocol;
    config.cacert = http.ca_file;
    config.cert = http.cert_file;
    config.key = http.key_file;
    if (rc == 0)
        rc = muster_store_etcd_new(&config, MU_KV_ETCD_V2_STORE, 0, &store, reterr);
    if (rc < 0)
        return mu_wrap(reterr, rc, "rendezvous etcd-v2");
    return mu_rdzv_blocking_new_with(muster_rdzv_params_backend(params), mu_etcd_v2_start, params, store, ret_rdzv,
                                     reterr);
}
