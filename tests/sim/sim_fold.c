/* The fold machine's rendezvous in a storm: many machines, one etcd or store, virtual time. See fold_sim.h for the
 * parts and fold_check.c for what must hold.
 *
 *     muster-sim-fold --seeds N [--seed FIRST]     N seeds, one after the other
 *     muster-sim-fold --time SECONDS               fresh seeds for so long; prints job-lives per second
 *     muster-sim-fold --seed N [--trace]           one seed, told line by line
 *     muster-sim-fold --crowd N,N...               no faults: N nodes arrive within 100 ms, then a worker fails; prints
 *                                                  what that costs. The bytes that are sent to a node for the failure
 *                                                  must not depend on N. The place is etcd if none is given
 *     muster-sim-fold --kills FIRST                no faults: one job for each write of a leader, from the first (1) or
 *                                                  that one on; the leader dies at it
 *
 *     --faults LIST                                these faults and no others; "none"
 *     --more LIST                                  these, too
 *     --place etcd|store                           where the nodes meet; else the seed decides
 *
 * A seed decides everything: how many nodes with which limits, which faults exist at all and how often they strike. A
 * storm is followed by calm, in which everybody who is still alive must find together; then one more thing happens,
 * alone, and must be told in time; at last everybody goes, and nothing may be left in etcd. */
#include "fold_sim.h"

#include "rdzv/slowdown.h"
#include "sim_clock.h"
#include "store/engine.h"

#include <stdarg.h>
#include <string.h>

enum {
    RESTART_BYTES_MAX = 3072,      /* that are sent to a node, from a failure until it runs again */
    RESTART_BYTES_APART_MAX = 400, /* ... by numbers of nodes: a piece of news more, and digits */
    MEMBERS = 24,                  /* of jobs whose leaders are killed: a world takes three batches */
};

#define RENEW_US (2 * SECOND) /* between renewals of all streams: less than the longest last call */

struct sim *s;
static const struct place *place_wanted; /* NULL: the seed decides */
static bool faults_given, faults_wanted[FAULTS_COUNT];
static const char *faults_list, *more_list; /* as they were given; NULL: not at all */

static struct {        /* a leader dies at one of its writes */
    uint64_t at;       /* the number of that write; 0: none */
    bool takes_effect; /* its answer never comes; else nobody hears of the write */
    uint64_t writes;   /* of leaders, so far */
    struct node *node; /* whose it was */
    uint64_t id;
} fatal;

static const char *const fault_names[] = {
#define X(name, text) text,
    FAULTS(X)
#undef X
};

/* ---- Time and trace ---- */

struct item {
    uint64_t when_us, order;
    sim_fn *fn;
    void *arg;
};

static struct item *heap;
static size_t heap_count, heap_room;
static uint64_t heap_order;
static char trace[TRACE_LINES][TRACE_TEXT];
static size_t trace_count;

void sim_trace(const char *format, ...)
{
    char *line = trace[trace_count++ % TRACE_LINES];
    va_list args;
    int used = snprintf(line, TRACE_TEXT, "%10.3f ", (double)s->now_us / 1000.0);

    va_start(args, format);
    (void)vsnprintf(line + used, TRACE_TEXT - (size_t)used, format, args);
    va_end(args);
    if (s->tracing)
        (void)puts(line);
}

_Noreturn void sim_fail(const char *format, ...)
{
    va_list args;

    for (size_t i = trace_count > TRACE_LINES ? trace_count - TRACE_LINES : 0; !s->tracing && i < trace_count; i++)
        (void)puts(trace[i % TRACE_LINES]);
    printf("%.3f ms: ", (double)s->now_us / 1000.0);
    va_start(args, format);
    (void)vprintf(format, args);
    va_end(args);
    printf("\nfaults:");
    for (int i = 0; i < FAULTS_COUNT; i++)
        if (s->on[i])
            printf(" %s", fault_names[i]);
    printf("\nreplay with: %s --place %s --seed 0x%" PRIx64, owner_program, s->place->name, s->seed);
    if (faults_list != NULL)
        printf(" --faults %s", faults_list);
    if (more_list != NULL)
        printf(" --more %s", more_list);
    if (fatal.at > 0)
        printf(" --kills %" PRIu64, fatal.at);
    printf(" --trace\n");
    exit(1);
}

uint64_t below(uint64_t bound)
{
    return mu_rng_below(&s->rng, bound);
}

bool chance(unsigned percent)
{
    return below(100) < percent;
}

static bool sooner(const struct item *a, const struct item *b)
{
    return a->when_us < b->when_us || (a->when_us == b->when_us && a->order < b->order);
}

