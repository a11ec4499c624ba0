/* A blocking rendezvous: what it remembers of its handler's events, what each call asks of the handler, and what the
 * caller is told. Also the settings of a dynamic rendezvous in their public form. Pure; blocking_rdzv_uv.c drives
 * it. */
#ifndef MU_HANDLER_BLOCKING_RDZV_H
#define MU_HANDLER_BLOCKING_RDZV_H

#include "handler/rdzv_trace.h"
#include "rdzv/round_keys.h"

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
#define MU_BLOCKING_WARNING_MAX (sizeof(((struct muster_error *)0)->text) + 64)
/* A trouble that only the log can tell of: the caller hears nothing before its next call. `seen`: before it. False:
 * there is none. */
bool mu_blocking_trouble(const struct mu_blocking_seen *seen, const struct muster_rdzv_event *event,
                         char ret_warning[static MU_BLOCKING_WARNING_MAX]);
/* Whether the event is what a caller waits for that has asked for `request`; UNKNOWN: for nothing. */
bool mu_blocking_answers(enum muster_rdzv_request request, const struct muster_rdzv_event *event);

/* ---- Stores ---- */

enum mu_blocking_store_kind {
    MU_BLOCKING_STORE_NONE,  /* what the handler tells, if anything */
    MU_BLOCKING_STORE_GIVEN, /* a view of the one that the rendezvous was made with */
    MU_BLOCKING_STORE_FIXED, /* a TCPStore at host and port */
    MU_BLOCKING_STORE_MOVES, /* the same; the handler says where it is, for each round that was joined */
};

struct mu_blocking_store { /* of a round */
    enum mu_blocking_store_kind kind;
    char host[MU_RDZV_HOST_MAX];
    uint16_t port;
    int64_t timeout_ms;
};

/* is_given: the rendezvous is made with a store. */
int mu_blocking_find_store(const char *backend, const struct muster_rdzv_params *params, bool is_given,
                           struct mu_blocking_store *ret_store, struct muster_error *reterr);
/* Whether the event tells of a round whose store may be at another place than the last one's. */
bool mu_blocking_store_has_moved(const struct mu_blocking_store *store, const struct muster_rdzv_event *event);

#define MU_BLOCKING_PREFIX_MAX (MU_RDZV_RUN_ID_MAX + MU_ROUND_PREFIX_EXTRA)
/* Of the keys that a view of the round's store shows. */
void mu_blocking_prefix(const char *run_id, int64_t round, char text[static MU_BLOCKING_PREFIX_MAX]);
/* The code of a store's error, as that of a rendezvous. */
int mu_blocking_store_error(int rc);

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
    MU_BLOCKING_DO_LEAVE,      /* as are those of this round */
    MU_BLOCKING_DO_LEAVE_SOON, /* ... but wait MU_BLOCKING_LEAVE_MS at most */
    /* Open a view for the round that was joined: */
    MU_BLOCKING_DO_OPEN_TCP,   /* of its TCPStore, with a new connection: the last one may be lost without a sign */
    MU_BLOCKING_DO_OPEN_GIVEN, /* of the store that was given */
};

#define MU_BLOCKING_LEAVE_MS 2000

struct mu_blocking_answer { /* of a step */
    struct muster_rdzv_info info;
    bool closed;
    int64_t count;
    struct muster_error error; /* code 0: none */
};

struct mu_blocking_call { /* zeroed memory with these two: */
    enum mu_blocking_call_kind kind;
    enum mu_blocking_store_kind store;
    enum mu_blocking_step did; /* the last step; RETURN: none */
    /* What the caller is told, once the next step is RETURN. */
    int rc;
    struct mu_blocking_answer result; /* its error may be there with an rc of 0 */
};

/* The next step. `answer`: the last one's. A node that is in a round when it shuts down or is freed leaves it, so that
 * nobody waits for its heartbeats. Without its store a round is of no use: it is left at once. A shutdown that fails
 * for a reason of the rendezvous is no error of the call: it is told as "not closed". */
enum mu_blocking_step mu_blocking_next(struct mu_blocking_call *call, const struct mu_blocking_seen *seen,
                                       const struct mu_blocking_answer *answer);
/* Whether the call can be answered without waiting for other calls to end. */
bool mu_blocking_is_known(enum mu_blocking_call_kind kind, const struct mu_blocking_seen *seen);
/* How a call that failed is recorded, under its own name: the handler knows only what the call asked of it. False: it
 * has not failed, or it was a join, which the handler records. The warning, for the log, is of a shutdown that failed;
 * else it is empty. */
bool mu_blocking_failed(const struct mu_blocking_call *call, enum mu_rdzv_trace_kind *ret_kind,
                        char ret_warning[static MU_BLOCKING_WARNING_MAX]);
/* How long the handler may take to end; -1: for ever. borrows: it uses something of the user's. */
int64_t mu_blocking_end_ms(bool borrows);

/* ---- New, and settings ---- */

/* Of a dynamic rendezvous on a store and a back end of the user's, by settings or by parameters. *ret_config borrows.
 * What an older program's shorter structs lack is zero, and zero is the default. MUSTER_EINVAL: a value or a part is
 * missing or wrong. */
int mu_blocking_settle(const struct muster_rdzv_settings *given, const struct muster_store *store,
                       const struct muster_rdzv_backend *backend, const char *local_addr,
                       struct mu_dynamic_config *ret_config, struct muster_error *reterr);
int mu_blocking_read_params(const struct muster_rdzv_params *params, const struct muster_store *store,
                            const struct muster_rdzv_backend *backend, struct mu_dynamic_config *ret_config,
                            struct muster_error *reterr);
/* ... that could not be made: fills in *reterr, records it, and returns its code. */
int mu_blocking_create_failed(const struct mu_dynamic_config *config, int rc, struct muster_error *error,
                              struct muster_error *reterr);

/* MUSTER_EINVAL: `backend` has no dynamic rendezvous of this library. */
int mu_blocking_not_dynamic(const char *backend, struct muster_error *reterr);
/* The settings of a handler that was made of parameters; *ret_config borrows. */
int mu_blocking_read_settings(const char *backend, const struct muster_rdzv_params *params,
                              struct mu_dynamic_config *ret_config, struct muster_error *reterr);
/* ... in their public form, as much as ret_settings->size has room for. */
int mu_blocking_tell_settings(const struct mu_dynamic_config *config, struct muster_rdzv_settings *ret_settings,
                              struct muster_error *reterr);

/* MUSTER_EINVAL: an agent cannot have one more handler of the same kind, for the first one is in a round. */
int mu_blocking_check_twin(const char *backend, bool is_member, struct muster_error *reterr);
/* The same, and makes the parameters those of the second handler. `params` may be NULL. */
int mu_blocking_twin(const char *backend, const struct mu_blocking_seen *seen, struct muster_rdzv_params *params,
                     struct muster_error *reterr);

#endif
