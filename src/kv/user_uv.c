/* A user's own back end and store.
 *
 * Happy path: a request becomes a job in the queue of its lane; the lane's thread takes one job at a time, makes the
 * blocking call and puts the job into `ended`; the loop, woken by that, answers. Failures: what the user's code returns is
 * passed on; a job still queued when all is closed is canceled, one under way is waited for. A PARK that another one
 * replaces is answered at once; its watch, if it has begun, serves the new one if it is for the same token, or else goes
 * on for nobody until it returns, which by its contract is soon.
 *
 * The threads are ours and not libuv's: its pool is small and shared by the whole process, and a few watches would fill
 * it. */
#include "kv/user_uv.h"

#include "base/clock.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum lane_name { LANE_STATE, LANE_WATCH, LANE_STORE, LANE_WAIT, LANES_COUNT };

struct driver;

struct lane {
    struct driver *driver;
    pthread_t thread;
    bool started;
    pthread_cond_t changed;
    /* Under the driver's lock: */
    struct mu_list jobs;
    bool stop, over;
};

struct job {
    struct mu_list link;
    struct mu_kv_request *request; /* the loop's; NULL: it was answered meanwhile */
    /* What is called with; not touched by the loop while the job is in a lane. */
    struct mu_kv_request asked;
    struct muster_bytes token; /* of a watch: ours */
    char *key;                 /* of a digest: ours */
    /* Under the driver's lock: */
    bool taken;    /* its call has begun */
    bool canceled; /* it was not called */
};

struct driver {
    struct mu_kv kv;
    struct mu_kv_ops ops;
    uv_loop_t *loop;
    uv_async_t wake;
    struct muster_rdzv_backend *backend;
    struct muster_store *store;
    char *run_id;
    struct lane lanes[LANES_COUNT];
    pthread_mutex_t lock;
    struct mu_list ended;      /* under lock: jobs to be answered */
    struct mu_list later;      /* requests that are answered, without a call */
    struct muster_bytes token; /* of the last document that we have seen */
    struct job *parked;
    bool closing;
    mu_kv_closed *on_closed;
    void *closed_ctx;
};

/* Is `member` there, in a table that may be shorter than ours? */
#define HAS(thing, type, member)                                                                                       \
    ((thing)->ops->size >= offsetof(struct type, member) + sizeof((thing)->ops->member) && (thing)->ops->member != NULL)

/* ---- The calls, on the lanes' threads ---- */

static int call_state(const struct driver *driver, struct mu_kv_request *asked)
{
    struct muster_rdzv_backend *backend = driver->backend;

    if (asked->kind == MU_KV_READ)
        return backend->ops->get_state(backend, &asked->found, &asked->bytes, &asked->state_token, &asked->error);
    return backend->ops->set_state(backend, asked->value,
                                   asked->has_token ? asked->token : (struct muster_slice){ NULL, 0 }, &asked->found,
                                   &asked->bytes, &asked->state_token, &asked->written, &asked->error);
}

static int call_store(const struct driver *driver, struct mu_kv_request *asked)
{
    struct muster_store *store = driver->store;
    int64_t timeout_ms = asked->timeout_ms > INT64_MAX ? INT64_MAX : (int64_t)asked->timeout_ms;
    struct muster_error *error = &asked->error;

    switch (asked->kind) {
    case MU_KV_GET:
        return muster_store_get(store, asked->key, timeout_ms, &asked->bytes, error);
    case MU_KV_SET:
        return muster_store_set(store, asked->key, asked->value, timeout_ms, error);
    case MU_KV_ADD:
        return muster_store_add(store, asked->key, asked->number, timeout_ms, &asked->number, error);
    case MU_KV_SETTLE: /* the key is the digest's, and nothing is expected there */
    case MU_KV_COMPARE_SET:
        return muster_store_compare_set(store, asked->key, asked->token, asked->value, timeout_ms, &asked->bytes,
                                        error);
    case MU_KV_CHECK:
        return muster_store_check(store, &asked->key, 1, timeout_ms, &asked->found, error);
    default:
        assert(asked->kind == MU_KV_DELETE);
        return muster_store_delete_key(store, asked->key, timeout_ms, &asked->found, error);
    }
}

