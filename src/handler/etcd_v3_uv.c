/* The rendezvous `etcd-v3`: performs what its two pure machines want (rdzv/fold.h: members and rounds; boot.h: where the
 * workers meet) with a client of etcd's, and tells the owner what comes of it.
 *
 * Happy path: join -> the fold machine takes a lease, writes this node's record, and watches until the document has us and it
 * tells JOINED -> the boot machine opens the round's store and publishes it (job/master), or waits for it -> the owner is
 * told JOINED. If the round ends before that, nobody has been told of it, and the next one is joined instead. A failure of
 * the boot leaves the round and is told as FAILED. When etcd is away, the client and the machine try again; nothing is told
 * but that it is away. Freeing the handler ends its lease, and with it all keys of this node. */
#include "base/log.h"
#include "base/rng.h"
#include "handler/asking_uv.h"
#include "handler/boot_uv.h"
#include "handler/rdzv_trace.h"
#include "kv/etcd3_uv.h"
#include "kv/kv_job_uv.h"
#include "rdzv/fold.h"
#include "store/server_uv.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>
#include <uv.h>

#define LEASE_S 10
#define LEASE_MIN_S 2 /* etcd's own election takes about one */
#define LEASE_MAX_S 3600
#define JOB_LEASE_S 60     /* what is left of a job stays so long; at least four leases of a node */
#define READ_TIMEOUT_S 60  /* for the first answer of etcd's */
#define REVOKE_MS 800      /* to take our keys out of etcd when we go; else they go with their lease */
#define REQUEST_MIN_MS 500 /* for an answer, however short the lease */
#define REQUEST_MAX_MS 5000
#define PATIENCE_MAX 16 /* a request that got no answer in time is given twice as long the next time, up to so often */
#define LATER_MAX                                                                                                      \
    MU_FOLD_EFFECTS_MAX /* answers that are there at once, and wait until the step that wanted them is over */
#define WAITING_PREFIX "/muster//waiting/" /* no run id is empty: no job's keys begin like this */
#define PREFIX_MAX (sizeof "/muster/" + 3 * MU_RDZV_RUN_ID_MAX + 1)

struct v3 {
    struct mu_handler handler;
    uv_loop_t *loop;
    muster_rdzv_listener *listener;
    void *ctx;
    char *run_id, *name, *local_addr;
    char prefix[PREFIX_MAX]; /* "/muster/<run id>/" */
    struct mu_rdzv_settings settings;
    bool use_agent_store;
    int64_t pid, local_id;
    uint64_t lease_s, job_lease_s, request_ms;
    unsigned patience; /* 1 to PATIENCE_MAX: an etcd with too much to do is not helped by asking again */
    struct mu_etcd3 *etcd;
    struct mu_fold *fold;
    struct mu_boot_uv boot;            /* while it is on we have joined, but the owner does not know yet */
    struct mu_etcd3_watch *watches[2]; /* by scope */
    uint64_t loads[2];                 /* the newest load of each: an older one says nothing any more */
    struct mu_etcd3_lease *lease;
    uint64_t lease_take;
    bool looking_around; /* the answer is not there yet */
    struct mu_kv *kv;    /* of an agent; NULL: none */
    uv_timer_t timer;
    struct mu_asking asking; /* enum mu_fold_event_type */
    struct {
        struct mu_fold_event event;
        struct muster_error error;
    } later[LATER_MAX];
    size_t later_count;
    /* As in dynamic_uv.c. */
    bool boot_failed;      /* leaving because of that; boot_error says why */
    bool joining;          /* the owner waits for JOINED */
    bool join_after_leave; /* asked while it was still leaving */
    uint64_t join_deadline_ms;
    struct muster_error boot_error;
    int64_t waiting_count; /* told while booting; 0: not told */
    char waiting_who[MU_FOLD_NAME_MAX + 1];
    bool closed_seen;
    int64_t round; /* that was joined last; -1: none */
    struct mu_rdzv_trace_phases phases;
    struct muster_store_info bootstrap;
    /* Where the round meets. */
    char own_addr[MU_FOLD_ADDR_MAX];
    struct mu_fold_master master; /* the newest that we have seen */
    bool has_master;
    uint64_t get_id, get_until_ms; /* a GET of the boot machine's that waits; 0: none */
    bool get_port;
    char port_text[8];
    /* The end. */
    size_t handles; /* still to be closed */
    bool freeing;
    void (*on_freed)(void *ctx);
    void *freed_ctx;
};

/* A call to etcd, or the end of a lease; lives until it is answered, wanted or not. */
struct order {
    struct mu_etcd3_call call;
    struct v3 *v;
    uint64_t id;
    enum mu_fold_effect_type type;
    enum mu_fold_scope scope;
    int64_t lease; /* LOOK_AROUND: that our mark is to be put under; 0: none is */
    bool for_boot;
};

static const char *const scopes[] = { [MU_FOLD_JOB] = "job/", [MU_FOLD_NODES] = "nodes/" };

static void feed(struct v3 *v, struct mu_fold_event event);
static void arm(struct v3 *v);

/* ---- Telling ---- */

static void tell(struct v3 *v, struct muster_rdzv_event event)
{
    const struct muster_node self = { v->name, v->pid, v->local_id };

    if (v->freeing)
        return;
    event.size = sizeof event;
    event.self = &self;
    v->listener(v->ctx, &event);
}

static void record(struct v3 *v, struct mu_rdzv_trace story)
{
    mu_rdzv_trace_tell(&(struct mu_teller){ v->run_id, { mu_slice_str(v->name), v->pid, v->local_id } }, story);
}

/* The error as the owner sees it: which rendezvous it is about. */
static struct muster_error with_context(const struct v3 *v, const char *what, const struct muster_error *error)
{
    struct muster_error told = *error;

    (void)mu_wrap(&told, told.code, "%s rendezvous '%s'", what, v->run_id);
    return told;
}

static void tell_failed(struct v3 *v, enum muster_rdzv_request request, const struct muster_error *error)
{
    struct muster_error told = with_context(v, mu_handler_request_text(request), error);

    if (request == MUSTER_RDZV_REQUEST_JOIN)
        record(v, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_JOIN_FAILED, .error = &told });
    else if (request == MUSTER_RDZV_REQUEST_LEAVE)
        record(v, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_LEAVE_FAILED, .error = &told });
    else if (request == MUSTER_RDZV_REQUEST_MEMBERSHIP)
        record(v, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_BEAT_FAILED, .error = &told });
    tell(v, (struct muster_rdzv_event){ /* what a close was for is known to the one that asked for it */
                                        .type = MUSTER_RDZV_FAILED,
                                        .round = v->round,
                                        .request = request,
                                        .error = &told });
}

static void tell_down(struct v3 *v, const struct muster_error *error)
{
    struct muster_error told = with_context(v, "keep to", error);

    record(v, (struct mu_rdzv_trace){ .kind = mu_fold_world(v->fold) != NULL ? MU_RDZV_TRACE_BEAT_FAILED
                                                                             : MU_RDZV_TRACE_SYNC_FAILED,
                                      .error = &told });
    tell(v, (struct muster_rdzv_event){ .type = MUSTER_RDZV_BACKEND_DOWN, .round = v->round, .error = &told });
}

