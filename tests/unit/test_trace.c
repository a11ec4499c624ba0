/* The steps of an agent, in words. */
#include "agent/trace.h"
#include "pure.h"

#include <signal.h>
#include <stdio.h>

static char line[MU_TRACE_LINE_MAX];

/* NULL: there is nothing to say. */
static const char *said(struct mu_policy_event event, enum mu_policy_phase before, enum mu_policy_phase after,
                        const struct mu_policy_effect *items, unsigned count)
{
    static struct mu_policy_effects effects;
    struct mu_trace trace = { "default", &event, before, after, &effects };

    effects.count = count;
    for (unsigned i = 0; i < count; i++)
        effects.items[i] = items[i];
    return mu_trace_say(&trace, line) ? line : NULL;
}

static void a_step_says_what_happened_where_it_led_and_what_follows(void **state)
{
    static const struct mu_policy_effect start = { .type = MU_POLICY_DO_START_WORKERS },
                                         quiet = { .type = MU_POLICY_DO_STATE },
                                         kill_all = { .type = MU_POLICY_DO_KILL_WORKERS },
                                         fail = { .type = MU_POLICY_DO_FAIL_JOB }, join = { .type = MU_POLICY_DO_JOIN },
                                         leave = { .type = MU_POLICY_DO_LEAVE },
                                         assign = { .type = MU_POLICY_DO_ASSIGN };
    static const struct mu_policy_effect stop[] = {
        { .type = MU_POLICY_DO_STATE },
        { .type = MU_POLICY_DO_STOP_WORKERS, .signal = SIGTERM, .grace_ms = 30000 },
    };
    static const struct mu_policy_outcome outcome = { .kind = MU_POLICY_OUTCOME_SUCCEEDED };
    static const struct mu_policy_effect end = { .type = MU_POLICY_DO_END, .outcome = &outcome };
    static const struct mu_policy_effect finish = { .type = MU_POLICY_DO_FINISH };
    static const struct muster_error error = { .code = MUSTER_ERDZV_TIMEOUT, .text = "timed out" };
    const struct {
        struct mu_policy_event event;
        enum mu_policy_phase before, after;
        const struct mu_policy_effect *effects;
        unsigned count;
        const char *line;
    } rows[] = {
        { { .type = MU_POLICY_ON_RUN },
          MU_POLICY_IDLE,
          MU_POLICY_JOINING,
          &join,
          1,
          "[default] run: idle -> joining; join the rendezvous" },
        { { .type = MU_POLICY_ON_JOINED },
          MU_POLICY_JOINING,
          MU_POLICY_ASSIGNING,
          &assign,
          1,
          "[default] joined: joining -> assigning ranks; assign ranks" },
        { { .type = MU_POLICY_ON_ASSIGNED },
          MU_POLICY_ASSIGNING,
          MU_POLICY_STARTING,
          &start,
          1,
          "[default] assigned: assigning ranks -> starting workers; start workers" },
        { { .type = MU_POLICY_ON_EXITED, .number = 3, .text = "exit code 1" },
          MU_POLICY_RUNNING,
          MU_POLICY_STOPPING,
          stop,
          2,
          "[default] worker exited, local rank 3 (exit code 1): running -> stopping workers; stop workers with "
          "SIGTERM, "
          "kill them after 30000 ms" },
        { { .type = MU_POLICY_ON_EXITED, .number = 0, .ok = true },
          MU_POLICY_RUNNING,
          MU_POLICY_RUNNING,
          NULL,
          0,
          "[default] worker exited, local rank 0: running" },
        { { .type = MU_POLICY_ON_REMOVED },
          MU_POLICY_RUNNING,
          MU_POLICY_STOPPING,
          &kill_all,
          1,
          "[default] removed: running -> stopping workers; kill workers" },
        { { .type = MU_POLICY_ON_STOPPED },
          MU_POLICY_STOPPING,
          MU_POLICY_FINISHING,
          &finish,
          1,
          "[default] workers stopped: stopping workers -> waiting for the others; enter the exit barrier" },
        { { .type = MU_POLICY_ON_FINISHED, .text = "all nodes are done" },
          MU_POLICY_FINISHING,
          MU_POLICY_ENDED,
          &end,
          1,
          "[default] finished (all nodes are done): waiting for the others -> ended; end: succeeded" },
        { { .type = MU_POLICY_ON_ANSWER },
          MU_POLICY_CHARGING,
          MU_POLICY_FAILING,
          &fail,
          1,
          "[default] answer: counting a restart -> closing a failed job; close the job as failed" },
        { { .type = MU_POLICY_ON_SIGNAL, .number = SIGTERM },
          MU_POLICY_JOINING,
          MU_POLICY_LEAVING,
          &leave,
          1,
          "[default] signal SIGTERM: joining -> leaving; leave the rendezvous" },
        { { .type = MU_POLICY_ON_FAILED, .error = &error },
          MU_POLICY_JOINING,
          MU_POLICY_LEAVING,
          NULL,
          0,
          "[default] failed (timed out): joining -> leaving" },
        { { .type = MU_POLICY_ON_TIME }, MU_POLICY_RUNNING, MU_POLICY_RUNNING, &quiet, 1, NULL },
        { { .type = MU_POLICY_ON_ANSWER }, MU_POLICY_RUNNING, MU_POLICY_RUNNING, NULL, 0, NULL },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const char *found = said(rows[i].event, rows[i].before, rows[i].after, rows[i].effects, rows[i].count);

        if (rows[i].line == NULL)
            assert_null(found);
        else
            assert_string_equal(found, rows[i].line);
    }
}

static void a_line_has_a_limit(void **state)
{
    char tale[4096];

    (void)state;
    memset(tale, 'x', sizeof tale - 1);
    tale[sizeof tale - 1] = '\0';
    assert_non_null(said((struct mu_policy_event){ .type = MU_POLICY_ON_LOST, .text = tale }, MU_POLICY_RUNNING,
                         MU_POLICY_STOPPING, NULL, 0));
    assert_true(strlen(line) < 300);
    assert_non_null(strstr(line, "): running -> stopping workers"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_says_what_happened_where_it_led_and_what_follows),
        cmocka_unit_test(a_line_has_a_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
