/* An agent's life: every way out of a run, what ends a round and what does not, the budget, signals, and random
 * walks. */
#include "agent/policy.h"
#include "ask_store.h"
#include "base/rng.h"
#include "failmalloc.h"
#include "pure.h"

#include <signal.h>

enum { T0 = 1000, GRACE = 30000 };

struct scene {
    struct mu_policy *policy;
    char trace[8192]; /* what is done */
    char told[8192];  /* lines, records and metrics */
    uint64_t now_ms, id;
    bool stop_seen, is_restart; /* of the last step: did it stop workers, and are they to be restarted */
    struct mu_policy_outcome outcome;
    unsigned ends;
};

#define PAID(count, round) #count " " #round ".00000000000000ab"
#define STOP "stop 15 in 30000"
#define TELL(rank) ", tell " #rank ": local rank 1 exited with 3"
#define PAY(count, round) ", cas muster.job/budget=" PAID(count, round) " me"

static struct scene scene;

static void configure(struct scene *s, int64_t max_restarts)
{
    struct mu_policy_config config = { .run_id = "job",
                                       .role = "default",
                                       .node = "me",
                                       .local_world_size = 2,
                                       .max_restarts = max_restarts,
                                       .grace_ms = GRACE };

    mu_policy_free(s->policy);
    *s = (struct scene){ .now_ms = T0 };
    assert_int_equal(mu_policy_new(&config, &s->policy, NULL), 0);
}

static int set_up(void **state)
{
    scene.policy = NULL;
    configure(&scene, 1);
    *state = &scene;
    return 0;
}

