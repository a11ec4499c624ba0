/* An agent's part in its job: what goes from machine to machine; and whole jobs: several agents together, on one store,
 * with a rendezvous that does what it should and workers that do not. Every order of events comes from a seed. */
#include "agent/job.h"
#include "ask_store.h"
#include "base/rng.h"
#include "failmalloc.h"
#include "pure.h"

enum { AGENTS = 5, WORKERS = 2, ROUNDS = 128, ASKS = 512, STEPS = 100000, SEEDS = 400 };

/* ---- One agent, step by step ---- */

static struct scene {
    struct mu_job *job;
    char trace[4096];
    uint64_t now_ms, id; /* id: of the last request */
    enum mu_job_who who; /* whose it is */
    bool refuses;        /* the next request cannot even be made */
    bool told;           /* STARTED was told while START_WORKERS was carried out */
    struct mu_node members[2];
    char own[64];    /* the round's keys */
    char said[1024]; /* the last line for the log */
} scene;

static int set_up(void **state)
{
    struct mu_job_config config = {
        .policy = { .run_id = "job", .role = "r", .node = "me", .local_world_size = 1, .max_restarts = 1 },
        .ranks = { .run_id = "job", .role = "r", .local_world_size = 1 },
        .completion = { .run_id = "job", .node = "me", .barrier_ms = UINT64_MAX },
    };

    scene = (struct scene){ .now_ms = 1000 };
    for (uint32_t i = 0; i < 2; i++)
        scene.members[i] = (struct mu_node){ mu_slice_str("n"), i, mu_node_local_id(MU_NODE_VERSION, i) };
    mu_round_own_prefix(scene.own, sizeof scene.own, "job", 3, mu_round_tag(scene.members, 2));
    *state = &scene;
    return mu_job_new(&config, &scene.job, NULL);
}

