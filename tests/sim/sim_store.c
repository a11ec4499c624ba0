/* The store in a storm: pure clients, a network made of lies, and the pure server, in one process and in virtual time.
 *
 *     muster-sim-store --seeds A:B            these seeds
 *     muster-sim-store --seconds N            fresh seeds for so long; prints how many runs a second
 *     muster-sim-store --seed N [--trace]     one seed, told line by line
 *
 * A seed decides everything: how many clients there are, which dialects they speak, how the network cuts, delays,
 * stalls and breaks, what is called when and with how much patience, who dies, and which allocations fail. After a
 * storm the network heals, and everybody must be able to work again.
 *
 * What must hold, at every step:
 *   - a call ends exactly once, not after its deadline, and nothing is ever out of step on a connection;
 *   - a value that is read was written to that very key (values carry their key and a serial number);
 *   - what one client reads of its own is never older than what it wrote;
 *   - numbers from ADD are unique and grow; in the end they sum up to what was added;
 *   - a value is replaced by at most one compare_set; appended values only grow;
 *   - a wait ends only when its keys have been written, and does not go on when they have and the wires are silent;
 *   - a queue's item goes to one consumer, and is not lost unless a pop or its connection was;
 *   - nothing is sent to a session that has left; the budget holds, and is empty in the end. */
#include "failmalloc.h"
#include "sim_clock.h"

#include "base/rng.h"
#include "store/calls.h"
#include "store/greeting.h"
#include "store/limits.h"
#include "store/session.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    CLIENTS_MAX = 6,
    OPS_MAX = 6, /* calls of one client at once */
    CONNS_MAX = 256,
    PIPE_BYTES = 128 * 1024,
    EVENTS_MAX = 1 << 15,
    KEYS_MAX = 6, /* of one call */
    TEXT_MAX = 48,
    VALUE_MAX = 2048,
    SERIALS_MAX = 1 << 16,
    GROWN_MAX = 32 * 1024,
    TRACE_LINES = 300,
    TRACE_TEXT = 200,
    AT_ONCE_MAX = 100000, /* events in one millisecond */
    HEAL_MS = 30000,
    PATIENT_MS = 60000,
};

/* ---- Keys ---- */

/* What a key is for decides what may be done to it, and so what may be expected of it. */
enum role {
    FRONTIER, /* written one after the other, waited for before that; never deleted */
    DATA,     /* written by everybody; never deleted */
    SHORT,    /* written and deleted */
    COUNTER,  /* ADD only */
    GROWING,  /* APPEND only */
    QUEUE,
    GATE,    /* of a barrier */
    PRIVATE, /* of one life of one client */
    ROLES,
};

static const char role_letters[ROLES + 1] = "fdxcaqbp";

enum { DATA_COUNT = 4, SHORT_COUNT = 3, COUNTER_COUNT = 3, GROWING_COUNT = 2, QUEUE_COUNT = 2, GATE_COUNT = 64 };

struct key {
    enum role role;
    unsigned index, life;
};

/* ---- The world ---- */

enum event_type {
    EV_DELIVER,   /* conn, to_server, bytes */
    EV_FLUSH,     /* client: its socket takes more */
    EV_TIMER,     /* client: a deadline */
    EV_ACT,       /* client: make a call */
    EV_CONNECT,   /* client */
    EV_PROBED,    /* client */
    EV_END,       /* conn, to_server: that side sees the end of the connection */
    EV_GRACE,     /* conn */
    EV_DIE,       /* client */
    EV_CUT,       /* conn */
    EV_STOCK,     /* the stock client does the next thing */
    EV_STOCK_OUT, /* its wait has lasted long enough */
};

struct event {
    uint64_t at_ms, order;
    enum event_type type;
    unsigned who;        /* client or conn */
    uint64_t generation; /* of that client's life or that connection */
    size_t bytes;
    bool to_server;
};

struct pipe {
    char bytes[PIPE_BYTES]; /* the ring of bytes under way */
    size_t start, len;
    size_t announced; /* of those, how many have an event that delivers them */
    uint64_t last_ms; /* no delivery before this */
    bool ended;       /* nothing more goes in */
};

struct conn {
    bool used, cut, left, doomed; /* left: the server has let it go */
    uint64_t generation;
    int client; /* -1: nobody any more; CLIENTS_MAX: the stock client */
    struct mu_session session;
    struct pipe up, down; /* to the server, to the client */
};

struct op {
    struct mu_call call;
    bool busy;
    unsigned done;
    uint64_t order, submitted_ms, deadline_ms, life;
    struct key key, keys[KEYS_MAX];
    char key_text[TEXT_MAX], keys_text[KEYS_MAX][TEXT_MAX];
    struct muster_slice slices[KEYS_MAX], values[KEYS_MAX];
    char value_text[VALUE_MAX], desired_text[VALUE_MAX], values_text[KEYS_MAX][TEXT_MAX];
    unsigned serial, expected; /* what it writes; what compare_set expects; 0: nothing */
    unsigned own_least, own_most;
    bool all_there; /* its keys had all been written when it was made */
};

enum mood { AWAY, GREETING, WORKING };

struct client {
    struct mu_calls calls;
    enum mu_dialect dialect;
    enum mood mood;
    uint64_t life;
    int conn; /* -1: none */
    char greeting[16];
    size_t greeted;
    bool flushing;
    bool probing;
    uint64_t timer_ms;
    struct op ops[OPS_MAX];
    unsigned own_submitted, own_sent;              /* serials of its private key */
    unsigned pushed[SERIALS_MAX / 16], pushed_len; /* serials whose arrival is not certain yet */
    uint64_t pushed_order[SERIALS_MAX / 16];
    unsigned roll_called; /* of the liveness round: calls that are done */
};

/* A client as PyTorch 1.13 has it: after a wait in vain it goes on with the next request on the same connection. */
struct stock {
    int conn;
    uint64_t life;
    struct {
        size_t end; /* bytes said up to its end */
        bool is_wait;
    } asked[4096];
    size_t asked_len, next; /* next: the first that has not been answered or given up */
    size_t said, heard_by_server;
    bool waiting;
};

static struct {
    /* The seed and what it decides. */
    uint64_t seed;
    struct mu_rng rng;
    unsigned clients_count;
    bool has_stock, bytewise, tight, oom, queues_mostly, features[3];
    unsigned pause_max_ms, delay_max_ms, stall_percent, cut_percent, die_percent, partial_percent;
    uint64_t storm_ms;
    /* Now. */
    uint64_t now_ms, order;
    bool calm; /* the storm is over */
    struct event heap[EVENTS_MAX];
    size_t heap_len;
    struct mu_service service;
    struct conn conns[CONNS_MAX];
    unsigned conns_top; /* none from here on has been used yet */
    struct client clients[CLIENTS_MAX];
    struct stock stock;
    uint64_t generation;
    /* What has been done, and seen. */
    struct {
        struct key key;
        bool is_push, certain, popped, replaced;
    } serials[SERIALS_MAX];
    unsigned serials_len;
    unsigned frontier;
    int64_t added[COUNTER_COUNT], added_sure[COUNTER_COUNT], counted_max[COUNTER_COUNT];
    struct {
        unsigned counter;
        int64_t value;
    } counted[SERIALS_MAX];
    unsigned counted_len;
    struct {
        unsigned growing;
        size_t len;
        char bytes[GROWN_MAX];
    } seen[64];
    unsigned seen_len;
    unsigned short_written[SHORT_COUNT];
    struct {
        unsigned world, arrived;
    } gates[GATE_COUNT];
    unsigned gates_len;
    unsigned pops_lost;
    unsigned calls_made, calls_ok;
    /* Telling. */
    bool tracing, replaying;
    char trace[TRACE_LINES][TRACE_TEXT];
    unsigned trace_len;
} w;

static const char *program;

/* ---- Telling ---- */

static void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void tell(const char *format, ...)
{
    va_list args;
    char *line = w.trace[w.trace_len % TRACE_LINES];
    int len;

    if (!w.tracing && !w.replaying)
        return;
    len = snprintf(line, TRACE_TEXT, "%6" PRIu64 "  ", w.now_ms);
    va_start(args, format);
    (void)vsnprintf(line + len, TRACE_TEXT - (size_t)len, format, args);
    va_end(args);
    if (w.tracing)
        puts(line);
    else
        w.trace_len++;
}

