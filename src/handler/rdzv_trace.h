/* What a rendezvous does, told as PyTorch tells it: the same operation, state and message, so that a reader of both
 * launchers' events finds the same story. Each step is an event for the record and, with the same words, a line of the
 * log at debug level. While nobody wants either, nothing is put together. Any thread. */
#ifndef MU_HANDLER_RDZV_TRACE_H
#define MU_HANDLER_RDZV_TRACE_H

#include "base/log.h"
#include "handler/handler.h"
#include "handler/talk.h"
#include "rdzv/fold.h"
#include "rdzv/rdzv.h"

#define MU_RDZV_TRACE_NODES_MAX 16 /* named in a text; of the others it says how many there are */
#define MU_RDZV_TRACE_TEXT_MAX 2048

/* PyTorch's operations, as they stand in its events. It has none for leaving. */
#define MU_RDZV_TRACE_HANDLER "dynamic_rendezvous.py:DynamicRendezvousHandler."
#define MU_RDZV_TRACE_EXECUTOR "dynamic_rendezvous.py:_DistributedRendezvousOpExecutor."
#define MU_RDZV_TRACE_HOLDER "dynamic_rendezvous.py:_BackendRendezvousStateHolder."
#define MU_RDZV_TRACE_C10D "c10d_rendezvous_backend.py:"

/* Name, operation, state. */
#define MU_STORIES(X)                                                                                                  \
    X(HOSTS, MU_RDZV_TRACE_C10D "_create_tcp_store", INIT)                                                             \
    X(ATTEMPTS, MU_RDZV_TRACE_HANDLER "next_rendezvous", RUNNING)                                                      \
    X(JOINED, MU_RDZV_TRACE_HANDLER "next_rendezvous", RUNNING) /* round, rank, world_size */                          \
    /* What is about to be written to the document; round: of the document before. */                                  \
    X(KEEPS_ALIVE, MU_RDZV_TRACE_EXECUTOR "_keep_alive", RUNNING)                                                      \
    X(ADDS_TO_PARTICIPANTS, MU_RDZV_TRACE_EXECUTOR "_add_to_participants", RUNNING)                                    \
    X(ADDS_TO_WAIT_LIST, MU_RDZV_TRACE_EXECUTOR "_add_to_wait_list", RUNNING)                                          \
    X(ADDS_TO_REDUNDANCY_LIST, MU_RDZV_TRACE_EXECUTOR "_add_to_redundancy_list", RUNNING)                              \
    X(REMOVES_FROM_PARTICIPANTS, MU_RDZV_TRACE_EXECUTOR "_remove_from_participants", RUNNING)                          \
    X(REMOVES_FROM_WAIT_LIST, MU_RDZV_TRACE_EXECUTOR "_remove_from_wait_list", RUNNING)                                \
    X(REMOVES_FROM_REDUNDANCY_LIST, MU_RDZV_TRACE_EXECUTOR "_remove_from_redundancy_list", RUNNING)                    \
    X(MARKS_COMPLETE, MU_RDZV_TRACE_EXECUTOR "_mark_rendezvous_complete", SUCCEEDED)                                   \
    X(MARKS_CLOSED, MU_RDZV_TRACE_EXECUTOR "_mark_rendezvous_closed", SUCCEEDED)                                       \
    /* What became of it. */                                                                                           \
    X(DEAD_REMOVED, MU_RDZV_TRACE_HOLDER "sync", RUNNING) /* nodes, with the write that succeeded */                   \
    X(SYNCED, MU_RDZV_TRACE_EXECUTOR "run", RUNNING)                                                                   \
    X(STALE, MU_RDZV_TRACE_EXECUTOR "run", RUNNING) /* somebody else's write came first */                             \
    X(BEAT, MU_RDZV_TRACE_HANDLER "_keep_alive", RUNNING)                                                              \
    X(CLOSED, MU_RDZV_TRACE_HANDLER "_close", SUCCEEDED)                                                               \
    X(LEFT, "muster:leave", RUNNING)                                                                                   \
    /* Failures; error. */                                                                                             \
    X(JOIN_FAILED, MU_RDZV_TRACE_HANDLER "next_rendezvous", FAILED)                                                    \
    X(IS_CLOSED_FAILED, MU_RDZV_TRACE_HANDLER "is_closed", FAILED)                                                     \
    X(SET_CLOSED_FAILED, MU_RDZV_TRACE_HANDLER "set_closed", FAILED)                                                   \
    X(NODES_WAITING_FAILED, MU_RDZV_TRACE_HANDLER "num_nodes_waiting", FAILED)                                         \
    X(SHUTDOWN_FAILED, MU_RDZV_TRACE_HANDLER "shutdown", FAILED)                                                       \
    X(BEAT_FAILED, MU_RDZV_TRACE_HANDLER "_keep_alive", FAILED)                                                        \
    X(SYNC_FAILED, MU_RDZV_TRACE_HOLDER "sync", FAILED) /* while joining: the store is asked again */                  \
    X(LEAVE_FAILED, "muster:leave", FAILED)                                                                            \
    X(CREATE_FAILED, "dynamic_rendezvous.py:create_handler", FAILED)                                                   \
    X(BACKEND_FAILED, MU_RDZV_TRACE_C10D "create_backend", FAILED)

