/* The bytes of one stream, cut into lines, and the prefix of a line. Pure.
 *
 * A line ends with \n, \r\n or a lone \r, as in PyTorch's launcher, so that a progress bar is seen while it moves. A
 * line longer than MU_LINES_LINE_MAX is passed on in pieces. Bytes that are no text in any encoding stay as they are.
 * The sizes of the chunks that come in make no difference to the lines that come out. */
#ifndef MU_LOGS_LINES_H
#define MU_LOGS_LINES_H

#include "base/buf.h"
#include "base/error.h"

#include <stdint.h>

#define MU_LINES_LINE_MAX 65536
#define MU_PREFIX_MAX 1024 /* with its NUL; what is longer is cut */

/* Zeroed memory is a stream of which nothing has come. */
struct mu_lines {
    struct mu_buf held; /* the beginning of a line whose end has not come */
    bool inside;        /* a piece of the current line has been given away */
    bool given;         /* the last piece lay in `held` */
    bool after_cr;      /* a \n that comes next belongs to the line that has been given away */
};

struct mu_lines_piece {
    struct mu_slice text; /* without the line end; valid until the next call */
    bool starts, ends;    /* of a line */
};

/* Takes the next piece off the front of *input. True: there is one, call it again; false: *input is used up. */
bool mu_lines_next(struct mu_lines *lines, struct mu_slice *input, struct mu_lines_piece *ret_piece);
/* The stream has ended: the last line, if it has no end. False: there is none. */
bool mu_lines_end(struct mu_lines *lines, struct mu_lines_piece *ret_piece);
void mu_lines_done(struct mu_lines *lines);

/* Whose lines they are. */
struct mu_prefix_words {
    const char *role, *host;
    uint64_t rank;
    uint32_t local_rank;
};

/* Replaces ${role_name}, ${rank}, ${local_rank} and ${hostname} in a template; $name without braces does the same, $$
 * is one $, and everything else stays. NULL or empty: "[<role><local rank>]:". */
void mu_prefix_format(const char *template, const struct mu_prefix_words *words, char prefix[static MU_PREFIX_MAX]);

#endif
