/* See engine_etcd3_uv.h. What requests are in etcd's words, and what answers mean, is in engine_etcd3.c.
 *
 * A LOAD is a call, whose answer says from which revision on its scope is watched. The lease is one of etcd3_uv.h,
 * which keeps itself alive. All other requests are one call each. Without memory for a call, the request is answered as
 * failed in the next turn of the loop. */
#include "kv/engine_etcd3_uv.h"

#include "kv/engine_etcd3.h"
#include "kv/later_uv.h"
#include "kv/patience.h"

#include <assert.h>
#include <stdlib.h>

struct engine {
    struct mu_engine_client client;
    uv_loop_t *loop;
    struct mu_etcd3 *etcd;
    struct mu_engine_etcd3_names names;
    struct mu_patience patience;
    int64_t lease_s, job_lease_s;
    uint64_t renew_ms;
    bool logs_in;
    struct mu_etcd3_watch *watches[2]; /* by scope */
    struct order *loads[2];            /* that are to become watches */
    struct mu_etcd3_lease *lease;
    uint64_t lease_take; /* whose it is; 0: there is none */
    size_t orders_count;
    struct mu_engine_etcd3_refused refused; /* to be answered by `later` */
    struct mu_later later;
    /* The end. */
    size_t parts; /* to be over before the client of etcd is closed: `later`, and leases that are being ended */
    bool closing;
    void (*closed)(void *ctx);
    void *closed_ctx;
};

/* A call to etcd, or the end of a lease; lives until it is answered, wanted or not. */
struct order {
    struct engine *engine;
    struct mu_etcd3_call call;
    struct mu_engine_etcd3_asked asked;
};

static void tell(struct engine *e, struct mu_fold_event event)
{
    if (!e->closing)
        e->client.heard(e->client.ctx, &event);
}

static struct order *order_new(struct engine *e, const struct mu_fold_effect *effect)
{
    struct order *order = calloc(1, sizeof *order);

    if (order == NULL)
        return NULL;
    order->engine = e;
    order->asked = mu_engine_etcd3_asked(effect);
    e->orders_count++;
    return order;
}

static void order_free(struct order *order)
{
    order->engine->orders_count--;
    free(order);
}

/* ---- Requests that are not sent ---- */

static void on_refused(void *ctx)
{
    struct engine *e = ctx;
    struct mu_fold_event event;

    for (size_t left = e->refused.count; left > 0 && mu_engine_etcd3_next_refused(&e->refused, &event); left--)
        tell(e, event); /* more may come meanwhile, for the next turn */
}

static void refuse(struct engine *e, const struct mu_fold_effect *effect)
{
    mu_engine_etcd3_refuse(&e->refused, effect);
    mu_later_turn(&e->later, on_refused, e);
}

/* ---- Watches ---- */

static enum mu_fold_scope scope_of(const struct engine *e, const struct mu_etcd3_watch *watch)
{
    return watch == e->watches[MU_FOLD_JOB] ? MU_FOLD_JOB : MU_FOLD_NODES;
}

static void on_events(struct mu_etcd3_watch *watch, const struct mu_etcd3_event *events, size_t count, int64_t revision,
                      void *ctx)
{
    struct engine *e = ctx;
    struct mu_fold_event event = mu_engine_etcd3_changes(&e->names, scope_of(e, watch), events, count);

    (void)revision;
    tell(e, event);
    mu_engine_etcd3_event_done(&event);
}

static void on_compacted(struct mu_etcd3_watch *watch, int64_t compact_revision, void *ctx)
{
    (void)compact_revision;
    tell(ctx, (struct mu_fold_event){ .type = MU_FOLD_ON_STALE, .scope = scope_of(ctx, watch) });
}

static void on_watch_trouble(struct mu_etcd3_watch *watch, const struct muster_error *error, void *ctx)
{
    (void)watch;
    tell(ctx, (struct mu_fold_event){ .type = MU_FOLD_ON_TROUBLE, .error = error });
}

static const struct mu_etcd3_watch_ops watch_ops = { on_events, on_compacted, on_watch_trouble };

/* If the event begins one. */
static int start_watch(struct engine *e, const struct mu_fold_event *event, struct muster_error *reterr)
{
    char key[MU_ENGINE_ETCD3_KEY_MAX];
    int64_t revision;

    if (!mu_engine_etcd3_watch(&e->names, event, key, &revision))
        return 0;
    assert(e->watches[event->scope] == NULL);
    return mu_etcd3_watch_start(e->etcd, mu_slice_str(key), true, revision, &watch_ops, e, &e->watches[event->scope],
                                reterr);
}

static void on_unwanted(struct mu_etcd3_call *call)
{
    mu_etcd3_answer_done(&call->answer);
    order_free(call->ctx);
}

