/* What must hold of a job:
 *
 *   G1  workers of a round are started with the ranks that follow from the members and their sizes, so that together
 *       they are 0..n-1, and with the round's one restart count
 *   G2  nothing of an old round's workers is there when a node joins, or starts new ones; those of a node that was
 *       removed are killed at once
 *   G3  a lost member that was not done makes the others regroup, in bounded time; one that was done never does
 *   G4  the document is closed with a verdict in the store: success when all members of a round are done, failure when
 *       the budget is used up
 *   B   a round that a worker's failure ended costs one restart, once, and none if a member was lost before that
 *       failure; the job fails when none is left, and not before; a round that was already over costs nothing
 *   T   a worker's failure ends the round for all at once, however long it takes its own agent to stop the others
 *   S   a group's state follows from the one before, and from what its agent is about
 *   G5  no process is left when an agent ends, whatever made it end; but for those that cannot be killed, who are named
 *   G8  a store that is away stops no worker
 *   E   an agent ends once, in bounded time after a signal; after the storm every job ends, all as one */
#include "job_sim.h"

#define UNSAID_US (30 * SECOND + 10 * SECOND) /* how long the end of a job is tried, and a margin */

struct round_seen { /* in which workers were started, or failed */
    unsigned incarnation;
    int64_t round;
    bool failed;
    uint64_t failed_us;
    unsigned failed_id; /* whose worker */
    bool counted;       /* workers were started in it, and the count is the job's */
    int64_t count;
    uint64_t tag;
    size_t world_count;
    unsigned world[AGENTS_MAX];
};

static struct {
    struct round_seen rounds[4096];
    size_t count;
    int64_t failed;   /* rounds that a worker's failure ended */
    int64_t outdated; /* failures in rounds that were not the job's any more */
    bool fail_job, closed;
    bool stirred; /* somebody leaves a round to join again: it is missed, too */
    /* The end. */
    bool calm, must_end_as_one;
    bool unsaid; /* a node could not say that the job has succeeded */
    unsigned ends_good, ends_bad, ends_closed;
    char bad[96], good[96];
} c;

/* ---- What rdzv_store.c and rdzv_node.c want to have checked; here it is the other simulator's business ---- */

unsigned id_of(const struct mu_node *node)
{
    return (unsigned)node->local_id & (IDS_MAX - 1);
}

void check_sent_write(struct node *author, const struct mu_rdzv_effect *effect)
{
    (void)author;
    (void)effect;
}

void check_seen(struct node *node, const struct request *request)
{
    (void)node;
    (void)request;
}

void check_tell(struct node *node, const struct mu_rdzv_effect *effect)
{
    (void)node;
    (void)effect;
}

bool stock_in(const struct node *node, int64_t round)
{
    (void)node;
    (void)round;
    return false;
}

void stock_die(struct node *node)
{
    (void)node;
}

/* ---- Rounds ---- */

static struct round_seen *round_of(const struct agent *a)
{
    struct round_seen *seen;

    for (size_t i = 0; i < c.count; i++) {
        seen = &c.rounds[i];
        /* Where data were lost the same number may come again, with others. */
        if (seen->incarnation == a->incarnation && seen->round == a->round && seen->world_count == a->world_count &&
            memcmp(seen->world, a->world, a->world_count * sizeof a->world[0]) == 0)
            return seen;
        EXPECT("G1", seen->incarnation != a->incarnation || seen->round != a->round || job.wiped_us != 0,
               "%s: round %" PRId64 " has two worlds", a->name, a->round);
    }
    EXPECT("rounds", c.count < sizeof c.rounds / sizeof c.rounds[0], "too many rounds");
    seen = &c.rounds[c.count++];
    *seen = (struct round_seen){ .incarnation = a->incarnation, .round = a->round, .world_count = a->world_count };
    memcpy(seen->world, a->world, sizeof seen->world);
    job.rounds++;
    return seen;
}

void check_joining(const struct agent *a)
{
    EXPECT("G2", !procs_any(a), "%s joins with processes of the old round", a->name);
}