static int tear_down(void **state)
{
    struct scene *s = *state;

    mu_policy_free(s->policy);
    s->policy = NULL;
    return 0;
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

/* ---- Showing ---- */

static int show_ask(char *text, size_t room, const struct mu_ask *a)
{
    if (a->kind == MU_ASK_COMPARE_SET)
        return snprintf(text, room, "cas %.*s=%.*s", (int)a->key.len, a->key.data, (int)a->value.len, a->value.data);
    if (a->kind == MU_ASK_ADD)
        return snprintf(text, room, "add %.*s+%" PRId64, (int)a->key.len, a->key.data, a->number);
    return snprintf(text, room, "%s %.*s", mu_ask_kind_text(a->kind), (int)a->key.len, a->key.data);
}

static int show_record(char *text, size_t room, const struct mu_policy_effect *e)
{
    static const char *const names[] = { "rendezvous", "assign", "workers start", "workers end", "agent" };
    int used = snprintf(text, room, "record %s", names[e->record]);

    if (e->record >= MU_POLICY_RECORD_WORKERS_END)
        used += snprintf(text + used, room - (size_t)used, " %s", mu_group_state_name(e->state));
    if (e->duration_ms >= 0)
        used += snprintf(text + used, room - (size_t)used, " %" PRId64 " ms", e->duration_ms);
    if (e->error != NULL)
        used += snprintf(text + used, room - (size_t)used, " %s", muster_error_name(e->error->code));
    return used;
}

static bool is_told(const struct mu_policy_effect *e)
{
    return e->type == MU_POLICY_DO_STEP || e->type == MU_POLICY_DO_DECISION || e->type == MU_POLICY_DO_FINAL ||
           e->type == MU_POLICY_DO_SAY || e->type == MU_POLICY_DO_RECORD || e->type == MU_POLICY_DO_STATE ||
           e->type == MU_POLICY_DO_NOTE;
}

static int show(char *text, size_t room, const struct mu_policy_effect *e)
{
    switch (e->type) {
    case MU_POLICY_DO_STOP_WORKERS:
        return snprintf(text, room, "stop %d in %" PRIu64, e->signal, e->grace_ms);
    case MU_POLICY_DO_FAIL_JOB:
        return snprintf(text, room, "fail job%s: %s", e->ok ? " at once" : "", e->text);
    case MU_POLICY_DO_TELL_FAILED:
        return snprintf(text, room, "tell %" PRId64 ": %s", e->number, e->text);
    case MU_POLICY_DO_NOTE:
        return snprintf(text, room, "note %s: %s",
                        e->note == MU_NOTE_AGAIN  ? "again"
                        : e->note == MU_NOTE_LOST ? "lost"
                                                  : "left",
                        e->text);
    case MU_POLICY_DO_ASK:
        return show_ask(text, room, &e->ask);
    case MU_POLICY_DO_END:
        return snprintf(text, room, "end %s rc %d", mu_policy_outcome_text(e->outcome->kind), e->outcome->rc);
    case MU_POLICY_DO_STEP:
        return snprintf(text, room, "step %d %s", (int)e->step, e->ok ? "ok" : "bad");
    case MU_POLICY_DO_DECISION:
        return snprintf(text, room, "decision %s %" PRId64, mu_group_state_name(e->state), e->number);
    case MU_POLICY_DO_FINAL:
        return snprintf(text, room, "final %s %" PRId64, e->ok ? "ok" : "failed", e->number);
    case MU_POLICY_DO_SAY:
        return snprintf(text, room, "'%s'", e->text);
    case MU_POLICY_DO_RECORD:
        return show_record(text, room, e);
    case MU_POLICY_DO_STATE:
        return snprintf(text, room, "state %s", mu_group_state_name(e->state));
    case MU_POLICY_DO_START_WORKERS:
        return e->ok ? snprintf(text, room, "start after %" PRId64 " ms", e->number) : snprintf(text, room, "start");
    case MU_POLICY_DO_JOIN:
    case MU_POLICY_DO_LEAVE:
    case MU_POLICY_DO_ASSIGN:
    case MU_POLICY_DO_ASSIGN_STOP:
    case MU_POLICY_DO_WATCH:
    case MU_POLICY_DO_WATCH_STOP:
    case MU_POLICY_DO_LISTEN:
    case MU_POLICY_DO_FINISH:
    case MU_POLICY_DO_KILL_WORKERS:
    case MU_POLICY_DO_LINGER:
        break;
    }
    return snprintf(text, room, "%s", mu_policy_effect_text(e->type));
}

static void add(char *text, size_t room, const struct mu_policy_effect *e)
{
    size_t used = strlen(text);

    if (used > 0)
        used += (size_t)snprintf(text + used, room - used, ", ");
    (void)show(text + used, room - used, e);
}

static const char *step(struct scene *s, struct mu_policy_event event)
{
    struct mu_policy_effects effects;

    event.now_ms = s->now_ms;
    mu_policy_step(s->policy, &event, &effects);
    s->trace[0] = s->told[0] = '\0';
    s->stop_seen = s->is_restart = false;
    for (unsigned i = 0; i < effects.count; i++) {
        const struct mu_policy_effect *e = &effects.items[i];

        if (e->type == MU_POLICY_DO_WATCH_STOP || e->type == MU_POLICY_DO_LISTEN)
            continue; /* said before everything that ends a round, and with every start */
        if (is_told(e))
            add(s->told, sizeof s->told, e);
        else
            add(s->trace, sizeof s->trace, e);
        if (e->type == MU_POLICY_DO_ASK)
            s->id = e->ask.id;
        if (e->type == MU_POLICY_DO_STOP_WORKERS || e->type == MU_POLICY_DO_KILL_WORKERS) {
            s->stop_seen = true;
            s->is_restart = e->ok;
        }
        if (e->type == MU_POLICY_DO_END) {
            s->outcome = *e->outcome;
            s->ends++;
        }
    }
    return s->trace;
}

/* ---- Events ---- */

static const char *simple(struct scene *s, enum mu_policy_event_type type)
{
    return step(s, (struct mu_policy_event){ .type = type, .round = -1 });
}

static const char *failing(struct scene *s, enum mu_policy_event_type type, int code, const char *text)
{
    struct muster_error error = { .code = code };

    (void)snprintf(error.text, sizeof error.text, "%s", text);
    return step(s, (struct mu_policy_event){ .type = type, .round = -1, .error = &error });
}

/* A request to the rendezvous has failed. */
static const char *fails(struct scene *s, enum muster_rdzv_request request, int code, const char *text)
{
    struct muster_error error = { .code = code };

    (void)snprintf(error.text, sizeof error.text, "%s", text);
    return step(
        s, (struct mu_policy_event){ .type = MU_POLICY_ON_FAILED, .round = -1, .request = request, .error = &error });
}

static const char *joined_as(struct scene *s, struct mu_round joined)
{
    return step(s, (struct mu_policy_event){ .type = MU_POLICY_ON_JOINED, .joined = &joined });
}

static const char *joined(struct scene *s, int64_t round)
{
    return joined_as(
        s, (struct mu_round){
               .round = round, .tag = 0xab, .rank = 1, .world_size = 2, .all_ours = true, .has_store = true });
}

static const char *assigned(struct scene *s, int64_t count, bool shared)
{
    struct mu_ranks_result ranks = {
        .count = count, .shared = shared, .base_rank = 2, .world_size = 4, .role_world_size = 4
    };

    return step(s, (struct mu_policy_event){ .type = MU_POLICY_ON_ASSIGNED, .ranks = &ranks });
}

static const char *exited(struct scene *s, int64_t local_rank, bool ok)
{
    return step(s, (struct mu_policy_event){ .type = MU_POLICY_ON_EXITED,
                                             .number = local_rank,
                                             .ok = ok,
                                             .text = ok ? "ok" : "local rank 1 exited with 3" });
}

static const char *stopped(struct scene *s)
{
    return simple(s, MU_POLICY_ON_STOPPED);
}

static const char *waiting(struct scene *s, int64_t round)
{
    return step(s, (struct mu_policy_event){ .type = MU_POLICY_ON_WAITING, .round = round, .number = 1 });
}

static const char *lost(struct scene *s)
{
    return step(s, (struct mu_policy_event){ .type = MU_POLICY_ON_LOST, .round = -1, .text = "b" });
}

static const char *removed(struct scene *s, int64_t round)
{
    return step(s, (struct mu_policy_event){ .type = MU_POLICY_ON_REMOVED, .round = round });
}

static const char *signalled(struct scene *s, int signal)
{
    return step(s, (struct mu_policy_event){ .type = MU_POLICY_ON_SIGNAL, .number = signal });
}

static const char *finished(struct scene *s, enum mu_completion_end end)
{
    return step(s, (struct mu_policy_event){ .type = MU_POLICY_ON_FINISHED, .end = end, .text = "so it is" });
}

static const char *answer(struct scene *s, struct mu_answer given)
{
    given.id = s->id;
    return step(s, (struct mu_policy_event){ .type = MU_POLICY_ON_ANSWER, .answer = given });
}

static const char *value(struct scene *s, const char *text)
{
    return answer(s, (struct mu_answer){ .value = mu_slice_str(text) });
}

static const char *pass(struct scene *s, uint64_t now_ms)
{
    s->now_ms = now_ms;
    return simple(s, MU_POLICY_ON_TIME);
}

static void run_from(struct scene *s, int64_t round, int64_t count, bool shared)
{
    (void)joined(s, round);
    (void)assigned(s, count, shared);
    (void)simple(s, MU_POLICY_ON_STARTED);
    assert_int_equal(mu_policy_phase(s->policy), MU_POLICY_RUNNING);
    assert_int_equal(mu_policy_state(s->policy), MU_GROUP_HEALTHY);
}

static void run(struct scene *s)
{
    (void)simple(s, MU_POLICY_ON_RUN);
    run_from(s, 0, 0, true);
}

static void finish(struct scene *s)
{
    run(s);
    (void)exited(s, 0, true);
    (void)exited(s, 1, true);
    assert_string_equal(stopped(s), "finish");
}

/* ---- The ways out of a run ---- */

static void success_is_done_then_the_end(void **state)
{
    struct scene *s = *state;

    assert_string_equal(simple(s, MU_POLICY_ON_RUN), "join");
    assert_string_equal(joined(s, 0), "watch, assign");
    assert_string_equal(assigned(s, 0, true), "start");
    assert_string_equal(simple(s, MU_POLICY_ON_STARTED), "");
    assert_string_equal(exited(s, 1, true), "");
    assert_string_equal(exited(s, 0, true), STOP); /* whatever they left behind */
    assert_string_equal(stopped(s), "finish");
    assert_int_equal(mu_policy_state(s->policy), MU_GROUP_SUCCEEDED);
    assert_string_equal(finished(s, MU_COMPLETION_END_ALL_DONE), "end succeeded rc 0");
    assert_int_equal(s->outcome.state, MU_GROUP_SUCCEEDED);
    assert_string_equal(simple(s, MU_POLICY_ON_RUN), ""); /* nothing follows */
}

static void a_used_up_budget_fails_and_closes_the_job(void **state)
{
    struct scene *s = *state;

    configure(s, 0);
    run(s);
    assert_string_equal(exited(s, 1, false), STOP TELL(3) PAY(1, 0));
    assert_non_null(strstr(s->told, "'local rank 1 exited with 3'")); /* once, when it happens */
    (void)value(s, PAID(1, 0) " me");
    assert_string_equal(stopped(s), "fail job: local rank 1 exited with 3; no restarts left (max restarts: 0)");
    assert_int_equal(mu_policy_state(s->policy), MU_GROUP_FAILED);
    assert_null(strstr(s->told, "closed")); /* which is said when it is */
    assert_string_equal(finished(s, MU_COMPLETION_END_FAILED), "end workers failed rc 1");
    assert_non_null(strstr(s->told, "'no restarts left: the job has failed and is closed'"));
    assert_int_equal(s->outcome.state, MU_GROUP_FAILED);
}

static void a_failure_that_nobody_could_be_told_is_not_said_to_have_closed_the_job(void **state)
{
    struct scene *s = *state;

    configure(s, 0);
    run(s);
    (void)exited(s, 1, false);
    (void)value(s, PAID(1, 0) " me");
    (void)stopped(s);
    assert_string_equal(finished(s, MU_COMPLETION_END_UNSAID), "end workers failed rc 1");
    assert_null(strstr(s->told, "closed"));
    configure(s, 0); /* nor one that a signal cuts short */
    run(s);
    (void)exited(s, 1, false);
    (void)value(s, PAID(1, 0) " me");
    (void)stopped(s);
    assert_string_equal(signalled(s, SIGTERM), "end workers failed rc 1");
    assert_null(strstr(s->told, "closed"));
    assert_int_equal(s->outcome.state, MU_GROUP_FAILED);
}

/* It was found out only when the verdict was to be written. */
static void who_would_fail_a_job_that_has_gone_on_joins_it(void **state)
{
    struct scene *s = *state;

    configure(s, 0);
    run(s);
    (void)exited(s, 1, false);
    (void)value(s, PAID(1, 0) " me");
    (void)stopped(s);
    assert_string_equal(finished(s, MU_COMPLETION_END_OUTDATED), "join");
    assert_null(strstr(s->told, "closed"));
    assert_non_null(strstr(s->told, "'the others had gone on without this node; restarting the group'"));
    run_from(s, 4, 0, true);
}

static void a_spare_of_a_closed_job_ends_gracefully(void **state)
{
    struct scene *s = *state;

    (void)simple(s, MU_POLICY_ON_RUN);
    assert_string_equal(fails(s, MUSTER_RDZV_REQUEST_JOIN, MUSTER_ERDZV_GRACEFUL_EXIT, "not needed"),
                        "end graceful exit rc 0");
    assert_non_null(strstr(s->told, "'Rendezvous gracefully exited: not needed'"));
    assert_non_null(strstr(s->told, "record agent SUCCEEDED"));
    assert_string_equal(s->outcome.error.text, "not needed");
}

static void a_signal_with_workers_stops_them_and_leaves(void **state)
{
    struct scene *s = *state;

    run(s);
    assert_string_equal(signalled(s, SIGHUP), "stop 1 in 30000");
    assert_string_equal(stopped(s), "leave");
    assert_string_equal(simple(s, MU_POLICY_ON_LEFT), "end signaled rc 1");
    assert_int_equal(s->outcome.signal, SIGHUP);
    assert_int_equal(s->outcome.error.code, MUSTER_ESIGNAL);
    assert_non_null(strstr(s->told, "record agent FAILED ESIGNAL"));
}

static const char *signalled_at(struct scene *s, uint64_t now_ms, int signal)
{
    s->now_ms = now_ms;
    return signalled(s, signal);
}

/* Which signals end the grace: those of somebody who is in a hurry, and no others. */
static void only_a_late_sigint_or_a_sigquit_ends_the_grace(void **state)
{
    static const struct {
        struct {
            unsigned at_ms;
            int signal;
        } then[4];
        const char *last; /* what the last of them does */
    } rows[] = {
        { { { 0, SIGTERM }, { 1, SIGTERM } }, "" },
        { { { 0, SIGTERM }, { 50, SIGTERM }, { 20000, SIGTERM } }, "" },
        { { { 0, SIGHUP }, { 5000, SIGHUP } }, "" },
        { { { 0, SIGTERM }, { 5000, SIGHUP } }, "" },
        { { { 0, SIGHUP }, { 5000, SIGTERM } }, "" },
        { { { 0, SIGUSR1 }, { 5000, SIGUSR1 } }, "" },
        { { { 0, SIGINT }, { 1, SIGINT } }, "" },
        { { { 0, SIGINT }, { 1000, SIGINT } }, "" },
        { { { 0, SIGINT }, { 1001, SIGINT } }, "kill" },
        { { { 0, SIGINT }, { 500, SIGINT }, { 1001, SIGINT } }, "kill" },
        { { { 0, SIGINT }, { 5000, SIGTERM } }, "" },
        { { { 0, SIGTERM }, { 5000, SIGINT } }, "" }, /* the first one */
        { { { 0, SIGTERM }, { 5000, SIGINT }, { 5500, SIGINT } }, "" },
        { { { 0, SIGTERM }, { 5000, SIGINT }, { 6001, SIGINT } }, "kill" },
        { { { 0, SIGQUIT }, { 5000, SIGTERM } }, "" },
        { { { 0, SIGTERM }, { 1, SIGQUIT } }, "kill" },
        { { { 0, SIGINT }, { 1, SIGQUIT } }, "kill" },
        { { { 0, SIGQUIT }, { 1, SIGQUIT } }, "kill" },
        { { { 0, SIGTERM }, { 1, SIGQUIT }, { 2, SIGTERM } }, "" },
        { { { 0, SIGTERM }, { 1, SIGQUIT }, { 2, SIGQUIT } }, "kill" }, /* what was left, too: see stop.h */
    };
    struct scene *s = *state;

    for (size_t i = 0; i < COUNT(rows); i++) {
        char first[32];
        const char *done = "";

        configure(s, 1);
        run(s);
        (void)snprintf(first, sizeof first, "stop %d in %d", rows[i].then[0].signal, GRACE);
        assert_string_equal(signalled_at(s, T0, rows[i].then[0].signal), first);
        for (size_t k = 1; k < COUNT(rows[i].then) && rows[i].then[k].signal != 0; k++)
            done = signalled_at(s, T0 + rows[i].then[k].at_ms, rows[i].then[k].signal);
        if (strcmp(done, rows[i].last) != 0)
            fail_msg("row %zu: '%s' instead of '%s'", i, done, rows[i].last);
    }
}

static void a_repeated_sigterm_does_not_cut_leaving_short(void **state)
{
    struct scene *s = *state;

    run(s);
    (void)signalled(s, SIGTERM);
    assert_string_equal(stopped(s), "leave");
    assert_string_equal(signalled(s, SIGTERM), "");
    assert_string_equal(signalled(s, SIGQUIT), "end signaled rc 1"); /* not even that is waited for */
    configure(s, 1);
    (void)simple(s, MU_POLICY_ON_RUN);
    assert_string_equal(signalled(s, SIGTERM), "leave");
    assert_string_equal(signalled(s, SIGTERM), "");
    assert_string_equal(simple(s, MU_POLICY_ON_LEFT), "end die rc 143");
}

static void a_signal_while_done_leaves(void **state)
{
    struct scene *s = *state;

    finish(s);
    assert_string_equal(signalled(s, SIGTERM), "leave");
    assert_string_equal(simple(s, MU_POLICY_ON_LEFT), "end signaled rc 1");
}

static void a_signal_between_two_rounds_is_one_with_workers(void **state)
{
    struct scene *s = *state;

    run(s);
    (void)lost(s);
    assert_string_equal(stopped(s), "join");
    assert_string_equal(signalled(s, SIGTERM), "leave");
    assert_string_equal(simple(s, MU_POLICY_ON_LEFT), "end signaled rc 1");
}

static void a_signal_before_the_first_worker_leaves_within_a_second_and_dies_of_it(void **state)
{
    struct scene *s = *state;

    (void)simple(s, MU_POLICY_ON_RUN);
    assert_string_equal(signalled(s, SIGTERM), "leave");
    assert_int_equal(mu_policy_deadline_ms(s->policy), T0 + MU_POLICY_LEAVE_MS);
    assert_string_equal(pass(s, T0 + MU_POLICY_LEAVE_MS), "end die rc 143");
    assert_int_equal(s->outcome.signal, SIGTERM);
    assert_null(strstr(s->told, "record"));
    configure(s, 1);
    (void)simple(s, MU_POLICY_ON_RUN);
    (void)joined(s, 0);
    assert_string_equal(signalled(s, SIGINT), "stop assigning, leave");
    assert_string_equal(simple(s, MU_POLICY_ON_LEFT), "end die rc 130");
    configure(s, 1);
    assert_string_equal(signalled(s, SIGHUP), "end die rc 129");
}

static void a_membership_that_fails_is_an_error(void **state)
{
    struct scene *s = *state;

    run(s);
    assert_string_equal(fails(s, MUSTER_RDZV_REQUEST_MEMBERSHIP, MUSTER_ERDZV_STATE, "corrupt"), STOP);
    assert_string_equal(stopped(s), "leave");
    assert_string_equal(simple(s, MU_POLICY_ON_LEFT), "end error rc 1");
    assert_string_equal(s->outcome.error.text, "corrupt");
    assert_non_null(strstr(s->told, "record agent FAILED ERDZV_STATE"));
    configure(s, 1); /* of one who is done it is not */
    finish(s);
    assert_string_equal(fails(s, MUSTER_RDZV_REQUEST_MEMBERSHIP, MUSTER_ERDZV_STATE, "corrupt"), "end succeeded rc 0");
}

/* The join that is under way makes up for it. */
static void a_membership_that_fails_while_the_next_is_asked_for_ends_nothing(void **state)
{
    struct scene *s = *state;

    (void)simple(s, MU_POLICY_ON_RUN);
    assert_string_equal(fails(s, MUSTER_RDZV_REQUEST_MEMBERSHIP, MUSTER_ERDZV_STATE, "corrupt"), "");
    assert_string_equal(fails(s, MUSTER_RDZV_REQUEST_LEAVE, MUSTER_ERDZV_TIMEOUT, "late"), "");
    assert_int_equal(mu_policy_phase(s->policy), MU_POLICY_JOINING);
}

static void a_join_that_fails_is_an_error(void **state)
{
    struct scene *s = *state;

    (void)simple(s, MU_POLICY_ON_RUN);
    (void)failing(s, MU_POLICY_ON_BACKEND_DOWN, MUSTER_ECONNECT, "refused");
    s->now_ms += 12000;
    assert_string_equal(fails(s, MUSTER_RDZV_REQUEST_JOIN, MUSTER_ERDZV_TIMEOUT, "join: too late"), "leave");
    assert_non_null(strstr(s->told, "record rendezvous 12000 ms ERDZV_TIMEOUT"));
    assert_string_equal(fails(s, MUSTER_RDZV_REQUEST_LEAVE, MUSTER_ERDZV_CONNECTION, "away"), "end error rc 1");
    assert_string_equal(s->outcome.error.text, "the store has been away for 12 s: join: too late");
}

static void ranks_that_cannot_be_assigned_are_an_error(void **state)
{
    struct scene *s = *state;

    (void)simple(s, MU_POLICY_ON_RUN);
    (void)joined(s, 0);
    assert_string_equal(failing(s, MU_POLICY_ON_ASSIGN_FAILED, MUSTER_EPROTOCOL, "no role info"),
                        "stop assigning, leave");
    assert_string_equal(simple(s, MU_POLICY_ON_LEFT), "end error rc 1");
}

static void workers_that_cannot_be_started_are_an_error_that_names_role_and_state(void **state)
{
    struct scene *s = *state;

    (void)simple(s, MU_POLICY_ON_RUN);
    (void)joined(s, 0);
    (void)assigned(s, 0, true);
    assert_string_equal(failing(s, MU_POLICY_ON_START_FAILED, MUSTER_ESYSTEM, "no such file"), STOP);
    assert_string_equal(stopped(s), "leave");
    (void)simple(s, MU_POLICY_ON_LEFT);
    assert_string_equal(s->outcome.error.text, "start the workers of role 'default' (state UNKNOWN): no such file");
    assert_int_equal(s->outcome.state, MU_GROUP_UNKNOWN);
}

static void removed_kills_without_grace_and_joins_as_new(void **state)
{
    struct scene *s = *state;

    run(s);
    assert_string_equal(removed(s, 0), "kill");
    assert_string_equal(stopped(s), "join");
    run_from(s, 2, 0, true);
    assert_string_equal(removed(s, 1), ""); /* of an earlier round */
    (void)waiting(s, 2);
    assert_string_equal(removed(s, 2), "kill"); /* no grace either, if they were being stopped */
    assert_non_null(strstr(s->told, "gone on without this node: its workers have no grace"));
}

static void a_keeper_that_is_gone_kills_and_leaves_within_a_second(void **state)
{
    struct scene *s = *state;

    run(s);
    assert_string_equal(simple(s, MU_POLICY_ON_KEEPER_GONE), "kill, leave");
    assert_non_null(strstr(s->told, "note lost: its launcher was killed")); /* no goodbye: what follows costs nothing */
    assert_string_equal(simple(s, MU_POLICY_ON_LEFT), "");
    assert_string_equal(stopped(s), "end keeper gone rc 1");
    configure(s, 1);
    run(s);
    (void)simple(s, MU_POLICY_ON_KEEPER_GONE);
    assert_string_equal(stopped(s), "");
    assert_string_equal(simple(s, MU_POLICY_ON_LEFT), "end keeper gone rc 1");
    configure(s, 1);
    run(s); /* nothing comes back at all: they are not left alone */
    (void)simple(s, MU_POLICY_ON_KEEPER_GONE);
    assert_string_equal(pass(s, T0 + MU_POLICY_LEAVE_MS), "kill");
    assert_int_equal(mu_policy_deadline_ms(s->policy), UINT64_MAX);
    assert_string_equal(stopped(s), "");
    assert_string_equal(pass(s, T0 + MU_POLICY_LEAVE_MS), "end keeper gone rc 1");
    assert_int_equal(s->outcome.state, MU_GROUP_STOPPED);
    configure(s, 1);
    (void)simple(s, MU_POLICY_ON_RUN);
    assert_string_equal(simple(s, MU_POLICY_ON_KEEPER_GONE), "leave");
    configure(s, 1);
    assert_string_equal(simple(s, MU_POLICY_ON_KEEPER_GONE), "end keeper gone rc 1");
}

/* ---- What ends a round ---- */

static const char *peer_failed(struct scene *s)
{
    return step(s, (struct mu_policy_event){
                       .type = MU_POLICY_ON_PEER_FAILED, .round = -1, .text = "a worker failed on n7 (rank 2)" });
}

static void a_failure_on_another_node_ends_the_round_here_for_free_and_is_said(void **state)
{
    struct scene *s = *state;

    run(s);
    assert_string_equal(peer_failed(s), STOP); /* neither told to others nor paid for */
    assert_string_equal(
        s->told,
        "note again: a worker failed on n7 (rank 2), 'a worker failed on n7 (rank 2); restarting the group', step 7 "
        "ok, decision HEALTHY 1");
    assert_string_equal(peer_failed(s), "");
    assert_string_equal(waiting(s, 0), "");
    assert_string_equal(stopped(s), "join");
    (void)joined(s, 1);
    assert_string_equal(assigned(s, 1, true), "start after 0 ms");
    (void)simple(s, MU_POLICY_ON_STARTED);
    (void)simple(s, MU_POLICY_ON_CLOSED);
    assert_string_equal(peer_failed(s), ""); /* no round can follow */
    configure(s, 1);
    finish(s);
    assert_string_equal(peer_failed(s), ""); /* workers that have succeeded are never run again */
}

static void a_waiting_node_and_a_lost_one_regroup_for_free(void **state)
{
    struct scene *s = *state;

    run(s);
    assert_string_equal(waiting(s, 0), STOP);
    assert_non_null(strstr(s->told, "'[default] Detected 1 new nodes from group_rank=1; will restart worker group'"));
    assert_string_equal(stopped(s), "join");
    assert_int_equal(mu_policy_state(s->policy), MU_GROUP_STOPPED);
    run_from(s, 1, 0, true);
    s->now_ms += 50;
    assert_string_equal(lost(s), STOP);
    s->now_ms += 1500;
    assert_string_equal(stopped(s), "join");
    (void)joined(s, 2);
    assert_string_equal(assigned(s, 0, true), "start after 1500 ms");
    (void)simple(s, MU_POLICY_ON_STARTED);
    assert_int_equal(mu_policy_remaining_restarts(s->policy), 1);
}

static void the_first_of_a_round_decides_and_the_rest_is_dropped(void **state)
{
    struct scene *s = *state;

    run(s);
    (void)waiting(s, 0);
    assert_string_equal(lost(s), "");
    assert_string_equal(waiting(s, 0), "");
    assert_string_equal(exited(s, 0, false), ""); /* they were told to go */
    assert_string_equal(exited(s, 1, false), "");
    assert_string_equal(stopped(s), "join");
    assert_int_equal(mu_policy_remaining_restarts(s->policy), 1);
    assert_string_equal(lost(s), "");
    run_from(s, 1, 0, true);
    assert_string_equal(waiting(s, 0), ""); /* of the round before */
    assert_string_equal(exited(s, 1, false), STOP TELL(3) PAY(1, 1));
    assert_string_equal(lost(s), "");
    assert_string_equal(waiting(s, 1), "");
}

static void a_round_may_be_over_before_its_workers_are_started(void **state)
{
    struct scene *s = *state;

    (void)simple(s, MU_POLICY_ON_RUN);
    (void)joined(s, 0);
    assert_string_equal(lost(s), "stop assigning, join");
    (void)joined(s, 1);
    assert_string_equal(waiting(s, 1), "stop assigning, join");
    (void)joined(s, 2);
    assert_string_equal(removed(s, 2), "stop assigning, join");
    (void)joined(s, 3);
    (void)assigned(s, 0, true);
    assert_string_equal(lost(s), STOP);
    assert_string_equal(simple(s, MU_POLICY_ON_STARTED), ""); /* it was on its way */
    assert_string_equal(stopped(s), "join");
    assert_int_equal(mu_policy_state(s->policy), MU_GROUP_INIT);
}

static void a_round_that_cannot_be_agreed_upon_is_followed_by_another(void **state)
{
    struct scene *s = *state;

    (void)simple(s, MU_POLICY_ON_RUN);
    (void)joined(s, 0);
    assert_string_equal(step(s, (struct mu_policy_event){ .type = MU_POLICY_ON_ASSIGN_AGAIN, .text = "forgotten" }),
                        "stop assigning, join");
    (void)joined(s, 1);
    assert_string_equal(assigned(s, 0, true), "start after 0 ms");
    (void)simple(s, MU_POLICY_ON_STARTED);
    assert_string_equal(simple(s, MU_POLICY_ON_ASSIGN_AGAIN), "");
}

static void a_store_that_is_away_stops_nobody(void **state)
{
    struct scene *s = *state;

    run(s);
    assert_string_equal(failing(s, MU_POLICY_ON_BACKEND_DOWN, MUSTER_ELOST, "the store at a:1: reset"), "");
    assert_string_equal(s->told, "'the store at a:1: reset; the workers run on; trying again'");
    s->now_ms += 90100;
    assert_string_equal(simple(s, MU_POLICY_ON_BACKEND_UP), "");
    assert_string_equal(s->told, "'the store is back after 90.1 s'");
    assert_int_equal(mu_policy_phase(s->policy), MU_POLICY_RUNNING);
}

static const char *away(struct scene *s, uint64_t away_ms, uint64_t give_up_in_ms)
{
    struct muster_error error = { .code = MUSTER_ECONNECT, .text = "connect to a:1: refused" };

    return step(s, (struct mu_policy_event){ .type = MU_POLICY_ON_BACKEND_DOWN,
                                             .round = -1,
                                             .error = &error,
                                             .away_ms = away_ms,
                                             .give_up_in_ms = give_up_in_ms });
}

/* One event, one line: that of the loss, which follows at once. */
static void a_store_that_goes_with_its_host_is_told_with_the_loss(void **state)
{
    struct muster_error error = { .code = MUSTER_ECONNECT, .text = "connect to a:1: refused" };
    struct scene *s = *state;

    run(s);
    assert_string_equal(step(s, (struct mu_policy_event){ .type = MU_POLICY_ON_BACKEND_DOWN,
                                                          .round = -1,
                                                          .error = &error,
                                                          .give_up_in_ms = 30000,
                                                          .number = 1 }),
                        "");
    assert_string_equal(s->told, "");
    (void)step(
        s, (struct mu_policy_event){ .type = MU_POLICY_ON_LOST, .text = "lost n1: the store that it hosts is gone" });
    assert_non_null(strstr(s->told, "'lost n1: the store that it hosts is gone; restarting the group'"));
    (void)stopped(s);
    (void)pass(s, T0 + MU_POLICY_AWAY_SAY_MS);
    assert_non_null(
        strstr(s->told, "the store has been away for 5 s (connect to a:1: refused); trying again for up to 25 s"));
}

static void a_store_that_is_away_is_talked_about_every_five_seconds_and_then_every_thirty(void **state)
{
    static const unsigned at_s[] = { 5, 10, 15, 20, 25, 30, 60, 90 };
    struct scene *s = *state;
    char line[200];

    run(s);
    (void)away(s, 0, 0);
    for (size_t i = 0; i < sizeof at_s / sizeof at_s[0]; i++) {
        assert_int_equal(mu_policy_deadline_ms(s->policy), T0 + at_s[i] * 1000);
        (void)pass(s, T0 + at_s[i] * 1000);
        (void)snprintf(line, sizeof line,
                       "'the store has been away for %u s (connect to a:1: refused); the workers run on; trying again'",
                       at_s[i]);
        assert_string_equal(s->told, line);
    }
    (void)simple(s, MU_POLICY_ON_BACKEND_UP);
    assert_int_equal(mu_policy_deadline_ms(s->policy), UINT64_MAX);
}

static void a_line_about_a_store_that_is_away_says_for_how_long_it_is_tried(void **state)
{
    struct scene *s = *state;

    (void)simple(s, MU_POLICY_ON_RUN);
    (void)away(s, 1000, 0);
    s->now_ms += 100;
    (void)away(s, 1100, 30000); /* more is known */
    assert_string_equal(s->told, "");
    (void)pass(s, T0 + 5000);
    assert_string_equal(s->told,
                        "'the store has been away for 6 s (connect to a:1: refused); trying again for up to 26 s'");
    s->now_ms = T0 + 30100;
    assert_string_equal(fails(s, MUSTER_RDZV_REQUEST_JOIN, MUSTER_ERDZV_CONNECTION, "refused for 30 s"), "leave");
    (void)simple(s, MU_POLICY_ON_LEFT);
    assert_string_equal(s->outcome.error.text, "refused for 30 s"); /* which says it all */
}

/* A worker of ours fails because its peer is gone, and the budget went with the peer. */
static void a_failure_in_a_round_whose_store_went_with_a_member_is_free(void **state)
{
    struct scene *s = *state;

    configure(s, 0);
    run(s);
    (void)exited(s, 1, false);
    assert_string_equal(stopped(s), "");
    assert_int_equal(mu_policy_phase(s->policy), MU_POLICY_CHARGING);
    assert_string_equal(lost(s), ""); /* the store is there, and will say it */
    (void)away(s, 0, 30000);
    assert_string_equal(lost(s), "join");
    assert_non_null(strstr(s->told, "'b; rank 3's failure is a consequence; restarting the group'"));
    configure(s, 0); /* the same, while the other workers are being stopped */
    run(s);
    (void)exited(s, 1, false);
    (void)away(s, 0, 30000);
    assert_string_equal(lost(s), "");
    assert_string_equal(stopped(s), "join");
}

static void no_new_round_beside_what_cannot_be_killed(void **state)
{
    struct scene *s = *state;

    run(s);
    (void)lost(s);
    assert_string_equal(
        step(s, (struct mu_policy_event){ .type = MU_POLICY_ON_STOPPED, .number = 1, .text = "42 (python, state D)" }),
        "leave");
    (void)simple(s, MU_POLICY_ON_LEFT);
    assert_string_equal(s->trace, "end error rc 1");
    assert_string_equal(
        s->outcome.error.text,
        "stop the workers of role 'default' (state FAILED): 1 process of the workers cannot be killed: 42 (python, "
        "state D)");
    configure(s, 1); /* success stays success */
    run(s);
    (void)exited(s, 0, true);
    (void)exited(s, 1, true);
    assert_string_equal(step(s, (struct mu_policy_event){ .type = MU_POLICY_ON_STOPPED, .number = 2 }), "finish");
}

static void a_worker_that_hangs_in_the_kernel_has_failed(void **state)
{
    struct scene *s = *state;

    run(s);
    assert_string_equal(
        step(s, (struct mu_policy_event){ .type = MU_POLICY_ON_UNHEALTHY, .number = 1, .text = "stuck" }),
        STOP ", tell 3: stuck");
    assert_int_equal(mu_policy_state(s->policy), MU_GROUP_UNHEALTHY);
    assert_string_equal(stopped(s), "leave"); /* it could be stopped after all, but there is no restart here */
    assert_int_equal(mu_policy_state(s->policy), MU_GROUP_FAILED);
    (void)simple(s, MU_POLICY_ON_LEFT);
    assert_int_equal(s->outcome.kind, MU_POLICY_OUTCOME_WORKERS_FAILED);
    assert_string_equal(s->outcome.error.text, "stuck");
    configure(s, 1);
    run(s);
    (void)step(s, (struct mu_policy_event){ .type = MU_POLICY_ON_UNHEALTHY, .text = "stuck" });
    (void)step(s, (struct mu_policy_event){ .type = MU_POLICY_ON_STOPPED, .number = 1, .text = "42" });
    assert_int_equal(mu_policy_state(s->policy), MU_GROUP_FAILED);
    assert_string_equal(s->trace, "leave");
}

static const char *unhealthy(struct scene *s, int64_t local_rank) /* says its driver, who can stop it */
{
    return step(s, (struct mu_policy_event){
                       .type = MU_POLICY_ON_UNHEALTHY, .number = local_rank, .ok = true, .text = "rank 3 is stuck" });
}

static void a_worker_that_its_driver_calls_unhealthy_is_restarted(void **state)
{
    struct scene *s = *state;

    run(s);
    assert_string_equal(unhealthy(s, 1), STOP ", tell 3: rank 3 is stuck" PAY(1, 0));
    assert_non_null(strstr(s->told, "'rank 3 is stuck'"));
    assert_non_null(strstr(s->told, "decision UNHEALTHY 1"));
    assert_int_equal(mu_policy_state(s->policy), MU_GROUP_UNHEALTHY);
    (void)value(s, PAID(1, 0) " me");
    assert_string_equal(stopped(s), "join");
    assert_int_equal(mu_policy_state(s->policy), MU_GROUP_STOPPED);
    assert_non_null(
        strstr(s->told, "'[default] Worker group UNHEALTHY. 1/1 attempts left; will restart worker group'"));
    run_from(s, 1, 1, true);
    assert_string_equal(unhealthy(s, 0), STOP ", tell 2: rank 3 is stuck, cas muster.job/budget=" PAID(2, 1) " me");
    (void)value(s, PAID(2, 1) " me"); /* no restart is left */
    assert_string_equal(stopped(s), "fail job: rank 3 is stuck; no restarts left (max restarts: 1)");
    assert_string_equal(finished(s, MU_COMPLETION_END_FAILED), "end workers failed rc 1");
    assert_int_equal(s->outcome.state, MU_GROUP_FAILED);
    assert_string_equal(s->outcome.error.text, "rank 3 is stuck");
}

static void a_worker_is_called_unhealthy_only_while_the_group_runs(void **state)
{
    struct scene *s = *state;

    (void)simple(s, MU_POLICY_ON_RUN);
    (void)joined(s, 0);
    (void)assigned(s, 0, true);
    assert_string_equal(unhealthy(s, 1), ""); /* not yet started */
    (void)simple(s, MU_POLICY_ON_STARTED);
    assert_int_equal(mu_policy_state(s->policy), MU_GROUP_HEALTHY);
    (void)waiting(s, 0);
    assert_string_equal(unhealthy(s, 1), ""); /* being stopped for another reason */
    assert_string_equal(stopped(s), "join");
}

/* PyTorch's `is_restart`: a driver may keep what the next workers will use again. */
static void a_stop_says_whether_a_restart_is_to_follow(void **state)
{
    static const struct {
        struct mu_policy_event event;
        int64_t max_restarts;
        bool closed, is_restart;
    } rows[] = {
        { { .type = MU_POLICY_ON_EXITED, .number = 1, .text = "failed" }, 1, false, true },
        { { .type = MU_POLICY_ON_EXITED, .number = 1, .text = "failed" }, 0, false, false },
        { { .type = MU_POLICY_ON_EXITED, .number = 1, .text = "failed" }, 1, true, false },
        { { .type = MU_POLICY_ON_UNHEALTHY, .ok = true, .text = "stuck" }, 1, false, true },
        { { .type = MU_POLICY_ON_UNHEALTHY, .ok = true, .text = "stuck" }, 0, false, false },
        { { .type = MU_POLICY_ON_UNHEALTHY, .text = "in the kernel" }, 1, false, false },
        { { .type = MU_POLICY_ON_WAITING, .number = 1 }, 0, false, true }, /* for free */
        { { .type = MU_POLICY_ON_LOST, .round = -1, .text = "b" }, 0, false, true },
        { { .type = MU_POLICY_ON_REMOVED }, 0, false, true },
        { { .type = MU_POLICY_ON_SIGNAL, .number = SIGTERM }, 1, false, false },
        { { .type = MU_POLICY_ON_KEEPER_GONE, .round = -1 }, 1, false, false },
    };
    struct scene *s = *state;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        configure(s, rows[i].max_restarts);
        run(s);
        if (rows[i].closed)
            (void)step(s, (struct mu_policy_event){ .type = MU_POLICY_ON_CLOSED, .round = -1 });
        (void)step(s, rows[i].event);
        if (!s->stop_seen || s->is_restart != rows[i].is_restart)
            fail_msg("row %zu: %s, %s", i, s->trace, s->is_restart ? "to be restarted" : "for good");
    }
    configure(s, 1);
    run(s);
    (void)exited(s, 0, true);
    (void)exited(s, 1, true); /* what they left behind */
    assert_true(s->stop_seen);
    assert_false(s->is_restart);
    configure(s, 1);
    run(s);
    (void)waiting(s, 0);
    (void)signalled(s, SIGTERM); /* while they are being stopped for a restart: none will follow */
    assert_true(s->stop_seen);
    assert_false(s->is_restart);
}

