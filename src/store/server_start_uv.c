/* Start and close of a store server, by the settled or by the public configuration. */
#include "base/error.h"
#include "base/random.h"
#include "store/limits.h"
#include "store/listen.h"
#include "store/server_parts_uv.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    LOG_BURST = 20,
    LOG_PER_S = 2,
    KEEPALIVE_S = 60,
};

static void on_listener_closed(uv_handle_t *handle)
{
    struct mu_listener *listener = handle->data;
    struct mu_server *server = listener->server;

    free(listener);
    server->handles--;
    mu_server_close_if_over(server);
}

void mu_server_close(struct mu_server *server, mu_server_closed *on_closed, void *ctx)
{
    struct mu_listener *listener;
    struct mu_conn *conn;

    assert(!server->closing && server->current == NULL);
    server->closing = true;
    mu_server_log_dropped(server->log_limit.dropped);
    server->on_closed = on_closed;
    server->on_closed_ctx = ctx;
    while ((conn = MU_LIST_FIRST(struct mu_conn, &server->conns, link)) != NULL)
        mu_conn_close(conn);
    while ((listener = MU_LIST_POP(struct mu_listener, &server->listeners, link)) != NULL)
        uv_close((uv_handle_t *)&listener->tcp, on_listener_closed);
    mu_server_engine_close(server);
    uv_close((uv_handle_t *)&server->grace_timer, mu_server_on_handle_closed);
    uv_close((uv_handle_t *)&server->turns, mu_server_on_handle_closed);
    uv_close((uv_handle_t *)&server->log_timer, mu_server_on_handle_closed);
    uv_close((uv_handle_t *)&server->alone_timer, mu_server_on_handle_closed);
}

static struct mu_server *new_server(uv_loop_t *loop, const struct mu_server_config *config)
{
    struct mu_hash_seed seed = { .k0 = config->seed[0], .k1 = config->seed[1] };
    struct mu_server *server = calloc(1, sizeof *server);

    if (server == NULL)
        return NULL;
    server->admission = (struct mu_admission){ .allow = config->allow,
                                               .allow_count = config->allow_count,
                                               .allow_own = config->allow_own };
    server->loop = loop;
    server->log_limit = (struct mu_log_limit){ .burst = LOG_BURST, .per_s = LOG_PER_S };
    mu_list_init(&server->listeners);
    mu_list_init(&server->conns);
    mu_list_init(&server->doomed);
    mu_list_init(&server->graces);
    mu_list_init(&server->silent);
    mu_list_init(&server->busy);
    server->seed = server->admission.origins.seed = seed;
    server->era = mu_era_new(&config->limits, config->legacy, seed);
    if (server->era != NULL)
        return server;
    free(server);
    return NULL;
}

/* One more address to listen on. The socket is the server's from here on, also if this fails. */
static int listen_on(struct mu_server *server, int fd, struct muster_error *reterr)
{
    struct mu_listener *listener = calloc(1, sizeof *listener);
    char text[MU_ADDR_TEXT_MAX];
    int rc;

    if (listener == NULL) {
        (void)close(fd);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a store server");
    }
    listener->server = server;
    listener->tcp.data = listener;
    mu_list_init(&listener->link);
    rc = mu_listen_address(fd, &listener->addr, reterr);
    if (rc < 0) {
        (void)close(fd);
        free(listener);
        return rc;
    }
    (void)uv_tcp_init(server->loop, &listener->tcp); /* only fills in memory */
    server->handles++;
    mu_list_push(&server->listeners, &listener->link);
    rc = uv_tcp_open(&listener->tcp, fd);
    if (rc < 0)
        (void)close(fd);
    else
        rc = uv_listen((uv_stream_t *)&listener->tcp, MU_LISTEN_BACKLOG, mu_server_on_connection);
    if (rc == 0) /* accepted sockets inherit it: peers whose host vanished are not waited for without end */
        (void)uv_tcp_keepalive(&listener->tcp, 1, KEEPALIVE_S);
    return rc < 0 ? mu_fail_errno(reterr, -rc, "cannot listen on %s", mu_addr_format(&listener->addr, text)) : 0;
}

/* The sockets are taken, also if this fails. */
static int listen_on_all(struct mu_server *server, struct mu_listen_sockets *sockets, struct muster_error *reterr)
{
    int rc = 0;

    for (size_t i = 0; i < sockets->count; i++) {
        if (rc == 0)
            rc = listen_on(server, sockets->fds[i], reterr);
        else
            (void)close(sockets->fds[i]);
    }
    return rc;
}

static int start_on(uv_loop_t *loop, struct mu_listen_sockets *sockets, const struct mu_server_config *config,
                    struct mu_server **ret_server, struct muster_error *reterr)
{
    struct mu_server *server = new_server(loop, config);
    int rc;