static void tell_members(struct v3 *v, struct muster_rdzv_event event, bool only_lost)
{
    const struct mu_fold_world *world = mu_fold_world(v->fold);
    struct muster_node *nodes = calloc(world->count + 1, sizeof *nodes);
    size_t count = 0;

    for (size_t i = 0; nodes != NULL && i < world->count; i++) {
        const struct mu_node *node = &world->members[i].node;

        if (!only_lost || mu_fold_is_lost(v->fold, i))
            nodes[count++] = (struct muster_node){ node->name.data, node->pid, node->local_id };
    }
    event.nodes = nodes;
    event.nodes_count = count;
    tell(v, event);
    free(nodes);
}

/* A member without a record has lost its lease, unless it has ended it, and left a note for the agents. */
static void tell_lost(struct v3 *v, int64_t round)
{
    char cause[64];

    (void)snprintf(cause, sizeof cause, "no keep-alive for %" PRIu64 " s", v->lease_s);
    tell_members(v, (struct muster_rdzv_event){ .type = MUSTER_RDZV_PEERS_LOST, .round = round, .cause = cause }, true);
}

static void tell_joined(struct v3 *v)
{
    const struct mu_fold_world *world = mu_fold_world(v->fold);
    struct muster_rdzv_info info = {
        .rank = mu_fold_rank(v->fold),
        .world_size = (int64_t)world->count,
        .round = world->round,
        .bootstrap = v->bootstrap,
    };

    v->round = world->round;
    record(v,
           (struct mu_rdzv_trace){
               .kind = MU_RDZV_TRACE_JOINED, .round = info.round, .rank = info.rank, .world_size = info.world_size });
    tell_members(v, (struct muster_rdzv_event){ .type = MUSTER_RDZV_JOINED, .round = info.round, .info = &info },
                 false);
}

static void tell_progress(struct v3 *v)
{
    struct mu_fold_progress seen = mu_fold_progress(v->fold);
    uint64_t now_ms = uv_now(v->loop);
    const struct mu_waiters *crowd = mu_fold_crowd(v->fold);
    struct muster_node nodes[MU_WAITERS_NAMES_MAX];
    char text[MU_WAITERS_NOTE_MAX];
    const char *note = mu_waiters_note(crowd, text);
    struct muster_rdzv_progress progress = {
        .joined = seen.joined,
        .waiting = seen.waiting,
        .spares = seen.spares,
        .min_nodes = v->settings.nodes_min,
        .max_nodes = v->settings.nodes_max,
        .spare = seen.spare,
        .last_call_left_ms = -1,
        .join_left_ms = -1,
    };

    if (seen.last_call_until_ms != UINT64_MAX)
        progress.last_call_left_ms = seen.last_call_until_ms > now_ms ? (int64_t)(seen.last_call_until_ms - now_ms) : 0;
    if (seen.deadline_ms != UINT64_MAX)
        progress.join_left_ms = seen.deadline_ms > now_ms ? (int64_t)(seen.deadline_ms - now_ms) : 0;
    for (size_t i = 0; i < crowd->count; i++)
        nodes[i] = (struct muster_node){ crowd->nodes[i].name.data, crowd->nodes[i].pid, crowd->nodes[i].local_id };
    if (seen.apart > 0 && note == NULL) { /* whose they are is not known yet, or too many have come */
        (void)snprintf(
            text, sizeof text,
            "%" PRId64 " %s started with an --nnodes that does not go together with that of the others; this node "
            "has --nnodes %" PRId64 ":%" PRId64,
            seen.apart, seen.apart == 1 ? "node was" : "nodes were", v->settings.nodes_min, v->settings.nodes_max);
        note = text;
    }
    tell(v, (struct muster_rdzv_event){ .type = MUSTER_RDZV_PROGRESS,
                                        .round = seen.round,
                                        .progress = &progress,
                                        .nodes = nodes,
                                        .nodes_count = crowd->count,
                                        .note = note });
}

/* ---- Answers that are there at once ---- */

static void feed_later(struct v3 *v, struct mu_fold_event event, const struct muster_error *error)
{
    assert(v->later_count < LATER_MAX);
    v->later[v->later_count].event = event;
    if (error != NULL)
        v->later[v->later_count].error = *error;
    v->later_count++;
}

static void no_memory(struct v3 *v, enum mu_fold_event_type type, uint64_t id)
{
    struct muster_error error = { 0 };

    if (id == 0)
        return;
    (void)mu_fail(&error, MUSTER_ENOMEM, "a request to etcd");
    feed_later(v, (struct mu_fold_event){ .type = type, .id = id }, &error);
}

/* ---- Watching ---- */

/* What was not asked for becomes a key that nobody knows. */
static struct mu_slice without_prefix(const struct v3 *v, struct mu_slice key)
{
    size_t len = strlen(v->prefix);

    if (key.len < len || memcmp(key.data, v->prefix, len) != 0)
        return mu_slice("", 0);
    return mu_slice(key.data + len, key.len - len);
}

#define WAITING_KEY_MAX (PREFIX_MAX + sizeof WAITING_PREFIX)

/* "/muster//waiting/<run id>", the run id as in the prefix. */
static void waiting_key(const struct v3 *v, char ret_key[static WAITING_KEY_MAX])
{
    const char *run_id = v->prefix + sizeof "/muster/" - 1;

    (void)snprintf(ret_key, WAITING_KEY_MAX, WAITING_PREFIX "%.*s", (int)strlen(run_id) - 1, run_id);
}

/* What of job/ is ours and not the fold machine's. */
static void note_kv(struct v3 *v, const struct mu_fold_kv *kv)
{
    static const char kept[] = "job/kv/";

    if (mu_slice_equal(kv->key, mu_slice_str("job/master"))) {
        v->has_master = !kv->deleted && mu_fold_master_read(kv->value, &v->master, NULL) == 0;
    } else if (v->kv != NULL && kv->key.len > sizeof kept - 1 && memcmp(kv->key.data, kept, sizeof kept - 1) == 0) {
        struct mu_slice key = mu_slice(kv->key.data + sizeof kept - 1, kv->key.len - (sizeof kept - 1));

        mu_kv_job_changed(v->kv, &key);
    }
}

static void answer_get(struct v3 *v);

static void feed_kvs(struct v3 *v, struct mu_fold_event event, struct mu_fold_kv *kvs)
{
    event.kvs = kvs;
    if (event.scope == MU_FOLD_JOB) {
        if (event.type == MU_FOLD_ON_LOADED) {
            v->has_master = false;
            if (v->kv != NULL)
                mu_kv_job_changed(v->kv, NULL);
        }
        for (size_t i = 0; i < event.count; i++)
            note_kv(v, &kvs[i]);
    }
    feed(v, event);
    if (!v->freeing)
        answer_get(v);
}

