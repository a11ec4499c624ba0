/* The c10d rendezvous: who hosts its store, who joins it, and what is said when there is none. Nodes are handlers on
 * one loop; nothing leaves the machine. */
#include "failmalloc.h"
#include "fake_store.h"
#include "handler/handler.h"
#include "kv/kv.h"
#include "store/client_uv.h"
#include "store/listen.h"
#include "store/server_uv.h"
#include "wire.h"

#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

/* Looked up, but refused by the resolver's own rules before anybody is asked. */
#define UNKNOWN_NAME "a234567890123456789012345678901234567890123456789012345678901234.invalid"

enum { NODES = 3, ALARM_MS = 40000 };

struct node {
    uv_loop_t *loop;
    struct muster_handler *handler;
    unsigned told[MUSTER_RDZV_PROGRESS + 1];
    int64_t rank, world_size;
    uint16_t workers_port;
    struct muster_error error;
    bool inside, free_when_told;
    unsigned freed;
    struct node *kills; /* when it is told that it is a spare */
};

struct scene {
    uv_loop_t loop;
    uv_timer_t alarm; /* ends a test that hangs */
    struct node nodes[NODES];
    struct mu_server *server;
    unsigned servers_closed;
};

/* What was logged: the port of the last store that was hosted, whether somebody was warned, who uses the engine. */
static unsigned logged_port, logged_hostings, logged_warnings, logged_engines, logged_documents;

static void on_log(void *ctx, enum muster_log_level level, const char *line)
{
    const char *port = strstr(line, "hosting its store on port ");

    (void)ctx;
    if (port != NULL) {
        logged_port = (unsigned)strtoul(port + strlen("hosting its store on port "), NULL, 10);
        logged_hostings++;
    }
    if (level == MUSTER_LOG_WARNING && strstr(line, "only nodes on this host") != NULL)
        logged_warnings++;
    logged_engines += strstr(line, "using muster's engine at ") != NULL;
    logged_documents += strstr(line, "meeting in a document") != NULL;
}

static void on_alarm(uv_timer_t *timer)
{
    (void)timer;
    fail_msg("the test hangs");
}

static void begin(struct scene *s)
{
    memset(s, 0, sizeof *s);
    (void)signal(SIGPIPE, SIG_IGN);
    logged_port = logged_hostings = logged_warnings = logged_engines = logged_documents = 0;
    muster_log_set_sink(on_log, NULL);
    assert_int_equal(uv_loop_init(&s->loop), 0);
    assert_int_equal(uv_timer_init(&s->loop, &s->alarm), 0);
    assert_int_equal(uv_timer_start(&s->alarm, on_alarm, ALARM_MS, 0), 0);
}

/* Each callback that may be waited for stops the loop, which would sleep otherwise. */
#define RUN_UNTIL(s, condition)                                                                                        \
    do {                                                                                                               \
        while (!(condition))                                                                                           \
            (void)uv_run(&(s)->loop, UV_RUN_ONCE);                                                                     \
    } while (0)

static void on_freed(void *ctx)
{
    struct node *node = ctx;

    assert_false(node->inside);
    node->freed++;
    uv_stop(node->loop);
}

static void free_node(struct node *node)
{
    struct muster_handler *handler = node->handler;

    if (handler == NULL)
        return;
    node->handler = NULL;
    node->inside = true;
    handler->ops->free(handler, on_freed, node);
    node->inside = false;
}

static void on_server_closed(struct mu_server *server, void *ctx)
{
    struct scene *s = ctx;

    (void)server;
    s->servers_closed++;
}

static void end(struct scene *s)
{
    for (size_t i = 0; i < NODES; i++)
        free_node(&s->nodes[i]);
    if (s->server != NULL)
        mu_server_close(s->server, on_server_closed, s);
    uv_close((uv_handle_t *)&s->alarm, NULL);
    while (uv_run(&s->loop, UV_RUN_DEFAULT) != 0)
        continue;
    assert_int_equal(uv_loop_close(&s->loop), 0);
    muster_log_set_sink(NULL, NULL);
}

static void on_event(void *ctx, const struct muster_rdzv_event *event)
{
    struct node *node = ctx;

    assert_non_null(node->handler);
    assert_false(node->inside);
    assert_int_equal(event->size, sizeof *event);
    node->told[event->type]++;
    uv_stop(node->loop); /* what it is waited for may be this */
    if (event->type == MUSTER_RDZV_JOINED) {
        node->rank = event->info->rank;
        node->world_size = event->info->world_size;
        node->workers_port = event->info->bootstrap.master_port;
    }
    if (event->error != NULL)
        node->error = *event->error;
    if (node->free_when_told)
        free_node(node);
    if (node->kills != NULL && event->type == MUSTER_RDZV_PROGRESS && event->progress->spare)
        free_node(node->kills);
}

/* A node with this endpoint and these options ("k=v,k=v"), for a rendezvous of so many. */
static int start(struct scene *s, size_t index, const char *endpoint, const char *options, int64_t nodes_max,
                 struct muster_error *error)
{
    struct node *node = &s->nodes[index];
    struct muster_rdzv_params *params;
    int rc = muster_rdzv_params_new("c10d", endpoint, "job", 1, nodes_max, NULL, &params, error);

    if (rc < 0)
        return rc;
    node->loop = &s->loop;
    rc = muster_rdzv_params_set_options(params, options, error);
    if (rc == 0)
        rc = mu_c10d_start(&s->loop, params, on_event, node, &node->handler, error);
    muster_rdzv_params_free(params);
    return rc;
}

#define ASK(node, what)                                                                                                \
    do {                                                                                                               \
        (node)->inside = true;                                                                                         \
        (node)->handler->ops->what((node)->handler);                                                                   \
        (node)->inside = false;                                                                                        \
    } while (0)

