/* The classic etcd rendezvous on a loop: performs what its two pure machines want (rdzv/classic.h: phases, leases, members;
 * boot.h: where the workers meet) and tells the owner what comes of it.
 *
 * Happy path: join -> the machine reads, writes and watches etcd's keys until it tells JOINED -> the boot machine publishes an
 * address and a free port in the round's store, or reads them there -> the owner is told JOINED. If the round ends before
 * that, nobody has been told of it, and the next one is joined instead. A failure of the boot leaves the round and is told as
 * FAILED. Requests that etcd does not answer are the machines' business: every one is answered, with an error if need be. */
#include "handler/asking_uv.h"
#include "handler/boot_uv.h"
#include "handler/etcd_params.h"
#include "handler/rdzv_trace.h"
#include "kv/etcd_store_uv.h"
#include "rdzv/classic.h"
#include "store/net.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

#define REFUSED_MAX MU_CLASSIC_EFFECTS_MAX
#define NAME_MAX_BYTES 256

struct etcd {
    struct mu_handler handler;
    uv_loop_t *loop;
    muster_rdzv_listener *listener;
    void *ctx;
    struct muster_rdzv_params *params; /* its texts are the place's */
    struct mu_etcd_place place;
    char name[NAME_MAX_BYTES], node[MU_CLASSIC_NODE_MAX];
    int64_t local_id;
    uint64_t seed;
    struct mu_classic *classic;
    struct mu_boot_uv boot; /* while it is on we have joined, but the owner does not know yet */
    struct mu_etcd2 *etcd;
    struct mu_kv *kv;
    uv_timer_t timer;
    struct mu_asking asking; /* enum mu_classic_event_type */
    struct mu_list orders;
    uint64_t refused[REFUSED_MAX]; /* requests that found no memory: answered when the step is over */
    size_t refused_count;
    bool joining;     /* the owner waits for JOINED */
    bool join_again;  /* the round ended meanwhile */
    bool boot_failed; /* leaving because of that */
    uint64_t join_deadline_ms;
    struct muster_error boot_error;
    int64_t waiting_count; /* told while booting; 0: not told */
    bool closed_seen;
    int64_t round;
    struct mu_rdzv_trace_phases phases;
    struct muster_store_info bootstrap;
    /* The end. */
    size_t handles; /* still to be closed */
    bool freeing;
    void (*on_freed)(void *ctx);
    void *freed_ctx;
};

/* A request to etcd, of the rendezvous machine. */
struct order {
    struct mu_etcd2_call call;
    struct etcd *e;
    struct mu_list link;
    uint64_t id;
    struct mu_buf key, value, prev;
};

static void feed(struct etcd *e, struct mu_classic_event event);
static void ask(struct etcd *e, enum mu_classic_event_type what);
static void arm(struct etcd *e);

static struct etcd *of(struct muster_handler *handler)
{
    return (struct etcd *)handler;
}

/* ---- Telling ---- */

static void tell(struct etcd *e, struct muster_rdzv_event event)
{
    const struct muster_node self = { e->name, getpid(), e->local_id };

    if (e->freeing)
        return;
    event.size = sizeof event;
    event.self = &self;
    e->listener(e->ctx, &event);
}

static void record(struct etcd *e, struct mu_rdzv_trace story)
{
    mu_rdzv_trace_tell(&(struct mu_teller){ e->place.run_id, { mu_slice_str(e->name), getpid(), e->local_id } }, story);
}

static void tell_failed(struct etcd *e, enum muster_rdzv_request request, const struct muster_error *error)
{
    struct muster_error told = *error;

    (void)mu_wrap(&told, told.code, "%s rendezvous '%s'", mu_handler_request_text(request), e->place.run_id);
    if (request == MUSTER_RDZV_REQUEST_JOIN) /* what a close was for is known to the one that asked for it */
        record(e, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_JOIN_FAILED, .error = &told });
    tell(e, (struct muster_rdzv_event){
                .type = MUSTER_RDZV_FAILED, .round = e->round, .request = request, .error = &told });
}

