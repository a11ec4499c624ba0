/* An agent's requests to the group's store, and the last will that its keeper writes there. See agent_parts_uv.h. */
#include "agent/agent_parts_uv.h"
#include "base/random.h"
#include "kv/kv_c10d_uv.h"

#include <stdlib.h>
#include <unistd.h>

#define KV_TIMEOUT_MS 60000

/* A request of a machine to the store. */
struct order {
    struct mu_kv_request request;
    struct mu_agent *agent;
    enum mu_job_who who;
    uint64_t id;
    bool waits;
    struct mu_buf key, value, expected;
};

static struct mu_slice slice_of(const struct muster_bytes *bytes)
{
    return mu_slice(bytes->data, bytes->len);
}

static void free_order(struct order *order)
{
    muster_bytes_done(&order->request.bytes);
    muster_bytes_done(&order->request.state_token);
    mu_buf_done(&order->key);
    mu_buf_done(&order->value);
    mu_buf_done(&order->expected);
    free(order);
}

static void on_answered(struct mu_kv_request *request)
{
    struct order *order = request->ctx;

    order->agent->waits -= order->waits;
    if (!order->agent->freeing && !order->agent->ended)
        mu_agent_feed(order->agent,
                      (struct mu_job_event){ .type = MU_JOB_ON_ANSWER,
                                             .who = order->who,
                                             .answer = { .id = order->id,
                                                         .value = slice_of(&request->bytes),
                                                         .number = request->number,
                                                         .found = request->found,
                                                         .error = request->rc < 0 ? &request->error : NULL,
                                                         .gone = request->gone } });
    free_order(order);
}

/* The handler has a way of its own to the group's store, in this round. */
static bool handler_has_kv(const struct mu_agent *a)
{
    const struct mu_handler_ops *ops = mu_handler_ops(a->handler);

    return ops->open_kv != NULL && (ops->has_kv == NULL || ops->has_kv(a->handler));
}

/* The connection that the handler shares with us; NULL: we need our own. */
static struct mu_kv *shared_kv(const struct mu_agent *a)
{
    const struct mu_handler_ops *ops = mu_handler_ops(a->handler);

    return ops->shared_kv != NULL ? ops->shared_kv(a->handler) : NULL;
}

/* The handler says where the group's store is once a round was joined; it does not move while we are connected. */
static int open_kv(struct mu_agent *a, struct mu_kv **kv, struct muster_error *reterr)
{
    struct mu_kv_c10d_config config = { .run_id = a->run_id, .read_timeout_ms = KV_TIMEOUT_MS };

    if (*kv == NULL)
        *kv = shared_kv(a);
    if (*kv != NULL)
        return 0;
    if (handler_has_kv(a))
        return mu_handler_ops(a->handler)->open_kv(a->handler, kv, reterr);
    if (a->handler->ops->endpoint == NULL ||
        !a->handler->ops->endpoint(a->handler, a->kv_host, sizeof a->kv_host, &a->kv_port))
        return mu_fail(reterr, MUSTER_ENOTSUP, "back end '%s' has no store for agents", a->backend);
    config.host = a->kv_host;
    config.port = a->kv_port;
    config.seed = mu_fresh_seed();
    return mu_kv_c10d_start(a->loop, &config, kv, reterr);
}

static int fill_order(struct mu_agent *a, struct order *order, const struct mu_ask *ask, struct muster_error *reterr)
{
    if (mu_buf_append(&order->key, ask->key.data, ask->key.len, SIZE_MAX) < 0 ||
        mu_buf_append(&order->value, ask->value.data, ask->value.len, SIZE_MAX) < 0 ||
        mu_buf_append(&order->expected, ask->expected.data, ask->expected.len, SIZE_MAX) < 0)
        return mu_fail(reterr, MUSTER_ENOMEM, "a request to the store");
    order->request.key = (struct muster_slice){ order->key.data, order->key.len };
    order->request.value = (struct muster_slice){ order->value.data, order->value.len };
    order->request.token = (struct muster_slice){ order->expected.data, order->expected.len };
    return open_kv(a, &a->kv, reterr);
}