/* It leaves, and is missed. */
void check_boot_failed(struct agent *a)
{
    a->personal = true;
    c.stirred = true;
}

/* All who run workers in a round do so with one restart count. (A member of a round that was restored, after it was
 * lost with its store, may be in it for a second time.) */
static void check_count(const struct agent *a)
{
    for (unsigned i = 0; i < w.nodes_count; i++) {
        const struct agent *b = &job.agents[i];

        EXPECT("G1",
               b == a || b->job == NULL || b->ended || b->procs.running == 0 || b->round != a->round ||
                   b->tag != a->tag || b->assigned.count == a->assigned.count,
               "%s: restart %" PRId64 ", for %s it is %" PRId64, a->name, a->assigned.count, b->name,
               b->assigned.count);
    }
}

/* Failures that may have been paid for: also those of rounds that were over, if the store has forgotten that, or a
 * stranger has overwritten it. */
static int64_t failures_paid(void)
{
    return c.failed + (job.wiped_us != 0 || w.on[F_STRANGER] ? c.outdated : 0);
}

/* Killed before the round's first failure, without a goodbye, and not in this round; and one who knows that is. */
static bool lost_a_member(const struct round_seen *last, const struct agent *a)
{
    bool lost = false, known = false;

    for (size_t i = 0; i < last->world_count; i++) {
        uint64_t died_us = job.died_us[last->world[i]];
        char key[128];
        bool said = false;

        for (size_t j = 0; j < a->world_count; j++)
            said |= a->world[j] == last->world[i];
        (void)snprintf(key, sizeof key, "muster." RUN_ID "/%" PRId64 ".%016" PRIx64 "/left/%zu", last->round, last->tag,
                       i);
        known |= said;
        said |= kv_find(key, NULL, NULL);
        (void)snprintf(key, sizeof key, "muster." RUN_ID "/%" PRId64 ".%016" PRIx64 "/done/%zu", last->round, last->tag,
                       i);
        said |= kv_find(key, NULL, NULL);
        lost |= died_us != 0 && died_us < last->failed_us && !said;
    }
    return lost && known;
}

/* What the last round that had workers has cost. */
static void check_charge(const struct agent *a, struct round_seen *now)
{
    const struct round_seen *last = NULL;
    int64_t most = 0;

    now->counted = true;
    now->count = a->assigned.count;
    now->tag = a->tag;
    for (size_t i = 0; i < c.count; i++) {
        const struct round_seen *seen = &c.rounds[i];

        if (seen->counted && seen->incarnation == now->incarnation && seen->round < now->round &&
            (last == NULL || seen->round > last->round))
            last = seen;
        most = seen->counted && seen != now && seen->count > most ? seen->count : most;
    }
    if (last == NULL || job.wiped_us != 0)
        return;
    /* What a stranger has overwritten is lost, if nobody in this round knows it, until somebody comes who does. */
    most = w.on[F_STRANGER] ? most : last->count;
    EXPECT("B", (now->count >= last->count || w.on[F_STRANGER]) && now->count <= most + 1,
           "%s: restart %" PRId64 " follows %" PRId64, a->name, now->count, last->count);
    EXPECT("B", !last->failed || !lost_a_member(last, a) || now->count <= most,
           "%s: round %" PRId64 " is charged, but it has lost a member before", a->name, last->round);
}

void check_starting(struct agent *a)
{
    int64_t base = 0, world = 0;
    struct round_seen *seen = round_of(a);

    EXPECT("G2", !procs_any(a), "%s starts workers beside old ones", a->name);
    for (size_t i = 0; i < a->world_count; i++) {
        if ((int64_t)i == a->rank)
            base = world;
        world += job.sizes[a->world[i]];
    }
    EXPECT("G1", a->assigned.base_rank == base && a->assigned.world_size == world,
           "%s: ranks from %" PRId64 " of %" PRId64 ", but %" PRId64 " of %" PRId64 " it is", a->name,
           a->assigned.base_rank, a->assigned.world_size, base, world);
    a->running_us = w.now_us;
    EXPECT("B", a->assigned.shared != job.on[T_MIXED], "%s: whose is the count?", a->name);
    if (!a->assigned.shared)
        return;
    check_count(a);
    check_charge(a, seen);
    EXPECT("B", a->assigned.count <= failures_paid(),
           "%s: restart %" PRId64 ", but only %" PRId64 " rounds have failed", a->name, a->assigned.count,
           failures_paid());
    /* Also if the node that has paid with the last one is lost before it can fail the job. */
    EXPECT("B", a->assigned.count <= job.max_restarts, "%s: restart %" PRId64 " of %" PRId64, a->name,
           a->assigned.count, job.max_restarts);
}

