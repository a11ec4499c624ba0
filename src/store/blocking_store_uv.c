/* Blocking calls of the store client: muster_store_tcp_new() and the calls of the store it makes.
 *
 * The store owns one thread, which runs the loop with the client on it from new to free. The client's deadlines see to
 * it that every call returns. Freeing closes the client and joins the thread. If a name is still being resolved and
 * holds the thread up, the thread is left behind and frees the rest by itself. */
#include "base/clock.h"
#include "base/error.h"
#include "base/random.h"
#include "store/client_uv.h"
#include "store/host_uv.h"
#include "store/listen.h"
#include "store/loop_thread_uv.h"
#include "store/store.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { CLOSE_WAIT_MS = 1000 };

#define CONNECT_MS_MAX (INT64_C(1) << 40) /* decades; sums with it do not overflow */

struct tcp_store {
    struct muster_store base;
    struct mu_loop_thread thread;
    struct mu_client *client;
    struct muster_store_server *server; /* when this store is the host */
    uint16_t port;
    bool native_barrier;
    sem_t ready; /* the client is connected, or has failed */
    struct muster_error ready_error;
};

struct posted {
    struct mu_posted base;
    struct mu_call *call;
    struct tcp_store *store;
    uint64_t timeout_ms;
};

static const struct muster_store_ops tcp_ops;

static struct tcp_store *tcp(struct muster_store *store)
{
    return (struct tcp_store *)store;
}

/* ---- The thread's side ---- */

static void on_ready(struct mu_client *client, const struct muster_error *error, void *ctx)
{
    struct tcp_store *store = ctx;

    (void)client;
    if (error != NULL)
        store->ready_error = *error;
    (void)sem_post(&store->ready);
}

static void on_call_done(struct mu_call *call)
{
    mu_posted_done(call->ctx);
}

static void begin_call(struct mu_posted *base)
{
    struct posted *posted = (struct posted *)base;

    mu_client_call(posted->store->client, posted->call, posted->timeout_ms);
}

static struct tcp_store *store_of(struct mu_loop_thread *thread)
{
    return MU_LIST_ITEM(thread, struct tcp_store, thread);
}

static void close_there(struct mu_loop_thread *thread)
{
    mu_client_close(store_of(thread)->client, NULL, NULL);
}

static void free_store(struct mu_loop_thread *thread)
{
    struct tcp_store *store = store_of(thread);

    mu_loop_thread_done(thread);
    (void)sem_destroy(&store->ready);
    free(store);
}

/* ---- The caller's side ---- */

static int tcp_run(struct muster_store *base, struct mu_call *call, int64_t timeout_ms, struct muster_error *reterr)
{
    struct tcp_store *store = tcp(base);
    struct posted posted = {
        .base = { .begin = begin_call }, .store = store, .call = call, .timeout_ms = (uint64_t)timeout_ms
    };

    if (call->kind == MU_CALL_BARRIER && !store->native_barrier)
        return mu_store_run_from_others(base, call, timeout_ms, reterr);
    call->done = on_call_done;
    /* cppcheck-suppress autoVariables ; it is answered before we return */
    call->ctx = &posted.base;
    mu_loop_thread_call(&store->thread, &posted.base);
    if (call->rc < 0 && reterr != NULL)
        *reterr = call->error;
    return call->rc;
}

/* ---- New and free ---- */

static void tcp_free(struct muster_store *base)
{
    struct tcp_store *store = tcp(base);
    struct muster_store_server *server = store->server;

    if (mu_loop_thread_stop(&store->thread, close_there, CLOSE_WAIT_MS, free_store))
        free_store(&store->thread);
    muster_store_server_stop(server);
}

static const struct muster_store_ops tcp_ops = {
    .size = sizeof tcp_ops,
    .name = "tcp",
    MU_STORE_CALLS_BY_RUN,
    .compare_set = muster_store_compare_set,
    .run = tcp_run,
    .free = tcp_free,
};

