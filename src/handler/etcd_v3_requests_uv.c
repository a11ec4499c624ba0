/* The etcd-v3 handler: what its machine (rdzv/fold.h) wants from etcd, as etcd's ranges, transactions, watches and
 * leases; and their answers, as the machine's events. */
#include "handler/etcd_v3_parts_uv.h"

#include <assert.h>

#define WAITING_PREFIX "/muster//waiting/" /* no run id is empty: no job's keys begin like this */

/* A call to etcd, or the end of a lease; lives until it is answered, wanted or not. */
struct order {
    struct mu_order base;
    struct mu_etcd3_call call;
    enum mu_fold_effect_type type;
    enum mu_fold_scope scope;
    int64_t lease; /* LOOK_AROUND: that our mark is to be put under; 0: none is */
    bool for_boot;
};

static const char *const scopes[] = { [MU_FOLD_JOB] = "job/", [MU_FOLD_NODES] = "nodes/" };

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

/* What was not asked for becomes a key that nobody knows. */
static struct mu_slice without_prefix(const struct mu_v3 *v, struct mu_slice key)
{
    size_t len = strlen(v->prefix);

    if (key.len < len || memcmp(key.data, v->prefix, len) != 0)
        return mu_slice("", 0);
    return mu_slice(key.data + len, key.len - len);
}

#define WAITING_KEY_MAX (MU_V3_PREFIX_MAX + sizeof WAITING_PREFIX)

/* "/muster//waiting/<run id>", the run id as in the prefix. */
static void waiting_key(const struct mu_v3 *v, char ret_key[static WAITING_KEY_MAX])
{
    const char *run_id = v->prefix + sizeof "/muster/" - 1;

    (void)snprintf(ret_key, WAITING_KEY_MAX, WAITING_PREFIX "%.*s", (int)strlen(run_id) - 1, run_id);
}

static void tell_kvs(struct mu_v3 *v, const struct mu_slice *changed)
{
    for (size_t i = 0; i < 2; i++)
        if (v->kvs[i] != NULL)
            mu_kv_job_changed(v->kvs[i], changed);
}

/* What of job/ is ours and not the fold machine's. */
static void note_kv(struct mu_v3 *v, const struct mu_fold_kv *kv)
{
    static const char kept[] = "job/kv/";

    if (mu_slice_equal(kv->key, mu_slice_str("job/master"))) {
        mu_meeting_see(&v->meeting, kv);
    } else if (kv->key.len > sizeof kept - 1 && memcmp(kv->key.data, kept, sizeof kept - 1) == 0) {
        struct mu_slice key = mu_slice(kv->key.data + sizeof kept - 1, kv->key.len - (sizeof kept - 1));

        tell_kvs(v, &key);
    }
}

static void feed_kvs(struct mu_v3 *v, struct mu_fold_event event, struct mu_fold_kv *kvs)
{
    event.kvs = kvs;
    if (event.scope == MU_FOLD_JOB) {
        if (event.type == MU_FOLD_ON_LOADED) {
            v->meeting.has_master = false;
            tell_kvs(v, NULL);
        }
        for (size_t i = 0; i < event.count; i++)
            note_kv(v, &kvs[i]);
    }
    feed(v, event);
    if (!v->shell.freeing)
        mu_v3_answer_get(v);
}

static enum mu_fold_scope scope_of(const struct mu_v3 *v, const struct mu_etcd3_watch *watch)
{
    return watch == v->watches[MU_FOLD_JOB] ? MU_FOLD_JOB : MU_FOLD_NODES;
}