static void broken(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void broken(const char *format, ...)
{
    unsigned from = w.trace_len > TRACE_LINES ? w.trace_len - TRACE_LINES : 0;
    char seed[32];
    va_list args;

    fail_alloc_at(0);
    for (unsigned i = from; !w.tracing && i < w.trace_len; i++)
        puts(w.trace[i % TRACE_LINES]);
    printf("%6" PRIu64 "  seed %" PRIu64 ": ", w.now_ms, w.seed);
    va_start(args, format);
    (void)vprintf(format, args);
    va_end(args);
    printf("\nreplay with: %s --seed %" PRIu64 " --trace\n", program, w.seed);
    (void)fflush(stdout);
    if (!w.tracing && !w.replaying) { /* once more, with the trace on */
        (void)snprintf(seed, sizeof seed, "%" PRIu64, w.seed);
        (void)execl("/proc/self/exe", program, "--seed", seed, "--replay", (char *)NULL);
    }
    _exit(1);
}

#define EXPECT(condition, ...)                                                                                         \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            broken(__VA_ARGS__);                                                                                       \
    } while (0)

/* ---- Chance ---- */

static unsigned below(unsigned bound)
{
    return (unsigned)mu_rng_below(&w.rng, bound);
}

static bool chance(unsigned percent)
{
    return below(100) < percent;
}

/* Makes one of the next few allocations fail, sometimes. Everything between arm() and disarm() is muster's. */
static void arm(void)
{
    if (w.oom && !w.calm && chance(5))
        fail_alloc_at(1 + below(4));
}

static void disarm(void)
{
    if (w.oom)
        fail_alloc_at(0);
}

/* ---- Events: a heap by time, then by order ---- */

static bool sooner(const struct event *a, const struct event *b)
{
    return a->at_ms != b->at_ms ? a->at_ms < b->at_ms : a->order < b->order;
}

static void push_event(struct event event)
{
    size_t i = w.heap_len++;

    EXPECT(w.heap_len < EVENTS_MAX, "too many events");
    event.order = w.order++;
    while (i > 0 && sooner(&event, &w.heap[(i - 1) / 2])) {
        w.heap[i] = w.heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w.heap[i] = event;
}

static struct event pop_event(void)
{
    struct event first = w.heap[0], last = w.heap[--w.heap_len];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;

        if (child >= w.heap_len)
            break;
        if (child + 1 < w.heap_len && sooner(&w.heap[child + 1], &w.heap[child]))
            child++;
        if (!sooner(&w.heap[child], &last))
            break;
        w.heap[i] = w.heap[child];
        i = child;
    }
    w.heap[i] = last;
    return first;
}

static void later(enum event_type type, unsigned who, uint64_t generation, uint64_t delay_ms)
{
    push_event((struct event){ .at_ms = w.now_ms + delay_ms, .type = type, .who = who, .generation = generation });
}

/* ---- Names and values ---- */

static size_t name_of(struct key key, char text[static TEXT_MAX])
{
    if (key.role == PRIVATE)
        return (size_t)snprintf(text, TEXT_MAX, "p%u.%u", key.index, key.life);
    return (size_t)snprintf(text, TEXT_MAX, "%c%u", role_letters[key.role], key.index);
}

static bool same_key(struct key a, struct key b)
{
    return a.role == b.role && a.index == b.index && a.life == b.life;
}

static unsigned new_serial(struct key key)
{
    EXPECT(w.serials_len + 1 < SERIALS_MAX, "too many values");
    w.serials[++w.serials_len].key = key;
    return w.serials_len;
}

/* A value that says what it is: "KEY#SERIAL;" and then, sometimes, a long tail of dots. */
static struct muster_slice make_value(struct key key, unsigned serial, char *text, size_t size)
{
    char name[TEXT_MAX];
    int len;

    (void)name_of(key, name);
    len = snprintf(text, size, "%s#%u;", name, serial);
    if (size >= VALUE_MAX && key.role != GROWING && chance(5)) {
        size_t tail = below(1500);

        memset(text + len, '.', tail);
        len += (int)tail;
    }
    return (struct muster_slice){ text, (size_t)len };
}

/* The serial of a value that must be one of `key`. */
static unsigned read_value(struct key key, const char *bytes, size_t len, const char *what)
{
    char name[TEXT_MAX], copy[TEXT_MAX + 1];
    size_t name_len = name_of(key, name), copied = len < TEXT_MAX ? len : TEXT_MAX;
    unsigned serial;

    memcpy(copy, bytes, copied);
    copy[copied] = '\0';
    EXPECT(copied > name_len && memcmp(copy, name, name_len) == 0 && copy[name_len] == '#',
           "%s of %s gave what was never written there: '%s'", what, name, copy);
    serial = (unsigned)strtoul(copy + name_len + 1, NULL, 10);
    EXPECT(serial > 0 && serial <= w.serials_len && same_key(w.serials[serial].key, key),
           "%s of %s gave a value of nobody: '%s'", what, name, copy);
    return serial;
}

static struct mu_slice in_table(struct key key)
{
    char text[TEXT_MAX + 1];

    text[0] = '/';
    return mu_table_get(&w.service.table, mu_slice(text, 1 + name_of(key, text + 1)));
}

static int64_t number_in_table(struct key key) /* 0: none */
{
    struct mu_slice value = in_table(key);
    char text[32] = "0";

    if (value.data != NULL && value.len < sizeof text) {
        memcpy(text, value.data, value.len);
        text[value.len] = '\0';
    }
    return strtoll(text, NULL, 10);
}

static bool is_there(struct key key)
{
    return in_table(key).data != NULL;
}

/* ---- The network ---- */

static uint64_t some_delay(void)
{
    if (!w.calm && chance(w.stall_percent))
        return 200 + below(2000);
    return below(w.delay_max_ms + 1);
}

/* Announces what has come into the pipe, in pieces, each not before the last. */
static void announce(struct conn *conn, bool to_server)
{
    struct pipe *pipe = to_server ? &conn->up : &conn->down;

    while (pipe->announced < pipe->len) {
        size_t rest = pipe->len - pipe->announced, piece = rest;
        uint64_t at_ms = w.now_ms + some_delay();

        if (w.bytewise && rest < 64)
            piece = 1;
        else if (chance(60))
            piece = 1 + below((unsigned)rest);
        if (at_ms < pipe->last_ms)
            at_ms = pipe->last_ms;
        pipe->last_ms = at_ms;
        pipe->announced += piece;
        push_event((struct event){ .at_ms = at_ms,
                                   .type = EV_DELIVER,
                                   .who = (unsigned)(conn - w.conns),
                                   .generation = conn->generation,
                                   .bytes = piece,
                                   .to_server = to_server });
    }
}

static bool pipe_put(struct pipe *pipe, const char *bytes, size_t len)
{
    if (pipe->ended)
        return true; /* into the void, as a broken socket takes them */
    if (len > PIPE_BYTES - pipe->len)
        return false;
    for (size_t i = 0; i < len; i++)
        pipe->bytes[(pipe->start + pipe->len + i) % PIPE_BYTES] = bytes[i];
    pipe->len += len;
    return true;
}

static void pipe_take(struct pipe *pipe, char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        bytes[i] = pipe->bytes[(pipe->start + i) % PIPE_BYTES];
    pipe->start = (pipe->start + len) % PIPE_BYTES;
    pipe->len -= len;
    pipe->announced -= len;
}

static void end_event(struct conn *conn, bool to_server, uint64_t at_ms)
{
    push_event((struct event){ .at_ms = at_ms,
                               .type = EV_END,
                               .who = (unsigned)(conn - w.conns),
                               .generation = conn->generation,
                               .to_server = to_server });
}

/* Both ends find out, each in its own time; what was under way is gone. */
static void cut(struct conn *conn)
{
    if (conn->cut)
        return;
    tell("conn %d: cut with %zu bytes under way to the server, %zu to the client", (int)(conn - w.conns), conn->up.len,
         conn->down.len);
    conn->cut = true;
    conn->up.ended = conn->down.ended = true;
    conn->up.len = conn->up.announced = conn->down.len = conn->down.announced = 0;
    conn->generation = ++w.generation;
    end_event(conn, true, w.now_ms + some_delay());
    end_event(conn, false, w.now_ms + some_delay());
}

/* One side has closed: the other gets what is under way, then the end. */
static void hang_up(struct conn *conn, bool to_server)
{
    struct pipe *pipe = to_server ? &conn->up : &conn->down;

    if (conn->cut || pipe->ended)
        return;
    pipe->ended = true;
    (to_server ? &conn->down : &conn->up)->ended = true;
    end_event(conn, to_server, pipe->last_ms > w.now_ms ? pipe->last_ms : w.now_ms);
}

static struct conn *new_conn(int client)
{
    for (unsigned i = 0; i < CONNS_MAX; i++) {
        struct conn *conn = &w.conns[i];

        if (conn->used)
            continue;
        conn->used = true;
        if (i >= w.conns_top)
            w.conns_top = i + 1;
        conn->cut = conn->left = conn->doomed = false;
        conn->generation = ++w.generation;
        conn->client = client;
        conn->up.start = conn->up.len = conn->up.announced = conn->up.last_ms = 0;
        conn->down.start = conn->down.len = conn->down.announced = conn->down.last_ms = 0;
        conn->up.ended = conn->down.ended = false;
        mu_session_init(&conn->session, &w.service);
        if (!w.calm && chance(w.cut_percent))
            later(EV_CUT, i, conn->generation, below(1500));
        return conn;
    }
    broken("too many connections");
}