static int call_watch(const struct driver *driver, struct mu_kv_request *asked)
{
    struct muster_rdzv_backend *backend = driver->backend;
    int64_t timeout_ms = asked->timeout_ms > INT64_MAX ? INT64_MAX : (int64_t)asked->timeout_ms;

    return backend->ops->watch(backend, asked->token, timeout_ms, &asked->error);
}

static void call(const struct driver *driver, struct mu_kv_request *asked)
{
    if (asked->kind == MU_KV_READ || asked->kind == MU_KV_WRITE)
        asked->rc = call_state(driver, asked);
    else if (asked->kind == MU_KV_PARK)
        asked->rc = call_watch(driver, asked);
    else
        asked->rc = call_store(driver, asked);
    if (asked->rc < 0 && asked->error.text[0] == '\0')
        (void)mu_fail(&asked->error, asked->rc, "%s", muster_error_text(asked->rc));
}

static void *run_lane(void *arg)
{
    struct lane *lane = arg;
    struct driver *driver = lane->driver;
    struct mu_list *link;

    (void)pthread_mutex_lock(&driver->lock);
    for (;;) {
        struct job *job;

        while ((link = mu_list_pop(&lane->jobs)) == NULL && !lane->stop)
            (void)pthread_cond_wait(&lane->changed, &driver->lock);
        if (link == NULL)
            break;
        job = MU_LIST_ITEM(link, struct job, link);
        job->canceled = lane->stop;
        job->taken = true;
        if (!job->canceled) {
            (void)pthread_mutex_unlock(&driver->lock);
            call(driver, &job->asked);
            (void)pthread_mutex_lock(&driver->lock);
        }
        mu_list_push(&driver->ended, &job->link);
        (void)uv_async_send(&driver->wake);
    }
    lane->over = true;
    (void)uv_async_send(&driver->wake);
    (void)pthread_mutex_unlock(&driver->lock);
    return NULL;
}

/* ---- Answers, on the loop ---- */

static void free_job(struct job *job)
{
    muster_bytes_done(&job->token);
    muster_bytes_done(&job->asked.bytes);
    muster_bytes_done(&job->asked.state_token);
    free(job->key);
    free(job);
}

static int copy_bytes(struct muster_bytes *to, const struct muster_bytes *from)
{
    char *data = malloc(from->len + 1);

    if (data == NULL)
        return MUSTER_ENOMEM;
    if (from->len > 0)
        memcpy(data, from->data, from->len);
    data[from->len] = '\0';
    *to = (struct muster_bytes){ .data = data, .len = from->len };
    return 0;
}

/* What the next watch is for. Without memory for it, none: the watch then returns at once or late, and reads go on. */
static void remember_token(struct driver *driver, const struct mu_kv_request *asked)
{
    muster_bytes_done(&driver->token);
    if (asked->found && asked->state_token.data != NULL)
        (void)copy_bytes(&driver->token, &asked->state_token);
}

static void answer(struct driver *driver, struct job *job)
{
    struct mu_kv_request *request = job->request, *asked = &job->asked;

    if (driver->parked == job)
        driver->parked = NULL;
    if (job->canceled)
        asked->rc = mu_fail(&asked->error, MUSTER_ECANCELED, "the back end was closed");
    else if (asked->rc == 0 && (asked->kind == MU_KV_READ || asked->kind == MU_KV_WRITE))
        remember_token(driver, asked);
    if (request != NULL && asked->rc < 0) {
        request->error = asked->error;
        request->rc = mu_wrap(&request->error, asked->rc, "%s", mu_kv_kind_text(asked->kind));
    } else if (request != NULL) {
        request->found = asked->found;
        request->written = asked->written;
        if (asked->kind == MU_KV_ADD)
            request->number = asked->number;
        request->bytes = asked->bytes;
        request->state_token = asked->state_token;
        asked->bytes = asked->state_token = (struct muster_bytes){ 0 };
    }
    free_job(job);
    if (request != NULL)
        request->done(request);
}

static void on_wake_closed(uv_handle_t *handle)
{
    struct driver *driver = handle->data;

    for (unsigned i = 0; i < LANES_COUNT; i++)
        (void)pthread_cond_destroy(&driver->lanes[i].changed);
    (void)pthread_mutex_destroy(&driver->lock);
    driver->on_closed(&driver->kv, driver->closed_ctx);
    muster_bytes_done(&driver->token);
    free(driver->run_id);
    free(driver);
}

