/* The static rendezvous, blocking and on a loop: its parameters, its store, and how it fails. */
#include "failmalloc.h"
#include "handler/handler.h"
#include "pure.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

enum { QUICK_S = 20, NODES = 3 };

#define D MUSTER_TIMEOUT_DEFAULT

/* ---- A port that is kept free ---- */

/* It is bound, so that nobody is given it by chance, but does not listen, so that a server may. */
static int hold_port(uint16_t *ret_port)
{
    struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr = { .s_addr = htonl(INADDR_LOOPBACK) } };
    socklen_t len = sizeof addr;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &len), 0);
    *ret_port = ntohs(addr.sin_port);
    return fd;
}

static struct muster_rdzv_params *params_of(const char *endpoint, int64_t nodes, const char *options)
{
    struct muster_rdzv_params *params = NULL;

    assert_int_equal(muster_rdzv_params_new("static", endpoint, "job", 1, nodes, NULL, &params, NULL), 0);
    assert_int_equal(muster_rdzv_params_set_options(params, options, NULL), 0);
    return params;
}

static struct muster_rdzv_params *params_at(uint16_t port, int64_t rank, int64_t nodes, int64_t timeout_s)
{
    char endpoint[32], name[32];
    struct muster_rdzv_params *params = NULL;

    (void)snprintf(endpoint, sizeof endpoint, "127.0.0.1:%u", port);
    (void)snprintf(name, sizeof name, "n%" PRId64, rank);
    assert_int_equal(muster_rdzv_params_new("static", endpoint, "job", 1, nodes, name, &params, NULL), 0);
    assert_int_equal(muster_rdzv_params_set_int(params, "rank", rank, NULL), 0);
    if (timeout_s > 0) /* else the default */
        assert_int_equal(muster_rdzv_params_set_int(params, "timeout", timeout_s, NULL), 0);
    return params;
}

/* ---- Parameters ---- */

static void ignore_event(void *ctx, const struct muster_rdzv_event *event)
{
    (void)ctx;
    (void)event;
}

static void ignore_freed(void *ctx)
{
    (void)ctx;
}

/* Both ways of making one say the same. */
static void assert_refused(const struct muster_rdzv_params *params, const char *text)
{
    struct muster_error error = { 0 }, loop_error = { 0 };
    struct muster_rdzv *rdzv = NULL;
    struct muster_handler *handler = NULL;
    uv_loop_t loop;

    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(muster_rdzv_static_create(NULL, params, &rdzv, &error), MUSTER_EINVAL);
    assert_int_equal(mu_static_start(&loop, params, ignore_event, NULL, &handler, &loop_error), MUSTER_EINVAL);
    assert_null(rdzv);
    assert_null(handler);
    assert_string_equal(error.text, loop_error.text);
    if (strstr(error.text, text) == NULL)
        fail_msg("'%s' does not say '%s'", error.text, text);
    assert_int_equal(uv_loop_close(&loop), 0);
}

