/* Drives the boot machine. Happy path: a round is started, its effects are performed one by one, and what comes of them
 * goes back to the machine, until it says that it is done. An effect that fails at once is answered when the step is
 * over; one that fails later, when it does. What is under way when the round is stopped may still be answered: the
 * machine drops it. */
#include "handler/boot_uv.h"

#include "base/buf.h"
#include "base/random.h"
#include "handler/handler.h"
#include "handler/local_addresses.h"
#include "kv/later_uv.h"
#include "store/client_uv.h"
#include "store/listen.h"
#include "store/placed_server_uv.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* A request to the kv; lives until it is answered, wanted or not. */
struct order {
    struct mu_kv_request request;
    struct mu_boot_uv *boot;
    uint64_t id;
    struct mu_buf key, value;
};

static void part_gone(struct mu_boot_uv *boot)
{
    assert(boot->parts > 0);
    boot->parts--;
    if (boot->closing && boot->parts == 0)
        boot->closed(boot->config.ctx);
}

/* ---- Requests to the kv ---- */

static void free_order(struct order *order)
{
    muster_bytes_done(&order->request.bytes);
    mu_buf_done(&order->key);
    mu_buf_done(&order->value);
    free(order);
}

static void on_kv_done(struct mu_kv_request *request)
{
    struct order *order = request->ctx;
    struct mu_boot_uv *boot = order->boot;

    mu_boot_uv_answer(boot, mu_boot_answer(order->id, request));
    free_order(order);
    part_gone(boot);
}

static void answer_failed(struct mu_boot_uv *boot, uint64_t id, const struct muster_error *error)
{
    mu_boot_uv_answer(boot, (struct mu_boot_event){ .type = MU_BOOT_ON_REQUEST_FAILED, .id = id, .error = error });
}

static struct order *new_order(const struct mu_boot_effect *effect)
{
    struct order *order = calloc(1, sizeof *order);

    if (order == NULL)
        return NULL;
    if (mu_buf_append(&order->key, effect->key.data, effect->key.len, SIZE_MAX) == 0 &&
        mu_buf_append(&order->value, effect->value.data, effect->value.len, SIZE_MAX) == 0)
        return order;
    free_order(order);
    return NULL;
}

static void ask_kv(struct mu_boot_uv *boot, const struct mu_boot_effect *effect)
{
    struct order *order = new_order(effect);
    struct muster_error error;

    if (order == NULL) {
        (void)mu_fail(&error, MUSTER_ENOMEM, "a request to the store");
        answer_failed(boot, effect->id, &error);
        return;
    }
    order->boot = boot;
    order->id = effect->id;
    order->request = (struct mu_kv_request){
        .kind = mu_boot_kv_kind(effect->type),
        .key = { order->key.data, order->key.len },
        .value = { order->value.data, order->value.len },
        .timeout_ms = effect->wait_ms,
        .done = on_kv_done,
        .ctx = order,
    };
    boot->parts++;
    boot->config.kv->ops->submit(boot->config.kv, &order->request);
}

static void request(struct mu_boot_uv *boot, const struct mu_boot_effect *effect)
{
    if (boot->config.kv != NULL)
        ask_kv(boot, effect);
    else
        boot->config.ops->request(boot->config.ctx, effect);
}

/* ---- Stores ---- */

static void on_store_closed(void *ctx)
{
    part_gone(ctx);
}

static void close_store(struct mu_boot_uv *boot, struct mu_placed_server **store)
{
    struct mu_placed_server *server = *store;

    *store = NULL;
    if (server == NULL)
        return;
    boot->parts++;
    mu_placed_server_close(server, on_store_closed, boot);
}

/* In place of the one that is there. */
static int open_store(struct mu_boot_uv *boot, struct mu_placed_server **store, const struct mu_bind_plan *plan,
                      uint16_t port, struct muster_error *reterr)
{
    struct mu_bind_networks networks;
    const struct muster_store_server_config config = mu_bind_server_config(&boot->machine.bind, plan, port, &networks);

    close_store(boot, store);
    return mu_placed_server_start(boot->loop, &config, boot->place.apart, store, reterr);
}

