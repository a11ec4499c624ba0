/* An agent's part in its job: the machines of policy.h, ranks.h, completion.h and key_gc.h, and what goes from one to
 * another. In a round that was joined with a seat, its leader does what the last three do: led.h is in their place.
 * Pure: what happened comes in, what is to be done goes out, one thing after the other.
 *
 *   mu_job_step(job, event);                       from the loop, never while effects are being carried out
 *   while (mu_job_next(job, now_ms, &effect))      ... until there are no more
 *       carry it out;                              which may mu_job_tell() and mu_job_refuse(): heard in turn
 *
 * What comes from the rendezvous goes to
 *   policy                   JOINED, LEFT, FAILED of JOIN, LEAVE and the membership
 *   completion, or led       PEERS_LOST and WAITING, of which it tells the policy what is really so; FAILED of CLOSE;
 *                            REPORTED
 *   the same, then policy    REMOVED, CLOSED, BACKEND_DOWN, BACKEND_UP
 * All effects of one step of a machine are carried out before the next one is taken; what a machine has to say to the
 * policy meanwhile waits. */
#ifndef MU_AGENT_JOB_H
#define MU_AGENT_JOB_H

#include "agent/key_gc.h"
#include "agent/led.h"
#include "agent/policy.h"

#define MU_JOB_QUEUE_MAX 16                  /* that wait to be told; each step brings few */
#define MU_JOB_REFUSED_MAX (4 * MU_ASKS_MAX) /* asks that could not be made, of all machines */

enum mu_job_who { MU_JOB_POLICY, MU_JOB_RANKS, MU_JOB_COMPLETION, MU_JOB_KEY_GC };

enum mu_job_event_type {
    MU_JOB_ON_RDZV,   /* rdzv: what the handler tells; round, joined, nodes, count, error */
    MU_JOB_ON_ANSWER, /* who, answer: of ASK */
    MU_JOB_ON_TOLD,   /* told: for the policy, as it is */
    MU_JOB_ON_TIME,
};

struct mu_job_event { /* borrows what it points to, until mu_job_next() has returned false */
    enum mu_job_event_type type;
    enum muster_rdzv_event_type rdzv;
    int64_t round;
    const struct mu_round *joined; /* without tag and last, which the job knows */
    const struct mu_node
        *nodes; /* JOINED: the members by rank; PEERS_LOST, WAITING: who. NULL: there was no memory for them */
    enum muster_rdzv_request request; /* FAILED */
    size_t nodes_count;               /* JOINED, WAITING: 0, if they are not known */
    int64_t count;                    /* WAITING: how many; PEERS_LOST: the last so many wait for the next round;
                                       * BACKEND_DOWN: members that are lost with it */
    /* PEERS_LOST: how the others were lost, in a led round a whole sentence; REMOVED: why we are. NULL: not known. */
    const char *cause;
    const struct mu_part_seat *seat;       /* JOINED; NULL: the agents agree on their ranks themselves */
    const struct mu_part_verdict *verdict; /* CLOSED, FAILED; NULL: not known */
    const struct muster_error *error;
    uint64_t away_ms, give_up_in_ms; /* BACKEND_DOWN: as in struct mu_policy_event */
    enum mu_job_who who;
    struct mu_answer answer;
    struct mu_policy_event told;
};

enum mu_job_effect_type {
    MU_JOB_DO_ASK,    /* who, ask */
    MU_JOB_DO_CLOSE,  /* the handler's close() */
    MU_JOB_DO_REPORT, /* the handler's report(): report */
    MU_JOB_DO_WARN,   /* text: for the log */
    MU_JOB_DO_POLICY, /* policy: one of its effects, none of those that are for the other machines */
};

struct mu_job_effect { /* borrows from the job, until mu_job_next() is called again */
    enum mu_job_effect_type type;
    enum mu_job_who who;
    struct mu_ask ask;
    const char *text;
    const struct mu_part_report *report;
    const struct mu_policy_effect *policy;
};

struct mu_job_config {
    struct mu_policy_config policy;
    struct mu_ranks_config ranks;
    struct mu_completion_config completion;
    /* For tests and debug lines: every step of the policy, before its effects are carried out. NULL: nobody looks. */
    void (*on_step)(void *ctx, const struct mu_policy_event *event, enum mu_policy_phase before,
                    const struct mu_policy_effects *effects);
    void *ctx;
};

struct mu_job; /* opaque */

int mu_job_new(const struct mu_job_config *config, struct mu_job **ret_job, struct muster_error *reterr);
void mu_job_free(struct mu_job *job);

void mu_job_step(struct mu_job *job, const struct mu_job_event *event);
bool mu_job_next(struct mu_job *job, uint64_t now_ms, struct mu_job_effect *ret_effect);

/* While an effect is being carried out; copied. */
void mu_job_tell(struct mu_job *job, const struct mu_policy_event *event);
void mu_job_refuse(struct mu_job *job, enum mu_job_who who, uint64_t id, const struct muster_error *error);

uint64_t mu_job_deadline_ms(const struct mu_job *job); /* when TIME is wanted; UINT64_MAX: never */
/* As mu_completion_will(). In a led round there is none: a lease ends with its node. */
bool mu_job_will(const struct mu_job *job, char *key, size_t key_room, char text[static MU_VANISHED_NOTE_MAX]);
bool mu_job_is_busy(const struct mu_job *job); /* effects are being carried out */
const struct mu_policy *mu_job_policy(const struct mu_job *job);
const struct mu_ranks_result *mu_job_assigned(const struct mu_job *job); /* world_size 0: no ranks were yet */

#endif
