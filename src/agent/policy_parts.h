/* The insides of the policy: for the files policy*.c alone.
 *
 *   policy.c         what is heard, and which part acts on it
 *   policy_round.c   a round: joining, its workers, their failures, what follows when they have stopped
 *   policy_causes.c  what a failure costs, and what made a round end
 *   policy_ends.c    leaving, failing, and the last words */
#ifndef MU_AGENT_POLICY_PARTS_H
#define MU_AGENT_POLICY_PARTS_H

#include "agent/policy.h"
#include "base/arena.h"
#include "base/buf.h"
#include "proc/signals.h"
#include "rdzv/foreign.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#define REMOVED_WHY "the others had gone on without this node"
enum { TEXT_SHOWN_MAX = 400, LINES_MAX = 4 };

enum what { BUDGET_SET, VERDICT_LOOK, ROUND_LOOK, VERDICT_GET };

enum membership {
    NO_MEMBER,
    MAY_BE_MEMBER, /* JOIN was said */
    HAS_SAID_WHY,  /* ... and the others can read why we leave the round for good */
    IS_LEAVING,    /* LEAVE was said */
};

enum workers { NONE, STARTING, UP, STOPPING };

/* What follows when the workers are gone. */
enum fate {
    UNDECIDED,
    REJOIN,
    BUDGET, /* a worker has failed: the budget decides */
    ILL,    /* one hangs in the kernel: this node is not for the next round, the others go on */
    DONE,   /* they have succeeded */
    END,    /* policy->outcome */
};

enum charge { UNCHARGED, CHARGING, RESTARTS_LEFT, USED_UP, UNKNOWN /* the store was silent for too long */ };

struct mu_policy {
    struct mu_policy_effects *out; /* of this step ... */
    uint64_t now_ms;               /* ... and its time */

    struct mu_arena names; /* the next ones */
    char *job_prefix;
    const char *role, *node, *host;
    int64_t size, max_restarts;
    uint64_t grace_ms, store_ms, barrier_ms;

    enum mu_policy_phase phase;
    enum mu_group_state state;
    enum workers workers;
    enum fate fate;
    struct mu_policy_outcome outcome; /* kind NONE: not decided */
    struct mu_asks asks;
    uint64_t deadline_ms; /* of the phase */

    /* The rendezvous. */
    struct mu_round joined;
    enum membership membership;
    uint64_t leave_until_ms; /* IS_LEAVING: so long it may take */
    bool closed;             /* no round can follow */
    uint64_t down_ms;        /* since when the store is away; UINT64_MAX: it is there */
    uint64_t down_until_ms;  /* ... and is waited for until then; 0: nobody knows */
    uint64_t down_say_ms;    /* when that is said again; UINT64_MAX: never */
    char down_why[MU_POLICY_TEXT_MAX];

    /* The workers. */
    bool ever_started;
    int64_t succeeded; /* of this round */
    int64_t leftovers;
    char unkilled[MU_POLICY_TEXT_MAX];    /* what they are */
    char peer_failed[MU_POLICY_TEXT_MAX]; /* a worker of somebody else, and no round has followed yet */
    char signal_name[MU_SIGNAL_NAME_MAX];
    struct mu_signals_seen signals; /* that are handled */
    uint64_t serve_until_ms;        /* after leaving, a store in our process is there for the others; 0: it is not */
    uint64_t done_ms;               /* when our workers had succeeded */
    int64_t base_rank, failed_rank; /* failed_rank: of the first that has; -1: a worker of another node */
    char failure[MU_POLICY_TEXT_MAX];
    enum mu_group_state failed_as; /* FAILED or UNHEALTHY */

    /* The budget. */
    int64_t count, own, known; /* of this round; what we count ourselves; what the job's is, at the least */
    bool shared;
    enum charge charge;
    uint64_t charge_ms, charge_until_ms;   /* since when; until we have to look how it stands */
    bool gone;                             /* the process in which the budget is */
    struct muster_error silence;           /* what became of our last request for it */
    struct mu_buf budget;                  /* what is in its key, as far as we know */
    char paid[MU_RESTART_BUDGET_MAX];      /* ... and is to be: our claim */
    char claim[MU_SETTLEMENT_FAILURE_MAX]; /* "rank 12's failure on node3": we may have claimed it, and nothing is
                                              * settled yet; empty: no */
    char loss[MU_SETTLEMENT_FAILURE_MAX];  /* ... and this was told as its cause; empty: nothing was */
    char foreign[MU_FOREIGN_TEXT_MAX];

