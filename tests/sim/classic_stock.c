/* A member that does as PyTorch's classic handler and agent do, step by step, faults included: it joins twice when an
 * answer was lost, its lease ends with the first error, it looks for waiting nodes now and then, and its workers fail
 * some time after another member's. */
#include "classic_sim.h"

#include <string.h>

enum { POLL_MS = 1000, SLEEP_MS = 1000, RANK_MS = 5000 };

enum phase {
    SETUP,
    COUNT_READ,
    COUNT_WRITE,
    MAKE_DIR,
    OPEN,
    INIT_READ,
    INIT_WATCH,
    INIT_CHANGED,
    JOIN_READ,
    JOIN_WRITE,
    LAST_READ,
    LAST_TOUCH,
    LAST_FREEZE,
    LAST_WATCH,
    PEERS_READ,
    PEERS_WATCH,
    CONFIRM_READ,
    CONFIRM_KEY,
    CONFIRM_WRITE,
    FINAL_READ,
    FINAL_WATCH,
    ANNOUNCE_READ,
    ANNOUNCE_WRITE,
    FREE_READ,
    FREE_LIST,
    FREE_WATCH,
    FREE_DELETE,
    MEMBER,
    PREPARE,
};

enum { WHO_MAIN, WHO_LEASE };

struct stock {
    enum phase phase;
    uint64_t main_id, due_ms, deadline_ms, last_ms;
    char *raw;
    struct mu_classic_doc doc;
    uint64_t index, counter_index, waiting_index;
    int64_t counter, version, rank;
    unsigned prepare;
    bool leased;
    char lease_key[128];
    uint64_t lease_ms, lease_id, fail_ms;
};

static void enter(struct node *node);

struct stock *stock_new(struct node *node)
{
    struct stock *s = calloc(1, sizeof *s);

    if (s == NULL)
        abort();
    s->phase = PREPARE;
    s->deadline_ms = w.now_ms + w.join_ms;
    s->due_ms = w.now_ms;
    s->doc.version = -1;
    node->joining = true;
    node_timer(node, s->due_ms);
    return s;
}

void stock_free(struct stock *s)
{
    if (s == NULL)
        return;
    mu_classic_doc_done(&s->doc);
    free(s->raw);
    free(s);
}

bool stock_is_member(const struct stock *s)
{
    return s->phase == MEMBER;
}

static void go(struct node *node, enum phase phase)
{
    node->stock->phase = phase;
    enter(node);
}

static void later(struct node *node, enum phase phase, uint64_t delay_ms)
{
    node->stock->phase = phase;
    node->stock->main_id = 0;
    node->stock->due_ms = w.now_ms + delay_ms;
    node_timer(node, node->stock->due_ms);
}

/* Both kinds of retry, and whatever else is thrown in the middle. */
static void retry(struct node *node, uint64_t delay_ms)
{
    struct stock *s = node->stock;

    s->leased = false;
    if (w.now_ms > s->deadline_ms) {
        say("stock %u: timed out", node->slot);
        s->deadline_ms = w.now_ms + w.join_ms; /* started again, by hand */
    }
    later(node, SETUP, delay_ms);
}

static void join_anew(struct node *node)
{
    node->joining = true;
    node->member = false;
    node->stock->fail_ms = 0;
    node->stock->deadline_ms = w.now_ms + w.join_ms;
    node->stock->main_id = 0;
    retry(node, 0);
}

void stock_workers_fail(struct node *node)
{
    if (node->stock->phase == MEMBER)
        join_anew(node);
}

/* ---- Requests ---- */

static struct request *ask(struct node *node, enum mu_classic_kind kind, const char *key)
{
    struct request *request = new_request(node, kind, key);

    request->who = WHO_MAIN;
    node->stock->main_id = request->id;
    return request;
}

static void write_doc(struct node *node, const struct mu_buf *value, int64_t ttl_s)
{
    struct request *request = ask(node, MU_CLASSIC_PUT, ACTIVE);

    request->value = text_of(mu_buf_slice(value));
    request->prev_value = strdup(node->stock->raw);
    request->ttl_s = ttl_s;
    send_request(request, 60000);
}

