/* The static rendezvous: who is which rank is known before; rank 0 serves a store at the endpoint, everybody connects and
 * is counted, and rank 0 waits until all have come. There are no rounds and nothing is ever closed. Blocking, and on a
 * loop; both check their parameters in the same place.
 *
 * On a loop: IDLE --join--> CONNECTING --> COUNTING --(rank 0: GATHERING)--> OPEN. What was asked for and what has
 * happened is written down and told later, one thing at a time, from on_news(): whoever is told may ask for the next
 * thing or end the handler. A failure closes client and server and leads back to IDLE; a join that comes meanwhile waits
 * until they are closed. A connection that is lost in OPEN is a failed membership. */
#include "handler/handler.h"
#include "store/client_uv.h"
#include "store/server_uv.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#define TIMEOUT_S INT64_C(600)
#define TIMEOUT_S_MAX INT64_C(1000000000)

/* PyTorch's count of those who have come; a key of the wire, without the "/" that stands before others. */
static const char count_key[] = "init/";

struct place { /* settled parameters */
    char host[sizeof((struct muster_store_info *)0)->master_addr];
    uint16_t port;
    int64_t rank, world_size, timeout_ms;
    char *run_id;
};

/* ---- Parameters ---- */

/* Takes what has been read and checks it. The caller owns place->run_id. */
static int place_init(struct place *place, const char *host, int64_t port, int64_t rank, int64_t world_size,
                      int64_t timeout_ms, const char *run_id, struct muster_error *reterr)
{
    if (host[0] == '\0' || strlen(host) >= sizeof place->host)
        return mu_fail(reterr, MUSTER_EINVAL, "a host name of %zu bytes is %s", strlen(host),
                       host[0] == '\0' ? "none" : "too long");
    if (port < 1 || port > UINT16_MAX)
        return mu_fail(reterr, MUSTER_EINVAL, "port %" PRId64 " of host '%s' is not in 1..65535", port, host);
    if (world_size < 1 || world_size > UINT32_MAX)
        return mu_fail(reterr, MUSTER_EINVAL, "a world of %" PRId64 " nodes is not in 1..%u", world_size, UINT32_MAX);
    if (rank < 0 || rank >= world_size)
        return mu_fail(reterr, MUSTER_EINVAL, "rank %" PRId64 " is not in 0..%" PRId64, rank, world_size - 1);
    if (timeout_ms < 1 || timeout_ms > TIMEOUT_S_MAX * 1000)
        return mu_fail(reterr, MUSTER_EINVAL, "a timeout of %" PRId64 " ms is not above 0 and below %" PRId64 " s",
                       timeout_ms, TIMEOUT_S_MAX);
    *place = (struct place){ .port = (uint16_t)port, .rank = rank, .world_size = world_size, .timeout_ms = timeout_ms };
    memcpy(place->host, host, strlen(host) + 1);
    place->run_id = strdup(run_id);
    return place->run_id == NULL ? mu_fail(reterr, MUSTER_ENOMEM, "no memory for a static rendezvous") : 0;
}

static bool is_blank(const char *text)
{
    return text[strspn(text, " \t\n\v\f\r")] == '\0';
}

