/* The back end of the c10d rendezvous, on the store's client.
 *
 * Happy path: a request becomes a `work` of up to three calls at once on one connection; when all of them are answered it
 * takes its next step or is finished. Short calls share the main connection. Nothing may follow a WAIT on a connection, so
 * the bell has one of its own, and the other waits of each owner have a few; they are opened when first needed.
 * Failures: a call that fails ends its work once the others have answered. A connection that is lost is dialled anew by
 * the next request that needs it: one try at each address, so that whoever asks learns soon, and from `gone` whether the
 * other end said no. A main connection on which nothing has been answered for SILENT_MS is given up with all others: a
 * new one works as soon as the network does, the old one only when its retransmission comes around.
 *
 * Anybody may have written anything to the counters of the bell and the turns. A server closes the connection of an ADD to
 * what is no number. So they are read by COMPARE_SET where that will do, and set to a number anew where they have none: one
 * above all that we know of. Both are hints, so it does not matter that others may know of higher ones. */
#include "kv/kv_c10d_uv.h"

#include "base/base64.h"
#include "base/log.h"
#include "base/rng.h"
#include "kv/later_uv.h"
#include "rdzv/pickle.h"
#include "store/client_uv.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define COUNTER_MAX (INT64_C(1) << 62) /* of the bell and the turns */
#define TURNS_OPEN_MAX (1 << 20)       /* taken and not over; more are not believed */

enum {
    OWNERS_MAX = 3, /* the rendezvous, its agent, and the user of that */
    WAITS_MAX = 4,  /* connections for one owner's waits; more waits at once queue up on them */
    CALLS_MAX = 3,  /* of a request, at once */
    RINGS_KEPT = 64,
    TURNS_KEPT = 64,
    WORLDS_KEPT = 8,
    DIAL_AGAIN_MS = 2000,
    SILENT_MS = 2000,
    AFTER_WAIT_MS = 2000, /* for the call that follows a wait, whose time may be up */
    SUFFIX_MAX = 40,      /* of a key of ours, "world/9223372036854775807" and its NUL included */
    COUNTER_TEXT_MAX = 20,
};

static const char no_document[] = "Y2FuaW1hZGFt"; /* PyTorch's marker, so that reads never have to wait */

static const char no_host[] = "?"; /* expected and wanted: reads a key that may be missing, without a wait */

struct driver;

struct conn {
    struct driver *driver;
    struct mu_client *client; /* NULL: not opened yet, or given up */
    size_t calls;             /* under way on it, or on those before it */
    const void *owner;        /* of those calls, where it is one for waits */
    bool silent;              /* a call ran out of time, and nothing was answered since */
    uint64_t silent_since_ms;
};

struct work;

struct one_call {
    struct mu_call call;
    struct work *work;
    struct conn *conn;
    struct mu_client *client;
    struct muster_slice key;
    char *key_text; /* room for a key of ours */
};

struct work { /* a request under way */
    struct mu_list link;
    struct driver *driver;
    struct mu_kv_request *request;
    struct one_call calls[CALLS_MAX];
    unsigned count, pending; /* of this step's calls; of those still to be answered */
    unsigned step;
    bool gone;
    struct muster_error error; /* the first of this step's; code 0: none */
    struct mu_buf text;        /* WRITE: the document as it goes on the wire */
    char counters[2][COUNTER_TEXT_MAX];
    char keys[];
};

struct driver {
    struct mu_kv kv;
    uv_loop_t *loop;
    struct mu_kv_c10d_config config;
    char *host, *document_key, *prefix, *host_node;
    size_t key_room;
    struct mu_rng rng;
    struct conn main, bell, waits[OWNERS_MAX * WAITS_MAX];
    struct mu_list works;
    enum mu_dialect dialect; /* found on the main connection; UNKNOWN: not yet */
    bool told_ready;
    struct work *parked;    /* the last PARK, while it is under way */
    int64_t rings, turn;    /* the last counters that were known */
    bool doubts_turns;      /* their counters may be none */
    struct mu_later later;  /* requests that are answered */
    struct mu_call publish; /* of `host` */
    char *publish_key;
    size_t clients; /* not yet given back by the loop */
    bool closing, later_closed;
    mu_kv_closed *on_closed;
    void *closed_ctx;
};

