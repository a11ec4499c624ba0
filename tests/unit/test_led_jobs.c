/* Whole jobs with a leader: several agents together, on a rendezvous whose leader does what rdzv/part.h promises, with
 * workers that fail, agents that are killed or come late, and a store that is away now and then. Every order of events
 * comes from a seed. */
#include "agent/job.h"
#include "base/rng.h"
#include "pure.h"

#include <inttypes.h>

enum { AGENTS = 5, WORKERS = 2, ROUNDS = 256, STEPS = 60000, SEEDS = 1500 };

enum place { OUT, JOINING, COMING, MEMBER, LEAVING }; /* COMING: the round is complete, JOINED is on its way */

struct agent {
    struct mu_job *job;
    bool late, dead, ended; /* late: it has not begun */
    struct mu_policy_outcome outcome;
    /* Rendezvous. */
    enum place place;
    int64_t round, rank;
    bool told_over, told_waiting, told_closed, told_removed;
    bool reports, reports_done; /* what is not acknowledged yet */
    bool done, left;            /* as the leader knows it; done: in any round */
    bool down;
    /* Workers. */
    bool starting, up, stopping, succeeded, ever_started;
    int running;
};

static struct job {
    struct agent agents[AGENTS];
    size_t agents_count;
    struct mu_rng rng;
    uint64_t now_ms, seed;
    bool calm;
    uint64_t failures, outages, deaths; /* how often, of a thousand; deaths: of a hundred thousand */
    int64_t max_restarts;
    /* The leader's. */
    int64_t round, count, counts[ROUNDS];
    size_t members_count;
    bool over, failed, lost; /* the round is; by a failure; a member that was not done is gone */
    bool closed;
    struct mu_part_verdict verdict;
    char why[128];
} job;

static uint64_t dice(uint64_t sides)
{
    return mu_rng_below(&job.rng, sides);
}

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            fail_msg("seed %" PRIu64 ", line %d: %s", job.seed, __LINE__, #condition);                                 \
    } while (0)

static bool is_alive(const struct agent *a)
{
    return !a->dead && !a->ended && !a->late;
}

static bool is_member(const struct agent *a) /* of the present round */
{
    return is_alive(a) && (a->place == MEMBER || a->place == COMING) && a->round == job.round;
}

/* ---- The leader ---- */

static void close_job(bool succeeded)
{
    EXPECT(!job.closed);
    job.closed = true;
    job.verdict =
        (struct mu_part_verdict){ .succeeded = succeeded, .cause = succeeded ? NULL : "it was once too often" };
}

static void make_round(void)
{
    job.round++;
    EXPECT(job.round < ROUNDS);
    (void)snprintf(job.why, sizeof job.why, "round %" PRId64 " %s", job.round - 1,
                   job.lost     ? "lost a node"
                   : job.failed ? "has failed"
                                : "is over");
    job.counts[job.round] = job.count;
    job.members_count = 0;
    job.over = job.failed = job.lost = false;
    for (size_t i = 0; i < job.agents_count; i++) {
        struct agent *a = &job.agents[i];

        if (!is_alive(a) || a->place != JOINING)
            continue;
        a->place = COMING;
        a->round = job.round;
        a->rank = (int64_t)job.members_count++;
        a->told_over = a->told_waiting = a->told_closed = a->told_removed = a->reports = a->left = false;
    }
}

/* When every member of the round has said what has become of it, or is gone. */
static void lead(void)
{
    size_t joiners = 0, members = 0, done = 0;

    if (job.closed)
        return;
    for (size_t i = 0; i < job.agents_count; i++) {
        const struct agent *a = &job.agents[i];

        joiners += is_alive(a) && a->place == JOINING;
        members += is_member(a) && !a->done;
        done += a->done && a->round == job.round;
    }
    if (job.members_count > 0 && done == job.members_count) {
        close_job(true);
        return;
    }
    if (members > 0 || joiners == 0)
        return;
    if (job.failed && !job.lost && job.count == job.max_restarts) {
        close_job(false);
        return;
    }
    job.count += job.failed && !job.lost;
    make_round();
}

