/* The store client on a libuv loop: drives mu_dial to get a connection and mu_calls to use it.
 *
 * Happy path: resolve, connect (several at once, perhaps), greet the first that connects until its dialect is known,
 * then write what mu_calls has to say and feed it what comes back. Failures: mu_dial decides what follows an attempt
 * that failed. A connection that breaks later is lost for good, and every call fails with the cause. A connection that
 * mu_calls wants replaced (a WAIT at a 1.13 server timed out) is dialled again, and calls wait meanwhile.
 *
 * Every socket is a `link`, which lives from open_link() until the loop has closed it. Callbacks to the user run only
 * from tell(), which is among the last things an event of the loop does; an outside call arms the timer for it. */
#include "store/client_uv.h"

#include "base/error.h"
#include "base/words.h"
#include "store/dial.h"
#include "store/greeting.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    READ_BYTES = 64 * 1024,
    GREETING_BYTES_MAX = 16,
    RECONNECT_MS = 30000,
    KEEPALIVE_S = 60,
    PROBE_MS = 5000,
    EVENTS_MAX = 2 * MU_DIAL_ADDRS_MAX + 8
};

enum purpose {
    FOR_DIALING, /* an attempt; greeted with link->dialect once connected */
    FOR_CALLS,
    FOR_PROBE, /* of a feature */
};

struct link {
    uv_tcp_t tcp;
    uv_connect_t connect_req;
    uv_write_t write_req;
    struct mu_client *client;
    struct mu_list in_client; /* client->links */
    enum purpose purpose;
    size_t index;            /* FOR_DIALING: of the address */
    bool connected, again;   /* again: not the address's first greeting */
    enum mu_dialect dialect; /* which greeting it got */
    unsigned feature;        /* FOR_PROBE */
    size_t wanted;           /* FOR_PROBE: bytes that mean yes */
    char answer[GREETING_BYTES_MAX];
    size_t answered;
    char said[MU_FEATURE_PROBE_MAX];
    struct mu_buf sending; /* FOR_CALLS: in the hands of uv_write() */
};

struct queued {
    struct mu_dial_event event;
    char why[128];
    union mu_addr addrs[MU_DIAL_ADDRS_MAX];
};

struct mu_client {
    uv_loop_t *loop;
    uv_timer_t timer;
    uv_getaddrinfo_t resolver;
    bool resolving;
    struct mu_client_config config;
    char host[MU_HOST_MAX];
    struct mu_dial dial;
    bool stepping; /* inside of mu_dial's effects */
    struct queued events[EVENTS_MAX];
    size_t events_count;
    struct mu_calls calls;
    struct mu_list links;
    size_t links_count; /* not yet given back by the loop */
    struct link *link;  /* the connection, once there is one */
    struct mu_greeter greeter;
    unsigned probing; /* the feature a link is out for; 0: none */
    uint64_t probe_until_ms;
    union mu_addr addr; /* of the server */
    mu_client_ready *on_ready;
    mu_client_lost *on_lost;
    mu_client_closed *on_closed;
    void *ctx, *closed_ctx;
    bool told_ready, told_lost, is_ready, closing, timer_closed;
};

static void feed_dial(struct mu_client *client, struct mu_dial_event event);
static void settle(struct mu_client *client);
static void open_link(struct mu_client *client, enum purpose purpose, size_t index, enum mu_dialect dialect);

/* ---- Links ---- */

static void free_if_over(struct mu_client *client)
{
    if (!client->closing || client->links_count > 0 || !client->timer_closed || client->resolving)
        return;
    mu_calls_done(&client->calls);
    if (client->on_closed != NULL)
        client->on_closed(client, client->closed_ctx);
    free(client);
}

static void on_link_closed(uv_handle_t *handle)
{
    struct link *link = handle->data;
    struct mu_client *client = link->client;

    mu_buf_done(&link->sending);
    free(link);
    client->links_count--;
    free_if_over(client);
}

static void close_link(struct link *link)
{
    struct mu_client *client = link->client;

    if (uv_is_closing((uv_handle_t *)&link->tcp))
        return;
    if (client->link == link)
        client->link = NULL;
    mu_list_remove(&link->in_client);
    uv_close((uv_handle_t *)&link->tcp, on_link_closed);
}

static void close_links(struct mu_client *client, enum purpose purpose, const struct link *except)
{
    MU_LIST_EACH_LEAVING (struct link, link, &client->links, in_client) {
        if (link != except && link->purpose == purpose)
            close_link(link);
    }
}

