/* A store server on a loop in the test's own thread, and the peers that talk to it. */
#ifndef TESTS_UNIT_SERVING_UV_H
#define TESTS_UNIT_SERVING_UV_H

#include "peer.h"
#include "pure.h"
#include "store/limits.h"
#include "store/listen.h"
#include "store/server_parts_uv.h"
#include "wire.h"

#include <poll.h>
#include <signal.h>

#define V MU_DIALECT_V
#define L1 MU_DIALECT_L1
#define L0 MU_DIALECT_L0

enum { TURN_MS = 2 };

struct scene {
    uv_loop_t loop;
    struct mu_server *server;
    unsigned closed; /* how often on_closed was called */
};

/* Waits first, then runs, so that whoever asked sees at once what has changed. libuv tells its poller of a new socket
 * only when it runs again, hence the second run and the short wait. */
static void scene_turn(void *ctx, int fd, short events, int timeout_ms)
{
    struct scene *s = ctx;
    struct pollfd fds[] = { { .fd = uv_backend_fd(&s->loop), .events = POLLIN }, { .fd = fd, .events = events } };

    (void)poll(fds, 2, timeout_ms < TURN_MS ? timeout_ms : TURN_MS);
    (void)uv_run(&s->loop, UV_RUN_NOWAIT);
    (void)uv_run(&s->loop, UV_RUN_NOWAIT);
}

#define UNTIL(condition)                                                                                               \
    do {                                                                                                               \
        uint64_t since_ms_ = 0;                                                                                        \
        while (!(condition)) {                                                                                         \
            if (!peers_may_wait(&since_ms_))                                                                           \
                fail_msg("this never came true: %s", #condition);                                                      \
        }                                                                                                              \
    } while (0)

struct stats {
    size_t connections, keys, bytes;
    uint64_t accepted, refused, requests;
};

static inline struct stats stats(const struct scene *s)
{
    const struct mu_service *service = &s->server->era->service;

    return (struct stats){
        .connections = s->server->conns_count,
        .keys = service->table.keys,
        .bytes = service->budget.used + service->transit.used,
        .accepted = s->server->accepted,
        .refused = s->server->refused,
        .requests = service->requests,
    };
}

static inline void on_scene_closed(struct mu_server *server, void *ctx)
{
    struct scene *s = ctx;

    assert_ptr_equal(server, s->server);
    s->closed++;
}

static inline void stop_serving(struct scene *s)
{
    s->closed = 0;
    mu_server_close(s->server, on_scene_closed, s);
    UNTIL(s->closed > 0);
    s->server = NULL;
}

static inline int bound_socket(void)
{
    int fd = -1;

    assert_int_equal(mu_listen_open("127.0.0.1", 0, &fd, NULL), 0);
    return fd;
}

/* In place of the server that is running. Limits of zero are the defaults. */
static inline void serve(struct scene *s, struct muster_store_limits limits, enum mu_dialect legacy)
{
    struct mu_server_config config = { .limits = limits, .legacy = legacy, .seed = { 1, 2 } };

    if (s->server != NULL)
        stop_serving(s);
    assert_int_equal(mu_limits_settle(&config.limits, NULL), 0);
    assert_int_equal(mu_server_start(&s->loop, bound_socket(), &config, &s->server, NULL), 0);
}

static inline int start_scene(void **state)
{
    static struct scene scene;

    scene = (struct scene){ 0 };
    (void)signal(SIGPIPE, SIG_IGN); /* as every program that runs the server's loop itself must */
    assert_int_equal(uv_loop_init(&scene.loop), 0);
    peers_take_turns(scene_turn, &scene);
    lines_collect();
    serve(&scene, (struct muster_store_limits){ 0 }, MU_DIALECT_L);
    *state = &scene;
    return 0;
}

static inline int end_scene(void **state)
{
    struct scene *s = *state;

    peers_close();
    if (s->server != NULL)
        stop_serving(s);
    (void)uv_run(&s->loop, UV_RUN_DEFAULT); /* nothing is left that it could wait for */
    assert_true(s->closed <= 1);
    return uv_loop_close(&s->loop);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, start_scene, end_scene)

/* ---- Peers ---- */

/* Somebody of that dialect connects. What opens a V connection has been said. */
static inline struct peer *meet(struct scene *s, enum mu_dialect dialect)
{
    struct peer *peer = peer_new(mu_server_address(s->server), dialect);

    peer_connect(peer, mu_server_address(s->server));
    if (dialect == V)
        say(peer, "VALIDATE CE F7 85 3C");
    return peer;
}

#define ask(whom, request, reply)                                                                                      \
    do {                                                                                                               \
        struct peer *asking_ = (whom);                                                                                 \
                                                                                                                       \
        say(asking_, request);                                                                                         \
        hear(asking_, reply);                                                                                          \
    } while (0)

/* The server works for this one, and has read what others sent before. */
static inline void works_for(struct peer *peer)
{
    ask(peer, peer->dialect == V ? "PING %4711" : "CHECK #0", peer->dialect == V ? "%4711" : "00");
}

/* Everybody else has gone, and with them all they held. */
static inline void assert_as_before(struct scene *s, struct stats before)
{
    UNTIL(stats(s).connections == before.connections && stats(s).bytes == before.bytes);
    assert_int_equal(stats(s).keys, before.keys);
}

#endif
