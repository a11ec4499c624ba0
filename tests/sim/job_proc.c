/* The processes of an agent, and how they are stopped: by the program's own machine of proc/stop.h, with the list of
 * who is there that its driver would make.
 *
 * Workers run for a while and exit, or fail; they die of signals at once, slowly, or of no other one than SIGKILL.
 * Around them there may be
 *   - children in their group, who stay when they are gone, or go a moment later
 *   - detached ones, and detached ones of these: the agent sees them only when their parent is dead, or does not die
 *   - a manager of shared memory, which goes two seconds after its worker
 *   - any of them in uninterruptible sleep from the first signal on that would end it, for a while or for ever
 *   - one that the agent is not permitted to signal
 * Processes die also while their agent is paused; it then hears of it later. */
#include "job_sim.h"

#include <signal.h>

#define MANAGER_US (2 * SECOND) /* that it waits after the last it has served */
#define NAP_US (4 * SECOND)     /* a sleep that the stop waits for */
#define FOR_EVER UINT64_MAX

enum { AGENT = -1 }; /* as a parent */

static void on_end(struct agent *agent, void *what, uint64_t number);

/* ---- Chances of its own, so that the stories' numbers stay what they are ---- */

static uint64_t other_below(uint64_t bound)
{
    return mu_rng_below(&job.other, bound);
}

static bool other_chance(unsigned percent)
{
    return other_below(100) < percent;
}

static bool other_trouble(enum trouble which)
{
    return job.on[which] && !w.calm && other_chance(job.percent[which]);
}

/* ---- Living and dying ---- */

static bool is_asleep(const struct proc *proc)
{
    return proc->wake_us > w.now_us;
}

static bool lives(const struct proc *proc)
{
    return proc->alive && (proc->end_us > w.now_us || is_asleep(proc));
}

bool procs_any(const struct agent *agent)
{
    for (unsigned i = 0; i < agent->procs.table_count; i++) {
        if (lives(&agent->procs.table[i]))
            return true;
    }
    return false;
}

bool procs_killed(const struct agent *agent)
{
    for (unsigned i = 0; i < agent->procs.spawned; i++) {
        if (lives(&agent->procs.table[i]) && !agent->procs.table[i].killed)
            return false;
    }
    return true;
}

static void ends_at(struct agent *agent, struct proc *proc, uint64_t at_us)
{
    if (!proc->alive || proc->end_us <= at_us)
        return;
    proc->end_us = at_us;
    later(at_us, on_end, agent, NULL, agent->procs.generation << 8 | (unsigned)(proc - agent->procs.table));
}

/* Who goes some time after its parent. */
static void outlive(struct agent *agent, struct proc *proc, uint64_t died_us)
{
    if (proc->stays_us != FOR_EVER)
        ends_at(agent, proc, (died_us + proc->stays_us > w.now_us ? died_us + proc->stays_us : w.now_us));
}

static void die(struct agent *agent, struct proc *proc)
{
    struct processes *procs = &agent->procs;
    int index = (int)(proc - procs->table);
    uint64_t died_us = proc->wake_us > proc->end_us ? proc->wake_us : proc->end_us;

    procs->last_us = died_us > procs->last_us ? died_us : procs->last_us;
    proc->alive = false;
    proc->direct = proc->parent == AGENT;
    proc->ok = !procs->stopping && !proc->fails;
    procs->running -= proc->leader;
    for (unsigned i = 0; i < procs->table_count; i++) {
        struct proc *child = &procs->table[i];

        if (child->alive && child->parent == index) {
            child->parent = AGENT;
            outlive(agent, child, died_us);
        }
    }
}

/* Whoever has died by now is dead. */
static void settle(struct agent *agent)
{
    struct processes *procs = &agent->procs;
    bool again = true;

    while (again) {
        again = false;
        for (unsigned i = 0; i < procs->table_count; i++) {
            if (!procs->table[i].alive || lives(&procs->table[i]))
                continue;
            die(agent, &procs->table[i]);
            again = true;
        }
    }
}

/* ---- Signals ---- */

static uint64_t to_die_us(const struct proc *proc)
{
    if (proc->die_us > 0)
        return proc->die_us - 1;
    return other_trouble(T_DYING) ? other_below(4 * SECOND) : other_below(30 * MS);
}

/* How long workers take to die is drawn for all of them, alive or not, when they are told to, and once more when their
 * grace would be over: the stories hang on how often. */
