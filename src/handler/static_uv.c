/* The static rendezvous: who is which rank is known before; rank 0 serves a store at the endpoint, everybody connects and
 * is counted, and rank 0 waits until all have come. There are no rounds and nothing is ever closed. Blocking, and on a
 * loop; both check their parameters in the same place.
 *
 * On a loop:
 *
 *   IDLE --join--> (rank 0: PLANNING) --> CONNECTING --> ASKING --rank 0 is ours--> CLAIMING --> COUNTING --> GATHERING --all are in--> OPEN
 *                                                           +------rank 0 is PyTorch's----------> COUNTING ---------------------------> OPEN
 *
 * Where rank 0 is ours it knows who is who (roster.h): a node announces itself and takes its rank by compare-and-set before
 * it is counted, so a second node of the same rank is refused and told who has it. Rank 0 tells the others who is in while
 * they wait, and when all are. A node says goodbye before it ends. A connection that ends without a goodbye is a node that
 * was killed: it is told to all, and their membership has failed, for a static group cannot go on without one of its ranks.
 * Before all are in, it is only no longer counted, and another node may take its rank.
 *
 * A rank 0 whose port is taken is DISPUTED: it asks there whether another node has that rank already, to name it, and fails.
 *
 * What was asked for and what has happened is written down and told later, one thing at a time, from on_news(): the listener
 * may ask for the next thing or end the handler. A failure closes client and server and leads back to IDLE; a join that comes
 * meanwhile waits until they are closed. A connection that is lost in OPEN is a failed membership. */
#include "base/log.h"
#include "handler/bind_uv.h"
#include "handler/handler.h"
#include "handler/roster.h"
#include "rdzv/timeout_text.h"
#include "store/client_uv.h"
#include "store/server_uv.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

#define TIMEOUT_S INT64_C(600)
#define TIMEOUT_S_MAX INT64_C(1000000000)

/* PyTorch's count of those who have come; a key of the wire, without the "/" that stands before others. */
static const char count_key[] = "init/";

enum {
    PROGRESS_MS = 200, /* between two that rank 0 tells the others */
    GOODBYE_MS = 1000, /* for the answer to it */
    LINGER_MS = 2000,  /* of rank 0, for the others to hear of a loss */
    DISPUTE_MS = 2000, /* for whatever has rank 0's port to connect, and again to tell who it is */
    KEY_MAX = MU_RDZV_RUN_ID_MAX + 64,
};

struct place { /* settled parameters */
    char host[sizeof((struct muster_store_info *)0)->master_addr];
    uint16_t port;
    int64_t rank, world_size, timeout_ms;
    bool old_dialect; /* the other agents have the habits of PyTorch 1.13 */
    char *run_id;
    char *bind_hosts, *bind_allow; /* where rank 0 listens, and for whom; NULL: not given */
};

static void place_done(struct place *place)
{
    free(place->run_id);
    free(place->bind_hosts);
    free(place->bind_allow);
}

static struct mu_bind place_bind(const struct place *place)
{
    return (struct mu_bind){ .hosts = place->bind_hosts, .allow = place->bind_allow };
}

/* ---- Parameters ---- */

/* Takes what has been read and checks it. The caller owns what is in it, and calls place_done(). */
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

static int take_bind(struct place *place, struct mu_bind bind, struct muster_error *reterr)
{
    place->bind_hosts = bind.hosts == NULL ? NULL : strdup(bind.hosts);
    place->bind_allow = bind.allow == NULL ? NULL : strdup(bind.allow);
    if ((bind.hosts != NULL && place->bind_hosts == NULL) || (bind.allow != NULL && place->bind_allow == NULL))
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a static rendezvous");
    return 0;
}

/* Workers meet at the endpoint: its store is theirs, too. */
static int check_master(const struct muster_rdzv_params *params, const char *host, int port,
                        struct muster_error *reterr)
{
    struct mu_boot_master master;
    int rc = mu_boot_master_from_params(params, &master, reterr);

