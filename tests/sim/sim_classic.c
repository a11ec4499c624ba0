/* The classic etcd rendezvous in a storm, see classic_sim.h.
 *
 *     muster-sim-etcd --seeds N [--seed FIRST]   N seeds, one after the other
 *     muster-sim-etcd --time SECONDS             fresh seeds for so long
 *     muster-sim-etcd --seed N [--trace]         one seed, told line by line
 *     --faults LIST                              these faults and no others; "none"
 *     --more LIST                                these beside those that the seed chooses
 *
 * A seed decides everything: how many nodes with which limits, which faults exist at all and how often they strike. A
 * storm is followed by calm, in which everybody who is still alive must find together and stay so.
 *
 * What must hold, always: see classic_check.c; and a closed document stays closed. In the calm: all who live (or as
 * many as may) are members of one final document that lists nobody else, within CALM_MS; where there is room for all,
 * that is still so STABLE_MS later. Where the server loses things: a group is put back without a round, and nobody who
 * was cut off takes another group of its number for its own. Where a stranger overwrites the document of a group, its
 * members put it back without a round. Who takes long to stop is waited for, up to the end of a last call, and hears
 * when the others go on. */
#include "classic_sim.h"
#include "sim_clock.h"

#include <getopt.h>
#include <stdarg.h>
#include <string.h>

enum {
    STORM_MS = 90000,
    CALM_MS = 240000,
    STABLE_MS = 60000,
    PUT_BACK_MS = 40000,
    NAMED_MS = 130000, /* everybody has told of its wait twice: once a minute */
    SAME_VERSION_MAX = 6,
    STOCK_LAST_CALL_MS = 2500,
    OUTSTANDING_MAX = 32,
};

struct event {
    uint64_t at_ms, order;
    enum happening what;
    unsigned slot;
    uint64_t life;
    struct request *request;
};

struct sim w;

static struct event *heap;
static size_t heap_len, heap_room;
struct request **requests;
size_t requests_count;
static size_t requests_room;
static struct request *outstanding[NODES_MAX][OUTSTANDING_MAX];
static uint64_t last_request_id;
static bool faults_given, faults_wanted[FAULTS_COUNT], faults_added[FAULTS_COUNT];
static uint64_t rounds_total, steps_total, same_numbers_total, stops_total;

static const char *const fault_names[FAULTS_COUNT] = {
#define X(name, text) text,
    FAULTS(X)
#undef X
};

/* ---- Chance, time, words ---- */

uint64_t below(uint64_t bound)
{
    return mu_rng_below(&w.rng, bound);
}

bool chance(unsigned percent)
{
    return below(100) < percent;
}

void say(const char *format, ...)
{
    va_list args;

    if (!w.trace)
        return;
    printf("%8llu ", (unsigned long long)w.now_ms);
    va_start(args, format);
    (void)vprintf(format, args);
    va_end(args);
    printf("\n");
}

_Noreturn void fail(const char *format, ...)
{
    va_list args;

    (void)fflush(stdout);
    (void)fprintf(stderr, "seed %llu, %llu ms: ", (unsigned long long)w.seed, (unsigned long long)w.now_ms);
    va_start(args, format);
    (void)vfprintf(stderr, format, args);
    va_end(args);
    (void)fprintf(stderr, "\nfaults:");
    for (unsigned i = 0; i < FAULTS_COUNT; i++)
        if (w.on[i])
            (void)fprintf(stderr, " %s", fault_names[i]);
    (void)fprintf(stderr, "\nreplay with the same faults and --seed %llu --trace\n", (unsigned long long)w.seed);
    exit(1);
}

static bool before(const struct event *a, const struct event *b)
{
    return a->at_ms < b->at_ms || (a->at_ms == b->at_ms && a->order < b->order);
}

void push(uint64_t at_ms, enum happening what, unsigned slot, uint64_t life, struct request *request)
{
    struct event event = { at_ms, w.order++, what, slot, life, request };
    size_t i = heap_len++;

    if (heap_len > heap_room) {
        heap_room = heap_room * 2 + 256;
        heap = realloc(heap, heap_room * sizeof heap[0]);
        if (heap == NULL)
            abort();
    }
    while (i > 0 && before(&event, &heap[(i - 1) / 2])) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = event;
}

static struct event pop(void)
{
    struct event first = heap[0], last = heap[--heap_len];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < heap_len) {
        if (child + 1 < heap_len && before(&heap[child + 1], &heap[child]))
            child++;
        if (!before(&heap[child], &last))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return first;
}

/* ---- Requests ---- */

struct request *new_request(const struct node *node, enum mu_classic_kind kind, const char *key)
{
    struct request *request = calloc(1, sizeof *request);

    if (requests_count == requests_room) {
        requests_room = requests_room * 2 + 256;
        requests = realloc(requests, requests_room * sizeof *requests);
    }
    if (request == NULL || requests == NULL)
        abort();
    requests[requests_count++] = request;
    request->id = ++last_request_id;
    request->slot = node->slot;
    request->life = node->life;
    request->is_stock = node->is_stock;
    request->kind = kind;
    (void)snprintf(request->key, sizeof request->key, "%s", key);
    return request;
}

static void free_reply(struct reply *reply)
{
    for (size_t n = 0; n < reply->nodes_count; n++)
        free(reply->nodes[n].value);
    free(reply->nodes);
    free(reply->value);
    *reply = (struct reply){ 0 };
}

