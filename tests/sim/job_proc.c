/* The processes of an agent: they run for a while and exit, or fail; they die of signals at once, slowly, or of no other
 * one than SIGKILL; they leave something behind that has to be killed, or cannot be. */
#include "job_sim.h"

#include <signal.h>

#define UNKILLABLE_US (10 * SECOND) /* after which what cannot be killed is called that */

static void on_end(struct agent *agent, void *what, uint64_t number);

bool procs_any(const struct agent *agent)
{
    return agent->procs.running > 0 || agent->procs.left;
}

static void ends_at(struct agent *agent, unsigned index, uint64_t at_us)
{
    struct worker *worker = &agent->procs.workers[index];

    if (!worker->runs || worker->end_us <= at_us)
        return;
    worker->end_us = at_us;
    later(at_us, on_end, agent, NULL, agent->procs.generation << 8 | index);
}

static void on_stopped(struct agent *agent, void *what, uint64_t number)
{
    struct processes *procs = &agent->procs;

    (void)what;
    if (procs->generation != number)
        return;
    TELL("%s: workers have stopped%s", agent->name, procs->left ? ", but one cannot be killed" : "");
    agent_tell(agent, (struct mu_policy_event){ .type = MU_POLICY_ON_STOPPED,
                                                .round = agent->round,
                                                .number = procs->left,
                                                .text = procs->left ? "pid 4711 (trainer)" : "" });
}

/* What they have left behind dies of the same signals. */
static void on_left_gone(struct agent *agent, void *what, uint64_t number)
{
    struct processes *procs = &agent->procs;

    (void)what;
    if (procs->generation != number || procs->stopped)
        return;
    procs->left = procs->unkillable;
    procs->stopped = true;
    on_stopped(agent, NULL, number);
}

static void see_if_stopped(struct agent *agent)
{
    struct processes *procs = &agent->procs;

    if (!procs->stopping || procs->stopped || procs->running > 0)
        return;
    if (procs->left) {
        later(w.now_us + (procs->unkillable ? UNKILLABLE_US : below(2 * SECOND)), on_left_gone, agent, NULL,
              procs->generation);
        return;
    }
    procs->stopped = true;
    later(w.now_us + below(2 * MS), on_stopped, agent, NULL, procs->generation);
}

static void on_end(struct agent *agent, void *what, uint64_t number)
{
    struct processes *procs = &agent->procs;
    struct worker *worker = &procs->workers[number & 0xff];
    bool ok = !procs->stopping && !worker->fails;

    (void)what;
    if (procs->generation != number >> 8 || !worker->runs || worker->end_us > w.now_us)
        return;
    worker->runs = false;
    procs->running--;
    procs->failed |= !ok && !procs->stopping;
    TELL("%s: worker %u %s", agent->name, (unsigned)(number & 0xff), ok ? "is done" : "has failed");
    agent_tell(agent, (struct mu_policy_event){ .type = MU_POLICY_ON_EXITED,
                                                .round = agent->round,
                                                .number = (int64_t)(number & 0xff),
                                                .ok = ok,
                                                .text = ok ? "worker exited with 0" : "worker exited with 1" });
    if (procs->generation == number >> 8)
        see_if_stopped(agent);
}

static uint64_t to_die_us(void)
{
    return trouble(T_DYING) ? below(4 * SECOND) : below(30 * MS);
}

static void kill_all(struct agent *agent)
{
    agent->procs.killed = true;
    for (unsigned i = 0; i < agent->procs.count; i++)
        ends_at(agent, i, w.now_us + to_die_us());
}

static void on_kill(struct agent *agent, void *what, uint64_t number)
{
    (void)what;
    if (agent->procs.generation != number || agent->procs.killed || agent->procs.kill_us > w.now_us)
        return;
    TELL("%s: time is up: workers are killed", agent->name);
    kill_all(agent);
}

void procs_stop(struct agent *agent, int signal, uint64_t grace_ms)
{
    struct processes *procs = &agent->procs;
    bool first = !procs->stopping;
    uint64_t kill_us = w.now_us + grace_ms * MS;

    procs->stopping = true;
    if (signal == SIGKILL) {
        kill_all(agent);
    } else {
        for (unsigned i = 0; i < procs->count; i++) {
            if (!procs->workers[i].ignores)
                ends_at(agent, i, w.now_us + to_die_us());
        }
        if (procs->kill_us == 0 || kill_us < procs->kill_us) {
            procs->kill_us = kill_us;
            later(kill_us, on_kill, agent, NULL, procs->generation);
        }
    }
    if (first)
        see_if_stopped(agent);
}

/* It is noticed by its agent, if that does not stop it anyway. */
static void on_hang(struct agent *agent, void *what, uint64_t number)
{
    struct processes *procs = &agent->procs;

    (void)what;
    if (procs->generation != number >> 8 || procs->stopping || !procs->workers[number & 0xff].runs)
        return;
    TELL("%s: worker %u hangs", agent->name, (unsigned)(number & 0xff));
    agent->personal = true;
    agent_tell(agent, (struct mu_policy_event){ .type = MU_POLICY_ON_UNHEALTHY,
                                                .round = agent->round,
                                                .number = (int64_t)(number & 0xff),
                                                .text = "worker hangs" });
}

static void run(struct agent *agent, unsigned index)
{
    struct worker *worker = &agent->procs.workers[index];
    uint64_t us = job.run_us + below(300 * MS);

    if (job.on[T_UNEVEN])
        us += below(20 * SECOND);
    *worker = (struct worker){ .runs = true, .ignores = trouble(T_STUBBORN), .end_us = UINT64_MAX };
    if (trouble(T_FAIL) || (job.on[T_LOOP] && chance(60))) {
        worker->fails = true;
        us = below(us + 1);
    } else if (trouble(T_HANG) && chance(20)) {
        worker->ignores = true;
        later(w.now_us + below(us), on_hang, agent, NULL, agent->procs.generation << 8 | index);
        us += 60 * SECOND;
    }
    agent->procs.running++;
    ends_at(agent, index, w.now_us + us);
}

bool procs_start(struct agent *agent)
{
    unsigned count = (unsigned)agent->size, most = count;
    bool fails = trouble(T_NOSTART) && chance(10);

    agent->procs = (struct processes){ .count = count, .started = true, .generation = agent->procs.generation + 1 };
    if (fails)
        most = (unsigned)below(count);
    for (unsigned i = 0; i < most; i++)
        run(agent, i);
    agent->procs.left = trouble(T_LEFTOVERS);
    agent->procs.unkillable = agent->procs.left && trouble(T_UNKILLABLE) && chance(20);
    return !fails;
}
