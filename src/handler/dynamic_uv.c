/* The dynamic rendezvous on a back end: performs what its two pure machines want (rdzv.h: members and rounds; boot.h:
 * where the workers meet) and tells the owner what comes of it.
 *
 * Happy path: join -> the rendezvous machine reads and writes until it tells JOINED -> the boot machine opens and publishes,
 * or reads, the workers' store -> the owner is told JOINED. If the round ends before that, nobody has been told of it, and
 * the next one is joined instead. A failure of the boot leaves the round and is told as FAILED. */
#include "base/log.h"
#include "base/rng.h"
#include "handler/asking_uv.h"
#include "handler/boot_uv.h"
#include "handler/rdzv_trace.h"
#include "kv/kv.h"
#include "rdzv/notice_board.h"
#include "rdzv/pickle.h"
#include "rdzv/rdzv.h"
#include "rdzv/round_keys.h"
#include "store/net.h"
#include "store/server_uv.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#define PARK_TIMEOUT_MS 300000          /* then the bell is parked anew */
#define PROGRESS_NODES_MAX 64           /* shown to a user who waits */
#define WAITING_NAMED_MAX 16            /* of those who want to join, are named */
#define REFUSED_MAX MU_RDZV_EFFECTS_MAX /* requests of one step that found no memory */

struct dynamic {
    struct mu_handler handler;
    uv_loop_t *loop;
    muster_rdzv_listener *listener;
    void *ctx;
    char *backend, *run_id, *name, *local_addr, *store_host, *store_addr, *endpoint;
    struct mu_dynamic_config config; /* its texts are the above */
    struct mu_rdzv *rdzv;
    struct mu_boot_uv boot; /* while it is on we have joined, but the owner does not know yet */
    struct mu_kv *kv;
    uv_timer_t timer;
    struct mu_asking asking; /* enum mu_rdzv_event_type */
    bool boot_failed;        /* leaving because of that; boot_error says why */
    bool joining;            /* the owner waits for JOINED */
    bool join_after_leave;   /* asked while it was still leaving */
    uint64_t join_deadline_ms;
    struct muster_error boot_error;
    int64_t waiting_count; /* told while booting; 0: not told */
    bool closed_seen, ghost_told;
    bool asking_host, host_known; /* in whose process the store is */
    int64_t round;                /* that was joined last; -1: none */
    struct muster_store_info bootstrap;
    struct mu_notice_board board;  /* while `joining` */
    bool board_asked;              /* its compare-and-set is under way */
    uint64_t refused[REFUSED_MAX]; /* answered when the step is over */
    size_t refused_count;
    /* The end. */
    size_t handles; /* still to be closed */
    bool freeing;
    void (*on_freed)(void *ctx);
    void *freed_ctx;
};

enum asker { FOR_RDZV, FOR_NOBODY, FOR_HOST, FOR_BOARD };

/* A request to the back end; lives until it is answered, wanted or not. */
struct order {
    struct mu_kv_request request;
    struct dynamic *d;
    uint64_t id;
    enum asker who;
    struct mu_buf value, token;
};

static void feed(struct dynamic *d, struct mu_rdzv_event event);
static void arm(struct dynamic *d);
static void beat_board(struct dynamic *d);

/* ---- Telling ---- */

static void tell(struct dynamic *d, struct muster_rdzv_event event)
{
    const struct mu_node *me = mu_rdzv_me(d->rdzv);
    const struct muster_node self = { d->name, me->pid, me->local_id };

    if (d->freeing)
        return;
    event.size = sizeof event;
    event.self = &self;
    d->listener(d->ctx, &event);
}

static void tell_error(struct dynamic *d, enum muster_rdzv_event_type type, enum muster_rdzv_request request,
                       const struct muster_error *error)
{
    tell(d, (struct muster_rdzv_event){ .type = type, .round = d->round, .request = request, .error = error });
}

static void record(struct dynamic *d, struct mu_rdzv_trace story)
{
    const struct mu_node *me = mu_rdzv_me(d->rdzv);

    mu_rdzv_trace_tell(&(struct mu_teller){ d->run_id, { mu_slice_str(d->name), me->pid, me->local_id } }, story);
}

static void record_error(struct dynamic *d, enum mu_rdzv_trace_kind kind, const struct muster_error *error)
{
    record(d, (struct mu_rdzv_trace){ .kind = kind, .error = error });
}

/* The error as the owner sees it: which rendezvous it is about. */
static struct muster_error with_context(const struct dynamic *d, const char *what, const struct muster_error *error)
{
    struct muster_error told = *error;

    (void)mu_wrap(&told, told.code, "%s rendezvous '%s'", what, d->run_id);
    return told;
}

static void tell_failed(struct dynamic *d, enum muster_rdzv_request request, const struct muster_error *error)
{
    struct muster_error told = with_context(d, mu_handler_request_text(request), error);

    if (request == MUSTER_RDZV_REQUEST_JOIN)
        record_error(d, MU_RDZV_TRACE_JOIN_FAILED, &told);
    else if (request == MUSTER_RDZV_REQUEST_LEAVE)
        record_error(d, MU_RDZV_TRACE_LEAVE_FAILED, &told);
    else if (request == MUSTER_RDZV_REQUEST_MEMBERSHIP)
        record_error(d, MU_RDZV_TRACE_BEAT_FAILED, &told);
    tell_error(d, MUSTER_RDZV_FAILED, request, &told); /* what a close was for is known to the one that asked for it */
}

/* Names in documents and of members are terminated. */
static struct muster_node *public_nodes(const struct mu_node *nodes, size_t count)
{
    struct muster_node *copy = calloc(count + 1, sizeof *copy);

    for (size_t i = 0; copy != NULL && i < count; i++)
        copy[i] = (struct muster_node){ nodes[i].name.data, nodes[i].pid, nodes[i].local_id };
    return copy;
}

