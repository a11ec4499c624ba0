/* A user's own back end and store.
 *
 * Each kind of call has a lane (kv_lane_uv.h) with a thread of its own. The threads are ours and not libuv's: its pool
 * is small and shared by the whole process, and a few watches would fill it.
 *
 * On closing, calls that have not begun are not made, and one under way is waited for, up to a limit if there is one.
 * After that its thread is left behind with the memory it needs, and frees it if it ever comes back. */
#include "kv/kv_user_uv.h"

#include "base/log.h"
#include "base/text.h"
#include "kv/kv_lane_uv.h"
#include "store/store.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum lane_name { LANE_STATE, LANE_WATCH, LANE_STORE, LANES_COUNT };

struct driver {
    struct mu_kv kv;
    struct mu_kv_ops ops;
    uv_loop_t *loop;
    uv_async_t wake; /* by the threads */
    char *run_id;
    struct mu_kv_lane lanes[LANES_COUNT];
    struct mu_later later;
    struct muster_bytes token; /* of the last document that we have seen */
    uint64_t patience_ms;      /* for calls under way, when closing; 0: without a limit */
    uv_timer_t patience;
};

/* Is `member` there, in a table that may be shorter than ours? */
#define HAS(thing, type, member)                                                                                       \
    ((thing)->ops->size >= offsetof(struct type, member) + sizeof((thing)->ops->member) && (thing)->ops->member != NULL)

/* ---- The end ---- */

static void free_kv(struct mu_kv *kv)
{
    struct driver *driver = (struct driver *)kv;
    struct mu_filethread *threads[LANES_COUNT];

    for (unsigned i = 0; i < LANES_COUNT; i++)
        threads[i] = driver->lanes[i].thread;
    (void)mu_filethread_free_all(threads, LANES_COUNT); /* one that hangs is left behind, with its call */
    muster_bytes_done(&driver->token);
    free(driver->run_id);
    free(driver);
}

static void on_handle_closed(uv_handle_t *handle)
{
    mu_kv_part_closed(handle->data);
}

static void close_handles(struct driver *driver)
{
    uv_close((uv_handle_t *)&driver->wake, on_handle_closed);
    uv_close((uv_handle_t *)&driver->patience, on_handle_closed);
    mu_later_close(&driver->later, mu_kv_part_closed, driver);
}

static void on_patience(uv_timer_t *timer)
{
    struct driver *driver = timer->data;

    mu_log(MUSTER_LOG_WARNING,
           "rendezvous back end '%s': a call has not returned for %" PRIu64 ".%" PRIu64
           " s; going on without it. Its thread is left behind, and back end and store must not be freed",
           driver->ops.name, driver->patience_ms / 1000, driver->patience_ms % 1000 / 100);
    for (unsigned i = 0; i < LANES_COUNT; i++)
        mu_kv_lane_cancel(&driver->lanes[i], false, "the back end was closed");
    close_handles(driver);
}

static void on_wake(uv_async_t *async)
{
    struct driver *driver = async->data;
    size_t under_way = 0;

    for (unsigned i = 0; i < LANES_COUNT; i++) {
        mu_filethread_turn(driver->lanes[i].thread);
        under_way += driver->lanes[i].count;
    }
    if (driver->kv.closing && under_way == 0)
        close_handles(driver);
}

static void wake(void *ctx)
{
    (void)uv_async_send(&((struct driver *)ctx)->wake);
}

/* ---- Requests ---- */

/* The token for the next watch. Without memory for it there is none: the watch then returns at once or late, and reads
 * go on. */
