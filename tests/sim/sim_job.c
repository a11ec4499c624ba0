/* Whole jobs in a storm: agents and their workers on top of the rendezvous, in virtual time. See job_sim.h for the
 * parts and job_check.c for what must hold.
 *
 *     muster-sim-job --seeds N [--seed FIRST]     N seeds, one after the other
 *     muster-sim-job --time SECONDS               fresh seeds for so long
 *     muster-sim-job --seed N [--trace]           one seed, told line by line
 *     muster-sim-job --stories [--seed N]         those that found something out; or only the one of this seed
 *
 *     --nodes N                                   so many nodes, whatever the seed says
 *     --faults LIST                               these faults and no others; "none"
 *
 * A seed decides everything. A storm is followed by calm, in which every agent must come to its end. */
#include "job_sim.h"
#include "sim_clock.h"

#include <signal.h>

struct due { /* what `later` has been asked for */
    later_call *call;
    struct agent *agent; /* NULL: the store */
    uint64_t life;
    void *what;
    uint64_t number;
    size_t next; /* of the unused */
};

struct job job;

const char *const trouble_names[TROUBLES_COUNT] = {
#define X(name, text) text,
    TROUBLES(X)
#undef X
};

static struct due *dues;
static size_t dues_count, dues_room, dues_unused; /* unused: index + 1 */
static unsigned nodes_wanted;
static bool faults_given, faults_wanted[FAULTS_COUNT], troubles_wanted[TROUBLES_COUNT];

/* ---- Later ---- */

static size_t due_new(struct due due)
{
    size_t index;

    if (dues_unused > 0) {
        index = dues_unused - 1;
        dues_unused = dues[index].next;
    } else {
        if (dues_count == dues_room) {
            dues_room = dues_room * 2 + 256;
            dues = realloc(dues, dues_room * sizeof dues[0]);
            if (dues == NULL)
                abort();
        }
        index = dues_count++;
    }
    dues[index] = due;
    return index;
}

static struct due due_take(uint64_t index)
{
    struct due due = dues[index];

    dues[index].next = dues_unused;
    dues_unused = index + 1;
    return due;
}

void later(uint64_t at_us, later_call *call, struct agent *agent, void *what, uint64_t number)
{
    struct due due = { .call = call, .agent = agent, .life = agent->life, .what = what, .number = number };

    push(at_us, EV_JOB, agent->node->slot, due_new(due), NULL);
}

void later_in_store(uint64_t at_us, later_call *call, void *what)
{
    push(at_us, EV_JOB, 0, due_new((struct due){ .call = call, .what = what }), NULL);
}

static void on_due(const struct event *event)
{
    struct due due = due_take(event->life);
    struct agent *agent = due.agent;

    if (agent == NULL) {
        due.call(NULL, due.what, due.number);
    } else if (agent->job == NULL || agent->ended || agent->life != due.life || !agent->node->alive) {
        free(due.what);
    } else if (agent->node->paused_until_us > w.now_us) {
        push(agent->node->paused_until_us, EV_JOB, event->slot, due_new(due), NULL);
    } else {
        due.call(agent, due.what, due.number);
    }
}

bool trouble(enum trouble trouble)
{
    return job.on[trouble] && !w.calm && chance(job.percent[trouble]);
}

/* ---- Birth ---- */

static void identify(struct node *node)
{
    node->id = w.ids_count++;
    (void)snprintf(node->host, sizeof node->host, "h%u", (unsigned)below(6));
    node->pid = 1000 + (int64_t)below(1000);
    (void)snprintf(node->name, sizeof node->name, "node%u.%u", node->slot, node->id);
    node->me = (struct mu_node){
        .name = mu_slice_str(node->host),
        .pid = node->pid,
        .local_id = mu_node_local_id(MU_NODE_VERSION, (uint32_t)(below(1024) << 10 | node->id)),
    };
}

static void announce_birth(unsigned slot, uint64_t at_us)
{
    w.births++;
    push(at_us, EV_BIRTH, slot, 0, NULL);
}

void host_serves(struct node *node)
{
    store_up();
    kv_sync();
    for (unsigned i = 0; i < w.nodes_count; i++) {
        if (w.nodes[i].alive && &w.nodes[i] != node)
            node_host(&w.nodes[i]);
    }
}

