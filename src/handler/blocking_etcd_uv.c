/* The classic etcd rendezvous for callers that block: blocking_rdzv_uv.c with an etcd store, and extra data. */
#include "base/clock.h"
#include "handler/etcd_params.h"
#include "kv/blocking_etcd_store_uv.h"
#include "rdzv/classic.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define WATCH_MS 20000     /* then it is asked anew */
#define STORE_AGAIN_MS 100 /* after a lost write of extra data */
#define EXTRA_DATA_MAX (1u << 20)

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
    struct muster_etcd_config etcd = { .size = sizeof etcd };
    char root[MU_CLASSIC_KEY_MAX];
    struct mu_etcd_place place;
    int rc = find_place(params, &place, root, reterr);

    if (rc < 0)
        return rc;
    etcd.endpoints = place.endpoints;
    etcd.protocol = place.protocol;
    etcd.cacert = place.cacert;
    etcd.cert = place.cert;
    etcd.key = place.key;
    return mu_etcd_store_open(&etcd, (struct mu_kv_etcd_store_config){ .root = root, .run_id = place.run_id },
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

static int set_texts(struct muster_rdzv_params *params, const struct muster_etcd_config *etcd, const char *prefix,
                     struct muster_error *reterr)
{
    const char *const pairs[][2] = { { "etcd_prefix", prefix },
                                     { "protocol", etcd->protocol },
                                     { "cacert", etcd->cacert },
                                     { "cert", etcd->cert },
                                     { "key", etcd->key } };
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < sizeof pairs / sizeof pairs[0]; i++)
        if (pairs[i][1] != NULL)
            rc = muster_rdzv_params_set_text(params, pairs[i][0], pairs[i][1], reterr);
    return rc;
}

static int set_time(struct muster_rdzv_params *params, const char *option, int64_t ms, struct muster_error *reterr)
{
    if (ms == 0)
        return 0;
    if (ms < 0)
        return mu_fail(reterr, MUSTER_EINVAL, "%s: %" PRId64 " ms is below 0", option, ms);
    return muster_rdzv_params_set_int(params, option, ms / 1000 + (ms % 1000 > 0), reterr);
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
        rc = set_texts(params, &etcd, prefix, reterr);
    if (rc == 0)
        rc = set_time(params, "timeout", timeout_ms, reterr);
    if (rc == 0)
        rc = set_time(params, "last_call_timeout", last_call_timeout_ms, reterr);
    if (rc == 0)
        rc = muster_rdzv_etcd_create(NULL, params, ret_rdzv, reterr);
    else
        (void)mu_wrap(reterr, rc, "make an etcd rendezvous");
    muster_rdzv_params_free(params);
    return rc;
}

/* ---- Extra data ---- */

struct extra {
    struct muster_store *store;
    char path[MU_CLASSIC_KEY_MAX];
    int64_t until_ms;
    struct mu_etcd2_call call; /* of the last step; its answer is to be freed */
};

static int extra_init(struct extra *extra, struct muster_rdzv *rdzv, int64_t round, int64_t timeout_ms,
                      struct muster_error *reterr)
{
    const struct muster_rdzv_params *params = mu_rdzv_blocking_params(rdzv, mu_etcd_start, &extra->store);
    char root[MU_CLASSIC_KEY_MAX];
    struct mu_etcd_place place;
    int rc;

    if (params == NULL)
        return mu_fail(reterr, MUSTER_EINVAL, "extra data: the handler is not one of the etcd back end");
    rc = find_place(params, &place, root, reterr);
    if (rc < 0)
        return rc;
    extra->until_ms = mu_clock_in_ms(timeout_ms < 0 ? MUSTER_STORE_TIMEOUT_MS : timeout_ms);
    (void)snprintf(extra->path, sizeof extra->path, "%.2048s/rdzv/v_%" PRId64 "/extra_data", root, round);
    extra->call = (struct mu_etcd2_call){ .rc = 0 };
    return 0;
}

/* 0: etcd has answered, with what *ret_code says. */
static int extra_call(struct extra *extra, struct mu_etcd2_request request, int *ret_code, struct muster_error *reterr)
{
    int64_t left = extra->until_ms - mu_clock_ms();
    int rc;

    mu_etcd2_answer_done(&extra->call.answer);
    if (left <= 0)
        return mu_fail(reterr, MUSTER_ETIMEOUT, "timed out");
    request.key = mu_slice_str(extra->path);
    if (request.kind == MU_ETCD2_WATCH && left > WATCH_MS)
        left = WATCH_MS;
    extra->call = (struct mu_etcd2_call){ .request = request, .timeout_ms = (uint64_t)left };
    rc = mu_etcd_store_call(extra->store, &extra->call);
    if (request.kind == MU_ETCD2_WATCH && mu_etcd2_is_away(rc))
        rc = 0; /* it is read again, for as long as there is time */
    else if (rc < 0 && reterr != NULL)
        *reterr = extra->call.error;
    *ret_code = extra->call.answer.code;
    return rc;
}

