/* See engine_store_uv.h. Two machines decide: engine_store.c about the client, store/dial.c about getting a connection.
 * This file resolves, connects, reads, writes, and tells both what came of it and what time it is. What they want is
 * done in pump(), which runs from the loop, and inside of no call of the owner but the one that closes it. */
#include "kv/engine_store_uv.h"

#include "kv/later_uv.h"
#include "store/dial.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

enum { READ_BYTES = 64 * 1024 };

struct link { /* a socket, until the loop has closed it */
    uv_tcp_t tcp;
    uv_connect_t connecting;
    struct engine *engine;
    struct mu_list in_engine;
    size_t index; /* of its address */
};

struct writing {
    uv_write_t req;
    struct engine *engine;
    struct mu_buf bytes;
};

struct engine {
    struct mu_engine_client client;
    uv_loop_t *loop;
    struct mu_engine_store *store;
    char host[MU_HOST_MAX];
    uint16_t port;
    uint64_t seed;
    struct mu_dial dial; /* while the store is CONNECTING */
    uv_getaddrinfo_t resolver;
    bool resolving;
    struct mu_list links;
    struct link *link; /* the one that is in use */
    uv_timer_t timer;
    struct mu_later later;
    bool pumping;
    size_t parts; /* that the loop has to give back: links, the resolver, the timer, `later` */
    void (*closed)(void *ctx);
    void *closed_ctx;
};

static void pump(struct engine *e);
static void feed_dial(struct engine *e, struct mu_dial_event event);

static void part_over(void *ctx)
{
    struct engine *e = ctx;

    assert(e->parts > 0);
    if (--e->parts > 0)
        return;
    mu_engine_store_free(e->store);
    e->closed(e->closed_ctx);
    free(e);
}

/* ---- Links ---- */

static void on_link_closed(uv_handle_t *handle)
{
    struct link *link = handle->data;
    struct engine *e = link->engine;

    free(link);
    part_over(e);
}

static void close_link(struct link *link)
{
    if (link->engine->link == link)
        link->engine->link = NULL;
    mu_list_remove(&link->in_engine);
    uv_close((uv_handle_t *)&link->tcp, on_link_closed);
}

static void close_links(struct engine *e, const struct link *except)
{
    MU_LIST_EACH_LEAVING (struct link, link, &e->links, in_engine)
        if (link != except)
            close_link(link);
}

static struct link *find_link(struct engine *e, size_t index)
{
    MU_LIST_EACH (struct link, link, &e->links, in_engine)
        if (link->index == index)
            return link;
    return NULL;
}

/* `status` is libuv's; UV_EOF: the other end closed it. */
static void lose(struct engine *e, int status)
{
    struct muster_error error;

    close_links(e, NULL);
    (void)mu_fail(&error, MUSTER_ELOST, "%s", uv_strerror(status));
    mu_engine_store_disconnected(e->store, status == UV_EOF ? NULL : &error, uv_now(e->loop));
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret_buf)
{
    static _Thread_local char bytes[READ_BYTES]; /* what was read is used up before anything else is */

    (void)handle;
    (void)suggested;
    *ret_buf = uv_buf_init(bytes, sizeof bytes);
}

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buf)
{
    struct link *link = stream->data;
    struct engine *e = link->engine;

    if (count == 0)
        return;
    if (count < 0)
        lose(e, (int)count);
    else
        mu_engine_store_received(e->store, mu_slice(buf->base, (size_t)count), uv_now(e->loop));
    pump(e);
}

static void on_written(uv_write_t *req, int status)
{
    struct writing *writing = req->data;
    struct engine *e = writing->engine;
    bool is_lost = status < 0 && e->link != NULL && req->handle == (uv_stream_t *)&e->link->tcp;

    mu_buf_done(&writing->bytes);
    free(writing);
    if (!is_lost)
        return;
    lose(e, status);
    pump(e);
}

/* Takes them over. */
static void send_bytes(struct engine *e, struct mu_buf bytes)
{
    uv_buf_t buf = uv_buf_init(bytes.data, (unsigned)bytes.len);
    struct writing *writing = calloc(1, sizeof *writing);
    int rc = UV_ENOMEM;

    if (writing != NULL) {
        writing->engine = e;
        writing->bytes = bytes;
        writing->req.data = writing;
        rc = uv_write(&writing->req, (uv_stream_t *)&e->link->tcp, &buf, 1, on_written);
        if (rc == 0)
            return;
    }
    free(writing);
    mu_buf_done(&bytes);
    lose(e, rc);
}

/* ---- Connecting ---- */

static void attempt_failed(struct engine *e, size_t index, int status)
{
    feed_dial(e, (struct mu_dial_event){ .type = MU_DIAL_ATTEMPT_FAILED,
                                         .index = index,
                                         .why = uv_strerror(status),
                                         .refused = status == UV_ECONNREFUSED || status == UV_ECONNRESET });
}

static void on_connected(uv_connect_t *req, int status)
{
    struct link *link = req->data;
    struct engine *e = link->engine;
    size_t index = link->index;

    if (status == UV_ECANCELED)
        return;
    if (status < 0) {
        close_link(link);
        attempt_failed(e, index, status);
    } else {
        feed_dial(e, (struct mu_dial_event){ .type = MU_DIAL_ATTEMPT_CONNECTED, .index = index });
    }
    pump(e);
}