static void free_requests(void)
{
    for (size_t i = 0; i < requests_count; i++) {
        struct request *request = requests[i];

        free_reply(&request->reply);
        free(request->value);
        free(request->prev_value);
        free(request);
    }
    requests_count = 0;
}

static bool is_conditional(const struct request *request)
{
    return (request->kind == MU_CLASSIC_PUT || request->kind == MU_CLASSIC_DELETE) &&
           (request->must_not_exist || request->prev_index != 0 || request->prev_value != NULL);
}

static uint64_t travel_ms(void)
{
    return 1 + below(w.on[F_SLOW] && !w.calm && chance(10) ? 3000 : 10);
}

/* A watch that is not made again ends with its connection. Not every one: if there was no time left, it was lost as
 * well. */
int lost_code(const struct request *request, int code)
{
    return request->once && request->id % 2 == 0 && code != MUSTER_ETIMEOUT ? MUSTER_ECANCELED : code;
}

static void fail_request(struct request *request, int code, bool sent, uint64_t delay_ms)
{
    free_reply(&request->reply);
    request->reply = (struct reply){ .code = lost_code(request, code), .unsure = sent && is_conditional(request) };
    request->delivered = true;
    push(w.now_ms + delay_ms, H_REPLY, request->slot, request->life, request);
}

void send_request(struct request *request, uint64_t timeout_ms)
{
    const struct node *node = &w.nodes[request->slot];

    say("%u: %s %s%s%s%s%s", request->slot,
        request->kind == MU_CLASSIC_GET      ? "GET"
        : request->kind == MU_CLASSIC_PUT    ? "PUT"
        : request->kind == MU_CLASSIC_DELETE ? "DELETE"
                                             : "WATCH",
        request->key, request->value != NULL ? " " : "", request->value != NULL ? request->value : "",
        request->prev_value != NULL ? " if " : "", request->prev_value != NULL ? request->prev_value : "");
    request->sent_ms = w.now_ms;
    request->give_up_ms = w.now_ms + timeout_ms;
    request->seen = node->seen;
    if (node->cut_until_ms > w.now_ms || w.away_until_ms > w.now_ms) {
        fail_request(request, MUSTER_ECONNECT, false, 1 + below(50));
        return;
    }
    push(request->give_up_ms, H_TIMEOUT, request->slot, request->life, request);
    if (w.on[F_LOST] && !w.calm && chance(3)) {
        fail_request(request, MUSTER_ELOST, true, 1 + below(1000)); /* it never arrives */
        return;
    }
    if (w.on[F_LATE] && !w.calm && chance(3)) {
        request->is_coming = true;
        push(w.now_ms + below(20000), H_REQUEST, request->slot, request->life, request);
        fail_request(request, MUSTER_ELOST, true, 1 + below(5000));
        return;
    }
    request->is_coming = true;
    push(w.now_ms + travel_ms(), H_REQUEST, request->slot, request->life, request);
}

/* The server has answered. */
void deliver(struct request *request)
{
    if (request->delivered)
        return; /* its sender has heard otherwise */
    request->delivered = true;
    if (w.on[F_LOST] && !w.calm && chance(3))
        fail_request(request, MUSTER_ELOST, true, 1 + below(1000));
    else
        push(w.now_ms + travel_ms(), H_REPLY, request->slot, request->life, request);
}

static void on_request(struct request *request)
{
    request->is_coming = false;
    if (w.away_until_ms > w.now_ms) {
        if (!request->delivered)
            fail_request(request, MUSTER_ELOST, true, 1 + below(100));
        return;
    }
    if (request->delivered && request->kind == MU_CLASSIC_WATCH)
        return;
    if (request->delivered) { /* late: nobody hears the answer */
        struct node *node = &w.nodes[request->slot];
        struct reply told = request->reply;

        if (node->life == request->life && request->kind != MU_CLASSIC_GET && !is_notice(request->key))
            node->late_ms = w.now_ms;
        request->reply = (struct reply){ 0 };
        etcd_apply(request);
        say("%u: carried out late: %s %s: %d", request->slot, request->key,
            request->value != NULL ? request->value : "", request->reply.code);
        free_reply(&request->reply);
        request->reply = told;
        return;
    }
    etcd_apply(request);
    if (!request->watching)
        deliver(request);
}

/* ---- Nodes ---- */

static void perform(struct node *node, const struct mu_classic_effects *effects);

void node_timer(struct node *node, uint64_t at_ms)
{
    if (at_ms == UINT64_MAX || (node->timer_ms != 0 && node->timer_ms <= at_ms && node->timer_ms > w.now_ms))
        return;
    node->timer_ms = at_ms > w.now_ms ? at_ms : w.now_ms;
    if (w.on[F_LAZY] && at_ms > w.now_ms)
        node->timer_ms += below(20);
    push(node->timer_ms, H_TIMER, node->slot, node->life, NULL);
}

static bool takes_back(const struct node *node)
{
    enum mu_classic_state state = mu_classic_state(node->classic);

    return state == MU_CLASSIC_IN_QUIT_KEY || state == MU_CLASSIC_IN_QUIT_READ || state == MU_CLASSIC_IN_QUIT_WRITE ||
           state == MU_CLASSIC_IN_QUIT_DROP;
}

static void feed(struct node *node, struct mu_classic_event event)
{
    struct mu_classic_effects effects;

    event.now_ms = w.now_ms;
    mu_classic_step(node->classic, &event, &effects);
    if (takes_back(node) && node->quit_ms == 0)
        node->quit_ms = w.now_ms;
    perform(node, &effects);
    if (node->life != 0)
        node_timer(node, mu_classic_deadline_ms(node->classic));
}