static void what_ended_before_all_were_started_counts_once_they_are(void **state)
{
    struct scene *s = *state;

    (void)simple(s, MU_POLICY_ON_RUN);
    (void)joined(s, 0);
    (void)assigned(s, 0, true);
    assert_string_equal(exited(s, 0, true), "");
    assert_string_equal(exited(s, 1, true), "");
    assert_string_equal(simple(s, MU_POLICY_ON_STARTED), STOP);
    configure(s, 0);
    (void)simple(s, MU_POLICY_ON_RUN);
    (void)joined(s, 0);
    (void)assigned(s, 0, true);
    assert_string_equal(exited(s, 0, false), "");
    assert_string_equal(simple(s, MU_POLICY_ON_STARTED), STOP TELL(2) PAY(1, 0));
    (void)value(s, PAID(1, 0) " me");
    assert_non_null(strstr(stopped(s), "fail job"));
}

/* ---- The budget ---- */

static void the_first_to_say_so_pays_for_a_failed_round(void **state)
{
    struct scene *s = *state;

    configure(s, 3);
    run(s);
    assert_string_equal(exited(s, 1, false), STOP TELL(3) PAY(1, 0)); /* while they are being stopped */
    assert_string_equal(value(s, PAID(1, 0) " me"), "");
    assert_string_equal(stopped(s), "join");
    assert_non_null(strstr(s->told, "[default] Worker group FAILED. 3/3 attempts left; will restart worker group"));
    assert_int_equal(mu_policy_remaining_restarts(s->policy), 2); /* as far as is known now */
    run_from(s, 1, 1, true);
    assert_string_equal(exited(s, 0, false), STOP TELL(2) PAY(2, 1));
    assert_string_equal(value(s, PAID(2, 1) " another"), ""); /* has claimed it */
    assert_string_equal(stopped(s), "join");
    assert_int_equal(mu_policy_count(s->policy), 2);
}

