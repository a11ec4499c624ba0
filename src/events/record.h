/* Events for the record: what a rendezvous does, told to a sink that the user sets. Nothing depends on anybody listening. */
#ifndef MU_EVENTS_RECORD_H
#define MU_EVENTS_RECORD_H

#include "muster.h"

/* Fills in `size` and, from the format, `message`, and hands the record to the sink, if there is one. Any thread. */
void mu_event_record(struct muster_event_record record, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
