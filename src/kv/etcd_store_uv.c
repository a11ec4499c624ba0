/* EtcdStore as a struct mu_kv.
 *
 * Happy path: a request becomes a job; each step of it is one call of the client, whose answer decides the next: GET is
 * get, and while there is nothing watch and get; ADD is create, and if there is something get and swap; COMPARE_SET is
 * swap, and if that fails get. Failures: an error of the client is the request's. When the answer to a swap was lost,
 * an ADD fails, for it may have counted or not; a COMPARE_SET reads the key. */
#include "kv/etcd_store_uv.h"

#include "base/base64.h"
#include "base/rng.h"
#include "base/text.h"
#include "kv/later_uv.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define CAS_DELAY_MS 100 /* after a lost swap: random below this */
#define WATCH_MS 20000   /* then it is asked anew */
#define NUMBER_MAX 32    /* characters of a number */
#define ROUND_PREFIX "torch.rendezvous."

enum step { FIRST, READ, WATCH, SWAP, LOOK };

struct driver {
    struct mu_kv kv;
    uv_loop_t *loop;
    struct mu_http *etcd;
    char *dir;                   /* of the keys, with "/" at its end */
    char *rounds, *round_prefix; /* in a classic rendezvous: of its versions, and how a key of one begins. Else NULL */
    bool gives_foreign;
    struct mu_rng rng;
    struct mu_list jobs;
    struct mu_later later; /* requests that could not be begun */
};

struct job {
    struct driver *driver;
    struct mu_kv_request *request;
    struct mu_list link;
    struct mu_etcd2_call call;
    const struct mu_etcd2_answer *answer; /* that is being taken */
    uint64_t wait_index;
    uint64_t modified; /* index of what was read */
    uv_timer_t timer;
    enum step step;
    bool busy;              /* the call is under way */
    struct mu_buf path;     /* with a NUL */
    struct mu_buf value;    /* base64, to be written */
    struct mu_buf expected; /* base64, to be there */
    struct mu_buf bytes;    /* what was read, decoded */
    int64_t number;
};

static const struct muster_error canceled = { .code = MUSTER_ECANCELED, .text = "the store is being closed" };

static void ask(struct job *job);

/* ---- Where keys are ---- */

static int append_text(struct mu_buf *buf, const char *text)
{
    return mu_buf_append(buf, text, strlen(text), MU_ETCD2_KEY_MAX);
}

static int place(const struct driver *driver, struct mu_slice key, struct mu_buf *path, struct muster_error *reterr)
{
    struct mu_slice version = driver->rounds != NULL ? mu_kv_take_round(&key, driver->round_prefix) : mu_slice("", 0);
    int rc = append_text(path, version.len > 0 ? driver->rounds : driver->dir);

    if (key.len == 0)
        return mu_fail(reterr, MUSTER_EINVAL, "an empty key has no name in an etcd store");
    if (rc == 0 && version.len > 0)
        rc = mu_buf_append(path, version.data, version.len, MU_ETCD2_KEY_MAX);
    if (rc == 0 && version.len > 0)
        rc = append_text(path, "/kv/");
    if (rc == 0)
        rc = mu_base64_encode(key, path, MU_ETCD2_KEY_MAX);
    if (rc < 0)
        return mu_fail(reterr, rc,
                       rc == MUSTER_ELIMIT ? "a key of %zu bytes is too long" : "no memory for a key of %zu bytes",
                       key.len);
    return 0;
}

/* ---- Answering ---- */

static void free_kv(struct mu_kv *kv)
{
    struct driver *driver = (struct driver *)kv;

    free(driver->dir);
    free(driver->rounds);
    free(driver->round_prefix);
    free(driver);
}

static void free_job(struct job *job)
{
    mu_buf_done(&job->path);
    mu_buf_done(&job->value);
    mu_buf_done(&job->expected);
    mu_buf_done(&job->bytes);
    free(job);
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct job *job = handle->data;
    struct driver *driver = job->driver;

    mu_list_remove(&job->link);
    free_job(job);
    mu_kv_part_closed(driver);
}