static void tell_nodes(struct dynamic *d, struct muster_rdzv_event event, const struct mu_node *nodes, size_t count)
{
    struct muster_node *copy = public_nodes(nodes, count);

    event.nodes = copy;
    event.nodes_count = copy != NULL ? count : 0;
    tell(d, event);
    free(copy);
}

static void tell_waiting(struct dynamic *d, int64_t round, int64_t count)
{
    const struct mu_doc *doc = mu_rdzv_doc(d->rdzv);
    struct mu_node nodes[WAITING_NAMED_MAX];
    size_t named = 0;

    for (size_t i = 0; i < doc->count && named < WAITING_NAMED_MAX; i++)
        if ((doc->members[i].in & MU_DOC_WAITING) != 0)
            nodes[named++] = doc->members[i].node;
    tell_nodes(d, (struct muster_rdzv_event){ .type = MUSTER_RDZV_WAITING, .round = round, .count = count }, nodes,
               named);
}

/* A member that is not in the document any more, and has left no note for the agents, was taken out as dead, by us or by
 * another. One that is in it is lost because the store that it hosts is gone. */
static void tell_lost(struct dynamic *d, int64_t round, struct mu_rdzv_nodes lost)
{
    const struct mu_doc *doc = mu_rdzv_doc(d->rdzv);
    struct muster_rdzv_event event = { .type = MUSTER_RDZV_PEERS_LOST, .round = round };
    struct mu_node *nodes = calloc(lost.count + 1, sizeof *nodes);
    size_t gone = 0, waiting = 0;
    bool hosts = false; /* one of them, the store */
    char cause[64];

    for (size_t i = 0; nodes != NULL && i < lost.count; i++) {
        hosts |= mu_doc_has(doc, &lost.items[i], MU_DOC_PARTICIPANT);
        if (mu_doc_has(doc, &lost.items[i], MU_DOC_WAITING))
            nodes[lost.count - ++waiting] = lost.items[i];
        else
            nodes[gone++] = lost.items[i];
    }
    (void)snprintf(cause, sizeof cause, "no heartbeat for %llu s",
                   (unsigned long long)(mu_rdzv_death_age_ms(&d->config.settings) / 1000));
    event.cause = !hosts                           ? cause
                  : mu_rdzv_store_refuses(d->rdzv) ? "the store that it hosts refuses connections"
                                                   : "the store that it hosts does not answer";
    event.count = (int64_t)waiting;
    tell_nodes(d, event, nodes != NULL ? nodes : lost.items, lost.count);
    free(nodes);
}

/* PyTorch's agents, if there are any, use the keys of 1.13. */
static bool is_old(const struct mu_rdzv_world *world)
{
    return world->dialect.habits == MU_HABITS_1_13;
}

static void tell_joined(struct dynamic *d)
{
    const struct mu_rdzv_world *world = mu_rdzv_world(d->rdzv);
    struct muster_rdzv_info info = {
        .rank = world->rank,
        .world_size = (int64_t)world->count,
        .round = world->round,
        .bootstrap = d->bootstrap,
    };

    d->round = world->round;
    record(d,
           (struct mu_rdzv_trace){
               .kind = MU_RDZV_TRACE_JOINED, .round = info.round, .rank = info.rank, .world_size = info.world_size });
    tell_nodes(d,
               (struct muster_rdzv_event){
                   .type = MUSTER_RDZV_JOINED, .round = world->round, .info = &info, .old_dialect = is_old(world) },
               world->members, world->count);
}

/* A node that was killed and started again is a new one; what is left of the old one has to die first. */
static void note_ghost(struct dynamic *d)
{
    const struct mu_doc *doc = mu_rdzv_doc(d->rdzv);
    const struct mu_node *me = mu_rdzv_me(d->rdzv);
    char text[MU_NODE_TEXT_MAX];

    for (size_t i = 0; !d->ghost_told && i < doc->count; i++) {
        const struct mu_node *node = &doc->members[i].node;

        if (!mu_slice_equal(node->name, me->name) || !mu_node_is_ours(node) || node->pid > INT32_MAX ||
            node->pid == me->pid || kill((pid_t)node->pid, 0) == 0 || errno != ESRCH)
            continue;
        d->ghost_told = true;
        mu_log(
            MUSTER_LOG_INFO,
            "rendezvous '%s': %s, an earlier process of this host, is gone but still listed; it is dropped after %llu s "
            "without a heartbeat",
            d->run_id, mu_node_text(node, text),
            (unsigned long long)(mu_rdzv_death_age_ms(&d->config.settings) / 1000));
    }
}

static void tell_progress(struct dynamic *d)
{
    struct mu_rdzv_progress seen = mu_rdzv_progress(d->rdzv);
    const struct mu_doc *doc = mu_rdzv_doc(d->rdzv);
    struct mu_node nodes[PROGRESS_NODES_MAX];
    char note[MU_NOTICE_BOARD_NOTE_MAX];
    size_t count = 0;
    uint64_t now_ms = uv_now(d->loop);
    struct muster_rdzv_progress progress = {
        .joined = (int64_t)seen.participants,
        .waiting = (int64_t)seen.waiting,
        .spares = (int64_t)seen.spares,
        .min_nodes = d->config.settings.nodes_min,
        .max_nodes = d->config.settings.nodes_max,
        .spare = seen.me_spare,
        .last_call_left_ms = -1,
        .join_left_ms = -1,
    };

    if (seen.last_call && !seen.complete)
        progress.last_call_left_ms = seen.last_call_until_ms > now_ms ? (int64_t)(seen.last_call_until_ms - now_ms) : 0;
    if (seen.deadline_ms != UINT64_MAX)
        progress.join_left_ms = seen.deadline_ms > now_ms ? (int64_t)(seen.deadline_ms - now_ms) : 0;
    for (size_t i = 0; i < doc->count && count < PROGRESS_NODES_MAX; i++)
        if ((doc->members[i].in & MU_DOC_PARTICIPANT) != 0)
            nodes[count++] = doc->members[i].node;
    tell_nodes(d,
               (struct muster_rdzv_event){ .type = MUSTER_RDZV_PROGRESS,
                                           .round = seen.round,
                                           .progress = &progress,
                                           .note = mu_notice_board_note(&d->board, note) },
               nodes, count);
}