/* After the names, the order is PyTorch's: rank there, endpoint there, port there, then the values. */
static int read_params(const struct muster_rdzv_params *params, struct place *ret_place, struct muster_error *reterr)
{
    const char *endpoint = muster_rdzv_params_endpoint(params);
    char host[MU_RDZV_HOST_MAX];
    int64_t rank = 0, timeout_s = 0;
    struct muster_value value;
    int port, rc = mu_rdzv_check_options("static", params, reterr);

    if (rc < 0)
        return rc;
    if (!muster_rdzv_params_get(params, "rank", &value))
        return mu_fail(reterr, MUSTER_EINVAL, "option 'rank' is missing: a static rendezvous needs each node's rank");
    if (is_blank(endpoint))
        return mu_fail(reterr, MUSTER_EINVAL, "the endpoint is missing: a static rendezvous needs HOST:PORT of rank 0");
    rc = mu_rdzv_endpoint_parse(endpoint, -1, host, &port, reterr);
    if (rc < 0)
        return rc;
    if (port < 0)
        return mu_fail(reterr, MUSTER_EINVAL, "endpoint '%.200s' has no port: a static rendezvous needs HOST:PORT",
                       endpoint);
    rc = muster_rdzv_params_get_as_int(params, "rank", 0, &rank, reterr);
    if (rc == 0)
        rc = muster_rdzv_params_get_as_int(params, "timeout", TIMEOUT_S, &timeout_s, reterr);
    if (rc < 0)
        return rc;
    if (timeout_s < 1 || timeout_s > TIMEOUT_S_MAX)
        return mu_fail(reterr, MUSTER_EINVAL, "option 'timeout': %" PRId64 " s is not in 1..%" PRId64, timeout_s,
                       TIMEOUT_S_MAX);
    return place_init(ret_place, host, port, rank, muster_rdzv_params_max_nodes(params), timeout_s * 1000,
                      muster_rdzv_params_run_id(params), reterr);
}

/* ---- What both have in common ---- */

static void fill_info(const struct place *place, struct muster_store *store, struct muster_rdzv_info *ret_info)
{
    *ret_info =
        (struct muster_rdzv_info){ .store = store, .rank = place->rank, .world_size = place->world_size, .round = -1 };
    memcpy(ret_info->bootstrap.master_addr, place->host, sizeof place->host);
    ret_info->bootstrap.master_port = place->port;
}

/* What a store's error is to a rendezvous; where and what of is put in front. */
static int as_rdzv_error(const struct place *place, int rc, struct muster_error *reterr)
{
    int code = rc;

    if (rc == MUSTER_ETIMEOUT)
        code = MUSTER_ERDZV_TIMEOUT;
    else if (rc == MUSTER_ECONNECT || rc == MUSTER_ELOST || rc == MUSTER_ERESOLVE || rc == MUSTER_EPROTOCOL ||
             rc == MUSTER_EADDRINUSE)
        code = MUSTER_ERDZV_CONNECTION;
    if (reterr != NULL)
        reterr->code = code;
    return mu_wrap(reterr, code, "static rendezvous at %s, port %u, as rank %" PRId64 " of %" PRId64, place->host,
                   (unsigned)place->port, place->rank, place->world_size);
}

/* ---- Blocking ---- */

struct blocking {
    struct muster_rdzv base;
    struct place place;
    pthread_mutex_t lock; /* of the stores: calls come one after the other */
    struct muster_store *store, *view;
};

static struct blocking *blocking(struct muster_rdzv *rdzv)
{
    return (struct blocking *)rdzv;
}

static const char *get_backend(const struct muster_rdzv *rdzv)
{
    (void)rdzv;
    return "static";
}

static const char *get_run_id(const struct muster_rdzv *rdzv)
{
    return ((const struct blocking *)rdzv)->place.run_id;
}

static bool shares_store(const struct muster_rdzv *rdzv)
{
    (void)rdzv;
    return true;
}

static int open_stores(struct blocking *b, struct muster_error *reterr)
{
    const struct muster_store_tcp_config config = {
        .size = sizeof config,
        .host = b->place.host,
        .port = b->place.port,
        .is_host = b->place.rank == 0,
        .shared = true,
        .wait_for_workers = true,
        .world_size = (uint32_t)b->place.world_size,
        .connect_timeout_ms = b->place.timeout_ms,
        .timeout_ms = b->place.timeout_ms,
    };
    int rc = muster_store_tcp_new(&config, &b->store, reterr);

    if (rc == 0)
        rc = muster_store_prefix_new(muster_str(b->place.run_id), b->store, &b->view, reterr);
    if (rc < 0) {
        muster_store_free(b->store);
        b->store = NULL;
        return as_rdzv_error(&b->place, rc, reterr);
    }
    return 0;
}