/* Ends the watch, or the load that would start one. */
static void unwatch(struct engine *e, enum mu_fold_scope scope)
{
    struct order *load = e->loads[scope];

    if (e->watches[scope] != NULL)
        mu_etcd3_watch_close(e->watches[scope]);
    e->watches[scope] = NULL;
    mu_engine_etcd3_forget_load(&e->refused, scope);
    e->loads[scope] = NULL;
    if (load != NULL) {
        load->call.done = on_unwanted;
        mu_etcd3_cancel(&load->call);
    }
}

/* ---- Calls ---- */

static void on_done(struct mu_etcd3_call *call)
{
    struct order *order = call->ctx;
    struct engine *e = order->engine;
    const struct mu_engine_etcd3_asked *asked = &order->asked;
    struct mu_fold_event event;
    struct muster_error error;

    if (e->loads[asked->scope] == order)
        e->loads[asked->scope] = NULL;
    mu_patience_learn(&e->patience, call->rc);
    if (!e->closing &&
        mu_engine_etcd3_answer(&e->names, asked, call->rc, call->unsure, &call->answer, &call->error, &event)) {
        if (start_watch(e, &event, &error) < 0) {
            mu_engine_etcd3_event_done(&event);
            event = mu_engine_etcd3_failed(asked->id, error.code, 0, &error);
        }
        tell(e, event);
        mu_engine_etcd3_event_done(&event);
    }
    mu_etcd3_answer_done(&call->answer);
    order_free(order);
}

static void send_call(struct engine *e, const struct mu_fold_effect *effect, uint64_t until_ms)
{
    uint64_t ms = mu_patience_ms(&e->patience, until_ms, uv_now(e->loop));
    struct order *order = order_new(e, effect);
    struct mu_engine_etcd3_ask ask;

    if (order == NULL || mu_engine_etcd3_ask(&e->names, effect, e->job_lease_s, &ask) < 0) {
        if (order != NULL)
            order_free(order);
        refuse(e, effect);
        return;
    }
    if (effect->type == MU_FOLD_DO_LOAD)
        e->loads[effect->scope] = order;
    order->call = (struct mu_etcd3_call){
        .request = ask.request,
        .repeatable = ask.repeatable,
        .timeout_ms = ms,
        .attempt_ms = mu_patience_attempt_ms(ms, mu_http_endpoints_count(mu_etcd3_http(e->etcd))),
        .done = on_done,
        .ctx = order,
    };
    mu_etcd3_call(e->etcd, &order->call);
    mu_engine_etcd3_ask_done(&ask);
}

/* ---- Our lease ---- */

static void on_granted(struct mu_etcd3_lease *lease, int64_t id, void *ctx)
{
    struct engine *e = ctx;

    assert(lease == e->lease);
    tell(e, (struct mu_fold_event){ .type = MU_FOLD_ON_LEASED,
                                    .id = e->lease_take,
                                    .lease = id,
                                    .sent_ms = mu_etcd3_lease_renewed_ms(lease) });
}

static void on_renewed(struct mu_etcd3_lease *lease, void *ctx)
{
    struct engine *e = ctx;

    assert(lease == e->lease);
    tell(e, (struct mu_fold_event){
                .type = MU_FOLD_ON_RENEWED, .id = e->lease_take, .sent_ms = mu_etcd3_lease_renewed_ms(lease) });
}

static void on_lost(struct mu_etcd3_lease *lease, const struct muster_error *error, void *ctx)
{
    struct engine *e = ctx;
    struct mu_fold_event event = mu_engine_etcd3_lease_lost(e->lease_take, error);

    assert(lease == e->lease);
    mu_patience_learn_lease(&e->patience, mu_etcd3_lease_id(lease), error->code);
    mu_etcd3_lease_close(lease, false, 0, NULL, NULL);
    e->lease = NULL;
    e->lease_take = 0;
    tell(e, event);
}

static void on_lease_trouble(struct mu_etcd3_lease *lease, const struct muster_error *error, void *ctx)
{
    (void)lease;
    tell(ctx, (struct mu_fold_event){ .type = MU_FOLD_ON_TROUBLE, .error = error });
}

static const struct mu_etcd3_lease_ops lease_ops = { on_granted, on_lost, on_lease_trouble };

static void take_lease(struct engine *e, const struct mu_fold_effect *effect, uint64_t until_ms)
{
    uint64_t ms = mu_patience_ms(&e->patience, until_ms, uv_now(e->loop));

    assert(e->lease == NULL);
    if (mu_etcd3_lease_start(e->etcd, e->lease_s, ms, &lease_ops, e, &e->lease, NULL) < 0) {
        refuse(e, effect);
        return;
    }
    e->lease_take = effect->id;
    if (e->renew_ms > 0)
        mu_etcd3_lease_tell_renewed(e->lease, e->renew_ms, on_renewed);
}

static void on_etcd_closed(void *ctx)
{
    struct engine *e = ctx;
    void (*closed)(void *ctx) = e->closed;
    void *closed_ctx = e->closed_ctx;

    assert(e->orders_count == 0);
    free(e);
    closed(closed_ctx);
}

