/* The text of "timed out": how long, how many nodes joined, and which. Pure. */
#ifndef MU_RDZV_TIMEOUT_TEXT_H
#define MU_RDZV_TIMEOUT_TEXT_H

#include "rdzv/doc.h"

#define MU_TIMEOUT_TEXT_MAX 768     /* bytes, the NUL included */
#define MU_TIMEOUT_TEXT_NAMES_MAX 8 /* nodes that are named; the others are counted */

struct mu_timeout_text {
    uint64_t waited_ms;
    int64_t joined, nodes_min, nodes_max;
    const struct mu_node *nodes; /* those that joined, this node among them; NULL: not known */
    size_t nodes_count;
};

/* "timed out after 600 s: 3 of 4 nodes joined (a, b, c)". If all have come that this node waits for, another node waits
 * for more. */
const char *mu_timeout_text_write(const struct mu_timeout_text *came, char text[static MU_TIMEOUT_TEXT_MAX]);

#endif
