/* The place "store": the engine of muster's own store, with the real code on both sides. A node is the fold machine and
 * the client of an engine (kv/engine_store.h); a server is store/engine_session.h on store/engine.h. Between them are
 * byte pipes in virtual time: bytes keep their order, come in pieces, and are lost with their connection.
 *
 * A server turns as server_engine_uv.c lets it: what has come is read, then the engine judges and pushes. The poll
 * that a turn belongs to began when the turn before was over; when the engine's time is due a second poll follows,
 * which begins then and brings nothing. A server that stands still reads everything at once when it goes on.
 *
 * What is checked of a server's keys is checked with what a watcher sees, a peer of the job that asks for all keys and
 * hears everything at once. Each server has its own such picture (s->keys is that of the server that answers at the
 * endpoint now). So there is one chain of worlds an epoch: each document follows the one before it *of that server*,
 * and no member of a world that the new server has written may still run when the new server's next one is written.
 * While an old server can still be reached by some nodes, its own chain is checked for its numbers and its costs; who
 * ran in its worlds is not asked: a node may have gone over to the new server, which the old one learns later. */
#include "fold_sim.h"

#include "kv/engine_store.h"
#include "store/codec.h"
#include "store/engine_parts.h"
#include "store/engine_session.h"
#include "store/limits.h"
#include "store/session.h"

#include <string.h>

#define STEP_MAX_US ((MU_ENGINE_IDLE_TICK_MS + MU_ENGINE_LATE_MS) * MS) /* so much of a pause may count */
#define SLACK_US (STEP_MAX_US + 10 * MS)

enum {
    SERVERS_MAX = 256,
    SEEN_MAX = 16, /* the last leases of a node */
    PROBE_BYTES = 1 + 4 + 1 + 16 + sizeof MU_SESSION_PROBE - 1,
    TURN_US = 50, /* at most from the first byte to the end of the turn: less than the way back takes */
};

struct segment {
    struct segment *next;
    uint64_t at_us;
    bool closes;
    size_t len;
    char bytes[];
};

struct pipe {
    struct link *link;
    bool to_server;
    struct segment *first, **end;
    uint64_t last_us;
};

struct server {
    bool alive, up; /* not up: nobody can connect yet */
    char host_text[64];
    struct mu_engine_host host;
    struct mu_budget budget, transit;
    struct mu_service service; /* for documents */
    bool moved;                /* the job has, to one */
    bool stands;               /* still */
    uint64_t stands_since_us, stood_us;
    uint64_t began_ms, due_us;
    bool turn_planned;
    struct mu_engine_session watcher;
    struct link *doomed; /* it wants to cut them */
    /* What its watcher sees; of the current one it is in *s. */
    struct key *keys;
    size_t keys_count;
    int64_t revision;
    unsigned incarnation;
};

struct link { /* a connection, or a try to make one */
    struct link *next, *next_doomed;
    struct node *node;
    struct server *server; /* NULL: not connected so far */
    bool server_open, client_open;
    bool lossy; /* nothing that is sent from now on arrives */
    bool probed;
    size_t probe_bytes;
    struct mu_engine_session session; /* once it was probed */
    struct pipe to_server, to_client;
};

struct client {
    struct mu_engine_store *store;
    struct link *link;
    uint64_t timer_us;
    bool pump_planned;
    uint64_t refused_until_us; /* nobody answers it */
    struct server *old;        /* where it connects while that one lives; NULL: to the current one */
    struct seen {
        uint64_t lease;
        const struct server *by;
        uint64_t heard_us, left_us; /* in time in which that server ran */
    } seen[SEEN_MAX];
    size_t seen_count;
};

static struct server servers[SERVERS_MAX];
static size_t servers_count;
static struct server *current;
static struct link *links;

static uint64_t now_ms(void)
{
    return s->now_us / MS;
}

static bool strikes(enum fault fault, unsigned percent)
{
    return s->on[fault] && !s->calm && chance(percent);
}

static uint64_t latency_us(void)
{
    if (s->calm || !s->on[F_SLOW])
        return 100 + below(s->crowd ? 100 : 900);
    return 100 + below(chance(10) ? 400 * MS : 20 * MS);
}

/* ---- What the watcher sees ---- */

/* Its picture is the one that is checked. */
static void show(struct server *server)
{
    if (current == server)
        return;
    if (current != NULL) {
        current->keys = s->keys;
        current->keys_count = s->keys_count;
        current->revision = s->revision;
        current->incarnation = s->incarnation;
    }
    s->keys = server->keys;
    s->keys_count = server->keys_count;
    s->revision = server->revision;
    s->incarnation = server->incarnation;
    current = server;
}

