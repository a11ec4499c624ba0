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
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

enum {
    READS_AHEAD = 32,      /* buffers that connections may fill, all together, before the others have their turn */
    LOG_DROPPED_MS = 5000, /* how long refusals may stay unmentioned */
    PARTS_MAX = 8,         /* of one send */
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

void mu_conn_doom(struct mu_conn *conn)
{
    conn->session.dead = true;
    if (conn->frames != NULL)
        conn->frames->session.dead = true;
    mu_list_remove(&conn->waiting);
    mu_list_remove(&conn->doomed);
    mu_list_push(&conn->server->doomed, &conn->doomed);
}

void mu_conn_drop(struct mu_conn *conn, const char *why)
{
    char text[MU_ADDR_TEXT_MAX];

    if (mu_server_may_log_refusal(conn->server))
        mu_log(MUSTER_LOG_WARNING, "store: refused %s: %s; its connection is closed", mu_addr_format(&conn->addr, text),
               why);
    conn->refused = true;
    mu_conn_doom(conn);
}

/* ---- Sending ----
 *
 * Replies to the connection whose requests are being carried out are gathered and written with one call; sends to
 * others (woken waiters) are written at once. A socket that takes no more gets a backlog of its own, which uv_write()
 * drains; past the limit the peer is dropped. */

/* What a peer has not taken yet. `sending` is in the hands of uv_write() and must not move. */
struct mu_backlog {
    uv_write_t req;
    struct mu_buf sending, queued;
    size_t charged; /* what of the service's transit budget the two hold */
};

static void settle_charge(struct mu_conn *conn)
{
    struct mu_backlog *backlog = conn->backlog;
    struct mu_budget *budget = &conn->era->service.transit;
    size_t now = backlog->sending.cap + backlog->queued.cap;

    budget->used = budget->used - backlog->charged + now;
    backlog->charged = now;
}

static void free_backlog(struct mu_conn *conn)
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
    uint64_t max = conn->frames != NULL ? MU_ENGINE_UNSENT_MAX + len : service->limits.unsent_bytes;
    size_t growth = queued->len + len > queued->cap ? 2 * (queued->len + len) + 64 - queued->cap : 0; /* at worst */

    if (len > max || unsent > max - len) {
        (void)mu_fail(reterr, MUSTER_ELIMIT,
                      "it does not read its replies: %zu bytes are unsent and the limit is %" PRIu64, unsent + len,
                      max);
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

static void flush(struct mu_server *server)
{
    struct mu_slice part = mu_slice(server->gather_bytes, server->gathered);

    server->gathered = 0;
    if (part.len > 0 && !server->current->session.dead)
        write_parts(server->current, &part, 1, part.len);
}

void mu_conn_send(struct mu_conn *conn, const struct mu_slice *parts, size_t count)
{
    struct mu_server *server = conn->server;
    size_t total = 0;

    for (size_t i = 0; i < count; i++)
        total += parts[i].len;
    if (conn == server->current && total > MU_SERVER_GATHER_BYTES - server->gathered)
        flush(server);
    if (conn != server->current || total > MU_SERVER_GATHER_BYTES) {
        if (!conn->session.dead)
            write_parts(conn, parts, count, total);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (parts[i].len > 0)
            memcpy(server->gather_bytes + server->gathered, parts[i].data, parts[i].len);
        server->gathered += parts[i].len;
    }
}

static void send_parts(struct mu_session *session, const struct mu_slice *parts, size_t count)
{
    mu_conn_send(MU_LIST_ITEM(session, struct mu_conn, session), parts, count);
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
            free_backlog(conn);
        if (conn->backlog == NULL && conn->frames != NULL)
            mu_engine_session_sent(&conn->frames->session);
    }
    mu_server_close_doomed(conn->server);
}

/* ---- Eras ---- */

struct mu_era *mu_era_new(const struct muster_store_limits *limits, enum mu_dialect legacy, struct mu_hash_seed seed)
{
    struct mu_era *era = calloc(1, sizeof *era);

    if (era == NULL)
        return NULL;
    mu_service_init(&era->service, limits, legacy, seed, send_parts);
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
    mu_server_engine_free(server);
    mu_era_end(server->era);
    if (server->on_closed != NULL)
        server->on_closed(server, server->on_closed_ctx);
    free(server->admission.allow);
    mu_token_wipe(&server->token);
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