static void on_report(struct agent *a, const struct mu_part_report *report)
{
    EXPECT(a->place == MEMBER && !a->reports_done && !a->left);
    a->reports = true;
    if (a->round != job.round)
        return; /* it was removed, and does not know yet */
    switch (report->end) {
    case MU_PART_END_FAILED:
        EXPECT(report->rank == a->rank * WORKERS + report->rank % WORKERS && strcmp(report->text, "exit") == 0);
        job.over = job.failed = true;
        break;
    case MU_PART_END_DONE:
        EXPECT(a->succeeded && !a->stopping);
        a->reports_done = true;
        a->done = dice(2) == 0; /* at the latest when it is acknowledged */
        break;
    case MU_PART_END_AGAIN:
        job.over = true;
        break;
    case MU_PART_END_LEFT:
    case MU_PART_END_LOST:
        job.over = a->left = true;
        break;
    }
}

/* ---- Effects ---- */

static void start_workers(struct agent *a)
{
    const struct mu_ranks_result *result = mu_job_assigned(a->job);

    EXPECT(a->place == MEMBER && !a->up && !a->starting && !a->stopping && !a->succeeded);
    EXPECT(result->base_rank == a->rank * WORKERS && result->count == job.counts[a->round]);
    a->starting = a->ever_started = true;
    a->running = WORKERS;
}

static void perform_policy(struct agent *a, const struct mu_policy_effect *e)
{
    EXPECT(!a->ended);
    switch (e->type) {
    case MU_POLICY_DO_JOIN:
        EXPECT(!a->up && !a->starting && !a->stopping && !a->succeeded);
        a->place = JOINING;
        break;
    case MU_POLICY_DO_LEAVE:
        EXPECT(!a->succeeded || a->done || a->round != job.round || job.closed); /* the leader knows what was done */
        a->place = LEAVING;
        job.over |= a->round == job.round && !a->done;
        break;
    case MU_POLICY_DO_START_WORKERS:
        start_workers(a);
        break;
    case MU_POLICY_DO_STOP_WORKERS:
    case MU_POLICY_DO_KILL_WORKERS:
        EXPECT(a->up || a->starting || a->stopping);
        a->starting = a->up = false;
        a->stopping = true;
        break;
    case MU_POLICY_DO_END:
        EXPECT(!a->up && !a->starting && !a->stopping);
        a->outcome = *e->outcome;
        a->ended = true;
        a->place = OUT;
        break;
    case MU_POLICY_DO_STATE:
        a->succeeded |= e->state == MU_GROUP_SUCCEEDED;
        break;
    default:
        break;
    }
}

static void feed(struct agent *a, struct mu_job_event event)
{
    struct mu_job_effect effect;

    mu_job_step(a->job, &event);
    while (mu_job_next(a->job, job.now_ms, &effect)) {
        EXPECT(effect.type == MU_JOB_DO_REPORT || effect.type == MU_JOB_DO_POLICY); /* no keys, and nobody closes */
        if (effect.type == MU_JOB_DO_REPORT)
            on_report(a, effect.report);
        else
            perform_policy(a, effect.policy);
    }
}

static void feed_policy(struct agent *a, struct mu_policy_event event)
{
    feed(a, (struct mu_job_event){ .type = MU_JOB_ON_TOLD, .told = event });
}

static void feed_rdzv(struct agent *a, enum muster_rdzv_event_type type, struct mu_job_event event)
{
    event.type = MU_JOB_ON_RDZV;
    event.rdzv = type;
    feed(a, event);
}

/* ---- What happens ---- */

static void tell_joined(struct agent *a)
{
    const struct mu_part_seat seat = { .count = job.counts[a->round],
                                       .restarts_left = job.max_restarts - job.counts[a->round],
                                       .max_restarts = job.max_restarts,
                                       .base_rank = a->rank * WORKERS,
                                       .world_size = (int64_t)job.members_count * WORKERS,
                                       .why = a->round > 0 ? job.why : NULL };
    struct mu_round joined = { .round = a->round, .rank = a->rank, .world_size = (int64_t)job.members_count };

    a->place = MEMBER;
    feed_rdzv(a, MUSTER_RDZV_JOINED, (struct mu_job_event){ .round = a->round, .joined = &joined, .seat = &seat });
}

static void tell_reported(struct agent *a)
{
    const struct muster_error error = { .code = MUSTER_ERDZV_STATE, .text = "no member any more" };
    bool removed = a->round != job.round;

    a->done |= a->reports_done && !removed;
    a->reports = a->reports_done = false;
    feed_rdzv(a, MUSTER_RDZV_REPORTED, (struct mu_job_event){ .round = a->round, .error = removed ? &error : NULL });
}

