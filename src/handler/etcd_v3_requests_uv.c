/* The etcd-v3 handler: sends what its machine (rdzv/fold.h) wants to etcd, by calls, watches and leases, and lets the
 * machine hear the answers. What they are in etcd's words, and what answers mean, is in kv/engine_etcd3.c. */
#include "handler/etcd_v3_parts_uv.h"

#include <assert.h>

/* A call to etcd, or the end of a lease; lives until it is answered, wanted or not. */
struct order {
    struct mu_order base;
    struct mu_etcd3_call call;
    struct mu_engine_etcd3_asked asked;
};

static uint64_t patience_ms(const struct mu_v3 *v)
{
    uint64_t now_ms = uv_now(v->shell.loop);

    return mu_patience_ms(&v->patience, mu_fold_request_until_ms(v->fold, now_ms), now_ms);
}

static void feed(struct mu_v3 *v, struct mu_fold_event event)
{
    mu_shell_feed(&v->shell, &event);
}

/* ---- Answers that are there at once ---- */

void mu_v3_answer_late(struct mu_shell *shell, uint64_t id, unsigned type)
{
    static const struct muster_error no_memory = { .code = MUSTER_ENOMEM, .text = "no memory for a request to etcd" };

    feed(mu_v3_of(shell), (struct mu_fold_event){ .type = (enum mu_fold_event_type)type,
                                                  .id = id,
                                                  .error = type != MU_FOLD_ON_DROPPED ? &no_memory : NULL });
}

/* ---- Watching ---- */

static void tell_kvs(struct mu_v3 *v, const struct mu_slice *changed)
{
    for (size_t i = 0; i < 2; i++)
        if (v->kvs[i] != NULL)
            mu_kv_job_changed(v->kvs[i], changed);
}

/* The machine's event, and what of it is not the machine's: where the round meets, and the agents' keys. */
static void take(struct mu_v3 *v, struct mu_fold_event event)
{
    struct mu_slice key;

    mu_meeting_see(&v->meeting, &event);
    if (event.type == MU_FOLD_ON_LOADED && event.scope == MU_FOLD_JOB)
        tell_kvs(v, NULL);
    for (size_t i = 0; i < event.count; i++)
        if (mu_engine_etcd3_agents_key(event.kvs[i].key, &key))
            tell_kvs(v, &key);
    feed(v, event);
    if (!v->shell.freeing)
        mu_v3_answer_get(v);
    mu_engine_etcd3_event_done(&event);
}

static enum mu_fold_scope scope_of(const struct mu_v3 *v, const struct mu_etcd3_watch *watch)
{
    return watch == v->watches[MU_FOLD_JOB] ? MU_FOLD_JOB : MU_FOLD_NODES;
}

static void on_events(struct mu_etcd3_watch *watch, const struct mu_etcd3_event *events, size_t count, int64_t revision,
                      void *ctx)
{
    struct mu_v3 *v = ctx;

    (void)revision;
    take(v, mu_engine_etcd3_changes(&v->names, scope_of(v, watch), events, count));
}

static void on_compacted(struct mu_etcd3_watch *watch, int64_t compact_revision, void *ctx)
{
    (void)compact_revision;
    feed(ctx, (struct mu_fold_event){ .type = MU_FOLD_ON_STALE, .scope = scope_of(ctx, watch) });
}

static void on_watch_trouble(struct mu_etcd3_watch *watch, const struct muster_error *error, void *ctx)
{
    (void)watch;
    feed(ctx, (struct mu_fold_event){ .type = MU_FOLD_ON_TROUBLE, .error = error });
}

static const struct mu_etcd3_watch_ops watch_ops = { on_events, on_compacted, on_watch_trouble };

static void close_watch(struct mu_v3 *v, enum mu_fold_scope scope)
{
    if (v->watches[scope] == NULL)
        return;
    mu_etcd3_watch_close(v->watches[scope]);
    v->watches[scope] = NULL;
}

/* ---- Calls ---- */

static void on_unwanted(struct mu_etcd3_call *call)
{
    struct order *order = call->ctx;

    mu_etcd3_answer_done(&call->answer);
    mu_order_free(&order->base);
}

