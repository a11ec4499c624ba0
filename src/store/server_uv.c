/* The store server on a libuv loop: sockets in, sessions fed, replies out. It decides nothing about requests.
 *
 * Happy path: on_connection() accepts and starts reading; on_read() feeds the session from a buffer that all connections
 * share; what the session sends is gathered in another shared buffer and written with one call when everything that was
 * read has been carried out. Sends to other connections (woken waiters) are written at once.
 * Failures: a socket that takes no more gets its own queue, which uv_write() drains; past the limit the peer is dropped.
 * A session that fails, or a socket that does, puts its connection on the `doomed` list; it is closed when the event
 * that is being handled is over, never in the middle of it.
 * What would take long goes in turns: the connection is on the `busy` list, nothing is read from it, and each time round
 * the loop the first of that list gets one turn. All others are read from, and answered, in between. */
#include "store/server_uv.h"

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "store/limits.h"
#include "store/listen.h"
#include "store/origins.h"
#include "store/session.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

enum {
    READ_BYTES = 64 * 1024,
    READS_AHEAD = 32, /* buffers that connections may fill, all together, before the others have their turn */
    GATHER_BYTES = 64 * 1024,
    PARTS_MAX = 8,
    FILES_KEPT_FREE = 4, /* past the last descriptor libuv would turn peers away without a word */
    LOG_BURST = 20,
    LOG_PER_S = 2,
    LOG_DROPPED_MS = 5000, /* how long refusals may stay unmentioned */
    OWN_CONNS_MAX = 32,    /* of our process to our own server; more belong to others */
    IDLE_MS = 1000,        /* a connection that has asked for something since then is not idle */
    ADDRESS_SHARE = 2,     /* one address outside may have half of the connections that there is room for */
    KEEPALIVE_S = 60,
};

/* What a peer has not taken yet. `sending` is in the hands of uv_write() and must not move. */
struct backlog {
    uv_write_t req;
    struct mu_buf sending, queued;
    size_t charged; /* what of the service's transit budget the two hold */
};

/* A table and the connections that were accepted while it was the newest. */
struct era {
    struct mu_service service;
    size_t users; /* connections and watches, and the server while it is the newest */
};

/* One of the addresses of a server; all of them have the same port. */
struct listener {
    uv_tcp_t tcp;
    struct mu_server *server;
    union mu_addr addr;
    bool held_back;      /* a connection waits for the spare handle */
    struct mu_list link; /* in server->listeners */
};

struct conn {
    uv_tcp_t tcp;
    int fd; /* its socket, which it owns */
    struct mu_server *server;
    struct backlog *backlog; /* NULL: the socket took everything so far */
    struct mu_session session;
    struct era *era;
    union mu_addr addr;
    uint64_t number;          /* in the order in which they were accepted, from 1 */
    uint64_t heard_ms;        /* when something last came from it */
    struct mu_origin *origin; /* NULL: it comes from this machine */
    struct mu_list link;      /* in server->conns */
    struct mu_list doomed;    /* in server->doomed, or in no list */
    struct mu_list waiting;   /* in server->graces, or in no list */
    struct mu_list silent;    /* in server->silent, or in no list */
    struct mu_list busy;      /* in server->busy, or in no list */
};

