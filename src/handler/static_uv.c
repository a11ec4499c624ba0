/* The static rendezvous on a loop: drives static_group.c, which decides. Events are callbacks of the store's client and
 * server and of one timer; effects are calls of both. What the owner is told, and what must not be done inside of a
 * callback, comes at a later turn of the loop. */
#include "base/log.h"
#include "base/random.h"
#include "handler/bind_uv.h"
#include "handler/static_group.h"
#include "kv/later_uv.h"
#include "store/client_uv.h"
#include "store/server_uv.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

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
    struct mu_static_call_texts call_texts, goodbye_texts;
    bool calling;
    unsigned parts_closing;
    void (*freed)(void *ctx);
    void *freed_ctx;
};

static struct handler *handler_of(struct muster_handler *base)
{
    return (struct handler *)base;
}

static void feed(struct handler *h, struct mu_static_event event);

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
    if (h->ask.state == MU_BIND_UV_ASKED) {
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

    free(h->name);
    free(h);
    freed(ctx);
}

/* ---- Rank 0's server ---- */

static void on_count(void *ctx, struct mu_slice value)
{
    struct handler *h = ctx;

    feed(h, (struct mu_static_event){
                .type = MU_STATIC_ON_COUNTED, .connection = mu_server_writer(h->server), .bytes = value });
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

static int write_key(struct handler *h, enum mu_static_key what, int64_t number, const char *expected,
                     struct mu_slice value, struct muster_error *reterr)
{
    char key[MU_STATIC_KEY_MAX];

    return mu_server_compare_set(h->server, mu_static_key(&h->place, what, number, key), mu_slice_str(expected), value,
                                 reterr);
}

static int write_first(struct handler *h, struct muster_error *reterr)
{
    struct mu_static_value rows[MU_STATIC_FIRST];
    size_t count = mu_static_first_values(&h->place, rows);
    int rc = 0;

    for (size_t i = 0; i < count && rc == 0; i++)
        rc = write_key(h, rows[i].key, -1, "", mu_slice_str(rows[i].text), reterr);
    return rc;
}

static int watch(struct handler *h, enum mu_static_key what, mu_server_value *on_value,
                 struct mu_server_watch **ret_watch, struct muster_error *reterr)
{
    char key[MU_STATIC_KEY_MAX];

    return mu_server_watch(h->server, mu_static_key(&h->place, what, -1, key), on_value, h, ret_watch, reterr);
}

static int start_server(struct handler *h, const struct mu_bind_plan *plan, struct muster_error *reterr)
{
    const struct mu_bind bind = mu_static_bind(&h->place);
    struct mu_bind_networks networks;
    const struct muster_store_server_config config = mu_bind_server_config(&bind, plan, h->place.port, &networks);
    char warning[MU_BIND_WARNING_MAX];
    int rc;

    if (mu_static_bind_warning(&h->place, plan, warning))
        mu_log(MUSTER_LOG_WARNING, "static rendezvous: %s", warning);
    rc = mu_server_start_as(h->loop, &config, &h->server, reterr);
    if (rc < 0)
        return rc;
    mu_server_on_gone(h->server, on_gone, h);
    rc = write_first(h, reterr);
    if (rc == 0)
        rc = watch(h, MU_STATIC_KEY_COUNT, on_count, &h->count_watch, reterr);
    if (rc == 0)
        rc = watch(h, MU_STATIC_KEY_ANNOUNCE, on_announced, &h->announce_watch, reterr);
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
    int rc = write_key(h, MU_STATIC_KEY_PROGRESS, number, "", mu_slice(text, len), &error);

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

static void connect_client(struct handler *h, const struct mu_static_effect *effect)
{
    const struct mu_client_config config = {
        .host = h->place.host, .port = h->place.port, .connect_timeout_ms = effect->timeout_ms, .seed = effect->seed
    };
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

static void make_call(struct handler *h, const struct mu_static_effect *effect)
{
    assert(!h->calling);
    h->call = mu_static_call(&h->group, effect, &h->call_texts);
    h->call.done = on_answer;
    h->call.ctx = h;
    h->calling = true;
    mu_client_call(h->client, &h->call, effect->timeout_ms);
}

static void on_goodbye(struct mu_call *call)
{
    feed(call->ctx, (struct mu_static_event){ .type = MU_STATIC_ON_SAID });
}

static void say_goodbye(struct handler *h, const struct mu_static_effect *effect)
{
    h->goodbye = mu_static_call(&h->group, effect, &h->goodbye_texts);
    h->goodbye.done = on_goodbye;
    h->goodbye.ctx = h;
    assert(h->calling);
    mu_client_expire(h->client, &h->call);
    mu_client_call(h->client, &h->goodbye, effect->timeout_ms);
}

/* ---- The machine ---- */

static void tell_owner(struct handler *h, const struct mu_static_effect *effect)
{
    struct mu_static_told room;
    struct muster_rdzv_event event = mu_static_event(&h->group, effect, uv_now(h->loop), &room);

    h->listener(h->ctx, &event);
}

static void perform(struct handler *h, const struct mu_static_effect *effect)
{
    struct muster_error error;

    switch (effect->type) {
    case MU_STATIC_DO_SERVE:
        serve(h);
        break;
    case MU_STATIC_DO_CONNECT:
        connect_client(h, effect);
        break;
    case MU_STATIC_DO_CALL:
        make_call(h, effect);
        break;
    case MU_STATIC_DO_PROGRESS:
        write_progress(h, effect->number);
        break;
    case MU_STATIC_DO_WRITE:
        (void)write_key(h, effect->key, effect->number, effect->expected, mu_slice_str(effect->text), &error);
        break;
    case MU_STATIC_DO_GOODBYE:
        say_goodbye(h, effect);
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
        tell_owner(h, effect);
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

int mu_static_start_at(uv_loop_t *loop, const struct mu_static_place *place, const char *local_addr,
                       muster_rdzv_listener *listener, void *ctx, struct muster_handler **ret_handler,
                       struct muster_error *reterr)
{
    char hostname[MU_HANDLER_NAME_MAX];
    struct handler *h = calloc(1, sizeof *h);

    if (h != NULL)
        h->name = strdup(mu_handler_node_name(local_addr, hostname));
    if (h == NULL || h->name == NULL) {
        free(h);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a static rendezvous");
    }
    h->base = (struct mu_handler){ .base = { &handler_ops }, .ops = &agent_ops, .ask = ask };
    h->place = *place;
    h->loop = loop;
    h->listener = listener;
    h->ctx = ctx;
    mu_static_init(&h->group, &h->place, h->name, getpid(), mu_fresh_seed());
    mu_later_open(&h->later, loop, NULL);
    (void)uv_timer_init(loop, &h->timer); /* only fills in memory */
    h->timer.data = h;
    *ret_handler = &h->base.base;
    return 0;
}

int mu_static_start(uv_loop_t *loop, const struct muster_rdzv_params *params, muster_rdzv_listener *listener, void *ctx,
                    struct muster_handler **ret_handler, struct muster_error *reterr)
{
    struct mu_static_place place;
    int rc = mu_static_place_from_params(params, &place, reterr);

    if (rc < 0)
        return mu_wrap(reterr, rc, "make a static rendezvous");
    return mu_static_start_at(loop, &place, muster_rdzv_params_local_addr(params), listener, ctx, ret_handler, reterr);
}
