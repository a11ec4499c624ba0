/* A store server's connections that speak the engine's frames, and when the engine turns.
 *
 * A connection comes here when its peer has asked for the engine (session.h: MU_SESSION_PROBE). The first one makes
 * the engine; a store that nobody asks, such as that of workers, has none. After each poll leases are judged and
 * changes are pushed. A lease ends only if a poll that began past its time brought nothing: libuv runs timers before
 * it polls, so the timer of a lease only makes sure that the next poll does not wait. */
#include "store/server_parts_uv.h"

#include "base/error.h"
#include "base/random.h"

#include <stdio.h>
#include <stdlib.h>

enum { HANDLES = 4 };

struct mu_server_engine {
    struct mu_engine_host host;
    struct mu_era *era; /* whose budgets it uses */
    uv_prepare_t before;
    uv_check_t after;
    uv_timer_t due;
    uv_idle_t hurry;   /* runs while the next poll must not wait */
    uint64_t began_ms; /* when the poll began */
    uint64_t armed_ms; /* when the timer is due; UINT64_MAX: it does not run */
    uint64_t openings; /* of the engine, when outsiders looked last */
};

static struct mu_conn *conn_of(struct mu_engine_session *session)
{
    return MU_LIST_ITEM(session, struct mu_frames, session)->conn;
}

static bool on_send(struct mu_engine_session *session, struct mu_slice bytes)
{
    mu_conn_send(conn_of(session), &bytes, 1);
    return conn_of(session)->backlog == NULL;
}

static void on_drop(struct mu_engine_session *session, const char *why)
{
    mu_conn_drop(conn_of(session), why);
}

/* ---- Turns ---- */

static void on_hurry(uv_idle_t *idle)
{
    (void)idle;
}

static void on_due(uv_timer_t *timer)
{
    struct mu_server *server = timer->data;

    server->engine->armed_ms = UINT64_MAX;
    (void)uv_idle_start(&server->engine->hurry, on_hurry);
}

static void arm(struct mu_server *server)
{
    struct mu_server_engine *engine = server->engine;
    uint64_t due_ms = mu_engine_deadline_ms(engine->host.engine), now_ms = uv_now(server->loop);

    if (due_ms == engine->armed_ms)
        return;
    engine->armed_ms = due_ms;
    if (due_ms == UINT64_MAX)
        (void)uv_timer_stop(&engine->due);
    else
        (void)uv_timer_start(&engine->due, on_due, due_ms > now_ms ? due_ms - now_ms : 0, 0);
}

/* What has changed since the last poll, in a timer's or an idle's call, is told right after the next one. */
static void on_before(uv_prepare_t *prepare)
{
    struct mu_server *server = prepare->data;

    server->engine->began_ms = uv_now(server->loop);
    arm(server);
    if (mu_engine_has_changes(server->engine->host.engine) ||
        mu_engine_openings(server->engine->host.engine) != server->engine->openings)
        (void)uv_idle_start(&server->engine->hurry, on_hurry);
}

/* Those that wait for a document look again. */
static void let_outsiders_go_on(struct mu_server *server)
{
    struct mu_server_engine *engine = server->engine;
    uint64_t openings = mu_engine_openings(engine->host.engine);

    if (openings == engine->openings)
        return;
    engine->openings = openings;
    MU_LIST_EACH_LEAVING (struct mu_session, session, &engine->era->service.outsiders, outsider)
        mu_conn_feed(MU_LIST_ITEM(session, struct mu_conn, session), mu_slice("", 0));
}

static void on_after(uv_check_t *check)
{
    struct mu_server *server = check->data;
    struct mu_server_engine *engine = server->engine;

    (void)uv_idle_stop(&engine->hurry);
    if (mu_engine_host_turn(&engine->host, engine->began_ms, uv_now(server->loop)))
        mu_server_look_if_alone(server);
    let_outsiders_go_on(server);
    mu_server_close_doomed(server);
}

/* ---- The engine of a server ---- */

void mu_server_offer_engine(struct mu_server *server, const struct mu_server_offer *offer)
{
    (void)snprintf(server->node, sizeof server->node, "%s", offer->node);
    if (offer->token != NULL)
        server->token = *offer->token;
    mu_service_offer_engine(&server->era->service, offer->documents);
    server->era->service.only = offer->only;
    if (server->token.is_there)
        mu_service_close_documents(&server->era->service, offer->notes);
}