    assert(sockets->count > 0);
    if (server == NULL) {
        mu_listen_close_all(sockets);
        free(config->allow);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a store server");
    }
    (void)uv_timer_init(loop, &server->grace_timer); /* these only fill in memory */
    (void)uv_timer_init(loop, &server->log_timer);
    (void)uv_idle_init(loop, &server->turns);
    server->turns.data = server;
    (void)uv_timer_init(loop, &server->alone_timer);
    server->log_timer.data = server->alone_timer.data = server->grace_timer.data = server;
    server->handles = 4;
    rc = listen_on_all(server, sockets, reterr);
    if (rc < 0) {
        mu_server_close(server, NULL, NULL);
        return rc;
    }
    server->addr = MU_LIST_FIRST(struct mu_listener, &server->listeners, link)->addr;
    *ret_server = server;
    return 0;
}

int mu_server_start(uv_loop_t *loop, int fd, const struct mu_server_config *config, struct mu_server **ret_server,
                    struct muster_error *reterr)
{
    struct mu_listen_sockets sockets = { .fds = { fd }, .count = 1 };

    return start_on(loop, &sockets, config, ret_server, reterr);
}

bool mu_server_listens_on(const struct mu_server *server, const union mu_addr *addr)
{
    MU_LIST_EACH (const struct mu_listener, listener, &server->listeners, link) {
        if (mu_addr_is_any(&listener->addr) || mu_addr_same_host(&listener->addr, addr))
            return true;
    }
    return false;
}

int mu_server_listen_also(struct mu_server *server, const union mu_addr *addr, struct muster_error *reterr)
{
    struct mu_listen_sockets sockets;
    char host[MU_ADDR_TEXT_MAX];
    int rc;

    if (mu_server_listens_on(server, addr))
        return 0;
    (void)mu_addr_host(addr, host, sizeof host); /* it has room for every address */
    rc = mu_listen_open_all(host, mu_addr_port(&server->addr), &sockets, reterr);
    return rc == 0 ? listen_on_all(server, &sockets, reterr) : rc;
}

/* ---- From the public configuration ---- */

static int parse_allow(const char *const *texts, struct mu_network **ret_networks, size_t *ret_count,
                       struct muster_error *reterr)
{
    struct mu_network *networks = NULL;
    size_t count = 0;
    int rc = 0;

    while (texts != NULL && texts[count] != NULL)
        count++;
    if (count > 0) {
        networks = calloc(count, sizeof *networks);
        if (networks == NULL)
            return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a store server");
    }
    for (size_t i = 0; i < count && rc == 0; i++)
        rc = mu_network_parse(texts[i], &networks[i], reterr);
    if (rc < 0) {
        free(networks);
        return mu_wrap(reterr, rc, "allowed networks");
    }
    *ret_networks = networks;
    *ret_count = count;
    return 0;
}

/* An adopted socket is copied: the caller's own is closed once the server has started, and stays if it does not. */
static int open_sockets(const struct muster_store_server_config *config, struct mu_listen_sockets *ret_sockets,
                        struct muster_error *reterr)
{
    int rc;

    if (!config->use_listen_fd)
        return mu_listen_open_all(config->host, config->port, ret_sockets, reterr);
    rc = mu_listen_adopt(config->listen_fd, config->port, reterr);
    if (rc < 0)
        return rc;
    ret_sockets->fds[0] = fcntl(config->listen_fd, F_DUPFD_CLOEXEC, 0);
    if (ret_sockets->fds[0] < 0)
        return mu_fail_errno(reterr, errno, "copy descriptor %d", config->listen_fd);
    ret_sockets->count = 1;
    return 0;
}

int mu_server_start_as(uv_loop_t *loop, const struct muster_store_server_config *config, struct mu_server **ret_server,
                       struct muster_error *reterr)
{
    struct mu_server_config settled = { .limits = config->limits,
                                        .legacy = MU_DIALECT_L,
                                        .allow_own = config->allow_own };
    struct mu_listen_sockets sockets = { .count = 0 };
    enum mu_dialect legacy;
    int rc;

    if (!mu_dialect_parse(config->dialect, &legacy) || legacy == MU_DIALECT_V)
        return mu_fail(reterr, MUSTER_EINVAL, "dialect '%s' is not one of auto, 1.13, 2.1", config->dialect);
    if (legacy != MU_DIALECT_UNKNOWN)
        settled.legacy = legacy;
    rc = mu_limits_settle(&settled.limits, reterr);
    if (rc == 0)
        rc = parse_allow(config->allow, &settled.allow, &settled.allow_count, reterr);
    if (rc < 0)
        return rc;
    rc = mu_random(settled.seed, sizeof settled.seed, reterr);
    if (rc == 0)
        rc = open_sockets(config, &sockets, reterr);
    if (rc < 0) {
        free(settled.allow);
        return rc;
    }
    rc = start_on(loop, &sockets, &settled, ret_server, reterr);
    if (rc == 0 && config->use_listen_fd)
        (void)close(config->listen_fd);
    return rc;
}

const union mu_addr *mu_server_address(const struct mu_server *server)
{
    return &server->addr;
}
