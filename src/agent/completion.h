/* How a round ends for an agent, and how the job does: whether a member that vanished is lost or was done, the wait of
 * those who are done for the others, PyTorch's exit barrier, the verdict, and who closes. Pure; one machine for an
 * agent's life, started anew for every round.
 *
 *                 +--lost--> are their done marks there? --no--> tells LOST, once a round
 *                 |
 *   WATCHING -----+--done--> MARKING --> WAITING --all are done--> [the last: VERDICT, CLOSING] --> ENDED
 *      |                                    |
 *      |                                    +--an un-done member is lost: ENDED (BEHIND: leave, they regroup)
 *      |                                    +--removed, or the verdict is there: ENDED (OVER)
 *      |                                    +--the limit: ENDED (TIMEOUT)
 *      |                                    +--the store is silent or refuses connections: ENDED (AWAY)
 *      +--fail: ACCOUNTING --a member was lost: tells LOST; all have answered--> VERDICT failed, CLOSING
 *      |        --> ENDED (FAILED); the round is over for the job: ENDED (OUTDATED)
 *      +--closed by somebody: what is the verdict? failed: tells JOB_FAILED
 *      +--a worker of ours failed: says so to the others; one of theirs has: tells PEER_FAILED, once a round
 *      +--nodes want to join: tells WAITING, unless a member is lost
 *
 * Done:
 * - A done agent sets its mark, counts itself, stays a member, and waits for the others. There is no limit unless the
 *   config sets one, or the back end has no rounds and so tells nothing of its members (PyTorch's 300 s).
 * - Only muster nodes in the round: the marks decide. The node that is counted last reads all marks, writes the
 *   verdict, closes, and then lets the others go. It may die, and a store may lose the counter or a mark. So all nodes
 *   look at the marks now and then, after setting their own again, and the first to find all set ends the job.
 * - With a PyTorch member, the last node is the one that brings the counter of PyTorch's barrier to the world's size
 *   (1.13: the one that has seen everybody's key), or that finds the nodes without a mark gone, and done.
 * - A PyTorch member that vanished was done if the barrier's counter is higher than the number of ours in it. (1.13 has
 *   a key for each.)
 * - A verdict once written stays. Before a success is written, the budget is read: a later round there means that this
 *   node was removed and does not know it yet. With a PyTorch member, where no budget is kept, the same holds for the
 *   verdict of a later round. Whoever keeps writing other verdicts there does not keep the job open.
 * - A close that fails because the store is away is tried again, however short the handler's own time for it is: in a
 *   job that is not closed, a spare would run the workers once more.
 * - A done agent ends alone if the store refuses connections for MU_COMPLETION_REFUSED_MS, or is silent for
 *   MU_COMPLETION_SILENT_MS. If all are done, or only PyTorch nodes are missing, and the store's process is gone, there
 *   is nothing to close and nobody to wait for.
 * Vanished:
 * - A node that leaves a round on purpose writes a note first (vanished.h). Nodes that miss it read the note and say
 *   the same. A killed node cannot write one: its keeper holds the note that says so (mu_completion_will()).
 * - While the store is away, a vanished member counts as lost at once: nobody can say whether it was done.
 * - That nodes want to join is told only when it is clear that no member was lost: a loss is the better reason.
 * - In a closed job no round can follow, and lost members stop nobody, unless the verdict is failed, or there is
 *   neither a verdict nor anybody in the barrier: then JOB_FAILED names who vanished.
 * Failed:
 * - A node whose worker fails says so at once (T failed), so that all nodes stop their workers at the same time. This
 *   is a hint, among muster nodes only: others learn from the rendezvous that a member wants a new round. A node that
 *   stops listening for another reason writes its rank there ("untold 1"), which ends its own wait.
 *
 * Keys, with R, M and T as in rdzv/round_keys.h:
 *   M verdict; T done/<rank>, T left/<rank>, T heard/<rank>, T done_count, T last, T failed;
 *   with a PyTorch member also R torchelastic/agent/terminal_state/num_members, .../last_member instead of T last;
 *   1.13: R torchelastic/agent/terminal_state<rank>, R torchelastic/agent/terminal_state<rank>.FIN */
#ifndef MU_AGENT_COMPLETION_H
#define MU_AGENT_COMPLETION_H

#include "agent/asks.h"
#include "agent/restart_budget.h"
#include "agent/round.h"
#include "agent/verdict.h"
#include "rdzv/part.h"