void node_joined(struct node *node, int64_t version, int64_t rank, int64_t count)
{
    say("%u: JOINED %lld as %lld of %lld", node->slot, (long long)version, (long long)rank, (long long)count);
    rounds_total++;
    node->joining = false;
    node->member = true;
    node->version = version;
    node->rank = rank;
    node->count = count;
    node->epoch = node->is_stock ? w.epoch : node->marks_epoch;
    node->rejoin_ms = 0;
    check_joined(node);
}

static void rejoin_later(struct node *node, uint64_t delay_ms)
{
    if (node->rejoin_ms != 0 || node->out)
        return;
    node->rejoin_ms = w.now_ms + 1 + delay_ms;
    if (node->rejoin_ms < node->stops_until_ms)
        node->rejoin_ms = node->stops_until_ms;
    push(node->rejoin_ms, H_TIMER, node->slot, node->life, NULL);
}

static void join(struct node *node)
{
    node->rejoin_ms = 0;
    node->member = false;
    if (node->joining || node->leaving || node->out)
        return;
    node->joining = true;
    say("%u: join", node->slot);
    feed(node, (struct mu_classic_event){ .type = MU_CLASSIC_ON_JOIN });
}

/* It has left, or has not got in. */
static void end(struct node *node)
{
    if (node->quit_ms == 0)
        node->quit_ms = w.now_ms;
    check_ended(node);
    node->quit_ms = 0;
    node->in_trouble = false;
}

static void on_tell(struct node *node, const struct mu_classic_effect *effect)
{
    const struct mu_classic_world *world = mu_classic_world(node->classic);

    if (effect->news.tell != MU_PART_TELL_PROGRESS)
        say("%u: tell %s %s", node->slot, mu_part_tell_text(effect->news.tell),
            effect->news.error != NULL ? effect->news.error->text : "");
    switch (effect->news.tell) {
    case MU_PART_TELL_JOINED:
        node_joined(node, world->version, world->rank, (int64_t)world->count);
        break;
    case MU_PART_TELL_REMOVED:
        if (node->stops_until_ms > w.now_ms)
            node->stops_until_ms = node->rejoin_ms = 0; /* they are killed */
        rejoin_later(node, below(500));
        break;
    case MU_PART_TELL_WAITING:
    case MU_PART_TELL_LOST:
        rejoin_later(node, below(500));
        break;
    case MU_PART_TELL_LEFT:
        end(node);
        node->leaving = node->joining = node->member = false;
        if (!node->out)
            rejoin_later(node, below(20000));
        break;
    case MU_PART_TELL_FAILED:
        if (effect->news.asked == MU_PART_ON_JOIN) {
            end(node);
            node->joining = false;
            if (effect->news.error->code == MUSTER_ERDZV_CLOSED) {
                if (!w.closed && w.epoch == 0) /* else it was, perhaps, before everything was lost */
                    fail("node %u was told that it is closed, and it is not", node->slot);
                node->saw_closed = node->out = true;
            } else if (effect->news.error->code == MUSTER_ERDZV_STATE) {
                fail("node %u: %s", node->slot, effect->news.error->text);
            } else {
                rejoin_later(node, below(3000));
            }
        }
        break;
    case MU_PART_TELL_CLOSED:
    case MU_PART_TELL_LOOKED:
    case MU_PART_TELL_BACKEND_DOWN:
    case MU_PART_TELL_BACKEND_UP:
    case MU_PART_TELL_PROGRESS:
    case MU_PART_TELL_REPORTED:
    case MU_PART_TELL_FOREIGN:
    case MU_PART_TELLS_COUNT:
        break;
    }
}

char *text_of(struct mu_slice slice)
{
    char *text = malloc(slice.len + 1);

    if (text == NULL)
        abort();
    if (slice.len > 0)
        memcpy(text, slice.data, slice.len);
    text[slice.len] = '\0';
    return text;
}

static void keep(struct request *request)
{
    for (unsigned i = 0; i < OUTSTANDING_MAX; i++) {
        if (outstanding[request->slot][i] == NULL || outstanding[request->slot][i]->settled) {
            outstanding[request->slot][i] = request;
            return;
        }
    }
    fail("node %u has too many requests under way", request->slot);
}

static void ask(struct node *node, const struct mu_classic_request *from)
{
    char key[128];
    struct request *request;

    (void)snprintf(key, sizeof key, "%.*s", (int)from->key.len, from->key.data);
    request = new_request(node, from->kind, key);
    request->id = from->id; /* its own numbers: lives tell them apart */
    request->value = from->has_value ? text_of(from->value) : NULL;
    request->prev_value = from->has_prev_value ? text_of(from->prev_value) : NULL;
    request->dir = from->dir;
    request->refresh = from->refresh;
    request->recursive = from->recursive;
    request->once = from->once;
    request->must_exist = from->must_exist;
    request->must_not_exist = from->must_not_exist;
    request->prev_index = from->prev_index;
    request->wait_index = from->wait_index;
    request->ttl_s = from->ttl_s;
    keep(request);
    send_request(request, from->timeout_ms);
}

static void cancel(struct node *node, uint64_t id)
{
    for (unsigned i = 0; i < OUTSTANDING_MAX; i++) {
        struct request *request = outstanding[node->slot][i];

        if (request == NULL || request->settled || request->id != id || request->life != node->life)
            continue;
        request->settled = true;
        if (request->watching)
            etcd_forget(request);
    }
}