static void a_budget_that_is_used_up_fails_the_job(void **state)
{
    struct scene *s = *state;

    configure(s, 3);
    (void)simple(s, MU_POLICY_ON_RUN);
    run_from(s, 7, 3, true);
    assert_string_equal(exited(s, 1, false), STOP TELL(3) PAY(4, 7));
    assert_string_equal(value(s, PAID(4, 7) " another"), "");
    assert_string_equal(stopped(s), "fail job: local rank 1 exited with 3; no restarts left (max restarts: 3)");
}

/* It is not known yet whether a node was lost: until then the job has not failed. */
static void a_loss_that_is_noticed_before_the_verdict_is_the_cause(void **state)
{
    struct scene *s = *state;

    configure(s, 0);
    run(s);
    (void)exited(s, 1, false);
    assert_string_equal(lost(s), ""); /* who has gone, and why, is asked when the workers are gone */
    (void)value(s, PAID(1, 0) " me");
    assert_non_null(strstr(stopped(s), "fail job"));
    assert_string_equal(lost(s), "join");
    assert_non_null(strstr(s->told, "'b; rank 3's failure is a consequence; restarting the group'"));
    (void)joined(s, 1);
    assert_string_equal(assigned(s, 0, true), "start after 0 ms");
}

static void what_was_settled_is_said(void **state)
{
    struct scene *s = *state;
    struct mu_ranks_result ranks = { .shared = true, .world_size = 2, .settled = "lost n9; no restart charged" };

    configure(s, 1);
    run(s);
    (void)exited(s, 1, false);
    (void)value(s, PAID(1, 0) " me");
    (void)stopped(s);
    (void)joined(s, 1);
    (void)step(s, (struct mu_policy_event){ .type = MU_POLICY_ON_ASSIGNED, .round = -1, .ranks = &ranks });
    assert_non_null(strstr(s->told, "'lost n9; no restart charged'"));
    assert_int_equal(mu_policy_count(s->policy), 0);
}

/* A stranger has written to the budget's key: it is told, and put back with our claim. */
static void a_budget_that_is_none_is_put_back(void **state)
{
    struct scene *s = *state;

    configure(s, 3);
    run(s);
    (void)exited(s, 1, false);
    assert_string_equal(value(s, "garbage"), "cas muster.job/budget=1 0.00000000000000ab me");
    assert_non_null(strstr(
        s->told,
        "'somebody has overwritten the restart budget in 'muster.job/budget' (7 bytes: 'garbage'); putting it back'"));
    assert_string_equal(value(s, PAID(1, 0) " me"), "");
    assert_string_equal(stopped(s), "join");
}

/* The others have gone on without us, and we have not heard of it yet. */
static void a_round_that_was_over_for_the_job_costs_nothing_and_fails_nobody(void **state)
{
    struct scene *s = *state;

    configure(s, 0);
    run(s);
    (void)exited(s, 1, false);
    assert_string_equal(value(s, PAID(0, 1)), ""); /* of a later round, which anybody can write there */
    assert_string_equal(s->told, "'the restart budget names round 1: the others may have gone on without this node; "
                                 "restarting the group'");
    assert_string_equal(removed(s, 0), "kill"); /* there it is: what ours write is in its way */
    assert_string_equal(stopped(s), "join");
    assert_int_equal(mu_policy_count(s->policy), 0);
    configure(s, 0);
    run(s);
    (void)exited(s, 1, false);
    assert_string_equal(stopped(s), "");
    assert_string_equal(value(s, "0 0.00000000000000cd"), "join"); /* of the same number, with others */
    configure(s, 0);
    run(s); /* a signal is stronger */
    (void)exited(s, 1, false);
    (void)signalled(s, SIGTERM);
    assert_string_equal(value(s, PAID(0, 1)), "");
    assert_string_equal(stopped(s), "leave");
}

static void no_round_follows_before_the_budget_is_known(void **state)
{
    struct scene *s = *state;

    run(s);
    (void)exited(s, 1, false);
    assert_string_equal(stopped(s), "");
    assert_int_equal(mu_policy_phase(s->policy), MU_POLICY_CHARGING);
    assert_string_equal(value(s, PAID(1, 0) " me"), "join");
}

static const char *unanswered(struct scene *s, bool gone)
{
    struct muster_error error = { .code = MUSTER_ECONNECT, .text = "a:1: no" };

    return answer(s, (struct mu_answer){ .error = &error, .gone = gone });
}

static void while_the_store_is_silent_nobody_knows_whether_the_round_is_paid_for(void **state)
{
    struct scene *s = *state;

    configure(s, 0);
    run(s);
    (void)exited(s, 1, false);
    assert_string_equal(stopped(s), "");
    assert_int_equal(mu_policy_state(s->policy), MU_GROUP_STOPPED);
    assert_string_equal(pass(s, T0 + MU_POLICY_CHARGE_MS), "");
    assert_string_equal(s->told, "'waiting up to 600 s for the store to say whether restarts are left'");
    assert_string_equal(pass(s, T0 + MU_POLICY_CHARGE_MS + 1), "");
    assert_string_equal(s->told, "");
    assert_int_equal(mu_policy_deadline_ms(s->policy), T0 + MU_POLICY_STORE_MS);
    s->now_ms = T0 + MU_POLICY_STORE_MS - 1;
    assert_string_equal(value(s, PAID(0, 1)), "join"); /* the others went on: it costs nothing */
    assert_int_equal(mu_policy_count(s->policy), 0);
    configure(s, 0); /* or the others are heard of first */
    run(s);
    (void)exited(s, 1, false);
    (void)stopped(s);
    (void)pass(s, T0 + MU_POLICY_CHARGE_MS);
    assert_string_equal(removed(s, 0), "join");
    assert_string_equal(value(s, PAID(0, 0)), "");
    assert_int_equal(mu_policy_count(s->policy), 0);
    configure(s, 1);
    run(s);
    (void)exited(s, 1, false);
    (void)stopped(s);
    (void)unanswered(s, false);
    assert_string_equal(pass(s, T0 + MU_POLICY_STORE_MS), "leave");
    assert_non_null(strstr(s->told, "the store has been silent for 600 s: giving up: a:1: no'"));
    assert_string_equal(simple(s, MU_POLICY_ON_LEFT), "end workers failed rc 1");
}

/* Of a job that has lost its store there is no other round; and without restarts there is nothing to wait for. */
static void a_store_that_is_gone_with_its_process_ends_what_has_no_restarts_left(void **state)
{
    struct scene *s = *state;

    configure(s, 0);
    run(s);
    (void)exited(s, 1, false);
    (void)unanswered(s, true);
    (void)stopped(s);
    assert_non_null(strstr(pass(s, T0 + MU_POLICY_CHARGE_MS), "fail job: local rank 1 exited with 3"));
    configure(s, 1); /* else it may come back */
    run(s);
    (void)exited(s, 1, false);
    (void)unanswered(s, true);
    (void)stopped(s);
    (void)pass(s, T0 + MU_POLICY_CHARGE_MS);
    assert_int_equal(mu_policy_phase(s->policy), MU_POLICY_CHARGING);
    assert_string_equal(value(s, PAID(0, 0)), "join"); /* back, and empty */
    assert_int_equal(mu_policy_count(s->policy), 1);
}

static void a_signal_while_a_restart_is_counted_leaves_a_group_that_has_stopped(void **state)
{
    struct scene *s = *state;

    run(s);
    (void)exited(s, 1, false);
    (void)stopped(s);
    assert_int_equal(mu_policy_phase(s->policy), MU_POLICY_CHARGING);
    assert_string_equal(signalled(s, SIGTERM), "leave");
    assert_string_equal(simple(s, MU_POLICY_ON_LEFT), "end signaled rc 1");
    assert_int_equal(s->outcome.state, MU_GROUP_STOPPED);
    configure(s, 1); /* then nothing depends on the store any more */
    run(s);
    (void)exited(s, 1, false);
    assert_string_equal(signalled(s, SIGTERM), STOP);
    assert_string_equal(pass(s, T0 + MU_POLICY_CHARGE_MS), "");
    assert_string_equal(s->told, "");
    assert_int_equal(mu_policy_deadline_ms(s->policy), UINT64_MAX);
    assert_string_equal(stopped(s), "leave");
}