/* ---- The connection in use ---- */

static void lose(struct mu_client *client, int code, const char *why)
{
    struct muster_error error;

    (void)mu_fail(&error, code, "%s", why);
    mu_calls_lose(&client->calls, &error);
}

static void on_written(uv_write_t *req, int status);

/* Hands what is to be written to the loop. One write at a time: the buffer must not move meanwhile. */
static void write_rest(struct link *link)
{
    struct mu_calls *calls = &link->client->calls;
    uv_buf_t buf;
    int rc;

    link->sending = calls->out;
    calls->out = (struct mu_buf){ 0 };
    buf = uv_buf_init(link->sending.data, (unsigned)link->sending.len);
    link->write_req.data = link;
    rc = uv_write(&link->write_req, (uv_stream_t *)&link->tcp, &buf, 1, on_written);
    if (rc < 0)
        lose(link->client, MUSTER_ELOST, uv_strerror(rc));
}

static void on_written(uv_write_t *req, int status)
{
    struct link *link = req->data;
    struct mu_client *client = link->client;
    size_t len = link->sending.len;

    if (uv_is_closing((uv_handle_t *)&link->tcp))
        return;
    mu_buf_done(&link->sending);
    if (status < 0)
        lose(client, MUSTER_ELOST, uv_strerror(status));
    else if (client->link == link)
        mu_calls_wrote(&client->calls, len);
    settle(client);
}

static void flush(struct mu_client *client)
{
    struct mu_calls *calls = &client->calls;
    uv_buf_t buf;
    int rc;

    if (client->link == NULL || calls->out.len == 0 || client->link->sending.data != NULL)
        return;
    buf = uv_buf_init(calls->out.data, (unsigned)calls->out.len);
    rc = uv_try_write((uv_stream_t *)&client->link->tcp, &buf, 1);
    if (rc < 0 && rc != UV_EAGAIN) {
        lose(client, MUSTER_ELOST, uv_strerror(rc));
        return;
    }
    if (rc > 0) {
        mu_buf_consume(&calls->out, (size_t)rc);
        mu_calls_wrote(calls, (size_t)rc);
    }
    if (calls->out.len > 0)
        write_rest(client->link);
}

static void take_into_use(struct mu_client *client, struct link *link)
{
    char text[MU_ADDR_TEXT_MAX];

    link->purpose = FOR_CALLS;
    client->link = link;
    client->addr = client->dial.addrs[link->index];
    client->is_ready = true;
    mu_calls_name_peer(&client->calls, mu_addr_format(&client->addr, text));
    mu_calls_opened(&client->calls, link->dialect);
}

/* ---- Reading ---- */

static void attempt_failed(struct mu_client *client, size_t index, const char *why, bool refused)
{
    feed_dial(client,
              (struct mu_dial_event){ .type = MU_DIAL_ATTEMPT_FAILED, .index = index, .why = why, .refused = refused });
}

/* What the greeting of a link that closed means: another dialect, or a failed attempt. */
static void greeting_closed(struct link *link, const char *why, bool refused)
{
    struct mu_client *client = link->client;
    enum mu_dialect next;
    size_t index = link->index;
    char text[128];

    (void)mu_greeter_next(&client->greeter, link->dialect, false, &next);
    if (next != MU_DIALECT_UNKNOWN) {
        close_link(link);
        open_link(client, FOR_DIALING, index, next);
        return;
    }
    (void)snprintf(text, sizeof text,
                   client->config.dialect == MU_DIALECT_UNKNOWN
                       ? "it closes the connection in every dialect that was tried (%s)"
                       : "it closed the connection when greeted (%s)",
                   why);
    close_link(link);
    attempt_failed(client, index, text, refused);
}

/* Bytes that are no answer to a greeting, as text: as they are if they can be printed, else in hex. */
static void describe_answer(const struct link *link, char *text, size_t room)
{
    struct mu_words words = mu_words_into(text, room);

    mu_words_add(&words, "what listens there is not a store; it answered '");
    for (size_t i = 0; i < link->answered; i++) {
        unsigned byte = (unsigned char)link->answer[i];

        mu_words_add(&words, byte >= 0x20 && byte < 0x7f ? "%c" : "\\x%02x", byte);
    }
    mu_words_add(&words, "'");
}