static bool somebody_waits(void)
{
    for (size_t i = 0; i < job.agents_count; i++) {
        if (is_alive(&job.agents[i]) && job.agents[i].place == JOINING)
            return true;
    }
    return false;
}

static void tell_member(struct agent *a)
{
    if (a->reports && dice(4) != 0) {
        tell_reported(a);
    } else if (job.closed && !a->told_closed) {
        a->told_closed = true;
        feed_rdzv(a, MUSTER_RDZV_CLOSED, (struct mu_job_event){ .round = -1, .verdict = &job.verdict });
    } else if (a->round != job.round && !a->told_removed) {
        a->told_removed = true;
        feed_rdzv(a, MUSTER_RDZV_REMOVED, (struct mu_job_event){ .round = a->round });
    } else if (a->round == job.round && job.over && !a->told_over) {
        a->told_over = true;
        feed_rdzv(a, MUSTER_RDZV_PEERS_LOST, (struct mu_job_event){ .round = a->round, .cause = "it is over" });
    } else if (a->round == job.round && !job.over && !job.closed && somebody_waits() && !a->told_waiting) {
        a->told_waiting = true;
        feed_rdzv(a, MUSTER_RDZV_WAITING, (struct mu_job_event){ .round = a->round, .count = 1 });
    }
}

static void rendezvous(struct agent *a)
{
    const struct muster_error closed = { .code = MUSTER_ERDZV_CLOSED, .text = "closed" };

    if (a->place == LEAVING) {
        a->place = OUT;
        feed_rdzv(a, MUSTER_RDZV_LEFT, (struct mu_job_event){ .round = -1 });
    } else if (a->place == JOINING && job.closed) {
        a->place = OUT;
        feed_rdzv(a, MUSTER_RDZV_FAILED,
                  (struct mu_job_event){
                      .round = -1, .request = MUSTER_RDZV_REQUEST_JOIN, .verdict = &job.verdict, .error = &closed });
    } else if (a->place == COMING && a->round != job.round) {
        a->place = JOINING; /* the handler joins the next one instead */
    } else if (a->place == COMING) {
        tell_joined(a);
    } else if (a->place == MEMBER) {
        tell_member(a);
    }
}

static void processes(struct agent *a)
{
    if (a->starting) {
        a->starting = false;
        a->up = true;
        feed_policy(a, (struct mu_policy_event){ .type = MU_POLICY_ON_STARTED });
    } else if (a->stopping) {
        a->stopping = false;
        feed_policy(a, (struct mu_policy_event){ .type = MU_POLICY_ON_STOPPED });
    } else if (a->up && a->running > 0 && dice(20) == 0) {
        a->running--;
        feed_policy(a, (struct mu_policy_event){ .type = MU_POLICY_ON_EXITED,
                                                 .number = a->running,
                                                 .ok = job.calm || dice(1000) >= job.failures,
                                                 .text = "exit" });
    }
}

/* The store is away for a moment: too short for a done agent to give up. */
static void trouble(struct agent *a)
{
    const struct muster_error away = { .code = MUSTER_ELOST, .text = "away" };

    if (a->down || (!job.calm && dice(1000) < job.outages)) {
        a->down = !a->down;
        feed_rdzv(a, a->down ? MUSTER_RDZV_BACKEND_DOWN : MUSTER_RDZV_BACKEND_UP,
                  (struct mu_job_event){ .round = -1, .error = a->down ? &away : NULL });
    }
}

static void kill_agent(struct agent *a)
{
    bool member = is_member(a) && !a->done && !a->left;

    a->dead = true;
    a->up = a->starting = a->stopping = false;
    job.over |= member;
    job.lost |= member;
}

static void turn(struct agent *a)
{
    if (a->late && dice(500) == 0) {
        a->late = false;
        feed_policy(a, (struct mu_policy_event){ .type = MU_POLICY_ON_RUN });
    }
    if (!is_alive(a))
        return;
    if (!job.calm && dice(100000) < job.deaths) {
        kill_agent(a);
    } else {
        switch (dice(4)) {
        case 0:
            rendezvous(a);
            break;
        case 1:
            processes(a);
            break;
        case 2:
            trouble(a);
            break;
        default:
            if (mu_job_deadline_ms(a->job) <= job.now_ms)
                feed(a, (struct mu_job_event){ .type = MU_JOB_ON_TIME });
            break;
        }
    }
    lead();
}

/* ---- Lives ---- */