    if (rc < 0)
        return rc;
    if (master.addr[0] != '\0' && strcmp(master.addr, host) != 0)
        return mu_fail(
            reterr, MUSTER_EINVAL,
            "master_addr is '%.100s' but the endpoint is at '%.100s': workers of a static rendezvous meet at "
            "its endpoint",
            master.addr, host);
    if (master.port != 0 && master.port != port)
        return mu_fail(reterr, MUSTER_EINVAL,
                       "master_port is %u but the endpoint has port %d: workers of a static rendezvous meet at its "
                       "endpoint",
                       (unsigned)master.port, port);
    return 0;
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
    struct mu_bind bind = { 0 };
    struct mu_doc_dialect dialect = { 0 };
    bool shares; /* in a static rendezvous always */
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
    if (rc == 0)
        rc = mu_bind_from_params(params, &bind, reterr);
    if (rc == 0)
        rc = check_master(params, host, port, reterr);
    if (rc == 0)
        rc = mu_rdzv_dialect_from_params(params, &dialect, &shares, reterr);
    if (rc < 0)
        return rc;
    if (timeout_s < 1 || timeout_s > TIMEOUT_S_MAX)
        return mu_fail(reterr, MUSTER_EINVAL, "option 'timeout': %" PRId64 " s is not in 1..%" PRId64, timeout_s,
                       TIMEOUT_S_MAX);
    rc = place_init(ret_place, host, port, rank, muster_rdzv_params_max_nodes(params), timeout_s * 1000,
                    muster_rdzv_params_run_id(params), reterr);
    if (rc < 0)
        return rc;
    ret_place->old_dialect = dialect.habits == MU_HABITS_1_13;
    return take_bind(ret_place, bind, reterr);
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

static void say_where(const struct place *place, const struct mu_bind_plan *plan)
{
    if (plan->reason == MU_BIND_NOT_OWN)
        mu_log(
            MUSTER_LOG_WARNING,
            "static rendezvous: '%s' is not an address of this machine, so its store listens on every address; --bind "
            "ADDR limits that",
            place->host);
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
    const struct mu_bind bind = place_bind(&b->place);
    struct mu_bind_networks networks;
    struct mu_bind_plan plan = { .reason = MU_BIND_OWN };
    const struct muster_store_server_config server = {
        .size = sizeof server, .host = plan.hosts, .allow = mu_bind_networks(&bind, &networks), .allow_own = true
    };
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
        .server = &server,
    };
    int rc;

    if (b->place.rank == 0) {
        mu_bind_ask_blocking(&bind, b->place.host, &plan);
        say_where(&b->place, &plan);
    }
    rc = muster_store_tcp_new(&config, &b->store, reterr);
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
    place_done(&b->place);
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
        place_done(&place);
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
        place_done(&place);
        return mu_wrap(reterr, rc, "make a static rendezvous");
    }
    return 0;
}

/* ---- On a loop ---- */

enum state { IDLE, PLANNING, DISPUTED, CONNECTING, ASKING, CLAIMING, COUNTING, GATHERING, OPEN };

struct hub { /* of rank 0 */
    struct mu_server *server;
    struct mu_server_watch *count_watch, *announce_watch;
    struct mu_roster roster;
    uv_timer_t timer; /* until the next progress */
    uint64_t told;    /* how many were told */
};

struct handler {
    struct mu_handler base;
    struct place place;
    char *name; /* of this node */
    uv_loop_t *loop;
    muster_rdzv_listener *listener;
    void *ctx;
    enum state state;
    bool member;
    uv_timer_t news;       /* fires at once, while there is something to tell or to begin */
    uv_timer_t deadline;   /* while gathering */
    struct mu_bind_uv ask; /* where rank 0 listens */
    struct hub hub;
    struct mu_client *client;
    struct mu_call call, goodbye; /* one at a time, and the last */
    struct muster_slice keys[1];  /* of the call */
    bool calling, claimed;
    char record[MU_ROSTER_RECORD_MAX], announcement[MU_ROSTER_RECORD_MAX + 24], key[KEY_MAX], bye_key[KEY_MAX];
    int64_t opened_ms;
    uint64_t heard; /* how many of rank 0's progresses we have */
    struct mu_roster_progress progress;
    bool has_progress; /* that is still to be told */
    bool all_in;
    bool join_asked, leave_asked, close_asked, look_asked;
    enum muster_rdzv_request failed; /* UNKNOWN: nothing that is still to be told */
    struct muster_error error;       /* with failed */
    struct muster_error taken;       /* in DISPUTED: what is wrong with the port, if no other rank 0 has it */
    bool lost;                       /* a node: rank 0 serves on until it is freed, so that all hear of it */
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
    bool gathered = h->state == GATHERING && h->all_in;

    return h->failed != MUSTER_RDZV_REQUEST_UNKNOWN || h->leave_asked || h->close_asked || h->look_asked || gathered ||
           h->has_progress || (h->join_asked && may_go_on);
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