/* An ask that cannot even be made is answered with the reason. */
void mu_agent_submit(struct mu_agent *a, enum mu_job_who who, const struct mu_ask *ask)
{
    static const enum mu_kv_kind kinds[] = {
        [MU_ASK_GET] = MU_KV_GET,     [MU_ASK_SET] = MU_KV_SET,
        [MU_ASK_ADD] = MU_KV_ADD,     [MU_ASK_COMPARE_SET] = MU_KV_COMPARE_SET,
        [MU_ASK_CHECK] = MU_KV_CHECK, [MU_ASK_DELETE] = MU_KV_DELETE,
    };
    struct order *order = calloc(1, sizeof *order);
    struct muster_error error = { 0 };
    int rc = MUSTER_ENOMEM;

    if (order == NULL)
        (void)mu_fail(&error, rc, "a request to the store");
    else
        rc = fill_order(a, order, ask, &error);
    if (rc < 0) {
        if (order != NULL)
            free_order(order);
        mu_job_refuse(a->job, who, ask->id, &error);
        return;
    }
    order->agent = a;
    order->who = who;
    order->id = ask->id;
    order->request.kind = kinds[ask->kind];
    order->request.owner = &a->kv;
    order->request.number = ask->number;
    order->request.timeout_ms = ask->timeout_ms;
    order->request.done = on_answered;
    order->request.ctx = order;
    order->waits = ask->kind == MU_ASK_GET;
    a->waits += order->waits;
    a->kv->ops->submit(a->kv, &order->request);
}

static void on_kv_closed(struct mu_kv *kv, void *ctx)
{
    (void)kv;
    mu_agent_handles_gone(ctx, 1);
}

static void close_kv(struct mu_agent *a, struct mu_kv **kv)
{
    if (*kv == NULL)
        return;
    if (*kv == shared_kv(a)) { /* the handler closes it */
        (*kv)->ops->end_waits(*kv, kv);
        return;
    }
    a->handles++;
    (*kv)->ops->close(*kv, on_kv_closed, a);
    *kv = NULL; /* opened again when it is needed */
}

/* What waits in a TCPStore has its connection to itself, and there are few connections: requests of the new round would
 * queue up behind it. */
void mu_agent_end_waits(struct mu_agent *a)
{
    close_kv(a, &a->users_kv);
    if (a->waits > 0 && !handler_has_kv(a))
        close_kv(a, &a->kv);
}

void mu_agent_close_stores(struct mu_agent *a)
{
    close_kv(a, &a->kv);
    close_kv(a, &a->users_kv);
}

void mu_agent_ask(struct mu_agent *a, struct mu_kv_request *request)
{
    request->rc = a->ended ? mu_fail(&request->error, MUSTER_ECANCELED, "the run is over")
                           : open_kv(a, &a->users_kv, &request->error);
    request->owner = &a->users_kv;
    if (request->rc == 0)
        a->users_kv->ops->submit(a->users_kv, request);
    else
        request->done(request);
}

bool mu_agent_has_store(const struct mu_agent *a)
{
    char host[MU_RDZV_HOST_MAX];
    uint16_t port = 0;

    return handler_has_kv(a) ||
           (a->handler->ops->endpoint != NULL && a->handler->ops->endpoint(a->handler, host, sizeof host, &port));
}

/* ---- The last will ---- */

/* A handler that ends the membership of a killed node keeps the will itself. Else it is a note in a TCPStore; where
 * there is none, the others learn of a killed node as of every lost one. */
void mu_agent_renew_will(struct mu_agent *a)
{
    char key[sizeof a->will_key], text[MU_VANISHED_NOTE_MAX];
    const struct mu_handler_ops *ops = mu_handler_ops(a->handler);
    struct mu_kv_lone lone;

    if (a->will == NULL)
        return;
    if (ops->will != NULL && ops->will(a->handler, a->ended ? NULL : a->will))
        return;
    if (a->ended || !mu_job_will(a->job, key, sizeof key, text)) {
        a->will_key[0] = '\0';
        mu_will_withdraw(a->will);
        return;
    }
    if (strcmp(key, a->will_key) == 0)
        return;
    if (a->kv == NULL || a->kv->ops->lone_set == NULL ||
        !a->kv->ops->lone_set(a->kv, mu_slice_str(key), mu_slice_str(text), &lone))
        return; /* not connected at the moment; what comes next brings us here again */
    mu_kv_leave(&lone, a->will);
    memcpy(a->will_key, key, strlen(key) + 1); /* also if it is too long: it stays so */
}
