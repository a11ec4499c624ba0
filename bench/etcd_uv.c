/* What a rendezvous of many nodes costs on a back end, on real sockets: N handlers of one process meet, whatever the
 * back end.
 *
 *   muster-bench-etcd BACKEND ENDPOINT crowd N    all join one round at once: wall time. They leave when standard input
 *                                                 has a line or ends
 *   muster-bench-etcd BACKEND ENDPOINT killed N   N members, one of them another process, which is killed: how many ms
 *                                                 until the first and the last of the others are told
 *   muster-bench-etcd BACKEND ENDPOINT left N     the same, but it leaves
 *
 * Prints one line of JSON. Every wait is bounded. bench/etcd-report counts what etcd has to do for it. */
#include "handler/handler.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#define DEADLINE_MS 180000

/* What a node is told; of a crowd on one machine, keep-alives are not what is measured. */
struct options {
    const char *backend, *crowd, *loss;
};

static const struct options options[] = {
    { "etcd-v2", "keep_alive_interval=60,read_timeout=180", "read_timeout=180" },
    { "etcd-v3", "lease=60,read_timeout=180", "lease=10,read_timeout=180" },
};

struct bench;

struct node {
    struct bench *bench;
    struct muster_handler *handler;
    bool lost;
};

struct bench {
    uv_loop_t loop;
    uv_timer_t deadline;
    const char *backend, *endpoint, *run_id, *what, *options;
    struct node *nodes;
    size_t count, world, joined, lost, freed;
    uint64_t first_ns, last_ns; /* told that somebody is lost */
};

static void die(const char *what, const char *why)
{
    (void)fprintf(stderr, "muster-bench-etcd: %s: %s\n", what, why);
    exit(1);
}

static void on_event(void *ctx, const struct muster_rdzv_event *event)
{
    struct node *node = ctx;
    struct bench *bench = node->bench;

    switch (event->type) {
    case MUSTER_RDZV_JOINED:
        if (++bench->joined == bench->count)
            uv_stop(&bench->loop);
        break;
    case MUSTER_RDZV_PEERS_LOST:
    case MUSTER_RDZV_REMOVED:
        if (node->lost)
            break;
        node->lost = true;
        bench->last_ns = uv_hrtime();
        if (bench->lost++ == 0)
            bench->first_ns = bench->last_ns;
        if (bench->lost == bench->count)
            uv_stop(&bench->loop);
        break;
    case MUSTER_RDZV_FAILED:
        die(bench->what, event->error->text);
        break;
    default:
        break;
    }
}

static void on_late(uv_timer_t *timer)
{
    struct bench *bench = timer->data;
    char why[100];

    (void)snprintf(why, sizeof why, "%zu of %zu joined, %zu told of a loss within %d s", bench->joined, bench->count,
                   bench->lost, DEADLINE_MS / 1000);
    die(bench->what, why);
}

static void run(struct bench *bench, const char *what)
{
    bench->what = what;
    (void)uv_timer_start(&bench->deadline, on_late, DEADLINE_MS, 0);
    (void)uv_run(&bench->loop, UV_RUN_DEFAULT);
}

static void start_node(struct bench *bench, struct node *node, size_t index)
{
    struct muster_rdzv_params *params = NULL;
    struct muster_error error = { 0 };
    char name[40];

    (void)snprintf(name, sizeof name, "127.0.%zu.%zu", index / 250, index % 250 + 1);
    node->bench = bench;
    if (muster_rdzv_params_new(bench->backend, bench->endpoint, bench->run_id, (int64_t)bench->world,
                               (int64_t)bench->world, name, &params, &error) < 0 ||
        (bench->options != NULL && muster_rdzv_params_set_options(params, bench->options, &error) < 0) ||
        mu_handler_start_by_name(muster_rdzv_registry_default(), &bench->loop, params, &MU_DRIVING_DEFAULT, on_event,
                                 node, &node->handler, &error) < 0)
        die("start", error.text);
    muster_rdzv_params_free(params);
}

/* `count` nodes of a world, the first of them numbered `first`. */
static void open_bench(struct bench *bench, size_t first, size_t count)
{
    bench->count = count;
    bench->nodes = calloc(count, sizeof *bench->nodes);
    if (bench->nodes == NULL || uv_loop_init(&bench->loop) < 0)
        die("memory", "none");
    (void)uv_timer_init(&bench->loop, &bench->deadline);
    bench->deadline.data = bench;
    for (size_t i = 0; i < count; i++)
        start_node(bench, &bench->nodes[i], first + i);
}