static void tell_state(struct mu_kv_lane *lane, struct mu_kv_request *request)
{
    struct driver *driver = MU_LIST_ITEM(lane, struct driver, lanes[LANE_STATE]);
    struct muster_bytes *token = &request->state_token;

    if (request->rc == 0) {
        muster_bytes_done(&driver->token);
        if (request->found && token->data != NULL)
            driver->token.data = mu_slice_copy(mu_slice(token->data, token->len));
        driver->token.len = driver->token.data != NULL ? token->len : 0;
    }
    request->done(request);
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

/* Digests of rounds have keys of their own. */
static int settle(struct driver *driver, struct mu_kv_request *request, struct mu_kv_request *asked,
                  struct muster_error *reterr)
{
    char *key = mu_text_format("muster.%s/world/%" PRId64, driver->run_id, request->number);
    int rc;

    if (key == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a key");
    asked->key = muster_str(key);
    asked->token = muster_str("");
    rc = mu_kv_lane_submit(&driver->lanes[LANE_STORE], request, asked, reterr);
    free(key);
    return rc;
}

static int begin(struct driver *driver, struct mu_kv_request *request, struct muster_error *reterr)
{
    struct mu_kv_lane *lane = &driver->lanes[lane_for(request->kind)];
    struct mu_kv_request asked = *request;

    switch (request->kind) {
    case MU_KV_RING: /* watchers see the new token */
    case MU_KV_HOST: /* not known */
        mu_later_push(&driver->later, &request->link);
        return 0;
    case MU_KV_PROBE:
        return mu_fail(reterr, MUSTER_ENOTSUP, "the back end has no engine");
    case MU_KV_TURN_TAKE:
    case MU_KV_TURN_WAIT:
    case MU_KV_TURN_GIVE:
        return mu_fail(reterr, MUSTER_ENOTSUP, "the back end has no turns");
    case MU_KV_PARK:
        asked.token = (struct muster_slice){ driver->token.data, driver->token.len };
        if (!driver->ops.has_bell)
            return mu_fail(reterr, MUSTER_ENOTSUP, "the back end cannot watch");
        if (mu_kv_lane_replace(lane, request, asked.token))
            return 0;
        break;
    case MU_KV_READ:
        request->number = 0; /* there is no counter, and none is needed: a watch is for a token */
        break;
    case MU_KV_SETTLE:
        return settle(driver, request, &asked, reterr);
    default:
        break;
    }
    return mu_kv_lane_submit(lane, request, &asked, reterr);
}

static void submit(struct mu_kv *kv, struct mu_kv_request *request)
{
    struct driver *driver = (struct driver *)kv;
    struct muster_error error;

    assert(!kv->closing);
    mu_kv_begin(request, uv_now(driver->loop));
    if (begin(driver, request, &error) < 0)
        mu_later_fail(&driver->later, request, &error);
}

static void close_kv(struct mu_kv *kv, mu_kv_closed *closed, void *ctx)
{
    struct driver *driver = (struct driver *)kv;

    mu_kv_begin_close(kv, closed, ctx);
    for (unsigned i = 0; i < LANES_COUNT; i++)
        mu_kv_lane_stop(&driver->lanes[i]);
    wake(driver);
    if (driver->patience_ms > 0)
        (void)uv_timer_start(&driver->patience, on_patience, driver->patience_ms, 0);
}

/* ---- Start ---- */

static int init_lanes(struct driver *driver, struct muster_rdzv_backend *backend, struct muster_store *store)
{
    const struct mu_filethread_config config = { .wake = wake, .ctx = driver };

    for (unsigned i = 0; i < LANES_COUNT; i++) {
        struct mu_kv_lane *lane = &driver->lanes[i];

        mu_kv_lane_init(lane, mu_filethread_new(&config), &driver->later);
        lane->backend = backend;
        lane->store = store;
        if (lane->thread == NULL)
            return MUSTER_ENOMEM;
    }
    driver->lanes[LANE_STATE].tell = tell_state;
    return 0;
}

int mu_kv_user_start(uv_loop_t *loop, struct muster_rdzv_backend *backend, struct muster_store *store,
                     const char *run_id, uint64_t patience_ms, struct mu_kv **ret_kv, struct muster_error *reterr)
{
    struct driver *driver = calloc(1, sizeof *driver);
    int rc;

    if (driver == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a rendezvous back end");
    driver->run_id = strdup(run_id);
    if (driver->run_id == NULL || init_lanes(driver, backend, store) < 0) {
        free_kv(&driver->kv);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a rendezvous back end");
    }
    rc = uv_async_init(loop, &driver->wake, on_wake);
    if (rc < 0) {
        free_kv(&driver->kv);
        return mu_fail_errno(reterr, -rc, "start a rendezvous back end");
    }
    driver->loop = loop;
    driver->patience_ms = patience_ms;
    driver->ops = (struct mu_kv_ops){
        .name = backend->ops->name,
        .has_bell = HAS(backend, muster_rdzv_backend_ops, watch),
        .has_settle = mu_store_can_compare_set(store),
        .submit = submit,
        .close = close_kv,
        .free = free_kv,
    };
    driver->kv.ops = &driver->ops;
    driver->kv.parts = 3;
    driver->wake.data = driver->patience.data = driver;
    (void)uv_timer_init(loop, &driver->patience); /* only fills in memory, and so does this: */
    mu_later_open(&driver->later, loop, mu_kv_tell);
    *ret_kv = &driver->kv;
    return 0;
}
