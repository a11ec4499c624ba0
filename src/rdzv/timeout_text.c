/* The words for a wait that was in vain. */
#include "rdzv/timeout_text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

enum { NAME_SHOWN_MAX = 64 }; /* bytes of a node's name */

static void add(char text[static MU_TIMEOUT_TEXT_MAX], const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(char text[static MU_TIMEOUT_TEXT_MAX], const char *format, ...)
{
    size_t used = strlen(text);
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text + used, MU_TIMEOUT_TEXT_MAX - used, format, args);
    va_end(args);
}

const char *mu_timeout_text_write(const struct mu_timeout_text *came, char text[static MU_TIMEOUT_TEXT_MAX])
{
    size_t shown = came->nodes_count < MU_TIMEOUT_TEXT_NAMES_MAX ? came->nodes_count : MU_TIMEOUT_TEXT_NAMES_MAX;

    text[0] = '\0';
    add(text, "timed out after %" PRIu64 " s: %" PRId64 " of %" PRId64, came->waited_ms / 1000, came->joined,
        came->nodes_min);
    if (came->nodes_max > came->nodes_min)
        add(text, " to %" PRId64, came->nodes_max);
    add(text, " node%s joined", came->nodes_max == 1 ? "" : "s");
    for (size_t i = 0; came->nodes != NULL && i < shown; i++)
        add(text, "%s%.*s", i == 0 ? " (" : ", ",
            (int)(came->nodes[i].name.len < NAME_SHOWN_MAX ? came->nodes[i].name.len : NAME_SHOWN_MAX),
            came->nodes[i].name.data);
    if (came->nodes != NULL && shown > 0) {
        if (came->nodes_count > shown)
            add(text, " and %zu more", came->nodes_count - shown);
        add(text, ")");
    }
    return text;
}
