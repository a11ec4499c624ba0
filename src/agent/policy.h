/* An agent's life: joins, starts its workers, watches, and decides what each thing that happens means: regroup, count a
 * restart, be done, give up, leave. Pure: events and the time come in, effects go out; what it wants of the rendezvous,
 * the processes, and the machines of ranks.h and completion.h is said by effects.
 *
 *   IDLE --run--> JOINING --joined--> ASSIGNING --assigned--> STARTING --started--> RUNNING
 *                   ^ |failed             |lost, waiting,         |                    | worker failed, lost, waiting,
 *                   | v                   |removed                |failed              | removed, job failed, signal,
 *                   | ASKING why closed   v                       v                    v all workers succeeded
 *                   +--------------------JOINING               STOPPING <--------------+
 *                   |                                             | nothing of them is left
 *                   +---lost, waiting, removed, restarts left-----+--> CHARGING (is a restart left?) --no--> FAILING
 *                                                                 +--success--> FINISHING (the others)        |
 *                                                                 +--error, signal--> LEAVING                 v
 *   FINISHING --all done--> LINGERING --> ENDED;  --behind, away--> LEAVING --> SERVING --> ENDED            LINGERING
 *                                                          FAILING --outdated, a node was lost--> JOINING
 *
 * - The first event that ends a round (worker failed, peers lost, nodes waiting, removed) decides. Later ones are
 *   dropped, and so are events of earlier rounds.
 * - JOIN only follows WORKERS_STOPPED without leftovers: no worker of the old round may be alive.
 * - The budget is the job's, and the store says what is left of it; while it is silent, nothing is decided. A round
 *   that a worker's failure ended costs one restart, once; that is a claim until the next round forms (settlement.h).
 *   Membership changes are free. A round that was over for the job before costs nothing: we were removed. If the
 *   store's process is gone and we know of no restart left, there is nothing to wait for.
 * - A worker's failure is told to the others at once, beside the stop; their failures end the round here, for free.
 * - Removed: the workers are killed without grace. A checkpoint written now would overwrite the others'. Only the
 *   rendezvous can say so; a later round in the budget may be made up.
 * - The first signal begins a stop with the full grace. A SIGINT more than a second after the first SIGINT, or a
 *   SIGQUIT that is not the first signal, kills the workers. Other signals change nothing any more (proc/signals.h).
 * - A store that is away stops nobody, and is talked about every few seconds. If it went with a member, that member is
 *   lost, and a restart that was about to be counted there is free.
 * - A node that is done, and ends because the store is away, serves the workers of others until they have gone.
 * - An error or a signal of this node leaves the job; it does not close it.
 * - Workers that have succeeded are never run again.
 * - There is one END, within a bounded time of its cause, as far as the workers can be killed.
 * - In a round with a leader (mu_round.led) the leader counts. The answer to a worker's failure is that of the next
 *   JOIN: another round with its count, or a job that is closed, with its verdict. The budget's key is not asked, and
 *   CHARGING, ASKING and FAILING are not entered.
 *
 * job.h connects it with the other machines. All effects of a step are carried out before the next step. Keys, with M
 * as in rdzv/round_keys.h: M budget, M verdict. */
#ifndef MU_AGENT_POLICY_H
#define MU_AGENT_POLICY_H

#include "agent/asks.h"
#include "agent/completion.h"
#include "agent/group_states.h"
#include "agent/ranks.h"
#include "events/metrics.h"

#define MU_POLICY_LEAVE_MS 1000   /* for leaving, when nothing depends on it but how soon the others know */
#define MU_POLICY_LINGER_MS 2000  /* of the rendezvous store's host, so that the others can read how it ended */
#define MU_POLICY_SERVE_MS 900000 /* of a host that is done, for others who regroup; they may also end without a word */
#define MU_POLICY_CHARGE_MS                                                                                            \
    10000 /* for the budget's key; then we say that we wait, or see that there is nothing to wait for */