static void a_store_that_cannot_say_leaves_us_to_what_we_know(void **state)
{
    struct muster_error error = { .code = MUSTER_ENOTSUP, .text = "no such thing" };
    struct scene *s = *state;

    configure(s, 1);
    run(s);
    (void)exited(s, 1, false);
    assert_string_equal(answer(s, (struct mu_answer){ .error = &error }), "");
    assert_string_equal(stopped(s), "join");
    assert_int_equal(mu_policy_count(s->policy), 1);
    configure(s, 1);
    run(s);
    (void)exited(s, 1, false);
    (void)value(s, PAID(0, 0)); /* a key that is missing answers what was expected: the store has forgotten it */
    assert_string_equal(stopped(s), "join");
    assert_int_equal(mu_policy_count(s->policy), 1);
}

static void what_we_know_of_the_count_goes_with_us(void **state)
{
    struct scene *s = *state;
    struct mu_settlement last = { .known = true, .round = 7 };
    struct mu_round in = { .round = 1, .world_size = 2, .all_ours = true, .has_store = true, .last = last };
    struct mu_policy_event event = { .type = MU_POLICY_ON_JOINED, .now_ms = T0, .joined = &in };
    struct mu_policy_effects effects;

    configure(s, 9);
    (void)simple(s, MU_POLICY_ON_RUN);
    run_from(s, 0, 3, true);
    (void)exited(s, 1, false);
    (void)value(s, PAID(4, 0) " me");
    (void)stopped(s);
    mu_policy_step(s->policy, &event, &effects);
    assert_int_equal(effects.items[effects.count - 1].type, MU_POLICY_DO_ASSIGN);
    assert_int_equal(effects.items[effects.count - 1].joined->count_min, 3);
    assert_int_equal(effects.items[effects.count - 1].joined->own_count, 4);
    assert_string_equal(effects.items[effects.count - 1].joined->last.failure, "rank 3's failure on me");
    assert_int_equal(effects.items[effects.count - 1].joined->last.round, 7);
}

/* As rank 0 we have found that the round before was one too many. */
static void a_round_that_the_budget_does_not_allow_fails_the_job(void **state)
{
    static const char *const causes[] = { "rank 3's failure on n3", "", NULL };
    static const char *const told[] = { "rank 3's failure on n3", "rank 5 on n3 failed: exit code 3",
                                        "rank 5 on n3 failed: exit code 3" };
    struct scene *s = *state;
    char text[256];

    for (size_t i = 0; i < COUNT(causes); i++) {
        run(s);
        (void)step(s, (struct mu_policy_event){
                          .type = MU_POLICY_ON_PEER_FAILED, .round = -1, .text = "rank 5 on n3 failed: exit code 3" });
        assert_string_equal(stopped(s), "join");
        (void)joined(s, 1);
        (void)snprintf(text, sizeof text, "fail job at once: %s; no restarts left (max restarts: 1)", told[i]);
        assert_string_equal(step(s, (struct mu_policy_event){ .type = MU_POLICY_ON_ASSIGN_USED_UP, .text = causes[i] }),
                            text);
        assert_string_equal(finished(s, MU_COMPLETION_END_FAILED), "end error rc 1");
        assert_string_equal(s->outcome.error.text + strlen("the job has failed: "),
                            text + strlen("fail job at once: "));
        (void)tear_down(state);
        (void)set_up(state);
    }
}

/* ... and so for a node that has never had workers; unless the others have gone on. */
static void a_new_node_may_have_to_fail_the_job(void **state)
{
    struct scene *s = *state;

    (void)simple(s, MU_POLICY_ON_RUN);
    (void)joined(s, 1);
    assert_string_equal(step(s, (struct mu_policy_event){ .type = MU_POLICY_ON_ASSIGN_USED_UP, .text = "" }),
                        "fail job at once: a worker has failed; no restarts left (max restarts: 1)");
    assert_string_equal(finished(s, MU_COMPLETION_END_OUTDATED), "join");
    (void)joined(s, 2);
    (void)step(s, (struct mu_policy_event){ .type = MU_POLICY_ON_ASSIGN_USED_UP, .text = "" });
    (void)signalled(s, SIGTERM);
    assert_int_equal(s->ends, 1);
}

/* No restart is left, but the failure was a consequence: the next round knows that, also if the lost node is back. */
static void what_was_told_as_the_cause_goes_with_us(void **state)
{
    struct scene *s = *state;
    struct mu_settlement last = { .known = true, .round = 0 };
    struct mu_round in = { .round = 1, .world_size = 2, .all_ours = true, .has_store = true, .last = last };
    struct mu_policy_event event = { .type = MU_POLICY_ON_JOINED, .now_ms = T0, .joined = &in };
    struct mu_policy_effects effects;

    configure(s, 0);
    (void)simple(s, MU_POLICY_ON_RUN);
    run_from(s, 0, 0, true);
    (void)exited(s, 1, false);
    (void)value(s, PAID(1, 0) " me");
    assert_non_null(strstr(stopped(s), "fail job"));
    assert_string_equal(lost(s), "join");
    mu_policy_step(s->policy, &event, &effects);
    assert_string_equal(effects.items[effects.count - 1].joined->last.loss, "b");
    assert_int_equal(effects.items[effects.count - 1].joined->max_restarts, 0);
    (void)assigned(s, 0, true);
    (void)simple(s, MU_POLICY_ON_STARTED);
    (void)removed(s, 1); /* it was we who were lost */
    (void)stopped(s);
    mu_policy_step(s->policy, &event, &effects);
    assert_string_equal(effects.items[effects.count - 1].joined->last.loss, "lost me, which is back");
}

static void with_a_stock_member_each_counts_its_own(void **state)
{
    struct scene *s = *state;

    (void)simple(s, MU_POLICY_ON_RUN);
    run_from(s, 0, 0, false);
    assert_string_equal(exited(s, 1, false), STOP TELL(3)); /* nobody else is asked */
    assert_string_equal(stopped(s), "join");
    run_from(s, 1, 1, false);
    (void)exited(s, 1, false);
    assert_non_null(strstr(stopped(s), "fail job"));
}

/* ---- A closed job ---- */

static void a_worker_that_fails_in_a_closed_job_ends_it_here(void **state)
{
    struct scene *s = *state;

    run(s);
    (void)simple(s, MU_POLICY_ON_CLOSED);
    assert_string_equal(waiting(s, 0), "");
    assert_string_equal(exited(s, 1, false), STOP);
    assert_string_equal(stopped(s), "leave");
    assert_string_equal(simple(s, MU_POLICY_ON_LEFT), "end workers failed rc 1");
}

static void the_verdict_of_others_ends_it_naming_it(void **state)
{
    struct scene *s = *state;

    run(s);
    assert_string_equal(step(s, (struct mu_policy_event){ .type = MU_POLICY_ON_JOB_FAILED,
                                                          .text = "the job has failed: exit code 3 (n7)" }),
                        STOP);
    (void)stopped(s);
    assert_string_equal(simple(s, MU_POLICY_ON_LEFT), "end error rc 1");
    assert_string_equal(s->outcome.error.text, "the job has failed: exit code 3 (n7)");
    assert_int_equal(s->outcome.state, MU_GROUP_STOPPED);
}

static void a_closed_job_says_why_when_it_is_joined(void **state)
{
    struct scene *s = *state;

    (void)simple(s, MU_POLICY_ON_RUN);
    assert_string_equal(fails(s, MUSTER_RDZV_REQUEST_JOIN, MUSTER_ERDZV_CLOSED, "closed"), "cas muster.job/verdict=?");
    assert_string_equal(
        value(s,
              "{\"verdict\": \"failed\", \"round\": 0, \"tag\": \"00000000000000ab\", \"node\": \"n7\", \"rank\": 2, "
              "\"cause\": \"exit code 3\"}"),
        "cas muster.job/budget=?");
    assert_string_equal(value(s, PAID(0, 0)), "end error rc 1");
    assert_string_equal(s->outcome.error.text, "closed: the job has failed: exit code 3");
    configure(s, 1);
    (void)simple(s, MU_POLICY_ON_RUN);
    (void)fails(s, MUSTER_RDZV_REQUEST_JOIN, MUSTER_ERDZV_CLOSED, "closed");
    assert_string_equal(value(s, "?"), "end error rc 1");
    assert_string_equal(s->outcome.error.text, "closed");
    configure(s, 1);
    (void)simple(s, MU_POLICY_ON_RUN);
    (void)fails(s, MUSTER_RDZV_REQUEST_JOIN, MUSTER_ERDZV_CLOSED, "closed");
    assert_string_equal(pass(s, T0 + MU_POLICY_WHY_MS), "end error rc 1");
}

#define VERDICT(how, round) /* of nobody that we know */                                                               \
    "{\"verdict\": \"" how "\", \"round\": " #round ", \"tag\": \"00000000000000ab\", \"node\": \"n7\", "              \
    "\"rank\": 2, \"cause\": \"made up\"}"

/* Anybody can write one: a newcomer tells it as a fact only if the budget ends in the same round. */
static void a_verdict_is_told_to_a_newcomer_as_what_is_known_of_it(void **state)
{
    static const struct {
        const char *verdict, *budget; /* budget NULL: it is not asked for; empty: no answer comes */
        const char *told;
    } cases[] = {
        { VERDICT("failed", 3), "1 3.00000000000000ab", "closed: the job has failed: made up" },
        { VERDICT("succeeded", 3), "1 3.00000000000000ab", "closed: the job has succeeded" },
        { VERDICT("failed", 3), "1 3.00000000000000cd", "closed" }, /* another round of the same number */
        { VERDICT("failed", 3), "1 4.00000000000000ab", "closed" }, /* which was over before the job was */
        { VERDICT("failed", 3), "1 2.00000000000000ab",
          "closed: 'muster.job/verdict' says: the job has failed: made up" },
        { VERDICT("succeeded", 3), "?", "closed: 'muster.job/verdict' says: the job has succeeded" },
        { VERDICT("failed", 3), "garbage", "closed: 'muster.job/verdict' says: the job has failed: made up" },
        { VERDICT("failed", 3), "", "closed: 'muster.job/verdict' says: the job has failed: made up" },
        { VERDICT("failed", -1), NULL, "closed" },
        { "garbage", NULL, "closed" },
    };
    struct scene *s = *state;

    for (size_t i = 0; i < COUNT(cases); i++) {
        bool ignored = strcmp(cases[i].told, "closed") == 0;

        configure(s, 1);
        (void)simple(s, MU_POLICY_ON_RUN);
        (void)fails(s, MUSTER_RDZV_REQUEST_JOIN, MUSTER_ERDZV_CLOSED, "closed");
        (void)value(s, cases[i].verdict);
        if (cases[i].budget != NULL)
            assert_string_equal(s->trace, "cas muster.job/budget=?");
        if (cases[i].budget != NULL && cases[i].budget[0] != '\0')
            (void)value(s, cases[i].budget);
        else if (cases[i].budget != NULL)
            (void)pass(s, s->now_ms + MU_POLICY_WHY_MS);
        assert_string_equal(s->trace, "end error rc 1");
        assert_string_equal(s->outcome.error.text, cases[i].told);
        assert_int_equal(strstr(s->told, "somebody has overwritten the verdict") != NULL, ignored);
    }
}

static void workers_that_failed_and_found_the_job_closed_are_reported(void **state)
{
    struct scene *s = *state;

    run(s);
    (void)exited(s, 1, false);
    (void)value(s, PAID(1, 0) " other");
    (void)stopped(s);
    (void)fails(s, MUSTER_RDZV_REQUEST_JOIN, MUSTER_ERDZV_CLOSED, "closed");
    assert_string_equal(value(s, "?"), "end workers failed rc 1");
    assert_int_equal(s->outcome.state, MU_GROUP_FAILED);
}

static void who_was_in_a_round_that_failed_for_good_is_no_spare(void **state)
{
    struct scene *s = *state;

    run(s);
    (void)peer_failed(s);
    (void)stopped(s);
    (void)fails(s, MUSTER_RDZV_REQUEST_JOIN, MUSTER_ERDZV_GRACEFUL_EXIT, "the job was closed");
    assert_string_equal(value(s, "?"), "end error rc 1");
    assert_string_equal(s->outcome.error.text, "the job was closed: the job did not restart");
    configure(s, 1); /* the failure was told when it happened */
    run(s);
    (void)peer_failed(s);
    (void)stopped(s);
    (void)fails(s, MUSTER_RDZV_REQUEST_JOIN, MUSTER_ERDZV_GRACEFUL_EXIT, "the job was closed");
    assert_string_equal(
        value(s, "{\"verdict\":\"failed\",\"round\":0,\"tag\":\"00000000000000ab\","
                 "\"node\":\"n7\",\"rank\":0,\"cause\":\"a worker failed on n7 (rank 2); no restarts left\"}"),
        "end error rc 1");
    assert_string_equal(s->outcome.error.text, "the job was closed: the job has failed: no restarts left");
    configure(s, 1); /* the others have gone on without it, and are done */
    run(s);
    (void)peer_failed(s);
    (void)stopped(s);
    (void)fails(s, MUSTER_RDZV_REQUEST_JOIN, MUSTER_ERDZV_GRACEFUL_EXIT, "the job was closed");
    assert_string_equal(value(s, "{\"verdict\":\"succeeded\",\"round\":9,\"tag\":\"00000000000000ab\","
                                 "\"node\":\"n7\",\"rank\":0,\"cause\":\"\"}"),
                        "cas muster.job/budget=?");
    assert_string_equal(value(s, "1 9.00000000000000ab"), "end graceful exit rc 0");
    configure(s, 1); /* a round has followed: then it is one */
    run(s);
    (void)peer_failed(s);
    (void)stopped(s);
    (void)joined(s, 1);
    (void)assigned(s, 1, true);
    (void)simple(s, MU_POLICY_ON_STARTED);
    (void)waiting(s, 1);
    (void)stopped(s);
    assert_string_equal(fails(s, MUSTER_RDZV_REQUEST_JOIN, MUSTER_ERDZV_GRACEFUL_EXIT, "closed"),
                        "end graceful exit rc 0");
}

