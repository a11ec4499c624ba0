/* The group's store as a library user sees it.
 *
 * Happy path: a call puts itself into `asked`, wakes the loop and sleeps; the loop puts the round's prefix before its
 * key and hands it to the agent's way to the store; the answer wakes the caller. Failures: without a loop or a round a
 * call is canceled at once; the agent cancels those under way when the next round is joined and when it ends. The
 * store's driver answers every request in time. */
#include "agent/group_store_uv.h"

#include "handler/handler.h"
#include "kv/kv.h"
#include "rdzv/round_keys.h"
#include "store/store.h"

#include <stdlib.h>

struct call {                      /* on the caller's stack */
    struct mu_kv_request *request; /* the loop puts the prefix before its key */
    struct mu_list link;
    struct mu_group_store *store;
    struct mu_buf key;
    bool is_done; /* under lock */
};

/* ---- On the loop ---- */

static void finish(struct call *call)
{
    struct mu_group_store *store = call->store;

    (void)pthread_mutex_lock(&store->lock);
    call->is_done = true;
    (void)pthread_cond_broadcast(&store->changed);
    (void)pthread_mutex_unlock(&store->lock); /* from here on the call is its caller's again */
}

static void on_done(struct mu_kv_request *request)
{
    finish(request->ctx);
}

static int add_prefix(struct call *call, const struct mu_agent *agent, struct muster_error *reterr)
{
    char *prefix = malloc(MU_RDZV_RUN_ID_MAX + MU_ROUND_PREFIX_EXTRA);
    struct muster_slice key = call->request->key;
    int rc = 0;

    if (prefix == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a key");
    if (!mu_agent_round_prefix(agent, prefix, MU_RDZV_RUN_ID_MAX + MU_ROUND_PREFIX_EXTRA))
        rc = mu_fail(reterr, MUSTER_ECANCELED, "there is no round");
    else if (mu_buf_append(&call->key, prefix, strlen(prefix), SIZE_MAX) < 0 ||
             mu_buf_append(&call->key, key.data, key.len, SIZE_MAX) < 0)
        rc = mu_fail(reterr, MUSTER_ENOMEM, "no memory for a key");
    free(prefix);
    call->request->key = (struct muster_slice){ call->key.data, call->key.len };
    return rc;
}

static struct call *next_call(struct mu_group_store *store)
{
    struct mu_list *link;

    (void)pthread_mutex_lock(&store->lock);
    link = mu_list_pop(&store->asked);
    (void)pthread_mutex_unlock(&store->lock);
    return link == NULL ? NULL : MU_LIST_ITEM(link, struct call, link);
}

void mu_group_store_turn(struct mu_group_store *store, struct mu_agent *agent)
{
    struct call *call;

    while ((call = next_call(store)) != NULL) {
        struct mu_kv_request *request = call->request;

        request->rc = agent == NULL ? mu_fail(&request->error, MUSTER_ECANCELED, "the run is over")
                                    : add_prefix(call, agent, &request->error);
        if (request->rc == 0)
            mu_agent_ask(agent, request);
        else
            finish(call);
    }
}

void mu_group_store_open(struct mu_group_store *store, uv_async_t *wake)
{
    (void)pthread_mutex_lock(&store->lock);
    store->wake = wake;
    store->thread = pthread_self();
    (void)pthread_mutex_unlock(&store->lock);
}

void mu_group_store_close(struct mu_group_store *store)
{
    (void)pthread_mutex_lock(&store->lock);
    store->wake = NULL;
    (void)pthread_mutex_unlock(&store->lock);
    mu_group_store_turn(store, NULL);
}

/* ---- Calls ---- */

/* With the lock. */
static int check_open(const struct mu_group_store *store, struct muster_error *reterr)
{
    if (store->wake == NULL)
        return mu_fail(reterr, MUSTER_ECANCELED, "the agent does not run");
    if (pthread_equal(store->thread, pthread_self()))
        return mu_fail(reterr, MUSTER_EINVAL, "a driver's call would wait for itself; use another thread");
    return 0;
}

static int ask(struct muster_store *base, struct mu_kv_request *request, int64_t timeout_ms,
               struct muster_error *reterr)
{
    struct mu_group_store *store = (struct mu_group_store *)base;
    struct call call = { .request = request, .store = store };
    int rc;

    request->timeout_ms = timeout_ms > 0 ? (uint64_t)timeout_ms : 1;
    request->done = on_done;
    /* cppcheck-suppress autoVariables ; it is answered before we return */
    request->ctx = &call;
    (void)pthread_mutex_lock(&store->lock);
    rc = check_open(store, reterr);
    if (rc == 0) {
        mu_list_push(&store->asked, &call.link);
        (void)uv_async_send(store->wake);
    }
    while (rc == 0 && !call.is_done)
        (void)pthread_cond_wait(&store->changed, &store->lock);
    (void)pthread_mutex_unlock(&store->lock);
    mu_buf_done(&call.key);
    muster_bytes_done(&request->state_token);
    if (rc == 0 && request->rc < 0) {
        rc = request->rc;
        if (reterr != NULL)
            *reterr = request->error;
    }
    if (rc < 0)
        muster_bytes_done(&request->bytes);
    return rc < 0 ? mu_wrap(reterr, rc, "the group's store") : 0;
}

static int store_run(struct muster_store *store, struct mu_call *call, int64_t timeout_ms, struct muster_error *reterr)
{
    return mu_kv_run(store, ask, call, timeout_ms, reterr);
}

static const struct muster_store_ops store_ops = {
    .size = sizeof store_ops,
    .name = "group",
    MU_STORE_CALLS_BY_RUN,
    .compare_set = muster_store_compare_set,
    .run = store_run,
};

void mu_group_store_init(struct mu_group_store *store)
{
    store->base = (struct muster_store){ .ops = &store_ops, .timeout_ms = MUSTER_STORE_TIMEOUT_MS };
    (void)pthread_mutex_init(&store->lock, NULL);
    (void)pthread_cond_init(&store->changed, NULL);
    mu_list_init(&store->asked);
    store->wake = NULL;
}

void mu_group_store_done(struct mu_group_store *store)
{
    (void)pthread_mutex_destroy(&store->lock);
    (void)pthread_cond_destroy(&store->changed);
}
