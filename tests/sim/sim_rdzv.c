/* The rendezvous in a storm: many machines, one store, virtual time. See rdzv_sim.h for the parts and rdzv_check.c for
 * what must hold.
 *
 *     muster-sim --seeds N [--seed FIRST]     N seeds, one after the other
 *     muster-sim --time SECONDS               fresh seeds for so long; prints job-lives per second
 *     muster-sim --seed N [--trace]           one seed, told line by line
 *     muster-sim --crowd N [--stock]          no faults: N nodes arrive within 100 ms; prints what that costs
 *     muster-sim --regroup N                  no faults: N nodes meet, a worker fails, all regroup; prints what that
 *                                             costs, and holds it against REGROUP_READS_MAX and
 *                                             REGROUP_BYTES()
 *
 *     --nodes N                               so many nodes, whatever the seed says
 *     --faults LIST                           these faults and no others; "none"
 *
 * A seed decides everything: how many nodes with which limits, which faults exist at all and how often they strike. A
 * storm is followed by calm, in which everybody who is still alive must find together. */
#include "rdzv_sim.h"
#include "sim_clock.h"

#define REGROUP_READS_MAX 6 /* by a node, of the document, from a worker's failure to the next round */
/* ... and how many bytes. The document holds all nodes, so they grow with it, and with nothing else. */
#define REGROUP_BYTES(nodes) (3000 + 400 * (uint64_t)(nodes))

#define REGROUP_US(nodes) (100 * MS + (nodes)*4 * MS) /* two turns a node; the slow read comes after a second */

static unsigned nodes_wanted;
static bool faults_given, faults_wanted[FAULTS_COUNT];

/* ---- Birth ---- */

static void set_clock(struct node *node)
{
    static const int64_t most_s[] = { 2, 14, 16, 20, 300, 3600 };
    int64_t most = most_s[below(6)] * 1000000;

    node->wall_offset_us = 0;
    if (w.on[F_CLOCK] && !(node->stock && w.one_stock_clock))
        node->wall_offset_us = (int64_t)below((uint64_t)(2 * most)) - most;
}

static void identify(struct node *node)
{
    bool again = node->id != IDS_MAX && w.on[F_SAME];

    if (!(again && node->stock))
        node->id = w.ids_count++;
    if (!again)
        (void)snprintf(node->host, sizeof node->host, "h%u", (unsigned)below(6));
    if (node->stock)
        node->pid = 1000 + (node->id ^ w.id_mask);
    else if (!again)
        node->pid = 1000 + (int64_t)below(1000);
    (void)snprintf(node->name, sizeof node->name, "%s%u.%u", node->stock ? "stock" : "node", node->slot, node->id);
    node->me = (struct mu_node){
        .name = mu_slice_str(node->host),
        .pid = node->pid,
        .local_id = node->stock ? 0 : mu_node_local_id(MU_NODE_VERSION, (uint32_t)(below(1024) << 10 | node->id)),
    };
}

static void forget_life(struct node *node)
{
    node->alive = true;
    node->ended = false;
    node->life = ++w.lives;
    node->mono_offset_us = below(1000000) * SECOND + below(SECOND);
    node->paused_until_us = node->cut_until_us = 0;
    node->impaired_us = node->hindered_us = w.now_us;
    memset(node->conn_up_us, 0, sizeof node->conn_up_us);
    memset(node->conn_down_us, 0, sizeof node->conn_down_us);
    node->timer_us = node->main_id = 0;
    node->steps_left = -1;
    node->asked = ASKED_NOTHING;
    node->deed = DEED_NONE;
    node->looking = node->closing = node->told_closed = node->down = node->member = false;
    node->told_lost = 0;
    node->told_waiting = node->told_removed = node->held_down = false;
    node->last_round = -1;
    node->last_incarnation = 0;
    node->saw_closed = false;
    node->dropped_us = node->spare_us = node->spare_seen_us = node->broken_us = 0;
    node->seen_any = node->has_deadline = false;
    node->settled_incarnation = 0;
}

