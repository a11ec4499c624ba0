/* The c10d rendezvous: gets its store as host.h says, and then meets there: in a document, as a dynamic rendezvous, or
 * in the store's engine, with a fold machine (fold_uv.h).
 *
 * Happy path: begin -> what the machine of host.h wants is done here, and what comes of it is told to the machine ->
 * USE: the dynamic rendezvous runs on the connection, or the engine's client makes one of its own. Requests that come
 * meanwhile wait (talk.h).
 * Failures: FAIL is told as the failure of every request that waits. The next request begins anew. */
#include "base/random.h"
#include "base/words.h"
#include "handler/bind_uv.h"
#include "handler/dynamic_uv.h"
#include "handler/engine_params.h"
#include "handler/fold_uv.h"
#include "handler/host.h"
#include "handler/local_addresses.h"
#include "kv/engine_store_uv.h"
#include "kv/kv_c10d_uv.h"
#include "store/dial.h"
#include "store/placed_server_uv.h"
#include "store/server_uv.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct c10d {
    struct mu_dynamic dynamic;
    char host[MU_HOST_MAX], endpoint[MU_ENDPOINT_MAX];
    struct mu_host machine;
    uv_getaddrinfo_t resolver;
    bool resolving;
    union mu_addr addrs[MU_DIAL_ADDRS_MAX];
    unsigned addrs_count;
    struct mu_kv_request ask; /* who hosts the store; has it an engine */
    struct mu_server *server;
    struct mu_server_watch *watch; /* of the document */
    void (*alone)(void *ctx);      /* is called when no other process is connected */
    void *alone_ctx;
    /* Where the job meets in the engine. */
    struct mu_engine_params engine;
    struct mu_token token;
    struct mu_fold_uv fold;             /* its machine is NULL while it is not known that it does */
    const struct mu_shell_ops *finding; /* what the shell has while it does not */
    struct mu_part_self self;           /* its role is NULL: nobody was introduced */
    char role[MU_FOLD_ROLE_MAX + 1];
};

static void feed(struct c10d *c, struct mu_host_event event);
static void perform(struct c10d *c, const struct mu_host_effect *effect);

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
    c->watch = NULL;
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

static bool accepted_on(const struct mu_shell *shell, char *text, size_t room)
{
    const struct c10d *c = (const struct c10d *)shell;
    union mu_addr addr;

    return c->server != NULL && mu_server_accepted_on(c->server, &addr) && mu_addr_host(&addr, text, room);
}

