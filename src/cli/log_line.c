/* The form of a line in the log. */
#include "cli/log_line.h"

#include "base/log.h"

#include <stdio.h>
#include <string.h>

enum { HOST_MAX = 255 };

static const char red[] = "\033[1;31m", yellow[] = "\033[33m", no_colour[] = "\033[0m";

size_t mu_log_line(const struct mu_log_style *style, struct timespec when, enum muster_log_level level,
                   const char *text, char out[static MU_LOG_LINE_MAX])
{
    bool coloured = style->colour && level >= MUSTER_LOG_WARNING;
    char stamp[32] = "", host[HOST_MAX + 2] = "";
    struct tm utc = { 0 };
    int len;

    (void)gmtime_r(&when.tv_sec, &utc);
    (void)strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &utc);
    if (!style->terminal) {
        (void)snprintf(host, sizeof host, "%.*s ", HOST_MAX, style->host);
        mu_log_make_plain(host);
    }
    len = snprintf(out, MU_LOG_LINE_MAX - 1, "%s.%03ldZ %smuster[%d] %s%s:%s %s", stamp, when.tv_nsec / 1000000, host,
                   style->pid,
                   !coloured                     ? ""
                   : level == MUSTER_LOG_WARNING ? yellow
                                                 : red,
                   muster_log_level_name(level), coloured ? no_colour : "", text);
    if (len > MU_LOG_LINE_MAX - 2)
        len = MU_LOG_LINE_MAX - 2;
    out[len++] = '\n';
    return (size_t)len;
}

bool mu_log_wants_colour(bool terminal, const char *no_color, const char *term)
{
    return terminal && (no_color == NULL || no_color[0] == '\0') && (term == NULL || strcmp(term, "dumb") != 0);
}
