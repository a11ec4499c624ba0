/* The conversation between a handler and its owner, together with the boot of a round. Pure: events in, effects out.
 *
 * A handler has three parts beside this one. The machine (rdzv.h, classic.h or fold.h) finds the members of a round.
 * The boot (boot.h) agrees on where the workers of that round meet. A back end that has to be found first (c10d,
 * etcd-v2) comes before both. This machine decides what each of them is asked, and what the owner is told:
 *
 *                                +------------------- lost, removed --------------------+
 *                                v                                                      |
 *   IDLE ------ JOIN -----> JOINING --machine: joined--> BOOTING --booted--> JOINED     |
 *    ^ ^                       |                           | | |               |        |
 *    | +---- failed -----------+---------------------------+ | +---------------|--------+ (before the join's deadline)
 *    |                                                       v boot failed, or lost after the deadline
 *    +------------- left: FAILED is told ------------- GIVING_UP               |
 *    |                                                                         |
 *    +--left-- LEAVING <---------------- LEAVE, from any of these -------------+
 *                |  ^
 *           JOIN v  | LEAVE
 *           LEAVING_TO_JOIN --left--> JOINING
 *
 *   Before that, where the back end has to be found:
 *   UNSOUGHT --turn--> SEEKING --found--> IDLE, JOINING, LEAVING or LEAVING_TO_JOIN, by what was asked meanwhile
 *      ^                  v not found: what was asked has failed
 *      +---JOIN, CLOSE, LOOK--- ABSENT
 *   From any state with a back end: --the job meets elsewhere (MOVED)--> UNSOUGHT, and what was asked is asked there
 *
 * What holds:
 *  - Each JOIN has one answer: JOINED, FAILED, or, where the owner has asked to LEAVE since, what that brings.
 *  - The owner hears only of the round that it was told it joined, until it leaves or joins again. What a machine says
 *    of other rounds is dropped.
 *  - A round that is lost while it boots is not told. The next one is joined instead, until the join's deadline.
 *  - A node whose boot has failed leaves the round before the owner hears of it, so that others can regroup.
 *  - The machine is never asked to JOIN while it is joining or leaving.
 *  - Nothing is told, and the machine is not asked, from inside of the owner's call: see TURN. The boot is stopped at
 *    once.
 *  - A REPORT is of the round that the owner was told of last, and is handed on before what the owner asks next. In no
 *    round there is nothing to report. It changes no state.
 *
 * This machine has no timer. Each wait has its deadline elsewhere: JOINING and LEAVING in the machine, BOOTING in the
 * boot, SEEKING in what looks for the back end.
 *
 * What the handlers do differently, and why:
 *  - etcd-v3 and the classic etcd rendezvous have no back end to find: their machines wait for etcd themselves. They
 *    begin with IDLE. So does a dynamic rendezvous on a user's back end.
 *  - Only the document machine fails to leave (FAILED, LEAVE): it has to write. The others let a lease end.
 *  - A dynamic handler shows others that it waits (notice_board.h) for as long as mu_talk_is_joining(). */
#ifndef MU_HANDLER_TALK_H
#define MU_HANDLER_TALK_H

#include "rdzv/part.h"

#include <stdbool.h>
#include <stddef.h>

#define MU_TALK_STATES(X)                                                                                              \
    X(UNSOUGHT, "unsought") /* the back end is to be looked for */                                                     \
    X(SEEKING, "seeking")   /* it is being looked for */                                                               \
    X(ABSENT, "absent")     /* it was not found */                                                                     \
    X(IDLE, "idle")         /* in no round that the owner knows or waits for */                                        \
    X(JOINING, "joining")   /* the machine joins, or is about to be asked to */                                        \
    X(BOOTING, "booting")   /* it has joined; where the workers meet is being agreed on */                             \
    X(JOINED, "joined")     /* the owner knows of the round */                                                         \
    X(GIVING_UP, "giving up")                                                                                          \
    X(LEAVING, "leaving")                                                                                              \
    X(LEAVING_TO_JOIN, "leaving to join") /* JOIN was asked while leaving */

enum mu_talk_state {
#define X(name, text) MU_TALK_##name,
    MU_TALK_STATES(X)
#undef X
};

enum mu_talk_event_type {
    MU_TALK_ON_ASKED,  /* by the owner: asked (JOIN, LEAVE, CLOSE, LOOK; REPORT: report). No JOIN before the last one is
                          answered */
    MU_TALK_ON_TURN,   /* from the loop, once mu_talk_is_due() */
    MU_TALK_ON_TOLD,   /* by the machine: news */
    MU_TALK_ON_BOOTED, /* the boot is done */
    MU_TALK_ON_BOOT_FAILED, /* error */
    MU_TALK_ON_FOUND,       /* the back end is there */
    MU_TALK_ON_NOT_FOUND,   /* error */
    MU_TALK_ON_MOVED,       /* the back end has to be found anew, and the machine is gone: close, look */
};

struct mu_talk_event { /* borrows what it points to */
    enum mu_talk_event_type type;
    uint64_t now_ms;
    enum mu_part_event_type asked;
    const struct mu_part_report *report;
    const struct mu_part_news *news;
    const struct muster_error *error;
    bool close, look; /* MOVED: the machine was asked to, and has not answered */
};