#define MU_COMPLETION_SECOND_LOOK_MS 250 /* at PyTorch's counter, before a PyTorch member is called lost */
#define MU_COMPLETION_SCAN_MS 5000       /* between looks at all marks, when the counter cannot be relied upon */
#define MU_COMPLETION_SCAN_SLOW_MS 60000 /* ... and when there is no reason to doubt it */
#define MU_COMPLETION_GONE_MS                                                                                          \
    2000 /* for a store whose host has gone to come back, when the job is over or has a PyTorch node */
#define MU_COMPLETION_REFUSED_MS 5000     /* the same, while others may still be at work */
#define MU_COMPLETION_SILENT_MS 30000     /* for a store that does not answer a done agent */
#define MU_COMPLETION_PROBE_MS 10000      /* between looks whether it does, where nobody else looks */
#define MU_COMPLETION_LOSS_MS 30000       /* for the rendezvous to notice a loss, if the config says nothing else */
#define MU_COMPLETION_FIN_MS 10000        /* of 1.13's rank 0, for all to have seen that all are done */
#define MU_COMPLETION_CLOSE_MS 30000      /* for verdict and close */
#define MU_COMPLETION_CLOSE_AGAIN_MS 1000 /* after a close that failed, unless the store is back before */
#define MU_COMPLETION_REMOVED_MS 15000    /* ... of which for a member to hear that it was removed */
#define MU_COMPLETION_LAST_MS 10000     /* ... and after that, to write the verdict and to close; at least, to close */
#define MU_COMPLETION_BARRIER_MS 300000 /* of PyTorch; where we know nothing of the members */

/* ---- Events ---- */

#define MU_COMPLETION_STATES(X)                                                                                        \
    X(IDLE, "idle")                                                                                                    \
    X(WATCHING, "watching")                                                                                            \
    X(ACCOUNTING, "waiting for an answer of every node") /* the job fails, unless one of them was lost */              \
    X(MARKING, "marking") /* done; the marks and our part of the barrier are being written */                          \
    X(WAITING, "waiting") /* for the others */                                                                         \
    X(VERDICT, "verdict") /* is being written */                                                                       \
    X(CLOSING, "closing")                                                                                              \
    X(FREEING, "letting go") /* the others, who wait in the barrier */                                                 \
    X(ENDED, "ended")

enum mu_completion_state {
#define X(name, text) MU_COMPLETION_##name,
    MU_COMPLETION_STATES(X)
#undef X
};

const char *mu_completion_state_text(enum mu_completion_state value);

enum mu_completion_event_type {
    MU_COMPLETION_ON_START,   /* start: a round was joined */
    MU_COMPLETION_ON_STOP,    /* the round is over for us: nothing is under way any more */
    MU_COMPLETION_ON_LOST,    /* round, lost/lost_count; text: how the rendezvous lost them, or NULL. May come several
                                   times a round */
    MU_COMPLETION_ON_WAITING, /* round, rank: so many nodes want to join; text: who, in whole words */
    MU_COMPLETION_ON_REMOVED, /* round */
    MU_COMPLETION_ON_CLOSED,  /* seen, or the answer to CLOSE */
    MU_COMPLETION_ON_CLOSE_FAILED,  /* CLOSE's other answer: error */
    MU_COMPLETION_ON_BACKEND_DOWN,  /* the store is away, since away_ms */
    MU_COMPLETION_ON_BACKEND_UP,    /* ... and back: it may have forgotten our mark */
    MU_COMPLETION_ON_DONE,          /* all our workers have succeeded and nothing of them is left */
    MU_COMPLETION_ON_FAIL,          /* the job has failed (its budget is used up): text, the cause, for the verdict */
    MU_COMPLETION_ON_LISTEN,        /* our workers are up: from now on we want to hear if one of the others' fails */
    MU_COMPLETION_ON_WORKER_FAILED, /* one of ours has: rank, text; the round ends by it */
    MU_COMPLETION_ON_NOTE,          /* we are about to leave the round: note: LEFT, AGAIN or LOST; text: why */
    MU_COMPLETION_ON_REPORTED,      /* REPORT's answer; or error. For led.h alone */
    MU_COMPLETION_ON_ANSWER,        /* ASK's answer */
    MU_COMPLETION_ON_TIME,
};

struct mu_completion_peer {
    int64_t rank; /* of the group; -1: not known, then it is lost */
    bool ours;    /* not PyTorch */
    bool waits;   /* for the next round */
    char name[MU_VANISHED_NAME_MAX];
};