/* ---- Orders to the back end ---- */

static void free_order(struct order *order)
{
    muster_bytes_done(&order->request.bytes);
    muster_bytes_done(&order->request.state_token);
    mu_buf_done(&order->value);
    mu_buf_done(&order->token);
    free(order);
}

static struct mu_slice slice_of(const struct muster_bytes *bytes)
{
    return mu_slice(bytes->data, bytes->len);
}

static enum mu_rdzv_event_type answer_type(enum mu_kv_kind kind)
{
    switch (kind) {
    case MU_KV_READ:
        return MU_RDZV_STATE;
    case MU_KV_WRITE:
        return MU_RDZV_WRITTEN;
    case MU_KV_PARK:
        return MU_RDZV_RUNG;
    case MU_KV_TURN_TAKE:
        return MU_RDZV_TURN;
    case MU_KV_TURN_WAIT:
        return MU_RDZV_TURN_CAME;
    case MU_KV_SETTLE:
        return MU_RDZV_SETTLED;
    default:
        return MU_RDZV_REQUEST_FAILED;
    }
}

static void answer_rdzv(struct order *order)
{
    struct mu_kv_request *request = &order->request;
    struct mu_rdzv_event event = { .type = answer_type(request->kind), .id = order->id };

    if (request->rc < 0) {
        event.type = MU_RDZV_REQUEST_FAILED;
        event.error = &request->error;
        event.gone = request->gone;
    } else {
        event.found = request->found;
        event.written = request->written;
        event.error = request->foreign ? &request->error : NULL;
        event.bytes = slice_of(&request->bytes);
        event.token = slice_of(&request->state_token);
        event.bell = request->number;
        event.turn = request->number;
        event.turns_done = request->done_count;
    }
    feed(order->d, event);
    if (request->kind == MU_KV_READ && request->rc == 0) /* the store is there; and read again and again by who waits */
        beat_board(order->d);
}

/* "NAME_PID_LOCAL-ID" */
static bool parse_node(struct mu_slice text, struct mu_node *ret_node)
{
    int64_t numbers[2] = { 0, 0 };

    for (size_t i = 2; i-- > 0;) {
        int64_t scale = 1;
        size_t digits = 0;

        while (text.len > 0 && text.data[text.len - 1] >= '0' && text.data[text.len - 1] <= '9' && digits < 18) {
            numbers[i] += (text.data[text.len - 1] - '0') * scale;
            scale *= 10;
            text.len--;
            digits++;
        }
        if (digits == 0 || text.len == 0 || text.data[text.len - 1] != '_')
            return false;
        text.len--;
    }
    *ret_node = (struct mu_node){ text, numbers[0], numbers[1] };
    return text.len > 0;
}

/* PyTorch does not say who hosts the store. If a member of it has the endpoint's own name, it is the one. */
static bool find_stock_host(const struct dynamic *d, struct mu_node *ret_node)
{
    const struct mu_doc *doc = mu_rdzv_doc(d->rdzv);

    for (size_t i = 0; d->store_host != NULL && i < doc->count; i++) {
        const struct mu_node *node = &doc->members[i].node;

        if ((doc->members[i].in & MU_DOC_PARTICIPANT) != 0 && !mu_node_is_ours(node) &&
            mu_slice_equal(node->name, mu_slice_str(d->store_host))) {
            *ret_node = *node;
            return true;
        }
    }
    return false;
}

/* `host`: the node that says it hosts the store; empty: none does. */
static void take_host(struct dynamic *d, struct mu_slice host)
{
    struct mu_node node = { .pid = 0 };

    if (host.len > 0 && !parse_node(host, &node))
        return;
    d->host_known = host.len > 0 || find_stock_host(d, &node);
    feed(d, (struct mu_rdzv_event){ .type = MU_RDZV_HOST, .node = d->host_known ? &node : NULL });
}

static void answer_host(struct order *order)
{
    order->d->asking_host = false;
    if (order->request.rc == 0)
        take_host(order->d, slice_of(&order->request.bytes));
}

static void answer_board(struct order *order)
{
    struct dynamic *d = order->d;
    struct mu_notice_board_text wanted = { .len = order->value.len };
    bool first = !d->board.looked;
    char before[MU_NOTICE_BOARD_NOTE_MAX], after[MU_NOTICE_BOARD_NOTE_MAX];

    d->board_asked = false;
    if (order->request.rc < 0 || !d->board.on || wanted.len > sizeof wanted.bytes)
        return; /* at the next beat again */
    memcpy(wanted.bytes, order->value.data, wanted.len);
    (void)mu_notice_board_note(&d->board, before);
    (void)mu_notice_board_see(&d->board, slice_of(&order->request.bytes), &wanted);
    (void)mu_notice_board_note(&d->board, after);
    if (strcmp(before, after) != 0)
        tell_progress(d);
    else if (first)
        beat_board(d);
}

static void on_done(struct mu_kv_request *request)
{
    struct order *order = request->ctx;

    if (!order->d->freeing) {
        switch (order->who) {
        case FOR_RDZV:
            answer_rdzv(order);
            break;
        case FOR_HOST:
            answer_host(order);
            break;
        case FOR_BOARD:
            answer_board(order);
            break;
        case FOR_NOBODY:
            break;
        }
    }
    free_order(order);
}

static struct order *new_order(struct dynamic *d, enum mu_kv_kind kind, uint64_t id, uint64_t timeout_ms)
{
    struct order *order = calloc(1, sizeof *order);