static int tear_down(void **state)
{
    mu_job_free(((struct scene *)*state)->job);
    return 0;
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

/* Keys without what all those of the round begin with. */
static int show(const struct scene *s, char *text, size_t room, const struct mu_job_effect *effect)
{
    static const char *const ends[] = { "failed", "done", "again", "left", "lost" };
    static const char *const whose[] = { "policy", "ranks", "completion", "key gc" };
    struct mu_slice key = effect->ask.key;
    size_t own = strlen(s->own);

    if (effect->type == MU_JOB_DO_CLOSE)
        return snprintf(text, room, "close");
    if (effect->type == MU_JOB_DO_REPORT)
        return snprintf(text, room, "report %s %" PRId64 " '%s'", ends[effect->report->end], effect->report->rank,
                        effect->report->text);
    if (effect->type == MU_JOB_DO_WARN)
        return snprintf(text, room, "warn");
    if (effect->type == MU_JOB_DO_POLICY)
        return snprintf(text, room, "%s", mu_policy_effect_text(effect->policy->type));
    if (key.len > own && memcmp(key.data, s->own, own) == 0)
        key = mu_slice(key.data + own, key.len - own);
    return snprintf(text, room, "%s: %s %.*s", whose[effect->who], mu_ask_kind_text(effect->ask.kind), (int)key.len,
                    key.data);
}

static bool is_shown(const struct mu_job_effect *effect)
{
    return effect->type != MU_JOB_DO_POLICY ||
           (effect->policy->type <= MU_POLICY_DO_LINGER || effect->policy->type == MU_POLICY_DO_END);
}

static const char *step(struct scene *s, struct mu_job_event event)
{
    struct muster_error error = { .code = MUSTER_ENOTSUP, .text = "cannot be made" };
    struct mu_job_effect effect;
    size_t used = 0;

    s->trace[0] = '\0';
    mu_job_step(s->job, &event);
    while (mu_job_next(s->job, s->now_ms, &effect)) {
        assert_true(mu_job_is_busy(s->job));
        if (is_shown(&effect)) {
            used += (size_t)snprintf(s->trace + used, sizeof s->trace - used, "%s", used > 0 ? ", " : "");
            used += (size_t)show(s, s->trace + used, sizeof s->trace - used, &effect);
        }
        if (effect.type == MU_JOB_DO_POLICY && effect.policy->type == MU_POLICY_DO_SAY)
            (void)snprintf(s->said, sizeof s->said, "%s", effect.policy->text);
        if (effect.type == MU_JOB_DO_ASK && s->refuses) {
            s->refuses = false;
            mu_job_refuse(s->job, effect.who, effect.ask.id, &error);
        } else if (effect.type == MU_JOB_DO_ASK) {
            s->id = effect.ask.id;
            s->who = effect.who;
        } else if (effect.type == MU_JOB_DO_POLICY && effect.policy->type == MU_POLICY_DO_START_WORKERS && s->told) {
            mu_job_tell(s->job, &(struct mu_policy_event){ .type = MU_POLICY_ON_STARTED });
        }
    }
    assert_false(mu_job_is_busy(s->job));
    return s->trace;
}

static const char *tell(struct scene *s, struct mu_policy_event event)
{
    return step(s, (struct mu_job_event){ .type = MU_JOB_ON_TOLD, .told = event });
}

static const char *rdzv(struct scene *s, enum muster_rdzv_event_type type, struct mu_job_event event)
{
    event.type = MU_JOB_ON_RDZV;
    event.rdzv = type;
    return step(s, event);
}

static const char *answer(struct scene *s, struct mu_answer given)
{
    given.id = s->id;
    return step(s, (struct mu_job_event){ .type = MU_JOB_ON_ANSWER, .who = s->who, .answer = given });
}

static const char *join(struct scene *s, size_t world_size)
{
    struct mu_round joined = {
        .round = 3, .rank = 0, .world_size = (int64_t)world_size, .all_ours = true, .has_store = true
    };

    (void)tell(s, (struct mu_policy_event){ .type = MU_POLICY_ON_RUN });
    return rdzv(s, MUSTER_RDZV_JOINED,
                (struct mu_job_event){ .joined = &joined, .nodes = s->members, .nodes_count = world_size });
}

/* Rank 0 of two, or alone, with its worker up. */
static void run(struct scene *s, size_t world_size)
{
    char budget[MU_RESTART_BUDGET_MAX];
    struct mu_restart_budget ours = { .round = 3, .tag = mu_round_tag(s->members, world_size) };

    (void)join(s, world_size);
    if (world_size > 1)
        (void)answer(
            s, (struct mu_answer){ .value = mu_slice_str("{\"role\": \"r\", \"rank\": 1, \"local_world_size\": 1}") });
    (void)answer(s, (struct mu_answer){ .value = mu_slice_str("?") });
    (void)mu_restart_budget_write(budget, &ours, NULL);
    s->told = true;
    (void)answer(s, (struct mu_answer){ .value = mu_slice_str(budget) });
    for (size_t i = 0; world_size > 1 && i < world_size; i++) {
        (void)answer(s, (struct mu_answer){ 0 });
        s->id--;
    }
    assert_int_equal(mu_policy_phase(mu_job_policy(s->job)), MU_POLICY_RUNNING);
}

static void a_round_that_was_joined_is_watched_and_its_ranks_are_asked_for(void **state)
{
    struct scene *s = *state;

    assert_string_equal(tell(s, (struct mu_policy_event){ .type = MU_POLICY_ON_RUN }), "join");
    assert_string_equal(join(s, 2), "ranks: get role_info/1");
    assert_int_equal(mu_job_assigned(s->job)->world_size, 0);
}

/* ASSIGNED goes to the policy when all that the ranks machine wants is done; STARTED when START was carried out. */
static void what_one_machine_says_the_next_one_hears(void **state)
{
    struct scene *s = *state;

    run(s, 2);
    assert_string_equal(s->trace, "start, completion: get failed");
    assert_int_equal(mu_job_assigned(s->job)->world_size, 2);
    assert_string_equal(tell(s, (struct mu_policy_event){ .type = MU_POLICY_ON_EXITED, .ok = true }), "stop");
    assert_string_equal(tell(s, (struct mu_policy_event){ .type = MU_POLICY_ON_STOPPED }),
                        "completion: set done/0, completion: add done_count");
    assert_string_equal(answer(s, (struct mu_answer){ .number = 1 }), "completion: get last");
    assert_string_equal(answer(s, (struct mu_answer){ .value = mu_slice_str("<val_ignored>") }), "end");
    assert_string_equal(tell(s, (struct mu_policy_event){ .type = MU_POLICY_ON_SIGNAL, .number = 15 }), "");
    assert_string_equal(rdzv(s, MUSTER_RDZV_REMOVED, (struct mu_job_event){ .round = 3 }), "");
}

static void a_failure_is_told_before_the_workers_are_gone_and_that_of_others_ends_the_round(void **state)
{
    struct scene *s = *state;
    struct mu_verdict failure = { .round = 3, .tag = mu_round_tag(s->members, 2), .rank = 1 };
    char text[MU_VERDICT_TEXT_MAX];
    int len;

    run(s, 2);
    assert_string_equal(
        tell(s, (struct mu_policy_event){ .type = MU_POLICY_ON_EXITED, .text = "exit code 3" }),
        "stop, completion: set failed, completion: set heard/0, completion: set left/0, policy: compare and set "
        "muster.job/budget");
    (void)tear_down(state);
    (void)set_up(state);
    run(s, 2);
    s->who = MU_JOB_COMPLETION;
    s->id = 1;
    len = mu_verdict_write(&failure, text);
    assert_string_equal(answer(s, (struct mu_answer){ .value = mu_slice(text, (size_t)len) }),
                        "completion: set heard/0, completion: set left/0, stop");
}

static void who_is_lost_is_found_by_its_rank(void **state)
{
    struct scene *s = *state;
    struct mu_node stranger = { mu_slice_str("x"), 7, mu_node_local_id(MU_NODE_VERSION, 7) };
    struct mu_job_event lost = { .round = 3, .nodes = &s->members[1], .nodes_count = 1 };

    run(s, 2);
    assert_string_equal(rdzv(s, MUSTER_RDZV_PEERS_LOST, lost),
                        "completion: compare and set done/1, completion: compare and set left/1");
    (void)answer(s, (struct mu_answer){ .value = mu_slice_str("?") });
    s->id--;
    assert_string_equal(answer(s, (struct mu_answer){ .value = mu_slice_str("done 1 n7") }), ""); /* it was */
    lost.round = 2;
    assert_string_equal(rdzv(s, MUSTER_RDZV_PEERS_LOST, lost), ""); /* of another round */
    lost = (struct mu_job_event){ .round = 3, .nodes = &stranger, .nodes_count = 1 };
    assert_string_equal(rdzv(s, MUSTER_RDZV_PEERS_LOST, lost), "completion: set heard/0, completion: set left/0, stop");
    assert_string_equal(s->said, "lost x; restarting the group");
}

/* The host is enough, unless two members are on it. */
static void nodes_are_named_by_their_hosts(void **state)
{
    struct scene *s = *state;
    struct mu_node newcomers[] = { { mu_slice_str("node8"), 7, mu_node_local_id(MU_NODE_VERSION, 7) },
                                   { mu_slice_str("n"), 9, mu_node_local_id(MU_NODE_VERSION, 9) },
                                   s->members[1] };
    struct mu_job_event event = { .round = 3, .nodes = newcomers, .nodes_count = 1, .count = 1 };

    run(s, 2);
    (void)rdzv(s, MUSTER_RDZV_WAITING, event);
    assert_string_equal(s->said, "node8 wants to join; restarting the group");
    (void)tear_down(state);
    (void)set_up(state);
    run(s, 2);
    event.nodes_count = 3; /* a member that waits for the next round is no newcomer */
    (void)rdzv(s, MUSTER_RDZV_WAITING, event);
    assert_string_equal(s->said, "node8, n (pid 9) want to join; restarting the group");
    (void)tear_down(state);
    (void)set_up(state);
    run(s, 2);
    (void)rdzv(s, MUSTER_RDZV_WAITING, (struct mu_job_event){ .round = 3, .count = 2 });
    assert_string_equal(s->said, "2 nodes want to join; restarting the group");
    (void)tear_down(state);
    (void)set_up(state);
    run(s, 2);
    event = (struct mu_job_event){ .round = 3, .nodes = &s->members[1], .nodes_count = 1, .cause = "its lease ended" };
    (void)rdzv(s, MUSTER_RDZV_PEERS_LOST, event);
    (void)answer(s, (struct mu_answer){ .value = mu_slice_str("?") });
    s->id--;
    (void)answer(s, (struct mu_answer){ .found = false });
    assert_string_equal(s->said, "lost n (pid 1): its lease ended; restarting the group");
}

static void losses_without_a_name_are_losses(void **state)
{
    struct scene *s = *state;

    run(s, 2);
    assert_string_equal(rdzv(s, MUSTER_RDZV_PEERS_LOST, (struct mu_job_event){ .round = 3 }),
                        "completion: set heard/0, completion: set left/0, stop");
}

static void what_concerns_two_is_heard_by_both(void **state)
{
    struct muster_error error = { .code = MUSTER_ELOST, .text = "away" };
    struct scene *s = *state;

    run(s, 2);
    assert_string_equal(rdzv(s, MUSTER_RDZV_BACKEND_DOWN, (struct mu_job_event){ .round = -1, .error = &error }), "");
    assert_string_equal(rdzv(s, MUSTER_RDZV_BACKEND_UP, (struct mu_job_event){ .round = -1 }), "");
    assert_string_equal(rdzv(s, MUSTER_RDZV_CLOSED, (struct mu_job_event){ .round = -1 }),
                        "completion: compare and set muster.job/verdict");
    assert_string_equal(rdzv(s, MUSTER_RDZV_WAITING, (struct mu_job_event){ .round = 3, .count = 1 }), "");
    assert_string_equal(rdzv(s, MUSTER_RDZV_PROGRESS, (struct mu_job_event){ .round = 3 }), "");
    assert_string_equal(rdzv(s, MUSTER_RDZV_LOOKED, (struct mu_job_event){ .round = 3 }), "");
    assert_string_equal(rdzv(s, MUSTER_RDZV_REMOVED, (struct mu_job_event){ .round = 3 }), "kill");
}

static void a_failure_of_the_rendezvous_is_for_whoever_asked(void **state)
{
    struct muster_error error = { .code = MUSTER_ERDZV_TIMEOUT, .text = "too late" };
    struct scene *s = *state;

    run(s, 1);
    (void)tell(s, (struct mu_policy_event){ .type = MU_POLICY_ON_EXITED, .ok = true });
    (void)tell(s, (struct mu_policy_event){ .type = MU_POLICY_ON_STOPPED });
    assert_non_null(
        strstr(answer(s, (struct mu_answer){ .number = 1 }), "completion: compare and set muster.job/budget"));
    assert_string_equal(answer(s, (struct mu_answer){ .value = mu_slice_str("?") }),
                        "completion: compare and set muster.job/verdict");
    assert_string_equal(answer(s, (struct mu_answer){ .value = mu_slice_str("?") }), "close");
    assert_string_equal(
        rdzv(s, MUSTER_RDZV_FAILED,
             (struct mu_job_event){ .round = -1, .request = MUSTER_RDZV_REQUEST_LOOK, .error = &error }),
        "");
    assert_non_null(
        strstr(rdzv(s, MUSTER_RDZV_FAILED,
                    (struct mu_job_event){ .round = -1, .request = MUSTER_RDZV_REQUEST_CLOSE, .error = &error }),
               "warn, completion: set "));
    (void)tear_down(state);
    (void)set_up(state);
    run(s, 1);
    assert_string_equal(
        rdzv(s, MUSTER_RDZV_FAILED,
             (struct mu_job_event){ .round = -1, .request = MUSTER_RDZV_REQUEST_CLOSE, .error = &error }),
        ""); /* nobody closes */
    assert_string_equal(
        rdzv(s, MUSTER_RDZV_FAILED,
             (struct mu_job_event){ .round = -1, .request = MUSTER_RDZV_REQUEST_MEMBERSHIP, .error = &error }),
        "stop");
}

static void a_request_that_cannot_be_made_is_answered_all_the_same(void **state)
{
    struct scene *s = *state;

    s->refuses = true;
    assert_string_equal(join(s, 2), "ranks: get role_info/1, completion: set heard/0, completion: set left/0, leave");
}

/* Its keys would be those of another round. */
static void a_round_whose_members_there_is_no_memory_for_is_left(void **state)
{
    struct mu_round joined = { .round = 3, .world_size = 2, .all_ours = true, .has_store = true };
    struct scene *s = *state;
    struct mu_job_effect effect;
    bool ended = false;

    (void)tell(s, (struct mu_policy_event){ .type = MU_POLICY_ON_RUN });
    assert_string_equal(rdzv(s, MUSTER_RDZV_JOINED, (struct mu_job_event){ .joined = &joined, .nodes_count = 2 }),
                        "leave");
    mu_job_step(s->job, &(struct mu_job_event){ .type = MU_JOB_ON_RDZV, .rdzv = MUSTER_RDZV_LEFT, .round = -1 });
    while (mu_job_next(s->job, s->now_ms, &effect)) {
        if (effect.type != MU_JOB_DO_POLICY || effect.policy->type != MU_POLICY_DO_END)
            continue;
        ended = true;
        assert_int_equal(effect.policy->outcome->error.code, MUSTER_ENOMEM);
        assert_string_equal(effect.policy->outcome->error.text, "no memory for the 2 members of round 3");
    }
    assert_true(ended);
}

static void time_passes_for_all_of_them(void **state)
{
    struct scene *s = *state;

    assert_int_equal(mu_job_deadline_ms(s->job), UINT64_MAX);
    (void)join(s, 2);
    assert_int_equal(mu_job_deadline_ms(s->job), s->now_ms + MU_RANKS_TIMEOUT_MS);
    s->now_ms += MU_RANKS_TIMEOUT_MS - 1;
    assert_string_equal(step(s, (struct mu_job_event){ .type = MU_JOB_ON_TIME }), "");
    s->now_ms++;
    assert_string_equal(step(s, (struct mu_job_event){ .type = MU_JOB_ON_TIME }),
                        "completion: set heard/0, completion: set left/0, leave");
    assert_int_equal(mu_job_deadline_ms(s->job), s->now_ms + MU_POLICY_LEAVE_MS);
    s->now_ms += MU_POLICY_LEAVE_MS;
    assert_string_equal(step(s, (struct mu_job_event){ .type = MU_JOB_ON_TIME }), "end");
}

/* ---- A round with a leader ---- */

static const struct mu_part_verdict all_good = { .succeeded = true }, all_bad = { .cause = "rank 4 failed" };

/* With its worker up. */
static const char *run_led(struct scene *s, int64_t round, int64_t count, const char *why)
{
    const struct mu_part_seat seat = {
        .count = count, .restarts_left = 1 - count, .max_restarts = 1, .base_rank = 4, .world_size = 8, .why = why
    };
    struct mu_round joined = { .round = round, .rank = 1, .world_size = 2, .has_store = true };

    if (count == 0)
        assert_string_equal(tell(s, (struct mu_policy_event){ .type = MU_POLICY_ON_RUN }), "join");
    s->told = true;
    (void)rdzv(s, MUSTER_RDZV_JOINED, (struct mu_job_event){ .joined = &joined, .round = round, .seat = &seat });
    assert_int_equal(mu_policy_phase(mu_job_policy(s->job)), MU_POLICY_RUNNING);
    assert_int_equal(mu_job_assigned(s->job)->world_size, 8);
    assert_int_equal(mu_job_assigned(s->job)->base_rank, 4);
    assert_int_equal(mu_job_assigned(s->job)->count, count);
    return s->trace;
}

static const char *worker_fails(struct scene *s)
{
    return tell(s, (struct mu_policy_event){ .type = MU_POLICY_ON_EXITED, .text = "exit code 3" });
}

static void with_a_leader_no_key_is_asked_for(void **state)
{
    char key[64], text[MU_VANISHED_NOTE_MAX];
    struct scene *s = *state;

    assert_string_equal(run_led(s, 3, 0, NULL), "start");
    assert_false(mu_job_will(s->job, key, sizeof key, text));
    assert_int_equal(mu_job_deadline_ms(s->job), UINT64_MAX);
    assert_string_equal(tell(s, (struct mu_policy_event){ .type = MU_POLICY_ON_EXITED, .ok = true }), "stop");
    assert_string_equal(tell(s, (struct mu_policy_event){ .type = MU_POLICY_ON_STOPPED }), "report done -1 ''");
    assert_string_equal(rdzv(s, MUSTER_RDZV_REPORTED, (struct mu_job_event){ .round = 3 }), "");
    assert_string_equal(rdzv(s, MUSTER_RDZV_CLOSED, (struct mu_job_event){ .round = -1, .verdict = &all_good }), "end");
    assert_string_equal(s->said, "all 2 nodes are done");
}

static void a_failure_is_reported_and_the_leader_says_what_it_costs(void **state)
{
    struct scene *s = *state;

    (void)run_led(s, 3, 0, NULL);
    assert_string_equal(worker_fails(s), "stop, report failed 4 'exit code 3'");
    assert_string_equal(rdzv(s, MUSTER_RDZV_REPORTED, (struct mu_job_event){ .round = 3 }), "");
    assert_string_equal(rdzv(s, MUSTER_RDZV_PEERS_LOST, (struct mu_job_event){ .round = 3, .cause = "rank 4" }), "");
    assert_string_equal(tell(s, (struct mu_policy_event){ .type = MU_POLICY_ON_STOPPED }), "join");
    assert_string_equal(run_led(s, 4, 1, "rank 4 failed on n; restarting with 2 nodes, no restarts left"), "start");
    assert_string_equal(s->said, "rank 4 failed on n; restarting with 2 nodes, no restarts left");
    assert_int_equal(mu_policy_remaining_restarts(mu_job_policy(s->job)), 0);
    assert_string_equal(worker_fails(s), "stop, report failed 4 'exit code 3'");
    (void)tell(s, (struct mu_policy_event){ .type = MU_POLICY_ON_STOPPED });
    assert_string_equal(
        rdzv(s, MUSTER_RDZV_FAILED,
             (struct mu_job_event){ .round = -1,
                                    .request = MUSTER_RDZV_REQUEST_JOIN,
                                    .verdict = &all_bad,
                                    .error = &(struct muster_error){ .code = MUSTER_ERDZV_CLOSED, .text = "closed" } }),
        "end");
    assert_string_equal(s->said, "the job has failed: rank 4 failed");
}

static void what_the_leader_says_ends_the_round_in_its_own_words(void **state)
{
    static const struct {
        enum muster_rdzv_event_type type;
        struct mu_job_event event;
        const char *trace, *said;
    } rows[] = {
        { MUSTER_RDZV_PEERS_LOST,
          { .round = 3, .cause = "rank 9 failed on node2: exit code 1" },
          "stop",
          "rank 9 failed on node2: exit code 1; restarting the group" },
        { MUSTER_RDZV_PEERS_LOST, { .round = 2, .cause = "of another round" }, "", "" },
        { MUSTER_RDZV_WAITING,
          { .round = 3, .count = 1 },
          "report again -1 '1 node wants to join', stop",
          "1 node wants to join; restarting the group" },
        { MUSTER_RDZV_CLOSED,
          { .round = -1, .verdict = &all_bad },
          "stop",
          "the job has failed on another node; stopping the workers" },
        { MUSTER_RDZV_CLOSED, { .round = -1 }, "", "" },
        { MUSTER_RDZV_REMOVED,
          { .round = 3 },
          "kill",
          "the others had gone on without this node; restarting the group" },
    };
    struct scene *s = *state;

    for (size_t i = 0; i < COUNT(rows); i++) {
        (void)tear_down(state);
        (void)set_up(state);
        (void)run_led(s, 3, 0, NULL);
        s->said[0] = '\0';
        (void)rdzv(s, rows[i].type, rows[i].event);
        if (strcmp(rows[i].trace, s->trace) != 0 || strcmp(rows[i].said, s->said) != 0)
            fail_msg("row %zu: '%s' says '%s'", i, s->trace, s->said);
    }
}

static void who_leaves_reports_why_before(void **state)
{
    struct scene *s = *state;

    (void)run_led(s, 3, 0, NULL);
    assert_string_equal(tell(s, (struct mu_policy_event){ .type = MU_POLICY_ON_SIGNAL, .number = 15 }),
                        "report left -1 'SIGTERM', stop");
    assert_string_equal(tell(s, (struct mu_policy_event){ .type = MU_POLICY_ON_STOPPED }), "leave");
}

static void who_is_done_ends_when_the_others_regroup_or_at_its_limit(void **state)
{
    struct scene *s = *state;

    (void)run_led(s, 3, 0, NULL);
    (void)tell(s, (struct mu_policy_event){ .type = MU_POLICY_ON_EXITED, .ok = true });
    (void)tell(s, (struct mu_policy_event){ .type = MU_POLICY_ON_STOPPED });
    (void)rdzv(s, MUSTER_RDZV_REPORTED, (struct mu_job_event){ .round = 3 });
    assert_string_equal(rdzv(s, MUSTER_RDZV_PEERS_LOST, (struct mu_job_event){ .round = 3, .cause = "lost node9" }),
                        "leave");
    assert_string_equal(s->said, "lost node9; this node's workers have succeeded, so it ends and the other nodes "
                                 "regroup");
    (void)tear_down(state);
    (void)set_up(state);
    (void)run_led(s, 3, 0, NULL);
    (void)tell(s, (struct mu_policy_event){ .type = MU_POLICY_ON_EXITED, .ok = true });
    (void)tell(s, (struct mu_policy_event){ .type = MU_POLICY_ON_STOPPED });
    (void)rdzv(
        s, MUSTER_RDZV_BACKEND_DOWN,
        (struct mu_job_event){ .round = -1, .error = &(struct muster_error){ .code = MUSTER_ELOST, .text = "away" } });
    s->now_ms += MU_COMPLETION_SILENT_MS;
    assert_string_equal(step(s, (struct mu_job_event){ .type = MU_JOB_ON_TIME }), "leave");
}

/* A PyTorch node has come: from now on the job meets in a document. */
static void a_round_without_a_leader_may_follow(void **state)
{
    struct mu_round joined = { .round = 3, .rank = 0, .world_size = 2, .all_ours = true, .has_store = true };
    struct scene *s = *state;

    (void)run_led(s, 2, 0, NULL);
    (void)rdzv(s, MUSTER_RDZV_PEERS_LOST, (struct mu_job_event){ .round = 2, .cause = "a PyTorch node joins" });
    (void)tell(s, (struct mu_policy_event){ .type = MU_POLICY_ON_STOPPED });
    assert_string_equal(
        rdzv(s, MUSTER_RDZV_JOINED,
             (struct mu_job_event){ .joined = &joined, .round = 3, .nodes = s->members, .nodes_count = 2 }),
        "ranks: get role_info/1");
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    FOR_EACH_FAILURE (n) {
        struct mu_job_config config = {
            .policy = { .run_id = "job", .role = "r", .node = "me", .local_world_size = 1 },
            .ranks = { .run_id = "job", .role = "r", .local_world_size = 1 },
            .completion = { .run_id = "job", .node = "me", .barrier_ms = UINT64_MAX },
        };
        struct scene s = { .now_ms = 1000, .members = { { mu_slice_str("n"), 1, 0 }, { mu_slice_str("m"), 2, 0 } } };
        struct muster_error error = { 0 };
        int rc = mu_job_new(&config, &s.job, &error);

        if (rc < 0) {
            assert_true(fail_alloc_hit() && rc == MUSTER_ENOMEM && error.code == MUSTER_ENOMEM);
            continue;
        }
        if (strcmp(join(&s, 2), "leave") == 0)
            assert_true(fail_alloc_hit()); /* no member, no keys */
        (void)rdzv(&s, MUSTER_RDZV_PEERS_LOST,
                   (struct mu_job_event){ .round = 3, .nodes = s.members, .nodes_count = 2 });
        mu_job_free(s.job);
    }
}

/* ---- Many agents and one store ---- */

enum seat { OUT, JOINING, COMING, MEMBER, LEAVING }; /* COMING: the round is complete, JOINED is on its way */

struct pending {
    enum mu_job_who who;
    struct mu_ask ask;
    char key[ASK_STORE_KEY], value[ASK_STORE_VALUE], expected[ASK_STORE_VALUE];
};

struct agent {
    struct mu_job *job;
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

static void keep_ask(struct agent *a, enum mu_job_who who, const struct mu_ask *ask)
{
    struct pending *p = &a->asks[a->asks_count++];

    EXPECT(a->asks_count < ASKS);
    p->who = who;
    p->ask = *ask;
    memcpy(p->key, ask->key.data, ask->key.len);
    if (ask->value.len > 0)
        memcpy(p->value, ask->value.data, ask->value.len);
    if (ask->expected.len > 0)
        memcpy(p->expected, ask->expected.data, ask->expected.len);
}

static void start_workers(struct agent *a)
{
    const struct mu_ranks_result *result = mu_job_assigned(a->job);

    EXPECT(result->base_rank == a->rank * WORKERS);
    EXPECT(result->world_size == (int64_t)job.members_count[a->round] * WORKERS);
    EXPECT(result->shared);
    EXPECT(job.counts[a->round] < 0 || job.counts[a->round] == result->count); /* one for all */
    job.counts[a->round] = a->count = result->count;
    EXPECT(!a->up && !a->starting && !a->stopping && !a->succeeded);
    EXPECT(a->seat == MEMBER);
    a->starting = true;
    a->running = WORKERS;
    a->good = 0;
}

static void perform_policy(struct agent *a, const struct mu_policy_effect *e)
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
        a->seat = OUT;
        break;
    case MU_POLICY_DO_STATE:
        a->succeeded |= e->state == MU_GROUP_SUCCEEDED;
        break;
    case MU_POLICY_DO_LINGER:
    case MU_POLICY_DO_RECORD:
    case MU_POLICY_DO_STEP:
    case MU_POLICY_DO_DECISION:
    case MU_POLICY_DO_FINAL:
    case MU_POLICY_DO_SAY:
        break;
    case MU_POLICY_DO_ASSIGN:
    case MU_POLICY_DO_ASSIGN_STOP:
    case MU_POLICY_DO_WATCH:
    case MU_POLICY_DO_WATCH_STOP:
    case MU_POLICY_DO_LISTEN:
    case MU_POLICY_DO_TELL_FAILED:
    case MU_POLICY_DO_NOTE:
    case MU_POLICY_DO_FINISH:
    case MU_POLICY_DO_FAIL_JOB:
    case MU_POLICY_DO_ASK:
        fail_msg("%s is the job's own business", mu_policy_effect_text(e->type));
    }
}

