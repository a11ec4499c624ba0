/* Blocking calls for an etcd store, and for the keys of etcd, on a thread with a loop of its own. The client's
 * deadlines see to it that every call returns. */
#include "kv/blocking_etcd_store_uv.h"

#include "base/random.h"
#include "rdzv/classic.h"
#include "store/loop_thread_uv.h"
#include "store/store.h"

#include <assert.h>
#include <stdlib.h>

struct etcd_store {
    struct muster_store base;
    struct mu_loop_thread thread;
    struct mu_kv *kv;
};

struct posted {
    struct mu_posted base;
    struct etcd_store *store;
    struct mu_kv_request *request; /* one of both */
    struct mu_etcd2_call *call;
};

static void on_kv_done(struct mu_kv_request *request)
{
    mu_posted_done(request->ctx);
}

static void on_call_done(struct mu_etcd2_call *call)
{
    mu_posted_done(call->ctx);
}

static void close_there(struct mu_loop_thread *thread)
{
    struct etcd_store *store = MU_LIST_ITEM(thread, struct etcd_store, thread);

    if (store->kv != NULL)
        store->kv->ops->close(store->kv, NULL, NULL);
}

static void begin(struct mu_posted *base)
{
    struct posted *posted = (struct posted *)base;

    if (posted->request != NULL)
        posted->store->kv->ops->submit(posted->store->kv, posted->request);
    else
        mu_etcd2_call(mu_kv_etcd_store_http(posted->store->kv), posted->call);
}

int mu_etcd_store_call(struct muster_store *store, struct mu_etcd2_call *call)
{
    struct etcd_store *s = (struct etcd_store *)store;
    struct posted posted = { .base = { .begin = begin }, .store = s, .call = call };

    call->done = on_call_done;
    /* cppcheck-suppress autoVariables ; it is answered before we return */
    call->ctx = &posted.base;
    mu_loop_thread_call(&s->thread, &posted.base);
    return call->rc;
}

/* ---- As a store ---- */

static int ask(struct muster_store *store, struct mu_kv_request *request, int64_t timeout_ms,
               struct muster_error *reterr)
{
    struct etcd_store *s = (struct etcd_store *)store;
    struct posted posted = { .base = { .begin = begin }, .store = s, .request = request };

    request->timeout_ms = timeout_ms > 0 ? (uint64_t)timeout_ms : 1;
    request->done = on_kv_done;
    /* cppcheck-suppress autoVariables ; it is answered before we return */
    request->ctx = &posted.base;
    mu_loop_thread_call(&s->thread, &posted.base);
    if (request->rc < 0 && reterr != NULL)
        *reterr = request->error;
    return request->rc;
}

/* No delete_key, num_keys and compare_set: PyTorch's EtcdStore has none either, and answers the same. */
static int store_run(struct muster_store *store, struct mu_call *call, int64_t timeout_ms, struct muster_error *reterr)
{
    if (call->kind == MU_CALL_DELETE_KEY || call->kind == MU_CALL_COMPARE_SET)
        return mu_store_run_from_others(store, call, timeout_ms, reterr);
    return mu_kv_run(store, ask, call, timeout_ms, reterr);
}

static void store_free(struct muster_store *store)
{
    struct etcd_store *s = (struct etcd_store *)store;

    (void)mu_loop_thread_stop(&s->thread, close_there, -1, NULL);
    mu_loop_thread_done(&s->thread);
    free(s);
}

static const struct muster_store_ops store_ops = {
    .size = sizeof store_ops,
    .name = "etcd",
    MU_STORE_CALLS_BY_RUN,
    .run = store_run,
    .free = store_free,
};

static int start(struct etcd_store *s, const struct mu_kv_etcd_store_config *config, struct muster_error *reterr)
{
    int rc = mu_loop_thread_open(&s->thread, "an etcd store", reterr);

    if (rc < 0)
        return rc;
    rc = mu_kv_etcd_store_start(&s->thread.loop, config, &s->kv, reterr);
    if (rc == 0)
        rc = mu_loop_thread_start(&s->thread, "an etcd store", reterr);
    if (rc < 0) {
        close_there(&s->thread);
        mu_loop_thread_discard(&s->thread);
    }
    return rc;
}

int mu_etcd_store_open(const struct mu_http_config *etcd, struct mu_kv_etcd_store_config where, int64_t timeout_ms,
                       struct muster_store **ret_store, struct muster_error *reterr)
{
    struct mu_http_config http = *etcd;
    struct etcd_store *s = calloc(1, sizeof *s);
    int rc;

    assert(timeout_ms > 0);
    if (s == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for an etcd store");
    http.seed = mu_fresh_seed();
    where.http = &http;
    where.seed = http.seed;
    s->base.ops = &store_ops;
    s->base.timeout_ms = timeout_ms;
    rc = start(s, &where, reterr);
    if (rc < 0)
        free(s);
    else
        *ret_store = &s->base;
    return rc;
}

int mu_etcd_config_whole(const struct muster_etcd_config *given, struct muster_etcd_config *ret_whole,
                         struct muster_error *reterr)
{
    struct muster_etcd_config whole = { .size = 0 };

    if (given->size == 0)
        return mu_fail(reterr, MUSTER_EINVAL, "the size of the etcd configuration is not set");
    memcpy(&whole, given, given->size < sizeof whole ? given->size : sizeof whole);
    whole.size = sizeof whole;
    if (whole.endpoints == NULL)
        return mu_fail(reterr, MUSTER_EINVAL, "no endpoint of etcd is given");
    *ret_whole = whole;
    return 0;
}

int muster_store_etcd_new(const struct muster_etcd_config *given, const char *prefix, int64_t timeout_ms,
                          struct muster_store **ret_store, struct muster_error *reterr)
{
    struct muster_etcd_config etcd = { .size = 0 };
    struct mu_kv_etcd_store_config where = { .dir = "" };
    struct mu_http_config http;
    char dir[MU_CLASSIC_KEY_MAX];
    int rc = mu_etcd_config_whole(given, &etcd, reterr);

    if (rc < 0)
        return mu_wrap(reterr, rc, "open an etcd store");
    if (timeout_ms < 0)
        return mu_fail(reterr, MUSTER_EINVAL, "open an etcd store: a timeout of %lld ms is below 0",
                       (long long)timeout_ms);
    if (!mu_classic_key_clean(prefix, dir, sizeof dir))
        return mu_fail(reterr, MUSTER_EINVAL, "open an etcd store: its prefix is too long");
    if (strcmp(dir, "/") != 0)
        where.dir = dir;
    http = (struct mu_http_config){ .endpoints = etcd.endpoints,
                                    .protocol = etcd.protocol,
                                    .ca_file = etcd.cacert,
                                    .cert_file = etcd.cert,
                                    .key_file = etcd.key };
    rc = mu_etcd_store_open(&http, where, timeout_ms == 0 ? MUSTER_STORE_TIMEOUT_MS : timeout_ms, ret_store, reterr);
    return rc < 0 ? mu_wrap(reterr, rc, "open an etcd store") : 0;
}