static void read_greeting(struct link *link, struct mu_slice bytes)
{
    struct mu_client *client = link->client;
    size_t take = bytes.len < GREETING_BYTES_MAX - link->answered ? bytes.len : GREETING_BYTES_MAX - link->answered;
    struct mu_dial_event event = { .index = link->index };
    enum mu_dialect next;
    char text[128];

    memcpy(link->answer + link->answered, bytes.data, take);
    link->answered += take;
    switch (mu_greeting_check(link->dialect, mu_slice(link->answer, link->answered))) {
    case MU_GREETING_MORE:
        return;
    case MU_GREETING_YES:
        if (!mu_greeter_next(&client->greeter, link->dialect, true, &next)) {
            close_link(link);
            open_link(client, FOR_DIALING, event.index, next);
            return;
        }
        event.type = MU_DIAL_ATTEMPT_GREETED;
        break;
    case MU_GREETING_WRONG:
        describe_answer(link, text, sizeof text);
        event.type = MU_DIAL_HOPELESS;
        event.why = text;
        break;
    }
    feed_dial(client, event);
}

static void probe_ended(struct link *link, bool had)
{
    struct mu_client *client = link->client;
    unsigned feature = link->feature;

    close_link(link);
    client->probing = 0;
    mu_calls_probed(&client->calls, feature, had);
}

static void probe_failed(struct mu_client *client, const char *why)
{
    unsigned feature = client->probing;

    close_links(client, FOR_PROBE, NULL);
    client->probing = 0;
    mu_calls_probe_failed(&client->calls, feature, why);
}

static void link_ended(struct link *link, int status)
{
    struct mu_client *client = link->client;
    const char *why = status == UV_EOF ? "closed by the server" : uv_strerror(status);

    switch (link->purpose) {
    case FOR_DIALING:
        greeting_closed(link, why, status == UV_ECONNRESET);
        break;
    case FOR_CALLS:
        lose(client, MUSTER_ELOST, status == UV_EOF ? "the server closed the connection" : why);
        break;
    case FOR_PROBE:
        if (link->answered > 0 && (status == UV_EOF || status == UV_ECONNRESET))
            probe_ended(link, false);
        else
            probe_failed(client, why);
        break;
    }
}

/* One buffer serves all clients of a thread, for what was read is used up before anything else is read. */
static _Thread_local char read_bytes[READ_BYTES];

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret_buf)
{
    (void)handle;
    (void)suggested;
    *ret_buf = uv_buf_init(read_bytes, READ_BYTES);
}

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buf)
{
    struct link *link = stream->data;
    struct mu_client *client = link->client;

    if (count == 0)
        return;
    if (count < 0) {
        link_ended(link, (int)count);
    } else if (link->purpose == FOR_CALLS) {
        mu_calls_read(&client->calls, mu_slice(buf->base, (size_t)count));
    } else if (link->purpose == FOR_DIALING) {
        read_greeting(link, mu_slice(buf->base, (size_t)count));
    } else {
        link->answered += (size_t)count;
        if (link->answered >= link->wanted)
            probe_ended(link, true);
    }
    settle(client);
}

/* ---- Connecting ---- */

/* Small and first on its connection, so that the socket takes it whole. */
static void say(struct link *link, struct mu_slice bytes)
{
    uv_buf_t buf = uv_buf_init((char *)bytes.data, (unsigned)bytes.len);
    int rc = uv_read_start((uv_stream_t *)&link->tcp, on_alloc, on_read);

    if (rc == 0)
        rc = uv_try_write((uv_stream_t *)&link->tcp, &buf, 1);
    if (rc < 0)
        link_ended(link, rc);
}

static void link_connected(struct link *link)
{
    struct mu_client *client = link->client;
    size_t index = link->index;

    link->connected = true;
    if (link->purpose == FOR_PROBE)
        say(link, mu_feature_probe(link->feature, link->said, &link->wanted));
    else if (link->again)
        say(link, mu_greeting(link->dialect));
    else
        feed_dial(client, (struct mu_dial_event){ .type = MU_DIAL_ATTEMPT_CONNECTED, .index = index });
}

static void connect_failed(struct link *link, int status)
{
    struct mu_client *client = link->client;
    size_t index = link->index;
    enum purpose purpose = link->purpose;

    close_link(link);
    if (purpose == FOR_PROBE)
        probe_failed(client, uv_strerror(status));
    else
        attempt_failed(client, index, uv_strerror(status), status == UV_ECONNREFUSED || status == UV_ECONNRESET);
}