        place_done(&h->place);
        free(h->name);
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

static void close_hub(struct handler *h)
{
    struct hub *hub = &h->hub;

    if (hub->server == NULL)
        return;
    (void)uv_timer_stop(&hub->timer);
    mu_server_on_gone(hub->server, NULL, NULL);
    if (hub->count_watch != NULL)
        mu_server_unwatch(hub->server, hub->count_watch);
    if (hub->announce_watch != NULL)
        mu_server_unwatch(hub->server, hub->announce_watch);
    hub->count_watch = hub->announce_watch = NULL;
    mu_roster_done(&hub->roster);
    h->parts_closing++;
    mu_server_close(hub->server, on_server_closed, h);
    hub->server = NULL;
}

static void close_parts(struct handler *h)
{
    h->state = IDLE;
    h->claimed = h->lost = h->has_progress = h->all_in = false;
    if (h->ask.busy && !h->ask.cancelled) {
        h->parts_closing++;
        mu_bind_uv_cancel(&h->ask);
    }
    (void)uv_timer_stop(&h->deadline);
    if (h->client != NULL) {
        h->parts_closing++;
        mu_client_close(h->client, on_client_closed, h);
    }
    h->client = NULL;
    close_hub(h);
}

static void set_failed(struct handler *h, int rc)
{
    (void)as_rdzv_error(&h->place, rc, &h->error);
    if (h->join_asked)
        h->failed = MUSTER_RDZV_REQUEST_JOIN;
    else if (h->member)
        h->failed = MUSTER_RDZV_REQUEST_MEMBERSHIP;
    h->join_asked = h->member = false;
}

/* With h->error filled in. Nobody is waiting for it when an open store is lost after we have left. */
static void fail_with(struct handler *h, int rc)
{
    if (h->state == DISPUTED && rc != MUSTER_ERDZV_STATE) {
        h->error = h->taken;
        rc = h->taken.code;
    }
    set_failed(h, rc);
    close_parts(h);
    check_news(h);
}

/* The group has lost a node: `text` says which. */
static int lost_node(struct handler *h, struct mu_slice text)
{
    return mu_fail(&h->error, MUSTER_ERDZV_CONNECTION,
                   "lost %.*s; a static group cannot go on without one of its nodes",
                   (int)(text.len < 400 ? text.len : 400), text.data);
}

/* ---- On a loop: rank 0, who knows of all ---- */

/* A key that only nodes of ours use. */
static struct mu_slice own_key(const struct handler *h, const char *what, int64_t number, char key[static KEY_MAX])
{
    int len = number < 0 ? snprintf(key, KEY_MAX, "muster.%s/static/%s", h->place.run_id, what)
                         : snprintf(key, KEY_MAX, "muster.%s/static/%s/%" PRId64, h->place.run_id, what, number);

    assert(len < KEY_MAX);
    return mu_slice(key, (size_t)len);
}

/* As clients send it: with "/" in front. */
static int hub_write(struct handler *h, const char *what, int64_t number, struct mu_slice expected,
                     struct mu_slice value, struct muster_error *reterr)
{
    char key[KEY_MAX + 1] = "/";
    size_t len = own_key(h, what, number, key + 1).len + 1;