static void perform(struct node *node, const struct mu_classic_effects *effects)
{
    for (unsigned i = 0; i < effects->count; i++) {
        const struct mu_classic_effect *effect = &effects->items[i];

        switch (effect->type) {
        case MU_CLASSIC_DO_REQUEST:
            ask(node, &effect->request);
            break;
        case MU_CLASSIC_DO_CANCEL:
            cancel(node, effect->id);
            break;
        case MU_CLASSIC_DO_TELL:
            on_tell(node, effect);
            break;
        }
    }
}

static void die(struct node *node)
{
    say("%u: dies", node->slot);
    for (unsigned i = 0; i < OUTSTANDING_MAX; i++) {
        struct request *request = outstanding[node->slot][i];

        if (request != NULL && !request->settled && request->life == node->life) {
            request->settled = true;
            if (request->watching)
                etcd_forget(request);
        }
        outstanding[node->slot][i] = NULL;
    }
    mu_classic_free(node->classic);
    stock_free(node->stock);
    *node = (struct node){ .slot = node->slot };
}

static void give_birth(struct node *node, bool is_stock)
{
    struct mu_classic_config config = {
        .prefix = "p/", /* not as etcd writes it */
        .run_id = "job",
        .nodes_min = w.nodes_min,
        .nodes_max = w.nodes_max,
        .join_ms = w.join_ms,
        .last_call_ms = w.last_call_ms,
        .close_ms = 30000,
        .seed = mu_rng_next(&w.rng),
    };
    struct muster_error error;
    char name[32];

    if (w.on[F_LIMITS]) {
        config.nodes_max = 1 + (int64_t)below(w.nodes_count + 1);
        config.nodes_min = 1 + (int64_t)below((uint64_t)config.nodes_max);
    }
    node->life = ++w.lives;
    node->is_stock = is_stock;
    say("%u: is born, %s", node->slot, node->is_stock ? "stock" : "ours");
    if (node->is_stock) {
        node->stock = stock_new(node);
        return;
    }
    name_of(node, name, sizeof name);
    config.node = config.name = name;
    config.pid = (int64_t)node->life;
    if (mu_classic_new(&config, &node->classic, &error) < 0)
        fail("%s", error.text);
    join(node);
}

/* ---- The document ---- */

void on_changed(const char *key, const struct request *by)
{
    const char *text = strcmp(key, ACTIVE) == 0 ? etcd_value(key) : NULL;
    bool closed = text != NULL && strstr(text, "\"closed\"") != NULL;

    if (is_notice(key))
        check_notices();
    if (strcmp(key, ACTIVE) != 0)
        return;
    say("etcd: %s", text != NULL ? text : "no document");
    check_document(by);
    if (w.closed && !closed)
        fail("a closed rendezvous was opened again: %s", text != NULL ? text : "no document");
    w.closed = closed;
}

/* ---- Deeds ---- */

static struct node *somebody(void)
{
    struct node *node = &w.nodes[below(w.nodes_count)];

    return node->life != 0 ? node : NULL;
}

static void leave(struct node *node)
{
    if (node->is_stock || node->leaving)
        return;
    node->leaving = true;
    node->quit_ms = w.now_ms;
    node->out = chance(20);
    node->member = false;
    node->rejoin_ms = 0;
    say("%u: leaves%s", node->slot, node->out ? " for good" : "");
    feed(node, (struct mu_classic_event){ .type = MU_CLASSIC_ON_LEAVE });
}

static void workers_fail(struct node *node)
{
    if (!node->member)
        return;
    say("%u: workers fail", node->slot);
    if (node->is_stock)
        stock_workers_fail(node);
    else
        rejoin_later(node, below(500));
}

static void lose_everything(void)
{
    say("etcd: everything is lost");
    w.epoch++;
    w.wiped_ms = w.now_ms;
    w.closed = false;
    etcd_wipe();
    check_document(NULL);
}

static void wipe(void)
{
    lose_everything();
    for (unsigned i = 0; i < w.nodes_count; i++) /* some find the others' new group there */
        if (chance(40))
            w.nodes[i].cut_until_ms = w.now_ms + below(20000);
}

static void deed(enum fault fault)
{
    struct node *node = somebody();
    uint64_t long_ms;

    if (!w.on[fault] || (node == NULL && fault != F_AWAY && fault != F_WIPE))
        return;
    switch (fault) {
    case F_KILL:
        push(w.now_ms + below(20000), H_BIRTH, node->slot, 0, NULL);
        die(node);
        break;
    case F_PAUSE:
        long_ms = below(chance(30) ? 30000 : 3000);
        if (node->paused_until_ms <= w.now_ms) /* else what was put off would come in another order */
            node->paused_until_ms = w.now_ms + long_ms;
        say("%u: paused until %llu", node->slot, (unsigned long long)node->paused_until_ms);
        break;
    case F_CUT:
        node->cut_until_ms = w.now_ms + below(chance(30) ? 30000 : 3000);
        say("%u: cut off until %llu", node->slot, (unsigned long long)node->cut_until_ms);
        break;
    case F_AWAY:
        if (chance(30))
            w.away_until_ms = w.now_ms + below(chance(30) ? 25000 : 3000);
        say("etcd: away until %llu", (unsigned long long)w.away_until_ms);
        break;
    case F_WIPE:
        if (chance(10))
            wipe();
        break;
    case F_FAILING:
        workers_fail(node);
        break;
    case F_LEAVE:
        if (chance(50))
            leave(node);
        break;
    case F_CLOSE:
        if (!node->is_stock && chance(5)) {
            say("%u: closes", node->slot);
            feed(node, (struct mu_classic_event){ .type = MU_CLASSIC_ON_CLOSE });
        }
        break;
    default:
        break;
    }
}