static void errors_come_in_the_given_order(void **state)
{
    static const struct {
        const char *endpoint, *options, *text;
    } rows[] = {
        { "", "", "option 'rank' is missing" },
        { "", "rank=x", "the endpoint is missing" },
        { " \t\n", "rank=x", "the endpoint is missing" },
        { "host", "rank=x", "endpoint 'host' has no port" },
        { "[::1]", "rank=x", "endpoint '[::1]' has no port" },
        { "host:99999", "rank=x", "host:99999" },
        { "a/b:1", "rank=x", "a/b:1" },
        { "host:1", "rank=x,timeout=y", "rank" },
        { "host:1", "rank=9,timeout=y", "timeout" },
        { "host:1", "rank=0,timeout=0", "option 'timeout': 0 s is not in 1.." },
        { "host:1", "rank=0,timeout=-1", "option 'timeout': -1 s is not in 1.." },
        { "host:0", "rank=0", "port 0 of host 'host' is not in 1..65535" },
        { "host:1", "rank=3", "rank 3 is not in 0..2" },
        { "host:1", "rank=-1", "rank -1 is not in 0..2" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct muster_rdzv_params *params = params_of(rows[i].endpoint, NODES, rows[i].options);

        assert_refused(params, rows[i].text);
        muster_rdzv_params_free(params);
    }
}

static void a_rank_is_any_text_or_number_that_is_an_integer(void **state)
{
    static const char *const options[] = { "rank=2", "rank= +2 ", "rank=0,timeout=1_000" };

    (void)state;
    for (size_t i = 0; i < COUNT(options); i++) {
        struct muster_rdzv_params *params = params_of("host:1", NODES, options[i]);
        struct muster_rdzv *rdzv = NULL;

        assert_int_equal(muster_rdzv_static_create(NULL, params, &rdzv, NULL), 0);
        assert_string_equal(muster_rdzv_get_backend(rdzv), "static");
        assert_string_equal(muster_rdzv_get_run_id(rdzv), "job");
        assert_true(muster_rdzv_use_agent_store(rdzv));
        muster_rdzv_free(rdzv);
        muster_rdzv_params_free(params);
    }
}

static void parts_are_checked_as_parameters_are(void **state)
{
    char name[300], run_id[MU_RDZV_RUN_ID_MAX + 2];
    const struct {
        const char *host;
        uint16_t port;
        int64_t rank, world_size, timeout_ms;
    } rows[] = {
        { "", 1, 0, 1, 1 },      { name, 1, 0, 1, 1 },    { "host", 0, 0, 1, 1 },         { "host", 1, -1, 1, 1 },
        { "host", 1, 1, 1, 1 },  { "host", 1, 0, 0, 1 },  { "host", 1, 0, 1LL << 32, 1 }, { "host", 1, 0, 1, 0 },
        { "host", 1, 0, 1, -1 }, { "host", 1, 0, -1, 1 }, { "host", 1, 0, 1, INT64_MAX },
    };
    struct muster_rdzv *rdzv = NULL;
    struct muster_error error;

    (void)state;
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_int_equal(muster_rdzv_static_new(rows[i].host, rows[i].port, rows[i].rank, rows[i].world_size, "job",
                                                rows[i].timeout_ms, &rdzv, &error),
                         MUSTER_EINVAL);
        assert_int_equal(strncmp(error.text, "make a static rendezvous: ", 26), 0);
    }
    memset(run_id, 'r', sizeof run_id - 1);
    run_id[sizeof run_id - 1] = '\0';
    assert_int_equal(muster_rdzv_static_new("host", 1, 0, 1, run_id, 1, &rdzv, &error), MUSTER_ELIMIT);
    assert_string_equal(error.text, "make a static rendezvous: a run id of 1025 bytes is too long");
    assert_int_equal(muster_rdzv_static_new("host", 1, 0, 1, "", 1, &rdzv, NULL), 0);
    muster_rdzv_free(rdzv);
    assert_int_equal(muster_rdzv_static_new("host", 1, 0, 1, run_id + 1, 1, &rdzv, NULL), 0);
    assert_string_equal(muster_rdzv_get_run_id(rdzv), run_id + 1);
    muster_rdzv_free(rdzv);
}

/* ---- Blocking ---- */

struct node {
    struct muster_rdzv *rdzv;
    struct muster_rdzv_info info;
    struct muster_error error;
    int rc;
    pthread_t thread;
};

static void *run_node(void *arg)
{
    struct node *node = arg;

    node->rc = muster_rdzv_next_rendezvous(node->rdzv, &node->info, &node->error);
    return NULL;
}

static void assert_info(const struct node *node, int64_t rank, int64_t world_size, uint16_t port)
{
    if (node->rc != 0)
        fail_msg("%s", node->error.text);
    assert_int_equal(node->info.rank, rank);
    assert_int_equal(node->info.world_size, world_size);
    assert_int_equal(node->info.round, -1);
    assert_string_equal(node->info.bootstrap.master_addr, "127.0.0.1");
    assert_int_equal(node->info.bootstrap.master_port, port);
}

static void nodes_meet_at_the_store_of_rank_0(void **state)
{
    struct node nodes[NODES];
    struct muster_bytes value;
    struct muster_rdzv_info again;
    bool flag = true;
    int64_t count = -1;
    uint16_t port;
    int fd = hold_port(&port);

    (void)state;
    for (int i = 0; i < NODES; i++) {
        nodes[i] = (struct node){ .rc = 1 };
        assert_int_equal(
            muster_rdzv_static_new("127.0.0.1", port, i, NODES, "job", QUICK_S * 1000, &nodes[i].rdzv, NULL), 0);
        assert_int_equal(pthread_create(&nodes[i].thread, NULL, run_node, &nodes[i]), 0);
    }
    for (int i = 0; i < NODES; i++) {
        assert_int_equal(pthread_join(nodes[i].thread, NULL), 0);
        assert_info(&nodes[i], i, NODES, port);
    }
    assert_int_equal(muster_store_set(nodes[1].info.store, muster_str("k"), muster_str("v"), D, NULL), 0);
    assert_int_equal(muster_store_get(nodes[2].info.store, muster_str("k"), D, &value, NULL), 0);
    assert_string_equal(value.data, "v");
    muster_bytes_done(&value);
    assert_int_equal(muster_rdzv_next_rendezvous(nodes[2].rdzv, &again, NULL), 0); /* what was written is still there */
    assert_int_equal(muster_store_get(again.store, muster_str("k"), D, &value, NULL), 0);
    muster_bytes_done(&value);
    assert_string_equal(muster_rdzv_get_backend(nodes[0].rdzv), "static");
    assert_string_equal(muster_rdzv_get_run_id(nodes[0].rdzv), "job");
    assert_true(muster_rdzv_use_agent_store(nodes[0].rdzv));
    assert_int_equal(muster_rdzv_set_closed(nodes[0].rdzv, NULL), 0);
    assert_int_equal(muster_rdzv_is_closed(nodes[0].rdzv, &flag, NULL), 0);
    assert_false(flag);
    assert_int_equal(muster_rdzv_num_nodes_waiting(nodes[0].rdzv, &count, NULL), 0);
    assert_int_equal(count, 0);
    assert_int_equal(muster_rdzv_shutdown(nodes[0].rdzv, &flag, NULL), 0);
    assert_true(flag);
    for (int i = NODES - 1; i >= 0; i--)
        muster_rdzv_free(nodes[i].rdzv);
    (void)close(fd);
}