static void give_limits(struct node *node)
{
    node->settings = w.settings;
    if (w.on[F_LIMITS]) {
        node->settings.nodes_max = 1 + (int64_t)below(w.nodes_count + 1);
        node->settings.nodes_min = 1 + (int64_t)below((uint64_t)node->settings.nodes_max);
    }
}

static void announce_birth(unsigned slot, uint64_t at_us)
{
    w.births++;
    push(at_us, EV_BIRTH, slot, 0, NULL);
}

static void birth(struct node *node)
{
    w.births--;
    if (node->alive || w.ids_count >= IDS_MAX)
        return;
    identify(node);
    set_clock(node);
    forget_life(node);
    give_limits(node);
    if (w.checking) {
        if (node->sightings == NULL && (node->sightings = malloc(IDS_MAX * sizeof node->sightings[0])) == NULL)
            abort();
        memset(node->sightings, 0, IDS_MAX * sizeof node->sightings[0]);
    }
    TELL("%s: is born as %s_%" PRId64 ", %" PRId64 " to %" PRId64 " nodes", node->name, node->host, node->pid,
         node->settings.nodes_min, node->settings.nodes_max);
    if ((int)node->slot == w.host_slot)
        store_up();
    if (node->stock)
        stock_birth(node);
    else
        node_birth(node);
    if ((int)node->slot != w.host_slot)
        return;
    for (unsigned i = 0; i < w.nodes_count; i++) {
        if (w.nodes[i].alive && !w.nodes[i].stock && i != node->slot)
            node_host(&w.nodes[i]);
    }
}

/* ---- Mishaps ---- */

static struct node *somebody(void)
{
    struct node *node = &w.nodes[below(w.nodes_count)];

    return node->alive ? node : NULL;
}

static void mishap(void)
{
    static const enum fault kinds[] = { F_KILL, F_PAUSE, F_JUMP, F_OUTAGE, F_WIPE, F_CUT };
    enum fault kind = kinds[below(6)];
    struct node *node = somebody();
    uint64_t death_us = mu_rdzv_death_age_ms(&w.settings) * MS;
    uint64_t long_us = chance(50) ? below(2 * death_us) : below(6 * death_us);

    if (w.calm)
        return;
    push(w.now_us + below(1 + w.storm_us / 6), EV_MISHAP, 0, 0, NULL);
    if ((w.on[F_STRANGER] || w.on[F_FORGER]) && chance(50))
        store_meddle();
    if (!w.on[kind])
        return;
    if (kind == F_OUTAGE || kind == F_WIPE) {
        if (w.host_slot >= 0 || !store_is_up())
            return;
        store_down(chance(50), kind == F_WIPE);
        push(w.now_us + (chance(50) ? below(SECOND) : long_us), EV_STORE, 0, 0, NULL);
        return;
    }
    if (node == NULL)
        return;
    if (kind == F_KILL) {
        if (node->stock)
            node_die(node);
        else
            node->steps_left = (int)below(20);
    } else if (kind == F_PAUSE && node->paused_until_us <= w.now_us) {
        TELL("%s: pauses for %.3f s", node->name, (double)long_us / 1e6);
        node->paused_until_us = w.now_us + long_us;
    } else if (kind == F_CUT) {
        TELL("%s: is cut off for %.3f s", node->name, (double)long_us / 1e6);
        node->cut_until_us = w.now_us + long_us;
    } else if (kind == F_JUMP && !(node->stock && w.one_stock_clock)) {
        node->wall_offset_us += (int64_t)below(7200 * SECOND) - (int64_t)(3600 * SECOND);
    }
}

/* The dead come back, if they may. */
static void reap(void)
{
    for (unsigned i = 0; i < w.nodes_count; i++) {
        struct node *node = &w.nodes[i];

        if (node->alive || node->life == 0 || node->steps_left == -2)
            continue;
        if ((int)i == w.host_slot || (w.on[F_REBIRTH] && !w.calm && chance(80))) {
            announce_birth(i, w.now_us + below(chance(50) ? 200 * MS : 10 * SECOND));
            node->steps_left = -2;
        }
    }
}

/* ---- Events ---- */

