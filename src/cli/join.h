/* What `muster join` does when something happens, and what it says. Pure: events and the time come in, effects go out.
 *
 *   JOINING --joined--> STAYING --time over, or a signal--> LEAVING --left, failed, or too slow--> PARTING --> OVER
 *      |  \                |                                  ^                                                ^
 *      |   \---- signal ---|----------------------------------+                                                |
 *      +------ failed -----+------------------------------ removed, failed ------------------------------------+
 *
 * Without --hold it still stays for a moment if it is not alone: the node that completes a round sees it first, and if
 * it left at once, slower members would find a round that is breaking up. PARTING is a moment too: the store may be in
 * this process, and others may be leaving by it right now. Signals that come again mean what they mean to `muster run`
 * (proc/signals.h). */
#ifndef MU_CLI_JOIN_H
#define MU_CLI_JOIN_H

#include "cli/join_text.h"
#include "cli/waiting.h"
#include "proc/signals.h"

#define MU_JOIN_LINGER_MS 1000
#define MU_JOIN_LEAVE_MS 2000
#define MU_JOIN_PARTING_MS 250
#define MU_JOIN_LOOK_MS 1000 /* between two looks at a terminal */
#define MU_JOIN_SAID 6       /* places to say something */

enum { MU_JOIN_EXIT_CLOSED = 3, MU_JOIN_EXIT_TIMEOUT = 4, MU_JOIN_EXIT_REMOVED = 5 };

enum mu_join_phase { MU_JOIN_JOINING, MU_JOIN_STAYING, MU_JOIN_LEAVING, MU_JOIN_PARTING, MU_JOIN_OVER };

struct mu_join_config { /* strings are borrowed, for as long as the machine is used */
    struct mu_join_about about;
    bool json, terminal; /* what stdout gets; whether stderr is a terminal */
    int64_t hold_ms;     /* 0: leaves after joining */
};

enum mu_join_event_type {
    MU_JOIN_START,
    MU_JOIN_TOLD,    /* told: by the handler */
    MU_JOIN_SIGNAL,  /* number */
    MU_JOIN_UNHEARD, /* text: why stdout does not take what was printed */
    MU_JOIN_TIME,
};

struct mu_join_event { /* borrows what it points to */
    enum mu_join_event_type type;
    uint64_t now_ms;
    const struct muster_rdzv_event *told;
    const char *text;
    int number;
};

struct mu_join_effects { /* borrows from the machine, until the next step */
    bool join, leave;    /* ask the handler for it */
    bool over;           /* end what runs; the exit code stands */
    bool at_once;        /* without waiting for anything */
    union {
        struct {
            struct mu_slice out;                   /* whole lines for stdout */
            struct mu_slice warning, notice, info; /* whole lines for the log */
            struct mu_slice err;    /* whole lines that say why it ends, each with the command's name in front */
            struct mu_slice status; /* what a terminal shows below them; empty: nothing */
        };
        struct mu_slice said[MU_JOIN_SAID]; /* all of these */
    };
};

struct mu_join {
    struct mu_join_config config;
    enum mu_join_phase phase;
    int exit_code;
    struct mu_signals_seen signals;
    uint64_t until_ms;  /* the end of any phase but JOINING and OVER */
    int64_t world_size; /* since it joined; 0: it has not */
    int64_t round;
    bool is_down; /* the back end, since down_ms */
    uint64_t down_ms;
    struct mu_waiting waiting;
    uint64_t looked_ms; /* at the wait, for the terminal */
    union {             /* what is said in this step */
        struct {
            struct mu_text out, warning, notice, info, err, status;
        };
        struct mu_text said[MU_JOIN_SAID];
    };
};

void mu_join_init(struct mu_join *join, const struct mu_join_config *config);
void mu_join_done(struct mu_join *join);
/* Same state, same event, same effects, always. Out of memory ends it, with an exit code. `ret` is overwritten. */
void mu_join_step(struct mu_join *join, const struct mu_join_event *event, struct mu_join_effects *ret);
uint64_t mu_join_deadline_ms(const struct mu_join *join); /* when TIME is wanted; UINT64_MAX: never */

#endif