/* Ends the watch, or the load that would start one. */
static void unwatch(struct mu_v3 *v, enum mu_fold_scope scope)
{
    struct order *load = (struct order *)mu_order_find(&v->shell, v->loads[scope]);

    close_watch(v, scope);
    v->loads[scope] = 0;
    if (load == NULL)
        return;
    load->base.id = 0;
    load->call.done = on_unwanted;
    mu_etcd3_cancel(&load->call);
}

static int start_watch(struct mu_v3 *v, enum mu_fold_scope scope, int64_t revision, struct muster_error *reterr)
{
    char key[MU_ENGINE_ETCD3_KEY_MAX];

    assert(v->watches[scope] == NULL);
    return mu_etcd3_watch_start(v->etcd, mu_engine_etcd3_scope_key(&v->names, scope, key), true, revision, &watch_ops,
                                v, &v->watches[scope], reterr);
}

static void on_done(struct mu_etcd3_call *call)
{
    struct order *order = call->ctx;
    struct mu_v3 *v = mu_v3_of(order->base.shell);
    const struct mu_engine_etcd3_asked *asked = &order->asked;
    struct mu_fold_event event;
    struct muster_error error;

    order->base.id = 0; /* it is answered */
    mu_patience_learn(&v->patience, call->rc);
    if (!v->shell.freeing && mu_engine_etcd3_answer(&v->names, asked, call->rc, &call->answer, &call->error, &event)) {
        if (event.type == MU_FOLD_ON_LOADED && start_watch(v, asked->scope, call->answer.revision + 1, &error) < 0) {
            mu_engine_etcd3_event_done(&event);
            event = mu_engine_etcd3_failed(asked->id, error.code, 0, &error);
        }
        take(v, event);
    }
    mu_etcd3_answer_done(&call->answer);
    mu_order_free(&order->base);
}

static void send_order(struct mu_v3 *v, struct order *order, const struct mu_engine_etcd3_ask *ask, mu_etcd3_done *done)
{
    uint64_t ms = patience_ms(v);

    order->call = (struct mu_etcd3_call){
        .request = ask->request,
        .repeatable = ask->repeatable,
        .timeout_ms = ms,
        .attempt_ms = mu_patience_attempt_ms(ms, mu_http_endpoints_count(mu_etcd3_http(v->etcd))),
        .done = done,
        .ctx = order,
    };
    mu_etcd3_call(v->etcd, &order->call);
}

static void perform_call(struct mu_v3 *v, const struct mu_fold_effect *effect)
{
    struct order *order = mu_order_new(&v->shell, sizeof *order, effect->id);
    struct mu_engine_etcd3_ask ask;

    if (order == NULL) {
        mu_shell_answer_late(&v->shell, effect->id,
                             effect->type == MU_FOLD_DO_LOOK_AROUND ? MU_FOLD_ON_CROWD : MU_FOLD_ON_REQUEST_FAILED);
        return;
    }
    order->asked = mu_engine_etcd3_asked(effect);
    mu_engine_etcd3_ask(&v->names, effect, (int64_t)v->place.job_lease_s, &ask);
    send_order(v, order, &ask, on_done);
}

/* ---- job/master, for the boot ---- */

static void on_published(struct mu_etcd3_call *call)
{
    struct order *order = call->ctx;
    struct mu_v3 *v = mu_v3_of(order->base.shell);

    mu_patience_learn(&v->patience, call->rc);
    if (!v->shell.freeing)
        mu_boot_uv_answer(&v->shell.boot,
                          mu_meeting_published(order->asked.id, call->rc, call->answer.succeeded, &call->error));
    mu_etcd3_answer_done(&call->answer);
    mu_order_free(&order->base);
}

int mu_v3_publish(struct mu_v3 *v, uint64_t id, const struct mu_fold_master *master)
{
    struct order *order = mu_order_new(&v->shell, sizeof *order, 0);
    struct mu_buf value = { 0 };
    struct mu_engine_etcd3_ask ask;
    int rc = order == NULL ? MUSTER_ENOMEM : mu_fold_master_write(master, &value);

    if (rc < 0) {
        if (order != NULL)
            mu_order_free(&order->base);
        return rc;
    }
    order->asked.id = id;
    mu_engine_etcd3_ask_publish(&v->names, mu_fold_doc_mod(v->fold), mu_buf_slice(&value), mu_fold_lease(v->fold),
                                &ask);
    send_order(v, order, &ask, on_published);
    mu_buf_done(&value);
    return 0;
}

/* ---- Our lease ---- */

