/* A loop with small HTTP servers of the test's own on it. They allocate nothing: what fails is to be the client's. */
#ifndef TESTS_UNIT_HTTP_SCENE_H
#define TESTS_UNIT_HTTP_SCENE_H

#include "pure.h"

#include <stdio.h>
#include <uv.h>

enum {
    SERVERS = 3,
    REQUEST_MAX = 8192,
    GUARD_MS = 30000,
    LARGE_PIECES = 66,
    PEERS_MAX = 64,
    WRITES_MAX = 256,
};

/* Replies that are none. */
#define SILENT "silent" /* nothing, and the connection stays */
#define HANG_UP "hang up"
#define LARGE "large" /* more than anybody takes */

struct server;
struct peer;

/* What is said to this request, of which peer->text has all; it has to stay. */
typedef const char *choose_reply(struct server *server, struct peer *peer);

struct server {
    uv_tcp_t listener;
    const char *replies[8]; /* of the nth request; of further ones the last */
    choose_reply *choose;   /* in their place; NULL: none */
    unsigned requests, connections;
    char last[REQUEST_MAX];
};

struct peer {
    uv_tcp_t tcp;
    bool used;
    struct server *server;
    char text[REQUEST_MAX];
    size_t len;
};

static uv_loop_t loop;
static struct server servers[SERVERS];
static struct peer peers[PEERS_MAX];
static uv_write_t writes[WRITES_MAX];
static unsigned writes_count;
static char endpoints[256]; /* of all servers */
static unsigned short ports[SERVERS];
static char large[1 << 20];

static inline void on_peer_closed(uv_handle_t *handle)
{
    ((struct peer *)handle->data)->used = false;
}

static inline void hang_up(struct peer *peer)
{
    if (!uv_is_closing((uv_handle_t *)&peer->tcp))
        uv_close((uv_handle_t *)&peer->tcp, on_peer_closed);
}

static inline void say(struct peer *peer, const char *text, size_t len)
{
    uv_buf_t buf = uv_buf_init((char *)(uintptr_t)text, (unsigned)len);
    uv_write_t *write = &writes[writes_count++ % WRITES_MAX];

    if (uv_write(write, (uv_stream_t *)&peer->tcp, &buf, 1, NULL) < 0)
        hang_up(peer);
}

static inline const char *nth_reply(const struct server *server)
{
    unsigned nth = server->requests < COUNT(server->replies) ? server->requests : COUNT(server->replies) - 1;

    while (nth > 0 && server->replies[nth] == NULL)
        nth--;
    return server->replies[nth];
}

static inline void answer(struct peer *peer)
{
    struct server *server = peer->server;
    const char *reply = server->choose != NULL ? server->choose(server, peer) : nth_reply(server);

    server->requests++;
    memcpy(server->last, peer->text, peer->len + 1);
    peer->len = 0;
    if (strcmp(reply, HANG_UP) == 0) {
        hang_up(peer);
    } else if (strcmp(reply, LARGE) == 0) {
        say(peer, "HTTP/1.1 200 OK\r\n\r\n", 19);
        for (int i = 0; i < LARGE_PIECES; i++)
            say(peer, large, sizeof large);
    } else if (strcmp(reply, SILENT) != 0) {
        say(peer, reply, strlen(reply));
    }
}

static inline bool is_complete(const char *text, size_t len)
{
    const char *body = strstr(text, "\r\n\r\n"), *length = strcasestr(text, "Content-Length: ");

    return body != NULL && len >= (size_t)(body + 4 - text) + (length == NULL ? 0 : strtoul(length + 16, NULL, 10));
}

static inline void give_room(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct peer *peer = handle->data;

    (void)suggested;
    *buf = uv_buf_init(peer->text + peer->len, (unsigned)(sizeof peer->text - 1 - peer->len));
}

static inline void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buf)
{
    struct peer *peer = stream->data;

    (void)buf;
    if (count < 0) {
        hang_up(peer);
        return;
    }
    peer->len += (size_t)count;
    peer->text[peer->len] = '\0';
    if (is_complete(peer->text, peer->len))
        answer(peer);
}

static inline void on_connection(uv_stream_t *listener, int status)
{
    struct peer *peer = peers;

    while (peer < peers + PEERS_MAX - 1 && peer->used)
        peer++;
    if (peer->used || status < 0)
        abort();
    memset(peer, 0, sizeof *peer);
    peer->used = true;
    peer->server = listener->data;
    peer->server->connections++;
    (void)uv_tcp_init(&loop, &peer->tcp);
    peer->tcp.data = peer;
    if (uv_accept(listener, (uv_stream_t *)&peer->tcp) < 0 ||
        uv_read_start((uv_stream_t *)&peer->tcp, give_room, on_read) < 0)
        hang_up(peer);
}

static inline int start_servers(void **state)
{
    struct sockaddr_in any;
    struct sockaddr_storage bound;
    int len;

    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(uv_ip4_addr("127.0.0.1", 0, &any), 0);
    memset(servers, 0, sizeof servers);
    endpoints[0] = '\0';
    for (int i = 0; i < SERVERS; i++) {
        len = sizeof bound;
        servers[i].listener.data = &servers[i];
        servers[i].replies[0] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Etcd-Index: 42\r\n\r\nok";
        assert_int_equal(uv_tcp_init(&loop, &servers[i].listener), 0);
        assert_int_equal(uv_tcp_bind(&servers[i].listener, (const struct sockaddr *)&any, 0), 0);
        assert_int_equal(uv_listen((uv_stream_t *)&servers[i].listener, 16, on_connection), 0);
        assert_int_equal(uv_tcp_getsockname(&servers[i].listener, (struct sockaddr *)&bound, &len), 0);
        ports[i] = ntohs(((struct sockaddr_in *)&bound)->sin_port);
        (void)snprintf(endpoints + strlen(endpoints), sizeof endpoints - strlen(endpoints), "%s127.0.0.1:%u",
                       i == 0 ? "" : ",", ports[i]);
    }
    return 0;
}

/* Listeners and connections: nothing else is left by then. */
static inline void close_any(uv_handle_t *handle, void *arg)
{
    bool listens = false, talks = false;

    (void)arg;
    for (int i = 0; i < SERVERS; i++)
        listens = listens || handle == (uv_handle_t *)&servers[i].listener;
    for (int i = 0; i < PEERS_MAX; i++)
        talks = talks || handle == (uv_handle_t *)&peers[i].tcp;
    assert_true(listens || talks);
    if (!uv_is_closing(handle))
        uv_close(handle, listens ? NULL : on_peer_closed);
}

static inline int stop_servers(void **state)
{
    (void)state;
    uv_walk(&loop, close_any, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    return 0;
}

/* Nobody listens there any more. */
static inline void take_down(int i)
{
    uv_close((uv_handle_t *)&servers[i].listener, NULL);
    (void)uv_run(&loop, UV_RUN_NOWAIT);
}

/* ---- Waiting ---- */

static bool guarded;

static inline void on_guard(uv_timer_t *timer)
{
    (void)timer;
    guarded = true;
}

/* Runs the loop until that is true; whoever makes it true calls uv_stop(), or it would wait for something else to
 * happen. */
static inline void run_until(const bool *condition)
{
    uv_timer_t guard;

    guarded = false;
    (void)uv_timer_init(&loop, &guard);
    (void)uv_timer_start(&guard, on_guard, GUARD_MS, 0);
    while (!*condition && !guarded)
        (void)uv_run(&loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&guard, NULL);
    (void)uv_run(&loop, UV_RUN_NOWAIT);
    assert_false(guarded);
}

#endif