static void begin(struct work *work);
static void proceed(struct work *work);

/* ---- Requests ---- */

/* Answers a request whose rc and error are set, from the loop. */
static void answer_later(struct driver *driver, struct mu_kv_request *request)
{
    mu_later_push(&driver->later, &request->link);
}

static void set_error(struct mu_kv_request *request, const struct muster_error *error, bool gone)
{
    request->error = *error;
    request->rc = mu_wrap(&request->error, error->code, "%s", mu_kv_kind_text(request->kind));
    request->gone = gone;
}

static void free_answers(struct work *work)
{
    for (unsigned i = 0; i < CALLS_MAX; i++)
        muster_bytes_done(&work->calls[i].call.bytes);
}

static void free_work(struct work *work)
{
    mu_list_remove(&work->link);
    free_answers(work);
    mu_buf_done(&work->text);
    free(work);
}

static void drop_answer(struct mu_kv_request *request)
{
    muster_bytes_done(&request->bytes);
    muster_bytes_done(&request->state_token);
    request->found = request->foreign = request->written = false;
}

/* The work is over; work->error says how. */
static void finish(struct work *work)
{
    struct mu_kv_request *request = work->request;

    if (work->driver->parked == work)
        work->driver->parked = NULL;
    if (work->error.code != 0) {
        if (request->kind == MU_KV_TURN_TAKE || request->kind == MU_KV_TURN_GIVE)
            work->driver->doubts_turns = true;
        drop_answer(request);
        set_error(request, &work->error, work->gone);
    }
    free_work(work);
    request->done(request);
}

static struct work *new_work(struct driver *driver, struct mu_kv_request *request)
{
    struct work *work = calloc(1, sizeof *work + CALLS_MAX * driver->key_room);

    if (work == NULL)
        return NULL;
    mu_list_push(&driver->works, &work->link);
    work->driver = driver;
    work->request = request;
    for (unsigned i = 0; i < CALLS_MAX; i++) {
        work->calls[i].work = work;
        work->calls[i].key_text = work->keys + i * driver->key_room;
    }
    return work;
}

/* ---- Connections ---- */

static void free_if_over(struct driver *driver)
{
    if (!driver->closing || driver->clients > 0 || !driver->later_closed)
        return;
    driver->on_closed(&driver->kv, driver->closed_ctx);
    free(driver->host);
    free(driver->document_key);
    free(driver->prefix);
    free(driver->host_node);
    free(driver->publish_key);
    free(driver);
}

static void on_client_closed(struct mu_client *client, void *ctx)
{
    struct driver *driver = ctx;

    (void)client;
    driver->clients--;
    free_if_over(driver);
}

static void close_conn(struct conn *conn)
{
    struct mu_client *client = conn->client;

    conn->client = NULL;
    conn->silent = false;
    if (client != NULL)
        mu_client_close(client, on_client_closed, conn->driver);
}

static void close_conns(struct driver *driver)
{
    close_conn(&driver->main);
    close_conn(&driver->bell);
    for (size_t i = 0; i < OWNERS_MAX * WAITS_MAX; i++)
        close_conn(&driver->waits[i]);
}

static void on_client_ready(struct mu_client *client, const struct muster_error *error, void *ctx)
{
    struct conn *conn = ctx;
    struct driver *driver = conn->driver;

    if (conn != &driver->main)
        return;
    if (error == NULL)
        driver->dialect = mu_client_dialect(client);
    if (driver->told_ready)
        return;
    driver->told_ready = true;
    if (driver->config.on_ready != NULL)
        driver->config.on_ready(&driver->kv, error, driver->config.ctx);
}

static int dial(struct conn *conn, uint64_t timeout_ms, struct muster_error *reterr)
{
    struct driver *driver = conn->driver;
    struct mu_client_config config = {
        .host = driver->host,
        .port = driver->config.port,
        .dialect = driver->config.dialect,
        .connect_timeout_ms = driver->config.read_timeout_ms,
        .seed = mu_rng_next(&driver->rng),
    };
    int rc;

    if (conn != &driver->main && config.dialect == MU_DIALECT_UNKNOWN)
        config.dialect = driver->dialect;
    if (driver->told_ready) {
        /* Shorter than the request, so that it fails with all that was tried. */
        config.connect_timeout_ms = timeout_ms < DIAL_AGAIN_MS ? timeout_ms - timeout_ms / 4 : DIAL_AGAIN_MS;
        config.rounds_max = 1;
    }
    rc = mu_client_start(driver->loop, &config, on_client_ready, NULL, conn, &conn->client, reterr);
    if (rc == 0)
        driver->clients++;
    return rc;
}