#define MU_POLICY_STORE_MS 600000         /* for a silent store, if the config says nothing else */
#define MU_POLICY_WHY_MS 1000             /* for the verdict of a job that was closed before we came */
#define MU_POLICY_AWAY_SAY_MS 5000        /* between lines about a store that is away ... */
#define MU_POLICY_AWAY_SAY_LATER_MS 30000 /* ... and when it has been away for so long */
#define MU_POLICY_TEXT_MAX 1024

#define MU_POLICY_PHASES(X)                                                                                            \
    X(IDLE, "idle")                                                                                                    \
    X(JOINING, "joining")                                                                                              \
    X(ASKING, "asking why the job is closed")                                                                          \
    X(ASSIGNING, "assigning ranks")                                                                                    \
    X(STARTING, "starting workers")                                                                                    \
    X(RUNNING, "running")                                                                                              \
    X(STOPPING, "stopping workers")                                                                                    \
    X(CHARGING, "counting a restart")                                                                                  \
    X(FINISHING, "waiting for the others")                                                                             \
    X(FAILING, "closing a failed job")                                                                                 \
    X(LEAVING, "leaving")                                                                                              \
    X(SERVING, "serving the store for the others")                                                                     \
    X(LINGERING, "letting the others read how it ended")                                                               \
    X(ENDED, "ended")

enum mu_policy_phase {
#define X(name, text) MU_POLICY_##name,
    MU_POLICY_PHASES(X)
#undef X
};

const char *mu_policy_phase_text(enum mu_policy_phase value);

/* ---- Events ---- */

#define MU_POLICY_EVENTS(X)                                                                                            \
    X(RUN, "run")         /* begin */                                                                                  \
    X(JOINED, "joined")   /* joined */                                                                                 \
    X(WAITING, "waiting") /* of completion: number: nodes that want to join; text: who, in whole words */              \
    X(REMOVED, "removed") /* round; text, why; NULL: the others have gone on */                                        \
    X(CLOSED, "closed")   /* round */                                                                                  \
    X(LEFT, "left")                                                                                                    \
    X(FAILED, "failed")             /* error: of JOIN, of LEAVE, or of our membership */                               \
    X(BACKEND_DOWN, "backend down") /* error, away_ms, give_up_in_ms, number; also again, when more is known */        \
    X(BACKEND_UP, "backend up")                                                                                        \
    X(ASSIGNED, "assigned")           /* ranks: result of the ranks machine */                                         \
    X(ASSIGN_AGAIN, "assign again")   /* text, why: this round cannot be agreed upon; the next one */                  \
    X(ASSIGN_USED_UP, "used up")      /* text, whose failure: there is no restart left for this round */               \
    X(ASSIGN_FAILED, "assign failed") /* error */                                                                      \
    X(LOST, "lost")                   /* of completion: text, who and how, in whole words*/                            \
    X(JOB_FAILED, "job failed")       /* of completion: text */                                                        \
    X(PEER_FAILED, "peer failed")     /* of completion: text, whose worker */                                          \
    X(FINISHED, "finished")           /* of completion: end, text */                                                   \
    X(STARTED, "workers started")                                                                                      \
    X(START_FAILED, "start failed") /* error. Some may run: they are stopped like others */                            \
    X(EXITED, "worker exited")      /* number: local rank; ok; text: how, for people. Once each */                     \
    X(UNHEALTHY,                                                                                                       \
      "worker unhealthy") /* number: local rank; text. As if it had failed; ok: it can be stopped, and so       \
                                         restarted. Else it hangs in the kernel */      \
    X(STOPPED, "workers stopped") /* answer to STOP_WORKERS and KILL_WORKERS, once: nothing of them is left, or   \
                                         number: processes that cannot be killed; text names them */    \
    X(SIGNAL, "signal")           /* number: one of the handled ones */                                                \
    X(KEEPER_GONE, "keeper gone")                                                                                      \
    X(ALONE, "alone")   /* LINGER's answer: no other node is connected to the store that we serve */                   \
    X(ANSWER, "answer") /* ASK's answer */                                                                             \
    X(TIME, "time")

enum mu_policy_event_type {
#define X(name, text) MU_POLICY_ON_##name,
    MU_POLICY_EVENTS(X)
#undef X
};