/* Starts a node, has it join and waits for it to fail. */
static const struct muster_error *join_fails(struct scene *s, const char *endpoint, const char *options)
{
    struct node *node = &s->nodes[0];

    assert_int_equal(start(s, 0, endpoint, options, 1, NULL), 0);
    ASK(node, join);
    RUN_UNTIL(s, node->told[MUSTER_RDZV_FAILED] > 0);
    assert_int_equal(node->told[MUSTER_RDZV_FAILED], 1);
    assert_int_equal(node->told[MUSTER_RDZV_JOINED], 0);
    return &node->error;
}

static const char *endpoint_of(const char *host, unsigned port)
{
    static char text[320];

    (void)snprintf(text, sizeof text, "%s:%u", host, port);
    return text;
}

/* ---- Parameters ---- */

static void options_are_checked_at_once(void **state)
{
    static const struct {
        const char *endpoint, *options;
        int rc;
        const char *text;
    } rows[] = {
        { "localhost:0", "store_type=file", MUSTER_ENOTSUP, "not supported yet" },
        { "localhost:0", "store_type= FILE ", MUSTER_ENOTSUP, "not supported yet" },
        { "localhost:0", "store_type=etcd", MUSTER_EINVAL, "'etcd'" },
        { "localhost:0", "store_type=tcp-and-a-lot-more", MUSTER_EINVAL, "store_type" },
        { "localhost:0", "is_host=perhaps", MUSTER_EINVAL, "is_host" },
        { "localhost:0", "is_host=false", MUSTER_EINVAL, "port 0" },
        { "localhost:0", "read_timeout=0", MUSTER_EINVAL, "read_timeout" },
        { "localhost:0", "read_timeout=-1", MUSTER_EINVAL, "read_timeout" },
        { "localhost:0", "read_timeout=x", MUSTER_EINVAL, "read_timeout" },
        { "localhost:0", "read_timeout=9999999999", MUSTER_EINVAL, "read_timeout" },
        { "localhost:0", "dialect=2.13", MUSTER_EINVAL, "dialect" },
        { "localhost:0", "use_agent_store=2", MUSTER_EINVAL, "use_agent_store" },
        { "localhost:0", "join_timeout=0", MUSTER_EINVAL, "join" },
        { "localhost:0", "engine=yes", MUSTER_EINVAL, "option 'engine': 'yes' is none of on, off and only" },
        { "localhost:0", "fence=5,engine=off", MUSTER_EINVAL, "option 'fence' does not go with engine=off" },
        { "localhost:99999", "is_host=1", MUSTER_EINVAL, "localhost:99999" },
        { "a/b:1", "is_host=1", MUSTER_EINVAL, "a/b:1" },
    };
    struct muster_error error;
    struct scene s;

    (void)state;
    begin(&s);
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_int_equal(start(&s, 0, rows[i].endpoint, rows[i].options, 1, &error), rows[i].rc);
        assert_non_null(strstr(error.text, rows[i].text));
    }
    end(&s);
}

static void an_empty_run_id_is_refused(void **state)
{
    struct muster_rdzv_params *params;
    struct muster_handler *handler;
    struct muster_error error;
    struct scene s;

    (void)state;
    begin(&s);
    assert_int_equal(muster_rdzv_params_new("c10d", "localhost:0", "", 1, 1, NULL, &params, NULL), 0);
    assert_int_equal(mu_c10d_start(&s.loop, params, on_event, &s, &handler, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "run id"));
    muster_rdzv_params_free(params);
    end(&s);
}

static void what_the_parameters_say_about_the_workers_store_is_kept(void **state)
{
    struct scene s;

    (void)state;
    begin(&s);
    assert_int_equal(start(&s, 0, "localhost:0", "store_type= TCP ,dialect=1.13", 1, NULL), 0);
    assert_int_equal(start(&s, 1, "localhost:0", "use_agent_store=false", 1, NULL), 0);
    assert_true(s.nodes[0].handler->ops->use_agent_store(s.nodes[0].handler));
    assert_false(s.nodes[1].handler->ops->use_agent_store(s.nodes[1].handler));
    end(&s);
}

/* ---- Who hosts ---- */

static void who_owns_the_address_hosts_and_others_join(void **state)
{
    static const char *const firsts[] = { "localhost", "127.0.0.1", "127.8.8.8", "0.0.0.0" };
    struct scene s;

    (void)state;
    for (size_t i = 0; i < COUNT(firsts); i++) {
        begin(&s);
        assert_int_equal(start(&s, 0, endpoint_of(firsts[i], 0), "last_call_timeout=20", 2, NULL), 0);
        ASK(&s.nodes[0], join);
        RUN_UNTIL(&s, logged_hostings > 0);
        assert_int_equal(start(&s, 1, endpoint_of("localhost", logged_port), "last_call_timeout=20", 2, NULL), 0);
        ASK(&s.nodes[1], join);
        RUN_UNTIL(&s, s.nodes[0].told[MUSTER_RDZV_JOINED] > 0 && s.nodes[1].told[MUSTER_RDZV_JOINED] > 0);
        assert_int_equal(s.nodes[0].world_size, 2);
        assert_int_equal(s.nodes[1].world_size, 2);
        assert_int_equal(s.nodes[0].rank + s.nodes[1].rank, 1);
        assert_int_equal(logged_hostings, 1); /* the second found the port taken */
        assert_int_equal(logged_warnings, i == 3 ? 1 : 2);
        end(&s);
    }
}

static void of_two_that_start_at_once_one_hosts(void **state)
{
    struct scene s;
    uint16_t port;

    (void)state;
    (void)close(fake_listener(&port, -1)); /* free, a moment ago */
    begin(&s);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(start(&s, i, endpoint_of("localhost", port), "last_call_timeout=20", 2, NULL), 0);
        ASK(&s.nodes[i], join);
    }
    RUN_UNTIL(&s, s.nodes[0].told[MUSTER_RDZV_JOINED] > 0 && s.nodes[1].told[MUSTER_RDZV_JOINED] > 0);
    assert_int_equal(s.nodes[0].rank + s.nodes[1].rank, 1);
    assert_int_equal(logged_hostings, 1);
    end(&s);
}

