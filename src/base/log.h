/* Logging whose sink is set from outside: by the command line, or by the user of the library. Without a sink nothing is
 * written. Code that returns an error does not log it; the code that handles it does. */
#ifndef MU_BASE_LOG_H
#define MU_BASE_LOG_H

#include "muster.h"

#include <stdint.h>

void mu_log(enum muster_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool mu_log_has_sink(void);
/* Whether lines of this level are shown: for text that is made only to be logged. mu_log() checks it too. */
bool mu_log_shows(enum muster_log_level level);
/* Lines contain names and texts from outside: characters that end a line, or that a terminal acts on, become question
 * marks. mu_log() does it by itself; this is for lines that go elsewhere. */
void mu_log_make_plain(char *line);

/* At most `burst` lines at once and `per_s` lines a second after that; what is held back is counted. Zeroed memory
 * with the two limits set is ready for use. */
struct mu_log_limit {
    uint32_t burst, per_s;
    uint32_t used;     /* lines of the burst that are spent */
    uint64_t since_ms; /* until when spent lines have been given back */
    uint64_t dropped;  /* lines held back since the last one that went out */
};

/* True when a line may go out now; *ret_dropped is then how many were held back before it. */
bool mu_log_allowed(struct mu_log_limit *limit, uint64_t now_ms, uint64_t *ret_dropped);

#endif