const char *mu_policy_event_text(enum mu_policy_event_type value);

struct mu_policy_event { /* borrows what it points to */
    enum mu_policy_event_type type;
    uint64_t now_ms;
    int64_t round; /* -1: not known */
    const struct mu_round *joined;
    const struct mu_ranks_result *ranks;
    int64_t number; /* also of BACKEND_DOWN: members that are lost with it, which is heard next */
    bool ok;
    enum mu_completion_end end;
    const char *text;                      /* NULL: nothing is known */
    enum muster_rdzv_request request;      /* FAILED */
    const struct mu_part_verdict *verdict; /* FAILED of a JOIN: how the closed job has ended; NULL: not known */
    const struct muster_error *error;
    uint64_t away_ms, give_up_in_ms; /* 0: it is waited for without a limit, or nobody knows */
    struct mu_answer answer;
};

/* ---- Effects ---- */

/* STOP_WORKERS: signal, grace_ms, ok: to be restarted, as far as we know; then SIGKILL; STOPPED, once, however often it
 * is said. While stopping: this signal as well, and the sooner of both ends. While starting: no STARTED comes any more.
 * All have ended: only what they left behind is stopped. */
#define MU_POLICY_EFFECTS(X)                                                                                           \
    X(JOIN, "join")     /* the handler's; an old round is left by it */                                                \
    X(LEAVE, "leave")   /* the handler's */                                                                            \
    X(ASSIGN, "assign") /* start the ranks machine: joined */                                                          \
    X(ASSIGN_STOP, "stop assigning")                                                                                   \
    X(WATCH, "watch") /* start the completion machine: joined */                                                       \
    X(WATCH_STOP, "stop watching")                                                                                     \
    X(LISTEN, "listen")       /* the completion machine's LISTEN */                                                    \
    X(TELL_FAILED, "tell")    /* the completion machine's WORKER_FAILED: number, the worker's rank; text */            \
    X(NOTE, "note")           /* the completion machine's NOTE: note; text: why we leave the round */                  \
    X(FINISH, "finish")       /* the completion machine's DONE */                                                      \
    X(FAIL_JOB, "fail job")   /* the completion machine's FAIL: text; ok: settled */                                   \
    X(START_WORKERS, "start") /* STARTED or START_FAILED. ok: again, number ms after the last group ended */           \
    X(STOP_WORKERS, "stop")   /* below */                                                                              \
    X(KILL_WORKERS, "kill")   /* SIGKILL at once; STOPPED. May follow STOP_WORKERS; then there is one STOPPED */       \
    X(LINGER, "linger")       /* ALONE when, or as soon as, no other node is connected to the stores we serve */       \
    X(ASK, "ask")             /* ask */                                                                                \
    X(STATE, "state")         /* state: the group's, from now on */                                                    \
    X(RECORD, "record")       /* record, duration_ms (-1: none), error (NULL: it worked) */                            \
    X(STEP, "step")           /* step, ok, duration_ms: mu_metrics_step() */                                           \
    X(DECISION, "decision")   /* state, number: restarts left: mu_metrics_decision() */                                \
    X(FINAL, "final")         /* ok, number: restarts left: mu_metrics_put_final() */                                  \
    X(SAY, "say")             /* level, text: one line */                                                              \
    X(END, "end")             /* outcome: nothing follows */

enum mu_policy_effect_type {
#define X(name, text) MU_POLICY_DO_##name,
    MU_POLICY_EFFECTS(X)
#undef X
};

const char *mu_policy_effect_text(enum mu_policy_effect_type value);

enum mu_policy_record {
    MU_POLICY_RECORD_RENDEZVOUS,    /* agent's: JOIN to JOINED, or to its failure */
    MU_POLICY_RECORD_ASSIGN,        /* agent's: ASSIGN_WORKER_RANKS */
    MU_POLICY_RECORD_WORKERS_START, /* each worker's START */
    MU_POLICY_RECORD_WORKERS_END,   /* each worker's SUCCEEDED, FAILED or TERMINATED: mu_worker_end_of(state, ...) */
    MU_POLICY_RECORD_AGENT,         /* agent's: `state` is SUCCEEDED or FAILED */
};