static void is_host_overrides_what_the_address_says(void **state)
{
    struct scene s;

    (void)state;
    begin(&s);
    assert_int_equal(start(&s, 0, "192.0.2.1:0", "is_host=true", 1, NULL), 0);
    ASK(&s.nodes[0], join);
    RUN_UNTIL(&s, s.nodes[0].told[MUSTER_RDZV_JOINED] > 0);
    assert_int_equal(s.nodes[0].world_size, 1);
    assert_int_equal(logged_hostings, 1);
    assert_int_equal(logged_warnings, 0);
    end(&s);
}

static void port_zero_of_somebody_elses_address_is_an_error(void **state)
{
    const struct muster_error *error;
    struct scene s;

    (void)state;
    begin(&s);
    error = join_fails(&s, "192.0.2.1:0", "read_timeout=1");
    assert_int_equal(error->code, MUSTER_ERDZV_CONNECTION);
    assert_non_null(strstr(error->text, "join rendezvous 'job': port 0"));
    end(&s);
}

static void on_ready(struct mu_client *client, const struct muster_error *error, void *ctx)
{
    (void)client;
    (void)ctx;
    assert_null(error);
}

static void on_client_closed(struct mu_client *client, void *ctx)
{
    (void)client;
    (void)ctx;
}

static void on_called(struct mu_call *call)
{
    unsigned *called = call->ctx;

    ++*called;
}

static void the_host_says_who_it_is(void **state)
{
    struct mu_client_config config = { .host = "127.0.0.1", .connect_timeout_ms = ALARM_MS };
    unsigned called = 0;
    struct mu_call call = {
        .kind = MU_CALL_GET, .key = muster_str("muster.job/host"), .done = on_called, .ctx = &called
    };
    struct mu_client *client;
    struct scene s;
    char hostname[256] = "", pid[32];

    (void)state;
    begin(&s);
    assert_int_equal(start(&s, 0, "localhost:0", "is_host=1,engine=off", 1, NULL), 0);
    RUN_UNTIL(&s, logged_hostings > 0);
    config.port = (uint16_t)logged_port;
    assert_int_equal(mu_client_start(&s.loop, &config, on_ready, NULL, NULL, &client, NULL), 0);
    mu_client_call(client, &call, ALARM_MS);
    RUN_UNTIL(&s, called > 0);
    assert_int_equal(call.rc, 0);
    (void)gethostname(hostname, sizeof hostname - 1);
    (void)snprintf(pid, sizeof pid, "_%d_", (int)getpid());
    assert_memory_equal(call.bytes.data, hostname, strlen(hostname));
    assert_non_null(strstr(call.bytes.data, pid));
    muster_bytes_done(&call.bytes);
    mu_client_close(client, on_client_closed, NULL);
    end(&s);
}

/* In the same turn of the loop in which the spare learns that it is one: it knew who hosts before that. */
static void a_spare_whose_host_goes_at_once_knows_that_the_host_is_gone(void **state)
{
    struct scene s;

    (void)state;
    begin(&s);
    assert_int_equal(start(&s, 0, "localhost:0", "", 1, NULL), 0);
    ASK(&s.nodes[0], join);
    RUN_UNTIL(&s, s.nodes[0].told[MUSTER_RDZV_JOINED] > 0);
    s.nodes[1].kills = &s.nodes[0];
    assert_int_equal(start(&s, 1, endpoint_of("localhost", logged_port), "", 1, NULL), 0);
    ASK(&s.nodes[1], join);
    RUN_UNTIL(&s, s.nodes[1].told[MUSTER_RDZV_FAILED] > 0);
    assert_null(s.nodes[0].handler);
    assert_non_null(strstr(s.nodes[1].error.text, "the job has ended, or the host of its store has"));
    end(&s);
}

/* ---- The engine ---- */

#define ENGINE "engine=on,last_call_timeout=20,keep_alive_interval=1,keep_alive_max_attempt=2"

/* Two nodes of a job that meets in the engine of the first one's store, of at most so many. */
static void begin_pair_of(struct scene *s, const char *options, int64_t nodes_max)
{
    begin(s);
    assert_int_equal(start(s, 0, "localhost:0", options, nodes_max, NULL), 0);
    ASK(&s->nodes[0], join);
    RUN_UNTIL(s, logged_hostings > 0);
    assert_int_equal(start(s, 1, endpoint_of("localhost", logged_port), options, nodes_max, NULL), 0);
    ASK(&s->nodes[1], join);
    RUN_UNTIL(s, s->nodes[0].told[MUSTER_RDZV_JOINED] > 0 && s->nodes[1].told[MUSTER_RDZV_JOINED] > 0);
}

static void begin_pair(struct scene *s)
{
    begin_pair_of(s, ENGINE, 2);
}

static void a_host_with_an_engine_meets_others_there(void **state)
{
    char host[MU_RDZV_HOST_MAX];
    uint16_t port = 0;
    struct scene s;

    (void)state;
    begin_pair(&s);
    assert_int_equal(s.nodes[0].world_size, 2);
    assert_int_equal(s.nodes[0].rank + s.nodes[1].rank, 1);
    assert_int_equal(s.nodes[0].workers_port, s.nodes[1].workers_port);
    assert_int_equal(logged_engines, 2);
    assert_int_equal(logged_documents, 0);
    for (size_t i = 0; i < 2; i++) {
        struct muster_handler *handler = s.nodes[i].handler;

        assert_true(handler->ops->endpoint(handler, host, sizeof host, &port)); /* of the store, for agents' keys */
        assert_int_equal(port, logged_port);
        assert_int_equal(handler->ops->hosts(handler), i == 0);
        assert_int_equal(((struct mu_handler *)handler)->loss_ms, 2000);
    }
    end(&s);
}

