/* The store server on a libuv loop: sockets in, sessions fed, replies out. It decides nothing about requests.
 *
 * on_read() feeds a connection's session from a buffer that all connections share. What the session answers is gathered
 * in another shared buffer and written with one call when everything that was read has been carried out.
 *
 * If a session or a socket fails, its connection is put on the `doomed` list. It is closed when the event that is being
 * handled is over, never in the middle of it.
 *
 * A request that would take long is carried out in turns. Its connection is on the `busy` list and nothing is read from
 * it. Each time round the loop the first of that list gets one turn; all others are read from and answered in
 * between. */
#include "base/error.h"
#include "base/files.h"
#include "store/server_parts_uv.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

enum {
    READS_AHEAD = 32,      /* buffers that connections may fill, all together, before the others have their turn */
    LOG_DROPPED_MS = 5000, /* how long refusals may stay unmentioned */
};

void mu_server_log_dropped(uint64_t dropped)
{
    if (dropped > 0)
        mu_log(MUSTER_LOG_WARNING, "store: %" PRIu64 " more refusals were not logged", dropped);
}

static void on_log_timer(uv_timer_t *timer)
{
    struct mu_server *server = timer->data;

    mu_server_log_dropped(server->log_limit.dropped);
    server->log_limit.dropped = 0;
}

bool mu_server_may_log_refusal(struct mu_server *server)
{
    uint64_t dropped;

    server->refused++;
    if (!mu_log_allowed(&server->log_limit, uv_now(server->loop), &dropped)) {
        if (!server->closing && !uv_is_active((uv_handle_t *)&server->log_timer))
            (void)uv_timer_start(&server->log_timer, on_log_timer, LOG_DROPPED_MS, 0);
        return false;
    }
    mu_server_log_dropped(dropped);
    return true;
}

static void log_refusal(struct mu_server *server, const union mu_addr *addr, const char *why)
{
    char text[MU_ADDR_TEXT_MAX];

    if (mu_server_may_log_refusal(server))
        mu_log(MUSTER_LOG_WARNING, "store: refused %s: %s; its connection is closed", mu_addr_format(addr, text), why);
}

void mu_conn_doom(struct mu_conn *conn)
{
    conn->session.dead = true;
    mu_list_remove(&conn->waiting);
    mu_list_remove(&conn->doomed);
    mu_list_push(&conn->server->doomed, &conn->doomed);
}

void mu_conn_drop(struct mu_conn *conn, const char *why)
{
    log_refusal(conn->server, &conn->addr, why);
    mu_conn_doom(conn);
}

/* ---- Eras ---- */

struct mu_era *mu_era_new(const struct muster_store_limits *limits, enum mu_dialect legacy, struct mu_hash_seed seed)
{
    struct mu_era *era = calloc(1, sizeof *era);

    if (era == NULL)
        return NULL;
    mu_service_init(&era->service, limits, legacy, seed, mu_conn_send);
    era->users = 1;
    return era;
}

void mu_era_end(struct mu_era *era)
{
    era->users--;
    if (era->users > 0)
        return;
    mu_service_done(&era->service);
    free(era);
}