struct shown { /* a node, with room for its name */
    struct muster_node node;
    char name[NAME_MAX_BYTES];
};

/* "NAME_PID_LOCAL-ID", from behind. */
static bool parse_mark(const char *mark, struct shown *shown)
{
    const char *id = strrchr(mark, '_'), *pid;
    size_t len;

    if (id == NULL || id == mark)
        return false;
    for (pid = id - 1; pid > mark && *pid != '_'; pid--)
        continue;
    len = (size_t)(pid - mark);
    if (pid == mark || len >= sizeof shown->name)
        return false;
    memcpy(shown->name, mark, len);
    shown->name[len] = '\0';
    shown->node.pid = strtoll(pid + 1, NULL, 10);
    shown->node.local_id = strtoll(id + 1, NULL, 10);
    return true;
}

static void show(const struct mu_classic_world *world, size_t rank, struct shown *shown)
{
    if (world->marks[rank] == NULL || !parse_mark(world->marks[rank], shown)) {
        (void)snprintf(shown->name, sizeof shown->name, "PyTorch's rank %zu", rank);
        shown->node.pid = shown->node.local_id = -1;
    }
}

/* With the nodes of those ranks; ranks NULL: all of them. */
static void tell_nodes(struct etcd *e, struct muster_rdzv_event event, const size_t *ranks, size_t count)
{
    const struct mu_classic_world *world = mu_classic_world(e->classic);
    struct shown *shown = calloc(count + 1, sizeof *shown);
    struct muster_node *nodes = calloc(count + 1, sizeof *nodes);

    for (size_t i = 0; shown != NULL && nodes != NULL && i < count; i++) {
        show(world, ranks != NULL ? ranks[i] : i, &shown[i]);
        nodes[i] = shown[i].node;
        nodes[i].name = shown[i].name;
    }
    event.nodes = nodes;
    event.nodes_count = shown != NULL && nodes != NULL ? count : 0;
    tell(e, event);
    free(shown);
    free(nodes);
}

static bool is_old_dialect(const struct etcd *e)
{
    return e->place.old_dialect && !mu_classic_world(e->classic)->all_ours;
}

static void tell_joined(struct etcd *e)
{
    const struct mu_classic_world *world = mu_classic_world(e->classic);
    struct muster_rdzv_info info = {
        .rank = world->rank, .world_size = (int64_t)world->count, .round = world->version, .bootstrap = e->bootstrap
    };

    e->round = world->version;
    record(e,
           (struct mu_rdzv_trace){
               .kind = MU_RDZV_TRACE_JOINED, .round = info.round, .rank = info.rank, .world_size = info.world_size });
    tell_nodes(
        e,
        (struct muster_rdzv_event){
            .type = MUSTER_RDZV_JOINED, .round = world->version, .info = &info, .old_dialect = is_old_dialect(e) },
        NULL, world->count);
}

static void tell_progress(struct etcd *e)
{
    struct mu_classic_progress seen = mu_classic_progress(e->classic);
    struct muster_node nodes[MU_WAITERS_NAMES_MAX];
    char note[MU_WAITERS_NOTE_MAX];
    uint64_t now_ms = uv_now(e->loop);
    struct muster_rdzv_progress progress = {
        .joined = (int64_t)seen.joined,
        .waiting = seen.waiting,
        .min_nodes = e->place.nodes_min,
        .max_nodes = e->place.nodes_max,
        .last_call_left_ms = -1,
        .join_left_ms = seen.deadline_ms > now_ms ? (int64_t)(seen.deadline_ms - now_ms) : 0,
    };

    assert(seen.nodes_count <= MU_WAITERS_NAMES_MAX);
    for (size_t i = 0; i < seen.nodes_count; i++)
        nodes[i] = (struct muster_node){ seen.nodes[i].name.data, seen.nodes[i].pid, seen.nodes[i].local_id };
    if (seen.last_call)
        progress.last_call_left_ms = seen.last_call_until_ms > now_ms ? (int64_t)(seen.last_call_until_ms - now_ms) : 0;
    tell(e, (struct muster_rdzv_event){ .type = MUSTER_RDZV_PROGRESS,
                                        .round = -1,
                                        .progress = &progress,
                                        .nodes = nodes,
                                        .nodes_count = seen.nodes_count,
                                        .note = mu_waiters_note(mu_classic_crowd(e->classic), note) });
}