/* A closed document stays: who has left cannot put it back. */
static void scribble_document(void)
{
    static const char *const nonsense[] = { "garbage", "", "[1, 2]", "{\"status\": 7}", "{\"status\": \"final\"}" };

    if (!w.closed)
        etcd_scribble(ACTIVE, nonsense[below(sizeof nonsense / sizeof nonsense[0])]);
}

static void scribble(void)
{
    const char *key = etcd_some_key(JOB "/muster", below(20));

    if (chance(60))
        scribble_document();
    else if (chance(50))
        etcd_scribble(JOB "/rdzv/version_counter", chance(50) ? "many" : "999999999999999999");
    else if (key != NULL)
        etcd_scribble(key, "garbage");
}

static void on_deed(void)
{
    if (w.calm)
        return;
    deed((enum fault)below(CHOSEN_COUNT));
    if (w.on[F_STRANGER] && chance(50))
        scribble();
    push(w.now_ms + 100 + below(4000), H_DEED, 0, 0, NULL);
}

/* ---- Steps ---- */

/* What it learns by this. */
static void note_reply(struct node *node, const struct request *request)
{
    const struct reply *reply = &request->reply;
    bool is_write = request->kind == MU_CLASSIC_PUT;

    if (reply->code < 0 && request->kind != MU_CLASSIC_WATCH && !is_notice(request->key) && takes_back(node))
        node->in_trouble = true;
    if (strcmp(request->key, ACTIVE) == 0 && reply->code == 0 && (is_write || request->kind == MU_CLASSIC_GET))
        check_saw(node, is_write ? request->value : reply->value);
    if (strcmp(request->key, ACTIVE) == 0 && reply->unsure && is_write && strstr(request->value, "\"final\"") != NULL)
        node->in_doubt = true;
    if (strncmp(request->key, JOB "/muster/", strlen(JOB "/muster/")) == 0 && request->kind == MU_CLASSIC_GET)
        node->marks_epoch = request->epoch;
}

static void hand_over(struct node *node, struct request *request)
{
    static const struct muster_error error = { .code = MUSTER_ELOST, .text = "the network" };
    const struct reply *reply = &request->reply;
    struct mu_classic_node *nodes;

    if (node->is_stock) {
        stock_reply(node, request);
        return;
    }
    note_reply(node, request);
    nodes = calloc(reply->nodes_count + 1, sizeof *nodes);
    if (nodes == NULL)
        abort();
    for (size_t i = 0; i < reply->nodes_count; i++)
        nodes[i] = (struct mu_classic_node){
            mu_slice_str(reply->nodes[i].key),
            mu_slice_str(reply->nodes[i].value != NULL ? reply->nodes[i].value : ""),
        };
    feed(node, (struct mu_classic_event){
                   .type = MU_CLASSIC_ON_ANSWER,
                   .id = request->id,
                   .code = reply->code,
                   .unsure = reply->unsure,
                   .error = reply->code != 0 ? &error : NULL,
                   .value = mu_slice_str(reply->value != NULL ? reply->value : ""),
                   .key = mu_slice_str(reply->key),
                   .modified = reply->modified,
                   .index = reply->index,
                   .nodes = nodes,
                   .nodes_count = reply->nodes_count,
               });
    free(nodes);
}

static void on_timeout(struct request *request)
{
    if (request->settled || request->delivered)
        return;
    if (request->watching)
        etcd_forget(request);
    fail_request(request, MUSTER_ETIMEOUT, true, 0);
}

static void on_timer(struct node *node)
{
    node->timer_ms = 0;
    if (node->rejoin_ms != 0 && w.now_ms >= node->rejoin_ms)
        join(node);
    if (node->is_stock)
        stock_time(node);
    else
        feed(node, (struct mu_classic_event){ .type = MU_CLASSIC_ON_TIME });
    if (node->is_stock && !node->out)
        node_timer(node, w.now_ms + 250);
}

static void step(const struct event *event)
{
    struct node *node = &w.nodes[event->slot];
    bool for_node = event->what == H_REPLY || event->what == H_TIMER;

    if (for_node && (node->life != event->life || node->life == 0))
        return;
    if (for_node && node->paused_until_ms > w.now_ms) {
        push(node->paused_until_ms, event->what, event->slot, event->life, event->request);
        return;
    }
    switch (event->what) {
    case H_REQUEST:
        on_request(event->request);
        break;
    case H_REPLY:
        if (event->request->settled)
            break;
        event->request->settled = true;
        hand_over(node, event->request);
        break;
    case H_TIMEOUT:
        on_timeout(event->request);
        break;
    case H_TIMER:
        on_timer(node);
        break;
    case H_EXPIRE:
        etcd_expire();
        break;
    case H_DEED:
        on_deed();
        break;
    case H_BIRTH:
        if (node->life == 0)
            give_birth(node, w.on[F_STOCK] && chance(50));
        break;
    case H_WIPE:
        wipe();
        break;
    }
}

static void run_until(uint64_t until_ms)
{
    while (heap_len > 0 && heap[0].at_ms <= until_ms) {
        struct event event = pop();

        w.now_ms = event.at_ms;
        if (++w.steps > 5000000)
            fail("it goes round in circles");
        step(&event);
    }
    w.now_ms = until_ms;
}