static uint64_t ran_us(const struct server *server)
{
    return s->now_us - server->stood_us - (server->stands ? s->now_us - server->stands_since_us : 0);
}

static struct seen *find_seen(struct client *c, const struct server *server, uint64_t lease)
{
    for (size_t i = 0; i < SEEN_MAX; i++)
        if (c->seen[i].lease == lease && c->seen[i].by == server)
            return &c->seen[i];
    return NULL;
}

/* A lease ends for its owner's silence, and not for the server's. */
static void check_judged(const struct server *server, const struct key *key, const struct mu_engine_change *change)
{
    uint64_t id, silent_us;
    const struct node *node;
    const struct seen *seen;

    if (strncmp(key->name, "nodes/", 6) != 0 || !mu_fold_id_parse(mu_slice(key->name + 6, 16), &id) ||
        key->lease == 0 || strtoull(key->name + 6 + 17, NULL, 16) != (uint64_t)key->lease)
        return;
    node = node_by_id(id);
    seen = node != NULL && node->client != NULL ? find_seen(node->client, server, (uint64_t)key->lease) : NULL;
    if (seen == NULL)
        return;
    silent_us = ran_us(server) - seen->heard_us;
    SIM_EXPECT(change->end != MU_ENGINE_SILENT || silent_us + SLACK_US >= s->lease_ms * MS,
               "node %u was heard %" PRIu64 " us ago, and its lease ended for its silence", node->index, silent_us);
    silent_us = ran_us(server) - seen->left_us;
    SIM_EXPECT(change->end != MU_ENGINE_RESET || silent_us + SLACK_US >= MU_ENGINE_RECONNECT_MS * MS,
               "node %u lost its connection %" PRIu64 " us ago, and its lease has ended", node->index, silent_us);
}

static void see_change(struct server *server, const struct mu_engine_change *change, bool is_old)
{
    struct key *key = etcd_find(change->kv.key), before = { .mod = 0 };

    s->revision = change->kv.mod;
    if (change->deleted) {
        SIM_EXPECT(key != NULL, "a key goes that was not there");
        sim_trace("store %" PRId64 ": delete %s (%s)", s->revision & 0xffffff, key->name,
                  mu_engine_end_text(change->end));
        before = *key;
        *key = s->keys[--s->keys_count];
        if (!is_old) {
            check_key_gone(&before);
            check_judged(server, &before, change);
        }
        mu_buf_done(&before.value);
        return;
    }
    if (key != NULL) {
        etcd_copy_key(&before, key);
    } else {
        if (s->keys_count == KEYS_MAX || change->kv.key.len >= sizeof key->name)
            abort();
        key = &s->keys[s->keys_count++];
        *key = (struct key){ .create = change->kv.create };
        memcpy(key->name, change->kv.key.data, change->kv.key.len);
    }
    if (mu_buf_assign(&key->value, change->kv.value) < 0)
        abort();
    key->hash = etcd_hash(change->kv.key);
    key->mod = change->kv.mod;
    key->lease = (int64_t)change->kv.lease;
    SIM_EXPECT(key->create == change->kv.create, "%s was created twice", key->name);
    sim_trace("store %" PRId64 ": put %s lease %" PRIx64 " %.*s", s->revision & 0xffffff, key->name,
              (uint64_t)key->lease, (int)(key->value.len < 120 ? key->value.len : 120), key->value.data);
    server->moved |= strcmp(key->name, "job/moved") == 0;
    SIM_EXPECT(!server->moved || strcmp(key->name, "job/doc") != 0, "a round begins where the job has moved away");
    check_put(before.mod == 0 ? NULL : &before, key);
    if (s->scribbles && before.mod != 0 && !is_old)
        check_key_gone(&before);
    mu_buf_done(&before.value);
}

static void see_frame(struct server *server, const struct mu_frame *frame)
{
    struct server *shown = current;

    SIM_EXPECT(frame->type != MU_FRAME_STALE, "the watcher has missed something");
    SIM_EXPECT(frame->type != MU_FRAME_DONE || frame->code == 0, "the watcher was refused");
    if (frame->type != MU_FRAME_EVENTS)
        return;
    show(server);
    for (size_t i = 0; i < frame->changes_count; i++)
        see_change(server, &frame->changes[i], server != shown);
    show(shown);
}