/* Makes sure that there is a connection, or will be. */
static int ensure(struct conn *conn, uint64_t timeout_ms, struct muster_error *reterr)
{
    if (conn->client != NULL && mu_client_is_lost(conn->client))
        close_conn(conn);
    return conn->client != NULL ? 0 : dial(conn, timeout_ms, reterr);
}

/* For a wait of that owner: an idle connection, an open one if there is one; or the owner's least busy one. */
static struct conn *conn_for_wait(struct driver *driver, const void *owner)
{
    struct conn *idle = NULL, *least = NULL;
    size_t busy = 0;

    for (size_t i = 0; i < OWNERS_MAX * WAITS_MAX; i++) {
        struct conn *conn = &driver->waits[i];

        if (conn->calls == 0 && (idle == NULL || (idle->client == NULL && conn->client != NULL)))
            idle = conn;
        busy += conn->calls > 0 && conn->owner == owner;
        if (conn->calls > 0 && conn->owner == owner && (least == NULL || conn->calls < least->calls))
            least = conn;
    }
    if (busy < WAITS_MAX && idle != NULL)
        least = idle;
    assert(least != NULL); /* there are no more owners than OWNERS_MAX */
    least->owner = owner;
    return least;
}

/* ---- Calls ---- */

static bool is_wait(enum mu_call_kind kind)
{
    return kind == MU_CALL_WAIT || kind == MU_CALL_GET;
}

/* Hears from each call whether the other end still answers; if not, gives up every connection. */
static void judge_silence(const struct one_call *one)
{
    struct conn *conn = one->conn;
    struct driver *driver = conn->driver;

    if (one->client != conn->client || conn != &driver->main || is_wait(one->call.kind) || driver->closing)
        return;
    if (one->call.rc == 0 && one->call.kind != MU_CALL_SET) /* which is not answered */
        conn->silent = false;
    if (one->call.rc != MUSTER_ETIMEOUT || mu_client_dialect(conn->client) == MU_DIALECT_UNKNOWN)
        return;
    if (!conn->silent)
        conn->silent_since_ms = one->call.start_ms;
    conn->silent = true;
    if (uv_now(driver->loop) - conn->silent_since_ms < SILENT_MS)
        return;
    close_conns(driver);
}

static void take_error(struct work *work, const struct one_call *one)
{
    struct driver *driver = work->driver;

    if (one->call.rc >= 0 || work->error.code != 0)
        return;
    work->error = one->call.error;
    if (one->call.rc == MUSTER_ECANCELED && !driver->closing)
        (void)mu_fail(&work->error, MUSTER_ELOST, "the connection to %s was given up: the store does not answer",
                      driver->host);
    work->gone = !driver->closing && mu_client_refused(one->client);
}

static void on_call_done(struct mu_call *call)
{
    struct one_call *one = call->ctx;
    struct work *work = one->work;

    one->conn->calls--;
    work->pending--;
    take_error(work, one);
    judge_silence(one);
    if (work->pending == 0)
        proceed(work);
}

/* The time that is left for the request. */
static uint64_t time_left(const struct work *work, uint64_t least_ms)
{
    const struct mu_kv_request *request = work->request;
    uint64_t took_ms = uv_now(work->driver->loop) - request->started_ms;
    uint64_t left_ms = request->timeout_ms > took_ms ? request->timeout_ms - took_ms : 0;

    return left_ms > least_ms ? left_ms : least_ms;
}

/* The next call's key, of those under our prefix: "bell/12"; a negative number: "bell". */
static struct muster_slice side_key(struct work *work, const char *name, int64_t number)
{
    struct driver *driver = work->driver;
    char *text = work->calls[work->count].key_text;
    int len = number < 0 ? snprintf(text, driver->key_room, "%s%s", driver->prefix, name)
                         : snprintf(text, driver->key_room, "%s%s/%" PRId64, driver->prefix, name, number);

