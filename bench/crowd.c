/* The modes in which a crowd meets at one key: barrier, waiters and idle.
 *
 * Barrier: every client ADDs 1 to a counter and then WAITs on a second key, which the one that was
 * answered with the size of the crowd SETs first. Waiters: every client WAITs, and a CHECK of nothing in
 * the same send tells that its WAIT has been taken up, because a pending WAIT holds back no later request;
 * then one more client SETs the key. Idle: connections that do nothing are opened and the server's memory
 * is read. */
#include <stdlib.h>
#include <time.h>

#include "modes.h"
#include "probe.h"

enum crowd_step { STEP_COUNTED, STEP_WOKEN };

struct crowd {
    struct wire_message enter, wait, open;
    int64_t first_woken_ns;
};

static const char open_value[] = "1";

static double ms(int64_t ns)
{
    return (double)ns / 1e6;
}

static void on_barrier_reply(struct load *load, struct load_client *client)
{
    struct crowd *crowd = load->mode;

    if (client->step == STEP_WOKEN) {
        load_arrive(load);
        return;
    }
    client->step = STEP_WOKEN;
    if (wire_i64(client->reply) == (int64_t)load->goal)
        load_send(load, client, &crowd->open, WIRE_STATUS_REPLY);
    else
        load_send(load, client, &crowd->wait, WIRE_STATUS_REPLY);
}

static void prepare_barrier(const struct load *load, struct crowd *crowd)
{
    enum wire_dialect dialect = load->config->dialect;
    char key[WIRE_KEY_MAX];

    load_key(load, key, "barrier/num_members");
    wire_add(&crowd->enter, dialect, key, 1);
    load_key(load, key, "barrier/last_member");
    wire_wait(&crowd->wait, dialect, key);
    wire_set(&crowd->open, dialect, key, open_value, sizeof(open_value) - 1);
    wire_wait(&crowd->open, dialect, key);
}

void mode_barrier(const struct mode_options *options, struct figures *out)
{
    const struct load_config *config = options->config;
    int64_t t[4], cpu[4];
    struct crowd crowd = { 0 };
    struct load load;

    load_init(&load, config, options->clients, &crowd);
    prepare_barrier(&load, &crowd);
    probe_settle(config->server_pid);
    cpu[0] = probe_cpu_ns(config->server_pid);
    t[0] = now_ns();
    load_connect(&load, options->clients, false);
    t[1] = now_ns();
    cpu[1] = probe_cpu_ns(config->server_pid);
    probe_settle(config->server_pid);
    load_begin(&load, "barrier", options->clients, on_barrier_reply);
    cpu[2] = probe_cpu_ns(config->server_pid);
    t[2] = now_ns();
    for (uint32_t i = 0; i < options->clients; i++)
        load_send(&load, &load.clients[i], &crowd.enter, WIRE_ADD_REPLY);
    load_finish(&load);
    t[3] = now_ns();
    cpu[3] = probe_cpu_ns(config->server_pid);
    load_done(&load);
    figure_add(out, "connect_ms", "ms", 2, ms(t[1] - t[0]));
    figure_add(out, "connect_cpu_us", "us", 2, cpu_us(config, cpu[1] - cpu[0], options->clients));
    figure_add(out, "barrier_ms", "ms", 2, ms(t[3] - t[2]));
    figure_add(out, "barrier_cpu_us", "us", 2, cpu_us(config, cpu[3] - cpu[2], options->clients));
}

/* The first reply is CHECK's, the second is WAIT's: what must still come is one byte without a new
 * request. */
static void on_registered(struct load *load, struct load_client *client)
{
    client->want = WIRE_STATUS_REPLY;
    client->got = 0;
    load_arrive(load);
}

static void on_woken(struct load *load, struct load_client *client)
{
    struct crowd *crowd = load->mode;

    if (crowd->first_woken_ns == 0)
        crowd->first_woken_ns = now_ns();
    client->want = 0;
    client->got = 0;
    load_arrive(load);
}

/* The kernel keeps acknowledgements of what came last back for 40 ms. Whichever server is quick to register would else
 * be woken into them: its wake-ups would be paid for with timers, and answered at once. */
static void let_acknowledge(void)
{
    const struct timespec pause = { .tv_nsec = 60000000 };

    (void)nanosleep(&pause, NULL);
}

