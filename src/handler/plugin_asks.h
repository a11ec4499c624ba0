/* What was asked of somebody else's handler and not answered yet, its events made whole, and whether the handler is
 * accepted at all. Pure.
 *
 * A back end that was built against an older muster.h tells shorter events, and does not say which request has failed.
 * So the wrapper remembers the requests in order: a failure belongs to the oldest that it can be the answer of.
 *
 * A back end must not tell anything inside of a call. If it does, the event is not passed on. The request of that call
 * has failed instead, which its owner hears later, from the loop. */
#ifndef MU_HANDLER_PLUGIN_ASKS_H
#define MU_HANDLER_PLUGIN_ASKS_H

#include "base/error.h"

struct mu_plugin_ask {
    enum muster_rdzv_request request;
    bool is_early; /* the back end told something inside of the call for it: */
    enum muster_rdzv_event_type told;
};

struct mu_plugin_asks {
    struct mu_plugin_ask items[MUSTER_RDZV_REQUEST_MEMBERSHIP]; /* the oldest first, each request once */
    unsigned count;
    bool calling; /* inside of the call for the newest */
};

/* A call of the back end begins: for this request, or (UNKNOWN) to create its handler. */
void mu_plugin_ask(struct mu_plugin_asks *asks, enum muster_rdzv_request request);
void mu_plugin_asked(struct mu_plugin_asks *asks); /* it has returned */

enum mu_plugin_event { MU_PLUGIN_WHOLE, MU_PLUGIN_EARLY, MU_PLUGIN_SHORT };

/* WHOLE: *ret_whole is the event as this library knows it, and what it answers is not asked any more. EARLY: it was
 * told inside of a call; mu_plugin_early() is wanted from the loop. SHORT: it is too short to be an event. */
enum mu_plugin_event mu_plugin_take_event(struct mu_plugin_asks *asks, const struct muster_rdzv_event *event,
                                          struct muster_rdzv_event *ret_whole);
/* The oldest ask with an early event, until the next call; NULL: none. */
const struct mu_plugin_ask *mu_plugin_early(const struct mu_plugin_asks *asks);
/* What its owner is told instead, of the back end `name`: the ask has failed. It is not asked any more. */
bool mu_plugin_answer_early(struct mu_plugin_asks *asks, const char *name, struct muster_error *ret_error,
                            struct muster_rdzv_event *ret_event);

/* The call that creates the handler of the back end `name` has returned rc: 0 if *handler is accepted. A call that has
 * failed gave none: *handler is NULL then. */
int mu_plugin_check_created(const struct mu_plugin_asks *asks, int rc, const char *name,
                            struct muster_handler **handler, struct muster_error *reterr);
/* Also one that is not accepted is given back, where it can be. */
bool mu_plugin_can_be_freed(const struct muster_handler *handler);

#endif