    return mu_server_compare_set(h->hub.server, mu_slice(key, len), expected, value, reterr);
}

static void on_progress_due(uv_timer_t *timer);

static bool is_complete(const struct handler *h)
{
    return mu_roster_present(&h->hub.roster) >= h->place.world_size;
}

/* The first and the last are told at once. */
static void note_progress(struct handler *h)
{
    bool now = h->hub.told == 0 || is_complete(h);

    if (h->state != OPEN && (now || !uv_is_active((uv_handle_t *)&h->hub.timer)))
        (void)uv_timer_start(&h->hub.timer, on_progress_due, now ? 0 : PROGRESS_MS, 0);
}

/* Tells the others, who wait for the next of these, and ourselves. */
static void on_progress_due(uv_timer_t *timer)
{
    struct handler *h = timer->data;
    bool open = h->state == OPEN || (h->state == GATHERING && is_complete(h));
    char text[MU_ROSTER_TEXT_MAX];
    struct muster_error error;
    size_t len;

    mu_roster_progress(&h->hub.roster, open, &h->progress);
    len = mu_roster_write_progress(&h->progress, text);
    if (hub_write(h, "progress", (int64_t)h->hub.told, mu_slice_str(""), mu_slice(text, len), &error) == 0)
        h->hub.told++;
    h->has_progress = true;
    h->all_in = h->all_in || open;
    check_news(h);
}

static void on_count(void *ctx, struct mu_slice value)
{
    struct handler *h = ctx;
    char text[32];
    size_t len = value.len < sizeof text - 1 ? value.len : sizeof text - 1;

    memcpy(text, value.data, len);
    text[len] = '\0';
    mu_roster_counted(&h->hub.roster, mu_server_writer(h->hub.server), strtoll(text, NULL, 10));
    note_progress(h);
}

static void on_announced(void *ctx, struct mu_slice value)
{
    struct handler *h = ctx;

    /* Without memory for it, it is like a node of PyTorch's: counted, and without a name. */
    (void)mu_roster_announced(&h->hub.roster, mu_server_writer(h->hub.server), value);
}

static void end_parts(struct handler *h);

/* While lingering: our own connection is closed already. */
static void on_gone(void *ctx, uint64_t connection)
{
    struct handler *h = ctx;
    struct mu_roster_node *node = mu_roster_take(&h->hub.roster, connection);
    struct muster_error error;
    char text[MU_ROSTER_NAME_MAX + 64];

    if (node == NULL)
        return;
    (void)hub_write(h, "node", node->rank, mu_slice_str(node->record), mu_slice_str(""), &error); /* free for another */
    if (h->state == OPEN && node->counted && !node->left && node->rank != 0 && !h->lost) {
        (void)snprintf(text, sizeof text, "%s (pid %" PRId64 "), rank %" PRId64, node->name, node->pid, node->rank);
        h->lost = true;
        (void)hub_write(h, "lost", -1, mu_slice_str(""), mu_slice_str(text), &error);
        set_failed(h, lost_node(h, mu_slice_str(text)));
        check_news(h);
    }
    free(node);
    if (h->freed == NULL)
        note_progress(h);
    else if (mu_roster_is_empty(&h->hub.roster))
        end_parts(h);
}

/* Agents of PyTorch 1.13 know the endpoint, and wait all the same until rank 0 has put it there. */
static int publish_master(struct handler *h)
{
    const struct {
        const char *name, *value;
    } rows[] = { { MUSTER_KEY_MASTER_ADDR, h->place.host }, { MUSTER_KEY_MASTER_PORT, NULL } };
    char key[KEY_MAX], port[8];
    int rc = 0;

    (void)snprintf(port, sizeof port, "%u", (unsigned)h->place.port);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && rc == 0; i++) {
        (void)snprintf(key, sizeof key, "/%s/%s", h->place.run_id, rows[i].name);
        rc = mu_server_compare_set(h->hub.server, mu_slice_str(key), mu_slice_str(""),
                                   mu_slice_str(rows[i].value != NULL ? rows[i].value : port), &h->error);
    }
    return rc;
}

static int start_hub(struct handler *h, const struct mu_bind_plan *plan)
{
    const struct mu_bind bind = place_bind(&h->place);
    struct mu_bind_networks networks;
    const struct muster_store_server_config config = { .size = sizeof config,
                                                       .host = plan->hosts,
                                                       .port = h->place.port,
                                                       .allow = mu_bind_networks(&bind, &networks),
                                                       .allow_own = true };
    struct hub *hub = &h->hub;
    char key[KEY_MAX + 1] = "/";
    int rc;

    say_where(&h->place, plan);
    rc = mu_server_start_as(h->loop, &config, &hub->server, &h->error);
    if (rc < 0)
        return rc;
    hub->told = 0;
    mu_roster_init(&hub->roster);
    mu_server_on_gone(hub->server, on_gone, h);
    rc = hub_write(h, "host", -1, mu_slice_str(""), mu_slice_str("1"), &h->error);
    if (rc == 0 && h->place.old_dialect)
        rc = publish_master(h);
    if (rc == 0)
        rc = mu_server_watch(hub->server, mu_slice_str(count_key), on_count, h, &hub->count_watch, &h->error);
    if (rc == 0) {
        size_t len = own_key(h, "announce", -1, key + 1).len + 1;

        rc = mu_server_watch(hub->server, mu_slice(key, len), on_announced, h, &hub->announce_watch, &h->error);
    }
    return rc;
}

/* ---- On a loop: getting in ---- */