static void on_connected(uv_connect_t *req, int status)
{
    struct link *link = req->data;
    struct mu_client *client = link->client;

    if (uv_is_closing((uv_handle_t *)&link->tcp))
        return;
    if (status < 0)
        connect_failed(link, status);
    else
        link_connected(link);
    settle(client);
}

static void open_link(struct mu_client *client, enum purpose purpose, size_t index, enum mu_dialect dialect)
{
    struct link *link = calloc(1, sizeof *link);
    const union mu_addr *addr = purpose == FOR_PROBE ? &client->addr : &client->dial.addrs[index];
    int rc;

    if (link == NULL) {
        if (purpose == FOR_PROBE)
            probe_failed(client, "no memory for a connection");
        else
            attempt_failed(client, index, "no memory", false);
        return;
    }
    link->client = client;
    link->purpose = purpose;
    link->index = index;
    link->again = dialect != MU_DIALECT_UNKNOWN;
    link->dialect = dialect;
    link->feature = client->probing;
    (void)uv_tcp_init(client->loop, &link->tcp); /* fills in memory only */
    link->tcp.data = link;
    link->connect_req.data = link;
    mu_list_push(&client->links, &link->in_client);
    client->links_count++;
    (void)uv_tcp_nodelay(&link->tcp, 1);
    (void)uv_tcp_keepalive(&link->tcp, 1, KEEPALIVE_S); /* a server whose host vanished is noticed in about a minute */
    rc = uv_tcp_connect(&link->connect_req, &link->tcp, &addr->any, on_connected);
    if (rc < 0)
        connect_failed(link, rc);
}

static struct link *attempt(struct mu_client *client, size_t index)
{
    MU_LIST_EACH (struct link, link, &client->links, in_client) {
        if (link->purpose == FOR_DIALING && link->index == index)
            return link;
    }
    return NULL;
}

static void greet(struct mu_client *client, size_t index)
{
    struct link *link = attempt(client, index);

    assert(link != NULL && link->connected);
    close_links(client, FOR_DIALING, link);
    client->greeter = (struct mu_greeter){ .wanted = client->config.dialect };
    link->dialect = client->config.dialect == MU_DIALECT_UNKNOWN ? MU_DIALECT_V : client->config.dialect;
    say(link, mu_greeting(link->dialect));
}

/* ---- Resolving ---- */

static void on_resolved(uv_getaddrinfo_t *req, int status, struct addrinfo *list)
{
    struct mu_client *client = req->data;
    union mu_addr addrs[MU_DIAL_ADDRS_MAX];
    size_t count = mu_dial_resolved(list, addrs);

    client->resolving = false;
    uv_freeaddrinfo(list);
    if (client->closing) {
        free_if_over(client);
        return;
    }
    if (status < 0)
        feed_dial(client, (struct mu_dial_event){ .type = MU_DIAL_UNRESOLVED, .why = uv_strerror(status) });
    else
        feed_dial(client, (struct mu_dial_event){ .type = MU_DIAL_RESOLVED, .addrs = addrs, .count = count });
    settle(client);
}

static void resolve(struct mu_client *client)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    union mu_addr addrs[MU_DIAL_ADDRS_MAX];
    size_t count = mu_dial_known(client->host, client->config.port, addrs);
    char service[8];
    int rc;

    if (count > 0) {
        feed_dial(client, (struct mu_dial_event){ .type = MU_DIAL_RESOLVED, .addrs = addrs, .count = count });
        return;
    }
    if (client->resolving)
        return; /* the answer to the last question is still to come */
    (void)snprintf(service, sizeof service, "%u", (unsigned)client->config.port);
    client->resolver.data = client;
    rc = uv_getaddrinfo(client->loop, &client->resolver, on_resolved, client->host, service, &hints);
    client->resolving = rc == 0;
    if (rc < 0)
        feed_dial(client, (struct mu_dial_event){ .type = MU_DIAL_UNRESOLVED, .why = uv_strerror(rc) });
}

/* ---- Driving ---- */

static void perform(struct mu_client *client, struct mu_dial_effect effect)
{
    switch (effect.type) {
    case MU_DIAL_RESOLVE:
        resolve(client);
        break;
    case MU_DIAL_CONNECT:
        open_link(client, FOR_DIALING, effect.index, MU_DIALECT_UNKNOWN);
        break;
    case MU_DIAL_GREET:
        greet(client, effect.index);
        break;
    case MU_DIAL_GIVE_UP:
        close_links(client, FOR_DIALING, NULL);
        break;
    case MU_DIAL_SUCCEED:
        take_into_use(client, attempt(client, effect.index));
        break;
    case MU_DIAL_FAIL:
        mu_calls_lose(&client->calls, &client->dial.error);
        break;
    }
}

