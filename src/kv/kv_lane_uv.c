/* Requests whose calls block, on a thread. See kv_lane_uv.h. */
#include "kv/kv_lane_uv.h"

#include "base/clock.h"

#include <assert.h>
#include <stdlib.h>

enum {
    GET_SLICE_MS = 100,      /* how long a get waits for its key before others have their turn ... */
    GET_SLICE_SHORT_MS = 10, /* ... and where others wait */
    WATCH_SLICE_MS = 1000,
};

struct work {
    struct mu_file_job job;
    struct mu_list link;
    struct mu_kv_lane *lane;       /* this and the next: the loop's side only */
    struct mu_kv_request *request; /* NULL: nobody waits for it any more */
    int64_t until_ms;              /* by base/clock.h */
    atomic_bool unwanted;          /* set by the loop: the call is not to be made */
    /* The thread's, from submit to done: */
    struct muster_store *store;
    struct muster_rdzv_backend *backend;
    struct mu_kv_request asked;
    char *slices; /* what it points to */
    int64_t slice_ms;
    bool has_waited; /* the call took all of its time */
    bool skipped;    /* it was not made */
};

static struct work *work_of(struct mu_file_job *job)
{
    return MU_LIST_ITEM(job, struct work, job);
}

/* ---- On the thread ---- */