static int start_engine(struct mu_server *server, struct muster_error *reterr)
{
    struct mu_server_engine *engine = calloc(1, sizeof *engine);
    struct mu_engine_host_config config = {
        .budget = &server->era->service.budget,
        .transit = &server->era->service.transit,
        .reserved = server->era->service.reserved,
        .seed = server->seed,
        .node = server->node,
        .service = &server->era->service,
        .token = server->token.is_there ? &server->token : NULL,
        .send = on_send,
        .drop = on_drop,
    };
    int rc = mu_random(config.random, sizeof config.random, reterr);

    if (rc == 0 && (engine == NULL || mu_engine_host_init(&engine->host, &config) < 0))
        rc = mu_fail(reterr, MUSTER_ENOMEM, "no memory for an engine");
    if (rc < 0) {
        free(engine);
        return rc;
    }
    engine->era = server->era;
    engine->era->users++;
    engine->era->service.engine = engine->host.engine;
    (void)uv_prepare_init(server->loop, &engine->before); /* these only fill in memory */
    (void)uv_check_init(server->loop, &engine->after);
    (void)uv_timer_init(server->loop, &engine->due);
    (void)uv_idle_init(server->loop, &engine->hurry);
    engine->before.data = engine->after.data = engine->due.data = engine->hurry.data = server;
    server->engine = engine;
    engine->began_ms = uv_now(server->loop);
    engine->armed_ms = UINT64_MAX;
    (void)uv_prepare_start(&engine->before, on_before);
    (void)uv_check_start(&engine->after, on_after);
    uv_unref((uv_handle_t *)&engine->before);
    uv_unref((uv_handle_t *)&engine->after);
    server->handles += HANDLES;
    return 0;
}

bool mu_server_engine_expects_peers(const struct mu_server *server)
{
    return server->engine != NULL && mu_engine_expects_peers(server->engine->host.engine);
}

void mu_server_engine_close(struct mu_server *server)
{
    struct mu_server_engine *engine = server->engine;

    if (engine == NULL)
        return;
    engine->era->service.engine = NULL;
    mu_engine_host_done(&engine->host);
    uv_close((uv_handle_t *)&engine->before, mu_server_on_handle_closed);
    uv_close((uv_handle_t *)&engine->after, mu_server_on_handle_closed);
    uv_close((uv_handle_t *)&engine->due, mu_server_on_handle_closed);
    uv_close((uv_handle_t *)&engine->hurry, mu_server_on_handle_closed);
}

void mu_server_engine_free(struct mu_server *server)
{
    if (server->engine == NULL)
        return;
    mu_era_end(server->engine->era);
    free(server->engine);
    server->engine = NULL;
}

/* ---- Connections ---- */

/* An end that the system does not tell any more, for it is about to be closed, is empty. */
static struct mu_engine_ends describe_ends(struct mu_frames *frames, const struct mu_conn *conn)
{
    union mu_addr own = { .any = { 0 } };
    int len = sizeof own;

    if (uv_tcp_getsockname(&conn->tcp, &own.any, &len) == 0)
        (void)mu_addr_host(&own, frames->own_addr, sizeof frames->own_addr); /* it has room for every address */
    (void)mu_addr_host(&conn->addr, frames->peer_addr, sizeof frames->peer_addr);
    return (struct mu_engine_ends){ .peer = mu_addr_format(&conn->addr, frames->peer),
                                    .peer_addr = frames->peer_addr,
                                    .own_addr = frames->own_addr,
                                    .nonce = conn->server->token.is_there ? frames->nonce : NULL };
}

int mu_conn_move(struct mu_conn *conn, struct muster_error *reterr)
{
    struct mu_frames *frames = calloc(1, sizeof *frames);
    struct mu_engine_ends ends;
    struct mu_buf rest;
    int rc = 0;

    if (frames == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a connection of the engine");
    if (conn->server->token.is_there)
        rc = mu_random(frames->nonce, sizeof frames->nonce, reterr);
    if (rc == 0 && conn->server->engine == NULL)
        rc = start_engine(conn->server, reterr);
    if (rc < 0) {
        free(frames);
        return rc;
    }
    frames->conn = conn;
    ends = describe_ends(frames, conn);
    mu_engine_session_init(&frames->session, &conn->server->engine->host, &ends);
    conn->frames = frames;
    mu_list_remove(&conn->silent); /* without a HELLO it has not asked for anything */
    mu_list_push(&conn->server->silent, &conn->silent);
    rest = mu_session_take_rest(&conn->session);
    if (rest.len > 0)
        rc = mu_engine_session_feed(&frames->session, mu_buf_slice(&rest), uv_now(conn->server->loop), reterr);
    mu_buf_done(&rest);
    return rc;
}

void mu_frames_free(struct mu_frames *frames)
{
    if (frames == NULL)
        return;
    mu_engine_session_leave(&frames->session, frames->conn->refused, uv_now(frames->conn->server->loop));
    free(frames);
}
