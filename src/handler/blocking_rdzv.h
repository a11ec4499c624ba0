/* What a blocking rendezvous remembers of the events of its handler, and which of them answers a call. Also the
 * settings of a dynamic rendezvous in their public form. Pure; blocking_rdzv_uv.c drives it. */
#ifndef MU_HANDLER_BLOCKING_RDZV_H
#define MU_HANDLER_BLOCKING_RDZV_H

#include "handler/handler.h"

/*            JOINED              lost members, or failed
 *   OUT ---------------> MEMBER --------------------------> BROKEN
 *    ^                     |  ^---------- JOINED -------------+ |
 *    +-- LEFT, or a failed join, from any ----------------------+
 *                          +-- the others go on without us --> REMOVED */
enum mu_blocking_standing {
    MU_BLOCKING_OUT,
    MU_BLOCKING_MEMBER,
    MU_BLOCKING_BROKEN,  /* still a member, of a round that cannot go on */
    MU_BLOCKING_REMOVED, /* no member any more, and has not asked for that */
};

enum mu_blocking_standing mu_blocking_after(enum mu_blocking_standing standing, const struct muster_rdzv_event *event);
/* Whether it is a member that somebody has to take out of the round in the end. */
bool mu_blocking_is_member(enum mu_blocking_standing standing);
/* Whether the event is what a caller waits for that has asked for `request`; UNKNOWN: for nothing. */
bool mu_blocking_answers(enum muster_rdzv_request request, const struct muster_rdzv_event *event);
/* What num_nodes_waiting() returns: a round that is broken or lost calls for the next one, whatever the back end
 * says. */
int mu_blocking_nodes_waiting(enum mu_blocking_standing standing, int rc, int64_t count, int64_t *ret_count);

/* The code of a store's error, as that of a rendezvous. */
int mu_blocking_store_error(int rc);

/* What an older program's shorter structs lack is zero, and zero is the default. The texts are borrowed. */
int mu_blocking_settle(const struct muster_rdzv_settings *given, struct mu_dynamic_config *config,
                       struct muster_error *reterr);
struct muster_rdzv_settings mu_blocking_settings(const char *run_id, const struct mu_rdzv_settings *settings,
                                                 struct mu_bind bind, bool use_agent_store);

struct mu_blocking_store { /* of a round */
    enum {
        MU_BLOCKING_STORE_GIVEN, /* another one than these */
        MU_BLOCKING_STORE_FIXED, /* a TCPStore at host and port */
        MU_BLOCKING_STORE_MOVES, /* the same; the handler says where it is, for each round that was joined */
    } kind;
    char host[MU_RDZV_HOST_MAX];
    uint16_t port;
    int64_t timeout_ms;
};

int mu_blocking_find_store(const char *backend, const struct muster_rdzv_params *params,
                           struct mu_blocking_store *ret_store, struct muster_error *reterr);
bool mu_blocking_is_dynamic(const char *backend); /* a back end of this library with a dynamic rendezvous */

#endif
