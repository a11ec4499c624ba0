/* Blocking calls for an etcd store, and for the keys of etcd, on a thread with a loop of its own. The client's
 * deadlines see to it that every call returns. */
#include "kv/blocking_etcd_store_uv.h"

#include "base/clock.h"
#include "rdzv/classic.h"
#include "store/loop_thread_uv.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/random.h>

struct mu_etcd_sync {
    struct mu_loop_thread thread;
    struct mu_kv *kv;
    struct mu_etcd2 *etcd;
};

struct posted {
    struct mu_posted base;
    struct mu_etcd_sync *sync;
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

static void on_kv_closed(struct mu_kv *kv, void *ctx)
{
    (void)kv;
    (void)ctx;
}

static void on_etcd_closed(void *ctx)
{
    (void)ctx;
}

static void close_there(struct mu_loop_thread *thread)
{
    struct mu_etcd_sync *sync = (struct mu_etcd_sync *)thread;

    if (sync->kv != NULL)
        sync->kv->ops->close(sync->kv, on_kv_closed, NULL);
    if (sync->etcd != NULL)
        mu_etcd2_close(sync->etcd, on_etcd_closed, NULL);
}

static void begin(struct mu_posted *base)
{
    struct posted *posted = (struct posted *)base;

    if (posted->request != NULL)
        posted->sync->kv->ops->submit(posted->sync->kv, posted->request);
    else
        mu_etcd2_call(posted->sync->etcd, posted->call);
}

int mu_etcd_sync_kv(struct mu_etcd_sync *sync, struct mu_kv_request *request)
{
    struct posted posted = { .base = { .begin = begin }, .sync = sync, .request = request };

    request->done = on_kv_done;
    /* cppcheck-suppress autoVariables ; it is answered before we return */
    request->ctx = &posted.base;
    mu_loop_thread_call(&sync->thread, &posted.base);
    return request->rc;
}

int mu_etcd_sync_call(struct mu_etcd_sync *sync, struct mu_etcd2_call *call)
{
    struct posted posted = { .base = { .begin = begin }, .sync = sync, .call = call };

    call->done = on_call_done;
    /* cppcheck-suppress autoVariables ; it is answered before we return */
    call->ctx = &posted.base;
    mu_loop_thread_call(&sync->thread, &posted.base);
    return call->rc;
}

void mu_etcd_sync_stop(struct mu_etcd_sync *sync)
{
    if (sync == NULL)
        return;
    (void)mu_loop_thread_stop(&sync->thread, close_there, -1, NULL);
    mu_loop_thread_done(&sync->thread);
    free(sync);
}

int mu_etcd_sync_start(const struct mu_kv_etcd_store_config *config, struct mu_etcd_sync **ret_sync,
                       struct muster_error *reterr)
{
    struct mu_etcd_sync *sync = calloc(1, sizeof *sync);
    int rc;

    if (sync == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for an etcd store");
    rc = mu_loop_thread_open(&sync->thread, "an etcd store", reterr);
    if (rc < 0) {
        free(sync);
        return rc;
    }
    rc = mu_kv_etcd_store_start(&sync->thread.loop, config, &sync->kv, reterr);
    if (rc == 0)
        rc = mu_etcd2_start(&sync->thread.loop, config->http, &sync->etcd, reterr);
    if (rc == 0)
        rc = mu_loop_thread_start(&sync->thread, "an etcd store", reterr);
    if (rc < 0) {
        close_there(&sync->thread);
        mu_loop_thread_discard(&sync->thread);
        free(sync);
        return rc;
    }
    *ret_sync = sync;
    return 0;
}

/* ---- As a store ---- */

struct etcd_store {
    struct muster_store base;
    struct mu_etcd_sync *sync;
};

static int run(struct muster_store *store, struct mu_kv_request *request, int64_t timeout_ms,
               struct muster_error *reterr)
{
    int rc;

    request->timeout_ms = timeout_ms > 0 ? (uint64_t)timeout_ms : 1;
    rc = mu_etcd_sync_kv(((struct etcd_store *)store)->sync, request);
    if (rc < 0 && reterr != NULL)
        *reterr = request->error;
    return rc;
}

static int store_set(struct muster_store *store, struct muster_slice key, struct muster_slice value, int64_t timeout_ms,
                     struct muster_error *reterr)
{
    struct mu_kv_request request = { .kind = MU_KV_SET, .key = key, .value = value };