static enum mu_fold_scope scope_of(const struct v3 *v, const struct mu_etcd3_watch *watch)
{
    return watch == v->watches[MU_FOLD_JOB] ? MU_FOLD_JOB : MU_FOLD_NODES;
}

static void on_events(struct mu_etcd3_watch *watch, const struct mu_etcd3_event *events, size_t count, int64_t revision,
                      void *ctx)
{
    struct v3 *v = ctx;
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

static void close_watch(struct v3 *v, enum mu_fold_scope scope)
{
    if (v->watches[scope] == NULL)
        return;
    mu_etcd3_watch_close(v->watches[scope]);
    v->watches[scope] = NULL;
}

/* ---- Calls ---- */

/* Who is a member has to notice in a lease's time that etcd is away; who has never heard of etcd, when the time for that is
 * over. */
static uint64_t request_ms(const struct v3 *v)
{
    uint64_t ms = v->request_ms * v->patience, most_ms = UINT64_MAX;
    uint64_t now_ms = uv_now(v->loop), until_ms = mu_fold_first_until_ms(v->fold);

    if (mu_fold_phase(v->fold) == MU_FOLD_MEMBER)
        most_ms = v->lease_s * 1000;
    else if (until_ms != UINT64_MAX)
        most_ms = until_ms > now_ms ? until_ms - now_ms : 1;
    return ms < most_ms ? ms : most_ms;
}

/* With one server there is nobody else to ask. */
static uint64_t attempt_ms(const struct v3 *v)
{
    return mu_http_endpoints_count(mu_etcd3_http(v->etcd)) > 1 ? request_ms(v) / 2 : request_ms(v);
}

static void learn_patience(struct v3 *v, int rc)
{
    if (rc == MUSTER_ETIMEOUT)
        v->patience = v->patience * 2 < PATIENCE_MAX ? v->patience * 2 : PATIENCE_MAX;
    else if (rc == 0 && v->patience > 1)
        v->patience--;
}

static bool is_final(const struct mu_etcd3_call *call)
{
    return call->rc == MUSTER_ENOTSUP || call->rc == MUSTER_EPROTOCOL || call->answer.code == MU_ETCD3_DENIED ||
           call->answer.code == MU_ETCD3_UNAUTHENTICATED || call->answer.code == MU_ETCD3_INVALID;
}

static void answer_load(struct v3 *v, struct order *order)
{
    const struct mu_etcd3_answer *answer = &order->call.answer;
    const struct mu_etcd3_result *result = answer->results_count > 0 ? &answer->results[0] : NULL;
    size_t count = result != NULL ? result->kvs_count : 0;
    struct mu_fold_kv *kvs = calloc(count + 1, sizeof *kvs);
    struct muster_error error = { 0 };
    char key[PREFIX_MAX + 8];
    int rc = kvs == NULL ? mu_fail(&error, MUSTER_ENOMEM, "an answer of etcd's") : 0;

    (void)snprintf(key, sizeof key, "%s%s", v->prefix, scopes[order->scope]);
    close_watch(v, order->scope);
    if (rc == 0)
        rc = mu_etcd3_watch_start(v->etcd, mu_slice_str(key), true, false, answer->revision + 1, &watch_ops, v,
                                  &v->watches[order->scope], &error);
    if (rc < 0) {
        free(kvs);
        feed(v, (struct mu_fold_event){ .type = MU_FOLD_ON_REQUEST_FAILED, .id = order->id, .error = &error });
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const struct mu_etcd3_kv *kv = &result->kvs[i];

        kvs[i] = (struct mu_fold_kv){ without_prefix(v, kv->key), false, kv->value, kv->create, kv->mod, kv->lease };
    }
    feed_kvs(
        v, (struct mu_fold_event){ .type = MU_FOLD_ON_LOADED, .id = order->id, .scope = order->scope, .count = count },
        kvs);
    free(kvs);
}

static void answer_failed(struct v3 *v, struct order *order)
{
    feed(v, (struct mu_fold_event){ .type = MU_FOLD_ON_REQUEST_FAILED,
                                    .id = order->id,
                                    .error = &order->call.error,
                                    .final = is_final(&order->call),
                                    .lease_gone = order->call.answer.code == MU_ETCD3_NOT_FOUND });
}

static void answer_fold(struct v3 *v, struct order *order)
{
    const struct mu_etcd3_answer *answer = &order->call.answer;

    if (order->type == MU_FOLD_DO_LOAD && order->id == v->loads[order->scope])
        answer_load(v, order);
    else if (order->type == MU_FOLD_DO_LOAD)
        return;
    else if (order->type == MU_FOLD_DO_WRITE)
        feed(v,
             (struct mu_fold_event){
                 .type = MU_FOLD_ON_WROTE, .id = order->id, .held = answer->succeeded, .revision = answer->revision });
    else if (order->type == MU_FOLD_DO_GRANT_JOB)
        feed(v, (struct mu_fold_event){ .type = MU_FOLD_ON_GRANTED, .id = order->id, .lease = answer->lease });
    else
        feed(v, (struct mu_fold_event){ .type = MU_FOLD_ON_KEPT, .id = order->id, .held = answer->ttl_s > 0 });
}

/* What was read to look around; our own mark is no news. */
static void answer_look(struct v3 *v, const struct order *order)
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

static void answer_published(struct v3 *v, const struct order *order)
{
    struct muster_error error = order->call.error;
    bool done = order->call.rc == 0 && order->call.answer.succeeded;

    if (order->call.rc == 0 && !done)
        (void)mu_fail(&error, MUSTER_ERDZV_CONNECTION, "the round is not the job's any more");
    mu_boot_uv_answer(&v->boot, (struct mu_boot_event){ .type = done ? MU_BOOT_ON_SET : MU_BOOT_ON_REQUEST_FAILED,
                                                        .id = order->id,
                                                        .error = done ? NULL : &error });
}

static void on_done(struct mu_etcd3_call *call)
{
    struct order *order = call->ctx;

    learn_patience(order->v, call->rc);
    if (order->type == MU_FOLD_DO_LOOK_AROUND && !order->for_boot)
        order->v->looking_around = false;
    if (!order->v->freeing) {
        if (order->for_boot)
            answer_published(order->v, order);
        else if (order->type == MU_FOLD_DO_LOOK_AROUND && call->rc == 0)
            answer_look(order->v, order);
        else if (order->type == MU_FOLD_DO_LOOK_AROUND || order->type == MU_FOLD_DO_UNMARK)
            ; /* for people only: what cannot be read is not told, and the mark goes with its lease */
        else if (call->rc < 0)
            answer_failed(order->v, order);
        else
            answer_fold(order->v, order);
    }
    mu_etcd3_answer_done(&call->answer);
    free(order);
}

static struct order *new_order(struct v3 *v, const struct mu_fold_effect *effect)
{
    struct order *order = calloc(1, sizeof *order);

    if (order == NULL) {
        no_memory(v, MU_FOLD_ON_REQUEST_FAILED, effect->id);
        return NULL;
    }
    order->v = v;
    order->id = effect->id;
    order->type = effect->type;
    order->scope = effect->scope;
    order->call = (struct mu_etcd3_call){
        .timeout_ms = request_ms(v), .attempt_ms = attempt_ms(v), .done = on_done, .ctx = order
    };
    return order;
}

static void perform_load(struct v3 *v, const struct mu_fold_effect *effect)
{
    struct order *order = new_order(v, effect);
    char key[PREFIX_MAX + 8];

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
    char texts[MU_FOLD_COMPARES_MAX + 2 * MU_FOLD_PUTS_MAX][PREFIX_MAX + MU_FOLD_KEY_MAX];
    size_t count;
};

static struct mu_slice whole_key(const struct v3 *v, struct keys *keys, struct mu_slice key)
{
    char *text = keys->texts[keys->count++];

    (void)snprintf(text, sizeof keys->texts[0], "%s%.*s", v->prefix, (int)key.len, key.data);
    return mu_slice_str(text);
}

static size_t make_puts(const struct v3 *v, struct keys *keys, const struct mu_fold_put *puts, unsigned count,
                        struct mu_etcd3_op *ops)
{
    for (unsigned i = 0; i < count; i++)
        ops[i] = (struct mu_etcd3_op){ .kind = MU_ETCD3_OP_PUT,
                                       .key = whole_key(v, keys, puts[i].key),
                                       .value = puts[i].value,
                                       .lease = puts[i].lease };
    return count;
}

static void perform_write(struct v3 *v, const struct mu_fold_effect *effect)
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

/* One transaction. The mark is put only if the document is still the one that we know: so a mark that arrives late is not put
 * after the round has begun, and what takes the mark away then leaves none behind. */
static void perform_look(struct v3 *v, const struct mu_fold_effect *effect)
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

static void perform_unmark(struct v3 *v, const struct mu_fold_effect *effect)
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

static void perform_job_lease(struct v3 *v, const struct mu_fold_effect *effect)
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

/* ---- Our lease ---- */

static void on_granted(struct mu_etcd3_lease *lease, int64_t id, void *ctx)
{
    struct v3 *v = ctx;

    if (lease == v->lease)
        feed(v, (struct mu_fold_event){ .type = MU_FOLD_ON_LEASED, .id = v->lease_take, .lease = id });
}

static void on_lost(struct mu_etcd3_lease *lease, const struct muster_error *error, void *ctx)
{
    struct v3 *v = ctx;
    uint64_t take = v->lease_take;

    if (lease != v->lease)
        return;
    learn_patience(v, mu_etcd3_lease_id(lease) == 0 ? error->code : 0);
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

static void perform_take(struct v3 *v, const struct mu_fold_effect *effect)
{
    struct muster_error error = { 0 };

    assert(v->lease == NULL);
    if (mu_etcd3_lease_start(v->etcd, (int64_t)v->lease_s, request_ms(v), &lease_ops, v, &v->lease, &error) < 0) {
        feed_later(v, (struct mu_fold_event){ .type = MU_FOLD_ON_LEASE_LOST, .id = effect->id }, &error);
        return;
    }
    v->lease_take = effect->id;
}

static void handle_gone(void *ctx);

static void on_dropped(void *ctx)
{
    struct order *order = ctx;
    struct v3 *v = order->v;

    if (!v->freeing)
        feed(v, (struct mu_fold_event){ .type = MU_FOLD_ON_DROPPED, .id = order->id });
    free(order);
    handle_gone(v);
}

static void perform_drop(struct v3 *v, const struct mu_fold_effect *effect)
{
    struct mu_etcd3_lease *lease = effect->lease_take == v->lease_take ? v->lease : NULL;
    struct order *order = NULL;

    if (lease != NULL) {
        v->lease = NULL;
        v->lease_take = 0;
        order = calloc(1, sizeof *order);
    }
    if (order == NULL) {
        if (lease != NULL)
            mu_etcd3_lease_close(lease, true, REVOKE_MS, NULL, NULL);
        if (effect->id != 0)
            feed_later(v, (struct mu_fold_event){ .type = MU_FOLD_ON_DROPPED, .id = effect->id }, NULL);
        return;
    }
    order->v = v;
    order->id = effect->id;
    v->handles++;
    mu_etcd3_lease_close(lease, true, REVOKE_MS, on_dropped, order);
}

/* ---- The end ---- */

static void destroy(struct v3 *v)
{
    mu_fold_free(v->fold);
    mu_boot_uv_done(&v->boot);
    free(v->run_id);
    free(v->name);
    free(v->local_addr);
    free(v);
}

static void on_etcd_closed(void *ctx)
{
    struct v3 *v = ctx;
    void (*on_freed)(void *ctx) = v->on_freed;
    void *freed_ctx = v->freed_ctx;

    destroy(v);
    on_freed(freed_ctx);
}

/* The client goes last: the ends of leases are its. */
static void handle_gone(void *ctx)
{
    struct v3 *v = ctx;

    assert(v->handles > 0);
    v->handles--;
    if (!v->freeing || v->handles > 0)
        return;
    mu_etcd3_close(v->etcd, on_etcd_closed, v);
}

/* ---- Where the round meets ---- */

static bool is_about_port(struct mu_slice key)
{
    static const char name[] = MUSTER_KEY_MASTER_PORT;

    return key.len >= sizeof name - 1 && memcmp(key.data + key.len - (sizeof name - 1), name, sizeof name - 1) == 0;
}

static bool is_master_there(const struct v3 *v)
{
    const struct mu_fold_world *world = mu_fold_world(v->fold);

    return v->has_master && world != NULL && v->master.world == world->id;
}

static struct mu_boot_event got(struct v3 *v, uint64_t id, bool port)
{
    (void)snprintf(v->port_text, sizeof v->port_text, "%u", (unsigned)v->master.port);
    return (struct mu_boot_event){ .type = MU_BOOT_ON_GOT,
                                   .id = id,
                                   .value = mu_slice_str(port ? v->port_text : v->master.addr) };
}

/* A GET that waits, if it can be answered or has waited long enough. */
static void answer_get(struct v3 *v)
{
    uint64_t id = v->get_id;

    if (id == 0)
        return;
    if (is_master_there(v)) {
        v->get_id = 0;
        mu_boot_uv_answer(&v->boot, got(v, id, v->get_port));
    } else if (uv_now(v->loop) >= v->get_until_ms) {
        v->get_id = 0;
        mu_boot_uv_answer(&v->boot, (struct mu_boot_event){ .type = MU_BOOT_ON_MISSING, .id = id });
    }
}

static void perform_get(struct v3 *v, const struct mu_boot_effect *effect)
{
    v->get_id = 0;
    if (is_master_there(v)) {
        mu_boot_uv_answer(&v->boot, got(v, effect->id, is_about_port(effect->key)));
        return;
    }
    v->get_id = effect->id;
    v->get_port = is_about_port(effect->key);
    v->get_until_ms = uv_now(v->loop) + effect->wait_ms;
    arm(v);
}

static void fail_set(struct v3 *v, uint64_t id, int code, const char *why)
{
    struct muster_error error;

    (void)mu_fail(&error, code, "%s", why);
    mu_boot_uv_answer(&v->boot, (struct mu_boot_event){ .type = MU_BOOT_ON_REQUEST_FAILED, .id = id, .error = &error });
}

/* By a transaction that holds only if the round still is the job's. */
static int publish_master(struct v3 *v, uint64_t id, const struct mu_fold_master *master)
{
    struct mu_etcd3_compare compare = { .target = MU_ETCD3_MOD, .number = mu_fold_doc_mod(v->fold) };
    struct mu_etcd3_op put = { .kind = MU_ETCD3_OP_PUT, .lease = mu_fold_lease(v->fold) };
    struct order *order = calloc(1, sizeof *order);
    struct mu_buf value = { 0 };
    struct keys keys = { .count = 0 };

    if (order == NULL || mu_fold_master_write(master, &value) < 0) {
        free(order);
        return MUSTER_ENOMEM;
    }
    compare.key = whole_key(v, &keys, mu_slice_str("job/doc"));
    put.key = whole_key(v, &keys, mu_slice_str("job/master"));
    put.value = mu_buf_slice(&value);
    order->v = v;
    order->id = id;
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

/* Address and port are one key: the address waits for the port. */
static void perform_set(struct v3 *v, const struct mu_boot_effect *effect)
{
    const struct mu_fold_world *world = mu_fold_world(v->fold), *doc = mu_fold_doc(v->fold);
    const struct mu_server *agents = mu_boot_uv_agents_store(&v->boot);
    struct mu_fold_master master = { .world = world != NULL ? world->id : 0 };

    if (!is_about_port(effect->key)) {
        (void)snprintf(v->own_addr, sizeof v->own_addr, "%.*s", (int)effect->value.len, effect->value.data);
        mu_boot_uv_answer(&v->boot, (struct mu_boot_event){ .type = MU_BOOT_ON_SET, .id = effect->id });
        return;
    }
    if (world == NULL || doc == NULL || doc->id != world->id || mu_fold_lease(v->fold) == 0 || agents == NULL) {
        fail_set(v, effect->id, MUSTER_ERDZV_CONNECTION, "the round is not in etcd at the moment");
        return;
    }
    memcpy(master.addr, v->own_addr, sizeof master.addr);
    (void)snprintf(v->port_text, sizeof v->port_text, "%.*s", (int)effect->value.len, effect->value.data);
    master.port = (uint16_t)strtoul(v->port_text, NULL, 10);
    master.agents_port = mu_addr_port(mu_server_address(agents));
    if (publish_master(v, effect->id, &master) < 0) {
        fail_set(v, effect->id, MUSTER_ENOMEM, "a request to etcd");
        return;
    }
    v->master = master;
    v->has_master = true;
}

static void on_boot_request(void *ctx, const struct mu_boot_effect *effect)
{
    struct v3 *v = ctx;

    if (effect->type == MU_BOOT_DO_GET)
        perform_get(v, effect);
    else if (effect->type == MU_BOOT_DO_SET)
        perform_set(v, effect);
    else /* CHECK: only where PyTorch is a member */
        mu_boot_uv_answer(&v->boot, (struct mu_boot_event){ .type = MU_BOOT_ON_FOUND, .id = effect->id });
}

static void meet_agents(struct v3 *v)
{
    bool here = mu_fold_rank(v->fold) == 0 && mu_boot_uv_agents_store(&v->boot) != NULL;

    if (v->kv == NULL || !is_master_there(v))
        return;
    mu_kv_job_meet(v->kv, here ? "127.0.0.1" : v->master.addr, v->master.agents_port);
}

static void tell_waiting(struct v3 *v, int64_t round, int64_t count, const char *who)
{
    struct muster_node node = { .name = who, .pid = -1, .local_id = -1 };

    tell(v, (struct muster_rdzv_event){ .type = MUSTER_RDZV_WAITING,
                                        .round = round,
                                        .count = count,
                                        .nodes = who != NULL ? &node : NULL,
                                        .nodes_count = who != NULL ? 1 : 0 });
}

/* Until the owner has heard that it is in the round. */
static void keep_waiting(struct v3 *v, const struct mu_fold_effect *effect)
{
    v->waiting_count = effect->count;
    (void)snprintf(v->waiting_who, sizeof v->waiting_who, "%s", effect->who != NULL ? effect->who : "");
}

static void on_booted(void *ctx, const struct muster_store_info *bootstrap)
{
    struct v3 *v = ctx;
    int64_t waiting = v->waiting_count;

    v->bootstrap = *bootstrap;
    v->joining = false;
    v->waiting_count = 0;
    meet_agents(v);
    tell_joined(v);
    if (v->freeing)
        return;
    if (waiting > 0)
        tell_waiting(v, v->round, waiting, v->waiting_who[0] != '\0' ? v->waiting_who : NULL);
    if (v->closed_seen)
        tell(v, (struct muster_rdzv_event){ .type = MUSTER_RDZV_CLOSED, .round = v->round });
    v->closed_seen = false;
}

static void on_boot_failed(void *ctx, const struct muster_error *error)
{
    struct v3 *v = ctx;

    v->boot_failed = true;
    v->boot_error = *error;
    mu_asking_put(&v->asking, MU_FOLD_ON_LEAVE);
}

static const struct mu_boot_uv_ops boot_ops = { .on_done = on_booted,
                                                .on_failed = on_boot_failed,
                                                .request = on_boot_request };

static void start_boot(struct v3 *v)
{
    const struct mu_fold_world *world = mu_fold_world(v->fold);
    char own_addr[MU_ADDR_TEXT_MAX] = "", rank0[MU_NODE_TEXT_MAX];
    struct mu_boot_start start = {
        .round = world->round,
        .rank = mu_fold_rank(v->fold),
        .all_ours = true,
        .rank0_ours = true,
        .rank0 = mu_slice_str(mu_node_text(&world->members[0].node, rank0)),
        .own_addr = own_addr,
    };

    for (size_t i = 0; i < world->count; i++)
        start.elsewhere |= !mu_slice_equal(world->members[i].node.name, mu_slice_str(v->name));
    if (!mu_http_local_address(mu_etcd3_http(v->etcd), own_addr, sizeof own_addr))
        own_addr[0] = '\0';
    mu_boot_uv_start(&v->boot, &start);
}

static void stop_boot(struct v3 *v)
{
    if (!mu_boot_uv_is_on(&v->boot))
        return;
    v->waiting_count = 0;
    v->get_id = 0;
    mu_boot_uv_stop(&v->boot);
}

/* ---- What the fold machine tells ---- */

/* What has failed for the owner: a round that was not told yet belongs to the join. */
static enum muster_rdzv_request request_of(const struct v3 *v, enum mu_fold_event_type asked)
{
    if (asked == MU_FOLD_ON_LEAVE)
        return MUSTER_RDZV_REQUEST_LEAVE;
    if (asked == MU_FOLD_ON_CLOSE)
        return MUSTER_RDZV_REQUEST_CLOSE;
    return asked == MU_FOLD_ON_JOIN || v->joining ? MUSTER_RDZV_REQUEST_JOIN : MUSTER_RDZV_REQUEST_MEMBERSHIP;
}

/* The round ended before the owner was told that it began. */
static void join_next_instead(struct v3 *v)
{
    struct muster_error error;

    stop_boot(v);
    if (mu_asking_has(&v->asking, MU_FOLD_ON_LEAVE))
        return; /* the owner does not want it any more */
    if (uv_now(v->loop) < v->join_deadline_ms) {
        mu_asking_put(&v->asking, MU_FOLD_ON_JOIN);
        return;
    }
    (void)mu_fail(&error, MUSTER_ERDZV_TIMEOUT, "every round within %" PRIu64 " s lost a member before it could begin",
                  v->settings.join_ms / 1000);
    on_boot_failed(v, &error);
}

/* PEERS_LOST or REMOVED. Until the next round is joined, more of them may come of one that the owner was never told of, or
 * that it has left itself by joining the next: it does not hear of these. */
static bool ends_for_owner(struct v3 *v)
{
    if (mu_boot_uv_is_on(&v->boot))
        join_next_instead(v);
    else if (!v->joining)
        return true;
    return false;
}

static void join_if_wanted(struct v3 *v)
{
    if (!v->join_after_leave || v->freeing)
        return;
    v->join_after_leave = false;
    mu_asking_put(&v->asking, MU_FOLD_ON_JOIN);
}

static void on_failed(struct v3 *v, const struct mu_fold_effect *effect)
{
    enum mu_fold_event_type asked = effect->asked;
    enum muster_rdzv_request request = request_of(v, asked);
    struct muster_error error = *effect->error;

    if (asked != MU_FOLD_ON_CLOSE)
        v->joining = false;
    if (asked == MU_FOLD_ON_TIME) {
        v->boot_failed = false; /* that is told once */
        stop_boot(v);
    }
    if (!muster_error_is_rdzv(error.code))
        error.code = MUSTER_ERDZV_CONNECTION;
    tell_failed(v, request, &error);
}

static void on_left(struct v3 *v)
{
    if (v->boot_failed) {
        v->boot_failed = v->joining = false;
        tell_failed(v, MUSTER_RDZV_REQUEST_JOIN, &v->boot_error);
        return;
    }
    record(v, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_LEFT });
    tell(v, (struct muster_rdzv_event){ .type = MUSTER_RDZV_LEFT, .round = v->round });
    join_if_wanted(v);
}

static void on_looked(struct v3 *v, const struct mu_fold_effect *effect)
{
    struct muster_error error = { 0 };

    if (effect->error != NULL) {
        error = *effect->error;
        (void)mu_wrap(&error, error.code, "look at rendezvous '%s'", v->run_id);
    }
    tell(v, (struct muster_rdzv_event){ .type = MUSTER_RDZV_LOOKED,
                                        .round = effect->round,
                                        .closed = effect->closed,
                                        .count = effect->count,
                                        .request = MUSTER_RDZV_REQUEST_LOOK,
                                        .error = error.code != 0 ? &error : NULL });
}

static void on_tell(struct v3 *v, const struct mu_fold_effect *effect)
{
    switch (effect->tell) {
    case MU_FOLD_TELL_JOINED:
        start_boot(v);
        break;
    case MU_FOLD_TELL_WAITING:
        if (mu_boot_uv_is_on(&v->boot))
            keep_waiting(v, effect);
        else if (!v->joining)
            tell_waiting(v, effect->round, effect->count, effect->who);
        break;
    case MU_FOLD_TELL_LOST:
        if (ends_for_owner(v) && mu_fold_world(v->fold) != NULL)
            tell_lost(v, effect->round);
        break;
    case MU_FOLD_TELL_REMOVED:
        if (ends_for_owner(v))
            tell(v, (struct muster_rdzv_event){ .type = MUSTER_RDZV_REMOVED, .round = effect->round });
        break;
    case MU_FOLD_TELL_CLOSED:
        if (effect->asked == MU_FOLD_ON_CLOSE)
            record(v, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_CLOSED });
        if (mu_boot_uv_is_on(&v->boot))
            v->closed_seen = true;
        else
            tell(v, (struct muster_rdzv_event){ .type = MUSTER_RDZV_CLOSED, .round = v->round });
        break;
    case MU_FOLD_TELL_LEFT:
        on_left(v);
        break;
    case MU_FOLD_TELL_FAILED:
        on_failed(v, effect);
        break;
    case MU_FOLD_TELL_LOOKED:
        on_looked(v, effect);
        break;
    case MU_FOLD_TELL_BACKEND_DOWN:
        tell_down(v, effect->error);
        break;
    case MU_FOLD_TELL_BACKEND_UP:
        tell(v, (struct muster_rdzv_event){ .type = MUSTER_RDZV_BACKEND_UP, .round = v->round });
        break;
    case MU_FOLD_TELL_FOREIGN:
        mu_log(MUSTER_LOG_WARNING, "rendezvous '%s': %s", v->run_id, effect->error->text);
        break;
    case MU_FOLD_TELL_PROGRESS:
        tell_progress(v);
        break;
    case MU_FOLD_TELL_COMPLETED:
        record(v, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_MARKS_COMPLETE, .round = effect->round });
        record(v, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_SYNCED });
        break;
    case MU_FOLD_TELL_LEADER:
        mu_log(MUSTER_LOG_DEBUG, "rendezvous '%s': this node writes the job's document now", v->run_id);
        break;
    }
}

