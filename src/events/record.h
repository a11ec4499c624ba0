/* Events for the record: what a rendezvous, an agent and its workers do, told to a sink that the user sets. Nothing
 * depends on there being one. */
#ifndef MU_EVENTS_RECORD_H
#define MU_EVENTS_RECORD_H

#include "muster.h"

/* Fills in `size`, `timestamp_ms` if it is 0, from the format `message`, and `json` for a rendezvous, and hands the
 * record to the sink, if there is one. Any thread. */
void mu_event_record(struct muster_event_record record, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* What PyTorch would have raised for an error of this code: "RendezvousTimeoutError". */
const char *mu_event_error_kind(int code);

bool mu_event_wanted(void); /* there is a sink at this moment */

#endif