/* ---- What must come true ---- */

static unsigned living(void)
{
    unsigned count = 0;

    for (unsigned i = 0; i < w.nodes_count; i++)
        count += w.nodes[i].life != 0 && !w.nodes[i].out;
    return count;
}

/* Members of the document that is there, if it is final and lists nobody else. */
static int64_t together(void)
{
    const char *text = etcd_value(ACTIVE);
    struct mu_classic_doc doc;
    struct muster_error error;
    int64_t count = 0;

    if (text == NULL || mu_classic_doc_read(mu_slice_str(text), &doc, &error) < 0)
        return 0;
    for (unsigned i = 0; i < w.nodes_count; i++)
        count += w.nodes[i].life != 0 && w.nodes[i].member && w.nodes[i].version == doc.version &&
                 w.nodes[i].count == (int64_t)doc.participants && !is_another_s_rank(&w.nodes[i]);
    if (doc.status != MU_CLASSIC_FINAL || count != (int64_t)doc.participants)
        count = 0;
    mu_classic_doc_done(&doc);
    return count;
}

static int64_t wanted(void)
{
    int64_t alive = living();

    if (w.on[F_LIMITS] || (w.on[F_WIPE] && w.on[F_STOCK]))
        return 0; /* they may never find together */
    return alive < w.nodes_min ? 0 : alive < w.nodes_max ? alive : w.nodes_max;
}

static void tell_all(void)
{
    const char *text = etcd_value(ACTIVE);

    (void)fprintf(stderr, "document: %s\n", text != NULL ? text : "none");
    for (unsigned i = 0; i < w.nodes_count; i++)
        if (w.nodes[i].life != 0)
            (void)fprintf(stderr, "node %u: %s%s%s%s%s version %lld rank %lld of %lld: %s\n", i,
                          w.nodes[i].is_stock ? "stock " : "", w.nodes[i].joining ? "joining " : "",
                          w.nodes[i].member ? "member " : "", w.nodes[i].leaving ? "leaving " : "",
                          w.nodes[i].out ? "out" : "", (long long)w.nodes[i].version, (long long)w.nodes[i].rank,
                          (long long)w.nodes[i].count,
                          w.nodes[i].is_stock ? "" : mu_classic_state_text(mu_classic_state(w.nodes[i].classic)));
}

/* PyTorch's lease ends with the first error, and a member never hears that the others went on without it: its user has
 * to notice, and to start it again. */
static void wake_forgotten(void)
{
    for (unsigned i = 0; i < w.nodes_count; i++) {
        const char *text = etcd_value(ACTIVE);
        char version[48];

        (void)snprintf(version, sizeof version, "\"version\": \"%lld\"", (long long)w.nodes[i].version);
        if (w.nodes[i].life != 0 && w.nodes[i].is_stock && w.nodes[i].member &&
            (text == NULL || strstr(text, version) == NULL))
            workers_fail(&w.nodes[i]);
    }
}

static void find_together(uint64_t limit_ms)
{
    /* Who takes part in a version of a server that has lost everything may take the next one of that number for it. */
    uint64_t until_ms = w.now_ms + limit_ms + (w.on[F_WIPE] ? w.join_ms : 0);

    while (!w.closed && together() < wanted()) {
        if (w.now_ms >= until_ms) {
            tell_all();
            fail("%lld of %lld are together", (long long)together(), (long long)wanted());
        }
        wake_forgotten();
        run_until(w.now_ms + 100);
    }
}

static void check_ends(void)
{
    uint64_t until_ms = w.now_ms + CALM_MS + w.join_ms;
    unsigned left = 1;

    while (left > 0) {
        left = 0;
        for (unsigned i = 0; i < w.nodes_count; i++)
            left += w.nodes[i].life != 0 && !w.nodes[i].out && !w.nodes[i].member;
        if (left > 0 && w.now_ms >= until_ms) {
            tell_all();
            fail("%u nodes do not learn that it is closed", left);
        }
        run_until(w.now_ms + 500);
    }
}

static void some_workers_fail(void)
{
    for (unsigned i = 0; i < w.nodes_count; i++)
        if (w.nodes[i].life != 0 && chance(50))
            workers_fail(&w.nodes[i]);
}

static void close_it(void)
{
    if (chance(50)) { /* while the next round is made */
        some_workers_fail();
        run_until(w.now_ms + below(1500));
    }
    for (unsigned i = 0; i < w.nodes_count && !w.closed; i++) {
        struct node *node = &w.nodes[i];

        if (node->life == 0 || node->is_stock || node->out)
            continue;
        say("%u: closes", i);
        feed(node, (struct mu_classic_event){ .type = MU_CLASSIC_ON_CLOSE });
        run_until(w.now_ms + 40000);
        if (!w.closed)
            fail("node %u could not close it", i);
    }
    if (!w.closed)
        return;
    some_workers_fail();
    check_ends();
}

/* Nobody is in the way: the members put their group back, and none of them has to join anew. */
static void check_put_back(void)
{
    uint64_t rounds = rounds_total;

    lose_everything();
    run_until(w.now_ms + PUT_BACK_MS);
    if (rounds_total != rounds || together() != wanted()) {
        tell_all();
        fail("the group was not put back");
    }
}