static void birth(struct node *node)
{
    unsigned slot = node->slot;

    w.births--;
    if (node->alive || w.ids_count >= IDS_MAX || job.retired[slot])
        return;
    *node = (struct node){ .slot = slot, .alive = true, .life = ++w.lives, .steps_left = -1, .last_round = -1 };
    identify(node);
    if (w.on[F_CLOCK])
        node->wall_offset_us = (int64_t)below(7200 * SECOND) - (int64_t)(3600 * SECOND);
    node->mono_offset_us = below(1000000) * SECOND + below(SECOND);
    node->impaired_us = node->hindered_us = w.now_us;
    node->settings = w.settings;
    TELL("%s: is born as %s_%" PRId64, node->name, node->host, node->pid);
    if ((int)slot == w.host_slot && !job.on[T_FIND])
        store_up();
    kv_sync();
    node_birth(node);
    agent_birth(node);
    if ((int)slot == w.host_slot && !job.on[T_FIND])
        host_serves(node);
}

/* The dead come back, if they may. */
static void reap(void)
{
    for (unsigned i = 0; i < w.nodes_count; i++) {
        struct node *node = &w.nodes[i];

        if (node->alive || node->life == 0 || node->steps_left == -2 || job.retired[i])
            continue;
        node->steps_left = -2;
        if ((int)i == w.host_slot || (w.on[F_REBIRTH] && !w.calm && chance(80)))
            announce_birth(i, w.now_us + below(chance(50) ? 200 * MS : 10 * SECOND));
    }
}

/* ---- Mishaps ---- */

static void hit(struct node *node, enum fault kind, uint64_t long_us)
{
    struct agent *agent = &job.agents[node->slot];
    uint64_t second;

    if (kind == F_KILL) {
        node->steps_left = (int)below(20);
    } else if (kind == F_PAUSE && node->paused_until_us <= w.now_us) {
        TELL("%s: pauses for %.3f s", node->name, (double)long_us / 1e6);
        node->paused_until_us = w.now_us + long_us;
        node->impaired_us = node->paused_until_us;
    } else if (kind == F_CUT) {
        TELL("%s: is cut off for %.3f s", node->name, (double)long_us / 1e6);
        node->cut_until_us = w.now_us + long_us;
    } else if (kind == F_JUMP) {
        node->wall_offset_us += (int64_t)below(7200 * SECOND) - (int64_t)(3600 * SECOND);
    } else if (kind == F_LEAVE && node->paused_until_us <= w.now_us && agent->job != NULL && !agent->ended) {
        agent_signal(agent, chance(70) ? SIGTERM : SIGINT);
        if (agent->job != NULL && !agent->ended && node->alive && (second = below(100)) < 30)
            agent_signal(agent, second < 15 ? SIGTERM : SIGQUIT); /* of which one means: at once */
    }
}

static void mishap(void)
{
    static const enum fault kinds[] = { F_KILL, F_PAUSE, F_JUMP, F_OUTAGE, F_WIPE, F_CUT, F_LEAVE };
    enum fault kind = kinds[below(7)];
    struct node *node = &w.nodes[below(w.nodes_count)];
    uint64_t death_us = mu_rdzv_death_age_ms(&w.settings) * MS;
    uint64_t long_us = chance(50) ? below(2 * death_us) : below(6 * death_us);

    if (w.calm)
        return;
    push(w.now_us + below(1 + w.storm_us / 10), EV_MISHAP, 0, 0, NULL);
    if ((w.on[F_STRANGER] || w.on[F_FORGER]) && chance(50))
        store_meddle();
    if (w.on[F_STRANGER] && chance(50))
        kv_meddle();
    if (!w.on[kind])
        return;
    if (kind == F_OUTAGE || kind == F_WIPE) {
        if (w.host_slot >= 0 || !store_is_up())
            return;
        store_down(chance(50), kind == F_WIPE);
        push(w.now_us + (chance(50) ? below(SECOND) : long_us), EV_STORE, 0, 0, NULL);
    } else if (node->alive) {
        hit(node, kind, long_us);
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
    if (node->paused_until_us > w.now_us)
        push(node->paused_until_us, event->type, event->slot, event->life, event->request);
    else if (event->type == EV_ANSWER)
        node_answer(node, event->request);
    else
        node_timer(node);
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
        to_node(event);
        break;
    case EV_BIRTH:
        birth(&w.nodes[event->slot]);
        break;
    case EV_MISHAP:
        mishap();
        break;
    case EV_STORE:
        if (job.dark_us == 0)
            store_up();
        break;
    case EV_CHECK:
        reap();
        check_each_second();
        host_check();
        push(w.now_us + SECOND, EV_CHECK, 0, 0, NULL);
        break;
    case EV_JOB:
        on_due(event);
        break;
    case EV_OWNER:
    case EV_STOCK:
        abort();
    }
}