static void let_go(struct conn *conn)
{
    if (conn->left && conn->client < 0)
        conn->used = false;
}

/* ---- The server ---- */

static const struct op *oldest(const struct client *client)
{
    const struct op *first = NULL;

    for (unsigned i = 0; i < OPS_MAX; i++) {
        const struct op *op = &client->ops[i];

        if (op->busy && (first == NULL || op->order < first->order))
            first = op;
    }
    return first;
}

static void check_budget(void)
{
    EXPECT(w.service.budget.used <= w.service.budget.max, "the budget is overdrawn: %zu of %zu", w.service.budget.used,
           w.service.budget.max);
    EXPECT(w.service.transit.used <= w.service.transit.max, "the budget of half-read requests is overdrawn: %zu of %zu",
           w.service.transit.used, w.service.transit.max);
}

static void check_stock_answer(const struct conn *conn, size_t len);

static void on_send(struct mu_session *session, const struct mu_slice *parts, size_t count)
{
    struct conn *conn = MU_LIST_ITEM(session, struct conn, session);
    size_t total = 0;

    EXPECT(conn->used && !conn->left && !session->dead, "something was sent to a session that has left");
    for (size_t i = 0; i < count; i++)
        total += parts[i].len;
    if (conn->client == CLIENTS_MAX)
        check_stock_answer(conn, total);
    for (size_t i = 0; i < count; i++) {
        if (!pipe_put(&conn->down, parts[i].data, parts[i].len)) {
            session->dead = true; /* a peer that does not read */
            conn->doomed = true;
            return;
        }
    }
    if (!conn->cut)
        announce(conn, false);
}

static int64_t queue_len(struct mu_slice name)
{
    const struct mu_request request = { .op = MU_OP_QUEUE_LEN, .key = name };
    struct mu_answer counted;
    struct mu_peer nobody;

    mu_peer_init(&nobody);
    mu_table_step(&w.service.table, &nobody, &request, &counted, NULL);
    return counted.number;
}

static bool somebody_comes_for(const struct mu_entry *entry)
{
    for (unsigned i = 0; i < w.conns_top; i++) {
        if (w.conns[i].used && !w.conns[i].left && w.conns[i].session.peer.owes == entry)
            return true;
    }
    return false;
}

/* Who waits at a queue that has an item must at least be waiting for somebody else to come for it. */
static void check_consumers(void)
{
    for (unsigned i = 0; i < w.conns_top; i++) {
        const struct mu_peer *peer = &w.conns[i].session.peer;
        struct mu_slice name;

        if (!w.conns[i].used || w.conns[i].left || peer->reg.entry == NULL)
            continue;
        name = mu_entry_key(peer->reg.entry);
        EXPECT(name.data[1] != role_letters[QUEUE] || queue_len(name) == 0 || somebody_comes_for(peer->reg.entry),
               "conn %u waits at %.*s, which has an item, and nobody else comes for it", i, (int)name.len, name.data);
    }
}

static void server_leaves(struct conn *conn)
{
    if (conn->left)
        return;
    tell("conn %d: the server lets it go", (int)(conn - w.conns));
    mu_session_leave(&conn->session);
    conn->left = true;
    hang_up(conn, false);
    check_budget();
    check_consumers();
    let_go(conn);
}

static void bury_the_doomed(void)
{
    for (unsigned i = 0; i < w.conns_top; i++) {
        if (w.conns[i].used && w.conns[i].doomed && !w.conns[i].left)
            server_leaves(&w.conns[i]);
    }
}

static void server_reads(struct conn *conn, const char *bytes, size_t len)
{
    struct muster_error error = { 0 };
    int rc;

    if (conn->left)
        return;
    if (conn->client == CLIENTS_MAX)
        w.stock.heard_by_server += len;
    arm();
    rc = mu_session_feed(&conn->session, mu_slice(bytes, len), w.now_ms, &error);
    disarm();
    check_budget();
    if (rc == 0)
        check_consumers();
    if (rc < 0) {
        EXPECT(w.tight || w.oom, "the server refused a good client: %s", error.text);
        tell("conn %d: refused: %s", (int)(conn - w.conns), error.text);
        conn->doomed = true;
    }
    bury_the_doomed();
    if (!conn->left && mu_session_deadline_ms(&conn->session) != 0)
        later(EV_GRACE, (unsigned)(conn - w.conns), conn->generation,
              mu_session_deadline_ms(&conn->session) - w.now_ms);
}

/* ---- Clients: the connection ---- */

static void settle(struct client *client);

static unsigned number_of(const struct client *client)
{
    return (unsigned)(client - w.clients);
}

static struct conn *conn_of(const struct client *client)
{
    return client->conn < 0 ? NULL : &w.conns[client->conn];
}

static void flush(struct client *client)
{
    struct conn *conn = conn_of(client);
    size_t len = client->calls.out.len;

    if (conn == NULL || len == 0 || client->flushing || client->mood != WORKING)
        return;
    if (!w.calm && chance(w.partial_percent))
        len = below((unsigned)len); /* 0: it takes nothing now */
    if (len > PIPE_BYTES - conn->up.len)
        len = PIPE_BYTES - conn->up.len;
    (void)pipe_put(&conn->up, client->calls.out.data, len);
    if (!conn->cut && !conn->up.ended)
        announce(conn, true);
    mu_buf_consume(&client->calls.out, len);
    mu_calls_wrote(&client->calls, len);
    if (client->calls.out.len > 0) {
        client->flushing = true;
        later(EV_FLUSH, number_of(client), client->life, 1 + below(20));
    }
}

static void forget_conn(struct client *client)
{
    struct conn *conn = conn_of(client);

    if (conn == NULL)
        return;
    hang_up(conn, true);
    conn->client = -1;
    client->conn = -1;
    let_go(conn);
}

static void connect_client(struct client *client)
{
    struct conn *conn = new_conn((int)number_of(client));
    struct mu_slice hello = mu_greeting(client->dialect);

    client->conn = (int)(conn - w.conns);
    client->mood = GREETING;
    client->greeted = 0;
    client->flushing = false;
    tell("client %u: greets on conn %d (%s)", number_of(client), client->conn, mu_dialect_name(client->dialect));
    (void)pipe_put(&conn->up, hello.data, hello.len);
    announce(conn, true);
}

/* The first life, or another one after a death. */
static void be_born(struct client *client)
{
    client->life = ++w.generation;
    client->own_submitted = client->own_sent = 0;
    client->pushed_len = 0;
    client->probing = false;
    client->timer_ms = UINT64_MAX;
    mu_calls_init(&client->calls, false);
    connect_client(client);
    later(EV_ACT, number_of(client), client->life, below(50));
    if (!w.calm && chance(w.die_percent))
        later(EV_DIE, number_of(client), client->life, 100 + below(2000));
}

static void be_lost(struct client *client, int code, const char *why)
{
    struct muster_error error = { .code = code };

    (void)snprintf(error.text, sizeof error.text, "%s", why);
    mu_calls_lose(&client->calls, &error);
}

/* All calls are over: the life ends, the next one begins a little later. */
static void bury(struct client *client)
{
    for (unsigned i = 0; i < OPS_MAX; i++)
        EXPECT(!client->ops[i].busy, "client %u: a call outlives its connection: %s", number_of(client),
               mu_call_name(client->ops[i].call.kind));
    tell("client %u: is gone: %s", number_of(client), client->calls.lost.text);
    forget_conn(client);
    mu_calls_done(&client->calls);
    client->mood = AWAY;
    client->life = ++w.generation;
    later(EV_CONNECT, number_of(client), client->life, 20 + below(200));
}

static void client_reads(struct client *client, const char *bytes, size_t len)
{
    struct conn *conn = conn_of(client);

    if (client->mood == WORKING) {
        arm();
        mu_calls_read(&client->calls, mu_slice(bytes, len));
        disarm();
        return;
    }
    EXPECT(len <= sizeof client->greeting - client->greeted, "client %u: too long an answer to a greeting",
           number_of(client));
    memcpy(client->greeting + client->greeted, bytes, len);
    client->greeted += len;
    switch (mu_greeting_check(client->dialect, mu_slice(client->greeting, client->greeted))) {
    case MU_GREETING_MORE:
        break;
    case MU_GREETING_YES:
        tell("client %u: at work on conn %d", number_of(client), (int)(conn - w.conns));
        client->mood = WORKING;
        arm();
        mu_calls_opened(&client->calls, client->dialect);
        disarm();
        break;
    case MU_GREETING_WRONG:
        broken("client %u: its greeting was answered by nonsense", number_of(client));
    }
}