static void watch(struct node *node, const char *key, bool recursive, uint64_t timeout_ms)
{
    struct stock *s = node->stock;
    uint64_t rest = s->deadline_ms > w.now_ms ? s->deadline_ms - w.now_ms : 0;
    struct request *request = ask(node, MU_CLASSIC_WATCH, key);

    request->recursive = recursive;
    request->wait_index = s->index + 1;
    send_request(request, timeout_ms != 0 && timeout_ms < rest + 1000 ? timeout_ms : rest + 1000);
}

static void own_key(const struct stock *s, char *key, size_t room)
{
    (void)snprintf(key, room, JOB "/rdzv/v_%lld/rank_%lld", (long long)s->version, (long long)s->rank);
}

static void enter_write(struct node *node)
{
    struct stock *s = node->stock;
    struct mu_buf out = { 0 };
    bool full = (int64_t)s->doc.participants + 1 == w.nodes_max;
    char key[128];

    own_key(s, key, sizeof key);
    switch (s->phase) {
    case OPEN:
        (void)mu_classic_doc_joinable(s->counter, &out);
        write_doc(node, &out, 0);
        break;
    case JOIN_WRITE:
        (void)mu_classic_doc_joined(&s->doc, full, &out);
        write_doc(node, &out, full || (int64_t)s->doc.participants + 1 >= w.nodes_min ? 10 : 0);
        break;
    case LAST_TOUCH:
        (void)mu_buf_assign(&out, mu_slice_str(s->raw));
        write_doc(node, &out, 10);
        break;
    case LAST_FREEZE:
        (void)mu_classic_doc_frozen(&s->doc, &out);
        write_doc(node, &out, 10);
        break;
    case CONFIRM_WRITE:
        (void)mu_classic_doc_confirmed(&s->doc, key, &out);
        write_doc(node, &out, s->doc.keep_alives + 1 == s->doc.participants ? 0 : 10);
        break;
    default:
        (void)mu_classic_doc_waiting(&s->doc, s->doc.waiting + 1, &out);
        write_doc(node, &out, 0);
    }
    mu_buf_done(&out);
}

static void enter_prepare(struct node *node)
{
    static const char *const keys[] = { "/p", JOB, JOB "/rdzv", JOB "/rdzv/version_counter" };
    struct request *request = ask(node, MU_CLASSIC_PUT, keys[node->stock->prepare]);

    request->must_not_exist = true;
    request->dir = node->stock->prepare < 3;
    request->ttl_s = node->stock->prepare == 1 ? 7200 : 0;
    if (node->stock->prepare == 3)
        request->value = strdup("0");
    send_request(request, 60000);
}

static void enter(struct node *node)
{
    struct stock *s = node->stock;
    struct request *request;
    char text[128];

    s->due_ms = 0;
    switch (s->phase) {
    case PREPARE:
        enter_prepare(node);
        break;
    case SETUP:
        request = ask(node, MU_CLASSIC_PUT, ACTIVE);
        request->value = strdup("{\"status\": \"setup\"}");
        request->must_not_exist = true;
        request->ttl_s = 5;
        send_request(request, 60000);
        break;
    case COUNT_READ:
        send_request(ask(node, MU_CLASSIC_GET, JOB "/rdzv/version_counter"), 60000);
        break;
    case COUNT_WRITE:
        request = ask(node, MU_CLASSIC_PUT, JOB "/rdzv/version_counter");
        (void)snprintf(text, sizeof text, "%lld", (long long)s->counter);
        request->value = strdup(text);
        request->must_exist = true;
        request->prev_index = s->counter_index;
        send_request(request, 60000);
        break;
    case MAKE_DIR:
        (void)snprintf(text, sizeof text, JOB "/rdzv/v_%lld", (long long)s->counter);
        request = ask(node, MU_CLASSIC_PUT, text);
        request->dir = request->must_not_exist = true;
        send_request(request, 60000);
        break;
    case OPEN:
    case JOIN_WRITE:
    case LAST_TOUCH:
    case LAST_FREEZE:
    case CONFIRM_WRITE:
    case ANNOUNCE_WRITE:
        enter_write(node);
        break;
    case CONFIRM_KEY:
        own_key(s, text, sizeof text);
        request = ask(node, MU_CLASSIC_PUT, text);
        request->value = strdup("");
        request->ttl_s = 10;
        send_request(request, 60000);
        break;
    case FREE_LIST:
        (void)snprintf(text, sizeof text, JOB "/rdzv/v_%lld", (long long)s->version);
        send_request(ask(node, MU_CLASSIC_GET, text), 60000);
        break;
    case FREE_DELETE:
        request = ask(node, MU_CLASSIC_DELETE, ACTIVE);
        request->prev_value = strdup(s->raw);
        send_request(request, 60000);
        break;
    case INIT_WATCH:
    case PEERS_WATCH:
    case FINAL_WATCH:
        watch(node, ACTIVE, false, 0);
        break;
    case LAST_WATCH:
        watch(node, ACTIVE, false,
              s->last_ms > w.now_ms && s->last_ms - w.now_ms + 1000 < 5000 ? s->last_ms - w.now_ms + 1000 : 5000);
        break;
    case FREE_WATCH:
        watch(node, JOB "/rdzv", true, 0);
        break;
    default:
        send_request(ask(node, MU_CLASSIC_GET, ACTIVE), 60000);
    }
}