static void done(struct job *job)
{
    struct mu_kv_request *request = job->request;

    job->request = NULL;
    uv_close((uv_handle_t *)&job->timer, on_timer_closed);
    request->done(request);
}

static void set_error(struct mu_kv_request *request, int rc, const struct muster_error *error)
{
    request->rc = rc;
    request->error = *error;
    request->error.code = rc;
    (void)mu_wrap(&request->error, rc, "%s '%.*s'", mu_kv_kind_text(request->kind),
                  request->key.len > 80 ? 80 : (int)request->key.len, (const char *)request->key.data);
}

static void fail_with(struct job *job, int rc, const struct muster_error *error)
{
    set_error(job->request, rc, error);
    done(job);
}

static void fail_text(struct job *job, int rc, const char *text)
{
    struct muster_error error;

    (void)mu_fail(&error, rc, "%s", text);
    fail_with(job, rc, &error);
}

/* The bytes become the request's. */
static void give_bytes(struct job *job, const char *data, size_t len)
{
    char *copy = mu_slice_copy(mu_slice(data, len));

    if (copy == NULL) {
        fail_text(job, MUSTER_ENOMEM, "no memory for the value");
        return;
    }
    job->request->bytes = (struct muster_bytes){ copy, len };
    done(job);
}

/* ---- Steps ---- */

static uint64_t time_left(const struct job *job)
{
    return mu_kv_left_ms(job->request, uv_now(job->driver->loop));
}

static void next(struct job *job, enum step step)
{
    job->step = step;
    if (time_left(job) == 0)
        fail_text(job, MUSTER_ETIMEOUT, "timed out; the key is not there");
    else
        ask(job);
}

static void on_pause(uv_timer_t *timer)
{
    struct job *job = timer->data;

    next(job, READ);
}

static void pause_then_read(struct job *job)
{
    uint64_t delay_ms = mu_rng_below(&job->driver->rng, CAS_DELAY_MS);

    (void)uv_timer_start(&job->timer, on_pause, delay_ms < time_left(job) ? delay_ms : time_left(job), 0);
}

/* The value of the answer's node, decoded into job->bytes. */
static int take_value(struct job *job)
{
    const struct mu_etcd2_answer *answer = job->answer;
    int rc;

    if (answer->nodes_count == 0 || answer->nodes[0].dir)
        return MUSTER_EPROTOCOL;
    job->modified = answer->nodes[0].modified;
    job->bytes.len = 0;
    rc = mu_base64_decode(answer->nodes[0].value, &job->bytes, MU_ETCD2_VALUE_MAX);
    if (rc == MUSTER_EINVAL && job->driver->gives_foreign)
        rc = mu_buf_assign(&job->bytes, answer->nodes[0].value);
    return rc;
}

static bool is_number(const struct mu_buf *buf, int64_t *ret_number)
{
    char text[NUMBER_MAX];
    char *end;

    if (buf->len == 0 || buf->len >= sizeof text)
        return false;
    memcpy(text, buf->data, buf->len);
    text[buf->len] = '\0';
    *ret_number = strtoll(text, &end, 10);
    return *end == '\0';
}

static int encode_number(struct job *job, int64_t number)
{
    char text[NUMBER_MAX];

    (void)snprintf(text, sizeof text, "%" PRId64, number);
    job->value.len = 0;
    return mu_base64_encode(mu_slice_str(text), &job->value, MU_ETCD2_VALUE_MAX);
}

static void write_number(struct job *job, int64_t number, enum step step)
{
    int rc = encode_number(job, number);

    if (rc < 0)
        fail_text(job, rc, "no memory for a number");
    else
        next(job, step);
}