struct mu_server {
    uv_loop_t *loop;
    struct mu_list listeners;
    uv_timer_t grace_timer;
    uv_tcp_t spare;           /* takes connections there is no memory for, in order to close them */
    uv_timer_t log_timer;     /* runs while there are refusals that were not logged */
    uv_timer_t alone_timer;   /* due when somebody may have been the last to go */
    void (*alone)(void *ctx); /* NULL: nobody wants to know */
    void *alone_ctx;
    void (*gone)(void *ctx, uint64_t connection); /* NULL: nobody wants to know */
    void *gone_ctx;
    unsigned handles; /* of these, those not closed yet */
    bool spare_busy;
    union mu_addr addr;        /* of the first listener */
    union mu_addr accepted_on; /* where somebody from elsewhere came in */
    bool has_accepted_on;
    struct era *era; /* the newest */
    struct mu_hash_seed seed;
    struct mu_network *allow;
    size_t allow_count;
    bool allow_own;
    struct mu_list conns, doomed, graces;
    struct mu_list silent; /* connections that have asked for nothing yet, those that came first in front */
    struct mu_origins origins;
    struct mu_list busy; /* connections with work that is done in turns, or that leave in turns */
    uv_idle_t turns;     /* runs while there are some */
    size_t conns_count;  /* not yet given back by the loop */
    uint64_t accepted, refused;
    struct mu_log_limit log_limit;
    struct conn *sated;   /* has filled the buffer, and reads on when it is its turn again */
    uint64_t ahead_ms;    /* the loop's time at the last read ahead */
    unsigned ahead;       /* buffers read ahead at that time */
    struct conn *current; /* whose bytes are being carried out; its replies are gathered */
    size_t gathered;
    bool closing;
    mu_server_closed *on_closed;
    void *on_closed_ctx;
    char read_bytes[READ_BYTES];
    char gather_bytes[GATHER_BYTES];
};

static struct conn *conn_of(struct mu_session *session)
{
    return MU_LIST_ITEM(session, struct conn, session);
}

static void log_dropped(uint64_t dropped)
{
    if (dropped > 0)
        mu_log(MUSTER_LOG_WARNING, "store: %" PRIu64 " more refusals were not logged", dropped);
}

static void on_log_timer(uv_timer_t *timer)
{
    struct mu_server *server = timer->data;

    log_dropped(server->log_limit.dropped);
    server->log_limit.dropped = 0;
}

/* Counts a refusal; true when it may be logged, for that must not happen too often. */
static bool may_log_refusal(struct mu_server *server)
{
    uint64_t dropped;

    server->refused++;
    if (!mu_log_allowed(&server->log_limit, uv_now(server->loop), &dropped)) {
        if (!server->closing && !uv_is_active((uv_handle_t *)&server->log_timer))
            (void)uv_timer_start(&server->log_timer, on_log_timer, LOG_DROPPED_MS, 0);
        return false;
    }
    log_dropped(dropped);
    return true;
}

static void log_refusal(struct mu_server *server, const union mu_addr *addr, const char *why)
{
    char text[MU_ADDR_TEXT_MAX];

    if (may_log_refusal(server))
        mu_log(MUSTER_LOG_WARNING, "store: refused %s: %s; its connection is closed", mu_addr_format(addr, text), why);
}

static void doom(struct conn *conn)
{
    conn->session.dead = true;
    mu_list_remove(&conn->waiting);
    mu_list_remove(&conn->doomed);
    mu_list_push(&conn->server->doomed, &conn->doomed);
}

static void drop(struct conn *conn, const char *why)
{
    log_refusal(conn->server, &conn->addr, why);
    doom(conn);
}

/* ---- Sending ---- */

static void settle_charge(struct conn *conn)
{
    struct backlog *backlog = conn->backlog;
    struct mu_budget *budget = &conn->era->service.transit;
    size_t now = backlog->sending.cap + backlog->queued.cap;

    budget->used = budget->used - backlog->charged + now;
    backlog->charged = now;
}

static void free_backlog(struct conn *conn)
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

static void start_write(struct conn *conn)
{
    struct backlog *backlog = conn->backlog;
    uv_buf_t buf;
    int rc;

    backlog->sending = backlog->queued;
    backlog->queued = (struct mu_buf){ 0 };
    backlog->req.data = conn;
    buf = uv_buf_init(backlog->sending.data, (unsigned)backlog->sending.len);
    rc = uv_write(&backlog->req, (uv_stream_t *)&conn->tcp, &buf, 1, on_written);
    if (rc < 0)
        doom(conn);
}