static void to_node(const struct event *event)
{
    struct node *node = &w.nodes[event->slot];
    uint64_t now = event->type == EV_TIMER ? node->timer_generation : node->life;

    if (!node->alive || event->life != now) {
        if (event->request != NULL)
            request_free(event->request);
        return;
    }
    if (node->paused_until_us > w.now_us) {
        push(node->paused_until_us, event->type, event->slot, event->life, event->request);
        return;
    }
    switch (event->type) {
    case EV_ANSWER:
        if (node->stock)
            stock_answer(node, event->request);
        else
            node_answer(node, event->request);
        break;
    case EV_TIMER:
        node_timer(node);
        break;
    case EV_OWNER:
        node_owner(node);
        break;
    case EV_STOCK:
        stock_wake(node);
        break;
    default:
        abort();
    }
}

static void dispatch(const struct event *event)
{
    switch (event->type) {
    case EV_ARRIVE:
        store_arrive(event->request);
        break;
    case EV_LOOK:
        store_look(event->request);
        break;
    case EV_TURN:
        store_turn_out(event->request);
        break;
    case EV_ANSWER:
    case EV_TIMER:
    case EV_OWNER:
    case EV_STOCK:
        to_node(event);
        break;
    case EV_BIRTH:
        birth(&w.nodes[event->slot]);
        break;
    case EV_MISHAP:
        mishap();
        break;
    case EV_STORE:
        store_up();
        break;
    case EV_CHECK:
        reap();
        check_every_second();
        push(w.now_us + SECOND, EV_CHECK, 0, 0, NULL);
        break;
    case EV_JOB:
        abort();
    }
}

static void run_until(uint64_t until_us)
{
    struct event event;
    unsigned at_once = 0;

    while (w.heap_len > 0 && w.heap[0].at_us <= until_us) {
        (void)pop(&event);
        at_once = event.at_us == w.now_us ? at_once + 1 : 0;
        EXPECT("busy", at_once < AT_ONCE_MAX, "something does not wait");
        w.now_us = event.at_us;
        w.events++;
        dispatch(&event);
    }
    w.now_us = until_us;
}

/* ---- What the seed decides ---- */

static void choose_faults(void)
{
    unsigned density = chance(10) ? 0 : 5 + (unsigned)below(35);
    struct mu_rng more = mu_rng_seeded(~w.seed); /* so that seeds stay what they are */

    w.on[F_MIDDLE] = faults_given ? faults_wanted[F_MIDDLE] : mu_rng_below(&more, 100) < density;
    w.on[F_STRANGER] = faults_given ? faults_wanted[F_STRANGER] : mu_rng_below(&more, 100) < density;
    w.on[F_FORGER] = faults_given ? faults_wanted[F_FORGER] : mu_rng_below(&more, 100) < density / 4;
    for (unsigned i = 0; i < F_MIDDLE; i++) {
        w.on[i] = chance(density);
        w.percent[i] = 1 + (unsigned)below(chance(50) ? 10 : 40);
        if (faults_given)
            w.on[i] = faults_wanted[i];
    }
    if (!faults_given) {
        w.on[F_STOCK] &= chance(60);
        w.on[F_LIMITS] &= chance(40);
        w.on[F_CLOSE] &= chance(60);
    }
    w.on[F_STRANGER] &= !w.on[F_STOCK]; /* PyTorch ends at the first value that it cannot read */
    w.on[F_FORGER] &= !w.on[F_STOCK];
    w.percent[F_CLOSE] = 5;
    w.percent[F_DEAF] = 50;
}