/* ---- Losses ---- */

static bool mark_is_there(const struct agent *a, size_t rank, uint64_t before_us)
{
    bool old = w.on[F_OLD] && job.on[T_MIXED]; /* PyTorch's key: that it is there says it */
    char key[128];
    uint64_t born_us;
    struct mu_slice mark;

    if (old)
        (void)snprintf(key, sizeof key, "torch.rendezvous." RUN_ID ".%" PRId64 "/torchelastic/agent/terminal_state%zu",
                       a->round, rank);
    else
        (void)snprintf(key, sizeof key, "muster." RUN_ID "/%" PRId64 ".%016" PRIx64 "/done/%zu", a->round, a->tag,
                       rank);
    return kv_find(key, &mark, &born_us) && born_us < before_us &&
           (old || mu_vanished_is_mark(mark, MU_MARK_DONE, (int64_t)rank));
}

/* Only what was to be found out: not if the store was away, said nothing, or has lost what it knew. */
void check_lost(const struct agent *a)
{
    bool all_done = true;

    for (size_t i = 0; i < a->world_count; i++)
        all_done &= (int64_t)i == a->rank || mark_is_there(a, i, a->lost_us);
    EXPECT("G3", !all_done || a->store_away || a->kv_failed_us >= a->lost_us || job.wiped_us != 0,
           "%s calls members lost who were done", a->name);
}

void check_removed(const struct agent *a)
{
    EXPECT("G2", procs_killed(a) || a->done, "%s was removed, and its workers are not killed", a->name);
}

static bool is_alive(unsigned id)
{
    for (unsigned i = 0; i < w.nodes_count; i++) {
        if (w.nodes[i].alive && w.nodes[i].id == id)
            return true;
    }
    return false;
}

static uint64_t later_of(uint64_t x, uint64_t y)
{
    return x > y ? x : y;
}

static void check_regroups(const struct agent *a)
{
    uint64_t death_us = mu_rdzv_death_age_ms(&w.settings) * MS;
    uint64_t bound = 3 * death_us + (15 + w.settings.lost_node_wait_ms / 1000) * SECOND;
    uint64_t since = later_of(later_of(a->running_us, a->node->impaired_us), later_of(a->kv_failed_us, job.wiped_us));

    if (w.on[F_SLOW] && (!w.calm || w.now_us < job.calm_us + bound))
        return; /* who sees little is not sure of anything */
    if (mu_policy_phase(mu_job_policy(a->job)) != MU_POLICY_RUNNING || a->closed || a->node->paused_until_us > 0 ||
        a->node->cut_until_us > w.now_us || store_up_for_us() < bound)
        return;
    for (size_t i = 0; i < a->world_count; i++) {
        unsigned id = a->world[i];

        if (is_alive(id) || job.done_round[id] == a->round)
            continue;
        EXPECT("G3", w.now_us < later_of(since, job.died_us[id]) + bound, "%s runs on %.1f s after member %u was lost",
               a->name, (double)(w.now_us - later_of(since, job.died_us[id])) / 1e6, id);
    }
}

/* ---- The job's end ---- */

static bool verdict(struct mu_verdict *ret_verdict)
{
    struct mu_slice text;

    if (!kv_find("muster." RUN_ID "/verdict", &text, NULL))
        return false;
    if (w.on[F_STRANGER] && (!mu_verdict_read(text, ret_verdict) || ret_verdict->round == MADE_UP_ROUND))
        return false;
    EXPECT("G4", mu_verdict_read(text, ret_verdict), "the verdict is none: %.*s", (int)text.len, text.data);
    return true;
}