/* The client of etcd goes last: the ends of leases are its. */
static void part_over(void *ctx)
{
    struct engine *e = ctx;

    assert(e->parts > 0);
    if (--e->parts == 0)
        mu_etcd3_close(e->etcd, on_etcd_closed, e);
}

static void on_dropped(void *ctx)
{
    struct order *order = ctx;
    struct engine *e = order->engine;

    if (order->asked.id != 0)
        tell(e, (struct mu_fold_event){ .type = MU_FOLD_ON_DROPPED, .id = order->asked.id });
    order_free(order);
    part_over(e);
}

static void drop_lease(struct engine *e, const struct mu_fold_effect *effect)
{
    struct order *order = NULL;

    if (mu_engine_etcd3_drops(effect, e->lease_take)) {
        order = order_new(e, effect);
        mu_etcd3_lease_close(e->lease, true, MU_PATIENCE_REVOKE_MS, order != NULL ? on_dropped : NULL, order);
        e->lease = NULL;
        e->lease_take = 0;
    }
    if (order != NULL)
        e->parts++;
    else
        refuse(e, effect);
}

/* ---- The client ---- */

static void engine_request(struct mu_engine_client *client, const struct mu_fold_effect *effect, uint64_t until_ms)
{
    struct engine *e = (struct engine *)client;

    assert(!e->closing);
    switch (effect->type) {
    case MU_FOLD_DO_LOAD:
        unwatch(e, effect->scope);
        send_call(e, effect, until_ms);
        break;
    case MU_FOLD_DO_UNWATCH:
        unwatch(e, effect->scope);
        break;
    case MU_FOLD_DO_TAKE_LEASE:
        take_lease(e, effect, until_ms);
        break;
    case MU_FOLD_DO_DROP_LEASE:
        drop_lease(e, effect);
        break;
    case MU_FOLD_DO_RANGE:
    case MU_FOLD_DO_LOOK_AROUND:
    case MU_FOLD_DO_GRANT_JOB:
    case MU_FOLD_DO_KEEP_JOB:
    case MU_FOLD_DO_UNMARK:
    case MU_FOLD_DO_WRITE:
        send_call(e, effect, until_ms);
        break;
    case MU_FOLD_DO_TELL:
    case MU_FOLD_DO_COMPLETED:
    case MU_FOLD_DO_LEADER:
        assert(false); /* these are for the machine's owner */
    }
}

static bool engine_local_address(const struct mu_engine_client *client, char *ret_text, size_t room)
{
    return mu_http_local_address(mu_etcd3_http(((const struct engine *)client)->etcd), ret_text, room);
}

static bool engine_will(const struct mu_engine_client *client, const struct mu_fold_op *mark,
                        struct mu_kv_lone *ret_will)
{
    const struct engine *e = (const struct engine *)client;
    struct mu_http_server server;

    return e->lease != NULL && mu_http_server(mu_etcd3_http(e->etcd), &server) &&
           mu_engine_etcd3_will(&e->names, &server, e->logs_in, mark, mu_etcd3_lease_id(e->lease), ret_will);
}

static void engine_close(struct mu_engine_client *client, void (*closed)(void *ctx), void *ctx)
{
    struct engine *e = (struct engine *)client;

    assert(!e->closing && closed != NULL);
    e->closing = true;
    e->closed = closed;
    e->closed_ctx = ctx;
    unwatch(e, MU_FOLD_JOB);
    unwatch(e, MU_FOLD_NODES);
    if (e->lease != NULL) {
        e->parts++;
        mu_etcd3_lease_close(e->lease, true, MU_PATIENCE_REVOKE_MS, part_over, e);
    }
    mu_later_close(&e->later, part_over, e);
}

static const struct mu_engine_client_ops engine_ops = { MU_ENGINE_ETCD3_OPS_MAX, engine_request, engine_local_address,
                                                        engine_will, engine_close };

int mu_engine_etcd3_start(uv_loop_t *loop, const struct mu_engine_etcd3_config *config, mu_engine_client_heard *heard,
                          void *ctx, struct mu_engine_client **ret_client, struct muster_error *reterr)
{
    struct engine *e = calloc(1, sizeof *e);
    int rc;

    if (e == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "etcd: no memory for a client");
    rc = mu_etcd3_start(loop, &config->etcd, &e->etcd, reterr);
    if (rc < 0) {
        free(e);
        return rc;
    }
    e->client = (struct mu_engine_client){ &engine_ops, heard, ctx };
    e->loop = loop;
    e->lease_s = (int64_t)config->lease_s;
    e->job_lease_s = (int64_t)config->job_lease_s;
    e->renew_ms = config->renew_ms;
    e->logs_in = config->etcd.user != NULL || config->etcd.token != NULL;
    mu_engine_etcd3_names_init(&e->names, config->run_id);
    mu_patience_init(&e->patience, config->lease_s * 1000);
    mu_later_open(&e->later, loop, NULL);
    e->parts = 1;
    *ret_client = &e->client;
    return 0;
}
