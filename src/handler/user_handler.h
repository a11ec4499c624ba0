/* Which call of a user's blocking handler (struct muster_rdzv) is made next, and what an agent is told of it. Pure;
 * user_handler_uv.c makes the calls, on a thread of their own, one after the other.
 *
 *            join                      returned                       join
 *   OUT -----------> JOINING ---------------------> IN ----------------------> JOINING
 *    ^  failed: FAILED  |  | leave                  | every look_ms: num_nodes_waiting()
 *    +------------------+  v                        | above 0: WAITING, once a round
 *    +--returned: LEFT-- UNWANTED                   | an error: BACKEND_DOWN, and it is asked less often (DOWN)
 *    +--leave: LEFT---------------------------------+
 *
 * - Asking again and again is all that a handler's interface has for news of a round. Nothing else is asked at
 *   intervals, and only while we are in a round.
 * - A leave while next_rendezvous() is under way calls shutdown() beside it, from another thread: that makes it return.
 *   A leave at another time calls nothing: shutdown() would close the job for the others, as PyTorch's dynamic
 *   rendezvous does.
 * - Freed while in a round, the job is over: shutdown() is called, as PyTorch's launcher does. Freed while out of one,
 *   it is not: an agent that never came in, or that left, closes nothing. Then, where the handler is ours, free().
 * - Before all that, calls of the round's store that are still under way have to return: the handler may own it.
 * - A call that something else waits for, and that has not returned for 5 s, is named once.
 * - What has not returned end_ms after the leave that interrupts a join, or after the free, is abandoned. */
#ifndef MU_HANDLER_USER_HANDLER_H
#define MU_HANDLER_USER_HANDLER_H

#include "base/error.h"

#include <stdint.h>

#define MU_USER_HANDLER_SLOW_MS 5000     /* for a call to return that another one waits for */
#define MU_USER_HANDLER_LOOK_MAX_MS 5000 /* between two questions, while the handler answers with errors */

#define MU_USER_HANDLER_REQUESTS_MAX 128 /* to the store, under way; the agent's machines have fewer */

#define MU_USER_HANDLER_CALLS(X)                                                                                       \
    X(NOTHING, "nothing")                                                                                              \
    X(NEXT, "next_rendezvous()")         /* and BUILD, if the handler gives no address for the workers of the round */ \
    X(BUILD, "the address of the round") /* into its store, or out of it; never called alone */                        \
    X(WAITING, "num_nodes_waiting()")                                                                                  \
    X(LOOK, "is_closed() and num_nodes_waiting()") /* the first, and then WAITING */                                   \
    X(CLOSE, "set_closed()")                                                                                           \
    X(STORE, "a call of the round's store") /* nothing is called: those before it have returned */                     \
    X(SHUTDOWN, "shutdown()")                                                                                          \
    X(FREE, "free()")

enum mu_user_handler_call {
#define X(name, text) MU_USER_HANDLER_##name,
    MU_USER_HANDLER_CALLS(X)
#undef X
};

const char *mu_user_handler_call_text(enum mu_user_handler_call value);

enum mu_user_handler_state {
    MU_USER_HANDLER_OUT,
    MU_USER_HANDLER_JOINING,  /* next_rendezvous() is under way */
    MU_USER_HANDLER_UNWANTED, /* the same, and nobody wants the round any more: LEFT follows */
    MU_USER_HANDLER_IN,
    MU_USER_HANDLER_DOWN, /* in a round, and the last question was answered with an error */
};

/* What was begun last, from the free on; in this order. */
enum mu_user_handler_end {
    MU_USER_HANDLER_SERVING,
    MU_USER_HANDLER_FREEING,
    MU_USER_HANDLER_ENDING_STORE,
    MU_USER_HANDLER_ENDING_JOB,
    MU_USER_HANDLER_ENDING_HANDLER,
    MU_USER_HANDLER_OVER, /* END follows, from the loop */
    MU_USER_HANDLER_ENDED,
};

enum mu_user_handler_event_type {
    MU_USER_HANDLER_ON_JOIN,
    MU_USER_HANDLER_ON_LEAVE,
    MU_USER_HANDLER_ON_CLOSE,
    MU_USER_HANDLER_ON_LOOK,
    MU_USER_HANDLER_ON_FREE,     /* nothing is told any more */
    MU_USER_HANDLER_ON_RETURNED, /* call, result */
    MU_USER_HANDLER_ON_TIME,
    MU_USER_HANDLER_ON_TURN, /* from the loop, as long as mu_user_handler_wants_turn() */
};

struct mu_user_handler_result {   /* of a call */
    struct muster_error error;    /* code 0: none */
    struct muster_rdzv_info info; /* NEXT */
    bool built;                   /* NEXT: the address was not the handler's: it was put into the store */
    bool has_closed;              /* LOOK: is_closed() has answered; an error is num_nodes_waiting()'s */
    bool closed;                  /* LOOK */
    int64_t count;                /* LOOK, WAITING */
};
#define MU_USER_HANDLER_NO_RESULT ((struct mu_user_handler_result){ .info = { .rank = -1, .round = -1 } })

