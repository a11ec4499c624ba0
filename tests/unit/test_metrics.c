/* Metrics: names and values as PyTorch's, for every way a run can end. */
#include "events/metrics.h"
#include "pure.h"

#include <stdio.h>
#include <unistd.h>

static char told[4096];

static void remember(void *ctx, const struct muster_metric *metric)
{
    size_t len = strlen(told);

    assert_int_equal(metric->size, sizeof *metric);
    assert_string_equal(metric->group, "torchelastic");
    assert_true(metric->time_s > 1e9);
    (void)ctx;
    (void)snprintf(told + len, sizeof told - len, "%s=%lld\n", metric->name, (long long)metric->value);
}

static int listen_in(void **state)
{
    (void)state;
    told[0] = '\0';
    muster_metrics_set_sink(remember, NULL);
    return 0;
}

static int stop_listening(void **state)
{
    (void)state;
    muster_metrics_set_sink(NULL, NULL);
    return 0;
}

#define HEARD(test) cmocka_unit_test_setup_teardown(test, listen_in, stop_listening)

static void a_run_ends_with_six_metrics(void **state)
{
    static const struct {
        bool failed;
        int64_t remaining, max;
        int64_t flakiness, success_retried, success, failed_retried, failed_once;
    } rows[] = {
        { false, 0, 0, 0, 0, 1, 0, 0 },                                   /* success */
        { false, 3, 3, 0, 0, 1, 0, 0 },  { false, 2, 3, 25, 1, 0, 0, 0 }, /* after one retry of three */
        { false, 0, 3, 75, 1, 0, 0, 0 }, { false, 1, 2, 33, 1, 0, 0, 0 }, /* 33.3 */
        { false, 0, 2, 66, 1, 0, 0, 0 }, { false, 0, 1, 50, 1, 0, 0, 0 },
        { false, 5, 6, 14, 1, 0, 0, 0 }, { true, 0, 0, 100, 0, 0, 0, 1 }, /* failure without restarts */
        { true, 0, 3, 100, 0, 0, 1, 0 },                                  /* after all of them */
        { true, 3, 3, 100, 0, 0, 0, 1 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        char expected[1024];

        told[0] = '\0';
        mu_metrics_put_final(&(struct mu_metrics_outcome){ .role = "trainer",
                                                           .failed = rows[i].failed,
                                                           .remaining_restarts = rows[i].remaining,
                                                           .max_restarts = rows[i].max });
        (void)snprintf(expected, sizeof expected,
                       "workers.trainer.flakiness=%d\nworkers.trainer.run_total=1\n"
                       "workers.trainer.run_success_with_retries=%d\nworkers.trainer.run_success_no_retries=%d\n"
                       "workers.trainer.run_failed_with_retries=%d\nworkers.trainer.run_failed_no_retries=%d\n",
                       (int)rows[i].flakiness, (int)rows[i].success_retried, (int)rows[i].success,
                       (int)rows[i].failed_retried, (int)rows[i].failed_once);
        assert_string_equal(told, expected);
    }
}

static void steps_tell_their_end_and_how_long_they_took(void **state)
{
    (void)state;
    mu_metrics_step(MU_METRICS_RENDEZVOUS, true, 112);
    mu_metrics_step(MU_METRICS_RUN, false, 0);
    mu_metrics_step(MU_METRICS_START_WORKERS, true, 3);
    assert_string_equal(told, "SimpleElasticAgent._rendezvous.success=1\n"
                              "SimpleElasticAgent._rendezvous.duration.ms=112\n"
                              "SimpleElasticAgent.run.failure=1\nSimpleElasticAgent.run.duration.ms=0\n"
                              "LocalElasticAgent._start_workers.success=1\n"
                              "LocalElasticAgent._start_workers.duration.ms=3\n");
}

static void decisions_tell_the_state_in_small_letters(void **state)
{
    (void)state;
    mu_metrics_decision("default", "HEALTHY", 3);
    mu_metrics_decision("ps", "FAILED", 0);
    assert_string_equal(told, "workers.default.remaining_restarts=3\nworkers.default.healthy=1\n"
                              "workers.ps.remaining_restarts=0\nworkers.ps.failed=1\n");
}

static void a_name_that_is_too_long_is_cut(void **state)
{
    char role[2000];

    (void)state;
    memset(role, 'r', sizeof role - 1);
    role[sizeof role - 1] = '\0';
    mu_metrics_decision(role, "HEALTHY", 3);
    assert_int_equal(strlen(told), 2 * (MU_METRIC_NAME_MAX - 1) + strlen("=3\n=1\n"));
}

static void without_a_sink_nothing_happens(void **state)
{
    (void)state;
    told[0] = '\0';
    muster_metrics_set_sink(NULL, NULL);
    mu_metrics_decision("default", "HEALTHY", 3);
    assert_string_equal(told, "");
}

/* What a sink writes to a standard descriptor. */
static void the_console_form_is_pytorchs(void **state)
{
    int pipe_fds[2], saved = dup(STDOUT_FILENO);
    char text[4096];
    ssize_t len;

    (void)state;
    (void)fflush(stdout);
    assert_int_equal(pipe(pipe_fds), 0);
    assert_true(dup2(pipe_fds[1], STDOUT_FILENO) >= 0);
    muster_metrics_console(
        NULL, &(struct muster_metric){
                  .time_s = 1794726754.5, .group = "torchelastic", .name = "workers.default.run_total", .value = 1 });
    assert_true(dup2(saved, STDOUT_FILENO) >= 0);
    (void)close(saved);
    len = read(pipe_fds[0], text, sizeof text - 1);
    assert_true(len > 0);
    text[len] = '\0';
    assert_string_equal(text, "[1794726754.5][torchelastic]: workers.default.run_total=1\n");
    (void)close(pipe_fds[0]);
    (void)close(pipe_fds[1]);
}

static void a_metric_is_one_line(void **state)
{
    char line[MU_METRIC_LINE_MAX];

    (void)state;
    assert_string_equal(mu_metric_line(&(struct muster_metric){ .time_s = 1.5,
                                                                .group = "torchelastic",
                                                                .name = "workers.a\nb\x1b.failed",
                                                                .value = -1 },
                                       line),
                        "[1.5][torchelastic]: workers.a?b?.failed=-1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HEARD(a_run_ends_with_six_metrics),
        HEARD(steps_tell_their_end_and_how_long_they_took),
        HEARD(decisions_tell_the_state_in_small_letters),
        HEARD(a_name_that_is_too_long_is_cut),
        cmocka_unit_test(without_a_sink_nothing_happens),
        cmocka_unit_test(the_console_form_is_pytorchs),
        cmocka_unit_test(a_metric_is_one_line),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