static bool watcher_hears(struct server *server, struct mu_slice bytes)
{
    struct mu_arena arena = { .bytes_max = 64u << 20 };
    struct mu_frame frame;

    if (mu_frame_length(bytes) != bytes.len || mu_frame_read(bytes, &arena, &frame, NULL) < 0)
        sim_fail("the watcher was sent no frame");
    see_frame(server, &frame);
    mu_arena_done(&arena);
    return true;
}

static void watcher_asks(struct server *server, struct mu_frame frame)
{
    struct mu_buf bytes = { 0 };
    struct muster_error error;

    frame.id = 1;
    if (mu_frame_write(&frame, &bytes, 1 << 20) < 0 ||
        mu_engine_session_feed(&server->watcher, mu_buf_slice(&bytes), now_ms(), &error) < 0)
        abort();
    mu_buf_done(&bytes);
}

/* ---- Pipes ---- */

static void run_pipe(void *arg);

static void put_segment(struct pipe *pipe, const char *bytes, size_t len, bool closes, uint64_t in_us)
{
    struct segment *segment = malloc(sizeof *segment + len);

    if (segment == NULL)
        abort();
    *segment = (struct segment){ .at_us = s->now_us + in_us, .closes = closes, .len = len };
    if (segment->at_us <= pipe->last_us)
        segment->at_us = pipe->last_us + 1;
    pipe->last_us = segment->at_us;
    if (len > 0)
        memcpy(segment->bytes, bytes, len);
    *pipe->end = segment;
    pipe->end = &segment->next;
    sim_at(segment->at_us, run_pipe, pipe);
}

static void drop_segments(struct pipe *pipe, struct segment **from)
{
    for (struct segment *segment = *from, *next; segment != NULL; segment = next) {
        next = segment->next;
        free(segment);
    }
    *from = NULL;
    pipe->end = from;
}

/* Some of what is on its way still arrives, up to any byte. */
static void tear(struct pipe *pipe)
{
    struct segment **at = &pipe->first;

    while (*at != NULL && chance(50))
        at = &(*at)->next;
    if (*at != NULL && (*at)->len > 0) {
        (*at)->len = below((*at)->len);
        at = &(*at)->next;
    }
    drop_segments(pipe, at);
}

/* The connection breaks; each end hears of it, at once or much later. */
static void break_link(struct link *link, bool late)
{
    if (link->server == NULL || link->lossy)
        return;
    tear(&link->to_server);
    tear(&link->to_client);
    link->lossy = true;
    put_segment(&link->to_client, NULL, 0, true, latency_us() + (late ? below(s->lease_ms * MS) : 0));
    put_segment(&link->to_server, NULL, 0, true, latency_us() + (late ? below(s->lease_ms * MS) : 0));
}

static void send_bytes(struct pipe *pipe, struct mu_slice bytes)
{
    size_t some = bytes.len;

    if (pipe->link->lossy || bytes.len == 0)
        return;
    if (!s->calm && bytes.len > 1 && chance(20)) /* comes in two pieces */
        some = 1 + below(bytes.len - 1);
    put_segment(pipe, bytes.data, some, false, latency_us());
    if (some < bytes.len)
        put_segment(pipe, bytes.data + some, bytes.len - some, false, latency_us());
    if (strikes(F_RESET, 2)) /* while they are on their way */
        break_link(pipe->link, chance(20));
}

/* ---- Servers ---- */

static void on_due(void *arg);
static void plan_turn(struct server *server);

static struct link *link_of(struct mu_engine_session *session)
{
    return MU_LIST_ITEM(session, struct link, session);
}

static bool on_send(struct mu_engine_session *session, struct mu_slice bytes)
{
    for (size_t i = servers_count; i-- > 0;)
        if (session == &servers[i].watcher)
            return watcher_hears(&servers[i], bytes);
    link_of(session)->node->bytes += bytes.len;
    send_bytes(&link_of(session)->to_client, bytes);
    return true;
}

static void on_drop(struct mu_engine_session *session, const char *why)
{
    struct link *link = link_of(session);

    sim_trace("store: cuts node %u: %s", link->node->index, why);
    session->dead = true;
    link->next_doomed = link->server->doomed;
    link->server->doomed = link;
}

/* Something came on this connection, or it is about to go. */
static void see_leases(struct link *link, bool leaves)
{
    struct client *c = link->node->client;

    MU_LIST_EACH (struct mu_engine_lease, lease, &link->session.peer.leases, of_peer) {
        struct seen *seen = c != NULL ? find_seen(c, link->server, lease->id) : NULL;

        if (c == NULL)
            return;
        if (seen == NULL) {
            seen = &c->seen[c->seen_count++ % SEEN_MAX];
            *seen = (struct seen){ .lease = lease->id, .by = link->server };
        }
        *(leaves ? &seen->left_us : &seen->heard_us) = ran_us(link->server);
    }
}