/* ---- Answers ---- */

static void take(struct stock *s, const char *raw, uint64_t index)
{
    struct muster_error error;
    char *copy = strdup(raw);

    mu_classic_doc_done(&s->doc);
    if (copy == NULL || mu_classic_doc_read(mu_slice_str(raw), &s->doc, &error) < 0)
        fail("a document that cannot be read: %s", raw);
    free(s->raw);
    s->raw = copy;
    s->index = index;
}

static bool is_there(const struct stock *s, enum mu_classic_status status)
{
    return s->doc.status == status && s->doc.version == s->version;
}

static void end_by_closed(struct node *node)
{
    say("stock %u: closed", node->slot);
    node->joining = false;
    node->saw_closed = node->out = true;
}

static void on_init(struct node *node)
{
    struct stock *s = node->stock;

    s->version = s->doc.version;
    if (s->doc.status == MU_CLASSIC_CLOSED)
        end_by_closed(node);
    else if (s->doc.status == MU_CLASSIC_JOINABLE)
        later(node, JOIN_READ, below(100));
    else if (s->doc.status == MU_CLASSIC_FINAL)
        later(node, ANNOUNCE_READ, below(100));
    else
        go(node, INIT_WATCH);
}

static void on_confirmed(struct node *node)
{
    struct stock *s = node->stock;

    own_key(s, s->lease_key, sizeof s->lease_key);
    s->leased = true;
    s->lease_ms = w.now_ms;
    s->lease_id = 0;
    node_timer(node, w.now_ms);
    go(node, FINAL_READ);
}

static void on_read(struct node *node)
{
    struct stock *s = node->stock;

    switch (s->phase) {
    case INIT_READ:
        on_init(node);
        break;
    case INIT_CHANGED:
        retry(node, SLEEP_MS);
        break;
    case JOIN_READ:
        if (s->doc.status != MU_CLASSIC_JOINABLE)
            retry(node, SLEEP_MS);
        else if (s->doc.version != s->version)
            retry(node, 0);
        else if ((int64_t)s->doc.participants >= w.nodes_max)
            retry(node, SLEEP_MS); /* "Logic error" */
        else
            go(node, JOIN_WRITE);
        break;
    case LAST_READ:
        if (is_there(s, MU_CLASSIC_FROZEN))
            go(node, PEERS_READ);
        else if (!is_there(s, MU_CLASSIC_JOINABLE))
            retry(node, SLEEP_MS);
        else
            go(node, w.now_ms >= s->last_ms ? LAST_FREEZE : LAST_TOUCH);
        break;
    case PEERS_READ:
        if (is_there(s, MU_CLASSIC_FROZEN))
            later(node, CONFIRM_READ, below(100));
        else if (is_there(s, MU_CLASSIC_JOINABLE))
            go(node, PEERS_WATCH);
        else
            retry(node, SLEEP_MS);
        break;
    case CONFIRM_READ:
        if (!is_there(s, MU_CLASSIC_FROZEN))
            retry(node, 0);
        else
            go(node, CONFIRM_KEY);
        break;
    case FINAL_READ:
        if (is_there(s, MU_CLASSIC_FINAL)) {
            s->phase = MEMBER;
            s->due_ms = w.now_ms + POLL_MS;
            node_timer(node, s->due_ms);
            node_joined(node, s->version, s->rank, (int64_t)s->doc.participants);
        } else if (is_there(s, MU_CLASSIC_FROZEN)) {
            go(node, FINAL_WATCH);
        } else {
            retry(node, SLEEP_MS);
        }
        break;
    case ANNOUNCE_READ:
        if (!is_there(s, MU_CLASSIC_FINAL))
            retry(node, 0);
        else
            go(node, ANNOUNCE_WRITE);
        break;
    case FREE_READ:
        if (!is_there(s, MU_CLASSIC_FINAL))
            retry(node, 0);
        else
            go(node, FREE_LIST);
        break;
    default:
        break;
    }
}