enum mu_talk_effect_type {
    MU_TALK_DO_ASK,        /* the machine: asked, report */
    MU_TALK_DO_START_BOOT, /* of the round that the machine has joined */
    MU_TALK_DO_STOP_BOOT,
    MU_TALK_DO_FIND, /* the back end; FOUND or NOT_FOUND comes later, or from inside */
    MU_TALK_DO_TELL, /* the owner: mu_talk_event(). Who the nodes are, the handler knows: mu_talk_nodes() */
};

struct mu_talk_effect { /* borrows from the machine and from the event, until the next step */
    enum mu_talk_effect_type type;
    enum mu_part_tell tell;
    enum mu_part_event_type asked; /* TELL: what has FAILED (TIME: the membership of the round), or is now CLOSED */
    const struct mu_part_report *report; /* ASK, of REPORT */
    int64_t round, count;
    const struct muster_error *error; /* FAILED, BACKEND_DOWN; LOOKED and REPORTED, if it was not possible */
    const char *who;                  /* WAITING: the first of them; NULL: not known */
};

#define MU_TALK_EFFECTS_MAX 4
#define MU_TALK_NAME_MAX 256

struct mu_talk_effects {
    struct mu_talk_effect items[MU_TALK_EFFECTS_MAX];
    unsigned count;
};

#define MU_TALK_REPORTS_MAX 2 /* of a round, before the first was begun: a worker has failed, and the node leaves */
#define MU_TALK_QUEUE_MAX                                                                                              \
    (4 + MU_TALK_REPORTS_MAX) /* JOIN, LEAVE, CLOSE, LOOK: what is asked twice before it was begun is asked once */

struct mu_talk_report {
    struct mu_part_report report;
    char text[MU_PART_REPORT_MAX];
};

struct mu_talk {
    enum mu_talk_state state;
    enum mu_part_event_type queue[MU_TALK_QUEUE_MAX]; /* what the machine is still to be asked, in this order */
    size_t queue_count;
    struct mu_talk_report reports[MU_TALK_REPORTS_MAX + 1]; /* in the queue; the last is the one that is asked now */
    size_t reports_count;
    uint64_t join_ms, join_deadline_ms;
    int64_t round; /* that was told last; -1: none */
    /* BOOTING. */
    int64_t boot_round;
    int64_t waiting;                      /* nodes that wait: told behind JOINED. 0: none */
    char waiting_who[MU_TALK_NAME_MAX];   /* the first of them; "": not known */
    bool closed;                          /* the job is: told behind JOINED */
    struct muster_error error;            /* GIVING_UP: why */
    uint64_t joins_asked, joins_answered; /* answered, or taken back */
};

/* `finds_back_end`: FIND comes first. Zeroed memory is not enough. */
void mu_talk_init(struct mu_talk *t, uint64_t join_ms, bool finds_back_end);

/* Same state, same event, same effects, always. Cannot fail. `out` is overwritten. The effects are to be performed in
 * order; the owner, when told, may ask from inside. */
void mu_talk_step(struct mu_talk *t, const struct mu_talk_event *event, struct mu_talk_effects *out);

bool mu_talk_is_due(const struct mu_talk *t);     /* TURN is wanted, from the loop; asked after every step */
bool mu_talk_is_joining(const struct mu_talk *t); /* the back end is there, and the owner waits for JOINED */
bool mu_talk_has_back_end(const struct mu_talk *t);

const char *mu_talk_state_text(enum mu_talk_state value);

/* What the driver knows besides, and room for what a tell points to. */
struct mu_talk_facts {
    const struct mu_part_ops *part_ops;
    const void *part;                          /* the machine; NULL: there is no back end */
    const struct mu_part_news *news;           /* what the machine told in this step; NULL: nothing */
    const char *loss_cause;                    /* how this back end notices a loss */
    const struct muster_store_info *bootstrap; /* JOINED: where the workers meet */
    int64_t nodes_min, nodes_max;              /* PROGRESS: this node's limits */
    uint64_t now_ms;                           /* PROGRESS */
    struct muster_error error;
    struct muster_node first; /* of the nodes that wait */
    struct muster_rdzv_info info;
    struct muster_rdzv_progress progress;
};

/* A TELL in the words of the owner, but for the nodes that go with it. It points into `facts`. */
struct muster_rdzv_event mu_talk_event(const struct mu_talk *t, const struct mu_talk_effect *effect,
                                       struct mu_talk_facts *facts);
/* A tell that the machine did not make: progress may have changed. */
extern const struct mu_part_news mu_talk_progress_news;
/* What was asked, in the words of the owner. */
enum muster_rdzv_request mu_talk_request(enum mu_part_event_type asked);

enum mu_talk_nodes {
    MU_TALK_NODES_NONE,
    MU_TALK_NODES_MEMBERS, /* JOINED: of the round */
    MU_TALK_NODES_WAITING, /* WAITING: those that could be let in. The event has the first of them already */
    MU_TALK_NODES_LOST,    /* LOST: those that the machine names with it */
    MU_TALK_NODES_SEEN,    /* PROGRESS: that have joined, or wait */
};

enum mu_talk_nodes mu_talk_nodes(enum mu_part_tell tell); /* which go with it */

#endif