static uint64_t left_ms(const struct handler *h)
{
    int64_t left = h->opened_ms + h->place.timeout_ms - (int64_t)uv_now(h->loop);

    return left > 0 ? (uint64_t)left : 0;
}

static void on_answer(struct mu_call *call);

static void make_call(struct handler *h, struct mu_call call, uint64_t timeout_ms)
{
    assert(!h->calling);
    h->call = call;
    h->call.done = on_answer;
    h->call.ctx = h;
    h->calling = true;
    mu_client_call(h->client, &h->call, timeout_ms);
}

static struct muster_slice key_of(struct handler *h, const char *what, int64_t number)
{
    struct mu_slice key = own_key(h, what, number, h->key);

    return (struct muster_slice){ key.data, key.len };
}

static int timed_out(struct handler *h)
{
    struct mu_node nodes[MU_ROSTER_SHOWN_MAX];
    struct mu_timeout_text came = { .waited_ms = (uint64_t)h->place.timeout_ms,
                                    .joined = h->progress.joined,
                                    .nodes_min = h->place.world_size,
                                    .nodes_max = h->place.world_size,
                                    .nodes = nodes,
                                    .nodes_count = h->progress.nodes_count };
    char text[MU_TIMEOUT_TEXT_MAX];

    for (size_t i = 0; i < h->progress.nodes_count; i++)
        nodes[i] = (struct mu_node){ .name = mu_slice_str(h->progress.nodes[i].name) };
    if (came.nodes_count >= MU_TIMEOUT_TEXT_NAMES_MAX && came.joined > (int64_t)came.nodes_count)
        came.nodes_count = (size_t)came.joined; /* so many more are counted */
    return mu_fail(&h->error, MUSTER_ETIMEOUT, "%s", mu_timeout_text_write(&came, text));
}

static void on_deadline(uv_timer_t *timer)
{
    struct handler *h = timer->data;

    if (h->hub.server != NULL)
        mu_roster_progress(&h->hub.roster, false, &h->progress);
    fail_with(h, timed_out(h));
}

static void count_ourselves(struct handler *h)
{
    h->state = COUNTING;
    make_call(h, (struct mu_call){ .kind = MU_CALL_ADD, .key = muster_str(count_key), .number = 1, .raw_key = true },
              left_ms(h));
}

/* On the heels of each other: rank 0 has the announcement before the rank is ours. */
static void claim_rank(struct handler *h)
{
    h->state = CLAIMING;
    (void)snprintf(h->announcement, sizeof h->announcement, "%" PRId64 " %s", h->place.rank, h->record);
    make_call(
        h,
        (struct mu_call){ .kind = MU_CALL_SET, .key = key_of(h, "announce", -1), .value = muster_str(h->announcement) },
        left_ms(h));
}

static void take_rank(struct handler *h)
{
    make_call(h,
              (struct mu_call){ .kind = MU_CALL_COMPARE_SET,
                                .key = key_of(h, "node", h->place.rank),
                                .value = muster_str(""),
                                .desired = muster_str(h->record) },
              left_ms(h));
}

static int rank_is_taken(struct handler *h, struct mu_slice holder)
{
    char name[MU_ROSTER_NAME_MAX];
    int64_t pid;

    if (!mu_roster_read_record(holder, &pid, name))
        return mu_fail(&h->error, MUSTER_ERDZV_STATE, "rank %" PRId64 " is taken", h->place.rank);
    return mu_fail(&h->error, MUSTER_ERDZV_STATE,
                   "rank %" PRId64 " is taken by %s (pid %" PRId64 "); every node needs its own --node-rank",
                   h->place.rank, name, pid);
}

static void claimed(struct handler *h, struct mu_slice holder)
{
    if (!mu_slice_equal(holder, mu_slice_str(h->record))) {
        fail_with(h, rank_is_taken(h, holder));
        return;
    }
    h->claimed = true;
    count_ourselves(h);
}

static void hear_progress(struct handler *h)
{
    make_call(h, (struct mu_call){ .kind = MU_CALL_GET, .key = key_of(h, "progress", (int64_t)h->heard) }, left_ms(h));
}

static void hear_of_losses(struct handler *h)
{
    make_call(h, (struct mu_call){ .kind = MU_CALL_GET, .key = key_of(h, "lost", -1) }, (uint64_t)TIMEOUT_S_MAX * 1000);
}

static void be_open(struct handler *h)
{
    h->state = OPEN;
    (void)uv_timer_stop(&h->deadline);
    if (h->claimed)
        hear_of_losses(h);
    check_news(h);
}