    free_backlog(conn);
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
    mu_frames_free(conn->frames);
    conn->frames = NULL;
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

/* A node whose job meets elsewhere tries again and again. */
static void refuse(struct mu_conn *conn, const char *why)
{
    if (!conn->session.strayed || mu_strays_add(&conn->server->strays, &conn->addr)) {
        mu_conn_drop(conn, why);
        return;
    }
    conn->refused = true;
    mu_conn_doom(conn);
}

void mu_conn_feed(struct mu_conn *conn, struct mu_slice bytes)
{
    struct mu_server *server = conn->server;
    struct muster_error error; /* a kilobyte, written only on failure */
    bool was_busy = mu_session_is_busy(&conn->session);
    int rc;

    server->current = conn;
    conn->heard_ms = uv_now(server->loop);
    if (conn->frames != NULL)
        rc = mu_engine_session_feed(&conn->frames->session, bytes, uv_now(server->loop), &error);
    else if (was_busy)
        rc = mu_session_work(&conn->session, uv_now(server->loop), &error);
    else
        rc = mu_session_feed(&conn->session, bytes, uv_now(server->loop), &error);
    if (rc == 0 && conn->session.state == MU_SESSION_MOVED && conn->frames == NULL)
        rc = mu_conn_move(conn, &error);
    flush(server); /* what it asked for before a bad request is still answered */
    server->current = NULL;
    if (!mu_list_empty(&conn->silent) &&
        (conn->frames != NULL ? conn->frames->session.peer.job != NULL : conn->session.codec.any_request))
        mu_list_remove(&conn->silent);
    if (rc < 0)
        refuse(conn, error.text);
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
    mu_conn_feed(conn, mu_slice("", 0));
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
    struct mu_conn *conn;

    while ((conn = MU_LIST_FIRST(struct mu_conn, &server->graces, waiting)) != NULL) {
        if (mu_session_deadline_ms(&conn->session) > now)
            break;
        if (has_unread_bytes(conn))
            mu_list_remove(&conn->waiting);
        else
            mu_conn_feed(conn, mu_slice("", 0));
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
        mu_conn_feed(conn, mu_slice(buf->base, (size_t)count));
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

/* ---- Keys that this process watches and writes itself, without a connection ---- */

/* A session without a socket that only ever watches. */
struct mu_server_watch {
    struct mu_session session;
    struct mu_era *era;
    mu_server_value *on_value;
    void *ctx;
};

/* A notice has six parts, the last of which is the new value; the first answer has one. */
static void send_to_watch(struct mu_session *session, const struct mu_slice *parts, size_t count)
{
    struct mu_server_watch *watch = MU_LIST_ITEM(session, struct mu_server_watch, session);

    if (count > 1)
        watch->on_value(watch->ctx, parts[count - 1]);
}

int mu_server_watch(struct mu_server *server, struct mu_slice key, mu_server_value *on_value, void *ctx,
                    struct mu_server_watch **ret_watch, struct muster_error *reterr)
{
    struct mu_server_watch *watch = calloc(1, sizeof *watch);
    struct mu_request request = { .op = MU_OP_WATCH_KEY, .key = key };
    struct mu_slice value = mu_table_get(&server->era->service.table, key);
    struct mu_answer answer;

    if (watch == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory to watch a key");
    watch->era = server->era;
    watch->era->users++;
    mu_session_init(&watch->session, &watch->era->service);
    watch->session.send = send_to_watch;
    watch->on_value = on_value;
    watch->ctx = ctx;
    mu_table_step(&watch->era->service.table, &watch->session.peer, &request, &answer, reterr);
    if (answer.kind == MU_ANSWER_REFUSED) {
        mu_server_unwatch(server, watch);
        return MUSTER_ELIMIT; /* there is no other reason */
    }
    if (value.data != NULL)
        on_value(ctx, value);
    *ret_watch = watch;
    return 0;
}

void mu_server_unwatch(struct mu_server *server, struct mu_server_watch *watch)
{
    mu_session_leave(&watch->session);
    mu_server_close_doomed(server);
    mu_era_end(watch->era);
    free(watch);
}

static void send_nothing(struct mu_session *session, const struct mu_slice *parts, size_t count)
{
    (void)session;
    (void)parts;
    (void)count;
}

int mu_server_compare_set(struct mu_server *server, struct mu_slice key, struct mu_slice expected,
                          struct mu_slice value, struct muster_error *reterr)
{
    struct mu_request request = { .op = MU_OP_COMPARE_SET, .key = key, .value = expected, .desired = value };
    struct mu_answer answer;
    struct mu_session session;

    assert(server->current == NULL);
    mu_session_init(&session, &server->era->service);
    session.send = send_nothing;
    mu_table_step(&server->era->service.table, &session.peer, &request, &answer, reterr);
    mu_session_leave(&session); /* tells those who wait for the key */
    mu_server_close_doomed(server);
    return answer.kind == MU_ANSWER_REFUSED ? MUSTER_ELIMIT : 0;
}