    if (order == NULL)
        return NULL;
    order->d = d;
    order->id = id;
    order->who = FOR_RDZV;
    order->request = (struct mu_kv_request){
        .kind = kind, .timeout_ms = timeout_ms > 0 ? timeout_ms : 1, .done = on_done, .ctx = order
    };
    return order;
}

static struct muster_slice public_slice(const struct mu_buf *buf)
{
    return (struct muster_slice){ buf->data, buf->len };
}

/* To be answered when the step that wanted it is over. */
static void refuse(struct dynamic *d, uint64_t id)
{
    if (id == 0)
        return;
    assert(d->refused_count < REFUSED_MAX);
    d->refused[d->refused_count++] = id;
}

static void submit(struct dynamic *d, struct order *order)
{
    order->request.value = public_slice(&order->value);
    order->request.token = public_slice(&order->token);
    d->kv->ops->submit(d->kv, &order->request);
}

static enum mu_kv_kind kind_of(enum mu_rdzv_effect_type type)
{
    switch (type) {
    case MU_RDZV_DO_READ:
        return MU_KV_READ;
    case MU_RDZV_DO_WRITE:
        return MU_KV_WRITE;
    case MU_RDZV_DO_RING:
        return MU_KV_RING;
    case MU_RDZV_DO_PARK:
        return MU_KV_PARK;
    case MU_RDZV_DO_TURN_TAKE:
        return MU_KV_TURN_TAKE;
    case MU_RDZV_DO_TURN_WAIT:
        return MU_KV_TURN_WAIT;
    case MU_RDZV_DO_TURN_GIVE:
        return MU_KV_TURN_GIVE;
    case MU_RDZV_DO_SETTLE:
        return MU_KV_SETTLE;
    case MU_RDZV_DO_TELL:
        break;
    }
    return MU_KV_READ; /* a tell is no request */
}

static uint64_t timeout_of(const struct dynamic *d, const struct mu_rdzv_effect *effect)
{
    uint64_t most_ms = 2 * d->config.settings.heartbeat_ms; /* a silent store is to be noticed before others miss us */

    if (effect->type == MU_RDZV_DO_PARK)
        return PARK_TIMEOUT_MS;
    if (effect->type == MU_RDZV_DO_TURN_WAIT)
        return effect->wait_ms;
    return most_ms < d->config.request_timeout_ms ? most_ms : d->config.request_timeout_ms;
}

static void order_effect(struct dynamic *d, const struct mu_rdzv_effect *effect)
{
    struct order *order = new_order(d, kind_of(effect->type), effect->id, timeout_of(d, effect));

    if (order == NULL || mu_buf_append(&order->value, effect->bytes.data, effect->bytes.len, SIZE_MAX) < 0 ||
        mu_buf_append(&order->token, effect->token.data, effect->token.len, SIZE_MAX) < 0) {
        if (order != NULL)
            free_order(order);
        refuse(d, effect->id);
        return;
    }
    if (effect->id == 0)
        order->who = FOR_NOBODY;
    order->request.has_token = effect->has_token;
    order->request.number = effect->type == MU_RDZV_DO_PARK     ? effect->bell
                            : effect->type == MU_RDZV_DO_SETTLE ? effect->round
                                                                : effect->turn;
    submit(d, order);
}

static void ask_for_host(struct dynamic *d)
{
    struct order *order = d->asking_host ? NULL : new_order(d, MU_KV_HOST, 0, d->config.request_timeout_ms);

    if (order == NULL)
        return; /* asked again after the next round */
    d->asking_host = true;
    order->who = FOR_HOST;
    submit(d, order);
}

/* ---- The board of those who wait ---- */

static void write_board(struct dynamic *d, const struct mu_notice_board_text *text, enum asker who)
{
    struct order *order = new_order(d, MU_KV_COMPARE_SET, 0, d->config.request_timeout_ms);

    if (order == NULL || mu_buf_append(&order->value, text->bytes, text->len, SIZE_MAX) < 0 ||
        mu_buf_append(&order->token, d->board.now.bytes, d->board.now.len, SIZE_MAX) < 0) {
        if (order != NULL)
            free_order(order);
        return; /* it is only a hint */
    }
    order->who = who;
    order->request.key = muster_str(MU_NOTICE_BOARD_KEY);
    d->board_asked |= who == FOR_BOARD;
    submit(d, order);
}

/* Also once a round is complete, until it is known to all: its members are on the board no longer than they wait. */
static void beat_board(struct dynamic *d)
{
    struct mu_notice_board_text text;

    if (d->freeing || !d->joining || d->board_asked || !mu_notice_board_is_due(&d->board, uv_now(d->loop)))
        return;
    mu_notice_board_post(&d->board, uv_now(d->loop), &text);
    write_board(d, &text, FOR_BOARD);
}

static void begin_wait(struct dynamic *d)
{
    d->joining = true;
    d->join_deadline_ms = uv_now(d->loop) + d->config.settings.join_ms;
    if (d->kv->ops->is_common)
        mu_notice_board_begin(&d->board, d->run_id, d->name, d->config.settings.nodes_min, d->config.settings.nodes_max,
                              uv_now(d->loop));
}

static void end_wait(struct dynamic *d)
{
    struct mu_notice_board_text text;

    d->joining = false;
    if (mu_notice_board_end(&d->board, &text) && !d->freeing)
        write_board(d, &text, FOR_NOBODY);
}

/* ---- Where the workers meet ---- */

static void on_booted(void *ctx, const struct muster_store_info *bootstrap)
{
    struct dynamic *d = ctx;
    int64_t waiting = d->waiting_count;

    d->bootstrap = *bootstrap;
    end_wait(d);
    d->waiting_count = 0;
    tell_joined(d);
    if (d->freeing)
        return;
    if (waiting > 0)
        tell_waiting(d, mu_rdzv_doc(d->rdzv)->round, waiting);
    if (d->closed_seen)
        tell(d, (struct muster_rdzv_event){ .type = MUSTER_RDZV_CLOSED, .round = d->round });
    d->closed_seen = false;
}