/* ---- Clients: judging what a call came to ---- */

static void judge_read(struct client *client, const struct op *op, struct key key, struct mu_slice value)
{
    char name[TEXT_MAX];
    unsigned serial;

    (void)name_of(key, name);
    if (key.role == SHORT && value.len == 0)
        return; /* deleted between WAIT and GET */
    if (key.role == COUNTER) {
        EXPECT(value.len > 0 && value.len < 20 && strspn(value.data, "0123456789") == value.len,
               "get of counter %s gave '%.*s'", name, (int)value.len, value.data);
        return;
    }
    if (key.role == GROWING) {
        EXPECT(value.len < GROWN_MAX, "%s has grown out of all bounds", name);
        if (w.seen_len < sizeof w.seen / sizeof w.seen[0]) {
            w.seen[w.seen_len].growing = key.index;
            w.seen[w.seen_len].len = value.len;
            memcpy(w.seen[w.seen_len++].bytes, value.data, value.len);
        }
        return;
    }
    serial = read_value(key, value.data, value.len, "get");
    if (key.role == PRIVATE && client->dialect != MU_DIALECT_L0)
        EXPECT(serial >= op->own_least && serial <= op->own_most,
               "client %u wrote %u and up to %u to its own %s, and then read %u", number_of(client), op->own_least,
               op->own_most, name, serial);
}

static void judge_count(const struct op *op)
{
    unsigned index = op->key.index;

    for (unsigned i = 0; i < w.counted_len; i++)
        EXPECT(w.counted[i].counter != index || w.counted[i].value != op->call.result,
               "two ADDs to c%u both gave %" PRId64, index, op->call.result);
    EXPECT(op->call.result > 0 && op->call.result <= w.added[index], "c%u is %" PRId64 " of at most %" PRId64, index,
           op->call.result, w.added[index]);
    w.counted[w.counted_len].counter = index;
    w.counted[w.counted_len++].value = op->call.result;
    w.added_sure[index] += op->call.number;
    if (op->call.result > w.counted_max[index])
        w.counted_max[index] = op->call.result;
}

static void judge_swap(struct op *op)
{
    struct mu_slice got = mu_slice(op->call.bytes.data, op->call.bytes.len);
    unsigned serial = read_value(op->key, got.data, got.len, "compare_set");

    if (serial != op->serial || op->expected == 0)
        return;
    EXPECT(!w.serials[op->expected].replaced, "value %u was replaced by two compare_sets", op->expected);
    w.serials[op->expected].replaced = true;
}

static void judge_pop(const struct op *op)
{
    unsigned serial = read_value(op->key, op->call.bytes.data, op->call.bytes.len, "queue_pop");

    EXPECT(w.serials[serial].is_push, "a pop gave what was never pushed");
    EXPECT(!w.serials[serial].popped, "item %u was popped twice", serial);
    w.serials[serial].popped = true;
}

static void judge_waited(const struct op *op, struct key key)
{
    char name[TEXT_MAX];

    (void)name_of(key, name);
    if (key.role == SHORT)
        EXPECT(w.short_written[key.index] > 0, "%s of %s ended; it was never written", mu_call_name(op->call.kind),
               name);
    else if (key.role != QUEUE)
        EXPECT(is_there(key), "%s of %s ended before it was written", mu_call_name(op->call.kind), name);
}

static void judge_list(const struct op *op)
{
    for (size_t i = 0; i < op->call.found.count; i++) {
        const struct muster_bytes *item = &op->call.found.items[i];

        EXPECT(item->len > 1 && strchr("fdxcabpw", item->data[0]) != NULL, "list_keys shows '%s'", item->data);
        for (size_t j = 0; j < i; j++)
            EXPECT(strcmp(item->data, op->call.found.items[j].data) != 0, "list_keys shows '%s' twice", item->data);
    }
}

static void judge_good(struct client *client, struct op *op)
{
    const struct mu_call *call = &op->call;

    switch (call->kind) {
    case MU_CALL_SET:
        if (op->key.role == PRIVATE)
            client->own_sent = op->serial;
        break;
    case MU_CALL_GET:
        judge_waited(op, op->key);
        judge_read(client, op, op->key, mu_slice(call->bytes.data, call->bytes.len));
        break;
    case MU_CALL_ADD:
        judge_count(op);
        break;
    case MU_CALL_COMPARE_SET:
        judge_swap(op);
        break;
    case MU_CALL_CHECK:
        EXPECT(call->result || !op->all_there, "check says that keys are missing which are not");
        for (size_t i = 0; i < call->count && call->result; i++)
            judge_waited(op, op->keys[i]);
        break;
    case MU_CALL_WAIT:
        for (size_t i = 0; i < call->count; i++)
            judge_waited(op, op->keys[i]);
        break;
    case MU_CALL_DELETE_KEY:
        EXPECT(call->result == 0 || w.short_written[op->key.index] > 0, "a key was deleted that never was");
        break;
    case MU_CALL_NUM_KEYS:
        EXPECT(call->result >= 0 && call->result <= w.serials_len + 200, "num_keys says %" PRId64, call->result);
        break;
    case MU_CALL_MULTI_GET:
        EXPECT(call->found.count == call->count, "multi_get gave %zu values of %zu", call->found.count, call->count);
        for (size_t i = 0; i < call->count; i++) {
            judge_waited(op, op->keys[i]);
            judge_read(client, op, op->keys[i], mu_slice(call->found.items[i].data, call->found.items[i].len));
        }
        break;
    case MU_CALL_QUEUE_POP:
        judge_pop(op);
        break;
    case MU_CALL_QUEUE_LEN:
        EXPECT(call->result >= 0 && call->result <= w.serials_len, "queue_len says %" PRId64, call->result);
        break;
    case MU_CALL_LIST_KEYS:
        judge_list(op);
        break;
    case MU_CALL_BARRIER:
        EXPECT(w.gates[op->key.index].arrived >= w.gates[op->key.index].world, "gate %u opened for %u of %u",
               op->key.index, w.gates[op->key.index].arrived, w.gates[op->key.index].world);
        break;
    case MU_CALL_APPEND:
    case MU_CALL_MULTI_SET:
    case MU_CALL_QUEUE_PUSH:
    case MU_CALL_PING:
        break;
    }
}

static bool is_answered(enum mu_call_kind kind)
{
    return kind != MU_CALL_SET && kind != MU_CALL_APPEND && kind != MU_CALL_MULTI_SET && kind != MU_CALL_QUEUE_PUSH;
}

/* An answer proves that everything said before it on the same connection has arrived. */
static void make_certain(struct client *client, uint64_t order)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < client->pushed_len; i++) {
        if (client->pushed_order[i] < order) {
            w.serials[client->pushed[i]].certain = true;
        } else {
            client->pushed[kept] = client->pushed[i];
            client->pushed_order[kept++] = client->pushed_order[i];
        }
    }
    client->pushed_len = kept;
}

static bool may_fail_with(const struct op *op, int rc)
{
    switch (rc) {
    case MUSTER_ETIMEOUT:
    case MUSTER_ELOST:
    case MUSTER_ECANCELED:
        return true;
    case MUSTER_EEMPTY:
        return op->call.kind == MU_CALL_QUEUE_POP;
    case MUSTER_ENOTSUP:
        return true;
    case MUSTER_ECONNECT: /* it could not be found out whether the server has them */
        return op->call.kind == MU_CALL_QUEUE_PUSH || op->call.kind == MU_CALL_QUEUE_POP ||
               op->call.kind == MU_CALL_QUEUE_LEN || op->call.kind == MU_CALL_LIST_KEYS ||
               op->call.kind == MU_CALL_PING;
    case MUSTER_ENOMEM:
        return w.oom;
    default:
        return false;
    }
}

static void judge(struct client *client, struct op *op)
{
    struct mu_call *call = &op->call;

    op->done++;
    EXPECT(op->busy && op->done == 1, "client %u: %s ended %u times", number_of(client), mu_call_name(call->kind),
           op->done);
    EXPECT(w.now_ms <= op->deadline_ms, "client %u: %s ended %" PRIu64 " ms late", number_of(client),
           mu_call_name(call->kind), w.now_ms - op->deadline_ms);
    tell("client %u: %s(%s) -> %s", number_of(client), mu_call_name(call->kind), op->key_text,
         call->rc < 0 ? call->error.text : "ok");
    if (call->rc == 0) {
        w.calls_ok++;
        judge_good(client, op);
        if (call->kind == MU_CALL_QUEUE_PUSH) {
            EXPECT(client->pushed_len < SERIALS_MAX / 16, "too many pushes");
            client->pushed_order[client->pushed_len] = op->order;
            client->pushed[client->pushed_len++] = op->serial;
        }
    } else {
        EXPECT(call->error.code == call->rc && call->error.text[0] != '\0', "a failure without a word");
        EXPECT(may_fail_with(op, call->rc), "client %u: %s", number_of(client), call->error.text);
        if (call->kind == MU_CALL_QUEUE_POP && call->rc != MUSTER_EEMPTY && call->rc != MUSTER_ENOTSUP &&
            call->rc != MUSTER_ECONNECT)
            w.pops_lost++;
    }
    if (is_answered(call->kind) && (call->rc == 0 || call->rc == MUSTER_EEMPTY))
        make_certain(client, op->order);
    muster_bytes_done(&call->bytes);
    muster_values_done(&call->found);
    op->busy = false;
}