    assert(len > 0 && (size_t)len < driver->key_room);
    return (struct muster_slice){ text, (size_t)len };
}

/* Adds a call to this step. */
static void add(struct work *work, struct mu_call call)
{
    struct one_call *one = &work->calls[work->count];

    assert(work->count < CALLS_MAX);
    one->key = call.key;
    one->call = call;
    if (call.kind == MU_CALL_CHECK || call.kind == MU_CALL_WAIT) {
        one->call.keys = &one->key;
        one->call.count = 1;
    }
    one->call.done = on_call_done;
    one->call.ctx = one;
    work->count++;
}

/* Makes the calls that were added. */
static int make_calls(struct work *work, struct conn *conn, uint64_t timeout_ms)
{
    int rc;

    if (work->driver->closing)
        return mu_fail(&work->error, MUSTER_ECANCELED, "the store was closed");
    rc = ensure(conn, timeout_ms, &work->error);
    if (rc < 0)
        return rc;
    work->pending = work->count;
    for (unsigned i = 0; i < work->count; i++) {
        work->calls[i].conn = conn;
        work->calls[i].client = conn->client;
        conn->calls++;
        mu_client_call(conn->client, &work->calls[i].call, timeout_ms);
    }
    return 0;
}

/* ---- Documents ---- */

static bool is_marker(const struct muster_bytes *bytes)
{
    return bytes->len == sizeof no_document - 1 && memcmp(bytes->data, no_document, bytes->len) == 0;
}

static bool is_slice(const struct muster_bytes *bytes, struct muster_slice slice)
{
    return bytes->len == slice.len && (slice.len == 0 || memcmp(bytes->data, slice.data, slice.len) == 0);
}

static int no_memory(struct work *work)
{
    return mu_fail(&work->error, MUSTER_ENOMEM, "no memory for a document");
}

/* What the store has becomes the answer: no document, or one with its text as token. Takes `text`. */
static int give_document(struct work *work, struct muster_bytes *text)
{
    struct mu_kv_request *request = work->request;
    struct mu_buf bytes = { 0 };
    int rc;

    if (is_marker(text))
        return 0;
    rc = mu_base64_decode(mu_slice(text->data, text->len), &bytes, MU_PICKLE_BYTES_MAX);
    if (rc == 0)
        rc = mu_buf_append(&bytes, "", 1, SIZE_MAX);
    if (rc < 0)
        mu_buf_done(&bytes);
    if (rc == MUSTER_ENOMEM)
        return no_memory(work);
    request->found = true;
    request->foreign = rc < 0;
    if (rc == 0)
        request->bytes = (struct muster_bytes){ .data = bytes.data, .len = bytes.len - 1 };
    else
        (void)mu_fail(&request->error, MUSTER_ERDZV_STATE,
                      rc == MUSTER_ELIMIT ? "what is stored under '%s' is too long for a document (%zu bytes)"
                                          : "what is stored under '%s' is not base64 (%zu bytes)",
                      work->driver->document_key, text->len);
    request->state_token = *text;
    *text = (struct muster_bytes){ 0 };
    return 0;
}

static struct muster_slice expected(const struct work *work)
{
    const struct mu_kv_request *request = work->request;

    if (request->has_token && request->token.len > 0)
        return request->token;
    return (struct muster_slice){ no_document, sizeof no_document - 1 };
}

static void add_compare_set(struct work *work, struct muster_slice key, struct muster_slice value,
                            struct muster_slice desired)
{
    add(work, (struct mu_call){ .kind = MU_CALL_COMPARE_SET, .key = key, .value = value, .desired = desired });
}

static int begin_write(struct work *work)
{
    struct muster_slice value = work->request->value;

    if (value.len > MU_PICKLE_BYTES_MAX)
        return mu_fail(&work->error, MUSTER_ELIMIT, "a document of %zu bytes is too long", value.len);
    if (mu_base64_encode(mu_slice(value.data, value.len), &work->text, SIZE_MAX) < 0)
        return no_memory(work);
    add_compare_set(work, muster_str(work->driver->document_key), expected(work),
                    (struct muster_slice){ work->text.data, work->text.len });
    return 0;
}

