/* An agent on a loop: performs what its pure machines want (policy.h, ranks.h, completion.h), with a rendezvous
 * handler, a group of worker processes and their output. One for a loop; from start to on_end. */
#ifndef MU_AGENT_AGENT_UV_H
#define MU_AGENT_AGENT_UV_H

#include "agent/errfile.h"
#include "agent/policy.h"
#include "agent/report.h"
#include "agent/worker_env.h"
#include "handler/boot.h"
#include "logs/logs_uv.h"
#include "proc/proc_uv.h"

#include <uv.h>

struct mu_agent;

/* What a worker that has succeeded gives back: nothing, if it is a command. */
struct mu_agent_value {
    int64_t rank, local_rank;
    struct mu_slice value;
};

/* How it ended. Borrowed. */
struct mu_agent_result {
    const struct mu_policy_outcome *outcome;
    struct mu_failure *failures; /* of the last attempt, those that came first in front */
    size_t count;
    struct mu_agent_value *values; /* of those that are not among the failures; by rank */
    size_t values_count;
    int64_t run_time_ms;
};

/* Workers of another kind than processes. Called from the loop. */
struct mu_agent_driver {
    /* All of them or none. Their names go to `ret_ids`, which are zero before. */
    int (*start)(void *ctx, const struct mu_agent_worker *workers, size_t count, struct muster_worker_id *ret_ids,
                 struct muster_error *reterr);
    /* Over when the end of each was told: mu_agent_worker_ended(). */
    void (*stop)(void *ctx, const struct muster_worker_stop *how);
};

struct mu_agent_config { /* texts are copied; what else is pointed to must stay */
    struct muster_rdzv_registry *registry;
    const struct muster_rdzv_params *params;
    struct muster_rdzv *rdzv; /* instead of what registry and params->backend lead to; stays the caller's. NULL: none */
    uint64_t monitor_ms;      /* how often a blocking handler is asked for news; 0: as PyTorch's agent does */
    const char *role, *entry_point;
    const char *start_method;      /* of workers that are functions, in PyTorch's words; NULL: they are programs */
    const char *event_log_handler; /* its name, for the log; NULL: not known */
    struct mu_boot_master master;  /* comes before what the rendezvous has found */
    int64_t local_world_size, max_restarts;
    uint64_t grace_ms;   /* what workers have to end, whatever they are stopped for */
    uint64_t barrier_ms; /* UINT64_MAX: no limit */
    uint64_t hang_ms;    /* a worker that hangs in the kernel for this long makes the group UNHEALTHY; 0: not checked */
    bool identical;
    const struct mu_signals *signals;
    const struct mu_startup *startup; /* NULL: as we are */
    int keeper_fd;                    /* -1: none */
    /* Output. */
    struct mu_logtree *tree;
    struct mu_logs_config logs; /* tree, counts, workers and ranks are filled in here */
    /* The file timer: NULL, or where its FIFO is. */
    const char *timer_file;
    const struct mu_agent_driver *driver; /* NULL: processes. Without output, timer, prepare and release otherwise */
    /* Fills in argv, envp and all else that a worker is started with, except its io. They stay the caller's, and
     * `release` gives them back. */
    int (*prepare)(void *ctx, const struct mu_agent_worker *worker, struct mu_spawn *ret_spec,
                   struct muster_error *reterr);
    void (*release)(void *ctx, struct mu_spawn *spec);
    /* The group's state. FAILED also while what is left of a failed group is being stopped. May be NULL. */
    void (*on_state)(void *ctx, enum mu_group_state state);
    void (*on_join)(void *ctx); /* the handler is asked to join: a wait begins. May be NULL */
    void (*on_rdzv)(void *ctx, const struct muster_rdzv_event *event); /* every event of it; may be NULL */
    void (*on_end)(void *ctx, const struct mu_agent_result *result);   /* once; then mu_agent_free() */
    void *ctx;
};

/* Whether this process may have the descriptors for the agent and for its workers' output: MUSTER_ESYSTEM if not. */
int mu_agent_check_files(int64_t local_world_size, const struct mu_logs_config *logs, struct muster_error *reterr);

/* Keeps the descriptors it needs from the connections of store servers, until it is freed. */
int mu_agent_start(uv_loop_t *loop, const struct mu_agent_config *config, struct mu_agent **ret_agent,
                   struct muster_error *reterr);
/* As if that signal had come. */
void mu_agent_signal(struct mu_agent *agent, int signal);
/* For drivers: from the loop, never inside of start and stop. Once for each worker. */
void mu_agent_worker_ended(struct mu_agent *agent, const struct mu_exit *exit);
/* For drivers, likewise: a worker that runs, but is stuck. */
void mu_agent_worker_unhealthy(struct mu_agent *agent, uint32_t local_rank, const char *text);

/* For the library's user: the prefix of the round's keys in the group's store; false: there is no round. The room is
 * that of mu_round_stock_prefix(). */
bool mu_agent_round_prefix(const struct mu_agent *agent, char *text, size_t room);
/* A request to that store, from the loop; one that cannot be made is done at once. Those of a round are done when the
 * next is joined. */
struct mu_kv_request;
void mu_agent_ask(struct mu_agent *agent, struct mu_kv_request *request);

/* For snapshots: how things are. */
struct mu_agent_view {
    enum mu_group_state state;
    int64_t round; /* -1: none */
    int64_t remaining_restarts;
    struct mu_agent_worker worker; /* of this local rank; world_size 0: no ranks were assigned yet */
    struct muster_worker_id id;    /* its pid, or what the driver calls it; 0 and empty: it was not started */
};

void mu_agent_look(const struct mu_agent *agent, uint32_t local_rank, struct mu_agent_view *ret_view);

/* After on_end, never inside of it. `done` when everything is released. */
void mu_agent_free(struct mu_agent *agent, void (*done)(void *ctx), void *ctx);

#endif
