/* The connections of the c10d back end, and calls on them.
 *
 * Short calls share the main connection. Nothing may follow a WAIT on a connection, so the bell has one of its own, and
 * the other waits of each owner have a few; they are opened when first needed. A connection that is lost is dialled
 * anew by the next request that needs it: one try at each address, so that its owner learns soon, and from `gone`
 * whether the other end said no. A main connection on which nothing has been answered for SILENT_MS is given up with
 * all others: a new one works as soon as the network does, the old one only when its retransmission comes around. */
#include "kv/kv_c10d_parts_uv.h"

#include <assert.h>
#include <stdlib.h>

enum {
    DIAL_AGAIN_MS = 2000,
    SILENT_MS = 2000,
};

/* ---- Connections ---- */

static void on_client_closed(struct mu_client *client, void *ctx)
{
    (void)client;
    mu_kv_part_closed(ctx);
}

static void close_conn(struct mu_c10d_conn *conn)
{
    struct mu_client *client = conn->client;

    conn->client = NULL;
    conn->silent = false;
    if (client != NULL)
        mu_client_close(client, on_client_closed, conn->driver);
}

void mu_c10d_close_conns(struct mu_c10d *driver)
{
    close_conn(&driver->main);
    close_conn(&driver->bell);
    for (size_t i = 0; i < OWNERS_MAX * WAITS_MAX; i++)
        close_conn(&driver->waits[i]);
}

static void on_client_ready(struct mu_client *client, const struct muster_error *error, void *ctx)
{
    struct mu_c10d_conn *conn = ctx;
    struct mu_c10d *driver = conn->driver;

    if (conn != &driver->main)
        return;
    if (error == NULL)
        driver->dialect = mu_client_dialect(client);
    if (driver->told_ready)
        return;
    driver->told_ready = true;
    if (driver->config.on_ready != NULL)
        driver->config.on_ready(&driver->kv, error, driver->config.ctx);
}

int mu_c10d_dial(struct mu_c10d_conn *conn, uint64_t timeout_ms, struct muster_error *reterr)
{
    struct mu_c10d *driver = conn->driver;
    struct mu_client_config config = {
        .host = driver->host,
        .port = driver->config.port,
        .dialect = driver->config.dialect,
        .connect_timeout_ms = driver->config.read_timeout_ms,
        .seed = mu_rng_next(&driver->rng),
    };
    int rc;

    if (conn != &driver->main && config.dialect == MU_DIALECT_UNKNOWN)
        config.dialect = driver->dialect;
    if (driver->told_ready) {
        /* Shorter than the request, so that it fails with all that was tried. */
        config.connect_timeout_ms = timeout_ms < DIAL_AGAIN_MS ? timeout_ms - timeout_ms / 4 : DIAL_AGAIN_MS;
        config.rounds_max = 1;
    }
    rc = mu_client_start(driver->loop, &config, on_client_ready, NULL, conn, &conn->client, reterr);
    if (rc == 0)
        driver->kv.parts++;
    return rc;
}

/* Makes sure that there is a connection, or will be. */
static int ensure(struct mu_c10d_conn *conn, uint64_t timeout_ms, struct muster_error *reterr)
{
    if (conn->client != NULL && mu_client_is_lost(conn->client))
        close_conn(conn);
    return conn->client != NULL ? 0 : mu_c10d_dial(conn, timeout_ms, reterr);
}

/* For a wait of that owner: an idle connection, an open one if there is one; or the owner's least busy one. */
struct mu_c10d_conn *mu_c10d_conn_for_wait(struct mu_c10d *driver, const void *owner)
{
    struct mu_c10d_conn *idle = NULL, *least = NULL;
    size_t busy = 0;

    for (size_t i = 0; i < OWNERS_MAX * WAITS_MAX; i++) {
        struct mu_c10d_conn *conn = &driver->waits[i];

        if (conn->calls == 0 && (idle == NULL || (idle->client == NULL && conn->client != NULL)))
            idle = conn;
        busy += conn->calls > 0 && conn->owner == owner;
        if (conn->calls > 0 && conn->owner == owner && (least == NULL || conn->calls < least->calls))
            least = conn;
    }
    if (busy < WAITS_MAX && idle != NULL)
        least = idle;
    assert(least != NULL); /* there are no more owners than OWNERS_MAX */
    least->owner = owner;
    return least;
}

/* ---- Calls ---- */

/* Hears from each call whether the other end still answers; if not, gives up every connection. */
static void judge_silence(const struct mu_c10d_call *one)
{
    struct mu_c10d_conn *conn = one->conn;
    struct mu_c10d *driver = conn->driver;

    if (one->client != conn->client || conn != &driver->main || mu_c10d_is_wait(one->call.kind) || driver->kv.closing)
        return;
    if (one->call.rc == 0 && one->call.kind != MU_CALL_SET) /* which is not answered */
        conn->silent = false;
    if (one->call.rc != MUSTER_ETIMEOUT || mu_client_dialect(conn->client) == MU_DIALECT_UNKNOWN)
        return;
    if (!conn->silent)
        conn->silent_since_ms = one->call.start_ms;
    conn->silent = true;
    if (uv_now(driver->loop) - conn->silent_since_ms < SILENT_MS)
        return;
    mu_c10d_close_conns(driver);
}

static void take_error(struct mu_c10d_work *work, const struct mu_c10d_call *one)
{
    struct mu_c10d *driver = work->driver;

    if (one->call.rc >= 0 || work->error.code != 0)
        return;
    work->error = one->call.error;
    if (one->call.rc == MUSTER_ECANCELED && !driver->kv.closing)
        (void)mu_fail(&work->error, MUSTER_ELOST, "the connection to %s was given up: the store does not answer",
                      driver->host);
    work->gone = !driver->kv.closing && mu_client_refused(one->client);
}

/* Both were sent as one: a store that has answered the first of a READ keeps the second back, for the job meets in its
 * engine (store/session.h). It is neither away nor silent. */
static void allow_for_engine(const struct mu_c10d_call *one)
{
    struct mu_c10d_work *work = one->work;

    if (work->request->kind == MU_KV_READ && work->count == 2 && one == &work->calls[0] && one->call.rc == 0)
        mu_call_extend(&work->calls[1].call, work->request->held_ms);
}

static void on_call_done(struct mu_call *call)
{
    struct mu_c10d_call *one = call->ctx;
    struct mu_c10d_work *work = one->work;

    one->conn->calls--;
    work->pending--;
    take_error(work, one);
    allow_for_engine(one);
    judge_silence(one);
    if (work->pending == 0)
        mu_c10d_proceed(work);
}

int mu_c10d_make_calls(struct mu_c10d_work *work, struct mu_c10d_conn *conn, uint64_t timeout_ms)
{
    int rc;

    if (work->driver->kv.closing)
        return mu_fail(&work->error, MUSTER_ECANCELED, "the store was closed");
    rc = ensure(conn, timeout_ms, &work->error);
    if (rc < 0)
        return rc;
    work->pending = work->count;
    for (unsigned i = 0; i < work->count; i++) {
        work->calls[i].conn = conn;
        work->calls[i].client = conn->client;
        work->calls[i].call.done = on_call_done;
        work->calls[i].call.ctx = &work->calls[i];
        conn->calls++;
        mu_client_call(conn->client, &work->calls[i].call, timeout_ms);
    }
    return 0;
}
