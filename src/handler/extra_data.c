/* Extra data of a round of the classic etcd rendezvous. */
#include "handler/extra_data.h"

#include "handler/etcd_params.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

static void read_next(struct mu_extra_data *e)
{
    e->state = MU_EXTRA_READING;
    e->request = (struct mu_etcd2_request){ .kind = MU_ETCD2_GET, .key = mu_slice_str(e->path), .quorum = true };
    e->most_ms = INT64_MAX;
}

int mu_extra_data_init(struct mu_extra_data *e, const char *backend, const struct muster_rdzv_params *params,
                       int64_t round, const char *key, const char *value, struct muster_error *reterr)
{
    char root[MU_CLASSIC_KEY_MAX];
    struct mu_etcd_place place;
    int rc;

    if (params == NULL || strcmp(backend, "etcd") != 0)
        return mu_fail(reterr, MUSTER_EINVAL, "extra data: the handler is not one of the etcd back end");
    rc = mu_etcd_params_read_root(params, &place, root, reterr);
    if (rc < 0)
        return rc;
    *e = (struct mu_extra_data){ .key = key, .value = value };
    (void)snprintf(e->path, sizeof e->path, "%.2048s/rdzv/v_%" PRId64 "/extra_data", root, round);
    read_next(e);
    return 0;
}

int64_t mu_extra_data_limit_ms(int64_t timeout_ms)
{
    return timeout_ms < 0 ? MUSTER_STORE_TIMEOUT_MS : timeout_ms;
}

int mu_extra_data_time(const struct mu_extra_data *e, int64_t left_ms, uint64_t *ret_ms, struct muster_error *reterr)
{
    if (left_ms <= 0)
        return mu_fail(reterr, MUSTER_ETIMEOUT, "timed out");
    *ret_ms = (uint64_t)(left_ms < e->most_ms ? left_ms : e->most_ms);
    return 0;
}

/* The map that is there; NULL and 0: there is none. */
static int read_map(const struct mu_etcd2_answer *answer, unsigned status, json_t **ret_map,
                    struct muster_error *reterr)
{
    struct mu_slice text = answer->nodes_count > 0 ? answer->nodes[0].value : mu_slice("", 0);
    json_t *map;
    bool no_memory;

    *ret_map = NULL;
    if (answer->code == MU_ETCD2_NOT_FOUND)
        return 0;
    if (answer->code != 0)
        return mu_etcd2_fail(answer, status, reterr);
    errno = 0; /* jansson does not tell want of memory from what is no JSON; malloc() does */
    map = text.len == 0 || text.len > MU_EXTRA_DATA_MAX ? NULL : json_loadb(text.data, text.len, 0, NULL);
    no_memory = errno == ENOMEM;
    if (json_is_object(map) && !no_memory) {
        *ret_map = map;
        return 0;
    }
    json_decref(map);
    return no_memory ? mu_fail(reterr, MUSTER_ENOMEM, "no memory for what is there")
                     : mu_fail(reterr, MUSTER_EPROTOCOL, "the key does not hold a JSON map");
}

static void free_texts(struct mu_extra_data *e)
{
    free(e->text);
    free(e->prev);
    e->text = e->prev = NULL;
}

/* Adds to what was read, or creates it. */
static int write_next(struct mu_extra_data *e, json_t *map, struct mu_slice there, struct muster_error *reterr)
{
    json_t *next = map == NULL ? json_object() : json_incref(map);

    free_texts(e);
    e->prev = map == NULL ? NULL : mu_slice_copy(there);
    if (next != NULL && (map == NULL || e->prev != NULL) &&
        json_object_set_new(next, e->key, json_string(e->value)) == 0)
        e->text = json_dumps(next, JSON_ENSURE_ASCII);
    json_decref(next);
    if (e->text == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory, or the text is not UTF-8");
    e->state = MU_EXTRA_WRITING;
    e->request = (struct mu_etcd2_request){
        .kind = MU_ETCD2_PUT,
        .key = mu_slice_str(e->path),
        .has_value = true,
        .value = mu_slice_str(e->text),
        .prev_exist = e->prev == NULL ? MU_ETCD2_MUST_NOT : MU_ETCD2_ANY,
        .has_prev_value = e->prev != NULL,
        .prev_value = e->prev == NULL ? mu_slice("", 0) : mu_slice(e->prev, there.len),
    };
    return 0;
}

static int find(struct mu_extra_data *e, const json_t *map, uint64_t index, struct muster_error *reterr)
{
    const json_t *value = json_object_get(map, e->key);
    char *text;

    if (value == NULL) {
        e->state = MU_EXTRA_WATCHING;
        e->request =
            (struct mu_etcd2_request){ .kind = MU_ETCD2_WATCH, .key = mu_slice_str(e->path), .wait_index = index + 1 };
        e->most_ms = MU_EXTRA_WATCH_MS;
        return 0;
    }
    text = json_is_string(value) ? strdup(json_string_value(value))
                                 : json_dumps(value, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    if (text == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for the value");
    e->found = (struct muster_bytes){ text, strlen(text) };
    e->state = MU_EXTRA_DONE;
    return 0;
}

static int on_read(struct mu_extra_data *e, const struct mu_etcd2_answer *answer, unsigned status,
                   struct muster_error *reterr)
{
    json_t *map;
    int rc = read_map(answer, status, &map, reterr);

    if (rc < 0)
        return rc;
    if (e->value == NULL)
        rc = find(e, map, answer->index, reterr);
    else
        rc = write_next(e, map, map != NULL ? answer->nodes[0].value : mu_slice("", 0), reterr);
    json_decref(map);
    return rc;
}

/* A lost answer counts as a lost write: what was written will be read, and writing it twice does no harm. */
static int on_written(struct mu_extra_data *e, int rc, const struct mu_etcd2_answer *answer, unsigned status,
                      struct muster_error *reterr)
{
    bool lost = rc < 0 || answer->code == MU_ETCD2_EXISTS || answer->code == MU_ETCD2_COMPARE_FAILED ||
                answer->code == MU_ETCD2_NOT_FOUND;

    if (lost) {
        read_next(e);
        e->pause_ms = MU_EXTRA_PAUSE_MS;
        return 0;
    }
    e->state = MU_EXTRA_DONE;
    return answer->code == 0 ? 0 : mu_etcd2_fail(answer, status, reterr);
}

int mu_extra_data_step(struct mu_extra_data *e, int rc, bool unsure, unsigned status,
                       const struct mu_etcd2_answer *answer, const struct muster_error *error,
                       struct muster_error *reterr)
{
    bool harmless = (e->state == MU_EXTRA_WRITING && unsure) || (e->state == MU_EXTRA_WATCHING && mu_etcd2_is_away(rc));

    assert(e->state != MU_EXTRA_DONE);
    e->pause_ms = 0;
    if (rc < 0 && !harmless) {
        if (reterr != NULL)
            *reterr = *error;
        return rc;
    }
    if (e->state == MU_EXTRA_READING)
        return on_read(e, answer, status, reterr);
    if (e->state == MU_EXTRA_WRITING)
        return on_written(e, rc, answer, status, reterr);
    read_next(e);
    return 0;
}

int mu_extra_data_end(struct mu_extra_data *e, int rc, struct muster_error *reterr)
{
    free_texts(e);
    return rc < 0 ? mu_wrap(reterr, rc, "%s extra data '%.100s'", e->value != NULL ? "store" : "load", e->key) : 0;
}
