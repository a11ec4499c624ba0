/* The static rendezvous on a loop: drives static_group.c, which decides. Events are callbacks of the store's client and
 * server and of one timer; effects are calls of both. What the owner is told, and what must not be done inside of a
 * callback, comes at a later turn of the loop. */
#include "handler/bind_uv.h"
#include "handler/static_group.h"
#include "kv/later_uv.h"
#include "store/client_uv.h"
#include "store/server_uv.h"
#include "store/table.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

/* PyTorch's count of the nodes that have come; a key of the wire, without the "/" that stands before others. */
static const char count_key[] = "init/";

enum { KEY_MAX = MU_RDZV_RUN_ID_MAX + 64 };

struct handler {
    struct mu_handler base;
    struct mu_static_place place;
    char *name; /* of this node */
    uv_loop_t *loop;
    muster_rdzv_listener *listener;
    void *ctx;
    struct mu_static group;
    struct mu_later later;
    uv_timer_t timer;
    struct mu_bind_uv ask;    /* where rank 0 listens */
    struct mu_server *server; /* of rank 0 */
    struct mu_server_watch *count_watch, *announce_watch;
    struct mu_client *client;
    struct mu_call call, goodbye; /* one at a time, and the last */
    bool calling;
    struct muster_slice keys[1]; /* of the call */
    char key[KEY_MAX], goodbye_key[KEY_MAX], announcement[MU_ROSTER_RECORD_MAX + 24];
    unsigned parts_closing;
    void (*freed)(void *ctx);
    void *freed_ctx;
};

static struct handler *handler_of(struct muster_handler *base)
{
    return (struct handler *)base;
}

static void feed(struct handler *h, struct mu_static_event event);

/* ---- Keys that only muster nodes use ---- */

static struct muster_slice own_key(const struct handler *h, const char *what, int64_t number, char key[static KEY_MAX])
{
    int len = number < 0 ? snprintf(key, KEY_MAX, "muster.%s/static/%s", h->place.run_id, what)
                         : snprintf(key, KEY_MAX, "muster.%s/static/%s/%" PRId64, h->place.run_id, what, number);

    assert(len < KEY_MAX);
    return (struct muster_slice){ key, (size_t)len };
}

/* In rank 0's server, where keys have "/" in front, as clients send them. */
static int write_own(struct handler *h, const char *what, int64_t number, const char *expected, struct mu_slice value,
                     struct muster_error *reterr)
{
    char key[KEY_MAX + 1] = "/";
    size_t len = own_key(h, what, number, key + 1).len + 1;

    return mu_server_compare_set(h->server, mu_slice(key, len), mu_slice_str(expected), value, reterr);
}

/* ---- Closing ---- */

static void part_closed(void *ctx)
{
    struct handler *h = ctx;

    assert(h->parts_closing > 0);
    if (--h->parts_closing == 0)
        feed(h, (struct mu_static_event){ .type = MU_STATIC_ON_CLOSED });
}

static void on_client_closed(struct mu_client *client, void *ctx)
{
    (void)client;
    part_closed(ctx);
}

static void on_server_closed(struct mu_server *server, void *ctx)
{
    (void)server;
    part_closed(ctx);
}

static void on_timer_closed(uv_handle_t *timer)
{
    part_closed(timer->data);
}

static void close_client(struct handler *h)
{
    if (h->client == NULL)
        return;
    h->parts_closing++;
    mu_client_close(h->client, on_client_closed, h);
    h->client = NULL;
}

static void close_server(struct handler *h)
{
    if (h->server == NULL)
        return;
    mu_server_on_gone(h->server, NULL, NULL);
    if (h->count_watch != NULL)
        mu_server_unwatch(h->server, h->count_watch);
    if (h->announce_watch != NULL)
        mu_server_unwatch(h->server, h->announce_watch);
    h->count_watch = h->announce_watch = NULL;
    h->parts_closing++;
    mu_server_close(h->server, on_server_closed, h);
    h->server = NULL;
}