/* The answers of compare_set: ours, if it was done; what we expected, if there is no such key; else what is there. */
static int end_write(struct work *work, bool *ret_again)
{
    struct muster_bytes *now = &work->calls[0].call.bytes;
    struct muster_slice ours = { work->text.data, work->text.len }, wanted = expected(work);
    bool created = work->step == 1; /* by that time we expected nothing */

    *ret_again = false;
    if (is_slice(now, ours)) {
        work->request->written = work->request->found = true;
        work->request->state_token = *now;
        *now = (struct muster_bytes){ 0 };
        return 0;
    }
    if (is_slice(now, wanted) && !created) {
        /* The store has lost the key. For a write that wants there to be none, that is as good as the marker. */
        *ret_again = is_marker(now);
        return 0;
    }
    return give_document(work, now);
}

/* ---- What each request does, step by step ---- */

static void add_add(struct work *work, struct muster_slice key, int64_t number)
{
    add(work, (struct mu_call){ .kind = MU_CALL_ADD, .key = key, .number = number });
}

static void add_plain(struct work *work, enum mu_call_kind kind, struct muster_slice key)
{
    add(work, (struct mu_call){ .kind = kind, .key = key, .value = work->request->value });
}

/* Sets name/NUMBER and takes away the one that nobody waits for any more. */
static void add_mark(struct work *work, const char *name, int64_t number, int64_t kept)
{
    add(work, (struct mu_call){ .kind = MU_CALL_SET, .key = side_key(work, name, number), .value = muster_str("1") });
    if (number > kept)
        add_plain(work, MU_CALL_DELETE_KEY, side_key(work, name, number - kept));
}

/* A counter, without adding to it: a server would refuse to add to what is none. */
static void add_read(struct work *work, const char *name)
{
    add_compare_set(work, side_key(work, name, -1), muster_str(""), muster_str("0"));
}

static bool read_counter(const struct muster_bytes *text, int64_t *ret_number)
{
    int64_t number = 0;

    for (size_t i = 0; i < text->len; i++) {
        if (text->len >= COUNTER_TEXT_MAX - 1 || text->data[i] < '0' || text->data[i] > '9')
            return false;
        number = number * 10 + (text->data[i] - '0');
    }
    *ret_number = number;
    return text->len > 0 && number <= COUNTER_MAX;
}

/* Sets a counter that was none. */
static void add_repair(struct work *work, const char *name, int64_t number)
{
    char *text = work->counters[work->count];

    mu_log(MUSTER_LOG_WARNING, "'%s%s' in the store at %s was no counter any more; it is set to %" PRId64,
           work->driver->prefix, name, work->driver->host, number);
    (void)snprintf(text, COUNTER_TEXT_MAX, "%" PRId64, number);
    add(work, (struct mu_call){ .kind = MU_CALL_SET, .key = side_key(work, name, -1), .value = muster_str(text) });
}

static void add_take(struct work *work)
{
    add_add(work, side_key(work, "turn", -1), 1);
    add_read(work, "turns_done");
}

static void add_first_step(struct work *work)
{
    const struct mu_kv_request *request = work->request;
    struct muster_slice document = muster_str(work->driver->document_key);

    switch (request->kind) {
    case MU_KV_READ: /* the bell first: whoever rings after that wakes the PARK that follows */
        add_read(work, "bell");
        add_compare_set(work, document, muster_str(""), muster_str(no_document));
        break;
    case MU_KV_WRITE:
        break; /* see begin_write() */
    case MU_KV_RING:
        add_add(work, side_key(work, "bell", -1), 1);
        break;
    case MU_KV_PARK:
        add_plain(work, MU_CALL_WAIT, side_key(work, "bell", request->number + 1));
        break;
    case MU_KV_TURN_TAKE:
        if (!work->driver->doubts_turns) {
            add_take(work);
            break;
        }
        add_read(work, "turn");
        add_read(work, "turns_done");
        break;
    case MU_KV_TURN_WAIT:
        add_plain(work, MU_CALL_WAIT, side_key(work, "turn", request->number));
        break;
    case MU_KV_TURN_GIVE:
        add_mark(work, "turn", request->number, TURNS_KEPT);
        add_add(work, side_key(work, "turns_done", -1), 1);
        break;
    case MU_KV_SETTLE:
        add_compare_set(work, side_key(work, "world", request->number), muster_str(""), request->value);
        if (request->number >= WORLDS_KEPT)
            add_plain(work, MU_CALL_DELETE_KEY, side_key(work, "world", request->number - WORLDS_KEPT));
        break;
    case MU_KV_HOST:
        add_compare_set(work, side_key(work, "host", -1), muster_str(no_host), muster_str(no_host));
        break;
    case MU_KV_GET:
        add_plain(work, MU_CALL_GET, request->key);
        break;
    case MU_KV_SET:
        add_plain(work, MU_CALL_SET, request->key);
        break;
    case MU_KV_ADD:
        add_add(work, request->key, request->number);
        break;
    case MU_KV_COMPARE_SET:
        add_compare_set(work, request->key, request->token, request->value);
        break;
    case MU_KV_CHECK:
        add_plain(work, MU_CALL_CHECK, request->key);
        break;
    case MU_KV_DELETE:
        add_plain(work, MU_CALL_DELETE_KEY, request->key);
        break;
    }
}

