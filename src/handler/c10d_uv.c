/* The c10d rendezvous: gets its store as host.h says, and then is a dynamic rendezvous on it.
 *
 * Happy path: begin -> what the machine of host.h wants is done here, and what comes of it is told to the machine ->
 * USE: the handler within is made on the connection, and everything goes to that. Requests that come meanwhile wait
 * (front_uv.h). Failures: FAIL is told as the failure of every request that waits. The next request begins anew. */
#include "base/log.h"
#include "handler/bind_uv.h"
#include "handler/front_uv.h"
#include "handler/host.h"
#include "handler/local_addresses.h"
#include "handler/rdzv_trace.h"
#include "kv/kv_c10d_uv.h"
#include "store/dial.h"
#include "store/server_uv.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    PORT_DEFAULT = 29400,
    STORE_TYPE_MAX = 16,
};

static const char loopback[] = "127.0.0.1"; /* hosts listen there, whatever else they do */

struct c10d {
    struct mu_front front;
    /* By the parameters. */
    char host[MU_HOST_MAX];
    uint16_t port;
    enum mu_host_rule rule;
    struct mu_doc_dialect dialect;
    uint64_t read_timeout_ms;
    struct mu_rdzv_settings settings;
    uint64_t seed;
    /* Starting up. */
    struct mu_host machine;
    uv_getaddrinfo_t resolver;
    bool resolving;
    union mu_addr addrs[MU_DIAL_ADDRS_MAX];
    unsigned addrs_count;
    struct mu_kv_request ask;         /* for hosted_by */
    char hosted_by[MU_NODE_TEXT_MAX]; /* the node that hosts the store; empty: no node says so */
    struct mu_server *server;
    struct mu_kv *kv;         /* of the handler within, which owns it */
    void (*alone)(void *ctx); /* is told when nobody else is connected any more */
    void *alone_ctx;
};

static void feed(struct c10d *c, struct mu_host_event event);

/* ---- Ending ---- */

static void on_server_closed(struct mu_server *server, void *ctx)
{
    (void)server;
    mu_front_drop(ctx);
}

static void close_server(struct c10d *c)
{
    struct mu_server *server = c->server;

    c->server = NULL;
    mu_front_hold(&c->front);
    mu_server_close(server, on_server_closed, c);
}

/* The store is the last to go: others get their answers until then. */
static void over(struct mu_front *front)
{
    struct c10d *c = (struct c10d *)front;

    if (c->server != NULL)
        close_server(c);
    else
        mu_front_free(front);
}

/* ---- Connecting ---- */

static bool accepted_on(void *ctx, char *text, size_t room)
{
    const struct c10d *c = ctx;
    union mu_addr addr;

    return c->server != NULL && mu_server_accepted_on(c->server, &addr) && mu_addr_host(&addr, text, room);
}

static const char *host_of(const struct c10d *c, enum mu_host_place place)
{
    return place == MU_HOST_ENDPOINT ? c->host : loopback;
}

static uint16_t port_of(const struct c10d *c)
{
    return c->server != NULL ? mu_addr_port(mu_server_address(c->server)) : c->port;
}

static void run(struct c10d *c)
{
    char endpoint[MU_HOST_MAX + 8];
    const struct mu_dynamic_config config = {
        .backend = "c10d",
        .run_id = c->front.run_id,
        .local_addr = c->front.local_addr,
        .bind = mu_front_bind(&c->front),
        .master = c->front.master,
        .settings = c->settings,
        .dialect = c->dialect,
        .local_id = c->front.local_id,
        .use_agent_store = c->front.use_agent_store,
        .request_timeout_ms = c->read_timeout_ms,
        .endpoint = endpoint,
        .store_host = c->host,
        .store_addr = c->machine.place == MU_HOST_LOOPBACK ? loopback : c->host,
        .store_port = port_of(c),
        .hosted_by = c->hosted_by,
        .accepted_on = c->server != NULL ? accepted_on : NULL,
        .accepted_on_ctx = c,
    };

    (void)snprintf(endpoint, sizeof endpoint, "%s:%u", c->host, (unsigned)c->port);
    c->kv = c->front.kv;
    mu_front_run(&c->front, &config);
    if (c->front.inner == NULL)
        feed(c, (struct mu_host_event){ .type = MU_HOST_ON_UNUSABLE });
}