/* Whoever has died in this event. */
static void bury(void)
{
    for (unsigned i = 0; i < w.nodes_count; i++) {
        struct agent *agent = &job.agents[i];

        if (agent->job != NULL && (!agent->node->alive || agent->ended))
            agent_bury(agent);
    }
}

/* Who serves the store learns when nobody else uses it any more. */
static void tell_alone(void)
{
    struct agent *host = w.host_slot < 0 ? NULL : &job.agents[w.host_slot];
    bool alone = true;

    if (host == NULL || host->job == NULL || host->ended || !host->lingers || host->node->paused_until_us > w.now_us)
        return;
    for (unsigned i = 0; i < w.nodes_count; i++)
        alone &= !w.nodes[i].alive || (int)i == w.host_slot;
    if (!alone)
        return;
    host->lingers = false;
    agent_tell(host, (struct mu_policy_event){ .type = MU_POLICY_ON_ALONE, .round = -1 });
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
        bury();
        tell_alone();
        bury();
        kv_sync();
    }
    w.now_us = until_us;
}

/* ---- What the seed decides ---- */

static void choose_faults(void)
{
    static const enum fault known[] = { F_KILL, F_REBIRTH, F_PAUSE, F_CLOCK, F_JUMP,    F_LOST,  F_REFUSED,
                                        F_SLOW, F_OUTAGE,  F_WIPE,  F_CUT,   F_LATE,    F_LEAVE, F_SPARES,
                                        F_OLD,  F_PLAIN,   F_DEAF,  F_LAZY,  F_REORDER, F_STALE };
    unsigned density = chance(5) ? 0 : 5 + (unsigned)below(45);
    struct mu_rng more = mu_rng_seeded(~w.seed); /* so that seeds with given faults stay what they are */

    memset(w.on, 0, sizeof w.on);
    for (unsigned i = 0; i < sizeof known / sizeof known[0]; i++) {
        enum fault at = known[i];

        w.on[at] = chance(at == F_OLD ? density / 3 : density);
        w.percent[at] = 1 + (unsigned)below(chance(50) ? 10 : 40);
    }
    for (unsigned i = 0; i < T_MIXED; i++) {
        job.on[i] = chance(density);
        job.percent[i] = 1 + (unsigned)below(chance(50) ? 15 : 60);
    }
    w.on[F_HOSTED] = !w.on[F_OUTAGE] && mu_rng_below(&more, 100) < density / 2;
    job.on[T_MIXED] = !w.on[F_HOSTED] && !w.on[F_WIPE] && mu_rng_below(&more, 100) < density / 2;
    job.on[T_HANG] = mu_rng_below(&more, 100) < density / 2;
    job.percent[T_HANG] = 1 + (unsigned)mu_rng_below(&more, 40);
    job.on[T_BOOT] = mu_rng_below(&more, 100) < 80;
    for (unsigned i = T_PORT; i <= T_SELF; i++) {
        job.on[i] = mu_rng_below(&more, 100) < density;
        job.percent[i] = 1 + (unsigned)mu_rng_below(&more, 40);
    }
    job.on[T_ASLEEP] = mu_rng_below(&more, 100) < density;
    job.percent[T_ASLEEP] = 1 + (unsigned)mu_rng_below(&more, 60);
    job.on[T_KEEPER] = mu_rng_below(&more, 100) < density;
    job.percent[T_KEEPER] = 1 + (unsigned)mu_rng_below(&more, 60);
    job.on[T_BELOW] = mu_rng_below(&more, 100) < density;
    job.on[T_DARK] = mu_rng_below(&more, 100) < density / 2;
    w.on[F_STRANGER] = mu_rng_below(&more, 100) < density;
    w.on[F_FORGER] = mu_rng_below(&more, 100) < density / 4;
    job.on[T_FIND] = mu_rng_below(&more, 100) < 80;
    for (unsigned i = T_NAME; i <= T_MUTE; i++) {
        job.on[i] = job.on[T_FIND] && mu_rng_below(&more, 100) < density / 2;
        job.percent[i] = 1 + (unsigned)mu_rng_below(&more, 30);
    }
    if (faults_given) {
        memcpy(w.on, faults_wanted, sizeof w.on);
        memcpy(job.on, troubles_wanted, sizeof job.on);
    }
    w.percent[F_DEAF] = 50;
}

