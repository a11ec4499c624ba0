/* What is said of a value that is none of ours. See foreign.h. */
#include "rdzv/foreign.h"

#include <stdio.h>

enum { SHOWN_MAX = 32 };

void mu_foreign_say(char text[static MU_FOREIGN_TEXT_MAX], const char *what, const char *key, struct mu_slice value,
                    const char *next)
{
    char shown[SHOWN_MAX + 1];
    size_t len = value.len < SHOWN_MAX ? value.len : SHOWN_MAX;

    for (size_t i = 0; i < len; i++)
        shown[i] = value.data[i] >= ' ' && value.data[i] < 0x7f ? value.data[i] : '?';
    shown[len] = '\0';
    (void)snprintf(text, MU_FOREIGN_TEXT_MAX, "somebody has overwritten %s in '%.200s' (%zu byte%s: '%s%s'); %s", what,
                   key, value.len, value.len == 1 ? "" : "s", shown, value.len > SHOWN_MAX ? "..." : "", next);
}