/* Whose store does not answer may think so; it then finds out, or says nothing to the others. */
void check_fail_job(const struct agent *a)
{
    c.fail_job = true;
    EXPECT("B", failures_paid() > job.max_restarts || (a->kv_failed_us > 0 && w.now_us - a->kv_failed_us < 60 * SECOND),
           "%s fails the job after %" PRId64 " failed rounds of %" PRId64, a->name, c.failed, job.max_restarts);
}

void check_replaced(const struct version *foreign, const struct version *after)
{
    (void)foreign;
    (void)after; /* see rdzv_check.c */
}

void check_write(struct node *author, const struct version *before, const struct version *after)
{
    const struct agent *a = author != NULL ? &job.agents[author->slot] : NULL;
    struct mu_verdict seen;
    bool has_verdict = verdict(&seen), all_done = true;

    if (!after->doc.closed || (before != NULL && before->doc.closed) || a == NULL || a->job == NULL)
        return;
    TELL("%s: closes the job", a->name);
    if (before == NULL && c.closed)
        return; /* what was closed before, and lost, is written again by whoever holds it */
    c.closed = true;
    EXPECT("G4",
           has_verdict || w.on[F_STRANGER] || job.wiped_us != 0 ||
               (a->kv_failed_us > 0 && w.now_us - a->kv_failed_us < 35 * SECOND),
           "%s closes without a verdict", a->name);
    for (size_t i = 0; i < a->world_count; i++)
        all_done &= job.done_round[a->world[i]] == a->round;
    EXPECT("B", !has_verdict || seen.succeeded || failures_paid() > job.max_restarts,
           "%s closes a job as failed after %" PRId64 " failed rounds of %" PRId64, a->name, c.failed,
           job.max_restarts);
    EXPECT("G4", all_done || c.fail_job, "%s closes a job that has not ended", a->name);
    EXPECT("G4", !has_verdict || !seen.succeeded || all_done || c.fail_job, "%s closes as a success what is none",
           a->name);
}

/* ---- Steps ---- */

static bool stops(const struct mu_policy_effects *effects)
{
    for (unsigned i = 0; i < effects->count; i++) {
        if (effects->items[i].type == MU_POLICY_DO_STOP_WORKERS || effects->items[i].type == MU_POLICY_DO_KILL_WORKERS)
            return true;
    }
    return false;
}

static bool says(const struct mu_policy_effects *effects, const char *text)
{
    for (unsigned i = 0; i < effects->count; i++) {
        if (effects->items[i].type == MU_POLICY_DO_SAY && strstr(effects->items[i].text, text) != NULL)
            return true;
    }
    return false;
}

/* Nothing is on but outages and what workers do: nobody vanishes, so nothing else may end a round. */
static bool only_outages(void)
{
    static const enum fault harmless[] = { F_OUTAGE, F_CLOCK, F_JUMP, F_LATE, F_LAZY, F_SPARES };
    unsigned on = 0, known = 0;

    for (unsigned i = 0; i < FAULTS_COUNT; i++)
        on += w.on[i];
    for (unsigned i = 0; i < sizeof harmless / sizeof harmless[0]; i++)
        known += w.on[harmless[i]];
    return on == known && !job.on[T_NOSTART] && !job.on[T_UNKILLABLE] && !job.on[T_IMPATIENT] && !job.on[T_HANG] &&
           !job.on[T_KEEPER];
}

/* A round that is not the job's any more; where data were lost nobody can say. */
static bool is_outdated(const struct agent *a)
{
    struct mu_restart_budget budget;
    struct mu_slice text;

    return !job.on[T_MIXED] && job.wiped_us == 0 && kv_find("muster." RUN_ID "/budget", &text, NULL) &&
           mu_restart_budget_read(text, &budget) && budget.round != MADE_UP_ROUND &&
           (budget.round != a->round || budget.tag != a->tag);
}