static void on_boot_failed(void *ctx, const struct muster_error *error)
{
    struct dynamic *d = ctx;

    d->boot_failed = true;
    d->boot_error = *error;
    mu_asking_put(&d->asking, MU_RDZV_LEAVE);
}

static const struct mu_boot_uv_ops boot_ops = { .on_done = on_booted, .on_failed = on_boot_failed };

static bool shares_store(const struct dynamic *d)
{
    return d->config.use_agent_store && d->store_addr != NULL;
}

/* PyTorch 2.5 lets its workers meet in the rendezvous store, and so must ours. */
static bool meets_in_rdzv_store(const struct dynamic *d, const struct mu_rdzv_world *world)
{
    return shares_store(d) && !world->all_ours && world->dialect.habits == MU_HABITS_2_5;
}

static void start_boot(struct dynamic *d)
{
    const struct mu_rdzv_world *world = mu_rdzv_world(d->rdzv);
    const struct mu_node *rank0 = &world->members[0];
    char own_addr[MU_ADDR_TEXT_MAX] = "", accepted_on[MU_ADDR_TEXT_MAX] = "", rank0_text[MU_NODE_TEXT_MAX];
    struct mu_boot_start start = {
        .round = world->round,
        .rank = world->rank,
        .tag = mu_round_tag(world->members, world->count),
        .all_ours = world->all_ours,
        .rank0_ours = mu_node_is_ours(rank0),
        .old_dialect = is_old(world),
        .rank0 = mu_slice_str(mu_node_text(rank0, rank0_text)),
        .own_addr = own_addr,
    };

    for (size_t i = 0; i < world->count; i++)
        start.elsewhere |= !mu_slice_equal(world->members[i].name, mu_rdzv_me(d->rdzv)->name);
    if (d->kv->ops->local_address != NULL && !d->kv->ops->local_address(d->kv, own_addr, sizeof own_addr))
        own_addr[0] = '\0';
    if (d->config.accepted_on != NULL &&
        d->config.accepted_on(d->config.accepted_on_ctx, accepted_on, sizeof accepted_on))
        start.accepted_on = accepted_on;
    if (meets_in_rdzv_store(d, world)) {
        start.met_at = d->store_addr;
        start.met_port = d->config.store_port;
    }
    mu_boot_uv_start(&d->boot, &start);
}

static void stop_boot(struct dynamic *d)
{
    if (!mu_boot_uv_is_on(&d->boot))
        return;
    d->waiting_count = 0;
    mu_boot_uv_stop(&d->boot);
}

/* ---- What the rendezvous machine tells ---- */

/* What has failed for the owner: a round that was not told yet belongs to the join. */
static enum muster_rdzv_request request_of(const struct dynamic *d, enum mu_rdzv_event_type asked)
{
    if (asked == MU_RDZV_LEAVE)
        return MUSTER_RDZV_REQUEST_LEAVE;
    if (asked == MU_RDZV_CLOSE)
        return MUSTER_RDZV_REQUEST_CLOSE;
    return asked == MU_RDZV_JOIN || d->joining ? MUSTER_RDZV_REQUEST_JOIN : MUSTER_RDZV_REQUEST_MEMBERSHIP;
}

/* The round ended before the owner was told that it began. */
static void join_next_instead(struct dynamic *d)
{
    struct muster_error error;

    stop_boot(d);
    if (mu_asking_has(&d->asking, MU_RDZV_LEAVE))
        return; /* the owner does not want it any more */
    if (uv_now(d->loop) < d->join_deadline_ms) {
        mu_asking_put(&d->asking, MU_RDZV_JOIN);
        return;
    }
    (void)mu_fail(&error, MUSTER_ERDZV_TIMEOUT, "every round within %llu s lost a member before it could begin",
                  (unsigned long long)(d->config.settings.join_ms / 1000));
    on_boot_failed(d, &error);
}

/* PEERS_LOST or REMOVED. Until the next round is joined, more of them may come of one that the owner was never told of, or
 * that it has left itself by joining the next: it does not hear of these. */
static bool ends_for_owner(struct dynamic *d)
{
    if (mu_boot_uv_is_on(&d->boot))
        join_next_instead(d);
    else if (!d->joining)
        return true;
    return false;
}

static void join_if_wanted(struct dynamic *d)
{
    if (!d->join_after_leave || d->freeing)
        return;
    d->join_after_leave = false;
    mu_asking_put(&d->asking, MU_RDZV_JOIN);
}

static void on_failed(struct dynamic *d, enum mu_rdzv_event_type asked)
{
    struct muster_error error = *mu_rdzv_error(d->rdzv);
    enum muster_rdzv_request request;

    if (d->boot_failed && asked == MU_RDZV_LEAVE) { /* we go all the same */
        d->boot_failed = false;
        asked = MU_RDZV_JOIN;
        error = d->boot_error;
    }
    request = request_of(d, asked);
    if (asked == MU_RDZV_JOIN || asked == MU_RDZV_TIME)
        end_wait(d);
    if (asked == MU_RDZV_TIME) {
        d->boot_failed = false; /* that is told once */
        stop_boot(d);
    }
    tell_failed(d, request, &error);
    if (asked == MU_RDZV_LEAVE)
        join_if_wanted(d);
}

static void on_left(struct dynamic *d)
{
    if (d->boot_failed) {
        d->boot_failed = false;
        end_wait(d);
        tell_failed(d, MUSTER_RDZV_REQUEST_JOIN, &d->boot_error);
        return;
    }
    record(d, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_LEFT });
    tell(d, (struct muster_rdzv_event){ .type = MUSTER_RDZV_LEFT, .round = d->round });
    join_if_wanted(d);
}

