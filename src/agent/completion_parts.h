/* The insides of the completion machine: for the files completion*.c alone.
 *
 *   completion.c           what is heard, and which part acts on it; a store that is away
 *   completion_marks.c     who is done: marks, counters, PyTorch's barrier
 *   completion_notes.c     what members tell each other: a failure, why they leave
 *   completion_accounts.c  is everybody there, before a job is failed?
 *   completion_verdict.c   how the job ends: the verdict, and closing */
#ifndef MU_AGENT_COMPLETION_PARTS_H
#define MU_AGENT_COMPLETION_PARTS_H

#include "agent/completion.h"
#include "base/arena.h"
#include "base/buf.h"
#include "rdzv/foreign.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#define COUNT "%sdone_count"
#define MARK_113 "%storchelastic/agent/terminal_state%" PRId64
#define MEMBERS "%storchelastic/agent/terminal_state/num_members"
#define LAST "%storchelastic/agent/terminal_state/last_member"
#define FAILED_KEY "%sfailed"
#define HEARD "%sheard/%" PRId64
#define ALL_DONE "<val_ignored>" /* in the key of the last; PyTorch's has the same */
#define LOOK_AGAIN "look"        /* ... or: set your marks again, one of them was overwritten or deleted */
#define GONE_ON "this node's workers have succeeded; the other nodes go on without it"
enum { MARK_MS = MU_ASK_TIMEOUT_MS }; /* a mark is written, however short the wait may be */
enum { ASLEEP_MS = 1000 };            /* late by so much: this process was paused */
enum { TEXT_MAX = 1024, WHO_SHOWN_MAX = 400, CLEARED_MAX = 8 };
enum { SPARE_SLOTS = 6, BARRIER_SPARE_SLOTS = 11 }; /* that are left to others by what is asked in a window */

enum what {
    MARK_SET,      /* our own */
    DONE_ADD,      /* how many of us are done; with a PyTorch member: are counted in its barrier */
    MEMBERS_ADD,   /* PyTorch's barrier */
    LAST_GET,      /* the last has come */
    LAST_SET,      /* ... and is us */
    LOOK_SET,      /* a mark is to be set again */
    BARRIER_113,   /* a mark of 1.13 */
    FIN_SET,       /* 1.13: we have seen all marks */
    FIN_113,       /* ... and so have they */
    BUDGET_LOOK,   /* which round is the job's? */
    BUDGET_AGAIN,  /* still another one? */
    RIVAL_LOOK,    /* ... that of a verdict which names a later one? */
    VERDICT_SET,   /* ours, unless there is one */
    VERDICT_LOOK,  /* whatever there is */
    VERDICT_AGAIN, /* still that of a later round? */
    CLOSED_COUNT,  /* the barrier, when members vanish from a closed job */
    PROBE,         /* is the store's host there? */
    CHECK_MARK,    /* was this one done? */
    NOTE_LOOK,     /* has it left, and why? Index: in f->gone */
    NOTE_SET,      /* our own */
    STOCK_COUNT,   /* how many have come to the barrier ... */
    OUR_COUNT,     /* ... and how many of them are ours */
    FAILED_GET,    /* has a worker of somebody's failed? */
    FAILED_SET,    /* one of ours has */
    FAILED_CLEAR,  /* what is there is nobody's failure */
    HEARD_SET,     /* we know that the round is over, and are there */
    HEARD_GET,     /* ... and so does this one */
    HEARD_CHECK,   /* ... or did, before it vanished */
};

enum seen { UNSEEN, NONE, SUCCEEDED, FAILED }; /* of a verdict */

struct mu_completion {
    struct mu_completion_effects *out; /* of this step ... */
    uint64_t now_ms;                   /* ... and its time */

    struct mu_arena names; /* the next ones */
    const char *run_id;
    char *prefix, *job_prefix, *own_prefix; /* R, M, T */
    size_t prefix_room;
    char node[MU_VERDICT_NODE_MAX], host[MU_VERDICT_NODE_MAX];
    uint64_t barrier_ms;

    enum mu_completion_state state;
    struct mu_round start;
    struct mu_asks asks;
    uint64_t deadline_ms; /* of the state */
    uint64_t wait_until_ms;