/* ---- Clients: steps ---- */

/* With both wires silent and nothing left to say, whoever still waits must have something to wait for. */
static void check_silence(const struct client *client)
{
    const struct conn *conn = conn_of(client);
    const struct op *op = oldest(client);
    bool there = true;

    if (client->mood != WORKING || conn == NULL || conn->cut || conn->left || conn->up.len > 0 || conn->down.len > 0 ||
        conn->up.ended || conn->down.ended || client->calls.out.len > 0 || client->calls.probe != 0 ||
        mu_session_deadline_ms(&conn->session) != 0 || client->calls.lost.code != 0)
        return;
    if (op == NULL) {
        EXPECT(mu_list_empty(&client->calls.slots), "client %u: an answer is owed for ever", number_of(client));
        return;
    }
    switch (op->call.kind) {
    case MU_CALL_WAIT:
    case MU_CALL_MULTI_GET:
        for (size_t i = 0; i < op->call.count; i++)
            there = there && op->keys[i].role != SHORT && is_there(op->keys[i]);
        break;
    case MU_CALL_GET:
        there = op->key.role != SHORT && is_there(op->key);
        break;
    case MU_CALL_BARRIER:
        there = number_in_table(op->key) >= w.gates[op->key.index].world;
        break;
    case MU_CALL_QUEUE_POP:
        there = false; /* see check_consumers() */
        break;
    default:
        break; /* is answered at once */
    }
    EXPECT(!there || op->call.step > 0, "client %u: %s(%s) waits for what is there", number_of(client),
           mu_call_name(op->call.kind), op->key_text);
    EXPECT(op->call.step == 0 || op->call.kind == MU_CALL_QUEUE_POP, "client %u: %s(%s) was not answered",
           number_of(client), mu_call_name(op->call.kind), op->key_text);
}

static void check_features(struct client *client)
{
    if (client->calls.probe == 0 || client->probing)
        return;
    client->probing = true;
    later(EV_PROBED, number_of(client), client->life, some_delay());
}

static void arm_timer(struct client *client)
{
    uint64_t until = mu_calls_deadline_ms(&client->calls);

    if (until == UINT64_MAX || until >= client->timer_ms)
        return;
    client->timer_ms = until;
    later(EV_TIMER, number_of(client), client->life, until > w.now_ms ? until - w.now_ms : 0);
}

/* What every event of a client ends with, as in the client on a loop. */
static void settle(struct client *client)
{
    struct mu_call *call;

    if (client->calls.renew) {
        EXPECT(client->dialect == MU_DIALECT_L0, "a connection is to be replaced that need not be");
        client->calls.renew = false;
        forget_conn(client);
        client->mood = AWAY;
        later(EV_CONNECT, number_of(client), client->life, some_delay());
    }
    flush(client);
    while ((call = mu_calls_pop_finished(&client->calls)) != NULL)
        judge(client, MU_LIST_ITEM(call, struct op, call));
    if (client->calls.lost.code != 0) {
        EXPECT(client->calls.lost.code != MUSTER_EPROTOCOL, "client %u is out of step: %s", number_of(client),
               client->calls.lost.text);
        bury(client);
        return;
    }
    for (unsigned i = 0; i < OPS_MAX; i++)
        EXPECT(!client->ops[i].busy || client->ops[i].deadline_ms > w.now_ms ||
                   client->timer_ms <= client->ops[i].deadline_ms ||
                   mu_calls_deadline_ms(&client->calls) <= client->ops[i].deadline_ms,
               "client %u: nobody watches the deadline of %s", number_of(client),
               mu_call_name(client->ops[i].call.kind));
    check_features(client);
    arm_timer(client);
    check_silence(client);
}

/* ---- Clients: what they do ---- */

static struct op *free_op(struct client *client)
{
    for (unsigned i = 0; i < OPS_MAX; i++) {
        if (!client->ops[i].busy)
            return &client->ops[i];
    }
    return NULL;
}

static struct key some_key(const struct client *client, bool countable)
{
    switch (below(countable ? 7 : 6)) {
    case 0:
    case 1: /* near the frontier: just written, or about to be */
        return (struct key){ FRONTIER, w.frontier + below(4) - (w.frontier > 2 ? 2 : 0), 0 };
    case 2:
    case 3:
        return (struct key){ DATA, below(DATA_COUNT), 0 };
    case 4:
        return (struct key){ SHORT, below(SHORT_COUNT), 0 };
    case 5:
        return (struct key){ PRIVATE, number_of(client), (unsigned)client->life };
    default:
        return chance(50) ? (struct key){ COUNTER, below(COUNTER_COUNT), 0 }
                          : (struct key){ GROWING, below(GROWING_COUNT), 0 };
    }
}

/* Mostly one that is there, for who waits for a key holds up its own later calls. */
static struct key some_key_to_read(const struct client *client)
{
    struct key key = some_key(client, true);

    for (unsigned tries = chance(25) ? 0 : 6; tries > 0 && !is_there(key); tries--)
        key = some_key(client, true);
    return key;
}

static void note_written(struct client *client, struct key key, unsigned serial)
{
    if (key.role == SHORT)
        w.short_written[key.index]++;
    if (key.role == PRIVATE)
        client->own_submitted = serial;
    if (key.role == FRONTIER && key.index >= w.frontier)
        w.frontier = key.index + 1;
}

static void one_key(struct op *op, struct key key)
{
    op->key = key;
    op->call.key = (struct muster_slice){ op->key_text, name_of(key, op->key_text) };
}

static void write_one(struct client *client, struct op *op, struct key key)
{
    one_key(op, key);
    op->serial = new_serial(key);
    op->call.value = make_value(key, op->serial, op->value_text, VALUE_MAX);
    note_written(client, key, op->serial);
}

static void many_keys(struct client *client, struct op *op, bool readable)
{
    op->call.count = below(KEYS_MAX);
    op->all_there = true;
    (void)snprintf(op->key_text, TEXT_MAX, "-");
    for (size_t i = 0; i < op->call.count; i++) {
        op->keys[i] = readable ? some_key_to_read(client) : some_key(client, false);
        op->slices[i] = (struct muster_slice){ op->keys_text[i], name_of(op->keys[i], op->keys_text[i]) };
        op->all_there = op->all_there && op->keys[i].role != SHORT && is_there(op->keys[i]);
        (void)snprintf(op->key_text + (i == 0 ? 0 : strlen(op->key_text)),
                       TEXT_MAX - (i == 0 ? 0 : strlen(op->key_text)), "%s ", op->keys_text[i]);
    }
    op->call.keys = op->slices;
}

static void write_many(struct client *client, struct op *op)
{
    many_keys(client, op, false);
    for (size_t i = 0; i < op->call.count; i++) {
        unsigned serial = new_serial(op->keys[i]);

        op->values[i] = make_value(op->keys[i], serial, op->values_text[i], TEXT_MAX);
        note_written(client, op->keys[i], serial);
        if (op->keys[i].role == PRIVATE) /* whether it was sent is not kept for many */
            client->own_sent = client->own_sent < serial ? client->own_sent : serial;
    }
    op->call.values = op->values;
}

static void swap(struct client *client, struct op *op)
{
    struct key key = { DATA, below(DATA_COUNT), 0 };
    struct mu_slice now = in_table(key);

    if (chance(30))
        key = (struct key){ FRONTIER, w.frontier, 0 };
    one_key(op, key);
    now = in_table(key);
    op->serial = new_serial(key);
    op->call.desired = make_value(key, op->serial, op->desired_text, VALUE_MAX);
    if (now.data != NULL && now.len < VALUE_MAX) {
        memcpy(op->value_text, now.data, now.len);
        op->call.value = (struct muster_slice){ op->value_text, now.len };
        op->expected = read_value(key, now.data, now.len, "the table");
    }
    note_written(client, key, op->serial);
}