static struct conn *conn_for(struct work *work)
{
    struct driver *driver = work->driver;

    switch (work->request->kind) {
    case MU_KV_PARK:
        return &driver->bell;
    case MU_KV_TURN_WAIT:
    case MU_KV_GET:
        return conn_for_wait(driver, work->request->owner);
    default:
        return &driver->main;
    }
}

static void begin(struct work *work)
{
    struct mu_kv_request *request = work->request;
    int rc = request->kind == MU_KV_WRITE ? begin_write(work) : 0;

    if (rc == 0) {
        add_first_step(work);
        rc = make_calls(work, conn_for(work), request->timeout_ms);
    }
    if (rc < 0) { /* inside of the asker's call: the answer has to wait */
        set_error(request, &work->error, false);
        answer_later(work->driver, request);
        free_work(work);
    } else if (request->kind == MU_KV_PARK) {
        work->driver->parked = work;
    }
}

static void move_bytes(struct mu_kv_request *request, struct one_call *one)
{
    request->bytes = one->call.bytes;
    one->call.bytes = (struct muster_bytes){ 0 };
}

static void take_read(struct work *work)
{
    struct driver *driver = work->driver;
    bool counts = read_counter(&work->calls[0].call.bytes, &driver->rings);

    if (!counts)
        driver->rings += 2 * RINGS_KEPT;
    work->request->number = driver->rings;
    (void)give_document(work, &work->calls[1].call.bytes);
    free_answers(work);
    if (!counts && work->error.code == 0)
        add_repair(work, "bell", driver->rings);
}

static bool are_turns(int64_t turn, int64_t done)
{
    return turn >= 0 && turn <= COUNTER_MAX && done >= 0 && done <= turn && turn - done <= TURNS_OPEN_MAX;
}

/* The first step of a TURN_TAKE that doubts the counters: are they any? */
static void check_turns(struct work *work)
{
    struct driver *driver = work->driver;
    int64_t turn = 0, done = 0;
    bool counts = read_counter(&work->calls[0].call.bytes, &turn) && read_counter(&work->calls[1].call.bytes, &done) &&
                  are_turns(turn, done);

    free_answers(work);
    if (counts) {
        add_take(work);
        return;
    }
    driver->turn += 2 * TURNS_KEPT;
    add_repair(work, "turn", driver->turn);
    add_repair(work, "turns_done", driver->turn);
    add_add(work, side_key(work, "turn", -1), 1);
}

/* Without a number it is our turn at once. */
static void take_turn(struct work *work)
{
    struct driver *driver = work->driver;
    bool repaired = work->calls[0].call.kind == MU_CALL_SET;
    int64_t turn = work->calls[repaired ? 2 : 0].call.result, done = turn - 1;
    bool counts = (repaired || read_counter(&work->calls[1].call.bytes, &done)) && turn > 0 && are_turns(turn, done);

    driver->doubts_turns = !counts;
    driver->turn = counts ? turn : driver->turn;
    work->request->number = counts ? turn : 0;
    work->request->done_count = counts ? done : 0;
}

