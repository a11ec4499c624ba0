/* What a store server sends. Replies to the connection whose requests are being carried out are gathered and written
 * with one call; sends to others (woken waiters) are written at once. A socket that takes no more gets a backlog of its
 * own, which uv_write() drains; past the limit the peer is dropped. */
#include "base/error.h"
#include "store/server_parts_uv.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

enum { PARTS_MAX = 8 };

static void settle_charge(struct mu_conn *conn)
{
    struct mu_backlog *backlog = conn->backlog;
    struct mu_budget *budget = &conn->era->service.transit;
    size_t now = backlog->sending.cap + backlog->queued.cap;

    budget->used = budget->used - backlog->charged + now;
    backlog->charged = now;
}

void mu_conn_free_backlog(struct mu_conn *conn)
{
    if (conn->backlog == NULL)
        return;
    mu_budget_give(&conn->era->service.transit, conn->backlog->charged);
    mu_buf_done(&conn->backlog->sending);
    mu_buf_done(&conn->backlog->queued);
    free(conn->backlog);
    conn->backlog = NULL;
}

static void on_written(uv_write_t *req, int status);

static void start_write(struct mu_conn *conn)
{
    struct mu_backlog *backlog = conn->backlog;
    uv_buf_t buf;
    int rc;

    backlog->sending = backlog->queued;
    backlog->queued = (struct mu_buf){ 0 };
    backlog->req.data = conn;
    buf = uv_buf_init(backlog->sending.data, (unsigned)backlog->sending.len);
    rc = uv_write(&backlog->req, (uv_stream_t *)&conn->tcp, &buf, 1, on_written);
    if (rc < 0)
        mu_conn_doom(conn);
}

static bool can_queue(const struct mu_conn *conn, size_t len, struct muster_error *reterr)
{
    const struct mu_service *service = &conn->era->service;
    const struct mu_buf *queued = &conn->backlog->queued;
    size_t unsent = conn->backlog->sending.len + queued->len;
    size_t growth = queued->len + len > queued->cap ? 2 * (queued->len + len) + 64 - queued->cap : 0; /* at worst */

    if (len > service->limits.unsent_bytes || unsent > service->limits.unsent_bytes - len) {
        (void)mu_fail(reterr, MUSTER_ELIMIT,
                      "it does not read its replies: %zu bytes are unsent and the limit is %" PRIu64, unsent + len,
                      service->limits.unsent_bytes);
        return false;
    }
    if (service->transit.used + growth > service->transit.max) {
        (void)mu_fail(reterr, MUSTER_ELIMIT, "no room for %zu unsent bytes: %zu of %zu bytes are in use", len,
                      service->transit.used, service->transit.max);
        return false;
    }
    return true;
}

/* Keeps what the socket did not take: all but the first `skip` bytes of the parts. */
static void enqueue(struct mu_conn *conn, const struct mu_slice *parts, size_t count, size_t skip, size_t total)
{
    struct muster_error error;
    int rc = 0;

    if (conn->backlog == NULL)
        conn->backlog = calloc(1, sizeof *conn->backlog);
    if (conn->backlog == NULL) {
        mu_conn_drop(conn, "no memory for its replies");
        return;
    }
    if (!can_queue(conn, total - skip, &error)) {
        mu_conn_drop(conn, error.text);
        return;
    }
    for (size_t i = 0; i < count && rc == 0; i++) {
        size_t cut = skip < parts[i].len ? skip : parts[i].len;

        skip -= cut;
        rc = mu_buf_append(&conn->backlog->queued, parts[i].data + cut, parts[i].len - cut, SIZE_MAX);
    }
    settle_charge(conn);
    if (rc < 0)
        mu_conn_drop(conn, "no memory for its replies");
    else if (conn->backlog->sending.data == NULL)
        start_write(conn);
}

/* Gives the socket what it takes at once: how many bytes, or -1 when it is broken. The loop has nothing queued for it
 * then, so a plain send() is all that uv_try_write() would come to; and it raises no SIGPIPE. */
static ssize_t send_now(const struct mu_conn *conn, const struct mu_slice *parts, size_t count)
{
    struct iovec vec[PARTS_MAX];
    struct msghdr message = { .msg_iov = vec, .msg_iovlen = count };
    ssize_t sent;

    assert(count <= PARTS_MAX);
    for (size_t i = 0; i < count; i++)
        vec[i] = (struct iovec){ .iov_base = (char *)parts[i].data, .iov_len = parts[i].len };
    do
        sent = count == 1 ? send(conn->fd, parts[0].data, parts[0].len, MSG_DONTWAIT | MSG_NOSIGNAL)
                          : sendmsg(conn->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? 0 : sent;
}

static void write_parts(struct mu_conn *conn, const struct mu_slice *parts, size_t count, size_t total)
{
    ssize_t sent = conn->backlog == NULL ? send_now(conn, parts, count) : 0;

    if (sent < 0)
        mu_conn_doom(conn);
    else if ((size_t)sent < total)
        enqueue(conn, parts, count, (size_t)sent, total);
}

void mu_conn_flush(struct mu_server *server)
{
    struct mu_slice part = mu_slice(server->gather_bytes, server->gathered);

    server->gathered = 0;
    if (part.len > 0 && !server->current->session.dead)
        write_parts(server->current, &part, 1, part.len);
}

void mu_conn_send(struct mu_session *session, const struct mu_slice *parts, size_t count)
{
    struct mu_conn *conn = MU_LIST_ITEM(session, struct mu_conn, session);
    struct mu_server *server = conn->server;
    size_t total = 0;

    for (size_t i = 0; i < count; i++)
        total += parts[i].len;
    if (conn == server->current && total > MU_SERVER_GATHER_BYTES - server->gathered)
        mu_conn_flush(server);
    if (conn != server->current || total > MU_SERVER_GATHER_BYTES) {
        if (!session->dead)
            write_parts(conn, parts, count, total);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (parts[i].len > 0)
            memcpy(server->gather_bytes + server->gathered, parts[i].data, parts[i].len);
        server->gathered += parts[i].len;
    }
}

static void on_written(uv_write_t *req, int status)
{
    struct mu_conn *conn = req->data;

    if (uv_is_closing((uv_handle_t *)&conn->tcp))
        return;
    if (status < 0) {
        mu_conn_doom(conn);
    } else {
        mu_buf_done(&conn->backlog->sending);
        settle_charge(conn);
        if (conn->backlog->queued.len > 0)
            start_write(conn);
        else
            mu_conn_free_backlog(conn);
    }
    mu_server_close_doomed(conn->server);
}