static void connect_to(struct engine *e, size_t index)
{
    struct link *link = calloc(1, sizeof *link);
    int rc;

    if (link == NULL) {
        attempt_failed(e, index, UV_ENOMEM);
        return;
    }
    (void)uv_tcp_init(e->loop, &link->tcp); /* makes no socket yet */
    link->engine = e;
    link->index = index;
    link->tcp.data = link->connecting.data = link;
    mu_list_push(&e->links, &link->in_engine);
    e->parts++;
    rc = uv_tcp_connect(&link->connecting, &link->tcp, &e->dial.addrs[index].any, on_connected);
    if (rc == 0)
        return;
    close_link(link);
    attempt_failed(e, index, rc);
}

static void take_into_use(struct engine *e, size_t index)
{
    int rc;

    e->link = find_link(e, index);
    assert(e->link != NULL);
    (void)uv_tcp_nodelay(&e->link->tcp, 1);
    mu_engine_store_connected(e->store, &e->dial.addrs[index], uv_now(e->loop));
    rc = uv_read_start((uv_stream_t *)&e->link->tcp, on_alloc, on_read);
    if (rc < 0)
        lose(e, rc);
}

static void on_resolved(uv_getaddrinfo_t *req, int status, struct addrinfo *list)
{
    struct engine *e = req->data;
    union mu_addr addrs[MU_DIAL_ADDRS_MAX];
    struct mu_dial_event event = { .type = MU_DIAL_RESOLVED, .addrs = addrs };

    e->resolving = false;
    if (status < 0)
        event = (struct mu_dial_event){ .type = MU_DIAL_UNRESOLVED, .why = uv_strerror(status) };
    else
        event.count = mu_dial_resolved(list, addrs);
    uv_freeaddrinfo(list);
    if (e->closed == NULL) {
        feed_dial(e, event);
        pump(e);
    }
    part_over(e);
}

/* The answer to an earlier try, if it is still awaited, is as good. */
static void resolve(struct engine *e)
{
    static const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG };
    union mu_addr addrs[MU_DIAL_ADDRS_MAX];
    size_t count = mu_dial_known(e->host, e->port, addrs);
    char service[8];
    int rc;

    if (count > 0) {
        feed_dial(e, (struct mu_dial_event){ .type = MU_DIAL_RESOLVED, .addrs = addrs, .count = count });
        return;
    }
    if (e->resolving)
        return;
    (void)snprintf(service, sizeof service, "%u", (unsigned)e->port);
    e->resolver.data = e;
    rc = uv_getaddrinfo(e->loop, &e->resolver, on_resolved, e->host, service, &hints);
    if (rc < 0) {
        feed_dial(e, (struct mu_dial_event){ .type = MU_DIAL_UNRESOLVED, .why = uv_strerror(rc) });
        return;
    }
    e->resolving = true;
    e->parts++;
}

static void perform(struct engine *e, const struct mu_dial_effect *effect)
{
    switch (effect->type) {
    case MU_DIAL_RESOLVE:
        resolve(e);
        break;
    case MU_DIAL_CONNECT:
        connect_to(e, effect->index);
        break;
    case MU_DIAL_GREET: /* which the store does */
        close_links(e, find_link(e, effect->index));
        feed_dial(e, (struct mu_dial_event){ .type = MU_DIAL_ATTEMPT_GREETED, .index = effect->index });
        break;
    case MU_DIAL_GIVE_UP:
        close_links(e, NULL);
        break;
    case MU_DIAL_SUCCEED:
        take_into_use(e, effect->index);
        break;
    case MU_DIAL_FAIL:
        if (e->dial.refused)
            mu_engine_store_refused(e->store, &e->dial.error, uv_now(e->loop));
        else
            mu_engine_store_disconnected(e->store, &e->dial.error, uv_now(e->loop));
        break;
    }
}

static void feed_dial(struct engine *e, struct mu_dial_event event)
{
    struct mu_dial_effects effects;

    event.now_ms = uv_now(e->loop);
    if (mu_engine_store_state(e->store) != MU_ENGINE_STORE_CONNECTING)
        return; /* given up meanwhile */
    mu_dial_step(&e->dial, &event, &effects);
    for (unsigned i = 0; i < effects.count; i++)
        perform(e, &effects.items[i]);
}

static void dial(struct engine *e)
{
    mu_dial_init(&e->dial, e->host, e->port, uv_now(e->loop), MU_ENGINE_STORE_ATTEMPT_MS, e->seed);
    e->dial.rounds_max = 1; /* the store says when it is tried again */
    feed_dial(e, (struct mu_dial_event){ .type = MU_DIAL_START });
}

/* ---- Both machines ---- */

static void on_time(uv_timer_t *timer)
{
    struct engine *e = timer->data;

    feed_dial(e, (struct mu_dial_event){ .type = MU_DIAL_TIME });
    mu_engine_store_time(e->store, uv_now(e->loop));
    pump(e);
}