/* Every call of a step is answered. Adds those of the next step, or fills in the answer. */
static void take_answers(struct work *work)
{
    struct mu_kv_request *request = work->request;
    struct one_call *calls = work->calls;
    int64_t number = calls[0].call.result;
    bool again = false;

    work->count = 0;
    switch (request->kind) {
    case MU_KV_READ:
        if (work->step == 0)
            take_read(work);
        break;
    case MU_KV_WRITE:
        (void)end_write(work, &again);
        if (again)
            muster_bytes_done(&calls[0].call.bytes);
        if (again)
            add_compare_set(work, muster_str(work->driver->document_key), muster_str(""),
                            (struct muster_slice){ work->text.data, work->text.len });
        break;
    case MU_KV_RING:
        if (work->step == 0 && number > 0 && number <= COUNTER_MAX)
            add_mark(work, "bell", number, RINGS_KEPT);
        break;
    case MU_KV_TURN_TAKE:
        if (calls[0].call.kind == MU_CALL_COMPARE_SET)
            check_turns(work);
        else
            take_turn(work);
        break;
    case MU_KV_TURN_WAIT:
        if (work->step == 1) {
            (void)read_counter(&calls[0].call.bytes, &request->done_count);
            break;
        }
        request->found = calls[0].call.rc == 0;
        if (request->found)
            request->done_count = request->number; /* everybody behind us waits: no further question */
        else
            add_read(work, "turns_done");
        break;
    case MU_KV_HOST:
        request->found = !is_slice(&calls[0].call.bytes, muster_str(no_host));
        if (request->found)
            move_bytes(request, &calls[0]);
        break;
    case MU_KV_SETTLE:
    case MU_KV_GET:
    case MU_KV_COMPARE_SET:
        move_bytes(request, &calls[0]);
        break;
    case MU_KV_ADD:
        request->number = number;
        break;
    case MU_KV_CHECK:
    case MU_KV_DELETE:
        request->found = number != 0;
        break;
    case MU_KV_PARK:
    case MU_KV_TURN_GIVE:
    case MU_KV_SET:
        break;
    }
}

static void proceed(struct work *work)
{
    bool waited = work->request->kind == MU_KV_TURN_WAIT && work->step == 0;

    if (waited && work->error.code == MUSTER_ETIMEOUT)
        work->error.code = 0; /* that is an answer, too */
    if (work->error.code != 0) {
        finish(work);
        return;
    }
    take_answers(work);
    work->step++;
    if (work->error.code == 0 && work->count > 0)
        (void)make_calls(work, &work->driver->main, time_left(work, waited ? AFTER_WAIT_MS : 1));
    if (work->pending == 0)
        finish(work);
}

/* ---- From outside ---- */

static void call_off(struct work *work, const char *why)
{
    (void)mu_fail(&work->error, MUSTER_ECANCELED, "%s", why);
    mu_client_expire(work->calls[0].client, &work->calls[0].call);
}

static void end_waits(struct mu_kv *kv, const void *owner)
{
    struct driver *driver = (struct driver *)kv;

    for (struct mu_list *link = driver->works.next; link != &driver->works; link = link->next) {
        struct work *work = MU_LIST_ITEM(link, struct work, link);

        if (work->request->owner == owner && is_wait(work->calls[0].call.kind))
            call_off(work, "its owner does not want it any more");
    }
}

static void submit(struct mu_kv *kv, struct mu_kv_request *request)
{
    struct driver *driver = (struct driver *)kv;
    struct muster_error error;
    struct work *work;

    assert(!driver->closing);
    mu_kv_begin(request, uv_now(driver->loop));
    if (request->kind == MU_KV_PARK && driver->parked != NULL)
        call_off(driver->parked, "another one took its place");
    work = new_work(driver, request);
    if (work != NULL) {
        begin(work);
        return;
    }
    (void)mu_fail(&error, MUSTER_ENOMEM, "no memory for a request");
    set_error(request, &error, false);
    answer_later(driver, request);
}

static void on_later_closed(void *ctx)
{
    struct driver *driver = ctx;

    driver->later_closed = true;
    free_if_over(driver);
}

static void close_kv(struct mu_kv *kv, mu_kv_closed *closed, void *ctx)
{
    struct driver *driver = (struct driver *)kv;

    assert(!driver->closing);
    driver->closing = true;
    driver->on_closed = closed;
    driver->closed_ctx = ctx;
    close_conns(driver);
    mu_later_close(&driver->later, on_later_closed, driver);
}