static void on_got(struct job *job)
{
    int code = job->answer->code, rc;

    if (code == MU_ETCD2_NOT_FOUND) {
        job->wait_index = job->answer->index + 1;
        next(job, WATCH);
        return;
    }
    rc = take_value(job);
    if (rc < 0)
        fail_text(job, rc, "the key holds what no etcd store has written");
    else
        give_bytes(job, job->bytes.data, job->bytes.len);
}

static void add_to_what_is_there(struct job *job)
{
    int64_t there;

    if (take_value(job) < 0 || !is_number(&job->bytes, &there))
        fail_text(job, MUSTER_EINVAL, "the key does not hold a number");
    else if (__builtin_add_overflow(there, job->number, &job->request->number))
        fail_text(job, MUSTER_EINVAL, "the sum does not fit into 64 bits");
    else
        write_number(job, job->request->number, SWAP);
}

static void on_add(struct job *job)
{
    int code = job->answer->code;

    if (job->step == FIRST && code == 0)
        job->request->number = job->number;
    if (job->step == READ && code == MU_ETCD2_NOT_FOUND)
        write_number(job, job->number, FIRST);
    else if (job->step == READ)
        add_to_what_is_there(job);
    else if (code == 0)
        done(job);
    else if (job->step == FIRST)
        next(job, READ);
    else
        pause_then_read(job);
}

static void on_compare_set(struct job *job)
{
    const struct mu_slice value = mu_slice(job->request->value.data, job->request->value.len);
    const struct mu_slice expected = mu_slice(job->request->token.data, job->request->token.len);
    bool wrote = job->step == FIRST || job->step == SWAP;
    int code = job->answer->code, rc;

    if (wrote && code == 0) {
        give_bytes(job, value.data, value.len);
    } else if (wrote) {
        next(job, job->step == FIRST ? READ : LOOK);
    } else if (code == MU_ETCD2_NOT_FOUND) {
        give_bytes(job, expected.data, expected.len);
    } else {
        rc = take_value(job);
        if (rc < 0)
            fail_text(job, rc, "the key holds what no etcd store has written");
        else if (job->step == READ && mu_slice_equal(mu_buf_slice(&job->bytes), expected) &&
                 !mu_slice_equal(value, expected))
            next(job, SWAP); /* it is empty, or not base64 */
        else
            give_bytes(job, job->bytes.data, job->bytes.len);
    }
}

static void on_answer(struct job *job)
{
    const struct mu_etcd2_answer *answer = job->answer;

    switch (job->request->kind) {
    case MU_KV_GET:
        if (job->step == WATCH)
            next(job, READ); /* something has happened; what, will be read */
        else
            on_got(job);
        break;
    case MU_KV_ADD:
        on_add(job);
        break;
    case MU_KV_COMPARE_SET:
        on_compare_set(job);
        break;
    case MU_KV_CHECK:
    case MU_KV_DELETE:
        job->request->found = answer->code == 0;
        done(job);
        break;
    default:
        done(job);
    }
}

/* Answers of etcd that are steps, not errors. */
static bool is_expected(const struct job *job, int code)
{
    switch (code) {
    case MU_ETCD2_NOT_FOUND:
        return job->request->kind != MU_KV_SET;
    case MU_ETCD2_COMPARE_FAILED:
    case MU_ETCD2_EXISTS:
        return job->request->kind == MU_KV_ADD || job->request->kind == MU_KV_COMPARE_SET;
    case MU_ETCD2_INDEX_CLEARED:
        return job->step == WATCH;
    default:
        return code == 0;
    }
}

