/* What a rendezvous of many nodes costs, on real sockets: N handlers of one process meet at one store.
 *
 *   muster-bench-rdzv ENDPOINT crowd N      all join one round at once: wall time, writes, lost writes
 *   muster-bench-rdzv ENDPOINT bell N TIMES N members; one closes: when do the others know?
 *
 * Prints one line of JSON. Every wait is bounded. */
#include "base/log.h"
#include "handler/handler.h"
#include "kv/kv_c10d_uv.h"
#include "store/net.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>
#include <uv.h>

#define DEADLINE_MS 60000
#define HEAP_PER_NODE ((size_t)1 << 20)
#define BELLS_MAX 1000

struct bench;

struct node {
    struct bench *bench;
    struct mu_kv kv; /* counts and passes on */
    struct mu_kv *inner;
    struct mu_kv_ops ops;
    struct muster_handler *handler;
    size_t index;
    bool joined, closed, freed;
    uint64_t closed_ns;
};

struct bench {
    uv_loop_t *loop;
    uv_timer_t deadline;
    const char *host;
    uint16_t port;
    char run_id[64];
    struct node *nodes;
    size_t count, joined, closed, freed;
    uint64_t writes, lost, reads;
    bool late;
};

struct counted {
    mu_kv_done *done;
    void *ctx;
    struct bench *bench;
};

static void die(const char *what, const struct muster_error *error)
{
    (void)fprintf(stderr, "muster-bench-rdzv: %s: %s\n", what, error != NULL ? error->text : "failed");
    exit(1);
}

static void on_counted(struct mu_kv_request *request)
{
    struct counted counted = *(struct counted *)request->ctx;

    if (request->kind == MU_KV_WRITE && request->rc == 0 && !request->written)
        counted.bench->lost++;
    free(request->ctx);
    request->ctx = counted.ctx;
    counted.done(request);
}

static void count_submit(struct mu_kv *kv, struct mu_kv_request *request)
{
    struct node *node = (struct node *)((char *)kv - offsetof(struct node, kv));
    struct counted *counted = malloc(sizeof *counted);

    if (counted == NULL)
        die("count", NULL);
    *counted = (struct counted){ request->done, request->ctx, node->bench };
    request->done = on_counted;
    request->ctx = counted;
    node->bench->writes += request->kind == MU_KV_WRITE;
    node->bench->reads += request->kind == MU_KV_READ;
    node->inner->ops->submit(node->inner, request);
}

struct closing {
    struct node *node;
    mu_kv_closed *closed;
    void *ctx;
};

static void on_inner_closed(struct mu_kv *kv, void *ctx)
{
    struct closing closing = *(struct closing *)ctx;

    (void)kv;
    free(ctx);
    closing.closed(&closing.node->kv, closing.ctx);
}

static void count_close(struct mu_kv *kv, mu_kv_closed *closed, void *ctx)
{
    struct node *node = (struct node *)((char *)kv - offsetof(struct node, kv));
    struct closing *closing = malloc(sizeof *closing);

    if (closing == NULL)
        die("close", NULL);
    *closing = (struct closing){ node, closed, ctx };
    node->inner->ops->close(node->inner, on_inner_closed, closing);
}

static bool count_local_address(const struct mu_kv *kv, char *text, size_t room)
{
    const struct node *node = (const struct node *)((const char *)kv - offsetof(struct node, kv));

    return node->inner->ops->local_address(node->inner, text, room);
}

static void on_event(void *ctx, const struct muster_rdzv_event *event)
{
    struct node *node = ctx;
    struct bench *bench = node->bench;

    if (event->type == MUSTER_RDZV_JOINED) {
        node->joined = true;
        bench->joined++;
        if (bench->joined == bench->count)
            uv_stop(bench->loop);
    } else if (event->type == MUSTER_RDZV_CLOSED && !node->closed) {
        node->closed = true;
        node->closed_ns = uv_hrtime();
        bench->closed++;
        if (bench->closed == bench->count)
            uv_stop(bench->loop);
    } else if (event->type == MUSTER_RDZV_FAILED) {
        die("rendezvous", event->error);
    }
}

