/* What was asked of somebody else's handler and not answered yet, and its events made whole. Pure.
 *
 * A back end that was built against an older muster.h tells shorter events, and does not say which request has failed.
 * So the wrapper remembers the requests in order: a failure belongs to the oldest that it can be the answer of. */
#ifndef MU_HANDLER_PLUGIN_ASKS_H
#define MU_HANDLER_PLUGIN_ASKS_H

#include "base/error.h"

struct mu_plugin_asks {
    enum muster_rdzv_request items[MUSTER_RDZV_REQUEST_MEMBERSHIP]; /* the oldest first, each once */
    unsigned count;
};

void mu_plugin_ask(struct mu_plugin_asks *asks, enum muster_rdzv_request request);
enum muster_rdzv_request mu_plugin_newest_ask(const struct mu_plugin_asks *asks); /* UNKNOWN: none */
/* The event as this library knows it; what it answers is not asked any more. False: it is too short to be one. */
bool mu_plugin_take_event(struct mu_plugin_asks *asks, const struct muster_rdzv_event *event,
                          struct muster_rdzv_event *ret_whole);
/* Instead of an event that came at the wrong time, inside of the call for `request`: so nobody waits for it. */
struct muster_rdzv_event mu_plugin_answer_instead(struct mu_plugin_asks *asks, enum muster_rdzv_request request,
                                                  const struct muster_error *error);

#endif