static void close_if_over(struct driver *driver)
{
    bool over;

    (void)pthread_mutex_lock(&driver->lock);
    over = mu_list_empty(&driver->ended) && mu_list_empty(&driver->later);
    for (unsigned i = 0; i < LANES_COUNT; i++)
        over = over && (!driver->lanes[i].started || driver->lanes[i].over);
    (void)pthread_mutex_unlock(&driver->lock);
    if (!over || uv_is_closing((uv_handle_t *)&driver->wake))
        return;
    for (unsigned i = 0; i < LANES_COUNT; i++) {
        if (driver->lanes[i].started)
            (void)pthread_join(driver->lanes[i].thread, NULL);
    }
    uv_close((uv_handle_t *)&driver->wake, on_wake_closed);
}

static void on_wake(uv_async_t *async)
{
    struct driver *driver = async->data;
    struct mu_list all, *link;

    (void)pthread_mutex_lock(&driver->lock);
    mu_list_take(&all, &driver->ended);
    (void)pthread_mutex_unlock(&driver->lock);
    while ((link = mu_list_pop(&all)) != NULL)
        answer(driver, MU_LIST_ITEM(link, struct job, link));
    mu_list_take(&all,
                 &driver->later); /* those that are there now: an answer may lead to a request that fails at once */
    while ((link = mu_list_pop(&all)) != NULL)
        mu_kv_tell(link);
    if (driver->closing)
        close_if_over(driver);
}

/* ---- Requests ---- */

/* Answers a request without a call; rc below 0: `error` says why. */
static void answer_later(struct driver *driver, struct mu_kv_request *request, const struct muster_error *error)
{
    if (error != NULL) {
        request->error = *error;
        request->rc = mu_wrap(&request->error, error->code, "%s", mu_kv_kind_text(request->kind));
    }
    mu_list_push(&driver->later, &request->link);
    (void)uv_async_send(&driver->wake);
}

static int start_lane(struct lane *lane, struct muster_error *reterr)
{
    int errnum;

    if (lane->started)
        return 0;
    errnum = mu_thread_start(&lane->thread, run_lane, lane);
    if (errnum != 0)
        return mu_fail_errno(reterr, errnum, "start a thread");
    lane->started = true;
    return 0;
}

static enum lane_name lane_for(enum mu_kv_kind kind)
{
    switch (kind) {
    case MU_KV_READ:
    case MU_KV_WRITE:
        return LANE_STATE;
    case MU_KV_PARK:
        return LANE_WATCH;
    case MU_KV_GET:
        return LANE_WAIT;
    default:
        return LANE_STORE;
    }
}

/* A new PARK takes the place of an old one. True: and is served by its watch. */
static bool replace_parked(struct driver *driver, struct mu_kv_request *request)
{
    struct job *job = driver->parked;
    struct muster_error error;
    bool taken, same = job->token.len == driver->token.len &&
                       (job->token.len == 0 || memcmp(job->token.data, driver->token.data, job->token.len) == 0);

    (void)mu_fail(&error, MUSTER_ECANCELED, "another one took its place");
    answer_later(driver, job->request, &error);
    job->request = same ? request : NULL;
    if (same)
        return true;
    driver->parked = NULL;
    (void)pthread_mutex_lock(&driver->lock);
    taken = job->taken;
    if (!taken)
        mu_list_remove(&job->link);
    (void)pthread_mutex_unlock(&driver->lock);
    if (!taken)
        free_job(job);
    return false;
}

/* What a job's call needs beyond what was asked. */
static int prepare(struct driver *driver, struct job *job, struct muster_error *reterr)
{
    struct mu_kv_request *asked = &job->asked;

    if (asked->kind == MU_KV_PARK) {
        if (driver->token.data != NULL && copy_bytes(&job->token, &driver->token) < 0)
            return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a token");
        asked->token = (struct muster_slice){ job->token.data, job->token.len };
        driver->parked = job;
    } else if (asked->kind == MU_KV_SETTLE) {
        if (asprintf(&job->key, "muster.%s/world/%" PRId64, driver->run_id, asked->number) < 0) {
            job->key = NULL;
            return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a key");
        }
        asked->key = muster_str(job->key);
        asked->token = muster_str("");
    }
    return 0;
}