static bool can_queue(const struct conn *conn, size_t len, struct muster_error *reterr)
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
static void enqueue(struct conn *conn, const struct mu_slice *parts, size_t count, size_t skip, size_t total)
{
    struct muster_error error;
    int rc = 0;

    if (conn->backlog == NULL)
        conn->backlog = calloc(1, sizeof *conn->backlog);
    if (conn->backlog == NULL) {
        drop(conn, "no memory for its replies");
        return;
    }
    if (!can_queue(conn, total - skip, &error)) {
        drop(conn, error.text);
        return;
    }
    for (size_t i = 0; i < count && rc == 0; i++) {
        size_t cut = skip < parts[i].len ? skip : parts[i].len;

        skip -= cut;
        rc = mu_buf_append(&conn->backlog->queued, parts[i].data + cut, parts[i].len - cut, SIZE_MAX);
    }
    settle_charge(conn);
    if (rc < 0)
        drop(conn, "no memory for its replies");
    else if (conn->backlog->sending.data == NULL)
        start_write(conn);
}

/* Gives the socket what it takes at once: how many bytes, or -1 when it is broken. The loop has nothing queued for it
 * then, so a plain send() is all that uv_try_write() would come to; and it raises no SIGPIPE. */
static ssize_t send_now(const struct conn *conn, const struct mu_slice *parts, size_t count)
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

static void write_parts(struct conn *conn, const struct mu_slice *parts, size_t count, size_t total)
{
    ssize_t sent = conn->backlog == NULL ? send_now(conn, parts, count) : 0;

    if (sent < 0)
        doom(conn);
    else if ((size_t)sent < total)
        enqueue(conn, parts, count, (size_t)sent, total);
}

static void flush_gathered(struct mu_server *server)
{
    struct mu_slice part = mu_slice(server->gather_bytes, server->gathered);

    server->gathered = 0;
    if (part.len > 0 && !server->current->session.dead)
        write_parts(server->current, &part, 1, part.len);
}

static void send_parts(struct mu_session *session, const struct mu_slice *parts, size_t count)
{
    struct conn *conn = conn_of(session);
    struct mu_server *server = conn->server;
    size_t total = 0;

    for (size_t i = 0; i < count; i++)
        total += parts[i].len;
    if (conn == server->current && total > GATHER_BYTES - server->gathered)
        flush_gathered(server);
    if (conn != server->current || total > GATHER_BYTES) {
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

/* ---- Eras ---- */

static struct era *new_era(const struct muster_store_limits *limits, enum mu_dialect legacy, struct mu_hash_seed seed)
{
    struct era *era = calloc(1, sizeof *era);

    if (era == NULL)
        return NULL;
    mu_service_init(&era->service, limits, legacy, seed, send_parts);
    era->users = 1;
    return era;
}

/* One user less. */
static void end_era(struct era *era)
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
    struct era *era = new_era(&service->limits, service->legacy, seed);

    if (era == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a store's table");
    server->seed = seed;
    end_era(server->era);
    server->era = era;
    return 0;
}

/* ---- Connections ---- */

static void close_if_over(struct mu_server *server)
{
    if (!server->closing || server->handles > 0 || server->conns_count > 0)
        return;
    end_era(server->era);
    server->on_closed(server, server->on_closed_ctx);
    free(server->allow);
    free(server);
}

/* Where the sockets of this process that are connected to the server's port come from; at most OWN_CONNS_MAX. */
static size_t find_own(const struct mu_server *server, union mu_addr own[static OWN_CONNS_MAX])
{
    DIR *dir = opendir("/proc/self/fd");
    const struct dirent *entry;
    size_t count = 0;

    while (dir != NULL && count < OWN_CONNS_MAX && (entry = readdir(dir)) != NULL) {
        union mu_addr here = { .any = { 0 } }, there = { .any = { 0 } };
        socklen_t here_len = sizeof here, there_len = sizeof there;
        int fd = atoi(entry->d_name);

        if (entry->d_name[0] != '.' && getsockname(fd, &here.any, &here_len) == 0 &&
            (here.any.sa_family == AF_INET || here.any.sa_family == AF_INET6) &&
            getpeername(fd, &there.any, &there_len) == 0 && mu_addr_port(&there) == mu_addr_port(&server->addr))
            own[count++] = here;
    }
    if (dir != NULL)
        (void)closedir(dir);
    return count;
}

static bool is_own(const struct conn *conn, const union mu_addr *own, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (mu_addr_port(&own[i]) == mu_addr_port(&conn->addr) && mu_addr_same_host(&own[i], &conn->addr))
            return true;
    }
    return false;
}

/* Connections of our own do not count. Nobody tells which they are, but the system knows our sockets. */
static bool is_alone(const struct mu_server *server)
{
    union mu_addr own[OWN_CONNS_MAX];
    size_t count;

    if (server->conns_count > OWN_CONNS_MAX)
        return false;
    count = find_own(server, own);
    for (struct mu_list *link = server->conns.next; link != &server->conns; link = link->next) {
        const struct conn *conn = MU_LIST_ITEM(link, struct conn, link);

        if (!is_own(conn, own, count))
            return false;
    }
    return true;
}

static void on_look_if_alone(uv_timer_t *timer)
{
    struct mu_server *server = timer->data;
    void (*alone)(void *ctx) = server->alone;

    if (alone == NULL || !is_alone(server))
        return;
    server->alone = NULL;
    alone(server->alone_ctx);
}

static void look_if_alone(struct mu_server *server)
{
    if (server->alone != NULL && !server->closing)
        (void)uv_timer_start(&server->alone_timer, on_look_if_alone, 0, 0);
}

void mu_server_when_alone(struct mu_server *server, void (*alone)(void *ctx), void *ctx)
{
    server->alone = alone;
    server->alone_ctx = ctx;
    look_if_alone(server);
}

static void on_conn_closed(uv_handle_t *handle)
{
    struct conn *conn = handle->data;
    struct mu_server *server = conn->server;
    uint64_t number = conn->number;

    free_backlog(conn);
    end_era(conn->era);
    free(conn);
    server->conns_count--;
    if (server->gone != NULL && !server->closing)
        server->gone(server->gone_ctx, number);
    look_if_alone(server);
    close_if_over(server);
}

static void take_turns(struct conn *conn);

static void close_conn(struct conn *conn)
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
        mu_origins_remove(&conn->server->origins, conn->origin);
    mu_files_connection_closed();
    mu_session_leave(&conn->session); /* may wake, and so doom, others */
    uv_close((uv_handle_t *)&conn->tcp, on_conn_closed);
}