/* ---- A round with a leader ---- */

static const char *judged(struct scene *s, int code, const struct mu_part_verdict *verdict)
{
    struct muster_error error = { .code = code, .text = "closed" };

    return step(s, (struct mu_policy_event){ .type = MU_POLICY_ON_FAILED,
                                             .round = -1,
                                             .request = MUSTER_RDZV_REQUEST_JOIN,
                                             .verdict = verdict,
                                             .error = &error });
}

static const struct mu_part_verdict all_good = { .succeeded = true };
static const struct mu_part_verdict all_bad = { .cause = "rank 3 failed on n3; no restarts left" };

static void run_led(struct scene *s, int64_t round, int64_t count, int64_t left)
{
    if (round == 0)
        (void)simple(s, MU_POLICY_ON_RUN);
    (void)joined_as(
        s, (struct mu_round){
               .round = round, .rank = 1, .world_size = 2, .led = true, .restarts_left = left, .max_restarts = 3 });
    (void)assigned(s, count, true);
    (void)simple(s, MU_POLICY_ON_STARTED);
    assert_int_equal(mu_policy_phase(s->policy), MU_POLICY_RUNNING);
}

static void a_leader_counts_a_failure_when_the_next_round_forms(void **state)
{
    struct scene *s = *state;

    assert_int_equal(mu_policy_max_restarts(s->policy), 1);
    run_led(s, 0, 0, 3);
    assert_int_equal(mu_policy_max_restarts(s->policy), 3);
    assert_string_equal(exited(s, 1, false), STOP TELL(3));
    assert_true(s->is_restart);
    assert_string_equal(lost(s), ""); /* the leader says the same to all */
    assert_string_equal(stopped(s), "join");
    assert_non_null(strstr(s->told, "'[default] Worker group FAILED. 3/3 attempts left; will restart worker group'"));
    assert_int_equal(mu_policy_remaining_restarts(s->policy), 3);
    run_led(s, 1, 1, 2);
    assert_int_equal(mu_policy_count(s->policy), 1);
    assert_int_equal(mu_policy_remaining_restarts(s->policy), 2);
    (void)exited(s, 1, false);
    (void)stopped(s);
    run_led(s, 2, 1, 2); /* a node was lost: it was free */
    assert_int_equal(mu_policy_count(s->policy), 1);
}

static void the_last_failure_may_still_be_a_consequence(void **state)
{
    struct scene *s = *state;

    run_led(s, 0, 3, 0);
    assert_string_equal(exited(s, 1, false), STOP TELL(3));
    assert_false(s->is_restart); /* as far as we know */
    assert_string_equal(stopped(s), "join");
    assert_non_null(strstr(s->told, "'the job fails now, unless the leader finds that a lost node was the cause'"));
    run_led(s, 1, 3, 0);
    assert_int_equal(mu_policy_remaining_restarts(s->policy), 0);
}

static void a_failure_that_the_leader_does_not_forgive_is_reported(void **state)
{
    struct scene *s = *state;

    run_led(s, 0, 3, 0);
    (void)exited(s, 1, false);
    (void)stopped(s);
    (void)simple(s, MU_POLICY_ON_CLOSED);
    assert_string_equal(judged(s, MUSTER_ERDZV_CLOSED, &all_bad), "end workers failed rc 1");
    assert_int_equal(s->outcome.state, MU_GROUP_FAILED);
    assert_string_equal(s->outcome.error.text, "local rank 1 exited with 3");
    assert_non_null(strstr(s->told, "'the job has failed: rank 3 failed on n3; no restarts left', state FAILED"));
    assert_null(strstr(s->told, "record rendezvous"));
    assert_non_null(strstr(s->told, "final failed 0"));
}

static void the_failure_of_another_node_that_is_not_forgiven_is_an_error(void **state)
{
    static const int codes[] = { MUSTER_ERDZV_CLOSED, MUSTER_ERDZV_GRACEFUL_EXIT };
    struct scene *s = *state;

    for (size_t i = 0; i < COUNT(codes); i++) {
        configure(s, 1);
        run_led(s, 0, 3, 0);
        assert_string_equal(lost(s), STOP);
        (void)stopped(s);
        assert_string_equal(judged(s, codes[i], &all_bad), "end error rc 1");
        assert_string_equal(s->outcome.error.text, "the job has failed: rank 3 failed on n3; no restarts left");
        assert_int_equal(s->outcome.error.code, MUSTER_ERDZV_CLOSED);
        assert_non_null(strstr(s->told, "record rendezvous 0 ms"));
    }
}

/* Nobody is asked: there are no keys. */
static void how_a_closed_job_has_ended_is_told_with_it(void **state)
{
    struct scene *s = *state;

    (void)simple(s, MU_POLICY_ON_RUN);
    assert_string_equal(judged(s, MUSTER_ERDZV_CLOSED, &all_good), "end error rc 1");
    assert_string_equal(s->outcome.error.text, "closed: the job has succeeded");
    configure(s, 1);
    (void)simple(s, MU_POLICY_ON_RUN);
    assert_string_equal(judged(s, MUSTER_ERDZV_CLOSED, &all_bad), "end error rc 1");
    assert_string_equal(s->outcome.error.text, "closed: the job has failed: rank 3 failed on n3; no restarts left");
    configure(s, 1); /* a spare that was not needed */
    (void)simple(s, MU_POLICY_ON_RUN);
    assert_string_equal(judged(s, MUSTER_ERDZV_GRACEFUL_EXIT, &all_bad), "end graceful exit rc 0");
    configure(s, 1); /* and one that was in an earlier round */
    run_led(s, 0, 0, 3);
    (void)lost(s);
    (void)stopped(s);
    assert_string_equal(judged(s, MUSTER_ERDZV_GRACEFUL_EXIT, &all_good), "end graceful exit rc 0");
    configure(s, 1);
    run_led(s, 0, 0, 3);
    (void)lost(s);
    (void)stopped(s);
    assert_string_equal(judged(s, MUSTER_ERDZV_CLOSED, NULL), "end error rc 1");
    assert_string_equal(s->outcome.error.text, "closed");
}

static void a_job_that_fails_while_workers_run_stops_them(void **state)
{
    struct scene *s = *state;

    run_led(s, 0, 0, 3);
    assert_string_equal(step(s, (struct mu_policy_event){ .type = MU_POLICY_ON_JOB_FAILED, .text = "no" }), STOP);
    (void)simple(s, MU_POLICY_ON_CLOSED);
    assert_string_equal(stopped(s), "leave");
    assert_string_equal(simple(s, MU_POLICY_ON_LEFT), "end error rc 1");
}

static void a_host_that_is_behind_serves_until_the_leader_has_closed_the_job(void **state)
{
    struct scene *s = *state;

    (void)simple(s, MU_POLICY_ON_RUN);
    (void)joined_as(s, (struct mu_round){ .world_size = 2, .led = true, .serves = true });
    (void)assigned(s, 0, true);
    (void)simple(s, MU_POLICY_ON_STARTED);
    (void)exited(s, 0, true);
    (void)exited(s, 1, true);
    assert_string_equal(stopped(s), "finish");
    (void)finished(s, MU_COMPLETION_END_BEHIND);
    assert_string_equal(simple(s, MU_POLICY_ON_LEFT), "linger");
    assert_string_equal(simple(s, MU_POLICY_ON_CLOSED), "");
    assert_int_equal(mu_policy_phase(s->policy), MU_POLICY_LINGERING);
    assert_string_equal(simple(s, MU_POLICY_ON_ALONE), "end succeeded rc 0");
}

/* ---- Done, while others are not ---- */

static void serving_scene(struct scene *s, bool fails)
{
    configure(s, 0);
    (void)simple(s, MU_POLICY_ON_RUN);
    (void)joined_as(
        s, (struct mu_round){ .tag = 0xab, .world_size = 2, .all_ours = true, .has_store = true, .serves = true });
    (void)assigned(s, 0, true);
    (void)simple(s, MU_POLICY_ON_STARTED);
    (void)exited(s, 0, true);
    (void)exited(s, 1, !fails);
    if (fails)
        (void)value(s, PAID(1, 0) " me");
    (void)stopped(s);
}

static void the_stores_host_lets_the_others_read_how_it_ended(void **state)
{
    struct scene *s = *state;

    serving_scene(s, true);
    assert_string_equal(finished(s, MU_COMPLETION_END_FAILED), "linger");
    assert_string_equal(simple(s, MU_POLICY_ON_ALONE), "end workers failed rc 1");
    serving_scene(s, false);
    assert_string_equal(finished(s, MU_COMPLETION_END_ALL_DONE), "linger");
    assert_int_equal(mu_policy_deadline_ms(s->policy), T0 + MU_POLICY_LINGER_MS);
    assert_string_equal(pass(s, T0 + MU_POLICY_LINGER_MS), "end succeeded rc 0");
}

static void who_is_behind_leaves_and_has_succeeded(void **state)
{
    struct scene *s = *state;

    finish(s);
    assert_string_equal(lost(s), ""); /* workers that have succeeded are never run again */
    assert_string_equal(waiting(s, 0), "");
    assert_string_equal(removed(s, 0), "");
    assert_string_equal(finished(s, MU_COMPLETION_END_BEHIND), "leave");
    assert_string_equal(simple(s, MU_POLICY_ON_LEFT), "end succeeded rc 0");
    configure(s, 1);
    finish(s);
    assert_string_equal(finished(s, MU_COMPLETION_END_TIMEOUT), "leave");
    configure(s, 1);
    finish(s);
    assert_string_equal(finished(s, MU_COMPLETION_END_OVER), "leave");
    assert_string_equal(pass(s, T0 + MU_POLICY_LEAVE_MS), "end succeeded rc 0");
}

static void finish_as(struct scene *s, struct mu_round joined)
{
    (void)simple(s, MU_POLICY_ON_RUN);
    (void)joined_as(s, joined);
    (void)assigned(s, 0, true);
    (void)simple(s, MU_POLICY_ON_STARTED);
    (void)exited(s, 0, true);
    (void)exited(s, 1, true);
    assert_string_equal(stopped(s), "finish");
}

static void who_is_done_and_cannot_reach_the_store_has_succeeded(void **state)
{
    struct scene *s = *state;

    finish(s);
    assert_string_equal(finished(s, MU_COMPLETION_END_AWAY), "leave");
    assert_non_null(strstr(s->told, "'so it is'"));
    assert_string_equal(pass(s, T0 + MU_POLICY_LEAVE_MS), "end succeeded rc 0");
}

static void who_serves_the_workers_of_others_stays_until_they_have_gone(void **state)
{
    const struct mu_round joined = {
        .tag = 0xab, .world_size = 2, .all_ours = true, .has_store = true, .serves_workers = true
    };
    struct scene *s = *state;

    finish_as(s, joined);
    assert_string_equal(finished(s, MU_COMPLETION_END_AWAY), "leave");
    assert_string_equal(pass(s, T0 + MU_POLICY_LEAVE_MS), "linger");
    assert_string_equal(pass(s, T0 + 10 * MU_POLICY_SERVE_MS), ""); /* they may take their time */
    assert_string_equal(simple(s, MU_POLICY_ON_ALONE), "end succeeded rc 0");
    configure(s, 1);
    finish_as(s, joined);
    assert_string_equal(finished(s, MU_COMPLETION_END_BEHIND), "leave"); /* they begin anew, elsewhere */
    assert_string_equal(simple(s, MU_POLICY_ON_LEFT), "end succeeded rc 0");
}

static void the_stores_host_serves_on_when_it_is_behind(void **state)
{
    struct scene *s = *state;

    serving_scene(s, false);
    (void)finished(s, MU_COMPLETION_END_BEHIND);
    assert_string_equal(simple(s, MU_POLICY_ON_LEFT), "linger, get muster.job/verdict");
    assert_int_equal(mu_policy_deadline_ms(s->policy), s->now_ms + MU_POLICY_SERVE_MS);
    assert_string_equal(value(s, "{}"), "");
    assert_int_equal(mu_policy_phase(s->policy), MU_POLICY_LINGERING);
    assert_string_equal(simple(s, MU_POLICY_ON_ALONE), "end succeeded rc 0");
    serving_scene(s, false); /* the others end without a word */
    (void)finished(s, MU_COMPLETION_END_BEHIND);
    (void)simple(s, MU_POLICY_ON_LEFT);
    assert_string_equal(pass(s, s->now_ms + MU_POLICY_SERVE_MS), "end succeeded rc 0");
    serving_scene(s, false);
    (void)finished(s, MU_COMPLETION_END_BEHIND);
    (void)simple(s, MU_POLICY_ON_LEFT);
    assert_string_equal(signalled(s, SIGTERM), "end signaled rc 1");
}