static void choose_settings(void)
{
    static const uint64_t keep_alives_ms[] = { 1000, 2000, 5000 };
    static const uint64_t last_calls_ms[] = { 300, 2000, 8000, 30000 };
    uint64_t n = w.nodes_count;

    w.settings = MU_RDZV_SETTINGS_DEFAULT;
    w.settings.keep_alive_ms = keep_alives_ms[below(3)];
    w.settings.keep_alive_attempts = 2 + (unsigned)below(2);
    w.settings.last_call_ms = last_calls_ms[below(4)];
    if (w.on[F_PLAIN] && w.settings.last_call_ms < 3000)
        w.settings.last_call_ms = 3000; /* who polls once a second would never meet */
    w.settings.join_ms = chance(50) ? 300000 : 600000;
    w.settings.close_ms = chance(50) ? 5000 : 30000;
    w.settings.lost_node_wait_ms = chance(80) ? 0 : below(5000);
    w.settings.store_lost_ms = UINT64_C(1000) << w.seed % 6;
    w.settings.nodes_max = (int64_t)(w.on[F_SPARES] && n > 1 ? 1 + below(n - 1) : n + below(3));
    w.settings.nodes_min = 1 + (int64_t)below((uint64_t)w.settings.nodes_max);
    if (w.settings.nodes_min > (int64_t)n)
        w.settings.nodes_min = (int64_t)n;
}

static void choose_job(void)
{
    job.max_restarts = (int64_t)below(chance(80) ? 5 : 100);
    if (job.on[T_LOOP] && job.max_restarts > 5)
        job.max_restarts = 5;
    job.run_us = 500 * MS + below(chance(50) ? 5 * SECOND : 40 * SECOND);
    job.barrier_ms = job.on[T_IMPATIENT] ? below(30000) : UINT64_MAX;
    job.grace_ms = (chance(50) ? 500u : 10000u) * (chance(50) ? 1u : 3u);
    job.wiped_us = 0;
    job.clean = !job.on[T_KEEPER] && !job.on[T_DARK] && !job.on[T_NAME] && !job.on[T_TAKEN] && !job.on[T_MUTE];
    for (unsigned i = 0; i < FAULTS_COUNT; i++)
        job.clean &= !w.on[i] || i == F_CLOCK || i == F_JUMP || i == F_LATE || i == F_SPARES || i == F_LAZY ||
                     i == F_REORDER || i == F_STALE;
    for (unsigned i = 0; i < AGENTS_MAX; i++) {
        job.agents[i] = (struct agent){ .procs.generation = job.agents[i].procs.generation };
        job.retired[i] = false;
    }
}

static void prepare(uint64_t seed)
{
    w.seed = seed;
    w.rng = mu_rng_seeded(seed);
    job.other = mu_rng_seeded(seed ^ 0x70726f63);
    job.pids = 1000;
    w.now_us = w.order = 0;
    w.lives = 0;
    w.ids_count = w.births = 0;
    w.trace_len = 0;
    w.calm = false;
    job.dark_us = 0;
    w.checking = true;
    w.hear = agent_hear;
    choose_faults();
    w.nodes_count = nodes_wanted != 0 ? nodes_wanted : 1 + (unsigned)below(chance(90) ? 6 : 10);
    choose_settings();
    choose_job();
    w.dialect = w.on[F_OLD] ? MU_DOC_DIALECT_1_13 : MU_DOC_DIALECT_2_X;
    w.slow_us = w.on[F_SLOW] ? (1 + below(10)) * 300 * MS : 0;
    w.host_slot = w.on[F_HOSTED] ? (int)below(w.nodes_count) : -1;
    w.storm_us = 2 * SECOND + below(chance(70) ? 40 * SECOND : 120 * SECOND);
    for (unsigned i = 0; i < w.nodes_count; i++)
        w.nodes[i] = (struct node){ .slot = i, .id = IDS_MAX };
    store_begin();
    if (w.host_slot >= 0)
        store_down(true, false); /* until its host is born */
    kv_begin();
    check_job_begin();
}

