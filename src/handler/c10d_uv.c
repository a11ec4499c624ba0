/* The c10d rendezvous: finds out who hosts the store, hosts it or connects to it, and then is a dynamic rendezvous on it.
 *
 *   STARTING --> RESOLVING --ours--> listen --> CONNECTING --> RUNNING: everything goes to the handler within
 *       ^            | not ours ----------------^   |
 *       |            v time is up                   v no store there
 *       +--next ask-- FAILED <----------------------+
 *
 * Happy path: the endpoint's addresses are looked up. If one of them is this machine's, we try to listen on its port there
 * and on loopback (bind.h). If that works we host the store and connect to it through loopback; else another process here
 * hosts it, and we join. Requests that come meanwhile wait.
 *
 * Failures: a name that cannot be resolved is tried again until the time is up. A port of ours that is taken, but where no
 * store answers, is tried again as well, because it may become free. Something that answers and is no store ends it at once.
 * Each of these is told as the failure of the request. Names are never compared to find the host. */
#include "base/log.h"
#include "handler/bind_uv.h"
#include "handler/front_uv.h"
#include "handler/local_addresses.h"
#include "handler/rdzv_trace.h"
#include "kv/kv_c10d_uv.h"
#include "store/dial.h"
#include "store/server_uv.h"

#include <assert.h>
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    PORT_DEFAULT = 29400,
    RESOLVE_AGAIN_MS = 500,
    LISTEN_AGAIN_MS = 3000, /* how long a taken port of ours is dialled before it is bound again */
    STORE_TYPE_MAX = 16,
};

static const char loopback[] = "127.0.0.1"; /* hosts listen there, whatever else they do */

struct c10d {
    struct mu_front front;
    /* By the parameters. */
    char host[MU_HOST_MAX];
    uint16_t port;
    struct mu_doc_dialect dialect;
    enum { HOST_IF_OURS, HOST_ALWAYS, HOST_NEVER } hosting;
    uint64_t read_timeout_ms;
    struct mu_rdzv_settings settings;
    uint64_t seed;
    /* Starting up. */
    uv_getaddrinfo_t resolver;
    bool resolving, warned, told_taken;
    bool by_loopback;       /* the port is taken here, and nothing answers at the endpoint: try loopback next */
    unsigned resolve_count; /* tries */
    uint64_t deadline_ms;
    union mu_addr addrs[MU_DIAL_ADDRS_MAX];
    size_t addrs_count;
    struct muster_error not_hosting; /* why not, though the address is ours; code 0: it is not, or we do */
    struct mu_server *server;
    void (*alone)(void *ctx); /* is told when nobody else is connected any more */
    void *alone_ctx;
};

static void step(struct c10d *c);

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
    if (server == NULL)
        return;
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

/* There will be no store for what was asked so far. The next ask begins anew. */
static void fail_all(struct c10d *c, int code, struct muster_error *error)
{
    mu_front_close_kv(&c->front);
    close_server(c);
    mu_front_fail(&c->front, code, error);
}

/* ---- Connecting ---- */

static bool accepted_on(void *ctx, char *text, size_t room)
{
    const struct c10d *c = ctx;
    union mu_addr addr;

    return c->server != NULL && mu_server_accepted_on(c->server, &addr) && mu_addr_host(&addr, text, room);
}

static const char *host_to_dial(const struct c10d *c)
{
    return c->by_loopback ? loopback : c->host;
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
        .store_addr = host_to_dial(c),
        .store_port = c->server != NULL ? mu_addr_port(mu_server_address(c->server)) : c->port,
        .accepted_on = c->server != NULL ? accepted_on : NULL,
        .accepted_on_ctx = c,
    };

    (void)snprintf(endpoint, sizeof endpoint, "%s:%u", c->host, (unsigned)c->port);
    mu_front_run(&c->front, &config);
    if (c->front.inner == NULL)
        close_server(c);
}

/* No connection. Says what of our own doing is to be known about that. */
static void explain(const struct c10d *c, struct muster_error *error)
{
    if (c->not_hosting.code == MUSTER_EADDRINUSE)
        (void)mu_wrap(error, error->code,
                      error->code == MUSTER_EPROTOCOL
                          ? "port %u of this machine is taken by something that does not speak the store's protocol"
                          : "port %u of this machine is taken, but no store answers there",
                      (unsigned)c->port);
    else if (c->not_hosting.code != 0)
        (void)mu_wrap(error, error->code, "this machine could not host the store (%.300s), and there is no other",
                      c->not_hosting.text);
}

