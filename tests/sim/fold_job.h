/* The program's own agents as owners of the fold simulator's nodes: muster-sim-fold-job.
 *
 *   fold_handler.c  the handler, as handler/etcd_v3_uv.c wires it: talk.h, boot.h and meeting.h around the machine
 *   fold_agent.c    the agent: job.h with all its machines, workers, and what must hold of them */
#ifndef FOLD_JOB_H
#define FOLD_JOB_H

#include "agent/job.h"
#include "fold_sim.h"
#include "handler/boot.h"
#include "handler/meeting.h"
#include "handler/talk.h"

enum { WORKERS_MAX = 3 };

struct handler {
    struct mu_talk talk;
    bool takes_turn;
    struct mu_boot boot;
    struct mu_boot_inbox inbox;
    uint64_t boot_began_us;
    struct mu_meeting meeting;
    char own_addr[24];
    unsigned store_port, agents_port; /* 0: it does not listen */
    uint64_t timer_us;
};

struct worker {
    bool alive, ignores; /* signals, but for the one that nobody can */
};

struct agent {
    struct handler handler;
    struct mu_job *job;
    uint64_t timer_us;
    bool ended;
    bool personal;    /* it has a reason of its own to end */
    bool join_failed; /* for another reason than that the job is closed */
    bool succeeded;   /* all of its workers have, in one round */
    struct worker workers[WORKERS_MAX];
    size_t running;
    uint64_t generation; /* of its workers: counts starts */
    bool stopping, stopped_told;
};

/* fold_agent.c: calls later, unless the process is gone by then; not while it is paused. */
typedef void later_fn(struct node *node, uint64_t number);
void later(struct node *node, uint64_t in_us, later_fn *fn, uint64_t number);
void agent_hear(struct node *node, const struct muster_rdzv_event *event);

/* fold_handler.c */
void handler_new(struct node *node);
void handler_free(struct node *node);
void handler_ask(struct node *node, enum mu_part_event_type asked, const struct mu_part_report *report);
void handler_told(struct node *node, const struct mu_part_news *news); /* by the machine */
bool handler_takes(struct node *node, const struct mu_fold_event *event);
void handler_heard(struct node *node);

#endif
