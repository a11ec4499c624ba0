/* The c10d rendezvous: gets its store as host.h says, and then is a dynamic rendezvous on it.
 *
 * Happy path: begin -> what the machine of host.h wants is done here, and what comes of it is told to the machine ->
 * USE: the dynamic rendezvous runs on the connection. Requests that come meanwhile wait (talk.h).
 * Failures: FAIL is told as the failure of every request that waits. The next request begins anew. */
#include "base/log.h"
#include "handler/bind_uv.h"
#include "handler/dynamic_uv.h"
#include "handler/host.h"
#include "handler/local_addresses.h"
#include "kv/kv_c10d_uv.h"
#include "store/dial.h"
#include "store/server_uv.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct c10d {
    struct mu_dynamic dynamic;
    char host[MU_HOST_MAX], endpoint[MU_HOST_MAX + 8];
    struct mu_host machine;
    uv_getaddrinfo_t resolver;
    bool resolving;
    union mu_addr addrs[MU_DIAL_ADDRS_MAX];
    unsigned addrs_count;
    struct mu_kv_request ask;         /* for hosted_by */
    char hosted_by[MU_NODE_TEXT_MAX]; /* the node that hosts the store; empty: no node says so */
    struct mu_server *server;
    struct mu_server_watch *watch; /* of the document */
    void (*alone)(void *ctx);      /* is called when no other process is connected */
    void *alone_ctx;
};

static void feed(struct c10d *c, struct mu_host_event event);

static struct mu_shell *shell_of(struct c10d *c)
{
    return &c->dynamic.shell;
}

/* ---- Ending ---- */

static void on_server_closed(struct mu_server *server, void *ctx)
{
    (void)server;
    mu_shell_drop(ctx);
}

static void close_server(struct c10d *c)
{
    struct mu_server *server = c->server;

    c->server = NULL;
    if (c->watch != NULL)
        mu_server_unwatch(server, c->watch);
    mu_shell_hold(shell_of(c));
    mu_server_close(server, on_server_closed, c);
}

/* The store is the last to go: others get their answers until then. */
static void last(struct mu_dynamic *d)
{
    struct c10d *c = (struct c10d *)d;

    if (c->server != NULL)
        close_server(c);
    mu_shell_drop(d);
}

/* ---- Connecting ---- */

static bool accepted_on(struct mu_dynamic *d, char *text, size_t room)
{
    const struct c10d *c = (const struct c10d *)d;
    union mu_addr addr;

    return c->server != NULL && mu_server_accepted_on(c->server, &addr) && mu_addr_host(&addr, text, room);
}

static uint16_t port_of(const struct c10d *c)
{
    return c->server != NULL ? mu_addr_port(mu_server_address(c->server)) : c->machine.config.port;
}

static void run(struct c10d *c)
{
    const struct mu_dynamic_place place = {
        .store_addr = mu_host_workers_name(&c->machine),
        .store_port = port_of(c),
        .hosted_by = c->hosted_by,
        .accepted_on = c->server != NULL ? accepted_on : NULL,
    };

    if (!mu_dynamic_run(&c->dynamic, &place))
        feed(c, (struct mu_host_event){ .type = MU_HOST_ON_UNUSABLE });
}

static void on_ready(struct mu_kv *kv, const struct muster_error *error, void *ctx)
{
    struct c10d *c = ctx;

    assert(kv == c->dynamic.kv);
    (void)kv;
    feed(c, (struct mu_host_event){ .type = error == NULL ? MU_HOST_ON_CONNECTED : MU_HOST_ON_NOT_CONNECTED,
                                    .error = error });
}

static void connect_to(struct c10d *c, uint64_t wait_ms)
{
    const struct mu_kv_c10d_config config = {
        .host = mu_host_dial_name(&c->machine),
        .port = port_of(c),
        .run_id = c->dynamic.config.run_id,
        .read_timeout_ms = wait_ms,
        .seed = c->dynamic.seed++,
        .host_node = mu_host_hosts(&c->machine) ? c->hosted_by : NULL,
        .on_ready = on_ready,
        .ctx = c,
    };
    struct muster_error error;

    if (mu_kv_c10d_start(shell_of(c)->loop, &config, &c->dynamic.kv, &error) < 0)
        feed(c, (struct mu_host_event){ .type = MU_HOST_ON_NOT_CONNECTED, .error = &error });
}