    /* What became of the members. */
    /* By rank. foreign: vanished, and PyTorch's, of which the counter tells. heard: has answered a failure. */
    uint8_t *vanished, *foreign, *marked, *heard;
    int64_t foreign_count, marked_count, vanished_count;
    bool undone; /* one of them is lost */
    bool removed, closed, told_lost, told_failed;
    bool said_heard; /* our part of ACCOUNTING */
    int64_t account_cursor;
    char failure[TEXT_MAX]; /* that fails the job, while ACCOUNTING */
    uint64_t loss_ms;
    bool noted, leaves;      /* that we leave the round; for good */
    bool said_failed;        /* that a worker of ours has */
    unsigned cleared;        /* how often foreign values of T failed were deleted */
    struct mu_vanished gone; /* those who vanished, and what their notes say */
    size_t note_cursor;      /* in `gone`: whose note is read next */
    char who[TEXT_MAX];
    int64_t waiting; /* nodes that want to join, while it is not known yet who else is gone; 0: none */
    char waiting_text[TEXT_MAX];

    /* Going through the marks. */
    bool sweeping, full, second_look; /* full: of all, not only of those who vanished */
    bool missing;                     /* one mark at least is: the sweep need not go on for those who are there */
    int64_t cursor, stock_count, our_count;
    int64_t barrier_cursor; /* through those of 1.13 */
    uint64_t look_again_ms, scan_ms;
    bool unmarked;  /* a mark was overwritten, or is missing although its node is counted */
    bool uncounted; /* nobody knows whether we are in the counter */

    /* A closed job. */
    bool judging_closed;
    enum seen seen;
    struct mu_verdict verdict;
    int64_t closed_count; /* -1: not known */

    enum mu_completion_end end; /* what comes of VERDICT and CLOSING */
    bool has_verdict;           /* it is written, or somebody else's is there */
    uint64_t close_again_ms; /* when a close that failed is tried again; UINT64_MAX: it is under way, or not wanted */
    bool said_close_again;
    uint64_t removed_by_ms; /* another round was found: by then we hear that we were removed; UINT64_MAX: none was */
    bool fins;              /* 1.13: all marks are there */
    uint64_t fin_ms;        /* ... and so long everybody has to say that it has seen them */
    bool down;              /* the rendezvous says that the store is away */
    uint64_t away_ms;       /* since when the store has not answered; UINT64_MAX: it does, as far as we know */
    uint64_t gone_ms;       /* since when its host refuses connections; UINT64_MAX: it does not */
    char verdict_text[MU_VERDICT_TEXT_MAX];
    struct mu_buf replaced; /* what is none in the verdict's key; empty: nothing is there */
    char text[TEXT_MAX], warning[TEXT_MAX], foreign_text[MU_FOREIGN_TEXT_MAX];
};

/* completion.c */
struct mu_completion_effect *mu_completion_emit(struct mu_completion *f, enum mu_completion_effect_type type);
bool mu_completion_bit(const uint8_t *bits, int64_t rank);
const char *mu_completion_who(struct mu_completion *f);
void mu_completion_warn(struct mu_completion *f, const char *what, const struct muster_error *error);
/* A value of another kind in a key; `next`: what is done about it. */
void mu_completion_warn_foreign(struct mu_completion *f, const char *what, const char *key, struct mu_slice value,
                                const char *next);
bool mu_completion_is_tracked(const struct mu_completion *f); /* we hear of its members, and it can be closed */
bool mu_completion_is_private(const struct mu_completion *f); /* nobody of PyTorch looks: all keys are ours */
bool mu_completion_is_old(const struct mu_completion *f);     /* the keys are those of 1.13 */
bool mu_completion_has_marks(const struct mu_completion *f);  /* ours, beside what PyTorch writes */
bool mu_completion_is_done(const struct mu_completion *f);
void mu_completion_set_bit(uint8_t *bits, int64_t rank);
void mu_completion_enter(struct mu_completion *f, enum mu_completion_state state);