void check_step(struct agent *a, const struct mu_policy_event *event, enum mu_policy_phase before,
                const struct mu_policy_effects *effects)
{
    bool stopped = stops(effects);
    bool failed =
        event->type == MU_POLICY_ON_EXITED ? !event->ok : event->type == MU_POLICY_ON_STARTED && a->procs.failed;

    EXPECT("G8", !stopped || (event->type != MU_POLICY_ON_BACKEND_DOWN && event->type != MU_POLICY_ON_BACKEND_UP),
           "%s stops its workers because the store is away", a->name);
    EXPECT("G8",
           !stopped || c.stirred || !only_outages() ||
               (event->type != MU_POLICY_ON_LOST && event->type != MU_POLICY_ON_REMOVED &&
                event->type != MU_POLICY_ON_FAILED),
           "%s stops its workers (%s), but nobody was lost: the store was away", a->name,
           mu_policy_event_text(event->type));
    c.stirred |= (stopped && (failed || event->type == MU_POLICY_ON_PEER_FAILED)) ||
                 event->type == MU_POLICY_ON_WAITING || /* who has no workers yet joins again at once */
                 (event->type == MU_POLICY_ON_FINISHED && event->end == MU_COMPLETION_END_AWAY); /* it cannot say so */
    if (failed && stopped && before != MU_POLICY_STOPPING && !a->closed && is_outdated(a)) {
        c.outdated++;
    } else if (failed && stopped && before != MU_POLICY_STOPPING && !a->closed) {
        struct round_seen *seen = round_of(a);

        c.failed += !seen->failed;
        if (!seen->failed) {
            seen->failed_us = w.now_us;
            seen->failed_id = a->node->id;
        }
        seen->failed = true;
    }
    a->came_late |= before == MU_POLICY_ASKING;
    if (event->type == MU_POLICY_ON_STOPPED && event->number > 0) {
        a->personal = true;
        EXPECT("G5", says(effects, event->text), "%s does not say what it leaves behind: %s", a->name, event->text);
    }
}

void check_given_up(struct agent *a, const struct proc *proc, bool cannot_be_killed)
{
    job.given_up++;
    EXPECT("G5", cannot_be_killed, "%s gives pid %d up, which it could have killed", a->name, (int)proc->pid);
}

/* Workers have no more than their grace; and whoever cannot be killed is waited for, but not for long. */
void check_stopping(const struct agent *a)
{
    const struct processes *procs = &a->procs;
    uint64_t since = later_of(procs->last_us, a->node->paused_until_us);

    EXPECT("G2", node_ms(a->node) < procs->grace_ms || procs_killed(a), "%s: the grace is over, and workers live",
           a->name);
    EXPECT("G5", procs->stop.left_count == 0 || !procs->done || w.now_us < since + MU_STOP_STUCK_MS * MS + SECOND,
           "%s waits %.1f s for what cannot be killed", a->name, (double)(w.now_us - since) / 1e6);
}

/* Not while the stop goes on either: nobody would go on with it. */
static void check_nobody_left(const struct agent *a)
{
    for (unsigned i = 0; i < a->procs.table_count && procs_any(a); i++) {
        const struct proc *proc = &a->procs.table[i];

        EXPECT("G5", !proc->alive || proc->reported || (proc->end_us <= w.now_us && proc->wake_us <= w.now_us),
               "%s ends, and pid %d lives", a->name, (int)proc->pid);
    }
}

void check_ending(struct agent *a, const struct mu_policy_outcome *outcome)
{
    bool good = outcome->kind == MU_POLICY_OUTCOME_SUCCEEDED || outcome->kind == MU_POLICY_OUTCOME_GRACEFUL;
    /* Also of a round that began beside an end that was on its way: G4 is for check_write() to see to. */
    bool closed = a->came_late || a->closed ||
                  (outcome->kind == MU_POLICY_OUTCOME_ERROR && outcome->error.code == MUSTER_ERDZV_CLOSED);
    struct mu_verdict seen;

    job.ends++;
    check_nobody_left(a);
    EXPECT("E", outcome->kind != MU_POLICY_OUTCOME_SUCCEEDED || a->done, "%s succeeds without its workers", a->name);
    if (a->personal || a->behind)
        c.must_end_as_one = false; /* who is left may be too few */
    /* Done, but the store was away for as long as that is tried: others may run the job once more. */
    c.unsaid |= good && a->done && !verdict(&seen) && store_up_for_us() < UNSAID_US;
    if (!c.calm || a->personal || a->behind)
        return;
    if (good && a->done) {
        c.ends_good++;
        (void)snprintf(c.good, sizeof c.good, "%s", a->name);
    } else if (closed && !a->done) {
        c.ends_closed++;
    } else if (!good) {
        c.ends_bad++;
        (void)snprintf(c.bad, sizeof c.bad, "%s: %.40s", a->name, mu_policy_outcome_text(outcome->kind));
    }
}