static void on_ready(struct mu_kv *kv, const struct muster_error *error, void *ctx)
{
    struct c10d *c = ctx;

    assert(kv == c->front.kv);
    (void)kv;
    feed(c, (struct mu_host_event){ .type = error == NULL ? MU_HOST_ON_CONNECTED : MU_HOST_ON_NOT_CONNECTED,
                                    .error = error });
}

static void connect_to(struct c10d *c, enum mu_host_place place, uint64_t wait_ms)
{
    const struct mu_kv_c10d_config config = {
        .host = host_of(c, place),
        .port = port_of(c),
        .run_id = c->front.run_id,
        .read_timeout_ms = wait_ms,
        .seed = c->seed++,
        .host_node = place == MU_HOST_OWN ? c->hosted_by : NULL,
        .on_ready = on_ready,
        .ctx = c,
    };
    struct muster_error error;

    if (mu_kv_c10d_start(c->front.loop, &config, &c->front.kv, &error) < 0)
        feed(c, (struct mu_host_event){ .type = MU_HOST_ON_NOT_CONNECTED, .error = &error });
}

static void on_answered(struct mu_kv_request *request)
{
    struct c10d *c = request->ctx;

    if (request->rc == 0 && request->found && request->bytes.len < sizeof c->hosted_by)
        (void)snprintf(c->hosted_by, sizeof c->hosted_by, "%.*s", (int)request->bytes.len, request->bytes.data);
    muster_bytes_done(&request->bytes);
    if (!c->front.freeing)
        feed(c, (struct mu_host_event){ .type = request->rc == 0 ? MU_HOST_ON_ANSWERED : MU_HOST_ON_NOT_ANSWERED,
                                        .error = &request->error });
}

static void ask_who_hosts(struct c10d *c, uint64_t wait_ms)
{
    c->hosted_by[0] = '\0';
    c->ask = (struct mu_kv_request){ .kind = MU_KV_HOST, .timeout_ms = wait_ms, .done = on_answered, .ctx = c };
    c->front.kv->ops->submit(c->front.kv, &c->ask);
}

/* ---- Hosting ---- */

static void say_where(const struct c10d *c, const struct mu_bind_plan *plan)
{
    const char *run_id = c->front.run_id;

    if (plan->reason == MU_BIND_NOT_OWN)
        mu_log(MUSTER_LOG_WARNING,
               "rendezvous '%s': '%s' is not an address of this machine, so its store listens on every address; --bind "
               "ADDR limits that",
               run_id, c->host);
    else if (plan->reason == MU_BIND_INTERFACES && c->settings.nodes_max > 1)
        mu_log(
            MUSTER_LOG_WARNING,
            "rendezvous '%s': '%s' is a loopback address on this machine, so its store also listens on the addresses "
            "of all interfaces; --bind ADDR limits that",
            run_id, c->host);
    mu_log(MUSTER_LOG_INFO, "rendezvous '%s': hosting its store on port %u of %s", run_id, (unsigned)port_of(c),
           plan->hosts);
}

/* PyTorch's has no place in the group yet when it hosts. */
static void record_hosting(const struct c10d *c)
{
    char hostname[MU_HANDLER_NAME_MAX];
    const struct mu_teller who = mu_teller_new(c->front.run_id, c->front.local_addr, -1, hostname);

    mu_rdzv_trace_tell(&who, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_HOSTS });
}

