/* Where events go by name, for `--event-log-handler`: "null" and "dynamic_rendezvous" (nowhere), "console" (stderr), "file:PATH"
 * (appended). Only events of agents and workers; those of the rendezvous PyTorch shows nowhere. */
#ifndef MU_EVENTS_SINKS_H
#define MU_EVENTS_SINKS_H

#include "muster.h"

struct mu_event_sink;

#define MU_EVENT_SINK_BYTES_MAX ((size_t)1 << 20) /* of events that wait to be written */
#define MU_EVENT_SINK_QUIET_MS 3000               /* without anything that moves: the file is given up in the end */

/* Sets the process's sink (muster_events_set_sink()). A name that is not known is MUSTER_EINVAL. A file that cannot be opened
 * is an error that names it; one that cannot be written later is said once in the log, and events are lost. A thread writes
 * the file, so that nobody waits for a file system that hangs; events that find MU_EVENT_SINK_BYTES_MAX waiting are lost. */
int mu_event_sink_open(const char *name, struct mu_event_sink **ret_sink, struct muster_error *reterr);
/* Takes it away again, when all is written or nothing has moved for MU_EVENT_SINK_QUIET_MS; says how many events were lost.
 * NULL is fine. */
void mu_event_sink_close(struct mu_event_sink *sink);
/* Waits in the same way; how many were lost so far. */
uint64_t mu_event_sink_lost(struct mu_event_sink *sink);

#endif