/* ---- The loop ---- */

static void perform(struct v3 *v, const struct mu_fold_effect *effect)
{
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

static void step(struct v3 *v, struct mu_fold_event *event)
{
    struct mu_fold_effects effects;

    event->now_ms = uv_now(v->loop);
    mu_fold_step(v->fold, event, &effects);
    mu_rdzv_trace_phase(&v->phases, v->run_id, mu_fold_phase_text(mu_fold_phase(v->fold)), event->now_ms);
    for (unsigned i = 0; i < effects.count; i++) /* requests first: tells may lead to a next step */
        perform(v, &effects.items[i]);
    for (unsigned i = 0; i < effects.count && !v->freeing; i++)
        if (effects.items[i].type == MU_FOLD_DO_TELL)
            on_tell(v, &effects.items[i]);
}

static void feed(struct v3 *v, struct mu_fold_event event)
{
    if (v->freeing)
        return;
    step(v, &event);
    while (v->later_count > 0 && !v->freeing) {
        struct muster_error error = v->later[0].error;
        struct mu_fold_event next = v->later[0].event;

        v->later_count--;
        memmove(v->later, v->later + 1, v->later_count * sizeof v->later[0]);
        if (error.code != 0)
            next.error = &error;
        step(v, &next);
    }
    arm(v);
}

static void on_timer(uv_timer_t *timer)
{
    struct v3 *v = timer->data;

    answer_get(v);
    feed(v, (struct mu_fold_event){ .type = MU_FOLD_ON_TIME });
}

/* Always derived anew, so never forgotten. */
static void arm(struct v3 *v)
{
    uint64_t when_ms = mu_fold_deadline_ms(v->fold), now_ms = uv_now(v->loop);

    if (v->freeing)
        return;
    if (v->get_id != 0 && v->get_until_ms < when_ms)
        when_ms = v->get_until_ms;
    if (when_ms == UINT64_MAX)
        (void)uv_timer_stop(&v->timer);
    else
        (void)uv_timer_start(&v->timer, on_timer, when_ms > now_ms ? when_ms - now_ms : 0, 0);
}

static void carry_out(struct v3 *v, enum mu_fold_event_type what)
{
    if (what == MU_FOLD_ON_JOIN)
        record(v, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_ATTEMPTS });
    feed(v, (struct mu_fold_event){ .type = what });
}