static void listen_for_nodes(struct c10d *c)
{
    const struct mu_bind bind = mu_front_bind(&c->front);
    struct mu_bind_networks networks;
    struct mu_bind_plan plan;
    struct muster_store_server_config config = {
        .size = sizeof config, .port = c->port, .allow = mu_bind_networks(&bind, &networks), .allow_own = true
    };
    char hostname[MU_HANDLER_NAME_MAX];
    struct muster_error error;
    struct mu_node me;

    mu_bind_ask_known(&bind, c->host, c->addrs, c->addrs_count, c->front.local_addr, &plan);
    config.host = plan.hosts;
    if (mu_server_start_as(c->front.loop, &config, &c->server, &error) < 0) {
        feed(c, (struct mu_host_event){ .type = MU_HOST_ON_NOT_BOUND, .error = &error });
        return;
    }
    me = (struct mu_node){ mu_slice_str(mu_handler_node_name(c->front.local_addr, hostname)), getpid(),
                           c->front.local_id };
    (void)mu_node_text(&me, c->hosted_by);
    say_where(c, &plan);
    record_hosting(c);
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
    for (const struct addrinfo *ai = list; ai != NULL && c->addrs_count < MU_DIAL_ADDRS_MAX; ai = ai->ai_next) {
        if (ai->ai_family == AF_INET || ai->ai_family == AF_INET6)
            memcpy(&c->addrs[c->addrs_count++], ai->ai_addr, ai->ai_addrlen);
    }
    uv_freeaddrinfo(list);
    if (!c->front.freeing)
        tell_resolved(c, status);
    mu_front_drop(&c->front);
}

static void resolve(struct c10d *c)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    int rc;

    c->addrs_count = 0;
    c->resolver.data = c;
    rc = uv_getaddrinfo(c->front.loop, &c->resolver, on_resolved, c->host, NULL, &hints);
    if (rc < 0) {
        tell_resolved(c, rc);
        return;
    }
    c->resolving = true;
    mu_front_hold(&c->front);
}

/* ---- The machine ---- */

static void on_timer(uv_timer_t *timer)
{
    feed(timer->data, (struct mu_host_event){ .type = MU_HOST_ON_TIME });
}

static void perform(struct c10d *c, const struct mu_host_effect *effect)
{
    struct muster_error error;

    switch (effect->type) {
    case MU_HOST_DO_RESOLVE:
        resolve(c);
        break;
    case MU_HOST_DO_LISTEN:
        listen_for_nodes(c);
        break;
    case MU_HOST_DO_CONNECT:
        connect_to(c, effect->place, effect->wait_ms);
        break;
    case MU_HOST_DO_ASK:
        ask_who_hosts(c, effect->wait_ms);
        break;
    case MU_HOST_DO_DISCONNECT:
        mu_front_close_kv(&c->front);
        break;
    case MU_HOST_DO_UNLISTEN:
        close_server(c);
        break;
    case MU_HOST_DO_USE:
        run(c);
        break;
    case MU_HOST_DO_FAIL:
        error = *effect->error;
        mu_front_fail(&c->front, error.code, &error);
        break;
    case MU_HOST_DO_WARN_LOOPBACK:
        mu_log(MUSTER_LOG_WARNING,
               "rendezvous '%s': '%s' is the loopback address, so only nodes on this host can join it", c->front.run_id,
               c->host);
        break;
    case MU_HOST_DO_WARN_TAKEN:
        mu_log(MUSTER_LOG_WARNING,
               "rendezvous '%s': port %u of this machine is taken, but no store answers there (%s); trying again",
               c->front.run_id, c->port, effect->error->text);
        break;
    }
}

static void feed(struct c10d *c, struct mu_host_event event)
{
    struct mu_host_effects effects;
    uint64_t when_ms;

    event.now_ms = uv_now(c->front.loop);
    mu_host_step(&c->machine, &event, &effects);
    when_ms = mu_host_deadline_ms(&c->machine);
    if (when_ms != UINT64_MAX)
        (void)uv_timer_start(&c->front.timer, on_timer, when_ms - event.now_ms, 0);
    for (unsigned i = 0; i < effects.count; i++) /* the last may lead to a next step, or to the end */
        perform(c, &effects.items[i]);
}

