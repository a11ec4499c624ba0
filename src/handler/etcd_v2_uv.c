/* PyTorch's etcd-v2 rendezvous: a dynamic rendezvous whose document is in etcd.
 *
 *   STARTING --> CONNECTING --> RUNNING: everything goes to the handler within
 *       ^            v no etcd there, or one that does not let us
 *       +--next ask-- FAILED
 *
 * Happy path: the document is read once, so that whoever cannot reach etcd learns so in read_timeout and not in join_timeout.
 * What is asked meanwhile waits. Failures are told as the failure of what was asked; once it runs, an etcd that is away is the
 * dynamic rendezvous' to bear. */
#include "kv/etcd_v2_uv.h"

#include "events/record.h"
#include "handler/handler.h"
#include "kv/endpoints.h"
#include "kv/etcd_store_uv.h"

#include <assert.h>
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

enum {
    READ_TIMEOUT_S = 60,
    READ_TIMEOUT_MAX_S = 100000000,
    PROTOCOL_MAX = 16,
};

enum state { STARTING, CONNECTING, RUNNING, FAILED };

enum ask { ASK_JOIN, ASK_CLOSE, ASK_LOOK, ASKS_COUNT };

struct etcd_v2 {
    struct muster_handler handler;
    uv_loop_t *loop;
    muster_rdzv_listener *listener;
    void *ctx;
    /* By the parameters. */
    struct mu_http_config http; /* its texts are ours */
    char *endpoints, *ca_file, *cert_file, *key_file;
    char protocol[PROTOCOL_MAX];
    bool use_agent_store;
    struct mu_doc_dialect dialect;
    char *run_id, *local_addr;
    uint64_t read_timeout_ms;
    struct mu_rdzv_settings settings;
    int64_t local_id;
    /* Starting up. */
    uv_timer_t timer; /* for the next step */
    uv_timer_t news;  /* for LEFT */
    enum state state;
    enum ask asks[ASKS_COUNT]; /* in the order they came; each at most once */
    size_t asks_count;
    struct mu_kv *kv; /* until the handler within owns it */
    struct mu_kv_request first;
    bool reading;
    struct muster_handler *inner;
    /* The end. */
    size_t handles; /* that are still to be given back by the loop */
    void (*on_freed)(void *ctx);
    void *freed_ctx;
    bool freeing;
};

/* ---- Ending ---- */

static void free_texts(struct etcd_v2 *e)
{
    free(e->endpoints);
    free(e->ca_file);
    free(e->cert_file);
    free(e->key_file);
    free(e->run_id);
    free(e->local_addr);
}

static void one_less(struct etcd_v2 *e)
{
    void (*done)(void *ctx) = e->on_freed;
    void *ctx = e->freed_ctx;

    e->handles--;
    if (!e->freeing || e->handles > 0)
        return;
    free_texts(e);
    free(e);
    done(ctx);
}

static void on_kv_closed(struct mu_kv *kv, void *ctx)
{
    (void)kv;
    one_less(ctx);
}

static void on_timer_closed(uv_handle_t *handle)
{
    one_less(handle->data);
}

static void on_inner_freed(void *ctx)
{
    one_less(ctx);
}

static void close_kv(struct etcd_v2 *e)
{
    struct mu_kv *kv = e->kv;

    e->kv = NULL;
    if (kv == NULL)
        return;
    e->handles++;
    kv->ops->close(kv, on_kv_closed, e);
}

/* ---- Telling ---- */

static void tell(struct etcd_v2 *e, enum muster_rdzv_event_type type, const struct muster_error *error)
{
    const struct muster_rdzv_event event = { .size = sizeof event, .type = type, .round = -1, .error = error };

    if (!e->freeing)
        e->listener(e->ctx, &event);
}

static void tell_failed(struct etcd_v2 *e, enum ask ask, const struct muster_error *error)
{
    static const char *const texts[] = { [ASK_JOIN] = "join", [ASK_CLOSE] = "close", [ASK_LOOK] = "look at" };
    struct muster_error told = *error;

    (void)mu_wrap(&told, told.code, "%s rendezvous '%s'", texts[ask], e->run_id);
    tell(e, ask == ASK_LOOK ? MUSTER_RDZV_LOOKED : MUSTER_RDZV_FAILED, &told);
}