static int next_rendezvous(struct muster_rdzv *rdzv, struct muster_rdzv_info *ret_info, struct muster_error *reterr)
{
    struct blocking *b = blocking(rdzv);
    int rc = 0;

    (void)pthread_mutex_lock(&b->lock);
    if (b->view == NULL)
        rc = open_stores(b, reterr);
    if (rc == 0)
        fill_info(&b->place, b->view, ret_info);
    (void)pthread_mutex_unlock(&b->lock);
    return rc;
}

static int is_closed(struct muster_rdzv *rdzv, bool *ret_closed, struct muster_error *reterr)
{
    (void)rdzv;
    (void)reterr;
    *ret_closed = false;
    return 0;
}

static int set_closed(struct muster_rdzv *rdzv, struct muster_error *reterr)
{
    (void)rdzv;
    (void)reterr;
    return 0;
}

static int num_nodes_waiting(struct muster_rdzv *rdzv, int64_t *ret_count, struct muster_error *reterr)
{
    (void)rdzv;
    (void)reterr;
    *ret_count = 0;
    return 0;
}

static int shut_down(struct muster_rdzv *rdzv, bool *ret_closed, struct muster_error *reterr)
{
    (void)rdzv;
    (void)reterr;
    *ret_closed = true;
    return 0;
}

static void free_blocking(struct muster_rdzv *rdzv)
{
    struct blocking *b = blocking(rdzv);

    muster_store_free(b->view);
    muster_store_free(b->store);
    (void)pthread_mutex_destroy(&b->lock);
    free(b->place.run_id);
    free(b);
}

static const struct muster_rdzv_ops blocking_ops = {
    .size = sizeof blocking_ops,
    .get_backend = get_backend,
    .get_run_id = get_run_id,
    .use_agent_store = shares_store,
    .next_rendezvous = next_rendezvous,
    .is_closed = is_closed,
    .set_closed = set_closed,
    .num_nodes_waiting = num_nodes_waiting,
    .shutdown = shut_down,
    .free = free_blocking,
};

