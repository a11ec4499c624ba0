/* A user's own back end and store.
 *
 * Happy path: a request becomes a job in the queue of its lane; the lane's thread takes one job at a time, makes the
 * blocking call and puts the job into `ended`; the loop, woken by that, answers. A job that has to wait (a get for its
 * key, a watch for a change) waits for a moment at a time, and then goes behind the other jobs of its lane: a store
 * makes one call after the other, and all jobs have to end soon after it is closed.
 *
 * Failures: errors of the user's code are passed on. On closing, queued jobs are canceled, and a call under way is
 * waited for, up to a limit if there is one. After that its thread is left behind with the memory it needs, and frees
 * it if it ever comes back. A PARK that another one replaces is answered at once; its watch serves the new one if both
 * have the same token, or else ends unused.
 *
 * The threads are ours and not libuv's: its pool is small and shared by the whole process, and a few watches would fill
 * it. */
#include "kv/kv_user_uv.h"

#include "base/clock.h"
#include "base/log.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum lane_name { LANE_STATE, LANE_WATCH, LANE_STORE, LANES_COUNT };

enum {
    GET_SLICE_MS = 100,      /* how long a get waits for its key before others have their turn ... */
    GET_SLICE_SHORT_MS = 10, /* ... and where others wait */
    WATCH_SLICE_MS = 1000,
};

struct driver;

struct lane {
    struct driver *driver;
    pthread_t thread;
    bool started;
    pthread_cond_t changed;
    /* Under the driver's lock: */
    struct mu_list jobs;
    struct job *running; /* its call is under way; NULL: none */
    bool stop, over;
};