/* ---- Requests to etcd ---- */

static void free_order(struct order *order)
{
    mu_list_remove(&order->link);
    mu_etcd2_answer_done(&order->call.answer);
    mu_buf_done(&order->key);
    mu_buf_done(&order->value);
    mu_buf_done(&order->prev);
    free(order);
}

/* What is in the directory that was read. */
static struct mu_classic_node *children(const struct mu_etcd2_answer *answer, size_t *ret_count)
{
    struct mu_classic_node *nodes = calloc(answer->nodes_count + 1, sizeof *nodes);

    *ret_count = 0;
    for (size_t i = 1; nodes != NULL && i < answer->nodes_count; i++) {
        if (answer->nodes[i].depth == 1)
            nodes[(*ret_count)++] = (struct mu_classic_node){ answer->nodes[i].key, answer->nodes[i].value };
    }
    return nodes;
}

static void answer(struct etcd *e, uint64_t id, const struct mu_etcd2_call *call)
{
    const struct mu_etcd2_answer *got = &call->answer;
    struct mu_classic_event event = { .type = MU_CLASSIC_ON_ANSWER, .id = id, .index = got->index };
    struct muster_error no_memory;
    struct mu_classic_node *nodes = NULL;

    if (call->rc < 0) {
        event.code = call->rc;
        event.unsure = call->unsure;
        event.error = &call->error;
    } else if (got->code != 0) {
        event.code = got->code;
        event.error = &call->error;
    } else if (got->nodes_count > 0) {
        event.value = got->nodes[0].value;
        event.key = got->nodes[0].key;
        event.modified = got->nodes[0].modified;
        nodes = children(got, &event.nodes_count);
        event.nodes = nodes;
        if (nodes == NULL) {
            event.code = mu_fail(&no_memory, MUSTER_ENOMEM, "no memory for an answer of etcd's");
            event.unsure = call->request.kind != MU_ETCD2_GET && call->request.kind != MU_ETCD2_WATCH;
            event.error = &no_memory;
        }
    }
    feed(e, event);
    free(nodes);
}

static void on_called(struct mu_etcd2_call *call)
{
    struct order *order = call->ctx;

    if (!order->e->freeing)
        answer(order->e, order->id, call);
    free_order(order);
}

static enum mu_etcd2_kind kind_of(enum mu_classic_kind kind)
{
    switch (kind) {
    case MU_CLASSIC_GET:
        return MU_ETCD2_GET;
    case MU_CLASSIC_PUT:
        return MU_ETCD2_PUT;
    case MU_CLASSIC_DELETE:
        return MU_ETCD2_DELETE;
    case MU_CLASSIC_WATCH:
        break;
    }
    return MU_ETCD2_WATCH;
}

static struct order *new_order(struct etcd *e, const struct mu_classic_request *from)
{
    struct order *order = calloc(1, sizeof *order);

    if (order == NULL)
        return NULL;
    order->e = e;
    order->id = from->id;
    mu_list_push(&e->orders, &order->link);
    if (mu_buf_append(&order->key, from->key.data, from->key.len, SIZE_MAX) == 0 &&
        mu_buf_append(&order->value, from->value.data, from->value.len, SIZE_MAX) == 0 &&
        mu_buf_append(&order->prev, from->prev_value.data, from->prev_value.len, SIZE_MAX) == 0)
        return order;
    free_order(order);
    return NULL;
}

static void on_connection_ended(struct mu_http_request *http, const struct muster_error *error)
{
    (void)error;
    mu_etcd2_cancel(http->ctx);
}