static void nodes_lose_leave_and_join_again_in_the_engine(void **state)
{
    struct scene s;

    (void)state;
    begin_pair(&s);
    free_node(&s.nodes[1]); /* its lease ends */
    RUN_UNTIL(&s, s.nodes[0].told[MUSTER_RDZV_PEERS_LOST] > 0);
    ASK(&s.nodes[0], join);
    RUN_UNTIL(&s, s.nodes[0].told[MUSTER_RDZV_JOINED] > 1);
    assert_int_equal(s.nodes[0].world_size, 1);
    assert_int_equal(start(&s, 2, endpoint_of("localhost", logged_port), ENGINE, 2, NULL), 0);
    ASK(&s.nodes[2], join);
    RUN_UNTIL(&s, s.nodes[0].told[MUSTER_RDZV_WAITING] > 0);
    ASK(&s.nodes[0], join);
    RUN_UNTIL(&s, s.nodes[0].told[MUSTER_RDZV_JOINED] > 2 && s.nodes[2].told[MUSTER_RDZV_JOINED] > 0);
    assert_int_equal(s.nodes[0].world_size, 2);
    ASK(&s.nodes[2], leave);
    RUN_UNTIL(&s, s.nodes[2].told[MUSTER_RDZV_LEFT] > 0);
    RUN_UNTIL(&s, s.nodes[0].told[MUSTER_RDZV_PEERS_LOST] > 1);
    ASK(&s.nodes[0], close);
    RUN_UNTIL(&s, s.nodes[0].told[MUSTER_RDZV_CLOSED] > 0);
    end(&s);
}

/* As `muster store` does. */
static void serve_engine(struct scene *s)
{
    const struct muster_store_server_config config = { .size = sizeof config, .host = "127.0.0.1" };
    const struct mu_server_offer offer = { .node = "", .documents = "/" MU_KV_C10D_DOCUMENTS };

    assert_int_equal(mu_server_start_as(&s->loop, &config, &s->server, NULL), 0);
    mu_server_offer_engine(s->server, &offer);
}

static const char *served(const struct scene *s)
{
    return endpoint_of("127.0.0.1", mu_addr_port(mu_server_address(s->server)));
}

static void a_store_that_offers_its_engine_is_used(void **state)
{
    struct scene s;

    (void)state;
    begin(&s);
    serve_engine(&s);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(start(&s, i, served(&s), ENGINE, 2, NULL), 0);
        ASK(&s.nodes[i], join);
    }
    RUN_UNTIL(&s, s.nodes[0].told[MUSTER_RDZV_JOINED] > 0 && s.nodes[1].told[MUSTER_RDZV_JOINED] > 0);
    assert_int_equal(logged_engines, 2);
    assert_int_equal(logged_hostings, 0);
    end(&s);
}

static void a_node_without_the_engine_is_refused_where_all_others_want_it(void **state)
{
    struct scene s;

    (void)state;
    begin_pair_of(&s, "engine=only,last_call_timeout=1", 3);
    assert_int_equal(start(&s, 2, endpoint_of("localhost", logged_port), "engine=off", 3, NULL), 0);
    ASK(&s.nodes[2], join);
    RUN_UNTIL(&s, s.nodes[2].told[MUSTER_RDZV_FAILED] > 0);
    assert_non_null(
        strstr(s.nodes[2].error.text, "this node has engine=off, but the job meets in the engine of the store at "));
    assert_int_equal(s.nodes[0].told[MUSTER_RDZV_WAITING], 0);
    end(&s);
}

/* As a PyTorch node begins, with the bytes of its first two requests. */
static int begin_as_pytorch(unsigned port)
{
    struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    struct mu_slice said = wire(MU_DIALECT_V, "VALIDATE CE F7 85 3C COMPARE_SET (/torch.rendezvous.job) () (x)");
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    assert_int_equal(send(fd, said.data, said.len, 0), said.len);
    return fd;
}

/* The host itself has only begun to connect by then. */
static void a_pytorch_node_that_comes_first_does_not_take_a_job_out_of_the_engine(void **state)
{
    struct scene s;
    char byte;
    int fd;

    (void)state;
    begin(&s);
    assert_int_equal(start(&s, 0, endpoint_of("localhost", 0), "engine=only", 1, NULL), 0);
    ASK(&s.nodes[0], join);
    RUN_UNTIL(&s, logged_hostings > 0);
    fd = begin_as_pytorch(logged_port);
    RUN_UNTIL(&s, s.nodes[0].told[MUSTER_RDZV_JOINED] > 0 || s.nodes[0].told[MUSTER_RDZV_FAILED] > 0);
    assert_int_equal(s.nodes[0].told[MUSTER_RDZV_JOINED], 1);
    assert_int_equal(recv(fd, &byte, 1, 0), 0);
    assert_int_equal(close(fd), 0);
    end(&s);
}

/* The store answers, but not this: it is not away, and the node is not a new one each time its time is up. */
static void a_node_without_the_engine_waits_in_peace_where_there_is_no_place(void **state)
{
    struct scene s;
    uint64_t began_ms;

    (void)state;
    begin_pair_of(&s, ENGINE ",last_call_timeout=1", 2);
    assert_int_equal(start(&s, 2, endpoint_of("localhost", logged_port), "engine=off,read_timeout=1", 2, NULL), 0);
    ASK(&s.nodes[2], join);
    began_ms = uv_now(&s.loop);
    RUN_UNTIL(&s, uv_now(&s.loop) > began_ms + 1500 || s.nodes[2].told[MUSTER_RDZV_BACKEND_DOWN] > 0);
    assert_int_equal(s.nodes[2].told[MUSTER_RDZV_BACKEND_DOWN], 0);
    ASK(&s.nodes[0], close);
    RUN_UNTIL(&s, s.nodes[0].told[MUSTER_RDZV_CLOSED] > 0);
    ASK(&s.nodes[2], leave);
    RUN_UNTIL(&s, s.nodes[2].told[MUSTER_RDZV_LEFT] > 0);
    end(&s);
}