/* A gate of the barriers: joins the newest one, or opens another. */
static void meet(struct op *op)
{
    unsigned gate;

    if (w.gates_len == 0 ||
        (w.gates[w.gates_len - 1].arrived >= w.gates[w.gates_len - 1].world && w.gates_len < GATE_COUNT))
        w.gates[w.gates_len++].world = 2 + below(3);
    gate = w.gates_len - 1;
    w.gates[gate].arrived++;
    one_key(op, (struct key){ GATE, gate, 0 });
    op->call.number = w.gates[gate].world;
}

static void choose_call(struct client *client, struct op *op)
{
    static const enum mu_call_kind kinds[] = {
        MU_CALL_SET,        MU_CALL_SET,         MU_CALL_SET,         MU_CALL_GET,       MU_CALL_GET,
        MU_CALL_GET,        MU_CALL_ADD,         MU_CALL_ADD,         MU_CALL_ADD,       MU_CALL_WAIT,
        MU_CALL_WAIT,       MU_CALL_CHECK,       MU_CALL_MULTI_GET,   MU_CALL_MULTI_SET, MU_CALL_NUM_KEYS,
        MU_CALL_DELETE_KEY, MU_CALL_COMPARE_SET, MU_CALL_COMPARE_SET, MU_CALL_APPEND,    MU_CALL_QUEUE_PUSH,
        MU_CALL_QUEUE_PUSH, MU_CALL_QUEUE_POP,   MU_CALL_QUEUE_POP,   MU_CALL_QUEUE_POP, MU_CALL_QUEUE_LEN,
        MU_CALL_LIST_KEYS,  MU_CALL_BARRIER,     MU_CALL_PING,
    };

    op->call.kind = kinds[below(sizeof kinds / sizeof kinds[0])];
    if (w.queues_mostly && chance(70))
        op->call.kind = chance(25) ? MU_CALL_QUEUE_PUSH : MU_CALL_QUEUE_POP;
    switch (op->call.kind) {
    case MU_CALL_SET:
        write_one(client, op, some_key(client, false));
        break;
    case MU_CALL_GET:
        one_key(op, some_key_to_read(client));
        break;
    case MU_CALL_ADD:
        one_key(op, (struct key){ COUNTER, below(COUNTER_COUNT), 0 });
        op->call.number = 1 + below(5);
        w.added[op->key.index] += op->call.number;
        break;
    case MU_CALL_COMPARE_SET:
        swap(client, op);
        break;
    case MU_CALL_CHECK:
    case MU_CALL_WAIT:
    case MU_CALL_MULTI_GET:
        many_keys(client, op, true);
        break;
    case MU_CALL_MULTI_SET:
        write_many(client, op);
        break;
    case MU_CALL_DELETE_KEY:
        one_key(op, (struct key){ SHORT, below(SHORT_COUNT), 0 });
        break;
    case MU_CALL_APPEND:
        one_key(op, (struct key){ GROWING, below(GROWING_COUNT), 0 });
        op->serial = new_serial(op->key);
        op->call.value = make_value(op->key, op->serial, op->value_text, TEXT_MAX);
        break;
    case MU_CALL_QUEUE_PUSH:
        one_key(op, (struct key){ QUEUE, below(QUEUE_COUNT), 0 });
        op->serial = new_serial(op->key);
        op->call.value = make_value(op->key, op->serial, op->value_text, VALUE_MAX);
        w.serials[op->serial].is_push = true;
        break;
    case MU_CALL_QUEUE_POP:
        op->call.block = chance(w.queues_mostly ? 90 : 40);
        one_key(op, (struct key){ QUEUE, below(QUEUE_COUNT), 0 });
        break;
    case MU_CALL_QUEUE_LEN:
        one_key(op, (struct key){ QUEUE, below(QUEUE_COUNT), 0 });
        break;
    case MU_CALL_BARRIER:
        meet(op);
        break;
    case MU_CALL_NUM_KEYS:
    case MU_CALL_LIST_KEYS:
    case MU_CALL_PING:
        break;
    }
}

static uint64_t some_patience(void)
{
    switch (below(12)) {
    case 0:
        return below(10);
    case 1:
        return 5000;
    case 2:
    case 3:
        return 200 + below(1000);
    default:
        return 10 + below(150);
    }
}

static void on_done(struct mu_call *call)
{
    (void)call;
}

static void submit(struct client *client, struct op *op, uint64_t timeout_ms)
{
    op->busy = true;
    op->done = 0;
    op->order = w.order++;
    op->submitted_ms = w.now_ms;
    op->deadline_ms = w.now_ms + timeout_ms;
    op->life = client->life;
    op->own_least = client->own_sent;
    op->own_most = client->own_submitted;
    op->call.done = on_done;
    w.calls_made++;
    tell("client %u: %s(%s) within %" PRIu64 " ms", number_of(client), mu_call_name(op->call.kind), op->key_text,
         timeout_ms);
    arm();
    mu_calls_submit(&client->calls, &op->call, timeout_ms, w.now_ms);
    disarm();
}

static void clear(struct op *op)
{
    memset(&op->call, 0, sizeof op->call);
    op->key = (struct key){ 0 };
    op->serial = op->expected = 0;
    op->all_there = false;
    op->key_text[0] = '\0';
}

static void act(struct client *client)
{
    unsigned count = 1 + below(3);
    struct op *op;

    if (w.calm)
        return;
    while (count-- > 0 && (op = free_op(client)) != NULL) {
        clear(op);
        choose_call(client, op);
        submit(client, op, some_patience());
    }
    later(EV_ACT, number_of(client), client->life, below(w.pause_max_ms));
    settle(client);
}

/* ---- The stock client ---- */

static void stock_says(struct stock *stock, const char *bytes, size_t len, bool is_wait)
{
    struct conn *conn = &w.conns[stock->conn];

    EXPECT(stock->asked_len < sizeof stock->asked / sizeof stock->asked[0], "the stock client asks too much");
    stock->said += len;
    stock->asked[stock->asked_len].end = stock->said;
    stock->asked[stock->asked_len++].is_wait = is_wait;
    (void)pipe_put(&conn->up, bytes, len);
    if (!conn->up.ended)
        announce(conn, true);
}

static void stock_begin(void)
{
    struct conn *conn = new_conn(CLIENTS_MAX);

    w.stock.conn = (int)(conn - w.conns);
    w.stock.life = conn->generation;
    w.stock.asked_len = w.stock.next = w.stock.said = w.stock.heard_by_server = 0;
    w.stock.waiting = false;
    later(EV_STOCK, CLIENTS_MAX, w.stock.life, below(50));
}

static size_t put_wire_string(char *to, const char *text)
{
    mu_put_u64(to, strlen(text));
    memcpy(to + 8, text, strlen(text));
    return 8 + strlen(text);
}

static void stock_acts(void)
{
    char bytes[128], name[TEXT_MAX];
    size_t len = 1;

    if (w.calm)
        return;
    if (!w.stock.waiting && chance(60)) {
        bytes[0] = (char)mu_op_code(MU_OP_WAIT, MU_DIALECT_L0);
        mu_put_u64(bytes + 1, 1);
        (void)snprintf(name, sizeof name, "/f%u", w.frontier + below(3));
        len = 9 + put_wire_string(bytes + 9, name);
        w.stock.waiting = true;
        stock_says(&w.stock, bytes, len, true);
        later(EV_STOCK_OUT, CLIENTS_MAX, w.stock.life, 20 + below(200));
        return;
    }
    bytes[0] = (char)mu_op_code(MU_OP_NUM_KEYS, MU_DIALECT_L0);
    stock_says(&w.stock, bytes, len, false);
    w.stock.waiting = false;
    later(EV_STOCK, CLIENTS_MAX, w.stock.life, 20 + below(200));
}

/* Called while the server sends. One byte can only be for a WAIT that is the last thing it was asked; eight are for a
 * NUM_KEYS, and every WAIT before that has been given up. */
static void check_stock_answer(const struct conn *conn, size_t len)
{
    struct stock *stock = &w.stock;

    if ((int)(conn - w.conns) != stock->conn)
        return;
    while (len == 8 && stock->next < stock->asked_len && stock->asked[stock->next].is_wait)
        stock->next++;
    EXPECT(stock->next < stock->asked_len && stock->asked[stock->next].end <= stock->heard_by_server &&
               stock->asked[stock->next].is_wait == (len == 1),
           "the 1.13 client is sent %zu bytes that it did not ask for", len);
    stock->next++;
}

static void stock_ends(void)
{
    struct conn *conn = &w.conns[w.stock.conn];

    hang_up(conn, true);
    conn->client = -1;
    let_go(conn);
    w.stock.life = ++w.generation;
    w.stock.conn = -1;
    if (!w.calm)
        stock_begin();
}

/* ---- Carrying out events ---- */