static void request(struct etcd *e, const struct mu_classic_request *from)
{
    struct order *order = new_order(e, from);

    if (order == NULL) {
        assert(e->refused_count < REFUSED_MAX);
        e->refused[e->refused_count++] = from->id;
        return;
    }
    order->call = (struct mu_etcd2_call){
        .request = { .kind = kind_of(from->kind),
                     .key = mu_buf_slice(&order->key),
                     .recursive = from->recursive,
                     .quorum = from->kind == MU_CLASSIC_GET,
                     .dir = from->dir,
                     .refresh = from->refresh,
                     .has_value = from->has_value,
                     .value = from->value.len > 0 ? mu_buf_slice(&order->value) : mu_slice_str(""),
                     .ttl_s = from->ttl_s,
                     .prev_exist = from->must_exist       ? MU_ETCD2_MUST
                                   : from->must_not_exist ? MU_ETCD2_MUST_NOT
                                                          : MU_ETCD2_ANY,
                     .prev_index = from->prev_index,
                     .has_prev_value = from->has_prev_value,
                     .prev_value = mu_buf_slice(&order->prev),
                     .wait_index = from->wait_index },
        .timeout_ms = from->timeout_ms > 0 ? from->timeout_ms : 1,
        .done = on_called,
        .ctx = order,
    };
    mu_etcd2_call(e->etcd, &order->call);
    if (from->once)
        order->call.http.on_retry = on_connection_ended;
}

static void cancel(struct etcd *e, uint64_t id)
{
    for (struct mu_list *link = e->orders.next; link != &e->orders; link = link->next) {
        struct order *order = MU_LIST_ITEM(link, struct order, link);

        if (order->id == id) {
            order->id = 0; /* whatever comes is nobody's */
            mu_etcd2_cancel(&order->call);
            return;
        }
    }
}

/* ---- Where the workers meet ---- */

static void on_booted(void *ctx, const struct muster_store_info *bootstrap)
{
    struct etcd *e = ctx;
    int64_t waiting = e->waiting_count;

    e->bootstrap = *bootstrap;
    e->joining = false;
    e->waiting_count = 0;
    tell_joined(e);
    if (waiting > 0)
        tell(e, (struct muster_rdzv_event){ .type = MUSTER_RDZV_WAITING, .round = e->round, .count = waiting });
    if (e->closed_seen)
        tell(e, (struct muster_rdzv_event){ .type = MUSTER_RDZV_CLOSED, .round = e->round });
    e->closed_seen = false;
}

static void on_boot_failed(void *ctx, const struct muster_error *error)
{
    struct etcd *e = ctx;

    e->boot_failed = true;
    e->boot_error = *error;
    ask(e, MU_CLASSIC_ON_LEAVE);
}

static const struct mu_boot_uv_ops boot_ops = { .on_done = on_booted, .on_failed = on_boot_failed };

static void start_boot(struct etcd *e)
{
    const struct mu_classic_world *world = mu_classic_world(e->classic);
    bool old_dialect = is_old_dialect(e);
    char own_addr[MU_ADDR_TEXT_MAX] = "";
    struct shown rank0, other;
    struct mu_boot_start start = {
        .round = world->version,
        .rank = world->rank,
        .all_ours = world->all_ours,
        /* PyTorch's store of a version is new: it has no earlier pair to keep to. Only 1.13 publishes later. */
        .rank0_ours = !old_dialect || world->marks[0] != NULL,
        .old_dialect = old_dialect && world->marks[0] == NULL,
        .own_addr = own_addr,
    };

    show(world, 0, &rank0);
    start.rank0 = mu_slice_str(rank0.name);
    for (size_t i = 0; i < world->count; i++) {
        show(world, i, &other);
        start.elsewhere |= strcmp(other.name, e->name) != 0;
    }
    if (!mu_http_local_address(mu_etcd2_http(e->etcd), own_addr, sizeof own_addr))
        own_addr[0] = '\0';
    mu_boot_uv_start(&e->boot, &start);
}