    /* How a closed job has ended. */
    struct mu_verdict verdict;
    bool has_verdict; /* there is one, and nothing speaks against it so far */

    /* For records and metrics. */
    uint64_t run_ms, join_ms, assign_ms, start_ms, stop_ms, initialize_ms;
    uint64_t restart_ms; /* since when there are no workers of the last round; UINT64_MAX: this is the first */
    char why[MU_POLICY_TEXT_MAX], text[MU_POLICY_TEXT_MAX];
    char lines[LINES_MAX][MU_POLICY_TEXT_MAX]; /* of this step */
    size_t lines_count;
    struct muster_error error; /* of the last record that has one */
};

/* What is heard of an event. */
typedef void mu_policy_hear(struct mu_policy *p, const struct mu_policy_event *event);

/* policy.c */
struct mu_policy_effect *mu_policy_emit(struct mu_policy *p, enum mu_policy_effect_type type);
void mu_policy_say(struct mu_policy *p, enum muster_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void mu_policy_enter_state(struct mu_policy *p, enum mu_group_state state);
void mu_policy_time_step(struct mu_policy *p, enum mu_metrics_step which, bool ok, uint64_t since_ms);
void mu_policy_initialize_failed(struct mu_policy *p);
struct mu_policy_effect *mu_policy_put_record(struct mu_policy *p, enum mu_policy_record which, int64_t duration_ms);
void mu_policy_observe(struct mu_policy *p, enum mu_group_state state);
void mu_policy_enter(struct mu_policy *p, enum mu_policy_phase phase, uint64_t deadline_ms);
void mu_policy_set_membership(struct mu_policy *p, enum membership membership);
/* Into p->foreign: a value of another kind in a key of the job (without its prefix); `next`: what is done about it. */
void mu_policy_write_foreign(struct mu_policy *p, const char *what, const char *key, struct mu_slice value,
                             const char *next);
int64_t mu_policy_larger(int64_t a, int64_t b);

/* policy_round.c */
mu_policy_hear mu_policy_on_joined, mu_policy_on_assigned, mu_policy_on_exited, mu_policy_on_unhealthy,
    mu_policy_on_started, mu_policy_on_start_failed, mu_policy_on_stopped, mu_policy_on_assign_failed,
    mu_policy_on_assign_again;
void mu_policy_join(struct mu_policy *p);
void mu_policy_join_again(struct mu_policy *p, const char *why);
void mu_policy_stop(struct mu_policy *p, int signal, uint64_t grace_ms);
bool mu_policy_has_workers(const struct mu_policy *p); /* of a round that goes on */
void mu_policy_regroup(struct mu_policy *p, int signal);
void mu_policy_proceed(struct mu_policy *p);

/* policy_causes.c */
mu_policy_hear mu_policy_on_used_up, mu_policy_on_lost, mu_policy_on_peer_failed, mu_policy_on_waiting,
    mu_policy_on_removed;
void mu_policy_charge(struct mu_policy *p);
void mu_policy_be_outdated(struct mu_policy *p);
void mu_policy_await_budget(struct mu_policy *p);
void mu_policy_on_budget(struct mu_policy *p, const struct mu_answer *answer);

/* policy_ends.c */
mu_policy_hear mu_policy_on_failed, mu_policy_on_job_failed, mu_policy_on_finished;
void mu_policy_decide(struct mu_policy *p, enum mu_policy_outcome_kind kind, int rc, int signal);
void mu_policy_decide_signal(struct mu_policy *p, int signal);
void mu_policy_be_between_rounds(struct mu_policy *p);
void mu_policy_end(struct mu_policy *p);
void mu_policy_note(struct mu_policy *p, enum mu_vanished_note note, const char *why);
void mu_policy_say_leave(struct mu_policy *p);
void mu_policy_leave(struct mu_policy *p);
void mu_policy_linger(struct mu_policy *p);
void mu_policy_left(struct mu_policy *p);
void mu_policy_fail_with(struct mu_policy *p, const struct muster_error *error);
void mu_policy_be_failed(struct mu_policy *p, const char *text);
void mu_policy_fail_job(struct mu_policy *p);
void mu_policy_give_up_on_the_store(struct mu_policy *p);
void mu_policy_take_verdict(struct mu_policy *p, const struct mu_answer *answer);
void mu_policy_take_round(struct mu_policy *p, const struct mu_answer *answer);
void mu_policy_tell_why(struct mu_policy *p, bool is_certain);

#endif