static bool knows_store(const struct node *node)
{
    char host[MU_RDZV_HOST_MAX];
    uint16_t port = 0;

    return node->handler->ops->endpoint(node->handler, host, sizeof host, &port) && port == logged_port;
}

/* What a PyTorch node is to them, too. */
static void with_a_node_without_the_engine_all_meet_in_a_document(void **state)
{
    struct scene s;

    (void)state;
    begin_pair_of(&s, ENGINE ",last_call_timeout=1", 3);
    assert_int_equal(start(&s, 2, endpoint_of("localhost", logged_port), "engine=off,last_call_timeout=1", 3, NULL), 0);
    ASK(&s.nodes[2], join);
    RUN_UNTIL(&s, s.nodes[0].told[MUSTER_RDZV_WAITING] > 0 && s.nodes[1].told[MUSTER_RDZV_WAITING] > 0);
    ASK(&s.nodes[0], join);
    ASK(&s.nodes[1], join);
    while (s.nodes[0].told[MUSTER_RDZV_JOINED] < 2 || s.nodes[1].told[MUSTER_RDZV_JOINED] < 2) {
        (void)uv_run(&s.loop, UV_RUN_ONCE);
        assert_true(knows_store(&s.nodes[0]) && knows_store(&s.nodes[1])); /* agents' keys are there all the while */
    }
    RUN_UNTIL(&s, s.nodes[2].told[MUSTER_RDZV_JOINED] > 0);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(s.nodes[i].world_size, 3);
    assert_int_equal(s.nodes[0].told[MUSTER_RDZV_REMOVED] + s.nodes[0].told[MUSTER_RDZV_FAILED], 0);
    ASK(&s.nodes[0], close);
    RUN_UNTIL(&s, s.nodes[0].told[MUSTER_RDZV_CLOSED] > 0);
    end(&s);
}

static void where_others_meet_in_a_document_so_do_we(void **state)
{
    static const bool offers[] = { false, true };
    struct scene s;

    (void)state;
    for (size_t i = 0; i < COUNT(offers); i++) {
        const struct muster_store_server_config config = { .size = sizeof config, .host = "127.0.0.1" };

        begin(&s);
        if (offers[i])
            serve_engine(&s);
        else
            assert_int_equal(mu_server_start_as(&s.loop, &config, &s.server, NULL), 0);
        assert_int_equal(start(&s, 0, served(&s), "engine=off,last_call_timeout=20", 2, NULL), 0);
        ASK(&s.nodes[0], join);
        RUN_UNTIL(&s, s.nodes[0].told[MUSTER_RDZV_PROGRESS] > 0);
        assert_int_equal(start(&s, 1, served(&s), ENGINE, 2, NULL), 0);
        ASK(&s.nodes[1], join);
        RUN_UNTIL(&s, s.nodes[0].told[MUSTER_RDZV_JOINED] > 0 && s.nodes[1].told[MUSTER_RDZV_JOINED] > 0);
        assert_int_equal(s.nodes[0].world_size, 2);
        assert_int_equal(logged_engines, offers[i]); /* which says that there is one */
        assert_int_equal(logged_documents, 1);
        end(&s);
    }
}

/* ---- A token ---- */

static char token_paths[2][32], with_token[2][192];

/* Two files, and the options that name them. */
static int make_tokens(void **state)
{
    static const char *const texts[] = { "correct horse battery staple\n", "a token that is not that one\n" };

    (void)state;
    for (size_t i = 0; i < COUNT(texts); i++) {
        int fd;

        (void)snprintf(token_paths[i], sizeof token_paths[i], "%s", "/tmp/muster_token_XXXXXX");
        fd = mkstemp(token_paths[i]);
        if (fd < 0 || write(fd, texts[i], strlen(texts[i])) < 0)
            return -1;
        (void)close(fd);
        (void)snprintf(with_token[i], sizeof with_token[i], ENGINE ",token_file=%s", token_paths[i]);
    }
    return 0;
}

static int remove_tokens(void **state)
{
    (void)state;
    return unlink(token_paths[0]) | unlink(token_paths[1]);
}

/* The first node is the host. */
static void nodes_with_one_token_meet_and_others_are_refused(void **state)
{
    static const struct {
        size_t token; /* 2: none */
        const char *why;
    } others[] = { { 1, " refuses our token: it has another one" },
                   { 2, " wants a token (--rdzv-conf token_file=PATH)" } };
    struct scene s;

    (void)state;
    for (size_t i = 0; i < COUNT(others); i++) {
        begin(&s);
        assert_int_equal(start(&s, 0, endpoint_of("localhost", 0), with_token[0], 2, NULL), 0);
        ASK(&s.nodes[0], join);
        RUN_UNTIL(&s, logged_hostings > 0);
        assert_int_equal(start(&s, 2, endpoint_of("localhost", logged_port),
                               others[i].token < 2 ? with_token[others[i].token] : ENGINE, 2, NULL),
                         0);
        ASK(&s.nodes[2], join);
        RUN_UNTIL(&s, s.nodes[2].told[MUSTER_RDZV_FAILED] > 0);
        assert_non_null(strstr(s.nodes[2].error.text, others[i].why));
        assert_int_equal(start(&s, 1, endpoint_of("localhost", logged_port), with_token[0], 2, NULL), 0);
        ASK(&s.nodes[1], join);
        RUN_UNTIL(&s, s.nodes[0].told[MUSTER_RDZV_JOINED] > 0 && s.nodes[1].told[MUSTER_RDZV_JOINED] > 0);
        assert_int_equal(s.nodes[0].world_size, 2);
        end(&s);
    }
}

