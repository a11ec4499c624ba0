/* The client side of one connection: calls in, request bytes out; reply bytes in, finished calls out. Pure.
 *
 * Requests are pipelined, except that nothing may follow a WAIT (or BARRIER) until its answer has come: the one byte it
 * sends, whenever that is, could not be told from the beginning of another answer. To do other things while waiting,
 * open a second connection.
 *
 * A call may take several requests (get is WAIT, then GET). A call that runs out of time is finished at once; what the
 * server still sends for it is recognised and dropped, a pending WAIT is cancelled, and the connection stays usable. A
 * 1.13 server cannot cancel: there the connection has to be replaced (`renew`). */
#ifndef MU_STORE_CALLS_H
#define MU_STORE_CALLS_H

#include "base/buf.h"
#include "base/list.h"
#include "store/codec.h"

#define MU_CALL_KINDS(X)                                                                                               \
    X(SET, "set")                                                                                                      \
    X(GET, "get")                                                                                                      \
    X(ADD, "add")                                                                                                      \
    X(COMPARE_SET, "compare_set")                                                                                      \
    X(CHECK, "check")                                                                                                  \
    X(WAIT, "wait")                                                                                                    \
    X(DELETE_KEY, "delete_key")                                                                                        \
    X(NUM_KEYS, "num_keys")                                                                                            \
    X(APPEND, "append")                                                                                                \
    X(MULTI_GET, "multi_get")                                                                                          \
    X(MULTI_SET, "multi_set")                                                                                          \
    X(QUEUE_PUSH, "queue_push")                                                                                        \
    X(QUEUE_POP, "queue_pop")                                                                                          \
    X(QUEUE_LEN, "queue_len")                                                                                          \
    X(LIST_KEYS, "list_keys")                                                                                          \
    X(BARRIER, "barrier")                                                                                              \
    X(PING, "ping")

enum mu_call_kind {
#define X(name, text) MU_CALL_##name,
    MU_CALL_KINDS(X)
#undef X
};

struct mu_call;
typedef void mu_call_done(struct mu_call *call);

/* The memory is the caller's and, like everything the first part points to, must stay until `done`. */
struct mu_call {
    /* Asked for. */
    enum mu_call_kind kind;
    struct muster_slice key, value, desired; /* compare_set: `value` is the expected one */
    const struct muster_slice *keys, *values;
    size_t count;   /* of keys, and of values for multi_set */
    int64_t number; /* add: delta; barrier: world size */
    bool block;     /* queue_pop */
    bool raw_key;   /* the key is sent as it is, without "/" in front */
    mu_call_done *done;
    void *ctx;
    /* Answered. */
    int rc;
    struct muster_error error;  /* when rc < 0 */
    int64_t result;             /* add, num_keys, queue_len; check, delete_key: 0 or 1 */
    struct muster_bytes bytes;  /* get, compare_set, queue_pop: the receiver's to free */
    struct muster_values found; /* multi_get, list_keys: likewise */
    /* Under way. */
    struct mu_list link;
    unsigned step;
    uint64_t start_ms, deadline_ms;
    uint64_t sent_at; /* calls without an answer: done when that many bytes have been written */
    size_t found_room;
};

struct mu_slot;

struct mu_calls {
    enum mu_dialect dialect; /* L0, L1 or V once the connection is there */
    bool raw_keys;
    char peer[80];                         /* who is at the other end, for errors; may be empty */
    unsigned features_known, features_had; /* of enum mu_feature, greeting.h */
    bool open;                             /* there is a connection */
    struct mu_list waiting;                /* calls with a request still to be sent */
    struct mu_list sending;                /* calls without an answer whose bytes are not all written */
    struct mu_list slots;                  /* of struct mu_slot: answers to come, in order */
    struct mu_slot *parked;                /* the last slot, when it is of a WAIT */
    struct mu_list finished;               /* effect: calls to hand to their `done` */
    struct mu_buf out;                     /* effect: bytes to write */
    uint64_t written, queued;              /* bytes of this connection so far */
    struct mu_buf in;                      /* the start of an answer whose rest has not come yet */
    unsigned probe;                        /* effect: find out whether the server has this feature; 0: nothing */
    bool renew;                            /* effect: replace the connection */
    struct muster_error lost;              /* why there will be no connection any more; code 0 while there may be */
};

void mu_calls_init(struct mu_calls *calls, bool raw_keys);
void mu_calls_done(struct mu_calls *calls); /* every call must be finished and taken */

void mu_calls_name_peer(struct mu_calls *calls, const char *peer); /* copied */

/* Events. Each may leave effects behind: out, finished, probe, renew. */
void mu_calls_submit(struct mu_calls *calls, struct mu_call *call, uint64_t timeout_ms, uint64_t now_ms);
void mu_calls_opened(struct mu_calls *calls, enum mu_dialect dialect); /* a (new) connection of that dialect */
void mu_calls_read(struct mu_calls *calls, struct mu_slice bytes);     /* may set `lost`: then drop the connection */
void mu_calls_wrote(struct mu_calls *calls, size_t bytes);             /* the connection took that many bytes of
                                                                        * `out` */
void mu_calls_probed(struct mu_calls *calls, unsigned feature, bool had);
/* It could not be found out: fails the calls that need it; the next one asks again. */
void mu_calls_probe_failed(struct mu_calls *calls, unsigned feature, const char *why);
void mu_calls_pass_time(struct mu_calls *calls, uint64_t now_ms);
/* Ends this call now, as at its deadline. It has not been handed to its `done` yet. */
void mu_calls_expire(struct mu_calls *calls, struct mu_call *call, uint64_t now_ms);
/* The connection is gone for good: fails every call there is and every later one with this cause. */
void mu_calls_lose(struct mu_calls *calls, const struct muster_error *why);

/* It may take so long in all, if that is more. It has not been handed to its `done` yet. */
void mu_call_extend(struct mu_call *call, uint64_t timeout_ms);

uint64_t mu_calls_deadline_ms(const struct mu_calls *calls); /* when time must pass next; UINT64_MAX: never */
struct mu_call *mu_calls_pop_finished(struct mu_calls *calls);

const char *mu_call_name(enum mu_call_kind value);

/* All that a new connection has to send to set one key, in one piece, as this connection would:
 * the greeting and the request. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_calls_lone_set(const struct mu_calls *calls, struct mu_slice key, struct mu_slice value,
                      struct mu_buf *ret_bytes);

#endif