static int call(struct work *work)
{
    struct mu_kv_request *asked = &work->asked;
    struct muster_rdzv_backend *backend = work->backend;
    struct muster_store *store = work->store;
    struct muster_error *error = &asked->error;
    int64_t timeout_ms = work->slice_ms;

    switch (asked->kind) {
    case MU_KV_READ:
        return backend->ops->get_state(backend, &asked->found, &asked->bytes, &asked->state_token, error);
    case MU_KV_WRITE:
        return backend->ops->set_state(backend, asked->value,
                                       asked->has_token ? asked->token : (struct muster_slice){ NULL, 0 },
                                       &asked->found, &asked->bytes, &asked->state_token, &asked->written, error);
    case MU_KV_PARK:
        return backend->ops->watch(backend, asked->token, timeout_ms, error);
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

static void run(struct mu_file_job *job)
{
    struct work *work = work_of(job);
    int64_t begun_ms = mu_clock_ms();

    work->skipped = atomic_load(&work->unwanted);
    if (work->skipped)
        return;
    work->asked.error = (struct muster_error){ 0 };
    work->asked.rc = mu_settle("the call", call(work), &work->asked.error);
    work->has_waited = mu_clock_ms() - begun_ms >= work->slice_ms;
}

static void drop(struct mu_file_job *job)
{
    struct work *work = work_of(job);

    muster_bytes_done(&work->asked.bytes);
    muster_bytes_done(&work->asked.state_token);
    free(work->slices);
    free(work);
}

/* ---- On the loop ---- */

static void forget(struct work *work)
{
    mu_list_remove(&work->link);
    work->lane->count--;
}

static int64_t left_ms(const struct work *work)
{
    int64_t now_ms = mu_clock_ms();

    return work->until_ms > now_ms ? work->until_ms - now_ms : 0;
}

/* What it waits for has not come, and it has time left. */
static bool waits_on(const struct work *work)
{
    bool in_vain = work->asked.kind == MU_KV_GET    ? work->asked.rc == MUSTER_ETIMEOUT
                   : work->asked.kind == MU_KV_PARK ? work->asked.rc == 0 && work->has_waited
                                                    : false;

    return in_vain && !atomic_load(&work->unwanted) && left_ms(work) > 0;
}

static void hand_over(struct work *work)
{
    int64_t most_ms = work->asked.kind == MU_KV_PARK  ? WATCH_SLICE_MS
                      : work->asked.kind != MU_KV_GET ? INT64_MAX
                      : work->lane->count > 1         ? GET_SLICE_SHORT_MS
                                                      : GET_SLICE_MS;
    int64_t slice_ms = left_ms(work);

    work->slice_ms = slice_ms == 0 ? 1 : slice_ms < most_ms ? slice_ms : most_ms;
    mu_filethread_submit(work->lane->thread, &work->job);
}

static void give_answer(struct mu_kv_request *request, struct mu_kv_request *asked)
{
    if (asked->rc < 0) {
        mu_kv_fail(request, asked->rc, &asked->error);
        return;
    }
    request->found = asked->found;
    request->written = asked->written;
    if (asked->kind == MU_KV_ADD)
        request->number = asked->number;
    request->bytes = asked->bytes;
    request->state_token = asked->state_token;
    asked->bytes = asked->state_token = (struct muster_bytes){ 0 };
}

static void on_run(struct mu_file_job *job)
{
    struct work *work = work_of(job);
    struct mu_kv_request *request = work->request;
    struct mu_kv_lane *lane = work->lane;

    if (!work->skipped && waits_on(work)) {
        hand_over(work); /* behind what came meanwhile */
        return;
    }
    if (work->skipped)
        work->asked.rc = mu_fail(&work->asked.error, MUSTER_ECANCELED, "the back end was closed");
    if (request != NULL)
        give_answer(request, &work->asked);
    forget(work);
    drop(job);
    if (request != NULL && lane->tell != NULL)
        lane->tell(lane, request);
    else if (request != NULL)
        request->done(request);
}

void mu_kv_lane_init(struct mu_kv_lane *lane, struct mu_filethread *thread, struct mu_later *later)
{
    *lane = (struct mu_kv_lane){ .thread = thread, .later = later };
    mu_list_init(&lane->works);
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

static struct work *new_work(const struct mu_kv_request *asked)
{
    struct work *work = calloc(1, sizeof *work);
    char *at;

    if (work == NULL)
        return NULL;
    at = work->slices = malloc(asked->key.len + asked->value.len + asked->token.len + 1);
    if (at == NULL) {
        free(work);
        return NULL;
    }
    work->job = (struct mu_file_job){ .run = run, .done = on_run, .drop = drop };
    work->asked = *asked;
    copy_slice(&at, &work->asked.key);
    copy_slice(&at, &work->asked.value);
    copy_slice(&at, &work->asked.token);
    return work;
}

int mu_kv_lane_submit(struct mu_kv_lane *lane, struct mu_kv_request *request, const struct mu_kv_request *asked,
                      struct muster_error *reterr)
{
    struct work *work;

    assert(!lane->stopped);
    if (!mu_filethread_start(lane->thread)) /* without one, the call would block the loop */
        return mu_fail(reterr, MUSTER_ESYSTEM, "cannot start a thread");
    work = new_work(asked);
    if (work == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a request");
    work->lane = lane;
    work->request = request;
    work->store = lane->store;
    work->backend = lane->backend;
    work->until_ms = mu_clock_in_ms(request->timeout_ms > INT64_MAX ? INT64_MAX : (int64_t)request->timeout_ms);
    mu_list_push(&lane->works, &work->link);
    lane->count++;
    hand_over(work);
    return 0;
}

/* ---- The end of requests ---- */

static void fail_later(struct mu_kv_lane *lane, struct mu_kv_request *request, const char *why)
{
    struct muster_error error;

    (void)mu_fail(&error, MUSTER_ECANCELED, "%s", why);
    mu_later_fail(lane->later, request, &error);
}

bool mu_kv_lane_replace(struct mu_kv_lane *lane, struct mu_kv_request *request, struct muster_slice token)
{
    MU_LIST_EACH (struct work, work, &lane->works, link) {
        struct muster_slice old = work->asked.token;
        bool same = mu_slice_equal(mu_slice(old.data, old.len), mu_slice(token.data, token.len));

        if (work->request == NULL)
            continue;
        fail_later(lane, work->request, "another one took its place");
        work->request = same ? request : NULL;
        atomic_store(&work->unwanted, !same);
        return same;
    }
    return false;
}

void mu_kv_lane_stop(struct mu_kv_lane *lane)
{
    lane->stopped = true;
    MU_LIST_EACH (struct work, work, &lane->works, link)
        atomic_store(&work->unwanted, true);
}

void mu_kv_lane_cancel(struct mu_kv_lane *lane, bool waiting_only, const char *why)
{
    MU_LIST_EACH_LEAVING (struct work, work, &lane->works, link) {
        if (waiting_only && work->asked.kind != MU_KV_GET)
            continue;
        if (work->request != NULL)
            fail_later(lane, work->request, why);
        forget(work);
        mu_filethread_cancel(&work->job);
    }
}