    return run(store, &request, timeout_ms, reterr);
}

static int store_get(struct muster_store *store, struct muster_slice key, int64_t timeout_ms,
                     struct muster_bytes *ret_value, struct muster_error *reterr)
{
    struct mu_kv_request request = { .kind = MU_KV_GET, .key = key };
    int rc = run(store, &request, timeout_ms, reterr);

    if (rc == 0)
        *ret_value = request.bytes;
    return rc;
}

static int store_add(struct muster_store *store, struct muster_slice key, int64_t delta, int64_t timeout_ms,
                     int64_t *ret_value, struct muster_error *reterr)
{
    struct mu_kv_request request = { .kind = MU_KV_ADD, .key = key, .number = delta };
    int rc = run(store, &request, timeout_ms, reterr);

    if (rc == 0)
        *ret_value = request.number;
    return rc;
}

static int store_check(struct muster_store *store, const struct muster_slice *keys, size_t count, int64_t timeout_ms,
                       bool *ret_all_exist, struct muster_error *reterr)
{
    int64_t until_ms = mu_clock_in_ms(timeout_ms);
    bool all = true;
    int rc = 0;

    for (size_t i = 0; rc == 0 && all && i < count; i++) {
        struct mu_kv_request request = { .kind = MU_KV_CHECK, .key = keys[i] };

        rc = run(store, &request, until_ms - mu_clock_ms(), reterr);
        all = request.found;
    }
    if (rc == 0)
        *ret_all_exist = all;
    return rc;
}

/* One after the other: all are there when the last one is. */
static int store_wait(struct muster_store *store, const struct muster_slice *keys, size_t count, int64_t timeout_ms,
                      struct muster_error *reterr)
{
    int64_t until_ms = mu_clock_in_ms(timeout_ms);
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < count; i++) {
        struct muster_bytes value = { 0 };

        rc = store_get(store, keys[i], until_ms - mu_clock_ms(), &value, reterr);
        muster_bytes_done(&value);
    }
    return rc;
}

static void store_free(struct muster_store *store)
{
    mu_etcd_sync_stop(((struct etcd_store *)store)->sync);
    free(store);
}

/* No delete_key, num_keys and compare_set: PyTorch's EtcdStore has none either, and answers the same. */
static const struct muster_store_ops store_ops = {
    .size = sizeof store_ops,
    .name = "etcd",
    .set = store_set,
    .get = store_get,
    .add = store_add,
    .check = store_check,
    .wait = store_wait,
    .free = store_free,
};

int mu_etcd_sync_store(struct mu_etcd_sync *sync, int64_t timeout_ms, struct muster_store **ret_store,
                       struct muster_error *reterr)
{
    struct etcd_store *store = calloc(1, sizeof *store);

    assert(timeout_ms > 0);
    if (store == NULL) {
        mu_etcd_sync_stop(sync);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for an etcd store");
    }
    store->base.ops = &store_ops;
    store->base.timeout_ms = timeout_ms;
    store->sync = sync;
    *ret_store = &store->base;
    return 0;
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
    struct mu_http_config http = { .seed = 0 };
    struct mu_kv_etcd_store_config config = { .http = &http };
    struct mu_etcd_sync *sync = NULL;
    char dir[MU_CLASSIC_KEY_MAX];
    int rc = mu_etcd_config_whole(given, &etcd, reterr);

    if (rc < 0)
        return mu_wrap(reterr, rc, "open an etcd store");
    if (timeout_ms < 0)
        return mu_fail(reterr, MUSTER_EINVAL, "open an etcd store: a timeout of %lld ms is below 0",
                       (long long)timeout_ms);
    if (!mu_classic_key_clean(prefix, dir, sizeof dir))
        return mu_fail(reterr, MUSTER_EINVAL, "open an etcd store: its prefix is too long");
    http.endpoints = etcd.endpoints;
    http.protocol = etcd.protocol;
    http.ca_file = etcd.cacert;
    http.cert_file = etcd.cert;
    http.key_file = etcd.key;
    if (getrandom(&http.seed, sizeof http.seed, 0) < 0)
        http.seed = (uint64_t)mu_clock_ms();
    config.seed = http.seed;
    config.dir = strcmp(dir, "/") == 0 ? "" : dir;
    rc = mu_etcd_sync_start(&config, &sync, reterr);
    if (rc == 0)
        rc = mu_etcd_sync_store(sync, timeout_ms == 0 ? MUSTER_STORE_TIMEOUT_MS : timeout_ms, ret_store, reterr);
    return rc < 0 ? mu_wrap(reterr, rc, "open an etcd store") : 0;
}