static void on_list(struct node *node, const struct reply *reply)
{
    struct stock *s = node->stock;
    bool missing = false;

    for (size_t i = 0; i < s->doc.keep_alives; i++) {
        bool found = false;

        for (size_t n = 0; n < reply->nodes_count; n++)
            found |= strcmp(reply->nodes[n].key, mu_classic_doc_keep_alive(&s->doc, i)) == 0;
        missing |= !found;
    }
    go(node, missing ? FREE_DELETE : FREE_WATCH);
}

/* Somebody else was faster: the loops that go on, with a pause. */
static void on_compare_failed(struct node *node)
{
    switch (node->stock->phase) {
    case JOIN_WRITE:
        later(node, JOIN_READ, below(100));
        break;
    case LAST_TOUCH:
    case LAST_FREEZE:
        later(node, LAST_READ, below(100));
        break;
    case CONFIRM_WRITE:
        later(node, CONFIRM_READ, below(100));
        break;
    case ANNOUNCE_WRITE:
        later(node, ANNOUNCE_READ, below(100));
        break;
    case COUNT_WRITE:
        retry(node, 5000); /* "worker needs to die": a new one comes */
        break;
    default:
        retry(node, SLEEP_MS);
    }
}

static void on_written(struct node *node, const struct request *request)
{
    struct stock *s = node->stock;
    const struct reply *reply = &request->reply;

    switch (s->phase) {
    case SETUP:
        take(s, request->value, reply->modified);
        go(node, COUNT_READ);
        break;
    case COUNT_READ:
        s->counter = atoll(reply->value) + 1;
        s->counter_index = reply->modified;
        go(node, COUNT_WRITE);
        break;
    case COUNT_WRITE:
        go(node, MAKE_DIR);
        break;
    case MAKE_DIR:
        go(node, OPEN);
        break;
    case OPEN:
        take(s, request->value, reply->modified);
        on_init(node);
        break;
    case JOIN_WRITE:
        s->rank = (int64_t)s->doc.participants;
        take(s, request->value, reply->modified);
        s->last_ms = w.now_ms + w.last_call_ms;
        go(node, s->rank == w.nodes_min - 1 && s->doc.status == MU_CLASSIC_JOINABLE ? LAST_READ : PEERS_READ);
        break;
    case LAST_TOUCH:
        s->index = reply->modified;
        go(node, LAST_WATCH);
        break;
    case LAST_FREEZE:
        go(node, PEERS_READ);
        break;
    case CONFIRM_KEY:
        go(node, CONFIRM_WRITE);
        break;
    case CONFIRM_WRITE:
        on_confirmed(node);
        break;
    case ANNOUNCE_WRITE:
        take(s, request->value, reply->modified);
        go(node, FREE_READ);
        break;
    case FREE_LIST:
        s->index = reply->index;
        on_list(node, reply);
        break;
    case FREE_DELETE:
        retry(node, 0);
        break;
    default:
        break;
    }
}

static void after_watch(struct node *node)
{
    switch (node->stock->phase) {
    case INIT_WATCH:
        go(node, INIT_CHANGED);
        break;
    case PEERS_WATCH:
        go(node, PEERS_READ);
        break;
    case FINAL_WATCH:
        go(node, FINAL_READ);
        break;
    case LAST_WATCH:
        go(node, LAST_READ);
        break;
    default:
        go(node, FREE_READ);
    }
}