static void a_node_with_a_token_does_not_go_on_without(void **state)
{
    const struct muster_store_server_config config = { .size = sizeof config, .host = "127.0.0.1" };
    struct scene s;

    (void)state;
    for (unsigned offers = 0; offers < 2; offers++) {
        begin(&s);
        if (offers == 1)
            serve_engine(&s);
        else
            assert_int_equal(mu_server_start_as(&s.loop, &config, &s.server, NULL), 0);
        assert_int_equal(start(&s, 0, served(&s), with_token[0], 1, NULL), 0);
        ASK(&s.nodes[0], join);
        RUN_UNTIL(&s, s.nodes[0].told[MUSTER_RDZV_FAILED] > 0);
        assert_non_null(
            strstr(s.nodes[0].error.text, offers == 1 ? " has no token, and this node has one (token_file)"
                                                      : "a job with a token (token_file) meets in the engine alone"));
        assert_int_equal(logged_documents, 0);
        end(&s);
    }
}

static void a_token_that_cannot_be_used_is_an_error_at_once(void **state)
{
    struct muster_error error;
    struct scene s;

    (void)state;
    begin(&s);
    assert_int_equal(start(&s, 0, endpoint_of("localhost", 0), "engine=on,token_file=/no/such/file", 1, &error),
                     MUSTER_ESYSTEM);
    assert_non_null(strstr(error.text, "option 'token_file': read the token: file '/no/such/file': No such file"));
    assert_int_equal(chmod(token_paths[1], 0640), 0);
    assert_int_equal(start(&s, 0, endpoint_of("localhost", 0), with_token[1], 1, &error), MUSTER_EINVAL);
    assert_non_null(strstr(error.text, "its mode is 0640"));
    assert_int_equal(chmod(token_paths[1], 0600), 0);
    end(&s);
}

/* ---- A port that is taken ---- */

static void a_port_taken_by_a_store_is_joined(void **state)
{
    const struct muster_store_server_config config = { .size = sizeof config, .host = "127.0.0.1" };
    struct scene s;

    (void)state;
    begin(&s);
    assert_int_equal(mu_server_start_as(&s.loop, &config, &s.server, NULL), 0);
    assert_int_equal(
        start(&s, 0, endpoint_of("127.0.0.1", mu_addr_port(mu_server_address(s.server))), "dialect=1.13", 1, NULL), 0);
    ASK(&s.nodes[0], join);
    RUN_UNTIL(&s, s.nodes[0].told[MUSTER_RDZV_JOINED] > 0);
    assert_int_equal(logged_hostings, 0);
    end(&s);
}

static void a_port_taken_by_something_else_is_said_so_at_once(void **state)
{
    struct fake_store fake = { .instead = "HTTP/1.1 400 Bad Request\r\n\r\n" };
    const struct muster_error *error;
    struct scene s;

    (void)state;
    begin(&s);
    fake_start(&fake);
    error = join_fails(&s, endpoint_of("127.0.0.1", fake.port), "");
    assert_int_equal(error->code, MUSTER_ERDZV_CONNECTION);
    assert_non_null(strstr(error->text, "the port is taken by another program: cannot connect to "));
    assert_non_null(strstr(error->text, "HTTP/1.1"));
    end(&s);
    fake_stop(&fake);
}

static void a_port_taken_by_a_silent_one_is_said_so_in_the_end(void **state)
{
    struct fake_store fake = { .to_v = FAKE_IS_SILENT };
    const struct muster_error *error;
    struct scene s;

    (void)state;
    begin(&s);
    fake_start(&fake);
    error = join_fails(&s, endpoint_of("localhost", fake.port), "read_timeout=1");
    assert_int_equal(error->code, MUSTER_ERDZV_CONNECTION);
    assert_non_null(strstr(error->text, "the port is taken: cannot connect to "));
    assert_non_null(strstr(error->text, "the port is open, but no store answers"));
    end(&s);
    fake_stop(&fake);
}

static void a_taken_port_that_becomes_free_is_hosted(void **state)
{
    uint16_t port;
    int fd = fake_listener(&port, -1);
    struct scene s;

    (void)state;
    begin(&s);
    assert_int_equal(start(&s, 0, endpoint_of("127.0.0.1", port), "", 1, NULL), 0);
    ASK(&s.nodes[0], join);
    for (int i = 0; i < 5; i++)
        (void)uv_run(&s.loop, UV_RUN_ONCE);
    assert_int_equal(logged_hostings, 0);
    (void)close(fd);
    RUN_UNTIL(&s, s.nodes[0].told[MUSTER_RDZV_JOINED] > 0);
    assert_int_equal(logged_hostings, 1);
    end(&s);
}

static void an_explicit_host_does_not_join_others(void **state)
{
    const struct muster_store_server_config config = { .size = sizeof config };
    const struct muster_error *error;
    struct scene s;

    (void)state;
    begin(&s);
    assert_int_equal(mu_server_start_as(&s.loop, &config, &s.server, NULL), 0);
    error = join_fails(&s, endpoint_of("localhost", mu_addr_port(mu_server_address(s.server))), "is_host=yes");
    assert_int_equal(error->code, MUSTER_ERDZV_CONNECTION);
    assert_non_null(strstr(error->text, "host the store: cannot listen on 127.0.0.1, port "));
    end(&s);
}

/* ---- No store ---- */

