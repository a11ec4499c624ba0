/* The last lines of a stream, for the report on a worker that failed. */
#ifndef MU_LOGS_TAIL_H
#define MU_LOGS_TAIL_H

#include "base/buf.h"

#define MU_TAIL_BYTES_MAX 4096
#define MU_TAIL_LINES_MAX 20

/* Zeroed memory is an empty one. */
struct mu_tail {
    char bytes[MU_TAIL_BYTES_MAX]; /* a ring */
    size_t at, len;                /* where the next byte goes; how many there are */
    bool cut;                      /* earlier bytes are gone */
};

void mu_tail_add(struct mu_tail *tail, struct mu_slice bytes);
/* Puts the last whole lines into `ret`, which is emptied first: at most MU_TAIL_LINES_MAX, \n between them and none at
 * the end. A beginning that is cut off is left out unless there is nothing else. MUSTER_ENOMEM. */
int mu_tail_text(const struct mu_tail *tail, struct mu_buf *ret);

/* The same from the end of a file; an empty text when it cannot be read. */
int mu_tail_file(const char *path, struct mu_buf *ret);

#endif