struct mu_completion_event { /* borrows what it points to */
    enum mu_completion_event_type type;
    uint64_t now_ms;
    int64_t round; /* LOST, REMOVED: one of another round is dropped; -1: of this one */
    int64_t rank;  /* WORKER_FAILED: the worker's; WAITING: how many */
    enum mu_vanished_note note;
    bool settled; /* FAIL: what the round before costs; nobody of this one has to be asked */
    const struct mu_round *start;
    const struct mu_completion_peer *lost;
    size_t lost_count;
    const char *text;
    const struct mu_part_verdict *verdict; /* CLOSED, for led.h alone; NULL: nobody knows how the job has ended */
    const struct muster_error *error;
    uint64_t away_ms;
    struct mu_answer answer;
};

/* ---- Effects ---- */

#define MU_COMPLETION_ENDS(X)                                                                                          \
    X(ALL_DONE, "all done") /* the job has succeeded and, if this back end can be closed, is closed */                 \
    X(BEHIND, "behind")     /* we are done, but a member that was not is lost: leave, so that the rest regroups */     \
    X(OVER, "over")         /* we are done, and the others have ended or gone on without us */                         \
    X(TIMEOUT, "timeout")   /* we are done; the others were not, in the time that there was */                         \
    X(AWAY, "away")         /* we are done; the store is away, and nobody knows about the others */                    \
    X(FAILED, "failed")     /* FAIL: there is a verdict, and the job is closed, as far as it can be */                 \
    X(OUTDATED, "outdated") /* FAIL: the round was over for the job, which goes on without us: nothing is said */      \
    X(UNSAID, "unsaid")     /* FAIL: the verdict could not be written, or not in time */

enum mu_completion_end {
#define X(name, text) MU_COMPLETION_END_##name,
    MU_COMPLETION_ENDS(X)
#undef X
};

const char *mu_completion_end_text(enum mu_completion_end value);

enum mu_completion_effect_type {
    MU_COMPLETION_DO_ASK,   /* ask */
    MU_COMPLETION_DO_CLOSE, /* the handler's close(); CLOSED or CLOSE_FAILED */
    /* text: who is really lost, or has left; once a round, while WATCHING. While ACCOUNTING: who was lost without an
     * answer */
    MU_COMPLETION_DO_LOST,
    MU_COMPLETION_DO_WAITING,     /* number, text, as they came; only while WATCHING */
    MU_COMPLETION_DO_JOB_FAILED,  /* text: the verdict of others, or that they vanished; once, only while WATCHING */
    MU_COMPLETION_DO_PEER_FAILED, /* text: whose worker has failed; once a round, only while WATCHING */
    MU_COMPLETION_DO_REPORT,      /* report: the handler's report(); REPORTED. Of led.h alone */
    MU_COMPLETION_DO_WARN,        /* text: for the log */
    MU_COMPLETION_DO_END,         /* end, text: for people */
};

struct mu_completion_effect { /* borrows from the machine, until its next step */
    enum mu_completion_effect_type type;
    struct mu_ask ask;
    enum mu_completion_end end;
    int64_t number;
    const char *text;
    const struct mu_part_report *report;
};

#define MU_COMPLETION_EFFECTS_MAX (MU_ASKS_MAX + 5)

struct mu_completion_effects {
    struct mu_completion_effect items[MU_COMPLETION_EFFECTS_MAX];
    unsigned count;
};

struct mu_completion_config { /* copied */
    const char *run_id;
    const char *node;    /* who we are, for the verdict */
    const char *host;    /* where, for people; NULL: as `node` */
    uint64_t barrier_ms; /* how long a done agent waits; 0: not at all; UINT64_MAX: without a limit */
    uint64_t loss_ms;    /* in which the rendezvous notices that a member is lost; 0: MU_COMPLETION_LOSS_MS */
};

struct mu_completion; /* opaque */

int mu_completion_new(const struct mu_completion_config *config, struct mu_completion **ret_completion,
                      struct muster_error *reterr);
void mu_completion_free(struct mu_completion *f);

/* Same state, same event, same effects, always. `out` is overwritten. */
void mu_completion_step(struct mu_completion *f, const struct mu_completion_event *event,
                        struct mu_completion_effects *out);
uint64_t mu_completion_deadline_ms(const struct mu_completion *f); /* when TIME is wanted; UINT64_MAX: never */
enum mu_completion_state mu_completion_state(const struct mu_completion *f);

#define MU_COMPLETION_KILLED "its agent was killed"
/* The note that is to be written for us if we are killed now. False: none; nobody would miss us, or we have said
 * ourselves what becomes of us: that we are done, or leave, or have failed. Also if `key` is too long. */
bool mu_completion_will(const struct mu_completion *f, char *key, size_t key_room,
                        char text[static MU_VANISHED_NOTE_MAX]);

#endif