static void tell_plan(void)
{
    char text[TRACE_TEXT * 2];
    size_t len = 0;

    text[0] = '\0';
    for (unsigned i = 0; i < FAULTS_COUNT; i++) {
        if (w.on[i])
            len += (size_t)snprintf(text + len, sizeof text - len, ",%s", fault_names[i]);
    }
    for (unsigned i = 0; i < TROUBLES_COUNT; i++) {
        if (job.on[i])
            len += (size_t)snprintf(text + len, sizeof text - len, ",%s", trouble_names[i]);
    }
    TELL("seed 0x%" PRIx64 ": %u nodes, %" PRId64 " to %" PRId64 ", keep-alive %" PRIu64 " ms x %u, last call %" PRIu64
         " ms, storm %.1f s, %" PRId64 " restarts, workers run %.1f s",
         w.seed, w.nodes_count, w.settings.nodes_min, w.settings.nodes_max, w.settings.keep_alive_ms,
         w.settings.keep_alive_attempts, w.settings.last_call_ms, (double)w.storm_us / 1e6, job.max_restarts,
         (double)job.run_us / 1e6);
    TELL("faults: %s", text[0] != '\0' ? text + 1 : "none");
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
        count += w.nodes[i].alive;
    return count;
}

/* Nobody will ever hear of the store again. */
static void go_dark(void)
{
    job.dark_us = w.now_us;
    if (w.host_slot < 0) {
        store_down(w.seed % 2 == 0, false);
        return;
    }
    job.retired[w.host_slot] = true;
    node_die(&w.nodes[w.host_slot]);
}

static void calm_down(void)
{
    TELL("calm");
    w.calm = true;
    job.calm_us = w.now_us;
    if (job.on[T_DARK])
        go_dark();
    else if (w.host_slot < 0)
        store_up();
    for (unsigned i = 0; i < w.nodes_count; i++) {
        struct node *node = &w.nodes[i];

        node->cut_until_us = 0;
        if (node->steps_left >= 0)
            node->steps_left = -1;
    }
    reap();
    check_calm();
}

static const char *who_lives(void)
{
    static char text[200];
    size_t len = 0;

    for (unsigned i = 0; i < w.nodes_count && len < sizeof text - 1; i++) {
        const struct agent *agent = &job.agents[i];

        if (agent->job != NULL)
            len += (size_t)snprintf(text + len, sizeof text - len, " %s %s", agent->name,
                                    mu_policy_phase_text(mu_policy_phase(mu_job_policy(agent->job))));
    }
    return text;
}

/* As long as it takes to give up joining, twice, and what comes before and between. */
static void come_to_an_end(void)
{
    uint64_t bound = w.now_us + (2 * w.settings.join_ms + MU_RANKS_TIMEOUT_MS) * MS + 600 * SECOND;

    while (w.births > 0 || living() > 0) {
        EXPECT("E", w.now_us < bound, "%.0f s after the storm:%s", (double)(w.now_us - job.calm_us) / 1e6, who_lives());
        run_until(w.now_us + SECOND);
    }
    check_over();
}

static void clear_up(void)
{
    struct event event;

    for (unsigned i = 0; i < w.nodes_count; i++)
        node_die(&w.nodes[i]);
    bury();
    while (pop(&event)) {
        if (event.type == EV_JOB)
            free(due_take(event.life).what);
        else if (event.request != NULL && event.type != EV_TURN)
            request_free(event.request);
    }
    store_end();
    kv_end();
}

static void run_seed(uint64_t seed)
{
    prepare(seed);
    if (w.tracing)
        tell_plan();
    arrive();
    run_until(w.storm_us);
    calm_down();
    come_to_an_end();
    clear_up();
}

/* ---- The command line ---- */