static void draw_deaths(struct processes *procs, int signal)
{
    for (unsigned i = 0; i < procs->count; i++) {
        struct proc *worker = &procs->table[i];
        bool started = i < procs->spawned;

        if (!started || !worker->ignores || signal == SIGKILL) {
            uint64_t us = trouble(T_DYING) ? below(4 * SECOND) : below(30 * MS);

            if (started)
                worker->die_us = us + 1;
        }
    }
    procs->drawn |= signal == SIGKILL;
}

static void on_grace_over(struct agent *agent, void *what, uint64_t number)
{
    struct processes *procs = &agent->procs;

    (void)what;
    if (procs->generation == number && !procs->drawn && procs->draw_us <= w.now_us)
        draw_deaths(procs, SIGKILL);
}

static void plan_deaths(struct agent *agent, int signal, uint64_t grace_ms)
{
    struct processes *procs = &agent->procs;
    uint64_t at_us = w.now_us + grace_ms * MS;

    draw_deaths(procs, signal);
    if (signal != SIGKILL && (procs->draw_us == 0 || at_us < procs->draw_us)) {
        procs->draw_us = at_us;
        later(at_us, on_grace_over, agent, NULL, procs->generation);
    }
}

static void deliver(struct agent *agent, struct proc *proc, int signal)
{
    if (!lives(proc) || proc->foreign || signal == SIGCONT || (proc->ignores && signal != SIGKILL))
        return;
    proc->killed |= signal == SIGKILL;
    if (proc->sleep_us > 0 && proc->wake_us == 0) {
        proc->wake_us = proc->sleep_us == FOR_EVER ? FOR_EVER : w.now_us + proc->sleep_us;
        TELL("%s: pid %d sleeps in the kernel for %s", agent->name, (int)proc->pid,
             proc->sleep_us == FOR_EVER ? "ever" : "a while");
    }
    if (proc->wake_us != FOR_EVER) {
        uint64_t us = to_die_us(proc);

        if (is_asleep(proc) && proc->killed && us > 30 * MS)
            us = 30 * MS; /* a nap and a slow death would be more than a stop waits for */
        ends_at(agent, proc, (is_asleep(proc) ? proc->wake_us : w.now_us) + us);
    }
}

static void signal_group(struct agent *agent, int32_t rank, int signal)
{
    struct processes *procs = &agent->procs;

    for (unsigned i = 0; i < procs->table_count; i++) {
        if (procs->table[i].rank == rank)
            deliver(agent, &procs->table[i], signal);
    }
}

static void signal_groups(struct agent *agent, int signal)
{
    for (unsigned i = 0; i < agent->procs.spawned; i++)
        signal_group(agent, (int32_t)i, signal);
}

static void signal_leaders(struct agent *agent, int signal)
{
    for (unsigned i = 0; i < agent->procs.spawned; i++)
        deliver(agent, &agent->procs.table[i], signal);
}

static void signal_children(struct agent *agent, int signal)
{
    struct processes *procs = &agent->procs;

    for (unsigned i = 0; i < procs->spawned; i++) {
        if (procs->table[i].alive)
            signal_group(agent, (int32_t)i, signal);
    }
    for (unsigned i = procs->spawned; i < procs->table_count; i++) {
        struct proc *proc = &procs->table[i];

        if (!proc->alive || proc->parent != AGENT)
            continue;
        proc->refused |= proc->foreign;
        deliver(agent, proc, signal);
    }
}

static void signal_below(struct agent *agent, int signal)
{
    for (unsigned i = 0; i < agent->procs.table_count; i++) {
        struct proc *proc = &agent->procs.table[i];

        if (!proc->below)
            continue;
        proc->refused |= proc->foreign;
        deliver(agent, proc, signal);
    }
}

/* ---- The stop ---- */

static void on_finish(struct agent *agent, void *what, uint64_t number);
static void on_time(struct agent *agent, void *what, uint64_t number);

static char state_of(const struct proc *proc, bool with_states)
{
    if (!proc->alive)
        return 'Z';
    if (proc->leader && !with_states)
        return '?';
    return is_asleep(proc) || proc->hangs ? 'D' : 'S';
}

static struct mu_stop_child view_of(const struct proc *proc, bool with_states)
{
    return (struct mu_stop_child){ .pid = proc->pid,
                                   .state = state_of(proc, with_states),
                                   .leader = proc->leader,
                                   .rank = proc->rank,
                                   .refused = proc->refused,
                                   .below = proc->below,
                                   .comm = proc->manager ? "torch_shm_manag" : "trainer" };
}