static void keys_have_the_run_id_as_prefix(void **state)
{
    struct muster_store_tcp_config config = { .size = sizeof config, .host = "127.0.0.1" };
    struct muster_store *store = NULL;
    struct node node = { .rc = 1 };
    struct muster_bytes value;
    int fd = hold_port(&config.port);

    (void)state;
    assert_int_equal(muster_rdzv_static_new("127.0.0.1", config.port, 0, 1, "job", QUICK_S * 1000, &node.rdzv, NULL),
                     0);
    (void)run_node(&node);
    assert_info(&node, 0, 1, config.port);
    assert_int_equal(muster_store_set(node.info.store, muster_str("k"), muster_str("v"), D, NULL), 0);
    assert_int_equal(muster_store_tcp_new(&config, &store, NULL), 0);
    assert_int_equal(muster_store_get(store, muster_str("job/k"), D, &value, NULL), 0);
    assert_string_equal(value.data, "v");
    muster_bytes_done(&value);
    muster_store_free(store);
    muster_rdzv_free(node.rdzv);
    (void)close(fd);
}

/* PyTorch's multi_tenant. */
static void two_jobs_of_one_process_may_share_the_port(void **state)
{
    static const char *const jobs[] = { "one", "two" };
    struct node nodes[2];
    struct muster_store_tcp_config config = { .size = sizeof config, .host = "127.0.0.1" };
    struct muster_store *store = NULL;
    struct muster_bytes value;
    int fd = hold_port(&config.port);

    (void)state;
    for (int i = 0; i < 2; i++) {
        nodes[i] = (struct node){ .rc = 1 };
        assert_int_equal(
            muster_rdzv_static_new("127.0.0.1", config.port, 0, 1, jobs[i], QUICK_S * 1000, &nodes[i].rdzv, NULL), 0);
        (void)run_node(&nodes[i]);
        assert_info(&nodes[i], 0, 1, config.port);
        assert_int_equal(muster_store_set(nodes[i].info.store, muster_str("k"), muster_str(jobs[i]), D, NULL), 0);
    }
    muster_rdzv_free(nodes[0].rdzv); /* the server lives on with the other */
    assert_int_equal(muster_store_tcp_new(&config, &store, NULL), 0);
    assert_int_equal(muster_store_get(store, muster_str("two/k"), D, &value, NULL), 0);
    assert_string_equal(value.data, "two");
    muster_bytes_done(&value);
    muster_store_free(store);
    muster_rdzv_free(nodes[1].rdzv);
    (void)close(fd);
}

static void whoever_waits_in_vain_is_told_what_for(void **state)
{
    struct node node = { .rc = 1 };
    char expected[160];
    uint16_t port;
    int fd = hold_port(&port);

    (void)state;
    assert_int_equal(muster_rdzv_static_new("127.0.0.1", port, 0, 2, "job", 100, &node.rdzv, NULL), 0);
    (void)run_node(&node);
    assert_int_equal(node.rc, MUSTER_ERDZV_TIMEOUT);
    assert_int_equal(node.error.code, node.rc);
    (void)snprintf(expected, sizeof expected, "static rendezvous at 127.0.0.1, port %u, as rank 0 of 2: ", port);
    assert_int_equal(strncmp(node.error.text, expected, strlen(expected)), 0);
    assert_non_null(strstr(node.error.text, "1 of 2 workers have come"));
    muster_rdzv_free(node.rdzv);
    assert_int_equal(muster_rdzv_static_new("127.0.0.1", port, 1, 2, "job", 100, &node.rdzv, NULL), 0);
    (void)run_node(&node);
    assert_int_equal(node.rc, MUSTER_ERDZV_CONNECTION);
    assert_non_null(strstr(node.error.text, "connection refused"));
    muster_rdzv_free(node.rdzv);
    (void)close(fd);
}