/* The last thing every event does. */
static void close_doomed(struct mu_server *server)
{
    struct mu_list *link;

    while ((link = mu_list_first(&server->doomed)) != NULL)
        close_conn(MU_LIST_ITEM(link, struct conn, doomed));
}

static void on_written(uv_write_t *req, int status)
{
    struct conn *conn = req->data;

    if (uv_is_closing((uv_handle_t *)&conn->tcp))
        return;
    if (status < 0) {
        doom(conn);
    } else {
        mu_buf_done(&conn->backlog->sending);
        settle_charge(conn);
        if (conn->backlog->queued.len > 0)
            start_write(conn);
        else
            free_backlog(conn);
    }
    close_doomed(conn->server);
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
    until = mu_session_deadline_ms(&MU_LIST_ITEM(link, struct conn, waiting)->session);
    (void)uv_timer_start(&server->grace_timer, on_grace_over, until > now ? until - now : 0, 0);
}

static void update_grace(struct conn *conn)
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

static void feed(struct conn *conn, struct mu_slice bytes)
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
    flush_gathered(server); /* what it asked for before a bad request is still answered */
    server->current = NULL;
    if (!mu_list_empty(&conn->silent) && conn->session.codec.any_request)
        mu_list_remove(&conn->silent);
    if (rc < 0)
        drop(conn, error.text);
    else if (mu_session_is_busy(&conn->session))
        take_turns(conn);
    update_grace(conn);
}

/* ---- Turns ---- */

static void go_on_reading(struct conn *conn);

static void take_turn(struct conn *conn)
{
    if (conn->session.dead) {
        if (mu_session_leave_some(&conn->session))
            take_turns(conn);
        else
            close_conn(conn);
        return;
    }
    feed(conn, mu_slice("", 0));
    if (!conn->session.dead && !mu_session_is_busy(&conn->session))
        go_on_reading(conn);
}