static void stop_boot(struct etcd *e)
{
    if (!mu_boot_uv_is_on(&e->boot))
        return;
    e->waiting_count = 0;
    mu_boot_uv_stop(&e->boot);
}

/* ---- What the rendezvous machine tells ---- */

/* The round has ended. An owner that has not heard of it yet joins the next one instead, and hears nothing more of this. */
static void round_over(struct etcd *e, struct muster_rdzv_event event, const size_t *ranks, size_t count)
{
    if (!mu_boot_uv_is_on(&e->boot)) {
        if (!e->joining)
            tell_nodes(e, event, ranks, count);
        return;
    }
    stop_boot(e);
    if (mu_asking_has(&e->asking, MU_CLASSIC_ON_LEAVE))
        return; /* the owner does not want it any more */
    e->join_again = true;
    ask(e, MU_CLASSIC_ON_JOIN);
}

static void on_left(struct etcd *e)
{
    if (!e->boot_failed) {
        record(e, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_LEFT });
        tell(e, (struct muster_rdzv_event){ .type = MUSTER_RDZV_LEFT, .round = e->round });
        return;
    }
    e->boot_failed = e->joining = false;
    tell_failed(e, MUSTER_RDZV_REQUEST_JOIN, &e->boot_error);
}

/* Of those who have left no note for the agents. */
#define TEXT(number) #number
#define NO_KEEP_ALIVE(seconds) "no keep-alive for " TEXT(seconds) " s"
static const char lost_cause[] = NO_KEEP_ALIVE(MU_CLASSIC_RANK_TTL_S);

static void on_tell(struct etcd *e, const struct mu_classic_effect *effect)
{
    struct muster_rdzv_event event = { .round = effect->round, .error = effect->error, .count = effect->count };

    switch (effect->tell) {
    case MU_CLASSIC_TELL_JOINED:
        start_boot(e);
        break;
    case MU_CLASSIC_TELL_WAITING:
        event.type = MUSTER_RDZV_WAITING;
        if (mu_boot_uv_is_on(&e->boot))
            e->waiting_count = effect->count;
        else if (!e->joining)
            tell(e, event);
        break;
    case MU_CLASSIC_TELL_LOST:
        event.type = MUSTER_RDZV_PEERS_LOST;
        event.cause = lost_cause;
        round_over(e, event, effect->ranks, effect->ranks_count);
        break;
    case MU_CLASSIC_TELL_REMOVED:
        event.type = MUSTER_RDZV_REMOVED;
        round_over(e, event, NULL, 0);
        break;
    case MU_CLASSIC_TELL_CLOSED:
        event.type = MUSTER_RDZV_CLOSED;
        if (effect->asked == MU_CLASSIC_ON_CLOSE)
            record(e, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_CLOSED });
        if (mu_boot_uv_is_on(&e->boot))
            e->closed_seen = true;
        else
            tell(e, event);
        break;
    case MU_CLASSIC_TELL_LEFT:
        on_left(e);
        break;
    case MU_CLASSIC_TELL_FAILED:
        if (effect->asked == MU_CLASSIC_ON_JOIN)
            e->joining = false;
        tell_failed(e, effect->asked == MU_CLASSIC_ON_JOIN ? MUSTER_RDZV_REQUEST_JOIN : MUSTER_RDZV_REQUEST_CLOSE,
                    effect->error);
        break;
    case MU_CLASSIC_TELL_LOOKED:
        event.type = MUSTER_RDZV_LOOKED;
        event.request = MUSTER_RDZV_REQUEST_LOOK;
        event.closed = effect->closed;
        tell(e, event);
        break;
    case MU_CLASSIC_TELL_BACKEND_DOWN:
        event.type = MUSTER_RDZV_BACKEND_DOWN;
        if (effect->error != NULL)
            record(e, (struct mu_rdzv_trace){ .kind = mu_classic_world(e->classic)->version >= 0
                                                          ? MU_RDZV_TRACE_BEAT_FAILED
                                                          : MU_RDZV_TRACE_SYNC_FAILED,
                                              .error = effect->error });
        tell(e, event);
        break;
    case MU_CLASSIC_TELL_BACKEND_UP:
        event.type = MUSTER_RDZV_BACKEND_UP;
        tell(e, event);
        break;
    case MU_CLASSIC_TELL_FOREIGN:
        mu_log(MUSTER_LOG_WARNING, "rendezvous '%s': %s", e->place.run_id, effect->error->text);
        break;
    case MU_CLASSIC_TELL_PROGRESS:
        tell_progress(e);
        break;
    }
}