struct mu_user_handler_event { /* borrows what it points to */
    enum mu_user_handler_event_type type;
    uint64_t now_ms;
    enum mu_user_handler_call call;
    const struct mu_user_handler_result *result;
    bool begun; /* in every event: the call on the thread; else it waits behind one of the store */
};

/* In this order: a tell may lead to the next step. */
enum mu_user_handler_effect_type {
    MU_USER_HANDLER_DO_TAKE_STORE, /* store: it is the agent's to use */
    MU_USER_HANDLER_DO_END_ROUND,  /* its store is not ours to use from here on */
    MU_USER_HANDLER_DO_CALL,       /* call; RETURNED follows */
    MU_USER_HANDLER_DO_BESIDE,     /* call, from another thread, while another one is under way; RETURNED follows */
    MU_USER_HANDLER_DO_SAY_SLOW,   /* call: it has not returned, and another one waits for it */
    MU_USER_HANDLER_DO_SAY_FAILED, /* call, error: nothing else comes of it */
    MU_USER_HANDLER_DO_ABANDON,    /* call: it has not returned in time. END follows */
    MU_USER_HANDLER_DO_END,        /* nothing is wanted any more, and nothing follows */
    MU_USER_HANDLER_DO_TELL,       /* tell, which borrows what has come with the event */
};

struct mu_user_handler_effect {
    enum mu_user_handler_effect_type type;
    enum mu_user_handler_call call;
    struct muster_store *store; /* NULL: the round has none */
    struct muster_rdzv_event tell;
    const struct muster_error *error; /* the event's */
};

#define MU_USER_HANDLER_EFFECTS_MAX 4

struct mu_user_handler_effects {
    struct mu_user_handler_effect items[MU_USER_HANDLER_EFFECTS_MAX];
    unsigned count;
};

struct mu_user_handler {
    uint64_t look_ms, end_ms;
    bool owned;        /* free() is ours to call */
    bool shares_store; /* what use_agent_store() says */
    enum mu_user_handler_state state;
    enum mu_user_handler_call calling; /* on the thread */
    enum { MU_USER_HANDLER_UP, MU_USER_HANDLER_SHUTTING, MU_USER_HANDLER_SHUT } shutdown;
    bool wants_join, wants_close, wants_look; /* asked for, and not called yet; all three may be */
    bool left;                                /* LEFT is to be told, before a join begins */
    enum mu_user_handler_end end;
    int64_t round;                   /* that was wanted last, as the handler counts them; -1: none */
    bool agent_store;                /* the workers of it may use the agent's; the same after the round */
    uint64_t next_look_ms, pause_ms; /* UINT64_MAX: not to be asked */
    uint64_t slow_at_ms;             /* UINT64_MAX: nothing waits for the call that is under way, or it was named */
    uint64_t end_at_ms;              /* UINT64_MAX: nothing has to return */
};

/* Both times above 0. */
void mu_user_handler_init(struct mu_user_handler *b, uint64_t look_ms, uint64_t end_ms, bool owned, bool shares_store);
/* Same state, same event, same effects, always. Cannot fail. `out` is overwritten. */
void mu_user_handler_step(struct mu_user_handler *b, const struct mu_user_handler_event *event,
                          struct mu_user_handler_effects *out);
uint64_t mu_user_handler_deadline_ms(const struct mu_user_handler *b); /* when TIME is wanted; UINT64_MAX: never */
bool mu_user_handler_wants_turn(const struct mu_user_handler *b);

#define MU_USER_HANDLER_WARNING_MAX 1280
/* The text of SAY_SLOW, SAY_FAILED or ABANDON, of the handler `backend`. Returns `text`. */
const char *mu_user_handler_warning(const struct mu_user_handler *b, const char *backend,
                                    const struct mu_user_handler_effect *effect,
                                    char text[static MU_USER_HANDLER_WARNING_MAX]);

/* ---- Requests to the store of the round ---- */

/* `store`: the round's, NULL: there is none. `under_way`: how many requests are. */
int mu_user_handler_check_request(const struct muster_store *store, size_t under_way, struct muster_error *reterr);
/* What this key is called there: the store is the round's, so its keys have no prefix, as with PyTorch's agents. */
struct muster_slice mu_user_handler_key(const char *run_id, struct muster_slice key);

#define MU_USER_HANDLER_ROUND_OVER "the round is over" /* why a request is canceled */

/* ---- What comes back from the user's code ---- */

/* What has to be called for `call` after `last`, which has returned rc; at first NOTHING is the last. NOTHING: *result,
 * with its error, is that of the call. */
enum mu_user_handler_call mu_user_handler_then(enum mu_user_handler_call call, enum mu_user_handler_call last, int rc,
                                               struct mu_user_handler_result *result);

int mu_user_handler_check_run_id(const char *backend, const char *run_id, struct muster_error *reterr);

#endif