/* ---- On a loop ---- */

struct watched {
    struct scene *scene;
    struct muster_handler *handler;
    char trace[512];
    struct muster_rdzv_info info;
    struct muster_error error;
    enum muster_rdzv_request failed;
    char progress[512];
    unsigned told, progresses, alone;
    int64_t join_left_ms;   /* of the last progress */
    bool joins_again, ends; /* from within the listener */
};

struct scene {
    uv_loop_t loop;
    uv_timer_t watchdog;
    struct watched nodes[NODES];
    unsigned freed;
    uint16_t port;
    int fd;
};

static void on_freed(void *ctx)
{
    struct watched *w = ctx;

    w->handler = NULL;
    w->scene->freed++;
    uv_stop(&w->scene->loop);
}

static void end_node(struct watched *w)
{
    w->handler->ops->free(w->handler, on_freed, w);
}

/* "2 of 3 n0 n1": how many are in, and the names that are known. Nodes come in any order, and are told by rank. */
static void note_progress(struct watched *w, const struct muster_rdzv_event *event)
{
    size_t used = (size_t)snprintf(w->progress, sizeof w->progress, "%" PRId64 " of %" PRId64, event->progress->joined,
                                   event->progress->max_nodes);

    assert_int_equal(event->progress->min_nodes, event->progress->max_nodes);
    assert_true(event->progress->join_left_ms >= 0);
    w->join_left_ms = event->progress->join_left_ms;
    assert_true(event->nodes_count <= NODES);
    for (size_t i = 0; i < event->nodes_count && used < sizeof w->progress; i++)
        used += (size_t)snprintf(w->progress + used, sizeof w->progress - used, " %s", event->nodes[i].name);
    w->progresses++;
}

static void on_event(void *ctx, const struct muster_rdzv_event *event)
{
    struct watched *w = ctx;
    size_t used = strlen(w->trace);

    assert_int_equal(event->round, -1);
    assert_int_equal(event->size, sizeof *event);
    if (event->type == MUSTER_RDZV_PROGRESS) {
        note_progress(w, event);
        uv_stop(&w->scene->loop);
        return;
    }
    (void)snprintf(w->trace + used, sizeof w->trace - used, "%s%s", used > 0 ? " " : "",
                   muster_rdzv_event_name(event->type));
    w->told++;
    if (event->info != NULL)
        w->info = *event->info;
    if (event->error != NULL)
        w->error = *event->error;
    w->failed = event->request;
    if (event->type == MUSTER_RDZV_LOOKED) {
        assert_false(event->closed);
        assert_int_equal(event->count, 0);
    }
    if (w->joins_again) {
        w->joins_again = false;
        w->handler->ops->join(w->handler);
    }
    if (w->ends) {
        w->ends = false;
        end_node(w);
    }
    uv_stop(&w->scene->loop);
}

static void on_watchdog(uv_timer_t *timer)
{
    (void)timer;
    fail_msg("nothing has happened for %d s", QUICK_S);
}

static void run_until_told(struct watched *w, unsigned times)
{
    struct scene *s = w->scene;

    assert_int_equal(uv_timer_start(&s->watchdog, on_watchdog, QUICK_S * 1000, 0), 0);
    while (w->told < times)
        (void)uv_run(&s->loop, UV_RUN_DEFAULT);
    (void)uv_timer_stop(&s->watchdog);
}

static struct watched *start_as(struct scene *s, int index, int64_t rank, int64_t nodes, int64_t timeout_s)
{
    struct watched *w = &s->nodes[index];
    struct muster_rdzv_params *params = params_at(s->port, rank, nodes, timeout_s);

    *w = (struct watched){ .scene = s };
    assert_int_equal(mu_static_start(&s->loop, params, on_event, w, &w->handler, NULL), 0);
    muster_rdzv_params_free(params);
    return w;
}

static struct watched *start_node(struct scene *s, int64_t rank, int64_t nodes, int64_t timeout_s)
{
    return start_as(s, (int)rank, rank, nodes, timeout_s);
}

static int set_up(void **state)
{
    static struct scene scene;

    (void)signal(SIGPIPE, SIG_IGN);
    scene = (struct scene){ 0 };
    scene.fd = hold_port(&scene.port);
    assert_int_equal(uv_loop_init(&scene.loop), 0);
    assert_int_equal(uv_timer_init(&scene.loop, &scene.watchdog), 0);
    *state = &scene;
    return 0;
}

