/* The classic etcd rendezvous for callers that block: blocking_rdzv_uv.c with an etcd store, and extra data. */
#include "base/clock.h"
#include "handler/etcd_params.h"
#include "handler/extra_data.h"
#include "kv/blocking_etcd_store_uv.h"
#include "rdzv/classic.h"

/* *ret_place borrows from the parameters; root: of the keys in etcd. */
static int find_place(const struct muster_rdzv_params *params, struct mu_etcd_place *ret_place,
                      char root[static MU_CLASSIC_KEY_MAX], struct muster_error *reterr)
{
    char prefix[MU_CLASSIC_KEY_MAX];
    int rc = mu_etcd_params_read(params, ret_place, reterr);

    return rc < 0 ? rc : mu_classic_keys(ret_place->prefix, ret_place->run_id, prefix, root, reterr);
}

/* ---- New ---- */

static int open_store(const struct muster_rdzv_params *params, struct muster_store **ret_store,
                      struct muster_error *reterr)
{
    char root[MU_CLASSIC_KEY_MAX];
    struct mu_etcd_place place;
    int rc = find_place(params, &place, root, reterr);

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

static int find_path(struct muster_rdzv *rdzv, int64_t round, struct muster_store **ret_store,
                     char path[static MU_CLASSIC_KEY_MAX], struct muster_error *reterr)
{
    const struct muster_rdzv_params *params = mu_rdzv_blocking_params(rdzv, "etcd", ret_store);
    char root[MU_CLASSIC_KEY_MAX];
    struct mu_etcd_place place;
    int rc;

    if (params == NULL)
        return mu_fail(reterr, MUSTER_EINVAL, "extra data: the handler is not one of the etcd back end");
    rc = find_place(params, &place, root, reterr);
    if (rc == 0)
        mu_extra_data_path(root, round, path);
    return rc;
}

/* Until it is done, or its time is up. */
static int run(struct muster_rdzv *rdzv, int64_t round, int64_t timeout_ms, struct mu_extra_data *extra,
               struct muster_error *reterr)
{
    int64_t until_ms = mu_clock_in_ms(timeout_ms < 0 ? MUSTER_STORE_TIMEOUT_MS : timeout_ms);
    struct muster_store *store;
    char path[MU_CLASSIC_KEY_MAX];
    int rc = find_path(rdzv, round, &store, path, reterr);

    if (rc < 0)
        return rc;
    while (rc == 0 && extra->state != MU_EXTRA_DONE) {
        struct mu_etcd2_call call = { .request = extra->request };

        mu_pause_ms(extra->pause_ms);
        call.request.key = mu_slice_str(path);
        rc = mu_extra_data_time(extra, until_ms - mu_clock_ms(), &call.timeout_ms, reterr);
        if (rc < 0)
            break;
        rc = mu_etcd_store_call(store, &call);
        rc = mu_extra_data_step(extra, rc, call.unsure, call.status, &call.answer, &call.error, reterr);
        mu_etcd2_answer_done(&call.answer);
    }
    mu_extra_data_done(extra);
    return rc < 0 ? mu_wrap(reterr, rc, "%s extra data '%.100s'", extra->value != NULL ? "store" : "load", extra->key)
                  : 0;
}

int muster_rdzv_etcd_store_extra_data(struct muster_rdzv *rdzv, int64_t round, const char *key, const char *value,
                                      int64_t timeout_ms, struct muster_error *reterr)
{
    struct mu_extra_data extra;

    mu_extra_data_init(&extra, key, value);
    return run(rdzv, round, timeout_ms, &extra, reterr);
}

int muster_rdzv_etcd_load_extra_data(struct muster_rdzv *rdzv, int64_t round, const char *key, int64_t timeout_ms,
                                     struct muster_bytes *ret_value, struct muster_error *reterr)
{
    struct mu_extra_data extra;
    int rc;

    mu_extra_data_init(&extra, key, NULL);
    rc = run(rdzv, round, timeout_ms, &extra, reterr);
    if (rc == 0)
        *ret_value = extra.found;
    return rc;
}