static void counted(struct handler *h)
{
    if (h->hub.server == NULL && !h->claimed) { /* PyTorch's rank 0 tells nobody when all are in */
        be_open(h);
        return;
    }
    h->state = GATHERING;
    (void)uv_timer_start(&h->deadline, on_deadline, left_ms(h), 0);
    if (h->hub.server != NULL)
        note_progress(h);
    else
        hear_progress(h);
}

static void on_progress(struct handler *h, struct mu_slice text)
{
    struct mu_roster_progress progress;

    h->heard++;
    if (mu_roster_read_progress(text, &progress)) {
        h->progress = progress;
        for (size_t i = 0; i < progress.nodes_count; i++)
            h->progress.nodes[i].name = h->progress.names[i];
        h->has_progress = true;
        h->all_in = progress.open;
    }
    if (!h->all_in)
        hear_progress(h);
    check_news(h);
}

static void take_answer(struct handler *h, const struct mu_call *call)
{
    struct mu_slice bytes = mu_slice(call->bytes.data, call->bytes.len);

    switch (h->state) {
    case DISPUTED:
        fail_with(h, bytes.len > 0 ? rank_is_taken(h, bytes) : h->taken.code);
        break;
    case ASKING:
        if (call->result == 1)
            claim_rank(h);
        else
            count_ourselves(h);
        break;
    case CLAIMING:
        if (call->kind == MU_CALL_SET)
            take_rank(h);
        else
            claimed(h, bytes);
        break;
    case COUNTING:
        counted(h);
        break;
    case GATHERING:
        on_progress(h, bytes);
        break;
    case OPEN:
        if (h->hub.server == NULL) /* rank 0 knows, and serves on */
            fail_with(h, lost_node(h, bytes));
        break;
    case IDLE:
    case PLANNING:
    case CONNECTING:
        assert(false);
        break;
    }
}

static void on_answer(struct mu_call *call)
{
    struct handler *h = call->ctx;
    struct mu_call answer = *call; /* the next one may take its place */

    h->calling = false;
    if (h->client != NULL && h->freed == NULL) {
        if (answer.rc == 0) {
            take_answer(h, &answer);
        } else if (answer.rc == MUSTER_ETIMEOUT && h->state == GATHERING) {
            fail_with(h, timed_out(h));
        } else {
            h->error = answer.error;
            fail_with(h, answer.rc);
        }
    }
    muster_bytes_done(&answer.bytes);
}