void sim_at(uint64_t when_us, sim_fn *fn, void *arg)
{
    size_t at = heap_count++;
    struct item item = { when_us, heap_order++, fn, arg };

    if (heap_count > heap_room) {
        heap_room = heap_room == 0 ? 1024 : heap_room * 2;
        heap = realloc(heap, heap_room * sizeof *heap);
        if (heap == NULL)
            abort();
    }
    for (; at > 0 && sooner(&item, &heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = item;
}

static struct item pop(void)
{
    struct item first = heap[0], last = heap[--heap_count];
    size_t at = 0;

    for (size_t child; (child = 2 * at + 1) < heap_count; at = child) {
        if (child + 1 < heap_count && sooner(&heap[child + 1], &heap[child]))
            child++;
        if (!sooner(&heap[child], &last))
            break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return first;
}

static void run_until(uint64_t until_us)
{
    size_t at_once = 0;

    while (heap_count > 0 && heap[0].when_us <= until_us) {
        struct item item = pop();

        at_once = item.when_us > s->now_us ? 0 : at_once + 1;
        SIM_EXPECT(at_once < AT_ONCE_MAX, "a loop that never waits");
        if (item.when_us > s->now_us)
            s->now_us = item.when_us;
        item.fn(item.arg);
    }
    s->now_us = until_us;
}

void sim_run(uint64_t for_us)
{
    run_until(s->now_us + for_us);
}

/* ---- A leader that dies at one of its writes ---- */

static bool kill_node(struct node *node);

static void on_fatal(void *arg)
{
    (void)kill_node(arg);
}

/* Whoever calls is not done with the node. */
static void die(struct node *node)
{
    node->paused_until_us = s->now_us + 1;
    sim_at(s->now_us, on_fatal, node);
}

/* Also the one by which it takes the place. */
static bool is_leaders(const struct node *node, const struct mu_fold_write *write)
{
    bool takes_place = false;

    for (size_t i = 0; i < write->ops_count; i++)
        takes_place |= mu_slice_equal(write->ops[i].key, mu_slice_str("job/folder"));
    return mu_fold_is_leader(node->fold) || (takes_place && etcd_get("job/folder") == NULL);
}

/* Whether this is the write at which the node dies, and nobody hears of it. */
static bool dies_with(struct node *node, const struct mu_fold_effect *effect)
{
    if (fatal.at == 0 || effect->type != MU_FOLD_DO_WRITE || !is_leaders(node, effect->write) ||
        ++fatal.writes != fatal.at)
        return false;
    sim_trace("node %u: its last write%s", node->index, fatal.takes_effect ? "" : ", of which nobody hears");
    fatal.node = node;
    fatal.id = effect->id;
    if (!fatal.takes_effect)
        die(node);
    return !fatal.takes_effect;
}

static bool is_last_answer(const struct node *node, const struct mu_fold_event *event)
{
    return node == fatal.node && event->type == MU_FOLD_ON_WROTE && event->id == fatal.id;
}

/* ---- Nodes ---- */

bool is_cut(const struct node *node)
{
    return node->cut_until_us > s->now_us;
}

struct node *node_by_id(uint64_t id)
{
    for (size_t at = id % (2 * NODES_MAX); s->by_id[at] != 0; at = (at + 1) % (2 * NODES_MAX))
        if (s->nodes[s->by_id[at] - 1].id == id)
            return &s->nodes[s->by_id[at] - 1];
    return NULL;
}

static void note_id(const struct node *node)
{
    size_t at = node->id % (2 * NODES_MAX);

    while (s->by_id[at] != 0)
        at = (at + 1) % (2 * NODES_MAX);
    s->by_id[at] = (uint16_t)(node->index + 1);
}

static void on_tell(struct node *node, const struct mu_fold_effect *effect)
{
    const char *what = effect->type == MU_FOLD_DO_COMPLETED ? "completed"
                       : effect->type == MU_FOLD_DO_LEADER  ? "leader"
                                                            : mu_part_tell_text(effect->news.tell);

    sim_trace("node %u: %s round %" PRId64 " count %" PRId64, node->index, what, effect->news.round,
              effect->news.count);
    if (effect->type == MU_FOLD_DO_TELL)
        owner_hear(node, &effect->news);
}

static void on_timer(void *arg)
{
    struct node *node = arg;

    if (!node->alive || node->timer_us > s->now_us)
        return;
    node->timer_us = UINT64_MAX;
    feed(node, (struct mu_fold_event){ .type = MU_FOLD_ON_TIME });
}

static void arm(struct node *node)
{
    uint64_t when_ms = mu_fold_deadline_ms(node->fold);
    uint64_t when_us = when_ms == UINT64_MAX ? UINT64_MAX : when_ms * MS;

    if (when_us != UINT64_MAX && when_us < s->now_us)
        when_us = s->now_us;
    if (when_us == node->timer_us)
        return;
    node->timer_us = when_us;
    if (when_us != UINT64_MAX)
        sim_at(when_us, on_timer, node);
}

struct held_back {
    struct node *node;
    uint64_t id;
    struct mu_fold_event event;
};

static void on_resumed(void *arg)
{
    struct held_back *held = arg;

    if (held->node->alive && held->node->id == held->id)
        feed(held->node, held->event);
    free(held);
}

/* It closes its client, and meets the others in the document: that is another simulator's. */
static void on_moved(void *arg)
{
    struct node *node = arg;
    struct server *server = NULL;

    if (!node->alive)
        return;
    /* Who has lost the host of the store with its world was told so, and leaves it with the fold machine. */
    SIM_EXPECT(mu_fold_world(node->fold) == NULL || node->told_us != 0, "node %u is in a world after the job has moved",
               node->index);
    SIM_EXPECT(mu_fold_deadline_ms(node->fold) == UINT64_MAX, "node %u goes on after the job has moved", node->index);
    if (s->on_after_move)
        server = store_of(node);
    node_exits(node);
    if (s->on_after_move)
        outside_node_comes(node, server);
}

static const struct muster_error away = { .code = MUSTER_ECONNECT, .text = "etcd is away" };

void feed(struct node *node, struct mu_fold_event event)
{
    struct mu_fold_effects effects;

    if (node->paused_until_us > s->now_us) {
        struct held_back *held = calloc(1, sizeof *held);

        if (held == NULL)
            abort();
        if (event.error != NULL)
            event.error = &away;
        *held = (struct held_back){ node, node->id, event };
        sim_at(node->paused_until_us, on_resumed, held);
        return;
    }
    event.now_ms = s->now_us / MS;
    if (event.type != MU_FOLD_ON_TIME)
        sim_trace("node %u <- %s id %" PRIu64 "%s%s", node->index, mu_fold_event_text(event.type), event.id,
                  event.error != NULL ? ": " : "", event.error != NULL ? event.error->text : "");
    if (is_last_answer(node, &event)) {
        die(node);
        return;
    }
    if (owner_takes(node, &event))
        return;
    mu_fold_step(node->fold, &event, &effects);
    for (unsigned i = 0; i < effects.count; i++)
        if (effects.items[i].type < MU_FOLD_DO_TELL && !dies_with(node, &effects.items[i]))
            s->place->effect(node, &effects.items[i]);
    for (unsigned i = 0; i < effects.count; i++)
        if (effects.items[i].type >= MU_FOLD_DO_TELL)
            on_tell(node, &effects.items[i]);
    owner_heard(node);
    arm(node);
    if (mu_fold_has_moved(node->fold))
        sim_at(s->now_us, on_moved, node);
}

void node_report(struct node *node, const struct mu_part_report *report)
{
    node->report = *report;
    (void)snprintf(node->report_text, sizeof node->report_text, "%s", report->text != NULL ? report->text : "");
    node->report.text = node->report_text;
    switch (report->end) {
    case MU_PART_END_FAILED:
        node->failed_world = node->world;
        node->failed_us = 0;
        check_reports_failure(node->world);
        break;
    case MU_PART_END_DONE:
        node->done_world = node->world;
        break;
    case MU_PART_END_AGAIN:
        break;
    case MU_PART_END_LEFT:
    case MU_PART_END_LOST:
        node->left_world = node->world;
        break;
    }
    feed(node, (struct mu_fold_event){ .type = MU_FOLD_ON_REPORT, .report = &node->report });
}

static struct node *new_named(const struct mu_rdzv_settings *settings, uint64_t in_us, unsigned number)
{
    struct node *node = &s->nodes[s->nodes_count];
    struct mu_fold_config config = { .settings = *settings,
                                     .pid = 1000 + s->nodes_count,
                                     .local_id = 7,
                                     .id = mu_rng_next(&s->rng) | 1,
                                     .lease_ms = s->lease_ms,
                                     .job_lease_ms = s->job_lease_ms,
                                     .first_ms = 60000,
                                     .seed = mu_rng_next(&s->rng),
                                     .ops_max = s->ops_max,
                                     .tells_how = s->place == &place_store,
                                     .wants_names = s->names,
                                     .restart_window_s = s->window_s,
                                     .fence_ms = s->fence_ms };
    static const struct mu_doc_dialect dialect = MU_DOC_DIALECT_2_X;
    char name[32];

    if (s->on[F_STOCK])
        config.documents = &dialect;
    SIM_EXPECT(s->nodes_count < NODES_MAX, "too many nodes");
    (void)snprintf(name, sizeof name, "node%u", number);
    config.name = name;
    *node = (struct node){
        .index = s->nodes_count++, .number = number, .alive = true, .id = config.id, .settings = *settings
    };
    node->timer_us = UINT64_MAX;
    note_id(node);
    s->place->node_new(node, name);
    if (mu_fold_new(&config, &node->fold, NULL) < 0)
        abort();
    node->size = 1 + (int64_t)(config.id >> 8) % 3;
    (void)snprintf(node->role, sizeof node->role, "role%u", (unsigned)(config.id >> 16) % 2);
    node->report.end = MU_PART_END_FAILED;
    mu_fold_introduce(node->fold, &(struct mu_part_self){ node->role, node->size, s->max_restarts });
    owner_new(node, in_us);
    s->lives++;
    return node;
}

static struct node *new_node(const struct mu_rdzv_settings *settings, uint64_t in_us)
{
    return new_named(settings, in_us, s->nodes_count);
}

/* Whether its will was sent. */
static bool kill_node(struct node *node)
{
    bool sent;

    sim_trace("node %u is killed", node->index);
    node->alive = false;
    if (!node->was_marked) { /* who is done is not lost */
        node->killed_world = node->world;
        node->killed_us = s->now_us;
    }
    node->world = 0;
    sent = s->place->will != NULL && s->place->will(node);
    owner_gone(node);
    s->place->node_gone(node);
    mu_fold_free(node->fold);
    node->fold = NULL;
    return sent;
}

void node_exits(struct node *node)
{
    sim_trace("node %u exits", node->index);
    s->place->node_leaves(node);
    node->alive = false;
    if (node->report.end != MU_PART_END_DONE) {
        node->killed_world = node->world;
        node->killed_us = s->now_us;
    }
    node->world = 0;
    owner_gone(node);
    s->place->node_gone(node);
    mu_fold_free(node->fold);
    node->fold = NULL;
}

/* ---- The storm ---- */

static struct mu_rdzv_settings base;

/* Its limits contradict everybody else's: it can never be in, and nobody may be kept from anything by it. */
static bool is_odd(const struct node *node)
{
    return node->settings.nodes_min > base.nodes_max + 2;
}

static unsigned count_odd(void)
{
    unsigned count = 0;

    for (unsigned i = 0; i < s->nodes_count; i++)
        count += s->nodes[i].alive && s->nodes[i].owner != OWNER_ENDED && is_odd(&s->nodes[i]);
    return count;
}

static struct mu_rdzv_settings pick_settings(void)
{
    struct mu_rdzv_settings settings = base;

    /* Not for the first round, where whoever comes first says what is right; and never enough of them for one of their
     * own. */
    if (s->on[F_LIMITS] && s->worlds_count > 0 && count_odd() < ODD_MAX && chance(20)) {
        settings.nodes_min = settings.nodes_max = base.nodes_max + ODD_MAX + 1 + (int64_t)below(4);
    } else if (s->on[F_LIMITS] && chance(30)) {
        settings.nodes_min = 1 + (int64_t)below((uint64_t)base.nodes_min);
        settings.nodes_max = base.nodes_max + (int64_t)below(3);
    }
    return settings;
}

static struct node *pick_alive(void)
{
    for (int i = 0; i < 50; i++) {
        struct node *node = &s->nodes[below(s->nodes_count)];

        if (node->alive && node->owner != OWNER_ENDED)
            return node;
    }
    return NULL;
}

static void on_etcd_back(void *arg)
{
    (void)arg;
    if (!s->up && (!s->hosted || s->host != NULL))
        s->place->up();
}

static void begin_to_host(struct node *node)
{
    char text[32];

    (void)snprintf(text, sizeof text, "node%u_%u_7", node->index, 1000 + node->index);
    s->host = node;
    s->hosted = true;
    store_hosted_by(text);
}

static void on_host_back(void *arg)
{
    struct mu_rdzv_settings settings = s->calm ? base : pick_settings();

    (void)arg;
    if (s->over || s->host != NULL)
        return;
    begin_to_host(new_node(&settings, 0));
    sim_trace("node %u hosts the store now", s->host->index);
    s->place->up();
}

/* Its store goes with it, and another node will have its place. */
static void kill_host(uint64_t back_us)
{
    struct node *host = s->host;

    s->host = NULL;
    if (s->up)
        s->place->down(true);
    outside_node_dies(host);
    if (host->alive) /* else it has waited for the others to go */
        (void)kill_node(host);
    sim_at(s->now_us + back_us, on_host_back, NULL);
}

static void on_cut_over(void *arg)
{
    struct node *node = arg;

    if (node->alive && !is_cut(node) && s->up)
        s->place->hear(node, true);
}

static void cut_all(uint64_t for_us)
{
    sim_trace("all nodes are cut off");
    for (unsigned i = 0; i < s->nodes_count; i++)
        s->nodes[i].cut_until_us = s->now_us + for_us;
}

static void on_flap(void *arg);

/* Its agent is started again, with a new pid. */
static void bear_again(const struct node *killed, uint64_t in_us)
{
    struct mu_rdzv_settings settings = pick_settings();
    struct node *node = new_named(&settings, in_us, s->keeps_names ? killed->number : s->nodes_count);

    if (s->keeps_names && chance(60))
        sim_at(s->now_us + in_us + below(5 * SECOND), on_flap, node);
}

/* It comes and goes. */
static void on_flap(void *arg)
{
    struct node *node = arg;

    if (s->over || s->calm || !node->alive || node == s->host || s->nodes_count >= NODES_MAX / 2)
        return;
    if (node->owner != OWNER_RUNNING) {
        sim_at(s->now_us + SECOND, on_flap, node);
        return;
    }
    (void)kill_node(node);
    bear_again(node, below(2 * SECOND));
}

static void strike(enum fault fault)
{
    struct node *node = pick_alive();
    uint64_t long_us = below(3 * s->lease_ms * MS);

    if (node == NULL)
        return;
    switch (fault) {
    case F_KILL:
        if (node == s->host) {
            kill_host(long_us);
            break;
        }
        (void)kill_node(node);
        if (s->on[F_REBIRTH] && s->nodes_count < NODES_MAX / 2)
            bear_again(node, below(2 * s->lease_ms * MS));
        break;
    case F_PAUSE:
        sim_trace("node %u is paused", node->index);
        if (node->paused_until_us <= s->now_us) /* else what was held would come in another order */
            node->paused_until_us = s->now_us + long_us;
        break;
    case F_CUT:
        sim_trace("node %u is cut off", node->index);
        node->cut_until_us = s->now_us + long_us;
        s->place->hear(node, false);
        sim_at(node->cut_until_us, on_cut_over, node);
        break;
    case F_OUTAGE:
        if (s->place == &place_store) {
            cut_all(long_us);
            break;
        }
        /* fall through */
    case F_WIPE:
        if (!s->up || s->hosted)
            break;
        s->place->down(fault == F_WIPE);
        sim_at(s->now_us + long_us, on_etcd_back, NULL);
        break;
    case F_COMPACT:
        s->place->compact();
        break;
    case F_EXPIRE:
        s->place->expire();
        break;
    case F_LEAVE:
        owner_leaves(node, 0);
        break;
    case F_FAIL:
        if (node->owner != OWNER_RUNNING || node->report.end == MU_PART_END_DONE)
            break;
        owner_fails(node, chance(80));
        break;
    case F_DONE:
        if (node->owner == OWNER_RUNNING && node->world != node->failed_world)
            owner_is_done(node);
        break;
    case F_LATE:
        if (s->nodes_count < s->slots + 4) {
            struct mu_rdzv_settings settings = pick_settings();

            (void)new_node(&settings, 0);
        }
        break;
    case F_CLOSE:
        if (chance(20))
            owner_asks(node, MU_FOLD_ON_CLOSE);
        break;
    case F_RESET:
        store_break(node, 0);
        break;
    case F_LATEATTACH:
        store_break(node, MU_ENGINE_RECONNECT_MS * MS + below(2 * SECOND));
        break;
    case F_STAND:
    case F_EPOCH:
        if (!s->up)
            break;
        if (fault == F_EPOCH && s->host != NULL) {
            kill_host(long_us);
            break;
        }
        s->place->down(fault == F_EPOCH);
        sim_at(s->now_us + (fault == F_STAND ? 100 * MS + below(below(30 * SECOND)) : below(2 * s->lease_ms * MS)),
               on_etcd_back, NULL);
        break;
    case F_TWO:
        if (!s->up || s->hosted)
            break;
        store_split(1 + below(3 * s->lease_ms * MS));
        sim_at(s->now_us + below(2 * s->lease_ms * MS), on_etcd_back, NULL);
        break;
    default:
        break;
    }
}

/* The mark of a closed job stays: nobody could tell that it was there. */
static void scribble(const char *name)
{
    static const char *const nonsense[] = { "garbage", "", "[1, 2]", "{}", "{\"v\": 1}", "{\"v\": 2}" };
    uint64_t who;
    const struct key *key = etcd_get(name);
    bool closed =
        strcmp(name, "job/closed") == 0 && key != NULL && mu_fold_mark_read(mu_buf_slice(&key->value), &who, NULL) == 0;

    if (s->up && !closed)
        s->place->scribble(name, nonsense[below(sizeof nonsense / sizeof nonsense[0])]);
}

static const char *const job_keys[] = { "job/doc", "job/news", "job/folder", "job/closed" };

static void some_scribbling(void)
{
    char name[MU_FOLD_KEY_MAX];

    if (chance(70) || s->keys_count == 0) {
        scribble(job_keys[below(4)]);
        return;
    }
    (void)snprintf(name, sizeof name, "%s", s->keys[below(s->keys_count)].name);
    scribble(name);
}

static void storm(void *arg)
{
    static const enum fault acts[] = { F_KILL,
                                       F_PAUSE,
                                       F_CUT,
                                       F_OUTAGE,
                                       F_WIPE,
                                       F_COMPACT,
                                       F_EXPIRE,
                                       F_LEAVE,
                                       F_FAIL,
                                       F_DONE,
                                       F_LATE,
                                       F_CLOSE,
                                       /* of the store: */ F_RESET,
                                       F_LATEATTACH,
                                       F_STAND,
                                       F_EPOCH,
                                       F_TWO };
    enum fault fault = acts[below(s->place == &place_store ? sizeof acts / sizeof acts[0] : 12)];
    struct node *node;

    (void)arg;
    if (s->calm)
        return;
    s->place->tick();
    if (s->on[fault])
        strike(fault);
    if (s->on[F_STRANGER] && chance(40))
        some_scribbling();
    node = chance(5) ? pick_alive() : NULL;
    if (node != NULL)
        owner_asks(node, MU_FOLD_ON_LOOK);
    sim_at(s->now_us + below(s->lease_ms * MS), storm, NULL);
}

static void see_move(void)
{
    if (s->moved || s->on_after_move || etcd_get("job/moved") == NULL)
        return;
    sim_trace("the job has moved");
    s->moved = s->calm = true;
}

static void tick(void *arg)
{
    (void)arg;
    see_move();
    s->place->tick();
    check_fence();
    sim_at(s->now_us + 50 * MS, tick, NULL);
}

/* ---- The calm ---- */

static void renew(void *arg)
{
    (void)arg;
    if (s->up)
        s->place->renew();
    sim_at(s->now_us + RENEW_US, renew, NULL);
}

static size_t count_alive(void)
{
    size_t count = 0;

    for (unsigned i = 0; i < s->nodes_count; i++)
        count += s->nodes[i].alive && s->nodes[i].owner != OWNER_ENDED;
    return count;
}

/* NULL: everybody is where it belongs. Else what is missing. */
static const char *is_settled(void)
{
    struct mu_fold_world doc = { .id = 0 };
    const struct key *key = etcd_get("job/doc");
    int64_t alive = (int64_t)count_alive() - (int64_t)count_odd(), running = 0, min = 0, max = INT64_MAX;
    int64_t fresh = 0; /* not done: of these the next round is made */

    if (s->closed_ever)
        return NULL; /* who runs runs on, nobody joins */
    for (unsigned i = 0; i < s->nodes_count; i++) {
        const struct node *node = &s->nodes[i];

        if (!node->alive || node->owner == OWNER_ENDED || is_odd(node))
            continue;
        if (node->owner != OWNER_RUNNING && node->owner != OWNER_JOINING)
            return "a node neither runs nor joins";
        fresh += node->report.end != MU_PART_END_DONE;
        min = node->settings.nodes_min > min ? node->settings.nodes_min : min;
        max = node->settings.nodes_max < max ? node->settings.nodes_max : max;
    }
    if (alive == 0 || alive < min)
        return NULL;
    if (key != NULL && s->on[F_STRANGER] && key->lease == 0)
        key = NULL;
    if (key == NULL && count_odd() > 0)
        return NULL; /* the first round again */
    if (key == NULL || mu_fold_world_read(mu_buf_slice(&key->value), &doc, NULL) < 0)
        return "there is no document";
    for (unsigned i = 0; i < s->nodes_count; i++) {
        const struct node *node = &s->nodes[i];

        if (!node->alive || node->owner != OWNER_RUNNING)
            continue;
        running++;
        if (node->world != doc.id)
            return "a node runs in another world";
    }
    if (running + (int64_t)check_done_and_gone(doc.id) != doc.nodes)
        return "not all members run";
    if (s->on[F_LIMITS] || fresh < min)
        return NULL;
    return running == (alive < max ? alive : max) ? NULL : "a node could be in and is not";
}

static void settle(void)
{
    uint64_t held_us = s->keeps_names ? MU_SLOWDOWN_HOLD_MAX_MS * MS : 0; /* who has come and gone is held off */
    uint64_t until_us = s->now_us + 400 * SECOND + held_us;
    const char *missing;

    while ((missing = is_settled()) != NULL) {
        SIM_EXPECT(s->now_us < until_us, "after 400 s of calm: %s", missing);
        run_until(s->now_us + 250 * MS);
    }
}

/* They may be let in at any time. */
static bool somebody_waits(void)
{
    for (unsigned i = 0; i < s->nodes_count; i++)
        if (s->nodes[i].alive && s->nodes[i].owner != OWNER_RUNNING && s->nodes[i].owner != OWNER_ENDED &&
            !is_odd(&s->nodes[i]))
            return true;
    return false;
}

/* A node comes whose limits contradict the members', or which wants more nodes than there are: nobody is disturbed. */
static void odd_one_comes(size_t world_count)
{
    struct mu_rdzv_settings settings = base;

    if (somebody_waits())
        return;
    settings.nodes_min = (int64_t)world_count + 2 + (int64_t)below(4);
    settings.nodes_max = settings.nodes_min + (int64_t)below(4);
    sim_trace("last act: a node comes that wants %" PRId64 " to %" PRId64, settings.nodes_min, settings.nodes_max);
    (void)new_node(&settings, 0);
    run_until(s->now_us + 90 * SECOND);
    for (unsigned i = 0; i < s->nodes_count; i++)
        SIM_EXPECT(!s->nodes[i].alive || s->nodes[i].world == 0 || s->nodes[i].tells == 0,
                   "node %u was disturbed by one that cannot be let in", s->nodes[i].index);
}

/* All of them at once, and nobody is disturbed: each node makes another in time. */
static void connections_break(void)
{
    sim_trace("last act: all connections break");
    for (unsigned i = 0; i < s->nodes_count; i++)
        if (s->nodes[i].alive)
            store_break(&s->nodes[i], below(SECOND));
    run_until(s->now_us + 2 * s->lease_ms * MS);
    for (unsigned i = 0; i < s->nodes_count; i++)
        SIM_EXPECT(!s->nodes[i].alive || s->nodes[i].world == 0 || s->nodes[i].tells == 0,
                   "node %u was disturbed by connections that broke", s->nodes[i].index);
    SIM_EXPECT(is_settled() == NULL, "after connections broke: %s", is_settled());
}

/* Whatever those with the old server have begun meanwhile, in the end all run in one world of the new one's. */
static void two_servers(void)
{
    sim_trace("last act: two servers");
    store_split(1 + below(5 * s->lease_ms * MS));
    run_until(s->now_us + below(2 * s->lease_ms * MS));
    s->place->up();
    run_until(s->now_us + 5 * s->lease_ms * MS);
    settle();
}

/* One thing happens to a round that runs; who must be told is told in time, and nobody else. */
static void last_act(void)
{
    struct node *victim = NULL;
    uint64_t from_us, told_max_us;
    bool willed = false;
    static bool was_in[NODES_MAX];
    uint64_t world;
    unsigned act = (unsigned)below(s->on[F_LIMITS] ? 2 : s->place == &place_store ? 7 : 5);
    bool stops = s->fence_ms > 0 && (act == 2 || act == 3 || act == 5); /* everybody may, while nothing is heard */

    for (unsigned i = 0; i < s->nodes_count; i++) {
        if (s->nodes[i].alive && s->nodes[i].owner == OWNER_RUNNING && s->nodes[i].report.end != MU_PART_END_DONE &&
            (victim == NULL || chance(30)))
            victim = &s->nodes[i];
        s->nodes[i].tells = s->nodes[i].told_us = 0;
    }
    if (s->closed_ever || victim == NULL || victim->world_count < 2 || stops)
        return;
    run_until(s->now_us + 30 * SECOND);
    if (is_settled() != NULL || victim->owner != OWNER_RUNNING)
        return;
    if (act == 2 && check_done_and_gone(victim->world) > 0)
        return; /* that they were done is lost with the data */
    for (unsigned i = 0; i < s->nodes_count; i++) {
        s->nodes[i].tells = s->nodes[i].told_us = 0;
        s->nodes[i].silent_world = 0;
        was_in[i] = s->nodes[i].alive && s->nodes[i].world == victim->world;
    }
    if (act == 4) {
        odd_one_comes(victim->world_count);
        return;
    }
    if (act == 5) {
        connections_break();
        return;
    }
    if (act == 6) {
        two_servers();
        return;
    }
    from_us = s->now_us;
    world = victim->world;
    sim_trace("last act: %s", act == 0 ? "a member is killed" : act == 1 ? "a member leaves" : "etcd was away");
    if (act == 0) {
        willed = kill_node(victim);
        told_max_us = (willed ? MU_FOLD_CROWN_MAX_MS + 100 : s->lease_ms + 1000) * MS;
    } else if (act == 1) {
        owner_leaves(victim, 0);
        told_max_us = (50 + 2 * MU_FOLD_RETRY_MS) * MS + owner_leave_us; /* a request may have to be made again */
    } else {
        s->place->down(act == 2);
        run_until(s->now_us + s->lease_ms * MS * 2);
        s->place->up();
        run_until(s->now_us + 5 * s->lease_ms * MS);
        for (unsigned i = 0; i < s->nodes_count; i++)
            SIM_EXPECT(!s->nodes[i].alive || s->nodes[i].world == 0 || s->nodes[i].tells == 0,
                       "node %u was disturbed by an etcd that was away", s->nodes[i].index);
        SIM_EXPECT(is_settled() == NULL, "after etcd was away: %s", is_settled());
        return;
    }
    if (s->on[F_STRANGER]) /* a new leader that finds a page broken puts the world back first, and waits for it */
        told_max_us += 2 * s->lease_ms * MS;
    run_until(s->now_us + told_max_us + 5 * SECOND);
    for (unsigned i = 0; i < s->nodes_count; i++) {
        const struct node *node = &s->nodes[i];

        if (!was_in[i] || node == victim)
            continue;
        SIM_EXPECT(node->told_us != 0, "node %u was not told", node->index);
        SIM_EXPECT(node->told_us - from_us <= told_max_us, "node %u was told after %" PRIu64 " us", node->index,
                   node->told_us - from_us);
        SIM_EXPECT(!willed || node->silent_world != world, "node %u was told of a silence, and an agent was killed",
                   node->index);
        SIM_EXPECT(victim->left_world != world || s->on[F_STRANGER] || node->silent_world != world,
                   "node %u was told of a silence, and a node has said that it leaves", node->index);
    }
    settle();
}

/* Somebody overwrites the keys of a round that runs: nobody is disturbed. */
static void stranger_comes(void)
{
    if (s->closed_ever || is_settled() != NULL)
        return;
    run_until(s->now_us + 30 * SECOND);
    if (is_settled() != NULL || somebody_waits())
        return;
    for (unsigned i = 0; i < s->nodes_count; i++) {
        if (s->nodes[i].alive && s->nodes[i].owner == OWNER_RUNNING && !check_has_record(&s->nodes[i]))
            return; /* overwritten while nobody led: it counts as gone when the next one leads */
        s->nodes[i].tells = 0;
    }
    for (size_t i = 0; i < 4; i++) {
        scribble(job_keys[i]);
        run_until(s->now_us + below(2 * SECOND));
    }
    run_until(s->now_us + 5 * s->lease_ms * MS);
    for (unsigned i = 0; i < s->nodes_count; i++)
        SIM_EXPECT(!s->nodes[i].alive || s->nodes[i].world == 0 || s->nodes[i].tells == 0,
                   "node %u was disturbed by a stranger", s->nodes[i].index);
    settle();
}

static struct mu_fold_world read_world(void)
{
    struct mu_fold_world world = { .id = 0 };
    const struct key *key = etcd_get("job/doc");

    SIM_EXPECT(key != NULL && mu_fold_world_read(mu_buf_slice(&key->value), &world, NULL) == 0, "there is no document");
    return world;
}

/* The host of the store is killed, and soon another node hosts an empty one: what was known of the job comes back with
 * the others, and all run again at no cost. */
static void host_dies(void)
{
    struct mu_fold_world before, after;
    size_t members = 0;

    if (s->closed_ever || s->on[F_STRANGER] || s->on[F_LIMITS] || s->nodes_count >= NODES_MAX / 2)
        return;
    if (base.nodes_min < 2)
        return; /* whoever hosts the next store may begin alone before the others are back */
    run_until(s->now_us + 30 * SECOND);
    if (is_settled() != NULL || somebody_waits() || !s->host->alive || s->host->owner != OWNER_RUNNING ||
        s->host->world_count < 2)
        return;
    if (check_done_and_gone(s->host->world) > 0)
        return; /* that is lost with the store */
    for (unsigned i = 0; i < s->nodes_count; i++) {
        if (s->nodes[i].alive && s->nodes[i].report.end == MU_PART_END_DONE)
            return; /* and this */
        members += s->nodes[i].alive && s->nodes[i].world == s->host->world;
    }
    if (members < s->host->world_count)
        return;
    before = read_world();
    sim_trace("last act: the host of the store is killed");
    kill_host(below(5 * SECOND));
    run_until(s->now_us + 10 * SECOND);
    settle();
    after = read_world();
    SIM_EXPECT(after.round > before.round, "round %" PRId64 " follows round %" PRId64, after.round, before.round);
    SIM_EXPECT(after.count == before.count, "%" PRId64 " restarts, and there were %" PRId64, after.count, before.count);
}

static void everybody_goes(void)
{
    for (unsigned i = 0; i < s->nodes_count; i++) {
        if (!s->nodes[i].alive)
            continue;
        if (chance(50))
            (void)kill_node(&s->nodes[i]);
        else
            owner_leaves(&s->nodes[i], below(SECOND));
    }
    run_until(s->now_us + (s->job_lease_ms + 4 * s->lease_ms + 10000) * MS);
    s->place->tick();
    for (size_t i = s->keys_count; s->on[F_STRANGER] && i-- > 0;)
        if (s->keys[i].lease == 0)
            s->keys_count--, mu_buf_done(&s->keys[i].value), s->keys[i] = s->keys[s->keys_count];
    SIM_EXPECT(s->keys_count == 0, "%zu keys are left behind, one is %s", s->keys_count, s->keys[0].name);
}

/* PyTorch nodes, by a stream of their own: what else happens is what it was without them. */
static void on_stock(void *arg)
{
    (void)arg;
    if (s->over || s->calm)
        return;
    if (mu_rng_below(&s->stock, 100) < 60)
        outside_stock_comes(mu_rng_below(&s->stock, 100) < 20);
    else
        outside_stock_goes();
    sim_at(s->now_us + mu_rng_below(&s->stock, 4 * s->lease_ms * MS), on_stock, NULL);
}

static void newcomer(uint64_t in_us)
{
    struct mu_rdzv_settings settings = pick_settings();

    if (count_alive() < s->slots && s->nodes_count < NODES_MAX / 2)
        (void)new_node(&settings, in_us);
}

/* The store is lost, also if nobody is in its engine any more. Newcomers may be the first at the next one. */
static void lose_store(void)
{
    uint64_t back_us = mu_rng_below(&s->stock, 2 * s->lease_ms * MS);

    if (!s->up)
        return;
    if (s->host != NULL) {
        kill_host(back_us);
    } else if (s->on[F_EPOCH] || s->on[F_WIPE]) {
        s->place->down(true);
        sim_at(s->now_us + back_us, on_etcd_back, NULL);
    }
    for (uint64_t i = mu_rng_below(&s->stock, s->slots + 1); i > 0; i--)
        newcomer(mu_rng_below(&s->stock, 100 * MS));
}

/* What happens to a job that goes on in documents, and may lose them. */
static void after_move(void *arg)
{
    unsigned act = (unsigned)mu_rng_below(&s->stock, 100);

    (void)arg;
    if (s->over || s->calm)
        return;
    if (act < 40)
        newcomer(0);
    else if (act < 50)
        outside_one_dies();
    else if (act < 80)
        lose_store();
    sim_at(s->now_us + mu_rng_below(&s->stock, 2 * s->lease_ms * MS), after_move, NULL);
}

/* NULL: all meet in one place, in the engine or in a document. Else what is missing. */
static const char *is_together(void)
{
    const struct key *key = etcd_get("job/doc");
    struct mu_fold_world doc = { .id = 0 };

    if (store_has_moved()) {
        for (unsigned i = 0; i < s->nodes_count; i++)
            if (s->nodes[i].alive && s->nodes[i].owner != OWNER_ENDED)
                return "a node has not heard that the job has moved";
        return outside_waiting() > 0 ? "somebody waits for a document that is there" : NULL;
    }
    if (s->closed_ever)
        return NULL;
    if (outside_waiting() == 0)
        return is_settled();
    if (key == NULL || mu_fold_world_read(mu_buf_slice(&key->value), &doc, NULL) < 0)
        return "there is neither a round nor a document";
    if (doc.nodes < base.nodes_max && !s->on[F_LIMITS])
        return "somebody waits for a document, and there is a place";
    return is_settled();
}

static void meet_anywhere(void)
{
    uint64_t held_us = s->keeps_names ? MU_SLOWDOWN_HOLD_MAX_MS * MS : 0; /* as in settle() */
    uint64_t until_us = s->now_us + 400 * SECOND + held_us;
    const char *missing;

    while ((missing = is_together()) != NULL) {
        SIM_EXPECT(s->now_us < until_us, "after 400 s of calm: %s", missing);
        run_until(s->now_us + 250 * MS);
    }
}

/* ---- A seed ---- */

static void clean_up(void)
{
    while (heap_count > 0) { /* what is under way owns its memory: let it come to nothing */
        struct item item;

        for (unsigned i = 0; i < s->nodes_count; i++)
            if (s->nodes[i].alive)
                (void)kill_node(&s->nodes[i]);
        s->up = false;
        s->over = true;
        item = pop();
        if (item.fn != tick && item.fn != storm && item.fn != renew && item.fn != on_stock && item.fn != after_move)
            item.fn(item.arg);
    }
    for (size_t i = 0; i < s->worlds_count; i++)
        free(s->worlds[i].members);
    s->worlds_count = 0;
    s->nodes_count = 0;
}

static void begin(uint64_t seed)
{
    bool tracing = s->tracing;
    uint64_t joins = s->joins, lives = s->lives;

    if (s->place != NULL)
        s->place->free();
    memset(s, 0, sizeof *s);
    s->tracing = tracing;
    s->joins = joins;
    s->lives = lives;
    s->seed = seed;
    s->rng = mu_rng_seeded(seed);
    s->more = mu_rng_seeded(~seed);
    s->counts_on = mu_rng_below(&s->more, 100) < 30;
    s->wills = mu_rng_below(&s->more, 100) < 50;
    s->fence_percent = mu_rng_below(&s->more, 100) < 25 ? 40 + mu_rng_below(&s->more, 200) : 0;
    s->place = mu_rng_below(&s->more, 2) == 0 ? &place_etcd : &place_store;
    if (place_wanted != NULL)
        s->place = place_wanted;
    s->now_us = SECOND;
    trace_count = 0;
    s->place->reset();
    check_reset();
}

/* Everybody hears of it in time: also who was paused or cut off. Nobody runs on. */
static void check_moved(void)
{
    run_until(s->now_us + 8 * s->lease_ms * MS);
    for (unsigned i = 0; i < s->nodes_count; i++)
        SIM_EXPECT(!s->nodes[i].alive || s->nodes[i].owner == OWNER_IDLE || s->nodes[i].owner == OWNER_ENDED,
                   "node %u has not heard that the job has moved", i);
}

/* With all that is in them. */
static bool stores_are_lost(void)
{
    return s->on[F_HOSTED] || s->on[F_TWO] || s->on[F_EPOCH] || s->on[F_WIPE];
}

static void run_seed(uint64_t seed)
{
    struct mu_rng hosts = mu_rng_seeded(seed ^ 0x686f737473), windows = mu_rng_seeded(seed ^ 0x77696e646f77),
                  named = mu_rng_seeded(seed ^ 0x6e616d6573), moves = mu_rng_seeded(seed ^ 0x6c6f7339);
    unsigned percent;

    begin(seed);
    s->lease_ms = 2000 + below(9) * 1000;
    s->fence_ms = s->lease_ms * s->fence_percent / 100;
    s->job_lease_ms = 6 * s->lease_ms + 20000;
    s->ops_max = chance(50) ? MU_FOLD_OPS_MIN + below(8) : 128;
    s->names = chance(50);
    s->max_restarts = chance(85) ? 1000 : (int64_t)below(4);
    s->keeps_names = mu_rng_below(&named, 100) < 40;
    s->window_s = mu_rng_below(&windows, 100) < 20 ? 1 + mu_rng_below(&windows, 60) : 0;
    if (s->window_s > 0 && s->max_restarts > MU_FOLD_CHARGES_MAX)
        s->max_restarts = 1 + (int64_t)mu_rng_below(&windows, MU_FOLD_CHARGES_MAX);
    percent = (unsigned)below(70);
    for (int i = 0; i < F_STRANGER; i++)
        s->on[i] = faults_given ? faults_wanted[i] : chance(percent);
    s->on[F_STRANGER] = faults_wanted[F_STRANGER];
    for (int i = F_STRANGER + 1; i < F_STOCK && s->place == &place_store; i++)
        s->on[i] = faults_given ? faults_wanted[i] : mu_rng_below(&s->more, 100) < percent;
    if (s->place == &place_store)
        s->on[F_HOSTED] = faults_given ? faults_wanted[F_HOSTED] : mu_rng_below(&hosts, 100) < 25;
    s->stock = mu_rng_seeded(seed ^ 0x73746f636b);
    if (s->place == &place_store)
        s->on[F_STOCK] =
            faults_given ? faults_wanted[F_STOCK] : mu_rng_below(stores_are_lost() ? &moves : &s->stock, 100) < 25;
    for (int i = 0; i < FAULTS_COUNT; i++)
        s->on[i] |= faults_wanted[i] && (i <= F_STRANGER || s->place == &place_store);
    s->on_after_move = s->on[F_STOCK] && stores_are_lost();
    owner_begin();
    base = MU_RDZV_SETTINGS_DEFAULT;
    base.nodes_max = 1 + (int64_t)below(8);
    base.nodes_min = 1 + (int64_t)below((uint64_t)base.nodes_max);
    base.last_call_ms = below(2) * 5000 + below(1000);
    base.join_ms = chance(20) ? 20000 : 600000;
    base.lost_node_wait_ms = chance(20) ? below(5000) : 0;
    s->slots = (unsigned)base.nodes_min + (unsigned)below((uint64_t)(base.nodes_max - base.nodes_min) + 1);
    if (s->on[F_SPARES])
        s->slots = (unsigned)base.nodes_max + 1 + (unsigned)below(3);
    for (unsigned i = 0; i < s->slots; i++) {
        struct mu_rdzv_settings settings = pick_settings();

        (void)new_node(&settings, below(chance(20) ? 5 * SECOND : 100 * MS));
    }
    if (s->on[F_HOSTED])
        begin_to_host(&s->nodes[0]);
    sim_at(s->now_us, tick, NULL);
    sim_at(s->now_us + below(2 * SECOND), storm, NULL);
    if (s->on[F_STOCK])
        sim_at(s->now_us + mu_rng_below(&s->stock, 10 * SECOND), on_stock, NULL);
    if (s->on_after_move)
        sim_at(s->now_us + mu_rng_below(&s->stock, 10 * SECOND), after_move, NULL);
    run_until(s->now_us + below(20 * s->lease_ms) * MS);
    sim_trace("calm");
    s->calm = true;
    s->calm_us = s->now_us;
    if (s->on[F_COMPACT])
        sim_at(s->now_us, renew, NULL);
    run_until(s->now_us + 4 * s->lease_ms * MS);
    if (s->hosted)
        on_host_back(NULL);
    if (!s->up)
        s->place->up();
    if (s->on[F_STOCK] && (!s->on_after_move || mu_rng_below(&s->stock, 2) == 0))
        while (!s->moved && outside_has_stock())
            outside_stock_goes();
    see_move();
    if (s->moved)
        check_moved();
    else if (s->on_after_move)
        meet_anywhere();
    if (s->moved || (s->on_after_move && (store_has_moved() || outside_waiting() > 0))) {
        clean_up();
        return;
    }
    settle();
    if (s->on[F_STRANGER])
        stranger_comes();
    if (s->hosted)
        host_dies();
    else
        last_act();
    owner_finish();
    everybody_goes();
    clean_up();
}

static int usage(void)
{
    (void)fprintf(stderr,
                  "usage: %s [--seed N] [--seeds N] [--time SECONDS] [--crowd N,N...] [--kills FIRST] "
                  "[--faults LIST] [--more LIST] [--place etcd|store] [--trace]\n",
                  owner_program);
    return 2;
}

/* The most that was sent to a node that does not lead, since it was asked last. */
static uint64_t most_bytes(void)
{
    uint64_t most = 0;

    for (unsigned i = 0; i < s->nodes_count; i++) {
        if (!mu_fold_is_leader(s->nodes[i].fold) && s->nodes[i].bytes > most)
            most = s->nodes[i].bytes;
        s->nodes[i].bytes = 0;
    }
    return most;
}

static bool all_run(uint64_t not_in)
{
    for (unsigned i = 0; i < s->nodes_count; i++)
        if (s->nodes[i].owner != OWNER_RUNNING || s->nodes[i].world == not_in)
            return false;
    return true;
}

/* One worker fails, and all run again; the most bytes that this takes for a node. */
static uint64_t restart_crowd(void)
{
    uint64_t from_us = s->now_us, world = s->nodes[0].world, formed = most_bytes(), most;
    struct node *victim = &s->nodes[mu_fold_is_leader(s->nodes[0].fold)];

    owner_fails(victim, true);
    while (!all_run(world)) {
        SIM_EXPECT(s->now_us < from_us + 60 * SECOND, "after a minute not all run again");
        run_until(s->now_us + 5 * MS);
    }
    most = most_bytes();
    printf("sim_fold: ... and run again within %" PRIu64 " ms; to no node but the leader were sent more than %" PRIu64
           " bytes for the first round, %" PRIu64 " for the next\n",
           (s->now_us - from_us) / MS, formed, most);
    SIM_EXPECT(most <= RESTART_BYTES_MAX, "more than %d", RESTART_BYTES_MAX);
    return most;
}

/* The bytes for a restart. */
static uint64_t run_crowd(uint64_t seed, unsigned count)
{
    uint64_t start_us, bytes;

    begin(seed);
    s->lease_ms = 10000;
    s->job_lease_ms = 60000;
    s->ops_max = s->place == &place_store ? MU_ENGINE_OPS_MAX : 128;
    s->names = false;
    s->max_restarts = 3;
    s->calm = s->crowd = true;
    base = MU_RDZV_SETTINGS_DEFAULT;
    base.nodes_min = base.nodes_max = count;
    start_us = s->now_us;
    for (unsigned i = 0; i < count; i++)
        (void)new_node(&base, below(100 * MS));
    sim_at(s->now_us, tick, NULL);
    settle();
    printf("sim_fold: %u nodes complete a round within %" PRIu64 " ms (to 250 ms)", count, (s->now_us - start_us) / MS);
    if (s->place == &place_etcd)
        printf(", %.2f raft proposals a node", (double)s->proposals / count);
    printf("\n");
    if (s->proposals > 3 * (uint64_t)count)
        sim_fail("more than 3 proposals a node");
    bytes = restart_crowd();
    clean_up();
    return bytes;
}

/* What a node is sent does not depend on how many they are. */
static void run_crowds(uint64_t seed, const char *counts)
{
    uint64_t least = UINT64_MAX, most = 0;
    char *end;

    if (place_wanted == NULL)
        place_wanted = &place_etcd;
    for (const char *at = counts; *at != '\0'; at = *end == ',' ? end + 1 : end) {
        unsigned count = (unsigned)strtoul(at, &end, 0);
        uint64_t bytes;

        if (end == at || count == 0 || count > NODES_MAX)
            exit(usage());
        bytes = run_crowd(seed, count);
        least = bytes < least ? bytes : least;
        most = bytes > most ? bytes : most;
    }
    SIM_EXPECT(most <= least + RESTART_BYTES_APART_MAX, "from %" PRIu64 " to %" PRIu64 " bytes", least, most);
}

/* ---- Jobs whose leader dies at one of its writes ---- */

struct left { /* of worlds */
    uint64_t world;
    int64_t seats;
};

static void check_left(const struct key *key, void *ctx)
{
    struct left *left = ctx;
    bool is_seat = key->name[0] == 's';
    uint64_t world = 0;

    SIM_EXPECT(mu_fold_id_parse(mu_slice(strchr(key->name, '/') + 1, 16), &world) && world == left->world,
               "%s is left of a world that was given up", key->name);
    left->seats += is_seat;
}

/* All who are alive run in one world, each has one seat in it, and nothing is left of any other. */
static struct mu_fold_world settled_world(void)
{
    struct mu_fold_world world;
    struct left left;

    settle();
    run_until(s->now_us + SECOND); /* whatever else the leader writes */
    settle();
    world = read_world();
    left = (struct left){ .world = world.id };
    etcd_each("seat/", check_left, &left);
    etcd_each("member/", check_left, &left);
    SIM_EXPECT(left.seats == world.nodes, "%" PRId64 " seats for %" PRId64 " nodes", left.seats, world.nodes);
    return world;
}

static bool has_died(void)
{
    return fatal.node != NULL && !fatal.node->alive;
}

static struct node *pick_follower(void)
{
    for (unsigned i = 0; i < s->nodes_count; i++)
        if (s->nodes[i].alive && s->nodes[i].owner == OWNER_RUNNING && !mu_fold_is_leader(s->nodes[i].fold))
            return &s->nodes[i];
    sim_fail("nobody runs");
}

/* A worker fails: that costs one restart, and none if the leader was lost beside it. */
static void fail_once(void)
{
    int64_t count = read_world().count;
    bool had_died = has_died();

    owner_fails(pick_follower(), true);
    count = settled_world().count - count;
    SIM_EXPECT(count == 1 || (count == 0 && has_died() && !had_died), "a failure costs %" PRId64 " restarts", count);
}

static void lose_one(void)
{
    int64_t count = read_world().count;

    (void)kill_node(pick_follower());
    SIM_EXPECT(settled_world().count == count, "a loss costs a restart");
}

/* No restart is left: the job is over with the next failure, or with the one after it if that one was excused. */
static void fail_for_good(void)
{
    for (unsigned tries = 0; !s->closed_ever; tries++) {
        SIM_EXPECT(tries < (has_died() ? 3 : 2), "the job goes on after its last failure");
        owner_fails(pick_follower(), true);
        run_until(s->now_us + 2 * s->lease_ms * MS);
        settle();
    }
}

/* All workers are done. If the leader was lost before it was, a spare does the work again. */
static void succeed(uint64_t world)
{
    bool had_died = has_died();

    for (unsigned tries = 0; !s->closed_ever; tries++) {
        SIM_EXPECT(tries < (has_died() ? 3 : 2), "the job goes on after all were done");
        for (unsigned i = 0; i < s->nodes_count; i++) {
            struct node *node = &s->nodes[i];

            if (!node->alive || node->owner != OWNER_RUNNING || node->report.end == MU_PART_END_DONE)
                continue;
            owner_is_done(node);
            run_until(s->now_us + below(2 * MS));
        }
        run_until(s->now_us + 2 * s->lease_ms * MS);
        settle();
    }
    SIM_EXPECT(read_world().id == world || (has_died() && !had_died && !check_has_done_mark(fatal.node)),
               "a round begins after all were done");
}

static void check_verdict(bool succeeded)
{
    const struct key *key = etcd_get("job/closed");
    struct mu_fold_closed closed = { .node = 0 };

    SIM_EXPECT(key != NULL && mu_fold_closed_read(mu_buf_slice(&key->value), &closed, NULL) == 0 &&
                   closed.has_verdict && closed.succeeded == succeeded,
               "the job has another verdict, or none");
    SIM_EXPECT(key->create == key->mod, "the verdict was written more than once");
    for (unsigned i = 0; i < s->nodes_count; i++)
        SIM_EXPECT(!s->nodes[i].done || check_has_done_mark(&s->nodes[i]), "the done mark of node %u is gone", i);
}

/* A job with a failure and a loss. False: its leaders do not write that often, so nobody has died. */
static bool run_killed(uint64_t seed, uint64_t at, bool takes_effect, bool succeeds)
{
    begin(seed);
    memset(&fatal, 0, sizeof fatal);
    fatal.at = at;
    fatal.takes_effect = takes_effect;
    sim_trace("a leader dies at its write %" PRIu64 ", which %s; then the job %s", at,
              takes_effect ? "takes effect" : "does not take effect", succeeds ? "succeeds" : "fails");
    s->lease_ms = 10000;
    s->job_lease_ms = 60000;
    s->ops_max = MU_FOLD_OPS_MIN;
    s->max_restarts = 1;
    s->calm = true;
    owner_begin();
    base = MU_RDZV_SETTINGS_DEFAULT;
    base.nodes_min = 1;
    base.nodes_max = MEMBERS;
    for (unsigned i = 0; i < MEMBERS + 2; i++) /* with two spares: one is left when a member and the leader are gone */
        (void)new_node(&base, below(100 * MS));
    sim_at(s->now_us, tick, NULL);
    SIM_EXPECT(settled_world().count == 0, "a restart is charged before anything has failed");
    fail_once();
    lose_one();
    if (succeeds)
        succeed(read_world().id);
    else
        fail_for_good();
    check_verdict(succeeds);
    SIM_EXPECT(fatal.writes < at || has_died(), "the leader lives");
    clean_up();
    return fatal.writes >= at;
}

static void run_kills(uint64_t seed, uint64_t first)
{
    uint64_t at = first, runs = 0;
    unsigned died;

    do {
        died = 0;
        for (unsigned i = 0; i < 4; i++, runs++) /* both ways to die, and both ends */
            died += run_killed(seed, at, (i & 1) != 0, (i & 2) != 0);
    } while (died > 0 && at++ > 0);
    printf("%s: %" PRIu64 " jobs, whose leader dies at one of its %" PRIu64 " writes\n", owner_program, runs, at - 1);
}

/* ---- The command line ---- */

static bool take_faults(const char *list)
{
    char copy[512];

    (void)snprintf(copy, sizeof copy, "%s", list);
    for (char *save = NULL, *name = strtok_r(copy, ", ", &save); name != NULL; name = strtok_r(NULL, ", ", &save)) {
        bool known = strcmp(name, "none") == 0;

        for (int i = 0; i < FAULTS_COUNT; i++) {
            if (strcmp(name, fault_names[i]) != 0)
                continue;
            faults_wanted[i] = known = true;
        }
        if (!known)
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    uint64_t seed = 0, seeds = 1, runs = 0;
    const char *crowd = NULL, *kills = NULL;
    double limit = 0, start = sim_seconds(), took;
    bool given = false;

    s = calloc(1, sizeof *s);
    if (s == NULL)
        abort();
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;

        if (strcmp(argv[i], "--trace") == 0) {
            s->tracing = true;
            continue;
        }
        if (value == NULL)
            return usage();
        i++;
        if (strcmp(argv[i - 1], "--seed") == 0)
            seed = strtoull(value, NULL, 0), given = true;
        else if (strcmp(argv[i - 1], "--seeds") == 0)
            seeds = strtoull(value, NULL, 0);
        else if (strcmp(argv[i - 1], "--time") == 0)
            limit = strtod(value, NULL);
        else if (strcmp(argv[i - 1], "--crowd") == 0)
            crowd = value;
        else if (strcmp(argv[i - 1], "--kills") == 0)
            kills = value;
        else if (strcmp(argv[i - 1], "--place") == 0 && strcmp(value, "etcd") == 0)
            place_wanted = &place_etcd;
        else if (strcmp(argv[i - 1], "--place") == 0 && strcmp(value, "store") == 0)
            place_wanted = &place_store;
        else if (strcmp(argv[i - 1], "--faults") == 0 && take_faults(value))
            faults_list = value, faults_given = true;
        else if (strcmp(argv[i - 1], "--more") == 0 && take_faults(value))
            more_list = value;
        else
            return usage();
    }
    if (limit > 0 && !given)
        seed = sim_fresh_seed();
    if (crowd != NULL) {
        run_crowds(seed, crowd);
    } else if (kills != NULL) {
        if (strtoull(kills, NULL, 0) == 0)
            return usage();
        for (; runs < seeds; runs++)
            run_kills(seed + runs, strtoull(kills, NULL, 0));
    } else {
        do {
            run_seed(seed + runs);
            runs++;
            took = sim_seconds() - start;
        } while (limit > 0 ? took < limit : runs < seeds);
        printf("%s: %" PRIu64 " seeds from 0x%" PRIx64 " on hold; %.0f job-lives/s, %" PRIu64 " joins\n", owner_program,
               runs, seed, (double)runs / took, s->joins);
    }
    s->place->free();
    free(heap);
    free(s);
    return 0;
}