static void deliver(struct conn *conn, bool to_server, size_t len)
{
    static char bytes[PIPE_BYTES];
    struct pipe *pipe = to_server ? &conn->up : &conn->down;
    struct client *client = conn->client >= 0 && conn->client < CLIENTS_MAX ? &w.clients[conn->client] : NULL;
    char *exact;

    if (len > pipe->len)
        len = pipe->len;
    pipe_take(pipe, bytes, len);
    exact = malloc(len == 0 ? 1 : len); /* so that reading one byte too far is seen */
    EXPECT(exact != NULL, "no memory for the simulator");
    memcpy(exact, bytes, len);
    if (to_server) {
        server_reads(conn, exact, len);
        if (client != NULL && client->mood == WORKING)
            check_silence(client);
    } else if (client != NULL) {
        client_reads(client, exact, len);
        settle(client);
    }
    free(exact);
}

static void end_of_conn(struct conn *conn, bool to_server)
{
    int who = conn->client;

    if (to_server) {
        server_leaves(conn);
        bury_the_doomed();
    } else if (who == CLIENTS_MAX) {
        stock_ends();
    } else if (who >= 0) {
        be_lost(&w.clients[who], MUSTER_ELOST, "the connection was cut");
        settle(&w.clients[who]);
    }
}

static void client_event(const struct event *event)
{
    struct client *client = &w.clients[event->who];

    if (client->life != event->generation)
        return;
    switch (event->type) {
    case EV_FLUSH:
        client->flushing = false;
        break;
    case EV_TIMER:
        check_silence(client); /* is it right to wait no longer in vain? */
        client->timer_ms = UINT64_MAX;
        arm();
        mu_calls_pass_time(&client->calls, w.now_ms);
        disarm();
        break;
    case EV_ACT:
        act(client);
        return;
    case EV_PROBED:
        client->probing = false;
        for (unsigned i = 0; i < 3; i++) {
            if (client->calls.probe != 1U << i)
                continue;
            if (!w.calm && chance(10))
                mu_calls_probe_failed(&client->calls, 1U << i, "no answer");
            else
                mu_calls_probed(&client->calls, 1U << i, w.features[i]);
        }
        break;
    case EV_CONNECT:
        if (client->calls.lost.code != 0)
            be_born(client);
        else
            connect_client(client);
        return;
    case EV_DIE:
        tell("client %u: dies", event->who);
        if (client->mood == AWAY)
            return; /* between two connections: another time */
        be_lost(client, MUSTER_ECANCELED, "the client died");
        break;
    default:
        broken("an event of nobody");
    }
    settle(client);
}

static void conn_event(const struct event *event)
{
    struct conn *conn = &w.conns[event->who];

    if (!conn->used || conn->generation != event->generation)
        return;
    switch (event->type) {
    case EV_DELIVER:
        deliver(conn, event->to_server, event->bytes);
        break;
    case EV_END:
        end_of_conn(conn, event->to_server);
        break;
    case EV_GRACE:
        if (!conn->left && mu_session_deadline_ms(&conn->session) != 0)
            server_reads(conn, "", 0);
        break;
    case EV_CUT:
        if (!w.calm)
            cut(conn);
        break;
    default:
        broken("an event of nothing");
    }
}

static void carry_out(const struct event *event)
{
    w.now_ms = event->at_ms;
    switch (event->type) {
    case EV_DELIVER:
    case EV_END:
    case EV_GRACE:
    case EV_CUT:
        conn_event(event);
        break;
    case EV_STOCK:
    case EV_STOCK_OUT:
        if (w.stock.life == event->generation)
            stock_acts();
        break;
    default:
        client_event(event);
        break;
    }
}

static void run_until(uint64_t until_ms)
{
    unsigned at_once = 0;

    while (w.heap_len > 0 && w.heap[0].at_ms <= until_ms) {
        struct event event = pop_event();

        at_once = event.at_ms == w.now_ms ? at_once + 1 : 0;
        EXPECT(at_once < AT_ONCE_MAX, "time stands still");
        carry_out(&event);
    }
    w.now_ms = until_ms;
}

/* ---- After the storm ---- */

static bool all_at_work(void)
{
    for (unsigned i = 0; i < w.clients_count; i++) {
        if (w.clients[i].mood != WORKING || oldest(&w.clients[i]) != NULL)
            return false;
    }
    return true;
}

static void submit_patiently(struct client *client, enum mu_call_kind kind, const char *key)
{
    struct op *op = free_op(client);

    EXPECT(op != NULL, "client %u: no call is free", number_of(client));
    clear(op);
    op->call.kind = kind;
    (void)snprintf(op->key_text, TEXT_MAX, "%s", key);
    op->call.key = op->slices[0] = muster_str(op->key_text);
    op->call.value = muster_str("here");
    op->call.keys = op->slices;
    op->call.count = kind == MU_CALL_WAIT ? 1 : 0;
    op->keys[0] = (struct key){ QUEUE, 0, 0 }; /* nothing is expected of it but that it ends well */
    submit(client, op, PATIENT_MS);
    settle(client);
}

/* Everybody waits for the next one, who comes a little later. */
static void roll_call(void)
{
    char name[TEXT_MAX];
    unsigned good = w.calls_ok, wanted = 0;

    for (unsigned i = 0; i < w.clients_count; i++) {
        (void)snprintf(name, sizeof name, "w%u", (i + 1) % w.clients_count);
        submit_patiently(&w.clients[i], MU_CALL_NUM_KEYS, "");
        if (i > 0) {
            submit_patiently(&w.clients[i], MU_CALL_WAIT, name);
            wanted++;
        }
        wanted++;
    }
    run_until(w.now_ms + 1000); /* far longer than the calm network needs */
    /* The first sets the key the last one waits for; that one then sets its own, and so on back to the first. */
    for (unsigned i = w.clients_count; i-- > 0;) {
        unsigned who = i == w.clients_count - 1 ? 0 : i + 1;

        (void)snprintf(name, sizeof name, "w%u", who);
        submit_patiently(&w.clients[who], MU_CALL_SET, name);
        wanted++;
        run_until(w.now_ms + 1000);
    }
    EXPECT(w.calls_ok == good + wanted, "after the storm only %u of %u calls went well", w.calls_ok - good, wanted);
}

static void check_counters(void)
{
    for (unsigned i = 0; i < COUNTER_COUNT; i++) {
        int64_t number = number_in_table((struct key){ COUNTER, i, 0 });

        EXPECT(number >= w.added_sure[i] && number <= w.added[i] && number >= w.counted_max[i],
               "c%u is %" PRId64 "; added were %" PRId64 " for sure and at most %" PRId64, i, number, w.added_sure[i],
               w.added[i]);
    }
}

static void check_growth(void)
{
    for (unsigned i = 0; i < w.seen_len; i++) {
        struct mu_slice now = in_table((struct key){ GROWING, w.seen[i].growing, 0 });

        EXPECT(now.len >= w.seen[i].len && memcmp(now.data, w.seen[i].bytes, w.seen[i].len) == 0,
               "a%u was once what it did not grow from", w.seen[i].growing);
    }
}

/* A session of the house, which asks in dialect V and is answered in `answer`. */
static struct mu_session house;
static char answer[PIPE_BYTES];
static size_t answer_len;

static void on_house_send(struct mu_session *session, const struct mu_slice *parts, size_t count)
{
    (void)session;
    for (size_t i = 0; i < count && answer_len + parts[i].len <= sizeof answer; i++) {
        if (parts[i].len > 0)
            memcpy(answer + answer_len, parts[i].data, parts[i].len);
        answer_len += parts[i].len;
    }
}

static void ask(enum mu_op op, struct mu_slice key)
{
    char bytes[256];
    struct muster_error error;

    bytes[0] = (char)mu_op_code(op, MU_DIALECT_V);
    mu_put_u64(bytes + 1, key.len);
    memcpy(bytes + 9, key.data, key.len);
    answer_len = 0;
    EXPECT(mu_session_feed(&house, mu_slice(bytes, 9 + key.len), w.now_ms, &error) == 0, "the house is refused");
}

static void drain_queues(void)
{
    for (unsigned i = 0; i < QUEUE_COUNT; i++) {
        struct key key = { QUEUE, i, 0 };
        char name[TEXT_MAX + 1] = "/";
        size_t len = 1 + name_of(key, name + 1);
        unsigned serial;

        for (;;) {
            ask(MU_OP_QUEUE_POP, mu_slice(name, len));
            if (mu_get_u64(answer) == 0)
                break;
            serial = read_value(key, answer + 16, answer_len - 16, "the last pop");
            EXPECT(!w.serials[serial].popped, "item %u was popped and is still there", serial);
            w.serials[serial].popped = true;
        }
    }
}

static void check_items(void)
{
    unsigned missing = 0;

    for (unsigned i = 1; i <= w.serials_len; i++)
        missing += w.serials[i].is_push && w.serials[i].certain && !w.serials[i].popped;
    EXPECT(missing <= w.pops_lost, "%u items are lost, but only %u pops were", missing, w.pops_lost);
}

