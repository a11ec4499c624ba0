/* The parts of an agent on a loop, for the files that make one:
 *
 *   agent_uv.c          its life: start, what its machines want, what the rendezvous tells, the end
 *   agent_workers_uv.c  the workers: their start, their output, how they end, their stop
 *   agent_store_uv.c    requests to the group's store, and the last will
 *   agent_records_uv.c  what is recorded and logged of all that */
#ifndef MU_AGENT_AGENT_PARTS_UV_H
#define MU_AGENT_AGENT_PARTS_UV_H

#include "agent/agent_uv.h"
#include "agent/job.h"
#include "agent/oom.h"
#include "agent/timer_uv.h"
#include "events/agent_event.h"
#include "handler/handler.h"
#include "kv/kv.h"
#include "kv/later_uv.h"
#include "proc/keeper.h"
#include "proc/signals_uv.h"

struct mu_reading; /* of what a worker left in files */

/* A worker of the last attempt. */
struct mu_worker {
    pid_t pid;                  /* 0: a driver's */
    struct muster_worker_id id; /* the same, or what a driver calls it */
    int64_t rank, role_rank;
    bool started, exited, failed;
    int code;
    int64_t noticed_s;
    unsigned order; /* of its death; workers that were stopped come last, by local rank, as in PyTorch */
    bool hung;      /* which was noticed before, and counts instead */
    bool out_of_memory;
    char *error_path;
    struct mu_errfile error;
    struct mu_buf tail;
    struct mu_reading *reading; /* until it is through, its end is not told; NULL: none */
    struct mu_buf value;        /* what a function gave back */
};

struct mu_agent {
    uv_loop_t *loop;
    struct mu_agent_config config;
    char *run_id, *backend, *role, *entry_point, *timer_file, *node;
    char *start_method;      /* NULL: workers are programs */
    char *event_log_handler; /* NULL: not known */
    char hostname[256];
    struct muster_handler *handler;
    struct muster_rdzv *made; /* goes after the handler; NULL: none */
    struct mu_job *job;
    struct mu_kv *kv;       /* to the group's store; NULL: not opened yet */
    struct mu_kv *users_kv; /* the same for the library's user, whose waits must not hold up ours */
    char kv_host[MU_RDZV_HOST_MAX];
    uint16_t kv_port;
    size_t waits; /* gets that are under way in it */
    uv_timer_t timer;
    struct mu_later ending; /* the end is told from the loop */
    uv_poll_t keeper;
    bool has_keeper;
    struct mu_will *will;             /* what the keeper sends if we are killed; NULL: it sends nothing */
    char will_key[MU_WILL_BYTES_MAX]; /* that it sets; empty: to be made, if there is to be one */
    struct mu_watch *signals, *stop_signal;
    /* The round. */
    struct muster_rdzv_info info;
    bool old_dialect;
    bool meets_alone; /* the back end has no address for the workers: worker 0 listens here */
    /* The workers. */
    struct mu_group *group;
    struct mu_worker *workers; /* of the last attempt */
    unsigned deaths;
    struct mu_disk *disk; /* NULL: none were needed so far */
    uv_timer_t read_timer;
    size_t readings;   /* that are under way */
    bool has_stopped;  /* all workers are stopped, and it is told when what they left is read ... */
    size_t left_count; /* ... with what is left of them */
    char *left;
    bool opening; /* the output of an attempt is being opened; its workers are started then */
    struct mu_logs *logs;
    size_t logs_open; /* attempts whose output is still being read */
    struct mu_watchdog *watchdog;
    struct mu_oom oom;
    bool stopping; /* what dies now dies of us */
    bool said_where;
    bool traits;
    /* The end. */
    uint64_t start_ms;
    size_t files; /* reserved */
    bool ended, freeing;
    struct mu_policy_outcome outcome;
    size_t handles;
    void (*done)(void *ctx);
    void *done_ctx;
};

/* ---- agent_uv.c ---- */

/* Tells the job what happened, does what it wants then, and renews last will and timer. From the loop. */
void mu_agent_feed(struct mu_agent *agent, struct mu_job_event event);
/* The same for an event of the policy. */
void mu_agent_tell(struct mu_agent *agent, struct mu_policy_event event);
/* The same for an event that comes at once of an effect: it is told when the effect is done. */
void mu_agent_tell_later(struct mu_agent *agent, struct mu_policy_event event);
/* The loop has closed this many of the agent's handles; after mu_agent_free() the last one frees the agent. */
void mu_agent_handles_gone(struct mu_agent *agent, size_t handles);
/* One less, as a callback. */
void mu_agent_on_part_closed(void *ctx);

/* ---- agent_workers_uv.c ---- */

/* The group of processes. Only for agents without a driver. */
int mu_agent_make_group(struct mu_agent *agent, struct muster_error *reterr);
/* `regroup_ms`: since the group before it ended; -1: it is the first. */
void mu_agent_start_workers(struct mu_agent *agent, int64_t regroup_ms);
void mu_agent_stop_workers(struct mu_agent *agent, int signal, uint64_t grace_ms, bool is_restart);
struct mu_agent_worker mu_agent_about_worker(const struct mu_agent *a, uint32_t local_rank);
/* At the end: everything that the loop has of them is closed. */
void mu_agent_close_workers(struct mu_agent *agent);
void mu_agent_forget_workers(struct mu_agent *agent);

/* ---- agent_store_uv.c ---- */

/* Whether the back end has a store for agents. */
bool mu_agent_has_store(const struct mu_agent *agent);
/* A machine's request to it. One that cannot be made is answered with the reason. */
void mu_agent_submit(struct mu_agent *agent, enum mu_job_who who, const struct mu_ask *ask);
/* A new round: all waits belong to an earlier one, and may never end. */
void mu_agent_end_waits(struct mu_agent *agent);
void mu_agent_close_stores(struct mu_agent *agent);
/* The last will is derived anew whenever something has happened, so that it is never forgotten. */
void mu_agent_renew_will(struct mu_agent *agent);

/* ---- agent_records_uv.c ---- */

struct mu_event_agent mu_agent_event_of(const struct mu_agent *agent);
struct mu_failure mu_agent_failure_of(const struct mu_worker *worker, int64_t local_rank);
void mu_agent_record(struct mu_agent *agent, const struct mu_policy_effect *effect);
void mu_agent_record_failed_shutdown(const struct mu_agent *agent, const struct muster_rdzv_event *event);
void mu_agent_say_formed(const struct mu_agent *agent, int64_t regroup_ms);
void mu_agent_say_members(const struct muster_rdzv_event *event);

#endif