int mu_server_renew(struct mu_server *server, struct muster_error *reterr)
{
    const struct mu_service *service = &server->era->service;
    uint64_t k0 = mu_hash64(server->seed, mu_slice_str("k0")), k1 = mu_hash64(server->seed, mu_slice_str("k1"));
    struct mu_hash_seed seed = { k0, k1 };
    struct mu_era *era = mu_era_new(&service->limits, service->legacy, seed);

    if (era == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a store's table");
    server->seed = seed;
    mu_era_end(server->era);
    server->era = era;
    return 0;
}

/* ---- Connections ---- */

void mu_server_close_if_over(struct mu_server *server)
{
    if (!server->closing || server->handles > 0 || server->conns_count > 0)
        return;
    mu_era_end(server->era);
    server->on_closed(server, server->on_closed_ctx);
    free(server->admission.allow);
    free(server);
}

void mu_server_on_handle_closed(uv_handle_t *handle)
{
    struct mu_server *server = handle->data;

    server->handles--;
    mu_server_close_if_over(server);
}

static void on_conn_closed(uv_handle_t *handle)
{
    struct mu_conn *conn = handle->data;
    struct mu_server *server = conn->server;
    uint64_t number = conn->number;

    mu_conn_free_backlog(conn);
    mu_era_end(conn->era);
    free(conn);
    server->conns_count--;
    if (server->gone != NULL && !server->closing)
        server->gone(server->gone_ctx, number);
    mu_server_look_if_alone(server);
    mu_server_close_if_over(server);
}

static void take_turns(struct mu_conn *conn);

void mu_conn_close(struct mu_conn *conn)
{
    if (conn->server->sated == conn)
        conn->server->sated = NULL;
    if (!conn->server->closing && mu_peer_waits_long(&conn->session.peer)) {
        mu_list_remove(&conn->doomed);
        take_turns(conn); /* the last of which closes it */
        return;
    }
    mu_list_remove(&conn->busy);
    mu_list_remove(&conn->link);
    mu_list_remove(&conn->doomed);
    mu_list_remove(&conn->waiting);
    mu_list_remove(&conn->silent);
    if (conn->origin != NULL)
        mu_origins_remove(&conn->server->admission.origins, conn->origin);
    mu_files_connection_closed();
    mu_session_leave(&conn->session); /* may wake, and so doom, others */
    uv_close((uv_handle_t *)&conn->tcp, on_conn_closed);
}

void mu_server_close_doomed(struct mu_server *server)
{
    struct mu_list *link;

    while ((link = mu_list_first(&server->doomed)) != NULL)
        mu_conn_close(MU_LIST_ITEM(link, struct mu_conn, doomed));
}

/* Every grace is of the same length, so the list is in the order in which they end. */
static void on_grace_over(uv_timer_t *timer);

static void arm_grace_timer(struct mu_server *server)
{
    struct mu_list *link = mu_list_first(&server->graces);
    uint64_t until, now = uv_now(server->loop);

    if (link == NULL) {
        (void)uv_timer_stop(&server->grace_timer);
        return;
    }
    until = mu_session_deadline_ms(&MU_LIST_ITEM(link, struct mu_conn, waiting)->session);
    (void)uv_timer_start(&server->grace_timer, on_grace_over, until > now ? until - now : 0, 0);
}

static void update_grace(struct mu_conn *conn)
{
    bool wanted = !conn->session.dead && mu_session_deadline_ms(&conn->session) != 0;

    if (wanted == !mu_list_empty(&conn->waiting))
        return;
    if (wanted)
        mu_list_push(&conn->server->graces, &conn->waiting);
    else
        mu_list_remove(&conn->waiting);
    arm_grace_timer(conn->server);
}

static void feed(struct mu_conn *conn, struct mu_slice bytes)
{
    struct mu_server *server = conn->server;
    struct muster_error error; /* a kilobyte, written only on failure */
    bool was_busy = mu_session_is_busy(&conn->session);
    int rc;

    server->current = conn;
    conn->heard_ms = uv_now(server->loop);
    if (was_busy)
        rc = mu_session_work(&conn->session, uv_now(server->loop), &error);
    else
        rc = mu_session_feed(&conn->session, bytes, uv_now(server->loop), &error);
    mu_conn_flush(server); /* what it asked for before a bad request is still answered */
    server->current = NULL;
    if (!mu_list_empty(&conn->silent) && conn->session.codec.any_request)
        mu_list_remove(&conn->silent);
    if (rc < 0)
        mu_conn_drop(conn, error.text);
    else if (mu_session_is_busy(&conn->session))
        take_turns(conn);
    update_grace(conn);
}

/* ---- Turns ---- */

static void take_turn(struct mu_conn *conn)
{
    if (conn->session.dead) {
        if (mu_session_leave_some(&conn->session))
            take_turns(conn);
        else
            mu_conn_close(conn);
        return;
    }
    feed(conn, mu_slice("", 0));
    if (!conn->session.dead && !mu_session_is_busy(&conn->session) && mu_conn_read(conn) < 0)
        mu_conn_doom(conn);
}

static void on_turn(uv_idle_t *idle)
{
    struct mu_server *server = idle->data;
    struct mu_list *link = mu_list_pop(&server->busy);

    if (link != NULL)
        take_turn(MU_LIST_ITEM(link, struct mu_conn, busy));
    mu_server_close_doomed(server);
    if (mu_list_empty(&server->busy))
        (void)uv_idle_stop(&server->turns);
}

static void take_turns(struct mu_conn *conn)
{
    struct mu_server *server = conn->server;

    (void)uv_read_stop((uv_stream_t *)&conn->tcp);
    mu_list_remove(&conn->busy);
    mu_list_push(&server->busy, &conn->busy);
    (void)uv_idle_start(&server->turns, on_turn);
}

static bool has_unread_bytes(const struct mu_conn *conn)
{
    char byte;

    return recv(conn->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

/* A loop that was held up runs its timers first. Bytes that have come meanwhile must not be taken for silence: they
 * are about to be read, and any of them ends the grace. */
static void on_grace_over(uv_timer_t *timer)
{
    struct mu_server *server = timer->data;
    uint64_t now = uv_now(server->loop);
    struct mu_list *link;

    while ((link = mu_list_first(&server->graces)) != NULL) {
        struct mu_conn *conn = MU_LIST_ITEM(link, struct mu_conn, waiting);

        if (mu_session_deadline_ms(&conn->session) > now)
            break;
        if (has_unread_bytes(conn))
            mu_list_remove(&conn->waiting);
        else
            feed(conn, mu_slice("", 0));
    }
    arm_grace_timer(server);
    mu_server_close_doomed(server);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret_buf)
{
    struct mu_conn *conn = handle->data;
    struct mu_server *server = conn->server;

    (void)suggested;
    /* libuv would go on reading from one socket, up to 32 times; without a buffer it turns to the others. */
    *ret_buf = server->sated == conn ? uv_buf_init(NULL, 0) : uv_buf_init(server->read_bytes, MU_SERVER_READ_BYTES);
    server->sated = NULL;
}

/* One that sends much may do so in one go, but not several at once. */
static bool may_read_ahead(struct mu_server *server)
{
    if (server->ahead_ms != uv_now(server->loop)) {
        server->ahead_ms = uv_now(server->loop);
        server->ahead = 0;
    }
    return server->ahead++ < READS_AHEAD;
}

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buf)
{
    struct mu_conn *conn = stream->data;

    if (count == MU_SERVER_READ_BYTES && !may_read_ahead(conn->server))
        conn->server->sated = conn;
    if (count > 0)
        feed(conn, mu_slice(buf->base, (size_t)count));
    else if (count < 0 && count != UV_ENOBUFS)
        mu_conn_doom(conn); /* it hung up, or its network did */
    mu_server_close_doomed(conn->server);
}

int mu_conn_read(struct mu_conn *conn)
{
    return uv_read_start((uv_stream_t *)&conn->tcp, on_alloc, on_read);
}

uint64_t mu_server_writer(const struct mu_server *server)
{
    return server->current == NULL ? 0 : server->current->number;
}

const union mu_addr *mu_server_writer_address(const struct mu_server *server)
{
    return server->current == NULL ? NULL : &server->current->addr;
}

void mu_server_on_gone(struct mu_server *server, void (*gone)(void *ctx, uint64_t connection), void *ctx)
{
    server->gone = gone;
    server->gone_ctx = ctx;
}
