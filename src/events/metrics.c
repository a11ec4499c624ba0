/* The one place metrics pass through, and the names they have. As with events, the sink runs under the lock: once it is
 * taken away it is not called any more. */
#include "events/metrics.h"

#include "base/texts.h"
#include "events/json.h"

#include <assert.h>
#include <ctype.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct {
    pthread_mutex_t lock;
    muster_metrics_sink *sink;
    void *ctx;
} out = { .lock = PTHREAD_MUTEX_INITIALIZER };

void muster_metrics_set_sink(muster_metrics_sink *sink, void *ctx)
{
    (void)pthread_mutex_lock(&out.lock);
    out.sink = sink;
    out.ctx = ctx;
    (void)pthread_mutex_unlock(&out.lock);
}

const char *mu_metric_line(const struct muster_metric *metric, char ret_line[static MU_METRIC_LINE_MAX])
{
    char time_text[MU_JSON_REAL_MAX];

    mu_json_real_repr(metric->time_s, time_text);
    (void)snprintf(ret_line, MU_METRIC_LINE_MAX, "[%s][%s]: %s=%lld", time_text, metric->group, metric->name,
                   (long long)metric->value);
    for (char *c = ret_line; *c != '\0'; c++) { /* a role may have line ends in it, and this is one line */
        if (iscntrl((unsigned char)*c))
            *c = '?';
    }
    return ret_line;
}

void muster_metrics_console(void *ctx, const struct muster_metric *metric)
{
    char line[MU_METRIC_LINE_MAX + 1];
    size_t len;

    (void)ctx;
    (void)mu_metric_line(metric, line);
    len = strlen(line);
    line[len++] = '\n';
    (void)!write(STDOUT_FILENO, line, len);
}

/* With the lock held. */
static void hand_over(const char *name, int64_t value)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    out.sink(out.ctx, &(struct muster_metric){
                          .size = sizeof(struct muster_metric),
                          .time_s = (double)now.tv_sec + (double)now.tv_nsec / 1e9,
                          .group = MU_METRICS_GROUP,
                          .name = name,
                          .value = value,
                      });
}

void mu_metric_put(int64_t value, const char *format, ...)
{
    char name[MU_METRIC_NAME_MAX];
    va_list args;

    va_start(args, format);
    (void)pthread_mutex_lock(&out.lock);
    if (out.sink != NULL) {
        (void)vsnprintf(name, sizeof name, format, args);
        hand_over(name, value);
    }
    (void)pthread_mutex_unlock(&out.lock);
    va_end(args);
}

static MU_DEFINE_TEXTS(step_name, enum mu_metrics_step, MU_METRICS_STEPS)

void mu_metrics_step(enum mu_metrics_step step, bool succeeded, int64_t duration_ms)
{
    mu_metric_put(1, "%s.%s", step_name(step), succeeded ? "success" : "failure");
    mu_metric_put(duration_ms, "%s.duration.ms", step_name(step));
}

void mu_metrics_decision(const char *role, const char *state, int64_t remaining_restarts)
{
    char lower[64];
    size_t len = 0;

    for (; len < sizeof lower - 1 && state[len] != '\0'; len++)
        lower[len] = (char)tolower((unsigned char)state[len]);
    lower[len] = '\0';
    mu_metric_put(remaining_restarts, "workers.%s.remaining_restarts", role);
    mu_metric_put(1, "workers.%s.%s", role, lower);
}

/* How many of the restarts a run used, in percent; a failure counts as all. */
static int64_t flakiness(const struct mu_metrics_outcome *outcome)
{
    assert(outcome->max_restarts >= 0);
    if (outcome->failed)
        return 100;
    return (int64_t)(100.0 - 100.0 * (double)(outcome->remaining_restarts + 1) / (double)(outcome->max_restarts + 1));
}

void mu_metrics_put_final(const struct mu_metrics_outcome *outcome)
{
    bool failed = outcome->failed, retried = outcome->remaining_restarts != outcome->max_restarts;
    const struct {
        const char *name;
        int64_t value;
    } rows[] = {
        { "flakiness", flakiness(outcome) },
        { "run_total", 1 },
        { "run_success_with_retries", !failed && retried },
        { "run_success_no_retries", !failed && !retried },
        { "run_failed_with_retries", failed && retried },
        { "run_failed_no_retries", failed && !retried },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        mu_metric_put(rows[i].value, "workers.%s.%s", outcome->role, rows[i].name);
}