/* With everybody gone and every key deleted, nothing may be left that anybody paid for. */
static void sweep(void)
{
    const struct mu_entry *entry;

    while ((entry = mu_table_next(&w.service.table, NULL)) != NULL)
        ask(MU_OP_DELETE_KEY, mu_entry_key(entry));
    mu_session_leave(&house);
    EXPECT(w.service.budget.used == 0 && w.service.transit.used == 0, "%zu and %zu bytes are left in an empty store",
           w.service.budget.used, w.service.transit.used);
}

static void go_home(void)
{
    for (unsigned i = 0; i < w.clients_count; i++) {
        struct client *client = &w.clients[i];
        struct mu_call *call;

        be_lost(client, MUSTER_ECANCELED, "closing time");
        while ((call = mu_calls_pop_finished(&client->calls)) != NULL)
            judge(client, MU_LIST_ITEM(call, struct op, call));
        make_certain(client, UINT64_MAX); /* its connection was good to the end */
        forget_conn(client);
        mu_calls_done(&client->calls);
        client->life = ++w.generation;
    }
    if (w.has_stock && w.stock.conn >= 0)
        stock_ends();
    run_until(w.now_ms + HEAL_MS);
    for (unsigned i = 0; i < w.conns_top; i++)
        EXPECT(!w.conns[i].used, "conn %u outlives everybody", i);
}

/* ---- A run ---- */

static void prepare(uint64_t seed)
{
    static const enum mu_dialect dialects[] = { MU_DIALECT_V, MU_DIALECT_L1, MU_DIALECT_L0 };
    static const unsigned delays_ms[] = { 0, 2, 10, 60 };
    struct muster_store_limits limits = { 0 };
    bool tracing = w.tracing, replaying = w.replaying, only_v;

    for (unsigned i = 0; i < w.conns_top; i++)
        w.conns[i].used = false;
    w.conns_top = 0;
    for (unsigned i = 0; i < CLIENTS_MAX; i++)
        memset(w.clients[i].ops, 0, sizeof w.clients[i].ops);
    memset(w.serials, 0, sizeof w.serials[0] * (w.serials_len + 1));
    memset(w.added, 0, sizeof w.added);
    memset(w.added_sure, 0, sizeof w.added_sure);
    memset(w.counted_max, 0, sizeof w.counted_max);
    memset(w.short_written, 0, sizeof w.short_written);
    memset(w.gates, 0, sizeof w.gates);
    w.seed = seed;
    w.rng = mu_rng_seeded(seed);
    w.now_ms = w.order = w.generation = 0;
    w.heap_len = 0;
    w.calm = false;
    w.serials_len = w.frontier = w.counted_len = w.seen_len = w.gates_len = w.pops_lost = 0;
    w.calls_made = w.calls_ok = w.trace_len = 0;
    w.tracing = tracing;
    w.replaying = replaying;

    w.clients_count = 2 + below(CLIENTS_MAX - 1);
    w.has_stock = chance(50);
    w.bytewise = chance(25);
    w.tight = chance(10);
    w.oom = chance(20);
    w.queues_mostly = chance(20);
    for (unsigned i = 0; i < 3; i++)
        w.features[i] = w.queues_mostly || chance(90);
    w.delay_max_ms = delays_ms[below(4)];
    w.stall_percent = chance(50) ? 0 : 1 + below(3);
    w.cut_percent = chance(40) ? 0 : 10 + below(50);
    w.die_percent = chance(50) ? 0 : 10 + below(40);
    w.partial_percent = chance(50) ? 0 : 30;
    if (w.queues_mostly) { /* who has been woken for an item often dies before it comes for it */
        w.delay_max_ms = 60;
        w.cut_percent = w.die_percent = 80;
    }
    w.storm_ms = 500 + below(25000);
    w.pause_max_ms = 5 + below(60);
    only_v = w.queues_mostly || chance(30);
    for (unsigned i = 0; i < w.clients_count; i++)
        w.clients[i].dialect = only_v ? MU_DIALECT_V : dialects[below(3)];
    if (w.tight)
        limits = (struct muster_store_limits){
            .key_bytes = 64, .value_bytes = 4096, .request_bytes = 16384, .total_bytes = 16384
        };
    (void)mu_limits_settle(&limits, NULL);
    mu_service_init(&w.service, &limits, MU_DIALECT_L, (struct mu_hash_seed){ seed, ~seed }, on_send);
    tell("seed %" PRIu64 ": %u clients%s, delays to %u ms%s%s%s, %u %% stalls, %u %% cuts, %u %% deaths, storm of "
         "%" PRIu64 " ms",
         seed, w.clients_count, w.has_stock ? " and a stock one" : "", w.delay_max_ms, w.bytewise ? ", bytewise" : "",
         w.tight ? ", tight" : "", w.oom ? ", failing memory" : "", w.stall_percent, w.cut_percent, w.die_percent,
         w.storm_ms);
}

static void run_seed(uint64_t seed)
{
    struct muster_error error;

    prepare(seed);
    for (unsigned i = 0; i < w.clients_count; i++)
        be_born(&w.clients[i]);
    if (w.has_stock)
        stock_begin();
    run_until(w.storm_ms);
    tell("calm");
    w.calm = true;
    w.service.budget.max = w.service.transit.max = SIZE_MAX / 2;
    w.service.table.share_max = 0;
    run_until(w.now_ms + HEAL_MS);
    EXPECT(all_at_work(), "%d s after the storm not everybody is back at work", HEAL_MS / 1000);
    roll_call();
    check_counters();
    check_growth();
    go_home();
    mu_session_init(&house, &w.service);
    house.send = on_house_send;
    EXPECT(mu_session_feed(&house, mu_slice("\x00\xce\xf7\x85\x3c", 5), w.now_ms, &error) == 0, "no entry");
    drain_queues();
    check_items();
    sweep();
    mu_service_done(&w.service);
    tell("%u calls, %u of them well", w.calls_made, w.calls_ok);
}

/* ---- The command line ---- */

static void on_crash(int signum)
{
    char text[160];
    int len = snprintf(text, sizeof text, "\ncrashed; replay with: %s --seed %" PRIu64 " --trace\n", program, w.seed);

    (void)!write(STDOUT_FILENO, text, (size_t)len);
    (void)signal(signum, SIG_DFL);
    (void)raise(signum);
}

static void on_sanitizer(void)
{
    printf("\nreplay with: %s --seed %" PRIu64 " --trace\n", program, w.seed);
    (void)fflush(stdout);
}

void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak)); /* NOLINT: the sanitizers' name */

static int usage(void)
{
    (void)fprintf(stderr, "usage: %s --seeds A:B | --seconds N | --seed N [--trace]\n", program);
    return 2;
}

static int run_range(const char *text)
{
    char *colon;
    uint64_t first = strtoull(text, &colon, 10), last;
    double start = sim_seconds();

    if (*colon != ':')
        return usage();
    last = strtoull(colon + 1, NULL, 10);
    for (uint64_t seed = first; seed <= last; seed++)
        run_seed(seed);
    printf("sim_store: seeds %" PRIu64 " to %" PRIu64 " hold; %.1f s\n", first, last, sim_seconds() - start);
    return 0;
}

static int run_for(double limit)
{
    double start = sim_seconds(), took = 0;
    uint64_t seed = sim_fresh_seed(), runs = 0;

    for (; took < limit; runs++, took = sim_seconds() - start)
        run_seed(seed + runs);
    printf("sim_store: %" PRIu64 " seeds from 0x%" PRIx64 " on hold; %.0f runs/s\n", runs, seed, (double)runs / took);
    return 0;
}

int main(int argc, char **argv)
{
    program = argv[0];
    (void)signal(SIGABRT, on_crash);
    if (__sanitizer_set_death_callback != NULL)
        __sanitizer_set_death_callback(on_sanitizer);
    else
        (void)signal(SIGSEGV, on_crash);
    if (argc == 3 && strcmp(argv[1], "--seeds") == 0)
        return run_range(argv[2]);
    if (argc == 3 && strcmp(argv[1], "--seconds") == 0)
        return run_for(strtod(argv[2], NULL));
    if ((argc == 3 || argc == 4) && strcmp(argv[1], "--seed") == 0) {
        w.tracing = argc == 4 && strcmp(argv[3], "--trace") == 0;
        w.replaying = argc == 4 && strcmp(argv[3], "--replay") == 0;
        if (argc == 4 && !w.tracing && !w.replaying)
            return usage();
        run_seed(strtoull(argv[2], NULL, 0));
        if (w.replaying)
            return 1; /* it broke before: something of an earlier run was left behind */
        printf("sim_store: seed %s holds: %u calls, %u of them well\n", argv[2], w.calls_made, w.calls_ok);
        return 0;
    }
    return usage();
}