static void on_answered(struct mu_kv_request *request)
{
    struct c10d *c = request->ctx;

    if (request->rc == 0 && request->found && request->bytes.len < sizeof c->hosted_by)
        (void)snprintf(c->hosted_by, sizeof c->hosted_by, "%.*s", (int)request->bytes.len, request->bytes.data);
    muster_bytes_done(&request->bytes);
    if (!shell_of(c)->freeing)
        feed(c, (struct mu_host_event){ .type = request->rc == 0 ? MU_HOST_ON_ANSWERED : MU_HOST_ON_NOT_ANSWERED,
                                        .error = &request->error });
}

static void ask_who_hosts(struct c10d *c, uint64_t wait_ms)
{
    c->hosted_by[0] = '\0';
    c->ask = (struct mu_kv_request){ .kind = MU_KV_HOST, .timeout_ms = wait_ms, .done = on_answered, .ctx = c };
    c->dynamic.kv->ops->submit(c->dynamic.kv, &c->ask);
}

/* ---- Hosting ---- */

static void say_where(const struct c10d *c, const struct mu_bind_plan *plan)
{
    const char *run_id = c->dynamic.config.run_id;
    char text[MU_BIND_WARNING_MAX];

    if (mu_bind_warning(plan, c->host, "its store", c->dynamic.config.settings.nodes_max > 1, text))
        mu_log(MUSTER_LOG_WARNING, "rendezvous '%s': %s", run_id, text);
    mu_log(MUSTER_LOG_INFO, "rendezvous '%s': hosting its store on port %u of %s", run_id, (unsigned)port_of(c),
           plan->hosts);
}

/* PyTorch's has no place in the group yet when it hosts. */
static void record_hosting(const struct c10d *c)
{
    const struct mu_node me = { c->dynamic.shell.me.name, getpid(), -1 };

    mu_rdzv_trace_tell(&(struct mu_teller){ c->dynamic.config.run_id, me },
                       (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_HOSTS });
}

/* No node writes that. Each one that reads it says what it found; only the host knows from whom it came. */
static void on_document(void *ctx, struct mu_slice value)
{
    const struct c10d *c = ctx;
    const union mu_addr *from = mu_server_writer_address(c->server);
    char text[MU_ADDR_TEXT_MAX];

    if (from != NULL && !mu_kv_c10d_may_be_document(value))
        mu_log(MUSTER_LOG_WARNING, "rendezvous '%s': %s has overwritten the document with something else (%zu bytes)",
               c->dynamic.config.run_id, mu_addr_format(from, text), value.len);
}

static void watch_document(struct c10d *c)
{
    char key[MU_KV_RUN_ID_MAX + 32];
    int len = snprintf(key, sizeof key, "/torch.rendezvous.%s", c->dynamic.config.run_id);
    struct muster_error error;

    if (len < 0 || (size_t)len >= sizeof key ||
        mu_server_watch(c->server, mu_slice(key, (size_t)len), on_document, c, &c->watch, &error) < 0)
        c->watch = NULL; /* no memory: one line less in the log */
}

static void listen_for_nodes(struct c10d *c)
{
    const struct mu_bind *bind = &shell_of(c)->boot.machine.bind;
    struct mu_bind_networks networks;
    struct mu_bind_plan plan;
    struct muster_store_server_config config = { .size = sizeof config,
                                                 .port = c->machine.config.port,
                                                 .allow = mu_bind_networks(bind, &networks),
                                                 .allow_own = true };
    struct muster_error error;

    mu_bind_ask_known(bind, c->host, c->addrs, c->addrs_count, c->dynamic.config.local_addr, &plan);
    config.host = plan.hosts;
    if (mu_server_start_as(shell_of(c)->loop, &config, &c->server, &error) < 0) {
        feed(c, (struct mu_host_event){ .type = MU_HOST_ON_NOT_BOUND, .error = &error });
        return;
    }
    (void)mu_node_text(&shell_of(c)->me, c->hosted_by);
    say_where(c, &plan);
    record_hosting(c);
    watch_document(c);
    feed(c, (struct mu_host_event){ .type = MU_HOST_ON_BOUND });
}