static void on_turn(uv_idle_t *idle)
{
    struct mu_server *server = idle->data;
    struct mu_list *link = mu_list_pop(&server->busy);

    if (link != NULL)
        take_turn(MU_LIST_ITEM(link, struct conn, busy));
    close_doomed(server);
    if (mu_list_empty(&server->busy))
        (void)uv_idle_stop(&server->turns);
}

static void take_turns(struct conn *conn)
{
    struct mu_server *server = conn->server;

    (void)uv_read_stop((uv_stream_t *)&conn->tcp);
    mu_list_remove(&conn->busy);
    mu_list_push(&server->busy, &conn->busy);
    (void)uv_idle_start(&server->turns, on_turn);
}

static bool has_unread_bytes(const struct conn *conn)
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
        struct conn *conn = MU_LIST_ITEM(link, struct conn, waiting);

        if (mu_session_deadline_ms(&conn->session) > now)
            break;
        if (has_unread_bytes(conn))
            mu_list_remove(&conn->waiting);
        else
            feed(conn, mu_slice("", 0));
    }
    arm_grace_timer(server);
    close_doomed(server);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret_buf)
{
    struct conn *conn = handle->data;
    struct mu_server *server = conn->server;

    (void)suggested;
    /* libuv would go on reading from one socket, up to 32 times; without a buffer it turns to the others. */
    *ret_buf = server->sated == conn ? uv_buf_init(NULL, 0) : uv_buf_init(server->read_bytes, READ_BYTES);
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
    struct conn *conn = stream->data;

    if (count == READ_BYTES && !may_read_ahead(conn->server))
        conn->server->sated = conn;
    if (count > 0)
        feed(conn, mu_slice(buf->base, (size_t)count));
    else if (count < 0 && count != UV_ENOBUFS)
        doom(conn); /* it hung up, or its network did */
    close_doomed(conn->server);
}

static void go_on_reading(struct conn *conn)
{
    if (uv_read_start((uv_stream_t *)&conn->tcp, on_alloc, on_read) < 0)
        doom(conn);
}

/* What this machine sends to itself has the same address at both ends. */
static bool is_from_here(const struct conn *conn)
{
    union mu_addr here = { .any = { 0 } };
    socklen_t len = sizeof here;

    return mu_addr_is_loopback(&conn->addr) ||
           (getsockname(conn->fd, &here.any, &len) == 0 && mu_addr_same_host(&here, &conn->addr));
}

static bool is_allowed(const struct conn *conn)
{
    const struct mu_server *server = conn->server;

    for (size_t i = 0; i < server->allow_count; i++) {
        if (mu_network_has(&server->allow[i], &conn->addr))
            return true;
    }
    return server->allow_count == 0 || (server->allow_own && is_from_here(conn));
}

/* ---- Room for a newcomer ---- */

static bool may_be_closed(const struct conn *conn, uint64_t now_ms)
{
    const struct mu_peer *peer = &conn->session.peer;

    return !conn->session.dead && !mu_session_is_busy(&conn->session) && peer->missing == 0 &&
           mu_list_empty(&peer->watches) && conn->backlog == NULL && now_ms - conn->heard_ms >= IDLE_MS;
}

/* Those from outside go first, then the one that has been idle the longest. */
static bool goes_before(const struct conn *a, const struct conn *b)
{
    if (b == NULL || (a->origin != NULL) != (b->origin != NULL))
        return b == NULL || a->origin != NULL;
    return a->heard_ms < b->heard_ms;
}

/* Which connection can be spared? One that never asked for anything, or one that is idle and waits for nothing and is
 * not this process's own; NULL: none. */
static struct conn *find_spare(const struct mu_server *server)
{
    struct mu_list *first = mu_list_first(&server->silent);
    union mu_addr own[OWN_CONNS_MAX];
    struct conn *found = NULL;
    size_t count;