static void on_ask(void *ctx, unsigned what)
{
    struct v3 *v = ctx;

    if (what == MU_FOLD_ON_LEAVE)
        stop_boot(v);
    if (what == MU_FOLD_ON_JOIN && !v->joining)
        return; /* it has failed since, and its owner knows */
    if (what == MU_FOLD_ON_JOIN && mu_fold_phase(v->fold) == MU_FOLD_LEAVING)
        v->join_after_leave = true;
    else
        carry_out(v, (enum mu_fold_event_type)what);
}

/* ---- The handler ---- */

static void v3_join(struct muster_handler *handler)
{
    struct v3 *v = (struct v3 *)handler;

    assert(!v->joining);
    v->joining = true;
    v->join_deadline_ms = uv_now(v->loop) + v->settings.join_ms;
    mu_asking_put(&v->asking, MU_FOLD_ON_JOIN);
}

static void v3_leave(struct muster_handler *handler)
{
    struct v3 *v = (struct v3 *)handler;

    v->joining = v->join_after_leave = v->boot_failed = false;
    mu_asking_put(&v->asking, MU_FOLD_ON_LEAVE);
}

static void v3_close(struct muster_handler *handler)
{
    mu_asking_put(&((struct v3 *)handler)->asking, MU_FOLD_ON_CLOSE);
}