static void on_ready(struct mu_kv *kv, const struct muster_error *error, void *ctx)
{
    struct c10d *c = ctx;
    struct muster_error why;

    assert(kv == c->front.kv);
    (void)kv;
    if (error == NULL) {
        run(c);
        return;
    }
    mu_front_close_kv(&c->front);
    if (c->not_hosting.code == MUSTER_EADDRINUSE && error->code != MUSTER_EPROTOCOL &&
        uv_now(c->front.loop) < c->deadline_ms) {
        if (!c->told_taken)
            mu_log(MUSTER_LOG_WARNING,
                   "rendezvous '%s': port %u of this machine is taken, but no store answers there (%s); trying again",
                   c->front.run_id, c->port, error->text);
        c->told_taken = true;
        c->by_loopback = !c->by_loopback; /* its host may have named it localhost */
        step(c);                          /* with the addresses we have: is the port still taken? */
        return;
    }
    why = *error;
    explain(c, &why);
    fail_all(c, MUSTER_ERDZV_CONNECTION, &why);
}

static void connect_to(struct c10d *c, const char *host, uint16_t port, const char *host_node)
{
    uint64_t now = uv_now(c->front.loop);
    struct mu_kv_c10d_config config = {
        .host = host,
        .port = port,
        .run_id = c->front.run_id,
        .read_timeout_ms = c->deadline_ms > now ? c->deadline_ms - now : 1,
        .seed = c->seed++,
        .host_node = host_node,
        .on_ready = on_ready,
        .ctx = c,
    };
    struct muster_error error;
    int rc;

    if (c->not_hosting.code == MUSTER_EADDRINUSE && config.read_timeout_ms > LISTEN_AGAIN_MS)
        config.read_timeout_ms = LISTEN_AGAIN_MS;
    rc = mu_kv_c10d_start(c->front.loop, &config, &c->front.kv, &error);
    if (rc < 0)
        fail_all(c, rc, &error);
}

static void connect_elsewhere(struct c10d *c)
{
    struct muster_error error;

    if (c->port != 0) {
        connect_to(c, host_to_dial(c), c->port, NULL);
        return;
    }
    if (c->not_hosting.code == 0)
        (void)mu_fail(&error, MUSTER_ERDZV_CONNECTION,
                      "port 0 is for the node that hosts the store, and '%s' is not an address of this machine",
                      c->host);
    else
        error = c->not_hosting;
    fail_all(c, MUSTER_ERDZV_CONNECTION, &error);
}

/* ---- Hosting ---- */

static void say_where(const struct c10d *c, const struct mu_bind_plan *plan)
{
    const char *run_id = c->front.run_id;

    if (plan->reason == MU_BIND_NOT_OWN)
        mu_log(
            MUSTER_LOG_WARNING,
            "rendezvous '%s': '%s' is not an address of this machine, so its store listens on every address; --bind ADDR "
            "limits that",
            run_id, c->host);
    else if (plan->reason == MU_BIND_INTERFACES && c->settings.nodes_max > 1)
        mu_log(
            MUSTER_LOG_WARNING,
            "rendezvous '%s': '%s' is a loopback address on this machine, so its store also listens on the addresses of "
            "all interfaces; --bind ADDR limits that",
            run_id, c->host);
    mu_log(MUSTER_LOG_INFO, "rendezvous '%s': hosting its store on port %u of %s", run_id,
           (unsigned)mu_addr_port(mu_server_address(c->server)), plan->hosts);
}

/* PyTorch's has no place in the group yet when it hosts. */
static void record_hosting(const struct c10d *c)
{
    char hostname[MU_HANDLER_NAME_MAX];
    const struct mu_teller who = mu_teller_new(c->front.run_id, c->front.local_addr, -1, hostname);

    mu_rdzv_trace_tell(&who, (struct mu_rdzv_trace){ .kind = MU_RDZV_TRACE_HOSTS });
}

static int host(struct c10d *c)
{
    const struct mu_bind bind = mu_front_bind(&c->front);
    struct mu_bind_networks networks;
    struct mu_bind_plan plan;
    struct muster_store_server_config config = {
        .size = sizeof config, .port = c->port, .allow = mu_bind_networks(&bind, &networks), .allow_own = true
    };
    char hostname[MU_HANDLER_NAME_MAX], text[MU_NODE_TEXT_MAX];
    struct mu_node me;
    int rc;

    mu_bind_ask_known(&bind, c->host, c->addrs, c->addrs_count, c->front.local_addr, &plan);
    config.host = plan.hosts;
    c->not_hosting = (struct muster_error){ 0 };
    rc = mu_server_start_as(c->front.loop, &config, &c->server, &c->not_hosting);
    if (rc < 0)
        return mu_wrap(&c->not_hosting, rc, "host the store");
    me = (struct mu_node){ mu_slice_str(mu_handler_node_name(c->front.local_addr, hostname)), getpid(),
                           c->front.local_id };
    say_where(c, &plan);
    record_hosting(c);
    connect_to(c, loopback, mu_addr_port(mu_server_address(c->server)), mu_node_text(&me, text));
    return 0;
}