static void answer_listening(struct mu_boot_uv *boot, uint64_t id, int rc, uint16_t port,
                             const struct mu_bind_plan *plan, const struct muster_error *error)
{
    mu_boot_uv_answer(boot, (struct mu_boot_event){ .type = rc == 0 ? MU_BOOT_ON_LISTENING : MU_BOOT_ON_LISTEN_FAILED,
                                                    .id = id,
                                                    .port = port,
                                                    .plan = plan,
                                                    .error = rc == 0 ? NULL : error });
}

static void open_workers(struct mu_boot_uv *boot, const struct mu_bind_plan *plan)
{
    struct muster_error error = { 0 };
    int rc = open_store(boot, &boot->workers, plan, boot->place.port, &error);

    answer_listening(boot, boot->place.id, rc, rc == 0 ? mu_addr_port(mu_placed_server_address(boot->workers)) : 0,
                     plan, &error);
}

static void open_agents(struct mu_boot_uv *boot, const struct mu_bind_plan *plan)
{
    struct muster_error error = { 0 };
    uint16_t port = boot->place.port;
    int rc = open_store(boot, &boot->agents, plan, 0, &error);

    if (rc == 0)
        rc = mu_listen_probe(&port, &error);
    answer_listening(boot, boot->place.id, rc, port, plan, &error);
}

static void on_renewed(void *ctx, uint64_t id, const struct muster_error *error)
{
    struct mu_boot_uv *boot = ctx;

    answer_listening(boot, id, error == NULL ? 0 : error->code, mu_addr_port(mu_placed_server_address(boot->workers)),
                     NULL, error);
}

static void renew_store(struct mu_boot_uv *boot, const struct mu_boot_effect *effect)
{
    mu_placed_server_renew(boot->workers, effect->id, on_renewed, boot);
}

static void free_port(struct mu_boot_uv *boot, const struct mu_boot_effect *effect)
{
    struct muster_error error = { 0 };
    uint16_t port = effect->port;
    int rc = mu_listen_probe(&port, &error);

    answer_listening(boot, effect->id, rc, port, NULL, &error);
}

struct mu_placed_server *mu_boot_uv_workers_store(const struct mu_boot_uv *boot)
{
    return boot->workers;
}

struct mu_placed_server *mu_boot_uv_agents_store(const struct mu_boot_uv *boot)
{
    return boot->workers != NULL ? boot->workers : boot->agents;
}

/* ---- The connection to the workers' store: ours, or another node's ---- */

static void on_self_closed(struct mu_client *client, void *ctx)
{
    (void)client;
    part_gone(ctx);
}

static void drop_self(struct mu_boot_uv *boot)
{
    struct mu_client *self = boot->self;

    boot->self = NULL;
    if (self == NULL)
        return;
    boot->parts++;
    mu_client_close(self, on_self_closed, boot);
}

static void on_self_ready(struct mu_client *client, const struct muster_error *error, void *ctx)
{
    struct mu_boot_uv *boot = ctx;

    if (client != boot->self)
        return;
    drop_self(boot);
    mu_boot_uv_answer(boot,
                      (struct mu_boot_event){ .type = error == NULL ? MU_BOOT_ON_CHECKED : MU_BOOT_ON_REQUEST_FAILED,
                                              .id = boot->self_id,
                                              .error = error });
}

static void connect_to_store(struct mu_boot_uv *boot)
{
    const struct mu_boot_effect *place = &boot->place;
    struct mu_client_config config = {
        .host = place->addr, .port = place->port, .connect_timeout_ms = place->wait_ms, .seed = mu_fresh_seed()
    };
    struct muster_error error = { 0 };

    drop_self(boot);
    boot->self_id = place->id;
    if (mu_client_start(boot->loop, &config, on_self_ready, NULL, boot, &boot->self, &error) < 0)
        answer_failed(boot, place->id, &error);
}

static int listen_at(void *ctx, const union mu_addr *addr, struct muster_error *reterr)
{
    return mu_placed_server_listen_also(ctx, addr, reterr);
}

/* Another address than the one for which the store was opened: it may have to listen there, too. What fails here and is
 * not needed is found by connecting. */
static int listen_also(struct mu_boot_uv *boot, const struct mu_bind_plan *plan, struct muster_error *reterr)
{
    union mu_addr own[MU_BIND_INTERFACES_MAX];
    size_t count = mu_own_addresses(own, MU_BIND_INTERFACES_MAX);

    return mu_bind_each(plan, own, count, listen_at, boot->workers, reterr);
}