static void on_freed(void *ctx)
{
    struct bench *bench = ((struct node *)ctx)->bench;

    if (++bench->freed == bench->count)
        uv_close((uv_handle_t *)&bench->deadline, NULL);
}

static void close_bench(struct bench *bench)
{
    for (size_t i = 0; i < bench->count; i++)
        bench->nodes[i].handler->ops->free(bench->nodes[i].handler, on_freed, &bench->nodes[i]);
    run(bench, "end");
    (void)uv_loop_close(&bench->loop);
    free(bench->nodes);
}

static double join_all(struct bench *bench)
{
    uint64_t start = uv_hrtime();

    uv_update_time(&bench->loop);
    for (size_t i = 0; i < bench->count; i++)
        bench->nodes[i].handler->ops->join(bench->nodes[i].handler);
    run(bench, "join");
    return (double)(uv_hrtime() - start) / 1e6;
}

static void on_told_to_leave(uv_signal_t *handle, int number)
{
    struct bench *bench = handle->data;

    (void)number;
    bench->nodes[0].handler->ops->leave(bench->nodes[0].handler);
}

/* One member in a process of its own, until it is killed or told to leave. */
static void be_victim(struct bench *bench)
{
    uv_signal_t term;

    open_bench(bench, 0, 1);
    bench->what = "victim";
    (void)uv_signal_init(&bench->loop, &term);
    term.data = bench;
    (void)uv_signal_start(&term, on_told_to_leave, SIGTERM);
    bench->nodes[0].handler->ops->join(bench->nodes[0].handler);
    bench->count = 2; /* its own joining stops no loop */
    (void)uv_run(&bench->loop, UV_RUN_DEFAULT);
    exit(0);
}

static void lose_one(struct bench *bench, size_t count, int how)
{
    uint64_t start;
    pid_t victim;

    bench->world = count;
    victim = fork();
    if (victim < 0)
        die("fork", "failed");
    if (victim == 0)
        be_victim(bench);
    open_bench(bench, 1, count - 1);
    (void)join_all(bench);
    start = uv_hrtime();
    (void)kill(victim, how);
    run(bench, "loss");
    (void)printf("{\"mode\": \"%s\", \"backend\": \"%s\", \"nodes\": %zu, \"first_ms\": %.1f, \"last_ms\": %.1f}\n",
                 how == SIGKILL ? "killed" : "left", bench->backend, count, (double)(bench->first_ns - start) / 1e6,
                 (double)(bench->last_ns - start) / 1e6);
    (void)kill(victim, SIGKILL);
    (void)waitpid(victim, NULL, 0);
    close_bench(bench);
}

static void crowd(struct bench *bench, size_t count)
{
    double wall_ms;
    int c;

    bench->world = count;
    open_bench(bench, 0, count);
    wall_ms = join_all(bench);
    (void)printf("{\"mode\": \"crowd\", \"backend\": \"%s\", \"nodes\": %zu, \"wall_ms\": %.1f}\n", bench->backend,
                 count, wall_ms);
    (void)fflush(stdout);
    while ((c = getchar()) != EOF && c != '\n')
        continue;
    close_bench(bench);
}

int main(int argc, char **argv)
{
    struct bench bench = { .what = "start" };
    struct rlimit files;
    uint64_t random = 0;
    char run_id[40];
    size_t count = argc == 5 ? strtoul(argv[4], NULL, 10) : 0;

    if (count == 0 || count > 10000 || (strcmp(argv[3], "crowd") != 0 && count < 2)) {
        (void)fprintf(stderr, "usage: muster-bench-etcd BACKEND ENDPOINT crowd|killed|left NODES\n");
        return 2;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    if (getrandom(&random, sizeof random, 0) < 0)
        die("random numbers", "none");
    (void)snprintf(run_id, sizeof run_id, "bench-%016" PRIx64, random);
    bench.backend = argv[1];
    bench.endpoint = argv[2];
    bench.run_id = run_id;
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        if (strcmp(options[i].backend, bench.backend) == 0)
            bench.options = strcmp(argv[3], "crowd") == 0 ? options[i].crowd : options[i].loss;
    if (strcmp(argv[3], "crowd") == 0)
        crowd(&bench, count);
    else
        lose_one(&bench, count, strcmp(argv[3], "killed") == 0 ? SIGKILL : SIGTERM);
    return 0;
}