static void on_called(struct mu_etcd2_call *call)
{
    struct job *job = call->ctx;
    struct mu_etcd2_answer answer = call->answer; /* the next step uses the call again */

    call->answer = (struct mu_etcd2_answer){ 0 };
    job->answer = &answer;
    job->busy = false;
    if (job->driver->kv.closing)
        fail_with(job, MUSTER_ECANCELED, &canceled);
    else if (job->step == WATCH && mu_etcd2_is_away(call->rc))
        next(job, READ);
    else if (call->rc < 0 && call->unsure && job->request->kind == MU_KV_COMPARE_SET)
        next(job, LOOK);
    else if (call->rc < 0)
        fail_with(job, call->rc, &call->error);
    else if (!is_expected(job, answer.code))
        fail_with(job, MUSTER_EPROTOCOL, &call->error);
    else
        on_answer(job);
    mu_etcd2_answer_done(&answer);
}

static bool is_read(const struct job *job)
{
    enum mu_kv_kind kind = job->request->kind;

    return kind == MU_KV_GET || kind == MU_KV_CHECK || job->step == READ || job->step == LOOK;
}

static void fill_write(struct job *job, struct mu_etcd2_request *request)
{
    request->kind = MU_ETCD2_PUT;
    request->has_value = true;
    request->value = mu_buf_slice(&job->value);
    if (job->request->kind == MU_KV_SET)
        return;
    if (job->step == FIRST && (job->request->kind == MU_KV_ADD || job->request->token.len == 0)) {
        request->prev_exist = MU_ETCD2_MUST_NOT;
    } else if (job->step == SWAP) {
        request->prev_index = job->modified;
    } else {
        request->has_prev_value = true;
        request->prev_value = mu_buf_slice(&job->expected);
    }
}

static void ask(struct job *job)
{
    struct mu_etcd2_request request = { .key = mu_slice(job->path.data, job->path.len) };
    uint64_t left = time_left(job);

    if (job->step == WATCH) {
        request.kind = MU_ETCD2_WATCH;
        request.wait_index = job->wait_index;
        left = left < WATCH_MS ? left : WATCH_MS;
    } else if (is_read(job)) {
        request.kind = MU_ETCD2_GET;
        request.quorum = true;
    } else if (job->request->kind == MU_KV_DELETE) {
        request.kind = MU_ETCD2_DELETE;
    } else {
        fill_write(job, &request);
    }
    job->busy = true;
    mu_etcd2_ask(job->driver->etcd, &job->call, request, left, on_called, job);
}

/* ---- From outside ---- */

static int prepare(struct job *job, struct muster_error *reterr)
{
    struct mu_kv_request *request = job->request;
    struct mu_slice value = mu_slice(request->value.data, request->value.len);
    struct mu_slice expected = mu_slice(request->token.data, request->token.len);
    int rc = place(job->driver, mu_slice(request->key.data, request->key.len), &job->path, reterr);

    if (rc < 0)
        return rc;
    if (request->kind == MU_KV_SET || request->kind == MU_KV_COMPARE_SET)
        rc = mu_base64_encode(value, &job->value, MU_ETCD2_VALUE_MAX);
    if (rc == 0 && request->kind == MU_KV_COMPARE_SET)
        rc = mu_base64_encode(expected, &job->expected, MU_ETCD2_VALUE_MAX);
    if (rc == 0 && request->kind == MU_KV_ADD)
        rc = encode_number(job, request->number);
    if (rc < 0)
        return mu_fail(reterr, rc, "a value of %zu bytes: %s", value.len, muster_error_text(rc));
    return 0;
}

static bool is_known(enum mu_kv_kind kind)
{
    return kind == MU_KV_GET || kind == MU_KV_SET || kind == MU_KV_ADD || kind == MU_KV_COMPARE_SET ||
           kind == MU_KV_CHECK || kind == MU_KV_DELETE;
}

static struct job *new_job(struct driver *driver, struct mu_kv_request *request)
{
    struct job *job = calloc(1, sizeof *job);

    if (job == NULL)
        return NULL;
    job->driver = driver;
    job->request = request;
    job->number = request->number;
    return job;
}