/* Whether one of those above it does not end. */
static bool is_below(const struct processes *procs, const struct proc *proc)
{
    bool wanted = false;

    for (int at = proc->parent; at != AGENT && !wanted; at = procs->table[at].parent) {
        struct mu_stop_child above = view_of(&procs->table[at], true);

        wanted = procs->table[at].parent == AGENT && mu_stop_wants_below(&procs->stop, &above);
    }
    return wanted && proc->alive;
}

static size_t make_view(struct processes *procs, bool with_states, struct mu_stop_child view[static PROCS_MAX])
{
    size_t count = 0;

    for (unsigned i = 0; i < procs->table_count; i++) {
        struct proc *proc = &procs->table[i];

        proc->below = is_below(procs, proc);
        if (proc->leader || proc->below || (proc->alive && proc->parent == AGENT))
            view[count++] = view_of(proc, with_states);
    }
    return count;
}

static void perform(struct agent *agent, const struct mu_stop_effect *effect)
{
    struct processes *procs = &agent->procs;

    switch (effect->type) {
    case MU_STOP_DO_SIGNAL_GROUPS:
        signal_groups(agent, effect->signal);
        break;
    case MU_STOP_DO_SIGNAL_LEADERS:
        signal_leaders(agent, effect->signal);
        break;
    case MU_STOP_DO_SIGNAL_CHILDREN:
        signal_children(agent, effect->signal);
        break;
    case MU_STOP_DO_SIGNAL_BELOW:
        signal_below(agent, effect->signal);
        break;
    case MU_STOP_DO_SAY:
        TELL("%s: the stop says: %s", agent->name, effect->text);
        break;
    case MU_STOP_DO_DONE:
        procs->done = true;
        later(w.now_us + below(2 * MS), on_finish, agent, NULL, procs->generation);
        break;
    }
}

static void arm(struct agent *agent)
{
    uint64_t ms = mu_stop_deadline_ms(&agent->procs.stop), now_us = w.now_us + agent->node->mono_offset_us;

    agent->procs.timer_generation++;
    if (!agent->procs.done && ms != UINT64_MAX)
        later(ms * MS <= now_us ? w.now_us : ms * MS - agent->node->mono_offset_us, on_time, agent, NULL,
              agent->procs.timer_generation);
}

static void step(struct agent *agent, struct mu_stop_event event)
{
    struct processes *procs = &agent->procs;
    enum mu_stop_state before = procs->stop.state;
    struct mu_stop_child view[PROCS_MAX];
    struct mu_stop_effects effects;

    if (procs->done)
        return;
    settle(agent);
    event.now_ms = node_ms(agent->node);
    event.children = view;
    event.count = make_view(procs, event.type == MU_STOP_ON_STOP || before == MU_STOP_KILLING, view);
    mu_stop_step(&procs->stop, &event, &effects);
    if (event.type == MU_STOP_ON_STOP &&
        (before == MU_STOP_IDLE || (before == MU_STOP_GRACE && event.now_ms + event.grace_ms < procs->grace_ms)))
        procs->grace_ms = event.now_ms + event.grace_ms;
    else if (event.type == MU_STOP_ON_KILL)
        procs->grace_ms = event.now_ms;
    if (procs->stop.state == MU_STOP_KILLING && before != MU_STOP_KILLING)
        procs->last_us = w.now_us;
    if (procs->stop.state != before)
        TELL("%s: the stop is now in %s", agent->name, mu_stop_state_name(procs->stop.state));
    for (unsigned i = 0; i < effects.count; i++)
        perform(agent, &effects.items[i]);
    check_stopping(agent);
    arm(agent);
}

static void on_time(struct agent *agent, void *what, uint64_t number)
{
    (void)what;
    if (number == agent->procs.timer_generation)
        step(agent, (struct mu_stop_event){ .type = MU_STOP_ON_TIME });
}

static void report(struct agent *agent)
{
    const struct mu_stop *stop = &agent->procs.stop;

    for (size_t i = 0; i < stop->left_count && i < MU_STOP_LEFT_MAX; i++) {
        for (unsigned k = 0; k < agent->procs.table_count; k++) {
            struct proc *proc = &agent->procs.table[k];

            if (proc->pid != stop->left[i].pid)
                continue;
            proc->reported = true;
            check_given_up(agent, proc, proc->foreign || proc->sleep_us > NAP_US);
        }
    }
}