/* The server's end goes. */
static void leave(struct link *link, bool cut)
{
    if (!link->server_open)
        return;
    link->server_open = false;
    if (!link->probed)
        return;
    see_leases(link, true);
    mu_engine_session_leave(&link->session, cut, now_ms());
}

static void turn(struct server *server, uint64_t began_ms)
{
    struct link *link;

    (void)mu_engine_host_turn(&server->host, began_ms, now_ms());
    while ((link = server->doomed) != NULL) {
        server->doomed = link->next_doomed;
        leave(link, true);
        if (!link->lossy)
            put_segment(&link->to_client, NULL, 0, true, latency_us());
    }
    outside_look(server);
    server->began_ms = now_ms();
    if (mu_engine_deadline_ms(server->host.engine) == UINT64_MAX) {
        server->due_us = UINT64_MAX;
        return;
    }
    if (server->due_us == mu_engine_deadline_ms(server->host.engine) * MS)
        return;
    server->due_us = mu_engine_deadline_ms(server->host.engine) * MS;
    sim_at(server->due_us > s->now_us ? server->due_us : s->now_us, on_due, server);
}

static void on_turn(void *arg)
{
    struct server *server = arg;

    server->turn_planned = false;
    if (!s->over && server->alive)
        turn(server, server->began_ms);
}

static void plan_turn(struct server *server)
{
    if (server->turn_planned)
        return;
    server->turn_planned = true;
    sim_at(s->now_us + below(TURN_US), on_turn, server);
}

static void on_due(void *arg)
{
    struct server *server = arg;

    if (s->over || !server->alive || server->due_us > s->now_us || server->stands)
        return;
    server->due_us = UINT64_MAX;
    turn(server, server->began_ms);
    turn(server, now_ms());
}

static struct server *new_server(void)
{
    static const struct mu_engine_ends ends = { "the watcher", "10.0.0.2", "10.0.0.1", NULL };
    struct server *server = &servers[servers_count++];
    struct muster_store_limits limits = { 0 };
    struct mu_engine_host_config config = { .node = "host",
                                            .seed = { mu_rng_next(&s->rng), mu_rng_next(&s->rng) },
                                            .random = { mu_rng_next(&s->rng), mu_rng_next(&s->rng) },
                                            .send = on_send,
                                            .drop = on_drop };

    *server = (struct server){ .alive = true,
                               .budget = { .max = 1u << 30 },
                               .transit = { .max = 1u << 28 },
                               .began_ms = now_ms(),
                               .due_us = UINT64_MAX,
                               .incarnation = (unsigned)servers_count };
    if (mu_limits_settle(&limits, NULL) < 0)
        abort();
    mu_service_init(&server->service, &limits, MU_DIALECT_L, config.seed, NULL);
    server->service.documents = "/torch.rendezvous.";
    config.service = &server->service;
    config.budget = &server->budget;
    config.transit = &server->transit;
    server->keys = calloc(KEYS_MAX, sizeof *server->keys);
    if (server->keys == NULL || mu_engine_host_init(&server->host, &config) < 0)
        abort();
    server->revision = mu_engine_revision(server->host.engine);
    mu_engine_session_init(&server->watcher, &server->host, &ends);
    watcher_asks(server, (struct mu_frame){ .type = MU_FRAME_HELLO,
                                            .version_min = 1,
                                            .version_max = 1,
                                            .run_id = mu_slice_str("job"),
                                            .node = mu_slice_str("watcher") });
    watcher_asks(server, (struct mu_frame){ .type = MU_FRAME_LOAD, .watch = 1, .key = mu_slice_str("") });
    return server;
}

/* Loud: its clients hear of it at once. Else when they send something to whoever answers there by then. */
static void end_server(struct server *server, bool loud)
{
    if (!server->alive)
        return;
    if (!server->stands && !s->over)
        turn(server, server->began_ms); /* what was answered is seen */
    if (!s->over)
        outside_server_ends(server);
    server->alive = false;
    for (struct link *link = links; link != NULL; link = link->next) {
        if (link->server != server)
            continue;
        leave(link, false);
        if (loud && !s->over && !link->lossy)
            break_link(link, false);
    }
    mu_engine_session_leave(&server->watcher, false, now_ms());
    mu_engine_host_done(&server->host);
    mu_service_done(&server->service);
    if (current == server)
        return;
    for (size_t i = 0; i < server->keys_count; i++)
        mu_buf_done(&server->keys[i].value);
    free(server->keys);
    server->keys = NULL;
}

