/* The form of a line in the log, the same for every command. Pure: the time comes in, bytes go out.
 *
 *   2026-11-16T12:07:10.042Z node2 muster[4711] warning: lost node9: its agent was killed
 *   2026-11-16T12:07:10.042Z muster[4711] warning: ...                 (on a terminal, where the host is known)
 *
 * The time is UTC, so that lines of nodes in different time zones can be sorted as text. */
#ifndef MU_CLI_LOG_LINE_H
#define MU_CLI_LOG_LINE_H

#include "muster.h"

#include <time.h>

enum { MU_LOG_LINE_MAX = 2048 }; /* bytes of a line, its end included; less than PIPE_BUF */

struct mu_log_style {
    const char *host; /* this machine's name */
    int pid;          /* of the process that writes the line */
    bool terminal;    /* a person sees the line at once: no host */
    bool colour;      /* the level of a warning or an error stands out */
};

/* Writes one line with its end to `out` and returns its length. A longer text is cut. Control characters in the host's
 * name become question marks, as they do in the text of a line (base/log.h). */
size_t mu_log_line(const struct mu_log_style *style, struct timespec when, enum muster_log_level level,
                   const char *text, char out[static MU_LOG_LINE_MAX]);

/* Whether lines are coloured: on a terminal, unless NO_COLOR holds something or TERM says that it cannot. Either value
 * may be NULL: not set. */
bool mu_log_wants_colour(bool terminal, const char *no_color, const char *term);

#endif