static void step(struct etcd *e, struct mu_classic_event event)
{
    struct mu_classic_effects effects;

    event.now_ms = uv_now(e->loop);
    mu_classic_step(e->classic, &event, &effects);
    mu_rdzv_trace_phase(&e->phases, e->place.run_id, mu_classic_state_text(mu_classic_state(e->classic)), event.now_ms);
    for (unsigned i = 0; i < effects.count && !e->freeing; i++) {
        const struct mu_classic_effect *effect = &effects.items[i];

        switch (effect->type) {
        case MU_CLASSIC_DO_REQUEST:
            request(e, &effect->request);
            break;
        case MU_CLASSIC_DO_CANCEL:
            cancel(e, effect->id);
            break;
        case MU_CLASSIC_DO_TELL:
            on_tell(e, effect);
            break;
        }
    }
}

static void feed(struct etcd *e, struct mu_classic_event event)
{
    static const struct muster_error no_memory = { .code = MUSTER_ENOMEM, .text = "no memory for a request to etcd" };

    step(e, event);
    while (e->refused_count > 0 && !e->freeing)
        step(e, (struct mu_classic_event){ .type = MU_CLASSIC_ON_ANSWER,
                                           .id = e->refused[--e->refused_count],
                                           .code = MUSTER_ENOMEM,
                                           .error = &no_memory });
    arm(e);
}

/* ---- Time ---- */

static void on_timer(uv_timer_t *timer)
{
    feed(timer->data, (struct mu_classic_event){ .type = MU_CLASSIC_ON_TIME });
}

static void arm(struct etcd *e)
{
    uint64_t now_ms = uv_now(e->loop), when_ms = mu_classic_deadline_ms(e->classic);

    if (e->freeing)
        return;
    if (when_ms == UINT64_MAX)
        (void)uv_timer_stop(&e->timer);
    else
        (void)uv_timer_start(&e->timer, on_timer, when_ms > now_ms ? when_ms - now_ms : 0, 0);
}

/* ---- Asking ---- */

static void fail_late_join(struct etcd *e)
{
    e->boot_failed = true;
    (void)mu_fail(&e->boot_error, MUSTER_ERDZV_TIMEOUT,
                  "timed out after %" PRIu64 " s: every group ended as it was formed", e->place.join_ms / 1000);
    feed(e, (struct mu_classic_event){ .type = MU_CLASSIC_ON_LEAVE });
}

static void do_join(struct etcd *e)
{
    bool again = e->join_again;

    e->join_again = false;
    if (e->joining && !again)
        return; /* it is under way */
    if (again && !e->joining)
        return; /* the owner has left meanwhile */
    if (again && uv_now(e->loop) >= e->join_deadline_ms) {
        fail_late_join(e);
        return;
    }
    if (!again)
        e->join_deadline_ms = uv_now(e->loop) + e->place.join_ms;
    e->joining = true;
    record(e, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_ATTEMPTS });
    feed(e, (struct mu_classic_event){ .type = MU_CLASSIC_ON_JOIN });
}

static void do_leave(struct etcd *e)
{
    stop_boot(e);
    e->joining = e->joining && e->boot_failed; /* then it is the handler's own leaving: the owner waits for an answer */
    e->join_again = false;
    feed(e, (struct mu_classic_event){ .type = MU_CLASSIC_ON_LEAVE });
}