static void v3_look(struct muster_handler *handler)
{
    mu_asking_put(&((struct v3 *)handler)->asking, MU_FOLD_ON_LOOK);
}

static bool v3_use_agent_store(const struct muster_handler *handler)
{
    return ((const struct v3 *)handler)->use_agent_store;
}

static bool v3_endpoint(const struct muster_handler *handler, char *ret_host, size_t room, uint16_t *ret_port)
{
    const struct v3 *v = (const struct v3 *)handler;

    if (!is_master_there(v))
        return false;
    (void)snprintf(ret_host, room, "%s", v->master.addr);
    *ret_port = v->master.agents_port;
    return true;
}

static bool v3_hosts(const struct muster_handler *handler)
{
    const struct v3 *v = (const struct v3 *)handler;

    return mu_fold_rank(v->fold) == 0 && mu_boot_uv_agents_store(&v->boot) != NULL;
}

static void v3_when_alone(struct muster_handler *handler, void (*alone)(void *ctx), void *ctx)
{
    struct v3 *v = (struct v3 *)handler;

    if (mu_boot_uv_agents_store(&v->boot) != NULL)
        mu_server_when_alone(mu_boot_uv_agents_store(&v->boot), alone, ctx);
}

static void on_handle_closed(uv_handle_t *handle)
{
    handle_gone(handle->data);
}