/* Other nodes cannot come to a loopback address, unless we listen elsewhere, too. */
static void warn_of_loopback(struct c10d *c)
{
    bool only_loopback = c->addrs_count > 0;

    for (size_t i = 0; i < c->addrs_count; i++)
        only_loopback = only_loopback && mu_addr_is_loopback(&c->addrs[i]);
    if (!only_loopback || c->warned || c->settings.nodes_max == 1 || c->front.bind_hosts != NULL ||
        !mu_bind_is_universal(c->host))
        return;
    c->warned = true;
    mu_log(MUSTER_LOG_WARNING, "rendezvous '%s': '%s' is the loopback address, so only nodes on this host can join it",
           c->front.run_id, c->host);
}

static void decide(struct c10d *c)
{
    bool ours = false;

    for (size_t i = 0; i < c->addrs_count; i++)
        ours = ours || mu_owns_address(&c->addrs[i]);
    warn_of_loopback(c);
    if (c->hosting == HOST_NEVER || (c->hosting == HOST_IF_OURS && !ours)) {
        connect_elsewhere(c);
        return;
    }
    if (host(c) == 0)
        return;
    if (c->hosting == HOST_IF_OURS)
        connect_elsewhere(c);
    else
        fail_all(c, MUSTER_ERDZV_CONNECTION, &c->not_hosting);
}

/* ---- Resolving ---- */

static void on_timer(uv_timer_t *timer)
{
    step(timer->data);
}

static void unresolved(struct c10d *c, int status)
{
    struct muster_error error;
    uint64_t now = uv_now(c->front.loop);

    if (now + RESOLVE_AGAIN_MS < c->deadline_ms) {
        (void)uv_timer_start(&c->front.timer, on_timer, RESOLVE_AGAIN_MS, 0);
        return;
    }
    (void)mu_fail(&error, MUSTER_ERDZV_CONNECTION, "cannot resolve '%s' (%u tries in %" PRIu64 " s): %s", c->host,
                  c->resolve_count, c->read_timeout_ms / 1000, uv_strerror(status));
    fail_all(c, MUSTER_ERDZV_CONNECTION, &error);
}

static void on_resolved(uv_getaddrinfo_t *req, int status, struct addrinfo *list)
{
    struct c10d *c = req->data;

    c->resolving = false;
    c->addrs_count = 0;
    for (const struct addrinfo *ai = list; ai != NULL && c->addrs_count < MU_DIAL_ADDRS_MAX; ai = ai->ai_next) {
        if (ai->ai_family == AF_INET || ai->ai_family == AF_INET6)
            memcpy(&c->addrs[c->addrs_count++], ai->ai_addr, ai->ai_addrlen);
    }
    uv_freeaddrinfo(list);
    if (!c->front.freeing && c->addrs_count == 0 && c->hosting == HOST_IF_OURS)
        unresolved(c, status < 0 ? status : UV_EAI_NODATA);
    else if (!c->front.freeing)
        decide(c);
    mu_front_drop(&c->front);
}

static void resolve(struct c10d *c)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    int rc;

    c->resolve_count++;
    c->resolver.data = c;
    rc = uv_getaddrinfo(c->front.loop, &c->resolver, on_resolved, c->host, NULL, &hints);
    if (rc < 0 && c->hosting == HOST_IF_OURS)
        unresolved(c, rc);
    else if (rc < 0)
        decide(c); /* we host, whatever the name is */
    if (rc < 0)
        return;
    c->resolving = true;
    mu_front_hold(&c->front);
}

/* The next step of starting up. */
static void step(struct c10d *c)
{
    if (c->addrs_count > 0 || c->hosting == HOST_NEVER) /* the client resolves for itself */
        decide(c);
    else
        resolve(c);
}

static void begin(struct mu_front *front)
{
    struct c10d *c = (struct c10d *)front;

    c->deadline_ms =
        uv_now(front->loop) + (c->read_timeout_ms < c->settings.join_ms ? c->read_timeout_ms : c->settings.join_ms);
    c->not_hosting = (struct muster_error){ 0 };
    c->resolve_count = 0;
    c->by_loopback = false;
    c->addrs_count = mu_dial_known(c->host, c->port, c->addrs);
    step(c);
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
    (void)snprintf(ret_host, room, "%s", c->server != NULL ? loopback : host_to_dial(c));
    *ret_port = c->server != NULL ? mu_addr_port(mu_server_address(c->server)) : c->port;
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

static const struct mu_handler_ops agent_ops = { .open_kv = NULL };
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
        c->hosting = HOST_IF_OURS;
    else
        c->hosting = is_host ? HOST_ALWAYS : HOST_NEVER;
    if (c->hosting == HOST_NEVER && c->port == 0)
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
    *ret_handler = mu_front_open(&c->front, &front_ops, loop, listener, ctx);
    return 0;
}