/* There is no etcd for what was asked so far. The next ask begins anew. */
static void fail_all(struct etcd_v2 *e, int code, struct muster_error *error)
{
    char hostname[256] = "localhost";
    enum ask asks[ASKS_COUNT];
    size_t count = e->asks_count;

    (void)gethostname(hostname, sizeof hostname - 1);
    error->code = code;
    close_kv(e);
    e->state = FAILED;
    mu_event_record((struct muster_event_record){ .name = "create",
                                                  .run_id = e->run_id,
                                                  .hostname = e->local_addr != NULL ? e->local_addr : hostname,
                                                  .pid = getpid(),
                                                  .local_id = e->local_id,
                                                  .rank = -1,
                                                  .node_state = MUSTER_NODE_FAILED,
                                                  .error = error->text },
                    "%s", error->text);
    memcpy(asks, e->asks, sizeof asks);
    e->asks_count = 0; /* what is asked from within is of the next try */
    for (size_t i = 0; i < count; i++)
        tell_failed(e, asks[i], error);
}

static void on_news(uv_timer_t *timer)
{
    tell(timer->data, MUSTER_RDZV_LEFT, NULL);
}

/* ---- Connecting ---- */

static void pass_on(struct etcd_v2 *e, enum ask ask)
{
    switch (ask) {
    case ASK_JOIN:
        e->inner->ops->join(e->inner);
        break;
    case ASK_CLOSE:
        e->inner->ops->close(e->inner);
        break;
    case ASK_LOOK:
        e->inner->ops->look(e->inner);
        break;
    case ASKS_COUNT:
        break;
    }
}

static void run(struct etcd_v2 *e)
{
    struct mu_dynamic_config config = {
        .backend = "etcd-v2",
        .run_id = e->run_id,
        .local_addr = e->local_addr,
        .settings = e->settings,
        .dialect = e->dialect,
        .local_id = e->local_id,
        .use_agent_store = e->use_agent_store,
        .request_timeout_ms = e->read_timeout_ms,
    };
    struct muster_error error;
    struct mu_kv *kv = e->kv;
    int rc;

    e->kv = NULL;
    rc = mu_dynamic_start(e->loop, &config, kv, e->listener, e->ctx, &e->inner, &error);
    if (rc < 0) {
        fail_all(e, rc, &error);
        return;
    }
    e->state = RUNNING;
    for (size_t i = 0; i < e->asks_count; i++)
        pass_on(e, e->asks[i]);
    e->asks_count = 0;
}

static void on_first_read(struct mu_kv_request *request)
{
    struct etcd_v2 *e = request->ctx;

    e->reading = false;
    muster_bytes_done(&request->bytes);
    muster_bytes_done(&request->state_token);
    if (e->freeing)
        return;
    if (request->rc == 0 || request->rc == MUSTER_ERDZV_STATE) /* which is not the connection's fault */
        run(e);
    else
        fail_all(e, MUSTER_ERDZV_CONNECTION, &request->error);
}

static void on_timer(uv_timer_t *timer)
{
    struct etcd_v2 *e = timer->data;
    const struct mu_kv_etcd_v2_config config = { .http = &e->http, .run_id = e->run_id };
    struct muster_error error;
    int rc;

    assert(e->state == STARTING && e->kv == NULL && !e->reading);
    e->state = CONNECTING;
    rc = mu_kv_etcd_v2_start(e->loop, &config, &e->kv, &error);
    if (rc < 0) {
        fail_all(e, rc, &error);
        return;
    }
    e->reading = true;
    e->first = (struct mu_kv_request){ .kind = MU_KV_READ,
                                       .timeout_ms = e->read_timeout_ms < e->settings.join_ms ? e->read_timeout_ms
                                                                                              : e->settings.join_ms,
                                       .done = on_first_read,
                                       .ctx = e };
    e->kv->ops->submit(e->kv, &e->first);
}

/* ---- What is asked ---- */

static void put_ask(struct etcd_v2 *e, enum ask ask)
{
    if (e->state == RUNNING) {
        pass_on(e, ask);
        return;
    }
    for (size_t i = 0; i < e->asks_count; i++) {
        if (e->asks[i] == ask)
            return;
    }
    e->asks[e->asks_count++] = ask;
    if (e->state == FAILED) {
        e->state = STARTING;
        (void)uv_timer_start(&e->timer, on_timer, 0, 0);
    }
}

static void etcd_v2_join(struct muster_handler *handler)
{
    put_ask((struct etcd_v2 *)handler, ASK_JOIN);
}

static void etcd_v2_close(struct muster_handler *handler)
{
    put_ask((struct etcd_v2 *)handler, ASK_CLOSE);
}

static void etcd_v2_look(struct muster_handler *handler)
{
    put_ask((struct etcd_v2 *)handler, ASK_LOOK);
}

/* Whoever is not in the document yet has left as soon as it no longer wants to join. */
static void etcd_v2_leave(struct muster_handler *handler)
{
    struct etcd_v2 *e = (struct etcd_v2 *)handler;
    size_t kept = 0;

    if (e->state == RUNNING) {
        e->inner->ops->leave(e->inner);
        return;
    }
    for (size_t i = 0; i < e->asks_count; i++) {
        if (e->asks[i] != ASK_JOIN)
            e->asks[kept++] = e->asks[i];
    }
    e->asks_count = kept;
    (void)uv_timer_start(&e->news, on_news, 0, 0);
}

