/* What goes on between the wrapper of a back end of other people and that back end: whether its handler is accepted,
 * what was asked of it and not answered yet, its events made whole, and the end. Pure; plugin_uv.c drives it.
 *
 *            accepted               ask                   free            freed
 *   CREATING --------> SERVING <------------> CALLING       +--> FREEING ------> OVER
 *      |                  |         returned                |                     ^
 *      |                  +---------------------------------+                     |
 *      +--refused, but it gave a handler--------------------+                     |
 *      +--refused-----------------------------------------------------------------+
 *
 * A back end that was built against an older muster.h tells shorter events, and does not say which request has failed.
 * So the requests are remembered in order: a failure belongs to the oldest that it can be the answer of.
 *
 * A back end must not tell anything inside of a call. If it does, the event is not passed on. The request of that call
 * has failed instead, which its owner hears later, from the loop. From FREEING on nothing is passed on. */
#ifndef MU_HANDLER_PLUGIN_ASKS_H
#define MU_HANDLER_PLUGIN_ASKS_H

#include "base/error.h"

enum { MU_PLUGIN_SERVICES_MAX = 4096 }; /* timers and watches of one handler */

enum mu_plugin_state {
    MU_PLUGIN_CREATING, /* inside of the call that creates the handler */
    MU_PLUGIN_SERVING,
    MU_PLUGIN_CALLING, /* inside of the call for the newest ask */
    MU_PLUGIN_FREEING,
    MU_PLUGIN_OVER, /* nothing of the back end is left but what it forgot to give back */
};

struct mu_plugin_ask {
    enum muster_rdzv_request request; /* UNKNOWN: to create the handler */
    bool is_early;                    /* the back end told something inside of the call for it: */
    enum muster_rdzv_event_type told;
};

struct mu_plugin_machine {
    const char *name; /* of the back end; borrowed */
    enum mu_plugin_state state;
    struct mu_plugin_ask asks[MUSTER_RDZV_REQUEST_MEMBERSHIP]; /* the oldest first, each request once */
    unsigned asks_count;
    unsigned services; /* that the back end holds */
};

enum mu_plugin_event_type {
    MU_PLUGIN_ON_CREATED,  /* the call has returned, and what it made was checked: rc, handler */
    MU_PLUGIN_ON_ASKED,    /* by the owner: request */
    MU_PLUGIN_ON_RETURNED, /* what CALL has called */
    MU_PLUGIN_ON_TOLD,     /* by the back end: told */
    MU_PLUGIN_ON_TURN,     /* from the loop, after mu_plugin_wants_turn() */
    MU_PLUGIN_ON_FREE,     /* by the owner, who is told nothing any more */
    MU_PLUGIN_ON_FREED,    /* says the back end */
};

struct mu_plugin_event { /* borrows what it points to */
    enum mu_plugin_event_type type;
    int rc;
    const struct muster_handler *handler;
    enum muster_rdzv_request request;
    const struct muster_rdzv_event *told;
};

enum mu_plugin_effect {
    MU_PLUGIN_DO_CALL, /* the handler, for `request`; then RETURNED */
    MU_PLUGIN_DO_TELL, /* `tell` */
    MU_PLUGIN_DO_SAY,  /* `text`, for people */
    MU_PLUGIN_DO_FREE, /* the handler; FREED follows */
    MU_PLUGIN_DO_END,  /* close what the back end still holds, and the wrapper */
};

struct mu_plugin_effects {
    enum mu_plugin_effect items[2];
    unsigned count;
    enum muster_rdzv_request request;
    struct muster_rdzv_event tell; /* borrows from the event, and from `error` */
    struct muster_error error;
    enum muster_log_level level;
    char text[256];
};

/* It begins inside of the call that creates the handler. */
void mu_plugin_init(struct mu_plugin_machine *m, const char *name);
/* Same state, same event, same effects, always. Cannot fail. `out` is overwritten. */
void mu_plugin_step(struct mu_plugin_machine *m, const struct mu_plugin_event *event, struct mu_plugin_effects *out);
bool mu_plugin_wants_turn(const struct mu_plugin_machine *m);

/* The call that creates the handler has returned rc, and `given` if that is an error: 0 if *handler is accepted. A call
 * that has failed gave none: *handler is NULL then. `file` is the back end's. */
int mu_plugin_check_created(const struct mu_plugin_machine *m, int rc, const struct muster_error *given,
                            const char *file, struct muster_handler **handler, struct muster_error *reterr);

/* ---- What a back end may use ---- */

bool mu_plugin_hold_service(struct mu_plugin_machine *m); /* one more; false: it has too many, or is over */
void mu_plugin_drop_service(struct mu_plugin_machine *m);
uint64_t mu_plugin_delay_ms(int64_t delay_ms);       /* of a timer */
unsigned mu_plugin_watched(int fd, unsigned events); /* what of `events` a descriptor is watched for; 0: it cannot be */
/* What a descriptor that is watched for `events` is told of: `found`, or that it has failed. */
unsigned mu_plugin_ready(bool has_failed, unsigned found, unsigned events);
/* In the host's table; ctx is not used. */
int mu_plugin_fail(void *ctx, struct muster_error *reterr, int code, const char *text);

#endif
