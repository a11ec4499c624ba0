/* A blocking rendezvous: what it remembers of its handler's events, what each call asks of the handler, and what the
 * caller is told. Also the settings of a dynamic rendezvous in their public form. Pure; blocking_rdzv_uv.c drives
 * it. */
#ifndef MU_HANDLER_BLOCKING_RDZV_H
#define MU_HANDLER_BLOCKING_RDZV_H

#include "handler/rdzv_trace.h"

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

struct mu_blocking_seen {
    enum mu_blocking_standing standing;
    bool closed; /* the rendezvous; it stays so */
};

void mu_blocking_see(struct mu_blocking_seen *seen, const struct muster_rdzv_event *event);
/* Whether the event is a trouble that only the log can tell of: the caller hears nothing before its next call. */
bool mu_blocking_must_warn(const struct mu_blocking_seen *seen, const struct muster_rdzv_event *event);
/* Whether the event is what a caller waits for that has asked for `request`; UNKNOWN: for nothing. */
bool mu_blocking_answers(enum muster_rdzv_request request, const struct muster_rdzv_event *event);

/* ---- Calls ---- */

enum mu_blocking_call_kind {
    MU_BLOCKING_NEXT,
    MU_BLOCKING_IS_CLOSED,
    MU_BLOCKING_SET_CLOSED,
    MU_BLOCKING_NODES_WAITING,
    MU_BLOCKING_SHUT_DOWN,
    MU_BLOCKING_FREE,
};

enum mu_blocking_step {
    MU_BLOCKING_DO_RETURN,
    /* Ask the handler, and wait for its answer: */
    MU_BLOCKING_DO_JOIN, /* the stores of the last round are closed before */
    MU_BLOCKING_DO_CLOSE,
    MU_BLOCKING_DO_LOOK,
    MU_BLOCKING_DO_LEAVE,
    MU_BLOCKING_DO_LEAVE_SOON,  /* ... but not for long */
    MU_BLOCKING_DO_OPEN_STORES, /* of the round that was joined */
};

struct mu_blocking_answer { /* of a step */
    struct muster_rdzv_info info;
    bool closed;
    int64_t count;
    struct muster_error error; /* code 0: none */
};

struct mu_blocking_call { /* zeroed memory with its kind */
    enum mu_blocking_call_kind kind;
    enum mu_blocking_step did; /* the last step; RETURN: none */
    /* What the caller is told, once the next step is RETURN. */
    int rc;
    struct mu_blocking_answer result; /* its error may be there with an rc of 0 */
    bool warns;                       /* the error is logged */
    bool records;                     /* the error is recorded, as: */
    enum mu_rdzv_trace_kind failed_as;
};

/* The next step. `answer`: the last one's. A node that is in a round when it shuts down or is freed leaves it, so that
 * nobody waits for its heartbeats. Without its store a round is of no use: it is left at once. A shutdown that fails
 * for a reason of the rendezvous is no error of the call: it is told as "not closed". */
enum mu_blocking_step mu_blocking_next(struct mu_blocking_call *call, const struct mu_blocking_seen *seen,
                                       const struct mu_blocking_answer *answer);
/* Whether the call can be answered without waiting for other calls to end. */
bool mu_blocking_is_known(enum mu_blocking_call_kind kind, const struct mu_blocking_seen *seen);

/* The code of a store's error, as that of a rendezvous. */
int mu_blocking_store_error(int rc);

/* What an older program's shorter structs lack is zero, and zero is the default. The texts are borrowed. */
int mu_blocking_settle(const struct muster_rdzv_settings *given, struct mu_dynamic_config *config,
                       struct muster_error *reterr);
struct muster_rdzv_settings mu_blocking_settings(const char *run_id, const struct mu_rdzv_settings *settings,
                                                 struct mu_bind bind, bool use_agent_store);

enum mu_blocking_store_kind {
    MU_BLOCKING_STORE_GIVEN, /* another one than these */
    MU_BLOCKING_STORE_FIXED, /* a TCPStore at host and port */
    MU_BLOCKING_STORE_MOVES, /* the same; the handler says where it is, for each round that was joined */
};

struct mu_blocking_store { /* of a round */
    enum mu_blocking_store_kind kind;
    char host[MU_RDZV_HOST_MAX];
    uint16_t port;
    int64_t timeout_ms;
};

int mu_blocking_find_store(const char *backend, const struct muster_rdzv_params *params,
                           struct mu_blocking_store *ret_store, struct muster_error *reterr);
/* Whether the event tells of a round whose store may be at another place than the last one's. */
bool mu_blocking_store_has_moved(const struct mu_blocking_store *store, const struct muster_rdzv_event *event);

/* MUSTER_EINVAL: the settings cannot be told, for `backend` has no dynamic rendezvous of this library. */
int mu_blocking_check_dynamic(const char *backend, struct muster_error *reterr);
/* Makes the parameters those of one more handler of the same kind, for an agent. MUSTER_EINVAL: the first one is in a
 * round. `params` may be NULL. */
int mu_blocking_twin(const char *backend, const struct mu_blocking_seen *seen, struct muster_rdzv_params *params,
                     struct muster_error *reterr);
/* MUSTER_EINVAL: a dynamic rendezvous cannot be made of these parts of a user's. */
int mu_blocking_check_parts(const struct muster_store *store, const struct muster_rdzv_backend *backend,
                            struct muster_error *reterr);
const char *mu_blocking_backend_name(const struct muster_rdzv_backend *backend); /* NULL: it has none */

#endif