static int usage(void)
{
    (void)fputs("usage: muster-sim-job [--seed N] [--seeds N | --time SECONDS | --stories] [--nodes N] [--faults LIST] "
                "[--trace]\n"
                "faults:",
                stderr);
    for (unsigned i = 0; i < FAULTS_COUNT; i++)
        (void)fprintf(stderr, " %s", fault_names[i]);
    for (unsigned i = 0; i < TROUBLES_COUNT; i++)
        (void)fprintf(stderr, " %s", trouble_names[i]);
    (void)fputs("\n", stderr);
    return 2;
}

static bool take_one(const char *name, size_t len, const char *const *names, unsigned count, bool *wanted)
{
    for (unsigned i = 0; i < count; i++) {
        if (strlen(names[i]) == len && memcmp(names[i], name, len) == 0)
            return wanted[i] = true;
    }
    return false;
}

static bool take_faults(const char *list)
{
    faults_given = true;
    if (strcmp(list, "none") == 0)
        return true;
    for (const char *at = list; *at != '\0';) {
        size_t len = strcspn(at, ",");

        if (!take_one(at, len, fault_names, FAULTS_COUNT, faults_wanted) &&
            !take_one(at, len, trouble_names, TROUBLES_COUNT, troubles_wanted))
            return false;
        at += len + (at[len] == ',');
    }
    return true;
}

/* Seeds that have found something out, with the faults that it takes. */
static const struct story {
    uint64_t seed;
    const char *faults, *what;
} stories[] = {
    { 0xec, "rebirth,jump,refused,stale,wipe,stubborn,dying,leftovers,uneven",
      "a done mark that the store has lost is set again, though only a wait for the last has failed" },
    { 0x125e, "rebirth,clock,reorder,slow,wipe,deaf,fail,unkillable,uneven", "the same, with one that looks in vain" },
    { 0x1aba, "clock,reorder,wipe,spares,plain,unkillable,nostart", "the same, with others who join" },
    { 0x3, "slow,wipe,deaf,uneven", "the same, in a crowd" },
    { 0x626d, "kill,rebirth,pause,lost,refused,reorder,slow,outage,wipe,cut,late,deaf,dying,unkillable,nostart,uneven",
      "ranks of another round of the same number are not ours" },
    { 0x20ff, "clock,lost,stale,outage,wipe,spares,plain,loop,nostart",
      "members who learn their restart count before and after the data are lost learn the same" },
    { 0x28db, "jump,lost,reorder,wipe,lazy,loop,unkillable", "the same, with nobody in a hurry" },
    { 0x2c, "hosted,kill,rebirth,late", "who was done in another round of the same number is not done in this one" },
    { 0x5, "hosted,fail,uneven", "the store's host, done and behind, ends when nobody else is left" },
    { 0x39, "hosted,leave,pause,lost,uneven", "the same, when the others were told to leave" },
    { 0x32, "wipe,old,uneven", "marks are set again whatever the document's dialect is" },
    { 0x753, "pause,clock,jump,refused,stale,outage,cut,late,spares,plain,deaf,loop,stubborn,leftovers,uneven",
      "who is done in a round that the others have left does not make a success of their failure" },
    { 0xab,
      "kill,rebirth,clock,jump,lost,slow,wipe,hosted,leave,spares,lazy,loop,leftovers,unkillable,nostart,impatient",
      "a spare of a store whose host has gone does not wait for ever" },
    { 0x1d04, "rebirth,slow,hosted,spares,deaf,fail,unkillable,uneven",
      "who is done does not wait for a verdict that went with the store" },
    { 0x116, "refused,reorder,slow,plain,lazy,nostart,mixed",
      "a counter of PyTorch's that is short of one does not keep those who are all done" },
    { 0xbaef, "rebirth,clock,lost,stale,slow,cut,late,spares,old,plain,stubborn,dying,uneven,mixed",
      "in 1.13's barrier nobody waits for the last word of one that was done and went" },
    { 0x14, "fail,stubborn,late",
      "a worker's failure ends the round for all at once, however long its siblings take to die" },
    { 0x920, "cut,fail,uneven",
      "a failure in a round that was over for the job costs nothing, though the store was silent for long" },
    { 0x12, "keeper,leftovers", "an agent whose keeper is gone does not end before what its workers have detached" },
    { 0x4632, "asleep,pause,fail,leftovers,dying,keeper,leave",
      "an agent that was stopped for longer than it would kill gives up nobody whom it has not killed" },
    { 0x1, "keeper,asleep", "the same, with workers that sleep in the kernel" },
    { 0x17c5, "wipe,boot,slow,late,rebirth,kill",
      "where a number comes again, nobody meets at the other round's address" },
    { 0x24e, "hosted,boot,pause,late,rebirth,kill", "the same, where the store went with its host" },
    { 0xa3, "wipe,boot,pause,kill", "a round that was left, and was put back by others, is left again" },
    { 0x102, "leftovers,unkillable,asleep,below,keeper,uneven",
      "who is below one that cannot be killed does not live on with it" },
    { 0x6afb21dad279e, "outage,leftovers,boot",
      "short outages between the reads of one node do not make it take another for lost" },
    { 0x6afb64287517e, "slow,outage,wipe,fail,boot",
      "who missed the round in which its claim was settled does not have it charged again" },
    { 0x6afb6845d1868, "stranger,forger,leave,fail,keeper,late",
      "who leaves for good does not keep the others from hearing of a failure" },
    { 0x6afba23fafa77, "outage,stubborn,dying,uneven,boot,find",
      "a done node does not end because of a store that is back" },
    { 0x4dd019eb759f, "outage,uneven,boot,find",
      "a done node that ends while the store is away may be missed by the others" },
    { 0x4dd019ebe9ed, "kill,pause,lost,slow,cut,late,spares,plain,fail,loop,nostart,below,find",
      "a job that has failed but could not be closed does not go on with a spare" },
};