/* Everything of a life of workers is told before this is. */
static void on_finish(struct agent *agent, void *what, uint64_t number)
{
    struct processes *procs = &agent->procs;
    int64_t left = (int64_t)procs->stop.left_count;
    char text[1024];

    (void)what;
    if (procs->generation != number)
        return;
    settle(agent);
    for (unsigned i = 0; i < procs->spawned; i++) { /* before their numbers are free */
        if (!procs->table[i].alive)
            signal_group(agent, (int32_t)i, SIGKILL);
    }
    report(agent);
    procs->stopped = true;
    mu_stop_left_text(&procs->stop, text, sizeof text);
    TELL("%s: workers have stopped%s%s", agent->name, left > 0 ? ", but not " : "", text);
    agent_tell(agent, (struct mu_policy_event){
                          .type = MU_POLICY_ON_STOPPED, .round = agent->round, .number = left, .text = text });
}

static void tell_exits(struct agent *agent, uint64_t generation)
{
    for (unsigned i = 0; i < agent->procs.spawned && agent->procs.generation == generation; i++) {
        struct proc *proc = &agent->procs.table[i];

        if (proc->alive || proc->told)
            continue;
        proc->told = true;
        agent->procs.failed |= !proc->ok && !agent->procs.stopping;
        TELL("%s: worker %u %s", agent->name, i, proc->ok ? "is done" : "has failed");
        agent_tell(agent,
                   (struct mu_policy_event){ .type = MU_POLICY_ON_EXITED,
                                             .round = agent->round,
                                             .number = (int64_t)i,
                                             .ok = proc->ok,
                                             .text = proc->ok ? "worker exited with 0" : "worker exited with 1" });
    }
}

static void on_end(struct agent *agent, void *what, uint64_t number)
{
    struct processes *procs = &agent->procs;
    struct proc *proc = &procs->table[number & 0xff];

    (void)what;
    if (procs->generation != number >> 8)
        return;
    settle(agent);
    if (proc->alive) { /* it was to end sooner, or later */
        if (is_asleep(proc) && proc->wake_us != FOR_EVER && proc->end_us <= w.now_us)
            later(proc->wake_us, on_end, agent, NULL, number);
        return;
    }
    if (proc->direct && procs->stopping) /* nobody is told of the others' death */
        step(agent, (struct mu_stop_event){ .type = MU_STOP_ON_CHILDREN });
    proc->direct = false;
    tell_exits(agent, number >> 8);
}

void procs_stop(struct agent *agent, int signal, uint64_t grace_ms)
{
    struct processes *procs = &agent->procs;

    EXPECT("stop", procs->started && !procs->stopped, "%s stops workers that are none", agent->name);
    settle(agent);
    if (!procs->stopping)
        mu_stop_init(&procs->stop, 0);
    procs->stopping = true;
    plan_deaths(agent, signal, grace_ms);
    if (signal == SIGKILL)
        step(agent, (struct mu_stop_event){ .type = MU_STOP_ON_KILL });
    else
        step(agent, (struct mu_stop_event){ .type = MU_STOP_ON_STOP, .signal = signal, .grace_ms = grace_ms });
}

/* ---- Workers ---- */

/* It is noticed by its agent, if that does not stop it anyway. */
static void on_hang(struct agent *agent, void *what, uint64_t number)
{
    struct processes *procs = &agent->procs;
    struct proc *proc = &procs->table[number & 0xff];

    (void)what;
    if (procs->generation != number >> 8 || procs->stopping || !lives(proc))
        return;
    TELL("%s: worker %u hangs", agent->name, (unsigned)(number & 0xff));
    proc->hangs = true;
    agent->personal = true;
    agent_tell(agent, (struct mu_policy_event){ .type = MU_POLICY_ON_UNHEALTHY,
                                                .round = agent->round,
                                                .number = (int64_t)(number & 0xff),
                                                .text = "worker hangs" });
}

static struct proc *spawn(struct agent *agent, int parent, int32_t rank)
{
    struct proc *proc = &agent->procs.table[agent->procs.table_count++];

    if (agent->procs.table_count > PROCS_MAX)
        abort();
    *proc = (struct proc){
        .pid = ++job.pids, .alive = true, .parent = parent, .rank = rank, .end_us = FOR_EVER, .stays_us = FOR_EVER
    };
    if (other_trouble(T_ASLEEP))
        proc->sleep_us = 1 + other_below(NAP_US);
    return proc;
}

static void run(struct agent *agent, unsigned index)
{
    struct proc *worker = spawn(agent, AGENT, (int32_t)index);
    uint64_t us = job.run_us + below(300 * MS);

    if (job.on[T_UNEVEN])
        us += below(20 * SECOND);
    worker->leader = true;
    worker->ignores = trouble(T_STUBBORN);
    if (trouble(T_FAIL) || (job.on[T_LOOP] && chance(60))) {
        worker->fails = true;
        us = below(us + 1);
    } else if (trouble(T_HANG) && chance(20)) {
        worker->ignores = true;
        later(w.now_us + below(us), on_hang, agent, NULL, agent->procs.generation << 8 | index);
        us += 60 * SECOND;
    }
    agent->procs.running++;
    agent->procs.spawned++;
    ends_at(agent, worker, w.now_us + us);
}