struct job {
    struct mu_list link;
    struct mu_kv_request *request; /* the loop's; NULL: it was answered meanwhile */
    /* The arguments of the call; not touched by the loop while the job is in a lane. The job owns all that it points
     * to, for it may outlive the request. */
    struct mu_kv_request asked;
    struct muster_bytes token; /* of a watch */
    char *key;                 /* of a digest */
    char *slices;              /* of everything else */
    /* Under the driver's lock: */
    bool unwanted; /* its call is not to be made again */
    bool canceled; /* it was not called */
    /* The thread's: */
    int64_t until_ms; /* by base/clock.h */
    bool has_waited;  /* the call took all of its time */
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
    uint64_t patience_ms; /* for calls under way, when closing; 0: without a limit */
    uv_timer_t patience;
    unsigned handles;
    /* Under lock: */
    bool left_behind; /* threads that have not come back do without the loop */
    unsigned owners;  /* the loop, and each of those; the last one frees this */
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

static bool may_wait(enum mu_kv_kind kind)
{
    return kind == MU_KV_GET || kind == MU_KV_PARK;
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

/* One turn of a job. */
static void run_job(const struct driver *driver, struct job *job, bool others_wait)
{
    uint64_t slice_ms = job->asked.kind == MU_KV_PARK ? WATCH_SLICE_MS
                        : others_wait                 ? GET_SLICE_SHORT_MS
                                                      : GET_SLICE_MS;
    int64_t now_ms = mu_clock_ms(), left_ms = job->until_ms > now_ms ? job->until_ms - now_ms : 1;

    if (may_wait(job->asked.kind)) {
        job->asked.timeout_ms = (uint64_t)left_ms < slice_ms ? (uint64_t)left_ms : slice_ms;
        job->asked.error = (struct muster_error){ 0 };
    }
    call(driver, &job->asked);
    job->has_waited = mu_clock_ms() - now_ms >= (int64_t)job->asked.timeout_ms;
}

/* With the lock. What it waits for has not come, and it has time left. */
static bool waits_on(const struct lane *lane, const struct job *job)
{
    bool in_vain = job->asked.kind == MU_KV_GET    ? job->asked.rc == MUSTER_ETIMEOUT
                   : job->asked.kind == MU_KV_PARK ? job->asked.rc == 0 && job->has_waited
                                                   : false;

    return in_vain && !lane->stop && !job->unwanted && mu_clock_ms() < job->until_ms;
}

static void free_job(struct job *job);
static void disown(struct driver *driver);

/* With the lock, which is given away meanwhile. */
static void carry_out(struct lane *lane, struct job *job)
{
    struct driver *driver = lane->driver;
    bool others_wait = !mu_list_empty(&lane->jobs);

    job->canceled = lane->stop;
    if (!job->canceled) {
        lane->running = job;
        (void)pthread_mutex_unlock(&driver->lock);
        run_job(driver, job, others_wait);
        (void)pthread_mutex_lock(&driver->lock);
        lane->running = NULL;
    }
    if (driver->left_behind) {
        free_job(job);
    } else if (!job->canceled && waits_on(lane, job)) {
        mu_list_push(&lane->jobs, &job->link);
    } else {
        mu_list_push(&driver->ended, &job->link);
        (void)uv_async_send(&driver->wake);
    }
}

static void *run_lane(void *arg)
{
    struct lane *lane = arg;
    struct driver *driver = lane->driver;
    struct mu_list *link;
    bool left_behind;

    (void)pthread_mutex_lock(&driver->lock);
    for (;;) {
        while ((link = mu_list_pop(&lane->jobs)) == NULL && !lane->stop)
            (void)pthread_cond_wait(&lane->changed, &driver->lock);
        if (link == NULL)
            break;
        carry_out(lane, MU_LIST_ITEM(link, struct job, link));
    }
    lane->over = true;
    left_behind = driver->left_behind;
    if (!left_behind)
        (void)uv_async_send(&driver->wake);
    (void)pthread_mutex_unlock(&driver->lock);
    if (left_behind)
        disown(driver);
    return NULL;
}

/* ---- Answers, on the loop ---- */

static void free_job(struct job *job)
{
    muster_bytes_done(&job->token);
    muster_bytes_done(&job->asked.bytes);
    muster_bytes_done(&job->asked.state_token);
    free(job->key);
    free(job->slices);
    free(job);
}

static int copy_bytes(struct muster_bytes *to, const struct muster_bytes *from)
{
    *to = (struct muster_bytes){ .data = mu_slice_copy(mu_slice(from->data, from->len)), .len = from->len };
    if (to->data == NULL)
        to->len = 0;
    return to->data == NULL ? MUSTER_ENOMEM : 0;
}

/* The token for the next watch. Without memory for it there is none: the watch then returns at once or late, and reads
 * go on. */
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
        mu_kv_fail(request, asked->rc, &asked->error);
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

static void destroy(struct driver *driver)
{
    for (unsigned i = 0; i < LANES_COUNT; i++)
        (void)pthread_cond_destroy(&driver->lanes[i].changed);
    (void)pthread_mutex_destroy(&driver->lock);
    muster_bytes_done(&driver->token);
    free(driver->run_id);
    free(driver);
}

static void disown(struct driver *driver)
{
    bool last;

    (void)pthread_mutex_lock(&driver->lock);
    last = --driver->owners == 0;
    (void)pthread_mutex_unlock(&driver->lock);
    if (last)
        destroy(driver);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct driver *driver = handle->data;

    if (--driver->handles > 0)
        return;
    driver->kv.on_closed(&driver->kv, driver->kv.closed_ctx);
    disown(driver);
}

static void close_handles(struct driver *driver)
{
    driver->handles = 2;
    uv_close((uv_handle_t *)&driver->wake, on_handle_closed);
    uv_close((uv_handle_t *)&driver->patience, on_handle_closed);
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
    close_handles(driver);
}

/* From the loop: answers what is there. */
static void turn(struct driver *driver)
{
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
}

/* With the lock. A lane that does not come back is not waited for any more. */
static void leave_behind(struct driver *driver, struct lane *lane)
{
    struct mu_list *link;

    driver->owners++;
    (void)pthread_detach(lane->thread);
    while ((link = mu_list_pop(&lane->jobs)) != NULL) {
        MU_LIST_ITEM(link, struct job, link)->canceled = true;
        mu_list_push(&driver->ended, link);
    }
    if (lane->running == NULL || lane->running->request == NULL)
        return;
    lane->running->request->rc = mu_fail(&lane->running->request->error, MUSTER_ECANCELED,
                                         "%s: the back end was closed", mu_kv_kind_text(lane->running->request->kind));
    mu_list_push(&driver->later, &lane->running->request->link);
    lane->running->request = NULL;
}

static void on_patience(uv_timer_t *timer)
{
    struct driver *driver = timer->data;

    mu_log(MUSTER_LOG_WARNING,
           "rendezvous back end '%s': a call has not returned for %" PRIu64 ".%" PRIu64
           " s; going on without it. Its thread is left behind, and back end and store must not be freed",
           driver->ops.name, driver->patience_ms / 1000, driver->patience_ms % 1000 / 100);
    (void)pthread_mutex_lock(&driver->lock);
    driver->left_behind = true;
    for (unsigned i = 0; i < LANES_COUNT; i++) {
        struct lane *lane = &driver->lanes[i];

        if (lane->started && lane->over)
            (void)pthread_join(lane->thread, NULL);
        else if (lane->started)
            leave_behind(driver, lane);
    }
    (void)pthread_mutex_unlock(&driver->lock);
    while (!mu_list_empty(&driver->ended) || !mu_list_empty(&driver->later))
        turn(driver);
    close_handles(driver);
}

static void on_wake(uv_async_t *async)
{
    struct driver *driver = async->data;

    turn(driver);
    if (driver->kv.closing)
        close_if_over(driver);
}

/* ---- Requests ---- */

/* Answers a request without a call; rc below 0: `error` says why. */
static void answer_later(struct driver *driver, struct mu_kv_request *request, const struct muster_error *error)
{
    if (error != NULL)
        mu_kv_fail(request, error->code, error);
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
    default:
        return LANE_STORE;
    }
}

/* A new PARK takes the place of an old one. True: the watch of the old one serves it. */
static bool replace_parked(struct driver *driver, struct mu_kv_request *request)
{
    struct job *job = driver->parked;
    struct lane *lane = &driver->lanes[LANE_WATCH];
    struct muster_error error;
    bool under_way, same = job->token.len == driver->token.len &&
                           (job->token.len == 0 || memcmp(job->token.data, driver->token.data, job->token.len) == 0);

    (void)mu_fail(&error, MUSTER_ECANCELED, "another one took its place");
    answer_later(driver, job->request, &error);
    job->request = same ? request : NULL;
    if (same)
        return true;
    driver->parked = NULL;
    (void)pthread_mutex_lock(&driver->lock);
    under_way = lane->running == job;
    job->unwanted = true;
    if (!under_way)
        mu_list_remove(&job->link);
    (void)pthread_mutex_unlock(&driver->lock);
    if (!under_way)
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

static void copy_slice(char **at, struct muster_slice *slice)
{
    if (slice->data == NULL)
        return; /* which is not the same as an empty one */
    if (slice->len > 0)
        memcpy(*at, slice->data, slice->len);
    slice->data = *at;
    *at += slice->len;
}

static int copy_slices(struct job *job)
{
    struct mu_kv_request *asked = &job->asked;
    char *at = malloc(asked->key.len + asked->value.len + asked->token.len + 1);

    job->slices = at;
    if (at == NULL)
        return MUSTER_ENOMEM;
    copy_slice(&at, &asked->key);
    copy_slice(&at, &asked->value);
    copy_slice(&at, &asked->token);
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
    job->until_ms = mu_clock_in_ms(request->timeout_ms > INT64_MAX ? INT64_MAX : (int64_t)request->timeout_ms);
    rc = copy_slices(job) < 0 ? mu_fail(reterr, MUSTER_ENOMEM, "no memory for a request") : start_lane(lane, reterr);
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

    assert(!kv->closing);
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

    mu_kv_begin_close(kv, closed, ctx);
    (void)pthread_mutex_lock(&driver->lock);
    for (unsigned i = 0; i < LANES_COUNT; i++) {
        driver->lanes[i].stop = true;
        (void)pthread_cond_signal(&driver->lanes[i].changed);
    }
    (void)pthread_mutex_unlock(&driver->lock);
    (void)uv_async_send(&driver->wake);
    if (driver->patience_ms > 0)
        (void)uv_timer_start(&driver->patience, on_patience, driver->patience_ms, 0);
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
                     const char *run_id, uint64_t patience_ms, struct mu_kv **ret_kv, struct muster_error *reterr)
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
    driver->patience_ms = patience_ms;
    driver->owners = 1;
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
    driver->wake.data = driver->patience.data = driver;
    rc = uv_async_init(loop, &driver->wake, on_wake);
    if (rc < 0) {
        free(driver->run_id);
        free(driver);
        return mu_fail_errno(reterr, -rc, "start a rendezvous back end");
    }
    (void)uv_timer_init(loop, &driver->patience); /* only fills in memory */
    init_lanes(driver);
    *ret_kv = &driver->kv;
    return 0;
}