static void feed(struct agent *a, struct mu_job_event event)
{
    struct mu_job_effect effect;

    mu_job_step(a->job, &event);
    while (mu_job_next(a->job, job.now_ms, &effect)) {
        if (effect.type == MU_JOB_DO_ASK) {
            keep_ask(a, effect.who, &effect.ask);
        } else if (effect.type == MU_JOB_DO_CLOSE) {
            EXPECT(ask_store_get(&job.store, "muster.job/verdict") != NULL);
            a->close_asked = true;
        } else if (effect.type == MU_JOB_DO_POLICY) {
            perform_policy(a, effect.policy);
        }
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

static bool answer_ask(struct agent *a)
{
    for (size_t i = 0; i < a->asks_count; i++) {
        struct muster_error error = { .code = MUSTER_ELOST, .text = "connection lost" };
        struct pending p = a->asks[i];
        struct mu_answer answer = { .id = p.ask.id };
        bool lost = !job.calm && dice(1000) < job.losses;

        p.ask.key.data = p.key;
        p.ask.value.data = p.value;
        p.ask.expected.data = p.expected;
        if ((!lost || dice(2) == 0) && !ask_store_do(&job.store, &p.ask, &answer))
            continue;
        if (lost) /* before it was carried out, or after */
            answer = (struct mu_answer){ .id = p.ask.id, .error = &error };
        memmove(&a->asks[i], &a->asks[i + 1], (a->asks_count - i - 1) * sizeof a->asks[0]);
        a->asks_count--;
        feed(a, (struct mu_job_event){ .type = MU_JOB_ON_ANSWER, .who = p.who, .answer = answer });
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

static struct mu_node node_of(size_t index)
{
    return (struct mu_node){ mu_slice_str("n"), (int64_t)index, mu_node_local_id(MU_NODE_VERSION, (uint32_t)index) };
}

static bool tell_lost(struct agent *a)
{
    for (size_t rank = 0; rank < job.members_count[a->round]; rank++) {
        struct mu_node peer = node_of(job.members[a->round][rank]);

        if (a->heard[rank] || is_there(job.members[a->round][rank], a->round))
            continue;
        a->heard[rank] = true;
        feed_rdzv(a, MUSTER_RDZV_PEERS_LOST,
                  (struct mu_job_event){ .round = a->round, .nodes = &peer, .nodes_count = 1 });
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
    struct muster_error error = { .code = MUSTER_ERDZV_CLOSED, .text = "closed" };
    struct mu_round joined = { .round = a->round,
                               .rank = a->rank,
                               .world_size = (int64_t)job.members_count[a->round],
                               .all_ours = true,
                               .has_store = true };
    struct mu_node members[AGENTS];

    if (a->seat == LEAVING) {
        a->seat = OUT;
        feed_rdzv(a, MUSTER_RDZV_LEFT, (struct mu_job_event){ .round = -1 });
    } else if (a->seat == JOINING && job.closed) {
        a->seat = OUT;
        feed_rdzv(a, MUSTER_RDZV_FAILED,
                  (struct mu_job_event){ .round = -1, .request = MUSTER_RDZV_REQUEST_JOIN, .error = &error });
    } else if (a->seat == COMING) {
        a->seat = MEMBER;
        a->told_closed = false;
        for (size_t i = 0; i < job.members_count[a->round]; i++)
            members[i] = node_of(job.members[a->round][i]);
        feed_rdzv(
            a, MUSTER_RDZV_JOINED,
            (struct mu_job_event){
                .round = a->round, .joined = &joined, .nodes = members, .nodes_count = job.members_count[a->round] });
    } else if (a->seat == MEMBER && (a->close_asked || (job.closed && !a->told_closed))) {
        job.closed = a->told_closed = true;
        a->close_asked = false;
        feed_rdzv(a, MUSTER_RDZV_CLOSED, (struct mu_job_event){ .round = -1 });
    } else if (a->seat == MEMBER && !tell_lost(a) && somebody_joins() && !a->told_waiting && !job.closed) {
        a->told_waiting = true;
        feed_rdzv(a, MUSTER_RDZV_WAITING, (struct mu_job_event){ .round = a->round, .count = 1 });
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
    if (mu_job_deadline_ms(a->job) <= job.now_ms)
        feed(a, (struct mu_job_event){ .type = MU_JOB_ON_TIME });
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
    struct mu_completion_config finish = { .run_id = "job", .node = "n", .barrier_ms = UINT64_MAX };
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
        assert_int_equal(mu_job_new(&(struct mu_job_config){ .policy = policy, .ranks = ranks, .completion = finish },
                                    &a->job, NULL),
                         0);
        feed_policy(a, (struct mu_policy_event){ .type = MU_POLICY_ON_RUN });
    }
    complete_round();
}

static void check_end(void)
{
    const char *verdict = ask_store_get(&job.store, "muster.job/verdict");
    const char *budget = ask_store_get(&job.store, "muster.job/budget");
    int64_t restarts = budget == NULL ? 0 : strtoll(budget, NULL, 10);
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
    EXPECT(failed || restarts <= job.max_restarts);
    if (all_well && job.failures == 0) {
        EXPECT(succeeded == job.agents_count && job.closed && !failed);
        EXPECT(restarts == 0);
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
                fail_msg("seed %" PRIu64 ": agent %zu does not end: %s, seat %d", seed, i,
                         mu_policy_phase_text(mu_policy_phase(mu_job_policy(a->job))), (int)a->seat);
        }
        check_end();
        failed += ask_store_get(&job.store, "muster.job/verdict") != NULL &&
                  strstr(ask_store_get(&job.store, "muster.job/verdict"), "\"failed\"") != NULL;
        restarted += job.round > 0;
        for (size_t i = 0; i < job.agents_count; i++)
            mu_job_free(job.agents[i].job);
    }
    assert_true(failed > SEEDS / 20 && restarted > SEEDS / 10); /* it was not all plain sailing */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE(a_round_that_was_joined_is_watched_and_its_ranks_are_asked_for),
        SCENE(what_one_machine_says_the_next_one_hears),
        SCENE(a_failure_is_told_before_the_workers_are_gone_and_that_of_others_ends_the_round),
        SCENE(who_is_lost_is_found_by_its_rank),
        SCENE(nodes_are_named_by_their_hosts),
        SCENE(losses_without_a_name_are_losses),
        SCENE(what_concerns_two_is_heard_by_both),
        SCENE(a_failure_of_the_rendezvous_is_for_whoever_asked),
        SCENE(a_request_that_cannot_be_made_is_answered_all_the_same),
        SCENE(a_round_whose_members_there_is_no_memory_for_is_left),
        SCENE(time_passes_for_all_of_them),
        SCENE(with_a_leader_no_key_is_asked_for),
        SCENE(a_failure_is_reported_and_the_leader_says_what_it_costs),
        SCENE(what_the_leader_says_ends_the_round_in_its_own_words),
        SCENE(who_leaves_reports_why_before),
        SCENE(who_is_done_ends_when_the_others_regroup_or_at_its_limit),
        SCENE(a_round_without_a_leader_may_follow),
        cmocka_unit_test(any_allocation_may_fail),
        cmocka_unit_test(any_job_ends_and_all_agree_how),
    };

    return cmocka_run_group_tests_name("job", tests, NULL, NULL);
}
