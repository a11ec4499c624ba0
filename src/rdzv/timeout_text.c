/* The text of "timed out": how long, how many nodes joined, and which. */
#include "rdzv/timeout_text.h"

#include "base/words.h"

#include <inttypes.h>

enum { NAME_SHOWN_MAX = 64 }; /* bytes of a node's name */

const char *mu_timeout_text_write(const struct mu_timeout_text *came, char text[static MU_TIMEOUT_TEXT_MAX])
{
    size_t shown = came->nodes_count < MU_TIMEOUT_TEXT_NAMES_MAX ? came->nodes_count : MU_TIMEOUT_TEXT_NAMES_MAX;
    struct mu_words words = mu_words_into(text, MU_TIMEOUT_TEXT_MAX);

    mu_words_add(&words, "timed out after %" PRIu64 " s: %" PRId64 " of %" PRId64, came->waited_ms / 1000, came->joined,
                 came->nodes_min);
    if (came->nodes_max > came->nodes_min)
        mu_words_add(&words, " to %" PRId64, came->nodes_max);
    mu_words_add(&words, " node%s joined", came->nodes_max == 1 ? "" : "s");
    for (size_t i = 0; came->nodes != NULL && i < shown; i++)
        mu_words_add(&words, "%s%.*s", i == 0 ? " (" : ", ",
                     (int)(came->nodes[i].name.len < NAME_SHOWN_MAX ? came->nodes[i].name.len : NAME_SHOWN_MAX),
                     came->nodes[i].name.data);
    if (came->nodes != NULL && shown > 0) {
        if (came->nodes_count > shown)
            mu_words_add(&words, " and %zu more", came->nodes_count - shown);
        mu_words_add(&words, ")");
    }
    if (came->joined >= came->nodes_max)
        mu_words_add(&words, ", but the round did not begin: was each node started with the same --nnodes?");
    return text;
}