static void on_events(struct mu_etcd3_watch *watch, const struct mu_etcd3_event *events, size_t count, int64_t revision,
                      void *ctx)
{
    struct mu_v3 *v = ctx;
    enum mu_fold_scope scope = scope_of(v, watch);
    struct mu_fold_kv *kvs = calloc(count + 1, sizeof *kvs);

    (void)revision;
    if (kvs == NULL) {
        feed(v, (struct mu_fold_event){ .type = MU_FOLD_ON_STALE, .scope = scope });
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const struct mu_etcd3_kv *kv = &events[i].kv;

        kvs[i] = (struct mu_fold_kv){
            without_prefix(v, kv->key), events[i].kind == MU_ETCD3_DELETE, kv->value, kv->create, kv->mod, kv->lease
        };
    }
    feed_kvs(v, (struct mu_fold_event){ .type = MU_FOLD_ON_CHANGED, .scope = scope, .count = count }, kvs);
    free(kvs);
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

static uint64_t request_ms(const struct mu_v3 *v)
{
    return mu_patience_ms(&v->patience, v->fold, uv_now(v->shell.loop));
}

/* With one server there is nobody else to ask. */
static uint64_t attempt_ms(const struct mu_v3 *v)
{
    return mu_http_endpoints_count(mu_etcd3_http(v->etcd)) > 1 ? request_ms(v) / 2 : request_ms(v);
}

static bool is_final(const struct mu_etcd3_call *call)
{
    return call->rc == MUSTER_ENOTSUP || call->rc == MUSTER_EPROTOCOL || call->answer.code == MU_ETCD3_DENIED ||
           call->answer.code == MU_ETCD3_UNAUTHENTICATED || call->answer.code == MU_ETCD3_INVALID;
}

static void answer_load(struct mu_v3 *v, struct order *order)
{
    const struct mu_etcd3_answer *answer = &order->call.answer;
    const struct mu_etcd3_result *result = answer->results_count > 0 ? &answer->results[0] : NULL;
    size_t count = result != NULL ? result->kvs_count : 0;
    struct mu_fold_kv *kvs = calloc(count + 1, sizeof *kvs);
    struct muster_error error = { 0 };
    char key[MU_V3_PREFIX_MAX + 8];
    int rc = kvs == NULL ? mu_fail(&error, MUSTER_ENOMEM, "an answer of etcd's") : 0;

    (void)snprintf(key, sizeof key, "%s%s", v->prefix, scopes[order->scope]);
    close_watch(v, order->scope);
    if (rc == 0)
        rc = mu_etcd3_watch_start(v->etcd, mu_slice_str(key), true, false, answer->revision + 1, &watch_ops, v,
                                  &v->watches[order->scope], &error);
    if (rc < 0) {
        free(kvs);
        feed(v, (struct mu_fold_event){ .type = MU_FOLD_ON_REQUEST_FAILED, .id = order->base.id, .error = &error });
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const struct mu_etcd3_kv *kv = &result->kvs[i];

        kvs[i] = (struct mu_fold_kv){ without_prefix(v, kv->key), false, kv->value, kv->create, kv->mod, kv->lease };
    }
    feed_kvs(v,
             (struct mu_fold_event){
                 .type = MU_FOLD_ON_LOADED, .id = order->base.id, .scope = order->scope, .count = count },
             kvs);
    free(kvs);
}

static void answer_failed(struct mu_v3 *v, struct order *order)
{
    feed(v, (struct mu_fold_event){ .type = MU_FOLD_ON_REQUEST_FAILED,
                                    .id = order->base.id,
                                    .error = &order->call.error,
                                    .final = is_final(&order->call),
                                    .lease_gone = order->call.answer.code == MU_ETCD3_NOT_FOUND });
}

static void answer_fold(struct mu_v3 *v, struct order *order)
{
    const struct mu_etcd3_answer *answer = &order->call.answer;

    if (order->type == MU_FOLD_DO_LOAD && order->base.id == v->loads[order->scope])
        answer_load(v, order);
    else if (order->type == MU_FOLD_DO_LOAD)
        return;
    else if (order->type == MU_FOLD_DO_WRITE)
        feed(v, (struct mu_fold_event){ .type = MU_FOLD_ON_WROTE,
                                        .id = order->base.id,
                                        .held = answer->succeeded,
                                        .revision = answer->revision });
    else if (order->type == MU_FOLD_DO_GRANT_JOB)
        feed(v, (struct mu_fold_event){ .type = MU_FOLD_ON_GRANTED, .id = order->base.id, .lease = answer->lease });
    else
        feed(v, (struct mu_fold_event){ .type = MU_FOLD_ON_KEPT, .id = order->base.id, .held = answer->ttl_s > 0 });
}

/* What was read to look around; our own mark is no news. */
static void answer_look(struct mu_v3 *v, const struct order *order)
{
    static const char beside[] = "/muster//";
    const struct mu_etcd3_answer *answer = &order->call.answer;
    struct mu_fold_kv kvs[MU_WAITERS_RECORDS_MAX + MU_WAITERS_MARKS_MAX];
    struct mu_fold_event event = {
        .type = MU_FOLD_ON_CROWD, .kvs = kvs, .held = order->lease != 0 && answer->succeeded, .lease = order->lease
    };
    char own[WAITING_KEY_MAX];

    waiting_key(v, own);
    for (size_t i = 0; i < answer->results_count; i++)
        for (size_t k = 0; k < answer->results[i].kvs_count && event.count < sizeof kvs / sizeof kvs[0]; k++) {
            const struct mu_etcd3_kv *kv = &answer->results[i].kvs[k];
            struct mu_slice key = without_prefix(v, kv->key);

            if (kv->key.len > sizeof WAITING_PREFIX - 1 &&
                memcmp(kv->key.data, WAITING_PREFIX, sizeof WAITING_PREFIX - 1) == 0)
                key = mu_slice(kv->key.data + sizeof beside - 1, kv->key.len - (sizeof beside - 1));
            if (!mu_slice_equal(kv->key, mu_slice_str(own)))
                kvs[event.count++] = (struct mu_fold_kv){ key, false, kv->value, kv->create, kv->mod, kv->lease };
        }
    feed(v, event);
}

static void answer_published(struct mu_v3 *v, const struct order *order)
{
    struct muster_error error = order->call.error;
    bool done = order->call.rc == 0 && order->call.answer.succeeded;

    if (order->call.rc == 0 && !done)
        (void)mu_fail(&error, MUSTER_ERDZV_CONNECTION, "the round is not the job's any more");
    mu_boot_uv_answer(&v->shell.boot, (struct mu_boot_event){ .type = done ? MU_BOOT_ON_SET : MU_BOOT_ON_REQUEST_FAILED,
                                                              .id = order->base.id,
                                                              .error = done ? NULL : &error });
}

static void on_done(struct mu_etcd3_call *call)
{
    struct order *order = call->ctx;
    struct mu_v3 *v = mu_v3_of(order->base.shell);

    mu_patience_learn(&v->patience, call->rc);
    if (order->type == MU_FOLD_DO_LOOK_AROUND && !order->for_boot)
        v->looking_around = false;
    if (!v->shell.freeing) {
        if (order->for_boot)
            answer_published(v, order);
        else if (order->type == MU_FOLD_DO_LOOK_AROUND && call->rc == 0)
            answer_look(v, order);
        else if (order->type == MU_FOLD_DO_LOOK_AROUND || order->type == MU_FOLD_DO_UNMARK)
            ; /* for people only: what cannot be read is not told, and the mark goes with its lease */
        else if (call->rc < 0)
            answer_failed(v, order);
        else
            answer_fold(v, order);
    }
    mu_etcd3_answer_done(&call->answer);
    mu_order_free(&order->base);
}

static struct order *new_order(struct mu_v3 *v, const struct mu_fold_effect *effect)
{
    struct order *order = mu_order_new(&v->shell, sizeof *order, effect->id);

    if (order == NULL) {
        mu_shell_answer_late(&v->shell, effect->id, MU_FOLD_ON_REQUEST_FAILED);
        return NULL;
    }
    order->type = effect->type;
    order->scope = effect->scope;
    order->call = (struct mu_etcd3_call){
        .timeout_ms = request_ms(v), .attempt_ms = attempt_ms(v), .done = on_done, .ctx = order
    };
    return order;
}

static void perform_load(struct mu_v3 *v, const struct mu_fold_effect *effect)
{
    struct order *order = new_order(v, effect);
    char key[MU_V3_PREFIX_MAX + 8];

    if (order == NULL)
        return;
    v->loads[effect->scope] = effect->id;
    close_watch(v, effect->scope);
    (void)snprintf(key, sizeof key, "%s%s", v->prefix, scopes[effect->scope]);
    order->call.request =
        (struct mu_etcd3_request){ .kind = MU_ETCD3_RANGE,
                                   .range = { .kind = MU_ETCD3_OP_RANGE, .key = mu_slice_str(key), .prefix = true } };
    mu_etcd3_call(v->etcd, &order->call);
}

/* Keys with the prefix in front. */
struct keys {
    char texts[MU_FOLD_COMPARES_MAX + 2 * MU_FOLD_PUTS_MAX][MU_V3_PREFIX_MAX + MU_FOLD_KEY_MAX];
    size_t count;
};

static struct mu_slice whole_key(const struct mu_v3 *v, struct keys *keys, struct mu_slice key)
{
    char *text = keys->texts[keys->count++];

    (void)snprintf(text, sizeof keys->texts[0], "%s%.*s", v->prefix, (int)key.len, key.data);
    return mu_slice_str(text);
}

static size_t make_puts(const struct mu_v3 *v, struct keys *keys, const struct mu_fold_put *puts, unsigned count,
                        struct mu_etcd3_op *ops)
{
    for (unsigned i = 0; i < count; i++)
        ops[i] = (struct mu_etcd3_op){ .kind = MU_ETCD3_OP_PUT,
                                       .key = whole_key(v, keys, puts[i].key),
                                       .value = puts[i].value,
                                       .lease = puts[i].lease };
    return count;
}

static void perform_write(struct mu_v3 *v, const struct mu_fold_effect *effect)
{
    const struct mu_fold_write *write = effect->write;
    struct order *order = new_order(v, effect);
    struct mu_etcd3_compare compares[MU_FOLD_COMPARES_MAX];
    struct mu_etcd3_op puts[MU_FOLD_PUTS_MAX], else_puts[MU_FOLD_PUTS_MAX];
    struct keys keys = { .count = 0 };

    if (order == NULL)
        return;
    for (unsigned i = 0; i < write->compares_count; i++)
        compares[i] = (struct mu_etcd3_compare){
            .target = write->compares[i].kind == MU_FOLD_MOD ? MU_ETCD3_MOD : MU_ETCD3_CREATE,
            .key = whole_key(v, &keys, write->compares[i].key),
            .number = write->compares[i].revision, /* 0 if it is to be absent */
        };
    order->call.repeatable = write->repeatable;
    order->call.request = (struct mu_etcd3_request){
        .kind = MU_ETCD3_TXN,
        .txn = { .compares = compares,
                 .compares_count = write->compares_count,
                 .success = puts,
                 .success_count = make_puts(v, &keys, write->puts, write->puts_count, puts),
                 .failure = else_puts,
                 .failure_count = make_puts(v, &keys, write->else_puts, write->else_count, else_puts) },
    };
    mu_etcd3_call(v->etcd, &order->call);
}

/* One transaction. The mark is put only if the document is still the one that we know: so a mark that arrives late is
 * not put after the round has begun, and what takes the mark away then leaves none behind. */
static void perform_look(struct mu_v3 *v, const struct mu_fold_effect *effect)
{
    struct order *order = v->looking_around ? NULL : new_order(v, effect);
    struct mu_etcd3_compare compare = { .target = MU_ETCD3_MOD, .number = mu_fold_doc_mod(v->fold) };
    struct keys keys = { .count = 0 };
    char own[WAITING_KEY_MAX];
    struct mu_etcd3_op ops[] = {
        { .kind = MU_ETCD3_OP_RANGE,
          .prefix = true,
          .limit = MU_WAITERS_RECORDS_MAX,
          .sort = true,
          .sort_by = MU_ETCD3_BY_CREATE },
        { .kind = MU_ETCD3_OP_RANGE,
          .key = mu_slice_str(WAITING_PREFIX),
          .prefix = true,
          .limit = MU_WAITERS_MARKS_MAX,
          .sort = true,
          .descending = true,
          .sort_by = MU_ETCD3_BY_MOD },
        { .kind = MU_ETCD3_OP_PUT, .value = effect->value, .lease = effect->lease },
    };

    if (order == NULL)
        return;
    v->looking_around = true;
    waiting_key(v, own);
    compare.key = whole_key(v, &keys, mu_slice_str("job/doc"));
    ops[0].key = whole_key(v, &keys, mu_slice_str("nodes/"));
    ops[2].key = mu_slice_str(own);
    order->lease = effect->value.len > 0 ? effect->lease : 0;
    order->call.repeatable = true;
    order->call.request = (struct mu_etcd3_request){
        .kind = MU_ETCD3_TXN,
        .txn = { .compares = &compare,
                 .compares_count = 1,
                 .success = ops,
                 .success_count = order->lease != 0 ? 3 : 2,
                 .failure = ops,
                 .failure_count = 2 },
    };
    mu_etcd3_call(v->etcd, &order->call);
}

static void perform_unmark(struct mu_v3 *v, const struct mu_fold_effect *effect)
{
    struct order *order = new_order(v, effect);
    struct mu_etcd3_op op = { .kind = MU_ETCD3_OP_DELETE };
    char own[WAITING_KEY_MAX];

    if (order == NULL)
        return;
    waiting_key(v, own);
    op.key = mu_slice_str(own);
    order->call.repeatable = true;
    order->call.request =
        (struct mu_etcd3_request){ .kind = MU_ETCD3_TXN, .txn = { .success = &op, .success_count = 1 } };
    mu_etcd3_call(v->etcd, &order->call);
}

static void perform_job_lease(struct mu_v3 *v, const struct mu_fold_effect *effect)
{
    struct order *order = new_order(v, effect);

    if (order == NULL)
        return;
    if (effect->type == MU_FOLD_DO_GRANT_JOB)
        order->call.request = (struct mu_etcd3_request){ .kind = MU_ETCD3_GRANT, .ttl_s = (int64_t)v->job_lease_s };
    else
        order->call.request = (struct mu_etcd3_request){ .kind = MU_ETCD3_KEEP_ALIVE, .lease = effect->lease };
    mu_etcd3_call(v->etcd, &order->call);
}

/* ---- job/master, for the boot ---- */

int mu_v3_publish(struct mu_v3 *v, uint64_t id, const struct mu_fold_master *master)
{
    struct mu_etcd3_compare compare = { .target = MU_ETCD3_MOD, .number = mu_fold_doc_mod(v->fold) };
    struct mu_etcd3_op put = { .kind = MU_ETCD3_OP_PUT, .lease = mu_fold_lease(v->fold) };
    struct order *order = mu_order_new(&v->shell, sizeof *order, id);
    struct mu_buf value = { 0 };
    struct keys keys = { .count = 0 };

    if (order == NULL || mu_fold_master_write(master, &value) < 0) {
        if (order != NULL)
            mu_order_free(&order->base);
        return MUSTER_ENOMEM;
    }
    compare.key = whole_key(v, &keys, mu_slice_str("job/doc"));
    put.key = whole_key(v, &keys, mu_slice_str("job/master"));
    put.value = mu_buf_slice(&value);
    order->for_boot = true;
    order->call = (struct mu_etcd3_call){
        .timeout_ms = request_ms(v), .attempt_ms = attempt_ms(v), .repeatable = true, .done = on_done, .ctx = order
    };
    order->call.request = (struct mu_etcd3_request){
        .kind = MU_ETCD3_TXN,
        .txn = { .compares = &compare, .compares_count = 1, .success = &put, .success_count = 1 },
    };
    mu_etcd3_call(v->etcd, &order->call);
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
    mu_patience_learn(&v->patience, mu_etcd3_lease_id(lease) == 0 ? error->code : 0);
    mu_etcd3_lease_close(lease, false, 0, NULL, NULL);
    v->lease = NULL;
    v->lease_take = 0;
    feed(v, (struct mu_fold_event){ .type = MU_FOLD_ON_LEASE_LOST,
                                    .id = take,
                                    .error = error,
                                    .final = error->code == MUSTER_ENOTSUP || error->code == MUSTER_EINVAL ||
                                             error->code == MUSTER_EPROTOCOL });
}

static void on_lease_trouble(struct mu_etcd3_lease *lease, const struct muster_error *error, void *ctx)
{
    (void)lease;
    feed(ctx, (struct mu_fold_event){ .type = MU_FOLD_ON_TROUBLE, .error = error });
}

static const struct mu_etcd3_lease_ops lease_ops = { on_granted, on_lost, on_lease_trouble };

static void perform_take(struct mu_v3 *v, const struct mu_fold_effect *effect)
{
    struct muster_error error = { 0 };

    assert(v->lease == NULL);
    if (mu_etcd3_lease_start(v->etcd, (int64_t)v->lease_s, request_ms(v), &lease_ops, v, &v->lease, &error) < 0) {
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
        perform_load(v, effect);
        break;
    case MU_FOLD_DO_UNWATCH:
        v->loads[effect->scope] = 0;
        close_watch(v, effect->scope);
        break;
    case MU_FOLD_DO_TAKE_LEASE:
        perform_take(v, effect);
        break;
    case MU_FOLD_DO_DROP_LEASE:
        perform_drop(v, effect);
        break;
    case MU_FOLD_DO_GRANT_JOB:
    case MU_FOLD_DO_KEEP_JOB:
        perform_job_lease(v, effect);
        break;
    case MU_FOLD_DO_LOOK_AROUND:
        perform_look(v, effect);
        break;
    case MU_FOLD_DO_UNMARK:
        perform_unmark(v, effect);
        break;
    case MU_FOLD_DO_WRITE:
        perform_write(v, effect);
        break;
    case MU_FOLD_DO_TELL:
        break;
    }
}
