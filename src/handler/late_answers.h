/* Answers that have to wait. A machine asks for something within a step, and the answer is there at once: it may be
 * fed only when that step is over. Pure.
 *
 *           begin               end              next: an id, in the order of adding
 *   IDLE ----------> STEPPING ------> ANSWERING <---+
 *    ^                                 |  |  ^ +----+
 *    +-----------next: no more---------+  |  |
 *                                   begin v  | end
 *                                   STEPPING_AGAIN, on an answer
 *
 * The loop over `next` is the outer one's: a step on an answer only adds to what it goes through. */
#ifndef MU_HANDLER_LATE_ANSWERS_H
#define MU_HANDLER_LATE_ANSWERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MU_LATE_ANSWERS_MAX 32 /* that wait; no machine wants more at once */

enum mu_late_state { MU_LATE_IDLE, MU_LATE_STEPPING, MU_LATE_ANSWERING, MU_LATE_STEPPING_AGAIN };

struct mu_late_answers { /* zeroed memory is IDLE */
    enum mu_late_state state;
    uint64_t ids[MU_LATE_ANSWERS_MAX];
    size_t count;
};

void mu_late_begin(struct mu_late_answers *late);            /* a step begins; none is under way */
void mu_late_add(struct mu_late_answers *late, uint64_t id); /* within a step */
/* The step is over. True: call `next` until it returns false; false: the outer loop goes on. */
bool mu_late_end(struct mu_late_answers *late);
bool mu_late_next(struct mu_late_answers *late, uint64_t *ret_id); /* whose answer is to be fed now */
void mu_late_drop(struct mu_late_answers *late);                   /* nobody wants those that wait any more */

#endif