static int new_blocking(const struct place *place, struct muster_rdzv **ret_rdzv, struct muster_error *reterr)
{
    struct blocking *b = calloc(1, sizeof *b);

    if (b == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a static rendezvous");
    b->base.ops = &blocking_ops;
    b->place = *place;
    (void)pthread_mutex_init(&b->lock, NULL);
    *ret_rdzv = &b->base;
    return 0;
}

int muster_rdzv_static_new(const char *master_addr, uint16_t master_port, int64_t rank, int64_t world_size,
                           const char *run_id, int64_t timeout_ms, struct muster_rdzv **ret_rdzv,
                           struct muster_error *reterr)
{
    struct place place = { .run_id = NULL };
    int rc = place_init(&place, master_addr, master_port, rank, world_size, timeout_ms, run_id, reterr);

    if (rc == 0)
        rc = new_blocking(&place, ret_rdzv, reterr);
    if (rc < 0) {
        free(place.run_id);
        return mu_wrap(reterr, rc, "make a static rendezvous");
    }
    return 0;
}

int muster_rdzv_static_create(void *ctx, const struct muster_rdzv_params *params, struct muster_rdzv **ret_rdzv,
                              struct muster_error *reterr)
{
    struct place place = { .run_id = NULL };
    int rc = read_params(params, &place, reterr);

    (void)ctx;
    if (rc == 0)
        rc = new_blocking(&place, ret_rdzv, reterr);
    if (rc < 0) {
        free(place.run_id);
        return mu_wrap(reterr, rc, "make a static rendezvous");
    }
    return 0;
}

/* ---- On a loop ---- */

enum state { IDLE, CONNECTING, COUNTING, GATHERING, OPEN };

struct handler {
    struct muster_handler base;
    struct place place;
    uv_loop_t *loop;
    muster_rdzv_listener *listener;
    void *ctx;
    enum state state;
    bool member;
    uv_timer_t news;     /* fires at once, while there is something to tell or to begin */
    uv_timer_t deadline; /* while gathering */
    struct mu_server *server;
    struct mu_server_watch *watch;
    struct mu_client *client;
    struct mu_call add;
    int64_t opened_ms, seen; /* seen: how many have come */
    bool join_asked, leave_asked, close_asked, look_asked;
    enum muster_rdzv_request failed; /* UNKNOWN: nothing that is still to be told */
    struct muster_error error;       /* with failed */
    unsigned parts_closing;          /* client and server; while freeing also the timers */
    void (*freed)(void *ctx);
    void *freed_ctx;
};

static void on_news(uv_timer_t *timer);

static struct handler *on_loop(struct muster_handler *base)
{
    return (struct handler *)base;
}

static bool has_news(const struct handler *h)
{
    bool may_go_on = h->parts_closing == 0 && (h->state == IDLE || h->state == OPEN);
    bool gathered = h->state == GATHERING && h->seen >= h->place.world_size;

    return h->failed != MUSTER_RDZV_REQUEST_UNKNOWN || h->leave_asked || h->close_asked || h->look_asked || gathered ||
           (h->join_asked && may_go_on);
}

static void check_news(struct handler *h)
{
    if (h->freed == NULL && has_news(h))
        (void)uv_timer_start(&h->news, on_news, 0, 0);
}

static void part_closed(struct handler *h)
{
    assert(h->parts_closing > 0);
    h->parts_closing--;
    if (h->freed == NULL) {
        check_news(h);
    } else if (h->parts_closing == 0) {
        void (*freed)(void *) = h->freed;
        void *ctx = h->freed_ctx;

        free(h->place.run_id);
        free(h);
        freed(ctx);
    }
}

static void on_client_closed(struct mu_client *client, void *ctx)
{
    (void)client;
    part_closed(ctx);
}

static void on_server_closed(struct mu_server *server, void *ctx)
{
    (void)server;
    part_closed(ctx);
}

static void close_parts(struct handler *h)
{
    h->state = IDLE;
    (void)uv_timer_stop(&h->deadline);
    if (h->watch != NULL)
        mu_server_unwatch(h->server, h->watch);
    h->watch = NULL;
    if (h->client != NULL) {
        h->parts_closing++;
        mu_client_close(h->client, on_client_closed, h);
    }
    h->client = NULL;
    if (h->server != NULL) {
        h->parts_closing++;
        mu_server_close(h->server, on_server_closed, h);
    }
    h->server = NULL;
}

/* With h->error filled in. Nobody is waiting for it when an open store is lost after we have left. */
static void fail_with(struct handler *h, int rc)
{
    (void)as_rdzv_error(&h->place, rc, &h->error);
    if (h->join_asked)
        h->failed = MUSTER_RDZV_REQUEST_JOIN;
    else if (h->member)
        h->failed = MUSTER_RDZV_REQUEST_MEMBERSHIP;
    h->join_asked = h->member = false;
    close_parts(h);
    check_news(h);
}

/* ---- On a loop: getting in ---- */

static uint64_t left_ms(const struct handler *h)
{
    int64_t left = h->opened_ms + h->place.timeout_ms - (int64_t)uv_now(h->loop);

    return left > 0 ? (uint64_t)left : 0;
}

static void on_count(void *ctx, struct mu_slice value)
{
    struct handler *h = ctx;
    char text[32];
    size_t len = value.len < sizeof text - 1 ? value.len : sizeof text - 1;

    memcpy(text, value.data, len);
    text[len] = '\0';
    h->seen = strtoll(text, NULL, 10);
    check_news(h);
}

static void on_deadline(uv_timer_t *timer)
{
    struct handler *h = timer->data;

    fail_with(h, mu_fail(&h->error, MUSTER_ETIMEOUT,
                         "timed out after %" PRId64 " s: %" PRId64 " of %" PRId64 " nodes have come",
                         h->place.timeout_ms / 1000, h->seen, h->place.world_size));
}

static void gather(struct handler *h)
{
    int rc = mu_server_watch(h->server, mu_slice_str(count_key), on_count, h, &h->watch, &h->error);

    if (rc < 0)
        fail_with(h, rc);
    else
        (void)uv_timer_start(&h->deadline, on_deadline, left_ms(h), 0);
}

static void on_counted(struct mu_call *call)
{
    struct handler *h = call->ctx;

    if (h->state != COUNTING)
        return; /* given up */
    if (call->rc < 0) {
        h->error = call->error;
        fail_with(h, call->rc);
    } else if (h->place.rank == 0) {
        h->state = GATHERING;
        gather(h);
    } else {
        h->state = OPEN;
        check_news(h);
    }
}

static void on_ready(struct mu_client *client, const struct muster_error *error, void *ctx)
{
    struct handler *h = ctx;

    if (error != NULL) {
        h->error = *error;
        fail_with(h, error->code);
        return;
    }
    h->state = COUNTING;
    h->add = (struct mu_call){
        .kind = MU_CALL_ADD, .key = muster_str(count_key), .number = 1, .raw_key = true, .done = on_counted, .ctx = h
    };
    mu_client_call(client, &h->add, left_ms(h));
}

static void on_lost(struct mu_client *client, const struct muster_error *error, void *ctx)
{
    struct handler *h = ctx;

    (void)client;
    if (h->state == IDLE)
        return;
    h->error = *error;
    fail_with(h, error->code);
}

static int start_parts(struct handler *h)
{
    const struct muster_store_server_config server = { .size = sizeof server, .port = h->place.port };
    struct mu_client_config client = { .host = h->place.host,
                                       .port = h->place.port,
                                       .connect_timeout_ms = (uint64_t)h->place.timeout_ms };
    int rc = 0;

    if (getrandom(&client.seed, sizeof client.seed, 0) != (ssize_t)sizeof client.seed)
        return mu_fail_errno(&h->error, errno, "get random bytes");
    if (h->place.rank == 0)
        rc = mu_server_start_as(h->loop, &server, &h->server, &h->error);
    if (rc == 0)
        rc = mu_client_start(h->loop, &client, on_ready, on_lost, h, &h->client, &h->error);
    return rc;
}

static void open_parts(struct handler *h)
{
    int rc;

    h->state = CONNECTING;
    h->seen = 0;
    h->opened_ms = (int64_t)uv_now(h->loop);
    rc = start_parts(h);
    if (rc < 0)
        fail_with(h, rc);
}

/* ---- On a loop: telling ---- */

static void tell(struct handler *h, struct muster_rdzv_event event)
{
    event.size = sizeof event;
    event.round = -1;
    h->listener(h->ctx, &event);
}

static void tell_joined(struct handler *h)
{
    struct muster_rdzv_info info;

    h->join_asked = false;
    h->member = true;
    fill_info(&h->place, NULL, &info);
    tell(h, (struct muster_rdzv_event){ .type = MUSTER_RDZV_JOINED, .info = &info });
}

static void tell_left(struct handler *h)
{
    h->leave_asked = h->member = h->join_asked = false;
    if (h->state != OPEN) /* an open store is kept, as a later join finds it */
        close_parts(h);
    tell(h, (struct muster_rdzv_event){ .type = MUSTER_RDZV_LEFT });
}

static void on_news(uv_timer_t *timer)
{
    struct handler *h = timer->data;

    if (h->state == GATHERING && h->seen >= h->place.world_size) {
        (void)uv_timer_stop(&h->deadline);
        mu_server_unwatch(h->server, h->watch);
        h->watch = NULL;
        h->state = OPEN;
    } else if (h->failed != MUSTER_RDZV_REQUEST_UNKNOWN) {
        enum muster_rdzv_request request = h->failed;

        h->failed = MUSTER_RDZV_REQUEST_UNKNOWN;
        tell(h, (struct muster_rdzv_event){ .type = MUSTER_RDZV_FAILED, .request = request, .error = &h->error });
    } else if (h->look_asked) {
        h->look_asked = false;
        tell(h, (struct muster_rdzv_event){ .type = MUSTER_RDZV_LOOKED });
    } else if (h->close_asked) {
        h->close_asked = false;
        tell(h, (struct muster_rdzv_event){ .type = MUSTER_RDZV_CLOSED });
    } else if (h->leave_asked) {
        tell_left(h);
    } else if (h->join_asked && h->state == OPEN) {
        tell_joined(h);
    } else if (h->join_asked && h->state == IDLE && h->parts_closing == 0) {
        open_parts(h);
    }
    check_news(h);
}

/* ---- On a loop: asking ---- */

static void ask_join(struct muster_handler *base)
{
    on_loop(base)->join_asked = true;
    check_news(on_loop(base));
}

static void ask_leave(struct muster_handler *base)
{
    on_loop(base)->leave_asked = true;
    check_news(on_loop(base));
}

static void ask_close(struct muster_handler *base)
{
    on_loop(base)->close_asked = true;
    check_news(on_loop(base));
}

static void ask_look(struct muster_handler *base)
{
    on_loop(base)->look_asked = true;
    check_news(on_loop(base));
}

static bool loop_shares_store(const struct muster_handler *base)
{
    (void)base;
    return true;
}

static void on_timer_closed(uv_handle_t *timer)
{
    part_closed(timer->data);
}

static void free_handler(struct muster_handler *base, void (*done)(void *ctx), void *ctx)
{
    struct handler *h = on_loop(base);

    assert(h->freed == NULL);
    h->freed = done;
    h->freed_ctx = ctx;
    close_parts(h);
    h->parts_closing += 2;
    uv_close((uv_handle_t *)&h->news, on_timer_closed);
    uv_close((uv_handle_t *)&h->deadline, on_timer_closed);
}

static bool loop_endpoint(const struct muster_handler *base, char *ret_host, size_t room, uint16_t *ret_port)
{
    const struct handler *h = (const struct handler *)base;

    (void)snprintf(ret_host, room, "%s", h->place.host);
    *ret_port = h->place.port;
    return h->member;
}

static bool loop_hosts(const struct muster_handler *base)
{
    return ((const struct handler *)base)->server != NULL;
}

static const struct muster_handler_ops handler_ops = {
    .size = sizeof handler_ops,
    .name = "static",
    .join = ask_join,
    .leave = ask_leave,
    .close = ask_close,
    .look = ask_look,
    .use_agent_store = loop_shares_store,
    .free = free_handler,
    .endpoint = loop_endpoint,
    .hosts = loop_hosts,
};

int mu_static_start(uv_loop_t *loop, const struct muster_rdzv_params *params, muster_rdzv_listener *listener, void *ctx,
                    struct muster_handler **ret_handler, struct muster_error *reterr)
{
    struct place place = { .run_id = NULL };
    struct handler *h;
    int rc = read_params(params, &place, reterr);

    if (rc < 0)
        return mu_wrap(reterr, rc, "make a static rendezvous");
    h = calloc(1, sizeof *h);
    if (h == NULL) {
        free(place.run_id);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a static rendezvous");
    }
    h->base.ops = &handler_ops;
    h->place = place;
    h->loop = loop;
    h->listener = listener;
    h->ctx = ctx;
    (void)uv_timer_init(loop, &h->news); /* these only fill in memory */
    (void)uv_timer_init(loop, &h->deadline);
    h->news.data = h->deadline.data = h;
    *ret_handler = &h->base;
    return 0;
}