static void start_node(struct bench *bench, size_t index)
{
    struct node *node = &bench->nodes[index];
    struct mu_kv_c10d_config kv_config = {
        .host = bench->host, .port = bench->port, .run_id = bench->run_id, .read_timeout_ms = 60000, .seed = index + 1
    };
    char name[32];
    struct mu_dynamic_config config = {
        .backend = "c10d",
        .run_id = bench->run_id,
        .local_addr = name,
        .settings = MU_RDZV_SETTINGS_DEFAULT,
        .dialect = MU_DOC_DIALECT_2_X,
        .request_timeout_ms = 60000,
    };
    struct muster_error error = { 0 };

    /* Names as long as those of a cluster's nodes; 127.0.0.1 is what they are. */
    (void)snprintf(name, sizeof name, "node-%06zu.example.org", index);
    config.settings.nodes_min = config.settings.nodes_max = (int64_t)bench->count;
    node->bench = bench;
    node->index = index;
    if (mu_kv_c10d_start(bench->loop, &kv_config, &node->inner, &error) < 0)
        die("store", &error);
    node->ops = *node->inner->ops;
    node->ops.submit = count_submit;
    node->ops.close = count_close;
    node->ops.local_address = count_local_address;
    node->kv.ops = &node->ops;
    if (mu_dynamic_start(bench->loop, &config, &node->kv, on_event, node, &node->handler, &error) < 0)
        die("handler", &error);
}

static void on_late(uv_timer_t *timer)
{
    struct bench *bench = timer->data;

    bench->late = true;
    uv_stop(bench->loop);
}

static void run(struct bench *bench, const char *what)
{
    (void)uv_timer_start(&bench->deadline, on_late, DEADLINE_MS, 0);
    (void)uv_run(bench->loop, UV_RUN_DEFAULT);
    if (bench->late) {
        (void)fprintf(stderr,
                      "muster-bench-rdzv: %s: %zu of %zu joined, %zu closed within %d s (%" PRIu64 " writes, %" PRIu64
                      " lost, %" PRIu64 " reads)\n",
                      what, bench->joined, bench->count, bench->closed, DEADLINE_MS / 1000, bench->writes, bench->lost,
                      bench->reads);
        exit(1);
    }
}

static void on_freed(void *ctx)
{
    struct node *node = ctx;

    node->bench->freed++;
    if (node->bench->freed == node->bench->count)
        uv_stop(node->bench->loop);
}

static void open_bench(struct bench *bench, uv_loop_t *loop, const char *host, uint16_t port, size_t count)
{
    uint64_t random = 0;

    *bench = (struct bench){ .loop = loop, .host = host, .port = port, .count = count };
    if (getrandom(&random, sizeof random, 0) < 0)
        die("random numbers", NULL);
    (void)snprintf(bench->run_id, sizeof bench->run_id, "bench-%016" PRIx64, random);
    bench->nodes = calloc(count, sizeof *bench->nodes);
    if (bench->nodes == NULL)
        die("memory", NULL);
    (void)uv_timer_init(loop, &bench->deadline);
    bench->deadline.data = bench;
    for (size_t i = 0; i < count; i++)
        start_node(bench, i);
}

static void on_nothing(uv_handle_t *handle)
{
    uv_stop(handle->loop);
}

static void close_bench(struct bench *bench)
{
    for (size_t i = 0; i < bench->count; i++)
        bench->nodes[i].handler->ops->free(bench->nodes[i].handler, on_freed, &bench->nodes[i]);
    run(bench, "end");
    uv_close((uv_handle_t *)&bench->deadline, on_nothing);
    (void)uv_run(bench->loop, UV_RUN_DEFAULT);
    free(bench->nodes);
}

/* From the first node's wish to join, its connections still to be made, to the last one's knowing its rank and
 * master. */
static double join_all(struct bench *bench)
{
    uint64_t start = 0;

    uv_update_time(bench->loop);
    start = uv_hrtime();
    for (size_t i = 0; i < bench->count; i++)
        bench->nodes[i].handler->ops->join(bench->nodes[i].handler);
    run(bench, "join");
    return (double)(uv_hrtime() - start) / 1e6;
}