/* The map that is there; NULL and 0: there is none. */
static int extra_read(struct extra *extra, json_t **ret_map, struct muster_error *reterr)
{
    int code = 0;
    int rc = extra_call(extra, (struct mu_etcd2_request){ .kind = MU_ETCD2_GET, .quorum = true }, &code, reterr);
    struct mu_slice text;
    bool no_memory;

    *ret_map = NULL;
    if (rc < 0 || code == MU_ETCD2_NOT_FOUND)
        return rc;
    if (code != 0)
        return mu_etcd2_fail(&extra->call.answer, extra->call.status, reterr);
    text = extra->call.answer.nodes_count > 0 ? extra->call.answer.nodes[0].value : mu_slice("", 0);
    errno = 0; /* jansson does not tell want of memory from what is no JSON; malloc() does */
    *ret_map = text.len == 0 || text.len > EXTRA_DATA_MAX ? NULL : json_loadb(text.data, text.len, 0, NULL);
    no_memory = errno == ENOMEM;
    if (json_is_object(*ret_map) && !no_memory)
        return 0;
    json_decref(*ret_map);
    *ret_map = NULL;
    return no_memory ? mu_fail(reterr, MUSTER_ENOMEM, "no memory for what is there")
                     : mu_fail(reterr, MUSTER_EPROTOCOL, "what is there is no JSON map");
}

static void rest(void)
{
    struct timespec pause = { .tv_nsec = STORE_AGAIN_MS * 1000000L };

    (void)nanosleep(&pause, NULL);
}

/* Adds to what was read, or creates it. *ret_done false: somebody else was faster. */
static int extra_write(struct extra *extra, json_t *map, const char *key, const char *value, bool *ret_done,
                       struct muster_error *reterr)
{
    bool fresh = map == NULL;
    struct mu_slice there = fresh ? mu_slice("", 0) : extra->call.answer.nodes[0].value;
    struct mu_etcd2_request request = { .kind = MU_ETCD2_PUT, .has_value = true };
    char *prev = fresh ? NULL : strndup(there.data, there.len), *text = NULL;
    json_t *next = fresh ? json_object() : json_incref(map);
    int code = 0, rc = MUSTER_ENOMEM;

    if (next != NULL && (fresh || prev != NULL) && json_object_set_new(next, key, json_string(value)) == 0)
        text = json_dumps(next, JSON_ENSURE_ASCII);
    json_decref(next);
    if (text != NULL) {
        request.value = mu_slice_str(text);
        request.prev_exist = fresh ? MU_ETCD2_MUST_NOT : MU_ETCD2_ANY;
        request.has_prev_value = !fresh;
        request.prev_value = fresh ? mu_slice("", 0) : mu_slice_str(prev);
        rc = extra_call(extra, request, &code, reterr);
        if (rc < 0 && extra->call.unsure) {
            rc = 0;
            code = MU_ETCD2_COMPARE_FAILED; /* it will be seen: writing it twice does no harm */
        }
    } else {
        (void)mu_fail(reterr, rc, "no memory, or no text of UTF-8");
    }
    free(text);
    free(prev);
    if (rc < 0)
        return rc;
    *ret_done = code == 0;
    if (code != 0 && code != MU_ETCD2_EXISTS && code != MU_ETCD2_COMPARE_FAILED && code != MU_ETCD2_NOT_FOUND)
        return mu_etcd2_fail(&extra->call.answer, extra->call.status, reterr);
    return 0;
}

int muster_rdzv_etcd_store_extra_data(struct muster_rdzv *rdzv, int64_t round, const char *key, const char *value,
                                      int64_t timeout_ms, struct muster_error *reterr)
{
    struct extra extra;
    bool done = false;
    int rc = extra_init(&extra, rdzv, round, timeout_ms, reterr);

    if (rc < 0)
        return rc;
    while (rc == 0 && !done) {
        json_t *map = NULL;

        rc = extra_read(&extra, &map, reterr);
        if (rc == 0)
            rc = extra_write(&extra, map, key, value, &done, reterr);
        json_decref(map);
        if (rc == 0 && !done)
            rest();
    }
    mu_etcd2_answer_done(&extra.call.answer);
    return rc < 0 ? mu_wrap(reterr, rc, "store extra data '%.100s'", key) : 0;
}

static int give_value(const json_t *value, struct muster_bytes *ret_value, struct muster_error *reterr)
{
    char *text = json_is_string(value) ? strdup(json_string_value(value))
                                       : json_dumps(value, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);

    if (text == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for the value");
    *ret_value = (struct muster_bytes){ text, strlen(text) };
    return 0;
}

int muster_rdzv_etcd_load_extra_data(struct muster_rdzv *rdzv, int64_t round, const char *key, int64_t timeout_ms,
                                     struct muster_bytes *ret_value, struct muster_error *reterr)
{
    struct extra extra;
    bool done = false;
    int rc = extra_init(&extra, rdzv, round, timeout_ms, reterr);

    if (rc < 0)
        return rc;
    while (rc == 0 && !done) {
        json_t *map = NULL, *value;
        int code = 0;

        rc = extra_read(&extra, &map, reterr);
        value = json_object_get(map, key);
        if (rc == 0 && value != NULL) {
            rc = give_value(value, ret_value, reterr);
            done = true;
        } else if (rc == 0) {
            rc = extra_call(
                &extra, (struct mu_etcd2_request){ .kind = MU_ETCD2_WATCH, .wait_index = extra.call.answer.index + 1 },
                &code, reterr);
        }
        json_decref(map);
    }
    mu_etcd2_answer_done(&extra.call.answer);
    return rc < 0 ? mu_wrap(reterr, rc, "load extra data '%.100s'", key) : 0;
}
