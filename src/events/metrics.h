/* Metrics of an agent, by the names and with the values that PyTorch's has. They go to the sink of
 * muster_metrics_set_sink(); without one nothing is done. Any thread. */
#ifndef MU_EVENTS_METRICS_H
#define MU_EVENTS_METRICS_H

#include "muster.h"

#define MU_METRICS_GROUP "torchelastic"
#define MU_METRIC_NAME_MAX 1024 /* with its NUL; longer ones are cut */
#define MU_METRIC_LINE_MAX (MU_METRIC_NAME_MAX + 128)

/* What is timed, under the names of PyTorch's methods. */
#define MU_METRICS_STEPS(X)                                                                                            \
    X(RUN, "SimpleElasticAgent.run")                                                                                   \
    X(RENDEZVOUS, "SimpleElasticAgent._rendezvous")                                                                    \
    X(ASSIGN_WORKER_RANKS, "SimpleElasticAgent._assign_worker_ranks")                                                  \
    X(INITIALIZE_WORKERS, "SimpleElasticAgent._initialize_workers")                                                    \
    X(RESTART_WORKERS, "SimpleElasticAgent._restart_workers")                                                          \
    X(START_WORKERS, "LocalElasticAgent._start_workers")                                                               \
    X(STOP_WORKERS, "LocalElasticAgent._stop_workers")                                                                 \
    X(MONITOR_WORKERS, "LocalElasticAgent._monitor_workers")

enum mu_metrics_step {
#define X(name, text) MU_METRICS_##name,
    MU_METRICS_STEPS(X)
#undef X
};

/* "[<seconds>][<group>]: <name>=<value>", cut at MU_METRIC_LINE_MAX; control characters become '?'. Returns it.
 * Pure. */
const char *mu_metric_line(const struct muster_metric *metric, char ret_line[static MU_METRIC_LINE_MAX]);

void mu_metric_put(int64_t value, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* <step>.success or <step>.failure = 1, then <step>.duration.ms. */
void mu_metrics_step(enum mu_metrics_step step, bool succeeded, int64_t duration_ms);
/* At every decision of the policy: workers.<role>.remaining_restarts, workers.<role>.<state in lower case> = 1. */
void mu_metrics_decision(const char *role, const char *state, int64_t remaining_restarts);

struct mu_metrics_outcome {
    const char *role;
    bool failed;
    int64_t remaining_restarts, max_restarts;
};

/* How a run ended: flakiness, run_total, run_success_with_retries, run_success_no_retries, run_failed_with_retries,
 * run_failed_no_retries. */
void mu_metrics_put_final(const struct mu_metrics_outcome *outcome);

#endif