static int tear_down(void **state)
{
    struct scene *s = *state;

    for (int i = 0; i < NODES; i++) {
        if (s->nodes[i].handler != NULL && s->nodes[i].handler->ops != NULL)
            end_node(&s->nodes[i]);
    }
    uv_close((uv_handle_t *)&s->watchdog, NULL);
    while (uv_run(&s->loop, UV_RUN_DEFAULT) != 0)
        continue;
    (void)close(s->fd);
    return uv_loop_close(&s->loop);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

static void nodes_on_a_loop_meet_too(void **state)
{
    struct scene *s = *state;

    for (int i = 0; i < NODES; i++) {
        struct watched *w = start_node(s, i, NODES, QUICK_S);

        assert_string_equal(w->handler->ops->name, "static");
        assert_true(w->handler->ops->use_agent_store(w->handler));
        w->handler->ops->join(w->handler);
        assert_int_equal(w->told, 0); /* never inside of the call */
    }
    for (int i = 0; i < NODES; i++) {
        struct watched *w = &s->nodes[i];

        run_until_told(w, 1);
        assert_string_equal(w->trace, "joined");
        assert_int_equal(w->info.rank, i);
        assert_int_equal(w->info.world_size, NODES);
        assert_int_equal(w->info.round, -1);
        assert_null(w->info.store);
        assert_string_equal(w->info.bootstrap.master_addr, "127.0.0.1");
        assert_int_equal(w->info.bootstrap.master_port, s->port);
    }
}

static void rank_0_waits_for_all_of_them(void **state)
{
    struct scene *s = *state;
    struct watched *first = start_node(s, 0, 2, QUICK_S), *second = start_node(s, 1, 2, QUICK_S);

    first->handler->ops->join(first->handler);
    first->handler->ops->look(first->handler);
    run_until_told(first, 1);
    first->handler->ops->close(first->handler);
    run_until_told(first, 2);
    assert_string_equal(first->trace, "looked closed");
    second->handler->ops->join(second->handler);
    run_until_told(second, 1);
    run_until_told(first, 3);
    assert_string_equal(first->trace, "looked closed joined");
}

static void later_joins_find_the_same_store(void **state)
{
    struct scene *s = *state;
    struct watched *w = start_node(s, 0, 1, QUICK_S);

    w->joins_again = true;
    w->handler->ops->join(w->handler);
    run_until_told(w, 2);
    w->handler->ops->leave(w->handler);
    run_until_told(w, 3);
    w->handler->ops->join(w->handler);
    run_until_told(w, 4);
    assert_string_equal(w->trace, "joined joined left joined");
}

static void a_join_may_be_taken_back_and_begun_again(void **state)
{
    struct scene *s = *state;
    struct watched *first = start_node(s, 0, 2, QUICK_S), *second = start_node(s, 1, 2, QUICK_S);

    first->handler->ops->join(first->handler);
    first->handler->ops->leave(first->handler);
    run_until_told(first, 1);
    first->handler->ops->join(first->handler);
    first->handler->ops->look(first->handler);
    run_until_told(first, 2); /* under way */
    first->handler->ops->leave(first->handler);
    run_until_told(first, 3);
    first->handler->ops->join(first->handler); /* the old server is still closing */
    second->handler->ops->join(second->handler);
    run_until_told(first, 4);
    run_until_told(second, 1);
    assert_string_equal(first->trace, "left looked left joined");
    assert_string_equal(second->trace, "joined");
}

static void a_node_that_is_missing_is_a_timeout(void **state)
{
    struct scene *s = *state;
    struct watched *w = start_node(s, 0, 2, 1);

    w->handler->ops->join(w->handler);
    run_until_told(w, 1);
    assert_string_equal(w->trace, "failed");
    assert_int_equal(w->error.code, MUSTER_ERDZV_TIMEOUT);
    assert_int_equal(w->failed, MUSTER_RDZV_REQUEST_JOIN);
    assert_non_null(strstr(w->error.text, "as rank 0 of 2: timed out after 1 s: 1 of 2 nodes joined (n0)"));
}

static void without_a_timeout_it_waits_for_ten_minutes(void **state)
{
    struct scene *s = *state;
    struct watched *w = start_node(s, 0, 2, 0);

    w->handler->ops->join(w->handler);
    while (w->progresses == 0)
        (void)uv_run(&s->loop, UV_RUN_DEFAULT);
    assert_in_range(w->join_left_ms, 1000 * (600 - QUICK_S), 1000 * 600);
}

static void a_rank_0_that_is_missing_is_a_failed_connection(void **state)
{
    struct scene *s = *state;
    struct watched *w = start_node(s, 1, 2, 1);

    w->handler->ops->join(w->handler);
    run_until_told(w, 1);
    assert_string_equal(w->trace, "failed");
    assert_int_equal(w->error.code, MUSTER_ERDZV_CONNECTION);
    assert_non_null(strstr(w->error.text, "connection refused"));
}

static void a_port_that_is_taken_is_named(void **state)
{
    struct scene *s = *state;
    struct watched *w;

    assert_int_equal(listen(s->fd, 1), 0);
    w = start_node(s, 0, 1, QUICK_S);
    w->handler->ops->join(w->handler);
    run_until_told(w, 1);
    assert_string_equal(w->trace, "failed");
    assert_int_equal(w->error.code, MUSTER_ERDZV_CONNECTION);
    assert_non_null(strstr(w->error.text, "ddress already in use"));
}

static void a_lost_rank_0_ends_the_membership(void **state)
{
    struct scene *s = *state;
    struct watched *first = start_node(s, 0, 2, QUICK_S), *second = start_node(s, 1, 2, QUICK_S);

    first->handler->ops->join(first->handler);
    second->handler->ops->join(second->handler);
    run_until_told(first, 1);
    run_until_told(second, 1);
    end_node(first);
    run_until_told(second, 2);
    assert_string_equal(second->trace, "joined failed");
    assert_int_equal(second->error.code, MUSTER_ERDZV_CONNECTION);
    while (s->freed == 0)
        (void)uv_run(&s->loop, UV_RUN_DEFAULT);
    first = start_node(s, 0, 2, QUICK_S);
    first->handler->ops->join(first->handler);
    second->handler->ops->join(second->handler);
    run_until_told(first, 1);
    run_until_told(second, 3);
    assert_string_equal(second->trace, "joined failed joined");
}

static void run_until_progress(struct watched *w, const char *expected)
{
    struct scene *s = w->scene;

    assert_int_equal(uv_timer_start(&s->watchdog, on_watchdog, QUICK_S * 1000, 0), 0);
    while (strcmp(w->progress, expected) != 0)
        (void)uv_run(&s->loop, UV_RUN_DEFAULT);
    (void)uv_timer_stop(&s->watchdog);
}

/* A node in a process of its own, which can be killed. */
static pid_t fork_node(struct scene *s, int64_t rank, int64_t nodes)
{
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        struct muster_rdzv_params *params = params_at(s->port, rank, nodes, QUICK_S);
        struct muster_handler *handler = NULL;
        uv_loop_t loop;

        (void)alarm(2 * QUICK_S);
        if (uv_loop_init(&loop) == 0 && mu_static_start(&loop, params, ignore_event, NULL, &handler, NULL) == 0)
            handler->ops->join(handler);
        for (;;)
            (void)uv_run(&loop, UV_RUN_DEFAULT);
    }
    return pid;
}