#define MU_POLICY_OUTCOMES(X)                                                                                          \
    X(NONE, "none")                                                                                                    \
    X(SUCCEEDED, "succeeded")           /* rc 0 */                                                                     \
    X(WORKERS_FAILED, "workers failed") /* rc 1, with the failure report */                                            \
    X(GRACEFUL, "graceful exit")        /* rc 0: a spare that was not needed */                                        \
    X(SIGNALED, "signaled")             /* rc 1, MUSTER_ESIGNAL: `signal`, after workers had been started */           \
    X(DIE, "die")                       /* of `signal`, before any worker was */                                       \
    X(KEEPER_GONE, "keeper gone")       /* rc 1 */                                                                     \
    X(ERROR, "error")                   /* rc 1 */

enum mu_policy_outcome_kind {
#define X(name, text) MU_POLICY_OUTCOME_##name,
    MU_POLICY_OUTCOMES(X)
#undef X
};

const char *mu_policy_outcome_text(enum mu_policy_outcome_kind value);

struct mu_policy_outcome {
    enum mu_policy_outcome_kind kind;
    int rc; /* 0 or 1; DIE: 128 + signal, for whoever cannot die of it */
    int signal;
    enum mu_group_state state; /* the group's; run result is "failed" iff it is FAILED */
    struct muster_error error; /* code 0: none */
};

struct mu_policy_effect { /* borrows from the machine, until its next step */
    enum mu_policy_effect_type type;
    const struct mu_round *joined; /* ASSIGN, WATCH */
    int signal;
    uint64_t grace_ms;
    struct mu_ask ask;
    enum mu_group_state state;
    enum mu_policy_record record;
    enum mu_metrics_step step;
    int64_t number;
    bool ok;
    enum mu_vanished_note note;
    int64_t duration_ms;
    enum muster_log_level level;
    const char *text;
    const struct muster_error *error;
    const struct mu_policy_outcome *outcome;
};

#define MU_POLICY_EFFECTS_MAX 32

struct mu_policy_effects {
    struct mu_policy_effect items[MU_POLICY_EFFECTS_MAX];
    unsigned count;
};

/* ---- The machine ---- */

struct mu_policy_config { /* copied */
    const char *run_id, *role;
    const char *node;         /* who we are: unlike every other agent of the job, ever */
    const char *host;         /* where, for people; NULL: as `node` */
    int64_t local_world_size; /* above 0 */
    int64_t max_restarts;     /* 0 or more */
    uint64_t grace_ms;        /* what workers have to end, whatever they are stopped for */
    uint64_t barrier_ms;      /* so long a done agent waits for the others: as completion.h; 0: without a limit */
    uint64_t store_ms; /* so long a silent store is waited for, as it is by whoever joins; 0: MU_POLICY_STORE_MS */
};

struct mu_policy; /* opaque */

int mu_policy_new(const struct mu_policy_config *config, struct mu_policy **ret_policy, struct muster_error *reterr);
void mu_policy_free(struct mu_policy *policy);

/* Same state, same event, same effects, always. Cannot fail. `out` is overwritten. Effects are to be carried out in
 * their order. */
void mu_policy_step(struct mu_policy *policy, const struct mu_policy_event *event, struct mu_policy_effects *out);
uint64_t mu_policy_deadline_ms(const struct mu_policy *policy); /* when TIME is wanted; UINT64_MAX: never */

/* For snapshots and events. */
enum mu_policy_phase mu_policy_phase(const struct mu_policy *policy);
enum mu_group_state mu_policy_state(const struct mu_policy *policy);
int64_t mu_policy_count(const struct mu_policy *policy);              /* restarts so far: agent_restarts */
int64_t mu_policy_remaining_restarts(const struct mu_policy *policy); /* 0 or more */
int64_t mu_policy_max_restarts(const struct mu_policy *policy);       /* the config's, or what a leader says */

#endif