static void on_ask(void *ctx, unsigned what)
{
    struct etcd *e = ctx;

    if (what == MU_CLASSIC_ON_JOIN)
        do_join(e);
    else if (what == MU_CLASSIC_ON_LEAVE)
        do_leave(e);
    else
        feed(e, (struct mu_classic_event){ .type = (enum mu_classic_event_type)what });
}

/* What is asked twice before it was begun is asked once. */
static void ask(struct etcd *e, enum mu_classic_event_type what)
{
    if (!mu_asking_ends_with(&e->asking, what))
        mu_asking_put(&e->asking, what);
}

static void ask_join(struct muster_handler *handler)
{
    ask(of(handler), MU_CLASSIC_ON_JOIN);
}

static void ask_leave(struct muster_handler *handler)
{
    of(handler)->boot_failed = false; /* it does not hear any more why it would not have joined */
    ask(of(handler), MU_CLASSIC_ON_LEAVE);
}

static void ask_close(struct muster_handler *handler)
{
    ask(of(handler), MU_CLASSIC_ON_CLOSE);
}

static void ask_look(struct muster_handler *handler)
{
    ask(of(handler), MU_CLASSIC_ON_LOOK);
}

static bool shares_store(const struct muster_handler *handler)
{
    (void)handler;
    return false;
}

/* ---- The end ---- */

static void destroy(struct etcd *e)
{
    mu_classic_free(e->classic);
    mu_boot_uv_done(&e->boot);
    muster_rdzv_params_free(e->params);
    free(e);
}

static void handle_gone(void *ctx)
{
    struct etcd *e = ctx;
    void (*on_freed)(void *ctx) = e->on_freed;
    void *freed_ctx = e->freed_ctx;

    assert(e->handles > 0);
    if (--e->handles > 0)
        return;
    destroy(e);
    on_freed(freed_ctx);
}

static void on_timer_closed(uv_handle_t *timer)
{
    handle_gone(timer->data);
}

static void on_kv_closed(struct mu_kv *kv, void *ctx)
{
    (void)kv;
    handle_gone(ctx);
}

static void free_handler(struct muster_handler *handler, void (*done)(void *ctx), void *ctx)
{
    struct etcd *e = of(handler);

    assert(!e->freeing);
    e->freeing = true;
    e->on_freed = done;
    e->freed_ctx = ctx;
    e->handles = 5;
    mu_boot_uv_close(&e->boot, handle_gone);
    uv_close((uv_handle_t *)&e->timer, on_timer_closed);
    mu_asking_close(&e->asking, handle_gone);
    e->kv->ops->close(e->kv, on_kv_closed, e);
    mu_etcd2_close(e->etcd, handle_gone, e);
}

static const struct muster_handler_ops etcd_ops = {
    .size = sizeof etcd_ops,
    .name = "etcd",
    .join = ask_join,
    .leave = ask_leave,
    .close = ask_close,
    .look = ask_look,
    .use_agent_store = shares_store,
    .free = free_handler,
};

/* ---- New ---- */

static struct mu_http_config http_config(const struct etcd *e)
{
    return (struct mu_http_config){
        .endpoints = e->place.endpoints,
        .protocol = e->place.protocol,
        .ca_file = e->place.cacert,
        .cert_file = e->place.cert,
        .key_file = e->place.key,
        .seed = e->seed,
    };
}

static int open_kv(struct muster_handler *handler, struct mu_kv **ret_kv, struct muster_error *reterr)
{
    struct etcd *e = of(handler);
    struct mu_http_config http = http_config(e);
    struct mu_kv_etcd_store_config config = {
        .http = &http, .root = mu_classic_root(e->classic), .run_id = e->place.run_id, .seed = e->seed
    };

    return mu_kv_etcd_store_start(e->loop, &config, ret_kv, reterr);
}

static const struct mu_handler_ops agent_ops = { .open_kv = open_kv };