/* ---- Resolving ---- */

static struct mu_host_addresses addresses_of(const struct c10d *c)
{
    struct mu_host_addresses all = { .count = c->addrs_count, .all_loopback = true };

    for (size_t i = 0; i < c->addrs_count; i++) {
        all.any_own = all.any_own || mu_owns_address(&c->addrs[i]);
        all.all_loopback = all.all_loopback && mu_addr_is_loopback(&c->addrs[i]);
    }
    return all;
}

static void tell_resolved(struct c10d *c, int status)
{
    struct muster_error error;

    (void)mu_fail(&error, MUSTER_ERDZV_CONNECTION, "%s", uv_strerror(status < 0 ? status : UV_EAI_NODATA));
    feed(c, (struct mu_host_event){ .type = MU_HOST_ON_RESOLVED, .addresses = addresses_of(c), .error = &error });
}

static void on_resolved(uv_getaddrinfo_t *req, int status, struct addrinfo *list)
{
    struct c10d *c = req->data;

    c->resolving = false;
    c->addrs_count = (unsigned)mu_dial_resolved(list, c->addrs);
    uv_freeaddrinfo(list);
    if (!shell_of(c)->freeing)
        tell_resolved(c, status);
    mu_shell_drop(c);
}

static void resolve(struct c10d *c)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    int rc;

    c->addrs_count = 0;
    c->resolver.data = c;
    rc = uv_getaddrinfo(shell_of(c)->loop, &c->resolver, on_resolved, c->host, NULL, &hints);
    if (rc < 0) {
        tell_resolved(c, rc);
        return;
    }
    c->resolving = true;
    mu_shell_hold(shell_of(c));
}

/* ---- The machine ---- */

static void perform(struct c10d *c, const struct mu_host_effect *effect)
{
    switch (effect->type) {
    case MU_HOST_DO_RESOLVE:
        resolve(c);
        break;
    case MU_HOST_DO_LISTEN:
        listen_for_nodes(c);
        break;
    case MU_HOST_DO_CONNECT:
        connect_to(c, effect->wait_ms);
        break;
    case MU_HOST_DO_ASK:
        ask_who_hosts(c, effect->wait_ms);
        break;
    case MU_HOST_DO_DISCONNECT:
        mu_dynamic_close_kv(&c->dynamic);
        break;
    case MU_HOST_DO_UNLISTEN:
        close_server(c);
        break;
    case MU_HOST_DO_USE:
        run(c);
        break;
    case MU_HOST_DO_FAIL:
        mu_dynamic_fail(&c->dynamic, effect->error);
        break;
    case MU_HOST_DO_WARN_LOOPBACK:
        mu_log(MUSTER_LOG_WARNING,
               "rendezvous '%s': '%s' is the loopback address, so only nodes on this host can join it",
               c->dynamic.config.run_id, c->host);
        break;
    case MU_HOST_DO_WARN_TAKEN:
        mu_log(MUSTER_LOG_WARNING, "rendezvous '%s': the port is taken: %s; trying again", c->dynamic.config.run_id,
               effect->error->text);
        break;
    case MU_HOST_DO_WARN_GUEST:
        mu_log(MUSTER_LOG_WARNING, "rendezvous '%s': %s; looking for a store that already runs there",
               c->dynamic.config.run_id, effect->error->text);
        break;
    }
}

static void feed(struct c10d *c, struct mu_host_event event)
{
    struct mu_host_effects effects;

    event.now_ms = uv_now(shell_of(c)->loop);
    mu_host_step(&c->machine, &event, &effects);
    shell_of(c)->also_ms = mu_host_deadline_ms(&c->machine);
    mu_shell_arm(shell_of(c));
    for (unsigned i = 0; i < effects.count; i++) /* the last may lead to a next step, or to the end */
        perform(c, &effects.items[i]);
}

static void find(struct mu_dynamic *d)
{
    struct c10d *c = (struct c10d *)d;

    c->addrs_count = (unsigned)mu_dial_known(c->host, c->machine.config.port, c->addrs);
    feed(c, (struct mu_host_event){ .type = MU_HOST_ON_START, .addresses = addresses_of(c) });
}