/* completion_verdict.c */
void mu_completion_be_idle(struct mu_completion *f, enum mu_completion_state state);
void mu_completion_end_as(struct mu_completion *f, enum mu_completion_end how);
void mu_completion_end_all_done(struct mu_completion *f);
void mu_completion_end_behind(struct mu_completion *f);
void mu_completion_end_over(struct mu_completion *f, const char *text);
void mu_completion_end_written(struct mu_completion *f); /* the verdict, and all that follows it */
void mu_completion_end_late(struct mu_completion *f);    /* the time for them is up */
void mu_completion_let_go(struct mu_completion *f);
void mu_completion_probe(struct mu_completion *f);
/* `cause`: for people. */
void mu_completion_give_verdict(struct mu_completion *f, enum mu_completion_end how, const char *cause);
void mu_completion_be_last(struct mu_completion *f);
void mu_completion_judge_closed(struct mu_completion *f);
void mu_completion_begin_judging_closed(struct mu_completion *f);
void mu_completion_take_verdict(struct mu_completion *f, const struct mu_ask_slot *slot,
                                const struct mu_answer *answer);
void mu_completion_take_budget(struct mu_completion *f, const struct mu_ask_slot *slot, const struct mu_answer *answer);
void mu_completion_take_rival(struct mu_completion *f, const struct mu_answer *answer);
void mu_completion_take_verdict_again(struct mu_completion *f, const struct mu_answer *answer);
void mu_completion_be_outdated(struct mu_completion *f);
void mu_completion_await_removal(struct mu_completion *f);
void mu_completion_look_again_at_round(struct mu_completion *f);
void mu_completion_verdict_written(struct mu_completion *f, const struct mu_ask_slot *slot,
                                   const struct mu_answer *answer);
void mu_completion_on_closed(struct mu_completion *f);
void mu_completion_on_close_failed(struct mu_completion *f, const struct muster_error *error);
void mu_completion_close_again(struct mu_completion *f);

/* completion_notes.c */
bool mu_completion_is_missed(const struct mu_completion *f);
void mu_completion_write_note(struct mu_completion *f, const struct mu_completion_event *event);
void mu_completion_listen(struct mu_completion *f);
void mu_completion_tell_others(struct mu_completion *f, const struct mu_completion_event *event);
void mu_completion_end_listening(struct mu_completion *f);
void mu_completion_take_failed(struct mu_completion *f, const struct mu_ask_slot *slot, const struct mu_answer *answer);
void mu_completion_read_notes(struct mu_completion *f);
void mu_completion_read_notes_again(struct mu_completion *f);
void mu_completion_take_note(struct mu_completion *f, const struct mu_ask_slot *slot, const struct mu_answer *answer);
bool mu_completion_are_notes_read(const struct mu_completion *f);
void mu_completion_on_waiting(struct mu_completion *f, const struct mu_completion_event *event);
void mu_completion_tell_waiting(struct mu_completion *f);

bool mu_completion_is_judging(const struct mu_completion *f); /* whether those who vanished were done */

/* completion_accounts.c */
void mu_completion_say_heard(struct mu_completion *f);
void mu_completion_take_heard(struct mu_completion *f, const struct mu_ask_slot *slot, const struct mu_answer *answer);
void mu_completion_fail(struct mu_completion *f);
void mu_completion_account(struct mu_completion *f);
void mu_completion_on_fail(struct mu_completion *f, const struct mu_completion_event *event);

/* completion_marks.c */
void mu_completion_sweep_on(struct mu_completion *f);
void mu_completion_set_mark(struct mu_completion *f);
void mu_completion_sweep(struct mu_completion *f);
void mu_completion_doubt(struct mu_completion *f);
void mu_completion_judge(struct mu_completion *f);
void mu_completion_on_lost(struct mu_completion *f, const struct mu_completion_event *event);
void mu_completion_begin_waiting(struct mu_completion *f, bool look_now);
void mu_completion_on_done(struct mu_completion *f);
void mu_completion_barrier_113_on(struct mu_completion *f);
void mu_completion_marked(struct mu_completion *f, const struct mu_ask_slot *slot, const struct mu_answer *answer);
void mu_completion_counted(struct mu_completion *f, const struct mu_answer *answer);

#endif