    if (first != NULL)
        return MU_LIST_ITEM(first, struct conn, silent);
    count = find_own(server, own);
    for (struct mu_list *link = server->conns.next; link != &server->conns; link = link->next) {
        struct conn *conn = MU_LIST_ITEM(link, struct conn, link);

        if (may_be_closed(conn, uv_now(server->loop)) && goes_before(conn, found) && !is_own(conn, own, count))
            found = conn;
    }
    return found;
}

static bool close_spare(struct mu_server *server)
{
    struct conn *spare = find_spare(server);
    char text[MU_ADDR_TEXT_MAX];

    if (spare == NULL)
        return false;
    if (may_log_refusal(server))
        mu_log(MUSTER_LOG_WARNING,
               "store: closed the connection of %s, idle for %" PRIu64
               " s: the limit of open files leaves room for %zu "
               "connections",
               mu_addr_format(&spare->addr, text), (uv_now(server->loop) - spare->heard_ms) / 1000,
               mu_files_connections_max());
    close_conn(spare);
    return true;
}

/* What is reserved for others must stay free. Descriptors are given out lowest first: one near the limit means that
 * there are hardly any left, whoever has them; then the newcomer goes as well. */
static bool has_room_for(const struct conn *conn)
{
    struct mu_server *server = conn->server;

    if ((size_t)conn->fd + FILES_KEPT_FREE >= mu_files_limit()) {
        (void)close_spare(server);
        return false;
    }
    while (mu_files_connections() > mu_files_connections_max()) {
        if (!close_spare(server))
            return false;
    }
    return true;
}

/* Workers of several nodes may come from one address (NAT), so an address may have many: half of all, unless the limit
 * says otherwise. */
static int count_origin(struct conn *conn, struct muster_error *reterr)
{
    struct mu_server *server = conn->server;
    const struct muster_store_limits *limits = &server->era->service.limits;
    size_t room = mu_files_connections_max(), max = (size_t)limits->connections_per_address;

    if (is_from_here(conn))
        return 0;
    if (max == 0)
        max = (room < limits->connections ? room : (size_t)limits->connections) / ADDRESS_SHARE;
    return mu_origins_add(&server->origins, &conn->addr, max, &conn->origin, reterr);
}

/* Remembers the first address of ours at which somebody from elsewhere arrived. */
static void note_arrival(const struct conn *conn)
{
    struct mu_server *server = conn->server;
    union mu_addr here = { .any = { 0 } };
    socklen_t len = sizeof here;

    if (server->has_accepted_on || mu_addr_is_loopback(&conn->addr) || getsockname(conn->fd, &here.any, &len) < 0 ||
        mu_addr_same_host(&here, &conn->addr))
        return;
    server->accepted_on = here;
    server->has_accepted_on = true;
}

bool mu_server_accepted_on(const struct mu_server *server, union mu_addr *ret_addr)
{
    if (server->has_accepted_on)
        *ret_addr = server->accepted_on;
    return server->has_accepted_on;
}

static void admit(struct conn *conn)
{
    struct mu_server *server = conn->server;
    struct muster_error error;
    char why[96];

    if (!is_allowed(conn)) {
        drop(conn, "its address is in none of the allowed networks");
    } else if (count_origin(conn, &error) < 0) {
        drop(conn, error.text);
    } else if (server->conns_count > server->era->service.limits.connections) {
        (void)snprintf(why, sizeof why, "%" PRIu64 " connections are open, which is the limit",
                       server->era->service.limits.connections);
        drop(conn, why);
    } else if (!has_room_for(conn)) {
        drop(conn, "the limit of open files is reached");
    } else if (uv_read_start((uv_stream_t *)&conn->tcp, on_alloc, on_read) < 0) {
        doom(conn);
    } else {
        conn->number = ++server->accepted;
        mu_list_push(&server->silent, &conn->silent);
        note_arrival(conn);
    }
}