static void step_dial(struct mu_client *client, const struct mu_dial_event *event)
{
    struct mu_dial_effects effects;

    mu_dial_step(&client->dial, event, &effects);
    for (unsigned i = 0; i < effects.count; i++)
        perform(client, effects.items[i]);
}

/* An event that an effect causes at once (a connect that fails immediately) is queued as the next one. Each event
 * causes at most one of these for each address, so the queue is long enough. */
static void feed_dial(struct mu_client *client, struct mu_dial_event event)
{
    struct queued *last;

    event.now_ms = uv_now(client->loop);
    if (client->stepping) {
        assert(client->events_count < EVENTS_MAX);
        last = &client->events[client->events_count++];
        last->event = event;
        (void)snprintf(last->why, sizeof last->why, "%s", event.why == NULL ? "" : event.why);
        if (event.type == MU_DIAL_RESOLVED)
            memcpy(last->addrs, event.addrs, event.count * sizeof event.addrs[0]);
        return;
    }
    client->stepping = true;
    step_dial(client, &event);
    for (size_t i = 0; i < client->events_count; i++) { /* grows while it is walked */
        client->events[i].event.why = client->events[i].why;
        client->events[i].event.addrs = client->events[i].addrs;
        step_dial(client, &client->events[i].event);
    }
    client->events_count = 0;
    client->stepping = false;
}

static void renew(struct mu_client *client)
{
    client->calls.renew = false;
    client->config.dialect = client->calls.dialect;
    close_links(client, FOR_CALLS, NULL);
    mu_dial_init(&client->dial, client->host, client->config.port, uv_now(client->loop), RECONNECT_MS,
                 client->config.seed);
    feed_dial(client, (struct mu_dial_event){ .type = MU_DIAL_START });
}

static void on_timer(uv_timer_t *timer)
{
    struct mu_client *client = timer->data;

    if (client->probing != 0 && uv_now(client->loop) >= client->probe_until_ms)
        probe_failed(client, "no answer");
    mu_calls_pass_time(&client->calls, uv_now(client->loop));
    feed_dial(client, (struct mu_dial_event){ .type = MU_DIAL_TIME });
    settle(client);
}

/* Carries out what mu_calls wants done. Calls no callback. */
static void act(struct mu_client *client)
{
    if (client->calls.renew)
        renew(client);
    if (client->calls.probe != 0 && client->probing == 0) {
        client->probing = client->calls.probe;
        client->probe_until_ms = uv_now(client->loop) + PROBE_MS;
        open_link(client, FOR_PROBE, 0, MU_DIALECT_UNKNOWN);
    }
    flush(client);
    if (client->calls.lost.code != 0) {
        close_links(client, FOR_CALLS, NULL);
        close_links(client, FOR_PROBE, NULL);
    }
}

static bool has_news(const struct mu_client *client)
{
    bool over = client->is_ready || client->calls.lost.code != 0;

    return !mu_list_empty(&client->calls.finished) || (over && !client->told_ready) ||
           (client->calls.lost.code != 0 && !client->told_lost);
}

static void arm(struct mu_client *client)
{
    uint64_t now = uv_now(client->loop), until = mu_calls_deadline_ms(&client->calls);
    uint64_t dial_until = mu_dial_deadline_ms(&client->dial);

    if (client->closing)
        return;
    if (dial_until < until)
        until = dial_until;
    if (client->probing != 0 && client->probe_until_ms < until)
        until = client->probe_until_ms;
    if (has_news(client))
        until = now;
    if (until == UINT64_MAX)
        (void)uv_timer_stop(&client->timer);
    else
        (void)uv_timer_start(&client->timer, on_timer, until > now ? until - now : 0, 0);
}

static void tell_lost(struct mu_client *client)
{
    struct muster_error error = client->calls.lost;
    char text[MU_ADDR_TEXT_MAX];

    client->told_lost = true;
    (void)mu_wrap(&error, error.code, "store %s", mu_addr_format(&client->addr, text));
    if (client->on_lost != NULL && !client->closing)
        client->on_lost(client, &error, client->ctx);
}