/* ---- What they start ---- */

static struct proc *spawn_below(struct agent *agent, int parent, int32_t rank)
{
    struct proc *proc = spawn(agent, parent, rank);

    proc->ignores = other_chance(50);
    return proc;
}

static void surround(struct agent *agent, unsigned worker)
{
    unsigned kinds = 1 + (unsigned)other_below(15);
    struct proc *proc;

    if ((kinds & 1) != 0) {
        proc = spawn_below(agent, (int)worker, (int32_t)worker);
        if (other_chance(50))
            proc->stays_us = other_below(2 * SECOND);
    }
    if ((kinds & 2) != 0) { /* a detached one, and perhaps one below it */
        proc = spawn_below(agent, other_chance(80) ? (int)worker : AGENT, -1);
        if (other_chance(60))
            (void)spawn_below(agent, (int)(proc - agent->procs.table), -1);
    }
    if ((kinds & 4) != 0) { /* detached from within the group */
        proc = spawn_below(agent, (int)worker, (int32_t)worker);
        (void)spawn_below(agent, (int)(proc - agent->procs.table), -1);
    }
    if ((kinds & 8) != 0) {
        proc = spawn(agent, (int)worker, -1);
        proc->manager = true;
        proc->stays_us = MANAGER_US;
        proc->sleep_us = 0;
    }
}

static bool has_children(const struct processes *procs, unsigned index)
{
    for (unsigned i = 0; i < procs->table_count; i++) {
        if (procs->table[i].alive && procs->table[i].parent == (int)index)
            return true;
    }
    return false;
}

/* One that has children, if that is wanted, or one that has none. */
static void make_unkillable(struct processes *procs, unsigned from)
{
    unsigned index = from + (unsigned)other_below(procs->table_count - from);
    struct proc *proc;

    while (has_children(procs, index) != job.on[T_BELOW] && index + 1 < procs->table_count)
        index++;
    if (has_children(procs, index) && !job.on[T_BELOW])
        return;
    proc = &procs->table[index];
    if (!proc->leader && proc->rank < 0 && other_chance(40))
        proc->foreign = true;
    else
        proc->sleep_us = other_chance(50) ? FOR_EVER : 6 * SECOND + other_below(20 * SECOND);
}

bool procs_start(struct agent *agent)
{
    unsigned count = (unsigned)agent->size, most = count;
    bool fails = trouble(T_NOSTART) && chance(10);
    uint64_t generation = agent->procs.generation + 1, timer = agent->procs.timer_generation + 1;
    bool left, unkillable;

    agent->procs =
        (struct processes){ .count = count, .started = true, .generation = generation, .timer_generation = timer };
    if (fails)
        most = (unsigned)below(count);
    for (unsigned i = 0; i < most; i++)
        run(agent, i);
    left = trouble(T_LEFTOVERS);
    unkillable = left && trouble(T_UNKILLABLE) && chance(20);
    for (unsigned i = 0; i < most && left; i++) {
        if (i == 0 || other_chance(60))
            surround(agent, i);
    }
    if (unkillable && agent->procs.table_count > most)
        make_unkillable(&agent->procs, most);
    else if (most > 0 && other_trouble(T_UNKILLABLE) && other_chance(10))
        make_unkillable(&agent->procs, 0);
    return !fails;
}

/* ---- The agent's life ---- */

static void on_keeper_gone(struct agent *agent, void *what, uint64_t number)
{
    (void)what;
    (void)number;
    if (w.calm)
        return;
    TELL("%s: its keeper is gone", agent->name);
    agent->personal = true;
    agent->keeper_us = w.now_us;
    job.keepers++;
    agent_tell(agent, (struct mu_policy_event){ .type = MU_POLICY_ON_KEEPER_GONE, .round = -1 });
}

void procs_birth(struct agent *agent)
{
    if (other_trouble(T_KEEPER))
        later(w.now_us + other_below(w.storm_us), on_keeper_gone, agent, NULL, 0);
}

/* An agent that was killed has a keeper, or its machine is gone. */
void procs_bury(struct agent *agent)
{
    agent->procs.running = agent->procs.table_count = agent->procs.spawned = 0;
    agent->procs.generation++;
}