static void close_parts(struct handler *h)
{
    h->parts_closing++; /* so that CLOSED comes once, and also if there is nothing to close */
    if (h->ask.busy && !h->ask.cancelled) {
        h->parts_closing++;
        mu_bind_uv_cancel(&h->ask);
    }
    close_client(h);
    close_server(h);
    part_closed(h);
}

static void close_handles(struct handler *h)
{
    h->parts_closing += 2;
    uv_close((uv_handle_t *)&h->timer, on_timer_closed);
    mu_later_close(&h->later, part_closed, h);
}

static void free_memory(struct handler *h)
{
    void (*freed)(void *) = h->freed;
    void *ctx = h->freed_ctx;

    mu_static_place_done(&h->place);
    free(h->name);
    free(h);
    freed(ctx);
}

/* ---- Rank 0's server ---- */

static void on_count(void *ctx, struct mu_slice value)
{
    struct handler *h = ctx;
    int64_t number = 0;

    (void)mu_table_number(value, &number);
    feed(h, (struct mu_static_event){
                .type = MU_STATIC_ON_COUNTED, .connection = mu_server_writer(h->server), .number = number });
}

static void on_announced(void *ctx, struct mu_slice value)
{
    struct handler *h = ctx;

    feed(h, (struct mu_static_event){
                .type = MU_STATIC_ON_ANNOUNCED, .connection = mu_server_writer(h->server), .bytes = value });
}

static void on_gone(void *ctx, uint64_t connection)
{
    feed(ctx, (struct mu_static_event){ .type = MU_STATIC_ON_GONE, .connection = connection });
}

/* Agents of PyTorch 1.13 know the endpoint, and wait all the same until rank 0 has put it there. */
static int publish_master(struct handler *h, struct muster_error *reterr)
{
    const struct {
        const char *name, *value;
    } rows[] = { { MUSTER_KEY_MASTER_ADDR, h->place.host }, { MUSTER_KEY_MASTER_PORT, NULL } };
    char key[KEY_MAX], port[8];
    int rc = 0;

    (void)snprintf(port, sizeof port, "%u", (unsigned)h->place.port);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && rc == 0; i++) {
        (void)snprintf(key, sizeof key, "/%s/%s", h->place.run_id, rows[i].name);
        rc = mu_server_compare_set(h->server, mu_slice_str(key), mu_slice_str(""),
                                   mu_slice_str(rows[i].value != NULL ? rows[i].value : port), reterr);
    }
    return rc;
}

static int start_server(struct handler *h, const struct mu_bind_plan *plan, struct muster_error *reterr)
{
    const struct mu_bind bind = mu_static_bind(&h->place);
    struct mu_bind_networks networks;
    const struct muster_store_server_config config = { .size = sizeof config,
                                                       .host = plan->hosts,
                                                       .port = h->place.port,
                                                       .allow = mu_bind_networks(&bind, &networks),
                                                       .allow_own = true };
    char key[KEY_MAX + 1] = "/";
    size_t len = own_key(h, "announce", -1, key + 1).len + 1;
    int rc;

    mu_static_warn_of_bind(&h->place, plan);
    rc = mu_server_start_as(h->loop, &config, &h->server, reterr);
    if (rc < 0)
        return rc;
    mu_server_on_gone(h->server, on_gone, h);
    rc = write_own(h, "host", -1, "", mu_slice_str("1"), reterr);
    if (rc == 0 && h->place.old_dialect)
        rc = publish_master(h, reterr);
    if (rc == 0)
        rc = mu_server_watch(h->server, mu_slice_str(count_key), on_count, h, &h->count_watch, reterr);
    if (rc == 0)
        rc = mu_server_watch(h->server, mu_slice(key, len), on_announced, h, &h->announce_watch, reterr);
    return rc;
}

/* The plan; NULL: it was cancelled. */
static void on_planned(void *ctx, const struct mu_bind_plan *plan)
{
    struct handler *h = ctx;
    struct muster_error error;
    int rc;

    if (plan == NULL) {
        part_closed(h);
        return;
    }
    rc = start_server(h, plan, &error);
    feed(h, (struct mu_static_event){ .type = MU_STATIC_ON_SERVED, .error = rc < 0 ? &error : NULL });
}