enum mu_rdzv_trace_kind {
#define X(name, operation, state) MU_RDZV_TRACE_##name,
    MU_STORIES(X)
#undef X
};

struct mu_rdzv_trace { /* borrows */
    enum mu_rdzv_trace_kind kind;
    int64_t round, rank, world_size;
    const struct mu_node *nodes;
    size_t nodes_count;
    const struct muster_error *error;
};

struct mu_teller { /* who tells; borrows */
    const char *run_id;
    struct mu_node node; /* its name ends with a NUL; local_id -1: it has none yet */
};

/* One that has no place in a group yet: `local_addr`, or (NULL) this machine's name, which is put into `hostname`. */
struct mu_teller mu_teller_new(const char *run_id, const char *local_addr, int64_t local_id,
                               char hostname[static MU_HANDLER_NAME_MAX]);
struct mu_teller mu_teller_of(const char *run_id, const struct muster_node *node);
/* This node, which may not be known yet: NULL, or without a name. Then it is known by its host, as above. */
struct mu_teller mu_teller_of_self(const char *run_id, const struct muster_node *self,
                                   char hostname[static MU_HANDLER_NAME_MAX]);

/* The step that an effect of a conversation is; false: none. What a CLOSE was for is known to the one that asked for
 * it, so its failure is none. */
bool mu_rdzv_trace_of_talk(const struct mu_talk_effect *effect, bool has_back_end, bool is_member,
                           enum mu_rdzv_trace_kind *ret_kind);
/* The message. Returns `ret_text`. Pure. */
const char *mu_rdzv_trace_text(const struct mu_teller *who, const struct mu_rdzv_trace *story,
                               char ret_text[static MU_RDZV_TRACE_TEXT_MAX]);

/* For a machine with phases, at debug level: what it does now, when that has changed. At most BURST lines at once,
 * and S a second after that. Zeroed memory is ready for use. */
#define MU_RDZV_TRACE_PHASES_BURST 50
#define MU_RDZV_TRACE_PHASES_S 10

struct mu_rdzv_trace_phases {
    struct mu_log_limit limit;
    const char *last; /* one of the texts of the machine, which live for ever */
};

void mu_rdzv_trace_phase(struct mu_rdzv_trace_phases *phases, const char *run_id, const char *phase, uint64_t now_ms);

void mu_rdzv_trace_tell(const struct mu_teller *who, struct mu_rdzv_trace story);
/* This process hosts the store of a c10d rendezvous. */
void mu_rdzv_trace_hosts(struct mu_teller who);
/* There is no back end. */
void mu_rdzv_trace_not_found(const struct mu_teller *who, const struct muster_error *error);
/* Of the document machine: what a write is to do, and what became of it. */
void mu_rdzv_trace_planned(const struct mu_teller *who, struct mu_rdzv_deeds deeds, int64_t nodes_min);
void mu_rdzv_trace_synced(const struct mu_teller *who, const struct mu_rdzv_effect *effect,
                          struct mu_rdzv_nodes removed);
/* What only the fold machine tells: COMPLETED, LEADER. */
void mu_rdzv_trace_fold(const struct mu_teller *who, const struct mu_fold_effect *effect);
/* An earlier process of this host is gone, and still listed. */
void mu_rdzv_trace_ghost(const struct mu_teller *who, const struct mu_node *ghost, uint64_t death_age_ms);
/* What a machine tells that goes to the log alone; of all else there is no line. */
void mu_rdzv_trace_news(const struct mu_teller *who, const struct mu_part_news *news);
/* No handler could be made. Fills in *reterr, unless it is NULL, and returns the error's code. */
int mu_rdzv_trace_create_failed(const char *run_id, const char *local_addr, const struct muster_error *error,
                                struct muster_error *reterr);

#endif