static void begin(struct mu_front *front)
{
    struct c10d *c = (struct c10d *)front;

    c->addrs_count = (unsigned)mu_dial_known(c->host, c->port, c->addrs);
    feed(c, (struct mu_host_event){ .type = MU_HOST_ON_START, .addresses = addresses_of(c) });
}

/* ---- The handler ---- */

static void c10d_free(struct muster_handler *handler, void (*done)(void *ctx), void *ctx)
{
    struct c10d *c = (struct c10d *)handler;

    if (c->resolving)
        (void)uv_cancel((uv_req_t *)&c->resolver); /* if it cannot be cancelled it is waited for */
    mu_front_end(handler, done, ctx);
}

static bool c10d_endpoint(const struct muster_handler *handler, char *ret_host, size_t room, uint16_t *ret_port)
{
    const struct c10d *c = (const struct c10d *)handler;

    if (c->front.inner == NULL)
        return false;
    (void)snprintf(ret_host, room, "%s", host_of(c, c->machine.place));
    *ret_port = port_of(c);
    return true;
}

static bool c10d_hosts(const struct muster_handler *handler)
{
    return ((const struct c10d *)handler)->server != NULL;
}

/* Nobody else is connected to the rendezvous store. To the workers' store, if it is here as well? */
static void on_server_alone(void *ctx)
{
    struct c10d *c = ctx;

    if (mu_front_hosts_workers(&c->front))
        mu_front_when_alone(&c->front.handler.base, c->alone, c->alone_ctx);
    else
        c->alone(c->alone_ctx);
}

static void c10d_when_alone(struct muster_handler *handler, void (*alone)(void *ctx), void *ctx)
{
    struct c10d *c = (struct c10d *)handler;

    c->alone = alone;
    c->alone_ctx = ctx;
    if (c->server != NULL)
        mu_server_when_alone(c->server, on_server_alone, c);
    else
        mu_front_when_alone(handler, alone, ctx);
}

static const struct muster_handler_ops c10d_ops = {
    .size = sizeof c10d_ops,
    .name = "c10d",
    .join = mu_front_join,
    .leave = mu_front_leave,
    .close = mu_front_close,
    .look = mu_front_look,
    .use_agent_store = mu_front_use_agent_store,
    .free = c10d_free,
    .endpoint = c10d_endpoint,
    .hosts = c10d_hosts,
    .when_alone = c10d_when_alone,
};

static struct mu_kv *shared_kv(const struct muster_handler *handler)
{
    const struct c10d *c = (const struct c10d *)handler;

    return c->front.inner != NULL ? c->kv : NULL;
}

static const struct mu_handler_ops agent_ops = { .shared_kv = shared_kv };
static const struct mu_front_ops front_ops = { &c10d_ops, &agent_ops, .begin = begin, .over = over };

/* ---- Parameters ---- */

static int check_store_type(const struct muster_rdzv_params *params, struct muster_error *reterr)
{
    struct muster_value value;
    const char *start, *end;
    char type[STORE_TYPE_MAX];
    size_t len = 0;

    if (!muster_rdzv_params_get(params, "store_type", &value))
        return 0;
    if (value.kind != MUSTER_VALUE_TEXT)
        return mu_fail(reterr, MUSTER_EINVAL, "option 'store_type' is not text");
    start = value.text;
    while (isspace((unsigned char)*start))
        start++;
    end = start + strlen(start);
    while (end > start && isspace((unsigned char)end[-1]))
        end--;
    for (; start < end && len < sizeof type - 1; start++)
        type[len++] = (char)tolower((unsigned char)*start);
    type[len] = '\0';
    if (strcmp(type, "tcp") == 0)
        return 0;
    if (strcmp(type, "file") == 0)
        return mu_fail(reterr, MUSTER_ENOTSUP, "option 'store_type': 'file' is not supported yet; 'tcp' is");
    return mu_fail(reterr, MUSTER_EINVAL, "option 'store_type': '%.40s' is neither tcp nor file", value.text);
}