static void set_place(struct mu_boot_uv *boot, const struct mu_boot_effect *effect)
{
    boot->place = *effect;
    boot->place.addr = boot->place_addr;
    (void)snprintf(boot->place_addr, sizeof boot->place_addr, "%s", effect->addr);
}

static void forget_place(struct mu_boot_uv *boot)
{
    mu_boot_lookup_forget(&boot->lookup);
    mu_bind_uv_cancel(&boot->ask);
}

/* To the store of another node. */
static void reach(struct mu_boot_uv *boot, const struct mu_boot_effect *effect)
{
    forget_place(boot);
    set_place(boot, effect);
    connect_to_store(boot);
}

static void check_self(struct mu_boot_uv *boot, const struct mu_bind_plan *plan)
{
    struct muster_error error = { 0 };

    if (listen_also(boot, plan, &error) < 0)
        answer_failed(boot, boot->place.id, &error);
    else
        connect_to_store(boot);
}

/* ---- Where to listen ---- */

static void ask_for_place(struct mu_boot_uv *boot);

static void use_plan(struct mu_boot_uv *boot, const struct mu_bind_plan *plan)
{
    switch (boot->place.type) {
    case MU_BOOT_DO_OPEN_STORE:
        open_workers(boot, plan);
        break;
    case MU_BOOT_DO_OPEN_AGENTS:
        open_agents(boot, plan);
        break;
    default:
        assert(boot->place.type == MU_BOOT_DO_CHECK_SELF);
        check_self(boot, plan);
        break;
    }
}

/* `plan`: what was asked for; NULL: it was cancelled. */
static void on_plan(struct mu_boot_uv *boot, const struct mu_bind_plan *plan)
{
    switch (mu_boot_lookup_answered(&boot->lookup)) {
    case MU_BOOT_LOOKUP_BUSY:
        use_plan(boot, plan);
        break;
    case MU_BOOT_LOOKUP_NEXT:
        ask_for_place(boot);
        break;
    case MU_BOOT_LOOKUP_STALE:
    case MU_BOOT_LOOKUP_FREE:
        break;
    }
}

static void on_planned(void *ctx, const struct mu_bind_plan *plan)
{
    struct mu_boot_uv *boot = ctx;

    if (plan != NULL)
        boot->plan = *plan;
    on_plan(boot, plan != NULL ? &boot->plan : NULL);
    part_gone(boot);
}

static void ask_for_place(struct mu_boot_uv *boot)
{
    if (mu_bind_uv_ask(&boot->ask, boot->loop, &boot->machine.bind, boot->place.addr, &boot->plan, on_planned, boot))
        on_plan(boot, &boot->plan);
    else
        boot->parts++;
}

static void find_place(struct mu_boot_uv *boot, const struct mu_boot_effect *effect)
{
    set_place(boot, effect);
    if (mu_boot_lookup_want(&boot->lookup))
        ask_for_place(boot);
}

/* ---- Steps ---- */

static void tell_done(struct mu_boot_uv *boot, const struct mu_boot_effect *effect)
{
    struct muster_store_info bootstrap = { .master_port = effect->port };

    (void)snprintf(bootstrap.master_addr, sizeof bootstrap.master_addr, "%s", effect->addr);
    boot->config.ops->on_done(boot->config.ctx, &bootstrap);
}

static void tell_failed(struct mu_boot_uv *boot, const struct muster_error *error)
{
    struct muster_error told = *error;

    told.code = mu_boot_told_code(error->code);
    boot->config.ops->on_failed(boot->config.ctx, &told);
}

static void perform(struct mu_boot_uv *boot, const struct mu_boot_effect *effect)
{
    switch (effect->type) {
    case MU_BOOT_DO_OPEN_STORE:
    case MU_BOOT_DO_OPEN_AGENTS:
    case MU_BOOT_DO_CHECK_SELF:
        find_place(boot, effect);
        break;
    case MU_BOOT_DO_RENEW_STORE:
        renew_store(boot, effect);
        break;
    case MU_BOOT_DO_FREE_PORT:
        free_port(boot, effect);
        break;
    case MU_BOOT_DO_CLOSE_STORE:
        close_store(boot, &boot->workers);
        break;
    case MU_BOOT_DO_CLOSE_AGENTS:
        close_store(boot, &boot->agents);
        break;
    case MU_BOOT_DO_REACH:
        reach(boot, effect);
        break;
    case MU_BOOT_DO_GET:
    case MU_BOOT_DO_CHECK:
    case MU_BOOT_DO_SET:
        request(boot, effect);
        break;
    case MU_BOOT_DO_DONE:
        tell_done(boot, effect);
        break;
    case MU_BOOT_DO_FAIL:
        tell_failed(boot, effect->error);
        break;
    case MU_BOOT_DO_SAY:
        mu_handler_log(effect->level, boot->machine.run_id, effect->text);
        break;
    }
}