static void tell(struct mu_client *client)
{
    const struct muster_error *lost = client->calls.lost.code != 0 ? &client->calls.lost : NULL;
    struct mu_call *call;

    if (!client->told_ready && (client->is_ready || lost != NULL)) {
        client->told_ready = true;
        if (lost != NULL)
            client->told_lost = true; /* it never was */
        client->on_ready(client, client->is_ready ? NULL : lost, client->ctx);
    }
    while ((call = mu_calls_pop_finished(&client->calls)) != NULL)
        call->done(call);
    if (!client->told_lost && client->calls.lost.code != 0)
        tell_lost(client);
}

/* The last thing that every event does. Callbacks may make new calls, so it acts again. */
static void settle(struct mu_client *client)
{
    if (client->closing)
        return;
    act(client);
    tell(client);
    if (client->closing)
        return; /* closed from a callback */
    act(client);
    arm(client);
}

/* ---- From outside ---- */

int mu_client_start(uv_loop_t *loop, const struct mu_client_config *config, mu_client_ready *on_ready,
                    mu_client_lost *on_lost, void *ctx, struct mu_client **ret_client, struct muster_error *reterr)
{
    struct mu_client *client;

    if (strlen(config->host) >= MU_HOST_MAX)
        return mu_fail(reterr, MUSTER_EINVAL, "a host name of %zu bytes is too long", strlen(config->host));
    client = calloc(1, sizeof *client);
    if (client == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a store client");
    client->loop = loop;
    client->config = *config;
    memcpy(client->host, config->host, strlen(config->host) + 1);
    client->on_ready = on_ready;
    client->on_lost = on_lost;
    client->ctx = ctx;
    mu_list_init(&client->links);
    mu_calls_init(&client->calls, config->raw_keys);
    mu_dial_init(&client->dial, client->host, config->port, uv_now(loop), config->connect_timeout_ms, config->seed);
    client->dial.rounds_max = config->rounds_max;
    (void)uv_timer_init(loop, &client->timer); /* fills in memory only */
    client->timer.data = client;
    feed_dial(client, (struct mu_dial_event){ .type = MU_DIAL_START });
    act(client);
    arm(client);
    *ret_client = client;
    return 0;
}

void mu_client_call(struct mu_client *client, struct mu_call *call, uint64_t timeout_ms)
{
    assert(!client->closing);
    mu_calls_submit(&client->calls, call, timeout_ms, uv_now(client->loop));
    act(client);
    arm(client);
}

void mu_client_expire(struct mu_client *client, struct mu_call *call)
{
    if (client->closing)
        return; /* every call is ended already */
    mu_calls_expire(&client->calls, call, uv_now(client->loop));
    act(client);
    arm(client);
}

bool mu_client_is_lost(const struct mu_client *client)
{
    return client->calls.lost.code != 0;
}

bool mu_client_refused(const struct mu_client *client)
{
    return client->dial.refused;
}

enum mu_dialect mu_client_dialect(const struct mu_client *client)
{
    return client->calls.dialect;
}

bool mu_client_local_address(const struct mu_client *client, union mu_addr *ret_addr)
{
    int len = sizeof *ret_addr;

    return client->link != NULL && uv_tcp_getsockname(&client->link->tcp, &ret_addr->any, &len) == 0;
}

bool mu_client_lone_set(const struct mu_client *client, struct mu_slice key, struct mu_slice value,
                        union mu_addr *ret_addr, struct mu_buf *ret_bytes)
{
    if (client->link == NULL || mu_calls_lone_set(&client->calls, key, value, ret_bytes) < 0)
        return false;
    *ret_addr = client->addr;
    return true;
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct mu_client *client = handle->data;

    tell(client); /* the calls that closing has finished */
    client->timer_closed = true;
    free_if_over(client);
}

void mu_client_close(struct mu_client *client, mu_client_closed *on_closed, void *ctx)
{
    struct muster_error error;
    struct link *link;

    assert(!client->closing);
    client->on_closed = on_closed;
    client->closed_ctx = ctx;
    client->closing = true;
    client->told_ready = client->told_lost = true; /* nothing but the calls is told any more */
    (void)mu_fail(&error, MUSTER_ECANCELED, "the store was closed");
    mu_calls_lose(&client->calls, &error);
    while ((link = MU_LIST_FIRST(struct link, &client->links, in_client)) != NULL)
        close_link(link);
    if (client->resolving)
        (void)uv_cancel((uv_req_t *)&client->resolver); /* if it cannot be cancelled it is waited for */
    uv_close((uv_handle_t *)&client->timer, on_timer_closed);
}