/* Makes the store with its client and starts the thread. Does not wait for the connection. */
static int start_store(const struct mu_client_config *config, struct tcp_store **ret_store, struct muster_error *reterr)
{
    struct tcp_store *store = calloc(1, sizeof *store);
    int rc;

    if (store == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a store");
    rc = mu_loop_thread_open(&store->thread, "a store", reterr);
    if (rc < 0) {
        free(store);
        return rc;
    }
    store->base.ops = &tcp_ops;
    store->port = config->port;
    (void)sem_init(&store->ready, 0, 0);
    rc = mu_client_start(&store->thread.loop, config, on_ready, NULL, store, &store->client, reterr);
    if (rc == 0) {
        rc = mu_loop_thread_start(&store->thread, "a store", reterr);
        if (rc < 0)
            close_there(&store->thread);
    }
    if (rc < 0) {
        mu_loop_thread_discard(&store->thread);
        (void)sem_destroy(&store->ready);
        free(store);
        return rc;
    }
    *ret_store = store;
    return 0;
}

/* Counts us as one of the workers that the server's host waits for, the way PyTorch does. */
static int count_in(struct tcp_store *store, const struct muster_store_tcp_config *config, int64_t until_ms,
                    struct muster_error *reterr)
{
    struct mu_call call = { .kind = MU_CALL_ADD, .key = muster_str("init/"), .number = 1, .raw_key = true };
    int64_t left_ms = until_ms - mu_clock_ms(), seen = 0;
    int rc;

    if (config->world_size == 0)
        return 0;
    rc = tcp_run(&store->base, &call, left_ms > 0 ? left_ms : 0, reterr);
    if (rc < 0 || store->server == NULL || !config->wait_for_workers)
        return rc;
    left_ms = until_ms - mu_clock_ms();
    rc = mu_host_wait_count(store->server, "init/", config->world_size, left_ms > 0 ? left_ms : 0, &seen, reterr);
    if (rc == MUSTER_ETIMEOUT)
        return mu_fail(reterr, rc, "timed out after %" PRId64 " ms: %" PRId64 " of %u workers have come",
                       config->connect_timeout_ms, seen, config->world_size);
    return rc;
}

/* As with PyTorch, `host` is where to connect; the server listens everywhere unless its own config says where. */
static int start_server(const struct muster_store_tcp_config *config, struct muster_store_server **ret_server,
                        struct muster_error *reterr)
{
    struct muster_store_server_config server = { 0 };

    if (config->server != NULL) {
        if (config->server->size == 0)
            return mu_fail(reterr, MUSTER_EINVAL, "the server config's size is not set");
        memcpy(&server, config->server, config->server->size < sizeof server ? config->server->size : sizeof server);
    }
    server.size = sizeof server;
    server.port = config->port;
    server.shared = server.shared || config->shared;
    return muster_store_server_start(&server, ret_server, reterr);
}

/* Where a server is reached that listens on one address only. All others listen on loopback too, or have to be
 * named. */
static const char *host_to_dial(const struct muster_store_server_config *server)
{
    if (server == NULL || server->host == NULL || strcmp(server->host, MU_LISTEN_ANY) == 0 ||
        strchr(server->host, ',') != NULL)
        return "localhost";
    return server->host;
}

static int check_config(struct muster_store_tcp_config *config, struct mu_client_config *ret_client,
                        struct muster_error *reterr)
{
    if (config->host == NULL && config->is_host)
        config->host = host_to_dial(config->server);
    if (config->host == NULL || config->host[0] == '\0')
        return mu_fail(reterr, MUSTER_EINVAL, "no host is given");
    if (config->port == 0 && !config->is_host)
        return mu_fail(reterr, MUSTER_EINVAL, "no port is given");
    if (config->connect_timeout_ms < 0 || config->timeout_ms < 0)
        return mu_fail(reterr, MUSTER_EINVAL, "a timeout is negative");
    if (!mu_dialect_parse(config->dialect, &ret_client->dialect))
        return mu_fail(reterr, MUSTER_EINVAL, "dialect '%s' is not one of auto, 1.13, 2.1, 2.x", config->dialect);
    if (config->connect_timeout_ms == 0)
        config->connect_timeout_ms = MUSTER_STORE_TIMEOUT_MS;
    if (config->connect_timeout_ms > CONNECT_MS_MAX)
        config->connect_timeout_ms = CONNECT_MS_MAX;
    if (config->timeout_ms == 0)
        config->timeout_ms = MUSTER_STORE_TIMEOUT_MS;
    ret_client->host = config->host;
    ret_client->raw_keys = config->raw_keys;
    ret_client->connect_timeout_ms = (uint64_t)config->connect_timeout_ms;
    return mu_random(&ret_client->seed, sizeof ret_client->seed, reterr);
}

/* Everything but the server, which the caller has started and stops on failure. */
static int connect_store(const struct muster_store_tcp_config *config, const struct mu_client_config *client,
                         struct muster_store_server *server, struct tcp_store **ret_store, struct muster_error *reterr)
{
    int64_t until_ms = mu_clock_ms() + config->connect_timeout_ms;
    struct tcp_store *store = NULL;
    int rc = start_store(client, &store, reterr);

    if (rc < 0)
        return rc;
    assert(store != NULL);
    store->base.timeout_ms = config->timeout_ms;
    store->native_barrier = config->native_barrier;
    while (sem_wait(&store->ready) < 0 && errno == EINTR)
        continue;
    rc = store->ready_error.code;
    if (rc < 0 && reterr != NULL)
        *reterr = store->ready_error;
    if (rc == 0) {
        store->server = server;
        rc = count_in(store, config, until_ms, reterr);
    }
    if (rc < 0) {
        store->server = NULL;
        tcp_free(&store->base);
        return rc;
    }
    *ret_store = store;
    return 0;
}

int muster_store_tcp_new(const struct muster_store_tcp_config *config, struct muster_store **ret_store,
                         struct muster_error *reterr)
{
    struct muster_store_tcp_config whole = { 0 };
    struct mu_client_config client = { 0 };
    struct muster_store_server *server = NULL;
    struct tcp_store *store = NULL;
    int rc;

    if (config->size == 0)
        return mu_fail(reterr, MUSTER_EINVAL, "open a store: the config's size is not set");
    memcpy(&whole, config, config->size < sizeof whole ? config->size : sizeof whole);
    rc = check_config(&whole, &client, reterr);
    if (rc == 0 && whole.is_host)
        rc = start_server(&whole, &server, reterr);
    if (rc < 0)
        return mu_wrap(reterr, rc, "open a store");
    client.port = server != NULL ? muster_store_server_port(server) : whole.port;
    rc = connect_store(&whole, &client, server, &store, reterr);
    if (rc < 0) {
        muster_store_server_stop(server);
        if (rc == MUSTER_ECONNECT || rc == MUSTER_EPROTOCOL) /* "cannot connect to ..." */
            return rc;
        return mu_wrap(reterr, rc, "open a store");
    }
    *ret_store = &store->base;
    return 0;
}

uint16_t muster_store_tcp_port(const struct muster_store *store)
{
    return store->ops == &tcp_ops ? ((const struct tcp_store *)store)->port : 0;
}