static void a_client_never_hosts_and_says_what_it_tried(void **state)
{
    uint16_t port;
    int fd = fake_listener(&port, -1);
    const struct muster_error *error;
    struct scene s;

    (void)state;
    begin(&s);
    error = join_fails(&s, endpoint_of("127.0.0.1", port), "is_host=false,read_timeout=1");
    assert_int_equal(error->code, MUSTER_ERDZV_CONNECTION);
    assert_non_null(strstr(error->text, "join rendezvous 'job': cannot connect to 127.0.0.1:"));
    assert_non_null(strstr(error->text, "connection refused"));
    assert_int_equal(logged_hostings, 0);
    (void)close(fd);
    end(&s);
}

static void a_name_that_cannot_be_resolved_is_named(void **state)
{
    static const char *const options[] = { "read_timeout=1", "read_timeout=1,is_host=no" };
    struct scene s;

    (void)state;
    for (size_t i = 0; i < COUNT(options); i++) {
        const struct muster_error *error;

        begin(&s);
        error = join_fails(&s, endpoint_of(UNKNOWN_NAME, 1), options[i]);
        assert_int_equal(error->code, MUSTER_ERDZV_CONNECTION);
        assert_non_null(strstr(error->text, UNKNOWN_NAME));
        end(&s);
    }
}

static void a_short_join_timeout_bounds_the_search_for_the_store(void **state)
{
    uint16_t port;
    int fd = fake_listener(&port, -1);
    struct scene s;

    (void)state;
    begin(&s);
    assert_int_equal(join_fails(&s, endpoint_of("127.0.0.1", port), "is_host=false,join_timeout=1")->code,
                     MUSTER_ERDZV_CONNECTION);
    (void)close(fd);
    end(&s);
}

static void the_next_join_tries_anew(void **state)
{
    struct muster_store_server_config config = { .size = sizeof config, .host = "127.0.0.1" };
    uint16_t port;
    int fd = fake_listener(&port, -1);
    struct scene s;

    (void)state;
    begin(&s);
    (void)join_fails(&s, endpoint_of("127.0.0.1", port), "is_host=false,read_timeout=1");
    config.use_listen_fd = true;
    config.listen_fd = fd;
    assert_int_equal(mu_server_start_as(&s.loop, &config, &s.server, NULL), 0);
    ASK(&s.nodes[0], join);
    RUN_UNTIL(&s, s.nodes[0].told[MUSTER_RDZV_JOINED] > 0);
    end(&s);
}

/* ---- Asked before there is a store ---- */

static void everything_asked_is_answered_once(void **state)
{
    uint16_t port;
    int fd = fake_listener(&port, -1);
    struct scene s;
    struct node *node = &s.nodes[0];

    (void)state;
    begin(&s);
    assert_int_equal(start(&s, 0, endpoint_of("127.0.0.1", port), "is_host=false,read_timeout=1", 1, NULL), 0);
    ASK(node, join);
    ASK(node, look);
    ASK(node, close);
    ASK(node, look);
    ASK(node, leave); /* so it no longer wants to join */
    RUN_UNTIL(&s, node->told[MUSTER_RDZV_LEFT] > 0);
    assert_int_equal(node->told[MUSTER_RDZV_FAILED] + node->told[MUSTER_RDZV_LOOKED], 0);
    RUN_UNTIL(&s, node->told[MUSTER_RDZV_FAILED] > 0);
    assert_int_equal(node->told[MUSTER_RDZV_LOOKED], 1);
    assert_int_equal(node->told[MUSTER_RDZV_FAILED], 1);
    assert_int_equal(node->told[MUSTER_RDZV_LEFT], 1);
    assert_non_null(strstr(node->error.text, "close rendezvous 'job'"));
    (void)close(fd);
    end(&s);
}

static void what_was_asked_early_is_done_when_there_is_a_store(void **state)
{
    struct scene s;
    struct node *node = &s.nodes[0];

    (void)state;
    begin(&s);
    assert_int_equal(start(&s, 0, "localhost:0", "", 1, NULL), 0);
    ASK(node, look);
    ASK(node, close);
    RUN_UNTIL(&s, node->told[MUSTER_RDZV_LOOKED] > 0 && node->told[MUSTER_RDZV_CLOSED] > 0);
    assert_int_equal(node->error.code, 0);
    ASK(node, join);
    RUN_UNTIL(&s, node->told[MUSTER_RDZV_FAILED] > 0);
    assert_int_equal(node->error.code, MUSTER_ERDZV_CLOSED);
    ASK(node, leave);
    RUN_UNTIL(&s, node->told[MUSTER_RDZV_LEFT] > 0);
    end(&s);
}

/* ---- Ending ---- */

/* A process that connects and stays. */
static pid_t start_stranger(unsigned port)
{
    const struct sockaddr_in addr = { .sin_family = AF_INET,
                                      .sin_port = htons((uint16_t)port),
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd, ready[2];
    char byte;
    pid_t pid;

    assert_int_equal(pipe(ready), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        fd = socket(AF_INET, SOCK_STREAM, 0);
        if (fd >= 0 && connect(fd, (const struct sockaddr *)&addr, sizeof addr) == 0 && write(ready[1], "", 1) == 1)
            (void)pause();
        _exit(1);
    }
    (void)close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1); /* it is connected */
    (void)close(ready[0]);
    return pid;
}

