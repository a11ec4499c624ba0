/* Who has vanished from a round, and in which words that is told: "node9 left (SIGTERM)", "lost node9: no heartbeat for
 * 15 s", "lost node9: its agent was killed". Pure; a part of completion.h's machine.
 *
 * A member that goes on purpose leaves a note in the job's store first, under its rank (T left/<rank>, see
 * rdzv/round_keys.h): that it leaves, and why; or that it comes again, in the next round, and what made it. A member
 * that vanishes without a note is lost, unless the rendezvous says that it waits for the next round. The note of a
 * member whose agent was killed is written by its keeper (proc/will.h): that member is lost too, and the note says how.
 * PyTorch members leave no notes: of them it is only said that they are gone. */
#ifndef MU_AGENT_VANISHED_H
#define MU_AGENT_VANISHED_H

#include "base/slice.h"

#include <stddef.h>
#include <stdint.h>

#define MU_VANISHED_MAX 65536   /* members; those beyond are taken for lost */
#define MU_VANISHED_NAMED_MAX 8 /* in a sentence; the rest is counted */
#define MU_VANISHED_NAME_MAX 96
#define MU_VANISHED_NOTE_MAX 320 /* of a note, with its NUL */
#define MU_VANISHED_CAUSE_MAX 128

enum mu_vanished_note {
    MU_NOTE_NONE,  /* or not read yet */
    MU_NOTE_LEFT,  /* why: what made it leave */
    MU_NOTE_AGAIN, /* why: what ended the round for it, in whole words */
    MU_NOTE_LOST,  /* why: how it was lost */
};

struct mu_vanished_member {
    int64_t rank; /* -1: not known */
    char name[MU_VANISHED_NAME_MAX];
    bool ours;  /* not PyTorch */
    bool waits; /* for the next round */
    bool done;  /* its workers had succeeded: it is not missed */
    enum mu_vanished_note note;
    char why[MU_VANISHED_NOTE_MAX];
};

struct mu_vanished { /* zeroed memory: nobody */
    struct mu_vanished_member *members;
    size_t count, room;
    size_t unknown;                    /* more of them, for whom there was no memory: taken for lost */
    char cause[MU_VANISHED_CAUSE_MAX]; /* what the rendezvous knows of those without a note; empty: nothing */
};

/* Copies as much as fits, as one line: control characters become spaces. */
void mu_line_copy(char *to, size_t room, struct mu_slice from);

void mu_vanished_done(struct mu_vanished *vanished); /* nobody has vanished any more */
void mu_vanished_copy(struct mu_vanished *to, const struct mu_vanished *from);
/* Those that are there already stay as they are. */
void mu_vanished_add(struct mu_vanished *vanished, int64_t rank, const char *name, bool ours, bool waits);
void mu_vanished_set_cause(struct mu_vanished *vanished, const char *cause); /* NULL: nothing is known */

/* The text of a mark, which names the rank that it stands under: anything else there is none. */
#define MU_MARK_DONE "done"
#define MU_MARK_HEARD "heard"
#define MU_MARK_UNTOLD "untold" /* in T failed: this member hears nothing any more */
void mu_vanished_write_mark(char text[static MU_VANISHED_NOTE_MAX], const char *what, int64_t rank, const char *node);
bool mu_vanished_is_mark(struct mu_slice text, const char *what, int64_t rank);

/* The text of a note; `text` has room for MU_VANISHED_NOTE_MAX bytes. */
void mu_vanished_write_note(char *text, enum mu_vanished_note note, const char *why); /* LEFT, AGAIN or LOST */
/* What was found under a member's rank; nothing that we could read is no note. */
void mu_vanished_read_note(struct mu_vanished_member *member, struct mu_slice text);

bool mu_vanished_any_lost(const struct mu_vanished *vanished); /* neither done nor goodbye */
/* One sentence about all who are missed, without a full stop. */
void mu_vanished_say(const struct mu_vanished *vanished, char *text, size_t room);

#endif