/* The members put the document back, and none of them has to join anew. */
static void check_stranger(void)
{
    uint64_t rounds = rounds_total;

    for (int times = 0; times < 3; times++) {
        scribble_document();
        run_until(w.now_ms + below(3000));
    }
    run_until(w.now_ms + 3000);
    if (rounds_total != rounds || together() != wanted()) {
        tell_all();
        fail("a stranger has ended the group");
    }
}

static bool is_held(int64_t version, int64_t count)
{
    const char *text = etcd_value(ACTIVE);
    struct mu_classic_doc doc;
    struct muster_error error;
    bool held;

    if (text == NULL || mu_classic_doc_read(mu_slice_str(text), &doc, &error) < 0)
        return false;
    held = doc.status == MU_CLASSIC_FINAL && doc.version == version && (int64_t)doc.participants == count;
    mu_classic_doc_done(&doc);
    return held;
}

static bool has_twin(const struct node *node)
{
    for (unsigned i = 0; i < w.nodes_count; i++) {
        const struct node *other = &w.nodes[i];

        if (other != node && other->life != 0 && other->member && other->version == node->version &&
            other->rank == node->rank)
            return true;
    }
    return false;
}

/* While one member is cut off, everything is lost and the others come to a group of the same number and size, with
 * another one in its place: it does not take that for its own. */
static void check_same_number(void)
{
    struct node *away = &w.nodes[below(w.nodes_count)];
    int64_t version = away->version, count = away->count;

    if (away->life == 0 || !away->member || version > SAME_VERSION_MAX || w.nodes_count == NODES_MAX)
        return;
    say("%u: cut off from version %lld", away->slot, (long long)version);
    away->cut_until_ms = w.now_ms + 3600000;
    w.nodes[w.nodes_count].slot = w.nodes_count;
    give_birth(&w.nodes[w.nodes_count++], chance(30) && w.last_call_ms >= STOCK_LAST_CALL_MS);
    for (int tries = 0; tries == 0 || (tries <= 2 * SAME_VERSION_MAX && !is_held(version, count)); tries++) {
        for (unsigned i = 0; i < w.nodes_count; i++)
            if (w.nodes[i].life != 0 && &w.nodes[i] != away)
                workers_fail(&w.nodes[i]);
        run_until(w.now_ms + 501); /* they are on their way: none of them puts the old group back */
        if (tries == 0)
            lose_everything();
        run_until(w.now_ms + w.last_call_ms + 15000);
    }
    same_numbers_total += is_held(version, count);
    away->cut_until_ms = 0;
    run_until(w.now_ms + PUT_BACK_MS);
    if (is_held(version, count) && away->member && away->version == version && has_twin(away)) {
        tell_all();
        fail("node %u takes another group of its number for its own", away->slot);
    }
    find_together(CALM_MS);
}

static struct node *some_member(const struct node *but)
{
    unsigned first = (unsigned)below(w.nodes_count);

    for (unsigned i = 0; i < w.nodes_count; i++) {
        struct node *node = &w.nodes[(first + i) % w.nodes_count];

        if (node != but && node->life != 0 && node->member && !node->is_stock)
            return node;
    }
    return NULL;
}

static bool is_anybody_beyond(int64_t version)
{
    for (unsigned i = 0; i < w.nodes_count; i++)
        if (w.nodes[i].life != 0 && w.nodes[i].member && w.nodes[i].version > version)
            return true;
    return false;
}

/* Workers of one member fail, and those of another take long to stop: the others wait for it, up to the end of their
 * last call; and if they go on all the same, it hears that. */
static void check_stopping(void)
{
    struct node *slow = some_member(NULL), *hasty = some_member(slow);
    uint64_t call_ends_ms = w.now_ms + w.last_call_ms, beyond_ms = 0;
    int64_t version = slow != NULL ? slow->version : 0;

    if (slow == NULL || hasty == NULL || slow->count <= w.nodes_min || !mu_classic_world(slow->classic)->all_ours)
        return;
    slow->stops_until_ms = w.now_ms + below(2 * w.last_call_ms + 20000);
    say("%u: takes %llu ms to stop", slow->slot, (unsigned long long)(slow->stops_until_ms - w.now_ms));
    workers_fail(hasty);
    while (slow->member && slow->version == version && w.now_ms < slow->stops_until_ms) {
        run_until(w.now_ms + 20);
        if (beyond_ms == 0 && is_anybody_beyond(version))
            beyond_ms = w.now_ms;
        if (beyond_ms != 0 && beyond_ms < call_ends_ms && slow->member && slow->version == version)
            fail("node %u was not waited for", slow->slot);
        if (beyond_ms != 0 && w.now_ms > beyond_ms + 2000)
            fail("node %u does not hear that the others have gone on", slow->slot);
    }
    stops_total += beyond_ms != 0;
    slow->stops_until_ms = 0;
    find_together(CALM_MS);
}

static void choose(void)
{
    w.nodes_count = 1 + (unsigned)below(6);
    w.nodes_max = 1 + (int64_t)below(w.nodes_count + 1);
    w.nodes_min = 1 + (int64_t)below((uint64_t)w.nodes_max);
    w.last_call_ms = 500 + below(8000);
    for (unsigned i = CHOSEN_COUNT; i < FAULTS_COUNT; i++)
        w.on[i] = faults_wanted[i];
    for (unsigned i = 0; i < CHOSEN_COUNT; i++)
        w.on[i] = faults_given ? faults_wanted[i] : chance(i == F_WIPE ? 10 : i == F_STOCK ? 40 : 35);
    if (w.on[F_STOCK]) /* PyTorch would wait for indexes that a new server reaches some day */
        w.on[F_WIPE] = false;
    if (w.on[F_STOCK]) /* PyTorch sleeps for 1 s after each change: a shorter last call leaves it out every time */
        w.last_call_ms += STOCK_LAST_CALL_MS;
    for (unsigned i = 0; i < FAULTS_COUNT; i++)
        w.on[i] |= faults_added[i];
    if (w.on[F_STRANGER]) /* PyTorch ends with an error */
        w.on[F_STOCK] = w.on[F_WIPE] = false;
    w.join_ms = w.on[F_TIGHT] ? w.last_call_ms + 25000 + below(40000) : 600000;
}