static void run(struct c10d *c)
{
    const struct mu_dynamic_place place = {
        .store_addr = mu_host_workers_name(&c->machine),
        .store_port = mu_host_port(&c->machine),
        .hosted_by = c->machine.hosted_by,
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
        .port = mu_host_port(&c->machine),
        .run_id = c->dynamic.config.run_id,
        .read_timeout_ms = wait_ms,
        .seed = c->dynamic.seed++,
        .host_node = mu_host_published(&c->machine),
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
    struct muster_bytes node = request->bytes;

    request->bytes = (struct muster_bytes){ 0 };
    if (!shell_of(c)->freeing)
        feed(c, (struct mu_host_event){ .type = request->rc == 0 ? MU_HOST_ON_ANSWERED : MU_HOST_ON_NOT_ANSWERED,
                                        .node = mu_slice(node.data, node.len),
                                        .in_engine = request->foreign,
                                        .error = &request->error });
    muster_bytes_done(&node);
}

static void ask_who_hosts(struct c10d *c, uint64_t wait_ms)
{
    c->ask = (struct mu_kv_request){ .kind = MU_KV_HOST, .timeout_ms = wait_ms, .done = on_answered, .ctx = c };
    c->dynamic.kv->ops->submit(c->dynamic.kv, &c->ask);
}

static void on_probed(struct mu_kv_request *request)
{
    struct c10d *c = request->ctx;

    if (!shell_of(c)->freeing)
        feed(c, (struct mu_host_event){ .type = request->rc == 0 ? MU_HOST_ON_PROBED : MU_HOST_ON_NOT_PROBED,
                                        .in_engine = request->found,
                                        .error = &request->error });
}

static void look_for_engine(struct c10d *c, uint64_t wait_ms)
{
    c->ask = (struct mu_kv_request){ .kind = MU_KV_PROBE, .timeout_ms = wait_ms, .done = on_probed, .ctx = c };
    c->dynamic.kv->ops->submit(c->dynamic.kv, &c->ask);
}

/* ---- Meeting in the engine ---- */

static void destroy_fold(struct mu_shell *shell)
{
    struct c10d *c = (struct c10d *)shell;

    mu_fold_uv_done(&c->fold);
    mu_dynamic_destroy(shell);
}

static const struct mu_shell_ops engine_ops = { MU_FOLD_UV_SHELL_OPS, .find = mu_dynamic_find, .last = mu_dynamic_last,
                                                .destroy = destroy_fold };

static int start_client(struct c10d *c, const char *endpoint, struct muster_error *reterr)
{
    struct mu_engine_store_config config = {
        .endpoint = endpoint,
        .run_id = c->dynamic.config.run_id,
        .node = shell_of(c)->me.name.data,
        .lease_ms = c->engine.lease_ms,
        .job_lease_ms = c->engine.job_lease_ms,
        .renew_ms = mu_engine_renew_ms(c->engine.fence_s),
        .seed = c->dynamic.seed++,
        .only = c->machine.config.only,
        .token = c->token.is_there ? &c->token : NULL,
    };
    int rc = mu_random(config.will_secret, sizeof config.will_secret, reterr);

    if (rc < 0)
        return rc;
    return mu_engine_store_start(shell_of(c)->loop, &config, mu_fold_uv_heard, &c->fold, &c->fold.client, reterr);
}

/* The handler takes what it was before it met there, and looks for the store once more: find(). */
static void on_moved(struct mu_shell *shell)
{
    struct c10d *c = (struct c10d *)shell;
    struct mu_fold_asked asked = mu_fold_asked(c->fold.fold);

    mu_fold_uv_close(&c->fold);
    mu_fold_uv_done(&c->fold);
    c->fold = (struct mu_fold_uv){ .shell = NULL };
    mu_handler_loss_by_heartbeats(&shell->handler, &c->dynamic.config.settings);
    shell->ops = c->finding;
    shell->part = NULL;
    shell->driver = NULL;
    mu_shell_moved(shell, asked.close, asked.look);
}

static int start_fold(struct c10d *c, const char *endpoint, struct muster_error *reterr)
{
    struct mu_fold_config config;
    uint64_t random[2];
    int rc = mu_random(random, sizeof random, reterr);

    if (rc < 0)
        return rc;
    config = mu_engine_fold_config(&c->engine, &c->dynamic.config.settings, &shell_of(c)->me, random);
    config.endpoint = c->endpoint;
    config.documents = &c->dynamic.config.dialect;
    rc = mu_fold_new(&config, &c->fold.fold, reterr);
    if (rc < 0)
        return rc;
    c->fold.shell = shell_of(c);
    c->fold.on_moved = on_moved;
    c->fold.agents_port = mu_host_port(&c->machine);
    if (c->self.role != NULL)
        mu_fold_introduce(c->fold.fold, &c->self);
    rc = start_client(c, endpoint, reterr);
    if (rc < 0)
        mu_fold_uv_done(&c->fold);
    return rc;
}

static void meet_in_engine(struct c10d *c)
{
    char endpoint[MU_ENDPOINT_MAX];
    struct muster_error error;

    if (start_fold(c, mu_host_dial_endpoint(&c->machine, endpoint), &error) < 0) {
        mu_dynamic_fail(&c->dynamic, &error);
        feed(c, (struct mu_host_event){ .type = MU_HOST_ON_UNUSABLE });
        return;
    }
    mu_handler_loss_by_lease(&shell_of(c)->handler, c->engine.lease_ms / 1000, 0);
    c->finding = shell_of(c)->ops;
    shell_of(c)->ops = &engine_ops;
    shell_of(c)->part = c->fold.fold;
    shell_of(c)->driver = &c->fold;
    mu_shell_found(shell_of(c));
}

/* ---- Hosting ---- */

static void on_document(void *ctx, struct mu_slice value)
{
    struct c10d *c = ctx;
    char text[MU_HOST_SAY_MAX];
    struct mu_host_effect say;

    if (mu_host_overwritten(mu_server_writer_address(c->server), value, text, &say))
        perform(c, &say);
}

static void watch_document(struct c10d *c)
{
    char *key = mu_host_document_key(c->dynamic.config.run_id);
    struct muster_error error;

    if (key == NULL || mu_server_watch(c->server, mu_slice_str(key), on_document, c, &c->watch, &error) < 0)
        c->watch = NULL; /* no memory: one line less in the log */
    free(key);
}

static void listen_for_nodes(struct c10d *c)
{
    const struct mu_bind *bind = &shell_of(c)->boot.machine.bind;
    struct mu_bind_networks networks;
    struct mu_bind_plan plan;
    struct muster_store_server_config config;
    char node[MU_NODE_TEXT_MAX];
    struct mu_server_offer offer = { .node = mu_node_text(&shell_of(c)->me, node),
                                     .documents = "/" MU_KV_C10D_DOCUMENTS,
                                     .notes = "/" MU_KV_C10D_NOTES,
                                     .only = c->machine.config.only ? c->dynamic.config.run_id : NULL,
                                     .token = c->token.is_there ? &c->token : NULL };
    struct muster_error error;

    mu_bind_ask_known(bind, c->host, c->addrs, c->addrs_count, c->dynamic.config.local_addr, &plan);
    config = mu_bind_server_config(bind, &plan, c->machine.config.port, &networks);
    if (mu_server_start_as(shell_of(c)->loop, &config, &c->server, &error) < 0) {
        feed(c, (struct mu_host_event){ .type = MU_HOST_ON_NOT_BOUND, .error = &error });
        return;
    }
    if (c->machine.config.engine)
        mu_server_offer_engine(c->server, &offer);
    feed(c, (struct mu_host_event){ .type = MU_HOST_ON_BOUND,
                                    .port = mu_addr_port(mu_server_address(c->server)),
                                    .plan = &plan,
                                    .node = mu_slice_str(node) });
}

/* ---- Resolving ---- */

static struct mu_host_addresses addresses_of(const struct c10d *c)
{
    bool owned[MU_DIAL_ADDRS_MAX] = { false };

    for (size_t i = 0; i < c->addrs_count; i++)
        owned[i] = mu_owns_address(&c->addrs[i]);
    return mu_host_addresses(c->addrs, owned, c->addrs_count);
}

static void tell_resolved(struct c10d *c, int status)
{
    struct muster_error error;

    if (status < 0)
        (void)mu_fail(&error, MUSTER_ERESOLVE, "%s", uv_strerror(status));
    feed(c, (struct mu_host_event){
                .type = MU_HOST_ON_RESOLVED, .addresses = addresses_of(c), .error = status < 0 ? &error : NULL });
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
    case MU_HOST_DO_RECORD:
        mu_rdzv_trace_hosts(mu_shell_teller(shell_of(c)));
        break;
    case MU_HOST_DO_WATCH:
        watch_document(c);
        break;
    case MU_HOST_DO_CONNECT:
        connect_to(c, effect->wait_ms);
        break;
    case MU_HOST_DO_ASK:
        ask_who_hosts(c, effect->wait_ms);
        break;
    case MU_HOST_DO_PROBE:
        look_for_engine(c, effect->wait_ms);
        break;
    case MU_HOST_DO_DISCONNECT:
        mu_dynamic_close_kv(&c->dynamic);
        break;
    case MU_HOST_DO_UNLISTEN:
        close_server(c);
        break;
    case MU_HOST_DO_USE:
        if (effect->engine)
            meet_in_engine(c);
        else
            run(c);
        break;
    case MU_HOST_DO_FAIL:
        mu_dynamic_fail(&c->dynamic, effect->error);
        break;
    case MU_HOST_DO_SAY:
        mu_handler_log(effect->level, c->dynamic.config.run_id, effect->text);
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

    if (c->machine.state == MU_HOST_FOUND) {
        feed(c, (struct mu_host_event){ .type = MU_HOST_ON_MOVED });
        return;
    }
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
    mu_fold_uv_close(&c->fold);
    mu_dynamic_free(handler, done, ctx);
}

static bool c10d_endpoint(const struct muster_handler *handler, char *ret_host, size_t room, uint16_t *ret_port)
{
    const struct c10d *c = (const struct c10d *)handler;

    if (!mu_host_is_known(&c->machine))
        return false;
    (void)snprintf(ret_host, room, "%s", mu_host_dial_name(&c->machine));
    *ret_port = mu_host_port(&c->machine);
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

static enum mu_host_company company_of_workers(struct mu_placed_server *store)
{
    return store == NULL ? MU_HOST_NO_STORE : mu_placed_server_is_alone(store) ? MU_HOST_ALONE : MU_HOST_OTHERS;
}

static void on_maybe_alone(void *ctx);

static void linger(struct c10d *c, enum mu_host_linger how)
{
    switch (how) {
    case MU_HOST_AWAIT_RENDEZVOUS:
        mu_server_when_alone(c->server, on_maybe_alone, c);
        break;
    case MU_HOST_AWAIT_WORKERS:
        mu_placed_server_when_alone(mu_boot_uv_workers_store(&shell_of(c)->boot), on_maybe_alone, c);
        break;
    case MU_HOST_GO:
        c->alone(c->alone_ctx);
        break;
    case MU_HOST_STAY:
        break;
    }
}

static void on_maybe_alone(void *ctx)
{
    struct c10d *c = ctx;

    linger(c, mu_host_linger(company_of(c->server), company_of_workers(mu_boot_uv_workers_store(&shell_of(c)->boot))));
}

static void c10d_when_alone(struct muster_handler *handler, void (*alone)(void *ctx), void *ctx)
{
    struct c10d *c = (struct c10d *)handler;

    c->alone = alone;
    c->alone_ctx = ctx;
    linger(c, mu_host_linger_first(c->server != NULL, mu_boot_uv_workers_store(&shell_of(c)->boot) != NULL));
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

/* Before the store is found. */
static void introduce(struct muster_handler *handler, const struct mu_part_self *self)
{
    struct c10d *c = (struct c10d *)handler;

    (void)mu_words_plain(mu_slice_str(self->role), c->role, sizeof c->role);
    c->self = *self;
    c->self.role = c->role;
}

static bool keep_will(struct muster_handler *handler, struct mu_will *will)
{
    struct c10d *c = (struct c10d *)handler;

    if (c->fold.fold == NULL)
        return false;
    mu_fold_uv_keep_will(&c->fold, will);
    return true;
}

static const struct mu_handler_ops agent_ops = {
    .shared_kv = shared_kv, .introduce = introduce, .report = mu_shell_report, .will = keep_will
};

/* ---- Parameters ---- */

static int read_token(const struct muster_rdzv_params *params, struct mu_token *ret_token, struct muster_error *reterr)
{
    const char *path;
    int rc = mu_engine_token_file(params, &path, reterr);

    if (rc < 0 || path == NULL)
        return rc;
    rc = mu_token_read(path, ret_token, reterr);
    return rc < 0 ? mu_wrap(reterr, rc, "option 'token_file'") : 0;
}

static void forget(struct mu_dynamic *d)
{
    mu_token_wipe(&((struct c10d *)d)->token);
}

static int read_params(struct mu_dynamic *d, const struct muster_rdzv_params *params, struct mu_dynamic_config *config,
                       struct muster_error *reterr)
{
    struct c10d *c = (struct c10d *)d;
    struct mu_host_config host = { .name = c->host };
    int rc = mu_host_from_params(params, config, c->host, c->endpoint, &host, reterr);

    if (rc == 0)
        rc = mu_engine_params_read(params, config, host.engine, &c->engine, reterr);
    if (rc == 0)
        rc = read_token(params, &c->token, reterr);
    if (rc < 0)
        return rc;
    config->endpoint = c->endpoint;
    config->store_host = c->host;
    host.token = c->token.is_there;
    mu_host_init(&c->machine, &host);
    d->shell.accepted_on = accepted_on;
    return 0;
}

static const struct mu_finder_ops finder = { .size = sizeof(struct c10d),
                                             .handler = &c10d_ops,
                                             .agent = &agent_ops,
                                             .read = read_params,
                                             .find = find,
                                             .on_time = on_time,
                                             .forget = forget,
                                             .last = last };

int mu_c10d_start(struct uv_loop_s *loop, const struct muster_rdzv_params *params, muster_rdzv_listener *listener,
                  void *ctx, struct muster_handler **ret_handler, struct muster_error *reterr)
{
    return mu_dynamic_start_finder(&finder, loop, params, listener, ctx, ret_handler, reterr);
}
