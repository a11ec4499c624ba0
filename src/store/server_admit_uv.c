/* Newcomers of a store server, and whether any other process is connected. admission.c decides which connections are
 * taken and which idle one is closed to make room; this file asks the system what it needs to know. */
#include "base/error.h"
#include "base/files.h"
#include "store/server_parts_uv.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>

/* ---- Connections of this process to its own server ---- */

/* The system knows our sockets: those that are connected to the server's port. */
static void find_own(const struct mu_server *server, struct mu_own_sockets *ret_own)
{
    DIR *dir = opendir("/proc/self/fd");
    const struct dirent *entry;

    ret_own->count = 0;
    while (dir != NULL && ret_own->count < MU_OWN_SOCKETS_MAX && (entry = readdir(dir)) != NULL) {
        union mu_addr here = { .any = { 0 } }, there = { .any = { 0 } };
        socklen_t here_len = sizeof here, there_len = sizeof there;
        int fd = atoi(entry->d_name);

        if (entry->d_name[0] != '.' && getsockname(fd, &here.any, &here_len) == 0 &&
            (here.any.sa_family == AF_INET || here.any.sa_family == AF_INET6) &&
            getpeername(fd, &there.any, &there_len) == 0 && mu_addr_port(&there) == mu_addr_port(&server->addr))
            ret_own->addrs[ret_own->count++] = here;
    }
    if (dir != NULL)
        (void)closedir(dir);
}

bool mu_server_is_alone(const struct mu_server *server)
{
    struct mu_own_sockets own;

    if (server->conns_count > MU_OWN_SOCKETS_MAX || mu_server_engine_expects_peers(server))
        return false;
    find_own(server, &own);
    MU_LIST_EACH (const struct mu_conn, conn, &server->conns, link) {
        if (!mu_own_sockets_has(&own, &conn->addr))
            return false;
    }
    return true;
}

static void on_look_if_alone(uv_timer_t *timer)
{
    struct mu_server *server = timer->data;
    void (*alone)(void *ctx) = server->alone;

    if (alone == NULL || !mu_server_is_alone(server))
        return;
    server->alone = NULL;
    alone(server->alone_ctx);
}

void mu_server_look_if_alone(struct mu_server *server)
{
    if (server->alone != NULL && !server->closing)
        (void)uv_timer_start(&server->alone_timer, on_look_if_alone, 0, 0);
}

void mu_server_when_alone(struct mu_server *server, void (*alone)(void *ctx), void *ctx)
{
    server->alone = alone;
    server->alone_ctx = ctx;
    mu_server_look_if_alone(server);
}

/* ---- Room for a newcomer ---- */

static struct mu_candidate candidate_of(const struct mu_conn *conn)
{
    const struct mu_peer *peer = &conn->session.peer;

    return (struct mu_candidate){ .is_busy = conn->session.dead || mu_session_is_busy(&conn->session),
                                  .waits = peer->missing > 0 || !mu_list_empty(&peer->watches) ||
                                           conn->frames != NULL || conn->session.state == MU_SESSION_OUTSIDE,
                                  .is_owed = conn->backlog != NULL,
                                  .from_here = conn->origin == NULL,
                                  .heard_ms = conn->heard_ms,
                                  .addr = &conn->addr };
}

/* The connection that can be spared; NULL: none. Those that have asked for nothing are in a list, the oldest first. */
static struct mu_conn *find_spare(const struct mu_server *server)
{
    struct mu_conn *first = MU_LIST_FIRST(struct mu_conn, &server->silent, silent), *found = NULL;
    struct mu_candidate best, candidate;
    struct mu_own_sockets own;

    if (first != NULL)
        return first;
    find_own(server, &own);
    MU_LIST_EACH (struct mu_conn, conn, &server->conns, link) {
        candidate = candidate_of(conn);
        if (!mu_admission_prefers(&candidate, found == NULL ? NULL : &best, &own, uv_now(server->loop)))
            continue;
        best = candidate;
        found = conn;
    }
    return found;
}

static bool close_spare(struct mu_server *server)
{
    struct mu_conn *spare = find_spare(server);
    char text[MU_ADDR_TEXT_MAX];

    if (spare == NULL)
        return false;
    if (mu_server_may_log_refusal(server))
        mu_log(MUSTER_LOG_WARNING,
               "store: closed the connection of %s, idle for %" PRIu64
               " s: the limit of open files leaves room for %zu "
               "connections",
               mu_addr_format(&spare->addr, text), (uv_now(server->loop) - spare->heard_ms) / 1000,
               mu_files_connections_max());
    mu_conn_close(spare);
    return true;
}