static bool is_over(void)
{
    for (size_t i = 0; i < job.agents_count; i++) {
        if (!job.agents[i].dead && !job.agents[i].ended)
            return false;
    }
    return true;
}

static void begin(uint64_t seed)
{
    struct mu_completion_config completion = { .run_id = "job", .node = "n", .barrier_ms = UINT64_MAX };
    struct mu_ranks_config ranks = { .run_id = "job", .role = "r", .local_world_size = WORKERS };
    struct mu_policy_config policy = { .run_id = "job", .role = "r", .node = "n", .local_world_size = WORKERS };

    job = (struct job){ .seed = seed, .rng = mu_rng_seeded(seed), .now_ms = 1000, .round = -1 };
    job.failures = dice(3) == 0 ? 0 : dice(200);
    job.outages = dice(2) == 0 ? 0 : dice(60);
    job.deaths = dice(3) == 0 ? 0 : dice(200);
    job.max_restarts = (int64_t)dice(5);
    job.agents_count = 1 + (size_t)dice(AGENTS);
    for (size_t i = 0; i < job.agents_count; i++) {
        struct agent *a = &job.agents[i];

        a->round = -1;
        a->late = i > 0 && dice(4) == 0;
        assert_int_equal(
            mu_job_new(&(struct mu_job_config){ .policy = policy, .ranks = ranks, .completion = completion }, &a->job,
                       NULL),
            0);
        if (!a->late)
            feed_policy(a, (struct mu_policy_event){ .type = MU_POLICY_ON_RUN });
    }
    lead();
}

static void check_end(void)
{
    bool failed = job.closed && !job.verdict.succeeded, all_well = true, blamed = false;

    for (size_t i = 0; i < job.agents_count; i++) {
        const struct agent *a = &job.agents[i];
        enum mu_policy_outcome_kind kind = a->outcome.kind;

        all_well = all_well && !a->dead;
        if (a->dead)
            continue;
        EXPECT(kind == MU_POLICY_OUTCOME_SUCCEEDED || kind == MU_POLICY_OUTCOME_WORKERS_FAILED ||
               kind == MU_POLICY_OUTCOME_ERROR);
        EXPECT((kind == MU_POLICY_OUTCOME_SUCCEEDED) == a->succeeded); /* its own workers, and nothing else */
        EXPECT(a->succeeded || failed || !a->ever_started);            /* nothing local ends an agent otherwise */
        EXPECT(!failed || a->succeeded || strstr(a->outcome.error.text, "once too often") != NULL ||
               kind == MU_POLICY_OUTCOME_WORKERS_FAILED);
        blamed |= kind == MU_POLICY_OUTCOME_WORKERS_FAILED;
    }
    EXPECT(job.count <= job.max_restarts);
    EXPECT(!failed || !all_well || blamed);
    if (all_well && job.failures == 0)
        EXPECT(job.closed && !failed && job.count == 0);
}

/* Ranks and counts are the leader's, no worker runs beside an older one, workers that have succeeded are never run
 * again, every agent that lives ends, and nobody with a failure unless the leader has failed the job. */
static void any_job_with_a_leader_ends_and_all_agree_how(void **state)
{
    uint64_t failed = 0, restarted = 0, succeeded = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        begin(seed);
        for (unsigned steps = 0; !is_over() && steps < STEPS; steps++) {
            job.calm = steps > STEPS / 2;
            job.now_ms += dice(10);
            turn(&job.agents[dice(job.agents_count)]);
        }
        for (size_t i = 0; i < job.agents_count; i++) {
            const struct agent *a = &job.agents[i];

            if (!a->dead && !a->ended)
                fail_msg("seed %" PRIu64 ": agent %zu does not end: %s, place %d, round %" PRId64 " of %" PRId64, seed,
                         i, mu_policy_phase_text(mu_policy_phase(mu_job_policy(a->job))), (int)a->place, a->round,
                         job.round);
        }
        check_end();
        failed += job.closed && !job.verdict.succeeded;
        succeeded += job.closed && job.verdict.succeeded;
        restarted += job.round > 0;
        for (size_t i = 0; i < job.agents_count; i++)
            mu_job_free(job.agents[i].job);
    }
    assert_true(failed > SEEDS / 20 && restarted > SEEDS / 10 && succeeded > SEEDS / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_job_with_a_leader_ends_and_all_agree_how),
    };

    return cmocka_run_group_tests_name("led jobs", tests, NULL, NULL);
}
