/* Whole jobs: policies, ranks and ends of several agents together, on one store, with a rendezvous that does what it
 * should and workers that do not. Every order of events comes from a seed. */
#include "agent/policy.h"
#include "ask_store.h"
#include "base/rng.h"
#include "pure.h"

enum { AGENTS = 5, WORKERS = 2, ROUNDS = 128, ASKS = 512, STEPS = 100000, SEEDS = 400 };

enum machine { POLICY, RANKS, FINISH };
enum seat { OUT, JOINING, COMING, MEMBER, LEAVING }; /* COMING: the round is complete, JOINED is on its way */

struct pending {
    enum machine machine;
    struct mu_ask ask;
    char key[ASK_STORE_KEY], value[ASK_STORE_VALUE];
};

struct agent {
    struct mu_policy *policy;
    struct mu_ranks *ranks;
    struct mu_finish *finish;
    struct pending asks[ASKS];
    size_t asks_count;
    bool dead, ended;
    struct mu_policy_outcome outcome;
    /* Rendezvous. */
    enum seat seat;
    int64_t round, rank;
    bool heard[AGENTS], told_waiting, told_closed, close_asked;
    /* Workers. */
    bool starting, up, stopping, succeeded;
    int running, good;
    int64_t count; /* of the round they run in */
};