static bool make_room_for(const struct mu_conn *conn)
{
    enum mu_files_room room;

    do
        room =
            mu_admission_room((size_t)conn->fd, mu_files_limit(), mu_files_connections(), mu_files_connections_max());
    while (room == MU_FILES_SHORT && close_spare(conn->server));
    if (room == MU_FILES_NONE)
        (void)close_spare(conn->server);
    return room == MU_FILES_ENOUGH;
}

bool mu_server_accepted_on(const struct mu_server *server, union mu_addr *ret_addr)
{
    if (server->accepted_on.any.sa_family == 0)
        return false;
    *ret_addr = server->accepted_on;
    return true;
}

static void admit(struct mu_conn *conn)
{
    struct mu_server *server = conn->server;
    union mu_addr here = { .any = { 0 } };
    socklen_t len = sizeof here;
    bool is_known = getsockname(conn->fd, &here.any, &len) == 0;
    /* What this machine sends to itself has the same address at both ends. */
    bool from_here = mu_addr_is_loopback(&conn->addr) || (is_known && mu_addr_same_host(&here, &conn->addr));
    const struct mu_newcomer newcomer = { .addr = &conn->addr,
                                          .from_here = from_here,
                                          .conns = server->conns_count,
                                          .process_room = mu_files_connections_max() };
    struct muster_error error;

    if (mu_admission_check(&server->admission, &server->era->service.limits, &newcomer, &conn->origin, &error) < 0) {
        mu_conn_drop(conn, error.text);
    } else if (!make_room_for(conn)) {
        mu_conn_drop(conn, "the limit of open files is reached");
    } else if (mu_conn_read(conn) < 0) {
        mu_conn_doom(conn);
    } else {
        conn->number = ++server->accepted;
        mu_list_push(&server->silent, &conn->silent);
        if (is_known && !from_here && server->accepted_on.any.sa_family == 0)
            server->accepted_on = here;
    }
}

static struct mu_conn *new_conn(struct mu_server *server)
{
    struct mu_conn *conn = calloc(1, sizeof *conn);

    if (conn == NULL)
        return NULL;
    conn->server = server;
    if (uv_tcp_init(server->loop, &conn->tcp) < 0) { /* cannot fail without flags */
        free(conn);
        return NULL;
    }
    conn->tcp.data = conn;
    conn->heard_ms = uv_now(server->loop);
    conn->era = server->era;
    conn->era->users++;
    mu_session_init(&conn->session, &conn->era->service);
    mu_list_init(&conn->doomed);
    mu_list_init(&conn->waiting);
    mu_list_init(&conn->silent);
    mu_list_init(&conn->busy);
    mu_list_init(&conn->link);
    mu_list_push(&server->conns, &conn->link);
    server->conns_count++;
    mu_files_connection_opened();
    return conn;
}

static void on_spare_closed(uv_handle_t *handle)
{
    struct mu_server *server = handle->data;

    server->spare_busy = false;
    MU_LIST_EACH (struct mu_listener, listener, &server->listeners, link) {
        if (!listener->held_back || server->closing)
            continue;
        listener->held_back = false;
        mu_server_on_connection((uv_stream_t *)&listener->tcp, 0);
    }
    mu_server_on_handle_closed(handle);
}

/* There is no memory for a newcomer. libuv takes no other before this one is accepted, so the spare handle takes it. */
static void turn_away(struct mu_listener *listener)
{
    struct mu_server *server = listener->server;

    if (server->spare_busy) {
        listener->held_back = true;
        return;
    }
    server->spare_busy = true;
    server->handles++;
    (void)uv_tcp_init(server->loop, &server->spare); /* only fills in memory */
    server->spare.data = server;
    (void)uv_accept((uv_stream_t *)&listener->tcp, (uv_stream_t *)&server->spare);
    uv_close((uv_handle_t *)&server->spare, on_spare_closed);
}

void mu_server_on_connection(uv_stream_t *stream, int status)
{
    struct mu_listener *listener = stream->data;
    struct mu_server *server = listener->server;
    struct mu_conn *conn = NULL;
    int len = sizeof conn->addr;

    if (status == 0)
        conn = new_conn(server);
    if (conn == NULL) {
        if (mu_server_may_log_refusal(server))
            mu_log(MUSTER_LOG_WARNING, "store: cannot take a connection: %s",
                   status < 0 ? uv_strerror(status) : "out of memory");
        if (status == 0)
            turn_away(listener);
        return;
    }
    if (uv_accept(stream, (uv_stream_t *)&conn->tcp) < 0 || uv_fileno((uv_handle_t *)&conn->tcp, &conn->fd) < 0 ||
        uv_tcp_getpeername(&conn->tcp, &conn->addr.any, &len) < 0)
        mu_conn_doom(conn); /* gone before it was taken */
    else
        admit(conn);
    mu_server_close_doomed(server);
}