static void on_planned(struct dynamic *d)
{
    struct mu_rdzv_deeds deeds = mu_rdzv_deeds(d->rdzv);

    for (size_t i = 0; i < deeds.count; i++) {
        const struct mu_rdzv_deed *deed = &deeds.items[i];

        record(d, (struct mu_rdzv_trace){ .kind = mu_rdzv_trace_of_action(deed->action), .round = deed->round });
        if (deed->ends_round) /* these two are no events of PyTorch's, only lines */
            mu_log(MUSTER_LOG_DEBUG, "rendezvous '%s': no participants left; the next round begins", d->run_id);
        if (deed->ends_last_call)
            mu_log(MUSTER_LOG_DEBUG,
                   "rendezvous '%s': fewer participants left than the minimum of %" PRId64 "; the last call is off",
                   d->run_id, d->config.settings.nodes_min);
    }
}

static void on_synced(struct dynamic *d, const struct mu_rdzv_effect *effect)
{
    struct mu_rdzv_nodes removed = mu_rdzv_removed(d->rdzv);
    char node[MU_NODE_TEXT_MAX];

    for (size_t i = 0; i < removed.count; i++)
        mu_log(MUSTER_LOG_INFO, "rendezvous '%s': removed %s, which had no heartbeat", d->run_id,
               mu_node_text(&removed.items[i], node));
    if (removed.count > 0)
        record(d, (struct mu_rdzv_trace){
                      .kind = MU_RDZV_TRACE_DEAD_REMOVED, .nodes = removed.items, .nodes_count = removed.count });
    record(d, (struct mu_rdzv_trace){ .kind = effect->written ? MU_RDZV_TRACE_SYNCED : MU_RDZV_TRACE_STALE });
    if (effect->beat)
        record(d, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_BEAT });
}

static void on_looked(struct dynamic *d)
{
    const struct mu_doc *doc = mu_rdzv_doc(d->rdzv);
    struct muster_error error = *mu_rdzv_error(d->rdzv);

    if (error.code != 0) {
        struct muster_error told = with_context(d, "look at", &error);

        tell_error(d, MUSTER_RDZV_LOOKED, MUSTER_RDZV_REQUEST_LOOK, &told);
        return;
    }
    tell(d, (struct muster_rdzv_event){ .type = MUSTER_RDZV_LOOKED,
                                        .round = mu_rdzv_doc_exists(d->rdzv) ? doc->round : -1,
                                        .closed = doc->closed,
                                        .count = (int64_t)doc->waiting });
}

static void on_closed(struct dynamic *d, bool by_us)
{
    if (by_us)
        record(d, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_CLOSED });
    if (mu_boot_uv_is_on(&d->boot))
        d->closed_seen = true;
    else
        tell(d, (struct muster_rdzv_event){ .type = MUSTER_RDZV_CLOSED, .round = d->round });
}

static void on_down(struct dynamic *d, const struct mu_rdzv_effect *effect)
{
    struct muster_error told = with_context(d, "keep to", mu_rdzv_error(d->rdzv));
    uint64_t left_ms = effect->give_up_in_ms;

    record_error(d, mu_rdzv_world(d->rdzv) != NULL ? MU_RDZV_TRACE_BEAT_FAILED : MU_RDZV_TRACE_SYNC_FAILED, &told);
    tell(d, (struct muster_rdzv_event){ .type = MUSTER_RDZV_BACKEND_DOWN,
                                        .round = d->round,
                                        .error = &told,
                                        .away_ms = (int64_t)effect->away_ms,
                                        .give_up_in_ms = left_ms == UINT64_MAX ? 0
                                                         : left_ms == 0        ? 1
                                                                               : (int64_t)left_ms,
                                        .count = effect->host_lost });
}

static void on_tell(struct dynamic *d, const struct mu_rdzv_effect *effect)
{
    struct mu_rdzv_nodes lost = mu_rdzv_lost(d->rdzv);

    switch (effect->tell) {
    case MU_RDZV_TELL_JOINED:
        ask_for_host(d);
        start_boot(d);
        break;
    case MU_RDZV_TELL_WAITING:
        if (mu_boot_uv_is_on(&d->boot))
            d->waiting_count = effect->count;
        else if (!d->joining)
            tell_waiting(d, effect->round, effect->count);
        break;
    case MU_RDZV_TELL_LOST:
        if (ends_for_owner(d))
            tell_lost(d, effect->round, lost);
        break;
    case MU_RDZV_TELL_REMOVED:
        if (ends_for_owner(d))
            tell(d, (struct muster_rdzv_event){ .type = MUSTER_RDZV_REMOVED, .round = effect->round });
        break;
    case MU_RDZV_TELL_CLOSED:
        on_closed(d, effect->asked == MU_RDZV_CLOSE);
        break;
    case MU_RDZV_TELL_LEFT:
        on_left(d);
        break;
    case MU_RDZV_TELL_FAILED:
        on_failed(d, effect->asked);
        break;
    case MU_RDZV_TELL_LOOKED:
        on_looked(d);
        break;
    case MU_RDZV_TELL_BACKEND_DOWN:
        on_down(d, effect);
        break;
    case MU_RDZV_TELL_BACKEND_UP:
        ask_for_host(d); /* it may be another one now */
        tell(d, (struct muster_rdzv_event){ .type = MUSTER_RDZV_BACKEND_UP, .round = d->round });
        break;
    case MU_RDZV_TELL_FOREIGN:
        mu_log(MUSTER_LOG_WARNING, "rendezvous '%s': %s", d->run_id, mu_rdzv_error(d->rdzv)->text);
        break;
    case MU_RDZV_TELL_PROGRESS:
        if (!d->host_known)
            ask_for_host(d);
        note_ghost(d);
        tell_progress(d);
        break;
    case MU_RDZV_TELL_PLANNED:
        on_planned(d);
        break;
    case MU_RDZV_TELL_SYNCED:
        on_synced(d, effect);
        break;
    }
}

/* ---- The loop ---- */