static void run_seed(uint64_t seed, bool trace)
{
    w = (struct sim){ .seed = seed, .rng = mu_rng_seeded(seed), .trace = trace, .now_ms = 1000 };
    heap_len = 0;
    last_request_id = UINT64_C(1) << 40; /* away from the machines' own */
    memset(outstanding, 0, sizeof outstanding);
    check_reset();
    choose();
    etcd_reset();
    say("%u nodes, %lld to %lld", w.nodes_count, (long long)w.nodes_min, (long long)w.nodes_max);
    for (unsigned i = 0; i < w.nodes_count; i++) {
        w.nodes[i].slot = i;
        push(w.now_ms + below(chance(50) ? 200 : 30000), H_BIRTH, i, 0, NULL);
    }
    push(w.now_ms + below(5000), H_DEED, 0, 0, NULL);
    if (w.on[F_WIPE]) /* early: the first versions have the numbers that come again */
        push(w.now_ms + below(20000), H_WIPE, 0, 0, NULL);
    run_until(STORM_MS);
    say("calm");
    w.calm = true;
    w.away_until_ms = 0;
    for (unsigned i = 0; i < w.nodes_count; i++)
        w.nodes[i].cut_until_ms = 0; /* pauses end in time: what was put off comes then */
    run_until(w.now_ms + 21000);     /* births, and what is still under way */
    find_together(CALM_MS);
    if (!w.closed && wanted() > 0 && living() <= (unsigned)w.nodes_max) {
        run_until(w.now_ms + STABLE_MS);
        find_together(CALM_MS);
        if (etcd_count_below(NOTICES) > 0)
            fail("nobody waits, and there are notices");
    } else if (!w.closed && living() < (unsigned)w.nodes_min && !w.on[F_TIGHT] && !w.on[F_LIMITS] && !w.on[F_WIPE]) {
        run_until(w.now_ms + NAMED_MS);
        check_named();
    }
    if (w.on[F_WIPE] && !w.closed && wanted() > 0 && living() <= (unsigned)w.nodes_max) {
        check_put_back();
        check_same_number();
    }
    if (w.on[F_STRANGER] && !w.closed && wanted() > 0 && living() <= (unsigned)w.nodes_max)
        check_stranger();
    if (!w.closed && wanted() > 0 && living() <= (unsigned)w.nodes_max)
        check_stopping();
    if (w.on[F_CLOSE])
        close_it();
    for (unsigned i = 0; i < w.nodes_count; i++)
        if (w.nodes[i].life != 0)
            die(&w.nodes[i]);
    steps_total += w.steps;
    etcd_reset();
    free_requests();
}

/* ---- The program ---- */

static void read_faults(char *list, bool *faults)
{
    for (char *name = strtok(list, ","); name != NULL; name = strtok(NULL, ",")) {
        bool known = strcmp(name, "none") == 0;

        for (unsigned i = 0; i < FAULTS_COUNT; i++) {
            if (strcmp(name, fault_names[i]) == 0)
                known = faults[i] = true;
        }
        if (!known) {
            (void)fprintf(stderr, "muster-sim-etcd: no fault is called '%s'\n", name);
            exit(2);
        }
    }
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        { "seeds", required_argument, NULL, 'n' },
        { "seed", required_argument, NULL, 's' },
        { "time", required_argument, NULL, 't' },
        { "trace", no_argument, NULL, 'v' },
        { "faults", required_argument, NULL, 'f' },
        { "more", required_argument, NULL, 'm' },
        { NULL, 0, NULL, 0 },
    };
    uint64_t first = 0, count = 1, done = 0;
    double start = sim_seconds(), limit = 0;
    bool trace = false, given = false;

    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 'n':
            count = strtoull(optarg, NULL, 0);
            break;
        case 's':
            first = strtoull(optarg, NULL, 0);
            given = true;
            break;
        case 't':
            limit = strtod(optarg, NULL);
            break;
        case 'v':
            trace = true;
            break;
        case 'f':
            faults_given = true;
            read_faults(optarg, faults_wanted);
            break;
        case 'm':
            read_faults(optarg, faults_added);
            break;
        default:
            return 2;
        }
    }
    if (limit > 0 && !given)
        first = sim_fresh_seed();
    for (; limit > 0 ? sim_seconds() - start < limit : done < count; done++)
        run_seed(first + done, trace);
    printf(
        "muster-sim-etcd: %llu seeds from 0x%llx on: all is well (%llu joins, %llu steps, %llu groups of a number that "
        "was there, %llu that went on while somebody stopped)\n",
        (unsigned long long)done, (unsigned long long)first, (unsigned long long)rounds_total,
        (unsigned long long)steps_total, (unsigned long long)same_numbers_total, (unsigned long long)stops_total);
    free(heap);
    free(requests);
    return 0;
}