struct options {
    uint64_t seed, seeds;
    double limit;
    bool seed_given, stories;
};

static bool take_option(struct options *options, const char *name, const char *value, bool *ret_took_value)
{
    *ret_took_value = false;
    if (strcmp(name, "--trace") == 0)
        return w.tracing = true;
    if (strcmp(name, "--stories") == 0)
        return options->stories = true;
    if (strcmp(name, "--replay") == 0)
        return w.tracing = w.replaying = true;
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
        return (nodes_wanted = (unsigned)strtoul(value, NULL, 0)) > 0 && nodes_wanted <= AGENTS_MAX;
    return false;
}

static int run_stories(const struct options *options)
{
    uint64_t runs = 0;

    for (size_t i = 0; i < sizeof stories / sizeof stories[0]; i++) {
        if (options->seed_given && stories[i].seed != options->seed)
            continue;
        memset(faults_wanted, 0, sizeof faults_wanted);
        memset(troubles_wanted, 0, sizeof troubles_wanted);
        if (!take_faults(stories[i].faults))
            return usage();
        printf("0x%" PRIx64 ": %s\n", stories[i].seed, stories[i].what);
        run_seed(stories[i].seed);
        runs++;
    }
    printf("sim_job: %" PRIu64 " stories end well\n", runs);
    return runs > 0 ? 0 : 1;
}

static int run(const struct options *options)
{
    double start = sim_seconds(), took = 0;
    uint64_t runs = 0;

    do {
        run_seed(options->seed + runs);
        runs++;
        took = sim_seconds() - start;
    } while (options->limit > 0 ? took < options->limit : runs < options->seeds);
    if (w.replaying) {
        printf("seed 0x%" PRIx64 " holds when it is run alone: a run has left something to the next one\n", w.seed);
        return 1;
    }
    printf("sim_job: %" PRIu64 " seeds from 0x%" PRIx64 " on hold; %.0f jobs/s, %" PRIu64 " rounds, %" PRIu64
           " agents ended (%" PRIu64 " without a keeper), %" PRIu64 " jobs succeeded, %" PRIu64 " failed, %" PRIu64
           " processes could not be killed\n",
           runs, options->seed, (double)runs / took, job.rounds, job.ends, job.keepers, job.jobs_succeeded,
           job.jobs_failed, job.given_up);
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
    w.nodes = calloc(AGENTS_MAX, sizeof w.nodes[0]);
    if (w.nodes == NULL)
        abort();
    rc = options.stories ? run_stories(&options) : run(&options);
    free(w.nodes);
    free(w.heap);
    free(w.trace);
    free(dues);
    return rc;
}