static void on_timer(uv_timer_t *timer);

static void step(struct mu_boot_uv *boot, struct mu_boot_event *event)
{
    struct mu_boot_effects effects;

    event->now_ms = uv_now(boot->loop);
    mu_boot_step(&boot->machine, event, &effects);
    for (unsigned i = 0; i < effects.count && !boot->closing; i++)
        perform(boot, &effects.items[i]);
}

static void feed(struct mu_boot_uv *boot, struct mu_boot_event event)
{
    if (boot->closing || !mu_boot_inbox_hear(&boot->inbox, &event))
        return;
    do
        step(boot, &event);
    while (mu_boot_inbox_next(&boot->inbox, &event) && !boot->closing);
    if (!boot->closing) /* always derived anew, so never forgotten */
        mu_timer_until(&boot->timer, mu_boot_deadline_ms(&boot->machine), on_timer);
}

static void on_timer(uv_timer_t *timer)
{
    feed(timer->data, (struct mu_boot_event){ .type = MU_BOOT_ON_TIME });
}

void mu_boot_uv_answer(struct mu_boot_uv *boot, struct mu_boot_event event)
{
    feed(boot, event);
}

/* ---- From outside ---- */

static void forget_round(struct mu_boot_uv *boot)
{
    forget_place(boot);
    drop_self(boot);
}

void mu_boot_uv_start(struct mu_boot_uv *boot, const struct mu_boot_start *start)
{
    forget_round(boot);
    feed(boot, (struct mu_boot_event){ .type = MU_BOOT_ON_START, .start = start });
}

void mu_boot_uv_stop(struct mu_boot_uv *boot)
{
    forget_round(boot);
    feed(boot, (struct mu_boot_event){ .type = MU_BOOT_ON_STOP });
}

/* Workers look MASTER_ADDR up, and not every machine knows the name localhost: a resolver may ask far away for it, in
 * vain. */
static bool knows_localhost(void)
{
    FILE *file = fopen("/etc/hosts", "re");
    char line[1024];
    bool found = false;

    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL)
        found = mu_boot_is_localhost(line);
    if (file != NULL)
        (void)fclose(file);
    return found;
}

int mu_boot_uv_init(struct mu_boot_uv *boot, const struct mu_boot_config *config, struct muster_error *reterr)
{
    struct mu_boot_config machine = *config;
    char hostname[HOST_NAME_MAX + 1] = "";

    *boot = (struct mu_boot_uv){ .loop = NULL };
    if (machine.hostname == NULL && gethostname(hostname, sizeof hostname - 1) == 0)
        machine.hostname = hostname;
    machine.no_localhost = !knows_localhost();
    return mu_boot_init(&boot->machine, &machine, reterr);
}

void mu_boot_uv_done(struct mu_boot_uv *boot)
{
    mu_boot_done(&boot->machine);
}

void mu_boot_uv_open(struct mu_boot_uv *boot, uv_loop_t *loop, const struct mu_boot_uv_config *config)
{
    boot->loop = loop;
    boot->config = *config;
    boot->parts = 1;
    (void)uv_timer_init(loop, &boot->timer); /* only fills in memory */
    boot->timer.data = boot;
}

static void on_timer_closed(uv_handle_t *handle)
{
    part_gone(handle->data);
}

void mu_boot_uv_close(struct mu_boot_uv *boot, void (*closed)(void *ctx))
{
    assert(!boot->closing);
    boot->closing = true;
    boot->closed = closed;
    forget_place(boot);
    drop_self(boot);
    close_store(boot, &boot->workers);
    close_store(boot, &boot->agents);
    uv_close((uv_handle_t *)&boot->timer, on_timer_closed);
}