static void choose_settings(void)
{
    static const uint64_t keep_alives_ms[] = { 1000, 2000, 5000 };
    static const uint64_t last_calls_ms[] = { 300, 2000, 8000, 30000 };
    static const uint64_t joins_ms[] = { 15000, 300000, 300000, 600000 };
    uint64_t n = w.nodes_count;

    w.settings = MU_RDZV_SETTINGS_DEFAULT;
    w.settings.keep_alive_ms = keep_alives_ms[w.on[F_STOCK] ? 1 + below(2) : below(3)];
    w.settings.keep_alive_attempts = w.on[F_STOCK] ? 3 : 2 + (unsigned)below(2);
    w.settings.last_call_ms = last_calls_ms[below(4)];
    if ((w.on[F_STOCK] || w.on[F_PLAIN]) && w.settings.last_call_ms < 3000)
        w.settings.last_call_ms = 3000; /* who polls once a second would never meet */
    w.settings.join_ms = joins_ms[below(4)];
    w.settings.close_ms = chance(50) ? 5000 : 30000;
    w.settings.lost_node_wait_ms = chance(80) ? 0 : below(5000);
    w.settings.store_lost_ms = UINT64_C(1000) << w.seed % 6;
    w.settings.nodes_max = (int64_t)(w.on[F_SPARES] && n > 1 ? 1 + below(n - 1) : n + below(3));
    w.settings.nodes_min = 1 + (int64_t)below((uint64_t)w.settings.nodes_max);
    if (chance(70) && w.settings.nodes_min > (int64_t)n)
        w.settings.nodes_min = (int64_t)n;
}

static void prepare(uint64_t seed)
{
    w.seed = seed;
    w.rng = mu_rng_seeded(seed);
    w.now_us = w.order = 0;
    w.lives = 0;
    w.ids_count = w.births = 0;
    w.trace_len = 0;
    w.calm = false;
    w.checking = true;
    choose_faults();
    w.nodes_count = nodes_wanted != 0 ? nodes_wanted : 1 + (unsigned)below(chance(90) ? 6 : 12);
    choose_settings();
    w.dialect = w.on[F_OLD] ? MU_DOC_DIALECT_1_13 : w.on[F_MIDDLE] ? MU_DOC_DIALECT_2_5 : MU_DOC_DIALECT_2_X;
    w.id_mask = (unsigned)below(IDS_MAX);
    w.slow_us = w.on[F_SLOW] ? (1 + below(10)) * 300 * MS : 0;
    w.one_stock_clock = true;
    w.host_slot = w.on[F_HOSTED] ? (int)below(w.nodes_count) : -1;
    w.storm_us = 2 * SECOND + below(chance(70) ? 30 * SECOND : 90 * SECOND);
    for (unsigned i = 0; i < w.nodes_count; i++) {
        struct sighting *sightings = w.nodes[i].sightings;

        w.nodes[i] = (struct node){ .slot = i, .id = IDS_MAX, .sightings = sightings, .last_round = -1 };
        w.nodes[i].stock = w.on[F_STOCK] && (int)i != w.host_slot && chance(40);
    }
    store_begin();
    check_begin();
    if (w.host_slot >= 0)
        store_down(true, false); /* until its host is born */
}

static void tell_plan(void)
{
    char text[TRACE_TEXT];
    size_t len = 0;

    text[0] = '\0';
    for (unsigned i = 0; i < FAULTS_COUNT; i++) {
        if (w.on[i])
            len += (size_t)snprintf(text + len, sizeof text - len, " %s", fault_names[i]);
    }
    TELL("seed 0x%" PRIx64 ": %u nodes, %" PRId64 " to %" PRId64 ", keep-alive %" PRIu64 " ms x %u, last call %" PRIu64
         " ms, join %" PRIu64 " ms, storm %.1f s",
         w.seed, w.nodes_count, w.settings.nodes_min, w.settings.nodes_max, w.settings.keep_alive_ms,
         w.settings.keep_alive_attempts, w.settings.last_call_ms, w.settings.join_ms, (double)w.storm_us / 1e6);
    TELL("faults:%s", text);
}

/* ---- A life ---- */

static void arrive(void)
{
    for (unsigned i = 0; i < w.nodes_count; i++) {
        uint64_t at = below(300 * MS);

        if (w.on[F_LATE] && chance(40))
            at = below(w.storm_us);
        announce_birth(i, at);
    }
    push(below(w.storm_us / 4), EV_MISHAP, 0, 0, NULL);
    push(SECOND / 2, EV_CHECK, 0, 0, NULL);
}