/* ---- States ---- */

void check_state(struct agent *a, enum mu_group_state state)
{
    EXPECT("S", mu_group_state_may_follow(a->state, state), "%s: %s after %s", a->name, mu_group_state_name(state),
           mu_group_state_name(a->state));
    a->state = state;
}

static bool fits(enum mu_policy_phase phase, enum mu_group_state state)
{
    switch (phase) {
    case MU_POLICY_IDLE:
        return state == MU_GROUP_INIT;
    case MU_POLICY_JOINING:
    case MU_POLICY_ASKING:
    case MU_POLICY_ASSIGNING:
    case MU_POLICY_STARTING:
        return state == MU_GROUP_INIT || state == MU_GROUP_STOPPED;
    case MU_POLICY_RUNNING:
        return state == MU_GROUP_HEALTHY;
    case MU_POLICY_STOPPING:
        return true;
    case MU_POLICY_CHARGING:
        return state == MU_GROUP_STOPPED;
    case MU_POLICY_FAILING: /* stopped: the store was asked whether restarts are left; INIT: a new node found none */
        return state == MU_GROUP_INIT || state == MU_GROUP_STOPPED || state == MU_GROUP_FAILED;
    case MU_POLICY_FINISHING:
    case MU_POLICY_SERVING:
        return state == MU_GROUP_SUCCEEDED;
    case MU_POLICY_LEAVING:
    case MU_POLICY_ENDED:
        return !mu_group_state_is_running(state);
    case MU_POLICY_LINGERING:
        return !mu_group_state_is_running(state);
    }
    return false;
}

/* Whenever somebody may look. */
void check_states(const struct agent *a)
{
    enum mu_policy_phase phase = mu_policy_phase(mu_job_policy(a->job));

    EXPECT("S", a->state == mu_policy_state(mu_job_policy(a->job)), "%s: nobody was told of its state", a->name);
    EXPECT("S", fits(phase, a->state), "%s is %s, and its group %s", a->name, mu_policy_phase_text(phase),
           mu_group_state_name(a->state));
}

/* ---- All the time ---- */

/* Where the store is there for everybody, and who has to tell it lives for long enough. */
static void check_told(const struct agent *a)
{
    static const enum fault harmful[] = { F_LOST, F_REFUSED, F_SLOW, F_OUTAGE, F_WIPE, F_CUT, F_PAUSE, F_HOSTED };
    const struct round_seen *seen;

    for (unsigned i = 0; i < sizeof harmful / sizeof harmful[0]; i++) {
        if (w.on[harmful[i]])
            return;
    }
    if (job.on[T_MIXED] || job.dark_us != 0 || a->closed || mu_policy_phase(mu_job_policy(a->job)) != MU_POLICY_RUNNING)
        return;
    seen = round_of(a);
    if (!seen->failed || (job.died_us[seen->failed_id] != 0 && job.died_us[seen->failed_id] < seen->failed_us + SECOND))
        return;
    EXPECT("T", w.now_us < later_of(seen->failed_us, a->running_us) + 2 * SECOND,
           "%s runs on %.1f s after a worker of its round has failed", a->name,
           (double)(w.now_us - seen->failed_us) / 1e6);
}