static void end_stranger(pid_t pid)
{
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void on_alone(void *ctx)
{
    ++*(unsigned *)ctx;
}

/* The loop sees what has happened by now. */
static void see(struct scene *s)
{
    for (int i = 0; i < 20; i++)
        (void)uv_run(&s->loop, UV_RUN_NOWAIT);
}

/* It was cut off when the last had left the workers' store. */
static void an_agent_that_comes_back_to_the_store_is_waited_for(void **state)
{
    struct node *node;
    unsigned alone = 0;
    pid_t worker, agent;
    struct scene s;

    (void)state;
    begin(&s);
    node = &s.nodes[0];
    assert_int_equal(start(&s, 0, "localhost:0", "", 1, NULL), 0);
    ASK(node, join);
    RUN_UNTIL(&s, node->told[MUSTER_RDZV_JOINED] > 0);
    assert_int_not_equal(node->workers_port, logged_port);
    worker = start_stranger(node->workers_port);
    see(&s);
    node->handler->ops->when_alone(node->handler, on_alone, &alone);
    see(&s);
    agent = start_stranger(logged_port);
    see(&s);
    end_stranger(worker);
    see(&s);
    assert_int_equal(alone, 0);
    end_stranger(agent);
    RUN_UNTIL(&s, alone == 1);
    end(&s);
}

static void it_may_be_freed_at_any_time(void **state)
{
    static const struct {
        const char *endpoint, *options;
        int turns;
    } rows[] = { { "localhost:0", "", 12 }, { "localhost:0", "engine=on", 24 }, { UNKNOWN_NAME ":1", "", 2 } };
    struct scene s;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        for (int turns = 0; turns < rows[i].turns; turns++) {
            begin(&s);
            assert_int_equal(start(&s, 0, rows[i].endpoint, rows[i].options, 1, NULL), 0);
            ASK(&s.nodes[0], join);
            for (int turn = 0; turn < turns; turn++)
                (void)uv_run(&s.loop, UV_RUN_NOWAIT);
            free_node(&s.nodes[0]);
            RUN_UNTIL(&s, s.nodes[0].freed > 0);
            assert_int_equal(s.nodes[0].freed, 1);
            end(&s);
        }
    }
}

static void it_may_be_freed_from_what_it_tells(void **state)
{
    uint16_t port;
    int fd = fake_listener(&port, -1);
    struct scene s;

    (void)state;
    begin(&s);
    assert_int_equal(start(&s, 0, endpoint_of("127.0.0.1", port), "is_host=false,read_timeout=1", 1, NULL), 0);
    s.nodes[0].free_when_told = true;
    ASK(&s.nodes[0], join);
    ASK(&s.nodes[0], close);
    RUN_UNTIL(&s, s.nodes[0].freed > 0);
    assert_int_equal(s.nodes[0].told[MUSTER_RDZV_FAILED], 1);
    (void)close(fd);
    end(&s);
}

static void start_without_memory(const char *options)
{
    FOR_EACH_FAILURE (n) {
        struct muster_error error;
        struct scene s;
        int rc;

        fail_alloc_at(0);
        begin(&s);
        fail_alloc_at(n);
        rc = start(&s, 0, "localhost:0", options, 1, &error);
        assert_true(rc == 0 || rc == MUSTER_ENOMEM);
        if (rc == 0) {
            for (int turn = 0; turn < 3; turn++)
                (void)uv_run(&s.loop, UV_RUN_NOWAIT);
        }
        end(&s);
    }
}

static void any_allocation_of_the_start_may_fail(void **state)
{
    (void)state;
    start_without_memory("read_timeout=1");
    start_without_memory("read_timeout=1,engine=on");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_are_checked_at_once),
        cmocka_unit_test(an_empty_run_id_is_refused),
        cmocka_unit_test(what_the_parameters_say_about_the_workers_store_is_kept),
        cmocka_unit_test(who_owns_the_address_hosts_and_others_join),
        cmocka_unit_test(of_two_that_start_at_once_one_hosts),
        cmocka_unit_test(is_host_overrides_what_the_address_says),
        cmocka_unit_test(port_zero_of_somebody_elses_address_is_an_error),
        cmocka_unit_test(the_host_says_who_it_is),
        cmocka_unit_test(a_spare_whose_host_goes_at_once_knows_that_the_host_is_gone),
        cmocka_unit_test(a_host_with_an_engine_meets_others_there),
        cmocka_unit_test(nodes_lose_leave_and_join_again_in_the_engine),
        cmocka_unit_test(a_store_that_offers_its_engine_is_used),
        cmocka_unit_test_setup_teardown(nodes_with_one_token_meet_and_others_are_refused, make_tokens, remove_tokens),
        cmocka_unit_test_setup_teardown(a_node_with_a_token_does_not_go_on_without, make_tokens, remove_tokens),
        cmocka_unit_test_setup_teardown(a_token_that_cannot_be_used_is_an_error_at_once, make_tokens, remove_tokens),
        cmocka_unit_test(a_node_without_the_engine_is_refused_where_all_others_want_it),
        cmocka_unit_test(a_pytorch_node_that_comes_first_does_not_take_a_job_out_of_the_engine),
        cmocka_unit_test(a_node_without_the_engine_waits_in_peace_where_there_is_no_place),
        cmocka_unit_test(with_a_node_without_the_engine_all_meet_in_a_document),
        cmocka_unit_test(where_others_meet_in_a_document_so_do_we),
        cmocka_unit_test(a_port_taken_by_a_store_is_joined),
        cmocka_unit_test(a_port_taken_by_something_else_is_said_so_at_once),
        cmocka_unit_test(a_port_taken_by_a_silent_one_is_said_so_in_the_end),
        cmocka_unit_test(a_taken_port_that_becomes_free_is_hosted),
        cmocka_unit_test(an_explicit_host_does_not_join_others),
        cmocka_unit_test(a_client_never_hosts_and_says_what_it_tried),
        cmocka_unit_test(a_name_that_cannot_be_resolved_is_named),
        cmocka_unit_test(a_short_join_timeout_bounds_the_search_for_the_store),
        cmocka_unit_test(the_next_join_tries_anew),
        cmocka_unit_test(everything_asked_is_answered_once),
        cmocka_unit_test(what_was_asked_early_is_done_when_there_is_a_store),
        cmocka_unit_test(an_agent_that_comes_back_to_the_store_is_waited_for),
        cmocka_unit_test(it_may_be_freed_at_any_time),
        cmocka_unit_test(it_may_be_freed_from_what_it_tells),
        cmocka_unit_test(any_allocation_of_the_start_may_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