static unsigned living(void)
{
    unsigned count = 0;

    for (unsigned i = 0; i < w.nodes_count; i++)
        count += w.nodes[i].alive && !(w.nodes[i].stock && stock_astray(&w.nodes[i]));
    return count;
}

static uint64_t calm_down(void)
{
    uint64_t begin = w.now_us;

    TELL("calm");
    w.calm = true;
    if (w.host_slot < 0)
        store_up();
    for (unsigned i = 0; i < w.nodes_count; i++) {
        struct node *node = &w.nodes[i];

        node->cut_until_us = 0;
        if (node->steps_left >= 0)
            node->steps_left = -1;
        if (node->alive && node->paused_until_us > begin)
            begin = node->paused_until_us;
        if (node->alive && !node->stock)
            node_calm(node);
    }
    reap();
    return begin;
}

/* PyTorch's nodes judge a dead member by their wall clock: one whose heartbeat lies ahead of it keeps its place. */
static bool waits_for_a_clock(void)
{
    for (unsigned i = 0; i < w.nodes_count; i++) {
        if (w.nodes[i].alive && !w.nodes[i].stock)
            return false; /* it removes the dead member */
    }
    return w.on[F_CLOCK] || w.on[F_JUMP];
}

/* Nodes with different limits or little patience, or PyTorch's after a loss of data, need not get together. */
static bool must_meet(void)
{
    if (w.on[F_LIMITS] || w.settings.join_ms < 100000 || waits_for_a_clock())
        return false;
    if (w.on[F_STOCK] && (w.on[F_WIPE] || w.on[F_HOSTED] || w.on[F_SAME]))
        return false;
    return (int64_t)living() >= w.settings.nodes_min;
}

static bool no_trouble(void)
{
    for (unsigned i = 0; i < w.nodes_count; i++) {
        const struct node *node = &w.nodes[i];

        if (node->alive && !node->stock && node->member && (node->told_lost || node->told_waiting))
            return false;
    }
    return true;
}

/* A full round with one of PyTorch's nodes in the wait list goes apart again, and again; ours hold back in between. */
static bool goes_in_circles(void)
{
    return w.too_many_us > 0 && w.now_us - w.too_many_us < MU_HOLD_MAX_MS * MS + 10 * SECOND;
}

static void find_together(uint64_t begin_us)
{
    uint64_t death_us = mu_rdzv_death_age_ms(&w.settings) * MS;
    uint64_t bound = begin_us + 2 * (death_us + w.settings.last_call_ms * MS) + 3 * MU_HOLD_MAX_MS * MS;
    bool met = false;

    run_until(begin_us + 3 * SECOND);
    while (w.births > 0 || (must_meet() && !(met = check_all_well()))) {
        if (w.births == 0 && w.now_us >= bound && goes_in_circles())
            return;
        EXPECT("I8", w.now_us < bound, "%.0f s after the storm not everybody is in: %s",
               (double)(w.now_us - begin_us) / 1e6, why_not_well());
        run_until(w.now_us + SECOND);
    }
    if (!met || !chance(40) || w.on[F_STOCK] || store_document() == NULL || store_document()->doc.closed)
        return;
    TELL("all is well");
    run_until(w.now_us + death_us + 2 * SECOND);
    EXPECT("I8", !must_meet() || (check_all_well() && no_trouble()), "all was well, but did not stay so: %s",
           why_not_well());
}

static void clear_up(void)
{
    struct event event;

    for (unsigned i = 0; i < w.nodes_count; i++)
        node_die(&w.nodes[i]);
    while (pop(&event)) {
        if (event.request != NULL && event.type != EV_TURN)
            request_free(event.request);
    }
    store_end();
    check_end();
}

static void run_seed(uint64_t seed)
{
    prepare(seed);
    if (w.tracing)
        tell_plan();
    arrive();
    run_until(w.storm_us);
    find_together(calm_down());
    clear_up();
}

/* ---- A crowd ---- */

static unsigned joined_count(void)
{
    unsigned count = 0;

    for (unsigned i = 0; i < w.nodes_count; i++)
        count += w.nodes[i].stock ? stock_in(&w.nodes[i], 0) : w.nodes[i].member;
    return count;
}