static void submit(struct mu_kv *kv, struct mu_kv_request *request)
{
    struct driver *driver = (struct driver *)kv;
    struct job *job = NULL;
    int rc;

    assert(!kv->closing);
    mu_kv_begin(request, uv_now(driver->loop));
    if (!is_known(request->kind)) {
        rc = mu_fail(&request->error, MUSTER_ENOTSUP, "%s: an etcd store has no such thing",
                     mu_kv_kind_text(request->kind));
    } else {
        job = new_job(driver, request);
        rc = job == NULL ? mu_fail(&request->error, MUSTER_ENOMEM, "no memory for a request")
                         : prepare(job, &request->error);
    }
    if (rc < 0) {
        if (job != NULL)
            free_job(job);
        request->rc = rc;
        mu_later_push(&driver->later, &request->link);
        return;
    }
    (void)uv_timer_init(driver->loop, &job->timer); /* fills in memory only */
    job->timer.data = job;
    mu_list_push(&driver->jobs, &job->link);
    kv->parts++;
    ask(job);
}

/* A job that pauses: nothing else would end it. */
static void cancel_later(struct job *job)
{
    set_error(job->request, MUSTER_ECANCELED, &canceled);
    mu_later_push(&job->driver->later, &job->request->link);
    job->request = NULL;
    uv_close((uv_handle_t *)&job->timer, on_timer_closed);
}

static void close_kv(struct mu_kv *kv, mu_kv_closed *closed, void *ctx)
{
    struct driver *driver = (struct driver *)kv;

    mu_kv_begin_close(kv, closed, ctx);
    MU_LIST_EACH (struct job, job, &driver->jobs, link) {
        if (!job->busy && job->request != NULL)
            cancel_later(job);
    }
    mu_later_close(&driver->later, mu_kv_part_closed, kv);
    mu_http_close(driver->etcd, mu_kv_part_closed, kv);
}

static bool local_address(const struct mu_kv *kv, char *text, size_t room)
{
    const struct driver *driver = (const struct driver *)kv;

    return mu_http_local_address(driver->etcd, text, room);
}

static const struct mu_kv_ops store_ops = {
    .name = "etcd",
    .submit = submit,
    .close = close_kv,
    .free = free_kv,
    .local_address = local_address,
};

static int set_up(struct driver *driver, const struct mu_kv_etcd_store_config *config)
{
    if (config->root == NULL) {
        driver->dir = mu_text_format("%s/", config->dir);
        return driver->dir == NULL ? MUSTER_ENOMEM : 0;
    }
    driver->dir = mu_text_format("%s/muster/kv/", config->root);
    driver->rounds = mu_text_format("%s/rdzv/v_", config->root);
    driver->round_prefix = mu_text_format(ROUND_PREFIX "%s.", config->run_id);
    return driver->dir == NULL || driver->rounds == NULL || driver->round_prefix == NULL ? MUSTER_ENOMEM : 0;
}

int mu_kv_etcd_store_start(uv_loop_t *loop, const struct mu_kv_etcd_store_config *config, struct mu_kv **ret_kv,
                           struct muster_error *reterr)
{
    struct driver *driver = calloc(1, sizeof *driver);
    int rc;

    if (driver == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for an etcd store");
    driver->kv.ops = &store_ops;
    driver->kv.parts = 2; /* client and `later` */
    driver->loop = loop;
    driver->gives_foreign = config->gives_foreign;
    driver->rng = mu_rng_seeded(config->seed);
    mu_list_init(&driver->jobs);
    rc = set_up(driver, config);
    if (rc < 0)
        (void)mu_fail(reterr, rc, "no memory for an etcd store");
    else
        rc = mu_http_start(loop, config->http, &driver->etcd, reterr);
    if (rc < 0) {
        free_kv(&driver->kv);
        return rc;
    }
    mu_later_open(&driver->later, loop, mu_kv_tell);
    *ret_kv = &driver->kv;
    return 0;
}

struct mu_http *mu_kv_etcd_store_http(struct mu_kv *kv)
{
    return ((struct driver *)kv)->etcd;
}