static struct conn *new_conn(struct mu_server *server)
{
    struct conn *conn = calloc(1, sizeof *conn);

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

static void on_handle_closed(uv_handle_t *handle)
{
    struct mu_server *server = handle->data;

    server->handles--;
    close_if_over(server);
}

static void on_connection(uv_stream_t *stream, int status);

static void on_spare_closed(uv_handle_t *handle)
{
    struct mu_server *server = handle->data;

    server->spare_busy = false;
    for (struct mu_list *link = server->listeners.next; link != &server->listeners && !server->closing;
         link = link->next) {
        struct listener *listener = MU_LIST_ITEM(link, struct listener, link);

        if (!listener->held_back)
            continue;
        listener->held_back = false;
        on_connection((uv_stream_t *)&listener->tcp, 0);
    }
    on_handle_closed(handle);
}

/* There is no memory for a newcomer. Until somebody accepts it libuv takes no other, so the spare handle does. */
static void turn_away(struct listener *listener)
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

static void on_connection(uv_stream_t *stream, int status)
{
    struct listener *listener = stream->data;
    struct mu_server *server = listener->server;
    struct conn *conn = NULL;
    int len = sizeof conn->addr;

    if (status == 0)
        conn = new_conn(server);
    if (conn == NULL) {
        if (may_log_refusal(server))
            mu_log(MUSTER_LOG_WARNING, "store: cannot take a connection: %s",
                   status < 0 ? uv_strerror(status) : "out of memory");
        if (status == 0)
            turn_away(listener);
        return;
    }
    if (uv_accept(stream, (uv_stream_t *)&conn->tcp) < 0 || uv_fileno((uv_handle_t *)&conn->tcp, &conn->fd) < 0 ||
        uv_tcp_getpeername(&conn->tcp, &conn->addr.any, &len) < 0)
        doom(conn); /* gone before it was taken */
    else
        admit(conn);
    close_doomed(server);
}

/* ---- Watches from within the process ---- */

/* A session without a socket that only ever watches. */
struct mu_server_watch {
    struct mu_session session;
    struct era *era;
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
    close_doomed(server);
    end_era(watch->era);
    free(watch);
}

/* ---- Writing from within the process ---- */

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
    close_doomed(server);
    return answer.kind == MU_ANSWER_REFUSED ? MUSTER_ELIMIT : 0;
}

uint64_t mu_server_writer(const struct mu_server *server)
{
    return server->current == NULL ? 0 : server->current->number;
}

void mu_server_on_gone(struct mu_server *server, void (*gone)(void *ctx, uint64_t connection), void *ctx)
{
    server->gone = gone;
    server->gone_ctx = ctx;
}

/* ---- Start and close ---- */

static void on_listener_closed(uv_handle_t *handle)
{
    struct listener *listener = handle->data;
    struct mu_server *server = listener->server;

    free(listener);
    server->handles--;
    close_if_over(server);
}

void mu_server_close(struct mu_server *server, mu_server_closed *on_closed, void *ctx)
{
    struct mu_list *link;

    assert(!server->closing && server->current == NULL);
    server->closing = true;
    log_dropped(server->log_limit.dropped);
    server->on_closed = on_closed;
    server->on_closed_ctx = ctx;
    while ((link = mu_list_first(&server->conns)) != NULL)
        close_conn(MU_LIST_ITEM(link, struct conn, link));
    while ((link = mu_list_pop(&server->listeners)) != NULL)
        uv_close((uv_handle_t *)&MU_LIST_ITEM(link, struct listener, link)->tcp, on_listener_closed);
    uv_close((uv_handle_t *)&server->grace_timer, on_handle_closed);
    uv_close((uv_handle_t *)&server->turns, on_handle_closed);
    uv_close((uv_handle_t *)&server->log_timer, on_handle_closed);
    uv_close((uv_handle_t *)&server->alone_timer, on_handle_closed);
}

static void ignore_closed(struct mu_server *server, void *ctx)
{
    (void)server;
    (void)ctx;
}

static struct mu_server *new_server(uv_loop_t *loop, const struct mu_server_config *config)
{
    struct mu_hash_seed seed = { .k0 = config->seed[0], .k1 = config->seed[1] };
    struct mu_server *server = calloc(1, sizeof *server);

