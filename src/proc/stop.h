/* Stopping the workers of a job and what they left behind. Pure; one machine for one stop.
 *
 *   IDLE --stop--> GRACE --nobody alive in the groups, or time is up--> DRAIN --time is up--> KILLING --> DONE
 *                    |  every group got the signal                       |  1 s for the rest    |  SIGKILL for all,
 *                    |                                                   |  to end by itself    |  until none is left
 *                    +-- nobody alive at all ---------------------------->----------------------+--> DONE
 *
 * - GRACE is for workers. If none of them is alive when a stop begins, the rest of their groups gets the signal, and
 *   DRAIN begins.
 * - GRACE is over early when no process of the workers' groups is alive. When its time is up, workers that are alive
 *   get SIGKILL; not their groups yet: Python's resource tracker is in there, cleans /dev/shm when its worker is gone,
 *   and leaks it if it is killed with the worker. The groups and all others get SIGKILL at the end of DRAIN.
 * - PyTorch's torch_shm_manager takes the shared memory of dead workers away two seconds after the last process that it
 *   served has gone. If one is there at the end of DRAIN, only the groups are killed, and DRAIN goes on for
 *   MU_STOP_SHARED_MS.
 * - KILL makes it quicker by one step: in IDLE and GRACE the whole groups get SIGKILL and DRAIN begins; in DRAIN all
 *   the rest is killed at once.
 * - KILLING goes generation by generation: the children of a killed process become ours, and are in the next list. A
 *   process in state D is waited for MU_STOP_STUCK_MS and then named in DONE. A process that we may not kill is named
 *   at once.
 * - The children of a process that does not end stay its own. So all processes below it are listed and killed too, and
 *   waited for like the others: see mu_stop_wants_below().
 * - The driver reaps dead children that are not leaders before it lists; dead leaders stay unreaped while any process
 *   is listed, so that their group's number is not used again. */
#ifndef MU_PROC_STOP_H
#define MU_PROC_STOP_H

#include "proc/children.h"

#include <stdint.h>

#define MU_STOP_DRAIN_MS 1000  /* for what is left after the workers, to end by itself */
#define MU_STOP_SHARED_MS 3000 /* ... and for a torch_shm_manager after that */
#define MU_STOP_STUCK_MS 5000  /* for what does not end after SIGKILL */
#define MU_STOP_LIMIT_MS 30000 /* for all of KILLING, though new ones keep coming */
#define MU_STOP_LOOK_MS 10     /* the first look again in KILLING; then twice as long each time, up to ... */
#define MU_STOP_LOOK_MAX_MS 200
#define MU_STOP_LEFT_MAX 16 /* leftovers that are named; the rest is counted */

#define MU_STOP_STATES(X)                                                                                              \
    X(IDLE, "idle")                                                                                                    \
    X(GRACE, "grace")                                                                                                  \
    X(DRAIN, "drain")                                                                                                  \
    X(KILLING, "killing")                                                                                              \
    X(DONE, "done")

enum mu_stop_state {
#define X(name, text) MU_STOP_##name,
    MU_STOP_STATES(X)
#undef X
};

/* Every event carries the list of the processes that are there now. */
enum mu_stop_event_type {
    MU_STOP_ON_STOP,     /* signal, grace_ms. In GRACE: the earlier end counts, and the signal is sent too unless it was
                      * sent before. Later: no effect */
    MU_STOP_ON_KILL,     /* the user is in a hurry, or this node was removed: see above */
    MU_STOP_ON_CHILDREN, /* a process ended or was adopted */
    MU_STOP_ON_TIME,
};

struct mu_stop_child {
    pid_t pid;
    char state;       /* as in struct mu_child; '?' when only known to be there */
    bool leader;      /* a worker itself */
    int32_t rank;     /* local rank of the worker in whose group it is; -1: in none of them (any more) */
    bool refused;     /* a signal to it was refused: EPERM */
    bool below;       /* no child of ours, but below one that does not end */
    const char *comm; /* borrowed */
};

struct mu_stop_event { /* borrows what it points to */
    enum mu_stop_event_type type;
    uint64_t now_ms;
    int signal;
    uint64_t grace_ms;
    const struct mu_stop_child *children;
    size_t count;
    bool hidden; /* there are more, which cannot be seen: /proc is not usable */
};

enum mu_stop_effect_type {
    MU_STOP_DO_SIGNAL_GROUPS,   /* signal: to the group of every worker that is not reaped, dead or alive */
    MU_STOP_DO_SIGNAL_LEADERS,  /* signal: to every worker that is alive */
    MU_STOP_DO_SIGNAL_CHILDREN, /* signal: to every direct child that is alive */
    MU_STOP_DO_SIGNAL_BELOW,    /* signal: to those of the list that are below; their identity has to be checked
                                 * again */
    MU_STOP_DO_SAY,             /* text, for the log, a warning */
    MU_STOP_DO_DONE,            /* stop->left: what could not be killed. The leaders can be reaped now */
};

struct mu_stop_effect { /* borrows from the machine, until its next step */
    enum mu_stop_effect_type type;
    int signal;
    const char *text;
};

#define MU_STOP_EFFECTS_MAX 6

struct mu_stop_effects {
    struct mu_stop_effect items[MU_STOP_EFFECTS_MAX];
    unsigned count;
};

struct mu_stop_left {
    pid_t pid;
    char state;
    bool refused;
    char comm[MU_CHILD_COMM_MAX];
};

struct mu_stop {
    enum mu_stop_state state;
    uint64_t poll_ms; /* deaths are not events (there is no adoption): look this often. 0: they are events */
    int signal;
    uint64_t until_ms;      /* of the state */
    uint64_t look_ms;       /* when to look again; UINT64_MAX: when told */
    uint64_t look_delay_ms; /* before the look after that */
    uint64_t stuck_ms;      /* KILLING: since when only those are left that do not end; UINT64_MAX: there are others */
    struct mu_stop_left left[MU_STOP_LEFT_MAX]; /* DONE: could not be killed. KILLING: was alive when it began */
    size_t left_count;                          /* may be above MU_STOP_LEFT_MAX */
    bool hidden;                                /* ... and more that could not be seen */
    bool waited;                                /* in DRAIN, for managers of shared memory */
    size_t killed_count;                        /* not workers, and did not end by themselves */
    char text[1024];
};

void mu_stop_init(struct mu_stop *stop, uint64_t poll_ms);
/* Same state, same event, same effects, always. Cannot fail. `out` is overwritten. */
void mu_stop_step(struct mu_stop *stop, const struct mu_stop_event *event, struct mu_stop_effects *out);
/* Whether the next list must contain all processes below this one. */
bool mu_stop_wants_below(const struct mu_stop *stop, const struct mu_stop_child *child);
uint64_t mu_stop_deadline_ms(const struct mu_stop *stop); /* when TIME is wanted; UINT64_MAX: never */
const char *mu_stop_state_name(enum mu_stop_state value);
/* "4711 (python, state D), 4712 (sudo, state S, not permitted) and 3 more" */
void mu_stop_left_text(const struct mu_stop *stop, char *to, size_t room);

#endif