static void v3_free(struct muster_handler *handler, void (*done)(void *ctx), void *ctx)
{
    struct v3 *v = (struct v3 *)handler;

    assert(!v->freeing);
    v->freeing = true;
    v->on_freed = done;
    v->freed_ctx = ctx;
    if (v->kv != NULL)
        mu_kv_job_detach(v->kv); /* and it is not heard of again */
    v->kv = NULL;
    close_watch(v, MU_FOLD_JOB);
    close_watch(v, MU_FOLD_NODES);
    if (v->lease != NULL) {
        v->handles++;
        mu_etcd3_lease_close(v->lease, true, REVOKE_MS, handle_gone, v);
        v->lease = NULL;
    }
    v->handles += 3;
    mu_boot_uv_close(&v->boot, handle_gone);
    uv_close((uv_handle_t *)&v->timer, on_handle_closed);
    mu_asking_close(&v->asking, handle_gone);
}

static const struct muster_handler_ops v3_ops = {
    .size = sizeof v3_ops,
    .name = "etcd-v3",
    .join = v3_join,
    .leave = v3_leave,
    .close = v3_close,
    .look = v3_look,
    .use_agent_store = v3_use_agent_store,
    .free = v3_free,
    .endpoint = v3_endpoint,
    .hosts = v3_hosts,
    .when_alone = v3_when_alone,
};

/* ---- The store of agents ---- */

static int64_t job_lease(void *ctx)
{
    return mu_fold_job_lease(((struct v3 *)ctx)->fold);
}

static void on_kv_closing(void *ctx)
{
    ((struct v3 *)ctx)->kv = NULL;
}

static int open_kv(struct muster_handler *handler, struct mu_kv **ret_kv, struct muster_error *reterr)
{
    struct v3 *v = (struct v3 *)handler;
    char prefix[PREFIX_MAX + 8], marks[PREFIX_MAX + 8];
    struct mu_kv_job_config config = { .run_id = v->run_id,
                                       .prefix = prefix,
                                       .marks = marks,
                                       .etcd = v->etcd,
                                       .lease = job_lease,
                                       .on_closing = on_kv_closing,
                                       .ctx = v };
    int rc;

    assert(v->kv == NULL);
    (void)snprintf(prefix, sizeof prefix, "%sjob/kv/", v->prefix);
    (void)snprintf(marks, sizeof marks, "%sdone/", v->prefix);
    rc = mu_kv_job_start(v->loop, &config, &v->kv, reterr);
    if (rc < 0)
        return rc;
    meet_agents(v);
    *ret_kv = v->kv;
    return 0;
}

static const struct mu_handler_ops agent_ops = { .open_kv = open_kv };

/* ---- Parameters ---- */

/* Run ids may hold anything; a slash in one would make it part of another's keys. */
static void make_prefix(struct v3 *v)
{
    char *to = v->prefix + snprintf(v->prefix, sizeof v->prefix, "/muster/");

    for (const char *at = v->run_id; *at != '\0'; at++) {
        if (*at == '/' || *at == '%')
            to += snprintf(to, 4, "%%%02X", (unsigned)(unsigned char)*at);
        else
            *to++ = *at;
    }
    *to++ = '/';
    *to = '\0';
}

static const char *text_option(const struct muster_rdzv_params *params, const char *key)
{
    struct muster_value value;

    return muster_rdzv_params_get(params, key, &value) && value.kind == MUSTER_VALUE_TEXT && value.text[0] != '\0'
               ? value.text
               : NULL;
}

