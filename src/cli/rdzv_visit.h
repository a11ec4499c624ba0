/* A visit to a rendezvous that we do not join: look whether it is there and, if that is wanted, close it. Pure: events
 * and the time come in, effects go out.
 *
 *   LOOKING --it is there--> CLOSING --closed--> OVER
 *      |                        |                 ^
 *      +-- that was all, it is closed already, it is not there, an error, or the time is up --+ */
#ifndef MU_CLI_RDZV_VISIT_H
#define MU_CLI_RDZV_VISIT_H

#include "cli/join_text.h"

#define MU_RDZV_VISIT_TIMEOUT_MS 30000 /* in all, unless said otherwise: PyTorch's time for closing */

enum mu_rdzv_visit_phase { MU_RDZV_VISIT_LOOKING, MU_RDZV_VISIT_CLOSING, MU_RDZV_VISIT_OVER };

struct mu_rdzv_visit_config { /* strings are borrowed, for as long as the machine is used */
    struct mu_join_about about;
    bool close;
    int64_t timeout_ms; /* 0: MU_RDZV_VISIT_TIMEOUT_MS */
};

enum mu_rdzv_visit_event_type {
    MU_RDZV_VISIT_START,
    MU_RDZV_VISIT_TOLD, /* told: by the handler */
    MU_RDZV_VISIT_TIME,
};

struct mu_rdzv_visit_event { /* borrows what it points to */
    enum mu_rdzv_visit_event_type type;
    uint64_t now_ms;
    const struct muster_rdzv_event *told;
};

struct mu_rdzv_visit_effects {
    bool look, close; /* ask the handler for it */
    bool over;        /* exit_code, round, out and err stand */
};

struct mu_rdzv_visit {
    struct mu_rdzv_visit_config config;
    enum mu_rdzv_visit_phase phase;
    uint64_t until_ms;
    int exit_code;
    int64_t round;             /* the present one; -1: not known */
    struct mu_text out, err;   /* a line each, without its end */
    struct muster_error cause; /* why the back end is away; code 0: it is not, as far as we know */
};

void mu_rdzv_visit_init(struct mu_rdzv_visit *visit, const struct mu_rdzv_visit_config *config);
void mu_rdzv_visit_done(struct mu_rdzv_visit *visit);
/* Same state, same event, same effects, always. `ret` is overwritten. */
void mu_rdzv_visit_step(struct mu_rdzv_visit *visit, const struct mu_rdzv_visit_event *event,
                        struct mu_rdzv_visit_effects *ret);
uint64_t mu_rdzv_visit_deadline_ms(const struct mu_rdzv_visit *visit); /* when TIME is wanted; UINT64_MAX: never */

#endif