static void on_old_gone(void *arg)
{
    struct server *server = arg;

    if (s->over)
        return;
    sim_trace("store: the old server is gone");
    end_server(server, chance(70));
}

/* Another server at the endpoint, as soon as it is up, with another epoch and nothing in it. */
static void begin_epoch(uint64_t split_us)
{
    struct server *old = current;

    sim_trace("store: the server is gone%s", split_us > 0 ? " for some" : "");
    show(new_server());
    check_reset();
    s->up = false;
    if (split_us == 0) {
        end_server(old, chance(70));
        return;
    }
    for (unsigned i = 0; i < s->nodes_count; i++) {
        struct node *node = &s->nodes[i];

        if (!node->alive)
            continue;
        if (chance(50))
            node->client->old = old;
        else if (node->client->link != NULL && node->client->link->server == old)
            break_link(node->client->link, false);
    }
    sim_at(s->now_us + split_us, on_old_gone, old);
}

/* ---- For those who meet in a document ---- */

bool store_answers(const struct server *server)
{
    return server->alive && server->up && !server->stands;
}

struct server *store_at_endpoint(void)
{
    return store_answers(current) ? current : NULL;
}

struct mu_engine *store_engine(struct server *server)
{
    return server->host.engine;
}

void store_changed(struct server *server)
{
    server->moved |= mu_engine_place_of(server->host.engine, mu_slice_str("job")) == MU_ENGINE_PLACE_MOVED;
    plan_turn(server);
}

bool store_has_moved(void)
{
    return current->moved;
}

static void store_stand(bool still)
{
    struct server *server = current;

    if (server->stands == still)
        return;
    sim_trace("store: %s", still ? "stands still" : "goes on");
    if (still) {
        turn(server, server->began_ms);
        server->stands_since_us = s->now_us;
    } else {
        uint64_t stood_us = s->now_us - server->stands_since_us, step_us = STEP_MAX_US;

        server->stood_us += stood_us > step_us ? stood_us - step_us : 0; /* so much may count for nodes */
        if (chance(50))                                                  /* it stood before the poll, and not in it */
            server->began_ms = now_ms();
        for (struct link *link = links; link != NULL; link = link->next)
            if (link->server == server)
                sim_at(s->now_us, run_pipe, &link->to_server);
        server->due_us = s->now_us + 1;
        sim_at(server->due_us, on_due, server); /* behind what has come */
    }
    server->stands = still;
}

static void store_down(bool wipe)
{
    if (wipe && servers_count < SERVERS_MAX) {
        if (current->stands)
            store_stand(false);
        begin_epoch(0);
    } else {
        store_stand(true);
    }
    s->up = false;
}

static void store_up(void)
{
    sim_trace("store: a server is up");
    store_stand(false);
    current->up = true;
    s->up = true;
}

void store_hosted_by(const char *text)
{
    (void)snprintf(current->host_text, sizeof current->host_text, "%s", text);
    current->host.node = current->host_text;
}

void store_split(uint64_t split_us)
{
    if (servers_count < SERVERS_MAX && s->up && !current->stands)
        begin_epoch(split_us);
}

/* ---- Clients ---- */

static void pump(struct node *node);

static void on_pump(void *arg)
{
    struct node *node = arg;

    if (s->over || !node->alive)
        return;
    if (node->paused_until_us > s->now_us) {
        sim_at(node->paused_until_us, on_pump, node);
        return;
    }
    pump(node);
}

static void on_client_time(void *arg)
{
    struct node *node = arg;

    if (s->over || !node->alive || node->client->timer_us > s->now_us)
        return;
    if (node->paused_until_us > s->now_us) {
        sim_at(node->paused_until_us, on_client_time, node);
        return;
    }
    node->client->timer_us = UINT64_MAX;
    mu_engine_store_time(node->client->store, now_ms());
    pump(node);
}

static void arm(struct node *node)
{
    uint64_t when_ms = mu_engine_store_deadline_ms(node->client->store);
    uint64_t when_us = when_ms == UINT64_MAX ? UINT64_MAX : when_ms * MS;

    if (when_us != UINT64_MAX && when_us < s->now_us)
        when_us = s->now_us;
    if (when_us == node->client->timer_us)
        return;
    node->client->timer_us = when_us;
    if (when_us != UINT64_MAX)
        sim_at(when_us, on_client_time, node);
}

