/* Events of an agent and its workers, in the form of PyTorch 2.x: one line of JSON each, same fields, same order. They
 * go to the sink of muster_events_set_sink(). */
#ifndef MU_EVENTS_AGENT_EVENT_H
#define MU_EVENTS_AGENT_EVENT_H

#include "base/buf.h"
#include "muster.h"

/* A state is the last word of its event's name and stands in its fields. */
#define MU_AGENT_EVENTS(X)                                                                                             \
    X(RENDEZVOUS, "RENDEZVOUS")                   /* agent: it is over, well or not; duration_ms */                    \
    X(ASSIGN_WORKER_RANKS, "ASSIGN_WORKER_RANKS") /* agent: the same */                                                \
    X(START, "START")                             /* worker: it was started */                                         \
    X(SUCCEEDED, "SUCCEEDED")                     /* worker; agent: it ran, whatever became of its workers */          \
    X(FAILED, "FAILED")         /* worker: exit code, pid, raw_error; agent: it ended with an error, raw_error */      \
    X(TERMINATED, "TERMINATED") /* worker without a failure of its own, of a group that failed */

enum mu_agent_event_state {
#define X(name, text) MU_EVENT_##name,
    MU_AGENT_EVENTS(X)
#undef X
};

const char *mu_agent_event_state_name(enum mu_agent_event_state value); /* "START" */

struct mu_event_agent { /* what all events of an agent say; borrows */
    const char *run_id, *role, *hostname, *rdzv_backend;
    const char *entry_point;              /* base name of the program */
    int64_t group_rank, group_world_size; /* -1: not known before the first rendezvous */
    int64_t total_run_time_s;             /* 0 until the run is over */
    int64_t agent_restarts;               /* restarts used */
};

struct mu_event_worker {
    int64_t rank, local_rank, role_rank, role_world_size;
    const char *id;  /* its pid, or what a driver calls it */
    int64_t pid;     /* 0: a driver's, which has none */
    bool has_failed; /* exit_code is told, and the pid once more */
    int exit_code;
};

struct mu_agent_event { /* borrows */
    enum mu_agent_event_state state;
    const struct mu_event_agent *agent;
    const struct mu_event_worker *worker; /* NULL: an event of the agent's */
    const char *raw_error;                /* NULL: none */
    double duration_ms;                   /* negative: none */
    int64_t timestamp_ms;                 /* since 1970; 0: mu_agent_event_record() takes the present */
};

struct mu_timer_event { /* borrows; of the watchdog */
    const char *name;   /* "watchdog started", "watchdog stopped", "timer expired", "kill worker process" */
    const struct mu_event_agent *agent;
    bool has_timer; /* the rest is set */
    int64_t pid;
    const char *scope;
    double expiration_s;
    int signal;
    int64_t timestamp_ms; /* as above */
};

/* The line, without its end. Append; 0, MUSTER_ENOMEM or MUSTER_ELIMIT. Pure. */
int mu_agent_event_write(const struct mu_agent_event *event, struct mu_buf *out);
int mu_timer_event_write(const struct mu_timer_event *event, struct mu_buf *out);
/* A record of the rendezvous in PyTorch's form; its `name` and texts are ours. */
int mu_rdzv_event_write(const struct muster_event_record *record, struct mu_buf *out);

/* To the sink, if there is one. Without memory for it the event is lost. */
void mu_agent_event_record(const struct mu_agent_event *event);
void mu_timer_event_record(const struct mu_timer_event *event);

#endif