static void on_ready(struct mu_client *client, const struct muster_error *error, void *ctx)
{
    struct handler *h = ctx;

    (void)client;
    if (error != NULL) {
        h->error = *error;
        fail_with(h, error->code);
        return;
    }
    if (h->state == DISPUTED) {
        make_call(h, (struct mu_call){ .kind = MU_CALL_GET, .key = key_of(h, "node", 0) }, DISPUTE_MS);
        return;
    }
    h->state = ASKING;
    if (h->progress.joined < 0) {
        h->progress.joined = 0;
        h->has_progress = true;
        check_news(h);
    }
    h->keys[0] = key_of(h, "host", -1);
    make_call(h, (struct mu_call){ .kind = MU_CALL_CHECK, .keys = h->keys, .count = 1 }, left_ms(h));
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

static int start_client(struct handler *h, uint64_t seed)
{
    const struct mu_client_config config = {
        .host = h->place.host,
        .port = h->place.port,
        .connect_timeout_ms = h->state == DISPUTED ? DISPUTE_MS : (uint64_t)h->place.timeout_ms,
        .seed = seed,
    };

    return mu_client_start(h->loop, &config, on_ready, on_lost, h, &h->client, &h->error);
}

/* `plan`: where to listen; NULL: this is not rank 0. */
static void start_parts(struct handler *h, const struct mu_bind_plan *plan)
{
    uint64_t seed;
    int rc = 0;

    h->state = CONNECTING;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        rc = mu_fail_errno(&h->error, errno, "get random bytes");
    if (rc == 0)
        mu_roster_record(seed, getpid(), h->name, h->record);
    if (rc == 0 && plan != NULL)
        rc = start_hub(h, plan);
    if (rc == MUSTER_EADDRINUSE) {
        h->taken = h->error;
        h->state = DISPUTED;
        rc = 0;
    }
    if (rc == 0)
        rc = start_client(h, seed);
    if (rc < 0)
        fail_with(h, rc);
}

static void on_planned(void *ctx, const struct mu_bind_plan *plan)
{
    struct handler *h = ctx;

    if (plan == NULL) {
        part_closed(h);
        return;
    }
    assert(h->state == PLANNING);
    start_parts(h, plan);
}

static void open_parts(struct handler *h)
{
    const struct mu_bind bind = place_bind(&h->place);
    struct mu_bind_plan plan;

    h->heard = 0;
    h->progress = (struct mu_roster_progress){ .joined = h->place.rank == 0 ? 0 : -1 }; /* till rank 0 answers */
    h->has_progress = true;
    h->opened_ms = (int64_t)uv_now(h->loop);
    h->state = PLANNING;
    if (h->place.rank != 0)
        start_parts(h, NULL);
    else if (mu_bind_uv_ask(&h->ask, h->loop, &bind, h->place.host, &plan, on_planned, h))
        start_parts(h, &plan);
}

/* ---- On a loop: telling ---- */

static void tell(struct handler *h, struct muster_rdzv_event event)
{
    event.size = sizeof event;
    event.round = -1;
    h->listener(h->ctx, &event);
}

static void tell_progress(struct handler *h)
{
    const struct muster_rdzv_progress progress = { .joined = h->progress.joined,
                                                   .min_nodes = h->place.world_size,
                                                   .max_nodes = h->place.world_size,
                                                   .last_call_left_ms = -1,
                                                   .join_left_ms = (int64_t)left_ms(h) };

    h->has_progress = false;
    tell(h, (struct muster_rdzv_event){ .type = MUSTER_RDZV_PROGRESS,
                                        .progress = &progress,
                                        .nodes = h->progress.nodes,
                                        .nodes_count = h->progress.nodes_count });
}

static void tell_joined(struct handler *h)
{
    struct muster_rdzv_info info;

    h->join_asked = false;
    h->member = true;
    fill_info(&h->place, NULL, &info);
    tell(h,
         (struct muster_rdzv_event){ .type = MUSTER_RDZV_JOINED, .info = &info, .old_dialect = h->place.old_dialect });
}

static void tell_left(struct handler *h)
{
    h->leave_asked = h->member = h->join_asked = false;
    if (h->state != OPEN) /* an open store is kept, as a later join finds it */
        close_parts(h);
    tell(h, (struct muster_rdzv_event){ .type = MUSTER_RDZV_LEFT });
}

static void tell_failed(struct handler *h)
{
    enum muster_rdzv_request request = h->failed;

    h->failed = MUSTER_RDZV_REQUEST_UNKNOWN;
    tell(h, (struct muster_rdzv_event){ .type = MUSTER_RDZV_FAILED, .request = request, .error = &h->error });
}

static void on_news(uv_timer_t *timer)
{
    struct handler *h = timer->data;

    if (h->has_progress && h->join_asked && h->state != IDLE && h->state != OPEN) {
        tell_progress(h);
    } else if (h->has_progress) {
        h->has_progress = false;
    } else if (h->state == GATHERING && h->all_in) {
        be_open(h);
    } else if (h->failed != MUSTER_RDZV_REQUEST_UNKNOWN) {
        tell_failed(h);
    } else if (h->look_asked) {
        h->look_asked = false;
        tell(h, (struct muster_rdzv_event){ .type = MUSTER_RDZV_LOOKED });
    } else if (h->close_asked) {
        h->close_asked = false;
        tell(h, (struct muster_rdzv_event){ .type = MUSTER_RDZV_CLOSED });
    } else if (h->leave_asked) {
        tell_left(h);
    } else if (h->join_asked && h->state == OPEN && h->lost) {
        close_parts(h); /* begins anew */
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

static void end_parts(struct handler *h)
{
    close_parts(h);
    uv_close((uv_handle_t *)&h->news, on_timer_closed);
    uv_close((uv_handle_t *)&h->deadline, on_timer_closed);
    uv_close((uv_handle_t *)&h->hub.timer, on_timer_closed);
}

static void on_lingered(uv_timer_t *timer)
{
    end_parts(timer->data);
}

/* The others have been woken, and ask now what is lost. They go when they know. */
static void linger(struct handler *h)
{
    if (h->client != NULL) {
        h->parts_closing++;
        mu_client_close(h->client, on_client_closed, h);
    }
    h->client = NULL;
    (void)uv_timer_start(&h->hub.timer, on_lingered, LINGER_MS, 0);
}

static void on_goodbye(struct mu_call *call)
{
    end_parts(call->ctx);
}

/* Rank 0 shall not take us for killed. */
static void say_goodbye(struct handler *h)
{
    struct mu_slice key = own_key(h, "announce", -1, h->bye_key);

    h->goodbye = (struct mu_call){
        .kind = MU_CALL_SET, .key = { key.data, key.len }, .value = muster_str("left"), .done = on_goodbye, .ctx = h
    };
    if (h->calling)
        mu_client_expire(h->client, &h->call);
    mu_client_call(h->client, &h->goodbye, GOODBYE_MS);
}

static void free_handler(struct muster_handler *base, void (*done)(void *ctx), void *ctx)
{
    struct handler *h = on_loop(base);

    assert(h->freed == NULL);
    h->freed = done;
    h->freed_ctx = ctx;
    h->parts_closing += 3; /* the timers */
    (void)uv_timer_stop(&h->news);
    (void)uv_timer_stop(&h->deadline);
    if (h->claimed && h->state == OPEN && h->hub.server == NULL)
        say_goodbye(h);
    else if (h->lost)
        linger(h);
    else
        end_parts(h);
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
    return ((const struct handler *)base)->hub.server != NULL;
}

static void loop_when_alone(struct muster_handler *base, void (*alone)(void *ctx), void *ctx)
{
    struct mu_server *server = on_loop(base)->hub.server;

    if (server != NULL)
        mu_server_when_alone(server, alone, ctx);
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
    .when_alone = loop_when_alone,
};

static const struct mu_handler_ops agent_ops = { .open_kv = NULL };

/* Takes the place, also on failure. */
static int start_at(uv_loop_t *loop, struct place *place, const char *local_addr, muster_rdzv_listener *listener,
                    void *ctx, struct muster_handler **ret_handler, struct muster_error *reterr)
{
    char hostname[MU_HANDLER_NAME_MAX];
    struct handler *h = calloc(1, sizeof *h);

    if (h != NULL)
        h->name = strdup(mu_handler_node_name(local_addr, hostname));
    if (h == NULL || h->name == NULL) {
        free(h);
        place_done(place);
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a static rendezvous");
    }
    h->base = (struct mu_handler){ { &handler_ops }, &agent_ops };
    h->place = *place;
    h->loop = loop;
    h->listener = listener;
    h->ctx = ctx;
    (void)uv_timer_init(loop, &h->news); /* these only fill in memory */
    (void)uv_timer_init(loop, &h->deadline);
    (void)uv_timer_init(loop, &h->hub.timer);
    h->news.data = h->deadline.data = h->hub.timer.data = h;
    *ret_handler = &h->base.base;
    return 0;
}

int mu_static_start(uv_loop_t *loop, const struct muster_rdzv_params *params, muster_rdzv_listener *listener, void *ctx,
                    struct muster_handler **ret_handler, struct muster_error *reterr)
{
    struct place place = { .run_id = NULL };
    int rc = read_params(params, &place, reterr);

    if (rc < 0) {
        place_done(&place);
        return mu_wrap(reterr, rc, "make a static rendezvous");
    }
    return start_at(loop, &place, muster_rdzv_params_local_addr(params), listener, ctx, ret_handler, reterr);
}

bool mu_rdzv_is_static(const struct muster_rdzv *rdzv)
{
    return rdzv->ops == &blocking_ops;
}

int mu_rdzv_static_start_twin(uv_loop_t *loop, struct muster_rdzv *rdzv, muster_rdzv_listener *listener, void *ctx,
                              struct muster_handler **ret_handler, struct muster_error *reterr)
{
    struct blocking *b = blocking(rdzv);
    struct place place = b->place;
    bool in;
    int rc;

    (void)pthread_mutex_lock(&b->lock);
    in = b->view != NULL;
    (void)pthread_mutex_unlock(&b->lock);
    if (in)
        return mu_fail(reterr, MUSTER_EINVAL,
                       "the rendezvous handler 'static' has joined already; an agent needs one that has not");
    place.bind_hosts = place.bind_allow = NULL;
    place.run_id = strdup(b->place.run_id);
    rc = place.run_id == NULL ? mu_fail(reterr, MUSTER_ENOMEM, "no memory for a static rendezvous")
                              : take_bind(&place, place_bind(&b->place), reterr);
    if (rc < 0) {
        place_done(&place);
        return rc;
    }
    return start_at(loop, &place, NULL, listener, ctx, ret_handler, reterr);
}