static void name_node(struct etcd *e)
{
    const char *local_addr = muster_rdzv_params_local_addr(e->params);

    char hostname[MU_HANDLER_NAME_MAX];

    (void)snprintf(e->name, sizeof e->name, "%s", mu_handler_node_name(local_addr, hostname));
    e->local_id = mu_node_local_id(MU_NODE_VERSION, (uint32_t)e->seed);
    (void)snprintf(e->node, sizeof e->node, "%s_%ld_%" PRId64, e->name, (long)getpid(), e->local_id);
}

static int make_machines(struct etcd *e, struct muster_error *reterr)
{
    const struct mu_classic_config classic = {
        .prefix = e->place.prefix,
        .run_id = e->place.run_id,
        .nodes_min = e->place.nodes_min,
        .nodes_max = e->place.nodes_max,
        .join_ms = e->place.join_ms,
        .last_call_ms = e->place.last_call_ms,
        .close_ms = e->place.close_ms,
        .node = e->node,
        .name = e->name,
        .pid = getpid(),
        .local_id = e->local_id,
        .seed = e->seed,
    };
    struct mu_boot_config boot = { .run_id = e->place.run_id,
                                   .local_addr = muster_rdzv_params_local_addr(e->params),
                                   .hostname = e->name };
    int rc = mu_boot_master_from_params(e->params, &boot.master, reterr);

    if (rc == 0)
        rc = mu_classic_new(&classic, &e->classic, reterr);
    if (rc < 0)
        return rc;
    rc = mu_boot_uv_init(&e->boot, &boot, reterr);
    if (rc < 0) {
        mu_classic_free(e->classic);
        e->classic = NULL;
    }
    return rc;
}

static void on_discarded(void *ctx)
{
    destroy(ctx);
}

/* Takes `params`, also on failure. */
static int start(uv_loop_t *loop, struct muster_rdzv_params *params, muster_rdzv_listener *listener, void *ctx,
                 struct muster_handler **ret_handler, struct muster_error *reterr)
{
    struct etcd *e = calloc(1, sizeof *e);
    struct mu_http_config http;
    int rc;

    if (e == NULL) {
        muster_rdzv_params_free(params);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a rendezvous");
    }
    e->handler = (struct mu_handler){ { &etcd_ops }, &agent_ops };
    e->loop = loop;
    e->listener = listener;
    e->ctx = ctx;
    e->params = params;
    e->round = -1;
    mu_list_init(&e->orders);
    if (getrandom(&e->seed, sizeof e->seed, 0) < 0)
        e->seed = uv_hrtime();
    rc = mu_etcd_params_read(params, &e->place, reterr);
    if (rc == 0) {
        name_node(e);
        rc = make_machines(e, reterr);
    }
    if (rc < 0) {
        muster_rdzv_params_free(params);
        free(e);
        return rc;
    }
    http = http_config(e);
    rc = mu_etcd2_start(loop, &http, &e->etcd, reterr);
    if (rc < 0) {
        destroy(e);
        return rc;
    }
    rc = open_kv(&e->handler.base, &e->kv, reterr);
    if (rc < 0) {
        mu_etcd2_close(e->etcd, on_discarded, e);
        return rc;
    }
    (void)uv_timer_init(loop, &e->timer); /* these only fill in memory */
    e->timer.data = e;
    mu_asking_open(&e->asking, loop, on_ask, e);
    mu_boot_uv_open(&e->boot, loop, &(struct mu_boot_uv_config){ .kv = e->kv, .ops = &boot_ops, .ctx = e });
    *ret_handler = &e->handler.base;
    return 0;
}

int mu_etcd_start(uv_loop_t *loop, const struct muster_rdzv_params *params, muster_rdzv_listener *listener, void *ctx,
                  struct muster_handler **ret_handler, struct muster_error *reterr)
{
    struct muster_rdzv_params *own = NULL;
    int rc = mu_etcd_params_resolve(params, &own, reterr);

    if (rc == 0 && own == NULL)
        rc = muster_rdzv_params_copy(params, &own, reterr);
    if (rc == 0)
        rc = start(loop, own, listener, ctx, ret_handler, reterr);
    return rc < 0 ? mu_wrap(reterr, rc, "make an etcd rendezvous") : 0;
}