    if (server == NULL)
        return NULL;
    if (config->allow_count > 0) {
        server->allow = malloc(config->allow_count * sizeof *server->allow);
        if (server->allow == NULL) {
            free(server);
            return NULL;
        }
        memcpy(server->allow, config->allow, config->allow_count * sizeof *server->allow);
        server->allow_count = config->allow_count;
        server->allow_own = config->allow_own;
    }
    server->loop = loop;
    server->log_limit = (struct mu_log_limit){ .burst = LOG_BURST, .per_s = LOG_PER_S };
    mu_list_init(&server->listeners);
    mu_list_init(&server->conns);
    mu_list_init(&server->doomed);
    mu_list_init(&server->graces);
    mu_list_init(&server->silent);
    mu_list_init(&server->busy);
    server->seed = server->origins.seed = seed;
    server->era = new_era(&config->limits, config->legacy, seed);
    if (server->era == NULL) {
        free(server->allow);
        free(server);
        return NULL;
    }
    return server;
}

/* One more address to listen on. The socket is the server's from here on, also if this fails. */
static int listen_on(struct mu_server *server, int fd, struct muster_error *reterr)
{
    struct listener *listener = calloc(1, sizeof *listener);
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
        rc = uv_listen((uv_stream_t *)&listener->tcp, MU_LISTEN_BACKLOG, on_connection);
    if (rc == 0) /* accepted sockets inherit it: peers whose host vanished are not waited for without end */
        (void)uv_tcp_keepalive(&listener->tcp, 1, KEEPALIVE_S);
    return rc < 0 ? mu_fail_errno(reterr, -rc, "listen on %s", mu_addr_format(&listener->addr, text)) : 0;
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
        mu_server_close(server, ignore_closed, NULL);
        return rc;
    }
    server->addr = MU_LIST_ITEM(mu_list_first(&server->listeners), struct listener, link)->addr;
    *ret_server = server;
    return 0;
}

int mu_server_start(uv_loop_t *loop, int fd, const struct mu_server_config *config, struct mu_server **ret_server,
                    struct muster_error *reterr)
{
    struct mu_listen_sockets sockets = { .fds = { fd }, .count = 1 };

    return start_on(loop, &sockets, config, ret_server, reterr);
}

static bool listens_on(const struct mu_server *server, const union mu_addr *addr)
{
    for (const struct mu_list *link = server->listeners.next; link != &server->listeners; link = link->next) {
        const struct listener *listener = MU_LIST_ITEM(link, struct listener, link);

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

    if (listens_on(server, addr))
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
    struct mu_network *allow = NULL;
    enum mu_dialect legacy;
    int rc;

    if (!mu_dialect_parse(config->dialect, &legacy) || legacy == MU_DIALECT_V)
        return mu_fail(reterr, MUSTER_EINVAL, "dialect '%s' is not one of auto, 1.13, 2.1", config->dialect);
    if (legacy != MU_DIALECT_UNKNOWN)
        settled.legacy = legacy;
    rc = mu_limits_settle(&settled.limits, reterr);
    if (rc == 0)
        rc = parse_allow(config->allow, &allow, &settled.allow_count, reterr);
    if (rc < 0)
        return rc;
    settled.allow = allow;
    rc = open_sockets(config, &sockets, reterr);
    if (rc == 0 && getrandom(settled.seed, sizeof settled.seed, 0) != (ssize_t)sizeof settled.seed) {
        rc = mu_fail_errno(reterr, errno, "get random bytes");
        mu_listen_close_all(&sockets);
    }
    if (rc == 0)
        rc = start_on(loop, &sockets, &settled, ret_server, reterr);
    if (rc == 0 && config->use_listen_fd)
        (void)close(config->listen_fd);
    free(allow);
    return rc;
}

const union mu_addr *mu_server_address(const struct mu_server *server)
{
    return &server->addr;
}

struct mu_server_stats mu_server_stats(const struct mu_server *server)
{
    return (struct mu_server_stats){
        .connections = server->conns_count,
        .keys = server->era->service.table.keys,
        .bytes = server->era->service.budget.used + server->era->service.transit.used,
        .accepted = server->accepted,
        .refused = server->refused,
        .requests = server->era->service.requests,
    };
}