static struct job {
    struct agent agents[AGENTS];
    size_t agents_count;
    struct ask_store store;
    struct mu_rng rng;
    uint64_t now_ms, seed;
    bool closed, calm;
    int64_t round;
    size_t members[ROUNDS][AGENTS], members_count[ROUNDS];
    int64_t counts[ROUNDS];            /* -1: nobody has started yet */
    uint64_t failures, losses, deaths; /* how often, of a thousand; deaths: of a hundred thousand */
    int64_t max_restarts;
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

/* ---- Effects ---- */

static void feed_policy(struct agent *a, struct mu_policy_event event);

static void keep_ask(struct agent *a, enum machine machine, const struct mu_ask *ask)
{
    struct pending *p = &a->asks[a->asks_count++];

    EXPECT(a->asks_count < ASKS);
    p->machine = machine;
    p->ask = *ask;
    memcpy(p->key, ask->key.data, ask->key.len);
    if (ask->value.len > 0)
        memcpy(p->value, ask->value.data, ask->value.len);
}

static void feed_ranks(struct agent *a, struct mu_ranks_event event)
{
    struct mu_ranks_effects effects;
    struct mu_ranks_result result;
    bool assigned = false;

    event.now_ms = job.now_ms;
    mu_ranks_step(a->ranks, &event, &effects);
    for (unsigned i = 0; i < effects.count; i++) {
        EXPECT(effects.items[i].type != MU_RANKS_DO_FAIL);
        if (effects.items[i].type == MU_RANKS_DO_ASK) {
            keep_ask(a, RANKS, &effects.items[i].ask);
        } else {
            result = *effects.items[i].result;
            assigned = true;
        }
    }
    if (!assigned)
        return;
    EXPECT(result.base_rank == a->rank * WORKERS);
    EXPECT(result.world_size == (int64_t)job.members_count[a->round] * WORKERS);
    EXPECT(result.shared);
    EXPECT(job.counts[a->round] < 0 || job.counts[a->round] == result.count); /* one for all */
    job.counts[a->round] = a->count = result.count;
    feed_policy(a, (struct mu_policy_event){ .type = MU_POLICY_ON_ASSIGNED, .ranks = &result });
}

static void feed_finish(struct agent *a, struct mu_finish_event event)
{
    struct mu_finish_effects effects;

    event.now_ms = job.now_ms;
    mu_finish_step(a->finish, &event, &effects);
    for (unsigned i = 0; i < effects.count; i++) {
        const struct mu_finish_effect *e = &effects.items[i];

        switch (e->type) {
        case MU_FINISH_DO_ASK:
            keep_ask(a, FINISH, &e->ask);
            break;
        case MU_FINISH_DO_CLOSE:
            EXPECT(ask_store_get(&job.store, "muster.job/verdict") != NULL);
            a->close_asked = true;
            break;
        case MU_FINISH_DO_LOST:
            feed_policy(a, (struct mu_policy_event){ .type = MU_POLICY_ON_LOST, .round = -1, .text = e->text });
            break;
        case MU_FINISH_DO_JOB_FAILED:
            feed_policy(a, (struct mu_policy_event){ .type = MU_POLICY_ON_JOB_FAILED, .round = -1, .text = e->text });
            break;
        case MU_FINISH_DO_END:
            feed_policy(a, (struct mu_policy_event){ .type = MU_POLICY_ON_FINISHED, .end = e->end, .text = e->text });
            break;
        case MU_FINISH_DO_WARN:
            break;
        }
    }
}

static void start_workers(struct agent *a)
{
    EXPECT(!a->up && !a->starting && !a->stopping && !a->succeeded);
    EXPECT(a->seat == MEMBER);
    a->starting = true;
    a->running = WORKERS;
    a->good = 0;
}

static void perform(struct agent *a, const struct mu_policy_effect *e)
{
    EXPECT(!a->ended);
    switch (e->type) {
    case MU_POLICY_DO_JOIN:
        EXPECT(!a->up && !a->starting && !a->stopping);
        a->seat = JOINING;
        break;
    case MU_POLICY_DO_LEAVE:
        a->seat = LEAVING;
        break;
    case MU_POLICY_DO_ASSIGN:
        feed_ranks(a, (struct mu_ranks_event){ .type = MU_RANKS_ON_START, .start = e->assign });
        break;
    case MU_POLICY_DO_ASSIGN_STOP:
        feed_ranks(a, (struct mu_ranks_event){ .type = MU_RANKS_ON_STOP });
        break;
    case MU_POLICY_DO_WATCH:
        feed_finish(a, (struct mu_finish_event){ .type = MU_FINISH_ON_START, .start = e->watch });
        break;
    case MU_POLICY_DO_WATCH_STOP:
        feed_finish(a, (struct mu_finish_event){ .type = MU_FINISH_ON_STOP });
        break;
    case MU_POLICY_DO_FINISH:
        a->succeeded = true;
        feed_finish(a, (struct mu_finish_event){ .type = MU_FINISH_ON_DONE });
        break;
    case MU_POLICY_DO_FAIL_JOB:
        feed_finish(a, (struct mu_finish_event){ .type = MU_FINISH_ON_FAIL, .text = e->text });
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
    case MU_POLICY_DO_ASK:
        keep_ask(a, POLICY, &e->ask);
        break;
    case MU_POLICY_DO_END:
        EXPECT(!a->up && !a->starting && !a->stopping);
        a->outcome = *e->outcome;
        a->ended = true;
        a->seat = OUT;
        break;
    case MU_POLICY_DO_LINGER:
    case MU_POLICY_DO_STATE:
    case MU_POLICY_DO_RECORD:
    case MU_POLICY_DO_STEP:
    case MU_POLICY_DO_DECISION:
    case MU_POLICY_DO_FINAL:
    case MU_POLICY_DO_SAY:
        break;
    }
}

/* What an effect borrows dies with the next step, and some effects step: those are carried out last. */
static void feed_policy(struct agent *a, struct mu_policy_event event)
{
    struct mu_policy_effects effects;

    event.now_ms = job.now_ms;
    mu_policy_step(a->policy, &event, &effects);
    for (unsigned i = 0; i < effects.count; i++)
        perform(a, &effects.items[i]);
}

/* ---- What happens ---- */

static bool answer_ask(struct agent *a)
{
    for (size_t i = 0; i < a->asks_count; i++) {
        struct muster_error error = { MUSTER_ELOST, "connection lost" };
        struct pending p = a->asks[i];
        struct mu_answer answer = { .id = p.ask.id };
        bool lost = !job.calm && dice(1000) < job.losses;

        p.ask.key.data = p.key;
        p.ask.value.data = p.value;
        if ((!lost || dice(2) == 0) && !ask_store_do(&job.store, &p.ask, &answer))
            continue;
        if (lost) /* before it was carried out, or after */
            answer = (struct mu_answer){ .id = p.ask.id, .error = &error };
        memmove(&a->asks[i], &a->asks[i + 1], (a->asks_count - i - 1) * sizeof a->asks[0]);
        a->asks_count--;
        if (p.machine == POLICY)
            feed_policy(a, (struct mu_policy_event){ .type = MU_POLICY_ON_ANSWER, .answer = answer });
        else if (p.machine == RANKS)
            feed_ranks(a, (struct mu_ranks_event){ .type = MU_RANKS_ON_ANSWER, .answer = answer });
        else
            feed_finish(a, (struct mu_finish_event){ .type = MU_FINISH_ON_ANSWER, .answer = answer });
        return true;
    }
    return false;
}

static bool is_there(size_t index, int64_t round)
{
    const struct agent *a = &job.agents[index];

    return !a->dead && !a->ended && (a->seat == MEMBER || a->seat == COMING) && a->round == round;
}

/* A round is complete when all who may take part want to, and nobody holds on to the old one. */
static void complete_round(void)
{
    size_t joiners = 0;

    for (size_t i = 0; i < job.agents_count; i++) {
        const struct agent *a = &job.agents[i];

        if (a->dead || a->ended || a->seat == OUT)
            continue;
        if (a->seat != JOINING)
            return;
        joiners++;
    }
    if (joiners == 0 || job.closed)
        return;
    job.round++;
    EXPECT(job.round < ROUNDS);
    job.members_count[job.round] = 0;
    job.counts[job.round] = -1;
    for (size_t i = 0; i < job.agents_count; i++) {
        struct agent *a = &job.agents[i];

        if (a->dead || a->ended || a->seat != JOINING)
            continue;
        a->seat = COMING;
        a->round = job.round;
        a->rank = (int64_t)job.members_count[job.round];
        a->told_waiting = false;
        memset(a->heard, 0, sizeof a->heard);
        job.members[job.round][job.members_count[job.round]++] = i;
    }
}

static bool tell_lost(struct agent *a)
{
    for (size_t rank = 0; rank < job.members_count[a->round]; rank++) {
        struct mu_finish_peer peer = { .rank = (int64_t)rank, .ours = true };

        if (a->heard[rank] || is_there(job.members[a->round][rank], a->round))
            continue;
        a->heard[rank] = true;
        feed_finish(a, (struct mu_finish_event){ .type = MU_FINISH_ON_PEERS_LOST,
                                                 .round = a->round,
                                                 .lost = &peer,
                                                 .lost_count = 1,
                                                 .text = "somebody" });
        return true;
    }
    return false;
}

static bool somebody_joins(void)
{
    for (size_t i = 0; i < job.agents_count; i++) {
        if (!job.agents[i].dead && job.agents[i].seat == JOINING)
            return true;
    }
    return false;
}

static void rendezvous(struct agent *a)
{
    struct muster_error error = { MUSTER_ERDZV_CLOSED, "closed" };
    struct mu_policy_joined joined = { .round = a->round,
                                       .rank = a->rank,
                                       .world_size = (int64_t)job.members_count[a->round],
                                       .all_ours = true,
                                       .has_store = true };

    if (a->seat == LEAVING) {
        a->seat = OUT;
        feed_policy(a, (struct mu_policy_event){ .type = MU_POLICY_ON_LEFT });
    } else if (a->seat == JOINING && job.closed) {
        a->seat = OUT;
        feed_policy(a, (struct mu_policy_event){ .type = MU_POLICY_ON_FAILED, .round = -1, .error = &error });
    } else if (a->seat == COMING) {
        a->seat = MEMBER;
        a->told_closed = false;
        feed_policy(a, (struct mu_policy_event){ .type = MU_POLICY_ON_JOINED, .joined = &joined });
    } else if (a->seat == MEMBER && (a->close_asked || (job.closed && !a->told_closed))) {
        job.closed = a->told_closed = true;
        a->close_asked = false;
        feed_finish(a, (struct mu_finish_event){ .type = MU_FINISH_ON_CLOSED, .round = -1 });
        feed_policy(a, (struct mu_policy_event){ .type = MU_POLICY_ON_CLOSED, .round = -1 });
    } else if (a->seat == MEMBER && !tell_lost(a) && somebody_joins() && !a->told_waiting && !job.closed) {
        a->told_waiting = true;
        feed_policy(a, (struct mu_policy_event){ .type = MU_POLICY_ON_WAITING, .round = a->round, .number = 1 });
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
        feed_policy(a, (struct mu_policy_event){
                           .type = MU_POLICY_ON_EXITED, .ok = job.calm || dice(1000) >= job.failures, .text = "exit" });
    }
}

static void pass_time(struct agent *a)
{
    if (mu_policy_deadline_ms(a->policy) <= job.now_ms)
        feed_policy(a, (struct mu_policy_event){ .type = MU_POLICY_ON_TIME });
    if (!a->ended && mu_ranks_deadline_ms(a->ranks) <= job.now_ms)
        feed_ranks(a, (struct mu_ranks_event){ .type = MU_RANKS_ON_TIME });
    if (!a->ended && mu_finish_deadline_ms(a->finish) <= job.now_ms)
        feed_finish(a, (struct mu_finish_event){ .type = MU_FINISH_ON_TIME });
}

/* Everything of it is gone in the same moment. */
static void kill_agent(struct agent *a)
{
    a->dead = true;
    a->seat = OUT;
    a->up = a->starting = a->stopping = false;
}

static void turn(struct agent *a)
{
    if (a->dead || a->ended)
        return;
    if (!job.calm && dice(100000) < job.deaths) {
        kill_agent(a);
        return;
    }
    switch (dice(4)) {
    case 0:
        rendezvous(a);
        break;
    case 1:
        processes(a);
        break;
    case 2:
        (void)answer_ask(a);
        break;
    default:
        pass_time(a);
        break;
    }
    if (!a->ended)
        complete_round();
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
    struct mu_finish_config finish = { .run_id = "job", .node = "n", .barrier_ms = UINT64_MAX };
    struct mu_ranks_config ranks = { .run_id = "job", .role = "r", .local_world_size = WORKERS };
    struct mu_policy_config policy = { .run_id = "job", .role = "r", .local_world_size = WORKERS };

    job.seed = seed;
    job.rng = mu_rng_seeded(seed);
    job.now_ms = 1000;
    job.round = -1;
    job.closed = job.calm = false;
    job.failures = dice(3) == 0 ? 0 : dice(200);
    job.losses = dice(2) == 0 ? 0 : dice(60);
    job.deaths = dice(3) == 0 ? 0 : dice(200);
    job.max_restarts = (int64_t)dice(5);
    job.agents_count = 1 + (size_t)dice(AGENTS);
    ask_store_clear(&job.store);
    policy.max_restarts = job.max_restarts;
    for (size_t i = 0; i < job.agents_count; i++) {
        struct agent *a = &job.agents[i];
        char node[32];

        memset(a, 0, sizeof *a);
        (void)snprintf(node, sizeof node, "n%zu", i);
        policy.node = finish.node = node;
        assert_int_equal(mu_policy_new(&policy, &a->policy, NULL), 0);
        assert_int_equal(mu_ranks_new(&ranks, &a->ranks, NULL), 0);
        assert_int_equal(mu_finish_new(&finish, &a->finish, NULL), 0);
        feed_policy(a, (struct mu_policy_event){ .type = MU_POLICY_ON_RUN });
    }
    complete_round();
}

static void check_end(void)
{
    const char *verdict = ask_store_get(&job.store, "muster.job/verdict");
    const char *restarts = ask_store_get(&job.store, "muster.job/restarts");
    bool failed = verdict != NULL && strstr(verdict, "\"failed\"") != NULL;
    unsigned blamed = 0, succeeded = 0;
    bool all_well = true;

    for (size_t i = 0; i < job.agents_count; i++) {
        const struct agent *a = &job.agents[i];
        enum mu_policy_outcome_kind kind = a->outcome.kind;

        all_well = all_well && !a->dead;
        if (a->dead)
            continue;
        EXPECT(kind == MU_POLICY_OUTCOME_SUCCEEDED || kind == MU_POLICY_OUTCOME_WORKERS_FAILED ||
               kind == MU_POLICY_OUTCOME_ERROR);
        EXPECT((kind == MU_POLICY_OUTCOME_SUCCEEDED) == a->succeeded); /* its own workers, and nothing else */
        EXPECT(kind == MU_POLICY_OUTCOME_SUCCEEDED || failed);         /* nothing local ends an agent otherwise */
        blamed += kind == MU_POLICY_OUTCOME_WORKERS_FAILED;
        succeeded += kind == MU_POLICY_OUTCOME_SUCCEEDED;
    }
    EXPECT(!job.closed || verdict != NULL);
    EXPECT(restarts == NULL || failed || strtoll(restarts, NULL, 10) <= job.max_restarts);
    if (all_well && job.failures == 0) {
        EXPECT(succeeded == job.agents_count && job.closed && !failed);
        EXPECT(restarts == NULL || strcmp(restarts, "0") == 0);
        EXPECT(job.round == 0);
    }
    if (failed && all_well)
        EXPECT(blamed > 0);
}

/* Agents die, workers fail: ranks and counts are one, no worker beside an older one, every agent that lives ends, those
 * whose workers have succeeded with success, and nobody with a failure unless the job has failed. */
static void any_job_ends_and_all_agree_how(void **state)
{
    uint64_t failed = 0, restarted = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        unsigned steps = 0;

        begin(seed);
        for (; !is_over() && steps < STEPS; steps++) {
            job.calm = steps > STEPS / 2;
            job.now_ms += dice(10);
            turn(&job.agents[dice(job.agents_count)]);
        }
        for (size_t i = 0; i < job.agents_count; i++) {
            const struct agent *a = &job.agents[i];

            if (!a->dead && !a->ended)
                fail_msg("seed %" PRIu64 ": agent %zu does not end: %s, %s, %s, seat %d", seed, i,
                         mu_policy_phase_text(mu_policy_phase(a->policy)),
                         mu_finish_state_text(mu_finish_state(a->finish)),
                         mu_ranks_state_text(mu_ranks_state(a->ranks)), (int)a->seat);
        }
        check_end();
        failed += ask_store_get(&job.store, "muster.job/verdict") != NULL &&
                  strstr(ask_store_get(&job.store, "muster.job/verdict"), "\"failed\"") != NULL;
        restarted += job.round > 0;
        for (size_t i = 0; i < job.agents_count; i++) {
            mu_policy_free(job.agents[i].policy);
            mu_ranks_free(job.agents[i].ranks);
            mu_finish_free(job.agents[i].finish);
        }
    }
    assert_true(failed > SEEDS / 20 && restarted > SEEDS / 10); /* it was not all plain sailing */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_job_ends_and_all_agree_how),
    };

    return cmocka_run_group_tests_name("job", tests, NULL, NULL);
}