static void on_timer(uv_timer_t *timer)
{
    struct dynamic *d = timer->data;

    feed(d, (struct mu_rdzv_event){ .type = MU_RDZV_TIME });
}

/* Always derived anew, so never forgotten. */
static void arm(struct dynamic *d)
{
    uint64_t when_ms = mu_rdzv_deadline_ms(d->rdzv), now_ms = uv_now(d->loop);

    if (d->freeing)
        return;
    if (when_ms == UINT64_MAX)
        (void)uv_timer_stop(&d->timer);
    else
        (void)uv_timer_start(&d->timer, on_timer, when_ms > now_ms ? when_ms - now_ms : 0, 0);
}

static int64_t wall_us(void)
{
    struct timespec now = { 0 };

    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void feed(struct dynamic *d, struct mu_rdzv_event event)
{
    struct mu_rdzv_effects effects;

    event.now_ms = uv_now(d->loop);
    event.wall_us = wall_us();
    mu_rdzv_step(d->rdzv, &event, &effects);
    for (unsigned i = 0; i < effects.count && !d->freeing; i++) { /* requests first: tells may lead to a next step */
        if (effects.items[i].type != MU_RDZV_DO_TELL)
            order_effect(d, &effects.items[i]);
    }
    for (unsigned i = 0; i < effects.count && !d->freeing; i++)
        if (effects.items[i].type == MU_RDZV_DO_TELL)
            on_tell(d, &effects.items[i]);
    while (d->refused_count > 0 && !d->freeing) {
        struct muster_error error = { 0 };

        (void)mu_fail(&error, MUSTER_ENOMEM, "a request to the store");
        feed(d, (struct mu_rdzv_event){
                    .type = MU_RDZV_REQUEST_FAILED, .id = d->refused[--d->refused_count], .error = &error });
    }
    arm(d);
}

static void carry_out(struct dynamic *d, enum mu_rdzv_event_type what)
{
    if (what == MU_RDZV_JOIN)
        record(d, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_ATTEMPTS });
    feed(d, (struct mu_rdzv_event){ .type = what });
}

static void on_ask(void *ctx, unsigned what)
{
    struct dynamic *d = ctx;

    if (what == MU_RDZV_LEAVE)
        stop_boot(d);
    if (what == MU_RDZV_JOIN && !d->joining)
        return; /* its owner has left since, or knows that it has failed */
    if (what == MU_RDZV_JOIN && mu_rdzv_phase(d->rdzv) == MU_RDZV_PHASE_LEAVING)
        d->join_after_leave = true;
    else
        carry_out(d, (enum mu_rdzv_event_type)what);
}

/* ---- The handler ---- */

static void dynamic_join(struct muster_handler *handler)
{
    struct dynamic *d = (struct dynamic *)handler;

    assert(!d->joining);
    begin_wait(d);
    mu_asking_put(&d->asking, MU_RDZV_JOIN);
}

static void dynamic_leave(struct muster_handler *handler)
{
    struct dynamic *d = (struct dynamic *)handler;

    d->join_after_leave = d->boot_failed = false;
    end_wait(d);
    mu_asking_put(&d->asking, MU_RDZV_LEAVE);
}

static void dynamic_close(struct muster_handler *handler)
{
    mu_asking_put(&((struct dynamic *)handler)->asking, MU_RDZV_CLOSE);
}

static void dynamic_look(struct muster_handler *handler)
{
    mu_asking_put(&((struct dynamic *)handler)->asking, MU_RDZV_LOOK);
}

static bool dynamic_use_agent_store(const struct muster_handler *handler)
{
    return ((const struct dynamic *)handler)->config.use_agent_store;
}

/* Of the store that we host for the workers. */
static void dynamic_when_alone(struct muster_handler *handler, void (*alone)(void *ctx), void *ctx)
{
    struct mu_server *workers = mu_boot_uv_workers_store(&((struct dynamic *)handler)->boot);

    if (workers != NULL)
        mu_server_when_alone(workers, alone, ctx);
}

static bool dynamic_hosts(const struct muster_handler *handler)
{
    return mu_boot_uv_workers_store(&((const struct dynamic *)handler)->boot) != NULL;
}

/* ---- The end ---- */

static void destroy(struct dynamic *d)
{
    mu_rdzv_free(d->rdzv);
    mu_boot_uv_done(&d->boot);
    free(d->backend);
    free(d->run_id);
    free(d->name);
    free(d->local_addr);
    free(d->store_host);
    free(d->store_addr);
    free(d->endpoint);
    free(d);
}

static void handle_gone(void *ctx)
{
    struct dynamic *d = ctx;
    void (*on_freed)(void *ctx) = d->on_freed;
    void *freed_ctx = d->freed_ctx;

    assert(d->handles > 0);
    if (--d->handles > 0)
        return;
    destroy(d);
    on_freed(freed_ctx);
}

static void on_timer_closed(uv_handle_t *handle)
{
    handle_gone(handle->data);
}

static void on_kv_closed(struct mu_kv *kv, void *ctx)
{
    (void)kv;
    handle_gone(ctx);
}

static void dynamic_free(struct muster_handler *handler, void (*done)(void *ctx), void *ctx)
{
    struct dynamic *d = (struct dynamic *)handler;

    assert(!d->freeing);
    d->freeing = true;
    d->on_freed = done;
    d->freed_ctx = ctx;
    d->handles = 4;
    mu_boot_uv_close(&d->boot, handle_gone);
    uv_close((uv_handle_t *)&d->timer, on_timer_closed);
    mu_asking_close(&d->asking, handle_gone);
    d->kv->ops->close(d->kv, on_kv_closed, d);
}

static int dynamic_open_kv(struct muster_handler *handler, struct mu_kv **ret_kv, struct muster_error *reterr)
{
    const struct mu_dynamic_config *config = &((struct dynamic *)handler)->config;

    return config->open_kv(config->open_kv_ctx, ((struct dynamic *)handler)->loop, config->patience_ms, ret_kv, reterr);
}