static void on_connect(void *arg);

static struct link *new_link(struct node *node)
{
    struct link *link = calloc(1, sizeof *link);

    if (link == NULL)
        abort();
    link->node = node;
    link->to_server = (struct pipe){ .link = link, .to_server = true, .end = &link->to_server.first };
    link->to_client = (struct pipe){ .link = link, .end = &link->to_client.first };
    link->next = links;
    links = link;
    return link;
}

static void start_link(struct node *node)
{
    SIM_EXPECT(node->client->link == NULL, "node %u has two connections", node->index);
    node->client->link = new_link(node);
    sim_at(s->now_us + latency_us(), on_connect, node->client->link);
}

static void hang_up(struct node *node)
{
    struct link *link = node->client->link;

    SIM_EXPECT(link != NULL, "node %u gives up a connection that it has not", node->index);
    node->client->link = NULL;
    link->client_open = false;
    if (link->server != NULL && !link->lossy)
        put_segment(&link->to_server, NULL, 0, true, latency_us());
}

/* For a fence. The engine must have heard of the lease since then; or it has not heard of it at all. */
static void see_renewal(struct node *node, const struct mu_fold_event *event)
{
    const struct link *link = node->client->link;
    uint64_t sent_us = event->sent_ms != 0 ? event->sent_ms * MS : s->now_us;
    const struct seen *seen = NULL;

    if (event->type != MU_FOLD_ON_LEASED && event->type != MU_FOLD_ON_RENEWED)
        return;
    if (event->type == MU_FOLD_ON_LEASED)
        node->lease = event->lease;
    if (link != NULL)
        seen = find_seen(node->client, link->server, (uint64_t)node->lease);
    SIM_EXPECT(seen == NULL || ran_us(link->server) - seen->heard_us <= s->now_us - sent_us + MS,
               "node %u's lease was renewed before it says", node->index);
    node->renewed_us = sent_us;
}

/* False: there is nothing more to do. */
static bool perform_next(struct node *node)
{
    struct client *c = node->client;
    struct mu_engine_store_output output = mu_engine_store_next(c->store);

    switch (output.type) {
    case MU_ENGINE_STORE_EVENT:
        see_renewal(node, output.event);
        feed(node, *output.event);
        return true;
    case MU_ENGINE_STORE_CONNECT:
        start_link(node);
        return true;
    case MU_ENGINE_STORE_DISCONNECT:
        hang_up(node);
        return true;
    case MU_ENGINE_STORE_BYTES:
        SIM_EXPECT(c->link != NULL, "node %u sends, and has no connection", node->index);
        send_bytes(&c->link->to_server, mu_buf_slice(&output.bytes));
        mu_buf_done(&output.bytes);
        return true;
    case MU_ENGINE_STORE_NOTHING:
    case MU_ENGINE_STORE_END:
        break;
    }
    return false;
}

static void pump(struct node *node)
{
    node->client->pump_planned = false;
    while (perform_next(node)) {
    }
    arm(node);
}

static void lose(struct node *node, const char *why)
{
    struct muster_error error = { .code = 0 };

    (void)mu_fail(&error, MUSTER_ECONNECT, "%s", why);
    node->client->link->client_open = false;
    node->client->link = NULL;
    mu_engine_store_disconnected(node->client->store, &error, now_ms());
    pump(node);
}

/* Nobody listens there. */
static void refuse(struct node *node)
{
    const struct muster_error error = { .code = MUSTER_ECONNECT, .text = "connection refused" };

    node->client->link->client_open = false;
    node->client->link = NULL;
    mu_engine_store_refused(node->client->store, &error, now_ms());
    pump(node);
}

static bool is_current(const struct link *link)
{
    return link->node->alive && link->node->client->link == link;
}

static void on_connect(void *arg)
{
    struct link *link = arg;
    struct node *node = link->node;
    struct server *server = current;
    union mu_addr peer;

    if (s->over || !is_current(link))
        return;
    if (is_cut(node)) {
        sim_at(node->cut_until_us + below(SECOND), on_connect, link); /* the next SYN */
        return;
    }
    if (node->paused_until_us > s->now_us) {
        sim_at(node->paused_until_us, on_connect, link);
        return;
    }
    pump(node); /* it may have given up */
    if (!is_current(link))
        return;
    if (node->client->old != NULL && node->client->old->alive)
        server = node->client->old;
    if (!server->up) {
        refuse(node);
        return;
    }
    if (node->client->refused_until_us > s->now_us || strikes(F_REFUSED, 5)) {
        lose(node, "connection refused");
        return;
    }
    link->server = server;
    link->server_open = link->client_open = true;
    if (!mu_addr_parse("10.0.0.1", 29400, &peer))
        abort();
    mu_engine_store_connected(node->client->store, &peer, now_ms());
    pump(node);
}