static void serve(struct handler *h)
{
    const struct mu_bind bind = mu_static_bind(&h->place);
    struct mu_bind_plan plan;

    if (mu_bind_uv_ask(&h->ask, h->loop, &bind, h->place.host, &plan, on_planned, h))
        on_planned(h, &plan);
}

static void write_progress(struct handler *h, int64_t number)
{
    char text[MU_ROSTER_TEXT_MAX];
    size_t len = mu_roster_write_progress(&h->group.progress, text);
    struct muster_error error;
    int rc = write_own(h, "progress", number, "", mu_slice(text, len), &error);

    feed(h, (struct mu_static_event){ .type = MU_STATIC_ON_WRITTEN, .error = rc < 0 ? &error : NULL });
}

/* ---- The client ---- */

static void on_ready(struct mu_client *client, const struct muster_error *error, void *ctx)
{
    (void)client;
    feed(ctx, (struct mu_static_event){ .type = MU_STATIC_ON_CONNECTED, .error = error });
}

static void on_lost(struct mu_client *client, const struct muster_error *error, void *ctx)
{
    (void)client;
    feed(ctx, (struct mu_static_event){ .type = MU_STATIC_ON_LOST, .error = error });
}

static void connect_client(struct handler *h, uint64_t timeout_ms)
{
    const struct mu_client_config config = { .host = h->place.host,
                                             .port = h->place.port,
                                             .connect_timeout_ms = timeout_ms,
                                             .seed = mu_rng_next(&h->group.rng) };
    struct muster_error error;

    if (mu_client_start(h->loop, &config, on_ready, on_lost, h, &h->client, &error) < 0)
        feed(h, (struct mu_static_event){ .type = MU_STATIC_ON_CONNECTED, .error = &error });
}

static void on_answer(struct mu_call *call)
{
    struct handler *h = call->ctx;
    struct mu_call answer = *call; /* the next one may take its place */

    h->calling = false;
    feed(h, (struct mu_static_event){ .type = MU_STATIC_ON_ANSWERED,
                                      .number = answer.result,
                                      .bytes = mu_slice(answer.bytes.data, answer.bytes.len),
                                      .error = answer.rc < 0 ? &answer.error : NULL });
    muster_bytes_done(&answer.bytes);
}

static struct mu_call call_of(struct handler *h, const struct mu_static_effect *effect)
{
    switch (effect->call) {
    case MU_STATIC_CALL_CHECK_HOST:
        h->keys[0] = own_key(h, "host", -1, h->key);
        return (struct mu_call){ .kind = MU_CALL_CHECK, .keys = h->keys, .count = 1 };
    case MU_STATIC_CALL_GET_RANK_0:
        return (struct mu_call){ .kind = MU_CALL_GET, .key = own_key(h, "node", 0, h->key) };
    case MU_STATIC_CALL_ANNOUNCE:
        (void)snprintf(h->announcement, sizeof h->announcement, "%" PRId64 " %s", h->place.rank, h->group.record);
        return (struct mu_call){ .kind = MU_CALL_SET,
                                 .key = own_key(h, "announce", -1, h->key),
                                 .value = muster_str(h->announcement) };
    case MU_STATIC_CALL_CLAIM:
        return (struct mu_call){ .kind = MU_CALL_COMPARE_SET,
                                 .key = own_key(h, "node", effect->number, h->key),
                                 .value = muster_str(""),
                                 .desired = muster_str(h->group.record) };
    case MU_STATIC_CALL_COUNT:
        return (struct mu_call){ .kind = MU_CALL_ADD, .key = muster_str(count_key), .number = 1, .raw_key = true };
    case MU_STATIC_CALL_GET_PROGRESS:
        return (struct mu_call){ .kind = MU_CALL_GET, .key = own_key(h, "progress", effect->number, h->key) };
    case MU_STATIC_CALL_GET_LOST:
        break;
    }
    return (struct mu_call){ .kind = MU_CALL_GET, .key = own_key(h, "lost", -1, h->key) };
}

static void make_call(struct handler *h, const struct mu_static_effect *effect)
{
    assert(!h->calling);
    h->call = call_of(h, effect);
    h->call.done = on_answer;
    h->call.ctx = h;
    h->calling = true;
    mu_client_call(h->client, &h->call, effect->timeout_ms);
}