static const struct muster_handler_ops dynamic_ops = {
    .size = sizeof dynamic_ops,
    .name = "dynamic",
    .join = dynamic_join,
    .leave = dynamic_leave,
    .close = dynamic_close,
    .look = dynamic_look,
    .use_agent_store = dynamic_use_agent_store,
    .free = dynamic_free,
    .hosts = dynamic_hosts,
    .when_alone = dynamic_when_alone,
};

static const struct mu_handler_ops agent_ops[] = { { .open_kv = NULL }, { .open_kv = dynamic_open_kv } };

static int copy_texts(struct dynamic *d, const struct mu_dynamic_config *config)
{
    char hostname[MU_HANDLER_NAME_MAX];

    d->backend = strdup(config->backend);
    d->run_id = strdup(config->run_id);
    d->name = strdup(mu_handler_node_name(config->local_addr, hostname));
    d->local_addr = config->local_addr != NULL ? strdup(config->local_addr) : NULL;
    d->store_host = config->store_host != NULL ? strdup(config->store_host) : NULL;
    d->store_addr = config->store_addr != NULL ? strdup(config->store_addr) : NULL;
    d->endpoint = config->endpoint != NULL ? strdup(config->endpoint) : NULL;
    if (d->backend == NULL || d->run_id == NULL || d->name == NULL ||
        (config->local_addr != NULL && d->local_addr == NULL) ||
        (config->store_host != NULL && d->store_host == NULL) ||
        (config->store_addr != NULL && d->store_addr == NULL) || (config->endpoint != NULL && d->endpoint == NULL))
        return MUSTER_ENOMEM;
    d->config = *config;
    d->config.backend = d->backend;
    d->config.run_id = d->run_id;
    d->config.local_addr = d->local_addr;
    d->config.bind = (struct mu_bind){ 0 }; /* the boot machine has its own */
    d->config.endpoint = d->endpoint;
    d->config.store_addr = d->store_addr;
    return 0;
}

static int start_boot_machine(struct dynamic *d, struct mu_bind bind, struct muster_error *reterr)
{
    struct mu_boot_config config = {
        .run_id = d->run_id,
        .local_addr = d->local_addr,
        .bind = bind,
        .master = d->config.master,
        .use_agent_store = d->config.use_agent_store,
        .standalone = d->config.settings.nodes_max == 1,
        .at_localhost = d->store_host != NULL && strcmp(d->store_host, "localhost") == 0,
    };

    return mu_boot_uv_init(&d->boot, &config, reterr);
}

static int start_rdzv_machine(struct dynamic *d, struct muster_error *reterr)
{
    struct mu_rdzv_config config = {
        .settings = d->config.settings,
        .me = { mu_slice_str(d->name), getpid(), d->config.local_id },
        .endpoint = d->config.endpoint,
        .dialect = d->config.dialect,
        .has_bell = d->kv->ops->has_bell,
        .has_turns = d->kv->ops->has_turns,
        .has_settle = d->kv->ops->has_settle,
        .shares_store = shares_store(d),
    };
    uint64_t random[4] = { 0 };

    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return mu_fail(reterr, MUSTER_ESYSTEM, "no random numbers");
    config.hash_seed = (struct mu_hash_seed){ random[0], random[1] };
    config.seed = random[2];
    if (config.me.local_id == 0)
        config.me.local_id = mu_node_local_id(MU_NODE_VERSION, (uint32_t)random[3]);
    return mu_rdzv_new(&config, &d->rdzv, reterr);
}

static void forget_kv(struct mu_kv *kv, void *ctx)
{
    (void)kv;
    (void)ctx;
}

int mu_dynamic_check_name(const char *local_addr, struct muster_error *reterr)
{
    if (local_addr == NULL || mu_pickle_takes_name(mu_slice_str(local_addr)))
        return 0;
    return mu_fail(reterr, MUSTER_EINVAL, "the local address of %zu bytes is empty, too long or not UTF-8",
                   strlen(local_addr));
}

int mu_dynamic_start(struct uv_loop_s *loop, const struct mu_dynamic_config *config, struct mu_kv *kv,
                     muster_rdzv_listener *listener, void *ctx, struct muster_handler **ret_handler,
                     struct muster_error *reterr)
{
    struct dynamic *d = calloc(1, sizeof *d);
    int rc = mu_rdzv_settings_check(config->run_id, &config->settings, reterr);

    if (d == NULL) {
        kv->ops->close(kv, forget_kv, NULL);
        return mu_fail(reterr, MUSTER_ENOMEM, "a rendezvous");
    }
    d->handler = (struct mu_handler){ { &dynamic_ops }, &agent_ops[config->open_kv != NULL] };
    d->loop = loop;
    d->listener = listener;
    d->ctx = ctx;
    d->kv = kv;
    d->round = -1;
    if (rc == 0)
        rc = mu_dynamic_check_name(config->local_addr, reterr);
    if (rc == 0 && copy_texts(d, config) < 0)
        rc = mu_fail(reterr, MUSTER_ENOMEM, "a rendezvous");
    if (rc == 0)
        rc = start_boot_machine(d, config->bind, reterr);
    if (rc == 0)
        rc = start_rdzv_machine(d, reterr);
    if (rc < 0) {
        destroy(d);
        kv->ops->close(kv, forget_kv, NULL);
        return rc;
    }
    (void)uv_timer_init(loop, &d->timer); /* these only fill in memory */
    mu_boot_uv_open(&d->boot, loop, &(struct mu_boot_uv_config){ .kv = kv, .ops = &boot_ops, .ctx = d });
    d->timer.data = d;
    mu_asking_open(&d->asking, loop, on_ask, d);
    if (config->hosted_by != NULL)
        take_host(d, mu_slice_str(config->hosted_by));
    *ret_handler = &d->handler.base;
    return 0;
}