/* ---- What arrives ---- */

static void server_gets(struct link *link, const struct segment *segment)
{
    struct mu_slice bytes = mu_slice(segment->bytes, segment->len);
    struct server *server = link->server;
    struct muster_error error = { .code = 0 };
    static const struct mu_engine_ends ends = { "10.0.0.7:50000", "10.0.0.7", "10.0.0.1", NULL };

    if (!link->server_open) {
        if (!server->alive && s->up && link->client_open && !link->lossy)
            put_segment(&link->to_client, NULL, 0, true, latency_us()); /* whoever is there now knows nothing of it */
        return;
    }
    if (segment->closes) {
        leave(link, false);
        plan_turn(server);
        return;
    }
    if (!link->probed) {
        size_t some = bytes.len < PROBE_BYTES - link->probe_bytes ? bytes.len : PROBE_BYTES - link->probe_bytes;
        char there = MU_CHECK_READY;

        link->probe_bytes += some;
        bytes = mu_slice(bytes.data + some, bytes.len - some);
        if (link->probe_bytes < PROBE_BYTES)
            return;
        link->probed = true;
        mu_engine_session_init(&link->session, &server->host, &ends);
        send_bytes(&link->to_client, mu_slice(&there, 1));
    }
    if (bytes.len == 0 || link->session.dead)
        return;
    SIM_EXPECT(mu_engine_session_feed(&link->session, bytes, now_ms(), &error) == 0,
               "the server ends node %u's connection: %s", link->node->index, error.text);
    see_leases(link, false);
    plan_turn(server);
}

static void client_gets(struct link *link, const struct segment *segment)
{
    struct node *node = link->node;

    if (!is_current(link))
        return;
    pump(node); /* it may have given up */
    if (!is_current(link))
        return;
    if (segment->closes) {
        lose(node, "connection reset by peer");
        return;
    }
    if (segment->len == 0)
        return;
    mu_engine_store_received(node->client->store, mu_slice(segment->bytes, segment->len), now_ms());
    pump(node);
}

/* 0: nothing keeps it back. */
static uint64_t held_until_us(const struct pipe *pipe)
{
    const struct node *node = pipe->link->node;

    if (node->alive && is_cut(node))
        return node->cut_until_us;
    if (pipe->to_server)
        return pipe->link->server->stands ? UINT64_MAX : 0;
    return node->alive && node->paused_until_us > s->now_us ? node->paused_until_us : 0;
}

static void run_pipe(void *arg)
{
    struct pipe *pipe = arg;

    while (!s->over && pipe->first != NULL && pipe->first->at_us <= s->now_us) {
        struct segment *segment = pipe->first;
        uint64_t until_us = held_until_us(pipe);

        if (until_us != 0) {
            if (until_us != UINT64_MAX) /* else it is run when the server goes on */
                sim_at(until_us, run_pipe, pipe);
            return;
        }
        pipe->first = segment->next;
        if (pipe->first == NULL)
            pipe->end = &pipe->first;
        (pipe->to_server ? server_gets : client_gets)(pipe->link, segment);
        free(segment);
    }
}

/* ---- The place ---- */

static void store_effect(struct node *node, const struct mu_fold_effect *effect)
{
    mu_engine_store_request(node->client->store, effect, mu_fold_request_until_ms(node->fold, now_ms()), now_ms());
    if (node->client->pump_planned)
        return;
    node->client->pump_planned = true;
    sim_at(s->now_us, on_pump, node);
}

static void store_node_new(struct node *node, const char *name)
{
    struct mu_engine_store_config config = { .endpoint = "10.0.0.1:29400",
                                             .run_id = "job",
                                             .node = name,
                                             .lease_ms = s->lease_ms,
                                             .job_lease_ms = s->job_lease_ms,
                                             .renew_ms = s->fence_ms / 3,
                                             .seed = mu_rng_next(&s->rng) };

    memcpy(config.will_secret, &config.seed, sizeof config.seed);
    node->client = calloc(1, sizeof *node->client);
    if (node->client == NULL)
        abort();
    node->client->timer_us = UINT64_MAX;
    node->client->store = mu_engine_store_new(&config);
    if (node->client->store == NULL)
        abort();
}

