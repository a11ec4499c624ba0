/* The closed-loop mix: each client has one request in flight and sends ADD, CHECK and GET in turn.
 *
 * Warm-up, then a measured stretch between two moments at which clocks and counters are read together,
 * then each client stops after the reply it still waits for. Clients start at different requests of the
 * three, so that the mix is even at every moment. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "modes.h"
#include "probe.h"

#define VALUE_BYTES 100u
#define SUB_BITS 5u /* 32 buckets a power of two: a latency is known within 3 % */
#define SUB_COUNT (1u << SUB_BITS)
#define BUCKETS (64u * SUB_COUNT)

enum mix_phase { MIX_WARMUP, MIX_MEASURE, MIX_DRAIN };
enum mix_step { STEP_ADD, STEP_CHECK, STEP_GET, STEP_COUNT };

struct mix_moment {
    int64_t time_ns, server_cpu_ns, own_cpu_ns;
};

struct mix {
    const struct mode_options *options;
    enum mix_phase phase;
    int64_t phase_end_ns;
    uint64_t requests; /* answered in the measured stretch */
    struct mix_moment begin, end;
    struct wire_message check, get, *adds;
    int64_t *sent_ns;
    uint64_t buckets[BUCKETS];
};

static uint32_t bucket_of(uint64_t ns)
{
    uint32_t shift;

    if (ns < SUB_COUNT)
        return (uint32_t)ns;
    shift = 63u - (uint32_t)__builtin_clzll(ns) - SUB_BITS;
    return (shift + 1) * SUB_COUNT + (uint32_t)((ns >> shift) - SUB_COUNT);
}

/* The middle of a bucket. */
static double bucket_ns(uint32_t bucket)
{
    uint32_t shift;

    if (bucket < SUB_COUNT)
        return bucket;
    shift = bucket / SUB_COUNT - 1;
    return ldexp((double)(bucket % SUB_COUNT + SUB_COUNT) + 0.5, (int)shift);
}

static double quantile_us(const struct mix *mix, double share)
{
    double rank = ceil(share * (double)mix->requests);
    uint64_t seen = 0;

    for (uint32_t i = 0; i < BUCKETS; i++) {
        seen += mix->buckets[i];
        if (seen > 0 && (double)seen >= rank)
            return bucket_ns(i) / 1e3;
    }
    return NAN;
}

static struct mix_moment moment(const struct mix *mix, int64_t now)
{
    return (struct mix_moment){ .time_ns = now,
                                .server_cpu_ns = probe_cpu_ns(mix->options->config->server_pid),
                                .own_cpu_ns = probe_own_cpu_ns() };
}

static void turn_phase(struct mix *mix, int64_t now)
{
    const struct mode_options *options = mix->options;
    bool full = options->requests_max > 0 && mix->requests >= (uint64_t)options->requests_max;

    if (mix->phase == MIX_WARMUP && now >= mix->phase_end_ns) {
        mix->phase = MIX_MEASURE;
        mix->phase_end_ns = now + options->measure_ms * 1000000;
        mix->begin = moment(mix, now);
    } else if (mix->phase == MIX_MEASURE && (full || now >= mix->phase_end_ns)) {
        mix->phase = MIX_DRAIN;
        mix->end = moment(mix, now);
    }
}

static void send_step(struct load *load, struct load_client *client)
{
    struct mix *mix = load->mode;

    switch ((enum mix_step)client->step) {
    case STEP_ADD:
        load_send(load, client, &mix->adds[client->index], WIRE_ADD_REPLY);
        break;
    case STEP_CHECK:
        load_send(load, client, &mix->check, WIRE_STATUS_REPLY);
        break;
    case STEP_GET:
        load_send(load, client, &mix->get, WIRE_GET_REPLY + VALUE_BYTES);
        break;
    case STEP_COUNT:
        break;
    }
}

static void inspect(const struct load *load, const struct load_client *client)
{
    if (client->step == STEP_GET && wire_i64(client->reply) != (int64_t)VALUE_BYTES)
        die("%s: client %u: GET answered %lld bytes", load->doing, client->index, (long long)wire_i64(client->reply));
    if (client->step == STEP_CHECK && client->reply[0] != 0)
        die("%s: client %u: CHECK does not find the key", load->doing, client->index);
}

static void on_reply(struct load *load, struct load_client *client)
{
    struct mix *mix = load->mode;
    int64_t now = now_ns();

    inspect(load, client);
    if (mix->phase == MIX_MEASURE) {
        mix->requests++;
        mix->buckets[bucket_of((uint64_t)(now - mix->sent_ns[client->index]))]++;
    }
    turn_phase(mix, now);
    if (mix->phase == MIX_DRAIN) {
        load_arrive(load);
        return;
    }
    client->step = (client->step + 1) % STEP_COUNT;
    mix->sent_ns[client->index] = now;
    send_step(load, client);
}

static void prepare(struct mix *mix, struct load *load)
{
    enum wire_dialect dialect = load->config->dialect;
    char value[VALUE_BYTES], key[WIRE_KEY_MAX];

    mix->adds = calloc(mix->options->clients, sizeof(*mix->adds));
    mix->sent_ns = calloc(mix->options->clients, sizeof(*mix->sent_ns));
    if (mix->adds == NULL || mix->sent_ns == NULL)
        die("mix: out of memory");
    for (uint32_t i = 0; i < mix->options->clients; i++) {
        load_key(load, key, "count/%04u", i);
        wire_add(&mix->adds[i], dialect, key, 1);
    }
    load_key(load, key, "value");
    wire_check(&mix->check, dialect, key);
    wire_get(&mix->get, dialect, key);
    memset(value, 'v', sizeof(value));
    load_put(load, key, value, sizeof(value));
}

static void report(const struct mix *mix, struct figures *out)
{
    double seconds = (double)(mix->end.time_ns - mix->begin.time_ns) / 1e9;
    double requests = (double)mix->requests;

    figure_add(out, "requests", "", 0, requests);
    figure_add(out, "seconds", "s", 3, seconds);
    figure_add(out, "rate", "/s", 0, requests / seconds);
    figure_add(out, "p50_us", "us", 1, quantile_us(mix, 0.5));
    figure_add(out, "p99_us", "us", 1, quantile_us(mix, 0.99));
    figure_add(out, "p999_us", "us", 1, quantile_us(mix, 0.999));
    figure_add(out, "server_cpu_us", "us", 3,
               cpu_us(mix->options->config, mix->end.server_cpu_ns - mix->begin.server_cpu_ns, requests));
    figure_add(out, "bench_cpu_us", "us", 3, (double)(mix->end.own_cpu_ns - mix->begin.own_cpu_ns) / 1e3 / requests);
}

void mode_mix(const struct mode_options *options, struct figures *out)
{
    static struct mix mix;
    struct load load;

    memset(&mix, 0, sizeof(mix));
    mix.options = options;
    load_init(&load, options->config, options->clients, &mix);
    prepare(&mix, &load);
    load_connect(&load, options->clients, false);
    probe_settle(options->config->server_pid);
    load_begin(&load, "mix", options->clients, on_reply);
    mix.phase_end_ns = now_ns() + options->warmup_ms * 1000000;
    for (uint32_t i = 0; i < options->clients; i++) {
        load.clients[i].step = i % STEP_COUNT;
        mix.sent_ns[i] = now_ns();
        send_step(&load, &load.clients[i]);
    }
    load_finish(&load);
    load_done(&load);
    report(&mix, out);
    free(mix.adds);
    free(mix.sent_ns);
}