static void on_granted(struct mu_etcd3_lease *lease, int64_t id, void *ctx)
{
    struct mu_v3 *v = ctx;

    if (lease == v->lease)
        feed(v, (struct mu_fold_event){ .type = MU_FOLD_ON_LEASED, .id = v->lease_take, .lease = id });
}

static void on_lost(struct mu_etcd3_lease *lease, const struct muster_error *error, void *ctx)
{
    struct mu_v3 *v = ctx;
    uint64_t take = v->lease_take;

    if (lease != v->lease)
        return;
    if (mu_etcd3_lease_id(lease) == 0) /* the request for it has failed */
        mu_patience_learn(&v->patience, error->code);
    mu_etcd3_lease_close(lease, false, 0, NULL, NULL);
    v->lease = NULL;
    v->lease_take = 0;
    feed(v, mu_engine_etcd3_lease_lost(take, error));
}

static void on_lease_trouble(struct mu_etcd3_lease *lease, const struct muster_error *error, void *ctx)
{
    (void)lease;
    feed(ctx, (struct mu_fold_event){ .type = MU_FOLD_ON_TROUBLE, .error = error });
}

static const struct mu_etcd3_lease_ops lease_ops = { on_granted, on_lost, on_lease_trouble };

static void perform_take(struct mu_v3 *v, const struct mu_fold_effect *effect)
{
    uint64_t ms = patience_ms(v);
    struct muster_error error;

    assert(v->lease == NULL);
    if (mu_etcd3_lease_start(v->etcd, (int64_t)v->place.lease_s, ms, &lease_ops, v, &v->lease, &error) < 0) {
        mu_shell_answer_late(&v->shell, effect->id, MU_FOLD_ON_LEASE_LOST);
        return;
    }
    v->lease_take = effect->id;
}

static void on_dropped(void *ctx)
{
    struct order *order = ctx;
    struct mu_v3 *v = mu_v3_of(order->base.shell);

    feed(v, (struct mu_fold_event){ .type = MU_FOLD_ON_DROPPED, .id = order->base.id });
    mu_order_free(&order->base);
    mu_shell_drop(v);
}

static void perform_drop(struct mu_v3 *v, const struct mu_fold_effect *effect)
{
    struct mu_etcd3_lease *lease = effect->lease_take == v->lease_take ? v->lease : NULL;
    struct order *order = NULL;

    if (lease != NULL) {
        v->lease = NULL;
        v->lease_take = 0;
        order = mu_order_new(&v->shell, sizeof *order, effect->id);
    }
    if (order == NULL) {
        if (lease != NULL)
            mu_etcd3_lease_close(lease, true, MU_V3_REVOKE_MS, NULL, NULL);
        mu_shell_answer_late(&v->shell, effect->id, MU_FOLD_ON_DROPPED);
        return;
    }
    mu_shell_hold(&v->shell);
    mu_etcd3_lease_close(lease, true, MU_V3_REVOKE_MS, on_dropped, order);
}

void mu_v3_close_watches(struct mu_v3 *v)
{
    close_watch(v, MU_FOLD_JOB);
    close_watch(v, MU_FOLD_NODES);
}

/* ---- All of it ---- */

void mu_v3_request(struct mu_shell *shell, const void *wanted)
{
    struct mu_v3 *v = mu_v3_of(shell);
    const struct mu_fold_effect *effect = wanted;

    switch (effect->type) {
    case MU_FOLD_DO_LOAD:
        unwatch(v, effect->scope);
        v->loads[effect->scope] = effect->id;
        perform_call(v, effect);
        break;
    case MU_FOLD_DO_UNWATCH:
        unwatch(v, effect->scope);
        break;
    case MU_FOLD_DO_TAKE_LEASE:
        perform_take(v, effect);
        break;
    case MU_FOLD_DO_DROP_LEASE:
        perform_drop(v, effect);
        break;
    case MU_FOLD_DO_LOOK_AROUND:
    case MU_FOLD_DO_GRANT_JOB:
    case MU_FOLD_DO_KEEP_JOB:
    case MU_FOLD_DO_UNMARK:
    case MU_FOLD_DO_WRITE:
        perform_call(v, effect);
        break;
    case MU_FOLD_DO_TELL:
    case MU_FOLD_DO_COMPLETED:
    case MU_FOLD_DO_LEADER:
        break;
    }
}