static int read_hosting(struct c10d *c, const struct muster_rdzv_params *params, struct muster_error *reterr)
{
    struct muster_value value;
    bool is_host = false;
    int rc = muster_rdzv_params_get_as_bool(params, "is_host", false, &is_host, reterr);

    if (rc < 0)
        return rc;
    if (!muster_rdzv_params_get(params, "is_host", &value))
        c->rule = MU_HOST_IF_OURS;
    else
        c->rule = is_host ? MU_HOST_ALWAYS : MU_HOST_NEVER;
    if (c->rule == MU_HOST_NEVER && c->port == 0)
        return mu_fail(reterr, MUSTER_EINVAL,
                       "port 0 is for the node that hosts the store, and is_host says it is not");
    return 0;
}

static int read_endpoint(struct c10d *c, const struct muster_rdzv_params *params, struct muster_error *reterr)
{
    char name[MU_RDZV_HOST_MAX];
    int port, rc = mu_rdzv_endpoint_parse(muster_rdzv_params_endpoint(params), PORT_DEFAULT, name, &port, reterr);

    if (rc < 0)
        return rc;
    if (strlen(name) >= sizeof c->host)
        return mu_fail(reterr, MUSTER_ELIMIT, "endpoint: a host name of %zu bytes is too long", strlen(name));
    memcpy(c->host, name, strlen(name) + 1);
    c->port = (uint16_t)port;
    return 0;
}

static int copy_texts(struct c10d *c, const struct muster_rdzv_params *params, struct muster_error *reterr)
{
    const char *local_addr = muster_rdzv_params_local_addr(params);

    c->front.run_id = strdup(muster_rdzv_params_run_id(params));
    c->front.local_addr = local_addr == NULL ? NULL : strdup(local_addr);
    if (c->front.run_id == NULL || (local_addr != NULL && c->front.local_addr == NULL))
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a rendezvous");
    return 0;
}

static int read_params(struct c10d *c, const struct muster_rdzv_params *params, struct muster_error *reterr)
{
    int rc = mu_rdzv_check_options("c10d", params, reterr);

    if (rc == 0)
        rc = check_store_type(params, reterr);
    if (rc == 0)
        rc = read_endpoint(c, params, reterr);
    if (rc == 0)
        rc = read_hosting(c, params, reterr);
    if (rc == 0)
        rc = mu_rdzv_read_timeout_from_params(params, &c->read_timeout_ms, reterr);
    if (rc == 0)
        rc = mu_rdzv_dialect_from_params(params, &c->dialect, &c->front.use_agent_store, reterr);
    if (rc == 0)
        rc = mu_rdzv_settings_from_params(params, &c->settings, reterr);
    if (rc == 0)
        rc = copy_texts(c, params, reterr);
    return rc == 0 ? mu_front_take_places(&c->front, params, reterr) : rc;
}

static void start_machine(struct c10d *c)
{
    const struct mu_host_config config = {
        .name = c->host,
        .port = c->port,
        .rule = c->rule,
        .patience_ms = c->read_timeout_ms < c->settings.join_ms ? c->read_timeout_ms : c->settings.join_ms,
        .warn_loopback = c->settings.nodes_max > 1 && c->front.bind_hosts == NULL && mu_bind_is_universal(c->host),
    };

    mu_host_init(&c->machine, &config);
}

int mu_c10d_start(struct uv_loop_s *loop, const struct muster_rdzv_params *params, muster_rdzv_listener *listener,
                  void *ctx, struct muster_handler **ret_handler, struct muster_error *reterr)
{
    struct c10d *c = calloc(1, sizeof *c);
    int rc;

    if (c == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a rendezvous");
    rc = read_params(c, params, reterr);
    if (rc == 0)
        rc = mu_dynamic_check_name(c->front.local_addr, reterr);
    if (rc == 0)
        rc = mu_front_draw(&c->front, &c->seed, reterr);
    if (rc < 0) {
        mu_front_free_texts(&c->front);
        free(c);
        return mu_wrap(reterr, rc, "rendezvous c10d");
    }
    start_machine(c);
    *ret_handler = mu_front_open(&c->front, &front_ops, loop, listener, ctx);
    return 0;
}