/* No faults; `count` nodes arrive and meet. */
static void gather(uint64_t seed, unsigned count, bool stock)
{
    memset(faults_wanted, 0, sizeof faults_wanted);
    faults_given = true;
    nodes_wanted = count;
    prepare(seed);
    w.crowd = true;
    w.checking = false;
    w.settings = MU_RDZV_SETTINGS_DEFAULT;
    w.settings.nodes_min = w.settings.nodes_max = count;
    for (unsigned i = 0; i < count; i++) {
        w.nodes[i].stock = stock;
        announce_birth(i, below(100 * MS));
    }
    while (joined_count() < count && w.now_us < 600 * SECOND)
        run_until(w.now_us + MS);
}

static int run_crowd(uint64_t seed, unsigned count, bool stock)
{
    gather(seed, count, stock);
    printf("%u %s nodes: %u in after %.3f s; %.2f writes a join, %" PRIu64 " of %" PRIu64 " lost; %.1f reads a join\n",
           count, stock ? "PyTorch" : "muster", joined_count(), (double)w.now_us / 1e6, (double)w.writes / count,
           w.writes_lost, w.writes, (double)w.reads / count);
    return joined_count() == count ? 0 : 1;
}

/* ---- Regrouping ---- */

/* A worker of one node fails: that node leaves and joins again, the others follow. */
static void regroup(struct node *node)
{
    w.calm = true; /* nodes leave within 20 ms of hearing that they should */
    for (unsigned i = 0; i < w.nodes_count; i++)
        w.nodes[i].reads = w.nodes[i].read_bytes = 0;
    w.writes = w.writes_lost = 0;
    node->deed = DEED_JOIN;
    node->deed_us = w.now_us;
    node_owner(node);
    while (joined_count() < w.nodes_count && w.now_us < 600 * SECOND)
        run_until(w.now_us + MS);
}

/* What it costs a node to regroup does not grow with their number. */
static void run_regroup(uint64_t seed, unsigned count)
{
    uint64_t begin_us, most = 0, most_bytes = 0, reads = 0, bytes = 0;

    gather(seed, count, false);
    EXPECT("met", joined_count() == count, "%u of %u nodes joined", joined_count(), count);
    run_until(w.now_us + below(20 * SECOND));
    begin_us = w.now_us;
    regroup(&w.nodes[below(count)]);
    EXPECT("met", joined_count() == count, "%u of %u nodes joined again", joined_count(), count);
    for (unsigned i = 0; i < count; i++) {
        most = w.nodes[i].reads > most ? w.nodes[i].reads : most;
        reads += w.nodes[i].reads;
        bytes += w.nodes[i].read_bytes;
        most_bytes = w.nodes[i].read_bytes > most_bytes ? w.nodes[i].read_bytes : most_bytes;
    }
    printf("%u nodes regroup in %.3f s: a node reads the document %.1f times (at most %" PRIu64
           "), %.0f bytes; %.2f writes a node, %" PRIu64 " lost in all\n",
           count, (double)(w.now_us - begin_us) / 1e6, (double)reads / count, most, (double)bytes / count,
           (double)w.writes / count, w.writes_lost);
    EXPECT("quick", w.now_us - begin_us < REGROUP_US(count), "%u nodes regroup in %.3f s: somebody was not rung for",
           count, (double)(w.now_us - begin_us) / 1e6);
    EXPECT("reads", most <= REGROUP_READS_MAX, "a node read the document %" PRIu64 " times to regroup %u nodes", most,
           count);
    EXPECT("bytes", most_bytes <= REGROUP_BYTES(count), "a node read %" PRIu64 " bytes to regroup %u nodes", most_bytes,
           count);
    clear_up();
}

/* ---- The command line ---- */

static int usage(void)
{
    (void)fputs("usage: muster-sim [--seed N] [--seeds N | --time SECONDS] [--nodes N] [--faults LIST] [--trace]\n"
                "       muster-sim --crowd N [--stock] [--seed N]\n"
                "       muster-sim --regroup N [--seed N] [--seeds N]\n"
                "faults:",
                stderr);
    for (unsigned i = 0; i < FAULTS_COUNT; i++)
        (void)fprintf(stderr, " %s", fault_names[i]);
    (void)fputs("\n", stderr);
    return 2;
}