static bool watches(enum phase phase)
{
    return phase == INIT_WATCH || phase == PEERS_WATCH || phase == FINAL_WATCH || phase == LAST_WATCH ||
           phase == FREE_WATCH;
}

static bool reads(enum phase phase)
{
    return phase == INIT_READ || phase == INIT_CHANGED || phase == JOIN_READ || phase == LAST_READ ||
           phase == PEERS_READ || phase == CONFIRM_READ || phase == FINAL_READ || phase == ANNOUNCE_READ ||
           phase == FREE_READ;
}

static void on_prepare(struct node *node, const struct reply *reply)
{
    if (reply->code != 0 && reply->code != MU_CLASSIC_CODE_EXISTS)
        later(node, PREPARE, SLEEP_MS);
    else if (++node->stock->prepare < 4)
        go(node, PREPARE);
    else
        go(node, SETUP);
}

static void on_poll(struct node *node, const struct reply *reply)
{
    struct stock *s = node->stock;

    s->due_ms = w.now_ms + POLL_MS;
    node_timer(node, s->due_ms);
    if (reply->code != 0)
        return;
    take(s, reply->value, reply->index);
    if (s->doc.status == MU_CLASSIC_FINAL && s->doc.waiting > 0)
        join_anew(node);
}

static void on_main(struct node *node, const struct request *request)
{
    struct stock *s = node->stock;
    const struct reply *reply = &request->reply;

    s->main_id = 0;
    if (s->phase == PREPARE)
        on_prepare(node, reply);
    else if (s->phase == MEMBER)
        on_poll(node, reply);
    else if (watches(s->phase) &&
             (reply->code == 0 || reply->code == MU_CLASSIC_CODE_CLEARED || reply->code == MUSTER_ETIMEOUT))
        after_watch(node);
    else if ((s->phase == SETUP || s->phase == MAKE_DIR) && reply->code == MU_CLASSIC_CODE_EXISTS)
        go(node, INIT_READ);
    else if (s->phase == COUNT_READ && reply->code == MU_CLASSIC_CODE_NOT_FOUND) {
        s->prepare = 0;
        later(node, PREPARE, 5000); /* it dies, and a new one prepares */
    } else if (reply->code == MU_CLASSIC_CODE_COMPARE)
        on_compare_failed(node);
    else if (reply->code != 0)
        retry(node, SLEEP_MS);
    else if (reads(s->phase)) {
        take(s, reply->value, reply->index);
        on_read(node);
    } else
        on_written(node, request);
}

void stock_reply(struct node *node, const struct request *request)
{
    struct stock *s = node->stock;

    if (request->who == WHO_LEASE) {
        if (request->id != s->lease_id)
            return;
        s->lease_id = 0;
        s->leased = s->leased && request->reply.code == 0;
        s->lease_ms = w.now_ms + RANK_MS;
        node_timer(node, s->lease_ms);
    } else if (request->id == s->main_id) {
        on_main(node, request);
    }
}

/* Some time after another member is no longer there, collectives fail. */
static void watch_world(struct node *node)
{
    struct stock *s = node->stock;
    int64_t members = 0;

    for (unsigned i = 0; i < w.nodes_count; i++)
        members += w.nodes[i].life != 0 && w.nodes[i].member && w.nodes[i].version == node->version &&
                   w.nodes[i].epoch == node->epoch;
    if (members == node->count)
        s->fail_ms = 0;
    else if (s->fail_ms == 0)
        s->fail_ms = w.now_ms + 3000 + below(12000);
    else if (w.now_ms >= s->fail_ms)
        join_anew(node);
}

void stock_time(struct node *node)
{
    struct stock *s = node->stock;

    if (node->out)
        return;
    if (s->leased && s->lease_id == 0 && w.now_ms >= s->lease_ms) {
        struct request *request = new_request(node, MU_CLASSIC_PUT, s->lease_key);

        request->who = WHO_LEASE;
        request->refresh = request->must_exist = true;
        request->ttl_s = 10;
        s->lease_id = request->id;
        send_request(request, 60000);
    }
    if (s->phase == MEMBER && s->main_id == 0)
        watch_world(node);
    if (s->main_id == 0 && s->due_ms != 0 && w.now_ms >= s->due_ms)
        enter(node);
}