static bool local_address(const struct mu_kv *kv, char *text, size_t room)
{
    const struct driver *driver = (const struct driver *)kv;
    union mu_addr addr;

    return driver->main.client != NULL && mu_client_local_address(driver->main.client, &addr) &&
           mu_addr_host(&addr, text, room);
}

static bool lone_set(const struct mu_kv *kv, struct mu_slice key, struct mu_slice value, struct mu_kv_lone *ret_lone)
{
    const struct driver *driver = (const struct driver *)kv;
    union mu_addr addr;

    *ret_lone = (struct mu_kv_lone){ .address_len = 0 };
    if (driver->main.client == NULL || !mu_client_lone_set(driver->main.client, key, value, &addr, &ret_lone->bytes))
        return false;
    ret_lone->address_len = mu_addr_len(&addr);
    memcpy(&ret_lone->address, &addr, ret_lone->address_len);
    return true;
}

static const struct mu_kv_ops c10d_ops = {
    .name = "c10d",
    .has_bell = true,
    .has_turns = true,
    .has_settle = true,
    .is_common = true,
    .submit = submit,
    .close = close_kv,
    .end_waits = end_waits,
    .local_address = local_address,
    .lone_set = lone_set,
};

static void on_published(struct mu_call *call)
{
    (void)call; /* if the connection did not last so long, whoever needs it finds out */
}

static void publish_host(struct driver *driver)
{
    driver->publish = (struct mu_call){ .kind = MU_CALL_SET,
                                        .key = muster_str(driver->publish_key),
                                        .value = muster_str(driver->host_node),
                                        .done = on_published };
    mu_client_call(driver->main.client, &driver->publish, driver->config.read_timeout_ms);
}

static int set_up(struct driver *driver, const struct mu_kv_c10d_config *config)
{
    driver->host = strdup(config->host);
    driver->host_node = config->host_node == NULL ? NULL : strdup(config->host_node);
    if (asprintf(&driver->document_key, "torch.rendezvous.%s", config->run_id) < 0)
        driver->document_key = NULL;
    if (asprintf(&driver->prefix, "muster.%s/", config->run_id) < 0)
        driver->prefix = NULL;
    if (asprintf(&driver->publish_key, "muster.%s/host", config->run_id) < 0)
        driver->publish_key = NULL;
    if (driver->host == NULL || driver->document_key == NULL || driver->prefix == NULL || driver->publish_key == NULL ||
        (config->host_node != NULL && driver->host_node == NULL))
        return MUSTER_ENOMEM;
    driver->key_room = strlen(driver->prefix) + SUFFIX_MAX;
    return 0;
}

int mu_kv_c10d_start(uv_loop_t *loop, const struct mu_kv_c10d_config *config, struct mu_kv **ret_kv,
                     struct muster_error *reterr)
{
    struct driver *driver;
    int rc;

    assert(config->read_timeout_ms > 0);
    if (strlen(config->run_id) > MU_KV_RUN_ID_MAX)
        return mu_fail(reterr, MUSTER_EINVAL, "a run id of %zu bytes is too long", strlen(config->run_id));
    driver = calloc(1, sizeof *driver);
    if (driver == NULL)
        return mu_fail(reterr, MUSTER_ENOMEM, "no memory for a rendezvous back end");
    driver->kv.ops = &c10d_ops;
    driver->loop = loop;
    driver->config = *config;
    driver->rng = mu_rng_seeded(config->seed);
    driver->main.driver = driver->bell.driver = driver;
    mu_list_init(&driver->works);
    for (size_t i = 0; i < OWNERS_MAX * WAITS_MAX; i++)
        driver->waits[i].driver = driver;
    rc = set_up(driver, config);
    if (rc < 0)
        (void)mu_fail(reterr, rc, "no memory for a rendezvous back end");
    else
        rc = dial(&driver->main, config->read_timeout_ms, reterr);
    if (rc < 0) {
        free(driver->host);
        free(driver->document_key);
        free(driver->prefix);
        free(driver->host_node);
        free(driver->publish_key);
        free(driver);
        return rc;
    }
    mu_later_open(&driver->later, loop, mu_kv_tell);
    if (driver->host_node != NULL)
        publish_host(driver);
    *ret_kv = &driver->kv;
    return 0;
}