static void crowd(uv_loop_t *loop, const char *host, uint16_t port, size_t count)
{
    struct bench bench;
    double wall_ms = 0;

    open_bench(&bench, loop, host, port, count);
    wall_ms = join_all(&bench);
    (void)printf("{\"mode\": \"crowd\", \"clients\": %zu, \"wall_ms\": %.1f, \"writes\": %" PRIu64
                 ", \"lost\": %" PRIu64 ", \"reads\": %" PRIu64 ", \"writes_per_join\": %.3f}\n",
                 count, wall_ms, bench.writes, bench.lost, bench.reads, (double)bench.writes / (double)count);
    close_bench(&bench);
}

static int by_size(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;

    return (left > right) - (left < right);
}

static void bell(uv_loop_t *loop, const char *host, uint16_t port, size_t count, size_t times)
{
    double *seen_ms = calloc(times * count, sizeof *seen_ms);
    size_t seen = 0;

    if (seen_ms == NULL)
        die("memory", NULL);
    for (size_t k = 0; k < times; k++) {
        struct bench bench;

        open_bench(&bench, loop, host, port, count);
        (void)join_all(&bench);
        bench.nodes[0].handler->ops->close(bench.nodes[0].handler);
        run(&bench, "close");
        for (size_t i = 1; i < count; i++) /* both times are of this process, whose loop does one thing at a time */
            seen_ms[seen++] = bench.nodes[i].closed_ns > bench.nodes[0].closed_ns
                                  ? (double)(bench.nodes[i].closed_ns - bench.nodes[0].closed_ns) / 1e6
                                  : 0;
        close_bench(&bench);
    }
    qsort(seen_ms, seen, sizeof *seen_ms, by_size);
    (void)printf("{\"mode\": \"bell\", \"clients\": %zu, \"times\": %zu, \"median_ms\": %.3f, \"p90_ms\": %.3f, "
                 "\"worst_ms\": %.3f}\n",
                 count, times, seen_ms[seen / 2], seen_ms[seen * 9 / 10], seen_ms[seen - 1]);
    free(seen_ms);
}

/* A thousand nodes in one process give buffers back and take them again all the time, and every page of a thousand
 * nodes would be met for the first time by one core: each node alone would do neither. So the heap is there, and
 * kept. */
static void warm_heap(size_t bytes)
{
    char *heap;

    (void)mallopt(M_MMAP_THRESHOLD, INT_MAX);
    (void)mallopt(M_TRIM_THRESHOLD, INT_MAX);
    heap = malloc(bytes);
    if (heap == NULL)
        die("memory", NULL);
    memset(heap, 1, bytes);
    __asm__ volatile("" : : "r"(heap) : "memory"); /* it is not for nothing */
    free(heap);
}

static size_t number(const char *text)
{
    char *end = NULL;
    unsigned long value = strtoul(text, &end, 10);

    if (*text == '\0' || *end != '\0' || value == 0 || value > 100000)
        die(text, NULL);
    return (size_t)value;
}

int main(int argc, char **argv)
{
    struct rlimit files;
    struct muster_error error = { 0 };
    char host[MU_HOST_MAX];
    uint16_t port = 0;
    uv_loop_t loop;

    if (argc < 4 || (strcmp(argv[2], "bell") == 0 && argc < 5)) {
        (void)fprintf(stderr, "usage: muster-bench-rdzv ENDPOINT crowd NODES | ENDPOINT bell NODES TIMES\n");
        return 2;
    }
    if (mu_endpoint_parse(argv[1], 0, host, &port, &error) < 0)
        die(argv[1], &error);
    (void)signal(SIGPIPE, SIG_IGN);
    warm_heap(number(argv[3]) * HEAP_PER_NODE);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    (void)uv_loop_init(&loop);
    if (strcmp(argv[2], "bell") == 0)
        bell(&loop, host, port, number(argv[3]), number(argv[4]));
    else
        crowd(&loop, host, port, number(argv[3]));
    (void)uv_loop_close(&loop);
    return 0;
}
