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
 * - A done agent sets its mark, counts itself, stays a member, and waits without a limit unless there is one. (A back
 *   end without rounds knows nothing of its members: there the limit is PyTorch's 300 s.)
 * - Nobody but us in the round: the marks decide. Who is counted last looks at all of them, and then writes the
 *   verdict, closes, and only then lets the others go. If it dies in between, or the counter is not right, whoever
 *   finds all marks set does it instead; all look now and then, and soon after the store was away, and set their own
 *   again first: a store may have lost it.
 * - With a PyTorch member the last is the one that makes the counter of its barrier the world's size (1.13: who has
 *   seen the key of everybody), or who finds that those who have no mark are gone, and were done.
 * - Was a vanished PyTorch member done? In the 2.x dialect the barrier's counter, less those of us who are counted in
 *   it, says how many are; 1.13 has a key for each.
 * - A member that is lost while the store is away is lost at once: nobody can say whether it was done. (Asking a silent
 *   store takes seconds, and leads to the same.)
 * - Whose worker fails says so at once, while the rest of its workers is being stopped: the others, who would hear of
 *   it only when that is over, stop theirs at the same time. Only where nobody but us is in the round, and as a hint:
 *   who does not hear it learns from the rendezvous that a member wants to begin anew. Who stops listening for another
 *   reason writes something that says nothing, so that no wait of its own is left in the store.
 * - Who leaves the round on purpose, for good or for the next one, leaves a note that says why (vanished.h). Who finds
 *   a member missing reads it, and says the same. Nodes that want to join wait until it is known whether those who
 *   vanished at the same time were done: if not, the round has ended for another reason than them.
 * - Who is killed cannot leave one. While we watch a round, somebody else keeps the note that says so
 *   (mu_completion_will()).
 * - On a closed document, lost peers stop nobody, for no round can follow, unless the verdict is failed, or there is
 *   none and nobody has come to the barrier: then JOB_FAILED, naming who vanished.
 * - A verdict once written stays. Before one is written for all done, the budget is looked at: if a later round is the
 *   job's, we were removed, and do not know it yet.
 * - All are done, and the process in which the store was refuses connections: there is nothing left to close. Who waits
 *   for PyTorch members there has nobody to wait for.
 * - A done agent that cannot reach the store ends: after MU_COMPLETION_REFUSED_MS when connections are refused, after
 *   MU_COMPLETION_SILENT_MS otherwise. Its work is done, and whatever the others do, it would not hear of it.
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

#define MU_COMPLETION_SECOND_LOOK_MS 250 /* at PyTorch's counter, before a PyTorch member is called lost */
#define MU_COMPLETION_SCAN_MS 5000       /* between looks at all marks, when the counter cannot be relied upon */
#define MU_COMPLETION_SCAN_SLOW_MS 60000 /* ... and when there is no reason to doubt it */
#define MU_COMPLETION_GONE_MS                                                                                          \
    2000 /* for a store whose host has gone to come back, when the job is over or has a PyTorch node */
#define MU_COMPLETION_REFUSED_MS 5000   /* the same, while others may still be at work */
#define MU_COMPLETION_SILENT_MS 30000   /* for a store that does not answer a done agent */
#define MU_COMPLETION_PROBE_MS 10000    /* between looks whether it does, where nobody else looks */
#define MU_COMPLETION_LOSS_MS 30000     /* for the rendezvous to notice a loss, if the config says nothing else */
#define MU_COMPLETION_FIN_MS 10000      /* of 1.13's rank 0, for all to have seen that all are done */
#define MU_COMPLETION_CLOSE_MS 30000    /* for verdict and close */
#define MU_COMPLETION_REMOVED_MS 15000  /* ... of which for a member to hear that it was removed */
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
    MU_COMPLETION_DO_WARN,        /* text: for the log */
    MU_COMPLETION_DO_END,         /* end, text: for people */
};

struct mu_completion_effect { /* borrows from the machine, until its next step */
    enum mu_completion_effect_type type;
    struct mu_ask ask;
    enum mu_completion_end end;
    int64_t number;
    const char *text;
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