/* Without a store nobody hears of the others any more: who is done ends. */
static void check_dark(const struct agent *a)
{
    enum mu_policy_phase phase = mu_policy_phase(mu_job_policy(a->job));
    uint64_t since = later_of(later_of(job.dark_us, a->done_us), a->node->paused_until_us);

    EXPECT("E",
           job.dark_us == 0 || phase != MU_POLICY_FINISHING ||
               w.now_us < since + MU_COMPLETION_SILENT_MS * MS + 20 * SECOND,
           "%s is done, has no store for %.1f s, and does not end", a->name, (double)(w.now_us - since) / 1e6);
}

void check_each_second(void)
{
    boot_check();
    for (unsigned i = 0; i < w.nodes_count; i++) {
        const struct agent *a = &job.agents[i];
        uint64_t since;

        if (a->job == NULL || a->ended || !a->node->alive)
            continue;
        check_regroups(a);
        check_told(a);
        check_dark(a);
        since = later_of(a->signal_us, a->node->paused_until_us);
        EXPECT("E", a->signal_us == 0 || w.now_us < since + a->grace_ms * MS + 45 * SECOND,
               "%s has got a signal and does not end", a->name);
        EXPECT("E", a->keeper_us == 0 || w.now_us < later_of(a->keeper_us, a->node->paused_until_us) + 45 * SECOND,
               "%s has lost its keeper and does not end", a->name);
    }
}

/* Those who are not done and have no reason of their own to end are enough for a round: then the job ends for all of
 * them in the same way. Unless its store has forgotten the job, or who was done gives up waiting: also without knowing
 * it, because its process was stopped for longer than it waits. */
void check_calm(void)
{
    int64_t undone = 0;
    bool stopped = false;
    bool closed = store_document() != NULL && store_document()->doc.closed;

    c.calm = true;
    for (unsigned i = 0; i < w.nodes_count; i++) {
        const struct agent *a = &job.agents[i];

        undone += a->job != NULL && !a->ended && a->node->alive && !a->done && !a->personal;
        stopped |= a->job != NULL && !a->ended && a->done && a->node->paused_until_us > w.now_us;
    }
    c.must_end_as_one = undone >= w.settings.nodes_min && !closed && !c.unsaid && job.wiped_us == 0 &&
                        !job.on[T_IMPATIENT] && !job.on[T_UNKILLABLE] && !job.on[T_DARK] && !stopped && w.host_slot < 0;
}

void check_over(void)
{
    struct mu_verdict seen;
    bool has_verdict = verdict(&seen);
    struct mu_restart_budget budget = { 0 };
    struct mu_slice text;

    job.jobs_succeeded += has_verdict && seen.succeeded;
    job.jobs_failed += has_verdict && !seen.succeeded;
    if (c.must_end_as_one && !c.unsaid) {
        EXPECT("E", has_verdict || w.on[F_STRANGER], "the job has ended without a verdict");
        /* Where a stranger has overwritten that it succeeded, nodes that come later begin it again. */
        EXPECT("E", !has_verdict || seen.succeeded || c.ends_good == 0 || w.on[F_STRANGER],
               "the job has failed, but %s has succeeded", c.good);
        EXPECT("E", !has_verdict || !seen.succeeded || c.ends_bad == 0, "the job has succeeded, but not %s", c.bad);
    }
    if (kv_find("muster." RUN_ID "/budget", &text, NULL))
        EXPECT("B", mu_restart_budget_read(text, &budget) || w.on[F_STRANGER], "the budget is none: %.*s",
               (int)text.len, text.data);
    if (!job.clean || job.on[T_MIXED])
        return;
    EXPECT("B", budget.count == c.failed, "%" PRId64 " restarts are counted, but %" PRId64 " rounds have failed",
           budget.count, c.failed);
    EXPECT("B", !has_verdict || seen.succeeded == (c.failed <= job.max_restarts),
           "the job has %s with %" PRId64 " failed rounds of %" PRId64, seen.succeeded ? "succeeded" : "failed",
           c.failed, job.max_restarts);
}

void check_job_begin(void)
{
    c.count = 0;
    c.failed = c.outdated = 0;
    c.fail_job = c.closed = c.stirred = c.unsaid = c.calm = c.must_end_as_one = false;
    c.ends_good = c.ends_bad = c.ends_closed = 0;
}