static void prepare_waiters(const struct load *load, struct crowd *crowd)
{
    enum wire_dialect dialect = load->config->dialect;
    char key[WIRE_KEY_MAX];

    load_key(load, key, "waiters/key");
    if (dialect ==
        WIRE_L0) /* a client of 1.13 that asks for more has given up waiting; that all wait is seen by the CPU time */
        wire_check_nothing(&crowd->wait, dialect);
    wire_wait(&crowd->wait, dialect, key);
    if (dialect != WIRE_L0)
        wire_check_nothing(&crowd->wait, dialect);
    wire_set(&crowd->open, dialect, key, open_value, sizeof(open_value) - 1);
}

void mode_waiters(const struct mode_options *options, struct figures *out)
{
    const struct load_config *config = options->config;
    int64_t start_ns, end_ns, cpu_ns;
    struct crowd crowd = { 0 };
    struct load load;

    load_init(&load, config, options->clients + 1, &crowd);
    prepare_waiters(&load, &crowd);
    load_connect(&load, options->clients + 1, false);
    load_begin(&load, "registering waiters", options->clients, on_registered);
    for (uint32_t i = 0; i < options->clients; i++)
        load_send(&load, &load.clients[i], &crowd.wait, WIRE_STATUS_REPLY);
    load_finish(&load);
    probe_settle(config->server_pid);
    let_acknowledge();
    load_begin(&load, "waking waiters", options->clients, on_woken);
    cpu_ns = probe_cpu_ns(config->server_pid);
    start_ns = now_ns();
    load_send(&load, &load.clients[options->clients], &crowd.open, 0);
    load_finish(&load);
    end_ns = now_ns();
    cpu_ns = probe_cpu_ns(config->server_pid) - cpu_ns;
    load_done(&load);
    figure_add(out, "first_ms", "ms", 2, ms(crowd.first_woken_ns - start_ns));
    figure_add(out, "last_ms", "ms", 2, ms(end_ns - start_ns));
    figure_add(out, "wake_cpu_us", "us", 2, cpu_us(config, cpu_ns, options->clients));
}

struct idle {
    struct load load;
    bool silent;
    uint32_t open;
    struct probe_memory before;
};

struct idle *idle_new(const struct mode_options *options, uint32_t clients_max)
{
    struct idle *idle = calloc(1, sizeof(*idle));

    if (idle == NULL)
        die("idle: out of memory");
    if (options->config->server_pid == 0)
        die("idle: needs --server-pid");
    /* Each size may add one connection that speaks; see idle_grow(). */
    load_init(&idle->load, options->config, clients_max + FIGURES_MAX, NULL);
    idle->silent = options->silent;
    probe_settle(options->config->server_pid);
    idle->before = probe_memory(options->config->server_pid);
    return idle;
}

void idle_grow(struct idle *idle, uint32_t clients, struct figures *out)
{
    pid_t pid = idle->load.config->server_pid;
    const struct probe_memory *before = &idle->before;
    struct probe_memory now;

    if (clients < idle->open)
        die("idle: sizes must grow: %u follows %u", clients, idle->open);
    load_connect(&idle->load, clients - idle->open, idle->silent);
    idle->open = clients;
    if (idle->silent)
        load_connect(&idle->load, 1, false); /* accepted after the others: its answer says that all are in */
    probe_settle(pid);
    now = probe_memory(pid);
    figure_add(out, "idle_rss_kib", "KiB", 0, before->rss_kib);
    figure_add(out, "idle_anon_kib", "KiB", 0, before->anon_kib);
    figure_add(out, "idle_file_kib", "KiB", 0, before->file_kib);
    figure_add(out, "rss_kib", "KiB", 0, now.rss_kib);
    figure_add(out, "anon_kib", "KiB", 0, now.anon_kib);
    figure_add(out, "file_kib", "KiB", 0, now.file_kib);
    figure_add(out, "per_connection_bytes", "B", 0, (now.rss_kib - before->rss_kib) * 1024 / clients);
    figure_add(out, "per_connection_anon_bytes", "B", 0, (now.anon_kib - before->anon_kib) * 1024 / clients);
}

void idle_free(struct idle *idle)
{
    load_done(&idle->load);
    free(idle);
}
