/* The classic etcd rendezvous for callers that block: blocking_rdzv_uv.c with an etcd store, and extra data. */
#include "base/clock.h"
#include "handler/etcd_params.h"
#include "handler/extra_data.h"
#include "kv/blocking_etcd_store_uv.h"

/* ---- New ---- */

static int open_store(const struct muster_rdzv_params *params, struct muster_store **ret_store,
                      struct muster_error *reterr)
{
    char root[MU_CLASSIC_KEY_MAX];
    struct mu_etcd_place place;
    int rc = mu_etcd_params_read_root(params, &place, root, reterr);

    if (rc < 0)
        return rc;
    return mu_etcd_store_open(&place.http, (struct mu_kv_etcd_store_config){ .root = root, .run_id = place.run_id },
                              MUSTER_STORE_TIMEOUT_MS, ret_store, reterr);
}

static int create(const struct muster_rdzv_params *params, struct muster_rdzv **ret_rdzv, struct muster_error *reterr)
{
    struct muster_store *store = NULL;
    int rc = open_store(params, &store, reterr);

    return rc < 0 ? rc : mu_rdzv_blocking_new_with("etcd", mu_etcd_start, params, store, ret_rdzv, reterr);
}

int muster_rdzv_etcd_create(void *ctx, const struct muster_rdzv_params *params, struct muster_rdzv **ret_rdzv,
                            struct muster_error *reterr)
{
    struct muster_rdzv_params *own = NULL;
    int rc = mu_etcd_params_resolve(params, &own, reterr);

    (void)ctx;
    if (rc == 0)
        rc = create(own != NULL ? own : params, ret_rdzv, reterr);
    muster_rdzv_params_free(own);
    return rc < 0 ? mu_wrap(reterr, rc, "make an etcd rendezvous") : 0;
}

int muster_rdzv_etcd_new(const struct muster_etcd_config *given, const char *prefix, const char *run_id,
                         int64_t min_nodes, int64_t max_nodes, int64_t timeout_ms, int64_t last_call_timeout_ms,
                         struct muster_rdzv **ret_rdzv, struct muster_error *reterr)
{
    struct muster_etcd_config etcd = { .size = 0 };
    struct muster_rdzv_params *params = NULL;
    int rc = mu_etcd_config_whole(given, &etcd, reterr);

    if (rc == 0)
        rc = muster_rdzv_params_new("etcd", etcd.endpoints, run_id, min_nodes, max_nodes, NULL, &params, reterr);
    if (rc == 0)
        rc = mu_etcd_params_add(params, &etcd, prefix, timeout_ms, last_call_timeout_ms, reterr);
    if (rc == 0)
        rc = muster_rdzv_etcd_create(NULL, params, ret_rdzv, reterr);
    else
        (void)mu_wrap(reterr, rc, "make an etcd rendezvous");
    muster_rdzv_params_free(params);
    return rc;
}

/* ---- Extra data ---- */

static int run(struct muster_rdzv *rdzv, int64_t round, const char *key, const char *value, int64_t timeout_ms,
               struct muster_bytes *ret_found, struct muster_error *reterr)
{
    int64_t until_ms = mu_clock_in_ms(mu_extra_data_limit_ms(timeout_ms));
    struct muster_store *store = NULL;
    const struct muster_rdzv_params *params = mu_rdzv_blocking_params(rdzv, &store);
    struct mu_extra_data extra;
    int rc = mu_extra_data_init(&extra, muster_rdzv_get_backend(rdzv), params, round, key, value, reterr);

    if (rc < 0)
        return rc;
    while (rc == 0 && extra.state != MU_EXTRA_DONE) {
        struct mu_etcd2_call call = { .request = extra.request };

        mu_pause_ms(extra.pause_ms);
        rc = mu_extra_data_time(&extra, until_ms - mu_clock_ms(), &call.timeout_ms, reterr);
        if (rc < 0)
            break;
        rc = mu_etcd_store_call(store, &call);
        rc = mu_extra_data_step(&extra, rc, call.unsure, call.status, &call.answer, &call.error, reterr);
        mu_etcd2_answer_done(&call.answer);
    }
    if (rc == 0)
        *ret_found = extra.found;
    return mu_extra_data_end(&extra, rc, reterr);
}

int muster_rdzv_etcd_store_extra_data(struct muster_rdzv *rdzv, int64_t round, const char *key, const char *value,
                                      int64_t timeout_ms, struct muster_error *reterr)
{
    struct muster_bytes none;

    return run(rdzv, round, key, value, timeout_ms, &none, reterr);
}

int muster_rdzv_etcd_load_extra_data(struct muster_rdzv *rdzv, int64_t round, const char *key, int64_t timeout_ms,
                                     struct muster_bytes *ret_value, struct muster_error *reterr)
{
    return run(rdzv, round, key, NULL, timeout_ms, ret_value, reterr);
}