static bool etcd_v2_use_agent_store(const struct muster_handler *handler)
{
    return ((const struct etcd_v2 *)handler)->use_agent_store;
}

static void etcd_v2_free(struct muster_handler *handler, void (*done)(void *ctx), void *ctx)
{
    struct etcd_v2 *e = (struct etcd_v2 *)handler;

    assert(!e->freeing);
    e->freeing = true;
    e->on_freed = done;
    e->freed_ctx = ctx;
    e->handles += 2;
    uv_close((uv_handle_t *)&e->timer, on_timer_closed);
    uv_close((uv_handle_t *)&e->news, on_timer_closed);
    close_kv(e);
    if (e->inner != NULL) {
        e->handles++;
        e->inner->ops->free(e->inner, on_inner_freed, e);
    }
}

const struct muster_handler_ops mu_etcd_v2_handler_ops = {
    .size = sizeof mu_etcd_v2_handler_ops,
    .name = "etcd-v2",
    .join = etcd_v2_join,
    .leave = etcd_v2_leave,
    .close = etcd_v2_close,
    .look = etcd_v2_look,
    .use_agent_store = etcd_v2_use_agent_store,
    .free = etcd_v2_free,
};

int mu_etcd_v2_open_kv(struct muster_handler *handler, struct mu_kv **ret_kv, struct muster_error *reterr)
{
    struct etcd_v2 *e = (struct etcd_v2 *)handler;
    const struct mu_kv_etcd_store_config config = { .http = &e->http,
                                                    .dir = MU_KV_ETCD_V2_STORE,
                                                    .seed = e->http.seed + 2 };

    return mu_kv_etcd_store_start(e->loop, &config, ret_kv, reterr);
}

/* ---- Parameters ---- */