/* Its keeper does what the agent has left for that. */
static void send_will(struct node *node)
{
    struct mu_fold_op mark;
    union mu_addr addr;
    char bytes[MU_ENGINE_STORE_WILL_MAX];
    size_t len;
    struct link *link;

    if (is_cut(node) || !current->up || !mu_fold_will(node->fold, &mark) ||
        !mu_engine_store_will(node->client->store, &mark, &addr, bytes, &len))
        return;
    sim_trace("node %u has a will", node->index);
    link = new_link(node);
    link->server = node->client->old != NULL && node->client->old->alive ? node->client->old : current;
    link->server_open = true;
    send_bytes(&link->to_server, mu_slice(bytes, len));
    put_segment(&link->to_server, NULL, 0, true, latency_us());
}

static void store_node_leaves(struct node *node)
{
    mu_engine_store_end(node->client->store, now_ms());
    pump(node);
    if (node->client->link != NULL)
        hang_up(node);
}

struct server *store_of(const struct node *node)
{
    struct server *old = node->client->old;

    return old != NULL && store_answers(old) ? old : store_at_endpoint();
}

/* Its process dies, which the server sees; or its host, and nothing is seen. */
static void store_node_gone(struct node *node)
{
    struct link *link = node->client->link;

    if (link != NULL && !s->over) {
        bool silent = chance(50);

        sim_trace("node %u dies %s", node->index, silent ? "silently" : "aloud");
        link->client_open = false;
        if (silent && link->server != NULL)
            tear(&link->to_server);
        else
            break_link(link, false);
        link->lossy = true;
        if (!silent && chance(50))
            send_will(node);
    }
    mu_engine_store_free(node->client->store);
    free(node->client);
    node->client = NULL;
}

void store_break(struct node *node, uint64_t refused_us)
{
    sim_trace("node %u: its connection breaks", node->index);
    node->client->refused_until_us = s->now_us + refused_us;
    if (node->client->link != NULL)
        break_link(node->client->link, !s->calm && refused_us == 0 && chance(20));
}

static void store_hear(struct node *node, bool heard)
{
    (void)node;
    (void)heard; /* pipes look whether it is cut off */
}

static void store_nothing(void)
{
}

static void store_expire(void)
{
    const struct key *key = s->keys_count > 0 ? &s->keys[below(s->keys_count)] : NULL;

    if (key == NULL || key->lease == 0 || !s->up || current->stands)
        return;
    turn(current, current->began_ms);
    watcher_asks(current, (struct mu_frame){ .type = MU_FRAME_REVOKE, .lease = (uint64_t)key->lease });
    turn(current, current->began_ms);
}

static void store_scribble(const char *name, const char *value)
{
    struct mu_engine_op put = { .kind = MU_ENGINE_PUT, .key = mu_slice_str(name), .value = mu_slice_str(value) };

    if (current->stands || current->moved || strcmp(name, MU_ENGINE_OUTSIDERS) == 0) /* it would be refused */
        return;
    turn(current, current->began_ms);
    s->scribbles = true;
    watcher_asks(current, (struct mu_frame){ .type = MU_FRAME_TXN, .txn = { .then = &put, .then_count = 1 } });
    turn(current, current->began_ms);
    s->scribbles = false;
}

static void store_reset(void)
{
    struct server *first = new_server();

    outside_reset();
    first->incarnation = 0;
    show(first);
    current->up = s->up = true;
}

static void store_free(void)
{
    if (current == NULL)
        return;
    s->over = true;
    for (size_t i = 0; i < servers_count; i++)
        end_server(&servers[i], false);
    for (size_t i = 0; i < s->keys_count; i++)
        mu_buf_done(&s->keys[i].value);
    free(s->keys);
    s->keys = NULL;
    s->keys_count = 0;
    for (struct link *link = links, *next; link != NULL; link = next) {
        next = link->next;
        drop_segments(&link->to_server, &link->to_server.first);
        drop_segments(&link->to_client, &link->to_client.first);
        free(link);
    }
    links = NULL;
    current = NULL;
    servers_count = 0;
}

const struct place place_store = {
    .name = "store",
    .reset = store_reset,
    .free = store_free,
    .node_new = store_node_new,
    .node_leaves = store_node_leaves,
    .node_gone = store_node_gone,
    .effect = store_effect,
    .down = store_down,
    .up = store_up,
    .hear = store_hear,
    .tick = store_nothing,
    .compact = store_nothing,
    .renew = store_nothing,
    .expire = store_expire,
    .scribble = store_scribble,
};
