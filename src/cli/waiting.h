/* A node's wait for a rendezvous: when to report it, and its status. Pure: events and the time come in.
 *
 * A short wait is not reported. A longer one is reported after 5, 10, 20, 40 and 60 s, then every 60 s. Changes in
 * between are for -v. A change is reported when it has lasted for a second, so that many nodes that join at once do not
 * make a line each. */
#ifndef MU_CLI_WAITING_H
#define MU_CLI_WAITING_H

#include "cli/join_text.h"

#define MU_WAITING_CHANGE_MS 1000

enum mu_waiting_state {
    MU_WAITING_OFF,  /* the node waits for nothing */
    MU_WAITING_ON,   /* it has asked to join */
    MU_WAITING_DOWN, /* the same, and the back end is away */
};

struct mu_waiting { /* zeroed memory is ready for use */
    enum mu_waiting_state state;
    uint64_t since_ms, down_ms; /* when the wait began; with DOWN, when the back end went */
    uint64_t told_ms;           /* up to which moment of the schedule it was told */
    uint64_t changed_ms;        /* since when the progress is untold; UINT64_MAX: it is not */
    bool has_progress;
    int64_t round;                        /* of the progress */
    struct muster_rdzv_progress progress; /* told last, at progress_ms */
    uint64_t progress_ms;
    struct mu_text names; /* of the members; its bytes end with a NUL */
    struct mu_text note;  /* what the back end knows of others at the endpoint; the same */
    bool note_told;
};

/* The first moment of the schedule after `waited_ms`. */
uint64_t mu_waiting_next_ms(uint64_t waited_ms);

void mu_waiting_begin(struct mu_waiting *waiting, uint64_t now_ms);
void mu_waiting_end(struct mu_waiting *waiting);
/* PROGRESS, BACKEND_DOWN and BACKEND_UP; others change nothing. */
void mu_waiting_take(struct mu_waiting *waiting, const struct muster_rdzv_event *event, uint64_t now_ms);

/* When mu_waiting_tell() has something to tell; UINT64_MAX: never. */
uint64_t mu_waiting_due_ms(const struct mu_waiting *waiting);
/* True, and a line without its end, if something is due. *ret_scheduled: by the schedule; else it is a change. */
bool mu_waiting_tell(struct mu_waiting *waiting, const struct mu_join_about *about, uint64_t now_ms,
                     struct mu_text *out, bool *ret_scheduled);
/* The status now, for a terminal. Nothing if the node does not wait. */
void mu_waiting_status(const struct mu_waiting *waiting, const struct mu_join_about *about, uint64_t now_ms,
                       struct mu_text *out);
void mu_waiting_done(struct mu_waiting *waiting);

#endif