static int copy(const char *text, char **ret_own, struct muster_error *reterr)
{
    *ret_own = text == NULL ? NULL : strdup(text);
    if (text != NULL && *ret_own == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a rendezvous");
    return 0;
}

/* NULL if there is no such option, or an empty one. */
static int read_text(const struct muster_rdzv_params *params, const char *name, char **ret_own,
                     struct muster_error *reterr)
{
    struct muster_value value;

    if (!muster_rdzv_params_get(params, name, &value))
        return 0;
    if (value.kind != MUSTER_VALUE_TEXT)
        return mu_fail(reterr, MUSTER_EINVAL, "option '%s' is not text", name);
    return copy(value.text[0] == '\0' ? NULL : value.text, ret_own, reterr);
}

/* Trimmed, and in lower case. */
static int read_protocol(struct etcd_v2 *e, const struct muster_rdzv_params *params, struct muster_error *reterr)
{
    char *text = NULL;
    size_t len = 0;
    int rc = read_text(params, "protocol", &text, reterr);

    if (rc < 0)
        return rc;
    (void)snprintf(e->protocol, sizeof e->protocol, "http");
    if (text != NULL) {
        const char *start = text + strspn(text, " \t\r\n");

        while (start[len] != '\0' && !isspace((unsigned char)start[len]) && len < sizeof e->protocol - 1) {
            e->protocol[len] = (char)tolower((unsigned char)start[len]);
            len++;
        }
        e->protocol[len] = '\0';
        if (start[len + strspn(start + len, " \t\r\n")] != '\0' ||
            (strcmp(e->protocol, "http") != 0 && strcmp(e->protocol, "https") != 0))
            rc = mu_fail(reterr, MUSTER_EINVAL, "option 'protocol': '%.40s' is neither http nor https", text);
    }
    free(text);
    e->http.protocol = e->protocol;
    return rc;
}

static int read_timeout(struct etcd_v2 *e, const struct muster_rdzv_params *params, struct muster_error *reterr)
{
    int64_t seconds;
    int rc = muster_rdzv_params_get_as_int(params, "read_timeout", READ_TIMEOUT_S, &seconds, reterr);

    if (rc < 0)
        return rc;
    if (seconds <= 0 || seconds > READ_TIMEOUT_MAX_S)
        return mu_fail(reterr, MUSTER_EINVAL, "option 'read_timeout': %" PRId64 " s is not in 1..%d", seconds,
                       READ_TIMEOUT_MAX_S);
    e->read_timeout_ms = (uint64_t)seconds * 1000;
    return 0;
}

static int read_endpoints(struct etcd_v2 *e, const struct muster_rdzv_params *params, struct muster_error *reterr)
{
    const char *endpoint = muster_rdzv_params_endpoint(params);
    struct mu_endpoints endpoints;
    int rc = copy(endpoint[strspn(endpoint, " \t")] == '\0' ? "localhost" : endpoint, &e->endpoints, reterr);

    if (rc == 0) /* to say it now, and not when it is used */
        rc = mu_endpoints_parse(e->endpoints, e->protocol, MU_HTTP_ETCD_PORT, &endpoints, reterr);
    e->http.endpoints = e->endpoints;
    return rc;
}

static int read_files(struct etcd_v2 *e, const struct muster_rdzv_params *params, struct muster_error *reterr)
{
    int rc = read_text(params, "ca_cert", &e->ca_file, reterr);

    if (rc == 0)
        rc = read_text(params, "ssl_cert", &e->cert_file, reterr);
    if (rc == 0)
        rc = read_text(params, "ssl_cert_key", &e->key_file, reterr);
    if (rc == 0 && e->key_file != NULL && e->cert_file == NULL)
        rc = mu_fail(reterr, MUSTER_EINVAL, "option 'ssl_cert_key' needs 'ssl_cert'");
    e->http.ca_file = e->ca_file;
    e->http.cert_file = e->cert_file;
    e->http.key_file = e->key_file;
    return rc;
}

static int read_params(struct etcd_v2 *e, const struct muster_rdzv_params *params, struct muster_error *reterr)
{
    int rc = read_protocol(e, params, reterr);

    if (rc == 0)
        rc = read_endpoints(e, params, reterr);
    if (rc == 0)
        rc = read_files(e, params, reterr);
    if (rc == 0)
        rc = read_timeout(e, params, reterr);
    if (rc == 0)
        rc = mu_rdzv_dialect_from_params(params, &e->dialect, reterr);
    if (rc == 0)
        rc = muster_rdzv_params_get_as_bool(params, "use_agent_store", true, &e->use_agent_store, reterr);
    if (rc == 0)
        rc = mu_rdzv_settings_from_params(params, &e->settings, reterr);
    if (rc == 0)
        rc = copy(muster_rdzv_params_run_id(params), &e->run_id, reterr);
    return rc == 0 ? copy(muster_rdzv_params_local_addr(params), &e->local_addr, reterr) : rc;
}

static int draw(struct etcd_v2 *e, struct muster_error *reterr)
{
    uint64_t random[2];

    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return mu_fail(reterr, MUSTER_ESYSTEM, "no random numbers");
    e->local_id = mu_node_local_id(MU_NODE_VERSION, (uint32_t)random[0]);
    e->http.seed = random[1];
    return 0;
}

int mu_etcd_v2_start(struct uv_loop_s *loop, const struct muster_rdzv_params *params, muster_rdzv_listener *listener,
                     void *ctx, struct muster_handler **ret_handler, struct muster_error *reterr)
{
    struct etcd_v2 *e = calloc(1, sizeof *e);
    int rc;

    if (e == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a rendezvous");
    rc = read_params(e, params, reterr);
    if (rc == 0)
        rc = mu_dynamic_check_name(e->local_addr, reterr);
    if (rc == 0)
        rc = draw(e, reterr);
    if (rc < 0) {
        free_texts(e);
        free(e);
        return mu_wrap(reterr, rc, "rendezvous etcd-v2");
    }
    e->handler.ops = &mu_etcd_v2_handler_ops;
    e->loop = loop;
    e->listener = listener;
    e->ctx = ctx;
    (void)uv_timer_init(loop, &e->timer); /* these only fill in memory */
    (void)uv_timer_init(loop, &e->news);
    e->timer.data = e->news.data = e;
    (void)uv_timer_start(&e->timer, on_timer, 0, 0); /* nothing is told before we have returned */
    *ret_handler = &e->handler;
    return 0;
}

/* ---- For callers that block ---- */

int mu_rdzv_etcd_v2_create(void *ctx, const struct muster_rdzv_params *params, struct muster_rdzv **ret_rdzv,
                           struct muster_error *reterr)
{
    struct etcd_v2 e = { .loop = NULL }; /* for its parameters alone */
    struct muster_etcd_config config = { .size = sizeof config };
    struct muster_store *store = NULL;
    int rc = read_params(&e, params, reterr);

    (void)ctx;
    config.endpoints = e.endpoints;
    config.protocol = e.protocol;
    config.cacert = e.ca_file;
    config.cert = e.cert_file;
    config.key = e.key_file;
    if (rc == 0)
        rc = muster_store_etcd_new(&config, MU_KV_ETCD_V2_STORE, 0, &store, reterr);
    free_texts(&e);
    if (rc < 0)
        return mu_wrap(reterr, rc, "rendezvous etcd-v2");
    return mu_rdzv_face_new_with(mu_etcd_v2_start, params, store, ret_rdzv, reterr);
}
