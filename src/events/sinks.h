/* Where events go by name, for `--event-log-handler`: "null" and "dynamic_rendezvous" (nowhere), "console" (stderr), "file:PATH"
 * (appended). Only events of agents and workers; those of the rendezvous PyTorch shows nowhere. */
#ifndef MU_EVENTS_SINKS_H
#define MU_EVENTS_SINKS_H

#include "muster.h"

struct mu_event_sink;

/* Sets the process's sink (muster_events_set_sink()). A name that is not known is MUSTER_EINVAL. A file that cannot be opened
 * is an error that names it; one that cannot be written later is said once in the log, and events are lost. */
int mu_event_sink_open(const char *name, struct mu_event_sink **ret_sink, struct muster_error *reterr);
void mu_event_sink_close(struct mu_event_sink *sink); /* takes it away again; NULL is fine */
uint64_t mu_event_sink_lost(const struct mu_event_sink *sink);

#endif
