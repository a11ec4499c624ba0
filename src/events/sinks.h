/* Where lines go by name: "null" (nowhere), "console", "file:PATH" (appended). Events, for `--event-log-handler`, are
 * all that is recorded: of agents, workers and the rendezvous; their console is stderr, and "dynamic_rendezvous" is
 * another name for "null". Metrics, for `--metrics`; their console is stdout. */
#ifndef MU_EVENTS_SINKS_H
#define MU_EVENTS_SINKS_H

#include "muster.h"

struct mu_sink;

#define MU_SINK_BYTES_MAX ((size_t)1 << 20) /* of lines that wait to be written */
#define MU_SINK_QUIET_MS 3000               /* without anything that moves: what waits is given up in the end */

/* Set the process's sink (muster_events_set_sink(), muster_metrics_set_sink()). A name that is not known is
 * MUSTER_EINVAL. A file that cannot be opened is an error that names it; one that cannot be written later is logged
 * once, and lines are lost. A thread writes the lines, so that nothing waits for a file system that hangs or for a
 * console without a reader. When MU_SINK_BYTES_MAX are waiting, further lines are lost. */
int mu_event_sink_open(const char *name, struct mu_sink **ret_sink, struct muster_error *reterr);
int mu_metric_sink_open(const char *name, struct mu_sink **ret_sink, struct muster_error *reterr);
/* Takes it away again, when all is written or nothing has moved for MU_SINK_QUIET_MS; logs how many lines were lost.
 * NULL is fine. */
void mu_sink_close(struct mu_sink *sink);

#endif
