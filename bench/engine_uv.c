/* What a job of many nodes costs in the engine of a muster store, on real sockets: N nodes of one process, each with a
 * machine and a connection of its own, as agents have them, but without agents and workers.
 *
 *   muster-bench-engine ENDPOINT SERVER_PID NODES IDLE_S
 *
 * form: all join at once. re-form: one reports that a worker has failed; each node that hears of the end joins again.
 * lose: a node's lease is ended, as a keeper does it for a killed agent. idle: nothing happens for IDLE_S seconds.
 * Prints one line of JSON. Every wait is bounded. */
#include "base/rng.h"
#include "kv/engine_store_uv.h"
#include "kv/later_uv.h"
#include "rdzv/fold.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <uv.h>

enum { DEADLINE_MS = 120000, LEASE_MS = 5000, JOB_LEASE_MS = 60000, SETTLE_MS = 2000, NODES_MAX = 20000 };

struct bench;

struct node {
    struct bench *bench;
    struct mu_fold *fold;
    struct mu_engine_client *client;
    uv_timer_t timer;
    bool in, wants_to_join; /* in the present round; in the next one */
};

struct bench {
    uv_loop_t *loop;
    uv_timer_t deadline;
    const char *what;
    struct node *nodes;
    size_t count, awaited; /* so many of them are to be in */
    size_t in, closed;
    int64_t round; /* that is awaited, or a later one */
};

static void die(const char *what, const char *why)
{
    (void)fprintf(stderr, "muster-bench-engine: %s: %s\n", what, why);
    exit(1);
}

static double ms_since(uint64_t start_ns)
{
    return (double)(uv_hrtime() - start_ns) / 1e6;
}

/* ---- A node ---- */

static void feed(struct node *node, struct mu_fold_event event);

static void on_time(uv_timer_t *timer)
{
    feed(timer->data, (struct mu_fold_event){ .type = MU_FOLD_ON_TIME });
}

static void hear(struct node *node, const struct mu_part_news *news)
{
    struct bench *bench = node->bench;

    if (news->tell == MU_PART_TELL_JOINED) {
        node->in = news->round >= bench->round;
        bench->in += node->in;
        if (bench->in == bench->awaited)
            uv_stop(bench->loop);
    } else if (news->tell == MU_PART_TELL_LOST || news->tell == MU_PART_TELL_REMOVED) {
        node->wants_to_join = true; /* its workers end at once */
    } else if (news->tell == MU_PART_TELL_FAILED) {
        die(bench->what, news->error->text);
    }
}

static void feed(struct node *node, struct mu_fold_event event)
{
    uint64_t now_ms = uv_now(node->bench->loop);
    struct mu_fold_effects effects;

    event.now_ms = now_ms;
    mu_fold_step(node->fold, &event, &effects);
    for (unsigned i = 0; i < effects.count; i++)
        if (effects.items[i].type < MU_FOLD_DO_TELL)
            node->client->ops->request(node->client, &effects.items[i], mu_fold_request_until_ms(node->fold, now_ms));
    for (unsigned i = 0; i < effects.count; i++)
        if (effects.items[i].type == MU_FOLD_DO_TELL)
            hear(node, &effects.items[i].news);
    mu_timer_until(&node->timer, mu_fold_deadline_ms(node->fold), on_time);
    if (!node->wants_to_join)
        return;
    node->wants_to_join = false;
    feed(node, (struct mu_fold_event){ .type = MU_FOLD_ON_JOIN });
}

static void on_heard(void *ctx, const struct mu_fold_event *event)
{
    feed(ctx, *event);
}

