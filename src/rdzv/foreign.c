/* What is said of a value that is none of ours. See foreign.h. */
#include "rdzv/foreign.h"

#include "base/words.h"

#include <stdio.h>

enum { SHOWN_MAX = 32 };

void mu_foreign_say(char text[static MU_FOREIGN_TEXT_MAX], const char *what, const char *key, struct mu_slice value,
                    const char *next)
{
    char shown[SHOWN_MAX + sizeof "..."];

    (void)snprintf(text, MU_FOREIGN_TEXT_MAX, "somebody has overwritten %s in '%.200s' (%zu byte%s: '%s'); %s", what,
                   key, value.len, value.len == 1 ? "" : "s", mu_words_plain(value, shown, sizeof shown), next);
}