static void on_goodbye(struct mu_call *call)
{
    feed(call->ctx, (struct mu_static_event){ .type = MU_STATIC_ON_SAID });
}

static void say_goodbye(struct handler *h, uint64_t timeout_ms)
{
    h->goodbye = (struct mu_call){ .kind = MU_CALL_SET,
                                   .key = own_key(h, "announce", -1, h->goodbye_key),
                                   .value = muster_str("left"),
                                   .done = on_goodbye,
                                   .ctx = h };
    if (h->calling)
        mu_client_expire(h->client, &h->call);
    mu_client_call(h->client, &h->goodbye, timeout_ms);
}

/* ---- Telling ---- */

static void tell(struct handler *h, const struct mu_static_effect *effect)
{
    const struct mu_static *m = &h->group;
    const struct muster_rdzv_progress progress = { .joined = m->progress.joined,
                                                   .min_nodes = h->place.world_size,
                                                   .max_nodes = h->place.world_size,
                                                   .last_call_left_ms = -1,
                                                   .join_left_ms = (int64_t)mu_static_left_ms(m, uv_now(h->loop)) };
    const struct muster_rdzv_info info = mu_static_info(&h->place, NULL);
    struct muster_rdzv_event event = { .size = sizeof event, .type = effect->tell, .round = -1 };

    if (effect->tell == MUSTER_RDZV_PROGRESS) {
        event.progress = &progress;
        event.nodes = m->progress.nodes;
        event.nodes_count = m->progress.nodes_count;
    } else if (effect->tell == MUSTER_RDZV_JOINED) {
        event.info = &info;
        event.old_dialect = h->place.old_dialect;
    } else if (effect->tell == MUSTER_RDZV_FAILED) {
        event.request = effect->request;
        event.error = &m->error;
    }
    h->listener(h->ctx, &event);
}

/* ---- The machine ---- */

static void perform(struct handler *h, const struct mu_static_effect *effect)
{
    struct muster_error error;

    switch (effect->type) {
    case MU_STATIC_DO_SERVE:
        serve(h);
        break;
    case MU_STATIC_DO_CONNECT:
        connect_client(h, effect->timeout_ms);
        break;
    case MU_STATIC_DO_CALL:
        make_call(h, effect);
        break;
    case MU_STATIC_DO_PROGRESS:
        write_progress(h, effect->number);
        break;
    case MU_STATIC_DO_FREE_RANK:
        (void)write_own(h, "node", effect->number, effect->text, mu_slice_str(""), &error);
        break;
    case MU_STATIC_DO_WRITE_LOST:
        (void)write_own(h, "lost", -1, "", mu_slice_str(effect->text), &error);
        break;
    case MU_STATIC_DO_GOODBYE:
        say_goodbye(h, effect->timeout_ms);
        break;
    case MU_STATIC_DO_CLOSE_CLIENT:
        close_client(h);
        break;
    case MU_STATIC_DO_END:
        close_handles(h);
        close_parts(h);
        break;
    case MU_STATIC_DO_CLOSE:
        close_parts(h);
        break;
    case MU_STATIC_DO_TELL:
        tell(h, effect);
        break;
    case MU_STATIC_DO_FREED:
        free_memory(h);
        break;
    }
}

static void on_time(uv_timer_t *timer)
{
    feed(timer->data, (struct mu_static_event){ .type = MU_STATIC_ON_TIME });
}

static void on_turn(void *ctx)
{
    feed(ctx, (struct mu_static_event){ .type = MU_STATIC_ON_TURN });
}

/* The last effect may feed the next event, or free the handler: what the machine wants of the loop is arranged
 * before. */
static void feed(struct handler *h, struct mu_static_event event)
{
    struct mu_static_effects effects;

    event.now_ms = uv_now(h->loop);
    mu_static_step(&h->group, &event, &effects);
    mu_timer_until(&h->timer, mu_static_deadline_ms(&h->group), on_time);
    if (mu_static_wants_turn(&h->group))
        mu_later_turn(&h->later, on_turn, h);
    for (size_t i = 0; i < effects.count; i++)
        perform(h, &effects.items[i]);
}