static void on_time(struct mu_dynamic *d)
{
    feed((struct c10d *)d, (struct mu_host_event){ .type = MU_HOST_ON_TIME });
}

/* ---- The handler ---- */

static void c10d_free(struct muster_handler *handler, void (*done)(void *ctx), void *ctx)
{
    struct c10d *c = (struct c10d *)handler;

    if (c->resolving)
        (void)uv_cancel((uv_req_t *)&c->resolver); /* if it cannot be cancelled it is waited for */
    mu_dynamic_free(handler, done, ctx);
}

static bool c10d_endpoint(const struct muster_handler *handler, char *ret_host, size_t room, uint16_t *ret_port)
{
    const struct c10d *c = (const struct c10d *)handler;

    if (c->dynamic.rdzv == NULL)
        return false;
    (void)snprintf(ret_host, room, "%s", mu_host_dial_name(&c->machine));
    *ret_port = port_of(c);
    return true;
}

static bool c10d_hosts(const struct muster_handler *handler)
{
    return ((const struct c10d *)handler)->server != NULL;
}

static enum mu_host_company company_of(const struct mu_server *server)
{
    return server == NULL ? MU_HOST_NO_STORE : mu_server_is_alone(server) ? MU_HOST_ALONE : MU_HOST_OTHERS;
}

static void on_maybe_alone(void *ctx)
{
    struct c10d *c = ctx;
    struct mu_server *workers = mu_boot_uv_workers_store(&shell_of(c)->boot);

    switch (mu_host_linger(company_of(c->server), company_of(workers))) {
    case MU_HOST_AWAIT_RENDEZVOUS:
        mu_server_when_alone(c->server, on_maybe_alone, c);
        break;
    case MU_HOST_AWAIT_WORKERS:
        mu_server_when_alone(workers, on_maybe_alone, c);
        break;
    case MU_HOST_GO:
        c->alone(c->alone_ctx);
        break;
    case MU_HOST_STAY:
        break;
    }
}

static void c10d_when_alone(struct muster_handler *handler, void (*alone)(void *ctx), void *ctx)
{
    struct c10d *c = (struct c10d *)handler;

    c->alone = alone;
    c->alone_ctx = ctx;
    if (c->server != NULL)
        mu_server_when_alone(c->server, on_maybe_alone, c);
    else
        mu_dynamic_when_alone(handler, alone, ctx);
}

static const struct muster_handler_ops c10d_ops = {
    MU_HANDLER_OPS("c10d"), .use_agent_store = mu_dynamic_use_agent_store,
    .free = c10d_free,      .endpoint = c10d_endpoint,
    .hosts = c10d_hosts,    .when_alone = c10d_when_alone,
};

static struct mu_kv *shared_kv(const struct muster_handler *handler)
{
    const struct c10d *c = (const struct c10d *)handler;

    return c->dynamic.rdzv != NULL ? c->dynamic.kv : NULL;
}

static const struct mu_handler_ops agent_ops = { .shared_kv = shared_kv };

/* ---- Parameters ---- */

static int read_params(struct mu_dynamic *d, const struct muster_rdzv_params *params, struct mu_dynamic_config *config,
                       struct muster_error *reterr)
{
    struct c10d *c = (struct c10d *)d;
    struct mu_host_config host = { .name = c->host };
    int rc = mu_host_from_params(params, config, c->host, &host, reterr);

    if (rc < 0)
        return rc;
    (void)snprintf(c->endpoint, sizeof c->endpoint, "%s:%u", c->host, (unsigned)host.port);
    config->endpoint = c->endpoint;
    config->store_host = c->host;
    mu_host_init(&c->machine, &host);
    return 0;
}

static const struct mu_finder_ops finder = { .size = sizeof(struct c10d),
                                             .handler = &c10d_ops,
                                             .agent = &agent_ops,
                                             .read = read_params,
                                             .find = find,
                                             .on_time = on_time,
                                             .last = last };

int mu_c10d_start(struct uv_loop_s *loop, const struct muster_rdzv_params *params, muster_rdzv_listener *listener,
                  void *ctx, struct muster_handler **ret_handler, struct muster_error *reterr)
{
    return mu_dynamic_start_finder(&finder, loop, params, listener, ctx, ret_handler, reterr);
}