static void start_node(struct bench *bench, size_t index, const char *endpoint, const char *run_id, uint64_t random)
{
    struct node *node = &bench->nodes[index];
    char name[64];
    struct mu_engine_store_config client = { .endpoint = endpoint,
                                             .run_id = run_id,
                                             .node = name,
                                             .lease_ms = LEASE_MS,
                                             .job_lease_ms = JOB_LEASE_MS,
                                             .seed = random + index };
    struct mu_fold_config fold = { .settings = MU_RDZV_SETTINGS_DEFAULT,
                                   .name = name,
                                   .pid = 1000 + (int64_t)index,
                                   .local_id = 1,
                                   .id = random ^ (index + 1),
                                   .lease_ms = LEASE_MS,
                                   .job_lease_ms = JOB_LEASE_MS,
                                   .first_ms = DEADLINE_MS,
                                   .tells_how = true,
                                   .seed = random + index,
                                   .ops_max = MU_ENGINE_OPS_MAX };
    struct muster_error error;

    (void)snprintf(name, sizeof name, "node-%06zu.example.org", index);
    fold.settings.nodes_min = (int64_t)bench->count - 1;
    fold.settings.nodes_max = (int64_t)bench->count;
    memcpy(client.will_secret, &random, sizeof random);
    node->bench = bench;
    if (mu_fold_new(&fold, &node->fold, &error) < 0 ||
        mu_engine_store_start(bench->loop, &client, on_heard, node, &node->client, &error) < 0)
        die("start", error.text);
    mu_fold_introduce(node->fold, &(struct mu_part_self){ "default", 1, 1000 });
    (void)uv_timer_init(bench->loop, &node->timer);
    node->timer.data = node;
}

/* ---- The job ---- */

static void on_late(uv_timer_t *timer)
{
    struct bench *bench = timer->data;
    char text[64];

    (void)snprintf(text, sizeof text, "%zu of %zu nodes within %d s", bench->in, bench->awaited, DEADLINE_MS / 1000);
    die(bench->what, text);
}

static void on_settled(uv_timer_t *timer)
{
    uv_stop(timer->loop);
}

static void run(struct bench *bench, const char *what)
{
    bench->what = what;
    (void)uv_timer_start(&bench->deadline, on_late, DEADLINE_MS, 0);
    (void)uv_run(bench->loop, UV_RUN_DEFAULT);
}

static void pass(struct bench *bench, uint64_t ms)
{
    bench->what = "idle";
    (void)uv_timer_start(&bench->deadline, on_settled, ms, 0);
    (void)uv_run(bench->loop, UV_RUN_DEFAULT);
}

static void await_all(struct bench *bench, size_t awaited)
{
    bench->in = 0;
    bench->awaited = awaited;
    for (size_t i = 0; i < bench->count; i++)
        bench->nodes[i].in = false;
}

/* Neither leads. */
static struct node *find_victim(struct bench *bench, size_t from)
{
    while (bench->nodes[from].client == NULL || mu_fold_is_leader(bench->nodes[from].fold))
        from++;
    return &bench->nodes[from];
}

static double form(struct bench *bench)
{
    uint64_t start_ns;

    await_all(bench, bench->count);
    uv_update_time(bench->loop);
    start_ns = uv_hrtime();
    for (size_t i = 0; i < bench->count; i++)
        feed(&bench->nodes[i], (struct mu_fold_event){ .type = MU_FOLD_ON_JOIN });
    run(bench, "form");
    return ms_since(start_ns);
}

static double reform(struct bench *bench)
{
    const struct mu_part_report report = { .end = MU_PART_END_FAILED, .rank = 1, .text = "exit code 1" };
    struct node *victim = find_victim(bench, 1);
    uint64_t start_ns;

    bench->round = mu_fold_world(victim->fold)->round + 1;
    await_all(bench, bench->count);
    uv_update_time(bench->loop);
    start_ns = uv_hrtime();
    feed(victim, (struct mu_fold_event){ .type = MU_FOLD_ON_REPORT, .report = &report });
    run(bench, "re-form");
    return ms_since(start_ns);
}

static void on_closed(void *ctx)
{
    struct bench *bench = ctx;

    bench->closed++;
    uv_stop(bench->loop);
}

/* Its lease is ended, and nothing is heard of it any more. */
static double lose(struct bench *bench)
{
    struct node *victim = find_victim(bench, 2);
    struct mu_engine_client *client = victim->client;
    uint64_t start_ns;

    bench->round = mu_fold_world(victim->fold)->round + 1;
    await_all(bench, bench->count - 1);
    uv_update_time(bench->loop);
    start_ns = uv_hrtime();
    victim->client = NULL;
    (void)uv_timer_stop(&victim->timer);
    client->ops->close(client, on_closed, bench);
    while (bench->in < bench->awaited)
        run(bench, "lose");
    return ms_since(start_ns);
}

