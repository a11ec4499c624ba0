/* How a call is written on the wire. Pure. */
#ifndef MU_STORE_REQUESTS_H
#define MU_STORE_REQUESTS_H

#include "store/calls.h"

/* What a request is answered by. */
enum mu_answer_shape {
    MU_ANSWER_NONE,   /* no answer */
    MU_ANSWER_WAIT,   /* one byte; may be cancelled */
    MU_ANSWER_READY,  /* one byte: CHECK */
    MU_ANSWER_WORD,   /* u32 */
    MU_ANSWER_NUMBER, /* i64 */
    MU_ANSWER_BYTES,
    MU_ANSWER_POPPED, /* i64, and bytes if it is above 0 */
    MU_ANSWER_VALUES, /* `left` times bytes */
    MU_ANSWER_KEYS,   /* i64 count, then each key as bytes */
};

/* Appends the call's next request to `out` and tells what answer it gets. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_request_put(struct mu_calls *calls, const struct mu_call *call, enum mu_answer_shape *ret_shape);
int mu_request_put_cancel(struct mu_calls *calls);

#endif
