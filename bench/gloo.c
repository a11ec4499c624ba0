/* The traffic of a gloo group that starts: every client ADDs to the worker count and SETs its address,
 * then asks for the address of every rank in turn with WAIT, WAIT and GET, each after the reply to the one
 * before.
 *
 * A rank asks from rank 0 upwards, so early on all meet at the same few keys; a WAIT for an address that
 * is not there yet parks until its owner has SET it. */
#include <stdlib.h>
#include <string.h>

#include "modes.h"
#include "probe.h"

#define ADDRESS_BYTES 150u
#define REQUESTS_PER_PEER 3u

enum gloo_step { STEP_JOIN, STEP_WAIT, STEP_WAIT_AGAIN, STEP_GET };

struct gloo {
    struct wire_message join;
    struct wire_message *waits, *gets; /* one of each for every rank */
};

static void ask(struct load *load, struct load_client *client)
{
    const struct gloo *gloo = load->mode;

    if (client->step == STEP_GET)
        load_send(load, client, &gloo->gets[client->target], WIRE_GET_REPLY + ADDRESS_BYTES);
    else
        load_send(load, client, &gloo->waits[client->target], WIRE_STATUS_REPLY);
}

static void publish(struct load *load, struct load_client *client)
{
    struct wire_message set = { 0 };
    char key[WIRE_KEY_MAX], address[ADDRESS_BYTES];

    memset(address, 'a', sizeof(address));
    load_key(load, key, "default_pg/0//cpu//0/%u", client->index);
    wire_set(&set, load->config->dialect, key, address, sizeof(address));
    load_send(load, client, &set, 0);
}

static void on_reply(struct load *load, struct load_client *client)
{
    switch ((enum gloo_step)client->step) {
    case STEP_JOIN:
        publish(load, client);
        client->step = STEP_WAIT;
        break;
    case STEP_WAIT:
        client->step = STEP_WAIT_AGAIN;
        break;
    case STEP_WAIT_AGAIN:
        client->step = STEP_GET;
        break;
    case STEP_GET:
        if (wire_i64(client->reply) != (int64_t)ADDRESS_BYTES)
            die("gloo: rank %u got no address of rank %u", client->index, client->target);
        client->step = STEP_WAIT;
        client->target++;
        break;
    }
    if (client->target == load->count)
        load_arrive(load);
    else
        ask(load, client);
}

static void prepare(const struct load *load, struct gloo *gloo, uint32_t ranks)
{
    enum wire_dialect dialect = load->config->dialect;
    char key[WIRE_KEY_MAX];

    gloo->waits = calloc(ranks, sizeof(*gloo->waits));
    gloo->gets = calloc(ranks, sizeof(*gloo->gets));
    if (gloo->waits == NULL || gloo->gets == NULL)
        die("gloo: out of memory");
    load_key(load, key, "init/");
    wire_add(&gloo->join, dialect, key, 1);
    for (uint32_t i = 0; i < ranks; i++) {
        load_key(load, key, "default_pg/0//cpu//0/%u", i);
        wire_wait(&gloo->waits[i], dialect, key);
        wire_get(&gloo->gets[i], dialect, key);
    }
}

void mode_gloo(const struct mode_options *options, struct figures *out)
{
    const struct load_config *config = options->config;
    double ranks = options->clients;
    double requests = ranks * (2 + REQUESTS_PER_PEER * ranks);
    int64_t start_ns, time_ns, cpu_ns;
    struct gloo gloo = { 0 };
    struct load load;

    load_init(&load, config, options->clients, &gloo);
    prepare(&load, &gloo, options->clients);
    load_connect(&load, options->clients, false);
    probe_settle(config->server_pid);
    load_begin(&load, "gloo", options->clients, on_reply);
    cpu_ns = probe_cpu_ns(config->server_pid);
    start_ns = now_ns();
    for (uint32_t i = 0; i < options->clients; i++)
        load_send(&load, &load.clients[i], &gloo.join, WIRE_ADD_REPLY);
    load_finish(&load);
    time_ns = now_ns() - start_ns;
    cpu_ns = probe_cpu_ns(config->server_pid) - cpu_ns;
    load_done(&load);
    free(gloo.waits);
    free(gloo.gets);
    figure_add(out, "requests", "", 0, requests);
    figure_add(out, "seconds", "s", 3, (double)time_ns / 1e9);
    figure_add(out, "rate", "/s", 0, requests / ((double)time_ns / 1e9));
    figure_add(out, "server_cpu_us", "us", 3, cpu_us(config, cpu_ns, requests));
}