static void kill_node(pid_t pid)
{
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void everybody_hears_who_is_in(void **state)
{
    struct scene *s = *state;
    struct watched *first = start_node(s, 0, NODES, QUICK_S), *second = start_node(s, 1, NODES, QUICK_S), *third;

    second->handler->ops->join(second->handler);
    run_until_progress(second, "-1 of 3"); /* rank 0 is not there yet */
    first->handler->ops->join(first->handler);
    run_until_progress(first, "2 of 3 n0 n1");
    run_until_progress(second, "2 of 3 n0 n1");
    assert_int_equal(first->told + second->told, 0);
    third = start_node(s, 2, NODES, QUICK_S);
    third->handler->ops->join(third->handler);
    for (int i = 0; i < NODES; i++) {
        run_until_told(&s->nodes[i], 1);
        assert_string_equal(s->nodes[i].trace, "joined");
    }
}

static void a_second_node_of_the_same_rank_is_told_who_has_it(void **state)
{
    struct scene *s = *state;
    struct watched *first = start_node(s, 0, NODES, QUICK_S), *second = start_node(s, 1, NODES, QUICK_S);
    struct watched *again = start_as(s, 2, 1, NODES, QUICK_S);
    char expected[100];

    first->handler->ops->join(first->handler);
    second->handler->ops->join(second->handler);
    run_until_progress(first, "2 of 3 n0 n1");
    again->handler->ops->join(again->handler);
    run_until_told(again, 1);
    assert_string_equal(again->trace, "failed");
    assert_int_equal(again->failed, MUSTER_RDZV_REQUEST_JOIN);
    assert_int_equal(again->error.code, MUSTER_ERDZV_STATE);
    (void)snprintf(expected, sizeof expected, "rank 1 is taken by n1 (pid %ld)", (long)getpid());
    assert_non_null(strstr(again->error.text, expected));
    assert_int_equal(first->told + second->told, 0); /* it was not counted */
}

static void a_node_that_is_killed_is_told_to_all(void **state)
{
    struct scene *s = *state;
    struct watched *first = start_node(s, 0, NODES, QUICK_S), *second = start_node(s, 1, NODES, QUICK_S);
    pid_t pid = fork_node(s, 2, NODES);
    char expected[100];

    first->handler->ops->join(first->handler);
    second->handler->ops->join(second->handler);
    run_until_told(first, 1);
    run_until_told(second, 1);
    kill_node(pid);
    (void)snprintf(expected, sizeof expected, ": lost n2 (pid %ld), rank 2; ", (long)pid);
    for (int i = 0; i < 2; i++) {
        struct watched *w = &s->nodes[i];

        run_until_told(w, 2);
        assert_string_equal(w->trace, "joined failed");
        assert_int_equal(w->failed, MUSTER_RDZV_REQUEST_MEMBERSHIP);
        assert_int_equal(w->error.code, MUSTER_ERDZV_CONNECTION);
        assert_non_null(strstr(w->error.text, expected));
    }
}

static void after_a_loss_all_may_meet_again(void **state)
{
    struct scene *s = *state;
    struct watched *first = start_node(s, 0, 2, QUICK_S), *second;
    pid_t pid = fork_node(s, 1, 2);

    first->handler->ops->join(first->handler);
    run_until_told(first, 1);
    kill_node(pid);
    run_until_told(first, 2);
    first->handler->ops->join(first->handler);
    second = start_node(s, 1, 2, QUICK_S);
    second->handler->ops->join(second->handler);
    run_until_told(first, 3);
    run_until_told(second, 1);
    assert_string_equal(first->trace, "joined failed joined");
    assert_string_equal(second->trace, "joined");
}

static void a_node_that_is_killed_before_all_are_in_may_be_replaced(void **state)
{
    struct scene *s = *state;
    struct watched *first = start_node(s, 0, NODES, QUICK_S), *second, *third;
    pid_t pid = fork_node(s, 1, NODES);

    first->handler->ops->join(first->handler);
    run_until_progress(first, "2 of 3 n0 n1");
    kill_node(pid);
    run_until_progress(first, "1 of 3 n0");
    second = start_node(s, 1, NODES, QUICK_S);
    second->handler->ops->join(second->handler);
    run_until_progress(first, "2 of 3 n0 n1");
    assert_int_equal(first->told + second->told, 0);
    third = start_node(s, 2, NODES, QUICK_S);
    third->handler->ops->join(third->handler);
    for (int i = 0; i < NODES; i++)
        run_until_told(&s->nodes[i], 1);
    assert_string_equal(first->trace, "joined");
}

static void a_node_that_ends_by_itself_is_not_lost(void **state)
{
    struct scene *s = *state;
    struct watched *first = start_node(s, 0, 2, QUICK_S), *second = start_node(s, 1, 2, QUICK_S);

    first->handler->ops->join(first->handler);
    second->handler->ops->join(second->handler);
    run_until_told(first, 1);
    run_until_told(second, 1);
    end_node(second);
    while (s->freed == 0)
        (void)uv_run(&s->loop, UV_RUN_DEFAULT);
    second = start_node(s, 1, 2, QUICK_S); /* its rank is free again */
    second->handler->ops->join(second->handler);
    run_until_told(second, 1);
    assert_string_equal(second->trace, "joined");
    assert_string_equal(first->trace, "joined");
}

static void on_alone(void *ctx)
{
    struct watched *w = ctx;

    w->alone++;
    uv_stop(&w->scene->loop);
}

/* So that its agent need not wait for nodes that do not exist, or have gone. */
static void rank_0_is_told_when_nobody_uses_its_store(void **state)
{
    struct scene *s = *state;
    struct watched *first = start_node(s, 0, 2, QUICK_S), *second = start_node(s, 1, 2, QUICK_S);

    first->handler->ops->join(first->handler);
    second->handler->ops->join(second->handler);
    run_until_told(first, 1);
    run_until_told(second, 1);
    second->handler->ops->when_alone(second->handler, on_alone, second);
    first->handler->ops->when_alone(first->handler, on_alone, first);
    while (first->alone == 0)
        (void)uv_run(&s->loop, UV_RUN_DEFAULT);
    assert_int_equal(first->alone, 1);
    assert_int_equal(second->alone, 0); /* it has no store */
}

/* As PyTorch has it: nothing is registered, and nobody is refused. */
static void where_rank_0_is_not_ours_nodes_are_only_counted(void **state)
{
    struct scene *s = *state;
    const struct muster_store_server_config config = { .size = sizeof config, .port = s->port };
    struct muster_store_server *server = NULL;
    struct watched *w = start_as(s, 0, 1, NODES, QUICK_S), *again = start_as(s, 1, 1, NODES, QUICK_S);

    assert_int_equal(muster_store_server_start(&config, &server, NULL), 0);
    w->handler->ops->join(w->handler);
    again->handler->ops->join(again->handler);
    run_until_told(w, 1);
    run_until_told(again, 1);
    assert_string_equal(w->trace, "joined");
    assert_string_equal(again->trace, "joined");
    muster_store_server_stop(server);
}

static void a_handler_may_be_freed_at_any_time(void **state)
{
    struct scene *s = *state;

    for (int turns = 0; turns < 12; turns++) {
        struct watched *w = start_node(s, 0, 2, QUICK_S);

        s->freed = 0;
        w->handler->ops->join(w->handler);
        for (int i = 0; i < turns; i++)
            (void)uv_run(&s->loop, UV_RUN_NOWAIT);
        end_node(w);
        while (s->freed == 0)
            (void)uv_run(&s->loop, UV_RUN_DEFAULT);
        assert_int_equal(w->told, 0);
    }
    s->freed = 0;
    s->nodes[0].ends = true;
    start_node(s, 0, 1, QUICK_S)->ends = true;
    s->nodes[0].handler->ops->join(s->nodes[0].handler);
    while (s->freed == 0)
        (void)uv_run(&s->loop, UV_RUN_DEFAULT);
    assert_string_equal(s->nodes[0].trace, "joined");
}

static void every_allocation_may_fail(void **state)
{
    struct muster_rdzv_params *params = params_of("127.0.0.1:1", NODES, "rank=1");
    uv_loop_t loop;

    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    FOR_EACH_FAILURE (n) {
        struct muster_rdzv *rdzv = NULL;
        int rc = muster_rdzv_static_create(NULL, params, &rdzv, NULL);

        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        muster_rdzv_free(rdzv);
    }
    FOR_EACH_FAILURE (n) {
        struct muster_handler *handler = NULL;
        int rc = mu_static_start(&loop, params, ignore_event, NULL, &handler, NULL);

        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        if (rc == 0)
            handler->ops->free(handler, ignore_freed, NULL);
        (void)uv_run(&loop, UV_RUN_DEFAULT);
    }
    assert_int_equal(uv_loop_close(&loop), 0);
    muster_rdzv_params_free(params);
}

/* Of a whole join: it fails in a way that is told, or it gets through. */
static void every_allocation_of_a_join_may_fail(void **state)
{
    struct scene *s = *state;

    FOR_EACH_FAILURE (n) {
        struct watched *w = &s->nodes[0];
        struct muster_rdzv_params *params;

        fail_alloc_at(0); /* not yet */
        params = params_at(s->port, 0, 1, QUICK_S);
        *w = (struct watched){ .scene = s };
        assert_int_equal(mu_static_start(&s->loop, params, on_event, w, &w->handler, NULL), 0);
        muster_rdzv_params_free(params);
        s->freed = 0;
        fail_alloc_at(n);
        w->handler->ops->join(w->handler);
        run_until_told(w, 1);
        if (!fail_alloc_hit())
            assert_string_equal(w->trace, "joined");
        end_node(w);
        while (s->freed == 0)
            (void)uv_run(&s->loop, UV_RUN_DEFAULT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_come_in_the_given_order),
        cmocka_unit_test(a_rank_is_any_text_or_number_that_is_an_integer),
        cmocka_unit_test(parts_are_checked_as_parameters_are),
        cmocka_unit_test(nodes_meet_at_the_store_of_rank_0),
        cmocka_unit_test(keys_have_the_run_id_as_prefix),
        cmocka_unit_test(two_jobs_of_one_process_may_share_the_port),
        cmocka_unit_test(whoever_waits_in_vain_is_told_what_for),
        SCENE(nodes_on_a_loop_meet_too),
        SCENE(rank_0_waits_for_all_of_them),
        SCENE(later_joins_find_the_same_store),
        SCENE(a_join_may_be_taken_back_and_begun_again),
        SCENE(a_node_that_is_missing_is_a_timeout),
        SCENE(without_a_timeout_it_waits_for_ten_minutes),
        SCENE(a_rank_0_that_is_missing_is_a_failed_connection),
        SCENE(a_port_that_is_taken_is_named),
        SCENE(a_lost_rank_0_ends_the_membership),
        SCENE(everybody_hears_who_is_in),
        SCENE(a_second_node_of_the_same_rank_is_told_who_has_it),
        SCENE(a_node_that_is_killed_is_told_to_all),
        SCENE(after_a_loss_all_may_meet_again),
        SCENE(a_node_that_is_killed_before_all_are_in_may_be_replaced),
        SCENE(a_node_that_ends_by_itself_is_not_lost),
        SCENE(rank_0_is_told_when_nobody_uses_its_store),
        SCENE(where_rank_0_is_not_ours_nodes_are_only_counted),
        SCENE(a_handler_may_be_freed_at_any_time),
        cmocka_unit_test(every_allocation_may_fail),
        SCENE(every_allocation_of_a_join_may_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