static void close_all(struct bench *bench)
{
    size_t open = 0;

    for (size_t i = 0; i < bench->count; i++) {
        (void)uv_timer_stop(&bench->nodes[i].timer);
        uv_close((uv_handle_t *)&bench->nodes[i].timer, NULL);
        if (bench->nodes[i].client == NULL)
            continue;
        open++;
        bench->nodes[i].client->ops->close(bench->nodes[i].client, on_closed, bench);
    }
    for (bench->closed = 0; bench->closed < open;)
        run(bench, "end");
    uv_close((uv_handle_t *)&bench->deadline, NULL);
    (void)uv_run(bench->loop, UV_RUN_DEFAULT);
    for (size_t i = 0; i < bench->count; i++)
        mu_fold_free(bench->nodes[i].fold);
    free(bench->nodes);
}

static size_t number(const char *text, size_t max)
{
    char *end = NULL;
    unsigned long value = strtoul(text, &end, 10);

    if (*text == '\0' || *end != '\0' || value == 0 || value > max)
        die(text, "not a number, or too large");
    return (size_t)value;
}

/* What the server has used since it was asked last. */
static double cpu_ms(pid_t pid, double *last_ms)
{
    double before_ms = *last_ms;
    struct timespec used;
    clockid_t clock;

    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &used) < 0)
        die("server", "no such process");
    *last_ms = (double)used.tv_sec * 1e3 + (double)used.tv_nsec / 1e6;
    return *last_ms - before_ms;
}

static void measure(struct bench *bench, pid_t pid, uint64_t idle_ms)
{
    double used_ms = 0, form_ms, form_cpu_ms, reform_ms, reform_cpu_ms, lose_ms, idle_cpu_ms;

    (void)cpu_ms(pid, &used_ms);
    form_ms = form(bench);
    form_cpu_ms = cpu_ms(pid, &used_ms);
    pass(bench, SETTLE_MS);
    (void)cpu_ms(pid, &used_ms);
    reform_ms = reform(bench);
    reform_cpu_ms = cpu_ms(pid, &used_ms);
    pass(bench, SETTLE_MS);
    lose_ms = lose(bench);
    pass(bench, LEASE_MS);
    (void)cpu_ms(pid, &used_ms);
    pass(bench, idle_ms);
    idle_cpu_ms = cpu_ms(pid, &used_ms);
    (void)printf("{\"nodes\": %zu, \"form_ms\": %.1f, \"form_cpu_ms\": %.1f, \"reform_ms\": %.1f, "
                 "\"reform_cpu_ms\": %.1f, \"lose_ms\": %.1f, \"idle_percent\": %.2f}\n",
                 bench->count, form_ms, form_cpu_ms, reform_ms, reform_cpu_ms, lose_ms,
                 100 * idle_cpu_ms / (double)idle_ms);
}

int main(int argc, char **argv)
{
    struct rlimit files;
    struct bench bench = { .round = 0 };
    uv_loop_t loop;
    uint64_t random = 0;
    char run_id[64];

    if (argc != 5) {
        (void)fprintf(stderr, "usage: muster-bench-engine ENDPOINT SERVER_PID NODES IDLE_S\n");
        return 2;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        die("start", "no random numbers");
    (void)snprintf(run_id, sizeof run_id, "bench-%016" PRIx64, random);
    (void)uv_loop_init(&loop);
    bench.loop = &loop;
    bench.count = number(argv[3], NODES_MAX);
    bench.nodes = calloc(bench.count, sizeof *bench.nodes);
    if (bench.nodes == NULL || bench.count < 4)
        die("start", "no memory, or fewer than 4 nodes");
    (void)uv_timer_init(&loop, &bench.deadline);
    bench.deadline.data = &bench;
    for (size_t i = 0; i < bench.count; i++)
        start_node(&bench, i, argv[1], run_id, random | 1);
    measure(&bench, (pid_t)number(argv[2], 1u << 22), 1000 * number(argv[4], 3600));
    close_all(&bench);
    (void)uv_loop_close(&loop);
    return 0;
}