static int start_client(struct v3 *v, const struct muster_rdzv_params *params, struct muster_error *reterr)
{
    struct mu_etcd3_config config = {
        .http = { .endpoints = muster_rdzv_params_endpoint(params),
                  .protocol = text_option(params, "protocol"),
                  .ca_file = text_option(params, "cacert"),
                  .cert_file = text_option(params, "cert"),
                  .key_file = text_option(params, "key") },
        .user = text_option(params, "user"),
        .password = text_option(params, "password"),
        .token = text_option(params, "token"),
    };

    if (config.http.endpoints == NULL || config.http.endpoints[0] == '\0')
        config.http.endpoints = "localhost:2379";
    if ((config.user == NULL) != (config.password == NULL))
        return mu_fail(reterr, MUSTER_EINVAL, "options 'user' and 'password' go together");
    if (getrandom(&config.http.seed, sizeof config.http.seed, 0) < 0)
        return mu_fail(reterr, MUSTER_ESYSTEM, "no random numbers");
    return mu_etcd3_start(v->loop, &config, &v->etcd, reterr);
}

static int read_params(struct v3 *v, const struct muster_rdzv_params *params, uint64_t *ret_first_s,
                       struct muster_error *reterr)
{
    int rc = mu_rdzv_check_options("etcd-v3", params, reterr);
    int64_t job_lease_s = JOB_LEASE_S;

    if (rc == 0)
        rc = mu_rdzv_settings_from_params(params, &v->settings, reterr);
    if (rc == 0)
        rc = mu_rdzv_settings_check(muster_rdzv_params_run_id(params), &v->settings, reterr);
    if (rc == 0)
        rc = mu_dynamic_check_name(muster_rdzv_params_local_addr(params), reterr);
    if (rc == 0)
        rc = muster_rdzv_params_get_as_bool(params, "use_agent_store", true, &v->use_agent_store, reterr);
    if (rc == 0)
        rc = mu_rdzv_seconds_from_params(params, "lease", LEASE_S, LEASE_MIN_S, LEASE_MAX_S, &v->lease_s, reterr);
    if (rc == 0 && job_lease_s < (int64_t)v->lease_s * 4)
        job_lease_s = (int64_t)v->lease_s * 4 < LEASE_MAX_S ? (int64_t)v->lease_s * 4 : LEASE_MAX_S;
    if (rc == 0)
        rc = mu_rdzv_seconds_from_params(params, "job_lease", job_lease_s, (int64_t)v->lease_s, LEASE_MAX_S,
                                         &v->job_lease_s, reterr);
    if (rc == 0)
        rc = mu_rdzv_seconds_from_params(params, "read_timeout", READ_TIMEOUT_S, 1, LEASE_MAX_S, ret_first_s, reterr);
    if (rc < 0)
        return rc;
    v->request_ms = v->lease_s * 1000 / 3;
    if (v->request_ms < REQUEST_MIN_MS)
        v->request_ms = REQUEST_MIN_MS;
    if (v->request_ms > REQUEST_MAX_MS)
        v->request_ms = REQUEST_MAX_MS;
    return 0;
}

static int copy_texts(struct v3 *v, const struct muster_rdzv_params *params, struct muster_error *reterr)
{
    const char *local_addr = muster_rdzv_params_local_addr(params);
    char hostname[MU_HANDLER_NAME_MAX];

    v->run_id = strdup(muster_rdzv_params_run_id(params));
    v->name = strdup(mu_handler_node_name(local_addr, hostname));
    v->local_addr = local_addr != NULL ? strdup(local_addr) : NULL;
    if (v->run_id == NULL || v->name == NULL || (local_addr != NULL && v->local_addr == NULL))
        return mu_fail(reterr, MUSTER_ENOMEM, "a rendezvous");
    make_prefix(v);
    return 0;
}

static int start_machines(struct v3 *v, struct mu_bind bind, const struct mu_boot_master *master, uint64_t first_s,
                          struct muster_error *reterr)
{
    uint64_t random[3] = { 0 };
    struct mu_boot_config boot = {
        .run_id = v->run_id,
        .local_addr = v->local_addr,
        .bind = bind,
        .master = *master,
        .use_agent_store = v->use_agent_store,
        .standalone = v->settings.nodes_max == 1,
    };
    struct mu_fold_config fold = {
        .settings = v->settings,
        .name = v->name,
        .pid = getpid(),
        .lease_ms = v->lease_s * 1000,
        .job_lease_ms = v->job_lease_s * 1000,
        .first_ms = first_s * 1000,
    };
    int rc;

    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return mu_fail(reterr, MUSTER_ESYSTEM, "no random numbers");
    v->pid = fold.pid;
    v->local_id = fold.local_id = mu_node_local_id(MU_NODE_VERSION, (uint32_t)random[0]);
    fold.id = random[1] != 0 ? random[1] : 1;
    fold.seed = random[2];
    rc = mu_boot_uv_init(&v->boot, &boot, reterr);
    return rc == 0 ? mu_fold_new(&fold, &v->fold, reterr) : rc;
}

int mu_etcd_v3_start(struct uv_loop_s *loop, const struct muster_rdzv_params *params, muster_rdzv_listener *listener,
                     void *ctx, struct muster_handler **ret_handler, struct muster_error *reterr)
{
    struct v3 *v = calloc(1, sizeof *v);
    struct mu_bind bind = { 0 };
    struct mu_boot_master master = { .port = 0 };
    uint64_t first_s = 0;
    int rc;

    if (v == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "a rendezvous");
    v->handler = (struct mu_handler){ { &v3_ops }, &agent_ops };
    v->loop = loop;
    v->listener = listener;
    v->ctx = ctx;
    v->round = -1;
    v->patience = 1;
    rc = read_params(v, params, &first_s, reterr);
    if (rc == 0)
        rc = copy_texts(v, params, reterr);
    if (rc == 0)
        rc = mu_bind_from_params(params, &bind, reterr);
    if (rc == 0)
        rc = mu_boot_master_from_params(params, &master, reterr);
    if (rc == 0)
        rc = start_machines(v, bind, &master, first_s, reterr);
    if (rc == 0)
        rc = start_client(v, params, reterr);
    if (rc < 0) {
        destroy(v);
        return mu_wrap(reterr, rc, "rendezvous etcd-v3");
    }
    (void)uv_timer_init(loop, &v->timer); /* these only fill in memory */
    v->timer.data = v;
    mu_asking_open(&v->asking, loop, on_ask, v);
    mu_boot_uv_open(&v->boot, loop, &(struct mu_boot_uv_config){ .agents_store = true, .ops = &boot_ops, .ctx = v });
    *ret_handler = &v->handler.base;
    return 0;
}

int mu_rdzv_etcd_v3_create(void *ctx, const struct muster_rdzv_params *params, struct muster_rdzv **ret_rdzv,
                           struct muster_error *reterr)
{
    (void)ctx;
    return mu_rdzv_blocking_new(mu_etcd_v3_start, params, ret_rdzv, reterr);
}