/* ---- Records and metrics ---- */

static void a_life_is_recorded_in_the_order_that_pytorch_has(void **state)
{
    struct scene *s = *state;

    (void)simple(s, MU_POLICY_ON_RUN);
    s->now_ms += 7;
    (void)joined(s, 0);
    assert_string_equal(s->told, "record rendezvous 7 ms");
    s->now_ms += 3;
    (void)assigned(s, 0, true);
    assert_string_equal(s->told, "record assign 3 ms, step 2 ok, step 1 ok");
    (void)simple(s, MU_POLICY_ON_STARTED);
    assert_string_equal(s->told,
                        "step 5 ok, step 3 ok, record workers start, state HEALTHY, step 7 ok, decision HEALTHY 1");
    (void)exited(s, 0, true);
    (void)exited(s, 1, true);
    assert_string_equal(s->told, "state SUCCEEDED, step 7 ok, decision SUCCEEDED 1");
    (void)stopped(s);
    assert_string_equal(s->told, "step 6 ok");
    (void)finished(s, MU_COMPLETION_END_ALL_DONE);
    assert_string_equal(s->told,
                        "'so it is', final ok 1, record workers end SUCCEEDED, step 0 ok, record agent SUCCEEDED");
}

static void a_failed_run_is_one_that_the_agent_survived(void **state)
{
    struct scene *s = *state;

    configure(s, 0);
    run(s);
    (void)exited(s, 1, false);
    (void)value(s, PAID(1, 0) " me");
    (void)stopped(s);
    (void)finished(s, MU_COMPLETION_END_FAILED);
    assert_string_equal(
        s->told,
        "'no restarts left: the job has failed and is closed', final failed 0, record workers end FAILED, step 0 ok, "
        "record agent SUCCEEDED");
}

/* Which steps have failed, as PyTorch measures an exception that leaves one after the other. */
static void steps_that_fail_are_measured_from_the_inside_out(void **state)
{
    static const struct {
        enum mu_policy_event_type at; /* what fails */
        int code;
        bool restarting;
        const char *steps;
    } rows[] = {
        { MU_POLICY_ON_FAILED, MUSTER_ERDZV_TIMEOUT, false, "step 1 bad, step 3 bad" },
        { MU_POLICY_ON_FAILED, MUSTER_ERDZV_TIMEOUT, true, "step 1 bad, step 3 bad, step 4 bad" },
        { MU_POLICY_ON_FAILED, MUSTER_ERDZV_GRACEFUL_EXIT, false, "step 1 bad, step 3 bad" },
        { MU_POLICY_ON_FAILED, MUSTER_ERDZV_GRACEFUL_EXIT, true, "step 1 bad, step 3 bad, step 4 bad" },
        { MU_POLICY_ON_ASSIGN_FAILED, MUSTER_EPROTOCOL, false, "step 2 bad, step 1 bad, step 3 bad" },
        { MU_POLICY_ON_ASSIGN_FAILED, MUSTER_EPROTOCOL, true, "step 2 bad, step 1 bad, step 3 bad, step 4 bad" },
        { MU_POLICY_ON_START_FAILED, MUSTER_ESYSTEM, false, "step 5 bad, step 3 bad" },
        { MU_POLICY_ON_START_FAILED, MUSTER_ESYSTEM, true, "step 5 bad, step 3 bad, step 4 bad" },
    };
    struct scene *s = *state;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        configure(s, 1);
        if (rows[i].restarting) {
            run(s);
            (void)waiting(s, 0);
            (void)stopped(s);
        } else {
            (void)simple(s, MU_POLICY_ON_RUN);
        }
        if (rows[i].at != MU_POLICY_ON_FAILED)
            (void)joined(s, 1);
        if (rows[i].at == MU_POLICY_ON_START_FAILED)
            (void)assigned(s, 0, true);
        if (rows[i].at == MU_POLICY_ON_FAILED)
            (void)fails(s, MUSTER_RDZV_REQUEST_JOIN, rows[i].code, "no");
        else
            (void)failing(s, rows[i].at, rows[i].code, "no");
        if (strstr(s->told, rows[i].steps) == NULL ||
            (!rows[i].restarting && strstr(s->told, "step 4") != NULL)) /* no restart */
            fail_msg("row %zu: %s", i, s->told);
    }
}

/* Whether what was told has this text in it, as a decision's state and restarts left. */
static void assert_decided(const struct scene *s, const char *decision)
{
    char wanted[64];

    (void)snprintf(wanted, sizeof wanted, "step 7 ok, decision %s", decision);
    assert_non_null(strstr(s->told, wanted));
}

static void every_decision_is_measured_with_the_state_that_it_led_to(void **state)
{
    struct scene *s = *state;

    configure(s, 3);
    run(s);
    assert_decided(s, "HEALTHY 3");
    (void)exited(s, 0, true); /* one of two: nothing is decided */
    assert_string_equal(s->told, "");
    (void)exited(s, 1, false);
    assert_decided(s, "FAILED 3");
    assert_int_equal(mu_policy_state(s->policy), MU_GROUP_FAILED);
    (void)value(s, PAID(1, 0) " me");
    (void)stopped(s);
    assert_int_equal(mu_policy_state(s->policy), MU_GROUP_STOPPED);
    run_from(s, 1, 1, true);
    assert_decided(s, "HEALTHY 2");
    (void)waiting(s, 1); /* looked at, and well: the group is stopped for others */
    assert_decided(s, "HEALTHY 2");
    (void)stopped(s);
    run_from(s, 2, 1, true);
    (void)step(s, (struct mu_policy_event){ .type = MU_POLICY_ON_UNHEALTHY, .text = "stuck" });
    assert_decided(s, "UNHEALTHY 2");
    (void)stopped(s); /* its end as FAILED is no second decision */
    assert_null(strstr(s->told, "decision"));
}

static void a_group_that_was_not_started_is_not_measured(void **state)
{
    struct scene *s = *state;

    (void)simple(s, MU_POLICY_ON_RUN);
    (void)joined(s, 0);
    (void)assigned(s, 0, true);
    (void)lost(s);
    assert_string_equal(s->told, "note again: b, 'b; restarting the group'");
}

static void names_are_there_for_all(void **state)
{
    (void)state;
    assert_string_equal(mu_policy_phase_text(MU_POLICY_CHARGING), "counting a restart");
    assert_string_equal(mu_policy_event_text(MU_POLICY_ON_KEEPER_GONE), "keeper gone");
    assert_string_equal(mu_policy_effect_text(MU_POLICY_DO_LINGER), "linger");
    assert_string_equal(mu_policy_outcome_text(MU_POLICY_OUTCOME_DIE), "die");
}

static void any_allocation_may_fail(void **state)
{
    struct mu_policy_config config = { .run_id = "job", .role = "r", .node = "me", .local_world_size = 1 };

    (void)state;
    FOR_EACH_FAILURE (n) {
        struct mu_policy *policy = NULL;
        struct muster_error error = { 0 };
        int rc = mu_policy_new(&config, &policy, &error);

        assert_int_equal(rc, fail_alloc_hit() ? MUSTER_ENOMEM : 0);
        mu_policy_free(policy);
    }
    config.local_world_size = 0;
    assert_int_equal(mu_policy_new(&config, &(struct mu_policy *){ NULL }, NULL), MUSTER_EINVAL);
    config =
        (struct mu_policy_config){ .run_id = "", .role = "", .node = "", .local_world_size = 1, .max_restarts = -1 };
    assert_int_equal(mu_policy_new(&config, &(struct mu_policy *){ NULL }, NULL), MUSTER_EINVAL);
}

/* ---- Random walks ---- */

/* What surrounds the policy, as far as it is asked for something that has an answer. */
struct world {
    struct mu_policy *policy;
    struct mu_rng rng;
    uint64_t now_ms;
    bool joining, leaving, assigning, starting, alive, stopping, finishing, failing, lingering;
    int64_t running, round;
    bool done; /* workers have succeeded and nothing of them is left */
    struct mu_ask ask;
    bool asked;
    bool led; /* the last round had a leader */
    unsigned ends, starts;
    bool ended;
    enum mu_policy_outcome_kind kind;
};

static void world_perform(struct world *w, const struct mu_policy_effect *e)
{
    assert_false(w->ended); /* nothing follows the end */
    switch (e->type) {
    case MU_POLICY_DO_JOIN:
        assert_false(w->alive); /* no round beside an old worker */
        assert_false(w->done);
        w->joining = true;
        break;
    case MU_POLICY_DO_LEAVE:
        w->leaving = true;
        w->joining = false;
        break;
    case MU_POLICY_DO_ASSIGN:
        w->assigning = true;
        break;
    case MU_POLICY_DO_ASSIGN_STOP:
        w->assigning = false;
        break;
    case MU_POLICY_DO_START_WORKERS:
        assert_false(w->alive);
        assert_false(w->done);
        w->starting = w->alive = true;
        w->stopping = false;
        w->running = 2;
        w->starts++;
        break;
    case MU_POLICY_DO_STOP_WORKERS:
    case MU_POLICY_DO_KILL_WORKERS:
        assert_true(w->alive);
        w->stopping = true;
        w->starting = false;
        break;
    case MU_POLICY_DO_FINISH:
        assert_false(w->alive);
        w->finishing = w->done = true;
        break;
    case MU_POLICY_DO_FAIL_JOB:
        assert_false(w->alive || w->led);
        w->failing = true;
        break;
    case MU_POLICY_DO_LINGER:
        w->lingering = true;
        break;
    case MU_POLICY_DO_ASK:
        assert_false(w->led);
        w->ask = e->ask;
        w->asked = true;
        break;
    case MU_POLICY_DO_WATCH_STOP:
        w->finishing = w->failing = false;
        break;
    case MU_POLICY_DO_END:
        assert_int_not_equal(e->outcome->kind, MU_POLICY_OUTCOME_NONE);
        assert_true(!w->alive || e->outcome->kind == MU_POLICY_OUTCOME_KEEPER_GONE);
        assert_int_equal(e->outcome->rc == 0, e->outcome->kind == MU_POLICY_OUTCOME_SUCCEEDED ||
                                                  e->outcome->kind == MU_POLICY_OUTCOME_GRACEFUL);
        assert_true(e->outcome->kind != MU_POLICY_OUTCOME_SUCCEEDED || w->done);
        assert_true(e->outcome->kind != MU_POLICY_OUTCOME_DIE || w->starts == 0);
        w->ends++;
        w->kind = e->outcome->kind;
        break;
    case MU_POLICY_DO_WATCH:
    case MU_POLICY_DO_LISTEN:
    case MU_POLICY_DO_TELL_FAILED:
    case MU_POLICY_DO_NOTE:
    case MU_POLICY_DO_STATE:
    case MU_POLICY_DO_RECORD:
    case MU_POLICY_DO_STEP:
    case MU_POLICY_DO_DECISION:
    case MU_POLICY_DO_FINAL:
    case MU_POLICY_DO_SAY:
        break;
    }
}

static void world_feed(struct world *w, struct mu_policy_event event)
{
    struct mu_policy_effects effects;

    event.now_ms = w->now_ms;
    mu_policy_step(w->policy, &event, &effects);
    for (unsigned i = 0; i < effects.count; i++)
        world_perform(w, &effects.items[i]);
    w->ended = w->ends > 0;
}

static uint64_t dice(struct world *w, uint64_t sides)
{
    return mu_rng_below(&w->rng, sides);
}

static void world_join_ends(struct world *w)
{
    static const int codes[] = { MUSTER_ERDZV_TIMEOUT, MUSTER_ERDZV_CLOSED, MUSTER_ERDZV_GRACEFUL_EXIT };
    struct muster_error error = { .code = codes[dice(w, 3)], .text = "no" };
    struct mu_round in = { .round = ++w->round,
                           .world_size = 2,
                           .all_ours = dice(w, 2) == 0,
                           .has_store = true,
                           .serves = dice(w, 2) == 0,
                           .serves_workers = dice(w, 2) == 0,
                           .led = w->led || (w->round == 0 && dice(w, 2) == 0),
                           .restarts_left = (int64_t)dice(w, 3),
                           .max_restarts = 3 };
    const struct mu_part_verdict *const verdicts[] = { NULL, &all_good, &all_bad };

    w->joining = false;
    if (dice(w, 12) == 0)
        world_feed(w, (struct mu_policy_event){ .type = MU_POLICY_ON_FAILED,
                                                .round = -1,
                                                .request = MUSTER_RDZV_REQUEST_JOIN,
                                                .verdict = w->led ? verdicts[dice(w, 3)] : NULL,
                                                .error = &error });
    else {
        w->led = in.led;
        world_feed(w, (struct mu_policy_event){ .type = MU_POLICY_ON_JOINED, .joined = &in });
    }
}