static void arm(struct engine *e)
{
    uint64_t at_ms = mu_engine_store_deadline_ms(e->store), dial_ms = UINT64_MAX;

    if (mu_engine_store_state(e->store) == MU_ENGINE_STORE_CONNECTING)
        dial_ms = mu_dial_deadline_ms(&e->dial);
    mu_timer_until(&e->timer, at_ms < dial_ms ? at_ms : dial_ms, on_time);
}

static void on_timer_closed(uv_handle_t *handle)
{
    part_over(handle->data);
}

static void end(struct engine *e)
{
    close_links(e, NULL);
    if (e->resolving)
        (void)uv_cancel((uv_req_t *)&e->resolver); /* or it is answered yet */
    uv_close((uv_handle_t *)&e->timer, on_timer_closed);
    mu_later_close(&e->later, part_over, e);
}

/* False: there is nothing more to do. */
static bool perform_next(struct engine *e)
{
    struct mu_engine_store_output output = mu_engine_store_next(e->store);

    switch (output.type) {
    case MU_ENGINE_STORE_EVENT:
        e->client.heard(e->client.ctx, output.event);
        return true;
    case MU_ENGINE_STORE_CONNECT:
        dial(e);
        return true;
    case MU_ENGINE_STORE_DISCONNECT:
        close_links(e, NULL);
        return true;
    case MU_ENGINE_STORE_BYTES:
        send_bytes(e, output.bytes);
        return true;
    case MU_ENGINE_STORE_NOTHING:
        arm(e);
        break;
    case MU_ENGINE_STORE_END:
        end(e);
        break;
    }
    return false;
}

static void pump(struct engine *e)
{
    if (e->pumping || uv_is_closing((uv_handle_t *)&e->timer))
        return;
    e->pumping = true;
    while (perform_next(e)) {
    }
    e->pumping = false;
}

static void on_turn(void *ctx)
{
    pump(ctx);
}

/* ---- The client ---- */

static void engine_request(struct mu_engine_client *client, const struct mu_fold_effect *effect, uint64_t until_ms)
{
    struct engine *e = (struct engine *)client;

    assert(e->closed == NULL);
    mu_engine_store_request(e->store, effect, until_ms, uv_now(e->loop));
    if (!e->pumping)
        mu_later_turn(&e->later, on_turn, e);
}

static bool engine_local_address(const struct mu_engine_client *client, char *ret_text, size_t room)
{
    const char *address = mu_engine_store_local_address(((const struct engine *)client)->store);
    int len = snprintf(ret_text, room, "%s", address);

    return len > 0 && (size_t)len < room;
}

static void engine_close(struct mu_engine_client *client, void (*closed)(void *ctx), void *ctx)
{
    struct engine *e = (struct engine *)client;

    assert(e->closed == NULL && closed != NULL);
    e->closed = closed;
    e->closed_ctx = ctx;
    mu_engine_store_end(e->store, uv_now(e->loop));
    pump(e); /* at once: nothing may be read any more from a connection that is given up; the owner hears nothing */
}

static bool engine_will(const struct mu_engine_client *client, const struct mu_fold_op *mark,
                        struct mu_kv_lone *ret_will)
{
    char bytes[MU_ENGINE_STORE_WILL_MAX];
    union mu_addr addr;
    size_t len = 0;

    *ret_will = (struct mu_kv_lone){ .address_len = 0 };
    if (!mu_engine_store_will(((const struct engine *)client)->store, mark, &addr, bytes, &len) ||
        mu_buf_append(&ret_will->bytes, bytes, len, SIZE_MAX) < 0)
        return false;
    memcpy(&ret_will->address, &addr, sizeof addr);
    ret_will->address_len = mu_addr_len(&addr);
    return true;
}

static const struct mu_engine_client_ops engine_ops = { MU_ENGINE_OPS_MAX, engine_request, engine_local_address,
                                                        engine_will, engine_close };

int mu_engine_store_start(uv_loop_t *loop, const struct mu_engine_store_config *config, mu_engine_client_heard *heard,
                          void *ctx, struct mu_engine_client **ret_client, struct muster_error *reterr)
{
    struct engine *e = calloc(1, sizeof *e);
    int rc = e != NULL ? mu_endpoint_parse(config->endpoint, 0, e->host, &e->port, reterr) : 0;

    if (e != NULL && rc == 0)
        e->store = mu_engine_store_new(config);
    if (rc == 0 && (e == NULL || e->store == NULL))
        rc = mu_fail(reterr, MUSTER_ENOMEM, "no memory for a client of the store");
    if (rc < 0) {
        free(e);
        return rc;
    }
    e->client = (struct mu_engine_client){ &engine_ops, heard, ctx };
    e->loop = loop;
    e->seed = config->seed;
    mu_list_init(&e->links);
    (void)uv_timer_init(loop, &e->timer);
    e->timer.data = e;
    mu_later_open(&e->later, loop, NULL);
    e->parts = 2;
    *ret_client = &e->client;
    return 0;
}

const struct mu_engine_store *mu_engine_store_of(const struct mu_engine_client *client)
{
    return ((const struct engine *)client)->store;
}