static int queue(struct driver *driver, struct mu_kv_request *request, struct muster_error *reterr)
{
    struct lane *lane = &driver->lanes[lane_for(request->kind)];
    struct job *job = calloc(1, sizeof *job);
    int rc;

    if (job == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a request");
    job->request = request;
    job->asked = *request;
    rc = start_lane(lane, reterr);
    if (rc == 0)
        rc = prepare(driver, job, reterr);
    if (rc < 0) {
        free_job(job);
        return rc;
    }
    (void)pthread_mutex_lock(&driver->lock);
    mu_list_push(&lane->jobs, &job->link);
    (void)pthread_cond_signal(&lane->changed);
    (void)pthread_mutex_unlock(&driver->lock);
    return 0;
}

static void submit(struct mu_kv *kv, struct mu_kv_request *request)
{
    struct driver *driver = (struct driver *)kv;
    struct muster_error error;
    int rc = 0;

    assert(!driver->closing);
    mu_kv_begin(request, uv_now(driver->loop));
    switch (request->kind) {
    case MU_KV_RING: /* watchers see the new token */
    case MU_KV_HOST: /* not known */
        answer_later(driver, request, NULL);
        return;
    case MU_KV_TURN_TAKE:
    case MU_KV_TURN_WAIT:
    case MU_KV_TURN_GIVE:
        rc = mu_fail(&error, MUSTER_ENOTSUP, "the back end has no turns");
        break;
    case MU_KV_PARK:
        if (!driver->ops.has_bell)
            rc = mu_fail(&error, MUSTER_ENOTSUP, "the back end cannot watch");
        else if (driver->parked != NULL && replace_parked(driver, request))
            return;
        break;
    case MU_KV_READ:
        request->number = 0; /* there is no counter, and none is needed: a watch is for a token */
        break;
    default:
        break;
    }
    if (rc == 0)
        rc = queue(driver, request, &error);
    if (rc < 0)
        answer_later(driver, request, &error);
}

static void close_kv(struct mu_kv *kv, mu_kv_closed *closed, void *ctx)
{
    struct driver *driver = (struct driver *)kv;

    assert(!driver->closing);
    driver->closing = true;
    driver->on_closed = closed;
    driver->closed_ctx = ctx;
    (void)pthread_mutex_lock(&driver->lock);
    for (unsigned i = 0; i < LANES_COUNT; i++) {
        driver->lanes[i].stop = true;
        (void)pthread_cond_signal(&driver->lanes[i].changed);
    }
    (void)pthread_mutex_unlock(&driver->lock);
    (void)uv_async_send(&driver->wake);
}

/* ---- Start ---- */

static void init_lanes(struct driver *driver)
{
    (void)pthread_mutex_init(&driver->lock, NULL);
    for (unsigned i = 0; i < LANES_COUNT; i++) {
        driver->lanes[i].driver = driver;
        mu_list_init(&driver->lanes[i].jobs);
        (void)pthread_cond_init(&driver->lanes[i].changed, NULL);
    }
}

int mu_kv_user_start(uv_loop_t *loop, struct muster_rdzv_backend *backend, struct muster_store *store,
                     const char *run_id, struct mu_kv **ret_kv, struct muster_error *reterr)
{
    struct driver *driver = calloc(1, sizeof *driver);
    int rc;

    if (driver != NULL)
        driver->run_id = strdup(run_id);
    if (driver == NULL || driver->run_id == NULL) {
        free(driver);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a rendezvous back end");
    }
    driver->loop = loop;
    driver->backend = backend;
    driver->store = store;
    driver->ops = (struct mu_kv_ops){
        .name = backend->ops->name,
        .has_bell = HAS(backend, muster_rdzv_backend_ops, watch),
        .has_settle = HAS(store, muster_store_ops, compare_set),
        .submit = submit,
        .close = close_kv,
    };
    driver->kv.ops = &driver->ops;
    mu_list_init(&driver->ended);
    mu_list_init(&driver->later);
    driver->wake.data = driver;
    rc = uv_async_init(loop, &driver->wake, on_wake);
    if (rc < 0) {
        free(driver->run_id);
        free(driver);
        return mu_fail_errno(reterr, -rc, "start a rendezvous back end");
    }
    init_lanes(driver);
    *ret_kv = &driver->kv;
    return 0;
}