/* ---- The table ---- */

static void ask(struct muster_handler *base, enum muster_rdzv_request request)
{
    static const enum mu_static_event_type asked[] = { [MUSTER_RDZV_REQUEST_JOIN] = MU_STATIC_ON_JOIN,
                                                       [MUSTER_RDZV_REQUEST_LEAVE] = MU_STATIC_ON_LEAVE,
                                                       [MUSTER_RDZV_REQUEST_CLOSE] = MU_STATIC_ON_CLOSE,
                                                       [MUSTER_RDZV_REQUEST_LOOK] = MU_STATIC_ON_LOOK };

    feed(handler_of(base), (struct mu_static_event){ .type = asked[request] });
}

static bool shares_store(const struct muster_handler *base)
{
    (void)base;
    return true;
}

static void free_handler(struct muster_handler *base, void (*done)(void *ctx), void *ctx)
{
    struct handler *h = handler_of(base);

    assert(h->freed == NULL);
    h->freed = done;
    h->freed_ctx = ctx;
    feed(h, (struct mu_static_event){ .type = MU_STATIC_ON_FREE });
}

static bool endpoint(const struct muster_handler *base, char *ret_host, size_t room, uint16_t *ret_port)
{
    const struct handler *h = (const struct handler *)base;

    (void)snprintf(ret_host, room, "%s", h->place.host);
    *ret_port = h->place.port;
    return mu_static_has_store(&h->group);
}

static bool hosts(const struct muster_handler *base)
{
    return ((const struct handler *)base)->server != NULL;
}

static void when_alone(struct muster_handler *base, void (*alone)(void *ctx), void *ctx)
{
    struct mu_server *server = handler_of(base)->server;

    if (server != NULL)
        mu_server_when_alone(server, alone, ctx);
}

static const struct muster_handler_ops handler_ops = {
    MU_HANDLER_OPS("static"), .use_agent_store = shares_store, .free = free_handler, .endpoint = endpoint,
    .hosts = hosts,           .when_alone = when_alone,
};

static const struct mu_handler_ops agent_ops = { .open_kv = NULL };

int mu_static_start_at(uv_loop_t *loop, struct mu_static_place *place, const char *local_addr,
                       muster_rdzv_listener *listener, void *ctx, struct muster_handler **ret_handler,
                       struct muster_error *reterr)
{
    char hostname[MU_HANDLER_NAME_MAX];
    struct handler *h = calloc(1, sizeof *h);
    uint64_t seed = 0;
    int rc = 0;

    if (h != NULL)
        h->name = strdup(mu_handler_node_name(local_addr, hostname));
    if (h == NULL || h->name == NULL)
        rc = mu_fail(reterr, MUSTER_ENOMEM, "no memory for a static rendezvous");
    else if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        rc = mu_fail_errno(reterr, errno, "get random bytes");
    if (rc < 0) {
        free(h == NULL ? NULL : h->name);
        free(h);
        mu_static_place_done(place);
        return rc;
    }
    h->base = (struct mu_handler){ .base = { &handler_ops }, .ops = &agent_ops, .ask = ask };
    h->place = *place;
    h->loop = loop;
    h->listener = listener;
    h->ctx = ctx;
    mu_static_init(&h->group, &h->place, h->name, getpid(), seed);
    mu_later_open(&h->later, loop, NULL);
    (void)uv_timer_init(loop, &h->timer); /* only fills in memory */
    h->timer.data = h;
    *ret_handler = &h->base.base;
    return 0;
}

int mu_static_start(uv_loop_t *loop, const struct muster_rdzv_params *params, muster_rdzv_listener *listener, void *ctx,
                    struct muster_handler **ret_handler, struct muster_error *reterr)
{
    struct mu_static_place place = { .run_id = NULL };
    int rc = mu_static_place_from_params(params, &place, reterr);

    if (rc < 0) {
        mu_static_place_done(&place);
        return mu_wrap(reterr, rc, "make a static rendezvous");
    }
    return mu_static_start_at(loop, &place, muster_rdzv_params_local_addr(params), listener, ctx, ret_handler, reterr);
}