static bool take_faults(const char *list)
{
    faults_given = true;
    if (strcmp(list, "none") == 0)
        return true;
    for (const char *at = list; *at != '\0';) {
        size_t len = strcspn(at, ",");
        unsigned i = 0;

        while (i < FAULTS_COUNT && !(strlen(fault_names[i]) == len && memcmp(fault_names[i], at, len) == 0))
            i++;
        if (i == FAULTS_COUNT)
            return false;
        faults_wanted[i] = true;
        at += len + (at[len] == ',');
    }
    return true;
}

struct options {
    uint64_t seed, seeds;
    double limit;
    unsigned crowd, regroup;
    bool stock, seed_given;
};

static bool take_option(struct options *options, const char *name, const char *value, bool *ret_took_value)
{
    *ret_took_value = false;
    if (strcmp(name, "--trace") == 0)
        return w.tracing = true;
    if (strcmp(name, "--replay") == 0)
        return w.tracing = w.replaying = true;
    if (strcmp(name, "--stock") == 0)
        return options->stock = true;
    if (value == NULL)
        return false;
    *ret_took_value = true;
    if (strcmp(name, "--faults") == 0)
        return take_faults(value);
    if (strcmp(name, "--seed") == 0) {
        options->seed = strtoull(value, NULL, 0);
        return options->seed_given = true;
    }
    if (strcmp(name, "--seeds") == 0)
        return (options->seeds = strtoull(value, NULL, 0)) > 0;
    if (strcmp(name, "--time") == 0)
        return (options->limit = strtod(value, NULL)) > 0;
    if (strcmp(name, "--nodes") == 0)
        return (nodes_wanted = (unsigned)strtoul(value, NULL, 0)) > 0 && nodes_wanted <= IDS_MAX / 8;
    if (strcmp(name, "--crowd") == 0)
        return (options->crowd = (unsigned)strtoul(value, NULL, 0)) > 0 && options->crowd <= IDS_MAX;
    if (strcmp(name, "--regroup") == 0)
        return (options->regroup = (unsigned)strtoul(value, NULL, 0)) > 0 && options->regroup <= IDS_MAX;
    return false;
}

static int run(const struct options *options)
{
    double start = sim_seconds(), took = 0;
    uint64_t runs = 0;

    do {
        if (options->regroup > 0)
            run_regroup(options->seed + runs, options->regroup);
        else
            run_seed(options->seed + runs);
        runs++;
        took = sim_seconds() - start;
    } while (options->limit > 0 ? took < options->limit : runs < options->seeds);
    if (w.replaying) {
        printf("seed 0x%" PRIx64 " holds when it is run alone: a run has left something to the next one\n", w.seed);
        return 1;
    }
    printf("sim_rdzv: %" PRIu64 " seeds from 0x%" PRIx64 " on hold; %.0f job-lives/s, %" PRIu64 " joins, %" PRIu64
           " writes\n",
           runs, options->seed, (double)runs / took, w.joins, w.writes);
    return 0;
}

int main(int argc, char **argv)
{
    struct options options = { .seeds = 1 };
    bool took_value;
    int rc;

    replay_setup(argv);
    for (int i = 1; i < argc; i += 1 + took_value) {
        if (!take_option(&options, argv[i], i + 1 < argc ? argv[i + 1] : NULL, &took_value))
            return usage();
    }
    if (options.limit > 0 && !options.seed_given)
        options.seed = sim_fresh_seed();
    w.nodes = calloc(IDS_MAX, sizeof w.nodes[0]);
    if (w.nodes == NULL)
        abort();
    rc = options.crowd > 0 ? run_crowd(options.seed, options.crowd, options.stock) : run(&options);
    for (unsigned i = 0; i < IDS_MAX; i++)
        free(w.nodes[i].sightings);
    free(w.nodes);
    free(w.heap);
    free(w.trace);
    free(w.worlds);
    return rc;
}