static void world_assign_ends(struct world *w)
{
    struct muster_error error = { .code = MUSTER_ETIMEOUT, .text = "no" };
    struct mu_ranks_result ranks = { .count = (int64_t)dice(w, 3), .shared = dice(w, 2) == 0 };

    w->assigning = false;
    if (dice(w, 16) == 0)
        world_feed(w, (struct mu_policy_event){ .type = MU_POLICY_ON_ASSIGN_FAILED, .error = &error });
    else
        world_feed(w, (struct mu_policy_event){ .type = MU_POLICY_ON_ASSIGNED, .ranks = &ranks });
}

static void world_start_ends(struct world *w)
{
    struct muster_error error = { .code = MUSTER_ESYSTEM, .text = "no" };

    w->starting = false;
    if (dice(w, 16) == 0)
        world_feed(w, (struct mu_policy_event){ .type = MU_POLICY_ON_START_FAILED, .error = &error });
    else
        world_feed(w, (struct mu_policy_event){ .type = MU_POLICY_ON_STARTED });
}

/* One thing that was asked for comes to an end. False: there is none. */
static bool world_answer(struct world *w)
{
    struct muster_error error = { .code = MUSTER_ELOST, .text = "no" };

    if (w->joining) {
        world_join_ends(w);
    } else if (w->assigning) {
        world_assign_ends(w);
    } else if (w->starting) {
        world_start_ends(w);
    } else if (w->stopping) {
        w->stopping = w->alive = false;
        world_feed(w,
                   (struct mu_policy_event){ .type = MU_POLICY_ON_STOPPED, .number = dice(w, 20) == 0, .text = "42" });
    } else if (w->asked) {
        struct mu_answer given = { .id = w->ask.id, .number = 1, .value = mu_slice_str(dice(w, 2) == 0 ? "me" : "x") };

        w->asked = false;
        given.error = dice(w, 4) == 0 ? &error : NULL;
        world_feed(w, (struct mu_policy_event){ .type = MU_POLICY_ON_ANSWER, .answer = given });
    } else if (w->finishing || w->failing) {
        enum mu_completion_end end =
            (enum mu_completion_end)(w->failing ? MU_COMPLETION_END_FAILED + (int)dice(w, 3) : (int)dice(w, 4));

        w->finishing = w->failing = false;
        world_feed(w, (struct mu_policy_event){ .type = MU_POLICY_ON_FINISHED, .end = end });
    } else if (w->leaving) {
        w->leaving = false;
        world_feed(w, (struct mu_policy_event){ .type = MU_POLICY_ON_LEFT });
    } else if (w->lingering) {
        w->lingering = false;
        world_feed(w, (struct mu_policy_event){ .type = MU_POLICY_ON_ALONE });
    } else {
        return false;
    }
    return true;
}

/* Something happens that nobody asked for. */
static void world_disturb(struct world *w)
{
    struct muster_error error = { .code = MUSTER_ERDZV_STATE, .text = "bad" };
    int64_t round = w->round - (int64_t)dice(w, 2);

    switch (dice(w, 15)) {
    case 14:
        world_feed(w, (struct mu_policy_event){ .type = MU_POLICY_ON_PEER_FAILED, .round = -1 });
        break;
    case 0:
        world_feed(w, (struct mu_policy_event){ .type = MU_POLICY_ON_WAITING, .round = round, .number = 1 });
        break;
    case 1:
        world_feed(w, (struct mu_policy_event){ .type = MU_POLICY_ON_REMOVED, .round = round });
        break;
    case 2:
        world_feed(w, (struct mu_policy_event){ .type = MU_POLICY_ON_LOST, .round = round });
        break;
    case 3:
        if (dice(w, 8) == 0)
            world_feed(w, (struct mu_policy_event){ .type = MU_POLICY_ON_CLOSED, .round = round });
        break;
    case 4:
        world_feed(w, (struct mu_policy_event){ .type = MU_POLICY_ON_BACKEND_DOWN, .error = &error });
        break;
    case 5:
        world_feed(w, (struct mu_policy_event){ .type = MU_POLICY_ON_BACKEND_UP });
        break;
    case 6:
        if (dice(w, 8) == 0)
            world_feed(w, (struct mu_policy_event){ .type = MU_POLICY_ON_SIGNAL, .number = SIGTERM });
        break;
    case 7:
        if (dice(w, 16) == 0)
            world_feed(w, (struct mu_policy_event){ .type = MU_POLICY_ON_KEEPER_GONE });
        break;
    case 8:
        if (dice(w, 16) == 0)
            world_feed(w, (struct mu_policy_event){ .type = MU_POLICY_ON_FAILED,
                                                    .round = -1,
                                                    .request = MUSTER_RDZV_REQUEST_MEMBERSHIP,
                                                    .error = &error });
        break;
    case 9:
        if (dice(w, 8) == 0)
            world_feed(w, (struct mu_policy_event){ .type = MU_POLICY_ON_JOB_FAILED });
        break;
    case 10: /* answers that nobody waits for */
        world_feed(w, (struct mu_policy_event){ .type = MU_POLICY_ON_ANSWER, .answer = { .id = dice(w, 3) } });
        world_feed(w, (struct mu_policy_event){ .type = MU_POLICY_ON_LEFT });
        break;
    default:
        if (w->alive && w->running > 0) {
            w->running--;
            world_feed(w, (struct mu_policy_event){ .type = MU_POLICY_ON_EXITED, .ok = dice(w, 3) != 0 });
        }
        break;
    }
}

static void world_live(struct world *w, bool disturbed)
{
    uint64_t deadline_ms = mu_policy_deadline_ms(w->policy);

    if (deadline_ms <= w->now_ms)
        world_feed(w, (struct mu_policy_event){ .type = MU_POLICY_ON_TIME });
    else if (disturbed && dice(w, 2) == 0)
        world_disturb(w);
    else if (!world_answer(w) && !disturbed && w->alive && w->running > 0) {
        w->running--;
        world_feed(w, (struct mu_policy_event){ .type = MU_POLICY_ON_EXITED, .ok = dice(w, 3) != 0 });
    }
    w->now_ms += dice(w, 100);
    if (!disturbed && deadline_ms != UINT64_MAX && w->now_ms < deadline_ms)
        w->now_ms = deadline_ms;
}

/* Whatever happens: no worker beside one of an older round, workers that have succeeded are never run again, one end,
 * nothing after it, and once it is quiet the end comes. */
static void any_life_has_one_end(void **state)
{
    unsigned ends[MU_POLICY_OUTCOME_ERROR + 1] = { 0 };

    (void)state;
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        struct world w = { .rng = mu_rng_seeded(seed), .now_ms = T0, .round = -1 };
        struct mu_policy_config config = {
            .run_id = "job", .role = "r", .node = "me", .local_world_size = 2, .max_restarts = (int64_t)dice(&w, 3)
        };
        enum mu_policy_phase phase;

        assert_int_equal(mu_policy_new(&config, &w.policy, NULL), 0);
        world_feed(&w, (struct mu_policy_event){ .type = MU_POLICY_ON_RUN });
        for (unsigned n = 0; n < 150 && !w.ended; n++)
            world_live(&w, true);
        for (unsigned n = 0; n < 400 && !w.ended; n++)
            world_live(&w, false);
        phase = mu_policy_phase(w.policy);
        if (!w.ended)
            fail_msg("seed %" PRIu64 " does not end: %s", seed, mu_policy_phase_text(phase));
        assert_int_equal(w.ends, 1);
        assert_int_equal(phase, MU_POLICY_ENDED);
        assert_int_equal(mu_policy_deadline_ms(w.policy), UINT64_MAX);
        for (unsigned n = 0; n < 20; n++)
            world_disturb(&w);
        assert_int_equal(w.ends, 1);
        ends[w.kind]++;
        mu_policy_free(w.policy);
    }
    for (size_t i = MU_POLICY_OUTCOME_NONE + 1; i < COUNT(ends); i++)
        assert_true(ends[i] > 0); /* they come in every way */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE(success_is_done_then_the_end),
        SCENE(a_used_up_budget_fails_and_closes_the_job),
        SCENE(a_failure_that_nobody_could_be_told_is_not_said_to_have_closed_the_job),
        SCENE(who_would_fail_a_job_that_has_gone_on_joins_it),
        SCENE(a_spare_of_a_closed_job_ends_gracefully),
        SCENE(a_signal_with_workers_stops_them_and_leaves),
        SCENE(only_a_late_sigint_or_a_sigquit_ends_the_grace),
        SCENE(a_repeated_sigterm_does_not_cut_leaving_short),
        SCENE(a_signal_while_done_leaves),
        SCENE(a_signal_between_two_rounds_is_one_with_workers),
        SCENE(a_signal_before_the_first_worker_leaves_within_a_second_and_dies_of_it),
        SCENE(a_membership_that_fails_is_an_error),
        SCENE(a_join_that_fails_is_an_error),
        SCENE(a_membership_that_fails_while_the_next_is_asked_for_ends_nothing),
        SCENE(ranks_that_cannot_be_assigned_are_an_error),
        SCENE(workers_that_cannot_be_started_are_an_error_that_names_role_and_state),
        SCENE(removed_kills_without_grace_and_joins_as_new),
        SCENE(a_keeper_that_is_gone_kills_and_leaves_within_a_second),
        SCENE(a_failure_on_another_node_ends_the_round_here_for_free_and_is_said),
        SCENE(a_waiting_node_and_a_lost_one_regroup_for_free),
        SCENE(the_first_of_a_round_decides_and_the_rest_is_dropped),
        SCENE(a_round_may_be_over_before_its_workers_are_started),
        SCENE(a_store_that_is_away_stops_nobody),
        SCENE(a_store_that_goes_with_its_host_is_told_with_the_loss),
        SCENE(a_store_that_is_away_is_talked_about_every_five_seconds_and_then_every_thirty),
        SCENE(a_line_about_a_store_that_is_away_says_for_how_long_it_is_tried),
        SCENE(a_failure_in_a_round_whose_store_went_with_a_member_is_free),
        SCENE(no_new_round_beside_what_cannot_be_killed),
        SCENE(a_worker_that_hangs_in_the_kernel_has_failed),
        SCENE(a_worker_that_its_driver_calls_unhealthy_is_restarted),
        SCENE(a_worker_is_called_unhealthy_only_while_the_group_runs),
        SCENE(a_stop_says_whether_a_restart_is_to_follow),
        SCENE(what_ended_before_all_were_started_counts_once_they_are),
        SCENE(the_first_to_say_so_pays_for_a_failed_round),
        SCENE(a_budget_that_is_used_up_fails_the_job),
        SCENE(a_loss_that_is_noticed_before_the_verdict_is_the_cause),
        SCENE(what_was_settled_is_said),
        SCENE(a_budget_that_is_none_is_put_back),
        SCENE(a_round_that_was_over_for_the_job_costs_nothing_and_fails_nobody),
        SCENE(a_round_that_cannot_be_agreed_upon_is_followed_by_another),
        SCENE(no_round_follows_before_the_budget_is_known),
        SCENE(while_the_store_is_silent_nobody_knows_whether_the_round_is_paid_for),
        SCENE(a_store_that_is_gone_with_its_process_ends_what_has_no_restarts_left),
        SCENE(a_signal_while_a_restart_is_counted_leaves_a_group_that_has_stopped),
        SCENE(a_store_that_cannot_say_leaves_us_to_what_we_know),
        SCENE(what_we_know_of_the_count_goes_with_us),
        SCENE(a_round_that_the_budget_does_not_allow_fails_the_job),
        SCENE(a_new_node_may_have_to_fail_the_job),
        SCENE(what_was_told_as_the_cause_goes_with_us),
        SCENE(with_a_stock_member_each_counts_its_own),
        SCENE(a_worker_that_fails_in_a_closed_job_ends_it_here),
        SCENE(the_verdict_of_others_ends_it_naming_it),
        SCENE(a_closed_job_says_why_when_it_is_joined),
        SCENE(a_verdict_is_told_to_a_newcomer_as_what_is_known_of_it),
        SCENE(workers_that_failed_and_found_the_job_closed_are_reported),
        SCENE(who_was_in_a_round_that_failed_for_good_is_no_spare),
        SCENE(the_stores_host_lets_the_others_read_how_it_ended),
        SCENE(a_leader_counts_a_failure_when_the_next_round_forms),
        SCENE(the_last_failure_may_still_be_a_consequence),
        SCENE(a_failure_that_the_leader_does_not_forgive_is_reported),
        SCENE(the_failure_of_another_node_that_is_not_forgiven_is_an_error),
        SCENE(how_a_closed_job_has_ended_is_told_with_it),
        SCENE(a_job_that_fails_while_workers_run_stops_them),
        SCENE(a_host_that_is_behind_serves_until_the_leader_has_closed_the_job),
        SCENE(who_is_behind_leaves_and_has_succeeded),
        SCENE(the_stores_host_serves_on_when_it_is_behind),
        SCENE(who_is_done_and_cannot_reach_the_store_has_succeeded),
        SCENE(who_serves_the_workers_of_others_stays_until_they_have_gone),
        SCENE(a_life_is_recorded_in_the_order_that_pytorch_has),
        SCENE(a_failed_run_is_one_that_the_agent_survived),
        SCENE(steps_that_fail_are_measured_from_the_inside_out),
        SCENE(every_decision_is_measured_with_the_state_that_it_led_to),
        SCENE(a_group_that_was_not_started_is_not_measured),
        SCENE(names_are_there_for_all),
        SCENE(any_allocation_may_fail),
        cmocka_unit_test(any_life_has_one_end),
    };

    return cmocka_run_group_tests_name("policy", tests, NULL, NULL);
}
